//! Helper functions of the evaluators of the op table.

use half::f16;

use super::ops::Eval;
use super::types::{Scalar, Type};

/// Minimum of two floats (IEEE 754 `minimumNumber`): prefers a number to a NaN, and orders −0 below +0.
macro_rules! lesser {
    ($a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        let tie = a == b && a.is_sign_negative();
        if b.is_nan() || a < b || tie { a } else { b }
    }};
}
pub(super) use lesser;

/// Clamps a bit field to the width of its integer.
pub(super) fn field(offset: u32, count: u32, width: u32) -> (u32, u32) {
    let offset = offset.min(width);
    (offset, count.min(width - offset))
}

/// Logical right shift of signed and unsigned integers.
pub(super) trait UnsignedShift {
    fn unsigned_shr(self, count: u32) -> Self;
}

macro_rules! unsigned_shift {
    ($($ty:ty, $unsigned:ty;)*) => { $(
        impl UnsignedShift for $ty {
            fn unsigned_shr(self, count: u32) -> Self {
                (self as $unsigned >> count) as $ty
            }
        }
    )* };
}
unsigned_shift! { i32, u32; u32, u32; i64, u64; u64, u64; }

/// The float methods of `f32` and `f64`, for `f16`.
///
/// All but `mul_add` are computed in f32: with 24 ≥ 2 × 11 + 2 bits, double rounding is innocuous.
pub(super) trait F16Math {
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn round_ties_even(self) -> Self;
    fn mul_add(self, b: Self, c: Self) -> Self;
}

macro_rules! through_f32 {
    ($($function:ident)*) => { $(
        fn $function(self) -> f16 {
            f16::from_f32(self.to_f32().$function())
        }
    )* };
}

impl F16Math for f16 {
    fn abs(self) -> f16 {
        f16::from_bits(self.to_bits() & 0x7fff)
    }
    through_f32! { sqrt floor ceil trunc round_ties_even }
    fn mul_add(self, b: f16, c: f16) -> f16 {
        // The product is exact in f64. The sum is inexact only where the product is far above the largest f16, or so far below the
        // addend that no tie of f16 is near; so double rounding is innocuous.
        f16_from_f64(self.to_f64() * b.to_f64() + c.to_f64())
    }
}

/// Scaling by a power of two, rounded once.
pub(super) trait Scale {
    fn ldexp(self, exponent: i32) -> Self;
}

/// A power of two that is a normal f64.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Scale for f16 {
    fn ldexp(self, exponent: i32) -> f16 {
        f16_from_f64(self.to_f64() * power(exponent.clamp(-64, 64)))
    }
}

impl Scale for f32 {
    /// The product is exact in f64.
    fn ldexp(self, exponent: i32) -> f32 {
        (f64::from(self) * power(exponent.clamp(-300, 300))) as f32
    }
}

impl Scale for f64 {
    /// Only the last product rounds. If an earlier product is subnormal and rounds, the last one is 0 in any case.
    fn ldexp(self, exponent: i32) -> f64 {
        let exponent = exponent.clamp(-2200, 2200);
        let last = exponent.clamp(-1022, 1023);
        let rest = exponent - last;
        let first = rest.clamp(-1022, 1023);
        self * power(first) * power(rest - first) * power(last)
    }
}

/// Decomposition into fraction and exponent, and into integral and fractional part.
pub(super) trait Split: Sized {
    /// `(f, e)` with `self = f × 2^e` and ½ ≤ |f| < 1, or `(self, 0)` for zeros, infinities and NaNs.
    fn frexp(self) -> (Self, i32);
    fn modf_fraction(self) -> Self;
}

macro_rules! split {
    ($($ty:ident, $exponent_bits:literal, $fraction:literal, $half:literal;)*) => { $(
        impl Split for $ty {
            fn frexp(self) -> ($ty, i32) {
                let magnitude = self.to_bits() & !(-$ty::from_bits(0)).to_bits();
                if magnitude == 0 || magnitude >= $ty::INFINITY.to_bits() {
                    return (self, 0);
                }
                let sign = self.to_bits() ^ magnitude;
                // A subnormal is normalized: its highest bit is shifted to the position of the implicit bit.
                let shift = match magnitude >> $fraction {
                    0 => magnitude.leading_zeros() - $exponent_bits,
                    _ => 0,
                };
                let exponent = ((magnitude >> $fraction) as i32).max(1) - shift as i32 - $half;
                let significand = (magnitude << shift) & ((1 << $fraction) - 1);
                ($ty::from_bits(sign | ($half << $fraction) | significand), exponent)
            }

            fn modf_fraction(self) -> $ty {
                let infinite = self.is_infinite();
                let fraction = if infinite { $ty::from_bits(0) } else { self - self.trunc() };
                fraction.copysign(self)
            }
        }
    )* };
}
split! {
    f16, 5, 10, 14;
    f32, 8, 23, 126;
    f64, 11, 52, 1022;
}

