//! The hidden bindings by which the host and a kernel talk.
//!
//! `params` is what the host says, a struct of words in a uniform buffer: the grid, the fuel, and for each object that is bound
//! its length and offset, or its value. `report` is what the kernel says, an array of atomic words: traps, the loop that ran out
//! of fuel, and printed lines. A kernel that has nothing to say has no such binding.

use vyre_foundation::ir::{Literal, MemId, Program, Space, Span, Type};
use vyre_foundation::launch::TraceLine;

/// Words of `params` that every kernel has.
pub(crate) mod param {
    /// Workgroups in each dimension, as the caller sees them.
    pub(crate) const GROUPS: u32 = 0;
    /// Workgroups of the dispatch, if its grid is folded: all of them, or a range.
    pub(crate) const COUNT: u32 = 3;
    /// Loop trips that an invocation may take.
    pub(crate) const FUEL: u32 = 4;
    /// Trips that a workgroup may take together, in loops that it enters and leaves together.
    pub(crate) const GROUP_FUEL: u32 = 5;
    /// Lines of the trace.
    pub(crate) const LINES: u32 = 6;
    /// Two words that are always 0, but a compiler cannot know that.
    pub(crate) const ZEROS: u32 = 7;
    /// First workgroup of the dispatch, if its grid is folded.
    pub(crate) const FIRST: u32 = 9;
    /// Where those of the objects begin.
    pub(crate) const OBJECTS: u32 = 10;
}

/// Words of `report`.
pub(crate) mod report {
    /// How many invocations trapped.
    pub(crate) const TRAPS: u32 = 0;
    /// The lowest of them. The host sets it to the highest number.
    pub(crate) const LOWEST: u32 = 1;
    /// How many trap records were begun.
    pub(crate) const RECORDS: u32 = 2;
    /// One more than the number of the loop that ran out of fuel.
    pub(crate) const STOP: u32 = 3;
    /// How many lines were printed.
    pub(crate) const LINES: u32 = 4;
    /// Words before the trap records.
    pub(crate) const HEAD: u32 = 8;
    /// Words of a trap record: invocation, site, code.
    pub(crate) const RECORD_WORDS: u32 = 3;
    /// How many trap records there are. An invocation makes one only if no lower one has trapped before, so that even with
    /// millions of traps there are few.
    pub(crate) const CAPACITY: u32 = 1024;
    /// Words of a printed line before its operands: invocation, sequence, site.
    pub(crate) const LINE_WORDS: u32 = 3;
}

/// Whether values of a type are declared as such in `params`; others are made from u32.
pub(crate) fn is_word(ty: Type) -> bool {
    matches!(ty, Type::U32 | Type::I32 | Type::F32)
}

/// Where everything stands in the bindings of a kernel, and what its numbers mean.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    /// First word of each object in `params`.
    pub(crate) objects: Vec<Option<u32>>,
    /// The words of `params`, and as what they are declared.
    pub(crate) params: Vec<Type>,
    /// Where the program traps.
    pub(crate) traps: Vec<Span>,
    /// The loops that use fuel.
    pub(crate) loops: Vec<Span>,
    /// Whether there are both loops that a workgroup goes through together and others.
    pub(crate) both_fuels: bool,
    /// What the program prints.
    pub(crate) prints: Vec<Print>,
}

/// A `print` of the program.
#[derive(Clone, Debug)]
pub(crate) struct Print {
    text: Box<str>,
    operands: Vec<Type>,
}

impl Print {
    pub(crate) fn new(text: &str, operands: Vec<Type>) -> Print {
        Print { text: text.into(), operands }
    }

    /// Words that the operands take.
    fn words(&self) -> u32 {
        self.operands.iter().map(|ty| ty.bits().div_ceil(32)).sum()
    }

    /// The line of an invocation, with operands that have these words.
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

    /// The first word of an object in `params`: the length and the offset of a storage object, in elements, or the value of
    /// a uniform, low word first.
    pub(crate) fn object(&self, memory: MemId) -> u32 {
        use vyre_foundation::ir::entity::Entity;
        self.objects[memory.index()].expect("objects that are bound have words")
    }

    /// Bytes of `params`, as a uniform buffer has them.
    pub(crate) fn param_bytes(&self) -> u64 {
        (4 * self.params.len() as u64).next_multiple_of(16)
    }

    /// Whether the host has to look at the report.
    pub(crate) fn reports(&self) -> bool {
        !(self.traps.is_empty() && self.loops.is_empty() && self.prints.is_empty())
    }

    /// The first word of the trace in `report`.
    pub(crate) fn trace(&self) -> u32 {
        report::HEAD + if self.traps.is_empty() { 0 } else { report::CAPACITY * report::RECORD_WORDS }
    }

    /// Words of one line of the trace.
    pub(crate) fn line_words(&self) -> u32 {
        report::LINE_WORDS + self.prints.iter().map(Print::words).max().unwrap_or(0)
    }

    /// Turns the trace of a report into lines.
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
