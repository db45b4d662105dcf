//! The one error of this crate.

use crate::diagnostics::Diagnostics;
use crate::ir::{Element, Type};

/// What can go wrong before a program reaches a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text could not be read; every mistake is listed.
    #[error("{0}")]
    Text(Diagnostics),
    /// The program breaks rules of the IR; every violation is listed.
    #[error("{0}")]
    Invalid(Diagnostics),
    /// A builder was used wrongly.
    #[error("{location}: {mistake}")]
    Build {
        /// Where in the caller's source.
        location: &'static std::panic::Location<'static>,
        /// What was wrong.
        mistake: String,
    },
    /// A specialization constant that the program does not have.
    #[error("there is no constant named `{name}`")]
    UnknownConstant {
        /// The name that was given.
        name: String,
        /// The constants there are.
        known: Vec<String>,
    },
    /// A specialization constant of another type.
    #[error("constant `{name}` is {declared}, but the value given is {given}")]
    ConstantType {
        /// The constant.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    },
    /// A value that is not of the element type it is for.
    #[error("`{text}` is not a value of type {element}")]
    NotAValue {
        /// What was given.
        text: String,
        /// The type it should have.
        element: Element,
    },
    /// A generator of data, such as `zeros:N`, that cannot be understood.
    #[error("`{text}`: {reason}")]
    Fill {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More data than can be addressed.
    #[error("{elements} elements of type {element} are more than an object can hold")]
    TooLarge {
        /// How many were asked for.
        elements: u64,
        /// Their type.
        element: Element,
    },
}

impl Error {
    /// The stable code. For text and validation errors, that of the first one.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Text(diagnostics) | Error::Invalid(diagnostics) => diagnostics.first_code(),
            Error::Build { .. } => "F001",
            Error::UnknownConstant { .. } => "F002",
            Error::ConstantType { .. } => "F003",
            Error::NotAValue { .. } => "F004",
            Error::Fill { .. } => "F005",
            Error::TooLarge { .. } => "F006",
        }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            Error::Text(_) | Error::Invalid(_) => "each error above says how to fix it".into(),
            Error::Build { .. } => "change the builder call at that place".into(),
            Error::UnknownConstant { known, .. } if known.is_empty() => "the program declares no constants".into(),
            Error::UnknownConstant { known, .. } => format!("the program declares: {}", known.join(", ")),
            Error::ConstantType { declared, .. } => format!("give a {declared}"),
            Error::NotAValue { element, .. } => {
                let example = if element.value_type().is_float() { "1.5, -2e3, inf or nan" } else { "7 or 0xff" };
                format!("write a value that {element} can hold, such as {example}")
            }
            Error::Fill { .. } => "write 1,2,3 or zeros:N, iota:N, random:N:SEED".into(),
            Error::TooLarge { .. } => "an object holds fewer than 2^32 elements; bind less".into(),
        }
    }
}
