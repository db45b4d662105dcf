//! Load folding: an operation whose last operand is the only use of a load reads it from memory.
//!
//! Lowering loads all vectors of a tile before it computes with the first. A folded load needs no register until its
//! use, which matters in small loops over many vectors, where register pressure is high.

use rustc_hash::FxHashMap;

use super::emit::{
    ADD_B, ADD_D, ADD_PD, ADD_Q, ADD_S, AND, DIV_PD, DIV_S, FMA_ONTO_PD, FMA_ONTO_S, FMA_TIMES_PD, FMA_TIMES_S, MAX_PD,
    MAX_PS, MAX_S, MAX_SB, MAX_U, MAX_UB, MIN_PD, MIN_PS, MIN_S, MIN_SB, MIN_U, MIN_UB, MOVE, MUL_D, MUL_PD, MUL_S, OR,
    Pair, SUB_D, SUB_PD, SUB_Q, SUB_S, XOR,
};
use super::{Address, End, Function, Inst, Operand, Reg};

/// Operations whose last operand may be a memory operand of the same size.
const FUSIBLE: [Pair; 33] = [
    ADD_B,
    ADD_D,
    ADD_PD,
    ADD_Q,
    ADD_S,
    AND,
    DIV_PD,
    DIV_S,
    FMA_ONTO_PD,
    FMA_ONTO_S,
    FMA_TIMES_PD,
    FMA_TIMES_S,
    MAX_PD,
    MAX_PS,
    MAX_S,
    MAX_SB,
    MAX_U,
    MAX_UB,
    MIN_PD,
    MIN_PS,
    MIN_S,
    MIN_SB,
    MIN_U,
    MIN_UB,
    MUL_D,
    MUL_PD,
    MUL_S,
    OR,
    SUB_D,
    SUB_PD,
    SUB_Q,
    SUB_S,
    XOR,
];

/// Folds loads into their single users, within blocks.
pub(crate) fn fuse(function: &mut Function) {
    let code = |(narrow, wide): Pair| if function.wide { wide } else { narrow };
    let (load, fusible) = (code(MOVE), FUSIBLE.map(code));
    let mut readers = vec![0u32; function.classes.len()];
    for block in &function.blocks {
        block.insts.iter().for_each(|inst| inst.reads(|reg| readers[reg.0 as usize] += 1));
        if let End::Jump(edge) = &block.end {
            edge.arguments.iter().for_each(|reg| readers[reg.0 as usize] += 1);
        }
    }
    // Loads with one reader since the last memory write: position and address, by result.
    let mut loaded: FxHashMap<Reg, (usize, Address)> = FxHashMap::default();
    for block in &mut function.blocks {
        loaded.clear();
        let mut fused = Vec::new();
        for (position, inst) in block.insts.iter_mut().enumerate() {
            if inst.effect {
                loaded.clear();
            } else if inst.code == load {
                let known = whole_load(inst).filter(|(reg, _)| readers[reg.0 as usize] == 1);
                loaded.extend(known.map(|(reg, address)| (reg, (position, address))));
            } else if fusible.contains(&inst.code)
                && inst.mask.is_none()
                && let Some(Operand::Use(reg, _)) = inst.operands.last()
                && let Some((load, address)) = loaded.remove(reg)
            {
                *inst.operands.last_mut().expect("it has a last one") = Operand::Memory(address);
                fused.push(load);
            }
        }
        if !fused.is_empty() {
            let mut position = 0;
            block.insts.retain(|_| {
                position += 1;
                !fused.contains(&(position - 1))
            });
        }
    }
}

/// Result and address of a full vector load.
fn whole_load(inst: &Inst) -> Option<(Reg, Address)> {
    match inst.operands[..] {
        [Operand::Def(reg, _), Operand::Memory(address)] if inst.mask.is_none() => Some((reg, address)),
        _ => None,
    }
}
