//! Segment loops: loops over the tiles of a workgroup, one for each segment between two barriers. Values live across a
//! barrier are spilled to memory or rematerialized.

use iced_x86::Code;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Barrier, Control, Op, Pure, Terminator};
use vyre_foundation::ir::{BlockId, Def, InstId, Program, Type, ValueId};

use super::Lower;
use super::control::EnclosingLoop;
use super::masks::{Mask, State};
use crate::x86::machine::emit::{ADD_D, Emit, Regs, at};
use crate::x86::machine::{self, Base, Class, Reg, Width};
use crate::x86::plan::segments::is_of_group;
use crate::x86::plan::shape::{Axes, Layout};
use crate::x86::service::{self, Site};

/// Position of the code in the workgroup and its tiles, and the instructions hoisted out of the tile loops.
pub(super) struct Tiles {
    pub(super) position: TilePosition,
    pub(super) group: GroupPosition,
    /// End of the innermost tile loop's body.
    pub(super) tile_end: machine::BlockId,
    /// End of the workgroup loop's body.
    pub(super) group_end: machine::BlockId,
    /// Exit block of the function.
    pub(super) stop: machine::BlockId,
    /// Instructions hoisted out of the tile loops.
    pub(super) hoisted: SecondaryMap<InstId, bool>,
    /// Instructions are being hoisted above the conditions that guard them, so facts implied by those do not hold.
    pub(super) hoisting: bool,
}

/// Position of the current tile.
#[derive(Clone, Copy, Default)]
pub(super) struct TilePosition {
    /// Local id of the first invocation per axis, for rectangular tiles; `None` where it is always 0.
    pub(super) local: [Option<Reg>; 3],
    /// Local linear index of the first invocation; for merged workgroups, its index in the call.
    pub(super) index: Option<Reg>,
    /// Number of invocations, for merged workgroups.
    end: Option<Reg>,
    /// Number of the tile in its workgroup, and its spill area, if there are several segments.
    pub(super) number: Option<Reg>,
    spill_area: Option<Reg>,
}

impl TilePosition {
    /// Address in the spill area of the tile.
    fn spill_address(&self, offset: i32) -> machine::Address {
        at(Base::Reg(self.spill_area.expect("a tile with slots has a spill area")), offset)
    }
}

/// The position of the workgroup.
#[derive(Clone, Copy, Default)]
pub(super) struct GroupPosition {
    /// Global linear index of the first invocation of the workgroup; of the first one of all, if workgroups are merged.
    pub(super) first: Option<Reg>,
    /// Global id of that invocation.
    pub(super) origin: [Option<Reg>; 3],
}

impl Tiles {
    pub(super) fn new(emit: &mut Emit, program: &Program) -> Tiles {
        let entry = emit.at;
        let (group_end, stop) = (emit.block(false), emit.block(true));
        emit.at = stop;
        emit.ret();
        emit.at = entry;
        Tiles {
            position: TilePosition::default(),
            group: GroupPosition::default(),
            // Set by every tile loop.
            tile_end: stop,
            group_end,
            stop,
            hoisted: SecondaryMap::with_capacity(program.insts().len(), false),
            hoisting: false,
        }
    }
}

