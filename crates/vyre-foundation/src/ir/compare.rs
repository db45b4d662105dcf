//! Structural comparison of programs and blocks.

use rustc_hash::FxHashMap;

use super::entity::{BlockId, InstId, ValueId};
use super::ops::{Control, Op};
use super::program::{Def, Program};

/// Structural equality: the same name, declarations and reachable instructions in the same order, up to a renumbering of ids. Spans, debug
/// names and unreachable entities are ignored.
impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        let same_memory = self.memories().len() == other.memories().len()
            && self.memories().values().zip(other.memories().values()).all(|(a, b)| {
                (&a.name, a.space, a.element, a.length, a.atomic, a.default)
                    == (&b.name, b.space, b.element, b.length, b.atomic, b.default)
            });
        let same_constants = self.constants().len() == other.constants().len()
            && self
                .constants()
                .values()
                .zip(other.constants().values())
                .all(|(a, b)| (&a.name, a.default) == (&b.name, b.default));
        (self.name(), self.workgroup_size(), self.launch(), self.is_fast())
            == (other.name(), other.workgroup_size(), other.launch(), other.is_fast())
            && same_memory
            && same_constants
            && compare(self, self.body(), other, other.body()).is_some_and(|differences| differences.is_empty())
    }
}

/// Differences between two otherwise equal blocks.
#[derive(Debug, Default)]
pub struct Differences {
    /// Literal operands that differ.
    pub literals: Vec<OtherLiteral>,
    /// Pairs of regions with different names, of the first and the second block.
    pub regions: Vec<[InstId; 2]>,
}

/// A literal operand of the first block that is another literal in the second.
#[derive(Clone, Copy, Debug)]
pub struct OtherLiteral {
    /// The instruction of the first block.
    pub inst: InstId,
    /// Position of the operand.
    pub operand: usize,
    /// The literal of the second block.
    pub value: ValueId,
}

impl Differences {
    /// Returns true if the blocks are equal.
    pub fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.regions.is_empty()
    }
}

/// Compares two blocks, of one program or of two with the same memory objects and constants. Returns `None` if they differ in more than
/// literals of the same type and names of regions. Values from outside of both blocks are equal only if they are one value of one program.
pub fn compare(a: &Program, block: BlockId, b: &Program, other: BlockId) -> Option<Differences> {
    let mut comparison = Comparison { a, b, values: FxHashMap::default(), found: Differences::default() };
    comparison.blocks(block, other).then_some(comparison.found)
}

/// Walks two blocks in lockstep and maps the values of one to those of the other.
struct Comparison<'p> {
    a: &'p Program,
    b: &'p Program,
    values: FxHashMap<ValueId, ValueId>,
    found: Differences,
}

impl Comparison<'_> {
    fn blocks(&mut self, a: BlockId, b: BlockId) -> bool {
        // An explicit stack, because the nesting depth of an unvalidated program is unbounded. Only values defined before or inside nested
        // blocks are in their scope, so they may be compared later.
        let mut pending = vec![(a, b)];
        while let Some((a, b)) = pending.pop() {
            let (block, other) = (self.a.block(a), self.b.block(b));
            let same = self.define(&block.params, &other.params)
                && block.insts.len() == other.insts.len()
                && block.insts.iter().zip(&other.insts).all(|(&a, &b)| self.insts(a, b, &mut pending));
            if !same {
                return false;
            }
        }
        true
    }

    fn insts(&mut self, id: InstId, other: InstId, pending: &mut Vec<(BlockId, BlockId)>) -> bool {
        let (a, b) = (self.a.inst(id), self.b.inst(other));
        if a.op != b.op {
            // Both programs declare memory in the same order, so equal ids are equal objects.
            if !matches!((&a.op, &b.op), (Op::Control(Control::Region(_)), Op::Control(Control::Region(_)))) {
                return false;
            }
            self.found.regions.push([id, other]);
        }
        if (a.operands.len(), a.blocks.len()) != (b.operands.len(), b.blocks.len()) {
            return false;
        }
        for (operand, (&own, &value)) in a.operands.iter().zip(&b.operands).enumerate() {
            match (self.a.def(own), self.b.def(value)) {
                (Def::Literal(bits), Def::Literal(other)) if self.a.ty(own) == self.b.ty(value) => {
                    if bits != other {
                        self.found.literals.push(OtherLiteral { inst: id, operand, value });
                    }
                }
                // Both programs declare constants in the same order.
                (Def::Constant(a), Def::Constant(b)) if a == b => {}
                (Def::Result(..) | Def::Param(..), Def::Result(..) | Def::Param(..)) => {
                    let outer = std::ptr::eq(self.a, self.b).then_some(own);
                    if self.values.get(&own).copied().or(outer) != Some(value) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        pending.extend(a.blocks.iter().copied().zip(b.blocks.iter().copied()));
        self.define(&a.results, &b.results)
    }

    fn define(&mut self, a: &[ValueId], b: &[ValueId]) -> bool {
        a.len() == b.len()
            && a.iter().zip(b).all(|(&a, &b)| {
                self.values.insert(a, b);
                self.a.ty(a) == self.b.ty(b)
            })
    }
}
