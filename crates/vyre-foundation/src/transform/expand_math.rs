//! Functions of the math library become the operations that they are made of.

use std::borrow::Cow;

use crate::Validated;
use crate::ir::{BlockId, Cursor, Inst, InstId, Op, Program};
use crate::math::{self, Emitter};
use crate::validate;

/// Puts other operations in the place of all functions of the [math library](crate::math) but those that are kept. Most programs
/// have none, and are given back as they are.
pub fn expand_math(program: &Validated<Program>, keep: impl Fn(&Op) -> bool) -> Cow<'_, Validated<Program>> {
    let expands = |op: &Op| op.is_composed() && !keep(op);
    let mut found = false;
    program.walk(|inst, _| found |= expands(&program.insts[inst].op));
    if !found {
        return Cow::Borrowed(program);
    }
    let mut expanded = (**program).clone();
    for block in program.blocks.keys() {
        let mut cursor = Cursor::at_start(&mut expanded, block);
        while let Some(inst) = cursor.next() {
            if expands(&expanded.insts[inst].op) {
                expand(&mut expanded, block, inst);
                cursor.insert_all(std::mem::take(&mut expanded.blocks[block].insts));
            }
            cursor.insert(inst);
        }
        cursor.finish(&mut expanded);
    }
    let expanded = validate::program(expanded);
    Cow::Owned(expanded.expect("the library is typed, and its operations stand in order where the function stood"))
}

/// Appends the operations of a function to the block, except for the last: the function's own instruction becomes that, so
/// that its result stays what it is.
fn expand(program: &mut Program, block: BlockId, inst: InstId) {
    let function = program.insts[inst].clone();
    let emitter = Emitter::new(program, block, function.span);
    math::apply(&emitter, &function.op, &function.operands).expect("the library has all functions");
    let last = program.blocks[block].insts.pop().expect("a function is at least one operation");
    let last = program.insts[last].clone();
    program.insts[inst] = Inst { results: function.results, ..last };
}
