//! Register assignments of values: one register per copy in the tile, the first lanes of linear values, and cached
//! broadcasts of scalars.
//!
//! Assignments made in a scope (an arm of a branch, a loop or a segment) end with it: their definitions do not dominate
//! the code after it.

use iced_x86::Code;
use rustc_hash::FxHashMap;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{Type, ValueId};

use crate::x86::machine::emit::{Emit, Regs};
use crate::x86::machine::{Class, Reg, Width};
use crate::x86::plan::Plan;
use crate::x86::plan::shape::{Axes, Shape};

/// Registers of a value.
#[derive(Clone)]
struct ValueRegs {
    /// Axes along which the value differs in a tile.
    axes: Axes,
    /// One register per copy, or two for 64-bit lanes. Values that are equal in all lanes are scalars, or broadcast
    /// vectors if they are floats.
    regs: Regs,
    /// For a linear value (lane `i` of a row is the row's base plus `i`), the base of each row.
    bases: Option<Regs>,
}

pub(super) struct Values {
    regs: SecondaryMap<ValueId, Option<ValueRegs>>,
    /// Cached broadcasts, by value and copy, valid until the scope ends.
    splats: FxHashMap<(ValueId, usize), Reg>,
    /// Assignments that end with the open scopes.
    scoped: Vec<Scoped>,
}

enum Scoped {
    Splat((ValueId, usize)),
    Value(ValueId),
}

/// The start of a scope.
#[derive(Clone, Copy)]
pub(super) struct Scope(usize);

impl Values {
    pub(super) fn new(count: usize) -> Values {
        Values { regs: SecondaryMap::with_capacity(count, None), splats: FxHashMap::default(), scoped: Vec::new() }
    }

    pub(super) fn enter_scope(&self) -> Scope {
        Scope(self.scoped.len())
    }

    pub(super) fn leave_scope(&mut self, scope: Scope) {
        for entry in self.scoped.drain(scope.0..) {
            match entry {
                Scoped::Splat(key) => {
                    self.splats.remove(&key);
                }
                Scoped::Value(value) => self.regs[value] = None,
            }
        }
    }

    /// Ends the assignment of a value with the scope.
    pub(super) fn forget_with_scope(&mut self, value: ValueId) {
        self.scoped.push(Scoped::Value(value));
    }

    pub(super) fn forget(&mut self, value: ValueId) {
        self.regs[value] = None;
    }

    pub(super) fn contains(&self, value: ValueId) -> bool {
        self.regs[value].is_some()
    }

    /// Assigns registers to a value, in the order of its [classes](Shape::classes).
    pub(super) fn define(&mut self, shape: &Shape, value: ValueId, regs: &[Reg]) {
        let axes = shape.axes[value].within_tile();
        let count = if shape.is_linear(value) { shape.tile.rows_of(axes) } else { 0 };
        let (own, bases) = regs.split_at(regs.len() - count);
        let bases = (count > 0).then(|| Regs::from_slice(bases));
        self.regs[value] = Some(ValueRegs { axes, regs: Regs::from_slice(own), bases });
    }

    fn get(&self, value: ValueId) -> &ValueRegs {
        self.regs[value].as_ref().expect("the value is in registers")
    }

    /// Base of a row of a linear value: its value in the first lane.
    pub(super) fn base(&self, value: ValueId, row: usize) -> Reg {
        let bases = self.get(value).bases.as_ref().expect("a linear value has first lanes");
        bases[if bases.len() == 1 { 0 } else { row }]
    }

    /// A value that is equal in all lanes, as a scalar.
    pub(super) fn scalar(&self, emit: &mut Emit, plan: &Plan<'_>, value: ValueId, pack: usize) -> Reg {
        if let Some(literal) = plan.program.known(value) {
            return emit.immediate(literal.bits);
        }
        let held = self.get(value);
        debug_assert!(!held.axes.intersects(Axes::LANE), "a scalar is the same in all lanes");
        let reg = held.regs[plan.shape.tile.copy(held.axes, pack)];
        match emit.class(reg) {
            Class::Scalar => reg,
            Class::Vector => emit.first_lane(reg, plan.program.ty(value).bits() == 64),
            Class::Mask => unreachable!("the same in all lanes is a scalar"),
        }
    }

    /// A value as a vector of a pack, or one half of it for 64-bit lanes. Divergent bools are read by [`Values::mask`].
    pub(super) fn vector(&mut self, emit: &mut Emit, plan: &Plan<'_>, value: ValueId, pack: usize, half: usize) -> Reg {
        let ty = plan.program.ty(value);
        let of_64 = ty.bits() == 64;
        if let Some(literal) = plan.program.known(value) {
            let bits = if ty == Type::Bool { literal.bits.wrapping_neg() & 0xffff_ffff } else { literal.bits };
            return emit.splat(bits, of_64);
        }
        let held = self.get(value);
        let copy = plan.shape.tile.copy(held.axes, pack);
        if held.axes.intersects(Axes::LANE) {
            return held.regs[if of_64 { 2 * copy + half } else { copy }];
        }
        let reg = held.regs[copy];
        if emit.class(reg) == Class::Vector {
            return reg;
        }
        if let Some(&vector) = self.splats.get(&(value, copy)) {
            return vector;
        }
        let scalar = if ty == Type::Bool { emit.s1_in_place(Code::Neg_rm32, Width::Dword, reg) } else { reg };
        let vector = emit.broadcast(scalar, of_64);
        self.splats.insert((value, copy), vector);
        self.scoped.push(Scoped::Splat((value, copy)));
        vector
    }

    /// A bool as a mask of a pack.
    pub(super) fn mask(&mut self, emit: &mut Emit, plan: &Plan<'_>, value: ValueId, pack: usize) -> Reg {
        if let Some(literal) = plan.program.known(value) {
            return emit.mask_constant(literal.bits != 0);
        }
        let held = self.get(value);
        if held.axes.intersects(Axes::LANE) {
            return held.regs[plan.shape.tile.copy(held.axes, pack)];
        }
        let vector = self.vector(emit, plan, value, pack, 0);
        if emit.wide() { emit.mask_from_vector(vector) } else { vector }
    }
}
