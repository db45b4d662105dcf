//! Trigonometric functions and their inverses.

use std::f32::consts::{FRAC_PI_2, FRAC_PI_4};

use super::arithmetic::{Arithmetic, Real, Word};
use super::pair::{Pair, polynomial, power};

const FRAC_PI_2_PAIR: [f32; 2] = [FRAC_PI_2, -4.371_139e-8];
const FRAC_PI_4_LOW: f32 = -4.371_139e-8 / 2.0;
/// Binary digits of 2/π, after 32 zeros.
const TWO_OVER_PI: [u32; 8] =
    [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// (sin r − r) / r³ in r² up to 0.617; 2⁻²⁸.
const SIN: [f32; 4] = [-0.166_666_67, 0.008_333_332, -0.000_198_400_86, 2.724_985e-6];
/// (cos r − 1 + r²/2) / r⁴ in r² up to 0.617; 2⁻³⁰.
const COS: [f32; 4] = [0.041_666_668, -0.001_388_888_8, 2.480_06e-5, -2.730_089_6e-7];
/// (arctan t − t) / t³ in t² up to 0.1717; 2⁻²⁹.
const ATAN: [f32; 6] = [-0.333_333_34, 0.199_999_76, -0.142_841_47, 0.110_712_88, -0.086_240_984, 0.050_466_49];
/// (arcsin s − s) / s³ in s² up to 0.25; 2⁻³⁰.
const ASIN: [f32; 7] =
    [0.166_666_67, 0.074_999_92, 0.044_647_664, 0.030_269_139, 0.023_611_818, 0.010_574_415, 0.030_974_54];

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
/// x is an integer M of 24 bits times a power of two. Only 96 bits of 2/π, whose position depends on the power, contribute to
/// the quadrant (k modulo 4) and the fraction; their product with M is computed in u32 arithmetic. The fraction of the float
/// closest to a multiple of π/2 is 2⁻³⁰, and 62 bits of the fraction are computed.
#[inline(always)]
fn reduced<'m, M: Arithmetic>(x: Real<'m, M>) -> (Word<'m, M>, Pair<'m, M>) {
    let bits = x.bits();
    let significand = (bits & 0x007f_ffff) | 0x0080_0000;
    // Position of the digits of weight 2⁻⁹⁴ quadrants and more. For x below ½ it is invalid, and the result is unused.
    let place = (bits >> 23) - (126 - 6);
    let [index, shift] = [place >> 5, place & 31];
    let at = [1, 2, 3, 4].map(|position: u32| index.eq(position));
    let limb = |offset: usize| {
        let digits = &TWO_OVER_PI[offset..];
        at.iter().zip(&digits[1..]).fold(index.lit(digits[0]), |chosen, (at, &limb)| at.choose_word(limb, chosen))
    };
    let limbs = [limb(0), limb(1), limb(2), limb(3)];
    // Shift counts are taken modulo 32, so the right shift by 32 − `shift` is done in two steps.
    let window = |k: usize| (limbs[k] << shift) | ((limbs[k + 1] >> 1) >> (shift ^ 31));
    let [top, middle, bottom] = [window(0), window(1), window(2)];
    let low = middle * significand;
    let carried = low + bottom.mul_high(significand);
    let carry = carried.lt(low).choose_word(1, 0);
    let high = top * significand + middle.mul_high(significand) + carry;

    // Rounds to the nearest quadrant. The remainder is signed; its complement differs from its magnitude by the last bit.
    let quadrant = (high + 0x2000_0000) >> 30;
    let rest = high - (quadrant << 30);
    let sign = rest & 0x8000_0000;
    let complement = sign.eq(0).choose_word(0, u32::MAX);
    let [high, low] = [rest ^ complement, carried ^ complement];
    let first = (high >> 6).convert() * power(-24);
    let second = (((high & 63) << 18) | (low >> 14)).convert() * power(-48);
    let third = (low & 0x3fff).convert() * power(-62);
    let fraction = Pair::ordered_sum(first, second);
    let fraction = Pair { high: fraction.high, low: fraction.low + third };
    let r = fraction.times(Pair::literal(x, FRAC_PI_2_PAIR));

    let small = x.lt(FRAC_PI_4);
    let high = small.choose(x, r.high.flipped(sign));
    let low = small.choose(0.0, r.low.flipped(sign));
    (small.choose_word(0, quadrant), Pair { high, low })
}

#[inline(always)]
fn sin_in_quadrant<'m, M: Arithmetic>(quadrant: Word<'m, M>, r: Pair<'m, M>) -> Real<'m, M> {
    let odd = (quadrant & 1).eq(1);
    let result = odd.choose(cos_near_zero(r).rounded(), sin_near_zero(r).rounded());
    result.flipped((quadrant & 2) << 30)
}

