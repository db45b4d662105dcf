//! Frontiers: sets of nodes of a graph that become other sets by following edges, on any device.
//!
//! ```text
//! Frontier   how many nodes it has, and how many edges leave them
//!   → policy   is asked before every step, with what the step before was
//!   → topology sparse       edges are pushed from a queue to a queue
//!              hybrid       from a queue to a bit for each node, of which a queue is made
//!              dense        nodes look for edges that come from the frontier
//!              fused dense  the same, several steps without a word to the host
//!              memory-constrained   as hybrid, with a queue for as many nodes at a time as the plan of memory has room for
//!   → Iteration  what was decided and why, and what it took
//! ```
//!
//! A [`Step`] says once what is done with an edge; the programs of all topologies are made of it. Whether a node has been reached twice in
//! one step makes no difference: a bit is set once, so nothing is done twice for it in the next.

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

/// An edge whose source is in the frontier.
#[derive(Clone, Copy)]
pub struct Edge<'k> {
    /// Where it begins.
    pub source: Val<'k, u32>,
    /// Where it ends.
    pub target: Val<'k, u32>,
    /// Where its weight is, in the object `weights`.
    pub index: Val<'k, u32>,
}

/// What a step does, as a part of a program.
pub struct Visitor<'k> {
    pub(crate) visit: Box<dyn Fn(Edge<'k>) -> Val<'k, bool> + 'k>,
    pub(crate) wants: Option<Test<'k>>,
}

impl<'k> Visitor<'k> {
    /// Does this with every edge. It says whether the target is in the next frontier; a target may be visited by several edges at
    /// once.
    pub fn new(visit: impl Fn(Edge<'k>) -> Val<'k, bool> + 'k) -> Visitor<'k> {
        Visitor { visit: Box::new(visit), wants: None }
    }

    /// Only targets for which this holds need to be visited.
    #[must_use]
    pub fn wanting(self, wants: impl Fn(Val<'k, u32>) -> Val<'k, bool> + 'k) -> Visitor<'k> {
        Visitor { wants: Some(Box::new(wants)), ..self }
    }
}

/// What is done with the edges of a frontier.
#[derive(Clone, Copy)]
pub struct Step {
    /// Names the programs that are made of it; no other step has it.
    pub name: &'static str,
    /// Declares the memory that it uses, which is bound by name, and says what is done.
    pub visit: fn(&build::Kernel) -> Visitor<'_>,
    /// A target that was admitted need not be visited again in the same step.
    pub until_admitted: bool,
}

/// Whether a node stays in a frontier.
pub type Test<'k> = Box<dyn Fn(Val<'k, u32>) -> Val<'k, bool> + 'k>;
/// What is done with a node.
pub type Body<'k> = Box<dyn Fn(Val<'k, u32>) + 'k>;

/// Arguments of a program, by name.
pub type NamedArguments<'a> = Vec<(&'a str, Argument)>;

/// How an engine works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What decides.
    pub policy: Policy,
    /// Device memory that may be used; without this, what the device has.
    pub budget: Option<u64>,
    /// Always this topology, instead of what the policy says, wherever it is possible.
    pub fixed: Option<Topology>,
    /// Steps are remembered, with the edges that were looked at, which takes some time.
    pub explains: bool,
}

impl Default for Config {
    /// The square root of all edges is still sparse; about a fifteenth of them is dense.
    fn default() -> Config {
        let policy =
            Policy { sparse_frontier_threshold_bps: 5000, dense_frontier_threshold_bps: 8300, ..Policy::default() };
        Config { policy, budget: None, fixed: None, explains: false }
    }
}

/// Device buffers of a computation, from which an engine plans a memory budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Frontiers that exist at the same time.
    pub frontiers: u32,
    /// Steps read the weights of edges.
    pub weights: bool,
    /// Lengths of the other buffers, in elements of 4 bytes: rows of the graph, and arrays of the computation.
    pub buffers: Vec<u64>,
}

