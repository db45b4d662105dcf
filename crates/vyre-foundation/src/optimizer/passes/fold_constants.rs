//! Constant folding, including accesses at constant indices out of bounds.
//!
//! A pure operation on literals is replaced by the result of its evaluator in the op table. The oracle uses the same
//! evaluator, so the bits are equal. NaN results are not folded: all NaNs are equal by the semantics but may differ in
//! their bits, which a later operation may observe.
//!
//! Specialization constants are not folded; `specialize` replaces them by literals.

use crate::analysis::Analyses;
use crate::ir::{Def, Literal, Program, Renaming, Type, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase, fold_oob_accesses};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("fold_constants", Phase::ScalarAlgebra, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut renaming = Renaming::default();
    for block in program.reachable_blocks() {
        program.retain_insts(block, |program, id| {
            renaming.apply_to(program.inst_mut(id));
            let inst = program.inst(id);
            let [result] = inst.results[..] else { return true };
            match fold(program, id) {
                Some(literal) => {
                    let literal = program.literal(literal);
                    renaming.replace(result, literal);
                    false
                }
                None => true,
            }
        });
    }
    let resolved = fold_oob_accesses::run(program);
    resolved || !renaming.is_empty()
}

fn fold(program: &Program, id: crate::ir::InstId) -> Option<Literal> {
    let inst = program.inst(id);
    let ty = program.ty(inst.results[0]);
    if inst.operands.is_empty() {
        return None;
    }
    let bits = |&operand: &ValueId| match program.def(operand) {
        Def::Literal(bits) => Some(bits),
        _ => None,
    };
    let operands: Option<smallvec::SmallVec<[u64; 4]>> = inst.operands.iter().map(bits).collect();
    let evaluate = inst.op.info().evaluator(program.class(inst), ty)?;
    let literal = Literal { ty, bits: evaluate(&operands?) };
    let is_nan = match ty {
        Type::F32 => literal.value::<f32>().is_some_and(f32::is_nan),
        Type::F64 => literal.value::<f64>().is_some_and(f64::is_nan),
        Type::F16 => literal.value::<half::f16>().is_some_and(half::f16::is_nan),
        Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64 => false,
    };
    (!is_nan).then_some(literal)
}
