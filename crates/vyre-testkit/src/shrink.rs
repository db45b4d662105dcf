//! Makes a program smaller while something about it stays true.
//!
//! [`shrink`] tries simplifications, one after the other, largest first: leaving out an instruction with everything nested in it,
//! taking one arm in place of a branch, putting a literal in place of an operand, leaving out a memory object or a constant. A
//! candidate that is valid and for which the predicate still holds takes the program's place, and it goes on from there, until
//! nothing helps any more.

use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::ops::Payload;
use vyre_foundation::ir::{BlockId, ConstantId, Def, InstId, Literal, MemId, Op, Program, ValueId, Values};
use vyre_foundation::{Validated, validate};

/// The smallest program that was found for which the predicate holds, as it does for `program`.
pub fn shrink(program: &Validated<Program>, holds: &mut dyn FnMut(&Validated<Program>) -> bool) -> Validated<Program> {
    let mut best = program.clone();
    let mut candidates = candidates(&best);
    // What has failed so far will hardly succeed after a change elsewhere, so it is tried again only at the end.
    let (mut position, mut failures) = (0, 0);
    // Every accepted candidate is smaller, so this ends.
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

/// A simplification, at one place.
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

/// What gets smaller: instructions first, then operands that are not literals, then declarations and invocations.
fn size(program: &Program) -> (usize, usize, usize, u32) {
    let (mut nodes, mut operands) = (0, 0);
    program.walk(|id, _| {
        nodes += 1;
        let inst = &program.insts[id];
        operands += inst.operands.iter().filter(|&&operand| !is_literal(program, operand)).count();
    });
    let declarations = program.memory.len() + program.constants.len();
    (nodes, operands, declarations, program.workgroup_size.iter().product())
}

fn candidates(program: &Program) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut operands: Vec<Candidate> = Vec::new();
    let places = places(program);
    // From the end: what nobody uses goes first, and then what it was made from.
    for &(block, position, id) in places.iter().rev() {
        let inst = &program.insts[id];
        if !inst.op.is_terminator() {
            candidates.push(Box::new(move |program| leave_out(program, block, position)));
        }
        if matches!(inst.op, Op::If | Op::Switch(_) | Op::Region(_)) {
            for arm in 0..inst.blocks.len() {
                candidates.push(Box::new(move |program| take_arm(program, block, position, arm)));
            }
        }
        if inst.op == Op::Loop {
            candidates.push(Box::new(move |program| take_body(program, block, position)));
        }
        for operand in 0..inst.operands.len() {
            if !is_literal(program, inst.operands[operand]) {
                operands.push(Box::new(move |program| {
                    let zero = Literal::zero(program.ty(program.insts[id].operands[operand]));
                    program.insts[id].operands[operand] = program.literal(zero);
                }));
            }
        }
    }
    candidates.append(&mut operands);
    for memory in program.memory.keys() {
        let used = places.iter().any(|(_, _, id)| program.insts[*id].op.memory() == Some(memory));
        if !used {
            candidates.push(Box::new(move |program| drop_object(program, memory)));
        }
    }
    for constant in program.constants.keys() {
        let is = |value: &ValueId| program.values[*value].def == Def::Constant(constant);
        if !places.iter().any(|(_, _, id)| program.insts[*id].operands.iter().any(is)) {
            candidates.push(Box::new(move |program| drop_constant(program, constant)));
        }
    }
    if program.workgroup_size != [1, 1, 1] {
        candidates.push(Box::new(|program| program.workgroup_size = [1, 1, 1]));
        candidates.push(Box::new(|program| {
            let [x, y, z] = program.workgroup_size;
            program.workgroup_size = [x.div_ceil(2), y.div_ceil(2), z.div_ceil(2)];
        }));
    }
    candidates
}

fn is_literal(program: &Program, value: ValueId) -> bool {
    matches!(program.values[value].def, Def::Literal(_))
}

/// Every instruction, with its block and its position there, in the order of the text.
fn places(program: &Program) -> Vec<(BlockId, usize, InstId)> {
    fn visit(program: &Program, block: BlockId, places: &mut Vec<(BlockId, usize, InstId)>) {
        for (position, &id) in program.blocks[block].insts.iter().enumerate() {
            places.push((block, position, id));
            for &nested in &program.insts[id].blocks {
                visit(program, nested, places);
            }
        }
    }
    let mut places = Vec::new();
    visit(program, program.body, &mut places);
    places
}

