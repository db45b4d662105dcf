//! Alias analysis: may two accesses touch the same element?
//!
//! Distinct memory objects never overlap. Within an object, indices are compared as a value plus a literal: two indices with the same base
//! differ exactly if their offsets do; nothing is known of indices with different bases.

use crate::ir::{Def, InstId, MemId, Op, Program, ValueId};

/// An index of the form `base + offset`, modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffineIndex {
    /// The value that the offset is added to; a literal index has none.
    pub base: Option<ValueId>,
    /// The literal that is added.
    pub offset: u32,
}

impl AffineIndex {
    /// The affine form of an index.
    pub fn of(program: &Program, index: ValueId) -> AffineIndex {
        let literal = |value: ValueId| match program.values[value].def {
            Def::Literal(bits) => Some(bits as u32),
            Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
        };
        if let Some(offset) = literal(index) {
            return AffineIndex { base: None, offset };
        }
        if let Def::Result(inst, 0) = program.values[index].def
            && let (Op::Add, &[a, b]) = (&program.insts[inst].op, &program.insts[inst].operands[..])
        {
            if let Some(offset) = literal(b) {
                return AffineIndex { base: Some(a), offset };
            }
            if let Some(offset) = literal(a) {
                return AffineIndex { base: Some(b), offset };
            }
        }
        AffineIndex { base: Some(index), offset: 0 }
    }

    /// The index `elements` further on.
    #[must_use]
    pub fn plus(self, elements: u32) -> AffineIndex {
        AffineIndex { offset: self.offset.wrapping_add(elements), ..self }
    }
}

/// The elements that an access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The object.
    pub object: MemId,
    /// Index of the first element.
    pub index: AffineIndex,
    /// Number of elements; at most four.
    pub elements: u32,
}

impl Location {
    /// The location of a load, store or atomic; `None` for other instructions and for uniforms, which have no index.
    pub fn of(program: &Program, id: InstId) -> Option<Location> {
        let inst = &program.insts[id];
        let object = inst.op.memory()?;
        let elements = match inst.op {
            Op::Length(_) => return None,
            Op::Load(_) => inst.results.len(),
            Op::Store(_) => inst.operands.len().checked_sub(1)?,
            _ => 1,
        } as u32;
        let index = AffineIndex::of(program, *inst.operands.first()?);
        Some(Location { object, index, elements })
    }

    /// The location of one element.
    #[must_use]
    pub fn element(self, position: u32) -> Location {
        Location { index: self.index.plus(position), elements: 1, ..self }
    }
}

/// Relation of two locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// They share no element.
    No,
    /// They may share elements.
    May,
    /// They are the same elements.
    Must,
}

/// Relation of two locations, at the same time in one invocation.
pub fn alias(a: Location, b: Location) -> Alias {
    if a.object != b.object {
        return Alias::No;
    }
    if a.index.base != b.index.base {
        return Alias::May;
    }
    let (forward, backward) =
        (b.index.offset.wrapping_sub(a.index.offset), a.index.offset.wrapping_sub(b.index.offset));
    if forward == 0 && a.elements == b.elements {
        Alias::Must
    } else if forward < a.elements || backward < b.elements {
        Alias::May
    } else {
        Alias::No
    }
}

#[cfg(test)]
mod tests {
    use super::{AffineIndex, Alias, Location, alias};
    use crate::ir::entity::Entity as _;
    use crate::ir::{MemId, ValueId};

    fn location(object: usize, base: Option<usize>, offset: u32, elements: u32) -> Location {
        let index = AffineIndex { base: base.map(ValueId::from_index), offset };
        Location { object: MemId::from_index(object), index, elements }
    }

    #[test]
    fn ranges_of_elements() {
        let at = |offset, elements| location(0, Some(1), offset, elements);
        for (a, b, expected) in [
            (at(0, 1), at(0, 1), Alias::Must),
            (at(0, 2), at(0, 1), Alias::May),
            (at(0, 2), at(1, 2), Alias::May),
            (at(0, 2), at(2, 2), Alias::No),
            // Indices wrap.
            (at(u32::MAX, 2), at(0, 1), Alias::May),
            (at(u32::MAX, 1), at(0, 1), Alias::No),
            (at(0, 1), location(0, Some(2), 4, 1), Alias::May),
            (at(0, 1), location(0, None, 4, 1), Alias::May),
            (at(0, 1), location(1, Some(1), 0, 1), Alias::No),
        ] {
            assert_eq!(alias(a, b), expected, "{a:?} {b:?}");
            assert_eq!(alias(b, a), expected, "{b:?} {a:?}");
        }
    }
}
