//! Where the accesses of a stage go, as far as that follows from the positions of its workgroups and invocations.
//!
//! The grid and all lengths are known, so most indices are sums of positions with known factors. One walk in the order of the
//! text finds these sums; what is not one is at least in the range that the range analysis gives it.

use rustc_hash::FxHashMap;

use super::Bound;
use crate::analysis::{Counted, Interval, Ranges, Stays, counted, exits_of, finite};
use crate::ir::entity::SecondaryMap;
use crate::ir::{Axis, BlockId, BufferId, InstId, Literal, MemId, Op, Program, Type, ValueId};

/// How many positions there are: of workgroups along x, y and z, and of invocations in a workgroup.
pub(super) type Counts = [u32; 6];

/// Numbers that depend on where an invocation stands: each position times its factor, plus something from `low` to `high`.
/// They are meant modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// For the positions in [`Counts`]. The factor of a position that there is only one of is 0.
    pub(super) factors: [i64; 6],
    pub(super) low: i64,
    pub(super) high: i64,
}

const MODULUS: i64 = 1 << 32;

impl Form {
    const ANYTHING: Form = Form::within(0, MODULUS - 1);

    const fn within(low: i64, high: i64) -> Form {
        Form { factors: [0; 6], low, high }
    }

    /// The sum of positions with these factors.
    fn positions(factors: [u64; 6], counts: Counts) -> Form {
        let factor = |position: usize| if counts[position] > 1 { i64::from(factors[position] as i32) } else { 0 };
        Form { factors: std::array::from_fn(factor), low: 0, high: 0 }
    }

    /// The number, if it is the same everywhere.
    fn number(self) -> Option<i64> {
        (self.factors == [0; 6] && self.low == self.high).then_some(self.low)
    }

    /// Keeps factors and bounds small, so that nothing overflows.
    fn reduced(self) -> Form {
        const FAR: i64 = 1 << 40;
        if self.low < -FAR || self.high > FAR {
            return Form::ANYTHING;
        }
        Form { factors: self.factors.map(|factor| i64::from(factor as i32)), ..self }
    }

    fn plus(self, other: Form) -> Form {
        let factors = std::array::from_fn(|position| self.factors[position] + other.factors[position]);
        Form { factors, low: self.low + other.low, high: self.high + other.high }.reduced()
    }

    fn times(self, number: i64) -> Form {
        let number = i64::from(number as i32);
        let (a, b) = (self.low.saturating_mul(number), self.high.saturating_mul(number));
        Form { factors: self.factors.map(|factor| factor * number), low: a.min(b), high: a.max(b) }.reduced()
    }

    /// One of two.
    fn or(self, other: Form, counts: Counts) -> Form {
        let (a, b) = match self.factors == other.factors {
            true => (self, other),
            false => (self.of_workgroup(counts), other.of_workgroup(counts)),
        };
        match a.factors == b.factors {
            true => Form { low: a.low.min(b.low), high: a.high.max(b.high), ..a },
            false => Form::ANYTHING,
        }
    }

    /// The numbers of all invocations of a workgroup together.
    pub(super) fn of_workgroup(self, counts: Counts) -> Form {
        let mut whole = self;
        for (factor, count) in whole.factors.iter_mut().zip(counts).skip(3) {
            let reach = *factor * i64::from(count - 1);
            whole.low += reach.min(0);
            whole.high += reach.max(0);
            *factor = 0;
        }
        whole
    }

    /// The least and the greatest number of all.
    fn bounds(self, counts: Counts) -> (i64, i64) {
        let mut bounds = (self.low, self.high);
        for (factor, count) in self.factors.into_iter().zip(counts) {
            let reach = factor.saturating_mul((i64::from(count) - 1).max(0));
            bounds = (bounds.0.saturating_add(reach.min(0)), bounds.1.saturating_add(reach.max(0)));
        }
        bounds
    }

