//! Sanitizers: data races, and other behaviour that is well-defined but almost always a bug.
//!
//! Every memory access of the oracle is compared with earlier ones to the same bytes (happens-before analysis with
//! shadow memory). The execution order of the oracle does not matter: two accesses *race* if no barrier orders them, at
//! least one writes, and they are not both atomic on exactly the same bytes. Accesses of different workgroups are never
//! ordered; those of one workgroup are ordered by a barrier in between.
//!
//! Shadow memory has a [`Cell`] for each granule of an object. A granule has the size of the narrowest access to the
//! object, so every access covers whole granules. For each granule, it suffices to store the last plain write, and
//! representatives of the plain reads and, by size, of the atomic loads and writes: two from different workgroups, and
//! two by different invocations since the last barrier. If any earlier access races with the next one, one of these
//! does.

use rustc_hash::{FxHashMap, FxHashSet};
use vyre_foundation::diagnostics::{Diagnostic, Fault};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{AccessTypes, Element, InstId, MemId, MemOperand, Program, Space};

/// Access in shadow memory: invocation, epoch and instruction.
#[derive(Clone, Copy)]
struct Access {
    invocation: u32,
    group: u32,
    /// Number of barriers for this kind of memory that the workgroup has passed.
    epoch: u32,
    inst: InstId,
}

impl Access {
    fn is_ordered_before(&self, later: &Access) -> bool {
        self.invocation == later.invocation || (self.group == later.group && self.epoch != later.epoch)
    }
}

/// Representatives of accesses that do not race with each other.
#[derive(Clone, Copy, Default)]
struct Compatible {
    /// Up to two accesses, from different workgroups.
    groups: [Option<Access>; 2],
    /// Up to two accesses, by different invocations of the latest workgroup, since its latest barrier.
    recent: [Option<Access>; 2],
}

impl Compatible {
    fn add(&mut self, access: Access) {
        let other_group = |known: Access| known.group != access.group;
        match self.groups {
            [None, _] => self.groups[0] = Some(access),
            [Some(first), None] if other_group(first) => self.groups[1] = Some(access),
            _ => {}
        }
        let same_time = |known: Access| known.group == access.group && known.epoch == access.epoch;
        match self.recent {
            [Some(first), second] if same_time(first) => {
                if first.invocation != access.invocation && second.is_none() {
                    self.recent[1] = Some(access);
                }
            }
            _ => self.recent = [Some(access), None],
        }
    }

    /// Returns a recorded access that does not happen before `next`.
    fn unordered(&self, next: &Access) -> Option<Access> {
        let mut known = self.groups.into_iter().chain(self.recent).flatten();
        known.find(|earlier| !earlier.is_ordered_before(next))
    }
}

/// Atomic accesses of one size.
#[derive(Clone, Copy, Default)]
struct Atomics {
    loads: Compatible,
    writes: Compatible,
}

/// Shadow state of a granule.
#[derive(Clone, Default)]
struct Cell {
    /// Last plain write, and its bits.
    write: Option<(Access, u64)>,
    /// Plain reads.
    reads: Compatible,
    /// Atomic accesses of 4 and of 8 bytes.
    atomics: Option<Box<[Atomics; 2]>>,
}

/// Race: the earlier access, and whether both write the same value.
type Conflict = (Access, bool);

