//! The core of vyre: programs, their text format, and the validator.
//!
//! Data goes one way. Text is [parsed](text::parse) or a [`build::Kernel`] builds an [`ir::Program`]; the program is
//! [validated](validate::program), and everything after that (oracle, optimizer, backends) takes only what is
//! [`Validated`]. This crate does no I/O and knows no device.

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
