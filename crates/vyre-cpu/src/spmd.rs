//! Lowering to SPMD form: steps over lanes.
//!
//! A *block* of lanes holds the invocations of one workgroup, or of several where these [may run in lockstep](may_merge_workgroups).
//! Every value gets a [`Slot`]: an array with one element for each lane, shared with other values whose lives do not overlap.
//! Uniform values are the same in all lanes, active or not, so that lane 0 always speaks for all.
//!
//! Computation is not masked: what inactive lanes compute is never looked at. Masks matter where lanes come together again
//! (results of `if` and `loop`), where lanes leave, and for effects. The [`Step`]s say what is copied where.

use std::sync::Arc;

use smallvec::SmallVec;
use vyre_foundation::Validated;
use vyre_foundation::analysis::{Scope, Uniformity, exits_of, may_merge_workgroups};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{BlockId, Def, InstId, MemId, Program, Span, Type, ValueId};

/// A program in SPMD form.
pub struct Form {
    /// The program it was made from, without functions of the math library.
    pub program: Arc<Validated<Program>>,
    /// Lanes of a subgroup.
    pub subgroup_size: u32,
    /// How many workgroups a block of lanes holds.
    pub groups: u32,
    /// How many lanes a block has: `groups` times the size of a workgroup.
    pub lanes: usize,
    /// Lists of steps; the body comes first.
    pub sequences: Vec<Vec<Step>>,
    /// Slots that hold literals and constants, and their bits. They are filled once and never written.
    pub literals: Vec<(Slot, u64)>,
    /// How many slots there are with 32 and with 64 bits for a lane.
    pub slots: SlotCounts,
}

/// How many slots there are of each width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// With 32 bits for a lane.
    pub narrow: usize,
    /// With 64 bits for a lane.
    pub wide: usize,
}

impl SlotCounts {
    /// Counts one more slot for a type; gives its position.
    fn take(&mut self, ty: Type) -> u32 {
        let count = if ty.bits() == 64 { &mut self.wide } else { &mut self.narrow };
        *count += 1;
        *count as u32 - 1
    }
}

/// Where the lanes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Position among the slots of this width.
    pub index: u32,
    /// The type of the value; types of 64 bits have wide slots.
    pub ty: Type,
    /// Whether all lanes are the same.
    pub uniform: bool,
}

impl Slot {
    /// Whether a lane has 64 bits.
    pub fn is_wide(&self) -> bool {
        self.ty.bits() == 64
    }
}

/// A list of slots.
pub type Slots = SmallVec<[Slot; 4]>;

/// A list of steps, by its position in [`Form::sequences`].
pub type Sequence = usize;

/// How the index of an access differs from lane to lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// Not at all.
    Uniform,
    /// By one, modulo 2³².
    Contiguous,
    /// In any way.
    Any,
}

/// What comes with control flow: `from` is copied `to`, for the active lanes.
pub type Moves = Vec<(Slot, Slot)>;

