//! Pipeline planning: order, launch fusion, barrier groups and memory, each by a planner of the driver.
//!
//! Dispatches are sorted topologically so that chains stay together, and consecutive dispatches that may be fused get the same label, from
//! which [`launch_fusion`] forms launches. [`frontier`] forms barrier groups of launches. Buffers share memory if their live ranges, in
//! groups, are disjoint. If the plan exceeds the budget, first the concurrency of launches is reduced, then their fusion, until the plan
//! fits or both are minimal.

use std::ops::Range;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use vyre_driver::plan::barrier::Dependency;
use vyre_driver::plan::frontier::{self, Wave};
use vyre_driver::plan::launch_fusion;
use vyre_driver::{Capabilities, Error as DriverError};
use vyre_foundation::Validated;
use vyre_foundation::ir::entity::{Arena, SecondaryMap};
use vyre_foundation::ir::pipeline::{Argument, Buffer, Role};
use vyre_foundation::ir::{BufferId, MemId, Program, total_invocations};
use vyre_foundation::launch::{Arguments, Limits};
use vyre_foundation::transform::fuse::{self, Fused};
use vyre_foundation::validate::limits;

use super::memory::{self, Memory};
use super::{Pipeline, Stage};
use crate::Error;

/// Plan of a pipeline.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the pipeline.
    pub name: String,
    pub(super) buffers: Arena<BufferId, Buffer>,
    /// Memory of attached buffers.
    pub(super) attached: Vec<(BufferId, vyre_driver::Buffer)>,
    /// Number of recorded dispatches.
    recorded: usize,
    /// Positions of the dispatches in the pipeline, in the topological order in which they are considered for fusion.
    pub order: Vec<usize>,
    /// For each dispatch of `order` but the first, its fusion with the preceding ones.
    pub joins: Vec<Join>,
    /// Launches in topological order.
    pub launches: Vec<Launch>,
    /// Barrier groups: positions of launches.
    pub groups: Vec<Vec<usize>>,
    /// Memory plan.
    pub memory: Memory,
}

/// Fusion of a dispatch with the preceding ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// Fused.
    Fused,
    /// Not fused, for this reason.
    Refused(String),
    /// Legal, but not fused to keep the memory budget.
    Budget,
}

/// A launch of one or more fused dispatches.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, fused if there are several dispatches.
    pub program: Validated<Program>,
    /// Number of workgroups.
    pub groups: [u32; 3],
    /// Positions of its dispatches in the pipeline.
    pub dispatches: Vec<usize>,
    /// Transient buffers that fusion eliminated.
    pub dropped: Vec<BufferId>,
    pub(super) arguments: Arguments<BufferId>,
    /// Requirements for keeping the limits of each of its dispatches; `None` for a single dispatch.
    pub(super) fused: Option<Needs>,
}

/// Requirements of a fused launch for keeping the limits of each of its dispatches.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    /// Upper bound of the loop trips of a dispatch. With less fuel, a dispatch could stop the others.
    fuel: u64,
    /// A visible buffer that is written before the last dispatch: a deadline could leave it incomplete.
    exposed: Option<String>,
}

impl Plan {
    /// Returns the number of launches that fusion eliminated.
    pub fn avoided_launches(&self) -> usize {
        self.order.len().saturating_sub(self.launches.len())
    }

    /// Checks that the groups execute every recorded dispatch exactly once.
    pub(super) fn verify(&self) -> Result<(), Error> {
        let recorded = self.recorded;
        let mut planned = vec![0usize; recorded];
        for &launch in self.groups.iter().flatten() {
            let launch = self.launches.get(launch);
            // A position without a launch counts as an unknown dispatch.
            let unknown = launch.is_none().then_some(recorded);
            for dispatch in launch.into_iter().flat_map(|launch| launch.dispatches.iter().copied()).chain(unknown) {
                let count = planned.get_mut(dispatch);
                *count.ok_or(Error::IncompletePlan { dispatch, planned: 1, recorded })? += 1;
            }
        }
        match planned.iter().position(|count| *count != 1) {
            Some(dispatch) => Err(Error::IncompletePlan { dispatch, planned: planned[dispatch], recorded }),
            None => Ok(()),
        }
    }

