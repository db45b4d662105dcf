//! Which numbers 32-bit integers can be, which comparisons are decided, and which accesses stay inside their object.
//!
//! One walk in the order of execution keeps what is known at each place: an [`Interval`] for every value, narrowed by the
//! conditions under which the place is reached, and the orderings (`a < b`) that those conditions state. An arm of an `if`
//! knows its condition; what follows an `if` of which one arm never comes back knows that the other was taken.
//!
//! A parameter of a loop can be anything, unless the loop [counts](super::counted) with it or every `continue` can only
//! lower it. No iteration is needed, so the walk is linear.

use rustc_hash::{FxHashMap, FxHashSet};

use super::loops::{counted, exits_of, incoming_values, integer, yields_of};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    BlockId, Comparison, Control, Def, Element, InstId, MemId, MemOperand, Op, PerGroup, PerInvocation, Program, Pure,
    Space, Terminator, Type, ValueId,
};

/// The numbers from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least.
    pub low: i64,
    /// The greatest.
    pub high: i64,
}

impl Interval {
    /// One number.
    pub const fn exactly(number: i64) -> Interval {
        Interval { low: number, high: number }
    }

    const fn new(low: i64, high: i64) -> Interval {
        Interval { low, high }
    }

    /// Everything that a type can hold; bools are 0 and 1. Of types that are not looked at, nothing is known.
    const fn of_type(ty: Type) -> Interval {
        match ty {
            Type::U32 => Interval::new(0, u32::MAX as i64),
            Type::I32 => Interval::new(i32::MIN as i64, i32::MAX as i64),
            Type::Bool => Interval::new(0, 1),
            Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => Interval::new(i64::MIN, i64::MAX),
        }
    }

