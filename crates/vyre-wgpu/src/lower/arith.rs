//! Operations that are functions of their operands, exactly as the op table defines them.
//!
//! naga's operations follow WGSL, which leaves open what vyre does not: conversions of NaN, `min` and `max` of NaN and of
//! zeros of both signs, `!=` of NaN. Those are written out here with bit operations, which no driver may simplify on the
//! assumption that there are no NaNs.

use std::cmp::Ordering;

use naga::{BinaryOperator, MathFunction};
use vyre_foundation::ir::{Literal, Op, Type};
use vyre_foundation::planted::{self, Bug};

use super::build::{Builder, Expr};

/// The unsigned integer that has the bits of a number of this width.
fn unsigned(ty: Type) -> Type {
    if ty.bits() == 64 { Type::U64 } else { Type::U32 }
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::I32 | Type::I64)
}

/// The function of the device that stands for one of the math library in programs that are `fast`.
pub(super) fn of_device(op: &Op) -> Option<MathFunction> {
    Some(match op {
        Op::Exp => MathFunction::Exp,
        Op::Exp2 => MathFunction::Exp2,
        Op::Log => MathFunction::Log,
        Op::Log2 => MathFunction::Log2,
        Op::Sin => MathFunction::Sin,
        Op::Cos => MathFunction::Cos,
        Op::Tan => MathFunction::Tan,
        Op::Asin => MathFunction::Asin,
        Op::Acos => MathFunction::Acos,
        Op::Atan => MathFunction::Atan,
        Op::Atan2 => MathFunction::Atan2,
        Op::Sinh => MathFunction::Sinh,
        Op::Cosh => MathFunction::Cosh,
        Op::Tanh => MathFunction::Tanh,
        Op::Pow => MathFunction::Pow,
        _ => return None,
    })
}

impl Builder {
    /// Lowers an operation of the kind [`Pure`](vyre_foundation::ir::ops::Kind::Pure). `ty` is what the operation is used
    /// for, `result` the type of what it gives.
    pub(super) fn pure(&mut self, op: &Op, ty: Type, result: Type, operands: &[Expr]) -> Expr {
        let algebraic = matches!(
            op,
            Op::Add
                | Op::Sub
                | Op::Mul
                | Op::Div
                | Op::Fma
                | Op::Min
                | Op::Max
                | Op::Eq
                | Op::Ne
                | Op::Lt
                | Op::Le
                | Op::Gt
                | Op::Ge
        );
        if !(algebraic && ty.is_float() && self.veil.is_some()) {
            return self.bare(op, ty, result, operands);
        }
        let operands: Vec<Expr> =
            operands.iter().enumerate().map(|(position, &operand)| self.apart(ty, position, operand)).collect();
        let value = self.bare(op, ty, result, &operands);
        if result == Type::Bool { value } else { self.hidden(ty, value) }
    }

    /// An operand of a float operation that the driver must not know, nor relate to the others: the first has a veil of its
    /// own, so that the same value twice does not look like that.
    pub(super) fn apart(&mut self, ty: Type, position: usize, operand: Expr) -> Expr {
        match self.veil {
            Some([others, first]) => self.veiled(ty, operand, if position == 0 { first } else { others }),
            None => operand,
        }
    }

    /// The result of a float operation, which the driver must not look into.
    pub(super) fn hidden(&mut self, ty: Type, value: Expr) -> Expr {
        match self.veil {
            Some([_, veil]) => self.veiled(ty, value, veil),
            None => value,
        }
    }

    /// An integer that was widened to 64 bits, which the driver must not see: Mesa's compares what it was before, and gets
    /// that wrong if it was shifted.
    fn hidden_wide(&mut self, ty: Type, value: Expr) -> Expr {
        let Some([_, veil]) = self.veil else { return value };
        let veil = self.resize(veil, Type::U64);
        let bits = if ty == Type::U64 { value } else { self.bitcast(value, Type::U64) };
        let bits = self.xor(bits, veil);
        if ty == Type::U64 { bits } else { self.bitcast(bits, ty) }
    }

