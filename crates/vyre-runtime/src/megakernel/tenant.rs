//! Tenants: weighted fair queueing of slices, arena quotas, and earliest-deadline-first order of items with aging.
//!
//! A slice has items of one tenant, which is charged its whole wall time, including planning, traps, fuel, checkpoints and invalid items.
//! The next slice goes to the tenant with the least virtual time (charged time ÷ weight, start-time fair queueing); idle time earns no
//! credit. While several tenants have items, the slice size adapts to a quantum of 2 ms, but is at least 16 items; while one of several
//! tenants has items, it is 8 times as large, which bounds the latency of a tenant that becomes active.
//!
//! The deadline of an item is the slice of its tenant in which it was enqueued plus
//! [`priority_age_threshold`](super::policy::Policy::priority_age_threshold) slices for each class below urgent. An item of class `c` (0 is
//! urgent) is thus overtaken only by items that are enqueued in the `c` × threshold slices after it. Since the queue is bounded, it is in
//! one of the next `c` × threshold + ⌈4 × [slots](Share::slots) ÷ n⌉ slices of its tenant, for slices of `n` items, whatever is enqueued.
//! Aging is always on: when the policy recommends it, the items in question are already due.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use vyre_driver::{Buffer, Error as DriverError};
use vyre_foundation::ir::Element;

use super::arena::{Handle, Segment};
use super::item::WorkItem;
use super::priority::{Accounting, Diffusion, Priority};
use super::ring::{Drained, Otherwise, Pushed, Ring, Stamp};
use super::session::Session;
use crate::Error;
use crate::graph::memory::zeroed;

/// Share of a tenant in a session: weight and quotas.
#[derive(Clone, Debug)]
pub struct Share {
    /// Weight: backlogged tenants get time in proportion to their weights. 0 counts as 1.
    pub weight: u32,
    /// Queue capacity for each priority; `None` is [`Config::queue`](super::Config::queue).
    pub slots: Option<usize>,
    /// Arena quota in bytes.
    pub bytes: u64,
    /// Time quota of each drain. A tenant that has used it up waits for the next drain.
    pub time: Option<Duration>,
}

impl Default for Share {
    /// Weight 1 without quotas.
    fn default() -> Share {
        Share { weight: 1, slots: None, bytes: u64::MAX, time: None }
    }
}

/// A tenant of a session. Handles of other tenants are invalid for it.
pub struct Tenant<'s> {
    pub(super) session: &'s mut Session,
    pub(super) id: u32,
}

impl Tenant<'_> {
    /// Allocates zeroed words of the arena.
    ///
    /// # Errors
    /// There is no free range of this length, or the tenant's quota is exceeded.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        Ok(self.allocate_many(segment, &[words])?[0])
    }

    /// Allocates zeroed words for each length, or nothing on an error. The allocations are adjacent if there is a free range for all of
    /// them, which makes [`write_many`](Tenant::write_many) one copy.
    ///
    /// # Errors
    /// There is no free range for one of them, or the tenant's quota is exceeded.
    pub fn allocate_many(&mut self, segment: Segment, lengths: &[u32]) -> Result<Vec<Handle>, Error> {
        let handles = self.session.arena.allocate(self.id, segment, lengths)?;
        let words = lengths.iter().map(|&length| length as usize).sum::<usize>();
        let zeros = zeroed("words of an allocation", 4 * words);
        match zeros.and_then(|zeros: Vec<u8>| self.write_many(&handles, &zeros)) {
            Ok(()) => Ok(handles),
            Err(error) => {
                handles.iter().try_for_each(|&handle| self.session.arena.free(self.id, handle))?;
                Err(error)
            }
        }
    }

    /// Frees an allocation. Queued items that name it fail with [`UnknownHandle`](super::Failure::UnknownHandle).
    ///
    /// # Errors
    /// The handle is invalid for this tenant, or the device was lost.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.session.is_restored()?;
        self.session.arena.part(self.id, handle)?;
        self.session.settle_unread()?;
        // Items in the journal name their memory by handles, which must stay valid for a replay.
        if self.session.journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
            self.session.checkpoint()?;
        }
        self.session.arena.free(self.id, handle)
    }

    /// Writes all words of an allocation. Executed items saw the old contents; items of later drains see the new ones.
    ///
    /// # Errors
    /// The handle is invalid for this tenant, the number of bytes differs, or the device was lost.
    pub fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        self.write_many(&[handle], bytes)
    }

    /// Writes all words of several allocations, whose contents follow each other in `bytes`. Adjacent allocations are one copy.
    ///
    /// # Errors
    /// A handle is invalid for this tenant or the number of bytes differs, and nothing is written; or the device was lost.
    pub fn write_many(&mut self, handles: &[Handle], bytes: &[u8]) -> Result<(), Error> {
        self.session.is_restored()?;
        let ranges = self.session.arena.ranges(self.id, handles)?;
        let words = ranges.iter().map(|(_, _, length)| u64::from(*length)).sum::<u64>();
        if bytes.len() as u64 != 4 * words {
            let (given, length) = (bytes.len() as u64, u32::try_from(words).unwrap_or(u32::MAX));
            return Err(DriverError::WriteLength { given, element: Element::U32, length }.into());
        }
        self.session.settle_unread()?;
        let mut rest = bytes;
        for (segment, first, length) in ranges {
            let (bytes, after) = rest.split_at(4 * length as usize);
            rest = after;
            self.session.arena.buffer(segment).slice(first..first + length)?.write(bytes)?;
            if let Some(journal) = &mut self.session.journal {
                journal.wrote(segment, first, bytes);
            }
        }
        match &mut self.session.journal {
            Some(journal) if journal.is_full() => Ok(journal.checkpoint(&self.session.arena)?),
            _ => Ok(()),
        }
    }

    /// Returns the memory of an allocation, for other launches on the same device. Their writes are not journaled.
    ///
    /// # Errors
    /// The handle is invalid for this tenant.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.session.memory_of(self.id, handle)
    }

    /// Returns the words of an allocation.
    ///
    /// # Errors
    /// The handle is invalid for this tenant, or the device was lost.
    pub fn read(&self, handle: Handle) -> Result<Vec<u32>, Error> {
        Ok(self.memory(handle)?.elements()?)
    }

    /// Returns a producer, with which other threads can enqueue items of this tenant.
    pub fn producer(&self) -> Producer {
        Producer(self.session.queues.rings(self.id).clone())
    }
}

