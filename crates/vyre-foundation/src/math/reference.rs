//! Reference for f64: the functions in double-double arithmetic, with a relative error below 2⁻⁸⁸.
//!
//! Results of the library are compared with these. The methods differ from those of the library: Taylor series, and Newton's method from
//! the function of the standard library. `reference_is_exact` compares them with values that were computed with 1500 bits.

use std::f64::consts;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::LazyLock;

use super::accuracy::power;

/// A number as the sum of two f64, where |low| is at most half an ULP of high: double-double arithmetic, as long as nothing under- or
/// overflows.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    pub(super) high: f64,
    pub(super) low: f64,
}

/// `value × 2^exponent`.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    pub(super) value: Wide,
    pub(super) exponent: i32,
}

const LN_2: Wide = Wide { high: consts::LN_2, low: 2.319_046_813_846_299_6e-17 };
/// π/2 − [`FRAC_PI_2`].
const FRAC_PI_2_REST: f64 = -1.497_384_904_859_169_7e-33;
const FRAC_PI_2: Wide = Wide { high: consts::FRAC_PI_2, low: 6.123_233_995_736_766e-17 };

impl Wide {
    const fn new(high: f64) -> Wide {
        Wide { high, low: 0.0 }
    }

    /// a + b, exactly.
    fn sum(a: f64, b: f64) -> Wide {
        let high = a + b;
        let from_b = high - a;
        Wide { high, low: (a - (high - from_b)) + (b - from_b) }
    }

    /// a + b, exactly, for |a| ≥ |b|.
    fn ordered(a: f64, b: f64) -> Wide {
        let high = a + b;
        Wide { high, low: b - (high - a) }
    }

    /// a × b, exactly.
    fn product(a: f64, b: f64) -> Wide {
        let high = a * b;
        Wide { high, low: a.mul_add(b, -high) }
    }

    fn sqrt(self) -> Wide {
        if self.high == 0.0 {
            return self;
        }
        let root = self.high.sqrt();
        let rest = (self - Wide::product(root, root)).high;
        Wide::ordered(root, rest / (2.0 * root))
    }

    /// a + b for |a| ≥ |b|, with a relative error of a few 2⁻¹⁰⁶.
    fn plus_smaller(self, other: Wide) -> Wide {
        let sum = Wide::ordered(self.high, other.high);
        Wide::ordered(sum.high, sum.low + (self.low + other.low))
    }

    /// Product with a power of two.
    fn times(self, factor: f64) -> Wide {
        Wide { high: self.high * factor, low: self.low * factor }
    }

    fn abs(self) -> Wide {
        if self.high < 0.0 { -self } else { self }
    }

    fn scaled(self, exponent: i32) -> Scaled {
        Scaled { value: self, exponent }
    }
}

impl Neg for Wide {
    type Output = Wide;
    fn neg(self) -> Wide {
        Wide { high: -self.high, low: -self.low }
    }
}

impl Add for Wide {
    type Output = Wide;
    fn add(self, other: Wide) -> Wide {
        let (high, low) = (Wide::sum(self.high, other.high), Wide::sum(self.low, other.low));
        let sum = Wide::ordered(high.high, high.low + low.high);
        Wide::ordered(sum.high, sum.low + low.low)
    }
}

impl Sub for Wide {
    type Output = Wide;
    fn sub(self, other: Wide) -> Wide {
        self + -other
    }
}

impl Mul for Wide {
    type Output = Wide;
    fn mul(self, other: Wide) -> Wide {
        let product = Wide::product(self.high, other.high);
        let low = self.high.mul_add(other.low, self.low * other.high);
        Wide::ordered(product.high, product.low + low)
    }
}

impl Div for Wide {
    type Output = Wide;
    fn div(self, other: Wide) -> Wide {
        let first = self.high / other.high;
        let rest = self - other * Wide::new(first);
        let second = rest.high / other.high;
        let rest = rest - other * Wide::new(second);
        let sum = Wide::ordered(first, second);
        Wide::ordered(sum.high, sum.low + rest.high / other.high)
    }
}

impl From<Wide> for Scaled {
    fn from(value: Wide) -> Scaled {
        value.scaled(0)
    }
}

impl From<f64> for Scaled {
    fn from(value: f64) -> Scaled {
        Wide::new(value).scaled(0)
    }
}

impl Scaled {
    fn with_sign_of(self, x: f64) -> Scaled {
        let value = self.value.abs();
        // A zero has a sign, too.
        let value = Wide { high: value.high.abs(), ..value };
        Scaled { value: if x.is_sign_negative() { -value } else { value }, ..self }
    }
}

