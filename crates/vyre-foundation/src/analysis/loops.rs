//! Induction variables and trip counts.
//!
//! A loop is counted if it exits at the start of an iteration by comparing a parameter (the induction variable) with a
//! loop-invariant bound, and every `continue` adds the same literal to that parameter. The trip count is constant if
//! start and bound are literals. Loops that step a parameter by another operation, such as a shift or a multiplication,
//! are simulated for a limited number of iterations.

use crate::ir::ops::{Control, Kind, Op, Pure, Terminator};
use crate::ir::{BlockId, Comparison, Def, InstId, Program, Type, ValueId};

/// A loop with a 32-bit induction variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Position of the induction variable among the parameters.
    pub position: usize,
    /// The induction variable.
    pub param: ValueId,
    /// Initial value.
    pub start: ValueId,
    /// Step per iteration; not zero.
    pub step: i64,
    /// Comparison of the induction variable with the bound that holds while the loop continues.
    pub predicate: Comparison,
    /// The loop-invariant bound.
    pub bound: ValueId,
    /// The `if` that leaves the loop.
    pub test: InstId,
}

impl Counted {
    /// The trip count, if start and bound are literals and the induction variable does not wrap.
    pub fn trips(&self, program: &Program) -> Option<u64> {
        let (start, bound) = (integer(program, self.start)?, integer(program, self.bound)?);
        let (least, most) = match program.ty(self.param) {
            Type::U32 => (0, i64::from(u32::MAX)),
            Type::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => return None,
        };
        let step = self.step;
        // The distance to the first value that ends the loop, counted in the direction of the step.
        let distance = match (self.predicate, step > 0) {
            (Comparison::Lt, true) => bound - start,
            (Comparison::Le, true) => bound + 1 - start,
            (Comparison::Gt, false) => start - bound,
            (Comparison::Ge, false) => start + 1 - bound,
            (Comparison::Ne, true) if (bound - start) % step == 0 => bound - start,
            (Comparison::Ne, false) if (start - bound) % step == 0 => start - bound,
            (Comparison::Lt | Comparison::Le, false)
            | (Comparison::Gt | Comparison::Ge, true)
            | (Comparison::Eq | Comparison::Ne, _) => return None,
        };
        if distance <= 0 {
            return (self.predicate != Comparison::Ne || distance == 0).then_some(0);
        }
        let trips = (distance + step.abs() - 1) / step.abs();
        let last = start + trips * step;
        (least..=most).contains(&last).then_some(trips as u64)
    }
}

/// Terminators that leave or continue a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Every `break`.
    pub breaks: Vec<InstId>,
    /// Every `continue`.
    pub continues: Vec<InstId>,
}

/// The exits of the loop with this body, without those of nested loops.
pub fn exits_of(program: &Program, body: BlockId) -> Exits {
    let mut exits = Exits::default();
    visit_exits(program, body, &mut |id, exit| match exit {
        Terminator::Break => exits.breaks.push(id),
        Terminator::Continue => exits.continues.push(id),
        Terminator::Yield | Terminator::Return | Terminator::Trap => {}
    });
    exits
}

/// Visits the terminators in the body of a loop, without those of nested loops.
fn visit_exits(program: &Program, body: BlockId, visit: &mut impl FnMut(InstId, Terminator)) {
    for &id in &program.block(body).insts {
        match program.inst(id).op {
            Op::Terminator(terminator) => visit(id, terminator),
            Op::Control(Control::Loop) => {}
            _ => program.inst(id).blocks.iter().for_each(|&nested| visit_exits(program, nested, visit)),
        }
    }
}

/// Terminators that yield the results of an instruction other than a loop.
pub fn yields_of(program: &Program, id: InstId) -> Vec<InstId> {
    let ends = program.inst(id).blocks.iter().filter_map(|&block| program.block(block).insts.last().copied());
    ends.filter(|&end| program.inst(end).op == Terminator::Yield).collect()
}

