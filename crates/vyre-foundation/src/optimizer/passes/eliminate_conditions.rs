//! Range-based simplification: folds comparisons, branches and values that range analysis decides, and removes
//! operations whose operand is already in range (`min`, `max`, `rem`, `and` with a mask).
//!
//! The [range analysis](crate::analysis::Ranges) is flow-sensitive: in an arm, the condition of its branch holds.

use crate::analysis::{Analyses, Ranges};
use crate::ir::{Control, Def, InstId, Literal, Op, Program, Pure, Renaming, Type, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata::new("eliminate_conditions", Phase::ScalarAlgebra, Family::Scalar),
    speculative: false,
    run,
};

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let ranges = analyses.ranges(program);
    let mut renaming = Renaming::default();
    let mut changed = false;
    let insts = program.reachable_insts();
    for &id in &insts {
        let inst = program.inst(id);
        if inst.op == Control::If {
            let known = matches!(program.def(inst.operands[0]), Def::Literal(_));
            if let (Some(taken), false) = (ranges.decided(id), known) {
                program.inst_mut(id).operands[0] = program.literal(taken);
                changed = true;
            }
        } else if let [result] = inst.results[..]
            && inst.blocks.is_empty()
        {
            if let Some(literal) = constant(program, &ranges, id) {
                let literal = program.literal(literal);
                renaming.replace(result, literal);
            } else if let Some(operand) = identity_operand(program, &ranges, id) {
                renaming.replace(result, operand);
            }
        }
    }
    if renaming.is_empty() {
        return changed;
    }
    renaming.apply(program);
    // Replaced instructions are removed at once, so that the pass is idempotent.
    for block in program.reachable_blocks() {
        program.retain_insts(block, |program, id| match program.inst(id).results[..] {
            [result] => renaming.get(result) == result || !program.inst(id).blocks.is_empty(),
            _ => true,
        });
    }
    true
}

/// The constant value of an instruction without effects.
fn constant(program: &Program, ranges: &Ranges, id: InstId) -> Option<Literal> {
    use crate::ir::ops::Kind;
    let inst = program.inst(id);
    if !matches!(inst.op.kind(), Kind::Pure | Kind::PerInvocation | Kind::PerGroup) {
        return None;
    }
    let number = ranges.of_value(inst.results[0]).single()?;
    match program.ty(inst.results[0]) {
        ty @ (Type::U32 | Type::I32) => Some(Literal { ty, bits: u64::from(number as u32) }),
        Type::Bool => Some(Literal::from(number == 1)),
        Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => None,
    }
}

/// The operand that an operation returns unchanged, by the ranges of its operands.
fn identity_operand(program: &Program, ranges: &Ranges, id: InstId) -> Option<ValueId> {
    let inst = program.inst(id);
    let &[a, b] = &inst.operands[..] else { return None };
    if !matches!(program.ty(a), Type::U32 | Type::I32) {
        return None;
    }
    let (of_a, of_b) = (ranges.of_value(a), ranges.of_value(b));
    match inst.op {
        Op::Pure(Pure::Min) if of_a.high <= of_b.low => Some(a),
        Op::Pure(Pure::Min) if of_b.high <= of_a.low => Some(b),
        Op::Pure(Pure::Max) if of_a.low >= of_b.high => Some(a),
        Op::Pure(Pure::Max) if of_b.low >= of_a.high => Some(b),
        Op::Pure(Pure::Rem) if of_a.low >= 0 && of_b.low > of_a.high => Some(a),
        // The mask is 2ⁿ − 1 and covers the range of the other operand.
        Op::Pure(Pure::And) => match of_b.single() {
            Some(mask) if mask >= 0 && mask & (mask + 1) == 0 && of_a.low >= 0 && of_a.high <= mask => Some(a),
            _ => None,
        },
        _ => None,
    }
}