    /// The same float, in a way that no compiler can see through: Mesa's takes `(a + b) - a` for `b`, and `a - a` for 0,
    /// unless SPIR-V forbids it for each operation, which naga cannot say.
    fn veiled(&mut self, ty: Type, value: Expr, veil: Expr) -> Expr {
        match ty {
            Type::F64 => {
                let bits = self.bitcast(value, Type::U64);
                let veil = self.resize(veil, Type::U64);
                let bits = self.xor(bits, veil);
                self.bitcast(bits, Type::F64)
            }
            Type::F16 => {
                let zero = self.u32(0);
                let never = self.ne(veil, zero);
                let nothing = self.zero(Type::F16);
                self.select(never, nothing, value)
            }
            _ => {
                let bits = self.bitcast(value, Type::U32);
                let bits = self.xor(bits, veil);
                self.bitcast(bits, Type::F32)
            }
        }
    }

    fn bare(&mut self, op: &Op, ty: Type, result: Type, operands: &[Expr]) -> Expr {
        let a = operands[0];
        let b = operands.get(1).copied().unwrap_or(a);
        let float = ty.is_float();
        match op {
            Op::Add => self.add(a, b),
            Op::Sub => self.sub(a, b),
            Op::Mul => self.mul(a, b),
            Op::MulHigh => self.mul_high(ty, a, b),
            Op::Div if float => self.binary(BinaryOperator::Divide, a, b),
            Op::Div => self.divide(BinaryOperator::Divide, ty, a, b),
            Op::Rem => self.divide(BinaryOperator::Modulo, ty, a, b),
            Op::Neg if float => self.negate(a),
            Op::Neg => {
                let zero = self.zero(ty);
                self.sub(zero, a)
            }
            Op::Abs if float => self.math(MathFunction::Abs, &[a]),
            Op::Abs => {
                let zero = self.zero(ty);
                let negative = self.lt(a, zero);
                let negated = self.sub(zero, a);
                self.select(negative, negated, a)
            }
            Op::Min if float => self.float_extreme(ty, a, b, false),
            Op::Max if float => self.float_extreme(ty, a, b, true),
            Op::Min if ty.bits() == 32 => self.math(MathFunction::Min, operands),
            Op::Max if ty.bits() == 32 => self.math(MathFunction::Max, operands),
            Op::Min => {
                let less = self.lt(a, b);
                self.select(less, a, b)
            }
            Op::Max => {
                let greater = self.gt(a, b);
                self.select(greater, a, b)
            }
            Op::Fma if self.emulate_fma => self.exact_fma(ty, operands),
            Op::Fma => self.math(MathFunction::Fma, operands),
            Op::Sqrt => self.math(MathFunction::Sqrt, operands),
            Op::Trunc if ty == Type::F64 => self.trunc_f64(a),
            Op::Floor if ty == Type::F64 => {
                let whole = self.trunc_f64(a);
                let above = self.gt(whole, a);
                let one = self.literal(1f64.into());
                let below = self.sub(whole, one);
                self.select(above, below, whole)
            }
            Op::Ceil if ty == Type::F64 => {
                let whole = self.trunc_f64(a);
                let below = self.lt(whole, a);
                let one = self.literal(1f64.into());
                let above = self.add(whole, one);
                self.select(below, above, whole)
            }
            Op::Floor => self.math(MathFunction::Floor, operands),
            Op::Ceil => self.math(MathFunction::Ceil, operands),
            Op::Trunc => self.math(MathFunction::Trunc, operands),
            Op::Round if ty == Type::F64 => self.round_f64(a),
            Op::Round => self.math(MathFunction::Round, operands),
            Op::And => self.and(a, b),
            Op::Or => self.or(a, b),
            Op::Xor if ty == Type::Bool => self.ne(a, b),
            Op::Xor => self.xor(a, b),
            Op::Not => self.not(a, ty),
            Op::Shl => {
                let count = self.below_width(ty, b);
                self.shl(a, count)
            }
            Op::Shr => {
                let count = self.below_width(ty, b);
                self.shr(a, count)
            }
            Op::RotateLeft => {
                let bits = self.as_unsigned(ty, a);
                let count = self.below_width(ty, b);
                let left = self.shl(bits, count);
                let zero = self.u32(0);
                let negated = self.sub(zero, count);
                let rest = self.below_width(ty, negated);
                let right = self.shr(bits, rest);
                let rotated = self.or(left, right);
                self.of_unsigned(ty, rotated)
            }
            Op::CountOnes => self.by_words(ty, a, MathFunction::CountOneBits),
            Op::LeadingZeros => self.by_words(ty, a, MathFunction::CountLeadingZeros),
            Op::TrailingZeros => self.by_words(ty, a, MathFunction::CountTrailingZeros),
            Op::ReverseBits => {
                let bits = self.as_unsigned(ty, a);
                let reversed = if ty.bits() == 64 {
                    let (low, high) = self.split(bits);
                    let low = self.math(MathFunction::ReverseBits, &[low]);
                    let high = self.math(MathFunction::ReverseBits, &[high]);
                    self.join(high, low)
                } else {
                    self.math(MathFunction::ReverseBits, &[bits])
                };
                self.of_unsigned(ty, reversed)
            }
            Op::ExtractBits => self.extract_bits(ty, operands),
            Op::InsertBits => self.insert_bits(ty, operands),
            Op::PackF16 => {
                let low = self.f32_to_half(a);
                let high = self.f32_to_half(b);
                let count = self.u32(16);
                let high = self.shl(high, count);
                self.or(low, high)
            }
            Op::UnpackF16Low => {
                let mask = self.u32(0xffff);
                let half = self.and(a, mask);
                self.half_to_f32(half)
            }
            Op::UnpackF16High => {
                let count = self.u32(16);
                let half = self.shr(a, count);
                self.half_to_f32(half)
            }
            Op::Eq => self.eq(a, b),
            Op::Ne if float && !planted::is(Bug::GpuNotEqual) => {
                let equal = self.eq(a, b);
                self.not(equal, Type::Bool)
            }
            Op::Ne => self.ne(a, b),
            Op::Lt => self.lt(a, b),
            Op::Le => self.binary(BinaryOperator::LessEqual, a, b),
            Op::Gt => self.gt(a, b),
            Op::Ge => self.ge(a, b),
            Op::Select if planted::is(Bug::GpuSelect) => self.select(a, operands[2], b),
            Op::Select => self.select(a, b, operands[2]),
            Op::Cast => self.cast(ty, result, a),
            Op::Bitcast if ty == result => a,
            Op::Bitcast => self.bitcast(a, result),
            // Functions of the math library are expanded before anything is lowered, or are those of the device.
            op => match of_device(op) {
                Some(function) => self.math(function, operands),
                None => unreachable!("`{}` is not a function of its operands, or is one of the library", op.row().name),
            },
        }
    }

