//! Removes barriers that order nothing.
//!
//! A workgroup barrier orders accesses to workgroup memory, a storage barrier accesses to storage. A barrier is needed only
//! if, in the stretches of code before and after it, two different invocations can touch the same element and one of them
//! writes. It goes if
//! * the workgroup has one invocation, or nothing of the kind of memory it orders is accessed before it or after it, or
//! * every object accessed on both sides is only read, or every access to it, before and after, has the same index, one that
//!   is different for every invocation of the workgroup: then each invocation meets only itself.
//!
//! A stretch reaches from one barrier to the next in the same block; where it leaves the block, or enters a loop or branch
//! with a barrier in it, nothing is known about what comes, and the barrier stays. `broadcast` is never removed: it gives a
//! value.

use crate::analysis::{Analyses, Effects, Objects};
use crate::ir::{BlockId, Def, InstId, Op, Program, Space, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("eliminate_barriers", Phase::Sync, Family::Sync), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut changed = false;
    for block in program.reachable_blocks() {
        // One at a time: with each that goes, the stretches around the others grow.
        while let Some(position) = redundant(program, &effects, block) {
            program.blocks[block].insts.remove(position);
            changed = true;
        }
    }
    changed
}

fn redundant(program: &Program, effects: &Effects, block: BlockId) -> Option<usize> {
    let insts = &program.blocks[block].insts;
    let is_barrier = |id: &InstId| matches!(program.insts[*id].op, Op::WorkgroupBarrier | Op::StorageBarrier);
    insts.iter().enumerate().filter(|(_, id)| is_barrier(id)).map(|(position, _)| position).find(|&position| {
        let barrier = &program.insts[insts[position]].op;
        if program.workgroup_size == [1, 1, 1] || orders(program, barrier).is_empty() {
            return true;
        }
        let before = stretch(program, effects, insts[..position].iter().rev(), barrier, block == program.body);
        let after = stretch(program, effects, insts[position + 1..].iter(), barrier, block == program.body);
        match (before, after) {
            (Some(before), Some(after)) => independent(program, &before, &after),
            (None, _) | (_, None) => false,
        }
    })
}

/// The objects whose accesses a barrier orders.
fn orders(program: &Program, barrier: &Op) -> Objects {
    let ordered = |space| match barrier {
        Op::WorkgroupBarrier => space == Space::Workgroup,
        _ => matches!(space, Space::Storage(_)),
    };
    let objects = program.memory.iter().filter(|(_, memory)| ordered(memory.space));
    objects.fold(Objects::NONE, |set, (object, _)| set.and(Objects::of(object)))
}

/// The accesses that a barrier orders on the way to the next of its kind, or `None` if it is not known what comes.
fn stretch<'i>(
    program: &Program,
    effects: &Effects,
    insts: impl Iterator<Item = &'i InstId>,
    barrier: &Op,
    ends_here: bool,
) -> Option<Vec<InstId>> {
    let objects = orders(program, barrier);
    let mut accesses = Vec::new();
    for &id in insts {
        let op = &program.insts[id].op;
        let summary = effects.inst(id);
        if op == barrier || *op == Op::Broadcast {
            return Some(accesses);
        }
        if !program.insts[id].blocks.is_empty() {
            // Beyond a jump other code follows, with a barrier or without.
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
    for &block in &program.insts[id].blocks {
        for &nested in &program.blocks[block].insts {
            if program.insts[nested].op.memory().is_some_and(|object| objects.contains(object)) {
                accesses.push(nested);
            }
            collect(program, nested, objects, accesses);
        }
    }
}

/// Whether no invocation can tell in which order the accesses of another come.
fn independent(program: &Program, before: &[InstId], after: &[InstId]) -> bool {
    let is_length = |id: &InstId| matches!(program.insts[*id].op, Op::Length(_));
    let is_load = |id: &InstId| matches!(program.insts[*id].op, Op::Load(_));
    let of = |accesses: &[InstId], object| -> Vec<InstId> {
        let same = accesses.iter().filter(|id| program.insts[**id].op.memory() == Some(object));
        same.filter(|id| !is_length(id)).copied().collect()
    };
    program.memory.keys().all(|object| {
        let (before, after) = (of(before, object), of(after, object));
        let all = || before.iter().chain(&after);
        before.is_empty() || after.is_empty() || all().all(is_load) || {
            let own = own_index(program, before[0]);
            own.is_some() && all().all(|&id| own_index(program, id) == own)
        }
    })
}

/// The index of an access to one element, if it is different for every invocation of the workgroup.
fn own_index(program: &Program, id: InstId) -> Option<ValueId> {
    let inst = &program.insts[id];
    let elements = match inst.op {
        Op::Load(_) => inst.results.len(),
        Op::Store(_) => inst.operands.len() - 1,
        _ => 1,
    };
    let &index = inst.operands.first().filter(|_| elements == 1)?;
    let Def::Result(definition, 0) = program.values[index].def else { return None };
    matches!(program.insts[definition].op, Op::LocalIndex | Op::GlobalIndex).then_some(index)
}
