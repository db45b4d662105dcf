//! Modules, programs and their entities: memory objects, constants, values, instructions and blocks.

use std::borrow::Borrow;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::clone::{Cloner, Verbatim};
use super::entity::{Arena, BlockId, ConstantId, Entity, InstId, MemId, SecondaryMap, ValueId};
use super::ops::{Control, Form, MemOperand, Op, PerGroup, Slot, Terminator};
use super::pipeline::Pipeline;
use super::source::{SourceLoc, SourceMap, Span};
use super::types::{Element, Literal, Type};
use crate::Error;

/// A file of programs and pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct Module<P = Program> {
    /// Programs, in file order, with distinct names.
    pub programs: Vec<P>,
    /// Pipelines, in file order, with names distinct from each other and from those of programs.
    pub pipelines: Vec<Pipeline>,
}

impl<P: Borrow<Program>> Module<P> {
    /// The program with this name.
    pub fn program(&self, name: &str) -> Option<&P> {
        self.programs.iter().find(|program| Borrow::<Program>::borrow(*program).name() == name)
    }
}

impl Module {
    /// Sets the file name of sources that have none.
    pub fn set_file(&mut self, file: &str) {
        let mut named: Option<(SourceMap, SourceMap)> = None;
        for program in &mut self.programs {
            if named.as_ref().is_none_or(|(old, _)| *old != program.sources) {
                named = Some((program.sources.clone(), program.sources.with_file(file)));
            }
            if let Some((_, new)) = &named {
                program.sources = new.clone();
            }
        }
    }
}

impl<P> Default for Module<P> {
    fn default() -> Self {
        Module { programs: Vec::new(), pipelines: Vec::new() }
    }
}

impl<P> From<P> for Module<P> {
    /// A module of one program.
    fn from(program: P) -> Self {
        Module { programs: vec![program], pipelines: Vec::new() }
    }
}

/// One kernel.
///
/// Entities live in arenas and refer to each other by id. The arenas may hold dead entities: a program consists of the entities reachable
/// from its body. Methods that add or remove entities keep two invariants: equal literals are one value, and
/// results and parameters link to their definitions. Equality is [structural](Program#impl-PartialEq-for-Program).
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    workgroup_size: [u32; 3],
    launch: Option<[u32; 3]>,
    fast: bool,
    constants: Arena<ConstantId, Constant>,
    memory: Arena<MemId, Memory>,
    values: Arena<ValueId, Value>,
    insts: Arena<InstId, Inst>,
    blocks: Arena<BlockId, Block>,
    body: BlockId,
    names: FxHashMap<ValueId, Box<str>>,
    sources: SourceMap,
    literals: FxHashMap<Literal, ValueId>,
}

/// Specialization constant: a named value that is fixed at compile time.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// The name, an identifier.
    pub name: String,
    /// Value, unless [`Program::specialize`] replaces it. Its type is the type of the constant.
    pub default: Literal,
    /// Source location of the declaration.
    pub span: Span,
}

/// A memory object.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The name, an identifier: the caller binds storage and uniforms by it.
    pub name: String,
    /// Address space.
    pub space: Space,
    /// Element type of the argument, and of accesses without an explicit type.
    pub element: Element,
    /// Number of elements; `None` if the argument determines it. A uniform has one.
    pub length: Option<u32>,
    /// True if accesses without an explicit type are atomic.
    pub atomic: bool,
    /// Default value of a uniform.
    pub default: Option<Literal>,
    /// Source location of the declaration.
    pub span: Span,
}

/// Address space of a memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Bound by the caller; outlives the dispatch.
    Storage(Access),
    /// One scalar argument, constant during the dispatch.
    Uniform,
    /// One array for each workgroup.
    Workgroup,
    /// One array for each invocation.
    Private,
}

/// Access mode of a storage object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Load only.
    Read,
    /// Store only.
    Write,
    /// Both, and atomics.
    ReadWrite,
    /// Load only: an array of uniforms.
    Constant,
}

impl Memory {
    /// Returns true if a program may load from this object.
    pub fn readable(&self) -> bool {
        self.space != Space::Storage(Access::Write)
    }

    /// Returns true if a program may store to this object.
    pub fn writable(&self) -> bool {
        !matches!(self.space, Space::Storage(Access::Read | Access::Constant) | Space::Uniform)
    }

