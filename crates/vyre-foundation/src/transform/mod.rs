//! Programs into programs that mean the same.

mod expand_math;
pub mod fuse;

pub use expand_math::expand_math;
