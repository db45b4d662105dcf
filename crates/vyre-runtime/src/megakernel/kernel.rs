//! The kernels of a session: operations around which workers take items.
//!
//! The host resolves items before a launch: a table, `work`, has a [column](Column) for each thing that an operation has to know of
//! an item, such as the first word of its input. A worker is an invocation or a workgroup; it takes every item whose number is its
//! own plus a multiple of how many workers there are, so all items are done whatever the grid.

use vyre_driver::Error;
use vyre_foundation::ir::{
    Access, Axis, BlockId, Element, MemId, Memory, Op as Operation, Program, Space, Span, Type, ValueId,
};
use vyre_foundation::transform::embed::{Counting, Facts, Faults, Home, Position, Words, embed, emit};
use vyre_foundation::{Validated, validate};

/// What works on an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Worker {
    /// One invocation: best for items of a few elements.
    Invocation,
    /// A workgroup: for longer items, and for operations whose invocations work together.
    Workgroup,
}

/// What stands in a column of the table. The operation comes first in a kernel of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// The number of the operation.
    Op,
    /// The first word of what a handle names.
    First(Field),
    /// Its length.
    Length(Field),
    /// The scalar of an item of a window.
    Param(usize),
    /// Where faults of the item are noted.
    Fault,
}

/// A handle of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Which item of a window; an item alone is the first of its own.
    pub(super) item: usize,
    /// Which handle: input, output, or param.
    pub(super) handle: usize,
}

/// What an object of a body is to its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Handle(Field),
    /// The scalar of an item of the window.
    Param(usize),
    Hits,
    HitCount,
}

/// What is run for an item, or for a window of items.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) program: Validated<Program>,
    pub(super) facts: Facts,
    /// All objects but arrays.
    pub(super) slots: Vec<(MemId, Slot)>,
    /// What has as many elements as there are invocations.
    pub(super) extent: Field,
}

impl Body {
    fn has(&self, slot: Slot) -> bool {
        self.slots.iter().any(|(_, own)| *own == slot)
    }
}

/// A kernel before it is compiled: it runs the operations that it was made of.
pub(super) struct Kernel {
    pub(super) program: Validated<Program>,
    pub(super) columns: Vec<Column>,
}

impl Kernel {
    /// A kernel for items of these operations, by their numbers, in workgroups of this many invocations.
    pub(super) fn new(bodies: &[(u32, &Body)], worker: Worker, width: u32) -> Result<Kernel, Error> {
        let name = if let [(_, body)] = bodies { &body.program.name } else { "interpreter" };
        let mut maker = Maker::new(name, bodies, width);
        match worker {
            Worker::Invocation => maker.by_invocation(bodies),
            Worker::Workgroup => maker.by_workgroup(bodies),
        }
        let Maker { mut program, columns, .. } = maker;
        program.push(program.body, Operation::Return, [], &[], [], Span::NONE);
        Ok(Kernel { program: validate::program(program)?, columns })
    }
}

/// The columns that some bodies need.
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

struct Maker {
    program: Program,
    width: u32,
    columns: Vec<Column>,
    work: MemId,
    arena: Option<MemId>,
    atomics: Option<MemId>,
    faults: Option<MemId>,
    hits: Option<[MemId; 2]>,
    /// Uniforms.
    at: ValueId,
    count: ValueId,
    stride: ValueId,
    fuel: Option<ValueId>,
    capacity: Option<ValueId>,
    /// Arrays of operations, which overlay those of others.
    arrays: Vec<MemId>,
}

