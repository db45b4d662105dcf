//! Legalization of private arrays that are accessed with several element types.
//!
//! Backends keep private arrays in registers, or interleave the elements of lanes, which requires one element type. An
//! array accessed with other types becomes an array of 32-bit words: narrow elements are bit fields of a word, and
//! 64-bit elements are two words. A narrow store is a read-modify-write of its word, which is safe because the array
//! belongs to one invocation.

use crate::ir::entity::SecondaryMap;
use crate::ir::{
    AccessTypes, BlockId, Element, Inst, InstId, MemId, MemOperand, Op, Program, Pure, Renaming, Space, Span, Type,
    ValueId,
};
use crate::validate;
use crate::{Error, Validated};

use super::{emit, replace_insts};

/// Turns private arrays that are accessed with other element types than the declared one into arrays of words. Returns
/// programs without such arrays unchanged.
///
/// # Errors
/// The arrays, rounded up to whole words, exceed the limit of private memory.
pub fn private_words(program: &Validated<Program>) -> Result<Validated<Program>, Error> {
    if program.memories().values().all(|memory| memory.space != Space::Private) {
        return Ok(program.clone());
    }
    let types = AccessTypes::of(program);
    let mut elements = SecondaryMap::with_capacity(program.memories().len(), None);
    for (id, memory) in program.memories().iter() {
        if memory.space == Space::Private && !types[id].are_all(memory.element, false) {
            elements[id] = memory.length.map(|length| u64::from(length) * memory.element.size() as u64);
        }
    }
    let selects = |inst: &Inst| elements[inst.op.memory()?];
    let replaced = replace_insts(program, selects, |program, to, id, bytes, renaming| {
        Access { program, to, bytes }.replace(id, renaming);
    });
    let Some(mut legal) = replaced else { return Ok(program.clone()) };
    for (id, bytes) in elements.iter() {
        if let Some(bytes) = bytes {
            let memory = legal.memory_mut(id);
            (memory.element, memory.length) = (Element::U32, Some(bytes.div_ceil(4) as u32));
        }
    }
    validate::program(legal)
}

/// Access being replaced.
struct Access<'p> {
    program: &'p mut Program,
    /// Block to which instructions are appended.
    to: BlockId,
    /// Size of the object.
    bytes: u64,
}

