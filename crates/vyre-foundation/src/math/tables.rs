//! Constants of the functions: pairs, polynomials, limits, and the digits of 2/π.
//!
//! Coefficients are listed from the constant up. They were computed by interpolation at Chebyshev nodes with at least 200 bits, then rounded.
//! Next to each polynomial is its largest error with rounded coefficients in f32 and f64, relative to the function that uses it.

use std::{f32, f64};

/// Constants of a precision.
pub(crate) trait Tables: Sized + 'static {
    /// ln 2 as a pair.
    const LN_2: [Self; 2];
    /// log₂ e as a pair.
    const LOG2_E: [Self; 2];
    /// ln 2, split (Cody and Waite): leading bits, whose product with an exponent is exact, and the remainder.
    const LN_2_SPLIT: [Self; 2];
    /// ⅔ as a pair.
    const TWO_THIRDS: [Self; 2];
    /// π/2 as a pair.
    const FRAC_PI_2: [Self; 2];
    /// π/4 as a pair.
    const FRAC_PI_4: [Self; 2];
    /// (eʳ − 1 − r) / r² for |r| ≤ 0.347; 2⁻³⁰ and 2⁻⁶¹.
    const EXP: &'static [Self];
    /// (2 artanh s − 2s − ⅔s³) / s⁵ in s² ≤ 0.02945; 2⁻³⁸ and 2⁻⁶⁶.
    const LOG: &'static [Self];
    /// (sinh x − x) / x³ in x² ≤ 1; 2⁻²⁸ and 2⁻⁵⁶.
    const SINH: &'static [Self];
    /// (tanh x − x) / x³ in x² ≤ 0.3025; 2⁻²⁸ and 2⁻⁵⁷.
    const TANH: &'static [Self];
    /// (arsinh x − x) / x³ in x² ≤ 0.0625; 2⁻³⁰ and 2⁻⁶⁰.
    const ASINH: &'static [Self];
    /// (artanh x − x) / x³ in x² ≤ 0.0625; 2⁻³⁰ and 2⁻⁵⁹.
    const ATANH: &'static [Self];
    /// (sin r − r) / r³ in r² ≤ 0.617; 2⁻²⁸ and 2⁻⁵⁷.
    const SIN: &'static [Self];
    /// (cos r − 1 + r²/2) / r⁴ in r² ≤ 0.617; 2⁻³⁰ and 2⁻⁵⁹.
    const COS: &'static [Self];
    /// (arctan t − t) / t³ in t² ≤ 0.1717; 2⁻²⁹ and 2⁻⁵⁷.
    const ATAN: &'static [Self];
    /// (arcsin s − s) / s³ in s² ≤ 0.25; 2⁻³⁰ and 2⁻⁵⁸.
    const ASIN: &'static [Self];
    /// Binary digits of 2/π, after a word of zeros.
    const TWO_OVER_PI: &'static [u64];
    /// Range of operands of `exp` outside of which the result is 0 or infinite.
    const EXP_RANGE: [f32; 2];
    /// Magnitude of exponents of 2 from which the result is 0 or infinite.
    const EXP2_LIMIT: f32;
    /// Operand from which `sinh` and `cosh` are infinite.
    const SINH_LIMIT: f32;
    /// Exponent of a power of two whose product with a subnormal number is normal.
    const SUBNORMAL_SHIFT: u32;
    /// Bits of √½.
    const SQRT_HALF: u64;
    /// Exponent from which √(x² ± 1) is x to the precision of a pair. No square of a smaller number overflows.
    const SUM_OF_SQUARES: i32;
    /// Exponent below which products in `cbrt` and `hypot` are inexact, because their rounding errors are subnormal.
    const SMALL: i32;
    /// Exponent from which products in `cbrt` and `hypot` overflow.
    const LARGE: i32;
    /// Exponent by which `cbrt` and `hypot` scale small and large operands; a multiple of 3.
    const RESCALE: i32;
    /// Offset that, added to a third of the bits of a number, gives its cube root within 3.2 %.
    const CBRT_GUESS: u64;
    /// Iterations of Halley's method from that guess to 2⁻¹⁵ in f32 and 2⁻⁴⁵ in f64.
    const CBRT_STEPS: u32;
    /// Exponents of limits, and of the factors that points (x, y) below them are scaled by, so that the low part of x/y is normal and x + y
    /// does not overflow.
    const ANGLE_SCALES: [[i32; 2]; 2];
    /// Exponent of the factor that points beyond these limits are scaled by.
    const ANGLE_DOWN: i32;
}

