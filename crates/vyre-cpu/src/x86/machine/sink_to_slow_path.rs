//! Code sinking into slow paths, and live range splitting at their edges.
//!
//! Lowering computes values in program order. If all lanes agree, masks and indices of single lanes are used only by
//! slow paths: [`sink_to_slow_path`] moves such computations to the first cold block on the way to their users.
//!
//! Slow paths have a high register pressure. A value that is live in one and in a loop of the fast path would be
//! spilled in both, because the allocator first tries one register for a whole live range: [`split_cold_ranges`] copies
//! values at the entries of slow paths, and the values that they return.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::dead_code::reads_flags;
use super::emit::MOVE;
use super::{Base, BlockId, Class, End, Function, Inst, Operand, Reg, Width};

/// Maximum number of blocks that a value is sunk to.
const MAX_SINK_TARGETS: usize = 4;

/// Sinks computations that only cold blocks use.
pub(crate) fn sink_to_slow_path(function: &mut Function) {
    let order = function.postorder();
    let heads = cold_heads(function, &order);
    // Blocks that use each register, with repetitions.
    let mut users: Vec<SmallVec<[BlockId; 2]>> = vec![SmallVec::new(); function.classes.len()];
    for &block in &order {
        let data = &function.blocks[block.0 as usize];
        data.insts.iter().for_each(|inst| inst.reads(|reg| users[reg.0 as usize].push(block)));
        if let End::Jump(edge) = &data.end {
            edge.arguments.iter().for_each(|reg| users[reg.0 as usize].push(block));
        }
    }
    // Computations sunk to each cold block, in reverse order; inserted at its start.
    let mut sunk: FxHashMap<BlockId, Vec<Inst>> = FxHashMap::default();
    let mut renamed: FxHashMap<(BlockId, Reg), Reg> = FxHashMap::default();
    for &block in &order {
        if function.blocks[block.0 as usize].cold {
            continue;
        }
        let mut insts = std::mem::take(&mut function.blocks[block.0 as usize].insts);
        let mut moved = Vec::new();
        for (position, inst) in insts.iter().enumerate().rev() {
            let result = movable(inst);
            let places = result.and_then(|result| sink_targets(&users[result.0 as usize], &heads));
            let (Some(result), Some(places)) = (result, places) else {
                continue;
            };
            moved.push(position);
            let copies = function.classes.len() as u32..;
            let places: SmallVec<[(BlockId, Reg); MAX_SINK_TARGETS]> =
                places.into_iter().zip(copies.map(Reg)).collect();
            for &reader in &users[result.0 as usize] {
                let place = places.iter().find(|&&(place, _)| Some(place) == heads[reader.0 as usize]);
                renamed.insert((reader, result), place.expect("all readers have a place").1);
            }
            inst.reads(|reg| {
                let users = &mut users[reg.0 as usize];
                let own = users.iter().position(|&user| user == block).expect("the instruction reads it");
                users.swap_remove(own);
                users.extend(places.iter().map(|&(place, _)| place));
            });
            for (place, copy) in places {
                function.classes.push(function.classes[result.0 as usize]);
                users.push(SmallVec::new());
                let mut inst = inst.clone();
                rename_result(&mut inst, copy);
                sunk.entry(place).or_default().push(inst);
            }
        }
        if !moved.is_empty() {
            let mut position = 0..;
            insts.retain(|_| moved.pop_if(|moved| Some(*moved) == position.next()).is_none());
        }
        function.blocks[block.0 as usize].insts = insts;
    }
    if sunk.is_empty() {
        return;
    }
    for (block, insts) in sunk {
        function.blocks[block.0 as usize].insts.splice(0..0, insts.into_iter().rev());
    }
    for &block in order.iter().filter(|block| heads[block.0 as usize].is_some()) {
        let data = &mut function.blocks[block.0 as usize];
        for inst in &mut data.insts {
            rename_reads(inst, |reg| renamed.get(&(block, reg)).copied());
        }
        if let End::Jump(edge) = &mut data.end {
            for argument in &mut edge.arguments {
                if let Some(&copy) = renamed.get(&(block, *argument)) {
                    *argument = copy;
                }
            }
        }
    }
}

