//! Ops: small programs with one invocation for each element of an item's output.

use vyre_driver::Error as DriverError;
use vyre_foundation::Validated;
use vyre_foundation::ir::{Access, AccessTypes, Def, MemId, Op as Operation, PerGroup, PerInvocation, Program, Space};
use vyre_foundation::transform::embed;

use super::arena::Segment;
use super::item::{self, Traits};
use super::kernel::{Body, Field, Slot};
use crate::Error;

/// Access of an op to a handle of its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) object: MemId,
    /// Segment of its memory.
    pub(super) segment: Segment,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// An op that items can name.
///
/// It is a program with these optional objects: `input`, which it reads; `output`, which it writes; `param`, a uniform `u32` or a third
/// object; and, to report results of variable number, `hits`, which it writes, and `hit_count`, an atomic counter of them, up to 2³² − 1 in
/// a launch. Elements have 32 bits. An item has an invocation for each element of its output, or of its input if there is no output,
/// rounded up to whole workgroups if the program uses collectives.
#[derive(Clone, Debug)]
pub struct Op {
    pub(super) body: Body,
    /// Views of the input, output and param handles.
    pub(super) views: [Option<View>; 3],
    /// Reports hits.
    pub(super) reports: bool,
    /// Idempotent.
    pub(super) pure: bool,
    /// Each invocation accesses only its own element, so input and output may alias.
    pub(super) elementwise: bool,
    /// Reason why the device cannot run it.
    pub(super) refusal: Option<DriverError>,
}

/// Reason why a program cannot be an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOp {
    /// A program that cannot be inlined into the interpreter kernel.
    #[error("{0}")]
    Embed(embed::Refusal),
    /// An object with a name or access that ops do not have.
    #[error("`{0}` is not one of the objects of an op, or is declared with another access")]
    UnknownObject(String),
    /// Hits without a counter, or a counter without hits.
    #[error("`hits` and `hit_count` must be declared together")]
    HalfOfHits,
    /// Stores besides hits, which a rerun after an overflow of the hit buffer would repeat.
    #[error("it reports hits and writes other memory, which a rerun after an overflow of `hits` would write twice")]
    WritesBesideHits,
    /// A program without a number of invocations.
    #[error("it declares neither `input` nor `output`, which determine the number of invocations")]
    NoExtent,
}

impl Op {
    /// Creates an op from a program.
    ///
    /// # Errors
    /// [`Error::NotAnOp`] with the violated rule.
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

    /// Declares the op idempotent, so that redundant items can be pruned. A pruned item fails if the item that it repeats fails.
    /// Ignored for ops that report hits or use atomics.
    #[must_use]
    pub fn pure(mut self) -> Op {
        let accumulates = self.body.program.memories().keys().any(|object| self.body.is_atomic(object));
        self.pure = !(self.reports || accumulates);
        self
    }

    /// Returns the name of the program.
    pub fn name(&self) -> &str {
        self.body.program.name()
    }
}

impl Op {
    /// Returns the effects on the handles of an item.
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

/// Indices of the handles of an item.
pub(super) const INPUT: usize = 0;
pub(super) const OUTPUT: usize = 1;
pub(super) const PARAM: usize = 2;

/// Returns true if every storage access is at the index of the invocation.
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
