//! Launch interface: grids, arguments, limits and reports.
//!
//! Names end here: [`bind`] resolves them to [`MemId`]s and checks what they are bound to, and [`Arguments`] carries the result from the
//! caller to the kernel, whatever the memory is called on the way: a slice of host bytes, a buffer of a pipeline, a buffer of a
//! device, a range of its memory. Grids are checked by [`Grid::groups`]. A mistake is therefore the same typed error on every device,
//! before anything runs; and every device answers with a [`Report`].

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::ir::entity::Entity;
use crate::ir::{AccessTypes, BufferId, Element, Literal, MemId, Memory, Program, Space, Span, total_invocations};
use crate::{Error, Validated};

/// Number of invocations of a dispatch; it is never guessed. `B` is the buffer of an indirect grid; without it, grids are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid<B = Infallible> {
    /// At least this many invocations in each dimension, rounded up to whole workgroups.
    Elements([u32; 3]),
    /// This many workgroups in each dimension.
    Groups([u32; 3]),
    /// Three u32, the numbers of workgroups, as they are in this buffer when the dispatch begins.
    Indirect(B),
}

impl<B> Grid<B> {
    /// At least this many invocations in one dimension, rounded up to whole workgroups.
    pub fn elements(elements: u32) -> Grid<B> {
        Grid::Elements([elements, 1, 1])
    }

    /// The fixed grid, or the buffer of an indirect one.
    ///
    /// # Errors
    /// The buffer.
    pub fn fixed(self) -> Result<Grid, B> {
        match self {
            Grid::Elements(elements) => Ok(Grid::Elements(elements)),
            Grid::Groups(groups) => Ok(Grid::Groups(groups)),
            Grid::Indirect(buffer) => Err(buffer),
        }
    }
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
            // An empty dimension makes the grid empty.
            Some(0) => Ok([0, 0, 0]),
            Some(_) => Ok(groups),
            None => Err(Error::GridTooLarge { groups, workgroup_size }),
        }
    }

    /// The same grid where indirect grids are possible.
    pub fn widen<B>(self) -> Grid<B> {
        match self {
            Grid::Elements(elements) => Grid::Elements(elements),
            Grid::Groups(groups) => Grid::Groups(groups),
        }
    }
}

/// Argument of a memory object. `B` is the memory of storage objects, as a [`Slice`] of host bytes or a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<B> {
    /// The value of a uniform.
    Scalar(Literal),
    /// The memory of a storage object.
    Buffer(B),
}

impl<B, T: Into<Literal>> From<T> for Argument<B> {
    fn from(value: T) -> Self {
        Argument::Scalar(value.into())
    }
}

impl From<BufferId> for Argument<BufferId> {
    fn from(buffer: BufferId) -> Self {
        Argument::Buffer(buffer)
    }
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

/// The arguments of a dispatch: one for each storage object and uniform of a program, for which [`bind`] has checked them.
#[derive(Clone, Debug)]
pub struct Arguments<B>(Vec<Option<Argument<B>>>);

impl<B> Arguments<B> {
    /// The argument of an object; workgroup and private arrays have none.
    pub fn get(&self, memory: MemId) -> Option<&Argument<B>> {
        self.0.get(memory.index())?.as_ref()
    }

    /// All arguments, by object.
    pub fn iter(&self) -> impl Iterator<Item = (MemId, &Argument<B>)> {
        let objects = self.0.iter().enumerate();
        objects.filter_map(|(index, argument)| Some((MemId::from_index(index), argument.as_ref()?)))
    }

    /// The memory of all storage objects.
    pub fn buffers(&self) -> impl Iterator<Item = (MemId, &B)> {
        self.iter().filter_map(|(memory, argument)| match argument {
            Argument::Buffer(buffer) => Some((memory, buffer)),
            Argument::Scalar(_) => None,
        })
    }

