//! What the passes did, in numbers.

use super::Analysis;
use crate::ir::Program;

/// What is measured of a program before and after each pass. Less is better, of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Instructions, with terminators and regions.
    pub nodes: u64,
    /// Bytes of the objects whose length is known before dispatch.
    pub static_storage_bytes: u64,
    /// Instructions that do something by themselves.
    pub instructions: u64,
    /// Loads, stores and atomics.
    pub memory_ops: u64,
    /// Accesses to atomic objects.
    pub atomic_ops: u64,
    /// Branches, loops and exits.
    pub control_flow_ops: u64,
    /// The most values that are live at one place.
    pub register_pressure: u64,
    /// Allocations on the heap that the program consists of.
    pub heap_allocations: u64,
    /// Their bytes.
    pub heap_bytes: u64,
}

impl Measures {
    /// Names of the measures, in the order of [`values`](Measures::values).
    pub const NAMES: [&str; 9] = [
        "nodes",
        "static_storage_bytes",
        "instructions",
        "memory_ops",
        "atomic_ops",
        "control_flow_ops",
        "register_pressure",
        "heap_allocations",
        "heap_bytes",
    ];

    /// Measures a program.
    pub fn of(program: &Program) -> Measures {
        let stats = program.stats();
        let heap = program.heap();
        Measures {
            nodes: stats.nodes as u64,
            static_storage_bytes: stats.static_storage_bytes,
            instructions: stats.instructions as u64,
            memory_ops: stats.memory_ops as u64,
            atomic_ops: stats.atomic_ops as u64,
            control_flow_ops: stats.control_flow_ops as u64,
            register_pressure: stats.register_pressure as u64,
            heap_allocations: heap.allocations,
            heap_bytes: heap.bytes,
        }
    }

    /// The measures as a list.
    pub fn values(&self) -> [u64; 9] {
        [
            self.nodes,
            self.static_storage_bytes,
            self.instructions,
            self.memory_ops,
            self.atomic_ops,
            self.control_flow_ops,
            self.register_pressure,
            self.heap_allocations,
            self.heap_bytes,
        ]
    }
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
    /// Whether a pass reduced some cost in any of its executions.
    pub fn reduced_cost(&self, pass: &str) -> bool {
        self.metrics.iter().any(|metric| metric.pass == pass && metric.best_reduction().is_some())
    }

    /// How often the program was changed.
    pub fn changes(&self) -> usize {
        self.metrics.iter().filter(|metric| metric.changed()).count()
    }
}
