//! Sessions: the memory, operations and queue of a megakernel, and what drains the queue.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vyre_driver::plan::frontier;
use vyre_driver::{Buffer, Device, DeviceKind, Error as DriverError};
use vyre_foundation::Validated;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::transform::embed::Fault;

use super::arena::{Arena, Handle, Segment};
use super::clock::{Clock, Monotonic};
use super::hazards::Hazards;
use super::item::WorkItem;
use super::journal::{Entry, Executed, Journal};
use super::kernels::Kernels;
use super::launch::Batch;
use super::op::Op;
use super::policy::{Policy, Sizing};
use super::priority::{Accounting, Priority, count};
use super::redundancy::Pruner;
use super::report::{Failed, Failure, Report, Shutdown};
use super::ring::{Drained, Otherwise, Pushed, Ring, Stamp};
use super::slice::{OrderEstimate, PruningEstimate, Resolved};
use super::tenant::{Queues, Share, Tenant, Usage};
use super::tune::Tuning;
use super::watch::Watch;
use super::window::Windows;
use crate::Error;

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
    /// Most bytes of device memory that the session has in use at any time, as the device [rounds](Buffer::size_class) allocations;
    /// 0 is no limit. The arena, what is kept for each item of a slice, and at least one item at a time have to fit.
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
    /// Time source of shares, quotas, autotuning and the watchdog.
    pub clock: Arc<dyn Clock>,
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
            clock: Arc::new(Monotonic),
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

impl Config {
    /// Elements of the buffer of faults: a counter, and a record for each item of a slice.
    fn fault_words(&self) -> u64 {
        1 + u64::from(Fault::ELEMENTS) * self.slice as u64
    }

