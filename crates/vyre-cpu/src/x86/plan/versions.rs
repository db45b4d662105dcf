//! Versioning: which branches and loops get a fast version for tiles whose lanes agree, and when a masked block is skipped.
//!
//! The fast version runs without masks. Lowering emits it while the budget of duplicated instructions lasts; the masked
//! version is the slow path, in cold blocks.

use vyre_foundation::analysis::const_trip_count;
use vyre_foundation::ir::ops::{Control, Kind, Op, Terminator};
use vyre_foundation::ir::{BlockId, Def, Inst, InstId, Space, ValueId};

use super::Plan;

/// Largest constant trip count for which a loop without nested loops does not poll.
const SHORT_LOOP: u64 = 256;

/// Size of a block, including nested blocks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) insts: usize,
    /// Contains more than arithmetic: memory accesses, collectives, effects or loops.
    pub(crate) works: bool,
}

/// A divergent loop that runs without masks until the first lane leaves it.
pub(crate) struct ConvergedLoop {
    /// Position in the body of the exit `if`. Instructions before it may be executed twice.
    pub(crate) test: usize,
    /// Value of the condition for which lanes leave.
    pub(crate) leaves_when: bool,
    /// The arm of the lanes that stay.
    pub(crate) stays: BlockId,
}

impl Plan<'_> {
    /// Budget of duplicated instructions, lower for large programs.
    pub(crate) fn version_budget(&self) -> usize {
        if self.program.insts().len() > 500 { 50 } else { 400 }
    }

    pub(crate) fn weight(&self, block: BlockId) -> Weight {
        let mut total = Weight::default();
        for &id in &self.program.block(block).insts {
            let inst = self.program.inst(id);
            total.insts += 1;
            total.works |= match inst.op.kind() {
                Kind::Access | Kind::Atomic | Kind::Effect | Kind::Collective => true,
                Kind::Control => inst.op == Control::Loop,
                Kind::Pure | Kind::PerInvocation | Kind::PerGroup => false,
            };
            for &nested in &inst.blocks {
                let nested = self.weight(nested);
                total.insts += nested.insts;
                total.works |= nested.works;
            }
        }
        total
    }

    /// Returns whether a masked block is skipped by a jump if no lane is active.
    pub(crate) fn is_worth_skipping(&self, block: BlockId) -> bool {
        let Weight { insts, works } = self.weight(block);
        works || insts > 8
    }

    /// Returns whether an `if` gets a fast path for conditions that hold in all lanes.
    pub(crate) fn is_worth_versioning(&self, id: InstId, budget: usize) -> bool {
        let inst = self.program.inst(id);
        let (then, other) = (inst.blocks[0], inst.blocks[1]);
        let Weight { insts, works } = self.weight(then);
        let fits = insts <= budget && self.yields(then) && self.weight(other).insts <= 4 && self.yields(other);
        works && fits && self.depends_on_ids_only(inst.operands[0], 8)
    }

    /// Returns whether a value depends only on ids and uniform values, so that a condition agrees in nearly all tiles.
    /// Data-dependent conditions do not.
    fn depends_on_ids_only(&self, value: ValueId, depth: u32) -> bool {
        if self.shape.linear[value] || self.shape.axes[value].is_uniform() {
            return true;
        }
        let Def::Result(id, 0) = self.program.def(value) else { return false };
        let Inst { op, operands, .. } = self.program.inst(id);
        match op.kind() {
            Kind::PerInvocation => true,
            Kind::Pure => depth > 0 && operands.iter().all(|&part| self.depends_on_ids_only(part, depth - 1)),
            Kind::PerGroup | Kind::Access | Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
        }
    }

    /// Exit of a divergent loop that can run without masks until the first lane takes it.
    pub(crate) fn converged_loop(&self, id: InstId, budget: usize) -> Option<ConvergedLoop> {
        let program = self.program;
        let body = program.inst(id).blocks[0];
        let insts = &program.block(body).insts;
        // The first divergent condition must be the only exit, and the trip restarts there: nothing before it may have
        // an effect.
        let position = insts.iter().position(|&inner| {
            let inner = program.inst(inner);
            inner.op == Control::If && !self.shape.axes[inner.operands[0]].is_uniform()
        })?;
        let harmless = insts[..position].iter().all(|&inner| {
            let inner = program.inst(inner);
            match inner.op.kind() {
                Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
                Kind::Access => match inner.op {
                    Op::Load(at) => program.memory(at.memory).space != Space::Private,
                    _ => false,
                },
                Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
            }
        });
        let test = program.inst(insts[position]);
        let leaves = |block: BlockId| {
            let insts = &program.block(block).insts;
            program.inst(*insts.last().expect("a block ends")).op == Terminator::Break
        };
        let (leaves_when, stays) = match (leaves(test.blocks[0]), leaves(test.blocks[1])) {
            (true, false) => (true, test.blocks[1]),
            (false, true) => (false, test.blocks[0]),
            _ => return None,
        };
        let converges = insts[position + 1..].iter().all(|&inner| !self.exits_divergently(inner));
        let fits = harmless && converges && !self.may_leave_inside(stays) && self.weight(body).insts <= budget;
        fits.then_some(ConvergedLoop { test: position, leaves_when, stays })
    }

    /// Returns whether lanes may leave or end in a block, other than at its end.
    pub(crate) fn may_leave_inside(&self, block: BlockId) -> bool {
        let insts = &self.program.block(block).insts;
        insts[..insts.len() - 1].iter().any(|&id| {
            self.program.inst(id).blocks.iter().any(|&nested| !self.yields(nested) || self.may_leave_inside(nested))
        })
    }

    /// Returns whether an instruction lets lanes leave or continue the innermost loop, or end, at different times.
    fn exits_divergently(&self, id: InstId) -> bool {
        let inst = self.program.inst(id);
        let divergent = inst.op != Control::Loop
            && inst.operands.first().is_some_and(|&condition| !self.shape.axes[condition].is_uniform());
        inst.blocks.iter().any(|&block| {
            (divergent && self.has_exit(block))
                || self
                    .program
                    .block(block)
                    .insts
                    .iter()
                    .any(|&nested| inst.op != Control::Loop && self.exits_divergently(nested))
        })
    }

    /// Returns whether lanes leave or continue the innermost loop, or end, in a block.
    fn has_exit(&self, block: BlockId) -> bool {
        self.program.block(block).insts.iter().any(|&id| self.program.jumps_out(id)) || self.has_ends(block)
    }

    /// Returns whether a loop polls for fuel, cancellation and deadline.
    pub(crate) fn polls(&self, id: InstId) -> bool {
        self.has_loop(self.program.inst(id).blocks[0])
            || const_trip_count(self.program, id).is_none_or(|count| count.trips > SHORT_LOOP)
    }
}
