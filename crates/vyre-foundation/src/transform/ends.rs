//! Stages whose invocations end early: others follow them, so a `return` may only end the stage.
//!
//! What follows a branch that one arm leaves goes into the other arm. Where that is not possible, the rest of the stage becomes a
//! loop that is executed once, and `return` leaves it; a loop inside of it also says whether the invocation ended there.

use crate::ir::{BlockId, Cursor, Def, InstId, Literal, Op, Program, Renaming, Value, ValueId, Values};

/// Makes every `return` inside of a block, which ends in `return` or `yield` itself, lead to its end.
pub(super) fn contain(program: &mut Program, block: BlockId) {
    let Some(at) = program.blocks[block].insts.iter().position(|&id| returns(program, id)) else { return };
    let id = program.blocks[block].insts[at];
    if !program.insts[id].op.is_terminator() {
        let rest = program.blocks[block].insts.split_off(at + 1);
        if !nest(program, id, &rest) {
            let body = program.block();
            program.blocks[body].insts = std::iter::once(id).chain(rest).collect();
            program.blocks[block].insts.pop();
            escape(program, body, &[]);
            end(program, body, Op::Break);
            program.push(block, Op::Loop, [], &[], [body], Default::default());
        }
        program.push(block, Op::Yield, [], &[], [], Default::default());
    }
    end(program, block, Op::Yield);
}

/// Moves what follows a branch into the only arm that leads there, and has the arms end where the branch does.
fn nest(program: &mut Program, id: InstId, rest: &[InstId]) -> bool {
    let arms = program.insts[id].blocks.clone();
    let leads_on = |arm: &BlockId| last(program, *arm).is_some_and(|end| program.insts[end].op == Op::Yield);
    let leading: Vec<BlockId> = arms.iter().copied().filter(leads_on).collect();
    let into = match leading[..] {
        _ if program.insts[id].op == Op::Loop => return false,
        // Nothing but the end follows.
        _ if rest.len() == 1 => None,
        [] => None,
        [only] => Some(only),
        _ => return false,
    };
    if let Some(into) = into {
        let mut renaming = Renaming::default();
        let given = program.blocks[into].insts.pop().map(|end| program.insts[end].operands.clone()).unwrap_or_default();
        renaming.replace_all(&program.insts[id].results, &given);
        renaming.apply_nested(program, rest);
        program.blocks[into].insts.extend_from_slice(rest);
    }
    program.insts[id].results.clear();
    for arm in arms {
        end(program, arm, Op::Yield);
        contain(program, arm);
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
        match program.insts[id].op {
            Op::Return => {
                program.insts[id].op = Op::Break;
                program.insts[id].operands = values.into();
            }
            Op::Loop => {
                let (goes_on, ended) = (program.literal(false), program.literal(true));
                let types: Vec<_> = program.insts[id].results.iter().map(|&result| program.ty(result)).collect();
                let zeros = types.into_iter().map(|ty| program.literal(Literal::zero(ty)));
                let given: Values = zeros.chain([ended]).collect();
                let body = program.insts[id].blocks[0];
                for exit in crate::analysis::exits_of(program, body).breaks {
                    program.insts[exit].operands.push(goes_on);
                }
                escape(program, body, &given);
                let def = Def::Result(id, program.insts[id].results.len() as u32);
                let has_ended = program.values.push(Value { ty: crate::ir::Type::Bool, def });
                program.insts[id].results.push(has_ended);
                let span = program.insts[id].span;
                let (leave, stay) = (program.block(), program.block());
                program.push(leave, Op::Break, values.iter().copied(), &[], [], span);
                program.push(stay, Op::Yield, [], &[], [], span);
                cursor.insert(program.make(Op::If, [has_ended], &[], [leave, stay], span));
            }
            _ => {
                for nested in program.insts[id].blocks.clone() {
                    escape(program, nested, values);
                }
            }
        }
    }
    cursor.finish(program);
}

fn returns(program: &Program, id: InstId) -> bool {
    let inst = &program.insts[id];
    let nested = |&block: &BlockId| program.blocks[block].insts.iter().any(|&id| returns(program, id));
    inst.op == Op::Return || inst.blocks.iter().any(nested)
}

fn last(program: &Program, block: BlockId) -> Option<InstId> {
    program.blocks[block].insts.last().copied()
}

/// Gives a block that ends in `return` or `yield` another end.
fn end(program: &mut Program, block: BlockId, op: Op) {
    if let Some(end) = last(program, block) {
        program.insts[end].op = op;
        program.insts[end].operands.clear();
    }
}
