//! Lowering of pure operations, with the exact semantics of the op table.
//!
//! WGSL leaves open what vyre defines: conversions of NaN, `min` and `max` of NaN and of signed zeros, `!=` of NaN.
//! Those are expanded to integer operations on the bits, which drivers cannot simplify on the assumption that there are
//! no NaNs.

use std::cmp::Ordering;

use naga::{BinaryOperator, MathFunction};
use vyre_foundation::ir::{Literal, Pure, Type};

use super::build::{Builder, Expr, expr};

/// Unsigned integer type of the same width.
fn unsigned(ty: Type) -> Type {
    if ty.bits() == 64 { Type::U64 } else { Type::U32 }
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::I32 | Type::I64)
}

/// Device function for a math library function, in `fast` programs.
pub(super) fn device_function(op: Pure) -> Option<MathFunction> {
    Some(match op {
        Pure::Exp => MathFunction::Exp,
        Pure::Exp2 => MathFunction::Exp2,
        Pure::Log => MathFunction::Log,
        Pure::Log2 => MathFunction::Log2,
        Pure::Sin => MathFunction::Sin,
        Pure::Cos => MathFunction::Cos,
        Pure::Tan => MathFunction::Tan,
        Pure::Asin => MathFunction::Asin,
        Pure::Acos => MathFunction::Acos,
        Pure::Atan => MathFunction::Atan,
        Pure::Atan2 => MathFunction::Atan2,
        Pure::Sinh => MathFunction::Sinh,
        Pure::Cosh => MathFunction::Cosh,
        Pure::Tanh => MathFunction::Tanh,
        Pure::Asinh => MathFunction::Asinh,
        Pure::Acosh => MathFunction::Acosh,
        Pure::Atanh => MathFunction::Atanh,
        Pure::Pow => MathFunction::Pow,
        _ => return None,
    })
}

impl Builder {
    /// Lowers a pure operation. `ty` is the type that `T` stands for, `result` the result type.
    pub(super) fn pure(&mut self, op: Pure, ty: Type, result: Type, operands: &[Expr]) -> Expr {
        let algebraic = matches!(
            op,
            Pure::Add
                | Pure::Sub
                | Pure::Mul
                | Pure::Div
                | Pure::Fma
                | Pure::Min
                | Pure::Max
                | Pure::Eq
                | Pure::Ne
                | Pure::Lt
                | Pure::Le
                | Pure::Gt
                | Pure::Ge
        );
        if !(algebraic && ty.is_float() && self.opaque_zeros.is_some()) {
            return self.bare(op, ty, result, operands);
        }
        let operands: Vec<Expr> = operands
            .iter()
            .enumerate()
            .map(|(position, &operand)| self.opaque_operand(ty, position, operand))
            .collect();
        let value = self.bare(op, ty, result, &operands);
        if result == Type::Bool { value } else { self.opaque_result(ty, value) }
    }

    /// Makes an operand of a float operation opaque to the driver's optimizer. The first operand has a separate zero, so
    /// that equal operands are not recognized as equal.
    pub(super) fn opaque_operand(&mut self, ty: Type, position: usize, operand: Expr) -> Expr {
        match self.opaque_zeros {
            Some([others, first]) => self.opaque(ty, operand, if position == 0 { first } else { others }),
            None => operand,
        }
    }

    /// Makes the result of a float operation opaque to the driver's optimizer. The zero is added: where the result is the first operand of
    /// the next operation, an exclusive or with the same zero would cancel.
    pub(super) fn opaque_result(&mut self, ty: Type, value: Expr) -> Expr {
        let Some([_, opaque_zero]) = self.opaque_zeros else { return value };
        match ty {
            Type::F16 => self.opaque(ty, value, opaque_zero),
            Type::F64 => {
                let bits = expr!(self, add(bitcast(value, [Type::U64]), resize(opaque_zero, [Type::U64])));
                self.bitcast(bits, ty)
            }
            _ => expr!(self, bitcast(add(bitcast(value, [Type::U32]), opaque_zero), ty)),
        }
    }

    /// Makes an integer that was widened to 64 bits opaque: Mesa narrows comparisons of such values, incorrectly for shifted
    /// ones.
    fn opaque_wide(&mut self, ty: Type, value: Expr) -> Expr {
        let Some([_, opaque_zero]) = self.opaque_zeros else { return value };
        let bits = self.as_unsigned(ty, value);
        let bits = expr!(self, xor(bits, resize(opaque_zero, [Type::U64])));
        self.of_unsigned(ty, bits)
    }

