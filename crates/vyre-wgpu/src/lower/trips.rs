//! Trip count analysis: upper bounds of loops that follow from the arguments of a launch, so that the loops need no
//! fuel.

use rustc_hash::{FxHashMap, FxHashSet};
use vyre_foundation::analysis::{Increment, Interval, Ranges, const_trip_count, exits_of};
use vyre_foundation::ir::ops::Kind;
use vyre_foundation::ir::{
    BlockId, Comparison, Control, Def, Inst, InstId, Op, PerGroup, Program, Pure, Space, Terminator, Type, ValueId,
};

/// Longest trip count of a short loop.
const SHORT: u64 = 4096;

/// Recursion limit for the values that determine a trip count.
const DEPTH: u32 = 6;

/// Trip counts of a program's loops, including trips that only break.
#[derive(Default)]
pub(crate) struct Trips {
    /// Loops with a computable bound.
    counts: FxHashMap<InstId, Count>,
    /// Countable loops nested in countable loops only; each with the position of the enclosing one.
    free: Vec<(InstId, Option<usize>)>,
    /// Loops that are short for all arguments.
    short: FxHashMap<InstId, u32>,
}

/// Form of a trip count.
enum Count {
    Known(u64),
    /// A u32 induction variable counts up from `start`, by one of `steps`, until it reaches `bound`.
    Upwards {
        start: ValueId,
        steps: Vec<ValueId>,
        bound: ValueId,
        /// 1 if the variable must exceed the bound.
        beyond: i64,
    },
}

/// Interval of the grid, the length of a storage object, or the load of a uniform in a launch.
pub(crate) type Given<'a> = &'a dyn Fn(&Op) -> Option<Interval>;

impl Trips {
    pub(crate) fn of(program: &Program, ranges: &Ranges) -> Trips {
        let mut trips = Trips::default();
        trips.block(program, program.body(), Some(None));
        for (&id, count) in &trips.counts {
            if let Some(most) = count.most(program, ranges, &|_| None).filter(|&most| most <= SHORT) {
                trips.short.insert(id, most as u32);
            }
        }
        trips
    }

    /// Visits the loops of a block. `within` is `Some` of the enclosing free loop, if any, and `None` inside a loop
    /// that is not countable.
    fn block(&mut self, program: &Program, block: BlockId, within: Option<Option<usize>>) {
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            let mut inner = within;
            if inst.op == Control::Loop {
                let count = Count::of(program, id);
                inner = within.filter(|_| count.is_some()).map(|outer| {
                    self.free.push((id, outer));
                    Some(self.free.len() - 1)
                });
                self.counts.extend(count.map(|count| (id, count)));
            }
            inst.blocks.iter().for_each(|&nested| self.block(program, nested, inner));
        }
    }

    /// Maximum trip count of a short loop.
    pub(crate) fn short(&self, id: InstId) -> Option<u32> {
        self.short.get(&id).copied()
    }

    /// Loops whose trips are [bounded](Trips::most).
    pub(crate) fn free(&self) -> FxHashSet<InstId> {
        self.free.iter().map(|&(id, _)| id).collect()
    }

    /// Upper bound of an invocation's trips in all free loops, if the launch determines it.
    pub(crate) fn most(&self, program: &Program, ranges: &Ranges, given: Given<'_>) -> Option<u64> {
        let mut products: Vec<u64> = Vec::with_capacity(self.free.len());
        for (id, outer) in &self.free {
            let most = self.counts[id].most(program, ranges, given)?;
            products.push(most.saturating_mul(outer.map_or(1, |outer| products[outer])));
        }
        Some(products.into_iter().fold(0, u64::saturating_add))
    }
}

impl Count {
    /// Trip count of a loop whose first branch breaks when an induction variable has reached a bound, possibly also for
    /// other reasons.
    fn of(program: &Program, id: InstId) -> Option<Count> {
        if let Some(count) = const_trip_count(program, id) {
            return Some(Count::Known(count.trips + 1));
        }
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let mut insts = program.block(body).insts.iter().map(|&inst| program.inst(inst));
        let branch = insts.find(|inst| !inst.blocks.is_empty()).filter(|inst| inst.op == Control::If)?;
        let leaves = |block: BlockId| {
            let breaks =
                program.block(block).insts.last().is_some_and(|&end| program.inst(end).op == Terminator::Break);
            breaks && exits_of(program, block).continues.is_empty()
        };
        let leaving = branch.blocks.iter().position(|&block| leaves(block))?;
        let (position, bound, beyond) = limit(program, body, branch.operands[0], leaving == 0, DEPTH)?;
        let counter = program.block(body).params[position];
        let mut steps = Vec::new();
        for id in exits_of(program, body).continues {
            let Increment::Add(step) = Increment::between(program, counter, program.inst(id).operands[position])?
            else {
                return None;
            };
            steps.push(step);
        }
        Some(Count::Upwards { start: inst.operands[position], steps, bound, beyond })
    }

