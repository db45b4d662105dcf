//! Embedding: a program becomes a part of another one, which decides which invocations of it there are and where its memory is.
//!
//! The host program says where an invocation stands, and has a [`Home`] for each object. A `return` ends the embedded invocation, and
//! the host goes on behind it. A `trap`, and a loop that takes too many trips, is noted in an object of the host, and ends the
//! invocation, too: it is the host's business what else that means.

use rustc_hash::FxHashSet;

use super::lower_early_returns;
use crate::Validated;
use crate::analysis::const_trip_count;
use crate::ir::clone::{Cloner, Map};
use crate::ir::entity::{Entity, SecondaryMap};
use crate::ir::{
    AccessTypes, Atomic, Axis, Barrier, BlockId, Control, Element, InstId, Literal, MemId, MemOperand, Memory, Op,
    PerGroup, PerInvocation, Program, Pure, ResultTypes, SourceMap, Space, Span, Terminator, Type, ValueId,
};

/// Where an object of the embedded program is.
#[derive(Clone, Copy, Debug)]
pub enum Home {
    /// A part of an object of 32-bit words, which is atomic if the embedded object is.
    Words(Words),
    /// A uniform is this value.
    Value(ValueId),
    /// An array is this one, which has as many elements of the same type, and which nobody else needs any more.
    Object(MemId),
}

/// Words of an object, from one on.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The object.
    pub memory: MemId,
    /// The first word.
    pub first: ValueId,
    /// How many there are.
    pub length: ValueId,
}

/// Which invocation of the embedded program an invocation of the host is. Its grid has one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// In the grid.
    pub index: ValueId,
    /// In the workgroup.
    pub local: ValueId,
    /// The workgroup.
    pub group: ValueId,
    /// How many workgroups there are.
    pub groups: ValueId,
}

/// Fault record of an embedded program: an atomic object of u32 whose first element counts faults, and in it the
/// [two elements](Fault::recorded) of the program, its kind of fault and its trap code.
///
/// Each element keeps the maximum. A trap therefore wins over a loop out of fuel, and of several traps the largest code stays.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The object.
    pub memory: MemId,
    /// The first of the two elements.
    pub at: ValueId,
    /// How many trips the loops of an invocation may take together.
    pub fuel: ValueId,
}

impl Faults {
    /// The memory operand of atomics on the object.
    fn operand(self, host: &Program) -> MemOperand {
        MemOperand::atomic(self.memory, host.memory(self.memory).element)
    }
}

/// A fault of an embedded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A loop took too many trips.
    OutOfFuel,
    /// A trap with this code.
    Trapped(u32),
}

impl Fault {
    /// Elements of the record of one program.
    pub const ELEMENTS: u32 = 2;

    const OUT_OF_FUEL: u32 = 1;
    const TRAPPED: u32 = 2;

    /// The fault that a record holds, if any: its kind, and the code of a trap. Codes have a word of their own because every u32 is one.
    pub fn recorded([kind, code]: [u32; Fault::ELEMENTS as usize]) -> Option<Fault> {
        match kind {
            0 => None,
            Fault::OUT_OF_FUEL => Some(Fault::OutOfFuel),
            _ => Some(Fault::Trapped(code)),
        }
    }
}

/// Why a program cannot be embedded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its workgroups have more than one dimension.
    #[error("its workgroups have more than one dimension")]
    Dimensions,
    /// A storage object or uniform that is accessed as other elements than words.
    #[error("`{object}` has elements of type {element}, and not of 32 bits")]
    Element {
        /// The object.
        object: String,
        /// Its elements.
        element: Element,
    },
    /// Invocations that ended would be missing where others wait for each other.
    #[error("its invocations wait for each other, but some may end before")]
    EndsEarly,
}

/// What there is to know about a program that is to be embedded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its invocations work together: through barriers, subgroups or workgroup memory. Then invocations of the host have to be in
    /// workgroups of the same size, and those of a workgroup have to be the same ones here.
    pub collective: bool,
    /// Something in it can be noted as a fault.
    pub faults: bool,
}

