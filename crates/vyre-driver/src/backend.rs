//! What a backend implements.
//!
//! A device executes [`Command`]s in the order in which they were submitted, as if one after the other: whatever an earlier
//! command wrote, a later one sees. What reaches a backend has been checked: arguments fit the program, ranges lie inside
//! their memory, memory and kernels are the device's own.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use vyre_foundation::Validated;
use vyre_foundation::ir::{MemId, Program};
use vyre_foundation::launch::{Arguments, Limits, Report};

use crate::{Capabilities, Error};

/// A way to get a device.
pub trait Backend: Send + Sync {
    /// The name by which it is asked for: `cpu`, `wgpu`, `reference`.
    fn name(&self) -> &'static str;

    /// One line on what it is.
    fn description(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    fn open(&self) -> Result<Box<dyn Device>, Error>;
}

/// An open device.
pub trait Device: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Prepares a program. It uses only types that the device has, and keeps to its limits.
    ///
    /// # Errors
    /// The device cannot express something in it.
    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error>;

    /// Memory of this size, filled with zeros. The size is a multiple of 16 and not zero.
    ///
    /// # Errors
    /// There is not that much.
    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error>;

    /// Takes commands, to be executed in order. It does not wait for them.
    ///
    /// # Errors
    /// Nothing of the batch is executed.
    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error>;
}

/// A program prepared for a device.
pub trait Kernel: Any + Send + Sync {
    /// The reason why a launch over objects of these lengths, in elements, executes in a slower way than the device is meant to, such
    /// as without machine code; `None` if it does not. `length` returns `None` for objects whose length is not known, which count as short.
    fn fallback(&self, _length: &dyn Fn(MemId) -> Option<u64>) -> Option<String> {
        None
    }
}

/// Memory of a device. It is freed when the last reference goes away and no command uses it any more.
pub trait Memory: Any + Send + Sync {
    /// An aligned word at a byte, as it is now, whatever is being executed; `None` where only commands reach the memory.
    fn peek(&self, _byte: u64) -> Option<u32> {
        None
    }

    /// Replaces an aligned word at once, and says whether that is possible.
    fn poke(&self, _byte: u64, _word: u32) -> bool {
        false
    }
}

/// A part of a device's memory.
#[derive(Clone)]
pub struct Range {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// First byte; a multiple of the element size of whatever uses it.
    pub start: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Something to be done.
pub enum Command {
    /// Runs a kernel.
    Launch(Launch),
    /// Writes bytes.
    Write(Range, Vec<u8>),
    /// Fills with zeros.
    Clear(Range),
    /// Reads bytes, into the [`Completion`], for elements of this alignment.
    Read(Range, usize),
}

/// Bytes that were read. A vector of elements has them without another copy if their alignment was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// For elements of any alignment.
    Bytes(Vec<u8>),
    /// For elements of alignment 2.
    Halves(Vec<u16>),
    /// For elements of alignment 4.
    Words(Vec<u32>),
    /// For elements of alignment 8.
    Doubles(Vec<u64>),
}

impl Contents {
    /// A copy of bytes, for elements of an alignment of which they are a multiple.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]
    pub fn copied(bytes: &[u8], alignment: usize) -> Result<Contents, Error> {
        fn copy<W: bytemuck::Pod>(bytes: &[u8]) -> Result<Vec<W>, Error> {
            let mut words = Contents::reserved(bytes.len() / size_of::<W>())?;
            words.extend(bytes.chunks_exact(size_of::<W>()).map(bytemuck::pod_read_unaligned::<W>));
            Ok(words)
        }
        Ok(match alignment {
            2 => Contents::Halves(copy(bytes)?),
            4 => Contents::Words(copy(bytes)?),
            8 => Contents::Doubles(copy(bytes)?),
            _ => {
                let mut copy = Contents::reserved(bytes.len())?;
                copy.extend_from_slice(bytes);
                Contents::Bytes(copy)
            }
        })
    }

    /// A vector with room for `count` elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]
    pub fn reserved<W>(count: usize) -> Result<Vec<W>, Error> {
        let mut words = Vec::new();
        let requested = (count as u64).saturating_mul(size_of::<W>() as u64);
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { requested, available: 0 })?;
        Ok(words)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Contents::Bytes(bytes) => bytes,
            Contents::Halves(halves) => bytemuck::cast_slice(halves),
            Contents::Words(words) => bytemuck::cast_slice(words),
            Contents::Doubles(doubles) => bytemuck::cast_slice(doubles),
        }
    }

    /// The elements that they are.
    pub fn elements<T: bytemuck::Pod>(self) -> Vec<T> {
        fn cast<W: bytemuck::Pod, T: bytemuck::Pod>(words: Vec<W>) -> Vec<T> {
            bytemuck::allocation::try_cast_vec(words).unwrap_or_else(|(_, words)| bytemuck::pod_collect_to_vec(&words))
        }
        match self {
            Contents::Bytes(bytes) => cast(bytes),
            Contents::Halves(halves) => cast(halves),
            Contents::Words(words) => cast(words),
            Contents::Doubles(doubles) => cast(doubles),
        }
    }
}

/// A kernel with everything it is run with.
pub struct Launch {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// How many workgroups.
    pub groups: Groups,
    /// The arguments; ranges may be empty.
    pub arguments: Arguments<Range>,
    /// What it may use up.
    pub limits: Limits,
}

/// Number of workgroups: a checked grid.
#[derive(Clone)]
pub enum Groups<B = Range> {
    /// These.
    Fixed([u32; 3]),
    /// Three u32 that an earlier command may have written. If they make too many invocations, nothing is launched and the
    /// ticket gives [`vyre_foundation::Error::GridTooLarge`].
    Indirect(B),
}

/// What a batch of commands gave.
#[derive(Debug, Default)]
pub struct Completion {
    /// One for each launch, in order.
    pub reports: Vec<Report>,
    /// One for each read, in order.
    pub data: Vec<Contents>,
}

/// A batch that has been submitted.
pub trait Ticket: Send {
    /// Waits until the batch is done, or for a time; `None` if it is not done by then. The completion is given once.
    ///
    /// # Errors
    /// The device was lost, or the batch was cancelled before it was done.
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>>;

    /// Asks for the batch to be given up. Commands that have not begun are not executed; one that has may stop early.
    fn cancel(&mut self);
}
