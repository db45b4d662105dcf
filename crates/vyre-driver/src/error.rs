//! The one error of this crate.

use std::sync::Arc;

use vyre_foundation::error_table;

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

/// Reason why a file that was kept for later processes cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A name that is not the key of such contents.
    #[error("its name is not that of a {0}")]
    Name(&'static str),
    /// Error of the operating system.
    #[error("{0}")]
    Io(String),
    /// A file that ends early.
    #[error("it is cut off")]
    CutOff,
    /// Contents that do not have their checksum.
    #[error("it is damaged: its checksum is another")]
    Checksum,
    /// A file of another version of the format.
    #[error("it is of another version")]
    Version,
    /// A program that is not the one that is looked for.
    #[error("it was made of another program, with other passes or by another optimizer")]
    Key,
    /// A module of no program, or of several.
    #[error("it is not one program")]
    ProgramCount,
    /// Another number of places in sources than the program has.
    #[error("it does not say where everything was written")]
    Places,
    /// Contents that cannot be decoded, or are not valid.
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
    /// What can go wrong between a validated program and its results.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Error wraps {
        /// An argument, a grid or a program that is wrong in itself.
        Foundation(#[from] error: vyre_foundation::Error) message("{0}"), code error.code(), help error.help();
    };

    /// The device lacks something that the program needs.
    D001 Unsupported {
        /// What is needed.
        needed: String,
        /// What there is.
        available: String,
    } ("the device has {available}, but the program needs {needed}"),
    help "use another device (`vyre devices` lists them), or change the program";

    /// No backend of this name.
    D002 NoSuchDevice {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    } ("there is no device named `{name}`"), help format!("there are: {}", known.join(", "));

    /// The backend found nothing to run on.
    D003 NoAdapter {
        /// The backend.
        backend: &'static str,
        /// What it found, and what would help.
        reason: String,
    } ("{backend} has no device: {reason}"), help "`--device cpu` needs no driver";

    /// A buffer or kernel of another device.
    D004 Foreign {
        /// The argument, or the name of the kernel.
        name: String,
    } ("`{name}` belongs to another device"), help "use buffers and kernels with the device that made them";

    /// A buffer of a device that was lost since.
    D005 Stale {
        /// The argument.
        name: String,
    } ("`{name}` was lost with its device"), help "upload the data again";

    /// A kernel of a computation did not run to its end, so that there is no result.
    D033 Stopped {
        /// The kernel.
        kernel: String,
        /// How it ended.
        outcome: String,
    } ("`{kernel}` did not run to its end: {outcome}"),
    help "this device allows too few loop trips: use another one, such as `cpu`";

    /// More memory than there is.
    D006 OutOfMemory {
        /// How much was asked for.
        requested: u64,
        /// How much there is.
        available: u64,
    } ("{requested} bytes cannot be allocated: {available} are available"),
    help "free buffers, or work in smaller pieces";

    /// A range that reaches beyond its buffer.
    D007 OutOfRange {
        /// First element.
        start: u64,
        /// One past the last element.
        end: u64,
        /// Elements there are.
        length: u64,
    } ("elements {start}..{end} are outside of a buffer of {length}"), help "use a range inside the buffer";

    /// Contents that are not as long as the buffer that they replace.
    D027 WriteLength {
        /// Bytes that were given.
        given: u64,
        /// Element type of the buffer.
        element: vyre_foundation::ir::Element,
        /// Elements of the buffer.
        length: u32,
    } ("{given} bytes cannot replace the {} bytes of [{element}; {length}]", u64::from(*length) * element.size() as u64),
    help "write all elements at once, or write to a part of the buffer: `buffer.slice(0..n)`";

    /// A number of bytes that is not a multiple of the size of an element.
    D026 ElementSize {
        /// Bytes of an element.
        size: usize,
        /// Bytes of the buffer, or before it.
        bytes: u64,
    } ("{bytes} bytes are not a multiple of elements of {size} bytes"),
    help "use a type whose size divides that of the buffer's elements";

    /// An indirect grid needs three u32.
    D008 IndirectGrid {
        /// What the buffer holds.
        found: String,
    } ("an indirect grid is three u32, but the buffer has {found}"),
    help "give a buffer, or a part of one, of three u32";

    /// Records of earlier dispatches that cannot be used; nothing of them is.
    D013 Hints {
        /// The file that keeps them.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "nothing to do: the file is replaced when a program has run";

    /// A file that should hold an optimized program and does not. It was deleted, and the program optimized again.
    D014 CachedProgram {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "nothing to do: it was deleted, and the program was optimized again";

    /// A cache folder that other users may have written to. Nothing in it is used.
    D050 UntrustedFolder {
        /// The folder.
        folder: std::path::PathBuf,
        /// The condition that it fails.
        reason: crate::private_folder::Distrust,
    } ("the cache folder {} is not used: {reason}", folder.display()),
    help reason.help(folder);

    /// Launches are planned for a budget of nothing.
    D015 ZeroBudget ("a launch may take 0 bytes, which no stage fits"),
    help "give a budget of at least what the largest stage needs";

    /// Two stages of a sequence have the same id.
    D016 DuplicateStage {
        /// The id.
        id: u32,
    } ("stage {id} is there twice"), help "give every stage of a sequence an id of its own";

    /// A stage that cannot join a group, and is too large by itself.
    D017 StageOverBudget {
        /// The stage.
        id: u32,
        /// What it needs.
        required: u64,
        /// What there is.
        budget: u64,
    } ("stage {id} needs {required} bytes by itself, but a launch may take {budget}"),
    help format!("raise the budget to {required} bytes, or split the stage into smaller ones");

    /// Something that a plan needs is too large.
    D018 OverBudget {
        /// What it is.
        field: &'static str,
        /// How much is needed.
        required: u64,
        /// How much there is.
        budget: u64,
    } ("{field}: {required} are needed, but the budget has {budget}"),
    help format!("raise the budget so that {required} bytes fit, or work in smaller pieces");

    /// A sum of a plan does not fit its type.
    D019 Overflow {
        /// What is summed up.
        field: &'static str,
    } ("{field}: the sum is too large to be counted"),
    help "give the sizes that are meant; those of real devices can be counted";

    /// There is no memory to make a plan in.
    D020 Reservation {
        /// What the memory is for.
        field: &'static str,
        /// How many there are to be.
        requested: usize,
    } ("{field}: there is no memory for {requested} of them"), help "plan fewer at a time, or free memory";

    /// A dependency of a wave that does not exist.
    D021 UnknownWave {
        /// The wave that comes first.
        before: usize,
        /// The wave that waits.
        after: usize,
        /// How many there are.
        wave_count: usize,
    } ("wave {after} depends on wave {before}, but the waves are 0..{wave_count}"),
    help match wave_count {
        0 => "leave out dependencies where there are no waves".to_owned(),
        count => format!("use waves up to {}, or raise their count", count - 1),
    };

    /// A wave waits for itself.
    D022 SelfDependency {
        /// The wave.
        wave: usize,
    } ("wave {wave} depends on itself"), help "leave out this dependency";

    /// Waves wait for each other.
    D023 Cycle {
        /// How many.
        unscheduled: usize,
    } ("{unscheduled} waves can never begin: they wait for each other, or for others that do"),
    help "leave out a dependency of every cycle";

    /// The results of a submission are given once.
    D012 AlreadyTaken ("the results were taken before"), help "keep the results that `wait_timeout` or `poll` gave";

    /// The submission was cancelled before it was done.
    D009 Cancelled ("the submission was cancelled"), help "submit it again";

    /// The device is gone; what was not acknowledged is lost.
    D010 DeviceLost {
        /// What the device said.
        reason: String,
        /// What was submitted and not known to be done when the loss was noticed, in order.
        unacknowledged: Vec<Unacknowledged>,
    } ("the device was lost: {reason}"), help "open the device again and upload the data again";

    /// A device that was opened before `fork`, used in the child process.
    D045 Forked {
        /// The backend.
        backend: &'static str,
    } ("the device {backend} was opened before `fork`, and its threads are in the parent process only"),
    help "open a device in the child process, or call `exec` in it";

    /// A backend failed in a way that is not the caller's fault.
    D011 Backend {
        /// The backend.
        backend: &'static str,
        /// What it said.
        reason: String,
    } ("{backend} failed: {reason}"), help "this may be a bug in vyre or in a driver: please report it";
}
