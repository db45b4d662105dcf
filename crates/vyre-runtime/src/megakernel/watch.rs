//! Watchdog: polls the item states that workers publish while they run, and cancels launches that do not terminate.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use vyre_driver::{Buffer, Device, Error, Submission};
use vyre_foundation::ir::Element;
use vyre_foundation::launch::Report;

use super::clock::Clock;
use super::kernel::State;

/// Minimum number of polls that see an item running before it counts as stuck. While the machine is suspended or the polling thread is not
/// scheduled, time passes but the item may not run.
const MIN_POLLS: u32 = 8;

/// An item that was seen running.
struct Running {
    since: Instant,
    polls: u32,
}

pub(super) struct Watch {
    /// The stop flag, and the state of each item of the slice.
    pub(super) states: Buffer,
    time_limit: Duration,
}

/// Result of a watched submission.
pub(super) struct Ended {
    /// Reports of the launches; empty if they were cancelled.
    pub(super) reports: Vec<Report>,
    /// The stop flag was raised, so some items may be unexecuted.
    pub(super) early: bool,
    /// Positions of items that exceeded the time limit.
    pub(super) slow: Vec<u32>,
}

impl Watch {
    /// Creates a watchdog for slices of up to `items` items, with a time limit of `time_limit` for each.
    ///
    /// # Errors
    /// The host cannot read the memory of the device while launches run.
    pub(super) fn new(device: &Device, items: usize, time_limit: Duration) -> Result<Watch, Error> {
        let states = device.allocate(Element::U32, 1 + items as u64)?;
        match states.peek(0) {
            Some(_) => Ok(Watch { states, time_limit }),
            None => Err(Error::Unsupported {
                needed: "a watchdog, which reads device memory while launches run".into(),
                available: "device memory that only commands can access".into(),
            }),
        }
    }

    /// Clears the states of the previous slice.
    pub(super) fn reset(&self) -> Result<(), Error> {
        self.states.write(&vec![0; 4 * self.states.len() as usize])
    }

    /// Returns the state of the item at a position of the slice.
    pub(super) fn state(&self, position: u32) -> u32 {
        self.states.peek(1 + position).unwrap_or(0)
    }

    /// Waits for launches of the items at `positions`. When an item exceeds the time limit or the drain is cancelled, raises the stop flag,
    /// which workers poll between items. Cancels the submission once only items beyond the time limit are still running.
    pub(super) fn wait(
        &self,
        mut submission: Submission,
        positions: &[u32],
        is_cancelled: &AtomicBool,
        clock: &dyn Clock,
    ) -> Result<Ended, Error> {
        let mut early = false;
        let mut slow = Vec::new();
        let mut running: FxHashMap<u32, Running> = FxHashMap::default();
        let reports = loop {
            match submission.wait_timeout((self.time_limit / MIN_POLLS).min(Duration::from_millis(50))) {
                Some(Err(Error::Cancelled)) => break Vec::new(),
                Some(reports) => break reports?,
                None => {}
            }
            let now = clock.now();
            for &position in positions {
                match self.state(position) {
                    0 | State::DONE => _ = running.remove(&position),
                    _ => running.entry(position).or_insert(Running { since: now, polls: 0 }).polls += 1,
                }
            }
            let is_slow = |item: &Running| {
                item.polls >= MIN_POLLS && now.saturating_duration_since(item.since) >= self.time_limit
            };
            // `early` was set in an earlier poll, so workers that took an item before the flag have published it.
            if early && !running.is_empty() && running.values().all(is_slow) {
                submission.cancel();
            }
            for (&position, _) in running.iter().filter(|(_, item)| is_slow(item)) {
                if !slow.contains(&position) {
                    slow.push(position);
                }
            }
            if !slow.is_empty() || is_cancelled.load(Relaxed) {
                early = true;
                self.states.poke(0, 1);
            }
        };
        self.states.poke(0, 0);
        Ok(Ended { reports, early, slow })
    }
}
