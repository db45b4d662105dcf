//! Memory that stays on the device, in parts that items name by handles.

use std::collections::BTreeMap;

use vyre_driver::{Buffer, Device, Error as DriverError};
use vyre_foundation::ir::Element;

use crate::Error;

/// Generational handle of a part of the arena: a slot in the lower 24 bits, and the generation of the slot above them. 0 names none.
///
/// A session gives each handle once. A freed slot is used again with the next of its 256 generations, and retired after the last one. A
/// session therefore has at most 2²⁴ − 1 handles at a time, gives less than 2³² in all, and recognizes every handle that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

const SLOT_BITS: u32 = 24;

/// Slot of a handle.
pub(super) const fn slot(handle: u32) -> usize {
    (handle & ((1 << SLOT_BITS) - 1)) as usize
}

/// Which operations can use a part: devices have words that are accessed atomically apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Those that use it plainly.
    Plain,
    /// Those that use it atomically.
    Atomic,
}

/// Words of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) segment: Segment,
    pub(super) first: u32,
    pub(super) length: u32,
    /// The tenant whose it is.
    pub(super) owner: u32,
}

/// One kind of words.
struct Words {
    /// Empty while the arena moves to another device.
    buffer: Buffer,
    length: u32,
    /// Where nothing is, by the first word: how many words.
    free: BTreeMap<u32, u32>,
}

impl Words {
    fn new(device: &Device, length: u32) -> Result<Words, DriverError> {
        let buffer = device.allocate(Element::U32, u64::from(length))?;
        Ok(Words { buffer, length, free: BTreeMap::from([(0, length)]) })
    }

    /// Takes the smallest free part that is large enough.
    fn take(&mut self, length: u32) -> Option<u32> {
        let fitting = self.free.iter().filter(|(_, free)| **free >= length);
        let (&first, &free) = fitting.min_by_key(|(_, free)| **free)?;
        self.free.remove(&first);
        if free > length {
            self.free.insert(first + length, free - length);
        }
        Some(first)
    }

    /// Gives a part back, and joins it with what is free on both sides.
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

/// A slot of the table of handles.
#[derive(Clone, Copy)]
struct Slot {
    /// The handle of its part, or the next one that it gives.
    handle: u32,
    part: Option<Part>,
}

/// The memory of a session.
pub(super) struct Arena {
    plain: Words,
    atomic: Words,
    /// Slots of handles; the first is never given.
    slots: Vec<Slot>,
    /// Free slots that have a generation left.
    unused: Vec<u32>,
    /// Handles in use.
    live: u32,
    /// How many bytes each tenant may still take.
    left: Vec<u64>,
}

impl Arena {
    /// An arena of which each tenant may have so many bytes.
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

    /// Gives the memory back to its device and holds an empty buffer instead, until it is [renewed](Arena::renew).
    pub(super) fn release(&mut self, empty: &Buffer) {
        for words in [&mut self.plain, &mut self.atomic] {
            words.buffer = empty.clone();
        }
    }

    /// Allocates as much memory on another device, with unspecified contents.
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

    pub(super) fn allocate(&mut self, owner: u32, segment: Segment, length: u32) -> Result<Handle, Error> {
        let (requested, available) = (taken(length), self.left[owner as usize]);
        if requested > available {
            return Err(Error::OverQuota { tenant: owner, requested, available });
        }
        let reused = self.unused.last().copied();
        let slot = reused.unwrap_or(self.slots.len() as u32);
        if slot >> SLOT_BITS != 0 {
            return Err(Error::OutOfHandles { live: self.live });
        }
        let words = self.words(segment);
        let largest = words.free.values().copied().max().unwrap_or(0);
        let first = words
            .take(length.max(1))
            .ok_or(DriverError::OutOfMemory { requested, available: 4 * u64::from(largest) })?;
        match reused {
            Some(_) => _ = self.unused.pop(),
            None => self.slots.push(Slot { handle: slot, part: None }),
        }
        self.left[owner as usize] -= requested;
        self.live += 1;
        let slot = &mut self.slots[slot as usize];
        slot.part = Some(Part { segment, first, length, owner });
        Ok(Handle(slot.handle))
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

    /// What a tenant knows by a handle.
    pub(super) fn part(&self, tenant: u32, handle: Handle) -> Result<Part, Error> {
        match self.get(handle.0) {
            None => Err(Error::NoSuchHandle { handle: handle.0 }),
            Some(part) if part.owner != tenant => Err(Error::ForeignHandle { handle: handle.0, tenant }),
            Some(part) => Ok(part),
        }
    }

    /// The memory of a part.
    pub(super) fn slice(&self, tenant: u32, handle: Handle) -> Result<Buffer, Error> {
        let Part { segment, first, length, .. } = self.part(tenant, handle)?;
        Ok(self.buffer(segment).slice(first..first + length)?)
    }

    /// Number of slots that handles name.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// What a part of so many words takes of the arena, in bytes: even what has none takes one.
fn taken(words: u32) -> u64 {
    4 * u64::from(words.max(1))
}
