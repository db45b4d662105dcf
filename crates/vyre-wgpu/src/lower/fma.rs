//! `fma` for devices that do not round it once: some drivers multiply and then add.
//!
//! With f64, the product of two f32 is exact, and so is what is lost when it is added to the third; that makes the last bit
//! of the sum sticky, and rounding to f32 rounds once. For f64 itself the operands are scaled so that nothing overflows or is
//! lost, product and sum are made as pairs of f64, and the result is scaled back: the method of FreeBSD's libm, after Dekker
//! and Knuth, without branches.

use naga::MathFunction;
use vyre_foundation::ir::Type;

use super::build::{Builder, Expr};

/// A number as the exact sum of two.
#[derive(Clone, Copy)]
struct Pair {
    high: Expr,
    low: Expr,
}

impl Builder {
    /// `a × b + c`, rounded once, of any float type.
    pub(super) fn exact_fma(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        if ty == Type::F64 {
            return self.fma_f64(operands[0], operands[1], operands[2]);
        }
        let [a, b, c] = [0, 1, 2].map(|position| self.resize(operands[position], Type::F64));
        let product = self.f64_mul(a, b);
        let sum = self.two_sum(product, c);
        let odd = self.sticky(sum);
        // Infinities and NaNs have no error to speak of.
        let finite = self.is_finite(sum.high);
        let result = self.select(finite, odd, sum.high);
        self.resize(result, ty)
    }

    fn f64_add(&mut self, a: Expr, b: Expr) -> Expr {
        let (a, b) = (self.apart(Type::F64, 0, a), self.apart(Type::F64, 1, b));
        let sum = self.add(a, b);
        self.hidden(Type::F64, sum)
    }

    fn f64_sub(&mut self, a: Expr, b: Expr) -> Expr {
        let (a, b) = (self.apart(Type::F64, 0, a), self.apart(Type::F64, 1, b));
        let difference = self.sub(a, b);
        self.hidden(Type::F64, difference)
    }

