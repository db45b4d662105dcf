//! The journal: what has happened since a checkpoint, so that it can happen again on another device.

use vyre_driver::Error;

use super::arena::{Arena, Segment};
use super::item::WorkItem;

pub(super) struct Journal {
    /// So many items at most are kept before the next checkpoint.
    limit: usize,
    items: usize,
    /// How many bytes the host wrote.
    written: usize,
    /// The contents of the arena at the checkpoint.
    plain: Vec<u8>,
    atomic: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// The items of the slice that is being executed.
    slice: Vec<Executed>,
}

/// An item that was executed.
#[derive(Clone, Copy)]
pub(super) struct Executed {
    pub(super) item: WorkItem,
    /// The watchdog or a limit of the device ended it before it was complete.
    pub(super) is_cut_short: bool,
}

pub(super) enum Entry {
    /// The host wrote words of a segment, from one on.
    Write(Segment, u32, Vec<u8>),
    /// Items of a tenant were executed.
    Items(u32, Vec<Executed>),
}

impl Journal {
    /// A journal of an arena that nobody has used.
    pub(super) fn new(limit: usize) -> Journal {
        Journal {
            limit,
            items: 0,
            written: 0,
            plain: Vec::new(),
            atomic: Vec::new(),
            entries: Vec::new(),
            slice: Vec::new(),
        }
    }

    /// Begins a slice of these items.
    pub(super) fn begin(&mut self, pending: &[WorkItem]) {
        self.slice.clear();
        self.slice.extend(pending.iter().map(|&item| Executed { item, is_cut_short: false }));
    }

    /// Records that the item at a position of the slice was ended before it was complete.
    pub(super) fn cut_short(&mut self, position: usize) {
        if let Some(executed) = self.slice.get_mut(position) {
            executed.is_cut_short = true;
        }
    }

    /// Records that the item at a position of the slice was not executed.
    pub(super) fn leave_out(&mut self, position: usize) {
        if let Some(executed) = self.slice.get_mut(position) {
            executed.item = WorkItem::default();
        }
    }

    /// Appends an entry for the items of the slice that were executed: all but those that are pending.
    pub(super) fn settle(&mut self, tenant: u32, pending: &[WorkItem]) {
        let mut done = Vec::new();
        for (executed, pending) in self.slice.iter_mut().zip(pending) {
            if *pending == WorkItem::default() && executed.item != WorkItem::default() {
                done.push(*executed);
                executed.item = WorkItem::default();
            }
        }
        if !done.is_empty() {
            self.items += done.len();
            self.entries.push(Entry::Items(tenant, done));
        }
    }

    /// Removes the first items of the slice, which are settled.
    pub(super) fn advance(&mut self, items: usize) {
        self.slice.drain(..items.min(self.slice.len()));
    }

    /// The host wrote words.
    pub(super) fn wrote(&mut self, segment: Segment, first: u32, bytes: &[u8]) {
        self.written += bytes.len();
        self.entries.push(Entry::Write(segment, first, bytes.to_vec()));
    }

    /// Whether a checkpoint would be shorter, or there are enough items.
    pub(super) fn is_full(&self) -> bool {
        self.items >= self.limit || self.written > (1 << 24).max(2 * (self.plain.len() + self.atomic.len()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Keeps what the arena contains, and forgets how that came about.
    pub(super) fn checkpoint(&mut self, arena: &Arena) -> Result<(), Error> {
        let (plain, atomic) = (arena.buffer(Segment::Plain).read()?, arena.buffer(Segment::Atomic).read()?);
        (self.plain, self.atomic) = (plain, atomic);
        self.entries.clear();
        (self.items, self.written) = (0, 0);
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
