//! Folding of accesses that are known to be out of bounds.
//!
//! In a program as written such an access is an error (V020). A pass may produce one, for instance of an access that is never
//! executed. Its effect is known: a load gives 0, a store or atomic does nothing.

use crate::ir::{Cursor, InstId, Literal, Op, Program, Renaming, ValueId, Values};

/// Removes accesses, or elements of wide accesses, that are known to be out of bounds. Returns whether there were any.
pub(crate) fn run(program: &mut Program) -> bool {
    let mut changed = false;
    // The 0 that a load gives may be an index that is outside of another object.
    while run_once(program) {
        changed = true;
    }
    changed
}

fn run_once(program: &mut Program) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        let some_outside = program.block(block).insts.iter().any(|&id| inside(program, id).is_some());
        if !some_outside {
            continue;
        }
        changed = true;
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            match inside(program, id) {
                None => cursor.insert(id),
                Some(elements) => cursor.insert_all(shortened(program, id, elements, &mut renaming)),
            }
        }
        cursor.finish(program);
    }
    renaming.apply(program);
    changed
}

/// How many elements of an access are inside its object, if some are known not to be.
fn inside(program: &Program, id: InstId) -> Option<usize> {
    let inst = program.inst(id);
    let at = inst.op.operand()?;
    let length = program.memory(at.memory).static_bytes()? / at.element.size() as u64;
    let width = inst.accessed_elements();
    let index = program.known(*inst.operands.first()?)?.bits;
    // A uniform has no index: what its load has as operands is nothing, so it did not come here.
    let inside = length.saturating_sub(index).min(width as u64) as usize;
    (inside < width).then_some(inside)
}

/// The first elements of an access; the results of the others are 0.
fn shortened(program: &mut Program, id: InstId, elements: usize, renaming: &mut Renaming) -> Option<InstId> {
    let inst = program.inst(id).clone();
    for &result in inst.results.iter().skip(if matches!(inst.op, Op::Load(_)) { elements } else { 0 }) {
        let zero = program.literal(Literal::zero(program.ty(result)));
        renaming.replace(result, zero);
    }
    if elements == 0 {
        return None;
    }
    let operands: Values = match inst.op {
        Op::Store(_) => inst.operands[..=elements].into(),
        _ => inst.operands,
    };
    let types: Vec<_> = inst.results.iter().take(elements).map(|&result| program.ty(result)).collect();
    let shorter = program.make(inst.op, operands, &types, [], inst.span);
    let results: Vec<ValueId> = program.inst(shorter).results.to_vec();
    renaming.replace_all(&inst.results, &results);
    Some(shorter)
}