/// Splits live ranges at the edges of cold code: copies the vectors live into it, and those that it passes to
/// parameters of other code.
pub(crate) fn split_cold_ranges(function: &mut Function) {
    let order = function.postorder();
    let heads = cold_heads(function, &order);
    if heads.iter().all(Option::is_none) {
        return;
    }
    let is_cold = |block: BlockId| heads[block.0 as usize].is_some();
    let mut comes_from_cold = vec![false; function.classes.len()];
    for &block in order.iter().filter(|block| is_cold(**block)) {
        let data = &function.blocks[block.0 as usize];
        data.params.iter().for_each(|reg| comes_from_cold[reg.0 as usize] = true);
        data.insts.iter().for_each(|inst| inst.writes(|reg| comes_from_cold[reg.0 as usize] = true));
    }
    let (code, width) = if function.wide { (MOVE.1, Width::Zmm) } else { (MOVE.0, Width::Ymm) };
    let copy = |classes: &mut Vec<Class>, from: Reg| {
        let to = Reg(classes.len() as u32);
        classes.push(Class::Vector);
        (to, [Operand::Def(to, width), Operand::Use(from, width)])
    };
    let mut copies: FxHashMap<(BlockId, Reg), Reg> = FxHashMap::default();
    let mut first: FxHashMap<BlockId, Vec<Inst>> = FxHashMap::default();
    for &block in &order {
        let Some(head) = heads[block.0 as usize] else { continue };
        let (data, classes) = (&mut function.blocks[block.0 as usize], &mut function.classes);
        let origin = data.insts.first().map_or(0, |inst| inst.origin);
        let mut own = |classes: &mut Vec<Class>, reg: Reg| {
            if classes[reg.0 as usize] != Class::Vector || comes_from_cold.get(reg.0 as usize) != Some(&false) {
                return None;
            }
            Some(*copies.entry((head, reg)).or_insert_with(|| {
                let (to, operands) = copy(classes, reg);
                first.entry(head).or_default().push(Inst::new(code, &operands, false, origin));
                to
            }))
        };
        for inst in &mut data.insts {
            rename_reads(inst, |reg| own(classes, reg));
        }
        if let End::Jump(edge) = &mut data.end {
            for argument in &mut edge.arguments {
                if let Some(own) = own(classes, *argument) {
                    *argument = own;
                } else if !is_cold(edge.to) && classes[argument.0 as usize] == Class::Vector {
                    let (to, operands) = copy(classes, *argument);
                    data.insts.push(Inst::new(code, &operands, false, origin));
                    *argument = to;
                }
            }
        }
    }
    for (head, insts) in first {
        function.blocks[head.0 as usize].insts.splice(0..0, insts);
    }
}

/// Blocks to sink a value to, if all its readers are cold.
fn sink_targets(readers: &[BlockId], heads: &[Option<BlockId>]) -> Option<SmallVec<[BlockId; MAX_SINK_TARGETS]>> {
    let mut places = SmallVec::new();
    for reader in readers {
        let head = heads[reader.0 as usize]?;
        if !places.contains(&head) {
            places.push(head);
        }
    }
    (1..=MAX_SINK_TARGETS).contains(&places.len()).then_some(places)
}

/// Result of an instruction without effects or memory reads, apart from constants: it can be moved freely.
fn movable(inst: &Inst) -> Option<Reg> {
    let loads = |operand: &Operand| matches!(operand, Operand::Memory(address) if address.base != Base::Pool);
    if inst.effect || !inst.implicit.is_empty() || reads_flags(inst.code) || inst.operands.iter().any(loads) {
        return None;
    }
    let mut results: SmallVec<[Reg; 2]> = SmallVec::new();
    inst.writes(|reg| results.push(reg));
    if let [result] = results[..] { Some(result) } else { None }
}

fn rename_result(inst: &mut Inst, new: Reg) {
    for operand in &mut inst.operands {
        match operand {
            Operand::Def(reg, _) | Operand::Update { to: reg, .. } => *reg = new,
            Operand::Use(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) | Operand::Memory(_) => {}
        }
    }
}

fn rename_reads(inst: &mut Inst, mut new: impl FnMut(Reg) -> Option<Reg>) {
    let mut rename = |reg: &mut Reg| {
        if let Some(new) = new(*reg) {
            *reg = new;
        }
    };
    for operand in &mut inst.operands {
        match operand {
            Operand::Use(reg, _) | Operand::Update { from: reg, .. } => rename(reg),
            Operand::Memory(address) => {
                if let Base::Reg(reg) = &mut address.base {
                    rename(reg);
                }
                if let Some((reg, _, _)) = &mut address.index {
                    rename(reg);
                }
            }
            Operand::Def(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) => {}
        }
    }
    if let Some(reg) = &mut inst.mask {
        rename(reg);
    }
    for implicit in &mut inst.implicit {
        if let super::Implicit::Use(reg, _) = implicit {
            rename(reg);
        }
    }
}

/// Head of each cold block: the cold block that dominates it on every path from hot code, with only cold blocks in
/// between. A block reached from several heads, or directly from hot code, is its own head.
fn cold_heads(function: &Function, order: &[BlockId]) -> Vec<Option<BlockId>> {
    let mut heads: Vec<Option<BlockId>> = vec![None; function.blocks.len()];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for &block in order.iter().rev() {
            let from = heads[block.0 as usize];
            for next in function.blocks[block.0 as usize]
                .successors()
                .into_iter()
                .filter(|next| function.blocks[next.0 as usize].cold)
            {
                let old = heads[next.0 as usize];
                let head = if old.is_none() || old == from { from.unwrap_or(next) } else { next };
                changed |= old != Some(head);
                heads[next.0 as usize] = Some(head);
            }
        }
    }
    heads
}