/// Removes an instruction; zeros stand for its results.
fn leave_out(program: &mut Program, block: BlockId, position: usize) {
    let id = program.blocks[block].insts.remove(position);
    for result in program.insts[id].results.clone() {
        let zero = Literal::zero(program.ty(result));
        let zero = program.literal(zero);
        replace(program, result, zero);
    }
}

/// Puts the instructions of one arm in the place of a branch.
fn take_arm(program: &mut Program, block: BlockId, position: usize, arm: usize) {
    let id = program.blocks[block].insts[position];
    let arm = program.insts[id].blocks[arm];
    let mut insts = program.blocks[arm].insts.clone();
    let end = insts.pop().expect("validated: a block has a terminator");
    if program.insts[end].op != Op::Yield {
        // What comes after the branch is never reached on this arm.
        program.blocks[block].insts.truncate(position);
        insts.push(end);
        program.blocks[block].insts.extend(insts);
        return;
    }
    let given: Values = program.insts[end].operands.clone();
    program.blocks[block].insts.splice(position..=position, insts);
    for (result, value) in program.insts[id].results.clone().into_iter().zip(given) {
        replace(program, result, value);
    }
}

/// Puts the instructions of a loop in its place, as if it had one trip.
fn take_body(program: &mut Program, block: BlockId, position: usize) {
    let id = program.blocks[block].insts[position];
    let body = program.insts[id].blocks[0];
    let mut insts = program.blocks[body].insts.clone();
    let end = insts.pop().expect("validated: a block has a terminator");
    program.blocks[block].insts.splice(position..=position, insts);
    let params = program.blocks[body].params.clone().into_iter().zip(program.insts[id].operands.clone());
    for (param, initial) in params {
        replace(program, param, initial);
    }
    let given = if program.insts[end].op == Op::Break { program.insts[end].operands.clone() } else { Values::new() };
    for (number, result) in program.insts[id].results.clone().into_iter().enumerate() {
        let zero = Literal::zero(program.ty(result));
        let value = given.get(number).copied().unwrap_or_else(|| program.literal(zero));
        replace(program, result, value);
    }
}

fn replace(program: &mut Program, old: ValueId, new: ValueId) {
    let ids: Vec<InstId> = program.insts.keys().collect();
    for id in ids {
        for operand in &mut program.insts[id].operands {
            if *operand == old {
                *operand = new;
            }
        }
    }
}

/// Removes an object that nothing uses. Those behind it move up.
fn drop_object(program: &mut Program, dropped: MemId) {
    let memory = std::mem::take(&mut program.memory);
    for (id, object) in memory.iter() {
        if id != dropped {
            program.memory.push(object.clone());
        }
    }
    let ids: Vec<InstId> = program.insts.keys().collect();
    for id in ids {
        let op = &program.insts[id].op;
        if let Some(memory) = op.memory()
            && memory.index() > dropped.index()
        {
            let moved = MemId::from_index(memory.index() - 1);
            let op = op.row().op(Payload::Memory(moved)).expect("it carries a memory object");
            program.insts[id].op = op;
        }
    }
}

/// Removes a constant that nothing uses. Those behind it move up.
fn drop_constant(program: &mut Program, dropped: ConstantId) {
    let constants = std::mem::take(&mut program.constants);
    for (id, constant) in constants.iter() {
        if id != dropped {
            program.constants.push(constant.clone());
        }
    }
    let ids: Vec<ValueId> = program.values.keys().collect();
    for id in ids {
        let value = &mut program.values[id];
        match value.def {
            // Nothing refers to it, but it must be something.
            Def::Constant(constant) if constant == dropped => value.def = Def::Literal(0),
            Def::Constant(constant) if constant.index() > dropped.index() => {
                value.def = Def::Constant(ConstantId::from_index(constant.index() - 1));
            }
            Def::Constant(_) | Def::Literal(_) | Def::Result(..) | Def::Param(..) => {}
        }
    }
}
