//! Pass selection: decides for each pass whether it runs on a program, and states the reason.
//!
//! Normalizers always run; expensive families run when the shape of the program or what was measured before justifies
//! them. Hints and reports only prioritize: no decision here changes what a program means.

use std::fmt;

use super::registry::position_of;
use super::{Boundary, Family, Hints, Metadata, Phase, Report};
use crate::ir::{MemId, Op, Program};

/// Which passes are eligible at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Everything that is good for any program on any device.
    #[default]
    Release,
    /// What is good for graph frontiers.
    Dataflow,
    /// What is good for a kernel that drains a queue.
    Megakernel,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 3] = [Profile::Release, Profile::Dataflow, Profile::Megakernel];

    /// The name in commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Dataflow => "dataflow",
            Profile::Megakernel => "megakernel",
        }
    }

    /// Whether a pass is eligible.
    pub fn accepts(self, pass: &Metadata) -> bool {
        let class_and_phase = match self {
            Profile::Release => {
                pass.boundary == Boundary::AbiPreserving
                    && pass.requires_caps.is_empty()
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

/// Why a pass is selected or not. The first that applies, in this order, except that a requirement is looked at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The profile does not accept it, or what it requires.
    ProfileRejected,
    /// Dispatches of the program take long.
    HotPathTelemetry,
    /// It reduced a cost when the program was optimized before.
    PassCostReport,
    /// It always runs.
    AlwaysOn,
    /// There is enough of what it works on.
    ProgramShape,
    /// There is too little of what it works on.
    BelowThreshold,
    /// A selected pass requires it.
    RequiredDependency,
}

impl Reason {
    /// How urgent a selection is.
    pub const fn priority(self) -> u32 {
        match self {
            Reason::HotPathTelemetry => 500,
            Reason::PassCostReport => 400,
            Reason::ProgramShape => 300,
            Reason::AlwaysOn => 200,
            Reason::RequiredDependency => 100,
            Reason::ProfileRejected | Reason::BelowThreshold => 0,
        }
    }

    /// In words, without the values that a [`Decision`] has.
    pub const fn describe(self) -> &'static str {
        match self {
            Reason::ProfileRejected => "not in this profile",
            Reason::HotPathTelemetry => "hot program",
            Reason::PassCostReport => "reduced the cost before",
            Reason::AlwaysOn => "always on",
            Reason::ProgramShape => "above its threshold",
            Reason::BelowThreshold => "below its threshold",
            Reason::RequiredDependency => "required by another pass",
        }
    }
}

/// A measure of a program, and the least value for which a family of passes is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Unit of the measure, as it follows a number.
    pub unit: &'static str,
    /// Value of the program.
    pub found: u64,
    /// Least value for which passes are selected.
    pub least: u64,
}

impl Threshold {
    /// The program reaches the least value.
    pub const fn is_reached(self) -> bool {
        self.found >= self.least
    }
}

impl fmt::Display for Threshold {
    /// `61 nodes ≥ 12`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Threshold { unit, found, least } = self;
        write!(f, "{found} {unit} {} {least}", if self.is_reached() { "≥" } else { "<" })
    }
}

/// What was decided about one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The pass.
    pub metadata: Metadata,
    /// Whether it runs.
    pub selected: bool,
    /// Why.
    pub reason: Reason,
    /// The pass behind the reason: what it needs and cannot have, or what needs it.
    pub because_of: Option<&'static str>,
    /// Measure of the program on which the reason depends.
    pub threshold: Option<Threshold>,
    /// How urgent it is, by the reason.
    pub priority: u32,
}

impl Decision {
    /// The reason in words, with the values that it follows from.
    pub fn describe(&self) -> String {
        match (self.reason, self.because_of, self.threshold) {
            (Reason::RequiredDependency, Some(pass), _) => format!("required by {pass}"),
            (Reason::ProfileRejected, Some(pass), _) => format!("{pass} is not in this profile"),
            (Reason::ProgramShape | Reason::BelowThreshold, _, Some(threshold)) => threshold.to_string(),
            (reason, ..) => reason.describe().into(),
        }
    }
}

