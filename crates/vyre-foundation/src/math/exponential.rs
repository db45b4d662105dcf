//! Exponentials, logarithms, hyperbolic functions and their inverses, and powers.

use super::arithmetic::{Arithmetic, Constant, Precision, Real};
use super::pair::{Pair, polynomial, power, power_of_two, scaled, units};
use super::tables::Tables;
use crate::ir::Scalar;

#[inline(always)]
pub(crate) fn exp<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (n, significand) = exp_parts(x.at_least(M::P::EXP_RANGE[0]).at_most(M::P::EXP_RANGE[1]));
    x.is_nan().choose(x, scaled(significand.rounded(), n))
}

#[inline(always)]
pub(crate) fn exp2<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let result = exp2_of_pair(Pair::of(x.at_least(-M::P::EXP2_LIMIT).at_most(M::P::EXP2_LIMIT)));
    x.is_nan().choose(x, result)
}

#[inline(always)]
pub(crate) fn log<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let (k, ln) = log_parts(x);
    let [short, rest] = M::P::LN_2_SPLIT.map(Constant);
    let sum = Pair::ordered_sum(k * short, ln.high);
    log_of_special(x, sum.high + (sum.low + k.fma(rest, ln.low)))
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
    let small = odd_polynomial(magnitude, M::P::SINH);
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
    let small = odd_polynomial(magnitude, M::P::TANH);
    let result = magnitude.lt(0.55).choose(small, large).flipped(x.sign());
    x.is_nan().choose(x, result)
}

/// asinh x = ln(x + √(x² + 1)); near 0, where the argument of the logarithm is close to 1, a polynomial.
#[inline(always)]
pub(crate) fn asinh<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let large = log_with_root(magnitude, x.lit(1.0));
    let result = magnitude.lt(0.25).choose(odd_polynomial(magnitude, M::P::ASINH), large);
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
    let result = magnitude.lt(0.25).choose(odd_polynomial(magnitude, M::P::ATANH), large);
    let result = magnitude.eq(1.0).choose(f32::INFINITY, result).flipped(x.sign());
    magnitude.le(1.0).choose(result, f32::NAN)
}

/// `x` to the power of `y`, as 2 to the power of `y` × log₂ `x`, with the exponent as a pair.
#[inline(always)]
pub(crate) fn pow<'m, M: Arithmetic>(x: Real<'m, M>, y: Real<'m, M>) -> Real<'m, M> {
    let magnitude = x.abs();
    let log = log2_pair(magnitude);
    let high = y * log_of_special(magnitude, log.high);
    let low = y.fma(log.low, y.fma(log.high, -high));
    // Beyond the limits of `exp2` the power over- or underflows, and the low part is meaningless.
    let inside = high.abs().lt(M::P::EXP2_LIMIT);
    let exponent =
        Pair { high: high.at_least(-M::P::EXP2_LIMIT).at_most(M::P::EXP2_LIMIT), low: inside.choose(low, 0.0) };
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

/// eˣ as 2ⁿ times a number near 1, for x in the range of `exp` or up to the limit of `sinh`.
#[inline(always)]
fn exp_parts<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>) {
    let [short, rest] = M::P::LN_2_SPLIT.map(|part| x.lit(Constant(part)));
    let n = (x * Constant(M::P::LOG2_E[0])).round();
    let difference = n.fma(-short, x);
    let high = n.fma(-rest, difference);
    let low = n.fma(-rest, difference - high);
    (n, exp_near_zero(Pair { high, low }))
}

/// eʳ for |r| ≤ 0.347, to about 2⁻²⁸ in f32 and 2⁻⁵⁷ in f64.
#[inline(always)]
fn exp_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let sum = Pair::ordered_sum(r.high.lit(1.0), r.high);
    let low = r.low.fma(r.high, r.low);
    let rest = (r.high * r.high).fma(polynomial(r.high, M::P::EXP), low);
    Pair::ordered_sum(sum.high, sum.low + rest)
}

/// 2ˣ for x within the limits of `exp2`.
#[inline(always)]
fn exp2_of_pair<'m, M: Arithmetic>(x: Pair<'m, M>) -> Real<'m, M> {
    let n = x.high.round();
    let fraction = Pair::sum(x.high - n, x.low);
    let r = fraction.times(Pair::literal(n, M::P::LN_2));
    scaled(exp_near_zero(r).rounded(), n)
}

