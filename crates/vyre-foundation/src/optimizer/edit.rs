//! What passes have in common when they change programs.

use rustc_hash::FxHashMap;

use crate::ir::{BlockId, Inst, InstId, Op, Program, Span, Type, ValueId};

/// Values that are to be replaced by others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renaming(FxHashMap<ValueId, ValueId>);

impl Renaming {
    /// From now on, `new` stands for `old`.
    pub(crate) fn replace(&mut self, old: ValueId, new: ValueId) {
        let new = self.get(new);
        if old != new {
            self.0.insert(old, new);
        }
    }

    /// What stands for a value.
    pub(crate) fn get(&self, mut value: ValueId) -> ValueId {
        while let Some(&new) = self.0.get(&value) {
            value = new;
        }
        value
    }

    /// Whether nothing is replaced.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the operands of one instruction.
    pub(crate) fn apply_to(&self, inst: &mut Inst) {
        if !self.is_empty() {
            for operand in &mut inst.operands {
                *operand = self.get(*operand);
            }
        }
    }

    /// Replaces operands everywhere, and says whether there was anything to replace.
    pub(crate) fn apply(&self, program: &mut Program) -> bool {
        if self.is_empty() {
            return false;
        }
        for id in reachable(program) {
            self.apply_to(&mut program.insts[id]);
        }
        true
    }
}

/// All instructions that are reachable from the body, in the order of the text.
pub(crate) fn reachable(program: &Program) -> Vec<InstId> {
    let mut all = Vec::with_capacity(program.insts.len());
    program.walk(|inst, _| all.push(inst));
    all
}

/// All blocks that are reachable from the body, outer ones first.
pub(crate) fn reachable_blocks(program: &Program) -> Vec<BlockId> {
    let mut all = vec![program.body];
    let mut next = 0;
    while let Some(&block) = all.get(next) {
        next += 1;
        for &inst in &program.blocks[block].insts {
            all.extend_from_slice(&program.insts[inst].blocks);
        }
    }
    all
}

/// A new instruction of one result that stands nowhere yet: the caller puts it into a block.
pub(crate) fn make(program: &mut Program, op: Op, operands: &[ValueId], ty: Type, span: Span) -> (InstId, ValueId) {
    let inst = program.make(op, operands.iter().copied(), &[ty], [], span);
    (inst, program.insts[inst].results[0])
}

/// A copy of a block, with everything nested in it. Values defined outside stay as they are, unless `renaming` says
/// otherwise; what the copy defines is added to `renaming`.
pub(crate) fn copy_block(program: &mut Program, block: BlockId, renaming: &mut Renaming) -> BlockId {
    let copy = program.block();
    for param in program.blocks[block].params.clone() {
        let ty = program.ty(param);
        let new = program.param(copy, ty);
        renaming.replace(param, new);
    }
    copy_insts(program, &program.blocks[block].insts.clone(), copy, renaming);
    copy
}

/// Appends copies of instructions to a block; see [`copy_block`].
pub(crate) fn copy_insts(program: &mut Program, insts: &[InstId], into: BlockId, renaming: &mut Renaming) {
    for &id in insts {
        let inst = program.insts[id].clone();
        let operands: Vec<ValueId> = inst.operands.iter().map(|&operand| renaming.get(operand)).collect();
        let types: Vec<Type> = inst.results.iter().map(|&result| program.ty(result)).collect();
        let blocks: Vec<BlockId> = inst.blocks.iter().map(|&nested| copy_block(program, nested, renaming)).collect();
        let copy = program.push(into, inst.op, operands, &types, blocks, inst.span);
        for (position, &result) in inst.results.iter().enumerate() {
            let new = program.insts[copy].results[position];
            renaming.replace(result, new);
            if let Some(name) = program.names.get(&result).cloned() {
                program.names.insert(new, name);
            }
        }
    }
}