/// x = m × 2ᵏ with 1 ≤ |m| < 2, for finite x other than 0.
fn split(x: f64) -> (f64, i32) {
    let (x, less) = if x.abs() < f64::MIN_POSITIVE { (x * power(54), 54) } else { (x, 0) };
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let fraction = x.to_bits() & !(0x7ff << 52);
    (f64::from_bits(fraction | (1023 << 52)), exponent - less)
}

/// x × 2ⁿ. Small powers of two are applied in two steps.
fn ldexp(x: f64, n: i32) -> f64 {
    let n = n.clamp(-2000, 2000);
    x * power(i64::from(n / 2)) * power(i64::from(n - n / 2))
}

/// 1/k! for k < 32.
static INVERSE_FACTORIALS: LazyLock<[Wide; 32]> = LazyLock::new(|| {
    let mut inverse = [Wide::new(1.0); 32];
    for k in 1..32 {
        inverse[k] = inverse[k - 1] / Wide::new(k as f64);
    }
    inverse
});

/// 1/(2k + 1) for k < 16.
static INVERSE_ODD: LazyLock<[Wide; 16]> =
    LazyLock::new(|| std::array::from_fn(|k| Wide::new(1.0) / Wide::new((2 * k + 1) as f64)));

/// Σ cₖ xᵏ. Coefficients from `wide` on are of terms so small that f64 is precise enough for their sum.
fn series(x: Wide, coefficients: impl DoubleEndedIterator<Item = Wide> + ExactSizeIterator, wide: usize) -> Wide {
    let mut rest = 0.0;
    let mut sum = Wide::new(0.0);
    for (k, coefficient) in coefficients.enumerate().rev() {
        if k >= wide {
            rest = x.high.mul_add(rest, coefficient.high);
            sum = Wide::new(rest);
        } else {
            sum = coefficient.plus_smaller(x * sum);
        }
    }
    sum
}

/// (n, eˣ / 2ⁿ) for |x| < 2000.
fn exp_parts(x: Wide) -> (i32, Wide) {
    let n = (x.high / consts::LN_2).round();
    let r = (x - LN_2 * Wide::new(n) - Wide::new(n * 5.707_708_438_416_212e-34)).times(1.0 / 64.0);
    // e^r − 1, squared six times: (1 + p)² = 1 + (2p + p²).
    let mut p = r * series(r, INVERSE_FACTORIALS[1..13].iter().copied(), 6);
    for _ in 0..6 {
        p = p.times(2.0).plus_smaller(p * p);
    }
    (n as i32, Wide::new(1.0).plus_smaller(p))
}

fn exp_of(x: Wide) -> Scaled {
    let (n, value) = exp_parts(x);
    value.scaled(n)
}

/// ln(1 + w) for 1 + w > 0 that is not subnormal or huge.
fn ln_1p(w: Wide) -> Wide {
    if w.high.abs() < 0.05 {
        let s = w / (Wide::new(2.0) + w);
        return (s * series(s * s, INVERSE_ODD[..11].iter().copied(), 5)).times(2.0);
    }
    let x = Wide::new(1.0) + w;
    let near = x.high.ln();
    let (n, value) = exp_parts(Wide::new(-near));
    let t = Wide { high: ldexp(value.high, n), low: ldexp(value.low, n) } * x - Wide::new(1.0);
    Wide::new(near) + (t - (t * t).times(0.5))
}

/// (k, ln m) with x = 2ᵏ m and m near 1, for positive finite x.
fn ln_parts(x: f64) -> (Wide, Wide) {
    let (m, k) = split(x);
    let (m, k) = if m > consts::SQRT_2 { (m / 2.0, k + 1) } else { (m, k) };
    (Wide::new(f64::from(k)), ln_1p(Wide::new(m - 1.0)))
}

fn ln_of(x: f64) -> Wide {
    let (k, ln) = ln_parts(x);
    k * LN_2 + ln
}

/// Σ xᵏ / (2k + 1)! for |x| ≤ 1.
fn odd(x: Wide) -> Wide {
    series(x, INVERSE_FACTORIALS[1..30].iter().copied().step_by(2), 9)
}

/// Σ xᵏ / (2k)! for |x| ≤ 1.
fn even(x: Wide) -> Wide {
    series(x, INVERSE_FACTORIALS[..29].iter().copied().step_by(2), 10)
}

/// 2/π × 2^1216, the most significant word first.
const TWO_OVER_PI: &[u64] = <f64 as super::tables::Tables>::TWO_OVER_PI;

