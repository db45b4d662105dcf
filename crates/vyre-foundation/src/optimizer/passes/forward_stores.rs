//! Loads what is already known: what this invocation stored or loaded at the same place before.
//!
//! Within a block, and on the way into nested blocks, the values of places are remembered: an object and an index. A store
//! forgets the places of its object that may be the same, a branch or loop what it writes, and a barrier everything that
//! other invocations may have written.
//!
//! A store is remembered only if it is known to be inside its object, because outside it is dropped and the load gives 0;
//! and only for elements as wide as their values, because a narrower store drops bits. Two loads of one place give the same
//! wherever it is. Without a barrier in between, an invocation may see its own accesses as if it were alone: a load that
//! races is allowed any value that was written, the own one among them. Atomic accesses are left alone.

use crate::analysis::{Alias, Analyses, Effects, Location, Ranges, alias};
use crate::ir::{BlockId, Control, InstId, MemOperand, Op, Program, Renaming, Space, ValueId, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("forward_stores", Phase::Memory, Family::Memory), speculative: false, run };

/// Places that are remembered at once. More would make the search in them slow, and registers are fewer.
const REMEMBERED: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (effects, ranges) = (analyses.effects(program), analyses.ranges(program));
    let mut forward = Forward { effects: &effects, ranges: &ranges, known: Vec::new(), renaming: Renaming::default() };
    forward.block(program, program.body());
    !forward.renaming.is_empty()
}

struct Forward<'a> {
    effects: &'a Effects,
    ranges: &'a Ranges,
    /// The value of an element, the most recent last.
    known: Vec<(Location, ValueId)>,
    renaming: Renaming,
}

impl Forward<'_> {
    fn block(&mut self, program: &mut Program, block: BlockId) {
        program.retain_insts(block, |program, id| {
            self.renaming.apply_to(program.inst_mut(id));
            match (&program.inst(id).op, Location::of(program, id)) {
                (Op::Load(at), Some(location)) if remembers(program, *at) => !self.load(program, id, location),
                (Op::Store(at), Some(location)) if remembers(program, *at) => {
                    self.store(program, id, location);
                    true
                }
                _ => {
                    self.other(program, id);
                    true
                }
            }
        });
    }

    /// Whether the load is not needed.
    fn load(&mut self, program: &Program, id: InstId, location: Location) -> bool {
        let inst = program.inst(id);
        // The elements of a wide access do not wrap around, as a sum of an index would.
        if location.elements > 1 && !self.ranges.is_in_bounds(id) {
            return false;
        }
        let elements = || (0..location.elements).map(|position| location.part(position));
        let values: Option<Values> = elements().map(|element| self.value_of(element)).collect();
        if let Some(values) = values {
            self.renaming.replace_all(&inst.results, &values);
            return true;
        }
        for (&result, element) in inst.results.iter().zip(elements()) {
            self.remember(element, result);
        }
        false
    }

    fn store(&mut self, program: &Program, id: InstId, location: Location) {
        self.known.retain(|(known, _)| alias(*known, location) == Alias::No);
        let element = location.element;
        if self.ranges.is_in_bounds(id) && element.size() as u32 * 8 == element.value_type().bits() {
            for (position, &value) in program.inst(id).operands[1..].iter().enumerate() {
                self.remember(location.part(position as u32), value);
            }
        }
    }

    fn other(&mut self, program: &mut Program, id: InstId) {
        let summary = self.effects.inst(id);
        let blocks = program.inst(id).blocks.clone();
        let is_loop = program.inst(id).op == Control::Loop;
        let forget = |known: &mut Vec<(Location, ValueId)>, program: &Program| {
            known.retain(|(location, _)| !summary.modifies(program, location.object));
        };
        if is_loop || blocks.is_empty() {
            forget(&mut self.known, program);
        }
        for block in blocks {
            // What an arm learns, nobody after it may use: it may not have been executed.
            let before = self.known.clone();
            self.block(program, block);
            self.known = before;
        }
        forget(&mut self.known, program);
    }

    fn value_of(&self, element: Location) -> Option<ValueId> {
        // Equal bytes are equal values only as elements of one type.
        let same = |known: Location| known.element == element.element && alias(known, element) == Alias::Must;
        self.known.iter().rev().find(|(known, _)| same(*known)).map(|(_, value)| *value)
    }

    fn remember(&mut self, element: Location, value: ValueId) {
        if self.known.len() >= REMEMBERED {
            self.known.remove(0);
        }
        self.known.push((element, value));
    }
}

/// Returns true for plain accesses to objects with an index.
fn remembers(program: &Program, at: MemOperand) -> bool {
    !at.atomic && program.memory(at.memory).space != Space::Uniform
}
