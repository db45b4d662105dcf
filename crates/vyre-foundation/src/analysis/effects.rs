//! What instructions read, write and do otherwise, nested ones included.
//!
//! Distinct memory objects never overlap, so a set of objects says which accesses can meet.

use crate::ir::entity::{Entity, SecondaryMap};
use crate::ir::ops::Kind;
use crate::ir::{BlockId, InstId, MemId, Op, Program};

/// A set of memory objects. The objects from the 63rd on are one for it: sets may be larger than they should be, never
/// smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects(u64);

impl Objects {
    /// Nothing.
    pub const NONE: Objects = Objects(0);
    /// Everything.
    pub const ALL: Objects = Objects(!0);

    /// One object.
    pub fn of(object: MemId) -> Objects {
        Objects(1 << object.index().min(63))
    }

    /// Whether an object may be in it.
    pub fn contains(self, object: MemId) -> bool {
        self.meets(Objects::of(object))
    }

    /// Whether two sets may share an object.
    pub fn meets(self, other: Objects) -> bool {
        self.0 & other.0 != 0
    }

    /// Both together.
    pub fn and(self, other: Objects) -> Objects {
        Objects(self.0 | other.0)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What an instruction does besides giving results, with everything that is nested in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Objects it loads from. An atomic operation reads and writes.
    pub reads: Objects,
    /// Objects it stores to.
    pub writes: Objects,
    /// Whether there is a barrier, a broadcast or a subgroup operation in it.
    pub collective: bool,
    /// Whether it prints.
    pub prints: bool,
    /// Whether it can end the invocation.
    pub ends: bool,
    /// Whether it can leave, or go on with, a loop around it.
    pub jumps: bool,
    /// Whether there is a loop in it: it may take long, or forever.
    pub loops: bool,
}

impl Summary {
    /// Whether nothing but its results comes of it: it may be executed more or less often, earlier or later, as long as
    /// what it reads is not written in between.
    pub fn only_computes(&self) -> bool {
        self.writes.is_empty() && !self.collective && !self.prints && !self.ends && !self.jumps
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Summary) -> Summary {
        Summary {
            reads: self.reads.and(other.reads),
            writes: self.writes.and(other.writes),
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
    /// Looks at everything that is reachable from the body.
    pub fn of(program: &Program) -> Effects {
        let mut effects = Effects {
            insts: SecondaryMap::with_capacity(program.insts.len(), Summary::default()),
            blocks: SecondaryMap::with_capacity(program.blocks.len(), Summary::default()),
        };
        effects.block(program, program.body);
        effects
    }

    /// What an instruction does, with what is nested in it.
    pub fn inst(&self, inst: InstId) -> Summary {
        self.insts[inst]
    }

    /// What the instructions of a block do together.
    pub fn of_block(&self, block: BlockId) -> Summary {
        self.blocks[block]
    }

    /// Whether an invocation sees an object as it was before something with these effects: that does not write the object, and no
    /// barrier in it could show what others have written.
    pub fn keeps(&self, program: &Program, during: &Summary, object: MemId) -> bool {
        let never_written = !self.blocks[program.body].writes.contains(object);
        let unchanged = !during.writes.contains(object) && !during.collective;
        !program.memory[object].atomic && (never_written || unchanged)
    }

    fn block(&mut self, program: &Program, block: BlockId) -> Summary {
        let mut whole = Summary::default();
        for &inst in &program.blocks[block].insts {
            let mut summary = own(program, inst);
            for &nested in &program.insts[inst].blocks {
                summary = summary.and(self.block(program, nested));
            }
            if program.insts[inst].op == Op::Loop {
                // What jumps inside is about this loop: exits of outer loops cannot be reached from within an inner one.
                summary.jumps = false;
                summary.loops = true;
            }
            self.insts[inst] = summary;
            whole = whole.and(summary);
        }
        self.blocks[block] = whole;
        whole
    }
}

/// What an instruction does by itself.
fn own(program: &Program, inst: InstId) -> Summary {
    let op = &program.insts[inst].op;
    let mut summary = Summary::default();
    match op.row().kind {
        Kind::Pure | Kind::PerInvocation | Kind::PerGroup => {}
        Kind::Access | Kind::Atomic => {
            let object = op.memory().map_or(Objects::ALL, Objects::of);
            let (reads, writes) = match op {
                Op::Load(_) => (object, Objects::NONE),
                Op::Store(_) => (Objects::NONE, object),
                _ => (object, object),
            };
            (summary.reads, summary.writes) = (reads, writes);
        }
        Kind::Collective => summary.collective = true,
        Kind::Effect => summary.prints = true,
        Kind::Control => match op {
            Op::Return | Op::Trap => summary.ends = true,
            Op::Break | Op::Continue => summary.jumps = true,
            _ => {}
        },
    }
    summary
}
