//! Loop versioning: bounds checks of affine accesses are hoisted to a pre-check before the loop.
//!
//! In a loop that counts up, an index that is a sum of values from outside and one parameter that grows by the same amount in
//! every trip is greatest in the last trip. If that one is inside the object, and is computed without wrapping, so are all
//! others: no trip has to look, and what comes from outside becomes part of the address. For other cases the loop is written once
//! more.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::analysis::{Stays, counted, exits_of, is_outside};
use vyre_foundation::ir::ops::Op;
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Space, Type, ValueId};

use super::emit::{Regs, at, element};
use super::lower::Lower;
use super::machine::{self, Base, Operand, Reg, Width};
use super::shape::Axes;

/// An access that was checked before the loop around it.
pub(super) struct Checked {
    /// The parameter in its index.
    moving: ValueId,
    /// What is added to that.
    offset: i32,
    /// Where the object would start if there were nothing else in the index, for each of the [`Lower::spots`].
    starts: Regs,
}

/// Where a tile accesses an object: an address, and an index from there.
pub(super) type Spot = (Reg, Reg);

/// An index in a loop.
#[derive(Default)]
struct Sum {
    /// A parameter of the loop.
    moving: Option<ValueId>,
    /// What comes from outside the loop.
    fixed: SmallVec<[ValueId; 2]>,
    offset: i32,
}

/// Accesses to an object that differ only in the offsets of their indices.
struct Group {
    memory: MemId,
    moving: ValueId,
    fixed: SmallVec<[ValueId; 2]>,
    /// The index of one of them.
    index: ValueId,
    offsets: Vec<(InstId, i32)>,
    /// The last element that is accessed, counted from the parameter.
    reach: i32,
}

