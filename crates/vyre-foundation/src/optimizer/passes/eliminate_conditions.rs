//! Replaces what the ranges of values decide: comparisons and branches that always go one way, values that are always the
//! same, and operations that change nothing because their operand is already in range.
//!
//! Sound by the range analysis, which knows at each place under which conditions it is reached.

use crate::analysis::{Analyses, Ranges};
use crate::ir::{Def, InstId, Literal, Op, Program, Renaming, Type, ValueId};
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
        let inst = &program.insts[id];
        if inst.op == Op::If {
            let known = matches!(program.values[inst.operands[0]].def, Def::Literal(_));
            if let (Some(taken), false) = (ranges.decided(id), known) {
                program.insts[id].operands[0] = program.literal(taken);
                changed = true;
            }
        } else if let [result] = inst.results[..]
            && inst.blocks.is_empty()
        {
            if let Some(literal) = constant(program, &ranges, id) {
                let literal = program.literal(literal);
                renaming.replace(result, literal);
            } else if let Some(operand) = unchanged(program, &ranges, id) {
                renaming.replace(result, operand);
            }
        }
    }
    if renaming.is_empty() {
        return changed;
    }
    renaming.apply(program);
    // What is replaced goes at once, so that the pass has nothing to do the next time.
    for block in program.reachable_blocks() {
        program.retain_insts(block, |program, id| match program.insts[id].results[..] {
            [result] => renaming.get(result) == result || !program.insts[id].blocks.is_empty(),
            _ => true,
        });
    }
    true
}

/// What an instruction without effects always gives.
fn constant(program: &Program, ranges: &Ranges, id: InstId) -> Option<Literal> {
    use crate::ir::ops::Kind;
    let inst = &program.insts[id];
    if !matches!(inst.op.row().kind, Kind::Pure | Kind::PerInvocation | Kind::PerGroup) {
        return None;
    }
    let number = ranges.of_value(inst.results[0]).single()?;
    match program.ty(inst.results[0]) {
        ty @ (Type::U32 | Type::I32) => Some(Literal { ty, bits: u64::from(number as u32) }),
        Type::Bool => Some(Literal::from(number == 1)),
        Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => None,
    }
}

/// The operand that an operation gives unchanged, because of what it can be.
fn unchanged(program: &Program, ranges: &Ranges, id: InstId) -> Option<ValueId> {
    let inst = &program.insts[id];
    let &[a, b] = &inst.operands[..] else { return None };
    if !matches!(program.ty(a), Type::U32 | Type::I32) {
        return None;
    }
    let (of_a, of_b) = (ranges.of_value(a), ranges.of_value(b));
    match inst.op {
        Op::Min if of_a.high <= of_b.low => Some(a),
        Op::Min if of_b.high <= of_a.low => Some(b),
        Op::Max if of_a.low >= of_b.high => Some(a),
        Op::Max if of_b.low >= of_a.high => Some(b),
        Op::Rem if of_a.low >= 0 && of_b.low > of_a.high => Some(a),
        // All ones from the lowest bit up, as far as the other operand reaches.
        Op::And => match of_b.single() {
            Some(mask) if mask >= 0 && mask & (mask + 1) == 0 && of_a.low >= 0 && of_a.high <= mask => Some(a),
            _ => None,
        },
        _ => None,
    }
}
