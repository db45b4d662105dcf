//! Bounded multi-producer queue of work items on the host, with back-pressure. Consumers drain it in batches.
//!
//! A mutex guards the ring. It is taken once per batch, which amortizes its cost over the items; the rest is copying. All state is read and
//! written under the lock, and waiting on a condition variable releases it atomically, so no wake-up is lost: a thread that changes the
//! ring sees the sleepers, or the thread that is about to sleep sees the change.
//!
//! Accepted items are drained exactly once, in the order of their producer, even if the ring is closed in between.

use std::collections::VecDeque;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

use super::WorkItem;

/// Time to spin before sleeping: about the latency of a wake-up. The loom model does not spin.
#[cfg(not(loom))]
const SPIN: std::time::Duration = std::time::Duration::from_micros(20);

/// Behaviour on a full or empty ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// Block until there is room or an item, or the ring is closed.
    Wait,
    /// Return without blocking.
    Return,
}

/// Result of a push. Accepted items are a prefix of the given ones.
#[must_use = "items may have been refused"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// All items were accepted.
    All,
    /// The ring is full.
    WouldBlock {
        /// Number of accepted items.
        accepted: usize,
    },
    /// The ring is closed.
    Closed {
        /// Number of accepted items.
        accepted: usize,
    },
}

/// Result of a drain.
#[must_use = "the ring may be closed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Number of drained items.
    Items(usize),
    /// The ring is empty.
    WouldBlock,
    /// The ring is empty and closed.
    Closed,
}

/// Bounded queue of work items, shared by reference.
#[derive(Debug)]
pub struct Ring {
    state: Mutex<State>,
    /// Signals that items were pushed, or the ring was closed.
    filled: Condvar,
    /// Signals that items were drained, or the ring was closed.
    freed: Condvar,
    /// Version of the state, polled by spinning threads; they read the state itself under the lock.
    changes: AtomicU64,
    capacity: usize,
    /// Records enqueue times.
    is_stamped: bool,
    #[cfg(loom)]
    flaw: Option<Flaw>,
}

/// Number of consecutive items with their enqueue time.
pub(super) type Stamp = (usize, Instant);

#[derive(Debug, Default)]
struct State {
    items: VecDeque<WorkItem>,
    /// Enqueue times of `items`, one entry for each push.
    stamps: VecDeque<Stamp>,
    closed: bool,
    /// Threads asleep on an empty ring, and on a full one. Notifying without sleepers would cost more than a batch.
    asleep_empty: u32,
    asleep_full: u32,
}

impl Ring {
    /// Creates an empty ring of a capacity of at least one.
    pub fn new(capacity: usize) -> Ring {
        let capacity = capacity.max(1);
        // Larger rings grow on demand.
        let state = State { items: VecDeque::with_capacity(capacity.min(1 << 20)), ..State::default() };
        Ring {
            state: Mutex::new(state),
            filled: Condvar::new(),
            freed: Condvar::new(),
            changes: AtomicU64::new(0),
            capacity,
            is_stamped: false,
            #[cfg(loom)]
            flaw: None,
        }
    }

    /// Creates a ring that records enqueue times.
    pub(super) fn stamped(capacity: usize) -> Ring {
        Ring { is_stamped: true, ..Ring::new(capacity) }
    }

    /// Creates a ring with an injected fault.
    #[cfg(loom)]
    pub fn flawed(capacity: usize, flaw: Flaw) -> Ring {
        Ring { flaw: Some(flaw), ..Ring::new(capacity) }
    }

    /// Returns the capacity.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of queued items.
    pub fn queued(&self) -> usize {
        self.lock().items.len()
    }

    /// Pushes items. A blocking push may have more items than the capacity.
    pub fn push(&self, items: &[WorkItem], otherwise: Otherwise) -> Pushed {
        let mut accepted = 0;
        let mut state = self.lock();
        loop {
            if state.closed && accepted < items.len() {
                return Pushed::Closed { accepted };
            }
            let count = (self.capacity - state.items.len()).min(items.len() - accepted);
            if count > 0 {
                state.items.extend(&items[accepted..accepted + count]);
                accepted += count;
                if self.is_stamped {
                    state.stamps.push_back((count, Instant::now()));
                }
                self.changed();
                if state.asleep_empty > 0 {
                    self.filled.notify_all();
                }
            }
            if accepted == items.len() {
                return Pushed::All;
            }
            match otherwise {
                Otherwise::Return => return Pushed::WouldBlock { accepted },
                Otherwise::Wait => state = self.wait(state, &self.freed, |state| &mut state.asleep_full),
            }
        }
    }

