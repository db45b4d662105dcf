//! Error type of this crate.

use std::sync::Arc;

use vyre_foundation::error_table;

/// A submission whose completion is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Sequence number among all submissions of the device, including those of buffer operations.
    pub submission: u64,
    /// Its work.
    pub work: Work,
}

/// Work of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Launches of these kernels.
    Launches(Vec<Arc<str>>),
    /// Write to a buffer.
    Write,
    /// Zeroing of a buffer.
    Clear,
    /// Read of a buffer.
    Read,
}

/// Damage of a cache file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The file name is not a key.
    #[error("the file name is not the key of a {0}")]
    Name(&'static str),
    /// Error of the operating system.
    #[error("{0}")]
    Io(String),
    /// The file is truncated.
    #[error("the file is truncated")]
    CutOff,
    /// The contents do not match their checksum.
    #[error("the file is damaged: checksum mismatch")]
    Checksum,
    /// The file has another format version.
    #[error("the file has another format version")]
    Version,
    /// The entry has another key.
    #[error("the entry was made of another program, with other passes or by another optimizer")]
    Key,
    /// The module does not contain exactly one program.
    #[error("the module does not contain exactly one program")]
    ProgramCount,
    /// The number of spans does not match the program.
    #[error("the number of source positions does not match the program")]
    Places,
    /// Contents that cannot be decoded, or are invalid.
    #[error("{0}")]
    Contents(Box<vyre_foundation::Error>),
}

impl From<std::io::Error> for Damage {
    fn from(error: std::io::Error) -> Damage {
        Damage::Io(error.to_string())
    }
}

impl From<vyre_foundation::Error> for Damage {
    fn from(error: vyre_foundation::Error) -> Damage {
        Damage::Contents(Box::new(error))
    }
}

