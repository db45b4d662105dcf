//! Launches: column tables of items, submission, and collection of hits, faults and telemetry.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use vyre_driver::{Argument, Buffer, Dispatch, Error, Grid};
use vyre_foundation::ir::{Element, Space};
use vyre_foundation::launch::{self, Limits, Outcome, WorkerSpan};
use vyre_foundation::transform::embed::Fault;

use super::arena::Segment;
use super::item::WorkItem;
use super::kernel::{Column, Ready, State, Worker};
use super::kernels::{Key, Runs};
use super::priority::count;
use super::report::{Failed, Failure, Hit, KernelStats, Report};
use super::session::{Session, allocated};
use super::slice::Resolved;
use super::telemetry::{Span, Telemetry};
use super::watch::Ended;
use super::window::Unit;

/// Launch parameters of a slice.
pub(super) struct Launching {
    /// Kernel of each [bucket](Resolved::bucket).
    pub(super) buckets: Vec<Key>,
    /// Workgroup size of bodies without collectives.
    pub(super) width: u32,
    /// Maximum workgroups of a launch.
    pub(super) groups: u32,
}

/// Launches of one submission.
#[derive(Default)]
pub(super) struct Batch {
    /// Columns of all launches.
    work: Vec<u32>,
    launches: Vec<Launch>,
    /// Positions of the items of all launches in the slice.
    items: Vec<u32>,
    /// Every launch reports hits; if false, none does.
    pub(super) reports: bool,
    /// Ready queue; empty if unused.
    ready: Vec<u32>,
    /// Scratch memory of the sort by kernel.
    numbers: Vec<u32>,
    kernels: Vec<u32>,
    sorted: Vec<Unit>,
}

struct Launch {
    key: Key,
    /// Offset of its columns.
    at: u32,
    /// Number of units.
    count: u32,
    /// Its items in [`Batch::items`].
    items: Range<usize>,
}

impl Batch {
    /// Returns the units of each launch, as positions of their items in the slice.
    fn units(&self) -> impl Iterator<Item = (&Launch, &[u32])> {
        self.launches.iter().flat_map(|launch| {
            let items = &self.items[launch.items.clone()];
            items.chunks(items.len() / launch.count as usize).map(move |unit| (launch, unit))
        })
    }
}

