//! Coverage of the op table by programs: every operation, on every type, in uniform and divergent control flow, in
//! every kind of memory.
//!
//! A [`Cell`] is one such combination. The set of possible cells follows from the op table and the validator: barriers
//! are allowed in workgroup-uniform control flow only, subgroup operations in subgroup-uniform control flow only, and
//! each kind of object has a set of elements. So a new row of the table adds its cells. [`Coverage::record`] counts the
//! cells of a program, and [`Coverage::missing`] lists those not reached.

use std::collections::HashMap;
use std::fmt;

use vyre_foundation::analysis::{Scope, Uniformity};
use vyre_foundation::ir::ops::{Form, OpInfo, Payload, Slot, TABLE};
use vyre_foundation::ir::{
    Access, Axis, BlockId, Def, Element, Inst, MemOperand, Memory, Program, Space, Span, Terminator, Type, TypeSet,
    ValueId,
};
use vyre_foundation::validate;

/// A use of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Name of the operation, or `const` for a specialization constant as an operand.
    pub op: &'static str,
    /// Type or memory operands.
    pub subject: Subject,
    /// Uniformity of the control flow.
    pub flow: Flow,
    /// Memory that it accesses.
    pub memory: MemoryKind,
}

/// Type or memory operands of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Fixed by the signature; for control flow, no values are passed.
    Nothing,
    /// The type that `T` stands for, that is printed, passed by an exit, or the result of control flow.
    Type(Type),
    /// A conversion.
    Convert(Type, Type),
    /// The selector of a `switch`.
    Selector(Type),
    /// A value carried by a loop.
    Carried(Type),
    /// An axis.
    Axis(Axis),
    /// Elements of memory, and the width of the access.
    Elements(Element, usize),
    /// An element accessed atomically.
    Atomic(Element),
    /// Accessed element, and a different declared one.
    Retyped(Element, Element),
}

/// Uniformity of the control flow around an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Uniform in the workgroup, as far as the validator can prove.
    Uniform,
    /// Uniform in the subgroup, but not provably in the workgroup. Distinguished from divergent control flow for
    /// subgroup operations only.
    SubgroupUniform,
    /// Divergent.
    Divergent,
}

impl Flow {
    const ALL: [Flow; 3] = [Flow::Uniform, Flow::SubgroupUniform, Flow::Divergent];

    /// Kinds of control flow that an operation is allowed in.
    const fn possible(required: Option<Scope>) -> &'static [Flow] {
        match required {
            None => &[Flow::Uniform, Flow::Divergent],
            Some(Scope::Subgroup) => &[Flow::Uniform, Flow::SubgroupUniform],
            Some(_) => &[Flow::Uniform],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Flow::Uniform => "uniform",
            Flow::SubgroupUniform => "subgroup",
            Flow::Divergent => "divergent",
        }
    }
}

/// Kind of memory that an operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// None.
    None,
    /// Storage with the length known at dispatch.
    Storage,
    /// Storage with a declared length.
    FixedStorage,
    /// A uniform.
    Uniform,
    /// A workgroup array.
    Workgroup,
    /// A private array.
    Private,
}

impl MemoryKind {
    fn of(memory: &Memory) -> MemoryKind {
        match memory.space {
            Space::Storage(_) if memory.length.is_none() => MemoryKind::Storage,
            Space::Storage(_) => MemoryKind::FixedStorage,
            Space::Uniform => MemoryKind::Uniform,
            Space::Workgroup => MemoryKind::Workgroup,
            Space::Private => MemoryKind::Private,
        }
    }

    fn name(self) -> &'static str {
        match self {
            MemoryKind::None => "",
            MemoryKind::Storage => "storage",
            MemoryKind::FixedStorage => "storage of known length",
            MemoryKind::Uniform => "uniform",
            MemoryKind::Workgroup => "workgroup",
            MemoryKind::Private => "private",
        }
    }
}

/// Number of uses of each cell.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Cells in the order of the op table, with their numbers of uses.
    cells: Vec<(Cell, u64)>,
    positions: HashMap<Cell, usize>,
    programs: u64,
    /// Number of the program that reached a new cell last.
    latest: u64,
}

