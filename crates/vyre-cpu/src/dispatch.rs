//! One dispatch: its arguments, and the limits and results that its workers share.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{Literal, MemId, Span};
use vyre_foundation::launch::{Limits, Outcome, Report, TraceLine, WorkerSpan};

use crate::memory::View;

/// Arguments of a dispatch.
pub(crate) struct Launch<'a> {
    pub(crate) groups: [u32; 3],
    /// Storage objects; `None` for the others.
    pub(crate) storage: SecondaryMap<MemId, Option<View>>,
    /// Uniforms.
    pub(crate) scalars: SecondaryMap<MemId, u64>,
    pub(crate) limits: Limits,
    pub(crate) cancelled: &'a AtomicBool,
}

// SAFETY: views point to memory that threads share, as `memory::Block` describes.
unsafe impl Sync for Launch<'_> {}

/// Execution times of workers.
pub(crate) type Timings = Mutex<Vec<WorkerSpan>>;

/// The dispatch is abandoned; the reason is in the [`Account`].
pub(crate) struct Stopped;

/// Fuel, deadline, trace and outcome of a dispatch, shared by its workers.
pub(crate) struct Account<'a> {
    limits: Limits,
    cancelled: &'a AtomicBool,
    start: Instant,
    fuel: AtomicI64,
    /// Set when a worker exceeds a limit or panics: all workers stop.
    stopped: AtomicBool,
    stop: Mutex<Option<Outcome>>,
    lines: AtomicUsize,
    dropped_lines: AtomicU64,
    trace: Mutex<Vec<TraceLine>>,
    trap: Mutex<Option<Outcome>>,
    /// Spans of the workers, if they are measured.
    pub(crate) worker_spans: Option<Timings>,
}

impl<'a> Account<'a> {
    pub(crate) fn new(launch: &Launch<'a>) -> Account<'a> {
        Account {
            limits: launch.limits,
            cancelled: launch.cancelled,
            start: Instant::now(),
            fuel: AtomicI64::new(i64::try_from(launch.limits.fuel).unwrap_or(i64::MAX)),
            stopped: AtomicBool::new(false),
            stop: Mutex::new(None),
            lines: AtomicUsize::new(0),
            dropped_lines: AtomicU64::new(0),
            trace: Mutex::new(Vec::new()),
            trap: Mutex::new(None),
            worker_spans: launch.limits.times_workers.then(Mutex::default),
        }
    }

    fn stop(&self, outcome: Outcome) -> Stopped {
        lock(&self.stop).get_or_insert(outcome);
        self.stopped.store(true, Relaxed);
        Stopped
    }

    /// Polls the deadline, the cancellation flag, and the stop flag.
    pub(crate) fn check(&self, place: Option<Span>) -> Result<(), Stopped> {
        if self.stopped.load(Relaxed) || self.cancelled.load(Relaxed) {
            return Err(Stopped);
        }
        match self.limits.deadline {
            Some(limit) if self.start.elapsed() > limit => {
                Err(self.stop(Outcome::DeadlinePassed { span: place.unwrap_or_default() }))
            }
            _ => Ok(()),
        }
    }

    /// Consumes fuel for loop trips.
    pub(crate) fn charge(&self, trips: u64, span: Span) -> Result<(), Stopped> {
        let trips = i64::try_from(trips).unwrap_or(i64::MAX);
        if trips > 0 && self.fuel.fetch_sub(trips, Relaxed) < trips {
            return Err(self.stop(Outcome::OutOfFuel { span }));
        }
        Ok(())
    }

    /// Adds a line to the trace, or counts it as dropped.
    pub(crate) fn print(&self, invocation: u32, format: &str, literals: impl Iterator<Item = Literal>) {
        if self.lines.fetch_add(1, Relaxed) >= self.limits.trace_capacity {
            self.dropped_lines.fetch_add(1, Relaxed);
            return;
        }
        lock(&self.trace).push(TraceLine::new(invocation, format, literals));
    }

    /// Records a trap of `trapped` invocations, the lowest of which is `invocation`.
    pub(crate) fn trap(&self, invocation: u32, code: u32, span: Span, trapped: u64) {
        let mut trap = lock(&self.trap);
        let (earlier, others) = match &*trap {
            Some(Outcome::Trapped { invocation, count, .. }) => (*invocation, *count),
            _ => (u32::MAX, 0),
        };
        let count = others + trapped;
        if invocation < earlier || others == 0 {
            *trap = Some(Outcome::Trapped { code, invocation, span, count });
        } else if let Some(Outcome::Trapped { count: total, .. }) = &mut *trap {
            *total = count;
        }
    }

    /// Runs a part of the dispatch. If it panics, the other workers stop, too: their workgroups may wait for workgroups
    /// that are not executed.
    pub(crate) fn stopping_on_panic(&self, part: impl FnOnce()) {
        struct Stop<'s>(&'s AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let stop = Stop(&self.stopped);
        part();
        std::mem::forget(stop);
    }

    pub(crate) fn report(self) -> Report {
        let mut trace = into_inner(self.trace);
        // A stable sort keeps the order of each invocation's lines: one worker prints them all.
        trace.sort_by_key(|line| line.invocation);
        let outcome = into_inner(self.stop).or(into_inner(self.trap)).unwrap_or(Outcome::Completed);
        let (dropped_lines, time) = (self.dropped_lines.into_inner(), self.start.elapsed());
        let workers = self.worker_spans.map(into_inner).unwrap_or_default();
        Report { outcome, trace, dropped_lines, workers, ..Report::completed(time) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
