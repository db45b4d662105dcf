//! Removes stores that are overwritten before anybody can look.
//!
//! A store is dead if the same invocation stores to the same place later in the same block, and in between nothing loads
//! from the object, no barrier lets others look, and nothing ends the invocation or leaves the block. A load that races
//! with both stores is allowed to see either, so it may see the later one.
//!
//! Stores to workgroup and private objects that nothing loads from are dead wherever they are.

use rustc_hash::FxHashSet;

use crate::analysis::{AffineIndex, Analyses, Effects, Objects};
use crate::ir::{BlockId, InstId, MemId, Op, Program, Space};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("eliminate_dead_stores", Phase::Memory, Family::Memory), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let read = effects.of_block(program.body).reads;
    let mut changed = false;
    for block in program.reachable_blocks() {
        changed |= sweep(program, block, &effects, read);
    }
    changed
}

/// Walks a block backwards with the places that will be overwritten.
fn sweep(program: &mut Program, block: BlockId, effects: &Effects, read: Objects) -> bool {
    let mut overwritten: FxHashSet<(MemId, AffineIndex)> = FxHashSet::default();
    let mut dead: FxHashSet<InstId> = FxHashSet::default();
    for &id in program.blocks[block].insts.iter().rev() {
        let inst = &program.insts[id];
        let summary = effects.inst(id);
        if let Op::Store(object) = inst.op {
            let own = matches!(program.memory[object].space, Space::Workgroup | Space::Private);
            let first = AffineIndex::of(program, inst.operands[0]);
            let places = (0..inst.operands.len() as u32 - 1).map(|element| (object, first.plus(element)));
            let atomic = program.memory[object].atomic;
            if (own && !read.contains(object)) || (!atomic && places.clone().all(|place| overwritten.contains(&place)))
            {
                dead.insert(id);
            } else if inst.operands.len() == 2 && !atomic {
                // The elements of a wide store do not wrap around as a sum of an index does, so where they go is not known
                // as well as it would have to be.
                overwritten.extend(places);
            }
        } else if summary.ends || summary.jumps {
            overwritten.clear();
        } else {
            overwritten.retain(|(object, _)| {
                let shared = program.memory[*object].space != Space::Private;
                !(summary.reads.contains(*object) || summary.collective && shared)
            });
        }
    }
    program.blocks[block].insts.retain(|id| !dead.contains(id));
    !dead.is_empty()
}
