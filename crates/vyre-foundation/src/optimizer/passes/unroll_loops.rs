//! Replaces loops of few known trips by their trips, one after the other, and lets longer ones do several trips at once, after
//! those that are left over have been done before the loop.
//!
//! Both need a loop of a [known number](crate::analysis::const_trip_count) of trips, whose only exit is the test and whose only
//! `continue` is its end: then it is known of every trip but the last that the test passes, and the copies do without it.
//! The counter is a literal in each copy, which is where most of the gain comes from.

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

/// Instructions that the trips of a loop may become. A few hundred fit into every instruction cache there is.
const FULLY: u64 = 320;
/// Instructions that the copies of a loop that stays may become.
const PARTLY: u64 = 96;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let structure = analyses.structure(program);
    let mut changed = false;
    // Inner loops come first: what they become decides whether the loops around them stay small.
    for id in program.reachable_insts().into_iter().rev() {
        if let Some(ConstTripCount { test, trips }) = const_trip_count(program, id)
            && let Some(shape) = shape(program, id, test)
        {
            let size = program.count_insts(program.inst(id).blocks[0]) as u64;
            if trips <= 1 || trips.saturating_mul(size) <= FULLY {
                unroll(program, id, &shape, trips);
                changed = true;
            } else if let Some(copies) = [8, 4, 2].into_iter().find(|copies| copies * size <= PARTLY)
                && steps_little(program, id)
            {
                let around = structure.place(id).expect("reachable");
                peel(program, around, id, &shape, trips % copies);
                widen(program, id, &shape, copies);
                changed = true;
            }
        }
    }
    changed
}

/// Whether a loop counts in small steps. One that does not has likely been widened already.
fn steps_little(program: &Program, id: InstId) -> bool {
    counted(program, id).is_some_and(|counted| counted.step.abs() < 8)
}

/// The parts of the body of a loop that can be unrolled.
struct Shape {
    /// What stands before the test.
    before: Vec<InstId>,
    /// What the loop gives when the test ends it.
    leaves_with: Values,
    /// What stands after the test.
    after: Vec<InstId>,
    /// What it goes on with.
    continues_with: Values,
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
        leaves_with: leaves.operands.clone(),
        after: after.to_vec(),
        continues_with: program.inst(last).operands.clone(),
    })
}

/// Makes a region-like sequence of a loop: a `loop` that is executed once, which `simplify_control_flow` dissolves.
fn unroll(program: &mut Program, id: InstId, shape: &Shape, trips: u64) {
    let (body, span) = (program.inst(id).blocks[0], program.inst(id).span);
    let params: Values = program.block(body).params.clone();
    let sequence = program.add_block();
    let mut cloner = Cloner::within(program);
    let values = clone_trips(&mut cloner, shape, sequence, &params, params.clone(), trips);
    begin_trip(&mut cloner, &params, &values);
    cloner.insts(&shape.before, sequence, &mut Verbatim);
    let results = cloner.values(&shape.leaves_with);
    program.push(sequence, Terminator::Break, results, &[], [], span);
    program.move_insts(sequence, body);
}

/// Takes the first trips out of a loop and puts them before it.
fn peel(program: &mut Program, around: BlockId, id: InstId, shape: &Shape, trips: u64) {
    let params: Values = program.block(program.inst(id).blocks[0]).params.clone();
    let start: Values = program.inst(id).operands.clone();
    let sequence = program.add_block();
    let values = clone_trips(&mut Cloner::within(program), shape, sequence, &params, start, trips);
    program.inst_mut(id).operands = values;
    let peeled = std::mem::take(&mut program.block_mut(sequence).insts);
    let at = program.block(around).insts.iter().position(|&inst| inst == id).expect("it stands there");
    program.block_mut(around).insts.splice(at..at, peeled);
}

/// Lets every trip do the work of several, of which the number of trips is a multiple.
fn widen(program: &mut Program, id: InstId, shape: &Shape, copies: u64) {
    let body = program.inst(id).blocks[0];
    let params: Values = program.block(body).params.clone();
    let end = program.block_mut(body).insts.pop().expect("a block has a terminator");
    let start = shape.continues_with.clone();
    let values = clone_trips(&mut Cloner::within(program), shape, body, &params, start, copies - 1);
    program.inst_mut(end).operands = values;
    program.block_mut(body).insts.push(end);
}

/// Appends trips of a loop to a block, without their tests, and returns the values that they continue with. Each trip defines every value of
/// the body again before it is used, so that one cloner serves all of them.
fn clone_trips(
    cloner: &mut Cloner<'_>,
    shape: &Shape,
    into: BlockId,
    params: &[ValueId],
    start: Values,
    trips: u64,
) -> Values {
    (0..trips).fold(start, |values, _| {
        begin_trip(cloner, params, &values);
        cloner.insts(&shape.before, into, &mut Verbatim);
        cloner.insts(&shape.after, into, &mut Verbatim);
        cloner.values(&shape.continues_with)
    })
}

/// Begins a trip with these values of the parameters.
fn begin_trip(cloner: &mut Cloner<'_>, params: &[ValueId], values: &[ValueId]) {
    params.iter().zip(values).for_each(|(&param, &value)| cloner.define(param, value));
}
