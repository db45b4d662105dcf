//! Register classes of values, and their order.

use std::ops::Range;

use smallvec::SmallVec;
use vyre_foundation::ir::{Program, Type, ValueId};

use super::Plan;
use super::shape::{Axes, Shape};
use crate::x86::machine::Class;

impl Shape {
    /// Returns whether a divergent value increases by one from lane to lane of a row.
    pub(crate) fn is_linear(&self, value: ValueId) -> bool {
        self.linear[value] && self.axes[value].intersects(Axes::LANE)
    }

    /// Register classes of the copies of a value, in order; for a linear value followed by those of its rows' first
    /// lanes.
    pub(crate) fn classes(&self, program: &Program, value: ValueId) -> SmallVec<[Class; 4]> {
        let (axes, ty) = (self.axes[value], program.ty(value));
        let copies = self.tile.copies(axes);
        let mut classes: SmallVec<[Class; 4]> = SmallVec::new();
        if axes.intersects(Axes::LANE) {
            let class = if ty == Type::Bool && self.tile.is_wide() { Class::Mask } else { Class::Vector };
            let halves = if ty.bits() == 64 { 2 } else { 1 };
            classes.extend(std::iter::repeat_n(class, copies * halves));
        } else {
            let class = if ty.is_float() { Class::Vector } else { Class::Scalar };
            classes.extend(std::iter::repeat_n(class, copies));
        }
        if self.is_linear(value) {
            classes.extend(std::iter::repeat_n(Class::Scalar, self.tile.rows_of(axes)));
        }
        classes
    }

    /// Register classes of a loop parameter: a linear one is carried as its first lanes.
    pub(crate) fn carried_classes(&self, program: &Program, param: ValueId) -> SmallVec<[Class; 4]> {
        if self.is_linear(param) {
            let rows = self.tile.rows_of(self.axes[param]);
            return std::iter::repeat_n(Class::Scalar, rows).collect();
        }
        self.classes(program, param)
    }
}

impl Plan<'_> {
    /// Ranges of the registers of each value in a concatenated list.
    pub(crate) fn register_ranges(&self, values: &[ValueId]) -> SmallVec<[Range<usize>; 4]> {
        let mut end = 0;
        let range = |&value: &ValueId| {
            let start = end;
            end += self.shape.classes(self.program, value).len();
            start..end
        };
        values.iter().map(range).collect()
    }
}
