//! Launch interface: grids, arguments, limits and reports.
//!
//! [`bind`] resolves names to [`MemId`]s and checks the arguments; [`Arguments`] carries them from the caller to the kernel, with any kind
//! of memory: slices of host bytes, buffers of a pipeline, buffers of a device. [`Grid::groups`] checks grids. An invalid dispatch is
//! therefore the same typed error on every device, before anything runs. Every device returns a [`Report`].

use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::ir::entity::Entity;
use crate::ir::{AccessTypes, BufferId, Element, Literal, MemId, Memory, Program, Space, Span, total_invocations};
use crate::{Error, Validated};

/// Grid of a dispatch. `B` is the buffer of an indirect grid; without it, grids are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid<B = Infallible> {
    /// At least this many invocations in each dimension, rounded up to whole workgroups.
    Elements([u32; 3]),
    /// This many workgroups in each dimension.
    Groups([u32; 3]),
    /// Number of workgroups in each dimension, as three u32 in this buffer when the dispatch starts.
    Indirect(B),
}

impl<B> Grid<B> {
    /// At least this many invocations in one dimension, rounded up to whole workgroups.
    pub fn elements(elements: u32) -> Grid<B> {
        Grid::Elements([elements, 1, 1])
    }

    /// Returns a fixed grid.
    ///
    /// # Errors
    /// The buffer of an indirect grid.
    pub fn fixed(self) -> Result<Grid, B> {
        match self {
            Grid::Elements(elements) => Ok(Grid::Elements(elements)),
            Grid::Groups(groups) => Ok(Grid::Groups(groups)),
            Grid::Indirect(buffer) => Err(buffer),
        }
    }
}

impl Grid {
    /// Number of workgroups in each dimension.
    ///
    /// # Errors
    /// [`Error::GridTooLarge`] from 2³² invocations on.
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

    /// Converts a fixed grid to a type with indirect grids.
    pub fn widen<B>(self) -> Grid<B> {
        match self {
            Grid::Elements(elements) => Grid::Elements(elements),
            Grid::Groups(groups) => Grid::Groups(groups),
        }
    }
}

/// Argument of a memory object. `B` is the memory of storage objects, for example a [`Slice`] or a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<B> {
    /// Value of a uniform.
    Scalar(Literal),
    /// Memory of a storage object.
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
    /// Number of the buffer, assigned by the caller.
    pub buffer: u64,
    /// Element type.
    pub element: Element,
    /// Start in the buffer, in bytes.
    pub start: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Slice {
    /// Returns true if two slices share bytes.
    pub fn overlaps(&self, other: &Slice) -> bool {
        self.buffer == other.buffer
            && self.start < other.start.saturating_add(other.bytes)
            && other.start < self.start.saturating_add(self.bytes)
    }
}

/// Arguments of a dispatch, checked by [`bind`]: one for each storage object and uniform of the program.
#[derive(Clone, Debug)]
pub struct Arguments<B>(Vec<Option<Argument<B>>>);

impl<B> Arguments<B> {
    /// Argument of an object; workgroup and private arrays have none.
    pub fn get(&self, memory: MemId) -> Option<&Argument<B>> {
        self.0.get(memory.index())?.as_ref()
    }

    /// Arguments with their objects.
    pub fn iter(&self) -> impl Iterator<Item = (MemId, &Argument<B>)> {
        let objects = self.0.iter().enumerate();
        objects.filter_map(|(index, argument)| Some((MemId::from_index(index), argument.as_ref()?)))
    }

    /// Memory of the storage objects.
    pub fn buffers(&self) -> impl Iterator<Item = (MemId, &B)> {
        self.iter().filter_map(|(memory, argument)| match argument {
            Argument::Buffer(buffer) => Some((memory, buffer)),
            Argument::Scalar(_) => None,
        })
    }

    /// Converts the memory of the arguments to another type.
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

/// Binds named arguments to the objects of a program. `slice` returns the memory of an argument for an object.
///
/// # Errors
/// A name is unknown, bound twice or missing; an argument is of the wrong kind, type or length; or two arguments overlap and
/// the program writes one of them. Also the errors of `slice`.
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
    // A written object must not alias another object.
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

/// Checks that accesses of other element types than the declared one are aligned, and that 32-bit indices reach all elements.
fn accesses_fit(program: &Program, id: MemId, slice: Slice) -> Result<(), Error> {
    // A multiple of the largest element size is aligned for every type, and n bytes have at most n elements.
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

/// Resource limits and reporting options of a dispatch. Exceeding a limit is an error, and outside the semantics of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of loop trips of all invocations together.
    pub fuel: u64,
    /// Maximum duration.
    pub deadline: Option<Duration>,
    /// Maximum number of printed lines.
    pub trace_capacity: usize,
    /// True to measure the time span of each worker.
    pub times_workers: bool,
}

impl Default for Limits {
    /// Fuel for about 10¹² loop trips, which only endless loops take, no deadline, and a short trace.
    fn default() -> Self {
        Limits { fuel: 1 << 40, deadline: None, trace_capacity: 4096, times_workers: false }
    }
}

/// Report of a dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Outcome.
    pub outcome: Outcome,
    /// Printed lines, ordered by invocation and then by time.
    pub trace: Vec<TraceLine>,
    /// Number of lines beyond the capacity of the trace.
    pub dropped_lines: u64,
    /// Number of instructions executed by all invocations together, if the device counts them.
    pub instructions: Option<u64>,
    /// Duration, of all dispatches together if the device cannot measure them one by one.
    pub time: Duration,
    /// Time span of each worker, in no particular order, if requested and supported by the device.
    pub workers: Vec<WorkerSpan>,
}

impl Report {
    /// Report of a completed dispatch without prints.
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
    /// Index of the worker on the device.
    pub worker: u32,
    /// Start.
    pub from: Instant,
    /// End.
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
    /// Formats the line of a `print` with these operands.
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

/// Outcome of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All invocations completed.
    Completed,
    /// At least one invocation trapped; the others completed.
    Trapped {
        /// The code of the lowest invocation that trapped.
        code: u32,
        /// Its `global_index`.
        invocation: u32,
        /// The `trap`.
        span: Span,
        /// Number of invocations that trapped.
        count: u64,
    },
    /// The fuel was exhausted in this loop. Buffers hold the stores until then.
    OutOfFuel {
        /// The loop.
        span: Span,
    },
    /// The deadline passed. The contents of buffers are unspecified.
    DeadlinePassed {
        /// The loop that was executing, if any.
        span: Span,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Completed => f.write_str("all invocations completed"),
            Outcome::Trapped { code, invocation, .. } => write!(f, "trap {code} in invocation {invocation}"),
            Outcome::OutOfFuel { .. } => f.write_str("out of fuel"),
            Outcome::DeadlinePassed { .. } => f.write_str("out of time"),
        }
    }
}
