//! Exponentials, logarithms, hyperbolic functions and powers.

use std::f32::consts::{LN_2, LOG2_E};

use super::arithmetic::{Arithmetic, Real};
use super::pair::{Pair, polynomial, power, power_of_two, scaled};

const LN_2_PAIR: [f32; 2] = [LN_2, -1.904_654_2e-9];
const LOG2_E_PAIR: [f32; 2] = [LOG2_E, 1.925_963e-8];
/// ln 2, split into 15 bits (Cody and Waite: products with exponents are exact) and the remainder.
const LN_2_SHORT: f32 = 0.693_145_75;
const LN_2_REST: f32 = 1.428_606_8e-6;

/// (eʳ − 1 − r) / r² for |r| ≤ 0.347; 2⁻³⁰.
const EXP: [f32; 6] = [0.5, 0.166_666_67, 0.041_666_463, 0.008_333_310_5, 0.001_393_375_1, 0.000_198_911_03];
/// (2 artanh s − 2s − ⅔s³) / s⁵ in s² up to 0.02945; 2⁻³⁸.
const LOG: [f32; 4] = [0.4, 0.285_715_3, 0.222_047_51, 0.191_207_78];
const TWO_THIRDS: [f32; 2] = [0.666_666_7, -1.986_821_6e-8];
/// (sinh x − x) / x³ in x² up to 1; 2⁻²⁸.
const SINH: [f32; 4] = [0.166_666_67, 0.008_333_339, 0.000_198_381_02, 2.806_280_2e-6];
/// (tanh x − x) / x³ in x² up to 0.3025; 2⁻²⁸.
const TANH: [f32; 6] = [-0.333_333_34, 0.133_333_24, -0.053_964_7, 0.021_818_45, -0.008_526_333, 0.002_526_390_6];

/// (arsinh x − x) / x³ in x² up to 0.0625; 2⁻³⁰.
const ASINH: [f32; 4] = [-0.166_666_67, 0.074_998_76, -0.044_542_56, 0.027_761_344];
/// (artanh x − x) / x³ in x² up to 0.0625; 2⁻³⁰.
const ATANH: [f32; 5] = [0.333_333_34, 0.199_999_87, 0.142_873_88, 0.110_370_72, 0.104_070_5];
/// From this x on, √(x² ± 1) equals x in double-single precision. Squares of smaller numbers do not overflow.
const ROOT_IS_OPERAND: f32 = power(30);

#[inline(always)]
pub(crate) fn exp<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (n, significand) = exp_parts(x.at_least(-110.0).at_most(90.0));
    x.is_nan().choose(x, scaled(significand.rounded(), n))
}

#[inline(always)]
pub(crate) fn exp2<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let result = exp2_of_pair(Pair::of(x.at_least(-200.0).at_most(200.0)));
    x.is_nan().choose(x, result)
}

#[inline(always)]
pub(crate) fn log<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (k, ln) = log_parts(x);
    let sum = Pair::ordered_sum(k * LN_2_SHORT, ln.high);
    log_of_special(x, sum.high + (sum.low + k.fma(LN_2_REST, ln.low)))
}

#[inline(always)]
pub(crate) fn log2<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    log_of_special(x, log2_pair(x).rounded())
}

#[inline(always)]
pub(crate) fn sinh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (n, growing, shrinking) = exp_both_ways(magnitude);
    let large = Pair::sum(growing.high, -shrinking.high);
    let large = scaled(large.high + (large.low + (growing.low - shrinking.low)), n - 1.0);
    let small = odd_polynomial(magnitude, &SINH);
    let result = magnitude.lt(1.0).choose(small, large).flipped(x.sign());
    x.is_nan().choose(x, result)
}

#[inline(always)]
pub(crate) fn cosh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (n, growing, shrinking) = exp_both_ways(x.abs());
    let sum = Pair::ordered_sum(growing.high, shrinking.high);
    let result = scaled(sum.high + (sum.low + (growing.low + shrinking.low)), n - 1.0);
    x.is_nan().choose(x, result)
}

/// tanh x = 1 − 2 / (e²ˣ + 1); near 0, where the difference cancels, a polynomial.
#[inline(always)]
pub(crate) fn tanh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (n, significand) = exp_parts((magnitude + magnitude).at_most(40.0));
    let power = significand.scaled(power_of_two(n));
    let divisor = Pair::sum(power.high, x.lit(1.0));
    let divisor = Pair { high: divisor.high, low: divisor.low + power.low };
    let quotient = Pair::of(x.lit(2.0)).over(divisor);
    let large = Pair::ordered_sum(x.lit(1.0), -quotient.high);
    let large = large.high + (large.low - quotient.low);
    let small = odd_polynomial(magnitude, &TANH);
    let result = magnitude.lt(0.55).choose(small, large).flipped(x.sign());
    x.is_nan().choose(x, result)
}

