//! Replaces what is computed by something cheaper that gives the same.
//!
//! The rules are data: [`simplifying`](crate::optimizer::rules::simplifying). Each is proved for all operands and for every
//! type that it matches, against the terms of the op table, and the tests hold those against the evaluators; so an
//! expression that is replaced gives the same bits, and NaN where it was NaN. Rules see literals on the right and
//! comparisons in the forms that `canonicalize` leaves.

use crate::analysis::Analyses;
use crate::ir::Program;
use crate::optimizer::rules::Index;
use crate::optimizer::{Family, Metadata, Pass, Phase, rewrite};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        requires: &["canonicalize"],
        ..Metadata::new("simplify", Phase::ScalarAlgebra, Family::Scalar)
    },
    speculative: false,
    run,
};

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let uses = analyses.uses(program);
    rewrite::apply(program, &uses, Index::simplifying())
}
