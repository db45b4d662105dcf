//! What a caller says when a program is dispatched, and what it hears back: the grid, what each memory object is bound to,
//! the limits, and the report.
//!
//! Every device takes its dispatches through [`Grid::groups`] and [`bind`], so that a mistake is the same typed error
//! everywhere, before anything runs; and every device answers with a [`Report`].

use std::fmt;
use std::time::{Duration, Instant};

use crate::ir::entity::SecondaryMap;
use crate::ir::{Element, Literal, MemId, Program, Space, Span, total_invocations};
use crate::{Error, Validated};

/// How many invocations to run. It is always said, never guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// At least this many invocations in each dimension, rounded up to whole workgroups.
    Elements([u32; 3]),
    /// This many workgroups in each dimension.
    Groups([u32; 3]),
}

impl Grid {
    /// The number of workgroups in each dimension.
    ///
    /// # Errors
    /// [`Error::GridTooLarge`] if there would be 2³² invocations or more.
    pub fn groups(self, workgroup_size: [u32; 3]) -> Result<[u32; 3], Error> {
        let groups = match self {
            Grid::Elements(elements) => std::array::from_fn(|axis| elements[axis].div_ceil(workgroup_size[axis])),
            Grid::Groups(groups) => groups,
        };
        match total_invocations(groups, workgroup_size) {
            // Nothing is nothing: nobody need loop over the other dimensions.
            Some(0) => Ok([0, 0, 0]),
            Some(_) => Ok(groups),
            None => Err(Error::GridTooLarge { groups, workgroup_size }),
        }
    }
}

/// What a memory object is bound to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// The value of a uniform.
    Scalar(Literal),
    /// The memory of a storage object.
    Slice(Slice),
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which buffer; the caller decides what the number means.
    pub buffer: u64,
    /// What it is made of.
    pub element: Element,
    /// Where the part starts, in bytes.
    pub start: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Slice {
    /// Whether there are bytes that both are parts of.
    pub fn overlaps(&self, other: &Slice) -> bool {
        self.buffer == other.buffer
            && self.start < other.start.saturating_add(other.bytes)
            && other.start < self.start.saturating_add(self.bytes)
    }
}

/// The arguments of a dispatch: one for each storage object and uniform of the program.
#[derive(Clone, Debug)]
pub struct Arguments(SecondaryMap<MemId, Option<Argument>>);

impl Arguments {
    /// Arguments that [`bind`] has accepted before, perhaps with other numbers for their buffers.
    pub fn checked(arguments: SecondaryMap<MemId, Option<Argument>>) -> Arguments {
        Arguments(arguments)
    }

    /// What an object is bound to; workgroup and private arrays are not bound.
    pub fn get(&self, memory: MemId) -> Option<Argument> {
        self.0[memory]
    }
}

/// Matches named arguments with the objects of a program.
///
/// # Errors
/// A name is unknown, bound twice or missing; an argument is of the wrong kind, type or length; or two arguments overlap and
/// the program writes one of them.
pub fn bind(program: &Validated<Program>, given: &[(&str, Argument)]) -> Result<Arguments, Error> {
    let mut arguments = SecondaryMap::with_capacity(program.memory.len(), None);
    for &(name, argument) in given {
        let bindable = |memory: &MemId| is_bound(program, *memory);
        let Some(memory) = program.memory_named(name).filter(bindable) else {
            let known = program.memory.keys().filter(bindable).map(|id| program.memory[id].name.clone()).collect();
            return Err(Error::UnknownBinding { name: name.into(), known });
        };
        if arguments[memory].is_some() {
            return Err(Error::BoundTwice { name: name.into() });
        }
        fits(program, memory, argument)?;
        arguments[memory] = Some(argument);
    }
    for (id, memory) in program.memory.iter().filter(|(id, _)| is_bound(program, *id)) {
        if arguments[id].is_none() {
            let Some(default) = memory.default else {
                let example = if memory.space == Space::Uniform { "1" } else { "zeros:1024" };
                return Err(Error::MissingBinding { name: memory.name.clone(), example });
            };
            arguments[id] = Some(Argument::Scalar(default));
        }
    }
    disjoint(program, &arguments)?;
    Ok(Arguments(arguments))
}

fn is_bound(program: &Program, memory: MemId) -> bool {
    matches!(program.memory[memory].space, Space::Storage(_) | Space::Uniform)
}

