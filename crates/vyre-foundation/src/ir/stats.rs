//! Static statistics of a program: instruction counts, live intervals and register pressure, memory.

use super::entity::{BlockId, InstId, MemId, SecondaryMap, ValueId};
use super::ops::{Form, Kind, Op, Payload};
use super::program::{Block, Constant, Inst, Memory, Program, Space, Value};

/// Counts over the instructions that are reachable from the body, nested ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// All instructions, with terminators and regions.
    pub nodes: usize,
    /// Instructions that do something by themselves: all but terminators and regions.
    pub instructions: usize,
    /// Loads, stores and atomics.
    pub memory_ops: usize,
    /// Read-modify-write operations, and accesses to atomic objects.
    pub atomic_ops: usize,
    /// Branches, loops and terminators that are not just the end of a block.
    pub control_flow_ops: usize,
    /// Regions that stand directly in the body.
    pub top_level_regions: usize,
    /// Bytes of the objects whose length is known before dispatch.
    pub static_storage_bytes: u64,
    /// The largest number of values that are live at one place, literals and constants not counted.
    pub register_pressure: usize,
}

/// Memory that a program itself takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Allocations.
    pub allocations: u64,
    /// Their bytes, without what is reserved and not used.
    pub bytes: u64,
}

impl Heap {
    fn add<T>(&mut self, count: usize) {
        if count > 0 {
            self.allocations += 1;
            self.bytes += (count * size_of::<T>()) as u64;
        }
    }
}

impl Program {
    /// What the program takes in memory, leftovers that nothing refers to included.
    pub fn heap(&self) -> Heap {
        let mut heap = Heap::default();
        heap.add::<u8>(self.name.len());
        heap.add::<Constant>(self.constants.len());
        heap.add::<Memory>(self.memory.len());
        heap.add::<Value>(self.values.len());
        heap.add::<Inst>(self.insts.len());
        heap.add::<Block>(self.blocks.len());
        heap.add::<(ValueId, Box<str>)>(self.names.len());
        self.constants.values().for_each(|constant| heap.add::<u8>(constant.name.len()));
        self.memory.values().for_each(|memory| heap.add::<u8>(memory.name.len()));
        self.names.values().for_each(|name| heap.add::<u8>(name.len()));
        for inst in self.insts.values() {
            for values in [&inst.operands, &inst.results] {
                heap.add::<ValueId>(if values.spilled() { values.len() } else { 0 });
            }
            heap.add::<BlockId>(if inst.blocks.spilled() { inst.blocks.len() } else { 0 });
            match inst.op.payload() {
                Payload::Text(text) => heap.add::<u8>(text.len()),
                Payload::Cases(cases) => heap.add::<u32>(cases.len()),
                Payload::None | Payload::Axis(_) | Payload::Memory(_) => {}
            }
        }
        for block in self.blocks.values() {
            heap.add::<InstId>(block.insts.len());
            heap.add::<ValueId>(if block.params.spilled() { block.params.len() } else { 0 });
        }
        heap
    }

    /// Counts what the program is made of.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            static_storage_bytes: self.memory.values().filter_map(Memory::static_bytes).fold(0, u64::saturating_add),
            register_pressure: register_pressure(self),
            ..Stats::default()
        };
        self.walk(|inst, depth| {
            let op = &self.insts[inst].op;
            stats.nodes += 1;
            if !op.is_terminator() && !matches!(op, Op::Region(_)) {
                stats.instructions += 1;
            }
            if let Some(memory) = op.memory()
                && !matches!(op, Op::Length(_))
            {
                stats.memory_ops += 1;
                stats.atomic_ops += usize::from(self.memory[memory].atomic);
            }
            if op.row().kind == Kind::Control && !matches!(op, Op::Region(_) | Op::Yield) {
                stats.control_flow_ops += 1;
            }
            if depth == 0 && matches!(op, Op::Region(_)) {
                stats.top_level_regions += 1;
            }
        });
        // Every program returns at its end; that is not a branch.
        stats.control_flow_ops = stats.control_flow_ops.saturating_sub(1);
        stats
    }

    /// Bytes of all memory objects together. `runtime_length` gives the number of elements of those whose length is known
    /// only at dispatch; where it gives none, they count as empty.
    pub fn estimate_peak_device_bytes(&self, runtime_length: impl Fn(MemId) -> Option<u64>) -> u64 {
        self.memory.iter().fold(0, |sum: u64, (id, memory)| {
            let length = memory.length.map(u64::from).or_else(|| runtime_length(id)).unwrap_or(0);
            sum.saturating_add(length.saturating_mul(memory.element.size() as u64))
        })
    }

    /// Bytes of all objects in one space, as far as they are known before dispatch.
    pub fn static_bytes_in(&self, space: Space) -> u64 {
        let objects = self.memory.values().filter(|memory| memory.space == space);
        objects.filter_map(Memory::static_bytes).fold(0, u64::saturating_add)
    }
}

/// The most values that are live at once, if instructions run in the order of the text.
///
/// Each value lives from its definition to its last use; a use inside a loop, of a value from outside, lasts to the end of
/// that loop.
fn register_pressure(program: &Program) -> usize {
    let mut liveness = Intervals {
        program,
        clock: 0,
        defined: SecondaryMap::with_capacity(program.values.len(), u32::MAX),
        last_use: SecondaryMap::with_capacity(program.values.len(), 0),
        loops: Vec::new(),
    };
    liveness.block(program.body);

    let mut changes = vec![0i32; liveness.clock as usize + 2];
    for (value, &start) in liveness.defined.iter() {
        if start != u32::MAX {
            changes[start as usize] += 1;
            changes[liveness.last_use[value].max(start) as usize + 1] -= 1;
        }
    }
    let mut live = 0;
    let most = changes.into_iter().map(|change| {
        live += change;
        live
    });
    most.max().unwrap_or(0) as usize
}

struct Intervals<'p> {
    program: &'p Program,
    clock: u32,
    defined: SecondaryMap<ValueId, u32>,
    last_use: SecondaryMap<ValueId, u32>,
    /// For each enclosing loop, when it started and the outside values used in it.
    loops: Vec<(u32, Vec<ValueId>)>,
}

impl Intervals<'_> {
    fn block(&mut self, block: BlockId) {
        for &param in &self.program.blocks[block].params {
            self.defined[param] = self.clock;
        }
        for &id in &self.program.blocks[block].insts {
            let inst = &self.program.insts[id];
            self.clock += 1;
            for &operand in &inst.operands {
                self.used(operand);
            }
            let is_loop = matches!(inst.op.row().form, Form::Loop);
            if is_loop {
                self.loops.push((self.clock, Vec::new()));
            }
            for &nested in &inst.blocks {
                self.block(nested);
            }
            if is_loop {
                self.clock += 1;
                let (_, outside) = self.loops.pop().expect("pushed above");
                for value in outside {
                    self.used(value);
                }
            }
            for &result in &inst.results {
                self.defined[result] = self.clock;
            }
        }
    }

    /// Literals and constants are used, too, but never defined, so they do not count.
    fn used(&mut self, value: ValueId) {
        self.last_use[value] = self.clock;
        if let Some((start, outside)) = self.loops.last_mut()
            && self.defined[value] < *start
        {
            outside.push(value);
        }
    }
}
