//! Static cost model: frequency-weighted cycles of one invocation. The pass manager undoes speculative passes that
//! raise it.
//!
//! Each instruction has a weight of about the cycles that it occupies a lane, times its estimated frequency: 1/2 in an
//! arm of an `if` or `switch`, and the constant trip count in a loop, or 8 if it is unknown.

use crate::analysis::const_trip_count;
use crate::ir::ops::Exactness;
use crate::ir::{BlockId, Control, Inst, InstId, Op, Program, Pure, Space, Terminator};

/// Frequency of an instruction that is executed once (fixed point).
pub(super) const ONCE: u64 = 64;
/// Assumed trip count of a loop without a constant one.
const TRIPS: u64 = 8;
/// Approximate number of operations of a math library function.
const MATH_OPERATIONS: u64 = 32;

/// Estimated cost of one invocation. Only comparisons of estimates are meaningful.
pub fn estimate(program: &Program) -> u64 {
    of_block(program, program.body())
}

/// Estimated cost of a block that is executed once.
pub(super) fn of_block(program: &Program, block: BlockId) -> u64 {
    let mut sum = 0u64;
    frequencies(program, block, ONCE, &mut |inst, times| {
        sum = sum.saturating_add(weight(program, inst).saturating_mul(times));
    });
    sum
}

/// Estimated memory traffic and operations of an invocation. Their ratio, the arithmetic intensity, tells whether a
/// program is memory-bound or compute-bound (roofline model).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roofline {
    /// Bytes loaded from and stored to storage objects. An atomic operation counts as a load and a store.
    pub bytes: f64,
    /// Arithmetic operations. A math library function counts as its approximate number of operations.
    pub operations: f64,
}

impl Roofline {
    /// Estimates a program with the frequencies of the [estimate].
    pub fn of(program: &Program) -> Roofline {
        let mut roofline = Roofline::default();
        frequencies(program, program.body(), ONCE, &mut |inst, times| {
            let times = times as f64 / ONCE as f64;
            roofline.bytes += bytes(program, inst) as f64 * times;
            roofline.operations += operations(inst) as f64 * times;
        });
        roofline
    }

    /// Arithmetic intensity: operations per byte; `None` without memory traffic.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.operations / self.bytes)
    }
}

/// Bytes transferred between an invocation and storage objects.
fn bytes(program: &Program, inst: &Inst) -> u64 {
    let Some(at) = inst.op.operand() else { return 0 };
    let elements = match (program.memory(at.memory).space, &inst.op) {
        (Space::Workgroup | Space::Private | Space::Uniform, _) => 0,
        (Space::Storage(_), Op::Load(_)) => inst.results.len(),
        (Space::Storage(_), Op::Store(_)) => inst.operands.len().saturating_sub(1),
        (Space::Storage(_), _) => 2,
    };
    (elements * at.element.size()) as u64
}

fn operations(inst: &Inst) -> u64 {
    match inst.op {
        Op::Pure(op) if op.is_composed() => MATH_OPERATIONS,
        // Counted as a multiplication and an addition, by convention.
        Op::Pure(Pure::Fma) => 2,
        Op::Pure(_) | Op::Atomic(..) | Op::CompareExchange(_) => 1,
        _ => 0,
    }
}

/// Visits the instructions of a block and of nested blocks, with their frequencies in units of [`ONCE`].
fn frequencies(program: &Program, at: BlockId, times: u64, show: &mut dyn FnMut(&Inst, u64)) {
    for &id in &program.block(at).insts {
        let inst = program.inst(id);
        let inside = match inst.op {
            Op::Control(Control::If | Control::Switch(_)) => (times / 2).max(1),
            Op::Control(Control::Loop) => times.saturating_mul(trips(program, id)),
            _ => times,
        };
        show(inst, times);
        for &nested in &inst.blocks {
            frequencies(program, nested, inside, show);
        }
    }
}

/// Estimated trip count.
fn trips(program: &Program, id: InstId) -> u64 {
    let ends = program.block(program.inst(id).blocks[0]).insts.last();
    match ends.map(|&last| &program.inst(last).op) {
        Some(Op::Terminator(Terminator::Continue)) => const_trip_count(program, id).map_or(TRIPS, |count| count.trips),
        _ => 1,
    }
}

/// Returns true for an operation cheap enough to speculate.
pub(super) fn is_cheap(program: &Program, inst: &Inst) -> bool {
    matches!(inst.op, Op::Pure(_)) && weight(program, inst) < 8
}

/// Weight of an instruction, without nested blocks.
fn weight(program: &Program, inst: &Inst) -> u64 {
    let op = &inst.op;
    match op {
        Op::Pure(op) => of_pure(*op),
        Op::PerInvocation(_) | Op::PerGroup(_) => 1,
        Op::Load(_) | Op::Store(_) => match op.memory().map(|object| program.memory(object).space) {
            Some(Space::Storage(_)) => 8,
            Some(Space::Workgroup) => 4,
            Some(Space::Private) => 2,
            Some(Space::Uniform) | None => 1,
        },
        Op::Atomic(..) | Op::CompareExchange(_) => match op.memory().map(|object| program.memory(object).space) {
            Some(Space::Workgroup) => 8,
            _ => 64,
        },
        Op::Barrier(_) | Op::Broadcast | Op::Subgroup(_) => 8,
        Op::Print(_) => 32,
        Op::Control(Control::If | Control::Switch(_) | Control::Loop) => 2,
        Op::Control(Control::Region(_)) => 0,
        Op::Terminator(Terminator::Continue) => 2,
        Op::Terminator(Terminator::Yield | Terminator::Break | Terminator::Return | Terminator::Trap) => 0,
    }
}

/// Weight of a pure operation.
pub(super) fn of_pure(op: Pure) -> u64 {
    match op {
        Pure::Div | Pure::Rem | Pure::Sqrt => 8,
        Pure::Mul => 3,
        _ => match op.info().exactness {
            Exactness::Exact => 1,
            Exactness::Rounded { .. } | Exactness::Ordered => 2,
            Exactness::Composed => MATH_OPERATIONS,
        },
    }
}