    /// Optimization barrier: the identity, by an exclusive or with a zero that is loaded at run time. Against reassociation: Mesa folds
    /// `(a + b) - a` to `b` and `a - a` to 0, unless SPIR-V decorates each operation, which naga cannot express.
    pub(super) fn opaque(&mut self, ty: Type, value: Expr, opaque_zero: Expr) -> Expr {
        match ty {
            Type::F64 | Type::U64 | Type::I64 => {
                let bits = expr!(self, xor(bitcast(value, [Type::U64]), resize(opaque_zero, [Type::U64])));
                self.bitcast(bits, ty)
            }
            Type::F16 => expr!(self, select(ne(opaque_zero, 0), zero([Type::F16]), value)),
            Type::Bool | Type::F32 | Type::U32 | Type::I32 => {
                expr!(self, bitcast(xor(bitcast(value, [Type::U32]), opaque_zero), ty))
            }
        }
    }

    fn bare(&mut self, op: Pure, ty: Type, result: Type, operands: &[Expr]) -> Expr {
        let a = operands[0];
        let b = operands.get(1).copied().unwrap_or(a);
        let float = ty.is_float();
        match op {
            Pure::Add => self.add(a, b),
            Pure::Sub => self.sub(a, b),
            Pure::Mul => self.mul(a, b),
            Pure::MulHigh => self.mul_high(ty, a, b),
            Pure::Div if float => self.binary(BinaryOperator::Divide, a, b),
            Pure::Div => self.divide(BinaryOperator::Divide, ty, a, b),
            Pure::Rem => self.divide(BinaryOperator::Modulo, ty, a, b),
            Pure::Neg if float => self.negate(a),
            Pure::Neg => expr!(self, sub(zero(ty), a)),
            Pure::Abs if float => self.math(MathFunction::Abs, &[a]),
            Pure::Abs => {
                let zero = self.zero(ty);
                expr!(self, select(lt(a, zero), sub(zero, a), a))
            }
            Pure::Min if float => self.float_extreme(ty, a, b, false),
            Pure::Max if float => self.float_extreme(ty, a, b, true),
            Pure::Min if ty.bits() == 32 => self.min(a, b),
            Pure::Max if ty.bits() == 32 => self.max(a, b),
            Pure::Min => expr!(self, select(lt(a, b), a, b)),
            Pure::Max => expr!(self, select(gt(a, b), a, b)),
            Pure::Fma if self.emulate_fma => self.exact_fma(ty, operands),
            Pure::Fma => self.math(MathFunction::Fma, operands),
            Pure::Ldexp => self.ldexp(ty, a, b),
            Pure::Sqrt => self.math(MathFunction::Sqrt, operands),
            Pure::Trunc if ty == Type::F64 => self.trunc_f64(a),
            Pure::Floor if ty == Type::F64 => {
                let (whole, one) = (self.trunc_f64(a), self.literal(1f64.into()));
                expr!(self, select(gt(whole, a), sub(whole, one), whole))
            }
            Pure::Ceil if ty == Type::F64 => {
                let (whole, one) = (self.trunc_f64(a), self.literal(1f64.into()));
                expr!(self, select(lt(whole, a), add(whole, one), whole))
            }
            Pure::Floor => self.math(MathFunction::Floor, operands),
            Pure::Ceil => self.math(MathFunction::Ceil, operands),
            Pure::Trunc => self.math(MathFunction::Trunc, operands),
            Pure::Round if ty == Type::F64 => self.round_f64(a),
            Pure::Round => self.math(MathFunction::Round, operands),
            Pure::And => self.and(a, b),
            Pure::Or => self.or(a, b),
            Pure::Xor if ty == Type::Bool => self.ne(a, b),
            Pure::Xor => self.xor(a, b),
            Pure::Not => self.not(a, ty),
            Pure::Shl => expr!(self, shl(a, below_width(ty, b))),
            Pure::Shr => expr!(self, shr(a, below_width(ty, b))),
            Pure::RotateLeft => {
                let bits = self.as_unsigned(ty, a);
                let count = self.below_width(ty, b);
                expr!(self, of_unsigned(ty, or(shl(bits, count), shr(bits, below_width(ty, sub(0, count))))))
            }
            Pure::CountOnes => self.by_words(ty, a, MathFunction::CountOneBits),
            Pure::LeadingZeros => self.by_words(ty, a, MathFunction::CountLeadingZeros),
            Pure::TrailingZeros => self.by_words(ty, a, MathFunction::CountTrailingZeros),
            Pure::ReverseBits => {
                let bits = self.as_unsigned(ty, a);
                let reversed = if ty.bits() == 64 {
                    let [low, high] = self.split(bits);
                    let [low, high] = [low, high].map(|word| self.math(MathFunction::ReverseBits, &[word]));
                    self.join(high, low)
                } else {
                    self.math(MathFunction::ReverseBits, &[bits])
                };
                self.of_unsigned(ty, reversed)
            }
            Pure::ExtractBits => self.extract_bits(ty, operands),
            Pure::InsertBits => self.insert_bits(ty, operands),
            Pure::PackF16 => expr!(self, or(f32_to_half(a), shl(f32_to_half(b), 16))),
            Pure::UnpackF16Low => expr!(self, half_to_f32(and(a, 0xffff))),
            Pure::UnpackF16High => expr!(self, half_to_f32(shr(a, 16))),
            Pure::QuantizeF16 => expr!(self, half_to_f32(f32_to_half(a))),
            Pure::FrexpFraction => self.frexp(ty, a)[0],
            Pure::FrexpExponent => self.frexp(ty, a)[1],
            Pure::ModfFraction => self.modf_fraction(ty, a),
            Pure::PackSnorm16 | Pure::PackSnorm8 => self.pack_norm(operands, true),
            Pure::PackUnorm16 | Pure::PackUnorm8 => self.pack_norm(operands, false),
            Pure::UnpackSnorm16 => self.unpack_norm(operands, 2, true),
            Pure::UnpackUnorm16 => self.unpack_norm(operands, 2, false),
            Pure::UnpackSnorm8 => self.unpack_norm(operands, 4, true),
            Pure::UnpackUnorm8 => self.unpack_norm(operands, 4, false),
            Pure::Dot4U8 => self.dot4(operands, [false, false], result),
            Pure::Dot4I8 => self.dot4(operands, [true, true], result),
            Pure::Dot4I8U8 => self.dot4(operands, [true, false], result),
            Pure::AddU8x4 => self.add_bytes(a, b),
            Pure::MinU8x4 => self.extreme_bytes(a, b, false, false),
            Pure::MaxU8x4 => self.extreme_bytes(a, b, false, true),
            Pure::MinI8x4 => self.extreme_bytes(a, b, true, false),
            Pure::MaxI8x4 => self.extreme_bytes(a, b, true, true),
            Pure::EqU8x4 => self.equal_bytes(a, b),
            Pure::LtU8x4 => self.less_bytes(a, b, false),
            Pure::LookupU8x4 => self.lookup_bytes(a, std::array::from_fn(|word| operands[word + 1])),
            Pure::PackU8Clamp => self.pack_clamped(operands, false),
            Pure::PackI8Clamp => self.pack_clamped(operands, true),
            Pure::Eq => self.eq(a, b),
            Pure::Ne if float => expr!(self, not(eq(a, b), [Type::Bool])),
            Pure::Ne => self.ne(a, b),
            Pure::Lt => self.lt(a, b),
            Pure::Le => self.le(a, b),
            Pure::Gt => self.gt(a, b),
            Pure::Ge => self.ge(a, b),
            Pure::Select => self.select(a, b, operands[2]),
            Pure::Cast => self.cast(ty, result, a),
            Pure::Bitcast if ty == result => a,
            Pure::Bitcast => self.bitcast(a, result),
            // Math library functions are expanded before lowering, or replaced by device functions.
            vyre_foundation::library_functions!() => match device_function(op) {
                Some(function) => self.math(function, operands),
                None => unreachable!("`{}` is of the math library, which was expanded", op.info().name),
            },
        }
    }

