//! Affine analysis of a stage: indices of accesses as linear forms of workgroup and invocation ids.
//!
//! The grid and all lengths are known, so most indices are linear combinations of positions with known factors. One
//! walk in text order computes these forms; other values have the bounds of the range analysis.

use rustc_hash::FxHashMap;

use super::Bound;
use crate::analysis::{AffineForm, Counted, Counts, Interval, Ranges, const_trip_count, counted, exits_of};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    AccessTypes, Axis, BlockId, BufferId, Comparison, Control, InstId, Literal, MemId, MemOperand, Op, PerGroup,
    PerInvocation, Program, Pure, Terminator, Type, ValueId,
};

/// An access to a storage object.
#[derive(Clone, Debug)]
pub(super) struct StageAccess {
    pub(super) memory: MemId,
    pub(super) buffer: BufferId,
    /// Index of the first element.
    pub(super) index: AffineForm,
    /// Number of elements.
    pub(super) width: u32,
    /// Size of an element in bytes.
    pub(super) size: u32,
    pub(super) loads: bool,
    pub(super) stores: bool,
}

impl StageAccess {
    /// Elements that may be accessed.
    pub(super) fn elements(&self) -> AffineForm {
        AffineForm { high: self.index.high + i64::from(self.width) - 1, ..self.index }
    }

    /// Bytes that may be accessed.
    pub(super) fn bytes(&self) -> AffineForm {
        let (elements, size) = (self.elements(), i64::from(self.size));
        let factors = elements.factors.map(|factor| factor * size);
        AffineForm { factors, low: elements.low * size, high: (elements.high + 1) * size - 1 }
    }

    /// Last element that may be accessed.
    pub(super) fn last(&self, counts: Counts) -> i64 {
        self.elements().bounds(counts).1
    }
}

/// Properties of a program that fusion depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) accesses: FxHashMap<InstId, StageAccess>,
    /// Element types of the accesses to each object.
    pub(super) types: SecondaryMap<MemId, AccessTypes>,
    pub(super) prints: bool,
    pub(super) traps: bool,
    /// Contains barriers, broadcasts or subgroup operations.
    pub(super) collective: bool,
    /// Some of these are in conditional code.
    pub(super) guarded: bool,
    /// Number of `return`s besides the last.
    pub(super) returns: usize,
    /// Nesting depth of the blocks.
    pub(super) depth: usize,
}

impl Facts {
    pub(super) fn of(program: &Program, counts: Counts, bound: &[Bound], uniforms: &Uniforms) -> Facts {
        let mut facts = Facts { types: AccessTypes::of(program), ..Facts::default() };
        let mut walk = Walk::new(program, counts, bound, uniforms);
        walk.block(program.body(), 0, false, &mut facts);
        facts.returns = facts.returns.saturating_sub(1);
        facts
    }
}

/// Upper bound of the iterations of all loops of one invocation, or `None` if a loop has no known bound. An iteration
/// that only breaks counts too, since it consumes fuel.
pub(super) fn max_trips(program: &Program, counts: Counts, bound: &[Bound], uniforms: &Uniforms) -> Option<u64> {
    let mut has_loops = false;
    program.walk(|id, _| has_loops |= program.inst(id).op == Control::Loop);
    if !has_loops {
        return Some(0);
    }
    let mut walk = Walk::new(program, counts, bound, uniforms);
    walk.block(program.body(), 0, false, &mut Facts::default());
    walk.trips_of_block(program.body())
}

/// Values that loads of known uniforms give.
pub(super) type Uniforms = FxHashMap<MemId, Literal>;

