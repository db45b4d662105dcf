//! Emulation of `fma` for drivers that multiply and then add, with two roundings.
//!
//! For f32 it uses f64: the product is exact, and the rounding error of the sum is too; it makes the last bit of the
//! sum sticky (round to odd), so that rounding to f32 rounds once. For f64 the operands are scaled to avoid overflow
//! and underflow, product and sum are computed as double-doubles, and the result is scaled back: the method of
//! FreeBSD's libm, after Dekker and Knuth, without branches.

use naga::BinaryOperator;
use vyre_foundation::ir::Type;

use super::build::{Builder, Expr, expr};

/// Double-double: a number as the unevaluated sum of two f64.
#[derive(Clone, Copy)]
struct Pair {
    high: Expr,
    low: Expr,
}

impl Builder {
    /// `a × b + c` of any float type, with a single rounding.
    pub(super) fn exact_fma(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        if ty == Type::F64 {
            return self.fma_f64(operands[0], operands[1], operands[2]);
        }
        let [a, b, c] = [0, 1, 2].map(|position| self.resize(operands[position], Type::F64));
        let product = self.f64_mul(a, b);
        let sum = self.two_sum(product, c);
        let odd = self.sticky(sum);
        // Infinities and NaNs have no rounding error.
        expr!(self, resize(select(is_finite([sum.high]), odd, [sum.high]), ty))
    }

    /// f64 operation that is opaque to the driver's optimizer.
    fn f64_op(&mut self, op: BinaryOperator, a: Expr, b: Expr) -> Expr {
        let (a, b) = (self.opaque_operand(Type::F64, 0, a), self.opaque_operand(Type::F64, 1, b));
        let value = self.binary(op, a, b);
        self.opaque_result(Type::F64, value)
    }

    fn f64_add(&mut self, a: Expr, b: Expr) -> Expr {
        self.f64_op(BinaryOperator::Add, a, b)
    }

    fn f64_sub(&mut self, a: Expr, b: Expr) -> Expr {
        self.f64_op(BinaryOperator::Subtract, a, b)
    }

    fn f64_mul(&mut self, a: Expr, b: Expr) -> Expr {
        self.f64_op(BinaryOperator::Multiply, a, b)
    }

    fn u64(&mut self, value: u64) -> Expr {
        self.literal(value.into())
    }

    fn i32(&mut self, value: i32) -> Expr {
        self.literal(value.into())
    }

    fn f64(&mut self, value: f64) -> Expr {
        self.literal(value.into())
    }

    pub(super) fn bits(&mut self, value: Expr) -> Expr {
        self.bitcast(value, Type::U64)
    }

    fn is_finite(&mut self, value: Expr) -> Expr {
        let mask = self.u64(0x7ff0_0000_0000_0000);
        expr!(self, ne(and(bits(value), mask), mask))
    }

    /// Sum of two numbers and its rounding error (Knuth's TwoSum).
    fn two_sum(&mut self, a: Expr, b: Expr) -> Pair {
        let high = self.f64_add(a, b);
        let from_b = self.f64_sub(high, a);
        let lost_a = expr!(self, f64_sub(a, f64_sub(high, from_b)));
        Pair { high, low: expr!(self, f64_add(lost_a, f64_sub(b, from_b))) }
    }

    /// Product of two numbers of moderate magnitude and its rounding error (Dekker).
    fn two_product(&mut self, a: Expr, b: Expr) -> Pair {
        let splitter = self.f64(134_217_729.0);
        let mut split = |value: Expr| {
            let large = self.f64_mul(value, splitter);
            let high = expr!(self, f64_add(f64_sub(value, large), large));
            (high, self.f64_sub(value, high))
        };
        let (a_high, a_low) = split(a);
        let (b_high, b_low) = split(b);
        let first = self.f64_mul(a_high, b_high);
        let second = expr!(self, f64_add(f64_mul(a_high, b_low), f64_mul(a_low, b_high)));
        let third = self.f64_mul(a_low, b_low);
        let high = self.f64_add(first, second);
        Pair { high, low: expr!(self, f64_add(f64_add(f64_sub(first, high), second), third)) }
    }

    /// Bits of the neighbour of `high` in the direction of the exact sum.
    fn stepped(&mut self, sum: Pair) -> Expr {
        let (high, low) = (self.bits(sum.high), self.bits(sum.low));
        let away = expr!(self, eq(shr(xor(high, low), 63), [self.u64(0)]));
        expr!(self, add(high, select(away, [self.u64(1)], [self.u64(u64::MAX)])))
    }

    /// High part of a sum, rounded to odd: the last bit is set if the sum is inexact.
    fn sticky(&mut self, sum: Pair) -> Expr {
        let bits = self.bits(sum.high);
        let even = expr!(self, eq(and(bits, [self.u64(1)]), [self.u64(0)]));
        let exact = expr!(self, eq([sum.low], [self.f64(0.0)]));
        let stepped = self.stepped(sum);
        expr!(self, bitcast(select(exact, bits, select(even, stepped, bits)), [Type::F64]))
    }

    /// 2^n as an f64, for exponents of normal numbers.
    fn power(&mut self, exponent: Expr) -> Expr {
        let biased = expr!(self, bitcast(add(exponent, [self.i32(1023)]), [Type::U32]));
        expr!(self, bitcast(shl(resize(biased, [Type::U64]), 52), [Type::F64]))
    }

