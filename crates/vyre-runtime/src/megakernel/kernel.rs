//! Kernels of a session: persistent workers that loop over items and execute inlined ops.
//!
//! The host resolves items before a launch into a column-major table, `work`, with a [column](Column) for each operand, such as the first
//! word of the input. A worker is an invocation or a workgroup. Workers take items in a grid-stride loop, so all items are executed for any
//! grid.
//!
//! Ready-queue workers share a queue of [ready](Ready) items instead. A worker that completes an item decrements the dependency counters of
//! its successors, continues with one that became ready, and enqueues the others. Workers spin on an empty queue, which requires forward
//! progress of all workgroups.

use vyre_driver::Error;
use vyre_foundation::ir::{
    Access, AccessTypes, Atomic, Axis, Barrier, BlockId, Control, Element, MemId, MemOperand, Memory, Op as Operation,
    PerGroup, PerInvocation, Program, Pure, Space, Span, Terminator, Type, ValueId,
};
use vyre_foundation::transform::embed::{CountedLoop, Facts, Faults, Home, Position, Words, embed, emit};
use vyre_foundation::{Validated, validate};

/// Execution unit that processes an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Worker {
    /// One invocation, for items of few elements.
    Invocation,
    /// A workgroup, for longer items and collective operations.
    Workgroup,
    /// A workgroup that claims items from the ready queue.
    ReadyQueue,
}

/// Contents of a column of the table. In a kernel of several ops, [`Column::Op`] is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Number of the op.
    Op,
    /// First word of an operand.
    First(Field),
    /// Length of an operand.
    Length(Field),
    /// Scalar parameter of an item of a window.
    Param(usize),
    /// Offset of the item's fault record.
    Fault,
    /// Offset of the item's state.
    State,
    /// Offset of the item's successor list in the table.
    Successors,
    /// Length of the successor list.
    SuccessorCount,
}

/// States of items in a watched kernel. The first word of the buffer is the stop flag.
pub(super) struct State;

impl State {
    /// The item is complete.
    pub(super) const DONE: u32 = 1;
    /// The item is running on worker `state - RUNNING`.
    pub(super) const RUNNING: u32 = 2;
}

/// Layout of the ready queue, in atomic words.
pub(super) struct Ready;

impl Ready {
    /// Number of claimed queue entries.
    pub(super) const CLAIMED: u32 = 0;
    /// Number of filled queue entries.
    pub(super) const FILLED: u32 = 1;
    /// Number of completed items, including those that bypassed the queue.
    pub(super) const DONE: u32 = 2;
    /// Queue entries: item plus one, or 0 if not filled yet. The dependency counters of all items follow.
    pub(super) const QUEUE: u32 = 3;
}

/// An operand of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Position of the item in its window; 0 for a single item.
    pub(super) item: usize,
    /// Handle: input, output or param.
    pub(super) handle: usize,
}

/// Binding of an object of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Handle(Field),
    /// Scalar parameter of an item of the window.
    Param(usize),
    Hits,
    HitCount,
}

/// Kernel body of an op or a window.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) program: Validated<Program>,
    pub(super) facts: Facts,
    /// Bindings of all objects but workgroup and private arrays.
    pub(super) slots: Vec<(MemId, Slot)>,
    /// Operand whose length is the number of invocations.
    pub(super) extent: Field,
}

impl Body {
    /// Returns true if an object belongs in the segment for atomic accesses.
    pub(super) fn is_atomic(&self, object: MemId) -> bool {
        self.program.memory(object).atomic || AccessTypes::of(&self.program)[object].has_atomics()
    }

    fn has(&self, slot: Slot) -> bool {
        self.slots.iter().any(|(_, own)| *own == slot)
    }
}

/// An uncompiled kernel.
pub(super) struct Kernel {
    pub(super) program: Validated<Program>,
    pub(super) columns: Vec<Column>,
}

