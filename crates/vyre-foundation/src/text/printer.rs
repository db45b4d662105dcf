//! Printer of the text format.

use std::borrow::Borrow;
use std::fmt::{self, Write};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ir::ops::{Form, Kind, Payload};
use crate::ir::pipeline::{Argument, Buffer};
use crate::ir::{
    Access, Block, BlockId, Control, Def, Inst, InstId, Literal, MemOperand, Memory, Module, Op, Pipeline, Program,
    Space, Terminator, Type, ValueId,
};
use crate::launch::Grid;

/// Prints a module.
///
/// Invalid modules are printed, too, for messages: missing entities and blocks nested deeper than the parser accepts are omitted.
pub fn print<P: Borrow<Program>>(module: &Module<P>) -> String {
    let programs = module.programs.iter().map(|program| Borrow::<Program>::borrow(program).to_string());
    programs.chain(module.pipelines.iter().map(pipeline)).collect::<Vec<_>>().join("\n")
}

/// The text of the program, as [`print()`] writes it in a module.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Printer::new(self).program().text)
    }
}

/// The text of the module, as [`print()`] writes it.
impl<P: Borrow<Program>> fmt::Display for Module<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

fn pipeline(pipeline: &Pipeline) -> String {
    let mut text = format!("pipeline {}", pipeline.name);
    if let Some(bytes) = pipeline.budget {
        let _ = write!(text, " budget({})", Literal::from(bytes));
    }
    text += " {\n";
    for Buffer { name, role, element, length, .. } in pipeline.buffers.values() {
        let _ = writeln!(text, "    {} {name}: [{element}; {length}]", role.name());
    }
    if !pipeline.buffers.is_empty() && !pipeline.dispatches.is_empty() {
        text.push('\n');
    }
    for dispatch in &pipeline.dispatches {
        let grid = dispatch.grid;
        let grid = match grid {
            Grid::Groups(groups) => format!("grid({})", sizes(groups)),
            Grid::Elements(elements) => format!("elements({})", sizes(elements)),
        };
        let argument = |(name, argument): &(String, Argument)| match argument {
            // The argument may be invalid.
            Argument::Buffer(id) => {
                let buffer = pipeline.buffers.get(*id);
                format!("{name} = {}", buffer.map_or("undefined", |buffer| buffer.name.as_str()))
            }
            Argument::Scalar(literal) => format!("{name} = {literal}"),
        };
        let arguments: Vec<String> = dispatch.arguments.iter().map(argument).collect();
        let line = format!("    run {} {grid} {}", dispatch.program, arguments.join(", "));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text + "}\n"
}

/// Lines of the text of a program, each with the instruction that starts on it.
pub fn lines(program: &Program) -> Vec<(String, Option<InstId>)> {
    let printer = Printer::new(program).program();
    let mut starts = printer.starts.into_iter().peekable();
    let mut end = 0;
    let line = |line: &str| {
        let inst = starts.next_if(|(_, start)| *start == end).map(|(inst, _)| inst);
        end += line.len() + 1;
        (line.to_owned(), inst)
    };
    printer.text.lines().map(line).collect()
}

/// Maximum nesting depth that the parser accepts, low enough for the stack.
const MAX_DEPTH: usize = 128;

struct Printer<'p> {
    program: &'p Program,
    text: String,
    indent: usize,
    depth: usize,
    names: FxHashMap<ValueId, String>,
    taken: FxHashSet<String>,
    /// Number of values named after each hint.
    copies: FxHashMap<&'p str, usize>,
    numbered: usize,
    /// Start of the text of each instruction.
    starts: Vec<(InstId, usize)>,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program) -> Self {
        Printer {
            program,
            text: String::new(),
            indent: 0,
            depth: 0,
            names: FxHashMap::default(),
            taken: FxHashSet::default(),
            copies: FxHashMap::default(),
            numbered: 0,
            starts: Vec::new(),
        }
    }

    fn program(mut self) -> Self {
        let program = self.program;
        let mut header = format!("program {} workgroup({})", program.name(), sizes(program.workgroup_size()));
        if let Some(launch) = program.launch() {
            let _ = write!(header, " launch({})", sizes(launch));
        }
        if program.is_fast() {
            header += " fast";
        }
        self.line(&format!("{header} {{"));
        self.indent += 1;
        for constant in program.constants().values() {
            self.line(&format!("const {}: {} = {}", constant.name, constant.default.ty, constant.default));
        }
        for memory in program.memories().values() {
            self.line(&declaration(memory));
        }
        if !program.memories().is_empty() || !program.constants().is_empty() {
            self.text.push('\n');
        }
        self.insts(program.block(program.body()), Terminator::Return);
        self.indent -= 1;
        self.line("}");
        self
    }

    fn line(&mut self, line: &str) {
        for _ in 0..self.indent {
            self.text.push_str("    ");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Prints the instructions of a block without an implied terminator.
    fn insts(&mut self, block: &Block, implied: Terminator) {
        for (position, &id) in block.insts.iter().enumerate() {
            let inst = self.program.inst(id);
            let last = position + 1 == block.insts.len();
            if !(last && inst.op == implied && inst.operands.is_empty()) {
                self.starts.push((id, self.text.len()));
                self.inst(inst);
            }
        }
    }

    fn inst(&mut self, inst: &Inst) {
        let row = inst.op.info();
        let payload = match inst.op.payload() {
            Payload::None | Payload::Object(_) | Payload::Memory(_) | Payload::Cases(_) => String::new(),
            Payload::Axis(axis) => format!(".{}", axis.name()),
            Payload::Text(text) => format!(" {}", quoted(text)),
        };
        let operands = |printer: &mut Self, operands: &[ValueId]| {
            operands.iter().map(|&value| printer.value(value)).collect::<Vec<_>>().join(", ")
        };
        let joined = |text: String| if text.is_empty() { text } else { format!(" {text}") };
        let results: Vec<Type> = inst.results.iter().map(|&value| self.program.ty(value)).collect();

        let mut head = match row.form {
            Form::Plain(_) | Form::Exit | Form::Trap => {
                format!("{}{}", row.name, joined(operands(self, &inst.operands)))
            }
            Form::Convert { .. } => {
                let to = results.first().map_or("nothing", |ty| ty.name());
                format!("{} {} to {to}", row.name, operands(self, &inst.operands))
            }
            Form::PerAxis | Form::Region => format!("{}{payload}", row.name),
            Form::Load | Form::Store | Form::Length | Form::Atomic(_) | Form::CompareExchange => {
                let memory = self.program.memory(inst.op.memory().expect("accesses name an object"));
                let indexed = memory.space != Space::Uniform && !matches!(row.form, Form::Length);
                let (index, rest) = inst.operands.split_at(usize::from(indexed).min(inst.operands.len()));
                let index = index.iter().map(|&index| format!("[{}]", self.value(index))).collect::<String>();
                let rest: String = rest.iter().map(|&value| format!(", {}", self.value(value))).collect();
                let named = inst.op.operand().and_then(|operand| named_type(memory, row.kind, operand));
                format!("{} {}{index}{}{rest}", row.name, memory.name, named.unwrap_or_default())
            }
            Form::Print => {
                let rest: String = inst.operands.iter().map(|&value| format!(", {}", self.value(value))).collect();
                format!("{}{payload}{rest}", row.name)
            }
            Form::If | Form::Switch => format!("{} {}", row.name, operands(self, &inst.operands)),
            Form::Loop => {
                let program = self.program;
                let params = inst.blocks.first().map_or(&[][..], |&body| &program.block(body).params);
                let pairs: Vec<String> = params
                    .iter()
                    .zip(&inst.operands)
                    .map(|(&param, &initial)| {
                        let initial = self.value(initial);
                        format!("{} = {initial}", self.define(param))
                    })
                    .collect();
                if pairs.is_empty() { row.name.into() } else { format!("{} ({})", row.name, pairs.join(", ")) }
            }
        };

        if inst.blocks.is_empty() {
            let names = self.results(inst);
            self.line(&format!("{names}{head}"));
            return;
        }
        if !results.is_empty() {
            let types: Vec<&str> = results.iter().map(|ty| ty.name()).collect();
            let _ = write!(head, " -> {}", types.join(", "));
        }
        // Results are out of scope in nested blocks, but naming them first numbers them in reading order.
        let names = self.results(inst);
        self.line(&format!("{names}{head} {{"));
        match &inst.op {
            Op::Control(Control::If) => {
                self.nested(inst.blocks[0], Terminator::Yield);
                for &otherwise in &inst.blocks[1..] {
                    if !self.yields_at_once(otherwise) {
                        self.line("} else {");
                        self.nested(otherwise, Terminator::Yield);
                    }
                }
            }
            Op::Control(Control::Switch(cases)) => {
                let ty = inst.operands.first().map_or(Type::U32, |&selector| self.program.ty(selector));
                self.indent += 1;
                for (position, &block) in inst.blocks.iter().enumerate() {
                    let label = match cases.get(position) {
                        Some(&bits) => format!("case {}", Literal { ty, bits: u64::from(bits) }),
                        None => "default".into(),
                    };
                    self.line(&format!("{label} {{"));
                    self.nested(block, Terminator::Yield);
                    self.line("}");
                }
                self.indent -= 1;
            }
            Op::Control(Control::Loop) => self.nested(inst.blocks[0], Terminator::Continue),
            _ => self.nested(inst.blocks[0], Terminator::Yield),
        }
        self.line("}");
    }

    /// Returns true if a block is only a `yield` without values.
    fn yields_at_once(&self, block: BlockId) -> bool {
        match self.program.block(block).insts[..] {
            [only] => {
                let only = self.program.inst(only);
                only.op == Terminator::Yield && only.operands.is_empty()
            }
            _ => false,
        }
    }

    fn nested(&mut self, block: BlockId, implied: Terminator) {
        self.indent += 1;
        if self.depth < MAX_DEPTH {
            self.depth += 1;
            self.insts(self.program.block(block), implied);
            self.depth -= 1;
        } else {
            self.line("// nested too deep to be printed");
        }
        self.indent -= 1;
    }

    /// `%a, %b = `
    fn results(&mut self, inst: &Inst) -> String {
        let names: Vec<String> = inst.results.iter().map(|&value| self.define(value)).collect();
        if names.is_empty() { String::new() } else { format!("{} = ", names.join(", ")) }
    }

    /// Assigns a unique name to a value.
    fn define(&mut self, value: ValueId) -> String {
        let name = match self.program.value_name(value) {
            Some(hint) => {
                let copies = self.copies.entry(hint).or_default();
                loop {
                    let name = if *copies == 0 { hint.to_string() } else { format!("{hint}.{copies}") };
                    *copies += 1;
                    if self.taken.insert(name.clone()) {
                        break name;
                    }
                }
            }
            None => {
                self.numbered += 1;
                (self.numbered - 1).to_string()
            }
        };
        let name = format!("%{name}");
        self.names.insert(value, name.clone());
        name
    }

    fn value(&self, value: ValueId) -> String {
        let ty = self.program.ty(value);
        match self.program.def(value) {
            Def::Literal(bits) => Literal { ty, bits }.to_string(),
            Def::Constant(constant) => self.program.constant(constant).name.clone(),
            // A value used before its definition, in an invalid program.
            Def::Result(..) | Def::Param(..) => {
                self.names.get(&value).cloned().unwrap_or_else(|| format!("%undefined.{value:?}"))
            }
        }
    }
}

fn sizes(sizes: [u32; 3]) -> String {
    match sizes {
        [x, 1, 1] => format!("{x}"),
        [x, y, 1] => format!("{x}, {y}"),
        [x, y, z] => format!("{x}, {y}, {z}"),
    }
}

/// Explicit type of an access that differs from the declared type of its object.
fn named_type(memory: &Memory, kind: Kind, operand: MemOperand) -> Option<String> {
    let is_implied = kind == Kind::Atomic || operand.atomic == memory.atomic;
    if is_implied && operand.element == memory.element {
        return None;
    }
    let atomic = if operand.atomic && kind != Kind::Atomic { "atomic " } else { "" };
    Some(format!(" as {atomic}{}", operand.element))
}

fn declaration(memory: &Memory) -> String {
    let keyword = match memory.space {
        Space::Storage(Access::Read) => "read",
        Space::Storage(Access::Constant) => "uniform",
        Space::Storage(Access::Write) => "write",
        Space::Storage(Access::ReadWrite) => "read_write",
        Space::Uniform => "uniform",
        Space::Workgroup => "workgroup",
        Space::Private => "private",
    };
    let atomic = if memory.atomic { "atomic " } else { "" };
    let ty = match (memory.space, memory.length) {
        (Space::Uniform, _) => memory.element.to_string(),
        (_, Some(length)) => format!("[{}; {length}]", memory.element),
        (_, None) => format!("[{}]", memory.element),
    };
    let default = memory.default.map(|default| format!(" = {default}")).unwrap_or_default();
    format!("{keyword} {atomic}{}: {ty}{default}", memory.name)
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
