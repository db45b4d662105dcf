//! Predication: the mask of active lanes, the variables of the innermost loop, and joins of paths with different ones.

use iced_x86::Code;
use vyre_foundation::ir::{Type, ValueId};

use crate::x86::machine::emit::{Emit, Regs};
use crate::x86::machine::{BlockId, Reg, Width};
use crate::x86::plan::Plan;
use crate::x86::plan::shape::{Axes, Tile};

/// Mask of active lanes.
#[derive(Clone)]
pub(super) struct Mask {
    /// One register for each pack.
    pub(super) packs: Regs,
    /// The mask may be empty.
    pub(super) maybe_empty: bool,
}

/// Control state of code generation.
#[derive(Clone, Default)]
pub(super) struct State {
    /// The active lanes; all if there is no mask.
    pub(super) mask: Option<Mask>,
    /// Variables of the innermost loop.
    pub(super) variables: Regs,
}

/// A predecessor of a join: its block, its state, and the registers it passes.
pub(super) struct Arrival {
    block: BlockId,
    state: State,
    passed: Regs,
}

impl State {
    /// The active lanes of a pack; all if there is no mask.
    pub(super) fn of_pack(&self, pack: usize) -> Option<Reg> {
        self.mask.as_ref().map(|mask| mask.packs[pack])
    }

    /// The active lanes of a pack.
    pub(super) fn active(&self, emit: &mut Emit, pack: usize) -> Reg {
        self.of_pack(pack).unwrap_or_else(|| emit.mask_constant(true))
    }

    /// The active lanes of all packs.
    pub(super) fn active_packs(&self, emit: &mut Emit, tile: Tile) -> Regs {
        (0..tile.packs() as usize).map(|pack| self.active(emit, pack)).collect()
    }

    /// The lanes that are active in any of the packs that share a pack's copy of a value; all if there is no mask.
    pub(super) fn active_in_copy(&self, emit: &mut Emit, tile: Tile, axes: Axes, pack: usize) -> Option<Reg> {
        let packs = &self.mask.as_ref()?.packs;
        Some(mask_of_copy(emit, tile, packs, axes, tile.copy(axes, pack)))
    }

    /// No lane is active any more.
    pub(super) fn deactivate(&mut self, emit: &mut Emit, tile: Tile) {
        let none = emit.mask_constant(false);
        self.mask = Some(Mask { packs: (0..tile.packs()).map(|_| none).collect(), maybe_empty: true });
    }

    /// Active lanes for which a condition has the value `holds`.
    pub(super) fn narrowed(&self, emit: &mut Emit, conditions: &[Reg], holds: bool) -> Regs {
        let mask = self.mask.clone();
        let narrow = |(pack, &condition): (usize, &Reg)| match (&mask, holds) {
            (Some(mask), true) => emit.mask_and(mask.packs[pack], condition),
            (Some(mask), false) => emit.mask_and_not(condition, mask.packs[pack]),
            (None, true) => condition,
            (None, false) => emit.mask_not(condition),
        };
        conditions.iter().enumerate().map(narrow).collect()
    }

    /// The number of active lanes.
    pub(super) fn active_count(&self, emit: &mut Emit, tile: Tile) -> Reg {
        let Some(mask) = self.mask.clone() else {
            return emit.immediate(u64::from(tile.size()));
        };
        let counts: Regs = mask
            .packs
            .into_iter()
            .map(|pack| {
                let bits = emit.mask_bits(pack);
                emit.s1(Code::Popcnt_r32_rm32, Width::Dword, bits)
            })
            .collect();
        let rest = counts[1..].iter();
        rest.fold(counts[0], |total, &count| emit.s2(Code::Add_r32_rm32, Width::Dword, total, count))
    }

    /// The current path as a predecessor of a join, with the registers it passes.
    pub(super) fn arrival(&self, emit: &Emit, passed: Regs) -> Arrival {
        Arrival { block: emit.at, state: self.clone(), passed }
    }