/// Packs `floor(½ + scale × clamp(x, least, 1))` of each float into the fields of a word. In f64, no rounding changes a result: if the
/// scaled number is at least ¼, it and the sum have at most 24 + 16 + 2 bits.
pub(super) fn pack_norm<const N: usize>(values: [f32; N], least: f64, scale: u32) -> u32 {
    let bits = 32 / N;
    let field = |value: f32| {
        let value = if value.is_nan() { 0.0 } else { f64::from(value).clamp(least, 1.0) };
        (0.5 + value * f64::from(scale)).floor() as i64 as u32 & (u32::MAX >> (32 - bits))
    };
    values.into_iter().rev().fold(0, |word: u32, value| word.unbounded_shl(bits as u32) | field(value))
}

/// Applies a function to the bytes of two words, byte by byte.
pub(super) fn bytes(a: u32, b: u32, function: impl Fn(u8, u8) -> u8) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    u32::from_le_bytes(std::array::from_fn(|lane| function(a[lane], b[lane])))
}

/// Dot product of four bytes plus `sum`, wrapping.
pub(super) fn dot4<A: Into<i32>, B: Into<i32>>(a: [A; 4], b: [B; 4], sum: i32) -> i32 {
    a.into_iter().zip(b).fold(sum, |sum, (a, b)| sum.wrapping_add(a.into() * b.into()))
}

/// Looks up the low nibble of each byte of `index` in a table of 16 bytes.
pub(super) fn lookup(index: u32, table: [u32; 4]) -> u32 {
    let table = table.map(u32::to_le_bytes);
    u32::from_le_bytes(index.to_le_bytes().map(|entry| table.as_flattened()[usize::from(entry % 16)]))
}

/// Converts with a single rounding, to nearest even, by rounding to odd in f32 first.
fn f16_from_f64(value: f64) -> f16 {
    let nearest = value as f32;
    if !nearest.is_finite() || f64::from(nearest) == value {
        return f16::from_f32(nearest);
    }
    // Round to odd: truncate, then set the last bit.
    let bits = nearest.to_bits();
    let truncated = if f64::from(nearest).abs() > value.abs() { bits - 1 } else { bits };
    f16::from_f32(f32::from_bits(truncated | 1))
}

/// Conversion of a number to another type.
trait CastFrom<F> {
    fn cast_from(from: F) -> Self;
}

// Rust's `as` has the semantics of `cast`: wrapping between integers, rounding to nearest even to floats, saturating from floats to
// integers with 0 for NaN.
macro_rules! casts {
    ($($from:ident => $($to:ident)*;)*) => { $( $(
        impl CastFrom<$from> for $to {
            fn cast_from(from: $from) -> $to {
                from as $to
            }
        }
    )* )* };
}
casts! {
    i32 => i32 u32 i64 u64 f32 f64;
    u32 => i32 u32 i64 u64 f32 f64;
    i64 => i32 u32 i64 u64 f32 f64;
    u64 => i32 u32 i64 u64 f32 f64;
    f32 => i32 u32 i64 u64 f32 f64;
    f64 => i32 u32 i64 u64 f32 f64;
}

macro_rules! casts_of_bool_and_f16 {
    ($($ty:ident)*) => { $(
        impl CastFrom<bool> for $ty {
            fn cast_from(from: bool) -> $ty {
                u8::from(from) as $ty
            }
        }
        impl CastFrom<$ty> for bool {
            fn cast_from(from: $ty) -> bool {
                from != 0 as $ty
            }
        }
        impl CastFrom<f16> for $ty {
            fn cast_from(from: f16) -> $ty {
                from.to_f64() as $ty
            }
        }
        impl CastFrom<$ty> for f16 {
            // An integer that is inexact in f64 is far above the largest f16, so this rounds once.
            fn cast_from(from: $ty) -> f16 {
                f16_from_f64(from as f64)
            }
        }
    )* };
}
casts_of_bool_and_f16! { i32 u32 i64 u64 f32 f64 }

impl CastFrom<bool> for bool {
    fn cast_from(from: bool) -> bool {
        from
    }
}
impl CastFrom<f16> for f16 {
    fn cast_from(from: f16) -> f16 {
        from
    }
}
impl CastFrom<bool> for f16 {
    fn cast_from(from: bool) -> f16 {
        if from { f16::ONE } else { f16::ZERO }
    }
}
impl CastFrom<f16> for bool {
    fn cast_from(from: f16) -> bool {
        from != f16::ZERO
    }
}

/// Evaluates an expression with a name bound to the Rust type of a `Type`.
macro_rules! with_rust_type {
    ($ty:expr, $name:ident => $body:expr) => {
        with_rust_type!(@ $ty, $name => $body; Bool bool, I32 i32, U32 u32, F32 f32, I64 i64, U64 u64, F64 f64, F16 f16)
    };
    (@ $ty:expr, $name:ident => $body:expr; $($variant:ident $rust:ident),*) => {
        match $ty { $(
            Type::$variant => {
                type $name = $rust;
                $body
            }
        )* }
    };
}

/// The evaluator of `cast`.
pub(super) fn cast(from: Type, to: Type) -> Option<Eval> {
    fn eval<F: Scalar, T: Scalar + CastFrom<F>>(operands: &[u64]) -> u64 {
        T::cast_from(F::from_bits(operands[0])).to_bits()
    }
    Some(with_rust_type!(from, From => with_rust_type!(to, To => eval::<From, To> as Eval)))
}

/// The evaluator of `bitcast`.
pub(super) fn bitcast(from: Type, to: Type) -> Option<Eval> {
    (from.bits() == to.bits()).then_some(|operands: &[u64]| operands[0])
}