impl Kernel {
    /// Builds a kernel for items of numbered ops, with workgroups of `width` invocations. A watched kernel publishes the states of
    /// its items and polls the stop flag.
    pub(super) fn new(bodies: &[(u32, &Body)], worker: Worker, width: u32, is_watched: bool) -> Result<Kernel, Error> {
        let name = if let [(_, body)] = bodies { body.program.name() } else { "interpreter" };
        let mut builder = KernelBuilder::new(name, bodies, worker, width, is_watched);
        match worker {
            Worker::Invocation => builder.by_invocation(bodies),
            Worker::Workgroup => builder.by_workgroup(bodies),
            Worker::ReadyQueue => builder.by_ready_queue(bodies),
        }
        let KernelBuilder { mut program, columns, .. } = builder;
        program.push(program.body(), Terminator::Return, [], &[], [], Span::NONE);
        Ok(Kernel { program: validate::program(program)?, columns })
    }
}

/// Returns the columns that bodies require.
fn columns(bodies: &[(u32, &Body)]) -> Vec<Column> {
    let mut columns = Vec::new();
    if bodies.len() > 1 {
        columns.push(Column::Op);
    }
    for (_, slot) in bodies.iter().flat_map(|(_, body)| &body.slots) {
        let needed = match *slot {
            Slot::Handle(field) => [Some(Column::First(field)), Some(Column::Length(field))],
            Slot::Param(item) => [Some(Column::Param(item)), None],
            Slot::Hits | Slot::HitCount => [None, None],
        };
        for column in needed.into_iter().flatten() {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
    }
    if bodies.iter().any(|(_, body)| body.facts.faults) {
        columns.push(Column::Fault);
    }
    columns
}

/// Program of an interpreter kernel under construction.
struct KernelBuilder {
    program: Program,
    width: u32,
    columns: Vec<Column>,
    work: MemId,
    arena: Option<MemId>,
    atomics: Option<MemId>,
    faults: Option<MemId>,
    hits: Option<[MemId; 2]>,
    states: Option<MemId>,
    ready: Option<MemId>,
    /// Uniforms.
    at: ValueId,
    count: ValueId,
    stride: ValueId,
    fuel: Option<ValueId>,
    capacity: Option<ValueId>,
    /// Workgroup and private arrays, shared by the arms.
    arrays: Vec<MemId>,
}

impl KernelBuilder {
    fn new(name: &str, bodies: &[(u32, &Body)], worker: Worker, width: u32, is_watched: bool) -> KernelBuilder {
        let mut program = Program::new(name, [width, 1, 1]);
        let mut object = |name: &str, space, atomic| {
            let (element, length) = (Element::U32, (space == Space::Uniform).then_some(1));
            let memory = Memory { name: name.into(), space, element, length, atomic, default: None, span: Span::NONE };
            program.add_memory(memory)
        };
        let uses = |atomic: bool| {
            let slots = bodies.iter().flat_map(|(_, body)| body.slots.iter().map(move |(id, slot)| (body, *id, slot)));
            let mut handles = slots.filter(|(.., slot)| matches!(slot, Slot::Handle(_)));
            handles.any(|(body, id, _)| body.is_atomic(id) == atomic)
        };
        let read_write = Space::Storage(Access::ReadWrite);
        let work = object("work", Space::Storage(Access::Read), false);
        let arena = uses(false).then(|| object("arena", read_write, false));
        let atomics = uses(true).then(|| object("atomics", read_write, true));
        let any = |holds: fn(&Body) -> bool| bodies.iter().any(|(_, body)| holds(body));
        let faults = any(|body| body.facts.faults).then(|| object("faults", read_write, true));
        let hits = any(|body| body.has(Slot::Hits))
            .then(|| [object("hits", Space::Storage(Access::Write), false), object("hit_count", read_write, true)]);
        let states = is_watched.then(|| object("states", read_write, true));
        let ready = (worker == Worker::ReadyQueue).then(|| object("ready", read_write, true));
        let [at, count, stride] = ["at", "count", "stride"].map(|name| object(name, Space::Uniform, false));
        let fuel = faults.map(|_| object("fuel", Space::Uniform, false));
        let body = program.body();
        let mut load = |object| emit(&mut program, body, Operation::Load(word(object)), &[], Type::U32);
        let [at, count, stride] = [at, count, stride].map(&mut load);
        let fuel = fuel.map(&mut load);
        let capacity = hits.map(|[hits, _]| emit(&mut program, body, PerGroup::Length(hits), &[], Type::U32));
        let mut columns = columns(bodies);
        if is_watched {
            columns.push(Column::State);
        }
        if ready.is_some() {
            columns.extend([Column::Successors, Column::SuccessorCount]);
        }
        let arrays = Vec::new();
        KernelBuilder {
            program,
            width,
            columns,
            work,
            arena,
            atomics,
            faults,
            hits,
            states,
            ready,
            at,
            count,
            stride,
            fuel,
            capacity,
            arrays,
        }
    }

    fn literal(&mut self, number: u32) -> ValueId {
        self.program.literal(number)
    }

    fn emit(&mut self, to: BlockId, op: impl Into<Operation>, operands: &[ValueId]) -> ValueId {
        emit(&mut self.program, to, op, operands, Type::U32)
    }

    /// One invocation per item, which loops over the elements.
    fn by_invocation(&mut self, bodies: &[(u32, &Body)]) {
        let body = self.program.body();
        let first = self.emit(body, PerInvocation::GlobalIndex, &[]);
        let groups = self.emit(body, PerGroup::GroupCount(Axis::X), &[]);
        let width = self.literal(self.width);
        let workers = self.emit(body, Pure::Mul, &[groups, width]);
        self.items(body, first, workers, None, |builder, to, item| {
            builder.arms(to, item, bodies, &|builder, to, item, body| {
                let (zero, one) = (builder.literal(0), builder.literal(1));
                let length = item.length(body);
                builder.nested(to, [zero, length, one], |builder, to, index| {
                    let position = builder.position(to, index, length, body);
                    builder.run(to, item, body, position);
                });
            });
        });
    }

    /// One workgroup per item, which loops over the item's workgroups.
    fn by_workgroup(&mut self, bodies: &[(u32, &Body)]) {
        let body = self.program.body();
        let first = self.emit(body, PerGroup::GroupIndex, &[]);
        let workers = self.emit(body, PerGroup::GroupCount(Axis::X), &[]);
        let local = self.emit(body, PerInvocation::LocalIndex, &[]);
        let zero = self.literal(0);
        let is_leader = self.test(body, Pure::Eq, [local, zero]);
        self.items(body, first, workers, Some(is_leader), |builder, to, item| {
            builder.by_groups(to, item, bodies, local);
        });
    }

    /// Loop of a workgroup over the workgroups of an item.
    fn by_groups(&mut self, to: BlockId, item: &Item, bodies: &[(u32, &Body)], local: ValueId) {
        self.arms(to, item, bodies, &|builder, to, item, body| {
            let (zero, one, width) = (builder.literal(0), builder.literal(1), builder.literal(builder.width));
            let length = item.length(body);
            let groups = builder.groups(to, length, width);
            builder.nested(to, [zero, groups, one], |builder, to, group| {
                let start = builder.emit(to, Pure::Mul, &[group, width]);
                let index = builder.emit(to, Pure::Add, &[start, local]);
                if body.facts.collective {
                    return builder.run(to, item, body, Position { index, local, group, groups });
                }
                let inside = builder.test(to, Pure::Lt, [index, length]);
                builder.if_else(to, inside, [], |builder, to| {
                    let position = builder.position(to, index, length, body);
                    builder.run(to, item, body, position);
                    []
                });
            });
        });
    }

    /// One workgroup per item, claimed from the ready queue by the first invocation.
    fn by_ready_queue(&mut self, bodies: &[(u32, &Body)]) {
        let Some(ready) = self.ready else { return };
        let body = self.program.body();
        let [zero, one, none] = [0, 1, u32::MAX].map(|number| self.literal(number));
        let [claimed, filled, done, queue] =
            [Ready::CLAIMED, Ready::FILLED, Ready::DONE, Ready::QUEUE].map(|at| self.literal(at));
        let local = self.emit(body, PerInvocation::LocalIndex, &[]);
        let is_leader = self.test(body, Pure::Eq, [local, zero]);
        let counters = self.emit(body, Pure::Add, &[queue, self.count]);
        let worker = self.emit(body, PerGroup::GroupIndex, &[]);
        let (running, is_done) = self.states_of(body, worker);

        let iteration = self.program.add_block();
        let kept = self.program.add_param(iteration, Type::U32);
        let is_free = self.test(iteration, Pure::Eq, [kept, none]);
        let claims = emit(&mut self.program, iteration, Pure::And, &[is_leader, is_free], Type::Bool);
        let [item] = self.if_else(iteration, claims, [kept], |builder, to| {
            let ticket = builder.emit(to, Operation::Atomic(Atomic::Add, atomic_word(ready)), &[claimed, one]);
            let exists = builder.test(to, Pure::Lt, [ticket, builder.count]);
            builder.if_else(to, exists, [none], |builder, to| {
                let at = builder.emit(to, Pure::Add, &[queue, ticket]);
                let poll = builder.program.add_block();
                // Polls by an atomic `or` of 0, which cannot be hoisted out of the loop as a load could.
                let found = builder.emit(poll, Operation::Atomic(Atomic::Or, atomic_word(ready)), &[at, zero]);
                let is_there = builder.test(poll, Pure::Ne, [found, zero]);
                builder.break_if(poll, is_there, &[found]);
                let all = builder.emit(poll, Operation::Atomic(Atomic::Or, atomic_word(ready)), &[done, zero]);
                let is_over = builder.test(poll, Pure::Eq, [all, builder.count]);
                builder.break_if(poll, is_over, &[zero]);
                if let Some(stops) = builder.stop_flag(poll, false) {
                    builder.break_if(poll, stops, &[zero]);
                }
                builder.program.push(poll, Terminator::Continue, [], &[], [], Span::NONE);
                let polling = builder.program.push(to, Control::Loop, [], &[Type::U32], [poll], Span::NONE);
                let found = builder.program.inst(polling).results[0];
                [builder.emit(to, Pure::Sub, &[found, one])]
            })
        });
        let item = self.emit(iteration, Operation::Broadcast, &[item]);
        let is_over = self.test(iteration, Pure::Eq, [item, none]);
        self.break_if(iteration, is_over, &[]);
        self.poll_stop(iteration, true);
        let item = self.item(iteration, item);
        self.store_state(iteration, &item, Some(is_leader), running);
        self.by_groups(iteration, &item, bodies, local);
        // Release: workers that continue with successors see all writes of the workgroup.
        self.program.push(iteration, Barrier::Storage, [], &[], [], Span::NONE);
        self.store_state(iteration, &item, Some(is_leader), is_done);
        let [next] = self.if_else(iteration, is_leader, [none], |builder, to| {
            builder.emit(to, Operation::Atomic(Atomic::Add, atomic_word(ready)), &[done, one]);
            let [first, count] = [Column::Successors, Column::SuccessorCount].map(|column| item.known(column));
            let end = builder.emit(to, Pure::Add, &[first, count]);
            let body = builder.program.add_block();
            let [at, next] = [Type::U32; 2].map(|ty| builder.program.add_param(body, ty));
            let is_over = builder.test(body, Pure::Ge, [at, end]);
            builder.break_if(body, is_over, &[next]);
            let successor = builder.emit(body, Operation::Load(word(builder.work)), &[at]);
            let its_count = builder.emit(body, Pure::Add, &[counters, successor]);
            let missing = builder.emit(body, Operation::Atomic(Atomic::Sub, atomic_word(ready)), &[its_count, one]);
            let is_ready = builder.test(body, Pure::Eq, [missing, one]);
            let [next] = builder.if_else(body, is_ready, [next], |builder, to| {
                let is_free = builder.test(to, Pure::Eq, [next, none]);
                let is_kept = builder.test(to, Pure::Ne, [next, none]);
                builder.if_else(to, is_kept, [], |builder, to| {
                    let ticket = builder.emit(to, Operation::Atomic(Atomic::Add, atomic_word(ready)), &[filled, one]);
                    let at = builder.emit(to, Pure::Add, &[queue, ticket]);
                    let entry = builder.emit(to, Pure::Add, &[successor, one]);
                    builder.emit(to, Operation::Atomic(Atomic::Exchange, atomic_word(ready)), &[at, entry]);
                    []
                });
                [builder.emit(to, Pure::Select, &[is_free, successor, next])]
            });
            let following = builder.emit(body, Pure::Add, &[at, one]);
            builder.program.push(body, Terminator::Continue, [following, next], &[], [], Span::NONE);
            let looped = builder.program.push(to, Control::Loop, [first, none], &[Type::U32], [body], Span::NONE);
            [builder.program.inst(looped).results[0]]
        });
        self.program.push(iteration, Terminator::Continue, [next], &[], [], Span::NONE);
        self.program.push(body, Control::Loop, [none], &[], [iteration], Span::NONE);
    }

    /// Returns the state words of a worker: running and done.
    fn states_of(&mut self, to: BlockId, worker: ValueId) -> (ValueId, ValueId) {
        let (running, done) = (self.literal(State::RUNNING), self.literal(State::DONE));
        (self.emit(to, Pure::Add, &[worker, running]), done)
    }

    /// Publishes the state of an item, by every invocation, or by the leader of a workgroup.
    fn store_state(&mut self, to: BlockId, item: &Item, is_leader: Option<ValueId>, state: ValueId) {
        let Some(states) = self.states else { return };
        let operands = [item.known(Column::State), state];
        let store = |builder: &mut KernelBuilder, to| {
            builder.program.push(to, Operation::Store(atomic_word(states)), operands, &[], [], Span::NONE);
            []
        };
        match is_leader {
            None => _ = store(self, to),
            Some(is_leader) => _ = self.if_else(to, is_leader, [], store),
        }
    }

    /// Breaks out of the loop once the host has raised the stop flag, uniformly for the workgroup if `together`.
    fn poll_stop(&mut self, to: BlockId, together: bool) {
        if let Some(stops) = self.stop_flag(to, together) {
            self.break_if(to, stops, &[]);
        }
    }

    /// Reads the stop flag; `None` in unwatched kernels.
    fn stop_flag(&mut self, to: BlockId, together: bool) -> Option<ValueId> {
        let zero = self.literal(0);
        let word = self.emit(to, Operation::Atomic(Atomic::Or, atomic_word(self.states?)), &[zero, zero]);
        let word = if together { self.emit(to, Operation::Broadcast, &[word]) } else { word };
        Some(self.test(to, Pure::Ne, [word, zero]))
    }

    /// Emits a comparison.
    fn test(&mut self, to: BlockId, op: impl Into<Operation>, operands: [ValueId; 2]) -> ValueId {
        emit(&mut self.program, to, op, &operands, Type::Bool)
    }

    /// Emits an `if` with results: those of `fill`, or `others`.
    fn if_else<const N: usize>(
        &mut self,
        to: BlockId,
        condition: ValueId,
        others: [ValueId; N],
        fill: impl FnOnce(&mut KernelBuilder, BlockId) -> [ValueId; N],
    ) -> [ValueId; N] {
        let (then, otherwise) = (self.program.add_block(), self.program.add_block());
        let words = fill(self, then);
        self.program.push(then, Terminator::Yield, words, &[], [], Span::NONE);
        self.program.push(otherwise, Terminator::Yield, others, &[], [], Span::NONE);
        let chosen = self.program.push(to, Control::If, [condition], &[Type::U32; N], [then, otherwise], Span::NONE);
        std::array::from_fn(|word| self.program.inst(chosen).results[word])
    }

    /// Breaks out of the loop with these results if a condition holds.
    fn break_if(&mut self, to: BlockId, condition: ValueId, words: &[ValueId]) {
        let (exit, stay) = (self.program.add_block(), self.program.add_block());
        self.program.push(exit, Terminator::Break, words.iter().copied(), &[], [], Span::NONE);
        self.program.push(stay, Terminator::Yield, [], &[], [], Span::NONE);
        self.program.push(to, Control::If, [condition], &[], [exit, stay], Span::NONE);
    }

    /// Returns the ids of an invocation outside of a collective body, relative to workgroups of the body's declared size.
    fn position(&mut self, to: BlockId, index: ValueId, length: ValueId, body: &Body) -> Position {
        let size = self.literal(body.program.workgroup_size()[0]);
        let local = self.emit(to, Pure::Rem, &[index, size]);
        let group = self.emit(to, Pure::Div, &[index, size]);
        Position { index, local, group, groups: self.groups(to, length, size) }
    }

    /// Emits ⌈`length` ÷ `size`⌉.
    fn groups(&mut self, to: BlockId, length: ValueId, size: ValueId) -> ValueId {
        let one = self.literal(1);
        let less = self.emit(to, Pure::Sub, &[size, one]);
        let rounded = self.emit(to, Pure::Add, &[length, less]);
        self.emit(to, Pure::Div, &[rounded, size])
    }

    fn nested(&mut self, to: BlockId, range: [ValueId; 3], fill: impl FnOnce(&mut KernelBuilder, BlockId, ValueId)) {
        let counting = CountedLoop::begin(&mut self.program, range);
        fill(self, counting.body, counting.at);
        counting.end(&mut self.program, to);
    }

    /// Emits the grid-stride loop over items. `is_leader` is the leader predicate of workers that are workgroups.
    fn items(
        &mut self,
        to: BlockId,
        first: ValueId,
        workers: ValueId,
        is_leader: Option<ValueId>,
        body: impl Fn(&mut KernelBuilder, BlockId, &Item),
    ) {
        let range = [first, self.count, workers];
        let (running, done) = self.states_of(to, first);
        self.nested(to, range, |builder, to, number| {
            builder.poll_stop(to, is_leader.is_some());
            let item = builder.item(to, number);
            builder.store_state(to, &item, is_leader, running);
            body(builder, to, &item);
            if builder.states.is_some() && is_leader.is_some() {
                // The item is complete when all invocations are.
                builder.program.push(to, Barrier::Storage, [], &[], [], Span::NONE);
            }
            builder.store_state(to, &item, is_leader, done);
        });
    }

    /// Loads the columns of an item.
    fn item(&mut self, to: BlockId, number: ValueId) -> Item {
        let mut at = self.emit(to, Pure::Add, &[self.at, number]);
        let mut item = Item { columns: Vec::new() };
        for (position, column) in self.columns.clone().into_iter().enumerate() {
            if position > 0 {
                at = self.emit(to, Pure::Add, &[at, self.stride]);
            }
            let value = self.emit(to, Operation::Load(word(self.work)), &[at]);
            item.columns.push((column, value));
        }
        item
    }

    /// Emits a switch on the op of an item.
    fn arms(
        &mut self,
        to: BlockId,
        item: &Item,
        bodies: &[(u32, &Body)],
        arm: &dyn Fn(&mut KernelBuilder, BlockId, &Item, &Body),
    ) {
        let Some(selector) = item.get(Column::Op) else {
            return bodies.iter().for_each(|(_, body)| arm(self, to, item, body));
        };
        let mut blocks = Vec::new();
        for (_, body) in bodies {
            let block = self.program.add_block();
            arm(self, block, item, body);
            blocks.push(block);
        }
        blocks.push(self.program.add_block());
        for &block in &blocks {
            self.program.push(block, Terminator::Yield, [], &[], [], Span::NONE);
        }
        let cases = bodies.iter().map(|(number, _)| *number).collect();
        self.program.push(to, Control::Switch(cases), [selector], &[], blocks, Span::NONE);
    }

    /// Inlines one invocation of a body.
    fn run(&mut self, to: BlockId, item: &Item, body: &Body, position: Position) {
        let (zero, one) = (self.literal(0), self.literal(1));
        let mut homes = Vec::new();
        for &(object, slot) in &body.slots {
            let memory = body.program.memory(object);
            let words = match slot {
                Slot::Param(number) => {
                    let (ty, word) = (memory.element.value_type(), item.known(Column::Param(number)));
                    let is_word = ty == Type::U32;
                    let value = if is_word { word } else { emit(&mut self.program, to, Pure::Bitcast, &[word], ty) };
                    homes.push((object, Home::Value(value)));
                    continue;
                }
                Slot::Handle(field) => {
                    let (first, length) = (item.known(Column::First(field)), item.known(Column::Length(field)));
                    let segment = if body.is_atomic(object) { self.atomics } else { self.arena };
                    segment.map(|memory| Words { memory, first, length })
                }
                Slot::Hits => {
                    self.hits.zip(self.capacity).map(|(own, length)| Words { memory: own[0], first: zero, length })
                }
                Slot::HitCount => self.hits.map(|own| Words { memory: own[1], first: zero, length: one }),
            };
            homes.push((object, Home::Words(words.expect("the kernel has the objects of its bodies"))));
        }
        let mut taken = Vec::new();
        for (object, memory) in body.program.memories().iter() {
            if matches!(memory.space, Space::Workgroup | Space::Private) {
                let array = self.array(memory, &taken);
                taken.push(array);
                homes.push((object, Home::Object(array)));
            }
        }
        let faults = match (body.facts.faults, self.faults, self.fuel) {
            (true, Some(memory), Some(fuel)) => Some(Faults { memory, at: item.known(Column::Fault), fuel }),
            _ => None,
        };
        embed(&mut self.program, to, &body.program, &homes, position, faults);
    }

    /// Returns an array of the same type that the body does not use yet. Arms execute exclusively, so they share arrays.
    fn array(&mut self, wanted: &Memory, taken: &[MemId]) -> MemId {
        let fits = |array: &MemId| {
            let Memory { space, element, length, atomic, .. } = *self.program.memory(*array);
            let same = (space, element, length, atomic) == (wanted.space, wanted.element, wanted.length, wanted.atomic);
            same && !taken.contains(array)
        };
        self.arrays.iter().copied().find(fits).unwrap_or_else(|| {
            let name = format!("array_{}", self.arrays.len());
            let array = self.program.add_memory(Memory { name, span: Span::NONE, ..wanted.clone() });
            self.arrays.push(array);
            array
        })
    }
}

/// Memory operand of a plain access to a word.
const fn word(memory: MemId) -> MemOperand {
    MemOperand::plain(memory, Element::U32)
}

/// Memory operand of an atomic access to a word.
const fn atomic_word(memory: MemId) -> MemOperand {
    MemOperand::atomic(memory, Element::U32)
}

/// Loaded columns of an item.
struct Item {
    columns: Vec<(Column, ValueId)>,
}

impl Item {
    fn get(&self, wanted: Column) -> Option<ValueId> {
        self.columns.iter().find(|(column, _)| *column == wanted).map(|(_, value)| *value)
    }

    /// Returns a column that the body requires.
    fn known(&self, wanted: Column) -> ValueId {
        self.get(wanted).expect("a kernel has the columns of its bodies")
    }

    /// Returns the number of invocations of a body.
    fn length(&self, body: &Body) -> ValueId {
        self.known(Column::Length(body.extent))
    }
}
