//! Lowering of loads, stores and effects: contiguous, masked, strided, and gathered or scattered accesses, with their
//! bounds checks.
//!
//! An access with consecutive indices is one vector load or store if a single comparison shows that all of it is in
//! bounds, and a masked one otherwise; the rest is done lane by lane, mostly by the runtime. In a private array the
//! elements of a tile's lanes are adjacent, so that accesses with a uniform index are vector accesses, too.

use iced_x86::Code;
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::entity::{Entity, SecondaryMap};
use vyre_foundation::ir::ops::{Op, Pure};
use vyre_foundation::ir::{self, Def, Element, InstId, MemId, MemOperand, Program, Space, Type, ValueId};

use super::Lower;
use super::bounds_precheck::{AccessBase, Prechecked};
use super::memory::{Lane, Object};
use super::services;
use crate::x86::machine::emit::{Emit, Regs, at, element};
use crate::x86::machine::{Address, Base, BlockId, Class, Operand, Reg, Width};
use crate::x86::plan::Plan;
use crate::x86::plan::bounds::{AccessBounds, step};
use crate::x86::plan::shape::{Axes, Tile};
use crate::x86::service::{self, Array, Private, Site};

/// A strided index: a linear value times `stride`, plus values that are equal in all lanes.
struct Quads {
    root: ValueId,
    stride: i32,
    added: SmallVec<[ValueId; 2]>,
}

impl Quads {
    /// Address of the elements of a lane of a pack, from the indices of the first lane of each row.
    fn address(&self, object: Object, tile: Tile, bases: &[Reg], pack: usize, lane: i32) -> Address {
        let (row, before) = tile.in_row(pack, bases.len());
        element(object.start, bases[row], 4, 4 * self.stride * (before + lane))
    }
}

/// Greatest stride of [`Quads`]: distances between lanes are encoded as displacements.
const MAX_STRIDE: u64 = 1 << 16;

/// Base addresses of objects, and the bounds checks already done.
pub(super) struct Accesses {
    /// Address of the first element of each object.
    pub(super) starts: SecondaryMap<MemId, Option<Reg>>,
    /// The enclosing innermost loop whose precheck has passed.
    pub(super) prechecked: Option<Prechecked>,
    /// Number of accesses that may still be unrolled over the lanes instead of calling the runtime. Limits code size.
    inline_budget: usize,
}

impl Accesses {
    pub(super) fn new(program: &Program) -> Accesses {
        Accesses {
            starts: SecondaryMap::with_capacity(program.memories().len(), None),
            prechecked: None,
            inline_budget: 24,
        }
    }

    /// Splits the live ranges of the base addresses at an innermost loop: those that span the whole program are spilled
    /// first. Returns the registers to restore after the loop.
    pub(super) fn localize_starts(
        &mut self,
        emit: &mut Emit,
        plan: &Plan<'_>,
        body: ir::BlockId,
    ) -> SecondaryMap<MemId, Option<Reg>> {
        let outer = self.starts.clone();
        if !plan.has_loop(body) && !emit.is_cold() {
            for &id in &plan.program.block(body).insts {
                if let Some(memory) = plan.program.inst(id).op.memory()
                    && let (Some(start), true) = (self.starts[memory], self.starts[memory] == outer[memory])
                {
                    self.starts[memory] = Some(emit.copy(start));
                }
            }
        }
        outer
    }

    /// Takes one access from the inline budget; returns false if it is used up.
    pub(super) fn take_inline_budget(&mut self) -> bool {
        let takes = self.inline_budget > 0;
        self.inline_budget -= usize::from(takes);
        takes
    }
}

