//! Lowering of atomics: processor instructions for updates, and compare-exchange loops, lane by lane or by the runtime.
//! Lanes that update one element are combined by a reduction first if the old values are unused.

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::ops::{Atomic, Combiner, Op};
use vyre_foundation::ir::{Def, Element, InstId, MemOperand, Space, Type, ValueId};

use super::memory::{Lane, Object};
use super::{Lower, services};
use crate::x86::machine::emit::{Emit, Regs, element};
use crate::x86::machine::{Address, Reg, Width};
use crate::x86::plan::shape::Axes;
use crate::x86::service::{self, Site};

impl Lower<'_> {
    /// Read-modify-write, or compare-exchange if there is no operation.
    pub(super) fn atomic(&mut self, id: InstId, op: Option<Atomic>, access: MemOperand) {
        let inst = self.plan.program.inst(id);
        let object = self.object(access);
        let shared = self.plan.program.memory(access.memory).space != Space::Workgroup;
        let ty = object.element.value_type();
        let (index, operands) = (inst.operands[0], inst.operands[1..].to_vec());
        let results = inst.results.clone();
        let unused = results.iter().all(|&result| self.plan.uses.is_unused(result));
        if unused && self.update_lanes(id, op, object, shared) {
            return;
        }
        let mut all: Vec<Regs> = vec![Regs::new(); results.len()];
        // Floats are updated by the runtime, which counts failed compare-exchanges as fuel.
        let inline = !self.emit.is_cold() && self.accesses.take_inline_budget() && !(op.is_some() && ty.is_float());
        for pack in 0..self.plan.shape.tile.packs() as usize {
            if inline {
                let scope = self.values.enter_scope();
                self.exchange_lanes(id, op, object, shared, unused, pack);
                self.values.leave_scope(scope);
            } else {
                self.services.pass_mask(&mut self.emit, self.state.of_pack(pack));
                self.pass(index, pack, 0);
                for (number, &operand) in operands.iter().enumerate() {
                    self.pass(operand, pack, 1 + number);
                }
                let array = self.pass_array(object, pack);
                let site = match op {
                    Some(op) => Site::Atomic { array, op, ty, shared, span: inst.span },
                    None => Site::CompareExchange { array, ty },
                };
                self.services.call(&mut self.emit, site);
            }
            for (number, list) in all.iter_mut().enumerate() {
                let ty = self.plan.program.ty(results[number]);
                list.extend(services::receive(&mut self.emit, ty, 3 + number));
            }
        }
        for (&result, regs) in results.iter().zip(&all) {
            self.define(result, regs);
        }
    }

    /// Lowers an update whose old values are unused to a processor instruction, if one exists.
    fn update_lanes(&mut self, id: InstId, op: Option<Atomic>, object: Object, shared: bool) -> bool {
        let inst = self.plan.program.inst(id);
        if object.element.value_type().is_float() {
            return false;
        }
        let (combining, narrow, wide) = match op {
            Some(Atomic::Add) => (Combiner::Add, Code::Add_rm32_r32, Code::Add_rm64_r64),
            Some(Atomic::Sub) => (Combiner::Add, Code::Sub_rm32_r32, Code::Sub_rm64_r64),
            Some(Atomic::And) => (Combiner::And, Code::And_rm32_r32, Code::And_rm64_r64),
            Some(Atomic::Or) => (Combiner::Or, Code::Or_rm32_r32, Code::Or_rm64_r64),
            Some(Atomic::Xor) => (Combiner::Xor, Code::Xor_rm32_r32, Code::Xor_rm64_r64),
            Some(Atomic::Min | Atomic::Max | Atomic::Exchange) | None => return false,
        };
        let of_64 = object.size() == 8;
        let (code, width) = if of_64 { (wide, Width::Qword) } else { (narrow, Width::Dword) };
        let (index, value) = (inst.operands[0], inst.operands[1]);
        let axes = self.plan.shape.axes[index];
        if !axes.intersects(Axes::LANE) {
            // Uniform address: the lanes are reduced first, or only counted if their operands are equal.
            let count = axes.is_uniform() && self.plan.shape.axes[value].is_uniform() && combining == Combiner::Add;
            if of_64 && !count {
                return false;
            }
            for pack in self.plan.shape.tile.packs_of(axes) {
                let position = self.scalar(index, pack);
                let total = if count {
                    let (count, value) =
                        (self.state.active_count(&mut self.emit, self.plan.shape.tile), self.scalar(value, 0));
                    let multiply = if of_64 { Code::Imul_r64_rm64 } else { Code::Imul_r32_rm32 };
                    self.emit.s2(multiply, width, count, value)
                } else {
                    let lanes = self.combined(combining, value, axes, pack);
                    self.emit.first_lane(lanes, false)
                };
                let done = self.emit.block(self.emit.is_cold());
                object.skip_unless_inside(&mut self.emit, position, 0, done);
                let address = element(object.start, position, object.size() as u8, 0);
                self.emit.update(code, address, total, width, shared);
                self.emit.enter(done);
            }
            return true;
        }
        if !self.accesses.take_inline_budget() {
            return false;
        }
        let tile = self.plan.shape.tile;
        let fixed = !self.plan.shape.axes[value].intersects(Axes::LANE);
        let bound = self.bound(id, object, 0);
        for pack in 0..tile.packs() as usize {
            let scope = self.values.enter_scope();
            let indices = self.vector(index, pack, 0);
            let active = self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, Axes::ALL, pack);
            let mask = self.emit.inside_mask(indices, bound, active);
            let in_memory = self.in_memory(index, pack).filter(|_| !self.needs_check(id));
            if in_memory.is_none() {
                let address = services::scratch(&mut self.emit, service::slot(0));
                self.emit.store(address, indices);
            }
            if !fixed {
                self.pass(value, pack, 1);
            }
            let scalar = fixed.then(|| self.scalar(value, pack));
            let position = |emit: &mut Emit, lane: Lane| {
                let address = Lane::address(emit, service::slot(0), 4, lane);
                emit.load_scalar(address, Width::Dword)
            };
            let change = |emit: &mut Emit, lane: Lane, position: Reg| {
                let operand = scalar.unwrap_or_else(|| {
                    let address = Lane::address(emit, service::slot(1), object.size(), lane);
                    emit.load_scalar(address, width)
                });
                let address = element(object.start, position, object.size() as u8, 0);
                emit.update(code, address, operand, width, shared);
            };
            if !self.needs_check(id) {
                let mut word = None;
                for lane in 0..tile.lanes as i32 {
                    let position = match in_memory {
                        Some(place) => self.emit.lane_in_memory(place, lane, &mut word),
                        None => position(&mut self.emit, Lane::Known(lane)),
                    };
                    change(&mut self.emit, Lane::Known(lane), position);
                }
            } else {
                let bits = self.emit.mask_bits(mask);
                self.emit.for_each_lane(bits, |emit, lane| {
                    let position = position(emit, lane);
                    change(emit, lane, position);
                });
            }
            self.values.leave_scope(scope);
        }
        true
    }

    /// Updates elements lane by lane. Writes the old values to scratch memory, for lanes that are active and in bounds;
    /// zeros for the others.
    fn exchange_lanes(
        &mut self,
        id: InstId,
        op: Option<Atomic>,
        object: Object,
        shared: bool,
        unused: bool,
        pack: usize,
    ) {
        let inst = self.plan.program.inst(id);
        let (size, width) = (object.size(), object.width());
        let (index, operands) = (inst.operands[0], &inst.operands[1..]);
        let indices = self.vector(index, pack, 0);
        services::pass_vectors(&mut self.emit, &[indices], 0);
        let mut scalars: SmallVec<[Option<Reg>; 2]> = SmallVec::new();
        for (number, &operand) in operands.iter().enumerate() {
            let fixed = !self.plan.shape.axes[operand].intersects(Axes::LANE);
            scalars.push(fixed.then(|| self.scalar(operand, pack)));
            if !fixed {
                self.pass(operand, pack, 1 + number);
            }
        }
        if !unused {
            let zero = self.emit.zero();
            for number in 0..inst.results.len() {
                services::pass_vectors(&mut self.emit, &[zero; 2][..size as usize / 4], 3 + number);
            }
        }
        let (bound, active) = (
            self.bound(id, object, 0),
            self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, Axes::ALL, pack),
        );
        let mask = self.emit.inside_mask(indices, bound, active);
        let bits = self.emit.mask_bits(mask);
        self.emit.for_each_lane(bits, |emit, lane| {
            let place = Lane::address(emit, service::slot(0), 4, lane);
            let position = emit.load_scalar(place, Width::Dword);
            let address = element(object.start, position, size as u8, 0);
            let operand = |emit: &mut Emit, number: usize| {
                scalars[number].unwrap_or_else(|| {
                    let place = Lane::address(emit, service::slot(1 + number), size, lane);
                    emit.load_scalar(place, width)
                })
            };
            let value = operand(emit, 0);
            let old = match op {
                None => {
                    let new = operand(emit, 1);
                    let old = emit.compare_exchange(address, value, new, width, shared);
                    let replaced = emit.set(Code::Sete_rm8);
                    let replaced = emit.s1_in_place(Code::Neg_rm32, Width::Dword, replaced);
                    let place = Lane::address(emit, service::slot(4), 4, lane);
                    emit.store_scalar(place, replaced, Width::Dword);
                    old
                }
                Some(op) => object.exchange(emit, op, address, value, shared),
            };
            if !unused {
                let place = Lane::address(emit, service::slot(3), size, lane);
                emit.store_scalar(place, old, width);
            }
        });
    }

    /// Memory address of the lanes of a value that was loaded contiguously from a read-only object, from which single
    /// lanes are reloaded instead of extracted from a vector.
    fn in_memory(&mut self, value: ValueId, pack: usize) -> Option<(Element, Address)> {
        let program = self.plan.program;
        let Def::Result(id, 0) = program.def(value) else { return None };
        let (&Op::Load(access), &[index]) = (&program.inst(id).op, program.inst(id).operands.as_slice()) else {
            return None;
        };
        let plain = program.memory(access.memory).space != Space::Private && !self.plan.shape.written[access.memory];
        let integer = matches!(program.ty(value), Type::I32 | Type::U32);
        if !plain
            || !integer
            || self.tiles.hoisted[id]
            || self.needs_check(id)
            || !self.plan.shape.is_linear(index)
            || !self.is_available(index)
        {
            return None;
        }
        let (object, tile) = (self.object(access), self.plan.shape.tile);
        let (bases, _, offset) = self.access_bases(id, object.start, index);
        let (row, before) = tile.in_row(pack, bases.len());
        let (start, first) = bases[row];
        let displacement = (before + offset) * object.size();
        Some((object.element, element(start, first, object.size() as u8, displacement)))
    }
}
