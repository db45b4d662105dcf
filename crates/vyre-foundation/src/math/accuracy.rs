//! Errors in units in the last place, and the operands at which they are measured.

use half::f16;

use super::reference::Scaled;
use crate::ir::Scalar;

/// A type of operands whose functions are measured.
pub trait Measured: Scalar + Into<f64> {
    /// Bits of the fraction.
    const FRACTION: i64;
    /// Exponents of the smallest and largest normal numbers.
    const EXPONENTS: [i64; 2];
    /// Numbers of seeds for functions of one operand and of two.
    const SEEDS: [u64; 2];
    /// Operands of a seed, for functions of `arity` operands.
    fn operands(arity: usize, seed: u64) -> [Self; 2];
}

impl Measured for f32 {
    const FRACTION: i64 = 23;
    const EXPONENTS: [i64; 2] = [-126, 127];
    const SEEDS: [u64; 2] = [1 << 32, 1 << 30];

    fn operands(arity: usize, seed: u64) -> [f32; 2] {
        if arity == 1 { [f32::from_bits(seed as u32), 0.0] } else { pair(seed) }
    }
}

impl Measured for f16 {
    const FRACTION: i64 = 10;
    const EXPONENTS: [i64; 2] = [-14, 15];
    const SEEDS: [u64; 2] = [1 << 16, 1 << 32];

    fn operands(_: usize, seed: u64) -> [f16; 2] {
        [seed, seed >> 16].map(|bits| f16::from_bits(bits as u16))
    }
}

impl Measured for f64 {
    const FRACTION: i64 = 52;
    const EXPONENTS: [i64; 2] = [-1022, 1023];
    const SEEDS: [u64; 2] = [100_000_000; 2];

    fn operands(arity: usize, seed: u64) -> [f64; 2] {
        if arity == 1 { [single_f64(seed), 0.0] } else { pair_f64(seed) }
    }
}

