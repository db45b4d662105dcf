//! The programs of the tests.

use vyre_foundation::ir::Program;
use vyre_foundation::{Validated, text, validate};

/// One of them, by its name.
pub(crate) fn program(name: &str) -> Validated<Program> {
    let programs = text::parse(include_str!("programs.vyre")).and_then(validate::module).expect("valid programs");
    programs.into_iter().find(|program| program.name == name).expect("it is there")
}
