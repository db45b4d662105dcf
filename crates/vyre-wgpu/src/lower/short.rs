//! Loops that are short by their own arithmetic: nobody has to watch over them.

use vyre_foundation::ir::{BlockId, Def, InstId, Op, Program, ValueId};

/// More trips than this are not short.
const SHORT: u64 = 4096;

/// The loops of a program that count from a constant to a constant: their first two instructions compare a u32 parameter
/// with a literal and break, and every `continue` adds a literal to it. With each, the most trips that it takes, the one
/// that breaks included.
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
    let &[compare, branch, ..] = program.blocks[body].insts.as_slice() else { return None };
    let (compare, branch) = (&program.insts[compare], &program.insts[branch]);
    let leaves =
        |block: BlockId| program.blocks[block].insts.last().is_some_and(|&end| program.insts[end].op == Op::Break);
    let leaving = match compare.op {
        Op::Ge => 0,
        Op::Lt => 1,
        _ => return None,
    };
    if branch.op != Op::If || branch.operands[0] != compare.results[0] || !leaves(branch.blocks[leaving]) {
        return None;
    }
    let Def::Param(block, position) = program.values[compare.operands[0]].def else { return None };
    if block != body {
        return None;
    }
    let counter = compare.operands[0];
    let known = |value: ValueId| program.known(value).and_then(vyre_foundation::ir::Literal::value::<u32>);
    let start = u64::from(known(inst.operands[position as usize])?);
    let bound = u64::from(known(compare.operands[1])?);
    let step = least_step(program, body, counter, position as usize)?;
    // The counter must not wrap past the bound.
    let trips = bound.saturating_sub(start).div_ceil(step.0) + 1;
    (bound + step.1 <= u64::from(u32::MAX)).then_some(trips)
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
