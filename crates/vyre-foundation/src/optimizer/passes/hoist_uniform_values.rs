//! Hoists uniform expressions repeated across divergent branches.
//!
//! An operation on uniform operands in a divergent branch is moved to before the branch if another branch contains the
//! same operation: its value is the same for all invocations. Value numbering then merges the two. Operations are
//! total, so speculation is safe, and only cheap operations move. An operation that occurs once stays where it is, and
//! executes only if needed.

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
        converged: Vec::new(),
        occurrences: FxHashMap::default(),
        changed: false,
    };
    for id in program.reachable_insts() {
        if is_candidate(program, &uniformity, id) {
            *hoist.occurrences.entry(key(program, id)).or_default() += 1;
        }
    }
    let body = program.body();
    hoist.block(program, body, &mut Vec::new());
    hoist.changed
}

struct Hoist<'u> {
    uniformity: &'u Uniformity,
    /// Nesting depth of the definition of each value.
    depth: SecondaryMap<ValueId, usize>,
    /// Uniformity of the control flow in each block around the walk.
    converged: Vec<bool>,
    /// Number of occurrences of an operation with the same operands.
    occurrences: FxHashMap<(Op, Values), u32>,
    changed: bool,
}

/// Returns true if an instruction is uniform, cheap, and without effects.
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
    /// Walks a block. For each enclosing block, `pending` has the instructions to insert before the enclosing
    /// instruction there.
    fn block(&mut self, program: &mut Program, block: BlockId, pending: &mut Vec<Vec<InstId>>) {
        let depth = pending.len();
        self.converged.push(self.uniformity.is_converged(block, Scope::Workgroup));
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
        self.converged.pop();
    }

    /// Depth of the block to which an instruction moves.
    fn target(&self, program: &Program, id: InstId, depth: usize) -> usize {
        let is_repeated = || self.occurrences.get(&key(program, id)).is_some_and(|&count| count > 1);
        if self.converged[depth] || !is_candidate(program, self.uniformity, id) || !is_repeated() {
            return depth;
        }
        let needed = program.inst(id).operands.iter().map(|&operand| self.depth[operand]).max().unwrap_or(0);
        // The innermost block with uniform control flow, if the operands are defined there.
        (needed..depth).rev().find(|&at| self.converged[at]).unwrap_or(depth)
    }
}
