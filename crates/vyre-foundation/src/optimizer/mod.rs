//! The optimizer: semantics-preserving passes, their selection, and the pass manager.
//!
//! ```text
//! Validated<Program> → select (which passes, and why) → schedule (in which order) → run (to a fixed point) → Validated<Program>
//!                         ↑ hints of earlier dispatches, report of an earlier compile        └→ Report
//! ```
//!
//! A [`Pass`] is an entry of the ordered list in [`passes`]: its requirements and properties ([`Metadata`]), and a
//! function that transforms a program and returns whether it changed. Passes are stateless. They get [`Analyses`],
//! which are computed on demand and invalidated by changes. The [pass manager](run) validates, times, dumps, bisects,
//! disables, and undoes passes.
//!
//! # Contract of a pass
//!
//! An optimized program produces the same bytes, traps and prints as the original, for every grid and all inputs, on
//! every device. It may use less fuel, and a racing load may return another of the values that it was allowed to
//! return. All operations are total, so speculation is always sound and only a matter of cost.

pub mod cost;
pub(crate) mod fold_oob_accesses;
mod hints;
pub mod passes;
mod pipeline;
mod registry;
mod report;
mod rewrite;
pub mod rules;
mod run;
mod select;
mod target;

pub use crate::analysis::{Analyses, Analysis};
pub use hints::{Hints, Record};
pub use pipeline::Pipeline;
pub use registry::Registry;
pub use report::{Measures, Metric, Report, Verdict};
pub use run::{Dump, Options, Snapshot, run};
pub use select::{Decision, Measure, Profile, Reason, Shape, Threshold, select};
pub use target::{Capability, Target};

use crate::ir::{MemId, Program};
use crate::{Error, Validated};

/// Properties of a pass, for scheduling and selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Name in selections, options and reports.
    pub name: &'static str,
    /// Passes that must run before this one.
    pub requires: &'static [&'static str],
    /// Analyses that a change by this pass invalidates.
    pub invalidates: &'static [Analysis],
    /// Phase, which orders passes that do not require each other.
    pub phase: Phase,
    /// Inputs besides the program.
    pub boundary: Boundary,
    /// Capabilities of the target without which the pass does not pay.
    pub requires_caps: &'static [Capability],
    /// Whether the interface (objects and constants) of the program stays the same.
    pub preserves_abi: bool,
    /// Criterion of its selection.
    pub family: Family,
}

/// Phase, which orders passes that do not require each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Canonical forms.
    Canonicalization,
    /// Simplification of scalar expressions.
    ScalarAlgebra,
    /// Loop transformations.
    Loop,
    /// Memory accesses and objects.
    Memory,
    /// Common subexpressions and region fusion.
    FusionCse,
    /// Barriers and atomics.
    Sync,
    /// Constants known when a program is compiled for a device.
    Specialization,
    /// Dead code and objects.
    Cleanup,
    /// Programs over graph frontiers.
    Dataflow,
    /// Interpreter kernels of megakernels.
    Megakernel,
    /// Passes outside the standard list.
    Unclassified,
}

/// Inputs of a pass besides the program, and whether its interface changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// No inputs; the interface of the program is preserved.
    AbiPreserving,
    /// No inputs; the interface of the program changes.
    AbiChanging,
    /// Properties of the device.
    BackendAware,
    /// State of the runtime.
    RuntimeAware,
    /// Purpose of the program.
    DomainSpecific,
    /// Not declared.
    Unknown,
}

/// Criterion by which a pass is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Scalar passes: always selected.
    Scalar,
    /// Barriers and atomics: always selected.
    Sync,
    /// Loop passes: selected by the number of instructions.
    Loop,
    /// Memory passes: selected by the known bytes of the objects.
    Memory,
    /// Fusion passes: selected by the number of top-level regions.
    Fusion,
    /// Dataflow passes: selected by the number of instructions.
    Dataflow,
    /// Megakernel passes: selected by the number of instructions.
    Megakernel,
    /// Not declared; always selected.
    Unknown,
}

/// A transformation of programs.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Properties for scheduling and selection.
    pub metadata: Metadata,
    /// Whether the result may cost more than the input. A speculative result is kept only if the cost [estimate](cost)
    /// does not rise.
    pub speculative: bool,
    /// Transforms the program. Returns true if it changed.
    pub run: fn(&mut Program, &mut Analyses) -> bool,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.metadata.name)
    }
}

impl Metadata {
    /// Defaults: always selected, preserves the interface, invalidates all analyses, requires nothing.
    pub const fn new(name: &'static str, phase: Phase, family: Family) -> Metadata {
        Metadata {
            name,
            requires: &[],
            invalidates: &Analysis::ALL,
            phase,
            boundary: Boundary::AbiPreserving,
            requires_caps: &[],
            preserves_abi: true,
            family,
        }
    }
}

/// Inputs of pass selection and options of the run.
#[derive(Clone, Default)]
pub struct Request<'a> {
    /// Profile, which decides the eligible passes.
    pub profile: Profile,
    /// Device that the program is optimized for.
    pub target: Target,
    /// Telemetry of earlier dispatches.
    pub hints: Option<&'a Hints>,
    /// Report of an earlier optimization of the program.
    pub report: Option<&'a Report>,
    /// Known lengths of objects that are declared without one.
    pub lengths: &'a [(MemId, u64)],
    /// Options of the pass manager.
    pub options: Options,
}

/// Optimized program, with decisions and report.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The program.
    pub program: Validated<Program>,
    /// Decision for every registered pass.
    pub decisions: Vec<Decision>,
    /// Executions of passes.
    pub report: Report,
}

/// Selected passes, with the reasons.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decision for every registered pass.
    pub decisions: Vec<Decision>,
    /// The selected passes.
    pub pipeline: Pipeline,
}

/// Selects passes for a program. Passes of the release profile are selected under every profile. They run before the
/// passes of a special profile, which have a later phase, and again after them, because the list is repeated.
pub fn plan(program: &Validated<Program>, request: &Request<'_>) -> Plan {
    let registry = Registry::standard();
    let shape = Shape::of(program, request.lengths);
    let under = |profile| select(profile, request.target, &registry.metadata(), &shape, request.hints, request.report);
    let (mut decisions, general) = (under(request.profile), under(Profile::Release));
    for (decision, general) in decisions.iter_mut().zip(general) {
        if general.reason != Reason::ProfileRejected {
            *decision = general;
        }
    }
    let pipeline = Pipeline { passes: registry.schedule(&decisions), to_fixed_point: true };
    Plan { decisions, pipeline }
}

/// Selects passes for a program and runs them.
///
/// # Errors
/// A pass produced an invalid program, or the passes do not converge; see [`run`].
pub fn optimize(program: Validated<Program>, request: &Request<'_>) -> Result<Optimized, Error> {
    let Plan { decisions, pipeline } = plan(&program, request);
    let (program, report) = run(program, &pipeline, &request.options, &mut |_| {})?;
    Ok(Optimized { program, decisions, report })
}

/// Identifies the optimizer by its version and a hash of its source. Caches of optimized programs use it as part of the
/// key.
pub fn fingerprint() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), env!("VYRE_SOURCE_HASH"))
}
