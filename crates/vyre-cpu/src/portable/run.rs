//! Interpreter loop of the portable executor: steps over blocks of lanes.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::AcqRel;

use smallvec::SmallVec;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Atomic, MAX_OPERANDS, PerGroup, PerInvocation, Subgroup};
use vyre_foundation::ir::{Element, Literal, MemId, MemOperand, Space, Span};
use vyre_foundation::launch::Report;

use super::{Function, Kernel};
use crate::dispatch::{Account, Launch, Stopped};
use crate::memory::{View, update_function};
use crate::pool::Pool;
use crate::spmd::{Moves, Sequence, Slot, Step, Stride};
use crate::subgroup;

/// Loop trips of a worker between two polls of the deadline and the stop flag.
const TRIPS_PER_CHECK: u64 = 1 << 12;

/// Executes a dispatch on all threads of the pool.
pub(crate) fn run(kernel: &Kernel, launch: &Launch<'_>, pool: &Pool) -> Report {
    let account = Account::new(launch);
    let form = kernel.form();
    let groups = launch.groups.iter().map(|&groups| u64::from(groups)).product::<u64>();
    let blocks = groups.div_ceil(u64::from(form.groups));
    // Eight pieces per thread: the cost of taking one is negligible, and threads finish at about the same time.
    let per_piece = (blocks / (8 * pool.threads() as u64)).max(1);
    let pieces = blocks.div_ceil(per_piece) as u32;
    let body = |piece| {
        let mut frame = kernel.frame();
        let mut worker = Worker::new(kernel, launch, &account, &mut frame);
        let first = u64::from(piece) * per_piece;
        for block in first..(first + per_piece).min(blocks) {
            let first_group = block * u64::from(form.groups);
            let count = u64::from(form.groups).min(groups - first_group) as u32;
            if worker.block(first_group as u32, count).is_err() {
                break;
            }
        }
        kernel.recycle(frame);
    };
    pool.for_each_timed(pieces, &|piece| account.stopping_on_panic(|| body(piece)), account.worker_spans.as_ref());
    account.report()
}

/// Memory of a worker: slots, masks, and arrays of the block.
pub(super) struct Frame {
    narrow: Vec<u32>,
    wide: Vec<u64>,
    masks: Vec<Vec<u32>>,
    /// Workgroup arrays, in 64-bit words so that every element is aligned.
    workgroup: Vec<u64>,
    /// Private arrays, in lane order.
    private: Vec<u64>,
    /// Position of each lane in its workgroup.
    local: Vec<[u32; 3]>,
}

impl Kernel {
    fn frame(&self) -> Frame {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| self.new_frame())
    }

    fn recycle(&self, frame: Frame) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
    }

    fn new_frame(&self) -> Frame {
        let form = self.form();
        let lanes = form.lanes;
        let program = &form.program;
        let [size_x, size_y, _] = program.workgroup_size();
        let size = program.workgroup_size().iter().product::<u32>();
        let local = (0..lanes as u32).map(|lane| {
            let lane = lane % size;
            [lane % size_x, lane / size_x % size_y, lane / size_x / size_y]
        });
        let words = |space: Space| {
            let objects = program.memories().values().filter(|memory| memory.space == space);
            objects.map(|memory| words_of(memory.element, memory.length.unwrap_or(0))).sum::<usize>()
        };
        let mut frame = Frame {
            narrow: vec![0; form.slots.narrow * lanes],
            wide: vec![0; form.slots.wide * lanes],
            masks: Vec::new(),
            workgroup: vec![0; words(Space::Workgroup)],
            private: vec![0; words(Space::Private) * lanes],
            local: local.collect(),
        };
        for &(slot, bits) in &form.literals {
            let start = slot.index as usize * lanes;
            if slot.is_wide() {
                frame.wide[start..start + lanes].fill(bits);
            } else {
                frame.narrow[start..start + lanes].fill(bits as u32);
            }
        }
        frame
    }
}

fn words_of(element: Element, length: u32) -> usize {
    (length as usize * element.size()).div_ceil(8)
}

/// Lane mask: a lane's word has all bits set or none.
struct Mask {
    lanes: Vec<u32>,
    active: usize,
}

/// Lanes that have left the current trip of a loop.
struct Exits {
    broken: Mask,
    continued: Mask,
}

