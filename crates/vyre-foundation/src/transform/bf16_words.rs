//! Legalization of bf16 elements, for backends that have no such type: they become 16-bit integers.
//!
//! A load shifts the 16 bits to the upper half of an f32. A store rounds to nearest, ties to even, by adding half of the last place to the
//! bits, and makes NaNs quiet.

use crate::Validated;
use crate::ir::{BlockId, Element, Inst, InstId, MemOperand, Op, Program, Pure, Renaming, Space, Span, Type, ValueId};
use crate::validate;

use super::{emit, replace_insts};

/// Replaces accesses to elements of bf16 by accesses to elements of u16, also in declarations; uniform scalars become f32, which is the type
/// of their arguments. Programs without bf16 are returned unchanged.
pub fn bf16_words(program: &Validated<Program>) -> Validated<Program> {
    let selects = |inst: &Inst| inst.op.operand().filter(|at| at.element == Element::BF16);
    let replaced = replace_insts(program, selects, replace);
    let is_declared = program.memories().values().any(|memory| memory.element == Element::BF16);
    if replaced.is_none() && !is_declared {
        return program.clone();
    }
    let mut legal = replaced.unwrap_or_else(|| (**program).clone());
    for (id, memory) in program.memories().iter().filter(|(_, memory)| memory.element == Element::BF16) {
        legal.memory_mut(id).element = if memory.space == Space::Uniform { Element::F32 } else { Element::U16 };
    }
    validate::program(legal).expect("integers are accessed as the floats were")
}

fn replace(program: &mut Program, to: BlockId, id: InstId, at: MemOperand, renaming: &mut Renaming) {
    let Inst { op, operands, results, span, .. } = program.inst(id).clone();
    if program.memory(at.memory).space == Space::Uniform {
        let scalar = emit(program, to, Op::Load(MemOperand { element: Element::F32, ..at }), &[], Type::F32, span);
        renaming.replace(results[0], scalar);
        return;
    }
    let at = MemOperand { element: Element::U16, ..at };
    if matches!(op, Op::Load(_)) {
        let types = vec![Type::U32; results.len()];
        let load = program.push(to, Op::Load(at), operands, &types, [], span);
        for (position, &result) in results.iter().enumerate() {
            let bits = program.inst(load).results[position];
            let value = widened(program, to, bits, span);
            renaming.replace(result, value);
        }
    } else {
        let mut words = operands.clone();
        for value in &mut words[1..] {
            *value = rounded(program, to, *value, span);
        }
        program.push(to, Op::Store(at), words, &[], [], span);
    }
}

/// Emits the f32 with the bits of a bf16.
fn widened(program: &mut Program, to: BlockId, bits: ValueId, span: Span) -> ValueId {
    let half = program.literal(16u32);
    let bits = emit(program, to, Pure::Shl, &[bits, half], Type::U32, span);
    emit(program, to, Pure::Bitcast, &[bits], Type::F32, span)
}

/// Emits the bits of the bf16 that is nearest to an f32.
fn rounded(program: &mut Program, to: BlockId, value: ValueId, span: Span) -> ValueId {
    let [half, one, below, quiet] = [16u32, 1, 0x7fff, 0x40].map(|number| program.literal(number));
    let bits = emit(program, to, Pure::Bitcast, &[value], Type::U32, span);
    let upper = emit(program, to, Pure::Shr, &[bits, half], Type::U32, span);
    let odd = emit(program, to, Pure::And, &[upper, one], Type::U32, span);
    let increment = emit(program, to, Pure::Add, &[odd, below], Type::U32, span);
    let sum = emit(program, to, Pure::Add, &[bits, increment], Type::U32, span);
    let nearest = emit(program, to, Pure::Shr, &[sum, half], Type::U32, span);
    // The increment could turn a NaN into an infinity or a zero.
    let nan = emit(program, to, Pure::Or, &[upper, quiet], Type::U32, span);
    let is_nan = emit(program, to, Pure::Ne, &[value, value], Type::Bool, span);
    emit(program, to, Pure::Select, &[is_nan, nan, nearest], Type::U32, span)
}
