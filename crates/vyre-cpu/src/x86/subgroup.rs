//! Operations between invocations: a pack is a subgroup, and what its lanes exchange goes through permutes.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::ops::{Combined, Op};
use vyre_foundation::ir::{Def, InstId, Type, ValueId};

use super::emit::{self, Regs};
use super::lower::Lower;
use super::machine::{Operand, Reg, Width};
use super::service::Site;
use super::shape::Axes;

/// What lanes that take no part count as. A bool is all bits of a lane, or none.
fn identity(op: &Op, ty: Type) -> u64 {
    match (op, ty) {
        (Op::And, Type::Bool) => u64::from(u32::MAX),
        _ => op.identity(ty),
    }
}

impl Lower<'_> {
    pub(super) fn collective(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        match &inst.op {
            // All invocations of the workgroup are in this tile.
            Op::WorkgroupBarrier => {}
            Op::StorageBarrier => self.fence_streams(),
            Op::Broadcast => {
                let (from, to) = (inst.operands[0], inst.results[0]);
                let regs = self.first_of_tile(from, to);
                let regs = match self.state.mask.clone() {
                    None => regs,
                    Some(mask) => {
                        let bits = self.emit.mask_bits(mask.packs[0]);
                        let bits = self.emit.s1_in_place(Code::Not_rm32, Width::Dword, bits);
                        let ended = self.emit.s1i(Code::And_rm32_imm32, Width::Dword, bits, Operand::Dword(1));
                        self.zero_if(ended, &regs)
                    }
                };
                self.hold(to, &regs);
            }
            Op::SubgroupBallot => self.ballot(id),
            op => {
                let (from, to) = (inst.operands[0], inst.results[0]);
                let (axes, ty) = (self.shape.axes[to], self.program.ty(to));
                let tile = self.shape.tile;
                let mut regs = Regs::new();
                for pack in tile.packs_of(axes) {
                    if ty.bits() == 64 || ty == Type::F16 {
                        let computed = self.exchange_by_runtime(id, pack);
                        self.extend_by_lanes(&mut regs, axes, ty, &computed);
                        continue;
                    }
                    let lanes = if ty == Type::Bool {
                        let mask = self.mask_of(from, pack);
                        self.emit.mask_to_vector(mask)
                    } else {
                        self.vector(from, pack, 0)
                    };
                    let lanes = self.exchange(op, ty, lanes, &inst.operands, pack);
                    let lanes = if ty == Type::Bool { self.emit.mask_from_vector(lanes) } else { lanes };
                    self.extend_by_lanes(&mut regs, axes, ty, &[lanes]);
                }
                self.hold(to, &regs);
            }
        }
    }

    fn ballot(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        let (axes, tile) = (self.shape.axes[inst.results[0]], self.shape.tile);
        let mut words = Regs::new();
        for pack in tile.packs_of(axes) {
            let mut mask = self.mask_of(inst.operands[0], pack);
            if self.state.mask.is_some() {
                let active = self.active(pack);
                mask = self.emit.mask_and(mask, active);
            }
            let bits = self.emit.mask_bits(mask);
            words.push(if axes.meets(Axes::LANE) { self.emit.broadcast(bits, false) } else { bits });
        }
        self.hold(inst.results[0], &words);
        // Subgroups are not larger than a word.
        for &rest in &inst.results[1..] {
            let zero = if axes.meets(Axes::LANE) { self.emit.zero() } else { self.emit.immediate(0) };
            self.hold(rest, &SmallVec::<[Reg; 4]>::from_elem(zero, words.len()));
        }
    }

    /// One pack of lanes of 32 bits. A bool is all bits of a lane, or none.
    fn exchange(&mut self, op: &Op, ty: Type, lanes: Reg, operands: &[ValueId], pack: usize) -> Reg {
        match op {
            Op::SubgroupShuffle => {
                // Of those that have ended, others get 0.
                let lanes = self.or_identity(&Op::Or, ty, lanes, pack);
                if let Some(distance) = self.lanes_below(operands[1]) {
                    return self.emit.shift_up(lanes, distance, 0);
                }
                let from = self.vector(operands[1], pack, 0);
                if self.ranges.of_value(operands[1]).high < i64::from(self.shape.tile.lanes) {
                    return self.emit.permute(from, lanes);
                }
                let count = self.emit.splat(u64::from(self.shape.tile.lanes), false);
                let exists = self.less(from, count);
                let theirs = self.emit.permute(from, lanes);
                let exists = self.emit.mask_to_vector(exists);
                self.emit.v2(emit::AND, theirs, exists)
            }
            op => {
                let (combining, whose) = op.combines().expect("validated: it is a subgroup operation");
                let mut sums = self.or_identity(&combining, ty, lanes, pack);
                if whose == Combined::All {
                    return self.reduce_lanes(&combining, ty, sums);
                }
                let nothing = identity(&combining, ty);
                let mut distance = 1;
                while distance < self.shape.tile.lanes {
                    let before = self.emit.shift_up(sums, distance, nothing);
                    sums = self.combine(&combining, ty, before, sums);
                    distance *= 2;
                }
                let first = if combining == Op::Add { 0 } else { nothing };
                if whose == Combined::BeforeOwn { self.emit.shift_up(sums, 1, first) } else { sums }
            }
        }
    }

    /// By how much a value is below the number of each lane, if it is a power of two: the processor moves vectors by that.
    fn lanes_below(&self, value: ValueId) -> Option<u32> {
        let program = self.program;
        let made = |value: ValueId| match program.values[value].def {
            Def::Result(id, 0) => Some(&program.insts[id]),
            _ => None,
        };
        let inst = made(value).filter(|inst| inst.op == Op::Add)?;
        let &[a, b] = inst.operands.as_slice() else { return None };
        let (lane, added) = if program.known(a).is_some() { (b, a) } else { (a, b) };
        let distance = (program.known(added)?.bits as u32).wrapping_neg();
        let is_lane = made(lane).is_some_and(|inst| inst.op == Op::SubgroupLane);
        (is_lane && distance.is_power_of_two() && distance < self.shape.tile.lanes).then_some(distance)
    }

    /// The active lanes of a value of 32 bits combined, of all packs that share a pack's copy of another value.
    pub(super) fn combined(&mut self, op: &Op, value: ValueId, axes: Axes, first: usize) -> Reg {
        let (ty, tile) = (self.program.ty(value), self.shape.tile);
        let mut all = None;
        for pack in (0..tile.packs() as usize).filter(|&pack| tile.copy(axes, pack) == tile.copy(axes, first)) {
            let lanes = self.vector(value, pack, 0);
            let lanes = self.or_identity(op, ty, lanes, pack);
            all = Some(all.map_or(lanes, |all| self.combine(op, ty, all, lanes)));
        }
        self.reduce_lanes(op, ty, all.expect("every copy has a pack"))
    }

    /// Lanes that are not active replaced by what changes nothing.
    fn or_identity(&mut self, op: &Op, ty: Type, lanes: Reg, pack: usize) -> Reg {
        if self.state.mask.is_none() {
            return lanes;
        }
        let (active, identity) = (self.active(pack), self.emit.splat(identity(op, ty), false));
        self.emit.blend(active, lanes, identity)
    }

    /// Combines all lanes, in a tree that halves them; every lane has the result.
    fn reduce_lanes(&mut self, op: &Op, ty: Type, mut lanes: Reg) -> Reg {
        let mut half = self.shape.tile.lanes / 2;
        while half > 0 {
            let others = self.emit.swap_lanes(lanes, half);
            lanes = self.combine(op, ty, lanes, others);
            half /= 2;
        }
        lanes
    }

    /// An operation on lanes of 32 bits that neither order nor grouping matters for, except in how sums and products of floats
    /// are rounded.
    fn combine(&mut self, op: &Op, ty: Type, a: Reg, b: Reg) -> Reg {
        let float = ty == Type::F32;
        let pair = match op {
            Op::Add if float => emit::ADD_S,
            Op::Add => emit::ADD_D,
            Op::Mul if float => emit::MUL_S,
            Op::Mul => emit::MUL_D,
            Op::Min | Op::Max if float => return self.extreme(a, b, *op == Op::Min, false),
            Op::Min if ty == Type::I32 => emit::MIN_S,
            Op::Min => emit::MIN_U,
            Op::Max if ty == Type::I32 => emit::MAX_S,
            Op::Max => emit::MAX_U,
            Op::And => emit::AND,
            Op::Or => emit::OR,
            Op::Xor => emit::XOR,
            op => unreachable!("lanes are not combined by `{}`", op.row().name),
        };
        self.emit.v2(pair, a, b)
    }

    /// Has the runtime exchange the lanes of a pack.
    fn exchange_by_runtime(&mut self, id: InstId, pack: usize) -> SmallVec<[Reg; 2]> {
        let inst = &self.program.insts[id];
        let ty = self.program.ty(inst.operands[0]);
        self.pass_active(pack);
        for (number, &operand) in inst.operands.iter().enumerate() {
            self.pass(operand, pack, number);
        }
        self.service(Site::Subgroup { op: inst.op.clone(), ty });
        self.receive(ty, 2)
    }
}