/// What selection looks at in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Instructions, nested ones included.
    pub nodes: usize,
    /// Bytes of all objects together.
    pub peak_device_bytes: u64,
    /// Regions that stand directly in the body.
    pub top_level_regions: usize,
    /// The operation under which its dispatches are recorded.
    pub entry_op: Option<String>,
}

impl Shape {
    /// The shape of a program; objects of unknown length count as empty.
    pub fn of(program: &Program, lengths: &[(MemId, u64)]) -> Shape {
        let mut shape = Shape { entry_op: program.entry_op().map(str::to_owned), ..Shape::default() };
        program.walk(|inst, depth| {
            shape.nodes += 1;
            shape.top_level_regions += usize::from(depth == 0 && matches!(program.insts[inst].op, Op::Region(_)));
        });
        let length = |object| lengths.iter().find(|(known, _)| *known == object).map(|(_, length)| *length);
        shape.peak_device_bytes = program.estimate_peak_device_bytes(length);
        shape
    }

    /// The measure by which a family of passes is selected; `None` if the program does not matter.
    fn threshold(&self, family: Family) -> Option<Threshold> {
        let nodes = |least| Some(Threshold { unit: "nodes", found: self.nodes as u64, least });
        match family {
            Family::Scalar | Family::Sync | Family::Unknown => None,
            Family::Loop => nodes(12),
            Family::Memory => {
                Some(Threshold { unit: "bytes of known length", found: self.peak_device_bytes, least: 16 * 1024 })
            }
            Family::Fusion => {
                Some(Threshold { unit: "top-level regions", found: self.top_level_regions as u64, least: 2 })
            }
            Family::Dataflow => nodes(64),
            Family::Megakernel => nodes(512),
        }
    }
}

/// Decides about each pass, in the order of `passes`.
pub fn select(
    profile: Profile,
    passes: &[Metadata],
    shape: &Shape,
    hints: Option<&Hints>,
    report: Option<&Report>,
) -> Vec<Decision> {
    let hot = shape.entry_op.as_deref().zip(hints).is_some_and(|(op, hints)| hints.is_hot(op));
    let mut decisions: Vec<Decision> = passes
        .iter()
        .map(|&metadata| {
            let threshold = shape.threshold(metadata.family);
            let (selected, reason) = if !profile.accepts(&metadata) {
                (false, Reason::ProfileRejected)
            } else if hot {
                (true, Reason::HotPathTelemetry)
            } else if report.is_some_and(|report| report.reduced_cost(metadata.name)) {
                (true, Reason::PassCostReport)
            } else {
                match threshold.map(Threshold::is_reached) {
                    None => (true, Reason::AlwaysOn),
                    Some(true) => (true, Reason::ProgramShape),
                    Some(false) => (false, Reason::BelowThreshold),
                }
            };
            Decision { metadata, selected, reason, because_of: None, threshold, priority: 0 }
        })
        .collect();
    reject_what_needs_the_rejected(passes, &mut decisions);
    select_what_is_required(passes, &mut decisions);
    for decision in &mut decisions {
        decision.priority = decision.reason.priority();
    }
    decisions
}

fn reject_what_needs_the_rejected(passes: &[Metadata], decisions: &mut [Decision]) {
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for position in 0..passes.len() {
            if decisions[position].reason == Reason::ProfileRejected {
                continue;
            }
            let rejected = |name: &&&str| {
                position_of(passes, name).is_some_and(|at| decisions[at].reason == Reason::ProfileRejected)
            };
            if let Some(&needed) = passes[position].requires.iter().find(rejected) {
                let decision = &mut decisions[position];
                (decision.selected, decision.reason) = (false, Reason::ProfileRejected);
                decision.because_of = Some(needed);
                changed = true;
            }
        }
    }
}

fn select_what_is_required(passes: &[Metadata], decisions: &mut [Decision]) {
    let mut pending: Vec<usize> = (0..passes.len()).filter(|&position| decisions[position].selected).collect();
    while let Some(position) = pending.pop() {
        for required in passes[position].requires.iter().filter_map(|name| position_of(passes, name)) {
            let decision = &mut decisions[required];
            if !decision.selected && decision.reason != Reason::ProfileRejected {
                (decision.selected, decision.reason) = (true, Reason::RequiredDependency);
                decision.because_of = Some(passes[position].name);
                pending.push(required);
            }
        }
    }
}