/// Whether a program can be embedded, and what that takes.
///
/// # Errors
/// Why it cannot.
pub fn facts(program: &Program) -> Result<Facts, Refusal> {
    if program.workgroup_size()[1..] != [1, 1] {
        return Err(Refusal::Dimensions);
    }
    let types = AccessTypes::of(program);
    for (id, memory) in program.memories().iter() {
        let of_caller = matches!(memory.space, Space::Storage(_) | Space::Uniform);
        let mut elements = std::iter::once(memory.element).chain(types[id].elements());
        if let Some(element) = elements.find(|element| of_caller && element.size() != 4) {
            return Err(Refusal::Element { object: memory.name.clone(), element });
        }
    }
    let mut traps = false;
    let mut facts = Facts { collective: false, faults: false };
    facts.collective = program.memories().values().any(|memory| memory.space == Space::Workgroup);
    program.walk(|id, _| {
        let op = &program.inst(id).op;
        facts.collective |= op.is_collective() || op.needs_subgroups();
        traps |= *op == Terminator::Trap;
    });
    facts.faults = traps || !long_loops(program).is_empty();
    // Fuel would end invocations that others wait for; such programs keep to the limits of the whole dispatch.
    if facts.collective {
        if traps || program.may_end_early() {
            return Err(Refusal::EndsEarly);
        }
        facts.faults = false;
    }
    Ok(facts)
}

/// Trips that no limit is needed for.
const SHORT: u64 = 1024;

/// The loops that may take more trips than that, those of the loops around them included.
fn long_loops(program: &Program) -> FxHashSet<InstId> {
    let mut long = FxHashSet::default();
    let mut around: Vec<(usize, u64)> = Vec::new();
    program.walk(|id, depth| {
        if program.inst(id).op != Control::Loop {
            return;
        }
        while around.last().is_some_and(|(outer, _)| *outer >= depth) {
            around.pop();
        }
        let outside = around.last().map_or(1, |(_, trips)| *trips);
        let trips = const_trip_count(program, id).map_or(u64::MAX, |count| count.trips.saturating_mul(outside));
        if trips > SHORT {
            long.insert(id);
        }
        // What is inside a loop that takes fuel is as long as it is in each of its trips.
        around.push((depth, if trips > SHORT { 1 } else { trips }));
    });
    long
}

/// Appends to a block of the host what an invocation of a program does. The program is one that has [`facts`], and `homes` has one for
/// each of its objects.
pub fn embed(
    host: &mut Program,
    to: BlockId,
    program: &Validated<Program>,
    homes: &[(MemId, Home)],
    position: Position,
    faults: Option<Faults>,
) {
    let mut all = SecondaryMap::with_capacity(program.memories().len(), None);
    for &(object, home) in homes {
        all[object] = Some(home);
    }
    let body = host.add_block();
    let first = host.insts().len();
    let mut embedding = Embedding { program, homes: all, position, faults: None, long: long_loops(program) };
    embedding.start(host, to, faults);
    Cloner::between(program, host).block(program.body(), body, &mut embedding);
    host.relocate(first, program.sources());
    lower_early_returns::run(host, body);
    let end = host.block(body).insts.last().copied();
    if let Some(end) = end.filter(|&end| host.inst(end).op == Terminator::Return) {
        host.inst_mut(end).op = Op::Terminator(Terminator::Yield);
    }
    host.push(to, Control::Region(program.name().into()), [], &[], [body], Span::NONE);
}

/// A loop that counts, while its body is being made.
#[derive(Clone, Copy, Debug)]
pub struct Counting {
    range: [ValueId; 3],
    /// The body, which is to go on behind what is in it.
    pub body: BlockId,
    /// The number of the trip.
    pub at: ValueId,
}

impl Counting {
    /// A loop over `from..until` by steps.
    pub fn begin(host: &mut Program, range: [ValueId; 3]) -> Counting {
        let body = host.add_block();
        let at = host.add_param(body, Type::U32);
        let done = emit(host, body, Pure::Ge, &[at, range[1]], Type::Bool);
        let (leave, stay) = (host.add_block(), host.add_block());
        host.push(leave, Terminator::Break, [], &[], [], Span::NONE);
        host.push(stay, Terminator::Yield, [], &[], [], Span::NONE);
        host.push(body, Control::If, [done], &[], [leave, stay], Span::NONE);
        Counting { range, body, at }
    }

    /// Appends the loop to a block, now that its body is made.
    pub fn end(self, host: &mut Program, to: BlockId) {
        let next = emit(host, self.body, Pure::Add, &[self.at, self.range[2]], Type::U32);
        host.push(self.body, Terminator::Continue, [next], &[], [], Span::NONE);
        host.push(to, Control::Loop, [self.range[0]], &[], [self.body], Span::NONE);
    }
}

/// Appends an operation with one result.
pub fn emit(program: &mut Program, to: BlockId, op: impl Into<Op>, operands: &[ValueId], ty: Type) -> ValueId {
    super::emit(program, to, op, operands, ty, Span::NONE)
}

/// Exceptions of the clone of a program in its host: positions, memory, traps and loops.
struct Embedding<'c> {
    program: &'c Program,
    homes: SecondaryMap<MemId, Option<Home>>,
    position: Position,
    /// The fault record, and the private object with the fuel that is left.
    faults: Option<(Faults, MemId)>,
    /// The loops whose trips take fuel.
    long: FxHashSet<InstId>,
}