/// Returns n, eˣ / 2ⁿ and e⁻ˣ / 2ⁿ for x ≥ 0, clamped to the limit of `sinh`.
#[inline(always)]
fn exp_both_ways<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>, Pair<'m, M>) {
    let (n, growing) = exp_parts(x.at_most(M::P::SINH_LIMIT));
    let shrinking = Pair::of(n.lit(1.0)).over(growing);
    // Below 2⁻¹⁰⁰ times eˣ, the value of e⁻ˣ does not change the rounded sum.
    (n, growing, shrinking.scaled(power_of_two((n * -2.0).at_least(-100.0))))
}

/// x + x³ P(x²).
#[inline(always)]
fn odd_polynomial<'m, M: Arithmetic>(x: Real<'m, M>, coefficients: &[M::P]) -> Real<'m, M> {
    let square = x * x;
    (square * x).fma(polynomial(square, coefficients), x)
}

/// Range reduction of logarithms: returns k and ln m, where x = 2ᵏ m and m is between √½ and √2, for positive finite x.
///
/// ln m = 2 artanh s with s = (m − 1) / (m + 1). The first two terms of the series are pairs, so the error is about 2⁻³⁷ in f32 and 2⁻⁶⁵
/// in f64.
#[inline(always)]
fn log_parts<'m, M: Arithmetic>(x: Real<'m, M>) -> (Real<'m, M>, Pair<'m, M>) {
    let (fraction, bias, shift) = (M::P::FRACTION, M::P::GREATEST as u64, M::P::SUBNORMAL_SHIFT);
    let one = bias << fraction;
    let subnormal = x.lt(power(1 - M::P::GREATEST));
    let bits = subnormal.choose(x * power(shift as i32), x).bits();
    // Adding the distance from √½ to 1 carries into the exponent for all significands from √2 up.
    let exponent = (bits + (one - M::P::SQRT_HALF)) >> fraction;
    let m = (bits - (exponent << fraction) + one).of_bits();
    let [normal_bias, subnormal_bias] =
        [bias, bias + u64::from(shift)].map(|bias| Constant(M::P::from_bits(units::<M::P>() | bias)));
    let k = (exponent | units::<M::P>()).of_bits() - subnormal.choose(subnormal_bias, normal_bias);

    let one = x.lit(1.0);
    let s = Pair::of(m - one).over(Pair::sum(m, one));
    let square = s.times(s);
    let third = square.high.fma(polynomial(square.high, M::P::LOG), Constant(M::P::TWO_THIRDS[1]));
    let coefficient = Pair::ordered_sum(x.lit(Constant(M::P::TWO_THIRDS[0])), third);
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
    let lost = ((-root).fma(root, sum.high) + sum.low) / (root + root).at_least(power(1 - M::P::GREATEST));
    let both = Pair::sum(x, root);
    let both = Pair::ordered_sum(both.high, both.low + lost);
    // For large x the argument is 2x, and ln 2x = ln x + ln 2.
    let large = !x.lt(power(M::P::SUM_OF_SQUARES));
    let argument = Pair { high: large.choose(x, both.high), low: large.choose(0.0, both.low) };
    log_of_pair(argument, large.choose(1.0, 0.0))
}

/// ln(2ᵏ x) for normal x, and k = 0 or 1.
#[inline(always)]
fn log_of_pair<'m, M: Arithmetic>(x: Pair<'m, M>, k: Real<'m, M>) -> Real<'m, M> {
    let (exponent, ln) = log_parts(x.high);
    let k = exponent + k;
    let [short, rest] = M::P::LN_2_SPLIT.map(Constant);
    let sum = Pair::ordered_sum(k * short, ln.high);
    sum.high + (sum.low + k.fma(rest, ln.low + x.low / x.high))
}

/// log₂ of a positive finite number.
#[inline(always)]
fn log2_pair<M: Arithmetic>(x: Real<'_, M>) -> Pair<'_, M> {
    let (k, ln) = log_parts(x);
    Pair::of(k).plus_smaller(ln.times(Pair::literal(k, M::P::LOG2_E)))
}

/// Special cases of logarithms: returns `ordinary` for positive finite x, and −∞, ∞ or NaN for 0, ∞ and all others.
#[inline(always)]
fn log_of_special<'m, M: Arithmetic>(x: Real<'m, M>, ordinary: Real<'m, M>) -> Real<'m, M> {
    let result = x.eq(f32::INFINITY).choose(x, ordinary);
    let result = x.eq(0.0).choose(f32::NEG_INFINITY, result);
    x.lit(0.0).le(x).choose(result, f32::NAN)
}
