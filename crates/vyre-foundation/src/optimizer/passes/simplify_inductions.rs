//! Strength reduction of induction variables.
//!
//! The product of an induction variable and a loop-invariant factor is itself an induction variable. It becomes a loop
//! parameter: the initial product is computed before the loop, and every `continue` adds the product of step and
//! factor. Integers wrap, so sums and products have the same bits.

use crate::analysis::{Analyses, Structure, counted};
use crate::ir::{BlockId, Control, Def, InstId, Op, Program, Pure, Renaming, Terminator, Type, ValueId};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass = Pass {
    metadata: Metadata {
        requires: &["hoist_invariants"],
        ..Metadata::new("simplify_inductions", Phase::Loop, Family::Loop)
    },
    speculative: true,
    run,
};

/// Limit of products per loop that become parameters, since each occupies a register.
const MAX_REDUCED: usize = 4;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let structure = analyses.structure(program);
    let mut renaming = Renaming::default();
    let mut before: Vec<(InstId, Vec<InstId>)> = Vec::new();
    let mut replaced = Vec::new();
    for id in program.reachable_insts() {
        let Some(counted) = counted(program, id) else { continue };
        let body = program.inst(id).blocks[0];
        let mut prelude = Vec::new();
        for product in products(program, &structure, body, counted.param).into_iter().take(MAX_REDUCED) {
            let span = program.inst(product.inst).span;
            let ty = program.ty(counted.param);
            let mut emit = |program: &mut Program, op: Op, operands: &[ValueId]| {
                let (inst, value) = program.make_value(op, operands, ty, span);
                prelude.push(inst);
                value
            };
            let step = program.literal(crate::ir::Literal { ty, bits: u64::from(counted.step as u32) });
            let start = emit(program, Op::Pure(Pure::Mul), &[counted.start, product.factor]);
            let step = emit(program, Op::Pure(Pure::Mul), &[step, product.factor]);
            let param = program.add_param(body, ty);
            program.inst_mut(id).operands.push(start);
            add_step(program, body, param, step, span);
            renaming.replace(program.inst(product.inst).results[0], param);
            replaced.push(product.inst);
        }
        if !prelude.is_empty() {
            before.push((id, prelude));
        }
    }
    if before.is_empty() {
        return false;
    }
    for (id, prelude) in before {
        let block = structure.block_of(id).expect("reachable");
        let at = program.block(block).insts.iter().position(|&inst| inst == id).expect("the block contains it");
        program.block_mut(block).insts.splice(at..at, prelude);
    }
    for inst in replaced {
        let block = structure.block_of(inst).expect("reachable");
        program.block_mut(block).insts.retain(|&id| id != inst);
    }
    renaming.apply(program)
}

/// Product of a loop parameter and a loop-invariant factor.
struct Product {
    inst: InstId,
    factor: ValueId,
}

/// Products of a parameter in a loop, including nested branches. Powers of two are skipped: a shift is as cheap as an
/// addition.
fn products(program: &Program, structure: &Structure, body: BlockId, param: ValueId) -> Vec<Product> {
    let mut found = Vec::new();
    let mut pending = vec![body];
    while let Some(block) = pending.pop() {
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            pending.extend_from_slice(&inst.blocks);
            let (Op::Pure(Pure::Mul), &[a, b]) = (&inst.op, &inst.operands[..]) else { continue };
            let factor = match (a == param, b == param) {
                (true, false) => b,
                (false, true) => a,
                _ => continue,
            };
            let outside = structure.definition(program, factor).is_none_or(|at| !structure.encloses(body, at));
            let is_shift = matches!(program.def(factor), Def::Literal(bits) if bits.is_power_of_two());
            if outside && !is_shift && matches!(program.ty(param), Type::U32 | Type::I32) {
                found.push(Product { inst: id, factor });
            }
        }
    }
    found
}

/// Appends `param + step` to the operands of every `continue` of a loop.
fn add_step(program: &mut Program, block: BlockId, param: ValueId, step: ValueId, span: crate::ir::Span) {
    for id in program.block(block).insts.clone() {
        match program.inst(id).op {
            Op::Terminator(Terminator::Continue) => {
                let ty = program.ty(param);
                let (sum, next) = program.make_value(Pure::Add, &[param, step], ty, span);
                let insts = &mut program.block_mut(block).insts;
                let at = insts.len() - 1;
                insts.insert(at, sum);
                program.inst_mut(id).operands.push(next);
            }
            Op::Control(Control::Loop) => {}
            _ => {
                for nested in program.inst(id).blocks.clone() {
                    add_step(program, nested, param, step, span);
                }
            }
        }
    }
}
