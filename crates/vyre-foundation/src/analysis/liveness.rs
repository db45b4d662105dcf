//! Liveness analysis: live ranges of values, and register pressure.
//!
//! Control flow is structured, so one walk in text order replaces the data-flow iteration. The walk numbers *points*:
//! one for each instruction, and one for the back edge of each loop. A value is live from its definition to its last
//! use. A use in a loop of a value defined outside extends the live range to the back edge, because the next iteration
//! uses the value again. The live ranges depend on the [`Storage`] of the values, and may be split.

use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Control, Def, InstId, Program, ValueId};

/// Storage of live values. Each variant needs the storage of a value for longer than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Storage {
    /// SSA values without storage. The operands and results of an instruction are live at the same time.
    Values,
    /// Registers. `continue` assigns the parameters of its loop, so a parameter is live until the back edge. A result may take the register of
    /// an operand that is not used again.
    Registers,
    /// Slots in memory. Terminators assign the results of the control flow they leave, so these are live from its beginning. A result
    /// never takes the slot of an operand.
    Slots,
}

/// Points at which a value is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// The value.
    pub value: ValueId,
    /// First point. Literals and constants are live from their first use.
    pub start: u32,
    /// End, exclusive.
    pub end: u32,
    /// Number of splits before the range.
    pub segment: u32,
    /// The outermost loop whose back edge extends the range.
    carrier: Option<u32>,
}

/// Live-range splitting: a value that is live across a splitting instruction is stored elsewhere meanwhile. It has a
/// live range for each segment in which it is defined or used.
#[derive(Clone, Copy)]
pub struct Splits<'a> {
    /// Returns true for an instruction that begins a segment. If it has nested blocks, each of them begins a segment, and so do its results.
    pub before: &'a dyn Fn(InstId) -> bool,
    /// Returns true for a value that is rematerialized at its uses: they count as uses of the operands of its
    /// definition.
    pub rematerialized: &'a dyn Fn(ValueId) -> bool,
}

/// Live ranges of the values of a program.
#[derive(Clone, Debug)]
pub struct Liveness {
    ranges: Vec<LiveRange>,
    values: SecondaryMap<ValueId, Live>,
    points: u32,
}

impl Liveness {
    /// Analyzes a program. Every value that is defined or used has one live range.
    pub fn of(program: &Program, storage: Storage) -> Liveness {
        Walk::new(program, storage, None).finish()
    }

    /// Analyzes a program whose live ranges are split.
    pub fn split(program: &Program, storage: Storage, splits: Splits<'_>) -> Liveness {
        Walk::new(program, storage, Some(splits)).finish()
    }

    /// Live ranges, by their start.
    pub fn ranges(&self) -> &[LiveRange] {
        &self.ranges
    }

    /// Last user of a value in the block that defines it; a use in a nested block counts for the instruction that
    /// contains the block.
    pub fn last_user(&self, value: ValueId) -> Option<InstId> {
        self.values[value].last_user
    }

    /// The largest weight of all values that are live at one point.
    pub fn pressure(&self, weight: impl Fn(ValueId) -> usize) -> usize {
        let mut changes = vec![0isize; self.points as usize];
        for range in &self.ranges {
            let weight = weight(range.value) as isize;
            changes[range.start as usize] += weight;
            changes[range.end as usize] -= weight;
        }
        let mut live = 0;
        let weights = changes.into_iter().map(|change| {
            live += change;
            live
        });
        weights.max().unwrap_or(0) as usize
    }
}

/// State of a value during the walk.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    /// Start of its first range, and position of its last one.
    ranges: Option<(u32, u32)>,
    /// Number of blocks around its definition.
    depth: u32,
    last_user: Option<InstId>,
}

