//! Lockstep execution of the invocations of a workgroup.

use std::time::{Duration, Instant};

use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::ir::entity::{Entity, SecondaryMap};
use vyre_foundation::ir::ops::{
    Atomic, Barrier, Combined, Combiner, Control, Eval, Exchange, MAX_OPERANDS, Op, PerGroup, PerInvocation,
    ShuffleMode, Subgroup, Terminator,
};
use vyre_foundation::ir::{Axis, BlockId, Inst, InstId, Literal, MemOperand, Program, Span, ValueId};
use vyre_foundation::launch::{Outcome, Report, TraceLine};

use crate::memory::{Memory, zeros};
use crate::sanitizer::{Action, Sanitizer};
use crate::{Error, Options};

/// Active invocations of the workgroup, by `local_index`, ascending.
type Lanes = Vec<usize>;

/// Early end of an execution.
enum Stop {
    OutOfFuel(InstId),
    /// The deadline passed in this loop, or between two workgroups (`None`).
    DeadlinePassed(Option<InstId>),
}

/// Loop iterations between two reads of the clock.
const TRIPS_PER_CLOCK: u64 = 1 << 16;

pub(crate) struct Machine<'p> {
    program: &'p Program,
    groups: [u32; 3],
    memory: Memory<'p>,
    options: &'p Options,
    deadline: Option<(Instant, Duration)>,

    /// Evaluator of each pure instruction.
    evaluators: SecondaryMap<InstId, Option<Eval>>,
    /// Number of invocations of a workgroup.
    width: usize,
    /// Bits of each value, `width` of them.
    registers: Vec<u64>,
    group: [u32; 3],
    /// Stack of the loops being executed.
    loops: Vec<Exits>,

    fuel: u64,
    clock_fuel: u64,
    instructions: u64,
    trap: Option<Outcome>,
    trace: Vec<TraceLine>,
    dropped_lines: u64,
    sanitizer: Option<Sanitizer<'p>>,
}

/// Invocations that have left the current iteration of a loop.
struct Exits {
    inst: InstId,
    broken: Lanes,
    continued: Lanes,
}

impl<'p> Machine<'p> {
    pub(crate) fn new(
        program: &'p Program,
        groups: [u32; 3],
        memory: Memory<'p>,
        options: &'p Options,
        sanitize: bool,
    ) -> Result<Self, Error> {
        let width = program.workgroup_size().iter().product::<u32>() as usize;
        let mut registers = zeros(program.values().len().saturating_mul(width))?;
        for value in program.values().keys() {
            if let Some(literal) = program.known(value) {
                registers[value.index() * width..][..width].fill(literal.bits);
            }
        }
        let mut evaluators = SecondaryMap::with_capacity(program.insts().len(), None);
        program.walk(|id, _| evaluators[id] = evaluator(program, program.inst(id)));
        Ok(Machine {
            program,
            groups,
            memory,
            options,
            deadline: options.limits.deadline.map(|limit| (Instant::now(), limit)),
            evaluators,
            width,
            registers,
            group: [0; 3],
            loops: Vec::new(),
            fuel: options.limits.fuel,
            clock_fuel: options.limits.fuel,
            instructions: 0,
            trap: None,
            trace: Vec::new(),
            dropped_lines: 0,
            sanitizer: sanitize.then(|| Sanitizer::new(program)),
        })
    }