    /// Returns the size of the buffers that fusion eliminated.
    pub fn avoided_bytes(&self) -> u64 {
        let dropped = self.launches.iter().flat_map(|launch| &launch.dropped);
        dropped.filter_map(|id| self.buffers.get(*id)).fold(0, |sum, buffer| sum.saturating_add(buffer.bytes()))
    }
}

/// Reason why a fused launch cannot keep the limits of its dispatches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnplannedLimit {
    /// A dispatch could run out of fuel and stop those that it is fused with.
    #[error("a dispatch may take {trips} loop trips > fuel {fuel}")]
    Fuel {
        /// Upper bound of its loop trips.
        trips: u64,
        /// Fuel of each dispatch.
        fuel: u64,
    },
    /// A deadline could leave a buffer incomplete that an earlier dispatch of the launch writes.
    #[error("a deadline of {deadline:?} could leave `{buffer}` incomplete")]
    Deadline {
        /// Deadline of each dispatch.
        deadline: Duration,
        /// The buffer.
        buffer: String,
    },
}

impl Launch {
    /// Returns the limits of the launch, given those of each dispatch. A fused launch gets the sums of fuel and deadlines; within
    /// these, each of its dispatches has enough fuel.
    ///
    /// # Errors
    /// The launch was fused for other limits.
    pub(super) fn limits(&self, each: Limits) -> Result<Limits, Error> {
        let Some(Needs { fuel, exposed }) = &self.fused else { return Ok(each) };
        let unplanned = |reason| Error::UnplannedLimit { launch: self.program.name().to_owned(), reason };
        if each.fuel < *fuel {
            return Err(unplanned(UnplannedLimit::Fuel { trips: *fuel, fuel: each.fuel }));
        }
        if let (Some(deadline), Some(buffer)) = (each.deadline, exposed) {
            return Err(unplanned(UnplannedLimit::Deadline { deadline, buffer: buffer.clone() }));
        }
        let count = self.dispatches.len();
        let deadline = each.deadline.map(|deadline| deadline.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)));
        Ok(Limits { fuel: each.fuel.saturating_mul(count as u64), deadline, ..each })
    }

    /// Returns the lengths of the bound buffers.
    pub fn lengths(&self, plan: &Plan) -> impl Iterator<Item = (MemId, u64)> {
        self.arguments.buffers().filter_map(|(object, id)| Some((object, u64::from(plan.buffers.get(*id)?.length))))
    }
}

impl Pipeline {
    /// Returns the accesses of a dispatch, one entry for each bound buffer; `None` if it was not recorded.
    pub fn uses(&self, dispatch: usize) -> Option<Vec<Use>> {
        let Stage { program, arguments, .. } = self.stages.get(dispatch)?;
        Some(uses(program, arguments))
    }
}

/// Access of a dispatch or launch to a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Accessed buffer.
    pub buffer: BufferId,
    /// The access may read it.
    pub reads: bool,
    /// The access may write it.
    pub writes: bool,
}

/// Returns the accesses of a program, one entry for each bound buffer.
fn uses(program: &Program, arguments: &Arguments<BufferId>) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    for (object, &buffer) in arguments.buffers() {
        let memory = program.memory(object);
        let (reads, writes) = (memory.readable(), memory.writable());
        match uses.iter_mut().find(|known| known.buffer == buffer) {
            Some(known) => (known.reads, known.writes) = (known.reads | reads, known.writes | writes),
            None => uses.push(Use { buffer, reads, writes }),
        }
    }
    uses
}

