//! Sessions: the memory, operations and queue of a megakernel, and what drains the queue.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vyre_driver::plan::frontier;
use vyre_driver::{Buffer, Device, DeviceKind, Error, Unacknowledged, Work};
use vyre_foundation::Validated;
use vyre_foundation::ir::{Element, Program};

use super::arena::{Arena, Handle, Segment};
use super::hazards::Hazards;
use super::item::WorkItem;
use super::journal::{Entry, Journal};
use super::kernels::Kernels;
use super::launch::Batch;
use super::op::Op;
use super::policy::{Policy, Sizing};
use super::priority::{Accounting, Priority, count};
use super::redundancy::Pruner;
use super::report::{Failure, Report, Shutdown};
use super::ring::{Drained, Otherwise, Pushed, Ring, Stamp};
use super::slice::{Pace, Resolved, Worth};
use super::tenant::{Queues, Share, Tenant, Usage};
use super::tune::Tuning;
use super::watch::Watch;
use super::window::Windows;

/// What a session has.
#[derive(Clone, Debug)]
pub struct Config {
    /// Words of the arena that are used plainly.
    pub plain_words: u32,
    /// Words of the arena that are used atomically.
    pub atomic_words: u32,
    /// Items of each priority that the queue holds.
    pub queue: usize,
    /// Who shares the session; nobody does if there are none.
    pub tenants: Vec<Share>,
    /// Items that are planned and submitted together, from 1 to 2²⁴.
    pub slice: usize,
    /// How many trips the loops of an invocation of an item may take, where they may take more than some hundred at all. Invocations that
    /// work together cannot end one by one; the [watchdog](Config::watchdog) ends them together.
    pub fuel: u32,
    /// The most workgroups of a launch; 0 leaves it to the policy.
    pub worker_groups: u32,
    /// What the session may take of the memory of its device, in bytes; 0 is all of it.
    pub budget: u64,
    /// Decides how slices are launched.
    pub policy: Policy,
    /// Lets drains try other widths, sizes of slices, room for hits and ways to run items, and keeps what takes least time. What was found
    /// is kept with the [hints](vyre_driver::Telemetry) of the device, for sessions with the same operations.
    pub tune: bool,
    /// What items wait for.
    pub order: Order,
    /// Whether it is measured when things happen.
    pub telemetry: bool,
    /// How long an item may take. The worker that is on it then takes no more of them, and the item fails. Only devices whose memory can
    /// be looked at while it is in use can be watched, and what is noted for that takes time.
    pub watchdog: Option<Duration>,
    /// Keeps what is done, and after so many items the contents of the arena instead, so that the session can
    /// [go on](Session::resume) after its device is lost.
    pub journal: Option<usize>,
}

/// What items wait for that depend on others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What takes less time, as measured.
    #[default]
    Measured,
    /// All items of the groups before theirs.
    Barriers,
    /// Only those that they depend on, where the device has [workgroups that can wait](vyre_driver::Capabilities::independent_groups).
    Counters,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            plain_words: 1 << 20,
            atomic_words: 1 << 12,
            queue: 1 << 20,
            tenants: Vec::new(),
            slice: 1 << 16,
            fuel: 1 << 20,
            worker_groups: 0,
            budget: 0,
            tune: false,
            order: Order::Measured,
            telemetry: false,
            watchdog: None,
            journal: None,
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

