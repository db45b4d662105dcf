//! How a queue of items is launched: with how many workers, in how much memory, interpreted or compiled, and what for.
//!
//! ```text
//! Request   what is queued, what the device can do, what earlier launches have shown
//!   → density and pressure, where they are not given
//!   → what is hot enough to be promoted
//!   → topology        which way to walk the queue; it does not change for every wobble of density or pressure
//!   → worker groups   fewer where memory is short or the frontier is sparse
//!   → geometry        lanes and groups of the launch
//!   → hit capacity    and with it the peak of memory, which has to fit the budget
//! Recommendation   all of this, and the evidence for it
//! ```
//!
//! Shares are in basis points (bps): 10 000 of them are the whole.

use std::cell::RefCell;
use std::num::NonZeroU32;

use vyre_driver::Error as DriverError;

use crate::Error;

/// What a launch is recommended for. A 0 means that something is not known or not wanted, except for limits of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Items in the queue.
    pub queue_len: u32,
    /// Groups of workers that the caller wants.
    pub requested_worker_groups: u32,
    /// Invocations of a workgroup along x.
    pub max_workgroup_size_x: u32,
    /// Workgroups along one dimension of a launch.
    pub max_compute_workgroups_per_dimension: u32,
    /// Invocations of a workgroup.
    pub max_compute_invocations_per_workgroup: u32,
    /// Hits that the caller wants room for.
    pub requested_hit_capacity: u32,
    /// Hits that an item has.
    pub expected_hits_per_item: u32,
    /// Ops that were met often.
    pub hot_opcode_count: u32,
    /// Chains of ops that were met often.
    pub hot_window_count: u32,
    /// How long the oldest item waits.
    pub max_priority_age: u32,
    /// Nodes of the graph that the queue is a frontier of.
    pub graph_node_count: u32,
    /// Edges of that graph.
    pub graph_edge_count: u32,
    /// Items that were put back into the queue.
    pub requeue_count: u64,
    /// The part of the graph that is in the frontier.
    pub frontier_density_bps: u16,
    /// The part of device memory that is in use.
    pub memory_pressure_bps: u16,
    /// Device memory that stays in use.
    pub resident_device_bytes: u64,
    /// Device memory that may be used.
    pub device_memory_budget_bytes: u64,
    /// What the launch before this one was.
    pub previous_topology: Option<Topology>,
}

impl Request {
    /// So many items for so many groups of so many lanes, each with one hit, and nothing else known.
    pub const fn direct(queue_len: u32, worker_groups: u32, max_workgroup_size_x: u32) -> Request {
        Request {
            queue_len,
            requested_worker_groups: worker_groups,
            max_workgroup_size_x,
            max_compute_workgroups_per_dimension: worker_groups,
            max_compute_invocations_per_workgroup: max_workgroup_size_x,
            requested_hit_capacity: 0,
            expected_hits_per_item: 1,
            hot_opcode_count: 0,
            hot_window_count: 0,
            max_priority_age: 0,
            graph_node_count: 0,
            graph_edge_count: 0,
            requeue_count: 0,
            frontier_density_bps: 0,
            memory_pressure_bps: 0,
            resident_device_bytes: 0,
            device_memory_budget_bytes: 0,
            previous_topology: None,
        }
    }
}

/// How many lanes a workgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// As many as the device allows.
    Widest,
    /// As many as the device prefers, and no more than it allows.
    Preferred(NonZeroU32),
}

