//! Direction-optimizing frontier engine: advances sets of nodes along edges, by push or pull, on any device.
//!
//! ```text
//! Frontier   numbers of its nodes and of their outgoing edges
//!   → policy   chooses a topology for every step, with hysteresis
//!   → topology sparse       push from a queue to a queue
//!              hybrid       push from a queue to a bitmap; the queue of the next step is gathered from the bitmap
//!              dense        pull: nodes scan their incoming edges for sources in the frontier
//!              fused dense  several pulls in one submission
//!              memory-constrained   hybrid in parts, with a queue that is bounded by the memory plan
//!   → Iteration  topology, reason, time and examined edges
//! ```
//!
//! A [`Step`] defines the action on one edge; the programs of all topologies are generated from it. A node that several edges admit in one
//! step is in the next frontier once, since its bit is set once.

mod kernels;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracing::span::EnteredSpan;
use vyre_driver::plan::frontier::{Planner, Wave};
use vyre_driver::{Argument, Buffer, Device, DeviceKind, Dispatch, Error as DriverError, Grid, Submission};
use vyre_foundation::build::{self, Val};
use vyre_foundation::ir::{Element, Program, Space};
use vyre_foundation::launch::Outcome;
use vyre_foundation::optimizer::Profile;
use vyre_foundation::{Validated, validate};

use crate::Error;
use crate::graph::memory::{collected, filled, zeroed};
use crate::graph::{Graph, UNREACHED};
use crate::megakernel::policy::{Policy, Request};
use crate::owner::Owner;
use kernels::WORD;

pub use crate::megakernel::policy::Topology;
pub(crate) use kernels::{nodes, slice};

/// An edge from the frontier, in a program under construction.
#[derive(Clone, Copy)]
pub struct Edge<'k> {
    /// Source node, which is in the frontier.
    pub source: Val<'k, u32>,
    /// Target node.
    pub target: Val<'k, u32>,
    /// Index of the edge's weight in the object `weights`.
    pub index: Val<'k, u32>,
}

/// Action of a step on edges, in a program under construction.
pub struct Visitor<'k> {
    pub(crate) visit: Box<dyn Fn(Edge<'k>) -> Val<'k, bool> + 'k>,
    pub(crate) is_candidate: Option<Test<'k>>,
}

impl<'k> Visitor<'k> {
    /// Emits the action on one edge. It returns true to admit the target to the next frontier. Several edges may visit a target
    /// concurrently.
    pub fn new(visit: impl Fn(Edge<'k>) -> Val<'k, bool> + 'k) -> Visitor<'k> {
        Visitor { visit: Box::new(visit), is_candidate: None }
    }

    /// Restricts pulls to targets that satisfy a predicate, such as unvisited ones.
    #[must_use]
    pub fn pull_candidates(self, is_candidate: impl Fn(Val<'k, u32>) -> Val<'k, bool> + 'k) -> Visitor<'k> {
        Visitor { is_candidate: Some(Box::new(is_candidate)), ..self }
    }
}

/// A step: the action on the edges of a frontier.
#[derive(Clone, Copy)]
pub struct Step {
    /// Name of the step and prefix of its programs' names; must be unique.
    pub name: &'static str,
    /// Declares the objects of the step, which are bound by name, and returns its action.
    pub visit: fn(&build::Kernel) -> Visitor<'_>,
    /// Early exit: a pull stops scanning the incoming edges of a target once the target is admitted. Steps without early exit are dense
    /// only with a fixed topology.
    pub until_admitted: bool,
}

/// Predicate on a node.
pub type Test<'k> = Box<dyn Fn(Val<'k, u32>) -> Val<'k, bool> + 'k>;
/// Action on a node.
pub type Body<'k> = Box<dyn Fn(Val<'k, u32>) + 'k>;

/// Arguments of a program, by name.
pub type NamedArguments<'a> = Vec<(&'a str, Argument)>;

/// Configuration of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Policy that chooses topologies.
    pub policy: Policy,
    /// Limit on device memory in bytes; `None`: the memory of the device.
    pub budget: Option<u64>,
    /// Fixed topology, unless the frontier is empty or memory is constrained.
    pub fixed: Option<Topology>,
    /// Records an [`Iteration`] for each step, and counts the edges that pulls examine. Slows pulls down.
    pub explains: bool,
}

impl Default for Config {
    /// Log-density thresholds: up to 50 % (the square root of all edges) is sparse, 83 % and more is dense.
    fn default() -> Config {
        let policy =
            Policy { sparse_frontier_threshold_bps: 5000, dense_frontier_threshold_bps: 8300, ..Policy::default() };
        Config { policy, budget: None, fixed: None, explains: false }
    }
}

/// Device buffers of a computation, from which an engine plans its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Frontiers that are live at the same time.
    pub frontiers: u32,
    /// Steps read the weights of edges.
    pub weights: bool,
    /// Lengths of the other buffers, in elements of 4 bytes: rows of the graph, and arrays of the computation.
    pub buffers: Vec<u64>,
}

impl Needs {
    /// Returns the needs of a traversal: one frontier, the rows of outgoing edges, and `arrays` arrays with an element of 4 bytes for each
    /// node.
    pub fn traversal(graph: &Graph, arrays: u8) -> Needs {
        let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
        let mut buffers = vec![nodes + 1, edges];
        buffers.resize(2 + usize::from(arrays), nodes);
        Needs { frontiers: 1, weights: false, buffers }
    }
}

