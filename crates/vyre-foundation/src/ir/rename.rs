//! Substitution of values: replaces all uses of a value by another value.

use rustc_hash::FxHashMap;

use super::entity::ValueId;
use super::program::{Inst, Program};

/// A substitution of values.
#[derive(Clone, Debug, Default)]
pub struct Renaming(FxHashMap<ValueId, ValueId>);

impl Renaming {
    /// Maps `old` to `new`.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        let new = self.get(new);
        if old != new {
            self.0.insert(old, new);
        }
    }

    /// Maps each value of `old` to the value of `new` at the same position.
    pub fn replace_all(&mut self, old: &[ValueId], new: &[ValueId]) {
        old.iter().zip(new).for_each(|(&old, &new)| self.replace(old, new));
    }

    /// Replacement of a value, after all substitutions; the value itself if it is not replaced.
    pub fn get(&self, mut value: ValueId) -> ValueId {
        while let Some(&new) = self.0.get(&value) {
            value = new;
        }
        value
    }

    /// Returns true if no value is replaced.
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

    /// Replaces the operands of instructions and of the instructions nested in them.
    pub fn apply_nested(&self, program: &mut Program, insts: &[super::InstId]) {
        if !self.is_empty() {
            for id in program.nested_in(insts) {
                self.apply_to(program.inst_mut(id));
            }
        }
    }

    /// Replaces the operands of all reachable instructions. Returns true unless the substitution is empty.
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
