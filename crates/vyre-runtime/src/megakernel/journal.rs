//! The journal: what has happened since a checkpoint, so that it can happen again on another device.

use vyre_driver::Error;

use super::arena::{Arena, Segment};
use super::item::WorkItem;

pub(super) struct Journal {
    /// So many items at most are kept before the next checkpoint.
    limit: usize,
    items: usize,
    /// The contents of the arena at the checkpoint.
    plain: Vec<u8>,
    atomic: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// The items of the slice that is being executed.
    pub(super) slice: Vec<WorkItem>,
}

pub(super) enum Entry {
    /// The host wrote words of a segment, from one on.
    Write(Segment, u32, Vec<u8>),
    /// Items were executed.
    Items(Vec<WorkItem>),
}

impl Journal {
    /// A journal of an arena that nobody has used.
    pub(super) fn new(limit: usize) -> Journal {
        Journal { limit, items: 0, plain: Vec::new(), atomic: Vec::new(), entries: Vec::new(), slice: Vec::new() }
    }

    /// The slice was executed.
    pub(super) fn executed(&mut self) {
        self.items += self.slice.len();
        self.entries.push(Entry::Items(std::mem::take(&mut self.slice)));
    }

    pub(super) fn is_full(&self) -> bool {
        self.items >= self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Keeps what the arena contains, and forgets how that came about.
    pub(super) fn checkpoint(&mut self, arena: &Arena) -> Result<(), Error> {
        self.plain = arena.buffer(Segment::Plain).read()?;
        self.atomic = arena.buffer(Segment::Atomic).read()?;
        self.entries.clear();
        self.items = 0;
        Ok(())
    }

    /// Gives an arena the contents of the checkpoint.
    pub(super) fn restore(&self, arena: &Arena) -> Result<(), Error> {
        for (segment, bytes) in [(Segment::Plain, &self.plain), (Segment::Atomic, &self.atomic)] {
            if !bytes.is_empty() {
                arena.buffer(segment).write(bytes)?;
            }
        }
        Ok(())
    }
}