    /// The same numbers, of which none wraps around.
    fn settled(self, counts: Counts) -> Form {
        let (least, most) = self.bounds(counts);
        let turns = least.div_euclid(MODULUS) * MODULUS;
        match most.saturating_sub(turns) < MODULUS {
            true => Form { low: self.low - turns, high: self.high - turns, ..self },
            false => Form::ANYTHING,
        }
    }

    /// How far apart the sums of different positions are at least.
    pub(super) fn gap(self, counts: Counts) -> i64 {
        let mut terms: Vec<(i64, i64)> =
            (0..6).filter(|&at| counts[at] > 1).map(|at| (self.factors[at].abs(), i64::from(counts[at]))).collect();
        terms.sort_unstable();
        let (mut gap, mut reach) = (i64::MAX, 0);
        for (factor, count) in terms {
            // What the smaller factors reach is less than one step of this one, or sums of different positions meet.
            gap = gap.min((factor - reach).max(0));
            reach = factor.saturating_mul(count - 1).saturating_add(reach);
        }
        gap
    }
}

/// An access to a storage object.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) memory: MemId,
    pub(super) buffer: BufferId,
    /// The indices of its first element.
    pub(super) index: Form,
    /// How many elements it has.
    pub(super) width: u32,
    pub(super) loads: bool,
    pub(super) stores: bool,
}

impl Touch {
    /// The elements it may be about.
    pub(super) fn elements(&self) -> Form {
        Form { high: self.index.high + i64::from(self.width) - 1, ..self.index }
    }

    /// The last element it may be about.
    pub(super) fn last(&self, counts: Counts) -> i64 {
        self.elements().bounds(counts).1
    }
}

/// What fusion has to know about a program.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) touches: FxHashMap<InstId, Touch>,
    pub(super) prints: bool,
    pub(super) traps: bool,
    /// Whether there are barriers, broadcasts or subgroup operations.
    pub(super) collective: bool,
    /// Whether some of these are executed only if a condition says so.
    pub(super) guarded: bool,
    /// How many `return`s there are besides the last.
    pub(super) returns: usize,
    /// How deep blocks are nested.
    pub(super) depth: usize,
}

impl Facts {
    pub(super) fn of(program: &Program, counts: Counts, bound: &[Bound]) -> Facts {
        let mut facts = Facts::default();
        let mut walk = Walk::new(program, counts, bound, &|_| None);
        walk.block(program.body, 0, false, &mut facts);
        facts.returns = facts.returns.saturating_sub(1);
        facts
    }
}

/// Upper bound of the loop trips that one invocation takes, all loops together, or `None` where a loop has no known bound.
/// A trip that only breaks is one, too: it is charged as fuel.
pub(super) fn most_trips(program: &Program, counts: Counts, bound: &[Bound], scalars: Scalars<'_>) -> Option<u64> {
    let mut has_loops = false;
    program.walk(|id, _| has_loops |= program.insts[id].op == Op::Loop);
    if !has_loops {
        return Some(0);
    }
    let mut walk = Walk::new(program, counts, bound, scalars);
    walk.block(program.body, 0, false, &mut Facts::default());
    walk.trips_of_block(program.body)
}

/// The value of a uniform, where it is known.
pub(super) type Scalars<'a> = &'a dyn Fn(MemId) -> Option<Literal>;

