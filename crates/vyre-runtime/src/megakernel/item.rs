//! Work items, and what an op does with the memory that they name.

use bytemuck::{Pod, Zeroable};

/// One piece of work. The queue of a device holds it as these four words, in this order.
///
/// The default, all zeros, is an item that does nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct WorkItem {
    /// What is done.
    pub op_handle: u32,
    /// What it is done with.
    pub input_handle: u32,
    /// Where the result goes.
    pub output_handle: u32,
    /// A number, or a third handle: the op says which.
    pub param: u32,
}

/// What an op does with one of the three words that may name memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Access {
    /// The word is a number, or is not looked at.
    None = 0,
    /// Reads what it names.
    Read = 1,
    /// Writes there, without a look at what was there.
    Write = 2,
    /// Reads and writes: works in place, or accumulates.
    Update = 3,
}

impl Access {
    /// Whether what is written there before matters.
    pub const fn reads(self) -> bool {
        self as u8 & Access::Read as u8 != 0
    }

    /// Whether what is there changes.
    pub const fn writes(self) -> bool {
        self as u8 & Access::Write as u8 != 0
    }
}

/// What is known of an op. Pruning and the order of items both follow from this.
///
/// The default is an op of which nothing was declared: it reads its input, writes its output, and is not pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traits {
    /// Equal operands give equal results, and nothing else happens: no atomics, no hits.
    pub pure: bool,
    /// What it does with the input handle.
    pub input: Access,
    /// What it does with the output handle.
    pub output: Access,
    /// What it does with the parameter, if that is a handle.
    pub param: Access,
}

impl Default for Traits {
    fn default() -> Traits {
        Traits { pure: false, input: Access::Read, output: Access::Write, param: Access::None }
    }
}

impl Traits {
    /// The words of an item, and what is done with them.
    pub const fn accesses(self, item: &WorkItem) -> [(u32, Access); 3] {
        [(item.input_handle, self.input), (item.output_handle, self.output), (item.param, self.param)]
    }

    /// Whether an item reads what it writes itself, by one handle or by two that are equal.
    pub fn feeds_itself(self, item: &WorkItem) -> bool {
        let accesses = self.accesses(item);
        accesses
            .iter()
            .any(|(read, how)| how.reads() && accesses.iter().any(|(written, how)| how.writes() && read == written))
    }
}
