//! Region merging: fuses adjacent regions and flattens nested ones.
//!
//! A region records the operation that its instructions came from and has no other meaning. But the values in it are
//! not visible outside, which hides common subexpressions from other passes. Adjacent regions become one, with both
//! names joined by `+`; a region nested in another is replaced by its body.

use crate::analysis::Analyses;
use crate::ir::{BlockId, Control, InstId, Op, Program, Renaming};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("fuse_regions", Phase::FusionCse, Family::Fusion), speculative: false, run };

fn run(program: &mut Program, _: &mut Analyses) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        changed |= flatten_nested(program, block, &mut renaming);
    }
    renaming.apply(program);
    for block in program.reachable_blocks() {
        changed |= fuse_adjacent(program, block);
    }
    changed
}

/// Replaces regions directly inside a region by their bodies.
fn flatten_nested(program: &mut Program, block: BlockId, renaming: &mut Renaming) -> bool {
    let mut changed = false;
    for id in program.block(block).insts.clone() {
        if !matches!(program.inst(id).op, Op::Control(Control::Region(_))) {
            continue;
        }
        let outer = program.inst(id).blocks[0];
        while let Some(at) = program.block(outer).insts.iter().position(|&inner| can_flatten(program, inner)) {
            let inner = program.block(outer).insts[at];
            let (contents, end) = program.take_body(program.inst(inner).blocks[0]);
            renaming.replace_all(&program.inst(inner).results, &program.inst(end).operands);
            program.block_mut(outer).insts.splice(at..=at, contents);
            changed = true;
        }
    }
    changed
}

fn can_flatten(program: &Program, id: InstId) -> bool {
    matches!(program.inst(id).op, Op::Control(Control::Region(_))) && program.falls_through(id)
}

/// Fuses each pair of adjacent regions.
fn fuse_adjacent(program: &mut Program, block: BlockId) -> bool {
    let mut changed = false;
    let mut at = 0;
    while at + 1 < program.block(block).insts.len() {
        let (first, second) = (program.block(block).insts[at], program.block(block).insts[at + 1]);
        let names = match (&program.inst(first).op, &program.inst(second).op) {
            (Op::Control(Control::Region(a)), Op::Control(Control::Region(b)))
                if program.falls_through(first) && program.falls_through(second) =>
            {
                (a.clone(), b.clone())
            }
            _ => {
                at += 1;
                continue;
            }
        };
        program.join_insts(first, second);
        program.inst_mut(first).op = Op::Control(Control::Region(if names.0 == names.1 {
            names.0
        } else {
            format!("{}+{}", names.0, names.1).into()
        }));
        program.block_mut(block).insts.remove(at + 1);
        changed = true;
    }
    changed
}
