//! Programs into programs that mean the same, and into parts of others.

pub mod embed;
mod ends;
mod expand_math;
pub mod fuse;

pub use expand_math::expand_math;