impl Needs {
    /// One frontier, the rows of outgoing edges, and `arrays` arrays with an element of 4 bytes for each node.
    pub fn traversal(graph: &Graph, arrays: u8) -> Needs {
        let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
        let mut buffers = vec![nodes + 1, edges];
        buffers.resize(2 + usize::from(arrays), nodes);
        Needs { frontiers: 1, weights: false, buffers }
    }
}

/// What a step of a frontier was, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// Nodes of the frontier.
    pub nodes: u32,
    /// Edges that leave them.
    pub edges: u32,
    /// How dense that is, in basis points: the logarithm of these edges, as a part of that of all edges.
    pub density_bps: u16,
    /// How edges were followed.
    pub topology: Topology,
    /// Why.
    pub reason: String,
    /// Edges that were looked at.
    pub examined: u64,
    /// Parts of the frontier that were followed one after the other.
    pub parts: u32,
    /// How long it took, with what the host does.
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
    why: Why,
    nodes: u32,
    edges: u32,
    density_bps: u16,
    dense: u32,
    started: Instant,
    /// Compile time of the engine before the step.
    compile_time: Duration,
    /// Until it is done.
    _span: EnteredSpan,
}

/// What a choice follows from.
#[derive(Clone, Copy)]
enum Why {
    Asked,
    /// The choice before this one.
    Kept,
    Measured,
}

/// A set of nodes, on the device.
struct Set {
    bits: Buffer,
    queue: Buffer,
    /// Nodes, edges that leave them, edges that were looked at to find them.
    counts: Buffer,
    grid: Buffer,
}

impl Set {
    fn counted(&self) -> Result<[u32; 3], Error> {
        let counts = self.counts.elements::<u32>()?;
        Ok([counts[0], counts[1], counts[2]])
    }
}

/// A set of nodes of a graph. Only the engine that made it uses it.
pub struct Frontier {
    owner: Owner,
    now: Set,
    next: Set,
    /// Whether the queue has the nodes.
    queued: bool,
    nodes: u32,
    edges: u32,
    step: u32,
    topology: Option<Topology>,
    /// How many steps in a row were dense.
    dense: u32,
}

impl Frontier {
    /// How many nodes it has.
    pub fn len(&self) -> u32 {
        self.nodes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// How many steps were made.
    pub fn steps(&self) -> u32 {
        self.step
    }

    /// A bit for each node, 32 to an element.
    pub fn bits(&self) -> &Buffer {
        &self.now.bits
    }
}

/// A graph on a device.
pub struct Engine<'g> {
    owner: Owner,
    device: Device,
    graph: &'g Graph,
    config: Config,
    /// The parts of the graph that are on the device, by name.
    resident: RefCell<FxHashMap<&'static str, Buffer>>,
    /// The rows of outgoing edges, those lighter than a limit first in each.
    split: RefCell<Option<(u32, NamedArguments<'static>)>>,
    /// Memory of the device, and how much of it frontiers may use.
    memory: MemoryPlan,
    /// Nodes that have incoming edges: others are last in the order of degrees, and are never reached.
    reachable: u32,
    /// By name, with the programs that they were made of.
    kernels: RefCell<BTreeMap<String, (Validated<Program>, vyre_driver::Kernel)>>,
    /// Time in which these were compiled.
    compile_time: Cell<Duration>,
    iterations: RefCell<Vec<Iteration>>,
}

impl<'g> Engine<'g> {
    /// A graph that is going to be on a device, as far as it is needed there.
    ///
    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget) names the least budget that is accepted. [`Error::FixedTopology`]: the topology follows no edges.
    #[expect(clippy::needless_pass_by_value, reason = "needs are made for this call, as configurations are")]
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

    /// Makes sure that a computation fits the budget, whichever needs the engine was made for. Parts of the graph that other computations have
    /// left on the device make room.
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

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lanes of a workgroup whose lanes work together: a vector of the processor, or enough for a GPU.
    pub(crate) fn lanes(&self) -> u32 {
        let capabilities = self.device.capabilities();
        match capabilities.kind {
            DeviceKind::Cpu => capabilities.subgroup_size.unwrap_or(8),
            DeviceKind::Gpu | DeviceKind::SoftwareGpu | DeviceKind::Oracle | DeviceKind::Null => 32,
        }
    }

    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// How it works.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the steps so far were.
    pub fn iterations(&self) -> Vec<Iteration> {
        self.iterations.borrow().clone()
    }