/// The multiple of π/2 nearest to x, modulo 4, and the remainder, for finite x ≥ 0.
///
/// x = M × 2^e with integral M. Digits of 2/π whose product with x is a multiple of 4 are left out, and the product of M with the next
/// 256 is computed exactly.
fn reduced(x: f64) -> (u64, Wide) {
    if x < consts::FRAC_PI_4 {
        return (0, Wide::new(x));
    }
    let (m, exponent) = split(x);
    let m = (m * power(52)) as u64;
    // The first digit has the weight 2^-1. Those of weights up to 2^-(e - 2), with e the exponent of the last place, are left out.
    let skipped = (exponent - 52 - 2).max(0) as u32;
    let word = |k: u32| TWO_OVER_PI.get(k as usize + 1).copied().unwrap_or(0);
    let digits = |k: u32| {
        let (word_index, shift) = (skipped / 64 + k, skipped % 64);
        if shift == 0 { word(word_index) } else { (word(word_index) << shift) | (word(word_index + 1) >> (64 - shift)) }
    };
    // The product is a fixed-point number with 256 digits after the point of 2^(e - skipped).
    let mut product = [0u64; 5];
    let mut carry = 0u128;
    for k in (0..4).rev() {
        carry += u128::from(digits(k)) * u128::from(m);
        product[k as usize + 1] = carry as u64;
        carry >>= 64;
    }
    product[0] = carry as u64;
    // Shifted so that product[0] has the integral part: by e - skipped, which is from -53 to 2.
    let shift = exponent - 52 - skipped as i32;
    let shifted: [u64; 5] = std::array::from_fn(|k| {
        let at = |k: usize| product.get(k).copied().unwrap_or(0);
        match shift {
            0 => at(k),
            1.. => (at(k) << shift) | (at(k + 1) >> (64 - shift)),
            _ => (at(k) >> -shift) | if k == 0 { 0 } else { at(k - 1) << (64 + shift) },
        }
    });
    let [whole, mut fraction @ ..] = shifted;
    let up = fraction[0] >> 63;
    if up == 1 {
        fraction = fraction.map(|word| !word);
    }
    let mut rest = Wide::new(0.0);
    // The last of the words is too small to count.
    for (k, &word) in fraction[..3].iter().enumerate() {
        for (half, place) in [(word >> 32, 32), (word & 0xffff_ffff, 64)] {
            rest = rest.plus_smaller(Wide::new(half as f64 * power(-(64 * k as i64) - place)));
        }
    }
    let r = rest * FRAC_PI_2 + Wide::new(rest.high * FRAC_PI_2_REST);
    (whole.wrapping_add(up) & 3, if up == 1 { -r } else { r })
}

/// sin(x + k π/2) for finite x ≥ 0.
fn sin_of(x: f64, k: u64) -> Wide {
    let (quadrant, r) = reduced(x);
    let quadrant = quadrant + k;
    let square = -(r * r);
    let sine = if quadrant & 1 == 0 { r * odd(square) } else { even(square) };
    if quadrant & 2 == 0 { sine } else { -sine }
}

/// Angle of a point with finite coordinates that are not both 0.
fn angle(y: Wide, x: Wide) -> Wide {
    let near = y.high.atan2(x.high);
    let (sine, cosine) = (sin_of(near.abs(), 0), sin_of(near.abs(), 1));
    let sine = if near < 0.0 { -sine } else { sine };
    let t = (y * cosine - x * sine) / (x * cosine + y * sine);
    Wide::new(near) + t
}

/// (e^|x| ∓ e^-|x|) / 2 with the sign of the second term, for |x| < 1000.
fn half_of_both(x: f64, sign: f64) -> Scaled {
    let (n, growing) = exp_parts(Wide::new(x.abs()));
    let shrinking = Wide::new(sign) / growing;
    (growing + shrinking.times(ldexp(1.0, (-2 * n).max(-400)))).scaled(n - 1)
}

pub(super) fn exp(x: f64) -> Scaled {
    if x.is_finite() { exp_of(Wide::new(x.clamp(-1000.0, 1000.0))) } else { x.exp().into() }
}

pub(super) fn exp2(x: f64) -> Scaled {
    if !x.is_finite() {
        return x.exp2().into();
    }
    let x = x.clamp(-1500.0, 1500.0);
    let n = x.round();
    let Scaled { value, exponent } = exp_of(Wide::new(x - n) * LN_2);
    value.scaled(exponent + n as i32)
}

pub(super) fn log(x: f64) -> Scaled {
    if x > 0.0 && x.is_finite() { ln_of(x).into() } else { x.ln().into() }
}

pub(super) fn log2(x: f64) -> Scaled {
    if x > 0.0 && x.is_finite() {
        let (k, ln) = ln_parts(x);
        (k + ln / LN_2).into()
    } else {
        x.log2().into()
    }
}

