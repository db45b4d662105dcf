//! From a program to machine code.
//!
//! The code of a program is a loop over workgroups; in it, loops over the tiles of a workgroup; in these, the instructions of
//! the program, each for all packs of a tile. What is the same for a whole dispatch or workgroup is computed outside of the
//! loops over tiles.
//!
//! Where invocations of a workgroup wait for each other and a tile does not hold all of them, the program is cut at the
//! barriers. The *segments* between them have a loop over tiles each. Control flow around a barrier is the same for the whole
//! workgroup, and becomes control flow around the loops; values that differ between invocations and are needed in another
//! segment go through memory.

use iced_x86::{Code, Register};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use vyre_foundation::analysis::{Ranges, Uses};
use vyre_foundation::ir::entity::{Entity, SecondaryMap};
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Space, Type, ValueId};

use super::ahead::Checked;
use super::emit::{Emit, Regs, at};
use super::machine::{self, Base, Class, Function, Reg, Width};
use super::service::{self, Site};
use super::shape::{Axes, Layout, Shape, Tile};

/// A program as machine code without registers, and what it needs at run time.
pub(crate) struct Lowered {
    pub(crate) function: Function,
    pub(crate) sites: Vec<Site>,
    pub(crate) tile: Tile,
    /// Storage that is stored to and never loaded from.
    pub(crate) only_stored: SecondaryMap<MemId, bool>,
    /// Bytes that each tile of a workgroup keeps from segment to segment.
    pub(crate) bytes_per_tile: usize,
    /// Bytes that a workgroup keeps from segment to segment.
    pub(crate) bytes_per_group: usize,
    /// Whether there are several segments.
    pub(crate) split: bool,
}

/// A value in registers.
#[derive(Clone)]
pub(super) struct Held {
    /// Along what it differs in a tile.
    pub(super) axes: Axes,
    /// For each copy one register, or two where lanes have 64 bits. Values that are the same in all lanes are scalars, or
    /// vectors with the same in all lanes if they are floats.
    pub(super) regs: Regs,
    /// Of a linear value, the first lane of the first pack of each row.
    pub(super) base: Option<Regs>,
}

/// The lanes that execute something.
#[derive(Clone)]
pub(super) struct Mask {
    /// One for each pack.
    pub(super) packs: Regs,
    /// Whether there may be none.
    pub(super) maybe_empty: bool,
}

/// What changes on the way through a program besides its values.
#[derive(Clone, Default)]
pub(super) struct State {
    /// The active lanes; all if there is no mask.
    pub(super) mask: Option<Mask>,
    /// Variables of the innermost loop.
    pub(super) variables: Regs,
}

/// A loop around the code that is being written.
pub(super) struct EnclosingLoop {
    pub(super) inst: InstId,
    pub(super) header: machine::BlockId,
    pub(super) exit: machine::BlockId,
    /// Lanes may leave or continue at different times.
    pub(super) divergent: bool,
    /// Some lanes may continue while others are still in the trip.
    pub(super) staged: bool,
    /// The mask is handed on from trip to trip, because lanes may end.
    pub(super) carries_mask: bool,
    /// How many divergent conditions there are between the loop and the current place.
    pub(super) depth: usize,
    /// Trips before the next poll, if they are counted in a register.
    pub(super) budget: Option<Reg>,
}

impl EnclosingLoop {
    /// A loop that all lanes leave and continue together.
    pub(super) fn together(inst: InstId, header: machine::BlockId, exit: machine::BlockId) -> EnclosingLoop {
        EnclosingLoop {
            inst,
            header,
            exit,
            divergent: false,
            staged: false,
            carries_mask: false,
            depth: 0,
            budget: None,
        }
    }
}

/// Where the current tile is.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// Local position of the first invocation in each dimension, for tiles that are rectangles, where it is not always 0.
    pub(super) local: [Option<Reg>; 3],
    /// Index of the first invocation in the workgroup, or in what the call executes if workgroups are merged.
    pub(super) position: Option<Reg>,
    /// How many invocations there are, if workgroups are merged.
    pub(super) end: Option<Reg>,
    /// The number of the tile in its workgroup, and what it keeps, if there are several segments.
    pub(super) number: Option<Reg>,
    pub(super) kept: Option<Reg>,
}

