//! The CPU backend: programs run as SPMD code, many invocations at a time, on all cores.
//!
//! [`spmd`] lowers a program to steps over *lanes*: each value becomes an array with one element for each invocation of a
//! block of workgroups, and divergent control flow becomes masks. [`portable`] executes the steps with plain Rust loops, one
//! operation over all lanes at a time. `pool` spreads blocks over threads, and `device` takes commands in order.
//!
//! All invocations of a workgroup are in one block and go through the steps together, so a barrier costs nothing.

// Lanes, device memory and the thread pool are raw memory shared between threads; every use is argued where it stands.
#![allow(unsafe_code)]

mod device;
mod dispatch;
mod memory;
mod pool;
pub mod portable;
pub mod spmd;
mod subgroup;
#[cfg(all(target_arch = "x86_64", unix))]
mod x86;

pub use device::{Cpu, Execution, listing};
