//! Removes instructions of which nothing comes: no result that is used, and no effect.
//!
//! A load has no effect, so it goes when its result is unused. A loop goes only if it is known to end, because one that never ends
//! must go on to run out of fuel. Results that nobody uses are dropped from branches and loops, together with what was
//! computed for them only: a value that a loop carries just to compute its next self is dead.
//!
//! Sound, because what is removed is exactly what no effect, condition or bound depends on.

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
    marks.keep_block(program.body());
    marks.propagate();
    let Marks { live, kept, .. } = marks;
    sweep(program, program.body(), &live, &kept, None)
}

/// Finds what is needed, from the effects backwards.
struct Marks<'p> {
    program: &'p Program,
    effects: &'p Effects,
    live: SecondaryMap<ValueId, bool>,
    kept: SecondaryMap<InstId, bool>,
    /// The instruction that a block is nested in.
    target: SecondaryMap<BlockId, Option<InstId>>,
    /// The terminators that give the results of an instruction; for a loop, also those that give its parameters.
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

    /// Keeps the instructions of a block that do something, and its terminator.
    fn keep_block(&mut self, block: BlockId) {
        for &id in &self.program.block(block).insts {
            if self.program.inst(id).op.is_terminator() || self.does_something(id) {
                self.keep(id);
            }
        }
    }

    fn does_something(&self, id: InstId) -> bool {
        let summary = self.effects.inst(id);
        let may_not_end = summary.loops && self.has_uncounted_loop(id);
        !summary.only_computes() || may_not_end
    }

    fn has_uncounted_loop(&self, id: InstId) -> bool {
        let inst = self.program.inst(id);
        let here = inst.op == Control::Loop && const_trip_count(self.program, id).is_none();
        let blocks = inst.blocks.iter().flat_map(|&block| &self.program.block(block).insts);
        here || blocks.into_iter().any(|&nested| self.effects.inst(nested).loops && self.has_uncounted_loop(nested))
    }

    /// An instruction stays. What it needs unconditionally is needed.
    fn keep(&mut self, id: InstId) {
        if std::mem::replace(&mut self.kept[id], true) {
            return;
        }
        let inst = self.program.inst(id);
        match inst.op {
            // What they give is needed where it is used.
            Op::Terminator(Terminator::Yield | Terminator::Break | Terminator::Continue) => {}
            // What it starts with is needed for the parameters that are used.
            Op::Control(Control::Loop) => {}
            _ => inst.operands.iter().for_each(|&operand| self.need(operand)),
        }
        for &block in &inst.blocks {
            self.keep_block(block);
        }
    }

    fn need(&mut self, value: ValueId) {
        if !std::mem::replace(&mut self.live[value], true) {
            self.pending.push(value);
        }
    }

    fn propagate(&mut self) {
        while let Some(value) = self.pending.pop() {
            match self.program.def(value) {
                Def::Literal(_) | Def::Constant(_) => {}
                Def::Result(id, position) => {
                    self.keep(id);
                    self.need_given(id, position, |op| {
                        matches!(op, Op::Terminator(Terminator::Yield | Terminator::Break))
                    });
                }
                Def::Param(block, position) => {
                    let Some(owner) = self.target[block] else { continue };
                    self.need(self.program.inst(owner).operands[position as usize]);
                    self.need_given(owner, position, |op| *op == Terminator::Continue);
                }
            }
        }
    }

    /// What the exits of an instruction give at a position is needed.
    fn need_given(&mut self, id: InstId, position: u32, gives: impl Fn(&Op) -> bool) {
        for at in 0..self.exits[id].len() {
            let exit = self.program.inst(self.exits[id][at]);
            if gives(&exit.op) {
                self.need(exit.operands[position as usize]);
            }
        }
    }
}

/// What a loop or branch keeps of its results and parameters; one bool for each.
struct Kept {
    results: Vec<bool>,
    params: Vec<bool>,
}

/// Removes what is not kept, and says whether that was anything.
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
        // What the terminators give to what they end, or to the loop they are about.
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
