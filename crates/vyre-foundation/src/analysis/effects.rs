//! Side effects (mod/ref summaries) of instructions and blocks, nested instructions included.
//!
//! Distinct memory objects never overlap, so summaries are sets of objects. Accesses within an object are compared by [`alias`](super::alias()).

use crate::ir::entity::{Entity, SecondaryMap};
use crate::ir::{BlockId, Control, InstId, MemId, MemOperand, Op, Program, Space, Terminator};

/// A conservative set of memory objects: the objects from the 63rd on share a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects(u64);

impl Objects {
    /// The empty set.
    pub const NONE: Objects = Objects(0);
    /// All objects.
    pub const ALL: Objects = Objects(!0);

    /// The set of one object.
    pub fn of(object: MemId) -> Objects {
        Objects(1 << object.index().min(63))
    }

    /// Returns true if the set may contain an object.
    pub fn contains(self, object: MemId) -> bool {
        self.intersects(Objects::of(object))
    }

    /// Returns true if two sets may intersect.
    pub fn intersects(self, other: Objects) -> bool {
        self.0 & other.0 != 0
    }

    /// Union of two sets.
    pub fn union(self, other: Objects) -> Objects {
        Objects(self.0 | other.0)
    }

    /// Returns true for the empty set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Side effects of an instruction and of the instructions nested in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Objects that are read. An atomic operation reads and writes.
    pub reads: Objects,
    /// Objects that are written.
    pub writes: Objects,
    /// Contains a barrier, a broadcast or a subgroup operation.
    pub collective: bool,
    /// Prints.
    pub prints: bool,
    /// May end the invocation.
    pub ends: bool,
    /// May leave or continue an enclosing loop.
    pub jumps: bool,
    /// Contains a loop, which may not terminate.
    pub loops: bool,
}

impl Summary {
    /// Returns true if the results are the only effect: the instruction may be speculated, duplicated, moved or
    /// removed, as long as nothing in between writes what it reads.
    pub fn is_side_effect_free(&self) -> bool {
        self.writes.is_empty() && !self.collective && !self.prints && !self.ends && !self.jumps
    }

    /// Returns true if the contents of an object may change (mod): it is written, or a barrier makes stores of other
    /// invocations visible.
    pub fn modifies(&self, program: &Program, object: MemId) -> bool {
        self.writes.contains(object) || (self.collective && program.memory(object).space != Space::Private)
    }

    /// Returns true if the contents of an object may be observed (ref): it is read, or a barrier makes its stores
    /// visible to other invocations.
    pub fn observes(&self, program: &Program, object: MemId) -> bool {
        self.reads.contains(object) || (self.collective && program.memory(object).space != Space::Private)
    }

    /// Merges two effect summaries.
    #[must_use]
    pub fn union(self, other: Summary) -> Summary {
        Summary {
            reads: self.reads.union(other.reads),
            writes: self.writes.union(other.writes),
            collective: self.collective || other.collective,
            prints: self.prints || other.prints,
            ends: self.ends || other.ends,
            jumps: self.jumps || other.jumps,
            loops: self.loops || other.loops,
        }
    }
}

/// The effects of every instruction of a program.
#[derive(Clone, Debug)]
pub struct Effects {
    insts: SecondaryMap<InstId, Summary>,
    blocks: SecondaryMap<BlockId, Summary>,
}

impl Effects {
    /// Summarizes everything that is reachable from the body.
    pub fn of(program: &Program) -> Effects {
        let mut effects = Effects {
            insts: SecondaryMap::with_capacity(program.insts().len(), Summary::default()),
            blocks: SecondaryMap::with_capacity(program.blocks().len(), Summary::default()),
        };
        effects.block(program, program.body());
        effects
    }

    /// Summary of an instruction and the instructions nested in it.
    pub fn inst(&self, inst: InstId) -> Summary {
        self.insts[inst]
    }

    /// Summary of a block.
    pub fn of_block(&self, block: BlockId) -> Summary {
        self.blocks[block]
    }

    /// Returns true if a load may be moved across code with these effects: it is not atomic, and its object has the
    /// same contents for this invocation before and after.
    pub fn preserves_load(&self, program: &Program, during: &Summary, load: MemOperand) -> bool {
        let object = load.memory;
        !load.atomic && (self.is_constant(program, object) || !during.modifies(program, object))
    }

    /// Returns true if the program never writes an object.
    pub fn is_constant(&self, program: &Program, object: MemId) -> bool {
        !self.blocks[program.body()].writes.contains(object)
    }

    fn block(&mut self, program: &Program, block: BlockId) -> Summary {
        let mut whole = Summary::default();
        for &inst in &program.block(block).insts {
            let mut summary = own(program, inst);
            for &nested in &program.inst(inst).blocks {
                summary = summary.union(self.block(program, nested));
            }
            if program.inst(inst).op == Control::Loop {
                // Jumps inside are exits of this loop: an inner loop cannot leave an outer one.
                summary.jumps = false;
                summary.loops = true;
            }
            self.insts[inst] = summary;
            whole = whole.union(summary);
        }
        self.blocks[block] = whole;
        whole
    }
}

/// Summary of an instruction without those nested in it.
fn own(program: &Program, inst: InstId) -> Summary {
    let op = &program.inst(inst).op;
    let mut summary = Summary::default();
    match op {
        Op::Pure(_) | Op::PerInvocation(_) | Op::PerGroup(_) => {}
        Op::Load(at) => summary.reads = Objects::of(at.memory),
        Op::Store(at) => summary.writes = Objects::of(at.memory),
        Op::Atomic(_, at) | Op::CompareExchange(at) => {
            let object = Objects::of(at.memory);
            (summary.reads, summary.writes) = (object, object);
        }
        Op::Barrier(_) | Op::Broadcast | Op::Subgroup(_) => summary.collective = true,
        Op::Print(_) => summary.prints = true,
        Op::Terminator(Terminator::Return | Terminator::Trap) => summary.ends = true,
        Op::Terminator(Terminator::Break | Terminator::Continue) => summary.jumps = true,
        Op::Terminator(Terminator::Yield) | Op::Control(_) => {}
    }
    summary
}
