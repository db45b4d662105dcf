//! Lowering to SPMD form: steps over lanes.
//!
//! A *block* of lanes holds the invocations of one workgroup, or of several where these [may run in
//! lockstep](may_merge_workgroups). Every value gets a [`Slot`]: an array with one element for each lane, shared with
//! other values whose live ranges do not overlap. Uniform values are equal in all lanes, active or not, so that reading
//! lane 0 suffices.
//!
//! Computation is not predicated: results of inactive lanes are never used. Masks apply where lanes reconverge (results
//! of `if` and `loop`), where lanes leave, and to effects. The [`Step`]s define which slots are copied.

use smallvec::SmallVec;
use vyre_foundation::Validated;
use vyre_foundation::analysis::{LiveRange, Liveness, Scope, Storage, Uniformity, exits_of, may_merge_workgroups};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Atomic, Barrier, Control, Op, PerGroup, PerInvocation, Pure, Subgroup, Terminator};
use vyre_foundation::ir::{BlockId, Def, InstId, MemOperand, Program, Span, Type, Value, ValueId};

/// A program in SPMD form.
pub struct Form {
    /// The program it was made from, without functions of the math library.
    pub program: Validated<Program>,
    /// Lanes of a subgroup.
    pub subgroup_size: u32,
    /// Number of workgroups of a block.
    pub groups: u32,
    /// Number of lanes of a block: `groups` times the workgroup size.
    pub lanes: usize,
    /// Sequences of steps; the body comes first.
    pub sequences: Vec<Vec<Step>>,
    /// Slots that hold literals and constants, and their bits. They are initialized once and never written.
    pub literals: Vec<(Slot, u64)>,
    /// Number of slots of each width.
    pub slots: SlotCounts,
}

/// Number of slots of each width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Slots with 32 bits per lane.
    pub narrow: usize,
    /// Slots with 64 bits per lane.
    pub wide: usize,
}

impl SlotCounts {
    /// Allocates a slot for a type; returns its index.
    fn take(&mut self, ty: Type) -> u32 {
        let count = if ty.bits() == 64 { &mut self.wide } else { &mut self.narrow };
        *count += 1;
        *count as u32 - 1
    }
}

/// Location of the lanes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index among the slots of this width.
    pub index: u32,
    /// The type of the value; types of 64 bits have wide slots.
    pub ty: Type,
    /// All lanes are equal.
    pub uniform: bool,
}

impl Slot {
    /// Returns whether a lane has 64 bits.
    pub fn is_wide(&self) -> bool {
        self.ty.bits() == 64
    }
}

/// Slots of several values.
pub type Slots = SmallVec<[Slot; 4]>;

/// Index of a sequence of steps in [`Form::sequences`].
pub type Sequence = usize;

/// Difference between the indices of adjacent lanes in an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// Stride 0: all lanes access one element.
    Uniform,
    /// Stride 1, modulo 2³².
    Contiguous,
    /// Any other stride, or none: a gather or scatter.
    Any,
}

/// Copies `(to, from)` along a control-flow edge, for the active lanes.
pub type Moves = Vec<(Slot, Slot)>;

