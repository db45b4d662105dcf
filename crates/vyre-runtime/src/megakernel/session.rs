//! Sessions: arena, ops and queues of a megakernel, and the drain loop.

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

/// Configuration of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// Words of the arena's segment for plain accesses.
    pub plain_words: u32,
    /// Words of the arena's segment for atomic accesses.
    pub atomic_words: u32,
    /// Queue capacity for each priority.
    pub queue: usize,
    /// Shares of the tenants. If empty, there is one tenant with the default share.
    pub tenants: Vec<Share>,
    /// Maximum items of a slice, from 1 to 2²⁴.
    pub slice: usize,
    /// Maximum loop trips of an invocation of an item. Loops that provably take at most 1024 trips are not metered. Invocations of a
    /// collective operation cannot stop individually; the [watchdog](Config::watchdog) stops them together.
    pub fuel: u32,
    /// Maximum workgroups of a launch; 0 leaves it to the policy.
    pub worker_groups: u32,
    /// Limit on the session's device memory in bytes, with allocations rounded to [size classes](Buffer::size_class); 0 is no limit. The
    /// arena, per-item records of a slice, and at least one item have to fit.
    pub budget: u64,
    /// Launch policy of slices.
    pub policy: Policy,
    /// Autotunes workgroup width, slice size, hit capacity and JIT threshold. Results are stored in the [hints](vyre_driver::Telemetry) of
    /// the device, for sessions with the same ops.
    pub tune: bool,
    /// Synchronization of dependent items.
    pub order: Order,
    /// Records latencies and spans.
    pub telemetry: bool,
    /// Time limit of an item. An item beyond it fails, and its worker takes no more items. Requires a device whose memory the host can read
    /// while launches run; publishing item states has a cost.
    pub watchdog: Option<Duration>,
    /// Journals executed items, with a checkpoint of the arena after this number of items, so that the session can
    /// [resume](Session::resume) after a device loss.
    pub journal: Option<usize>,
    /// Time source of shares, quotas, autotuning and the watchdog.
    pub clock: Arc<dyn Clock>,
}

/// Synchronization of dependent items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The faster one, as measured.
    #[default]
    Measured,
    /// Barriers between groups of independent items.
    Barriers,
    /// A ready queue with dependency counters, on devices with [independent workgroups](vyre_driver::Capabilities::independent_groups).
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
    /// Returns the recommended configuration for a device.
    pub fn of(device: &Device) -> Config {
        let mut config = Config::default();
        let capabilities = device.capabilities();
        // Software GPUs repeat uniform work for each vector of lanes, so a workgroup is one vector.
        if capabilities.kind == DeviceKind::SoftwareGpu
            && let Some(lanes) = capabilities.subgroup_size.and_then(NonZeroU32::new)
        {
            config.policy.sizing = Sizing::Preferred(lanes);
        }
        config
    }
}

impl Config {
    /// Returns the length of the fault buffer: a counter, and a record for each item of a slice.
    fn fault_words(&self) -> u64 {
        1 + u64::from(Fault::ELEMENTS) * self.slice as u64
    }

    /// Returns the size of all buffers that are live between slices.
    fn resident(&self) -> u64 {
        let states = self.watchdog.map_or(0, |_| allocated(1 + self.slice as u64));
        let arena = allocated(self.plain_words.into()) + allocated(self.atomic_words.into());
        // The last term is the hit counter.
        arena + states + allocated(self.fault_words()) + allocated(1)
    }

    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget): a slice of one item, with its columns and hits, exceeds the budget.
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

/// Returns the size of an allocation of words.
pub(super) fn allocated(words: u64) -> u64 {
    words.checked_mul(4).and_then(Buffer::size_class).unwrap_or(u64::MAX)
}

/// Returns the largest [size class](Buffer::size_class) of at most `bytes`; 0 if there is none.
pub(super) fn largest_class(bytes: u64) -> u64 {
    // There are four classes per power of two.
    match bytes.checked_ilog2() {
        Some(log) if bytes >= allocated(1) => bytes & !((1 << (log - 2)) - 1),
        _ => 0,
    }
}

