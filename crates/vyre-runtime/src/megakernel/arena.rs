//! Memory that stays on the device, in parts that items name by handles.

use std::collections::BTreeMap;

use vyre_driver::{Buffer, Device, Error};
use vyre_foundation::ir::Element;

/// A part of the arena. 0 names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

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
    buffer: Buffer,
    /// Where nothing is, by the first word: how many words.
    free: BTreeMap<u32, u32>,
}

impl Words {
    fn new(device: &Device, words: u32) -> Result<Words, Error> {
        let buffer = device.allocate(Element::U32, u64::from(words))?;
        Ok(Words { buffer, free: BTreeMap::from([(0, words)]) })
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

/// The memory of a session.
pub(super) struct Arena {
    plain: Words,
    atomic: Words,
    /// By handle; the first is nobody's.
    parts: Vec<Option<Part>>,
    unused: Vec<u32>,
    /// How many bytes each tenant may still take.
    left: Vec<u64>,
}

impl Arena {
    /// An arena of which each tenant may have so many bytes.
    pub(super) fn new(device: &Device, plain_words: u32, atomic_words: u32, bytes: Vec<u64>) -> Result<Arena, Error> {
        let (plain, atomic) = (Words::new(device, plain_words)?, Words::new(device, atomic_words)?);
        Ok(Arena { plain, atomic, parts: vec![None], unused: Vec::new(), left: bytes })
    }

    /// Takes as much memory of another device, whatever was in that of this one.
    pub(super) fn renew(&mut self, device: &Device) -> Result<(), Error> {
        for words in [&mut self.plain, &mut self.atomic] {
            words.buffer = device.allocate(Element::U32, u64::from(words.buffer.len()))?;
        }
        Ok(())
    }

    pub(super) fn buffer(&self, segment: Segment) -> &Buffer {
        match segment {
            Segment::Plain => &self.plain.buffer,
            Segment::Atomic => &self.atomic.buffer,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        4 * (u64::from(self.plain.buffer.len()) + u64::from(self.atomic.buffer.len()))
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
        let words = self.words(segment);
        let largest = words.free.values().copied().max().unwrap_or(0);
        let first = words
            .take(length.max(1))
            .ok_or(Error::OutOfMemory { requested: 4 * u64::from(length), available: 4 * u64::from(largest) })?;
        self.left[owner as usize] -= requested;
        let part = Some(Part { segment, first, length, owner });
        Ok(Handle(match self.unused.pop() {
            Some(handle) => {
                self.parts[handle as usize] = part;
                handle
            }
            None => {
                self.parts.push(part);
                self.parts.len() as u32 - 1
            }
        }))
    }

    pub(super) fn free(&mut self, owner: u32, handle: Handle) -> Result<(), Error> {
        let part = self.part(owner, handle)?;
        self.left[owner as usize] += taken(part.length);
        self.words(part.segment).give(part.first, part.length.max(1));
        self.parts[handle.0 as usize] = None;
        self.unused.push(handle.0);
        Ok(())
    }

    pub(super) fn get(&self, handle: u32) -> Option<Part> {
        self.parts.get(handle as usize).copied().flatten()
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
        self.buffer(segment).slice(first..first + length)
    }

    /// How many handles there may have been.
    pub(super) fn handles(&self) -> usize {
        self.parts.len()
    }
}

/// What a part of so many words takes of the arena, in bytes: even what has none takes one.
fn taken(words: u32) -> u64 {
    4 * u64::from(words.max(1))
}
