//! Control-flow simplification: constant branches, if-conversion, branch merging, and single-iteration loops.
//!
//! * A branch on a constant is replaced by the taken arm; if the arm leaves the block, the code after the branch is
//!   unreachable and removed.
//! * Two branches on the same condition become one, if the code between them can be hoisted above the first.
//! * Nested guards, `if a { if b { … } }`, become one branch on `a & b`.
//! * A branch on a negation is inverted.
//! * A branch with equal arms is replaced by one of them. If-conversion replaces a branch with small arms by both
//!   computations and a `select` for each result. Operations are total, so speculation is safe.
//! * Switch cases equal to the default are removed; a switch with one case becomes a branch, and one without cases its
//!   default.
//! * A loop whose body ends in its only exit executes once and is replaced by its body.

use crate::analysis::Analyses;
use crate::ir::ops::Kind;
use crate::ir::{
    BlockId, Control, Cursor, Def, Inst, InstId, Op, Program, Pure, Renaming, Space, Terminator, Type, ValueId, compare,
};
use crate::optimizer::{Family, Metadata, Pass, Phase, cost};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata::new("simplify_control_flow", Phase::Canonicalization, Family::Scalar),
    speculative: false,
    run,
};

/// Limit of instructions in both arms for if-conversion.
const MAX_SELECTED: usize = 6;

/// Limit of instructions between two branches that are merged; bounds the search.
const MAX_BETWEEN: usize = 32;

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut simplifier = Simplifier { renaming: Renaming::default(), changed: false };
    simplifier.block(program, program.body());
    simplifier.changed
}

struct Simplifier {
    renaming: Renaming,
    changed: bool,
}

