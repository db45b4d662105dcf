//! Memory plan: transient buffers with disjoint live ranges alias (share a slot), and buffers without a covering store are cleared before first use.

use vyre_driver::Error;
use vyre_foundation::ir::entity::{Arena, SecondaryMap};
use vyre_foundation::ir::pipeline::{Argument, Buffer, Role};
use vyre_foundation::ir::{
    Access, Axis, BlockId, BufferId, Control, Def, MemId, MemOperand, Op, PerGroup, PerInvocation, Program, Pure,
    Space, Terminator, ValueId, total_invocations,
};

use super::plan::{Launch, Use};
use super::{Attached, Pipeline};

/// Memory plan of a pipeline.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Memory budget.
    pub budget_bytes: u64,
    /// Allocated memory: resident buffers and slots.
    pub peak_bytes: u64,
    /// Size of inputs, outputs and attached buffers, which are live all the time.
    pub resident_bytes: u64,
    /// Size of all buffers without dropping and sharing.
    pub unshared_bytes: u64,
    /// Live bytes in each group.
    pub over_time: Vec<u64>,
    /// Size of each slot that transient buffers share.
    pub slots: Vec<u64>,
    /// Slot of each transient buffer, unless it was dropped or is unused.
    pub(super) slot_of: SecondaryMap<BufferId, Option<usize>>,
    /// Buffers that are cleared before each group.
    pub(super) cleared: Vec<Vec<BufferId>>,
}

/// Returns the size of a buffer's allocation.
pub(super) fn allocated(buffer: &Buffer) -> Result<u64, Error> {
    vyre_driver::Buffer::size_class(buffer.bytes()).ok_or(Error::Overflow { field: "pipeline bytes" })
}

/// Returns the size of inputs, outputs and attached buffers. Of attached buffers, each underlying allocation counts once.
pub(super) fn resident(pipeline: &Pipeline) -> Result<u64, Error> {
    let attached = &pipeline.attached;
    let is_attached = |id: BufferId| attached.iter().any(|attached| attached.id == id);
    let declared = pipeline.recorded.buffers.iter();
    let declared = declared.filter(|(id, buffer)| buffer.role != Role::Transient && !is_attached(*id));
    let is_first = |(position, known): &(usize, &Attached)| {
        !attached[..*position].iter().any(|earlier| earlier.memory.shares_allocation(&known.memory))
    };
    let allocations = attached.iter().enumerate().filter(is_first);
    let allocations = allocations.map(|(_, attached)| Ok(attached.memory.allocated_bytes()));
    sum(declared.map(|(_, buffer)| allocated(buffer)).chain(allocations))
}

fn sum(bytes: impl Iterator<Item = Result<u64, Error>>) -> Result<u64, Error> {
    let mut sum = 0u64;
    for bytes in bytes {
        sum = sum.checked_add(bytes?).ok_or(Error::Overflow { field: "pipeline bytes" })?;
    }
    Ok(sum)
}

impl Memory {
    pub(super) fn new(
        buffers: &Arena<BufferId, Buffer>,
        launches: &[Launch],
        used: &[Vec<Use>],
        groups: &[Vec<usize>],
        resident_bytes: u64,
        budget_bytes: u64,
    ) -> Result<Memory, Error> {
        // Live ranges: first and last group that use a buffer.
        let mut lives: SecondaryMap<BufferId, Option<(usize, usize)>> =
            SecondaryMap::with_capacity(buffers.len(), None);
        let mut cleared = vec![Vec::new(); groups.len()];
        for (group, members) in groups.iter().enumerate() {
            for &member in members {
                for used in &used[member] {
                    let buffer = &buffers[used.buffer];
                    if lives[used.buffer].is_none()
                        && !buffer.role.is_given()
                        && !launches[member].overwrites(used.buffer, buffers)
                    {
                        cleared[group].push(used.buffer);
                    }
                    let (first, _) = lives[used.buffer].unwrap_or((group, group));
                    lives[used.buffer] = Some((first, group));
                }
            }
        }

        // First fit by decreasing size: a slot is as large as its first buffer.
        let is_transient = |id: &BufferId| buffers[*id].role == Role::Transient;
        let mut transient = Vec::new();
        for id in buffers.keys().filter(is_transient) {
            if let Some(life) = lives[id] {
                transient.push((allocated(&buffers[id])?, life, id));
            }
        }
        transient.sort_by_key(|(bytes, life, _)| (std::cmp::Reverse(*bytes), *life));
        let mut slots: Vec<(u64, Vec<(usize, usize)>)> = Vec::new();
        let mut slot_of = SecondaryMap::with_capacity(buffers.len(), None);
        let mut over_time = vec![resident_bytes; groups.len()];
        for (bytes, (first, last), id) in transient {
            let free =
                |(_, lives): &(u64, Vec<(usize, usize)>)| lives.iter().all(|life| life.1 < first || last < life.0);
            let slot = slots.iter().position(free).unwrap_or(slots.len());
            if slot == slots.len() {
                slots.push((bytes, Vec::new()));
            }
            slots[slot].1.push((first, last));
            slot_of[id] = Some(slot);
            for held in &mut over_time[first..=last] {
                *held = held.checked_add(bytes).ok_or(Error::Overflow { field: "pipeline bytes" })?;
            }
        }
        let slots: Vec<u64> = slots.into_iter().map(|(bytes, _)| bytes).collect();
        Ok(Memory {
            budget_bytes,
            peak_bytes: sum(slots.iter().copied().chain([resident_bytes]).map(Ok))?,
            resident_bytes,
            unshared_bytes: sum(buffers.values().map(allocated))?,
            over_time,
            slots,
            slot_of,
            cleared,
        })
    }
}

