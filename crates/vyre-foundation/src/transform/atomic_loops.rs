//! Expansion of atomic read-modify-writes into compare-exchange loops, for devices without native support.

use crate::Validated;
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::Atomic;
use crate::ir::{
    BlockId, Control, Element, Inst, InstId, MemId, MemOperand, Op, PerGroup, Program, Pure, Renaming, Span,
    Terminator, Type, ValueId,
};
use crate::validate;

use super::{emit, replace_insts};

/// Legalization of atomics on floats: they become atomics on unsigned integers of the same size with bitcasts, and read-modify-writes that
/// compute floats become compare-exchange loops as in [`atomic_loops`]. Plain accesses to the same float type of the object are converted
/// too, so that an object of floats keeps a single access type.
///
/// Atomic loads and stores of f64 remain if the object has no read-modify-writes of f64: the device may have no 64-bit integers.
pub fn integer_atomics(program: &Validated<Program>) -> Validated<Program> {
    let mut replaced: SecondaryMap<MemId, [bool; 2]> =
        SecondaryMap::with_capacity(program.memories().len(), [false; 2]);
    program.walk(|id, _| {
        let op = &program.inst(id).op;
        match op.operand() {
            Some(at) if at.atomic && at.element == Element::F32 => replaced[at.memory][0] = true,
            Some(at) if op.atomic().is_some() && at.element == Element::F64 => replaced[at.memory][1] = true,
            _ => {}
        }
    });
    let selects = |inst: &Inst| {
        let at = inst.op.operand()?;
        let [narrow, wide] = replaced[at.memory];
        (at.element == Element::F32 && narrow || at.element == Element::F64 && wide).then_some(at)
    };
    let expanded = replace_insts(program, selects, |program, to, id, at, renaming| {
        let op = program.inst(id).op.clone();
        let function = match op {
            Op::Atomic(op, _) => op.function(),
            _ => None,
        };
        match function {
            Some(function) => {
                let old = expand(program, to, id, function, at);
                renaming.replace(program.inst(id).results[0], old);
            }
            None => access_bits(program, to, id, &op, at, renaming),
        }
    });
    match expanded {
        Some(expanded) => validate::program(expanded).expect("bits have the types of the accesses"),
        None => program.clone(),
    }
}

/// Emits a load, store or exchange of floats as an access to unsigned integers.
fn access_bits(program: &mut Program, to: BlockId, id: InstId, op: &Op, at: MemOperand, renaming: &mut Renaming) {
    let Inst { mut operands, results, span, .. } = program.inst(id).clone();
    let words = words_of(at);
    for operand in &mut operands[1..] {
        *operand = bitcast(program, to, *operand, words.value_type(), span);
    }
    let op = match op {
        Op::Load(_) => Op::Load(words),
        Op::Store(_) => Op::Store(words),
        Op::Atomic(op, _) => Op::Atomic(*op, words),
        _ => unreachable!("validated: floats are not compared and exchanged"),
    };
    let types: Vec<Type> = results.iter().map(|_| words.value_type()).collect();
    let access = program.push(to, op, operands, &types, [], span);
    for (position, &result) in results.iter().enumerate() {
        let bits = program.inst(access).results[position];
        let value = bitcast(program, to, bits, at.value_type(), span);
        renaming.replace(result, value);
    }
}

/// Memory operand of the same bytes as unsigned integers, if they are floats.
fn words_of(at: MemOperand) -> MemOperand {
    let element = match at.element {
        Element::F32 => Element::U32,
        Element::F64 => Element::U64,
        element => element,
    };
    MemOperand { element, ..at }
}

/// Emits a bitcast, unless the value has the type already.
fn bitcast(program: &mut Program, to: BlockId, value: ValueId, ty: Type, span: Span) -> ValueId {
    if program.ty(value) == ty { value } else { emit(program, to, Pure::Bitcast, &[value], ty, span) }
}

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
    let (index, operand, value_ty) = (operands[0], operands[1], at.value_type());
    let at = words_of(at);
    let ty = at.value_type();
    let in_bounds = bounds_check(program, to, index, at, span);
    let first = emit(program, to, Op::Load(at), &[index], ty, span);
    let body = program.add_block();
    let old = program.add_param(body, ty);
    let current = bitcast(program, body, old, value_ty, span);
    let new = emit(program, body, function, &[current, operand], value_ty, span);
    let new = bitcast(program, body, new, ty, span);
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
    let result = program.inst(whole).results[0];
    bitcast(program, to, result, value_ty, span)
}

/// Emits the bounds check of an index, in elements of the access.
fn bounds_check(program: &mut Program, to: BlockId, index: ValueId, at: MemOperand, span: Span) -> ValueId {
    let (own, accessed) = (program.memory(at.memory).element.size(), at.element.size());
    let mut length = emit(program, to, PerGroup::Length(at.memory), &[], Type::U32, span);
    if own != accessed {
        let (op, factor) = if own > accessed { (Pure::Mul, own / accessed) } else { (Pure::Div, accessed / own) };
        let factor = program.literal(factor as u32);
        length = emit(program, to, op, &[length, factor], Type::U32, span);
    }
    emit(program, to, Pure::Lt, &[index, length], Type::Bool, span)
}