/// Finds the RAW, WAR and WAW hazards between steps on the same or overlapping buffers.
fn dependencies(pipeline: &Pipeline, steps: &[Vec<Use>]) -> Vec<Dependency> {
    let buffers = pipeline.recorded.buffers.len();
    let mut writer: SecondaryMap<BufferId, Option<usize>> = SecondaryMap::with_capacity(buffers, None);
    let mut readers: SecondaryMap<BufferId, Vec<usize>> = SecondaryMap::with_capacity(buffers, Vec::new());
    let mut dependencies = Vec::new();
    for (after, step) in steps.iter().enumerate() {
        let mut depend = |before: usize| dependencies.push(Dependency { before, after });
        for used in step {
            for &other in pipeline.overlapping(used.buffer) {
                writer[other].into_iter().for_each(&mut depend);
                readers[other].iter().filter(|_| used.writes).copied().for_each(&mut depend);
            }
            if used.writes && !readers[used.buffer].is_empty() {
                // WAR subsumes WAW: the readers depend on the writer.
                readers[used.buffer].drain(..).for_each(&mut depend);
            } else if let Some(before) = writer[used.buffer] {
                depend(before);
            }
            if used.writes {
                writer[used.buffer] = Some(after);
            } else {
                readers[used.buffer].push(after);
            }
        }
    }
    dependencies
}

/// Depth-first topological order: a step whose last dependency is placed follows immediately. This makes producers and consumers adjacent
/// for fusion, and keeps live ranges of buffers short.
fn chains(count: usize, dependencies: &[Dependency]) -> Vec<usize> {
    let mut waiting = vec![0; count];
    let mut successors = vec![Vec::new(); count];
    for Dependency { before, after } in dependencies {
        waiting[*after] += 1;
        successors[*before].push(*after);
    }
    let mut ready: Vec<usize> = (0..count).rev().filter(|step| waiting[*step] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(step) = ready.pop() {
        order.push(step);
        for &next in successors[step].iter().rev() {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(next);
            }
        }
    }
    order
}

pub(super) fn plan(pipeline: &Pipeline, capabilities: &Capabilities) -> Result<Plan, Error> {
    let _span = tracing::info_span!("plan", pipeline = pipeline.recorded.name).entered();
    let buffers = &pipeline.recorded.buffers;
    let recorded: Vec<Vec<Use>> = pipeline.stages.iter().map(|stage| uses(&stage.program, &stage.arguments)).collect();
    let order = chains(recorded.len(), &dependencies(pipeline, &recorded));
    let stages: Vec<&Stage> = order.iter().map(|&step| &pipeline.stages[step]).collect();
    let steps: Vec<Vec<Use>> = order.iter().map(|&step| recorded[step].clone()).collect();

    let sequence = Sequence::new(pipeline, &stages, steps);
    let (labels, refusals) = sequence.labels(capabilities);
    let priced = sequence.priced(&labels)?;
    let budget = pipeline.recorded.budget.or(capabilities.memory_bytes).unwrap_or(u64::MAX);
    let mut largest = 1u64;
    let mut all = 0u64;
    for stage in &priced {
        let bytes = stage.input_bytes + stage.output_bytes + stage.scratch_bytes;
        largest = largest.max(bytes);
        all = all.saturating_add(bytes);
    }
    let resident = memory::resident(pipeline)?;

    let mut fusion = launch_fusion::Planner::default();
    let mut layers = frontier::Planner::default();
    let mut made: FxHashMap<Range<usize>, Launch> = FxHashMap::default();
    let mut least = u64::MAX;
    // Full fusion first, since it saves most; less fusion may reduce the peak. The attempts do not depend on the budget, so the least peak
    // of all is the least accepted budget.
    let halves = std::iter::successors(Some(all / 2), |bytes| Some(bytes / 2)).take_while(|bytes| *bytes > largest);
    for group_bytes in std::iter::once(u64::MAX).chain(halves).chain([largest]) {
        let fused = fusion.plan(&priced, group_bytes)?;
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for group in fused.groups() {
            let start = ranges.last().map_or(0, |range| range.end);
            ranges.push(start..start + group.stage_ids.len());
        }
        let launches: Vec<Launch> = ranges
            .iter()
            .map(|range| made.entry(range.clone()).or_insert_with(|| sequence.launch(range.clone(), &order)).clone())
            .collect();
        let used: Vec<Vec<Use>> = launches.iter().map(|launch| uses(&launch.program, &launch.arguments)).collect();
        let needed = dependencies(pipeline, &used);
        let waves = waves(&used, buffers)?;
        let widest = waves.iter().map(|wave| wave.frontier_bytes.saturating_add(wave.output_bytes)).max().unwrap_or(0);
        let narrowest = resident.checked_add(widest).ok_or(DriverError::Overflow { field: "pipeline bytes" })?;

        // At most `window` launches are concurrent: each also depends on the launch `window` positions before it. A window of 1 is
        // sequential.
        let mut window = launches.len().max(1);
        loop {
            let mut dependencies = needed.clone();
            dependencies.extend((window..launches.len()).map(|after| Dependency { before: after - window, after }));
            for group_budget in [u64::MAX, narrowest] {
                let layered = layers.plan(&waves, &dependencies, resident, group_budget, 0)?;
                let groups: Vec<Vec<usize>> = layered.barriers.groups().map(<[usize]>::to_vec).collect();
                let memory = Memory::new(buffers, &launches, &used, &groups, resident, budget)?;
                least = least.min(memory.peak_bytes);
                if memory.peak_bytes <= budget {
                    let joins = joins(&ranges, &refusals);
                    let (name, buffers) = (pipeline.recorded.name.clone(), buffers.clone());
                    let attached = pipeline.attached.iter();
                    let attached = attached.map(|attached| (attached.id, attached.memory.clone())).collect();
                    let recorded = pipeline.stages.len();
                    let plan = Plan { name, buffers, attached, recorded, order, joins, launches, groups, memory };
                    plan.verify()?;
                    return Ok(plan);
                }
            }
            if window == 1 {
                break;
            }
            window /= 2;
        }
    }
    Err(DriverError::OverBudget { field: "pipeline bytes", required: least, budget }.into())
}