    /// Size in bytes, if the length is known before dispatch.
    pub fn static_bytes(&self) -> Option<u64> {
        self.length.map(|length| u64::from(length) * self.element.size() as u64)
    }
}

/// An SSA value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The type.
    pub ty: Type,
    /// The definition.
    pub def: Def,
}

/// Definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Result of an instruction, with its index.
    Result(InstId, u32),
    /// Parameter of a block, with its index.
    Param(BlockId, u32),
    /// Literal, by its bits. Literals are in scope everywhere and are defined in no block.
    Literal(u64),
    /// Specialization constant, in scope everywhere.
    Constant(ConstantId),
}

/// A short list of values.
pub type Values = SmallVec<[ValueId; 4]>;

/// Types of the results of an instruction.
pub type ResultTypes = SmallVec<[Type; 4]>;

/// An instruction.
#[derive(Debug)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// Operands. The index of an access comes first.
    pub operands: Values,
    /// Values that it defines.
    pub results: Values,
    /// Nested blocks: `if` has two, `switch` one for each case and one for the default, `loop` and `region` one.
    pub blocks: SmallVec<[BlockId; 2]>,
    /// Source location.
    pub span: Span,
}

impl Inst {
    /// Number of consecutive elements that an access touches: the results of a load, the values of a store, one of an atomic. Other
    /// instructions touch none.
    pub fn accessed_elements(&self) -> usize {
        match self.op {
            Op::Load(_) => self.results.len(),
            Op::Store(_) => self.operands.len().saturating_sub(1),
            Op::Atomic(..) | Op::CompareExchange(_) => 1,
            Op::Pure(_)
            | Op::PerInvocation(_)
            | Op::PerGroup(_)
            | Op::Barrier(_)
            | Op::Broadcast
            | Op::Subgroup(_)
            | Op::Print(_)
            | Op::Control(_)
            | Op::Terminator(_) => 0,
        }
    }
}

/// Copies the id lists as slices, in a third of the time that `SmallVec::clone` takes: the optimizer copies programs a lot.
impl Clone for Inst {
    fn clone(&self) -> Self {
        Inst {
            op: self.op.clone(),
            operands: Values::from_slice(&self.operands),
            results: Values::from_slice(&self.results),
            blocks: SmallVec::from_slice(&self.blocks),
            span: self.span,
        }
    }
}

/// A list of instructions, the last of which is the only terminator.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Loop-carried values; other blocks have none.
    pub params: Values,
    /// The instructions.
    pub insts: Vec<InstId>,
}

/// Type error of an operation and its operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeError {
    /// An operand has the wrong type.
    Operand {
        /// Index of the operand.
        position: usize,
        /// Expected types, in words.
        expected: String,
        /// Actual type.
        found: Type,
    },
    /// Wrong number of operands.
    Count {
        /// Expected number, in words.
        expected: &'static str,
        /// Actual number.
        found: usize,
    },
    /// Bitcast between types of different widths.
    Width {
        /// Type of the operand.
        from: Type,
        /// Type of the result.
        to: Type,
    },
}

impl Program {
    /// A program without memory objects, whose body is an empty block without a terminator.
    pub fn new(name: impl Into<String>, workgroup_size: [u32; 3]) -> Program {
        let mut blocks = Arena::default();
        let body = blocks.push(Block::default());
        Program {
            name: name.into(),
            workgroup_size,
            launch: None,
            fast: false,
            constants: Arena::default(),
            memory: Arena::default(),
            values: Arena::default(),
            insts: Arena::default(),
            blocks,
            body,
            names: FxHashMap::default(),
            sources: SourceMap::default(),
            literals: FxHashMap::default(),
        }
    }

