//! Expansion of math library functions into basic operations.

use crate::Validated;
use crate::ir::{BlockId, Inst, InstId, Op, Program, Pure};
use crate::math::{self, Emitter};
use crate::validate;

use super::replace_insts;

/// Expands the functions of the [math library](crate::math), except those that `keep` selects. Returns programs without
/// such functions unchanged.
pub fn expand_math(program: &Validated<Program>, keep: impl Fn(Pure) -> bool) -> Validated<Program> {
    let selects = |inst: &Inst| match inst.op {
        Op::Pure(op) => Some(op).filter(|&op| op.is_composed() && !keep(op)),
        _ => None,
    };
    match replace_insts(program, selects, |program, block, inst, op, _| expand(program, block, inst, op)) {
        Some(expanded) => {
            validate::program(expanded).expect("expansions are well-typed and keep the order of definitions")
        }
        None => program.clone(),
    }
}

/// Appends the expansion of a function to the block. The function's instruction becomes the last operation of the
/// expansion and keeps its result.
fn expand(program: &mut Program, block: BlockId, inst: InstId, op: Pure) {
    let function = program.inst(inst).clone();
    let emitter = Emitter::new(program, block, function.span);
    math::apply(&emitter, op, &function.operands).expect("the library has all functions");
    let last = program.block_mut(block).insts.pop().expect("a function is at least one operation");
    let last = program.inst(last).clone();
    *program.inst_mut(inst) = Inst { results: function.results, ..last };
    program.block_mut(block).insts.push(inst);
}