/// Record of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// Nodes of the frontier.
    pub nodes: u32,
    /// Outgoing edges of the frontier.
    pub edges: u32,
    /// Log-density in basis points: log(`edges`) ÷ log(edges of the graph).
    pub density_bps: u16,
    /// Chosen topology.
    pub topology: Topology,
    /// Reason for the choice.
    pub reason: String,
    /// Examined edges.
    pub examined: u64,
    /// Parts of the frontier that were processed one after the other.
    pub parts: u32,
    /// Wall time, including host work.
    pub time: Duration,
    /// Part of `time` in which kernels were compiled.
    pub compile_time: Duration,
    /// Device memory in use.
    pub bytes: u64,
}

/// A choice of a topology.
pub(crate) struct Decision {
    policy: Policy,
    pub(crate) topology: Topology,
    origin: Origin,
    nodes: u32,
    edges: u32,
    density_bps: u16,
    dense: u32,
    started: Instant,
    /// Compile time of the engine before the step.
    compile_time: Duration,
    /// Tracing span, entered until the step is recorded.
    _span: EnteredSpan,
}

/// Origin of a choice.
#[derive(Clone, Copy)]
enum Origin {
    /// The topology is fixed by [`Config::fixed`].
    Fixed,
    /// Hysteresis: the previous topology was kept.
    Hysteresis,
    /// Comparison with a threshold.
    Threshold,
}

/// A set of nodes on the device.
struct Set {
    bits: Buffer,
    queue: Buffer,
    /// Numbers of nodes, of their outgoing edges, and of edges that were examined to find them.
    counts: Buffer,
    grid: Buffer,
}

impl Set {
    fn counted(&self) -> Result<[u32; 3], Error> {
        let counts = self.counts.elements::<u32>()?;
        Ok([counts[0], counts[1], counts[2]])
    }
}

/// A set of nodes of a graph. It is tagged with its engine, which alone accepts it.
pub struct Frontier {
    owner: Owner,
    now: Set,
    next: Set,
    /// `now.queue` is valid.
    queued: bool,
    nodes: u32,
    edges: u32,
    step: u32,
    topology: Option<Topology>,
    /// Length of the current run of dense steps.
    dense: u32,
}

impl Frontier {
    /// Returns the number of nodes.
    pub fn len(&self) -> u32 {
        self.nodes
    }

    /// Returns true if the frontier has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u32 {
        self.step
    }

    /// Returns the bitmap of nodes, 32 to an element.
    pub fn bits(&self) -> &Buffer {
        &self.now.bits
    }
}

/// Frontier engine of a graph on a device.
pub struct Engine<'g> {
    owner: Owner,
    device: Device,
    graph: &'g Graph,
    config: Config,
    /// Resident arrays of the graph, by name.
    resident: RefCell<FxHashMap<&'static str, Buffer>>,
    /// Rows of outgoing edges, split by a weight limit into light and heavy edges.
    split: RefCell<Option<(u32, NamedArguments<'static>)>>,
    memory: MemoryPlan,
    /// Number of nodes with incoming edges, which precede the others in the order of slices; pulls skip the others.
    reachable: u32,
    /// Compiled kernels by name, with their unoptimized programs.
    kernels: RefCell<BTreeMap<String, (Validated<Program>, vyre_driver::Kernel)>>,
    /// Total compile time of `kernels`.
    compile_time: Cell<Duration>,
    iterations: RefCell<Vec<Iteration>>,
}