/// The memory, operations and queue of a megakernel.
pub struct Session {
    pub(super) device: Device,
    pub(super) config: Config,
    pub(super) arena: Arena,
    pub(super) ops: Vec<Op>,
    /// How many items of each operation there were.
    pub(super) runs: Vec<u64>,
    pub(super) kernels: Kernels,
    pub(super) queues: Queues,
    pub(super) tuning: Option<Tuning>,
    /// Items of a slice, at most.
    pub(super) limit: usize,
    /// What was taken from the queue and is not done; what has run is an item of zeros.
    pub(super) pending: Vec<WorkItem>,
    /// So many of those, the first, are executed together.
    pub(super) portion: usize,
    /// Whether there may be something noted of items that nobody has read, and items that have run nevertheless, by their positions.
    pub(super) are_faults_unread: bool,
    pub(super) unread: Vec<u32>,
    /// Whether memory was refused because of what is reported.
    pub(super) lacks_room_for_hits: bool,
    /// How many hits were reported last.
    pub(super) recent_hits: u32,
    /// Whose that is.
    pub(super) tenant: u32,
    /// What is known of items that waited, and is not in a report.
    pub(super) waited: Accounting,
    /// When that came.
    stamps: Vec<Stamp>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) watch: Option<Watch>,
    pub(super) journal: Option<Journal>,
    /// Whether what is on the device is not what it should be, because it was lost in the middle of being restored.
    is_torn: bool,
    /// How many hits there were, of how many items that may report some.
    pub(super) found: u64,
    pub(super) reporters: u64,
    /// What a drain did that failed.
    pub(super) unreported: Report,
    /// How many items are done.
    pub(super) done: u64,
    pub(super) faults: Buffer,
    pub(super) hits: [Buffer; 2],
    pub(super) hazards: Hazards,
    pub(super) windows: Windows,
    pub(super) pruner: Pruner,
    pub(super) worth: Worth,
    pub(super) pace: Pace,
    pub(super) planner: frontier::Planner,
    /// How many items of the slice there are in each [bucket](Resolved::bucket).
    pub(super) mix: Vec<u32>,
    /// The memory of the slice before, which the next one uses again.
    pub(super) resolved: Vec<Resolved>,
    pub(super) batch: Batch,
}