/// What decides. The default is the standard policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The least room for hits, unless the caller asks for less.
    pub min_hit_capacity: u32,
    /// So many times the hits that are expected have room, while memory is not short.
    pub hit_capacity_multiplier: u32,
    /// A queue this many times as long as the launch has lanes saturates it.
    pub saturated_waves: u32,
    /// From this many on, hot ops are promoted.
    pub hot_opcode_threshold: u32,
    /// From this many on, hot windows are promoted.
    pub hot_window_threshold: u32,
    /// From this length on, compiling pays for any queue.
    pub jit_queue_len_threshold: u32,
    /// From this age on, waiting items move up.
    pub priority_age_threshold: u32,
    /// A frontier is sparse up to this density.
    pub sparse_frontier_threshold_bps: u16,
    /// A frontier is dense from this density on.
    pub dense_frontier_threshold_bps: u16,
    /// Memory is short from this pressure on.
    pub memory_pressure_threshold_bps: u16,
    /// From this many edges on, a dense frontier is worth fusing for.
    pub fusion_edge_threshold: u32,
    /// What a hit takes.
    pub scratch_bytes_per_hit: u32,
    /// How wide workgroups are.
    pub sizing: Sizing,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            min_hit_capacity: 1024,
            hit_capacity_multiplier: 2,
            saturated_waves: 4,
            hot_opcode_threshold: 8,
            hot_window_threshold: 4,
            jit_queue_len_threshold: 4096,
            priority_age_threshold: 32,
            sparse_frontier_threshold_bps: 500,
            dense_frontier_threshold_bps: 4000,
            memory_pressure_threshold_bps: 8500,
            fusion_edge_threshold: 65_536,
            scratch_bytes_per_hit: 16,
            sizing: Sizing::Widest,
        }
    }
}

/// Which way a queue is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// There is nothing to do.
    Empty,
    /// Memory is short, so few work at a time.
    MemoryConstrained,
    /// Few nodes are in the frontier.
    SparseFrontier,
    /// Neither sparse nor dense.
    HybridFrontier,
    /// Many nodes are in the frontier.
    DenseFrontier,
    /// Dense, and large and hot enough to be fused.
    FusedDense,
}

/// The sort of a topology: whether it is fused does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing to do.
    Empty,
    /// Few nodes.
    Sparse,
    /// Neither few nor many.
    Hybrid,
    /// Many nodes, fused or not.
    Dense,
    /// Short of memory.
    MemoryConstrained,
}

/// How much there is to do, compared with the lanes that do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Nothing.
    Empty,
    /// Less than an item for each lane.
    Light,
    /// An item or a few for each lane.
    Balanced,
    /// Many for each lane, or some had to be put back.
    Saturated,
}

/// How ops are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One kernel that has all of them.
    Interpreter,
    /// A kernel for each.
    Jit,
}

/// What is compiled, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Nothing.
    Interpreter,
    /// The queue is long enough to compile what it has.
    QueueJit,
    /// Hot ops.
    OpcodeJit,
    /// Hot windows.
    WindowJit,
    /// Both.
    OpcodeAndWindowJit,
}

/// The shape of the launch. Workers loop, so every item is executed, even where there are fewer lanes than slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Lanes of a workgroup.
    pub width: u32,
    /// Workgroups.
    pub grid: u32,
    /// The length of the queue, rounded up to whole workgroups.
    pub slots: u64,
}

/// What to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// The shape of the launch.
    pub geometry: Geometry,
    /// No more than so many groups may work at a time.
    pub worker_groups: u32,
    /// How many hits there is room for.
    pub hit_capacity: u32,
    /// How much there is to do.
    pub pressure: Pressure,
    /// How ops are executed.
    pub execution_mode: Mode,
    /// Which way the queue is walked.
    pub topology: Topology,
    /// Hot ops get kernels of their own.
    pub promote_hot_opcodes: bool,
    /// Hot windows are fused into kernels.
    pub promote_hot_windows: bool,
    /// Items that have waited for long come first.
    pub age_priority_work: bool,
    /// Device memory that is in use while this runs.
    pub estimated_peak_device_bytes: u64,
    /// Device memory that may be used; 0 if that is not known.
    pub device_memory_budget_bytes: u64,
    /// Why this topology.
    pub topology_evidence: TopologyEvidence,
    /// Why this mode.
    pub promotion_evidence: PromotionEvidence,
}

/// The version of both kinds of evidence.
pub const EVIDENCE_VERSION: u32 = 1;

/// What the choice of a topology was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyEvidence {
    /// [`EVIDENCE_VERSION`].
    pub schema_version: u32,
    /// How much there is to do.
    pub pressure: Pressure,
    /// The density that was given or inferred, of the frontier as a set of nodes.
    pub frontier_density_bps: u16,
    /// The same of the frontier as a vector over a semiring.
    pub semiring_density_bps: u16,
    /// What was chosen.
    pub topology: Topology,
    /// Its sort.
    pub class: Class,
    /// Device memory that stays in use.
    pub resident_device_bytes: u64,
    /// Device memory that is in use at most.
    pub estimated_peak_device_bytes: u64,
    /// The output must equal that of the oracle.
    pub oracle_parity_required: bool,
}

