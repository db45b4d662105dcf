//! Sessions: the memory, operations and queue of a megakernel, and what drains the queue.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vyre_driver::plan::frontier::{self, Wave};
use vyre_driver::{Argument, Buffer, Device, DeviceKind, Dispatch, Error, Grid};
use vyre_foundation::ir::{Element, Space};
use vyre_foundation::launch::{Limits, Outcome};
use vyre_foundation::transform::embed::Fault;

use super::arena::{Arena, Handle, Part, Segment};
use super::hazards::Hazards;
use super::item::{Traits, WorkItem};
use super::kernel::{Body, Column, Worker};
use super::kernels::{Kernels, Key, Runs};
use super::op::Op;
use super::policy::{Mode, Policy, Recommendation, Request, Sizing};
use super::redundancy::Pruner;
use super::ring::{Drained, Otherwise, Pushed, Ring};
use super::window::{Unit, Windows};

/// What a session has.
#[derive(Clone, Debug)]
pub struct Config {
    /// Words of the arena that are used plainly.
    pub plain_words: u32,
    /// Words of the arena that are used atomically.
    pub atomic_words: u32,
    /// Items that the queue holds.
    pub queue: usize,
    /// Items that are planned and submitted together.
    pub slice: usize,
    /// How many trips the loops of an invocation of an item may take.
    pub fuel: u32,
    /// The most workgroups of a launch; 0 leaves it to the policy.
    pub worker_groups: u32,
    /// What the session may take of the memory of its device, in bytes; 0 is all of it.
    pub budget: u64,
    /// Decides how slices are launched.
    pub policy: Policy,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            plain_words: 1 << 20,
            atomic_words: 1 << 12,
            queue: 1 << 20,
            slice: 1 << 16,
            fuel: 1 << 20,
            worker_groups: 0,
            budget: 0,
            policy: Policy {
                sizing: NonZeroU32::new(64).map_or(Sizing::Widest, Sizing::Preferred),
                ..Policy::default()
            },
        }
    }
}

impl Config {
    /// What suits a device.
    pub fn of(device: &Device) -> Config {
        let mut config = Config::default();
        let capabilities = device.capabilities();
        // A processor that plays a GPU does for each vector of lanes again what is the same for the whole workgroup.
        if capabilities.kind == DeviceKind::SoftwareGpu
            && let Some(lanes) = capabilities.subgroup_size.and_then(NonZeroU32::new)
        {
            config.policy.sizing = Sizing::Preferred(lanes);
        }
        config
    }
}

/// Why an item was not, or not completely, executed. Whatever its other invocations wrote stays.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// There is no such operation.
    UnknownOp,
    /// A handle names no memory, or memory of the other segment than the operation uses.
    UnknownHandle,
    /// It writes memory that it uses in other elements, too.
    Overlap,
    /// An invocation took too many trips.
    OutOfFuel,
    /// An invocation trapped with this code.
    Trapped(u32),
    /// The launch that it was in did not end.
    Unfinished(Outcome),
}

/// What a drain did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Items that were taken from the queue.
    pub items: u64,
    /// Items that failed, by their number in the session, and why.
    pub failures: Vec<(u64, Failure)>,
    /// What operations reported, in no order.
    pub hits: Vec<u32>,
    /// How often there was too little memory for hits, so that what reports them ran again.
    pub reruns: u32,
    /// Items that were left out because they would have changed nothing.
    pub pruned: u64,
    /// Items that were interpreted.
    pub interpreted: u64,
    /// What the policy said of the last slice.
    pub recommendation: Option<Recommendation>,
    /// What each kernel did.
    pub kernels: Vec<Figures>,
    /// Items that were run together with others of their window.
    pub fused: u64,
    /// Groups of items between barriers.
    pub groups: u64,
    /// Launches.
    pub launches: u64,
    /// From the first item to the end of the last.
    pub elapsed: Duration,
    /// What the launches took of it.
    pub device: Duration,
}

/// What a kernel did.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The name of its operation, or the names of those of its window; `interpreter` runs all.
    pub name: String,
    /// Items, or windows of items.
    pub units: u64,
    /// Launches.
    pub launches: u64,
    /// What they took.
    pub time: Duration,
}

