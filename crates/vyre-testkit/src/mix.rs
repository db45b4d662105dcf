//! A mix of megakernel work items, for `vyre megakernel` and for tuning its settings.

use vyre_foundation::ir::Program;
use vyre_foundation::{Validated, text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::{Handle, Segment, Tenant, WorkItem};

use crate::corpus;

/// Operations of the mix: elementwise ones, one with barriers, one with three handles, one with atomic counters, and
/// one that reports hits.
pub const OPS: &str = corpus::MEGAKERNEL_OPS;

/// Lengths in words, from 64 bytes to 64 KiB, and number of handles of each.
const LENGTHS: [(u32, u32); 5] = [(16, 1200), (64, 500), (256, 200), (1024, 80), (16_384, 20)];

/// Number of atomic handles, and words of each.
const COUNTERS: usize = 16;
const BINS: u32 = 64;

/// Words of the arena used by a mix.
pub const PLAIN_WORDS: u32 = {
    let (mut words, mut kind) = (0, 0);
    while kind < LENGTHS.len() {
        words += LENGTHS[kind].0 * LENGTHS[kind].1;
        kind += 1;
    }
    words
};

/// Atomic words of the arena used by a mix.
pub const ATOMIC_WORDS: u32 = BINS * COUNTERS as u32;

/// Operations except for the one whose trip count is its input, which would dominate the time.
pub fn programs() -> Vec<Validated<Program>> {
    let module = text::parse(OPS).expect("the ops are tested");
    let mut programs = validate::module(module).expect("the ops are valid").into_inner().programs;
    programs.retain(|program| program.name() != "spin");
    programs
}

/// A tenant's memory for the items.
pub struct Mix {
    plain: Vec<(Handle, u32)>,
    counters: Vec<Handle>,
}

impl Mix {
    /// Allocates [`PLAIN_WORDS`] and [`ATOMIC_WORDS`] of the arena, and fills them.
    ///
    /// # Errors
    /// The arena has not enough free words, or the device was lost.
    pub fn new(mut tenant: Tenant<'_>) -> Result<Mix, Error> {
        let mut plain = Vec::new();
        for (length, count) in LENGTHS {
            for _ in 0..count {
                let handle = tenant.allocate(Segment::Plain, length)?;
                let words: Vec<u8> = (0..length).flat_map(|i| (i % 1000).to_le_bytes()).collect();
                tenant.write(handle, &words)?;
                plain.push((handle, length));
            }
        }
        let counters = (0..COUNTERS).map(|_| tenant.allocate(Segment::Atomic, BINS)).collect::<Result<_, _>>()?;
        Ok(Mix { plain, counters })
    }

    /// Independent items, and chains of dependent ones. Deterministic for a seed.
    pub fn items(&self, programs: &[Validated<Program>], count: usize, seed: u64) -> Vec<WorkItem> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below.max(1)
        };
        let number =
            |name: &str| programs.iter().position(|program| program.name() == name).map_or(0, |at| at as u32 + 1);
        let mut items = Vec::with_capacity(count);
        while items.len() < count {
            let (input, length) = self.plain[random(self.plain.len())];
            let (other, other_length) = self.plain[random(self.plain.len())];
            let output = if other_length == length && other != input { other } else { self.neighbour(input, length) };
            let op = random(programs.len()) as u32 + 1;
            let mut item = WorkItem { op_handle: op, input_handle: input.0, output_handle: output.0, param: 3 };
            if op == number("sum") {
                item.param = self.neighbour(output, length).0;
            } else if op == number("histogram") {
                item.output_handle = self.counters[random(COUNTERS)].0;
            } else if op == number("find") {
                item.param = 998;
            } else if op == number("scale") {
                // A chain of four items, back and forth between two handles.
                let back = WorkItem { input_handle: output.0, output_handle: input.0, param: 5, ..item };
                items.extend([item, back, item]);
                continue;
            }
            items.push(item);
        }
        items.truncate(count);
        items
    }

    /// An adjacent handle of the same length.
    fn neighbour(&self, handle: Handle, length: u32) -> Handle {
        let at = self.plain.iter().position(|(other, _)| *other == handle).unwrap_or(0);
        let next = [at + 1, at.wrapping_sub(1)].into_iter().filter_map(|at| self.plain.get(at));
        next.filter(|(_, other)| *other == length).map(|(other, _)| *other).next().unwrap_or(handle)
    }
}