impl Session {
    /// A session without operations on a device.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(device: &Device, mut config: Config) -> Result<Session, Error> {
        config.slice = config.slice.clamp(1, 1 << 24);
        if config.tenants.is_empty() {
            config.tenants.push(Share::default());
        }
        let quotas = config.tenants.iter().map(|share| share.bytes).collect();
        let arena = Arena::new(device, config.plain_words, config.atomic_words, quotas)?;
        let faults = device.allocate(Element::U32, 1 + config.slice as u64)?;
        let hits = [device.allocate(Element::U32, 0)?, device.allocate(Element::U32, 1)?];
        let watch = config.watchdog.map(|patience| Watch::new(device, config.slice, patience)).transpose()?;
        Ok(Session {
            device: device.clone(),
            arena,
            ops: Vec::new(),
            runs: Vec::new(),
            kernels: Kernels::new(device, watch.is_some()),
            tuning: None,
            limit: config.slice,
            queues: Queues::new(&config.tenants, config.queue, config.telemetry),
            pending: Vec::new(),
            portion: 0,
            are_faults_unread: false,
            unread: Vec::new(),
            lacks_room_for_hits: false,
            recent_hits: 0,
            tenant: 0,
            waited: Accounting::default(),
            stamps: Vec::new(),
            cancelled: Arc::default(),
            watch,
            journal: config.journal.map(Journal::new),
            is_torn: false,
            found: 0,
            reporters: 0,
            unreported: Report::default(),
            done: 0,
            faults,
            hits,
            hazards: Hazards::default(),
            windows: Windows::default(),
            pruner: Pruner::default(),
            worth: Worth::default(),
            pace: Pace::default(),
            planner: frontier::Planner::default(),
            mix: Vec::new(),
            resolved: Vec::new(),
            batch: Batch::default(),
            config,
        })
    }

    /// Adds an operation, and gives the handle by which items name it.
    pub fn register(&mut self, op: Op) -> u32 {
        self.ops.push(op);
        self.runs.push(0);
        self.forget_tuning();
        self.kernels.forget_interpreters();
        self.ops.len() as u32
    }

    /// One of those who share the session. The first is who uses the session without saying who it is.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn tenant(&mut self, id: u32) -> Result<Tenant<'_>, Error> {
        match self.config.tenants.len() as u32 {
            count if id >= count => Err(Error::NoSuchTenant { tenant: id, count }),
            _ => Ok(Tenant { session: self, id }),
        }
    }

    /// Takes zeroed words of the arena.
    ///
    /// # Errors
    /// There are not so many in one piece.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        self.tenant(0)?.allocate(segment, words)
    }

    /// Bytes that the session has on its device.
    pub(super) fn resident(&self) -> u64 {
        self.arena.bytes() + 4 * u64::from(self.faults.len())
    }

    /// Gives words back. What is in the queue must not name them.
    ///
    /// # Errors
    /// The handle names nothing, or the device was lost.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.tenant(0)?.free(handle)
    }

    /// Replaces the words of a handle: all items before see the old ones, and all after the new ones, if it is done between drains.
    ///
    /// # Errors
    /// The handle names nothing, there are not as many bytes as it has, or the device was lost.
    pub fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        self.tenant(0)?.write(handle, bytes)
    }

    /// The memory of a handle, for other launches on the same device. What they write is not in the journal.
    ///
    /// # Errors
    /// The handle names nothing.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.arena.slice(0, handle)
    }

    /// The words of a handle.
    ///
    /// # Errors
    /// The handle names nothing, or the device was lost.
    pub fn read(&self, handle: Handle) -> Result<Vec<u32>, Error> {
        self.memory(handle)?.elements()
    }

    /// The queue of normal items, for threads that put items into it while this one drains it.
    pub fn queue(&self) -> Arc<Ring> {
        self.queues.rings(0)[Priority::Normal as usize].clone()
    }

    /// Puts normal items into the queue, as far as there is room. The effect of the items of a tenant is as if they were executed one after the
    /// other: those of a priority in their order, and no item before one that became due earlier.
    pub fn submit(&self, items: &[WorkItem]) -> Pushed {
        self.queues.rings(0)[Priority::Normal as usize].push(items, Otherwise::Return)
    }

    /// Waits until all kernels that were asked for are compiled. Nobody has to: meanwhile, items are interpreted.
    pub fn finish_compiling(&mut self) {
        self.kernels.finish_all();
    }

    /// The programs of all kernels that are compiled, as they were before they were optimized, by name.
    pub fn programs(&self) -> Vec<Validated<Program>> {
        let mut programs: Vec<_> = self.kernels.ready().map(|compiled| (*compiled.program).clone()).collect();
        programs.sort_by_cached_key(|program| (program.name.clone(), program.insts.len()));
        programs
    }

    /// Items that were taken from the queue and are not known to be done, because a drain failed. The next one begins with them. Those
    /// that had run before it failed are items of zeros.
    pub fn pending(&self) -> &[WorkItem] {
        &self.pending
    }

    /// Limits the memory that slices may take from now on, as [`Config::budget`] does.
    pub fn set_budget(&mut self, bytes: u64) {
        self.config.budget = bytes;
    }

    /// By what other threads can cancel drains.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.cancelled.clone())
    }

    /// Executes as many items as are in the queue, unless what is left belongs to tenants that have had their time, somebody cancels, or the
    /// report is [full](Report::MOST_ENTRIES). So a drain ends, and what it tells takes bounded memory, even if producers never pause. What
    /// comes while it is at work may be executed before what is less urgent, which then waits for the next drain.
    ///
    /// Where there is too little memory for a slice, its items are executed in smaller ones, and one whose hits alone take too much fails.
    ///
    /// # Errors
    /// The device was lost, or it or the budget lacks something. An item that cannot be executed is no error of this function. What was
    /// done before the error is in the next report. [`Error::DeviceLost`] lists the items that are not known to be done, of those that
    /// were taken from the queue.
    pub fn drain(&mut self) -> Result<Report, Error> {
        self.drain_until(Report::MOST_ENTRIES)
    }

    /// Ends when so many failures and hits are reported.
    fn drain_until(&mut self, entries: usize) -> Result<Report, Error> {
        let start = Instant::now();
        let mut report = std::mem::take(&mut self.unreported);
        if self.config.telemetry {
            report.telemetry.get_or_insert_default();
        }
        report.tenants.resize(self.config.tenants.len(), Usage::default());
        self.queues.begin();
        self.begin_tuning();
        let mut result = self.slices(&mut report, entries);
        if let Some(journal) = &mut self.journal {
            journal.settle(self.tenant, &self.pending);
        }
        if self.waited.recommend().should_drain {
            result = result.and(report.priority.add(&std::mem::take(&mut self.waited)));
        }
        for (tenant, usage) in (0..).zip(&mut report.tenants) {
            usage.queued = self.queues.rings(tenant).iter().map(|ring| ring.queued()).sum();
        }
        let left = self.pending.iter().filter(|item| **item != WorkItem::default()).count();
        report.tenants[self.tenant as usize].queued += left.saturating_sub(self.unread.len());
        self.end_tuning();
        report.elapsed += start.elapsed();
        report.cancelled = self.cancelled.swap(false, Relaxed);
        match result {
            Ok(()) => Ok(report),
            Err(mut error) => {
                self.unreported = report;
                if let Error::DeviceLost { unacknowledged, .. } = &mut error {
                    let pending = (self.done..).zip(&self.pending).filter(|(_, item)| **item != WorkItem::default());
                    let work = Work::Items(pending.map(|(number, _)| number).collect());
                    let submission = unacknowledged.last().map_or(0, |last| last.submission);
                    unacknowledged.push(Unacknowledged { submission, work });
                }
                Err(error)
            }
        }
    }

    fn slices(&mut self, report: &mut Report, entries: usize) -> Result<(), Error> {
        if self.is_torn {
            return Err(Error::Stale { name: "arena".into() });
        }
        // What comes later is for the next one.
        let last = report.items.saturating_add((self.pending.len() + self.queues.queued()) as u64);
        while !self.cancelled.load(Relaxed)
            && report.items < last
            && report.failures.len() + report.hits.len() < entries
            && !self.waited.recommend().reason.is_pressing()
        {
            if self.pending.is_empty() {
                let threshold = self.config.policy.priority_age_threshold;
                let (pending, stamps) = (&mut self.pending, &mut self.stamps);
                let Some((tenant, counted)) = self.queues.take(self.limit, threshold, pending, stamps)? else {
                    return Ok(());
                };
                self.tenant = tenant;
                self.portion = self.pending.len();
                if let Some(journal) = &mut self.journal {
                    journal.slice.clone_from(&self.pending);
                }
                self.waited.add(&counted)?;
            }
            let (items, failures, hits, start) =
                (self.portion, report.failures.len(), report.hits.len(), Instant::now());
            let result = match self.slice(report) {
                Ok(()) => {
                    self.tune_slice(items, start.elapsed());
                    report.tenants[self.tenant as usize].items += items as u64;
                    self.finish_slice(report)
                }
                Err(error) => self.put_back(error, report),
            };
            let time = start.elapsed();
            self.queues.charge(self.tenant, items, time);
            let usage = &mut report.tenants[self.tenant as usize];
            usage.failures += (report.failures.len() - failures) as u64;
            usage.hits += (report.hits.len() - hits) as u64;
            usage.time += time;
            usage.slices += 1;
            result?;
        }
        Ok(())
    }

    /// The items of a slice are done.
    fn finish_slice(&mut self, report: &mut Report) -> Result<(), Error> {
        report.items += self.portion as u64;
        count(&mut self.done, self.portion as u64, "items")?;
        if let Some(journal) = &mut self.journal {
            self.pending[..self.portion].fill(WorkItem::default());
            journal.settle(self.tenant, &self.pending);
            journal.slice.drain(..self.portion);
        }
        self.pending.drain(..self.portion);
        // What was cut for want of memory grows again.
        self.portion = (self.portion + self.portion.div_ceil(4)).min(self.pending.len());
        if !self.pending.is_empty() {
            return Ok(());
        }
        if let Some(telemetry) = &mut report.telemetry {
            let now = Instant::now();
            for (items, at) in self.stamps.drain(..) {
                telemetry.latencies.add(now.duration_since(at), items as u64);
            }
        }
        match &mut self.journal {
            Some(journal) if journal.is_full() => journal.checkpoint(&self.arena),
            _ => Ok(()),
        }
    }

    /// Some items of a slice are left, for another try or for another drain: there is an error then.
    fn put_back(&mut self, error: Error, report: &mut Report) -> Result<(), Error> {
        let live = || (0..).zip(&self.pending[..self.portion]).filter(|(_, item)| **item != WorkItem::default());
        let left = live().count().saturating_sub(self.unread.len());
        let first = live().next().map(|(position, _)| position);
        self.waited.requeue(left as u64)?;
        let fits = self.config.budget == 0 || self.resident() <= self.config.budget;
        match (error, first) {
            (Error::Cancelled, _) => Ok(()),
            (Error::OutOfMemory { .. }, Some(_)) if fits && left > 1 => {
                self.portion = self.portion.div_ceil(2);
                report.cuts += 1;
                Ok(())
            }
            // Nobody else has to wait for memory that is not there.
            (Error::OutOfMemory { requested, available }, Some(position)) if fits && self.lacks_room_for_hits => {
                report.failures.push(self.failed(position, Failure::TooManyHits { requested, available }));
                self.leave_out(position as usize);
                Ok(())
            }
            (error, _) => Err(error),
        }
    }

    /// Keeps the contents of the arena, so that the journal has less to repeat. A session without a journal has no use for it.
    ///
    /// # Errors
    /// The device was lost.
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        self.settle_unread()?;
        match &mut self.journal {
            Some(journal) => journal.checkpoint(&self.arena),
            None => Ok(()),
        }
    }

    /// Has items done that have run, before anything else happens to their memory. What became of them is in the next report.
    pub(super) fn settle_unread(&mut self) -> Result<(), Error> {
        if !self.are_faults_unread {
            return Ok(());
        }
        let mut report = std::mem::take(&mut self.unreported);
        let known = report.failures.len();
        let result = self.take_unread(&mut report);
        report.tenants.resize(self.config.tenants.len(), Usage::default());
        report.tenants[self.tenant as usize].failures += (report.failures.len() - known) as u64;
        self.unreported = report;
        if let Some(journal) = &mut self.journal {
            journal.settle(self.tenant, &self.pending);
        }
        result
    }

    /// Goes on on another device, after this one was lost: the arena gets the contents of the last checkpoint, and what was done since
    /// then is done again, without being reported again. The next drain begins with the items that were not known to be done.
    ///
    /// # Errors
    /// There is no journal, or the device cannot do what the session needs. It can be tried again on yet another one.
    pub fn resume(&mut self, device: &Device) -> Result<(), Error> {
        let Some(journal) = self.journal.take() else {
            let (needed, available) = ("a journal to resume from".into(), "a session without one".into());
            return Err(Error::Unsupported { needed, available });
        };
        self.is_torn = true;
        // Whoever cancels means drains.
        let cancelled = self.cancelled.swap(false, Relaxed);
        let result = self.replay(device, &journal);
        self.cancelled.fetch_or(cancelled, Relaxed);
        self.journal = Some(journal);
        self.is_torn = result.is_err();
        result
    }

    fn replay(&mut self, device: &Device, journal: &Journal) -> Result<(), Error> {
        self.arena.renew(device)?;
        self.faults = device.allocate(Element::U32, u64::from(self.faults.len()))?;
        self.hits = [device.allocate(Element::U32, 0)?, device.allocate(Element::U32, 1)?];
        self.watch =
            self.config.watchdog.map(|patience| Watch::new(device, self.config.slice, patience)).transpose()?;
        self.kernels = Kernels::new(device, self.watch.is_some());
        self.device = device.clone();
        self.are_faults_unread = false;
        self.unread.clear();
        journal.restore(&self.arena)?;
        for entry in &journal.entries {
            match entry {
                Entry::Write(segment, first, bytes) => {
                    let words = (bytes.len() / 4) as u32;
                    self.arena.buffer(*segment).slice(*first..first + words)?.write(bytes)?;
                }
                Entry::Items(tenant, items) => self.repeat(*tenant, items.clone())?,
            }
        }
        Ok(())
    }

    /// Executes items whose report was given.
    fn repeat(&mut self, tenant: u32, items: Vec<WorkItem>) -> Result<(), Error> {
        // What reports hits writes nothing else.
        let is_silent = |item: &WorkItem| {
            let op = self.ops.get(item.op_handle.wrapping_sub(1) as usize);
            op.is_none_or(|op| !op.reports)
        };
        let items: Vec<WorkItem> = items.into_iter().filter(is_silent).collect();
        let portion = std::mem::replace(&mut self.portion, items.len());
        let pending = std::mem::replace(&mut self.pending, items);
        let pending_of = std::mem::replace(&mut self.tenant, tenant);
        let result = loop {
            match self.slice(&mut Report::default()) {
                // The watchdog ended an item, as it did before, or somebody cancelled, who means drains.
                Err(Error::Cancelled) => self.cancelled.store(false, Relaxed),
                Err(Error::OutOfMemory { .. }) if self.portion > 1 => self.portion = self.portion.div_ceil(2),
                Err(error) => break Err(error),
                Ok(()) => {
                    self.pending.drain(..self.portion);
                    self.portion = self.portion.min(self.pending.len());
                    if self.pending.is_empty() {
                        break Ok(());
                    }
                }
            }
        };
        (self.portion, self.pending, self.tenant) = (portion, pending, pending_of);
        result
    }

    /// Takes no more items, executes those that were accepted, however long it takes, and gives those back that it could not.
    pub fn shutdown(mut self) -> Shutdown {
        self.queues.close();
        let (report, error) = match self.drain_until(usize::MAX) {
            Ok(report) => (report, None),
            Err(error) => (std::mem::take(&mut self.unreported), Some(error)),
        };
        // Of these it is only not known whether they failed.
        self.unread.iter().for_each(|&position| self.pending[position as usize] = WorkItem::default());
        let mut left: Vec<WorkItem> = self.pending.drain(..).filter(|item| *item != WorkItem::default()).collect();
        for ring in self.queues.all() {
            while let Drained::Items(1..) = ring.drain(&mut left, ring.capacity(), Otherwise::Return) {}
        }
        Shutdown { report, error, left }
    }
}

/// Cancels drains of a session.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Ends the drain that is going on, or the next one. What it has begun with is finished first, which is a slice, or with a watchdog
    /// an item for each worker. Everything else stays in the queue, or is pending, for the drain after.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::megakernel::priority::Reason;

    #[test]
    fn counters_that_are_nearly_full_end_a_drain_and_are_in_its_report() {
        let device = Device::open(&vyre_driver::Oracle::default()).unwrap();
        let mut session = Session::new(&device, Config { slice: 2, ..Config::default() }).unwrap();
        assert_eq!(session.submit(&[WorkItem { op_handle: 99, ..WorkItem::default() }; 4]), Pushed::All);
        session.waited.requeues = u64::MAX - 3;
        assert_eq!(session.waited.recommend().reason, Reason::RequeuesNearLimit);
        let report = session.drain().unwrap();
        assert_eq!((report.items, report.priority.requeues), (0, u64::MAX - 3));
        assert_eq!(report.tenants[0].queued, 4);
        let report = session.drain().unwrap();
        assert_eq!((report.items, report.failures.len(), report.priority.requeues), (4, 4, 0));
    }
}
