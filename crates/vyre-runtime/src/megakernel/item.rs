//! Work items, and accesses of ops to the memory that items name.

use bytemuck::{Pod, Zeroable};

/// A work item: an op and its operands, as four words.
///
/// The default, all zeros, is a no-op.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct WorkItem {
    /// The op.
    pub op_handle: u32,
    /// Memory of the input.
    pub input_handle: u32,
    /// Memory of the output.
    pub output_handle: u32,
    /// A scalar or a third handle, according to the op.
    pub param: u32,
}

/// Access of an op to the memory of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Access {
    /// None: the word is a scalar or unused.
    None = 0,
    /// Reads.
    Read = 1,
    /// Overwrites without reading.
    Write = 2,
    /// Reads and writes: in-place or accumulating.
    Update = 3,
}

impl Access {
    /// Returns true for accesses that read.
    pub const fn reads(self) -> bool {
        self as u8 & Access::Read as u8 != 0
    }

    /// Returns true for accesses that write.
    pub const fn writes(self) -> bool {
        self as u8 & Access::Write as u8 != 0
    }
}

/// Effects of an op, for pruning and for hazards between items.
///
/// The default reads its input, writes its output, and is not pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traits {
    /// Results depend only on operands, and there are no other effects: no atomics, no hits.
    pub pure: bool,
    /// Access to the input.
    pub input: Access,
    /// Access to the output.
    pub output: Access,
    /// Access to the parameter, if it is a handle.
    pub param: Access,
}

impl Default for Traits {
    fn default() -> Traits {
        Traits { pure: false, input: Access::Read, output: Access::Write, param: Access::None }
    }
}

impl Traits {
    /// Returns the operands of an item with their accesses.
    pub const fn accesses(self, item: &WorkItem) -> [(u32, Access); 3] {
        [(item.input_handle, self.input), (item.output_handle, self.output), (item.param, self.param)]
    }

    /// Returns true if an item reads memory that it writes, through one handle or two equal ones.
    pub fn feeds_itself(self, item: &WorkItem) -> bool {
        let accesses = self.accesses(item);
        accesses
            .iter()
            .any(|(read, how)| how.reads() && accesses.iter().any(|(written, how)| how.writes() && read == written))
    }
}
