//! Double-single arithmetic: numbers of twice the precision, as unevaluated sums of two f32; and polynomials.
//!
//! The operations are the classical error-free transformations (Dekker, Knuth) with `fma`. Their relative error is below
//! 2⁻⁴⁴ if nothing under- or overflows.

use super::arithmetic::{Arithmetic, Real};

/// Double-single number `high + low`, where `low` is at most about one ULP of `high`.
pub(super) struct Pair<'m, M: Arithmetic> {
    pub(super) high: Real<'m, M>,
    pub(super) low: Real<'m, M>,
}

impl<M: Arithmetic> Clone for Pair<'_, M> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Arithmetic> Copy for Pair<'_, M> {}

impl<'m, M: Arithmetic> Pair<'m, M> {
    #[inline(always)]
    pub(super) fn literal(like: Real<'m, M>, [high, low]: [f32; 2]) -> Self {
        Pair { high: like.lit(high), low: like.lit(low) }
    }

    /// Converts an f32.
    #[inline(always)]
    pub(super) fn of(high: Real<'m, M>) -> Self {
        Pair { high, low: high.lit(0.0) }
    }

    /// `a + b` exactly.
    #[inline(always)]
    pub(super) fn sum(a: Real<'m, M>, b: Real<'m, M>) -> Self {
        let high = a + b;
        let from_b = high - a;
        let from_a = high - from_b;
        Pair { high, low: (a - from_a) + (b - from_b) }
    }

    /// `a + b` exactly, if `a` is 0 or not smaller than `b`.
    #[inline(always)]
    pub(super) fn ordered_sum(a: Real<'m, M>, b: Real<'m, M>) -> Self {
        let high = a + b;
        Pair { high, low: b - (high - a) }
    }

    /// `a × b` exactly.
    #[inline(always)]
    pub(super) fn product(a: Real<'m, M>, b: Real<'m, M>) -> Self {
        let high = a * b;
        Pair { high, low: a.fma(b, -high) }
    }

    #[inline(always)]
    pub(super) fn times(self, other: Self) -> Self {
        let product = Pair::product(self.high, other.high);
        let low = self.high.fma(other.low, self.low.fma(other.high, product.low));
        Pair::ordered_sum(product.high, low)
    }

    /// The sum, if `self` is 0 or not smaller than `other`.
    #[inline(always)]
    pub(super) fn plus_smaller(self, other: Self) -> Self {
        let sum = Pair::ordered_sum(self.high, other.high);
        Pair::ordered_sum(sum.high, sum.low + (self.low + other.low))
    }

    #[inline(always)]
    pub(super) fn over(self, divisor: Self) -> Self {
        let high = self.high / divisor.high;
        let rest = (-high).fma(divisor.high, self.high);
        let rest = (-high).fma(divisor.low, rest + self.low);
        Pair { high, low: rest / divisor.high }
    }

    /// Multiplies by a power of two.
    #[inline(always)]
    pub(super) fn scaled(self, factor: Real<'m, M>) -> Self {
        Pair { high: self.high * factor, low: self.low * factor }
    }

    #[inline(always)]
    pub(super) fn rounded(self) -> Real<'m, M> {
        self.high + self.low
    }
}

/// Evaluates a polynomial by Horner's scheme; the constant coefficient comes first.
///
/// The coefficients of the library were computed by interpolation at Chebyshev nodes, with 200 bits, and rounded to f32. Their
/// definitions state the error of the polynomial with the rounded coefficients, relative to the result that it is used for.
#[inline(always)]
pub(super) fn polynomial<'m, M: Arithmetic>(x: Real<'m, M>, coefficients: &[f32]) -> Real<'m, M> {
    let (&last, others) = coefficients.split_last().expect("a polynomial has coefficients");
    others.iter().rev().fold(x.lit(last), |sum, &coefficient| sum.fma(x, coefficient))
}

/// 2ⁿ as a literal, for n from −126 to 127.
pub(super) const fn power(n: i32) -> f32 {
    f32::from_bits(((127 + n) as u32) << 23)
}

/// 2ⁿ for integral n from −126 to 127.
#[inline(always)]
pub(super) fn power_of_two<M: Arithmetic>(n: Real<'_, M>) -> Real<'_, M> {
    ((n + 127.0).truncate() << 23).of_bits()
}

/// `x × 2ⁿ` for integral n from −250 to 250. Only the second factor rounds, if the result is subnormal, or overflows.
#[inline(always)]
pub(super) fn scaled<'m, M: Arithmetic>(x: Real<'m, M>, n: Real<'m, M>) -> Real<'m, M> {
    let half = (n * 0.5).round();
    x * power_of_two(half) * power_of_two(n - half)
}