pub(super) fn sin(x: f64) -> Scaled {
    if !x.is_finite() || x.abs() < power(-200) {
        return x.sin().into();
    }
    let sine = sin_of(x.abs(), 0);
    Scaled::from(if x < 0.0 { -sine } else { sine })
}

pub(super) fn cos(x: f64) -> Scaled {
    if x.is_finite() && x.abs() > power(-200) { sin_of(x.abs(), 1).into() } else { x.cos().into() }
}

pub(super) fn tan(x: f64) -> Scaled {
    if !x.is_finite() || x.abs() < power(-200) {
        return x.tan().into();
    }
    let tangent = sin_of(x.abs(), 0) / sin_of(x.abs(), 1);
    Scaled::from(if x < 0.0 { -tangent } else { tangent })
}

/// √(1 − x²) for |x| ≤ 1.
fn cathetus(x: f64) -> Wide {
    (Wide::sum(1.0, x) * Wide::sum(1.0, -x)).sqrt()
}

pub(super) fn asin(x: f64) -> Scaled {
    if x.abs() <= 1.0 && x.abs() > power(-200) { angle(Wide::new(x), cathetus(x)).into() } else { x.asin().into() }
}

pub(super) fn acos(x: f64) -> Scaled {
    if x.abs() < 1.0 { angle(cathetus(x), Wide::new(x)).into() } else { atan_of_limits(x.acos()) }
}

/// A multiple of π/4 that the standard library computed, to twice the precision.
fn atan_of_limits(result: f64) -> Scaled {
    let quarters = (result / consts::FRAC_PI_4).round();
    if result.is_finite() && (result - quarters * consts::FRAC_PI_4).abs() < 1e-15 && quarters != 0.0 {
        return (FRAC_PI_2 * Wide::new(quarters / 2.0)).into();
    }
    result.into()
}

pub(super) fn atan(x: f64) -> Scaled {
    atan2(x, 1.0)
}

pub(super) fn atan2(y: f64, x: f64) -> Scaled {
    if !y.is_finite() || !x.is_finite() || y == 0.0 || x == 0.0 {
        return atan_of_limits(y.atan2(x));
    }
    let ((m, k), (n, l)) = (split(y), split(x));
    let distance = k - l;
    if distance < -80 && x > 0.0 {
        return (Wide::new(m) / Wide::new(n)).scaled(distance);
    }
    if distance.abs() > 80 {
        let quarters = if distance > 0 { FRAC_PI_2 } else { FRAC_PI_2.times(2.0) };
        // Of the rest only the order of magnitude counts.
        let rest = if distance > 0 {
            -(n / m.abs()) * ldexp(1.0, (-distance).max(-300))
        } else {
            (m.abs() / n) * ldexp(1.0, distance.max(-300))
        };
        return Scaled::from(quarters + Wide::new(rest)).with_sign_of(y);
    }
    angle(Wide::new(ldexp(m, distance)), Wide::new(n)).into()
}

pub(super) fn sinh(x: f64) -> Scaled {
    if !x.is_finite() || x.abs() < power(-200) {
        return x.sinh().into();
    }
    if x.abs() < 1.0 {
        (Wide::new(x) * odd(Wide::product(x, x))).into()
    } else {
        half_of_both(x.clamp(-900.0, 900.0), -1.0).with_sign_of(x)
    }
}

pub(super) fn cosh(x: f64) -> Scaled {
    if x.is_finite() { half_of_both(x.clamp(-900.0, 900.0), 1.0) } else { x.cosh().into() }
}

pub(super) fn tanh(x: f64) -> Scaled {
    if !x.is_finite() || x.abs() < power(-200) {
        return x.tanh().into();
    }
    if x.abs() < 1.0 {
        let square = Wide::product(x, x);
        return (Wide::new(x) * odd(square) / even(square)).into();
    }
    let (n, growing) = exp_parts(Wide::new(2.0 * x.abs().min(200.0)));
    let growing = growing.times(ldexp(1.0, n));
    let quotient = Wide::new(2.0) / (growing + Wide::new(1.0));
    Scaled::from(Wide::new(1.0) - quotient).with_sign_of(x)
}

/// ln 2x.
fn ln_of_double(x: f64) -> Wide {
    ln_of(x) + LN_2
}

pub(super) fn asinh(x: f64) -> Scaled {
    if !x.is_finite() || x.abs() < power(-200) {
        return x.asinh().into();
    }
    let magnitude = x.abs();
    let result = if magnitude > power(200) {
        ln_of_double(magnitude)
    } else {
        let square = Wide::product(magnitude, magnitude);
        let root = (square + Wide::new(1.0)).sqrt();
        ln_1p(Wide::new(magnitude) + square / (root + Wide::new(1.0)))
    };
    Scaled::from(result).with_sign_of(x)
}

