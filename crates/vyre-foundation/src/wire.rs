//! Wire format: the binary encoding of modules, `.vyreb`.
//!
//! ```text
//! file     = "VYRE" major:u16 minor:u16 hash:[u8; 32] contents           little-endian; the hash is blake3 of the contents
//! contents = operations module                                           operations: names of the used operations
//! number   = LEB128, shortest form                                       string: length, UTF-8 bytes
//!
//! module   = count program… pipelines? sources?                          pipelines: count pipeline…, omitted if nothing follows
//! program  = name workgroup:3×number attributes launch? constants memory block   attributes: 1 for launch, 2 for fast
//! pipeline = name budget:literal buffers dispatches                      buffer: name, role, element, length
//! dispatch = program kind-of-grid 3×number arguments                     argument: name, even: a buffer; odd: a literal's type
//! block    = count-of-parameters type… count inst…
//! inst     = operation payload? operands results nested-blocks           results: count, type…
//! payload  = object element?                                             of an access: element, plus 128 if atomic, for `NAME as`
//! operand  = number                                                      even: a value, counted as defined; odd: a literal's type
//!
//! sources  = files lines places location…                                omitted if nothing has a location; location: 0 or place + 1
//! file     = name                                                        count file…, sorted without duplicates, like lines and places
//! line     = file number text                                            text: empty if it is unknown
//! place    = line column width                                           line: difference from the line of the previous place
//! ```
//!
//! The encoding is *canonical*: modules that are structurally equal (debug names are ignored) and have the same source locations have the
//! same bytes, and every valid byte sequence is the only encoding of its module. The [`content_hash`] of a program excludes locations.
//!
//! Decoding is safe for untrusted input: every count is checked against the remaining bytes before an allocation, nesting is bounded, and
//! the result is an unvalidated [`Module`].
//!
//! # Compatibility
//!
//! Operations are named, not numbered, so that the op table can grow. A reader accepts files of its major version and any minor version; an
//! unknown operation is an error that names it. The major version changes with the layout. Minor version 1 added pipelines after the last
//! program, minor version 2 sources after them, and minor version 3 accesses of other types than the declared one, whose operations are
//! named `load as`, `store as` and so on, and arrays of uniforms. Minor version 4 added elements of bf16. The encoding of a module without any of these is unchanged.

use std::borrow::Borrow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::Error;
use crate::ir::entity::Entity;
use crate::ir::ops::{Form, Kind, MemOperand, OpInfo, Payload};
use crate::ir::pipeline::{Argument, Buffer, Dispatch, Role};
use crate::ir::source::{Line, Place, Places};
use crate::ir::{
    Access, Axis, BlockId, BufferId, Def, Element, Inst, InstId, Literal, MemId, Memory, Module, Pipeline, Program,
    SourceLoc, SourceMap, Space, Span, Type, ValueId, Values,
};
use crate::launch::Grid;

/// The first bytes of a file.
pub const MAGIC: [u8; 4] = *b"VYRE";

/// The version that is written, and whose layout is read.
const MAJOR: u16 = 1;
const MINOR: u16 = 4;

/// End of the name of an operation that is written with the type of its access.
const TYPED: &str = " as";
/// Flag of atomic accesses, added to the encoded element type.
const ATOMIC: u8 = 128;

/// Attributes of a program.
const LAUNCH: u8 = 1;
const FAST: u8 = 2;

const HEADER: usize = 4 + 2 + 2 + 32;

/// Deeper than the validator accepts, so that its message is the one that is seen, and shallow enough for the stack.
const MAX_DEPTH: usize = 128;

/// The hash of the canonical encoding of a program: equal for equal programs, different for others.
pub fn content_hash(program: &Program) -> [u8; 32] {
    let mut writer = Writer::default();
    writer.program(program);
    *blake3::hash(&writer.contents()).as_bytes()
}

/// A module as bytes. Its programs are in order: validated, or decoded before.
pub fn encode<P: Borrow<Program>>(module: &Module<P>) -> Vec<u8> {
    let mut writer = Writer::default();
    let programs = || module.programs.iter().map(Borrow::borrow);
    writer.list(programs(), Writer::program);
    let sources = sources(programs());
    if !(module.pipelines.is_empty() && sources.is_empty()) {
        writer.list(module.pipelines.iter(), Writer::pipeline);
    }
    writer.bytes.extend(sources);
    writer.file()
}

