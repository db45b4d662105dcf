//! Packed bytes, normalized integers, `frexp` and `modf`, in plain integer arithmetic.
//!
//! naga has functions for some of these operations. Not all of its back ends implement them, and drivers round some
//! differently from the op table.

use naga::MathFunction;
use vyre_foundation::ir::{Literal, Pure, Type};

use super::build::{Builder, Expr, expr};

/// Highest bit of each byte.
const TOPS: u32 = 0x8080_8080;
/// The lower seven bits of each byte.
const REST: u32 = !TOPS;

impl Builder {
    // Bytes.

    /// Dot product of bytes, signed or unsigned for each operand, plus the last operand.
    pub(super) fn dot4(&mut self, operands: &[Expr], signed: [bool; 2], result: Type) -> Expr {
        let mut sum = operands[2];
        for lane in 0..4 {
            let [a, b] = [0, 1].map(|position| self.byte(operands[position], lane, signed[position], result));
            sum = expr!(self, add(sum, mul(a, b)));
        }
        sum
    }

    /// Extracts a byte of a word, signed or unsigned, as an i32 or u32.
    fn byte(&mut self, word: Expr, lane: u32, signed: bool, ty: Type) -> Expr {
        let word = if ty == Type::I32 { self.bitcast(word, ty) } else { word };
        if signed {
            let [up, down] = [24 - 8 * lane, 24].map(|count| self.u32(count));
            return expr!(self, shr(shl(word, up), down));
        }
        let mask = self.literal(Literal { ty, bits: 0xff });
        expr!(self, and(shr(word, [self.u32(8 * lane)]), mask))
    }

    /// Byte-wise sums: the low seven bits cannot carry into the next byte, and the highest bit is added without carry
    /// (SWAR).
    pub(super) fn add_bytes(&mut self, a: Expr, b: Expr) -> Expr {
        let [tops, rest] = [TOPS, REST].map(|mask| self.u32(mask));
        expr!(self, xor(add(and(a, rest), and(b, rest)), and(xor(a, b), tops)))
    }

    /// Byte-wise equality: 0xff if equal, otherwise 0.
    pub(super) fn equal_bytes(&mut self, a: Expr, b: Expr) -> Expr {
        let rest = self.u32(REST);
        let differ = self.xor(a, b);
        let differ = expr!(self, or(add(and(differ, rest), rest), differ));
        expr!(self, full_bytes(not(differ, [Type::U32])))
    }

    /// Byte-wise comparison: 0xff where the byte of `a` is less, otherwise 0.
    pub(super) fn less_bytes(&mut self, a: Expr, b: Expr, signed: bool) -> Expr {
        let [tops, rest] = [TOPS, REST].map(|mask| self.u32(mask));
        let [a, b] = [a, b].map(|bytes| if signed { self.xor(bytes, tops) } else { bytes });
        // If the highest bits agree, the borrow of the others decides, which the highest bit of the difference shows.
        let difference = expr!(self, sub(or(a, tops), and(b, rest)));
        let above = expr!(self, and(not(a, [Type::U32]), b));
        let differ = self.xor(a, b);
        let below = expr!(self, not(or(differ, difference), [Type::U32]));
        expr!(self, full_bytes(or(above, below)))
    }

    /// Expands the highest bit of each byte to 0xff or 0.
    fn full_bytes(&mut self, bytes: Expr) -> Expr {
        let ones = self.u32(0x0101_0101);
        expr!(self, mul(and(shr(bytes, 7), ones), 0xff))
    }

    /// Byte-wise minimum or maximum.
    pub(super) fn extreme_bytes(&mut self, a: Expr, b: Expr, signed: bool, larger: bool) -> Expr {
        let less = self.less_bytes(a, b, signed);
        let (chosen, other) = if larger { (b, a) } else { (a, b) };
        expr!(self, xor(other, and(xor(other, chosen), less)))
    }

    /// Byte-wise lookup in a table of 16 bytes.
    pub(super) fn lookup_bytes(&mut self, index: Expr, [t0, t1, t2, t3]: [Expr; 4]) -> Expr {
        let mut result = self.u32(0);
        for lane in 0..4 {
            let down = self.u32(8 * lane);
            let entry = expr!(self, and(shr(index, down), 15));
            let low = expr!(self, select(lt(entry, 4), t0, t1));
            let high = expr!(self, select(lt(entry, 12), t2, t3));
            let word = expr!(self, select(lt(entry, 8), low, high));
            let byte = expr!(self, and(shr(word, shl(and(entry, 3), 3)), 0xff));
            result = expr!(self, or(result, shl(byte, down)));
        }
        result
    }

