//! Dead-code elimination: a mark phase backwards from effects, then a sweep.
//!
//! A load has no effect, so it is dead if its result is unused. A loop is dead only if its trip count is known, because
//! an infinite loop must run out of fuel. Unused results of branches and loops are dropped with the code that computes
//! them, including loop-carried values that are used only to compute their own next value.

use crate::analysis::{Analyses, Effects, const_trip_count};
use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Control, Def, InstId, Op, Program, Terminator, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("eliminate_dead_code", Phase::Cleanup, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut marks = Marks {
        program,
        effects: &effects,
        live: SecondaryMap::with_capacity(program.values().len(), false),
        kept: SecondaryMap::with_capacity(program.insts().len(), false),
        target: SecondaryMap::with_capacity(program.blocks().len(), None),
        exits: SecondaryMap::with_capacity(program.insts().len(), Vec::new()),
        pending: Vec::new(),
    };
    marks.prepare(program.body(), None, None);
    marks.mark_roots(program.body());
    marks.propagate();
    let Marks { live, kept, .. } = marks;
    sweep(program, program.body(), &live, &kept, None)
}

/// Mark phase: the values and instructions that effects depend on.
struct Marks<'p> {
    program: &'p Program,
    effects: &'p Effects,
    live: SecondaryMap<ValueId, bool>,
    kept: SecondaryMap<InstId, bool>,
    /// Owner of each block.
    target: SecondaryMap<BlockId, Option<InstId>>,
    /// Terminators that define the results of an instruction; for a loop, also those that define its parameters.
    exits: SecondaryMap<InstId, Vec<InstId>>,
    pending: Vec<ValueId>,
}

impl Marks<'_> {
    fn prepare(&mut self, block: BlockId, owner: Option<InstId>, enclosing_loop: Option<InstId>) {
        let program = self.program;
        self.target[block] = owner;
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            match inst.op {
                Op::Terminator(Terminator::Yield) => owner.into_iter().for_each(|owner| self.exits[owner].push(id)),
                Op::Terminator(Terminator::Break | Terminator::Continue) => {
                    enclosing_loop.into_iter().for_each(|owner| self.exits[owner].push(id));
                }
                _ => {}
            }
            let enclosing_loop = if inst.op == Control::Loop { Some(id) } else { enclosing_loop };
            for &nested in &inst.blocks {
                self.prepare(nested, Some(id), enclosing_loop);
            }
        }
    }

    /// Marks the roots of a block (instructions with an effect) and its terminator.
    fn mark_roots(&mut self, block: BlockId) {
        for &id in &self.program.block(block).insts {
            if self.program.inst(id).op.is_terminator() || self.is_root(id) {
                self.mark(id);
            }
        }
    }

    fn is_root(&self, id: InstId) -> bool {
        let summary = self.effects.inst(id);
        let may_not_end = summary.loops && self.has_uncounted_loop(id);
        !summary.is_side_effect_free() || may_not_end
    }

    fn has_uncounted_loop(&self, id: InstId) -> bool {
        let inst = self.program.inst(id);
        let here = inst.op == Control::Loop && const_trip_count(self.program, id).is_none();
        let blocks = inst.blocks.iter().flat_map(|&block| &self.program.block(block).insts);
        here || blocks.into_iter().any(|&nested| self.effects.inst(nested).loops && self.has_uncounted_loop(nested))
    }

    /// Marks an instruction, and the operands it needs unconditionally.
    fn mark(&mut self, id: InstId) {
        if std::mem::replace(&mut self.kept[id], true) {
            return;
        }
        let inst = self.program.inst(id);
        match inst.op {
            // Their operands are live only if the matching result or parameter is.
            Op::Terminator(Terminator::Yield | Terminator::Break | Terminator::Continue) => {}
            // Initial values are live only if the parameter is.
            Op::Control(Control::Loop) => {}
            _ => inst.operands.iter().for_each(|&operand| self.mark_live(operand)),
        }
        for &block in &inst.blocks {
            self.mark_roots(block);
        }
    }

    fn mark_live(&mut self, value: ValueId) {
        if !std::mem::replace(&mut self.live[value], true) {
            self.pending.push(value);
        }
    }

    fn propagate(&mut self) {
        while let Some(value) = self.pending.pop() {
            match self.program.def(value) {
                Def::Literal(_) | Def::Constant(_) => {}
                Def::Result(id, position) => {
                    self.mark(id);
                    self.mark_exit_operands(id, position, |op| {
                        matches!(op, Op::Terminator(Terminator::Yield | Terminator::Break))
                    });
                }
                Def::Param(block, position) => {
                    let Some(owner) = self.target[block] else { continue };
                    self.mark_live(self.program.inst(owner).operands[position as usize]);
                    self.mark_exit_operands(owner, position, |op| *op == Terminator::Continue);
                }
            }
        }
    }

    /// Marks operand `position` of each exit of an instruction.
    fn mark_exit_operands(&mut self, id: InstId, position: u32, defines: impl Fn(&Op) -> bool) {
        for at in 0..self.exits[id].len() {
            let exit = self.program.inst(self.exits[id][at]);
            if defines(&exit.op) {
                self.mark_live(exit.operands[position as usize]);
            }
        }
    }
}

/// Results and parameters that a loop or branch keeps, one bool for each.
struct Kept {
    results: Vec<bool>,
    params: Vec<bool>,
}

/// Removes everything that is not marked. Returns true if anything was removed.
fn sweep(
    program: &mut Program,
    block: BlockId,
    live: &SecondaryMap<ValueId, bool>,
    kept: &SecondaryMap<InstId, bool>,
    enclosing: Option<(&Kept, Option<&Kept>)>,
) -> bool {
    let count = program.block(block).insts.len();
    program.retain_insts(block, |_, id| kept[id]);
    let mut changed = program.block(block).insts.len() < count;
    for id in program.block(block).insts.clone() {
        // Operands of a terminator correspond to results of the owner, or to results or parameters of the loop.
        if let Some((owner, enclosing_loop)) = enclosing {
            let of_loop = enclosing_loop.unwrap_or(owner);
            match program.inst(id).op {
                Op::Terminator(Terminator::Yield) => changed |= program.retain_operands(id, &owner.results),
                Op::Terminator(Terminator::Break) => changed |= program.retain_operands(id, &of_loop.results),
                Op::Terminator(Terminator::Continue) => changed |= program.retain_operands(id, &of_loop.params),
                _ => {}
            }
        }
        let nested = program.inst(id).blocks.clone();
        if nested.is_empty() {
            continue;
        }
        let params = if program.inst(id).op == Control::Loop {
            program.block(nested[0]).params.clone()
        } else {
            Default::default()
        };
        let own = Kept {
            results: program.inst(id).results.iter().map(|&result| live[result]).collect(),
            params: params.iter().map(|&param| live[param]).collect(),
        };
        if program.inst(id).op == Control::Loop {
            changed |= program.retain_operands(id, &own.params);
            changed |= program.retain_params(nested[0], &own.params);
        }
        changed |= program.retain_results(id, &own.results);
        let is_loop = program.inst(id).op == Control::Loop;
        let enclosing_loop =
            if is_loop { Some(&own) } else { enclosing.and_then(|(_, enclosing_loop)| enclosing_loop) };
        for block in nested {
            changed |= sweep(program, block, live, kept, Some((&own, enclosing_loop)));
        }
    }
    changed
}
