//! Error table of the crate.

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
        /// Error of the driver: device, buffer, argument, grid or plan.
        Driver(#[from] error: vyre_driver::Error) message("{0}"), code error.code(), help error.help();
        /// A session lost its device.
        DeviceLost {
            /// Error of the device.
            error: vyre_driver::Error,
            /// Sequence numbers of the items that left the queue and did not complete.
            items: Vec<u64>,
        } message("{error}"), code error.code(), help error.help();
    };

    /// A launch policy was given a device limit of 0.
    D024 ZeroLimit {
        /// The limit.
        field: &'static str,
    } ("{field} of the device is 0"), help "take the limits from `Device::capabilities`";

    /// A threshold of more than 100 %.
    D025 Threshold {
        /// The threshold.
        field: &'static str,
        /// Value of the threshold, in basis points.
        bps: u16,
    } ("{field} is {bps} basis points, but at most 10000 (100 %) are possible"), help "give at most 10000 basis points";

    /// A fused launch that cannot keep a limit of its dispatches.
    D028 UnplannedLimit {
        /// The program of the launch.
        launch: String,
        /// The limit, and the reason why the launch does not keep it.
        reason: UnplannedLimit,
    } ("the fused launch `{launch}` cannot keep the limits of its dispatches: {reason}"),
    help "plan the pipeline for these limits: `pipeline.limits(limits)` before `plan`";

    /// A plan that does not execute every recorded dispatch exactly once.
    D029 IncompletePlan {
        /// Position of the first dispatch that is missing, repeated or unknown.
        dispatch: usize,
        /// Executions of this dispatch in the plan.
        planned: usize,
        /// Number of recorded dispatches.
        recorded: usize,
    } ("the plan executes dispatch {dispatch} {planned} times, but must execute each of 0..{recorded} once"),
    help "this is a bug in vyre, unless the fields of the plan were changed: please report it, with the pipeline";

    /// A program that cannot be an op of a megakernel.
    D030 NotAnOp {
        /// The program.
        program: String,
        /// Violated rule.
        reason: BadOp,
    } ("`{program}` cannot be an op: {reason}"),
    help "declare only `input`, `output`, `param`, and `hits` with `hit_count`, all of 32-bit elements";

    /// An unknown or freed handle.
    D031 NoSuchHandle {
        /// The handle.
        handle: u32,
    } ("handle {handle} is not a live allocation of this session"),
    help "use a handle that `Session::allocate` or `Tenant::allocate` returned, before it is freed";

    /// A malformed graph file.
    D032 GraphFile {
        /// The file.
        file: PathBuf,
        /// Line of the fault, counted from 1, if it has one.
        line: Option<u64>,
        /// The fault.
        reason: BadFile,
    } ("{}{}: {reason}", file.display(), line.map_or(String::new(), |line| format!(":{line}"))),
    help "graphs are Matrix Market (.mtx), GAP (.sg, .wsg), or lines `SOURCE TARGET [WEIGHT]`; texts may be .gz";

    /// A result that failed verification on the host.
    D034 WrongResult {
        /// Name of the algorithm.
        algorithm: &'static str,
        /// The first wrong node.
        node: u32,
        /// Actual and expected value.
        reason: String,
    } ("the result of {algorithm} is wrong at node {node}: {reason}"),
    help "this is a bug in vyre or in a driver: please report it, with the graph";

    /// A directed graph, given to an algorithm for undirected ones.
    D035 NotSymmetric ("the graph is directed"),
    help "add the reverse of every edge, with `Graph::symmetric` or `--symmetric`";

    /// A tenant that a megakernel does not have.
    D036 NoSuchTenant {
        /// The tenant.
        tenant: u32,
        /// Number of tenants of the session.
        count: u32,
    } ("there is no tenant {tenant}: the session has {count}"),
    help "give `Config::tenants` one `Share` per tenant; tenants are numbered from 0";

    /// A handle of another tenant.
    D037 ForeignHandle {
        /// The handle.
        handle: u32,
        /// Tenant of the item or call.
        tenant: u32,
    } ("handle {handle} does not belong to tenant {tenant}"),
    help "use a handle only with the tenant that allocated it";

    /// An allocation beyond the arena quota of a tenant.
    D038 OverQuota {
        /// The tenant.
        tenant: u32,
        /// Size of the allocation in bytes.
        requested: u64,
        /// Bytes left in the quota.
        available: u64,
    } ("tenant {tenant} requests {requested} bytes of the arena, but {available} bytes of its quota are left"),
    help "free handles of the tenant with `Tenant::free`, or raise its `Share::bytes`";

    /// A damaged file of the graph cache, which was deleted.
    D039 CachedGraph {
        /// The file.
        file: PathBuf,
        /// The damage.
        reason: Damage,
    } ("{}: {reason}", file.display()), help "nothing to do: it was deleted, and the graph was built again";

    /// The operating system refused to create a thread.
    D040 NoThread {
        /// Purpose of the thread.
        purpose: &'static str,
        /// Error of the operating system.
        reason: String,
    } ("cannot start a thread for {purpose}: {reason}"),
    help "raise the limits of the process on threads and memory (`ulimit -u`, `ulimit -v`), or drop unused sessions";

    /// The handle space of a megakernel session is exhausted.
    D041 OutOfHandles {
        /// Live handles.
        live: u32,
    } ("the session has no handle left: {live} are live, and handles are never reused"),
    help "free handles, or make fewer and larger allocations; replace a session that has issued 2^32 handles";

    /// A dispatch binds a buffer of another pipeline.
    D042 ForeignBuffer {
        /// Object that the buffer is bound to.
        object: String,
    } ("`{object}` is bound to a buffer of another pipeline"),
    help "bind a buffer that `Pipeline::buffer` or `Pipeline::attach` of this pipeline returned";

    /// A frontier of another engine.
    D043 ForeignFrontier ("the frontier belongs to another engine, which may have another graph"),
    help "create the frontier with `Engine::frontier` of the engine that advances it";

    /// A node that is not in the graph.
    D046 NoSuchNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: u32,
    } ("node {node} is out of bounds of a graph of {nodes} nodes"),
    help match nodes {
        0 => "use a graph that has nodes".to_owned(),
        nodes => format!("use a node from 0 to {}", nodes - 1),
    };

    /// A fixed topology that follows no edges, with which a traversal would not terminate.
    D047 FixedTopology {
        /// The topology.
        topology: &'static str,
    } ("the topology `{topology}` follows no edges, so it cannot be fixed for every step"),
    help "fix a sparse, hybrid, dense, fused dense or memory-constrained topology, or leave the choice to the policy";

    /// Host memory beyond the limit for reading, generating and building graphs.
    D048 OverMemoryLimit {
        /// Subject of the estimate, with its size.
        subject: String,
        /// Required bytes.
        required: u64,
        /// Limit in bytes.
        limit: u64,
    } ("{subject}: {required} bytes of memory are required, but the limit is {limit}"),
    help "use a smaller graph, number its nodes without gaps, or raise the limit (`--memory-limit BYTES`)";
}

impl From<vyre_foundation::Error> for Error {
    fn from(error: vyre_foundation::Error) -> Error {
        Error::Driver(error.into())
    }
}
