//! Guards idempotent atomics by a load: an atomic that would change nothing is not executed.
//!
//! In graph programs many edges lead to one node: all updates of its bit or distance but the first few change nothing.
//! An atomic `or`, `and`, `min` or `max` that leaves its element unchanged still acquires the cache line exclusively.
//! The pass loads the element first and executes the atomic only if it would change the value (test and test-and-set).
//!
//! Atomics, and loads of atomic objects, are relaxed. An atomic that changes nothing may be placed anywhere in the
//! modification order of its element, so it may follow the write that the load observed, and its result is the loaded
//! value. Out of bounds, a load returns 0, and an atomic does nothing and returns 0, so the guard does not matter
//! there.
//!
//! Repeated atomics: if two atomics in a block apply the same idempotent operation to one element, and nothing in
//! between accesses it, the second is removed if its result is unused.
//!
//! Skipped are atomics already guarded by a branch in the same loop iteration that depends on the element (as after
//! this pass), and atomics whose operand was reduced in workgroup memory, because each workgroup executes only one of
//! those.

use rustc_hash::FxHashSet;

use crate::analysis::{Alias, Analyses, Effects, Location, Scope, Structure, Uniformity, Uses, alias};
use crate::ir::{
    Access, Atomic, BlockId, Control, Cursor, Def, Inst, InstId, MemId, MemOperand, Op, Program, Pure, Renaming, Space,
    Terminator, Type, ValueId,
};
use crate::optimizer::{Boundary, Family, Metadata, Pass, Phase};
use crate::validate::limits;

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        boundary: Boundary::DomainSpecific,
        ..Metadata::new("guard_idempotent_atomics", Phase::Dataflow, Family::Dataflow)
    },
    speculative: true,
    run,
};

/// Limit of the values visited in the dependence search of a condition.
const MAX_VISITED: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (structure, effects) = (analyses.structure(program), analyses.effects(program));
    let (uniformity, uses) = (analyses.uniformity(program), analyses.uses(program));
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        changed |= drop_repeated(program, &effects, &uses, block);
        // The inserted `if` must not exceed the nesting limit.
        if structure.depth(block) as usize >= limits::NESTING {
            continue;
        }
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            let inst = program.inst(id);
            let is_open = |_: &(Idempotent, MemOperand)| {
                !is_reduced(program, &uniformity, inst) && !is_guarded(program, &structure, block, id)
            };
            match target(program, inst).filter(is_open) {
                Some((function, at)) => {
                    guard(program, id, function, at, &uses, &mut cursor, &mut renaming);
                    changed = true;
                }
                None => cursor.insert(id),
            }
        }
        cursor.finish(program);
    }
    renaming.apply(program);
    changed
}

/// Idempotent function of an atomic: applying it twice is applying it once.
#[derive(Clone, Copy)]
enum Idempotent {
    Min,
    Max,
    And,
    Or,
}

/// Function and memory operand of an idempotent atomic in storage.
fn target(program: &Program, inst: &Inst) -> Option<(Idempotent, MemOperand)> {
    let Op::Atomic(op, at) = inst.op else { return None };
    // A comparison does not tell which of two floats `min` takes: it orders neither NaNs nor zeros.
    if at.value_type().is_float() {
        return None;
    }
    let function = match op {
        Atomic::Min => Idempotent::Min,
        Atomic::Max => Idempotent::Max,
        Atomic::And => Idempotent::And,
        Atomic::Or => Idempotent::Or,
        Atomic::Add | Atomic::Sub | Atomic::Xor | Atomic::Exchange => return None,
    };
    (program.memory(at.memory).space == Space::Storage(Access::ReadWrite)).then_some((function, at))
}

/// Removes repeated atomics of a block.
fn drop_repeated(program: &mut Program, effects: &Effects, uses: &Uses, block: BlockId) -> bool {
    let before = program.block(block).insts.len();
    // Atomics whose element was not accessed since.
    let mut done: Vec<(MemId, InstId)> = Vec::new();
    program.retain_insts(block, |program, id| {
        let (inst, summary) = (program.inst(id), effects.inst(id));
        let found = target(program, inst);
        let at = Location::of(program, id);
        let is_like = |&(_, earlier): &(MemId, InstId)| {
            let same = at.zip(Location::of(program, earlier)).is_some_and(|(a, b)| alias(a, b) == Alias::Must);
            let earlier = program.inst(earlier);
            same && earlier.op == inst.op && earlier.operands[1..] == inst.operands[1..]
        };
        let unused = inst.results.iter().all(|&result| uses.is_unused(result));
        if found.is_some() && unused && done.iter().any(is_like) {
            return false;
        }
        // Loops and barriers may observe writes of other invocations.
        let waits = summary.collective || summary.loops;
        done.retain(|&(object, _)| !waits && !summary.writes.contains(object) && !summary.reads.contains(object));
        done.extend(found.map(|(_, at)| (at.memory, id)));
        true
    });
    program.block(block).insts.len() < before
}

