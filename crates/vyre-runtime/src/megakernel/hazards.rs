//! What items have to wait for: reads after writes, writes after reads, and writes after writes of the same memory.

use vyre_driver::plan::barrier::Dependency;

use super::op::Op;
use super::slice::Resolved;

/// Finds dependencies, and keeps the memory that this takes.
#[derive(Default)]
pub(super) struct Hazards {
    /// By handle.
    uses: Vec<Uses>,
    touched: Vec<u32>,
    /// Readers, each with the one before it that reads the same.
    readers: Vec<(u32, u32)>,
    dependencies: Vec<Dependency>,
}

/// Who used some memory last, as one more than a position; 0 is nobody.
#[derive(Clone, Copy, Default)]
struct Uses {
    writer: u32,
    /// The last of the readers since then.
    reader: u32,
}

impl Hazards {
    /// Finds the dependencies of items, in an order in which they could be executed.
    pub(super) fn find(&mut self, items: &[Resolved], ops: &[Op], handles: usize) {
        for handle in self.touched.drain(..) {
            self.uses[handle as usize] = Uses::default();
        }
        self.readers.clear();
        self.dependencies.clear();
        self.uses.resize(handles.max(self.uses.len()), Uses::default());
        for (after, item) in items.iter().enumerate() {
            let op = item.op(ops);
            let handles = [item.item.input_handle, item.item.output_handle, item.item.param];
            for (object, handle) in op.views.into_iter().zip(handles) {
                let Some(object) = object else { continue };
                self.touch(after, handle, op.body.program.memory[object].writable());
            }
        }
    }

    /// The dependencies that were found last.
    pub(super) fn dependencies(&self) -> &[Dependency] {
        &self.dependencies
    }

    fn touch(&mut self, after: usize, handle: u32, writes: bool) {
        let uses = &mut self.uses[handle as usize];
        if uses.writer == 0 && uses.reader == 0 {
            self.touched.push(handle);
        }
        let mut depend = |before: u32| {
            let before = before as usize - 1;
            // An item may name a handle twice.
            if before != after {
                self.dependencies.push(Dependency { before, after });
            }
        };
        if writes && uses.reader != 0 {
            let mut reader = uses.reader;
            while reader != 0 {
                let (item, earlier) = self.readers[reader as usize - 1];
                depend(item);
                reader = earlier;
            }
        } else if uses.writer != 0 {
            depend(uses.writer);
        }
        if writes {
            *uses = Uses { writer: after as u32 + 1, reader: 0 };
        } else {
            self.readers.push((after as u32 + 1, uses.reader));
            uses.reader = self.readers.len() as u32;
        }
    }
}
