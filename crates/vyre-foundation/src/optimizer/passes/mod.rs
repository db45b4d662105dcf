//! The optimizer passes, one per file, and the list of all of them.

mod aggregate_atomics;
mod canonicalize;
mod eliminate_barriers;
mod eliminate_conditions;
mod eliminate_dead_code;
mod eliminate_dead_objects;
mod eliminate_dead_stores;
mod fold_constants;
mod forward_stores;
mod fuse_regions;
mod guard_idempotent_atomics;
mod hoist_invariants;
mod hoist_prologues;
mod hoist_uniform_values;
mod merge_accesses;
mod merge_arms;
mod promote_private;
mod promote_tiles;
mod simplify;
mod simplify_control_flow;
mod simplify_inductions;
mod specialize;
mod unroll_loops;
mod value_numbering;

use super::Pass;

/// All passes. Passes of one phase that do not require each other run in this order.
pub const ALL: &[&Pass] = &[
    &simplify_control_flow::PASS,
    &canonicalize::PASS,
    &fold_constants::PASS,
    &simplify::PASS,
    &eliminate_conditions::PASS,
    &hoist_invariants::PASS,
    &unroll_loops::PASS,
    &simplify_inductions::PASS,
    &promote_private::PASS,
    &forward_stores::PASS,
    &eliminate_dead_stores::PASS,
    &merge_accesses::PASS,
    &promote_tiles::PASS,
    &fuse_regions::PASS,
    &value_numbering::PASS,
    &hoist_uniform_values::PASS,
    &aggregate_atomics::PASS,
    &eliminate_barriers::PASS,
    &specialize::PASS,
    &eliminate_dead_code::PASS,
    &eliminate_dead_objects::PASS,
    &guard_idempotent_atomics::PASS,
    &merge_arms::PASS,
    &hoist_prologues::PASS,
];
