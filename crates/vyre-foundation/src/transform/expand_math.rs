//! Expansion of math library functions into basic operations.

use crate::Validated;
use crate::ir::{BlockId, Inst, InstId, Op, Program, Pure, Type};
use crate::math::{self, Emitter, Precision};
use crate::validate;

use super::{emit, replace_insts};

/// Expands all functions of the [math library](crate::math) but those of f32 for which `keep` is true. A program without any is returned
/// unchanged.
///
/// A function of f16 becomes that of f32 between two conversions, so it is computed by the device too if `keep` is true.
pub fn expand_math(program: &Validated<Program>, keep: impl Fn(Pure) -> bool) -> Validated<Program> {
    let selects = |inst: &Inst| match inst.op {
        Op::Pure(op) if op.is_composed() => {
            let ty = program.ty(inst.results[0]);
            Some((op, ty)).filter(|_| ty != Type::F32 || !keep(op))
        }
        _ => None,
    };
    let expand = |program: &mut Program, block, inst, (op, ty)| match ty {
        Type::F16 => expand_through_f32(program, block, inst, op, keep(op)),
        Type::F64 => expand::<f64>(program, block, inst, op),
        _ => expand::<f32>(program, block, inst, op),
    };
    match replace_insts(program, selects, |program, block, inst, function, _| expand(program, block, inst, function)) {
        Some(expanded) => {
            validate::program(expanded).expect("expansions are well-typed and keep the order of definitions")
        }
        None => program.clone(),
    }
}

/// Appends the expansion of a function to the block. The function's instruction becomes the last operation of the
/// expansion and keeps its result.
fn expand<P: Precision>(program: &mut Program, block: BlockId, inst: InstId, op: Pure) {
    let function = program.inst(inst).clone();
    let emitter = Emitter::<P>::new(program, block, function.span);
    math::apply(&emitter, op, &function.operands).expect("the library has all functions");
    let last = program.block_mut(block).insts.pop().expect("a function is at least one operation");
    let last = program.inst(last).clone();
    *program.inst_mut(inst) = Inst { results: function.results, ..last };
    program.block_mut(block).insts.push(inst);
}

/// Appends conversions of the operands to f32 and a function of f32, expanded or as one operation. The function's own instruction becomes
/// the conversion of the result.
fn expand_through_f32(program: &mut Program, block: BlockId, inst: InstId, op: Pure, keep: bool) {
    let function = program.inst(inst).clone();
    let widened: Vec<_> = function
        .operands
        .iter()
        .map(|&operand| emit(program, block, Pure::Cast, &[operand], Type::F32, function.span))
        .collect();
    let result = if keep {
        emit(program, block, op, &widened, Type::F32, function.span)
    } else {
        let emitter = Emitter::<f32>::new(program, block, function.span);
        math::apply(&emitter, op, &widened).expect("the library has all functions")
    };
    *program.inst_mut(inst) = Inst { op: Pure::Cast.into(), operands: [result].into_iter().collect(), ..function };
    program.block_mut(block).insts.push(inst);
}