impl Lower<'_> {
    /// Emits a segment: instructions of a block for all tiles of a workgroup. Spills `spilled`, which other segments use.
    pub(super) fn segment(&mut self, insts: &[InstId], spilled: &[ValueId]) {
        // All instructions were hoisted.
        if insts.iter().all(|id| self.tiles.hoisted[*id]) {
            return;
        }
        let outer = self.emit.block(false);
        self.tiles.tile_end = self.emit.block(false);
        if self.plan.segments.ended_slot.is_some() {
            for _ in 0..self.plan.shape.tile.packs() {
                self.emit.param(self.tiles.tile_end, self.emit.mask_class());
            }
        }
        let scope = self.values.enter_scope();
        // Lanes cannot exit workgroup-level loops.
        let outer_loops = std::mem::take(&mut self.loops.enclosing);
        let left = self.plan.segments.ended_slot.is_some().then(|| {
            let group = self.emit.load_scalar(at(Base::Context, service::GROUP_SLOTS), Width::Qword);
            let zero = self.emit.immediate(0);
            self.emit.store_scalar(at(Base::Reg(group), self.plan.segments.left_slot), zero, Width::Qword);
            at(Base::Reg(group), self.plan.segments.left_slot)
        });
        let (outer_position, loops) = self.open_tiles();
        if self.plan.has_private() && !self.plan.segments.split {
            self.services.call(&mut self.emit, Site::ClearTile);
        }
        self.run(insts, spilled);
        self.emit.at = self.tiles.tile_end;
        if let Some(slot) = self.plan.segments.ended_slot {
            let ended = self.emit.function.blocks[self.tiles.tile_end.0 as usize].params.clone();
            for (pack, &mask) in ended.iter().enumerate() {
                let vector = self.emit.mask_to_vector(mask);
                let address = self.tiles.position.spill_address(slot + pack as i32 * self.emit.bytes());
                self.emit.store(address, vector);
            }
            self.emit.test_all(&ended);
            let some_left = self.emit.set(Code::Setae_rm8);
            let left = left.expect("allocated with the slot of the lanes that have ended");
            self.emit.update(Code::Or_rm32_r32, left, some_left, Width::Dword, false);
        }
        TileLoop::close_all(&mut self.emit, loops, outer);
        self.tiles.position = outer_position;
        self.loops.enclosing = outer_loops;
        self.state = State::default();
        self.values.leave_scope(scope);
        for &id in insts.iter().filter(|id| !self.tiles.hoisted[**id]) {
            for &result in &self.plan.program.inst(id).results {
                self.values.forget(result);
            }
        }
        self.emit.at = outer;
        if let Some(left) = left {
            // If all invocations have ended, no uniform condition is evaluated any more.
            let left = self.emit.load_scalar(left, Width::Dword);
            self.emit.test(left);
            self.emit.skip_to(self.tiles.group_end, Code::Je_rel32_64);
        }
    }

    /// Opens the tile loops of a workgroup, or of merged workgroups; returns the previous position.
    fn open_tiles(&mut self) -> (TilePosition, Vec<TileLoop>) {
        let (tile, size) = (self.plan.shape.tile, self.plan.program.workgroup_size());
        let (position, loops) = match tile.layout {
            Layout::Rows => {
                let dimensions = [(size[0], tile.width()), (size[1], tile.rows), (size[2], 1)];
                let (local, loops) = TileLoop::open_all(&mut self.emit, dimensions);
                (TilePosition { local, ..TilePosition::default() }, loops)
            }
            Layout::Linear => {
                let dimensions = [(size.iter().product(), tile.width())];
                let ([counter], loops) = TileLoop::open_all(&mut self.emit, dimensions);
                let index = counter.unwrap_or_else(|| self.emit.immediate(0));
                (TilePosition { index: Some(index), ..TilePosition::default() }, loops)
            }
            Layout::Merged => {
                let end = self.emit.load_scalar(at(Base::Context, service::POSITIONS), Width::Dword);
                let opened = TileLoop::open(&mut self.emit, Some(end), 0, tile.width());
                let position = TilePosition { index: Some(opened.counter), end: Some(end), ..TilePosition::default() };
                (position, vec![opened])
            }
        };
        let outer = std::mem::replace(&mut self.tiles.position, position);
        if self.plan.segments.split {
            self.tiles.position.spill_area = Some(self.tile_spill_area());
        }
        (outer, loops)
    }

    /// Emits instructions for a tile.
    fn run(&mut self, insts: &[InstId], spilled: &[ValueId]) {
        let tile = self.plan.shape.tile;
        let size: u32 = self.plan.program.workgroup_size().iter().product();
        if let Some(end) = self.tiles.position.end {
            self.run_until(insts, spilled, end);
        } else if tile.layout == Layout::Linear && !size.is_multiple_of(tile.width()) {
            let end = self.emit.immediate(u64::from(size));
            self.run_until(insts, spilled, end);
        } else {
            self.run_with(insts, spilled, None);
        }
    }

    /// Emits instructions for a tile that may be incomplete: only positions below `end` exist.
    fn run_until(&mut self, insts: &[InstId], spilled: &[ValueId], end: Reg) {
        let tile = self.plan.shape.tile;
        let position = self.tiles.position.index.expect("only runs have incomplete tiles");
        let size: u32 = self.plan.program.workgroup_size().iter().product();
        if tile.layout == Layout::Merged || size >= tile.width() {
            let last = self.emit.lea(at(Base::Reg(position), tile.width() as i32), Width::Qword);
            self.emit.cmp(last, end, Width::Qword);
            let (full, partial) = self.emit.branch(Code::Jbe_rel32_64, false, true);
            self.emit.at = full;
            self.run_with(insts, spilled, None);
            self.emit.at = partial;
        }
        let (position, end) = (self.emit.broadcast(position, false), self.emit.broadcast(end, false));
        let masks = (0..tile.packs()).map(|pack| {
            let iota = self.emit.iota(pack * tile.lanes);
            let lanes = self.emit.v2(ADD_D, position, iota);
            self.emit.less(lanes, end)
        });
        let packs = masks.collect();
        self.run_with(insts, spilled, Some(Mask { packs, maybe_empty: false }));
    }

    fn run_with(&mut self, insts: &[InstId], spilled: &[ValueId], mask: Option<Mask>) {
        let scope = self.values.enter_scope();
        self.state = State { mask, variables: Regs::new() };
        if let Some(slot) = self.plan.segments.ended_slot {
            let bytes = self.emit.bytes();
            let there = self.state.mask.take();
            let packs = (0..self.plan.shape.tile.packs() as usize).map(|pack| {
                let vector = self.emit.load(self.tiles.position.spill_address(slot + pack as i32 * bytes));
                let ended = self.emit.mask_from_vector(vector);
                match &there {
                    Some(there) => self.emit.mask_and_not(ended, there.packs[pack]),
                    None => self.emit.mask_not(ended),
                }
            });
            let packs: Regs = packs.collect();
            self.if_none_active(&packs, Self::end_all);
            self.state.mask = Some(Mask { packs, maybe_empty: false });
        }
        let falls_through = self.insts(insts);
        if self.emit.is_open() {
            if let Some(mask) = self.state.mask.clone().filter(|mask| mask.maybe_empty) {
                // Lanes that have ended do not determine values that are uniform in the workgroup.
                self.if_none_active(&mask.packs, Self::end_all);
            }
            if falls_through {
                for &value in spilled {
                    self.keep(value);
                }
            }
            self.end_tile();
        }
        self.values.leave_scope(scope);
    }

    /// Ends the tile; lanes not active now have ended.
    fn end_tile(&mut self) {
        let ended: Regs = match (&self.plan.segments.ended_slot, &self.state.mask) {
            (None, _) => Regs::new(),
            (Some(_), None) => {
                let none = self.emit.mask_constant(false);
                (0..self.plan.shape.tile.packs()).map(|_| none).collect()
            }
            (Some(_), Some(mask)) => mask.packs.clone().into_iter().map(|mask| self.emit.mask_not(mask)).collect(),
        };
        self.emit.jump(self.tiles.tile_end, &ended);
    }

    /// Ends all invocations of the tile.
    pub(super) fn end_all(&mut self) {
        self.state.deactivate(&mut self.emit, self.plan.shape.tile);
        self.end_tile();
    }

    // Between segments.

    /// Address of the spill area of the current tile.
    fn tile_spill_area(&mut self) -> Reg {
        let tile = self.plan.shape.tile;
        let size = self.plan.program.workgroup_size();
        let number = match self.tiles.position.index {
            Some(position) => self.emit.divided(position, tile.width()),
            None => {
                // Tiles are numbered in loop order: x / width + (y / rows + z × rows of tiles) × columns of tiles.
                let x = self.tiles.position.local[0].map(|x| self.emit.divided(x, tile.width()));
                let y = self.tiles.position.local[1].map(|y| self.emit.divided(y, tile.rows));
                let z = self.tiles.position.local[2].map(|z| self.emit.scaled(z, size[1] / tile.rows));
                let row = self.emit.sum(y, z).map(|row| self.emit.scaled(row, size[0] / tile.width()));
                self.emit.sum(row, x).unwrap_or_else(|| self.emit.immediate(0))
            }
        };
        self.tiles.position.number = Some(number);
        let offset = self.emit.scaled(number, self.plan.segments.bytes_per_tile as u32);
        let start = self.emit.load_scalar(at(Base::Context, service::SPILL_AREA), Width::Qword);
        self.emit.s2(Code::Add_r64_rm64, Width::Qword, start, offset)
    }

    /// Saves a value to its slot for other segments.
    fn keep(&mut self, value: ValueId) {
        if let Some(slot) = self.plan.segments.slots[value] {
            let regs = self.regs_as(value, value);
            self.write_slot(value, slot, &regs);
        }
    }

    fn write_slot(&mut self, value: ValueId, slot: i32, regs: &[Reg]) {
        if self.plan.shape.axes[value].is_of_group() {
            let address = at(Base::Context, service::GROUP_SLOTS);
            let group = self.emit.load_scalar(address, Width::Qword);
            let address = at(Base::Reg(group), slot);
            match self.emit.class(regs[0]) {
                Class::Scalar => self.emit.store_scalar(address, regs[0], Width::Qword),
                Class::Vector => {
                    let first = self.emit.first_lane(regs[0], true);
                    self.emit.store_scalar(address, first, Width::Qword);
                }
                Class::Mask => unreachable!("the same in all lanes is a scalar"),
            }
            return;
        }
        for (number, &reg) in regs.iter().enumerate() {
            let address = self.tiles.position.spill_address(slot + number as i32 * self.emit.bytes());
            match self.emit.class(reg) {
                Class::Scalar => self.emit.store_scalar(address, reg, Width::Qword),
                Class::Vector => self.emit.store(address, reg),
                Class::Mask => {
                    let vector = self.emit.mask_to_vector(reg);
                    self.emit.store(address, vector);
                }
            }
        }
    }

    /// Reloads a value that another segment has saved.
    fn read_slot(&mut self, value: ValueId, slot: i32) {
        let classes = self.plan.shape.classes(self.plan.program, value);
        let of_group = self.plan.shape.axes[value].is_of_group();
        let mut regs = Regs::new();
        for (number, &class) in classes.iter().enumerate() {
            let address = if of_group {
                let group = self.emit.load_scalar(at(Base::Context, service::GROUP_SLOTS), Width::Qword);
                at(Base::Reg(group), slot)
            } else {
                self.tiles.position.spill_address(slot + number as i32 * self.emit.bytes())
            };
            regs.push(match class {
                Class::Scalar => self.emit.load_scalar(address, Width::Qword),
                Class::Vector if of_group => {
                    let of_64 = self.plan.program.ty(value).bits() == 64;
                    self.emit.broadcast_from(address, of_64)
                }
                Class::Vector => self.emit.load(address),
                Class::Mask => {
                    let vector = self.emit.load(address);
                    self.emit.mask_from_vector(vector)
                }
            });
        }
        self.define(value, &regs);
        self.values.forget_with_scope(value);
    }

    /// Returns whether a value can be used here. Operands can; values that they were computed from may belong to
    /// another segment.
    pub(super) fn is_available(&self, value: ValueId) -> bool {
        self.plan.program.known(value).is_some()
            || self.values.contains(value)
            || self.plan.segments.slots[value].is_some()
            || self.plan.segments.rematerialized[value]
    }

    /// Splits an index into a value plus a constant, without wrapping.
    pub(super) fn addend(&self, index: ValueId) -> (ValueId, i32) {
        let program = self.plan.program;
        if let Def::Result(id, 0) = program.def(index)
            && let (Op::Pure(Pure::Add), &[a, b]) = (&program.inst(id).op, program.inst(id).operands.as_slice())
        {
            let (root, number) = if program.known(a).is_some() { (b, a) } else { (a, b) };
            if let Some(number) = program.known(number)
                && number.bits < 1 << 20
                && program.known(root).is_none()
                && self.is_available(root)
                && self.plan.ranges.of_value(root).high.saturating_add(number.bits as i64) <= i64::from(u32::MAX)
            {
                return (root, number.bits as i32);
            }
        }
        (index, 0)
    }

    /// Ensures that a value is in registers: rematerializes or reloads it.
    pub(super) fn materialize(&mut self, value: ValueId) {
        if self.values.contains(value) || self.plan.program.known(value).is_some() {
            return;
        }
        if let (true, Def::Result(id, _)) = (self.plan.segments.rematerialized[value], self.plan.program.def(value)) {
            self.inst(id);
            self.values.forget_with_scope(value);
        } else {
            let slot = self.plan.segments.slots[value].expect("a value is defined before it is used");
            self.read_slot(value, slot);
        }
    }

    /// Emits a block that contains barriers; returns the uniform values that it yields, if it is an arm.
    pub(super) fn group_block(&mut self, block: BlockId, owner: Option<InstId>) -> Option<Regs> {
        let program = self.plan.program;
        let insts = program.block(block).insts.clone();
        let mut pending: Vec<InstId> = Vec::new();
        for &id in &insts {
            let inst = program.inst(id);
            if !is_of_group(program, id) {
                pending.push(id);
                continue;
            }
            match &inst.op {
                Op::Barrier(Barrier::Workgroup) => self.flush(&mut pending),
                Op::Barrier(Barrier::Storage) => {
                    self.flush(&mut pending);
                    self.fence_streams();
                }
                Op::Broadcast => {
                    self.flush(&mut pending);
                    self.broadcast(id);
                }
                Op::Control(Control::If) => {
                    self.flush(&mut pending);
                    let condition = self.group_scalar(inst.operands[0]);
                    self.emit.test(condition);
                    let (then, other) = self.emit.branch(Code::Jne_rel32_64, false, false);
                    self.group_arms(id, &[then, other]);
                }
                Op::Control(Control::Switch(cases)) => {
                    self.flush(&mut pending);
                    let selector = self.group_scalar(inst.operands[0]);
                    let arms = self.emit.switch(selector, cases);
                    self.group_arms(id, &arms);
                }
                Op::Control(Control::Region(_)) => {
                    self.flush(&mut pending);
                    let start = self.emit.at;
                    self.group_arms(id, &[start]);
                }
                Op::Control(Control::Loop) => {
                    self.flush(&mut pending);
                    self.group_loop(id);
                }
                Op::Terminator(Terminator::Yield) => {
                    let owner = owner.expect("the body does not yield");
                    let results = program.inst(owner).results.clone();
                    return Some(self.pass_values(&mut pending, &results, &inst.operands));
                }
                Op::Terminator(Terminator::Break) => {
                    let target = self.loops.innermost().inst;
                    let results = program.inst(target).results.clone();
                    let arguments = self.pass_values(&mut pending, &results, &inst.operands);
                    let exit = self.loops.innermost().exit;
                    self.emit.jump(exit, &arguments);
                }
                Op::Terminator(Terminator::Continue) => {
                    let target = self.loops.innermost().inst;
                    let body = program.inst(target).blocks[0];
                    let params = program.block(body).params.clone();
                    let arguments = self.pass_values(&mut pending, &params, &inst.operands);
                    self.state = State::default();
                    self.poll(target, None);
                    let header = self.loops.innermost().header;
                    self.emit.jump(header, &arguments);
                }
                Op::Terminator(Terminator::Return | Terminator::Trap) => {
                    if inst.op == Terminator::Trap {
                        pending.push(id);
                    }
                    self.flush(&mut pending);
                    self.emit.jump(self.tiles.group_end, &[]);
                }
                // Collected for a segment.
                Op::Pure(_)
                | Op::PerInvocation(_)
                | Op::PerGroup(_)
                | Op::Load(_)
                | Op::Store(_)
                | Op::Atomic(..)
                | Op::CompareExchange(_)
                | Op::Subgroup(_)
                | Op::Print(_) => pending.push(id),
            }
        }
        None
    }

    /// Emits the pending instructions as a segment.
    fn flush(&mut self, pending: &mut Vec<InstId>) {
        let insts = std::mem::take(pending);
        self.hoist(&insts, Axes::is_of_group);
        let spilled: Vec<ValueId> = insts
            .iter()
            .filter(|id| !self.tiles.hoisted[**id])
            .flat_map(|id| self.plan.program.inst(*id).results.iter().copied())
            .filter(|value| self.plan.segments.slots[*value].is_some())
            .collect();
        self.segment(&insts, &spilled);
    }

    /// A value that is uniform in the workgroup, outside of segments.
    fn group_scalar(&mut self, value: ValueId) -> Reg {
        let scope = self.values.enter_scope();
        let reg = self.scalar(value, 0);
        self.values.leave_scope(scope);
        reg
    }

    /// Emits the pending segment and passes values to results or parameters: divergent ones through memory, uniform
    /// ones in the returned registers.
    fn pass_values(&mut self, pending: &mut Vec<InstId>, to: &[ValueId], from: &[ValueId]) -> Regs {
        self.flush(pending);
        let moves: Vec<(ValueId, ValueId)> = to
            .iter()
            .copied()
            .zip(from.iter().copied())
            .filter(|(to, _)| !self.plan.shape.axes[*to].is_of_group())
            .filter(|(to, from)| {
                self.plan.shape.axes[*from].is_of_group()
                    || self.plan.segments.slots[*to] != self.plan.segments.slots[*from]
            })
            .collect();
        if !moves.is_empty() {
            self.move_segment(&moves);
        }
        let scope = self.values.enter_scope();
        let mut regs = Regs::new();
        for (&to, &from) in to.iter().zip(from) {
            if self.plan.shape.axes[to].is_of_group() {
                regs.extend(self.regs_as(to, from));
            }
        }
        self.values.leave_scope(scope);
        regs
    }

    /// Emits a segment that copies values of all tiles in parallel.
    fn move_segment(&mut self, moves: &[(ValueId, ValueId)]) {
        let outer = self.emit.block(false);
        let scope = self.values.enter_scope();
        let (outer_position, loops) = self.open_tiles();
        // All reads precede the writes.
        let values: Vec<(ValueId, Regs)> = moves.iter().map(|&(to, from)| (to, self.regs_as(to, from))).collect();
        for (to, regs) in values {
            let slot = self.plan.segments.slots[to].expect("results of control flow around barriers have slots");
            self.write_slot(to, slot, &regs);
        }
        TileLoop::close_all(&mut self.emit, loops, outer);
        self.tiles.position = outer_position;
        self.values.leave_scope(scope);
        self.emit.at = outer;
    }

    /// Emits alternative blocks that contain barriers.
    fn group_arms(&mut self, id: InstId, arms: &[machine::BlockId]) {
        let program = self.plan.program;
        let inst = program.inst(id);
        let join = self.emit.block(false);
        self.define_shared(join, &inst.results);
        for (&arm, &block) in arms.iter().zip(&inst.blocks) {
            self.emit.at = arm;
            let scope = self.values.enter_scope();
            if let Some(arguments) = self.group_block(block, Some(id)) {
                self.emit.jump(join, &arguments);
            }
            self.values.leave_scope(scope);
        }
        self.emit.at = join;
    }

    /// Adds block parameters for the values that are uniform in the workgroup.
    fn define_shared(&mut self, block: machine::BlockId, values: &[ValueId]) {
        for &value in values {
            if self.plan.shape.axes[value].is_of_group() {
                let regs: Regs = self
                    .plan
                    .shape
                    .classes(self.plan.program, value)
                    .into_iter()
                    .map(|class| self.emit.param(block, class))
                    .collect();
                self.define(value, &regs);
            }
        }
    }

    fn group_loop(&mut self, id: InstId) {
        let program = self.plan.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let params = program.block(body).params.clone();
        let entry = self.pass_values(&mut Vec::new(), &params, &inst.operands);
        let (header, exit) = (self.emit.block(false), self.emit.block(false));
        self.define_shared(header, &params);
        self.define_shared(exit, &inst.results);
        self.emit.jump(header, &entry);
        self.emit.at = header;
        self.loops.enclosing.push(EnclosingLoop::together(id, header, exit));
        let scope = self.values.enter_scope();
        self.group_block(body, Some(id));
        self.values.leave_scope(scope);
        self.loops.enclosing.pop();
        self.emit.at = exit;
    }

    /// Value of the first invocation of the workgroup, or 0 if it has ended.
    fn broadcast(&mut self, id: InstId) {
        let program = self.plan.program;
        let (from, to) = (program.inst(id).operands[0], program.inst(id).results[0]);
        let scope = self.values.enter_scope();
        let start = self.emit.load_scalar(at(Base::Context, service::SPILL_AREA), Width::Qword);
        // Position of the first tile.
        let zero = self.emit.immediate(0);
        let index = (self.plan.shape.tile.layout != Layout::Rows).then_some(zero);
        let first = TilePosition { index, number: Some(zero), spill_area: Some(start), ..TilePosition::default() };
        let outer = std::mem::replace(&mut self.tiles.position, first);
        let regs = self.first_of_tile(from, to);
        let regs = match self.plan.segments.ended_slot {
            None => regs,
            Some(slot) => {
                let address = self.tiles.position.spill_address(slot);
                let ended = self.emit.load_scalar(address, Width::Dword);
                self.emit.zero_if(ended, &regs)
            }
        };
        self.tiles.position = outer;
        self.values.leave_scope(scope);
        self.define(to, &regs);
    }

    /// Value of the first lane of a tile, as a uniform value.
    pub(super) fn first_of_tile(&mut self, from: ValueId, to: ValueId) -> Regs {
        let class = self.plan.shape.classes(self.plan.program, to)[0];
        if !self.plan.shape.axes[from].intersects(Axes::LANE) {
            return Regs::from_slice(&self.regs_as(to, from)[..1]);
        }
        let of_64 = self.plan.program.ty(from).bits() == 64;
        let first = if self.plan.program.ty(from) == Type::Bool {
            let mask = self.mask(from, 0);
            let bits = self.emit.mask_bits(mask);
            self.emit.s1i(Code::And_rm32_imm32, Width::Dword, bits, machine::Operand::Dword(1))
        } else {
            let vector = self.vector(from, 0, 0);
            self.emit.first_lane(vector, of_64)
        };
        let reg = if class == Class::Vector { self.emit.broadcast(first, of_64) } else { first };
        Regs::from_slice(&[reg])
    }
}