impl Launch {
    /// Returns true if the launch provably stores every element of a buffer and reads none, so that clearing is redundant.
    fn overwrites(&self, buffer: BufferId, buffers: &Arena<BufferId, Buffer>) -> bool {
        let mut bound = self.arguments.buffers();
        let Some((object, _)) = bound.find(|(_, bound)| **bound == buffer) else { return false };
        let length = buffers[buffer].length;
        let invocations = total_invocations(self.groups, self.program.workgroup_size());
        let search = CoveringStore { launch: self, program: &self.program, object, length, buffers };
        self.program.memory(object).space == Space::Storage(Access::Write)
            && invocations.is_some_and(|invocations| invocations >= length)
            && search.block(self.program.body())
    }
}

/// Search for a store to `object[i]` that every invocation `i` < `length` executes.
struct CoveringStore<'l> {
    launch: &'l Launch,
    program: &'l Program,
    object: MemId,
    length: u32,
    buffers: &'l Arena<BufferId, Buffer>,
}

impl CoveringStore<'_> {
    /// Returns the memory operand of a store of a whole element.
    fn element(&self) -> MemOperand {
        self.program.operand(self.object)
    }

    fn block(&self, block: BlockId) -> bool {
        for &id in &self.program.block(block).insts {
            let inst = self.program.inst(id);
            match &inst.op {
                Op::Store(at) if *at == self.element() && self.is_index(inst.operands[0]) => return true,
                Op::Control(Control::Region(_)) if self.block(inst.blocks[0]) => return true,
                Op::Control(Control::If) if self.holds(inst.operands[0]) && self.block(inst.blocks[0]) => return true,
                _ => {}
            }
            // Instructions after an exit are not executed by all invocations.
            let leaves = |op: &Op| matches!(op, Op::Terminator(Terminator::Return | Terminator::Trap));
            if leaves(&inst.op) || inst.blocks.iter().any(|&nested| self.program.contains(nested, leaves)) {
                return false;
            }
        }
        false
    }

    fn op(&self, value: ValueId) -> Option<(&Op, &[ValueId])> {
        match self.program.def(value) {
            Def::Result(inst, _) => Some((&self.program.inst(inst).op, &self.program.inst(inst).operands)),
            Def::Param(..) | Def::Literal(_) | Def::Constant(_) => None,
        }
    }

    /// Returns true if a value is the linear index of the invocation.
    fn is_index(&self, value: ValueId) -> bool {
        let flat = self.launch.groups[1..] == [1, 1] && self.program.workgroup_size()[1..] == [1, 1];
        match self.op(value) {
            Some((Op::PerInvocation(PerInvocation::GlobalIndex), _)) => true,
            Some((Op::PerInvocation(PerInvocation::GlobalId(Axis::X)), _)) => flat,
            _ => false,
        }
    }

    /// Returns true if a condition holds for every invocation `i` < `length`.
    fn holds(&self, condition: ValueId) -> bool {
        match self.op(condition) {
            Some((Op::Pure(Pure::Lt), &[index, limit])) if self.is_index(index) => {
                self.limit(limit).is_some_and(|limit| limit >= self.length)
            }
            _ => false,
        }
    }

    fn limit(&self, value: ValueId) -> Option<u32> {
        let argument = |object: MemId| self.launch.arguments.get(object);
        match self.op(value) {
            None => self.program.known(value)?.value::<u32>(),
            Some((Op::PerGroup(PerGroup::Length(object)), _)) => match argument(*object)? {
                Argument::Buffer(buffer) => Some(self.buffers[*buffer].length),
                Argument::Scalar(_) => None,
            },
            Some((Op::Load(at), [])) => match argument(at.memory)? {
                Argument::Scalar(literal) => literal.value::<u32>(),
                Argument::Buffer(_) => None,
            },
            Some(_) => None,
        }
    }
}