    /// The same arguments for other names of the same memory.
    ///
    /// # Errors
    /// The first error of `with`.
    pub fn try_map<'a, C, E>(&'a self, mut with: impl FnMut(MemId, &'a B) -> Result<C, E>) -> Result<Arguments<C>, E> {
        let mut arguments = Vec::with_capacity(self.0.len());
        for (index, argument) in self.0.iter().enumerate() {
            arguments.push(match argument {
                None => None,
                Some(Argument::Scalar(literal)) => Some(Argument::Scalar(*literal)),
                Some(Argument::Buffer(buffer)) => Some(Argument::Buffer(with(MemId::from_index(index), buffer)?)),
            });
        }
        Ok(Arguments(arguments))
    }
}

/// Matches named arguments with the objects of a program. `slice` says which memory an argument is for an object.
///
/// # Errors
/// A name is unknown, bound twice or missing; an argument is of the wrong kind, type or length; or two arguments overlap and
/// the program writes one of them. Besides, the errors of `slice`.
pub fn bind<'n, B, E: From<Error>>(
    program: &Validated<Program>,
    given: impl IntoIterator<Item = (&'n str, Argument<B>)>,
    slice: impl Fn(&Memory, &B) -> Result<Slice, E>,
) -> Result<Arguments<B>, E> {
    let mut slices: SmallVec<[(MemId, Slice); 4]> = SmallVec::new();
    let mut arguments = Arguments(Vec::new());
    arguments.0.resize_with(program.memories().len(), || None);
    for (name, argument) in given {
        let bindable = |memory: &MemId| is_bound(program.memory(*memory));
        let Some(id) = program.memory_named(name).filter(bindable) else {
            let known = program.memories().keys().filter(bindable).map(|id| program.memory(id).name.clone()).collect();
            return Err(Error::UnknownBinding { name: name.into(), known }.into());
        };
        if arguments.get(id).is_some() {
            return Err(Error::BoundTwice { name: name.into() }.into());
        }
        let memory = program.memory(id);
        match &argument {
            Argument::Scalar(literal) => scalar_fits(memory, *literal)?,
            Argument::Buffer(_) if memory.space == Space::Uniform => {
                return Err(Error::ScalarExpected { name: name.into() }.into());
            }
            Argument::Buffer(buffer) => {
                let part = slice(memory, buffer)?;
                slice_fits(memory, part)?;
                accesses_fit(program, id, part)?;
                slices.push((id, part));
            }
        }
        arguments.0[id.index()] = Some(argument);
    }
    for (id, memory) in program.memories().iter().filter(|(_, memory)| is_bound(memory)) {
        if arguments.get(id).is_none() {
            let Some(default) = memory.default else {
                let example = if memory.space == Space::Uniform { "1" } else { "zeros:1024" };
                return Err(Error::MissingBinding { name: memory.name.clone(), example }.into());
            };
            arguments.0[id.index()] = Some(Argument::Scalar(default));
        }
    }
    // Objects never overlap where one of them is written.
    slices.sort_unstable_by_key(|(id, _)| id.index());
    for (position, (second, part)) in slices.iter().enumerate() {
        for (first, other) in &slices[..position] {
            let (first, second) = (program.memory(*first), program.memory(*second));
            if part.overlaps(other) && (first.writable() || second.writable()) {
                return Err(Error::Overlap { first: first.name.clone(), second: second.name.clone() }.into());
            }
        }
    }
    Ok(arguments)
}

fn is_bound(memory: &Memory) -> bool {
    matches!(memory.space, Space::Storage(_) | Space::Uniform)
}

fn scalar_fits(memory: &Memory, literal: Literal) -> Result<(), Error> {
    let name = || memory.name.clone();
    if memory.space != Space::Uniform {
        return Err(Error::BufferExpected { name: name() });
    }
    let declared = memory.element.value_type();
    if literal.ty != declared {
        return Err(Error::ScalarType { name: name(), declared, given: literal.ty });
    }
    if !memory.element.holds(literal) {
        return Err(Error::NotAValue { text: literal.plain(), element: memory.element });
    }
    Ok(())
}

fn slice_fits(memory: &Memory, slice: Slice) -> Result<(), Error> {
    let name = || memory.name.clone();
    let size = memory.element.size() as u64;
    let length = slice.bytes / size;
    if slice.element != memory.element {
        return Err(Error::ElementType { name: name(), declared: memory.element, given: slice.element });
    }
    if !slice.bytes.is_multiple_of(size) || !slice.start.is_multiple_of(size) {
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

/// Checks that accesses to other element types than the declared one are aligned, and that 32 bits index all of their elements.
fn accesses_fit(program: &Program, id: MemId, slice: Slice) -> Result<(), Error> {
    // Every element type is aligned at a multiple of the largest size, and there are at most as many elements as bytes.
    let largest = Element::U64.size() as u64;
    if slice.start.is_multiple_of(largest) && u32::try_from(slice.bytes).is_ok() {
        return Ok(());
    }
    let name = || program.memory(id).name.clone();
    for element in AccessTypes::of(program)[id].elements() {
        let size = element.size() as u64;
        if !slice.start.is_multiple_of(size) {
            return Err(Error::Misaligned { name: name(), start: slice.start, element });
        }
        if u32::try_from(slice.bytes / size).is_err() {
            return Err(Error::TooLarge { elements: slice.bytes / size, element });
        }
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
    pub workers: Vec<WorkerSpan>,
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

/// Time span in which a worker executed a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSpan {
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
