//! Simplifies branches, switches and loops whose course is known.
//!
//! * A branch whose condition is known is replaced by the arm that is taken; if that leaves the block, what follows is never
//!   reached and goes, too.
//! * Two branches on one condition become one, if what stands between them can stand before both.
//! * A branch that only guards another one is a branch on both conditions.
//! * A branch on a negation is the branch with its arms swapped.
//! * A branch whose arms do the same is replaced by one of them, and one whose arms only compute a little by the computation
//!   of both and a `select` for each result. Operations are total, so computing both is safe.
//! * Cases of a switch that do what the default does are dropped; a switch with one case is a branch, and one without
//!   cases is its default.
//! * A loop whose body ends in its only exit is executed once, so it is replaced by its body.

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

/// Instructions of both arms together that are worth computing to get rid of a branch.
const FEW: usize = 6;

/// Instructions between two branches that are looked at, so that the search stays linear.
const BETWEEN: usize = 32;

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
            // What was put in place of a branch may leave the block; then nothing after it is reached.
            if leaves(program, cursor.before()) {
                cursor.truncate();
            }
        }
        cursor.finish(program);
    }

    fn inst(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) {
        self.renaming.apply_to(program.inst_mut(id));
        // Before the branches in its arms are looked at: they may have their like in the arms of the other.
        if program.inst(id).op == Control::If && self.follows_its_like(program, id, cursor.before()) {
            self.changed = true;
            return;
        }
        for nested in program.inst(id).blocks.clone() {
            self.block(program, nested);
        }
        let done = match program.inst(id).op {
            Op::Control(Control::If) => self.branch(program, id, cursor),
            Op::Control(Control::Switch(_)) => self.switch(program, id, cursor),
            Op::Control(Control::Loop) => self.once(program, id, cursor),
            _ => false,
        };
        self.changed |= done;
        if !done {
            cursor.insert(id);
        }
    }

    /// Puts the contents of a block in place of the instruction that owns it.
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
        if same(program, then, otherwise) {
            self.splice(program, id, then, cursor);
            return true;
        }
        self.changed |= guard_both(program, id, cursor);
        self.select(program, id, cursor)
    }

    /// Replaces a branch that only computes a little.
    fn select(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let (then, otherwise) = (program.inst(id).blocks[0], program.inst(id).blocks[1]);
        let arms = [then, otherwise];
        let is_cheap = |inst: &InstId| cost::is_cheap(program, program.inst(*inst));
        let few = arms.iter().map(|&arm| program.block(arm).insts.len()).sum::<usize>() <= FEW + 2;
        let only_computes = |&arm: &BlockId| match program.block(arm).insts.split_last() {
            Some((last, rest)) => program.inst(*last).op == Terminator::Yield && rest.iter().all(is_cheap),
            None => false,
        };
        if program.inst(id).results.is_empty() || !few || !arms.iter().all(only_computes) {
            return false;
        }
        let mut given = Vec::new();
        for arm in arms {
            let (insts, last) = program.take_body(arm);
            cursor.insert_all(insts);
            given.push(program.inst(last).operands.clone());
        }
        let (condition, span) = (program.inst(id).operands[0], program.inst(id).span);
        for (position, result) in program.inst(id).results.clone().into_iter().enumerate() {
            let (a, b) = (given[0][position], given[1][position]);
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
        let differs = |position: &usize| !same(program, blocks[*position], default);
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

    /// Replaces a loop that is executed once.
    fn once(&mut self, program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
        let body = program.inst(id).blocks[0];
        let Some((&last, rest)) = program.block(body).insts.split_last() else { return false };
        let goes_on =
            !matches!(program.inst(last).op, Op::Terminator(Terminator::Break | Terminator::Return | Terminator::Trap));
        if goes_on || rest.iter().any(|&inst| program.jumps_out(inst)) {
            return false;
        }
        self.renaming.replace_all(&program.block(body).params, &program.inst(id).operands);
        let (insts, _) = program.take_body(body);
        // The body was simplified before it was known what its parameters are.
        for inst in insts {
            self.inst(program, inst, cursor);
            if leaves(program, cursor.before()) {
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

    /// Joins a branch with one before it, if that is on the same condition, leads here, and what stands between them can stand
    /// before both: it takes nothing from the first, and always gives the same.
    fn follows_its_like(&self, program: &mut Program, id: InstId, before: &mut [InstId]) -> bool {
        let is_like = |other: &Inst| other.op == Control::If && other.operands == program.inst(id).operands;
        let moves = before.iter().rev().take(BETWEEN).take_while(|&&inst| can_move(program, inst)).count();
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

/// Makes a branch whose only purpose is to guard another one a branch on both conditions. What the second condition needs goes
/// before it, if that is little, and the rest into the inner arm.
fn guard_both(program: &mut Program, id: InstId, cursor: &mut Cursor) -> bool {
    let Some((outer, outer_holds)) = guarded(program, id) else { return false };
    let [between @ .., inner, _] = &program.block(outer).insts[..] else { return false };
    let Some((arm, inner_holds)) = guarded(program, *inner) else { return false };
    if !between.iter().all(|&inst| can_move(program, inst)) {
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
    // A load that is guarded needs no check.
    let costs_little = |&inst: &InstId| {
        let inst = program.inst(inst);
        match inst.op.kind() {
            Kind::Access => inst.op.memory().is_some_and(|memory| program.memory(memory).space == Space::Uniform),
            Kind::PerInvocation | Kind::PerGroup => true,
            _ => cost::is_cheap(program, inst),
        }
    };
    if before.len() > FEW || !before.iter().all(costs_little) {
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

/// The arm of a branch that only guards it, and for which value of the condition it is executed.
fn guarded(program: &Program, id: InstId) -> Option<(BlockId, bool)> {
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

/// Whether an instruction may be executed earlier, and for nothing: it has no effects, and gives the same wherever it stands.
fn can_move(program: &Program, id: InstId) -> bool {
    let inst = program.inst(id);
    match inst.op.kind() {
        Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
        Kind::Access => inst.op.memory().is_some_and(|memory| !program.memory(memory).writable()),
        Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
    }
}

/// Whether nothing that is added to these instructions would be reached.
fn leaves(program: &Program, insts: &[InstId]) -> bool {
    insts.last().is_some_and(|&last| program.inst(last).op.is_terminator())
}

/// Whether two blocks do the same.
fn same(program: &Program, a: BlockId, b: BlockId) -> bool {
    compare(program, a, program, b).is_some_and(|found| found.literals.is_empty() && found.regions.is_empty())
}