    /// The number, if it is only one.
    pub fn single(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    fn hull(self, other: Interval) -> Interval {
        Interval::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// What both allow. Contradictions mean that the place is never reached; any answer is right there.
    pub fn meet(self, other: Interval) -> Interval {
        let met = Interval::new(self.low.max(other.low), self.high.min(other.high));
        if met.low <= met.high { met } else { self }
    }

    fn within(self, other: Interval) -> bool {
        other.low <= self.low && self.high <= other.high
    }

    /// The same, or everything of the type if it does not fit: then the operation may wrap.
    fn or_all_of(self, ty: Type) -> Interval {
        let all = Interval::of_type(ty);
        if self.within(all) { self } else { all }
    }

    /// A sum of 32 bits, after wrapping. If every number of it wraps, they are all 2³² less: `x - 1` is written as the
    /// addition of the greatest u32.
    fn wrapped(self, ty: Type) -> Interval {
        const MODULUS: i64 = 1 << 32;
        let less = Interval::new(self.low.saturating_sub(MODULUS), self.high.saturating_sub(MODULUS));
        if less.within(Interval::of_type(ty)) { less } else { self.or_all_of(ty) }
    }

    /// What the only result of an instruction without blocks can be, if its operands can be what `of` says.
    pub fn of_result(program: &Program, id: InstId, of: impl Fn(ValueId) -> Interval) -> Interval {
        let inst = program.inst(id);
        let ty = program.ty(inst.results[0]);
        let all = Interval::of_type(ty);
        let of = |position: usize| of(inst.operands[position]);
        let is_small =
            inst.operands.iter().all(|&value| matches!(program.ty(value), Type::U32 | Type::I32 | Type::Bool));
        match &inst.op {
            Op::PerInvocation(PerInvocation::LocalId(axis)) => {
                Interval::new(0, i64::from(program.workgroup_size()[*axis as usize]) - 1)
            }
            Op::PerInvocation(PerInvocation::LocalIndex | PerInvocation::SubgroupId) => {
                Interval::new(0, program.workgroup_size().iter().map(|&size| i64::from(size)).product::<i64>() - 1)
            }
            Op::PerGroup(PerGroup::GroupSize(axis)) => {
                Interval::exactly(i64::from(program.workgroup_size()[*axis as usize]))
            }
            // All invocations of a grid can be numbered.
            Op::PerGroup(PerGroup::GroupCount(axis)) => {
                Interval::new(1, i64::from(u32::MAX / program.workgroup_size()[*axis as usize]))
            }
            Op::PerGroup(PerGroup::SubgroupSize) => Interval::new(1, 128),
            Op::PerInvocation(PerInvocation::SubgroupLane) => Interval::new(0, 127),
            Op::PerGroup(PerGroup::Length(object)) => {
                program.memory(*object).length.map_or(all, |length| Interval::exactly(length.into()))
            }
            Op::Pure(Pure::CountOnes | Pure::LeadingZeros | Pure::TrailingZeros) => Interval::new(0, 64),
            _ if !is_small || inst.operands.is_empty() => all,
            Op::Pure(Pure::Add) => Interval::new(of(0).low + of(1).low, of(0).high + of(1).high).wrapped(ty),
            Op::Pure(Pure::Sub) => Interval::new(of(0).low - of(1).high, of(0).high - of(1).low).or_all_of(ty),
            // Both are below 2³² in size, so the product is below 2⁶⁴ but may exceed an i64.
            Op::Pure(Pure::Mul) => Interval::corners(of(0), of(1), i64::saturating_mul).or_all_of(ty),
            Op::Pure(Pure::Div) if of(1).low > 0 => Interval::corners(of(0), of(1), |a, b| a / b),
            Op::Pure(Pure::Rem) if of(0).low >= 0 && of(1).low > 0 => Interval::new(0, of(0).high.min(of(1).high - 1)),
            Op::Pure(Pure::Min) => Interval::new(of(0).low.min(of(1).low), of(0).high.min(of(1).high)),
            Op::Pure(Pure::Max) => Interval::new(of(0).low.max(of(1).low), of(0).high.max(of(1).high)),
            Op::Pure(Pure::And) if ty == Type::Bool => Interval::new(of(0).low & of(1).low, of(0).high & of(1).high),
            Op::Pure(Pure::Or) if ty == Type::Bool => Interval::new(of(0).low | of(1).low, of(0).high | of(1).high),
            Op::Pure(Pure::Not) if ty == Type::Bool => Interval::new(1 - of(0).high, 1 - of(0).low),
            // The result has no bit that the smaller of two numbers that are not negative has no room for.
            Op::Pure(Pure::And) if of(0).low >= 0 && of(1).low >= 0 => Interval::new(0, of(0).high.min(of(1).high)),
            Op::Pure(Pure::And) if of(0).low >= 0 => Interval::new(0, of(0).high),
            Op::Pure(Pure::And) if of(1).low >= 0 => Interval::new(0, of(1).high),
            Op::Pure(Pure::Or) if of(0).low >= 0 && of(1).low >= 0 => {
                Interval::new(of(0).low.max(of(1).low), filled(of(0).high | of(1).high))
            }
            Op::Pure(Pure::Xor) if of(0).low >= 0 && of(1).low >= 0 => {
                Interval::new(0, filled(of(0).high | of(1).high))
            }
            Op::Pure(Pure::Shl) => match of(1).single() {
                Some(count @ 0..=31) => Interval::new(of(0).low << count, of(0).high << count).or_all_of(ty),
                _ => all,
            },
            Op::Pure(Pure::Shr) => match (of(1).single(), of(0).low >= 0) {
                (Some(count @ 0..=31), _) => Interval::new(of(0).low >> count, of(0).high >> count),
                (_, true) => Interval::new(0, of(0).high),
                _ => all,
            },
            Op::Pure(Pure::Select) => match of(0).single() {
                Some(1) => of(1),
                Some(_) => of(2),
                None => of(1).hull(of(2)),
            },
            Op::Pure(Pure::Cast | Pure::Bitcast) if of(0).within(all) => of(0),
            // Invocation 0 may have ended; then it gives 0.
            Op::Broadcast => of(0).hull(Interval::exactly(0)),
            _ => all,
        }
    }

    /// The extremes of an operation that is monotone in each operand.
    fn corners(a: Interval, b: Interval, f: impl Fn(i64, i64) -> i64) -> Interval {
        let corners = [f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)];
        Interval::new(corners.into_iter().min().unwrap_or(0), corners.into_iter().max().unwrap_or(0))
    }
}

/// What is known about the numbers of a program.
#[derive(Clone, Debug)]
pub struct Ranges {
    values: SecondaryMap<ValueId, Interval>,
    decided: FxHashMap<InstId, bool>,
    inside: FxHashSet<InstId>,
    whole: FxHashSet<InstId>,
}

/// Assumptions about the lengths of the storage objects whose length is only known at launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    /// All have the same length.
    pub equal: bool,
    /// Every length is a multiple of four.
    pub multiples_of_four: bool,
}