/// Interpreter state for one block of lanes.
struct Worker<'a> {
    kernel: &'a Kernel,
    launch: &'a Launch<'a>,
    account: &'a Account<'a>,
    frame: &'a mut Frame,
    /// Number of lanes of this block; the last block of a grid may have fewer than `stride`.
    lanes: usize,
    /// Number of lanes of a full block, the distance between slots.
    stride: usize,
    /// Number of lanes of a workgroup.
    per_group: usize,
    first_group: u32,
    objects: SecondaryMap<MemId, Option<View>>,
    loops: Vec<Exits>,
    /// Loop trips not yet charged to the fuel, and the loop of the last one.
    trips: u64,
    last_loop: Span,
}

impl<'a> Worker<'a> {
    fn new(kernel: &'a Kernel, launch: &'a Launch<'a>, account: &'a Account<'a>, frame: &'a mut Frame) -> Self {
        let form = kernel.form();
        let program = &form.program;
        let mut objects = launch.storage.clone();
        let (mut workgroup, mut private) = (0, 0);
        let private_words = frame.private.len() / form.lanes;
        for (id, memory) in program.memories().iter() {
            let length = memory.length.unwrap_or(0);
            let words = words_of(memory.element, length);
            let view = |start: *mut u64, lane_stride: usize| {
                Some(View { start: start.cast(), length, element: memory.element, lane_stride, racing: false })
            };
            match memory.space {
                Space::Workgroup => {
                    objects[id] = view(frame.workgroup.as_mut_ptr().wrapping_add(workgroup), 0);
                    workgroup += words;
                }
                Space::Private => {
                    objects[id] = view(frame.private.as_mut_ptr().wrapping_add(private), private_words * 8);
                    private += words;
                }
                Space::Storage(_) | Space::Uniform => {}
            }
        }
        Worker {
            kernel,
            launch,
            account,
            frame,
            lanes: 0,
            stride: form.lanes,
            per_group: form.lanes / form.groups as usize,
            first_group: 0,
            objects,
            loops: Vec::new(),
            trips: 0,
            last_loop: Span::NONE,
        }
    }

    /// Executes a block of workgroups.
    fn block(&mut self, first_group: u32, groups: u32) -> Result<(), Stopped> {
        self.account.check(None)?;
        self.first_group = first_group;
        self.lanes = groups as usize * self.per_group;
        self.frame.workgroup.fill(0);
        self.frame.private.fill(0);
        let mut mask = self.new_mask(u32::MAX, self.lanes);
        let ended = self.sequence(0, &mut mask);
        self.free_mask(mask);
        // Charges the remaining loop trips.
        let paid = self.charge();
        for exits in std::mem::take(&mut self.loops) {
            self.free_mask(exits.broken);
            self.free_mask(exits.continued);
        }
        ended.and(paid)
    }

    // Limits.

    /// Charges the pending trips to the fuel.
    fn charge(&mut self) -> Result<(), Stopped> {
        self.account.charge(std::mem::take(&mut self.trips), self.last_loop)
    }

    fn consume_fuel(&mut self, trips: usize, span: Span) -> Result<(), Stopped> {
        self.trips += trips as u64;
        self.last_loop = span;
        // Small fuel limits are charged trip by trip, so that the report names the loop that exceeds them.
        if self.trips >= TRIPS_PER_CHECK || self.launch.limits.fuel < TRIPS_PER_CHECK {
            self.charge()?;
            self.account.check(Some(span))?;
        }
        Ok(())
    }

    // Slots.

    fn pointer(&mut self, slot: Slot) -> *mut u8 {
        let start = slot.index as usize * self.stride;
        // Slicing checks that the slot exists.
        if slot.is_wide() {
            self.frame.wide[start..start + self.stride].as_mut_ptr().cast()
        } else {
            self.frame.narrow[start..start + self.stride].as_mut_ptr().cast()
        }
    }

    fn get(&self, slot: Slot, lane: usize) -> u64 {
        let position = slot.index as usize * self.stride + lane;
        if slot.is_wide() { self.frame.wide[position] } else { u64::from(self.frame.narrow[position]) }
    }

    fn set(&mut self, slot: Slot, lane: usize, bits: u64) {
        let position = slot.index as usize * self.stride + lane;
        if slot.is_wide() {
            self.frame.wide[position] = bits;
        } else {
            self.frame.narrow[position] = bits as u32;
        }
    }

