//! Cube roots, and `hypot`.

use super::arithmetic::{Arithmetic, Real};
use super::pair::{Pair, power};

const LARGE: f32 = power(60);
const SMALL: f32 = power(-60);
const UP: f32 = power(90);
const DOWN: f32 = power(-90);

/// Cube root. A third of the bits, as an integer, is an initial guess with an error below 3.2 %. A Halley step reduces the error
/// to 2⁻¹⁵, and a Newton step with the exact cube gives the result.
#[inline(always)]
pub(crate) fn cbrt<M: Arithmetic>(x: Real<'_, M>) -> Real<'_, M> {
    let magnitude = x.abs();
    // Scaled, so that no cube overflows and no rounding error of a product underflows.
    let (small, large) = (magnitude.lt(SMALL), !magnitude.lt(LARGE));
    let a = magnitude * small.choose(UP, large.choose(DOWN, 1.0));
    let back = small.choose(power(-30), large.choose(power(30), 1.0));
    let guess = (a.bits().mul_high(0x5555_5556) + 709_954_077).of_bits();
    let cube = guess * guess * guess;
    let t = guess * ((cube + (a + a)) / (cube + cube + a));

    let square = Pair::product(t, t);
    let cube = Pair::product(square.high, t);
    let missing = (a - cube.high) - square.low.fma(t, cube.low);
    let result = ((t + missing / (square.high * 3.0)) * back).flipped(x.sign());
    let ordinary = magnitude.lt(f32::INFINITY) & magnitude.ne(0.0);
    ordinary.choose(result, x)
}

/// √(x² + y²) from exact squares, scaled so that they neither overflow nor underflow.
#[inline(always)]
pub(crate) fn hypot<'m, M: Arithmetic>(x: Real<'m, M>, y: Real<'m, M>) -> Real<'m, M> {
    let (x, y) = (x.abs(), y.abs());
    let ordered = x.lt(y);
    let (larger, smaller) = (ordered.choose(y, x), ordered.choose(x, y));
    let (small, large) = (larger.lt(SMALL), !larger.lt(LARGE));
    let factor = small.choose(UP, large.choose(DOWN, 1.0));
    let back = small.choose(DOWN, large.choose(UP, 1.0));
    let (a, b) = (larger * factor, smaller * factor);
    let sum = Pair::product(a, a).plus_smaller(Pair::product(b, b));
    let root = sum.high.sqrt();
    let lost = (-root).fma(root, sum.high) + sum.low;
    let result = (root + lost / (root + root).at_least(f32::MIN_POSITIVE)) * back;
    let result = (x.is_nan() | y.is_nan()).choose(f32::NAN, result);
    (x.eq(f32::INFINITY) | y.eq(f32::INFINITY)).choose(f32::INFINITY, result)
}