struct Walk<'p> {
    program: &'p Program,
    counts: Counts,
    bound: &'p [Bound],
    scalars: Scalars<'p>,
    ranges: Ranges,
    forms: SecondaryMap<ValueId, Form>,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, counts: Counts, bound: &'p [Bound], scalars: Scalars<'p>) -> Walk<'p> {
        let forms = SecondaryMap::with_capacity(program.values.len(), Form::ANYTHING);
        let mut walk = Walk { program, counts, bound, scalars, ranges: Ranges::of(program), forms };
        for (value, definition) in program.values.iter() {
            walk.forms[value] = match (definition.ty, program.known(value)) {
                (Type::U32 | Type::I32, Some(literal)) => Form::within(literal.bits as i64, literal.bits as i64),
                _ => walk.range(value),
            };
        }
        walk
    }

    fn block(&mut self, block: BlockId, depth: usize, guarded: bool, facts: &mut Facts) {
        let program = self.program;
        facts.depth = facts.depth.max(depth);
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            facts.prints |= matches!(inst.op, Op::Print(_));
            facts.traps |= inst.op == Op::Trap;
            facts.returns += usize::from(inst.op == Op::Return);
            facts.collective |= inst.op.is_collective();
            facts.guarded |= inst.op.is_collective() && guarded;
            if let Some(touch) = self.touch(id) {
                facts.touches.insert(id, touch);
            }
            for &nested in &inst.blocks {
                self.block(nested, depth + 1, guarded || !matches!(inst.op, Op::Region(_)), facts);
            }
            if let ([result], true) = (&inst.results[..], inst.blocks.is_empty())
                && matches!(program.ty(*result), Type::U32 | Type::I32)
            {
                self.forms[*result] = self.form(id, *result);
            }
        }
    }

    fn trips_of_block(&self, block: BlockId) -> Option<u64> {
        let mut sum = 0u64;
        for &id in &self.program.blocks[block].insts {
            let inst = &self.program.insts[id];
            let mut nested = 0u64;
            for &block in &inst.blocks {
                nested = nested.saturating_add(self.trips_of_block(block)?);
            }
            if inst.op == Op::Loop {
                nested = self.trips_of_loop(id)?.saturating_mul(nested.saturating_add(1));
            }
            sum = sum.saturating_add(nested);
        }
        Some(sum)
    }

    fn trips_of_loop(&self, id: InstId) -> Option<u64> {
        if exits_of(self.program, self.program.insts[id].blocks[0]).continues.is_empty() {
            return Some(1);
        }
        if let Some(finite) = finite(self.program, id) {
            return Some(finite.trips.saturating_add(1));
        }
        let Counted { param, start, step, stays, bound, .. } = counted(self.program, id)?;
        let (start, bound) = (self.interval(start)?, self.interval(bound)?);
        let (least, most) = match self.program.ty(param) {
            Type::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => (0, i64::from(u32::MAX)),
        };
        // The counter leaves the loop in the first trip in which it has reached `end`, unless it wraps around before.
        let (distance, end) = match (stays, step > 0) {
            (Stays::Lt, true) => (bound.high - start.low, bound.high),
            (Stays::Le, true) => (bound.high + 1 - start.low, bound.high + 1),
            (Stays::Gt, false) => (start.high - bound.low, bound.low),
            (Stays::Ge, false) => (start.high + 1 - bound.low, bound.low - 1),
            _ => return None,
        };
        let furthest = if step > 0 { end - 1 + step } else { end + 1 + step };
        let trips = distance.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
        (least..=most).contains(&furthest).then(|| trips + 1)
    }

    /// The numbers that a 32-bit integer can be for this grid, these lengths and these uniforms.
    fn interval(&self, value: ValueId) -> Option<Interval> {
        let Interval { low, high } = self.ranges.of_value(value);
        let (least, most) = self.forms[value].settled(self.counts).bounds(self.counts);
        match self.program.ty(value) {
            Type::U32 => Some(Interval { low: low.max(least), high: high.min(most) }),
            // Forms are meant modulo 2³²: both readings of a number agree below 2³¹.
            Type::I32 if most <= i64::from(i32::MAX) => Some(Interval { low: low.max(least), high: high.min(most) }),
            Type::I32 => Some(Interval { low, high }),
            _ => None,
        }
        .filter(|interval| interval.low <= interval.high)
    }

    fn touch(&self, id: InstId) -> Option<Touch> {
        let inst = &self.program.insts[id];
        let memory = inst.op.memory()?;
        let bound = self.bound.iter().find(|bound| bound.memory == memory)?;
        let (loads, stores, width) = match inst.op {
            Op::Length(_) => return None,
            Op::Load(_) => (true, false, inst.results.len()),
            Op::Store(_) => (false, true, inst.operands.len() - 1),
            _ => (true, true, 1),
        };
        let index = self.forms[inst.operands[0]].settled(self.counts);
        Some(Touch { memory, buffer: bound.buffer, index, width: width as u32, loads, stores })
    }

    /// What the range analysis knows.
    fn range(&self, value: ValueId) -> Form {
        match self.program.ty(value) {
            Type::U32 | Type::I32 => {
                let Interval { low, high } = self.ranges.of_value(value);
                Form::within(low, high)
            }
            Type::Bool | Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => Form::ANYTHING,
        }
    }

    fn form(&self, id: InstId, result: ValueId) -> Form {
        let inst = &self.program.insts[id];
        let of = |position: usize| self.forms[inst.operands[position]];
        let whole = |position: usize| matches!(self.program.ty(inst.operands[position]), Type::U32 | Type::I32);
        let form = match inst.op {
            ref op if let Some(form) = position(op, self.counts) => form,
            Op::GroupCount(axis) => number(self.counts[axis as usize]),
            Op::GroupSize(axis) => number(self.counts[axis as usize + 3]),
            Op::Length(memory) => match self.bound.iter().find(|bound| bound.memory == memory) {
                Some(bound) => number(bound.elements),
                None => self.range(result),
            },
            Op::Load(memory) if let Some(literal) = (self.scalars)(memory) => {
                Form::within(literal.bits as i64, literal.bits as i64)
            }
            Op::Add => of(0).plus(of(1)),
            Op::Sub => of(0).plus(of(1).times(-1)),
            Op::Mul => match (of(0).number(), of(1).number()) {
                (_, Some(factor)) => of(0).times(factor),
                (Some(factor), _) => of(1).times(factor),
                (None, None) => self.range(result),
            },
            Op::Shl => match of(1).number() {
                Some(count) => of(0).times(1 << (count & 31)),
                None => self.range(result),
            },
            Op::Cast | Op::Bitcast if whole(0) => of(0),
            Op::Select => of(1).or(of(2), self.counts),
            _ => self.range(result),
        };
        // Of what does not depend on positions, the range analysis may know more.
        let range = self.range(result);
        match form.factors == [0; 6] && range.high - range.low < form.high - form.low {
            true => range,
            false => form,
        }
    }
}

