//! Lowering of early returns: in a fused or inlined program other stages follow, so a `return` must only end its own
//! stage.
//!
//! The rest of a block after a branch with one returning arm moves into the other arm. If that is not possible, the
//! stage becomes a loop that executes once, `return` becomes `break`, and nested loops return a flag that tells whether
//! the invocation has returned.

use crate::ir::{BlockId, Control, Cursor, InstId, Literal, Op, Program, Renaming, Terminator, Type, ValueId, Values};

/// Redirects every `return` in a block to the end of the block, which itself ends in `return` or `yield`.
pub(super) fn run(program: &mut Program, block: BlockId) {
    let Some(at) = program.block(block).insts.iter().position(|&id| returns(program, id)) else { return };
    let id = program.block(block).insts[at];
    if !program.inst(id).op.is_terminator() {
        let rest = program.block_mut(block).insts.split_off(at + 1);
        if !sink_rest(program, id, &rest) {
            let body = program.add_block();
            program.block_mut(body).insts = std::iter::once(id).chain(rest).collect();
            program.block_mut(block).insts.pop();
            returns_to_breaks(program, body, &[]);
            set_terminator(program, body, Op::Terminator(Terminator::Break));
            program.push(block, Control::Loop, [], &[], [body], Default::default());
        }
        program.push(block, Terminator::Yield, [], &[], [], Default::default());
    }
    set_terminator(program, block, Op::Terminator(Terminator::Yield));
}

/// Moves the code after a branch into the only arm that falls through, so that all arms end where the branch does.
fn sink_rest(program: &mut Program, id: InstId, rest: &[InstId]) -> bool {
    let arms = program.inst(id).blocks.clone();
    let falls_through =
        |arm: &BlockId| last(program, *arm).is_some_and(|end| program.inst(end).op == Terminator::Yield);
    let fall_through_arms: Vec<BlockId> = arms.iter().copied().filter(falls_through).collect();
    let into = match fall_through_arms[..] {
        _ if program.inst(id).op == Control::Loop => return false,
        // Only the terminator follows.
        _ if rest.len() == 1 => None,
        [] => None,
        [only] => Some(only),
        _ => return false,
    };
    if let Some(into) = into {
        let mut renaming = Renaming::default();
        let operands =
            program.block_mut(into).insts.pop().map(|end| program.inst(end).operands.clone()).unwrap_or_default();
        renaming.replace_all(&program.inst(id).results, &operands);
        renaming.apply_nested(program, rest);
        program.block_mut(into).insts.extend_from_slice(rest);
    }
    program.inst_mut(id).results.clear();
    for arm in arms {
        set_terminator(program, arm, Op::Terminator(Terminator::Yield));
        run(program, arm);
    }
    true
}

/// Replaces `return` by a `break` of the innermost loop with these operands.
fn returns_to_breaks(program: &mut Program, block: BlockId, values: &[ValueId]) {
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
                let operands: Values = zeros.chain([ended]).collect();
                let body = program.inst(id).blocks[0];
                for exit in crate::analysis::exits_of(program, body).breaks {
                    program.inst_mut(exit).operands.push(goes_on);
                }
                returns_to_breaks(program, body, &operands);
                let has_ended = program.add_result(id, Type::Bool);
                let span = program.inst(id).span;
                let (leave, stay) = (program.add_block(), program.add_block());
                program.push(leave, Terminator::Break, values.iter().copied(), &[], [], span);
                program.push(stay, Terminator::Yield, [], &[], [], span);
                cursor.insert(program.make(Control::If, [has_ended], &[], [leave, stay], span));
            }
            _ => {
                for nested in program.inst(id).blocks.clone() {
                    returns_to_breaks(program, nested, values);
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

/// Replaces the terminator of a block that ends in `return` or `yield`.
fn set_terminator(program: &mut Program, block: BlockId, op: Op) {
    if let Some(end) = last(program, block) {
        program.inst_mut(end).op = op;
        program.inst_mut(end).operands.clear();
    }
}
