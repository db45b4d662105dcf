//! The watchdog: looks at what workers note while they run, and ends launches that do not end by themselves.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use vyre_driver::{Buffer, Device, Error, Submission};
use vyre_foundation::ir::Element;
use vyre_foundation::launch::Report;

use super::clock::Clock;
use super::kernel::State;

/// Polls that must see an item running before it counts as stuck. When the machine is suspended, or the polling thread is not scheduled, time
/// passes without polls, and the item that is seen next has not had its time.
const LOOKS: u32 = 8;

/// An item that polls have seen running.
struct Running {
    since: Instant,
    looks: u32,
}

pub(super) struct Watch {
    /// A word by which workers are told to take no more items, and one for each item of the slice.
    pub(super) states: Buffer,
    patience: Duration,
}

/// How launches ended that were watched.
pub(super) struct Ended {
    /// What they tell of themselves; nothing if they had to be cancelled.
    pub(super) reports: Vec<Report>,
    /// Whether workers were told to take no more items, so that some may be left.
    pub(super) early: bool,
    /// Positions of items that took too long.
    pub(super) slow: Vec<u32>,
}

impl Watch {
    /// Looks after slices of this many items, each of which may take this long.
    ///
    /// # Errors
    /// Nobody can look at the memory of the device while it is in use.
    pub(super) fn new(device: &Device, items: usize, patience: Duration) -> Result<Watch, Error> {
        let states = device.allocate(Element::U32, 1 + items as u64)?;
        match states.peek(0) {
            Some(_) => Ok(Watch { states, patience }),
            None => Err(Error::Unsupported {
                needed: "memory that a watchdog can look at".into(),
                available: "memory that only commands reach".into(),
            }),
        }
    }

    /// Forgets what was noted of the slice before.
    pub(super) fn reset(&self) -> Result<(), Error> {
        self.states.write(&vec![0; 4 * self.states.len() as usize])
    }

    /// What was noted of the item at a position of the slice.
    pub(super) fn state(&self, position: u32) -> u32 {
        self.states.peek(1 + position).unwrap_or(0)
    }

    /// Waits for launches of the items at these positions. When one of them takes too long, or when somebody wants it, workers take no
    /// more items, and those who do not come to the end of theirs are cancelled when nobody else is on any.
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
            match submission.wait_timeout((self.patience / LOOKS).min(Duration::from_millis(50))) {
                Some(Err(Error::Cancelled)) => break Vec::new(),
                Some(reports) => break reports?,
                None => {}
            }
            let now = clock.now();
            for &position in positions {
                match self.state(position) {
                    0 | State::DONE => _ = running.remove(&position),
                    _ => running.entry(position).or_insert(Running { since: now, looks: 0 }).looks += 1,
                }
            }
            let is_slow =
                |item: &Running| item.looks >= LOOKS && now.saturating_duration_since(item.since) >= self.patience;
            // Who had taken an item before it was said is on it now.
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