/// Where an invocation or its workgroup stands, if that is what an operation says.
pub(super) fn position(op: &Op, counts: Counts) -> Option<Form> {
    let [groups_x, groups_y, _, x, y, z] = counts.map(u64::from);
    let group = [1, groups_x, groups_x.wrapping_mul(groups_y)];
    let local = [1, x, x * y];
    let both = |group: [u64; 3], local: [u64; 3]| [group[0], group[1], group[2], local[0], local[1], local[2]];
    let along = |axis: Axis, factor: u64| std::array::from_fn(|at| if at == axis as usize { factor } else { 0 });
    let factors = match *op {
        Op::GlobalIndex => both(group.map(|factor| factor.wrapping_mul(x * y * z)), local),
        Op::GroupIndex => both(group, [0; 3]),
        Op::LocalIndex => both([0; 3], local),
        Op::GlobalId(axis) => both(along(axis, u64::from(counts[axis as usize + 3])), along(axis, 1)),
        Op::GroupId(axis) => both(along(axis, 1), [0; 3]),
        Op::LocalId(axis) => both([0; 3], along(axis, 1)),
        _ => return None,
    };
    Some(Form::positions(factors, counts))
}

fn number(number: u32) -> Form {
    Form::within(i64::from(number), i64::from(number))
}