/// Returns the transient memory of each launch.
fn waves(used: &[Vec<Use>], buffers: &Arena<BufferId, Buffer>) -> Result<Vec<Wave>, DriverError> {
    let mut waves = Vec::with_capacity(used.len());
    for uses in used {
        let mut wave = Wave::default();
        for used in uses.iter().filter(|used| buffers[used.buffer].role == Role::Transient) {
            let held = if used.reads { &mut wave.frontier_bytes } else { &mut wave.output_bytes };
            let sum = held.checked_add(memory::allocated(&buffers[used.buffer])?);
            *held = sum.ok_or(DriverError::Overflow { field: "pipeline bytes" })?;
        }
        waves.push(wave);
    }
    Ok(waves)
}

/// Derives the [`Join`] of each stage but the first.
fn joins(ranges: &[Range<usize>], refusals: &[Option<String>]) -> Vec<Join> {
    let starts = |stage: usize| ranges.iter().any(|range| range.start == stage);
    let join = |(index, refusal): (usize, &Option<String>)| match refusal {
        Some(reason) => Join::Refused(reason.clone()),
        None if starts(index + 1) => Join::Budget,
        None => Join::Fused,
    };
    refusals.iter().enumerate().map(join).collect()
}

/// Stages in fusion order, with their analyses.
struct Sequence<'p> {
    pipeline: &'p Pipeline,
    stages: &'p [&'p Stage],
    steps: Vec<Vec<Use>>,
    buffers: &'p Arena<BufferId, Buffer>,
    fusable: Vec<fuse::Stage<'p>>,
    /// The first and last stage that use each buffer.
    spans: SecondaryMap<BufferId, Option<(usize, usize)>>,
    /// Upper bound of the loop trips per invocation of each stage, if known.
    trips: Vec<Option<u64>>,
}