/// A module of one program as bytes, without source locations.
pub fn encode_without_sources(program: &Program) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.list(std::iter::once(program), Writer::program);
    writer.file()
}

/// Decodes a module.
///
/// # Errors
/// [`Error::Wire`] if the bytes are not the encoding of a module.
pub fn decode(bytes: &[u8]) -> Result<Module, Error> {
    let (header, contents) =
        bytes.split_at_checked(HEADER).ok_or(Error::Wire { at: bytes.len(), reason: "truncated header".into() })?;
    let malformed = |at: usize, reason: String| Err(Error::Wire { at, reason });
    if header[..4] != MAGIC {
        return malformed(0, "the magic number VYRE is missing".into());
    }
    let major = u16::from_le_bytes([header[4], header[5]]);
    if major != MAJOR {
        return malformed(4, format!("unsupported major version {major}; this reader supports {MAJOR}"));
    }
    if header[8..] != blake3::hash(contents).as_bytes()[..] {
        return malformed(8, "hash mismatch: the contents are corrupt".into());
    }
    let reader = Reader { bytes: contents, at: 0, ops: Vec::new(), used_ops: 0, types: Vec::new(), insts: Vec::new() };
    reader.module().map_err(|error| Error::Wire { at: HEADER + error.at, reason: error.reason })
}