impl Lower<'_> {
    /// Returns whether an access without a mask needs a bounds check.
    pub(super) fn needs_check(&self, id: InstId) -> bool {
        self.bounds(id).needs_check(self.state.mask.is_none())
    }

    /// Returns whether an access whose index is equal in all lanes needs a bounds check. Copies for packs without
    /// active lanes may have any index.
    fn needs_check_once(&self, id: InstId) -> bool {
        let index = self.plan.program.inst(id).operands[0];
        let one = self.plan.shape.tile.copies(self.plan.shape.axes[index]) == 1;
        let all_active = self.state.mask.as_ref().is_none_or(|mask| !mask.maybe_empty && one);
        self.bounds(id).needs_check(all_active)
    }

    /// Broadcast limit for the indices of a masked access, if it is not known to be in bounds.
    pub(super) fn bound(&mut self, id: InstId, object: Object, offset: i32) -> Option<Reg> {
        (self.bounds(id) == AccessBounds::Masked).then(|| object.limit(&mut self.emit, offset))
    }

    pub(super) fn object(&mut self, access: MemOperand) -> Object {
        let MemOperand { memory, element, .. } = access;
        let object = self.plan.program.memory(memory);
        let entry = service::entry(self.plan.entries.position(memory, element));
        let start = self.accesses.starts[memory].expect("an indexed object has memory");
        if object.space != Space::Private {
            return Object { memory, entry, element, start, private: false };
        }
        let slot = match element {
            Element::I8 | Element::I16 | Element::I32 => Element::I32,
            Element::U8 | Element::U16 | Element::U32 | Element::F16 => Element::U32,
            Element::F32 => Element::F32,
            Element::I64 | Element::U64 | Element::F64 => element,
            Element::BF16 => unreachable!("legalized"),
        };
        let start = match self.tiles.position.number {
            // Every tile of the workgroup has its own private arrays.
            Some(number) => {
                let bytes =
                    u64::from(object.length.unwrap_or(0)) * slot.size() as u64 * u64::from(self.plan.shape.tile.size());
                let bytes = self.emit.immediate(bytes);
                let offset = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, bytes, number);
                self.emit.s2(Code::Add_r64_rm64, Width::Qword, offset, start)
            }
            None => start,
        };
        Object { memory, entry, element: slot, start, private: true }
    }

    /// Joins the result of a fast path with that of its slow path, the cold block `away`.
    fn or_slow_path(&mut self, regs: Regs, away: Option<BlockId>, slow: impl FnOnce(&mut Self) -> Regs) -> Regs {
        let Some(away) = away else { return regs };
        let mut arrivals = vec![self.state.arrival(&self.emit, regs)];
        self.emit.at = away;
        let scope = self.values.enter_scope();
        let regs = slow(self);
        self.values.leave_scope(scope);
        arrivals.push(self.state.arrival(&self.emit, regs));
        self.state.join(&mut self.emit, self.plan.shape.tile, arrivals)
    }

    /// Continues in `done` after a store, with the slow path in the cold block `away`.
    fn store_or_slow_path(&mut self, done: BlockId, away: Option<BlockId>, slow: impl FnOnce(&mut Self)) {
        self.emit.jump(done, &[]);
        if let Some(away) = away {
            self.emit.at = away;
            let scope = self.values.enter_scope();
            slow(self);
            self.values.leave_scope(scope);
            self.emit.jump(done, &[]);
        }
        self.emit.at = done;
    }

    // Loads.

    pub(super) fn load(&mut self, id: InstId, access: MemOperand) {
        let program = self.plan.program;
        let inst = program.inst(id);
        let Some(&index) = inst.operands.first() else {
            self.load_uniform(access.memory, inst.results[0]);
            return;
        };
        let object = self.object(access);
        if object.private {
            self.load_private(id, object, index);
        } else if !self.plan.shape.axes[index].intersects(Axes::LANE) {
            self.load_once(id, object, index);
        } else if self.plan.shape.is_linear(index) {
            self.load_run(id, object, index);
        } else if inst.results.len() == 4 && object.size() == 4 {
            self.load_quads(id, object, index);
        } else {
            self.prefetch_lanes(object, index);
            let regs = self.gather_all(id, object, index);
            self.define_all(&inst.results, &regs);
        }
    }

    fn load_uniform(&mut self, memory: MemId, result: ValueId) {
        let ty = self.plan.program.ty(result);
        let address = at(Base::Context, service::entry(memory.index()));
        let of_64 = ty.bits() == 64;
        let reg = if ty.is_float() {
            self.emit.broadcast_from(address, of_64)
        } else {
            self.emit.load_scalar(address, if of_64 { Width::Qword } else { Width::Dword })
        };
        self.define(result, &[reg]);
    }

    /// Loads elements at an index that is equal in all lanes of a pack.
    fn load_once(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.plan.program.inst(id).results.clone();
        let (count, size) = (results.len() as i32, object.size());
        let (bases, _, offset) = self.access_bases(id, object.start, index);
        let load_all = |this: &mut Self, load: &dyn Fn(&mut Self, AccessBase, i32) -> Reg| -> Regs {
            let elements = (0..count).flat_map(|k| bases.iter().map(move |&spot| (spot, offset + k)));
            elements.map(|(spot, offset)| load(this, spot, offset)).collect()
        };
        let direct = |this: &mut Self, (start, index): AccessBase, offset: i32| {
            this.emit.load_element(object.element, element(start, index, size as u8, offset * size))
        };
        // All elements in one check, or each one separately on the slow path.
        let away = (self.needs_check_once(id)).then(|| {
            let away = self.emit.block(true);
            for &(_, index) in &bases {
                object.skip_unless_inside(&mut self.emit, index, offset + count - 1, away);
            }
            away
        });
        let regs = load_all(self, &direct);
        let regs = self.or_slow_path(regs, away, |this| {
            load_all(this, &|this, (_, index), offset| object.load_or_zero(&mut this.emit, index, offset))
        });
        self.define_all(&results, &regs);
    }

    /// Bounds check of `count` consecutive elements per lane, for all rows: returns the cold block that handles a
    /// failure.
    fn jump_unless_inside(&mut self, object: Object, index: ValueId, count: usize) -> BlockId {
        let tile = self.plan.shape.tile;
        let (index, offset) = self.addend(index);
        let away = self.emit.block(true);
        for row in 0..tile.rows_of(self.plan.shape.axes[index]) {
            let first = self.base(index, row);
            let last = (tile.width() as usize + count) as i32 - 2;
            object.skip_unless_inside(&mut self.emit, first, last + offset, away);
        }
        away
    }

    /// Loads elements at consecutive indices.
    fn load_run(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.plan.program.inst(id).results.clone();
        let axes = self.plan.shape.axes[index];
        let tile = self.plan.shape.tile;
        let size = object.size();
        let (bases, root, offset) = self.access_bases(id, object.start, index);
        self.prefetch(object, root, &bases);
        let fast = |this: &mut Self| {
            let mut regs = Regs::new();
            for k in 0..results.len() as i32 {
                for pack in tile.packs_of(axes) {
                    let (row, before) = tile.in_row(pack, bases.len());
                    let (start, first) = bases[row];
                    let offset = (before + offset + k) * size;
                    regs.extend(this.emit.load_vector(object.element, element(start, first, size as u8, offset)));
                }
            }
            regs
        };
        let regs = if !self.needs_check(id) {
            fast(self)
        } else if self.state.mask.is_some() && size >= 4 {
            self.load_run_lanes(id, object, index)
        } else {
            let slow = self.jump_unless_inside(object, index, results.len());
            let regs = fast(self);
            self.or_slow_path(regs, Some(slow), |this| match size >= 4 {
                true => this.load_run_lanes(id, object, index),
                false => this.gather_all(id, object, index),
            })
        };
        self.define_all(&results, &regs);
    }

    /// Masked load at consecutive indices, of the lanes that are in bounds.
    fn load_run_lanes(&mut self, id: InstId, object: Object, index: ValueId) -> Regs {
        let axes = self.plan.shape.axes[index];
        let firsts = self.signed_bases(index);
        let mut regs = Regs::new();
        for k in 0..self.plan.program.inst(id).results.len() as i32 {
            let bound = self.bound(id, object, k);
            for pack in self.plan.shape.tile.packs_of(axes) {
                // Inactive lanes may load any element that is in bounds.
                let active = if bound.is_none() {
                    self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, axes, pack)
                } else {
                    None
                };
                let (address, mask) = self.run_lanes(object, index, &firsts, pack, bound, active);
                let address = Address { displacement: address.displacement + k * object.size(), ..address };
                if object.size() == 4 {
                    regs.push(self.emit.load_lanes_of(address, mask, false));
                    continue;
                }
                for half in 0..2 {
                    let displacement = address.displacement + half * self.emit.bytes();
                    let mask = self.emit.mask_half(mask, half == 1);
                    regs.push(self.emit.load_lanes_of(Address { displacement, ..address }, mask, true));
                }
            }
        }
        regs
    }

    /// First lanes of each row of a linear value, sign-extended, so that a run may start below 0.
    fn signed_bases(&mut self, value: ValueId) -> Regs {
        let rows = 0..self.plan.shape.tile.rows_of(self.plan.shape.axes[value]);
        rows.map(|row| {
            let first = self.base(value, row);
            self.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, first)
        })
        .collect()
    }

    /// Address of a pack of a contiguous access, and the mask of its lanes that are in bounds.
    fn run_lanes(
        &mut self,
        object: Object,
        index: ValueId,
        firsts: &[Reg],
        pack: usize,
        bound: Option<Reg>,
        active: Option<Reg>,
    ) -> (Address, Reg) {
        let (row, before) = self.plan.shape.tile.in_row(pack, firsts.len());
        let indices = self.vector(index, pack, 0);
        let mask = self.emit.inside_mask(indices, bound, active);
        let size = object.size();
        (element(object.start, firsts[row], size as u8, before * size), mask)
    }

    /// Software prefetch for loops with strided accesses beyond the reach of the hardware prefetcher.
    fn prefetch(&mut self, object: Object, index: ValueId, bases: &[AccessBase]) {
        /// Prefetch distance in trips.
        const AHEAD: u8 = 8;
        let program = self.plan.program;
        let Some(enclosing) = self.loops.enclosing.last() else { return };
        let Some(step) = step(program, program.inst(enclosing.inst).blocks[0], index) else { return };
        let near = program.known(step).is_some_and(|step| step.bits * (object.size() as u64) < 2048);
        if near || self.emit.is_cold() || !self.plan.shape.axes[step].is_uniform() {
            return;
        }
        let step = self.scalar(step, 0);
        let width = self.plan.shape.tile.width() as i32 * object.size();
        for &(start, first) in bases {
            let ahead = self.emit.lea(element(first, step, AHEAD, 0), Width::Qword);
            for line in (0..width).step_by(64) {
                let address = element(start, ahead, object.size() as u8, line);
                self.emit.push(Code::Prefetcht0_m8, &[Operand::Memory(address)], true);
            }
        }
    }

    /// Software prefetch of indirect loads: loads the indices of a later tile early, and prefetches the elements they
    /// select in an object larger than caches.
    fn prefetch_lanes(&mut self, object: Object, index: ValueId) {
        /// Prefetch distance in invocations.
        const AHEAD: i32 = 64;
        /// Smaller objects mostly stay in caches.
        const LARGE: i32 = 1 << 20;
        let (program, tile) = (self.plan.program, self.plan.shape.tile);
        let Def::Result(id, 0) = program.def(index) else { return };
        let (&Op::Load(access), &[from]) = (&program.inst(id).op, program.inst(id).operands.as_slice()) else {
            return;
        };
        let in_storage = |memory: MemId| matches!(program.memory(memory).space, Space::Storage(_));
        let indices = self.object(access);
        if !in_storage(access.memory)
            || !in_storage(object.memory)
            || indices.size() != 4
            || self.emit.is_cold()
            || tile.rows != 1
            || !self.plan.shape.is_linear(from)
            || !self.is_available(from)
        {
            return;
        }
        let (first, done) = (self.base(from, 0), self.emit.block(false));
        let length = self.emit.load_scalar(object.length(), Width::Qword);
        self.emit.cmp_immediate(length, LARGE / object.size(), Width::Qword);
        self.emit.skip_to(done, Code::Jb_rel32_64);
        // The bounds check is on the same value as the load: an index derived from others may belong to inactive lanes.
        indices.skip_unless_inside(&mut self.emit, first, AHEAD + tile.width() as i32 - 1, done);
        for lane in 0..tile.width() as i32 {
            let address = element(indices.start, first, 4, (AHEAD + lane) * 4);
            let position = self.emit.load_scalar(address, Width::Dword);
            let address = element(object.start, position, object.size() as u8, 0);
            self.emit.push(Code::Prefetchnta_m8, &[Operand::Memory(address)], true);
        }
        self.emit.enter(done);
    }

    // Quads: accesses to four consecutive elements per lane, at a constant stride of at least four, so that lanes do
    // not overlap.

    /// Decomposes an index into a linear value times a constant, plus addends.
    fn quad_parts(&self, index: ValueId) -> Option<Quads> {
        let program = self.plan.program;
        let Def::Result(id, 0) = program.def(index) else { return None };
        let &[a, b] = program.inst(id).operands.as_slice() else { return None };
        let literal = |value: ValueId| program.known(value).map(|literal| literal.bits);
        let linear = |value: ValueId| self.plan.shape.is_linear(value) && self.is_available(value);
        let fixed = |value: ValueId| {
            !self.plan.shape.axes[value].intersects(Axes::LANE.union(Axes::COLUMN)) && self.is_available(value)
        };
        let multiple = |root: ValueId, stride: Option<u64>| {
            let stride = stride.filter(|stride| (4..=MAX_STRIDE).contains(stride) && linear(root))?;
            Some(Quads { root, stride: stride as i32, added: SmallVec::new() })
        };
        match program.inst(id).op {
            Op::Pure(Pure::Mul) => multiple(a, literal(b)).or_else(|| multiple(b, literal(a))),
            Op::Pure(Pure::Shl) => multiple(a, literal(b).and_then(|count| 1u64.checked_shl(count as u32))),
            Op::Pure(Pure::Add) => {
                let (inner, added) = if fixed(b) { (a, b) } else { (b, a) };
                let mut quads = self.quad_parts(inner).filter(|_| fixed(added))?;
                quads.added.push(added);
                Some(quads)
            }
            _ => None,
        }
    }

    /// Index of the first lane of each row, with the cold block that handles lanes out of bounds.
    fn quad_bases(&mut self, object: Object, index: ValueId, quads: &Quads) -> (Regs, BlockId) {
        let tile = self.plan.shape.tile;
        let away = self.emit.block(true);
        let mut bases = Regs::new();
        for row in 0..tile.rows_of(self.plan.shape.axes[index]) {
            let first = self.base(quads.root, row);
            let sources = [Operand::Use(first, Width::Dword), Operand::Dword(quads.stride)];
            let mut base = self.emit.make(Code::Imul_r32_rm32_imm32, Class::Scalar, Width::Dword, &sources);
            for &part in &quads.added {
                let part = self.scalar(part, row * tile.columns as usize);
                base = self.emit.s2(Code::Add_r32_rm32, Width::Dword, base, part);
            }
            object.skip_unless_inside(&mut self.emit, base, quads.stride * (tile.width() as i32 - 1) + 3, away);
            bases.push(base);
        }
        (bases, away)
    }

    /// Bounds check of four elements per lane at arbitrary indices: returns the cold block that handles a failure.
    fn jump_unless_quads_inside(&mut self, id: InstId, object: Object, index: ValueId) -> Option<BlockId> {
        if !self.needs_check(id) {
            return None;
        }
        let axes = self.plan.shape.axes[index];
        let away = self.emit.block(true);
        let limit = object.limit(&mut self.emit, 3);
        let masks = self.plan.shape.tile.packs_of(axes).map(|pack| {
            let indices = self.vector(index, pack, 0);
            self.emit.inside_mask(indices, Some(limit), None)
        });
        let inside: Regs = masks.collect();
        self.emit.test_all(&inside);
        self.emit.skip_to(away, Code::Jae_rel32_64);
        Some(away)
    }

    fn load_quads(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.plan.program.inst(id).results.clone();
        let quads = self.quad_parts(index);
        let (bases, slow) = match &quads {
            Some(quads) => {
                let (bases, slow) = self.quad_bases(object, index, quads);
                (bases, Some(slow))
            }
            None => (Regs::new(), self.jump_unless_quads_inside(id, object, index)),
        };
        let mut regs: [Regs; 4] = Default::default();
        for pack in self.plan.shape.tile.packs_of(self.plan.shape.axes[index]) {
            if quads.is_none() {
                let indices = self.vector(index, pack, 0);
                services::pass_vectors(&mut self.emit, &[indices], 0);
            }
            let address = |this: &mut Self, lane: i32| match &quads {
                None => {
                    let address = Lane::address(&mut this.emit, service::slot(0), 4, Lane::Known(lane));
                    let position = this.emit.load_scalar(address, Width::Dword);
                    element(object.start, position, 4, 0)
                }
                Some(quads) => quads.address(object, this.plan.shape.tile, &bases, pack, lane),
            };
            if self.plan.shape.tile.lanes == 16 && quads.as_ref().is_some_and(|quads| quads.stride == 4) {
                let first = address(self, 0);
                for (list, reg) in regs.iter_mut().zip(self.emit.load_lanes_by_fours(first)) {
                    list.push(reg);
                }
                continue;
            }
            // Four vectors, each with the elements of every fourth lane.
            let pairs = [0, 1, 2, 3].map(|lane| {
                let first = address(self, lane);
                let first = self.emit.load_quad(first);
                (1..self.plan.shape.tile.lanes as u8 / 4).fold(first, |vector, part| {
                    let address = address(self, lane + 4 * i32::from(part));
                    self.emit.insert_quad(vector, address, part)
                })
            });
            for (list, reg) in regs.iter_mut().zip(self.emit.transposed(pairs)) {
                list.push(reg);
            }
        }
        let regs = regs.into_iter().flatten().collect();
        let regs = self.or_slow_path(regs, slow, |this| this.gather_all(id, object, index));
        self.define_all(&results, &regs);
    }

    fn store_quads(&mut self, id: InstId, object: Object, index: ValueId, quads: &Quads, values: &[ValueId]) {
        let tile = self.plan.shape.tile;
        // Operands are materialized before the branch, so that they dominate both paths.
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
                // All elements are contiguous.
                let address = quads.address(object, self.plan.shape.tile, &bases, pack, 0);
                for (number, vector) in (0..).zip(self.emit.lanes_by_fours(lanes)) {
                    let displacement = address.displacement + number * self.emit.bytes();
                    whole.push((Address { displacement, ..address }, vector));
                }
                continue;
            }
            for (lane, vector) in (0..).zip(self.emit.transposed(lanes)) {
                for part in 0..tile.lanes as u8 / 4 {
                    let address = quads.address(object, self.plan.shape.tile, &bases, pack, lane + 4 * i32::from(part));
                    self.emit.store_quad(address, vector, part);
                }
            }
        }
        self.store_whole(object, tile.rows == 1, &whole, done);
        self.store_or_slow_path(done, Some(slow), |this| this.scatter_all(id, object, index, values));
    }

    /// Gathers all packs and results, lane by lane.
    fn gather_all(&mut self, id: InstId, object: Object, index: ValueId) -> Regs {
        let axes = if object.private { Axes::ALL } else { self.plan.shape.axes[index] };
        let tile = self.plan.shape.tile;
        let mut regs: SmallVec<[Regs; 4]> = smallvec![Regs::new(); self.plan.program.inst(id).results.len()];
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
                let active = self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, axes, pack);
                let mask = self.emit.inside_mask(indices, bound, active);
                list.push(if object.private {
                    let columns = Object::private_indices(&mut self.emit, self.plan.shape.tile, indices, k, pack);
                    object.gather(&mut self.emit, columns, mask, 0)
                } else {
                    object.gather(&mut self.emit, indices, mask, k)
                });
            }
        }
        regs.into_iter().flatten().collect()
    }

    /// Lanes of an index. Cold code computes those of a linear index from its first lane, which keeps them out of
    /// registers on the fast path.
    fn indices(&mut self, index: ValueId, pack: usize) -> Reg {
        if !self.plan.shape.is_linear(index) || !self.emit.is_cold() {
            return self.vector(index, pack, 0);
        }
        let columns = self.plan.shape.tile.columns as usize;
        let first = self.base(index, pack / columns);
        self.emit.run_of(self.plan.shape.tile, first)[pack % columns]
    }

    /// Gathers by a call of the runtime; appends the result registers to each list.
    fn gather_by_runtime(&mut self, object: Object, index: ValueId, axes: Axes, pack: usize, lists: &mut [Regs]) {
        let indices = self.indices(index, pack);
        let active = self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, axes, pack);
        let array = self.pass_array(object, pack);
        self.services.pass_mask(&mut self.emit, active);
        services::pass_vectors(&mut self.emit, &[indices], 0);
        self.services.call(&mut self.emit, Site::Gather { array, count: lists.len() });
        for (number, list) in lists.iter_mut().enumerate() {
            list.extend(services::receive(&mut self.emit, array.element.value_type(), 1 + number));
        }
    }

    // Private arrays.

    fn load_private(&mut self, id: InstId, object: Object, index: ValueId) {
        let results = self.plan.program.inst(id).results.clone();
        let regs = if self.plan.shape.axes[index].intersects(Axes::LANE) {
            self.gather_all(id, object, index)
        } else {
            let mut regs: SmallVec<[Regs; 4]> = smallvec![Regs::new(); results.len()];
            for pack in 0..self.plan.shape.tile.packs() as usize {
                self.load_private_run(id, object, index, pack, &mut regs);
            }
            regs.into_iter().flatten().collect()
        };
        self.define_all(&results, &regs);
    }

    /// Loads elements of a private array at an index that is equal in all lanes of a pack; appends the registers to
    /// each list.
    fn load_private_run(&mut self, id: InstId, object: Object, index: ValueId, pack: usize, lists: &mut [Regs]) {
        let at_index = self.scalar(index, pack);
        let away = (self.needs_check_once(id)).then(|| {
            let away = self.emit.block(true);
            object.skip_unless_inside(&mut self.emit, at_index, lists.len() as i32 - 1, away);
            away
        });
        let address = object.private_address(&mut self.emit, self.plan.shape.tile, at_index, pack);
        let stride = object.private_stride(self.plan.shape.tile);
        let displacements = (0..lists.len() as i32).map(|k| address.displacement + k * stride);
        let regs: Regs = displacements
            .flat_map(|displacement| self.emit.load_vector(object.element, Address { displacement, ..address }))
            .collect();
        let regs = self.or_slow_path(regs, away, |this| {
            let mut slow: SmallVec<[Regs; 4]> = smallvec![Regs::new(); lists.len()];
            this.gather_by_runtime(object, index, Axes::ALL, pack, &mut slow);
            slow.into_iter().flatten().collect()
        });
        let each = regs.len() / lists.len();
        for (list, own) in lists.iter_mut().zip(regs.chunks(each)) {
            list.extend_from_slice(own);
        }
    }

    fn store_private(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId]) {
        let declared = self.plan.program.memory(object.memory).element;
        for pack in 0..self.plan.shape.tile.packs() as usize {
            let mut regs = Regs::new();
            for &value in values {
                regs.extend(self.halves(value, pack).into_iter().map(|reg| self.emit.as_stored(declared, reg)));
            }
            if self.plan.shape.axes[index].intersects(Axes::LANE) {
                self.scatter_by_runtime(object, index, pack, &regs);
            } else {
                self.store_private_run(id, object, index, pack, &regs);
            }
        }
    }

    /// Stores elements of a private array at an index that is equal in all lanes of a pack.
    fn store_private_run(&mut self, id: InstId, object: Object, index: ValueId, pack: usize, regs: &[Reg]) {
        let at_index = self.scalar(index, pack);
        let of_64 = object.size() == 8;
        let halves = if of_64 { 2 } else { 1 };
        let count = regs.len() / halves;
        let done = self.emit.block(self.emit.is_cold());
        let away = if count == 1 { done } else { self.emit.block(true) };
        if self.needs_check_once(id) {
            object.skip_unless_inside(&mut self.emit, at_index, count as i32 - 1, away);
        }
        let address = object.private_address(&mut self.emit, self.plan.shape.tile, at_index, pack);
        for (number, &reg) in regs.iter().enumerate() {
            let (k, half) = ((number / halves) as i32, number % halves);
            let offset = k * object.private_stride(self.plan.shape.tile) + half as i32 * self.emit.bytes();
            let address = Address { displacement: address.displacement + offset, ..address };
            // Private memory has room for all lanes: inactive ones are blended with the old elements.
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
        // Some elements may be in bounds.
        let away = Some(away).filter(|&away| away != done);
        self.store_or_slow_path(done, away, |this| this.scatter_by_runtime(object, index, pack, regs));
    }

    // Stores.

    pub(super) fn store(&mut self, id: InstId, access: MemOperand) {
        let inst = self.plan.program.inst(id);
        let (index, values) = (inst.operands[0], inst.operands[1..].to_vec());
        let object = self.object(access);
        if object.private {
            self.store_private(id, object, index, &values);
            return;
        }
        let axes = inst.operands.iter().fold(Axes::NONE, |all, &operand| all.union(self.plan.shape.axes[operand]));
        if !axes.intersects(Axes::LANE) {
            for pack in self.plan.shape.tile.packs_of(axes) {
                self.store_once(id, object, axes, pack);
            }
        } else if self.plan.shape.is_linear(index) && values.len() == 1 {
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

    /// Stores elements at an index that is equal in all lanes of the packs that share a copy.
    fn store_once(&mut self, id: InstId, object: Object, axes: Axes, pack: usize) {
        let operands = self.plan.program.inst(id).operands.clone();
        // Operands are materialized before the branch, so that they dominate both paths.
        operands.iter().for_each(|&operand| self.materialize(operand));
        let (index, values) = (operands[0], &operands[1..]);
        let (bases, _, offset) = self.access_bases(id, object.start, index);
        let (start, at_index) = bases[self.plan.shape.tile.copy(self.plan.shape.axes[index], pack)];
        let done = self.emit.block(self.emit.is_cold());
        if self.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty || self.plan.shape.tile.copies(axes) > 1)
            && let Some(mask) = self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, axes, pack)
        {
            self.emit.test_none(&[mask]);
            self.emit.skip_to(done, Code::Je_rel32_64);
        }
        let size = object.size();
        for (k, &value) in values.iter().enumerate() {
            let k = offset + k as i32;
            let bits = self.scalar(value, pack);
            let next = self.emit.block(self.emit.is_cold());
            if self.needs_check_once(id) {
                object.skip_unless_inside(&mut self.emit, at_index, k, next);
            }
            self.emit.store_scalar(element(start, at_index, size as u8, k * size), bits, object.width());
            self.emit.enter(next);
        }
        self.emit.enter(done);
    }

    /// Stores lanes to consecutive elements.
    fn store_run(&mut self, id: InstId, object: Object, index: ValueId, value: ValueId) {
        let tile = self.plan.shape.tile;
        let size = object.size();
        let masked = self.state.mask.is_some();
        if masked && size < 4 {
            self.scatter_all(id, object, index, &[value]);
            return;
        }
        let axes = self.plan.shape.axes[index].union(self.plan.shape.axes[value]);
        // Operands are materialized before the branch, so that they dominate both paths.
        for pack in tile.packs_of(axes) {
            self.vector(value, pack, 0);
        }
        if masked {
            self.store_run_lanes(id, object, index, value);
            return;
        }
        let slow = (self.needs_check(id)).then(|| self.jump_unless_inside(object, index, 1));
        let (bases, _, offset) = self.access_bases(id, object.start, index);
        let address = |pack: usize| {
            let (row, before) = tile.in_row(pack, bases.len());
            let (start, first) = bases[row];
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
        self.store_or_slow_path(done, slow, |this| match size < 4 {
            true => this.scatter_all(id, object, index, &[value]),
            false => this.store_run_lanes(id, object, index, value),
        });
    }

    /// Stores whole vectors. Whole cache lines of an object that is never loaded may be stored non-temporally; that
    /// path continues at `done`.
    fn store_whole(&mut self, object: Object, lines: bool, vectors: &[(Address, Reg)], done: BlockId) {
        if let Some(&(first, _)) = vectors.first()
            && lines
            && !self.emit.is_cold()
            && self.plan.only_stored[object.memory]
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

    /// Masked store to consecutive elements, of the active lanes in bounds.
    fn store_run_lanes(&mut self, id: InstId, object: Object, index: ValueId, value: ValueId) {
        let axes = self.plan.shape.axes[index].union(self.plan.shape.axes[value]);
        let firsts = self.signed_bases(index);
        let bound = self.bound(id, object, 0);
        for pack in self.plan.shape.tile.packs_of(axes) {
            let active = self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, axes, pack);
            let (address, mask) = self.run_lanes(object, index, &firsts, pack, bound, active);
            self.store_vector(object.element, address, value, pack, Some(mask));
        }
    }

    fn store_vector(&mut self, element: Element, address: Address, value: ValueId, pack: usize, mask: Option<Reg>) {
        let lower = self.vector(value, pack, 0);
        match element.size() {
            1 | 2 => self.emit.store_narrow(element, address, lower),
            4 => self.emit.store_lanes(address, lower, mask, false),
            _ => {
                let upper = self.vector(value, pack, 1);
                let above = Address { displacement: address.displacement + self.emit.bytes(), ..address };
                let masks = mask.map(|mask| [self.emit.mask_half(mask, false), self.emit.mask_half(mask, true)]);
                self.emit.store_lanes(address, lower, masks.map(|masks| masks[0]), true);
                self.emit.store_lanes(above, upper, masks.map(|masks| masks[1]), true);
            }
        }
    }

    /// Scatters all packs, lane by lane.
    fn scatter_all(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId]) {
        for pack in 0..self.plan.shape.tile.packs() as usize {
            let scope = self.values.enter_scope();
            if self.emit.is_cold() || !self.accesses.take_inline_budget() {
                self.scatter_values(object, index, pack, values);
            } else {
                self.scatter_lanes(id, object, index, values, pack);
            }
            self.values.leave_scope(scope);
        }
    }

    fn scatter_values(&mut self, object: Object, index: ValueId, pack: usize, values: &[ValueId]) {
        let regs: Regs = values.iter().flat_map(|&value| self.halves(value, pack)).collect();
        self.scatter_by_runtime(object, index, pack, &regs);
    }

    /// Scatters by a call of the runtime. `regs` holds one register per value, or two for elements of 64 bits.
    fn scatter_by_runtime(&mut self, object: Object, index: ValueId, pack: usize, regs: &[Reg]) {
        self.services.pass_mask(&mut self.emit, self.state.of_pack(pack));
        let indices = self.indices(index, pack);
        services::pass_vectors(&mut self.emit, &[indices], 0);
        let values = regs.chunks(if object.size() == 8 { 2 } else { 1 });
        let count = values.len();
        for (number, value) in values.enumerate() {
            services::pass_vectors(&mut self.emit, value, 1 + number);
        }
        let array = self.pass_array(object, pack);
        self.services.call(&mut self.emit, Site::Scatter { array, count });
    }

    /// Scatters with inline code, lane by lane.
    fn scatter_lanes(&mut self, id: InstId, object: Object, index: ValueId, values: &[ValueId], pack: usize) {
        let (size, lanes) = (object.size(), self.plan.shape.tile.lanes);
        let indices = self.vector(index, pack, 0);
        services::pass_vectors(&mut self.emit, &[indices], 0);
        for (number, &value) in values.iter().enumerate() {
            if self.plan.shape.axes[value].intersects(Axes::LANE) {
                self.pass(value, pack, 1 + number);
            }
        }
        let scalars: SmallVec<[Option<Reg>; 4]> = values
            .iter()
            .map(|&value| (!self.plan.shape.axes[value].intersects(Axes::LANE)).then(|| self.scalar(value, pack)))
            .collect();
        // Branches to `outside`, if given, when an element is out of bounds.
        let store = |emit: &mut Emit, lane: Lane, outside: Option<BlockId>| {
            let address = Lane::address(emit, service::slot(0), 4, lane);
            let position = emit.load_scalar(address, Width::Dword);
            for (number, scalar) in scalars.iter().enumerate() {
                let k = number as i32;
                if let Some(outside) = outside {
                    object.skip_unless_inside(emit, position, k, outside);
                }
                let bits = scalar.unwrap_or_else(|| {
                    let (lane_size, width) = if size == 8 { (8, Width::Qword) } else { (4, Width::Dword) };
                    let address = Lane::address(emit, service::slot(1 + number), lane_size, lane);
                    emit.load_scalar(address, width)
                });
                emit.store_scalar(element(object.start, position, size as u8, k * size), bits, object.width());
            }
        };
        let store_all = |emit: &mut Emit| {
            (0..lanes as i32).for_each(|lane| store(emit, Lane::Known(lane), None));
        };
        let inside = self.bounds(id) != AccessBounds::Masked;
        match self.state.active_in_copy(&mut self.emit, self.plan.shape.tile, Axes::ALL, pack) {
            Some(active) => {
                let bits = self.emit.mask_bits(active);
                self.emit.for_each_lane(bits, |emit, lane| {
                    let next = emit.block(emit.is_cold());
                    store(emit, lane, (!inside).then_some(next));
                    emit.enter(next);
                });
            }
            None if inside => store_all(&mut self.emit),
            None => {
                // Fast path if all lanes are in bounds; otherwise the runtime checks each lane.
                let (away, done) = (self.emit.block(true), self.emit.block(false));
                let limit = object.limit(&mut self.emit, values.len() as i32 - 1);
                let inside = self.emit.inside_mask(indices, Some(limit), None);
                self.emit.test_all(&[inside]);
                self.emit.skip_to(away, Code::Jae_rel32_64);
                store_all(&mut self.emit);
                self.store_or_slow_path(done, Some(away), |lower| lower.scatter_values(object, index, pack, values));
            }
        }
    }

    // Effects.

    pub(super) fn print(&mut self, id: InstId, format: &str) {
        let inst = self.plan.program.inst(id);
        let types: Vec<Type> = inst.operands.iter().map(|&operand| self.plan.program.ty(operand)).collect();
        self.report(id, || Site::Print { format: format.into(), types: types.clone() });
    }

    pub(super) fn trap(&mut self, id: InstId) {
        let span = self.plan.program.inst(id).span;
        self.report(id, || Site::Trap { span });
    }

    /// Passes the operands of all lanes and the ids of their invocations to the runtime.
    fn report(&mut self, id: InstId, site: impl Fn() -> Site) {
        let invocations = self.global_lanes();
        for (pack, &invocations) in invocations.iter().enumerate() {
            self.services.pass_mask(&mut self.emit, self.state.of_pack(pack));
            services::pass_vectors(&mut self.emit, &[invocations], 0);
            for (number, &operand) in self.plan.program.inst(id).operands.iter().enumerate() {
                self.pass(operand, pack, 1 + number);
            }
            self.services.call(&mut self.emit, site());
        }
    }

    /// Passes the lanes of a value to the runtime.
    pub(super) fn pass(&mut self, value: ValueId, pack: usize, number: usize) {
        let regs = if self.plan.program.ty(value) == Type::Bool {
            let mask = self.mask(value, pack);
            smallvec![self.emit.mask_to_vector(mask)]
        } else {
            self.halves(value, pack)
        };
        services::pass_vectors(&mut self.emit, &regs, number);
    }

    /// Passes the address of a private array, whose elements are a tile apart; returns its descriptor for the runtime.
    pub(super) fn pass_array(&mut self, object: Object, pack: usize) -> Array {
        let array = Array { entry: object.entry, element: object.element, private: None };
        if !object.private {
            return array;
        }
        let address = services::scratch(&mut self.emit, service::START);
        self.emit.store_scalar(address, object.start, Width::Qword);
        let tile = self.plan.shape.tile;
        let length = self.plan.program.memory(object.memory).length.unwrap_or(0);
        let private = Private {
            stride: u64::from(tile.size()),
            column: u64::from(pack as u32 * tile.lanes),
            length: u64::from(length),
        };
        Array { private: Some(private), ..array }
    }
}