impl Default for Coverage {
    /// All possible cells, with zero uses.
    fn default() -> Self {
        let cells: Vec<(Cell, u64)> = possible().into_iter().map(|cell| (cell, 0)).collect();
        let positions = cells.iter().enumerate().map(|(position, (cell, _))| (*cell, position)).collect();
        Coverage { cells, positions, programs: 0, latest: 0 }
    }
}

impl Coverage {
    /// Counts the cells of a program.
    ///
    /// # Panics
    /// The program uses a cell considered impossible: it is invalid, or this module has a bug.
    pub fn record(&mut self, program: &Program) {
        self.programs += 1;
        let uniformity = Uniformity::of(program);
        let mut pending: Vec<BlockId> = vec![program.body()];
        while let Some(block) = pending.pop() {
            for &id in &program.block(block).insts {
                let inst = program.inst(id);
                let flow = match Scope::required_by(&inst.op) {
                    _ if uniformity.is_converged(block, Scope::Workgroup) => Flow::Uniform,
                    Some(Scope::Subgroup) if uniformity.is_converged(block, Scope::Subgroup) => Flow::SubgroupUniform,
                    _ => Flow::Divergent,
                };
                pending.extend(&inst.blocks);
                let op = inst.op.info().name;
                let memory = inst.op.memory().map_or(MemoryKind::None, |memory| MemoryKind::of(program.memory(memory)));
                retyped(program, inst)
                    .into_iter()
                    .for_each(|subject| self.count(Cell { op, subject, flow, memory: MemoryKind::None }));
                for subject in subjects_of(program, inst) {
                    self.count(Cell { op, subject, flow, memory });
                }
                for &operand in &inst.operands {
                    if let Def::Constant(_) = program.def(operand) {
                        let subject = Subject::Type(program.ty(operand));
                        let flow = if flow == Flow::Uniform { flow } else { Flow::Divergent };
                        self.count(Cell { op: "const", subject, flow, memory: MemoryKind::None });
                    }
                }
            }
        }
    }

    fn count(&mut self, cell: Cell) {
        let position = self.positions.get(&cell).unwrap_or_else(|| panic!("{cell} is considered impossible"));
        let times = &mut self.cells[*position].1;
        if *times == 0 {
            self.latest = self.programs;
        }
        *times += 1;
    }

    /// Number of possible cells.
    pub fn possible(&self) -> usize {
        self.cells.len()
    }

    /// Cells that no program has reached.
    pub fn missing(&self) -> Vec<Cell> {
        self.cells.iter().filter(|(_, times)| *times == 0).map(|(cell, _)| *cell).collect()
    }
}

/// A line for each operation and kind of memory: number of cells reached in each kind of control flow, and uses of the
/// rarest cell.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<25} {:<25}", "", "")?;
        for flow in Flow::ALL {
            write!(f, " {:>9} {:>9}", flow.name(), "rarest")?;
        }
        writeln!(f)?;
        for lines in self.cells.chunk_by(|(a, _), (b, _)| (a.op, a.memory) == (b.op, b.memory)) {
            let Cell { op, memory, .. } = lines[0].0;
            write!(f, "{op:<25} {:<25}", memory.name())?;
            for flow in Flow::ALL {
                let times = || lines.iter().filter(|(cell, _)| cell.flow == flow).map(|(_, times)| *times);
                match times().min() {
                    Some(rarest) => {
                        let reached = format!("{}/{}", times().filter(|times| *times > 0).count(), times().count());
                        write!(f, " {reached:>9} {rarest:>9}")?;
                    }
                    None => write!(f, " {:>9} {:>9}", "–", "–")?,
                }
            }
            writeln!(f)?;
        }
        let reached = self.cells.len() - self.missing().len();
        let (all, latest, programs) = (self.cells.len(), self.latest, self.programs);
        writeln!(f, "{reached} of {all} cells are reached, the last of them by program {latest} of {programs}")
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { op, subject, flow, memory } = self;
        write!(f, "{op}")?;
        match subject {
            Subject::Nothing => {}
            Subject::Type(ty) => write!(f, " {ty}")?,
            Subject::Convert(from, to) => write!(f, " {from} to {to}")?,
            Subject::Selector(ty) => write!(f, " on {ty}")?,
            Subject::Carried(ty) => write!(f, " carrying {ty}")?,
            Subject::Axis(axis) => write!(f, ".{}", axis.name())?,
            Subject::Elements(element, 1) => write!(f, " {element}")?,
            Subject::Elements(element, width) => write!(f, " {width} {element}")?,
            Subject::Atomic(element) => write!(f, " atomic {element}")?,
            Subject::Retyped(element, declared) => write!(f, " {element} in an object of {declared}")?,
        }
        if *memory != MemoryKind::None {
            write!(f, " in {}", memory.name())?;
        }
        write!(f, ", {}", flow.name())
    }
}

