//! Reads what neighbours share from workgroup memory.
//!
//! Where every invocation of a workgroup loads several elements around its own index, each element is loaded from storage
//! several times. Instead, the workgroup loads the stretch that it needs once, into a workgroup array, and takes it from there
//! after a barrier. Invocation `l` of `n` loads the element `l` of the stretch, and the first few also one of those beyond `n`.
//!
//! Sound, because the object is never written, so it does not matter when it is loaded; because the barrier stands directly in
//! the body, where all invocations come by; and because the pass leaves programs alone in which an invocation may end before it
//! has loaded its part. Indices wrap around in the stretch as they do in the program.
//!
//! It pays where workgroup memory is nearer than storage: the target must have [`Capability::Scratchpad`].

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

/// Elements beyond those of the invocations that a workgroup may load.
const FARTHEST: u32 = 64;
/// Loads of neighbouring elements from which it can pay.
const LOADS: usize = 3;

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

/// Loads of one object from around the index of the invocation.
struct Tile {
    /// The loads, each with how far it is from the first element of the stretch.
    loads: Vec<(InstId, u32)>,
    /// The index of the invocation.
    base: ValueId,
    /// What is added to it for the first element.
    first: u32,
    /// How far the last element is from the first.
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
    let bytes = u64::from(invocations + span.min(FARTHEST)) * program.memory(object).element.size() as u64;
    let fits = program.static_bytes_in(Space::Workgroup) + bytes <= limits::WORKGROUP_BYTES;
    if loads.len() < LOADS || span == 0 || span > FARTHEST.min(invocations) || !fits {
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
        // Before the first of them; it is empty from then on.
        cursor.insert_all(fill.drain(..));
        let from_first = program.literal(from_first);
        let (sum, slot) = program.make_value(Pure::Add, &[local, from_first], Type::U32, span);
        let (load, value) = program.make_value(Op::Load(to), &[slot], ty, program.inst(id).span);
        cursor.insert_all([sum, load]);
        renaming.replace(program.inst(id).results[0], value);
    }
    cursor.finish(program);
    // The sums that only these loads used would make the result look more expensive than it is.
    let indices = tile.loads.iter().map(|(load, _)| program.inst(*load).operands[0]);
    let unused: Vec<ValueId> = indices.filter(|&index| index != tile.base && uses.count(index) == 1).collect();
    program.retain_insts(body, |program, id| !program.inst(id).results.iter().any(|result| unused.contains(result)));
}