/// The memory, operations and queue of a megakernel.
pub struct Session {
    device: Device,
    config: Config,
    arena: Arena,
    ops: Vec<Op>,
    /// How many items of each operation there were.
    runs: Vec<u64>,
    kernels: Kernels,
    queue: Arc<Ring>,
    /// What was taken from the queue and is not done; what has run is an item of zeros.
    pending: Vec<WorkItem>,
    /// What a drain did that failed.
    unreported: Report,
    /// How many items are done.
    done: u64,
    faults: Buffer,
    hits: [Buffer; 2],
    hazards: Hazards,
    windows: Windows,
    pruner: Pruner,
    worth: Worth,
    planner: frontier::Planner,
    /// The memory of the slice before, which the next one uses again.
    resolved: Vec<Resolved>,
    batch: Batch,
}

/// Whether pruning pays, as measured.
#[derive(Default)]
struct Worth {
    slices: u64,
    /// Nanoseconds for each item that was looked at, and for each that was executed.
    pruning: f64,
    executing: f64,
    /// The part of the items that was left out.
    left_out: f64,
}

impl Worth {
    /// Now and then it is tried whatever it was worth.
    fn is_pruning_worth_it(&self) -> bool {
        self.slices.is_multiple_of(16) || self.left_out * self.executing > self.pruning
    }

    fn update(known: &mut f64, measured: f64) {
        *known = if *known == 0.0 { measured } else { 0.75 * *known + 0.25 * measured };
    }
}

/// An item whose handles are looked up.
#[derive(Clone, Copy)]
pub(super) struct Resolved {
    pub(super) item: WorkItem,
    /// Its position in the slice.
    position: u32,
    pub(super) op: u32,
    parts: [Part; 3],
}

/// Items of so few elements get an invocation each.
pub(super) const FEW: u32 = 8;

/// An operation is hot after so many items.
const HOT: u64 = 64;