impl<'g> Engine<'g> {
    /// Creates an engine and plans its memory. Arrays of the graph are uploaded on first use.
    ///
    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget) names the least accepted budget. [`Error::FixedTopology`]: the topology follows no edges.
    #[expect(clippy::needless_pass_by_value, reason = "callers construct the needs for this call")]
    pub fn new(device: &Device, graph: &'g Graph, config: Config, needs: Needs) -> Result<Engine<'g>, Error> {
        if config.fixed == Some(Topology::Empty) {
            return Err(Error::FixedTopology { topology: "Empty" });
        }
        let budget = config.budget.or(device.capabilities().memory_bytes);
        let memory = MemoryPlan::new(graph, &config, &needs, budget)?;
        let (kernels, iterations) = (RefCell::default(), RefCell::default());
        let device = device.with_profile(Profile::Dataflow);
        let (resident, split) = (RefCell::default(), RefCell::default());
        let reachable = graph.incoming().offsets.windows(2).filter(|row| row[0] != row[1]).count() as u32;
        let (owner, compile_time) = (Owner::default(), Cell::default());
        Ok(Engine {
            owner,
            device,
            graph,
            config,
            resident,
            split,
            memory,
            reachable,
            kernels,
            compile_time,
            iterations,
        })
    }

    /// Checks that a computation fits the budget, and evicts resident arrays of the graph if they would exceed it.
    pub(crate) fn admit(&self, needs: &Needs) -> Result<(), Error> {
        let Some(budget) = self.memory.budget else { return Ok(()) };
        let required = self.memory.bytes(self.graph, needs)?;
        if required > budget {
            return Err(DriverError::OverBudget { field: COMPUTATION, required, budget }.into());
        }
        let (nodes, edges) = (u64::from(self.graph.nodes()), u64::from(self.graph.edges()));
        let split = self.split.borrow().as_ref().map_or([0; 3], |_| [2 * nodes + 1, edges, edges]);
        let resident = self.resident.borrow();
        let left = resident.values().map(|buffer| u64::from(buffer.len())).chain(split.into_iter().filter(|n| *n > 0));
        let left = left.map(|length| 4 * length).try_fold(0, sum_class)?;
        drop(resident);
        if left > budget - required {
            self.resident.borrow_mut().clear();
            *self.split.borrow_mut() = None;
        }
        Ok(())
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the lanes of a cooperative workgroup: the vector width of a CPU, 32 on GPUs.
    pub(crate) fn lanes(&self) -> u32 {
        let capabilities = self.device.capabilities();
        match capabilities.kind {
            DeviceKind::Cpu => capabilities.subgroup_size.unwrap_or(8),
            DeviceKind::Gpu | DeviceKind::SoftwareGpu | DeviceKind::Oracle | DeviceKind::Null => 32,
        }
    }

    /// Returns the graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the records of the steps so far; empty unless [`Config::explains`] is set.
    pub fn iterations(&self) -> Vec<Iteration> {
        self.iterations.borrow().clone()
    }

    /// Returns the total compile time so far.
    pub fn compile_time(&self) -> Duration {
        self.compile_time.get()
    }

    /// Returns the unoptimized programs of the steps so far.
    pub fn programs(&self) -> Vec<Validated<Program>> {
        self.kernels.borrow().values().map(|(program, _)| program.clone()).collect()
    }

    /// Allocates a buffer with one element for each node, filled with `value`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn per_node(&self, value: u32) -> Result<Buffer, Error> {
        let words = filled("nodes of the graph", value, self.graph.nodes() as usize)?;
        Ok(self.device.upload(Element::U32, bytemuck::cast_slice(&words))?)
    }

    /// Creates a frontier of nodes.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]: a node is out of bounds. There is not enough memory.
    pub fn frontier(&self, nodes: impl IntoIterator<Item = u32>) -> Result<Frontier, Error> {
        let words = self.graph.nodes().div_ceil(WORD).max(1);
        let mut bits: Vec<u32> = zeroed("nodes of a frontier", words as usize)?;
        let (mut count, mut edges) = (0, 0);
        for node in nodes {
            self.graph.node(node)?;
            let (word, bit) = (&mut bits[(node / WORD) as usize], 1 << (node % WORD));
            if *word & bit == 0 {
                *word |= bit;
                count += 1;
                edges += self.graph.outgoing().of(node).len() as u32;
            }
        }
        let queue = self.words(self.memory.queue)?;
        let set = |queue| {
            let [bits, counts, grid] = [self.words(words)?, self.words(COUNTS)?, self.words(GRID)?];
            Ok::<Set, Error>(Set { bits, queue, counts, grid })
        };
        // In the constrained topology the queue is refilled for each part, so both sets share one.
        let other = if self.memory.constrained { queue.clone() } else { self.words(self.memory.queue)? };
        let (now, next) = (set(queue)?, set(other)?);
        now.bits.write(bytemuck::cast_slice(&bits))?;
        now.counts.write(bytemuck::cast_slice(&[count, edges, 0, 0]))?;
        let owner = self.owner;
        Ok(Frontier { owner, now, next, queued: false, nodes: count, edges, step: 0, topology: None, dense: 0 })
    }

    fn owned(&self, frontier: &Frontier) -> Result<(), Error> {
        if frontier.owner == self.owner { Ok(()) } else { Err(Error::ForeignFrontier) }
    }

    fn words(&self, count: u32) -> Result<Buffer, DriverError> {
        self.device.allocate(Element::U32, count.into())
    }

    /// Advances a frontier along its edges to the set of admitted nodes: one step, or several with the fused dense topology. `arguments`
    /// returns the arguments of a step, by its number.
    ///
    /// # Errors
    /// Arguments do not match the step's objects, [`Error::ForeignFrontier`], or the device failed.
    pub fn advance(
        &self,
        step: &Step,
        frontier: &mut Frontier,
        arguments: &dyn Fn(u32) -> NamedArguments<'static>,
    ) -> Result<(), Error> {
        self.owned(frontier)?;
        if frontier.is_empty() {
            return Ok(());
        }
        let Frontier { nodes, edges, topology, dense, .. } = *frontier;
        let decision = self.decide(step.until_admitted, nodes, edges, topology, dense)?;
        let topology = decision.topology;
        let (mut given, lanes) = (arguments(frontier.step), self.lanes());
        let at_once = if topology == Topology::FusedDense { FUSED } else { 1 };
        let suffix = match topology {
            Topology::Empty => return Ok(()),
            Topology::SparseFrontier => "sparse",
            Topology::HybridFrontier | Topology::MemoryConstrained => "hybrid",
            Topology::DenseFrontier | Topology::FusedDense => "dense",
        };
        let name = &format!("{}_{suffix}", step.name);
        match topology {
            Topology::Empty => return Ok(()),
            Topology::SparseFrontier => {
                let mut batch = Batch::default();
                self.queue(frontier, &mut batch)?;
                let kernel = self.kernel(name, || kernels::push(name, step, true, lanes))?;
                batch.clear(&[&frontier.next.bits, &frontier.next.counts]);
                let mut objects = push_objects(frontier);
                objects.push(("next_queue", (&frontier.next.queue).into()));
                objects.push(("next_counts", (&frontier.next.counts).into()));
                self.add(&mut batch, &kernel, Grid::Indirect(frontier.now.grid.clone()), objects, given)?;
                self.grid(&frontier.next, &mut batch)?;
                self.submit(&batch)?;
            }
            Topology::HybridFrontier => {
                let mut batch = Batch::default();
                self.queue(frontier, &mut batch)?;
                let kernel = self.kernel(name, || kernels::push(name, step, false, lanes))?;
                batch.clear(&[&frontier.next.bits, &frontier.next.counts]);
                let grid = Grid::Indirect(frontier.now.grid.clone());
                self.add(&mut batch, &kernel, grid, push_objects(frontier), given.clone())?;
                self.count(&frontier.next, &given, &mut batch)?;
                self.submit(&batch)?;
            }
            Topology::MemoryConstrained => {
                let kernel = self.kernel(name, || kernels::push(name, step, false, lanes))?;
                let mut batch = Batch::default();
                batch.clear(&[&frontier.next.bits, &frontier.next.counts]);
                for part in &self.memory.parts {
                    self.gather(frontier, part.clone(), &mut batch)?;
                    let grid = Grid::Indirect(frontier.now.grid.clone());
                    self.add(&mut batch, &kernel, grid, push_objects(frontier), given.clone())?;
                    self.submit(&std::mem::take(&mut batch))?;
                }
                self.count(&frontier.next, &given, &mut batch)?;
                self.submit(&batch)?;
            }
            Topology::DenseFrontier | Topology::FusedDense => {
                let explains = self.config.explains;
                let kernel = self.kernel(name, || kernels::pull(name, step, explains))?;
                let mut batch = Batch::default();
                batch.clear(&[&frontier.next.bits, &frontier.next.counts]);
                for more in (0..at_once).rev() {
                    let mut objects: NamedArguments<'_> =
                        vec![("bits", (&frontier.now.bits).into()), ("next", (&frontier.next.bits).into())];
                    if explains {
                        objects.push(("next_counts", (&frontier.next.counts).into()));
                    }
                    self.add(&mut batch, &kernel, Grid::elements(self.reachable), objects, given.clone())?;
                    if more == 0 {
                        self.count(&frontier.next, &given, &mut batch)?;
                    } else {
                        self.empty(&frontier.now, &mut batch)?;
                        std::mem::swap(&mut frontier.now, &mut frontier.next);
                        frontier.step += 1;
                        given = arguments(frontier.step);
                    }
                }
                self.submit(&batch)?;
            }
        }
        let [nodes, edges, trips] = frontier.next.counted()?;
        let examined = match topology {
            Topology::FusedDense if self.config.explains => u64::from(trips) + u64::from(frontier.now.counted()?[2]),
            Topology::DenseFrontier | Topology::FusedDense => trips.into(),
            _ => frontier.edges.into(),
        };
        let is_dense = matches!(topology, Topology::DenseFrontier | Topology::FusedDense);
        frontier.dense = if is_dense { frontier.dense + 1 } else { 0 };
        std::mem::swap(&mut frontier.now, &mut frontier.next);
        (frontier.nodes, frontier.edges) = (nodes, edges);
        frontier.queued = topology == Topology::SparseFrontier;
        frontier.topology = Some(topology);
        frontier.step += 1;
        let parts = if topology == Topology::MemoryConstrained { self.memory.parts.len() } else { 1 };
        self.record(&decision, parts as u32, examined);
        Ok(())
    }

    /// Filters a frontier by a predicate.
    ///
    /// # Errors
    /// Arguments do not match the predicate's objects, [`Error::ForeignFrontier`], or the device failed.
    pub fn filter(
        &self,
        name: &str,
        test: fn(&build::Kernel) -> Test<'_>,
        frontier: &mut Frontier,
        arguments: NamedArguments<'_>,
    ) -> Result<(), Error> {
        let bits = frontier.now.bits.clone();
        self.select(name, test, &bits, frontier, arguments)
    }

    /// Replaces a frontier by the nodes of the bitmap `bits` that satisfy a predicate.
    ///
    /// # Errors
    /// Arguments do not match the predicate's objects, [`Error::ForeignFrontier`], or the device failed.
    pub fn select(
        &self,
        name: &str,
        test: fn(&build::Kernel) -> Test<'_>,
        bits: &Buffer,
        frontier: &mut Frontier,
        arguments: NamedArguments<'_>,
    ) -> Result<(), Error> {
        self.owned(frontier)?;
        let kernel = self.kernel(name, || kernels::filter(name, test))?;
        let mut batch = Batch::default();
        batch.clear(&[&frontier.next.counts]);
        let objects = vec![
            ("bits", bits.into()),
            ("next", (&frontier.next.bits).into()),
            ("next_counts", (&frontier.next.counts).into()),
        ];
        self.add(&mut batch, &kernel, Grid::elements(frontier.now.bits.len()), objects, arguments)?;
        self.submit(&batch)?;
        let [nodes, edges, _] = frontier.next.counted()?;
        std::mem::swap(&mut frontier.now, &mut frontier.next);
        (frontier.nodes, frontier.edges, frontier.queued) = (nodes, edges, false);
        Ok(())
    }

    /// Runs an action on every node of a frontier.
    ///
    /// # Errors
    /// Arguments do not match the action's objects, [`Error::ForeignFrontier`], or the device failed.
    pub fn compute(
        &self,
        name: &str,
        body: fn(&build::Kernel) -> Body<'_>,
        frontier: &Frontier,
        arguments: NamedArguments<'_>,
    ) -> Result<(), Error> {
        self.owned(frontier)?;
        let kernel = self.kernel(name, || kernels::compute(name, body))?;
        let mut batch = Batch::default();
        let objects = vec![("bits", (&frontier.now.bits).into())];
        self.add(&mut batch, &kernel, Grid::elements(frontier.now.bits.len()), objects, arguments)?;
        self.submit(&batch)
    }

    /// Chooses the topology of a step over a frontier of `nodes` nodes with `edges` outgoing edges, after `dense` dense steps in a row.
    /// Unless `may_pull`, no frontier counts as dense, because a pull without early exit scans every edge of the graph.
    pub(crate) fn decide(
        &self,
        may_pull: bool,
        nodes: u32,
        edges: u32,
        previous_topology: Option<Topology>,
        dense: u32,
    ) -> Result<Decision, Error> {
        let started = Instant::now();
        let capabilities = self.device.capabilities();
        let mut policy = self.config.policy;
        if !may_pull {
            policy.dense_frontier_threshold_bps = 10_000;
        }
        let most = if may_pull { 10_000.0 } else { 9_999.0 };
        // Frontiers grow and shrink by factors, so density is logarithmic: 50 % is the square root of all edges.
        let log = |count: u32| f64::from(count).ln_1p();
        let density_bps = (log(edges) * 10_000.0 / log(self.graph.edges().max(1))).clamp(1.0, most) as u16;
        let request = Request {
            max_compute_workgroups_per_dimension: 65_535,
            max_compute_invocations_per_workgroup: capabilities.max_workgroup_invocations,
            requested_hit_capacity: 1,
            hot_window_count: dense,
            graph_node_count: self.graph.nodes(),
            graph_edge_count: self.graph.edges(),
            frontier_density_bps: density_bps,
            memory_pressure_bps: self.memory.pressure_bps,
            previous_topology,
            ..Request::direct(nodes, 0, capabilities.max_workgroup_size[0])
        };
        let chosen = policy.recommend(&request)?.topology;
        let (topology, origin) = match self.config.fixed {
            Some(fixed) if !matches!(chosen, Topology::Empty | Topology::MemoryConstrained) => (fixed, Origin::Fixed),
            _ if policy.recommend(&Request { previous_topology: None, ..request })?.topology != chosen => {
                (chosen, Origin::Hysteresis)
            }
            _ => (chosen, Origin::Threshold),
        };
        let span = tracing::info_span!("step", topology = ?topology, nodes, edges, density_bps).entered();
        let compile_time = self.compile_time.get();
        Ok(Decision { policy, topology, origin, nodes, edges, density_bps, dense, started, compile_time, _span: span })
    }

    /// Records a step, if [`Config::explains`] is set.
    pub(crate) fn record(&self, decision: &Decision, parts: u32, examined: u64) {
        let Decision { policy, topology, origin, nodes, edges, density_bps, dense, started, .. } = *decision;
        if !self.config.explains {
            return;
        }
        let percent = |bps: u16| format!("{}.{:02} %", bps / 100, bps % 100);
        let compared = |how: &str, bps: u16| format!("log-density {} {how} {}", percent(density_bps), percent(bps));
        let reason = match (origin, topology) {
            (Origin::Fixed, _) => "fixed by the configuration".into(),
            (Origin::Hysteresis, _) => "hysteresis: close to the previous step".into(),
            (Origin::Threshold, Topology::Empty) => "empty frontier".into(),
            (Origin::Threshold, Topology::MemoryConstrained) => {
                let plural = if parts == 1 { "" } else { "s" };
                format!("memory pressure {}; {parts} part{plural}", percent(self.memory.pressure_bps))
            }
            (Origin::Threshold, Topology::SparseFrontier) => compared("≤", policy.sparse_frontier_threshold_bps),
            (Origin::Threshold, Topology::HybridFrontier) => compared("<", policy.dense_frontier_threshold_bps),
            (Origin::Threshold, Topology::DenseFrontier) => compared("≥", policy.dense_frontier_threshold_bps),
            (Origin::Threshold, Topology::FusedDense) => format!("{dense} dense steps in a row"),
        };
        let (time, bytes) = (started.elapsed(), self.device.memory().used);
        let compile_time = self.compile_time.get().saturating_sub(decision.compile_time);
        let iteration =
            Iteration { nodes, edges, density_bps, topology, reason, examined, parts, time, compile_time, bytes };
        self.iterations.borrow_mut().push(iteration);
    }

    /// Returns an array of the graph, uploaded on first use; `None` for an unknown name. Edges of unweighted graphs have weight 1.
    fn part(&self, name: &str, pulls: bool) -> Result<Option<Buffer>, Error> {
        let name = match name {
            "offsets" => "offsets",
            "targets" => "targets",
            "incoming_offsets" => "incoming_offsets",
            "incoming_targets" => "incoming_targets",
            "order" => "order",
            "starts" => "starts",
            "sliced" => "sliced",
            "weights" if pulls => "sliced_weights",
            "weights" => "weights",
            _ => return Ok(None),
        };
        if let Some(buffer) = self.resident.borrow().get(name) {
            return Ok(Some(buffer.clone()));
        }
        let upload = |name, words: &[u32]| {
            let buffer = self.device.upload(Element::U32, bytemuck::cast_slice(words))?;
            self.resident.borrow_mut().insert(name, buffer.clone());
            Ok(Some(buffer))
        };
        let (outgoing, incoming) = (self.graph.outgoing(), self.graph.incoming());
        match name {
            "offsets" => upload(name, &outgoing.offsets),
            "targets" => upload(name, &outgoing.targets),
            "incoming_offsets" => upload(name, &incoming.offsets),
            "incoming_targets" => upload(name, &incoming.targets),
            "weights" if self.graph.is_weighted() => upload(name, &outgoing.weights),
            "weights" => upload(name, &filled("weights of edges", 1, outgoing.targets.len())?),
            _ => {
                let slices = incoming.sliced()?;
                upload("order", &slices.order)?;
                upload("starts", &slices.starts)?;
                upload("sliced", &slices.targets)?;
                if name == "sliced_weights" && self.graph.is_weighted() {
                    upload(name, &slices.weights)?;
                } else if name == "sliced_weights" {
                    upload(name, &filled("weights of edges", 1, slices.targets.len())?)?;
                }
                Ok(self.resident.borrow().get(name).cloned())
            }
        }
    }

    /// Returns the nodes in the order of slices, the slices with nodes renumbered by that order, and the reciprocal out-degree of each node
    /// in that order.
    pub(crate) fn by_degree(&self) -> Result<[Buffer; 3], Error> {
        const NAMES: [&str; 3] = ["order", "ranked", "portions"];
        if !self.resident.borrow().contains_key("ranked") {
            let slices = self.graph.incoming().sliced()?;
            let mut ranks: Vec<u32> = zeroed("nodes of the graph", slices.order.len())?;
            (0..).zip(&slices.order).for_each(|(rank, node): (u32, _)| ranks[*node as usize] = rank);
            let rank = |node: &u32| ranks.get(*node as usize).copied().unwrap_or(UNREACHED);
            let ranked = collected("edges of slices", slices.targets.iter().map(rank))?;
            let portion = |node: &u32| match self.graph.outgoing().of(*node).len() {
                0 => 0.0,
                degree => 1.0 / degree as f32,
            };
            let portions = collected("nodes of the graph", slices.order.iter().map(portion))?;
            for (name, element, bytes) in [
                ("order", Element::U32, bytemuck::cast_slice(&slices.order)),
                ("starts", Element::U32, bytemuck::cast_slice(&slices.starts)),
                ("ranked", Element::U32, bytemuck::cast_slice(&ranked)),
                ("portions", Element::F32, bytemuck::cast_slice(&portions)),
            ] {
                let buffer = self.device.upload(element, bytes)?;
                self.resident.borrow_mut().insert(name, buffer);
            }
        }
        let resident = self.resident.borrow();
        Ok(NAMES.map(|name| resident[name].clone()))
    }

    /// Returns the rows of incoming edges as `offsets` and `targets`, for programs that bind outgoing rows by default.
    pub(crate) fn incoming_rows(&self) -> Result<NamedArguments<'static>, Error> {
        let mut rows = Vec::new();
        for (given, part) in [("offsets", "incoming_offsets"), ("targets", "incoming_targets")] {
            rows.extend(self.part(part, false)?.map(|buffer| (given, (&buffer).into())));
        }
        Ok(rows)
    }

    /// Returns the rows of outgoing edges, split into edges lighter than `limit` (`first` = 0) and the others (`first` = 1).
    pub(crate) fn split_rows(&self, limit: u32) -> Result<NamedArguments<'static>, Error> {
        if let Some((of, rows)) = self.split.borrow().as_ref()
            && *of == limit
        {
            return Ok(rows.clone());
        }
        let rows = self.graph.outgoing().split(limit)?;
        let mut arguments: NamedArguments<'static> = vec![("stride", 2u32.into())];
        for (name, words) in [("offsets", &rows.offsets), ("targets", &rows.targets), ("weights", &rows.weights)] {
            let buffer = self.device.upload(Element::U32, bytemuck::cast_slice(words))?;
            arguments.push((name, (&buffer).into()));
        }
        *self.split.borrow_mut() = Some((limit, arguments.clone()));
        Ok(arguments)
    }

    /// Fills the queue from the bitmap, unless it is valid.
    fn queue(&self, frontier: &mut Frontier, batch: &mut Batch) -> Result<(), Error> {
        if !frontier.queued {
            self.gather(frontier, 0..frontier.now.bits.len(), batch)?;
            frontier.queued = true;
        }
        Ok(())
    }

    /// Writes the nodes of a range of bitmap words to the queue, and the indirect grid for a push from it.
    fn gather(&self, frontier: &Frontier, words: Range<u32>, batch: &mut Batch) -> Result<(), Error> {
        let now = &frontier.now;
        let kernel = self.kernel("gather", kernels::gather)?;
        // From here on, the node count is that of the part.
        let counts = now.counts.slice(0..1)?;
        self.submit(&std::mem::take(batch))?;
        batch.clear(&[&counts]);
        let objects: NamedArguments<'static> = vec![
            ("bits", (&now.bits).into()),
            ("queue", (&now.queue).into()),
            ("size", (&counts).into()),
            ("first", words.start.into()),
            ("end", words.end.into()),
        ];
        let invocations = (words.len() as u32).div_ceil(kernels::GATHERED);
        self.add(batch, &kernel, Grid::elements(invocations), objects, Vec::new())?;
        self.grid(now, batch)
    }

    fn grid(&self, set: &Set, batch: &mut Batch) -> Result<(), Error> {
        let kernel = self.kernel("grid", || kernels::grid(self.lanes()))?;
        let objects = vec![("counts", (&set.counts).into()), ("grid", (&set.grid).into())];
        self.add(batch, &kernel, Grid::elements(1), objects, Vec::new())
    }

    /// Appends dispatches that clear a set.
    fn empty(&self, set: &Set, batch: &mut Batch) -> Result<(), Error> {
        let kernel = self.kernel("empty", kernels::empty)?;
        for words in [&set.bits, &set.counts] {
            self.add(batch, &kernel, Grid::elements(words.len()), vec![("words", words.into())], Vec::new())?;
        }
        Ok(())
    }

    /// Appends a dispatch that counts the nodes of a set and their edges.
    fn count(&self, set: &Set, given: &NamedArguments<'_>, batch: &mut Batch) -> Result<(), Error> {
        let kernel = self.kernel("count", kernels::count)?;
        let mut objects: NamedArguments<'_> = vec![("bits", (&set.bits).into()), ("counts", (&set.counts).into())];
        let rows = given.iter().filter(|(name, _)| ["offsets", "stride", "first"].contains(name));
        objects.extend(rows.cloned());
        let grid = Grid::elements(set.bits.len().div_ceil(kernels::COUNTED) * WORD);
        self.add(batch, &kernel, grid, objects, Vec::new())
    }

    /// Returns the kernel of a name, compiled on first use.
    pub(crate) fn kernel(
        &self,
        name: &str,
        program: impl FnOnce() -> Result<Program, Error>,
    ) -> Result<vyre_driver::Kernel, Error> {
        if let Some((_, kernel)) = self.kernels.borrow().get(name) {
            return Ok(kernel.clone());
        }
        let started = Instant::now();
        let program = validate::program(program()?)?;
        let kernel = self.device.compile(&program)?;
        self.compile_time.set(self.compile_time.get() + started.elapsed());
        self.kernels.borrow_mut().insert(name.to_owned(), (program, kernel.clone()));
        Ok(kernel)
    }

    /// Appends a dispatch, and binds the arrays of the graph that its kernel declares.
    pub(crate) fn add(
        &self,
        batch: &mut Batch,
        kernel: &vyre_driver::Kernel,
        grid: Grid,
        objects: NamedArguments<'_>,
        given: NamedArguments<'_>,
    ) -> Result<(), Error> {
        let program = kernel.program();
        // The rows among the arguments are for pushes; pulls use slices.
        let pulls = program.memory_named("sliced").is_some();
        let is_row = |name: &str| ["offsets", "stride", "first", "targets", "weights"].contains(&name);
        let uses = |name: &str| !pulls && program.memory_named(name).is_some();
        let mut arguments = objects;
        arguments.extend(given);
        arguments.retain(|(name, _)| !is_row(name) || uses(name));
        for memory in program.memories().values() {
            let name = memory.name.as_str();
            if arguments.iter().any(|(given, _)| *given == name) {
                continue;
            }
            match (memory.space, name) {
                // Defaults for rows that are not split.
                (Space::Uniform, "stride") => arguments.push((name, 1u32.into())),
                (Space::Uniform, "first") => arguments.push((name, 0u32.into())),
                (Space::Storage(_), _) => {
                    arguments.extend(self.part(name, pulls)?.map(|buffer| (name, Argument::Buffer(buffer))));
                }
                _ => {}
            }
        }
        batch.dispatches.push(kernel.dispatch(grid, arguments)?);
        Ok(())
    }

    /// Submits a batch and waits for it.
    pub(crate) fn submit(&self, batch: &Batch) -> Result<(), Error> {
        if batch.dispatches.is_empty() && batch.cleared.is_empty() {
            return Ok(());
        }
        let cleared: Vec<&Buffer> = batch.cleared.iter().collect();
        let reports = self.device.clear_and_submit(&cleared, &batch.dispatches).and_then(Submission::wait)?;
        for (report, dispatch) in reports.iter().zip(&batch.dispatches) {
            if report.outcome != Outcome::Completed {
                let kernel = dispatch.kernel().program().name().to_owned();
                return Err(DriverError::Stopped { kernel, outcome: report.outcome.to_string() }.into());
            }
        }
        Ok(())
    }
}

