//! Algebraic simplification (peephole optimization) by the rewrite rules in
//! [`simplifying`](crate::optimizer::rules::simplifying).
//!
//! An SMT solver proved each rule for all operands and every type that it matches, from the SMT terms of the op table,
//! and tests compare those terms with the evaluators. A rewritten expression has the same bits, or is NaN where the
//! original was. Patterns assume the operand order and comparisons that `canonicalize` leaves.

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
