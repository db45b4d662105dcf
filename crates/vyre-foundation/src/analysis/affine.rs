//! Affine forms of indices: a value plus a literal, or a linear combination of positions.

use crate::ir::{Def, Op, Program, Pure, ValueId};

/// An index of the form `base + offset`, modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffineIndex {
    /// The value that the offset is added to; `None` for a literal index.
    pub base: Option<ValueId>,
    /// Literal offset.
    pub offset: u32,
}

impl AffineIndex {
    /// The affine form of an index.
    pub fn of(program: &Program, index: ValueId) -> AffineIndex {
        let literal = |value: ValueId| match program.def(value) {
            Def::Literal(bits) => Some(bits as u32),
            Def::Result(..) | Def::Param(..) | Def::Constant(_) => None,
        };
        if let Some(offset) = literal(index) {
            return AffineIndex { base: None, offset };
        }
        if let Def::Result(inst, 0) = program.def(index)
            && let (Op::Pure(Pure::Add), &[a, b]) = (&program.inst(inst).op, &program.inst(inst).operands[..])
        {
            if let Some(offset) = literal(b) {
                return AffineIndex { base: Some(a), offset };
            }
            if let Some(offset) = literal(a) {
                return AffineIndex { base: Some(b), offset };
            }
        }
        AffineIndex { base: Some(index), offset: 0 }
    }
}

/// Number of positions: of workgroups along x, y and z, and of invocations in a workgroup.
pub(crate) type Counts = [u32; 6];

/// Affine form over positions: the sum of each position times its factor, plus a number from `low` to `high`, modulo
/// 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AffineForm {
    /// Factors of the positions in [`Counts`]; 0 for a position with a count of 1.
    pub(crate) factors: [i64; 6],
    pub(crate) low: i64,
    pub(crate) high: i64,
}

const MODULUS: i64 = 1 << 32;

impl AffineForm {
    pub(crate) const ANYTHING: AffineForm = AffineForm::within(0, MODULUS - 1);

    pub(crate) const fn within(low: i64, high: i64) -> AffineForm {
        AffineForm { factors: [0; 6], low, high }
    }

    /// Linear combination of positions with these factors.
    pub(crate) fn positions(factors: [u64; 6], counts: Counts) -> AffineForm {
        let factor = |position: usize| if counts[position] > 1 { i64::from(factors[position] as i32) } else { 0 };
        AffineForm { factors: std::array::from_fn(factor), low: 0, high: 0 }
    }

    /// The number, if the form is constant.
    pub(crate) fn number(self) -> Option<i64> {
        (self.factors == [0; 6] && self.low == self.high).then_some(self.low)
    }

    /// Keeps factors and bounds small, so that nothing overflows.
    fn reduced(self) -> AffineForm {
        const FAR: i64 = 1 << 40;
        if self.low < -FAR || self.high > FAR {
            return AffineForm::ANYTHING;
        }
        AffineForm { factors: self.factors.map(|factor| i64::from(factor as i32)), ..self }
    }

    pub(crate) fn plus(self, other: AffineForm) -> AffineForm {
        let factors = std::array::from_fn(|position| self.factors[position] + other.factors[position]);
        AffineForm { factors, low: self.low + other.low, high: self.high + other.high }.reduced()
    }

    pub(crate) fn times(self, number: i64) -> AffineForm {
        let number = i64::from(number as i32);
        let (a, b) = (self.low.saturating_mul(number), self.high.saturating_mul(number));
        AffineForm { factors: self.factors.map(|factor| factor * number), low: a.min(b), high: a.max(b) }.reduced()
    }

    /// Least upper bound of two forms.
    pub(crate) fn join(self, other: AffineForm, counts: Counts) -> AffineForm {
        let (a, b) = match self.factors == other.factors {
            true => (self, other),
            false => (self.of_workgroup(counts), other.of_workgroup(counts)),
        };
        match a.factors == b.factors {
            true => AffineForm { low: a.low.min(b.low), high: a.high.max(b.high), ..a },
            false => AffineForm::ANYTHING,
        }
    }

    /// The form with the positions in the workgroup absorbed into its bounds.
    pub(crate) fn of_workgroup(self, counts: Counts) -> AffineForm {
        let mut whole = self;
        for (factor, count) in whole.factors.iter_mut().zip(counts).skip(3) {
            let reach = *factor * i64::from(count - 1);
            whole.low += reach.min(0);
            whole.high += reach.max(0);
            *factor = 0;
        }
        whole
    }

    /// Bounds over all positions.
    pub(crate) fn bounds(self, counts: Counts) -> (i64, i64) {
        let mut bounds = (self.low, self.high);
        for (factor, count) in self.factors.into_iter().zip(counts) {
            let reach = factor.saturating_mul((i64::from(count) - 1).max(0));
            bounds = (bounds.0.saturating_add(reach.min(0)), bounds.1.saturating_add(reach.max(0)));
        }
        bounds
    }

    /// The equal form modulo 2³² that does not wrap around at any position, if there is one.
    pub(crate) fn unwrapped(self, counts: Counts) -> AffineForm {
        let (least, most) = self.bounds(counts);
        let turns = least.div_euclid(MODULUS) * MODULUS;
        match most.saturating_sub(turns) < MODULUS {
            true => AffineForm { low: self.low - turns, high: self.high - turns, ..self },
            false => AffineForm::ANYTHING,
        }
    }

    /// Smallest form that contains two forms with equal factors.
    pub(crate) fn hull(self, other: AffineForm) -> Option<AffineForm> {
        let (low, high) = (self.low.min(other.low), self.high.max(other.high));
        (self.factors == other.factors).then_some(AffineForm { low, high, ..self })
    }

    /// Lower bound of the distance between the sums of different positions.
    pub(crate) fn gap(self, counts: Counts) -> i64 {
        let mut terms: Vec<(i64, i64)> =
            (0..6).filter(|&at| counts[at] > 1).map(|at| (self.factors[at].abs(), i64::from(counts[at]))).collect();
        terms.sort_unstable();
        let (mut gap, mut reach) = (i64::MAX, 0);
        for (factor, count) in terms {
            // Unless the maximum sum of the terms with smaller factors is below this factor, sums of different positions coincide.
            gap = gap.min((factor - reach).max(0));
            reach = factor.saturating_mul(count - 1).saturating_add(reach);
        }
        gap
    }
}