    /// Appends up to `limit` queued items to a list. A blocking drain waits for the first item.
    pub fn drain(&self, into: &mut Vec<WorkItem>, limit: usize, otherwise: Otherwise) -> Drained {
        self.drain_stamped(into, &mut Vec::new(), limit, otherwise)
    }

    /// Drains, and appends the enqueue times to `stamps`.
    pub(super) fn drain_stamped(
        &self,
        into: &mut Vec<WorkItem>,
        stamps: &mut Vec<Stamp>,
        limit: usize,
        otherwise: Otherwise,
    ) -> Drained {
        // Reserves before taking the lock.
        into.reserve(limit.min(self.queued()));
        let mut state = self.lock();
        loop {
            #[cfg(loom)]
            if self.flaw == Some(Flaw::ClosedBeforeEmpty) && state.closed {
                return Drained::Closed;
            }
            let count = state.items.len().min(limit);
            if count > 0 || limit == 0 {
                // Copying two slices is faster than iterating over the deque.
                let (front, back) = state.items.as_slices();
                let (front, back) = (&front[..count.min(front.len())], &back[..count.saturating_sub(front.len())]);
                into.extend_from_slice(front);
                into.extend_from_slice(back);
                state.items.drain(..count);
                let mut left = count;
                while let Some(stamp) = state.stamps.front_mut().filter(|_| left > 0) {
                    let taken = stamp.0.min(left);
                    stamps.push((taken, stamp.1));
                    (stamp.0, left) = (stamp.0 - taken, left - taken);
                    if stamp.0 == 0 {
                        state.stamps.pop_front();
                    }
                }
                self.changed();
                let wake = state.asleep_full > 0;
                #[cfg(loom)]
                let wake = wake && self.flaw != Some(Flaw::SilentDrain);
                if wake {
                    self.freed.notify_all();
                }
                return Drained::Items(count);
            }
            if state.closed {
                return Drained::Closed;
            }
            match otherwise {
                Otherwise::Return => return Drained::WouldBlock,
                Otherwise::Wait => state = self.wait(state, &self.filled, |state| &mut state.asleep_empty),
            }
        }
    }

    /// Closes the ring for pushes. Accepted items can still be drained.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.changed();
        #[cfg(loom)]
        if self.flaw == Some(Flaw::SilentClose) {
            return;
        }
        self.filled.notify_all();
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it changes the state, so the state of a poisoned mutex is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Increments the version. The caller holds the lock, so load and store need not be one atomic operation.
    fn changed(&self) {
        self.changes.store(self.changes.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Waits for a change: spins, then sleeps. Wake-ups may be spurious, so the caller rechecks its condition.
    fn wait<'r>(
        &'r self,
        state: MutexGuard<'r, State>,
        change: &Condvar,
        sleeping: fn(&mut State) -> &mut u32,
    ) -> MutexGuard<'r, State> {
        let seen = self.changes.load(Relaxed);
        drop(state);
        #[cfg(not(loom))]
        {
            let start = Instant::now();
            while self.changes.load(Relaxed) == seen && start.elapsed() < SPIN {
                std::hint::spin_loop();
            }
        }
        let mut state = self.lock();
        let changed = self.changes.load(Relaxed) != seen;
        #[cfg(loom)]
        let changed = changed && self.flaw != Some(Flaw::LostWakeup);
        if !changed {
            *sleeping(&mut state) += 1;
            state = change.wait(state).unwrap_or_else(PoisonError::into_inner);
            *sleeping(&mut state) -= 1;
        }
        state
    }
}

/// Injected faults, to prove that the loom model detects them.
#[cfg(loom)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Sleeps without rechecking the version after releasing the lock (lost wake-up).
    LostWakeup,
    /// Drains without notifying blocked producers.
    SilentDrain,
    /// Reports a closed ring before it is empty.
    ClosedBeforeEmpty,
    /// Closes without notifying blocked threads.
    SilentClose,
}
