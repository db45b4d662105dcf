//! Trace events for [`tracing`] subscribers.
//!
//! Phases of the host are spans: open, parse, validate, optimize and each pass, compile, lower, plan, submit, wait,
//! upload and download. Without a subscriber, each costs the load of one atomic. Work of a device is reported after its
//! completion, by an event of the target [`DEVICE`] for each worker of each dispatch: `op`, `worker`, time since its
//! start (`ago_ns`) and duration (`time_ns`).

use std::time::{Duration, Instant};

use vyre_foundation::launch::{Report, WorkerSpan};

/// Target of events about the work of devices.
pub const DEVICE: &str = "vyre::device";

pub(crate) fn is_enabled() -> bool {
    tracing::enabled!(target: DEVICE, tracing::Level::INFO)
}

/// Emits events for completed dispatches. If the device does not report its workers, the dispatches are attributed to
/// one worker, in sequence.
pub(crate) fn done<'a>(dispatches: impl Iterator<Item = (&'a str, &'a Report)> + Clone) {
    let now = Instant::now();
    let unknown = |report: &Report| if report.workers.is_empty() { report.time } else { Duration::ZERO };
    let mut left: Duration = dispatches.clone().map(|(_, report)| unknown(report)).sum();
    let tell = |op: &str, worker: u32, ago: Duration, time: Duration| {
        let (ago_ns, time_ns) = (ago.as_nanos() as u64, time.as_nanos() as u64);
        tracing::info!(target: DEVICE, op, worker, ago_ns, time_ns);
    };
    for (op, report) in dispatches {
        for &WorkerSpan { worker, from, until } in &report.workers {
            tell(op, worker, now.duration_since(from), until.duration_since(from));
        }
        if report.workers.is_empty() {
            tell(op, 0, left, report.time);
            left -= report.time;
        }
    }
}
