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
use vyre_foundation::analysis::{Ranges, Uses, exits_of};
use vyre_foundation::ir::entity::{Arena, Entity};
use vyre_foundation::ir::ops::{Axis, Kind, Op};
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Space, Type, ValueId};
use vyre_foundation::planted::{self, Bug};

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
    pub(crate) only_stored: Arena<MemId, bool>,
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
    pub(super) last_uses: Arena<ValueId, Option<InstId>>,
    pub(super) emit: Emit,
    pub(super) sites: Vec<Site>,
    pub(super) held: Arena<ValueId, Option<Held>>,
    /// Whether instructions are being computed before what stands in front of them: what is known there does not hold yet.
    pub(super) hoisting: bool,
    /// Accesses of the innermost loop that were checked before it.
    pub(super) checked: FxHashMap<InstId, Checked>,
    /// Instructions that were computed outside of the loops over tiles.
    pub(super) hoisted: Arena<InstId, bool>,
    /// Vectors made of scalars, by value and copy, and values that were loaded from memory of the tile: good until the
    /// current scope ends.
    cached: FxHashMap<(ValueId, usize), Reg>,
    log: Vec<Cached>,
    pub(super) state: State,
    pub(super) loops: Vec<EnclosingLoop>,
    /// How many divergent conditions and loops there are around the current place.
    pub(super) divergence: usize,
    pub(super) place: Place,
    /// Index in the grid of the first invocation of the workgroup, or of all if workgroups are merged; and its position.
    group_first: Option<Reg>,
    group_origin: [Option<Reg>; 3],
    pub(super) starts: Arena<MemId, Option<Reg>>,
    /// Where a tile keeps values for other segments, in bytes; of values that are the same for the workgroup, where the
    /// workgroup does.
    slots: Arena<ValueId, Option<i32>>,
    /// Values that other segments compute again.
    again: Arena<ValueId, bool>,
    /// Where a tile keeps which lanes have ended.
    ended_slot: Option<i32>,
    /// Where a workgroup keeps whether anybody is left after a segment.
    left_slot: i32,
    pub(super) bytes_per_tile: i32,
    pub(super) bytes_per_group: i32,
    split: bool,
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
    pub(super) only_stored: Arena<MemId, bool>,
}