/// One step.
pub enum Step {
    /// Computes a function of the operands, in all lanes.
    Compute {
        /// The function.
        op: Op,
        /// What `T` stands for in its signature.
        class: Type,
        /// Where the result goes.
        result: Slot,
        /// What it is computed from.
        operands: Slots,
    },
    /// Says where the invocations are, or how large something is.
    Place {
        /// The question.
        op: Op,
        /// Where the answer goes.
        result: Slot,
    },
    /// Loads consecutive elements.
    Load {
        /// The object.
        memory: MemId,
        /// The index; a uniform scalar has none.
        index: Option<(Slot, Stride)>,
        /// Where the elements go.
        results: Slots,
    },
    /// Stores consecutive elements.
    Store {
        /// The object.
        memory: MemId,
        /// The index.
        index: (Slot, Stride),
        /// The elements.
        values: Slots,
    },
    /// Reads, changes and writes an element, lane by lane.
    Atomic {
        /// The change.
        op: Op,
        /// The object.
        memory: MemId,
        /// The index.
        index: Slot,
        /// What it is changed with.
        operands: Slots,
        /// The old value, and for an exchange on condition whether it happened.
        results: Slots,
    },
    /// Exchanges values between the active lanes of a workgroup or subgroup.
    Collective {
        /// What is exchanged.
        op: Op,
        /// What the lanes give.
        operands: Slots,
        /// What they get.
        results: Slots,
    },
    /// Prints, lane by lane.
    Print {
        /// The text.
        format: Box<str>,
        /// What is printed.
        operands: Slots,
    },
    /// Splits the lanes by a condition.
    Branch {
        /// The condition.
        condition: Slot,
        /// For the lanes where it is true.
        then: Sequence,
        /// For the others.
        otherwise: Sequence,
    },
    /// Splits the lanes by a number.
    Switch {
        /// The number.
        selector: Slot,
        /// The numbers of the arms.
        cases: Box<[u32]>,
        /// One for each case, and one for all other numbers.
        arms: Vec<Sequence>,
    },
    /// Goes on in another sequence, with all lanes.
    Region(Sequence),
    /// Repeats a sequence for the lanes that continue.
    Loop {
        /// What the parameters start with, in all lanes.
        entry: Moves,
        /// The sequence.
        body: Sequence,
        /// What the parameters get before the next trip, in all lanes, if lanes may continue while others are still in the
        /// trip: these must not see the change.
        staged: Moves,
        /// The loop in the source.
        span: Span,
    },
    /// Ends a sequence; the lanes go on after what it belongs to.
    Yield(Moves),
    /// Ends a sequence; the lanes leave the innermost loop.
    Break(Moves),
    /// Ends a sequence; the lanes go on with the next trip of the innermost loop. Both lists are done one after the other:
    /// the first saves what the second would overwrite.
    Continue(Moves, Moves),
    /// Ends the lanes.
    Return,
    /// Ends the lanes with a code.
    Trap {
        /// The code.
        code: Slot,
        /// Where.
        span: Span,
    },
}

/// About how many lanes make the cost of finding the next step small, while slots still fit into the first-level cache.
const PREFERRED_LANES: usize = 1024;

/// Lowers a program without functions of the math library.
pub fn lower(program: &Arc<Validated<Program>>, subgroup_size: u32) -> Form {
    let size = program.workgroup_size.iter().product::<u32>() as usize;
    let groups = if may_merge_workgroups(program) { (PREFERRED_LANES / size).max(1) } else { 1 };
    let scope = if groups > 1 { Scope::Dispatch } else { Scope::Workgroup };
    let uniformity = Uniformity::of(program, scope);
    let (slots, counts, spare) = allocate(program, &uniformity);
    let mut lowering = Lowering {
        program,
        linear: SecondaryMap::with_capacity(program.values.len(), false),
        uniformity,
        one_group: groups == 1,
        slots,
        spare,
        counts,
        sequences: vec![Vec::new()],
        loops: Vec::new(),
    };
    lowering.sequence(0, program.body, None);
    let counts = lowering.counts;
    let literals =
        program.values.keys().filter_map(|value| Some((lowering.slots[value]?, program.known(value)?.bits))).collect();
    let sequences = lowering.sequences;
    Form {
        program: program.clone(),
        subgroup_size,
        groups: groups as u32,
        lanes: groups * size,
        sequences,
        literals,
        slots: counts,
    }
}

// Slots.

/// When a value is first written and last read, on a clock that ticks with every instruction in the order of the text.
#[derive(Clone, Copy)]
struct Life {
    start: usize,
    end: usize,
}

struct Lives<'p> {
    program: &'p Program,
    clock: usize,
    lives: SecondaryMap<ValueId, Option<Life>>,
    /// For each enclosing loop, when it started and the outside values used in it: they live until it ends.
    loops: Vec<(usize, Vec<ValueId>)>,
}

