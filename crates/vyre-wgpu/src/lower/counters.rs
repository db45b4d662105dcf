//! Workaround for loop counters that wrap around.
//!
//! Mesa computes the trip count of a loop from the initial value, the step and the limit of an induction variable as
//! `(limit − initial) / step`, evaluates the exit condition for that trip alone, and unrolls the loop that many times
//! without it. A counter that wraps around meets the condition in an earlier trip, which Mesa 22.3 misses
//! (`calculate_iterations` in `nir_loop_analyze.c`). On such a driver the initial value of a counter that may wrap is
//! opaque (a zero loaded at run time is xored in), so that the loop has no constant trip count and keeps its condition.

use vyre_foundation::analysis::{Increment, const_trip_count, exits_of};
use vyre_foundation::ir::{InstId, Op, Program, Pure, Type, ValueId};

/// Returns whether an integer parameter of a loop may wrap around: its value range is unknown or exceeds its type, or the
/// parameter is cast and the range exceeds the type of the other signedness.
pub(super) fn may_wrap(program: &Program, id: InstId, position: usize) -> bool {
    let inst = program.inst(id);
    let param = program.block(inst.blocks[0]).params[position];
    let Some((least, most)) = range(program.ty(param)) else { return false };
    let Some((low, high)) = values(program, id, position, param) else { return true };
    // A comparison with the other signedness has a different range.
    let changes_sign = low < 0 || high > signed_most(program.ty(param));
    low < least || high > most || (changes_sign && is_reinterpreted(program, id, position, param))
}

/// Minimum and maximum of an integer type.
fn range(ty: Type) -> Option<(i128, i128)> {
    match ty {
        Type::U32 => Some((0, u32::MAX.into())),
        Type::I32 => Some((i32::MIN.into(), i32::MAX.into())),
        Type::U64 => Some((0, u64::MAX.into())),
        Type::I64 => Some((i64::MIN.into(), i64::MAX.into())),
        Type::Bool | Type::F16 | Type::F32 | Type::F64 => None,
    }
}

fn signed_most(ty: Type) -> i128 {
    if ty.bits() == 64 { i64::MAX.into() } else { i32::MAX.into() }
}

/// Value range of an induction variable with literal start and steps, in a loop of constant trip count `n`. Includes the value
/// after `n + 1` steps, which may be computed before the loop exits.
fn values(program: &Program, id: InstId, position: usize, param: ValueId) -> Option<(i128, i128)> {
    let start = number(program, program.inst(id).operands[position], program.ty(param))?;
    let steps = i128::from(const_trip_count(program, id)?.trips) + 1;
    let (mut low, mut high) = (start, start);
    for exit in exits_of(program, program.inst(id).blocks[0]).continues {
        let step = step(program, program.inst(exit).operands[position], param)?;
        low = low.min(start.checked_add(steps.checked_mul(step)?)?);
        high = high.max(start.checked_add(steps.checked_mul(step)?)?);
    }
    Some((low, high))
}

/// Signed difference between the next value of a parameter and the parameter.
fn step(program: &Program, next: ValueId, param: ValueId) -> Option<i128> {
    if next == param {
        return Some(0);
    }
    let signed = if program.ty(param).bits() == 64 { Type::I64 } else { Type::I32 };
    match Increment::between(program, param, next)? {
        Increment::Add(step) => number(program, step, signed),
        Increment::Sub(step) => number(program, step, signed).map(|step| -step),
    }
}

/// Number that the bits of a literal are in an integer type.
fn number(program: &Program, value: ValueId, ty: Type) -> Option<i128> {
    let bits = program.known(value)?.bits;
    match ty {
        Type::U32 => Some(i128::from(bits as u32)),
        Type::I32 => Some(i128::from(bits as u32 as i32)),
        Type::U64 => Some(i128::from(bits)),
        Type::I64 => Some(i128::from(bits as i64)),
        Type::Bool | Type::F16 | Type::F32 | Type::F64 => None,
    }
}

/// Returns whether a parameter or its next value is used as a number of another type.
fn is_reinterpreted(program: &Program, id: InstId, position: usize, param: ValueId) -> bool {
    let mut counters = vec![param];
    let exits = exits_of(program, program.inst(id).blocks[0]);
    counters.extend(exits.continues.iter().map(|&exit| program.inst(exit).operands[position]));
    program.insts().values().any(|inst| {
        matches!(inst.op, Op::Pure(Pure::Bitcast | Pure::Cast))
            && inst.operands.iter().any(|operand| counters.contains(operand))
    })
}
