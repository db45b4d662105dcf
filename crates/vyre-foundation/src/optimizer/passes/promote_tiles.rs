//! Shared-memory tiling: stages overlapping loads of a workgroup through workgroup memory.
//!
//! In a stencil, each invocation loads several elements around its own index, so each element is loaded several times.
//! Instead, the workgroup loads a tile, its own elements and a halo, into a workgroup array once, and reads it after a
//! barrier. With `n` invocations, invocation `l` loads element `l` of the tile, and the first invocations also halo
//! element `n + l`.
//!
//! The object is never written, so the time of a load does not matter. The barrier stands in the body of the program,
//! so control flow is uniform there; programs with early exits are skipped. Indices in a tile wrap around like those of
//! the original loads.
//!
//! Requires [`Capability::Scratchpad`]: workgroup memory must be faster than cached storage.

use crate::analysis::{Analyses, Location, Uses};
use crate::ir::{
    AccessTypes, Barrier, Cursor, Def, InstId, MemId, Memory, Op, PerInvocation, Program, Pure, Renaming, Space, Type,
    ValueId,
};
use crate::optimizer::{Capability, Family, Metadata, Pass, Phase};
use crate::validate::limits;

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        requires: &["merge_accesses"],
        requires_caps: &[Capability::Scratchpad],
        ..Metadata::new("promote_tiles", Phase::Memory, Family::Memory)
    },
    speculative: true,
    run,
};

/// Limit of the halo, in elements.
const MAX_HALO: u32 = 64;
/// Least number of loads for which a tile can pay.
const MIN_LOADS: usize = 3;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    if program.may_end_early() {
        return false;
    }
    let effects = analyses.effects(program);
    let uses = analyses.uses(program);
    let invocations: u32 = program.workgroup_size().iter().product();
    let mut renaming = Renaming::default();
    let types = AccessTypes::of(program);
    for object in program.memories().keys() {
        let memory = program.memory(object);
        let alike = types[object].are_all(memory.element, false) && !memory.atomic;
        if !matches!(memory.space, Space::Storage(_)) || !alike || !effects.is_constant(program, object) {
            continue;
        }
        if let Some(tile) = tile(program, object, invocations) {
            promote(program, object, &tile, invocations, &uses, &mut renaming);
        }
    }
    renaming.apply(program)
}

/// Tile of one object, indexed relative to the global index.
struct Tile {
    /// Loads, with their offsets from the first element of the tile.
    loads: Vec<(InstId, u32)>,
    /// Global index of the invocation.
    base: ValueId,
    /// Offset of the first element of the tile from `base`.
    first: u32,
    /// Size of the halo: the distance from the first element loaded by an invocation to the last.
    span: u32,
}

fn tile(program: &Program, object: MemId, invocations: u32) -> Option<Tile> {
    let mut base = None;
    let mut loads: Vec<(InstId, i32)> = Vec::new();
    for &id in &program.block(program.body()).insts {
        let inst = program.inst(id);
        if inst.op != Op::Load(program.operand(object)) || inst.results.len() != 1 {
            continue;
        }
        let Some(Location { index, .. }) = Location::of(program, id) else { continue };
        let Some(own) = index.base.filter(|&base| is_global_index(program, base)) else { continue };
        if *base.get_or_insert(own) == own {
            loads.push((id, index.offset as i32));
        }
    }
    let (least, most) = (loads.iter().map(|load| load.1).min()?, loads.iter().map(|load| load.1).max()?);
    let span = u32::try_from(i64::from(most) - i64::from(least)).ok()?;
    let bytes = u64::from(invocations + span.min(MAX_HALO)) * program.memory(object).element.size() as u64;
    let fits = program.static_bytes_in(Space::Workgroup) + bytes <= limits::WORKGROUP_BYTES;
    if loads.len() < MIN_LOADS || span == 0 || span > MAX_HALO.min(invocations) || !fits {
        return None;
    }
    let from_first = |offset: i32| offset.wrapping_sub(least) as u32;
    let loads = loads.into_iter().map(|(id, offset)| (id, from_first(offset))).collect();
    Some(Tile { loads, base: base?, first: least as u32, span })
}

fn is_global_index(program: &Program, value: ValueId) -> bool {
    matches!(program.def(value), Def::Result(inst, 0) if program.inst(inst).op == PerInvocation::GlobalIndex)
}

fn promote(program: &mut Program, object: MemId, tile: &Tile, invocations: u32, uses: &Uses, renaming: &mut Renaming) {
    let memory = program.memory(object).clone();
    let (ty, span) = (memory.element.value_type(), program.inst(tile.loads[0].0).span);
    let name = program.unused_name(&format!("{}_tile", memory.name));
    let length = Some(invocations + tile.span);
    let space = Space::Workgroup;
    let array = program.add_memory(Memory { name, space, length, default: None, ..memory });

    let mut fill = Vec::new();
    let mut emit = |program: &mut Program, op: Op, operands: &[ValueId], ty: Type| {
        let (inst, value) = program.make_value(op, operands, ty, span);
        fill.push(inst);
        value
    };
    let offset = program.literal(tile.first);
    let local = emit(program, Op::PerInvocation(PerInvocation::LocalIndex), &[], Type::U32);
    let first = emit(program, Op::Pure(Pure::Add), &[tile.base, offset], Type::U32);
    let (from, to) = (program.operand(object), program.operand(array));
    let own = emit(program, Op::Load(from), &[first], ty);
    let beyond = program.literal(tile.span);
    let helps = emit(program, Op::Pure(Pure::Lt), &[local, beyond], Type::Bool);
    fill.push(program.make(Op::Store(to), [local, own], &[], [], span));
    let width = program.literal(invocations);
    fill.push(program.make_guard(helps, span, |program, block| {
        let push = |program: &mut Program, op: Op, operands: &[ValueId], ty: Type| {
            let inst = program.push(block, op, operands.iter().copied(), &[ty], [], span);
            program.inst(inst).results[0]
        };
        let far = push(program, Op::Pure(Pure::Add), &[first, width], Type::U32);
        let element = push(program, Op::Load(from), &[far], ty);
        let slot = push(program, Op::Pure(Pure::Add), &[local, width], Type::U32);
        program.push(block, Op::Store(to), [slot, element], &[], [], span);
    }));
    fill.push(program.make(Barrier::Workgroup, [], &[], [], span));

    let body = program.body();
    let mut cursor = Cursor::at_start(program, body);
    while let Some(id) = cursor.next() {
        let Some(&(_, from_first)) = tile.loads.iter().find(|(load, _)| *load == id) else {
            cursor.insert(id);
            continue;
        };
        // Inserts the fill before the first load; `fill` is empty from then on.
        cursor.insert_all(fill.drain(..));
        let from_first = program.literal(from_first);
        let (sum, slot) = program.make_value(Pure::Add, &[local, from_first], Type::U32, span);
        let (load, value) = program.make_value(Op::Load(to), &[slot], ty, program.inst(id).span);
        cursor.insert_all([sum, load]);
        renaming.replace(program.inst(id).results[0], value);
    }
    cursor.finish(program);
    // Removes indices that only these loads used, which would count in the cost estimate.
    let indices = tile.loads.iter().map(|(load, _)| program.inst(*load).operands[0]);
    let unused: Vec<ValueId> = indices.filter(|&index| index != tile.base && uses.count(index) == 1).collect();
    program.retain_insts(body, |program, id| !program.inst(id).results.iter().any(|result| unused.contains(result)));
}
