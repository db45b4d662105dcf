//! Context entries: base address and length of each object.
//!
//! The first entries are those of the objects in declaration order, with lengths in elements of the declared type. An
//! object accessed with other element sizes has one more entry per size, with the length in those elements.

use smallvec::SmallVec;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::{AccessTypes, Element, MemId, Program};

/// Entries of a program.
pub(crate) struct Entries {
    /// Declared element of each object.
    declared: SmallVec<[Element; 8]>,
    /// Entries for other element sizes.
    others: SmallVec<[(MemId, Element); 4]>,
}

impl Entries {
    pub(super) fn of(program: &Program) -> Entries {
        let declared: SmallVec<[Element; 8]> = program.memories().values().map(|memory| memory.element).collect();
        let mut others: SmallVec<[(MemId, Element); 4]> = SmallVec::new();
        for (id, types) in AccessTypes::of(program).iter() {
            for element in types.elements().filter(|element| element.size() != declared[id.index()].size()) {
                if !others.iter().any(|&(object, other)| object == id && other.size() == element.size()) {
                    others.push((id, element));
                }
            }
        }
        Entries { declared, others }
    }

    pub(crate) fn count(&self) -> usize {
        self.declared.len() + self.others.len()
    }

    /// Index of the entry for accessing an object with an element type.
    pub(crate) fn position(&self, memory: MemId, element: Element) -> usize {
        if element.size() == self.declared[memory.index()].size() {
            return memory.index();
        }
        let is_it = |&(object, other): &(MemId, Element)| object == memory && other.size() == element.size();
        self.declared.len() + self.others.iter().position(is_it).expect("every access has an entry")
    }

    /// Object and element of each entry, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemId, Element)> {
        let declared = self.declared.iter().enumerate().map(|(object, &element)| (MemId::from_index(object), element));
        declared.chain(self.others.iter().copied())
    }

    /// Length of an entry, for an object with `length` elements of the declared type.
    pub(crate) fn length(&self, memory: MemId, element: Element, length: u64) -> u64 {
        length.saturating_mul(self.declared[memory.index()].size() as u64) / element.size() as u64
    }
}
