//! The oracle (device `reference`): an interpreter that defines the semantics of programs.
//!
//! [`run`] executes the workgroups in sequence, and the invocations of a workgroup in lockstep: each instruction is
//! executed for all active invocations before the next one begins. `if` partitions the active invocations, and `loop`
//! keeps those that continue. Collective operations need no synchronization, because all invocations reach them
//! together. Pure operations are evaluated by the op table of `vyre-foundation`, so this crate implements only control
//! flow, memory, and operations between invocations.
//!
//! It is written for clarity, not for speed. Backends are tested against it.

mod error;
mod machine;
mod memory;
mod sanitizer;

use vyre_foundation::Validated;
use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Arguments, Limits, Report, Slice};

pub use error::Error;

/// Options of an execution.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limits of fuel, time and trace lines.
    pub limits: Limits,
    /// Subgroup size: a power of two from 1 to 128. Tests set the size of the device under comparison.
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
/// Invalid options or slices. The result of the execution itself, such as a trap, is the
/// [`Outcome`](vyre_foundation::launch::Outcome) of the report.
pub fn run(
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments<Slice>,
    buffers: &mut [Vec<u8>],
    options: &Options,
) -> Result<Report, Error> {
    execute(program, groups, arguments, buffers, options, false).map(|(report, _)| report)
}

/// Executes a program as [`run`] does, and reports behaviour that is well-defined but almost always a bug: data races,
/// out-of-bounds accesses, reads of uninitialized workgroup and private memory, and subgroup reads of lanes that are absent or ended.
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
