//! Cube roots, and roots of sums of squares.

use super::arithmetic::{Arithmetic, Precision, Real};
use super::pair::{Pair, power};
use super::tables::Tables;

/// Cube root. A third of the bits, as an integer, is an initial guess with an error below 3.2 %. Halley steps reduce the error below half of
/// the precision, and a Newton step with the exact cube gives the result.
#[inline(always)]
pub(crate) fn cbrt<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    // Scaled so that cubes do not overflow and the low parts of products are normal.
    let (small, large) = (magnitude.lt(power(M::P::SMALL)), !magnitude.lt(power(M::P::LARGE)));
    let up_or_down = |up, down| small.choose(power(up), large.choose(power(down), 1.0));
    let a = magnitude * up_or_down(M::P::RESCALE, -M::P::RESCALE);
    let back = up_or_down(-M::P::RESCALE / 3, M::P::RESCALE / 3);
    let third = a.bits().mul_high(u64::MAX / 3 + 1) + M::P::CBRT_GUESS;
    let mut t = third.of_bits();
    for _ in 0..M::P::CBRT_STEPS {
        let cube = t * t * t;
        t = t * ((cube + (a + a)) / (cube + cube + a));
    }

    let square = Pair::product(t, t);
    let cube = Pair::product(square.high, t);
    let missing = (a - cube.high) - square.low.fma(t, cube.low);
    let result = ((t + missing / (square.high * 3.0)) * back).flipped(x.sign());
    let ordinary = magnitude.lt(f32::INFINITY) & magnitude.ne(0.0);
    ordinary.choose(result, x)
}

/// √(x² + y²) from exact squares, scaled so that they neither overflow nor lose their low parts.
#[inline(always)]
pub(crate) fn hypot<'m, M: Arithmetic>(x: Real<'m, M>, y: Real<'m, M>) -> Real<'m, M> {
    let (x, y) = (x.abs(), y.abs());
    let ordered = x.lt(y);
    let (larger, smaller) = (ordered.choose(y, x), ordered.choose(x, y));
    let (small, large) = (larger.lt(power(M::P::SMALL)), !larger.lt(power(M::P::LARGE)));
    let up_or_down = |up, down| small.choose(power(up), large.choose(power(down), 1.0));
    let factor = up_or_down(M::P::RESCALE, -M::P::RESCALE);
    let back = up_or_down(-M::P::RESCALE, M::P::RESCALE);
    let (a, b) = (larger * factor, smaller * factor);
    let sum = Pair::product(a, a).plus_smaller(Pair::product(b, b));
    let root = sum.high.sqrt();
    let lost = (-root).fma(root, sum.high) + sum.low;
    let result = (root + lost / (root + root).at_least(power(1 - M::P::GREATEST))) * back;
    let result = (x.is_nan() | y.is_nan()).choose(f32::NAN, result);
    (x.eq(f32::INFINITY) | y.eq(f32::INFINITY)).choose(f32::INFINITY, result)
}