/// A step of a sequence.
pub enum Step {
    /// Computes a pure operation in all lanes.
    Compute {
        /// The operation.
        op: Pure,
        /// Type that `T` stands for in the operation's signature.
        class: Type,
        /// Result.
        result: Slot,
        /// Operands.
        operands: Slots,
    },
    /// Reads an id that differs between the invocations of a workgroup.
    PerInvocation {
        /// The id.
        op: PerInvocation,
        /// Result.
        result: Slot,
    },
    /// Reads an id or size that is uniform in the workgroup.
    PerGroup {
        /// The id or size.
        op: PerGroup,
        /// Result.
        result: Slot,
    },
    /// Loads consecutive elements.
    Load {
        /// Object and element type.
        at: MemOperand,
        /// Index; `None` for a uniform scalar.
        index: Option<(Slot, Stride)>,
        /// Loaded elements.
        results: Slots,
    },
    /// Stores consecutive elements.
    Store {
        /// Object and element type.
        at: MemOperand,
        /// Index.
        index: (Slot, Stride),
        /// Stored elements.
        values: Slots,
    },
    /// Atomic read-modify-write, lane by lane.
    Atomic {
        /// Operation.
        op: Atomic,
        /// Object and element type.
        at: MemOperand,
        /// Index.
        index: Slot,
        /// Operand.
        operand: Slot,
        /// Old value.
        result: Slot,
        /// Source location, for the fuel of failed compare-exchanges.
        span: Span,
    },
    /// Atomic compare-exchange, lane by lane.
    CompareExchange {
        /// Object and element type.
        at: MemOperand,
        /// Index.
        index: Slot,
        /// Expected value, and replacement.
        operands: [Slot; 2],
        /// Old value, and whether it was replaced.
        results: [Slot; 2],
    },
    /// Workgroup barrier.
    Barrier,
    /// Copies the value of the first lane of a workgroup to all lanes.
    Broadcast {
        /// Value.
        operand: Slot,
        /// Result.
        result: Slot,
    },
    /// Subgroup operation among the active lanes.
    Subgroup {
        /// Operation.
        op: Subgroup,
        /// Operands.
        operands: Slots,
        /// Results.
        results: Slots,
    },
    /// Prints a line for each active lane.
    Print {
        /// Format string.
        format: Box<str>,
        /// Printed values.
        operands: Slots,
    },
    /// Branches on a condition, with a mask for each side.
    Branch {
        /// Condition.
        condition: Slot,
        /// Sequence for the lanes where it holds.
        then: Sequence,
        /// Sequence for the other lanes.
        otherwise: Sequence,
    },
    /// Switches on a selector, with a mask for each arm.
    Switch {
        /// Selector.
        selector: Slot,
        /// Case values.
        cases: Box<[u32]>,
        /// Sequence of each case, then that of the default.
        arms: Vec<Sequence>,
    },
    /// Executes a nested sequence with all lanes.
    Region(Sequence),
    /// Executes a sequence repeatedly for the lanes that continue.
    Loop {
        /// Initial values of the parameters, in all lanes.
        entry: Moves,
        /// Loop body.
        body: Sequence,
        /// Parallel copies into the parameters before the next trip, in all lanes. Used if lanes may continue while
        /// others are still in the trip, which must not see the new values.
        staged: Moves,
        /// Span of the loop.
        span: Span,
    },
    /// Ends a sequence; the lanes reconverge after its owner.
    Yield(Moves),
    /// Ends a sequence; the lanes leave the innermost loop.
    Break(Moves),
    /// Ends a sequence; the lanes start the next trip of the innermost loop. The lists are copied in order: the first
    /// saves values that the second overwrites.
    Continue(Moves, Moves),
    /// Ends the invocations.
    Return,
    /// Ends the invocations with a trap code.
    Trap {
        /// Trap code.
        code: Slot,
        /// Span of the trap.
        span: Span,
    },
}

/// Target number of lanes per block: amortizes the dispatch of steps, while slots still fit into the L1 cache.
const PREFERRED_LANES: usize = 1024;

