//! The compiler core of vyre: IR, text and wire formats, validator, analyses, optimizer and builder.
//!
//! [Parsing](text::parse) or a [`build::Kernel`] makes an [`ir::Program`]; [validation](validate::program) makes a [`Validated`] program,
//! which the oracle, the optimizer and the backends require. This crate does no I/O and contains no backend.
//!
//! Terms are defined in the book's [glossary](https://github.com/vyre-project/vyre/blob/main/docs/src/glossary.md).

pub mod analysis;
pub mod build;
pub mod diagnostics;
mod error;
pub mod fill;
pub mod inputs;
pub mod ir;
pub mod launch;
pub mod math;
pub mod optimizer;
pub mod run_line;
pub mod text;
pub mod transform;
pub mod validate;
pub mod wire;

pub use error::Error;
pub use validate::Validated;