    /// Sets all lanes to the same bits. The slot of a uniform value holds the same bits in all lanes of a full block at
    /// all times, so one equal lane means that nothing changes.
    fn fill(&mut self, slot: Slot, bits: u64) {
        if slot.uniform && self.get(slot, 0) == bits {
            return;
        }
        let (start, stride) = (slot.index as usize * self.stride, self.stride);
        if slot.is_wide() {
            self.frame.wide[start..start + stride].fill(bits);
        } else {
            self.frame.narrow[start..start + stride].fill(bits as u32);
        }
    }

    fn narrow(&self, slot: Slot) -> &[u32] {
        let start = slot.index as usize * self.stride;
        &self.frame.narrow[start..start + self.lanes]
    }

    /// Copies the lanes of a mask, or all. Uniform values stay equal in all lanes.
    fn moves(&mut self, moves: &Moves, mask: Option<&Mask>) {
        let lanes = self.lanes;
        let mask = mask.filter(|mask| mask.active != lanes);
        for &(to, from) in moves {
            let (start, source) = (to.index as usize * self.stride, from.index as usize * self.stride);
            match mask {
                _ if to.uniform => self.fill(to, self.get(from, 0)),
                None if to.is_wide() => self.frame.wide.copy_within(source..source + lanes, start),
                None => self.frame.narrow.copy_within(source..source + lanes, start),
                Some(mask) if to.is_wide() => {
                    for lane in (0..lanes).filter(|&lane| mask.lanes[lane] != 0) {
                        self.frame.wide[start + lane] = self.frame.wide[source + lane];
                    }
                }
                Some(mask) => blend(&mut self.frame.narrow, start, source, &mask.lanes[..lanes]),
            }
        }
    }

    // Masks.

    fn new_mask(&mut self, lanes: u32, active: usize) -> Mask {
        let mut mask = self.frame.masks.pop().unwrap_or_default();
        mask.clear();
        mask.resize(self.lanes, lanes);
        Mask { lanes: mask, active }
    }

    fn free_mask(&mut self, mask: Mask) {
        self.frame.masks.push(mask.lanes);
    }

    /// Returns the number of lanes of a mask in which a condition holds.
    fn count(&self, mask: &Mask, condition: Slot) -> usize {
        self.narrow(condition).iter().zip(&mask.lanes).map(|(condition, mask)| condition & mask).sum::<u32>() as usize
    }

    /// Splits a mask by a condition that holds in `count` of its lanes: returns the lanes where it holds, and the
    /// others.
    fn split(&mut self, mask: &Mask, condition: Slot, count: usize) -> (Mask, Mask) {
        let (mut yes, mut no) = (self.new_mask(0, count), self.new_mask(0, mask.active - count));
        let condition = self.narrow(condition);
        for (((yes, no), mask), condition) in yes.lanes.iter_mut().zip(&mut no.lanes).zip(&mask.lanes).zip(condition) {
            let holds = condition.wrapping_neg();
            *yes = mask & holds;
            *no = mask & !holds;
        }
        (yes, no)
    }

    // Control flow.