impl Cell {
    /// Checks an access against earlier ones, and records it.
    fn access(&mut self, access: Access, at: MemOperand, action: Action) -> Option<Conflict> {
        let written = self.write.filter(|(earlier, _)| !earlier.is_ordered_before(&access));
        let size = usize::from(at.element.size() == 8);
        let others = self.atomics.iter().flat_map(|atomics| atomics.iter().enumerate());
        let mut others = others.filter(|(other, _)| !at.atomic || *other != size).map(|(_, atomics)| atomics);
        let is_write = matches!(action, Action::Write(_));
        let atomic = others.find_map(|atomics| {
            let load = atomics.loads.unordered(&access).filter(|_| is_write);
            atomics.writes.unordered(&access).or(load)
        });
        let read = self.reads.unordered(&access).filter(|_| is_write);
        let conflict = atomic.or(read).map(|earlier| (earlier, false)).or(written.map(|(earlier, old)| {
            let same_value = !at.atomic && matches!(action, Action::Write(bits) if bits == old);
            (earlier, same_value)
        }));
        match action {
            Action::Read if at.atomic => self.atomics.get_or_insert_default()[size].loads.add(access),
            Action::Write(_) if at.atomic => self.atomics.get_or_insert_default()[size].writes.add(access),
            Action::Read => self.reads.add(access),
            // An access that races with the dropped ones races with this write too, or this write races with them.
            Action::Write(bits) => *self = Cell { write: Some((access, bits)), ..Cell::default() },
        }
        conflict
    }
}

/// Kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Race,
    SameValue,
    OutOfBounds,
    Uninitialized,
    AbsentLane,
}

/// A finding at its first occurrence.
struct Finding {
    kind: Kind,
    memory: Option<MemId>,
    index: u64,
    length: u64,
    /// The access that was reported, and for a race the earlier one.
    access: (u32, InstId),
    earlier: Option<(u32, InstId)>,
    count: u64,
}

/// Shadow memory and findings.
pub(crate) struct Sanitizer<'p> {
    program: &'p Program,
    /// Granule size of each object, in bytes.
    granules: SecondaryMap<MemId, u64>,
    /// Shadow cells, by granule, of objects that several invocations share.
    cells: SecondaryMap<MemId, FxHashMap<u64, Cell>>,
    /// Initialized granules of workgroup and private arrays of the current workgroup; by lane for private ones.
    initialized: FxHashSet<(MemId, usize, u64)>,
    findings: Vec<Finding>,
    known: FxHashMap<(Kind, InstId, Option<InstId>), usize>,
    group: u32,
    workgroup_epoch: u32,
    storage_epoch: u32,
}

/// Kind of an access.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Read,
    /// Write, with the bits of the stored value.
    Write(u64),
}

impl Action {
    /// Restricts an action to one of `parts` equal parts of an element.
    fn part(self, element: Element, part: u64, parts: u64) -> Action {
        match self {
            Action::Write(bits) if parts > 1 => {
                let mut bytes = [0; 8];
                element.write(bits, &mut bytes);
                let width = 8 * element.size() as u64 / parts;
                Action::Write(u64::from_le_bytes(bytes) >> (part * width) & ((1 << width) - 1))
            }
            whole => whole,
        }
    }
}

impl<'p> Sanitizer<'p> {
    pub(crate) fn new(program: &'p Program) -> Self {
        let mut granules = SecondaryMap::with_capacity(program.memories().len(), 1);
        for (object, types) in AccessTypes::of(program).iter() {
            granules[object] = types.elements().map(|element| element.size() as u64).min().unwrap_or(1);
        }
        Sanitizer {
            program,
            granules,
            cells: SecondaryMap::with_capacity(program.memories().len(), FxHashMap::default()),
            initialized: FxHashSet::default(),
            findings: Vec::new(),
            known: FxHashMap::default(),
            group: 0,
            workgroup_epoch: 0,
            storage_epoch: 0,
        }
    }

    pub(crate) fn begin_workgroup(&mut self, group: u32) {
        (self.group, self.workgroup_epoch, self.storage_epoch) = (group, 0, 0);
        self.initialized.clear();
        for (id, memory) in self.program.memories().iter() {
            if memory.space == Space::Workgroup {
                self.cells[id].clear();
            }
        }
    }

    pub(crate) fn barrier(&mut self, workgroup: bool, storage: bool) {
        self.workgroup_epoch += u32::from(workgroup);
        self.storage_epoch += u32::from(storage);
    }