    pub(crate) fn run(mut self) -> (Report, Vec<Diagnostic>) {
        let begun = Instant::now();
        let [groups_x, groups_y, groups_z] = self.groups;
        let mut stopped = None;
        'grid: for z in 0..groups_z {
            for y in 0..groups_y {
                for x in 0..groups_x {
                    self.group = [x, y, z];
                    if let Err(stop) = self.workgroup() {
                        stopped = Some(stop);
                        break 'grid;
                    }
                }
            }
        }
        let span = |id: InstId| self.program.inst(id).span;
        let outcome = match stopped {
            Some(Stop::OutOfFuel(id)) => Outcome::OutOfFuel { span: span(id) },
            Some(Stop::DeadlinePassed(id)) => Outcome::DeadlinePassed { span: id.map_or(Span::NONE, span) },
            None => self.trap.unwrap_or(Outcome::Completed),
        };
        // Stable sort: lines of one invocation are in order.
        self.trace.sort_by_key(|line| line.invocation);
        let (trace, dropped_lines, instructions) = (self.trace, self.dropped_lines, Some(self.instructions));
        let report = Report { outcome, trace, dropped_lines, instructions, ..Report::completed(begun.elapsed()) };
        (report, self.sanitizer.map(Sanitizer::findings).unwrap_or_default())
    }

    // Registers.

    fn get(&self, value: ValueId, lane: usize) -> u64 {
        self.registers[value.index() * self.width + lane]
    }

    fn set(&mut self, value: ValueId, lane: usize, bits: u64) {
        self.registers[value.index() * self.width + lane] = bits;
    }

    /// Assigns `from` to `to` in parallel: a loop may permute its parameters.
    fn assign(&mut self, to: &[ValueId], from: &[ValueId], lanes: &[usize]) {
        let mut given = Vec::with_capacity(from.len());
        for &lane in lanes {
            given.clear();
            given.extend(from.iter().map(|&value| self.get(value, lane)));
            for (&value, &bits) in to.iter().zip(&given) {
                self.set(value, lane, bits);
            }
        }
    }

    // Control flow.

    fn workgroup(&mut self) -> Result<(), Stop> {
        self.check_deadline(None)?;
        self.memory.begin_workgroup();
        let group = self.group_index();
        if let Some(sanitizer) = &mut self.sanitizer {
            sanitizer.begin_workgroup(group);
        }
        self.block(self.program.body(), None, (0..self.width).collect()).map(|_| ())
    }

    /// Executes a block for the active invocations. Returns those that yield to `owner`.
    fn block(&mut self, block: BlockId, owner: Option<InstId>, mut lanes: Lanes) -> Result<Lanes, Stop> {
        let program = self.program;
        for &id in &program.block(block).insts {
            if lanes.is_empty() {
                break;
            }
            let inst = program.inst(id);
            self.instructions += lanes.len() as u64;
            match &inst.op {
                Op::Pure(_) => {
                    let evaluate = self.evaluators[id].expect("a function of its operands has an evaluator");
                    self.pure(inst, evaluate, &lanes);
                }
                Op::PerInvocation(op) => self.set_each(inst, &lanes, |machine, lane| machine.per_invocation(*op, lane)),
                Op::PerGroup(op) => {
                    let value = self.per_group(*op);
                    self.set_each(inst, &lanes, |_, _| value);
                }
                Op::Load(at) => self.load(id, *at, &lanes),
                Op::Store(at) => self.store(id, *at, &lanes),
                Op::Atomic(op, at) => self.atomic(id, *op, *at, &lanes),
                Op::CompareExchange(at) => self.compare_exchange(id, *at, &lanes),
                // All invocations have reached the barrier, and all earlier accesses are complete.
                Op::Barrier(barrier) => {
                    self.report_barrier(*barrier == Barrier::Workgroup, *barrier == Barrier::Storage);
                }
                Op::Broadcast => {
                    self.report_barrier(true, true);
                    let bits = if lanes[0] == 0 { self.get(inst.operands[0], 0) } else { 0 };
                    for &lane in &lanes {
                        self.set(inst.results[0], lane, bits);
                    }
                }
                Op::Subgroup(op) => {
                    self.report_barrier(false, false);
                    let size = self.options.subgroup_size as usize;
                    for subgroup in lanes.chunk_by(|a, b| a / size == b / size) {
                        self.subgroup(id, *op, subgroup, size);
                    }
                }
                Op::Print(text) => lanes.iter().for_each(|&lane| self.print(text, &inst.operands, lane)),
                Op::Control(Control::If) => {
                    let condition = inst.operands[0];
                    let (then, otherwise) = lanes.iter().partition(|&&lane| self.get(condition, lane) != 0);
                    lanes = self.arms(id, vec![then, otherwise])?;
                }
                Op::Control(Control::Switch(cases)) => {
                    let mut arms = vec![Lanes::new(); cases.len() + 1];
                    for &lane in &lanes {
                        let selector = self.get(inst.operands[0], lane) as u32;
                        let arm = cases.iter().position(|&case| case == selector).unwrap_or(cases.len());
                        arms[arm].push(lane);
                    }
                    lanes = self.arms(id, arms)?;
                }
                Op::Control(Control::Region(_)) => lanes = self.arms(id, vec![lanes])?,
                Op::Control(Control::Loop) => lanes = self.loop_inst(id, lanes)?,
                Op::Terminator(Terminator::Yield) => {
                    let owner = owner.expect("the body does not yield");
                    self.assign(&program.inst(owner).results, &inst.operands, &lanes);
                    return Ok(lanes);
                }
                Op::Terminator(Terminator::Break) => {
                    let target = self.loops.last().expect("a break is in a loop").inst;
                    self.assign(&program.inst(target).results, &inst.operands, &lanes);
                    self.loops.last_mut().expect("as above").broken.append(&mut lanes);
                }
                Op::Terminator(Terminator::Continue) => {
                    let target = self.loops.last().expect("a continue is in a loop").inst;
                    let params = &program.block(program.inst(target).blocks[0]).params;
                    self.assign(params, &inst.operands, &lanes);
                    self.loops.last_mut().expect("as above").continued.append(&mut lanes);
                }
                Op::Terminator(Terminator::Return) => lanes.clear(),
                Op::Terminator(Terminator::Trap) => {
                    for &lane in &lanes {
                        self.trap(self.get(inst.operands[0], lane) as u32, lane, inst.span);
                    }
                    lanes.clear();
                }
            }
        }
        Ok(Lanes::new())
    }

    /// Executes each nested block for its invocations, and returns those that reconverge.
    fn arms(&mut self, id: InstId, arms: Vec<Lanes>) -> Result<Lanes, Stop> {
        let mut joined = Lanes::new();
        for (&block, lanes) in self.program.inst(id).blocks.iter().zip(arms) {
            if !lanes.is_empty() {
                joined.append(&mut self.block(block, Some(id), lanes)?);
            }
        }
        joined.sort_unstable();
        Ok(joined)
    }

    fn loop_inst(&mut self, id: InstId, mut lanes: Lanes) -> Result<Lanes, Stop> {
        let program = self.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        self.assign(&program.block(body).params, &inst.operands, &lanes);
        self.loops.push(Exits { inst: id, broken: Lanes::new(), continued: Lanes::new() });
        while !lanes.is_empty() {
            self.consume_fuel(id, lanes.len() as u64)?;
            self.block(body, None, lanes)?;
            lanes = std::mem::take(&mut self.loops.last_mut().expect("pushed above").continued);
            lanes.sort_unstable();
        }
        let mut broken = self.loops.pop().expect("pushed above").broken;
        broken.sort_unstable();
        Ok(broken)
    }

    /// Consumes fuel for loop iterations.
    fn consume_fuel(&mut self, id: InstId, trips: u64) -> Result<(), Stop> {
        self.fuel = self.fuel.checked_sub(trips).ok_or(Stop::OutOfFuel(id))?;
        if self.clock_fuel - self.fuel >= TRIPS_PER_CLOCK {
            self.clock_fuel = self.fuel;
            self.check_deadline(Some(id))?;
        }
        Ok(())
    }

    fn check_deadline(&self, place: Option<InstId>) -> Result<(), Stop> {
        match self.deadline {
            Some((start, limit)) if start.elapsed() > limit => Err(Stop::DeadlinePassed(place)),
            _ => Ok(()),
        }
    }

    fn trap(&mut self, code: u32, lane: usize, span: Span) {
        let invocation = self.global_index(lane);
        let (earlier, count) = match self.trap {
            Some(Outcome::Trapped { invocation, count, .. }) => (Some(invocation), count),
            _ => (None, 0),
        };
        if earlier.is_none_or(|earlier| invocation < earlier) {
            self.trap = Some(Outcome::Trapped { code, invocation, span, count });
        }
        if let Some(Outcome::Trapped { count: total, .. }) = &mut self.trap {
            *total = count + 1;
        }
    }

    // Instructions.

    fn pure(&mut self, inst: &Inst, evaluate: Eval, lanes: &[usize]) {
        let mut operands = [0; MAX_OPERANDS];
        let count = inst.operands.len();
        for &lane in lanes {
            for (bits, &operand) in operands.iter_mut().zip(&inst.operands) {
                *bits = self.get(operand, lane);
            }
            self.set(inst.results[0], lane, evaluate(&operands[..count]));
        }
    }

    /// Sets the result of an instruction for each active lane.
    fn set_each(&mut self, inst: &Inst, lanes: &[usize], value: impl Fn(&Self, usize) -> u32) {
        for &lane in lanes {
            self.set(inst.results[0], lane, u64::from(value(self, lane)));
        }
    }

    fn load(&mut self, id: InstId, at: MemOperand, lanes: &[usize]) {
        let inst = self.program.inst(id);
        for &lane in lanes {
            let index = inst.operands.first().map_or(0, |&index| self.get(index, lane));
            for (offset, &result) in inst.results.iter().enumerate() {
                let index = index + offset as u64;
                self.report_access(id, at, lane, index, Action::Read);
                self.set(result, lane, self.memory.load(at, lane, index));
            }
        }
    }

    fn store(&mut self, id: InstId, at: MemOperand, lanes: &[usize]) {
        let inst = self.program.inst(id);
        for &lane in lanes {
            let index = self.get(inst.operands[0], lane);
            for (offset, &value) in inst.operands[1..].iter().enumerate() {
                let (index, bits) = (index + offset as u64, self.get(value, lane));
                self.report_access(id, at, lane, index, Action::Write(bits));
                self.memory.store(at, lane, index, bits);
            }
        }
    }

    /// Reports an access of one element to the sanitizer, if it is enabled.
    fn report_access(&mut self, id: InstId, at: MemOperand, lane: usize, index: u64, action: Action) {
        if self.sanitizer.is_some() {
            let (invocation, length) = (self.global_index(lane), self.memory.elements(at.memory, at.element));
            if let Some(sanitizer) = &mut self.sanitizer {
                sanitizer.access(id, at, (lane, invocation), index, length, action);
            }
        }
    }

    fn atomic(&mut self, id: InstId, op: Atomic, at: MemOperand, lanes: &[usize]) {
        let inst = self.program.inst(id);
        let ty = self.program.ty(inst.operands[1]);
        let combine = op.function().map(|op| op.info().evaluator(ty, ty).expect("validated for this type"));
        for &lane in lanes {
            let (index, operand) = (self.get(inst.operands[0], lane), self.get(inst.operands[1], lane));
            self.report_access(id, at, lane, index, Action::Write(0));
            let old = self.memory.load(at, lane, index);
            let new = combine.map_or(operand, |combine| combine(&[old, operand]));
            self.memory.store(at, lane, index, new);
            self.set(inst.results[0], lane, old);
        }
    }

    fn compare_exchange(&mut self, id: InstId, at: MemOperand, lanes: &[usize]) {
        let inst = self.program.inst(id);
        for &lane in lanes {
            let index = self.get(inst.operands[0], lane);
            let inside = index < self.memory.elements(at.memory, at.element);
            let old = self.memory.load(at, lane, index);
            let equal = inside && old == self.get(inst.operands[1], lane);
            self.report_access(id, at, lane, index, Action::Write(old));
            if equal {
                self.memory.store(at, lane, index, self.get(inst.operands[2], lane));
            }
            self.set(inst.results[0], lane, old);
            self.set(inst.results[1], lane, u64::from(equal));
        }
    }

    fn per_invocation(&self, op: PerInvocation, lane: usize) -> u32 {
        let size = self.program.workgroup_size();
        let local = |axis: Axis| match axis {
            Axis::X => lane as u32 % size[0],
            Axis::Y => lane as u32 / size[0] % size[1],
            Axis::Z => lane as u32 / size[0] / size[1],
        };
        match op {
            PerInvocation::GlobalIndex => self.global_index(lane),
            PerInvocation::GlobalId(axis) => {
                self.group[axis as usize].wrapping_mul(size[axis as usize]).wrapping_add(local(axis))
            }
            PerInvocation::LocalId(axis) => local(axis),
            PerInvocation::LocalIndex => lane as u32,
            PerInvocation::SubgroupId => lane as u32 / self.options.subgroup_size,
            PerInvocation::SubgroupLane => lane as u32 % self.options.subgroup_size,
        }
    }

    fn per_group(&self, op: PerGroup) -> u32 {
        match op {
            PerGroup::GroupId(axis) => self.group[axis as usize],
            PerGroup::GroupIndex => self.group_index(),
            PerGroup::GroupCount(axis) => self.groups[axis as usize],
            PerGroup::GroupSize(axis) => self.program.workgroup_size()[axis as usize],
            PerGroup::SubgroupSize => self.options.subgroup_size,
            PerGroup::Length(memory) => self.memory.length(memory),
        }
    }

    fn group_index(&self) -> u32 {
        let [x, y, z] = self.group;
        (z * self.groups[1] + y) * self.groups[0] + x
    }

    fn global_index(&self, lane: usize) -> u32 {
        self.group_index() * self.width as u32 + lane as u32
    }

    fn print(&mut self, text: &str, operands: &[ValueId], lane: usize) {
        if self.trace.len() == self.options.limits.trace_capacity {
            self.dropped_lines += 1;
            return;
        }
        let literals =
            operands.iter().map(|&value| Literal { ty: self.program.ty(value), bits: self.get(value, lane) });
        self.trace.push(TraceLine::new(self.global_index(lane), text, literals));
    }

    // Collective operations. Lanes of the workgroup or subgroup that are not in `lanes` have ended, because control
    // flow is uniform in the scope of the operation.

    fn report_barrier(&mut self, workgroup: bool, storage: bool) {
        if let Some(sanitizer) = &mut self.sanitizer {
            sanitizer.barrier(workgroup, storage);
        }
    }

    fn subgroup(&mut self, id: InstId, op: Subgroup, lanes: &[usize], size: usize) {
        let program = self.program;
        let inst = program.inst(id);
        let operand = inst.operands[0];
        let ty = self.program.ty(operand);
        let first = lanes[0] / size * size;
        // Value of each lane of the subgroup; `None` for inactive lanes.
        let mut given = vec![None; size];
        for &lane in lanes {
            given[lane - first] = Some(self.get(operand, lane));
        }
        let filled = |identity: u64| -> Vec<u64> { given.iter().map(|bits| bits.unwrap_or(identity)).collect() };
        let results: Vec<u64> = match op.exchange() {
            Exchange::Ballot => {
                let mut words = [0u64; 4];
                for (lane, bits) in given.iter().enumerate() {
                    words[lane / 32] |= bits.unwrap_or(0) << (lane % 32);
                }
                for &lane in lanes {
                    for (&result, word) in inst.results.iter().zip(words) {
                        self.set(result, lane, word);
                    }
                }
                return;
            }
            Exchange::Shuffle(mode) => {
                // Source lane of each lane; `None` if it is inactive or the source does not exist.
                let sources: Vec<Option<u32>> = given
                    .iter()
                    .enumerate()
                    .map(|(lane, present)| {
                        let from = present.map(|_| self.get(inst.operands[1], first + lane) as u32)?;
                        mode.source(lane as u32, from)
                    })
                    .collect();
                for &lane in lanes {
                    let (source, invocation) = (sources[lane - first], self.global_index(lane));
                    let absent = source.and_then(|source| given.get(source as usize).copied().flatten()).is_none();
                    // For `shuffle_up` and `shuffle_down`, missing sources at the ends are expected.
                    let is_expected = matches!(mode, ShuffleMode::Up | ShuffleMode::Down);
                    if let (true, Some(source), Some(sanitizer)) = (absent && !is_expected, source, &mut self.sanitizer)
                    {
                        sanitizer.absent_lane(id, invocation, u64::from(source));
                    }
                }
                let source = |lane: usize| sources[lane].map_or(usize::MAX, |source| source as usize);
                let taken = |lane: usize| given.get(source(lane)).copied().flatten().unwrap_or(0);
                (0..size).map(|lane| if given[lane].is_some() { taken(lane) } else { 0 }).collect()
            }
            Exchange::First => vec![self.get(operand, lanes[0]); size],
            Exchange::Compact => {
                let kept = lanes.iter().filter(|&&lane| self.get(inst.operands[1], lane) != 0);
                let mut front: Vec<u64> = kept.map(|&lane| self.get(operand, lane)).collect();
                let count = front.len() as u64;
                lanes.iter().for_each(|&lane| self.set(inst.results[1], lane, count));
                front.resize(size, 0);
                front
            }
            Exchange::Combine(op, Combined::All) => {
                let combined = match op {
                    Combiner::Add | Combiner::Mul => tree(op.evaluator(ty), filled(op.identity(ty))),
                    Combiner::Min | Combiner::Max | Combiner::And | Combiner::Or | Combiner::Xor => {
                        fold(op.evaluator(ty), &given)
                    }
                };
                vec![combined; size]
            }
            Exchange::Combine(op, Combined::Inclusive) => scan(op.evaluator(ty), filled(op.identity(ty))),
            Exchange::Combine(op, Combined::Exclusive) => {
                let first = if op == Combiner::Add { 0 } else { op.identity(ty) };
                shifted(first, scan(op.evaluator(ty), filled(op.identity(ty))))
            }
        };
        for &lane in lanes {
            self.set(inst.results[0], lane, results[lane - first]);
        }
    }
}

