//! Register allocation: with `regalloc2`, or with the faster [block-local allocator](block_allocator) for large
//! functions.
//!
//! [`Graph`] presents the function to the allocator: blocks in the order they are entered, each ending in a separate
//! jump instruction, and for each instruction a flat list of operands. [`Registers`] holds the result in the same
//! order.

use std::ops::Range;

use iced_x86::{EncodingKind, Register};
use regalloc2::{
    Allocation, Ctx, Edit, Inst as Index, InstRange, MachineEnv, Operand as Slot, OperandConstraint, OperandKind,
    OperandPos, Output, PReg, PRegSet, ProgPoint, RegClass, RegallocOptions, VReg,
};

use super::block_allocator;
use super::{BlockId, Class, End, Function, Inst, Reg, Role, Width};
use crate::x86::Error;

/// The register that holds the pointer to the context.
pub(crate) const CONTEXT: Register = Register::R15;

/// Registers besides [`CONTEXT`] that a function must preserve.
pub(crate) const CALLEE_SAVED: [Register; 5] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14];

/// Register allocator, with buffers reused between functions.
pub(crate) struct Allocator {
    context: Ctx,
    graph: Graph,
    narrow: MachineEnv,
    wide: MachineEnv,
    /// Environment without the upper vector registers, for wide functions.
    lower: MachineEnv,
    /// Functions with more instructions than this use the [`block_allocator`]: a fraction of the compile time, with
    /// many more moves.
    pub(crate) fast_above: usize,
}

impl Default for Allocator {
    fn default() -> Self {
        Self {
            context: Ctx::default(),
            graph: Graph::default(),
            narrow: environment(false, false),
            wide: environment(true, true),
            lower: environment(true, false),
            fast_above: 3_000,
        }
    }
}

impl Allocator {
    /// Allocates registers. Blocks must be terminated, and targets of branches must have no other predecessors.
    pub(crate) fn allocate(&mut self, function: &Function) -> Result<Registers<'_>, Error> {
        let size: usize = function.blocks.iter().map(|block| block.insts.len() + 1).sum();
        let fast = size > self.fast_above;
        // The block-local allocator cannot keep single operands out of the upper registers.
        let upper = function.wide && !fast;
        self.graph.build(function, upper)?;
        let environment = match (function.wide, upper) {
            (false, _) => &self.narrow,
            (true, false) => &self.lower,
            (true, true) => &self.wide,
        };
        if fast {
            block_allocator::allocate(&self.graph, environment, &mut self.context.output);
        } else {
            // Reports a register that is read where its definition does not dominate the read.
            let options = RegallocOptions { validate_ssa: cfg!(debug_assertions), ..RegallocOptions::default() };
            if let Err(error) = regalloc2::run_with_ctx(&self.graph, environment, &options, &mut self.context) {
                // The state of the context after a failed run is unspecified.
                self.context = Ctx::default();
                return Err(Error::Registers(error));
            }
        }
        let output = &self.context.output;
        #[cfg(all(test, debug_assertions))]
        check(&self.graph, environment, output);
        Ok(Registers { graph: &self.graph, output })
    }
}

/// Result of the allocation.
pub(crate) struct Registers<'a> {
    graph: &'a Graph,
    output: &'a Output,
}

/// Location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Register(Class, u8),
    /// Byte offset in the spill area.
    Stack(Class, u32),
}