struct Walk<'p> {
    program: &'p Program,
    counts: Counts,
    bound: &'p [Bound],
    uniforms: &'p Uniforms,
    ranges: Ranges,
    forms: SecondaryMap<ValueId, AffineForm>,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, counts: Counts, bound: &'p [Bound], uniforms: &'p Uniforms) -> Walk<'p> {
        let forms = SecondaryMap::with_capacity(program.values().len(), AffineForm::ANYTHING);
        let mut walk = Walk { program, counts, bound, uniforms, ranges: Ranges::of(program), forms };
        for (value, definition) in program.values().iter() {
            walk.forms[value] = match (definition.ty, program.known(value)) {
                (Type::U32 | Type::I32, Some(literal)) => AffineForm::within(literal.bits as i64, literal.bits as i64),
                _ => walk.range(value),
            };
        }
        walk
    }

    fn block(&mut self, block: BlockId, depth: usize, guarded: bool, facts: &mut Facts) {
        let program = self.program;
        facts.depth = facts.depth.max(depth);
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            facts.prints |= matches!(inst.op, Op::Print(_));
            facts.traps |= inst.op == Terminator::Trap;
            facts.returns += usize::from(inst.op == Terminator::Return);
            facts.collective |= inst.op.is_collective();
            facts.guarded |= inst.op.is_collective() && guarded;
            if let Some(access) = self.access(id) {
                facts.accesses.insert(id, access);
            }
            for &nested in &inst.blocks {
                self.block(nested, depth + 1, guarded || !matches!(inst.op, Op::Control(Control::Region(_))), facts);
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
        for &id in &self.program.block(block).insts {
            let inst = self.program.inst(id);
            let mut nested = 0u64;
            for &block in &inst.blocks {
                nested = nested.saturating_add(self.trips_of_block(block)?);
            }
            if inst.op == Control::Loop {
                nested = self.trips_of_loop(id)?.saturating_mul(nested.saturating_add(1));
            }
            sum = sum.saturating_add(nested);
        }
        Some(sum)
    }

    fn trips_of_loop(&self, id: InstId) -> Option<u64> {
        if exits_of(self.program, self.program.inst(id).blocks[0]).continues.is_empty() {
            return Some(1);
        }
        if let Some(count) = const_trip_count(self.program, id) {
            return Some(count.trips.saturating_add(1));
        }
        let Counted { param, start, step, predicate, bound, .. } = counted(self.program, id)?;
        let (start, bound) = (self.interval(start)?, self.interval(bound)?);
        let (least, most) = match self.program.ty(param) {
            Type::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            _ => (0, i64::from(u32::MAX)),
        };
        // The induction variable leaves the loop in the first iteration in which it has reached `end`, unless it wraps
        // around before.
        let (distance, end) = match (predicate, step > 0) {
            (Comparison::Lt, true) => (bound.high - start.low, bound.high),
            (Comparison::Le, true) => (bound.high + 1 - start.low, bound.high + 1),
            (Comparison::Gt, false) => (start.high - bound.low, bound.low),
            (Comparison::Ge, false) => (start.high + 1 - bound.low, bound.low - 1),
            (Comparison::Lt | Comparison::Le, false)
            | (Comparison::Gt | Comparison::Ge, true)
            | (Comparison::Eq | Comparison::Ne, _) => return None,
        };
        let furthest = if step > 0 { end - 1 + step } else { end + 1 + step };
        let trips = distance.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
        (least..=most).contains(&furthest).then(|| trips + 1)
    }

    /// Range of a 32-bit integer for this grid, these lengths and these uniforms.
    fn interval(&self, value: ValueId) -> Option<Interval> {
        let Interval { low, high } = self.ranges.of_value(value);
        let (least, most) = self.forms[value].unwrapped(self.counts).bounds(self.counts);
        match self.program.ty(value) {
            Type::U32 => Some(Interval { low: low.max(least), high: high.min(most) }),
            // Forms are modulo 2³²: the signed and unsigned values agree below 2³¹.
            Type::I32 if most <= i64::from(i32::MAX) => Some(Interval { low: low.max(least), high: high.min(most) }),
            Type::I32 => Some(Interval { low, high }),
            _ => None,
        }
        .filter(|interval| interval.low <= interval.high)
    }

    fn access(&self, id: InstId) -> Option<StageAccess> {
        let inst = self.program.inst(id);
        let MemOperand { memory, element, .. } = inst.op.operand()?;
        let bound = self.bound.iter().find(|bound| bound.memory == memory)?;
        let (loads, stores) = (!matches!(inst.op, Op::Store(_)), !matches!(inst.op, Op::Load(_)));
        let index = self.forms[inst.operands[0]].unwrapped(self.counts);
        let size = element.size() as u32;
        let width = inst.accessed_elements() as u32;
        Some(StageAccess { memory, buffer: bound.buffer, index, width, size, loads, stores })
    }

    /// Constant form with the bounds of the range analysis.
    fn range(&self, value: ValueId) -> AffineForm {
        match self.program.ty(value) {
            Type::U32 | Type::I32 => {
                let Interval { low, high } = self.ranges.of_value(value);
                AffineForm::within(low, high)
            }
            Type::Bool | Type::F32 | Type::F64 | Type::F16 | Type::I64 | Type::U64 => AffineForm::ANYTHING,
        }
    }

    fn form(&self, id: InstId, result: ValueId) -> AffineForm {
        let inst = self.program.inst(id);
        let of = |position: usize| self.forms[inst.operands[position]];
        let is_32_bit = |position: usize| matches!(self.program.ty(inst.operands[position]), Type::U32 | Type::I32);
        let form = match inst.op {
            ref op if let Some(form) = position(op, self.counts) => form,
            Op::PerGroup(PerGroup::GroupCount(axis)) => number(self.counts[axis as usize]),
            Op::PerGroup(PerGroup::GroupSize(axis)) => number(self.counts[axis as usize + 3]),
            Op::PerGroup(PerGroup::Length(memory)) => match self.bound.iter().find(|bound| bound.memory == memory) {
                Some(bound) => number(bound.elements),
                None => self.range(result),
            },
            Op::Load(at) if let Some(literal) = self.uniforms.get(&at.memory) => {
                AffineForm::within(literal.bits as i64, literal.bits as i64)
            }
            Op::Pure(Pure::Add) => of(0).plus(of(1)),
            Op::Pure(Pure::Sub) => of(0).plus(of(1).times(-1)),
            Op::Pure(Pure::Mul) => match (of(0).number(), of(1).number()) {
                (_, Some(factor)) => of(0).times(factor),
                (Some(factor), _) => of(1).times(factor),
                (None, None) => self.range(result),
            },
            Op::Pure(Pure::Shl) => match of(1).number() {
                Some(count) => of(0).times(1 << (count & 31)),
                None => self.range(result),
            },
            Op::Pure(Pure::Cast | Pure::Bitcast) if is_32_bit(0) => of(0),
            Op::Pure(Pure::Select) => of(1).join(of(2), self.counts),
            _ => self.range(result),
        };
        // For values that do not depend on positions, the range analysis may be more precise.
        let range = self.range(result);
        match form.factors == [0; 6] && range.high - range.low < form.high - form.low {
            true => range,
            false => form,
        }
    }
}

