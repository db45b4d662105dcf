//! Replaces specialization constants by their values at compile time.
//!
//! The declarations stay, so the interface of the program does not change. Later passes see literals.

use crate::analysis::Analyses;
use crate::ir::{Def, Program, Renaming};
use crate::optimizer::{Analysis, Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        invalidates: &[Analysis::Uses, Analysis::Uniformity, Analysis::Ranges],
        ..Metadata::new("specialize", Phase::Specialization, Family::Scalar)
    },
    speculative: false,
    run,
};

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    if program.constants().is_empty() {
        return false;
    }
    let uses = analyses.uses(program);
    let mut renaming = Renaming::default();
    for value in program.values().keys() {
        if let Def::Constant(constant) = program.def(value)
            && uses.count(value) > 0
        {
            let literal = program.literal(program.constant(constant).default);
            renaming.replace(value, literal);
        }
    }
    renaming.apply(program)
}