impl Lives<'_> {
    fn born(&mut self, value: ValueId) {
        self.lives[value] = Some(Life { start: self.clock, end: self.clock });
    }

    fn used(&mut self, value: ValueId) {
        let clock = self.clock;
        let Some(life) = &mut self.lives[value] else { return };
        life.end = life.end.max(clock);
        if let Some((start, outside)) = self.loops.last_mut()
            && life.start < *start
        {
            outside.push(value);
        }
    }

    fn block(&mut self, block: BlockId) {
        for &id in &self.program.blocks[block].insts {
            let inst = &self.program.insts[id];
            self.clock += 1;
            for &operand in &inst.operands {
                self.used(operand);
            }
            // Results of control flow are written inside it, by whichever lanes get there first; so they are born before.
            for &result in &inst.results {
                self.born(result);
            }
            if inst.op == Op::Loop {
                let body = inst.blocks[0];
                for &param in &self.program.blocks[body].params {
                    self.born(param);
                }
                self.clock += 1;
                self.loops.push((self.clock, Vec::new()));
                self.block(body);
                self.clock += 1;
                let (_, outside) = self.loops.pop().expect("pushed above");
                for value in outside {
                    self.used(value);
                }
                for &value in self.program.blocks[body].params.iter().chain(&inst.results) {
                    self.used(value);
                }
            } else {
                for &nested in &inst.blocks {
                    self.block(nested);
                }
                if !inst.blocks.is_empty() {
                    self.clock += 1;
                    for &result in &inst.results {
                        self.used(result);
                    }
                }
            }
        }
    }
}

type SlotTable = SecondaryMap<ValueId, Option<Slot>>;

/// Gives every value a slot. Values whose lives overlap, even in one instant, have different ones: an operation never writes
/// to what it reads. Also returns slots beyond those of values, for moves that need some: their first positions.
fn allocate(program: &Program, uniformity: &Uniformity) -> (SlotTable, SlotCounts, SlotCounts) {
    let mut lives =
        Lives { program, clock: 0, lives: SecondaryMap::with_capacity(program.values.len(), None), loops: Vec::new() };
    lives.block(program.body);
    let lives = lives.lives;

    let mut slots = SecondaryMap::with_capacity(program.values.len(), None);
    let mut counts = SlotCounts::default();
    let mut order: Vec<ValueId> = Vec::new();
    for (value, data) in program.values.iter() {
        match data.def {
            Def::Literal(_) | Def::Constant(_) => {
                slots[value] = Some(Slot { index: counts.take(data.ty), ty: data.ty, uniform: true });
            }
            Def::Result(..) | Def::Param(..) => order.extend(lives[value].map(|_| value)),
        }
    }
    let start = |value: &ValueId| lives[*value].map_or(0, |life| life.start);
    order.sort_by_key(start);
    // Slots in use, by when they become free.
    let mut busy: std::collections::BinaryHeap<std::cmp::Reverse<(usize, bool, u32)>> =
        std::collections::BinaryHeap::new();
    let (mut free_narrow, mut free_wide) = (Vec::new(), Vec::new());
    for value in order {
        let (ty, life) = (program.ty(value), lives[value].expect("only values with a life are listed"));
        while let Some(std::cmp::Reverse((end, wide, index))) = busy.peek().copied() {
            if end >= life.start {
                break;
            }
            busy.pop();
            if wide { free_wide.push(index) } else { free_narrow.push(index) }
        }
        // Uniform values keep a slot of their own: most are the same in block after block, and need not be written again.
        if uniformity.is_uniform(value) {
            slots[value] = Some(Slot { index: counts.take(ty), ty, uniform: true });
            continue;
        }
        let wide = ty.bits() == 64;
        let free = if wide { free_wide.pop() } else { free_narrow.pop() };
        let index = free.unwrap_or_else(|| counts.take(ty));
        busy.push(std::cmp::Reverse((life.end, wide, index)));
        slots[value] = Some(Slot { index, ty, uniform: false });
    }
    // A loop hands on at most as many values as it has parameters.
    let spare = counts;
    program.walk(|inst, _| {
        for &block in &program.insts[inst].blocks {
            let params = &program.blocks[block].params;
            let wide = params.iter().filter(|&&param| program.ty(param).bits() == 64).count();
            counts.wide = counts.wide.max(spare.wide + wide);
            counts.narrow = counts.narrow.max(spare.narrow + params.len() - wide);
        }
    });
    (slots, counts, spare)
}

// Steps.

