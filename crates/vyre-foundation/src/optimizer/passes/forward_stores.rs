//! Loads what is already known: what this invocation stored or loaded at the same place before.
//!
//! Within a block, and on the way into nested blocks, the values of places are remembered: an object and an index. A store
//! forgets the places of its object that may be the same, a branch or loop what it writes, and a barrier everything that
//! other invocations may have written.
//!
//! A store is remembered only if it is known to be inside its object, because outside it is dropped and the load gives 0;
//! and only for elements as wide as their values, because a narrower store drops bits. Two loads of one place give the same
//! wherever it is. Without a barrier in between, an invocation may see its own accesses as if it were alone: a load that
//! races is allowed any value that was written, the own one among them. Atomic objects are left alone.

use crate::analysis::{Analyses, Effects, Ranges};
use crate::ir::{BlockId, InstId, MemId, Op, Program, Space, ValueId};
use crate::optimizer::edit::{Place, Renaming};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("forward_stores", Phase::Memory, Family::Memory), speculative: false, run };

/// Places that are remembered at once. More would make the search in them slow, and registers are fewer.
const REMEMBERED: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (effects, ranges) = (analyses.effects(program), analyses.ranges(program));
    let mut forward = Forward { effects: &effects, ranges: &ranges, known: Vec::new(), renaming: Renaming::default() };
    forward.block(program, program.body);
    !forward.renaming.is_empty()
}

struct Forward<'a> {
    effects: &'a Effects,
    ranges: &'a Ranges,
    /// What is at a place of an object, the most recent last.
    known: Vec<(MemId, Place, ValueId)>,
    renaming: Renaming,
}

impl Forward<'_> {
    fn block(&mut self, program: &mut Program, block: BlockId) {
        let mut insts = std::mem::take(&mut program.blocks[block].insts);
        insts.retain(|&id| {
            self.renaming.apply_to(&mut program.insts[id]);
            match program.insts[id].op {
                Op::Load(object) if remembers(program, object) => !self.load(program, id, object),
                Op::Store(object) if remembers(program, object) => {
                    self.store(program, id, object);
                    true
                }
                _ => {
                    self.other(program, id);
                    true
                }
            }
        });
        program.blocks[block].insts = insts;
    }

    /// Whether the load is not needed.
    fn load(&mut self, program: &Program, id: InstId, object: MemId) -> bool {
        let inst = &program.insts[id];
        let place = Place::of(program, inst.operands[0]);
        let places: Vec<Place> = (0..inst.results.len() as u32).map(|element| place.plus(element)).collect();
        // The elements of a wide access do not wrap around, as a sum of an index would.
        if inst.results.len() > 1 && !self.ranges.is_inside(id) {
            return false;
        }
        let values: Option<Vec<ValueId>> = places.iter().map(|place| self.value_at(object, *place)).collect();
        if let Some(values) = values {
            for (&result, value) in inst.results.iter().zip(values) {
                self.renaming.replace(result, value);
            }
            return true;
        }
        for (&result, place) in inst.results.iter().zip(places) {
            self.remember(object, place, result);
        }
        false
    }

    fn store(&mut self, program: &Program, id: InstId, object: MemId) {
        let inst = &program.insts[id];
        let place = Place::of(program, inst.operands[0]);
        for element in 0..inst.operands.len() as u32 - 1 {
            let written = place.plus(element);
            self.known.retain(|(known, place, _)| *known != object || place.differs_from(written));
        }
        let element = program.memory[object].element;
        if self.ranges.is_inside(id) && element.size() as u32 * 8 == element.value_type().bits() {
            for (element, &value) in inst.operands[1..].iter().enumerate() {
                self.remember(object, place.plus(element as u32), value);
            }
        }
    }

    fn other(&mut self, program: &mut Program, id: InstId) {
        let summary = self.effects.inst(id);
        let blocks = program.insts[id].blocks.clone();
        let is_loop = program.insts[id].op == Op::Loop;
        let forget = |known: &mut Vec<(MemId, Place, ValueId)>, program: &Program| {
            known.retain(|(object, _, _)| {
                let shared = program.memory[*object].space != Space::Private;
                !(summary.writes.contains(*object) || summary.collective && shared)
            });
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

    fn value_at(&self, object: MemId, place: Place) -> Option<ValueId> {
        self.known.iter().rev().find(|(known, at, _)| *known == object && *at == place).map(|(_, _, value)| *value)
    }

    fn remember(&mut self, object: MemId, place: Place, value: ValueId) {
        if self.known.len() >= REMEMBERED {
            self.known.remove(0);
        }
        self.known.push((object, place, value));
    }
}

/// Whether what an object holds can be known.
fn remembers(program: &Program, object: MemId) -> bool {
    !program.memory[object].atomic && program.memory[object].space != Space::Uniform
}
