//! Computes once, where the whole workgroup comes by, what several branches compute of it.
//!
//! An operation on uniform operands, in a branch that only some invocations take, is moved before the branch if another
//! branch has the same operation: all invocations get the same from it, whichever way they go. Value numbering then merges
//! the two. Operations are total, so computing one in vain does no harm, and only cheap ones move. An operation without a twin
//! stays where it is, because there it is computed only if it is needed.

use rustc_hash::FxHashMap;

use crate::analysis::{Analyses, Scope, Uniformity};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::Kind;
use crate::ir::{BlockId, Cursor, InstId, Op, Program, ValueId, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase, cost};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("hoist_uniform_values", Phase::FusionCse, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let uniformity = analyses.uniformity(program);
    let mut hoist = Hoist {
        uniformity: &uniformity,
        depth: SecondaryMap::with_capacity(program.values().len(), 0),
        around: Vec::new(),
        twins: FxHashMap::default(),
        changed: false,
    };
    for id in program.reachable_insts() {
        if is_candidate(program, &uniformity, id) {
            *hoist.twins.entry(key(program, id)).or_default() += 1;
        }
    }
    let body = program.body();
    hoist.block(program, body, &mut Vec::new());
    hoist.changed
}

struct Hoist<'u> {
    uniformity: &'u Uniformity,
    /// How many blocks are around the place where a value is computed.
    depth: SecondaryMap<ValueId, usize>,
    /// For each block around the walk, whether all invocations come by.
    around: Vec<bool>,
    /// How often an operation is applied to the same operands.
    twins: FxHashMap<(Op, Values), u32>,
    changed: bool,
}

/// Whether an instruction gives the same to all invocations, cheaply and without effects.
fn is_candidate(program: &Program, uniformity: &Uniformity, id: InstId) -> bool {
    let inst = program.inst(id);
    let is_value = match inst.op.kind() {
        Kind::Pure => cost::is_cheap(program, inst),
        Kind::PerGroup => true,
        Kind::PerInvocation | Kind::Access | Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
    };
    is_value && inst.results.iter().all(|&result| uniformity.is_uniform(result, Scope::Workgroup))
}

fn key(program: &Program, id: InstId) -> (Op, Values) {
    (program.inst(id).op.clone(), program.inst(id).operands.clone())
}

impl Hoist<'_> {
    /// Walks a block; `pending` has, for each block around it, what is to be computed there before the instruction in which
    /// the walk is.
    fn block(&mut self, program: &mut Program, block: BlockId, pending: &mut Vec<Vec<InstId>>) {
        let depth = pending.len();
        self.around.push(self.uniformity.is_together(block, Scope::Workgroup));
        for &param in &program.block(block).params {
            self.depth[param] = depth;
        }
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            let to = self.target(program, id, depth);
            for &result in &program.inst(id).results {
                self.depth[result] = to;
            }
            if to < depth {
                pending[to].push(id);
                self.changed = true;
                continue;
            }
            pending.push(Vec::new());
            for nested in program.inst(id).blocks.clone() {
                self.block(program, nested, pending);
            }
            cursor.insert_all(pending.pop().expect("pushed above"));
            cursor.insert(id);
        }
        cursor.finish(program);
        self.around.pop();
    }

    /// The depth of the block to which an instruction moves.
    fn target(&self, program: &Program, id: InstId, depth: usize) -> usize {
        let has_twin = || self.twins.get(&key(program, id)).is_some_and(|&count| count > 1);
        if self.around[depth] || !is_candidate(program, self.uniformity, id) || !has_twin() {
            return depth;
        }
        let needed = program.inst(id).operands.iter().map(|&operand| self.depth[operand]).max().unwrap_or(0);
        // The innermost block that all invocations come by, if what it needs is there.
        (needed..depth).rev().find(|&at| self.around[at]).unwrap_or(depth)
    }
}