    // Integers.

    fn as_unsigned(&mut self, ty: Type, value: Expr) -> Expr {
        if ty == unsigned(ty) { value } else { self.bitcast(value, unsigned(ty)) }
    }

    /// Reinterprets bits as type `ty`.
    fn of_unsigned(&mut self, ty: Type, value: Expr) -> Expr {
        if ty == unsigned(ty) { value } else { self.bitcast(value, ty) }
    }

    /// Shift count modulo the width of `ty`.
    pub(super) fn below_width(&mut self, ty: Type, count: Expr) -> Expr {
        if let Some(count) = self.known_u32(count) {
            return self.u32(count % ty.bits());
        }
        let mask = self.u32(ty.bits() - 1);
        self.and(count, mask)
    }

    /// Splits a u64 into low and high word.
    pub(super) fn split(&mut self, value: Expr) -> [Expr; 2] {
        [self.resize(value, Type::U32), expr!(self, resize(shr(value, 32), [Type::U32]))]
    }

    /// Joins two words to a u64.
    pub(super) fn join(&mut self, low: Expr, high: Expr) -> Expr {
        expr!(self, or(resize(low, [Type::U64]), shl(resize(high, [Type::U64]), 32)))
    }

    /// Counts bits of 64-bit integers by words: devices count 32 bits.
    pub(super) fn by_words(&mut self, ty: Type, value: Expr, fun: MathFunction) -> Expr {
        let bits = self.as_unsigned(ty, value);
        if ty.bits() == 32 {
            return self.math(fun, &[bits]);
        }
        let [low, high] = self.split(bits);
        let (in_low, in_high) = (self.math(fun, &[low]), self.math(fun, &[high]));
        // The second word counts only where the first is zero.
        let (first, counted_first, counted_second) = match fun {
            MathFunction::CountLeadingZeros => (high, in_high, in_low),
            MathFunction::CountTrailingZeros => (low, in_low, in_high),
            _ => return self.add(in_low, in_high),
        };
        expr!(self, select(eq(first, 0), add(counted_second, 32), counted_first))
    }

