//! Loop unrolling: full for small constant trip counts, partial by 2, 4 or 8 otherwise, with the remainder peeled
//! before the loop.
//!
//! Requires a [constant trip count](crate::analysis::const_trip_count), the test as the only exit, and one `continue`
//! at the end of the body. The test passes in every iteration but the last, so the copies omit it. In a full unrolling
//! the induction variable is a literal in each copy, which is most of the gain.

use crate::analysis::{Analyses, ConstTripCount, const_trip_count, counted};
use crate::ir::clone::{Cloner, Verbatim};
use crate::ir::{BlockId, InstId, Program, Terminator, ValueId, Values};
use crate::optimizer::{Capability, Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        requires: &["simplify_control_flow"],
        requires_caps: &[Capability::LoopsAsWritten],
        ..Metadata::new("unroll_loops", Phase::Loop, Family::Loop)
    },
    speculative: true,
    run,
};

/// Size limit of full unrolling, in instructions; fits every instruction cache.
const FULL_LIMIT: u64 = 320;
/// Size limit of partial unrolling, in instructions.
const PARTIAL_LIMIT: u64 = 96;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let structure = analyses.structure(program);
    let mut changed = false;
    // Inner loops first: their size after unrolling decides whether the outer loops are small enough.
    for id in program.reachable_insts().into_iter().rev() {
        if let Some(ConstTripCount { test, trips }) = const_trip_count(program, id)
            && let Some(shape) = shape(program, id, test)
        {
            let size = program.count_insts(program.inst(id).blocks[0]) as u64;
            if trips <= 1 || trips.saturating_mul(size) <= FULL_LIMIT {
                unroll(program, id, &shape, trips);
                changed = true;
            } else if let Some(copies) = [8, 4, 2].into_iter().find(|copies| copies * size <= PARTIAL_LIMIT)
                && has_small_step(program, id)
            {
                let around = structure.block_of(id).expect("reachable");
                peel(program, around, id, &shape, trips % copies);
                unroll_by(program, id, &shape, copies);
                changed = true;
            }
        }
    }
    changed
}

/// Returns true for a small step. A loop with a large one was probably unrolled already.
fn has_small_step(program: &Program, id: InstId) -> bool {
    counted(program, id).is_some_and(|counted| counted.step.abs() < 8)
}

/// Parts of the body of an unrollable loop.
struct Shape {
    /// Instructions before the test.
    before: Vec<InstId>,
    /// Operands of the `break`.
    break_operands: Values,
    /// Instructions after the test.
    after: Vec<InstId>,
    /// Operands of the `continue`.
    continue_operands: Values,
}

fn shape(program: &Program, id: InstId, test: InstId) -> Option<Shape> {
    let body = program.block(program.inst(id).blocks[0]);
    let at = body.insts.iter().position(|&inst| inst == test)?;
    let (&last, after) = body.insts[at + 1..].split_last()?;
    let jumps = |&inst: &InstId| program.jumps_out(inst);
    if program.inst(last).op != Terminator::Continue || after.iter().any(jumps) || body.insts[..at].iter().any(jumps) {
        return None;
    }
    let arms = &program.inst(test).blocks;
    let terminators = arms.iter().filter_map(|&arm| program.block(arm).insts.last());
    let leaves = terminators.map(|&last| program.inst(last)).find(|last| last.op == Terminator::Break)?;
    Some(Shape {
        before: body.insts[..at].to_vec(),
        break_operands: leaves.operands.clone(),
        after: after.to_vec(),
        continue_operands: program.inst(last).operands.clone(),
    })
}

/// Fully unrolls a loop into a `loop` that executes once, which `simplify_control_flow` replaces by its body.
fn unroll(program: &mut Program, id: InstId, shape: &Shape, trips: u64) {
    let (body, span) = (program.inst(id).blocks[0], program.inst(id).span);
    let params: Values = program.block(body).params.clone();
    let sequence = program.add_block();
    let mut cloner = Cloner::within(program);
    let values = clone_iterations(&mut cloner, shape, sequence, &params, params.clone(), trips);
    bind_params(&mut cloner, &params, &values);
    cloner.insts(&shape.before, sequence, &mut Verbatim);
    let results = cloner.values(&shape.break_operands);
    program.push(sequence, Terminator::Break, results, &[], [], span);
    program.move_insts(sequence, body);
}

/// Peels the first `trips` iterations.
fn peel(program: &mut Program, around: BlockId, id: InstId, shape: &Shape, trips: u64) {
    let params: Values = program.block(program.inst(id).blocks[0]).params.clone();
    let start: Values = program.inst(id).operands.clone();
    let sequence = program.add_block();
    let values = clone_iterations(&mut Cloner::within(program), shape, sequence, &params, start, trips);
    program.inst_mut(id).operands = values;
    let peeled = std::mem::take(&mut program.block_mut(sequence).insts);
    let at = program.block(around).insts.iter().position(|&inst| inst == id).expect("the block contains it");
    program.block_mut(around).insts.splice(at..at, peeled);
}

/// Unrolls a loop by `copies`, which must divide the trip count.
fn unroll_by(program: &mut Program, id: InstId, shape: &Shape, copies: u64) {
    let body = program.inst(id).blocks[0];
    let params: Values = program.block(body).params.clone();
    let end = program.block_mut(body).insts.pop().expect("a block has a terminator");
    let start = shape.continue_operands.clone();
    let values = clone_iterations(&mut Cloner::within(program), shape, body, &params, start, copies - 1);
    program.inst_mut(end).operands = values;
    program.block_mut(body).insts.push(end);
}

/// Appends iterations of a loop to a block, without their tests, and returns the values that they continue with. Each
/// iteration redefines every value of the body before its use, so one cloner serves all of them.
fn clone_iterations(
    cloner: &mut Cloner<'_>,
    shape: &Shape,
    into: BlockId,
    params: &[ValueId],
    start: Values,
    trips: u64,
) -> Values {
    (0..trips).fold(start, |values, _| {
        bind_params(cloner, params, &values);
        cloner.insts(&shape.before, into, &mut Verbatim);
        cloner.insts(&shape.after, into, &mut Verbatim);
        cloner.values(&shape.continue_operands)
    })
}

/// Maps the loop parameters to the values of an iteration.
fn bind_params(cloner: &mut Cloner<'_>, params: &[ValueId], values: &[ValueId]) {
    params.iter().zip(values).for_each(|(&param, &value)| cloner.define(param, value));
}
