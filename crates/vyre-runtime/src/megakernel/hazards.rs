//! RAW, WAR and WAW hazards between items, by handle.

use vyre_driver::plan::barrier::Dependency;

use super::arena::slot;
use super::op::Op;
use super::slice::Resolved;

/// Hazard analysis with reused scratch memory.
#[derive(Default)]
pub(super) struct Hazards {
    /// Last uses by slot of the handle.
    uses: Vec<Uses>,
    /// Number of items in earlier slices. Items are numbered across slices, so entries of earlier slices need not be cleared.
    before: u32,
    /// Linked lists of earlier readers: a reader, and the index of the next entry plus one, as in [`Uses::readers`].
    readers: Vec<(u32, u32)>,
    dependencies: Vec<Dependency>,
}

/// Last uses of an allocation, by item number plus one. Numbers up to `before` are stale.
#[derive(Clone, Copy, Default)]
struct Uses {
    writer: u32,
    /// The last reader after the writer.
    reader: u32,
    /// Earlier readers after the writer: index in [`Hazards::readers`] plus one, or 0.
    readers: u32,
}

impl Hazards {
    /// Finds the dependencies of items, which are in a valid sequential order.
    pub(super) fn find(&mut self, items: &[Resolved], ops: &[Op], slots: usize) {
        if self.before.checked_add(items.len() as u32 + 1).is_none() {
            self.uses.fill(Uses::default());
            self.before = 0;
        }
        self.readers.clear();
        self.dependencies.clear();
        self.uses.resize(slots.max(self.uses.len()), Uses::default());
        for (after, item) in items.iter().enumerate() {
            let op = item.op(ops);
            let handles = [item.item.input_handle, item.item.output_handle, item.item.param];
            for (view, handle) in op.views.iter().zip(handles) {
                let Some(view) = view else { continue };
                self.touch(after, handle, view.writes);
            }
        }
        self.before += items.len() as u32;
    }

    /// Returns the dependencies of the last [`find`](Hazards::find).
    pub(super) fn dependencies(&self) -> &[Dependency] {
        &self.dependencies
    }

    #[inline]
    fn touch(&mut self, after: usize, handle: u32, writes: bool) {
        let before = self.before;
        let uses = &mut self.uses[slot(handle)];
        let mut depend = |number: u32| {
            let before = (number - before) as usize - 1;
            // An item may name a handle twice.
            if before != after {
                self.dependencies.push(Dependency { before, after });
            }
        };
        let is_read = uses.reader > before;
        if writes && is_read {
            let (mut reader, mut others) = (uses.reader, uses.readers);
            loop {
                depend(reader);
                if others == 0 {
                    break;
                }
                (reader, others) = self.readers[others as usize - 1];
            }
        } else if uses.writer > before {
            depend(uses.writer);
        }
        let number = before + after as u32 + 1;
        if writes {
            *uses = Uses { writer: number, reader: 0, readers: 0 };
        } else {
            let mut readers = 0;
            if is_read {
                self.readers.push((uses.reader, uses.readers));
                readers = self.readers.len() as u32;
            }
            *uses = Uses { writer: uses.writer, reader: number, readers };
        }
    }
}
