//! Alias analysis: decides whether two accesses may overlap.
//!
//! Distinct memory objects never overlap. Within an object, an access is a range of bytes: it begins at an affine index, a value plus a
//! literal, times the size of an element. The distance between two ranges is known if the indices have the same base and scale, or are both
//! literals; otherwise the accesses may alias. [`alias`] compares accesses of one invocation, [`exclusive_range`] those of different
//! invocations or workgroups, whose indices are affine in their positions.

use std::ops::Range;

use super::affine::{AffineForm, AffineIndex, Counts};
use crate::ir::{Element, InstId, MemId, Program};

/// Byte range of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The object.
    pub object: MemId,
    /// Index of the first element.
    pub index: AffineIndex,
    /// Type of the elements.
    pub element: Element,
    /// Number of elements; at most four.
    pub elements: u32,
}

impl Location {
    /// The location of a load, store or atomic; `None` for other instructions and for uniforms, which have no index.
    pub fn of(program: &Program, id: InstId) -> Option<Location> {
        let inst = program.inst(id);
        let at = inst.op.operand()?;
        let elements = inst.accessed_elements() as u32;
        let index = AffineIndex::of(program, *inst.operands.first()?);
        Some(Location { object: at.memory, index, element: at.element, elements })
    }

    /// Location of one element.
    #[must_use]
    pub fn part(self, position: u32) -> Location {
        let offset = self.index.offset.wrapping_add(position);
        Location { index: AffineIndex { offset, ..self.index }, elements: 1, ..self }
    }

    /// Returns true if another location begins where this one ends.
    pub fn is_followed_by(self, next: Location) -> bool {
        self.object == next.object && self.distances(next).is_some_and(|(forward, _)| forward == self.length())
    }

    /// Byte range in the object, if the index is a literal.
    pub fn constant_range(self) -> Option<Range<u64>> {
        let start = u64::from(self.index.offset) * self.size();
        self.index.base.is_none().then(|| start..start + self.length())
    }

    /// Size of an element in bytes.
    fn size(self) -> u64 {
        self.element.size() as u64
    }

    /// Length in bytes.
    fn length(self) -> u64 {
        u64::from(self.elements) * self.size()
    }

    /// Bytes from the start of this location up to the start of another one of the same object, and back. Indices wrap around, so both are
    /// positive.
    fn distances(self, other: Location) -> Option<(u64, u64)> {
        if self.index.base != other.index.base {
            return None;
        }
        let (from, to) = (self.index.offset, other.index.offset);
        if self.size() == other.size() {
            let bytes = |elements: u32| u64::from(elements) * self.size();
            return Some((bytes(to.wrapping_sub(from)), bytes(from.wrapping_sub(to))));
        }
        let (from, to) = (self.constant_range()?.start, other.constant_range()?.start);
        Some((to.wrapping_sub(from), from.wrapping_sub(to)))
    }
}

/// Relation of two locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// They share no byte.
    No,
    /// They may share bytes.
    May,
    /// They are the same bytes. Equal locations always are.
    Must,
}

/// Relation of two locations, at the same time in one invocation.
pub fn alias(a: Location, b: Location) -> Alias {
    if a.object != b.object {
        return Alias::No;
    }
    match a.distances(b) {
        None => Alias::May,
        Some((0, _)) if a.length() == b.length() => Alias::Must,
        Some((forward, backward)) if forward < a.length() || backward < b.length() => Alias::May,
        Some(_) => Alias::No,
    }
}

/// The byte range of each position, if the ranges of different positions are disjoint. Accesses are byte ranges
/// relative to an affine form of the position.
pub(crate) fn exclusive_range(mut accesses: impl Iterator<Item = AffineForm>, counts: Counts) -> Option<AffineForm> {
    let first = accesses.next()?;
    let all = accesses.try_fold(first, AffineForm::hull)?;
    (all.high - all.low < all.gap(counts)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::{AffineIndex, Alias, Location, alias};
    use crate::ir::entity::Entity as _;
    use crate::ir::{Element, MemId, ValueId};

    fn location(object: usize, base: Option<usize>, offset: u32, elements: u32) -> Location {
        let index = AffineIndex { base: base.map(ValueId::from_index), offset };
        Location { object: MemId::from_index(object), index, element: Element::U32, elements }
    }

    #[test]
    fn overlap_follows_from_index_size_and_width() {
        let at = |offset, elements| location(0, Some(1), offset, elements);
        let narrow = |location: Location| Location { element: Element::F16, ..location };
        let literal = |offset, elements| location(0, None, offset, elements);
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
            // Elements of different sizes.
            (literal(1, 1), narrow(literal(2, 2)), Alias::Must),
            (literal(1, 1), narrow(literal(3, 1)), Alias::May),
            (literal(1, 1), narrow(literal(1, 1)), Alias::No),
            (literal(1, 1), narrow(literal(4, 4)), Alias::No),
            (at(1, 1), narrow(at(4, 1)), Alias::May),
        ] {
            assert_eq!(alias(a, b), expected, "{a:?} {b:?}");
            assert_eq!(alias(b, a), expected, "{b:?} {a:?}");
        }
        assert!(at(u32::MAX, 1).is_followed_by(at(0, 2)) && !at(0, 2).is_followed_by(at(1, 1)));
        assert!(literal(0, 1).is_followed_by(narrow(literal(2, 1))) && !at(0, 1).is_followed_by(literal(1, 1)));
    }

    #[test]
    fn literal_locations_alias_if_their_bytes_overlap() {
        const SIZES: [Element; 4] = [Element::I8, Element::F16, Element::F32, Element::U64];
        let locations = (0..6)
            .flat_map(|offset| (1..=4).flat_map(move |elements| SIZES.map(|element| (offset, elements, element))));
        let bytes = |location: Location| location.constant_range().unwrap();
        let all: Vec<Location> = locations
            .map(|(offset, elements, element)| Location { element, ..location(0, None, offset, elements) })
            .collect();
        for &a in &all {
            for &b in &all {
                let expected = match bytes(a).filter(|byte| bytes(b).contains(byte)).count() {
                    0 => Alias::No,
                    _ if bytes(a) == bytes(b) => Alias::Must,
                    _ => Alias::May,
                };
                assert_eq!(alias(a, b), expected, "{a:?} {b:?}");
            }
        }
    }
}
