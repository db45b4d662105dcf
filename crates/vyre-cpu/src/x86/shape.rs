//! How the invocations of a workgroup are laid out over registers, and along which directions each value differs.
//!
//! A *pack* is one vector register full of invocations. Code works on a *tile* of packs at a time: several side by side, and
//! several rows of them below each other. A value that is the same in all packs of a row, or in all rows, is computed once for
//! all of them; that hides latencies, and it is what blocks a matrix product in registers.

use rustc_hash::FxHashMap;
use vyre_foundation::analysis::{Exits, exits_of, given, yields_of};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Axis, Kind, Op};
use vyre_foundation::ir::{BlockId, InstId, MemId, Program, Space, Type, ValueId};

/// Directions in which values can differ, as a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axes(u8);

impl Axes {
    /// Nowhere in the dispatch.
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
    /// Everywhere.
    pub(crate) const ALL: Axes = Axes(31);

    pub(crate) const fn and(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    pub(crate) const fn meets(self, other: Axes) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn without(self, other: Axes) -> Axes {
        Axes(self.0 & !other.0)
    }

    /// Without what lies outside a tile.
    pub(crate) const fn within_tile(self) -> Axes {
        Axes(self.0 & 7)
    }

    /// Whether all invocations of a tile have the same.
    pub(crate) const fn is_uniform(self) -> bool {
        self.0 & 7 == 0
    }

    /// Whether all invocations of a workgroup have the same.
    pub(crate) const fn is_of_group(self) -> bool {
        self.0 & 15 == 0
    }
}

/// How tiles are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A tile is a rectangle of the workgroup's x and y, which it divides.
    Rows,
    /// A tile is a run of the linear index in the workgroup; the last one may be incomplete.
    Linear,
    /// A tile is a run of the linear index in the grid; the last one may be incomplete. Only for programs whose workgroups
    /// [may run in lockstep](vyre_foundation::analysis::may_merge_workgroups).
    Merged,
}

/// The packs that are worked on together.
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
    /// How many packs.
    pub(crate) fn packs(&self) -> u32 {
        self.columns * self.rows
    }

    /// How many invocations.
    pub(crate) fn size(&self) -> u32 {
        self.packs() * self.lanes
    }

    /// How many invocations a row has.
    pub(crate) fn width(&self) -> u32 {
        self.columns * self.lanes
    }

    /// How many copies of a value there are.
    pub(crate) fn copies(&self, axes: Axes) -> usize {
        let columns = if axes.meets(Axes::COLUMN) { self.columns } else { 1 };
        let rows = if axes.meets(Axes::ROW) { self.rows } else { 1 };
        (columns * rows) as usize
    }

    /// Which copy of a value a pack uses.
    pub(crate) fn copy(&self, axes: Axes, pack: usize) -> usize {
        let (row, column) = (pack / self.columns as usize, pack % self.columns as usize);
        match (axes.meets(Axes::ROW), axes.meets(Axes::COLUMN)) {
            (true, true) => pack,
            (true, false) => row,
            (false, true) => column,
            (false, false) => 0,
        }
    }

    /// For each copy of a value, the first pack that uses it.
    pub(crate) fn packs_of(&self, axes: Axes) -> impl Iterator<Item = usize> + use<> {
        let by_row = axes.meets(Axes::ROW) && !axes.meets(Axes::COLUMN);
        (0..self.copies(axes)).map({
            let columns = self.columns as usize;
            move |copy| if by_row { copy * columns } else { copy }
        })
    }

    /// Which row of a value a pack is in, where all rows may share one, and how many lanes of the row are before it.
    pub(crate) fn in_row(&self, pack: usize, rows: usize) -> (usize, i32) {
        let (row, column) = (pack / self.columns as usize, pack as u32 % self.columns);
        (if rows == 1 { 0 } else { row }, (column * self.lanes) as i32)
    }
}

/// What is known about the values of a program under a layout.
pub(crate) struct Shape {
    pub(crate) tile: Tile,
    /// Along what each value differs.
    pub(crate) axes: SecondaryMap<ValueId, Axes>,
    /// 32-bit values that go up by one from lane to lane, and from the last lane of a pack to the first of the next one in its
    /// row, modulo 2³².
    pub(crate) linear: SecondaryMap<ValueId, bool>,
    /// Along what invocations differ in when they leave or continue each loop.
    pub(crate) exits: FxHashMap<InstId, Axes>,
    /// Objects that the program stores to.
    pub(crate) written: SecondaryMap<MemId, bool>,
    /// Whether all lanes of all subgroups exist and none ends early.
    whole_subgroups: bool,
}

