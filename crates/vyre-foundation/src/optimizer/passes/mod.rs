//! The passes, one file each, and the one list of them.

mod eliminate_conditions;
mod eliminate_dead_code;
mod fold_constants;
mod hoist_invariants;
mod simplify_control_flow;
mod unroll_loops;
mod value_numbering;

use super::Pass;

/// Every pass. Among passes of one phase that do not require each other, this is the order in which they run.
pub const ALL: &[&Pass] = &[
    &simplify_control_flow::PASS,
    &fold_constants::PASS,
    &eliminate_conditions::PASS,
    &hoist_invariants::PASS,
    &unroll_loops::PASS,
    &value_numbering::PASS,
    &eliminate_dead_code::PASS,
];