impl Ranges {
    /// Analyses a program.
    pub fn of(program: &Program) -> Ranges {
        Ranges::with_lengths(program, Lengths::default())
    }

    /// Analyses a program under assumptions about its lengths.
    pub fn with_lengths(program: &Program, lengths: Lengths) -> Ranges {
        let mut walk = Walk {
            program,
            lengths,
            facts: Ranges {
                values: SecondaryMap::with_capacity(program.values().len(), Interval::new(0, 0)),
                decided: FxHashMap::default(),
                inside: FxHashSet::default(),
                whole: FxHashSet::default(),
            },
            less: Vec::new(),
            at_most: Vec::new(),
            narrowed: Vec::new(),
            loops: FxHashMap::default(),
        };
        for (value, definition) in program.values().iter() {
            walk.facts.values[value] = match definition.def {
                Def::Literal(bits) if definition.ty == Type::Bool => Interval::exactly(bits as i64),
                _ => integer(program, value).map_or(Interval::of_type(definition.ty), Interval::exactly),
            };
        }
        walk.block(program.body());
        walk.facts
    }

    /// The numbers a value can be, wherever it can be used. Of values that are not bools or 32-bit integers, nothing is
    /// known.
    pub fn of_value(&self, value: ValueId) -> Interval {
        self.values[value]
    }

    /// What a comparison gives, or which way an `if` goes, if that is always the same.
    pub fn decided(&self, inst: InstId) -> Option<bool> {
        self.decided.get(&inst).copied()
    }

    /// True if all elements of an access are proved to be in bounds.
    pub fn is_in_bounds(&self, access: InstId) -> bool {
        self.inside.contains(&access)
    }

    /// Whether an access to two or four elements is one to a whole part of that size of its object: then they are all inside
    /// or all outside.
    pub fn is_whole(&self, access: InstId) -> bool {
        self.whole.contains(&access)
    }

    /// Number of accesses proved in bounds or whole, which is monotonic in the assumptions.
    pub fn proved_count(&self) -> usize {
        self.inside.len() + self.whole.len()
    }
}

/// Values that are looked at to know whether one is a multiple of something.
const MULTIPLES_TRIED: u32 = 64;

struct Walk<'p> {
    program: &'p Program,
    lengths: Lengths,
    /// The intervals here are those of the place where the walk is; at its end they are those of the definitions.
    facts: Ranges,
    /// Pairs of 32-bit values of which the first is less here, by the comparison of their type.
    less: Vec<(ValueId, ValueId)>,
    /// Pairs of which the first is not greater.
    at_most: Vec<(ValueId, ValueId)>,
    /// Intervals to restore when the place that narrowed them is left.
    narrowed: Vec<(ValueId, Interval)>,
    /// The loops that were entered, by their bodies.
    loops: FxHashMap<BlockId, InstId>,
}

