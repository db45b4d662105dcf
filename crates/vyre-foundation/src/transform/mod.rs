//! Transformations outside the optimizer: legalization, launch fusion, and inlining of programs.

mod atomic_loops;
mod bf16_words;
pub mod embed;
mod expand_math;
pub mod fuse;
mod lower_early_returns;
mod private_words;

pub use atomic_loops::{atomic_loops, integer_atomics};
pub use bf16_words::bf16_words;
pub use expand_math::expand_math;
pub use private_words::private_words;

use crate::Validated;
use crate::ir::{BlockId, Cursor, Inst, InstId, Op, Program, Renaming, Span, Type, ValueId};

/// Appends an operation with one result.
fn emit(program: &mut Program, to: BlockId, op: impl Into<Op>, operands: &[ValueId], ty: Type, span: Span) -> ValueId {
    let inst = program.push(to, op, operands.iter().copied(), &[ty], [], span);
    program.inst(inst).results[0]
}

/// Legalizes single instructions: replaces those that `selects` finds by the instructions that `replace` appends to the
/// block, and renames their results as `replace` specifies. Returns `None` if nothing is found.
fn replace_insts<T>(
    program: &Validated<Program>,
    selects: impl Fn(&Inst) -> Option<T>,
    mut replace: impl FnMut(&mut Program, BlockId, InstId, T, &mut Renaming),
) -> Option<Program> {
    let mut found = false;
    program.walk(|id, _| found |= selects(program.inst(id)).is_some());
    if !found {
        return None;
    }
    let mut replaced = (**program).clone();
    let mut renaming = Renaming::default();
    for block in program.blocks().keys() {
        let mut cursor = Cursor::at_start(&mut replaced, block);
        while let Some(id) = cursor.next() {
            match selects(replaced.inst(id)) {
                Some(how) => {
                    replace(&mut replaced, block, id, how, &mut renaming);
                    cursor.insert_appended(&mut replaced);
                }
                None => cursor.insert(id),
            }
        }
        cursor.finish(&mut replaced);
    }
    renaming.apply(&mut replaced);
    Some(replaced)
}
