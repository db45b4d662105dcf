//! The kernels of a session: operations around which workers take items.
//!
//! The host resolves items before a launch: a table, `work`, has a [column](Column) for each thing that an operation has to know of
//! an item, such as the first word of its input. A worker is an invocation or a workgroup; it takes every item whose number is its
//! own plus a multiple of how many workers there are, so all items are done whatever the grid.

use vyre_driver::Error;
use vyre_foundation::ir::{
    Access, Axis, BlockId, Element, MemId, Memory, Op as Operation, Program, Space, Span, Type, ValueId,
};
use vyre_foundation::transform::embed::{Counting, Faults, Home, Position, Words, embed, emit};
use vyre_foundation::{Validated, validate};

use super::op::{Op, Param};

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
    /// The first word of the input, the output or the third object.
    First(usize),
    /// Its length.
    Length(usize),
    /// The scalar.
    Param,
    /// Where faults of the item are noted.
    Fault,
}

/// A kernel before it is compiled: it runs the operations that it was made of.
pub(super) struct Kernel {
    pub(super) program: Validated<Program>,
    pub(super) columns: Vec<Column>,
}

impl Kernel {
    /// A kernel for items of these operations, by their numbers, in workgroups of this many invocations.
    pub(super) fn new(ops: &[(u32, &Op)], worker: Worker, width: u32) -> Result<Kernel, Error> {
        let name = if let [(_, op)] = ops { op.name() } else { "interpreter" };
        let mut maker = Maker::new(name, ops, width);
        match worker {
            Worker::Invocation => maker.by_invocation(ops),
            Worker::Workgroup => maker.by_workgroup(ops),
        }
        let Maker { mut program, columns, .. } = maker;
        program.push(program.body, Operation::Return, [], &[], [], Span::NONE);
        Ok(Kernel { program: validate::program(program)?, columns })
    }
}

