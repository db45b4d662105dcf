//! Loops that count.
//!
//! A loop counts when it is left at the start of a trip by a comparison of a parameter with a bound that does not change,
//! and every `continue` adds the same literal to that parameter. How often it goes round is known if start and bound are
//! literals; it is also known of loops that shift, multiply or otherwise step a parameter by one operation, because the few
//! trips of such a loop can be gone through.

use crate::ir::ops::{Kind, Op};
use crate::ir::{BlockId, Def, InstId, Program, Type, ValueId};

/// A loop that counts in a 32-bit integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The position of the parameter that counts.
    pub position: usize,
    /// The parameter.
    pub param: ValueId,
    /// What it starts with.
    pub start: ValueId,
    /// What every trip adds; not zero.
    pub step: i64,
    /// The comparison that is true as long as the loop goes on: `lt`, `le`, `gt`, `ge` or `ne` of the parameter and the
    /// bound.
    pub stays: Stays,
    /// What it is compared with.
    pub bound: ValueId,
    /// The `if` that leaves the loop.
    pub test: InstId,
}

/// The comparison of a parameter with a bound that keeps a loop going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `!=`
    Ne,
}

impl Counted {
    /// How often the loop goes round, if start and bound are literals and the count does not wrap.
    pub fn trips(&self, program: &Program) -> Option<u64> {
        let (start, bound) = (integer(program, self.start)?, integer(program, self.bound)?);
        let (least, most) = match program.ty(self.param) {
            Type::U32 => (0, i64::from(u32::MAX)),
            Type::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => return None,
        };
        let step = self.step;
        // The distance to the first value that ends the loop, counted in the direction of the step.
        let distance = match (self.stays, step > 0) {
            (Stays::Lt, true) => bound - start,
            (Stays::Le, true) => bound + 1 - start,
            (Stays::Gt, false) => start - bound,
            (Stays::Ge, false) => start + 1 - bound,
            (Stays::Ne, true) if (bound - start) % step == 0 => bound - start,
            (Stays::Ne, false) if (start - bound) % step == 0 => start - bound,
            _ => return None,
        };
        if distance <= 0 {
            return (self.stays != Stays::Ne || distance == 0).then_some(0);
        }
        let trips = (distance + step.abs() - 1) / step.abs();
        let last = start + trips * step;
        (least..=most).contains(&last).then_some(trips as u64)
    }
}

/// Where a loop is left and continued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Instructions that leave it.
    pub breaks: Vec<InstId>,
    /// Instructions that go on with its next trip.
    pub continues: Vec<InstId>,
}

/// The exits of the loop with this body, not those of loops inside it.
pub fn exits_of(program: &Program, body: BlockId) -> Exits {
    fn block(program: &Program, id: BlockId, exits: &mut Exits) {
        for &id in &program.blocks[id].insts {
            match &program.insts[id].op {
                Op::Break => exits.breaks.push(id),
                Op::Continue => exits.continues.push(id),
                Op::Loop => {}
                _ => program.insts[id].blocks.iter().for_each(|&nested| block(program, nested, exits)),
            }
        }
    }
    let mut exits = Exits::default();
    block(program, body, &mut exits);
    exits
}

/// The instructions by which blocks of an instruction, which is no loop, give its results.
pub fn yields_of(program: &Program, id: InstId) -> Vec<InstId> {
    let ends = program.insts[id].blocks.iter().filter_map(|&block| program.blocks[block].insts.last().copied());
    ends.filter(|&end| program.insts[end].op == Op::Yield).collect()
}

/// What several exits give at a position.
pub fn given(program: &Program, exits: &[InstId], position: usize) -> Vec<ValueId> {
    exits.iter().map(|&exit| program.insts[exit].operands[position]).collect()
}

/// A loop that goes round a known number of times, unless it is left early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finite {
    /// The `if` that leaves the loop.
    pub test: InstId,
    /// How often the test lets it go on.
    pub trips: u64,
}

/// Trips that are gone through to know how many there are.
const TRIED: u64 = 64;

/// How often a loop goes round, if that is known.
pub fn finite(program: &Program, id: InstId) -> Option<Finite> {
    if let Some(counted) = counted(program, id)
        && let Some(trips) = counted.trips(program)
    {
        return Some(Finite { test: counted.test, trips });
    }
    let inst = &program.insts[id];
    let body = *inst.blocks.first().filter(|_| inst.op == Op::Loop)?;
    let (test, condition, leaves_when) = exit_test(program, body)?;
    let Def::Result(comparison, 0) = program.values[condition].def else { return None };
    let param = *program.insts[comparison].operands.iter().find(|operand| literal(program, **operand).is_none())?;
    let position = program.blocks[body].params.iter().position(|&candidate| candidate == param)?;
    let mut step = None;
    let one_step = every_continue(program, body, &mut |operands| {
        let same = step.is_none_or(|known| known == operands[position]);
        step = Some(operands[position]);
        same
    });
    let Def::Result(step, 0) = program.values[step.filter(|_| one_step)?].def else { return None };
    let mut at = literal(program, inst.operands[position])?;
    for trips in 0..=TRIED {
        if (evaluate(program, comparison, param, at)? == 1) == leaves_when {
            return Some(Finite { test, trips });
        }
        at = evaluate(program, step, param, at)?;
    }
    None
}

