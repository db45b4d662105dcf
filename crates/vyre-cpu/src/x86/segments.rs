//! Workgroups whose invocations wait for each other: between two barriers is a segment, which all tiles execute one after the other.
//! What they need in a later one is kept in memory, or computed again.

use iced_x86::Code;
use vyre_foundation::analysis::exits_of;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Space, Type, ValueId};

use super::emit::{Regs, at};
use super::lower::{Cached, EnclosingLoop, Lower, Mask, Place, State, waits};
use super::machine::{self, Base, Class, Reg, Width};
use super::service::{self, Site};
use super::shape::{Axes, Layout};

impl Lower<'_> {
    /// Executes instructions of a block for all tiles of a workgroup. Values of the second list are kept for other segments.
    pub(super) fn segment(&mut self, insts: &[InstId], kept: &[ValueId]) {
        // What was computed outside is done.
        if insts.iter().all(|id| self.hoisted[*id]) {
            return;
        }
        let outer = self.emit.block(false);
        self.tile_end = self.emit.block(false);
        if self.ended_slot.is_some() {
            for _ in 0..self.shape.tile.packs() {
                self.emit.param(self.tile_end, self.emit.mask_class());
            }
        }
        let mark = self.scope();
        // Loops around segments are no business of the lanes in them.
        let outer_loops = std::mem::take(&mut self.loops);
        let left = self.ended_slot.is_some().then(|| {
            let group = self.emit.load_scalar(at(Base::Context, service::GROUP_SLOTS), Width::Qword);
            let zero = self.emit.immediate(0);
            self.emit.store_scalar(at(Base::Reg(group), self.left_slot), zero, Width::Qword);
            at(Base::Reg(group), self.left_slot)
        });
        let (outer_place, steps) = self.open_tiles();
        if self.has_private() && !self.split {
            self.service(Site::ClearTile);
        }
        self.run(insts, kept);
        self.emit.at = self.tile_end;
        if let Some(slot) = self.ended_slot {
            let ended = self.emit.function.blocks[self.tile_end.0 as usize].params.clone();
            for (pack, &mask) in ended.iter().enumerate() {
                let vector = self.emit.mask_to_vector(mask);
                let address = self.kept_address(slot + pack as i32 * self.emit.bytes());
                self.emit.store(address, vector);
            }
            self.emit.test_all(&ended);
            let some_left = self.emit.set(Code::Setae_rm8);
            let left = left.expect("kept like the lanes that have ended");
            self.emit.update(Code::Or_rm32_r32, left, some_left, Width::Dword, false);
        }
        self.next_tile(steps, outer);
        self.place = outer_place;
        self.loops = outer_loops;
        self.state = State::default();
        self.leave(mark);
        for &id in insts.iter().filter(|id| !self.hoisted[**id]) {
            for &result in &self.program.insts[id].results {
                self.held[result] = None;
            }
        }
        self.emit.at = outer;
        if let Some(left) = left {
            // If everybody has ended, what they would have decided is not known any more.
            let left = self.emit.load_scalar(left, Width::Dword);
            self.emit.test(left);
            self.emit.skip_to(self.group_end, Code::Je_rel32_64);
        }
    }

    /// Opens the loops over the tiles of a workgroup, or of all if they are merged; gives where the code was before.
    fn open_tiles(&mut self) -> (Place, Vec<TileLoop>) {
        let (tile, size) = (self.shape.tile, self.program.workgroup_size);
        let (place, steps) = match tile.layout {
            Layout::Rows => {
                let (local, steps) = self.tile_loops(&[(size[0], tile.width()), (size[1], tile.rows), (size[2], 1)]);
                (Place { local: [local[0], local[1], local[2]], ..Place::default() }, steps)
            }
            Layout::Linear => {
                let (local, steps) = self.tile_loops(&[(size.iter().product(), tile.width())]);
                let position = local[0].unwrap_or_else(|| self.emit.immediate(0));
                (Place { position: Some(position), ..Place::default() }, steps)
            }
            Layout::Merged => {
                let end = self.emit.load_scalar(at(Base::Context, service::POSITIONS), Width::Dword);
                let step = self.tile_loop(Some(end), 0, tile.width());
                (Place { position: Some(step.counter), end: Some(end), ..Place::default() }, vec![step])
            }
        };
        let outer = std::mem::replace(&mut self.place, place);
        if self.split {
            self.place.kept = Some(self.kept_memory());
        }
        (outer, steps)
    }

    /// Opens a loop for each (end, step) that takes more than one; gives the counters, innermost first.
    fn tile_loops(&mut self, dimensions: &[(u32, u32)]) -> (Vec<Option<Reg>>, Vec<TileLoop>) {
        let mut counters = vec![None; dimensions.len()];
        let mut loops = Vec::new();
        for (position, &(end, step)) in dimensions.iter().enumerate().rev() {
            if end <= step {
                continue;
            }
            loops.push(self.tile_loop(None, end, step));
            counters[position] = loops.last().map(|step| step.counter);
        }
        (counters, loops)
    }

    /// Opens a loop to an end that the code knows, or to a known one.
    fn tile_loop(&mut self, found: Option<Reg>, end: u32, step: u32) -> TileLoop {
        let zero = self.emit.immediate(0);
        let header = self.emit.block(false);
        let counter = self.emit.param(header, Class::Scalar);
        self.emit.jump(header, &[zero]);
        self.emit.at = header;
        TileLoop { header, counter, found, end, step }
    }

    fn next_tile(&mut self, mut loops: Vec<TileLoop>, outer: machine::BlockId) {
        while let Some(TileLoop { header, counter, found, end, step }) = loops.pop() {
            let next = self.emit.lea(at(Base::Reg(counter), step as i32), Width::Dword);
            match found {
                Some(end) => self.emit.cmp(next, end, Width::Dword),
                None => self.emit.cmp_immediate(next, end as i32, Width::Dword),
            }
            self.emit.jump_if(Code::Jb_rel32_64, header, &[next]);
        }
        self.emit.jump(outer, &[]);
    }

    /// Executes instructions for a tile.
    fn run(&mut self, insts: &[InstId], kept: &[ValueId]) {
        let tile = self.shape.tile;
        let size: u32 = self.program.workgroup_size.iter().product();
        if let Some(end) = self.place.end {
            self.run_until(insts, kept, end);
        } else if tile.layout == Layout::Linear && !size.is_multiple_of(tile.width()) {
            let end = self.emit.immediate(u64::from(size));
            self.run_until(insts, kept, end);
        } else {
            self.run_with(insts, kept, None);
        }
    }

    /// Executes instructions for a tile of which only the positions below an end exist.
    fn run_until(&mut self, insts: &[InstId], kept: &[ValueId], end: Reg) {
        let tile = self.shape.tile;
        let position = self.place.position.expect("only runs have incomplete tiles");
        let size: u32 = self.program.workgroup_size.iter().product();
        if tile.layout == Layout::Merged || size >= tile.width() {
            let last = self.emit.lea(at(Base::Reg(position), tile.width() as i32), Width::Qword);
            self.emit.cmp(last, end, Width::Qword);
            let (full, partial) = self.emit.branch(Code::Jbe_rel32_64, false, true);
            self.emit.at = full;
            self.run_with(insts, kept, None);
            self.emit.at = partial;
        }
        let (position, end) = (self.emit.broadcast(position, false), self.emit.broadcast(end, false));
        let masks = (0..tile.packs()).map(|pack| {
            let iota = self.emit.iota(pack * tile.lanes);
            let lanes = self.emit.v2(super::emit::ADD_D, position, iota);
            self.less(lanes, end)
        });
        let packs = masks.collect();
        self.run_with(insts, kept, Some(Mask { packs, maybe_empty: false }));
    }

    fn run_with(&mut self, insts: &[InstId], kept: &[ValueId], mask: Option<Mask>) {
        let mark = self.scope();
        self.state = State { mask, variables: Regs::new() };
        if let Some(slot) = self.ended_slot {
            let bytes = self.emit.bytes();
            let there = self.state.mask.take();
            let packs = (0..self.shape.tile.packs() as usize).map(|pack| {
                let vector = self.emit.load(self.kept_address(slot + pack as i32 * bytes));
                let ended = self.emit.mask_from_vector(vector);
                match &there {
                    Some(there) => self.emit.mask_and_not(ended, there.packs[pack]),
                    None => self.emit.mask_not(ended),
                }
            });
            let packs: Regs = packs.collect();
            self.if_nobody(&packs, Self::end_all);
            self.state.mask = Some(Mask { packs, maybe_empty: false });
        }
        let falls_through = self.insts(insts);
        if self.emit.is_open() {
            if let Some(mask) = self.state.mask.clone().filter(|mask| mask.maybe_empty) {
                // Lanes that have ended say nothing about what the workgroup shares.
                self.if_nobody(&mask.packs, Self::end_all);
            }
            if falls_through {
                for &value in kept {
                    self.keep(value);
                }
            }
            self.end_tile();
        }
        self.leave(mark);
    }

    /// Ends the tile with the lanes that are active now; the others have ended.
    fn end_tile(&mut self) {
        let ended: Regs = match (&self.ended_slot, &self.state.mask) {
            (None, _) => Regs::new(),
            (Some(_), None) => {
                let none = self.emit.mask_constant(false);
                (0..self.shape.tile.packs()).map(|_| none).collect()
            }
            (Some(_), Some(mask)) => mask.packs.clone().into_iter().map(|mask| self.emit.mask_not(mask)).collect(),
        };
        self.emit.jump(self.tile_end, &ended);
    }

    /// Ends all invocations of the tile.
    pub(super) fn end_all(&mut self) {
        let none = self.emit.mask_constant(false);
        self.state.mask = Some(Mask { packs: (0..self.shape.tile.packs()).map(|_| none).collect(), maybe_empty: true });
        self.end_tile();
    }

    // Between segments.

    /// Finds which values are needed in another segment than their own, and gives them slots.
    pub(super) fn plan_segments(&mut self) {
        let program = self.program;
        self.again = cheap_values(program, &self.shape.written);
        let of = SecondaryMap::with_capacity(program.values.len(), None);
        let last = SecondaryMap::with_capacity(program.values.len(), 0);
        let mut plan = Segments { program, again: &self.again, current: 0, of, last, crossing: Vec::new() };
        plan.block(program.body);
        let Segments { of, last, crossing, .. } = plan;
        // A value that is computed outside of segments is there for all of them.
        for value in crossing {
            if self.slots[value].is_none() && !self.again[value] {
                self.give_slot(value);
            }
        }
        program.walk(|id, _| self.share_slots(id, &of, &last));
        let mut ends = false;
        program.walk(|inst, depth| {
            ends |= depth > 0 && matches!(program.insts[inst].op, Op::Return | Op::Trap);
        });
        if ends {
            self.left_slot = self.bytes_per_group;
            self.bytes_per_group += 8;
            self.ended_slot = Some(self.bytes_per_tile);
            self.bytes_per_tile += self.shape.tile.packs() as i32 * self.emit.bytes();
        }
    }

    fn give_slot(&mut self, value: ValueId) {
        let axes = self.shape.axes[value];
        if axes.is_of_group() {
            self.slots[value] = Some(self.bytes_per_group);
            self.bytes_per_group += 8;
            return;
        }
        // Linear values are kept with their first lanes.
        let regs = self.classes(value).len() as i32;
        self.slots[value] = Some(self.bytes_per_tile);
        self.bytes_per_tile += regs * self.emit.bytes();
    }

    /// Puts what a loop around barriers continues with where its parameters are, if nobody needs a parameter once its next value
    /// is known: then nothing has to be copied.
    fn share_slots(
        &mut self,
        id: InstId,
        of: &SecondaryMap<ValueId, Option<usize>>,
        last: &SecondaryMap<ValueId, usize>,
    ) {
        let program = self.program;
        let inst = &program.insts[id];
        let Some(&body) = inst.blocks.first().filter(|&&body| inst.op == Op::Loop && has_wait(program, body)) else {
            return;
        };
        let &[next] = exits_of(program, body).continues.as_slice() else { return };
        let next = &program.insts[next].operands;
        for (&param, &value) in program.blocks[body].params.iter().zip(next) {
            let (axes, of_value) = (self.shape.axes[param], self.shape.axes[value]);
            let alike = axes.within_tile() == of_value.within_tile() && self.classes(param) == self.classes(value);
            let once = next.iter().filter(|&&other| other == value).count() == 1;
            let known = of[value].is_some_and(|segment| last[param] <= segment);
            // What comes from outside the loop is needed in the next trip again, and so is another parameter.
            let new =
                matches!(program.values[value].def, Def::Result(inst, _) if program.blocks[body].insts.contains(&inst));
            if alike
                && once
                && known
                && new
                && !axes.is_of_group()
                && !of_value.is_of_group()
                && self.slots[value].is_some()
            {
                self.slots[value] = self.slots[param];
            }
        }
    }

    /// Where the current tile keeps things.
    fn kept_memory(&mut self) -> Reg {
        let tile = self.shape.tile;
        let size = self.program.workgroup_size;
        let number = match self.place.position {
            Some(position) => self.divided(position, tile.width()),
            None => {
                // Tiles are numbered as they are gone through: x / width + (y / rows + z × rows of tiles) × columns of tiles.
                let x = self.place.local[0].map(|x| self.divided(x, tile.width()));
                let y = self.place.local[1].map(|y| self.divided(y, tile.rows));
                let z = self.place.local[2].map(|z| self.scaled(z, size[1] / tile.rows));
                let row = self.sum(y, z).map(|row| self.scaled(row, size[0] / tile.width()));
                self.sum(row, x).unwrap_or_else(|| self.emit.immediate(0))
            }
        };
        self.place.number = Some(number);
        let offset = self.scaled(number, self.bytes_per_tile as u32);
        let start = self.emit.load_scalar(at(Base::Context, service::KEPT), Width::Qword);
        self.emit.s2(Code::Add_r64_rm64, Width::Qword, start, offset)
    }

    /// The sum of what there is.
    pub(super) fn sum(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.emit.s2(Code::Add_r32_rm32, Width::Dword, a, b)),
            (one, other) => one.or(other),
        }
    }

    fn divided(&mut self, a: Reg, by: u32) -> Reg {
        if by == 1 {
            return a;
        }
        if by.is_power_of_two() {
            let shift = machine::Operand::Byte(by.trailing_zeros() as i8);
            return self.emit.s1i(Code::Shr_rm32_imm8, Width::Dword, a, shift);
        }
        let by = self.emit.immediate(u64::from(by));
        self.quotient(a, by, Width::Dword, false, true)
    }

    pub(super) fn scaled(&mut self, a: Reg, by: u32) -> Reg {
        if by == 1 {
            return a;
        }
        let sources = [machine::Operand::Use(a, Width::Dword), machine::Operand::Dword(by as i32)];
        self.emit.make(Code::Imul_r32_rm32_imm32, Class::Scalar, Width::Dword, &sources)
    }

    fn kept_address(&self, offset: i32) -> machine::Address {
        at(Base::Reg(self.place.kept.expect("tiles keep something")), offset)
    }

    /// Writes a value to where other segments find it.
    fn keep(&mut self, value: ValueId) {
        if let Some(slot) = self.slots[value] {
            let regs = self.regs_for(value, value);
            self.write_slot(value, slot, &regs);
        }
    }

    fn write_slot(&mut self, value: ValueId, slot: i32, regs: &[Reg]) {
        if self.shape.axes[value].is_of_group() {
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
            let address = self.kept_address(slot + number as i32 * self.emit.bytes());
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

    /// Reads a value from where another segment has put it.
    fn read_slot(&mut self, value: ValueId, slot: i32) {
        let classes = self.classes(value);
        let of_group = self.shape.axes[value].is_of_group();
        let mut regs = Regs::new();
        for (number, &class) in classes.iter().enumerate() {
            let address = if of_group {
                let group = self.emit.load_scalar(at(Base::Context, service::GROUP_SLOTS), Width::Qword);
                at(Base::Reg(group), slot)
            } else {
                self.kept_address(slot + number as i32 * self.emit.bytes())
            };
            regs.push(match class {
                Class::Scalar => self.emit.load_scalar(address, Width::Qword),
                Class::Vector if of_group => {
                    let of_64 = self.program.ty(value).bits() == 64;
                    self.emit.broadcast_from(address, of_64)
                }
                Class::Vector => self.emit.load(address),
                Class::Mask => {
                    let vector = self.emit.load(address);
                    self.emit.mask_from_vector(vector)
                }
            });
        }
        self.hold(value, &regs);
        self.log.push(Cached::Kept(value));
    }

    /// Whether a value can be used here. All operands can; what these were computed from may belong to another segment.
    pub(super) fn is_there(&self, value: ValueId) -> bool {
        self.program.known(value).is_some()
            || self.held[value].is_some()
            || self.slots[value].is_some()
            || self.again[value]
    }

    /// An index as another value plus a number, which do not wrap.
    pub(super) fn addend(&self, index: ValueId) -> (ValueId, i32) {
        let program = self.program;
        if let Def::Result(id, 0) = program.values[index].def
            && let (Op::Add, &[a, b]) = (&program.insts[id].op, program.insts[id].operands.as_slice())
        {
            let (root, number) = if program.known(a).is_some() { (b, a) } else { (a, b) };
            if let Some(number) = program.known(number)
                && number.bits < 1 << 20
                && program.known(root).is_none()
                && self.is_there(root)
                && self.ranges.of_value(root).high.saturating_add(number.bits as i64) <= i64::from(u32::MAX)
            {
                return (root, number.bits as i32);
            }
        }
        (index, 0)
    }

    /// Makes sure that a value is in registers.
    pub(super) fn fetch(&mut self, value: ValueId) {
        if self.held[value].is_some() || self.program.known(value).is_some() {
            return;
        }
        if let (true, Def::Result(id, _)) = (self.again[value], self.program.values[value].def) {
            self.inst(id);
            self.log.push(Cached::Kept(value));
        } else {
            let slot = self.slots[value].expect("a value is defined before it is used");
            self.read_slot(value, slot);
        }
    }

    /// Executes a block of which parts wait for the whole workgroup; gives what it yields that is not in memory, if it is an arm.
    pub(super) fn group_block(&mut self, block: BlockId, owner: Option<InstId>) -> Option<Regs> {
        let program = self.program;
        let insts = program.blocks[block].insts.clone();
        let mut pending: Vec<InstId> = Vec::new();
        for &id in &insts {
            let inst = &program.insts[id];
            if !is_of_group(program, id) {
                pending.push(id);
                continue;
            }
            match &inst.op {
                Op::WorkgroupBarrier => self.flush(&mut pending),
                Op::StorageBarrier => {
                    self.flush(&mut pending);
                    self.fence_streams();
                }
                Op::Broadcast => {
                    self.flush(&mut pending);
                    self.broadcast(id);
                }
                Op::If => {
                    self.flush(&mut pending);
                    let condition = self.group_scalar(inst.operands[0]);
                    self.emit.test(condition);
                    let (then, other) = self.emit.branch(Code::Jne_rel32_64, false, false);
                    self.group_arms(id, &[then, other]);
                }
                Op::Switch(cases) => {
                    self.flush(&mut pending);
                    let selector = self.group_scalar(inst.operands[0]);
                    let arms = self.emit.switch(selector, cases);
                    self.group_arms(id, &arms);
                }
                Op::Region(_) => {
                    self.flush(&mut pending);
                    let start = self.emit.at;
                    self.group_arms(id, &[start]);
                }
                Op::Loop => {
                    self.flush(&mut pending);
                    self.group_loop(id);
                }
                Op::Yield => {
                    let owner = owner.expect("the body does not yield");
                    let results = program.insts[owner].results.clone();
                    return Some(self.hand_over(&mut pending, &results, &inst.operands));
                }
                Op::Break => {
                    let target = self.group_loops().inst;
                    let results = program.insts[target].results.clone();
                    let arguments = self.hand_over(&mut pending, &results, &inst.operands);
                    let exit = self.group_loops().exit;
                    self.emit.jump(exit, &arguments);
                }
                Op::Continue => {
                    let target = self.group_loops().inst;
                    let body = program.insts[target].blocks[0];
                    let params = program.blocks[body].params.clone();
                    let arguments = self.hand_over(&mut pending, &params, &inst.operands);
                    self.state = State::default();
                    self.poll(target, None);
                    let header = self.group_loops().header;
                    self.emit.jump(header, &arguments);
                }
                Op::Return | Op::Trap => {
                    if inst.op == Op::Trap {
                        pending.push(id);
                    }
                    self.flush(&mut pending);
                    self.emit.jump(self.group_end, &[]);
                }
                op => unreachable!("`{}` does not wait", op.row().name),
            }
        }
        None
    }

    fn group_loops(&self) -> &EnclosingLoop {
        self.loops.last().expect("validated: there is a loop around this")
    }

    /// Executes what has piled up.
    fn flush(&mut self, pending: &mut Vec<InstId>) {
        let insts = std::mem::take(pending);
        self.hoist(&insts, Axes::is_of_group);
        let kept: Vec<ValueId> = insts
            .iter()
            .filter(|id| !self.hoisted[**id])
            .flat_map(|id| self.program.insts[*id].results.iter().copied())
            .filter(|value| self.slots[*value].is_some())
            .collect();
        self.segment(&insts, &kept);
    }

    /// A value that is the same for the workgroup, outside of segments.
    fn group_scalar(&mut self, value: ValueId) -> Reg {
        let mark = self.scope();
        let reg = self.scalar(value, 0);
        self.leave(mark);
        reg
    }

    /// Executes what has piled up and hands values to results or parameters: those that differ between invocations through
    /// memory, the others as the registers that are returned.
    fn hand_over(&mut self, pending: &mut Vec<InstId>, to: &[ValueId], from: &[ValueId]) -> Regs {
        self.flush(pending);
        let moves: Vec<(ValueId, ValueId)> = to
            .iter()
            .copied()
            .zip(from.iter().copied())
            .filter(|(to, _)| !self.shape.axes[*to].is_of_group())
            .filter(|(to, from)| self.shape.axes[*from].is_of_group() || self.slots[*to] != self.slots[*from])
            .collect();
        if !moves.is_empty() {
            self.move_segment(&moves);
        }
        let mark = self.scope();
        let mut regs = Regs::new();
        for (&to, &from) in to.iter().zip(from) {
            if self.shape.axes[to].is_of_group() {
                regs.extend(self.regs_for(to, from));
            }
        }
        self.leave(mark);
        regs
    }

    /// Copies values of all tiles at once.
    fn move_segment(&mut self, moves: &[(ValueId, ValueId)]) {
        let outer = self.emit.block(false);
        let mark = self.scope();
        let (outer_place, steps) = self.open_tiles();
        // All are read before any is written.
        let values: Vec<(ValueId, Regs)> = moves.iter().map(|&(to, from)| (to, self.regs_for(to, from))).collect();
        for (to, regs) in values {
            let slot = self.slots[to].expect("results of control flow around barriers have slots");
            self.write_slot(to, slot, &regs);
        }
        self.next_tile(steps, outer);
        self.place = outer_place;
        self.leave(mark);
        self.emit.at = outer;
    }

    /// Executes one of several blocks.
    fn group_arms(&mut self, id: InstId, arms: &[machine::BlockId]) {
        let program = self.program;
        let inst = &program.insts[id];
        let join = self.emit.block(false);
        self.hold_shared(join, &inst.results);
        for (&arm, &block) in arms.iter().zip(&inst.blocks) {
            self.emit.at = arm;
            let mark = self.scope();
            if let Some(arguments) = self.group_block(block, Some(id)) {
                self.emit.jump(join, &arguments);
            }
            self.leave(mark);
        }
        self.emit.at = join;
    }

    /// Gives a block parameters for those of some values that are the same for the workgroup.
    fn hold_shared(&mut self, block: machine::BlockId, values: &[ValueId]) {
        for &value in values {
            if self.shape.axes[value].is_of_group() {
                let regs: Regs = self.classes(value).into_iter().map(|class| self.emit.param(block, class)).collect();
                self.hold(value, &regs);
            }
        }
    }

    fn group_loop(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let params = program.blocks[body].params.clone();
        let entry = self.hand_over(&mut Vec::new(), &params, &inst.operands);
        let (header, exit) = (self.emit.block(false), self.emit.block(false));
        self.hold_shared(header, &params);
        self.hold_shared(exit, &inst.results);
        self.emit.jump(header, &entry);
        self.emit.at = header;
        self.loops.push(EnclosingLoop::together(id, header, exit));
        let mark = self.scope();
        self.group_block(body, Some(id));
        self.leave(mark);
        self.loops.pop();
        self.emit.at = exit;
    }

    /// What the first invocation of the workgroup has, or 0 if it has ended.
    fn broadcast(&mut self, id: InstId) {
        let program = self.program;
        let (from, to) = (program.insts[id].operands[0], program.insts[id].results[0]);
        let mark = self.scope();
        let start = self.emit.load_scalar(at(Base::Context, service::KEPT), Width::Qword);
        // The first tile.
        let zero = self.emit.immediate(0);
        let position = (self.shape.tile.layout != Layout::Rows).then_some(zero);
        let place = Place { position, number: Some(zero), kept: Some(start), ..Place::default() };
        let outer = std::mem::replace(&mut self.place, place);
        let regs = self.first_of_tile(from, to);
        let regs = match self.ended_slot {
            None => regs,
            Some(slot) => {
                let address = self.kept_address(slot);
                let ended = self.emit.load_scalar(address, Width::Dword);
                self.zero_if(ended, &regs)
            }
        };
        self.place = outer;
        self.leave(mark);
        self.hold(to, &regs);
    }

    /// The value of the first lane of a tile as one that is the same everywhere.
    pub(super) fn first_of_tile(&mut self, from: ValueId, to: ValueId) -> Regs {
        let class = self.classes(to)[0];
        if !self.shape.axes[from].meets(Axes::LANE) {
            return Regs::from_slice(&self.regs_for(to, from)[..1]);
        }
        let of_64 = self.program.ty(from).bits() == 64;
        let first = if self.program.ty(from) == Type::Bool {
            let mask = self.mask_of(from, 0);
            let bits = self.emit.mask_bits(mask);
            self.emit.s1i(Code::And_rm32_imm32, Width::Dword, bits, machine::Operand::Dword(1))
        } else {
            let vector = self.vector(from, 0, 0);
            self.emit.first_lane(vector, of_64)
        };
        let reg = if class == Class::Vector { self.emit.broadcast(first, of_64) } else { first };
        Regs::from_slice(&[reg])
    }

    /// The registers, or zeros if a scalar is not 0.
    pub(super) fn zero_if(&mut self, ended: Reg, regs: &[Reg]) -> Regs {
        let chosen = regs.iter().map(|&reg| {
            let zero = self.zero_of(self.emit.class(reg));
            self.emit.test(ended);
            self.emit.either(Code::Jne_rel32_64, true, zero, reg)
        });
        chosen.collect()
    }

    pub(super) fn zero_of(&mut self, class: Class) -> Reg {
        match class {
            Class::Scalar => self.emit.immediate(0),
            Class::Vector => self.emit.zero(),
            Class::Mask => self.emit.mask_constant(false),
        }
    }
}

struct TileLoop {
    header: machine::BlockId,
    counter: Reg,
    /// The end, if it is not known before.
    found: Option<Reg>,
    end: u32,
    step: u32,
}

/// Whether an instruction is executed for a workgroup as a whole: it waits, there is something in it that waits, or it leaves
/// something in which something waits.
fn is_of_group(program: &Program, id: InstId) -> bool {
    let inst = &program.insts[id];
    waits(&inst.op)
        || inst.op.is_terminator()
        || inst.blocks.iter().any(|&block| has_wait(program, block))
        || (inst.op != Op::Loop && leaves_group_loop(program, id))
}

fn has_wait(program: &Program, block: BlockId) -> bool {
    program.contains(block, waits)
}

/// Whether a loop around this instruction is left or continued from inside it. The caller only asks where the innermost loop
/// is one of the workgroup.
fn leaves_group_loop(program: &Program, id: InstId) -> bool {
    program.insts[id].blocks.iter().any(|&block| {
        let exits = exits_of(program, block);
        !exits.breaks.is_empty() || !exits.continues.is_empty()
    })
}

/// Values that take an instruction or two to compute from where the invocation stands and what the workgroup shares.
fn cheap_values(program: &Program, written: &SecondaryMap<MemId, bool>) -> SecondaryMap<ValueId, bool> {
    /// How many instructions in a row are computed again.
    const MOST: u8 = 4;
    let mut steps: SecondaryMap<ValueId, Option<u8>> = SecondaryMap::with_capacity(program.values.len(), None);
    program.walk(|id, _| {
        let inst = &program.insts[id];
        let &[result] = inst.results.as_slice() else { return };
        let cheap = match inst.op.row().kind {
            Kind::PerInvocation | Kind::PerGroup => true,
            Kind::Access => {
                matches!(inst.op, Op::Load(memory) if program.memory[memory].space == Space::Uniform && !written[memory])
            }
            Kind::Pure => matches!(
                inst.op,
                Op::Add | Op::Sub | Op::Mul | Op::And | Op::Or | Op::Xor | Op::Shl | Op::Shr
                    | Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge | Op::Not
            ) && program.class(inst).bits() <= 32 && !program.class(inst).is_float(),
            Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
        };
        let from = inst.operands.iter().map(|&operand| match program.known(operand) {
            Some(_) => Some(0),
            None => steps[operand],
        });
        let most = from.into_iter().try_fold(0, |most: u8, steps| Some(most.max(steps?)));
        steps[result] = most.filter(|&most| cheap && most < MOST).map(|most| most + 1);
    });
    let mut again = SecondaryMap::with_capacity(program.values.len(), false);
    for value in program.values.keys() {
        again[value] = steps[value].is_some();
    }
    again
}

/// Numbers segments, and finds the values that are needed in another one than their own.
struct Segments<'p> {
    program: &'p Program,
    again: &'p SecondaryMap<ValueId, bool>,
    current: usize,
    of: SecondaryMap<ValueId, Option<usize>>,
    /// The last segment that a value is used in.
    last: SecondaryMap<ValueId, usize>,
    crossing: Vec<ValueId>,
}

