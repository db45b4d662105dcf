//! Launch policy of a queue: number of workers, memory, interpretation or compilation, and frontier topology.
//!
//! ```text
//! Request   queue length, device limits, measurements of earlier launches
//!   → density and pressure, inferred unless given
//!   → promotion       of hot ops and windows
//!   → topology        by thresholds of density and memory pressure, with hysteresis
//!   → worker groups   fewer under memory pressure or for a sparse frontier
//!   → geometry        width and grid of the launch
//!   → hit capacity    and the peak of memory, which has to fit the budget
//! Recommendation   all of this, with the evidence
//! ```
//!
//! Ratios are in basis points (bps): 10 000 bps are 100 %.

use std::cell::RefCell;
use std::num::NonZeroU32;

use vyre_driver::Error as DriverError;

use crate::Error;

/// Input of the policy. 0 means unknown or unspecified, except for device limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Items in the queue.
    pub queue_len: u32,
    /// Requested worker groups.
    pub requested_worker_groups: u32,
    /// Device limit: invocations of a workgroup along x.
    pub max_workgroup_size_x: u32,
    /// Device limit: workgroups along one dimension of a launch.
    pub max_compute_workgroups_per_dimension: u32,
    /// Device limit: invocations of a workgroup.
    pub max_compute_invocations_per_workgroup: u32,
    /// Requested hit capacity.
    pub requested_hit_capacity: u32,
    /// Expected hits per item.
    pub expected_hits_per_item: u32,
    /// Number of items of hot ops.
    pub hot_opcode_count: u32,
    /// Number of hot windows.
    pub hot_window_count: u32,
    /// Age of the oldest item, in slices.
    pub max_priority_age: u32,
    /// Nodes of the graph, if the queue is a frontier.
    pub graph_node_count: u32,
    /// Edges of that graph.
    pub graph_edge_count: u32,
    /// Requeued items.
    pub requeue_count: u64,
    /// Density of the frontier.
    pub frontier_density_bps: u16,
    /// Memory pressure: fraction of device memory in use.
    pub memory_pressure_bps: u16,
    /// Resident device memory.
    pub resident_device_bytes: u64,
    /// Device memory budget.
    pub device_memory_budget_bytes: u64,
    /// Topology of the previous launch, for hysteresis.
    pub previous_topology: Option<Topology>,
}

impl Request {
    /// Creates a request for `queue_len` items of one hit each; all else is unknown.
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

/// Workgroup width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// The maximum of the device.
    Widest,
    /// A given width, clamped to the maximum of the device.
    Preferred(NonZeroU32),
}

/// Thresholds of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Minimum hit capacity, unless one is requested.
    pub min_hit_capacity: u32,
    /// Hit capacity as a multiple of the expected hits; 1 under memory pressure.
    pub hit_capacity_multiplier: u32,
    /// Items per lane from which a launch is saturated.
    pub saturated_waves: u32,
    /// Items of hot ops from which these are promoted.
    pub hot_opcode_threshold: u32,
    /// Hot windows from which these are promoted.
    pub hot_window_threshold: u32,
    /// Queue length from which ops are compiled.
    pub jit_queue_len_threshold: u32,
    /// Age from which items are promoted, in slices.
    pub priority_age_threshold: u32,
    /// Maximum density of a sparse frontier.
    pub sparse_frontier_threshold_bps: u16,
    /// Minimum density of a dense frontier.
    pub dense_frontier_threshold_bps: u16,
    /// Memory pressure from which memory is constrained.
    pub memory_pressure_threshold_bps: u16,
    /// Edges from which dense steps may be fused.
    pub fusion_edge_threshold: u32,
    /// Device memory of a hit.
    pub scratch_bytes_per_hit: u32,
    /// Workgroup width.
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

/// Topology of a launch: traversal of the frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Empty queue.
    Empty,
    /// Memory pressure: bounded queues, fewer workers.
    MemoryConstrained,
    /// Sparse frontier: push from queue to queue.
    SparseFrontier,
    /// Neither sparse nor dense: push from queue to bitmap.
    HybridFrontier,
    /// Dense frontier: pull.
    DenseFrontier,
    /// Dense frontier of a large graph with hot work: several pulls in one submission.
    FusedDense,
}

/// Class of a topology, without the distinction of fusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Empty queue.
    Empty,
    /// Sparse frontier.
    Sparse,
    /// Neither sparse nor dense.
    Hybrid,
    /// Dense frontier, fused or not.
    Dense,
    /// Memory pressure.
    MemoryConstrained,
}

