//! Sanitizers: what a program does that is defined, but hardly meant.
//!
//! While the oracle runs, every access to memory is noted and compared with earlier ones to the same element. The order in
//! which the oracle happens to execute invocations does not matter: two accesses *race* if nothing orders them, which is so
//! for all invocations of different workgroups, and within a workgroup for those with no barrier in between. It is enough to
//! remember, for each element, the last write, two reads from different workgroups, and two reads by different invocations
//! since the last barrier: if any earlier access races with the next one, one of these does.

use rustc_hash::{FxHashMap, FxHashSet};
use vyre_foundation::diagnostics::{Diagnostic, Fault};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{InstId, MemId, Program, Space};

/// Who accessed an element, when and where.
#[derive(Clone, Copy)]
struct Access {
    invocation: u32,
    group: u32,
    /// How many barriers for this kind of memory the workgroup had passed.
    epoch: u32,
    inst: InstId,
}

impl Access {
    fn is_ordered_before(&self, later: &Access) -> bool {
        self.invocation == later.invocation || (self.group == later.group && self.epoch != later.epoch)
    }
}

/// What is known of an element.
#[derive(Clone, Copy, Default)]
struct Cell {
    write: Option<(Access, u64)>,
    /// Reads from two different workgroups.
    groups: [Option<Access>; 2],
    /// Reads by two different invocations of the latest workgroup, since its latest barrier.
    recent: [Option<Access>; 2],
}

impl Cell {
    fn read(&mut self, access: Access) {
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
}

/// What was found, without how often.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Race,
    SameValue,
    Outside,
    Unwritten,
    AbsentLane,
}

/// A finding at its first occurrence.
struct Finding {
    kind: Kind,
    memory: Option<MemId>,
    index: u64,
    length: u32,
    /// The access that showed it, and for a race the one before.
    access: (u32, InstId),
    earlier: Option<(u32, InstId)>,
    count: u64,
}

/// Notes accesses and keeps findings.
pub(crate) struct Sanitizer<'p> {
    program: &'p Program,
    /// Elements of objects that several invocations share and that are not atomic.
    cells: SecondaryMap<MemId, FxHashMap<u64, Cell>>,
    /// Elements of workgroup and private arrays that have been written in this workgroup, by lane for private ones.
    written: FxHashSet<(MemId, usize, u64)>,
    findings: Vec<Finding>,
    known: FxHashMap<(Kind, InstId, Option<InstId>), usize>,
    group: u32,
    workgroup_epoch: u32,
    storage_epoch: u32,
}

/// What an access does.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Read,
    /// With the bits that are written.
    Write(u64),
}

impl<'p> Sanitizer<'p> {
    pub(crate) fn new(program: &'p Program) -> Self {
        Sanitizer {
            program,
            cells: SecondaryMap::with_capacity(program.memories().len(), FxHashMap::default()),
            written: FxHashSet::default(),
            findings: Vec::new(),
            known: FxHashMap::default(),
            group: 0,
            workgroup_epoch: 0,
            storage_epoch: 0,
        }
    }

    pub(crate) fn begin_workgroup(&mut self, group: u32) {
        (self.group, self.workgroup_epoch, self.storage_epoch) = (group, 0, 0);
        self.written.clear();
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

    /// Notes an access of one element. `lane` is the invocation in its workgroup, `invocation` its `global_index`.
    pub(crate) fn access(
        &mut self,
        inst: InstId,
        memory: MemId,
        (lane, invocation): (usize, u32),
        index: u64,
        length: u32,
        action: Action,
    ) {
        let object = self.program.memory(memory);
        if index >= u64::from(length) {
            self.find(Kind::Outside, Some(memory), index, length, (invocation, inst), None);
            return;
        }
        if matches!(object.space, Space::Workgroup | Space::Private) {
            let owner = if object.space == Space::Private { lane } else { 0 };
            let key = (memory, owner, index);
            match action {
                Action::Write(_) => {
                    self.written.insert(key);
                }
                Action::Read if !self.written.contains(&key) => {
                    self.find(Kind::Unwritten, Some(memory), index, length, (invocation, inst), None);
                }
                Action::Read => {}
            }
        }
        if object.atomic || matches!(object.space, Space::Private | Space::Uniform) {
            return;
        }
        let epoch = if object.space == Space::Workgroup { self.workgroup_epoch } else { self.storage_epoch };
        let access = Access { invocation, group: self.group, epoch, inst };
        let cell = self.cells[memory].entry(index).or_default();
        let races = |earlier: &Access| !earlier.is_ordered_before(&access);
        let written = cell.write.filter(|(earlier, _)| races(earlier));
        let conflict = match action {
            Action::Read => written.map(|(earlier, _)| (earlier, false)),
            Action::Write(bits) => {
                let reads = cell.groups.into_iter().chain(cell.recent).flatten();
                let read = reads.into_iter().find(|earlier| races(earlier));
                read.map(|earlier| (earlier, false)).or(written.map(|(earlier, old)| (earlier, old == bits)))
            }
        };
        match action {
            Action::Read => cell.read(access),
            Action::Write(bits) => *cell = Cell { write: Some((access, bits)), ..Cell::default() },
        }
        if let Some((earlier, same_value)) = conflict {
            let kind = if same_value { Kind::SameValue } else { Kind::Race };
            let earlier = (earlier.invocation, earlier.inst);
            self.find(kind, Some(memory), index, length, (invocation, inst), Some(earlier));
        }
    }

    /// Notes that an invocation asked for the value of a lane that has none.
    pub(crate) fn absent_lane(&mut self, inst: InstId, invocation: u32, lane: u64) {
        self.find(Kind::AbsentLane, None, lane, 0, (invocation, inst), None);
    }

    fn find(
        &mut self,
        kind: Kind,
        memory: Option<MemId>,
        index: u64,
        length: u32,
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

    /// Everything that was found: one for each pair of places in the program, with the first occurrence.
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
                Kind::Outside => Fault::AccessOutside { memory, index, length, invocation, count },
                Kind::Unwritten => Fault::ReadOfUnwritten { memory, index, invocation, count },
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