/// A megakernel session: arena, ops and queues on a device.
pub struct Session {
    pub(super) device: Device,
    pub(super) config: Config,
    pub(super) arena: Arena,
    pub(super) ops: Vec<Op>,
    /// Executed items of each op.
    pub(super) runs: Vec<u64>,
    pub(super) kernels: Kernels,
    pub(super) queues: Queues,
    pub(super) tuning: Option<Tuning>,
    /// Maximum items of a slice.
    pub(super) limit: usize,
    /// Items of the current slice. Executed items are replaced by no-ops until the slice completes.
    pub(super) pending: Vec<WorkItem>,
    /// Length of the prefix of `pending` that is executed together: the slice, or a part of it when memory is short.
    pub(super) cut: usize,
    /// Pruned items of the slice: sequence numbers of the twin and of the pruned item, sorted.
    pub(super) duplicates: Vec<(u64, u64)>,
    /// The fault buffer may hold unread records.
    pub(super) are_faults_unread: bool,
    /// Positions of executed items whose fault records are unread.
    pub(super) unread: Vec<u32>,
    /// The last allocation failure was for the hit buffer.
    pub(super) lacks_room_for_hits: bool,
    /// Hits of the last reporting batch.
    pub(super) recent_hits: u32,
    /// Owner of `pending`.
    pub(super) tenant: u32,
    /// Accounting that is not in a report yet.
    pub(super) accounting: Accounting,
    /// Enqueue times of `pending`.
    stamps: Vec<Stamp>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) watch: Option<Watch>,
    pub(super) journal: Option<Journal>,
    /// The arena does not have its contents, because restoring it failed.
    needs_restore: bool,
    /// Total hits, and total items of reporting ops.
    pub(super) total_hits: u64,
    pub(super) reporting_items: u64,
    /// Report of a failed drain, which the next drain continues.
    pub(super) unreported: Report,
    /// Completed items; sequence number of the first pending item.
    pub(super) done: u64,
    pub(super) faults: Buffer,
    pub(super) hits: [Buffer; 2],
    pub(super) hazards: Hazards,
    pub(super) windows: Windows,
    pub(super) pruner: Pruner,
    pub(super) pruning: PruningEstimate,
    pub(super) order: OrderEstimate,
    pub(super) planner: frontier::Planner,
    /// Histogram of the slice's items by [bucket](Resolved::bucket).
    pub(super) mix: Vec<u32>,
    /// Executed items of each op of a batch.
    pub(super) executed: Vec<u64>,
    /// Scratch memory, reused by the next slice.
    pub(super) resolved: Vec<Resolved>,
    pub(super) batch: Batch,
}

impl Session {
    /// Creates a session without ops.
    ///
    /// # Errors
    /// There is not enough memory, the budget is too small, the device does not support a watchdog, or the compiler thread cannot be
    /// started.
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
        let watch = config.watchdog.map(|time_limit| Watch::new(device, config.slice, time_limit)).transpose()?;
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
            cut: 0,
            duplicates: Vec::new(),
            are_faults_unread: false,
            unread: Vec::new(),
            lacks_room_for_hits: false,
            recent_hits: 0,
            tenant: 0,
            accounting: Accounting::default(),
            stamps: Vec::new(),
            cancelled: Arc::default(),
            watch,
            journal: config.journal.map(Journal::new),
            needs_restore: false,
            total_hits: 0,
            reporting_items: 0,
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

    /// Registers an op, and returns its handle for items.
    pub fn register(&mut self, op: Op) -> u32 {
        self.ops.push(op);
        self.runs.push(0);
        self.forget_tuning();
        self.kernels.forget_interpreters();
        self.ops.len() as u32
    }