impl TopologyEvidence {
    /// Whether the choice can be judged by this.
    pub const fn is_complete(&self) -> bool {
        self.schema_version == EVIDENCE_VERSION
            && self.frontier_density_bps <= WHOLE
            && self.semiring_density_bps <= WHOLE
            && self.oracle_parity_required
    }
}

/// What the choice of a mode was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionEvidence {
    /// [`EVIDENCE_VERSION`].
    pub schema_version: u32,
    /// Items in the queue.
    pub queue_len: u32,
    /// From how many on any queue is compiled.
    pub jit_queue_len_threshold: u32,
    /// Hot ops.
    pub hot_opcode_count: u32,
    /// From how many on they are promoted.
    pub hot_opcode_threshold: u32,
    /// Hot windows.
    pub hot_window_count: u32,
    /// From how many on they are promoted.
    pub hot_window_threshold: u32,
    /// What was chosen.
    pub execution_mode: Mode,
    /// Whether hot ops are promoted.
    pub promote_hot_opcodes: bool,
    /// Whether hot windows are promoted.
    pub promote_hot_windows: bool,
    /// What is compiled, and why.
    pub route: Route,
    /// Whether the launch needs a description of the windows that it fuses.
    pub needs_fused_window: bool,
    /// The output must equal that of the oracle.
    pub oracle_parity_required: bool,
}

impl PromotionEvidence {
    /// Why what is compiled is compiled.
    pub fn describe(&self) -> String {
        let compared = |count: u32, what: &str, threshold: u32| format!("{count} {what} ≥ {threshold}");
        let ops = compared(self.hot_opcode_count, "hot operations", self.hot_opcode_threshold);
        let windows = compared(self.hot_window_count, "hot windows", self.hot_window_threshold);
        match self.route {
            Route::Interpreter => format!("{} items < {}", self.queue_len, self.jit_queue_len_threshold),
            Route::QueueJit => compared(self.queue_len, "items", self.jit_queue_len_threshold),
            Route::OpcodeJit => ops,
            Route::WindowJit => windows,
            Route::OpcodeAndWindowJit => format!("{ops}; {windows}"),
        }
    }

    /// Whether the choice can be judged by this.
    pub const fn is_complete(&self) -> bool {
        self.schema_version == EVIDENCE_VERSION
            && self.jit_queue_len_threshold != 0
            && self.hot_opcode_threshold != 0
            && self.hot_window_threshold != 0
            && self.oracle_parity_required
            && self.needs_fused_window == self.promote_hot_windows
    }
}

/// What the cache of a thread has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Recommendations that it has.
    pub entries: usize,
    /// Requests that it knew.
    pub hits: u64,
    /// Requests that it did not know.
    pub misses: u64,
}

/// What the cache of this thread has done.
pub fn cache_stats() -> CacheStats {
    CACHE.with_borrow(|cache| CacheStats { entries: cache.entries.len(), ..cache.stats })
}

/// Empties the cache of this thread, and counts anew.
pub fn reset_cache() {
    CACHE.take();
}

impl Policy {
    /// Says how to launch a queue.
    ///
    /// A thread remembers its last 128 recommendations without a previous topology.
    pub fn recommend(&self, request: &Request) -> Result<Recommendation, Error> {
        if request.previous_topology.is_some() {
            return self.decide(request);
        }
        CACHE.with_borrow_mut(|cache| {
            let words = words(self, request);
            match cache.find(&words) {
                Some(entry) => Ok(entry.recommendation),
                None => self.decide(request).inspect(|&recommendation| cache.insert(Entry { words, recommendation })),
            }
        })
    }