/// Dense steps of one submission in the fused dense topology.
const FUSED: u32 = 2;

/// Returns the arguments of pushes.
fn push_objects(frontier: &Frontier) -> NamedArguments<'static> {
    vec![
        ("queue", (&frontier.now.queue).into()),
        ("counts", (&frontier.now.counts).into()),
        ("next", (&frontier.next.bits).into()),
    ]
}

/// Lengths of `counts` and `grid` of a set.
const COUNTS: u32 = 4;
const GRID: u32 = 3;

/// Plan of the device memory of a computation, in sizes rounded to size classes of the device's pool.
struct MemoryPlan {
    budget: Option<u64>,
    /// Memory pressure: share of the budget with unbounded queues.
    pressure_bps: u16,
    /// Queues are bounded, and frontiers are processed in parts.
    constrained: bool,
    /// Capacity of a queue.
    queue: u32,
    /// Ranges of bitmap words whose nodes fit into the queue.
    parts: Vec<Range<u32>>,
    /// Length of the sliced rows of pulls; 0 without a budget.
    sliced: u64,
}

impl MemoryPlan {
    fn new(graph: &Graph, config: &Config, needs: &Needs, budget: Option<u64>) -> Result<MemoryPlan, Error> {
        let words = graph.nodes().div_ceil(WORD).max(1);
        let parts = std::iter::once(0..words).collect();
        let sliced = if budget.is_some() { graph.incoming().sliced_len()? } else { 0 };
        let queue = graph.nodes().max(1);
        let free = MemoryPlan { budget, pressure_bps: 0, constrained: false, queue, parts, sliced };
        let unconstrained = free.bytes(graph, needs)?;
        let share = |budget: u64| (u128::from(unconstrained) * 10_000 / u128::from(budget.max(1))).min(10_000);
        let pressure_bps = budget.map_or(0, |budget| share(budget) as u16);
        let is_over = budget.is_some_and(|budget| unconstrained > budget);
        let is_short = is_over || pressure_bps >= config.policy.memory_pressure_threshold_bps;
        if !is_short && config.fixed != Some(Topology::MemoryConstrained) {
            return Ok(MemoryPlan { pressure_bps, ..free });
        }

        /// Maximum number of parts of a frontier.
        const WAVES: u32 = 64;
        let each = words.div_ceil(WAVES);
        let waves: Vec<Range<u32>> =
            (0..words).step_by(each as usize).map(|start| start..words.min(start + each)).collect();
        let bounded = |queue: u32| MemoryPlan { pressure_bps, constrained: true, queue, parts: Vec::new(), ..free };
        let budget = budget.unwrap_or(u64::MAX);
        let queue_of = |count: u32| words.min(count * each) * WORD;
        let required = |count: u32| bounded(queue_of(count)).bytes(graph, needs);
        let least = required(1)?;
        if least > budget {
            return Err(DriverError::OverBudget { field: COMPUTATION, required: least, budget }.into());
        }
        // The longest queue that fits. The size of the whole queue is rounded, so sizes of waves cannot be added up.
        let mut count = waves.len() as u32;
        while required(count)? > budget {
            count -= 1;
        }
        let queue = queue_of(count);
        let bytes = |words: u32| 4 * u64::from(WORD) * u64::from(words);
        let cost = |wave: &Range<u32>| Wave { frontier_bytes: bytes(wave.len() as u32), ..Wave::default() };
        let costs: Vec<Wave> = waves.iter().map(cost).collect();
        let plan = Planner::default().plan(&costs, &[], 0, bytes(queue / WORD), 0)?;
        let part = |group: &[usize]| waves[group[0]].start..waves[group[group.len() - 1]].end;
        let parts = plan.barriers.groups().map(part).collect();
        Ok(MemoryPlan { parts, ..bounded(queue) })
    }

