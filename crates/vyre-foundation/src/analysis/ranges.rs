//! Range analysis of 32-bit integers: value ranges, constant conditions, and accesses that are proved in bounds.
//!
//! One walk in execution order maintains an [`Interval`] for every value, narrowed by the conditions that dominate the
//! current point, and the orderings (`a < b`) that those conditions imply. The condition of an `if` is known in its
//! arms, and after it if one arm does not fall through.
//!
//! A loop parameter is unbounded, unless it is an [induction variable](super::counted) or no `continue` can increase
//! it. No fixpoint iteration is needed, so the walk is linear.

use rustc_hash::{FxHashMap, FxHashSet};

use super::loops::{counted, exits_of, incoming_values, integer, yields_of};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    BlockId, Comparison, Control, Def, Element, InstId, MemId, MemOperand, Op, PerGroup, PerInvocation, Program, Pure,
    Space, Terminator, Type, ValueId,
};

/// Closed interval from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Lower bound.
    pub low: i64,
    /// Upper bound.
    pub high: i64,
}

impl Interval {
    /// Interval of one number.
    pub const fn exactly(number: i64) -> Interval {
        Interval { low: number, high: number }
    }

    const fn new(low: i64, high: i64) -> Interval {
        Interval { low, high }
    }

    /// Range of a type; of a bool, 0 and 1. Types that are not analyzed are unbounded.
    const fn of_type(ty: Type) -> Interval {
        match ty {
            Type::U32 => Interval::new(0, u32::MAX as i64),
            Type::I32 => Interval::new(i32::MIN as i64, i32::MAX as i64),
            Type::Bool => Interval::new(0, 1),
            Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => Interval::new(i64::MIN, i64::MAX),
        }
    }

    /// The number, if the interval contains only one.
    pub fn single(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    fn hull(self, other: Interval) -> Interval {
        Interval::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// Intersection. If it is empty, the point is unreachable, and any answer is right.
    pub fn meet(self, other: Interval) -> Interval {
        let met = Interval::new(self.low.max(other.low), self.high.min(other.high));
        if met.low <= met.high { met } else { self }
    }

    fn within(self, other: Interval) -> bool {
        other.low <= self.low && self.high <= other.high
    }

    /// The interval, or the range of the type if the interval exceeds it, since the operation may wrap.
    fn or_all_of(self, ty: Type) -> Interval {
        let all = Interval::of_type(ty);
        if self.within(all) { self } else { all }
    }

    /// Range of a 32-bit sum after wrapping. If every number wraps, the interval is shifted by 2³²: `x - 1` is written
    /// as the addition of the greatest u32.
    fn wrapped(self, ty: Type) -> Interval {
        const MODULUS: i64 = 1 << 32;
        let less = Interval::new(self.low.saturating_sub(MODULUS), self.high.saturating_sub(MODULUS));
        if less.within(Interval::of_type(ty)) { less } else { self.or_all_of(ty) }
    }

    /// Range of the single result of an instruction without blocks, from the ranges of its operands (transfer
    /// function).
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
            // The number of invocations of a grid fits into 32 bits.
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
            // The result is at most the smaller of two non-negative numbers.
            Op::Pure(Pure::And) if of(0).low >= 0 && of(1).low >= 0 => Interval::new(0, of(0).high.min(of(1).high)),
            Op::Pure(Pure::And) if of(0).low >= 0 => Interval::new(0, of(0).high),
            Op::Pure(Pure::And) if of(1).low >= 0 => Interval::new(0, of(1).high),
            Op::Pure(Pure::Or) if of(0).low >= 0 && of(1).low >= 0 => {
                Interval::new(of(0).low.max(of(1).low), all_ones(of(0).high | of(1).high))
            }
            Op::Pure(Pure::Xor) if of(0).low >= 0 && of(1).low >= 0 => {
                Interval::new(0, all_ones(of(0).high | of(1).high))
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
            // If invocation 0 has ended, the result is 0.
            Op::Broadcast => of(0).hull(Interval::exactly(0)),
            _ => all,
        }
    }

    /// Bounds of an operation that is monotonic in each operand.
    fn corners(a: Interval, b: Interval, f: impl Fn(i64, i64) -> i64) -> Interval {
        let corners = [f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)];
        Interval::new(corners.into_iter().min().unwrap_or(0), corners.into_iter().max().unwrap_or(0))
    }
}

