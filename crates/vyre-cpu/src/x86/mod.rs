//! Code for x86-64 processors with AVX2 or AVX-512.
mod emit;
mod machine;
mod shape;
