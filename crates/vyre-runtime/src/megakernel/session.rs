//! Sessions: the memory, operations and queue of a megakernel, and what drains the queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use vyre_driver::plan::frontier::{self, Wave};
use vyre_driver::{Argument, Buffer, Device, Dispatch, Error, Grid};
use vyre_foundation::ir::{Element, Space};
use vyre_foundation::launch::{Limits, Outcome};
use vyre_foundation::transform::embed::Fault;

use super::arena::{Arena, Handle, Part, Segment};
use super::hazards::Hazards;
use super::item::WorkItem;
use super::kernel::{Body, Column, Kernel, Worker};
use super::op::Op;
use super::window::{Unit, Windows};

/// What a session has.
#[derive(Clone, Debug)]
pub struct Config {
    /// Words of the arena that are used plainly.
    pub plain_words: u32,
    /// Words of the arena that are used atomically.
    pub atomic_words: u32,
    /// Items that are planned and submitted together.
    pub slice: usize,
    /// How many trips the loops of an invocation of an item may take.
    pub fuel: u32,
    /// The most workgroups of a launch; their workers take several items each.
    pub worker_groups: u32,
    /// How many hits there is memory for before the first slice that has more.
    pub hit_capacity: u32,
    /// What a session may take of the memory of its device, in bytes.
    pub budget: u64,
    /// How items are run.
    pub mode: Mode,
    /// How often a chain of items has to come until it is fused; 0 is never.
    pub window_threshold: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            plain_words: 1 << 20,
            atomic_words: 1 << 12,
            slice: 1 << 16,
            fuel: 1 << 20,
            worker_groups: 1024,
            hit_capacity: 1024,
            budget: u64::MAX,
            mode: Mode::Jit,
            window_threshold: 4,
        }
    }
}

/// How items are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One kernel has all operations, and chooses for each item.
    Interpreter,
    /// Items are sorted by operation, and each operation has a kernel.
    Jit,
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

/// The memory, operations and queue of a megakernel.
pub struct Session {
    device: Device,
    config: Config,
    arena: Arena,
    ops: Vec<Op>,
    /// The kernels that items may be for, and for each operation the positions in this list.
    keys: Vec<Key>,
    buckets: Vec<[usize; 2]>,
    kernels: FxHashMap<Key, Compiled>,
    queue: VecDeque<WorkItem>,
    /// How many items were taken from the queue.
    taken: u64,
    faults: Buffer,
    hits: [Buffer; 2],
    hazards: Hazards,
    windows: Windows,
    planner: frontier::Planner,
}

/// Which items a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    runs: Runs,
    worker: Worker,
    /// Invocations of a workgroup.
    width: u32,
}

/// What a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Runs {
    Op(u32),
    Window(u32),
    All,
}

impl Key {
    fn new(runs: Runs, body: &Body, many: bool) -> Key {
        match (body.facts.collective, many) {
            (true, _) => Key { runs, worker: Worker::Workgroup, width: body.program.workgroup_size[0] },
            (false, true) => Key { runs, worker: Worker::Workgroup, width: WIDTH },
            (false, false) => Key { runs, worker: Worker::Invocation, width: WIDTH },
        }
    }
}

struct Compiled {
    kernel: vyre_driver::Kernel,
    columns: Vec<Column>,
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
const FEW: u32 = 8;

/// Invocations of a workgroup where the operation does not say.
const WIDTH: u32 = 64;

impl Session {
    /// A session without operations on a device.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(device: &Device, config: Config) -> Result<Session, Error> {
        let arena = Arena::new(device, config.plain_words, config.atomic_words)?;
        let faults = device.allocate(Element::U32, 1 + config.slice as u64)?;
        let hits = [device.allocate(Element::U32, u64::from(config.hit_capacity))?, device.allocate(Element::U32, 1)?];
        Ok(Session {
            device: device.clone(),
            config,
            arena,
            ops: Vec::new(),
            keys: Vec::new(),
            buckets: Vec::new(),
            kernels: FxHashMap::default(),
            queue: VecDeque::new(),
            taken: 0,
            faults,
            hits,
            hazards: Hazards::default(),
            windows: Windows::default(),
            planner: frontier::Planner::default(),
        })
    }

