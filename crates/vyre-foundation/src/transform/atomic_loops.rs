//! Expansion of atomic read-modify-writes into compare-exchange loops, for devices without native support.

use crate::Validated;
use crate::ir::ops::Atomic;
use crate::ir::{BlockId, Control, Inst, InstId, MemOperand, Op, PerGroup, Program, Pure, Terminator, Type, ValueId};
use crate::validate;

use super::{emit, replace_insts};

/// Replaces the atomics for which `expands` returns true by loops that load the element, compute the new value, and
/// retry the compare-exchange until it succeeds. Each retry is a loop iteration and consumes fuel.
pub fn atomic_loops(program: &Validated<Program>, expands: impl Fn(Atomic, MemOperand) -> bool) -> Validated<Program> {
    let selects = |inst: &Inst| match inst.op {
        Op::Atomic(op, at) if expands(op, at) => Some((op.function()?, at)),
        _ => None,
    };
    let expanded = replace_insts(program, selects, |program, to, id, (function, at), renaming| {
        let old = expand(program, to, id, function, at);
        renaming.replace(program.inst(id).results[0], old);
    });
    match expanded {
        Some(expanded) => validate::program(expanded).expect("the loop has the type of the atomic, and no barriers"),
        None => program.clone(),
    }
}

/// Appends the loop to a block. Returns the old value.
fn expand(program: &mut Program, to: BlockId, id: InstId, function: Pure, at: MemOperand) -> ValueId {
    let Inst { operands, span, .. } = program.inst(id).clone();
    let (index, operand, ty) = (operands[0], operands[1], at.value_type());
    let in_bounds = bounds_check(program, to, index, at, span);
    let first = emit(program, to, Op::Load(at), &[index], ty, span);
    let body = program.add_block();
    let old = program.add_param(body, ty);
    let new = emit(program, body, function, &[old, operand], ty, span);
    let exchange = Op::CompareExchange(at);
    let exchange = program.push(body, exchange, [index, old, new], &[ty, Type::Bool], [], span);
    let (found, replaced) = (program.inst(exchange).results[0], program.inst(exchange).results[1]);
    let out_of_bounds = emit(program, body, Pure::Not, &[in_bounds], Type::Bool, span);
    let done = emit(program, body, Pure::Or, &[replaced, out_of_bounds], Type::Bool, span);
    let (leave, retry) = (program.add_block(), program.add_block());
    program.push(leave, Terminator::Break, [found], &[], [], span);
    program.push(retry, Terminator::Yield, [], &[], [], span);
    program.push(body, Control::If, [done], &[], [leave, retry], span);
    program.push(body, Terminator::Continue, [found], &[], [], span);
    let whole = program.push(to, Control::Loop, [first], &[ty], [body], span);
    program.inst(whole).results[0]
}

/// Emits the bounds check of an index, in elements of the access.
fn bounds_check(program: &mut Program, to: BlockId, index: ValueId, at: MemOperand, span: crate::ir::Span) -> ValueId {
    let (own, accessed) = (program.memory(at.memory).element.size(), at.element.size());
    let mut length = emit(program, to, PerGroup::Length(at.memory), &[], Type::U32, span);
    if own != accessed {
        let (op, factor) = if own > accessed { (Pure::Mul, own / accessed) } else { (Pure::Div, accessed / own) };
        let factor = program.literal(factor as u32);
        length = emit(program, to, op, &[length, factor], Type::U32, span);
    }
    emit(program, to, Pure::Lt, &[index, length], Type::Bool, span)
}
