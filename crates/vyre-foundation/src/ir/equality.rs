//! Structural equality of programs.

use rustc_hash::FxHashMap;

use super::entity::{BlockId, ValueId};
use super::program::{Def, Program};

/// Two programs are equal when one is the other with its ids renumbered: same name, declarations and reachable
/// instructions, in the same order. Spans, names of values and unreachable leftovers do not count.
impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        let same_memory = self.memory.len() == other.memory.len()
            && self.memory.values().zip(other.memory.values()).all(|(a, b)| {
                (&a.name, a.space, a.element, a.length, a.atomic, a.default)
                    == (&b.name, b.space, b.element, b.length, b.atomic, b.default)
            });
        let same_constants = self.constants.len() == other.constants.len()
            && self
                .constants
                .values()
                .zip(other.constants.values())
                .all(|(a, b)| (&a.name, a.default) == (&b.name, b.default));
        (&self.name, self.workgroup_size, self.launch, self.fast)
            == (&other.name, other.workgroup_size, other.launch, other.fast)
            && same_memory
            && same_constants
            && Correspondence { a: self, b: other, values: FxHashMap::default() }.blocks(self.body, other.body)
    }
}

/// Walks two programs side by side and remembers which value of one stands for which of the other.
struct Correspondence<'p> {
    a: &'p Program,
    b: &'p Program,
    values: FxHashMap<ValueId, ValueId>,
}

impl Correspondence<'_> {
    fn blocks(&mut self, a: BlockId, b: BlockId) -> bool {
        let mut pending = vec![(a, b)];
        while let Some((a, b)) = pending.pop() {
            let (block_a, block_b) = (&self.a.blocks[a], &self.b.blocks[b]);
            if !self.define(&block_a.params, &block_b.params) || block_a.insts.len() != block_b.insts.len() {
                return false;
            }
            for (&inst_a, &inst_b) in block_a.insts.iter().zip(&block_b.insts) {
                let (inst_a, inst_b) = (&self.a.insts[inst_a], &self.b.insts[inst_b]);
                // Memory is declared in the same order on both sides, so equal ids are equal objects.
                // Nested blocks see only what is defined before them or inside them, so they may be compared later.
                let same = inst_a.op == inst_b.op
                    && inst_a.operands.len() == inst_b.operands.len()
                    && inst_a.operands.iter().zip(&inst_b.operands).all(|(&a, &b)| self.same_value(a, b))
                    && self.define(&inst_a.results, &inst_b.results)
                    && inst_a.blocks.len() == inst_b.blocks.len();
                if !same {
                    return false;
                }
                pending.extend(inst_a.blocks.iter().copied().zip(inst_b.blocks.iter().copied()));
            }
        }
        true
    }

    fn define(&mut self, a: &[ValueId], b: &[ValueId]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).all(|(&a, &b)| {
                self.values.insert(a, b);
                self.a.ty(a) == self.b.ty(b)
            })
    }

    fn same_value(&self, a: ValueId, b: ValueId) -> bool {
        match (self.a.values[a].def, self.b.values[b].def) {
            (Def::Literal(bits_a), Def::Literal(bits_b)) => bits_a == bits_b && self.a.ty(a) == self.b.ty(b),
            // Constants are declared in the same order on both sides.
            (Def::Constant(a), Def::Constant(b)) => a == b,
            _ => self.values.get(&a) == Some(&b),
        }
    }
}
