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

use std::time::Duration;

use vyre_foundation::Validated;
use vyre_foundation::ir::{Program, Span};
use vyre_foundation::launch::Arguments;

pub use error::Error;

/// How a dispatch is executed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many loop trips all invocations together may take.
    pub fuel: u64,
    /// How long the dispatch may take.
    pub deadline: Option<Duration>,
    /// Lanes of a subgroup: a power of two from 1 to 128. A device is compared with the oracle at its own size.
    pub subgroup_size: u32,
    /// How many printed lines are kept.
    pub trace_capacity: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { fuel: 1 << 36, deadline: None, subgroup_size: 16, trace_capacity: 4096 }
    }
}

/// What a dispatch did, besides writing to buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// What was printed, ordered by invocation and then by time.
    pub trace: Vec<TraceLine>,
    /// How many lines did not fit into the trace.
    pub dropped_lines: u64,
    /// How many instructions were executed, by all invocations together.
    pub instructions: u64,
}

/// A printed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// The `global_index` of the invocation.
    pub invocation: u32,
    /// The line.
    pub text: String,
}

/// How a dispatch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All invocations ran to their end.
    Completed,
    /// At least one invocation trapped; the others ran to their end.
    Trapped {
        /// The code of the lowest invocation that trapped.
        code: u32,
        /// Its `global_index`.
        invocation: u32,
        /// Where it trapped.
        span: Span,
        /// How many invocations trapped.
        count: u64,
    },
    /// The budget of loop trips was used up in this loop. Buffers hold what was written until then.
    OutOfFuel {
        /// The loop.
        span: Span,
    },
    /// The deadline passed. Buffers hold what was written until then.
    DeadlinePassed {
        /// The loop that was running, if it was one.
        span: Span,
    },
}

/// Executes a program over a grid. `groups` and `arguments` come from [`vyre_foundation::launch`]; the buffer numbers of
/// slices are positions in `buffers`.
///
/// # Errors
/// Options or slices that cannot be. What happens while the program runs is not an error of this function but the
/// [`Outcome`].
pub fn run(
    program: &Validated<Program>,
    groups: [u32; 3],
    arguments: &Arguments,
    buffers: &mut [Vec<u8>],
    options: &Options,
) -> Result<Report, Error> {
    if !(options.subgroup_size.is_power_of_two() && options.subgroup_size <= 128) {
        return Err(Error::SubgroupSize { size: options.subgroup_size });
    }
    let memory = memory::Memory::new(program, arguments, buffers)?;
    Ok(machine::Machine::new(program, groups, memory, options).run())
}
