//! A bounded queue of work items on the host: producers leave items, and whoever launches takes them in batches.
//!
//! A lock guards the ring. It is taken once for each batch, not for each item, so that what it costs is shared by all items of a
//! batch, and what is left is copying them; a ring without a lock would not be faster by much, and harder to trust. Everything
//! that decides anything is read and written under the lock, and sleep begins under it too, so no wake-up is missed: who changes
//! the ring sees that somebody sleeps, or the one who would sleep sees the change.
//!
//! Items that a push has accepted are drained, each once, in the order of their producer, even if the ring is closed in between.

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

/// Who sleeps is woken in about this time, so nobody waits awake for longer. In the model, nobody waits awake at all.
#[cfg(not(loom))]
const SPIN: std::time::Duration = std::time::Duration::from_micros(20);

/// What to do if the ring is full, or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// Wait until it is not, or closed.
    Wait,
    /// Return.
    Return,
}

/// How a push ended. What was accepted is always the first part of the items.
#[must_use = "items may have been left out"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// All items are in the ring.
    All,
    /// The ring is full.
    WouldBlock {
        /// How many items are in the ring.
        accepted: usize,
    },
    /// The ring takes no more items.
    Closed {
        /// How many items are in the ring.
        accepted: usize,
    },
}

/// What there was to drain.
#[must_use = "the ring may be closed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// So many items.
    Items(usize),
    /// Nothing now.
    WouldBlock,
    /// Nothing, and nothing will come.
    Closed,
}

/// The ring. It is shared by reference.
#[derive(Debug)]
pub struct Ring {
    state: Mutex<State>,
    /// Items came.
    filled: Condvar,
    /// Items went.
    freed: Condvar,
    /// Counts what happens to the ring, for those who wait awake. It tells them when to look; what they see is under the lock.
    changes: AtomicU64,
    capacity: usize,
    /// Whether it is noted when items came.
    is_stamped: bool,
    #[cfg(loom)]
    flaw: Option<Flaw>,
}

/// When so many items came.
pub(super) type Stamp = (usize, Instant);

#[derive(Debug, Default)]
struct State {
    items: VecDeque<WorkItem>,
    /// When so many of the items came, one push after the other.
    stamps: VecDeque<Stamp>,
    closed: bool,
    /// How many sleep until items come, and until items go. Waking nobody would take longer than a whole batch.
    asleep_empty: u32,
    asleep_full: u32,
}

impl Ring {
    /// An empty ring for at most so many items, and at least one.
    pub fn new(capacity: usize) -> Ring {
        let capacity = capacity.max(1);
        // What is more than most need comes when it is needed.
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

    /// One that notes when items come.
    pub(super) fn stamped(capacity: usize) -> Ring {
        Ring { is_stamped: true, ..Ring::new(capacity) }
    }

    /// A ring that makes a mistake.
    #[cfg(loom)]
    pub fn flawed(capacity: usize, flaw: Flaw) -> Ring {
        Ring { flaw: Some(flaw), ..Ring::new(capacity) }
    }

    /// How many items it holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many items are in it.
    pub fn queued(&self) -> usize {
        self.lock().items.len()
    }

    /// Adds items to the ring. There may be more of them than it holds, if the push waits.
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

    /// Moves at most `limit` items to the end of a list: those that are there, or the next to come.
    pub fn drain(&self, into: &mut Vec<WorkItem>, limit: usize, otherwise: Otherwise) -> Drained {
        self.drain_stamped(into, &mut Vec::new(), limit, otherwise)
    }

    /// The same, and appends when they came to another list.
    pub(super) fn drain_stamped(
        &self,
        into: &mut Vec<WorkItem>,
        stamps: &mut Vec<Stamp>,
        limit: usize,
        otherwise: Otherwise,
    ) -> Drained {
        // Not while others wait for the lock, and no more than there is to take.
        into.reserve(limit.min(self.queued()));
        let mut state = self.lock();
        loop {
            #[cfg(loom)]
            if self.flaw == Some(Flaw::ClosedBeforeEmpty) && state.closed {
                return Drained::Closed;
            }
            let count = state.items.len().min(limit);
            if count > 0 || limit == 0 {
                // Whole slices are copied faster than items one by one.
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

    /// Takes no more items. Those that were accepted can still be drained.
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
        // Nothing panics while it changes the state, so it is whole whatever happened to another thread.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change. Only who holds the lock does, so none is lost between reading and writing.
    fn changed(&self) {
        self.changes.store(self.changes.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Waits for a change: awake, then asleep. The caller looks whether it is what was waited for.
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
        let changed = changed && self.flaw != Some(Flaw::SleepsWithoutALook);
        if !changed {
            *sleeping(&mut state) += 1;
            state = change.wait(state).unwrap_or_else(PoisonError::into_inner);
            *sleeping(&mut state) -= 1;
        }
        state
    }
}

/// Mistakes to make on purpose. If the model did not notice them, it would prove nothing.
#[cfg(loom)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Goes to sleep without a look at what has changed since the lock was given up.
    SleepsWithoutALook,
    /// Drains, and wakes nobody.
    SilentDrain,
    /// Looks whether the ring is closed before it looks whether it is empty.
    ClosedBeforeEmpty,
    /// Closes, and wakes nobody.
    SilentClose,
}