impl Registers<'_> {
    /// Reachable blocks in reverse postorder.
    pub(crate) fn order(&self) -> &[BlockId] {
        &self.graph.order
    }

    /// Returns whether a block, by its position in the order, is a loop header.
    pub(crate) fn is_loop(&self, position: usize) -> bool {
        self.graph.preds.get(position).iter().any(|from| from.index() >= position)
    }

    /// Positions of the instructions of a block, by its position in the order. The last one is the jump.
    pub(crate) fn insts(&self, position: usize) -> Range<usize> {
        let range = self.graph.ranges[position];
        range.first().index()..range.last().index() + 1
    }

    /// Registers of an instruction's operands, in the order of [`Inst::roles`].
    pub(crate) fn of(&self, inst: usize) -> impl Iterator<Item = u8> {
        self.output.inst_allocs(Index::new(inst)).iter().map(|allocation| match allocation.as_reg() {
            Some(register) => register.hw_enc() as u8,
            // All operands are constrained to registers.
            None => unreachable!("operand without a register"),
        })
    }

    /// Moves to insert, each with the position of the instruction that it precedes, in order.
    pub(crate) fn moves(&self) -> impl Iterator<Item = (usize, Location, Location)> {
        self.output.edits.iter().map(|(point, edit)| {
            let Edit::Move { from, to } = edit;
            let class = [from, to].into_iter().find_map(|end| end.as_reg()).map_or(RegClass::Int, PReg::class);
            (before(*point), location(*from, class), location(*to, class))
        })
    }

    /// Size of the spill area in bytes.
    pub(crate) fn spill_size(&self) -> usize {
        self.output.num_spillslots * 8
    }

    /// Registers among [`CALLEE_SAVED`] that are written.
    pub(crate) fn saved(&self) -> impl Iterator<Item = Register> {
        let mut written = PRegSet::empty();
        let edits = self.output.edits.iter().map(|(_, Edit::Move { to, .. })| to);
        for register in self.output.allocs.iter().chain(edits).filter_map(|allocation| allocation.as_reg()) {
            written.add(register);
        }
        CALLEE_SAVED.into_iter().filter(move |&register| written.contains(fixed(register)))
    }
}

/// The iced register with a number, in a width.
pub(crate) fn register(number: u8, width: Width) -> Register {
    let number = u32::from(number);
    match width {
        // `ah` to `bh` are numbered between `bl` and `spl`.
        Width::Byte if number < 4 => Register::AL + number,
        Width::Byte => Register::SPL + (number - 4),
        Width::Word => Register::AX + number,
        Width::Dword => Register::EAX + number,
        Width::Qword => Register::RAX + number,
        Width::Xmm => Register::XMM0 + number,
        Width::Ymm => Register::YMM0 + number,
        Width::Zmm => Register::ZMM0 + number,
        Width::Mask => Register::K0 + number,
    }
}

/// The function in the allocator's terms. Blocks are numbered by their position in the order.
#[derive(Default)]
struct Graph {
    order: Vec<BlockId>,
    ranges: Vec<InstRange>,
    succs: Lists<regalloc2::Block>,
    preds: Lists<regalloc2::Block>,
    params: Lists<VReg>,
    /// Arguments by block: only unconditional jumps have arguments.
    arguments: Lists<VReg>,
    /// Kind of each instruction.
    kinds: Vec<Kind>,
    operands: Lists<Slot>,
    vregs: usize,
    wide: bool,
}

/// Control-flow kind of an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Jump,
    Return,
}

