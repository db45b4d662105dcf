//! Rules about instructions: types, scopes, terminators and accesses.

use rustc_hash::FxHashSet;

use super::{definition_span, is_atomic_element, structure, value_name};
use crate::diagnostics::{Diagnostic, DiagnosticSink, Fault};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::{Control, Form, Op, Terminator};
use crate::ir::{Access, BlockId, Def, Inst, InstId, Literal, Memory, Program, Space, Span, Type, TypeError, ValueId};

/// Checks all reachable instructions of a program with a valid structure.
pub(super) fn check(program: &Program, found: &mut DiagnosticSink) {
    let visible = SecondaryMap::with_capacity(program.values().len(), false);
    Checker { program, found, visible }.block(program.body(), Owner::Body, None);
}

/// Checks the operands, results and access of one instruction, but not its scope and position.
pub(super) fn check_inst(program: &Program, inst: InstId) -> DiagnosticSink {
    let mut found = DiagnosticSink::default();
    Checker { program, found: &mut found, visible: SecondaryMap::new(false) }.inst(inst);
    found
}

/// Owner of the current block.
#[derive(Clone, Copy)]
enum Owner {
    Body,
    Loop,
    /// An `if`, `switch` or `region`.
    Other(InstId),
}

struct Checker<'p> {
    program: &'p Program,
    found: &'p mut DiagnosticSink,
    visible: SecondaryMap<ValueId, bool>,
}

