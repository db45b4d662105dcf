//! Errors of the code generator: reasons for the portable fallback. Their text follows "no machine code: ".

use std::io;

use iced_x86::{Code, IcedError};

use super::machine::BlockId;
use crate::stack::MAX_FRAME;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Private arrays accessed as several types cannot become arrays of words.
    #[error(transparent)]
    Private(#[from] vyre_foundation::Error),
    #[error("values live across barriers take {bytes} bytes per workgroup, more than {}", super::MAX_SPILL_BYTES)]
    Spill { bytes: u64 },
    #[error("the stack frame takes {bytes} bytes, more than {}", MAX_FRAME)]
    Frame { bytes: usize },
    #[error("code is too large")]
    Size,
    #[error("cannot {action} {bytes} bytes for code: {error}")]
    Pages { action: &'static str, bytes: usize, error: io::Error },
    #[error("registers cannot be allocated: {0}")]
    Registers(regalloc2::RegAllocError),
    /// Failed encoding of an instruction that was lowered from the IR instruction `origin`.
    #[error("{code:?} of {origin}: {error}")]
    Inst { code: Code, origin: u32, error: Box<Error> },
    #[error(transparent)]
    Encoding(#[from] IcedError),
    #[error("block {} has no terminator", .0.0)]
    OpenBlock(BlockId),
    #[error("block {} passes a wrong number of arguments", .0.0)]
    Arguments(BlockId),
    #[error("{0:?} is not a conditional jump")]
    Condition(Code),
    /// Another bug of the instruction selection.
    #[error("{0}")]
    Malformed(&'static str),
}
