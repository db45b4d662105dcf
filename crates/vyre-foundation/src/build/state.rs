//! State of the builder: open blocks, live variables, the first error.
//!
//! Every function between the public call and [`State::misuse`], which records the location of the call, is `#[track_caller]`. No closure
//! may call them: the location would be inside the closure.

use std::panic::Location;

use rustc_hash::FxHashMap;

use super::phis;
use crate::Error;
use crate::diagnostics::{DiagnosticSink, Fault};
use crate::ir::entity::Arena;
use crate::ir::{
    Access, BlockId, Control, Def, InstId, Literal, MemId, Op, Program, Pure, Space, Span, Terminator, Type, ValueId,
    Values,
};
use crate::text::is_name;
use crate::validate;

pub(super) struct State {
    pub(super) program: Program,
    /// Storage that becomes write-only if it is never loaded from.
    pub(super) mutable: Vec<MemId>,
    /// Block of each instruction.
    inst_blocks: Arena<InstId, BlockId>,
    /// Open blocks, from the body to the innermost.
    frames: Vec<Frame>,
    variables: Vec<Variable>,
    /// Indices of the variables in scope, oldest first.
    in_scope: Vec<usize>,
    mistake: Option<Error>,
    /// Span of each call location.
    spans: FxHashMap<&'static Location<'static>, Span>,
}

struct Frame {
    block: BlockId,
    /// Values of the variables at the start of the block.
    entry_values: Values,
    /// The operation that ended the block.
    ended: Option<&'static str>,
    looping: Option<Loop>,
}

struct Loop {
    counter: Option<Counter>,
    has_break: bool,
}

/// Induction variable of a counting loop: parameter, initial value and step.
#[derive(Clone, Copy)]
struct Counter {
    param: ValueId,
    first: ValueId,
    step: ValueId,
}

struct Variable {
    value: ValueId,
    block: BlockId,
    name: Option<Box<str>>,
}

/// A finished block of a branch, without its `yield`.
pub(super) struct Arm {
    block: BlockId,
    /// True if control reaches its end.
    completes: bool,
    /// Values that its closure returned.
    returned: Values,
    /// Values of the variables at its end.
    variables: Values,
}

impl State {
    pub(super) fn new(program: Program) -> State {
        let body = Frame { block: program.body(), entry_values: Values::new(), ended: None, looping: None };
        State {
            program,
            mutable: Vec::new(),
            inst_blocks: Arena::default(),
            frames: vec![body],
            variables: Vec::new(),
            in_scope: Vec::new(),
            mistake: None,
            spans: FxHashMap::default(),
        }
    }

