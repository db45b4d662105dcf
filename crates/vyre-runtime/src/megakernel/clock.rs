//! Time source of a session.

use std::fmt::Debug;
use std::time::Instant;

/// Time source of a session's decisions: shares and time quotas of tenants, autotuning, the choice between barriers and counters, and the
/// watchdog. [`Monotonic`] is the default; a simulation or a replay can supply its own.
///
/// [Telemetry](super::Telemetry) always uses real time.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time. Negative differences count as zero.
    fn now(&self) -> Instant;
}

/// The monotonic clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Instant {
        Instant::now()
    }
}
