//! Canonicalization: operand order and comparison forms, so that equivalent expressions become structurally equal.
//!
//! Operands of commutative operations are ordered by rank: results and parameters in definition order, then
//! specialization constants, then literals. Comparisons have their literal on the right, and use `gt` and `ge` only if
//! that requires it. Definition order follows the text of the program and not its ids, so the pass is idempotent.
//!
//! [`SWAPPED`](crate::optimizer::rules::SWAPPED) lists the operations that may be swapped, and
//! [`canonical`](crate::optimizer::rules::canonical) the other rewrites. Both are data, and tests prove every entry.

use crate::analysis::Analyses;
use crate::ir::entity::{Entity, SecondaryMap};
use crate::ir::{Def, Inst, Op, Program, Pure, ValueId};
use crate::optimizer::rules::{self, Index};
use crate::optimizer::{Family, Metadata, Pass, Phase, rewrite};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("canonicalize", Phase::Canonicalization, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let uses = analyses.uses(program);
    let ordered = order_operands(program);
    rewrite::apply(program, &uses, Index::canonical()) || ordered
}

/// Swaps operands into canonical order. Returns true if any changed.
fn order_operands(program: &mut Program) -> bool {
    let mut positions = SecondaryMap::with_capacity(program.values().len(), 0);
    let mut next = 0;
    let mut define = |positions: &mut SecondaryMap<ValueId, u32>, values: &[ValueId]| {
        for &value in values {
            next += 1;
            positions[value] = next;
        }
    };
    let mut changed = false;
    for block in program.reachable_blocks() {
        define(&mut positions, &program.block(block).params);
        for at in 0..program.block(block).insts.len() {
            let id = program.block(block).insts[at];
            define(&mut positions, &program.inst(id).results);
            if let Some(op) = canonical_swap(program, &positions, program.inst(id)) {
                let inst = program.inst_mut(id);
                inst.op = op.into();
                inst.operands.swap(0, 1);
                changed = true;
            }
        }
    }
    changed
}

/// The operation with swapped operands, if the canonical order requires the swap.
fn canonical_swap(program: &Program, positions: &SecondaryMap<ValueId, u32>, inst: &Inst) -> Option<Pure> {
    let (&Op::Pure(op), &[left, right]) = (&inst.op, inst.operands.as_slice()) else { return None };
    let swapped = rules::swapped(op, program.ty(left))?;
    let rank = |value: ValueId| match program.def(value) {
        Def::Result(..) | Def::Param(..) => (0, positions[value]),
        Def::Constant(constant) => (1, constant.index() as u32),
        Def::Literal(_) => (2, 0),
    };
    let (left, right) = (rank(left), rank(right));
    let is_literal = |rank: (u32, u32)| rank.0 == 2;
    let should = match op {
        _ if is_literal(left) || is_literal(right) => is_literal(left) && !is_literal(right),
        Pure::Gt | Pure::Ge => true,
        Pure::Lt | Pure::Le => false,
        _ => left > right,
    };
    should.then_some(swapped)
}