impl Lower<'_> {
    /// Checks accesses of a loop that all lanes of the tile take part in and leave together. They count as `checked` in the code
    /// that follows. If one may be outside, the code jumps to the cold block that is given, where they do not.
    pub(super) fn check_ahead(&mut self, id: InstId) -> Option<machine::BlockId> {
        let program = self.program;
        let body = program.insts[id].blocks[0];
        let counted = counted(program, id)?;
        let counts_up = counted.stays == Stays::Lt && counted.step > 0 && program.ty(counted.param) == Type::U32;
        let weight = self.weight(body).0;
        if !counts_up || self.emit.is_cold() || self.has_loop(body) || weight > self.spare {
            return None;
        }
        let groups = self.groups(body);
        if groups.iter().all(|group| group.offsets.iter().all(|(id, _)| self.ranges.is_inside(*id))) {
            return None;
        }
        self.spare -= weight;
        let away = self.emit.block(true);
        // With a small bound, as with all that objects are long enough for, neither the counter nor anything in 64 bits wraps. Then
        // this is the number of the last trip, or more, or there is no trip at all.
        let (start, bound) = (self.scalar(counted.start, 0), self.scalar(counted.bound, 0));
        self.emit.cmp_immediate(bound, i32::MAX, Width::Qword);
        self.emit.skip_to(away, Code::Ja_rel32_64);
        let distance = self.emit.s2(Code::Sub_r64_rm64, Width::Qword, bound, start);
        let distance = self.emit.lea(at(Base::Reg(distance), -1), Width::Qword);
        let shift = Operand::Byte(counted.step.ilog2() as i8);
        let last_trip = self.emit.s1i(Code::Shr_rm64_imm8, Width::Qword, distance, shift);
        for group in groups {
            let starts = self.check_last(id, &group, last_trip, away);
            for (access, offset) in group.offsets {
                self.checked.insert(access, Checked { moving: group.moving, offset, starts: starts.clone() });
            }
        }
        Some(away)
    }

    /// Jumps away if accesses of a loop may be outside in the last trip; gives where they start.
    fn check_last(&mut self, id: InstId, group: &Group, last_trip: Reg, away: machine::BlockId) -> Regs {
        let program = self.program;
        let body = program.insts[id].blocks[0];
        let object = self.object(group.memory);
        let params = &program.blocks[body].params;
        let position = params.iter().position(|&param| param == group.moving).expect("a parameter of the loop");
        let step = step(program, body, group.moving).expect("groups have one");
        let mut starts = Regs::new();
        for pack in self.packs_of_spots(group.index) {
            let add = |this: &mut Self, a, b| this.emit.s2(Code::Add_r64_rm64, Width::Qword, a, b);
            let step = self.scalar(step, pack);
            let moved = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, last_trip, step);
            let first = self.first_lane_of(program.insts[id].operands[position], pack);
            let mut last = add(self, moved, first);
            let mut start = object.start;
            for &value in &group.fixed {
                let term = self.first_lane_of(value, pack);
                last = add(self, last, term);
                start = self.emit.lea(element(start, term, object.size() as u8, 0), Width::Qword);
            }
            self.skip_unless_inside(object, last, group.reach, away);
            starts.push(start);
        }
        starts
    }

    /// The accesses in the body of a loop that can be checked before it.
    fn groups(&self, body: BlockId) -> Vec<Group> {
        let program = self.program;
        let mut groups: Vec<Group> = Vec::new();
        for &id in &program.blocks[body].insts {
            let inst = &program.insts[id];
            let (Op::Load(memory) | Op::Store(memory)) = inst.op else { continue };
            let Some(&index) = inst.operands.first() else { continue };
            let in_spots = !self.shape.axes[index].meets(Axes::LANE) || self.is_linear(index);
            if !in_spots || program.memory[memory].space == Space::Private {
                continue;
            }
            let mut sum = Sum::default();
            let (true, Some(moving)) = (self.add_to(&mut sum, index, body), sum.moving) else { continue };
            if step(program, body, moving).is_none() {
                continue;
            }
            let width = if self.is_linear(index) { self.shape.tile.width() as i32 } else { 1 };
            let reach = sum.offset + width - 1 + inst.results.len().max(inst.operands.len() - 1) as i32 - 1;
            let alike = |group: &&mut Group| (group.memory, group.moving, &group.fixed) == (memory, moving, &sum.fixed);
            match groups.iter_mut().find(alike) {
                Some(group) => {
                    group.offsets.push((id, sum.offset));
                    group.reach = group.reach.max(reach);
                }
                None => {
                    let offsets = vec![(id, sum.offset)];
                    groups.push(Group { memory, moving, fixed: sum.fixed, index, offsets, reach });
                }
            }
        }
        groups
    }

    /// Adds a value in a loop to a sum; gives whether that can be done.
    fn add_to(&self, sum: &mut Sum, value: ValueId, body: BlockId) -> bool {
        let program = self.program;
        if let Some(literal) = program.known(value) {
            // A number that is subtracted is a large one here, with which nothing would ever be inside.
            sum.offset = sum.offset.saturating_add(i32::try_from(literal.bits).unwrap_or(i32::MAX));
            return sum.offset < 1 << 20;
        }
        match program.values[value].def {
            _ if program.ty(value) != Type::U32 => false,
            Def::Param(block, _) if block == body => sum.moving.replace(value).is_none(),
            Def::Result(id, _) if !is_outside(program, value, body) => {
                let inst = &program.insts[id];
                inst.op == Op::Add && inst.operands.iter().all(|&operand| self.add_to(sum, operand, body))
            }
            Def::Param(..) | Def::Result(..) | Def::Literal(_) | Def::Constant(_) => {
                sum.fixed.push(value);
                true
            }
        }
    }

    /// The packs whose first lanes say where a tile accesses an object: the first one of each row of an index that goes up from
    /// lane to lane, or one for each copy of an index that is the same in the lanes of a pack.
    fn packs_of_spots(&self, index: ValueId) -> SmallVec<[usize; 4]> {
        let (tile, axes) = (self.shape.tile, self.shape.axes[index]);
        if self.is_linear(index) {
            (0..tile.rows_of(axes)).map(|row| row * tile.columns as usize).collect()
        } else {
            tile.packs_of(axes).collect()
        }
    }

    /// The first lane of a pack, which is the first one in its row if lanes differ.
    fn first_lane_of(&mut self, value: ValueId, pack: usize) -> Reg {
        if self.is_linear(value) {
            self.base(value, pack / self.shape.tile.columns as usize)
        } else {
            self.scalar(value, pack)
        }
    }

    /// Where an access is; also the value that is the index there, and what has to be added to it.
    pub(super) fn spots(&mut self, id: InstId, start: Reg, index: ValueId) -> (SmallVec<[Spot; 4]>, ValueId, i32) {
        let packs = self.packs_of_spots(index);
        let (starts, root, offset) = match self.checked.get(&id) {
            Some(checked) => (checked.starts.clone(), checked.moving, checked.offset),
            None => {
                let (root, offset) = self.addend(index);
                (packs.iter().map(|_| start).collect(), root, offset)
            }
        };
        let spots =
            starts.into_iter().zip(packs).map(|(start, pack)| (start, self.first_lane_of(root, pack))).collect();
        (spots, root, offset)
    }
}

/// What the only `continue` of a loop adds to a parameter, if that comes from outside the loop.
pub(super) fn step(program: &Program, body: BlockId, param: ValueId) -> Option<ValueId> {
    let position = program.blocks[body].params.iter().position(|&candidate| candidate == param)?;
    let &[next] = exits_of(program, body).continues.as_slice() else { return None };
    let Def::Result(next, 0) = program.values[program.insts[next].operands[position]].def else { return None };
    let (Op::Add, &[a, b]) = (&program.insts[next].op, program.insts[next].operands.as_slice()) else { return None };
    let step = if a == param { b } else { a };
    let of_body = program.blocks[body].insts.contains(&next);
    (of_body && (a == param || b == param) && is_outside(program, step, body)).then_some(step)
}
