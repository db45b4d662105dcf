//! The optimizer: programs that mean the same and cost less.
//!
//! ```text
//! Validated<Program> → select (which passes, and why) → schedule (in which order) → run (to a fixed point) → Validated<Program>
//!                         ↑ hints of earlier dispatches, report of an earlier compile        └→ Report
//! ```
//!
//! A [`Pass`] is a row of the one ordered list in [`passes`]: what it needs and preserves ([`Metadata`]) and a function
//! that changes a program and says whether it did. Passes keep no state, and what they know about a program comes from
//! [`Analyses`], which are computed on demand and forgotten after a change unless the pass preserves them. The
//! [runner](run), not the passes, validates, times, dumps, bisects, disables and refuses.
//!
//! # What a pass may do
//!
//! An optimized program gives the same bytes, traps and prints as the original, for every grid and all inputs, on every
//! device. It may use less fuel, and a load that races may see another of the values that it was allowed to see. All
//! operations are total, so computing what the original does not compute is never wrong, only a cost.

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

/// What the scheduler and the selection know about a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The name, by which it is selected, disabled and reported.
    pub name: &'static str,
    /// Passes that must run before it.
    pub requires: &'static [&'static str],
    /// Analyses that do not hold any more after it changed a program.
    pub invalidates: &'static [Analysis],
    /// When it runs, among passes that do not require each other.
    pub phase: Phase,
    /// What it needs to know besides the program.
    pub boundary: Boundary,
    /// Properties of the target without which it does not pay.
    pub requires_caps: &'static [Capability],
    /// Whether callers bind the optimized program as they bind the original.
    pub preserves_abi: bool,
    /// What decides whether it is worth running.
    pub family: Family,
}

/// When a pass runs, among passes that do not require each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Brings equal things into equal form.
    Canonicalization,
    /// Simplifies what single values are computed from.
    ScalarAlgebra,
    /// Changes loops.
    Loop,
    /// Changes accesses and objects.
    Memory,
    /// Merges what is computed twice, and regions.
    FusionCse,
    /// Changes barriers and atomics.
    Sync,
    /// Uses what is known only when a program is compiled for a device.
    Specialization,
    /// Removes what the others left.
    Cleanup,
    /// Changes programs over graph frontiers.
    Dataflow,
    /// Changes programs that drain a queue.
    Megakernel,
    /// Of passes that were not written here.
    Unclassified,
}

/// What a pass needs to know besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// Nothing, and callers notice nothing.
    AbiPreserving,
    /// Nothing, but callers must bind other objects afterwards.
    AbiChanging,
    /// The device.
    BackendAware,
    /// What else runs.
    RuntimeAware,
    /// What the program is for.
    DomainSpecific,
    /// Not declared.
    Unknown,
}

/// What decides whether a pass is worth running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Always.
    Scalar,
    /// Always.
    Sync,
    /// There is enough for a loop to matter.
    Loop,
    /// There is enough memory for accesses to matter.
    Memory,
    /// There is something to fuse.
    Fusion,
    /// There is enough of a dataflow program.
    Dataflow,
    /// There is enough of a megakernel.
    Megakernel,
    /// Not declared: always.
    Unknown,
}

/// A transformation of programs.
#[derive(Clone, Copy)]
pub struct Pass {
    /// What the scheduler and the selection know about it.
    pub metadata: Metadata,
    /// Whether its result may cost more than what it was given: then it is kept only if the [estimate](cost) falls.
    pub speculative: bool,
    /// Changes the program, and says whether it did.
    pub run: fn(&mut Program, &mut Analyses) -> bool,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.metadata.name)
    }
}

impl Metadata {
    /// A pass over scalars that is always worth running and changes nothing that callers see; the others are declared by
    /// what differs.
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

/// What to optimize for.
#[derive(Clone, Default)]
pub struct Request<'a> {
    /// Which passes are eligible.
    pub profile: Profile,
    /// Device that the program is optimized for.
    pub target: Target,
    /// What earlier dispatches took.
    pub hints: Option<&'a Hints>,
    /// What came out of optimizing the program before.
    pub report: Option<&'a Report>,
    /// Lengths of objects that are declared without one, as far as they are known.
    pub lengths: &'a [(MemId, u64)],
    /// How to run the passes.
    pub options: Options,
}

/// An optimized program, and how it came about.
#[derive(Clone, Debug)]
pub struct Optimized {
    /// The program.
    pub program: Validated<Program>,
    /// For every registered pass, whether it was selected and why.
    pub decisions: Vec<Decision>,
    /// What the passes did.
    pub report: Report,
}

/// Which passes run on a program, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For every registered pass, whether it was selected and why.
    pub decisions: Vec<Decision>,
    /// The selected passes.
    pub pipeline: Pipeline,
}

/// Selects passes for a program. What is good for any program is selected under every profile, and runs before and after what
/// is special to one: that has the later phase, and the list is repeated.
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
/// A pass is broken, or two never agree; see [`run`].
pub fn optimize(program: Validated<Program>, request: &Request<'_>) -> Result<Optimized, Error> {
    let Plan { decisions, pipeline } = plan(&program, request);
    let (program, report) = run(program, &pipeline, &request.options, &mut |_| {})?;
    Ok(Optimized { program, decisions, report })
}

/// What tells this optimizer from others that may make something else of a program: its version and its source. Whoever
/// keeps optimized programs keeps it with them.
pub fn fingerprint() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), env!("VYRE_SOURCE_HASH"))
}
