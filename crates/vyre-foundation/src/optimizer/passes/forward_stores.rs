//! Store-to-load forwarding and redundant-load elimination.
//!
//! The walk tracks the known values of memory locations (object and index) within a block and into nested blocks. A
//! store invalidates the locations of its object that may alias, a branch or loop those it may write, and a barrier
//! those that other invocations may have written.
//!
//! A store defines a value only if it is known to be in bounds, because an out-of-bounds store is dropped and the load
//! returns 0, and only for elements as wide as their values, because a narrow store truncates or rounds. Redundant loads are
//! eliminated at any index. Between barriers an invocation may be treated as if it ran alone: a racing load may return
//! any value that was written, including its own. Atomic accesses are not forwarded.

use crate::analysis::{Alias, Analyses, Effects, Location, Ranges, alias};
use crate::ir::{BlockId, Control, InstId, MemOperand, Op, Program, Renaming, Space, ValueId, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("forward_stores", Phase::Memory, Family::Memory), speculative: false, run };

/// Limit of tracked locations; bounds the search, and registers are fewer anyway.
const MAX_TRACKED: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (effects, ranges) = (analyses.effects(program), analyses.ranges(program));
    let mut forward = Forward { effects: &effects, ranges: &ranges, known: Vec::new(), renaming: Renaming::default() };
    forward.block(program, program.body());
    !forward.renaming.is_empty()
}

struct Forward<'a> {
    effects: &'a Effects,
    ranges: &'a Ranges,
    /// Values of elements, the most recent last.
    known: Vec<(Location, ValueId)>,
    renaming: Renaming,
}

impl Forward<'_> {
    fn block(&mut self, program: &mut Program, block: BlockId) {
        program.retain_insts(block, |program, id| {
            self.renaming.apply_to(program.inst_mut(id));
            match (&program.inst(id).op, Location::of(program, id)) {
                (Op::Load(at), Some(location)) if is_tracked(program, *at) => !self.load(program, id, location),
                (Op::Store(at), Some(location)) if is_tracked(program, *at) => {
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

    /// Returns true if the load is redundant.
    fn load(&mut self, program: &Program, id: InstId, location: Location) -> bool {
        let inst = program.inst(id);
        // Element indices of a wide access do not wrap around, those of separate accesses do.
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
            self.track(element, result);
        }
        false
    }

    fn store(&mut self, program: &Program, id: InstId, location: Location) {
        self.known.retain(|(known, _)| alias(*known, location) == Alias::No);
        let element = location.element;
        if self.ranges.is_in_bounds(id) && !element.is_narrow() {
            for (position, &value) in program.inst(id).operands[1..].iter().enumerate() {
                self.track(location.part(position as u32), value);
            }
        }
    }

    fn other(&mut self, program: &mut Program, id: InstId) {
        let summary = self.effects.inst(id);
        let blocks = program.inst(id).blocks.clone();
        let is_loop = program.inst(id).op == Control::Loop;
        let invalidate = |known: &mut Vec<(Location, ValueId)>, program: &Program| {
            known.retain(|(location, _)| !summary.modifies(program, location.object));
        };
        if is_loop || blocks.is_empty() {
            invalidate(&mut self.known, program);
        }
        for block in blocks {
            // An arm may not be executed, so its values are unknown after it.
            let before = self.known.clone();
            self.block(program, block);
            self.known = before;
        }
        invalidate(&mut self.known, program);
    }

    fn value_of(&self, element: Location) -> Option<ValueId> {
        // Equal bytes are the same value only for elements of one type.
        let same = |known: Location| known.element == element.element && alias(known, element) == Alias::Must;
        self.known.iter().rev().find(|(known, _)| same(*known)).map(|(_, value)| *value)
    }

    fn track(&mut self, element: Location, value: ValueId) {
        if self.known.len() >= MAX_TRACKED {
            self.known.remove(0);
        }
        self.known.push((element, value));
    }
}

/// Returns true for plain accesses to objects with an index.
fn is_tracked(program: &Program, at: MemOperand) -> bool {
    !at.atomic && program.memory(at.memory).space != Space::Uniform
}