/// The columns that some operations need.
fn columns(ops: &[(u32, &Op)]) -> Vec<Column> {
    let mut columns = Vec::new();
    if ops.len() > 1 {
        columns.push(Column::Op);
    }
    for view in 0..3 {
        if ops.iter().any(|(_, op)| op.views()[view].is_some()) {
            columns.extend([Column::First(view), Column::Length(view)]);
        }
    }
    if ops.iter().any(|(_, op)| matches!(op.param, Param::Scalar(_))) {
        columns.push(Column::Param);
    }
    if ops.iter().any(|(_, op)| op.facts.faults) {
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
    fn new(name: &str, ops: &[(u32, &Op)], width: u32) -> Maker {
        let mut program = Program::new(name, [width, 1, 1]);
        let mut object = |name: &str, space, atomic| {
            let (element, length) = (Element::U32, (space == Space::Uniform).then_some(1));
            let memory = Memory { name: name.into(), space, element, length, atomic, default: None, span: Span::NONE };
            program.memory.push(memory)
        };
        let uses = |atomic: bool| {
            let used = |op: &Op| op.views().iter().flatten().any(|id| op.program.memory[*id].atomic == atomic);
            ops.iter().any(|(_, op)| used(op))
        };
        let read_write = Space::Storage(Access::ReadWrite);
        let work = object("work", Space::Storage(Access::Read), false);
        let arena = uses(false).then(|| object("arena", read_write, false));
        let atomics = uses(true).then(|| object("atomics", read_write, true));
        let any = |holds: fn(&Op) -> bool| ops.iter().any(|(_, op)| holds(op));
        let faults = any(|op| op.facts.faults).then(|| object("faults", read_write, true));
        let hits = any(|op| op.hits.is_some())
            .then(|| [object("hits", Space::Storage(Access::Write), false), object("hit_count", read_write, true)]);
        let [at, count, stride] = ["at", "count", "stride"].map(|name| object(name, Space::Uniform, false));
        let fuel = faults.map(|_| object("fuel", Space::Uniform, false));
        let body = program.body;
        let mut load = |object| emit(&mut program, body, Operation::Load(object), &[], Type::U32);
        let [at, count, stride] = [at, count, stride].map(&mut load);
        let fuel = fuel.map(&mut load);
        let capacity = hits.map(|[hits, _]| emit(&mut program, body, Operation::Length(hits), &[], Type::U32));
        let columns = columns(ops);
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
    fn by_invocation(&mut self, ops: &[(u32, &Op)]) {
        let body = self.program.body;
        let first = self.emit(body, Operation::GlobalIndex, &[]);
        let groups = self.emit(body, Operation::GroupCount(Axis::X), &[]);
        let width = self.literal(self.width);
        let workers = self.emit(body, Operation::Mul, &[groups, width]);
        self.items(body, first, workers, |maker, to, item| {
            maker.arms(to, item, ops, &|maker, to, item, op| {
                let (zero, one) = (maker.literal(0), maker.literal(1));
                let length = item.length(op);
                maker.nested(to, [zero, length, one], |maker, to, index| {
                    let size = maker.literal(op.program.workgroup_size[0]);
                    let local = maker.emit(to, Operation::Rem, &[index, size]);
                    let group = maker.emit(to, Operation::Div, &[index, size]);
                    let groups = maker.groups(to, length, size);
                    maker.op(to, item, op, Position { index, local, group, groups });
                });
            });
        });
    }

    /// Workers that are workgroups go through the workgroups of their items.
    fn by_workgroup(&mut self, ops: &[(u32, &Op)]) {
        let body = self.program.body;
        let first = self.emit(body, Operation::GroupIndex, &[]);
        let workers = self.emit(body, Operation::GroupCount(Axis::X), &[]);
        let local = self.emit(body, Operation::LocalIndex, &[]);
        self.items(body, first, workers, |maker, to, item| {
            maker.arms(to, item, ops, &|maker, to, item, op| {
                let (zero, one, width) = (maker.literal(0), maker.literal(1), maker.literal(maker.width));
                let length = item.length(op);
                let groups = maker.groups(to, length, width);
                maker.nested(to, [zero, groups, one], |maker, to, group| {
                    let start = maker.emit(to, Operation::Mul, &[group, width]);
                    let index = maker.emit(to, Operation::Add, &[start, local]);
                    let position = Position { index, local, group, groups };
                    if op.facts.collective {
                        maker.op(to, item, op, position);
                        return;
                    }
                    let inside = emit(&mut maker.program, to, Operation::Lt, &[index, length], Type::Bool);
                    let (then, otherwise) = (maker.program.block(), maker.program.block());
                    maker.op(then, item, op, position);
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
    fn arms(&mut self, to: BlockId, item: &Item, ops: &[(u32, &Op)], arm: &dyn Fn(&mut Maker, BlockId, &Item, &Op)) {
        let Some(selector) = item.get(Column::Op) else {
            return ops.iter().for_each(|(_, op)| arm(self, to, item, op));
        };
        let mut blocks = Vec::new();
        for (_, op) in ops {
            let block = self.program.block();
            arm(self, block, item, op);
            blocks.push(block);
        }
        blocks.push(self.program.block());
        for &block in &blocks {
            self.program.push(block, Operation::Yield, [], &[], [], Span::NONE);
        }
        let cases = ops.iter().map(|(number, _)| *number).collect();
        self.program.push(to, Operation::Switch(cases), [selector], &[], blocks, Span::NONE);
    }

    /// One invocation of an operation.
    fn op(&mut self, to: BlockId, item: &Item, op: &Op, position: Position) {
        let zero = self.literal(0);
        let mut homes = Vec::new();
        for (view, object) in op.views().into_iter().enumerate() {
            let Some(object) = object else { continue };
            let memory = if op.program.memory[object].atomic { self.atomics } else { self.arena };
            if let (Some(memory), Some(first), Some(length)) =
                (memory, item.get(Column::First(view)), item.get(Column::Length(view)))
            {
                homes.push((object, Home::Words(Words { memory, first, length })));
            }
        }
        if let (Param::Scalar(object), Some(value)) = (op.param, item.get(Column::Param)) {
            let ty = op.program.memory[object].element.value_type();
            let value =
                if ty == Type::U32 { value } else { emit(&mut self.program, to, Operation::Bitcast, &[value], ty) };
            homes.push((object, Home::Value(value)));
        }
        if let (Some([hits, hit_count]), Some(own), Some(capacity)) = (op.hits, self.hits, self.capacity) {
            let one = self.literal(1);
            homes.push((hits, Home::Words(Words { memory: own[0], first: zero, length: capacity })));
            homes.push((hit_count, Home::Words(Words { memory: own[1], first: zero, length: one })));
        }
        let mut taken = Vec::new();
        for (object, memory) in op.program.memory.iter() {
            if matches!(memory.space, Space::Workgroup | Space::Private) {
                let fits = |own: &MemId| {
                    let own_memory = &self.program.memory[*own];
                    !taken.contains(own)
                        && Memory { name: memory.name.clone(), ..own_memory.clone() }
                            == Memory { span: Span::NONE, ..memory.clone() }
                };
                let array = self.arrays.iter().copied().find(fits).unwrap_or_else(|| {
                    let name = format!("array_{}", self.arrays.len());
                    let array = self.program.memory.push(Memory { name, span: Span::NONE, ..memory.clone() });
                    self.arrays.push(array);
                    array
                });
                taken.push(array);
                homes.push((object, Home::Object(array)));
            }
        }
        let faults = match (op.facts.faults, self.faults, item.get(Column::Fault), self.fuel) {
            (true, Some(memory), Some(at), Some(fuel)) => Some(Faults { memory, at, fuel }),
            _ => None,
        };
        embed(&mut self.program, to, &op.program, &homes, position, faults);
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

    /// How many invocations there are.
    fn length(&self, op: &Op) -> ValueId {
        let view = usize::from(op.output.is_some());
        self.get(Column::Length(view)).expect("an operation has an input or an output")
    }
}