impl Map for Embedding<'_> {
    fn replace(&mut self, cloner: &mut Cloner<'_>, id: InstId, to: BlockId) -> bool {
        let program = self.program;
        let inst = program.inst(id);
        let home = inst.op.memory().and_then(|memory| self.homes[memory]);
        let known = match (&inst.op, home) {
            (Op::PerInvocation(PerInvocation::GlobalIndex | PerInvocation::GlobalId(Axis::X)), _) => {
                Some(self.position.index)
            }
            (Op::PerInvocation(PerInvocation::LocalIndex | PerInvocation::LocalId(Axis::X)), _) => {
                Some(self.position.local)
            }
            (Op::PerGroup(PerGroup::GroupIndex | PerGroup::GroupId(Axis::X)), _) => Some(self.position.group),
            (Op::PerGroup(PerGroup::GroupCount(Axis::X)), _) => Some(self.position.groups),
            (Op::PerGroup(PerGroup::GroupSize(Axis::X)), _) => Some(cloner.target.literal(program.workgroup_size()[0])),
            (
                Op::PerInvocation(PerInvocation::GlobalId(_) | PerInvocation::LocalId(_))
                | Op::PerGroup(PerGroup::GroupId(_)),
                _,
            ) => Some(cloner.target.literal(0u32)),
            (Op::PerGroup(PerGroup::GroupCount(_) | PerGroup::GroupSize(_)), _) => Some(cloner.target.literal(1u32)),
            (Op::PerGroup(PerGroup::Length(_)), Some(Home::Words(words))) => Some(words.length),
            (Op::Load(_), Some(Home::Value(value))) => Some(value),
            _ => None,
        };
        match (known, home, &inst.op, self.faults) {
            (Some(value), ..) => cloner.define(inst.results[0], value),
            (None, Some(Home::Words(words)), ..) => self.access(cloner, id, words, to),
            (None, _, Op::Terminator(Terminator::Trap), Some((faults, _))) => {
                let code = cloner.value(inst.operands[0]);
                let host = &mut *cloner.target;
                let one = host.literal(1u32);
                let at = emit(host, to, Pure::Add, &[faults.at, one], Type::U32);
                emit(host, to, Op::Atomic(Atomic::Max, faults.operand(host)), &[at, code], Type::U32);
                record(host, to, faults, Fault::TRAPPED);
                host.push(to, Terminator::Return, [], &[], [], inst.span);
            }
            (None, ..) => return false,
        }
        true
    }

    fn op(&mut self, op: &Op) -> Op {
        match op.memory().and_then(|memory| self.homes[memory]) {
            Some(Home::Object(object)) => op.on(object),
            Some(Home::Words(_) | Home::Value(_)) | None => op.clone(),
        }
    }

    fn enter(&mut self, cloner: &mut Cloner<'_>, owner: InstId, to: BlockId) {
        if self.long.contains(&owner) {
            self.take_fuel(cloner.target, to, self.program.inst(owner).span);
        }
    }
}

