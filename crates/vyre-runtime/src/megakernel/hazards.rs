//! What items have to wait for: reads after writes, writes after reads, and writes after writes of the same memory.

use vyre_driver::plan::barrier::Dependency;

use super::arena::slot;
use super::op::Op;
use super::slice::Resolved;

/// Finds dependencies, and keeps the memory that this takes.
#[derive(Default)]
pub(super) struct Hazards {
    /// By slot of the handle.
    uses: Vec<Uses>,
    /// Items are counted from one slice to the next, so that what is left of earlier slices is told by its number. This many were before.
    before: u32,
    /// Readers of something that has several, each with the ones before it, as in [`Uses::readers`].
    readers: Vec<(u32, u32)>,
    dependencies: Vec<Dependency>,
}

/// Who used some memory last, by numbers; those of slices before, and 0, are nobody.
#[derive(Clone, Copy, Default)]
struct Uses {
    writer: u32,
    /// The last of the readers since then.
    reader: u32,
    /// The others, by one more than their place in the list, if there is a reader.
    readers: u32,
}

impl Hazards {
    /// Finds the dependencies of items, in an order in which they could be executed.
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

    /// The dependencies that were found last.
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