impl Checker<'_> {
    fn report(&mut self, fault: Fault, span: Span) {
        self.found.push(Diagnostic::new(fault, span));
    }

    fn block(&mut self, block: BlockId, owner: Owner, enclosing_loop: Option<InstId>) {
        let program = self.program;
        let contents = program.block(block);
        let mut defined: Vec<ValueId> = contents.params.to_vec();
        for &param in &contents.params {
            self.visible[param] = true;
        }
        for (position, &id) in contents.insts.iter().enumerate() {
            if self.found.is_full() {
                return;
            }
            let inst = program.inst(id);
            self.scopes(inst);
            if inst.op.is_terminator() {
                self.terminator(inst, owner, enclosing_loop);
                if let Some(wrong) = structure::wrong_results(program, id, &[]) {
                    self.found.push(wrong);
                }
                if position + 1 < contents.insts.len() {
                    self.report(Fault::AfterTerminator { op: inst.op.info().name }, inst.span);
                }
            } else {
                self.inst(id);
                for &nested in &inst.blocks {
                    match inst.op {
                        Op::Control(Control::Loop) => self.block(nested, Owner::Loop, Some(id)),
                        _ => self.block(nested, Owner::Other(id), enclosing_loop),
                    }
                }
            }
            for &result in &inst.results {
                self.visible[result] = true;
                defined.push(result);
            }
        }
        for value in defined {
            self.visible[value] = false;
        }
    }

    fn scopes(&mut self, inst: &Inst) {
        for &operand in &inst.operands {
            let everywhere = matches!(self.program.def(operand), Def::Literal(_) | Def::Constant(_));
            if !everywhere && !self.visible[operand] && !self.found.is_full() {
                let fault = Fault::OutOfScope { value: value_name(self.program, operand) };
                let definition = definition_span(self.program, operand);
                self.found.push(Diagnostic::new(fault, inst.span).label(definition, "it is defined here"));
            }
        }
    }

    fn terminator(&mut self, inst: &Inst, owner: Owner, enclosing_loop: Option<InstId>) {
        let op = inst.op.info().name;
        let program = self.program;
        let place = match owner {
            Owner::Body => "the body of a program",
            Owner::Loop => "the block of a loop",
            Owner::Other(_) => "this block, outside of any loop",
        };
        // Results or parameters that the exit assigns.
        let targets: Option<&[ValueId]> = match (&inst.op, owner, enclosing_loop) {
            (Op::Terminator(Terminator::Return), ..) => Some(&[]),
            (Op::Terminator(Terminator::Trap), ..) => {
                self.types(inst);
                return;
            }
            (Op::Terminator(Terminator::Yield), Owner::Other(target), _)
            | (Op::Terminator(Terminator::Break), _, Some(target)) => Some(&program.inst(target).results),
            (Op::Terminator(Terminator::Continue), _, Some(target)) => {
                Some(&program.block(program.inst(target).blocks[0]).params)
            }
            _ => None,
        };
        let Some(targets) = targets else {
            self.report(Fault::MisplacedTerminator { op, place }, inst.span);
            return;
        };
        if targets.len() != inst.operands.len() {
            let fault = Fault::ExitCount { op, expected: targets.len(), found: inst.operands.len() };
            self.report(fault, inst.span);
            return;
        }
        for (position, (&target, &operand)) in targets.iter().zip(&inst.operands).enumerate() {
            let (expected, found) = (program.ty(target), program.ty(operand));
            if expected != found {
                self.report(Fault::ExitType { op, position, expected, found }, inst.span);
            }
        }
    }

    fn inst(&mut self, id: InstId) {
        let program = self.program;
        let inst = program.inst(id);
        if let Some(memory) = inst.op.memory()
            && !self.access(inst, program.memory(memory))
        {
            return;
        }
        if let Some(types) = self.types(inst)
            && let Some(wrong) = structure::wrong_results(program, id, &types)
        {
            self.found.push(wrong);
        }
        match &inst.op {
            Op::Control(Control::Switch(cases)) => {
                let mut seen = FxHashSet::default();
                for &case in cases {
                    if !seen.insert(case) {
                        self.report(Fault::DuplicateCase { case }, inst.span);
                    }
                }
            }
            Op::Print(text) => {
                let placeholders = text.matches("{}").count();
                if placeholders != inst.operands.len() {
                    let fault = Fault::PrintPlaceholders { placeholders, operands: inst.operands.len() };
                    self.report(fault, inst.span);
                }
            }
            _ => {}
        }
    }

    /// Checks the operands against the op table and returns the expected result types.
    fn types(&mut self, inst: &Inst) -> Option<Vec<Type>> {
        let op = inst.op.info().name;
        let results: Vec<Type> = inst.results.iter().map(|&result| self.program.ty(result)).collect();
        let fault = match self.program.result_types(&inst.op, &inst.operands, &results) {
            Ok(types) => return Some(types.to_vec()),
            Err(TypeError::Count { expected, found }) => Fault::OperandCount { op, expected, found },
            Err(TypeError::Operand { position, expected, found }) => {
                Fault::OperandType { op, position, expected, found }
            }
            Err(TypeError::Width { from, to }) => Fault::BitcastWidth { from, to },
        };
        self.report(fault, inst.span);
        None
    }

    /// Checks an access against its object. Returns true if its operands can be checked.
    fn access(&mut self, inst: &Inst, memory: &Memory) -> bool {
        let name = || memory.name.clone();
        let reads = matches!(inst.op, Op::Load(_)) || inst.op.atomic().is_some();
        let writes = matches!(inst.op, Op::Store(_)) || inst.op.atomic().is_some();
        if writes && !memory.writable() {
            self.report(Fault::NotWritable { memory: name() }, inst.span);
        }
        if reads && !memory.readable() {
            self.report(Fault::NotReadable { memory: name() }, inst.span);
        }
        let operand = inst.op.operand();
        let is_atomic = operand.is_some_and(|operand| operand.atomic);
        if let Some(operand) = operand.filter(|operand| operand.atomic) {
            if !matches!(memory.space, Space::Workgroup | Space::Storage(Access::ReadWrite)) {
                self.report(Fault::AtomicSpace { memory: name() }, inst.span);
            }
            if !is_atomic_element(operand.element) {
                self.report(Fault::AtomicElement { memory: name(), element: operand.element }, inst.span);
            } else if let Some(class) = inst.op.atomic_class()
                && !class.contains(operand.value_type())
            {
                let op = inst.op.info().name;
                self.report(Fault::AtomicClass { op, memory: name(), element: operand.element }, inst.span);
                return false;
            }
        }
        if let Some(operand) = operand.filter(|operand| operand.element != memory.element)
            && memory.space == Space::Uniform
        {
            self.report(
                Fault::UniformType { memory: name(), element: memory.element, found: operand.element },
                inst.span,
            );
        }
        // Number of accessed elements, and of operands besides the index.
        let (width, values) = match inst.op.info().form {
            Form::Length => return true,
            Form::Load => (inst.results.len(), 0),
            Form::Store => {
                let values = inst.operands.len().saturating_sub(usize::from(memory.space != Space::Uniform));
                (values, values)
            }
            _ => (1, inst.operands.len().saturating_sub(1)),
        };
        let indexed = inst.operands.len() > values;
        if memory.space == Space::Uniform {
            // A scalar has no wide loads.
            if indexed || width > 1 {
                self.report(Fault::IndexedUniform { memory: name() }, inst.span);
            }
            return !indexed && width <= 1 && writes == memory.writable();
        }
        if !indexed {
            self.report(Fault::MissingIndex { memory: name() }, inst.span);
            return false;
        }
        if width > 4 {
            self.report(Fault::TooWide { width }, inst.span);
            return false;
        }
        if width > 1 && is_atomic {
            self.report(Fault::WideAtomic { memory: name() }, inst.span);
        }
        let index = self.program.known(inst.operands[0]).and_then(Literal::value::<u32>);
        if let (Some(index), Some(bytes), Some(operand)) = (index, memory.static_bytes(), operand) {
            let last = u64::from(index) + width.max(1) as u64 - 1;
            let length = bytes / operand.element.size() as u64;
            if last >= length {
                self.report(Fault::OutOfBounds { memory: name(), index: last, length }, inst.span);
            }
        }
        true
    }
}