/// Load of a launch: items per lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// No items.
    Empty,
    /// Less than one item per lane.
    Light,
    /// From one to [`Policy::saturated_waves`] items per lane.
    Balanced,
    /// At least [`Policy::saturated_waves`] items per lane, or requeued items.
    Saturated,
}

/// Execution mode of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The interpreter kernel.
    Interpreter,
    /// One kernel per op or window.
    Jit,
}

/// Reason for the execution mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// No compilation.
    Interpreter,
    /// Queue length beyond the threshold.
    QueueJit,
    /// Hot ops.
    OpcodeJit,
    /// Hot windows.
    WindowJit,
    /// Hot ops and windows.
    OpcodeAndWindowJit,
}

/// Geometry of the launch. Workers loop over items, so there may be fewer lanes than slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Invocations of a workgroup.
    pub width: u32,
    /// Number of workgroups.
    pub grid: u32,
    /// Queue length, rounded up to whole workgroups.
    pub slots: u64,
}

/// Output of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Geometry of the launch.
    pub geometry: Geometry,
    /// Maximum concurrent worker groups.
    pub worker_groups: u32,
    /// Hit capacity.
    pub hit_capacity: u32,
    /// Load.
    pub pressure: Pressure,
    /// Execution mode.
    pub execution_mode: Mode,
    /// Topology.
    pub topology: Topology,
    /// Hot ops get kernels of their own.
    pub promote_hot_opcodes: bool,
    /// Hot windows are fused into kernels.
    pub promote_hot_windows: bool,
    /// Old items are promoted.
    pub age_priority_work: bool,
    /// Estimated peak of device memory.
    pub estimated_peak_device_bytes: u64,
    /// Device memory budget; 0 if unknown.
    pub device_memory_budget_bytes: u64,
    /// Evidence for the topology.
    pub topology_evidence: TopologyEvidence,
    /// Evidence for the execution mode.
    pub promotion_evidence: PromotionEvidence,
}

/// Schema version of the evidence.
pub const EVIDENCE_VERSION: u32 = 1;

/// Evidence for the choice of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyEvidence {
    /// [`EVIDENCE_VERSION`].
    pub schema_version: u32,
    /// Load.
    pub pressure: Pressure,
    /// Given or inferred density of the frontier, as a set of nodes.
    pub frontier_density_bps: u16,
    /// Density of the frontier, as a vector over a semiring; the same value.
    pub semiring_density_bps: u16,
    /// Chosen topology.
    pub topology: Topology,
    /// Class of the topology.
    pub class: Class,
    /// Resident device memory.
    pub resident_device_bytes: u64,
    /// Estimated peak of device memory.
    pub estimated_peak_device_bytes: u64,
    /// The output must equal that of the oracle.
    pub oracle_parity_required: bool,
}

impl TopologyEvidence {
    /// Returns true if the evidence is complete and in range.
    pub const fn is_complete(&self) -> bool {
        self.schema_version == EVIDENCE_VERSION
            && self.frontier_density_bps <= WHOLE
            && self.semiring_density_bps <= WHOLE
            && self.oracle_parity_required
    }
}

/// Evidence for the choice of an execution mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionEvidence {
    /// [`EVIDENCE_VERSION`].
    pub schema_version: u32,
    /// Items in the queue.
    pub queue_len: u32,
    /// [`Policy::jit_queue_len_threshold`].
    pub jit_queue_len_threshold: u32,
    /// Items of hot ops.
    pub hot_opcode_count: u32,
    /// [`Policy::hot_opcode_threshold`].
    pub hot_opcode_threshold: u32,
    /// Hot windows.
    pub hot_window_count: u32,
    /// [`Policy::hot_window_threshold`].
    pub hot_window_threshold: u32,
    /// Chosen mode.
    pub execution_mode: Mode,
    /// Hot ops are promoted.
    pub promote_hot_opcodes: bool,
    /// Hot windows are promoted.
    pub promote_hot_windows: bool,
    /// Reason for the mode.
    pub route: Route,
    /// The launch requires a description of the fused windows.
    pub needs_fused_window: bool,
    /// The output must equal that of the oracle.
    pub oracle_parity_required: bool,
}