    /// Executes a sequence for the lanes of a mask; on return the mask holds the lanes that reach its end.
    fn sequence(&mut self, sequence: Sequence, mask: &mut Mask) -> Result<(), Stopped> {
        let kernel = self.kernel;
        let steps = &kernel.form.sequences[sequence];
        for (step, function) in steps.iter().zip(&kernel.functions[sequence]) {
            if mask.active == 0 {
                return Ok(());
            }
            match step {
                Step::Compute { result, operands, .. } => {
                    let function = function.expect("every computation has a function");
                    self.compute(function, *result, operands);
                }
                Step::PerInvocation { op, result } => self.per_invocation(*op, *result),
                Step::PerGroup { op, result } => self.per_group(*op, *result),
                Step::Load { at, index, results } => self.load(*at, *index, results, mask),
                Step::Store { at, index, values } => self.store(*at, *index, values, mask),
                Step::Atomic { op, at, index, operand, result, span } => {
                    let failed = self.atomic(*op, *at, *index, *operand, *result, mask);
                    self.account.charge(failed, *span)?;
                }
                Step::CompareExchange { at, index, operands, results } => {
                    self.compare_exchange(*at, *index, *operands, *results, mask);
                }
                // Lanes run in lockstep. The fence makes accesses before the barrier visible to another workgroup that
                // sees a later atomic of this one.
                Step::Barrier => std::sync::atomic::fence(AcqRel),
                Step::Broadcast { operand, result } => {
                    let bits = if mask.lanes[0] != 0 { self.get(*operand, 0) } else { 0 };
                    self.fill(*result, bits);
                }
                Step::Subgroup { op, operands, results } => {
                    let size = self.subgroup_size();
                    for first in (0..self.lanes).step_by(size) {
                        // Skips subgroups without active lanes: control flow is uniform for the subgroup only.
                        if mask.lanes[first..].iter().take(size).any(|&lane| lane != 0) {
                            self.subgroup(*op, operands, results, mask, first);
                        }
                    }
                }
                Step::Print { format, operands } => self.print(format, operands, mask),
                Step::Branch { condition, then, otherwise } => self.branch(*condition, *then, *otherwise, mask)?,
                Step::Switch { selector, cases, arms } => self.switch(*selector, cases, arms, mask)?,
                Step::Region(nested) => self.sequence(*nested, mask)?,
                Step::Loop { entry, body, staged, span } => self.repeat(entry, *body, staged, *span, mask)?,
                Step::Yield(moves) => {
                    self.moves(moves, Some(mask));
                    return Ok(());
                }
                Step::Break(moves) => {
                    self.moves(moves, Some(mask));
                    join(&mut self.loops.last_mut().expect("there is a loop around a break").broken, mask);
                }
                Step::Continue(saved, moves) => {
                    self.moves(saved, Some(mask));
                    self.moves(moves, Some(mask));
                    join(&mut self.loops.last_mut().expect("there is a loop around a continue").continued, mask);
                }
                Step::Return => clear(mask),
                Step::Trap { code, span } => {
                    self.trap(*code, *span, mask);
                    clear(mask);
                }
            }
        }
        Ok(())
    }

    fn branch(&mut self, condition: Slot, then: Sequence, otherwise: Sequence, mask: &mut Mask) -> Result<(), Stopped> {
        if condition.uniform {
            let taken = if self.get(condition, 0) != 0 { then } else { otherwise };
            return self.sequence(taken, mask);
        }
        // Fast path: all lanes agree, as they mostly do at the bound of an array.
        let count = self.count(mask, condition);
        if count == mask.active {
            return self.sequence(then, mask);
        }
        if count == 0 {
            return self.sequence(otherwise, mask);
        }
        let (mut yes, mut no) = self.split(mask, condition, count);
        clear(mask);
        if yes.active > 0 {
            self.sequence(then, &mut yes)?;
        }
        if no.active > 0 {
            self.sequence(otherwise, &mut no)?;
        }
        join(mask, &mut yes);
        join(mask, &mut no);
        self.free_mask(yes);
        self.free_mask(no);
        Ok(())
    }

    fn switch(&mut self, selector: Slot, cases: &[u32], arms: &[Sequence], mask: &mut Mask) -> Result<(), Stopped> {
        let arm_of = |selector: u32| cases.iter().position(|&case| case == selector).unwrap_or(cases.len());
        if selector.uniform {
            return self.sequence(arms[arm_of(self.get(selector, 0) as u32)], mask);
        }
        let chosen: Vec<usize> = self.narrow(selector).iter().map(|&selector| arm_of(selector)).collect();
        let mut rejoined = self.new_mask(0, 0);
        for (arm, &sequence) in arms.iter().enumerate() {
            let mut taken = self.new_mask(0, 0);
            for (lane, &chosen) in chosen.iter().enumerate() {
                if chosen == arm && mask.lanes[lane] != 0 {
                    taken.lanes[lane] = u32::MAX;
                    taken.active += 1;
                }
            }
            if taken.active > 0 {
                self.sequence(sequence, &mut taken)?;
                join(&mut rejoined, &mut taken);
            }
            self.free_mask(taken);
        }
        std::mem::swap(mask, &mut rejoined);
        self.free_mask(rejoined);
        Ok(())
    }

