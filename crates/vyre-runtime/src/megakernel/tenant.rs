//! Tenants: who shares a session, what each may take of it, and whose items come next.
//!
//! A slice is of one tenant, so what it takes is charged to that tenant to the nanosecond, whatever its items do: planning, traps, fuel,
//! checkpoints and items that name nothing included. The next slice is of the tenant that has had least of its share, which is time divided
//! by weight; who had nothing to do has not saved anything up. Slices have as many items as a tenant's items let them do in about two
//! milliseconds while others wait, though no fewer than sixteen, and eight times as many while nobody does, so that who comes does not
//! wait for long. What takes longer is charged like all else.
//!
//! Items of a tenant come in the order of their deadlines: the slice in which they came, plus
//! [`priority_age_threshold`](super::policy::Policy::priority_age_threshold) slices for each class that they are less than urgent. So an item
//! of class `c` (0 is urgent) is overtaken only by what comes in the `c` × threshold slices after it; since the queue is bounded, it
//! is in one of the next `c` × threshold + ⌈4 × [slots](Share::slots) ÷ n⌉ slices of its tenant, if those have `n` items, whatever comes.
//! That is how aging works, always: where the policy says that it is time for it, items are due by then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use vyre_driver::Buffer;

use super::arena::{Handle, Part, Segment};
use super::item::WorkItem;
use super::priority::{Accounting, Diffusion, Priority};
use super::ring::{Drained, Otherwise, Pushed, Ring, Stamp};
use super::session::Session;
use crate::Error;
use crate::graph::memory::zeroed;

/// What a tenant may take of a session.
#[derive(Clone, Debug)]
pub struct Share {
    /// Tenants that have enough to do take time as their weights say. 0 counts as 1.
    pub weight: u32,
    /// Items of each priority that wait at most; `None` is as many as the queue of the session has.
    pub slots: Option<usize>,
    /// Bytes of the arena.
    pub bytes: u64,
    /// Time of each drain. Who has had it waits for the next one.
    pub time: Option<Duration>,
}

impl Default for Share {
    /// Everything, with weight 1.
    fn default() -> Share {
        Share { weight: 1, slots: None, bytes: u64::MAX, time: None }
    }
}

/// A tenant of a session. What belongs to others is not there for it.
pub struct Tenant<'s> {
    pub(super) session: &'s mut Session,
    pub(super) id: u32,
}

impl Tenant<'_> {
    /// Takes zeroed words of the arena.
    ///
    /// # Errors
    /// There are not so many in one piece, or the tenant may not have so many.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        let handle = self.session.arena.allocate(self.id, segment, words)?;
        let zeros = zeroed("words of an allocation", 4 * words as usize);
        match zeros.and_then(|zeros: Vec<u8>| self.write(handle, &zeros)) {
            Ok(()) => Ok(handle),
            Err(error) => self.session.arena.free(self.id, handle).and(Err(error)),
        }
    }

    /// Gives words back. Items in the queue that name them fail with [`UnknownHandle`](super::Failure::UnknownHandle).
    ///
    /// # Errors
    /// The handle names nothing of this tenant, or the device was lost.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.session.is_restored()?;
        self.session.arena.part(self.id, handle)?;
        self.session.settle_unread()?;
        // What is in the journal is looked up by handles.
        if self.session.journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
            self.session.checkpoint()?;
        }
        self.session.arena.free(self.id, handle)
    }

    /// Replaces the words of a handle: all items before see the old ones, and all after the new ones, if it is done between drains.
    ///
    /// # Errors
    /// The handle names nothing of this tenant, there are not as many bytes as it has, or the device was lost.
    pub fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), Error> {
        let memory = self.memory(handle)?;
        self.session.settle_unread()?;
        memory.write(bytes)?;
        if let Some(journal) = &mut self.session.journal {
            let Part { segment, first, .. } = self.session.arena.part(self.id, handle)?;
            journal.wrote(segment, first, bytes);
            if journal.is_full() {
                journal.checkpoint(&self.session.arena)?;
            }
        }
        Ok(())
    }

    /// The memory of a handle, for other launches on the same device. What they write is not in the journal.
    ///
    /// # Errors
    /// The handle names nothing of this tenant.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.session.memory_of(self.id, handle)
    }

    /// The words of a handle.
    ///
    /// # Errors
    /// The handle names nothing of this tenant, or the device was lost.
    pub fn read(&self, handle: Handle) -> Result<Vec<u32>, Error> {
        Ok(self.memory(handle)?.elements()?)
    }

    /// By what threads put items into the queue of this tenant.
    pub fn producer(&self) -> Producer {
        Producer(self.session.queues.rings(self.id).clone())
    }
}