// Writing.

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    /// Used operations in the order of their first use, with true for accesses with an explicit type.
    ops: Vec<(&'static str, bool)>,
    numbers: FxHashMap<(&'static str, bool), u64>,
}

impl Writer {
    /// Appends the written bytes to the list of operations.
    fn contents(self) -> Vec<u8> {
        let mut file = Writer::default();
        file.list(self.ops.into_iter(), |file, (name, typed)| {
            file.string(&format!("{name}{}", if typed { TYPED } else { "" }));
        });
        file.bytes.extend(self.bytes);
        file.bytes
    }

    /// Prepends the header to the contents.
    fn file(self) -> Vec<u8> {
        let contents = self.contents();
        let mut file = Vec::with_capacity(HEADER + contents.len());
        file.extend(MAGIC);
        file.extend(MAJOR.to_le_bytes());
        file.extend(MINOR.to_le_bytes());
        file.extend(blake3::hash(&contents).as_bytes());
        file.extend(contents);
        file
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn string(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    /// Writes a list: its length and its items.
    fn list<T>(&mut self, things: impl ExactSizeIterator<Item = T>, mut write: impl FnMut(&mut Self, T)) {
        self.number(things.len() as u64);
        things.for_each(|thing| write(self, thing));
    }

    fn ty(&mut self, ty: Type) {
        self.bytes.push(ty as u8);
    }

    fn literal(&mut self, literal: Option<Literal>) {
        match literal {
            None => self.bytes.push(0),
            Some(literal) => {
                self.bytes.push(1 + literal.ty as u8);
                self.number(literal.bits);
            }
        }
    }

    fn program(&mut self, program: &Program) {
        self.string(program.name());
        for size in program.workgroup_size() {
            self.number(size.into());
        }
        self.bytes.push(u8::from(program.launch().is_some()) | if program.is_fast() { FAST } else { 0 });
        for size in program.launch().into_iter().flatten() {
            self.number(size.into());
        }
        let mut values = FxHashMap::default();
        self.number(program.constants().len() as u64);
        for constant in program.constants().values() {
            self.string(&constant.name);
            self.literal(Some(constant.default));
        }
        for (value, data) in program.values().iter() {
            if let Def::Constant(constant) = data.def {
                values.insert(value, constant.index() as u64);
            }
        }
        self.number(program.memories().len() as u64);
        for memory in program.memories().values() {
            self.string(&memory.name);
            let space = SPACES.iter().position(|space| *space == memory.space).expect("every space is listed");
            self.bytes.push(space as u8 | u8::from(memory.atomic) << 4 | u8::from(memory.length.is_some()) << 5);
            self.bytes.push(memory.element as u8);
            self.number(memory.length.unwrap_or(0).into());
            self.literal(memory.default);
        }
        let mut scope = Scope { program, values, defined: program.constants().len() as u64 };
        self.block(&mut scope, program.body());
    }

    fn pipeline(&mut self, pipeline: &Pipeline) {
        self.string(&pipeline.name);
        self.literal(pipeline.budget.map(Literal::from));
        self.number(pipeline.buffers.len() as u64);
        for buffer in pipeline.buffers.values() {
            self.string(&buffer.name);
            self.bytes.push(buffer.role as u8);
            self.bytes.push(buffer.element as u8);
            self.number(buffer.length.into());
        }
        self.number(pipeline.dispatches.len() as u64);
        for dispatch in &pipeline.dispatches {
            self.string(&dispatch.program);
            let grid = dispatch.grid;
            let (kind, sizes) = match grid {
                Grid::Groups(sizes) => (0, sizes),
                Grid::Elements(sizes) => (1, sizes),
            };
            self.bytes.push(kind);
            for size in sizes {
                self.number(size.into());
            }
            self.list(dispatch.arguments.iter(), |writer, (name, argument)| {
                writer.string(name);
                match argument {
                    Argument::Buffer(id) => writer.number((id.index() as u64) << 1),
                    Argument::Scalar(literal) => writer.tagged(*literal),
                }
            });
        }
    }

    /// Writes a literal: its type as an odd number, which distinguishes it from a value, and its bits.
    fn tagged(&mut self, literal: Literal) {
        self.number((literal.ty as u64) << 1 | 1);
        self.number(literal.bits);
    }

    fn block(&mut self, scope: &mut Scope<'_>, block: BlockId) {
        let contents = scope.program.block(block);
        self.list(contents.params.iter(), |writer, &param| {
            writer.ty(scope.program.ty(param));
            scope.define(param);
        });
        self.list(contents.insts.iter(), |writer, &inst| writer.inst(scope, inst));
    }

    fn inst(&mut self, scope: &mut Scope<'_>, id: InstId) {
        let inst = scope.program.inst(id);
        let operand = inst.op.operand();
        let typed = operand.is_some_and(|operand| operand != declared(scope.program, inst.op.info(), operand.memory));
        let key = (inst.op.info().name, typed);
        let next = self.ops.len() as u64;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.ops.push(key);
        }
        self.number(number);
        match inst.op.payload() {
            Payload::None => {}
            Payload::Axis(axis) => self.bytes.push(axis as u8),
            Payload::Object(memory) => self.number(memory.index() as u64),
            Payload::Memory(MemOperand { memory, element, atomic }) => {
                self.number(memory.index() as u64);
                if typed {
                    self.bytes.push(element as u8 | if atomic { ATOMIC } else { 0 });
                }
            }
            Payload::Text(text) => self.string(text),
            Payload::Cases(cases) => {
                self.list(cases.iter(), |writer, &case| writer.number(case.into()));
            }
        }
        self.list(inst.operands.iter(), |writer, operand| match scope.program.value(*operand) {
            crate::ir::Value { ty, def: Def::Literal(bits) } => writer.tagged(Literal { ty, bits }),
            _ => writer.number(scope.values[operand] << 1),
        });
        self.list(inst.results.iter(), |writer, &result| writer.ty(scope.program.ty(result)));
        self.list(inst.blocks.iter(), |writer, &block| writer.block(scope, block));
        // Results are out of scope in nested blocks, so they are numbered after the values defined there.
        for &result in &inst.results {
            scope.define(result);
        }
    }
}

/// Memory operand of an access with the declared type of its object.
fn declared(program: &Program, row: &OpInfo, memory: MemId) -> MemOperand {
    let operand = program.operand(memory);
    MemOperand { atomic: operand.atomic || row.kind == Kind::Atomic, ..operand }
}

/// Encodes the source locations of programs as sorted tables without duplicates; empty if there are none.
fn sources<'p>(programs: impl Iterator<Item = &'p Program> + Clone) -> Vec<u8> {
    if programs.clone().all(|program| program.sources().is_empty()) {
        return Vec::new();
    }
    let mut known: FxHashMap<SourceLoc, usize> = FxHashMap::default();
    let mut used: Vec<Option<usize>> = Vec::new();
    for program in programs {
        let mut last = (Span::NONE, None);
        each_span(program, |span| {
            if span != last.0 {
                let next = known.len();
                last = (span, program.locate(span).map(|loc| *known.entry(loc).or_insert(next)));
            }
            used.push(last.1);
        });
    }
    if known.is_empty() {
        return Vec::new();
    }
    let mut locs: Vec<(SourceLoc, usize)> = known.into_iter().collect();
    locs.sort_unstable_by(|(a, _), (b, _)| a.key().cmp(&b.key()));
    let (mut files, mut lines, mut places) = (Table::default(), Table::default(), Table::default());
    let mut numbers = vec![0; locs.len()];
    let (mut last, mut last_line): (Option<(&str, u32, &str)>, u64) = (None, 0);
    for (place, (loc, number)) in locs.iter().enumerate() {
        let ((file, line, text), (column, width)) = loc.key();
        if last.is_none_or(|(known, ..)| known != file) {
            files.row().string(file);
        }
        if last != Some((file, line, text)) {
            let row = lines.row();
            row.number(files.count - 1);
            row.number(line.into());
            row.string(text);
        }
        last = Some((file, line, text));
        let row = places.row();
        row.number(lines.count - 1 - last_line);
        row.number(column.into());
        row.number(width.into());
        last_line = lines.count - 1;
        numbers[*number] = place as u64 + 1;
    }
    let mut writer = Writer::default();
    for table in [files, lines, places] {
        writer.number(table.count);
        writer.bytes.extend(table.rows.bytes);
    }
    used.into_iter().for_each(|number| writer.number(number.map_or(0, |number| numbers[number])));
    writer.bytes
}

/// Rows of a table.
#[derive(Default)]
struct Table {
    count: u64,
    rows: Writer,
}

impl Table {
    /// Starts a row.
    fn row(&mut self) -> &mut Writer {
        self.count += 1;
        &mut self.rows
    }
}

/// Visits the spans of constants, memory objects and instructions.
fn each_span(program: &Program, mut visit: impl FnMut(Span)) {
    program.constants().values().for_each(|constant| visit(constant.span));
    program.memories().values().for_each(|memory| visit(memory.span));
    program.walk(|id, _| visit(program.inst(id).span));
}

/// Numbers of the defined values.
struct Scope<'p> {
    program: &'p Program,
    values: FxHashMap<ValueId, u64>,
    defined: u64,
}

