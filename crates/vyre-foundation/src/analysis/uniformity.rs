//! Uniformity (divergence) analysis: which values are the same for all active invocations of a workgroup (or of the whole dispatch, or in all
//! interleavings of it), and which blocks are executed by all of them together.
//!
//! The analysis starts by assuming that everything is uniform and takes back what it cannot keep, until nothing changes.
//! For each value and block that is not uniform it remembers one cause, so that a message can show the way back to the
//! operation that tells invocations apart.
//!
//! `return` and `trap` do not make control flow divergent: an invocation that has ended counts as present at barriers.
//! `break` and `continue` do: after one that only some invocations take, the others go on alone.

use rustc_hash::{FxHashMap, FxHashSet};

use super::loops::{Exits, exits_of, given, yields_of};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::Kind;
use crate::ir::{BlockId, InstId, MemId, Op, Program, Space, ValueId};

/// The executions among which values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The invocations of one workgroup: what barriers are about.
    Workgroup,
    /// All invocations of a dispatch: for backends that execute several workgroups in one go.
    Dispatch,
    /// The executions of one invocation under all interleavings with the rest of its dispatch: a value is uniform if no store or
    /// atomic of another invocation can change it.
    Interleavings,
}

/// Why a value is not uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Its own definition tells invocations apart.
    Origin,
    /// It is computed from this value.
    Operand(ValueId),
    /// Which of several values it is depends on this condition.
    Choice(ValueId),
}

/// The result of the analysis.
#[derive(Clone, Debug)]
pub struct Uniformity {
    values: SecondaryMap<ValueId, Option<Cause>>,
    control: SecondaryMap<BlockId, Option<ValueId>>,
    /// For each loop that some executions may leave or continue while others do not, the condition.
    exits: FxHashMap<InstId, ValueId>,
}

impl Uniformity {
    /// Analyses a program whose structure, scopes and types are in order.
    pub fn of(program: &Program, scope: Scope) -> Uniformity {
        let written = program.written();
        let mut analysis = Analysis {
            program,
            scope,
            written,
            facts: Uniformity {
                values: SecondaryMap::with_capacity(program.values.len(), None),
                control: SecondaryMap::with_capacity(program.blocks.len(), None),
                exits: FxHashMap::default(),
            },
            stored: SecondaryMap::with_capacity(program.memory.len(), None),
            changed: true,
        };
        // A single invocation agrees with itself.
        if scope != Scope::Workgroup || program.workgroup_size != [1, 1, 1] {
            while std::mem::take(&mut analysis.changed) {
                analysis.block(program.body, Control { absolute: None, in_loop: None }, None);
            }
        }
        analysis.facts
    }

    /// Whether all active invocations, of the scope that was asked about, have the same value.
    pub fn is_uniform(&self, value: ValueId) -> bool {
        self.values[value].is_none()
    }

    /// The condition because of which only some invocations may be executing a block.
    pub fn divergence(&self, block: BlockId) -> Option<ValueId> {
        self.control[block]
    }

    /// The condition because of which trip counts of a loop differ: the first one found, of any loop.
    pub fn divergent_exit(&self) -> Option<ValueId> {
        self.exits.values().next().copied()
    }

    /// The way from a value that is not uniform back to the one that tells invocations apart, both included.
    pub fn trace(&self, value: ValueId) -> Vec<ValueId> {
        let mut trace = vec![value];
        let mut seen = FxHashSet::from_iter([value]);
        let mut at = value;
        while let Some(Cause::Operand(next) | Cause::Choice(next)) = self.values[at] {
            // Values that a loop carries can be causes of each other.
            if !seen.insert(next) {
                break;
            }
            trace.push(next);
            at = next;
        }
        trace
    }
}

/// The conditions that decide who executes a block.
#[derive(Clone, Copy)]
struct Control {
    /// Of all invocations of the workgroup, only some may be here because of this condition.
    absolute: Option<ValueId>,
    /// Of the invocations that entered the innermost loop.
    in_loop: Option<ValueId>,
}

struct Analysis<'p> {
    program: &'p Program,
    scope: Scope,
    /// Objects that the program stores to.
    written: SecondaryMap<MemId, bool>,
    facts: Uniformity,
    /// For each private array that divergent values are stored to, or uniform ones in divergent control flow, the cause.
    stored: SecondaryMap<MemId, Option<ValueId>>,
    changed: bool,
}