    /// `x / 0 = x`, `x % 0 = 0`, and MIN by −1 wraps: all of these divide by 1 instead.
    fn divide(&mut self, op: BinaryOperator, ty: Type, a: Expr, b: Expr) -> Expr {
        let known = match self.function.expressions[b] {
            naga::Expression::Literal(literal) => match literal {
                naga::Literal::U32(value) => value != 0,
                naga::Literal::U64(value) => value != 0,
                naga::Literal::I32(value) => value != 0 && value != -1,
                naga::Literal::I64(value) => value != 0 && value != -1,
                _ => false,
            },
            _ => false,
        };
        if known {
            return self.binary(op, a, b);
        }
        let mut by_one = expr!(self, eq(b, zero(ty)));
        if is_signed(ty) {
            let minimum = self.literal(Literal { ty, bits: 1 << (ty.bits() - 1) });
            let minus_one = self.literal(Literal { ty, bits: u64::MAX >> (64 - ty.bits()) });
            by_one = expr!(self, or(by_one, and(eq(a, minimum), eq(b, minus_one))));
        }
        let one = self.literal(Literal { ty, bits: 1 });
        let divisor = self.select(by_one, one, b);
        self.binary(op, a, divisor)
    }

    /// High half of a product, from the four partial products of halves.
    fn mul_high(&mut self, ty: Type, a: Expr, b: Expr) -> Expr {
        let word = unsigned(ty);
        let (a_bits, b_bits) = (self.as_unsigned(ty, a), self.as_unsigned(ty, b));
        let half = self.u32(ty.bits() / 2);
        let mask = self.literal(Literal { ty: word, bits: (1 << (ty.bits() / 2)) - 1 });
        let (a_low, a_high) = (self.and(a_bits, mask), self.shr(a_bits, half));
        let (b_low, b_high) = (self.and(b_bits, mask), self.shr(b_bits, half));
        let first = expr!(self, add(mul(a_high, b_low), shr(mul(a_low, b_low), half)));
        let second = expr!(self, add(mul(a_low, b_high), and(first, mask)));
        let carry = self.shr(first, half);
        let mut high = expr!(self, add(add(mul(a_high, b_high), carry), shr(second, half)));
        if is_signed(ty) {
            // Correction for negative operands, which as unsigned numbers are larger by 2^width.
            for (signed, other) in [(a, b_bits), (b, a_bits)] {
                high = expr!(self, sub(high, select(lt(signed, zero(ty)), other, zero(word))));
            }
        }
        self.of_unsigned(ty, high)
    }

