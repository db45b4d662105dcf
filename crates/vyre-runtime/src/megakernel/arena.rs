//! Arena: resident device memory of a session, allocated best fit and named by generational handles.

use std::collections::BTreeMap;

use vyre_driver::{Buffer, Device, Error as DriverError};
use vyre_foundation::ir::Element;

use crate::Error;
use crate::graph::memory::{reserve, with_capacity};

/// Generational handle of an allocation: a slot in the lower 24 bits, and the generation of the slot above them. 0 is never valid.
///
/// A session issues each handle once. A freed slot is reused with the next of its 256 generations, and retired after the last one. A
/// session therefore has at most 2²⁴ − 1 live handles, issues fewer than 2³² in total, and detects every freed handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

const SLOT_BITS: u32 = 24;

/// Returns the slot of a handle.
pub(super) const fn slot(handle: u32) -> usize {
    (handle & ((1 << SLOT_BITS) - 1)) as usize
}

/// Segment of the arena. Plain and atomic accesses use separate buffers, since some devices type memory by its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Memory for plain accesses.
    Plain,
    /// Memory for atomic accesses.
    Atomic,
}

/// An allocation: a range of words of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) segment: Segment,
    pub(super) first: u32,
    pub(super) length: u32,
    /// The tenant that allocated it.
    pub(super) owner: u32,
}

/// Memory and free list of a segment.
struct Words {
    /// Empty while the arena moves to another device.
    buffer: Buffer,
    length: u32,
    /// Free list: lengths of free ranges by their first word.
    free: BTreeMap<u32, u32>,
}

impl Words {
    fn new(device: &Device, length: u32) -> Result<Words, DriverError> {
        let buffer = device.allocate(Element::U32, u64::from(length))?;
        Ok(Words { buffer, length, free: BTreeMap::from([(0, length)]) })
    }

    /// Allocates by best fit, and returns the first word.
    fn take(&mut self, length: u32) -> Option<u32> {
        let fitting = self.free.iter().filter(|(_, free)| **free >= length);
        let (&first, &free) = fitting.min_by_key(|(_, free)| **free)?;
        self.free.remove(&first);
        if free > length {
            self.free.insert(first + length, free - length);
        }
        Some(first)
    }

    /// Allocates a range for each length, and returns their first words: parts of one range, or else ranges by best fit.
    fn take_all(&mut self, lengths: &[u32]) -> Result<Vec<u32>, Error> {
        let mut firsts = with_capacity("handles", lengths.len())?;
        let total = lengths.iter().try_fold(0u32, |sum, &length| sum.checked_add(length.max(1)));
        if let Some(mut first) = total.and_then(|total| self.take(total)) {
            for &length in lengths {
                firsts.push(first);
                first += length.max(1);
            }
            return Ok(firsts);
        }
        for &length in lengths {
            let Some(first) = self.take(length.max(1)) else {
                let available = 4 * u64::from(self.free.values().copied().max().unwrap_or(0));
                firsts.drain(..).zip(lengths).for_each(|(first, length)| self.give(first, (*length).max(1)));
                return Err(DriverError::OutOfMemory { requested: taken(length), available }.into());
            };
            firsts.push(first);
        }
        Ok(firsts)
    }

    /// Frees a range, and coalesces it with adjacent free ranges.
    fn give(&mut self, mut first: u32, mut length: u32) {
        if let Some((&before, &free)) = self.free.range(..first).next_back()
            && before + free == first
        {
            self.free.remove(&before);
            (first, length) = (before, length + free);
        }
        if let Some(free) = self.free.remove(&(first + length)) {
            length += free;
        }
        self.free.insert(first, length);
    }
}

/// A slot of the handle table.
#[derive(Clone, Copy)]
struct Slot {
    /// Handle of its allocation, or the next handle to issue.
    handle: u32,
    part: Option<Part>,
}

/// The arena of a session.
pub(super) struct Arena {
    plain: Words,
    atomic: Words,
    /// Handle table; slot 0 is reserved.
    slots: Vec<Slot>,
    /// Free slots with generations left.
    unused: Vec<u32>,
    /// Number of live handles.
    live: u32,
    /// Remaining quota of each tenant, in bytes.
    left: Vec<u64>,
}

impl Arena {
    /// Allocates the segments of an arena; `bytes` are the quotas of tenants.
    pub(super) fn new(
        device: &Device,
        plain_words: u32,
        atomic_words: u32,
        bytes: Vec<u64>,
    ) -> Result<Arena, DriverError> {
        let (plain, atomic) = (Words::new(device, plain_words)?, Words::new(device, atomic_words)?);
        let slots = vec![Slot { handle: 0, part: None }];
        Ok(Arena { plain, atomic, slots, unused: Vec::new(), live: 0, left: bytes })
    }

