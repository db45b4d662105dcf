//! Hoists common subexpressions of switch arms to before the switch.
//!
//! A candidate stands directly in an arm, and its operands are defined before the switch. It is hoisted if every
//! non-empty arm has it; a cheap one also if more than half have it. Operations are total, so speculation is safe. A
//! load is hoisted only if nothing before it in its arm may write what it reads (RAW).

use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{Analyses, Effects, Summary};
use crate::ir::ops::Kind;
use crate::ir::{Control, InstId, Op, Program, Renaming, ResultTypes, ValueId, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase, cost};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("hoist_prologues", Phase::Megakernel, Family::Megakernel), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut changed = false;
    for block in program.reachable_blocks() {
        let mut at = 0;
        while let Some(&id) = program.block(block).insts.get(at) {
            let hoisted = match program.inst(id).op {
                Op::Control(Control::Switch(_)) => hoist(program, &effects, id),
                _ => Vec::new(),
            };
            let count = hoisted.len();
            program.block_mut(block).insts.splice(at..at, hoisted);
            changed |= count > 0;
            at += count + 1;
        }
    }
    changed
}

/// Removes the common instructions from the arms, and returns them.
fn hoist(program: &mut Program, effects: &Effects, switch: InstId) -> Vec<InstId> {
    let mut hoisted = Vec::new();
    // Hoisting an instruction may make those that use it candidates.
    loop {
        let common = common(program, effects, switch);
        if common.is_empty() {
            return hoisted;
        }
        let mut renaming = Renaming::default();
        for duplicates in &common {
            hoisted.push(duplicates[0]);
            for position in 0..program.inst(duplicates[0]).results.len() {
                let kept = program.inst(duplicates[0]).results[position];
                duplicates[1..]
                    .iter()
                    .for_each(|&duplicate| renaming.replace(program.inst(duplicate).results[position], kept));
            }
        }
        let moved: FxHashSet<InstId> = common.into_iter().flatten().collect();
        for arm in program.inst(switch).blocks.clone() {
            program.block_mut(arm).insts.retain(|inst| !moved.contains(inst));
        }
        renaming.apply(program);
    }
}

/// Instructions that compute the same in enough arms, in the order of the first arm that has them.
fn common(program: &Program, effects: &Effects, switch: InstId) -> Vec<Vec<InstId>> {
    let arms: Vec<&[InstId]> = program
        .inst(switch)
        .blocks
        .iter()
        .map(|&arm| &program.block(arm).insts[..])
        .filter(|arm| arm.len() > 1)
        .collect();
    let own: FxHashSet<ValueId> =
        arms.iter().copied().flatten().flat_map(|&inst| program.inst(inst).results.iter().copied()).collect();
    let mut duplicates: Vec<(usize, usize, Vec<InstId>)> = Vec::new();
    let mut known: FxHashMap<(Op, Values, ResultTypes), usize> = FxHashMap::default();
    for (number, &arm) in arms.iter().enumerate() {
        let mut before = Summary::default();
        for &id in arm {
            let during = before;
            before = before.union(effects.inst(id));
            let inst = program.inst(id);
            let is_value = match inst.op.kind() {
                Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
                Kind::Access => matches!(inst.op, Op::Load(load) if effects.preserves_load(program, &during, load)),
                Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
            };
            if !is_value || inst.operands.iter().any(|operand| own.contains(operand)) {
                continue;
            }
            let types = inst.results.iter().map(|&result| program.ty(result)).collect();
            let at = *known.entry((inst.op.clone(), inst.operands.clone(), types)).or_insert(duplicates.len());
            if at == duplicates.len() {
                duplicates.push((0, usize::MAX, Vec::new()));
            }
            let (count, last, insts) = &mut duplicates[at];
            *count += usize::from(*last != number);
            *last = number;
            insts.push(id);
        }
    }
    let enough = |(count, _, insts): &(usize, usize, Vec<InstId>)| {
        let is_cheap = cost::is_cheap(program, program.inst(insts[0]));
        *count > 1 && (*count == arms.len() || is_cheap && 2 * *count > arms.len())
    };
    duplicates.into_iter().filter(enough).map(|(.., insts)| insts).collect()
}
