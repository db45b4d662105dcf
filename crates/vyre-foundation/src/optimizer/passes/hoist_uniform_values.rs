//! Computes what is the same for the whole workgroup where the whole workgroup comes by.
//!
//! An operation on uniform operands, in a branch that only some invocations take, is moved before the branch. There a
//! backend computes it once for all invocations, in a scalar register, and value numbering finds its twins in other
//! branches. Operations are total, so computing it in vain does no harm, and it moves only if it is cheap.

use crate::analysis::{Analyses, Uniformity};
use crate::ir::entity::Arena;
use crate::ir::ops::Kind;
use crate::ir::{BlockId, InstId, Program, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase, cost};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("hoist_uniform_values", Phase::FusionCse, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let uniformity = analyses.uniformity(program);
    let mut hoist = Hoist {
        uniformity: &uniformity,
        depth: Arena::filled(program.values.len(), 0),
        around: Vec::new(),
        changed: false,
    };
    let body = program.body;
    hoist.block(program, body, &mut Vec::new());
    hoist.changed
}

struct Hoist<'u> {
    uniformity: &'u Uniformity,
    /// How many blocks are around the place where a value is computed.
    depth: Arena<ValueId, usize>,
    /// For each block around the walk, whether all invocations come by.
    around: Vec<bool>,
    changed: bool,
}

impl Hoist<'_> {
    /// Walks a block; `pending` has, for each block around it, what is to be computed there before the instruction in which
    /// the walk is.
    fn block(&mut self, program: &mut Program, block: BlockId, pending: &mut Vec<Vec<InstId>>) {
        let depth = pending.len();
        self.around.push(self.uniformity.divergence(block).is_none());
        for &param in &program.blocks[block].params {
            self.depth[param] = depth;
        }
        let insts = std::mem::take(&mut program.blocks[block].insts);
        let mut kept = Vec::with_capacity(insts.len());
        for id in insts {
            let to = self.target(program, id, depth);
            for &result in &program.insts[id].results {
                self.depth[result] = to;
            }
            if to < depth {
                pending[to].push(id);
                self.changed = true;
                continue;
            }
            pending.push(Vec::new());
            for nested in program.insts[id].blocks.clone() {
                self.block(program, nested, pending);
            }
            kept.extend(pending.pop().expect("pushed above"));
            kept.push(id);
        }
        program.blocks[block].insts = kept;
        self.around.pop();
    }

    /// The depth of the block to which an instruction moves.
    fn target(&self, program: &Program, id: InstId, depth: usize) -> usize {
        let inst = &program.insts[id];
        let is_value = match inst.op.row().kind {
            Kind::Pure => cost::is_cheap(program, inst),
            Kind::PerGroup => true,
            Kind::PerInvocation | Kind::Access | Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => {
                false
            }
        };
        let uniform = inst.results.iter().all(|&result| self.uniformity.is_uniform(result));
        if !is_value || !uniform || self.around[depth] {
            return depth;
        }
        let needed = inst.operands.iter().map(|&operand| self.depth[operand]).max().unwrap_or(0);
        // The innermost block that all invocations come by, if what it needs is there.
        (needed..depth).rev().find(|&at| self.around[at]).unwrap_or(depth)
    }
}
