//! Lowering of loads, stores, atomics and effects: contiguous, masked, and gathered or scattered accesses, with their bounds checks.
//!
//! An access whose index goes up by one from lane to lane is one load or store of a vector if all of it is inside the object,
//! which is one comparison, and one with a mask otherwise; what remains is done lane by lane, most of it by the runtime. A private
//! array has its elements side by side for the lanes of a tile, so that accesses with the same index in all lanes are vectors, too.

use iced_x86::Code;
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{Def, Element, InstId, MemId, Space, Type, ValueId};

use super::ahead::{Spot, step};
use super::emit::{self, Regs, at, element};
use super::lower::{Lower, Mask};
use super::machine::{Address, Base, BlockId, Class, Operand, Reg, Width};
use super::service::{self, Array, Private, Site};
use super::shape::Axes;

/// An object that is accessed.
#[derive(Clone, Copy)]
pub(super) struct Object {
    memory: MemId,
    /// What it is stored as: private arrays have no elements of less than 32 bits.
    element: Element,
    /// The first element; of a private array, that of the first lane of the tile.
    pub(super) start: Reg,
    private: bool,
}

/// A lane, known when code is written or found when it runs.
#[derive(Clone, Copy)]
enum Lane {
    Known(i32),
    Found(Reg),
}

/// Indices that go up by as much from lane to lane: a multiple of a linear value, and what is added to that.
struct Quads {
    root: ValueId,
    stride: i32,
    added: SmallVec<[ValueId; 2]>,
}

/// The greatest step of [`Quads`]. What lanes are apart stands in instructions.
const MOST_STRIDE: u64 = 1 << 16;

impl Object {
    pub(super) fn size(&self) -> i32 {
        self.element.size() as i32
    }

    /// The width of a scalar that is stored as an element.
    fn width(&self) -> Width {
        match self.element.size() {
            1 => Width::Byte,
            2 => Width::Word,
            4 => Width::Dword,
            _ => Width::Qword,
        }
    }
}