impl Shape {
    pub(crate) fn of(program: &Program, tile: Tile) -> Shape {
        let mut whole_subgroups = tile.layout == Layout::Rows;
        program.walk(|inst, depth| {
            // All return in the end.
            whole_subgroups &=
                program.insts[inst].op != Op::Trap && (program.insts[inst].op != Op::Return || depth == 0);
        });
        let mut analysis = Analysis {
            program,
            shape: Shape {
                tile,
                axes: SecondaryMap::with_capacity(program.values.len(), Axes::NONE),
                linear: SecondaryMap::with_capacity(program.values.len(), true),
                exits: FxHashMap::default(),
                written: program.written(),
                whole_subgroups,
            },
            changed: true,
        };
        for value in program.values.keys() {
            if program.known(value).is_some() || !matches!(program.ty(value), Type::U32 | Type::I32) {
                analysis.shape.linear[value] = false;
            }
        }
        while std::mem::take(&mut analysis.changed) {
            analysis.block(program.body, Axes::NONE, None);
        }
        analysis.shape
    }

    pub(crate) fn exits(&self, id: InstId) -> Axes {
        self.exits.get(&id).copied().unwrap_or_default()
    }
}

/// Starts by assuming that values are the same everywhere and linear, and takes back what does not hold, until nothing changes.
struct Analysis<'p> {
    program: &'p Program,
    shape: Shape,
    changed: bool,
}