pub(super) fn acosh(x: f64) -> Scaled {
    if !x.is_finite() || x <= 1.0 {
        return x.acosh().into();
    }
    if x > power(200) {
        return ln_of_double(x).into();
    }
    let less = Wide::sum(x, -1.0);
    let root = (less * Wide::sum(x, 1.0)).sqrt();
    ln_1p(less + root).into()
}

pub(super) fn atanh(x: f64) -> Scaled {
    if x.abs() >= 1.0 || x.is_nan() || x.abs() < power(-200) {
        return super::accuracy::atanh(x).into();
    }
    let magnitude = x.abs();
    let quotient = Wide::new(2.0 * magnitude) / Wide::sum(1.0, -magnitude);
    Scaled::from(ln_1p(quotient).times(0.5)).with_sign_of(x)
}

pub(super) fn pow(x: f64, y: f64) -> Scaled {
    let integral = y.round() == y;
    if !x.is_finite() || !y.is_finite() || x == 0.0 || y == 0.0 || (x < 0.0 && !integral) {
        return x.powf(y).into();
    }
    let odd = integral && (y / 2.0).round() != y / 2.0;
    let ln = ln_of(x.abs());
    // The product may overflow, and low parts of small products be subnormal.
    let exponent = if (ln.high * y).abs() > 1000.0 {
        Wide::new(if (ln.high < 0.0) == (y < 0.0) { 1000.0 } else { -1000.0 })
    } else if (ln.high * y).abs() < power(-200) {
        Wide::new(ln.high * y)
    } else {
        let (m, k) = split(y);
        let product = ln * Wide::new(m);
        Wide { high: ldexp(product.high, k), low: ldexp(product.low, k) }
    };
    exp_of(exponent).with_sign_of(if odd { x } else { 1.0 })
}

pub(super) fn cbrt(x: f64) -> Scaled {
    if !x.is_finite() || x == 0.0 {
        return x.into();
    }
    let (m, k) = split(x);
    let third = k.div_euclid(3);
    let a = m * power(i64::from(k - 3 * third));
    let near = a.cbrt();
    let rest = Wide::new(a) - Wide::product(near, near) * Wide::new(near);
    (Wide::new(near) + rest / (Wide::product(near, near) * Wide::new(3.0))).scaled(third)
}

pub(super) fn hypot(x: f64, y: f64) -> Scaled {
    if !x.is_finite() || !y.is_finite() || x == 0.0 || y == 0.0 {
        return x.hypot(y).into();
    }
    let (larger, smaller) = if x.abs() < y.abs() { (y.abs(), x.abs()) } else { (x.abs(), y.abs()) };
    let ((m, k), (n, l)) = (split(larger), split(smaller));
    let n = ldexp(n, (l - k).max(-200));
    (Wide::product(m, m) + Wide::product(n, n)).sqrt().scaled(k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ops::OpInfo;
    use crate::math::reference_of;

    /// Lines are a function, the bits of its operands, and the exact value: high and low part as bits, and the exponent. They were
    /// computed with 1500 bits.
    const VALUES: &str = include_str!("reference_values.txt");

    #[test]
    fn reference_is_exact() {
        let (mut checked, mut wrong) = (0, Vec::new());
        for line in VALUES.lines() {
            let float = |bits: &str| {
                let bits = bits.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                f64::from_bits(bits.expect("bits are hexadecimal"))
            };
            let (call, value) = line.split_once(" = ").expect("a line has a value");
            let mut call = call.split(' ');
            let name = call.next().expect("a line has a function");
            let operands: Vec<f64> = call.map(float).collect();
            let [high, low, exponent] = value.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}: not a value") };
            let exact = Wide { high: float(high), low: float(low) };
            let op = OpInfo::named(name).and_then(OpInfo::pure).expect("an operation");
            let result = reference_of(op, &operands);
            let factor = ldexp(1.0, result.exponent - exponent.parse::<i32>().expect("the exponent is a number"));
            let difference = Wide { high: result.value.high * factor, low: result.value.low * factor } - exact;
            if difference.high.abs() > exact.high.abs() * power(-88) {
                wrong.push(format!("{line}: off by {:e}", difference.high / exact.high));
            }
            checked += 1;
        }
        assert!(checked > 150 && wrong.is_empty(), "{} of {checked}\n{}", wrong.len(), wrong.join("\n"));
    }
}