pub(super) struct Lower<'p> {
    pub(super) program: &'p Program,
    pub(super) shape: Shape,
    pub(super) ranges: Ranges,
    pub(super) uses: Uses,
    /// For each value, the instruction of its own block that uses it last, itself or inside.
    pub(super) last_uses: SecondaryMap<ValueId, Option<InstId>>,
    pub(super) emit: Emit,
    pub(super) sites: Vec<Site>,
    pub(super) held: SecondaryMap<ValueId, Option<Held>>,
    /// Whether instructions are being computed before what stands in front of them: what is known there does not hold yet.
    pub(super) hoisting: bool,
    /// Accesses of the innermost loop that were checked before it.
    pub(super) checked: FxHashMap<InstId, Checked>,
    /// Instructions that were computed outside of the loops over tiles.
    pub(super) hoisted: SecondaryMap<InstId, bool>,
    /// Vectors made of scalars, by value and copy, and values that were loaded from memory of the tile: good until the
    /// current scope ends.
    pub(super) cached: FxHashMap<(ValueId, usize), Reg>,
    pub(super) log: Vec<Cached>,
    pub(super) state: State,
    pub(super) loops: Vec<EnclosingLoop>,
    /// How many divergent conditions and loops there are around the current place.
    pub(super) divergence: usize,
    pub(super) place: Place,
    /// Index in the grid of the first invocation of the workgroup, or of all if workgroups are merged; and its position.
    pub(super) group_first: Option<Reg>,
    pub(super) group_origin: [Option<Reg>; 3],
    pub(super) starts: SecondaryMap<MemId, Option<Reg>>,
    /// Where a tile keeps values for other segments, in bytes; of values that are the same for the workgroup, where the
    /// workgroup does.
    pub(super) slots: SecondaryMap<ValueId, Option<i32>>,
    /// Values that other segments compute again.
    pub(super) again: SecondaryMap<ValueId, bool>,
    /// Where a tile keeps which lanes have ended.
    pub(super) ended_slot: Option<i32>,
    /// Where a workgroup keeps whether anybody is left after a segment.
    pub(super) left_slot: i32,
    pub(super) bytes_per_tile: i32,
    pub(super) bytes_per_group: i32,
    pub(super) split: bool,
    /// The end of the loop body over tiles, and the end of everything.
    pub(super) tile_end: machine::BlockId,
    pub(super) group_end: machine::BlockId,
    pub(super) stop: machine::BlockId,
    /// How many more instructions may be written twice, once for the case that all lanes agree.
    pub(super) spare: usize,
    /// How many more accesses may be written out lane by lane, rather than be left to the runtime.
    pub(super) spare_lanes: usize,
    /// The mask that was passed to the runtime last, and in which block.
    pub(super) passed_mask: Option<(machine::BlockId, Option<Reg>)>,
    /// Storage that is stored to and never loaded from.
    pub(super) only_stored: SecondaryMap<MemId, bool>,
}

pub(super) enum Cached {
    Vector((ValueId, usize)),
    Kept(ValueId),
}