    /// Frees the device memory, and holds an empty buffer until [`renew`](Arena::renew).
    pub(super) fn release(&mut self, empty: &Buffer) {
        for words in [&mut self.plain, &mut self.atomic] {
            words.buffer = empty.clone();
        }
    }

    /// Allocates the segments on another device, with unspecified contents.
    pub(super) fn renew(&mut self, device: &Device) -> Result<(), DriverError> {
        for words in [&mut self.plain, &mut self.atomic] {
            words.buffer = device.allocate(Element::U32, u64::from(words.length))?;
        }
        Ok(())
    }

    pub(super) fn buffer(&self, segment: Segment) -> &Buffer {
        match segment {
            Segment::Plain => &self.plain.buffer,
            Segment::Atomic => &self.atomic.buffer,
        }
    }

    fn words(&mut self, segment: Segment) -> &mut Words {
        match segment {
            Segment::Plain => &mut self.plain,
            Segment::Atomic => &mut self.atomic,
        }
    }

    /// Allocates a range for each length, or none of them. The ranges are contiguous and in order if a free range has room for all.
    pub(super) fn allocate(&mut self, owner: u32, segment: Segment, lengths: &[u32]) -> Result<Vec<Handle>, Error> {
        let requested = lengths.iter().map(|&length| taken(length)).sum();
        let available = self.left[owner as usize];
        if requested > available {
            return Err(Error::OverQuota { tenant: owner, requested, available });
        }
        if lengths.len() > self.unused.len() + ((1 << SLOT_BITS) - self.slots.len()) {
            return Err(Error::OutOfHandles { live: self.live });
        }
        let mut handles = with_capacity("handles", lengths.len())?;
        reserve(&mut self.slots, "handles", lengths.len().saturating_sub(self.unused.len()))?;
        for first in self.words(segment).take_all(lengths)? {
            let length = lengths[handles.len()];
            handles.push(self.issue(Part { segment, first, length, owner }));
        }
        self.left[owner as usize] -= requested;
        Ok(handles)
    }

    /// Issues a handle for an allocation.
    fn issue(&mut self, part: Part) -> Handle {
        let slot = self.unused.pop().unwrap_or_else(|| {
            let slot = self.slots.len() as u32;
            self.slots.push(Slot { handle: slot, part: None });
            slot
        });
        self.live += 1;
        let slot = &mut self.slots[slot as usize];
        slot.part = Some(part);
        Handle(slot.handle)
    }

    pub(super) fn free(&mut self, owner: u32, handle: Handle) -> Result<(), Error> {
        let part = self.part(owner, handle)?;
        self.left[owner as usize] += taken(part.length);
        self.live -= 1;
        self.words(part.segment).give(part.first, part.length.max(1));
        let slot = &mut self.slots[slot(handle.0)];
        slot.part = None;
        // After the last generation, the slot is retired.
        if let Some(next) = handle.0.checked_add(1 << SLOT_BITS) {
            slot.handle = next;
            self.unused.push(next & ((1 << SLOT_BITS) - 1));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn get(&self, handle: u32) -> Option<Part> {
        self.slots.get(slot(handle)).filter(|slot| slot.handle == handle)?.part
    }

    /// Returns the allocation of a tenant's handle.
    pub(super) fn part(&self, tenant: u32, handle: Handle) -> Result<Part, Error> {
        match self.get(handle.0) {
            None => Err(Error::NoSuchHandle { handle: handle.0 }),
            Some(part) if part.owner != tenant => Err(Error::ForeignHandle { handle: handle.0, tenant }),
            Some(part) => Ok(part),
        }
    }

    /// Returns the memory of a tenant's allocations, in order: first word and length, with adjacent allocations merged.
    pub(super) fn ranges(&self, tenant: u32, handles: &[Handle]) -> Result<Vec<(Segment, u32, u32)>, Error> {
        let mut ranges: Vec<(Segment, u32, u32)> = Vec::new();
        for &handle in handles {
            let Part { segment, first, length, .. } = self.part(tenant, handle)?;
            match ranges.last_mut() {
                Some((last, start, words)) if (*last, *start + *words) == (segment, first) => *words += length,
                _ if length == 0 => {}
                _ => ranges.push((segment, first, length)),
            }
        }
        Ok(ranges)
    }

    /// Returns the memory of an allocation.
    pub(super) fn slice(&self, tenant: u32, handle: Handle) -> Result<Buffer, Error> {
        let Part { segment, first, length, .. } = self.part(tenant, handle)?;
        Ok(self.buffer(segment).slice(first..first + length)?)
    }

    /// Returns the length of the handle table.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// Returns the size of an allocation in bytes. An empty allocation takes one word.
fn taken(words: u32) -> u64 {
    4 * u64::from(words.max(1))
}
