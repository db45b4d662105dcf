//! Drops workgroup and private arrays that nothing accesses.
//!
//! Nobody outside the program can see them, and they take memory that limits how many workgroups a device runs at once.
//! Storage and uniforms are what the caller binds; they stay.

use crate::analysis::Analyses;
use crate::ir::entity::{Arena, SecondaryMap};
use crate::ir::ops::Payload;
use crate::ir::{MemId, Program, Space};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("eliminate_dead_objects", Phase::Cleanup, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let insts = program.reachable_insts();
    let mut accessed = SecondaryMap::with_capacity(program.memory.len(), false);
    for &id in &insts {
        program.insts[id].op.memory().into_iter().for_each(|object| accessed[object] = true);
    }
    let stays =
        |object: MemId| accessed[object] || !matches!(program.memory[object].space, Space::Workgroup | Space::Private);
    if program.memory.keys().all(stays) {
        return false;
    }
    let mut kept = Arena::default();
    let mut moved = SecondaryMap::with_capacity(program.memory.len(), None);
    for (object, memory) in program.memory.iter().filter(|(object, _)| stays(*object)) {
        moved[object] = Some(kept.push(memory.clone()));
    }
    program.memory = kept;
    for id in insts {
        let op = &mut program.insts[id].op;
        if let Some(object) = op.memory().and_then(|object| moved[object]) {
            *op = op.row().op(Payload::Memory(object)).expect("an operation on memory stays one");
        }
    }
    true
}
