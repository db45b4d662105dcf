//! Removes workgroup and private objects that are never accessed.
//!
//! They use memory that limits occupancy, and are invisible outside the program. Storage objects and uniforms are part
//! of the interface and stay.

use crate::analysis::Analyses;
use crate::ir::entity::SecondaryMap;
use crate::ir::{MemId, Memory, Program, Space};
use crate::optimizer::{Analysis, Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        invalidates: &[Analysis::Effects],
        ..Metadata::new("eliminate_dead_objects", Phase::Cleanup, Family::Scalar)
    },
    speculative: false,
    run,
};

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut accessed = SecondaryMap::with_capacity(program.memories().len(), false);
    program.walk(|id, _| program.inst(id).op.memory().into_iter().for_each(|object| accessed[object] = true));
    let stays =
        |object: MemId, memory: &Memory| accessed[object] || !matches!(memory.space, Space::Workgroup | Space::Private);
    if program.memories().iter().all(|(object, memory)| stays(object, memory)) {
        return false;
    }
    program.retain_memories(stays);
    true
}