/// asinh x = ln(x + √(x² + 1)); near 0, where the argument of the logarithm is close to 1, a polynomial.
#[inline(always)]
pub(crate) fn asinh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let large = log_with_root(magnitude, x.lit(1.0));
    let result = magnitude.lt(0.25).choose(odd_polynomial(magnitude, &ASINH), large);
    let result = magnitude.eq(f32::INFINITY).choose(f32::INFINITY, result).flipped(x.sign());
    x.is_nan().choose(x, result)
}

/// acosh x = ln(x + √(x² − 1)). The sum is a pair: near 1, its low part makes the logarithm as precise as the root.
#[inline(always)]
pub(crate) fn acosh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let result = x.eq(f32::INFINITY).choose(x, log_with_root(x, x.lit(-1.0)));
    x.lit(1.0).le(x).choose(result, f32::NAN)
}

/// atanh x = ½ ln((1 + x) / (1 − x)); near 0, where the quotient is close to 1, a polynomial.
#[inline(always)]
pub(crate) fn atanh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (magnitude, one) = (x.abs(), x.lit(1.0));
    let quotient = Pair::sum(one, magnitude).over(Pair::sum(one, -magnitude));
    let large = log_of_pair(quotient, one.lit(0.0)) * 0.5;
    let result = magnitude.lt(0.25).choose(odd_polynomial(magnitude, &ATANH), large);
    let result = magnitude.eq(1.0).choose(f32::INFINITY, result).flipped(x.sign());
    magnitude.le(1.0).choose(result, f32::NAN)
}

/// `x` to the power of `y`, as 2 to the power of `y` × log₂ `x`, with the exponent in double-single precision.
#[inline(always)]
pub(crate) fn pow<'m, M: Arithmetic>(x: Real<'m, M>, y: Real<'m, M>) -> Real<'m, M> {
    let magnitude = x.abs();
    let log = log2_pair(magnitude);
    let high = y * log_of_special(magnitude, log.high);
    let low = y.fma(log.low, y.fma(log.high, -high));
    // Beyond ±200 the power over- or underflows, and the low part is meaningless.
    let inside = high.abs().lt(200.0);
    let exponent = Pair { high: high.at_least(-200.0).at_most(200.0), low: inside.choose(low, 0.0) };
    // ∞ × log₂ 1 is NaN, but 1 to any power is 1.
    let power = magnitude.eq(1.0).choose(1.0, exp2_of_pair(exponent));

    let integral = y.round().eq(y);
    let half = y * 0.5;
    let odd = integral & half.round().ne(half);
    let power = power.flipped(odd.choose_word(x.sign(), 0));
    let not_real = x.lt(0.0) & x.ne(f32::NEG_INFINITY) & !integral;
    let power = (not_real | x.is_nan() | y.is_nan()).choose(f32::NAN, power);
    (y.eq(0.0) | x.eq(1.0)).choose(1.0, power)
}

/// eˣ as 2ⁿ times a number near 1, for x from −110 to 92.
#[inline(always)]
fn exp_parts<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>) {
    let n = (x * LOG2_E).round();
    let rest = n.fma(-LN_2_SHORT, x);
    let high = n.fma(-LN_2_REST, rest);
    let low = n.fma(-LN_2_REST, rest - high);
    (n, exp_near_zero(Pair { high, low }))
}

/// eʳ for |r| ≤ 0.347, to about 2⁻²⁸.
#[inline(always)]
fn exp_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let sum = Pair::ordered_sum(r.high.lit(1.0), r.high);
    let low = r.low.fma(r.high, r.low);
    let rest = (r.high * r.high).fma(polynomial(r.high, &EXP), low);
    Pair::ordered_sum(sum.high, sum.low + rest)
}

/// 2ˣ, for x from −200 to 200.
#[inline(always)]
fn exp2_of_pair<'m, M: Arithmetic>(x: Pair<'m, M>) -> Real<'m, M> {
    let n = x.high.round();
    let fraction = Pair::sum(x.high - n, x.low);
    let r = fraction.times(Pair::literal(n, LN_2_PAIR));
    scaled(exp_near_zero(r).rounded(), n)
}