/// Puts items into the queue of a tenant.
#[derive(Clone, Debug)]
pub struct Producer([Arc<Ring>; CLASSES]);

impl Producer {
    /// Adds items, as far as the tenant may have more that wait.
    pub fn push(&self, priority: Priority, items: &[WorkItem], otherwise: Otherwise) -> Pushed {
        self.0[priority as usize].push(items, otherwise)
    }

    /// How many items wait.
    pub fn queued(&self) -> usize {
        self.0.iter().map(|ring| ring.queued()).sum()
    }
}

/// What a tenant had of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Items that were taken from its queue.
    pub items: u64,
    /// Those that failed.
    pub failures: u64,
    /// What they reported.
    pub hits: u64,
    /// What it was charged for: all that its slices took.
    pub time: Duration,
    /// How many slices there were.
    pub slices: u64,
    /// Items that waited when the drain ended.
    pub queued: usize,
}

const CLASSES: usize = Priority::ALL.len();

/// A slice takes about this long while other tenants wait.
const QUANTUM: Duration = Duration::from_millis(2);

/// Slices are not cut shorter than this, because each takes some time whatever is in it.
const SHORTEST: usize = 16;

/// So many times as many items has a slice while there is nobody who waits, but somebody who may come.
const ALONE: usize = 8;

/// Items of the first slice of a tenant while others wait: nothing is known of them yet.
const FIRST: usize = 1024;

/// Items of one class that came between two slices.
#[derive(Debug)]
struct Run {
    items: usize,
    /// The slice before which they came.
    came: u64,
    /// In 256ths of a slice.
    deadline: u64,
}

/// The queue of a tenant.
struct Queue {
    share: Share,
    rings: [Arc<Ring>; CLASSES],
    /// What is known to be in the rings.
    runs: [VecDeque<Run>; CLASSES],
    /// How many slices it had.
    slices: u64,
    /// Items of a slice while others wait.
    batch: usize,
    /// What it has had of this drain.
    used: Duration,
    /// Device time that was charged, divided by its weight (start-time fair queueing).
    virtual_time: u128,
    /// Whether it could have had the slice before.
    waits: bool,
}

impl Queue {
    fn is_due(&self) -> bool {
        self.share.time.is_none_or(|time| self.used < time) && self.runs.iter().any(|runs| !runs.is_empty())
    }

    /// Notes what has come since it was last looked at. What came together are siblings.
    fn look(&mut self, threshold: u32, diffusion: &mut Diffusion) {
        let mut came = [0; CLASSES];
        for ((came, runs), ring) in came.iter_mut().zip(&mut self.runs).zip(&self.rings) {
            let known: usize = runs.iter().map(|run| run.items).sum();
            *came = ring.queued().saturating_sub(known);
        }
        if came == [0; CLASSES] {
            return;
        }
        let classes = diffusion.classes(came);
        for ((runs, items), class) in self.runs.iter_mut().zip(came).zip(classes) {
            let wait = (f64::from(class) * f64::from(threshold) * 256.0) as u64;
            let deadline = self.slices.saturating_mul(256).saturating_add(wait);
            match runs.back_mut() {
                _ if items == 0 => {}
                Some(last) if (last.came, last.deadline) == (self.slices, deadline) => last.items += items,
                _ => runs.push_back(Run { items, came: self.slices, deadline }),
            }
        }
    }

