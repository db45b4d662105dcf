//! Bounds-check elimination: which accesses may be out of bounds, and which loops check their accesses once.
//!
//! [`Plan::bounds`] answers from two sources. *Value ranges* prove accesses in bounds for the lanes that execute them.
//! *Loop versioning* covers affine accesses: in a loop that counts up, an index that is a sum of loop-invariant values
//! and one induction variable with an invariant step is greatest in the last trip. If that index is in bounds, and its
//! computation does not wrap, so are all others: the loop gets a version without checks behind one precheck, and the
//! invariant part of the index is folded into the base address.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use vyre_foundation::analysis::{Counted, Increment, Ranges, counted, exits_of, is_loop_invariant};
use vyre_foundation::ir::ops::{Comparison, Control, Op, Pure};
use vyre_foundation::ir::{BlockId, Def, InstId, MemOperand, Program, Space, Type, ValueId};

use super::Plan;
use super::shape::{Axes, Shape};

/// Result of the bounds analysis for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessBounds {
    /// In bounds for the lanes that execute the access. Inactive lanes may have any index.
    InBounds,
    /// In bounds for all lanes, active or not, because of the check before this loop.
    CheckOnce(InstId),
    /// Possibly out of bounds: each execution checks, and lanes out of bounds are masked off.
    Masked,
}

impl AccessBounds {
    /// Returns whether an access without a mask needs a check. `all_active`: all lanes whose index it uses are active.
    pub(crate) fn needs_check(self, all_active: bool) -> bool {
        match self {
            AccessBounds::InBounds => !all_active,
            AccessBounds::CheckOnce(_) => false,
            AccessBounds::Masked => true,
        }
    }
}

/// Loops with prechecks, and the accesses that these cover.
#[derive(Default)]
pub(crate) struct Prechecks {
    loops: FxHashMap<InstId, Precheck>,
    accesses: FxHashMap<InstId, AffineAccess>,
}

/// Precheck of a loop.
pub(crate) struct Precheck {
    pub(crate) counted: Counted,
    pub(crate) groups: Vec<Group>,
}

/// Accesses that differ only in the constant offsets of their indices.
pub(crate) struct Group {
    pub(crate) access: MemOperand,
    /// The induction variable in the indices: a parameter of the loop.
    pub(crate) moving: ValueId,
    /// Loop-invariant addends.
    pub(crate) fixed: SmallVec<[ValueId; 2]>,
    /// Step of the induction variable.
    pub(crate) step: ValueId,
    /// Index of one of the accesses.
    pub(crate) index: ValueId,
    /// Greatest constant offset from the induction variable that is accessed.
    pub(crate) reach: i32,
}

/// An access covered by a precheck.
#[derive(Clone, Copy)]
pub(crate) struct AffineAccess {
    /// The loop.
    pub(crate) at: InstId,
    /// Index of its group.
    pub(crate) group: usize,
    /// Induction variable in its index.
    pub(crate) moving: ValueId,
    /// Constant added to the induction variable.
    pub(crate) offset: i32,
}

/// Affine index in a loop.
#[derive(Default)]
struct Sum {
    moving: Option<ValueId>,
    fixed: SmallVec<[ValueId; 2]>,
    offset: i32,
}

impl Plan<'_> {
    /// Returns whether an access may be out of bounds: in code behind the precheck of the loop `passed`, and, if
    /// `hoisted`, above the conditions that guard it, whose ranges do not hold there.
    pub(crate) fn bounds(&self, access: InstId, passed: Option<InstId>, hoisted: bool) -> AccessBounds {
        match (self.prechecks.accesses.get(&access), passed) {
            (Some(affine), Some(passed)) if affine.at == passed => AccessBounds::CheckOnce(passed),
            _ if !hoisted && self.ranges.is_in_bounds(access) => AccessBounds::InBounds,
            _ => AccessBounds::Masked,
        }
    }

    /// Packs whose first lanes determine the base addresses of a tile: the first one of each row for a linear index, or
    /// one for each copy of an index that is equal in the lanes of a pack.
    pub(crate) fn packs_of_bases(&self, index: ValueId) -> SmallVec<[usize; 4]> {
        let (tile, axes) = (self.shape.tile, self.shape.axes[index]);
        if self.shape.is_linear(index) {
            (0..tile.rows_of(axes)).map(|row| row * tile.columns as usize).collect()
        } else {
            tile.packs_of(axes).collect()
        }
    }
}

