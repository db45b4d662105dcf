//! Journal: redo log of arena writes and executed items since a checkpoint, replayed on another device after a device loss.

use vyre_driver::Error;

use super::arena::{Arena, Segment};
use super::item::WorkItem;

pub(super) struct Journal {
    /// Items in the log after which a checkpoint is due.
    limit: usize,
    items: usize,
    /// Bytes of host writes in the log.
    written: usize,
    /// Contents of the arena at the checkpoint.
    plain: Vec<u8>,
    atomic: Vec<u8>,
    pub(super) entries: Vec<Entry>,
    /// Items of the current slice.
    slice: Vec<Executed>,
}

/// An executed item.
#[derive(Clone, Copy)]
pub(super) struct Executed {
    pub(super) item: WorkItem,
    /// The watchdog or a limit of the device stopped it.
    pub(super) is_cut_short: bool,
}

pub(super) enum Entry {
    /// Host write: segment, first word and bytes.
    Write(Segment, u32, Vec<u8>),
    /// Executed items of a tenant.
    Items(u32, Vec<Executed>),
}

impl Journal {
    /// Creates the journal of an unused arena.
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

    /// Begins a slice.
    pub(super) fn begin(&mut self, pending: &[WorkItem]) {
        self.slice.clear();
        self.slice.extend(pending.iter().map(|&item| Executed { item, is_cut_short: false }));
    }

    /// Records that the item at a position of the slice was stopped.
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

    /// Appends the executed items of the slice to the log: all but those in `pending`.
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

    /// Removes the first items of the slice, which are in the log.
    pub(super) fn advance(&mut self, items: usize) {
        self.slice.drain(..items.min(self.slice.len()));
    }

    /// Appends a host write.
    pub(super) fn wrote(&mut self, segment: Segment, first: u32, bytes: &[u8]) {
        self.written += bytes.len();
        self.entries.push(Entry::Write(segment, first, bytes.to_vec()));
    }

    /// Returns true if a checkpoint is due: the log has `limit` items, or its writes exceed 16 MiB and twice the size of the checkpoint.
    pub(super) fn is_full(&self) -> bool {
        self.items >= self.limit || self.written > (1 << 24).max(2 * (self.plain.len() + self.atomic.len()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Takes a checkpoint of the arena, and truncates the log.
    pub(super) fn checkpoint(&mut self, arena: &Arena) -> Result<(), Error> {
        let (plain, atomic) = (arena.buffer(Segment::Plain).read()?, arena.buffer(Segment::Atomic).read()?);
        (self.plain, self.atomic) = (plain, atomic);
        self.entries.clear();
        (self.items, self.written) = (0, 0);
        Ok(())
    }

    /// Writes the checkpoint to an arena.
    pub(super) fn restore(&self, arena: &Arena) -> Result<(), Error> {
        for (segment, bytes) in [(Segment::Plain, &self.plain), (Segment::Atomic, &self.atomic)] {
            if !bytes.is_empty() {
                arena.buffer(segment).write(bytes)?;
            }
        }
        Ok(())
    }
}