/// Operand `position` of each terminator: the incoming values of a join point (phi operands).
pub fn incoming_values(
    program: &Program,
    terminators: &[InstId],
    position: usize,
) -> impl Iterator<Item = ValueId> + Clone {
    terminators.iter().map(move |&terminator| program.inst(terminator).operands[position])
}

/// Constant trip count of a loop, an upper bound if the loop has other exits than the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstTripCount {
    /// The `if` that leaves the loop.
    pub test: InstId,
    /// Number of iterations that pass the test.
    pub trips: u64,
}

/// Limit of simulated iterations.
const MAX_SIMULATED: u64 = 64;

/// The constant trip count of a loop, if it has one.
pub fn const_trip_count(program: &Program, id: InstId) -> Option<ConstTripCount> {
    if let Some(counted) = counted(program, id)
        && let Some(trips) = counted.trips(program)
    {
        return Some(ConstTripCount { test: counted.test, trips });
    }
    let inst = program.inst(id);
    let body = *inst.blocks.first().filter(|_| inst.op == Control::Loop)?;
    let (test, condition, breaks_when) = exit_test(program, body)?;
    let Def::Result(comparison, 0) = program.def(condition) else { return None };
    let param = *program.inst(comparison).operands.iter().find(|operand| literal(program, **operand).is_none())?;
    let position = program.block(body).params.iter().position(|&candidate| candidate == param)?;
    let mut step = None;
    let one_step = every_continue(program, body, &mut |operands| {
        let same = step.is_none_or(|known| known == operands[position]);
        step = Some(operands[position]);
        same
    });
    let Def::Result(step, 0) = program.def(step.filter(|_| one_step)?) else { return None };
    let mut at = literal(program, inst.operands[position])?;
    for trips in 0..=MAX_SIMULATED {
        if (evaluate(program, comparison, param, at)? == 1) == breaks_when {
            return Some(ConstTripCount { test, trips });
        }
        at = evaluate(program, step, param, at)?;
    }
    None
}

/// Evaluates an operation on literals and a parameter with these bits.
fn evaluate(program: &Program, id: InstId, param: ValueId, bits: u64) -> Option<u64> {
    let inst = program.inst(id);
    let [result] = inst.results[..] else { return None };
    let operand = |&value: &ValueId| if value == param { Some(bits) } else { literal(program, value) };
    let operands: Option<Vec<u64>> = inst.operands.iter().map(operand).collect();
    let evaluator = inst.op.info().evaluator(program.class(inst), program.ty(result))?;
    Some(evaluator(&operands?))
}

fn literal(program: &Program, value: ValueId) -> Option<u64> {
    match program.def(value) {
        Def::Literal(bits) => Some(bits),
        Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
    }
}

/// Value of a 32-bit integer literal.
pub(super) fn integer(program: &Program, value: ValueId) -> Option<i64> {
    let literal = literal(program, value)?;
    match program.ty(value) {
        Type::U32 => Some(i64::from(literal as u32)),
        Type::I32 => Some(i64::from(literal as u32 as i32)),
        _ => None,
    }
}

/// The induction variable of a loop, if it is counted.
pub fn counted(program: &Program, id: InstId) -> Option<Counted> {
    let inst = program.inst(id);
    let body = *inst.blocks.first().filter(|_| inst.op == Control::Loop)?;
    let (test, condition, breaks_when) = exit_test(program, body)?;
    let Def::Result(comparison, 0) = program.def(condition) else { return None };
    let comparison = program.inst(comparison);
    let Op::Pure(op) = comparison.op else { return None };
    // A loop that continues while two numbers are equal is not counted: it iterates once if they are equal at the
    // start.
    let predicate = op.comparison()?.when(!breaks_when);
    if predicate == Comparison::Eq {
        return None;
    }
    let params = &program.block(body).params;
    let position_of = |value: ValueId| params.iter().position(|&param| param == value);
    let (position, predicate, bound) = match (position_of(comparison.operands[0]), position_of(comparison.operands[1]))
    {
        (Some(position), None) => (position, predicate, comparison.operands[1]),
        (None, Some(position)) => (position, predicate.swapped(), comparison.operands[0]),
        _ => return None,
    };
    let param = params[position];
    if !matches!(program.ty(param), Type::U32 | Type::I32) || !is_loop_invariant(program, bound, body) {
        return None;
    }
    let mut step = None;
    if !every_continue(program, body, &mut |operands| {
        let added = added_literal(program, operands[position], param);
        let same = added.is_some() && step.is_none_or(|known| Some(known) == added);
        step = added;
        same
    }) {
        return None;
    }
    Some(Counted { position, param, start: inst.operands[position], step: step?, predicate, bound, test })
}