/// Returns true if the operand of an atomic was reduced in workgroup memory, so that one invocation executes it.
fn is_reduced(program: &Program, uniformity: &Uniformity, inst: &Inst) -> bool {
    let Def::Result(operand, _) = program.def(inst.operands[1]) else { return false };
    let together = program.inst(operand).op.memory().map(|object| program.memory(object).space);
    uniformity.is_uniform(inst.operands[0], Scope::Workgroup) && together == Some(Space::Workgroup)
}

/// Returns true if a branch around an access, inside the innermost loop, depends on the accessed element.
fn is_guarded(program: &Program, structure: &Structure, mut block: BlockId, access: InstId) -> bool {
    let Some(location) = Location::of(program, access) else { return false };
    while let Some(owner) = structure.owner(block) {
        let inst = program.inst(owner);
        match inst.op {
            Op::Control(Control::Loop) => return false,
            Op::Control(Control::If | Control::Switch(_)) if depends_on(program, inst.operands[0], location) => {
                return true;
            }
            _ => {}
        }
        match structure.block_of(owner) {
            Some(around) => block = around,
            None => return false,
        }
    }
    false
}

/// Returns true if a value depends on a load or atomic of an element.
fn depends_on(program: &Program, value: ValueId, element: Location) -> bool {
    let (mut pending, mut seen) = (vec![value], FxHashSet::default());
    while let Some(value) = pending.pop() {
        let Def::Result(id, position) = program.def(value) else { continue };
        if seen.len() >= MAX_VISITED || !seen.insert(value) {
            continue;
        }
        let inst = program.inst(id);
        if Location::of(program, id).is_some_and(|other| alias(other.part(0), element) == Alias::Must) {
            return true;
        }
        if inst.op.memory().is_none() {
            pending.extend_from_slice(&inst.operands);
        }
        if inst.op != Control::Loop {
            // Values that the arms yield.
            let ends = inst.blocks.iter().filter_map(|&arm| program.block(arm).insts.last());
            pending.extend(ends.filter_map(|&end| program.inst(end).operands.get(position as usize)));
        }
    }
    false
}

/// Appends the replacement of an atomic: a load, a comparison, and the atomic in a branch.
fn guard(
    program: &mut Program,
    id: InstId,
    function: Idempotent,
    at: MemOperand,
    uses: &Uses,
    cursor: &mut Cursor,
    renaming: &mut Renaming,
) {
    let Inst { op, operands, results, span, .. } = program.inst(id).clone();
    let (index, operand) = (operands[0], operands[1]);
    let ty = program.ty(operand);
    let mut compute = |program: &mut Program, op, operands: &[ValueId], ty| {
        let (inst, value) = program.make_value(op, operands, ty, span);
        cursor.insert(inst);
        value
    };
    let found = compute(program, Op::Load(at), &[index], ty);
    let (test, value) = match function {
        Idempotent::Min => (Pure::Lt, operand),
        Idempotent::Max => (Pure::Gt, operand),
        Idempotent::And | Idempotent::Or => (Pure::Ne, compute(program, Op::Pure(Pure::And), &[found, operand], ty)),
    };
    let old = match function {
        Idempotent::Min | Idempotent::Max | Idempotent::And => found,
        Idempotent::Or => operand,
    };
    let changes = compute(program, Op::Pure(test), &[value, old], Type::Bool);
    if uses.is_unused(results[0]) {
        let branch = program.make_guard(changes, span, |program, block| program.block_mut(block).insts.push(id));
        cursor.insert(branch);
        return;
    }
    let (then, otherwise) = (program.add_block(), program.add_block());
    let atomic = program.push(then, op, operands, &[ty], [], span);
    let old = program.inst(atomic).results[0];
    for (block, value) in [(then, old), (otherwise, found)] {
        program.push(block, Terminator::Yield, [value], &[], [], span);
    }
    let branch = program.make(Control::If, [changes], &[ty], [then, otherwise], span);
    cursor.insert(branch);
    renaming.replace(results[0], program.inst(branch).results[0]);
}
