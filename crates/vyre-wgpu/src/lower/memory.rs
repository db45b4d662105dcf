//! Memory objects and accesses to them, with the bounds checks of the semantics.
//!
//! An out-of-bounds index is never used: a load reads element 0 instead and yields 0, a store is skipped. In variants
//! with `parts`, a storage object may start anywhere in its binding, and an offset is added to its indices.
//!
//! An object accessed as elements of one type is an array of these. One that is accessed as several types is an array
//! of words, and its accesses convert: narrower elements are bit fields of a word, wider ones are two words.

use naga::{
    AddressSpace, AtomicFunction, Expression, GlobalVariable, PredeclaredType, Span, Statement, StorageAccess,
    SwitchCase, SwitchValue, VectorSize,
};
use rustc_hash::FxHashSet;
use vyre_foundation::analysis::Scope;
use vyre_foundation::ir::{
    AccessTypes, Atomic, Axis, Barrier, Def, Element, Inst, InstId, MemId, MemOperand, Op, PerGroup, PerInvocation,
    Space, Type, ValueId,
};

use super::build::{Expr, expr, scalar};
use super::control::is_word;
use super::{Lowerer, Mode, binding, read_only, writable};

/// Location of an object in the module.
#[derive(Clone)]
pub(super) enum Object {
    /// The value of a uniform, loaded at entry.
    Uniform(Expr),
    Array(Array),
}

/// An array.
#[derive(Clone)]
pub(super) struct Array {
    /// Variables that contain it: one, or several for a storage object too large for one binding.
    bases: Vec<Expr>,
    /// Declared element, the unit of `length` and `offset`.
    declared: Element,
    /// Type of the variables' elements.
    stored: Type,
    /// Number of elements, if the program uses it.
    length: Option<Expr>,
    /// Offset of the first element, for storage.
    offset: Option<Expr>,
    shape: Shape,
}

/// Representation of the elements of an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Elements of the declared type.
    Plain,
    /// Sub-word elements, extended to the type that loads return: in workgroup and private arrays.
    Extended,
    /// Several elements in each u32.
    Packed,
    /// Words, for accesses of several types.
    Words,
    /// Vectors of several elements.
    Vectors(VectorSize),
}

/// Bounds of an access.
#[derive(Clone, Copy)]
enum Inside {
    Always,
    Never,
    Where(Expr),
}

fn is_sub_word(element: Element) -> bool {
    matches!(element, Element::I8 | Element::U8 | Element::I16 | Element::U16)
}