enum Cached {
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
        held: Arena::filled(program.values.len(), None),
        hoisting: false,
        checked: FxHashMap::default(),
        hoisted: Arena::filled(program.insts.len(), false),
        cached: FxHashMap::default(),
        log: Vec::new(),
        state: State::default(),
        loops: Vec::new(),
        divergence: 0,
        place: Place::default(),
        group_first: None,
        group_origin: [None; 3],
        starts: Arena::filled(program.memory.len(), None),
        slots: Arena::filled(program.values.len(), None),
        again: Arena::filled(program.values.len(), false),
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
fn only_stored(program: &Program) -> Arena<MemId, bool> {
    let mut only_stored = Arena::filled(program.memory.len(), false);
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
fn last_uses(program: &Program) -> Arena<ValueId, Option<InstId>> {
    fn block(
        program: &Program,
        id: BlockId,
        around: &mut Vec<InstId>,
        depths: &mut Arena<ValueId, usize>,
        last: &mut Arena<ValueId, Option<InstId>>,
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
    let mut last = Arena::filled(program.values.len(), None);
    let mut depths = Arena::filled(program.values.len(), 0);
    block(program, program.body, &mut Vec::new(), &mut depths, &mut last);
    last
}

/// Whether an instruction makes invocations of a workgroup wait for each other.
fn waits(op: &Op) -> bool {
    matches!(op, Op::WorkgroupBarrier | Op::StorageBarrier | Op::Broadcast)
}

impl Lower<'_> {
    fn function(&mut self) {
        let program = self.program;
        let size: u32 = program.workgroup_size.iter().product();
        let tile = self.shape.tile;
        let mut waiting = false;
        program.walk(|inst, _| waiting |= waits(&program.insts[inst].op));
        self.split = waiting && size > tile.size();
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
            self.tiles_of_run(body);
            self.finish();
            // Workgroups are not gone through one by one.
            self.emit.at = self.group_end;
            self.emit.ret();
            return;
        }
        let header = self.emit.block(false);
        self.emit.jump(header, &[]);
        self.emit.at = header;
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

    fn has_private(&self) -> bool {
        self.program.memory.values().any(|memory| memory.space == Space::Private)
    }

    /// Goes on with the next workgroup, if there is one.
    fn next_group(&mut self, header: machine::BlockId) {
        let context = |offset| machine::Operand::Memory(at(Base::Context, offset));
        let inc = |emit: &mut Emit, offset| {
            emit.push(Code::Inc_rm32, &[context(offset)], true);
        };
        inc(&mut self.emit, service::FIRST);
        let done = self.emit.block(false);
        let more = self.emit.block(false);
        // Another workgroup along x, or the start of the next row, or of the next plane.
        let [x, y, z] = [0, 1, 2].map(|axis| service::GROUP + 4 * axis);
        for (axis, next) in [(x, y), (y, z)] {
            inc(&mut self.emit, axis);
            let at_axis = self.emit.load_scalar(at(Base::Context, axis), Width::Dword);
            self.emit.cmp(at_axis, at(Base::Context, axis - service::GROUP + service::COUNTS), Width::Dword);
            let (inside, outside) = self.emit.branch(Code::Jb_rel32_64, false, false);
            self.emit.at = inside;
            self.emit.jump(more, &[]);
            self.emit.at = outside;
            let zero = self.emit.immediate(0);
            self.emit.store_scalar(at(Base::Context, axis), zero, Width::Dword);
            if next == z {
                inc(&mut self.emit, z);
            }
        }
        self.emit.jump(more, &[]);
        self.emit.at = more;
        self.emit.push(Code::Dec_rm32, &[context(service::GROUPS)], true);
        let (again, out) = self.emit.branch(Code::Jne_rel32_64, false, false);
        self.emit.at = again;
        self.emit.jump(header, &[]);
        self.emit.at = out;
        self.emit.jump(done, &[]);
        self.emit.at = done;
        self.finish();
    }

    /// Returns. What went past the caches is in memory then.
    fn finish(&mut self) {
        if self.only_stored.values().any(|&only_stored| only_stored) {
            self.emit.push(Code::Sfence, &[], true);
        }
        self.emit.ret();
    }

    /// Computes instructions of a block that are the same for a whole dispatch or workgroup.
    fn hoist(&mut self, insts: &[InstId], is_outside: impl Fn(Axes) -> bool) {
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

    // Segments.

    /// Executes instructions of a block for all tiles of a workgroup. Values of the second list are kept for other segments.
    fn segment(&mut self, insts: &[InstId], kept: &[ValueId]) {
        // What was computed outside is done.
        if insts.iter().all(|id| self.hoisted[*id]) {
            return;
        }
        let outer = self.emit.block(false);
        self.tile_end = self.emit.block(false);
        if self.ended_slot.is_some() {
            for _ in 0..self.shape.tile.packs() {
                let class = if self.emit.wide() { Class::Mask } else { Class::Vector };
                self.emit.param(self.tile_end, class);
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
            let (nobody, somebody) = self.emit.branch(Code::Je_rel32_64, false, false);
            self.emit.at = nobody;
            self.emit.jump(self.group_end, &[]);
            self.emit.at = somebody;
        }
    }

    /// Executes a block for all invocations of merged workgroups.
    fn tiles_of_run(&mut self, insts: &[InstId]) {
        let outer = self.emit.block(false);
        self.tile_end = self.emit.block(false);
        let end = self.emit.load_scalar(at(Base::Context, service::POSITIONS), Width::Dword);
        let header = self.emit.block(false);
        let position = self.emit.param(header, Class::Scalar);
        let zero = self.emit.immediate(0);
        self.emit.jump(header, &[zero]);
        self.emit.at = header;
        self.place = Place { position: Some(position), ..Place::default() };
        if self.has_private() {
            self.service(Site::ClearTile);
        }
        self.run_until(insts, &[], end);
        self.emit.at = self.tile_end;
        let next = self.emit.lea(at(Base::Reg(position), self.shape.tile.width() as i32), Width::Dword);
        self.emit.cmp(next, end, Width::Dword);
        let (more, done) = self.emit.branch(Code::Jb_rel32_64, false, false);
        self.emit.at = more;
        self.emit.jump(header, &[next]);
        self.emit.at = done;
        self.emit.jump(outer, &[]);
        self.emit.at = outer;
    }

    /// Opens the loops over the tiles of a workgroup; gives where the code was before.
    fn open_tiles(&mut self) -> (Place, Vec<TileLoop>) {
        let (tile, size) = (self.shape.tile, self.program.workgroup_size);
        let (place, steps) = match tile.layout {
            Layout::Rows => {
                let (local, steps) = self.tile_loops(&[(size[0], tile.width()), (size[1], tile.rows), (size[2], 1)]);
                (Place { local: [local[0], local[1], local[2]], ..Place::default() }, steps)
            }
            Layout::Linear | Layout::Merged => {
                let (local, steps) = self.tile_loops(&[(size.iter().product(), tile.width())]);
                let position = local[0].unwrap_or_else(|| self.emit.immediate(0));
                (Place { position: Some(position), ..Place::default() }, steps)
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
            let zero = self.emit.immediate(0);
            let header = self.emit.block(false);
            let counter = self.emit.param(header, Class::Scalar);
            self.emit.jump(header, &[zero]);
            self.emit.at = header;
            counters[position] = Some(counter);
            loops.push(TileLoop { header, counter, end, step });
        }
        (counters, loops)
    }

    fn next_tile(&mut self, mut loops: Vec<TileLoop>, outer: machine::BlockId) {
        while let Some(TileLoop { header, counter, end, step }) = loops.pop() {
            let next = self.emit.lea(at(Base::Reg(counter), step as i32), Width::Dword);
            self.emit.cmp_immediate(next, end as i32, Width::Dword);
            let (more, done) = self.emit.branch(Code::Jb_rel32_64, false, false);
            self.emit.at = more;
            self.emit.jump(header, &[next]);
            self.emit.at = done;
        }
        self.emit.jump(outer, &[]);
    }

    /// Executes instructions for a tile.
    fn run(&mut self, insts: &[InstId], kept: &[ValueId]) {
        let tile = self.shape.tile;
        let size: u32 = self.program.workgroup_size.iter().product();
        if tile.layout == Layout::Linear && !size.is_multiple_of(tile.width()) {
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
        if let Some(slot) = self.ended_slot.filter(|_| !planted::is(Bug::X86EndedReturn)) {
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
            self.emit.test_none(&packs);
            let (nobody, somebody) = self.emit.branch(Code::Je_rel32_64, false, false);
            self.emit.at = nobody;
            self.end_all();
            self.emit.at = somebody;
            self.state.mask = Some(Mask { packs, maybe_empty: false });
        }
        let falls_through = self.insts(insts);
        if self.emit.is_open() {
            if let Some(mask) = self.state.mask.clone().filter(|mask| mask.maybe_empty) {
                // Lanes that have ended say nothing about what the workgroup shares.
                self.emit.test_none(&mask.packs);
                let (nobody, somebody) = self.emit.branch(Code::Je_rel32_64, false, false);
                self.emit.at = nobody;
                self.end_all();
                self.emit.at = somebody;
                self.state.mask = Some(mask);
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
    fn plan_segments(&mut self) {
        let program = self.program;
        self.again = cheap_values(program, &self.shape.written);
        let of = Arena::filled(program.values.len(), None);
        let last = Arena::filled(program.values.len(), 0);
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
    fn share_slots(&mut self, id: InstId, of: &Arena<ValueId, Option<usize>>, last: &Arena<ValueId, usize>) {
        let program = self.program;
        let inst = &program.insts[id];
        if inst.op != Op::Loop || !has_wait(program, inst.blocks[0]) {
            return;
        }
        let &[next] = exits_of(program, inst.blocks[0]).continues.as_slice() else { return };
        let next = &program.insts[next].operands;
        for (&param, &value) in program.blocks[inst.blocks[0]].params.iter().zip(next) {
            let (axes, of_value) = (self.shape.axes[param], self.shape.axes[value]);
            let alike = axes.within_tile() == of_value.within_tile() && self.classes(param) == self.classes(value);
            let once = next.iter().filter(|&&other| other == value).count() == 1;
            let known = of[value].is_some_and(|segment| last[param] <= segment);
            if alike && once && known && !axes.is_of_group() && !of_value.is_of_group() && self.slots[value].is_some() {
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
    fn sum(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
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
        let (to, by) = (self.emit.reg(Class::Scalar), machine::Operand::Dword(by as i32));
        let operands = [machine::Operand::Def(to, Width::Dword), machine::Operand::Use(a, Width::Dword), by];
        self.emit.push(Code::Imul_r32_rm32_imm32, &operands, false);
        to
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

    /// Executes a block of which parts wait for the whole workgroup.
    fn group_block(&mut self, block: BlockId, owner: Option<InstId>) {
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
                Op::WorkgroupBarrier | Op::StorageBarrier => self.flush(&mut pending),
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
                    let mut arms = Vec::new();
                    for &case in cases {
                        self.emit.cmp_immediate(selector, case as i32, Width::Dword);
                        let (arm, rest) = self.emit.branch(Code::Je_rel32_64, false, false);
                        arms.push(arm);
                        self.emit.at = rest;
                    }
                    arms.push(self.emit.at);
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
                    self.hand_over(&mut pending, &results, &inst.operands);
                    return;
                }
                Op::Break => {
                    let target = self.group_loops().inst;
                    let results = program.insts[target].results.clone();
                    let arguments = self.hand_over(&mut pending, &results, &inst.operands);
                    let exit = self.group_loops().exit;
                    self.emit.jump(exit, &arguments);
                    return;
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
                    return;
                }
                Op::Return => {
                    self.flush(&mut pending);
                    let end = self.group_end;
                    self.emit.jump(end, &[]);
                    return;
                }
                Op::Trap => {
                    pending.push(id);
                    self.flush(&mut pending);
                    let end = self.group_end;
                    self.emit.jump(end, &[]);
                    return;
                }
                op => unreachable!("`{}` does not wait", op.row().name),
            }
        }
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
        let shared: Vec<ValueId> =
            inst.results.iter().copied().filter(|&result| self.shape.axes[result].is_of_group()).collect();
        let mut params = Regs::new();
        for &result in &shared {
            for class in self.classes(result) {
                params.push(self.emit.param(join, class));
            }
        }
        for (&arm, &block) in arms.iter().zip(&inst.blocks) {
            self.emit.at = arm;
            let mark = self.scope();
            let last = *program.blocks[block].insts.last().expect("a block ends");
            self.group_block(block, Some(id));
            if self.emit.is_open() {
                let end = &program.insts[last];
                debug_assert_eq!(end.op, Op::Yield);
                let mut arguments = Regs::new();
                for (&result, &given) in inst.results.iter().zip(&end.operands) {
                    if self.shape.axes[result].is_of_group() {
                        arguments.extend(self.regs_for(result, given));
                    }
                }
                self.emit.jump(join, &arguments);
            }
            self.leave(mark);
        }
        self.emit.at = join;
        let mut rest = &params[..];
        for result in shared {
            let (own, others) = rest.split_at(self.classes(result).len());
            self.hold(result, own);
            rest = others;
        }
    }

    fn group_loop(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let params = program.blocks[body].params.clone();
        let entry = self.hand_over(&mut Vec::new(), &params, &inst.operands);
        let (header, exit) = (self.emit.block(false), self.emit.block(false));
        let hold = |this: &mut Self, block, values: &[ValueId]| {
            for &value in values {
                if this.shape.axes[value].is_of_group() {
                    let regs: Regs =
                        this.classes(value).into_iter().map(|class| this.emit.param(block, class)).collect();
                    this.hold(value, &regs);
                }
            }
        };
        hold(self, header, &params);
        hold(self, exit, &inst.results);
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
        let mut chosen = Regs::new();
        for &reg in regs {
            let class = self.emit.class(reg);
            let zero = self.zero_of(class);
            self.emit.test(ended);
            let (gone, there) = self.emit.branch(Code::Jne_rel32_64, true, false);
            let join = self.emit.block(false);
            let result = self.emit.param(join, class);
            self.emit.at = gone;
            self.emit.jump(join, &[zero]);
            self.emit.at = there;
            self.emit.jump(join, &[reg]);
            self.emit.at = join;
            chosen.push(result);
        }
        chosen
    }

    pub(super) fn zero_of(&mut self, class: Class) -> Reg {
        match class {
            Class::Scalar => self.emit.immediate(0),
            Class::Vector => self.emit.zero(),
            Class::Mask => self.emit.mask_constant(false),
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
        for copy in 0..tile.copies(axes) {
            let pack = tile.pack_of(axes, copy);
            if !axes.meets(Axes::LANE) {
                regs.push(if ty.is_float() { self.vector(from, pack, 0) } else { self.scalar(from, pack) });
            } else if ty == Type::Bool {
                regs.push(self.mask_of(from, pack));
            } else {
                for half in 0..if ty.bits() == 64 { 2 } else { 1 } {
                    regs.push(self.vector(from, pack, half));
                }
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

    /// Says where the invocations are, or how large something is.
    pub(super) fn place(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let result = inst.results[0];
        let size = program.workgroup_size;
        let tile = self.shape.tile;
        let context = |this: &mut Self, offset| this.emit.load_scalar(at(Base::Context, offset), Width::Dword);
        let group = |axis: Axis| service::GROUP + 4 * axis as i32;
        // What is the same in the workgroup.
        let fixed = match &inst.op {
            Op::GroupCount(axis) => Some(context(self, service::COUNTS + 4 * *axis as i32)),
            Op::GroupSize(axis) => Some(self.emit.immediate(u64::from(size[*axis as usize]))),
            Op::SubgroupSize => Some(self.emit.immediate(u64::from(tile.lanes))),
            Op::Length(memory) => Some(match program.memory[*memory].length {
                Some(length) => self.emit.immediate(u64::from(length)),
                None => context(self, service::object(*memory) + 8),
            }),
            Op::LocalId(axis) if size[*axis as usize] == 1 => Some(self.emit.immediate(0)),
            Op::GroupId(axis) if tile.layout != Layout::Merged => Some(context(self, group(*axis))),
            Op::GlobalId(axis) if size[*axis as usize] == 1 && tile.layout != Layout::Merged => {
                Some(context(self, group(*axis)))
            }
            Op::GroupIndex if tile.layout != Layout::Merged => Some(context(self, service::FIRST)),
            _ => None,
        };
        if let Some(reg) = fixed {
            self.hold(result, &[reg]);
            return;
        }
        match tile.layout {
            Layout::Rows => self.place_in_rows(&inst.op, result),
            Layout::Linear => {
                let position = self.place.position.expect("runs have a position");
                let first = match inst.op {
                    Op::GlobalIndex => self.sum(self.group_first, Some(position)).expect("two numbers"),
                    _ => position,
                };
                let lanes = self.run_of(first);
                self.place_by_index(&inst.op, result, first, &lanes, position);
            }
            Layout::Merged => {
                let position = self.place.position.expect("runs have a position");
                let first = self.sum(self.group_first, Some(position)).expect("two numbers");
                let lanes = self.run_of(first);
                self.place_by_index(&inst.op, result, first, &lanes, position);
            }
        }
    }

    /// A scalar, and one more for each following lane.
    pub(super) fn run_of(&mut self, first: Reg) -> Regs {
        let tile = self.shape.tile;
        let splat = self.emit.broadcast(first, false);
        let packs = (0..tile.columns).map(|column| {
            let iota = self.emit.iota(column * tile.lanes);
            self.emit.v2(super::emit::ADD_D, splat, iota)
        });
        packs.collect()
    }

    /// The index of each invocation in the grid, for all packs.
    pub(super) fn global_lanes(&mut self) -> Regs {
        let tile = self.shape.tile;
        let firsts: Regs = match self.place.position {
            Some(position) => Regs::from_slice(&[self.sum(self.group_first, Some(position)).expect("two numbers")]),
            None => {
                let local = self.local_index();
                let first = self.sum(self.group_first, local).expect("a workgroup has a place");
                let row = self.program.workgroup_size[0] as i32;
                (0..tile.rows as i32)
                    .map(|number| self.emit.lea(at(Base::Reg(first), number * row), Width::Dword))
                    .collect()
            }
        };
        firsts.into_iter().flat_map(|first| self.run_of(first)).collect()
    }

    /// The index in its workgroup of the first invocation of a rectangle, if it is not always 0.
    fn local_index(&mut self) -> Option<Reg> {
        let size = self.program.workgroup_size;
        let [x, y, z] = self.place.local;
        let plane = z.map(|z| self.scaled(z, size[1]));
        let row = self.sum(plane, y).map(|row| self.scaled(row, size[0]));
        self.sum(row, x)
    }

    fn place_in_rows(&mut self, op: &Op, result: ValueId) {
        let tile = self.shape.tile;
        let size = self.program.workgroup_size;
        let plus = |this: &mut Self, a: Reg, b: u32| {
            if b == 0 { a } else { this.emit.lea(at(Base::Reg(a), b as i32), Width::Dword) }
        };
        let or_zero = |this: &mut Self, reg: Option<Reg>| reg.unwrap_or_else(|| this.emit.immediate(0));
        match op {
            Op::LocalId(axis) | Op::GlobalId(axis) => {
                let local = self.place.local[*axis as usize];
                let first = match op {
                    Op::LocalId(_) => local,
                    _ => self.sum(self.group_origin[*axis as usize], local),
                };
                let first = or_zero(self, first);
                let regs: Regs = match axis {
                    Axis::X => {
                        let mut regs = self.run_of(first);
                        regs.push(first);
                        regs
                    }
                    Axis::Y => (0..tile.rows).map(|row| plus(self, first, row)).collect(),
                    Axis::Z => Regs::from_slice(&[first]),
                };
                self.hold(result, &regs);
            }
            _ => {
                // Linear indices, and what is made of them.
                let mut first = self.local_index();
                if *op == Op::GlobalIndex {
                    first = self.sum(self.group_first, first);
                }
                let first = or_zero(self, first);
                let lanes = tile.lanes;
                let stride = if planted::is(Bug::X86RowStart) { 0 } else { size[0] };
                let bases: Regs = (0..tile.rows).map(|row| plus(self, first, row * stride)).collect();
                let mut regs = Regs::new();
                match op {
                    Op::GlobalIndex | Op::LocalIndex => {
                        bases.iter().for_each(|&base| regs.extend(self.run_of(base)));
                        regs.extend(bases);
                    }
                    // Packs are subgroups.
                    Op::SubgroupLane => {
                        let iota = self.emit.iota(0);
                        regs.push(self.emit.load(iota));
                        if self.is_linear(result) {
                            regs.push(self.emit.immediate(0));
                        }
                    }
                    Op::SubgroupId => {
                        for base in bases {
                            let shift = machine::Operand::Byte(lanes.trailing_zeros() as i8);
                            let subgroup = self.emit.s1i(Code::Shr_rm32_imm8, Width::Dword, base, shift);
                            regs.extend((0..tile.columns).map(|column| plus(self, subgroup, column)));
                        }
                    }
                    op => unreachable!("`{}` does not ask for a place", op.row().name),
                }
                self.hold(result, &regs);
            }
        }
    }

    /// From an index in the workgroup.
    fn in_subgroup(&mut self, op: &Op, index: Reg) -> Reg {
        let lanes = self.shape.tile.lanes;
        if *op == Op::SubgroupId {
            self.emit.v1i(super::emit::SHR_D_BY, index, lanes.trailing_zeros() as u8)
        } else {
            let mask = self.emit.constant(u64::from(lanes - 1), false);
            self.emit.v2(super::emit::AND, index, mask)
        }
    }

    /// Positions by division of an index, which is that of the workgroup or, if workgroups are merged, of the grid.
    fn place_by_index(&mut self, op: &Op, result: ValueId, first: Reg, lanes: &[Reg], position: Reg) {
        let program = self.program;
        let size = program.workgroup_size;
        let total: u32 = size.iter().product();
        let merged = self.shape.tile.layout == Layout::Merged;
        let mut regs = Regs::new();
        match op {
            Op::GlobalIndex => {
                regs.extend_from_slice(lanes);
                regs.push(first);
            }
            Op::LocalIndex if !merged => {
                regs.extend_from_slice(lanes);
                regs.push(position);
            }
            Op::LocalId(Axis::X) if !merged && self.is_linear(result) => {
                regs.extend_from_slice(lanes);
                regs.push(position);
            }
            Op::GlobalId(Axis::X) if !merged && self.is_linear(result) => {
                let first = self.sum(self.group_origin[0], Some(position)).expect("two numbers");
                regs = self.run_of(first);
                regs.push(first);
            }
            _ => {
                for &index in lanes {
                    let (group, local) = if merged { self.divide_lanes(index, total) } else { (index, index) };
                    let local_id = |this: &mut Self, axis: Axis| match axis {
                        Axis::X => this.divide_lanes(local, size[0]).1,
                        Axis::Y => {
                            let rows = this.divide_lanes(local, size[0]).0;
                            this.divide_lanes(rows, size[1]).1
                        }
                        Axis::Z => this.divide_lanes(local, size[0] * size[1]).0,
                    };
                    let group_id = |this: &mut Self, axis: Axis| -> Reg {
                        if !merged {
                            let id = this
                                .emit
                                .load_scalar(at(Base::Context, service::GROUP + 4 * axis as i32), Width::Dword);
                            return this.emit.broadcast(id, false);
                        }
                        this.group_of_lanes(group, axis)
                    };
                    regs.push(match op {
                        Op::LocalIndex => local,
                        Op::LocalId(axis) => local_id(self, *axis),
                        Op::GroupIndex => group,
                        Op::GroupId(axis) => group_id(self, *axis),
                        Op::GlobalId(axis) => {
                            let id = group_id(self, *axis);
                            let size = self.emit.constant(u64::from(size[*axis as usize]), false);
                            let start = self.emit.v2(super::emit::MUL_D, id, size);
                            let local = local_id(self, *axis);
                            self.emit.v2(super::emit::ADD_D, start, local)
                        }
                        Op::SubgroupId | Op::SubgroupLane => self.in_subgroup(op, local),
                        op => unreachable!("`{}` does not ask for a place", op.row().name),
                    });
                }
            }
        }
        self.hold(result, &regs);
    }

    /// The position of workgroups along an axis.
    fn group_of_lanes(&mut self, index: Reg, axis: Axis) -> Reg {
        let count = |this: &mut Self, axis: i32| {
            let count = this.emit.load_scalar(at(Base::Context, service::COUNTS + 4 * axis), Width::Dword);
            this.emit.broadcast(count, false)
        };
        let x = count(self, 0);
        let rows = self.quotient_of_lanes(index, x);
        match axis {
            Axis::X => self.remainder_of_lanes(index, rows, x),
            Axis::Y => {
                let y = count(self, 1);
                let planes = self.quotient_of_lanes(rows, y);
                self.remainder_of_lanes(rows, planes, y)
            }
            Axis::Z => {
                let y = count(self, 1);
                self.quotient_of_lanes(rows, y)
            }
        }
    }

    fn remainder_of_lanes(&mut self, a: Reg, quotient: Reg, by: Reg) -> Reg {
        let whole = self.emit.v2(super::emit::MUL_D, quotient, by);
        self.emit.v2(super::emit::SUB_D, a, whole)
    }

    /// Quotient and remainder of lanes by a number that is not 0.
    fn divide_lanes(&mut self, a: Reg, by: u32) -> (Reg, Reg) {
        if by == 1 {
            return (a, self.emit.zero());
        }
        if by.is_power_of_two() {
            let mask = self.emit.constant(u64::from(by - 1), false);
            let quotient = self.emit.v1i(super::emit::SHR_D_BY, a, by.trailing_zeros() as u8);
            return (quotient, self.emit.v2(super::emit::AND, a, mask));
        }
        let by = self.emit.splat(u64::from(by), false);
        let quotient = self.quotient_of_lanes(a, by);
        (quotient, self.remainder_of_lanes(a, quotient, by))
    }
}

struct TileLoop {
    header: machine::BlockId,
    counter: Reg,
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
    program.blocks[block].insts.iter().any(|&id| {
        let inst = &program.insts[id];
        waits(&inst.op) || inst.blocks.iter().any(|&nested| has_wait(program, nested))
    })
}

/// Whether a loop around this instruction is left or continued from inside it. The caller only asks where the innermost loop
/// is one of the workgroup.
fn leaves_group_loop(program: &Program, id: InstId) -> bool {
    program.insts[id].blocks.iter().any(|&block| {
        program.blocks[block].insts.iter().any(|&nested| match program.insts[nested].op {
            Op::Break | Op::Continue => true,
            Op::Loop => false,
            _ => leaves_group_loop(program, nested),
        })
    })
}

/// Values that take an instruction or two to compute from where the invocation stands and what the workgroup shares.
fn cheap_values(program: &Program, written: &Arena<MemId, bool>) -> Arena<ValueId, bool> {
    /// How many instructions in a row are computed again.
    const MOST: u8 = 4;
    let mut steps: Arena<ValueId, Option<u8>> = Arena::filled(program.values.len(), None);
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
    let mut again = Arena::filled(program.values.len(), false);
    for value in program.values.keys() {
        again[value] = steps[value].is_some();
    }
    again
}

/// Numbers segments, and finds the values that are needed in another one than their own.
struct Segments<'p> {
    program: &'p Program,
    again: &'p Arena<ValueId, bool>,
    current: usize,
    of: Arena<ValueId, Option<usize>>,
    /// The last segment that a value is used in.
    last: Arena<ValueId, usize>,
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