    /// Takes the items whose deadlines are first.
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
            counted.age(self.slices - run.came);
            let wanted = run.items.min(limit - into.len());
            let drained = self.rings[class].drain_stamped(into, stamps, wanted, Otherwise::Return);
            run.items -= wanted;
            if run.items == 0 {
                self.runs[class].pop_front();
            }
            if drained != Drained::Items(wanted) {
                // Somebody else has taken what was there.
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
    /// What the tenant of the last slice had had before, divided by its weight.
    now: u128,
    diffusion: Diffusion,
}

impl Drop for Queues {
    /// Who waits for a place in the queue is told that there will be none.
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
            batch: FIRST,
            used: Duration::ZERO,
            virtual_time: 0,
            waits: false,
        };
        Queues { tenants: shares.iter().map(queue).collect(), now: 0, diffusion: Diffusion::default() }
    }

    pub(super) fn rings(&self, tenant: u32) -> &[Arc<Ring>; CLASSES] {
        &self.tenants[tenant as usize].rings
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Ring>> {
        self.tenants.iter().flat_map(|tenant| &tenant.rings)
    }

    /// How many items wait.
    pub(super) fn queued(&self) -> usize {
        self.all().map(|ring| ring.queued()).sum()
    }

    /// Takes no more items, and lets all tenants have the time that the rest needs.
    pub(super) fn close(&mut self) {
        self.all().for_each(|ring| ring.close());
        self.tenants.iter_mut().for_each(|tenant| tenant.share.time = None);
    }

    /// A drain begins, in which all may have their time.
    pub(super) fn begin(&mut self) {
        self.tenants.iter_mut().for_each(|tenant| tenant.used = Duration::ZERO);
    }

    /// Takes the items of the next slice, at most so many. Gives whose they are, if there are some.
    pub(super) fn take(
        &mut self,
        limit: usize,
        threshold: u32,
        into: &mut Vec<WorkItem>,
        stamps: &mut Vec<Stamp>,
    ) -> Result<Option<(u32, Accounting)>, Error> {
        for tenant in &mut self.tenants {
            tenant.look(threshold, &mut self.diffusion);
            let is_due = tenant.is_due();
            if is_due && !tenant.waits {
                // Idle time earns no credit.
                tenant.virtual_time = tenant.virtual_time.max(self.now);
            }
            tenant.waits = is_due;
        }
        let waiting = || self.tenants.iter().enumerate().filter(|(_, tenant)| tenant.waits);
        let contended = waiting().nth(1).is_some();
        let Some((next, _)) = waiting().min_by_key(|(_, tenant)| tenant.virtual_time) else { return Ok(None) };
        let alone = if self.tenants.len() == 1 { usize::MAX } else { ALONE };
        let tenant = &mut self.tenants[next];
        self.now = tenant.virtual_time;
        let limit = limit.min(tenant.batch.saturating_mul(if contended { 1 } else { alone }));
        let counted = tenant.take(limit, into, stamps)?;
        Ok(Some((next as u32, counted)))
    }

    /// Charges a tenant for a slice of so many items.
    pub(super) fn charge(&mut self, tenant: u32, items: usize, time: Duration) {
        let tenant = &mut self.tenants[tenant as usize];
        tenant.used = tenant.used.saturating_add(time);
        let scaled = (time.as_nanos() << 20) / u128::from(tenant.share.weight.max(1));
        tenant.virtual_time = tenant.virtual_time.saturating_add(scaled);
        let quantum = QUANTUM * (items / tenant.batch).max(1) as u32;
        if time > 2 * quantum {
            tenant.batch = (tenant.batch.min(items) / 2).max(SHORTEST);
        } else if time < quantum && items >= tenant.batch {
            tenant.batch = tenant.batch.saturating_mul(2).min(1 << 24);
        }
    }
}