    /// Bytes of all buffers that a session has between slices.
    fn resident(&self) -> u64 {
        let states = self.watchdog.map_or(0, |_| allocated(1 + self.slice as u64));
        let arena = allocated(self.plain_words.into()) + allocated(self.atomic_words.into());
        // The counter of hits is a buffer of its own.
        arena + states + allocated(self.fault_words()) + allocated(1)
    }

    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget): the budget has no room for slices of one item, which are its columns and some hits.
    fn fits_budget(&self) -> Result<(), DriverError> {
        let required = self.resident() + 2 * allocated(1);
        match self.budget {
            1.. if required > self.budget => {
                Err(DriverError::OverBudget { field: "bytes of a megakernel session", required, budget: self.budget })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes that a device allocates for words.
pub(super) fn allocated(words: u64) -> u64 {
    words.checked_mul(4).and_then(Buffer::size_class).unwrap_or(u64::MAX)
}

/// The largest [size class](Buffer::size_class) that is not larger than `bytes`; 0 where none is.
pub(super) fn largest_class(bytes: u64) -> u64 {
    // Classes from a power of two to the next are a quarter of the power apart.
    match bytes.checked_ilog2() {
        Some(log) if bytes >= allocated(1) => bytes & !((1 << (log - 2)) - 1),
        _ => 0,
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
    /// Pruned items of the slice, by the number of the item that each repeats and its own, sorted.
    pub(super) duplicates: Vec<(u64, u64)>,
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
    pub(super) pruning: PruningEstimate,
    pub(super) order: OrderEstimate,
    pub(super) planner: frontier::Planner,
    /// How many items of the slice there are in each [bucket](Resolved::bucket).
    pub(super) mix: Vec<u32>,
    /// Executed items of each operation of a batch.
    pub(super) executed: Vec<u64>,
    /// The memory of the slice before, which the next one uses again.
    pub(super) resolved: Vec<Resolved>,
    pub(super) batch: Batch,
}

impl Session {
    /// A session without operations on a device.
    ///
    /// # Errors
    /// There is not enough memory, the budget is less than the session needs, the device cannot be watched, or there is no thread for
    /// the compiler of the session.
    pub fn new(device: &Device, mut config: Config) -> Result<Session, Error> {
        config.slice = config.slice.clamp(1, 1 << 24);
        if config.tenants.is_empty() {
            config.tenants.push(Share::default());
        }
        config.fits_budget()?;
        let quotas = config.tenants.iter().map(|share| share.bytes).collect();
        let arena = Arena::new(device, config.plain_words, config.atomic_words, quotas)?;
        let faults = device.allocate(Element::U32, config.fault_words())?;
        let hit_count = device.allocate(Element::U32, 1)?;
        let hits = [hit_count.slice(0..0)?, hit_count];
        let watch = config.watchdog.map(|patience| Watch::new(device, config.slice, patience)).transpose()?;
        Ok(Session {
            device: device.clone(),
            arena,
            ops: Vec::new(),
            runs: Vec::new(),
            kernels: Kernels::new(device, watch.is_some())?,
            tuning: None,
            limit: config.slice,
            queues: Queues::new(&config.tenants, config.queue, config.telemetry),
            pending: Vec::new(),
            portion: 0,
            duplicates: Vec::new(),
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
            pruning: PruningEstimate::default(),
            order: OrderEstimate::default(),
            planner: frontier::Planner::default(),
            mix: Vec::new(),
            executed: Vec::new(),
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

    /// Bytes that the session has on its device between slices, but for the room for hits.
    pub(super) fn resident(&self) -> u64 {
        self.config.resident()
    }

    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget): the budget has no room for slices of one item.
    pub(super) fn fits_budget(&self) -> Result<(), DriverError> {
        self.config.fits_budget()
    }

    /// # Errors
    /// [`Stale`](DriverError::Stale): the arena does not have its contents, because it could not be restored on another device.
    pub(super) fn is_restored(&self) -> Result<(), DriverError> {
        if self.is_torn { Err(DriverError::Stale { name: "arena".into() }) } else { Ok(()) }
    }

    /// Gives words back. Items in the queue that name them fail with [`Failure::UnknownHandle`].
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
        self.memory_of(0, handle)
    }

    pub(super) fn memory_of(&self, tenant: u32, handle: Handle) -> Result<Buffer, Error> {
        self.is_restored()?;
        self.arena.slice(tenant, handle)
    }

    /// The words of a handle.
    ///
    /// # Errors
    /// The handle names nothing, or the device was lost.
    pub fn read(&self, handle: Handle) -> Result<Vec<u32>, Error> {
        Ok(self.memory(handle)?.elements()?)
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
        programs.sort_by_cached_key(|program| (program.name().to_owned(), program.insts().len()));
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
        // Without a budget, room for hits is kept from slice to slice.
        if let Ok(empty) = self.hits[1].slice(0..0) {
            self.hits[0] = empty;
        }
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
        let start = self.config.clock.now();
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
        report.elapsed = report.elapsed.saturating_add(self.config.clock.now().duration_since(start));
        match result {
            Ok(()) => {
                // A drain that fails does not use up the request to cancel.
                report.cancelled = self.cancelled.swap(false, Relaxed);
                Ok(report)
            }
            Err(error) => {
                self.unreported = report;
                Err(match error {
                    Error::Driver(error @ DriverError::DeviceLost { .. }) => {
                        let pending = (self.done..).zip(&self.pending);
                        let pending = pending.filter(|(_, item)| **item != WorkItem::default());
                        Error::DeviceLost { error, items: pending.map(|(number, _)| number).collect() }
                    }
                    error => error,
                })
            }
        }
    }

    fn slices(&mut self, report: &mut Report, entries: usize) -> Result<(), Error> {
        self.is_restored()?;
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
                    journal.begin(&self.pending);
                }
                self.waited.add(&counted)?;
            }
            let (items, failures, hits, start) =
                (self.portion, report.failures.len(), report.hits.len(), self.config.clock.now());
            let result = match self.slice(report) {
                Ok(()) => {
                    self.tune_slice(items, self.config.clock.now().duration_since(start));
                    report.tenants[self.tenant as usize].items += items as u64;
                    self.finish_slice(report)
                }
                Err(error) => self.put_back(error, report),
            };
            let time = self.config.clock.now().duration_since(start);
            self.queues.charge(self.tenant, items, time);
            let usage = &mut report.tenants[self.tenant as usize];
            usage.failures += (report.failures.len() - failures) as u64;
            usage.hits += (report.hits.len() - hits) as u64;
            usage.time = usage.time.saturating_add(time);
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
            journal.advance(self.portion);
        }
        self.pending.drain(..self.portion);
        let settled = self.duplicates.partition_point(|(twin, _)| *twin < self.done);
        self.duplicates.drain(..settled);
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
            Some(journal) if journal.is_full() => Ok(journal.checkpoint(&self.arena)?),
            _ => Ok(()),
        }
    }

    /// Some items of a slice are left, for another try or for another drain: there is an error then.
    fn put_back(&mut self, error: Error, report: &mut Report) -> Result<(), Error> {
        let live = || (0..).zip(&self.pending[..self.portion]).filter(|(_, item)| **item != WorkItem::default());
        let left = live().count().saturating_sub(self.unread.len());
        let first = live().next().map(|(position, _)| position);
        self.waited.requeue(left as u64)?;
        match (error, first) {
            (Error::Driver(DriverError::Cancelled), _) => Ok(()),
            (Error::Driver(DriverError::OutOfMemory { .. }), Some(_)) if left > 1 => {
                self.portion = self.portion.div_ceil(2);
                report.cuts += 1;
                Ok(())
            }
            // Fail this item instead of blocking the queue.
            (Error::Driver(DriverError::OutOfMemory { requested, available }), Some(position))
                if self.lacks_room_for_hits =>
            {
                self.fail(position, &Failure::TooManyHits { requested, available }, &mut report.failures);
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
        self.is_restored()?;
        self.settle_unread()?;
        match &mut self.journal {
            Some(journal) => Ok(journal.checkpoint(&self.arena)?),
            None => Ok(()),
        }
    }

    /// Has items done that have run, before anything else happens to their memory. What became of them is in the next report.
    pub(super) fn settle_unread(&mut self) -> Result<(), DriverError> {
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

    /// Resumes on another device after the loss of this one: restores the arena from the last checkpoint and replays the journal, without
    /// reporting it again. The next drain begins with the items that were not known to be done. A cancel during the replay ends that drain.
    ///
    /// # Errors
    /// There is no journal, or the device cannot do what the session needs: it refuses an operation that was executed before, or does not
    /// complete an item that was complete before. Until it succeeds, on this device or another one, the arena cannot be used.
    pub fn resume(&mut self, device: &Device) -> Result<(), Error> {
        let Some(journal) = self.journal.take() else {
            let (needed, available) = ("a journal to resume from".into(), "a session without one".into());
            return Err(DriverError::Unsupported { needed, available }.into());
        };
        self.is_torn = true;
        // Cancellers mean drains: they keep their flag, and the replay does not see it.
        let cancelled = std::mem::take(&mut self.cancelled);
        let result = self.replay(device, &journal);
        self.cancelled = cancelled;
        self.journal = Some(journal);
        self.is_torn = result.is_err();
        result
    }

    fn replay(&mut self, device: &Device, journal: &Journal) -> Result<(), Error> {
        // All old memory is given back first, in case the device is the same one.
        let hit_count = device.allocate(Element::U32, 1)?;
        let empty = hit_count.slice(0..0)?;
        self.arena.release(&empty);
        (self.faults, self.watch) = (empty.clone(), None);
        self.hits = [empty, hit_count];
        self.arena.renew(device)?;
        self.faults = device.allocate(Element::U32, self.config.fault_words())?;
        self.watch =
            self.config.watchdog.map(|patience| Watch::new(device, self.config.slice, patience)).transpose()?;
        self.kernels = Kernels::new(device, self.watch.is_some())?;
        self.ops.iter_mut().for_each(|op| op.refusal = None);
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
                Entry::Items(tenant, items) => self.repeat(*tenant, items)?,
            }
        }
        Ok(())
    }

    /// Executes items whose report was given.
    fn repeat(&mut self, tenant: u32, items: &[Executed]) -> Result<(), Error> {
        // What reports hits writes nothing else.
        let is_silent = |executed: &&Executed| {
            let op = self.ops.get(executed.item.op_handle.wrapping_sub(1) as usize);
            op.is_none_or(|op| !op.reports)
        };
        let items: Vec<Executed> = items.iter().filter(is_silent).copied().collect();
        let portion = std::mem::replace(&mut self.portion, items.len());
        let pending = std::mem::replace(&mut self.pending, items.iter().map(|executed| executed.item).collect());
        let pending_of = std::mem::replace(&mut self.tenant, tenant);
        let duplicates = std::mem::take(&mut self.duplicates);
        let result = self.repeat_pending(&items);
        (self.portion, self.pending, self.tenant, self.duplicates) = (portion, pending, pending_of, duplicates);
        result
    }

    fn repeat_pending(&mut self, items: &[Executed]) -> Result<(), Error> {
        while !self.pending.is_empty() {
            let mut report = Report::default();
            let result = self.slice(&mut report);
            let first = items.len() - self.pending.len();
            for failed in &report.failures {
                let executed = &items[first + (failed.number - self.done) as usize];
                self.compare_failure(failed, executed.is_cut_short)?;
            }
            match result {
                Ok(()) => {
                    self.pending.drain(..self.portion);
                    self.portion = self.portion.min(self.pending.len());
                    // Numbers of the items that are left begin anew.
                    self.duplicates.clear();
                }
                // The watchdog ended an item, as it did before, or an operation was refused.
                Err(Error::Driver(DriverError::Cancelled)) => {}
                Err(Error::Driver(DriverError::OutOfMemory { .. })) if self.portion > 1 => {
                    self.portion = self.portion.div_ceil(2);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks that a failure of a replayed item happened before, too: otherwise its effects are missing.
    fn compare_failure(&self, failed: &Failed, was_cut_short: bool) -> Result<(), DriverError> {
        let op = self.ops.get(failed.item.op_handle.wrapping_sub(1) as usize);
        let stopped = |outcome: String| {
            let kernel = op.map_or_else(String::new, |op| op.name().into());
            Err(DriverError::Stopped { kernel, outcome })
        };
        match &failed.why {
            Failure::Refused => Err(op.and_then(|op| op.refusal.clone()).unwrap_or(DriverError::Cancelled)),
            Failure::Unfinished(outcome) if !was_cut_short => stopped(outcome.to_string()),
            Failure::Stuck { .. } if !was_cut_short => stopped("it was stuck when an item was replayed".into()),
            // These depend on the item alone.
            _ => Ok(()),
        }
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
    fn the_largest_class_of_a_size_is_the_last_class_up_to_it() {
        let mut last = 0;
        for bytes in 0..1 << 14 {
            if Buffer::size_class(bytes) == Some(bytes) {
                last = bytes;
            }
            assert_eq!(largest_class(bytes), last, "{bytes}");
        }
        for bytes in [u64::from(u32::MAX), 1 << 40, u64::MAX / 2] {
            let class = largest_class(bytes);
            assert_eq!(Buffer::size_class(class), Some(class), "{bytes}");
            assert!(class <= bytes && Buffer::size_class(class + 1).is_none_or(|next| next > bytes), "{bytes}");
        }
    }

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