    fn repeat(
        &mut self,
        entry: &Moves,
        body: Sequence,
        staged: &Moves,
        span: Span,
        mask: &mut Mask,
    ) -> Result<(), Stopped> {
        // Lanes that do not enter the loop never read its parameters, so no mask is needed.
        self.moves(entry, None);
        let (broken, continued) = (self.new_mask(0, 0), self.new_mask(0, 0));
        self.loops.push(Exits { broken, continued });
        let mut live = self.new_mask(0, 0);
        join(&mut live, mask);
        while live.active > 0 {
            self.consume_fuel(live.active, span)?;
            self.sequence(body, &mut live)?;
            let exits = self.loops.last_mut().expect("pushed above");
            // The mask of the finished trip is empty, and collects the lanes that continue in the next one.
            std::mem::swap(&mut live, &mut exits.continued);
            self.moves(staged, None);
        }
        let mut exits = self.loops.pop().expect("pushed above");
        std::mem::swap(mask, &mut exits.broken);
        self.free_mask(exits.broken);
        self.free_mask(exits.continued);
        self.free_mask(live);
        Ok(())
    }

    // Steps.

    fn compute(&mut self, function: Function, result: Slot, operands: &[Slot]) {
        // For a uniform result, lane 0 is computed and broadcast.
        let lanes = if result.uniform { 1 } else { self.lanes };
        let before = result.uniform.then(|| self.get(result, 0));
        match function {
            Function::Lanes(function) => {
                let mut pointers = [std::ptr::null::<u8>(); MAX_OPERANDS];
                for (pointer, &operand) in pointers.iter_mut().zip(operands) {
                    *pointer = self.pointer(operand);
                }
                let target = self.pointer(result);
                // SAFETY: slots have room for all lanes, an operation's result has another slot than its operands, and
                // the function was chosen for this processor.
                unsafe { function(target, &pointers, lanes) };
            }
            Function::Evaluator(evaluate) => {
                let mut bits = [0; MAX_OPERANDS];
                for lane in 0..lanes {
                    for (bits, &operand) in bits.iter_mut().zip(operands) {
                        *bits = self.get(operand, lane);
                    }
                    self.set(result, lane, evaluate(&bits[..operands.len()]));
                }
            }
        }
        if let Some(before) = before {
            // Restores lane 0 so that `fill` sees equal lanes, and updates all of them if the value changed.
            let computed = self.get(result, 0);
            self.set(result, 0, before);
            self.fill(result, computed);
        }
    }

    fn per_invocation(&mut self, op: PerInvocation, result: Slot) {
        let size = self.kernel.form.program.workgroup_size();
        let (per_group, subgroup) = (self.per_group as u32, self.kernel.form.subgroup_size);
        let groups = self.launch.groups;
        match op {
            PerInvocation::GlobalIndex => {
                let (start, slot) = (self.first_group * per_group, result.index as usize * self.stride);
                let lanes = &mut self.frame.narrow[slot..slot + self.lanes];
                lanes.iter_mut().zip(start..).for_each(|(lane, index)| *lane = index);
            }
            PerInvocation::LocalIndex => self.each(result, |lane, _| lane % per_group),
            PerInvocation::LocalId(axis) => self.each(result, |_, local| local[axis as usize]),
            PerInvocation::GlobalId(axis) => {
                let axis = axis as usize;
                self.each_group(result, |group, local| group_id(groups, group)[axis] * size[axis] + local[axis]);
            }
            PerInvocation::SubgroupId => self.each(result, |lane, _| lane % per_group / subgroup),
            PerInvocation::SubgroupLane => self.each(result, |lane, _| lane % per_group % subgroup),
        }
    }

    fn per_group(&mut self, op: PerGroup, result: Slot) {
        let (groups, form) = (self.launch.groups, &self.kernel.form);
        let same = match op {
            PerGroup::GroupId(axis) => {
                self.each_group(result, |group, _| group_id(groups, group)[axis as usize]);
                return;
            }
            PerGroup::GroupIndex => {
                self.each_group(result, |group, _| group);
                return;
            }
            PerGroup::GroupCount(axis) => groups[axis as usize],
            PerGroup::GroupSize(axis) => form.program.workgroup_size()[axis as usize],
            PerGroup::SubgroupSize => form.subgroup_size,
            PerGroup::Length(memory) => self.objects[memory].map_or(1, |view| view.length),
        };
        self.fill(result, u64::from(same));
    }

    /// Computes a u32 for each lane from the lane number in the block and the local id.
    fn each(&mut self, result: Slot, value: impl Fn(u32, [u32; 3]) -> u32) {
        let start = result.index as usize * self.stride;
        let result = &mut self.frame.narrow[start..start + self.lanes];
        for (lane, (result, &local)) in result.iter_mut().zip(&self.frame.local).enumerate() {
            *result = value(lane as u32, local);
        }
    }

