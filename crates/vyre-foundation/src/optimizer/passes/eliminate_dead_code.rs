//! Removes instructions of which nothing comes: no result that is used, and no effect.
//!
//! A load has no effect, so it goes when its result is unused. A loop goes only if it is known to end, because one that never ends
//! must go on to run out of fuel. Results that nobody uses are dropped from branches and loops, together with what was
//! computed for them only: a value that a loop carries just to compute its next self is dead.
//!
//! Sound, because what is removed is exactly what no effect, condition or bound depends on.

use crate::analysis::{Analyses, Effects, finite};
use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Def, InstId, Op, Program, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("eliminate_dead_code", Phase::Cleanup, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut marks = Marks {
        program,
        effects: &effects,
        live: SecondaryMap::with_capacity(program.values.len(), false),
        kept: SecondaryMap::with_capacity(program.insts.len(), false),
        target: SecondaryMap::with_capacity(program.blocks.len(), None),
        exits: SecondaryMap::with_capacity(program.insts.len(), Vec::new()),
        pending: Vec::new(),
    };
    marks.prepare(program.body, None, None);
    marks.keep_block(program.body);
    marks.propagate();
    let Marks { live, kept, .. } = marks;
    sweep(program, program.body, &live, &kept, None)
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
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            match inst.op {
                Op::Yield => owner.into_iter().for_each(|owner| self.exits[owner].push(id)),
                Op::Break | Op::Continue => enclosing_loop.into_iter().for_each(|owner| self.exits[owner].push(id)),
                _ => {}
            }
            let enclosing_loop = if inst.op == Op::Loop { Some(id) } else { enclosing_loop };
            for &nested in &inst.blocks {
                self.prepare(nested, Some(id), enclosing_loop);
            }
        }
    }

    /// Keeps the instructions of a block that do something, and its terminator.
    fn keep_block(&mut self, block: BlockId) {
        for &id in &self.program.blocks[block].insts {
            if self.program.insts[id].op.is_terminator() || self.does_something(id) {
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
        let inst = &self.program.insts[id];
        let here = inst.op == Op::Loop && finite(self.program, id).is_none();
        let blocks = inst.blocks.iter().flat_map(|&block| &self.program.blocks[block].insts);
        here || blocks.into_iter().any(|&nested| self.effects.inst(nested).loops && self.has_uncounted_loop(nested))
    }

    /// An instruction stays. What it needs unconditionally is needed.
    fn keep(&mut self, id: InstId) {
        if std::mem::replace(&mut self.kept[id], true) {
            return;
        }
        let inst = &self.program.insts[id];
        match inst.op {
            // What they give is needed where it is used.
            Op::Yield | Op::Break | Op::Continue => {}
            // What it starts with is needed for the parameters that are used.
            Op::Loop => {}
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
            match self.program.values[value].def {
                Def::Literal(_) | Def::Constant(_) => {}
                Def::Result(id, position) => {
                    self.keep(id);
                    self.need_given(id, position, |op| matches!(op, Op::Yield | Op::Break));
                }
                Def::Param(block, position) => {
                    let Some(owner) = self.target[block] else { continue };
                    self.need(self.program.insts[owner].operands[position as usize]);
                    self.need_given(owner, position, |op| *op == Op::Continue);
                }
            }
        }
    }

    /// What the exits of an instruction give at a position is needed.
    fn need_given(&mut self, id: InstId, position: u32, gives: impl Fn(&Op) -> bool) {
        for at in 0..self.exits[id].len() {
            let exit = &self.program.insts[self.exits[id][at]];
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
    let count = program.blocks[block].insts.len();
    program.retain_insts(block, |_, id| kept[id]);
    let mut changed = program.blocks[block].insts.len() < count;
    for id in program.blocks[block].insts.clone() {
        // What the terminators give to what they end, or to the loop they are about.
        if let Some((owner, enclosing_loop)) = enclosing {
            let of_loop = enclosing_loop.unwrap_or(owner);
            match program.insts[id].op {
                Op::Yield => changed |= thin(&mut program.insts[id].operands, &owner.results),
                Op::Break => changed |= thin(&mut program.insts[id].operands, &of_loop.results),
                Op::Continue => changed |= thin(&mut program.insts[id].operands, &of_loop.params),
                _ => {}
            }
        }
        let nested = program.insts[id].blocks.clone();
        if nested.is_empty() {
            continue;
        }
        let params = if program.insts[id].op == Op::Loop {
            program.blocks[nested[0]].params.clone()
        } else {
            Default::default()
        };
        let own = Kept {
            results: program.insts[id].results.iter().map(|&result| live[result]).collect(),
            params: params.iter().map(|&param| live[param]).collect(),
        };
        if program.insts[id].op == Op::Loop {
            changed |= thin(&mut program.insts[id].operands, &own.params);
            changed |= thin(&mut program.blocks[nested[0]].params, &own.params);
            renumber(program, nested[0]);
        }
        changed |= thin(&mut program.insts[id].results, &own.results);
        for (position, &result) in program.insts[id].results.clone().iter().enumerate() {
            program.values[result].def = Def::Result(id, position as u32);
        }
        let is_loop = program.insts[id].op == Op::Loop;
        let enclosing_loop =
            if is_loop { Some(&own) } else { enclosing.and_then(|(_, enclosing_loop)| enclosing_loop) };
        for block in nested {
            changed |= sweep(program, block, live, kept, Some((&own, enclosing_loop)));
        }
    }
    changed
}

fn renumber(program: &mut Program, block: BlockId) {
    for (position, &param) in program.blocks[block].params.clone().iter().enumerate() {
        program.values[param].def = Def::Param(block, position as u32);
    }
}

/// Keeps only some elements, and says whether that removed any.
fn thin(values: &mut crate::ir::Values, keep: &[bool]) -> bool {
    let count = values.len();
    let mut position = 0;
    values.retain(|_| {
        position += 1;
        keep[position - 1]
    });
    values.len() < count
}