impl Session {
    /// Appends the launches of independent units, sorted by kernel (counting sort).
    pub(super) fn fill(&mut self, launching: &Launching, items: &[Resolved], units: &[Unit]) {
        let mut batch = std::mem::take(&mut self.batch);
        let mut keys: Vec<Key> = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        batch.kernels.clear();
        // Buckets and windows index a table of kernels, so each key is looked up once.
        batch.numbers.clear();
        batch.numbers.resize(launching.buckets.len() + self.windows.fused.len(), u32::MAX);
        for unit in units {
            let number = match unit.window {
                Some(window) => launching.buckets.len() + window as usize,
                None => items[unit.head as usize].bucket as usize,
            };
            if batch.numbers[number] == u32::MAX {
                let key = self.key(launching, items, unit);
                let known = keys.iter().position(|known| *known == key);
                batch.numbers[number] = known.unwrap_or(keys.len()) as u32;
                if known.is_none() {
                    keys.push(key);
                    ends.push(0);
                }
            }
            let kernel = batch.numbers[number];
            ends[kernel as usize] += 1;
            batch.kernels.push(kernel);
        }
        let mut sorted = units;
        if keys.len() > 1 {
            let mut start = 0;
            for end in &mut ends {
                start += std::mem::replace(end, start);
            }
            // `ends` holds the start of each kernel's units, and is advanced to their end.
            batch.sorted.clear();
            batch.sorted.resize(units.len(), Unit { head: 0, window: None });
            for (unit, &kernel) in units.iter().zip(&batch.kernels) {
                let end = &mut ends[kernel as usize];
                batch.sorted[*end as usize] = *unit;
                *end += 1;
            }
            sorted = &batch.sorted;
        }
        let mut start = 0;
        for (key, end) in keys.into_iter().zip(ends) {
            let units = &sorted[start as usize..end as usize];
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

    /// Appends one launch of all units, with a ready queue, dependency counters and successor lists.
    pub(super) fn fill_counted(&mut self, key: Key, items: &[Resolved]) {
        let (units, dependencies) = (&self.windows.units, &self.windows.dependencies);
        let count = units.len();
        let mut missing = vec![0; count];
        let mut ends = vec![0; count];
        for dependency in dependencies {
            missing[dependency.after] += 1;
            ends[dependency.before] += 1;
        }
        let counts = ends.clone();
        let batch = &mut self.batch;
        let at = batch.work.len() as u32;
        let columns = &self.kernels.get(key).columns;
        let mut start = at + (columns.len() * count) as u32;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        for &column in columns {
            match column {
                Column::Successors => batch.work.extend(&ends),
                Column::SuccessorCount => batch.work.extend(&counts),
                _ => column_of(column, units, items, &self.windows.next, &mut batch.work),
            }
        }
        batch.work.resize(start as usize, 0);
        for dependency in dependencies {
            let end = &mut ends[dependency.before];
            batch.work[*end as usize] = dependency.after as u32;
            *end += 1;
        }
        // Units with successors come first.
        let free = (0..count).filter(|&unit| missing[unit] == 0);
        let (awaited, others): (Vec<usize>, Vec<usize>) = free.partition(|&unit| counts[unit] > 0);
        let mut ready = vec![0; Ready::QUEUE as usize];
        ready.extend(awaited.iter().chain(&others).map(|&unit| unit as u32 + 1));
        ready[Ready::FILLED as usize] = ready.len() as u32 - Ready::QUEUE;
        ready.resize(Ready::QUEUE as usize + count, 0);
        ready.extend(missing);
        batch.ready = ready;
        batch.items.extend(units.iter().map(|unit| items[unit.head as usize].position));
        batch.launches.push(Launch { key, at, count: count as u32, items: 0..count });
    }

    /// Returns the kernel of a unit.
    pub(super) fn key(&self, launching: &Launching, items: &[Resolved], unit: &Unit) -> Key {
        let item = &items[unit.head as usize];
        match unit.window {
            Some(window) => {
                let fused = &self.windows.fused[window as usize];
                Key::new(Runs::Window(window), &fused.body, fused.many, launching.width)
            }
            None => launching.buckets[item.bucket as usize],
        }
    }

    /// Submits the batch, and reports the results of its items. `is_last`: no further batch of the slice follows.
    pub(super) fn run(&mut self, launching: &Launching, is_last: bool, report: &mut Report) -> Result<(), Error> {
        if self.batch.launches.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.submit_batch(&batch, launching, report);
        if batch.reports && self.config.budget != 0 {
            // Within a budget, the hit buffer is live only during reporting batches.
            self.hits[0] = self.hits[1].slice(0..0)?;
        }
        if result.is_ok() && !is_last {
            // If a later batch fails, executed items must not be executed again.
            batch.items.iter().for_each(|&position| self.pending[position as usize] = WorkItem::default());
        }
        batch.work.clear();
        batch.ready.clear();
        batch.reports = false;
        batch.launches.clear();
        batch.items.clear();
        self.batch = batch;
        result
    }

    /// Submits a batch. Its hits are read completely or not at all, so that a retry reports none twice.
    fn submit_batch(&mut self, batch: &Batch, launching: &Launching, report: &mut Report) -> Result<(), Error> {
        if self.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        let work = self.device.upload(Element::U32, bytemuck::cast_slice(&batch.work))?;
        let ready = match batch.ready.as_slice() {
            [] => work.clone(),
            ready => self.device.upload(Element::U32, bytemuck::cast_slice(ready))?,
        };
        if let Some(recommendation) = report.recommendation
            && batch.reports
        {
            let (room, needed) = (self.hits[0].len(), recommendation.hit_capacity);
            // Shrinks a buffer that is over 16 times too large.
            if room < needed || room / 16 > needed.max(self.recent_hits) {
                self.allocate_hits(needed)?;
            }
        }
        let has_faults = |launch: &Launch| self.kernels.get(launch.key).columns.contains(&Column::Fault);
        let has_faults = batch.launches.iter().any(has_faults);
        let (hits, unfinished) = loop {
            self.are_faults_unread |= has_faults;
            if batch.reports {
                self.hits[1].write(&[0; 4])?;
            }
            let mut dispatches = Vec::with_capacity(batch.launches.len());
            for launch in &batch.launches {
                dispatches.push(self.dispatch(launch, launching, [&work, &ready])?);
            }
            let begun = self.config.telemetry.then(Instant::now);
            let submission = self.device.submit(&dispatches)?;
            // Dispatches hold the hit buffer, which may have to be reallocated.
            drop(dispatches);
            let Ended { reports, early, slow } = match &self.watch {
                None => Ended { reports: submission.wait()?, early: false, slow: Vec::new() },
                Some(watch) => watch.wait(submission, &batch.items, &self.cancelled, &*self.config.clock)?,
            };
            report.launches += reports.len() as u64;
            let (mut last, mut unfinished) = (begun, Vec::new());
            for (launch, done) in batch.launches.iter().zip(reports) {
                report.device += done.time;
                let kernel = self.record(launch, done.time, report);
                if let (Some(telemetry), Some(last)) = (&mut report.telemetry, &mut last) {
                    measure(telemetry, kernel, &done, last);
                }
                if done.outcome != Outcome::Completed {
                    let reason = Failure::Unfinished(done.outcome);
                    for &position in &batch.items[launch.items.clone()] {
                        self.fail(position, &reason, &mut unfinished);
                    }
                }
            }
            if early {
                return self.leave_rest(batch, &slow, unfinished, report);
            }
            if !batch.reports {
                break (Vec::new(), unfinished);
            }
            if let Some(hits) = self.read_hits(allocated(work.len().into()))? {
                break (hits, unfinished);
            }
            report.reruns += 1;
        };
        // Reporting items write no memory, so they can be rerun. Others must not be; their fault records can be read later.
        if !batch.reports {
            self.count_executed(batch.units(), report)?;
        }
        if has_faults {
            if !batch.reports {
                self.unread.extend(&batch.items);
            }
            if let Err(error) = self.take_faults(report) {
                if !batch.reports && !matches!(error, Error::DeviceLost { .. }) {
                    report.failures.extend(unfinished);
                }
                return Err(error);
            }
        }
        if batch.reports {
            self.count_executed(batch.units(), report)?;
        }
        count(&mut self.total_hits, hits.len() as u64, "hits")?;
        report.hits.extend(hits.into_iter().map(|word| Hit { tenant: self.tenant, word }));
        report.failures.extend(unfinished);
        Ok(())
    }

    /// Reports the failure of the item at a position of the slice, and of the duplicates pruned in its favour.
    pub(super) fn fail(&mut self, position: u32, reason: &Failure, failures: &mut Vec<Failed>) {
        if let (Failure::Stuck { .. } | Failure::Unfinished(_), Some(journal)) = (reason, &mut self.journal) {
            journal.cut_short(position as usize);
        }
        let number = self.done + u64::from(position);
        // A duplicate equals its twin in all words.
        let item = self.pending[position as usize];
        let first = self.duplicates.partition_point(|(twin, _)| *twin < number);
        let duplicates = self.duplicates[first..].iter().take_while(|(twin, _)| *twin == number);
        let numbers = std::iter::once(number).chain(duplicates.map(|(_, duplicate)| *duplicate));
        failures.extend(numbers.map(|number| Failed { number, tenant: self.tenant, item, reason: reason.clone() }));
    }

    /// Counts units that were executed and will not be executed again.
    fn count_executed<'b>(
        &mut self,
        units: impl Iterator<Item = (&'b Launch, &'b [u32])>,
        report: &mut Report,
    ) -> Result<(), Error> {
        self.executed.clear();
        self.executed.resize(self.ops.len(), 0);
        for (launch, items) in units {
            match launch.key.runs {
                Runs::All if launch.key.worker == Worker::ReadyQueue => report.counted += items.len() as u64,
                Runs::All => report.interpreted += items.len() as u64,
                Runs::Window(_) => report.fused += items.len() as u64 - 1,
                Runs::Op(_) => {}
            }
            for &position in items {
                let op = self.pending[position as usize].op_handle.wrapping_sub(1);
                self.executed[op as usize] += 1;
            }
        }
        for ((op, runs), &items) in self.ops.iter().zip(&mut self.runs).zip(&self.executed) {
            if items == 0 {
                continue;
            }
            count(runs, items, "items of an op")?;
            count(&mut self.reporting_items, if op.reports { items } else { 0 }, "reporting items")?;
            match report.ops.iter_mut().find(|(name, _)| name == op.name()) {
                Some((_, known)) => count(known, items, "items of an op")?,
                None => report.ops.push((op.name().into(), items)),
            }
        }
        Ok(())
    }

    /// Settles a batch after the stop flag was raised: completed and stuck items are done, the others stay pending.
    fn leave_rest(
        &mut self,
        batch: &Batch,
        slow: &[u32],
        unfinished: Vec<Failed>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let (mut done, mut stuck): (Vec<u32>, Vec<(u32, u32)>) = Default::default();
        let mut executed = Vec::new();
        for (launch, unit) in batch.units() {
            // The state of a window is that of its first item.
            let state = watch.state(unit[0]);
            if state >= State::RUNNING || (batch.reports && slow.contains(&unit[0])) {
                stuck.extend(unit.iter().map(|&position| (position, state.saturating_sub(State::RUNNING))));
                executed.push((launch, unit));
            } else if state == State::DONE && !batch.reports {
                done.extend(unit);
                executed.push((launch, unit));
            }
        }
        let first = report.failures.len();
        let taken = self.take_faults(report);
        if let Err(error @ Error::DeviceLost { .. }) = taken {
            return Err(error);
        }
        self.count_executed(executed.into_iter(), report)?;
        if batch.reports {
            // The hits are incomplete, so all but the stuck items are rerun.
            report.failures.truncate(first);
        } else {
            report.failures.extend(unfinished);
        }
        for (position, worker) in stuck {
            let number = self.done + u64::from(position);
            if report.failures[first..].iter().all(|known| known.number != number) {
                self.fail(position, &Failure::Stuck { worker }, &mut report.failures);
            }
            self.pending[position as usize] = WorkItem::default();
        }
        if let Err(error) = taken {
            self.unread.extend(done);
            return Err(error);
        }
        done.iter().for_each(|&position| self.pending[position as usize] = WorkItem::default());
        Err(Error::Cancelled)
    }

    /// Adds a launch to the statistics of its kernel, and returns the kernel's position in the report.
    fn record(&self, launch: &Launch, time: Duration, report: &mut Report) -> usize {
        let name = match launch.key.runs {
            Runs::Op(op) => self.ops[op as usize].name(),
            Runs::Window(window) => self.windows.fused[window as usize].body.program.name(),
            Runs::All if launch.key.worker == Worker::ReadyQueue => "counted",
            Runs::All => "interpreter",
        };
        report.add_kernel(&KernelStats { name: name.into(), units: launch.count.into(), launches: 1, time })
    }

    fn dispatch(&self, launch: &Launch, launching: &Launching, [work, ready]: [&Buffer; 2]) -> Result<Dispatch, Error> {
        let kernel = &self.kernels.get(launch.key).kernel;
        let workers = match launch.key.worker {
            Worker::Invocation => launch.count.div_ceil(launch.key.width),
            Worker::Workgroup => launch.count,
            Worker::ReadyQueue => self.device.capabilities().threads.unwrap_or(1).min(launch.count),
        };
        let states = self.watch.as_ref().map_or(work, |watch| &watch.states);
        let argument = |name: &str| -> Argument {
            match name {
                "states" => states.into(),
                "work" => work.into(),
                "arena" => self.arena.buffer(Segment::Plain).into(),
                "atomics" => self.arena.buffer(Segment::Atomic).into(),
                "faults" => (&self.faults).into(),
                "hits" => (&self.hits[0]).into(),
                "ready" => ready.into(),
                "hit_count" => (&self.hits[1]).into(),
                "at" => launch.at.into(),
                "fuel" => self.config.fuel.into(),
                // `count` and `stride`: columns are contiguous, so the stride is the count.
                _ => launch.count.into(),
            }
        };
        let bound = kernel
            .program()
            .memories()
            .values()
            .filter(|memory| matches!(memory.space, Space::Storage(_) | Space::Uniform));
        let arguments = bound.map(|memory| (memory.name.as_str(), argument(&memory.name)));
        let grid = Grid::Groups([workers.min(launching.groups), 1, 1]);
        let limits = Limits { times_workers: self.config.telemetry, ..Limits::default() };
        Ok(kernel.dispatch(grid, arguments)?.limits(limits))
    }

    /// Reallocates the hit buffer. The old one is freed first, so that both are never live together.
    fn allocate_hits(&mut self, hits: u32) -> Result<(), Error> {
        self.hits[0] = self.hits[1].slice(0..0)?;
        self.hits[0] = self.device.allocate(Element::U32, u64::from(hits))?;
        Ok(())
    }

    /// Reads the hits of a batch with columns of `columns` bytes. If the hit buffer overflowed, enlarges it and returns `None`; the batch
    /// must be rerun.
    fn read_hits(&mut self, columns: u64) -> Result<Option<Vec<u32>>, Error> {
        let count = words(&self.hits[1].read()?)[0];
        self.recent_hits = count;
        if count > self.hits[0].len() {
            let available = if self.config.budget == 0 { u64::MAX } else { self.config.budget };
            let others = self.resident() + columns;
            let bytes = |hits: u32| others + allocated(hits.into());
            let rounded = count.checked_next_power_of_two().filter(|&hits| bytes(hits) <= available);
            let room = rounded.unwrap_or(count);
            self.lacks_room_for_hits = true;
            if bytes(room) > available {
                return Err(Error::OutOfMemory { requested: bytes(room), available });
            }
            self.allocate_hits(room)?;
            self.lacks_room_for_hits = false;
            return Ok(None);
        }
        Ok(Some(if count == 0 { Vec::new() } else { words(&self.hits[0].slice(0..count)?.read()?) }))
    }

    /// Reports the fault records of items, and clears them.
    pub(super) fn take_faults(&mut self, report: &mut Report) -> Result<(), Error> {
        if words(&self.faults.slice(0..1)?.read()?)[0] != 0 {
            let faults = words(&self.faults.read()?);
            self.faults.write(&vec![0; 4 * faults.len()])?;
            let (records, _) = faults[1..].as_chunks();
            for (position, record) in (0..).zip(records) {
                let reason = match Fault::recorded(*record) {
                    None => continue,
                    Some(Fault::OutOfFuel) => Failure::OutOfFuel,
                    Some(Fault::Trapped(code)) => Failure::Trapped(code),
                };
                self.fail(position, &reason, &mut report.failures);
            }
        }
        self.are_faults_unread = false;
        self.unread.clear();
        Ok(())
    }

    /// Reports the fault records of items that were executed before their slice failed, and completes these items.
    pub(super) fn take_unread(&mut self, report: &mut Report) -> Result<(), Error> {
        let (first, ran) = (report.failures.len(), self.unread.clone());
        self.take_faults(report)?;
        if ran.is_empty() {
            // The faults are of items that are executed again, and will be reported then.
            report.failures.truncate(first);
        }
        ran.iter().for_each(|&position| self.pending[position as usize] = WorkItem::default());
        Ok(())
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// Adds the worker spans of a launch. Without spans from the device, a single worker is assumed that executes launches in sequence.
fn measure(telemetry: &mut Telemetry, kernel: usize, done: &launch::Report, last: &mut Instant) {
    let kernel = Some(kernel);
    for &WorkerSpan { worker, from, until } in &done.workers {
        telemetry.span(Span { worker: Some(worker), kernel, from, until });
    }
    if done.workers.is_empty() {
        let from = std::mem::replace(last, *last + done.time);
        telemetry.span(Span { worker: Some(0), kernel, from, until: *last });
    }
}

/// Appends a column for units.
fn column_of(column: Column, units: &[Unit], items: &[Resolved], next: &[u32], work: &mut Vec<u32>) {
    let item = |unit: &Unit, number: usize| {
        let position = (0..number).fold(unit.head, |item, _| next[item as usize]);
        &items[position as usize]
    };
    // One loop per column kind: a match per unit would dominate.
    fn push(work: &mut Vec<u32>, units: &[Unit], value: impl Fn(&Unit) -> u32) {
        work.extend(units.iter().map(value));
    }
    match column {
        Column::Op => push(work, units, |unit| item(unit, 0).op_number()),
        Column::First(field) => push(work, units, |unit| item(unit, field.item).operands[field.handle].first),
        Column::Length(field) => push(work, units, |unit| item(unit, field.item).operands[field.handle].length),
        Column::Param(number) => push(work, units, |unit| item(unit, number).item.param),
        Column::Fault => push(work, units, |unit| 1 + Fault::ELEMENTS * item(unit, 0).position),
        Column::State => push(work, units, |unit| 1 + item(unit, 0).position),
        // Filled by `fill_counted`.
        Column::Successors | Column::SuccessorCount => {}
    }
}
