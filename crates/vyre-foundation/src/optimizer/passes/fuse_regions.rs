//! Merges regions.
//!
//! A region says which operation its instructions came from; it means nothing else. But its values are invisible outside,
//! so what one region computed, the next computes again. Neighbouring regions become one, named after both, and a region
//! inside another is dissolved, so that the other passes see one block.

use crate::analysis::Analyses;
use crate::ir::{BlockId, InstId, Op, Program};
use crate::optimizer::edit::{Renaming, reachable_blocks};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("fuse_regions", Phase::FusionCse, Family::Fusion), speculative: false, run };

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in reachable_blocks(program) {
        changed |= dissolve_nested(program, block, &mut renaming);
    }
    renaming.apply(program);
    for block in reachable_blocks(program) {
        changed |= fuse_neighbours(program, block);
    }
    changed
}

/// Replaces regions that stand directly in a region by their contents.
fn dissolve_nested(program: &mut Program, block: BlockId, renaming: &mut Renaming) -> bool {
    let mut changed = false;
    for id in program.blocks[block].insts.clone() {
        if !matches!(program.insts[id].op, Op::Region(_)) {
            continue;
        }
        let outer = program.insts[id].blocks[0];
        while let Some(at) = program.blocks[outer].insts.iter().position(|&inner| can_dissolve(program, inner)) {
            let inner = program.blocks[outer].insts[at];
            let mut contents = std::mem::take(&mut program.blocks[program.insts[inner].blocks[0]].insts);
            let end = contents.pop().expect("a block has a terminator");
            for (position, result) in program.insts[inner].results.clone().into_iter().enumerate() {
                renaming.replace(result, program.insts[end].operands[position]);
            }
            program.blocks[outer].insts.splice(at..=at, contents);
            changed = true;
        }
    }
    changed
}

fn can_dissolve(program: &Program, id: InstId) -> bool {
    matches!(program.insts[id].op, Op::Region(_)) && yields(program, id)
}

/// Whether what comes after a region is always reached from its end.
fn yields(program: &Program, id: InstId) -> bool {
    let end = program.blocks[program.insts[id].blocks[0]].insts.last();
    end.is_some_and(|&end| program.insts[end].op == Op::Yield)
}

/// Makes one region of each two that stand next to each other.
fn fuse_neighbours(program: &mut Program, block: BlockId) -> bool {
    let mut changed = false;
    let mut at = 0;
    while at + 1 < program.blocks[block].insts.len() {
        let (first, second) = (program.blocks[block].insts[at], program.blocks[block].insts[at + 1]);
        let names = match (&program.insts[first].op, &program.insts[second].op) {
            (Op::Region(a), Op::Region(b)) if yields(program, first) && yields(program, second) => {
                (a.clone(), b.clone())
            }
            _ => {
                at += 1;
                continue;
            }
        };
        let (into, from) = (program.insts[first].blocks[0], program.insts[second].blocks[0]);
        let first_end = program.blocks[into].insts.pop().expect("a block has a terminator");
        let mut moved = std::mem::take(&mut program.blocks[from].insts);
        let second_end = moved.pop().expect("a block has a terminator");
        // Inside, what the first gave is what it computed.
        let given = program.insts[first_end].operands.clone();
        let mut inside = Renaming::default();
        for (&result, &value) in program.insts[first].results.iter().zip(&given) {
            inside.replace(result, value);
        }
        let mut pending = moved.clone();
        pending.push(second_end);
        while let Some(id) = pending.pop() {
            inside.apply_to(&mut program.insts[id]);
            for &nested in &program.insts[id].blocks {
                pending.extend_from_slice(&program.blocks[nested].insts);
            }
        }
        program.blocks[into].insts.extend(moved);
        let operands = given.into_iter().chain(program.insts[second_end].operands.clone()).collect();
        program.insts[second_end].operands = operands;
        program.blocks[into].insts.push(second_end);
        for result in program.insts[second].results.clone() {
            let position = program.insts[first].results.len() as u32;
            program.values[result].def = crate::ir::Def::Result(first, position);
            program.insts[first].results.push(result);
        }
        program.insts[first].op =
            Op::Region(if names.0 == names.1 { names.0 } else { format!("{}+{}", names.0, names.1).into() });
        program.blocks[block].insts.remove(at + 1);
        changed = true;
    }
    changed
}
