//! Chooses how many packs are worked on together.
//!
//! More packs share what is the same for them, and hide latencies; but their values must fit into registers. The choice is the
//! form with the fewest instructions for an invocation whose values do.

use vyre_foundation::analysis::may_merge_workgroups;
use vyre_foundation::ir::entity::{Entity, SecondaryMap};
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{BlockId, Def, Program, Type, ValueId};

use super::Level;
use super::shape::{Axes, Layout, Shape, Tile};

/// Programs of more instructions than this are written out for few packs only: compiling them would take too long.
const LARGE: usize = 250;

/// So many instructions may be written out of a large program.
const MOST_WRITTEN: usize = 1000;

/// About how many instructions it takes to go on with the next tile.
const PER_TILE: f64 = 8.0;

/// A loop is expected to go round so often.
const TRIPS: f64 = 8.0;

/// Chooses a tile for a program.
pub(crate) fn choose(program: &Program, level: Level) -> Tile {
    let lanes = level.lanes();
    let [x, y, _] = program.workgroup_size;
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
        by_lane |= program.insts[inst].op == Op::SubgroupLane;
    });
    if 2 * instructions > MOST_WRITTEN {
        return single;
    }
    // What the lanes of a subgroup access next to each other is not next to what those of the next one do.
    let columns = if by_lane { 1 } else { 8 };
    // The axes of values do not depend on how many packs there are.
    let shape = Shape::of(program, Tile { columns: columns.min(2), rows: 2, ..single });
    let pressure = Pressure::of(program, &shape);
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
            let is_large = instructions > LARGE && instructions * tile.packs() as usize > MOST_WRITTEN;
            if !allowed || is_large || (tile.packs() > 1 && pressure.of_tile(&tile) > registers) {
                continue;
            }
            let cost =
                (instructions_of(program, &shape, &tile, program.body, 1.0) + PER_TILE) / f64::from(tile.packs());
            // A little more is not worth it: code grows, and lanes that wait for others are more.
            if cost < best.1 * 0.95 {
                best = (tile, cost);
            }
        }
    }
    best.0
}

/// How many instructions a block takes for a tile.
fn instructions_of(program: &Program, shape: &Shape, tile: &Tile, block: BlockId, weight: f64) -> f64 {
    let mut total = 0.0;
    for &id in &program.blocks[block].insts {
        let inst = &program.insts[id];
        let copies = match inst.results.first() {
            Some(&result) => copies(program, shape, tile, result) as f64,
            None if inst.op.row().kind == Kind::Control => 0.0,
            None => {
                let axes = inst.operands.iter().fold(Axes::NONE, |axes, &value| axes.and(shape.axes[value]));
                tile.copies(axes) as f64
            }
        };
        total += weight * copies;
        let inner = if inst.op == Op::Loop { weight * TRIPS } else { weight };
        for &nested in &inst.blocks {
            total += instructions_of(program, shape, tile, nested, inner);
        }
    }
    total
}

fn copies(program: &Program, shape: &Shape, tile: &Tile, value: ValueId) -> usize {
    let axes = shape.axes[value];
    let halves = if program.ty(value).bits() == 64 && axes.meets(Axes::LANE) { 2 } else { 1 };
    // Of linear values, most often only the first lanes are computed.
    if shape.linear[value] && axes.meets(Axes::LANE) { tile.rows_of(axes) } else { tile.copies(axes) * halves }
}

/// Which values are in vector registers at the same time.
struct Pressure<'p> {
    program: &'p Program,
    shape: &'p Shape,
    /// Values by when they start to be needed and when they stop. One that is needed on both sides of a barrier goes through
    /// memory, and is listed for each.
    lives: Vec<(usize, usize, ValueId)>,
}

impl<'p> Pressure<'p> {
    fn of(program: &'p Program, shape: &'p Shape) -> Pressure<'p> {
        let mut events = Events {
            program,
            clock: 0,
            barriers: 0,
            of: SecondaryMap::with_capacity(program.values.len(), Vec::new()),
        };
        events.block(program.body, &mut Vec::new());
        let mut lives = Vec::new();
        for (value, events) in events.of.iter() {
            let linear = shape.linear[value] || compares_run(program, shape, value);
            let in_vectors = shape.axes[value].meets(Axes::LANE) || program.ty(value).is_float();
            if linear || !in_vectors {
                continue;
            }
            for between in events.chunk_by(|a, b| a.barriers == b.barriers) {
                lives.push((between[0].clock, between[between.len() - 1].clock, value));
            }
        }
        Pressure { program, shape, lives }
    }

    /// The most registers that are needed at once.
    fn of_tile(&self, tile: &Tile) -> usize {
        let mut changes: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * self.lives.len());
        for &(start, end, value) in &self.lives {
            let registers = copies(self.program, self.shape, tile, value);
            changes.push((start, true, registers));
            // An operand's register can be that of the result.
            changes.push((end.max(start + 1), false, registers));
        }
        // At the same time, what ends goes first.
        changes.sort_unstable_by_key(|&(time, starts, _)| (time, starts));
        let (mut now, mut most) = (0, 0);
        for (_, starts, registers) in changes {
            if starts {
                now += registers;
                most = most.max(now);
            } else {
                now -= registers;
            }
        }
        most
    }
}

/// A moment in which a value is written or read: on a clock that ticks with every instruction, and after so many barriers.
#[derive(Clone, Copy)]
struct Event {
    clock: usize,
    barriers: usize,
}

struct Events<'p> {
    program: &'p Program,
    clock: usize,
    barriers: usize,
    of: SecondaryMap<ValueId, Vec<Event>>,
}

impl Events<'_> {
    fn touched(&mut self, value: ValueId, inside: &mut Vec<ValueId>) {
        self.of[value].push(Event { clock: self.clock, barriers: self.barriers });
        inside.push(value);
    }

    /// `inside` gets the values that the block reads or writes.
    fn block(&mut self, block: BlockId, inside: &mut Vec<ValueId>) {
        let program = self.program;
        for &id in &program.blocks[block].insts {
            let inst = &program.insts[id];
            self.clock += 1;
            self.barriers += usize::from(matches!(inst.op, Op::WorkgroupBarrier | Op::StorageBarrier | Op::Broadcast));
            inst.operands.iter().for_each(|&operand| self.touched(operand, inside));
            let (start, before) = (self.clock, self.barriers);
            let mut nested = Vec::new();
            for &block in &inst.blocks {
                program.blocks[block].params.iter().for_each(|&param| self.touched(param, &mut nested));
                self.block(block, &mut nested);
            }
            self.clock += usize::from(!inst.blocks.is_empty());
            // What a loop uses from outside, and its parameters, it needs again in the next trip.
            if inst.op == Op::Loop && self.barriers == before {
                nested.sort_unstable_by_key(|value| value.index());
                nested.dedup();
                nested.retain(|&value| self.of[value][0].clock <= start);
                for &value in &nested {
                    self.of[value].push(Event { clock: self.clock, barriers: self.barriers });
                }
            }
            inside.append(&mut nested);
            inst.results.iter().for_each(|&result| self.touched(result, inside));
        }
    }
}

/// Whether a bool is a comparison of a linear value, which is hardly ever needed lane by lane.
fn compares_run(program: &Program, shape: &Shape, value: ValueId) -> bool {
    let Def::Result(id, 0) = program.values[value].def else { return false };
    program.ty(value) == Type::Bool
        && program.insts[id].operands.iter().any(|&operand| {
            shape.linear[operand] && shape.axes[operand].meets(Axes::LANE) || compares_run(program, shape, operand)
        })
}