impl Access<'_> {
    fn replace(&mut self, id: InstId, renaming: &mut Renaming) {
        let inst = self.program.inst(id).clone();
        let span = inst.span;
        // An operation without a memory operand is `length`.
        let Some(at) = inst.op.operand() else {
            let object = inst.op.memory().expect("selected by its object");
            let length = self.literal(self.program.memory(object).length.unwrap_or(0));
            renaming.replace(inst.results[0], length);
            return;
        };
        for part in 0..inst.accessed_elements() {
            let index = self.index(at.element, inst.operands[0], part as u32, span);
            match inst.results.get(part) {
                Some(&result) => {
                    let value = self.load(at, index, span);
                    renaming.replace(result, value);
                }
                None => self.store(at, index, inst.operands[1 + part], span),
            }
        }
    }

    fn emit(&mut self, op: impl Into<Op>, operands: &[ValueId], ty: Type, span: Span) -> ValueId {
        emit(self.program, self.to, op, operands, ty, span)
    }

    fn literal(&mut self, number: u32) -> ValueId {
        self.program.literal(number)
    }

    /// Index of one element of an access; out of bounds of the words if the element is out of bounds.
    fn index(&mut self, element: Element, first: ValueId, part: u32, span: Span) -> ValueId {
        let length = (self.bytes / element.size() as u64) as u32;
        let (part_value, out_of_bounds) = (self.literal(part), self.literal(u32::MAX));
        // Element indices of a wide access do not wrap, so the index is compared with the length minus `part`.
        let limit = self.literal(length.saturating_sub(part));
        let in_bounds = self.emit(Pure::Lt, &[first, limit], Type::Bool, span);
        let index = if part == 0 { first } else { self.emit(Pure::Add, &[first, part_value], Type::U32, span) };
        self.emit(Pure::Select, &[in_bounds, index, out_of_bounds], Type::U32, span)
    }

    /// Word index of a narrow element, and its bit offset in the word. `u32::MAX` stays out of bounds.
    fn field(&mut self, element: Element, index: ValueId, span: Span) -> (ValueId, ValueId) {
        let per_word = Element::U32.size() / element.size();
        let (shift, mask) = (self.literal(per_word.ilog2()), self.literal(per_word as u32 - 1));
        let word = self.emit(Pure::Shr, &[index, shift], Type::U32, span);
        let slot = self.emit(Pure::And, &[index, mask], Type::U32, span);
        let bits = self.literal(element.size() as u32 * 8);
        (word, self.emit(Pure::Mul, &[slot, bits], Type::U32, span))
    }

    /// Word indices of a 64-bit element. Those of `u32::MAX` are out of bounds, because 2³² − 2 is.
    fn word_indices(&mut self, index: ValueId, span: Span) -> [ValueId; 2] {
        let one = self.literal(1);
        let low = self.emit(Pure::Shl, &[index, one], Type::U32, span);
        [low, self.emit(Pure::Or, &[low, one], Type::U32, span)]
    }

    fn word(&mut self, memory: MemId, index: ValueId, span: Span) -> ValueId {
        self.emit(Op::Load(MemOperand::plain(memory, Element::U32)), &[index], Type::U32, span)
    }

    fn set_word(&mut self, memory: MemId, index: ValueId, word: ValueId, span: Span) {
        let op = Op::Store(MemOperand::plain(memory, Element::U32));
        self.program.push(self.to, op, [index, word], &[], [], span);
    }

    /// Bitcasts a value to another type of the same width.
    fn bits(&mut self, value: ValueId, ty: Type, span: Span) -> ValueId {
        if self.program.ty(value) == ty { value } else { self.emit(Pure::Bitcast, &[value], ty, span) }
    }

    fn load(&mut self, at: MemOperand, index: ValueId, span: Span) -> ValueId {
        let ty = at.value_type();
        match at.element.size() {
            4 => {
                let word = self.word(at.memory, index, span);
                self.bits(word, ty, span)
            }
            8 => {
                let [low, high] = self.word_indices(index, span).map(|index| {
                    let word = self.word(at.memory, index, span);
                    self.emit(Pure::Cast, &[word], Type::U64, span)
                });
                let half = self.literal(32);
                let high = self.emit(Pure::Shl, &[high, half], Type::U64, span);
                let both = self.emit(Pure::Or, &[low, high], Type::U64, span);
                self.bits(both, ty, span)
            }
            size => {
                let (word, first) = self.field(at.element, index, span);
                let word = self.word(at.memory, word, span);
                if at.element == Element::F16 {
                    let half = self.emit(Pure::Shr, &[word, first], Type::U32, span);
                    let float = self.emit(Pure::UnpackF16Low, &[half], Type::F32, span);
                    return self.emit(Pure::Cast, &[float], Type::F16, span);
                }
                let count = self.literal(size as u32 * 8);
                let word = self.bits(word, ty, span);
                self.emit(Pure::ExtractBits, &[word, first, count], ty, span)
            }
        }
    }

    fn store(&mut self, at: MemOperand, index: ValueId, value: ValueId, span: Span) {
        match at.element.size() {
            4 => {
                let word = self.bits(value, Type::U32, span);
                self.set_word(at.memory, index, word, span);
            }
            8 => {
                let both = self.bits(value, Type::U64, span);
                let half = self.literal(32);
                let high = self.emit(Pure::Shr, &[both, half], Type::U64, span);
                for (index, part) in self.word_indices(index, span).into_iter().zip([both, high]) {
                    let word = self.emit(Pure::Cast, &[part], Type::U32, span);
                    self.set_word(at.memory, index, word, span);
                }
            }
            size => {
                let (index, first) = self.field(at.element, index, span);
                let bits = if at.element == Element::F16 {
                    let float = self.emit(Pure::Cast, &[value], Type::F32, span);
                    let zero = self.program.literal(0f32);
                    self.emit(Pure::PackF16, &[float, zero], Type::U32, span)
                } else {
                    self.bits(value, Type::U32, span)
                };
                let old = self.word(at.memory, index, span);
                let count = self.literal(size as u32 * 8);
                let new = self.emit(Pure::InsertBits, &[old, bits, first, count], Type::U32, span);
                self.set_word(at.memory, index, new, span);
            }
        }
    }
}