struct Walk<'a> {
    program: &'a Program,
    storage: Storage,
    splits: Option<Splits<'a>>,
    point: u32,
    segment: u32,
    ranges: Vec<LiveRange>,
    values: SecondaryMap<ValueId, Live>,
    /// The instructions around the current point, outermost first.
    around: Vec<InstId>,
    /// The loops around the current point that are not split: their first point, and their position in `back_edges`.
    loops: Vec<(u32, u32)>,
    /// The last point of each loop, in text order.
    back_edges: Vec<u32>,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, storage: Storage, splits: Option<Splits<'a>>) -> Walk<'a> {
        Walk {
            program,
            storage,
            splits,
            point: 0,
            segment: 0,
            ranges: Vec::with_capacity(program.values().len()),
            values: SecondaryMap::with_capacity(program.values().len(), Live::default()),
            around: Vec::new(),
            loops: Vec::new(),
            back_edges: Vec::new(),
        }
    }

    fn finish(mut self) -> Liveness {
        self.block(self.program.body());
        for range in &mut self.ranges {
            if let Some(carrier) = range.carrier {
                range.end = range.end.max(self.back_edges[carrier as usize]);
            }
            range.end = match self.storage {
                Storage::Registers => range.end.max(range.start + 1),
                Storage::Values | Storage::Slots => range.end + 1,
            };
        }
        Liveness { ranges: self.ranges, values: self.values, points: self.point + 2 }
    }

    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            self.point += 1;
            let split = u32::from(self.splits.is_some_and(|splits| (splits.before)(id)));
            self.segment += split;
            self.around.push(id);
            inst.operands.iter().for_each(|&operand| self.used(operand));
            let in_place = self.storage == Storage::Slots && !inst.blocks.is_empty();
            if in_place {
                self.define(&inst.results, self.around.len() - 1);
            }
            let carrier = (inst.op == Control::Loop).then(|| self.enter_loop(inst.blocks[0], split > 0));
            for &nested in &inst.blocks {
                self.segment += split;
                self.block(nested);
            }
            if let Some(carrier) = carrier {
                self.point += 1;
                self.back_edges[carrier as usize] = self.point;
                self.loops.pop_if(|(_, innermost)| *innermost == carrier);
            }
            self.around.pop();
            if in_place {
                inst.results.iter().for_each(|&result| {
                    self.touch(result);
                });
            } else {
                self.segment += if inst.blocks.is_empty() { 0 } else { split };
                self.define(&inst.results, self.around.len());
            }
        }
    }

    /// Defines the parameters of a loop. Returns the position of its back edge.
    fn enter_loop(&mut self, body: BlockId, is_split: bool) -> u32 {
        let carrier = self.back_edges.len() as u32;
        self.back_edges.push(0);
        let params = &self.program.block(body).params;
        self.define(params, self.around.len());
        if is_split || self.has_split(body) {
            return carrier;
        }
        if self.storage != Storage::Values {
            for &param in params {
                let range = self.touch(param);
                self.ranges[range].carrier = Some(carrier);
            }
        }
        self.loops.push((self.point, carrier));
        carrier
    }

    fn has_split(&self, block: BlockId) -> bool {
        let Some(splits) = self.splits else { return false };
        let mut has_split = false;
        self.program.walk_block(block, |id, _| has_split |= (splits.before)(id));
        has_split
    }

    fn define(&mut self, values: &[ValueId], depth: usize) {
        for &value in values {
            self.values[value].depth = depth as u32;
            self.touch(value);
        }
    }

    fn used(&mut self, value: ValueId) {
        if let (Some(splits), Def::Result(id, _)) = (self.splits, self.program.def(value))
            && (splits.rematerialized)(value)
        {
            return self.program.inst(id).operands.iter().for_each(|&operand| self.used(operand));
        }
        let range = self.touch(value);
        let live = &mut self.values[value];
        live.last_user = self.around.get(live.depth as usize).copied();
        // Outermost enclosing loop that the value is defined outside of: the value is live until the end of that loop.
        let Some((defined, _)) = live.ranges else { return };
        let params = u32::from(self.storage != Storage::Values);
        if let Some((_, carrier)) = self.loops.iter().find(|(first, _)| defined < first + params) {
            self.ranges[range].carrier = Some(*carrier);
        }
    }

    /// Makes a value live at the current point. Returns the position of its range.
    fn touch(&mut self, value: ValueId) -> usize {
        let (point, segment) = (self.point, self.segment);
        let ranges = &mut self.values[value].ranges;
        if let Some((_, last)) = *ranges
            && self.ranges[last as usize].segment == segment
        {
            self.ranges[last as usize].end = point;
            return last as usize;
        }
        let position = self.ranges.len();
        let defined = ranges.map_or(point, |(defined, _)| defined);
        *ranges = Some((defined, position as u32));
        self.ranges.push(LiveRange { value, start: point, end: point, segment, carrier: None });
        position
    }
}
