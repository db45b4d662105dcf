//! Facts about programs, computed on demand: the validator, the optimizer and the backends ask for them.

mod uniformity;

pub use uniformity::{Scope, Uniformity};
