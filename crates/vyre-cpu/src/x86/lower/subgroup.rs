//! Operations between invocations: a pack is a subgroup, and what its lanes exchange goes through permutes.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::ops::{Combined, Combiner, Exchange, PerInvocation, Pure, Subgroup};
use vyre_foundation::ir::{Def, InstId, Type, ValueId};

use super::{Lower, services};
use crate::x86::machine::emit::{self, Regs};
use crate::x86::machine::{Operand, Reg, Width};
use crate::x86::plan::Plan;
use crate::x86::plan::shape::Axes;
use crate::x86::service::Site;

/// What lanes that take no part count as. A bool is all bits of a lane, or none.
fn identity(op: Combiner, ty: Type) -> u64 {
    match (op, ty) {
        (Combiner::And, Type::Bool) => u64::from(u32::MAX),
        _ => op.identity(ty),
    }
}

impl Lower<'_> {
    /// The value of invocation 0 of a workgroup that is all in this tile.
    pub(super) fn broadcast_in_tile(&mut self, id: InstId) {
        let inst = self.plan.program.inst(id);
        let (from, to) = (inst.operands[0], inst.results[0]);
        let regs = self.first_of_tile(from, to);
        let regs = match self.state.mask.clone() {
            None => regs,
            Some(mask) => {
                let bits = self.emit.mask_bits(mask.packs[0]);
                let bits = self.emit.s1_in_place(Code::Not_rm32, Width::Dword, bits);
                let ended = self.emit.s1i(Code::And_rm32_imm32, Width::Dword, bits, Operand::Dword(1));
                self.emit.zero_if(ended, &regs)
            }
        };
        self.define(to, &regs);
    }

    pub(super) fn subgroup(&mut self, id: InstId, op: Subgroup) {
        match op.exchange() {
            Exchange::Ballot => self.ballot(id),
            Exchange::Shuffle => {
                let from = self.plan.program.inst(id).operands[1];
                self.exchange(id, op, |this, ty, lanes, pack| this.shuffle(ty, lanes, from, pack));
            }
            Exchange::Combine(combiner, whose) => {
                self.exchange(id, op, |this, ty, lanes, pack| this.reduce_or_scan(combiner, whose, ty, lanes, pack));
            }
        }
    }

    /// Computes the result for each pack: in vectors of 32-bit lanes, where a bool is all bits of a lane or none, or by the
    /// runtime.
    fn exchange(&mut self, id: InstId, op: Subgroup, mut compute: impl FnMut(&mut Self, Type, Reg, usize) -> Reg) {
        let inst = self.plan.program.inst(id);
        let (from, to) = (inst.operands[0], inst.results[0]);
        let (axes, ty) = (self.plan.shape.axes[to], self.plan.program.ty(to));
        let tile = self.plan.shape.tile;
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            if ty.bits() == 64 || ty == Type::F16 {
                let computed = self.exchange_by_runtime(id, op, pack);
                self.emit.extend_by_lanes(&mut regs, axes, ty, &computed);
                continue;
            }
            let lanes = if ty == Type::Bool {
                let mask = self.mask(from, pack);
                self.emit.mask_to_vector(mask)
            } else {
                self.vector(from, pack, 0)
            };
            let lanes = compute(self, ty, lanes, pack);
            let lanes = if ty == Type::Bool { self.emit.mask_from_vector(lanes) } else { lanes };
            self.emit.extend_by_lanes(&mut regs, axes, ty, &[lanes]);
        }
        self.define(to, &regs);
    }

    fn ballot(&mut self, id: InstId) {
        let inst = self.plan.program.inst(id);
        let (axes, tile) = (self.plan.shape.axes[inst.results[0]], self.plan.shape.tile);
        let mut words = Regs::new();
        for pack in tile.packs_of(axes) {
            let mut mask = self.mask(inst.operands[0], pack);
            if let Some(present) = self.present(pack) {
                mask = self.emit.mask_and(mask, present);
            }
            let bits = self.emit.mask_bits(mask);
            words.push(if axes.meets(Axes::LANE) { self.emit.broadcast(bits, false) } else { bits });
        }
        self.define(inst.results[0], &words);
        // Subgroups are not larger than a word.
        for &rest in &inst.results[1..] {
            let zero = if axes.meets(Axes::LANE) { self.emit.zero() } else { self.emit.immediate(0) };
            self.define(rest, &SmallVec::<[Reg; 4]>::from_elem(zero, words.len()));
        }
    }

    fn shuffle(&mut self, ty: Type, lanes: Reg, from: ValueId, pack: usize) -> Reg {
        // Of those that have ended, others get 0.
        let lanes = self.present_or_identity(Combiner::Or, ty, lanes, pack);
        if let Some(distance) = lanes_below(self.plan, from) {
            return self.emit.shift_up(lanes, distance, 0);
        }
        let high = self.plan.ranges.of_value(from).high;
        let from = self.vector(from, pack, 0);
        if high < i64::from(self.plan.shape.tile.lanes) {
            return self.emit.permute(from, lanes);
        }
        let count = self.emit.splat(u64::from(self.plan.shape.tile.lanes), false);
        let exists = self.emit.less(from, count);
        let theirs = self.emit.permute(from, lanes);
        let exists = self.emit.mask_to_vector(exists);
        self.emit.v2(emit::AND, theirs, exists)
    }

    fn reduce_or_scan(&mut self, op: Combiner, whose: Combined, ty: Type, lanes: Reg, pack: usize) -> Reg {
        let mut sums = self.present_or_identity(op, ty, lanes, pack);
        if whose == Combined::All {
            return self.emit.reduce_lanes(op, ty, sums);
        }
        let nothing = identity(op, ty);
        let mut distance = 1;
        while distance < self.plan.shape.tile.lanes {
            let before = self.emit.shift_up(sums, distance, nothing);
            sums = self.emit.combine(op, ty, before, sums);
            distance *= 2;
        }
        let first = if op == Combiner::Add { 0 } else { nothing };
        if whose == Combined::Exclusive { self.emit.shift_up(sums, 1, first) } else { sums }
    }

    /// The active lanes of a value of 32 bits combined, of all packs that share a pack's copy of another value.
    pub(super) fn combined(&mut self, op: Combiner, value: ValueId, axes: Axes, first: usize) -> Reg {
        let (ty, tile) = (self.plan.program.ty(value), self.plan.shape.tile);
        let mut all = None;
        for pack in (0..tile.packs() as usize).filter(|&pack| tile.copy(axes, pack) == tile.copy(axes, first)) {
            let lanes = self.vector(value, pack, 0);
            let lanes = self.or_identity(op, ty, lanes, pack);
            all = Some(all.map_or(lanes, |all| self.emit.combine(op, ty, all, lanes)));
        }
        self.emit.reduce_lanes(op, ty, all.expect("every copy has a pack"))
    }

    /// The lanes of a pack that take part in a subgroup operation; all if there is no mask.
    fn present(&self, pack: usize) -> Option<Reg> {
        if self.plan.shape.whole_subgroups { None } else { self.state.of_pack(pack) }
    }

    /// Lanes that take no part in a subgroup operation replaced by what changes nothing.
    fn present_or_identity(&mut self, op: Combiner, ty: Type, lanes: Reg, pack: usize) -> Reg {
        match self.present(pack) {
            Some(_) => self.or_identity(op, ty, lanes, pack),
            None => lanes,
        }
    }

    /// Lanes that are not active replaced by what changes nothing.
    fn or_identity(&mut self, op: Combiner, ty: Type, lanes: Reg, pack: usize) -> Reg {
        if self.state.mask.is_none() {
            return lanes;
        }
        let (active, identity) = (self.state.active(&mut self.emit, pack), self.emit.splat(identity(op, ty), false));
        self.emit.blend(active, lanes, identity)
    }

    /// Has the runtime exchange the lanes of a pack.
    fn exchange_by_runtime(&mut self, id: InstId, op: Subgroup, pack: usize) -> SmallVec<[Reg; 2]> {
        let inst = self.plan.program.inst(id);
        let ty = self.plan.program.ty(inst.operands[0]);
        let present = self.present(pack);
        self.services.pass_mask(&mut self.emit, present);
        for (number, &operand) in inst.operands.iter().enumerate() {
            self.pass(operand, pack, number);
        }
        self.services.call(&mut self.emit, Site::Subgroup { op, ty });
        services::receive(&mut self.emit, ty, 2)
    }
}

/// By how much a value is below the number of each lane, if it is a power of two: the processor moves vectors by that.
fn lanes_below(plan: &Plan<'_>, value: ValueId) -> Option<u32> {
    let program = plan.program;
    let made = |value: ValueId| match program.def(value) {
        Def::Result(id, 0) => Some(program.inst(id)),
        _ => None,
    };
    let inst = made(value).filter(|inst| inst.op == Pure::Add)?;
    let &[a, b] = inst.operands.as_slice() else { return None };
    let (lane, added) = if program.known(a).is_some() { (b, a) } else { (a, b) };
    let distance = (program.known(added)?.bits as u32).wrapping_neg();
    let is_lane = made(lane).is_some_and(|inst| inst.op == PerInvocation::SubgroupLane);
    (is_lane && distance.is_power_of_two() && distance < plan.shape.tile.lanes).then_some(distance)
}
