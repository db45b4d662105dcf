//! Pass selection: decides for each pass whether it runs, with a reason.
//!
//! Cheap normalizing passes always run. Expensive families run if the size of the program or the telemetry of earlier
//! dispatches justifies them. Hints and reports change priorities only, never the meaning of a program.

use std::fmt;
use std::time::Duration;

use super::registry::position_of;
use super::{Boundary, Capability, Family, Hints, Metadata, Phase, Report, Target};
use crate::ir::{Control, MemId, Op, Program};

/// Profile: the set of eligible passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Passes for any program on any device.
    #[default]
    Release,
    /// Passes for graph frontiers.
    Dataflow,
    /// Passes for the interpreter kernels of megakernels.
    Megakernel,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 3] = [Profile::Release, Profile::Dataflow, Profile::Megakernel];

    /// Name in commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dataflow => "dataflow",
            Profile::Megakernel => "megakernel",
        }
    }

    /// Returns true if a pass is eligible.
    pub fn accepts(self, pass: &Metadata) -> bool {
        let class_and_phase = match self {
            Profile::Release => {
                pass.boundary == Boundary::AbiPreserving
                    && !matches!(pass.phase, Phase::Dataflow | Phase::Megakernel | Phase::Unclassified)
            }
            Profile::Dataflow => {
                matches!(pass.boundary, Boundary::AbiPreserving | Boundary::DomainSpecific)
                    && pass.phase == Phase::Dataflow
            }
            Profile::Megakernel => {
                matches!(pass.boundary, Boundary::AbiPreserving | Boundary::RuntimeAware)
                    && pass.phase == Phase::Megakernel
            }
        };
        pass.preserves_abi && class_and_phase
    }
}

/// Reason for selecting or rejecting a pass: the first that applies, in this order, but requirements are checked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Rejected: the profile does not accept the pass or one that it requires.
    ProfileRejected,
    /// Rejected: the target lacks a capability that the pass, or one that it requires, needs.
    TargetRejected,
    /// Selected: dispatches of the program are hot.
    HotPathTelemetry,
    /// Selected: the pass reduced a measure in an earlier optimization.
    PassCostReport,
    /// Selected: the family always runs.
    AlwaysOn,
    /// Selected: the measure of its family reaches the threshold.
    ProgramShape,
    /// Not selected: the measure of its family is below the threshold.
    BelowThreshold,
    /// Selected: a selected pass requires it.
    RequiredDependency,
}

impl Reason {
    /// Returns true if telemetry and other passes cannot select the pass.
    const fn is_rejection(self) -> bool {
        matches!(self, Reason::ProfileRejected | Reason::TargetRejected)
    }

    /// Priority of a selection.
    pub const fn priority(self) -> u32 {
        match self {
            Reason::HotPathTelemetry => 500,
            Reason::PassCostReport => 400,
            Reason::ProgramShape => 300,
            Reason::AlwaysOn => 200,
            Reason::RequiredDependency => 100,
            Reason::ProfileRejected | Reason::TargetRejected | Reason::BelowThreshold => 0,
        }
    }

    /// Short text without values; [`Decision::describe`] has them.
    pub const fn describe(self) -> &'static str {
        match self {
            Reason::ProfileRejected => "not in this profile",
            Reason::TargetRejected => "not for this device",
            Reason::HotPathTelemetry => "hot program",
            Reason::PassCostReport => "reduced the cost before",
            Reason::AlwaysOn => "always on",
            Reason::ProgramShape => "above its threshold",
            Reason::BelowThreshold => "below its threshold",
            Reason::RequiredDependency => "required by another pass",
        }
    }
}

/// Measure that selects a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Instructions, nested ones included.
    Nodes,
    /// Bytes of the objects whose length is known.
    Bytes,
    /// Top-level regions of the body.
    Regions,
    /// Mean time of the recorded dispatches, in nanoseconds.
    MeanTime,
    /// Reduction of this measure by the pass in an earlier optimization.
    Reduction(&'static str),
}

