//! One estimate of what a program costs, by which results of passes are refused.
//!
//! Every instruction has a weight, about the cycles it keeps a lane busy, and counts as often as it is likely to be
//! executed: an arm of an `if` every other time, a loop as often as it counts, or eight times if that is not known.

use crate::analysis::finite;
use crate::ir::ops::{Exactness, Kind};
use crate::ir::{BlockId, Inst, InstId, Op, Program, Space};

/// An instruction that is executed once counts its weight times this.
const ONCE: u64 = 64;
/// Trips of a loop that does not count, or whose bound is not known.
const TRIPS: u64 = 8;

/// The estimated cost of one invocation. Only the comparison of two estimates means anything.
pub fn estimate(program: &Program) -> u64 {
    block(program, program.body, ONCE)
}

fn block(program: &Program, at: BlockId, times: u64) -> u64 {
    program.blocks[at].insts.iter().fold(0u64, |sum, &id| {
        let inst = &program.insts[id];
        let inside = match inst.op {
            Op::If | Op::Switch(_) => (times / 2).max(1),
            Op::Loop => times.saturating_mul(trips(program, id)),
            _ => times,
        };
        let nested = inst.blocks.iter().fold(0u64, |sum, &nested| sum.saturating_add(block(program, nested, inside)));
        sum.saturating_add(weight(program, inst).saturating_mul(times)).saturating_add(nested)
    })
}

/// How often a loop is likely to go round.
fn trips(program: &Program, id: InstId) -> u64 {
    let ends = program.blocks[program.insts[id].blocks[0]].insts.last();
    match ends.map(|&last| &program.insts[last].op) {
        Some(Op::Continue) => finite(program, id).map_or(TRIPS, |finite| finite.trips),
        _ => 1,
    }
}

/// Whether an operation costs so little that it may as well be computed in vain.
pub(super) fn is_cheap(program: &Program, inst: &Inst) -> bool {
    inst.op.row().kind == Kind::Pure && weight(program, inst) < 8
}

/// What an operation costs by itself.
fn weight(program: &Program, inst: &Inst) -> u64 {
    let op = &inst.op;
    match op.row().kind {
        Kind::Pure => of_pure(op),
        Kind::PerInvocation | Kind::PerGroup => 1,
        Kind::Access => match op.memory().map(|object| program.memory[object].space) {
            Some(Space::Storage(_)) => 8,
            Some(Space::Workgroup) => 4,
            Some(Space::Private) => 2,
            Some(Space::Uniform) | None => 1,
        },
        Kind::Atomic => match op.memory().map(|object| program.memory[object].space) {
            Some(Space::Workgroup) => 8,
            _ => 64,
        },
        Kind::Collective => 8,
        Kind::Effect => 32,
        Kind::Control => match op {
            Op::If | Op::Switch(_) => 2,
            Op::Loop => 2,
            Op::Continue => 2,
            _ => 0,
        },
    }
}

/// What an operation costs that is a function of its operands.
pub(super) fn of_pure(op: &Op) -> u64 {
    match op {
        Op::Div | Op::Rem | Op::Sqrt => 8,
        Op::Mul => 3,
        _ => match op.row().exactness {
            Exactness::Exact => 1,
            Exactness::Rounded { .. } | Exactness::Ordered => 2,
            // A function of the math library is some dozens of other operations.
            Exactness::Composed => 32,
        },
    }
}
