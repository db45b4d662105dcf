//! Data notation for the contents of buffers: `1,2,3`, `zeros:N`, `iota:N`, `random:N:SEED`.

use crate::Error;
use crate::ir::{Element, Literal, Type};
use crate::text::parse_literal;

/// Contents of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// A list of values.
    Values(Vec<String>),
    /// `n` zeros.
    Zeros(u64),
    /// The first `n` numbers 0, 1, 2, …, wrapping at the end of the element type.
    Iota(u64),
    /// `n` pseudo-random values of a seed (SplitMix64): all bits of integers, floats in [0, 1).
    Random(u64, u64),
}

impl Fill {
    /// Parses the notation.
    ///
    /// # Errors
    /// [`Error::Fill`] if a count or seed is missing or not a number.
    pub fn parse(text: &str) -> Result<Fill, Error> {
        let error = |reason| Error::Fill { text: text.into(), reason };
        let number = |part: Option<&str>, reason| match part.map(str::parse::<u64>) {
            Some(Ok(number)) => Ok(number),
            _ => Err(error(reason)),
        };
        let mut parts = text.split(':');
        let head = parts.next().unwrap_or_default();
        let fill = match head {
            "zeros" => Fill::Zeros(number(parts.next(), "the number of zeros is missing or not a number")?),
            "iota" => Fill::Iota(number(parts.next(), "the number of elements is missing or not a number")?),
            "random" => {
                let count = number(parts.next(), "the number of elements is missing or not a number")?;
                Fill::Random(count, number(parts.next(), "the seed is missing or not a number")?)
            }
            _ if text.is_empty() => Fill::Values(Vec::new()),
            _ => {
                let values = text.split(',').map(|value| value.trim().to_owned()).collect();
                return Ok(Fill::Values(values));
            }
        };
        match parts.next() {
            None => Ok(fill),
            Some(_) => Err(error("there is more after the last number")),
        }
    }

    /// The bytes for elements of a type.
    ///
    /// # Errors
    /// [`Error::NotAValue`] if a listed value is out of the range of the type, [`Error::TooLarge`] if there are too many.
    pub fn bytes(&self, element: Element) -> Result<Vec<u8>, Error> {
        let count = match self {
            Fill::Values(values) => values.len() as u64,
            Fill::Zeros(count) | Fill::Iota(count) | Fill::Random(count, _) => *count,
        };
        let too_large = Error::TooLarge { elements: count, element };
        if u32::try_from(count).is_err() {
            return Err(too_large);
        }
        let size = count as usize * element.size();
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(size).is_err() {
            return Err(too_large);
        }
        bytes.resize(size, 0);
        let mut elements = bytes.chunks_exact_mut(element.size());
        match self {
            Fill::Values(values) => {
                for (text, bytes) in values.iter().zip(elements) {
                    element.write(parse_value(text, element)?.bits, bytes);
                }
            }
            Fill::Zeros(_) => {}
            Fill::Iota(_) => {
                for (index, bytes) in elements.enumerate() {
                    element.write(number(index as u64, element.value_type()).bits, bytes);
                }
            }
            Fill::Random(_, seed) => {
                let mut state = *seed;
                elements.by_ref().for_each(|bytes| element.write(random(&mut state, element), bytes));
            }
        }
        Ok(bytes)
    }
}

/// Parses a value of an element type: an integer in its range, or a float in the syntax of Rust's `parse`, including `inf` and `nan`.
///
/// # Errors
/// [`Error::NotAValue`] if it is not one.
pub fn parse_value(text: &str, element: Element) -> Result<Literal, Error> {
    let ty = element.value_type();
    let literal = if ty.is_float() {
        crate::text::parse_digits(text, ty).ok()
    } else {
        // A suffix must name the type of the element.
        parse_literal(text).ok().filter(|literal| literal.ty == ty).or_else(|| crate::text::parse_digits(text, ty).ok())
    };
    literal
        // The nearest value, as for the other floats.
        .map(|literal| if element == Element::BF16 { element.truncate(literal) } else { literal })
        // Values that a store would truncate are rejected.
        .filter(|literal| element.holds(*literal))
        .ok_or_else(|| Error::NotAValue { text: text.into(), element })
}

/// An index as a value of a type.
fn number(index: u64, ty: Type) -> Literal {
    match ty {
        Type::F32 => (index as f32).into(),
        Type::F64 => (index as f64).into(),
        Type::F16 => half::f16::from_f32(index as f32).into(),
        Type::I32 => (index as i32).into(),
        Type::U32 | Type::Bool => (index as u32).into(),
        Type::I64 => (index as i64).into(),
        Type::U64 => index.into(),
    }
}

/// The next value of the sequence (SplitMix64), as bits of a type.
fn random(state: &mut u64, element: Element) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    let literal: Literal = match element.value_type() {
        // As many bits as stay below 1 when they are rounded.
        Type::F32 if element == Element::BF16 => ((bits >> 56) as f32 / 256.0).into(),
        Type::F32 => ((bits >> 40) as f32 / (1u32 << 24) as f32).into(),
        Type::F64 => ((bits >> 11) as f64 / (1u64 << 53) as f64).into(),
        Type::F16 => half::f16::from_f32((bits >> 53) as f32 / 2048.0).into(),
        Type::I32 => (bits as i32).into(),
        Type::U32 | Type::Bool => (bits as u32).into(),
        Type::I64 => (bits as i64).into(),
        Type::U64 => bits.into(),
    };
    literal.bits
}
