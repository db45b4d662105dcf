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
    #[error("its workgroups keep {bytes} bytes over barriers")]
    Kept { bytes: u64 },
    #[error("a stack frame of {bytes} bytes, more than {}", MAX_FRAME)]
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
    #[error("block {} is not ended", .0.0)]
    OpenBlock(BlockId),
    #[error("block {} passes a wrong number of arguments", .0.0)]
    Arguments(BlockId),
    #[error("{0:?} is no conditional jump")]
    Condition(Code),
    /// Another bug of the instruction selection.
    #[error("{0}")]
    Malformed(&'static str),
}
