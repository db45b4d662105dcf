//! Divergence analysis: finds values that may differ between invocations, and blocks with non-uniform control flow.
//!
//! A forward data-flow analysis. Every value has a fact, an element of a join-semilattice with bottom "uniform". Facts
//! start at the bottom and are joined along data and control dependences up to the least fixpoint. The [`Domain`]
//! defines facts and sources of divergence: [`Uniformity`] compares the invocations of a dispatch,
//! [`may_merge_workgroups`] the interleavings of a dispatch, and the x86 code generator the lanes, packs and rows of a
//! tile.
//!
//! A divergent `break` or `continue` makes the rest of the loop divergent. `return` and `trap` do not, because an ended
//! invocation counts as present at barriers, unless the [`Domain`] says otherwise.
//!
//! [`may_merge_workgroups`]: super::may_merge_workgroups

use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};

use super::loops::{Exits, exits_of, incoming_values, yields_of};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::{Combined, Exchange, ShuffleMode};
use crate::ir::{
    BlockId, Control, Inst, InstId, MemId, MemOperand, Op, PerGroup, PerInvocation, Program, Space, Terminator, ValueId,
};

/// Lattice and transfer function of a divergence analysis.
pub trait Domain {
    /// Element of the lattice: the divergence of a value, and optionally its cause.
    type Fact: Copy + PartialEq;

    /// Bottom of the lattice: no divergence.
    const UNIFORM: Self::Fact;

    /// Whether `return` and `trap` count as exits of the enclosing loops.
    const ENDS_LEAVE_LOOPS: bool = false;

    /// Least upper bound.
    fn join(a: Self::Fact, b: Self::Fact) -> Self::Fact;

    /// Fact of a value before the first iteration.
    fn initial(&self, _value: ValueId) -> Self::Fact {
        Self::UNIFORM
    }

    /// Contribution of a value with this fact to values that depend on it.
    fn dependence(_value: ValueId, fact: Self::Fact) -> Self::Fact {
        fact
    }

    /// Join of the contributions of operands.
    fn operands(facts: &Divergence<Self::Fact>, operands: &[ValueId]) -> Self::Fact {
        let facts = operands.iter().map(|&operand| Self::dependence(operand, facts.value(operand)));
        facts.fold(Self::UNIFORM, Self::join)
    }

    /// Divergence of control flow that depends on a condition.
    fn condition(&self, facts: &Divergence<Self::Fact>, operands: &[ValueId]) -> Self::Fact {
        Self::operands(facts, operands)
    }

    /// Transfer function: fact of a result of an instruction without nested blocks.
    fn transfer(&self, facts: &Divergence<Self::Fact>, inst: InstId, result: usize) -> Self::Fact;

    /// Fact of a value at a join point, from the join of the incoming facts.
    fn at_join(&self, _join: Join, fact: Self::Fact) -> Self::Fact {
        fact
    }
}

/// Join points of structured control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// A result of an instruction with nested blocks.
    Result,
    /// A parameter of a loop.
    Param {
        /// Number of `continue`s.
        continues: usize,
    },
}

/// Result of a divergence analysis.
#[derive(Clone, Debug)]
pub struct Divergence<F: Clone> {
    values: SecondaryMap<ValueId, F>,
    blocks: SecondaryMap<BlockId, F>,
    exits: FxHashMap<InstId, F>,
    private: SecondaryMap<MemId, F>,
    uniform: F,
}

impl<F: Copy + PartialEq> Divergence<F> {
    /// Analyzes a program with valid structure, scopes and types.
    pub fn of<D: Domain<Fact = F>>(program: &Program, domain: &D) -> Divergence<F> {
        let uniform = D::UNIFORM;
        let mut facts = Divergence {
            values: SecondaryMap::with_capacity(program.values().len(), uniform),
            blocks: SecondaryMap::with_capacity(program.blocks().len(), uniform),
            exits: FxHashMap::default(),
            private: SecondaryMap::with_capacity(program.memories().len(), uniform),
            uniform,
        };
        for value in program.values().keys() {
            facts.values[value] = domain.initial(value);
        }
        let mut solver = Solver { program, domain, facts, changed: true };
        while std::mem::take(&mut solver.changed) {
            solver.block(program.body(), ControlDivergence { absolute: uniform, in_loop: uniform }, None);
        }
        solver.facts
    }

    /// Divergence of a value.
    pub fn value(&self, value: ValueId) -> F {
        self.values[value]
    }