    /// Computes a u32 for each lane from the workgroup's linear index and the local id.
    fn each_group(&mut self, result: Slot, value: impl Fn(u32, [u32; 3]) -> u32) {
        let start = result.index as usize * self.stride;
        let result = &mut self.frame.narrow[start..start + self.lanes];
        for (group, lanes) in result.chunks_mut(self.per_group).enumerate() {
            let group = self.first_group + group as u32;
            for (result, &local) in lanes.iter_mut().zip(&self.frame.local) {
                *result = value(group, local);
            }
        }
    }

    fn load(&mut self, at: MemOperand, index: Option<(Slot, Stride)>, results: &[Slot], mask: &Mask) {
        let Some((index, stride)) = index else {
            self.fill(results[0], self.launch.scalars[at.memory]);
            return;
        };
        let (view, atomic) = (self.view(at), at.atomic);
        let contiguous = stride == Stride::Contiguous || (stride == Stride::Any && self.is_contiguous(index));
        for (offset, &result) in results.iter().enumerate() {
            let offset = offset as u64;
            let first = self.get(index, 0) + offset;
            if stride == Stride::Uniform && view.lane_stride == 0 {
                self.fill(result, if atomic { view.load_atomic(first) } else { view.load(0, first) });
            } else if atomic {
                for lane in (0..self.lanes).filter(|&lane| mask.lanes[lane] != 0) {
                    let bits = view.load_atomic(self.get(index, lane) + offset);
                    self.set(result, lane, bits);
                }
            } else if contiguous && view.lane_stride == 0 && view.holds(first, self.lanes) && !result.is_wide() {
                // Inactive lanes load too: the accesses are in bounds, and their results unused.
                let target = self.pointer(result).cast::<u32>();
                // SAFETY: the elements are in bounds, and so are the lanes.
                unsafe { view.load_run(first as usize, target, self.lanes) };
            } else {
                let target = self.pointer(result);
                // SAFETY: the result has its own slot, with all lanes.
                unsafe { view.gather(self.narrow(index), offset, &mask.lanes, target) };
            }
        }
    }

    /// Returns whether the lanes of an index are consecutive.
    fn is_contiguous(&self, index: Slot) -> bool {
        let lanes = self.narrow(index);
        let first = lanes[0];
        // Comparing the last lane first rejects nearly all other indices at once.
        lanes[lanes.len() - 1].wrapping_sub(first) as usize == lanes.len() - 1
            && lanes.iter().zip(0u32..).fold(true, |run, (&lane, k)| run & (lane.wrapping_sub(first) == k))
    }

    fn store(&mut self, at: MemOperand, index: (Slot, Stride), values: &[Slot], mask: &Mask) {
        let (index, stride) = index;
        let (view, atomic) = (self.view(at), at.atomic);
        let all = mask.active == self.lanes;
        if let (&[value], true, false, 0) = (values, all, atomic, view.lane_stride)
            && !value.is_wide()
            && (stride == Stride::Contiguous || (stride == Stride::Any && self.is_contiguous(index)))
            && view.holds(self.get(index, 0), self.lanes)
        {
            let first = self.get(index, 0) as usize;
            let source = self.pointer(value).cast::<u32>();
            // SAFETY: the elements are in bounds, and so are the lanes.
            unsafe { view.store_run(first, source, self.lanes) };
            return;
        }
        if let (&[value], false) = (values, atomic) {
            let source = self.pointer(value);
            // SAFETY: the value has a slot with all lanes.
            unsafe { view.scatter(self.narrow(index), &mask.lanes, source) };
            return;
        }
        // Lane by lane, so that of overlapping stores the last lane's takes effect, as on the oracle.
        for lane in 0..self.lanes {
            if mask.lanes[lane] != 0 {
                let at = self.get(index, lane);
                for (offset, &value) in values.iter().enumerate() {
                    let bits = self.get(value, lane);
                    if atomic {
                        view.replace(at + offset as u64, |_| Some(bits));
                    } else {
                        view.store(lane, at + offset as u64, bits);
                    }
                }
            }
        }
    }