impl<'p> Sequence<'p> {
    fn new(pipeline: &'p Pipeline, stages: &'p [&'p Stage], steps: Vec<Vec<Use>>) -> Self {
        let buffers = &pipeline.recorded.buffers;
        let mut spans = SecondaryMap::with_capacity(buffers.len(), None);
        for (position, step) in steps.iter().enumerate() {
            for used in step {
                let (first, _) = spans[used.buffer].unwrap_or((position, position));
                spans[used.buffer] = Some((first, position));
            }
        }
        let fusable = stages.iter().map(|stage| {
            let (mut bound, mut uniforms) = (Vec::new(), Vec::new());
            for (memory, argument) in stage.arguments.iter() {
                match *argument {
                    Argument::Buffer(buffer) => {
                        bound.push(fuse::Bound { memory, buffer, elements: buffers[buffer].length });
                    }
                    Argument::Scalar(literal) => uniforms.push((memory, literal)),
                }
            }
            fuse::Stage::new(&stage.program, stage.groups, bound, uniforms)
        });
        let fusable: Vec<fuse::Stage<'_>> = fusable.collect();
        let trips = fusable.iter().map(fuse::Stage::max_trips).collect();
        Sequence { pipeline, stages, steps, buffers, fusable, spans, trips }
    }

    /// Returns an upper bound of the loop trips of all invocations of a stage.
    fn fuel(&self, stage: usize) -> Option<u64> {
        let Stage { program, groups, .. } = self.stages[stage];
        let invocations = total_invocations(*groups, program.workgroup_size())?;
        self.trips[stage]?.checked_mul(u64::from(invocations))
    }

    /// Finds a stage before the last of `range` that writes a buffer visible outside of `range`.
    fn exposed(&self, range: Range<usize>) -> Option<(usize, &str)> {
        let inside = |(first, last): (usize, usize)| range.start <= first && last < range.end;
        let is_seen = |used: &&Use| {
            let transient = self.buffers[used.buffer].role == Role::Transient;
            used.writes && !(transient && self.spans[used.buffer].is_some_and(inside))
        };
        let of_stage = |stage: usize| {
            let used = self.steps[stage].iter().find(is_seen)?;
            Some((stage, self.buffers[used.buffer].name.as_str()))
        };
        (range.start..range.end.saturating_sub(1)).find_map(of_stage)
    }

    /// Returns the reason why stages cannot keep their limits in one launch.
    fn limited(&self, range: Range<usize>, capabilities: &Capabilities) -> Option<String> {
        let limits = self.pipeline.limits;
        let name = |stage: usize| self.stages[stage].program.name();
        for stage in range.clone() {
            match self.fuel(stage) {
                None => {
                    return Some(format!(
                        "the loop trips of `{}` have no known bound, and fuel is limited per dispatch",
                        name(stage)
                    ));
                }
                Some(trips) if trips > limits.fuel => {
                    return Some(format!("`{}` may take {trips} loop trips > fuel {}", name(stage), limits.fuel));
                }
                Some(_) => {}
            }
        }
        let together: u64 = self.trips[range.clone()].iter().flatten().fold(0, |sum, trips| sum.saturating_add(*trips));
        // A device may divide its trips between two kinds of loops.
        if let Some(most) = capabilities.max_loop_trips.filter(|most| together > most / 2) {
            return Some(format!("{together} loop trips per invocation > {}, half of the device's limit", most / 2));
        }
        let (stage, buffer) = limits.deadline.and_then(|_| self.exposed(range.clone()))?;
        let last = name(range.end - 1);
        Some(format!("`{buffer}` of `{}` would be incomplete if `{last}` passed the deadline", name(stage)))
    }

    /// Greedily labels runs of stages that may be fused, and returns the refusal of each stage but the first.
    fn labels(&self, capabilities: &Capabilities) -> (Vec<u64>, Vec<Option<String>>) {
        let mut labels = vec![0; self.stages.len()];
        let mut refusals = Vec::new();
        let mut start = 0;
        for next in 1..self.stages.len() {
            let refusal = self.refusal(start..next, capabilities);
            labels[next] = labels[next - 1] + u64::from(refusal.is_some());
            if refusal.is_some() {
                start = next;
            }
            refusals.push(refusal);
        }
        (labels, refusals)
    }

    /// Returns the reason why stage `before.end` may not be fused with `before`.
    fn refusal(&self, before: Range<usize>, capabilities: &Capabilities) -> Option<String> {
        let next = before.end;
        if let Err(refusal) = fuse::may_join(&self.fusable[before.clone()], &self.fusable[next]) {
            return Some(refusal.to_string());
        }
        let overlaps = |used: &Use, earlier: &Use| {
            (used.writes || earlier.writes) && self.pipeline.overlapping(used.buffer).contains(&earlier.buffer)
        };
        let mut earlier = self.steps[before.clone()].iter().flatten();
        if earlier.any(|earlier| self.steps[next].iter().any(|used| overlaps(used, earlier))) {
            return Some("it accesses an attached buffer that overlaps one of an earlier stage (hazard)".into());
        }
        let together = before.start..next + 1;
        if let Some(reason) = self.limited(together.clone(), capabilities) {
            return Some(reason);
        }
        // Fuses only if the device's limits may be exceeded, to check the fused program.
        let buffers: FxHashSet<BufferId> =
            self.steps[together.clone()].iter().flatten().map(|used| used.buffer).collect();
        let fits = buffers.len() <= capabilities.max_storage_objects as usize
            && capabilities.max_workgroup_bytes >= limits::WORKGROUP_BYTES;
        if fits { None } else { capabilities.check(&self.fuse(together).program).err().map(|error| error.to_string()) }
    }

    fn fuse(&self, range: Range<usize>) -> Fused {
        let transient = |id: BufferId| {
            let inside = |(first, last): (usize, usize)| range.start <= first && last < range.end;
            self.buffers[id].role == Role::Transient && self.spans[id].is_some_and(inside)
        };
        let mut names: Vec<&str> = Vec::new();
        for stage in &self.stages[range.clone()] {
            let name = stage.program.name();
            if names.last() != Some(&name) {
                names.push(name);
            }
        }
        fuse::fuse(&names.join("_"), &self.fusable[range.clone()], &transient)
    }

    /// Prices stages for the fusion planner: a stage's output are the transient buffers that only the next stage uses, its input is the
    /// output of the previous stage.
    fn priced(&self, labels: &[u64]) -> Result<Vec<launch_fusion::Stage>, DriverError> {
        let overflow = DriverError::Overflow { field: "pipeline bytes" };
        let mut input_bytes = 0;
        let mut priced = Vec::with_capacity(self.stages.len());
        for (position, step) in self.steps.iter().enumerate() {
            let mut output_bytes = 0u64;
            let mut all = 0u64;
            for used in step {
                let bytes = memory::allocated(&self.buffers[used.buffer])?;
                all = all.checked_add(bytes).ok_or(overflow.clone())?;
                let passed_on = self.buffers[used.buffer].role == Role::Transient
                    && self.spans[used.buffer] == Some((position, position + 1));
                output_bytes += if passed_on { bytes } else { 0 };
            }
            priced.push(launch_fusion::Stage {
                id: u32::try_from(position).map_err(|_| overflow.clone())?,
                layout_hash: labels[position],
                input_bytes,
                output_bytes,
                scratch_bytes: all - output_bytes - input_bytes,
                requires_host_materialization: false,
            });
            input_bytes = output_bytes;
        }
        Ok(priced)
    }

    /// Builds the launch of a range of stages.
    fn launch(&self, range: Range<usize>, order: &[usize]) -> Launch {
        let Stage { program, groups, arguments } = self.stages[range.start].clone();
        let dispatches = order[range.clone()].to_vec();
        if range.len() == 1 {
            return Launch { program, groups, dispatches, dropped: Vec::new(), arguments, fused: None };
        }
        let Fused { program, objects, dropped } = self.fuse(range.clone());
        let bound = |&(object, stage, of_stage): &(MemId, usize, MemId)| {
            let argument = self.stages[range.start + stage].arguments.get(of_stage)?;
            Some((program.memory(object).name.as_str(), *argument))
        };
        let arguments = self.pipeline.recorded.bind(&program, objects.iter().filter_map(bound));
        Launch {
            arguments: arguments.expect("the arguments of the stages match the fused program"),
            program,
            groups,
            dispatches,
            dropped,
            fused: Some(Needs {
                fuel: range.clone().filter_map(|stage| self.fuel(stage)).max().unwrap_or(0),
                exposed: self.exposed(range).map(|(_, buffer)| buffer.to_owned()),
            }),
        }
    }
}
