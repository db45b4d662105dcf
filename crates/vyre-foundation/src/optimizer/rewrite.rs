//! Applies rules to programs.
//!
//! One walk looks at every instruction after what it uses, and rewrites it as long as a rule matches. The instruction is
//! changed in place and keeps its result; what a replacement computes besides is put before it, and is rewritten itself. An
//! expression that is matched spans instructions that stand in the same block or in blocks around it, so its values can be
//! used wherever the root of the expression stands.
//!
//! Rules only speak of values that stand on both sides, so what was proved to be uniform still is.

use smallvec::{SmallVec, smallvec};

use super::rules::{Index, Node, Pattern, Shape, Term};
use crate::analysis::Uses;
use crate::ir::{Cursor, Def, InstId, Literal, Op, Program, Pure, Renaming, Span, ValueId, Values};

/// Rewrites of one instruction. Rules come to an end long before; this is for one that would not.
const MOST: usize = 64;

/// What the names of a rule stand for.
type Bindings = SmallVec<[Option<ValueId>; 6]>;

/// Applies rules everywhere, and says whether there was anything to do.
pub(super) fn apply(program: &mut Program, uses: &Uses, index: &'static Index) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        let cursor = Cursor::at_start(program, block);
        let mut rewriter = Rewriter { program: &mut *program, uses, index, cursor, changed: false };
        while let Some(id) = rewriter.cursor.next() {
            renaming.apply_to(rewriter.program.inst_mut(id));
            match rewriter.settle(id) {
                Some(value) => renaming.replace(rewriter.program.inst(id).results[0], value),
                None => rewriter.cursor.insert(id),
            }
        }
        let Rewriter { cursor, changed: rewritten, .. } = rewriter;
        cursor.finish(program);
        changed |= rewritten;
    }
    changed
}

struct Rewriter<'a> {
    program: &'a mut Program,
    uses: &'a Uses,
    index: &'static Index,
    /// Position before the instruction that is looked at.
    cursor: Cursor,
    changed: bool,
}

impl Rewriter<'_> {
    /// Rewrites an instruction until no rule matches, or until another value stands for its result.
    fn settle(&mut self, id: InstId) -> Option<ValueId> {
        for _ in 0..MOST {
            let (pattern, bindings) = self.find(id)?;
            self.changed = true;
            let to = &pattern.instance.to;
            let span = self.program.inst(id).span;
            match &to.node {
                Node::Apply(op, _, operands) if !to.is_known() => {
                    let operands: Values =
                        operands.iter().map(|operand| self.build(operand, &bindings, span)).collect();
                    let inst = self.program.inst_mut(id);
                    (inst.op, inst.operands) = (Op::Pure(*op), operands);
                }
                Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => {
                    return Some(self.build(to, &bindings, span));
                }
            }
        }
        None
    }

    /// The first rule that an instruction matches, and what its names stand for.
    fn find(&self, id: InstId) -> Option<(&'static Pattern, Bindings)> {
        let program = &*self.program;
        let inst = program.inst(id);
        let (Op::Pure(op), &[result]) = (&inst.op, inst.results.as_slice()) else { return None };
        let mut shapes = [Shape::Any; 2];
        for (shape, &operand) in shapes.iter_mut().zip(&inst.operands) {
            *shape = match program.def(operand) {
                Def::Literal(_) => Shape::Literal,
                Def::Result(inst, _) => match program.inst(inst).op {
                    Op::Pure(op) => Shape::Result(op),
                    _ => Shape::Any,
                },
                Def::Param(..) | Def::Constant(_) => Shape::Any,
            };
        }
        // What is known altogether is left to `fold_constants`.
        if shapes[0] == Shape::Literal && inst.operands.iter().all(|&operand| literal(program, operand).is_some()) {
            return None;
        }
        self.index.candidates(*op, program.class(inst), shapes).find_map(|pattern| {
            let mut bindings: Bindings = smallvec![None; pattern.instance.names.len()];
            if !matches(program, &pattern.from, result, &mut bindings) {
                return None;
            }
            let holds = |when: &Term| when.evaluate(&|name| bound(program, &bindings, name)) != 0;
            let applies = pattern.instance.when.as_ref().is_none_or(holds)
                && (!pattern.replaces_all || self.is_needed_only_here(&pattern.from, id));
            applies.then_some((pattern, bindings))
        })
    }

    /// Whether nothing but the root uses the instructions that a pattern matches below it.
    fn is_needed_only_here(&self, pattern: &Term, id: InstId) -> bool {
        let Node::Apply(_, _, operands) = &pattern.node else { return true };
        operands.iter().zip(&self.program.inst(id).operands).all(|(pattern, &value)| {
            match (&pattern.node, self.program.def(value)) {
                (Node::Apply(..), Def::Result(inst, _)) => {
                    // What this pass has made is not counted yet, and was made for one use.
                    self.uses.count(value) <= 1 && self.is_needed_only_here(pattern, inst)
                }
                _ => true,
            }
        })
    }

    /// The value of a replacement; what it computes is put before the instruction that is looked at.
    fn build(&mut self, term: &Term, bindings: &Bindings, span: Span) -> ValueId {
        if let Node::Value(name) = term.node {
            return bindings[name].expect("every name of a replacement is bound by what it replaces");
        }
        let (op, operands): (Pure, &[Term]) = match &term.node {
            Node::Apply(op, _, operands) if !term.is_known() => (*op, operands),
            Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => {
                let bits = term.evaluate(&|name| bound(self.program, bindings, name));
                return self.program.literal(Literal { ty: term.ty, bits });
            }
        };
        let operands: Values = operands.iter().map(|operand| self.build(operand, bindings, span)).collect();
        let (id, value) = self.program.make_value(op, &operands, term.ty, span);
        match self.settle(id) {
            Some(other) => other,
            None => {
                self.cursor.insert(id);
                value
            }
        }
    }
}

/// Whether a value is computed as a pattern says; its names are bound.
fn matches(program: &Program, pattern: &Term, value: ValueId, bindings: &mut Bindings) -> bool {
    let found = program.value(value);
    if found.ty != pattern.ty {
        return false;
    }
    match (&pattern.node, found.def) {
        (Node::Value(name), _) | (Node::Literal(name), Def::Literal(_)) => {
            *bindings[*name].get_or_insert(value) == value
        }
        (Node::Number(bits), Def::Literal(found)) => *bits == found,
        (Node::Apply(op, _, operands), Def::Result(inst, 0)) => {
            let inst = program.inst(inst);
            inst.op == *op
                && operands.iter().zip(&inst.operands).all(|(operand, &at)| matches(program, operand, at, bindings))
        }
        (Node::Literal(_) | Node::Number(_) | Node::Apply(..), _) => false,
    }
}

/// The bits of the literal that a name stands for.
fn bound(program: &Program, bindings: &Bindings, name: usize) -> u64 {
    bindings[name].and_then(|value| literal(program, value)).expect("the names of literals are bound to literals")
}

fn literal(program: &Program, value: ValueId) -> Option<u64> {
    match program.def(value) {
        Def::Literal(bits) => Some(bits),
        Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
    }
}
