//! Code for x86-64 processors with AVX2 or AVX-512.
mod allocate;
mod assemble;
mod encode;
mod listing;
mod machine;
mod pages;
mod prune;
