//! Operations: small programs whose invocations are the elements of an item's output.

use vyre_driver::Error as DriverError;
use vyre_foundation::Validated;
use vyre_foundation::ir::{Access, AccessTypes, Def, MemId, Op as Operation, PerGroup, PerInvocation, Program, Space};
use vyre_foundation::transform::embed;

use super::arena::Segment;
use super::item::{self, Traits};
use super::kernel::{Body, Field, Slot};
use crate::Error;

/// What an operation does with a handle of its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) object: MemId,
    /// Where its memory is.
    pub(super) segment: Segment,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// An operation that items can name.
///
/// It is a program whose objects have these names, each of which it may leave out: `input`, which it reads; `output`, which it writes;
/// `param`, a uniform u32, or a third object; and, for an operation that reports something, `hits`, which it writes, and `hit_count`,
/// an atomic object by which it counts them: up to 2³² − 1 of a launch. Elements have 32 bits. An item runs an invocation for each element
/// of its output, or of its input if there is no output, rounded up to whole workgroups if invocations work together.
#[derive(Clone, Debug)]
pub struct Op {
    pub(super) body: Body,
    /// The objects that the handles of an item are for: input, output and param.
    pub(super) views: [Option<View>; 3],
    /// Whether it reports hits.
    pub(super) reports: bool,
    /// Whether running it again changes nothing.
    pub(super) pure: bool,
    /// Whether an invocation uses only elements of its own, so that it may write what it reads.
    pub(super) elementwise: bool,
    /// Reason why the device of the session cannot run it.
    pub(super) refusal: Option<DriverError>,
}

/// Reason why a program cannot be an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOp {
    /// A program that cannot be inlined into the interpreter kernel.
    #[error("{0}")]
    Embed(embed::Refusal),
    /// An object of another name or access than those of operations.
    #[error("`{0}` is none of the objects that an operation has")]
    UnknownObject(String),
    /// Hits without a counter, or a counter without hits.
    #[error("`hits` and `hit_count` belong together")]
    HalfOfHits,
    /// Stores besides hits, which a second run after an overflow of hits would repeat.
    #[error("an operation that reports hits may run twice, so it writes nothing else")]
    WritesBesideHits,
    /// A program without a number of invocations.
    #[error("it needs an `input` or an `output`")]
    NoExtent,
}

impl Op {
    /// An operation that does what a program does.
    ///
    /// # Errors
    /// [`Error::NotAnOp`] says what is wrong with the program.
    pub fn new(program: Validated<Program>) -> Result<Op, Error> {
        let refuse = |reason| Error::NotAnOp { program: program.name().to_owned(), reason };
        let facts = embed::facts(&program).map_err(|refusal| refuse(BadOp::Embed(refusal)))?;
        let types = AccessTypes::of(&program);
        let mut slots = Vec::new();
        let mut views = [None; 3];
        for (id, memory) in program.memories().iter() {
            let handle = |handle: usize| Slot::Handle(Field { item: 0, handle });
            let slot = match (memory.name.as_str(), memory.space) {
                (_, Space::Workgroup | Space::Private) => continue,
                ("input", Space::Storage(Access::Read | Access::Constant)) => handle(INPUT),
                ("output", Space::Storage(_)) => handle(OUTPUT),
                ("param", Space::Storage(_)) => handle(PARAM),
                ("param", Space::Uniform) => Slot::Param(0),
                ("hits", Space::Storage(Access::Write)) => Slot::Hits,
                ("hit_count", Space::Storage(_)) if memory.atomic || types[id].has_atomics() => Slot::HitCount,
                (name, _) => return Err(refuse(BadOp::UnknownObject(name.into()))),
            };
            if let Slot::Handle(field) = slot {
                let segment = if memory.atomic || types[id].has_atomics() { Segment::Atomic } else { Segment::Plain };
                let (reads, writes) = (memory.readable(), memory.writable());
                views[field.handle] = Some(View { object: id, segment, reads, writes });
            }
            slots.push((id, slot));
        }
        let has = |wanted: Slot| slots.iter().any(|(_, slot)| *slot == wanted);
        let reports = has(Slot::Hits);
        if reports != has(Slot::HitCount) {
            return Err(refuse(BadOp::HalfOfHits));
        }
        if reports && views.into_iter().flatten().any(|view: View| view.writes) {
            return Err(refuse(BadOp::WritesBesideHits));
        }
        let handle = match views {
            [_, Some(_), _] => OUTPUT,
            [Some(_), None, _] => INPUT,
            [None, None, _] => return Err(refuse(BadOp::NoExtent)),
        };
        let elementwise = is_elementwise(&program);
        let body = Body { program, facts, slots, extent: Field { item: 0, handle } };
        Ok(Op { body, views, reports, pure: false, elementwise, refusal: None })
    }

    /// Declares that running it again on the same contents changes nothing, so that an item that repeats another one can be pruned. A pruned
    /// item fails if the item that it repeats does.
    #[must_use]
    pub fn pure(mut self) -> Op {
        let accumulates = self.body.program.memories().keys().any(|object| self.body.is_atomic(object));
        self.pure = !(self.reports || accumulates);
        self
    }

    /// The name of its program.
    pub fn name(&self) -> &str {
        self.body.program.name()
    }
}

impl Op {
    /// What it does with the handles of an item.
    pub(super) fn traits(&self) -> Traits {
        let access = |handle: usize| {
            self.views[handle].map_or(item::Access::None, |view| match (view.reads, view.writes) {
                (true, true) => item::Access::Update,
                (false, true) => item::Access::Write,
                (_, false) => item::Access::Read,
            })
        };
        Traits { pure: self.pure, input: access(INPUT), output: access(OUTPUT), param: access(PARAM) }
    }
}

/// The handles of an item.
pub(super) const INPUT: usize = 0;
pub(super) const OUTPUT: usize = 1;
pub(super) const PARAM: usize = 2;

/// Whether every access to storage is at the index of the invocation.
fn is_elementwise(program: &Program) -> bool {
    let mut elementwise = true;
    program.walk(|id, _| {
        let inst = program.inst(id);
        let storage = |memory: MemId| matches!(program.memory(memory).space, Space::Storage(_));
        if inst.op.memory().is_some_and(storage) && !matches!(inst.op, Operation::PerGroup(PerGroup::Length(_))) {
            let own = matches!(program.def(inst.operands[0]), Def::Result(index, _)
                if matches!(program.inst(index).op, Operation::PerInvocation(PerInvocation::GlobalIndex)));
            elementwise &= own && inst.results.len() <= 1 && inst.operands.len() <= 2;
        }
    });
    elementwise
}
