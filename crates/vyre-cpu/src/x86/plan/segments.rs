//! Barrier splitting: which values live across the barriers of a workgroup that does not fit in one tile.
//!
//! A *segment* is the code between two barriers; all tiles of the workgroup execute it in turn. A value live across a
//! barrier is spilled to a slot in memory, or rematerialized if that takes few instructions.

use vyre_foundation::analysis::{LiveRange, Liveness, Splits, Storage, exits_of};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Barrier, Control, Kind, Op, Pure, Terminator};
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Space, ValueId};

use super::shape::Shape;

/// Longest dependency chain that is rematerialized.
const MAX_REMATERIALIZED: u8 = 4;

/// Frame of a workgroup: values that are live across segments.
pub(crate) struct Segments {
    /// There are several segments.
    pub(crate) split: bool,
    /// Offsets of values that are live across a barrier, in bytes: in the memory of a tile, or of the workgroup if they are uniform
    /// in it.
    pub(crate) slots: SecondaryMap<ValueId, Option<i32>>,
    /// Values that each segment rematerializes.
    pub(crate) rematerialized: SecondaryMap<ValueId, bool>,
    /// Offset of the mask of lanes that have ended, in the memory of a tile.
    pub(crate) ended_slot: Option<i32>,
    /// Offset of the flag that lanes are left after a segment, in the memory of the workgroup.
    pub(crate) left_slot: i32,
    pub(crate) bytes_per_tile: i32,
    pub(crate) bytes_per_group: i32,
}

impl Segments {
    pub(super) fn of(program: &Program, shape: &Shape) -> Segments {
        let size: u32 = program.workgroup_size().iter().product();
        let mut segments = Segments {
            split: program.contains(program.body(), is_barrier) && size > shape.tile.size(),
            slots: SecondaryMap::with_capacity(program.values().len(), None),
            rematerialized: SecondaryMap::with_capacity(program.values().len(), false),
            ended_slot: None,
            left_slot: 0,
            bytes_per_tile: 0,
            bytes_per_group: 0,
        };
        if segments.split {
            segments.plan(program, shape);
        }
        segments
    }

    fn plan(&mut self, program: &Program, shape: &Shape) {
        self.rematerialized = cheap_values(program, &shape.written);
        let mut group = SecondaryMap::with_capacity(program.insts().len(), false);
        let mut params = Vec::new();
        mark_group(program, program.body(), &mut group, &mut params);
        let splits = Splits { before: &|id| group[id], rematerialized: &|value| self.rematerialized[value] };
        let liveness = Liveness::split(program, Storage::Registers, splits);
        // Defining segment and last using segment of each value. Parameters and results of control flow around barriers
        // are always in memory.
        let mut of = SecondaryMap::with_capacity(program.values().len(), None);
        let mut last = SecondaryMap::with_capacity(program.values().len(), 0);
        let mut crossing = Vec::new();
        for &LiveRange { value, segment, .. } in liveness.ranges() {
            match program.def(value) {
                Def::Literal(_) | Def::Constant(_) => continue,
                Def::Result(id, _) if group[id] => crossing.push(value),
                Def::Result(..) | Def::Param(..) if of[value].is_some() => crossing.push(value),
                Def::Result(..) | Def::Param(..) => of[value] = Some(segment),
            }
            last[value] = segment;
        }
        crossing.extend(params);
        for value in crossing {
            if self.slots[value].is_none() && !self.rematerialized[value] {
                self.add_slot(program, shape, value);
            }
        }
        program.walk(|id, _| self.share_slots(program, shape, id, &of, &last));
        let mut ends = false;
        program.walk(|inst, depth| {
            ends |= depth > 0 && matches!(program.inst(inst).op, Op::Terminator(Terminator::Return | Terminator::Trap));
        });
        if ends {
            self.left_slot = self.bytes_per_group;
            self.bytes_per_group += 8;
            self.ended_slot = Some(self.bytes_per_tile);
            self.bytes_per_tile += shape.tile.packs() as i32 * shape.tile.bytes();
        }
    }

    fn add_slot(&mut self, program: &Program, shape: &Shape, value: ValueId) {
        if shape.axes[value].is_of_group() {
            self.slots[value] = Some(self.bytes_per_group);
            self.bytes_per_group += 8;
            return;
        }
        // Linear values are spilled as their first lanes.
        let regs = shape.classes(program, value).len() as i32;
        self.slots[value] = Some(self.bytes_per_tile);
        self.bytes_per_tile += regs * shape.tile.bytes();
    }