/// Comparison of a measure with the least value that selects a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// The measure.
    pub measure: Measure,
    /// Measured value.
    pub found: u64,
    /// Least value that selects a pass.
    pub least: u64,
}

impl Threshold {
    /// Returns true if the measured value reaches the least value.
    pub const fn is_reached(self) -> bool {
        self.found >= self.least
    }
}

impl fmt::Display for Threshold {
    /// `61 nodes ≥ 12`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Threshold { measure, found, least } = *self;
        let relation = if self.is_reached() { "≥" } else { "<" };
        match measure {
            Measure::Nodes => write!(f, "{found} nodes {relation} {least}"),
            Measure::Regions => write!(f, "{found} top-level regions {relation} {least}"),
            Measure::Bytes => {
                let action = if self.is_reached() { "" } else { "; bind lengths to let it run" };
                write!(f, "{found} B known {relation} {} KiB{action}", least >> 10)
            }
            Measure::MeanTime => {
                let (found, least) = (Duration::from_nanos(found), Duration::from_nanos(least));
                write!(f, "mean dispatch time {found:.1?} {relation} {least:?}")
            }
            Measure::Reduction(name) => {
                write!(f, "{} fell by {found} {relation} {least} in the previous run", name.replace('_', " "))
            }
        }
    }
}

/// Decision about one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The pass.
    pub metadata: Metadata,
    /// Whether the pass runs.
    pub selected: bool,
    /// Reason for the decision.
    pub reason: Reason,
    /// The other pass in the reason: a rejected requirement, or the pass that requires this one.
    pub because_of: Option<&'static str>,
    /// Threshold that decided.
    pub threshold: Option<Threshold>,
    /// Capability that the target lacks, if the reason is [`Reason::TargetRejected`].
    pub missing: Option<Capability>,
    /// Priority of the reason.
    pub priority: u32,
}

impl Decision {
    /// The reason as text, with its values.
    pub fn describe(&self) -> String {
        let Decision { reason, because_of, threshold, missing, .. } = *self;
        match (reason, because_of, threshold, missing) {
            (Reason::RequiredDependency, Some(pass), ..) => format!("required by {pass}"),
            (Reason::ProfileRejected, Some(pass), ..) => format!("requires {pass}, which is not in this profile"),
            (Reason::TargetRejected, Some(pass), _, Some(missing)) => format!("requires {pass}: {missing}"),
            (Reason::TargetRejected, None, _, Some(missing)) => missing.to_string(),
            (_, _, Some(threshold), _) => threshold.to_string(),
            (reason, ..) => reason.describe().into(),
        }
    }
}

/// Properties of a program that selection depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Instructions, nested ones included.
    pub nodes: usize,
    /// Total bytes of all objects.
    pub peak_device_bytes: u64,
    /// Top-level regions of the body.
    pub top_level_regions: usize,
    /// Operation under which dispatches are recorded.
    pub entry_op: Option<String>,
}

impl Shape {
    /// Measures a program; objects of unknown length count as empty.
    pub fn of(program: &Program, lengths: &[(MemId, u64)]) -> Shape {
        let mut shape = Shape { entry_op: program.entry_op().map(str::to_owned), ..Shape::default() };
        program.walk(|inst, depth| {
            shape.nodes += 1;
            shape.top_level_regions +=
                usize::from(depth == 0 && matches!(program.inst(inst).op, Op::Control(Control::Region(_))));
        });
        let length = |object| lengths.iter().find(|(known, _)| *known == object).map(|(_, length)| *length);
        shape.peak_device_bytes = program.estimate_peak_device_bytes(length);
        shape
    }