/// The exit test of a loop: its first instruction that is not pure. Returns the instruction, its condition, and the
/// value of the condition for which it breaks.
fn exit_test(program: &Program, body: BlockId) -> Option<(InstId, ValueId, bool)> {
    let is_simple = |kind| matches!(kind, Kind::Pure | Kind::PerGroup | Kind::PerInvocation);
    let mut insts = program.block(body).insts.iter();
    let &first = insts.find(|&&id| !is_simple(program.inst(id).op.kind()))?;
    breaks_when(program, first).map(|breaks| (first, program.inst(first).operands[0], breaks))
}

/// If an instruction is an `if` with one arm that only breaks and one empty arm, returns the condition for which it
/// breaks.
pub(crate) fn breaks_when(program: &Program, id: InstId) -> Option<bool> {
    let test = program.inst(id);
    if test.op != Control::If || !test.results.is_empty() {
        return None;
    }
    let only = |arm: usize| match program.block(test.blocks[arm]).insts[..] {
        [last] => Some(&program.inst(last).op),
        _ => None,
    };
    match (only(0)?, only(1)?) {
        (Op::Terminator(Terminator::Break), Op::Terminator(Terminator::Yield)) => Some(true),
        (Op::Terminator(Terminator::Yield), Op::Terminator(Terminator::Break)) => Some(false),
        _ => None,
    }
}

/// Returns true if a value is loop-invariant: a literal, a constant, or defined outside the body that uses it.
pub fn is_loop_invariant(program: &Program, value: ValueId, body: BlockId) -> bool {
    match program.def(value) {
        Def::Literal(_) | Def::Constant(_) => true,
        Def::Param(block, _) => block != body,
        // An operand in the body is defined in the body or outside of it.
        Def::Result(inst, _) => !program.block(body).insts.contains(&inst),
    }
}

/// Change of an induction variable per iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Increment {
    /// Addition of this value.
    Add(ValueId),
    /// Subtraction of this value.
    Sub(ValueId),
}

impl Increment {
    /// The increment that computes `next` from `value`, if it is a sum or difference.
    pub fn between(program: &Program, value: ValueId, next: ValueId) -> Option<Increment> {
        let Def::Result(inst, 0) = program.def(next) else { return None };
        let inst = program.inst(inst);
        match (&inst.op, &inst.operands[..]) {
            (Op::Pure(Pure::Add), &[a, b]) if a == value => Some(Increment::Add(b)),
            (Op::Pure(Pure::Add), &[a, b]) if b == value => Some(Increment::Add(a)),
            (Op::Pure(Pure::Sub), &[a, b]) if a == value => Some(Increment::Sub(b)),
            _ => None,
        }
    }
}

/// The nonzero literal that is added to a 32-bit parameter.
fn added_literal(program: &Program, next: ValueId, param: ValueId) -> Option<i64> {
    let signed = |value: ValueId| integer(program, value).map(|number| i64::from(number as u32 as i32));
    let step = match Increment::between(program, param, next)? {
        Increment::Add(step) => signed(step)?,
        Increment::Sub(step) => -signed(step)?,
    };
    (step != 0).then_some(step)
}

/// Returns true if `holds` for the operands of every `continue` of the loop with this body.
fn every_continue(program: &Program, body: BlockId, holds: &mut impl FnMut(&[ValueId]) -> bool) -> bool {
    let mut all = true;
    visit_exits(program, body, &mut |id, exit| {
        all &= exit != Terminator::Continue || holds(&program.inst(id).operands);
    });
    all
}
