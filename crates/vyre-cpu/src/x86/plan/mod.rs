//! Analysis results and decisions for lowering, which depend only on the program.
//!
//! [`tiling`] chooses the packs of a tile, [`shape`] computes the axes along which each value diverges, [`bounds`] the
//! bounds checks of accesses, [`segments`] the values spilled across barriers, and [`versions`] the blocks and loops that
//! get a second version.

pub(crate) mod bounds;
pub(crate) mod entries;
mod registers;
pub(crate) mod segments;
pub(crate) mod shape;
pub(crate) mod tiling;
pub(crate) mod versions;

use vyre_foundation::analysis::{Liveness, Ranges, Storage, Uses};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Control, Op, Terminator};
use vyre_foundation::ir::{BlockId, InstId, MemId, Program, Space, ValueId};

use super::Level;
use bounds::Prechecks;
use entries::Entries;
use segments::Segments;
use shape::Shape;

/// Plan of a program.
pub(crate) struct Plan<'p> {
    pub(crate) program: &'p Program,
    pub(crate) shape: Shape,
    pub(crate) ranges: Ranges,
    pub(crate) uses: Uses,
    liveness: Liveness,
    pub(crate) prechecks: Prechecks,
    pub(crate) segments: Segments,
    pub(crate) entries: Entries,
    /// Storage objects that are stored to and never loaded from.
    pub(crate) only_stored: SecondaryMap<MemId, bool>,
}

impl<'p> Plan<'p> {
    pub(crate) fn of(program: &'p Program, level: Level) -> Plan<'p> {
        let shape = Shape::of(program, tiling::choose(program, level));
        let ranges = Ranges::of(program);
        Plan {
            program,
            uses: Uses::of(program),
            liveness: Liveness::of(program, Storage::Registers),
            prechecks: Prechecks::of(program, &shape, &ranges),
            segments: Segments::of(program, &shape),
            entries: Entries::of(program),
            only_stored: only_stored(program),
            shape,
            ranges,
        }
    }

    /// Returns whether the live range of a value ends at an instruction with as many copies, so that its registers can
    /// be overwritten.
    pub(crate) fn dies(&self, value: ValueId, id: InstId) -> bool {
        let result = self.program.inst(id).results[0];
        self.liveness.last_user(value) == Some(id)
            && self.shape.axes[value].within_tile() == self.shape.axes[result].within_tile()
    }

    pub(crate) fn has_private(&self) -> bool {
        self.program.memories().values().any(|memory| memory.space == Space::Private)
    }

    pub(crate) fn has_loop(&self, block: BlockId) -> bool {
        self.program.contains(block, |op| *op == Control::Loop)
    }

    /// Returns whether lanes may end in a block.
    pub(crate) fn has_ends(&self, block: BlockId) -> bool {
        self.program.contains(block, |op| matches!(op, Op::Terminator(Terminator::Return | Terminator::Trap)))
    }

    pub(crate) fn yields(&self, block: BlockId) -> bool {
        let last = self.program.block(block).insts.last().expect("a block ends");
        self.program.inst(*last).op == Terminator::Yield
    }
}

/// Finds storage objects with plain stores and no other accesses.
fn only_stored(program: &Program) -> SecondaryMap<MemId, bool> {
    let mut only_stored = SecondaryMap::with_capacity(program.memories().len(), false);
    for (id, memory) in program.memories().iter() {
        only_stored[id] = matches!(memory.space, Space::Storage(_));
    }
    program.walk(|inst, _| {
        let op = &program.inst(inst).op;
        if let Some(at) = op.operand()
            && (at.atomic || !matches!(op, Op::Store(_)))
        {
            only_stored[at.memory] = false;
        }
    });
    only_stored
}