/// Results of the range analysis.
#[derive(Clone, Debug)]
pub struct Ranges {
    values: SecondaryMap<ValueId, Interval>,
    decided: FxHashMap<InstId, bool>,
    in_bounds: FxHashSet<InstId>,
    aligned: FxHashSet<InstId>,
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
    /// Analyzes a program.
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
                in_bounds: FxHashSet::default(),
                aligned: FxHashSet::default(),
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

    /// Range of a value at its definition. Only bools and 32-bit integers are analyzed.
    pub fn of_value(&self, value: ValueId) -> Interval {
        self.values[value]
    }

    /// The constant result of a comparison, or the constant condition of an `if`.
    pub fn decided(&self, inst: InstId) -> Option<bool> {
        self.decided.get(&inst).copied()
    }

    /// Returns true if all elements of an access are proved to be in bounds.
    pub fn is_in_bounds(&self, access: InstId) -> bool {
        self.in_bounds.contains(&access)
    }

    /// Returns true if the index and the length are multiples of the width of a wide access, so that its elements are
    /// all in bounds or all out of bounds.
    pub fn is_aligned(&self, access: InstId) -> bool {
        self.aligned.contains(&access)
    }

    /// Number of accesses proved in bounds or aligned, which is monotonic in the assumptions.
    pub fn proved_count(&self) -> usize {
        self.in_bounds.len() + self.aligned.len()
    }
}

/// Limit of values visited in the search for a factor.
const MAX_VISITED: u32 = 64;