fn fits(program: &Program, id: MemId, argument: Argument) -> Result<(), Error> {
    let memory = &program.memory[id];
    let name = || memory.name.clone();
    match (memory.space, argument) {
        (Space::Uniform, Argument::Scalar(literal)) => {
            let declared = memory.element.value_type();
            if literal.ty != declared {
                return Err(Error::ScalarType { name: name(), declared, given: literal.ty });
            }
            if !memory.element.holds(literal) {
                return Err(Error::NotAValue { text: literal.plain(), element: memory.element });
            }
            Ok(())
        }
        (Space::Uniform, Argument::Slice(_)) => Err(Error::ScalarExpected { name: name() }),
        (_, Argument::Scalar(_)) => Err(Error::BufferExpected { name: name() }),
        (_, Argument::Slice(slice)) => {
            let size = memory.element.size() as u64;
            let length = slice.bytes / size;
            if slice.element != memory.element {
                return Err(Error::ElementType { name: name(), declared: memory.element, given: slice.element });
            }
            if slice.bytes % size != 0 || slice.start % size != 0 {
                return Err(Error::PartialElement { name: name(), bytes: slice.bytes, element: memory.element });
            }
            if u32::try_from(length).is_err() {
                return Err(Error::TooLarge { elements: length, element: memory.element });
            }
            match memory.length {
                Some(declared) if u64::from(declared) != length => {
                    Err(Error::LengthMismatch { name: name(), declared, given: length })
                }
                _ => Ok(()),
            }
        }
    }
}

/// Objects never overlap where one of them is written.
fn disjoint(program: &Program, arguments: &SecondaryMap<MemId, Option<Argument>>) -> Result<(), Error> {
    let mut slices: Vec<(Slice, MemId)> = Vec::new();
    for (id, argument) in arguments.iter() {
        let Some(Argument::Slice(slice)) = argument else { continue };
        for &(other, other_id) in &slices {
            let (first, second) = (&program.memory[other_id], &program.memory[id]);
            if slice.overlaps(&other) && (first.writable() || second.writable()) {
                return Err(Error::Overlap { first: first.name.clone(), second: second.name.clone() });
            }
        }
        slices.push((*slice, id));
    }
    Ok(())
}

/// What a dispatch may use up, and how much of it is reported. Limits are not part of the meaning of a program: running into one is an
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many loop trips all invocations together may take.
    pub fuel: u64,
    /// How long the dispatch may take.
    pub deadline: Option<Duration>,
    /// How many printed lines are kept.
    pub trace_capacity: usize,
    /// Whether it is measured when each worker was at it.
    pub times_workers: bool,
}

impl Default for Limits {
    /// Fuel for some 10¹² loop trips, which only a program that does not end takes; no deadline; a trace that a person can
    /// still read.
    fn default() -> Self {
        Limits { fuel: 1 << 40, deadline: None, trace_capacity: 4096, times_workers: false }
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
    /// How many instructions were executed by all invocations together, where that is counted.
    pub instructions: Option<u64>,
    /// How long it took, as far as the device can tell its dispatches apart.
    pub time: Duration,
    /// When each worker was at it, in no order, if that was to be measured and the device knows its workers.
    pub workers: Vec<Worked>,
}

impl Report {
    /// The report of a dispatch that ended, and of which there is nothing else to say.
    pub fn completed(time: Duration) -> Report {
        Report {
            outcome: Outcome::Completed,
            trace: Vec::new(),
            dropped_lines: 0,
            instructions: None,
            time,
            workers: Vec::new(),
        }
    }
}

/// When a worker was at a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// Its number among the workers of the device.
    pub worker: u32,
    /// When it began.
    pub from: Instant,
    /// When it ended.
    pub until: Instant,
}

/// A printed line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceLine {
    /// The `global_index` of the invocation.
    pub invocation: u32,
    /// The line.
    pub text: String,
}

impl TraceLine {
    /// The line of a `print` with these operands.
    pub fn new(invocation: u32, format: &str, operands: impl IntoIterator<Item = Literal>) -> TraceLine {
        let mut operands = operands.into_iter();
        let mut text = String::new();
        let mut rest = format;
        while let Some((before, after)) = rest.split_once("{}") {
            text += before;
            text += &operands.next().map(Literal::plain).unwrap_or_default();
            rest = after;
        }
        text += rest;
        TraceLine { invocation, text }
    }
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

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Completed => f.write_str("all invocations ran to their end"),
            Outcome::Trapped { code, invocation, .. } => write!(f, "trap {code} in invocation {invocation}"),
            Outcome::OutOfFuel { .. } => f.write_str("out of fuel"),
            Outcome::DeadlinePassed { .. } => f.write_str("out of time"),
        }
    }
}
