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
    /// A program that is no operation of a megakernel.
    #[error("`{program}` cannot be an operation: {reason}")]
    NotAnOp {
        /// The program.
        program: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A handle that names no memory.
    #[error("handle {handle} names no memory of this session")]
    NoSuchHandle {
        /// The handle.
        handle: u32,
    },
    /// A file that holds no graph.
    #[error("{}{}: {reason}", file.display(), line.map_or(String::new(), |line| format!(":{line}")))]
    GraphFile {
        /// The file.
        file: std::path::PathBuf,
        /// The line, counted from 1, if one is to blame.
        line: Option<u64>,
        /// What is wrong.
        reason: String,
    },
    /// What is asked makes sense only where every edge can be followed both ways.
    #[error("the graph is directed")]
    NotSymmetric,
    /// A kernel of a computation did not run to its end, so that there is no result.
    #[error("`{kernel}` did not run to its end: {outcome}")]
    Stopped {
        /// The kernel.
        kernel: String,
        /// How it ended.
        outcome: String,
    },
    /// A result that was checked by other means is wrong.
    #[error("the result of {algorithm} is wrong at node {node}: {reason}")]
    WrongResult {
        /// What was computed.
        algorithm: &'static str,
        /// The first node for which it is wrong.
        node: u32,
        /// What is wrong.
        reason: String,
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
    /// Launches are planned for a budget of nothing.
    #[error("a launch may take 0 bytes, which no stage fits")]
    ZeroBudget,
    /// Two stages of a sequence have the same id.
    #[error("stage {id} is there twice")]
    DuplicateStage {
        /// The id.
        id: u32,
    },
    /// A stage that cannot join a group, and is too large by itself.
    #[error("stage {id} needs {required} bytes by itself, but a launch may take {budget}")]
    StageOverBudget {
        /// The stage.
        id: u32,
        /// What it needs.
        required: u64,
        /// What there is.
        budget: u64,
    },
    /// Something that a plan needs is too large.
    #[error("{field}: {required} are needed, but the budget has {budget}")]
    OverBudget {
        /// What it is.
        field: &'static str,
        /// How much is needed.
        required: u64,
        /// How much there is.
        budget: u64,
    },
    /// A sum of a plan does not fit its type.
    #[error("{field}: the sum is too large to be counted")]
    Overflow {
        /// What is summed up.
        field: &'static str,
    },
    /// There is no memory to make a plan in.
    #[error("{field}: there is no memory for {requested} of them")]
    Reservation {
        /// What the memory is for.
        field: &'static str,
        /// How many there are to be.
        requested: usize,
    },
    /// A dependency of a wave that does not exist.
    #[error("wave {after} depends on wave {before}, but the waves are 0..{wave_count}")]
    UnknownWave {
        /// The wave that comes first.
        before: usize,
        /// The wave that waits.
        after: usize,
        /// How many there are.
        wave_count: usize,
    },
    /// A wave waits for itself.
    #[error("wave {wave} depends on itself")]
    SelfDependency {
        /// The wave.
        wave: usize,
    },
    /// Waves wait for each other.
    #[error("{unscheduled} waves can never begin: they wait for each other, or for others that do")]
    Cycle {
        /// How many.
        unscheduled: usize,
    },
    /// A launch is planned for a device that can run nothing.
    #[error("{field} of the device is 0")]
    ZeroLimit {
        /// What is 0.
        field: &'static str,
    },
    /// A threshold that nothing can reach.
    #[error("{field} is {bps} basis points, but all there is are 10000")]
    Threshold {
        /// Which one.
        field: &'static str,
        /// What it is.
        bps: u16,
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
            Error::NotAnOp { .. } => "D030",
            Error::NoSuchHandle { .. } => "D031",
            Error::GraphFile { .. } => "D032",
            Error::Stopped { .. } => "D033",
            Error::WrongResult { .. } => "D034",
            Error::NotSymmetric => "D035",
            Error::ZeroBudget => "D015",
            Error::DuplicateStage { .. } => "D016",
            Error::StageOverBudget { .. } => "D017",
            Error::OverBudget { .. } => "D018",
            Error::Overflow { .. } => "D019",
            Error::Reservation { .. } => "D020",
            Error::UnknownWave { .. } => "D021",
            Error::SelfDependency { .. } => "D022",
            Error::Cycle { .. } => "D023",
            Error::ZeroLimit { .. } => "D024",
            Error::Threshold { .. } => "D025",
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
            Error::NotAnOp { .. } => {
                "its objects are `input`, `output`, `param`, or `hits` with `hit_count`, of 32-bit elements".into()
            }
            Error::NoSuchHandle { .. } => "use a handle that this session has given, before it is freed".into(),
            Error::GraphFile { .. } => {
                "graphs are Matrix Market (.mtx), GAP (.sg, .wsg), or lines `SOURCE TARGET [WEIGHT]`; texts may be .gz"
                    .into()
            }
            Error::Stopped { .. } => "this device allows too few loop trips: use another one, such as `cpu`".into(),
            Error::WrongResult { .. } => {
                "this is a bug in vyre or in a driver: please report it, with the graph".into()
            }
            Error::NotSymmetric => {
                "let every edge be followed both ways, with `Graph::symmetric` or `--symmetric`".into()
            }
            Error::IndirectGrid { .. } => "give a buffer, or a part of one, of three u32".into(),
            Error::AlreadyTaken => "keep the results that `wait_timeout` or `poll` gave".into(),
            Error::Hints { .. } => "nothing to do: the file is replaced when a program has run".into(),
            Error::CachedProgram { .. } => "nothing to do: it was deleted, and the program was optimized again".into(),
            Error::ZeroBudget => "give a budget of at least what the largest stage needs".into(),
            Error::DuplicateStage { .. } => "give every stage of a sequence an id of its own".into(),
            Error::StageOverBudget { required, .. } => {
                format!("raise the budget to {required} bytes, or split the stage into smaller ones")
            }
            Error::OverBudget { required, .. } => {
                format!("raise the budget so that {required} bytes fit, or work in smaller pieces")
            }
            Error::Overflow { .. } => "give the sizes that are meant; those of real devices can be counted".into(),
            Error::Reservation { .. } => "plan fewer at a time, or free memory".into(),
            Error::UnknownWave { wave_count, .. } => match wave_count {
                0 => "leave out dependencies where there are no waves".into(),
                count => format!("use waves up to {}, or raise their count", count - 1),
            },
            Error::SelfDependency { .. } => "leave out this dependency".into(),
            Error::Cycle { .. } => "leave out a dependency of every cycle".into(),
            Error::ZeroLimit { .. } => "give the limits that the device reports".into(),
            Error::Threshold { .. } => "give at most 10000 basis points".into(),
            Error::Cancelled => "submit it again".into(),
            Error::DeviceLost { .. } => "open the device again and upload the data again".into(),
            Error::Backend { .. } => "this may be a bug in vyre or in a driver: please report it".into(),
        }
    }
}