/// Returns n, eˣ / 2ⁿ and e⁻ˣ / 2ⁿ for x ≥ 0. x is clamped to 92, beyond which sinh and cosh overflow.
#[inline(always)]
fn exp_both_ways<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>, Pair<'m, M>) {
    let (n, growing) = exp_parts(x.at_most(92.0));
    let shrinking = Pair::of(n.lit(1.0)).over(growing);
    // Below 2⁻¹⁰⁰ times eˣ, the value of e⁻ˣ does not change the rounded sum.
    (n, growing, shrinking.scaled(power_of_two((n * -2.0).at_least(-100.0))))
}

/// x + x³ P(x²).
#[inline(always)]
fn odd_polynomial<'m, M: Arithmetic>(x: Real<'m, M>, coefficients: &[f32]) -> Real<'m, M> {
    let square = x * x;
    (square * x).fma(polynomial(square, coefficients), x)
}

/// Range reduction of logarithms: returns k and ln m, where x = 2ᵏ m and m is between √½ and √2, for positive finite x.
///
/// ln m = 2 artanh s with s = (m − 1) / (m + 1). The first two terms of the series are pairs; the relative error is about 2⁻³⁷.
#[inline(always)]
fn log_parts<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>) {
    let subnormal = x.lt(f32::MIN_POSITIVE);
    let bits = subnormal.choose(x * 16_777_216.0, x).bits();
    // Adding the distance from √½ to 1 carries into the exponent for all significands from √2 up.
    let exponent = (bits + (0x3f80_0000 - 0x3f35_04f3)) >> 23;
    let m = (bits - (exponent << 23) + 0x3f80_0000).of_bits();
    let k = exponent.convert() - subnormal.choose(127.0 + 24.0, 127.0);

    let one = x.lit(1.0);
    let s = Pair::of(m - one).over(Pair::sum(m, one));
    let square = s.times(s);
    let third = square.high.fma(polynomial(square.high, &LOG), TWO_THIRDS[1]);
    let coefficient = Pair::ordered_sum(x.lit(TWO_THIRDS[0]), third);
    let cubic = s.times(square).times(coefficient);
    (k, s.scaled(x.lit(2.0)).plus_smaller(cubic))
}

/// ln(x + √(x² + c)) for finite x ≥ 0, c = ±1 and x² + c ≥ 0.
#[inline(always)]
fn log_with_root<'m, M: Arithmetic>(x: Real<'m, M>, c: Real<'m, M>) -> Real<'m, M> {
    let square = Pair::product(x, x);
    let sum = Pair::sum(square.high, c);
    let sum = Pair::ordered_sum(sum.high, sum.low + square.low);
    let root = sum.high.sqrt();
    let lost = ((-root).fma(root, sum.high) + sum.low) / (root + root).at_least(f32::MIN_POSITIVE);
    let both = Pair::sum(x, root);
    let both = Pair::ordered_sum(both.high, both.low + lost);
    // For large x the argument is 2x, and ln 2x = ln x + ln 2.
    let large = !x.lt(ROOT_IS_OPERAND);
    let argument = Pair { high: large.choose(x, both.high), low: large.choose(0.0, both.low) };
    log_of_pair(argument, large.choose(1.0, 0.0))
}

/// ln(2ᵏ x), for normal x and k 0 or 1.
#[inline(always)]
fn log_of_pair<'m, M: Arithmetic>(x: Pair<'m, M>, k: Real<'m, M>) -> Real<'m, M> {
    let (exponent, ln) = log_parts(x.high);
    let k = exponent + k;
    let sum = Pair::ordered_sum(k * LN_2_SHORT, ln.high);
    sum.high + (sum.low + k.fma(LN_2_REST, ln.low + x.low / x.high))
}

/// log₂ of a positive finite number.
#[inline(always)]
fn log2_pair<M: Arithmetic>(x: Real<'_, M>) -> Pair<'_, M> {
    let (k, ln) = log_parts(x);
    Pair::of(k).plus_smaller(ln.times(Pair::literal(k, LOG2_E_PAIR)))
}

/// Special cases of logarithms: returns `ordinary` for positive finite x, and −∞, ∞ or NaN for 0, ∞ and all others.
#[inline(always)]
fn log_of_special<'m, M: Arithmetic>(x: Real<'m, M>, ordinary: Real<'m, M>) -> Real<'m, M> {
    let result = x.eq(f32::INFINITY).choose(x, ordinary);
    let result = x.eq(0.0).choose(f32::NEG_INFINITY, result);
    x.lit(0.0).le(x).choose(result, f32::NAN)
}