    pub(super) fn finish(mut self) -> Result<Program, Error> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        self.terminate(self.program.body());
        phis::remove_redundant(&mut self.program);
        let mut loaded = Vec::new();
        self.program.walk(|inst, _| {
            let op = &self.program.inst(inst).op;
            if let Some(at) = op.operand().filter(|_| !matches!(op, Op::Store(_))) {
                loaded.push(at.memory);
            }
        });
        for object in self.mutable.into_iter().filter(|object| !loaded.contains(object)) {
            self.program.memory_mut(object).space = Space::Storage(Access::Write);
        }
        Ok(self.program)
    }

    // Errors.

    /// Records an error. Only the first one is kept: later ones may be consequences of it.
    #[track_caller]
    pub(super) fn misuse(&mut self, mistake: impl Into<String>) {
        let location = Location::caller();
        self.mistake.get_or_insert_with(|| Error::Build { location, mistake: mistake.into() });
    }

    #[track_caller]
    pub(super) fn check_declarations(&mut self) {
        let mut found = DiagnosticSink::default();
        validate::declarations(&self.program, &mut found);
        if let Some(first) = found.first() {
            self.misuse(first.to_string());
        }
    }

    /// Returns true if an instruction can be appended here.
    #[track_caller]
    pub(super) fn reachable(&mut self) -> bool {
        if let Some(op) = self.innermost().ended {
            self.misuse(format!("unreachable code after `{op}`"));
        }
        self.mistake.is_none()
    }

    pub(super) fn ended(&mut self) -> bool {
        self.innermost().ended.is_some()
    }

    #[track_caller]
    pub(super) fn check_visible(&mut self, value: ValueId) {
        let visible = match self.program.def(value) {
            Def::Literal(_) | Def::Constant(_) => true,
            Def::Result(inst, _) => self.is_open(self.inst_blocks[inst]),
            Def::Param(block, _) => self.is_open(block),
        };
        if !visible {
            self.misuse("this value is out of scope: return it from the closure, or use a variable");
        }
    }

    #[track_caller]
    pub(super) fn check_name(&mut self, name: &str) {
        if !is_name(name) {
            self.misuse(Fault::BadName { name: name.into() }.to_string());
        }
    }

    // Instructions.

    /// Appends an instruction to the innermost block. After an error, appends nothing and returns placeholders.
    #[track_caller]
    pub(super) fn emit(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        types: &[Type],
        blocks: &[BlockId],
    ) -> Values {
        if !self.reachable() {
            return types.iter().map(|&ty| self.program.literal(Literal::zero(ty))).collect();
        }
        let (block, span) = (self.innermost().block, self.here());
        let inst = self.push(block, op, operands, types, blocks, span);
        if let Some(fault) = validate::instruction(&self.program, inst) {
            self.misuse(fault.to_string());
        }
        self.program.inst(inst).results.clone()
    }

    /// Span of the current builder call.
    #[track_caller]
    fn here(&mut self) -> Span {
        let location = Location::caller();
        let sources = self.program.sources_mut();
        let place = || sources.add_place(location.file(), location.line(), location.column());
        *self.spans.entry(location).or_insert_with(place)
    }

    fn push(
        &mut self,
        block: BlockId,
        op: impl Into<Op>,
        operands: &[ValueId],
        types: &[Type],
        blocks: &[BlockId],
        span: Span,
    ) -> InstId {
        self.inst_blocks.push(block);
        self.program.push(block, op, operands.iter().copied(), types, blocks.iter().copied(), span)
    }

    /// Appends a terminator that leaves the innermost block.
    #[track_caller]
    pub(super) fn exit(&mut self, op: Terminator, operands: &[ValueId]) {
        let name = op.info().name;
        self.emit(op, operands, &[], &[]);
        self.innermost().ended = Some(name);
    }

    // Blocks.

    fn innermost(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the body is open until the end")
    }

    fn is_open(&self, block: BlockId) -> bool {
        self.frames.iter().any(|frame| frame.block == block)
    }

    /// Opens a block in the innermost one.
    #[track_caller]
    pub(super) fn open(&mut self) {
        self.reachable();
        let (depth, limit) = (self.frames.len(), validate::limits::NESTING);
        if depth > limit {
            self.misuse(Fault::NestingDepth { depth, limit }.to_string());
        }
        let block = self.program.add_block();
        let entry_values = self.variable_values(self.in_scope.len());
        self.frames.push(Frame { block, entry_values, ended: None, looping: None });
    }

    /// Closes the innermost block: drops its variables, and restores the values of the others.
    fn close(&mut self) -> Frame {
        let frame = self.frames.pop().expect("the block was opened");
        self.in_scope.truncate(frame.entry_values.len());
        for (&variable, &value) in self.in_scope.iter().zip(&frame.entry_values) {
            self.variables[variable].value = value;
        }
        if frame.ended.is_some() {
            self.terminate(frame.block);
        }
        frame
    }

    /// Terminates a block with `return` if it has no terminator: the body, or a block with an unreachable end.
    fn terminate(&mut self, block: BlockId) {
        let last = self.program.block(block).insts.last();
        if last.is_none_or(|&last| !self.program.inst(last).op.is_terminator()) {
            self.push(block, Terminator::Return, &[], &[], &[], Span::NONE);
        }
    }

    /// Closes a block of a branch; `returned` are the values that its closure returned.
    pub(super) fn close_arm(&mut self, returned: Values) -> Arm {
        let outer = self.innermost().entry_values.len();
        let variables = self.variable_values(outer);
        let Frame { block, ended, .. } = self.close();
        Arm { block, completes: ended.is_none(), returned, variables }
    }

    /// Appends a branch. Its results are the returned values, of the given types, and the variables that an arm assigns. If control reaches
    /// the end of no arm, the enclosing block ends, too.
    #[track_caller]
    pub(super) fn branch(&mut self, op: Control, operands: &[ValueId], types: &[Type], arms: &[Arm]) -> Values {
        let entry_values = self.variable_values(self.in_scope.len());
        let complete: Vec<&Arm> = arms.iter().filter(|arm| arm.completes).collect();
        let mut changed: Vec<usize> = (0..entry_values.len()).collect();
        changed.retain(|&index| complete.iter().any(|arm| arm.variables[index] != entry_values[index]));
        for arm in &complete {
            let variables = changed.iter().map(|&index| arm.variables[index]);
            let yielded: Values = arm.returned.iter().copied().chain(variables).collect();
            self.push(arm.block, Terminator::Yield, &yielded, &[], &[], Span::NONE);
        }

        let variable_types = changed.iter().map(|&index| self.program.ty(entry_values[index]));
        let all_types: Vec<Type> = types.iter().copied().chain(variable_types).collect();
        let blocks: Vec<BlockId> = arms.iter().map(|arm| arm.block).collect();
        let name = op.info().name;
        let mut results = self.emit(op, operands, &all_types, &blocks);
        for (&index, &result) in changed.iter().zip(&results[types.len()..]) {
            self.assign(self.in_scope[index], result);
        }
        if complete.is_empty() {
            self.innermost().ended = Some(name);
        }
        results.truncate(types.len());
        results
    }

    // Loops. A loop has a parameter for every variable in scope; the redundant ones are removed at the end.

    /// Opens the block of a loop. `counter` is the initial value and step of an induction variable, whose parameter is returned.
    #[track_caller]
    pub(super) fn open_loop(&mut self, counter: Option<(ValueId, ValueId)>) -> Option<ValueId> {
        self.open();
        let (block, entry_values) = (self.innermost().block, self.innermost().entry_values.clone());
        let program = &mut self.program;
        let mut param = |initial| program.add_param(block, program.ty(initial));
        let counter = counter.map(|(first, step)| Counter { param: param(first), first, step });
        let params: Values = entry_values.into_iter().map(param).collect();
        for (position, param) in params.into_iter().enumerate() {
            self.assign(self.in_scope[position], param);
        }
        self.innermost().looping = Some(Loop { counter, has_break: false });
        counter.map(|counter| counter.param)
    }

    #[track_caller]
    pub(super) fn close_loop(&mut self) {
        if !self.ended() {
            self.exit_loop(Terminator::Continue);
        }
        let Frame { block, entry_values, looping, .. } = self.close();
        let Loop { counter, has_break } = looping.expect("the block of a loop");
        let types: Vec<Type> = entry_values.iter().map(|&value| self.program.ty(value)).collect();
        let initial: Values = counter.iter().map(|counter| counter.first).chain(entry_values).collect();
        let results = self.emit(Control::Loop, &initial, if has_break { &types } else { &[] }, &[block]);
        for (position, result) in results.into_iter().enumerate() {
            self.assign(self.in_scope[position], result);
        }
        if !has_break {
            self.innermost().ended = Some("loop");
        }
    }

    /// Appends a `break` or `continue`.
    #[track_caller]
    pub(super) fn exit_loop(&mut self, op: Terminator) {
        let Some(frame) = self.frames.iter().rposition(|frame| frame.looping.is_some()) else {
            self.misuse(format!("there is no loop around this `{}`", op.info().name));
            return;
        };
        let Frame { entry_values, looping: Some(looping), .. } = &mut self.frames[frame] else {
            unreachable!("found above")
        };
        looping.has_break |= op == Terminator::Break;
        let (variables, counter) = (entry_values.len(), looping.counter.filter(|_| op == Terminator::Continue));
        let mut operands = Values::new();
        if let Some(Counter { param, step, .. }) = counter {
            operands = self.emit(Pure::Add, &[param, step], &[self.program.ty(param)], &[]);
        }
        operands.extend(self.variable_values(variables));
        self.exit(op, &operands);
    }

    // Variables.

    #[track_caller]
    pub(super) fn variable(&mut self, value: ValueId) -> usize {
        self.reachable();
        let block = self.innermost().block;
        self.variables.push(Variable { value, block, name: None });
        self.in_scope.push(self.variables.len() - 1);
        self.variables.len() - 1
    }

    /// Sets the debug name of the current and later values of a variable.
    pub(super) fn name_variable(&mut self, variable: usize, name: &str) {
        self.variables[variable].name = Some(name.into());
        self.name_value(self.variables[variable].value, name);
    }

    /// Sets the debug name of a value that has none. Literals and constants take none.
    pub(super) fn name_value(&mut self, value: ValueId, name: &str) {
        if let Def::Result(..) | Def::Param(..) = self.program.def(value)
            && self.program.value_name(value).is_none()
        {
            self.program.set_value_name(value, name);
        }
    }

    #[track_caller]
    pub(super) fn get(&mut self, variable: usize) -> ValueId {
        let Variable { value, block, .. } = self.variables[variable];
        if !self.is_open(block) {
            self.misuse("this variable is out of scope: make it outside of the block that has ended");
        }
        value
    }

    #[track_caller]
    pub(super) fn set(&mut self, variable: usize, value: ValueId) {
        self.reachable();
        self.get(variable);
        self.variables[variable].value = value;
        if let Some(name) = self.variables[variable].name.clone() {
            self.name_value(value, &name);
        }
    }

    /// Assigns a parameter or result to a variable, and names it after the variable.
    fn assign(&mut self, variable: usize, value: ValueId) {
        let variable = &mut self.variables[variable];
        variable.value = value;
        if let Some(name) = &variable.name {
            self.program.set_value_name(value, name.clone());
        }
    }

    /// Current values of the first `count` variables in scope.
    fn variable_values(&self, count: usize) -> Values {
        self.in_scope[..count].iter().map(|&variable| self.variables[variable].value).collect()
    }
}
