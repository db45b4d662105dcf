//! The oracle: a plain interpreter that defines what a program means.
//!
//! [`run`] executes one workgroup after the other, and within a workgroup all invocations in step: each instruction is
//! executed for every invocation that is there before the next one begins. `if` splits the invocations, `loop` keeps those
//! that continue; operations of the whole workgroup or subgroup need no waiting, because everybody has arrived. What the
//! operations compute is taken from the op table of `vyre-foundation`, so this crate is only about control flow, memory and
//! the operations between invocations.
//!
//! It is made to be read and trusted, not to be fast; backends are compared with it.

mod error;
mod machine;
mod memory;
mod sanitizer;

use vyre_foundation::Validated;
use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Arguments, Limits, Report, Slice};

pub use error::Error;

/// How a dispatch is executed.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it may use up.
    pub limits: Limits,
    /// Lanes of a subgroup: a power of two from 1 to 128. A device is compared with the oracle at its own size.
    pub subgroup_size: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { limits: Limits::default(), subgroup_size: 16 }
    }
}

/// Executes a program over a grid. `groups` and `arguments` come from [`vyre_foundation::launch`]; the buffer numbers of
/// slices are positions in `buffers`.
///
/// # Errors
/// Options or slices that cannot be. What happens while the program runs is not an error of this function but the
/// [`Outcome`](vyre_foundation::launch::Outcome).
pub fn run(
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments<Slice>,
    buffers: &mut [Vec<u8>],
    options: &Options,
) -> Result<Report, Error> {
    execute(program, groups, arguments, buffers, options, false).map(|(report, _)| report)
}

/// Executes a program as [`run`] does, and reports what it does that is defined but hardly meant: races between invocations,
/// accesses outside of objects, reads of workgroup and private memory that was never written, values of absent lanes.
///
/// # Errors
/// As for [`run`].
pub fn sanitize(
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments<Slice>,
    buffers: &mut [Vec<u8>],
    options: &Options,
) -> Result<(Report, Vec<Diagnostic>), Error> {
    execute(program, groups, arguments, buffers, options, true)
}

fn execute(
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments<Slice>,
    buffers: &mut [Vec<u8>],
    options: &Options,
    sanitize: bool,
) -> Result<(Report, Vec<Diagnostic>), Error> {
    if !(options.subgroup_size.is_power_of_two() && options.subgroup_size <= 128) {
        return Err(Error::SubgroupSize { size: options.subgroup_size });
    }
    let memory = memory::Memory::new(program, arguments, buffers)?;
    Ok(machine::Machine::new(program, groups, memory, options, sanitize)?.run())
}
