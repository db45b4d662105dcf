//! Trigonometric functions and their inverses.

use super::arithmetic::{Arithmetic, Constant, Precision, Real, Word, sign_bit};
use super::pair::{Pair, polynomial, power};
use super::tables::Tables;
use crate::ir::Scalar;

#[inline(always)]
pub(crate) fn sin<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (quadrant, r) = reduced(magnitude);
    magnitude.lt(f32::INFINITY).choose(sin_in_quadrant(quadrant, r).flipped(x.sign()), f32::NAN)
}

#[inline(always)]
pub(crate) fn cos<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (quadrant, r) = reduced(magnitude);
    magnitude.lt(f32::INFINITY).choose(sin_in_quadrant(quadrant + 1, r), f32::NAN)
}

#[inline(always)]
pub(crate) fn tan<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (quadrant, r) = reduced(magnitude);
    let (sine, cosine) = (sin_near_zero(r), cos_near_zero(r));
    // In odd quadrants the tangent is −cos / sin.
    let odd = (quadrant & 1).eq(1);
    let numerator = Pair { high: odd.choose(-cosine.high, sine.high), low: odd.choose(-cosine.low, sine.low) };
    let divisor = Pair { high: odd.choose(sine.high, cosine.high), low: odd.choose(sine.low, cosine.low) };
    let result = numerator.over(divisor).rounded().flipped(x.sign());
    magnitude.lt(f32::INFINITY).choose(result, f32::NAN)
}

#[inline(always)]
pub(crate) fn asin<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let small = magnitude.le(0.5);
    let angle = asin_of_half(magnitude);
    let result = quarters_plus(small.choose(0.0, 2.0), small.choose(1.0, -2.0), angle).flipped(x.sign());
    magnitude.le(1.0).choose(result, f32::NAN)
}

#[inline(always)]
pub(crate) fn acos<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    let (small, negative) = (magnitude.le(0.5), x.lt(0.0));
    let angle = asin_of_half(magnitude);
    let quarters = small.choose(2.0, negative.choose(4.0, 0.0));
    let factor = small.choose(-1.0, 2.0).flipped(x.sign());
    magnitude.le(1.0).choose(quarters_plus(quarters, factor, angle), f32::NAN)
}

#[inline(always)]
pub(crate) fn atan<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let one = x.lit(1.0);
    let result = angle_of(x.abs(), one, one.sign()).flipped(x.sign());
    x.is_nan().choose(x, result)
}

#[inline(always)]
pub(crate) fn atan2<'m, M: Arithmetic>(y: Real<'m, M>, x: Real<'m, M>) -> Real<'m, M> {
    let result = angle_of(y.abs(), x.abs(), x.sign()).flipped(y.sign());
    (x.is_nan() | y.is_nan()).choose(f32::NAN, result)
}