impl Lower<'_> {
    pub(super) fn object(&mut self, memory: MemId) -> Object {
        let object = &self.program.memory[memory];
        let start = self.starts[memory].expect("an indexed object has memory");
        if object.space != Space::Private {
            return Object { memory, element: object.element, start, private: false };
        }
        let slot = match object.element {
            Element::I8 | Element::I16 | Element::I32 => Element::I32,
            Element::U8 | Element::U16 | Element::U32 | Element::F16 => Element::U32,
            Element::F32 => Element::F32,
            Element::I64 | Element::U64 | Element::F64 => object.element,
        };
        let start = match self.place.number {
            // All tiles of the workgroup have their own.
            Some(number) => {
                let bytes =
                    u64::from(object.length.unwrap_or(0)) * slot.size() as u64 * u64::from(self.shape.tile.size());
                let bytes = self.emit.immediate(bytes);
                let offset = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, bytes, number);
                self.emit.s2(Code::Add_r64_rm64, Width::Qword, offset, start)
            }
            None => start,
        };
        Object { memory, element: slot, start, private: true }
    }

    /// Where the length of an object is, as 64 bits.
    fn length(memory: MemId) -> Address {
        at(Base::Context, service::object(memory) + 8)
    }

    /// Jumps to a block unless the element at an index plus an offset is inside.
    pub(super) fn skip_unless_inside(&mut self, object: Object, index: Reg, offset: i32, to: BlockId) {
        let position = match offset {
            0 => index,
            offset => self.emit.lea(at(Base::Reg(index), offset), Width::Qword),
        };
        self.emit.cmp(position, Self::length(object.memory), Width::Qword);
        self.emit.skip_to(to, Code::Jae_rel32_64);
    }

    /// Whether an access is inside for certain, also in lanes that are not active.
    fn is_inside(&self, id: InstId) -> bool {
        self.checked.contains_key(&id) || self.ranges.is_inside(id) && !self.hoisting && self.state.mask.is_none()
    }

    /// Whether an access with the same index in all lanes is inside for certain. Where packs have their own, those of which no
    /// lane is active may have any.
    fn is_inside_once(&self, id: InstId) -> bool {
        let index = self.program.insts[id].operands[0];
        let somebody = |mask: &Mask| !mask.maybe_empty && self.shape.tile.copies(self.shape.axes[index]) == 1;
        let holds = !self.hoisting && self.state.mask.as_ref().is_none_or(somebody);
        self.checked.contains_key(&id) || self.ranges.is_inside(id) && holds
    }

    /// Goes on with what code has loaded, or with what a cold block loads that it may have jumped to.
    fn or_slowly(&mut self, regs: Regs, away: Option<BlockId>, slow: impl FnOnce(&mut Self) -> Regs) -> Regs {
        let Some(away) = away else { return regs };
        let mut arrivals = vec![self.arrival(regs)];
        self.emit.at = away;
        let mark = self.scope();
        let regs = slow(self);
        self.leave(mark);
        arrivals.push(self.arrival(regs));
        self.meet(arrivals)
    }

    /// Goes on in a block after code has stored, and has a cold block that it may have jumped to store instead.
    fn done_or_slowly(&mut self, done: BlockId, away: Option<BlockId>, slow: impl FnOnce(&mut Self)) {
        self.emit.jump(done, &[]);
        if let Some(away) = away {
            self.emit.at = away;
            let mark = self.scope();
            slow(self);
            self.leave(mark);
            self.emit.jump(done, &[]);
        }
        self.emit.at = done;
    }

    // Loads.

    pub(super) fn load(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let Op::Load(memory) = inst.op else { unreachable!("only loads come here") };
        let Some(&index) = inst.operands.first() else {
            self.load_uniform(memory, inst.results[0]);
            return;
        };
        let object = self.object(memory);
        if object.private {
            self.load_private(id, object, index);
        } else if !self.shape.axes[index].meets(Axes::LANE) {
            self.load_once(id, object, index);
        } else if self.is_linear(index) {
            self.load_run(id, object, index);
        } else if inst.results.len() == 4 && object.size() == 4 {
            self.load_quads(id, object, index);
        } else {
            self.prefetch_lanes(object, index);
            let regs = self.gather_all(id, object, index);
            self.hold_all(&inst.results, &regs);
        }
    }

    fn load_uniform(&mut self, memory: MemId, result: ValueId) {
        let ty = self.program.ty(result);
        let address = at(Base::Context, service::object(memory));
        let of_64 = ty.bits() == 64;
        let reg = if ty.is_float() {
            self.emit.broadcast_from(address, of_64)
        } else {
            self.emit.load_scalar(address, if of_64 { Width::Qword } else { Width::Dword })
        };
        self.hold(result, &[reg]);
    }

    /// Loads one element as a value that is the same in all lanes.
    fn load_element(&mut self, element: Element, address: Address) -> Reg {
        let scalar = |this: &mut Self, code, width| this.emit.s1_of(code, Width::Dword, width, address);
        match element {
            Element::F32 => self.emit.broadcast_from(address, false),
            Element::F64 => self.emit.broadcast_from(address, true),
            Element::I8 => scalar(self, Code::Movsx_r32_rm8, Width::Byte),
            Element::U8 => scalar(self, Code::Movzx_r32_rm8, Width::Byte),
            Element::I16 => scalar(self, Code::Movsx_r32_rm16, Width::Word),
            Element::U16 => scalar(self, Code::Movzx_r32_rm16, Width::Word),
            Element::F16 => {
                let bits = scalar(self, Code::Movzx_r32_rm16, Width::Word);
                self.emit.broadcast(bits, false)
            }
            Element::I32 | Element::U32 => self.emit.load_scalar(address, Width::Dword),
            Element::I64 | Element::U64 => self.emit.load_scalar(address, Width::Qword),
        }
    }

    /// Loads with the same index in all lanes of a pack.
    fn load_once(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.program.insts[id].results.clone();
        let (count, size) = (results.len() as i32, object.size());
        let (spots, _, offset) = self.spots(id, object.start, index);
        let load_all = |this: &mut Self, load: &dyn Fn(&mut Self, Spot, i32) -> Reg| -> Regs {
            let elements = (0..count).flat_map(|k| spots.iter().map(move |&spot| (spot, offset + k)));
            elements.map(|(spot, offset)| load(this, spot, offset)).collect()
        };
        let direct = |this: &mut Self, (start, index): Spot, offset: i32| {
            this.load_element(object.element, element(start, index, size as u8, offset * size))
        };
        // All of them, or each on its own.
        let away = (!self.is_inside_once(id)).then(|| {
            let away = self.emit.block(true);
            for &(_, index) in &spots {
                self.skip_unless_inside(object, index, offset + count - 1, away);
            }
            away
        });
        let regs = load_all(self, &direct);
        let regs = self.or_slowly(regs, away, |this| {
            load_all(this, &|this, (_, index), offset| this.load_or_zero(object, index, offset))
        });
        self.hold_all(&results, &regs);
    }

    /// An element, or 0 if it is outside: then it is loaded from a zero that is inside.
    fn load_or_zero(&mut self, object: Object, index: Reg, offset: i32) -> Reg {
        let zero = self.emit.constant(0, false);
        let zero = self.emit.lea(zero, Width::Qword);
        let size = object.size();
        let address = self.emit.lea(element(object.start, index, size as u8, offset * size), Width::Qword);
        let position = if offset == 0 { index } else { self.emit.lea(at(Base::Reg(index), offset), Width::Qword) };
        self.emit.cmp(position, Self::length(object.memory), Width::Qword);
        let address = self.emit.s2(Code::Cmovae_r64_rm64, Width::Qword, address, zero);
        self.load_element(object.element, at(Base::Reg(address), 0))
    }

    /// Loads lanes from consecutive elements: one register, or two for elements of 64 bits.
    fn load_vector(&mut self, element: Element, address: Address) -> SmallVec<[Reg; 2]> {
        match element {
            Element::I8 => smallvec![self.emit.widen(emit::I8_LOAD, address)],
            Element::U8 => smallvec![self.emit.widen(emit::U8_LOAD, address)],
            Element::I16 => smallvec![self.emit.widen(emit::I16_LOAD, address)],
            Element::U16 | Element::F16 => smallvec![self.emit.widen(emit::U16_LOAD, address)],
            Element::I32 | Element::U32 | Element::F32 => smallvec![self.emit.load(address)],
            Element::I64 | Element::U64 | Element::F64 => {
                let upper = Address { displacement: address.displacement + self.emit.bytes(), ..address };
                smallvec![self.emit.load(address), self.emit.load(upper)]
            }
        }
    }

    /// Jumps to a cold block unless a run of elements is inside, for all rows; gives that block.
    fn jump_unless_inside(&mut self, object: Object, index: ValueId, count: usize) -> BlockId {
        let tile = self.shape.tile;
        let (index, offset) = self.addend(index);
        let away = self.emit.block(true);
        for row in 0..tile.rows_of(self.shape.axes[index]) {
            let first = self.base(index, row);
            let last = (tile.width() as usize + count) as i32 - 2;
            self.skip_unless_inside(object, first, last + offset, away);
        }
        away
    }

    /// Loads with an index that goes up by one from lane to lane.
    fn load_run(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.program.insts[id].results.clone();
        let axes = self.shape.axes[index];
        let tile = self.shape.tile;
        let size = object.size();
        let (spots, root, offset) = self.spots(id, object.start, index);
        self.prefetch(object, root, &spots);
        let fast = |this: &mut Self| {
            let mut regs = Regs::new();
            for k in 0..results.len() as i32 {
                for pack in tile.packs_of(axes) {
                    let (row, before) = tile.in_row(pack, spots.len());
                    let (start, first) = spots[row];
                    let offset = (before + offset + k) * size;
                    regs.extend(this.load_vector(object.element, element(start, first, size as u8, offset)));
                }
            }
            regs
        };
        let regs = if self.is_inside(id) {
            fast(self)
        } else if self.state.mask.is_some() && size >= 4 {
            self.load_run_lanes(id, object, index)
        } else {
            let slow = self.jump_unless_inside(object, index, results.len());
            let regs = fast(self);
            self.or_slowly(regs, Some(slow), |this| match size >= 4 {
                true => this.load_run_lanes(id, object, index),
                false => this.gather_all(id, object, index),
            })
        };
        self.hold_all(&results, &regs);
    }

    /// Loads with an index that goes up by one from lane to lane, in the lanes that are inside.
    fn load_run_lanes(&mut self, id: InstId, object: Object, index: ValueId) -> Regs {
        let axes = self.shape.axes[index];
        let firsts = self.signed_bases(index);
        let mut regs = Regs::new();
        for k in 0..self.program.insts[id].results.len() as i32 {
            let bound = self.bound(id, object, k);
            for pack in self.shape.tile.packs_of(axes) {
                // Lanes that are not active may load whatever is inside.
                let active = if bound.is_none() { self.active_in_copy(axes, pack) } else { None };
                let (address, mask) = self.run_lanes(object, index, &firsts, pack, bound, active);
                let address = Address { displacement: address.displacement + k * object.size(), ..address };
                if object.size() == 4 {
                    regs.push(self.load_lanes_of(address, mask, false));
                    continue;
                }
                for half in 0..2 {
                    let displacement = address.displacement + half * self.emit.bytes();
                    let mask = self.emit.mask_half(mask, half == 1);
                    regs.push(self.load_lanes_of(Address { displacement, ..address }, mask, true));
                }
            }
        }
        regs
    }

    /// The first lanes of each row of a linear value as signed numbers: a run that starts below 0 goes on at 0.
    fn signed_bases(&mut self, value: ValueId) -> Regs {
        let rows = 0..self.shape.tile.rows_of(self.shape.axes[value]);
        rows.map(|row| {
            let first = self.base(value, row);
            self.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, first)
        })
        .collect()
    }

    /// Where a pack of a run of elements is, and those of its lanes that are inside.
    fn run_lanes(
        &mut self,
        object: Object,
        index: ValueId,
        firsts: &[Reg],
        pack: usize,
        bound: Option<Reg>,
        active: Option<Reg>,
    ) -> (Address, Reg) {
        let (row, before) = self.shape.tile.in_row(pack, firsts.len());
        let indices = self.vector(index, pack, 0);
        let mask = self.inside_mask(indices, bound, active);
        let size = object.size();
        (element(object.start, firsts[row], size as u8, before * size), mask)
    }

    /// Loads the lanes of a mask; the others get 0.
    fn load_lanes_of(&mut self, address: Address, mask: Reg, of_64: bool) -> Reg {
        let to = self.emit.reg(Class::Vector);
        if self.emit.wide() {
            let code = if of_64 { Code::EVEX_Vmovupd_zmm_k1z_zmmm512 } else { Code::EVEX_Vmovups_zmm_k1z_zmmm512 };
            let operands = [Operand::Def(to, Width::Zmm), Operand::Memory(address)];
            let inst = self.emit.push(code, &operands, false);
            (inst.mask, inst.zeroing) = (Some(mask), true);
        } else {
            let code = if of_64 { Code::VEX_Vmaskmovpd_ymm_ymm_m256 } else { Code::VEX_Vmaskmovps_ymm_ymm_m256 };
            let operands = [Operand::Def(to, Width::Ymm), Operand::Use(mask, Width::Ymm), Operand::Memory(address)];
            self.emit.push(code, &operands, false);
        }
        to
    }

    /// In a loop whose index jumps far from trip to trip, asks for what a later trip loads: the processor does not see that coming.
    fn prefetch(&mut self, object: Object, index: ValueId, spots: &[Spot]) {
        /// How many trips ahead.
        const AHEAD: u8 = 8;
        let program = self.program;
        let Some(enclosing) = self.loops.last() else { return };
        let Some(step) = step(program, program.insts[enclosing.inst].blocks[0], index) else { return };
        let near = program.known(step).is_some_and(|step| step.bits * (object.size() as u64) < 2048);
        if near || self.emit.is_cold() || !self.shape.axes[step].is_uniform() {
            return;
        }
        let step = self.scalar(step, 0);
        let width = self.shape.tile.width() as i32 * object.size();
        for &(start, first) in spots {
            let ahead = self.emit.lea(element(first, step, AHEAD, 0), Width::Qword);
            for line in (0..width).step_by(64) {
                let address = element(start, ahead, object.size() as u8, line);
                self.emit.push(Code::Prefetcht0_m8, &[Operand::Memory(address)], true);
            }
        }
    }

    /// If indices are loaded one after the other, asks for what a later tile loads from an object that is larger than caches.
    fn prefetch_lanes(&mut self, object: Object, index: ValueId) {
        /// How many invocations ahead.
        const AHEAD: i32 = 64;
        /// Smaller objects are in caches most of the time.
        const LARGE: i32 = 1 << 20;
        let (program, tile) = (self.program, self.shape.tile);
        let Def::Result(id, 0) = program.values[index].def else { return };
        let (&Op::Load(memory), &[from]) = (&program.insts[id].op, program.insts[id].operands.as_slice()) else {
            return;
        };
        let in_storage = |memory: MemId| matches!(program.memory[memory].space, Space::Storage(_));
        let indices = self.object(memory);
        if !in_storage(memory)
            || !in_storage(object.memory)
            || indices.size() != 4
            || self.emit.is_cold()
            || tile.rows != 1
            || !self.is_linear(from)
            || !self.is_there(from)
        {
            return;
        }
        let (first, done) = (self.base(from, 0), self.emit.block(false));
        let length = self.emit.load_scalar(Self::length(object.memory), Width::Qword);
        self.emit.cmp_immediate(length, LARGE / object.size(), Width::Qword);
        self.emit.skip_to(done, Code::Jb_rel32_64);
        // What is checked is also what is loaded from: an index that is made of others may be of lanes that are not active.
        self.skip_unless_inside(indices, first, AHEAD + tile.width() as i32 - 1, done);
        for lane in 0..tile.width() as i32 {
            let address = element(indices.start, first, 4, (AHEAD + lane) * 4);
            let position = self.emit.load_scalar(address, Width::Dword);
            let address = element(object.start, position, object.size() as u8, 0);
            self.emit.push(Code::Prefetchnta_m8, &[Operand::Memory(address)], true);
        }
        self.emit.enter(done);
    }

    // Accesses to four elements where the index goes up by as much from lane to lane: four or more, so that lanes do not meet.

    /// An index as a multiple of a linear value, and what is added to that.
    fn quad_parts(&self, index: ValueId) -> Option<Quads> {
        let program = self.program;
        let Def::Result(id, 0) = program.values[index].def else { return None };
        let &[a, b] = program.insts[id].operands.as_slice() else { return None };
        let literal = |value: ValueId| program.known(value).map(|literal| literal.bits);
        let linear = |value: ValueId| self.is_linear(value) && self.is_there(value);
        let fixed =
            |value: ValueId| !self.shape.axes[value].meets(Axes::LANE.and(Axes::COLUMN)) && self.is_there(value);
        let multiple = |root: ValueId, stride: Option<u64>| {
            let stride = stride.filter(|stride| (4..=MOST_STRIDE).contains(stride) && linear(root))?;
            Some(Quads { root, stride: stride as i32, added: SmallVec::new() })
        };
        match program.insts[id].op {
            Op::Mul => multiple(a, literal(b)).or_else(|| multiple(b, literal(a))),
            Op::Shl => multiple(a, literal(b).and_then(|count| 1u64.checked_shl(count as u32))),
            Op::Add => {
                let (inner, added) = if fixed(b) { (a, b) } else { (b, a) };
                let mut quads = self.quad_parts(inner).filter(|_| fixed(added))?;
                quads.added.push(added);
                Some(quads)
            }
            _ => None,
        }
    }

    /// The index of the first lane of each row. All four elements of all lanes are inside, or the code jumps to a cold block.
    fn quad_bases(&mut self, object: Object, index: ValueId, quads: &Quads) -> (Regs, BlockId) {
        let tile = self.shape.tile;
        let away = self.emit.block(true);
        let mut bases = Regs::new();
        for row in 0..tile.rows_of(self.shape.axes[index]) {
            let first = self.base(quads.root, row);
            let sources = [Operand::Use(first, Width::Dword), Operand::Dword(quads.stride)];
            let mut base = self.emit.make(Code::Imul_r32_rm32_imm32, Class::Scalar, Width::Dword, &sources);
            for &part in &quads.added {
                let part = self.scalar(part, row * tile.columns as usize);
                base = self.emit.s2(Code::Add_r32_rm32, Width::Dword, base, part);
            }
            self.skip_unless_inside(object, base, quads.stride * (tile.width() as i32 - 1) + 3, away);
            bases.push(base);
        }
        (bases, away)
    }

    /// Jumps to a cold block unless all four elements of all lanes are inside, wherever they are; gives that block.
    fn jump_unless_quads_inside(&mut self, id: InstId, object: Object, index: ValueId) -> Option<BlockId> {
        if self.is_inside(id) {
            return None;
        }
        let axes = self.shape.axes[index];
        let away = self.emit.block(true);
        let limit = self.limit(object, 3);
        let masks = self.shape.tile.packs_of(axes).map(|pack| {
            let indices = self.vector(index, pack, 0);
            self.inside_mask(indices, Some(limit), None)
        });
        let inside: Regs = masks.collect();
        self.emit.test_all(&inside);
        self.emit.skip_to(away, Code::Jae_rel32_64);
        Some(away)
    }

    /// Where the elements of a lane of a pack are.
    fn quad_address(&self, object: Object, bases: &[Reg], stride: i32, pack: usize, lane: i32) -> Address {
        let (row, before) = self.shape.tile.in_row(pack, bases.len());
        element(object.start, bases[row], 4, 4 * stride * (before + lane))
    }

    fn load_quads(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.program.insts[id].results.clone();
        let quads = self.quad_parts(index);
        let (bases, slow) = match &quads {
            Some(quads) => {
                let (bases, slow) = self.quad_bases(object, index, quads);
                (bases, Some(slow))
            }
            None => (Regs::new(), self.jump_unless_quads_inside(id, object, index)),
        };
        let mut regs: [Regs; 4] = Default::default();
        for pack in self.shape.tile.packs_of(self.shape.axes[index]) {
            if quads.is_none() {
                let indices = self.vector(index, pack, 0);
                self.pass_vector(indices, 0);
            }
            let address = |this: &mut Self, lane: i32| match &quads {
                None => {
                    let address = this.lane_of(service::slot(0), 4, Lane::Known(lane));
                    let position = this.emit.load_scalar(address, Width::Dword);
                    element(object.start, position, 4, 0)
                }
                Some(quads) => this.quad_address(object, &bases, quads.stride, pack, lane),
            };
            if self.shape.tile.lanes == 16 && quads.as_ref().is_some_and(|quads| quads.stride == 4) {
                let first = address(self, 0);
                for (list, reg) in regs.iter_mut().zip(self.load_lanes_by_fours(first)) {
                    list.push(reg);
                }
                continue;
            }
            // Four vectors with the elements of every fourth lane.
            let pairs = [0, 1, 2, 3].map(|lane| {
                let first = address(self, lane);
                let first = self.emit.load_quad(first);
                (1..self.shape.tile.lanes as u8 / 4).fold(first, |vector, part| {
                    let address = address(self, lane + 4 * i32::from(part));
                    self.emit.insert_quad(vector, address, part)
                })
            });
            for (list, reg) in regs.iter_mut().zip(self.transposed(pairs)) {
                list.push(reg);
            }
        }
        let regs = regs.into_iter().flatten().collect();
        let regs = self.or_slowly(regs, slow, |this| this.gather_all(id, object, index));
        self.hold_all(&results, &regs);
    }

    fn store_quads(&mut self, id: InstId, object: Object, index: ValueId, quads: &Quads, values: &[ValueId]) {
        let tile = self.shape.tile;
        // What is needed is there before the code may jump over it.
        for pack in 0..tile.packs() as usize {
            values.iter().for_each(|&value| {
                self.vector(value, pack, 0);
            });
        }
        let (bases, slow) = self.quad_bases(object, index, quads);
        let done = self.emit.block(self.emit.is_cold());
        let mut whole = Vec::new();
        for pack in 0..tile.packs() as usize {
            let lanes = [0, 1, 2, 3].map(|k| self.vector(values[k], pack, 0));
            if quads.stride == 4 {
                // All of it is one run.
                let address = self.quad_address(object, &bases, quads.stride, pack, 0);
                for (number, vector) in (0..).zip(self.lanes_by_fours(lanes)) {
                    let displacement = address.displacement + number * self.emit.bytes();
                    whole.push((Address { displacement, ..address }, vector));
                }
                continue;
            }
            for (lane, vector) in (0..).zip(self.transposed(lanes)) {
                for part in 0..tile.lanes as u8 / 4 {
                    let address = self.quad_address(object, &bases, quads.stride, pack, lane + 4 * i32::from(part));
                    self.emit.store_quad(address, vector, part);
                }
            }
        }
        self.store_whole(object, tile.rows == 1, &whole, done);
        self.done_or_slowly(done, Some(slow), |this| this.scatter_all(id, object, index, values));
    }

    /// Swaps rows and columns of the four by four elements in the halves or quarters of four vectors.
    fn transposed(&mut self, [a, b, c, d]: [Reg; 4]) -> [Reg; 4] {
        const LOW: (Code, Code) = (Code::VEX_Vunpcklps_ymm_ymm_ymmm256, Code::EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32);
        const HIGH: (Code, Code) = (Code::VEX_Vunpckhps_ymm_ymm_ymmm256, Code::EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32);
        const LOW_PAIRS: (Code, Code) =
            (Code::VEX_Vunpcklpd_ymm_ymm_ymmm256, Code::EVEX_Vunpcklpd_zmm_k1z_zmm_zmmm512b64);
        const HIGH_PAIRS: (Code, Code) =
            (Code::VEX_Vunpckhpd_ymm_ymm_ymmm256, Code::EVEX_Vunpckhpd_zmm_k1z_zmm_zmmm512b64);
        let (ab_low, cd_low) = (self.emit.v2(LOW, a, b), self.emit.v2(LOW, c, d));
        let (ab_high, cd_high) = (self.emit.v2(HIGH, a, b), self.emit.v2(HIGH, c, d));
        [
            self.emit.v2(LOW_PAIRS, ab_low, cd_low),
            self.emit.v2(HIGH_PAIRS, ab_low, cd_low),
            self.emit.v2(LOW_PAIRS, ab_high, cd_high),
            self.emit.v2(HIGH_PAIRS, ab_high, cd_high),
        ]
    }

    /// Four vectors with the elements of lanes that are next to each other in memory, four for each of 16 lanes.
    fn load_lanes_by_fours(&mut self, first: Address) -> [Reg; 4] {
        const HALVES: (Code, Code) = (Code::INVALID, Code::EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8);
        let at = |vector: i32| Address { displacement: first.displacement + 64 * vector, ..first };
        // Of two vectors, the elements with two of the four numbers.
        let [[ab_low, cd_low], [ab_high, cd_high]] = [0, 2].map(|vector| {
            let loaded = self.emit.load(at(vector));
            [0, 2].map(|number| {
                let lanes = std::array::from_fn(|lane| (4 * (lane % 8) + number + lane / 8) as u8);
                self.emit.pick_lanes(lanes, loaded, at(vector + 1))
            })
        });
        let mut join = |low, high, parts| self.emit.v2i(HALVES, low, high, parts);
        [
            join(ab_low, ab_high, 0x44),
            join(ab_low, ab_high, 0xee),
            join(cd_low, cd_high, 0x44),
            join(cd_low, cd_high, 0xee),
        ]
    }

    /// Four elements of each lane, in the order of lanes.
    fn lanes_by_fours(&mut self, [a, b, c, d]: [Reg; 4]) -> [Reg; 4] {
        const HALVES: (Code, Code) = (Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, Code::INVALID);
        if self.shape.tile.lanes == 8 {
            let [a, b, c, d] = self.transposed([a, b, c, d]);
            let mut pick = |a, b, parts| self.emit.v2i(HALVES, a, b, parts);
            return [pick(a, b, 0x20), pick(c, d, 0x20), pick(a, b, 0x31), pick(c, d, 0x31)];
        }
        // Pairs of elements of half of the lanes, then all four of a quarter.
        let [low, high] = [0, 8].map(|first| {
            let lanes = std::array::from_fn(|lane| (first + lane / 2 + 16 * (lane % 2)) as u8);
            [self.emit.pick_lanes(lanes, a, b), self.emit.pick_lanes(lanes, c, d)]
        });
        let mut quarter = |[pairs, others]: [Reg; 2], first: usize| {
            let lanes = std::array::from_fn(|lane| (first + lane / 4 * 2 + lane % 2 + 16 * (lane % 4 / 2)) as u8);
            self.emit.pick_lanes(lanes, pairs, others)
        };
        [quarter(low, 0), quarter(low, 8), quarter(high, 0), quarter(high, 8)]
    }

    /// Loads lane by lane, for all packs and results.
    fn gather_all(&mut self, id: InstId, object: Object, index: ValueId) -> Regs {
        let axes = if object.private { Axes::ALL } else { self.shape.axes[index] };
        let tile = self.shape.tile;
        let mut regs: SmallVec<[Regs; 4]> = smallvec![Regs::new(); self.program.insts[id].results.len()];
        if object.size() != 4 {
            for pack in tile.packs_of(axes) {
                self.gather_by_runtime(object, index, axes, pack, &mut regs);
            }
            return regs.into_iter().flatten().collect();
        }
        for (k, list) in (0..).zip(&mut regs) {
            let bound = self.bound(id, object, k);
            for pack in tile.packs_of(axes) {
                let indices = self.indices(index, pack);
                let active = self.active_in_copy(axes, pack);
                let mask = self.inside_mask(indices, bound, active);
                list.push(if object.private {
                    let columns = self.private_indices(indices, k, pack);
                    self.gather(object, columns, mask, 0)
                } else {
                    self.gather(object, indices, mask, k)
                });
            }
        }
        regs.into_iter().flatten().collect()
    }

    /// The lanes of an index. If it is linear, code that is rarely executed computes them from the first one, so that no other code
    /// keeps registers for them.
    fn indices(&mut self, index: ValueId, pack: usize) -> Reg {
        if !self.is_linear(index) || !self.emit.is_cold() {
            return self.vector(index, pack, 0);
        }
        let columns = self.shape.tile.columns as usize;
        let first = self.base(index, pack / columns);
        self.run_of(first)[pack % columns]
    }

    /// Has the runtime load what each list gets.
    fn gather_by_runtime(&mut self, object: Object, index: ValueId, axes: Axes, pack: usize, lists: &mut [Regs]) {
        let indices = self.indices(index, pack);
        let active = self.active_in_copy(axes, pack);
        let array = self.pass_array(object, pack);
        self.pass_mask(active);
        self.pass_vector(indices, 0);
        self.service(Site::Gather { array, count: lists.len() });
        for (number, list) in lists.iter_mut().enumerate() {
            list.extend(self.receive(array.element.value_type(), 1 + number));
        }
    }

    /// The limit of indices, unless all of them are inside.
    fn bound(&mut self, id: InstId, object: Object, offset: i32) -> Option<Reg> {
        if self.ranges.is_inside(id) && !self.hoisting {
            return None;
        }
        Some(self.limit(object, offset))
    }

    /// What indices must be less than for the element at an offset from them to be inside.
    fn limit(&mut self, object: Object, offset: i32) -> Reg {
        if offset == 0 {
            return self.emit.broadcast_from(Self::length(object.memory), false);
        }
        // No index is inside if the length is less than the offset.
        let zero = self.emit.immediate(0);
        let length = self.emit.load_scalar(Self::length(object.memory), Width::Qword);
        let left = self.emit.s1i(Code::Sub_rm64_imm32, Width::Qword, length, Operand::Dword(offset));
        let left = self.emit.s2(Code::Cmovb_r64_rm64, Width::Qword, left, zero);
        self.emit.broadcast(left, false)
    }

    /// The lanes that are active and whose index is less than a bound. With AVX2, only the top bits of the lanes say so.
    fn inside_mask(&mut self, indices: Reg, bound: Option<Reg>, active: Option<Reg>) -> Reg {
        let Some(bound) = bound else { return active.unwrap_or_else(|| self.emit.mask_constant(true)) };
        let inside = if self.emit.wide() {
            self.less(indices, bound)
        } else {
            // No length has a top bit: indices with one are outside, and the others may be compared as signed numbers.
            let less = self.emit.v2((Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, Code::INVALID), bound, indices);
            self.emit.v2(emit::AND_NOT, indices, less)
        };
        match active {
            Some(active) => self.emit.mask_and(active, inside),
            None => inside,
        }
    }

    /// Loads the elements of 32 bits at indices plus an offset, for the lanes of a mask; the others get 0.
    fn gather(&mut self, object: Object, indices: Reg, mask: Reg, offset: i32) -> Reg {
        let full = if self.emit.wide() { Width::Zmm } else { Width::Ymm };
        let zero = self.emit.zero();
        let to = self.emit.reg(Class::Vector);
        let address =
            Address { base: Base::Reg(object.start), index: Some((indices, full, 4)), displacement: offset * 4 };
        let target = Operand::Update { from: zero, to, width: full };
        if self.emit.wide() {
            let code = Code::EVEX_Vgatherdps_zmm_k1_vm32z;
            self.emit.push(code, &[target, Operand::Memory(address)], false).mask = Some(mask);
        } else {
            let used = self.emit.reg(Class::Vector);
            let mask = Operand::Update { from: mask, to: used, width: full };
            self.emit.push(Code::VEX_Vgatherdps_ymm_vm32y_ymm, &[target, Operand::Memory(address), mask], false);
        }
        to
    }

    // Private arrays.

    fn load_private(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.program.insts[id].results.clone();
        let regs = if self.shape.axes[index].meets(Axes::LANE) {
            self.gather_all(id, object, index)
        } else {
            let mut regs: SmallVec<[Regs; 4]> = smallvec![Regs::new(); results.len()];
            for pack in 0..self.shape.tile.packs() as usize {
                self.load_private_run(id, object, index, pack, &mut regs);
            }
            regs.into_iter().flatten().collect()
        };
        self.hold_all(&results, &regs);
    }

    fn private_stride(&self, object: Object) -> i32 {
        self.shape.tile.size() as i32 * object.size()
    }

    /// The address of a pack's elements, where the index is the same in all its lanes.
    fn private_address(&mut self, object: Object, index: Reg, pack: usize) -> Address {
        let sources = [Operand::Use(index, Width::Qword), Operand::Dword(self.private_stride(object))];
        let scaled = self.emit.make(Code::Imul_r64_rm64_imm32, Class::Scalar, Width::Qword, &sources);
        let displacement = pack as i32 * self.shape.tile.lanes as i32 * object.size();
        Address { base: Base::Reg(object.start), index: Some((scaled, Width::Qword, 1)), displacement }
    }

    /// Loads what each list gets, where the index is the same in all lanes of a pack.
    fn load_private_run(&mut self, id: InstId, object: Object, index: ValueId, pack: usize, lists: &mut [Regs]) {
        let at_index = self.scalar(index, pack);
        let away = (!self.is_inside_once(id)).then(|| {
            let away = self.emit.block(true);
            self.skip_unless_inside(object, at_index, lists.len() as i32 - 1, away);
            away
        });
        let address = self.private_address(object, at_index, pack);
        let stride = self.private_stride(object);
        let displacements = (0..lists.len() as i32).map(|k| address.displacement + k * stride);
        let regs: Regs = displacements
            .flat_map(|displacement| self.load_vector(object.element, Address { displacement, ..address }))
            .collect();
        let regs = self.or_slowly(regs, away, |this| {
            let mut slow: SmallVec<[Regs; 4]> = smallvec![Regs::new(); lists.len()];
            this.gather_by_runtime(object, index, Axes::ALL, pack, &mut slow);
            slow.into_iter().flatten().collect()
        });
        let each = regs.len() / lists.len();
        for (list, own) in lists.iter_mut().zip(regs.chunks(each)) {
            list.extend_from_slice(own);
        }
    }

    /// Indices of elements of lanes among all elements of the tile.
    fn private_indices(&mut self, indices: Reg, offset: i32, pack: usize) -> Reg {
        let tile = self.shape.tile;
        let size = self.emit.constant(u64::from(tile.size()), false);
        let scaled = self.emit.v2(emit::MUL_D, indices, size);
        let own = self.emit.iota(offset as u32 * tile.size() + pack as u32 * tile.lanes);
        self.emit.v2(emit::ADD_D, scaled, own)
    }

    /// What private memory holds for a value that is stored as an element.
    fn fitted(&mut self, element: Element, value: Reg) -> Reg {
        let keep = |this: &mut Self, bits: u64| {
            let mask = this.emit.constant(bits, false);
            this.emit.v2(emit::AND, value, mask)
        };
        let extend = |this: &mut Self, bits: u8| {
            let up = this.emit.v1i(emit::SHL_D_BY, value, bits);
            this.emit.v1i(emit::SAR_D_BY, up, bits)
        };
        match element {
            Element::I8 => extend(self, 24),
            Element::U8 => keep(self, 0xff),
            Element::I16 => extend(self, 16),
            Element::U16 | Element::F16 => keep(self, 0xffff),
            Element::I32 | Element::U32 | Element::F32 | Element::I64 | Element::U64 | Element::F64 => value,
        }
    }

    fn store_private(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId]) {
        let declared = self.program.memory[object.memory].element;
        for pack in 0..self.shape.tile.packs() as usize {
            let mut regs = Regs::new();
            for &value in values {
                regs.extend(self.halves(value, pack).into_iter().map(|reg| self.fitted(declared, reg)));
            }
            if self.shape.axes[index].meets(Axes::LANE) {
                self.scatter_by_runtime(object, index, pack, &regs);
            } else {
                self.store_private_run(id, object, index, pack, &regs);
            }
        }
    }

    /// Stores where the index is the same in all lanes of a pack.
    fn store_private_run(&mut self, id: InstId, object: Object, index: ValueId, pack: usize, regs: &[Reg]) {
        let at_index = self.scalar(index, pack);
        let of_64 = object.size() == 8;
        let halves = if of_64 { 2 } else { 1 };
        let count = regs.len() / halves;
        let done = self.emit.block(self.emit.is_cold());
        let away = if count == 1 { done } else { self.emit.block(true) };
        if !self.is_inside_once(id) {
            self.skip_unless_inside(object, at_index, count as i32 - 1, away);
        }
        let address = self.private_address(object, at_index, pack);
        for (number, &reg) in regs.iter().enumerate() {
            let (k, half) = ((number / halves) as i32, number % halves);
            let offset = k * self.private_stride(object) + half as i32 * self.emit.bytes();
            let address = Address { displacement: address.displacement + offset, ..address };
            // Private memory has room for all lanes: what is not active keeps what it was.
            let reg = match self.state.mask.clone() {
                None => reg,
                Some(mask) => {
                    let old = self.emit.load(address);
                    let mask = mask.packs[pack];
                    let mask = if of_64 { self.emit.mask_half(mask, half == 1) } else { mask };
                    self.emit.blend_lanes(mask, reg, old, of_64)
                }
            };
            self.emit.store(address, reg);
        }
        // Some of them may be inside.
        let away = Some(away).filter(|&away| away != done);
        self.done_or_slowly(done, away, |this| this.scatter_by_runtime(object, index, pack, regs));
    }

    // Stores.

    pub(super) fn store(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        let Op::Store(memory) = inst.op else { unreachable!("only stores come here") };
        let (index, values) = (inst.operands[0], inst.operands[1..].to_vec());
        let object = self.object(memory);
        if object.private {
            self.store_private(id, object, index, &values);
            return;
        }
        let axes = inst.operands.iter().fold(Axes::NONE, |all, &operand| all.and(self.shape.axes[operand]));
        if !axes.meets(Axes::LANE) {
            for pack in self.shape.tile.packs_of(axes) {
                self.store_once(id, object, axes, pack);
            }
        } else if self.is_linear(index) && values.len() == 1 {
            self.store_run(id, object, index, values[0]);
        } else if values.len() == 4
            && object.size() == 4
            && self.state.mask.is_none()
            && let Some(quads) = self.quad_parts(index)
        {
            self.store_quads(id, object, index, &quads, &values);
        } else {
            self.scatter_all(id, object, index, &values);
        }
    }

    /// Stores what is the same in all lanes, of the packs that share a copy.
    fn store_once(&mut self, id: InstId, object: Object, axes: Axes, pack: usize) {
        let operands = self.program.insts[id].operands.clone();
        // What is needed is there before the code may jump over it.
        operands.iter().for_each(|&operand| self.fetch(operand));
        let (index, values) = (operands[0], &operands[1..]);
        let (spots, _, offset) = self.spots(id, object.start, index);
        let (start, at_index) = spots[self.shape.tile.copy(self.shape.axes[index], pack)];
        let done = self.emit.block(self.emit.is_cold());
        if self.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty || self.shape.tile.copies(axes) > 1)
            && let Some(mask) = self.active_in_copy(axes, pack)
        {
            self.emit.test_none(&[mask]);
            self.emit.skip_to(done, Code::Je_rel32_64);
        }
        let size = object.size();
        for (k, &value) in values.iter().enumerate() {
            let k = offset + k as i32;
            let bits = self.scalar(value, pack);
            let next = self.emit.block(self.emit.is_cold());
            if !self.is_inside_once(id) {
                self.skip_unless_inside(object, at_index, k, next);
            }
            self.emit.store_scalar(element(start, at_index, size as u8, k * size), bits, object.width());
            self.emit.enter(next);
        }
        self.emit.enter(done);
    }

    /// Stores lanes to consecutive elements.
    fn store_run(&mut self, id: InstId, object: Object, index: ValueId, value: ValueId) {
        let tile = self.shape.tile;
        let size = object.size();
        let masked = self.state.mask.is_some();
        if masked && size < 4 {
            self.scatter_all(id, object, index, &[value]);
            return;
        }
        let axes = self.shape.axes[index].and(self.shape.axes[value]);
        // What is needed is there before the code may jump over it.
        for pack in tile.packs_of(axes) {
            self.vector(value, pack, 0);
        }
        if masked {
            self.store_run_lanes(id, object, index, value);
            return;
        }
        let slow = (!self.is_inside(id)).then(|| self.jump_unless_inside(object, index, 1));
        let (spots, _, offset) = self.spots(id, object.start, index);
        let address = |pack: usize| {
            let (row, before) = tile.in_row(pack, spots.len());
            let (start, first) = spots[row];
            element(start, first, size as u8, (before + offset) * size)
        };
        let done = self.emit.block(self.emit.is_cold());
        if size < 4 {
            for pack in tile.packs_of(axes) {
                self.store_vector(object.element, address(pack), value, pack, None);
            }
        } else {
            let mut whole = Vec::new();
            for pack in tile.packs_of(axes) {
                let address = address(pack);
                for (half, value) in (0..).zip(self.halves(value, pack)) {
                    let displacement = address.displacement + half * self.emit.bytes();
                    whole.push((Address { displacement, ..address }, value));
                }
            }
            let lines = tile.rows == 1 && tile.width() as i32 * size % 64 == 0;
            self.store_whole(object, lines, &whole, done);
        }
        self.done_or_slowly(done, slow, |this| match size < 4 {
            true => this.scatter_all(id, object, index, &[value]),
            false => this.store_run_lanes(id, object, index, value),
        });
    }

    /// Stores whole vectors. What is one run of whole cache lines, of an object that nobody loads, may go past the caches: then
    /// the code goes on with `done`.
    fn store_whole(&mut self, object: Object, lines: bool, vectors: &[(Address, Reg)], done: BlockId) {
        if let Some(&(first, _)) = vectors.first()
            && lines
            && !self.emit.is_cold()
            && self.only_stored[object.memory]
        {
            let first = self.emit.lea(first, Width::Qword);
            let test = [Operand::Memory(at(Base::Context, service::STREAM)), Operand::Use(first, Width::Dword)];
            self.emit.push(Code::Test_rm32_r32, &test, false);
            let (stream, plain) = self.emit.branch(Code::Je_rel32_64, false, false);
            self.emit.at = stream;
            vectors.iter().for_each(|&(address, vector)| self.emit.stream(address, vector));
            self.emit.jump(done, &[]);
            self.emit.at = plain;
        }
        vectors.iter().for_each(|&(address, vector)| self.emit.store(address, vector));
    }

    /// Stores lanes to consecutive elements, those that are active and inside.
    fn store_run_lanes(&mut self, id: InstId, object: Object, index: ValueId, value: ValueId) {
        let axes = self.shape.axes[index].and(self.shape.axes[value]);
        let firsts = self.signed_bases(index);
        let bound = self.bound(id, object, 0);
        for pack in self.shape.tile.packs_of(axes) {
            let active = self.active_in_copy(axes, pack);
            let (address, mask) = self.run_lanes(object, index, &firsts, pack, bound, active);
            self.store_vector(object.element, address, value, pack, Some(mask));
        }
    }

    fn store_vector(&mut self, element: Element, address: Address, value: ValueId, pack: usize, mask: Option<Reg>) {
        let lower = self.vector(value, pack, 0);
        match element.size() {
            1 | 2 => self.store_narrow(element, address, lower),
            4 => self.store_lanes(address, lower, mask, false),
            _ => {
                let upper = self.vector(value, pack, 1);
                let above = Address { displacement: address.displacement + self.emit.bytes(), ..address };
                let masks = mask.map(|mask| [self.emit.mask_half(mask, false), self.emit.mask_half(mask, true)]);
                self.store_lanes(address, lower, masks.map(|masks| masks[0]), true);
                self.store_lanes(above, upper, masks.map(|masks| masks[1]), true);
            }
        }
    }

    /// Stores a vector, or the lanes of a mask.
    fn store_lanes(&mut self, address: Address, value: Reg, mask: Option<Reg>, of_64: bool) {
        let Some(mask) = mask else {
            self.emit.store(address, value);
            return;
        };
        if self.emit.wide() {
            let code = if of_64 { Code::EVEX_Vmovupd_zmmm512_k1z_zmm } else { Code::EVEX_Vmovups_zmmm512_k1z_zmm };
            let operands = [Operand::Memory(address), Operand::Use(value, Width::Zmm)];
            self.emit.push(code, &operands, true).mask = Some(mask);
        } else {
            let code = if of_64 { Code::VEX_Vmaskmovpd_m256_ymm_ymm } else { Code::VEX_Vmaskmovps_m256_ymm_ymm };
            let operands = [Operand::Memory(address), Operand::Use(mask, Width::Ymm), Operand::Use(value, Width::Ymm)];
            self.emit.push(code, &operands, true);
        }
    }

    /// Stores the low bytes of all lanes.
    fn store_narrow(&mut self, element: Element, address: Address, value: Reg) {
        let bytes = element.size() == 1;
        if self.emit.wide() {
            let code = if bytes { Code::EVEX_Vpmovdb_xmmm128_k1z_zmm } else { Code::EVEX_Vpmovdw_ymmm256_k1z_zmm };
            self.emit.push(code, &[Operand::Memory(address), Operand::Use(value, Width::Zmm)], true);
            return;
        }
        let mask = self.emit.constant(if bytes { 0xff } else { 0xffff }, false);
        let low = self.emit.v2(emit::AND, value, mask);
        let words = self.emit.v2((Code::VEX_Vpackusdw_ymm_ymm_ymmm256, Code::INVALID), low, low);
        // The four words of each 128-bit half, side by side.
        let words = self.emit.v1i((Code::VEX_Vpermq_ymm_ymmm256_imm8, Code::INVALID), words, 0xd8);
        if bytes {
            let packed = self.emit.v2((Code::VEX_Vpackuswb_ymm_ymm_ymmm256, Code::INVALID), words, words);
            let operands = [Operand::Memory(address), Operand::Use(packed, Width::Xmm)];
            self.emit.push(Code::VEX_Vmovq_xmmm64_xmm, &operands, true);
        } else {
            self.emit.store_half(address, words);
        }
    }

    /// Stores lane by lane, for all packs.
    fn scatter_all(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId]) {
        for pack in 0..self.shape.tile.packs() as usize {
            let mark = self.scope();
            if self.emit.is_cold() || !self.may_write_lanes() {
                self.scatter_values(object, index, pack, values);
            } else {
                self.scatter_lanes(id, object, index, values, pack);
            }
            self.leave(mark);
        }
    }

    fn scatter_values(&mut self, object: Object, index: ValueId, pack: usize, values: &[ValueId]) {
        let regs: Regs = values.iter().flat_map(|&value| self.halves(value, pack)).collect();
        self.scatter_by_runtime(object, index, pack, &regs);
    }

    /// Has the runtime store: for each value a register, or two.
    fn scatter_by_runtime(&mut self, object: Object, index: ValueId, pack: usize, regs: &[Reg]) {
        self.pass_active(pack);
        let indices = self.indices(index, pack);
        self.pass_vector(indices, 0);
        let values = regs.chunks(if object.size() == 8 { 2 } else { 1 });
        let count = values.len();
        for (number, value) in values.enumerate() {
            self.pass_vectors(value, 1 + number);
        }
        let array = self.pass_array(object, pack);
        self.service(Site::Scatter { array, count });
    }

    /// Whether another access may be written out lane by lane: large programs are not made larger.
    fn may_write_lanes(&mut self) -> bool {
        let may = self.spare_lanes > 0;
        self.spare_lanes -= usize::from(may);
        may
    }

    /// Stores lane by lane without the runtime.
    fn scatter_lanes(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId], pack: usize) {
        let size = object.size();
        let indices = self.vector(index, pack, 0);
        self.pass_vector(indices, 0);
        for (number, &value) in values.iter().enumerate() {
            if self.shape.axes[value].meets(Axes::LANE) {
                self.pass(value, pack, 1 + number);
            }
        }
        let scalars: SmallVec<[Option<Reg>; 4]> = values
            .iter()
            .map(|&value| (!self.shape.axes[value].meets(Axes::LANE)).then(|| self.scalar(value, pack)))
            .collect();
        // Goes to a block, if there is one, if an element is outside.
        let store = |this: &mut Self, lane: Lane, outside: Option<BlockId>| {
            let address = this.lane_of(service::slot(0), 4, lane);
            let position = this.emit.load_scalar(address, Width::Dword);
            for (number, scalar) in scalars.iter().enumerate() {
                let k = number as i32;
                if let Some(outside) = outside {
                    this.skip_unless_inside(object, position, k, outside);
                }
                let bits = scalar.unwrap_or_else(|| {
                    let (lane_size, width) = if size == 8 { (8, Width::Qword) } else { (4, Width::Dword) };
                    let address = this.lane_of(service::slot(1 + number), lane_size, lane);
                    this.emit.load_scalar(address, width)
                });
                this.emit.store_scalar(element(object.start, position, size as u8, k * size), bits, object.width());
            }
        };
        let store_all = |this: &mut Self| {
            (0..this.shape.tile.lanes as i32).for_each(|lane| store(this, Lane::Known(lane), None));
        };
        let inside = self.ranges.is_inside(id);
        match self.active_in_copy(Axes::ALL, pack) {
            Some(active) => {
                let bits = self.emit.mask_bits(active);
                self.for_each_lane(bits, |this, lane| {
                    let next = this.emit.block(this.emit.is_cold());
                    store(this, lane, (!inside).then_some(next));
                    this.emit.enter(next);
                });
            }
            None if inside => store_all(self),
            None => {
                // All lanes are inside, or the runtime looks at each.
                let (away, done) = (self.emit.block(true), self.emit.block(false));
                let limit = self.limit(object, values.len() as i32 - 1);
                let inside = self.inside_mask(indices, Some(limit), None);
                self.emit.test_all(&[inside]);
                self.emit.skip_to(away, Code::Jae_rel32_64);
                store_all(self);
                self.done_or_slowly(done, Some(away), |this| this.scatter_values(object, index, pack, values));
            }
        }
    }

    // Atomics.

    pub(super) fn atomic(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        debug_assert_eq!(inst.op.row().kind, Kind::Atomic);
        let memory = inst.op.memory().expect("an atomic names an object");
        let object = self.object(memory);
        let shared = self.program.memory[memory].space != Space::Workgroup;
        let ty = object.element.value_type();
        let (index, operands) = (inst.operands[0], inst.operands[1..].to_vec());
        let results = inst.results.clone();
        let unused = results.iter().all(|&result| self.uses.is_unused(result));
        if unused && self.update_lanes(id, object, shared) {
            return;
        }
        let mut all: Vec<Regs> = vec![Regs::new(); results.len()];
        let inline = !self.emit.is_cold() && self.may_write_lanes();
        for pack in 0..self.shape.tile.packs() as usize {
            if inline {
                let mark = self.scope();
                self.exchange_lanes(id, object, shared, unused, pack);
                self.leave(mark);
            } else {
                self.pass_active(pack);
                self.pass(index, pack, 0);
                for (number, &operand) in operands.iter().enumerate() {
                    self.pass(operand, pack, 1 + number);
                }
                let array = self.pass_array(object, pack);
                self.service(Site::Atomic { array, op: inst.op.clone(), ty, shared });
            }
            for (number, list) in all.iter_mut().enumerate() {
                let ty = self.program.ty(results[number]);
                list.extend(self.receive(ty, 3 + number));
            }
        }
        for (&result, regs) in results.iter().zip(&all) {
            self.hold(result, regs);
        }
    }

    /// Changes elements, if nobody asks what they were and the processor has an instruction for the change.
    fn update_lanes(&mut self, id: InstId, object: Object, shared: bool) -> bool {
        let inst = &self.program.insts[id];
        let (combining, narrow, wide) = match inst.op {
            Op::AtomicAdd(_) => (Op::Add, Code::Add_rm32_r32, Code::Add_rm64_r64),
            Op::AtomicSub(_) => (Op::Add, Code::Sub_rm32_r32, Code::Sub_rm64_r64),
            Op::AtomicAnd(_) => (Op::And, Code::And_rm32_r32, Code::And_rm64_r64),
            Op::AtomicOr(_) => (Op::Or, Code::Or_rm32_r32, Code::Or_rm64_r64),
            Op::AtomicXor(_) => (Op::Xor, Code::Xor_rm32_r32, Code::Xor_rm64_r64),
            _ => return false,
        };
        let of_64 = object.size() == 8;
        let (code, width) = if of_64 { (wide, Width::Qword) } else { (narrow, Width::Dword) };
        let (index, value) = (inst.operands[0], inst.operands[1]);
        let axes = self.shape.axes[index];
        if !axes.meets(Axes::LANE) {
            // One element: lanes are combined first, or only counted if they all have the same.
            let count = axes.is_uniform() && self.shape.axes[value].is_uniform() && combining == Op::Add;
            if of_64 && !count {
                return false;
            }
            for pack in self.shape.tile.packs_of(axes) {
                let position = self.scalar(index, pack);
                let total = if count {
                    let (count, value) = (self.active_count(), self.scalar(value, 0));
                    let multiply = if of_64 { Code::Imul_r64_rm64 } else { Code::Imul_r32_rm32 };
                    self.emit.s2(multiply, width, count, value)
                } else {
                    let lanes = self.combined(&combining, value, axes, pack);
                    self.emit.first_lane(lanes, false)
                };
                let done = self.emit.block(self.emit.is_cold());
                self.skip_unless_inside(object, position, 0, done);
                let address = element(object.start, position, object.size() as u8, 0);
                self.emit.update(code, address, total, width, shared);
                self.emit.enter(done);
            }
            return true;
        }
        if !self.may_write_lanes() {
            return false;
        }
        let tile = self.shape.tile;
        let fixed = !self.shape.axes[value].meets(Axes::LANE);
        let bound = self.bound(id, object, 0);
        for pack in 0..tile.packs() as usize {
            let mark = self.scope();
            let indices = self.vector(index, pack, 0);
            let active = self.active_in_copy(Axes::ALL, pack);
            let mask = self.inside_mask(indices, bound, active);
            let in_memory = self.in_memory(index, pack).filter(|_| self.is_inside(id));
            if in_memory.is_none() {
                let address = self.scratch(service::slot(0));
                self.emit.store(address, indices);
            }
            if !fixed {
                self.pass(value, pack, 1);
            }
            let scalar = fixed.then(|| self.scalar(value, pack));
            let position = |this: &mut Self, lane: Lane| {
                let address = this.lane_of(service::slot(0), 4, lane);
                this.emit.load_scalar(address, Width::Dword)
            };
            let change = |this: &mut Self, lane: Lane, position: Reg| {
                let operand = scalar.unwrap_or_else(|| {
                    let address = this.lane_of(service::slot(1), object.size(), lane);
                    this.emit.load_scalar(address, width)
                });
                let address = element(object.start, position, object.size() as u8, 0);
                this.emit.update(code, address, operand, width, shared);
            };
            if self.is_inside(id) {
                let mut word = None;
                for lane in 0..tile.lanes as i32 {
                    let position = match in_memory {
                        Some(place) => self.lane_in_memory(place, lane, &mut word),
                        None => position(self, Lane::Known(lane)),
                    };
                    change(self, Lane::Known(lane), position);
                }
            } else {
                let bits = self.emit.mask_bits(mask);
                self.for_each_lane(bits, |this, lane| {
                    let position = position(this, lane);
                    change(this, lane, position);
                });
            }
            self.leave(mark);
        }
        true
    }

    /// Changes elements lane by lane, and leaves in scratch memory what they were, for lanes that are active and inside, and zeros for others.
    fn exchange_lanes(&mut self, id: InstId, object: Object, shared: bool, unused: bool, pack: usize) {
        let inst = &self.program.insts[id];
        let (size, width) = (object.size(), object.width());
        let (index, operands) = (inst.operands[0], &inst.operands[1..]);
        let indices = self.vector(index, pack, 0);
        self.pass_vector(indices, 0);
        let mut scalars: SmallVec<[Option<Reg>; 2]> = SmallVec::new();
        for (number, &operand) in operands.iter().enumerate() {
            let fixed = !self.shape.axes[operand].meets(Axes::LANE);
            scalars.push(fixed.then(|| self.scalar(operand, pack)));
            if !fixed {
                self.pass(operand, pack, 1 + number);
            }
        }
        if !unused {
            let zero = self.emit.zero();
            for number in 0..inst.results.len() {
                self.pass_vectors(&[zero; 2][..size as usize / 4], 3 + number);
            }
        }
        let (bound, active) = (self.bound(id, object, 0), self.active_in_copy(Axes::ALL, pack));
        let mask = self.inside_mask(indices, bound, active);
        let bits = self.emit.mask_bits(mask);
        self.for_each_lane(bits, |this, lane| {
            let place = this.lane_of(service::slot(0), 4, lane);
            let position = this.emit.load_scalar(place, Width::Dword);
            let address = element(object.start, position, size as u8, 0);
            let operand = |this: &mut Self, number: usize| {
                scalars[number].unwrap_or_else(|| {
                    let place = this.lane_of(service::slot(1 + number), size, lane);
                    this.emit.load_scalar(place, width)
                })
            };
            let value = operand(this, 0);
            let old = match inst.op {
                Op::AtomicCompareExchange(_) => {
                    let new = operand(this, 1);
                    let old = this.emit.compare_exchange(address, value, new, width, shared);
                    let replaced = this.emit.set(Code::Sete_rm8);
                    let replaced = this.emit.s1_in_place(Code::Neg_rm32, Width::Dword, replaced);
                    let place = this.lane_of(service::slot(4), 4, lane);
                    this.emit.store_scalar(place, replaced, Width::Dword);
                    old
                }
                _ => this.exchange_one(&inst.op, object, address, value, shared),
            };
            if !unused {
                let place = this.lane_of(service::slot(3), size, lane);
                this.emit.store_scalar(place, old, width);
            }
        });
    }

    /// Changes an element, and gives what it was.
    fn exchange_one(&mut self, op: &Op, object: Object, address: Address, value: Reg, shared: bool) -> Reg {
        let width = object.width();
        let pick = |narrow, wide| if width == Width::Dword { narrow } else { wide };
        let signed = matches!(object.element, Element::I32 | Element::I64);
        let add = pick(Code::Xadd_rm32_r32, Code::Xadd_rm64_r64);
        let (combine, stays) = match op {
            Op::AtomicAdd(_) => return self.emit.fetch(add, address, value, width, shared),
            Op::AtomicSub(_) => {
                let negated = self.emit.s1_in_place(pick(Code::Neg_rm32, Code::Neg_rm64), width, value);
                return self.emit.fetch(add, address, negated, width, shared);
            }
            // It is locked in any case.
            Op::AtomicExchange(_) => {
                let code = pick(Code::Xchg_rm32_r32, Code::Xchg_rm64_r64);
                return self.emit.fetch(code, address, value, width, false);
            }
            Op::AtomicAnd(_) => (Some(pick(Code::And_r32_rm32, Code::And_r64_rm64)), Some(Code::Je_rel32_64)),
            Op::AtomicOr(_) => (Some(pick(Code::Or_r32_rm32, Code::Or_r64_rm64)), Some(Code::Je_rel32_64)),
            Op::AtomicXor(_) => (Some(pick(Code::Xor_r32_rm32, Code::Xor_r64_rm64)), None),
            Op::AtomicMin(_) => (None, Some(if signed { Code::Jge_rel32_64 } else { Code::Jae_rel32_64 })),
            Op::AtomicMax(_) => (None, Some(if signed { Code::Jle_rel32_64 } else { Code::Jbe_rel32_64 })),
            _ => unreachable!("it has one operand"),
        };
        let cold = self.emit.is_cold();
        let (again, done) = (self.emit.block(cold), self.emit.block(cold));
        let (found, result) = (self.emit.param(again, Class::Scalar), self.emit.param(done, Class::Scalar));
        let first = self.emit.load_scalar(address, width);
        self.emit.jump(again, &[first]);
        self.emit.at = again;
        let new = combine.map_or(value, |code| self.emit.s2(code, width, found, value));
        if let Some(stays) = stays {
            self.emit.cmp(new, found, width);
            self.emit.jump_if(stays, done, &[found]);
        }
        let old = self.emit.compare_exchange(address, found, new, width, shared);
        self.emit.jump_if(Code::Je_rel32_64, done, &[found]);
        self.emit.jump(again, &[old]);
        self.emit.at = done;
        result
    }

    /// Where the lanes of a pack are in memory, if they were loaded from side by side and nobody writes there: one by one they need
    /// not go through a vector.
    fn in_memory(&mut self, value: ValueId, pack: usize) -> Option<(Element, Address)> {
        let program = self.program;
        let Def::Result(id, 0) = program.values[value].def else { return None };
        let (Op::Load(memory), &[index]) = (&program.insts[id].op, program.insts[id].operands.as_slice()) else {
            return None;
        };
        let plain = program.memory[*memory].space != Space::Private && !self.shape.written[*memory];
        let integer = matches!(program.ty(value), Type::I32 | Type::U32);
        if !plain
            || !integer
            || self.hoisted[id]
            || !self.is_inside(id)
            || !self.is_linear(index)
            || !self.is_there(index)
        {
            return None;
        }
        let (object, tile) = (self.object(*memory), self.shape.tile);
        let (spots, _, offset) = self.spots(id, object.start, index);
        let (row, before) = tile.in_row(pack, spots.len());
        let (start, first) = spots[row];
        let displacement = (before + offset) * object.size();
        Some((object.element, element(start, first, object.size() as u8, displacement)))
    }

    /// A lane that is in memory, of those that are asked for in order. Bytes are loaded by fours.
    fn lane_in_memory(&mut self, (element, address): (Element, Address), lane: i32, word: &mut Option<Reg>) -> Reg {
        let displacement = address.displacement + lane * element.size() as i32;
        let address = Address { displacement, ..address };
        if element != Element::U8 {
            return self.load_element(element, address);
        }
        let bytes = match *word {
            Some(word) if lane % 4 != 0 => self.emit.s1i(Code::Shr_rm32_imm8, Width::Dword, word, Operand::Byte(8)),
            _ => self.emit.load_scalar(address, Width::Dword),
        };
        *word = Some(bytes);
        self.emit.s1_of(Code::Movzx_r32_rm8, Width::Dword, Width::Byte, bytes)
    }

    /// Executes code for each lane whose bit is set, in order.
    fn for_each_lane(&mut self, bits: Reg, body: impl FnOnce(&mut Self, Lane)) {
        let cold = self.emit.is_cold();
        let (header, done) = (self.emit.block(cold), self.emit.block(cold));
        let left = self.emit.param(header, Class::Scalar);
        self.emit.test(bits);
        self.emit.skip_to(done, Code::Je_rel32_64);
        self.emit.jump(header, &[bits]);
        self.emit.at = header;
        let lane = self.emit.s1(Code::Tzcnt_r32_rm32, Width::Dword, left);
        let rest = self.emit.s1(Code::VEX_Blsr_r32_rm32, Width::Dword, left);
        body(self, Lane::Found(lane));
        self.emit.test(rest);
        self.emit.skip_to(done, Code::Je_rel32_64);
        self.emit.jump(header, &[rest]);
        self.emit.at = done;
    }

    /// Where a lane of a value in scratch memory is.
    fn lane_of(&mut self, start: i32, size: i32, lane: Lane) -> Address {
        let address = self.scratch(start);
        match lane {
            Lane::Known(lane) => Address { displacement: start + lane * size, ..address },
            Lane::Found(lane) => Address { index: Some((lane, Width::Qword, size as u8)), ..address },
        }
    }

    // Effects.

    pub(super) fn print(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        let Op::Print(format) = &inst.op else { unreachable!("only prints come here") };
        let types: Vec<Type> = inst.operands.iter().map(|&operand| self.program.ty(operand)).collect();
        self.report(id, || Site::Print { format: format.clone(), types: types.clone() });
    }

    pub(super) fn trap(&mut self, id: InstId) {
        let span = self.program.insts[id].span;
        self.report(id, || Site::Trap { span });
    }

    /// Has the runtime look at the operands of all lanes, and at which invocations they are.
    fn report(&mut self, id: InstId, site: impl Fn() -> Site) {
        let invocations = self.global_lanes();
        for (pack, &invocations) in invocations.iter().enumerate() {
            self.pass_active(pack);
            self.pass_vector(invocations, 0);
            for (number, &operand) in self.program.insts[id].operands.iter().enumerate() {
                self.pass(operand, pack, 1 + number);
            }
            self.service(site());
        }
    }

    // What the runtime gets and gives.

    fn scratch(&mut self, offset: i32) -> Address {
        let end = offset as u32 + service::SLOT as u32;
        self.emit.function.scratch = self.emit.function.scratch.max(end);
        at(Base::Scratch, offset)
    }

    /// Passes the active lanes of a pack.
    pub(super) fn pass_active(&mut self, pack: usize) {
        self.pass_mask(self.state.mask.as_ref().map(|mask| mask.packs[pack]));
    }

    /// Passes a mask, or that all lanes are active; not again if that was said last. The runtime does not write to it.
    fn pass_mask(&mut self, mask: Option<Reg>) {
        if self.passed_mask.replace((self.emit.at, mask)) == Some((self.emit.at, mask)) {
            return;
        }
        let mask = mask.unwrap_or_else(|| self.emit.mask_constant(true));
        let vector = self.emit.mask_to_vector(mask);
        let address = self.scratch(service::MASK);
        self.emit.store(address, vector);
    }

    fn pass_vector(&mut self, vector: Reg, number: usize) {
        self.pass_vectors(&[vector], number);
    }

    fn pass_vectors(&mut self, halves: &[Reg], number: usize) {
        for (half, &reg) in halves.iter().enumerate() {
            let offset = service::slot(number) + half as i32 * self.emit.bytes();
            let address = self.scratch(offset);
            self.emit.store(address, reg);
        }
    }

    /// Passes the lanes of a value.
    pub(super) fn pass(&mut self, value: ValueId, pack: usize, number: usize) {
        let regs = if self.program.ty(value) == Type::Bool {
            let mask = self.mask_of(value, pack);
            smallvec![self.emit.mask_to_vector(mask)]
        } else {
            self.halves(value, pack)
        };
        self.pass_vectors(&regs, number);
    }

    /// Gets lanes of a type.
    pub(super) fn receive(&mut self, ty: Type, number: usize) -> SmallVec<[Reg; 2]> {
        let halves = if ty.bits() == 64 { 2 } else { 1 };
        let mut regs: SmallVec<[Reg; 2]> = SmallVec::new();
        for half in 0..halves {
            let address = self.scratch(service::slot(number) + half * self.emit.bytes());
            regs.push(self.emit.load(address));
        }
        if ty == Type::Bool {
            regs[0] = self.emit.mask_from_vector(regs[0]);
        }
        regs
    }

    /// Passes where a private array is, of which the elements are as far apart as a tile has lanes; gives what the runtime has to know.
    fn pass_array(&mut self, object: Object, pack: usize) -> Array {
        let array = Array { memory: object.memory, element: object.element, private: None };
        if !object.private {
            return array;
        }
        let address = self.scratch(service::START);
        self.emit.store_scalar(address, object.start, Width::Qword);
        let tile = self.shape.tile;
        let length = self.program.memory[object.memory].length.unwrap_or(0);
        let private = Private {
            stride: u64::from(tile.size()),
            column: u64::from(pack as u32 * tile.lanes),
            length: u64::from(length),
        };
        Array { private: Some(private), ..array }
    }
}