    fn decide(&self, request: &Request) -> Result<Recommendation, Error> {
        self.check(request)?;
        let queue_len = request.queue_len;
        let density = density(request);
        let memory_pressure = memory_pressure(request);
        let promote_hot_opcodes = request.hot_opcode_count >= self.hot_opcode_threshold;
        let promote_hot_windows = request.hot_window_count >= self.hot_window_threshold;
        let promoted = promote_hot_opcodes || promote_hot_windows;
        let fusable = promoted && has_graph(request) && request.graph_edge_count >= self.fusion_edge_threshold;

        let topology = self.topology(request, density, memory_pressure, fusable);
        let worker_groups = worker_groups(request, self.wanted_groups(request, topology, density, memory_pressure));
        let geometry = self.geometry(request, worker_groups);
        let pressure = self.pressure(request, geometry);
        let hit_capacity = self.hit_capacity(request, memory_pressure)?;
        let scratch = u64::from(hit_capacity) * u64::from(self.scratch_bytes_per_hit);
        let peak = request.resident_device_bytes.checked_add(scratch);
        let estimated_peak_device_bytes = peak.ok_or(DriverError::Overflow { field: "peak device bytes" })?;
        let budget = request.device_memory_budget_bytes;
        if budget != 0 && estimated_peak_device_bytes > budget {
            return Err(DriverError::OutOfMemory { requested: estimated_peak_device_bytes, available: budget }.into());
        }

        let compiled = queue_len >= self.jit_queue_len_threshold || promoted || topology == Topology::FusedDense;
        let execution_mode = if compiled { Mode::Jit } else { Mode::Interpreter };
        let age_priority_work = request.requeue_count > 0 || request.max_priority_age >= self.priority_age_threshold;
        Ok(Recommendation {
            geometry,
            worker_groups,
            hit_capacity,
            pressure,
            execution_mode,
            topology,
            promote_hot_opcodes,
            promote_hot_windows,
            age_priority_work,
            estimated_peak_device_bytes,
            device_memory_budget_bytes: budget,
            topology_evidence: TopologyEvidence {
                schema_version: EVIDENCE_VERSION,
                pressure,
                frontier_density_bps: density,
                semiring_density_bps: density,
                topology,
                class: class(topology),
                resident_device_bytes: request.resident_device_bytes,
                estimated_peak_device_bytes,
                oracle_parity_required: true,
            },
            promotion_evidence: PromotionEvidence {
                schema_version: EVIDENCE_VERSION,
                queue_len,
                jit_queue_len_threshold: self.jit_queue_len_threshold,
                hot_opcode_count: request.hot_opcode_count,
                hot_opcode_threshold: self.hot_opcode_threshold,
                hot_window_count: request.hot_window_count,
                hot_window_threshold: self.hot_window_threshold,
                execution_mode,
                promote_hot_opcodes,
                promote_hot_windows,
                route: route(execution_mode, promote_hot_opcodes, promote_hot_windows),
                needs_fused_window: promote_hot_windows,
                oracle_parity_required: true,
            },
        })
    }

    fn check(&self, request: &Request) -> Result<(), Error> {
        for (field, bps) in [
            ("the sparse frontier threshold", self.sparse_frontier_threshold_bps),
            ("the dense frontier threshold", self.dense_frontier_threshold_bps),
            ("the memory pressure threshold", self.memory_pressure_threshold_bps),
        ] {
            if bps > WHOLE {
                return Err(Error::Threshold { field, bps });
            }
        }
        for (field, limit) in [
            ("max_workgroup_size_x", request.max_workgroup_size_x),
            ("max_compute_workgroups_per_dimension", request.max_compute_workgroups_per_dimension),
            ("max_compute_invocations_per_workgroup", request.max_compute_invocations_per_workgroup),
        ] {
            if limit == 0 {
                return Err(Error::ZeroLimit { field });
            }
        }
        Ok(())
    }