/// Error of a result in units in the last place of the exact value.
pub(super) fn ulps_of_scaled(exact: Scaled, result: f64) -> f64 {
    let (high, low) = (exact.value.high, exact.value.low);
    if high == 0.0 || !high.is_finite() || result.is_nan() {
        return ulps(high, result);
    }
    if high.is_sign_negative() != result.is_sign_negative() {
        return f64::INFINITY;
    }
    let exponent = ((high.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let place = (exponent + i64::from(exact.exponent)).clamp(-1022, 1023) - 52;
    // In units in the last place, exact values beyond all numbers are 2⁵³, and so is infinity.
    let units = |x: f64, exponent: i64| {
        let half = exponent.clamp(-2000, 2000) / 2;
        x.abs() * power(half) * power(exponent.clamp(-2000, 2000) - half)
    };
    let beyond = power(53);
    let exact_high = units(high, i64::from(exact.exponent) - place);
    let result = units(result, -place).min(beyond);
    if exact_high >= beyond {
        return (result - beyond).abs();
    }
    let exact_low =
        units(low, i64::from(exact.exponent) - place) * if (low < 0.0) == (high < 0.0) { 1.0 } else { -1.0 };
    ((result - exact_high) - exact_low).abs()
}

/// Error of a result in units in the last place of the exact value, which f64 represents closely enough.
pub(super) fn ulps<T: Measured>(exact: f64, result: T) -> f64 {
    let result: f64 = result.into();
    if exact.is_nan() && result.is_nan() {
        return 0.0;
    }
    if exact.is_nan() || result.is_nan() || exact.is_sign_negative() != result.is_sign_negative() {
        return f64::INFINITY;
    }
    if exact.is_infinite() {
        return if result.is_infinite() { 0.0 } else { f64::INFINITY };
    }
    // Infinities, and exact values beyond the largest number, count as the next power of two.
    let [least, greatest] = T::EXPONENTS;
    let beyond = power(greatest + 1);
    let exact = exact.abs().min(beyond);
    let result = result.abs().min(beyond);
    let exponent = ((exact.to_bits() >> 52) as i64 - 1023).clamp(least, greatest);
    (result - exact).abs() / power(exponent - T::FRACTION)
}

/// 2 to the power of an exponent for which that is normal.
pub(super) fn power(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// Inverse hyperbolic tangent. `f64::atanh` computes `ln_1p` of a number near −1 for negative operands, and loses 24 bits of it.
pub(super) fn atanh(x: f64) -> f64 {
    x.abs().atanh().copysign(x)
}

/// Pairs of f32 of six kinds: unrelated numbers, numbers of similar magnitude, bases and exponents whose power is neither zero nor
/// infinite (of any base, and of bases near 1), subnormal numbers of all magnitudes, and small multiples of ¼.
fn pair(seed: u64) -> [f32; 2] {
    let [first, second] = [0, 1].map(|place| mixed(seed.wrapping_mul(2) | place));
    let x = f32::from_bits(first as u32);
    let fraction = second as u32 as f64 / 2f64.powi(32);
    // Exponent for which the power of a base is 2^t, where t is in about the range of exponents of f32.
    let exponent = |base: f32| ((fraction * 284.0 - 152.0) / f64::from(base.abs()).log2()) as f32;
    match (first >> 32) % 6 {
        0 => [x, f32::from_bits(second as u32)],
        1 => {
            let distance = (second as u32 % (26 << 23)).wrapping_sub(13 << 23);
            let magnitude = (x.abs().to_bits().wrapping_add(distance) & 0x7fff_ffff).min(0x7f7f_ffff);
            [x, f32::from_bits(magnitude | (second >> 32) as u32 & 0x8000_0000)]
        }
        2 => [x, exponent(x)],
        3 => {
            let distance = f32::from_bits((first as u32 & 0x8fff_ffff) % 0x0c00_0000 + 0x3300_0000);
            let x = if first & 0x8000_0000 == 0 { 1.0 + distance } else { 1.0 - distance };
            [x, exponent(x)]
        }
        4 => [first, second].map(|bits| {
            let fraction = (bits as u32 & 0x007f_ffff) >> ((bits >> 40) % 24);
            f32::from_bits(fraction | bits as u32 & 0x8000_0000)
        }),
        _ => [first as u8 as f32 * 0.25 - 32.0, second as u8 as f32 * 0.25 - 32.0],
    }
}

/// An f64 of one of eight kinds: any number; a number of a magnitude from 2⁻⁷⁰ to 2¹²; a number in the range of `exp` or that of `exp2`; one
/// between −1 and 1, one near ±1; one near a multiple of π/2; a subnormal number.
fn single_f64(seed: u64) -> f64 {
    let [first, second] = [0, 1].map(|place| mixed(seed.wrapping_mul(2) | place));
    let fraction = (first >> 11) as f64 * power(-53);
    let signed = |x: f64| if second >> 63 == 0 { x } else { -x };
    match second % 8 {
        0 => f64::from_bits(first),
        1 => f64::from_bits((first & !(0x7ff << 52)) | ((1023 - 70 + (second >> 8) % 82) << 52)),
        2 => signed(fraction * 760.0),
        3 => signed(fraction * 1100.0),
        4 => signed(fraction),
        5 => signed(1.0 + (fraction - 0.5) * power(-((second >> 8) as i64 % 52))),
        6 => {
            let multiple = (first >> ((second >> 8) % 64)) as f64 * std::f64::consts::FRAC_PI_2;
            signed(f64::from_bits((multiple.to_bits() + (second >> 16) % 5).saturating_sub(2)))
        }
        _ => f64::from_bits((first & !(0x7ff << 52)) >> ((second >> 8) % 52)),
    }
}

/// Pairs of f64 of the six kinds of [`pair`].
fn pair_f64(seed: u64) -> [f64; 2] {
    let [first, second] = [0, 1].map(|place| mixed(seed.wrapping_mul(2) | place));
    let kind = mixed(seed ^ 0x5bd1_e995);
    let x = f64::from_bits(first);
    let fraction = (second >> 11) as f64 * power(-53);
    // The exponent y for which x^y = 2^t, where t is in the range of f64.
    let exponent = |base: f64| (fraction * 2140.0 - 1105.0) / base.abs().log2();
    match kind % 6 {
        0 => [x, f64::from_bits(second)],
        1 => {
            let distance = (second % (120 << 52)).wrapping_sub(60 << 52);
            let magnitude = (x.abs().to_bits().wrapping_add(distance) & !(1 << 63)).min(f64::MAX.to_bits());
            [x, f64::from_bits(magnitude | kind & 1 << 63)]
        }
        2 => [x, exponent(x)],
        3 => {
            let distance = power(-1 - (kind >> 8) as i64 % 52) * (1.0 + (first >> 11) as f64 * power(-53));
            let x = if kind >> 63 == 0 { 1.0 + distance } else { 1.0 - distance / 2.0 };
            [x, exponent(x)]
        }
        4 => [first, second].map(|bits| f64::from_bits((bits & !(0x7ff << 52)) >> ((kind >> 8) % 53))),
        _ => [first as u8 as f64 * 0.25 - 32.0, second as u8 as f64 * 0.25 - 32.0],
    }
}

/// Output of SplitMix64 at a position.
fn mixed(position: u64) -> u64 {
    let z = position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