impl Graph {
    fn build(&mut self, function: &Function, upper: bool) -> Result<(), Error> {
        self.wide = function.wide;
        self.vregs = function.classes.len();
        self.ranges.clear();
        self.succs.clear();
        self.preds.clear();
        self.params.clear();
        self.arguments.clear();
        self.kinds.clear();
        self.operands.clear();

        self.order = function.postorder();
        self.order.reverse();
        let mut positions = vec![0; function.blocks.len()];
        let mut pred_counts = vec![0_u32; self.order.len()];
        for (position, block) in self.order.iter().enumerate() {
            positions[block.0 as usize] = position;
        }

        let vreg = |reg: &Reg| virtual_register(function, *reg);
        for id in 0..self.order.len() {
            let block = &function.blocks[self.order[id].0 as usize];
            let first = self.kinds.len();
            self.params.items.extend(block.params.iter().map(vreg));
            self.params.end();
            for inst in &block.insts {
                self.add(function, inst, upper);
            }
            let kind = match &block.end {
                End::Jump(edge) => {
                    self.succs.items.push(regalloc2::Block::new(positions[edge.to.0 as usize]));
                    self.arguments.items.extend(edge.arguments.iter().map(vreg));
                    Kind::Jump
                }
                End::Branch { taken, other, .. } => {
                    for to in [taken, other] {
                        self.succs.items.push(regalloc2::Block::new(positions[to.0 as usize]));
                    }
                    Kind::Jump
                }
                End::Return => Kind::Return,
                End::Open => return Err(Error::OpenBlock(self.order[id])),
            };
            self.succs.end();
            self.arguments.end();
            for to in self.succs.get(id) {
                pred_counts[to.index()] += 1;
            }
            self.kinds.push(kind);
            self.operands.end();
            self.ranges.push(InstRange::new(Index::new(first), Index::new(self.kinds.len())));
        }
        if !self.params.get(0).is_empty() {
            return Err(Error::Malformed("the entry has parameters"));
        }
        for block in &self.order {
            if let End::Jump(edge) = &function.blocks[block.0 as usize].end
                && edge.arguments.len() != self.params.get(positions[edge.to.0 as usize]).len()
            {
                return Err(Error::Arguments(*block));
            }
        }

        // Builds the predecessor lists by counting sort.
        let mut next = Vec::with_capacity(pred_counts.len());
        let mut total = 0;
        for count in pred_counts {
            next.push(total as usize);
            total += count;
            self.preds.ends.push(total);
        }
        self.preds.items.resize(total as usize, regalloc2::Block::invalid());
        for id in 0..self.order.len() {
            for to in self.succs.get(id) {
                self.preds.items[next[to.index()]] = regalloc2::Block::new(id);
                next[to.index()] += 1;
            }
        }
        Ok(())
    }

    fn add(&mut self, function: &Function, inst: &Inst, upper: bool) {
        // Only EVEX encodings can name the upper sixteen vector registers; and Bochs, under which AVX-512 code is
        // tested, does not support them as gather indices.
        let limited = upper && (inst.code.encoding() != EncodingKind::EVEX || inst.consumes_mask());
        let any = |vreg: VReg| {
            if limited && vreg.class() == RegClass::Float {
                OperandConstraint::Limit(16)
            } else {
                OperandConstraint::Reg
            }
        };
        let vreg = |reg| virtual_register(function, reg);
        let first = self.operands.items.len();
        let Self { operands, vregs, .. } = self;
        inst.roles(|role| {
            let position = operands.items.len() - first;
            operands.items.push(match role {
                Role::Use(reg) => {
                    let vreg = vreg(reg);
                    Slot::new(vreg, any(vreg), OperandKind::Use, OperandPos::Early)
                }
                Role::Def(reg) => {
                    let vreg = vreg(reg);
                    Slot::new(vreg, any(vreg), OperandKind::Def, OperandPos::Late)
                }
                Role::Reuse(reg) => Slot::reg_reuse_def(vreg(reg), position - 1),
                Role::Consumed => {
                    *vregs += 1;
                    Slot::reg_reuse_def(VReg::new(*vregs - 1, RegClass::Vector), position - 1)
                }
                Role::FixedUse(reg, register) => Slot::reg_fixed_use(vreg(reg), fixed(register)),
                Role::FixedDef(reg, register) => Slot::reg_fixed_def(vreg(reg), fixed(register)),
            });
        });
        self.operands.end();

        self.kinds.push(Kind::Plain);
    }
}

impl regalloc2::Function for Graph {
    fn num_insts(&self) -> usize {
        self.kinds.len()
    }

    fn num_blocks(&self) -> usize {
        self.order.len()
    }

    fn entry_block(&self) -> regalloc2::Block {
        regalloc2::Block::new(0)
    }

    fn block_insns(&self, block: regalloc2::Block) -> InstRange {
        self.ranges[block.index()]
    }

    fn block_succs(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        self.succs.get(block.index())
    }

    fn block_preds(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        self.preds.get(block.index())
    }

    fn block_params(&self, block: regalloc2::Block) -> &[VReg] {
        self.params.get(block.index())
    }

    fn is_ret(&self, inst: Index) -> bool {
        self.kinds[inst.index()] == Kind::Return
    }

