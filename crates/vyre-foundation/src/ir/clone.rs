//! Cloning of blocks: the one copier behind unrolling, embedding, fusion and compaction.
//!
//! A [`Cloner`] copies instructions within a program, or from one program into another, and maps values to their clones. A [`Map`] replaces
//! instructions on the way.

use smallvec::SmallVec;

use super::entity::{BlockId, InstId, SecondaryMap, ValueId};
use super::ops::Op;
use super::program::{Def, Inst, Program, ResultTypes, Values};
use super::types::Literal;

/// Substitutions of a clone. The defaults copy every instruction.
pub trait Map {
    /// Emits a substitute for an instruction and returns true; false leaves the instruction to the cloner.
    fn replace(&mut self, _cloner: &mut Cloner<'_>, _inst: InstId, _to: BlockId) -> bool {
        false
    }

    /// The operation of the clone.
    fn op(&mut self, op: &Op) -> Op {
        op.clone()
    }

    /// Called with the clone of each nested block of an instruction before anything is copied into it.
    fn enter(&mut self, _cloner: &mut Cloner<'_>, _owner: InstId, _to: BlockId) {}
}

/// The map without substitutions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verbatim;

impl Map for Verbatim {}

/// Copies blocks into a program.
#[derive(Debug)]
pub struct Cloner<'p> {
    /// Destination program.
    pub target: &'p mut Program,
    /// Source program, unless it is the target itself.
    source: Option<&'p Program>,
    /// Value of the target that replaces each value of the source.
    values: SecondaryMap<ValueId, Option<ValueId>>,
}

impl<'p> Cloner<'p> {
    /// Clones within a program. Values defined outside of the cloned code are kept.
    pub fn within(program: &'p mut Program) -> Cloner<'p> {
        Cloner { target: program, source: None, values: SecondaryMap::new(None) }
    }

    /// Clones from one program into another.
    pub fn between(source: &'p Program, target: &'p mut Program) -> Cloner<'p> {
        let values = SecondaryMap::with_capacity(source.values().len(), None);
        Cloner { target, source: Some(source), values }
    }

    /// Maps `old` to `new`.
    pub fn define(&mut self, old: ValueId, new: ValueId) {
        self.values[old] = Some(new);
    }

    /// Maps the results of `old` to those of `new`.
    pub fn define_results(&mut self, old: &Inst, new: InstId) {
        for (position, &result) in old.results.iter().enumerate() {
            self.values[result] = Some(self.target.inst(new).results[position]);
        }
    }

    /// Clone of a value of the source. Between programs, unmapped specialization constants become literals, and a value whose definition
    /// was not cloned becomes 0.
    pub fn value(&mut self, value: ValueId) -> ValueId {
        match (self.values[value], self.source) {
            (Some(value), _) => value,
            (None, None) => value,
            (None, Some(source)) => {
                let literal = source.known(value).unwrap_or_else(|| Literal::zero(source.ty(value)));
                let new = self.target.literal(literal);
                self.values[value] = Some(new);
                new
            }
        }
    }

    /// Clones of a list of values.
    pub fn values(&mut self, values: &[ValueId]) -> Values {
        values.iter().map(|&value| self.value(value)).collect()
    }

    /// Clones the parameters and instructions of a block into an empty block of the target.
    pub fn block(&mut self, from: BlockId, to: BlockId, map: &mut impl Map) {
        match self.source {
            Some(source) => {
                self.params(&source.block(from).params, to);
                let insts = &source.block(from).insts;
                self.target.block_mut(to).insts.reserve(insts.len());
                self.insts(insts, to, map);
            }
            None => {
                let (params, insts) = (self.target.block(from).params.clone(), self.target.block(from).insts.clone());
                self.params(&params, to);
                self.insts(&insts, to, map);
            }
        }
    }

    fn params(&mut self, params: &[ValueId], to: BlockId) {
        for &param in params {
            let ty = self.source.unwrap_or(self.target).ty(param);
            let new = self.target.add_param(to, ty);
            self.define(param, new);
        }
    }

    /// Appends clones of instructions to a block, with everything nested in them.
    pub fn insts(&mut self, insts: &[InstId], to: BlockId, map: &mut impl Map) {
        for &id in insts {
            if !map.replace(self, id, to) {
                self.inst(id, to, map);
            }
        }
    }

    /// Appends the clone of one instruction to a block, with everything nested in it.
    pub fn inst(&mut self, id: InstId, to: BlockId, map: &mut impl Map) -> InstId {
        let own;
        let inst: &Inst = match self.source {
            Some(source) => source.inst(id),
            None => {
                own = self.target.inst(id).clone();
                &own
            }
        };
        let operands = self.values(&inst.operands);
        let program = self.source.unwrap_or(self.target);
        let types: ResultTypes = inst.results.iter().map(|&result| program.ty(result)).collect();
        let nested: SmallVec<[BlockId; 2]> = inst.blocks.iter().map(|_| self.target.add_block()).collect();
        let clone = self.target.push(to, map.op(&inst.op), operands, &types, nested.iter().copied(), inst.span);
        for (&from, to) in inst.blocks.iter().zip(nested) {
            map.enter(self, id, to);
            self.block(from, to, map);
        }
        self.define_results(inst, clone);
        clone
    }

    /// Returns the map from values of the source to values of the target.
    pub fn into_values(self) -> SecondaryMap<ValueId, Option<ValueId>> {
        self.values
    }

    /// Copies debug names to the clones.
    pub fn clone_names(&mut self) {
        let Some(source) = self.source else { return };
        for (value, name) in source.value_names() {
            if let Some(new) = self.values[value]
                && matches!(self.target.def(new), Def::Result(..) | Def::Param(..))
            {
                self.target.set_value_name(new, name);
            }
        }
    }
}