    /// Clamps offset and count of a bit field to the width.
    fn bit_field(&mut self, ty: Type, offset: Expr, count: Expr) -> (Expr, Expr) {
        let width = self.u32(ty.bits());
        let offset = self.min(offset, width);
        (offset, expr!(self, min(count, sub(width, offset))))
    }

    fn extract_bits(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        let (offset, count) = self.bit_field(ty, operands[1], operands[2]);
        let width = self.u32(ty.bits());
        let unused = self.sub(width, count);
        let left = expr!(self, shl([operands[0]], below_width(ty, sub(unused, offset))));
        let field = expr!(self, shr(left, below_width(ty, unused)));
        expr!(self, select(eq(count, 0), zero(ty), field))
    }

    fn insert_bits(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        let word = unsigned(ty);
        let (offset, count) = self.bit_field(ty, operands[2], operands[3]);
        let (a, b) = (self.as_unsigned(ty, operands[0]), self.as_unsigned(ty, operands[1]));
        let width = self.u32(ty.bits());
        let ones = self.literal(Literal { ty: word, bits: u64::MAX >> (64 - ty.bits()) });
        let mask = expr!(self, shr(ones, below_width(ty, sub(width, count))));
        let offset = self.below_width(ty, offset);
        let mask = self.shl(mask, offset);
        let inserted = expr!(self, or(and(a, not(mask, word)), and(shl(b, offset), mask)));
        expr!(self, of_unsigned(ty, select(eq(count, 0), a, inserted)))
    }

    // Floats.

    /// Bits of an f32 or f64.
    fn float_bits(&mut self, ty: Type, value: Expr) -> Expr {
        self.bitcast(value, unsigned(ty))
    }

    /// Tests bits for NaN.
    pub(super) fn is_nan(&mut self, ty: Type, bits: Expr) -> Expr {
        let (word, magnitude, infinity) = match ty {
            Type::F64 => (Type::U64, u64::MAX >> 1, 0x7ff0_0000_0000_0000),
            _ => (Type::U32, 0x7fff_ffff, 0x7f80_0000),
        };
        let mask = self.literal(Literal { ty: word, bits: magnitude });
        let infinity = self.literal(Literal { ty: word, bits: infinity });
        expr!(self, gt(and(bits, mask), infinity))
    }

    /// Minimum or maximum of floats: prefers a number over a NaN, and orders −0 below +0.
    fn float_extreme(&mut self, ty: Type, a: Expr, b: Expr, larger: bool) -> Expr {
        if ty == Type::F16 {
            // f32 represents every f16, and its bits are accessible.
            let (a, b) = (self.resize(a, Type::F32), self.resize(b, Type::F32));
            let extreme = self.float_extreme(Type::F32, a, b, larger);
            return self.resize(extreme, Type::F16);
        }
        let (a_bits, b_bits) = (self.float_bits(ty, a), self.float_bits(ty, b));
        let nan = self.is_nan(ty, b_bits);
        let before = if larger { self.gt(a, b) } else { self.lt(a, b) };
        let equal = self.eq(a, b);
        let top = self.literal(Literal { ty: unsigned(ty), bits: 1 << (ty.bits() - 1) });
        let sign = self.and(a_bits, top);
        let zero = self.zero(unsigned(ty));
        let preferred = if larger { self.eq(sign, zero) } else { self.ne(sign, zero) };
        expr!(self, select(or(or(nan, before), and(equal, preferred)), a, b))
    }

    /// Multiplies by powers of two. Only the last product may round: an earlier one rounds only if its result is
    /// subnormal, and then the final result is 0. The functions of drivers are inexact.
    fn ldexp(&mut self, ty: Type, value: Expr, exponent: Expr) -> Expr {
        if ty == Type::F16 {
            // Exact in f32.
            let value = self.resize(value, Type::F32);
            let exponent = self.clamped(exponent, -64, 64);
            let power = self.power_of_two(Type::F32, exponent);
            let scaled = self.pure(Pure::Mul, Type::F32, Type::F32, &[value, power]);
            return self.resize(scaled, Type::F16);
        }
        let (least, most, all) = if ty == Type::F64 { (-1022, 1023, 2200) } else { (-126, 127, 300) };
        let exponent = self.clamped(exponent, -all, all);
        let last = self.clamped(exponent, least, most);
        let rest = self.sub(exponent, last);
        let first = self.clamped(rest, least, most);
        let second = self.sub(rest, first);
        let mut scaled = value;
        for exponent in [first, second, last] {
            let power = self.power_of_two(ty, exponent);
            scaled = self.pure(Pure::Mul, ty, ty, &[scaled, power]);
        }
        scaled
    }

