//! Reports of the pass manager: measures, executions and their outcomes.

use super::Analysis;
use crate::ir::{Heap, Program, Stats};

macro_rules! measures {
    ($($(#[doc = $doc:literal])+ $measure:ident: $value:expr;)*) => {
        /// Size measures of a program. Lower is better.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Measures { $( $(#[doc = $doc])+ pub $measure: u64, )* }

        impl Measures {
            /// Names of the measures, in the order of [`values`](Measures::values).
            pub const NAMES: [&str; 9] = [$(stringify!($measure)),*];

            /// Measures a program.
            pub fn of(program: &Program) -> Measures {
                let (stats, heap) = (program.stats(), program.heap());
                $( let $measure: fn(&Stats, &Heap) -> u64 = $value; )*
                Measures { $($measure: $measure(&stats, &heap)),* }
            }

            /// The measures as an array.
            pub fn values(&self) -> [u64; 9] {
                [$(self.$measure),*]
            }
        }
    };
}
measures! {
    /// Instructions, with terminators and regions.
    nodes: |stats, _| stats.nodes as u64;
    /// Bytes of the objects whose length is known before dispatch.
    static_storage_bytes: |stats, _| stats.static_storage_bytes;
    /// Instructions other than terminators and regions.
    instructions: |stats, _| stats.instructions as u64;
    /// Loads, stores and atomics.
    memory_ops: |stats, _| stats.memory_ops as u64;
    /// Accesses to atomic objects.
    atomic_ops: |stats, _| stats.atomic_ops as u64;
    /// Branches, loops and terminators.
    control_flow_ops: |stats, _| stats.control_flow_ops as u64;
    /// Maximum number of values that are live at one point.
    register_pressure: |stats, _| stats.register_pressure as u64;
    /// Heap allocations of the program.
    heap_allocations: |_, heap| heap.allocations;
    /// Bytes of those allocations.
    heap_bytes: |_, heap| heap.bytes;
}

/// Outcome of one execution of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Skipped: the program did not change since its last execution without effect.
    Skipped,
    /// No change.
    Unchanged,
    /// The program changed.
    Changed,
    /// Undone: the estimated cost rose.
    Refused {
        /// Estimated cost before.
        before: u64,
        /// Estimated cost after.
        after: u64,
    },
}

/// One execution of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Round of the pipeline, from 0.
    pub iteration: usize,
    /// The pass.
    pub pass: &'static str,
    /// Outcome.
    pub verdict: Verdict,
    /// Requested analyses.
    pub required: Vec<Analysis>,
    /// Requested analyses that were not cached.
    pub computed: Vec<Analysis>,
    /// Invalidated analyses.
    pub invalidated: Vec<Analysis>,
    /// Duration in nanoseconds, including the requested analyses.
    pub runtime_ns: u64,
    /// Measures of the program before.
    pub before: Measures,
    /// Measures of the program after.
    pub after: Measures,
    /// Estimated cost after.
    pub cost: u64,
}

impl Metric {
    /// Returns true if the pass was executed.
    pub fn ran(&self) -> bool {
        self.verdict != Verdict::Skipped
    }

    /// Returns true if the program changed.
    pub fn changed(&self) -> bool {
        self.verdict == Verdict::Changed
    }

    /// The measure with the largest relative reduction, and its absolute reduction; `None` if no measure fell.
    pub fn best_reduction(&self) -> Option<(&'static str, u64)> {
        if !self.changed() {
            return None;
        }
        let measures = Measures::NAMES.into_iter().zip(self.before.values()).zip(self.after.values());
        let reduced = measures.filter(|((_, before), after)| after < before);
        let best =
            reduced.max_by_key(|((_, before), after)| (before - after) as u128 * 1_000_000 / u128::from(*before));
        best.map(|((name, before), after)| (name, before - after))
    }
}

/// Report of one run of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Executions of passes, in order.
    pub metrics: Vec<Metric>,
    /// Rounds of the pipeline.
    pub iterations: usize,
    /// The last pass that changed the program, if the limit of rounds was reached.
    pub not_converged: Option<&'static str>,
    /// Estimated cost before.
    pub cost_before: u64,
    /// Estimated cost after.
    pub cost_after: u64,
    /// Measures before.
    pub before: Measures,
    /// Measures after.
    pub after: Measures,
}

impl Report {
    /// The largest relative reduction in the first execution of a pass that reduced any measure.
    pub fn best_reduction(&self, pass: &str) -> Option<(&'static str, u64)> {
        self.metrics.iter().filter(|metric| metric.pass == pass).find_map(Metric::best_reduction)
    }

    /// Number of changes.
    pub fn changes(&self) -> usize {
        self.metrics.iter().filter(|metric| metric.changed()).count()
    }
}
