//! Divergence analysis of the layout: the axes (lane, column, row, tile, workgroup) along which each value varies.
//!
//! A *pack* is one vector register of invocations. Code computes a *tile* of packs together: `columns` side by side, in
//! several rows. A value that is equal in all packs of a row, or in all rows, is computed once for them (register
//! blocking), and the packs of a tile hide each other's latencies.

use vyre_foundation::analysis::{Divergence, Domain, Join};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{
    Axis, Combined, Exchange, MemOperand, Op, PerGroup, PerInvocation, Pure, ShuffleMode, Terminator,
};
use vyre_foundation::ir::{Inst, InstId, MemId, Program, Space, Type, ValueId};

/// Set of axes along which values differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axes(u8);

impl Axes {
    /// Uniform in the dispatch.
    pub(crate) const NONE: Axes = Axes(0);
    /// Between the lanes of a pack.
    pub(crate) const LANE: Axes = Axes(1);
    /// Between packs of a row.
    pub(crate) const COLUMN: Axes = Axes(2);
    /// Between rows of a tile.
    pub(crate) const ROW: Axes = Axes(4);
    /// Between tiles of a workgroup.
    pub(crate) const TILE: Axes = Axes(8);
    /// Between workgroups.
    pub(crate) const GROUP: Axes = Axes(16);
    /// All axes.
    pub(crate) const ALL: Axes = Axes(31);

    pub(crate) const fn union(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    pub(crate) const fn intersects(self, other: Axes) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn without(self, other: Axes) -> Axes {
        Axes(self.0 & !other.0)
    }

    /// Drops the axes outside a tile.
    pub(crate) const fn within_tile(self) -> Axes {
        Axes(self.0 & 7)
    }

    /// Returns whether the value is uniform in the dispatch.
    pub(crate) fn is_of_dispatch(self) -> bool {
        self == Axes::NONE
    }

    /// Returns whether the value is uniform in a tile.
    pub(crate) const fn is_uniform(self) -> bool {
        self.0 & 7 == 0
    }

    /// Returns whether the value is uniform in a workgroup.
    pub(crate) const fn is_of_group(self) -> bool {
        self.0 & 15 == 0
    }
}

/// Assignment of invocations to tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A tile is a rectangle in x and y that divides the workgroup.
    Rows,
    /// A tile is a range of the local linear index; the last one may be incomplete.
    Linear,
    /// A tile is a range of the global linear index; the last one may be incomplete. Only for programs whose workgroups
    /// [may run in lockstep](vyre_foundation::analysis::may_merge_workgroups).
    Merged,
}

/// Packs that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) layout: Layout,
    /// Lanes of a pack.
    pub(crate) lanes: u32,
    /// Packs side by side.
    pub(crate) columns: u32,
    pub(crate) rows: u32,
}

impl Tile {
    /// Number of packs.
    pub(crate) fn packs(&self) -> u32 {
        self.columns * self.rows
    }

    /// Number of invocations.
    pub(crate) fn size(&self) -> u32 {
        self.packs() * self.lanes
    }

    /// Number of invocations of a row.
    pub(crate) fn width(&self) -> u32 {
        self.columns * self.lanes
    }

    /// Vectors have 64 bytes instead of 32.
    pub(crate) fn is_wide(&self) -> bool {
        self.lanes == 16
    }

    /// Bytes of a vector.
    pub(crate) fn bytes(&self) -> i32 {
        self.lanes as i32 * 4
    }

    /// Number of rows between which a value differs.
    pub(crate) fn rows_of(&self, axes: Axes) -> usize {
        if axes.intersects(Axes::ROW) { self.rows as usize } else { 1 }
    }

    /// Number of copies of a value.
    pub(crate) fn copies(&self, axes: Axes) -> usize {
        let columns = if axes.intersects(Axes::COLUMN) { self.columns } else { 1 };
        let rows = if axes.intersects(Axes::ROW) { self.rows } else { 1 };
        (columns * rows) as usize
    }

    /// Copy of a value that a pack uses.
    pub(crate) fn copy(&self, axes: Axes, pack: usize) -> usize {
        let (row, column) = (pack / self.columns as usize, pack % self.columns as usize);
        match (axes.intersects(Axes::ROW), axes.intersects(Axes::COLUMN)) {
            (true, true) => pack,
            (true, false) => row,
            (false, true) => column,
            (false, false) => 0,
        }
    }

    /// First pack that uses each copy of a value.
    pub(crate) fn packs_of(&self, axes: Axes) -> impl Iterator<Item = usize> + use<> {
        let by_row = axes.intersects(Axes::ROW) && !axes.intersects(Axes::COLUMN);
        (0..self.copies(axes)).map({
            let columns = self.columns as usize;
            move |copy| if by_row { copy * columns } else { copy }
        })
    }

