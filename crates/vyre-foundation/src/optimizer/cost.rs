//! One estimate of what a program costs, by which results of passes are refused.
//!
//! Every instruction has a weight, about the cycles it keeps a lane busy, and counts as often as it is likely to be
//! executed: an arm of an `if` every other time, a loop as often as it counts, or eight times if that is not known.

use crate::analysis::finite;
use crate::ir::ops::{Exactness, Kind};
use crate::ir::{BlockId, Inst, InstId, Op, Program, Space};

/// An instruction that is executed once counts its weight times this.
pub(super) const ONCE: u64 = 64;
/// Trips of a loop that does not count, or whose bound is not known.
const TRIPS: u64 = 8;
/// Operations that a function of the math library is made of, about.
const COMPOSED: u64 = 32;

/// The estimated cost of one invocation. Only the comparison of two estimates means anything.
pub fn estimate(program: &Program) -> u64 {
    of_block(program, program.body)
}

/// The estimated cost of a block that is executed once.
pub(super) fn of_block(program: &Program, block: BlockId) -> u64 {
    let mut sum = 0u64;
    frequencies(program, block, ONCE, &mut |inst, times| {
        sum = sum.saturating_add(weight(program, inst).saturating_mul(times));
    });
    sum
}

/// What one invocation is likely to move and to compute. Their ratio says which of the two a device waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roofline {
    /// Bytes loaded from and stored to storage objects. An atomic operation does both.
    pub bytes: f64,
    /// Operations on values. A function of the math library counts as what it is made of.
    pub operations: f64,
}

impl Roofline {
    /// Of a program; instructions count as often as they do in the [estimate].
    pub fn of(program: &Program) -> Roofline {
        let mut roofline = Roofline::default();
        frequencies(program, program.body, ONCE, &mut |inst, times| {
            let times = times as f64 / ONCE as f64;
            roofline.bytes += bytes(program, inst) as f64 * times;
            roofline.operations += operations(inst) as f64 * times;
        });
        roofline
    }

    /// Operations per byte; `None` if nothing is moved.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.operations / self.bytes)
    }
}

/// Bytes between an invocation and storage objects.
fn bytes(program: &Program, inst: &Inst) -> u64 {
    let Some(memory) = inst.op.memory().map(|object| &program.memory[object]) else { return 0 };
    let elements = match (memory.space, &inst.op, inst.op.row().kind) {
        (Space::Workgroup | Space::Private | Space::Uniform, ..) => 0,
        (Space::Storage(_), Op::Load(_), _) => inst.results.len(),
        (Space::Storage(_), Op::Store(_), _) => inst.operands.len().saturating_sub(1),
        (Space::Storage(_), _, Kind::Atomic) => 2,
        (Space::Storage(_), ..) => 0,
    };
    (elements * memory.element.size()) as u64
}

fn operations(inst: &Inst) -> u64 {
    match (inst.op.row().kind, &inst.op, inst.op.row().exactness) {
        (Kind::Pure, _, Exactness::Composed) => COMPOSED,
        // By convention, a product and a sum.
        (Kind::Pure, Op::Fma, _) => 2,
        (Kind::Pure | Kind::Atomic, ..) => 1,
        _ => 0,
    }
}

/// Shows every instruction of a block and of those inside it, and how often it is likely to be executed, in parts of
/// [`ONCE`].
fn frequencies(program: &Program, at: BlockId, times: u64, show: &mut dyn FnMut(&Inst, u64)) {
    for &id in &program.blocks[at].insts {
        let inst = &program.insts[id];
        let inside = match inst.op {
            Op::If | Op::Switch(_) => (times / 2).max(1),
            Op::Loop => times.saturating_mul(trips(program, id)),
            _ => times,
        };
        show(inst, times);
        for &nested in &inst.blocks {
            frequencies(program, nested, inside, show);
        }
    }
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
            Exactness::Composed => COMPOSED,
        },
    }
}