    fn topology(&self, request: &Request, density: u16, memory_pressure: u16, fusable: bool) -> Topology {
        let sparse = self.sparse_frontier_threshold_bps;
        let dense = self.dense_frontier_threshold_bps;
        let short = self.memory_pressure_threshold_bps;
        let raw = if request.queue_len == 0 {
            Topology::Empty
        } else if memory_pressure >= short {
            Topology::MemoryConstrained
        } else if density <= sparse {
            Topology::SparseFrontier
        } else if density < dense {
            Topology::HybridFrontier
        } else if fusable {
            Topology::FusedDense
        } else {
            Topology::DenseFrontier
        };
        let frontier = match raw {
            Topology::Empty | Topology::MemoryConstrained => return raw,
            Topology::SparseFrontier | Topology::HybridFrontier | Topology::DenseFrontier | Topology::FusedDense => raw,
        };
        let Some(previous) = request.previous_topology else { return frontier };
        let below = |threshold: u16| threshold.saturating_sub(HYSTERESIS);
        let above = |threshold: u16| threshold.saturating_add(HYSTERESIS);
        let kept = match previous {
            Topology::Empty => false,
            Topology::MemoryConstrained => memory_pressure >= below(short),
            Topology::SparseFrontier => density <= above(sparse),
            Topology::HybridFrontier => match frontier {
                Topology::SparseFrontier => density >= below(sparse),
                Topology::DenseFrontier | Topology::FusedDense => density <= above(dense),
                Topology::Empty | Topology::MemoryConstrained | Topology::HybridFrontier => false,
            },
            Topology::DenseFrontier => frontier == Topology::HybridFrontier && density >= below(dense),
            Topology::FusedDense => frontier == Topology::HybridFrontier && density >= below(dense) && fusable,
        };
        if kept { previous } else { frontier }
    }

    /// What is left of the groups that were asked for.
    fn wanted_groups(&self, request: &Request, topology: Topology, density: u16, memory_pressure: u16) -> u32 {
        let requested = request.requested_worker_groups;
        if requested <= 1 {
            return requested;
        }
        match topology {
            Topology::MemoryConstrained if memory_pressure > 0 => {
                let threshold = u32::from(self.memory_pressure_threshold_bps);
                // Where the threshold is the whole, only pressure beyond that is more than short.
                let span = (u32::from(WHOLE) - threshold).max(1);
                let beyond = u32::from(memory_pressure).saturating_sub(threshold).min(span);
                let shed_bps = u64::from(QUARTER + beyond * QUARTER / span);
                (requested - (u64::from(requested) * shed_bps / u64::from(WHOLE)) as u32).max(1)
            }
            Topology::SparseFrontier if has_graph(request) => {
                let scaled = u64::from(requested) * u64::from(density);
                // Nothing is denser than a threshold of 0.
                let scaled = scaled.checked_div(self.sparse_frontier_threshold_bps.into()).unwrap_or(u64::MAX);
                scaled.clamp(requested.min(LEAST_SPARSE_GROUPS).into(), requested.into()) as u32
            }
            Topology::Empty
            | Topology::MemoryConstrained
            | Topology::SparseFrontier
            | Topology::HybridFrontier
            | Topology::DenseFrontier
            | Topology::FusedDense => requested,
        }
    }

    fn geometry(&self, request: &Request, worker_groups: u32) -> Geometry {
        let widest = request.max_workgroup_size_x.min(request.max_compute_invocations_per_workgroup);
        let width = match self.sizing {
            Sizing::Widest => widest,
            Sizing::Preferred(width) => width.get().min(widest),
        };
        let groups = request.queue_len.max(1).div_ceil(width);
        Geometry { width, grid: groups.min(worker_groups), slots: u64::from(groups) * u64::from(width) }
    }

    fn pressure(&self, request: &Request, geometry: Geometry) -> Pressure {
        let lanes = u64::from(geometry.grid) * u64::from(geometry.width);
        let queue = u64::from(request.queue_len);
        if queue == 0 {
            Pressure::Empty
        } else if request.requeue_count > 0 || queue >= lanes.saturating_mul(self.saturated_waves.into()) {
            Pressure::Saturated
        } else if queue >= lanes {
            Pressure::Balanced
        } else {
            Pressure::Light
        }
    }

    fn hit_capacity(&self, request: &Request, memory_pressure: u16) -> Result<u32, Error> {
        if request.requested_hit_capacity != 0 {
            return Ok(request.requested_hit_capacity);
        }
        let short = memory_pressure >= self.memory_pressure_threshold_bps;
        let multiplier = if short { 1 } else { self.hit_capacity_multiplier };
        let hits = u64::from(request.queue_len) * u64::from(request.expected_hits_per_item.max(1));
        let capacity = hits.checked_mul(multiplier.into()).and_then(|hits| u32::try_from(hits).ok());
        Ok(capacity.ok_or(DriverError::Overflow { field: "hit capacity" })?.max(self.min_hit_capacity))
    }
}

