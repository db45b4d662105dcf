//! What vyre is tested with: [file tests](files) and a [generator](generate()) of programs.

pub mod files;
mod generate;

pub use generate::{Features, Generated, generate};
