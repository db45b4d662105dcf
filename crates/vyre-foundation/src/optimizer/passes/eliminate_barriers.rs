//! Barrier elimination: removes barriers that order no conflicting accesses.
//!
//! A workgroup barrier orders accesses to workgroup memory, a storage barrier accesses to storage. A barrier is needed
//! only if, in the intervals of code before and after it, two different invocations may access the same element and one
//! of the accesses is a write. It is removed if
//! * the workgroup has one invocation, or one of the intervals has no access to the memory that it orders, or
//! * for every object accessed in both intervals, all accesses are reads, or all have the same index and it is unique
//!   to each invocation of the workgroup, so that each invocation accesses only its own element.
//!
//! An interval extends from the barrier to the next one in the same block. If it would leave the block, or enter a loop
//! or branch that contains a barrier, it is unknown and the barrier stays. `broadcast` is a barrier too, but is never
//! removed, because it returns a value.

use crate::analysis::{AffineIndex, Alias, Analyses, Effects, Location, Objects, alias};
use crate::ir::{Barrier, BlockId, Def, InstId, Op, PerInvocation, Program, Space};
use crate::optimizer::{Analysis, Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        invalidates: &[Analysis::Effects],
        ..Metadata::new("eliminate_barriers", Phase::Sync, Family::Sync)
    },
    speculative: false,
    run,
};

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut changed = false;
    for block in program.reachable_blocks() {
        // One at a time: each removal extends the intervals of the other barriers.
        while let Some(position) = redundant(program, &effects, block) {
            program.block_mut(block).insts.remove(position);
            changed = true;
        }
    }
    changed
}

fn redundant(program: &Program, effects: &Effects, block: BlockId) -> Option<usize> {
    let insts = &program.block(block).insts;
    insts.iter().enumerate().find_map(|(position, &id)| {
        let Op::Barrier(barrier) = program.inst(id).op else { return None };
        if program.workgroup_size() == [1, 1, 1] || ordered_objects(program, barrier).is_empty() {
            return Some(position);
        }
        let before = interval(program, effects, insts[..position].iter().rev(), barrier, block == program.body())?;
        let after = interval(program, effects, insts[position + 1..].iter(), barrier, block == program.body())?;
        has_no_conflict(program, &before, &after).then_some(position)
    })
}

/// Objects whose accesses a barrier orders.
fn ordered_objects(program: &Program, barrier: Barrier) -> Objects {
    let ordered = |space| match barrier {
        Barrier::Workgroup => space == Space::Workgroup,
        Barrier::Storage => matches!(space, Space::Storage(_)),
    };
    let objects = program.memories().iter().filter(|(_, memory)| ordered(memory.space));
    objects.fold(Objects::NONE, |set, (object, _)| set.union(Objects::of(object)))
}

/// Accesses ordered by a barrier in the interval up to the next barrier, or `None` if the interval is unknown.
fn interval<'i>(
    program: &Program,
    effects: &Effects,
    insts: impl Iterator<Item = &'i InstId>,
    barrier: Barrier,
    ends_here: bool,
) -> Option<Vec<InstId>> {
    let objects = ordered_objects(program, barrier);
    let mut accesses = Vec::new();
    for &id in insts {
        let op = &program.inst(id).op;
        let summary = effects.inst(id);
        if *op == barrier || *op == Op::Broadcast {
            return Some(accesses);
        }
        if !program.inst(id).blocks.is_empty() {
            // After a jump, execution continues elsewhere, possibly without a barrier.
            if summary.collective || summary.jumps {
                return None;
            }
            collect(program, id, objects, &mut accesses);
        } else if op.memory().is_some_and(|object| objects.contains(object)) {
            accesses.push(id);
        }
    }
    ends_here.then_some(accesses)
}

fn collect(program: &Program, id: InstId, objects: Objects, accesses: &mut Vec<InstId>) {
    for &block in &program.inst(id).blocks {
        for &nested in &program.block(block).insts {
            if program.inst(nested).op.memory().is_some_and(|object| objects.contains(object)) {
                accesses.push(nested);
            }
            collect(program, nested, objects, accesses);
        }
    }
}

/// Returns true if no two invocations have conflicting accesses in the two intervals.
fn has_no_conflict(program: &Program, before: &[InstId], after: &[InstId]) -> bool {
    let of = |accesses: &[InstId], object| -> Vec<(bool, Location)> {
        let is_load = |id| matches!(program.inst(id).op, Op::Load(_));
        let locations = accesses.iter().filter_map(|&id| Some((is_load(id), Location::of(program, id)?)));
        locations.filter(|(_, location)| location.object == object).collect()
    };
    program.memories().keys().all(|object| {
        let (before, after) = (of(before, object), of(after, object));
        let mut all = before.iter().chain(&after);
        before.is_empty() || after.is_empty() || all.clone().all(|(is_load, _)| *is_load) || {
            let first = before[0].1;
            is_exclusive(program, first) && all.all(|(_, location)| alias(first, *location) == Alias::Must)
        }
    })
}

/// Returns true for a single element whose index is unique to each invocation of the workgroup.
fn is_exclusive(program: &Program, location: Location) -> bool {
    let AffineIndex { base: Some(base), offset: 0 } = location.index else { return false };
    let Def::Result(definition, 0) = program.def(base) else { return false };
    location.elements == 1
        && matches!(
            program.inst(definition).op,
            Op::PerInvocation(PerInvocation::LocalIndex | PerInvocation::GlobalIndex)
        )
}