impl Tables for f32 {
    const LN_2: [f32; 2] = [f32::consts::LN_2, -1.904_654_2e-9];
    const LOG2_E: [f32; 2] = [f32::consts::LOG2_E, 1.925_963e-8];
    const LN_2_SPLIT: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
    const TWO_THIRDS: [f32; 2] = [0.666_666_7, -1.986_821_6e-8];
    const FRAC_PI_2: [f32; 2] = [f32::consts::FRAC_PI_2, -4.371_139e-8];
    const FRAC_PI_4: [f32; 2] = [f32::consts::FRAC_PI_4, -4.371_139e-8 / 2.0];
    const EXP: &'static [f32] = &[0.5, 0.166_666_67, 0.041_666_463, 0.008_333_310_5, 0.001_393_375_1, 0.000_198_911_03];
    const LOG: &'static [f32] = &[0.4, 0.285_715_3, 0.222_047_51, 0.191_207_78];
    const SINH: &'static [f32] = &[0.166_666_67, 0.008_333_339, 0.000_198_381_02, 2.806_280_2e-6];
    const TANH: &'static [f32] =
        &[-0.333_333_34, 0.133_333_24, -0.053_964_7, 0.021_818_45, -0.008_526_333, 0.002_526_390_6];
    const ASINH: &'static [f32] = &[-0.166_666_67, 0.074_998_76, -0.044_542_56, 0.027_761_344];
    const ATANH: &'static [f32] = &[0.333_333_34, 0.199_999_87, 0.142_873_88, 0.110_370_72, 0.104_070_5];
    const SIN: &'static [f32] = &[-0.166_666_67, 0.008_333_332, -0.000_198_400_86, 2.724_985e-6];
    const COS: &'static [f32] = &[0.041_666_668, -0.001_388_888_8, 2.480_06e-5, -2.730_089_6e-7];
    const ATAN: &'static [f32] =
        &[-0.333_333_34, 0.199_999_76, -0.142_841_47, 0.110_712_88, -0.086_240_984, 0.050_466_49];
    const ASIN: &'static [f32] =
        &[0.166_666_67, 0.074_999_92, 0.044_647_664, 0.030_269_139, 0.023_611_818, 0.010_574_415, 0.030_974_54];
    const TWO_OVER_PI: &'static [u64] =
        &[0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];
    const EXP_RANGE: [f32; 2] = [-110.0, 90.0];
    const EXP2_LIMIT: f32 = 200.0;
    const SINH_LIMIT: f32 = 92.0;
    const SUBNORMAL_SHIFT: u32 = 24;
    const SQRT_HALF: u64 = 0x3f35_04f3;
    const SUM_OF_SQUARES: i32 = 30;
    const SMALL: i32 = -60;
    const LARGE: i32 = 60;
    const RESCALE: i32 = 90;
    const CBRT_GUESS: u64 = 709_954_077;
    const CBRT_STEPS: u32 = 1;
    const ANGLE_SCALES: [[i32; 2]; 2] = [[-60, 80], [120, 0]];
    const ANGLE_DOWN: i32 = -20;
}