/// Lowers a program for tiles of a form.
pub(crate) fn lower(program: &Program, tile: Tile) -> Lowered {
    let wide = tile.lanes == 16;
    let mut emit = Emit::new(wide);
    let entry = emit.at;
    let (group_end, stop) = (emit.block(false), emit.block(true));
    emit.at = stop;
    emit.ret();
    emit.at = entry;
    let mut lower = Lower {
        program,
        shape: Shape::of(program, tile),
        ranges: Ranges::of(program),
        uses: Uses::of(program),
        last_uses: last_uses(program),
        emit,
        sites: Vec::new(),
        held: SecondaryMap::with_capacity(program.values.len(), None),
        hoisting: false,
        checked: FxHashMap::default(),
        hoisted: SecondaryMap::with_capacity(program.insts.len(), false),
        cached: FxHashMap::default(),
        log: Vec::new(),
        state: State::default(),
        loops: Vec::new(),
        divergence: 0,
        place: Place::default(),
        group_first: None,
        group_origin: [None; 3],
        starts: SecondaryMap::with_capacity(program.memory.len(), None),
        slots: SecondaryMap::with_capacity(program.values.len(), None),
        again: SecondaryMap::with_capacity(program.values.len(), false),
        ended_slot: None,
        left_slot: 0,
        bytes_per_tile: 0,
        bytes_per_group: 0,
        split: false,
        // Every loop over tiles has its own.
        tile_end: stop,
        group_end,
        stop,
        // Large programs are not made larger.
        spare: if program.insts.len() > 500 { 50 } else { 400 },
        spare_lanes: 24,
        passed_mask: None,
        only_stored: only_stored(program),
    };
    lower.function();
    Lowered {
        bytes_per_tile: lower.bytes_per_tile as usize,
        bytes_per_group: lower.bytes_per_group as usize,
        split: lower.split,
        function: lower.emit.function,
        sites: lower.sites,
        only_stored: lower.only_stored,
        tile,
    }
}

/// Which storage is stored to and never loaded from, by plain instructions.
fn only_stored(program: &Program) -> SecondaryMap<MemId, bool> {
    let mut only_stored = SecondaryMap::with_capacity(program.memory.len(), false);
    for (id, memory) in program.memory.iter() {
        only_stored[id] = matches!(memory.space, Space::Storage(_)) && !memory.atomic;
    }
    program.walk(|inst, _| {
        let op = &program.insts[inst].op;
        if let (Some(memory), false) = (op.memory(), matches!(op, Op::Store(_) | Op::Length(_))) {
            only_stored[memory] = false;
        }
    });
    only_stored
}

/// For each value, the instruction of the block it is defined in that uses it last.
fn last_uses(program: &Program) -> SecondaryMap<ValueId, Option<InstId>> {
    fn block(
        program: &Program,
        id: BlockId,
        around: &mut Vec<InstId>,
        depths: &mut SecondaryMap<ValueId, usize>,
        last: &mut SecondaryMap<ValueId, Option<InstId>>,
    ) {
        let depth = around.len();
        program.blocks[id].params.iter().for_each(|&param| depths[param] = depth);
        for &inst in &program.blocks[id].insts {
            around.push(inst);
            for &operand in &program.insts[inst].operands {
                last[operand] = around.get(depths[operand]).copied();
            }
            for &nested in &program.insts[inst].blocks {
                block(program, nested, around, depths, last);
            }
            around.pop();
            program.insts[inst].results.iter().for_each(|&result| depths[result] = depth);
        }
    }
    let mut last = SecondaryMap::with_capacity(program.values.len(), None);
    let mut depths = SecondaryMap::with_capacity(program.values.len(), 0);
    block(program, program.body, &mut Vec::new(), &mut depths, &mut last);
    last
}

/// Whether an instruction makes invocations of a workgroup wait for each other.
pub(super) fn waits(op: &Op) -> bool {
    matches!(op, Op::WorkgroupBarrier | Op::StorageBarrier | Op::Broadcast)
}