    /// Upper bound of the trips. The bound and the steps may vary between trips, within their intervals.
    fn most(&self, program: &Program, ranges: &Ranges, given: Given<'_>) -> Option<u64> {
        let (start, steps, bound, beyond) = match self {
            Count::Known(most) => return Some(*most),
            Count::Upwards { start, steps, bound, beyond } => (start, steps, bound, beyond),
        };
        let of = |value: ValueId| interval(program, ranges, given, value, DEPTH);
        let steps = steps.iter().map(|&step| of(step));
        // Without a `continue` there is one trip.
        let Some((least, most)) = steps.map(|step| (step.low, step.high)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        else {
            return Some(1);
        };
        // The counter must not wrap past the bound.
        let fits = of(*bound).high + beyond - 1 + most <= i64::from(u32::MAX);
        let distance = distance(program, &of, *start, *bound) + beyond;
        (least > 0 && fits).then(|| distance.max(0).unsigned_abs().div_ceil(least.unsigned_abs()) + 1)
    }
}

/// Finds the u32 loop parameter and the bound for which the condition is `leaving` once the parameter has reached the
/// bound, or exceeds it. Recursion is limited by `depth`.
fn limit(
    program: &Program,
    body: BlockId,
    condition: ValueId,
    leaving: bool,
    depth: u32,
) -> Option<(usize, ValueId, i64)> {
    let Def::Result(inst, _) = program.def(condition) else { return None };
    let Inst { op, operands, .. } = program.inst(inst);
    let reaches = |counter: ValueId, bound: ValueId, beyond: i64| {
        let position = program.block(body).params.iter().position(|&param| param == counter);
        position.filter(|_| program.ty(counter) == Type::U32).map(|position| (position, bound, beyond))
    };
    let Op::Pure(op) = op else { return None };
    if let Some(relation) = op.comparison() {
        return match relation.when(leaving) {
            Comparison::Ge => reaches(operands[0], operands[1], 0),
            Comparison::Gt => reaches(operands[0], operands[1], 1),
            Comparison::Le => reaches(operands[1], operands[0], 0),
            Comparison::Lt => reaches(operands[1], operands[0], 1),
            Comparison::Eq | Comparison::Ne => None,
        };
    }
    match (op, leaving) {
        (Pure::Or, true) | (Pure::And, false) if depth > 0 => {
            operands.iter().find_map(|&operand| limit(program, body, operand, leaving, depth - 1))
        }
        (Pure::Not, _) if depth > 0 => limit(program, body, operands[0], !leaving, depth - 1),
        _ => None,
    }
}

/// Upper bound of `bound − start`. Recognizes parts of a range: from `s + …` to `min(s + size, …)`.
fn distance(program: &Program, of: &impl Fn(ValueId) -> Interval, start: ValueId, bound: ValueId) -> i64 {
    // Both operand orders of a commutative operation.
    let seen_as = |value: ValueId, op: Op| match program.def(value) {
        Def::Result(inst, 0) if program.inst(inst).op == op => {
            let operands = &program.inst(inst).operands;
            vec![(operands[0], operands[1]), (operands[1], operands[0])]
        }
        _ => Vec::new(),
    };
    let mut most = of(bound).high - of(start).low;
    for (operand, _) in seen_as(bound, Op::Pure(Pure::Min)) {
        most = most.min(distance(program, of, start, operand));
    }
    for (part, size) in seen_as(bound, Op::Pure(Pure::Add)) {
        if start == part {
            most = most.min(of(size).high);
        }
        for (base, from_part) in seen_as(start, Op::Pure(Pure::Add)) {
            // If the sum wraps, the start is before the part.
            if base == part && of(base).high + of(from_part).high <= i64::from(u32::MAX) {
                most = most.min(of(size).high - of(from_part).low);
            }
        }
    }
    most
}

/// Interval of a value in a launch, with a recursion limit.
fn interval(program: &Program, ranges: &Ranges, given: Given<'_>, value: ValueId, depth: u32) -> Interval {
    let known = ranges.of_value(value);
    let Def::Result(id, 0) = program.def(value) else { return known };
    let inst = program.inst(id);
    match &inst.op {
        Op::Load(at) if program.memory(at.memory).space != Space::Uniform || program.ty(value) != Type::U32 => known,
        Op::PerGroup(PerGroup::Length(memory)) if !matches!(program.memory(*memory).space, Space::Storage(_)) => known,
        op if depth > 0 && op.kind() == Kind::Pure => {
            let of = |operand: ValueId| interval(program, ranges, given, operand, depth - 1);
            known.meet(Interval::of_result(program, id, of))
        }
        op => given(op).unwrap_or(known),
    }
}
