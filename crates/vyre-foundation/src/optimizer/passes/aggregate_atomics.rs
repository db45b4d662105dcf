//! Workgroup aggregation of storage atomics: a reduction in workgroup memory, then one storage atomic per workgroup.
//!
//! Applies where control flow is uniform in the workgroup, all invocations update the same element of a storage object,
//! and the program never observes the object otherwise: no load, and no use of an old value. The invocations then
//! update a workgroup accumulator, and one invocation adds the result to storage. The order of atomic operations is not
//! specified and the operations are associative and commutative, so the element has the same final value. The identity
//! of the operation must be 0, the initial value of the accumulator: `add`, `or`, `xor`, and `max` of unsigned
//! integers.
//!
//! The invocation that executes the storage atomic must not have ended, so programs with early exits are skipped. If
//! the program uses subgroup operations, each subgroup reduces first, and one lane updates the accumulator.

use crate::analysis::{Analyses, Scope, Uniformity, Uses};
use crate::ir::{
    Access, Atomic, Barrier, Cursor, Inst, InstId, Literal, MemId, MemOperand, Memory, Op, PerGroup, PerInvocation,
    Program, Pure, Space, Subgroup, Type,
};
use crate::optimizer::{Family, Metadata, Pass, Phase};
use crate::validate::limits;

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("aggregate_atomics", Phase::Sync, Family::Sync), speculative: true, run };

/// Least number of invocations for which two barriers cost less than the atomics they save.
const MIN_INVOCATIONS: u32 = 32;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let invocations: u32 = program.workgroup_size().iter().product();
    if invocations < MIN_INVOCATIONS || program.may_end_early() {
        return false;
    }
    let (uniformity, uses) = (analyses.uniformity(program), analyses.uses(program));
    let structure = analyses.structure(program);
    let all = program.reachable_insts();
    let subgroups = all.iter().any(|&id| program.inst(id).op.needs_subgroups());
    let mut changed = false;
    for block in program.reachable_blocks() {
        // The inserted `if` must not exceed the nesting limit.
        if !uniformity.is_converged(block, Scope::Workgroup) || structure.depth(block) as usize >= limits::NESTING {
            continue;
        }
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            let inst = program.inst(id);
            let unused = inst.results.iter().all(|&result| uses.is_unused(result));
            match target(program, &uniformity, inst).filter(|_| unused) {
                Some((at, together))
                    if is_never_observed(program, &all, &uses, at.memory) && accumulator_fits(program, at) =>
                {
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

/// Memory operand of an atomic that can be aggregated, and the equivalent subgroup reduction.
fn target(program: &Program, uniformity: &Uniformity, inst: &Inst) -> Option<(MemOperand, Subgroup)> {
    let Op::Atomic(op, at) = inst.op else { return None };
    // Sums of floats depend on the association.
    if at.value_type().is_float() {
        return None;
    }
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

/// Returns true if all accesses to an object are the same operation and no result is used: an invocation that observed
/// the object would have to see its own updates.
fn is_never_observed(program: &Program, insts: &[InstId], uses: &Uses, object: MemId) -> bool {
    let accesses = insts.iter().map(|&id| program.inst(id)).filter(|inst| inst.op.memory() == Some(object));
    let mut accesses = accesses.filter(|inst| !matches!(inst.op, Op::PerGroup(PerGroup::Length(_)))).peekable();
    let first = accesses.peek().map(|inst| inst.op.clone());
    accesses.all(|inst| Some(&inst.op) == first.as_ref() && inst.results.iter().all(|&result| uses.is_unused(result)))
}

/// Returns true if an accumulator for an object fits into workgroup memory.
fn accumulator_fits(program: &Program, at: MemOperand) -> bool {
    let bytes = at.element.size() as u64;
    program.static_bytes_in(Space::Workgroup) + bytes <= limits::WORKGROUP_BYTES
}

/// Appends the replacement of an atomic. With `subgroup`, each subgroup reduces first.
fn aggregate(program: &mut Program, id: InstId, at: MemOperand, subgroup: Option<Subgroup>, cursor: &mut Cursor) {
    let (inst, span) = (program.inst(id).clone(), program.inst(id).span);
    let (index, value_operand) = (inst.operands[0], inst.operands[1]);
    let ty = program.ty(value_operand);
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
    let (zero, identity) = (program.literal(0u32), program.literal(Literal::zero(ty)));

    if let Some(together) = subgroup {
        let (sum, value) = program.make_value(together, &[value_operand], ty, span);
        cursor.insert(sum);
        // One lane contributes the subgroup's result, the others the identity.
        let (lane, lane_value) = program.make_value(PerInvocation::SubgroupLane, &[], Type::U32, span);
        let (first, is_first) = program.make_value(Pure::Eq, &[lane_value, zero], Type::Bool, span);
        cursor.insert_all([lane, first]);
        let branch = program.make_guard(is_first, span, |program, block| {
            program.push(block, inst.op.on(accumulator), [zero, value], &[ty], [], span);
        });
        cursor.insert(branch);
    } else {
        cursor.insert(program.make(inst.op.on(accumulator), [zero, value_operand], &[ty], [], span));
    }
    cursor.insert(program.make(Barrier::Workgroup, [], &[], [], span));
    let (local, local_value) = program.make_value(PerInvocation::LocalIndex, &[], Type::U32, span);
    let (first, is_first) = program.make_value(Pure::Eq, &[local_value, zero], Type::Bool, span);
    cursor.insert_all([local, first]);
    let branch = program.make_guard(is_first, span, |program, block| {
        let load = program.push(block, Op::Load(sum_at), [zero], &[ty], [], span);
        let sum = program.inst(load).results[0];
        program.push(block, inst.op.clone(), [index, sum], &[ty], [], span);
        // Reset for the next iteration, if this code is in a loop.
        program.push(block, Op::Store(sum_at), [zero, identity], &[], [], span);
    });
    cursor.insert(branch);
    cursor.insert(program.make(Barrier::Workgroup, [], &[], [], span));
}