    /// Biased exponent of an f64, as an i32.
    pub(super) fn exponent(&mut self, value: Expr) -> Expr {
        expr!(self, bitcast(and(resize(shr(bits(value), 52), [Type::U32]), 0x7ff), [Type::I32]))
    }

    /// Replaces the biased exponent of a number.
    fn with_exponent(&mut self, value: Expr, exponent: u64) -> Expr {
        let rest = expr!(self, and(bits(value), [self.u64(0x800f_ffff_ffff_ffff)]));
        expr!(self, bitcast(or(rest, [self.u64(exponent << 52)]), [Type::F64]))
    }

    /// Significand in [½, 1) and exponent of a finite nonzero number.
    fn normalized(&mut self, value: Expr) -> (Expr, Expr) {
        let subnormal = expr!(self, eq(exponent(value), [self.i32(0)]));
        let number = expr!(self, select(subnormal, f64_mul(value, [self.f64(2f64.powi(54))]), value));
        let significand = self.with_exponent(number, 1022);
        let bias = expr!(self, select(subnormal, [self.i32(1022 + 54)], [self.i32(1022)]));
        (significand, expr!(self, sub(exponent(number), bias)))
    }

    fn clamp_i32(&mut self, value: Expr, least: i32, most: i32) -> Expr {
        expr!(self, min(max(value, [self.i32(least)]), [self.i32(most)]))
    }

    /// A normal number times 2^n, rounded once.
    fn scaled(&mut self, value: Expr, n: Expr) -> Expr {
        let exponent = expr!(self, add(sub(exponent(value), [self.i32(1023)]), n));
        let significand = self.with_exponent(value, 1023);
        // The first multiplication is exact; the second rounds if the result is subnormal, or overflows.
        let first = self.clamp_i32(exponent, -1022, 1023);
        let second = expr!(self, clamp_i32(sub(exponent, first), [-60], [1]));
        expr!(self, f64_mul(f64_mul(significand, power(first)), power(second)))
    }

    fn fma_f64(&mut self, a: Expr, b: Expr, c: Expr) -> Expr {
        let zero = self.f64(0.0);
        let [(a_s, a_e), (b_s, b_e), (c_s, c_e)] = [a, b, c].map(|value| self.normalized(value));
        let scale = self.add(a_e, b_e);
        let spread = self.sub(scale, c_e);

        // `c` relative to the product. A far smaller `c` only has to be sticky.
        let shift = expr!(self, clamp_i32(sub([self.i32(0)], spread), [-120], [120]));
        let near = expr!(self, f64_mul(c_s, power(shift)));
        let far = expr!(self, gt(spread, [self.i32(110)]));
        let sign = expr!(self, and(bits(c_s), [self.u64(1 << 63)]));
        let tiny = expr!(self, bitcast(or(sign, [self.u64(1 << 52)]), [Type::F64]));
        let c_scaled = self.select(far, tiny, near);

        let product = self.two_product(a_s, b_s);
        let sum = self.two_sum(product.high, c_scaled);
        let low = self.two_sum(sum.low, product.low);
        let low = self.sticky(low);

        // Normal result: one more addition rounds, and scaling is exact.
        let normal = expr!(self, scaled(f64_add([sum.high], low), scale));

        // Subnormal result: scaling drops bits, and the last remaining one must not be rounded before.
        let pair = self.two_sum(sum.high, low);
        let one = self.i32(1);
        let lost = expr!(self, sub(sub(one, exponent([pair.high])), scale));
        let several = expr!(self, not(eq(lost, one), [Type::Bool]));
        let bits = self.bits(pair.high);
        let odd = expr!(self, ne(and(bits, [self.u64(1)]), [self.u64(0)]));
        let inexact = expr!(self, not(eq([pair.low], zero), [Type::Bool]));
        let adjusts = expr!(self, and(ne(several, odd), inexact));
        let stepped = self.stepped(pair);
        let adjusted = expr!(self, bitcast(select(adjusts, stepped, bits), [Type::F64]));
        let subnormal = self.scaled(adjusted, scale);

        let exponent = expr!(self, add(sub(exponent([sum.high]), [self.i32(1023)]), scale));
        let mut result = expr!(self, select(gt(exponent, [self.i32(-1023)]), normal, subnormal));

        // The product cancels `c` except for its rounding error.
        let cancels = self.eq(sum.high, zero);
        let rest = self.scaled(product.low, scale);
        let rest = expr!(self, select(eq([product.low], zero), zero, rest));
        result = self.select(cancels, rest, result);

        // `c` is so much larger that the product has no effect.
        result = expr!(self, select(lt(spread, [self.i32(-120)]), c, result));

        // Zeros, infinities and NaNs follow from the plain operations.
        let plain_product = self.f64_mul(a, b);
        let plain = self.f64_add(plain_product, c);
        result = expr!(self, select(eq(c, zero), plain_product, result));
        result = expr!(self, select(is_finite(c), result, c));
        let any_zero = expr!(self, or(eq(a, zero), eq(b, zero)));
        let special = expr!(self, not(and(is_finite(a), is_finite(b)), [Type::Bool]));
        expr!(self, select(or(special, any_zero), plain, result))
    }
}
