//! Subgroup operations and broadcasts: a pack is a subgroup, and lanes are exchanged by permutes.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::ops::{Combined, Combiner, Exchange, PerInvocation, Pure, ShuffleMode, Subgroup, Vote};
use vyre_foundation::ir::{Def, InstId, Type, ValueId};

use super::{Lower, services};
use crate::x86::machine::emit::{self, Regs};
use crate::x86::machine::{Operand, Reg, Width};
use crate::x86::plan::Plan;
use crate::x86::plan::shape::Axes;
use crate::x86::service::Site;

/// Identity element of a combiner, for lanes that do not participate. A bool has all bits of a lane set, or none.
fn identity(op: Combiner, ty: Type) -> u64 {
    match (op, ty) {
        (Combiner::And, Type::Bool) => u64::from(u32::MAX),
        _ => op.identity(ty),
    }
}

impl Lower<'_> {
    /// Broadcast of invocation 0 in a workgroup of one tile.
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
            Exchange::Shuffle(mode) => {
                let from = self.plan.program.inst(id).operands[1];
                self.exchange(id, op, |this, ty, lanes, pack| this.shuffle(mode, ty, lanes, from, pack));
            }
            Exchange::First => self.exchange(id, op, |this, _, lanes, pack| this.first(lanes, pack)),
            Exchange::Compact => self.compact(id, op),
            Exchange::Combine(combiner, Combined::All) if let Some(vote) = self.vote_of(id, combiner) => {
                self.vote(id, vote);
            }
            Exchange::Combine(combiner, range) => {
                self.exchange(id, op, |this, ty, lanes, pack| this.reduce_or_scan(combiner, range, ty, lanes, pack));
            }
        }
    }

    /// Computes the result for each pack: by `compute` on vectors of 32-bit lanes, where a bool has all bits of a lane
    /// set or none, or by the runtime.
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
            let mask = self.kept(inst.operands[0], pack);
            let bits = self.emit.mask_bits(mask);
            words.push(if axes.intersects(Axes::LANE) { self.emit.broadcast(bits, false) } else { bits });
        }
        self.define(inst.results[0], &words);
        // A subgroup has at most 32 lanes, so the other words are 0.
        for &rest in &inst.results[1..] {
            let zero = if axes.intersects(Axes::LANE) { self.emit.zero() } else { self.emit.immediate(0) };
            self.define(rest, &SmallVec::<[Reg; 4]>::from_elem(zero, words.len()));
        }
    }

    fn shuffle(&mut self, mode: ShuffleMode, ty: Type, lanes: Reg, from: ValueId, pack: usize) -> Reg {
        // Reading from a lane that has ended yields 0.
        let lanes = self.present_or_identity(Combiner::Or, ty, lanes, pack);
        let count = self.plan.shape.tile.lanes;
        let distance = match mode {
            ShuffleMode::Lane => lanes_below(self.plan, from),
            ShuffleMode::Up => self.plan.program.known(from).map(|distance| distance.bits as u32),
            ShuffleMode::Down | ShuffleMode::Xor => None,
        };
        if let Some(distance) = distance.filter(|distance| distance.is_power_of_two() && *distance < count) {
            return self.emit.shift_up(lanes, distance, 0);
        }
        // With an operand below the number of lanes, distances are smaller than that, and nothing wraps.
        let moves_little = self.plan.ranges.of_value(from).high < i64::from(count);
        let operand = self.vector(from, pack, 0);
        let own = self.emit.iota(0);
        let source = match mode {
            ShuffleMode::Lane => operand,
            ShuffleMode::Up => {
                let own = self.emit.load(own);
                self.emit.v2(emit::SUB_D, own, operand)
            }
            ShuffleMode::Down => self.emit.v2(emit::ADD_D, operand, own),
            ShuffleMode::Xor => self.emit.v2(emit::XOR, operand, own),
        };
        let mut theirs = self.emit.permute(source, lanes);
        let count = self.emit.splat(u64::from(count), false);
        let mut conditions: SmallVec<[Reg; 2]> = SmallVec::new();
        if !moves_little {
            conditions.push(operand);
        }
        if matches!(mode, ShuffleMode::Up | ShuffleMode::Down) {
            conditions.push(source);
        }
        for below in conditions {
            let exists = self.emit.less(below, count);
            let exists = self.emit.mask_to_vector(exists);
            theirs = self.emit.v2(emit::AND, theirs, exists);
        }
        theirs
    }

    /// Broadcasts the lowest present lane.
    fn first(&mut self, lanes: Reg, pack: usize) -> Reg {
        let source = match self.present(pack) {
            None => self.emit.zero(),
            Some(present) => {
                let bits = self.emit.mask_bits(present);
                let lowest = self.emit.s1(Code::Tzcnt_r32_rm32, Width::Dword, bits);
                self.emit.broadcast(lowest, false)
            }
        };
        self.emit.permute(source, lanes)
    }

    /// The vote that a reduction of bools is equivalent to, if its result is a scalar.
    fn vote_of(&self, id: InstId, op: Combiner) -> Option<Vote> {
        let result = self.plan.program.inst(id).results[0];
        let in_scalar = !self.plan.shape.axes[result].intersects(Axes::LANE);
        op.vote().filter(|_| self.plan.program.ty(result) == Type::Bool && in_scalar)
    }

    /// Vote on the bits of masks.
    fn vote(&mut self, id: InstId, vote: Vote) {
        let inst = self.plan.program.inst(id);
        let (from, to) = (inst.operands[0], inst.results[0]);
        let (axes, tile) = (self.plan.shape.axes[to], self.plan.shape.tile);
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            let mask = self.mask(from, pack);
            let bits = self.emit.mask_bits(mask);
            let (bits, code) = match vote {
                Vote::All => {
                    let all = Operand::Dword(((1u32 << tile.lanes) - 1) as i32);
                    (self.emit.s1i(Code::Xor_rm32_imm32, Width::Dword, bits, all), Code::Sete_rm8)
                }
                Vote::Any => (bits, Code::Setne_rm8),
                Vote::Odd => {
                    let count = self.emit.s1(Code::Popcnt_r32_rm32, Width::Dword, bits);
                    (self.emit.s1i(Code::And_rm32_imm32, Width::Dword, count, Operand::Dword(1)), Code::Setne_rm8)
                }
            };
            self.emit.test(bits);
            regs.push(self.emit.set(code));
        }
        self.define(to, &regs);
    }

    /// Compaction: moves the kept lanes to the front.
    fn compact(&mut self, id: InstId, op: Subgroup) {
        let keep = self.plan.program.inst(id).operands[1];
        self.exchange(id, op, |this, _, lanes, pack| {
            let kept = this.kept(keep, pack);
            if this.emit.wide() {
                return this.emit.compress(kept, lanes);
            }
            let bits = this.emit.mask_bits(kept);
            let source = this.emit.set_bits(bits);
            let moved = this.emit.permute(source, lanes);
            let (count, own) = (this.emit.s1(Code::Popcnt_r32_rm32, Width::Dword, bits), this.emit.iota(0));
            let (count, own) = (this.emit.broadcast(count, false), this.emit.load(own));
            let filled = this.emit.less(own, count);
            this.emit.v2(emit::AND, moved, filled)
        });
        let count = self.plan.program.inst(id).results[1];
        let axes = self.plan.shape.axes[count];
        let mut counts = Regs::new();
        for pack in self.plan.shape.tile.packs_of(axes) {
            let kept = self.kept(keep, pack);
            let bits = self.emit.mask_bits(kept);
            let count = self.emit.s1(Code::Popcnt_r32_rm32, Width::Dword, bits);
            counts.push(if axes.intersects(Axes::LANE) { self.emit.broadcast(count, false) } else { count });
        }
        self.define(count, &counts);
    }

    /// Lanes of a pack that are present and whose predicate is true.
    fn kept(&mut self, keep: ValueId, pack: usize) -> Reg {
        let keep = self.mask(keep, pack);
        match self.present(pack) {
            Some(present) => self.emit.mask_and(keep, present),
            None => keep,
        }
    }

    fn reduce_or_scan(&mut self, op: Combiner, range: Combined, ty: Type, lanes: Reg, pack: usize) -> Reg {
        let mut sums = self.present_or_identity(op, ty, lanes, pack);
        if range == Combined::All {
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
        if range == Combined::Exclusive { self.emit.shift_up(sums, 1, first) } else { sums }
    }

    /// Reduction of the active lanes of a 32-bit value, over all packs that share a copy.
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

    /// Lanes of a pack that participate in a subgroup operation; all if there is no mask.
    fn present(&self, pack: usize) -> Option<Reg> {
        if self.plan.shape.whole_subgroups { None } else { self.state.of_pack(pack) }
    }

    /// Replaces lanes that do not participate by the identity element.
    fn present_or_identity(&mut self, op: Combiner, ty: Type, lanes: Reg, pack: usize) -> Reg {
        match self.present(pack) {
            Some(_) => self.or_identity(op, ty, lanes, pack),
            None => lanes,
        }
    }

    /// Replaces inactive lanes by the identity element.
    fn or_identity(&mut self, op: Combiner, ty: Type, lanes: Reg, pack: usize) -> Reg {
        if self.state.mask.is_none() {
            return lanes;
        }
        let (active, identity) = (self.state.active(&mut self.emit, pack), self.emit.splat(identity(op, ty), false));
        self.emit.blend(active, lanes, identity)
    }

    /// Subgroup operation of a pack by the runtime.
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

/// Returns `d` if a value is `subgroup_lane - d` and `d` is a power of two: a shuffle from that lane is then a vector shift.
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