/// What an operation on a parameter and literals gives, if the parameter has these bits.
fn evaluate(program: &Program, id: InstId, param: ValueId, bits: u64) -> Option<u64> {
    let inst = &program.insts[id];
    let [result] = inst.results[..] else { return None };
    let operand = |&value: &ValueId| if value == param { Some(bits) } else { literal(program, value) };
    let operands: Option<Vec<u64>> = inst.operands.iter().map(operand).collect();
    let evaluator = inst.op.row().evaluator(program.class(inst), program.ty(result))?;
    Some(evaluator(&operands?))
}

fn literal(program: &Program, value: ValueId) -> Option<u64> {
    match program.values[value].def {
        Def::Literal(bits) => Some(bits),
        Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
    }
}

/// The literal that a value is, as a number.
pub(super) fn integer(program: &Program, value: ValueId) -> Option<i64> {
    let literal = literal(program, value)?;
    match program.ty(value) {
        Type::U32 => Some(i64::from(literal as u32)),
        Type::I32 => Some(i64::from(literal as u32 as i32)),
        _ => None,
    }
}

/// How a loop counts, if it does.
pub fn counted(program: &Program, id: InstId) -> Option<Counted> {
    let inst = &program.insts[id];
    let body = *inst.blocks.first().filter(|_| inst.op == Op::Loop)?;
    let (test, condition, leaves_when) = exit_test(program, body)?;
    let Def::Result(comparison, 0) = program.values[condition].def else { return None };
    let comparison = &program.insts[comparison];
    let stays = match (&comparison.op, leaves_when) {
        (Op::Lt, false) | (Op::Ge, true) => Stays::Lt,
        (Op::Le, false) | (Op::Gt, true) => Stays::Le,
        (Op::Gt, false) | (Op::Le, true) => Stays::Gt,
        (Op::Ge, false) | (Op::Lt, true) => Stays::Ge,
        (Op::Ne, false) | (Op::Eq, true) => Stays::Ne,
        _ => return None,
    };
    let params = &program.blocks[body].params;
    let position_of = |value: ValueId| params.iter().position(|&param| param == value);
    let (position, stays, bound) = match (position_of(comparison.operands[0]), position_of(comparison.operands[1])) {
        (Some(position), None) => (position, stays, comparison.operands[1]),
        (None, Some(position)) => (position, mirrored(stays), comparison.operands[0]),
        _ => return None,
    };
    let param = params[position];
    if !matches!(program.ty(param), Type::U32 | Type::I32) || !is_outside(program, bound, body) {
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
    Some(Counted { position, param, start: inst.operands[position], step: step?, stays, bound, test })
}

const fn mirrored(stays: Stays) -> Stays {
    match stays {
        Stays::Lt => Stays::Gt,
        Stays::Le => Stays::Ge,
        Stays::Gt => Stays::Lt,
        Stays::Ge => Stays::Le,
        Stays::Ne => Stays::Ne,
    }
}

/// The first instruction of a block that is not pure, if it is an exit test: the instruction, its condition, and for which
/// value of that it breaks.
fn exit_test(program: &Program, body: BlockId) -> Option<(InstId, ValueId, bool)> {
    let is_simple = |kind| matches!(kind, Kind::Pure | Kind::PerGroup | Kind::PerInvocation);
    let mut insts = program.blocks[body].insts.iter();
    let &first = insts.find(|&&id| !is_simple(program.insts[id].op.row().kind))?;
    leaves_when(program, first).map(|breaks| (first, program.insts[first].operands[0], breaks))
}

/// If an instruction is an `if` of which one arm just breaks and the other does nothing, for which condition it breaks.
pub(crate) fn leaves_when(program: &Program, id: InstId) -> Option<bool> {
    let test = &program.insts[id];
    if test.op != Op::If || !test.results.is_empty() {
        return None;
    }
    let only = |arm: usize| match program.blocks[test.blocks[arm]].insts[..] {
        [last] => Some(&program.insts[last].op),
        _ => None,
    };
    match (only(0)?, only(1)?) {
        (Op::Break, Op::Yield) => Some(true),
        (Op::Yield, Op::Break) => Some(false),
        _ => None,
    }
}

/// Whether a value is a literal, a constant, or defined outside a block whose instructions use it.
pub fn is_outside(program: &Program, value: ValueId, body: BlockId) -> bool {
    match program.values[value].def {
        Def::Literal(_) | Def::Constant(_) => true,
        Def::Param(block, _) => block != body,
        // What instructions of the body itself use is a result of other such instructions or comes from outside.
        Def::Result(inst, _) => !program.blocks[body].insts.contains(&inst),
    }
}

/// The literal that `value` adds to `param`, if it does.
fn added_literal(program: &Program, value: ValueId, param: ValueId) -> Option<i64> {
    let Def::Result(inst, 0) = program.values[value].def else { return None };
    let inst = &program.insts[inst];
    let literal = |value| integer(program, value);
    let signed = |number: i64| i64::from(number as u32 as i32);
    let step = match (&inst.op, &inst.operands[..]) {
        (Op::Add, &[a, b]) if a == param => signed(literal(b)?),
        (Op::Add, &[a, b]) if b == param => signed(literal(a)?),
        (Op::Sub, &[a, b]) if a == param => -signed(literal(b)?),
        _ => return None,
    };
    (step != 0).then_some(step)
}

/// Whether `holds` for the operands of every `continue` of the loop with this body.
fn every_continue(program: &Program, block: BlockId, holds: &mut impl FnMut(&[ValueId]) -> bool) -> bool {
    program.blocks[block].insts.iter().all(|&id| {
        let inst = &program.insts[id];
        match inst.op {
            Op::Continue => holds(&inst.operands),
            // Its `continue`s are its own.
            Op::Loop => true,
            _ => inst.blocks.iter().all(|&nested| every_continue(program, nested, holds)),
        }
    })
}