/// Producer of items for the queue of a tenant.
#[derive(Clone, Debug)]
pub struct Producer([Arc<Ring>; CLASSES]);

impl Producer {
    /// Enqueues items, up to the capacity of the tenant's queue.
    pub fn push(&self, priority: Priority, items: &[WorkItem], otherwise: Otherwise) -> Pushed {
        self.0[priority as usize].push(items, otherwise)
    }

    /// Returns the number of queued items.
    pub fn queued(&self) -> usize {
        self.0.iter().map(|ring| ring.queued()).sum()
    }
}

/// Usage of a session by a tenant in a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Items taken from its queue.
    pub items: u64,
    /// Failed items.
    pub failures: u64,
    /// Reported hits.
    pub hits: u64,
    /// Charged time: the wall time of its slices.
    pub time: Duration,
    /// Slices.
    pub slices: u64,
    /// Items still queued at the end of the drain.
    pub queued: usize,
}

const CLASSES: usize = Priority::ALL.len();

/// Target duration of a slice while several tenants have items.
const QUANTUM: Duration = Duration::from_millis(2);

/// Minimum slice size, to amortize the fixed cost of a slice.
const MIN_ITEMS: usize = 16;

/// Factor of the slice size while only one of several tenants has items.
const UNCONTENDED_FACTOR: usize = 8;

/// Initial slice size of a tenant, before its items have been timed.
const INITIAL_ITEMS: usize = 1024;

/// Items of one class that were enqueued between two slices.
#[derive(Debug)]
struct Run {
    items: usize,
    /// Slice count of the tenant when they were enqueued.
    enqueued: u64,
    /// Deadline in 1/256 slices.
    deadline: u64,
}

/// The queue of a tenant.
struct Queue {
    share: Share,
    rings: [Arc<Ring>; CLASSES],
    /// Known contents of the rings.
    runs: [VecDeque<Run>; CLASSES],
    /// Number of slices so far.
    slices: u64,
    /// Slice size while several tenants have items.
    batch: usize,
    /// Time used in this drain.
    used: Duration,
    /// Charged time ÷ weight (start-time fair queueing).
    virtual_time: u128,
    /// The tenant was eligible at the last choice: it had items and time left.
    eligible: bool,
}

impl Queue {
    fn is_eligible(&self) -> bool {
        self.share.time.is_none_or(|time| self.used < time) && self.runs.iter().any(|runs| !runs.is_empty())
    }

    /// Assigns deadlines to items enqueued since the last call. These are siblings.
    fn admit(&mut self, threshold: u32, diffusion: &mut Diffusion) {
        let mut enqueued = [0; CLASSES];
        for ((enqueued, runs), ring) in enqueued.iter_mut().zip(&mut self.runs).zip(&self.rings) {
            let known: usize = runs.iter().map(|run| run.items).sum();
            *enqueued = ring.queued().saturating_sub(known);
        }
        if enqueued == [0; CLASSES] {
            return;
        }
        let classes = diffusion.classes(enqueued);
        for ((runs, items), class) in self.runs.iter_mut().zip(enqueued).zip(classes) {
            let wait = (f64::from(class) * f64::from(threshold) * 256.0) as u64;
            let deadline = self.slices.saturating_mul(256).saturating_add(wait);
            match runs.back_mut() {
                _ if items == 0 => {}
                Some(last) if (last.enqueued, last.deadline) == (self.slices, deadline) => last.items += items,
                _ => runs.push_back(Run { items, enqueued: self.slices, deadline }),
            }
        }
    }