    /// Coalesces the slots of a loop parameter and of its next value, if the parameter is dead when the next value is
    /// defined: then no copy is needed.
    fn share_slots(
        &mut self,
        program: &Program,
        shape: &Shape,
        id: InstId,
        of: &SecondaryMap<ValueId, Option<u32>>,
        last: &SecondaryMap<ValueId, u32>,
    ) {
        let inst = program.inst(id);
        let Some(&body) = inst.blocks.first().filter(|&&body| inst.op == Control::Loop && has_barrier(program, body))
        else {
            return;
        };
        let &[next] = exits_of(program, body).continues.as_slice() else { return };
        let next = &program.inst(next).operands;
        for (&param, &value) in program.block(body).params.iter().zip(next) {
            let (axes, of_value) = (shape.axes[param], shape.axes[value]);
            let alike = axes.within_tile() == of_value.within_tile()
                && shape.classes(program, param) == shape.classes(program, value);
            let once = next.iter().filter(|&&other| other == value).count() == 1;
            let known = of[value].is_some_and(|segment| last[param] <= segment);
            // Loop-invariant values and other parameters are still needed in the next trip.
            let new = matches!(program.def(value), Def::Result(inst, _) if program.block(body).insts.contains(&inst));
            if alike
                && once
                && known
                && new
                && !axes.is_of_group()
                && !of_value.is_of_group()
                && self.slots[value].is_some()
            {
                self.slots[value] = self.slots[param];
            }
        }
    }
}

/// Returns whether an instruction synchronizes the invocations of a workgroup.
pub(crate) fn is_barrier(op: &Op) -> bool {
    matches!(op, Op::Barrier(Barrier::Workgroup | Barrier::Storage) | Op::Broadcast)
}

/// Returns whether an instruction executes at workgroup level: it is a barrier, contains one, or exits a construct that
/// contains one.
pub(crate) fn is_of_group(program: &Program, id: InstId) -> bool {
    let inst = program.inst(id);
    is_barrier(&inst.op)
        || inst.op.is_terminator()
        || inst.blocks.iter().any(|&block| has_barrier(program, block))
        || program.jumps_out(id)
}

/// Marks the workgroup-level instructions in a block and nested in it, and collects the parameters of their blocks.
fn mark_group(program: &Program, block: BlockId, group: &mut SecondaryMap<InstId, bool>, params: &mut Vec<ValueId>) {
    for &id in &program.block(block).insts {
        if is_of_group(program, id) {
            group[id] = true;
            for &nested in &program.inst(id).blocks {
                params.extend_from_slice(&program.block(nested).params);
                mark_group(program, nested, group, params);
            }
        }
    }
}

fn has_barrier(program: &Program, block: BlockId) -> bool {
    program.contains(block, is_barrier)
}

/// Values that few instructions rematerialize from ids and uniforms.
fn cheap_values(program: &Program, written: &SecondaryMap<MemId, bool>) -> SecondaryMap<ValueId, bool> {
    let mut steps: SecondaryMap<ValueId, Option<u8>> = SecondaryMap::with_capacity(program.values().len(), None);
    program.walk(|id, _| {
        let inst = program.inst(id);
        let &[result] = inst.results.as_slice() else { return };
        let cheap = match inst.op.kind() {
            Kind::PerInvocation | Kind::PerGroup => true,
            Kind::Access => {
                matches!(inst.op, Op::Load(at) if program.memory(at.memory).space == Space::Uniform && !written[at.memory])
            }
            Kind::Pure => matches!(
                inst.op,
                Op::Pure(Pure::Add | Pure::Sub | Pure::Mul | Pure::And | Pure::Or | Pure::Xor | Pure::Shl | Pure::Shr | Pure::Eq | Pure::Ne | Pure::Lt | Pure::Le | Pure::Gt | Pure::Ge | Pure::Not)
            ) && program.class(inst).bits() <= 32 && !program.class(inst).is_float(),
            Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
        };
        let from = inst.operands.iter().map(|&operand| match program.known(operand) {
            Some(_) => Some(0),
            None => steps[operand],
        });
        let most = from.into_iter().try_fold(0, |most: u8, steps| Some(most.max(steps?)));
        steps[result] = most.filter(|&most| cheap && most < MAX_REMATERIALIZED).map(|most| most + 1);
    });
    let mut cheap = SecondaryMap::with_capacity(program.values().len(), false);
    for value in program.values().keys() {
        cheap[value] = steps[value].is_some();
    }
    cheap
}
