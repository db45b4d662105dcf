//! The one error of this crate.

/// Why a dispatch cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A subgroup size that no device has.
    #[error("a subgroup of {size} lanes is not possible")]
    SubgroupSize {
        /// The size.
        size: u32,
    },
    /// There is no memory for the registers or arrays of a workgroup.
    #[error("{requested} bytes for the registers and arrays of a workgroup cannot be allocated")]
    OutOfMemory {
        /// How much was asked for.
        requested: u64,
    },
    /// A slice of a buffer that does not exist.
    #[error("`{name}` is bound to buffer {buffer}, but there are {count}")]
    NoSuchBuffer {
        /// The object.
        name: String,
        /// The buffer.
        buffer: u64,
        /// How many there are.
        count: usize,
    },
    /// A slice that reaches beyond its buffer.
    #[error("`{name}` is bound to bytes {start}..{end} of a buffer of {size}")]
    BeyondBuffer {
        /// The object.
        name: String,
        /// Where the slice starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// How large the buffer is.
        size: usize,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::SubgroupSize { .. } => "R001",
            Error::NoSuchBuffer { .. } => "R002",
            Error::BeyondBuffer { .. } => "R003",
            Error::OutOfMemory { .. } => "R004",
        }
    }

    /// How to fix it.
    pub fn help(&self) -> &'static str {
        match self {
            Error::SubgroupSize { .. } => "use a power of two from 1 to 128",
            Error::NoSuchBuffer { .. } => "pass every buffer that an argument names",
            Error::BeyondBuffer { .. } => "bind a part that lies inside the buffer",
            Error::OutOfMemory { .. } => "use smaller workgroups or arrays, or free memory",
        }
    }
}
