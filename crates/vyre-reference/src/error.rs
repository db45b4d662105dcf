//! Error of this crate.

use vyre_foundation::error_table;

error_table! {
    /// Reason why a dispatch cannot begin.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Error;

    /// Invalid subgroup size.
    R001 SubgroupSize {
        /// Subgroup size that was passed.
        size: u32,
    } ("subgroup size {size} is not a power of two from 1 to 128"), help "set `Options::subgroup_size` to the size of the device, such as 32";

    /// Slice of a buffer that does not exist.
    R002 NoSuchBuffer {
        /// The object.
        name: String,
        /// Index of the buffer.
        buffer: u64,
        /// Number of buffers passed.
        count: usize,
    } ("`{name}` is bound to buffer {buffer}, but only {count} buffers were passed"), help "pass every buffer that an argument names";

    /// Slice that exceeds its buffer.
    R003 BeyondBuffer {
        /// The object.
        name: String,
        /// Start of the slice in bytes.
        start: u64,
        /// End of the slice in bytes, exclusive.
        end: u64,
        /// Size of the buffer in bytes.
        size: usize,
    } ("`{name}` is bound to bytes {start}..{end} of a buffer of {size} bytes"), help format!("bind bytes 0..{size} or a part of them");

    /// The registers or arrays of a workgroup cannot be allocated.
    R004 OutOfMemory {
        /// Requested bytes.
        requested: u64,
    } ("{requested} bytes for the registers and arrays of a workgroup cannot be allocated"),
    help "use smaller workgroups or arrays, or free memory";
}
