//! Test case reduction by delta debugging.
//!
//! [`shrink`] tries simplifications, largest first: removing an instruction with everything nested in it, replacing a
//! branch by one arm, replacing an operand by a literal, removing a memory object or a constant. A valid candidate for
//! which the predicate still holds becomes the current program; the process repeats until no candidate succeeds.

use vyre_foundation::ir::{BlockId, Control, Def, InstId, Literal, Op, Program, Terminator, ValueId, Values};
use vyre_foundation::{Validated, validate};

/// Reduces `program` while the predicate holds, as it does for `program`.
pub fn shrink(program: &Validated<Program>, holds: &mut dyn FnMut(&Validated<Program>) -> bool) -> Validated<Program> {
    let mut best = program.clone();
    let mut candidates = candidates(&best);
    // Failed candidates rarely succeed after other changes, so they are retried only at the end.
    let (mut position, mut failures) = (0, 0);
    // Terminates: every accepted candidate is smaller.
    while failures < candidates.len() {
        match smaller(&best, &candidates[position % candidates.len()], holds) {
            Some(smaller) => {
                position %= candidates.len();
                failures = 0;
                candidates = self::candidates(&smaller);
                best = smaller;
            }
            None => {
                position += 1;
                failures += 1;
            }
        }
    }
    best
}

/// A simplification at one place.
type Candidate = Box<dyn Fn(&mut Program)>;

fn smaller(
    program: &Validated<Program>,
    change: &Candidate,
    holds: &mut dyn FnMut(&Validated<Program>) -> bool,
) -> Option<Validated<Program>> {
    let mut changed = (**program).clone();
    change(&mut changed);
    let candidate = validate::program(changed).ok()?;
    (size(&candidate) < size(program) && holds(&candidate)).then_some(candidate)
}

/// Lexicographic size: instructions, then operands that are not literals, then declarations and invocations.
fn size(program: &Program) -> (usize, usize, usize, u32) {
    let (mut nodes, mut operands) = (0, 0);
    program.walk(|id, _| {
        nodes += 1;
        let inst = program.inst(id);
        operands += inst.operands.iter().filter(|&&operand| !is_literal(program, operand)).count();
    });
    let declarations = program.memories().len() + program.constants().len();
    (nodes, operands, declarations, program.workgroup_size().iter().product())
}

fn candidates(program: &Program) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut operands: Vec<Candidate> = Vec::new();
    let places = places(program);
    // From the end: unused values are removed first, then their operands.
    for &(block, position, id) in places.iter().rev() {
        let inst = program.inst(id);
        if !inst.op.is_terminator() {
            candidates.push(Box::new(move |program| remove_inst(program, block, position)));
        }
        if matches!(inst.op, Op::Control(Control::If | Control::Switch(_) | Control::Region(_))) {
            for arm in 0..inst.blocks.len() {
                candidates.push(Box::new(move |program| take_arm(program, block, position, arm)));
            }
        }
        if inst.op == Control::Loop {
            candidates.push(Box::new(move |program| take_body(program, block, position)));
        }
        for operand in 0..inst.operands.len() {
            if !is_literal(program, inst.operands[operand]) {
                operands.push(Box::new(move |program| {
                    let zero = Literal::zero(program.ty(program.inst(id).operands[operand]));
                    program.inst_mut(id).operands[operand] = program.literal(zero);
                }));
            }
        }
    }
    candidates.append(&mut operands);
    for memory in program.memories().keys() {
        let used = places.iter().any(|(_, _, id)| program.inst(*id).op.memory() == Some(memory));
        if !used {
            candidates.push(Box::new(move |program| program.retain_memories(|id, _| id != memory)));
        }
    }
    for constant in program.constants().keys() {
        let is = |value: &ValueId| program.def(*value) == Def::Constant(constant);
        if !places.iter().any(|(_, _, id)| program.inst(*id).operands.iter().any(is)) {
            candidates.push(Box::new(move |program| program.remove_constant(constant)));
        }
    }
    if program.workgroup_size() != [1, 1, 1] {
        candidates.push(Box::new(|program| program.set_workgroup_size([1, 1, 1])));
        candidates.push(Box::new(|program| {
            let [x, y, z] = program.workgroup_size();
            program.set_workgroup_size([x.div_ceil(2), y.div_ceil(2), z.div_ceil(2)]);
        }));
    }
    candidates
}

fn is_literal(program: &Program, value: ValueId) -> bool {
    matches!(program.def(value), Def::Literal(_))
}

/// Instructions in text order, with their block and position.
fn places(program: &Program) -> Vec<(BlockId, usize, InstId)> {
    fn visit(program: &Program, block: BlockId, places: &mut Vec<(BlockId, usize, InstId)>) {
        for (position, &id) in program.block(block).insts.iter().enumerate() {
            places.push((block, position, id));
            for &nested in &program.inst(id).blocks {
                visit(program, nested, places);
            }
        }
    }
    let mut places = Vec::new();
    visit(program, program.body(), &mut places);
    places
}

/// Removes an instruction, and replaces its results by zeros.
fn remove_inst(program: &mut Program, block: BlockId, position: usize) {
    let id = program.block_mut(block).insts.remove(position);
    for result in program.inst(id).results.clone() {
        let zero = Literal::zero(program.ty(result));
        let zero = program.literal(zero);
        replace(program, result, zero);
    }
}

/// Replaces a branch by the instructions of one arm.
fn take_arm(program: &mut Program, block: BlockId, position: usize, arm: usize) {
    let id = program.block(block).insts[position];
    let arm = program.inst(id).blocks[arm];
    let mut insts = program.block(arm).insts.clone();
    let end = insts.pop().expect("validated: a block has a terminator");
    if program.inst(end).op != Terminator::Yield {
        // The arm does not reach the code after the branch.
        program.block_mut(block).insts.truncate(position);
        insts.push(end);
        program.block_mut(block).insts.extend(insts);
        return;
    }
    let given: Values = program.inst(end).operands.clone();
    program.block_mut(block).insts.splice(position..=position, insts);
    for (result, value) in program.inst(id).results.clone().into_iter().zip(given) {
        replace(program, result, value);
    }
}

/// Replaces a loop by its body, as if it had one trip.
fn take_body(program: &mut Program, block: BlockId, position: usize) {
    let id = program.block(block).insts[position];
    let body = program.inst(id).blocks[0];
    let mut insts = program.block(body).insts.clone();
    let end = insts.pop().expect("validated: a block has a terminator");
    program.block_mut(block).insts.splice(position..=position, insts);
    let params = program.block(body).params.clone().into_iter().zip(program.inst(id).operands.clone());
    for (param, initial) in params {
        replace(program, param, initial);
    }
    let given =
        if program.inst(end).op == Terminator::Break { program.inst(end).operands.clone() } else { Values::new() };
    for (number, result) in program.inst(id).results.clone().into_iter().enumerate() {
        let zero = Literal::zero(program.ty(result));
        let value = given.get(number).copied().unwrap_or_else(|| program.literal(zero));
        replace(program, result, value);
    }
}

fn replace(program: &mut Program, old: ValueId, new: ValueId) {
    let ids: Vec<InstId> = program.insts().keys().collect();
    for id in ids {
        for operand in &mut program.inst_mut(id).operands {
            if *operand == old {
                *operand = new;
            }
        }
    }
}
