//! What a drain tells of its items.

use std::time::Duration;

use vyre_foundation::launch::Outcome;

use super::item::WorkItem;
use super::policy::Recommendation;
use super::priority::{Accounting, count};
use super::telemetry::{Span, Telemetry};
use super::tenant::Usage;
use crate::Error;

/// Why an item was not, or not completely, executed. Whatever its other invocations wrote stays.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// There is no such operation.
    UnknownOp,
    /// A handle names no memory, because it was freed or never given, or memory of the other segment than the operation uses.
    UnknownHandle,
    /// A handle names memory of another tenant.
    ForeignHandle,
    /// It writes memory that it uses in other elements, too.
    Overlap,
    /// The device cannot run its operation.
    Refused,
    /// An invocation took too many trips.
    OutOfFuel,
    /// An invocation trapped with this code.
    Trapped(u32),
    /// This worker of its launch was on it for too long, and was ended by the watchdog.
    Stuck {
        /// The worker.
        worker: u32,
    },
    /// The launch that it was in did not end.
    Unfinished(Outcome),
    /// Even alone it reports more than there is memory for, or than the budget allows.
    TooManyHits {
        /// Bytes that it would take.
        requested: u64,
        /// Bytes that there are.
        available: u64,
    },
}

/// An item that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Its number in the session. Items are counted in the order in which they are taken from the queue: slice by slice.
    pub number: u64,
    /// Whose it is.
    pub tenant: u32,
    /// As it was submitted.
    pub item: WorkItem,
    /// Why it failed.
    pub why: Failure,
}

/// What an operation reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Whose item did.
    pub tenant: u32,
    /// The word that it reported.
    pub word: u32,
}

/// What a drain did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Items that were taken from the queue.
    pub items: u64,
    /// Items that failed.
    pub failures: Vec<Failed>,
    /// What operations reported, in no order.
    pub hits: Vec<Hit>,
    /// How often there was too little memory for hits, so that what reports them ran again.
    pub reruns: u64,
    /// How often there was too little memory for a slice, so that its items ran in smaller ones.
    pub cuts: u64,
    /// Items that were left out because they would have changed nothing.
    pub pruned: u64,
    /// Items that were interpreted. An item counts once, however often it was launched.
    pub interpreted: u64,
    /// What the policy said of the last slice.
    pub recommendation: Option<Recommendation>,
    /// How many items of each operation were executed, alone or with others.
    pub ops: Vec<(String, u64)>,
    /// What each kernel did.
    pub kernels: Vec<Figures>,
    /// What each tenant had of it.
    pub tenants: Vec<Usage>,
    /// What is known of items that waited.
    pub priority: Accounting,
    /// What was measured, if the session measures.
    pub telemetry: Option<Telemetry>,
    /// Items that were run together with others of their window.
    pub fused: u64,
    /// Groups of items between barriers.
    pub groups: u64,
    /// Items that waited for counters instead of barriers.
    pub counted: u64,
    /// Launches.
    pub launches: u64,
    /// Whether somebody cancelled it. What was not executed is left for the next.
    pub cancelled: bool,
    /// From the first item to the end of the last.
    pub elapsed: Duration,
    /// What the launches took of it.
    pub device: Duration,
}

impl Report {
    /// When so many failures and hits are listed, a drain ends after the slice that it is at, and the next one goes on.
    pub const MOST_ENTRIES: usize = 1 << 20;

    /// Adds what the next drain of the session did. Times saturate.
    ///
    /// # Errors
    /// There is too much to be counted; what was added by then stays.
    pub fn add(&mut self, next: Report) -> Result<(), Error> {
        let kernels: Vec<usize> = next.kernels.iter().map(|figures| self.figures(figures)).collect();
        for (name, items) in next.ops {
            match self.ops.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => count(known, items, "items of an operation")?,
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
            (&mut self.pruned, next.pruned, "items that were left out"),
            (&mut self.interpreted, next.interpreted, "items that were interpreted"),
            (&mut self.fused, next.fused, "items of windows"),
            (&mut self.groups, next.groups, "groups"),
            (&mut self.counted, next.counted, "items that waited for counters"),
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

    /// Adds what a kernel did, and says where it stands in the list.
    pub(super) fn figures(&mut self, more: &Figures) -> usize {
        let known = self.kernels.iter().position(|figures| figures.name == more.name);
        let Some(kernel) = known else {
            self.kernels.push(more.clone());
            return self.kernels.len() - 1;
        };
        let figures = &mut self.kernels[kernel];
        figures.units = figures.units.saturating_add(more.units);
        figures.launches = figures.launches.saturating_add(more.launches);
        figures.time = figures.time.saturating_add(more.time);
        kernel
    }
}

/// What a kernel did.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The name of its operation, or the names of those of its window; `interpreter` runs all.
    pub name: String,
    /// Items, or windows of items.
    pub units: u64,
    /// Launches.
    pub launches: u64,
    /// What they took.
    pub time: Duration,
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct Shutdown {
    /// What was done last.
    pub report: Report,
    /// What kept it from doing the rest.
    pub error: Option<Error>,
    /// Items that were accepted and are not known to be done.
    pub left: Vec<WorkItem>,
}