impl Prechecks {
    pub(super) fn of(program: &Program, shape: &Shape, ranges: &Ranges) -> Prechecks {
        let mut prechecks = Prechecks::default();
        program.walk(|id, _| {
            if program.inst(id).op == Control::Loop {
                prechecks.add(program, shape, ranges, id);
            }
        });
        prechecks
    }

    /// Precheck of a loop, if it has affine accesses that may be out of bounds.
    pub(crate) fn of_loop(&self, id: InstId) -> Option<&Precheck> {
        self.loops.get(&id)
    }

    pub(crate) fn affine(&self, access: InstId) -> Option<AffineAccess> {
        self.accesses.get(&access).copied()
    }

    fn add(&mut self, program: &Program, shape: &Shape, ranges: &Ranges, at: InstId) {
        let body = program.inst(at).blocks[0];
        let Some(counted) = counted(program, at) else { return };
        let counts_up =
            counted.predicate == Comparison::Lt && counted.step > 0 && program.ty(counted.param) == Type::U32;
        if !counts_up || program.contains(body, |op| *op == Control::Loop) {
            return;
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut accesses = Vec::new();
        for &id in &program.block(body).insts {
            let inst = program.inst(id);
            let (Op::Load(access) | Op::Store(access)) = inst.op else { continue };
            let Some(&index) = inst.operands.first() else { continue };
            let is_linear = shape.is_linear(index);
            if shape.axes[index].intersects(Axes::LANE) && !is_linear
                || program.memory(access.memory).space == Space::Private
            {
                continue;
            }
            let mut sum = Sum::default();
            let (true, Some(moving)) = (sum.add(program, index, body), sum.moving) else { continue };
            let Some(step) = step(program, body, moving) else { continue };
            let width = if is_linear { shape.tile.width() as i32 } else { 1 };
            let reach = sum.offset + width - 1 + inst.accessed_elements() as i32 - 1;
            let alike = |group: &Group| (group.access, group.moving, &group.fixed) == (access, moving, &sum.fixed);
            let group = groups.iter().position(alike).unwrap_or_else(|| {
                groups.push(Group { access, moving, fixed: sum.fixed, step, index, reach });
                groups.len() - 1
            });
            groups[group].reach = groups[group].reach.max(reach);
            accesses.push((id, AffineAccess { at, group, moving, offset: sum.offset }));
        }
        if accesses.iter().any(|(id, _)| !ranges.is_in_bounds(*id)) {
            self.accesses.extend(accesses);
            self.loops.insert(at, Precheck { counted, groups });
        }
    }
}

impl Sum {
    /// Adds an addend; returns whether the sum is still affine.
    fn add(&mut self, program: &Program, value: ValueId, body: BlockId) -> bool {
        if let Some(literal) = program.known(value) {
            // A subtracted constant is a large unsigned one, for which no precheck would pass.
            self.offset = self.offset.saturating_add(i32::try_from(literal.bits).unwrap_or(i32::MAX));
            return self.offset < 1 << 20;
        }
        match program.def(value) {
            _ if program.ty(value) != Type::U32 => false,
            Def::Param(block, _) if block == body => self.moving.replace(value).is_none(),
            Def::Result(id, _) if !is_loop_invariant(program, value, body) => {
                let inst = program.inst(id);
                inst.op == Pure::Add && inst.operands.iter().all(|&operand| self.add(program, operand, body))
            }
            Def::Param(..) | Def::Result(..) | Def::Literal(_) | Def::Constant(_) => {
                self.fixed.push(value);
                true
            }
        }
    }
}

/// Step of an induction variable: the value that the only `continue` of its loop adds, if loop-invariant.
pub(crate) fn step(program: &Program, body: BlockId, param: ValueId) -> Option<ValueId> {
    let position = program.block(body).params.iter().position(|&candidate| candidate == param)?;
    let &[next] = exits_of(program, body).continues.as_slice() else { return None };
    let next = program.inst(next).operands[position];
    let Increment::Add(step) = Increment::between(program, param, next)? else { return None };
    (!is_loop_invariant(program, next, body) && is_loop_invariant(program, step, body)).then_some(step)
}
