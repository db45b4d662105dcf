//! Nesting of blocks: parent and depth of each block, block of each instruction.
//!
//! It replaces a dominator tree: an instruction dominates those that follow it in its block, and everything nested in them.

use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Control, Def, InstId, Program, ValueId};

/// Nesting of the blocks of a program.
#[derive(Clone, Debug)]
pub struct Structure {
    owner: SecondaryMap<BlockId, Option<InstId>>,
    block: SecondaryMap<InstId, Option<BlockId>>,
    depth: SecondaryMap<BlockId, u32>,
}

impl Structure {
    /// Analyzes everything that is reachable from the body.
    pub fn of(program: &Program) -> Structure {
        let mut structure = Structure {
            owner: SecondaryMap::with_capacity(program.blocks().len(), None),
            block: SecondaryMap::with_capacity(program.insts().len(), None),
            depth: SecondaryMap::with_capacity(program.blocks().len(), 0),
        };
        let mut pending = vec![program.body()];
        while let Some(block) = pending.pop() {
            for &inst in &program.block(block).insts {
                structure.block[inst] = Some(block);
                for &nested in &program.inst(inst).blocks {
                    structure.owner[nested] = Some(inst);
                    structure.depth[nested] = structure.depth[block] + 1;
                    pending.push(nested);
                }
            }
        }
        structure
    }

    /// The instruction that a block is nested in; `None` for the body.
    pub fn owner(&self, block: BlockId) -> Option<InstId> {
        self.owner[block]
    }

    /// The block of an instruction, if it is reachable.
    pub fn block_of(&self, inst: InstId) -> Option<BlockId> {
        self.block[inst]
    }

    /// Number of blocks around a block.
    pub fn depth(&self, block: BlockId) -> u32 {
        self.depth[block]
    }

    /// The block in which a value is defined; literals and constants are defined in none.
    pub fn definition(&self, program: &Program, value: ValueId) -> Option<BlockId> {
        match program.def(value) {
            Def::Result(inst, _) => self.block[inst],
            Def::Param(block, _) => Some(block),
            Def::Literal(_) | Def::Constant(_) => None,
        }
    }

    /// Returns true if `outer` is `inner` or an ancestor of it.
    pub fn encloses(&self, outer: BlockId, mut inner: BlockId) -> bool {
        loop {
            if inner == outer {
                return true;
            }
            match self.owner[inner].and_then(|owner| self.block[owner]) {
                Some(parent) => inner = parent,
                None => return false,
            }
        }
    }

    /// The innermost loop that contains a block.
    pub fn enclosing_loop(&self, program: &Program, mut block: BlockId) -> Option<InstId> {
        loop {
            let owner = self.owner[block]?;
            if program.inst(owner).op == Control::Loop {
                return Some(owner);
            }
            block = self.block[owner]?;
        }
    }
}
