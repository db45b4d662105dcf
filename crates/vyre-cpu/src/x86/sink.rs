//! Moves computations that only rarely executed blocks need into these.
//!
//! Lowering computes a value where the program does. If all lanes agree, hardly anybody needs the masks and indices of single
//! lanes: they are computed again in each cold block that does.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::machine::{Base, BlockId, End, Function, Inst, Operand, Reg};
use super::prune::reads_flags;

/// Sinks what can be sunk.
pub(crate) fn sink(function: &mut Function) {
    let order = postorder(function);
    // The blocks that use each register, with repetitions.
    let mut users: Vec<SmallVec<[BlockId; 2]>> = vec![SmallVec::new(); function.classes.len()];
    for &block in &order {
        let data = &function.blocks[block.0 as usize];
        data.insts.iter().for_each(|inst| inst.reads(|reg| users[reg.0 as usize].push(block)));
        if let End::Jump(edge) = &data.end {
            edge.arguments.iter().for_each(|reg| users[reg.0 as usize].push(block));
        }
    }
    // What each cold block computes for itself: in the end, at its start, the last one first.
    let mut sunk: FxHashMap<BlockId, Vec<Inst>> = FxHashMap::default();
    let mut renamed: FxHashMap<(BlockId, Reg), Reg> = FxHashMap::default();
    for &block in &order {
        if function.blocks[block.0 as usize].cold {
            continue;
        }
        for position in (0..function.blocks[block.0 as usize].insts.len()).rev() {
            let inst = &function.blocks[block.0 as usize].insts[position];
            let Some(result) = movable(inst) else { continue };
            let mut targets: SmallVec<[BlockId; 2]> = SmallVec::new();
            for &user in &users[result.0 as usize] {
                if !targets.contains(&user) {
                    targets.push(user);
                }
            }
            let all_cold = targets.iter().all(|target| function.blocks[target.0 as usize].cold);
            if targets.is_empty() || !all_cold || targets.len() > 4 {
                continue;
            }
            let inst = inst.clone();
            for target in targets {
                let copy = Reg(function.classes.len() as u32);
                function.classes.push(function.classes[result.0 as usize]);
                users.push(SmallVec::new());
                renamed.insert((target, result), copy);
                let mut inst = inst.clone();
                inst.reads(|reg| users[reg.0 as usize].push(target));
                rename_result(&mut inst, copy);
                sunk.entry(target).or_default().push(inst);
            }
            // The instruction reads its operands no longer, and nobody reads its result: it will be pruned.
            let mut reads: SmallVec<[Reg; 4]> = SmallVec::new();
            function.blocks[block.0 as usize].insts[position].reads(|reg| reads.push(reg));
            for reg in reads {
                let users = &mut users[reg.0 as usize];
                if let Some(position) = users.iter().position(|&user| user == block) {
                    users.swap_remove(position);
                }
            }
        }
    }
    if sunk.is_empty() {
        return;
    }
    for (block, mut insts) in sunk {
        let data = &mut function.blocks[block.0 as usize];
        insts.reverse();
        insts.append(&mut data.insts);
        data.insts = insts;
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

/// The result of an instruction that gives the same wherever it is executed.
fn movable(inst: &Inst) -> Option<Reg> {
    if inst.effect || !inst.implicit.is_empty() || reads_flags(inst.code) {
        return None;
    }
    let mut result = None;
    for operand in &inst.operands {
        match operand {
            Operand::Def(reg, _) | Operand::Update { to: reg, .. } => {
                if result.replace(*reg).is_some() {
                    return None;
                }
            }
            // Other memory may be written in between.
            Operand::Memory(address) => match address.base {
                Base::Pool => {}
                Base::Reg(_) | Base::Context | Base::Scratch => return None,
            },
            Operand::Use(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) => {}
        }
    }
    result
}

fn rename_result(inst: &mut Inst, new: Reg) {
    for operand in &mut inst.operands {
        match operand {
            Operand::Def(reg, _) | Operand::Update { to: reg, .. } => *reg = new,
            Operand::Use(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) | Operand::Memory(_) => {}
        }
    }
}

fn rename_reads(inst: &mut Inst, new: impl Fn(Reg) -> Option<Reg>) {
    let rename = |reg: &mut Reg| {
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
        if let super::machine::Implicit::Use(reg, _) = implicit {
            rename(reg);
        }
    }
}

/// Blocks that can be reached, each after those it leads to except along back edges: a register is seen where it is used before
/// it is seen where it is written.
fn postorder(function: &Function) -> Vec<BlockId> {
    let mut order = Vec::new();
    let mut seen = vec![false; function.blocks.len()];
    let mut stack = vec![(BlockId(0), 0)];
    seen[0] = true;
    while let Some((block, next)) = stack.pop() {
        let successors: SmallVec<[BlockId; 2]> = match &function.blocks[block.0 as usize].end {
            End::Jump(edge) => SmallVec::from_slice(&[edge.to]),
            End::Branch { taken, other, .. } => SmallVec::from_slice(&[*taken, *other]),
            End::Return | End::Open => SmallVec::new(),
        };
        match successors.get(next) {
            Some(&successor) => {
                stack.push((block, next + 1));
                if !std::mem::replace(&mut seen[successor.0 as usize], true) {
                    stack.push((successor, 0));
                }
            }
            None => order.push(block),
        }
    }
    order
}