impl Session {
    /// A session without operations on a device.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(device: &Device, config: Config) -> Result<Session, Error> {
        let arena = Arena::new(device, config.plain_words, config.atomic_words)?;
        let faults = device.allocate(Element::U32, 1 + config.slice as u64)?;
        let hits = [device.allocate(Element::U32, 0)?, device.allocate(Element::U32, 1)?];
        Ok(Session {
            device: device.clone(),
            arena,
            ops: Vec::new(),
            runs: Vec::new(),
            kernels: Kernels::new(device),
            queue: Arc::new(Ring::new(config.queue)),
            pending: Vec::new(),
            unreported: Report::default(),
            done: 0,
            faults,
            hits,
            hazards: Hazards::default(),
            windows: Windows::default(),
            pruner: Pruner::default(),
            worth: Worth::default(),
            planner: frontier::Planner::default(),
            resolved: Vec::new(),
            batch: Batch::default(),
            config,
        })
    }

    /// Adds an operation, and gives the handle by which items name it.
    pub fn register(&mut self, op: Op) -> u32 {
        self.ops.push(op);
        self.runs.push(0);
        self.kernels.forget_interpreters();
        self.ops.len() as u32
    }

    /// Takes zeroed words of the arena.
    ///
    /// # Errors
    /// There are not so many in one piece.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        let handle = self.arena.allocate(segment, words)?;
        self.arena.slice(handle)?.write(&vec![0; 4 * words as usize])?;
        Ok(handle)
    }

    /// Gives words back. What is in the queue must not name them.
    ///
    /// # Errors
    /// The handle names nothing.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.arena.free(handle)
    }

    /// The words of a handle, to be written before a drain or read after it.
    ///
    /// # Errors
    /// The handle names nothing.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.arena.slice(handle)
    }

    /// The queue, for threads that put items into it while this one drains it.
    pub fn queue(&self) -> Arc<Ring> {
        self.queue.clone()
    }

    /// Puts items into the queue, as far as there is room. Their effect is as if they were executed one after the other.
    pub fn submit(&self, items: &[WorkItem]) -> Pushed {
        self.queue.push(items, Otherwise::Return)
    }

    /// Waits until all kernels that were asked for are compiled. Nobody has to: meanwhile, items are interpreted.
    pub fn finish_compiling(&mut self) {
        self.kernels.finish_all();
    }

    /// Items that were taken from the queue and are not known to be done, because a drain failed. The next one begins with them. Those
    /// that had run before it failed are items of zeros.
    pub fn pending(&self) -> &[WorkItem] {
        &self.pending
    }

    /// Executes what is in the queue, until there is nothing in it.
    ///
    /// # Errors
    /// The device was lost, or it or the budget lacks something. An item that cannot be executed is no error of this function. What was
    /// done before the error is in the next report.
    pub fn drain(&mut self) -> Result<Report, Error> {
        let start = Instant::now();
        let mut report = std::mem::take(&mut self.unreported);
        let result = self.slices(&mut report);
        report.elapsed += start.elapsed();
        match result {
            Ok(()) => Ok(report),
            Err(error) => {
                self.unreported = report;
                Err(error)
            }
        }
    }

    fn slices(&mut self, report: &mut Report) -> Result<(), Error> {
        loop {
            if self.pending.is_empty() {
                let drained = self.queue.drain(&mut self.pending, self.config.slice, Otherwise::Return);
                if !matches!(drained, Drained::Items(1..)) {
                    return Ok(());
                }
            }
            self.slice(report)?;
            report.items += self.pending.len() as u64;
            self.done += self.pending.len() as u64;
            self.pending.clear();
        }
    }

    /// Executes the items that are pending.
    fn slice(&mut self, report: &mut Report) -> Result<(), Error> {
        let start = Instant::now();
        let mut resolved = std::mem::take(&mut self.resolved);
        resolved.clear();
        let mut failed = Vec::new();
        for (position, item) in self.pending.iter().enumerate() {
            match self.resolve(*item, position as u32) {
                Ok(Some(item)) => resolved.push(item),
                Ok(None) => {}
                Err(failure) => failed.push((position, failure)),
            }
        }
        for (position, failure) in failed {
            self.pending[position] = WorkItem::default();
            report.failures.push((self.done + position as u64, failure));
        }
        if self.worth.is_pruning_worth_it() {
            report.pruned += self.prune(&mut resolved)?;
        }
        self.hazards.find(&resolved, &self.ops, self.arena.handles());
        let threshold = self.config.policy.hot_window_threshold;
        self.windows.find(&resolved, &self.ops, self.hazards.dependencies(), threshold);
        let recommendation = self.recommend(&resolved, report)?;
        report.recommendation = Some(recommendation);
        let compiles = recommendation.execution_mode == Mode::Jit;
        let width = recommendation.geometry.width;
        if compiles && recommendation.promote_hot_windows {
            for (number, window) in (0..).zip(&mut self.windows.fused) {
                let key = Key::new(Runs::Window(number), &window.body, window.many, width);
                window.ready = self.kernels.request(key, &window.body, number);
            }
        }
        self.windows.merge(self.hazards.dependencies(), compiles && recommendation.promote_hot_windows);
        report.fused += (resolved.len() - self.windows.units.len()) as u64;

        let buckets = self.buckets(&resolved, compiles, width)?;
        let launching = Launching { buckets, width, groups: recommendation.worker_groups };
        let all = 0..self.windows.units.len();
        if self.windows.dependencies.is_empty() && self.config.budget == 0 {
            // Nothing waits for anything, and there is no limit: the plan is one group of everything.
            self.group(all, &resolved, &launching, report)?;
        } else {
            let waves: Vec<Wave> = self.windows.units.iter().map(|unit| self.wave(&resolved, unit)).collect();
            let budget = if self.config.budget == 0 { u64::MAX } else { self.config.budget };
            let plan = self.planner.plan(&waves, &self.windows.dependencies, self.arena.bytes(), budget, 0)?;
            for group in plan.barriers.groups() {
                self.group(group.iter().copied(), &resolved, &launching, report)?;
            }
        }
        self.run(&launching, report)?;
        for item in &resolved {
            self.runs[item.op as usize] += 1;
        }
        self.worth.slices += 1;
        Worth::update(&mut self.worth.executing, start.elapsed().as_nanos() as f64 / resolved.len().max(1) as f64);
        self.resolved = resolved;
        Ok(())
    }

    /// Appends a group of units, which do not depend on each other, to the batch.
    fn group(
        &mut self,
        waves: impl Iterator<Item = usize>,
        items: &[Resolved],
        launching: &Launching,
        report: &mut Report,
    ) -> Result<(), Error> {
        report.groups += 1;
        let mut units = std::mem::take(&mut self.batch.units);
        let mut reporting = Vec::new();
        units.clear();
        for wave in waves {
            let unit = self.windows.units[wave];
            let reports = items[unit.head as usize].op(&self.ops).reports;
            if reports { reporting.push(unit) } else { units.push(unit) }
        }
        self.fill(launching, items, &units);
        self.batch.units = units;
        if !reporting.is_empty() {
            // What reports hits may have to run again, alone, and before anybody changes what it reads.
            self.run(launching, report)?;
            self.fill(launching, items, &reporting);
            self.run(launching, report)?;
        }
        Ok(())
    }

    /// Leaves out items that would change nothing, and says how many.
    fn prune(&mut self, resolved: &mut Vec<Resolved>) -> Result<u64, Error> {
        let start = Instant::now();
        let items: Vec<WorkItem> = resolved.iter().map(|item| item.item).collect();
        let traits: Vec<Traits> = self.ops.iter().map(Op::traits).collect();
        let mut kept = Vec::new();
        let pruned = self.pruner.prune(&items, |op| traits[op as usize - 1], &mut kept)?;
        let mut left_out = pruned.redundant_pairs.iter().map(|pair| pair.late).peekable();
        if !pruned.redundant_pairs.is_empty() {
            let mut index = 0;
            let pending = &mut self.pending;
            resolved.retain(|item| {
                let stays = left_out.next_if_eq(&index).is_none();
                if !stays {
                    pending[item.position as usize] = WorkItem::default();
                }
                index += 1;
                stays
            });
        }
        let count = items.len().max(1) as f64;
        Worth::update(&mut self.worth.pruning, start.elapsed().as_nanos() as f64 / count);
        Worth::update(&mut self.worth.left_out, pruned.redundant_pairs.len() as f64 / count);
        Ok(pruned.redundant_pairs.len() as u64)
    }

    /// Asks the policy how to launch items.
    fn recommend(&self, items: &[Resolved], report: &Report) -> Result<Recommendation, Error> {
        let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
        let capabilities = self.device.capabilities();
        let hot = items.iter().filter(|item| self.runs[item.op as usize] >= HOT).count();
        let reporting = items.iter().filter(|item| item.op(&self.ops).reports).count() as u64;
        let hits = (report.hits.len() as u64).div_ceil(reporting.max(1)).clamp(1, 1 << 10) as u32;
        let request = Request {
            requested_worker_groups: self.config.worker_groups,
            max_compute_workgroups_per_dimension: u32::from(u16::MAX),
            max_compute_invocations_per_workgroup: capabilities.max_workgroup_invocations,
            // Only what reports hits needs room for them.
            requested_hit_capacity: if reporting == 0 { 1 } else { 0 },
            expected_hits_per_item: hits,
            hot_opcode_count: count(hot),
            hot_window_count: self.windows.hot,
            resident_device_bytes: self.arena.bytes() + 4 * u64::from(self.faults.len()),
            device_memory_budget_bytes: self.config.budget,
            ..Request::direct(count(items.len()), 0, capabilities.max_workgroup_size[0])
        };
        self.config.policy.recommend(&request)
    }

    /// What a unit takes of memory while it runs: its columns.
    fn wave(&self, items: &[Resolved], unit: &Unit) -> Wave {
        let body = match unit.window {
            Some(window) => &self.windows.fused[window as usize].body,
            None => &items[unit.head as usize].op(&self.ops).body,
        };
        Wave { frontier_bytes: 8 * (1 + body.slots.len() as u64), ..Wave::default() }
    }

    /// Looks up what an item names. One of zeros is nothing.
    fn resolve(&self, item: WorkItem, position: u32) -> Result<Option<Resolved>, Failure> {
        if item == WorkItem::default() {
            return Ok(None);
        }
        let number = item.op_handle.wrapping_sub(1);
        let op = self.ops.get(number as usize).ok_or(Failure::UnknownOp)?;
        let handles = [item.input_handle, item.output_handle, item.param];
        let mut parts = [Part { segment: Segment::Plain, first: 0, length: 0 }; 3];
        let views = op.views;
        for (view, object) in views.iter().enumerate() {
            let Some(object) = object else { continue };
            let part = self.arena.get(handles[view]).ok_or(Failure::UnknownHandle)?;
            let atomic = op.body.program.memory[*object].atomic;
            if atomic != (part.segment == Segment::Atomic) {
                return Err(Failure::UnknownHandle);
            }
            let same = |other: usize| {
                views[other].is_some_and(|other_object| {
                    handles[other] == handles[view]
                        && (op.body.program.memory[*object].writable()
                            || op.body.program.memory[other_object].writable())
                })
            };
            if !op.elementwise && (0..view).any(same) {
                return Err(Failure::Overlap);
            }
            parts[view] = part;
        }
        Ok(Some(Resolved { item, position, op: number, parts }))
    }

    /// Decides which kernels items of each operation are for, with few elements and with many. What has no kernel of its own yet is
    /// interpreted.
    fn buckets(&mut self, items: &[Resolved], compiles: bool, width: u32) -> Result<Vec<[Key; 2]>, Error> {
        let mut wanted = vec![[false; 2]; self.ops.len()];
        for item in items {
            let length = item.length(item.op(&self.ops).body.extent.handle);
            wanted[item.op as usize][usize::from(length > FEW)] = true;
        }
        let mut buckets = Vec::with_capacity(self.ops.len());
        for (number, op) in (0..).zip(&self.ops) {
            let mut keys = [false, true].map(|many| Key::new(Runs::Op(number), &op.body, many, width));
            for (key, wanted) in keys.iter_mut().zip(wanted[number as usize]) {
                if !wanted || (compiles && self.kernels.request(*key, &op.body, number)) {
                    continue;
                }
                let all = Key { runs: Runs::All, ..*key };
                let taken = (0..).zip(&self.ops).filter(|(_, op)| all.takes(&op.body));
                let bodies: Vec<(u32, &Body)> = taken.map(|(number, op)| (number, &op.body)).collect();
                // What is too much together is compiled by itself.
                match self.kernels.require(all, &bodies) {
                    Ok(()) => *key = all,
                    Err(_) => self.kernels.require(*key, &[(number, &op.body)])?,
                }
            }
            buckets.push(keys);
        }
        Ok(buckets)
    }

    /// Appends the launches of units that do not depend on each other, sorted by their kernels.
    fn fill(&mut self, launching: &Launching, items: &[Resolved], units: &[Unit]) {
        let mut batch = std::mem::take(&mut self.batch);
        let mut keys: Vec<Key> = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        batch.kernels.clear();
        let mut last = None;
        for unit in units {
            let key = self.key(launching, items, unit);
            // Neighbours are often for the same kernel.
            let kernel = match last {
                Some((known, kernel)) if known == key => kernel,
                _ => keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                    keys.push(key);
                    ends.push(0);
                    keys.len() - 1
                }),
            };
            last = Some((key, kernel));
            ends[kernel] += 1;
            batch.kernels.push(kernel as u32);
        }
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        // What is the start of each kernel's units becomes their end while they are sorted.
        batch.sorted.clear();
        batch.sorted.resize(units.len(), Unit { head: 0, window: None });
        for (unit, &kernel) in units.iter().zip(&batch.kernels) {
            let end = &mut ends[kernel as usize];
            batch.sorted[*end as usize] = *unit;
            *end += 1;
        }
        start = 0;
        for (key, end) in keys.into_iter().zip(ends) {
            let units = &batch.sorted[start as usize..end as usize];
            start = end;
            let at = batch.work.len() as u32;
            for &column in &self.kernels.get(key).columns {
                column_of(column, units, items, &self.windows.next, &mut batch.work);
            }
            let first = batch.items.len();
            for unit in units {
                batch.items.extend(self.windows.members(unit).map(|item| items[item as usize].position));
            }
            batch.launches.push(Launch { key, at, count: units.len() as u32, items: first..batch.items.len() });
        }
        self.batch = batch;
    }

    /// The kernel that a unit is for.
    fn key(&self, launching: &Launching, items: &[Resolved], unit: &Unit) -> Key {
        let item = &items[unit.head as usize];
        match unit.window {
            Some(window) => {
                let fused = &self.windows.fused[window as usize];
                Key::new(Runs::Window(window), &fused.body, fused.many, launching.width)
            }
            None => {
                let many = item.length(item.op(&self.ops).body.extent.handle) > FEW;
                launching.buckets[item.op as usize][usize::from(many)]
            }
        }
    }

    /// Runs launches, in order, and reports what happened to their items.
    fn run(&mut self, launching: &Launching, report: &mut Report) -> Result<(), Error> {
        if self.batch.launches.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.submit_batch(&batch, launching, report);
        batch.work.clear();
        batch.launches.clear();
        batch.items.clear();
        self.batch = batch;
        result
    }

    fn submit_batch(&mut self, batch: &Batch, launching: &Launching, report: &mut Report) -> Result<(), Error> {
        let work = self.device.upload(Element::U32, bytemuck::cast_slice(&batch.work))?;
        if let Some(recommendation) = report.recommendation
            && self.hits[0].len() < recommendation.hit_capacity
            && batch.launches.iter().any(|launch| self.reports(launch))
        {
            self.hits[0] = self.device.allocate(Element::U32, u64::from(recommendation.hit_capacity))?;
        }
        loop {
            let dispatches: Vec<Dispatch<'_>> =
                batch.launches.iter().map(|launch| self.dispatch(launch, launching, &work)).collect();
            let reports = self.device.submit(&dispatches)?.wait()?;
            report.launches += reports.len() as u64;
            for (launch, done) in batch.launches.iter().zip(reports) {
                report.device += done.time;
                self.record(launch, done.time, report);
                report.interpreted += if launch.key.runs == Runs::All { u64::from(launch.count) } else { 0 };
                if done.outcome != Outcome::Completed {
                    let failed =
                        batch.items[launch.items.clone()].iter().map(|&position| self.done + u64::from(position));
                    report.failures.extend(failed.map(|item| (item, Failure::Unfinished(done.outcome.clone()))));
                }
            }
            if !self.take_hits(batch, report)? {
                break;
            }
        }
        let notes = |launch: &Launch| self.kernels.get(launch.key).columns.contains(&Column::Fault);
        if batch.launches.iter().any(notes) {
            self.take_faults(report)?;
        }
        // If the rest of the slice fails, what has run must not run again.
        for &position in &batch.items {
            self.pending[position as usize] = WorkItem::default();
        }
        Ok(())
    }

    fn record(&self, launch: &Launch, time: Duration, report: &mut Report) {
        let name = match launch.key.runs {
            Runs::Op(op) => self.ops[op as usize].name(),
            Runs::Window(window) => &self.windows.fused[window as usize].body.program.name,
            Runs::All => "interpreter",
        };
        let known = report.kernels.iter().position(|figures| figures.name == name);
        let figures = known.unwrap_or_else(|| {
            report.kernels.push(Figures { name: name.into(), units: 0, launches: 0, time: Duration::ZERO });
            report.kernels.len() - 1
        });
        let figures = &mut report.kernels[figures];
        figures.units += u64::from(launch.count);
        figures.launches += 1;
        figures.time += time;
    }

    fn dispatch(&self, launch: &Launch, launching: &Launching, work: &Buffer) -> Dispatch<'_> {
        let kernel = &self.kernels.get(launch.key).kernel;
        let workers = match launch.key.worker {
            Worker::Invocation => launch.count.div_ceil(launch.key.width),
            Worker::Workgroup => launch.count,
        };
        let argument = |name: &str| -> Argument {
            match name {
                "work" => work.into(),
                "arena" => self.arena.buffer(Segment::Plain).into(),
                "atomics" => self.arena.buffer(Segment::Atomic).into(),
                "faults" => (&self.faults).into(),
                "hits" => (&self.hits[0]).into(),
                "hit_count" => (&self.hits[1]).into(),
                "at" => launch.at.into(),
                "fuel" => self.config.fuel.into(),
                // Columns follow each other, so their stride is the count, too.
                _ => launch.count.into(),
            }
        };
        let bound = kernel
            .program()
            .memory
            .values()
            .filter(|memory| matches!(memory.space, Space::Storage(_) | Space::Uniform));
        let arguments = bound.map(|memory| (memory.name.as_str(), argument(&memory.name))).collect();
        let grid = Grid::groups([workers.min(launching.groups), 1, 1]);
        Dispatch { kernel, grid, arguments, limits: Limits::default() }
    }

    /// Takes what was reported. If that is more than there was memory for, there is enough now, and the batch has to run again.
    fn take_hits(&mut self, batch: &Batch, report: &mut Report) -> Result<bool, Error> {
        if !batch.launches.iter().any(|launch| self.reports(launch)) {
            return Ok(false);
        }
        let count = words(&self.hits[1].read()?)[0];
        self.hits[1].write(&[0; 4])?;
        if count > self.hits[0].len() {
            self.hits[0] = self.device.allocate(Element::U32, u64::from(count.next_power_of_two().max(count)))?;
            report.reruns += 1;
            return Ok(true);
        }
        if count > 0 {
            report.hits.extend(words(&self.hits[0].slice(0..count)?.read()?));
        }
        Ok(false)
    }

    /// Whether there may be hits of a launch.
    fn reports(&self, launch: &Launch) -> bool {
        match launch.key.runs {
            Runs::Op(op) => self.ops[op as usize].reports,
            Runs::Window(_) => false,
            Runs::All => self.ops.iter().any(|op| op.reports),
        }
    }

    fn take_faults(&mut self, report: &mut Report) -> Result<(), Error> {
        if words(&self.faults.slice(0..1)?.read()?)[0] == 0 {
            return Ok(());
        }
        let noted = words(&self.faults.read()?);
        for (position, word) in noted[1..].iter().enumerate() {
            let failure = match Fault::noted(*word) {
                None => continue,
                Some(Fault::OutOfFuel) => Failure::OutOfFuel,
                Some(Fault::Trapped(code)) => Failure::Trapped(code),
            };
            report.failures.push((self.done + position as u64, failure));
        }
        self.faults.write(&vec![0; 4 * noted.len()])
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// How units are launched.
struct Launching {
    /// For each operation, the kernels of items with few elements and with many.
    buckets: Vec<[Key; 2]>,
    /// Invocations of a workgroup, where the body does not say.
    width: u32,
    /// The most workgroups of a launch.
    groups: u32,
}

/// Launches that are submitted together.
#[derive(Default)]
struct Batch {
    /// The columns of all launches.
    work: Vec<u32>,
    launches: Vec<Launch>,
    /// The items of the launches, by their positions in the slice.
    items: Vec<u32>,
    /// What sorting takes.
    units: Vec<Unit>,
    kernels: Vec<u32>,
    sorted: Vec<Unit>,
}

struct Launch {
    key: Key,
    /// Where its columns begin.
    at: u32,
    /// How many units it has.
    count: u32,
    /// Its items, in the list of the batch.
    items: Range<usize>,
}

impl Resolved {
    pub(super) fn op<'o>(&self, ops: &'o [Op]) -> &'o Op {
        &ops[self.op as usize]
    }

    /// What one of its handles is called.
    pub(super) fn handle(&self, handle: usize) -> u32 {
        [self.item.input_handle, self.item.output_handle, self.item.param][handle]
    }

    /// How many words one of its handles names.
    pub(super) fn length(&self, handle: usize) -> u32 {
        self.parts[handle].length
    }
}

/// Appends what a column says of units.
fn column_of(column: Column, units: &[Unit], items: &[Resolved], next: &[u32], work: &mut Vec<u32>) {
    let item = |unit: &Unit, number: usize| {
        let position = (0..number).fold(unit.head, |item, _| next[item as usize]);
        &items[position as usize]
    };
    // One loop for each kind: choosing for each unit would take longer than what is chosen.
    fn push(work: &mut Vec<u32>, units: &[Unit], value: impl Fn(&Unit) -> u32) {
        work.extend(units.iter().map(value));
    }
    match column {
        Column::Op => push(work, units, |unit| item(unit, 0).op),
        Column::First(field) => push(work, units, |unit| item(unit, field.item).parts[field.handle].first),
        Column::Length(field) => push(work, units, |unit| item(unit, field.item).parts[field.handle].length),
        Column::Param(number) => push(work, units, |unit| item(unit, number).item.param),
        Column::Fault => push(work, units, |unit| 1 + item(unit, 0).position),
    }
}