/// Subject of an instruction.
fn subjects_of(program: &Program, inst: &Inst) -> Vec<Subject> {
    let ty = |value: &ValueId| program.ty(*value);
    let handed = |values: &[ValueId]| match values {
        [] => vec![Subject::Nothing],
        values => values.iter().map(|value| Subject::Type(ty(value))).collect(),
    };
    let object = || program.memory(inst.op.memory().expect("it names an object"));
    let operand = || inst.op.operand().expect("an access has a memory operand");
    let elements = |width: usize| {
        let MemOperand { element, atomic, .. } = operand();
        if atomic { Subject::Atomic(element) } else { Subject::Elements(element, width) }
    };
    match inst.op.info().form {
        Form::Plain(signature) if signature.operands.contains(&Slot::T) => vec![Subject::Type(program.class(inst))],
        Form::Plain(_) | Form::Trap => vec![Subject::Nothing],
        Form::Convert { .. } => vec![Subject::Convert(ty(&inst.operands[0]), ty(&inst.results[0]))],
        Form::PerAxis => match inst.op.payload() {
            Payload::Axis(axis) => vec![Subject::Axis(axis)],
            _ => Vec::new(),
        },
        Form::Load => vec![elements(inst.results.len())],
        Form::Store => vec![elements(inst.operands.len() - 1)],
        Form::Length => vec![Subject::Elements(object().element, 1)],
        Form::Atomic(_) | Form::CompareExchange => vec![Subject::Atomic(operand().element)],
        Form::Print | Form::Exit => handed(&inst.operands),
        Form::If | Form::Region => handed(&inst.results),
        Form::Switch => {
            let mut subjects = handed(&inst.results);
            subjects.push(Subject::Selector(ty(&inst.operands[0])));
            subjects
        }
        Form::Loop => {
            let mut subjects = handed(&inst.results);
            subjects.extend(inst.operands.iter().map(|value| Subject::Carried(ty(value))));
            subjects
        }
    }
}

/// Types of a plain access whose element differs from the declared one.
fn retyped(program: &Program, inst: &Inst) -> Option<Subject> {
    let at = inst.op.operand().filter(|at| !at.atomic)?;
    let declared = program.memory(at.memory).element;
    (at.element != declared).then_some(Subject::Retyped(at.element, declared))
}

/// All cells that a valid program can reach, in the order of the op table.
fn possible() -> Vec<Cell> {
    let objects = objects();
    let mut cells = Vec::new();
    let mut add = |op: &'static str, required: Option<Scope>, memory: MemoryKind, subjects: Vec<Subject>| {
        for &flow in Flow::possible(required) {
            cells.extend(subjects.iter().map(|&subject| Cell { op, subject, flow, memory }));
        }
    };
    for row in TABLE {
        let kinds = [
            MemoryKind::Storage,
            MemoryKind::FixedStorage,
            MemoryKind::Uniform,
            MemoryKind::Workgroup,
            MemoryKind::Private,
        ];
        // Collective operations have no payload.
        let required = row.op(Payload::None).as_ref().and_then(Scope::required_by);
        match subjects(row) {
            Some(subjects) => add(row.name, required, MemoryKind::None, subjects),
            None => {
                for memory in kinds {
                    let here = objects.iter().filter(|object| MemoryKind::of(object) == memory);
                    let mut subjects: Vec<Subject> = here.flat_map(|object| accesses(row, object)).collect();
                    // Read-only and writable objects are the same kind of memory.
                    let mut seen = Vec::new();
                    subjects.retain(|subject| {
                        !seen.contains(subject) && {
                            seen.push(*subject);
                            true
                        }
                    });
                    add(row.name, required, memory, subjects);
                }
            }
        }
    }
    let pairs = Element::ALL.into_iter().flat_map(|element| Element::ALL.map(|declared| (element, declared)));
    let retyped: Vec<Subject> = pairs
        .filter(|(element, declared)| element != declared)
        .map(|(element, declared)| Subject::Retyped(element, declared))
        .collect();
    for op in ["load", "store"] {
        add(op, None, MemoryKind::None, retyped.clone());
    }
    add("const", None, MemoryKind::None, Type::ALL.map(Subject::Type).to_vec());
    cells
}

