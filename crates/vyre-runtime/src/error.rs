//! The one error of this crate.

use std::path::PathBuf;

use vyre_foundation::error_table;

use crate::graph::BadFile;
use crate::graph::cache::Damage;
use crate::megakernel::BadOp;
use crate::pipeline::UnplannedLimit;

error_table! {
    /// Errors of pipelines, megakernels and graph algorithms.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Error wraps {
        /// A device, a buffer, an argument, a grid or a plan that cannot be used.
        Driver(#[from] error: vyre_driver::Error) message("{0}"), code error.code(), help error.help();
        /// The device of a session is gone.
        DeviceLost {
            /// Error of the device.
            error: vyre_driver::Error,
            /// Numbers in the session of the items that were taken from the queue and are not known to be done.
            items: Vec<u64>,
        } message("{error}"), code error.code(), help error.help();
    };

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
        reason: UnplannedLimit,
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

    /// A program that is no operation of a megakernel.
    D030 NotAnOp {
        /// The program.
        program: String,
        /// What is wrong with it.
        reason: BadOp,
    } ("`{program}` cannot be an operation: {reason}"),
    help "its objects are `input`, `output`, `param`, or `hits` with `hit_count`, of 32-bit elements";

    /// A handle that names no memory.
    D031 NoSuchHandle {
        /// The handle.
        handle: u32,
    } ("handle {handle} names no memory of this session"),
    help "use a handle that this session has given, before it is freed";

    /// A file that holds no graph.
    D032 GraphFile {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1, if one is to blame.
        line: Option<u64>,
        /// What is wrong.
        reason: BadFile,
    } ("{}{}: {reason}", file.display(), line.map_or(String::new(), |line| format!(":{line}"))),
    help "graphs are Matrix Market (.mtx), GAP (.sg, .wsg), or lines `SOURCE TARGET [WEIGHT]`; texts may be .gz";

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

    /// The algorithm needs a graph whose every edge has its reverse.
    D035 NotSymmetric ("the graph is directed"),
    help "let every edge be followed both ways, with `Graph::symmetric` or `--symmetric`";

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

    /// A file that should hold a graph that was built before and does not. It was deleted, and the graph built again.
    D039 CachedGraph {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "nothing to do: it was deleted, and the graph was built again";

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

    /// A dispatch binds a buffer of another pipeline.
    D042 ForeignBuffer {
        /// Object that it is bound to.
        object: String,
    } ("`{object}` is bound to a buffer of another pipeline"),
    help "bind what `buffer` or `attach` of this pipeline returned";

    /// A frontier of another engine.
    D043 ForeignFrontier ("the frontier belongs to another engine, which may have another graph"),
    help "use frontiers with the engine whose `frontier` made them";

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
}

impl From<vyre_foundation::Error> for Error {
    fn from(error: vyre_foundation::Error) -> Error {
        Error::Driver(error.into())
    }
}
