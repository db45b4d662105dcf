//! Arithmetic of f64: 53 significant bits, exponents from -1022 to 1023, subnormals down to 2^-1074.

use super::{Vector, p, table};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
const MAX: f64 = f64::MAX;
/// The smallest normal number, 2^-1022.
const NORMAL: f64 = p(-1022);
/// The smallest subnormal number, 2^-1074.
const TINY: f64 = b(1);
/// The numbers next to 1.
const BELOW_ONE: f64 = b(0x3fef_ffff_ffff_ffff);
const ABOVE_ONE: f64 = b(0x3ff0_0000_0000_0001);
/// Two factors whose product is a tie: (1 + 2^-26) × (1 + 2^-27) = 1 + 2^-26 + 2^-27 + 2^-53, and that without its end.
const FACTOR_26: f64 = b(0x3ff0_0000_0400_0000);
const FACTOR_27: f64 = b(0x3ff0_0000_0200_0000);
const PRODUCT: f64 = b(0x3ff0_0000_0600_0000);

const fn b(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub(crate) fn vectors() -> Vec<Vector> {
    let mut all = arithmetic();
    all.extend(signs_and_bounds());
    all.extend(fused());
    all.extend(roots_and_roundings());
    all
}

fn arithmetic() -> Vec<Vector> {
    table! {
        add(f64, f64) -> f64 {
            1.5, 2.25 => 3.75; 0.1, 0.2 => b(0x3fd3_3333_3333_3334); 16_777_216.0, 1.0 => 16_777_217.0;
            // From 2^53 on the spacing is 2, so adding 1 is a tie, which goes to the even neighbour.
            9_007_199_254_740_992.0, 1.0 => 9_007_199_254_740_992.0;
            9_007_199_254_740_994.0, 1.0 => 9_007_199_254_740_996.0;
            // 1 + 2^-53 is a tie, and the next larger addend is above it.
            1.0, p(-53) => 1.0; 1.0, b(0x3ca0_0000_0000_0001) => ABOVE_ONE;
            ABOVE_ONE, p(-53) => b(0x3ff0_0000_0000_0002);
            // The largest number plus half its spacing, 2^970, is a tie with what would be 2^1024.
            MAX, p(970) => INF; MAX, b(0x7c8f_ffff_ffff_ffff) => MAX; MAX, MAX => INF;
            -MAX, -MAX => -INF; MAX, -MAX => 0.0;
            INF, 1.0 => INF; INF, INF => INF; INF, -INF => NAN; -INF, MAX => -INF; NAN, 1.0 => NAN; NAN, INF => NAN;
            0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => -0.0; 1.0, -1.0 => 0.0; -0.0, 1.0 => 1.0;
            TINY, TINY => b(2); b(0x000f_ffff_ffff_ffff), TINY => NORMAL; NORMAL, -TINY => b(0x000f_ffff_ffff_ffff);
        }
        sub(f64, f64) -> f64 {
            5.5, 2.25 => 3.25; 2.25, 5.5 => -3.25;
            // Below 1 the spacing is 2^-53, so 1 - 2^-54 is a tie and 1 - 2^-53 is not.
            1.0, p(-54) => 1.0; 1.0, p(-53) => BELOW_ONE; 1.0, b(0x3c90_0000_0000_0001) => BELOW_ONE;
            9_007_199_254_740_992.0, -1.0 => 9_007_199_254_740_992.0;
            MAX, -MAX => INF; -MAX, MAX => -INF; INF, INF => NAN; INF, -INF => INF; 1.0, INF => -INF;
            NAN, 1.0 => NAN; 1.0, NAN => NAN; 1.0, 1.0 => 0.0;
            0.0, 0.0 => 0.0; -0.0, 0.0 => -0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => 0.0;
            NORMAL, TINY => b(0x000f_ffff_ffff_ffff); TINY, b(2) => -TINY;
        }
        mul(f64, f64) -> f64 {
            1.5, -2.5 => -3.75; -1.5, -2.5 => 3.75;
            // The second tie is 1.5 × (1 + 2^-52) = 1.5 + 2^-52 + 2^-53.
            FACTOR_26, FACTOR_27 => PRODUCT; 1.5, ABOVE_ONE => b(0x3ff8_0000_0000_0002);
            MAX, 2.0 => INF; MAX, -2.0 => -INF; MAX, 1.0 => MAX; INF, -1.0 => -INF;
            0.0, INF => NAN; -INF, -0.0 => NAN; NAN, 0.0 => NAN; INF, INF => INF;
            0.0, 5.0 => 0.0; -0.0, 5.0 => -0.0; -0.0, -1.0 => 0.0;
            TINY, 0.5 => 0.0; TINY, -0.5 => -0.0; TINY, 0.75 => TINY; b(3), 0.5 => b(2); b(5), 0.5 => b(2);
            TINY, TINY => 0.0; -TINY, TINY => -0.0;
            NORMAL, 0.5 => b(0x0008_0000_0000_0000); BELOW_ONE, NORMAL => NORMAL;
            b(0x000f_ffff_ffff_ffff), 2.0 => b(0x001f_ffff_ffff_fffe);
        }
        div(f64, f64) -> f64 {
            7.0, 2.0 => 3.5; 1.0, 3.0 => b(0x3fd5_5555_5555_5555); 2.0, -3.0 => b(0xbfe5_5555_5555_5555);
            1.0, 10.0 => b(0x3fb9_9999_9999_999a);
            1.0, 0.0 => INF; -1.0, 0.0 => -INF; 1.0, -0.0 => -INF; 0.0, 0.0 => NAN; -0.0, 0.0 => NAN;
            INF, INF => NAN; INF, 0.0 => INF; 1.0, INF => 0.0; -1.0, INF => -0.0;
            0.0, -5.0 => -0.0; NAN, 1.0 => NAN; 1.0, NAN => NAN;
            MAX, 0.5 => INF; 1.0, TINY => INF; MAX, MAX => 1.0;
            TINY, 2.0 => 0.0; -TINY, 2.0 => -0.0; b(3), 2.0 => b(2);
            NORMAL, 2.0 => b(0x0008_0000_0000_0000); TINY, TINY => 1.0;
            // 1 / (2^1024 × (1 - 2^-53)) is 2^-1024 and a bit, and the bit is an eighth of the subnormal spacing.
            1.0, MAX => b(0x0004_0000_0000_0000);
        }
    }
}

fn signs_and_bounds() -> Vec<Vector> {
    table! {
        neg(f64) -> f64 {
            1.5 => -1.5; -1.5 => 1.5; 0.0 => -0.0; -0.0 => 0.0; INF => -INF; TINY => -TINY; MAX => -MAX; NAN => NAN;
        }
        abs(f64) -> f64 {
            1.5 => 1.5; -1.5 => 1.5; 0.0 => 0.0; -0.0 => 0.0; -INF => INF; -TINY => TINY; -MAX => MAX; NAN => NAN;
        }
        min(f64, f64) -> f64 {
            1.0, 2.0 => 1.0; -1.0, 1.0 => -1.0; -1.0, -2.0 => -2.0; 3.0, 3.0 => 3.0;
            INF, MAX => MAX; -INF, -MAX => -INF;
            -0.0, 0.0 => -0.0; 0.0, -0.0 => -0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => 0.0; -TINY, -0.0 => -TINY; TINY, b(2) => TINY; 1.0, ABOVE_ONE => 1.0;
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
            // A signaling NaN and a NaN with its sign set are like any other.
            b(0x7ff0_0000_0000_0001), 1.0 => 1.0; 1.0, b(0x7ff0_0000_0000_0001) => 1.0;
            -1.0, b(0xfff8_0000_0000_0000) => -1.0;
        }
        max(f64, f64) -> f64 {
            1.0, 2.0 => 2.0; -1.0, 1.0 => 1.0; -1.0, -2.0 => -1.0; 3.0, 3.0 => 3.0; INF, MAX => INF; -INF, -MAX => -MAX;
            -0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => TINY; -TINY, -0.0 => -0.0; TINY, b(2) => b(2); 1.0, ABOVE_ONE => ABOVE_ONE;
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
            b(0x7ff0_0000_0000_0001), 1.0 => 1.0; 1.0, b(0x7ff0_0000_0000_0001) => 1.0;
            -1.0, b(0xfff8_0000_0000_0000) => -1.0;
        }
    }
}

fn fused() -> Vec<Vector> {
    table! {
        fma(f64, f64, f64) -> f64 {
            2.0, 3.0, 4.0 => 10.0; -2.0, 3.0, 4.0 => -2.0;
            // The end of the product is all that is left. A rounded product would leave nothing.
            FACTOR_26, FACTOR_27, -PRODUCT => p(-53);
            // A product that is a tie, decided by the smallest addend there is.
            FACTOR_26, FACTOR_27, TINY => b(0x3ff0_0000_0600_0001); FACTOR_26, FACTOR_27, -TINY => PRODUCT;
            FACTOR_26, FACTOR_27, 0.0 => PRODUCT; 1.5, ABOVE_ONE, 0.0 => b(0x3ff8_0000_0000_0002);
            1.5, ABOVE_ONE, -TINY => b(0x3ff8_0000_0000_0001); -1.5, ABOVE_ONE, TINY => -b(0x3ff8_0000_0000_0001);
            // The product alone would overflow.
            MAX, 2.0, -MAX => MAX; -MAX, 2.0, MAX => -MAX; MAX, 2.0, 0.0 => INF; MAX, MAX, -INF => -INF;
            // Halves of the smallest subnormal, exact in the product, rounded with the sum.
            TINY, 0.5, 0.0 => 0.0; -TINY, 0.5, 0.0 => -0.0; TINY, 0.5, TINY => b(2); TINY, 0.5, b(2) => b(2);
            TINY, 0.75, 0.0 => TINY; TINY, TINY, TINY => TINY; TINY, -TINY, 0.0 => -0.0;
            INF, 0.0, 1.0 => NAN; 0.0, INF, NAN => NAN; INF, 1.0, -INF => NAN;
            INF, 1.0, INF => INF; 1.0, 1.0, -INF => -INF;
            NAN, 1.0, 1.0 => NAN; 1.0, 1.0, NAN => NAN;
            0.0, 1.0, -0.0 => 0.0; -0.0, 1.0, -0.0 => -0.0; -0.0, 1.0, 0.0 => 0.0;
            1.0, 1.0, -1.0 => 0.0; 0.0, -1.0, -0.0 => -0.0;
        }
    }
}

fn roots_and_roundings() -> Vec<Vector> {
    table! {
        sqrt(f64) -> f64 {
            4.0 => 2.0; 0.25 => 0.5; 1.0 => 1.0; 2.0 => b(0x3ff6_a09e_667f_3bcd); 3.0 => b(0x3ffb_b67a_e858_4caa);
            0.0 => 0.0; -0.0 => -0.0; -1.0 => NAN; -TINY => NAN; -INF => NAN; INF => INF; NAN => NAN;
            // sqrt(1 - 2^-53) = 1 - 2^-54 - … lies just below a tie, and so does the root of the largest number.
            BELOW_ONE => BELOW_ONE; MAX => b(0x5fef_ffff_ffff_ffff); ABOVE_ONE => 1.0;
            b(0x3ff0_0000_0000_0002) => ABOVE_ONE;
            TINY => p(-537); b(2) => b(0x1e66_a09e_667f_3bcd); NORMAL => p(-511);
        }
        floor(f64) -> f64 {
            1.5 => 1.0; -1.5 => -2.0; 0.5 => 0.0; -0.5 => -1.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -1.0; BELOW_ONE => 0.0; 4_503_599_627_370_495.5 => 4_503_599_627_370_495.0;
            -4_503_599_627_370_495.5 => -4_503_599_627_370_496.0; 4_503_599_627_370_497.0 => 4_503_599_627_370_497.0;
            3_000_000_000.5 => 3_000_000_000.0; MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        ceil(f64) -> f64 {
            1.5 => 2.0; -1.5 => -1.0; 0.5 => 1.0; -0.5 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 1.0; -TINY => -0.0; ABOVE_ONE => 2.0; 4_503_599_627_370_495.5 => 4_503_599_627_370_496.0;
            -4_503_599_627_370_495.5 => -4_503_599_627_370_495.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        trunc(f64) -> f64 {
            1.5 => 1.0; -1.5 => -1.0; 0.9 => 0.0; -0.9 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -0.0; b(0x3fff_ffff_ffff_ffff) => 1.0;
            4_503_599_627_370_495.5 => 4_503_599_627_370_495.0;
            -4_503_599_627_370_495.5 => -4_503_599_627_370_495.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        round(f64) -> f64 {
            0.5 => 0.0; 1.5 => 2.0; 2.5 => 2.0; 3.5 => 4.0; -0.5 => -0.0; -1.5 => -2.0;
            -2.5 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            // The neighbours of one half, which adding one half and rounding down gets wrong.
            b(0x3fdf_ffff_ffff_ffff) => 0.0; b(0x3fe0_0000_0000_0001) => 1.0; -b(0x3fdf_ffff_ffff_ffff) => -0.0;
            4_503_599_627_370_495.5 => 4_503_599_627_370_496.0; 2_251_799_813_685_248.5 => 2_251_799_813_685_248.0;
            2_251_799_813_685_249.5 => 2_251_799_813_685_250.0; 4_503_599_627_370_497.0 => 4_503_599_627_370_497.0;
            TINY => 0.0; -TINY => -0.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
    }
}