/// Possible subjects of an operation that does not access memory.
fn subjects(row: &OpInfo) -> Option<Vec<Subject>> {
    let types = || Type::ALL.map(Subject::Type).into_iter();
    let handed = || std::iter::once(Subject::Nothing).chain(types()).collect::<Vec<_>>();
    Some(match row.form {
        Form::Plain(signature) if signature.operands.contains(&Slot::T) => {
            signature.class.iter().map(Subject::Type).collect()
        }
        Form::Plain(_) | Form::Trap => vec![Subject::Nothing],
        Form::Convert { same_size } => {
            let pairs = Type::ALL.into_iter().flat_map(|from| Type::ALL.into_iter().map(move |to| (from, to)));
            let pairs = pairs.filter(|(from, to)| !same_size || from.bits() == to.bits());
            pairs.map(|(from, to)| Subject::Convert(from, to)).collect()
        }
        Form::PerAxis => Axis::ALL.map(Subject::Axis).to_vec(),
        Form::Load | Form::Store | Form::Length | Form::Atomic(_) | Form::CompareExchange => return None,
        Form::Exit if row.name == Terminator::Return.info().name => vec![Subject::Nothing],
        Form::Print | Form::Exit | Form::If | Form::Region => handed(),
        Form::Switch => handed().into_iter().chain([Type::U32, Type::I32].map(Subject::Selector)).collect(),
        Form::Loop => handed().into_iter().chain(Type::ALL.map(Subject::Carried)).collect(),
    })
}

/// Possible subjects of an operation that accesses an object.
fn accesses(row: &OpInfo, object: &Memory) -> Vec<Subject> {
    let element = object.element;
    let widths = || match (object.atomic, object.space) {
        (true, _) => vec![Subject::Atomic(element)],
        (false, Space::Uniform) => vec![Subject::Elements(element, 1)],
        (false, _) => (1..=4).map(|width| Subject::Elements(element, width)).collect(),
    };
    match row.form {
        Form::Load if object.readable() => widths(),
        Form::Store if object.writable() => widths(),
        Form::Length => vec![Subject::Elements(element, 1)],
        Form::Atomic(class) if object.atomic && class.contains(element.value_type()) => vec![Subject::Atomic(element)],
        Form::CompareExchange if object.atomic && TypeSet::INTEGERS.contains(element.value_type()) => {
            vec![Subject::Atomic(element)]
        }
        _ => vec![],
    }
}

/// All kinds of objects that a valid program can declare.
fn objects() -> Vec<Memory> {
    let accesses = [Access::Read, Access::Write, Access::ReadWrite, Access::Constant].map(Space::Storage);
    let spaces = accesses.into_iter().chain([Space::Uniform, Space::Workgroup, Space::Private]);
    let mut objects = Vec::new();
    for space in spaces {
        for element in Element::ALL {
            for (length, atomic) in [(None, false), (Some(1), false), (None, true), (Some(1), true)] {
                let name = "object".into();
                let object = Memory { name, space, element, length, atomic, default: None, span: Span::NONE };
                let mut program = Program::new("p", [1, 1, 1]);
                program.add_memory(object.clone());
                program.push(program.body(), Terminator::Return, [], &[], [], Span::NONE);
                if validate::program(program).is_ok() {
                    objects.push(object);
                }
            }
        }
    }
    objects
}