impl Analysis<'_> {
    fn differs(&mut self, value: ValueId, axes: Axes) {
        let tile = self.shape.tile;
        let axes = if tile.columns == 1 { axes.without(Axes::COLUMN) } else { axes };
        let axes = if tile.rows == 1 { axes.without(Axes::ROW) } else { axes };
        let fact = &mut self.shape.axes[value];
        let all = fact.and(axes);
        if all != *fact {
            *fact = all;
            self.changed = true;
        }
    }

    fn not_linear(&mut self, value: ValueId) {
        if self.shape.linear[value] {
            self.shape.linear[value] = false;
            self.changed = true;
        }
    }

    fn axes(&self, values: &[ValueId]) -> Axes {
        values.iter().fold(Axes::NONE, |all, &value| all.and(self.shape.axes[value]))
    }

    /// `inside` is along what invocations differ in whether they are here, of those that entered the innermost loop.
    fn block(&mut self, block: BlockId, inside: Axes, enclosing: Option<InstId>) {
        let program = self.program;
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            match &inst.op {
                Op::If | Op::Switch(_) | Op::Region(_) => {
                    let condition = self.axes(&inst.operands);
                    for &arm in &inst.blocks {
                        self.block(arm, inside.and(condition), enclosing);
                    }
                    let yields = yields_of(program, id);
                    for (position, &result) in inst.results.iter().enumerate() {
                        self.merge(result, &given(program, &yields, position), condition);
                        self.not_linear(result);
                    }
                }
                Op::Loop => self.loop_inst(id),
                Op::Break | Op::Continue => {
                    if let Some(target) = enclosing {
                        let exits = self.shape.exits.entry(target).or_default();
                        let all = exits.and(inside);
                        if all != *exits {
                            *exits = all;
                            self.changed = true;
                        }
                    }
                }
                op => {
                    let axes = match op.row().kind {
                        Kind::Collective => self.axes_of_collective(op, &inst.operands),
                        _ => self.axes(&inst.operands).and(self.own_axes(op)),
                    };
                    for &result in &inst.results {
                        self.differs(result, axes);
                    }
                    if !self.keeps_linear(id) {
                        inst.results.iter().for_each(|&result| self.not_linear(result));
                    }
                }
            }
        }
    }

    fn loop_inst(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let exits = self.shape.exits(id);
        self.block(body, exits, Some(id));
        let Exits { breaks, continues } = exits_of(program, body);
        for (position, &param) in program.blocks[body].params.iter().enumerate() {
            let given = given(program, &continues, position);
            self.differs(param, self.shape.axes[inst.operands[position]]);
            self.merge(param, &given, exits);
            let linear = |&value: &ValueId| self.shape.linear[value];
            if !linear(&inst.operands[position]) || !given.iter().all(linear) || continues.len() > 1 {
                self.not_linear(param);
            }
        }
        for (position, &result) in inst.results.iter().enumerate() {
            let given = given(program, &breaks, position);
            self.merge(result, &given, exits);
            // Invocations that leave in different trips take different values along, unless no trip changes them.
            if given.iter().any(|&value| program.known(value).is_none()) {
                self.differs(result, exits);
            }
            self.not_linear(result);
        }
    }

    /// A value that is one of several, depending on a condition.
    fn merge(&mut self, value: ValueId, given: &[ValueId], condition: Axes) {
        self.differs(value, self.axes(given));
        if given.iter().any(|from| *from != given[0]) {
            self.differs(value, condition);
        }
    }

    /// Along what an operation on operands that are the same everywhere differs.
    fn own_axes(&self, op: &Op) -> Axes {
        let tile = self.shape.tile;
        let size = self.program.workgroup_size;
        let rest = Axes::TILE.and(Axes::GROUP);
        let run = Axes::LANE.and(Axes::COLUMN).and(rest);
        match op.row().kind {
            Kind::Pure | Kind::Effect | Kind::Control => Axes::NONE,
            Kind::PerGroup => match op {
                Op::GroupId(_) | Op::GroupIndex if tile.layout == Layout::Merged => run,
                Op::GroupId(_) | Op::GroupIndex => Axes::GROUP,
                _ => Axes::NONE,
            },
            Kind::PerInvocation => match (tile.layout, op) {
                (_, Op::LocalId(axis)) if size[*axis as usize] == 1 => Axes::NONE,
                (Layout::Rows | Layout::Linear, Op::GlobalId(axis)) if size[*axis as usize] == 1 => Axes::GROUP,
                (Layout::Linear | Layout::Merged, _) => run,
                (Layout::Rows, Op::LocalId(Axis::X) | Op::GlobalId(Axis::X)) => run,
                (Layout::Rows, Op::LocalId(Axis::Y) | Op::GlobalId(Axis::Y)) => Axes::ROW.and(rest),
                (Layout::Rows, Op::LocalId(Axis::Z) | Op::GlobalId(Axis::Z)) => rest,
                (Layout::Rows, Op::SubgroupLane) => Axes::LANE,
                (Layout::Rows, Op::SubgroupId) => Axes::COLUMN.and(Axes::ROW).and(Axes::TILE),
                (Layout::Rows, _) => run.and(Axes::ROW),
            },
            Kind::Access => op.memory().map_or(Axes::NONE, |memory| match self.program.memory[memory].space {
                Space::Uniform => Axes::NONE,
                // What one tile loads at once is the same; another tile comes earlier or later.
                Space::Storage(_) if self.shape.written[memory] => rest,
                Space::Storage(_) => Axes::NONE,
                Space::Workgroup => rest,
                Space::Private => Axes::ALL,
            }),
            Kind::Atomic | Kind::Collective => Axes::ALL,
        }
    }

    fn axes_of_collective(&self, op: &Op, operands: &[ValueId]) -> Axes {
        let across = |value: ValueId| self.shape.axes[value].without(Axes::LANE);
        match (op, operands) {
            (Op::Broadcast, _) => Axes::GROUP,
            // It matters which lanes are there.
            _ if !self.shape.whole_subgroups => Axes::ALL,
            (Op::SubgroupShuffle, &[value, from]) => across(value).and(self.shape.axes[from]),
            (
                Op::SubgroupInclusiveAdd
                | Op::SubgroupExclusiveAdd
                | Op::SubgroupInclusiveMul
                | Op::SubgroupExclusiveMul,
                &[value],
            ) => across(value).and(Axes::LANE),
            (_, operands) => operands.iter().fold(Axes::NONE, |all, &operand| all.and(across(operand))),
        }
    }

    fn keeps_linear(&self, id: InstId) -> bool {
        let inst = &self.program.insts[id];
        let size = self.program.workgroup_size;
        let flat = size[1] == 1 && size[2] == 1;
        let layout = self.shape.tile.layout;
        let linear = |value: ValueId| self.shape.linear[value];
        // Not even between the packs of a row.
        let fixed = |value: ValueId| !self.shape.axes[value].meets(Axes::LANE.and(Axes::COLUMN));
        match (&inst.op, inst.operands.as_slice()) {
            (Op::GlobalIndex, _) => true,
            (Op::LocalIndex, _) => layout != Layout::Merged,
            // It starts again in the next pack.
            (Op::SubgroupLane, _) => layout == Layout::Rows && self.shape.tile.columns == 1,
            (Op::GlobalId(Axis::X) | Op::LocalId(Axis::X), _) => {
                layout == Layout::Rows || (layout == Layout::Linear && flat && size[0] > 1)
            }
            (Op::Add, &[a, b]) => (linear(a) && fixed(b)) || (fixed(a) && linear(b)),
            (Op::Sub, &[a, b]) => linear(a) && fixed(b),
            (Op::Cast | Op::Bitcast, &[a]) => linear(a),
            _ => false,
        }
    }
}