impl Maker {
    fn new(name: &str, bodies: &[(u32, &Body)], width: u32) -> Maker {
        let mut program = Program::new(name, [width, 1, 1]);
        let mut object = |name: &str, space, atomic| {
            let (element, length) = (Element::U32, (space == Space::Uniform).then_some(1));
            let memory = Memory { name: name.into(), space, element, length, atomic, default: None, span: Span::NONE };
            program.memory.push(memory)
        };
        let uses = |atomic: bool| {
            let slots = bodies.iter().flat_map(|(_, body)| body.slots.iter().map(move |(id, slot)| (body, *id, slot)));
            let mut handles = slots.filter(|(.., slot)| matches!(slot, Slot::Handle(_)));
            handles.any(|(body, id, _)| body.program.memory[id].atomic == atomic)
        };
        let read_write = Space::Storage(Access::ReadWrite);
        let work = object("work", Space::Storage(Access::Read), false);
        let arena = uses(false).then(|| object("arena", read_write, false));
        let atomics = uses(true).then(|| object("atomics", read_write, true));
        let any = |holds: fn(&Body) -> bool| bodies.iter().any(|(_, body)| holds(body));
        let faults = any(|body| body.facts.faults).then(|| object("faults", read_write, true));
        let hits = any(|body| body.has(Slot::Hits))
            .then(|| [object("hits", Space::Storage(Access::Write), false), object("hit_count", read_write, true)]);
        let [at, count, stride] = ["at", "count", "stride"].map(|name| object(name, Space::Uniform, false));
        let fuel = faults.map(|_| object("fuel", Space::Uniform, false));
        let body = program.body;
        let mut load = |object| emit(&mut program, body, Operation::Load(object), &[], Type::U32);
        let [at, count, stride] = [at, count, stride].map(&mut load);
        let fuel = fuel.map(&mut load);
        let capacity = hits.map(|[hits, _]| emit(&mut program, body, Operation::Length(hits), &[], Type::U32));
        let columns = columns(bodies);
        Maker {
            program,
            width,
            columns,
            work,
            arena,
            atomics,
            faults,
            hits,
            at,
            count,
            stride,
            fuel,
            capacity,
            arrays: vec![],
        }
    }

    fn literal(&mut self, number: u32) -> ValueId {
        self.program.literal(number)
    }

    fn emit(&mut self, to: BlockId, op: Operation, operands: &[ValueId]) -> ValueId {
        emit(&mut self.program, to, op, operands, Type::U32)
    }

    /// Workers that are invocations go through the elements of their items.
    fn by_invocation(&mut self, bodies: &[(u32, &Body)]) {
        let body = self.program.body;
        let first = self.emit(body, Operation::GlobalIndex, &[]);
        let groups = self.emit(body, Operation::GroupCount(Axis::X), &[]);
        let width = self.literal(self.width);
        let workers = self.emit(body, Operation::Mul, &[groups, width]);
        self.items(body, first, workers, |maker, to, item| {
            maker.arms(to, item, bodies, &|maker, to, item, body| {
                let (zero, one) = (maker.literal(0), maker.literal(1));
                let length = item.length(body);
                maker.nested(to, [zero, length, one], |maker, to, index| {
                    let size = maker.literal(body.program.workgroup_size[0]);
                    let local = maker.emit(to, Operation::Rem, &[index, size]);
                    let group = maker.emit(to, Operation::Div, &[index, size]);
                    let groups = maker.groups(to, length, size);
                    maker.run(to, item, body, Position { index, local, group, groups });
                });
            });
        });
    }

    /// Workers that are workgroups go through the workgroups of their items.
    fn by_workgroup(&mut self, bodies: &[(u32, &Body)]) {
        let body = self.program.body;
        let first = self.emit(body, Operation::GroupIndex, &[]);
        let workers = self.emit(body, Operation::GroupCount(Axis::X), &[]);
        let local = self.emit(body, Operation::LocalIndex, &[]);
        self.items(body, first, workers, |maker, to, item| {
            maker.arms(to, item, bodies, &|maker, to, item, body| {
                let (zero, one, width) = (maker.literal(0), maker.literal(1), maker.literal(maker.width));
                let length = item.length(body);
                let groups = maker.groups(to, length, width);
                maker.nested(to, [zero, groups, one], |maker, to, group| {
                    let start = maker.emit(to, Operation::Mul, &[group, width]);
                    let index = maker.emit(to, Operation::Add, &[start, local]);
                    let position = Position { index, local, group, groups };
                    if body.facts.collective {
                        maker.run(to, item, body, position);
                        return;
                    }
                    let inside = emit(&mut maker.program, to, Operation::Lt, &[index, length], Type::Bool);
                    let (then, otherwise) = (maker.program.block(), maker.program.block());
                    maker.run(then, item, body, position);
                    for block in [then, otherwise] {
                        maker.program.push(block, Operation::Yield, [], &[], [], Span::NONE);
                    }
                    maker.program.push(to, Operation::If, [inside], &[], [then, otherwise], Span::NONE);
                });
            });
        });
    }

    /// How many workgroups of a size there are for a length.
    fn groups(&mut self, to: BlockId, length: ValueId, size: ValueId) -> ValueId {
        let one = self.literal(1);
        let less = self.emit(to, Operation::Sub, &[size, one]);
        let rounded = self.emit(to, Operation::Add, &[length, less]);
        self.emit(to, Operation::Div, &[rounded, size])
    }