    /// Returns a tenant. Methods of the session itself act for tenant 0.
    ///
    /// # Errors
    /// The tenant does not exist.
    pub fn tenant(&mut self, id: u32) -> Result<Tenant<'_>, Error> {
        match self.config.tenants.len() as u32 {
            count if id >= count => Err(Error::NoSuchTenant { tenant: id, count }),
            _ => Ok(Tenant { session: self, id }),
        }
    }

    /// Allocates zeroed words of the arena.
    ///
    /// # Errors
    /// There is no free range of this length, or the quota is exceeded.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        self.tenant(0)?.allocate(segment, words)
    }

    /// Allocates zeroed words of the arena for each length, or nothing on an error. The allocations are adjacent if there is a free range
    /// for all of them.
    ///
    /// # Errors
    /// There is no free range for one of them, or the quota is exceeded.
    pub fn allocate_many(&mut self, segment: Segment, lengths: &[u32]) -> Result<Vec<Handle>, Error> {
        self.tenant(0)?.allocate_many(segment, lengths)
    }

    /// Returns the session's device memory between slices, without the hit buffer.
    pub(super) fn resident(&self) -> u64 {
        self.config.resident()
    }

    /// # Errors
    /// [`OverBudget`](DriverError::OverBudget): a slice of one item exceeds the budget.
    pub(super) fn fits_budget(&self) -> Result<(), DriverError> {
        self.config.fits_budget()
    }

    /// # Errors
    /// [`Stale`](DriverError::Stale): the arena could not be restored on another device.
    pub(super) fn is_restored(&self) -> Result<(), DriverError> {
        if self.needs_restore { Err(DriverError::Stale { name: "arena".into() }) } else { Ok(()) }
    }

    /// Frees an allocation. Queued items that name it fail with [`Failure::UnknownHandle`].
    ///
    /// # Errors
    /// The handle is invalid, or the device was lost.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.tenant(0)?.free(handle)
    }

    /// Writes all words of an allocation. Executed items saw the old contents; items of later drains see the new ones.
    ///
    /// # Errors
    /// The handle is invalid, the number of bytes differs, or the device was lost.
    pub fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        self.tenant(0)?.write(handle, bytes)
    }

    /// Writes all words of several allocations, whose contents follow each other in `bytes`. Adjacent allocations are one copy.
    ///
    /// # Errors
    /// A handle is invalid or the number of bytes differs, and nothing is written; or the device was lost.
    pub fn write_many(&mut self, handles: &[Handle], bytes: &[u8]) -> Result<(), Error> {
        self.tenant(0)?.write_many(handles, bytes)
    }

    /// Returns the memory of an allocation, for other launches on the same device. Their writes are not journaled.
    ///
    /// # Errors
    /// The handle is invalid.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.memory_of(0, handle)
    }

    pub(super) fn memory_of(&self, tenant: u32, handle: Handle) -> Result<Buffer, Error> {
        self.is_restored()?;
        self.arena.slice(tenant, handle)
    }

    /// Returns the words of an allocation.
    ///
    /// # Errors
    /// The handle is invalid, or the device was lost.
    pub fn read(&self, handle: Handle) -> Result<Vec<u32>, Error> {
        Ok(self.memory(handle)?.elements()?)
    }

    /// Returns the queue of normal priority, for producers on other threads.
    pub fn queue(&self) -> Arc<Ring> {
        self.queues.rings(0)[Priority::Normal as usize].clone()
    }

    /// Enqueues items of normal priority, as far as there is room. The items of a tenant take effect as if executed sequentially: in order
    /// within a priority, and earliest deadline first across priorities.
    pub fn submit(&self, items: &[WorkItem]) -> Pushed {
        self.queues.rings(0)[Priority::Normal as usize].push(items, Otherwise::Return)
    }

    /// Waits for all requested kernels. This is optional: items are interpreted until their kernel is compiled.
    pub fn finish_compiling(&mut self) {
        self.kernels.finish_all();
    }

    /// Returns the unoptimized programs of all compiled kernels, sorted by name.
    pub fn programs(&self) -> Vec<Validated<Program>> {
        let mut programs: Vec<_> = self.kernels.ready().map(|compiled| (*compiled.program).clone()).collect();
        programs.sort_by_cached_key(|program| (program.name().to_owned(), program.insts().len()));
        programs
    }

    /// Returns the items of an unfinished slice, after a failed drain. The next drain begins with them. Executed ones are no-ops (zeros).
    pub fn pending(&self) -> &[WorkItem] {
        &self.pending
    }

    /// Sets the memory budget of further slices, as [`Config::budget`].
    pub fn set_budget(&mut self, bytes: u64) {
        self.config.budget = bytes;
        // Without a budget, the hit buffer is kept across slices.
        if let Ok(empty) = self.hits[1].slice(0..0) {
            self.hits[0] = empty;
        }
    }

    /// Returns a handle with which other threads can cancel drains.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.cancelled.clone())
    }

    /// Executes as many items as are queued at the start. Ends earlier if the time quotas of tenants with items are used up, on
    /// cancellation, or if the report is [full](Report::MOST_ENTRIES). A drain therefore terminates, with a report of bounded size, even if
    /// producers never pause. Items that are enqueued meanwhile may overtake less urgent ones, which then wait for the next drain.
    ///
    /// A slice that exceeds the available memory is executed in smaller parts; an item whose hits alone exceed it fails.
    ///
    /// # Errors
    /// The device was lost, or memory or budget do not suffice. A failed item is not an error of this function. Results before the error
    /// are in the next report. [`Error::DeviceLost`] lists the items that were taken from the queue and did not complete.
    pub fn drain(&mut self) -> Result<Report, Error> {
        self.drain_until(Report::MOST_ENTRIES)
    }

    /// Implements `drain`, and ends early once the report has `entries` failures and hits.
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
        if self.accounting.recommend().should_drain {
            result = result.and(report.priority.add(&std::mem::take(&mut self.accounting)));
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
                // A failed drain leaves a cancellation to the next one.
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
        // Bounds the drain by the number of items at its start.
        let last = report.items.saturating_add((self.pending.len() + self.queues.queued()) as u64);
        while !self.cancelled.load(Relaxed)
            && report.items < last
            && report.failures.len() + report.hits.len() < entries
            && !self.accounting.recommend().reason.is_pressing()
        {
            if self.pending.is_empty() {
                let threshold = self.config.policy.priority_age_threshold;
                let (pending, stamps) = (&mut self.pending, &mut self.stamps);
                let Some((tenant, counted)) = self.queues.take(self.limit, threshold, pending, stamps)? else {
                    return Ok(());
                };
                self.tenant = tenant;
                self.cut = self.pending.len();
                if let Some(journal) = &mut self.journal {
                    journal.begin(&self.pending);
                }
                self.accounting.add(&counted)?;
            }
            let (items, failures, hits, start) =
                (self.cut, report.failures.len(), report.hits.len(), self.config.clock.now());
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

    /// Completes the executed prefix of a slice.
    fn finish_slice(&mut self, report: &mut Report) -> Result<(), Error> {
        report.items += self.cut as u64;
        count(&mut self.done, self.cut as u64, "items")?;
        if let Some(journal) = &mut self.journal {
            self.pending[..self.cut].fill(WorkItem::default());
            journal.settle(self.tenant, &self.pending);
            journal.advance(self.cut);
        }
        self.pending.drain(..self.cut);
        let settled = self.duplicates.partition_point(|(twin, _)| *twin < self.done);
        self.duplicates.drain(..settled);
        // A cut that memory shortage made shorter grows again.
        self.cut = (self.cut + self.cut.div_ceil(4)).min(self.pending.len());
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

    /// Requeues the rest of a slice after an error. Retries with a shorter cut if memory is short; returns errors that end the drain.
    fn put_back(&mut self, error: Error, report: &mut Report) -> Result<(), Error> {
        let live = || (0..).zip(&self.pending[..self.cut]).filter(|(_, item)| **item != WorkItem::default());
        let left = live().count().saturating_sub(self.unread.len());
        let first = live().next().map(|(position, _)| position);
        self.accounting.requeue(left as u64)?;
        match (error, first) {
            (Error::Driver(DriverError::Cancelled), _) => Ok(()),
            (Error::Driver(DriverError::OutOfMemory { .. }), Some(_)) if left > 1 => {
                self.cut = self.cut.div_ceil(2);
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

    /// Takes a checkpoint of the arena, which truncates the journal. No-op without a journal.
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

    /// Settles executed items before their memory is accessed: reads their fault records, for the next report, and journals them.
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

    /// Resumes on another device after a device loss: restores the arena from the last checkpoint and replays the journal, without
    /// reporting it again. The next drain begins with the items that did not complete. A cancellation during the replay ends that drain.
    ///
    /// # Errors
    /// There is no journal, or the device refuses an op that was executed before, or does not complete an item that was complete
    /// before. The arena cannot be used until a resume succeeds, on this device or another one.
    pub fn resume(&mut self, device: &Device) -> Result<(), Error> {
        let Some(journal) = self.journal.take() else {
            let (needed, available) = ("a journal to resume from".into(), "a session without one".into());
            return Err(DriverError::Unsupported { needed, available }.into());
        };
        self.needs_restore = true;
        // Cancellers apply to drains: the replay uses another flag.
        let cancelled = std::mem::take(&mut self.cancelled);
        let result = self.replay(device, &journal);
        self.cancelled = cancelled;
        self.journal = Some(journal);
        self.needs_restore = result.is_err();
        result
    }

    fn replay(&mut self, device: &Device, journal: &Journal) -> Result<(), Error> {
        // All old memory is freed first, in case the device is the same one.
        let hit_count = device.allocate(Element::U32, 1)?;
        let empty = hit_count.slice(0..0)?;
        self.arena.release(&empty);
        (self.faults, self.watch) = (empty.clone(), None);
        self.hits = [empty, hit_count];
        self.arena.renew(device)?;
        self.faults = device.allocate(Element::U32, self.config.fault_words())?;
        self.watch =
            self.config.watchdog.map(|time_limit| Watch::new(device, self.config.slice, time_limit)).transpose()?;
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
                Entry::Items(tenant, items) => self.replay_items(*tenant, items)?,
            }
        }
        Ok(())
    }

    /// Replays items of a tenant.
    fn replay_items(&mut self, tenant: u32, items: &[Executed]) -> Result<(), Error> {
        // Ops that report hits write no memory.
        let is_silent = |executed: &&Executed| {
            let op = self.ops.get(executed.item.op_handle.wrapping_sub(1) as usize);
            op.is_none_or(|op| !op.reports)
        };
        let items: Vec<Executed> = items.iter().filter(is_silent).copied().collect();
        let cut = std::mem::replace(&mut self.cut, items.len());
        let pending = std::mem::replace(&mut self.pending, items.iter().map(|executed| executed.item).collect());
        let pending_of = std::mem::replace(&mut self.tenant, tenant);
        let duplicates = std::mem::take(&mut self.duplicates);
        let result = self.replay_pending(&items);
        (self.cut, self.pending, self.tenant, self.duplicates) = (cut, pending, pending_of, duplicates);
        result
    }

    fn replay_pending(&mut self, items: &[Executed]) -> Result<(), Error> {
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
                    self.pending.drain(..self.cut);
                    self.cut = self.cut.min(self.pending.len());
                    // `done` does not advance in a replay, so the rest reuses these sequence numbers.
                    self.duplicates.clear();
                }
                // The watchdog stopped an item, as before, or an op was refused.
                Err(Error::Driver(DriverError::Cancelled)) => {}
                Err(Error::Driver(DriverError::OutOfMemory { .. })) if self.cut > 1 => {
                    self.cut = self.cut.div_ceil(2);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Checks that a replayed item failed in the original execution, too: otherwise its effects would be missing.
    fn compare_failure(&self, failed: &Failed, was_cut_short: bool) -> Result<(), DriverError> {
        let op = self.ops.get(failed.item.op_handle.wrapping_sub(1) as usize);
        let stopped = |outcome: String| {
            let kernel = op.map_or_else(String::new, |op| op.name().into());
            Err(DriverError::Stopped { kernel, outcome })
        };
        match &failed.reason {
            Failure::Refused => Err(op.and_then(|op| op.refusal.clone()).unwrap_or(DriverError::Cancelled)),
            Failure::Unfinished(outcome) if !was_cut_short => stopped(outcome.to_string()),
            Failure::Stuck { .. } if !was_cut_short => stopped("it was stuck when an item was replayed".into()),
            // The other failures are determined by the item.
            _ => Ok(()),
        }
    }

    /// Closes the queues, drains them without time quotas, and returns the items that did not complete.
    pub fn shutdown(mut self) -> Shutdown {
        self.queues.close();
        let (report, error) = match self.drain_until(usize::MAX) {
            Ok(report) => (report, None),
            Err(error) => (std::mem::take(&mut self.unreported), Some(error)),
        };
        // These were executed; only their fault records are unread.
        self.unread.iter().for_each(|&position| self.pending[position as usize] = WorkItem::default());
        let mut left: Vec<WorkItem> = self.pending.drain(..).filter(|item| *item != WorkItem::default()).collect();
        for ring in self.queues.all() {
            while let Drained::Items(1..) = ring.drain(&mut left, ring.capacity(), Otherwise::Return) {}
        }
        Shutdown { report, error, left }
    }
}

/// Handle to cancel drains of a session.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Ends the current drain, or the next one, after the current slice, or with a watchdog after the current item of each worker. The
    /// other items stay in the queue, or pending.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::megakernel::priority::Reason;

    #[test]
    fn largest_class_matches_a_linear_search() {
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
    fn nearly_full_counters_end_a_drain_and_are_reported() {
        let device = Device::open(&vyre_driver::Oracle::default()).unwrap();
        let mut session = Session::new(&device, Config { slice: 2, ..Config::default() }).unwrap();
        assert_eq!(session.submit(&[WorkItem { op_handle: 99, ..WorkItem::default() }; 4]), Pushed::All);
        session.accounting.requeues = u64::MAX - 3;
        assert_eq!(session.accounting.recommend().reason, Reason::RequeuesNearLimit);
        let report = session.drain().unwrap();
        assert_eq!((report.items, report.priority.requeues), (0, u64::MAX - 3));
        assert_eq!(report.tenants[0].queued, 4);
        let report = session.drain().unwrap();
        assert_eq!((report.items, report.failures.len(), report.priority.requeues), (4, 4, 0));
    }
}
