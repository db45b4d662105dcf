//! Dominator-scoped value numbering (common-subexpression elimination).
//!
//! Two instructions without effects that apply the same operation to the same operands have the same value. The later
//! one is replaced if the earlier one dominates it: it precedes it in the same block or in an enclosing one.
//!
//! Loads of uniforms, and of objects that the program never writes, are numbered; other loads are left to
//! `forward_stores`. Built-in indices and ids are values too.

use rustc_hash::FxHashMap;

use crate::analysis::{Analyses, Effects};
use crate::ir::ops::Kind;
use crate::ir::{BlockId, Op, Program, Renaming, ResultTypes, Values};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("value_numbering", Phase::FusionCse, Family::Scalar), speculative: false, run };

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let mut numbering =
        Numbering { effects: &effects, known: FxHashMap::default(), added: Vec::new(), renaming: Renaming::default() };
    numbering.block(program, program.body());
    !numbering.renaming.is_empty()
}

type Key = (Op, Values, ResultTypes);

struct Numbering<'e> {
    effects: &'e Effects,
    /// Results of instructions that dominate the current position.
    known: FxHashMap<Key, Values>,
    /// Keys to remove at the end of the blocks being walked.
    added: Vec<Key>,
    renaming: Renaming,
}

impl Numbering<'_> {
    fn block(&mut self, program: &mut Program, block: BlockId) {
        let scope = self.added.len();
        program.retain_insts(block, |program, id| {
            self.renaming.apply_to(program.inst_mut(id));
            let inst = program.inst(id);
            if self.is_value(program, &inst.op) {
                let types: ResultTypes = inst.results.iter().map(|&result| program.ty(result)).collect();
                let key = (inst.op.clone(), inst.operands.clone(), types);
                if let Some(earlier) = self.known.get(&key) {
                    self.renaming.replace_all(&inst.results, earlier);
                    return false;
                }
                self.added.push(key.clone());
                self.known.insert(key, inst.results.clone());
            }
            for nested in inst.blocks.clone() {
                self.block(program, nested);
            }
            true
        });
        for key in self.added.drain(scope..) {
            self.known.remove(&key);
        }
    }

    fn is_value(&self, program: &Program, op: &Op) -> bool {
        match op.kind() {
            Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
            Kind::Access => match op {
                Op::Load(load) => !load.atomic && self.effects.is_constant(program, load.memory),
                _ => false,
            },
            Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
        }
    }
}
