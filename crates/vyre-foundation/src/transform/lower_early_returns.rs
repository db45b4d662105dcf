//! Lowering of early returns: in a fused or embedded program other stages follow, so a `return` may only end its own stage.
//!
//! What follows a branch that one arm leaves goes into the other arm. Where that is not possible, the rest of the stage becomes a
//! loop that is executed once, and `return` leaves it; a loop inside of it also says whether the invocation ended there.

use crate::ir::{BlockId, Control, Cursor, InstId, Literal, Op, Program, Renaming, Terminator, Type, ValueId, Values};

/// Makes every `return` inside of a block, which ends in `return` or `yield` itself, lead to its end.
pub(super) fn run(program: &mut Program, block: BlockId) {
    let Some(at) = program.block(block).insts.iter().position(|&id| returns(program, id)) else { return };
    let id = program.block(block).insts[at];
    if !program.inst(id).op.is_terminator() {
        let rest = program.block_mut(block).insts.split_off(at + 1);
        if !nest(program, id, &rest) {
            let body = program.add_block();
            program.block_mut(body).insts = std::iter::once(id).chain(rest).collect();
            program.block_mut(block).insts.pop();
            escape(program, body, &[]);
            end(program, body, Op::Terminator(Terminator::Break));
            program.push(block, Control::Loop, [], &[], [body], Default::default());
        }
        program.push(block, Terminator::Yield, [], &[], [], Default::default());
    }
    end(program, block, Op::Terminator(Terminator::Yield));
}

/// Moves what follows a branch into the only arm that leads there, and has the arms end where the branch does.
fn nest(program: &mut Program, id: InstId, rest: &[InstId]) -> bool {
    let arms = program.inst(id).blocks.clone();
    let leads_on = |arm: &BlockId| last(program, *arm).is_some_and(|end| program.inst(end).op == Terminator::Yield);
    let leading: Vec<BlockId> = arms.iter().copied().filter(leads_on).collect();
    let into = match leading[..] {
        _ if program.inst(id).op == Control::Loop => return false,
        // Nothing but the end follows.
        _ if rest.len() == 1 => None,
        [] => None,
        [only] => Some(only),
        _ => return false,
    };
    if let Some(into) = into {
        let mut renaming = Renaming::default();
        let given =
            program.block_mut(into).insts.pop().map(|end| program.inst(end).operands.clone()).unwrap_or_default();
        renaming.replace_all(&program.inst(id).results, &given);
        renaming.apply_nested(program, rest);
        program.block_mut(into).insts.extend_from_slice(rest);
    }
    program.inst_mut(id).results.clear();
    for arm in arms {
        end(program, arm, Op::Terminator(Terminator::Yield));
        run(program, arm);
    }
    true
}

/// Turns `return` into leaving the innermost loop, which gives `values` then.
fn escape(program: &mut Program, block: BlockId, values: &[ValueId]) {
    let mut cursor = Cursor::at_start(program, block);
    while let Some(id) = cursor.next() {
        cursor.insert(id);
        if !returns(program, id) {
            continue;
        }
        match program.inst(id).op {
            Op::Terminator(Terminator::Return) => {
                program.inst_mut(id).op = Op::Terminator(Terminator::Break);
                program.inst_mut(id).operands = values.into();
            }
            Op::Control(Control::Loop) => {
                let (goes_on, ended) = (program.literal(false), program.literal(true));
                let types: Vec<_> = program.inst(id).results.iter().map(|&result| program.ty(result)).collect();
                let zeros = types.into_iter().map(|ty| program.literal(Literal::zero(ty)));
                let given: Values = zeros.chain([ended]).collect();
                let body = program.inst(id).blocks[0];
                for exit in crate::analysis::exits_of(program, body).breaks {
                    program.inst_mut(exit).operands.push(goes_on);
                }
                escape(program, body, &given);
                let has_ended = program.add_result(id, Type::Bool);
                let span = program.inst(id).span;
                let (leave, stay) = (program.add_block(), program.add_block());
                program.push(leave, Terminator::Break, values.iter().copied(), &[], [], span);
                program.push(stay, Terminator::Yield, [], &[], [], span);
                cursor.insert(program.make(Control::If, [has_ended], &[], [leave, stay], span));
            }
            _ => {
                for nested in program.inst(id).blocks.clone() {
                    escape(program, nested, values);
                }
            }
        }
    }
    cursor.finish(program);
}

fn returns(program: &Program, id: InstId) -> bool {
    let inst = program.inst(id);
    let nested = |&block: &BlockId| program.block(block).insts.iter().any(|&id| returns(program, id));
    inst.op == Terminator::Return || inst.blocks.iter().any(nested)
}

fn last(program: &Program, block: BlockId) -> Option<InstId> {
    program.block(block).insts.last().copied()
}

/// Gives a block that ends in `return` or `yield` another end.
fn end(program: &mut Program, block: BlockId, op: Op) {
    if let Some(end) = last(program, block) {
        program.inst_mut(end).op = op;
        program.inst_mut(end).operands.clear();
    }
}
