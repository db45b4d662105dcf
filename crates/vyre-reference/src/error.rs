//! The one error of this crate.

use vyre_foundation::error_table;

error_table! {
    /// Why a dispatch cannot begin.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Error;

    /// A subgroup size that no device has.
    R001 SubgroupSize {
        /// The size.
        size: u32,
    } ("a subgroup of {size} lanes is not possible"), help "use a power of two from 1 to 128";

    /// A slice of a buffer that does not exist.
    R002 NoSuchBuffer {
        /// The object.
        name: String,
        /// The buffer.
        buffer: u64,
        /// How many there are.
        count: usize,
    } ("`{name}` is bound to buffer {buffer}, but there are {count}"), help "pass every buffer that an argument names";

    /// A slice that reaches beyond its buffer.
    R003 BeyondBuffer {
        /// The object.
        name: String,
        /// Where the slice starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// How large the buffer is.
        size: usize,
    } ("`{name}` is bound to bytes {start}..{end} of a buffer of {size}"), help "bind a part that lies inside the buffer";

    /// There is no memory for the registers or arrays of a workgroup.
    R004 OutOfMemory {
        /// How much was asked for.
        requested: u64,
    } ("{requested} bytes for the registers and arrays of a workgroup cannot be allocated"),
    help "use smaller workgroups or arrays, or free memory";
}