impl Segments<'_> {
    fn used(&mut self, value: ValueId) {
        // What is computed again needs what it is computed from.
        if self.again[value] {
            if let Def::Result(id, _) = self.program.values[value].def {
                self.program.insts[id].operands.iter().for_each(|&operand| self.used(operand));
            }
            return;
        }
        self.last[value] = self.current;
        if matches!(self.program.values[value].def, Def::Result(..) | Def::Param(..))
            && self.of[value] != Some(self.current)
        {
            self.crossing.push(value);
        }
    }

    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            if !is_of_group(program, id) {
                self.inside(id);
                continue;
            }
            // What leaves a block is executed after what comes before it, in a segment of its own.
            self.current += 1;
            inst.operands.iter().for_each(|&operand| self.used(operand));
            if inst.op == Op::Trap {
                // The code is needed by the segment that ends here.
                self.current += 1;
            }
            for &nested in &inst.blocks {
                self.current += 1;
                // Parameters and results have no segment: they are always found in memory.
                self.block(nested);
            }
            self.current += 1;
            self.crossing.extend(inst.results.iter().copied());
            if inst.op == Op::Loop {
                self.crossing.extend(program.blocks[inst.blocks[0]].params.iter().copied());
            }
        }
    }

    /// An instruction that is part of a segment, with everything in it.
    fn inside(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        inst.operands.iter().for_each(|&operand| self.used(operand));
        for &block in &inst.blocks {
            for &param in &program.blocks[block].params {
                self.of[param] = Some(self.current);
            }
            for &nested in &program.blocks[block].insts {
                self.inside(nested);
            }
        }
        for &result in &inst.results {
            self.of[result] = Some(self.current);
        }
    }
}
