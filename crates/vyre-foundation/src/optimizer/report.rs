//! What the passes did, in numbers.

use super::Analysis;
use crate::ir::{Heap, Program, Stats};

macro_rules! measures {
    ($($(#[doc = $doc:literal])+ $measure:ident: $value:expr;)*) => {
        /// What is measured of a program before and after each pass. Less is better, of each.
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

            /// The measures as a list.
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
    /// Instructions that do something by themselves.
    instructions: |stats, _| stats.instructions as u64;
    /// Loads, stores and atomics.
    memory_ops: |stats, _| stats.memory_ops as u64;
    /// Accesses to atomic objects.
    atomic_ops: |stats, _| stats.atomic_ops as u64;
    /// Branches, loops and exits.
    control_flow_ops: |stats, _| stats.control_flow_ops as u64;
    /// The most values that are live at one place.
    register_pressure: |stats, _| stats.register_pressure as u64;
    /// Allocations on the heap that the program consists of.
    heap_allocations: |_, heap| heap.allocations;
    /// Their bytes.
    heap_bytes: |_, heap| heap.bytes;
}

/// What became of one execution of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was not executed: nothing had changed since it last had nothing to do.
    Skipped,
    /// It had nothing to do.
    Unchanged,
    /// It changed the program.
    Changed,
    /// It changed the program to one that costs more by the estimate, and that was undone.
    Refused {
        /// The estimate before.
        before: u64,
        /// The estimate after.
        after: u64,
    },
}

/// One execution of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Which round of the list, from 0.
    pub iteration: usize,
    /// The pass.
    pub pass: &'static str,
    /// What became of it.
    pub verdict: Verdict,
    /// Analyses it asked for.
    pub required: Vec<Analysis>,
    /// Of those, the ones that had to be computed; the others were still good.
    pub computed: Vec<Analysis>,
    /// Analyses that do not hold any more.
    pub invalidated: Vec<Analysis>,
    /// How long it took, with the analyses it asked for.
    pub runtime_ns: u64,
    /// The program before.
    pub before: Measures,
    /// The program after.
    pub after: Measures,
    /// The frequency-weighted estimate after.
    pub cost: u64,
}

impl Metric {
    /// Whether the pass was executed.
    pub fn ran(&self) -> bool {
        self.verdict != Verdict::Skipped
    }

    /// Whether the program is another one after it.
    pub fn changed(&self) -> bool {
        self.verdict == Verdict::Changed
    }

    /// The measure that went down most, by its share, and by how much; `None` if the pass reduced nothing.
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

/// What the passes did to a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every execution, in order.
    pub metrics: Vec<Metric>,
    /// Rounds of the list.
    pub iterations: usize,
    /// The pass that changed something in the last round allowed, if the passes did not come to an end.
    pub not_converged: Option<&'static str>,
    /// The frequency-weighted estimate before.
    pub cost_before: u64,
    /// The frequency-weighted estimate after.
    pub cost_after: u64,
    /// The program before.
    pub before: Measures,
    /// The program after.
    pub after: Measures,
}

impl Report {
    /// The measure that a pass reduced, in its first execution that reduced any, and by how much.
    pub fn best_reduction(&self, pass: &str) -> Option<(&'static str, u64)> {
        self.metrics.iter().filter(|metric| metric.pass == pass).find_map(Metric::best_reduction)
    }

    /// How often the program was changed.
    pub fn changes(&self) -> usize {
        self.metrics.iter().filter(|metric| metric.changed()).count()
    }
}