    // Integers.

    fn as_unsigned(&mut self, ty: Type, value: Expr) -> Expr {
        if ty == unsigned(ty) { value } else { self.bitcast(value, unsigned(ty)) }
    }

    /// The number of type `ty` with these bits.
    fn of_unsigned(&mut self, ty: Type, value: Expr) -> Expr {
        if ty == unsigned(ty) { value } else { self.bitcast(value, ty) }
    }

    /// A number of type `ty` with this value.
    fn small(&mut self, ty: Type, value: u32) -> Expr {
        self.literal(Literal { ty, bits: u64::from(value) })
    }

    /// A shift count, modulo the width of `ty`.
    fn below_width(&mut self, ty: Type, count: Expr) -> Expr {
        if let Some(count) = self.known_u32(count) {
            return self.u32(count % ty.bits());
        }
        let mask = self.u32(if planted::is(Bug::GpuShiftMask) { 31 } else { ty.bits() - 1 });
        self.and(count, mask)
    }

    /// Low and high word of a u64.
    pub(super) fn split(&mut self, value: Expr) -> (Expr, Expr) {
        let low = self.resize(value, Type::U32);
        let count = self.u32(32);
        let high = self.shr(value, count);
        (low, self.resize(high, Type::U32))
    }

    /// The u64 with these words.
    pub(super) fn join(&mut self, low: Expr, high: Expr) -> Expr {
        let low = self.resize(low, Type::U64);
        let high = self.resize(high, Type::U64);
        let count = self.u32(32);
        let high = self.shl(high, count);
        self.or(low, high)
    }

