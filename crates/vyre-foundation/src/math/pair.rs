//! Double-single and double-double arithmetic: numbers of twice the precision as unevaluated sums of two floats, and polynomials.
//!
//! The operations are the error-free transformations of Dekker and Knuth with `fma`. Their relative error is below 2⁻⁴⁴ in f32 and 2⁻¹⁰² in
//! f64, as long as nothing under- or overflows.

use super::arithmetic::{Arithmetic, Constant, Precision, Real};
use crate::ir::Scalar;

/// Number `high + low`, where `low` is at most about one ULP of `high`.
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
    pub(super) fn literal(like: Real<'m, M>, [high, low]: [M::P; 2]) -> Self {
        Pair { high: like.lit(Constant(high)), low: like.lit(Constant(low)) }
    }

    /// Converts a float.
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

    /// `a + b` exactly, if `a` is 0 or |a| ≥ |b|.
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

    /// `self + other`, rounded to a pair. Requires that `self` is 0 or |self| ≥ |other| (Fast2Sum).
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

/// A polynomial with coefficients from the constant up, by Horner's rule.
#[inline(always)]
pub(super) fn polynomial<'m, M: Arithmetic>(x: Real<'m, M>, coefficients: &[M::P]) -> Real<'m, M> {
    let (&last, others) = coefficients.split_last().expect("a polynomial has coefficients");
    others.iter().rev().fold(x.lit(Constant(last)), |sum, &coefficient| sum.fma(x, Constant(coefficient)))
}

/// Literal 2ⁿ, where that is normal.
#[inline(always)]
pub(super) fn power<P: Precision>(n: i32) -> Constant<P> {
    Constant(P::from_bits(((P::GREATEST + n) as u64) << P::FRACTION))
}

/// Bits of the float `2^FRACTION`, whose last place is 1: the sum with a smaller natural number has this number in its low bits.
pub(super) const fn units<P: Precision>() -> u64 {
    ((P::GREATEST as u64) + P::FRACTION as u64) << P::FRACTION
}

/// 2ⁿ for integral n, where that is normal.
#[inline(always)]
pub(super) fn power_of_two<M: Arithmetic>(n: Real<'_, M>) -> Real<'_, M> {
    let biased = n + Constant(M::P::from_bits(units::<M::P>() | M::P::GREATEST as u64));
    (biased.bits() << M::P::FRACTION).of_bits()
}

/// `x × 2ⁿ` for x near 1 and integral n of a magnitude of at most twice the greatest exponent. Only the second factor rounds, if the result
/// is subnormal, or overflows.
#[inline(always)]
pub(super) fn scaled<'m, M: Arithmetic>(x: Real<'m, M>, n: Real<'m, M>) -> Real<'m, M> {
    let half = (n * 0.5).round();
    x * power_of_two(half) * power_of_two(n - half)
}