error_table! {
    /// Errors between a validated program and its results.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Error wraps {
        /// Invalid argument, grid or program.
        Foundation(#[from] error: vyre_foundation::Error) message("{0}"), code error.code(), help error.help();
    };

    /// The device does not support the program.
    D001 Unsupported {
        /// Requirement of the program.
        needed: String,
        /// Property of the device that falls short of it.
        available: String,
    } ("the device has {available}, but the program needs {needed}"),
    help "use another device (`vyre devices` lists them), or change the program";

    /// Unknown device name.
    D002 NoSuchDevice {
        /// Given name.
        name: String,
        /// Names of available devices.
        known: Vec<String>,
    } ("there is no device named `{name}`"), help format!("available devices: {}", known.join(", "));

    /// The backend found no usable device.
    D003 NoAdapter {
        /// The backend.
        backend: &'static str,
        /// Adapters and reasons against them, or the driver to install.
        reason: String,
    } ("{backend} has no device: {reason}"), help "use `--device cpu`, which needs no driver";

    /// A buffer or kernel belongs to another device.
    D004 Foreign {
        /// The argument, or the name of the kernel.
        name: String,
    } ("`{name}` belongs to another device"), help "use buffers and kernels only with the device that created them";

    /// The device of a buffer was lost.
    D005 Stale {
        /// The argument.
        name: String,
    } ("`{name}` was lost with its device"), help "upload the data again";

    /// A kernel of a computation did not complete, so there is no result.
    D033 Stopped {
        /// The kernel.
        kernel: String,
        /// Its outcome.
        outcome: String,
    } ("`{kernel}` did not complete: {outcome}"),
    help "this device allows too few loop trips: use another one, such as `cpu`";

    /// Not enough memory.
    D006 OutOfMemory {
        /// Requested bytes.
        requested: u64,
        /// Available bytes.
        available: u64,
    } ("{requested} bytes cannot be allocated: {available} are available"),
    help "free buffers, or work in smaller pieces";

    /// A range is out of bounds of its buffer.
    D007 OutOfRange {
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// Number of elements.
        length: u64,
    } ("elements {start}..{end} are out of bounds: the buffer has {length} elements"),
    help format!("use a range within 0..{length}");

    /// The length of new contents differs from the buffer's.
    D027 WriteLength {
        /// Given bytes.
        given: u64,
        /// Element type of the buffer.
        element: vyre_foundation::ir::Element,
        /// Number of elements of the buffer.
        length: u32,
    } ("{given} bytes cannot replace the {} bytes of [{element}; {length}]", u64::from(*length) * element.size() as u64),
    help "write all elements at once, or write to a part of the buffer: `buffer.slice(0..n)`";

    /// A number of bytes is not a multiple of the element size.
    D026 ElementSize {
        /// Bytes of an element.
        size: usize,
        /// Bytes of the buffer, or offset of its start.
        bytes: u64,
    } ("{bytes} bytes are not a multiple of the element size of {size} bytes"),
    help "use a type whose size divides that of the buffer's elements";

    /// The buffer of an indirect grid is not three u32.
    D008 IndirectGrid {
        /// Type and length of the buffer.
        found: String,
    } ("an indirect grid is three u32, but the buffer has {found}"),
    help "pass a buffer of three u32, or a slice: `buffer.slice(0..3)`";

    /// The records of earlier dispatches are damaged, and ignored as a whole.
    D013 Hints {
        /// File of the records.
        file: std::path::PathBuf,
        /// Its damage.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "no action needed: the file is replaced after the next run";

    /// A cached program is damaged. The file was deleted, and the program optimized again.
    D014 CachedProgram {
        /// The file.
        file: std::path::PathBuf,
        /// Its damage.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "no action needed: the file was deleted, and the program optimized again";

    /// Other users may have written to the cache folder, so it is not used.
    D050 UntrustedFolder {
        /// The folder.
        folder: std::path::PathBuf,
        /// Failed condition.
        reason: crate::private_folder::Distrust,
    } ("the cache folder {} is not used: {reason}", folder.display()),
    help reason.help(folder);

    /// The budget of launches is zero.
    D015 ZeroBudget ("the budget of a launch is 0 bytes"),
    help "set a budget of at least the bytes of the largest stage";

    /// Two stages of a sequence have the same id.
    D016 DuplicateStage {
        /// The id.
        id: u32,
    } ("two stages have the id {id}"), help "give every stage of a sequence a unique id";

    /// A stage exceeds the budget by itself, and cannot join a group.
    D017 StageOverBudget {
        /// The stage.
        id: u32,
        /// Required bytes.
        required: u64,
        /// Budget in bytes.
        budget: u64,
    } ("stage {id} alone needs {required} bytes, but the budget of a launch is {budget} bytes"),
    help format!("raise the budget to {required} bytes, or split the stage into smaller ones");

    /// A plan exceeds its budget.
    D018 OverBudget {
        /// Exceeding quantity.
        field: &'static str,
        /// Required amount.
        required: u64,
        /// Budget.
        budget: u64,
    } ("{field}: {required} B are needed, but the budget is {budget} B"),
    help format!("raise the budget so that {required} bytes fit, or work in smaller pieces");

    /// A sum of a plan overflows its type.
    D019 Overflow {
        /// Summed quantity.
        field: &'static str,
    } ("{field}: the sum overflows"),
    help "check the sizes that were passed: those that fit a device do not overflow";

    /// Not enough host memory for a plan.
    D020 Reservation {
        /// Entries to allocate.
        field: &'static str,
        /// Requested number of entries.
        requested: usize,
    } ("{field}: not enough host memory for {requested} entries"),
    help "plan fewer at a time, or free memory";

    /// A dependency names a wave that does not exist.
    D021 UnknownWave {
        /// Predecessor.
        before: usize,
        /// Successor.
        after: usize,
        /// Number of waves.
        wave_count: usize,
    } ("wave {after} depends on wave {before}, but the waves are 0..{wave_count}"),
    help match wave_count {
        0 => "remove the dependency: there are no waves".to_owned(),
        count => format!("use waves up to {}, or raise their count", count - 1),
    };

    /// A wave depends on itself.
    D022 SelfDependency {
        /// The wave.
        wave: usize,
    } ("wave {wave} depends on itself"), help "remove this dependency";

    /// The dependencies of waves have a cycle.
    D023 Cycle {
        /// Number of waves on cycles or behind them.
        unscheduled: usize,
    } ("the dependencies have a cycle: {unscheduled} waves can never start"),
    help "remove a dependency from every cycle";

    /// The results of a submission were already taken.
    D012 AlreadyTaken ("the results were already taken"), help "keep the results that `wait_timeout` or `poll` returned";

    /// The submission was cancelled before it was done.
    D009 Cancelled ("the submission was cancelled"), help "submit it again";

    /// The device was lost, with all unacknowledged submissions.
    D010 DeviceLost {
        /// Reason given by the device.
        reason: String,
        /// Submissions not known to be completed when the loss was detected, in order.
        unacknowledged: Vec<Unacknowledged>,
    } ("the device was lost: {reason}"), help "open the device and upload the data again";

    /// A device opened before `fork` was used in the child process.
    D045 Forked {
        /// The backend.
        backend: &'static str,
    } ("the device {backend} was opened before `fork`, and its threads are in the parent process only"),
    help "open a device in the child process, or call `exec` in it";

    /// A backend failed, through no fault of the caller.
    D011 Backend {
        /// The backend.
        backend: &'static str,
        /// Reason given by the backend.
        reason: String,
    } ("{backend} failed: {reason}"), help "this may be a bug in vyre or in a driver: please report it";
}