/// All basis points there are.
const WHOLE: u16 = 10_000;
/// What is shed where memory is short, and once more where nothing is left.
const QUARTER: u32 = 2_500;
/// How far density and pressure have to go beyond a threshold before a topology is left.
const HYSTERESIS: u16 = 250;
/// A sparse frontier has so many groups, if as many are asked for.
const LEAST_SPARSE_GROUPS: u32 = 32;

fn has_graph(request: &Request) -> bool {
    request.graph_node_count > 0
}

fn density(request: &Request) -> u16 {
    if request.frontier_density_bps != 0 || request.queue_len == 0 || !has_graph(request) {
        return request.frontier_density_bps;
    }
    let nodes = u64::from(request.graph_node_count);
    let active = u64::from(request.queue_len).min(nodes);
    (active * u64::from(WHOLE) / nodes).max(1) as u16
}

fn memory_pressure(request: &Request) -> u16 {
    let Request { memory_pressure_bps, resident_device_bytes: resident, device_memory_budget_bytes: budget, .. } =
        *request;
    if memory_pressure_bps != 0 || budget == 0 {
        return memory_pressure_bps;
    }
    if resident >= budget {
        return WHOLE;
    }
    match resident.checked_mul(WHOLE.into()) {
        Some(scaled) => (scaled / budget) as u16,
        None => (u128::from(resident) * u128::from(WHOLE) / u128::from(budget)) as u16,
    }
}

/// The ceiling that the device allows. It does not depend on the queue.
fn worker_groups(request: &Request, wanted: u32) -> u32 {
    let most = request.max_compute_workgroups_per_dimension;
    if wanted != 0 {
        return wanted.min(most);
    }
    let occupancy = (most / 256).clamp(1, 1024);
    let least = if request.max_compute_invocations_per_workgroup >= 4096 { 64 } else { 1 };
    occupancy.max(least).min(most)
}

fn class(topology: Topology) -> Class {
    match topology {
        Topology::Empty => Class::Empty,
        Topology::MemoryConstrained => Class::MemoryConstrained,
        Topology::SparseFrontier => Class::Sparse,
        Topology::HybridFrontier => Class::Hybrid,
        Topology::DenseFrontier | Topology::FusedDense => Class::Dense,
    }
}

fn route(mode: Mode, opcodes: bool, windows: bool) -> Route {
    match (mode, opcodes, windows) {
        (Mode::Interpreter, ..) => Route::Interpreter,
        (Mode::Jit, false, false) => Route::QueueJit,
        (Mode::Jit, true, false) => Route::OpcodeJit,
        (Mode::Jit, false, true) => Route::WindowJit,
        (Mode::Jit, true, true) => Route::OpcodeAndWindowJit,
    }
}

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache::EMPTY) };
}

/// How many recommendations are kept, and the index that means none of them.
const ENTRIES: usize = 128;
const NONE: u8 = ENTRIES as u8;

/// What a recommendation depends on, as words.
type Words = [u64; 17];

struct Entry {
    words: Words,
    recommendation: Recommendation,
}

/// The last recommendations, in lists by hash. Each has the time of its last use: a hit writes one number, and only who adds an entry to a
/// full cache looks for the least of them.
struct Cache {
    entries: Vec<Entry>,
    /// The first entry of each hash.
    heads: [u8; 2 * ENTRIES],
    /// The next entry of the same hash.
    chain: [u8; ENTRIES],
    /// The number of the call that used each entry last.
    used: [u64; ENTRIES],
    stats: CacheStats,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::EMPTY
    }
}

impl Cache {
    const EMPTY: Cache = Cache {
        entries: Vec::new(),
        heads: [NONE; 2 * ENTRIES],
        chain: [NONE; ENTRIES],
        used: [0; ENTRIES],
        stats: CacheStats { entries: 0, hits: 0, misses: 0 },
    };

