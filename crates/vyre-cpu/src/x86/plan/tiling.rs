//! Tiling: chooses the number of packs that are computed together (register blocking).
//!
//! More packs share uniform computations and hide latencies, but their values must fit into registers. The choice
//! minimizes instructions per invocation among tiles whose register pressure fits.

use vyre_foundation::analysis::{Liveness, Splits, Storage, may_merge_workgroups};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Control, Kind, PerInvocation};
use vyre_foundation::ir::{BlockId, Def, Program, Type, ValueId};

use super::segments::is_barrier;
use super::shape::{Axes, Layout, Shape, Tile};
use crate::x86::Level;

/// Programs with more instructions than this are limited to few packs, to bound compile time.
const LARGE: usize = 250;

/// Maximum number of instructions generated for a large program.
const MAX_WRITTEN: usize = 1000;

/// Estimated instructions of the tile loop per trip.
const PER_TILE: f64 = 8.0;

/// Estimated trip count of a loop.
const TRIPS: f64 = 8.0;

/// Chooses the tile of a program.
pub(super) fn choose(program: &Program, level: Level) -> Tile {
    let lanes = level.lanes();
    let [x, y, _] = program.workgroup_size();
    let layout = if x.is_multiple_of(lanes) {
        Layout::Rows
    } else if may_merge_workgroups(program) {
        Layout::Merged
    } else {
        Layout::Linear
    };
    let single = Tile { layout, lanes, columns: 1, rows: 1 };
    let (mut instructions, mut by_lane) = (0, false);
    program.walk(|inst, _| {
        instructions += 1;
        by_lane |= program.inst(inst).op == PerInvocation::SubgroupLane;
    });
    if 2 * instructions > MAX_WRITTEN {
        return single;
    }
    // Accesses by subgroup lane are contiguous within a subgroup only.
    let columns = if by_lane { 1 } else { 8 };
    // The axes of values do not depend on the number of packs.
    let shape = Shape::of(program, Tile { columns: columns.min(2), rows: 2, ..single });
    let is_barrier = |id| is_barrier(&program.inst(id).op);
    // Values live across a barrier are in memory.
    let splits = Splits { before: &is_barrier, rematerialized: &|_| false };
    let liveness = Liveness::split(program, Storage::Registers, splits);
    let in_vectors = program.values().keys().map(|value| {
        let is_vector = shape.axes[value].intersects(Axes::LANE) || program.ty(value).is_float();
        is_vector && !shape.linear[value] && !compares_run(program, &shape, value)
    });
    let in_vectors: SecondaryMap<ValueId, bool> = in_vectors.collect();
    let pressure = |tile: &Tile| {
        liveness.pressure(|value| if in_vectors[value] { copies(program, &shape, tile, value) } else { 0 })
    };
    let registers = match level {
        Level::Avx2 => 16,
        Level::Avx512 => 32,
    };
    let fits = |count: u32, into: u32| into.is_multiple_of(count);
    let mut best = (single, f64::INFINITY);
    for columns in [1, 2, 4, 8].into_iter().filter(|&count| count <= columns) {
        for rows in [1, 2, 4, 8] {
            let tile = Tile { columns, rows, ..single };
            let allowed = match layout {
                Layout::Rows => fits(tile.width(), x) && fits(rows, y),
                Layout::Linear | Layout::Merged => rows == 1,
            };
            let is_large = instructions > LARGE && instructions * tile.packs() as usize > MAX_WRITTEN;
            if !allowed || is_large || (tile.packs() > 1 && pressure(&tile) > registers) {
                continue;
            }
            let cost =
                (instructions_of(program, &shape, &tile, program.body(), 1.0) + PER_TILE) / f64::from(tile.packs());
            // Gains below 5 % are not worth it: code grows, and so does divergence.
            if cost < best.1 * 0.95 {
                best = (tile, cost);
            }
        }
    }
    best.0
}

/// Estimated machine instructions of a block for a tile.
fn instructions_of(program: &Program, shape: &Shape, tile: &Tile, block: BlockId, weight: f64) -> f64 {
    let mut total = 0.0;
    for &id in &program.block(block).insts {
        let inst = program.inst(id);
        let copies = match inst.results.first() {
            Some(&result) => copies(program, shape, tile, result) as f64,
            None if inst.op.kind() == Kind::Control => 0.0,
            None => {
                let axes = inst.operands.iter().fold(Axes::NONE, |axes, &value| axes.union(shape.axes[value]));
                tile.copies(axes) as f64
            }
        };
        total += weight * copies;
        let inner = if inst.op == Control::Loop { weight * TRIPS } else { weight };
        for &nested in &inst.blocks {
            total += instructions_of(program, shape, tile, nested, inner);
        }
    }
    total
}

fn copies(program: &Program, shape: &Shape, tile: &Tile, value: ValueId) -> usize {
    let axes = shape.axes[value];
    let halves = if program.ty(value).bits() == 64 && axes.intersects(Axes::LANE) { 2 } else { 1 };
    // Of linear values, mostly only the first lanes are computed.
    if shape.linear[value] && axes.intersects(Axes::LANE) { tile.rows_of(axes) } else { tile.copies(axes) * halves }
}

/// Returns whether a bool compares a linear value: it is rarely needed as a mask.
fn compares_run(program: &Program, shape: &Shape, value: ValueId) -> bool {
    let Def::Result(id, 0) = program.def(value) else { return false };
    program.ty(value) == Type::Bool
        && program.inst(id).operands.iter().any(|&operand| {
            shape.linear[operand] && shape.axes[operand].intersects(Axes::LANE) || compares_run(program, shape, operand)
        })
}
