//! Static statistics of a program: instruction counts, register pressure, memory.

use super::entity::{BlockId, InstId, MemId, ValueId};
use super::ops::{Control, Kind, Op, Payload, Terminator};
use super::program::{Block, Constant, Inst, Memory, Program, Space, Value};
use crate::analysis::{Liveness, Storage};

/// Counts over the instructions that are reachable from the body, nested ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// All instructions, including terminators and regions.
    pub nodes: usize,
    /// Instructions other than terminators and regions.
    pub instructions: usize,
    /// Loads, stores and atomics.
    pub memory_ops: usize,
    /// Read-modify-write operations, and accesses to atomic objects.
    pub atomic_ops: usize,
    /// Branches, loops and terminators other than `yield`, without the final `return`.
    pub control_flow_ops: usize,
    /// Regions directly in the body.
    pub top_level_regions: usize,
    /// Bytes of the objects of declared length.
    pub static_storage_bytes: u64,
    /// Maximum number of simultaneously live values, without literals and constants.
    pub register_pressure: usize,
}

/// Heap memory of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Allocations.
    pub allocations: u64,
    /// Bytes in use, without spare capacity.
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
    /// Heap memory of the program, including unreachable entities.
    pub fn heap(&self) -> Heap {
        let mut heap = Heap::default();
        heap.add::<u8>(self.name().len());
        heap.add::<Constant>(self.constants().len());
        heap.add::<Memory>(self.memories().len());
        heap.add::<Value>(self.values().len());
        heap.add::<Inst>(self.insts().len());
        heap.add::<Block>(self.blocks().len());
        heap.add::<(ValueId, Box<str>)>(self.value_names().len());
        self.constants().values().for_each(|constant| heap.add::<u8>(constant.name.len()));
        self.memories().values().for_each(|memory| heap.add::<u8>(memory.name.len()));
        self.value_names().for_each(|(_, name)| heap.add::<u8>(name.len()));
        for inst in self.insts().values() {
            for values in [&inst.operands, &inst.results] {
                heap.add::<ValueId>(if values.spilled() { values.len() } else { 0 });
            }
            heap.add::<BlockId>(if inst.blocks.spilled() { inst.blocks.len() } else { 0 });
            match inst.op.payload() {
                Payload::Text(text) => heap.add::<u8>(text.len()),
                Payload::Cases(cases) => heap.add::<u32>(cases.len()),
                Payload::None | Payload::Axis(_) | Payload::Object(_) | Payload::Memory(_) => {}
            }
        }
        for block in self.blocks().values() {
            heap.add::<InstId>(block.insts.len());
            heap.add::<ValueId>(if block.params.spilled() { block.params.len() } else { 0 });
        }
        heap
    }

    /// Computes the statistics.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            static_storage_bytes: self
                .memories()
                .values()
                .filter_map(Memory::static_bytes)
                .fold(0, u64::saturating_add),
            register_pressure: Liveness::of(self, Storage::Values)
                .pressure(|value| usize::from(self.known(value).is_none())),
            ..Stats::default()
        };
        self.walk(|inst, depth| {
            let op = &self.inst(inst).op;
            stats.nodes += 1;
            if !op.is_terminator() && !matches!(op, Op::Control(Control::Region(_))) {
                stats.instructions += 1;
            }
            if let Some(operand) = op.operand() {
                stats.memory_ops += 1;
                stats.atomic_ops += usize::from(operand.atomic);
            }
            if op.kind() == Kind::Control
                && !matches!(op, Op::Control(Control::Region(_)) | Op::Terminator(Terminator::Yield))
            {
                stats.control_flow_ops += 1;
            }
            if depth == 0 && matches!(op, Op::Control(Control::Region(_))) {
                stats.top_level_regions += 1;
            }
        });
        // The final return is not a branch.
        stats.control_flow_ops = stats.control_flow_ops.saturating_sub(1);
        stats
    }

    /// Total bytes of all memory objects. `runtime_length` gives the length of an object without a declared one; `None` counts as 0.
    pub fn estimate_peak_device_bytes(&self, runtime_length: impl Fn(MemId) -> Option<u64>) -> u64 {
        self.memories().iter().fold(0, |sum: u64, (id, memory)| {
            let length = memory.length.map(u64::from).or_else(|| runtime_length(id)).unwrap_or(0);
            sum.saturating_add(length.saturating_mul(memory.element.size() as u64))
        })
    }

    /// Total bytes of the objects of declared length in one address space.
    pub fn static_bytes_in(&self, space: Space) -> u64 {
        let objects = self.memories().values().filter(|memory| memory.space == space);
        objects.filter_map(Memory::static_bytes).fold(0, u64::saturating_add)
    }
}