    /// Counts bits. Devices count in words.
    fn by_words(&mut self, ty: Type, value: Expr, fun: MathFunction) -> Expr {
        let bits = self.as_unsigned(ty, value);
        if ty.bits() == 32 {
            return self.math(fun, &[bits]);
        }
        let (low, high) = self.split(bits);
        let (in_low, in_high) = (self.math(fun, &[low]), self.math(fun, &[high]));
        // Which word is counted only where the other has nothing.
        let (first, counted_first, counted_second) = match fun {
            MathFunction::CountLeadingZeros => (high, in_high, in_low),
            MathFunction::CountTrailingZeros => (low, in_low, in_high),
            _ => return self.add(in_low, in_high),
        };
        let zero = self.u32(0);
        let empty = self.eq(first, zero);
        let word = self.u32(32);
        let beyond = self.add(counted_second, word);
        self.select(empty, beyond, counted_first)
    }

    /// `x / 0 = x`, `x % 0 = 0`, and MIN by −1 wraps: all of them are a division by 1.
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
        let zero = self.zero(ty);
        let mut by_one = self.eq(b, zero);
        if is_signed(ty) {
            let minimum = self.literal(Literal { ty, bits: 1 << (ty.bits() - 1) });
            let minus_one = self.literal(Literal { ty, bits: u64::MAX >> (64 - ty.bits()) });
            let lowest = self.eq(a, minimum);
            let negated = self.eq(b, minus_one);
            let wraps = self.and(lowest, negated);
            by_one = self.or(by_one, wraps);
        }
        let one = self.small(ty, 1);
        let divisor = self.select(by_one, one, b);
        self.binary(op, a, divisor)
    }

    /// The high half of a product, from the four products of the operands' halves.
    fn mul_high(&mut self, ty: Type, a: Expr, b: Expr) -> Expr {
        let word = unsigned(ty);
        let (a_bits, b_bits) = (self.as_unsigned(ty, a), self.as_unsigned(ty, b));
        let half = self.u32(ty.bits() / 2);
        let mask = self.literal(Literal { ty: word, bits: (1 << (ty.bits() / 2)) - 1 });
        let (a_low, a_high) = (self.and(a_bits, mask), self.shr(a_bits, half));
        let (b_low, b_high) = (self.and(b_bits, mask), self.shr(b_bits, half));
        let low = self.mul(a_low, b_low);
        let carry = self.shr(low, half);
        let cross = self.mul(a_high, b_low);
        let first = self.add(cross, carry);
        let first_low = self.and(first, mask);
        let cross = self.mul(a_low, b_high);
        let second = self.add(cross, first_low);
        let high = self.mul(a_high, b_high);
        let carry = if planted::is(Bug::GpuCarry) { self.zero(word) } else { self.shr(first, half) };
        let high = self.add(high, carry);
        let carry = self.shr(second, half);
        let mut high = self.add(high, carry);
        if is_signed(ty) {
            // A negative number is its bits less 2^width.
            let zero = self.zero(ty);
            let nothing = self.zero(word);
            for (signed, other) in [(a, b_bits), (b, a_bits)] {
                let negative = self.lt(signed, zero);
                let excess = self.select(negative, other, nothing);
                high = self.sub(high, excess);
            }
        }
        self.of_unsigned(ty, high)
    }

    /// Cuts offset and count of a bit field to the width.
    fn bit_field(&mut self, ty: Type, offset: Expr, count: Expr) -> (Expr, Expr) {
        let width = self.u32(ty.bits());
        let offset = self.math(MathFunction::Min, &[offset, width]);
        let left = self.sub(width, offset);
        (offset, self.math(MathFunction::Min, &[count, left]))
    }

    fn extract_bits(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        let (offset, count) = self.bit_field(ty, operands[1], operands[2]);
        let width = self.u32(ty.bits());
        let unused = self.sub(width, count);
        let above = self.sub(unused, offset);
        let above = self.below_width(ty, above);
        let unused = self.below_width(ty, unused);
        let left = self.shl(operands[0], above);
        let field = self.shr(left, unused);
        let zero = self.u32(0);
        let empty = self.eq(count, zero);
        let nothing = self.zero(ty);
        self.select(empty, nothing, field)
    }

    fn insert_bits(&mut self, ty: Type, operands: &[Expr]) -> Expr {
        let word = unsigned(ty);
        let (offset, count) = self.bit_field(ty, operands[2], operands[3]);
        let (a, b) = (self.as_unsigned(ty, operands[0]), self.as_unsigned(ty, operands[1]));
        let width = self.u32(ty.bits());
        let unused = self.sub(width, count);
        let unused = self.below_width(ty, unused);
        let offset = self.below_width(ty, offset);
        let ones = self.literal(Literal { ty: word, bits: u64::MAX >> (64 - ty.bits()) });
        let mask = self.shr(ones, unused);
        let mask = self.shl(mask, offset);
        let field = self.shl(b, offset);
        let field = self.and(field, mask);
        let outside = self.not(mask, word);
        let rest = self.and(a, outside);
        let inserted = self.or(rest, field);
        let zero = self.u32(0);
        let empty = self.eq(count, zero);
        let result = self.select(empty, a, inserted);
        self.of_unsigned(ty, result)
    }

    // Floats.

    /// The bits of an f32 or f64.
    fn float_bits(&mut self, ty: Type, value: Expr) -> Expr {
        self.bitcast(value, unsigned(ty))
    }

    /// Whether the bits are those of a NaN.
    fn is_nan(&mut self, ty: Type, bits: Expr) -> Expr {
        let (word, magnitude, infinity) = match ty {
            Type::F64 => (Type::U64, u64::MAX >> 1, 0x7ff0_0000_0000_0000),
            _ => (Type::U32, 0x7fff_ffff, 0x7f80_0000),
        };
        let mask = self.literal(Literal { ty: word, bits: magnitude });
        let infinity = self.literal(Literal { ty: word, bits: infinity });
        let magnitude = self.and(bits, mask);
        self.gt(magnitude, infinity)
    }

    /// The smaller or larger float: a number rather than a NaN, and −0 below +0.
    fn float_extreme(&mut self, ty: Type, a: Expr, b: Expr, larger: bool) -> Expr {
        if ty == Type::F16 {
            // f32 holds every f16, and has bits that can be looked at.
            let (a, b) = (self.resize(a, Type::F32), self.resize(b, Type::F32));
            let extreme = self.float_extreme(Type::F32, a, b, larger);
            return self.resize(extreme, Type::F16);
        }
        let (a_bits, b_bits) = (self.float_bits(ty, a), self.float_bits(ty, b));
        let nan = self.is_nan(ty, if planted::is(Bug::GpuMinOfNan) { a_bits } else { b_bits });
        let before = if larger { self.gt(a, b) } else { self.lt(a, b) };
        let equal = self.eq(a, b);
        let top = self.literal(Literal { ty: unsigned(ty), bits: 1 << (ty.bits() - 1) });
        let sign = self.and(a_bits, top);
        let zero = self.zero(unsigned(ty));
        let preferred = if larger { self.eq(sign, zero) } else { self.ne(sign, zero) };
        let tie = self.and(equal, preferred);
        let first = self.or(nan, before);
        let first = self.or(first, tie);
        self.select(first, a, b)
    }

    /// An f64 without its fraction, by its bits: Mesa's software driver leaves numbers above 2^24 as they are, and loses the
    /// sign of zeros.
    fn trunc_f64(&mut self, value: Expr) -> Expr {
        let biased = self.exponent(value);
        let bias = self.literal(1023i32.into());
        let exponent = self.sub(biased, bias);
        let (zero, last) = (self.literal(0i32.into()), self.literal(52i32.into()));
        let fraction = self.sub(last, exponent);
        let fraction = self.bitcast(fraction, Type::U32);
        let count = self.below_width(Type::U64, fraction);
        let ones = self.literal(u64::MAX.into());
        let mask = self.shl(ones, count);
        let whole = self.ge(exponent, last);
        let mask = self.select(whole, ones, mask);
        let sign = self.literal((1u64 << 63).into());
        let small = self.lt(exponent, zero);
        let mask = self.select(small, sign, mask);
        let bits = self.float_bits(Type::F64, value);
        let bits = self.and(bits, mask);
        self.bitcast(bits, Type::F64)
    }

    /// Nearest integral f64, ties to even.
    fn round_f64(&mut self, value: Expr) -> Expr {
        let magnitude = self.math(MathFunction::Abs, &[value]);
        let whole = self.trunc_f64(magnitude);
        let fraction = self.sub(magnitude, whole);
        let half = self.literal(0.5f64.into());
        let halved = self.mul(whole, half);
        let even = self.trunc_f64(halved);
        let odd = self.gt(halved, even);
        let above = self.gt(fraction, half);
        let tie = self.eq(fraction, half);
        let tie = self.and(tie, odd);
        let up = self.or(above, tie);
        let one = self.literal(1f64.into());
        let next = self.add(whole, one);
        let rounded = self.select(up, next, whole);
        // The sign is kept, of zeros as well.
        let top = self.literal(Literal { ty: Type::U64, bits: 1 << 63 });
        let bits = self.float_bits(Type::F64, value);
        let sign = self.and(bits, top);
        let rounded = self.float_bits(Type::F64, rounded);
        let signed = self.or(rounded, sign);
        self.bitcast(signed, Type::F64)
    }

    /// The f16 nearest to an f32, ties to even, as the low bits of a u32.
    pub(super) fn f32_to_half(&mut self, value: Expr) -> Expr {
        let bits = self.bitcast(value, Type::U32);
        let sixteen = self.u32(16);
        let thirteen = self.u32(13);
        let sign = self.shr(bits, sixteen);
        let top = self.u32(0x8000);
        let sign = self.and(sign, top);
        let mask = self.u32(0x7fff_ffff);
        let magnitude = self.and(bits, mask);

        // Normal results: the exponent is 112 less; what rounding carries into it is right, too.
        let bias = self.u32(112 << 23);
        let rebased = self.sub(magnitude, bias);
        let kept = self.shr(rebased, thirteen);
        let one = self.u32(1);
        let odd = self.and(kept, one);
        let almost_half = self.u32(0xfff);
        let rounding = self.add(if planted::is(Bug::GpuHalfTies) { one } else { odd }, almost_half);
        let rounded = self.add(rebased, rounding);
        let normal = self.shr(rounded, thirteen);

        // Subnormal results: the significand is shifted to its place, and rounded there.
        let mantissa_mask = self.u32(0x007f_ffff);
        let hidden = self.u32(0x0080_0000);
        let mantissa = self.and(magnitude, mantissa_mask);
        let significand = self.or(mantissa, hidden);
        let twenty_three = self.u32(23);
        let exponent = self.shr(magnitude, twenty_three);
        let to_place = self.u32(126);
        let shift = self.sub(to_place, exponent);
        let most = self.u32(31);
        let shift = self.math(MathFunction::Min, &[shift, most]);
        let kept = self.shr(significand, shift);
        let less = self.sub(shift, one);
        let less = self.below_width(Type::U32, less);
        let half = self.shl(one, less);
        let whole = self.shl(one, shift);
        let below = self.sub(whole, one);
        let fraction = self.and(significand, below);
        let above = self.gt(fraction, half);
        let tie = self.eq(fraction, half);
        let odd = self.and(kept, one);
        let zero = self.u32(0);
        let is_odd = self.ne(odd, zero);
        let tie = self.and(tie, is_odd);
        let up = self.or(above, tie);
        let up = self.select(up, one, zero);
        let subnormal = self.add(kept, up);

        let least_normal = self.u32(113 << 23);
        let is_subnormal = self.lt(magnitude, least_normal);
        let finite = self.select(is_subnormal, subnormal, normal);
        // 65520 and above is nearer to infinity than to 65504.
        let overflow = self.u32(0x477f_f000);
        let is_infinite = self.ge(magnitude, overflow);
        let infinity = self.u32(0x7c00);
        let number = self.select(is_infinite, infinity, finite);
        let payload = self.shr(mantissa, thirteen);
        let quiet = self.u32(0x7e00);
        let nan = self.or(payload, quiet);
        let is_nan = self.is_nan(Type::F32, bits);
        let half = self.select(is_nan, nan, number);
        self.or(half, sign)
    }

    /// The f32 that the f16 in the low bits of a u32 stands for; the other bits are zero.
    pub(super) fn half_to_f32(&mut self, half: Expr) -> Expr {
        let sixteen = self.u32(16);
        let thirteen = self.u32(13);
        let top = self.u32(0x8000);
        let sign = self.and(half, top);
        let sign = self.shl(sign, sixteen);
        let mask = self.u32(0x7fff);
        let magnitude = self.and(half, mask);
        let shifted = self.shl(magnitude, thirteen);
        let bias = self.u32(112 << 23);
        let normal = self.add(shifted, bias);
        let special_bits = self.u32(0x7f80_0000);
        let special = self.or(shifted, special_bits);
        let count = self.resize(magnitude, Type::F32);
        let unit = self.literal(f32::from_bits(0x3380_0000).into());
        let subnormal = self.mul(count, unit);
        let subnormal = self.bitcast(subnormal, Type::U32);
        let least_normal = self.u32(0x0400);
        let is_subnormal = self.lt(magnitude, least_normal);
        let finite = self.select(is_subnormal, subnormal, normal);
        let infinity = self.u32(0x7c00);
        let is_special = self.ge(magnitude, infinity);
        let number = self.select(is_special, special, finite);
        let bits = self.or(number, sign);
        self.bitcast(bits, Type::F32)
    }

    // Conversions.

    fn cast(&mut self, from: Type, to: Type, value: Expr) -> Expr {
        if from == to {
            return value;
        }
        match (from, to) {
            (Type::Bool, _) => {
                let one = Op::Cast.row().evaluator(Type::Bool, to).expect("every type can be cast to");
                let one = self.literal(Literal { ty: to, bits: one(&[1]) });
                let zero = self.zero(to);
                self.select(value, one, zero)
            }
            (_, Type::Bool) => {
                let zero = self.zero(from);
                let equal = self.eq(value, zero);
                self.not(equal, Type::Bool)
            }
            _ if from.is_float() && to.is_float() => self.resize(value, to),
            _ if from.is_float() => self.float_to_integer(from, to, value),
            // f32 holds every integer that f16 can hold.
            (_, Type::F16) => {
                let wide = self.resize(value, Type::F32);
                self.resize(wide, Type::F16)
            }
            _ if to.is_float() => self.resize(value, to),
            _ => {
                // The width first, so that the sign of the source decides how it is extended.
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
                        self.hidden_wide(same_sign, wide)
                    }
                };
                if same_sign == to { sized } else { self.bitcast(sized, to) }
            }
        }
    }

    /// Truncates and saturates; NaN gives 0.
    fn float_to_integer(&mut self, from: Type, to: Type, value: Expr) -> Expr {
        if from == Type::F16 {
            let wide = self.resize(value, Type::F32);
            return self.float_to_integer(Type::F32, to, wide);
        }
        let bits = self.float_bits(from, value);
        let nan = self.is_nan(from, bits);
        // Within the range this is exact; below it, naga clamps to the minimum; above, to some large float.
        let converted = self.resize(value, to);
        let magnitude = to.bits() - u32::from(is_signed(to));
        let limit = 2f64.powi(magnitude as i32);
        let limit = match from {
            Type::F64 => self.literal(limit.into()),
            _ => self.literal((limit as f32).into()),
        };
        let above = self.ge(value, limit);
        let maximum = self.literal(Literal { ty: to, bits: u64::MAX >> (64 - magnitude) });
        let saturated =
            if planted::is(Bug::GpuSaturation) { converted } else { self.select(above, maximum, converted) };
        let zero = self.zero(to);
        if planted::is(Bug::GpuCastOfNan) { saturated } else { self.select(nan, zero, saturated) }
    }
}
