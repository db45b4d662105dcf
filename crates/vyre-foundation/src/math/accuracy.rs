//! How far a result is from the true one, and where to look.

/// The distance of an f32 from a number that f64 is precise enough for, in units in the last place of an f32 near that.
pub(super) fn ulps(exact: f64, result: f32) -> f64 {
    if exact.is_nan() && result.is_nan() {
        return 0.0;
    }
    if exact.is_nan() || result.is_nan() || exact.is_sign_negative() != result.is_sign_negative() {
        return f64::INFINITY;
    }
    if exact.is_infinite() {
        return if result.is_infinite() { 0.0 } else { f64::INFINITY };
    }
    // An infinity stands for the number that comes after the largest one, and all beyond.
    const BEYOND: f64 = 2.0 * (1u128 << 127) as f64;
    let exact = exact.abs().min(BEYOND);
    let result = f64::from(result.abs()).min(BEYOND);
    let exponent = ((exact.to_bits() >> 52) as i64 - 1023).clamp(-126, 127);
    let ulp = f64::from_bits(((exponent - 23 + 1023) as u64) << 52);
    (result - exact).abs() / ulp
}

/// Inverse hyperbolic tangent. `f64::atanh` computes `ln_1p` of a number near −1 for negative operands, and loses 24 bits of it.
pub(super) fn atanh(x: f64) -> f64 {
    x.abs().atanh().copysign(x)
}

/// Operands for functions of two: any two, two of similar size, bases and exponents of powers that are neither zero nor
/// infinite, subnormal numbers of all sizes, and small multiples of ¼.
pub(super) fn sample(seed: u64) -> [f32; 2] {
    let [first, second] = [0, 1].map(|place| mixed(seed.wrapping_mul(2) | place));
    let x = f32::from_bits(first as u32);
    let fraction = second as u32 as f64 / 2f64.powi(32);
    // The exponent at which the power of a base is 2^t, for a t at which it is about within the range of f32.
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

/// The output of SplitMix64 at a position.
fn mixed(position: u64) -> u64 {
    let z = position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
