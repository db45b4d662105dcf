//! The one error of this crate.

use std::sync::Arc;

/// A submission of which it is not known whether it was executed, or how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Its number: submissions of a device are counted, those that buffers make included.
    pub submission: u64,
    /// What it was.
    pub work: Work,
}

/// What a submission does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs these kernels.
    Launches(Vec<Arc<str>>),
    /// Writes to a buffer.
    Write,
    /// Fills a buffer with zeros.
    Clear,
    /// Reads a buffer.
    Read,
}

/// What can go wrong between a validated program and its results.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument, a grid or a program that is wrong in itself.
    #[error(transparent)]
    Foundation(#[from] vyre_foundation::Error),
    /// The device lacks something that the program needs.
    #[error("the device has {available}, but the program needs {needed}")]
    Unsupported {
        /// What is needed.
        needed: String,
        /// What there is.
        available: String,
    },
    /// No backend of this name.
    #[error("there is no device named `{name}`")]
    NoSuchDevice {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The backend found nothing to run on.
    #[error("{backend} has no device: {reason}")]
    NoAdapter {
        /// The backend.
        backend: &'static str,
        /// What it found, and what would help.
        reason: String,
    },
    /// A buffer or kernel of another device.
    #[error("`{name}` belongs to another device")]
    Foreign {
        /// The argument, or the name of the kernel.
        name: String,
    },
    /// A buffer of a device that was lost since.
    #[error("`{name}` was lost with its device")]
    Stale {
        /// The argument.
        name: String,
    },
    /// More memory than there is.
    #[error("{requested} bytes cannot be allocated: {available} are available")]
    OutOfMemory {
        /// How much was asked for.
        requested: u64,
        /// How much there is.
        available: u64,
    },
    /// A range that reaches beyond its buffer.
    #[error("elements {start}..{end} are outside of a buffer of {length}")]
    OutOfRange {
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// Elements there are.
        length: u64,
    },
    /// An indirect grid needs three u32.
    #[error("an indirect grid is three u32, but the buffer has {found}")]
    IndirectGrid {
        /// What the buffer holds.
        found: String,
    },
    /// Records of earlier dispatches that cannot be used; nothing of them is.
    #[error("{}: {reason}", file.display())]
    Hints {
        /// The file that keeps them.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file that should hold an optimized program and does not. It was deleted, and the program optimized again.
    #[error("{}: {reason}", file.display())]
    CachedProgram {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The results of a submission are given once.
    #[error("the results were taken before")]
    AlreadyTaken,
    /// The submission was cancelled before it was done.
    #[error("the submission was cancelled")]
    Cancelled,
    /// The device is gone; what was not acknowledged is lost.
    #[error("the device was lost: {reason}")]
    DeviceLost {
        /// What the device said.
        reason: String,
        /// What was submitted and not known to be done when the loss was noticed, in order.
        unacknowledged: Vec<Unacknowledged>,
    },
    /// A backend failed in a way that is not the caller's fault.
    #[error("{backend} failed: {reason}")]
    Backend {
        /// The backend.
        backend: &'static str,
        /// What it said.
        reason: String,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Foundation(error) => error.code(),
            Error::Unsupported { .. } => "D001",
            Error::NoSuchDevice { .. } => "D002",
            Error::NoAdapter { .. } => "D003",
            Error::Foreign { .. } => "D004",
            Error::Stale { .. } => "D005",
            Error::OutOfMemory { .. } => "D006",
            Error::OutOfRange { .. } => "D007",
            Error::IndirectGrid { .. } => "D008",
            Error::Cancelled => "D009",
            Error::DeviceLost { .. } => "D010",
            Error::Backend { .. } => "D011",
            Error::AlreadyTaken => "D012",
            Error::Hints { .. } => "D013",
            Error::CachedProgram { .. } => "D014",
        }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            Error::Foundation(error) => error.help(),
            Error::Unsupported { .. } => "use another device (`vyre devices` lists them), or change the program".into(),
            Error::NoSuchDevice { known, .. } => format!("there are: {}", known.join(", ")),
            Error::NoAdapter { .. } => "`--device cpu` needs no driver".into(),
            Error::Foreign { .. } => "use buffers and kernels with the device that made them".into(),
            Error::Stale { .. } => "upload the data again".into(),
            Error::OutOfMemory { .. } => "free buffers, or work in smaller pieces".into(),
            Error::OutOfRange { .. } => "use a range inside the buffer".into(),
            Error::IndirectGrid { .. } => "give a buffer, or a part of one, of three u32".into(),
            Error::AlreadyTaken => "keep the results that `wait_timeout` or `poll` gave".into(),
            Error::Hints { .. } => "nothing to do: the file is replaced when a program has run".into(),
            Error::CachedProgram { .. } => "nothing to do: it was deleted, and the program was optimized again".into(),
            Error::Cancelled => "submit it again".into(),
            Error::DeviceLost { .. } => "open the device again and upload the data again".into(),
            Error::Backend { .. } => "this may be a bug in vyre or in a driver: please report it".into(),
        }
    }
}