    /// Returns the size of all buffers of a computation.
    fn bytes(&self, graph: &Graph, needs: &Needs) -> Result<u64, Error> {
        let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
        let words = nodes.div_ceil(WORD.into()).max(1);
        let weights = needs.weights.then_some(edges);
        let mut bytes = needs
            .buffers
            .iter()
            .copied()
            .chain(weights)
            .map(|length| length.saturating_mul(4))
            .try_fold(0, sum_class)?;
        let queues = if self.constrained { 1 } else { 2 };
        let mut frontier = 0;
        for (count, length) in [(2, words), (2, COUNTS.into()), (2, GRID.into()), (queues, self.queue.into())] {
            for _ in 0..count {
                frontier = sum_class(frontier, 4 * length)?;
            }
        }
        let frontiers = u64::from(needs.frontiers).checked_mul(frontier);
        bytes = frontiers.and_then(|frontiers| bytes.checked_add(frontiers)).ok_or(TOO_LARGE)?;
        // Pulls also use the slices of incoming edges.
        if needs.frontiers > 0 && !self.constrained {
            let weights = needs.weights.then_some(self.sliced);
            bytes = [nodes, graph.incoming().slices() + 1, self.sliced]
                .into_iter()
                .chain(weights)
                .map(|length| 4 * length)
                .try_fold(bytes, sum_class)?;
        }
        Ok(bytes)
    }
}