    /// Takes items, earliest deadline first.
    fn take(&mut self, limit: usize, into: &mut Vec<WorkItem>, stamps: &mut Vec<Stamp>) -> Result<Accounting, Error> {
        let mut counted = Accounting::default();
        while into.len() < limit {
            let first =
                (0..CLASSES).filter_map(|class| self.runs[class].front().map(|run| (run.deadline, class))).min();
            let Some((_, class)) = first else { break };
            if self.runs[..class].iter().any(|runs| !runs.is_empty()) {
                counted.promote(self.runs[class][0].items.min(limit - into.len()) as u64)?;
            }
            let run = &mut self.runs[class][0];
            counted.age(self.slices - run.enqueued);
            let wanted = run.items.min(limit - into.len());
            let drained = self.rings[class].drain_stamped(into, stamps, wanted, Otherwise::Return);
            run.items -= wanted;
            if run.items == 0 {
                self.runs[class].pop_front();
            }
            if drained != Drained::Items(wanted) {
                // Another consumer drained the ring.
                self.runs[class].clear();
            }
        }
        self.slices += 1;
        Ok(counted)
    }
}

/// The queues of all tenants.
pub(super) struct Queues {
    tenants: Vec<Queue>,
    /// Virtual time at the start of the last slice.
    now: u128,
    diffusion: Diffusion,
}

impl Drop for Queues {
    /// Unblocks waiting producers.
    fn drop(&mut self) {
        self.close();
    }
}

impl Queues {
    pub(super) fn new(shares: &[Share], slots: usize, is_stamped: bool) -> Queues {
        let ring = |slots| Arc::new(if is_stamped { Ring::stamped(slots) } else { Ring::new(slots) });
        let queue = |share: &Share| Queue {
            rings: std::array::from_fn(|_| ring(share.slots.unwrap_or(slots))),
            share: share.clone(),
            runs: Default::default(),
            slices: 0,
            batch: INITIAL_ITEMS,
            used: Duration::ZERO,
            virtual_time: 0,
            eligible: false,
        };
        Queues { tenants: shares.iter().map(queue).collect(), now: 0, diffusion: Diffusion::default() }
    }

    pub(super) fn rings(&self, tenant: u32) -> &[Arc<Ring>; CLASSES] {
        &self.tenants[tenant as usize].rings
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Ring>> {
        self.tenants.iter().flat_map(|tenant| &tenant.rings)
    }

    /// Returns the number of queued items.
    pub(super) fn queued(&self) -> usize {
        self.all().map(|ring| ring.queued()).sum()
    }

    /// Closes all queues, and lifts the time quotas.
    pub(super) fn close(&mut self) {
        self.all().for_each(|ring| ring.close());
        self.tenants.iter_mut().for_each(|tenant| tenant.share.time = None);
    }

    /// Begins a drain: resets the time quotas.
    pub(super) fn begin(&mut self) {
        self.tenants.iter_mut().for_each(|tenant| tenant.used = Duration::ZERO);
    }

    /// Takes the items of the next slice, at most `limit`, and returns their tenant; `None` if no tenant is eligible.
    pub(super) fn take(
        &mut self,
        limit: usize,
        threshold: u32,
        into: &mut Vec<WorkItem>,
        stamps: &mut Vec<Stamp>,
    ) -> Result<Option<(u32, Accounting)>, Error> {
        for tenant in &mut self.tenants {
            tenant.admit(threshold, &mut self.diffusion);
            let is_eligible = tenant.is_eligible();
            if is_eligible && !tenant.eligible {
                // Idle time earns no credit.
                tenant.virtual_time = tenant.virtual_time.max(self.now);
            }
            tenant.eligible = is_eligible;
        }
        let eligible = || self.tenants.iter().enumerate().filter(|(_, tenant)| tenant.eligible);
        let contended = eligible().nth(1).is_some();
        let Some((next, _)) = eligible().min_by_key(|(_, tenant)| tenant.virtual_time) else { return Ok(None) };
        let uncontended = if self.tenants.len() == 1 { usize::MAX } else { UNCONTENDED_FACTOR };
        let tenant = &mut self.tenants[next];
        self.now = tenant.virtual_time;
        let limit = limit.min(tenant.batch.saturating_mul(if contended { 1 } else { uncontended }));
        let counted = tenant.take(limit, into, stamps)?;
        Ok(Some((next as u32, counted)))
    }

    /// Charges a tenant for a slice, and adapts its slice size.
    pub(super) fn charge(&mut self, tenant: u32, items: usize, time: Duration) {
        let tenant = &mut self.tenants[tenant as usize];
        tenant.used = tenant.used.saturating_add(time);
        let scaled = (time.as_nanos() << 20) / u128::from(tenant.share.weight.max(1));
        tenant.virtual_time = tenant.virtual_time.saturating_add(scaled);
        let quantum = QUANTUM * (items / tenant.batch).max(1) as u32;
        if time > 2 * quantum {
            tenant.batch = (tenant.batch.min(items) / 2).max(MIN_ITEMS);
        } else if time < quantum && items >= tenant.batch {
            tenant.batch = tenant.batch.saturating_mul(2).min(1 << 24);
        }
    }
}
