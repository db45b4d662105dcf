//! Work items.

/// A piece of work: an operation on parts of the arena. One of zeros does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct WorkItem {
    /// The operation.
    pub op_handle: u32,
    /// What it reads.
    pub input_handle: u32,
    /// What it writes.
    pub output_handle: u32,
    /// A scalar or a third handle: the operation says which.
    pub param: u32,
}
