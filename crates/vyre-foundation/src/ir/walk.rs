//! Traversal of nested blocks: every pass, analysis and backend that visits instructions starts here.

use super::entity::{BlockId, InstId};
use super::ops::{Control, Op, Terminator};
use super::program::Program;

impl Program {
    /// Calls `visit` with every instruction that is reachable from the body and its nesting depth, in preorder.
    pub fn walk(&self, visit: impl FnMut(InstId, usize)) {
        self.walk_block(self.body(), visit);
    }

    /// Calls `visit` with every instruction of a block and of the blocks nested in it, in preorder, with its depth below the block.
    pub fn walk_block(&self, block: BlockId, mut visit: impl FnMut(InstId, usize)) {
        // An explicit stack, because the nesting depth of an unvalidated program is unbounded.
        let mut stack = vec![(block, 0, 0)];
        while let Some((block, first, depth)) = stack.pop() {
            for (position, &inst) in self.block(block).insts.iter().enumerate().skip(first) {
                visit(inst, depth);
                let nested = &self.inst(inst).blocks;
                if !nested.is_empty() {
                    stack.push((block, position + 1, depth));
                    stack.extend(nested.iter().rev().map(|&nested| (nested, 0, depth + 1)));
                    break;
                }
            }
        }
    }

    /// Number of instructions of a block and of the blocks nested in it.
    pub fn count_insts(&self, block: BlockId) -> usize {
        let mut count = 0;
        self.walk_block(block, |_, _| count += 1);
        count
    }

    /// All reachable instructions, in preorder.
    pub fn reachable_insts(&self) -> Vec<InstId> {
        let mut all = Vec::with_capacity(self.insts().len());
        self.walk(|inst, _| all.push(inst));
        all
    }

    /// All reachable blocks, outer ones before nested ones.
    pub fn reachable_blocks(&self) -> Vec<BlockId> {
        let mut all = vec![self.body()];
        let mut next = 0;
        while let Some(&block) = all.get(next) {
            next += 1;
            for &inst in &self.block(block).insts {
                all.extend_from_slice(&self.inst(inst).blocks);
            }
        }
        all
    }

    /// Instructions of a list and the instructions nested in them, in no particular order.
    pub fn nested_in(&self, insts: &[InstId]) -> Vec<InstId> {
        let mut all = insts.to_vec();
        let mut next = 0;
        while let Some(&inst) = all.get(next) {
            next += 1;
            for &block in &self.inst(inst).blocks {
                all.extend_from_slice(&self.block(block).insts);
            }
        }
        all
    }

    /// Returns true if a block or a block nested in it contains an operation for which `is` is true.
    pub fn contains(&self, block: BlockId, is: impl Fn(&Op) -> bool) -> bool {
        let mut blocks = vec![block];
        while let Some(block) = blocks.pop() {
            for &inst in &self.block(block).insts {
                if is(&self.inst(inst).op) {
                    return true;
                }
                blocks.extend(&self.inst(inst).blocks);
            }
        }
        false
    }

    /// Returns true if a `break` or `continue` inside an instruction targets a loop around the instruction.
    pub fn jumps_out(&self, id: InstId) -> bool {
        let inst = self.inst(id);
        match inst.op {
            Op::Terminator(Terminator::Break | Terminator::Continue) => true,
            Op::Control(Control::Loop) => false,
            _ => inst.blocks.iter().any(|&block| self.block(block).insts.iter().any(|&nested| self.jumps_out(nested))),
        }
    }

    /// Returns true if control reaches the instruction after this one from the end of each of its blocks.
    pub fn falls_through(&self, id: InstId) -> bool {
        self.inst(id).blocks.iter().all(|&block| {
            let end = self.block(block).insts.last();
            end.is_some_and(|&end| self.inst(end).op == Terminator::Yield)
        })
    }

    /// Returns true if an invocation may end before the end of the body.
    pub fn may_end_early(&self) -> bool {
        let end = self.block(self.body()).insts.last().copied();
        let ends = |id: InstId| {
            matches!(self.inst(id).op, Op::Terminator(Terminator::Return | Terminator::Trap)) && Some(id) != end
        };
        self.reachable_insts().into_iter().any(ends)
    }
}
