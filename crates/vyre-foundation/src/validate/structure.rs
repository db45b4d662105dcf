//! Structural rules: consistency of the arenas (V001), so that later stages index them without checks, and the nesting limit (V027).

use super::limits;
use crate::diagnostics::{Diagnostic, DiagnosticSink, Fault, Malformation};
use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Control, Def, InstId, Literal, Op, Program, Space, Span, Type, ValueId};

pub(super) fn check(program: &Program) -> DiagnosticSink {
    let mut structure = Structure {
        program,
        found: DiagnosticSink::default(),
        seen_insts: SecondaryMap::with_capacity(program.insts().len(), false),
        seen_blocks: SecondaryMap::with_capacity(program.blocks().len(), false),
    };
    structure.values();
    structure.memory();
    structure.blocks();
    structure.found
}

struct Structure<'p> {
    program: &'p Program,
    found: DiagnosticSink,
    seen_insts: SecondaryMap<InstId, bool>,
    seen_blocks: SecondaryMap<BlockId, bool>,
}

impl Structure<'_> {
    fn report(&mut self, what: Malformation, entity: impl std::fmt::Debug, span: Span) {
        let fault = Fault::Malformed { what, entity: format!("{entity:?}") };
        self.found.push(Diagnostic::new(fault, span));
    }

    fn values(&mut self) {
        let program = self.program;
        for (id, value) in program.values().iter() {
            match value.def {
                Def::Literal(bits) => {
                    if !(Literal { ty: value.ty, bits }).is_value() {
                        self.report(Malformation::BadLiteral, id, Span::NONE);
                    }
                }
                Def::Constant(constant) => match program.constants().get(constant) {
                    None => self.report(Malformation::DanglingId, id, Span::NONE),
                    Some(constant) if constant.default.ty != value.ty => {
                        self.report(Malformation::DetachedValue, id, constant.span);
                    }
                    Some(constant) if !constant.default.is_value() => {
                        self.report(Malformation::BadLiteral, id, constant.span);
                    }
                    Some(_) => {}
                },
                // Checked for reachable instructions and blocks.
                Def::Result(..) | Def::Param(..) => {}
            }
        }
    }

    fn memory(&mut self) {
        let program = self.program;
        for (id, memory) in program.memories().iter() {
            let uniform = memory.space == Space::Uniform;
            if (uniform && memory.length != Some(1)) || (!uniform && memory.default.is_some()) {
                self.report(Malformation::BadUniform, id, memory.span);
            }
        }
    }

    fn blocks(&mut self) {
        let program = self.program;
        // An explicit stack: the nesting may be unbounded or cyclic.
        let mut pending = vec![(program.body(), 0, None)];
        let mut deepest = (0, Span::NONE);
        while let Some((block, depth, owner)) = pending.pop() {
            let span = owner.map_or(Span::NONE, |owner: InstId| program.inst(owner).span);
            match program.blocks().get(block).map(|_| self.seen_blocks[block]) {
                None => {
                    self.report(Malformation::DanglingId, block, span);
                    continue;
                }
                Some(true) => {
                    self.report(Malformation::SharedBlock, block, span);
                    continue;
                }
                Some(false) => self.seen_blocks[block] = true,
            }
            if depth > deepest.0 {
                deepest = (depth, span);
            }
            self.params(block, owner);
            self.ends_in_terminator(block, span);
            for &id in &program.block(block).insts {
                match program.insts().get(id).map(|_| self.seen_insts[id]) {
                    None => {
                        self.report(Malformation::DanglingId, id, span);
                        continue;
                    }
                    Some(true) => {
                        self.report(Malformation::SharedInstruction, id, program.inst(id).span);
                        continue;
                    }
                    Some(false) => self.seen_insts[id] = true,
                }
                self.inst(id);
                pending.extend(program.inst(id).blocks.iter().map(|&nested| (nested, depth + 1, Some(id))));
            }
        }
        if self.found.is_empty() && deepest.0 > limits::NESTING {
            let fault = Fault::NestingDepth { depth: deepest.0, limit: limits::NESTING };
            self.found.push(Diagnostic::new(fault, deepest.1));
        }
    }

    fn params(&mut self, block: BlockId, owner: Option<InstId>) {
        let program = self.program;
        let params = &program.block(block).params;
        for (position, &param) in params.iter().enumerate() {
            let expected = Def::Param(block, position as u32);
            if program.values().get(param).is_none_or(|value| value.def != expected) {
                self.report(Malformation::DetachedValue, param, Span::NONE);
                return;
            }
        }
        let initial: Vec<Option<Type>> = match owner.map(|owner| program.inst(owner)) {
            Some(inst) if inst.op == Control::Loop => {
                inst.operands.iter().map(|&value| program.values().get(value).map(|value| value.ty)).collect()
            }
            _ => Vec::new(),
        };
        let types: Vec<Option<Type>> = params.iter().map(|&param| Some(program.ty(param))).collect();
        if types != initial {
            let span = owner.map_or(Span::NONE, |owner| program.inst(owner).span);
            self.report(Malformation::WrongParams, block, span);
        }
    }

    fn ends_in_terminator(&mut self, block: BlockId, span: Span) {
        let program = self.program;
        let last = program.block(block).insts.last().and_then(|&last| program.insts().get(last));
        if last.is_none_or(|last| !last.op.is_terminator()) {
            self.report(Malformation::Unterminated, block, span);
        }
    }

    fn inst(&mut self, id: InstId) {
        let program = self.program;
        let inst = program.inst(id);
        let dangling_operand = inst.operands.iter().any(|&operand| program.values().get(operand).is_none());
        let dangling_memory = inst.op.memory().is_some_and(|memory| program.memories().get(memory).is_none());
        if dangling_operand || dangling_memory {
            self.report(Malformation::DanglingId, id, inst.span);
        }
        for (position, &result) in inst.results.iter().enumerate() {
            let expected = Def::Result(id, position as u32);
            if program.values().get(result).is_none_or(|value| value.def != expected) {
                self.report(Malformation::DetachedValue, id, inst.span);
                return;
            }
        }
        let blocks = match &inst.op {
            Op::Control(Control::If) => 2,
            Op::Control(Control::Switch(cases)) => cases.len() + 1,
            Op::Control(Control::Loop | Control::Region(_)) => 1,
            Op::Pure(_)
            | Op::PerInvocation(_)
            | Op::PerGroup(_)
            | Op::Load(_)
            | Op::Store(_)
            | Op::Atomic(..)
            | Op::CompareExchange(_)
            | Op::Barrier(_)
            | Op::Broadcast
            | Op::Subgroup(_)
            | Op::Print(_)
            | Op::Terminator(_) => 0,
        };
        if inst.blocks.len() != blocks {
            self.report(Malformation::WrongBlocks, id, inst.span);
        }
    }
}

/// Reports results of an instruction whose types differ from the expected ones.
pub(super) fn wrong_results(program: &Program, id: InstId, expected: &[Type]) -> Option<Diagnostic> {
    let inst = program.inst(id);
    let types: Vec<Type> = inst.results.iter().map(|&result: &ValueId| program.ty(result)).collect();
    (types != expected).then(|| {
        let fault = Fault::Malformed { what: Malformation::WrongResults, entity: format!("{id:?}") };
        Diagnostic::new(fault, inst.span)
    })
}
