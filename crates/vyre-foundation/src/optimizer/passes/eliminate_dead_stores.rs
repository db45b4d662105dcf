//! Dead-store elimination.
//!
//! A store is dead if the same invocation overwrites the same bytes later in the same block, and between the two there
//! is no load from the object, no barrier, and no jump or end of the invocation. A load that races with both stores may
//! see either, so it may see the later one.
//!
//! Stores to workgroup and private objects that are never loaded are dead everywhere.

use rustc_hash::FxHashSet;

use crate::analysis::{Analyses, Effects, Location, Objects};
use crate::ir::{BlockId, InstId, Op, Program, Space};
use crate::optimizer::{Analysis, Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        invalidates: &[Analysis::Uses, Analysis::Uniformity, Analysis::Ranges, Analysis::Effects],
        ..Metadata::new("eliminate_dead_stores", Phase::Memory, Family::Memory)
    },
    speculative: false,
    run,
};

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let read = effects.of_block(program.body()).reads;
    let mut changed = false;
    for block in program.reachable_blocks() {
        changed |= sweep(program, block, &effects, read);
    }
    changed
}

/// Walks a block backwards with the set of elements that are overwritten later.
fn sweep(program: &mut Program, block: BlockId, effects: &Effects, read: Objects) -> bool {
    let mut overwritten: FxHashSet<Location> = FxHashSet::default();
    let mut dead: FxHashSet<InstId> = FxHashSet::default();
    for &id in program.block(block).insts.iter().rev() {
        let inst = program.inst(id);
        let summary = effects.inst(id);
        if let (Op::Store(at), Some(location)) = (&inst.op, Location::of(program, id)) {
            let own = matches!(program.memory(at.memory).space, Space::Workgroup | Space::Private);
            let mut elements = (0..location.elements).map(|position| location.part(position));
            if (own && !read.contains(at.memory))
                || (!at.atomic && elements.all(|element| overwritten.contains(&element)))
            {
                dead.insert(id);
            } else if location.elements == 1 && !at.atomic {
                // Element indices of a wide store do not wrap around, affine indices do, so their locations may differ.
                overwritten.insert(location);
            }
        } else if summary.ends || summary.jumps {
            overwritten.clear();
        } else {
            overwritten.retain(|location| !summary.observes(program, location.object));
        }
    }
    program.block_mut(block).insts.retain(|id| !dead.contains(id));
    !dead.is_empty()
}