    /// Joins paths in a new block, with parameters for values that differ. Returns the registers they pass.
    pub(super) fn join(&mut self, emit: &mut Emit, tile: Tile, mut arrivals: Vec<Arrival>) -> Regs {
        if arrivals.len() == 1 {
            let only = arrivals.pop().expect("there is one");
            emit.at = only.block;
            *self = only.state;
            return only.passed;
        }
        let masked = arrivals.iter().any(|arrival| arrival.state.mask.is_some());
        let maybe_empty =
            arrivals.iter().any(|arrival| arrival.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty));
        let mut lists: Vec<(BlockId, Regs)> = Vec::new();
        for arrival in &arrivals {
            emit.at = arrival.block;
            let mut list = arrival.passed.clone();
            list.extend_from_slice(&arrival.state.variables);
            if masked {
                list.extend(arrival.state.active_packs(emit, tile));
            }
            lists.push((emit.at, list));
        }
        let cold = lists.iter().all(|(block, _)| emit.function.blocks[block.0 as usize].cold);
        let join = emit.block(cold);
        let count = lists[0].1.len();
        let differs: Vec<bool> =
            (0..count).map(|position| lists.iter().any(|(_, list)| list[position] != lists[0].1[position])).collect();
        let mut merged = Regs::new();
        for (&first, &differs) in lists[0].1.iter().zip(&differs) {
            merged.push(if differs { emit.param(join, emit.class(first)) } else { first });
        }
        for (block, list) in lists {
            emit.at = block;
            let arguments: Regs =
                list.into_iter().zip(&differs).filter(|(_, differs)| **differs).map(|(reg, _)| reg).collect();
            emit.jump(join, &arguments);
        }
        emit.at = join;
        let (passed, variables) = (arrivals[0].passed.len(), arrivals[0].state.variables.len());
        self.variables = Regs::from_slice(&merged[passed..passed + variables]);
        self.mask = masked.then(|| Mask { packs: Regs::from_slice(&merged[passed + variables..]), maybe_empty });
        merged.truncate(passed);
        merged
    }
}

/// Union of the masks of the packs that share a copy of a value.
fn mask_of_copy(emit: &mut Emit, tile: Tile, packs: &[Reg], axes: Axes, copy: usize) -> Reg {
    let mut sharing: Regs =
        (0..packs.len()).filter(|&pack| tile.copy(axes, pack) == copy).map(|pack| packs[pack]).collect();
    sharing.dedup();
    sharing[1..].iter().fold(sharing[0], |all, &mask| emit.mask_or(all, mask))
}

/// Union of two masks, for all packs.
pub(super) fn union(emit: &mut Emit, a: &[Reg], b: &[Reg]) -> Regs {
    a.iter().zip(b).map(|(&a, &b)| emit.mask_or(a, b)).collect()
}

/// Registers of a value, in the order of its classes: `new` in the lanes of a mask, `old` in the others.
pub(super) fn select_lanes(
    emit: &mut Emit,
    plan: &Plan<'_>,
    value: ValueId,
    masks: &[Reg],
    new: &[Reg],
    old: &[Reg],
) -> Regs {
    let (axes, ty, tile) = (plan.shape.axes[value], plan.program.ty(value), plan.shape.tile);
    if axes.is_uniform() {
        // All lanes at this point have the same value.
        return Regs::from_slice(new);
    }
    let halves = if ty.bits() == 64 && axes.intersects(Axes::LANE) { 2 } else { 1 };
    let own = tile.copies(axes) * halves;
    let mut chosen = Regs::new();
    for position in 0..own {
        let copy = position / halves;
        let (new, old) = (new[position], old[position]);
        if new == old {
            chosen.push(new);
            continue;
        }
        chosen.push(if !axes.intersects(Axes::LANE) {
            // Uniform in some packs: any active lane of them selects `new`.
            let of_copy: Regs =
                (0..masks.len()).filter(|&pack| tile.copy(axes, pack) == copy).map(|pack| masks[pack]).collect();
            emit.choose_scalar(&of_copy, new, old)
        } else {
            let mask = mask_of_copy(emit, tile, masks, axes, copy);
            if ty == Type::Bool {
                emit.blend_masks(mask, new, old)
            } else if halves == 2 {
                let mask = emit.mask_half(mask, position % 2 == 1);
                emit.blend_lanes(mask, new, old, true)
            } else {
                emit.blend(mask, new, old)
            }
        });
    }
    // First lanes of a linear value: all lanes that define one define the same.
    chosen.extend_from_slice(&new[own..]);
    chosen
}