    /// Time in which kernels were compiled so far, during steps and between them.
    pub fn compile_time(&self) -> Duration {
        self.compile_time.get()
    }

    /// The programs of the steps so far, as they were before they were optimized.
    pub fn programs(&self) -> Vec<Validated<Program>> {
        self.kernels.borrow().values().map(|(program, _)| program.clone()).collect()
    }

    /// A buffer with a value for each node.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn per_node(&self, value: u32) -> Result<Buffer, Error> {
        let words = filled("nodes of the graph", value, self.graph.nodes() as usize)?;
        Ok(self.device.upload(Element::U32, bytemuck::cast_slice(&words))?)
    }

    /// A frontier of these nodes.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]: one of them is not a node of the graph. There is not enough memory.
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
        // A queue that is filled for each part is not needed by the next frontier at the same time.
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

    /// Follows the edges of a frontier, which becomes the set of the nodes that were admitted: one step, or several if it has been dense for
    /// some time. `arguments` gives those of a step, by its number.
    ///
    /// # Errors
    /// Arguments do not fit the step, [`Error::ForeignFrontier`], or the device failed.
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
        let way = match topology {
            Topology::Empty => return Ok(()),
            Topology::SparseFrontier => "sparse",
            Topology::HybridFrontier | Topology::MemoryConstrained => "hybrid",
            Topology::DenseFrontier | Topology::FusedDense => "dense",
        };
        let name = &format!("{}_{way}", step.name);
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

    /// Keeps only nodes for which something holds.
    ///
    /// # Errors
    /// Arguments do not fit, [`Error::ForeignFrontier`], or the device failed.
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

    /// Makes a frontier of those nodes of a set, which has a bit for each, for which something holds.
    ///
    /// # Errors
    /// Arguments do not fit, [`Error::ForeignFrontier`], or the device failed.
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

    /// Does something with every node of a frontier.
    ///
    /// # Errors
    /// Arguments do not fit, [`Error::ForeignFrontier`], or the device failed.
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

    /// Asks the policy how to follow `edges` of `nodes`, after so many dense steps. Where looking for edges ends early for nobody, it takes as
    /// long as following all of them, and nothing is dense.
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
        // Frontiers grow and shrink by factors, so this is on a scale of factors: half of it is the square root of all edges.
        let digits = |count: u32| f64::from(count).ln_1p();
        let density_bps = (digits(edges) * 10_000.0 / digits(self.graph.edges().max(1))).clamp(1.0, most) as u16;
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
        let (topology, why) = match self.config.fixed {
            Some(fixed) if !matches!(chosen, Topology::Empty | Topology::MemoryConstrained) => (fixed, Why::Asked),
            _ if policy.recommend(&Request { previous_topology: None, ..request })?.topology != chosen => {
                (chosen, Why::Kept)
            }
            _ => (chosen, Why::Measured),
        };
        let span = tracing::info_span!("step", topology = ?topology, nodes, edges, density_bps).entered();
        let compile_time = self.compile_time.get();
        Ok(Decision { policy, topology, why, nodes, edges, density_bps, dense, started, compile_time, _span: span })
    }

    /// Remembers a step that was executed in a number of parts.
    pub(crate) fn record(&self, decision: &Decision, parts: u32, examined: u64) {
        let Decision { policy, topology, why, nodes, edges, density_bps, dense, started, .. } = *decision;
        if !self.config.explains {
            return;
        }
        let percent = |bps: u16| format!("{}.{:02} %", bps / 100, bps % 100);
        let compared = |how: &str, bps: u16| format!("log-density {} {how} {}", percent(density_bps), percent(bps));
        let reason = match (why, topology) {
            (Why::Asked, _) => "fixed by the configuration".into(),
            (Why::Kept, _) => "hysteresis: close to the previous step".into(),
            (Why::Measured, Topology::Empty) => "empty frontier".into(),
            (Why::Measured, Topology::MemoryConstrained) => {
                let plural = if parts == 1 { "" } else { "s" };
                format!("memory pressure {}; {parts} part{plural}", percent(self.memory.pressure_bps))
            }
            (Why::Measured, Topology::SparseFrontier) => compared("≤", policy.sparse_frontier_threshold_bps),
            (Why::Measured, Topology::HybridFrontier) => compared("<", policy.dense_frontier_threshold_bps),
            (Why::Measured, Topology::DenseFrontier) => compared("≥", policy.dense_frontier_threshold_bps),
            (Why::Measured, Topology::FusedDense) => format!("{dense} dense steps in a row"),
        };
        let (time, bytes) = (started.elapsed(), self.device.memory().used);
        let compile_time = self.compile_time.get().saturating_sub(decision.compile_time);
        let iteration =
            Iteration { nodes, edges, density_bps, topology, reason, examined, parts, time, compile_time, bytes };
        self.iterations.borrow_mut().push(iteration);
    }

    /// A part of the graph, which is on the device once somebody asks for it. Without weights, each edge weighs 1.
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

    /// The nodes in the order of slices, the slices with these places instead of nodes, and for each place one part of as many as edges
    /// leave the node.
    pub(crate) fn by_degree(&self) -> Result<[Buffer; 3], Error> {
        const NAMES: [&str; 3] = ["order", "ranked", "portions"];
        if !self.resident.borrow().contains_key("ranked") {
            let slices = self.graph.incoming().sliced()?;
            let mut places: Vec<u32> = zeroed("nodes of the graph", slices.order.len())?;
            (0..).zip(&slices.order).for_each(|(place, node): (u32, _)| places[*node as usize] = place);
            let place = |node: &u32| places.get(*node as usize).copied().unwrap_or(UNREACHED);
            let ranked = collected("edges of slices", slices.targets.iter().map(place))?;
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

    /// The rows of incoming edges, for programs that would get those of outgoing ones.
    pub(crate) fn incoming_rows(&self) -> Result<NamedArguments<'static>, Error> {
        let mut rows = Vec::new();
        for (given, part) in [("offsets", "incoming_offsets"), ("targets", "incoming_targets")] {
            rows.extend(self.part(part, false)?.map(|buffer| (given, (&buffer).into())));
        }
        Ok(rows)
    }

    /// The rows of outgoing edges, split into those lighter than a limit, for which `first` is 0, and the others, for which it is 1.
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

    /// Makes sure that the queue has the nodes.
    fn queue(&self, frontier: &mut Frontier, batch: &mut Batch) -> Result<(), Error> {
        if !frontier.queued {
            self.gather(frontier, 0..frontier.now.bits.len(), batch)?;
            frontier.queued = true;
        }
        Ok(())
    }

    /// Writes the nodes of some words to the queue, and what it takes to push from there.
    fn gather(&self, frontier: &Frontier, words: Range<u32>, batch: &mut Batch) -> Result<(), Error> {
        let now = &frontier.now;
        let kernel = self.kernel("gather", kernels::gather)?;
        // The number of nodes in the queue is that of the part.
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

    /// Leaves nothing in a set, before what is launched next.
    fn empty(&self, set: &Set, batch: &mut Batch) -> Result<(), Error> {
        let kernel = self.kernel("empty", kernels::empty)?;
        for words in [&set.bits, &set.counts] {
            self.add(batch, &kernel, Grid::elements(words.len()), vec![("words", words.into())], Vec::new())?;
        }
        Ok(())
    }

    /// Counts the nodes of a set, and the edges that a step follows from there.
    fn count(&self, set: &Set, given: &NamedArguments<'_>, batch: &mut Batch) -> Result<(), Error> {
        let kernel = self.kernel("count", kernels::count)?;
        let mut objects: NamedArguments<'_> = vec![("bits", (&set.bits).into()), ("counts", (&set.counts).into())];
        let rows = given.iter().filter(|(name, _)| ["offsets", "stride", "first"].contains(name));
        objects.extend(rows.cloned());
        let grid = Grid::elements(set.bits.len().div_ceil(kernels::COUNTED) * WORD);
        self.add(batch, &kernel, grid, objects, Vec::new())
    }

    /// The kernel of a program, which is compiled once.
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

    /// Appends a dispatch, with the parts of the graph that its kernel names.
    pub(crate) fn add(
        &self,
        batch: &mut Batch,
        kernel: &vyre_driver::Kernel,
        grid: Grid,
        objects: NamedArguments<'_>,
        given: NamedArguments<'_>,
    ) -> Result<(), Error> {
        let program = kernel.program();
        // Rows are given to all programs of a step; a pull has others.
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
                // Where there is one kind of edges.
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

    /// Runs launches.
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

/// Dense steps that are made at once, once a frontier has been dense for some time.
const FUSED: u32 = 2;

/// What pushes of a frontier are given.
fn push_objects(frontier: &Frontier) -> NamedArguments<'static> {
    vec![
        ("queue", (&frontier.now.queue).into()),
        ("counts", (&frontier.now.counts).into()),
        ("next", (&frontier.next.bits).into()),
    ]
}

/// Elements of `counts` and of `grid` of a set.
const COUNTS: u32 = 4;
const GRID: u32 = 3;

/// Plan of the device memory of a computation, in sizes as the pool of the device rounds them.
struct MemoryPlan {
    budget: Option<u64>,
    /// The share of the budget that would be used without a bound on queues.
    pressure_bps: u16,
    /// Queues are bounded, and nodes are followed in parts.
    constrained: bool,
    /// Elements of a queue.
    queue: u32,
    /// Words of a frontier whose nodes fit into a queue, one part after the other.
    parts: Vec<Range<u32>>,
    /// Elements of the sliced rows that dense steps use; 0 without a budget.
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

        /// Parts that a frontier is cut into where memory is shortest.
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
        // The longest queue that fits. Its size is rounded as a whole, so that those of waves cannot be added up.
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

    /// Bytes of all buffers of a computation.
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
        // Dense steps use slices of the rows of incoming edges besides.
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

/// Adds the size of a buffer, as the pool rounds it.
fn sum_class(sum: u64, bytes: u64) -> Result<u64, DriverError> {
    let class = Buffer::size_class(bytes);
    class.and_then(|class| sum.checked_add(class)).ok_or(TOO_LARGE)
}

const TOO_LARGE: DriverError = DriverError::Overflow { field: COMPUTATION };
/// Subject of errors about budgets.
const COMPUTATION: &str = "device memory of the computation";

/// Launches that are submitted together, and what is filled with zeros before.
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

    /// Whether every atomic on an object stands behind a test of what is there.
    fn looks_first(program: &Program, name: &str) -> bool {
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
    fn whether_an_atomic_changes_anything_is_looked_at_by_a_pass() {
        let graph = Graph::new(&Edges::generate(Family::Kronecker, 6, 4, 1).unwrap()).unwrap();
        let device = Device::open(&Cpu::default()).unwrap();
        for (topology, way) in [(Topology::SparseFrontier, "sparse"), (Topology::HybridFrontier, "hybrid")] {
            let config = Config { fixed: Some(topology), ..Config::default() };
            let engine = Engine::new(&device, &graph, config, Needs::default()).unwrap();
            graph::bfs(&engine, 0).unwrap();
            graph::sssp(&engine, 0, None).unwrap();
            for (step, objects) in [("bfs", &["next"][..]), ("sssp", &["next", "distances", "far"])] {
                let kernel = engine.kernel(&format!("{step}_{way}"), || unreachable!("it was used")).unwrap();
                let compilation = kernel.compilation();
                let is_pass = |name: &str| name == "guard_idempotent_atomics";
                let decision = compilation.decisions.iter().find(|decision| is_pass(decision.metadata.name)).unwrap();
                assert_eq!(decision.reason, Reason::ProgramShape);
                let report = compilation.report.as_ref().unwrap();
                assert!(report.metrics.iter().any(|metric| is_pass(metric.pass) && metric.changed()));
                for object in objects {
                    assert!(looks_first(kernel.program(), object), "{object} of {step}_{way}");
                }
            }
        }
    }
}
