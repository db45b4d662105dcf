//! Text format, `.vyre`: parser and printer.
//!
//! ```text
//! module    = { program | pipeline }
//! program   = "program" NAME attribute* "{" { declaration | statement } "}"
//! attribute = "workgroup" "(" sizes ")" | "launch" "(" sizes ")" | "fast"  sizes: one to three integers
//!
//! pipeline  = "pipeline" NAME [ "budget" "(" BYTES ")" ] "{" { buffer | run } "}"
//! buffer    = ( "in" | "out" | "inout" | "transient" ) NAME ":" "[" ELEMENT ";" LENGTH "]"
//! run       = "run" PROGRAM ( "grid" | "elements" ) "(" sizes ")" { OBJECT "=" ( BUFFER | literal ) "," … }
//!
//! declaration = ( "read" | "write" | "read_write" ) [ "atomic" ] NAME ":" "[" ELEMENT [ ";" LENGTH ] "]"
//!             | ( "workgroup" | "private" ) [ "atomic" ] NAME ":" "[" ELEMENT ";" LENGTH "]"
//!             | "uniform" NAME ":" ELEMENT [ "=" literal ]
//!             | "const" NAME ":" TYPE "=" literal
//!
//! statement = [ %a "," … "=" ] operation
//! operation = OP operand "," …                                            most operations
//!           | ( "cast" | "bitcast" ) operand "to" TYPE
//!           | OP "." ( "x" | "y" | "z" )                                  global_id.x
//!           | OP NAME [ "[" operand "]" ] "," operand "," …               load, store, length, atomics
//!           | "print" STRING "," operand "," …
//!           | "if" operand [ results ] block [ "else" block ]
//!           | "switch" operand [ results ] "{" { "case" literal block } "default" block "}"
//!           | "loop" [ "(" %p "=" operand "," … ")" ] [ results ] block
//!           | "region" STRING [ results ] block
//! results   = "->" TYPE "," …
//! block     = "{" { statement } "}"
//! operand   = %name | literal | NAME                                      NAME: a constant
//! literal   = 7 (u32) | -7i32 | 0xffu64 | 1.5 (f32) | 1.5f64 | true | f32(0x7fc00000)
//! ```
//!
//! A statement ends with its line, or at `;` or `}`; a line may be continued after a comma. `//` starts a comment. An omitted terminator is
//! `return` (of the body), `continue` (of a loop) or `yield` (of other blocks), without values. Values without a debug name are printed as
//! numbers.
//!
//! `parse(print(m)) == m` for every valid module.
//!
//! # Compatibility
//!
//! A valid file stays valid with the same semantics within a major version. Minor versions may add operations, attributes and declarations;
//! names of operations are not reserved words, so a new operation breaks no file.

mod lexer;
mod number;
mod parser;
mod printer;

pub(crate) use number::parse_as as parse_digits;
pub use number::parse_literal;
pub use parser::parse;
pub use printer::{lines, print};

/// Returns true if a text is a name: ASCII letters, digits and `_`, not starting with a digit, and not `true`, `false` or a type.
pub fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !matches!(text, "true" | "false")
        && crate::ir::Type::from_name(text).is_none()
}