/// An open tile loop.
struct TileLoop {
    header: machine::BlockId,
    counter: Reg,
    /// Upper bound in a register, if it is not constant.
    found: Option<Reg>,
    end: u32,
    step: u32,
}

impl TileLoop {
    /// Opens a loop with a constant bound, or one in a register.
    fn open(emit: &mut Emit, found: Option<Reg>, end: u32, step: u32) -> TileLoop {
        let zero = emit.immediate(0);
        let header = emit.block(false);
        let counter = emit.param(header, Class::Scalar);
        emit.jump(header, &[zero]);
        emit.at = header;
        TileLoop { header, counter, found, end, step }
    }

    /// Opens a loop for each (end, step) with more than one trip; returns the counter of each dimension, and the loops,
    /// innermost last.
    fn open_all<const N: usize>(emit: &mut Emit, dimensions: [(u32, u32); N]) -> ([Option<Reg>; N], Vec<TileLoop>) {
        let mut counters = [None; N];
        let mut loops = Vec::new();
        for (dimension, &(end, step)) in dimensions.iter().enumerate().rev().filter(|(_, (end, step))| end > step) {
            let opened = TileLoop::open(emit, None, end, step);
            counters[dimension] = Some(opened.counter);
            loops.push(opened);
        }
        (counters, loops)
    }

    /// Closes loops, the innermost first, and jumps to `outer`.
    fn close_all(emit: &mut Emit, loops: Vec<TileLoop>, outer: machine::BlockId) {
        for TileLoop { header, counter, found, end, step } in loops.into_iter().rev() {
            let next = emit.lea(at(Base::Reg(counter), step as i32), Width::Dword);
            match found {
                Some(end) => emit.cmp(next, end, Width::Dword),
                None => emit.cmp_immediate(next, end as i32, Width::Dword),
            }
            emit.jump_if(Code::Jb_rel32_64, header, &[next]);
        }
        emit.jump(outer, &[]);
    }
}
