//! Instruction selection: from the program to x86 instructions over virtual registers.
//!
//! The code of a program is a loop over workgroups that contains loops over tiles, which contain the instructions of
//! the program, each for all packs of a tile. Instructions that are uniform in the dispatch or in the workgroup are
//! hoisted out of the tile loops.
//!
//! [`Lower`] walks the program. Its parts own the state: [`Emit`] the code so far, [`Values`] the registers of values,
//! [`State`] the mask of active lanes, [`Loops`] the enclosing loops, [`Tiles`] the position in the workgroup,
//! [`Accesses`] the objects, and [`Services`] the runtime calls. [`arithmetic`] and [`memory`] emit sequences over
//! registers, independent of the program.

mod access;
mod arithmetic;
mod atomics;
mod bounds_precheck;
mod control;
mod invocation_ids;
mod masks;
mod memory;
mod segments;
mod select;
mod services;
mod subgroup;
mod values;

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{Def, InstId, Space, Type, ValueId};

use super::machine::emit::{Emit, Regs, at};
use super::machine::{self, Base, Function, Reg, Width};
use super::plan::Plan;
use super::plan::shape::{Axes, Layout};
use super::service::{self, Site};
use access::Accesses;
use control::Loops;
use masks::State;
use segments::Tiles;
use services::Services;
use values::Values;

/// Machine code over virtual registers, and its runtime call sites.
pub(crate) struct Lowered {
    pub(crate) function: Function,
    pub(crate) sites: Vec<Site>,
}

/// Lowering state: a walk over the program that emits its code.
struct Lower<'p> {
    plan: &'p Plan<'p>,
    emit: Emit,
    values: Values,
    state: State,
    loops: Loops,
    tiles: Tiles,
    accesses: Accesses,
    services: Services,
}

/// Lowers a program.
pub(crate) fn lower(plan: &Plan<'_>) -> Lowered {
    let mut emit = Emit::new(plan.shape.tile.is_wide());
    let tiles = Tiles::new(&mut emit, plan.program);
    let mut lower = Lower {
        plan,
        emit,
        values: Values::new(plan.program.values().len()),
        state: State::default(),
        loops: Loops::new(plan.version_budget()),
        tiles,
        accesses: Accesses::new(plan.program),
        services: Services::default(),
    };
    lower.function();
    Lowered { function: lower.emit.function, sites: lower.services.sites }
}