    fn clamped(&mut self, value: Expr, low: i32, high: i32) -> Expr {
        let [low, high] = [low, high].map(|bound| self.literal(bound.into()));
        expr!(self, max(min(value, high), low))
    }

    /// 2^exponent as an f32 or f64, for exponents of normal numbers.
    fn power_of_two(&mut self, ty: Type, exponent: Expr) -> Expr {
        let bias = self.literal(if ty == Type::F64 { 1023i32 } else { 127i32 }.into());
        let biased = expr!(self, bitcast(add(exponent, bias), [Type::U32]));
        if ty == Type::F64 {
            let high = expr!(self, shl(biased, 20));
            let zero = self.u32(0);
            return expr!(self, bitcast(join(zero, high), [Type::F64]));
        }
        expr!(self, bitcast(shl(biased, 23), [Type::F32]))
    }

    /// Truncates an f64 by its bits: Mesa's software driver does not truncate numbers above 2^24, and loses the sign of
    /// zeros.
    fn trunc_f64(&mut self, value: Expr) -> Expr {
        let [zero, bias, last] = [0i32, 1023, 52].map(|number| self.literal(number.into()));
        let (ones, sign) = (self.literal(u64::MAX.into()), self.literal((1u64 << 63).into()));
        let exponent = expr!(self, sub(exponent(value), bias));
        let fraction = expr!(self, bitcast(sub(last, exponent), [Type::U32]));
        let mask = expr!(self, shl(ones, below_width([Type::U64], fraction)));
        let mask = expr!(self, select(ge(exponent, last), ones, mask));
        let mask = expr!(self, select(lt(exponent, zero), sign, mask));
        expr!(self, bitcast(and(bits(value), mask), [Type::F64]))
    }

    /// Rounds an f64 to the nearest integer, ties to even.
    fn round_f64(&mut self, value: Expr) -> Expr {
        let (half, one) = (self.literal(0.5f64.into()), self.literal(1f64.into()));
        let magnitude = self.math(MathFunction::Abs, &[value]);
        let whole = self.trunc_f64(magnitude);
        let fraction = self.sub(magnitude, whole);
        let halved = self.mul(whole, half);
        let odd = expr!(self, gt(halved, trunc_f64(halved)));
        let up = expr!(self, or(gt(fraction, half), and(eq(fraction, half), odd)));
        let rounded = expr!(self, select(up, add(whole, one), whole));
        // Restores the sign, also of zeros.
        let top = self.literal((1u64 << 63).into());
        expr!(self, bitcast(or(bits(rounded), and(bits(value), top)), [Type::F64]))
    }

    /// Rounds an f32 to f16, ties to even; the result is in the low bits of a u32.
    pub(super) fn f32_to_half(&mut self, value: Expr) -> Expr {
        let bits = self.bitcast(value, Type::U32);
        let sign = expr!(self, and(shr(bits, 16), 0x8000));
        let magnitude = expr!(self, and(bits, 0x7fff_ffff));

        // Normal results: rebases the exponent by 112; a carry from rounding into the exponent is correct.
        let rebased = expr!(self, sub(magnitude, [self.u32(112 << 23)]));
        let one = self.u32(1);
        let odd = expr!(self, and(shr(rebased, 13), one));
        let normal = expr!(self, shr(add(rebased, add(odd, 0xfff)), 13));

        // Subnormal results: shifts the significand into place, and rounds there.
        let mantissa = expr!(self, and(magnitude, 0x007f_ffff));
        let significand = expr!(self, or(mantissa, 0x0080_0000));
        let shift = expr!(self, min(sub(126, shr(magnitude, 23)), 31));
        let kept = self.shr(significand, shift);
        let half = expr!(self, shl(one, below_width([Type::U32], sub(shift, one))));
        let fraction = expr!(self, and(significand, sub(shl(one, shift), one)));
        let is_odd = expr!(self, ne(and(kept, one), 0));
        let up = expr!(self, or(gt(fraction, half), and(eq(fraction, half), is_odd)));
        let subnormal = expr!(self, add(kept, select(up, one, 0)));

        let is_subnormal = expr!(self, lt(magnitude, [self.u32(113 << 23)]));
        let finite = self.select(is_subnormal, subnormal, normal);
        // 65520 and above rounds to infinity, not 65504.
        let number = expr!(self, select(ge(magnitude, 0x477f_f000), 0x7c00, finite));
        let nan = expr!(self, or(shr(mantissa, 13), 0x7e00));
        let is_nan = self.is_nan(Type::F32, bits);
        expr!(self, or(select(is_nan, nan, number), sign))
    }