/// Argument reduction (Payne and Hanek): returns k modulo 4 and r, where x = k π/2 + r, x ≥ 0 and |r| ≤ π/4.
///
/// With words of W bits and M = 2^(fraction bits), x is an integer below 2M times a power of two, so only 3W bits of 2/π, from a position
/// that the power determines, contribute to the quarters modulo 4 and to the fraction. The product has 2 bits of quarters and 2W − 2 of
/// fraction. Of all f32, the one nearest to a multiple of π/2 leaves 2⁻³⁰ of a quarter, and 62 bits are kept; of f64, 2⁻⁶¹, and 126 bits.
#[inline(always)]
fn reduced<'m, M: Arithmetic>(x: Real<'m, M>) -> (Word<'m, M>, Pair<'m, M>) {
    let (width, fraction) = (M::P::TYPE.bits(), M::P::FRACTION);
    let bits = x.bits();
    let significand = (bits & ((1 << fraction) - 1)) | (1 << fraction);
    // Position of the digit of 2^(2W − 3) units of the fraction. For x below ½ it is negative, and the result is unused.
    let position = (bits >> fraction) - (M::P::GREATEST as u64 + u64::from(fraction) + 2 - u64::from(width));
    let [index, shift] = [position >> width.trailing_zeros(), position & u64::from(width - 1)];
    let digits = digits_from(index);
    // Shift counts are taken modulo the width W, so the right shift by W − `shift` is done in two steps.
    let [left, right] = [shift, shift ^ u64::from(width - 1)].map(Word::count);
    let window = |k: usize| (digits[k] << left) | ((digits[k + 1] >> 1) >> right);
    let [top, middle, bottom] = [window(0), window(1), window(2)];
    let low = middle * significand;
    let carried = low + bottom.mul_high(significand);
    let carry = carried.lt(low).choose_word(1, 0);
    let high = top * significand + middle.mul_high(significand) + carry;

    // Rounds to the nearest quadrant. The remainder is signed; its complement differs from its magnitude by the last bit.
    let quadrant = (high + (1 << (width - 3))) >> (width - 2);
    let rest = high - (quadrant << (width - 2));
    let sign = rest & sign_bit::<M::P>();
    let complement = sign.eq(0).choose_word(0, u64::MAX);
    let [high, low] = [rest ^ complement, carried ^ complement];
    // Three parts that floats represent exactly: of `fraction + 1` bits twice, and of the rest.
    let cut = width - 3 - fraction;
    let taken = fraction + 1 - cut;
    let dropped = width - taken;
    let first = (high >> cut).convert() * power(-(fraction as i32) - 1);
    let second = ((high & ((1 << cut) - 1)) << taken) | (low >> dropped);
    let second = second.convert() * power(-2 * (fraction as i32 + 1));
    let third = (low & ((1 << dropped) - 1)).convert() * power(2 - 2 * width as i32);
    let part = Pair::ordered_sum(first, second);
    let part = Pair { high: part.high, low: part.low + third };
    let r = part.times(Pair::literal(x, M::P::FRAC_PI_2));

    let small = x.lt(Constant(M::P::FRAC_PI_4[0]));
    let high = small.choose(x, r.high.flipped(sign));
    let low = small.choose(0.0, r.low.flipped(sign));
    (small.choose_word(0, quadrant), Pair { high, low })
}

/// Four words of digits of 2/π, from the word with this index. Each step of the selection skips a power of two of words.
#[inline(always)]
fn digits_from<'m, M: Arithmetic>(index: Word<'m, M>) -> [Word<'m, M>; 4] {
    let table = M::P::TWO_OVER_PI;
    let mut digits = [index; MOST_DIGITS];
    for (digits, &table) in digits.iter_mut().zip(table) {
        *digits = index.lit(table);
    }
    let last_index = table.len() - 4;
    for step in [16, 8, 4, 2, 1].into_iter().filter(|&step| step <= last_index) {
        let skips = !(index & step as u64).eq(0);
        // Later steps skip at most `step − 1` words.
        for k in (0..step + 3).take_while(|k| k + step < table.len()) {
            digits[k] = skips.choose_word(digits[k + step], digits[k]);
        }
    }
    [digits[0], digits[1], digits[2], digits[3]]
}

/// Words of the longest table of digits.
const MOST_DIGITS: usize = <f64 as Tables>::TWO_OVER_PI.len();

#[inline(always)]
fn sin_in_quadrant<'m, M: Arithmetic>(quadrant: Word<'m, M>, r: Pair<'m, M>) -> Real<'m, M> {
    let odd = (quadrant & 1).eq(1);
    let result = odd.choose(cos_near_zero(r).rounded(), sin_near_zero(r).rounded());
    result.flipped((quadrant & 2) << (M::P::TYPE.bits() - 2))
}

/// sin r for |r| ≤ π/4.
#[inline(always)]
fn sin_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let square = r.high * r.high;
    let low = (square * -0.5).fma(r.low, r.low);
    Pair::ordered_sum(r.high, (square * r.high).fma(polynomial(square, M::P::SIN), low))
}