impl Embedding<'_> {
    /// Gives arrays their zeros and loops their fuel.
    fn start(&mut self, host: &mut Program, to: BlockId, faults: Option<Faults>) {
        let (zero, one) = (host.literal(0u32), host.literal(1u32));
        let workgroup: Vec<MemId> = self.arrays(Space::Workgroup).collect();
        if !workgroup.is_empty() {
            host.push(to, Barrier::Workgroup, [], &[], [], Span::NONE);
        }
        let size = host.literal(self.program.workgroup_size()[0]);
        let private: Vec<MemId> = self.arrays(Space::Private).collect();
        let shared = workgroup.iter().map(|&object| (object, self.position.local, size));
        for (object, from, step) in shared.chain(private.into_iter().map(|object| (object, zero, one))) {
            let memory = host.memory(object);
            let (ty, length) = (memory.element.value_type(), memory.length.unwrap_or(0));
            let (length, value) = (host.literal(length), host.literal(Literal::zero(ty)));
            let clearing = Counting::begin(host, [from, length, step]);
            host.push(clearing.body, Op::Store(host.operand(object)), [clearing.at, value], &[], [], Span::NONE);
            clearing.end(host, to);
        }
        if !workgroup.is_empty() {
            host.push(to, Barrier::Workgroup, [], &[], [], Span::NONE);
        }
        if let Some(faults) = faults {
            let name = host.unused_name("fuel_left");
            let (space, element, length) = (Space::Private, Element::U32, Some(1));
            let memory = Memory { name, space, element, length, atomic: false, default: None, span: Span::NONE };
            let left = host.add_memory(memory);
            host.push(to, Op::Store(host.operand(left)), [zero, faults.fuel], &[], [], Span::NONE);
            self.faults = Some((faults, left));
        }
    }

    /// The arrays of the host that the program has in a space.
    fn arrays(&self, space: Space) -> impl Iterator<Item = MemId> {
        let own = self.program.memories().iter().filter(move |(_, memory)| memory.space == space);
        own.filter_map(|(object, _)| match self.homes[object] {
            Some(Home::Object(array)) => Some(array),
            _ => None,
        })
    }

    /// Begins a trip: without fuel, the invocation ends.
    fn take_fuel(&self, host: &mut Program, to: BlockId, span: Span) {
        let Some((faults, left)) = self.faults else { return };
        let (zero, one) = (host.literal(0u32), host.literal(1u32));
        let left = host.operand(left);
        let fuel = emit(host, to, Op::Load(left), &[zero], Type::U32);
        let spent = emit(host, to, Pure::Eq, &[fuel, zero], Type::Bool);
        let (end, go_on) = (host.add_block(), host.add_block());
        record(host, end, faults, Fault::OUT_OF_FUEL);
        host.push(end, Terminator::Return, [], &[], [], span);
        host.push(go_on, Terminator::Yield, [], &[], [], span);
        host.push(to, Control::If, [spent], &[], [end, go_on], span);
        let less = emit(host, to, Pure::Sub, &[fuel, one], Type::U32);
        host.push(to, Op::Store(left), [zero, less], &[], [], span);
    }

    /// An access to words of the host. What is outside of them is outside of the host's object, too.
    fn access(&self, cloner: &mut Cloner<'_>, id: InstId, words: Words, to: BlockId) {
        let program = self.program;
        let inst = program.inst(id);
        let index = cloner.value(inst.operands[0]);
        let values = cloner.values(&inst.operands[1..]);
        let Some(own) = inst.op.operand() else { return };
        let words_are_atomic = cloner.target.memory(words.memory).atomic;
        let operand = MemOperand { memory: words.memory, atomic: own.atomic || words_are_atomic, ..own };
        let count = if matches!(inst.op, Op::Load(_)) { inst.results.len() } else { values.len() };
        let is_plain = matches!(inst.op, Op::Load(_) | Op::Store(_));
        for position in 0..if is_plain { count } else { 1 } {
            let host = &mut *cloner.target;
            let mut at = index;
            let mut inside = emit(host, to, Pure::Lt, &[at, words.length], Type::Bool);
            if position > 0 {
                let offset = host.literal(position as u32);
                at = emit(host, to, Pure::Add, &[index, offset], Type::U32);
                // An index that wraps is outside.
                let beyond = emit(host, to, Pure::Ge, &[at, offset], Type::Bool);
                let before = emit(host, to, Pure::Lt, &[at, words.length], Type::Bool);
                inside = emit(host, to, Pure::And, &[beyond, before], Type::Bool);
            }
            let place = emit(host, to, Pure::Add, &[words.first, at], Type::U32);
            let nowhere = host.literal(u32::MAX);
            let place = emit(host, to, Pure::Select, &[inside, place, nowhere], Type::U32);
            match &inst.op {
                Op::Load(_) => {
                    let value = emit(host, to, Op::Load(operand), &[place], own.value_type());
                    cloner.define(inst.results[position], value);
                }
                Op::Store(_) => {
                    host.push(to, Op::Store(operand), [place, values[position]], &[], [], inst.span);
                }
                op => {
                    let types: ResultTypes = inst.results.iter().map(|&result| program.ty(result)).collect();
                    let operands = std::iter::once(place).chain(values.iter().copied());
                    let copy = host.push(to, op.on(words.memory), operands, &types, [], inst.span);
                    cloner.define_results(inst, copy);
                }
            }
        }
    }
}

/// Counts a fault and records its kind.
fn record(host: &mut Program, to: BlockId, faults: Faults, kind: u32) {
    let (zero, one, kind) = (host.literal(0u32), host.literal(1u32), host.literal(kind));
    let operand = faults.operand(host);
    emit(host, to, Op::Atomic(Atomic::Add, operand), &[zero, one], Type::U32);
    emit(host, to, Op::Atomic(Atomic::Max, operand), &[faults.at, kind], Type::U32);
}

impl Program {
    /// Adds the sources of a program whose instructions were cloned into this one, the first of them at this position of the arena, and
    /// shifts their spans.
    pub(super) fn relocate(&mut self, first: usize, sources: &SourceMap) {
        let relocation = self.sources_mut().append(sources);
        for id in (first..self.insts().len()).map(InstId::from_index) {
            let inst = self.inst_mut(id);
            inst.span = relocation.apply(inst.span);
        }
    }
}