/// sin r for |r| ≤ π/4.
#[inline(always)]
fn sin_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let square = r.high * r.high;
    let low = (square * -0.5).fma(r.low, r.low);
    Pair::ordered_sum(r.high, (square * r.high).fma(polynomial(square, &SIN), low))
}

/// cos r for |r| ≤ π/4.
#[inline(always)]
fn cos_near_zero<'m, M: Arithmetic>(r: Pair<'m, M>) -> Pair<'m, M> {
    let square = Pair::product(r.high, r.high);
    let sum = Pair::ordered_sum(r.high.lit(1.0), square.high * -0.5);
    let low = square.low.fma(-0.5, -(r.high * r.low));
    let rest = (square.high * square.high).fma(polynomial(square.high, &COS), low);
    Pair::ordered_sum(sum.high, sum.low + rest)
}

/// arcsin x for 0 ≤ x ≤ ½. For ½ < x ≤ 1, arcsin √((1 − x) / 2), which is ½ (π/2 − arcsin x).
#[inline(always)]
fn asin_of_half<M: Arithmetic>(x: Real<'_, M>) -> Pair<'_, M> {
    let small = x.le(0.5);
    let halved = x.fma(-0.5, 0.5);
    let root = halved.sqrt();
    let lost = (-root).fma(root, halved) / (root + root).at_least(f32::MIN_POSITIVE);
    let s = Pair { high: small.choose(x, root), low: small.choose(0.0, lost) };
    let square = small.choose(x * x, halved);
    let low = (square * 0.5).fma(s.low, s.low);
    Pair { high: s.high, low: (square * s.high).fma(polynomial(square, &ASIN), low) }
}

/// Angle of the point (±x, y), for the magnitudes of x and y and the sign of x.
///
/// The quotient of the smaller by the larger magnitude is at most 1. If it exceeds tan π/8, the point is rotated by −π/4.
#[inline(always)]
fn angle_of<'m, M: Arithmetic>(y: Real<'m, M>, x: Real<'m, M>, x_sign: Word<'m, M>) -> Real<'m, M> {
    let steep = x.lt(y);
    let (larger, smaller) = (steep.choose(y, x), steep.choose(x, y));
    // Scaled, so that the sum does not overflow and the rounding error of the division does not underflow.
    let factor = larger.lt(power(-60)).choose(power(80), larger.lt(power(120)).choose(1.0, power(-20)));
    let (a, b) = (larger * factor, smaller * factor);
    let turned = (a * 0.414_213_57).lt(b);
    let (difference, sum) = (Pair::sum(b, -a), Pair::sum(b, a));
    let numerator = Pair { high: turned.choose(difference.high, b), low: turned.choose(difference.low, 0.0) };
    let divisor = Pair { high: turned.choose(sum.high, a), low: turned.choose(sum.low, 0.0) };
    let quotient = numerator.over(divisor);
    // If both are zero, or one is infinite, the angle is that of the axis; if both are infinite, it is π/4.
    let infinite = larger.eq(f32::INFINITY);
    let ordinary = !(infinite | larger.eq(0.0));
    let turned = turned | smaller.eq(f32::INFINITY);
    let t = Pair { high: ordinary.choose(quotient.high, 0.0), low: ordinary.choose(quotient.low, 0.0) };

    let square = t.high * t.high;
    let low = (-square).fma(t.low, t.low);
    let angle = Pair { high: t.high, low: (square * t.high).fma(polynomial(square, &ATAN), low) };
    // Reflections at the diagonal and at the y axis.
    let left = !x_sign.eq(0);
    let quarters = turned.choose(1.0, 0.0);
    let quarters = steep.choose(-quarters + 2.0, quarters);
    let quarters = left.choose(-quarters + 4.0, quarters);
    let mirrored = steep.choose_word(0x8000_0000, 0) ^ x_sign;
    quarters_plus(quarters, t.high.lit(1.0).flipped(mirrored), angle)
}

/// k π/4 + f a, for k from 0 to 4 and f = ±1 or ±2.
#[inline(always)]
fn quarters_plus<'m, M: Arithmetic>(k: Real<'m, M>, f: Real<'m, M>, a: Pair<'m, M>) -> Real<'m, M> {
    let base = Pair::product(k, k.lit(FRAC_PI_4));
    let sum = Pair::ordered_sum(base.high, a.high * f);
    sum.high + (sum.low + f.fma(a.low, k.fma(FRAC_PI_4_LOW, base.low)))
}