    /// Widens an f16, in the low bits of a u32, to f32; the other bits must be zero.
    pub(super) fn half_to_f32(&mut self, half: Expr) -> Expr {
        let sign = expr!(self, shl(and(half, 0x8000), 16));
        let magnitude = expr!(self, and(half, 0x7fff));
        let shifted = expr!(self, shl(magnitude, 13));
        let normal = expr!(self, add(shifted, [self.u32(112 << 23)]));
        let special = expr!(self, or(shifted, 0x7f80_0000));
        let unit = self.literal(f32::from_bits(0x3380_0000).into());
        let subnormal = expr!(self, bitcast(mul(resize(magnitude, [Type::F32]), unit), [Type::U32]));
        let finite = expr!(self, select(lt(magnitude, 0x0400), subnormal, normal));
        let number = expr!(self, select(ge(magnitude, 0x7c00), special, finite));
        expr!(self, bitcast(or(number, sign), [Type::F32]))
    }

    // Conversions.

    fn cast(&mut self, from: Type, to: Type, value: Expr) -> Expr {
        if from == to {
            return value;
        }
        match (from, to) {
            (Type::Bool, _) => {
                let one = Pure::Cast.info().evaluator(Type::Bool, to).expect("every type can be cast to");
                let one = self.literal(Literal { ty: to, bits: one(&[1]) });
                expr!(self, select(value, one, zero(to)))
            }
            (_, Type::Bool) => expr!(self, not(eq(value, zero(from)), [Type::Bool])),
            _ if from.is_float() && to.is_float() => self.resize(value, to),
            _ if from.is_float() => self.float_to_integer(from, to, value),
            // f32 represents every integer that f16 can represent.
            (_, Type::F16) => expr!(self, resize(resize(value, [Type::F32]), [Type::F16])),
            _ if to.is_float() => self.resize(value, to),
            _ => {
                // Widens first, so that the signedness of the source determines the extension.
                let same_sign = match (is_signed(from), to.bits()) {
                    (true, 64) => Type::I64,
                    (true, _) => Type::I32,
                    (false, 64) => Type::U64,
                    (false, _) => Type::U32,
                };
                let sized = match to.bits().cmp(&from.bits()) {
                    Ordering::Equal => value,
                    Ordering::Less => self.resize(value, same_sign),
                    Ordering::Greater => {
                        let wide = self.resize(value, same_sign);
                        self.opaque_wide(same_sign, wide)
                    }
                };
                if same_sign == to { sized } else { self.bitcast(sized, to) }
            }
        }
    }

    /// Truncates with saturation; NaN converts to 0.
    fn float_to_integer(&mut self, from: Type, to: Type, value: Expr) -> Expr {
        if from == Type::F16 {
            let wide = self.resize(value, Type::F32);
            return self.float_to_integer(Type::F32, to, wide);
        }
        let bits = self.float_bits(from, value);
        let nan = self.is_nan(from, bits);
        // Exact within the range; naga clamps to the minimum below it, and to some large float above.
        let converted = self.resize(value, to);
        let magnitude = to.bits() - u32::from(is_signed(to));
        let limit = 2f64.powi(magnitude as i32);
        let limit = match from {
            Type::F64 => self.literal(limit.into()),
            _ => self.literal((limit as f32).into()),
        };
        let above = self.ge(value, limit);
        let maximum = self.literal(Literal { ty: to, bits: u64::MAX >> (64 - magnitude) });
        let saturated = self.select(above, maximum, converted);
        expr!(self, select(nan, zero(to), saturated))
    }
}