    /// Returns the number of failed compare-exchanges.
    fn atomic(&mut self, op: Atomic, at: MemOperand, index: Slot, operand: Slot, result: Slot, mask: &Mask) -> u64 {
        let view = self.view(at);
        let shared = self.kernel.form.program.memory(at.memory).space != Space::Workgroup;
        let update = update_function(op, operand.ty, shared);
        let (given, taken) = (self.pointer(operand), self.pointer(result));
        // SAFETY: slots have all lanes, a result has another slot than the operands, and the function was selected for
        // their type.
        unsafe { update(&view, self.narrow(index), &mask.lanes, given, taken) }
    }

    fn compare_exchange(
        &mut self,
        at: MemOperand,
        index: Slot,
        [expected, new]: [Slot; 2],
        [old, replaced]: [Slot; 2],
        mask: &Mask,
    ) {
        let view = self.view(at);
        for lane in (0..self.lanes).filter(|&lane| mask.lanes[lane] != 0) {
            let (at, expected, new) = (self.get(index, lane), self.get(expected, lane), self.get(new, lane));
            let inside = at < u64::from(view.length);
            let found = view.replace(at, |old| (old == expected).then_some(new));
            self.set(old, lane, found);
            self.set(replaced, lane, u64::from(inside && found == expected));
        }
    }

    fn view(&self, at: MemOperand) -> View {
        self.objects[at.memory].expect("an indexed object has memory").with_element(at.element)
    }

    fn global_index(&self, lane: usize) -> u32 {
        self.first_group * self.per_group as u32 + lane as u32
    }

    fn print(&mut self, format: &str, operands: &[Slot], mask: &Mask) {
        for lane in (0..self.lanes).filter(|&lane| mask.lanes[lane] != 0) {
            let literals = operands.iter().map(|&slot| Literal { ty: slot.ty, bits: self.get(slot, lane) });
            self.account.print(self.global_index(lane), format, literals);
        }
    }

    fn trap(&mut self, code: Slot, span: Span, mask: &Mask) {
        let Some(lane) = mask.lanes.iter().position(|&lane| lane != 0) else { return };
        self.account.trap(self.global_index(lane), self.get(code, lane) as u32, span, mask.active as u64);
    }

    // Exchange between lanes. The block is one workgroup. Lanes of the subgroup that are not active have ended: control flow is uniform for
    // the subgroup.

    fn subgroup(&mut self, op: Subgroup, operands: &[Slot], results: &[Slot], mask: &Mask, first: usize) {
        let present = |lane: usize| first + lane < self.lanes && mask.lanes[first + lane] != 0;
        let size = self.subgroup_size();
        let given: SmallVec<[Option<u64>; subgroup::MAX_SUBGROUP_SIZE]> =
            (0..size).map(|lane| present(lane).then(|| self.get(operands[0], first + lane))).collect();
        let second = std::array::from_fn(|lane| match operands.get(1) {
            Some(&operand) if lane < size && present(lane) => self.get(operand, first + lane),
            _ => 0,
        });
        let gives = subgroup::exchange(op, operands[0].ty, &given, &second);
        for lane in (0..size).filter(|&lane| given[lane].is_some()) {
            for (position, &result) in results.iter().enumerate() {
                self.set(result, first + lane, gives.get(position).map_or(0, |lanes| lanes[lane]));
            }
        }
    }

    fn subgroup_size(&self) -> usize {
        self.kernel.form.subgroup_size as usize
    }
}

/// Workgroup id from the linear index in the grid.
fn group_id(groups: [u32; 3], index: u32) -> [u32; 3] {
    let [x, y, _] = groups.map(|count| count.max(1));
    [index % x, index / x % y, index / x / y]
}

/// Copies the words at `source…` to `start…` where the mask is set.
fn blend(words: &mut [u32], start: usize, source: usize, mask: &[u32]) {
    let lanes = mask.len();
    let Ok([to, from]) = words.get_disjoint_mut([start..start + lanes, source..source + lanes]) else {
        // Source and target are the same slot.
        return;
    };
    for ((to, from), mask) in to.iter_mut().zip(from).zip(mask) {
        *to = (*from & mask) | (*to & !mask);
    }
}

/// Moves the lanes of `from` to `to`.
fn join(to: &mut Mask, from: &mut Mask) {
    if from.active == 0 {
        return;
    }
    for (to, from) in to.lanes.iter_mut().zip(&mut from.lanes) {
        *to |= std::mem::take(from);
    }
    to.active += std::mem::take(&mut from.active);
}

fn clear(mask: &mut Mask) {
    mask.lanes.fill(0);
    mask.active = 0;
}