    /// Checks an access of one element. `lane` is the invocation in its workgroup, `invocation` its `global_index`.
    pub(crate) fn access(
        &mut self,
        inst: InstId,
        at: MemOperand,
        (lane, invocation): (usize, u32),
        index: u64,
        length: u64,
        action: Action,
    ) {
        let memory = at.memory;
        let object = self.program.memory(memory);
        if index >= length {
            self.report(Kind::OutOfBounds, Some(memory), index, length, (invocation, inst), None);
            return;
        }
        let per_element = at.element.size() as u64 / self.granules[memory];
        let granules = index * per_element..(index + 1) * per_element;
        if matches!(object.space, Space::Workgroup | Space::Private) {
            let owner = if object.space == Space::Private { lane } else { 0 };
            let mut keys = granules.clone().map(|granule| (memory, owner, granule));
            match action {
                Action::Write(_) => self.initialized.extend(keys),
                Action::Read if !keys.all(|key| self.initialized.contains(&key)) => {
                    self.report(Kind::Uninitialized, Some(memory), index, length, (invocation, inst), None);
                }
                Action::Read => {}
            }
        }
        if matches!(object.space, Space::Private | Space::Uniform) {
            return;
        }
        let epoch = if object.space == Space::Workgroup { self.workgroup_epoch } else { self.storage_epoch };
        let access = Access { invocation, group: self.group, epoch, inst };
        let cells = &mut self.cells[memory];
        // At most one finding per access: a race if any granule has one.
        let conflicts = granules.zip(0..).filter_map(|(granule, part)| {
            let action = action.part(at.element, part, per_element);
            cells.entry(granule).or_default().access(access, at, action)
        });
        let conflict = conflicts.min_by_key(|(_, same_value)| *same_value);
        if let Some((earlier, same_value)) = conflict {
            let kind = if same_value { Kind::SameValue } else { Kind::Race };
            let earlier = (earlier.invocation, earlier.inst);
            self.report(kind, Some(memory), index, length, (invocation, inst), Some(earlier));
        }
    }

    /// Reports that an invocation read the value of an inactive lane.
    pub(crate) fn absent_lane(&mut self, inst: InstId, invocation: u32, lane: u64) {
        self.report(Kind::AbsentLane, None, lane, 0, (invocation, inst), None);
    }

    fn report(
        &mut self,
        kind: Kind,
        memory: Option<MemId>,
        index: u64,
        length: u64,
        access: (u32, InstId),
        earlier: Option<(u32, InstId)>,
    ) {
        let key = (kind, access.1, earlier.map(|(_, inst)| inst));
        let next = self.findings.len();
        let position = *self.known.entry(key).or_insert(next);
        if position == next {
            self.findings.push(Finding { kind, memory, index, length, access, earlier, count: 0 });
        }
        self.findings[position].count += 1;
    }

    /// The findings: one for each pair of instructions, with its first occurrence and its count.
    pub(crate) fn findings(self) -> Vec<Diagnostic> {
        let program = self.program;
        let findings = self.findings.into_iter().map(|finding| {
            let Finding { kind, index, length, count, .. } = finding;
            let memory = finding.memory.map_or(String::new(), |memory| program.memory(memory).name.clone());
            let (invocation, inst) = finding.access;
            let first = finding.earlier.map_or(invocation, |(earlier, _)| earlier);
            let second = invocation;
            let fault = match kind {
                Kind::Race => Fault::Race { memory, index, first, second, count },
                Kind::SameValue => Fault::SameValueRace { memory, index, first, second, count },
                Kind::OutOfBounds => Fault::AccessOutside { memory, index, length, invocation, count },
                Kind::Uninitialized => Fault::ReadOfUnwritten { memory, index, invocation, count },
                Kind::AbsentLane => Fault::AbsentLane { lane: index, invocation, count },
            };
            let diagnostic = Diagnostic::new(fault, program.inst(inst).span);
            match finding.earlier {
                Some((earlier, place)) => {
                    diagnostic.label(program.inst(place).span, format!("invocation {earlier} accesses it here"))
                }
                None => diagnostic,
            }
        });
        findings.collect()
    }
}