    /// Packs integers with saturation to bytes.
    pub(super) fn pack_clamped(&mut self, operands: &[Expr], signed: bool) -> Expr {
        let bounds = [-128i32, 127].map(|bound| self.literal(bound.into()));
        self.fields(operands, |b, value| {
            if !signed {
                return expr!(b, min(value, 255));
            }
            let [least, most] = bounds;
            expr!(b, bitcast(max(min(value, most), least), [Type::U32]))
        })
    }

    /// Packs the low bits of `make(operand)` into fields of a word, the first one lowest.
    fn fields(&mut self, operands: &[Expr], mut make: impl FnMut(&mut Self, Expr) -> Expr) -> Expr {
        let bits = 32 / operands.len() as u32;
        let mask = self.u32(u32::MAX >> (32 - bits));
        let mut word = self.u32(0);
        for (position, &operand) in operands.iter().enumerate() {
            let (value, up) = (make(self, operand), self.u32(bits * position as u32));
            word = expr!(self, or(word, shl(and(value, mask), up)));
        }
        word
    }

    // Normalized integers.

    /// Packs floats as normalized integers.
    pub(super) fn pack_norm(&mut self, operands: &[Expr], signed: bool) -> Expr {
        let bits = 32 / operands.len() as u32 - u32::from(signed);
        self.fields(operands, |b, value| b.norm(value, bits, signed))
    }

    /// Converts a float to a normalized integer. With magnitude `m × 2^-(k + 1)` and `s = 2^bits − 1`, the result is
    /// half of `m × s >> k`, rounded up; `m × s` takes two words. A negative number with fraction ½ is rounded towards
    /// zero.
    fn norm(&mut self, value: Expr, bits: u32, signed: bool) -> Expr {
        let value = self.bitcast(value, Type::U32);
        let nan = self.is_nan(Type::F32, value);
        let magnitude = expr!(self, min(and(value, 0x7fff_ffff), [self.u32(1f32.to_bits())]));
        let m = expr!(self, or(and(magnitude, 0x007f_ffff), 0x0080_0000));
        let k = expr!(self, sub(149, shr(magnitude, 23)));
        let negative = self.shr_by(value, 31);

        let (high, shifted) = (self.shr_by(m, 32 - bits), expr!(self, shl(m, [self.u32(bits)])));
        let (low, borrow) = (self.sub(shifted, m), self.lt(shifted, m));
        let high = expr!(self, sub(high, select(borrow, 1, 0)));
        let (high, low) = if signed {
            let borrow = self.lt(low, negative);
            (expr!(self, sub(high, select(borrow, 1, 0))), self.sub(low, negative))
        } else {
            (high, low)
        };
        let word = Type::U32;
        let near = expr!(self, or(shr(low, below_width(word, k)), shl(high, below_width(word, sub(32, k)))));
        let far = expr!(self, shr(high, min(sub(k, 32), 31)));
        let halves = expr!(self, select(lt(k, 32), near, far));
        let rounded = expr!(self, shr(add(halves, 1), 1));
        if signed {
            let result = expr!(self, select(ne(negative, 0), sub(0, rounded), rounded));
            expr!(self, select(nan, 0, result))
        } else {
            expr!(self, select(or(nan, ne(negative, 0)), 0, rounded))
        }
    }

    fn shr_by(&mut self, value: Expr, count: u32) -> Expr {
        let count = self.u32(count);
        self.shr(value, count)
    }

    /// Unpacks a normalized integer from the fields of a word.
    pub(super) fn unpack_norm(&mut self, operands: &[Expr], fields: u32, signed: bool) -> Expr {
        let bits = 32 / fields;
        let [last, size, rest] = [fields - 1, bits.ilog2(), 32 - bits].map(|number| self.u32(number));
        let (word, lane) = (operands[0], operands[1]);
        let offset = expr!(self, shl(and(lane, last), size));
        let largest = (1i32 << (bits - u32::from(signed))) - 1;
        let field = if signed {
            let field = expr!(self, shr(shl(bitcast(word, [Type::I32]), sub(rest, offset)), rest));
            expr!(self, max(field, [self.literal((-largest).into())]))
        } else {
            expr!(self, shr(shl(word, sub(rest, offset)), rest))
        };
        let (field, largest) = (self.resize(field, Type::F32), self.literal((largest as f32).into()));
        self.pure(Pure::Div, Type::F32, Type::F32, &[field, largest])
    }