struct Walk<'p> {
    program: &'p Program,
    lengths: Lengths,
    /// Intervals at the current point; at the end of the walk, those at the definitions.
    facts: Ranges,
    /// Pairs `(a, b)` of 32-bit values with `a < b` at the current point, by the comparison of their type.
    less: Vec<(ValueId, ValueId)>,
    /// Pairs with `a <= b`.
    at_most: Vec<(ValueId, ValueId)>,
    /// Undo log of narrowed intervals.
    narrowed: Vec<(ValueId, Interval)>,
    /// Visited loops, by their bodies.
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

    /// Walks a block. Returns true if the code after its owner is reachable from it.
    fn block(&mut self, block: BlockId) -> bool {
        let mark = self.mark();
        let mut falls_through = true;
        for index in 0..self.program.block(block).insts.len() {
            let id = self.program.block(block).insts[index];
            falls_through = self.inst(id);
        }
        self.restore(mark);
        falls_through
    }

    /// Marks the current facts, for `leave`.
    fn mark(&self) -> [usize; 3] {
        [self.less.len(), self.at_most.len(), self.narrowed.len()]
    }

    fn restore(&mut self, [less, at_most, narrowed]: [usize; 3]) {
        self.less.truncate(less);
        self.at_most.truncate(at_most);
        while self.narrowed.len() > narrowed {
            let (value, was) = self.narrowed.pop().expect("counted");
            self.facts.values[value] = was;
        }
    }

    /// Walks a block that is executed only if a condition has this value.
    fn conditional_block(&mut self, block: BlockId, condition: ValueId, value: bool) -> bool {
        let mark = self.mark();
        self.assume(condition, value);
        let falls_through = self.block(block);
        self.restore(mark);
        falls_through
    }

    /// Walks an instruction. Returns true if the next one is reachable.
    fn inst(&mut self, id: InstId) -> bool {
        let program = self.program;
        let inst = program.inst(id);
        match &inst.op {
            Op::Control(Control::If) => {
                let condition = inst.operands[0];
                if let Some(value) = self.get(condition).single() {
                    self.facts.decided.insert(id, value == 1);
                }
                let then_falls_through = self.conditional_block(inst.blocks[0], condition, true);
                let else_falls_through = self.conditional_block(inst.blocks[1], condition, false);
                self.merge_yields(id);
                match (then_falls_through, else_falls_through) {
                    (true, false) => self.assume(condition, true),
                    (false, true) => self.assume(condition, false),
                    (true, true) | (false, false) => {}
                }
                then_falls_through || else_falls_through
            }
            Op::Control(Control::Switch(cases)) => {
                let mut returns = false;
                for (position, &arm) in inst.blocks.iter().enumerate() {
                    let mark = self.mark();
                    if let Some(&case) = cases.get(position) {
                        let number = match program.ty(inst.operands[0]) {
                            Type::I32 => i64::from(case as i32),
                            _ => i64::from(case),
                        };
                        self.narrow(inst.operands[0], Interval::exactly(number));
                    }
                    returns |= self.block(arm);
                    self.restore(mark);
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
                self.loop_params(id);
                // An infinite loop makes the code after it unreachable, where any answer is right.
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

    /// Ranges of the results of an instruction, from the values its blocks yield.
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

    /// Ranges of the parameters of a loop, in every iteration.
    fn loop_params(&mut self, id: InstId) {
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
            } else if incoming.all(|value| value == param || self.never_exceeds(value, param)) {
                Interval::new(0, start.high)
            } else {
                all
            };
        }
        let Some(counted) = counted(program, id) else { return };
        let (start, bound) = (self.get(counted.start), self.get(counted.bound));
        let step = counted.step;
        // The parameter reaches at most the last value that passes the test, plus one step. If that may wrap, the range
        // is unknown.
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

    /// Returns true if a value is at most an unsigned parameter.
    fn never_exceeds(&self, value: ValueId, param: ValueId) -> bool {
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
        // Length in elements of the access. A length that is only known at launch counts elements of the object; if
        // those of the access are not wider, there are at least as many of them.
        let length = memory.static_bytes().map(|bytes| bytes / accessed);
        let aligned = matches!(width, 2 | 4)
            && length.map_or(self.lengths.multiples_of_four && own == accessed, |length| {
                length.is_multiple_of(width as u64)
            })
            && self.is_multiple(index, width as u32, &mut Vec::new(), &mut { MAX_VISITED });
        let below = || self.less.iter().any(|&(a, b)| a == index && self.is_within_length(b, at.memory));
        let bounded = (width == 1 && accessed <= own) || (aligned && accessed == own);
        if length.is_some_and(|length| last < length as i64) || (bounded && below()) {
            self.facts.in_bounds.insert(id);
        }
        if aligned {
            self.facts.aligned.insert(id);
        }
    }

    /// Returns true if a value is the length of an object, or the minimum of that length and another value.
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

    /// Returns true if a u32 is always a multiple of 2 or 4. Loop parameters in `assumed` are multiples by induction:
    /// the search visits their initial value and the operands of each `continue`. It visits at most `left` values.
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

    /// Assumes a value of a bool from here on.
    fn assume(&mut self, condition: ValueId, holds: bool) {
        let mut pending = vec![(condition, holds)];
        while let Some((condition, holds)) = pending.pop() {
            let was = self.get(condition);
            self.narrow(condition, Interval::exactly(i64::from(holds)));
            // Known facts were propagated before; this also bounds the work for shared subconditions.
            if self.get(condition) != was {
                self.propagate_condition(condition, holds, &mut pending);
            }
        }
    }

    /// Propagates the value of a bool to its operands; bools among them are added to `pending`.
    fn propagate_condition(&mut self, condition: ValueId, holds: bool, pending: &mut Vec<(ValueId, bool)>) {
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

    /// Assumes `a + gap <= b` from here on.
    fn assume_order(&mut self, a: ValueId, b: ValueId, gap: i64) {
        if !matches!(self.program.ty(a), Type::U32 | Type::I32) {
            return;
        }
        let (of_a, of_b) = (self.get(a), self.get(b));
        self.narrow(a, Interval::new(i64::MIN, of_b.high - gap));
        self.narrow(b, Interval::new(of_a.low + gap, i64::MAX));
        if gap == 1 { &mut self.less } else { &mut self.at_most }.push((a, b));
    }

    /// Assumes that a value differs from a constant from here on.
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

    /// Range of the single result of an instruction without blocks.
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

    /// Returns true if the second operand is known to be at most the first.
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
            Comparison::Eq => decide(same, less || greater),
            Comparison::Ne => decide(less || greater, same),
            Comparison::Lt => decide(less, never_less),
            Comparison::Ge => decide(never_less, less),
            Comparison::Gt => decide(greater, never_greater),
            Comparison::Le => decide(never_greater, greater),
        };
        answer.map_or(unknown, |answer| Interval::exactly(i64::from(answer)))
    }
}

fn decide(is_true: bool, is_false: bool) -> Option<bool> {
    match (is_true, is_false) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// The least number of the form 2ⁿ − 1 that is at least `number`.
const fn all_ones(number: i64) -> i64 {
    if number == 0 { 0 } else { (1 << (64 - number.leading_zeros())) - 1 }
}

/// Range of a loaded element.
const fn element(element: Element) -> Interval {
    match element {
        Element::U8 => Interval::new(0, u8::MAX as i64),
        Element::U16 => Interval::new(0, u16::MAX as i64),
        Element::I8 => Interval::new(i8::MIN as i64, i8::MAX as i64),
        Element::I16 => Interval::new(i16::MIN as i64, i16::MAX as i64),
        other => Interval::of_type(other.value_type()),
    }
}