    /// Divergence of the control flow that leads to a block.
    pub fn block(&self, block: BlockId) -> F {
        self.blocks[block]
    }

    /// Divergence of the iteration in which a loop is left or continued, among the invocations that entered it.
    pub fn exits(&self, inst: InstId) -> F {
        self.exits.get(&inst).copied().unwrap_or(self.uniform)
    }

    /// Returns true if invocations may leave or continue some loop in different iterations.
    pub fn has_divergent_exit(&self) -> bool {
        !self.exits.is_empty()
    }

    /// Divergence of the elements of a private array.
    pub fn private(&self, memory: MemId) -> F {
        self.private[memory]
    }
}

/// Divergence of the control flow that leads to a point.
#[derive(Clone, Copy)]
struct ControlDivergence<F> {
    /// Divergence among all invocations.
    absolute: F,
    /// Divergence among the invocations that entered the innermost loop.
    in_loop: F,
}

struct Solver<'a, D: Domain> {
    program: &'a Program,
    domain: &'a D,
    facts: Divergence<D::Fact>,
    /// Whether a fact changed that the walk reads before it is computed: of a loop parameter, a loop exit or a private
    /// array. Only these require another iteration.
    changed: bool,
}

/// Joins a fact into another. Returns true if the other one changed.
fn raise<D: Domain>(fact: &mut D::Fact, by: D::Fact) -> bool {
    let joined = D::join(*fact, by);
    let changed = joined != *fact;
    *fact = joined;
    changed
}

impl<D: Domain> Solver<'_, D> {
    /// Joins a fact into that of a result.
    fn raise_result(&mut self, result: ValueId, by: D::Fact) {
        raise::<D>(&mut self.facts.values[result], by);
    }

    fn block(&mut self, block: BlockId, control: ControlDivergence<D::Fact>, enclosing_loop: Option<InstId>) {
        let program = self.program;
        raise::<D>(&mut self.facts.blocks[block], control.absolute);
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            match &inst.op {
                Op::Control(Control::If | Control::Switch(_) | Control::Region(_)) => {
                    let condition = self.domain.condition(&self.facts, &inst.operands);
                    let nested = ControlDivergence {
                        absolute: D::join(control.absolute, condition),
                        in_loop: D::join(control.in_loop, condition),
                    };
                    for &arm in &inst.blocks {
                        self.block(arm, nested, enclosing_loop);
                    }
                    let yields = yields_of(program, id);
                    for (position, &result) in inst.results.iter().enumerate() {
                        let fact = self.merge(D::UNIFORM, &yields, position, condition);
                        self.raise_result(result, self.domain.at_join(Join::Result, fact));
                    }
                }
                Op::Control(Control::Loop) => self.loop_inst(id, control),
                Op::Terminator(Terminator::Break | Terminator::Continue) => self.exit(enclosing_loop, control.in_loop),
                // All enclosing loops are left, not only the innermost.
                Op::Terminator(Terminator::Return | Terminator::Trap) if D::ENDS_LEAVE_LOOPS => {
                    self.exit(enclosing_loop, control.absolute);
                }
                op => {
                    if let Op::Store(at) = op
                        && program.memory(at.memory).space == Space::Private
                    {
                        let fact = D::join(D::operands(&self.facts, &inst.operands), control.absolute);
                        self.changed |= raise::<D>(&mut self.facts.private[at.memory], fact);
                    }
                    for (position, &result) in inst.results.iter().enumerate() {
                        let fact = self.domain.transfer(&self.facts, id, position);
                        self.raise_result(result, fact);
                    }
                }
            }
        }
    }

    /// Handles a `break` or `continue` of a loop, or an instruction that counts as one.
    fn exit(&mut self, target: Option<InstId>, control: D::Fact) {
        if let Some(target) = target.filter(|_| control != D::UNIFORM) {
            self.changed |= raise::<D>(self.facts.exits.entry(target).or_insert(D::UNIFORM), control);
        }
    }

    fn loop_inst(&mut self, id: InstId, control: ControlDivergence<D::Fact>) {
        let program = self.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let exits = self.facts.exits(id);
        self.block(body, ControlDivergence { absolute: D::join(control.absolute, exits), in_loop: exits }, Some(id));

        let Exits { breaks, continues } = exits_of(program, body);
        for (position, &param) in program.block(body).params.iter().enumerate() {
            let mut fact = D::operands(&self.facts, &[inst.operands[position]]);
            fact = self.merge(fact, &continues, position, exits);
            let fact = self.domain.at_join(Join::Param { continues: continues.len() }, fact);
            self.changed |= raise::<D>(&mut self.facts.values[param], fact);
        }
        for (position, &result) in inst.results.iter().enumerate() {
            let mut fact = self.merge(D::UNIFORM, &breaks, position, exits);
            // Temporal divergence: invocations that leave in different iterations carry different values, unless the
            // values are constant.
            if incoming_values(program, &breaks, position).any(|value| program.known(value).is_none()) {
                fact = D::join(fact, exits);
            }
            self.raise_result(result, self.domain.at_join(Join::Result, fact));
        }
    }

    /// Joins a fact with those of the incoming values at a position, and with the condition that selects between them.
    fn merge(&self, fact: D::Fact, terminators: &[InstId], position: usize, condition: D::Fact) -> D::Fact {
        let incoming = incoming_values(self.program, terminators, position);
        let dependences = incoming.clone().map(|value| D::dependence(value, self.facts.value(value)));
        let fact = dependences.fold(fact, D::join);
        let mut others = incoming.clone();
        let first = others.next();
        if others.any(|value| Some(value) != first) {
            return D::join(fact, condition);
        }
        fact
    }
}

