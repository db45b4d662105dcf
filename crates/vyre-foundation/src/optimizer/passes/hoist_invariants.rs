//! Loop-invariant code motion: hoists operations and loads out of loops.
//!
//! An operation without effects is invariant if its operands are defined outside the loop. It moves out of as many
//! loops as its operands allow. Operations are total, so it may execute even if no iteration would have executed it.
//!
//! A load moves if nothing in the loop writes its object, no barrier in the loop makes writes of other invocations
//! visible, and every iteration executes it. An out-of-bounds load returns 0 at either position.

use rustc_hash::FxHashMap;

use crate::analysis::{Analyses, Effects, breaks_when};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::Kind;
use crate::ir::{BlockId, Control, Cursor, InstId, Op, Program, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("hoist_invariants", Phase::Loop, Family::Loop), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut hoist = Hoist {
        effects: &effects,
        level: SecondaryMap::with_capacity(program.values().len(), 0),
        loops: Vec::new(),
        hoisted: FxHashMap::default(),
    };
    hoist.block(program, program.body(), 0);
    if hoist.hoisted.is_empty() {
        return false;
    }
    insert_hoisted(program, program.body(), &mut hoist.hoisted);
    true
}

struct Hoist<'e> {
    effects: &'e Effects,
    /// Loop depth of the definition of each value.
    level: SecondaryMap<ValueId, usize>,
    /// Loops that enclose the current position.
    loops: Vec<InstId>,
    /// Instructions to insert before each loop, in order.
    hoisted: FxHashMap<InstId, Vec<InstId>>,
}

impl Hoist<'_> {
    /// Walks a block that every iteration executes, of the innermost loops from depth `guaranteed_from` on.
    fn block(&mut self, program: &mut Program, block: BlockId, guaranteed_from: usize) {
        let depth = self.loops.len();
        for &param in &program.block(block).params {
            self.level[param] = depth;
        }
        let mut guaranteed = guaranteed_from;
        program.retain_insts(block, |program, id| {
            let inst = program.inst(id);
            let needed = inst.operands.iter().map(|&operand| self.level[operand]).max().unwrap_or(0);
            let to = self.target_depth(program, id, needed, guaranteed);
            for &result in &inst.results {
                self.level[result] = to;
            }
            if to < depth {
                self.hoisted.entry(self.loops[to]).or_default().push(id);
                return false;
            }
            let is_loop = inst.op == Control::Loop;
            for nested in inst.blocks.clone() {
                if is_loop {
                    self.loops.push(id);
                    self.block(program, nested, depth);
                    self.loops.pop();
                } else {
                    self.block(program, nested, usize::MAX);
                }
            }
            // Code after a conditional exit is not executed in every iteration. The loop test itself does not count:
            // all iterations but the last pass it.
            let summary = self.effects.inst(id);
            if summary.ends {
                guaranteed = usize::MAX;
            } else if summary.jumps && !is_loop && breaks_when(program, id).is_none() {
                guaranteed = depth;
            }
            true
        });
    }

    /// The lowest loop depth, at least `needed`, to which an instruction may move.
    fn target_depth(&self, program: &Program, id: InstId, needed: usize, guaranteed: usize) -> usize {
        let depth = self.loops.len();
        let op = &program.inst(id).op;
        match op.kind() {
            Kind::Pure | Kind::PerInvocation | Kind::PerGroup => needed,
            Kind::Access => match op {
                Op::Load(load) => {
                    let mut to = depth;
                    let stays = |around| self.effects.preserves_load(program, &self.effects.inst(around), *load);
                    while to > needed && to > guaranteed && stays(self.loops[to - 1]) {
                        to -= 1;
                    }
                    to
                }
                _ => depth,
            },
            Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => depth,
        }
    }
}

/// Inserts hoisted instructions before their loops.
fn insert_hoisted(program: &mut Program, block: BlockId, hoisted: &mut FxHashMap<InstId, Vec<InstId>>) {
    let mut cursor = Cursor::at_start(program, block);
    while let Some(id) = cursor.next() {
        cursor.insert_all(hoisted.remove(&id).unwrap_or_default());
        cursor.insert(id);
        for nested in program.inst(id).blocks.clone() {
            insert_hoisted(program, nested, hoisted);
        }
    }
    cursor.finish(program);
}
