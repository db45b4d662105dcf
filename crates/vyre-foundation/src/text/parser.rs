//! Recursive-descent parser of the text format, with error recovery at statements.

use rustc_hash::FxHashMap;

use super::is_name;
use super::lexer::{Token, tokens};
use super::number::parse_literal;
use crate::Error;
use crate::diagnostics::{Diagnostic, DiagnosticSink, Fault};
use crate::ir::ops::{Form, Kind, MemOperand, OpInfo, Payload, TABLE};
use crate::ir::pipeline::{Argument, Buffer, Dispatch, Role};
use crate::ir::{
    Access, Axis, BlockId, BufferId, Element, Literal, MemId, Memory, Module, Op, Pipeline, Program, SourceMap, Space,
    Span, Terminator, Type, ValueId, Values,
};
use crate::launch::Grid;

/// Parses a module.
///
/// # Errors
/// [`Error::Text`] with the errors, at most [`LIMIT`](crate::diagnostics::LIMIT).
pub fn parse(source: &str) -> Result<Module, Error> {
    let _span = tracing::info_span!("parse", bytes = source.len()).entered();
    let mut found = DiagnosticSink::default();
    if u32::try_from(source.len()).is_err() {
        found.push(Diagnostic::new(Fault::SourceTooLarge { bytes: source.len() }, Span::NONE));
    } else {
        let tokens = tokens(source, &mut found);
        let mut parser = Parser { tokens, at: 0, depth: 0, found };
        let mut module = parser.module();
        found = parser.found;
        if found.is_empty() {
            let sources = SourceMap::of_text("", source);
            module.programs.iter_mut().for_each(|program| program.set_sources(sources.clone()));
            return Ok(module);
        }
    }
    Err(Error::Text(found.into_diagnostics().expect("an error was reported")))
}

/// Maximum nesting depth of blocks, low enough for the stack, and above the limit of the validator, which gives the better message.
const MAX_DEPTH: usize = 128;

/// The current statement has an error, which was reported.
struct Failed;

type Parsed<T> = Result<T, Failed>;

/// Owner of a block, which determines its implied terminator.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Body,
    Loop,
    Other,
}

/// The program under construction, with its symbol tables.
struct Scope<'s> {
    program: Program,
    /// Names in scope, innermost block last.
    visible: Vec<FxHashMap<&'s str, ValueId>>,
    /// Latest value of each name, in scope or not. Uses out of scope are left to the validator, whose message points to the definition.
    latest: FxHashMap<&'s str, ValueId>,
    constants: FxHashMap<&'s str, ValueId>,
    memory: FxHashMap<&'s str, MemId>,
}

impl<'s> Scope<'s> {
    fn new(program: Program) -> Self {
        Scope {
            program,
            visible: vec![FxHashMap::default()],
            latest: FxHashMap::default(),
            constants: FxHashMap::default(),
            memory: FxHashMap::default(),
        }
    }

    fn lookup(&self, name: &str) -> Option<ValueId> {
        self.visible.iter().rev().find_map(|names| names.get(name)).copied()
    }

    /// Names a value. Returns false if the name is already defined in scope.
    fn define(&mut self, name: &'s str, value: ValueId) -> bool {
        let is_new = self.lookup(name).is_none();
        if !name.bytes().all(|c| c.is_ascii_digit()) {
            self.program.set_value_name(value, name);
        }
        self.visible.last_mut().expect("the body has a scope").insert(name, value);
        self.latest.insert(name, value);
        is_new
    }
}

struct Parser<'s> {
    tokens: Vec<(Token<'s>, Span)>,
    at: usize,
    depth: usize,
    found: DiagnosticSink,
}

/// A name with its span.
type Name<'s> = (&'s str, Span);

impl<'s> Parser<'s> {
    // Tokens.