/// Sets of invocations, from the largest to the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All invocations of a dispatch.
    Dispatch,
    /// The invocations of a workgroup.
    Workgroup,
    /// The invocations of a subgroup.
    Subgroup,
    /// One invocation.
    Invocation,
}

impl Scope {
    /// Scope in which control flow must be uniform at an operation: the active invocations of a workgroup or subgroup
    /// execute a collective operation together. `None` for all other operations.
    pub fn required_by(op: &Op) -> Option<Scope> {
        match op {
            Op::Barrier(_) | Op::Broadcast => Some(Scope::Workgroup),
            Op::Subgroup(_) => Some(Scope::Subgroup),
            Op::Pure(_)
            | Op::PerInvocation(_)
            | Op::PerGroup(_)
            | Op::Load(_)
            | Op::Store(_)
            | Op::Atomic(..)
            | Op::CompareExchange(_)
            | Op::Print(_)
            | Op::Control(_)
            | Op::Terminator(_) => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::Dispatch => "dispatch",
            Scope::Workgroup => "workgroup",
            Scope::Subgroup => "subgroup",
            Scope::Invocation => "invocation",
        })
    }
}

/// Divergence between invocations: the largest scope in which all active invocations have the same value, or execute a
/// block together (converged).
///
/// The lattice is a chain: uniform in the dispatch ⊂ uniform in the workgroup ⊂ uniform in the subgroup ⊂ varying. Each
/// value and block that is not uniform in the workgroup has one cause of the same scope, so that a message can trace
/// the dependences back to the source of divergence.
#[derive(Clone, Debug)]
pub struct Uniformity(Divergence<Fact>);

/// Element of the chain of scopes, with a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fact {
    scope: Scope,
    /// For a value that is not uniform in the workgroup, the value that it depends on; `None` for a source of
    /// divergence.
    cause: Option<ValueId>,
}

impl Fact {
    const fn new(scope: Scope) -> Fact {
        Fact { scope, cause: None }
    }

    fn is_uniform(self) -> bool {
        self.scope <= Scope::Workgroup
    }
}

impl Uniformity {
    /// Analyzes a program with valid structure, scopes and types.
    pub fn of(program: &Program) -> Uniformity {
        Uniformity(Divergence::of(program, &Invocations { program, written: program.written() }))
    }

    /// Returns true if all active invocations of each scope of this kind have the same value.
    pub fn is_uniform(&self, value: ValueId, scope: Scope) -> bool {
        self.0.value(value).scope <= scope
    }

    /// The largest scope in which all active invocations have the same value.
    pub fn scope(&self, value: ValueId) -> Scope {
        self.0.value(value).scope
    }

    /// Returns true if all active invocations of each workgroup or subgroup execute a block together, or none does.
    pub fn is_converged(&self, block: BlockId, scope: Scope) -> bool {
        self.0.block(block).scope <= scope
    }

    /// The condition that makes the control flow of a block non-uniform in a workgroup or subgroup.
    pub fn divergence(&self, block: BlockId, scope: Scope) -> Option<ValueId> {
        self.0.block(block).cause.filter(|_| !self.is_converged(block, scope))
    }

