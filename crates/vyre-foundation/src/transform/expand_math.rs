//! Functions of the math library become the operations that they are made of.

use crate::Validated;
use crate::ir::{BlockId, Cursor, Inst, InstId, Op, Program, Pure};
use crate::math::{self, Emitter};
use crate::validate;

/// Puts other operations in the place of all functions of the [math library](crate::math) but those that are kept. Most programs
/// have none, and are given back as they are.
pub fn expand_math(program: &Validated<Program>, keep: impl Fn(Pure) -> bool) -> Validated<Program> {
    let expands = |op: &Op| match op {
        Op::Pure(op) => Some(*op).filter(|&op| op.is_composed() && !keep(op)),
        _ => None,
    };
    let mut found = false;
    program.walk(|inst, _| found |= expands(&program.inst(inst).op).is_some());
    if !found {
        return program.clone();
    }
    let mut expanded = (**program).clone();
    for block in program.blocks().keys() {
        let mut cursor = Cursor::at_start(&mut expanded, block);
        while let Some(inst) = cursor.next() {
            if let Some(op) = expands(&expanded.inst(inst).op) {
                expand(&mut expanded, block, inst, op);
                cursor.insert_all(std::mem::take(&mut expanded.block_mut(block).insts));
            }
            cursor.insert(inst);
        }
        cursor.finish(&mut expanded);
    }
    let expanded = validate::program(expanded);
    expanded.expect("the library is typed, and its operations stand in order where the function stood")
}

/// Appends the operations of a function to the block, except for the last: the function's own instruction becomes that, so
/// that its result stays what it is.
fn expand(program: &mut Program, block: BlockId, inst: InstId, op: Pure) {
    let function = program.inst(inst).clone();
    let emitter = Emitter::new(program, block, function.span);
    math::apply(&emitter, op, &function.operands).expect("the library has all functions");
    let last = program.block_mut(block).insts.pop().expect("a function is at least one operation");
    let last = program.inst(last).clone();
    *program.inst_mut(inst) = Inst { results: function.results, ..last };
}