/// Linear form of an operation that returns a position in the grid or workgroup.
pub(super) fn position(op: &Op, counts: Counts) -> Option<AffineForm> {
    let [groups_x, groups_y, _, x, y, z] = counts.map(u64::from);
    let group = [1, groups_x, groups_x.wrapping_mul(groups_y)];
    let local = [1, x, x * y];
    let both = |group: [u64; 3], local: [u64; 3]| [group[0], group[1], group[2], local[0], local[1], local[2]];
    let along = |axis: Axis, factor: u64| std::array::from_fn(|at| if at == axis as usize { factor } else { 0 });
    let factors = match *op {
        Op::PerInvocation(PerInvocation::GlobalIndex) => {
            both(group.map(|factor| factor.wrapping_mul(x * y * z)), local)
        }
        Op::PerGroup(PerGroup::GroupIndex) => both(group, [0; 3]),
        Op::PerInvocation(PerInvocation::LocalIndex) => both([0; 3], local),
        Op::PerInvocation(PerInvocation::GlobalId(axis)) => {
            both(along(axis, u64::from(counts[axis as usize + 3])), along(axis, 1))
        }
        Op::PerGroup(PerGroup::GroupId(axis)) => both(along(axis, 1), [0; 3]),
        Op::PerInvocation(PerInvocation::LocalId(axis)) => both([0; 3], along(axis, 1)),
        _ => return None,
    };
    Some(AffineForm::positions(factors, counts))
}

fn number(number: u32) -> AffineForm {
    AffineForm::within(i64::from(number), i64::from(number))
}
