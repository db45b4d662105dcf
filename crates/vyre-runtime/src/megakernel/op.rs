//! Operations: small programs whose invocations are the elements of an item's output.

use vyre_driver::Error;
use vyre_foundation::Validated;
use vyre_foundation::ir::{Access, Def, MemId, Op as Operation, Program, Space};
use vyre_foundation::transform::embed;

/// An operation that items can name.
///
/// It is a program whose objects have these names, each of which it may leave out: `input`, which it reads; `output`, which it writes;
/// `param`, a uniform u32, or a third object; and, for an operation that reports something, `hits`, which it writes, and `hit_count`,
/// an atomic object by which it counts them. Elements have 32 bits. An item runs an invocation for each element of its output, or of
/// its input if there is no output, rounded up to whole workgroups if invocations work together.
#[derive(Clone, Debug)]
pub struct Op {
    pub(super) program: Validated<Program>,
    pub(super) facts: embed::Facts,
    pub(super) input: Option<MemId>,
    pub(super) output: Option<MemId>,
    pub(super) param: Param,
    /// `hits` and `hit_count`.
    pub(super) hits: Option<[MemId; 2]>,
    /// Whether running it again changes nothing.
    pub(super) pure: bool,
    /// Whether an invocation uses only elements of its own, so that it may write what it reads.
    pub(super) elementwise: bool,
}

/// What the fourth field of an item is to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Param {
    Nothing,
    Scalar(MemId),
    Handle(MemId),
}

impl Op {
    /// An operation that does what a program does.
    ///
    /// # Errors
    /// [`Error::NotAnOp`] says what is wrong with the program.
    pub fn new(program: Validated<Program>) -> Result<Op, Error> {
        let refuse = |reason: String| Error::NotAnOp { program: program.name.clone(), reason };
        let facts = embed::facts(&program).map_err(|refusal| refuse(refusal.to_string()))?;
        let mut param = Param::Nothing;
        let [mut input, mut output, mut hits, mut hit_count] = [None; 4];
        for (id, memory) in program.memory.iter() {
            match (memory.name.as_str(), memory.space) {
                (_, Space::Workgroup | Space::Private) => {}
                ("input", Space::Storage(Access::Read)) => input = Some(id),
                ("output", Space::Storage(_)) => output = Some(id),
                ("param", Space::Uniform) => param = Param::Scalar(id),
                ("param", Space::Storage(_)) => param = Param::Handle(id),
                ("hits", Space::Storage(Access::Write)) => hits = Some(id),
                ("hit_count", Space::Storage(_)) if memory.atomic => hit_count = Some(id),
                (name, _) => return Err(refuse(format!("`{name}` is none of the objects that an operation has"))),
            }
        }
        let hits = match (hits, hit_count) {
            (Some(hits), Some(count)) => Some([hits, count]),
            (None, None) => None,
            _ => return Err(refuse("`hits` and `hit_count` belong together".into())),
        };
        let writes = program.memory.iter().any(|(id, memory)| {
            matches!(memory.space, Space::Storage(_)) && memory.writable() && hits.is_none_or(|own| !own.contains(&id))
        });
        if hits.is_some() && writes {
            return Err(refuse("an operation that reports hits may run twice, so it writes nothing else".into()));
        }
        if input.is_none() && output.is_none() {
            return Err(refuse("it needs an `input` or an `output`".into()));
        }
        let elementwise = is_elementwise(&program);
        Ok(Op { program, facts, input, output, param, hits, pure: false, elementwise })
    }

    /// Declares that running it again on the same contents changes nothing, so that an item that repeats another one can be left out.
    #[must_use]
    pub fn pure(mut self) -> Op {
        let accumulates = |id: &MemId| self.program.memory[*id].atomic;
        self.pure = self.hits.is_none() && !self.program.memory.keys().any(|id| accumulates(&id));
        self
    }

    /// The name of its program.
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// The objects that items have handles for: the fields `input_handle`, `output_handle` and `param`, in this order.
    pub(super) fn views(&self) -> [Option<MemId>; 3] {
        let third = match self.param {
            Param::Handle(object) => Some(object),
            Param::Nothing | Param::Scalar(_) => None,
        };
        [self.input, self.output, third]
    }
}

/// Whether every access to storage is at the index of the invocation.
fn is_elementwise(program: &Program) -> bool {
    let mut elementwise = true;
    program.walk(|id, _| {
        let inst = &program.insts[id];
        let storage = |memory: MemId| matches!(program.memory[memory].space, Space::Storage(_));
        if inst.op.memory().is_some_and(storage) && !matches!(inst.op, Operation::Length(_)) {
            let own = matches!(program.values[inst.operands[0]].def, Def::Result(index, _)
                if matches!(program.insts[index].op, Operation::GlobalIndex));
            elementwise &= own && inst.results.len() <= 1 && inst.operands.len() <= 2;
        }
    });
    elementwise
}