/// Evaluator of an instruction, if it is pure.
fn evaluator(program: &Program, inst: &Inst) -> Option<Eval> {
    let result = program.ty(*inst.results.first()?);
    inst.op.info().evaluator(program.class(inst), result)
}

/// Tree reduction that halves the subgroup in each step.
fn tree(combine: Eval, mut lanes: Vec<u64>) -> u64 {
    let mut half = lanes.len() / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(&[lanes[lane], lanes[lane + half]]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Sequential reduction, for operations whose result does not depend on the order.
fn fold(combine: Eval, given: &[Option<u64>]) -> u64 {
    let present = given.iter().copied().flatten();
    present.reduce(|a, b| combine(&[a, b])).expect("a subgroup operation has an active lane")
}

/// Inclusive scan in doubling steps.
fn scan(combine: Eval, mut lanes: Vec<u64>) -> Vec<u64> {
    let mut distance = 1;
    while distance < lanes.len() {
        for lane in (distance..lanes.len()).rev() {
            lanes[lane] = combine(&[lanes[lane - distance], lanes[lane]]);
        }
        distance *= 2;
    }
    lanes
}

/// Shifts by one lane: each lane gets the value of the previous lane, and lane 0 `first`.
fn shifted(first: u64, lanes: Vec<u64>) -> Vec<u64> {
    std::iter::once(first).chain(lanes).collect()
}