/// cos r for |r| ≤ π/4.
#[inline(always)]
fn cos_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let square = Pair::product(r.high, r.high);
    let sum = Pair::ordered_sum(r.high.lit(1.0), square.high * -0.5);
    let low = square.low.fma(-0.5, -(r.high * r.low));
    let rest = (square.high * square.high).fma(polynomial(square.high, M::P::COS), low);
    Pair::ordered_sum(sum.high, sum.low + rest)
}

/// arcsin x for 0 ≤ x ≤ ½. For ½ < x ≤ 1, arcsin √((1 − x) / 2), which is ½ (π/2 − arcsin x).
#[inline(always)]
fn asin_of_half<M: Arithmetic>(x: Real<'_, M>) -> Pair<'_, M> {
    let small = x.le(0.5);
    let halved = x.fma(-0.5, 0.5);
    let root = halved.sqrt();
    let lost = (-root).fma(root, halved) / (root + root).at_least(power(1 - M::P::GREATEST));
    let s = Pair { high: small.choose(x, root), low: small.choose(0.0, lost) };
    let square = small.choose(x * x, halved);
    let low = (square * 0.5).fma(s.low, s.low);
    Pair { high: s.high, low: (square * s.high).fma(polynomial(square, M::P::ASIN), low) }
}

/// Angle of the point (±x, y) from the magnitudes of its coordinates and the sign of x.
///
/// The arctangent is of the smaller coordinate divided by the larger. If that is more than tan π/8, the point is rotated by −π/4 before.
#[inline(always)]
fn angle_of<'m, M: Arithmetic>(y: Real<'m, M>, x: Real<'m, M>, x_sign: Word<'m, M>) -> Real<'m, M> {
    let steep = x.lt(y);
    let (larger, smaller) = (steep.choose(y, x), steep.choose(x, y));
    // The sum does not overflow, and the remainder of the division is normal.
    let [[least, up], [most, usual]] = M::P::ANGLE_SCALES;
    let not_small = larger.lt(power(most)).choose(power(usual), power(M::P::ANGLE_DOWN));
    let factor = larger.lt(power(least)).choose(power(up), not_small);
    let (a, b) = (larger * factor, smaller * factor);
    let turned = (a * 0.414_213_57).lt(b);
    let (difference, sum) = (Pair::sum(b, -a), Pair::sum(b, a));
    let numerator = Pair { high: turned.choose(difference.high, b), low: turned.choose(difference.low, 0.0) };
    let divisor = Pair { high: turned.choose(sum.high, a), low: turned.choose(sum.low, 0.0) };
    let quotient = numerator.over(divisor);
    // A zero or an infinity has the angle of the axis; two infinities have that of the diagonal.
    let infinite = larger.eq(f32::INFINITY);
    let ordinary = !(infinite | larger.eq(0.0));
    let turned = turned | smaller.eq(f32::INFINITY);
    let t = Pair { high: ordinary.choose(quotient.high, 0.0), low: ordinary.choose(quotient.low, 0.0) };

    let square = t.high * t.high;
    let low = (-square).fma(t.low, t.low);
    let angle = Pair { high: t.high, low: (square * t.high).fma(polynomial(square, M::P::ATAN), low) };
    // Reflection across the diagonal, and across the y axis.
    let left = !x_sign.eq(0);
    let quarters = turned.choose(1.0, 0.0);
    let quarters = steep.choose(-quarters + 2.0, quarters);
    let quarters = left.choose(-quarters + 4.0, quarters);
    let mirrored = steep.choose_word(sign_bit::<M::P>(), 0) ^ x_sign;
    quarters_plus(quarters, t.high.lit(1.0).flipped(mirrored), angle)
}

/// k π/4 + f a for k from 0 to 4, and f = ±1 or ±2.
#[inline(always)]
fn quarters_plus<'m, M: Arithmetic>(k: Real<'m, M>, f: Real<'m, M>, a: Pair<'m, M>) -> Real<'m, M> {
    let base = Pair::product(k, k.lit(Constant(M::P::FRAC_PI_4[0])));
    let sum = Pair::ordered_sum(base.high, a.high * f);
    sum.high + (sum.low + f.fma(a.low, k.fma(Constant(M::P::FRAC_PI_4[1]), base.low)))
}
