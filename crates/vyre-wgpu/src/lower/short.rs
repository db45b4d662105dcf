//! Loops that are short by their own arithmetic: nobody has to watch over them.

use vyre_foundation::ir::{BlockId, Def, InstId, Literal, Op, Program, ValueId};

/// More trips than this are not short.
const SHORT: u64 = 4096;

/// The loops of a program that count from a constant to a constant: the first branch of each trip breaks if a u32 parameter has
/// reached a literal, perhaps also for other reasons, and every `continue` adds a literal to it. With each, the most trips that
/// it takes, the one that breaks included.
pub(super) fn loops(program: &Program) -> Vec<(InstId, u32)> {
    let mut short = Vec::new();
    program.walk(|id, _| {
        if program.insts[id].op == Op::Loop
            && let Some(trips) = trips(program, id).filter(|&trips| trips <= SHORT)
        {
            short.push((id, trips as u32));
        }
    });
    short
}

/// At most how many trips a loop takes, if that can be seen.
fn trips(program: &Program, id: InstId) -> Option<u64> {
    let inst = &program.insts[id];
    let body = inst.blocks[0];
    let mut insts = program.blocks[body].insts.iter().map(|&inst| &program.insts[inst]);
    let branch = insts.find(|inst| !inst.blocks.is_empty()).filter(|inst| inst.op == Op::If)?;
    let leaves =
        |block: BlockId| program.blocks[block].insts.last().is_some_and(|&end| program.insts[end].op == Op::Break);
    let leaving = branch.blocks.iter().position(|&block| leaves(block))?;
    let (counter, bound) = limit(program, branch.operands[0], leaving == 0, 8)?;
    let Def::Param(block, position) = program.values[counter].def else { return None };
    if block != body {
        return None;
    }
    let start = u64::from(known(program, inst.operands[position as usize])?);
    let step = least_step(program, body, counter, position as usize)?;
    // The counter must not wrap past the bound.
    let trips = bound.saturating_sub(start).div_ceil(step.0) + 1;
    (bound + step.1 <= u64::from(u32::MAX)).then_some(trips)
}

fn known(program: &Program, value: ValueId) -> Option<u32> {
    program.known(value).and_then(Literal::value::<u32>)
}

/// A counter and its bound: whenever the one has reached the other, the condition is `leaving`. They are looked for this deep in it.
fn limit(program: &Program, condition: ValueId, leaving: bool, depth: u32) -> Option<(ValueId, u64)> {
    let Def::Result(inst, _) = program.values[condition].def else { return None };
    let inst = &program.insts[inst];
    let compared = |more: u64| Some((inst.operands[0], u64::from(known(program, inst.operands[1])?) + more));
    match (&inst.op, leaving) {
        (Op::Ge, true) | (Op::Lt, false) => compared(0),
        (Op::Gt, true) | (Op::Le, false) => compared(1),
        (Op::Or, true) | (Op::And, false) if depth > 0 => {
            inst.operands.iter().find_map(|&operand| limit(program, operand, leaving, depth - 1))
        }
        _ => None,
    }
}

/// The least and the greatest of what the `continue`s of a loop add to its counter; `None` if one does something else.
fn least_step(program: &Program, block: BlockId, counter: ValueId, position: usize) -> Option<(u64, u64)> {
    let mut steps: Option<(u64, u64)> = None;
    let mut pending = vec![block];
    while let Some(block) = pending.pop() {
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            match inst.op {
                Op::Continue => {
                    let Def::Result(next, _) = program.values[inst.operands[position]].def else { return None };
                    let next = &program.insts[next];
                    if next.op != Op::Add || next.operands[0] != counter {
                        return None;
                    }
                    let step = program.known(next.operands[1])?.value::<u32>().filter(|&step| step > 0)?;
                    let (least, most) = steps.unwrap_or((u64::MAX, 0));
                    steps = Some((least.min(u64::from(step)), most.max(u64::from(step))));
                }
                // The exits inside belong to it.
                Op::Loop => {}
                _ => pending.extend(&inst.blocks),
            }
        }
    }
    // Without a `continue` there is only one trip.
    Some(steps.unwrap_or((1, 0)))
}
