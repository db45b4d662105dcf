//! Folds accesses at constant indices out of bounds.
//!
//! In a source program such an access is an error (V020), but passes may produce one, for instance in unreachable code.
//! An out-of-bounds load returns 0, and an out-of-bounds store or atomic does nothing.

use crate::ir::{Cursor, InstId, Literal, Op, Program, Renaming, ValueId, Values};

/// Removes accesses, or elements of wide accesses, that are out of bounds. Returns true if there were any.
pub(crate) fn run(program: &mut Program) -> bool {
    let mut changed = false;
    // The 0 of a folded load may be an out-of-bounds index of another access.
    while run_once(program) {
        changed = true;
    }
    changed
}

fn run_once(program: &mut Program) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        let has_oob = program.block(block).insts.iter().any(|&id| elements_in_bounds(program, id).is_some());
        if !has_oob {
            continue;
        }
        changed = true;
        let mut cursor = Cursor::at_start(program, block);
        while let Some(id) = cursor.next() {
            match elements_in_bounds(program, id) {
                None => cursor.insert(id),
                Some(elements) => cursor.insert_all(truncated(program, id, elements, &mut renaming)),
            }
        }
        cursor.finish(program);
    }
    renaming.apply(program);
    changed
}

/// Number of elements of an access that are in bounds, if some are known to be out of bounds.
fn elements_in_bounds(program: &Program, id: InstId) -> Option<usize> {
    let inst = program.inst(id);
    let at = inst.op.operand()?;
    let length = program.memory(at.memory).static_bytes()? / at.element.size() as u64;
    let width = inst.accessed_elements();
    let index = program.known(*inst.operands.first()?)?.bits;
    // Loads of uniforms have no index operand and returned above.
    let elements_in_bounds = length.saturating_sub(index).min(width as u64) as usize;
    (elements_in_bounds < width).then_some(elements_in_bounds)
}

/// The first `elements` elements of an access; the results of the others are 0.
fn truncated(program: &mut Program, id: InstId, elements: usize, renaming: &mut Renaming) -> Option<InstId> {
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
