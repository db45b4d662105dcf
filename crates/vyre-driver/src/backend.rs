//! Backend interface: the traits that a backend implements.
//!
//! A device executes [`Command`]s in submission order, as if one after the other: each command sees all writes of
//! earlier ones. Commands are validated before they reach a backend: arguments fit the program, ranges are inside their
//! memory, memory and kernels belong to the device.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use vyre_foundation::Validated;
use vyre_foundation::ir::{MemId, Program};
use vyre_foundation::launch::{Arguments, Limits, Report};

use crate::{Capabilities, Error};

/// A factory of devices.
pub trait Backend: Send + Sync {
    /// Name on the command line: `cpu`, `wgpu`, `reference`.
    fn name(&self) -> &'static str;

    /// One-line description.
    fn description(&self) -> &'static str;

    /// Opens a device.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    fn open(&self) -> Result<Box<dyn Device>, Error>;
}

/// An open device.
pub trait Device: Send + Sync {
    /// Capabilities of the device.
    fn capabilities(&self) -> &Capabilities;

    /// Compiles a program. It uses only types that the device has, and respects its limits.
    ///
    /// # Errors
    /// The device cannot express something in it.
    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error>;

    /// Allocates zeroed memory. The size is a nonzero multiple of 16.
    ///
    /// # Errors
    /// Not enough memory is available.
    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error>;

    /// Submits commands for execution in order, without blocking.
    ///
    /// # Errors
    /// No command of the batch is executed.
    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error>;
}

/// A program prepared for a device.
pub trait Kernel: Any + Send + Sync {
    /// Reason for slow execution, such as missing machine code, of a launch over objects of these lengths, in elements;
    /// `None` on the fast path. `length` returns `None` for objects of unknown length, which are assumed to be short.
    fn fallback(&self, _length: &dyn Fn(MemId) -> Option<u64>) -> Option<String> {
        None
    }
}

/// Memory of a device. Freed when the last reference is dropped and no command uses it any more.
pub trait Memory: Any + Send + Sync {
    /// Loads an aligned word at a byte offset while commands may be executing; `None` if only commands can access the
    /// memory.
    fn peek(&self, _byte: u64) -> Option<u32> {
        None
    }

    /// Stores an aligned word while commands may be executing; returns whether that is supported.
    fn poke(&self, _byte: u64, _word: u32) -> bool {
        false
    }
}

/// A range of device memory.
#[derive(Clone)]
pub struct Range {
    /// The memory.
    pub memory: Arc<dyn Memory>,
    /// Start offset in bytes; a multiple of the size of the elements that access it.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A command of a batch.
pub enum Command {
    /// Runs a kernel.
    Launch(Launch),
    /// Writes bytes.
    Write(Range, Vec<u8>),
    /// Zeroes a range.
    Clear(Range),
    /// Reads bytes into the [`Completion`], aligned for elements of this alignment.
    Read(Range, usize),
}

/// Bytes that were read, in a vector whose alignment allows conversion to elements without a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Bytes for elements of alignment 1.
    Bytes(Vec<u8>),
    /// Bytes for elements of alignment 2.
    Halves(Vec<u16>),
    /// Bytes for elements of alignment 4.
    Words(Vec<u32>),
    /// Bytes for elements of alignment 8.
    Doubles(Vec<u64>),
}

impl Contents {
    /// Copies bytes, whose length is a multiple of the alignment.
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

    /// Allocates a vector with capacity for `count` elements.
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

    /// Converts to elements, without a copy if the alignment suffices.
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

/// A launch: a kernel, its grid, arguments and limits.
pub struct Launch {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// Number of workgroups.
    pub groups: Groups,
    /// Arguments; ranges may be empty.
    pub arguments: Arguments<Range>,
    /// Limits of fuel, time and trace.
    pub limits: Limits,
}

/// Number of workgroups: a validated grid.
#[derive(Clone)]
pub enum Groups<B = Range> {
    /// Numbers of workgroups in each dimension.
    Fixed([u32; 3]),
    /// Three u32 in a buffer, which an earlier command may have written. If they make too many invocations, nothing is
    /// launched and the ticket returns [`vyre_foundation::Error::GridTooLarge`].
    Indirect(B),
}

/// Results of a batch.
#[derive(Debug, Default)]
pub struct Completion {
    /// Reports of the launches, in order.
    pub reports: Vec<Report>,
    /// Contents of the reads, in order.
    pub data: Vec<Contents>,
}

/// A submitted batch.
pub trait Ticket: Send {
    /// Waits for the batch, optionally with a timeout; `None` after the timeout. Returns the completion once.
    ///
    /// # Errors
    /// The device was lost, or the batch was cancelled before it was done.
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>>;

    /// Requests cancellation. Commands that have not begun are skipped; a running one may stop early.
    fn cancel(&mut self);
}
