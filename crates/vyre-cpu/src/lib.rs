//! The CPU backend: SPMD execution of programs, with a vector lane for each invocation, on all cores.
//!
//! `x86` generates code for x86-64 processors with AVX2 or AVX-512 on Unix-like systems: values are vector registers
//! with a lane for each invocation, and divergent control flow is predicated. On other targets, such as AArch64 and
//! Windows, [`spmd`] lowers a program to steps over lanes that are arrays in memory, and [`portable`] interprets the
//! steps with plain Rust loops, each over all lanes. `pool` distributes workgroups over threads with work stealing, and
//! `device` is the command queue.
//!
//! Terms are defined in the book's [glossary](https://github.com/vyre-project/vyre/blob/main/docs/src/glossary.md).

// Lanes, device memory and the thread pool are raw memory shared between threads; every use has a safety argument.
#![allow(unsafe_code)]

mod device;
mod dispatch;
mod memory;
mod pool;
pub mod portable;
mod process;
pub mod spmd;
mod stack;
mod subgroup;
#[cfg(all(target_arch = "x86_64", unix))]
mod x86;

pub use device::{Cpu, Execution, HAS_CODE_GENERATOR, listing};
pub use memory::Guard;
