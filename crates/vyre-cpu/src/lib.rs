//! The CPU backend: programs run as SPMD code, many invocations at a time, on all cores.
//!
//! `x86` generates code for x86-64 processors with AVX2 or AVX-512, on Unix-like systems: values are vector registers with a lane for
//! each invocation, and divergent control flow becomes masks. Elsewhere, as on AArch64 and on Windows, [`spmd`] lowers a program to steps over lanes that are arrays in memory, and
//! [`portable`] executes the steps with plain Rust loops, one operation over all lanes at a time. `pool` spreads workgroups over
//! threads, and `device` takes commands in order.

// Lanes, device memory and the thread pool are raw memory shared between threads; every use is argued where it stands.
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