impl PromotionEvidence {
    /// Formats the comparison that decided.
    pub fn describe(&self) -> String {
        let compared = |count: u32, what: &str, threshold: u32| format!("{count} {what} ≥ {threshold}");
        let ops = compared(self.hot_opcode_count, "items of hot ops", self.hot_opcode_threshold);
        let windows = compared(self.hot_window_count, "hot windows", self.hot_window_threshold);
        match self.route {
            Route::Interpreter => format!("{} items < {}", self.queue_len, self.jit_queue_len_threshold),
            Route::QueueJit => compared(self.queue_len, "items", self.jit_queue_len_threshold),
            Route::OpcodeJit => ops,
            Route::WindowJit => windows,
            Route::OpcodeAndWindowJit => format!("{ops}; {windows}"),
        }
    }

    /// Returns true if the evidence is complete and consistent.
    pub const fn is_complete(&self) -> bool {
        self.schema_version == EVIDENCE_VERSION
            && self.jit_queue_len_threshold != 0
            && self.hot_opcode_threshold != 0
            && self.hot_window_threshold != 0
            && self.oracle_parity_required
            && self.needs_fused_window == self.promote_hot_windows
    }
}

/// Statistics of the recommendation cache of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Cached recommendations.
    pub entries: usize,
    /// Cache hits.
    pub hits: u64,
    /// Cache misses.
    pub misses: u64,
}

/// Returns the statistics of this thread's cache.
pub fn cache_stats() -> CacheStats {
    CACHE.with_borrow(|cache| CacheStats { entries: cache.entries.len(), ..cache.stats })
}

/// Clears the cache of this thread and its statistics.
pub fn reset_cache() {
    CACHE.take();
}

impl Policy {
    /// Recommends a launch for a queue.
    ///
    /// Recommendations without a previous topology are cached, 128 per thread (LRU).
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

    /// Scales the requested worker groups down under memory pressure or for a sparse frontier.
    fn wanted_groups(&self, request: &Request, topology: Topology, density: u16, memory_pressure: u16) -> u32 {
        let requested = request.requested_worker_groups;
        if requested <= 1 {
            return requested;
        }
        match topology {
            Topology::MemoryConstrained if memory_pressure > 0 => {
                let threshold = u32::from(self.memory_pressure_threshold_bps);
                // Avoids a division by 0 for a threshold of 100 %.
                let span = (u32::from(WHOLE) - threshold).max(1);
                let beyond = u32::from(memory_pressure).saturating_sub(threshold).min(span);
                let shed_bps = u64::from(QUARTER + beyond * QUARTER / span);
                (requested - (u64::from(requested) * shed_bps / u64::from(WHOLE)) as u32).max(1)
            }
            Topology::SparseFrontier if has_graph(request) => {
                let scaled = u64::from(requested) * u64::from(density);
                // A threshold of 0 does not scale.
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

/// 100 % in basis points.
const WHOLE: u16 = 10_000;
/// Fraction by which worker groups are reduced at the memory pressure threshold, in basis points; rises linearly to twice this value
/// at 100 % pressure.
const QUARTER: u32 = 2_500;
/// Hysteresis of density and pressure beyond a threshold.
const HYSTERESIS: u16 = 250;
/// Minimum worker groups of a sparse frontier, unless fewer are requested.
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

/// Clamps worker groups to the device limit, or derives a default from it. The result does not depend on the queue.
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

/// Capacity of the cache, and the null index.
const ENTRIES: usize = 128;
const NONE: u8 = ENTRIES as u8;

/// Cache key: policy and request as words.
type Words = [u64; 17];

struct Entry {
    words: Words,
    recommendation: Recommendation,
}

/// LRU cache with chained hashing. A hit stores one timestamp; only an insertion into a full cache searches for the oldest.
struct Cache {
    entries: Vec<Entry>,
    /// First entry of each hash.
    heads: [u8; 2 * ENTRIES],
    /// Next entry of the same hash.
    chain: [u8; ENTRIES],
    /// Timestamp of the last use of each entry: number of the call.
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

    /// Looks up an entry, marks it as the most recently used, and counts the hit or miss.
    #[inline(always)]
    fn find(&mut self, words: &Words) -> Option<&Entry> {
        let mut at = self.heads[hash(words)];
        while let Some(entry) = self.entries.get(at as usize) {
            // A branchless comparison of all words is twice as fast as one with early exit.
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

    /// Inserts a new entry as the most recently used. A full cache evicts the least recently used one.
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

/// Packs a policy and a request into words, without the previous topology, which is not cached. The destructuring is exhaustive, so that
/// new fields are not forgotten.
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

/// Multiplicative hash of the first words, which vary between launches: the highest bits of a sum of independent products. A general hasher
/// would take longer than a new recommendation.
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