    fn is_branch(&self, inst: Index) -> bool {
        self.kinds[inst.index()] == Kind::Jump
    }

    fn branch_blockparams(&self, block: regalloc2::Block, _: Index, _: usize) -> &[VReg] {
        self.arguments.get(block.index())
    }

    fn inst_operands(&self, inst: Index) -> &[Slot] {
        self.operands.get(inst.index())
    }

    fn inst_clobbers(&self, _: Index) -> PRegSet {
        PRegSet::empty()
    }

    fn num_vregs(&self) -> usize {
        self.vregs
    }

    fn spillslot_size(&self, class: RegClass) -> usize {
        match class {
            RegClass::Int | RegClass::Vector => 1,
            RegClass::Float if self.wide => 8,
            RegClass::Float => 4,
        }
    }
}

/// Lists stored contiguously.
struct Lists<T> {
    items: Vec<T>,
    ends: Vec<u32>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { items: Vec::new(), ends: Vec::new() }
    }
}

impl<T> Lists<T> {
    fn clear(&mut self) {
        self.items.clear();
        self.ends.clear();
    }

    /// Ends the current list.
    fn end(&mut self) {
        self.ends.push(self.items.len() as u32);
    }

    fn get(&self, index: usize) -> &[T] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.items[start as usize..self.ends[index] as usize]
    }
}

fn virtual_register(function: &Function, reg: Reg) -> VReg {
    let class = match function.classes[reg.0 as usize] {
        Class::Scalar => RegClass::Int,
        Class::Vector => RegClass::Float,
        Class::Mask => RegClass::Vector,
    };
    VReg::new(reg.0 as usize, class)
}

/// Allocator name of a scalar register.
fn fixed(register: Register) -> PReg {
    PReg::new(register.number(), RegClass::Int)
}

fn location(allocation: Allocation, class: RegClass) -> Location {
    let kind = match class {
        RegClass::Int => Class::Scalar,
        RegClass::Float => Class::Vector,
        RegClass::Vector => Class::Mask,
    };
    match (allocation.as_reg(), allocation.as_stack()) {
        (Some(register), _) => Location::Register(kind, register.hw_enc() as u8),
        (None, Some(slot)) => Location::Stack(kind, slot.index() as u32 * 8),
        (None, None) => unreachable!("a move without a place"),
    }
}

/// Position of the instruction that an edit precedes.
fn before(point: ProgPoint) -> usize {
    match point.pos() {
        regalloc2::InstPosition::Before => point.inst().index(),
        regalloc2::InstPosition::After => point.inst().index() + 1,
    }
}

/// Allocatable registers. Cycles of moves are broken through a free register, or through the stack.
fn environment(wide: bool, upper: bool) -> MachineEnv {
    let saved: PRegSet = CALLEE_SAVED.into_iter().map(fixed).collect();
    let mut scalars: PRegSet = (0..16).map(|number| PReg::new(number, RegClass::Int)).collect();
    for register in saved.into_iter().chain([fixed(Register::RSP), fixed(CONTEXT)]) {
        scalars.remove(register);
    }
    let vectors = |numbers: Range<usize>| numbers.map(|number| PReg::new(number, RegClass::Float)).collect();
    let masks = (1..8).map(|number| PReg::new(number, RegClass::Vector)).collect();
    MachineEnv {
        preferred_regs_by_class: [scalars, vectors(0..16), if wide { masks } else { PRegSet::empty() }],
        non_preferred_regs_by_class: [saved, if upper { vectors(16..32) } else { PRegSet::empty() }, PRegSet::empty()],
        scratch_by_class: [None; 3],
        fixed_stack_slots: Vec::new(),
    }
}

/// Checks the allocation by symbolic execution of the moves.
#[cfg(all(test, debug_assertions))]
fn check(graph: &Graph, environment: &MachineEnv, output: &Output) {
    let mut checker = regalloc2::checker::Checker::new(graph, environment);
    checker.prepare(output);
    if let Err(errors) = checker.run() {
        panic!("wrong registers: {errors:?}");
    }
}