impl Lower<'_> {
    fn function(&mut self) {
        let program = self.plan.program;
        let tile = self.plan.shape.tile;
        let scratch = self.emit.lea(at(Base::Scratch, 0), Width::Qword);
        self.emit.store_scalar(at(Base::Context, service::SCRATCH_START), scratch, Width::Qword);
        for (id, memory) in program.memories().iter() {
            if memory.space != Space::Uniform {
                self.accesses.starts[id] =
                    Some(self.emit.load_scalar(at(Base::Context, service::entry(id.index())), Width::Qword));
            }
        }
        // Hoists instructions that are uniform in the dispatch, among them loads from read-only objects.
        let body = &program.block(program.body()).insts;
        self.hoist(body, Axes::is_of_dispatch);

        if tile.layout == Layout::Merged {
            self.find_group();
            self.segment(body, &[]);
            self.finish();
            // Merged workgroups have no loop over workgroups.
            self.emit.at = self.tiles.group_end;
            self.emit.ret();
            return;
        }
        let header = self.emit.block(false);
        self.emit.enter(header);
        let scope = self.values.enter_scope();
        self.find_group();
        self.clear_memory();
        if self.plan.segments.split {
            self.group_block(program.body(), None);
        } else {
            self.hoist(body, Axes::is_of_group);
            self.segment(body, &[]);
            let end = self.tiles.group_end;
            self.emit.jump(end, &[]);
        }
        self.values.leave_scope(scope);
        self.emit.at = self.tiles.group_end;
        self.next_group(header);
    }

    /// Computes the position of the workgroup.
    fn find_group(&mut self) {
        let size = self.plan.program.workgroup_size();
        let index = self.emit.load_scalar(at(Base::Context, service::FIRST), Width::Dword);
        self.tiles.group.first = Some(self.emit.scaled(index, size.iter().product()));
        self.tiles.group.origin = [0, 1, 2].map(|axis| {
            let id = self.emit.load_scalar(at(Base::Context, service::GROUP + 4 * axis), Width::Dword);
            Some(self.emit.scaled(id, size[axis as usize]))
        });
    }

    /// Zeroes workgroup arrays, private arrays, and values kept across segments, if the program has any.
    fn clear_memory(&mut self) {
        let shared = self.plan.program.memories().values().any(|memory| memory.space == Space::Workgroup);
        let kept = self.plan.segments.ended_slot.is_some();
        let private = self.plan.segments.split && self.plan.has_private();
        if shared || kept || private {
            self.services.call(&mut self.emit, Site::ClearGroup);
        }
    }

    /// Advances to the next workgroup, if there is one.
    fn next_group(&mut self, header: machine::BlockId) {
        let context = |offset| machine::Operand::Memory(at(Base::Context, offset));
        let inc = |emit: &mut Emit, offset| {
            emit.push(Code::Inc_rm32, &[context(offset)], true);
        };
        inc(&mut self.emit, service::FIRST);
        let more = self.emit.block(false);
        // Next workgroup along x, or first one of the next row or plane.
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

    /// Returns, with non-temporal stores fenced.
    fn finish(&mut self) {
        self.fence_streams();
        self.emit.ret();
    }

    /// Fences non-temporal stores, if there can be any: other stores are visible in program order.
    pub(super) fn fence_streams(&mut self) {
        if self.plan.only_stored.values().any(|&only_stored| only_stored) {
            self.emit.push(Code::Sfence, &[], true);
        }
    }

    /// Hoists instructions that are uniform in a dispatch or workgroup.
    pub(super) fn hoist(&mut self, insts: &[InstId], is_outside: impl Fn(Axes) -> bool) {
        let program = self.plan.program;
        for &id in insts {
            let inst = program.inst(id);
            let computes = match inst.op.kind() {
                Kind::Pure | Kind::PerGroup | Kind::PerInvocation => true,
                Kind::Access => matches!(inst.op, Op::Load(at) if !self.plan.shape.written[at.memory]),
                Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
            };
            let outside = inst.results.iter().all(|&result| is_outside(self.plan.shape.axes[result]));
            // Operands computed by a segment must come from an earlier one.
            let ready = inst.operands.iter().all(|&operand| {
                self.values.contains(operand)
                    || self.plan.segments.rematerialized[operand]
                    || self.is_available(operand)
                        && !matches!(program.def(operand), Def::Result(id, _) if insts.contains(&id))
            });
            if computes && outside && ready && !self.tiles.hoisted[id] {
                self.tiles.hoisting = true;
                self.inst(id);
                self.tiles.hoisting = false;
                self.tiles.hoisted[id] = true;
                // Broadcast here once instead of in each loop that uses the vector; eliminated if unused.
                for &result in &inst.results {
                    if matches!(program.ty(result), Type::I32 | Type::U32 | Type::Bool) {
                        self.vector(result, 0, 0);
                    }
                }
            }
        }
    }

    // Operands.

    /// Assigns registers to a value, in the order of its classes.
    fn define(&mut self, value: ValueId, regs: &[Reg]) {
        self.values.define(&self.plan.shape, value, regs);
    }

    /// First lane of a row of a linear value.
    fn base(&mut self, value: ValueId, row: usize) -> Reg {
        self.materialize(value);
        self.values.base(value, row)
    }

    /// A value that is equal in all lanes, as a scalar.
    fn scalar(&mut self, value: ValueId, pack: usize) -> Reg {
        self.materialize(value);
        self.values.scalar(&mut self.emit, self.plan, value, pack)
    }

    /// A value as a vector of a pack, or one half of it for 64-bit lanes. Not for bools.
    fn vector(&mut self, value: ValueId, pack: usize, half: usize) -> Reg {
        self.materialize(value);
        self.values.vector(&mut self.emit, self.plan, value, pack, half)
    }

    /// A value as the vectors of a pack: one register, or two for 64-bit lanes.
    fn halves(&mut self, value: ValueId, pack: usize) -> SmallVec<[Reg; 2]> {
        let count = if self.plan.program.ty(value).bits() == 64 { 2 } else { 1 };
        (0..count).map(|half| self.vector(value, pack, half)).collect()
    }

    /// A bool as a mask of a pack.
    fn mask(&mut self, value: ValueId, pack: usize) -> Reg {
        self.materialize(value);
        self.values.mask(&mut self.emit, self.plan, value, pack)
    }

    /// Registers of a value converted to the layout of another value, to which it is assigned.
    pub(super) fn regs_as(&mut self, to: ValueId, from: ValueId) -> Regs {
        let axes = self.plan.shape.axes[to];
        let tile = self.plan.shape.tile;
        let ty = self.plan.program.ty(to);
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            if !axes.intersects(Axes::LANE) {
                regs.push(if ty.is_float() { self.vector(from, pack, 0) } else { self.scalar(from, pack) });
            } else if ty == Type::Bool {
                regs.push(self.mask(from, pack));
            } else {
                regs.extend(self.halves(from, pack));
            }
        }
        if self.plan.shape.is_linear(to) {
            for row in 0..tile.rows_of(axes) {
                regs.push(self.base(from, row));
            }
        }
        regs
    }
}

/// Origin key of an instruction, for annotations of a listing.
pub(crate) fn origin(id: InstId) -> u32 {
    id.index() as u32 + 1
}