    // Parts of floats.

    /// Fraction in [½, 1), and exponent.
    pub(super) fn frexp(&mut self, ty: Type, value: Expr) -> [Expr; 2] {
        if ty == Type::F16 {
            // f32 represents every f16 as a normal number.
            let wide = self.resize(value, Type::F32);
            let [fraction, exponent] = self.frexp(Type::F32, wide);
            return [self.resize(fraction, Type::F16), exponent];
        }
        let (word, width, bits_of_fraction) = layout(ty);
        let constant = |b: &mut Self, bits: u64| b.literal(Literal { ty: word, bits });
        let bias = (1 << (width - 2 - bits_of_fraction)) - 1;
        let bits = self.bitcast(value, word);
        let sign = self.and_with(word, bits, 1 << (width - 1));
        let magnitude = self.xor(bits, sign);
        let field = expr!(self, shr(magnitude, [self.u32(bits_of_fraction)]));
        let field = if word == Type::U64 { self.resize(field, Type::U32) } else { field };

        // A subnormal is shifted until its highest bit is at the position of the implicit one.
        let zeros = self.by_words(word, magnitude, MathFunction::CountLeadingZeros);
        let missing = expr!(self, sub(zeros, [self.u32(width - 1 - bits_of_fraction)]));
        let shift = expr!(self, select(eq(field, 0), missing, 0));
        let shifted = expr!(self, shl(magnitude, below_width(word, shift)));
        let significand = self.and_with(word, shifted, (1 << bits_of_fraction) - 1);
        let half = constant(self, (bias - 1) << bits_of_fraction);
        let fraction = expr!(self, or(or(sign, half), significand));
        let exponent = expr!(self, sub(max(field, 1), shift));
        let exponent = expr!(self, bitcast(sub(exponent, [self.u32(bias as u32 - 1)]), [Type::I32]));

        let (zero, infinity) = (self.zero(word), constant(self, (2 * bias + 1) << bits_of_fraction));
        let special = expr!(self, or(eq(magnitude, zero), ge(magnitude, infinity)));
        let fraction = expr!(self, bitcast(select(special, bits, fraction), ty));
        [fraction, expr!(self, select(special, zero([Type::I32]), exponent))]
    }

    /// Fractional part, with the sign of the number. For a magnitude below 1 it is the number itself, which may be
    /// subnormal.
    pub(super) fn modf_fraction(&mut self, ty: Type, value: Expr) -> Expr {
        if ty == Type::F16 {
            let wide = self.resize(value, Type::F32);
            let fraction = self.modf_fraction(Type::F32, wide);
            return self.resize(fraction, Type::F16);
        }
        let (word, width, bits_of_fraction) = layout(ty);
        let bias = (1 << (width - 2 - bits_of_fraction)) - 1;
        let [one, infinity] =
            [bias, 2 * bias + 1].map(|exponent| self.literal(Literal { ty: word, bits: exponent << bits_of_fraction }));
        let bits = self.bitcast(value, word);
        let sign = self.and_with(word, bits, 1 << (width - 1));
        let magnitude = self.xor(bits, sign);
        let whole = self.pure(Pure::Trunc, ty, ty, &[value]);
        let difference = self.pure(Pure::Sub, ty, ty, &[value, whole]);
        let difference = self.bitcast(difference, word);
        let difference = self.and_with(word, difference, (1 << (width - 1)) - 1);
        let fraction = expr!(self, or(select(eq(magnitude, infinity), zero(word), difference), sign));
        expr!(self, bitcast(select(lt(magnitude, one), bits, fraction), ty))
    }

    fn and_with(&mut self, word: Type, value: Expr, bits: u64) -> Expr {
        let mask = self.literal(Literal { ty: word, bits });
        self.and(value, mask)
    }
}

/// Unsigned integer type of an f32 or f64, its width, and the width of the fraction.
fn layout(ty: Type) -> (Type, u32, u32) {
    if ty == Type::F64 { (Type::U64, 64, 52) } else { (Type::U32, 32, 23) }
}
