//! Merges switch arms that are equal, or equal up to a few literals (function merging).
//!
//! The interpreter kernel of a megakernel has an arm for each operation, and operations are often variants of one
//! another. One arm is kept. The selector is mapped from the merged cases to the kept one, and each differing literal
//! becomes a `select` on the original selector at the start of the arm. An arm merged with the default needs no case.
//!
//! Arms are not merged if a differing literal makes its use cheap: as a divisor, as an index, or as the bound of a
//! loop.

use crate::analysis::Analyses;
use crate::ir::ops::Kind;
use crate::ir::{
    BlockId, Control, Cursor, Differences, Inst, InstId, Literal, Op, OtherLiteral, Program, Pure, Terminator, Type,
    compare,
};
use crate::optimizer::{Family, Metadata, Pass, Phase, cost};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("merge_arms", Phase::Megakernel, Family::Megakernel), speculative: true, run };

/// Limit of literals in which merged arms may differ.
const MAX_LITERALS: usize = 4;

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut changed = false;
    for block in program.reachable_blocks() {
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            changed |= merge(program, id, &mut cursor);
            cursor.insert(id);
        }
        cursor.finish(program);
    }
    changed
}

/// Kept arm, and the cases merged with it.
struct Arm {
    /// `None` for the default.
    case: Option<u32>,
    block: BlockId,
    merged: Vec<(u32, Differences)>,
}

fn merge(program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
    let Op::Control(Control::Switch(cases)) = program.inst(id).op.clone() else { return false };
    let blocks = program.inst(id).blocks.clone();
    let arm = |case, block| Arm { case, block, merged: Vec::new() };
    let mut arms = vec![arm(None, blocks[cases.len()])];
    for (&case, &block) in cases.iter().zip(&blocks) {
        let mergeable_with = |(at, arm): (usize, &Arm)| Some((at, mergeable(program, arm.block, block)?));
        match arms.iter().enumerate().find_map(mergeable_with) {
            Some((at, differences)) => arms[at].merged.push((case, differences)),
            None => arms.push(arm(Some(case), block)),
        }
    }
    if arms.len() == blocks.len() {
        return false;
    }
    let (selector, span) = (program.inst(id).operands[0], program.inst(id).span);
    let ty = program.ty(selector);
    let number = |program: &mut Program, case: u32| program.literal(Literal { ty, bits: u64::from(case) });
    let mut redirected = selector;
    for arm in &arms {
        let mut chosen = Vec::new();
        for (case, differences) in &arm.merged {
            let case = number(program, *case);
            let (inst, is_case) = program.make_value(Pure::Eq, &[selector, case], Type::Bool, span);
            cursor.insert(inst);
            if let Some(kept) = arm.case {
                let kept = number(program, kept);
                let (inst, value) = program.make_value(Pure::Select, &[is_case, kept, redirected], ty, span);
                cursor.insert(inst);
                redirected = value;
            }
            for other in &differences.literals {
                let own = program.inst(other.inst).operands[other.operand];
                let ty = program.ty(own);
                let (inst, value) = program.make_value(Pure::Select, &[is_case, other.value, own], ty, span);
                chosen.push(inst);
                program.inst_mut(other.inst).operands[other.operand] = value;
            }
            for &[own, other] in &differences.regions {
                if let (Op::Control(Control::Region(own_name)), Op::Control(Control::Region(name))) =
                    (&program.inst(own).op, &program.inst(other).op)
                {
                    program.inst_mut(own).op = Op::Control(Control::Region(format!("{own_name}+{name}").into()));
                }
            }
        }
        program.block_mut(arm.block).insts.splice(0..0, chosen);
    }
    // The default is the last block of a switch.
    arms.rotate_left(1);
    let inst = program.inst_mut(id);
    inst.op = Op::Control(Control::Switch(arms.iter().filter_map(|arm| arm.case).collect()));
    inst.operands[0] = redirected;
    inst.blocks = arms.iter().map(|arm| arm.block).collect();
    true
}

/// Returns the differences between two arms if they can be merged, and merging lowers the estimated cost.
fn mergeable(program: &Program, kept: BlockId, dropped: BlockId) -> Option<Differences> {
    let found = compare(program, kept, program, dropped)?;
    let literals = &found.literals;
    // A comparison, a `select` of the case, and one of each literal; an arm is estimated to execute half the time.
    let price = (2 + literals.len() as u64) * cost::ONCE;
    let pays = price < cost::of_block(program, dropped) / 2;
    (literals.len() <= MAX_LITERALS && literals.iter().all(|other| may_differ(program, other)) && pays).then_some(found)
}

/// Returns true if a literal can become a variable without making its use more expensive.
fn may_differ(program: &Program, other: &OtherLiteral) -> bool {
    let inst = program.inst(other.inst);
    let ends_loop = |(id, user): (InstId, &Inst)| {
        user.op == Control::If && user.operands[0] == inst.results[0] && program.jumps_out(id)
    };
    match inst.op.kind() {
        Kind::Pure => !matches!(inst.op, Op::Pure(Pure::Div | Pure::Rem)) && !program.insts().iter().any(ends_loop),
        Kind::Access | Kind::Atomic => other.operand > 0,
        Kind::Control => inst.op == Terminator::Yield,
        Kind::PerInvocation | Kind::PerGroup | Kind::Collective | Kind::Effect => false,
    }
}
