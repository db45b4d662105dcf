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
    /// Executes items of a megakernel, by their numbers in its session.
    Items(Vec<u64>),
}

error_table! {
    /// What can go wrong between a validated program and its results.
    enum Error wraps {
        /// An argument, a grid or a program that is wrong in itself.
        Foundation(#[from] error: vyre_foundation::Error) code error.code(), help error.help();
    }

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

    /// A program that is no operation of a megakernel.
    D030 NotAnOp {
        /// The program.
        program: String,
        /// What is wrong with it.
        reason: String,
    } ("`{program}` cannot be an operation: {reason}"),
    help "its objects are `input`, `output`, `param`, or `hits` with `hit_count`, of 32-bit elements";

    /// A handle that names no memory.
    D031 NoSuchHandle {
        /// The handle.
        handle: u32,
    } ("handle {handle} names no memory of this session"),
    help "use a handle that this session has given, before it is freed";

    /// A tenant that a megakernel does not have.
    D036 NoSuchTenant {
        /// The tenant.
        tenant: u32,
        /// How many there are.
        count: u32,
    } ("there is no tenant {tenant}: the session has {count}"),
    help "give the session a share for each tenant, and count tenants from 0";

    /// A handle that names memory of another tenant.
    D037 ForeignHandle {
        /// The handle.
        handle: u32,
        /// Who used it.
        tenant: u32,
    } ("handle {handle} does not belong to tenant {tenant}"),
    help "use handles with the tenant that they were given to";

    /// A tenant asks for more of the arena than it may have.
    D038 OverQuota {
        /// The tenant.
        tenant: u32,
        /// Bytes that it asks for.
        requested: u64,
        /// Bytes that it may still have.
        available: u64,
    } ("tenant {tenant} asks for {requested} bytes of the arena, but may have {available} more"),
    help "free what the tenant does not need, or give it a larger share";

    /// The operating system gave no thread.
    D040 NoThread {
        /// Purpose of the thread.
        purpose: &'static str,
        /// Error of the operating system.
        reason: String,
    } ("no thread for {purpose}: {reason}"),
    help "raise the limits of the process on threads and memory (`ulimit -u`, `ulimit -v`), or drop sessions that are not needed";

    /// A megakernel session has no handle left to give.
    D041 OutOfHandles {
        /// Handles in use.
        live: u32,
    } ("the session has no handle left: {live} are in use, and a handle is never given twice"),
    help "free handles, or allocate fewer and larger parts; a session that has given 2^32 handles has to be replaced";

    /// A file that holds no graph.
    D032 GraphFile {
        /// The file.
        file: std::path::PathBuf,
        /// The line, counted from 1, if one is to blame.
        line: Option<u64>,
        /// What is wrong.
        reason: String,
    } ("{}{}: {reason}", file.display(), line.map_or(String::new(), |line| format!(":{line}"))),
    help "graphs are Matrix Market (.mtx), GAP (.sg, .wsg), or lines `SOURCE TARGET [WEIGHT]`; texts may be .gz";

    /// A kernel of a computation did not run to its end, so that there is no result.
    D033 Stopped {
        /// The kernel.
        kernel: String,
        /// How it ended.
        outcome: String,
    } ("`{kernel}` did not run to its end: {outcome}"),
    help "this device allows too few loop trips: use another one, such as `cpu`";

    /// A result that was checked by other means is wrong.
    D034 WrongResult {
        /// What was computed.
        algorithm: &'static str,
        /// The first node for which it is wrong.
        node: u32,
        /// What is wrong.
        reason: String,
    } ("the result of {algorithm} is wrong at node {node}: {reason}"),
    help "this is a bug in vyre or in a driver: please report it, with the graph";

    /// What is asked makes sense only where every edge can be followed both ways.
    D035 NotSymmetric ("the graph is directed"),
    help "let every edge be followed both ways, with `Graph::symmetric` or `--symmetric`";

    /// A file that should hold a graph that was built before and does not. It was deleted, and the graph built again.
    D039 CachedGraph {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    } ("{}: {reason}", file.display()), help "nothing to do: it was deleted, and the graph was built again";

    /// A node that the graph does not have.
    D046 NoSuchNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    } ("node {node} is outside of a graph of {nodes} nodes"),
    help match nodes {
        0 => "use a graph that has nodes".to_owned(),
        nodes => format!("use a node from 0 to {}", nodes - 1),
    };

    /// A fixed topology that follows no edges, so that a traversal would never end.
    D047 FixedTopology {
        /// The topology.
        topology: &'static str,
    } ("the topology `{topology}` follows no edges, so it cannot be fixed for every step"),
    help "fix a sparse, hybrid, dense, fused dense or memory-constrained topology, or leave the choice to the policy";

    /// Host memory beyond the limit for reading, generating and building graphs.
    D048 OverMemoryLimit {
        /// Subject of the estimate, with its size.
        subject: String,
        /// Bytes that are needed.
        required: u64,
        /// Bytes that are allowed.
        limit: u64,
    } ("{subject}: {required} bytes of memory are needed, but the limit is {limit}"),
    help "use a smaller graph, number its nodes without gaps, or raise the limit (`--memory-limit BYTES`)";

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
        reason: String,
    } ("{}: {reason}", file.display()), help "nothing to do: the file is replaced when a program has run";

    /// A file that should hold an optimized program and does not. It was deleted, and the program optimized again.
    D014 CachedProgram {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong.
        reason: String,
    } ("{}: {reason}", file.display()), help "nothing to do: it was deleted, and the program was optimized again";

    /// A cache folder that other users may have written to. Nothing in it is used.
    D050 UntrustedFolder {
        /// The folder.
        folder: std::path::PathBuf,
        /// The condition that it fails.
        reason: String,
    } ("the cache folder {} is not used: {reason}", folder.display()),
    help format!(
        "delete it, or run `chmod 700 {}` if only you have written to it; VYRE_CACHE names another folder",
        folder.display()
    );

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

    /// A launch is planned for a device that can run nothing.
    D024 ZeroLimit {
        /// What is 0.
        field: &'static str,
    } ("{field} of the device is 0"), help "give the limits that the device reports";

    /// A threshold that nothing can reach.
    D025 Threshold {
        /// Which one.
        field: &'static str,
        /// What it is.
        bps: u16,
    } ("{field} is {bps} basis points, but all there is are 10000"), help "give at most 10000 basis points";

    /// A fused launch that cannot keep a limit of its dispatches.
    D028 UnplannedLimit {
        /// The program of the launch.
        launch: String,
        /// The limit, and why the launch does not keep it.
        reason: String,
    } ("the fused launch `{launch}` cannot keep the limits of its dispatches: {reason}"),
    help "plan the pipeline for these limits: `pipeline.limits(limits)` before `plan`";

    /// A plan that does not execute every recorded dispatch exactly once.
    D029 IncompletePlan {
        /// Position of the first dispatch that is missing, repeated or unknown.
        dispatch: usize,
        /// How often the plan executes it.
        planned: usize,
        /// Number of recorded dispatches.
        recorded: usize,
    } ("the plan executes dispatch {dispatch} {planned} times, but 0..{recorded} were recorded, to be executed once each"),
    help "this is a bug in vyre, unless the fields of the plan were changed: please report it, with the pipeline";

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
