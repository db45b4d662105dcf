//! Guards idempotent atomics by a load: an atomic that would change nothing is not executed.
//!
//! In programs over frontiers many edges lead to one node, and whoever comes after the first finds the bit set and the distance short.
//! An atomic `or`, `and`, `min` or `max` of an element that already is what it would become is a read-modify-write only by name, and keeps
//! all others from the cache line. So the element is loaded, and the atomic is executed only if it would change it.
//!
//! Atomics are relaxed, and so are loads of an atomic object. One that changes nothing can stand anywhere in the order of changes of its element
//! without anybody noticing; it may as well stand right behind the change that the load saw, and what it gives is what was loaded.
//! Outside of its object a load gives 0, and an atomic does nothing and gives 0, so it makes no difference there whether it is executed.
//!
//! Of two atomics of a block that do the same to one element, with nothing between them that looks at it, the second changes
//! nothing, and goes if nobody takes its result.
//!
//! An atomic is left alone where a branch around it, in the same trip of its loop, has looked at the element, as it has after this pass; and
//! where a workgroup has agreed on an operand before, because then there is only one in each.

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

/// Values that a condition is computed from that are looked at, so that the search stays linear.
const LOOKED_AT: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (structure, effects) = (analyses.structure(program), analyses.effects(program));
    let (uniformity, uses) = (analyses.uniformity(program), analyses.uses(program));
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        changed |= drop_repeated(program, &effects, &uses, block);
        // There must be room for one more `if`.
        if structure.depth(block) as usize >= limits::NESTING {
            continue;
        }
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            let inst = program.inst(id);
            let is_open = |_: &(Idempotent, MemOperand)| {
                !has_agreed(program, &uniformity, inst) && !is_guarded(program, &structure, block, id)
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

/// Function of an atomic that does the same if it is done twice.
#[derive(Clone, Copy)]
enum Idempotent {
    Min,
    Max,
    And,
    Or,
}

/// The function and the memory operand of an idempotent atomic in storage.
fn target(program: &Program, inst: &Inst) -> Option<(Idempotent, MemOperand)> {
    let Op::Atomic(op, at) = inst.op else { return None };
    let function = match op {
        Atomic::Min => Idempotent::Min,
        Atomic::Max => Idempotent::Max,
        Atomic::And => Idempotent::And,
        Atomic::Or => Idempotent::Or,
        Atomic::Add | Atomic::Sub | Atomic::Xor | Atomic::Exchange => return None,
    };
    (program.memory(at.memory).space == Space::Storage(Access::ReadWrite)).then_some((function, at))
}

/// Drops atomics of a block that have just been done.
fn drop_repeated(program: &mut Program, effects: &Effects, uses: &Uses, block: BlockId) -> bool {
    let before = program.block(block).insts.len();
    // Those that nothing has looked at since.
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
        // A loop may wait for what others do, and a barrier shows it.
        let waits = summary.collective || summary.loops;
        done.retain(|&(object, _)| !waits && !summary.writes.contains(object) && !summary.reads.contains(object));
        done.extend(found.map(|(_, at)| (at.memory, id)));
        true
    });
    program.block(block).insts.len() < before
}

/// Whether a workgroup has put together what an atomic does to one element.
fn has_agreed(program: &Program, uniformity: &Uniformity, inst: &Inst) -> bool {
    let Def::Result(operand, _) = program.def(inst.operands[1]) else { return false };
    let together = program.inst(operand).op.memory().map(|object| program.memory(object).space);
    uniformity.is_uniform(inst.operands[0], Scope::Workgroup) && together == Some(Space::Workgroup)
}

/// Returns true if a branch around an access, within the innermost loop, depends on the element that is accessed.
fn is_guarded(program: &Program, structure: &Structure, mut block: BlockId, access: InstId) -> bool {
    let Some(location) = Location::of(program, access) else { return false };
    while let Some(owner) = structure.owner(block) {
        let inst = program.inst(owner);
        match inst.op {
            Op::Control(Control::Loop) => return false,
            Op::Control(Control::If | Control::Switch(_)) if depends(program, inst.operands[0], location) => {
                return true;
            }
            _ => {}
        }
        match structure.place(owner) {
            Some(around) => block = around,
            None => return false,
        }
    }
    false
}

/// Returns true if a value depends on a load or atomic of an element.
fn depends(program: &Program, value: ValueId, element: Location) -> bool {
    let (mut pending, mut seen) = (vec![value], FxHashSet::default());
    while let Some(value) = pending.pop() {
        let Def::Result(id, position) = program.def(value) else { continue };
        if seen.len() >= LOOKED_AT || !seen.insert(value) {
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
            // What an arm gives.
            let ends = inst.blocks.iter().filter_map(|&arm| program.block(arm).insts.last());
            pending.extend(ends.filter_map(|&end| program.inst(end).operands.get(position as usize)));
        }
    }
    false
}

/// Appends what replaces an atomic: a load, a test, and the atomic in a branch.
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
    let (index, given) = (operands[0], operands[1]);
    let ty = program.ty(given);
    let mut compute = |program: &mut Program, op, operands: &[ValueId], ty| {
        let (inst, value) = program.make_value(op, operands, ty, span);
        cursor.insert(inst);
        value
    };
    let found = compute(program, Op::Load(at), &[index], ty);
    let (test, value) = match function {
        Idempotent::Min => (Pure::Lt, given),
        Idempotent::Max => (Pure::Gt, given),
        Idempotent::And | Idempotent::Or => (Pure::Ne, compute(program, Op::Pure(Pure::And), &[found, given], ty)),
    };
    let old = match function {
        Idempotent::Min | Idempotent::Max | Idempotent::And => found,
        Idempotent::Or => given,
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