    fn f64_mul(&mut self, a: Expr, b: Expr) -> Expr {
        let (a, b) = (self.apart(Type::F64, 0, a), self.apart(Type::F64, 1, b));
        let product = self.mul(a, b);
        self.hidden(Type::F64, product)
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

    fn bits(&mut self, value: Expr) -> Expr {
        self.bitcast(value, Type::U64)
    }

    fn is_finite(&mut self, value: Expr) -> Expr {
        let bits = self.bits(value);
        let mask = self.u64(0x7ff0_0000_0000_0000);
        let exponent = self.and(bits, mask);
        self.ne(exponent, mask)
    }

    /// The sum of two numbers and what rounding it lost (Knuth).
    fn two_sum(&mut self, a: Expr, b: Expr) -> Pair {
        let high = self.f64_add(a, b);
        let from_b = self.f64_sub(high, a);
        let from_a = self.f64_sub(high, from_b);
        let lost_a = self.f64_sub(a, from_a);
        let lost_b = self.f64_sub(b, from_b);
        Pair { high, low: self.f64_add(lost_a, lost_b) }
    }

    /// The product of two numbers that are neither large nor small, and what rounding it lost (Dekker).
    fn two_product(&mut self, a: Expr, b: Expr) -> Pair {
        let splitter = self.f64(134_217_729.0);
        let mut split = |value: Expr| {
            let large = self.f64_mul(value, splitter);
            let rest = self.f64_sub(value, large);
            let high = self.f64_add(rest, large);
            (high, self.f64_sub(value, high))
        };
        let (a_high, a_low) = split(a);
        let (b_high, b_low) = split(b);
        let first = self.f64_mul(a_high, b_high);
        let cross_1 = self.f64_mul(a_high, b_low);
        let cross_2 = self.f64_mul(a_low, b_high);
        let second = self.f64_add(cross_1, cross_2);
        let third = self.f64_mul(a_low, b_low);
        let high = self.f64_add(first, second);
        let lost = self.f64_sub(first, high);
        let lost = self.f64_add(lost, second);
        Pair { high, low: self.f64_add(lost, third) }
    }

    /// The bits of a number one step towards where the exact sum lies.
    fn stepped(&mut self, sum: Pair) -> Expr {
        let (high, low) = (self.bits(sum.high), self.bits(sum.low));
        let differ = self.xor(high, low);
        let count = self.u32(63);
        let differ = self.shr(differ, count);
        let zero = self.u64(0);
        let away = self.eq(differ, zero);
        let (up, down) = (self.u64(1), self.u64(u64::MAX));
        let step = self.select(away, up, down);
        self.add(high, step)
    }

    /// The high part of a sum, rounded to odd: its last bit is set if anything was lost.
    fn sticky(&mut self, sum: Pair) -> Expr {
        let bits = self.bits(sum.high);
        let (one, zero) = (self.u64(1), self.u64(0));
        let last = self.and(bits, one);
        let even = self.eq(last, zero);
        let nothing = self.f64(0.0);
        let exact = self.eq(sum.low, nothing);
        let stepped = self.stepped(sum);
        let odd = self.select(even, stepped, bits);
        let chosen = self.select(exact, bits, odd);
        self.bitcast(chosen, Type::F64)
    }

    /// 2^n as an f64, for exponents of normal numbers.
    fn power(&mut self, exponent: Expr) -> Expr {
        let bias = self.i32(1023);
        let biased = self.add(exponent, bias);
        let biased = self.bitcast(biased, Type::U32);
        let biased = self.resize(biased, Type::U64);
        let count = self.u32(52);
        let bits = self.shl(biased, count);
        self.bitcast(bits, Type::F64)
    }

    /// The biased exponent of an f64, as an i32.
    pub(super) fn exponent(&mut self, value: Expr) -> Expr {
        let bits = self.bits(value);
        let count = self.u32(52);
        let shifted = self.shr(bits, count);
        let exponent = self.resize(shifted, Type::U32);
        let mask = self.u32(0x7ff);
        let exponent = self.and(exponent, mask);
        self.bitcast(exponent, Type::I32)
    }

    /// A number with another biased exponent.
    fn with_exponent(&mut self, value: Expr, exponent: u64) -> Expr {
        let bits = self.bits(value);
        let mask = self.u64(0x800f_ffff_ffff_ffff);
        let rest = self.and(bits, mask);
        let exponent = self.u64(exponent << 52);
        let bits = self.or(rest, exponent);
        self.bitcast(bits, Type::F64)
    }

    /// A finite number that is not zero, as a significand from ½ up to 1 and an exponent.
    fn normalized(&mut self, value: Expr) -> (Expr, Expr) {
        let exponent = self.exponent(value);
        let zero = self.i32(0);
        let subnormal = self.eq(exponent, zero);
        let scale = self.f64(2f64.powi(54));
        let large = self.f64_mul(value, scale);
        let number = self.select(subnormal, large, value);
        let significand = self.with_exponent(number, 1022);
        let exponent = self.exponent(number);
        let (bias, scaled_bias) = (self.i32(1022), self.i32(1022 + 54));
        let bias = self.select(subnormal, scaled_bias, bias);
        (significand, self.sub(exponent, bias))
    }

    fn clamp_i32(&mut self, value: Expr, least: i32, most: i32) -> Expr {
        let (least, most) = (self.i32(least), self.i32(most));
        let value = self.math(MathFunction::Max, &[value, least]);
        self.math(MathFunction::Min, &[value, most])
    }

    /// A normal number times 2^n, rounded once.
    fn scaled(&mut self, value: Expr, n: Expr) -> Expr {
        let bias = self.i32(1023);
        let exponent = self.exponent(value);
        let exponent = self.sub(exponent, bias);
        let exponent = self.add(exponent, n);
        let significand = self.with_exponent(value, 1023);
        // The first step is exact; the second rounds, if the result is subnormal, or overflows.
        let first = self.clamp_i32(exponent, -1022, 1023);
        let rest = self.sub(exponent, first);
        let second = self.clamp_i32(rest, -60, 1);
        let (first, second) = (self.power(first), self.power(second));
        let scaled = self.f64_mul(significand, first);
        self.f64_mul(scaled, second)
    }

    fn fma_f64(&mut self, a: Expr, b: Expr, c: Expr) -> Expr {
        let zero = self.f64(0.0);
        let [(a_s, a_e), (b_s, b_e), (c_s, c_e)] = [a, b, c].map(|value| self.normalized(value));
        let scale = self.add(a_e, b_e);
        let spread = self.sub(scale, c_e);

        // `c` in units of the product. One that is far smaller only has to be seen.
        let zero_i32 = self.i32(0);
        let shift = self.sub(zero_i32, spread);
        let shift = self.clamp_i32(shift, -120, 120);
        let factor = self.power(shift);
        let near = self.f64_mul(c_s, factor);
        let far_limit = self.i32(110);
        let far = self.gt(spread, far_limit);
        let tiny_bits = self.bits(c_s);
        let sign_mask = self.u64(1 << 63);
        let sign = self.and(tiny_bits, sign_mask);
        let least = self.u64(1 << 52);
        let tiny = self.or(sign, least);
        let tiny = self.bitcast(tiny, Type::F64);
        let c_scaled = self.select(far, tiny, near);

        let product = self.two_product(a_s, b_s);
        let sum = self.two_sum(product.high, c_scaled);
        let low = self.two_sum(sum.low, product.low);
        let low = self.sticky(low);

        // A normal result: one more addition rounds it, and scaling is exact.
        let rounded = self.f64_add(sum.high, low);
        let normal = self.scaled(rounded, scale);

        // A subnormal result loses bits when it is scaled: the last one that is kept must not be rounded before.
        let pair = self.two_sum(sum.high, low);
        let exponent = self.exponent(pair.high);
        let one_i32 = self.i32(1);
        let lost = self.sub(one_i32, exponent);
        let lost = self.sub(lost, scale);
        let several = self.eq(lost, one_i32);
        let several = self.not(several, Type::Bool);
        let bits = self.bits(pair.high);
        let one = self.u64(1);
        let last = self.and(bits, one);
        let nothing = self.u64(0);
        let odd = self.ne(last, nothing);
        let adjusts = self.ne(several, odd);
        let inexact = self.eq(pair.low, zero);
        let inexact = self.not(inexact, Type::Bool);
        let adjusts = self.and(adjusts, inexact);
        let stepped = self.stepped(pair);
        let adjusted = self.select(adjusts, stepped, bits);
        let adjusted = self.bitcast(adjusted, Type::F64);
        let subnormal = self.scaled(adjusted, scale);

        let bias = self.i32(1023);
        let exponent = self.exponent(sum.high);
        let exponent = self.sub(exponent, bias);
        let exponent = self.add(exponent, scale);
        let least = self.i32(-1023);
        let is_normal = self.gt(exponent, least);
        let mut result = self.select(is_normal, normal, subnormal);

        // The product cancels `c` but for what rounding it lost.
        let cancels = self.eq(sum.high, zero);
        let rest = self.scaled(product.low, scale);
        let exact = self.eq(product.low, zero);
        let rest = self.select(exact, zero, rest);
        result = self.select(cancels, rest, result);

        // `c` is so much larger that the product does not matter.
        let far_limit = self.i32(-120);
        let alone = self.lt(spread, far_limit);
        result = self.select(alone, c, result);

        // Zeros, infinities and NaNs follow from the plain operations.
        let plain_product = self.f64_mul(a, b);
        let plain = self.f64_add(plain_product, c);
        let c_zero = self.eq(c, zero);
        result = self.select(c_zero, plain_product, result);
        let c_finite = self.is_finite(c);
        result = self.select(c_finite, result, c);
        let a_zero = self.eq(a, zero);
        let b_zero = self.eq(b, zero);
        let any_zero = self.or(a_zero, b_zero);
        let a_finite = self.is_finite(a);
        let b_finite = self.is_finite(b);
        let finite = self.and(a_finite, b_finite);
        let special = self.not(finite, Type::Bool);
        let special = self.or(special, any_zero);
        self.select(special, plain, result)
    }
}