struct Lowering<'p> {
    program: &'p Program,
    uniformity: Uniformity,
    /// Values that differ by one from lane to lane.
    linear: SecondaryMap<ValueId, bool>,
    one_group: bool,
    slots: SlotTable,
    /// The first slots that no value has; moves of one step may use them.
    spare: SlotCounts,
    /// The first slots that nothing uses.
    counts: SlotCounts,
    sequences: Vec<Vec<Step>>,
    /// The loops around the current block, innermost last.
    loops: Vec<EnclosingLoop>,
}

struct EnclosingLoop {
    inst: InstId,
    /// Where several places put what they hand on.
    staging: Option<Slots>,
}

impl Lowering<'_> {
    fn slot(&self, value: ValueId) -> Slot {
        self.slots[value].expect("a reachable value has a slot")
    }

    fn slots(&self, values: &[ValueId]) -> Slots {
        values.iter().map(|&value| self.slot(value)).collect()
    }

    fn moves(&self, to: &[ValueId], from: &[ValueId]) -> Moves {
        to.iter().zip(from).map(|(&to, &from)| (self.slot(to), self.slot(from))).collect()
    }

    fn nested(&mut self, block: BlockId, owner: InstId) -> Sequence {
        self.sequences.push(Vec::new());
        let sequence = self.sequences.len() - 1;
        self.sequence(sequence, block, Some(owner));
        sequence
    }

    fn sequence(&mut self, sequence: Sequence, block: BlockId, owner: Option<InstId>) {
        for &id in &self.program.blocks[block].insts {
            let step = self.step(id, owner);
            self.sequences[sequence].push(step);
        }
    }

    fn step(&mut self, id: InstId, owner: Option<InstId>) -> Step {
        let program = self.program;
        let inst = &program.insts[id];
        let op = inst.op.clone();
        match (op.row().kind, &inst.op) {
            (Kind::Pure, _) => {
                self.note_linear(id);
                let result = self.slot(inst.results[0]);
                let class = program.class(inst);
                Step::Compute { op, class, result, operands: self.slots(&inst.operands) }
            }
            (Kind::PerInvocation | Kind::PerGroup, _) => {
                self.note_linear(id);
                Step::Place { op, result: self.slot(inst.results[0]) }
            }
            (Kind::Access, Op::Store(memory)) => Step::Store {
                memory: *memory,
                index: self.index(inst.operands[0]),
                values: self.slots(&inst.operands[1..]),
            },
            (Kind::Access, _) => Step::Load {
                memory: op.memory().expect("a load names an object"),
                index: inst.operands.first().map(|&index| self.index(index)),
                results: self.slots(&inst.results),
            },
            (Kind::Atomic, _) => Step::Atomic {
                memory: op.memory().expect("an atomic names an object"),
                index: self.slot(inst.operands[0]),
                operands: self.slots(&inst.operands[1..]),
                results: self.slots(&inst.results),
                op,
            },
            (Kind::Collective, _) => {
                Step::Collective { op, operands: self.slots(&inst.operands), results: self.slots(&inst.results) }
            }
            (Kind::Effect | Kind::Control, _) => self.control(id, owner),
        }
    }

    fn control(&mut self, id: InstId, owner: Option<InstId>) -> Step {
        let program = self.program;
        let inst = &program.insts[id];
        match &inst.op {
            Op::Print(format) => Step::Print { format: format.clone(), operands: self.slots(&inst.operands) },
            Op::If => Step::Branch {
                condition: self.slot(inst.operands[0]),
                then: self.nested(inst.blocks[0], id),
                otherwise: self.nested(inst.blocks[1], id),
            },
            Op::Switch(cases) => Step::Switch {
                selector: self.slot(inst.operands[0]),
                cases: cases.clone(),
                arms: inst.blocks.iter().map(|&block| self.nested(block, id)).collect(),
            },
            Op::Region(_) => Step::Region(self.nested(inst.blocks[0], id)),
            Op::Loop => {
                let params = &program.blocks[inst.blocks[0]].params;
                let staging = continues_early(program, inst.blocks[0]).then(|| self.staging(params));
                let staged = match &staging {
                    Some(staging) => {
                        params.iter().map(|&param| self.slot(param)).zip(staging.iter().copied()).collect()
                    }
                    None => Moves::new(),
                };
                self.loops.push(EnclosingLoop { inst: id, staging });
                let body = self.nested(inst.blocks[0], id);
                self.loops.pop();
                Step::Loop { entry: self.moves(params, &inst.operands), body, staged, span: inst.span }
            }
            Op::Yield => {
                let owner = owner.expect("the body does not yield");
                Step::Yield(self.moves(&program.insts[owner].results, &inst.operands))
            }
            Op::Break => {
                let target = self.innermost().inst;
                Step::Break(self.moves(&program.insts[target].results, &inst.operands))
            }
            Op::Continue => match &self.innermost().staging {
                Some(staging) => {
                    let from = inst.operands.iter().map(|&from| self.slot(from));
                    Step::Continue(Moves::new(), staging.iter().copied().zip(from).collect())
                }
                None => {
                    let body = program.insts[self.innermost().inst].blocks[0];
                    self.in_parallel(self.moves(&program.blocks[body].params, &inst.operands))
                }
            },
            Op::Return => Step::Return,
            Op::Trap => Step::Trap { code: self.slot(inst.operands[0]), span: inst.span },
            op => unreachable!("`{}` is not control flow", op.row().name),
        }
    }

    fn innermost(&self) -> &EnclosingLoop {
        self.loops.last().expect("validated: there is a loop around this")
    }

    /// New slots like those of these values.
    fn staging(&mut self, values: &[ValueId]) -> Slots {
        let slots = self.slots(values).into_iter();
        slots.map(|slot| Slot { index: self.counts.take(slot.ty), ..slot }).collect()
    }

    /// Moves that must not see each other's results: sources that another move overwrites are saved first.
    fn in_parallel(&self, moves: Moves) -> Step {
        let moves: Moves = moves.into_iter().filter(|(to, from)| !same_place(*to, *from)).collect();
        let mut next = self.spare;
        let mut saved = Vec::new();
        let mut last = Vec::new();
        for &(to, from) in &moves {
            let overwritten = moves.iter().any(|(other, _)| same_place(*other, from));
            if overwritten {
                let spare = Slot { index: next.take(from.ty), ..from };
                saved.push((spare, from));
                last.push((to, spare));
            } else {
                last.push((to, from));
            }
        }
        Step::Continue(saved, last)
    }

    fn index(&self, value: ValueId) -> (Slot, Stride) {
        let stride = if self.uniformity.is_uniform(value) {
            Stride::Uniform
        } else if self.linear[value] {
            Stride::Contiguous
        } else {
            Stride::Any
        };
        (self.slot(value), stride)
    }

    /// Finds values that go up by one from lane to lane, modulo 2³².
    fn note_linear(&mut self, id: InstId) {
        let inst = &self.program.insts[id];
        let [x, y, z] = self.program.workgroup_size;
        let linear = |value: ValueId| self.linear[value];
        let uniform = |value: ValueId| self.uniformity.is_uniform(value);
        let is_linear = match (&inst.op, inst.operands.as_slice()) {
            (Op::GlobalIndex, _) => true,
            (Op::LocalIndex, _) => self.one_group,
            (Op::GlobalId(axis) | Op::LocalId(axis), _) => {
                self.one_group && *axis as usize == 0 && x > 1 && y == 1 && z == 1
            }
            (Op::Add, &[a, b]) => (linear(a) && uniform(b)) || (uniform(a) && linear(b)),
            (Op::Sub, &[a, b]) => linear(a) && uniform(b),
            (Op::Cast | Op::Bitcast, &[a]) => {
                linear(a) && matches!(self.program.ty(inst.results[0]), Type::I32 | Type::U32)
            }
            _ => false,
        };
        self.linear[inst.results[0]] = is_linear;
    }
}

/// Whether a loop is continued anywhere but at the very end of its body.
pub(crate) fn continues_early(program: &Program, body: BlockId) -> bool {
    let end = program.blocks[body].insts.last();
    exits_of(program, body).continues.iter().any(|exit| Some(exit) != end)
}

fn same_place(a: Slot, b: Slot) -> bool {
    a.index == b.index && a.is_wide() == b.is_wide()
}
