//! Access vectorization: merges adjacent loads or stores into wide accesses.
//!
//! Loads of `m[i]`, `m[i + 1]`, … in one block become one load of up to four elements at the position of the first, if
//! nothing in between writes the object or is a barrier. Stores become one store at the position of the last, if
//! nothing in between accesses the object. Element indices of a wide access do not wrap around, so the lowest index
//! must be known not to overflow, by its range or because it is a multiple of four.

use crate::analysis::{Alias, Analyses, Effects, Location, Ranges, alias};
use crate::ir::ops::Kind;
use crate::ir::{BlockId, Def, InstId, Op, Program, Pure, Renaming, ResultTypes, ValueId, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("merge_accesses", Phase::Memory, Family::Memory), speculative: false, run };

/// Limit of elements in an access.
const MAX_WIDTH: u32 = 4;
/// Limit of open candidates; bounds the search.
const MAX_OPEN: usize = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let (effects, ranges) = (analyses.effects(program), analyses.ranges(program));
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        let loads = groups(program, block, &effects, &ranges, true);
        let stores = groups(program, block, &effects, &ranges, false);
        changed |= merge_loads(program, block, loads, &mut renaming);
        changed |= merge_stores(program, block, stores);
    }
    renaming.apply(program);
    changed
}

/// Candidate for a wide access.
#[derive(Clone)]
struct Access {
    id: InstId,
    at: Location,
}

fn access(program: &Program, id: InstId, is_load: bool) -> Option<Access> {
    let operand = match program.inst(id).op {
        Op::Load(operand) if is_load => operand,
        Op::Store(operand) if !is_load => operand,
        _ => return None,
    };
    let at = Location::of(program, id).filter(|at| !operand.atomic && at.elements < MAX_WIDTH)?;
    Some(Access { id, at })
}

/// Groups of adjacent accesses, each in the order of its elements.
fn groups(program: &Program, block: BlockId, effects: &Effects, ranges: &Ranges, is_load: bool) -> Vec<Vec<Access>> {
    let mut groups = Vec::new();
    let mut open: Vec<Access> = Vec::new();
    let mut close = |open: &mut Vec<Access>, closed: &dyn Fn(&Access) -> bool| {
        let (closing, staying): (Vec<Access>, Vec<Access>) = open.drain(..).partition(closed);
        *open = staying;
        groups.extend(adjacent_runs(program, ranges, closing));
    };
    for &id in &program.block(block).insts {
        let found = access(program, id, is_load);
        let summary = effects.inst(id);
        match found {
            Some(found) => {
                // A store closes the candidates that it may alias: it must not move before them.
                if !is_load {
                    close(&mut open, &|other| alias(other.at, found.at) != Alias::No);
                }
                if open.len() >= MAX_OPEN {
                    close(&mut open, &|_| true);
                }
                open.push(found);
            }
            None if program.inst(id).op.kind() == Kind::Pure => {}
            None => close(&mut open, &|other| {
                summary.modifies(program, other.at.object)
                    || (!is_load && (summary.observes(program, other.at.object) || summary.ends || summary.jumps))
            }),
        }
    }
    close(&mut open, &|_| true);
    groups
}

/// Splits accesses into runs of adjacent elements, of at most four.
fn adjacent_runs(program: &Program, ranges: &Ranges, mut accesses: Vec<Access>) -> Vec<Vec<Access>> {
    // Accesses to one base are ordered by offset; the order between bases does not matter.
    accesses.sort_by_key(|access| (access.at.object, access.at.element, access.at.index));
    let mut groups: Vec<Vec<Access>> = Vec::new();
    for access in accesses {
        if let Some(group) = groups.last_mut() {
            let (first, last) = (&group[0], &group[group.len() - 1]);
            let width: u32 = group.iter().map(|access| access.at.elements).sum::<u32>() + access.at.elements;
            if last.at.element == access.at.element
                && last.at.is_followed_by(access.at)
                && width <= MAX_WIDTH
                && cannot_wrap(program, ranges, first, width)
            {
                group.push(access);
                continue;
            }
        }
        groups.push(vec![access]);
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// Returns true if the indices of `width` elements do not wrap around.
fn cannot_wrap(program: &Program, ranges: &Ranges, first: &Access, width: u32) -> bool {
    let index = program.inst(first.id).operands[0];
    let room = u32::MAX - width + 1;
    ranges.of_value(index).high <= i64::from(room) || is_multiple_of_four(program, index)
}

fn is_multiple_of_four(program: &Program, index: ValueId) -> bool {
    let Def::Result(inst, 0) = program.def(index) else { return false };
    let inst = program.inst(inst);
    let literal = |value: ValueId| match program.def(value) {
        Def::Literal(bits) => Some(bits),
        _ => None,
    };
    match (&inst.op, &inst.operands[..]) {
        (Op::Pure(Pure::Mul), &[a, b]) => literal(a).or(literal(b)).is_some_and(|factor| factor % 4 == 0),
        (Op::Pure(Pure::Shl), &[_, count]) => literal(count).is_some_and(|count| count % 32 >= 2),
        _ => false,
    }
}

fn merge_loads(program: &mut Program, block: BlockId, groups: Vec<Vec<Access>>, renaming: &mut Renaming) -> bool {
    let mut changed = false;
    for group in groups {
        let results: Values = group.iter().flat_map(|access| program.inst(access.id).results.clone()).collect();
        let types: ResultTypes = results.iter().map(|&result| program.ty(result)).collect();
        let position = |id| program.block(block).insts.iter().position(|&inst| inst == id);
        let positions: Vec<usize> = group.iter().filter_map(|access| position(access.id)).collect();
        let earliest = positions.iter().copied().min().expect("a group has members");
        let index = program.inst(group[0].id).operands[0];
        if !available(program, block, index, earliest) {
            continue;
        }
        changed = true;
        let span = program.inst(group[0].id).span;
        let wide = program.make(program.inst(group[0].id).op.clone(), [index], &types, [], span);
        for (position, &result) in results.iter().enumerate() {
            let new = program.inst(wide).results[position];
            renaming.replace(result, new);
        }
        program.block_mut(block).insts[earliest] = wide;
        program.block_mut(block).insts.retain(|&id| group.iter().all(|access| access.id != id));
    }
    changed
}

/// Returns true if a value is defined before a position of a block.
fn available(program: &Program, block: BlockId, value: ValueId, position: usize) -> bool {
    match program.def(value) {
        Def::Result(inst, _) => !program.block(block).insts[position..].contains(&inst),
        Def::Param(..) | Def::Literal(_) | Def::Constant(_) => true,
    }
}

fn merge_stores(program: &mut Program, block: BlockId, groups: Vec<Vec<Access>>) -> bool {
    let changed = !groups.is_empty();
    for group in groups {
        let position = |id| program.block(block).insts.iter().position(|&inst| inst == id);
        let latest = group.iter().filter_map(|access| position(access.id)).max().expect("a group has members");
        let index = program.inst(group[0].id).operands[0];
        let values: Values = group.iter().flat_map(|access| program.inst(access.id).operands[1..].to_vec()).collect();
        let span = program.inst(group[0].id).span;
        let operands: Vec<ValueId> = [index].into_iter().chain(values).collect();
        let wide = program.make(program.inst(group[0].id).op.clone(), operands, &[], [], span);
        program.block_mut(block).insts[latest] = wide;
        program.block_mut(block).insts.retain(|&id| group.iter().all(|access| access.id != id));
    }
    changed
}
