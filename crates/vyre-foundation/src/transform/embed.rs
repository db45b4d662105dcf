//! Inlining of a program into a host program, which defines its invocations and its memory.
//!
//! The host provides the [`Position`] of an invocation and a [`Home`] for each object. A `return` ends the inlined
//! invocation and continues in the host after it. A `trap`, or a loop that exceeds its fuel, is recorded in an object
//! of the host and ends the invocation; the host decides how to react.

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

/// Storage of an object of the inlined program.
#[derive(Clone, Copy, Debug)]
pub enum Home {
    /// A range of an object of 32-bit words, which is atomic if the inlined object is.
    Words(Words),
    /// The value of a uniform.
    Value(ValueId),
    /// An array with the same element type and length, which the host no longer needs.
    Object(MemId),
}

/// Range of words of an object.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The object.
    pub memory: MemId,
    /// Index of the first word.
    pub first: ValueId,
    /// Number of words.
    pub length: ValueId,
}

/// Position of an invocation of the inlined program, in a one-dimensional grid.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Global index.
    pub index: ValueId,
    /// Local index.
    pub local: ValueId,
    /// Workgroup index.
    pub group: ValueId,
    /// Number of workgroups.
    pub groups: ValueId,
}

/// Fault record of an inlined program, in an atomic object of u32. Element 0 of the object counts faults; the record
/// has [two elements](Fault::recorded), the kind of the fault and the trap code.
///
/// Each element is updated by an atomic maximum, so a trap overrides a loop out of fuel, and the largest of several
/// trap codes is kept.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The object.
    pub memory: MemId,
    /// Index of the record.
    pub at: ValueId,
    /// Limit of the loop iterations of an invocation.
    pub fuel: ValueId,
}

impl Faults {
    /// Memory operand of atomics on the object.
    fn operand(self, host: &Program) -> MemOperand {
        MemOperand::atomic(self.memory, host.memory(self.memory).element)
    }
}

/// Fault of an inlined program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A loop ran out of fuel.
    OutOfFuel,
    /// Trap with this code.
    Trapped(u32),
}

impl Fault {
    /// Number of elements of a record.
    pub const ELEMENTS: u32 = 2;

    const OUT_OF_FUEL: u32 = 1;
    const TRAPPED: u32 = 2;

    /// Decodes a record: the kind of the fault, and the code of a trap. Codes have a word of their own because every
    /// u32 is a valid code.
    pub fn recorded([kind, code]: [u32; Fault::ELEMENTS as usize]) -> Option<Fault> {
        match kind {
            0 => None,
            Fault::OUT_OF_FUEL => Some(Fault::OutOfFuel),
            _ => Some(Fault::Trapped(code)),
        }
    }
}

/// Reason why a program cannot be inlined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Workgroups with more than one dimension.
    #[error("its workgroups have more than one dimension")]
    Dimensions,
    /// A storage object or uniform that is accessed with elements other than 32-bit words.
    #[error("`{object}` is accessed with elements of type {element}, which do not have 32 bits")]
    Element {
        /// The object.
        object: String,
        /// Element type of the access.
        element: Element,
    },
    /// Invocations may end while others wait at a barrier.
    #[error("invocations may end or trap before a barrier or subgroup operation that others execute")]
    EndsEarly,
}

/// Properties of a program to be inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Uses barriers, subgroups or workgroup memory, so the host must have workgroups of the same size and map each
    /// workgroup to one of them.
    pub collective: bool,
    /// May record a fault.
    pub faults: bool,
}

/// Checks whether a program can be inlined, and returns its properties.
///
/// # Errors
/// The reason why it cannot.
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
    facts.faults = traps || !metered_loops(program).is_empty();
    // Running out of fuel would end invocations that others wait for, so these programs use the limits of the dispatch
    // instead.
    if facts.collective {
        if traps || program.may_end_early() {
            return Err(Refusal::EndsEarly);
        }
        facts.faults = false;
    }
    Ok(facts)
}

/// Trip count up to which a loop consumes no fuel.
const UNMETERED_TRIPS: u64 = 1024;

/// The loops that may exceed [`UNMETERED_TRIPS`], multiplied by the trips of the enclosing loops.
fn metered_loops(program: &Program) -> FxHashSet<InstId> {
    let mut metered = FxHashSet::default();
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
        if trips > UNMETERED_TRIPS {
            metered.insert(id);
        }
        // Each iteration of a metered loop consumes fuel, so nested loops count from 1 again.
        around.push((depth, if trips > UNMETERED_TRIPS { 1 } else { trips }));
    });
    metered
}

