//! Programs of the tests.

use vyre_foundation::ir::Program;
use vyre_foundation::{Validated, text, validate};

/// Returns the program with a name.
pub(crate) fn program(name: &str) -> Validated<Program> {
    let module = text::parse(include_str!("programs.vyre")).and_then(validate::module).expect("valid programs");
    module.program(name).expect("it is there").clone()
}