    /// The name, an identifier.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Replaces the name.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.name = name.into();
    }

    /// Invocations of a workgroup in each dimension.
    #[inline]
    pub fn workgroup_size(&self) -> [u32; 3] {
        self.workgroup_size
    }

    /// Replaces the workgroup size.
    pub fn set_workgroup_size(&mut self, size: [u32; 3]) {
        self.workgroup_size = size;
    }

    /// Default grid, in invocations.
    #[inline]
    pub fn launch(&self) -> Option<[u32; 3]> {
        self.launch
    }

    /// Replaces the default grid.
    pub fn set_launch(&mut self, invocations: Option<[u32; 3]>) {
        self.launch = invocations;
    }

    /// Returns true under fast-math: the device may use its own functions and roundings for floats, and its compiler may contract and
    /// reassociate them. Devices whose floats are exact at no cost ignore it.
    #[inline]
    pub fn is_fast(&self) -> bool {
        self.fast
    }

    /// Enables or disables fast-math.
    pub fn set_fast(&mut self, fast: bool) {
        self.fast = fast;
    }

    /// The block that every invocation executes. It has no parameters and ends in `return` or `trap`.
    #[inline]
    pub fn body(&self) -> BlockId {
        self.body
    }

    /// An instruction.
    #[inline]
    pub fn inst(&self, id: InstId) -> &Inst {
        &self.insts[id]
    }

    /// An instruction, mutably.
    #[inline]
    pub fn inst_mut(&mut self, id: InstId) -> &mut Inst {
        &mut self.insts[id]
    }

    /// All instructions, reachable or not.
    #[inline]
    pub fn insts(&self) -> &Arena<InstId, Inst> {
        &self.insts
    }

    /// A block.
    #[inline]
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    /// A block, mutably.
    #[inline]
    pub fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id]
    }

    /// All blocks, reachable or not.
    #[inline]
    pub fn blocks(&self) -> &Arena<BlockId, Block> {
        &self.blocks
    }

    /// A value: its type and definition.
    #[inline]
    pub fn value(&self, id: ValueId) -> Value {
        self.values[id]
    }

    /// The type of a value.
    #[inline]
    pub fn ty(&self, value: ValueId) -> Type {
        self.values[value].ty
    }

    /// The definition of a value.
    #[inline]
    pub fn def(&self, value: ValueId) -> Def {
        self.values[value].def
    }

    /// All values, used or not.
    #[inline]
    pub fn values(&self) -> &Arena<ValueId, Value> {
        &self.values
    }

    /// A memory object.
    #[inline]
    pub fn memory(&self, id: MemId) -> &Memory {
        &self.memory[id]
    }

    /// A memory object, mutably.
    #[inline]
    pub fn memory_mut(&mut self, id: MemId) -> &mut Memory {
        &mut self.memory[id]
    }

    /// Memory operand of an access with the declared type of its object.
    #[inline]
    pub fn operand(&self, memory: MemId) -> MemOperand {
        let Memory { element, atomic, .. } = self.memory[memory];
        MemOperand { memory, element, atomic }
    }

    /// All memory objects, in the order of their declaration.
    #[inline]
    pub fn memories(&self) -> &Arena<MemId, Memory> {
        &self.memory
    }

    /// A specialization constant.
    #[inline]
    pub fn constant(&self, id: ConstantId) -> &Constant {
        &self.constants[id]
    }

    /// A specialization constant, mutably.
    #[inline]
    pub fn constant_mut(&mut self, id: ConstantId) -> &mut Constant {
        &mut self.constants[id]
    }

    /// All specialization constants, in the order of their declaration.
    #[inline]
    pub fn constants(&self) -> &Arena<ConstantId, Constant> {
        &self.constants
    }

    /// Debug name of a value. Debug names have no meaning.
    pub fn value_name(&self, value: ValueId) -> Option<&str> {
        self.names.get(&value).map(|name| &**name)
    }

    /// Gives a value a debug name.
    pub fn set_value_name(&mut self, value: ValueId, name: impl Into<Box<str>>) {
        self.names.insert(value, name.into());
    }

    /// All debug names, in no particular order.
    pub fn value_names(&self) -> impl ExactSizeIterator<Item = (ValueId, &str)> {
        self.names.iter().map(|(&value, name)| (value, &**name))
    }

    /// Removes all debug names.
    pub fn strip_value_names(&mut self) {
        self.names.clear();
    }

    /// Sources of the spans.
    #[inline]
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    /// Replaces the sources. Spans are not relocated: they become positions of the new sources.
    pub fn set_sources(&mut self, sources: SourceMap) {
        self.sources = sources;
    }

    pub(crate) fn sources_mut(&mut self) -> &mut SourceMap {
        &mut self.sources
    }

    /// File, line and column of a span. Synthesized code has none.
    pub fn locate(&self, span: Span) -> Option<SourceLoc> {
        self.sources.locate(span)
    }

    /// The value of a literal. Equal literals are one value.
    pub fn literal(&mut self, literal: impl Into<Literal>) -> ValueId {
        let literal = literal.into();
        let values = &mut self.values;
        *self
            .literals
            .entry(literal)
            .or_insert_with(|| values.push(Value { ty: literal.ty, def: Def::Literal(literal.bits) }))
    }

    /// Declares a memory object.
    pub fn add_memory(&mut self, memory: Memory) -> MemId {
        self.memory.push(memory)
    }

    /// Removes the memory objects for which a function returns false, and renumbers the others. No reachable instruction may access a
    /// removed object.
    pub fn retain_memories(&mut self, keep: impl Fn(MemId, &Memory) -> bool) {
        let old = std::mem::take(&mut self.memory);
        let mut moved = SecondaryMap::with_capacity(old.len(), None);
        for (id, memory) in old.iter().filter(|(id, memory)| keep(*id, memory)) {
            moved[id] = Some(self.memory.push(memory.clone()));
        }
        for id in self.insts.keys() {
            let op = &mut self.insts[id].op;
            if let Some(memory) = op.memory().and_then(|memory| moved[memory]) {
                *op = op.on(memory);
            }
        }
    }

    /// Declares a specialization constant and returns its value.
    pub fn add_constant(&mut self, name: impl Into<String>, default: Literal, span: Span) -> ValueId {
        let constant = self.constants.push(Constant { name: name.into(), default, span });
        self.values.push(Value { ty: default.ty, def: Def::Constant(constant) })
    }

    /// Removes a specialization constant whose value is unused, and renumbers the constants after it.
    pub fn remove_constant(&mut self, removed: ConstantId) {
        let old = std::mem::take(&mut self.constants);
        let mut moved = SecondaryMap::with_capacity(old.len(), None);
        for (id, constant) in old.iter().filter(|(id, _)| *id != removed) {
            moved[id] = Some(self.constants.push(constant.clone()));
        }
        for id in self.values.keys() {
            let def = &mut self.values[id].def;
            if let Def::Constant(constant) = *def {
                // The unused value needs a definition.
                *def = moved[constant].map_or(Def::Literal(0), Def::Constant);
            }
        }
    }

    /// Adds a parameter to a block.
    pub fn add_param(&mut self, block: BlockId, ty: Type) -> ValueId {
        let position = self.blocks[block].params.len() as u32;
        let value = self.values.push(Value { ty, def: Def::Param(block, position) });
        self.blocks[block].params.push(value);
        value
    }

    /// Keeps the parameters of a block for which `keep` is true. Returns true if that removed any.
    pub(crate) fn retain_params(&mut self, block: BlockId, keep: &[bool]) -> bool {
        let changed = retain(&mut self.blocks[block].params, keep);
        self.link(self.blocks[block].params.clone(), |position| Def::Param(block, position));
        changed
    }

    /// Adds a result to an instruction.
    pub(crate) fn add_result(&mut self, inst: InstId, ty: Type) -> ValueId {
        let position = self.insts[inst].results.len() as u32;
        let value = self.values.push(Value { ty, def: Def::Result(inst, position) });
        self.insts[inst].results.push(value);
        value
    }

    /// Keeps the results of an instruction for which `keep` is true. Returns true if that removed any.
    pub(crate) fn retain_results(&mut self, inst: InstId, keep: &[bool]) -> bool {
        let changed = retain(&mut self.insts[inst].results, keep);
        self.link(self.insts[inst].results.clone(), |position| Def::Result(inst, position));
        changed
    }

    /// Links parameters or results to their definition, by position.
    fn link(&mut self, values: Values, definition: impl Fn(u32) -> Def) {
        for (position, value) in (0..).zip(values) {
            self.values[value].def = definition(position);
        }
    }

    /// Keeps the operands of an instruction for which `keep` is true. Returns true if that removed any.
    pub(crate) fn retain_operands(&mut self, inst: InstId, keep: &[bool]) -> bool {
        retain(&mut self.insts[inst].operands, keep)
    }

    /// Moves the results of one instruction to the end of the results of another; the values keep their ids.
    pub(crate) fn move_results(&mut self, from: InstId, to: InstId) {
        for value in std::mem::take(&mut self.insts[from].results) {
            let position = self.insts[to].results.len() as u32;
            self.values[value].def = Def::Result(to, position);
            self.insts[to].results.push(value);
        }
    }

    /// Adds an empty block, to be nested in an instruction.
    pub fn add_block(&mut self) -> BlockId {
        self.blocks.push(Block::default())
    }

    /// Reserves room for `additional` instructions of one result.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.insts.reserve(additional);
        self.values.reserve(additional);
    }

    /// Appends an instruction to a block, with one new value for each result type.
    pub fn push(
        &mut self,
        block: BlockId,
        op: impl Into<Op>,
        operands: impl IntoIterator<Item = ValueId>,
        results: &[Type],
        blocks: impl IntoIterator<Item = BlockId>,
        span: Span,
    ) -> InstId {
        let inst = self.make(op, operands, results, blocks, span);
        self.blocks[block].insts.push(inst);
        inst
    }

    /// Makes an instruction in no block, with one new value for each result type.
    pub fn make(
        &mut self,
        op: impl Into<Op>,
        operands: impl IntoIterator<Item = ValueId>,
        results: &[Type],
        blocks: impl IntoIterator<Item = BlockId>,
        span: Span,
    ) -> InstId {
        let operands = operands.into_iter().collect();
        let blocks = blocks.into_iter().collect();
        self.add(Inst { op: op.into(), operands, results: smallvec![], blocks, span }, results)
    }

    /// Makes an instruction in no block, with one result.
    pub fn make_value(&mut self, op: impl Into<Op>, operands: &[ValueId], ty: Type, span: Span) -> (InstId, ValueId) {
        let inst = self.make(op, operands.iter().copied(), &[ty], [], span);
        (inst, self.insts[inst].results[0])
    }

    /// Makes an `if` in no block, without results and with an empty else-block. `fill` appends to the then-block.
    pub fn make_guard(&mut self, condition: ValueId, span: Span, fill: impl FnOnce(&mut Program, BlockId)) -> InstId {
        let (then, otherwise) = (self.add_block(), self.add_block());
        fill(self, then);
        for block in [then, otherwise] {
            self.push(block, Terminator::Yield, [], &[], [], span);
        }
        self.make(Control::If, [condition], &[], [then, otherwise], span)
    }

    /// A name derived from `wish` that no memory object or constant has.
    pub fn unused_name(&self, wish: &str) -> String {
        let taken = |name: &str| {
            self.memory.values().any(|memory| memory.name == name)
                || self.constants.values().any(|constant| constant.name == name)
        };
        let numbered = (2..).map(|number| format!("{wish}_{number}"));
        std::iter::once(wish.to_owned()).chain(numbered).find(|name| !taken(name)).expect("the numbers are unbounded")
    }

    /// Adds an instruction in no block, with one new value for each result type.
    pub(crate) fn add(&mut self, mut inst: Inst, results: &[Type]) -> InstId {
        let id = InstId::from_index(self.insts.len());
        for (position, &ty) in results.iter().enumerate() {
            inst.results.push(self.values.push(Value { ty, def: Def::Result(id, position as u32) }));
        }
        self.insts.push(inst)
    }

    /// Value of a literal, or default of a specialization constant.
    pub fn known(&self, value: ValueId) -> Option<Literal> {
        let Value { ty, def } = self.values[value];
        match def {
            Def::Literal(bits) => Some(Literal { ty, bits }),
            Def::Constant(constant) => Some(self.constants[constant].default),
            Def::Result(..) | Def::Param(..) => None,
        }
    }

    /// Marks the memory objects with a reachable store or atomic.
    pub fn written(&self) -> SecondaryMap<MemId, bool> {
        let mut written = SecondaryMap::with_capacity(self.memory.len(), false);
        self.walk(|inst, _| {
            let op = &self.insts[inst].op;
            if let (Some(memory), true) = (op.memory(), !matches!(op, Op::Load(_) | Op::PerGroup(PerGroup::Length(_))))
            {
                written[memory] = true;
            }
        });
        written
    }

    /// The memory object with this name.
    pub fn memory_named(&self, name: &str) -> Option<MemId> {
        self.memory.iter().find(|(_, memory)| memory.name == name).map(|(id, _)| id)
    }

    /// Operation name for reports of dispatches: the name of the only region if it is the whole body, otherwise of the program.
    pub fn entry_op(&self) -> Option<&str> {
        let mut insts = self.blocks[self.body].insts.iter().map(|&inst| &self.insts[inst].op);
        match (insts.next(), insts.next(), insts.next()) {
            (Some(Op::Control(Control::Region(op))), Some(_), None) => Some(op),
            _ => Some(self.name.as_str()).filter(|name| !name.is_empty()),
        }
    }

    /// Removes the entities that are unreachable from the body, and renumbers the others in the order of the text.
    pub fn compact(&mut self) {
        let empty = Program::new(std::mem::take(&mut self.name), self.workgroup_size);
        let mut old = std::mem::replace(self, empty);
        self.launch = old.launch;
        self.fast = old.fast;
        self.sources = std::mem::take(&mut old.sources);
        self.constants = std::mem::take(&mut old.constants);
        self.memory = std::mem::take(&mut old.memory);
        let names = std::mem::take(&mut old.names);
        let (from, to) = (old.body, self.body);
        let mut cloner = Cloner::between(&old, self);
        // Unused constants are kept, too.
        for (value, definition) in old.values.iter() {
            if matches!(definition.def, Def::Constant(_)) {
                let constant = cloner.target.values.push(*definition);
                cloner.define(value, constant);
            }
        }
        cloner.block(from, to, &mut Verbatim);
        let values = cloner.into_values();
        self.names = names.into_iter().filter_map(|(value, name)| Some((values[value]?, name))).collect();
    }

    /// Specializes the program: replaces the default of a specialization constant, or the loads of a uniform by a literal. The uniform
    /// stays declared, and need not be bound.
    ///
    /// # Errors
    /// The program has no such constant or uniform, or it has another type.
    pub fn specialize(&mut self, name: &str, value: Literal) -> Result<(), Error> {
        let constant = self.constants.iter().find(|(_, constant)| constant.name == name);
        let uniform = self.memory.iter().find(|(_, memory)| memory.name == name && memory.space == Space::Uniform);
        let declared = match (constant, uniform) {
            (Some((_, constant)), _) => constant.default.ty,
            (None, Some((_, memory))) => memory.element.value_type(),
            (None, None) => {
                let uniforms = self.memory.values().filter(|memory| memory.space == Space::Uniform);
                let constants = self.constants.values().map(|constant| &constant.name);
                let known = constants.chain(uniforms.map(|memory| &memory.name)).cloned().collect();
                return Err(Error::UnknownConstant { name: name.into(), known });
            }
        };
        if declared != value.ty {
            return Err(Error::ConstantType { name: name.into(), declared, given: value.ty });
        }
        match (constant.map(|(id, _)| id), uniform.map(|(id, _)| id)) {
            (Some(constant), _) => self.constants[constant].default = value,
            (None, Some(uniform)) => self.fix_uniform(uniform, value),
            (None, None) => {}
        }
        Ok(())
    }

    fn fix_uniform(&mut self, uniform: MemId, value: Literal) {
        let value = self.memory[uniform].element.truncate(value);
        self.memory[uniform].default = Some(value);
        let literal = self.literal(value);
        let mut loaded = FxHashSet::default();
        for block in self.blocks.keys() {
            self.retain_insts(block, |program, id| match program.insts[id].op {
                Op::Load(operand) if operand.memory == uniform => {
                    loaded.extend(program.insts[id].results.iter().copied());
                    false
                }
                _ => true,
            });
        }
        for id in self.insts.keys() {
            for operand in &mut self.insts[id].operands {
                if loaded.contains(operand) {
                    *operand = literal;
                }
            }
        }
    }

    /// Type parameter `T` of the signature for an instruction: the type of its operands in slots `T`, or if there are none, of its first
    /// operand or result.
    pub fn class(&self, inst: &Inst) -> Type {
        let place = match inst.op.info().form {
            Form::Plain(signature) => signature.operands.iter().position(|slot| *slot == Slot::T).unwrap_or(0),
            _ => 0,
        };
        let value = inst.operands.get(place).or(inst.results.first());
        value.map_or(Type::U32, |&value| self.ty(value))
    }

    /// Result types of `op` for these operands. `named` are the explicit types: the target of a conversion, the results of control flow,
    /// one for each element of a load.
    ///
    /// # Errors
    /// The operands do not match the signature. The results of control flow are checked at its exits.
    pub fn result_types(&self, op: &Op, operands: &[ValueId], named: &[Type]) -> Result<ResultTypes, TypeError> {
        let found: SmallVec<[Type; 4]> = operands.iter().map(|&value| self.ty(value)).collect();
        let operand = || op.operand().expect("an access has a memory operand");
        // A uniform is one scalar and has no index.
        let indices = |memory: MemId| usize::from(self.memory[memory].space != Space::Uniform);
        match op.info().form {
            Form::Plain(signature) => {
                let class = signature.operands.iter().zip(&found).find(|(slot, _)| **slot == Slot::T);
                let class = class.map_or(Type::U32, |(_, &ty)| ty);
                let resolve = |slot: &Slot| slot.of(class);
                if let Some(position) = signature.operands.iter().position(|slot| *slot == Slot::T)
                    && !signature.class.contains(class)
                {
                    let expected = format!("one of {}", signature.class);
                    return Err(TypeError::Operand { position, expected, found: class });
                }
                check(&found, signature.operands.iter().map(resolve))?;
                Ok(signature.results.iter().map(resolve).collect())
            }
            Form::Convert { same_size } => {
                let (&[from], &[to]) = (found.as_slice(), named) else {
                    return Err(TypeError::Count { expected: "1", found: found.len() });
                };
                if same_size && from.bits() != to.bits() {
                    return Err(TypeError::Width { from, to });
                }
                Ok(smallvec![to])
            }
            Form::PerAxis => check(&found, []).map(|()| smallvec![Type::U32]),
            Form::Load => {
                check(&found, std::iter::repeat_n(Type::U32, indices(operand().memory)))?;
                Ok(smallvec![operand().value_type(); named.len().max(1)])
            }
            Form::Store => {
                let indices = indices(operand().memory);
                let values = found.len().saturating_sub(indices);
                let index = std::iter::repeat_n(Type::U32, indices);
                check(&found, index.chain(std::iter::repeat_n(operand().value_type(), values)))?;
                if !(1..=4).contains(&values) {
                    return Err(TypeError::Count { expected: "an index and 1 to 4", found: found.len() });
                }
                Ok(smallvec![])
            }
            Form::Length => check(&found, []).map(|()| smallvec![Type::U32]),
            Form::Atomic(_) => {
                let element = operand().value_type();
                check(&found, [Type::U32, element]).map(|()| smallvec![element])
            }
            Form::CompareExchange => {
                let element = operand().value_type();
                check(&found, [Type::U32, element, element]).map(|()| smallvec![element, Type::Bool])
            }
            Form::If => check(&found, [Type::Bool]).map(|()| named.into()),
            Form::Switch => match found.as_slice() {
                [Type::I32 | Type::U32] => Ok(named.into()),
                &[found] => Err(TypeError::Operand { position: 0, expected: "i32 or u32".into(), found }),
                _ => Err(TypeError::Count { expected: "1", found: found.len() }),
            },
            Form::Region => check(&found, []).map(|()| named.into()),
            Form::Loop => Ok(named.into()),
            Form::Print | Form::Exit => Ok(smallvec![]),
            Form::Trap => check(&found, [Type::U32]).map(|()| smallvec![]),
        }
    }
}

/// Number of invocations of a grid; `None` from 2³² on, where `global_index` would not be unique.
pub fn total_invocations(groups: [u32; 3], workgroup_size: [u32; 3]) -> Option<u32> {
    if groups.contains(&0) {
        return Some(0);
    }
    groups.into_iter().chain(workgroup_size).try_fold(1u32, u32::checked_mul)
}

/// Keeps the values for which `keep` is true. Returns true if that removed any.
fn retain(values: &mut Values, keep: &[bool]) -> bool {
    let count = values.len();
    let mut keep = keep.iter();
    values.retain(|_| *keep.next().expect("one flag for each value"));
    values.len() < count
}

fn check(found: &[Type], expected: impl IntoIterator<Item = Type>) -> Result<(), TypeError> {
    let expected: SmallVec<[Type; 4]> = expected.into_iter().collect();
    if found.len() != expected.len() {
        const NUMBERS: [&str; 6] = ["no", "1", "2", "3", "4", "5"];
        return Err(TypeError::Count { expected: NUMBERS[expected.len().min(5)], found: found.len() });
    }
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        Some(position) => {
            Err(TypeError::Operand { position, expected: expected[position].to_string(), found: found[position] })
        }
        None => Ok(()),
    }
}
