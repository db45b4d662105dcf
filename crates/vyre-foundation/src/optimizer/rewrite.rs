//! Applies rewrite rules to programs.
//!
//! One walk visits every instruction after its operands, and rewrites it until no rule matches. The root instruction is
//! changed in place and keeps its result; new instructions are inserted before it and rewritten themselves. All
//! instructions matched by a pattern dominate the root, so their values are available there.
//!
//! Rules use the same values on both sides, so uniformity facts stay valid.

use smallvec::{SmallVec, smallvec};

use super::rules::{Index, Node, Pattern, Shape, Term};
use crate::analysis::Uses;
use crate::ir::{Cursor, Def, InstId, Literal, Op, Program, Pure, Renaming, Span, ValueId, Values};

/// Limit of rewrites of one instruction, in case rules do not terminate.
const MAX_REWRITES: usize = 64;

/// Values of the names in a rule.
type Bindings = SmallVec<[Option<ValueId>; 6]>;

/// Applies rules to all instructions. Returns true if the program changed.
pub(super) fn apply(program: &mut Program, uses: &Uses, index: &'static Index) -> bool {
    let mut renaming = Renaming::default();
    let mut changed = false;
    for block in program.reachable_blocks() {
        let cursor = Cursor::at_start(program, block);
        let mut rewriter = Rewriter { program: &mut *program, uses, index, cursor, changed: false };
        while let Some(id) = rewriter.cursor.next() {
            renaming.apply_to(rewriter.program.inst_mut(id));
            match rewriter.rewrite(id) {
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
    /// Position before the instruction being rewritten.
    cursor: Cursor,
    changed: bool,
}

impl Rewriter<'_> {
    /// Rewrites an instruction until no rule matches. Returns the value that replaces its result, if any.
    fn rewrite(&mut self, id: InstId) -> Option<ValueId> {
        for _ in 0..MAX_REWRITES {
            let (pattern, bindings) = self.find(id)?;
            self.changed = true;
            let to = &pattern.instance.to;
            let span = self.program.inst(id).span;
            match &to.node {
                Node::Apply(op, _, operands) if !to.is_evaluable() => {
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

    /// The first matching rule, and the values of its names.
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
        // Operations on literals only are left to `fold_constants`.
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
                && (!pattern.needs_single_use || self.has_no_other_uses(&pattern.from, id));
            applies.then_some((pattern, bindings))
        })
    }

    /// Returns true if the instructions matched below the root have no other uses.
    fn has_no_other_uses(&self, pattern: &Term, id: InstId) -> bool {
        let Node::Apply(_, _, operands) = &pattern.node else { return true };
        operands.iter().zip(&self.program.inst(id).operands).all(|(pattern, &value)| {
            match (&pattern.node, self.program.def(value)) {
                (Node::Apply(..), Def::Result(inst, _)) => {
                    // New instructions have a use count of 0, and one use.
                    self.uses.count(value) <= 1 && self.has_no_other_uses(pattern, inst)
                }
                _ => true,
            }
        })
    }

    /// Builds a replacement, and inserts its instructions before the one being rewritten.
    fn build(&mut self, term: &Term, bindings: &Bindings, span: Span) -> ValueId {
        if let Node::Value(name) = term.node {
            return bindings[name].expect("the pattern binds every name of the replacement");
        }
        let (op, operands): (Pure, &[Term]) = match &term.node {
            Node::Apply(op, _, operands) if !term.is_evaluable() => (*op, operands),
            Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => {
                let bits = term.evaluate(&|name| bound(self.program, bindings, name));
                return self.program.literal(Literal { ty: term.ty, bits });
            }
        };
        let operands: Values = operands.iter().map(|operand| self.build(operand, bindings, span)).collect();
        let (id, value) = self.program.make_value(op, &operands, term.ty, span);
        match self.rewrite(id) {
            Some(other) => other,
            None => {
                self.cursor.insert(id);
                value
            }
        }
    }
}

/// Matches a value against a pattern, and binds the names of the pattern.
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

/// Bits of the literal that a name is bound to.
fn bound(program: &Program, bindings: &Bindings, name: usize) -> u64 {
    bindings[name].and_then(|value| literal(program, value)).expect("the names of literals are bound to literals")
}

fn literal(program: &Program, value: ValueId) -> Option<u64> {
    match program.def(value) {
        Def::Literal(bits) => Some(bits),
        Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
    }
}