impl Scope<'_> {
    fn define(&mut self, value: ValueId) {
        self.values.insert(value, self.defined);
        self.defined += 1;
    }
}

const SPACES: [Space; 7] = [
    Space::Storage(Access::Read),
    Space::Storage(Access::Write),
    Space::Storage(Access::ReadWrite),
    Space::Uniform,
    Space::Workgroup,
    Space::Private,
    Space::Storage(Access::Constant),
];

// Reading.

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    /// Listed operations, with true for accesses with an explicit type.
    ops: Vec<(&'static OpInfo, bool)>,
    /// Number of operations used so far; they are listed in the order of their first use.
    used_ops: usize,
    /// Result types of the current instruction.
    types: Vec<Type>,
    /// Instructions of the open blocks, innermost last; a block receives its list when it is complete.
    insts: Vec<InstId>,
}

/// Decoding error. Boxed, so that results of most functions fit into registers, which makes decoding much faster.
struct Malformed {
    at: usize,
    reason: String,
}

type Read<T> = Result<T, Box<Malformed>>;

impl<'b> Reader<'b> {
    #[cold]
    fn malformed<T>(&self, reason: impl Into<String>) -> Read<T> {
        Err(Box::new(Malformed { at: self.at, reason: reason.into() }))
    }

    #[inline]
    fn byte(&mut self) -> Read<u8> {
        match self.bytes.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => self.malformed("unexpected end of the contents"),
        }
    }

    #[inline]
    fn number(&mut self) -> Read<u64> {
        // Fast path: most numbers are small.
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(byte.into())
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Read<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return self.malformed("a number exceeds 64 bits");
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return self.malformed("a number is not in the shortest LEB128 form");
                }
                return Ok(number);
            }
        }
        self.malformed("a number exceeds 64 bits")
    }

    fn number_below(&mut self, limit: u64, what: &str) -> Read<u64> {
        let number = self.number()?;
        if number < limit { Ok(number) } else { self.malformed(format!("{what} {number} is not below {limit}")) }
    }

    fn word(&mut self) -> Read<u32> {
        self.number_below(1 << 32, "a 32-bit number").map(|number| number as u32)
    }

    /// Reads the length of a list whose items take at least a byte each, which bounds it by the number of remaining bytes.
    fn count(&mut self) -> Read<usize> {
        let left = (self.bytes.len() - self.at) as u64;
        let count = self.number()?;
        if count <= left {
            Ok(count as usize)
        } else {
            self.malformed(format!("{count} items do not fit into {left} bytes"))
        }
    }

    fn string(&mut self) -> Read<&'b str> {
        let length = self.count()?;
        let Some(bytes) = self.bytes.get(self.at..self.at + length) else { return self.malformed("truncated string") };
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                self.at += length;
                Ok(text)
            }
            Err(_) => self.malformed("a string is not UTF-8"),
        }
    }

    /// Reads an index into a list and returns the item.
    #[inline]
    fn one_of<T: Copy>(&mut self, list: &[T], what: &str) -> Read<T> {
        let byte = self.byte()?;
        match list.get(usize::from(byte)) {
            Some(&found) => Ok(found),
            None => self.malformed(format!("unknown {what} {byte}")),
        }
    }

    fn ty(&mut self) -> Read<Type> {
        self.one_of(&Type::ALL, "type")
    }

    fn literal(&mut self) -> Read<Option<Literal>> {
        match self.byte()? {
            0 => Ok(None),
            tag => self.of_type(u64::from(tag) - 1).map(Some),
        }
    }

    fn module(mut self) -> Read<Module> {
        for _ in 0..self.count()? {
            let name = self.string()?;
            let (plain, typed) = name.strip_suffix(TYPED).map_or((name, false), |plain| (plain, true));
            let accesses = |row: &&OpInfo| matches!(row.kind, Kind::Access | Kind::Atomic);
            let Some(row) = OpInfo::named(plain).filter(|row| !typed || accesses(row)) else {
                return self.malformed(format!("unknown operation `{name}`: the file may be of a newer version"));
            };
            if self.ops.iter().any(|known| std::ptr::eq(known.0, row) && known.1 == typed) {
                return self.malformed(format!("duplicate operation `{name}`"));
            }
            self.ops.push((row, typed));
        }
        let mut programs = Vec::new();
        let count = self.count()?;
        for _ in 0..count {
            programs.push(self.program(count == 1)?);
        }
        let mut pipelines = Vec::new();
        if self.at != self.bytes.len() {
            let count = self.count()?;
            if count == 0 && self.at == self.bytes.len() {
                return self.malformed("an empty list of pipelines must be omitted");
            }
            for _ in 0..count {
                pipelines.push(self.pipeline()?);
            }
        }
        if self.at != self.bytes.len() {
            self.sources(&mut programs)?;
        }
        if self.at != self.bytes.len() {
            return self.malformed("trailing bytes after the last location");
        }
        if self.used_ops != self.ops.len() {
            return self.malformed("a listed operation is unused");
        }
        Ok(Module { programs, pipelines })
    }

    fn sources(&mut self, programs: &mut [Program]) -> Read<()> {
        let mut files: Vec<Arc<str>> = Vec::new();
        for _ in 0..self.count()? {
            let file = self.string()?;
            if files.last().is_some_and(|last| **last >= *file) {
                return self.malformed("files are not sorted");
            }
            files.push(file.into());
        }
        let (mut tables, mut last, mut used_files) = (Places::default(), None, 0);
        for _ in 0..self.count()? {
            let file = self.number_below(files.len() as u64, "file")?;
            let (number, text) = (self.word()?, self.string()?);
            if file > used_files || last.is_some_and(|last| last >= (file, number, text)) {
                return self.malformed("lines are not sorted, or a file is unused");
            }
            last = Some((file, number, text));
            used_files = file + 1;
            let file = Arc::clone(&files[file as usize]);
            tables.lines.push(Line { file, number, text: text.into() });
        }
        let (mut last, mut used_lines) = (None, 0);
        for _ in 0..self.count()? {
            let before = used_lines.max(1) - 1;
            let line = self.number_below((tables.lines.len() as u64).saturating_sub(before), "line")? + before;
            let (column, width) = (self.word()?, self.word()?);
            if line > used_lines || last.is_some_and(|last| last >= (line, column, width)) {
                return self.malformed("places are not sorted, or a line is unused");
            }
            last = Some((line, column, width));
            used_lines = line + 1;
            tables.places.push(Place { line: line as u32, column, width });
        }
        let (mut used, lines) = (vec![false; tables.places.len()], tables.lines.len());
        let sources = SourceMap::of_places(tables);
        for program in programs {
            for id in program.constants().keys() {
                program.constant_mut(id).span = self.location(&mut used)?;
            }
            for id in program.memories().keys() {
                program.memory_mut(id).span = self.location(&mut used)?;
            }
            for id in program.reachable_insts() {
                program.inst_mut(id).span = self.location(&mut used)?;
            }
            program.set_sources(sources.clone());
        }
        let all_lines = used_files == files.len() as u64 && used_lines == lines as u64;
        if !all_lines || used.is_empty() || used.contains(&false) {
            return self.malformed("a file, line or place is unused");
        }
        Ok(())
    }

    /// Reads a location and marks its place as used.
    fn location(&mut self, used: &mut [bool]) -> Read<Span> {
        let place = self.number_below(used.len() as u64 + 1, "place")? as u32;
        Ok(match place.checked_sub(1) {
            None => Span::NONE,
            Some(start) => {
                used[start as usize] = true;
                Span { start, end: place }
            }
        })
    }

    fn sizes(&mut self) -> Read<[u32; 3]> {
        Ok([self.word()?, self.word()?, self.word()?])
    }

    /// Reads a program. `is_only`: all remaining bytes belong to it.
    fn program(&mut self, is_only: bool) -> Read<Program> {
        let name = self.string()?;
        let mut program = Program::new(name, self.sizes()?);
        let attributes = self.byte()?;
        if attributes & !(LAUNCH | FAST) != 0 {
            return self.malformed(format!("unknown attributes {attributes}"));
        }
        program.set_fast(attributes & FAST != 0);
        program.set_launch(if attributes & LAUNCH != 0 { Some(self.sizes()?) } else { None });
        let mut values = Vec::new();
        for _ in 0..self.count()? {
            let name = self.string()?;
            let Some(default) = self.literal()? else { return self.malformed("a constant has no value") };
            values.push(program.add_constant(name, default, Span::NONE));
        }
        for _ in 0..self.count()? {
            let memory = self.memory()?;
            program.add_memory(memory);
        }
        // An instruction takes about ten bytes; the estimate avoids reallocations.
        let about = if is_only { (self.bytes.len() - self.at) / 10 } else { 0 };
        program.reserve(about);
        values.reserve(about);
        let body = program.body();
        self.block(&mut program, &mut values, body, 0)?;
        Ok(program)
    }

    fn pipeline(&mut self) -> Read<Pipeline> {
        let name = self.string()?.to_owned();
        let budget = match self.literal()? {
            None => None,
            Some(Literal { ty: Type::U64, bits }) => Some(bits),
            Some(_) => return self.malformed("a budget is not a u64"),
        };
        let mut pipeline = Pipeline { name, budget, ..Pipeline::default() };
        for _ in 0..self.count()? {
            let name = self.string()?.to_owned();
            let role = self.one_of(&Role::ALL, "kind of buffer")?;
            let (element, length) = (self.element()?, self.word()?);
            pipeline.buffers.push(Buffer { name, role, element, length, span: Span::NONE });
        }
        for _ in 0..self.count()? {
            let program = self.string()?.to_owned();
            let grid = match self.byte()? {
                0 => Grid::Groups(self.sizes()?),
                1 => Grid::Elements(self.sizes()?),
                kind => return self.malformed(format!("unknown grid kind {kind}")),
            };
            let mut arguments = Vec::new();
            for _ in 0..self.count()? {
                let name = self.string()?.to_owned();
                let argument = self.number()?;
                let argument = if argument & 1 == 1 {
                    Argument::Scalar(self.of_type(argument >> 1)?)
                } else if argument >> 1 < pipeline.buffers.len() as u64 {
                    Argument::Buffer(BufferId::from_index((argument >> 1) as usize))
                } else {
                    return self.malformed(format!("unknown buffer {}", argument >> 1));
                };
                arguments.push((name, argument));
            }
            pipeline.dispatches.push(Dispatch { program, grid, arguments, span: Span::NONE });
        }
        Ok(pipeline)
    }

    /// Reads a literal of the type with this number.
    fn of_type(&mut self, number: u64) -> Read<Literal> {
        let ty = usize::try_from(number).ok().and_then(|ty| Type::ALL.get(ty));
        let Some(&ty) = ty else { return self.malformed(format!("unknown type {number}")) };
        let bits = self.number()?;
        if bits <= u64::MAX >> (64 - ty.bits()) {
            Ok(Literal { ty, bits })
        } else {
            self.malformed(format!("a literal has more bits than {ty}"))
        }
    }

    fn element(&mut self) -> Read<Element> {
        self.one_of(&Element::ALL, "element type")
    }

    /// Reads a memory operand, whose type is written only if it differs from the declared one.
    fn mem_operand(&mut self, declared: MemOperand, row: &OpInfo, typed: bool) -> Read<MemOperand> {
        if !typed {
            return Ok(declared);
        }
        let byte = self.byte()?;
        let (element, atomic) = (Element::ALL.get(usize::from(byte & !ATOMIC)), byte & ATOMIC != 0);
        let Some(&element) = element else { return self.malformed(format!("unknown element type {byte}")) };
        let operand = MemOperand { element, atomic, ..declared };
        if operand == declared || (row.kind == Kind::Atomic && !atomic) {
            return self.malformed("the type of an access repeats the declared one, or is not atomic");
        }
        Ok(operand)
    }

    fn memory(&mut self) -> Read<Memory> {
        let name = self.string()?.to_owned();
        let flags = self.byte()?;
        let Some(&space) = SPACES.get(usize::from(flags & 0xf)).filter(|_| flags < 0x40) else {
            return self.malformed(format!("unknown memory kind {flags}"));
        };
        let (element, length) = (self.element()?, self.word()?);
        let known = flags & 0x20 != 0;
        if !known && length != 0 {
            return self.malformed("an object without a declared length has a length");
        }
        let default = self.literal()?;
        let (atomic, length) = (flags & 0x10 != 0, known.then_some(length));
        Ok(Memory { name, space, element, length, atomic, default, span: Span::NONE })
    }

    fn block(&mut self, program: &mut Program, values: &mut Vec<ValueId>, block: BlockId, depth: usize) -> Read<()> {
        if depth > MAX_DEPTH {
            return self.malformed(format!("blocks are nested more than {MAX_DEPTH} deep"));
        }
        for _ in 0..self.count()? {
            let ty = self.ty()?;
            values.push(program.add_param(block, ty));
        }
        let start = self.insts.len();
        for _ in 0..self.count()? {
            let inst = self.inst(program, values, depth)?;
            self.insts.push(inst);
        }
        program.block_mut(block).insts = self.insts[start..].into();
        self.insts.truncate(start);
        Ok(())
    }

    fn inst(&mut self, program: &mut Program, values: &mut Vec<ValueId>, depth: usize) -> Read<InstId> {
        let number = self.number_below(self.ops.len() as u64, "operation")? as usize;
        if number > self.used_ops {
            return self.malformed("operations are not in the order of their first use");
        }
        self.used_ops = self.used_ops.max(number + 1);
        let (row, typed) = self.ops[number];

        let (text, mut cases);
        let payload = match row.form {
            Form::Plain(_) | Form::Convert { .. } | Form::Exit | Form::Trap | Form::If | Form::Loop => Payload::None,
            Form::PerAxis => Payload::Axis(self.one_of(&Axis::ALL, "axis")?),
            Form::Print | Form::Region => {
                text = self.string()?;
                Payload::Text(text)
            }
            Form::Switch => {
                cases = Vec::new();
                for _ in 0..self.count()? {
                    cases.push(self.word()?);
                }
                Payload::Cases(&cases)
            }
            Form::Load | Form::Store | Form::Length | Form::Atomic(_) | Form::CompareExchange => {
                let memory = self.number_below(program.memories().len() as u64, "memory object")?;
                let memory = MemId::from_index(memory as usize);
                match row.form {
                    Form::Length => Payload::Object(memory),
                    _ => Payload::Memory(self.mem_operand(declared(program, row, memory), row, typed)?),
                }
            }
        };
        let op = row.op(payload).expect("the form determines the payload");

        let mut operands = Values::new();
        for _ in 0..self.count()? {
            let operand = self.number()?;
            operands.push(if operand & 1 == 1 {
                program.literal(self.of_type(operand >> 1)?)
            } else {
                match usize::try_from(operand >> 1).ok().and_then(|value| values.get(value)) {
                    Some(&value) => value,
                    None => return self.malformed(format!("value {} is used before its definition", operand >> 1)),
                }
            });
        }
        self.types.clear();
        for _ in 0..self.count()? {
            let ty = self.ty()?;
            self.types.push(ty);
        }
        let nested = self.count()?;
        let blocks = (0..nested).map(|_| program.add_block()).collect();
        let inst = Inst { op, operands, results: Values::new(), blocks, span: Span::NONE };
        let id = program.add(inst, &self.types);
        for position in 0..nested {
            let nested = program.inst(id).blocks[position];
            self.block(program, values, nested, depth + 1)?;
        }
        values.extend_from_slice(&program.inst(id).results);
        Ok(id)
    }
}