impl Simplifier {
    fn block(&mut self, program: &mut Program, block: BlockId) {
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            self.inst(program, id, &mut cursor);
            // If the replacement of a branch leaves the block, the rest is unreachable.
            if ends_in_terminator(program, cursor.before()) {
                cursor.truncate();
            }
        }
        cursor.finish(program);
    }

    fn inst(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) {
        self.renaming.apply_to(program.inst_mut(id));
        // Before the arms are simplified: their branches may merge with those in the arms of the earlier branch.
        if program.inst(id).op == Control::If && self.merge_with_earlier(program, id, cursor.before()) {
            self.changed = true;
            return;
        }
        for nested in program.inst(id).blocks.clone() {
            self.block(program, nested);
        }
        let done = match program.inst(id).op {
            Op::Control(Control::If) => self.branch(program, id, cursor),
            Op::Control(Control::Switch(_)) => self.switch(program, id, cursor),
            Op::Control(Control::Loop) => self.inline_single_iteration(program, id, cursor),
            _ => false,
        };
        self.changed |= done;
        if !done {
            cursor.insert(id);
        }
    }

    /// Replaces an instruction by the contents of one of its blocks.
    fn splice(&mut self, program: &mut Program, id: InstId, block: BlockId, cursor: &mut Cursor) {
        let (insts, last) = program.take_body(block);
        cursor.insert_all(insts);
        match program.inst(last).op {
            Op::Terminator(Terminator::Yield) => {
                self.renaming.replace_all(&program.inst(id).results, &program.inst(last).operands);
            }
            _ => cursor.insert(last),
        }
    }

    fn branch(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let condition = program.inst(id).operands[0];
        let (then, otherwise) = (program.inst(id).blocks[0], program.inst(id).blocks[1]);
        match program.def(condition) {
            Def::Literal(bits) => {
                self.splice(program, id, if bits == 1 { then } else { otherwise }, cursor);
                return true;
            }
            Def::Result(inst, _) if program.inst(inst).op == Pure::Not => {
                let inst = program.inst(inst);
                let positive = inst.operands[0];
                program.inst_mut(id).operands[0] = positive;
                program.inst_mut(id).blocks.swap(0, 1);
                self.changed = true;
                return self.branch(program, id, cursor);
            }
            _ => {}
        }
        if equal(program, then, otherwise) {
            self.splice(program, id, then, cursor);
            return true;
        }
        self.changed |= merge_nested_guards(program, id, cursor);
        self.if_convert(program, id, cursor)
    }

    /// If-conversion: replaces a branch with small arms by `select`.
    fn if_convert(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let (then, otherwise) = (program.inst(id).blocks[0], program.inst(id).blocks[1]);
        let arms = [then, otherwise];
        let is_cheap = |inst: &InstId| cost::is_cheap(program, program.inst(*inst));
        let few = arms.iter().map(|&arm| program.block(arm).insts.len()).sum::<usize>() <= MAX_SELECTED + 2;
        let only_computes = |&arm: &BlockId| match program.block(arm).insts.split_last() {
            Some((last, rest)) => program.inst(*last).op == Terminator::Yield && rest.iter().all(is_cheap),
            None => false,
        };
        if program.inst(id).results.is_empty() || !few || !arms.iter().all(only_computes) {
            return false;
        }
        let mut yielded = Vec::new();
        for arm in arms {
            let (insts, last) = program.take_body(arm);
            cursor.insert_all(insts);
            yielded.push(program.inst(last).operands.clone());
        }
        let (condition, span) = (program.inst(id).operands[0], program.inst(id).span);
        for (position, result) in program.inst(id).results.clone().into_iter().enumerate() {
            let (a, b) = (yielded[0][position], yielded[1][position]);
            let new = if a == b {
                a
            } else {
                let ty = program.ty(result);
                let (inst, value) = program.make_value(Pure::Select, &[condition, a, b], ty, span);
                cursor.insert(inst);
                value
            };
            self.renaming.replace(result, new);
        }
        true
    }

    fn switch(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let Op::Control(Control::Switch(cases)) = program.inst(id).op.clone() else { return false };
        let selector = program.inst(id).operands[0];
        let blocks = program.inst(id).blocks.clone();
        let default = blocks[cases.len()];
        if let Def::Literal(bits) = program.def(selector) {
            let taken = cases.iter().position(|&case| u64::from(case) == bits).map_or(default, |case| blocks[case]);
            self.splice(program, id, taken, cursor);
            return true;
        }
        let differs = |position: &usize| !equal(program, blocks[*position], default);
        let kept: Vec<usize> = (0..cases.len()).filter(differs).collect();
        match kept[..] {
            [] => self.splice(program, id, default, cursor),
            [only] => {
                let (span, ty) = (program.inst(id).span, program.ty(selector));
                let case = program.literal(crate::ir::Literal { ty, bits: u64::from(cases[only]) });
                let (inst, condition) = program.make_value(Pure::Eq, &[selector, case], Type::Bool, span);
                cursor.insert(inst);
                let branch = program.inst_mut(id);
                branch.op = Op::Control(Control::If);
                branch.operands = [condition].into_iter().collect();
                branch.blocks = [blocks[only], default].into_iter().collect();
                if !self.branch(program, id, cursor) {
                    cursor.insert(id);
                }
            }
            _ if kept.len() < cases.len() => {
                let inst = program.inst_mut(id);
                inst.op = Op::Control(Control::Switch(kept.iter().map(|&position| cases[position]).collect()));
                inst.blocks = kept.iter().map(|&position| blocks[position]).chain([default]).collect();
                self.changed = true;
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Replaces a loop that executes once by its body.
    fn inline_single_iteration(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let body = program.inst(id).blocks[0];
        let Some((&last, rest)) = program.block(body).insts.split_last() else { return false };
        let may_repeat =
            !matches!(program.inst(last).op, Op::Terminator(Terminator::Break | Terminator::Return | Terminator::Trap));
        if may_repeat || rest.iter().any(|&inst| program.jumps_out(inst)) {
            return false;
        }
        self.renaming.replace_all(&program.block(body).params, &program.inst(id).operands);
        let (insts, _) = program.take_body(body);
        // The body was simplified before the values of its parameters were known.
        for inst in insts {
            self.inst(program, inst, cursor);
            if ends_in_terminator(program, cursor.before()) {
                return true;
            }
        }
        self.renaming.apply_to(program.inst_mut(last));
        if program.inst(last).op != Terminator::Break {
            cursor.insert(last);
            return true;
        }
        self.renaming.replace_all(&program.inst(id).results, &program.inst(last).operands);
        true
    }

    /// Merges a branch with an earlier one on the same condition, if the code between them can be hoisted above both:
    /// it has no effects, and does not use results of the earlier branch.
    fn merge_with_earlier(&self, program: &mut Program, id: InstId, before: &mut [InstId]) -> bool {
        let is_like = |other: &Inst| other.op == Control::If && other.operands == program.inst(id).operands;
        let moves = before.iter().rev().take(MAX_BETWEEN).take_while(|&&inst| is_speculatable(program, inst)).count();
        let Some(at) = before.len().checked_sub(moves + 1) else { return false };
        let earlier = before[at];
        let takes = |&inst: &InstId| {
            let takes = |operand: &ValueId| program.inst(earlier).results.contains(operand);
            program.inst(inst).operands.iter().any(takes)
        };
        if !is_like(program.inst(earlier)) || !program.falls_through(earlier) || before[at + 1..].iter().any(takes) {
            return false;
        }
        before[at..].rotate_left(1);
        self.renaming.apply_nested(program, &[id]);
        program.join_insts(earlier, id);
        true
    }
}

/// Merges nested guards into one branch on both conditions. What the inner condition needs is hoisted before the
/// branch, if it is cheap; the rest moves into the inner arm.
fn merge_nested_guards(program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
    let Some((outer, outer_holds)) = guarded_arm(program, id) else { return false };
    let [between @ .., inner, _] = &program.block(outer).insts[..] else { return false };
    let Some((arm, inner_holds)) = guarded_arm(program, *inner) else { return false };
    if !between.iter().all(|&inst| is_speculatable(program, inst)) {
        return false;
    }
    let mut needed = vec![program.inst(*inner).operands[0]];
    let (mut before, mut inside) = (Vec::new(), Vec::new());
    for &inst in between.iter().rev() {
        if program.inst(inst).results.iter().any(|result| needed.contains(result)) {
            needed.extend_from_slice(&program.inst(inst).operands);
            before.push(inst);
        } else {
            inside.push(inst);
        }
    }
    // Loads stay guarded, so that they need no bounds check of their own.
    let is_cheap = |&inst: &InstId| {
        let inst = program.inst(inst);
        match inst.op.kind() {
            Kind::Access => inst.op.memory().is_some_and(|memory| program.memory(memory).space == Space::Uniform),
            Kind::PerInvocation | Kind::PerGroup => true,
            _ => cost::is_cheap(program, inst),
        }
    };
    if before.len() > MAX_SELECTED || !before.iter().all(is_cheap) {
        return false;
    }
    cursor.insert_all(before.into_iter().rev());
    inside.reverse();
    let span = program.inst(id).span;
    let conditions =
        [(program.inst(id).operands[0], outer_holds), (needed[0], inner_holds)].map(|(condition, holds)| {
            if holds {
                return condition;
            }
            let (not, negated) = program.make_value(Pure::Not, &[condition], Type::Bool, span);
            cursor.insert(not);
            negated
        });
    let (both, condition) = program.make_value(Pure::And, &conditions, Type::Bool, span);
    cursor.insert(both);
    inside.append(&mut program.block_mut(arm).insts);
    program.block_mut(outer).insts = inside;
    program.inst_mut(id).operands[0] = condition;
    if !outer_holds {
        program.inst_mut(id).blocks.swap(0, 1);
    }
    true
}

/// The only non-empty arm of a branch, and the value of the condition for which it executes.
fn guarded_arm(program: &Program, id: InstId) -> Option<(BlockId, bool)> {
    let inst = program.inst(id);
    if inst.op != Control::If || !inst.results.is_empty() || !program.falls_through(id) {
        return None;
    }
    match [0, 1].map(|arm| program.block(inst.blocks[arm]).insts.len() == 1) {
        [false, true] => Some((inst.blocks[0], true)),
        [true, false] => Some((inst.blocks[1], false)),
        [true, true] | [false, false] => None,
    }
}

/// Returns true if an instruction can be speculated: it has no effects and does not depend on its position.
fn is_speculatable(program: &Program, id: InstId) -> bool {
    let inst = program.inst(id);
    match inst.op.kind() {
        Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
        Kind::Access => inst.op.memory().is_some_and(|memory| !program.memory(memory).writable()),
        Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
    }
}

/// Returns true if instructions appended to these are unreachable.
fn ends_in_terminator(program: &Program, insts: &[InstId]) -> bool {
    insts.last().is_some_and(|&last| program.inst(last).op.is_terminator())
}

/// Returns true if two blocks are equal.
fn equal(program: &Program, a: BlockId, b: BlockId) -> bool {
    compare(program, a, program, b).is_some_and(|found| found.literals.is_empty() && found.regions.is_empty())
}
