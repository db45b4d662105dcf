//! Brings equal things into equal form, so that the passes after it find them.
//!
//! Of commutative operations, literals stand on the right, then specialization constants, and the other operands in the
//! order in which they are defined. Of comparisons, literals stand on the right, and `gt` and `ge` are used only where that
//! asks for it. The order is that of the text and not of ids, so that optimizing an optimized program changes nothing.
//!
//! Swapping is sound by [`SWAPPED`](crate::optimizer::rules::SWAPPED), and the rest, which forms there are, by
//! [`canonical`](crate::optimizer::rules::canonical): both are data, and the tests prove every line.

use crate::analysis::Analyses;
use crate::ir::entity::{Entity, SecondaryMap};
use crate::ir::{Def, Inst, Op, Program, Pure, ValueId};
use crate::optimizer::rules::{self, Index};
use crate::optimizer::{Family, Metadata, Pass, Phase, rewrite};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("canonicalize", Phase::Canonicalization, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let uses = analyses.uses(program);
    let ordered = order(program);
    rewrite::apply(program, &uses, Index::canonical()) || ordered
}

/// Swaps operands, and says whether there were any to swap.
fn order(program: &mut Program) -> bool {
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
            if let Some(op) = better(program, &positions, program.inst(id)) {
                let inst = program.inst_mut(id);
                inst.op = op.into();
                inst.operands.swap(0, 1);
                changed = true;
            }
        }
    }
    changed
}

/// What an operation becomes when its operands are swapped, if they should be.
fn better(program: &Program, positions: &SecondaryMap<ValueId, u32>, inst: &Inst) -> Option<Pure> {
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
