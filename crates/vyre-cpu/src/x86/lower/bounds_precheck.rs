//! Loop versioning for bounds checks: the precheck of affine accesses before a loop, and the base addresses that it
//! yields.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::{InstId, ValueId};

use super::Lower;
use crate::x86::machine::emit::{Regs, at, element};
use crate::x86::machine::{Base, BlockId, Operand, Reg, Width};
use crate::x86::plan::bounds::{AccessBounds, Group};

/// A loop whose precheck has passed.
pub(super) struct Prechecked {
    pub(super) at: InstId,
    /// Base addresses of each group of accesses, with the loop-invariant part of the index folded in: one for each of
    /// the [`Lower::access_bases`].
    starts: Vec<Regs>,
}

/// Base address of an access, and the index relative to it.
pub(super) type AccessBase = (Reg, Reg);

impl Lower<'_> {
    /// Emits the precheck of a loop whose trip count is uniform in the tile. The code that follows is the version
    /// without bounds checks. Returns the cold block entered if an access may be out of bounds, where the checked
    /// version goes.
    pub(super) fn precheck(&mut self, id: InstId) -> Option<BlockId> {
        let plan = self.plan;
        let precheck = plan.prechecks.of_loop(id)?;
        let weight = plan.weight(plan.program.inst(id).blocks[0]).insts;
        if self.emit.is_cold() || weight > self.loops.version_budget {
            return None;
        }
        self.loops.version_budget -= weight;
        let away = self.emit.block(true);
        let counted = &precheck.counted;
        // With a bound ≤ i32::MAX, neither the counter nor 64-bit address arithmetic wraps. Then `last_trip` is at
        // least the number of the last trip, or the loop has no trips.
        let (start, bound) = (self.scalar(counted.start, 0), self.scalar(counted.bound, 0));
        self.emit.cmp_immediate(bound, i32::MAX, Width::Qword);
        self.emit.skip_to(away, Code::Ja_rel32_64);
        let distance = self.emit.s2(Code::Sub_r64_rm64, Width::Qword, bound, start);
        let distance = self.emit.lea(at(Base::Reg(distance), -1), Width::Qword);
        let shift = Operand::Byte(counted.step.ilog2() as i8);
        let last_trip = self.emit.s1i(Code::Shr_rm64_imm8, Width::Qword, distance, shift);
        let starts = precheck.groups.iter().map(|group| self.check_last_trip(id, group, last_trip, away)).collect();
        self.accesses.prechecked = Some(Prechecked { at: id, starts });
        Some(away)
    }

    /// Branches to `away` if accesses of a group may be out of bounds in the last trip; returns their base addresses.
    fn check_last_trip(&mut self, id: InstId, group: &Group, last_trip: Reg, away: BlockId) -> Regs {
        let program = self.plan.program;
        let object = self.object(group.access);
        let params = &program.block(program.inst(id).blocks[0]).params;
        let position = params.iter().position(|&param| param == group.moving).expect("a parameter of the loop");
        let mut starts = Regs::new();
        for pack in self.plan.packs_of_bases(group.index) {
            let add = |this: &mut Self, a, b| this.emit.s2(Code::Add_r64_rm64, Width::Qword, a, b);
            let step = self.scalar(group.step, pack);
            let moved = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, last_trip, step);
            let first = self.first_lane_of(program.inst(id).operands[position], pack);
            let mut last = add(self, moved, first);
            let mut start = object.start;
            for &value in &group.fixed {
                let term = self.first_lane_of(value, pack);
                last = add(self, last, term);
                start = self.emit.lea(element(start, term, object.size() as u8, 0), Width::Qword);
            }
            object.skip_unless_inside(&mut self.emit, last, group.reach, away);
            starts.push(start);
        }
        starts
    }

    /// Bounds of an access in the code being emitted.
    pub(super) fn bounds(&self, access: InstId) -> AccessBounds {
        let passed = self.accesses.prechecked.as_ref().map(|prechecked| prechecked.at);
        self.plan.bounds(access, passed, self.tiles.hoisting)
    }

    /// First lane of a pack: for a linear value, that of its row.
    fn first_lane_of(&mut self, value: ValueId, pack: usize) -> Reg {
        if self.plan.shape.is_linear(value) {
            self.base(value, pack / self.plan.shape.tile.columns as usize)
        } else {
            self.scalar(value, pack)
        }
    }

    /// Base addresses of an access, the value that indexes them, and a constant offset.
    pub(super) fn access_bases(
        &mut self,
        id: InstId,
        start: Reg,
        index: ValueId,
    ) -> (SmallVec<[AccessBase; 4]>, ValueId, i32) {
        let packs = self.plan.packs_of_bases(index);
        let affine = self.plan.prechecks.affine(id);
        let (starts, root, offset) = match (&self.accesses.prechecked, affine) {
            (Some(prechecked), Some(affine)) if affine.at == prechecked.at => {
                (prechecked.starts[affine.group].clone(), affine.moving, affine.offset)
            }
            _ => {
                let (root, offset) = self.addend(index);
                (packs.iter().map(|_| start).collect(), root, offset)
            }
        };
        let bases =
            starts.into_iter().zip(packs).map(|(start, pack)| (start, self.first_lane_of(root, pack))).collect();
        (bases, root, offset)
    }
}
