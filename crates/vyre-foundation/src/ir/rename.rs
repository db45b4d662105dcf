//! Replacement of values by others.

use rustc_hash::FxHashMap;

use super::entity::ValueId;
use super::program::{Inst, Program};

/// Values that are to be replaced by others.
#[derive(Clone, Debug, Default)]
pub struct Renaming(FxHashMap<ValueId, ValueId>);

impl Renaming {
    /// From now on, `new` stands for `old`.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        let new = self.get(new);
        if old != new {
            self.0.insert(old, new);
        }
    }

    /// From now on, each value of one list stands for the value at the same position of the other.
    pub fn replace_all(&mut self, old: &[ValueId], new: &[ValueId]) {
        old.iter().zip(new).for_each(|(&old, &new)| self.replace(old, new));
    }

    /// The value that stands for a value.
    pub fn get(&self, mut value: ValueId) -> ValueId {
        while let Some(&new) = self.0.get(&value) {
            value = new;
        }
        value
    }

    /// Returns true if nothing is replaced.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the operands of one instruction.
    pub fn apply_to(&self, inst: &mut Inst) {
        if !self.is_empty() {
            for operand in &mut inst.operands {
                *operand = self.get(*operand);
            }
        }
    }

    /// Replaces the operands of instructions and of everything nested in them.
    pub fn apply_nested(&self, program: &mut Program, insts: &[super::InstId]) {
        if !self.is_empty() {
            for id in program.nested_in(insts) {
                self.apply_to(program.inst_mut(id));
            }
        }
    }

    /// Replaces operands everywhere. Returns true if there was anything to replace.
    pub fn apply(&self, program: &mut Program) -> bool {
        if self.is_empty() {
            return false;
        }
        for id in program.reachable_insts() {
            self.apply_to(program.inst_mut(id));
        }
        true
    }
}