    /// Threshold of a family; `None` if it is always selected.
    fn threshold(&self, family: Family) -> Option<Threshold> {
        let nodes = |least| Some(Threshold { measure: Measure::Nodes, found: self.nodes as u64, least });
        match family {
            Family::Scalar | Family::Sync | Family::Unknown => None,
            Family::Loop => nodes(12),
            Family::Memory => {
                Some(Threshold { measure: Measure::Bytes, found: self.peak_device_bytes, least: 16 << 10 })
            }
            Family::Fusion => {
                Some(Threshold { measure: Measure::Regions, found: self.top_level_regions as u64, least: 2 })
            }
            Family::Dataflow => nodes(64),
            Family::Megakernel => nodes(512),
        }
    }
}

/// Decides about each pass, in list order.
pub fn select(
    profile: Profile,
    target: Target,
    passes: &[Metadata],
    shape: &Shape,
    hints: Option<&Hints>,
    report: Option<&Report>,
) -> Vec<Decision> {
    let heat = shape.entry_op.as_deref().zip(hints).and_then(|(op, hints)| {
        let found = hints.get(op)?.mean_ns();
        Some(Threshold { measure: Measure::MeanTime, found, least: hints.hot_ns() }).filter(|heat| heat.is_reached())
    });
    let mut decisions: Vec<Decision> = passes
        .iter()
        .map(|&metadata| {
            let reduction = report
                .and_then(|report| report.best_reduction(metadata.name))
                .map(|(measure, found)| Threshold { measure: Measure::Reduction(measure), found, least: 1 });
            let family = shape.threshold(metadata.family);
            let accepted = profile.accepts(&metadata);
            let missing = metadata.requires_caps.iter().copied().find(|&needed| accepted && !target.has(needed));
            let (selected, reason, threshold) = if !accepted {
                (false, Reason::ProfileRejected, None)
            } else if missing.is_some() {
                (false, Reason::TargetRejected, None)
            } else if heat.is_some() {
                (true, Reason::HotPathTelemetry, heat)
            } else if reduction.is_some() {
                (true, Reason::PassCostReport, reduction)
            } else {
                match family.map(Threshold::is_reached) {
                    None => (true, Reason::AlwaysOn, None),
                    Some(true) => (true, Reason::ProgramShape, family),
                    Some(false) => (false, Reason::BelowThreshold, family),
                }
            };
            Decision { metadata, selected, reason, because_of: None, threshold, missing, priority: 0 }
        })
        .collect();
    reject_dependents(passes, &mut decisions);
    select_requirements(passes, &mut decisions);
    for decision in &mut decisions {
        decision.priority = decision.reason.priority();
    }
    decisions
}

/// Rejects each pass that transitively requires a rejected one, for the same reason.
fn reject_dependents(passes: &[Metadata], decisions: &mut [Decision]) {
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for position in 0..passes.len() {
            if decisions[position].reason.is_rejection() {
                continue;
            }
            let mut required = passes[position].requires.iter().filter_map(|name| position_of(passes, name));
            if let Some(rejected) = required.find(|&at| decisions[at].reason.is_rejection()) {
                let Decision { reason, missing, .. } = decisions[rejected];
                let because_of = Some(passes[rejected].name);
                decisions[position] =
                    Decision { selected: false, reason, because_of, threshold: None, missing, ..decisions[position] };
                changed = true;
            }
        }
    }
}

/// Selects the passes that the selected ones transitively require.
fn select_requirements(passes: &[Metadata], decisions: &mut [Decision]) {
    let mut pending: Vec<usize> = (0..passes.len()).filter(|&position| decisions[position].selected).collect();
    while let Some(position) = pending.pop() {
        for required in passes[position].requires.iter().filter_map(|name| position_of(passes, name)) {
            let decision = &mut decisions[required];
            if !decision.selected && !decision.reason.is_rejection() {
                (decision.selected, decision.reason) = (true, Reason::RequiredDependency);
                decision.because_of = Some(passes[position].name);
                pending.push(required);
            }
        }
    }
}
