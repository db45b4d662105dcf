//! Programs into programs that mean the same, and into parts of others.

mod atomic_loops;
pub mod embed;
mod expand_math;
pub mod fuse;
mod lower_early_returns;
mod private_words;

pub use atomic_loops::atomic_loops;
pub use expand_math::expand_math;
pub use private_words::private_words;

use crate::ir::{BlockId, Op, Program, Span, Type, ValueId};

/// Appends an operation with one result.
fn emit(program: &mut Program, to: BlockId, op: impl Into<Op>, operands: &[ValueId], ty: Type, span: Span) -> ValueId {
    let inst = program.push(to, op, operands.iter().copied(), &[ty], [], span);
    program.inst(inst).results[0]
}