impl Tables for f64 {
    const LN_2: [f64; 2] = [f64::consts::LN_2, 2.319_046_813_846_299_6e-17];
    const LOG2_E: [f64; 2] = [f64::consts::LOG2_E, 2.035_527_374_093_103_3e-17];
    const LN_2_SPLIT: [f64; 2] = [0.693_147_180_559_890_3, 5.497_923_018_708_371e-14];
    const TWO_THIRDS: [f64; 2] = [0.666_666_666_666_666_6, 3.700_743_415_417_188e-17];
    const FRAC_PI_2: [f64; 2] = [f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];
    const FRAC_PI_4: [f64; 2] = [f64::consts::FRAC_PI_4, 3.061_616_997_868_383e-17];
    const EXP: &'static [f64] = &[
        0.5,
        0.166_666_666_666_666_7,
        0.041_666_666_666_666_67,
        0.008_333_333_333_326_07,
        0.001_388_888_888_888_370_3,
        0.000_198_412_698_750_489_05,
        2.480_158_732_571_076e-5,
        2.755_725_511_097_889e-6,
        2.755_727_343_657_049e-7,
        2.510_533_724_466_521e-8,
        2.091_477_283_224_809e-9,
    ];
    const LOG: &'static [f64] = &[
        0.4,
        0.285_714_285_714_285_64,
        0.222_222_222_222_284_44,
        0.181_818_181_796_525_15,
        0.153_846_157_618_126_1,
        0.133_332_964_839_732_92,
        0.117_668_153_034_060_82,
        0.104_562_783_757_782_07,
        0.107_628_674_236_432_12,
    ];
    const SINH: &'static [f64] = &[
        0.166_666_666_666_666_66,
        0.008_333_333_333_333_333,
        0.000_198_412_698_412_697_73,
        2.755_731_922_404_034e-6,
        2.505_210_836_405_804e-8,
        1.605_904_839_635_056_2e-10,
        7.646_625_361_656_657e-13,
        2.844_526_416_989_528_5e-15,
    ];
    const TANH: &'static [f64] = &[
        -0.333_333_333_333_333_3,
        0.133_333_333_333_333_33,
        -0.053_968_253_968_252_63,
        0.021_869_488_536_057_545,
        -0.008_863_235_526_193_567,
        0.003_592_127_952_591_601,
        -0.001_455_833_163_252_327,
        0.000_590_015_448_203_987_4,
        -0.000_239_048_242_168_132,
        9.653_771_195_496_335e-5,
        -3.806_913_419_944_137e-5,
        1.334_311_044_471_078_5e-5,
        -3.009_508_448_665_723_7e-6,
    ];
    const ASINH: &'static [f64] = &[
        -0.166_666_666_666_666_66,
        0.074_999_999_999_999_97,
        -0.044_642_857_142_840_75,
        0.030_381_944_441_077_845,
        -0.022_372_158_739_321_676,
        0.017_352_743_289_239_067,
        -0.013_964_067_903_544_406,
        0.011_534_075_988_761_145,
        -0.009_514_239_016_225_154,
        0.006_427_516_696_317_879,
    ];
    const ATANH: &'static [f64] = &[
        0.333_333_333_333_333_3,
        0.200_000_000_000_000_32,
        0.142_857_142_856_972_12,
        0.111_111_111_145_980_56,
        0.090_909_087_298_441_24,
        0.076_923_291_191_124_26,
        0.066_658_951_567_710_22,
        0.058_994_495_713_809_44,
        0.050_367_285_507_437_51,
        0.063_767_853_525_028_05,
    ];
    const SIN: &'static [f64] = &[
        -0.166_666_666_666_666_66,
        0.008_333_333_333_333_333,
        -0.000_198_412_698_412_698_39,
        2.755_731_922_398_109_4e-6,
        -2.505_210_838_238_707_5e-8,
        1.605_904_278_031_844e-10,
        -7.646_961_254_064_752e-13,
        2.791_239_354_246_268e-15,
    ];
    const COS: &'static [f64] = &[
        0.041_666_666_666_666_664,
        -0.001_388_888_888_888_889,
        2.480_158_730_158_729_8e-5,
        -2.755_731_922_398_349e-7,
        2.087_675_698_634_001_2e-9,
        -1.147_074_506_922_894_3e-11,
        4.779_376_050_867_781e-14,
        -1.551_808_542_464_183_7e-16,
    ];
    const ATAN: &'static [f64] = &[
        -0.333_333_333_333_333_3,
        0.199_999_999_999_999_93,
        -0.142_857_142_857_114_98,
        0.111_111_111_107_523_25,
        -0.090_909_090_668_664_46,
        0.076_923_067_309_617_95,
        -0.066_666_419_083_020_51,
        0.058_819_236_261_333_01,
        -0.052_580_257_920_073_425,
        0.047_192_944_054_738_37,
        -0.041_040_297_505_018_21,
        0.030_626_287_828_475_898,
        -0.013_908_703_447_288_225,
    ];
    const ASIN: &'static [f64] = &[
        0.166_666_666_666_666_66,
        0.075_000_000_000_001_18,
        0.044_642_857_142_551_895,
        0.030_381_944_475_532_34,
        0.022_372_157_443_507_22,
        0.017_352_816_540_325_496,
        0.013_963_780_012_203_57,
        0.011_566_459_612_121_669,
        0.009_621_842_970_100_282,
        0.009_319_560_794_767_446,
        0.003_044_879_909_455_677_3,
        0.019_554_513_336_123_378,
        -0.019_241_671_746_743_04,
        0.029_612_011_264_955_12,
    ];
    const TWO_OVER_PI: &'static [u64] = &[
        0,
        0xa2f9_836e_4e44_1529,
        0xfc27_57d1_f534_ddc0,
        0xdb62_9599_3c43_9041,
        0xfe51_63ab_debb_c561,
        0xb724_6e3a_424d_d2e0,
        0x0649_2eea_09d1_921c,
        0xfe1d_eb1c_b129_a73e,
        0xe882_35f5_2ebb_4484,
        0xe99c_7026_b45f_7e41,
        0x3991_d639_8353_39f4,
        0x9c84_5f8b_bdf9_283b,
        0x1ff8_97ff_de05_980f,
        0xef2f_118b_5a0a_6d1f,
        0x6d36_7ecf_27cb_09b7,
        0x4f46_3f66_9e5f_ea2d,
        0x7527_bac7_ebe5_f17b,
        0x3d07_39f7_8a52_92ea,
        0x6bfb_5fb1_1f8d_5d08,
        0x5603_3046_fc7b_6bab,
    ];
    const EXP_RANGE: [f32; 2] = [-760.0, 720.0];
    const EXP2_LIMIT: f32 = 1100.0;
    const SINH_LIMIT: f32 = 715.0;
    const SUBNORMAL_SHIFT: u32 = 54;
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const SUM_OF_SQUARES: i32 = 60;
    const SMALL: i32 = -450;
    const LARGE: i32 = 450;
    const RESCALE: i32 = 600;
    const CBRT_GUESS: u64 = 0x2a9f_7699_0000_0000;
    const CBRT_STEPS: u32 = 2;
    const ANGLE_SCALES: [[i32; 2]; 2] = [[-500, 1000], [400, 600]];
    const ANGLE_DOWN: i32 = -2;
}
