//! Element types and atomicity of the accesses to each memory object.

use super::entity::{MemId, SecondaryMap};
use super::ops::MemOperand;
use super::program::Program;
use super::types::Element;

/// Element types with which an object is accessed, plainly and atomically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessTypes {
    plain: u16,
    atomic: u16,
}

impl AccessTypes {
    /// Collects the reachable accesses to each object of a program.
    pub fn of(program: &Program) -> SecondaryMap<MemId, AccessTypes> {
        let mut types = SecondaryMap::with_capacity(program.memories().len(), AccessTypes::default());
        program.walk(|inst, _| {
            if let Some(operand) = program.inst(inst).op.operand() {
                types[operand.memory].add(operand);
            }
        });
        types
    }

    /// Adds an access.
    pub fn add(&mut self, operand: MemOperand) {
        let set = if operand.atomic { &mut self.atomic } else { &mut self.plain };
        *set |= 1 << operand.element as u16;
    }

    /// Merges the accesses to one object in two programs.
    #[must_use]
    pub fn union(self, other: AccessTypes) -> AccessTypes {
        AccessTypes { plain: self.plain | other.plain, atomic: self.atomic | other.atomic }
    }

    /// Returns true if some access is atomic.
    pub fn has_atomics(self) -> bool {
        self.atomic != 0
    }

    /// Returns true if all accesses are to this element type, and all or none of them are atomic.
    pub fn are_all(self, element: Element, atomic: bool) -> bool {
        let (of_kind, others) = if atomic { (self.atomic, self.plain) } else { (self.plain, self.atomic) };
        others == 0 && of_kind & !(1 << element as u16) == 0
    }

    /// The element types of all accesses.
    pub fn elements(self) -> impl Iterator<Item = Element> {
        members(self.plain | self.atomic)
    }

    /// The element types of the atomic accesses.
    pub fn atomic_elements(self) -> impl Iterator<Item = Element> {
        members(self.atomic)
    }

    /// Size of the widest element in bytes: the alignment that the object needs. It is 1 if there is no access.
    pub fn alignment(self) -> usize {
        self.elements().map(Element::size).max().unwrap_or(1)
    }
}

fn members(set: u16) -> impl Iterator<Item = Element> {
    Element::ALL.into_iter().filter(move |element| set & (1 << *element as u16) != 0)
}