/// Lowers a program without functions of the math library.
pub fn lower(program: &Validated<Program>, subgroup_size: u32) -> Form {
    let size = program.workgroup_size().iter().product::<u32>() as usize;
    let groups = if may_merge_workgroups(program) { (PREFERRED_LANES / size).max(1) } else { 1 };
    let scope = if groups > 1 { Scope::Dispatch } else { Scope::Workgroup };
    let uniformity = Uniformity::of(program);
    let (slots, counts, spare) = allocate(program, &uniformity, scope);
    let mut lowering = Lowering {
        program,
        linear: SecondaryMap::with_capacity(program.values().len(), false),
        uniformity,
        scope,
        slots,
        spare,
        counts,
        sequences: vec![Vec::new()],
        loops: Vec::new(),
    };
    lowering.sequence(0, program.body(), None);
    let counts = lowering.counts;
    let literals = program
        .values()
        .keys()
        .filter_map(|value| Some((lowering.slots[value]?, program.known(value)?.bits)))
        .collect();
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

type SlotTable = SecondaryMap<ValueId, Option<Slot>>;

/// Slot allocation by linear scan over live ranges. Values with overlapping live ranges, even at one point, get
/// different slots: an operation never writes to a slot that it reads. Also returns the slot counts with the scratch
/// slots for parallel copies, and without them: the first scratch slots.
fn allocate(program: &Program, uniformity: &Uniformity, scope: Scope) -> (SlotTable, SlotCounts, SlotCounts) {
    let mut slots = SecondaryMap::with_capacity(program.values().len(), None);
    let mut counts = SlotCounts::default();
    for (value, Value { ty, def }) in program.values().iter() {
        if matches!(def, Def::Literal(_) | Def::Constant(_)) {
            slots[value] = Some(Slot { index: counts.take(*ty), ty: *ty, uniform: true });
        }
    }
    // Slots in use, ordered by the end of their live range.
    let mut busy: std::collections::BinaryHeap<std::cmp::Reverse<(u32, bool, u32)>> =
        std::collections::BinaryHeap::new();
    let (mut free_narrow, mut free_wide) = (Vec::new(), Vec::new());
    for &LiveRange { value, start, end, .. } in Liveness::of(program, Storage::Slots).ranges() {
        if slots[value].is_some() {
            continue;
        }
        let ty = program.ty(value);
        while let Some(std::cmp::Reverse((free_from, wide, index))) = busy.peek().copied() {
            if free_from > start {
                break;
            }
            busy.pop();
            if wide { free_wide.push(index) } else { free_narrow.push(index) }
        }
        // Uniform values get slots that are not reused: most are equal in block after block, and need not be written
        // again.
        if uniformity.is_uniform(value, scope) {
            slots[value] = Some(Slot { index: counts.take(ty), ty, uniform: true });
            continue;
        }
        let wide = ty.bits() == 64;
        let free = if wide { free_wide.pop() } else { free_narrow.pop() };
        let index = free.unwrap_or_else(|| counts.take(ty));
        busy.push(std::cmp::Reverse((end, wide, index)));
        slots[value] = Some(Slot { index, ty, uniform: false });
    }
    // A loop passes at most as many values as it has parameters.
    let spare = counts;
    program.walk(|inst, _| {
        for &block in &program.inst(inst).blocks {
            let params = &program.block(block).params;
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
    /// Scope of uniformity of a block: a workgroup, or several.
    scope: Scope,
    /// Values that are linear in the lane: they differ by one from lane to lane.
    linear: SecondaryMap<ValueId, bool>,
    slots: SlotTable,
    /// Scratch slots for the parallel copies of one step start here.
    spare: SlotCounts,
    /// Unused slots start here.
    counts: SlotCounts,
    sequences: Vec<Vec<Step>>,
    /// Enclosing loops, innermost last.
    loops: Vec<EnclosingLoop>,
}

struct EnclosingLoop {
    inst: InstId,
    /// Staging slots of the parameters, if lanes continue at different times.
    staging: Option<Slots>,
}

impl Lowering<'_> {
    /// Returns true if all lanes have the same value.
    fn is_uniform(&self, value: ValueId) -> bool {
        self.uniformity.is_uniform(value, self.scope)
    }

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
        for &id in &self.program.block(block).insts {
            let step = self.step(id, owner);
            self.sequences[sequence].push(step);
        }
    }

    fn step(&mut self, id: InstId, owner: Option<InstId>) -> Step {
        let program = self.program;
        let inst = program.inst(id);
        match &inst.op {
            Op::Pure(op) => {
                self.record_linear(id);
                let result = self.slot(inst.results[0]);
                let class = program.class(inst);
                Step::Compute { op: *op, class, result, operands: self.slots(&inst.operands) }
            }
            Op::PerInvocation(op) => {
                self.record_linear(id);
                Step::PerInvocation { op: *op, result: self.slot(inst.results[0]) }
            }
            Op::PerGroup(op) => Step::PerGroup { op: *op, result: self.slot(inst.results[0]) },
            Op::Load(at) => Step::Load {
                at: *at,
                index: inst.operands.first().map(|&index| self.index(index)),
                results: self.slots(&inst.results),
            },
            Op::Store(at) => {
                Step::Store { at: *at, index: self.index(inst.operands[0]), values: self.slots(&inst.operands[1..]) }
            }
            Op::Atomic(op, at) => Step::Atomic {
                op: *op,
                at: *at,
                index: self.slot(inst.operands[0]),
                operand: self.slot(inst.operands[1]),
                result: self.slot(inst.results[0]),
                span: inst.span,
            },
            Op::CompareExchange(at) => Step::CompareExchange {
                at: *at,
                index: self.slot(inst.operands[0]),
                operands: [1, 2].map(|operand| self.slot(inst.operands[operand])),
                results: [0, 1].map(|result| self.slot(inst.results[result])),
            },
            Op::Barrier(Barrier::Workgroup | Barrier::Storage) => Step::Barrier,
            Op::Broadcast => {
                Step::Broadcast { operand: self.slot(inst.operands[0]), result: self.slot(inst.results[0]) }
            }
            Op::Subgroup(op) => {
                Step::Subgroup { op: *op, operands: self.slots(&inst.operands), results: self.slots(&inst.results) }
            }
            Op::Print(format) => Step::Print { format: format.clone(), operands: self.slots(&inst.operands) },
            Op::Control(Control::If) => Step::Branch {
                condition: self.slot(inst.operands[0]),
                then: self.nested(inst.blocks[0], id),
                otherwise: self.nested(inst.blocks[1], id),
            },
            Op::Control(Control::Switch(cases)) => Step::Switch {
                selector: self.slot(inst.operands[0]),
                cases: cases.clone(),
                arms: inst.blocks.iter().map(|&block| self.nested(block, id)).collect(),
            },
            Op::Control(Control::Region(_)) => Step::Region(self.nested(inst.blocks[0], id)),
            Op::Control(Control::Loop) => {
                let params = &program.block(inst.blocks[0]).params;
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
            Op::Terminator(Terminator::Yield) => {
                let owner = owner.expect("the body does not yield");
                Step::Yield(self.moves(&program.inst(owner).results, &inst.operands))
            }
            Op::Terminator(Terminator::Break) => {
                let target = self.innermost().inst;
                Step::Break(self.moves(&program.inst(target).results, &inst.operands))
            }
            Op::Terminator(Terminator::Continue) => match &self.innermost().staging {
                Some(staging) => {
                    let from = inst.operands.iter().map(|&from| self.slot(from));
                    Step::Continue(Moves::new(), staging.iter().copied().zip(from).collect())
                }
                None => {
                    let body = program.inst(self.innermost().inst).blocks[0];
                    self.in_parallel(self.moves(&program.block(body).params, &inst.operands))
                }
            },
            Op::Terminator(Terminator::Return) => Step::Return,
            Op::Terminator(Terminator::Trap) => Step::Trap { code: self.slot(inst.operands[0]), span: inst.span },
        }
    }

    fn innermost(&self) -> &EnclosingLoop {
        self.loops.last().expect("validated: there is a loop around this")
    }

    /// Allocates slots with the types of `values`.
    fn staging(&mut self, values: &[ValueId]) -> Slots {
        let slots = self.slots(values).into_iter();
        slots.map(|slot| Slot { index: self.counts.take(slot.ty), ..slot }).collect()
    }

    /// Parallel copies: sources that another copy overwrites are saved first.
    fn in_parallel(&self, moves: Moves) -> Step {
        let moves: Moves = moves.into_iter().filter(|(to, from)| !same_slot(*to, *from)).collect();
        let mut next = self.spare;
        let mut saved = Vec::new();
        let mut last = Vec::new();
        for &(to, from) in &moves {
            let overwritten = moves.iter().any(|(other, _)| same_slot(*other, from));
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
        let stride = if self.is_uniform(value) {
            Stride::Uniform
        } else if self.linear[value] {
            Stride::Contiguous
        } else {
            Stride::Any
        };
        (self.slot(value), stride)
    }

    /// Records results that are linear in the lane, modulo 2³².
    fn record_linear(&mut self, id: InstId) {
        let inst = self.program.inst(id);
        let [x, y, z] = self.program.workgroup_size();
        let linear = |value: ValueId| self.linear[value];
        let uniform = |value: ValueId| self.is_uniform(value);
        let one_group = self.scope == Scope::Workgroup;
        let is_linear = match (&inst.op, inst.operands.as_slice()) {
            (Op::PerInvocation(PerInvocation::GlobalIndex), _) => true,
            (Op::PerInvocation(PerInvocation::LocalIndex), _) => one_group,
            (Op::PerInvocation(PerInvocation::GlobalId(axis) | PerInvocation::LocalId(axis)), _) => {
                one_group && *axis as usize == 0 && x > 1 && y == 1 && z == 1
            }
            (Op::Pure(Pure::Add), &[a, b]) => (linear(a) && uniform(b)) || (uniform(a) && linear(b)),
            (Op::Pure(Pure::Sub), &[a, b]) => linear(a) && uniform(b),
            (Op::Pure(Pure::Cast | Pure::Bitcast), &[a]) => {
                linear(a) && matches!(self.program.ty(inst.results[0]), Type::I32 | Type::U32)
            }
            _ => false,
        };
        self.linear[inst.results[0]] = is_linear;
    }
}

/// Returns whether a loop has a `continue` other than at the end of its body.
pub(crate) fn continues_early(program: &Program, body: BlockId) -> bool {
    let end = program.block(body).insts.last();
    exits_of(program, body).continues.iter().any(|exit| Some(exit) != end)
}

fn same_slot(a: Slot, b: Slot) -> bool {
    a.index == b.index && a.is_wide() == b.is_wide()
}