impl Walk<'_> {
    fn get(&self, value: ValueId) -> Interval {
        self.facts.values[value]
    }

    fn narrow(&mut self, value: ValueId, to: Interval) {
        let was = self.get(value);
        let is = was.meet(to);
        if is != was {
            self.narrowed.push((value, was));
            self.facts.values[value] = is;
        }
    }

    /// Walks a block, and says whether what comes after its owner can be reached from it.
    fn block(&mut self, block: BlockId) -> bool {
        let scope = self.scope();
        let mut falls_through = true;
        for index in 0..self.program.block(block).insts.len() {
            let id = self.program.block(block).insts[index];
            falls_through = self.inst(id);
        }
        self.leave(scope);
        falls_through
    }

    /// How much is known here: what is added to it can be forgotten.
    fn scope(&self) -> [usize; 3] {
        [self.less.len(), self.at_most.len(), self.narrowed.len()]
    }

    fn leave(&mut self, [less, at_most, narrowed]: [usize; 3]) {
        self.less.truncate(less);
        self.at_most.truncate(at_most);
        while self.narrowed.len() > narrowed {
            let (value, was) = self.narrowed.pop().expect("counted");
            self.facts.values[value] = was;
        }
    }

    /// A block that is entered only if a condition has this value.
    fn arm(&mut self, block: BlockId, condition: ValueId, value: bool) -> bool {
        let scope = self.scope();
        self.assume(condition, value);
        let falls_through = self.block(block);
        self.leave(scope);
        falls_through
    }

    /// Whether the next instruction can be reached.
    fn inst(&mut self, id: InstId) -> bool {
        let program = self.program;
        let inst = program.inst(id);
        match &inst.op {
            Op::Control(Control::If) => {
                let condition = inst.operands[0];
                if let Some(value) = self.get(condition).single() {
                    self.facts.decided.insert(id, value == 1);
                }
                let then_returns = self.arm(inst.blocks[0], condition, true);
                let else_returns = self.arm(inst.blocks[1], condition, false);
                self.merge_yields(id);
                match (then_returns, else_returns) {
                    (true, false) => self.assume(condition, true),
                    (false, true) => self.assume(condition, false),
                    (true, true) | (false, false) => {}
                }
                then_returns || else_returns
            }
            Op::Control(Control::Switch(cases)) => {
                let mut returns = false;
                for (position, &arm) in inst.blocks.iter().enumerate() {
                    let scope = self.scope();
                    if let Some(&case) = cases.get(position) {
                        let number = match program.ty(inst.operands[0]) {
                            Type::I32 => i64::from(case as i32),
                            _ => i64::from(case),
                        };
                        self.narrow(inst.operands[0], Interval::exactly(number));
                    }
                    returns |= self.block(arm);
                    self.leave(scope);
                }
                self.merge_yields(id);
                returns
            }
            Op::Control(Control::Region(_)) => {
                let returns = self.block(inst.blocks[0]);
                self.merge_yields(id);
                returns
            }
            Op::Control(Control::Loop) => {
                self.loops.insert(inst.blocks[0], id);
                self.parameters(id);
                // Whether it is ever left is not asked: if not, what follows is never reached, and any answer is right.
                self.block(inst.blocks[0]);
                true
            }
            Op::Terminator(Terminator::Yield) => true,
            Op::Terminator(Terminator::Break | Terminator::Continue | Terminator::Return | Terminator::Trap) => false,
            Op::Load(at) | Op::Store(at) => {
                if program.memory(at.memory).space != Space::Uniform {
                    self.access(id, *at, inst.operands[0], inst.accessed_elements());
                }
                for &result in &inst.results {
                    self.facts.values[result] = element(at.element);
                }
                true
            }
            op => {
                if let Some(at) = op.atomic() {
                    self.access(id, at, inst.operands[0], 1);
                }
                if let [result] = inst.results[..] {
                    let interval = self.result(id);
                    self.facts.values[result] = interval.meet(Interval::of_type(program.ty(result)));
                    if program.ty(result) == Type::Bool
                        && let Some(value) = interval.single()
                    {
                        self.facts.decided.insert(id, value == 1);
                    }
                }
                true
            }
        }
    }

    /// The results of an instruction are what its blocks yield.
    fn merge_yields(&mut self, id: InstId) {
        let inst = self.program.inst(id);
        let yields = yields_of(self.program, id);
        for (position, &result) in inst.results.iter().enumerate() {
            let incoming = incoming_values(self.program, &yields, position).map(|value| self.get(value));
            if let Some(merged) = incoming.reduce(Interval::hull) {
                self.facts.values[result] = merged;
            }
        }
    }

    /// What the parameters of a loop can be, in every trip.
    fn parameters(&mut self, id: InstId) {
        let program = self.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let continues = exits_of(program, body).continues;
        for (position, &param) in program.block(body).params.iter().enumerate() {
            let start = self.get(inst.operands[position]);
            let all = Interval::of_type(program.ty(param));
            let mut incoming = incoming_values(program, &continues, position);
            self.facts.values[param] = if incoming.clone().all(|value| value == param) {
                start
            } else if incoming.all(|value| value == param || self.only_lowers(value, param)) {
                Interval::new(0, start.high)
            } else {
                all
            };
        }
        let Some(counted) = counted(program, id) else { return };
        let (start, bound) = (self.get(counted.start), self.get(counted.bound));
        let step = counted.step;
        // The last value that passed the test, plus one step, is the most the parameter reaches. If that may wrap, nothing
        // is known.
        let reached = match (counted.predicate, step > 0) {
            (Comparison::Lt, true) => Interval::new(start.low, start.high.max(bound.high - 1 + step)),
            (Comparison::Le, true) => Interval::new(start.low, start.high.max(bound.high + step)),
            (Comparison::Gt, false) => Interval::new(start.low.min(bound.low + 1 + step), start.high),
            (Comparison::Ge, false) => Interval::new(start.low.min(bound.low + step), start.high),
            (Comparison::Ne, true) if step == 1 && start.high <= bound.low => Interval::new(start.low, bound.high),
            (Comparison::Ne, false) if step == -1 && start.low >= bound.high => Interval::new(bound.low, start.high),
            _ => return,
        };
        if reached.within(Interval::of_type(program.ty(counted.param))) {
            self.facts.values[counted.param] = reached;
        }
    }

    /// Whether a value is never greater than an unsigned parameter.
    fn only_lowers(&self, value: ValueId, param: ValueId) -> bool {
        let program = self.program;
        let Def::Result(inst, 0) = program.def(value) else { return false };
        let inst = program.inst(inst);
        program.ty(param) == Type::U32
            && match inst.op {
                Op::Pure(Pure::Shr | Pure::Div | Pure::Rem) => inst.operands[0] == param,
                Op::Pure(Pure::And | Pure::Min) => inst.operands.contains(&param),
                _ => false,
            }
    }

    fn access(&mut self, id: InstId, at: MemOperand, index: ValueId, width: usize) {
        let last = self.get(index).high.saturating_add(width as i64 - 1);
        let memory = self.program.memory(at.memory);
        let (own, accessed) = (memory.element.size() as u64, at.element.size() as u64);
        // The length in elements of the access. Lengths that the program leaves open count elements of the object, of which there are at
        // most as many, unless those of the access are wider.
        let length = memory.static_bytes().map(|bytes| bytes / accessed);
        let whole = matches!(width, 2 | 4)
            && length.map_or(self.lengths.multiples_of_four && own == accessed, |length| {
                length.is_multiple_of(width as u64)
            })
            && self.is_multiple(index, width as u32, &mut Vec::new(), &mut { MULTIPLES_TRIED });
        let below = || self.less.iter().any(|&(a, b)| a == index && self.is_within_length(b, at.memory));
        let bounded = (width == 1 && accessed <= own) || (whole && accessed == own);
        if length.is_some_and(|length| last < length as i64) || (bounded && below()) {
            self.facts.inside.insert(id);
        }
        if whole {
            self.facts.whole.insert(id);
        }
    }

    /// Whether a value is the length of an object, or the minimum of that and another one.
    fn is_within_length(&self, value: ValueId, object: MemId) -> bool {
        let program = self.program;
        let is_open = |object: MemId| {
            let memory = program.memory(object);
            matches!(memory.space, Space::Storage(_)) && memory.length.is_none()
        };
        let is_length = |value: ValueId| match program.def(value) {
            Def::Result(inst, 0) => match program.inst(inst).op {
                Op::PerGroup(PerGroup::Length(other)) => {
                    other == object || (self.lengths.equal && is_open(other) && is_open(object))
                }
                _ => false,
            },
            Def::Result(..) | Def::Param(..) | Def::Literal(_) | Def::Constant(_) => false,
        };
        let minimum = |inst: InstId| {
            let inst = program.inst(inst);
            inst.op == Pure::Min && program.ty(value) == Type::U32 && inst.operands.iter().any(|&part| is_length(part))
        };
        is_length(value) || matches!(program.def(value), Def::Result(inst, 0) if minimum(inst))
    }

    /// Whether a u32 is always a multiple of 2 or 4. Those that are `assumed` to be are parameters of loops: they are, if what
    /// they start with is, and what a trip makes of them. Values share parts, so only so many are `left` to look at.
    fn is_multiple(&self, value: ValueId, of: u32, assumed: &mut Vec<ValueId>, left: &mut u32) -> bool {
        let program = self.program;
        if *left == 0 {
            return false;
        }
        *left -= 1;
        match program.def(value) {
            Def::Literal(bits) => (bits as u32).is_multiple_of(of),
            Def::Constant(_) => false,
            Def::Param(..) if assumed.contains(&value) => true,
            Def::Param(block, position) => {
                let Some(&id) = self.loops.get(&block) else { return false };
                assumed.push(value);
                let continues = exits_of(program, block).continues;
                let start = program.inst(id).operands[position as usize];
                let mut incoming = incoming_values(program, &continues, position as usize).chain([start]);
                let all = incoming.all(|value| self.is_multiple(value, of, assumed, left));
                assumed.pop();
                all
            }
            Def::Result(inst, 0) if program.ty(value) == Type::U32 => {
                let inst = program.inst(inst);
                let mut is = |position: usize| self.is_multiple(inst.operands[position], of, assumed, left);
                match inst.op {
                    Op::Pure(Pure::Add | Pure::Sub | Pure::Or | Pure::Xor | Pure::Min | Pure::Max) => is(0) && is(1),
                    Op::Pure(Pure::Mul | Pure::And) => is(0) || is(1),
                    Op::Pure(Pure::Shl) => {
                        integer(program, inst.operands[1]).is_some_and(|count| (2..32).contains(&count)) || is(0)
                    }
                    Op::Pure(Pure::Select) => is(1) && is(2),
                    _ => false,
                }
            }
            Def::Result(..) => false,
        }
    }

    /// From here on, a bool has this value.
    fn assume(&mut self, condition: ValueId, holds: bool) {
        let mut pending = vec![(condition, holds)];
        while let Some((condition, holds)) = pending.pop() {
            let was = self.get(condition);
            self.narrow(condition, Interval::exactly(i64::from(holds)));
            // What was known already has been looked into. Conditions share parts, so the way through all of them is long.
            if self.get(condition) != was {
                self.consequences(condition, holds, &mut pending);
            }
        }
    }

    /// What follows from a bool having this value; `pending` takes what follows about other bools.
    fn consequences(&mut self, condition: ValueId, holds: bool, pending: &mut Vec<(ValueId, bool)>) {
        let Def::Result(inst, 0) = self.program.def(condition) else { return };
        let inst = self.program.inst(inst);
        let operands = &inst.operands;
        let Op::Pure(op) = inst.op else { return };
        if let Some(relation) = op.comparison() {
            match relation.when(holds) {
                Comparison::Lt => self.assume_order(operands[0], operands[1], 1),
                Comparison::Gt => self.assume_order(operands[1], operands[0], 1),
                Comparison::Le => self.assume_order(operands[0], operands[1], 0),
                Comparison::Ge => self.assume_order(operands[1], operands[0], 0),
                Comparison::Eq => {
                    let (a, b) = (self.get(operands[0]), self.get(operands[1]));
                    self.narrow(operands[0], b);
                    self.narrow(operands[1], a);
                }
                Comparison::Ne => {
                    self.exclude(operands[0], operands[1]);
                    self.exclude(operands[1], operands[0]);
                }
            }
            return;
        }
        match (op, holds) {
            (Pure::Not, _) => pending.push((operands[0], !holds)),
            (Pure::And, true) | (Pure::Or, false) if self.program.ty(condition) == Type::Bool => {
                pending.extend([(operands[0], holds), (operands[1], holds)]);
            }
            _ => {}
        }
    }

    /// From here on, `a + gap <= b`.
    fn assume_order(&mut self, a: ValueId, b: ValueId, gap: i64) {
        if !matches!(self.program.ty(a), Type::U32 | Type::I32) {
            return;
        }
        let (of_a, of_b) = (self.get(a), self.get(b));
        self.narrow(a, Interval::new(i64::MIN, of_b.high - gap));
        self.narrow(b, Interval::new(of_a.low + gap, i64::MAX));
        if gap == 1 { &mut self.less } else { &mut self.at_most }.push((a, b));
    }

    /// From here on, a value is not the one number that another is.
    fn exclude(&mut self, value: ValueId, other: ValueId) {
        if !matches!(self.program.ty(value), Type::U32 | Type::I32) {
            return;
        }
        let (of_value, Some(number)) = (self.get(value), self.get(other).single()) else { return };
        if of_value.low == number {
            self.narrow(value, Interval::new(number + 1, i64::MAX));
        } else if of_value.high == number {
            self.narrow(value, Interval::new(i64::MIN, number - 1));
        }
    }

    /// What the only result of an instruction without blocks can be.
    fn result(&self, id: InstId) -> Interval {
        let inst = self.program.inst(id);
        match &inst.op {
            Op::Pure(op) if let Some(relation) = op.comparison() => self.comparison(relation, &inst.operands),
            Op::Pure(Pure::Sub) if self.program.ty(inst.results[0]) == Type::U32 && self.is_at_most(&inst.operands) => {
                let (a, b) = (self.get(inst.operands[0]), self.get(inst.operands[1]));
                Interval::new((a.low - b.high).max(0), a.high - b.low)
            }
            _ => Interval::of_result(self.program, id, |operand| self.get(operand)),
        }
    }

    /// Whether the second of two values is known to be not greater than the first.
    fn is_at_most(&self, operands: &[ValueId]) -> bool {
        let pair = (operands[1], operands[0]);
        self.less.contains(&pair) || self.at_most.contains(&pair)
    }

    fn comparison(&self, relation: Comparison, operands: &[ValueId]) -> Interval {
        let (a, b) = (operands[0], operands[1]);
        let unknown = Interval::new(0, 1);
        if !matches!(self.program.ty(a), Type::U32 | Type::I32 | Type::Bool) {
            return unknown;
        }
        let (of_a, of_b) = (self.get(a), self.get(b));
        let less = of_a.high < of_b.low || self.less.contains(&(a, b));
        let greater = of_a.low > of_b.high || self.less.contains(&(b, a));
        let never_less = greater || a == b || of_a.low >= of_b.high;
        let never_greater = less || a == b || of_a.high <= of_b.low;
        let same = a == b || (of_a.single().is_some() && of_a.single() == of_b.single());
        let answer = match relation {
            Comparison::Eq => known(same, less || greater),
            Comparison::Ne => known(less || greater, same),
            Comparison::Lt => known(less, never_less),
            Comparison::Ge => known(never_less, less),
            Comparison::Gt => known(greater, never_greater),
            Comparison::Le => known(never_greater, greater),
        };
        answer.map_or(unknown, |answer| Interval::exactly(i64::from(answer)))
    }
}

fn known(is_true: bool, is_false: bool) -> Option<bool> {
    match (is_true, is_false) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// A number with all bits set below the highest one of `number`.
const fn filled(number: i64) -> i64 {
    if number == 0 { 0 } else { (1 << (64 - number.leading_zeros())) - 1 }
}

/// What can be loaded from an element.
const fn element(element: Element) -> Interval {
    match element {
        Element::U8 => Interval::new(0, u8::MAX as i64),
        Element::U16 => Interval::new(0, u16::MAX as i64),
        Element::I8 => Interval::new(i8::MIN as i64, i8::MAX as i64),
        Element::I16 => Interval::new(i16::MIN as i64, i16::MAX as i64),
        other => Interval::of_type(other.value_type()),
    }
}