    /// Adds an operation, and gives the handle by which items name it.
    pub fn register(&mut self, op: Op) -> u32 {
        self.ops.push(op);
        // A kernel of all operations lacks the new one.
        self.kernels.retain(|key, _| key.runs != Runs::All);
        self.assign_kernels();
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

    /// Puts items into the queue. Their effect is as if they were executed one after the other.
    pub fn submit(&mut self, items: &[WorkItem]) {
        self.queue.extend(items);
    }

    /// Executes what is in the queue.
    ///
    /// # Errors
    /// The device was lost, or lacks something. An item that cannot be executed is no error of this function.
    pub fn drain(&mut self) -> Result<Report, Error> {
        let start = Instant::now();
        let mut report = Report::default();
        while !self.queue.is_empty() {
            let count = self.queue.len().min(self.config.slice);
            let items: Vec<WorkItem> = self.queue.drain(..count).collect();
            self.slice(&items, &mut report)?;
            self.taken += count as u64;
        }
        report.elapsed = start.elapsed();
        Ok(report)
    }

    fn slice(&mut self, items: &[WorkItem], report: &mut Report) -> Result<(), Error> {
        report.items += items.len() as u64;
        let mut resolved = Vec::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            match self.resolve(*item, position as u32) {
                Ok(Some(item)) => resolved.push(item),
                Ok(None) => {}
                Err(failure) => report.failures.push((self.taken + position as u64, failure)),
            }
        }
        let dependencies = self.hazards.find(&resolved, &self.ops, self.arena.handles());
        let windows = &mut self.windows;
        // Only kernels of their own can run windows.
        let threshold = if self.config.mode == Mode::Jit { self.config.window_threshold } else { 0 };
        windows.find(&resolved, &self.ops, dependencies, threshold);
        report.fused += (resolved.len() - windows.units.len()) as u64;
        let bytes = |unit: &Unit| {
            let body = match unit.window {
                Some(window) => &windows.bodies[window as usize],
                None => &resolved[unit.head as usize].op(&self.ops).body,
            };
            8 * (1 + body.slots.len() as u64)
        };
        let waves: Vec<Wave> =
            windows.units.iter().map(|unit| Wave { frontier_bytes: bytes(unit), ..Wave::default() }).collect();
        let plan = self.planner.plan(&waves, &windows.dependencies, self.arena.bytes(), self.config.budget, 0)?;
        let mut batch = Batch::default();
        let (mut units, mut reporting) = (Vec::new(), Vec::new());
        for group in plan.barriers.groups() {
            report.groups += 1;
            units.clear();
            reporting.clear();
            for &wave in group {
                let unit = self.windows.units[wave];
                let reports = resolved[unit.head as usize].op(&self.ops).reports;
                if reports { reporting.push(unit) } else { units.push(unit) }
            }
            self.fill(&mut batch, &resolved, &units)?;
            if !reporting.is_empty() {
                // What reports hits may have to run again, alone, and before anybody changes what it reads.
                self.run(std::mem::take(&mut batch), report)?;
                self.fill(&mut batch, &resolved, &reporting)?;
                self.run(std::mem::take(&mut batch), report)?;
            }
        }
        self.run(batch, report)
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

    /// Appends the launches of units that do not depend on each other, sorted by their kernels.
    fn fill(&mut self, batch: &mut Batch, items: &[Resolved], units: &[Unit]) -> Result<(), Error> {
        let of_windows = self.keys.len();
        let mut ends = vec![0u32; of_windows + 2 * self.windows.bodies.len()];
        for unit in units {
            ends[self.bucket(items, unit)] += 1;
        }
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        // What is the start of each bucket becomes its end while it is filled.
        let mut sorted = vec![Unit { head: 0, window: None }; units.len()];
        for unit in units {
            let end = &mut ends[self.bucket(items, unit)];
            sorted[*end as usize] = *unit;
            *end += 1;
        }
        start = 0;
        for (bucket, end) in ends.into_iter().enumerate() {
            let units = &sorted[start as usize..end as usize];
            start = end;
            if units.is_empty() {
                continue;
            }
            let key = match bucket.checked_sub(of_windows) {
                None => self.keys[bucket],
                Some(window) => self.window_key(window / 2, window % 2 == 1),
            };
            self.compile(key)?;
            let at = batch.work.len() as u32;
            for &column in &self.kernels[&key].columns {
                let next = &self.windows.next;
                batch.work.extend(units.iter().map(|unit| unit.column(column, items, next)));
            }
            batch.launches.push(Launch { key, at, count: units.len() as u32 });
            batch.items.extend(units.iter().map(|unit| items[unit.head as usize].position));
        }
        Ok(())
    }

    /// The position of the kernel of a unit: those of operations come first, then two for each window.
    fn bucket(&self, items: &[Resolved], unit: &Unit) -> usize {
        let item = &items[unit.head as usize];
        let many = usize::from(item.length(self.ops[item.op as usize].body.extent.handle) > FEW);
        match unit.window {
            Some(window) => self.keys.len() + 2 * window as usize + many,
            None => self.buckets[item.op as usize][many],
        }
    }

    fn window_key(&self, window: usize, many: bool) -> Key {
        let body = &self.windows.bodies[window];
        Key::new(Runs::Window(window as u32), body, many)
    }

    /// Decides which kernels items of each operation are for: with few elements, and with many.
    fn assign_kernels(&mut self) {
        self.keys.clear();
        self.buckets.clear();
        for (number, op) in (0..).zip(&self.ops) {
            let runs = if self.config.mode == Mode::Jit { Runs::Op(number) } else { Runs::All };
            let keys = &mut self.keys;
            self.buckets.push([false, true].map(|many| {
                let key = Key::new(runs, &op.body, many);
                keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                })
            }));
        }
    }

    fn compile(&mut self, key: Key) -> Result<(), Error> {
        if self.kernels.contains_key(&key) {
            return Ok(());
        }
        let fits = |op: &Op| {
            !op.body.facts.collective
                || (key.worker == Worker::Workgroup && op.body.program.workgroup_size[0] == key.width)
        };
        let bodies: Vec<(u32, &Body)> = match key.runs {
            Runs::Op(op) => vec![(op, &self.ops[op as usize].body)],
            Runs::Window(window) => vec![(window, &self.windows.bodies[window as usize])],
            Runs::All => {
                (0..).zip(&self.ops).filter(|(_, op)| fits(op)).map(|(number, op)| (number, &op.body)).collect()
            }
        };
        let Kernel { program, columns } = Kernel::new(&bodies, key.worker, key.width)?;
        let kernel = self.device.compile(&program)?;
        self.kernels.insert(key, Compiled { kernel, columns });
        Ok(())
    }

    /// Runs launches, in order, and reports what happened to their items.
    fn run(&mut self, batch: Batch, report: &mut Report) -> Result<(), Error> {
        if batch.launches.is_empty() {
            return Ok(());
        }
        let work = self.device.upload(Element::U32, bytemuck::cast_slice(&batch.work))?;
        loop {
            let dispatches: Vec<Dispatch<'_>> =
                batch.launches.iter().map(|launch| self.dispatch(launch, &work)).collect();
            let reports = self.device.submit(&dispatches)?.wait()?;
            report.launches += reports.len() as u64;
            let mut items = batch.items.iter();
            for (launch, done) in batch.launches.iter().zip(reports) {
                report.device += done.time;
                let items = items.by_ref().take(launch.count as usize);
                if done.outcome != Outcome::Completed {
                    let failed = items.map(|position| self.taken + u64::from(*position));
                    report.failures.extend(failed.map(|item| (item, Failure::Unfinished(done.outcome.clone()))));
                } else {
                    items.for_each(drop);
                }
            }
            if !self.take_hits(&batch, report)? {
                break;
            }
        }
        let notes = |launch: &Launch| self.kernels[&launch.key].columns.contains(&Column::Fault);
        if batch.launches.iter().any(notes) { self.take_faults(report) } else { Ok(()) }
    }

    fn dispatch(&self, launch: &Launch, work: &Buffer) -> Dispatch<'_> {
        let kernel = &self.kernels[&launch.key].kernel;
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
        let grid = Grid::groups([workers.min(self.config.worker_groups), 1, 1]);
        Dispatch { kernel, grid, arguments, limits: Limits::default() }
    }

    /// Takes what was reported. If that is more than there was memory for, there is enough now, and the batch has to run again.
    fn take_hits(&mut self, batch: &Batch, report: &mut Report) -> Result<bool, Error> {
        let reports = |launch: &Launch| match launch.key.runs {
            Runs::Op(op) => self.ops[op as usize].reports,
            Runs::Window(_) => false,
            Runs::All => self.ops.iter().any(|op| op.reports),
        };
        if !batch.launches.iter().any(reports) {
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
            report.failures.push((self.taken + position as u64, failure));
        }
        self.faults.write(&vec![0; 4 * noted.len()])
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// Launches that are submitted together.
#[derive(Default)]
struct Batch {
    /// The columns of all launches.
    work: Vec<u32>,
    launches: Vec<Launch>,
    /// The items of the launches, by their positions in the slice.
    items: Vec<u32>,
}

struct Launch {
    key: Key,
    /// Where its columns begin.
    at: u32,
    count: u32,
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

impl Unit {
    fn column(&self, column: Column, items: &[Resolved], next: &[u32]) -> u32 {
        let item = |number: usize| {
            let position = (0..number).fold(self.head, |item, _| next[item as usize]);
            &items[position as usize]
        };
        match column {
            Column::Op => item(0).op,
            Column::First(field) => item(field.item).parts[field.handle].first,
            Column::Length(field) => item(field.item).parts[field.handle].length,
            Column::Param(number) => item(number).item.param,
            Column::Fault => 1 + item(0).position,
        }
    }
}
