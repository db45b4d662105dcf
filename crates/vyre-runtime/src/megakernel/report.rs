//! Reports of drains.

use std::time::Duration;

use vyre_foundation::launch::Outcome;

use super::item::WorkItem;
use super::policy::Recommendation;
use super::priority::{Accounting, count};
use super::telemetry::{Span, Telemetry};
use super::tenant::Usage;
use crate::Error;

/// Reason why an item was not executed, or not completely. Writes of its other invocations are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The op is not registered.
    UnknownOp,
    /// A handle was freed or never issued, or names the other segment than the op uses.
    UnknownHandle,
    /// A handle names memory of another tenant.
    ForeignHandle,
    /// Two handles name the same memory, the op writes it, and is not elementwise.
    Overlap,
    /// The device cannot run the op.
    Refused,
    /// An invocation exceeded its fuel.
    OutOfFuel,
    /// An invocation trapped with this code.
    Trapped(u32),
    /// The item exceeded the watchdog's time limit.
    Stuck {
        /// The worker that executed it.
        worker: u32,
    },
    /// The launch of the item did not complete.
    Unfinished(Outcome),
    /// The hits of this item alone exceed the memory or the budget.
    TooManyHits {
        /// Required bytes.
        requested: u64,
        /// Available bytes.
        available: u64,
    },
}

/// A failed item.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Sequence number of the item in the session, in the order in which items are taken from the queue.
    pub number: u64,
    /// Tenant of the item.
    pub tenant: u32,
    /// The item as it was submitted.
    pub item: WorkItem,
    /// Reason of the failure.
    pub reason: Failure,
}

/// A word reported by an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Tenant of the item.
    pub tenant: u32,
    /// The reported word.
    pub word: u32,
}

/// Report of a drain.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Items taken from the queue.
    pub items: u64,
    /// Failed items.
    pub failures: Vec<Failed>,
    /// Reported hits, in unspecified order.
    pub hits: Vec<Hit>,
    /// Reruns of reporting ops after an overflow of the hit buffer.
    pub reruns: u64,
    /// Slices that were halved because of a lack of memory.
    pub cuts: u64,
    /// Redundant items that were pruned.
    pub pruned: u64,
    /// Items executed by the interpreter kernel. An item counts once, however often it was launched.
    pub interpreted: u64,
    /// Recommendation of the policy for the last slice.
    pub recommendation: Option<Recommendation>,
    /// Number of executed items of each op.
    pub ops: Vec<(String, u64)>,
    /// Statistics of each kernel.
    pub kernels: Vec<KernelStats>,
    /// Usage by each tenant.
    pub tenants: Vec<Usage>,
    /// Requeues, promotions and ages.
    pub priority: Accounting,
    /// Measurements, if [`Config::telemetry`](super::Config::telemetry) is set.
    pub telemetry: Option<Telemetry>,
    /// Launch units saved by windows: items executed after the first of their window.
    pub fused: u64,
    /// Barrier groups.
    pub groups: u64,
    /// Items ordered by dependency counters instead of barriers.
    pub counted: u64,
    /// Launches.
    pub launches: u64,
    /// The drain was cancelled. Unexecuted items are left for the next drain.
    pub cancelled: bool,
    /// Wall time of the drain.
    pub elapsed: Duration,
    /// Device time of the launches.
    pub device: Duration,
}

impl Report {
    /// Number of failures and hits after which a drain ends with the current slice. The next drain continues.
    pub const MOST_ENTRIES: usize = 1 << 20;

    /// Adds the report of the next drain of the session. Times saturate.
    ///
    /// # Errors
    /// A counter would overflow; the report is partially added.
    pub fn add(&mut self, next: Report) -> Result<(), Error> {
        let kernels: Vec<usize> = next.kernels.iter().map(|stats| self.add_kernel(stats)).collect();
        for (name, items) in next.ops {
            match self.ops.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => count(known, items, "items of an op")?,
                None => self.ops.push((name, items)),
            }
        }
        self.tenants.resize(self.tenants.len().max(next.tenants.len()), Usage::default());
        for (usage, next) in self.tenants.iter_mut().zip(&next.tenants) {
            count(&mut usage.items, next.items, "items of a tenant")?;
            count(&mut usage.failures, next.failures, "failures of a tenant")?;
            count(&mut usage.hits, next.hits, "hits of a tenant")?;
            count(&mut usage.slices, next.slices, "slices of a tenant")?;
            usage.time = usage.time.saturating_add(next.time);
            usage.queued = next.queued;
        }
        if let Some(next) = next.telemetry {
            let telemetry = self.telemetry.get_or_insert_default();
            telemetry.latencies.merge(&next.latencies);
            count(&mut telemetry.dropped_spans, next.dropped_spans, "spans")?;
            for span in next.spans {
                telemetry.span(Span { kernel: span.kernel.and_then(|kernel| kernels.get(kernel).copied()), ..span });
            }
        }
        for (sum, more, field) in [
            (&mut self.items, next.items, "items"),
            (&mut self.reruns, next.reruns, "reruns"),
            (&mut self.cuts, next.cuts, "cuts"),
            (&mut self.pruned, next.pruned, "pruned items"),
            (&mut self.interpreted, next.interpreted, "interpreted items"),
            (&mut self.fused, next.fused, "fused items"),
            (&mut self.groups, next.groups, "groups"),
            (&mut self.counted, next.counted, "items ordered by counters"),
            (&mut self.launches, next.launches, "launches"),
        ] {
            count(sum, more, field)?;
        }
        self.failures.extend(next.failures);
        self.hits.extend(next.hits);
        self.recommendation = next.recommendation.or(self.recommendation.take());
        self.cancelled |= next.cancelled;
        self.elapsed = self.elapsed.saturating_add(next.elapsed);
        self.device = self.device.saturating_add(next.device);
        self.priority.add(&next.priority)
    }

    /// Adds statistics of a kernel, and returns its position in [`Report::kernels`].
    pub(super) fn add_kernel(&mut self, more: &KernelStats) -> usize {
        let known = self.kernels.iter().position(|stats| stats.name == more.name);
        let Some(kernel) = known else {
            self.kernels.push(more.clone());
            return self.kernels.len() - 1;
        };
        let stats = &mut self.kernels[kernel];
        stats.units = stats.units.saturating_add(more.units);
        stats.launches = stats.launches.saturating_add(more.launches);
        stats.time = stats.time.saturating_add(more.time);
        kernel
    }
}

/// Statistics of a kernel.
#[derive(Clone, Debug)]
pub struct KernelStats {
    /// Name of its op, names of the ops of its window, `interpreter`, or `counted` for the ready-queue kernel.
    pub name: String,
    /// Executed items, or windows of items.
    pub units: u64,
    /// Launches.
    pub launches: u64,
    /// Device time.
    pub time: Duration,
}

/// Result of a shutdown.
#[derive(Debug)]
pub struct Shutdown {
    /// Report of the last drain.
    pub report: Report,
    /// Error that stopped the last drain.
    pub error: Option<Error>,
    /// Accepted items that did not complete.
    pub left: Vec<WorkItem>,
}
