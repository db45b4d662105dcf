//! Dead-code elimination: instructions and block parameters without readers, and unreachable blocks.
//!
//! Mark and sweep: the roots are instructions with effects, and everything that a live instruction reads is live. Flags
//! are tracked like registers: an instruction that reads them marks the instruction that set them last.

use iced_x86::{Code, ConditionCode, Mnemonic};

use super::{BlockId, End, Function, Reg};

/// Removes dead code. The order of the remaining blocks is preserved.
pub(crate) fn eliminate_dead_code(function: &mut Function) {
    remove_unreachable(function);
    let marks = Marks::find(function);

    // Arguments first: the parameters decide which of them are kept.
    let mut keep = Vec::new();
    for block in 0..function.blocks.len() {
        let End::Jump(edge) = &function.blocks[block].end else { continue };
        keep.clear();
        keep.extend(function.blocks[edge.to.0 as usize].params.iter().map(|&param| marks.reg(param)));
        if let End::Jump(edge) = &mut function.blocks[block].end {
            let mut keep = keep.iter();
            edge.arguments.retain(|_| keep.next().copied().unwrap_or(false));
        }
    }
    let mut insts = marks.insts.iter();
    for block in &mut function.blocks {
        block.params.retain(|&param| marks.reg(param));
        block.insts.retain(|_| insts.next().copied().unwrap_or(false));
    }
}

/// Returns whether an instruction reads flags: conditional jumps, `cmov` and `set`. No other flag readers are selected.
pub(crate) fn reads_flags(code: Code) -> bool {
    code.condition_code() != ConditionCode::None
}

/// Returns whether an instruction preserves flags, so that it may stand between a flag writer and its reader.
fn keeps_flags(code: Code) -> bool {
    let moves = [Mnemonic::Mov, Mnemonic::Movzx, Mnemonic::Movsx, Mnemonic::Movsxd, Mnemonic::Lea];
    reads_flags(code) || moves.contains(&code.mnemonic())
}

/// Drops blocks that cannot be reached from the entry.
fn remove_unreachable(function: &mut Function) {
    let mut reached = vec![false; function.blocks.len()];
    function.postorder().iter().for_each(|block| reached[block.0 as usize] = true);
    if reached.iter().all(|&reached| reached) {
        return;
    }
    let mut count = 0;
    let renumbered: Vec<BlockId> = reached
        .iter()
        .map(|&reached| {
            count += u32::from(reached);
            BlockId(count.wrapping_sub(1))
        })
        .collect();
    let mut position = 0;
    function.blocks.retain(|_| {
        position += 1;
        reached[position - 1]
    });
    for block in &mut function.blocks {
        match &mut block.end {
            End::Jump(edge) => edge.to = renumbered[edge.to.0 as usize],
            End::Branch { taken, other, .. } => {
                *taken = renumbered[taken.0 as usize];
                *other = renumbered[other.0 as usize];
            }
            End::Return | End::Open => {}
        }
    }
}

/// Definition of a register.
#[derive(Clone, Copy)]
enum Site {
    Nowhere,
    /// Position in the function.
    Inst(u32),
    Param {
        block: u32,
        position: u32,
    },
}

/// Live registers and instructions.
struct Marks {
    regs: Vec<bool>,
    /// Liveness of each instruction, by position in the function.
    insts: Vec<bool>,
}

impl Marks {
    fn reg(&self, reg: Reg) -> bool {
        self.regs[reg.0 as usize]
    }

    fn find(function: &Function) -> Self {
        let mut sites = vec![Site::Nowhere; function.classes.len()];
        let mut insts = Vec::new();
        // Reaching definition of the flags in the block, for each instruction that reads them.
        let mut flags = Vec::new();
        // Linked lists of the jumps to each block: the first one, and for each jump the next one with the same target.
        let mut first_jump = vec![None; function.blocks.len()];
        let mut next_jump = vec![None; function.blocks.len()];
        let mut live_insts = Vec::new();

        for (index, block) in function.blocks.iter().enumerate() {
            for (position, param) in block.params.iter().enumerate() {
                sites[param.0 as usize] = Site::Param { block: index as u32, position: position as u32 };
            }
            let mut setter = None;
            for inst in &block.insts {
                let position = insts.len() as u32;
                inst.writes(|reg| sites[reg.0 as usize] = Site::Inst(position));
                insts.push(inst);
                flags.push(setter);
                if !keeps_flags(inst.code) {
                    setter = Some(position);
                }
                if inst.effect {
                    live_insts.push(position);
                }
            }
            match &block.end {
                End::Jump(edge) => {
                    next_jump[index] = first_jump[edge.to.0 as usize].replace(index as u32);
                }
                End::Branch { .. } => live_insts.extend(setter),
                End::Return | End::Open => {}
            }
        }

        let mut marks = Marks { regs: vec![false; function.classes.len()], insts: vec![false; insts.len()] };
        let mut live_regs = Vec::new();
        loop {
            if let Some(position) = live_insts.pop() {
                if std::mem::replace(&mut marks.insts[position as usize], true) {
                    continue;
                }
                let inst = insts[position as usize];
                inst.reads(|reg| live_regs.push(reg));
                if reads_flags(inst.code) {
                    live_insts.extend(flags[position as usize]);
                }
            } else if let Some(reg) = live_regs.pop() {
                if std::mem::replace(&mut marks.regs[reg.0 as usize], true) {
                    continue;
                }
                match sites[reg.0 as usize] {
                    Site::Nowhere => {}
                    Site::Inst(position) => live_insts.push(position),
                    Site::Param { block, position } => {
                        let mut from = first_jump[block as usize];
                        while let Some(index) = from {
                            if let End::Jump(edge) = &function.blocks[index as usize].end {
                                live_regs.extend(edge.arguments.get(position as usize));
                            }
                            from = next_jump[index as usize];
                        }
                    }
                }
            } else {
                return marks;
            }
        }
    }
}