impl Lower<'_> {
    fn function(&mut self) {
        let program = self.program;
        let size: u32 = program.workgroup_size.iter().product();
        let tile = self.shape.tile;
        self.split = program.contains(program.body, waits) && size > tile.size();
        if self.split {
            self.plan_segments();
        }
        let scratch = self.emit.lea(at(Base::Scratch, 0), Width::Qword);
        self.emit.store_scalar(at(Base::Context, service::SCRATCH_START), scratch, Width::Qword);
        for (id, memory) in program.memory.iter() {
            if memory.space != Space::Uniform {
                self.starts[id] = Some(self.emit.load_scalar(at(Base::Context, service::object(id)), Width::Qword));
            }
        }
        // What is the same everywhere is computed first. Loads are: what they load may not be written to.
        let body = &program.blocks[program.body].insts;
        self.hoist(body, Axes::is_nowhere);

        if tile.layout == Layout::Merged {
            self.find_group();
            self.segment(body, &[]);
            self.finish();
            // Workgroups are not gone through one by one.
            self.emit.at = self.group_end;
            self.emit.ret();
            return;
        }
        let header = self.emit.block(false);
        self.emit.enter(header);
        let mark = self.scope();
        self.find_group();
        self.clear_memory();
        if self.split {
            self.group_block(program.body, None);
        } else {
            self.hoist(body, Axes::is_of_group);
            self.segment(body, &[]);
            let end = self.group_end;
            self.emit.jump(end, &[]);
        }
        self.leave(mark);
        self.emit.at = self.group_end;
        self.next_group(header);
    }

    /// Computes where the workgroup is.
    fn find_group(&mut self) {
        let size = self.program.workgroup_size;
        let index = self.emit.load_scalar(at(Base::Context, service::FIRST), Width::Dword);
        self.group_first = Some(self.scaled(index, size.iter().product()));
        self.group_origin = [0, 1, 2].map(|axis| {
            let id = self.emit.load_scalar(at(Base::Context, service::GROUP + 4 * axis), Width::Dword);
            Some(self.scaled(id, size[axis as usize]))
        });
    }

    /// Makes memory of the workgroup zero.
    fn clear_memory(&mut self) {
        let shared = self.program.memory.values().any(|memory| memory.space == Space::Workgroup);
        let kept = self.ended_slot.is_some();
        let private = self.split && self.has_private();
        if shared || kept || private {
            self.service(Site::ClearGroup);
        }
    }

    pub(super) fn has_private(&self) -> bool {
        self.program.memory.values().any(|memory| memory.space == Space::Private)
    }

    /// Goes on with the next workgroup, if there is one.
    fn next_group(&mut self, header: machine::BlockId) {
        let context = |offset| machine::Operand::Memory(at(Base::Context, offset));
        let inc = |emit: &mut Emit, offset| {
            emit.push(Code::Inc_rm32, &[context(offset)], true);
        };
        inc(&mut self.emit, service::FIRST);
        let more = self.emit.block(false);
        // Another workgroup along x, or the start of the next row, or of the next plane.
        let [x, y, z] = [0, 1, 2].map(|axis| service::GROUP + 4 * axis);
        for (axis, next) in [(x, y), (y, z)] {
            inc(&mut self.emit, axis);
            let at_axis = self.emit.load_scalar(at(Base::Context, axis), Width::Dword);
            self.emit.cmp(at_axis, at(Base::Context, axis - service::GROUP + service::COUNTS), Width::Dword);
            self.emit.skip_to(more, Code::Jb_rel32_64);
            let zero = self.emit.immediate(0);
            self.emit.store_scalar(at(Base::Context, axis), zero, Width::Dword);
            if next == z {
                inc(&mut self.emit, z);
            }
        }
        self.emit.enter(more);
        self.emit.push(Code::Dec_rm32, &[context(service::GROUPS)], true);
        self.emit.skip_to(header, Code::Jne_rel32_64);
        self.finish();
    }

    /// Returns. Non-temporal stores are in memory then.
    fn finish(&mut self) {
        self.fence_streams();
        self.emit.ret();
    }

    /// Orders non-temporal stores, if there can be any, before later stores: other stores are in order without a fence.
    pub(super) fn fence_streams(&mut self) {
        if self.only_stored.values().any(|&only_stored| only_stored) {
            self.emit.push(Code::Sfence, &[], true);
        }
    }

    /// Computes instructions of a block that are the same for a whole dispatch or workgroup.
    pub(super) fn hoist(&mut self, insts: &[InstId], is_outside: impl Fn(Axes) -> bool) {
        let program = self.program;
        for &id in insts {
            let inst = &program.insts[id];
            let computes = match inst.op.row().kind {
                Kind::Pure | Kind::PerGroup | Kind::PerInvocation => true,
                Kind::Access => matches!(inst.op, Op::Load(memory) if !self.shape.written[memory]),
                Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
            };
            let outside = inst.results.iter().all(|&result| is_outside(self.shape.axes[result]));
            // An operand that a segment computes must come from an earlier one.
            let ready = inst.operands.iter().all(|&operand| {
                self.held[operand].is_some()
                    || self.again[operand]
                    || self.is_there(operand)
                        && !matches!(program.values[operand].def, Def::Result(id, _) if insts.contains(&id))
            });
            if computes && outside && ready && !self.hoisted[id] {
                self.hoisting = true;
                self.inst(id);
                self.hoisting = false;
                self.hoisted[id] = true;
                // Made once, here, rather than wherever it is first needed in a loop; most often nobody does, and it goes.
                for &result in &inst.results {
                    if matches!(program.ty(result), Type::I32 | Type::U32 | Type::Bool) {
                        self.vector(result, 0, 0);
                    }
                }
            }
        }
    }

    // Values.

    pub(super) fn scope(&self) -> usize {
        self.log.len()
    }

    pub(super) fn leave(&mut self, mark: usize) {
        for entry in self.log.drain(mark..) {
            match entry {
                Cached::Vector(key) => {
                    self.cached.remove(&key);
                }
                Cached::Kept(value) => self.held[value] = None,
            }
        }
    }

    /// The classes of the registers of a value, in order.
    pub(super) fn classes(&self, value: ValueId) -> SmallVec<[Class; 4]> {
        let (axes, ty) = (self.shape.axes[value], self.program.ty(value));
        let copies = self.shape.tile.copies(axes);
        let mut classes: SmallVec<[Class; 4]> = SmallVec::new();
        if axes.meets(Axes::LANE) {
            let class = if ty == Type::Bool && self.emit.wide() { Class::Mask } else { Class::Vector };
            let halves = if ty.bits() == 64 { 2 } else { 1 };
            classes.extend(std::iter::repeat_n(class, copies * halves));
        } else {
            let class = if ty.is_float() { Class::Vector } else { Class::Scalar };
            classes.extend(std::iter::repeat_n(class, copies));
        }
        if self.is_linear(value) {
            classes.extend(std::iter::repeat_n(Class::Scalar, self.shape.tile.rows_of(axes)));
        }
        classes
    }

    pub(super) fn is_linear(&self, value: ValueId) -> bool {
        self.shape.linear[value] && self.shape.axes[value].meets(Axes::LANE)
    }

    /// A value is in these registers, in the order of its classes.
    pub(super) fn hold(&mut self, value: ValueId, regs: &[Reg]) {
        let axes = self.shape.axes[value].within_tile();
        let bases = if self.is_linear(value) { self.shape.tile.rows_of(axes) } else { 0 };
        let (own, base) = regs.split_at(regs.len() - bases);
        let base = (bases > 0).then(|| Regs::from_slice(base));
        self.held[value] = Some(Held { axes, regs: Regs::from_slice(own), base });
    }

    /// The registers of a value as those of another one, which it is given to.
    pub(super) fn regs_for(&mut self, to: ValueId, from: ValueId) -> Regs {
        let axes = self.shape.axes[to];
        let tile = self.shape.tile;
        let ty = self.program.ty(to);
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            if !axes.meets(Axes::LANE) {
                regs.push(if ty.is_float() { self.vector(from, pack, 0) } else { self.scalar(from, pack) });
            } else if ty == Type::Bool {
                regs.push(self.mask_of(from, pack));
            } else {
                regs.extend(self.halves(from, pack));
            }
        }
        if self.is_linear(to) {
            for row in 0..tile.rows_of(axes) {
                regs.push(self.base(from, row));
            }
        }
        regs
    }

    /// The first lane of a row of a linear value.
    pub(super) fn base(&mut self, value: ValueId, row: usize) -> Reg {
        self.fetch(value);
        let held = self.held[value].as_ref().expect("fetched");
        let base = held.base.as_ref().expect("a linear value has first lanes");
        base[if base.len() == 1 { 0 } else { row }]
    }

    /// A value that is the same in all lanes, as a scalar.
    pub(super) fn scalar(&mut self, value: ValueId, pack: usize) -> Reg {
        if let Some(literal) = self.program.known(value) {
            return self.emit.immediate(literal.bits);
        }
        self.fetch(value);
        let held = self.held[value].as_ref().expect("fetched");
        debug_assert!(!held.axes.meets(Axes::LANE), "a scalar is the same in all lanes");
        let reg = held.regs[self.shape.tile.copy(held.axes, pack)];
        match self.emit.class(reg) {
            Class::Scalar => reg,
            Class::Vector => self.emit.first_lane(reg, self.program.ty(value).bits() == 64),
            Class::Mask => unreachable!("the same in all lanes is a scalar"),
        }
    }

    /// A value in the lanes of a pack, or of one half of it if lanes have 64 bits. Bools are not asked for.
    pub(super) fn vector(&mut self, value: ValueId, pack: usize, half: usize) -> Reg {
        let ty = self.program.ty(value);
        let of_64 = ty.bits() == 64;
        if let Some(literal) = self.program.known(value) {
            let bits = if ty == Type::Bool { literal.bits.wrapping_neg() & 0xffff_ffff } else { literal.bits };
            return self.emit.splat(bits, of_64);
        }
        self.fetch(value);
        let held = self.held[value].as_ref().expect("fetched");
        let copy = self.shape.tile.copy(held.axes, pack);
        if held.axes.meets(Axes::LANE) {
            return held.regs[if of_64 { 2 * copy + half } else { copy }];
        }
        let reg = held.regs[copy];
        if self.emit.class(reg) == Class::Vector {
            return reg;
        }
        if let Some(&vector) = self.cached.get(&(value, copy)) {
            return vector;
        }
        let scalar = if ty == Type::Bool { self.emit.s1_in_place(Code::Neg_rm32, Width::Dword, reg) } else { reg };
        let vector = self.emit.broadcast(scalar, of_64);
        self.cached.insert((value, copy), vector);
        self.log.push(Cached::Vector((value, copy)));
        vector
    }

    /// A value in the lanes of a pack: one register, or two if lanes have 64 bits.
    pub(super) fn halves(&mut self, value: ValueId, pack: usize) -> SmallVec<[Reg; 2]> {
        let count = if self.program.ty(value).bits() == 64 { 2 } else { 1 };
        (0..count).map(|half| self.vector(value, pack, half)).collect()
    }

    /// A bool in the lanes of a pack.
    pub(super) fn mask_of(&mut self, value: ValueId, pack: usize) -> Reg {
        if let Some(literal) = self.program.known(value) {
            return self.emit.mask_constant(literal.bits != 0);
        }
        self.fetch(value);
        let held = self.held[value].as_ref().expect("fetched");
        if held.axes.meets(Axes::LANE) {
            return held.regs[self.shape.tile.copy(held.axes, pack)];
        }
        let vector = self.vector(value, pack, 0);
        if self.emit.wide() { self.emit.mask_from_vector(vector) } else { vector }
    }

    /// Calls the runtime.
    pub(super) fn service(&mut self, site: Site) {
        self.sites.push(site);
        let number = self.emit.immediate(self.sites.len() as u64 - 1);
        self.emit.call(at(Base::Context, service::SERVICE), &[(number, Register::RSI)]);
        self.emit.function.scratch = self.emit.function.scratch.max(service::SCRATCH);
    }
}

impl Tile {
    /// How many rows a value differs between.
    pub(super) fn rows_of(&self, axes: Axes) -> usize {
        if axes.meets(Axes::ROW) { self.rows as usize } else { 1 }
    }
}

impl Axes {
    fn is_nowhere(self) -> bool {
        self == Axes::NONE
    }
}

/// A key for the annotations of a listing.
pub(crate) fn origin(id: InstId) -> u32 {
    id.index() as u32 + 1
}