/// Inlines an invocation of a program at the end of a block of the host. The program must have [`facts`], and each of
/// its objects a home in `homes`.
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
    let mut embedding = Embedding { program, homes: all, position, faults: None, metered: metered_loops(program) };
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

/// Builder of a counted loop.
#[derive(Clone, Copy, Debug)]
pub struct CountedLoop {
    range: [ValueId; 3],
    /// Block to which the body is appended.
    pub body: BlockId,
    /// Induction variable.
    pub at: ValueId,
}

impl CountedLoop {
    /// Begins a loop over `[start, end, step]`.
    pub fn begin(host: &mut Program, range: [ValueId; 3]) -> CountedLoop {
        let body = host.add_block();
        let at = host.add_param(body, Type::U32);
        let done = emit(host, body, Pure::Ge, &[at, range[1]], Type::Bool);
        let (leave, stay) = (host.add_block(), host.add_block());
        host.push(leave, Terminator::Break, [], &[], [], Span::NONE);
        host.push(stay, Terminator::Yield, [], &[], [], Span::NONE);
        host.push(body, Control::If, [done], &[], [leave, stay], Span::NONE);
        CountedLoop { range, body, at }
    }

    /// Ends the body, and appends the loop to a block.
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

/// Rewrites while cloning a program into its host: positions, memory, traps and loops.
struct Embedding<'c> {
    program: &'c Program,
    homes: SecondaryMap<MemId, Option<Home>>,
    position: Position,
    /// The fault record, and the private object with the remaining fuel.
    faults: Option<(Faults, MemId)>,
    /// Metered loops, whose iterations consume fuel.
    metered: FxHashSet<InstId>,
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
        if self.metered.contains(&owner) {
            self.consume_fuel(cloner.target, to, self.program.inst(owner).span);
        }
    }
}

impl Embedding<'_> {
    /// Zero-initializes arrays, and sets the fuel.
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
            let clearing = CountedLoop::begin(host, [from, length, step]);
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

    /// Arrays of the host that hold the program's arrays in an address space.
    fn arrays(&self, space: Space) -> impl Iterator<Item = MemId> {
        let own = self.program.memories().iter().filter(move |(_, memory)| memory.space == space);
        own.filter_map(|(object, _)| match self.homes[object] {
            Some(Home::Object(array)) => Some(array),
            _ => None,
        })
    }

    /// Consumes fuel at the start of an iteration, or ends the invocation if there is none.
    fn consume_fuel(&self, host: &mut Program, to: BlockId, span: Span) {
        let Some((faults, left)) = self.faults else { return };
        let (zero, one) = (host.literal(0u32), host.literal(1u32));
        let left = host.operand(left);
        let fuel = emit(host, to, Op::Load(left), &[zero], Type::U32);
        let spent = emit(host, to, Pure::Eq, &[fuel, zero], Type::Bool);
        let (end, proceed) = (host.add_block(), host.add_block());
        record(host, end, faults, Fault::OUT_OF_FUEL);
        host.push(end, Terminator::Return, [], &[], [], span);
        host.push(proceed, Terminator::Yield, [], &[], [], span);
        host.push(to, Control::If, [spent], &[], [end, proceed], span);
        let remaining = emit(host, to, Pure::Sub, &[fuel, one], Type::U32);
        host.push(to, Op::Store(left), [zero, remaining], &[], [], span);
    }

    /// Rewrites an access into the words of the host. An out-of-bounds index stays out of bounds of the host's object.
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
            let mut in_bounds = emit(host, to, Pure::Lt, &[at, words.length], Type::Bool);
            if position > 0 {
                let offset = host.literal(position as u32);
                at = emit(host, to, Pure::Add, &[index, offset], Type::U32);
                // An index that wraps around is out of bounds.
                let beyond = emit(host, to, Pure::Ge, &[at, offset], Type::Bool);
                let before = emit(host, to, Pure::Lt, &[at, words.length], Type::Bool);
                in_bounds = emit(host, to, Pure::And, &[beyond, before], Type::Bool);
            }
            let place = emit(host, to, Pure::Add, &[words.first, at], Type::U32);
            let out_of_bounds = host.literal(u32::MAX);
            let place = emit(host, to, Pure::Select, &[in_bounds, place, out_of_bounds], Type::U32);
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
    /// Adds the sources of a program that was cloned into this one, and shifts the spans of its instructions, which
    /// begin at position `first` of the arena.
    pub(super) fn relocate(&mut self, first: usize, sources: &SourceMap) {
        let relocation = self.sources_mut().append(sources);
        for id in (first..self.insts().len()).map(InstId::from_index) {
            let inst = self.inst_mut(id);
            inst.span = relocation.apply(inst.span);
        }
    }
}