    /// Row of a pack in a value with `rows` rows (all rows may share one), and the number of lanes that precede the
    /// pack in its row.
    pub(crate) fn in_row(&self, pack: usize, rows: usize) -> (usize, i32) {
        let (row, column) = (pack / self.columns as usize, pack as u32 % self.columns);
        (if rows == 1 { 0 } else { row }, (column * self.lanes) as i32)
    }
}

/// Divergence of the values of a program in a layout.
pub(crate) struct Shape {
    pub(crate) tile: Tile,
    /// Axes along which each value differs.
    pub(crate) axes: SecondaryMap<ValueId, Axes>,
    /// Linear values: 32-bit values that increase by one from lane to lane, also between adjacent packs of a row,
    /// modulo 2³².
    pub(crate) linear: SecondaryMap<ValueId, bool>,
    /// Objects that the program stores to.
    pub(crate) written: SecondaryMap<MemId, bool>,
    /// All lanes of all subgroups exist and none ends early. Subgroup operations, which are in subgroup-uniform control
    /// flow, then have all lanes of a pack or none, and need no mask. They must not use one: the pack that computes a
    /// copy for others may be inactive itself.
    pub(crate) whole_subgroups: bool,
    divergence: Divergence<Fact>,
}

impl Shape {
    pub(crate) fn of(program: &Program, tile: Tile) -> Shape {
        let mut whole_subgroups = tile.layout == Layout::Rows;
        program.walk(|inst, depth| {
            // A final `return` ends all lanes together.
            whole_subgroups &= program.inst(inst).op != Terminator::Trap
                && (program.inst(inst).op != Terminator::Return || depth == 0);
        });
        let lanes = Lanes { program, tile, written: program.written(), whole_subgroups };
        let divergence = Divergence::of(program, &lanes);
        let mut axes = SecondaryMap::with_capacity(program.values().len(), Axes::NONE);
        let mut linear = SecondaryMap::with_capacity(program.values().len(), false);
        for value in program.values().keys() {
            let fact = divergence.value(value);
            (axes[value], linear[value]) = (fact.axes, fact.linear);
        }
        Shape { tile, axes, linear, written: lanes.written, whole_subgroups, divergence }
    }

    /// Axes along which the exits of a loop diverge.
    pub(crate) fn exits(&self, id: InstId) -> Axes {
        self.divergence.exits(id).axes
    }
}

/// Lattice element of a value: its axes, and whether it may still be [linear](Shape::linear).
#[derive(Clone, Copy, PartialEq)]
struct Fact {
    axes: Axes,
    linear: bool,
}

/// Divergence domain for the lanes, packs, rows and tiles of a layout.
struct Lanes<'p> {
    program: &'p Program,
    tile: Tile,
    written: SecondaryMap<MemId, bool>,
    /// All lanes of all subgroups exist and none ends early.
    whole_subgroups: bool,
}

impl Domain for Lanes<'_> {
    type Fact = Fact;

    const UNIFORM: Fact = Fact { axes: Axes::NONE, linear: true };

    fn join(a: Fact, b: Fact) -> Fact {
        Fact { axes: a.axes.union(b.axes), linear: a.linear && b.linear }
    }

    fn initial(&self, value: ValueId) -> Fact {
        let is_integer = matches!(self.program.ty(value), Type::U32 | Type::I32);
        Fact { linear: is_integer && self.program.known(value).is_none(), ..Self::UNIFORM }
    }

    fn condition(&self, facts: &Divergence<Fact>, operands: &[ValueId]) -> Fact {
        Fact { linear: true, ..Self::operands(facts, operands) }
    }

    fn transfer(&self, facts: &Divergence<Fact>, id: InstId, result: usize) -> Fact {
        let inst = self.program.inst(id);
        let axes = match inst.op.is_collective() {
            true => self.axes_of_collective(facts, inst, result),
            false => Self::operands(facts, &inst.operands).axes.union(self.own_axes(&inst.op)),
        };
        let axes = if self.tile.columns == 1 { axes.without(Axes::COLUMN) } else { axes };
        let axes = if self.tile.rows == 1 { axes.without(Axes::ROW) } else { axes };
        Fact { axes, linear: self.keeps_linear(facts, id) }
    }

    fn at_join(&self, join: Join, fact: Fact) -> Fact {
        let linear = match join {
            Join::Result => false,
            Join::Param { continues } => continues <= 1,
        };
        Fact { linear: linear && fact.linear, ..fact }
    }
}