    /// The chain of dependences from a value that is not uniform in the workgroup to its source of divergence, both
    /// included.
    pub fn trace(&self, value: ValueId) -> Vec<ValueId> {
        let mut trace = vec![value];
        let mut seen = FxHashSet::from_iter([value]);
        let mut at = value;
        while let Some(next) = self.0.value(at).cause {
            // Loop-carried values can be causes of each other.
            if !seen.insert(next) {
                break;
            }
            trace.push(next);
            at = next;
        }
        trace
    }
}

/// Divergence domain that compares the invocations of a dispatch.
struct Invocations<'p> {
    program: &'p Program,
    /// Objects that the program stores to.
    written: SecondaryMap<MemId, bool>,
}

impl Domain for Invocations<'_> {
    type Fact = Fact;

    const UNIFORM: Fact = Fact::new(Scope::Dispatch);

    fn join(a: Fact, b: Fact) -> Fact {
        // For equal scopes the first, so that the cause stays the same in later iterations.
        if b.scope > a.scope { b } else { a }
    }

    fn dependence(value: ValueId, fact: Fact) -> Fact {
        Fact { cause: Some(value).filter(|_| !fact.is_uniform()), ..fact }
    }

    fn transfer(&self, facts: &Divergence<Fact>, inst: InstId, result: usize) -> Fact {
        let inst = self.program.inst(inst);
        let own = Fact::new(self.scope(facts, inst, result));
        // A collective operation exchanges its operands, so their divergence does not matter.
        let fact = match inst.op.is_collective() && own.scope < Scope::Invocation {
            true => own,
            false => Self::join(Self::operands(facts, &inst.operands), own),
        };
        // A workgroup of one invocation is uniform.
        match self.program.workgroup_size() {
            [1, 1, 1] => Fact::new(fact.scope.min(Scope::Workgroup)),
            _ => fact,
        }
    }
}

impl Invocations<'_> {
    /// The largest scope in which an operation on uniform operands has the same result; for collective operations, on these operands.
    fn scope(&self, facts: &Divergence<Fact>, inst: &Inst, result: usize) -> Scope {
        let (op, size) = (&inst.op, self.program.workgroup_size());
        match op {
            Op::Pure(_) | Op::Print(_) | Op::Control(_) | Op::Terminator(_) => Scope::Dispatch,
            Op::PerGroup(op) => match op {
                PerGroup::GroupId(_) | PerGroup::GroupIndex => Scope::Workgroup,
                PerGroup::GroupCount(_) | PerGroup::GroupSize(_) | PerGroup::SubgroupSize | PerGroup::Length(_) => {
                    Scope::Dispatch
                }
            },
            // Along an axis of size 1 there is one position.
            Op::PerInvocation(op) => match op {
                PerInvocation::LocalId(axis) if size[*axis as usize] == 1 => Scope::Dispatch,
                PerInvocation::GlobalId(axis) if size[*axis as usize] == 1 => Scope::Workgroup,
                PerInvocation::SubgroupId => Scope::Subgroup,
                PerInvocation::LocalId(_)
                | PerInvocation::GlobalId(_)
                | PerInvocation::LocalIndex
                | PerInvocation::GlobalIndex
                | PerInvocation::SubgroupLane => Scope::Invocation,
            },
            // Another invocation may write between the loads of two invocations.
            Op::Load(MemOperand { memory, .. }) | Op::Store(MemOperand { memory, .. }) => {
                match self.program.memory(*memory).space {
                    Space::Uniform => Scope::Dispatch,
                    Space::Storage(_) if self.written[*memory] => Scope::Invocation,
                    Space::Storage(_) => Scope::Dispatch,
                    Space::Workgroup | Space::Private => Scope::Invocation,
                }
            }
            // Each invocation may observe another old value.
            Op::Atomic(..) | Op::CompareExchange(_) => Scope::Invocation,
            // A barrier has no results.
            Op::Barrier(_) | Op::Broadcast => Scope::Workgroup,
            Op::Subgroup(op) => match op.exchange() {
                Exchange::Ballot | Exchange::First | Exchange::Combine(_, Combined::All) => Scope::Subgroup,
                // All lanes read the same lane.
                Exchange::Shuffle(ShuffleMode::Lane) if facts.value(inst.operands[1]).scope <= Scope::Subgroup => {
                    Scope::Subgroup
                }
                // The second result is the number of compacted values.
                Exchange::Compact if result == 1 => Scope::Subgroup,
                Exchange::Shuffle(_)
                | Exchange::Compact
                | Exchange::Combine(_, Combined::Inclusive | Combined::Exclusive) => Scope::Invocation,
            },
        }
    }
}