impl Analysis<'_> {
    fn diverges(&mut self, value: ValueId, cause: Cause) {
        let fact = &mut self.facts.values[value];
        if fact.is_none() {
            *fact = Some(cause);
            self.changed = true;
        }
    }

    /// `value` is not uniform if `from` is not.
    fn follows(&mut self, value: ValueId, from: ValueId) {
        if !self.facts.is_uniform(from) {
            self.diverges(value, Cause::Operand(from));
        }
    }

    fn divergent_operand(&self, operands: &[ValueId]) -> Option<ValueId> {
        operands.iter().copied().find(|&operand| !self.facts.is_uniform(operand))
    }

    fn block(&mut self, block: BlockId, control: Control, enclosing_loop: Option<InstId>) {
        let program = self.program;
        if self.facts.control[block].is_none() && control.absolute.is_some() {
            self.facts.control[block] = control.absolute;
            self.changed = true;
        }
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            match &inst.op {
                Op::If | Op::Switch(_) | Op::Region(_) => {
                    let condition = self.divergent_operand(&inst.operands);
                    let nested =
                        Control { absolute: control.absolute.or(condition), in_loop: control.in_loop.or(condition) };
                    for &arm in &inst.blocks {
                        self.block(arm, nested, enclosing_loop);
                    }
                    let yields = yields_of(program, id);
                    for (position, &result) in inst.results.iter().enumerate() {
                        self.merge(result, &given(program, &yields, position), condition);
                    }
                }
                Op::Loop => self.loop_inst(id, control),
                Op::Break | Op::Continue => self.exit(enclosing_loop, control.in_loop),
                // An invocation that ends leaves all loops around it, not only the innermost.
                Op::Return | Op::Trap if self.scope == Scope::Interleavings => {
                    self.exit(enclosing_loop, control.absolute);
                }
                op => {
                    if let Op::Store(memory) = op
                        && self.stored[*memory].is_none()
                        && let Some(cause) = self.divergent_operand(&inst.operands).or(control.absolute)
                    {
                        self.stored[*memory] = Some(cause);
                        self.changed = true;
                    }
                    let cause = match self.divergent_operand(&inst.operands) {
                        // Whatever was given, all invocations of a workgroup get the same.
                        _ if *op == Op::Broadcast && self.scope == Scope::Workgroup => None,
                        Some(operand) => Some(Cause::Operand(operand)),
                        None => match (op, self.scope) {
                            // What an invocation has stored itself is there in all interleavings.
                            (Op::Load(memory), Scope::Interleavings)
                                if self.program.memory[*memory].space == Space::Private =>
                            {
                                self.stored[*memory].map(Cause::Operand)
                            }
                            _ => self.tells_invocations_apart(op).then_some(Cause::Origin),
                        },
                    };
                    if let Some(cause) = cause {
                        for &result in &inst.results {
                            self.diverges(result, cause);
                        }
                    }
                }
            }
        }
    }

    /// Notes that a loop is left or continued under a divergent condition, if there are both.
    fn exit(&mut self, enclosing_loop: Option<InstId>, condition: Option<ValueId>) {
        if let (Some(target), Some(condition)) = (enclosing_loop, condition)
            && self.facts.exits.insert(target, condition).is_none()
        {
            self.changed = true;
        }
    }

    fn loop_inst(&mut self, id: InstId, control: Control) {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let exits = self.facts.exits.get(&id).copied();
        self.block(body, Control { absolute: control.absolute.or(exits), in_loop: exits }, Some(id));

        let Exits { breaks, continues } = exits_of(program, body);
        for (position, &param) in program.blocks[body].params.iter().enumerate() {
            self.follows(param, inst.operands[position]);
            let given = given(program, &continues, position);
            self.merge(param, &given, exits);
        }
        for (position, &result) in inst.results.iter().enumerate() {
            let given = given(program, &breaks, position);
            self.merge(result, &given, exits);
            // Invocations that leave in different trips take different values along, unless no trip changes them.
            if let Some(condition) = exits
                && given.iter().any(|&value| program.known(value).is_none())
            {
                self.diverges(result, Cause::Choice(condition));
            }
        }
    }

    /// A value that is one of several, depending on a condition that may not be uniform.
    fn merge(&mut self, value: ValueId, given: &[ValueId], condition: Option<ValueId>) {
        for &from in given {
            self.follows(value, from);
        }
        if let Some(condition) = condition
            && given.iter().any(|from| *from != given[0])
        {
            self.diverges(value, Cause::Choice(condition));
        }
    }

    /// Whether an operation on uniform operands can give invocations different results.
    fn tells_invocations_apart(&self, op: &Op) -> bool {
        match op.row().kind {
            Kind::Pure | Kind::Effect | Kind::Control => false,
            Kind::PerGroup => self.scope == Scope::Dispatch && matches!(op, Op::GroupId(_) | Op::GroupIndex),
            Kind::PerInvocation if self.scope == Scope::Interleavings => false,
            // There is only one position along an axis of size 1.
            Kind::PerInvocation => match op {
                Op::LocalId(axis) => self.program.workgroup_size[*axis as usize] > 1,
                Op::GlobalId(axis) => self.scope == Scope::Dispatch || self.program.workgroup_size[*axis as usize] > 1,
                _ => true,
            },
            // Another invocation may write between the loads of two invocations.
            Kind::Access => op.memory().is_some_and(|memory| match self.program.memory[memory].space {
                Space::Uniform => false,
                Space::Storage(_) => self.written[memory],
                Space::Workgroup | Space::Private => true,
            }),
            // Atomics take turns.
            Kind::Atomic => true,
            // The subgroups of a workgroup differ.
            Kind::Collective => self.scope != Scope::Workgroup || *op != Op::Broadcast,
        }
    }
}