    fn peek(&self) -> Token<'s> {
        self.tokens[self.at].0
    }

    fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    fn previous_span(&self) -> Span {
        self.tokens[self.at.saturating_sub(1)].1
    }

    fn advance(&mut self) -> Token<'s> {
        let token = self.peek();
        if token != Token::EndOfText {
            self.at += 1;
        }
        token
    }

    fn eat(&mut self, token: Token<'_>) -> bool {
        let found = self.peek() == token;
        if found {
            self.advance();
        }
        found
    }

    fn eat_punctuation(&mut self, text: &'static str) -> bool {
        self.eat(Token::Punctuation(text))
    }

    fn skip_line_ends(&mut self) {
        while self.eat(Token::EndOfLine) {}
    }

    /// A comma, after which a line may be continued.
    fn eat_comma(&mut self) -> bool {
        let found = self.eat_punctuation(",");
        if found {
            self.skip_line_ends();
        }
        found
    }

    fn at_end_of_statement(&self) -> bool {
        matches!(self.peek(), Token::EndOfLine | Token::Punctuation(";" | "}") | Token::EndOfText)
    }

    // Errors.

    fn report(&mut self, fault: Fault, span: Span) -> Failed {
        self.found.push(Diagnostic::new(fault, span));
        Failed
    }

    fn expected(&mut self, expected: impl Into<String>) -> Failed {
        if self.peek() == Token::Invalid {
            return Failed;
        }
        let fault = Fault::Expected { expected: expected.into(), found: self.peek().describe() };
        self.report(fault, self.span())
    }

    fn expect(&mut self, text: &'static str) -> Parsed<()> {
        if self.eat_punctuation(text) { Ok(()) } else { Err(self.expected(format!("`{text}`"))) }
    }

    /// Skips to the end of the statement, including its blocks.
    fn skip_statement(&mut self) {
        let mut depth = 0;
        loop {
            match self.peek() {
                Token::EndOfText => return,
                _ if depth == 0 && self.at_end_of_statement() => return,
                Token::Punctuation("{") => depth += 1,
                Token::Punctuation("}") => depth -= 1,
                _ => {}
            }
            self.advance();
        }
    }

    // Terminals.

    fn name(&mut self, what: &str) -> Parsed<Name<'s>> {
        let span = self.span();
        match self.peek() {
            Token::Name(name) => {
                self.advance();
                Ok((name, span))
            }
            _ => Err(self.expected(what)),
        }
    }

    fn size(&mut self) -> Parsed<u32> {
        let span = self.span();
        match self.peek() {
            Token::Number(text) => {
                self.advance();
                let literal = parse_literal(text).map_err(|fault| self.report(fault, span))?;
                literal
                    .value::<u32>()
                    .ok_or_else(|| self.report(Fault::BadNumber { text: text.into(), reason: "a size is a u32" }, span))
            }
            _ => Err(self.expected("a size")),
        }
    }

    fn literal(&mut self) -> Parsed<Literal> {
        let span = self.span();
        match self.peek() {
            Token::Number(text) | Token::Name(text @ ("true" | "false")) => {
                self.advance();
                parse_literal(text).map_err(|fault| self.report(fault, span))
            }
            // `f32(0x7fc00000)`: any type by its bits.
            Token::Name(name) if Type::from_name(name).is_some() => {
                let ty = Type::from_name(name).expect("checked by the guard");
                self.advance();
                self.expect("(")?;
                let span = self.span();
                let Token::Number(text) = self.peek() else { return Err(self.expected("bits, such as 0x7fc00000")) };
                self.advance();
                let digits = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                let mask = u64::MAX >> (64 - ty.bits());
                let Some(bits) = digits.filter(|bits| *bits <= mask) else {
                    let reason = "these are not hexadecimal bits of the type";
                    return Err(self.report(Fault::BadNumber { text: text.into(), reason }, span));
                };
                self.expect(")")?;
                Ok(Literal { ty, bits })
            }
            _ => Err(self.expected("a literal")),
        }
    }

    fn ty(&mut self) -> Parsed<Type> {
        let (name, span) = self.name("a type")?;
        Type::from_name(name).ok_or_else(|| self.report(Fault::UnknownType { name: name.into() }, span))
    }

    fn element(&mut self) -> Parsed<Element> {
        let (name, span) = self.name("an element type")?;
        Element::from_name(name).ok_or_else(|| self.report(Fault::UnknownElement { name: name.into() }, span))
    }

    fn string(&mut self) -> Parsed<String> {
        let Token::String(raw) = self.peek() else { return Err(self.expected("a string")) };
        self.advance();
        let mut text = String::new();
        let mut characters = raw.chars();
        while let Some(c) = characters.next() {
            match c {
                '\\' => match characters.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some(other) => text.push(other),
                    None => {}
                },
                _ => text.push(c),
            }
        }
        Ok(text)
    }

    fn operand(&mut self, scope: &mut Scope<'s>) -> Parsed<ValueId> {
        let span = self.span();
        match self.peek() {
            Token::Value(name) => {
                self.advance();
                match scope.lookup(name).or_else(|| scope.latest.get(name).copied()) {
                    Some(value) => Ok(value),
                    None => {
                        self.report(Fault::UnknownValue { name: name.into() }, span);
                        // Each unknown name is reported once.
                        let stand_in = scope.program.literal(0u32);
                        scope.latest.insert(name, stand_in);
                        Ok(stand_in)
                    }
                }
            }
            Token::Name(name) if !matches!(name, "true" | "false") && Type::from_name(name).is_none() => {
                self.advance();
                match scope.constants.get(name) {
                    Some(value) => Ok(*value),
                    None => Err(self.report(Fault::UnknownConstant { name: name.into() }, span)),
                }
            }
            Token::Number(_) | Token::Name(_) => {
                let literal = self.literal()?;
                Ok(scope.program.literal(literal))
            }
            _ => Err(self.expected("an operand")),
        }
    }

    /// Comma-separated operands.
    fn operands(&mut self, scope: &mut Scope<'s>) -> Parsed<Values> {
        let mut operands = Values::new();
        if !matches!(self.peek(), Token::Value(_) | Token::Number(_) | Token::Name(_)) {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(scope)?);
            if !self.eat_comma() {
                return Ok(operands);
            }
        }
    }

    fn more_operands(&mut self, scope: &mut Scope<'s>, operands: &mut Values) -> Parsed<()> {
        while self.eat_comma() {
            operands.push(self.operand(scope)?);
        }
        Ok(())
    }

    // Modules and programs.

    fn module(&mut self) -> Module {
        let mut module = Module::default();
        loop {
            self.skip_line_ends();
            match self.peek() {
                Token::EndOfText => return module,
                Token::Name("program") => {
                    if let Ok(program) = self.program() {
                        module.programs.push(program);
                    } else {
                        self.skip_to_program();
                    }
                }
                Token::Name("pipeline") => match self.pipeline() {
                    Ok(pipeline) => module.pipelines.push(pipeline),
                    Err(Failed) => self.skip_to_program(),
                },
                _ => {
                    self.expected("`program` or `pipeline`");
                    self.advance();
                    self.skip_to_program();
                }
            }
        }
    }

    /// Error recovery outside of any body: skips to the next program or pipeline.
    fn skip_to_program(&mut self) {
        let mut depth = 0usize;
        loop {
            match self.peek() {
                Token::EndOfText => return,
                Token::Name("program" | "pipeline") if depth == 0 => return,
                Token::Punctuation("{") => depth += 1,
                Token::Punctuation("}") => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.advance();
        }
    }

    fn program(&mut self) -> Parsed<Program> {
        self.advance();
        let (name, name_span) = self.name("the name of the program")?;
        let mut workgroup_size = None;
        let mut launch = None;
        let mut fast = false;
        while let Token::Name(attribute) = self.peek() {
            let target = match attribute {
                "workgroup" => &mut workgroup_size,
                "launch" => &mut launch,
                "fast" => {
                    self.at += 1;
                    fast = true;
                    continue;
                }
                _ => return Err(self.expected("`workgroup`, `launch`, `fast` or `{`")),
            };
            self.at += 1;
            *target = Some(self.sizes()?);
        }
        let Some(workgroup_size) = workgroup_size else {
            return Err(self.report(Fault::NoWorkgroupSize {}, name_span));
        };
        let mut scope = Scope::new(Program::new(name, workgroup_size));
        scope.program.set_launch(launch);
        scope.program.set_fast(fast);
        let body = scope.program.body();
        self.block(&mut scope, body, Owner::Body)?;
        Ok(scope.program)
    }

    fn sizes(&mut self) -> Parsed<[u32; 3]> {
        let mut sizes = [1; 3];
        self.expect("(")?;
        for (position, size) in sizes.iter_mut().enumerate() {
            if position > 0 && !self.eat_comma() {
                break;
            }
            *size = self.size()?;
        }
        self.expect(")")?;
        Ok(sizes)
    }

    fn pipeline(&mut self) -> Parsed<Pipeline> {
        self.advance();
        let (name, span) = self.name("the name of the pipeline")?;
        let mut pipeline = Pipeline { name: name.into(), span, ..Pipeline::default() };
        if self.eat(Token::Name("budget")) {
            self.expect("(")?;
            let span = self.span();
            let literal = self.literal()?;
            let bytes = literal.value::<u64>().or(literal.value::<u32>().map(u64::from));
            let reason = "a budget is a u32 or u64";
            let fault = Fault::BadNumber { text: literal.to_string(), reason };
            pipeline.budget = Some(bytes.ok_or_else(|| self.report(fault, span))?);
            self.expect(")")?;
        }
        self.skip_line_ends();
        self.expect("{")?;
        let mut names = FxHashMap::default();
        loop {
            while self.eat(Token::EndOfLine) || self.eat_punctuation(";") {}
            if self.eat_punctuation("}") {
                return Ok(pipeline);
            }
            // The end of the text ends the pipeline, too.
            if self.peek() == Token::EndOfText {
                return Err(self.expected("`}`"));
            }
            if self.pipeline_item(&mut pipeline, &mut names).is_err() {
                self.skip_statement();
            } else if !self.at_end_of_statement() {
                self.expected("the end of the line");
                self.skip_statement();
            }
        }
    }

    /// A buffer or a dispatch.
    fn pipeline_item(&mut self, pipeline: &mut Pipeline, names: &mut FxHashMap<&'s str, BufferId>) -> Parsed<()> {
        let start = self.span();
        let Token::Name(keyword) = self.peek() else { return Err(self.expected("a buffer or `run`")) };
        if let Some(role) = Role::ALL.into_iter().find(|role| role.name() == keyword) {
            self.advance();
            let (name, _) = self.name("a name")?;
            self.expect(":")?;
            self.expect("[")?;
            let element = self.element()?;
            self.expect(";")?;
            let length = self.size()?;
            self.expect("]")?;
            let span = start.to(self.previous_span());
            let id = pipeline.buffers.push(Buffer { name: name.into(), role, element, length, span });
            names.entry(name).or_insert(id);
            return Ok(());
        }
        if !self.eat(Token::Name("run")) {
            return Err(self.expected("`in`, `out`, `inout`, `transient` or `run`"));
        }
        let (program, _) = self.name("the name of a program")?;
        let grid = match self.peek() {
            Token::Name("grid") => Grid::Groups as fn([u32; 3]) -> Grid,
            Token::Name("elements") => Grid::Elements,
            _ => return Err(self.expected("`grid` or `elements`")),
        };
        self.advance();
        let grid = grid(self.sizes()?);
        let mut arguments = Vec::new();
        if !self.at_end_of_statement() {
            loop {
                let (object, _) = self.name("the name of an object of the program")?;
                self.expect("=")?;
                let span = self.span();
                let argument = match self.peek() {
                    Token::Name(name) if is_name(name) => {
                        self.advance();
                        let unknown = Fault::UnknownMemory { name: name.into() };
                        let buffer = names.get(name).ok_or_else(|| self.report(unknown, span))?;
                        Argument::Buffer(*buffer)
                    }
                    _ => Argument::Scalar(self.literal()?),
                };
                arguments.push((object.to_owned(), argument));
                if !self.eat_comma() {
                    break;
                }
            }
        }
        let span = start.to(self.previous_span());
        pipeline.dispatches.push(Dispatch { program: program.into(), grid, arguments, span });
        Ok(())
    }

    /// Parses a declaration, if there is one.
    fn declaration(&mut self, scope: &mut Scope<'s>) -> Parsed<bool> {
        let start = self.span();
        let Token::Name(keyword) = self.peek() else { return Ok(false) };
        let space = match keyword {
            "read" => Space::Storage(Access::Read),
            "write" => Space::Storage(Access::Write),
            "read_write" => Space::Storage(Access::ReadWrite),
            "uniform" => Space::Uniform,
            "workgroup" => Space::Workgroup,
            "private" => Space::Private,
            "const" => {
                self.advance();
                self.constant(scope, start)?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.advance();
        let mut atomic = false;
        let (mut name, _) = self.name("a name")?;
        if name == "atomic" && !matches!(self.peek(), Token::Punctuation(":")) {
            atomic = true;
            (name, _) = self.name("a name")?;
        }
        self.expect(":")?;
        let is_array = matches!(self.peek(), Token::Punctuation("["));
        let space = if space == Space::Uniform && is_array { Space::Storage(Access::Constant) } else { space };
        let (element, length, default);
        if space == Space::Uniform {
            element = self.element()?;
            length = Some(1);
            default = if self.eat_punctuation("=") { Some(self.literal()?) } else { None };
        } else {
            self.expect("[")?;
            element = self.element()?;
            length = if self.eat_punctuation(";") { Some(self.size()?) } else { None };
            default = None;
            self.expect("]")?;
        }
        let span = start.to(self.previous_span());
        let memory = Memory { name: name.into(), space, element, length, atomic, default, span };
        let id = scope.program.add_memory(memory);
        scope.memory.entry(name).or_insert(id);
        Ok(true)
    }

    fn constant(&mut self, scope: &mut Scope<'s>, start: Span) -> Parsed<()> {
        let (name, _) = self.name("a name")?;
        self.expect(":")?;
        let ty = self.ty()?;
        self.expect("=")?;
        let literal_span = self.span();
        let default = self.literal()?;
        if default.ty != ty {
            let fault = Fault::DefaultType { name: name.into(), expected: ty, found: default.ty };
            return Err(self.report(fault, literal_span));
        }
        let value = scope.program.add_constant(name, default, start.to(self.previous_span()));
        scope.constants.entry(name).or_insert(value);
        Ok(())
    }

    // Blocks and statements.

    /// Parses `{ … }` into a block, and adds an implied terminator.
    fn block(&mut self, scope: &mut Scope<'s>, block: BlockId, owner: Owner) -> Parsed<()> {
        self.skip_line_ends();
        self.expect("{")?;
        if self.depth == MAX_DEPTH {
            return Err(self.report(Fault::TooDeep { limit: MAX_DEPTH }, self.previous_span()));
        }
        self.depth += 1;
        scope.visible.push(FxHashMap::default());
        loop {
            self.skip_line_ends();
            match self.peek() {
                Token::Punctuation("}") | Token::EndOfText => break,
                _ => {}
            }
            let declared = if owner == Owner::Body { self.declaration(scope) } else { Ok(false) };
            let read = match declared {
                Ok(false) => self.statement(scope, block),
                Ok(true) => Ok(()),
                Err(failed) => Err(failed),
            };
            if read.is_ok() && !self.at_end_of_statement() {
                self.expected("the end of the line");
            }
            self.skip_statement();
            self.eat_punctuation(";");
        }
        scope.visible.pop();
        self.depth -= 1;
        let end = self.span();
        self.expect("}")?;
        let last = scope.program.block(block).insts.last();
        if last.is_none_or(|&last| !scope.program.inst(last).op.is_terminator()) {
            let op = match owner {
                Owner::Body => Op::Terminator(Terminator::Return),
                Owner::Loop => Op::Terminator(Terminator::Continue),
                Owner::Other => Op::Terminator(Terminator::Yield),
            };
            scope.program.push(block, op, [], &[], [], end);
        }
        Ok(())
    }

    fn statement(&mut self, scope: &mut Scope<'s>, block: BlockId) -> Parsed<()> {
        let start = self.span();
        let mut results: Vec<Name<'s>> = Vec::new();
        while let Token::Value(name) = self.peek() {
            results.push((name, self.span()));
            self.advance();
            if !self.eat_comma() {
                break;
            }
        }
        let read = if results.is_empty() { Ok(()) } else { self.expect("=") };
        let values = read.and_then(|()| self.operation(scope, block, start, results.len()));
        // Names are defined even if the statement has an error, so that their uses are not reported.
        for (position, &(name, span)) in results.iter().enumerate() {
            let value = match &values {
                Ok(values) if position < values.len() => values[position],
                _ => scope.program.literal(0u32),
            };
            if !scope.define(name, value) {
                self.report(Fault::Redefined { name: name.into() }, span);
            }
        }
        values.map(|_| ())
    }

    /// Parses an operation, appends its instruction and returns its results.
    fn operation(
        &mut self,
        scope: &mut Scope<'s>,
        block: BlockId,
        start: Span,
        named_results: usize,
    ) -> Parsed<Values> {
        let (name, name_span) = self.name("an operation")?;
        let Some(row) = OpInfo::named(name) else {
            return Err(self.report(Fault::UnknownOp { name: name.into(), nearest: nearest_op(name) }, name_span));
        };

        let (text, cases);
        let mut payload = Payload::None;
        let mut named_types: Vec<Type> = Vec::new();
        let mut operands = Values::new();
        let mut blocks = Vec::new();
        let mut header = name_span;
        match row.form {
            Form::Plain(_) | Form::Exit | Form::Trap => operands = self.operands(scope)?,
            Form::Convert { .. } => {
                operands = self.operands(scope)?;
                if !self.eat(Token::Name("to")) {
                    return Err(self.expected("`to` and a type"));
                }
                named_types.push(self.ty()?);
            }
            Form::PerAxis => {
                self.expect(".")?;
                let (name, _) = self.name("`x`, `y` or `z`")?;
                let Some(axis) = Axis::ALL.into_iter().find(|axis| axis.name() == name) else {
                    self.at -= 1;
                    return Err(self.expected("`x`, `y` or `z`"));
                };
                payload = Payload::Axis(axis);
            }
            Form::Load | Form::Store | Form::Length | Form::Atomic(_) | Form::CompareExchange => {
                let (name, span) = self.name("a memory object")?;
                let Some(&memory) = scope.memory.get(name) else {
                    return Err(self.report(Fault::UnknownMemory { name: name.into() }, span));
                };
                if self.eat_punctuation("[") {
                    operands.push(self.operand(scope)?);
                    self.expect("]")?;
                }
                payload = match row.form {
                    Form::Length => Payload::Object(memory),
                    _ => Payload::Memory(self.mem_operand(row, scope.program.operand(memory))?),
                };
                self.more_operands(scope, &mut operands)?;
                if let (Form::Load, Payload::Memory(operand)) = (row.form, payload) {
                    named_types = vec![operand.value_type(); named_results.max(1)];
                }
            }
            Form::Print => {
                text = self.string()?;
                payload = Payload::Text(&text);
                self.more_operands(scope, &mut operands)?;
            }
            Form::If => {
                operands.push(self.operand(scope)?);
                named_types = self.result_types()?;
                header = self.previous_span();
                blocks.push(self.nested(scope, Owner::Other)?);
                blocks.push(self.else_block(scope)?);
            }
            Form::Switch => {
                operands.push(self.operand(scope)?);
                named_types = self.result_types()?;
                header = self.previous_span();
                let selector = scope.program.ty(operands[0]);
                cases = self.cases(scope, selector, &mut blocks)?;
                payload = Payload::Cases(&cases);
            }
            Form::Loop => {
                let body = scope.program.add_block();
                scope.visible.push(FxHashMap::default());
                let read = self.loop_inst(scope, body);
                scope.visible.pop();
                (operands, named_types, header) = read?;
                blocks.push(body);
            }
            Form::Region => {
                text = self.string()?;
                payload = Payload::Text(&text);
                named_types = self.result_types()?;
                header = self.previous_span();
                blocks.push(self.nested(scope, Owner::Other)?);
            }
        }

        // The span of control flow is its header, so that excerpts are short.
        let end = if blocks.is_empty() { self.previous_span() } else { header };
        let op = row.op(payload).expect("the form determines the payload");
        // Operand types are left to the validator; the results only have to exist.
        let types = scope.program.result_types(&op, &operands, &named_types).unwrap_or_else(|_| match row.form {
            Form::Plain(signature) => {
                let first = operands.first().map_or(Type::U32, |&operand| scope.program.ty(operand));
                std::iter::repeat_n(first, signature.results.len()).collect()
            }
            _ if named_types.is_empty() => std::iter::repeat_n(Type::U32, named_results).collect(),
            _ => named_types.into(),
        });
        if named_results > 0 && named_results != types.len() {
            let fault = Fault::ResultCount { op: row.name, expected: types.len(), found: named_results };
            return Err(self.report(fault, start.to(name_span)));
        }
        let inst = scope.program.push(block, op, operands, &types, blocks, start.to(end));
        Ok(scope.program.inst(inst).results.clone())
    }

    /// `as f16`, `as atomic u32`, or nothing for an access of the declared type.
    fn mem_operand(&mut self, row: &OpInfo, declared: MemOperand) -> Parsed<MemOperand> {
        let always_atomic = row.kind == Kind::Atomic;
        if !self.eat(Token::Name("as")) {
            return Ok(MemOperand { atomic: declared.atomic || always_atomic, ..declared });
        }
        let atomic = self.eat(Token::Name("atomic")) || always_atomic;
        Ok(MemOperand { element: self.element()?, atomic, ..declared })
    }

    /// `-> f32, u32`
    fn result_types(&mut self) -> Parsed<Vec<Type>> {
        let mut types = Vec::new();
        if self.eat_punctuation("->") {
            types.push(self.ty()?);
            while self.eat_comma() {
                types.push(self.ty()?);
            }
        }
        Ok(types)
    }

    fn nested(&mut self, scope: &mut Scope<'s>, owner: Owner) -> Parsed<BlockId> {
        let block = scope.program.add_block();
        self.block(scope, block, owner)?;
        Ok(block)
    }

    /// An `else` block, empty if omitted.
    fn else_block(&mut self, scope: &mut Scope<'s>) -> Parsed<BlockId> {
        let end = self.previous_span();
        let before = self.at;
        self.skip_line_ends();
        if self.eat(Token::Name("else")) {
            return self.nested(scope, Owner::Other);
        }
        self.at = before;
        let block = scope.program.add_block();
        scope.program.push(block, Terminator::Yield, [], &[], [], end);
        Ok(block)
    }

    /// A loop from its parameters to its body. Returns initial values, result types, and the end of its header.
    fn loop_inst(&mut self, scope: &mut Scope<'s>, body: BlockId) -> Parsed<(Values, Vec<Type>, Span)> {
        let initial = self.loop_params(scope, body)?;
        let types = self.result_types()?;
        let header = self.previous_span();
        self.block(scope, body, Owner::Loop)?;
        Ok((initial, types, header))
    }

    /// `(%p = a, %q = b)`: defines the parameters of a loop and returns their initial values.
    fn loop_params(&mut self, scope: &mut Scope<'s>, body: BlockId) -> Parsed<Values> {
        let mut initial = Values::new();
        if !self.eat_punctuation("(") {
            return Ok(initial);
        }
        let mut params = Vec::new();
        loop {
            self.skip_line_ends();
            let span = self.span();
            let Token::Value(name) = self.peek() else { return Err(self.expected("a parameter, such as `%i = 0`")) };
            self.advance();
            self.expect("=")?;
            initial.push(self.operand(scope)?);
            params.push((name, span));
            if !self.eat_comma() {
                break;
            }
        }
        self.skip_line_ends();
        self.expect(")")?;
        for ((name, span), &value) in params.into_iter().zip(&initial) {
            let param = scope.program.add_param(body, scope.program.ty(value));
            if !scope.define(name, param) {
                self.report(Fault::Redefined { name: name.into() }, span);
            }
        }
        Ok(initial)
    }

    /// `{ case 0 { … } default { … } }`
    fn cases(&mut self, scope: &mut Scope<'s>, selector: Type, blocks: &mut Vec<BlockId>) -> Parsed<Vec<u32>> {
        let mut cases = Vec::new();
        self.expect("{")?;
        loop {
            self.skip_line_ends();
            if self.eat(Token::Name("default")) {
                blocks.push(self.nested(scope, Owner::Other)?);
                self.skip_line_ends();
                self.expect("}")?;
                return Ok(cases);
            }
            if !self.eat(Token::Name("case")) {
                return Err(self.expected("`case` or `default`"));
            }
            let span = self.span();
            let literal = self.literal()?;
            // Selectors of other types are left to the validator.
            if literal.ty != selector && matches!(selector, Type::I32 | Type::U32) {
                let expected = format!("a case of type {selector}");
                return Err(self.report(Fault::Expected { expected, found: format!("`{literal}`") }, span));
            }
            cases.push(literal.bits as u32);
            blocks.push(self.nested(scope, Owner::Other)?);
        }
    }
}

/// Operation with the smallest edit distance, if it is small.
fn nearest_op(name: &str) -> Option<&'static str> {
    let distances = TABLE.iter().map(|row| (edit_distance(name, row.name), row.name));
    distances.min().filter(|(distance, _)| *distance <= 1 + name.len() / 4).map(|(_, name)| name)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
