//! Lets a workgroup agree before it goes to a storage atomic.
//!
//! Where all invocations of a workgroup come by and add to the same element of a storage object, and none of them looks at
//! the old value, now or later, they first add to a workgroup accumulator, and one of them adds the sum. The order of atomic operations is
//! not specified, and the operations in question are associative and commutative, so the element ends with the same value;
//! in between, nobody could tell. The operations are those for which 0 changes nothing, because that is what an accumulator
//! starts with: `add`, `or`, `xor`, and `max` of unsigned integers.
//!
//! One invocation does it for the others, so it must still be there: a program in which an invocation may end early is left
//! alone. If the program uses subgroups, the device has them, and each subgroup agrees before it goes to the accumulator.

use crate::analysis::{Analyses, Scope, Uniformity, Uses};
use crate::ir::{
    Access, Atomic, Barrier, Cursor, Inst, InstId, Literal, MemId, MemOperand, Memory, Op, PerGroup, PerInvocation,
    Program, Pure, Space, Subgroup, Type,
};
use crate::optimizer::{Family, Metadata, Pass, Phase};
use crate::validate::limits;

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("aggregate_atomics", Phase::Sync, Family::Sync), speculative: true, run };

/// Invocations of a workgroup from which two barriers cost less than the atomics they save.
const WORTH_IT: u32 = 32;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let invocations: u32 = program.workgroup_size().iter().product();
    if invocations < WORTH_IT || program.may_end_early() {
        return false;
    }
    let (uniformity, uses) = (analyses.uniformity(program), analyses.uses(program));
    let structure = analyses.structure(program);
    let all = program.reachable_insts();
    let subgroups = all.iter().any(|&id| program.inst(id).op.needs_subgroups());
    let mut changed = false;
    for block in program.reachable_blocks() {
        // There must be room for one more `if`.
        if !uniformity.is_together(block, Scope::Workgroup) || structure.depth(block) as usize >= limits::NESTING {
            continue;
        }
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            let inst = program.inst(id);
            let unused = inst.results.iter().all(|&result| uses.is_unused(result));
            match target(program, &uniformity, inst).filter(|_| unused) {
                Some((at, together)) if nobody_looks(program, &all, &uses, at.memory) && room(program, at) => {
                    aggregate(program, id, at, subgroups.then_some(together), &mut cursor);
                    changed = true;
                }
                _ => cursor.insert(id),
            }
        }
        cursor.finish(program);
    }
    changed
}

/// The memory operand of an atomic operation that a workgroup can do together, and the same operation in a subgroup.
fn target(program: &Program, uniformity: &Uniformity, inst: &Inst) -> Option<(MemOperand, Subgroup)> {
    let Op::Atomic(op, at) = inst.op else { return None };
    let together = match op {
        Atomic::Add => Subgroup::Add,
        Atomic::Or => Subgroup::Or,
        Atomic::Xor => Subgroup::Xor,
        Atomic::Max if at.value_type() == Type::U32 => Subgroup::Max,
        Atomic::Sub | Atomic::Min | Atomic::Max | Atomic::And | Atomic::Exchange => return None,
    };
    let memory = program.memory(at.memory);
    let in_storage = memory.space == Space::Storage(Access::ReadWrite);
    (in_storage && uniformity.is_uniform(inst.operands[0], Scope::Workgroup)).then_some((at, together))
}

/// Whether a program only ever changes an object, in one way, and never asks what is there: an invocation that looked would
/// have to see its own changes.
fn nobody_looks(program: &Program, insts: &[InstId], uses: &Uses, object: MemId) -> bool {
    let accesses = insts.iter().map(|&id| program.inst(id)).filter(|inst| inst.op.memory() == Some(object));
    let mut accesses = accesses.filter(|inst| !matches!(inst.op, Op::PerGroup(PerGroup::Length(_)))).peekable();
    let first = accesses.peek().map(|inst| inst.op.clone());
    accesses.all(|inst| Some(&inst.op) == first.as_ref() && inst.results.iter().all(|&result| uses.is_unused(result)))
}

/// Whether an accumulator for an object still fits into workgroup memory.
fn room(program: &Program, at: MemOperand) -> bool {
    let bytes = at.element.size() as u64;
    program.static_bytes_in(Space::Workgroup) + bytes <= limits::WORKGROUP_BYTES
}

/// Appends what replaces an atomic operation. With `subgroup`, each subgroup applies that first.
fn aggregate(program: &mut Program, id: InstId, at: MemOperand, subgroup: Option<Subgroup>, cursor: &mut Cursor) {
    let (inst, span) = (program.inst(id).clone(), program.inst(id).span);
    let (index, given) = (inst.operands[0], inst.operands[1]);
    let ty = program.ty(given);
    let accumulator = program.add_memory(Memory {
        name: program.unused_name(&format!("{}_sum", program.memory(at.memory).name)),
        space: Space::Workgroup,
        element: at.element,
        length: Some(1),
        atomic: true,
        default: None,
        span,
    });
    let sum_at = program.operand(accumulator);
    let (zero, nothing) = (program.literal(0u32), program.literal(Literal::zero(ty)));

    if let Some(together) = subgroup {
        let (sum, value) = program.make_value(together, &[given], ty, span);
        cursor.insert(sum);
        // One lane goes on with the sum, the others with what changes nothing.
        let (lane, lane_value) = program.make_value(PerInvocation::SubgroupLane, &[], Type::U32, span);
        let (first, is_first) = program.make_value(Pure::Eq, &[lane_value, zero], Type::Bool, span);
        cursor.insert_all([lane, first]);
        let branch = program.make_guard(is_first, span, |program, block| {
            program.push(block, inst.op.on(accumulator), [zero, value], &[ty], [], span);
        });
        cursor.insert(branch);
    } else {
        cursor.insert(program.make(inst.op.on(accumulator), [zero, given], &[ty], [], span));
    }
    cursor.insert(program.make(Barrier::Workgroup, [], &[], [], span));
    let (local, local_value) = program.make_value(PerInvocation::LocalIndex, &[], Type::U32, span);
    let (first, is_first) = program.make_value(Pure::Eq, &[local_value, zero], Type::Bool, span);
    cursor.insert_all([local, first]);
    let branch = program.make_guard(is_first, span, |program, block| {
        let load = program.push(block, Op::Load(sum_at), [zero], &[ty], [], span);
        let sum = program.inst(load).results[0];
        program.push(block, inst.op.clone(), [index, sum], &[ty], [], span);
        // A loop may come by again.
        program.push(block, Op::Store(sum_at), [zero, nothing], &[], [], span);
    });
    cursor.insert(branch);
    cursor.insert(program.make(Barrier::Workgroup, [], &[], [], span));
}