    /// Finds an entry, which is then the most recent, and counts.
    #[inline(always)]
    fn find(&mut self, words: &Words) -> Option<&Entry> {
        let mut at = self.heads[hash(words)];
        while let Some(entry) = self.entries.get(at as usize) {
            // All are compared at once: word after word, each compared by itself, takes twice as long.
            if entry.words.iter().zip(words).fold(0, |different, (a, b)| different | (a ^ b)) == 0 {
                self.stats.hits += 1;
                self.used[at as usize] = self.calls();
                return self.entries.get(at as usize);
            }
            at = self.chain[at as usize];
        }
        self.stats.misses += 1;
        None
    }

    fn calls(&self) -> u64 {
        self.stats.hits + self.stats.misses
    }

    /// Adds an entry that is not there, as the most recent. In a full cache it takes the place of the least recent.
    fn insert(&mut self, entry: Entry) {
        let hash_of = |entry: &Entry| hash(&entry.words);
        let hash = hash_of(&entry);
        let at = if self.entries.len() < ENTRIES {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = (0..ENTRIES).min_by_key(|&at| self.used[at]).unwrap_or(0);
            let next = self.chain[at];
            let mut link = &mut self.heads[hash_of(&self.entries[at])];
            while usize::from(*link) != at {
                link = &mut self.chain[*link as usize];
            }
            *link = next;
            self.entries[at] = entry;
            at
        };
        self.chain[at] = std::mem::replace(&mut self.heads[hash], at as u8);
        self.used[at] = self.calls();
    }
}

/// A policy and a request as words; a previous topology is never cached. That all fields are named here means that none is forgotten.
#[inline(always)]
fn words(policy: &Policy, request: &Request) -> Words {
    let Request {
        queue_len,
        requested_worker_groups,
        max_workgroup_size_x,
        max_compute_workgroups_per_dimension,
        max_compute_invocations_per_workgroup,
        requested_hit_capacity,
        expected_hits_per_item,
        hot_opcode_count,
        hot_window_count,
        max_priority_age,
        graph_node_count,
        graph_edge_count,
        requeue_count,
        frontier_density_bps,
        memory_pressure_bps,
        resident_device_bytes,
        device_memory_budget_bytes,
        previous_topology: _,
    } = *request;
    let Policy {
        min_hit_capacity,
        hit_capacity_multiplier,
        saturated_waves,
        hot_opcode_threshold,
        hot_window_threshold,
        jit_queue_len_threshold,
        priority_age_threshold,
        sparse_frontier_threshold_bps,
        dense_frontier_threshold_bps,
        memory_pressure_threshold_bps,
        fusion_edge_threshold,
        scratch_bytes_per_hit,
        sizing,
    } = *policy;
    let width = match sizing {
        Sizing::Widest => 0,
        Sizing::Preferred(width) => width.get(),
    };
    [
        both(queue_len, requested_worker_groups),
        both(hot_window_count, max_priority_age),
        both(frontier_density_bps.into(), memory_pressure_bps.into()),
        requeue_count,
        resident_device_bytes,
        both(max_workgroup_size_x, max_compute_workgroups_per_dimension),
        both(max_compute_invocations_per_workgroup, requested_hit_capacity),
        both(expected_hits_per_item, hot_opcode_count),
        both(graph_node_count, graph_edge_count),
        device_memory_budget_bytes,
        both(min_hit_capacity, hit_capacity_multiplier),
        both(saturated_waves, hot_opcode_threshold),
        both(hot_window_threshold, jit_queue_len_threshold),
        both(priority_age_threshold, fusion_edge_threshold),
        both(scratch_bytes_per_hit, width),
        both(sparse_frontier_threshold_bps.into(), dense_frontier_threshold_bps.into()),
        memory_pressure_threshold_bps.into(),
    ]
}

/// Mixes the first words, which differ from launch to launch, by the highest bits of a sum of products, which need not wait for each
/// other. A map with a general hasher takes longer than making a recommendation anew.
#[inline(always)]
fn hash(words: &Words) -> usize {
    let sum = words[0]
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(words[1].wrapping_mul(0xDF44_2D22_CE48_59B9))
        .wrapping_add((words[2] ^ words[3]).wrapping_mul(0x604A_5CE3_ADDE_F82D))
        .wrapping_add(words[4].wrapping_mul(0xD943_63FC_5382_27B1));
    (sum >> 56) as usize
}

#[inline(always)]
fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