/// Adds the size of a buffer, rounded to its size class.
fn sum_class(sum: u64, bytes: u64) -> Result<u64, DriverError> {
    let class = Buffer::size_class(bytes);
    class.and_then(|class| sum.checked_add(class)).ok_or(TOO_LARGE)
}

const TOO_LARGE: DriverError = DriverError::Overflow { field: COMPUTATION };
/// Subject of errors about budgets.
const COMPUTATION: &str = "device memory of the computation";

/// Dispatches of one submission, and buffers that are cleared before them.
#[derive(Default)]
pub(crate) struct Batch {
    cleared: Vec<Buffer>,
    dispatches: Vec<Dispatch>,
}

impl Batch {
    pub(crate) fn clear(&mut self, buffers: &[&Buffer]) {
        self.cleared.extend(buffers.iter().copied().cloned());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use vyre_cpu::Cpu;
    use vyre_foundation::ir::Op;
    use vyre_foundation::optimizer::Reason;

    use super::*;
    use crate::graph::{self, Edges, Family};

    /// Returns true if every atomic on an object is guarded by a load of the object.
    fn guards_atomics(program: &Program, name: &str) -> bool {
        let (object, _) = program.memories().iter().find(|(_, memory)| memory.name == name).expect("it is declared");
        let on_object = |id: &_| program.inst(*id).op.memory() == Some(object);
        let mut atomics = program
            .blocks()
            .values()
            .filter(|block| block.insts.iter().any(|id| on_object(id) && program.inst(*id).op.atomic().is_some()));
        let loads = program.insts().values().filter(|inst| inst.op == Op::Load(program.operand(object))).count();
        loads > 0 && atomics.all(|block| block.insts.len() == 2)
    }

    #[test]
    fn idempotent_atomics_of_pushes_are_guarded() {
        let graph = Graph::new(&Edges::generate(Family::Kronecker, 6, 4, 1).unwrap()).unwrap();
        let device = Device::open(&Cpu::default()).unwrap();
        for (topology, suffix) in [(Topology::SparseFrontier, "sparse"), (Topology::HybridFrontier, "hybrid")] {
            let config = Config { fixed: Some(topology), ..Config::default() };
            let engine = Engine::new(&device, &graph, config, Needs::default()).unwrap();
            graph::bfs(&engine, 0).unwrap();
            graph::sssp(&engine, 0, None).unwrap();
            for (step, objects) in [("bfs", &["next"][..]), ("sssp", &["next", "distances", "far"])] {
                let kernel = engine.kernel(&format!("{step}_{suffix}"), || unreachable!("it was used")).unwrap();
                let compilation = kernel.compilation();
                let is_pass = |name: &str| name == "guard_idempotent_atomics";
                let decision = compilation.decisions.iter().find(|decision| is_pass(decision.metadata.name)).unwrap();
                assert_eq!(decision.reason, Reason::ProgramShape);
                let report = compilation.report.as_ref().unwrap();
                assert!(report.metrics.iter().any(|metric| is_pass(metric.pass) && metric.changed()));
                for object in objects {
                    assert!(guards_atomics(kernel.program(), object), "{object} of {step}_{suffix}");
                }
            }
        }
    }
}
