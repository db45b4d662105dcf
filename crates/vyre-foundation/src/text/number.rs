//! Parsing of literals.

use half::f16;

use crate::diagnostics::Fault;
use crate::ir::{Literal, Scalar, Type};

/// Reads a literal: `7` (u32), `-7i32`, `0xffu64`, `1.5` (f32), `1.5f64`, `true`.
///
/// # Errors
/// [`Fault::BadNumber`] if it is not a number, or does not fit its type.
pub fn parse_literal(text: &str) -> Result<Literal, Fault> {
    match text {
        "true" => return Ok(true.into()),
        "false" => return Ok(false.into()),
        _ => {}
    }
    let bad = |reason| Fault::BadNumber { text: text.into(), reason };
    let (digits, suffix) = split_suffix(text);
    let hexadecimal = digits.trim_start_matches('-').starts_with("0x");
    let fractional = !hexadecimal && digits.contains(['.', 'e', 'E']);
    let ty = suffix.unwrap_or(if fractional { Type::F32 } else { Type::U32 });
    parse_as(digits, ty).map_err(bad)
}

/// Reads digits without a suffix as a value of a type.
pub(crate) fn parse_as(digits: &str, ty: Type) -> Result<Literal, &'static str> {
    let plain: String = digits.chars().filter(|&c| c != '_').collect();
    let literal = match ty {
        Type::F32 => float::<f32>(&plain),
        Type::F64 => float::<f64>(&plain),
        // A decimal printed from an f16 is exact in f32, so double rounding is innocuous.
        Type::F16 => float::<f32>(&plain).map(|value| f16::from_f32(f32::from_bits(value.bits as u32)).into()),
        Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64 => return integer(&plain, ty),
    }?;
    // Infinities and NaNs are accepted by name (which contains an `n`), not as the result of overflow.
    if literal.is_finite() || plain.contains(['n', 'N']) { Ok(literal) } else { Err(OUT_OF_RANGE) }
}

const OUT_OF_RANGE: &str = "it is out of the range of its type";

/// Splits `1u64` into `1` and u64. In hexadecimal numbers, `f32` is digits.
fn split_suffix(text: &str) -> (&str, Option<Type>) {
    let hexadecimal = text.trim_start_matches('-').starts_with("0x");
    let types = Type::ALL.into_iter().filter(|ty| *ty != Type::Bool && !(hexadecimal && ty.is_float()));
    for ty in types {
        if let Some(digits) = text.strip_suffix(ty.name()) {
            return (digits, Some(ty));
        }
    }
    (text, None)
}

fn float<T: std::str::FromStr + Scalar + Into<Literal>>(digits: &str) -> Result<Literal, &'static str> {
    digits.parse::<T>().map(Into::into).map_err(|_| "it is not a decimal float")
}

fn integer(digits: &str, ty: Type) -> Result<Literal, &'static str> {
    let (negative, magnitude) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    let parsed = match magnitude.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
        None => magnitude.parse::<u64>(),
    };
    let magnitude = match parsed {
        Ok(magnitude) if !digits.contains('+') => i128::from(magnitude),
        Ok(_) => return Err("a plus sign is not allowed"),
        Err(error) if matches!(error.kind(), std::num::IntErrorKind::PosOverflow) => {
            return Err(OUT_OF_RANGE);
        }
        Err(_) => return Err("it has characters that are not digits"),
    };
    let value = if negative { -magnitude } else { magnitude };
    match ty {
        Type::I32 => i32::try_from(value).map(Into::into).map_err(|_| OUT_OF_RANGE),
        Type::U32 => u32::try_from(value).map(Into::into).map_err(|_| OUT_OF_RANGE),
        Type::I64 => i64::try_from(value).map(Into::into).map_err(|_| OUT_OF_RANGE),
        Type::U64 => u64::try_from(value).map(Into::into).map_err(|_| OUT_OF_RANGE),
        Type::Bool | Type::F32 | Type::F64 | Type::F16 => Err("it is not an integer"),
    }
}