impl Lowerer<'_> {
    /// Declares every object, and loads its length and offset if the program uses it.
    pub(super) fn declare_memory(&mut self) {
        let program = self.program;
        let mut used = vec![false; program.memories().len()];
        let types = AccessTypes::of(program);
        let mut stored = vec![false; program.memories().len()];
        // Stores to different elements of one word must not overwrite each other, so such words are atomic.
        let mut narrowly = vec![false; program.memories().len()];
        let mut measured = vec![false; program.memories().len()];
        program.walk(|id, _| {
            use vyre_foundation::ir::entity::Entity;
            let op = &program.inst(id).op;
            if let Some(memory) = op.memory() {
                used[memory.index()] = true;
                if let Op::Store(at) = op {
                    stored[memory.index()] = true;
                    narrowly[memory.index()] |= at.element.size() < 4;
                }
                measured[memory.index()] |= matches!(op, Op::PerGroup(PerGroup::Length(_))) || !self.is_in_bounds(id);
            }
        });
        let mut next_binding = 1;
        let mut objects = 0..;
        let facts = used.into_iter().zip(stored).zip(narrowly).zip(measured);
        for ((id, memory), (((used, stored), narrowly), measured)) in program.memories().iter().zip(facts) {
            let declared = memory.element;
            // Element type of all accesses, if they agree.
            let mut elements = types[id].elements();
            let (element, mixed) = (elements.next().unwrap_or(declared), elements.next().is_some());
            let value_ty = element.value_type();
            // Atomics on floats are on integers, but for loads and stores of f64.
            let atomics_64 = self.target.atomics_64 && element != Element::F64;
            let atomic = types[id].has_atomics() && (element.size() < 8 || atomics_64 || mixed);
            let object = match memory.space {
                Space::Uniform => {
                    if !used {
                        continue;
                    }
                    let value_ty = declared.value_type();
                    let word = self.control.object(id);
                    if is_word(value_ty) {
                        Object::Uniform(self.param(word))
                    } else {
                        let words = 0..value_ty.bits().div_ceil(32);
                        let words: Vec<Expr> = words.map(|offset| self.param(word + offset)).collect();
                        Object::Uniform(self.join_words(value_ty, &words))
                    }
                }
                Space::Storage(access) => {
                    let first = next_binding;
                    next_binding += self.variant.bindings(objects.next().unwrap_or_default());
                    if !used {
                        continue;
                    }
                    let in_one = first + 1 == next_binding;
                    let shape = match self.vectors(id, element).filter(|_| in_one && !mixed && !atomic) {
                        _ if mixed => Shape::Words,
                        Some(size) => Shape::Vectors(size),
                        None if is_sub_word(element) => Shape::Packed,
                        None => Shape::Plain,
                    };
                    let (stored, ty) = match shape {
                        Shape::Packed => (Type::U32, self.b.array_ty(Type::U32, None, stored)),
                        Shape::Words => (Type::U32, self.b.array_ty(Type::U32, None, atomic || narrowly)),
                        Shape::Vectors(size) => (value_ty, self.b.vectors_ty(value_ty, size)),
                        Shape::Plain | Shape::Extended => (value_ty, self.b.array_ty(value_ty, None, atomic)),
                    };
                    let space = match read_only(access, self.variant) {
                        true => AddressSpace::Storage { access: StorageAccess::LOAD },
                        false => writable(),
                    };
                    let bases = (first..next_binding).map(|number| {
                        let variable = binding(&memory.name, number, ty, space);
                        let variable = self.b.module.global_variables.append(variable, Span::UNDEFINED);
                        self.b.name(Expression::GlobalVariable(variable))
                    });
                    let bases = bases.collect();
                    let word = self.control.object(id);
                    let length = match memory.length {
                        Some(length) => Some(self.b.u32(length)),
                        None => measured.then(|| self.param(word)),
                    };
                    let offset = self.variant.parts.then(|| self.param(word + 1));
                    Object::Array(Array { bases, declared, stored, length, offset, shape })
                }
                Space::Workgroup | Space::Private => {
                    let length = memory.length.expect("only storage may have a length that is not known");
                    let bytes = u64::from(length) * declared.size() as u64;
                    let (stored, shape) = match () {
                        () if mixed => (Type::U32, Shape::Words),
                        () if is_sub_word(element) => (value_ty, Shape::Extended),
                        () => (value_ty, Shape::Plain),
                    };
                    let each = if mixed { Element::U32 } else { element };
                    let count = (bytes.div_ceil(each.size() as u64) as u32).max(1);
                    let ty = self.b.array_ty(stored, Some(count), atomic || (mixed && narrowly));
                    let base = if memory.space == Space::Private {
                        self.b.variable(&memory.name, ty)
                    } else {
                        self.workgroup_bytes += u64::from(count) * u64::from(scalar(stored).width);
                        self.workgroup(&memory.name, ty)
                    };
                    let length = Some(self.b.u32(length));
                    Object::Array(Array { bases: vec![base], declared, stored, length, offset: None, shape })
                }
            };
            self.objects[id] = Some(object);
        }
    }

    /// Vector size of a storage object accessed in whole vectors only.
    fn vectors(&self, memory: MemId, element: Element) -> Option<VectorSize> {
        let program = self.program;
        if self.variant.parts || !matches!(element, Element::I32 | Element::U32 | Element::F32) {
            return None;
        }
        let mut widths = FxHashSet::default();
        program.walk(|id, _| {
            let inst = program.inst(id);
            if inst.op.memory() == Some(memory) {
                widths.insert(match inst.op {
                    Op::PerGroup(PerGroup::Length(_)) => return,
                    Op::Load(_) | Op::Store(_) if self.ranges.is_aligned(id) => inst.accessed_elements(),
                    _ => 0,
                });
            }
        });
        match widths.into_iter().collect::<Vec<usize>>()[..] {
            [2] => Some(VectorSize::Bi),
            [4] => Some(VectorSize::Quad),
            _ => None,
        }
    }

    /// Returns whether the program may read workgroup memory before writing it. Other workgroup variables of the module
    /// are written first.
    pub(super) fn needs_zeros(&self) -> bool {
        let objects = self.program.memories().iter().filter(|(_, memory)| memory.space == Space::Workgroup);
        objects.into_iter().any(|(id, _)| self.objects[id].is_some() && !self.is_written_first(id))
    }

    /// Returns whether each invocation first writes its own element of an object, and all other accesses follow a later
    /// barrier in the same block.
    fn is_written_first(&self, memory: MemId) -> bool {
        let program = self.program;
        let Some(facts) = self.facts.as_ref().filter(|_| !self.masked) else { return false };
        let touches =
            |inst: &Inst| inst.op.memory() == Some(memory) && !matches!(inst.op, Op::PerGroup(PerGroup::Length(_)));
        let mut accesses = 0;
        let mut stores = Vec::new();
        let mut blocks = vec![program.body()];
        while let Some(block) = blocks.pop() {
            for &id in &program.block(block).insts {
                let inst = program.inst(id);
                accesses += usize::from(touches(inst));
                let own = inst.op == Op::Store(program.operand(memory)) && self.is_own_index(inst.operands[0]);
                if own && facts.is_converged(block, Scope::Workgroup) {
                    stores.push((id, block));
                }
                blocks.extend(&inst.blocks);
            }
        }
        let length = program.memory(memory).length.unwrap_or(u32::MAX);
        let covers = length <= program.workgroup_size().iter().product();
        covers
            && stores.into_iter().any(|(store, block)| {
                let insts = program.block(block).insts.iter().skip_while(|inst| **inst != store);
                let later = insts.skip_while(|inst| program.inst(**inst).op != Barrier::Workgroup);
                let mut pending: Vec<InstId> = later.copied().collect();
                let mut found = 1;
                while let Some(id) = pending.pop() {
                    let inst = program.inst(id);
                    found += usize::from(touches(inst));
                    pending.extend(inst.blocks.iter().flat_map(|&block| &program.block(block).insts));
                }
                found == accesses
            })
    }

    /// Returns whether a value is the index of the invocation in its workgroup: distinct in all invocations, and below their number.
    fn is_own_index(&self, value: ValueId) -> bool {
        let program = self.program;
        let Def::Result(inst, _) = program.def(value) else { return false };
        match program.inst(inst).op {
            Op::PerInvocation(PerInvocation::LocalIndex) => true,
            Op::PerInvocation(PerInvocation::LocalId(Axis::X)) => program.workgroup_size()[1..] == [1, 1],
            _ => false,
        }
    }

    /// Pointer to a new workgroup variable.
    fn workgroup(&mut self, name: &str, ty: naga::Handle<naga::Type>) -> Expr {
        let variable = GlobalVariable {
            name: Some(name.into()),
            space: AddressSpace::WorkGroup,
            binding: None,
            ty,
            init: None,
            memory_decorations: naga::MemoryDecorations::empty(),
        };
        let variable = self.b.module.global_variables.append(variable, Span::UNDEFINED);
        self.b.name(Expression::GlobalVariable(variable))
    }

    /// Pointer to a new scalar workgroup variable.
    pub(super) fn workgroup_variable(&mut self, name: &str, ty: Type, atomic: bool) -> Expr {
        self.workgroup_bytes += u64::from(scalar(ty).width);
        let inner = if atomic { naga::TypeInner::Atomic(scalar(ty)) } else { naga::TypeInner::Scalar(scalar(ty)) };
        let ty = self.b.ty(inner);
        self.workgroup(name, ty)
    }

    fn array(&self, memory: MemId) -> Array {
        match &self.objects[memory] {
            Some(Object::Array(array)) => array.clone(),
            Some(Object::Uniform(_)) | None => unreachable!("arrays that are used were declared as such"),
        }
    }

    pub(super) fn length(&mut self, memory: MemId) -> Expr {
        match &self.objects[memory] {
            Some(Object::Array(array)) => array.length.expect("loaded where it is asked for"),
            // A uniform has one element.
            Some(Object::Uniform(_)) | None => self.b.u32(1),
        }
    }

    /// Converts a count of declared elements to one of accessed elements.
    fn converted(&mut self, count: Expr, declared: Element, accessed: Element) -> Expr {
        let (declared, accessed) = (declared.size().ilog2(), accessed.size().ilog2());
        if declared > accessed {
            let shift = self.b.u32(declared - accessed);
            self.b.shl(count, shift)
        } else if declared < accessed {
            let shift = self.b.u32(accessed - declared);
            self.b.shr(count, shift)
        } else {
            count
        }
    }

    /// Returns whether an access needs no bounds check. Value ranges hold for active invocations only; those that have
    /// ended need the check.
    fn is_in_bounds(&self, id: InstId) -> bool {
        !self.masked && self.ranges.is_in_bounds(id)
    }

    /// Index and bounds of each of `width` consecutive elements of an access.
    fn elements(&mut self, at: MemOperand, id: InstId, width: usize) -> Vec<(Expr, Inside)> {
        let index = self.value(self.program.inst(id).operands[0]);
        if let (Some(index), Some(bytes)) = (self.b.known_u32(index), self.program.memory(at.memory).static_bytes()) {
            let length = bytes / at.element.size() as u64;
            let elements = (0..width as u64).map(|offset| {
                let index = u64::from(index) + offset;
                let inside = if index < length { Inside::Always } else { Inside::Never };
                (self.b.u32(index as u32), inside)
            });
            return elements.collect();
        }
        if self.is_in_bounds(id) {
            let elements = (0..width).map(|offset| match offset {
                0 => (index, Inside::Always),
                offset => {
                    let offset = self.b.u32(offset as u32);
                    (self.b.add(index, offset), Inside::Always)
                }
            });
            return elements.collect();
        }
        // No object is that long, and naga rejects the index.
        if self.b.known_u32(index) == Some(u32::MAX) {
            return vec![(index, Inside::Never); width];
        }
        let length = self.length(at.memory);
        let length = self.converted(length, self.program.memory(at.memory).element, at.element);
        let first = self.b.lt(index, length);
        let mut elements = vec![(index, Inside::Where(first))];
        let whole = !self.masked && self.ranges.is_aligned(id);
        // If the first element is in bounds, the difference does not wrap; otherwise no element is in bounds.
        let left = if width > 1 && !whole { self.b.sub(length, index) } else { length };
        for offset in 1..width {
            let offset = self.b.u32(offset as u32);
            let index = self.b.add(index, offset);
            if whole {
                elements.push((index, Inside::Where(first)));
                continue;
            }
            let inside = self.b.gt(left, offset);
            elements.push((index, Inside::Where(self.b.and(first, inside))));
        }
        elements
    }

    /// Emits an access under the condition that its element is in bounds.
    fn where_inside(&mut self, inside: Inside, access: impl FnOnce(&mut Self)) {
        match inside {
            Inside::Never => {}
            Inside::Always => access(self),
            Inside::Where(condition) => self.when(condition, access),
        }
    }

    /// Location of an element: its index in the array, or that of its first word; for an element narrower than a word,
    /// also its first bit.
    fn place_of(&mut self, array: &Array, element: Element, index: Expr) -> (Expr, Option<Expr>) {
        let index = match array.offset {
            Some(offset) => {
                let offset = self.converted(offset, array.declared, element);
                self.b.add(index, offset)
            }
            None => index,
        };
        let (index_bits, element_bits) = match (array.shape, element.size()) {
            (Shape::Packed | Shape::Words, 1) => (2, 3),
            (Shape::Packed | Shape::Words, 2) => (1, 4),
            (Shape::Words, 8) => return (expr!(self.b, shl(index, [self.b.u32(1)])), None),
            _ => return (index, None),
        };
        let word = expr!(self.b, shr(index, [self.b.u32(index_bits)]));
        let position = expr!(self.b, and(index, [self.b.u32((1 << index_bits) - 1)]));
        (word, Some(expr!(self.b, shl(position, [self.b.u32(element_bits)]))))
    }

    /// Accesses an element through a pointer; with several bindings, in the one that contains it.
    fn at_place(&mut self, array: &Array, place: Expr, access: &mut dyn FnMut(&mut Self, Expr)) {
        let Some((&last, others)) = array.bases.split_last().filter(|(_, others)| !others.is_empty()) else {
            let pointer = self.b.at(array.bases[0], place);
            return access(self, pointer);
        };
        let per_binding = (self.target.binding_bytes / u64::from(scalar(array.stored).width)) as u32;
        let (count, mask) = (self.b.u32(per_binding.trailing_zeros()), self.b.u32(per_binding - 1));
        let selector = self.b.shr(place, count);
        let place = self.b.and(place, mask);
        let mut cases = Vec::new();
        for (number, &base) in (0..).zip(others).chain([(u32::MAX, &last)]) {
            self.b.open();
            let pointer = self.b.at(base, place);
            access(self, pointer);
            let value = if base == last { SwitchValue::Default } else { SwitchValue::U32(number) };
            cases.push(SwitchCase { value, body: self.b.close(), fall_through: false });
        }
        self.b.push(Statement::Switch { selector, cases });
    }

    /// Loads an element of the array variable.
    fn load_place(&mut self, array: &Array, place: Expr) -> Expr {
        if let [base] = array.bases[..] {
            let pointer = self.b.at(base, place);
            return self.b.load(pointer);
        }
        let found = self.b.scalar_variable("found", array.stored);
        self.at_place(array, place, &mut |lowerer, pointer| {
            let value = lowerer.b.load(pointer);
            lowerer.b.store(found, value);
        });
        self.b.load(found)
    }

    pub(super) fn load(&mut self, id: InstId, at: MemOperand) {
        let results = self.program.inst(id).results.clone();
        if let Some(Object::Uniform(value)) = self.objects[at.memory] {
            self.define(results[0], value);
            return;
        }
        let array = self.array(at.memory);
        let ty = at.value_type();
        if let Shape::Vectors(size) = array.shape {
            let (index, inside) = self.elements(at, id, 1)[0];
            let safe = if let Inside::Where(inside) = inside { expr!(self.b, select(inside, index, 0)) } else { index };
            let pointer = self.vector(&array, safe, size);
            let vector = self.b.load(pointer);
            for (position, result) in results.into_iter().enumerate() {
                let mut value = self.b.field(vector, position as u32);
                if let Inside::Where(inside) = inside {
                    value = expr!(self.b, select(inside, value, zero(ty)));
                }
                self.define(result, value);
            }
            return;
        }
        for ((index, inside), result) in self.elements(at, id, results.len()).into_iter().zip(results) {
            let safe = match inside {
                Inside::Never => {
                    let zero = self.b.zero(ty);
                    self.define(result, zero);
                    continue;
                }
                Inside::Always => index,
                Inside::Where(inside) => expr!(self.b, select(inside, index, 0)),
            };
            let mut value = self.load_element(&array, at.element, safe);
            if let Inside::Where(inside) = inside {
                value = expr!(self.b, select(inside, value, zero(ty)));
            }
            self.define(result, value);
        }
    }

    /// Loads an element at an index in bounds.
    fn load_element(&mut self, array: &Array, element: Element, index: Expr) -> Expr {
        let (place, bit) = self.place_of(array, element, index);
        let first = self.load_place(array, place);
        match (array.shape, bit) {
            (_, Some(bit)) => self.unpack(element, first, bit),
            (Shape::Words, None) if element.size() == 8 => {
                let next = expr!(self.b, or(place, [self.b.u32(1)]));
                let second = self.load_place(array, next);
                self.join_words(element.value_type(), &[first, second])
            }
            (Shape::Words, None) => self.join_words(element.value_type(), &[first]),
            (Shape::Plain | Shape::Extended | Shape::Packed | Shape::Vectors(_), None) => first,
        }
    }

    /// Pointer to the vector that starts at an element.
    fn vector(&mut self, array: &Array, index: Expr, size: VectorSize) -> Expr {
        expr!(self.b, at([array.bases[0]], shr(index, [self.b.u32(size as u32 / 2)])))
    }

    /// Extracts an element from the bits of a word.
    fn unpack(&mut self, element: Element, word: Expr, bit: Expr) -> Expr {
        let mut shifted = self.b.shr(word, bit);
        if element == Element::F16 {
            let half = expr!(self.b, and(shifted, 0xffff));
            return self.join_words(Type::F16, &[half]);
        }
        if element.value_type() == Type::I32 {
            shifted = self.b.bitcast(shifted, Type::I32);
        }
        self.cut(element, shifted)
    }

    /// Truncates a value to a sub-word element, and extends it again.
    fn cut(&mut self, element: Element, value: Expr) -> Expr {
        let bits = 8 * element.size() as u32;
        if element.value_type() == Type::I32 {
            let count = self.b.u32(32 - bits);
            expr!(self.b, shr(shl(value, count), count))
        } else {
            expr!(self.b, and(value, [self.b.u32((1 << bits) - 1)]))
        }
    }

    pub(super) fn store(&mut self, id: InstId, at: MemOperand) {
        let inst = self.program.inst(id);
        let array = self.array(at.memory);
        let values = &inst.operands[1..];
        if let Shape::Vectors(size) = array.shape {
            let (index, inside) = self.elements(at, id, 1)[0];
            let components = values.iter().map(|&value| self.value(value)).collect();
            let ty = self.b.vector_ty(at.value_type(), size);
            let vector = self.b.emit(Expression::Compose { ty, components });
            self.where_inside(inside, |lowerer| {
                let pointer = lowerer.vector(&array, index, size);
                lowerer.b.store(pointer, vector);
            });
            return;
        }
        for ((index, inside), &value) in self.elements(at, id, values.len()).into_iter().zip(values) {
            let value = self.value(value);
            self.where_inside(inside, |lowerer| lowerer.store_element(&array, at.element, index, value));
        }
    }

    fn store_element(&mut self, array: &Array, element: Element, index: Expr, value: Expr) {
        let (place, bit) = self.place_of(array, element, index);
        match (array.shape, bit) {
            (Shape::Extended, _) => {
                let value = self.cut(element, value);
                self.at_place(array, place, &mut |lowerer, pointer| lowerer.b.store(pointer, value));
            }
            (Shape::Words, None) => {
                for (offset, word) in (0..).zip(self.words(element.value_type(), value)) {
                    let place = if offset == 0 { place } else { expr!(self.b, or(place, [self.b.u32(offset)])) };
                    self.at_place(array, place, &mut |lowerer, pointer| lowerer.b.store(pointer, word));
                }
            }
            (Shape::Packed | Shape::Words, Some(bit)) => {
                let bits = 8 * element.size() as u32;
                let value = self.words(element.value_type(), value)[0];
                let mask = self.b.u32((1 << bits) - 1);
                let value = expr!(self.b, shl(and(value, mask), bit));
                let own = self.b.shl(mask, bit);
                let others = self.b.not(own, Type::U32);
                let steps = [(AtomicFunction::And, others), (AtomicFunction::InclusiveOr, value)];
                self.at_place(array, place, &mut |lowerer, pointer| {
                    for (fun, value) in steps {
                        lowerer.b.push(Statement::Atomic { pointer, fun, value, result: None });
                    }
                });
            }
            _ => self.at_place(array, place, &mut |lowerer, pointer| lowerer.b.store(pointer, value)),
        }
    }

    /// Atomic update, or compare-exchange if there is no operation. Out of bounds, or for an invocation that has ended,
    /// it yields zeros.
    pub(super) fn atomic(&mut self, id: InstId, op: Option<Atomic>, at: MemOperand, mode: Mode) {
        let inst = self.program.inst(id);
        let array = self.array(at.memory);
        // Updates of signed elements in unsigned words are the same operation; `min` and `max` were lowered to loops.
        let ty = array.stored;
        let types: Vec<Type> = inst.results.iter().map(|&result| self.program.ty(result)).collect();
        let places: Vec<Expr> = types.iter().map(|&ty| self.b.scalar_variable("old", ty)).collect();
        for (&place, &ty) in places.iter().zip(&types) {
            let zero = self.b.zero(ty);
            self.b.store(place, zero);
        }
        let operands: Vec<Expr> = inst.operands[1..]
            .iter()
            .map(|&operand| {
                let value = self.value(operand);
                self.b.bits_as(value, at.value_type(), ty)
            })
            .collect();
        let (index, inside) = self.elements(at, id, 1)[0];
        let mut access = |lowerer: &mut Self, pointer: Expr| {
            let (fun, value) = match op {
                Some(Atomic::Add) => (AtomicFunction::Add, operands[0]),
                Some(Atomic::Sub) => (AtomicFunction::Subtract, operands[0]),
                Some(Atomic::Min) => (AtomicFunction::Min, operands[0]),
                Some(Atomic::Max) => (AtomicFunction::Max, operands[0]),
                Some(Atomic::And) => (AtomicFunction::And, operands[0]),
                Some(Atomic::Or) => (AtomicFunction::InclusiveOr, operands[0]),
                Some(Atomic::Xor) => (AtomicFunction::ExclusiveOr, operands[0]),
                Some(Atomic::Exchange) => (AtomicFunction::Exchange { compare: None }, operands[0]),
                None => (AtomicFunction::Exchange { compare: Some(operands[0]) }, operands[1]),
            };
            let comparison = op.is_none();
            let result_ty = if comparison {
                let ty = PredeclaredType::AtomicCompareExchangeWeakResult(scalar(ty));
                lowerer.b.module.generate_predeclared_type(ty)
            } else {
                lowerer.b.scalar_ty(ty)
            };
            let result = lowerer.b.result(Expression::AtomicResult { ty: result_ty, comparison });
            lowerer.b.push(Statement::Atomic { pointer, fun, value, result: Some(result) });
            if comparison {
                for (field, &place) in places.iter().enumerate() {
                    let mut part = lowerer.b.field(result, field as u32);
                    if field == 0 {
                        part = lowerer.b.bits_as(part, ty, at.value_type());
                    }
                    lowerer.b.store(place, part);
                }
            } else {
                let old = lowerer.b.bits_as(result, ty, at.value_type());
                lowerer.b.store(places[0], old);
            }
        };
        self.guarded_effect(mode, |lowerer| {
            lowerer.where_inside(inside, |lowerer| {
                let (place, _) = lowerer.place_of(&array, at.element, index);
                lowerer.at_place(&array, place, &mut access);
            });
        });
        for (&result, &place) in inst.results.iter().zip(&places) {
            let value = self.b.load(place);
            self.define(result, value);
        }
    }
}
