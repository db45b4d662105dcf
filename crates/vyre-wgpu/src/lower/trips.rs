//! How often loops go round at most, where that follows from what a launch is given: nobody has to watch over those.

use rustc_hash::{FxHashMap, FxHashSet};
use vyre_foundation::analysis::{Increment, Interval, Ranges, const_trip_count, exits_of};
use vyre_foundation::ir::ops::Kind;
use vyre_foundation::ir::{
    BlockId, Comparison, Control, Def, Inst, InstId, Op, PerGroup, Program, Pure, Space, Terminator, Type, ValueId,
};

/// More trips than this are not short.
const SHORT: u64 = 4096;

/// How deep the values that decide about trips are looked into.
const DEPTH: u32 = 6;

/// What is known of the trips of a program's loops. Trips that only break are counted, too.
#[derive(Default)]
pub(crate) struct Trips {
    /// The loops that end by their own arithmetic.
    counts: FxHashMap<InstId, Count>,
    /// Those of them that stand in no others than such; each with the position of the one that it stands in.
    free: Vec<(InstId, Option<usize>)>,
    /// The loops that are short, whatever a launch is given.
    short: FxHashMap<InstId, u32>,
}

/// What decides how often a loop goes round.
enum Count {
    Known(u64),
    /// A u32 counts up from a start, by one of several steps, until it has reached a bound.
    Upwards {
        start: ValueId,
        steps: Vec<ValueId>,
        bound: ValueId,
        /// 1 if the bound itself is not enough to leave.
        beyond: i64,
    },
}

/// What a launch says about the grid, the length of a storage object, or the load of a uniform.
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

    /// Finds the loops of a block, which stands in this one of the free loops, or in none, or, if it is `None`, in another.
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

    /// At most how many trips a short loop takes.
    pub(crate) fn short(&self, id: InstId) -> Option<u32> {
        self.short.get(&id).copied()
    }

    /// The loops whose trips are [counted](Trips::most).
    pub(crate) fn free(&self) -> FxHashSet<InstId> {
        self.free.iter().map(|&(id, _)| id).collect()
    }

    /// At most how many trips an invocation takes in the free loops together, if a launch tells.
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
    /// What decides about a loop: its first branch breaks if a parameter has reached a bound, perhaps also for other reasons.
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

    /// How many trips there are at most. The bound and the steps may change from trip to trip: they stay in their intervals.
    fn most(&self, program: &Program, ranges: &Ranges, given: Given<'_>) -> Option<u64> {
        let (start, steps, bound, beyond) = match self {
            Count::Known(most) => return Some(*most),
            Count::Upwards { start, steps, bound, beyond } => (start, steps, bound, beyond),
        };
        let of = |value: ValueId| interval(program, ranges, given, value, DEPTH);
        let steps = steps.iter().map(|&step| of(step));
        // Without a `continue` there is only one trip.
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

/// The position of a u32 among the parameters of a loop, and a bound: whenever the one has reached the other, or is so much
/// beyond, the condition is `leaving`. They are looked for this deep in it.
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

/// At most how far it is from a start to a bound. Parts of a whole are between `s + …` and `min(s + size, …)`.
fn distance(program: &Program, of: &impl Fn(ValueId) -> Interval, start: ValueId, bound: ValueId) -> i64 {
    // Both ways to see an operation on two operands.
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
            // Where this wraps, the start is before the part.
            if base == part && of(base).high + of(from_part).high <= i64::from(u32::MAX) {
                most = most.min(of(size).high - of(from_part).low);
            }
        }
    }
    most
}

/// What a value can be in a launch, looked into this deep.
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