impl Lanes<'_> {
    /// Axes along which the result of an operation differs even if its operands are uniform.
    fn own_axes(&self, op: &Op) -> Axes {
        let tile = self.tile;
        let size = self.program.workgroup_size();
        let rest = Axes::TILE.union(Axes::GROUP);
        let run = Axes::LANE.union(Axes::COLUMN).union(rest);
        match op {
            Op::Pure(_) | Op::Print(_) | Op::Control(_) | Op::Terminator(_) => Axes::NONE,
            Op::PerGroup(op) => match op {
                PerGroup::GroupId(_) | PerGroup::GroupIndex if tile.layout == Layout::Merged => run,
                PerGroup::GroupId(_) | PerGroup::GroupIndex => Axes::GROUP,
                PerGroup::GroupCount(_) | PerGroup::GroupSize(_) | PerGroup::SubgroupSize | PerGroup::Length(_) => {
                    Axes::NONE
                }
            },
            Op::PerInvocation(op) => match (tile.layout, op) {
                (_, PerInvocation::LocalId(axis)) if size[*axis as usize] == 1 => Axes::NONE,
                (Layout::Rows | Layout::Linear, PerInvocation::GlobalId(axis)) if size[*axis as usize] == 1 => {
                    Axes::GROUP
                }
                (Layout::Linear | Layout::Merged, _) => run,
                (Layout::Rows, PerInvocation::LocalId(Axis::X) | PerInvocation::GlobalId(Axis::X)) => run,
                (Layout::Rows, PerInvocation::LocalId(Axis::Y) | PerInvocation::GlobalId(Axis::Y)) => {
                    Axes::ROW.union(rest)
                }
                (Layout::Rows, PerInvocation::LocalId(Axis::Z) | PerInvocation::GlobalId(Axis::Z)) => rest,
                (Layout::Rows, PerInvocation::SubgroupLane) => Axes::LANE,
                (Layout::Rows, PerInvocation::SubgroupId) => Axes::COLUMN.union(Axes::ROW).union(Axes::TILE),
                (Layout::Rows, PerInvocation::GlobalIndex | PerInvocation::LocalIndex) => run.union(Axes::ROW),
            },
            Op::Load(MemOperand { memory, .. }) | Op::Store(MemOperand { memory, .. }) => {
                match self.program.memory(*memory).space {
                    Space::Uniform => Axes::NONE,
                    // Lanes of a tile load at the same time; other tiles load earlier or later.
                    Space::Storage(_) if self.written[*memory] => rest,
                    Space::Storage(_) => Axes::NONE,
                    Space::Workgroup => rest,
                    Space::Private => Axes::ALL,
                }
            }
            Op::Atomic(..) | Op::CompareExchange(_) | Op::Barrier(_) | Op::Broadcast | Op::Subgroup(_) => Axes::ALL,
        }
    }

    fn axes_of_collective(&self, facts: &Divergence<Fact>, inst: &Inst, result: usize) -> Axes {
        let across = |value: ValueId| facts.value(value).axes.without(Axes::LANE);
        let Op::Subgroup(op) = inst.op else { return Axes::GROUP };
        // The result depends on which lanes are active.
        if !self.whole_subgroups {
            return Axes::ALL;
        }
        let operands = inst.operands.iter().fold(Axes::NONE, |all, &operand| all.union(across(operand)));
        match op.exchange() {
            Exchange::Shuffle(ShuffleMode::Lane) => across(inst.operands[0]).union(facts.value(inst.operands[1]).axes),
            Exchange::Compact if result == 1 => across(inst.operands[1]),
            Exchange::Shuffle(_)
            | Exchange::Compact
            | Exchange::Combine(_, Combined::Inclusive | Combined::Exclusive) => operands.union(Axes::LANE),
            Exchange::Ballot | Exchange::First | Exchange::Combine(_, Combined::All) => operands,
        }
    }

    fn keeps_linear(&self, facts: &Divergence<Fact>, id: InstId) -> bool {
        let inst = self.program.inst(id);
        let size = self.program.workgroup_size();
        let flat = size[1] == 1 && size[2] == 1;
        let layout = self.tile.layout;
        let linear = |value: ValueId| facts.value(value).linear;
        // Equal in all packs of a row.
        let fixed = |value: ValueId| !facts.value(value).axes.intersects(Axes::LANE.union(Axes::COLUMN));
        match (&inst.op, inst.operands.as_slice()) {
            (Op::PerInvocation(PerInvocation::GlobalIndex), _) => true,
            (Op::PerInvocation(PerInvocation::LocalIndex), _) => layout != Layout::Merged,
            // The lane number restarts in the next pack.
            (Op::PerInvocation(PerInvocation::SubgroupLane), _) => layout == Layout::Rows && self.tile.columns == 1,
            (Op::PerInvocation(PerInvocation::GlobalId(Axis::X) | PerInvocation::LocalId(Axis::X)), _) => {
                layout == Layout::Rows || (layout == Layout::Linear && flat && size[0] > 1)
            }
            (Op::Pure(Pure::Add), &[a, b]) => (linear(a) && fixed(b)) || (fixed(a) && linear(b)),
            (Op::Pure(Pure::Sub), &[a, b]) => linear(a) && fixed(b),
            (Op::Pure(Pure::Cast | Pure::Bitcast), &[a]) => linear(a),
            _ => false,
        }
    }
}