    fn nested(&mut self, to: BlockId, range: [ValueId; 3], fill: impl FnOnce(&mut Maker, BlockId, ValueId)) {
        let counting = Counting::begin(&mut self.program, range);
        fill(self, counting.body, counting.at);
        counting.end(&mut self.program, to);
    }

    /// Goes through the items of a worker.
    fn items(&mut self, to: BlockId, first: ValueId, workers: ValueId, body: impl Fn(&mut Maker, BlockId, &Item)) {
        let range = [first, self.count, workers];
        self.nested(to, range, |maker, to, number| {
            let mut at = maker.emit(to, Operation::Add, &[maker.at, number]);
            let mut item = Item { columns: Vec::new() };
            for (position, column) in maker.columns.clone().into_iter().enumerate() {
                if position > 0 {
                    at = maker.emit(to, Operation::Add, &[at, maker.stride]);
                }
                let value = maker.emit(to, Operation::Load(maker.work), &[at]);
                item.columns.push((column, value));
            }
            body(maker, to, &item);
        });
    }

    /// Chooses by the operation of an item.
    fn arms(
        &mut self,
        to: BlockId,
        item: &Item,
        bodies: &[(u32, &Body)],
        arm: &dyn Fn(&mut Maker, BlockId, &Item, &Body),
    ) {
        let Some(selector) = item.get(Column::Op) else {
            return bodies.iter().for_each(|(_, body)| arm(self, to, item, body));
        };
        let mut blocks = Vec::new();
        for (_, body) in bodies {
            let block = self.program.block();
            arm(self, block, item, body);
            blocks.push(block);
        }
        blocks.push(self.program.block());
        for &block in &blocks {
            self.program.push(block, Operation::Yield, [], &[], [], Span::NONE);
        }
        let cases = bodies.iter().map(|(number, _)| *number).collect();
        self.program.push(to, Operation::Switch(cases), [selector], &[], blocks, Span::NONE);
    }

    /// One invocation of a body.
    fn run(&mut self, to: BlockId, item: &Item, body: &Body, position: Position) {
        let (zero, one) = (self.literal(0), self.literal(1));
        let mut homes = Vec::new();
        for &(object, slot) in &body.slots {
            let memory = &body.program.memory[object];
            let words = match slot {
                Slot::Param(number) => {
                    let (ty, word) = (memory.element.value_type(), item.known(Column::Param(number)));
                    let is_word = ty == Type::U32;
                    let value =
                        if is_word { word } else { emit(&mut self.program, to, Operation::Bitcast, &[word], ty) };
                    homes.push((object, Home::Value(value)));
                    continue;
                }
                Slot::Handle(field) => {
                    let (first, length) = (item.known(Column::First(field)), item.known(Column::Length(field)));
                    let segment = if memory.atomic { self.atomics } else { self.arena };
                    segment.map(|memory| Words { memory, first, length })
                }
                Slot::Hits => {
                    self.hits.zip(self.capacity).map(|(own, length)| Words { memory: own[0], first: zero, length })
                }
                Slot::HitCount => self.hits.map(|own| Words { memory: own[1], first: zero, length: one }),
            };
            homes.push((object, Home::Words(words.expect("there is what some body needs"))));
        }
        let mut taken = Vec::new();
        for (object, memory) in body.program.memory.iter() {
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

    /// An array like this one that the body has not taken yet: those of other bodies are as good.
    fn array(&mut self, wanted: &Memory, taken: &[MemId]) -> MemId {
        let fits = |array: &MemId| {
            let Memory { space, element, length, atomic, .. } = self.program.memory[*array];
            let same = (space, element, length, atomic) == (wanted.space, wanted.element, wanted.length, wanted.atomic);
            same && !taken.contains(array)
        };
        self.arrays.iter().copied().find(fits).unwrap_or_else(|| {
            let name = format!("array_{}", self.arrays.len());
            let array = self.program.memory.push(Memory { name, span: Span::NONE, ..wanted.clone() });
            self.arrays.push(array);
            array
        })
    }
}

/// What a worker knows of its item.
struct Item {
    columns: Vec<(Column, ValueId)>,
}

impl Item {
    fn get(&self, wanted: Column) -> Option<ValueId> {
        self.columns.iter().find(|(column, _)| *column == wanted).map(|(_, value)| *value)
    }

    /// A column that every kernel of the body has.
    fn known(&self, wanted: Column) -> ValueId {
        self.get(wanted).expect("a kernel has the columns of its bodies")
    }

    /// How many invocations there are.
    fn length(&self, body: &Body) -> ValueId {
        self.known(Column::Length(body.extent))
    }
}
