//! Control block: the hidden bindings between host and kernel.
//!
//! `params`, a struct of words in a uniform buffer, goes to the kernel: the grid, the fuel, and for each bound object
//! its length and offset, or its value. `report`, an array of atomic words, comes from the kernel: traps, the loop that
//! ran out of fuel, and printed lines. A kernel without reports has no `report` binding.

use vyre_foundation::ir::{Literal, MemId, Program, Space, Span, Type};
use vyre_foundation::launch::TraceLine;

/// Words of `params` common to all kernels.
pub(crate) mod param {
    /// Requested workgroups in each dimension.
    pub(crate) const GROUPS: u32 = 0;
    /// Number of workgroups of a folded dispatch: all of them, or those of a range.
    pub(crate) const COUNT: u32 = 3;
    /// Loop trips that an invocation may take.
    pub(crate) const FUEL: u32 = 4;
    /// Loop trips of workgroup-uniform loops that a workgroup may take.
    pub(crate) const GROUP_FUEL: u32 = 5;
    /// Capacity of the trace, in lines.
    pub(crate) const LINES: u32 = 6;
    /// Two words that are always 0, unknown to the driver's compiler.
    pub(crate) const ZEROS: u32 = 7;
    /// First workgroup of a folded dispatch.
    pub(crate) const FIRST: u32 = 9;
    /// Start of the words of the objects.
    pub(crate) const OBJECTS: u32 = 10;
}

/// Words of `report`.
pub(crate) mod report {
    /// Number of invocations that trapped.
    pub(crate) const TRAPS: u32 = 0;
    /// Lowest of them. The host initializes it to the maximum.
    pub(crate) const LOWEST: u32 = 1;
    /// Number of trap records begun.
    pub(crate) const RECORDS: u32 = 2;
    /// Number of the loop that ran out of fuel, plus one.
    pub(crate) const STOP: u32 = 3;
    /// Number of lines printed.
    pub(crate) const LINES: u32 = 4;
    /// Words before the trap records.
    pub(crate) const HEAD: u32 = 8;
    /// Words of a trap record: invocation, site, code.
    pub(crate) const RECORD_WORDS: u32 = 3;
    /// Capacity in trap records. An invocation writes one only if no lower invocation has trapped before, so that even
    /// millions of traps write few records.
    pub(crate) const CAPACITY: u32 = 1024;
    /// Words of a printed line before its operands: invocation, sequence, site.
    pub(crate) const LINE_WORDS: u32 = 3;
}

/// Returns whether values of a type are declared with it in `params`; others are converted from u32.
pub(crate) fn is_word(ty: Type) -> bool {
    matches!(ty, Type::U32 | Type::I32 | Type::F32)
}

/// Layout of a kernel's control block, and the meaning of its numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    /// First word of each object in `params`.
    pub(crate) objects: Vec<Option<u32>>,
    /// Declared types of the words of `params`.
    pub(crate) params: Vec<Type>,
    /// Trap sites.
    pub(crate) traps: Vec<Span>,
    /// The loops that use fuel.
    pub(crate) loops: Vec<Span>,
    /// There are both workgroup-uniform and other loops.
    pub(crate) both_fuels: bool,
    /// Print sites.
    pub(crate) prints: Vec<Print>,
}

/// A `print` site.
#[derive(Clone, Debug)]
pub(crate) struct Print {
    text: Box<str>,
    operands: Vec<Type>,
}

impl Print {
    pub(crate) fn new(text: &str, operands: Vec<Type>) -> Print {
        Print { text: text.into(), operands }
    }

    /// Number of words of the operands.
    fn words(&self) -> u32 {
        self.operands.iter().map(|ty| ty.bits().div_ceil(32)).sum()
    }

    /// Decodes the line of an invocation from the words of its operands.
    fn line(&self, invocation: u32, mut words: &[u32]) -> TraceLine {
        let literals = self.operands.iter().map(|&ty| {
            let (own, rest) = words.split_at(ty.bits().div_ceil(32) as usize);
            words = rest;
            let bits = own.iter().rev().fold(0, |bits, &word| bits << 32 | u64::from(word));
            Literal { ty, bits }
        });
        TraceLine::new(invocation, &self.text, literals)
    }
}

impl Control {
    /// Lays out the objects of a program.
    pub(crate) fn new(program: &Program) -> Control {
        let mut params = vec![Type::U32; param::OBJECTS as usize];
        let mut objects = Vec::new();
        for memory in program.memories().values() {
            let first = Some(params.len() as u32);
            let value = memory.element.value_type();
            let words = match memory.space {
                Space::Uniform if is_word(value) => [value, Type::U32],
                Space::Storage(_) | Space::Uniform => [Type::U32; 2],
                Space::Workgroup | Space::Private => {
                    objects.push(None);
                    continue;
                }
            };
            objects.push(first);
            params.extend(words);
        }
        Control { objects, params, ..Control::default() }
    }

    /// First word of an object in `params`: length and offset of a storage object, in elements, or the value of a
    /// uniform, low word first.
    pub(crate) fn object(&self, memory: MemId) -> u32 {
        use vyre_foundation::ir::entity::Entity;
        self.objects[memory.index()].expect("objects that are bound have words")
    }

    /// Size of `params` as a uniform buffer.
    pub(crate) fn param_bytes(&self) -> u64 {
        (4 * self.params.len() as u64).next_multiple_of(16)
    }

    /// Returns whether the kernel has a report.
    pub(crate) fn reports(&self) -> bool {
        !(self.traps.is_empty() && self.loops.is_empty() && self.prints.is_empty())
    }

    /// First word of the trace in `report`.
    pub(crate) fn trace(&self) -> u32 {
        report::HEAD + if self.traps.is_empty() { 0 } else { report::CAPACITY * report::RECORD_WORDS }
    }

    /// Words of a trace line.
    pub(crate) fn line_words(&self) -> u32 {
        report::LINE_WORDS + self.prints.iter().map(Print::words).max().unwrap_or(0)
    }

    /// Decodes the trace of a report.
    pub(crate) fn lines(&self, words: &[u32], count: usize) -> Vec<TraceLine> {
        let width = self.line_words() as usize;
        let mut records: Vec<&[u32]> = words[self.trace() as usize..].chunks_exact(width).take(count).collect();
        records.sort_by_key(|record| (record[0], record[1]));
        let line = |record: &[u32]| {
            let print = self.prints.get(record[2] as usize)?;
            Some(print.line(record[0], &record[report::LINE_WORDS as usize..]))
        };
        records.into_iter().filter_map(line).collect()
    }
}
