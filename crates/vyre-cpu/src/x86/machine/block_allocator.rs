//! Block-local register allocation, for large functions.
//!
//! Between blocks all values are in memory: a value that other blocks use is stored once, at its definition, and loaded
//! by each block that uses it. Within a block, values stay in registers until they are spilled. No liveness is
//! computed, so the time is independent of the lengths of live ranges, which make `regalloc2`'s own fast algorithm slow
//! for functions with thousands of blocks.

use regalloc2::{
    Allocation, Block, Edit, Function, Inst, MachineEnv, Operand, OperandConstraint, OperandKind, Output, PReg,
    PRegSet, ProgPoint, RegClass, SpillSlot, VReg,
};

/// Assigns registers to the operands of a function, and inserts moves between them.
pub(super) fn allocate(function: &impl Function, environment: &MachineEnv, output: &mut Output) {
    output.edits.clear();
    output.allocs.clear();
    output.inst_alloc_offsets.clear();
    output.num_spillslots = 0;
    let mut allocator = BlockAllocator {
        function,
        environment,
        values: values(function),
        free: PRegSet::from(environment),
        holders: [VReg::invalid(); PReg::NUM_INDEX],
        spilled_last: 0,
        output,
        at: ProgPoint::before(Inst::new(0)),
    };
    for block in (0..function.num_blocks()).map(Block::new) {
        allocator.block(block);
    }
}

/// A virtual register.
#[derive(Clone, Copy)]
struct Value {
    /// Defining block.
    block: Block,
    /// Last instruction of that block that reads the value.
    last: Inst,
    /// Another block reads it, or it is a block parameter: it is stored at its definition.
    shared: bool,
    /// Preferred register, of an instruction with a fixed operand.
    wanted: Option<PReg>,
    /// Current register.
    register: Option<PReg>,
    /// Stack slot, if any.
    slot: SpillSlot,
}

/// Collects the uses of values.
fn values(function: &impl Function) -> Vec<Value> {
    let unknown = Value {
        block: Block::invalid(),
        last: Inst::invalid(),
        shared: false,
        wanted: None,
        register: None,
        slot: SpillSlot::invalid(),
    };
    let mut values = vec![unknown; function.num_vregs()];
    for block in (0..function.num_blocks()).map(Block::new) {
        for param in function.block_params(block) {
            values[param.vreg()] = Value { block, shared: true, ..unknown };
        }
        let read = |values: &mut Vec<Value>, vreg: VReg, inst: Inst| {
            let value = &mut values[vreg.vreg()];
            value.last = inst;
            value.shared |= value.block != block;
        };
        let insts = function.block_insns(block);
        for inst in insts.iter() {
            for operand in function.inst_operands(inst) {
                match operand.kind() {
                    OperandKind::Use => {
                        read(&mut values, operand.vreg(), inst);
                        if let OperandConstraint::FixedReg(register) = operand.constraint() {
                            values[operand.vreg().vreg()].wanted = Some(register);
                        }
                    }
                    OperandKind::Def => values[operand.vreg().vreg()].block = block,
                }
            }
        }
        for (number, _) in function.block_succs(block).iter().enumerate() {
            for &argument in function.branch_blockparams(block, insts.last(), number) {
                read(&mut values, argument, insts.last());
            }
        }
    }
    values
}

struct BlockAllocator<'a, F> {
    function: &'a F,
    environment: &'a MachineEnv,
    values: Vec<Value>,
    /// Registers that hold no value.
    free: PRegSet,
    /// Values held by the other registers, by index.
    holders: [VReg; PReg::NUM_INDEX],
    /// Index of the register evicted last.
    spilled_last: usize,
    output: &'a mut Output,
    /// Insertion point of moves.
    at: ProgPoint,
}

impl<F: Function> BlockAllocator<'_, F> {
    fn block(&mut self, block: Block) {
        let all = PRegSet::from(self.environment);
        for register in all & self.free.invert() {
            self.release(register);
        }
        let insts = self.function.block_insns(block);
        for inst in insts.iter() {
            self.output.inst_alloc_offsets.push(self.output.allocs.len() as u32);
            self.at = ProgPoint::before(inst);
            if inst == insts.last() {
                self.arguments(block, inst);
            } else {
                self.inst(inst);
            }
        }
    }

    fn inst(&mut self, inst: Inst) {
        let function = self.function;
        let operands = function.inst_operands(inst);
        let first = self.output.allocs.len();
        self.output.allocs.resize(first + operands.len(), Allocation::none());
        let fixed_register = |operand: &Operand| match operand.constraint() {
            OperandConstraint::FixedReg(register) => Some(register),
            _ => None,
        };
        let of_kind = |kind| (first..).zip(operands).filter(move |(_, operand)| operand.kind() == kind);
        // Registers that are fixed or read, and those that are written, as known so far.
        let (mut used, mut written) = (PRegSet::empty(), PRegSet::empty());
        for operand in operands {
            if let Some(register) = fixed_register(operand) {
                used.add(register);
                if operand.kind() == OperandKind::Def {
                    written.add(register);
                }
            }
        }
        for (position, operand) in of_kind(OperandKind::Use) {
            let Some(register) = fixed_register(operand) else { continue };
            let vreg = operand.vreg();
            if self.values[vreg.vreg()].register != Some(register) {
                self.vacate(register, used);
                match self.values[vreg.vreg()].register {
                    Some(from) => self.move_to(Allocation::reg(from), Allocation::reg(register)),
                    None => self.load(vreg, register),
                }
            }
            self.output.allocs[position] = Allocation::reg(register);
        }
        for (position, operand) in of_kind(OperandKind::Use) {
            if self.output.allocs[position].is_none() {
                let register = self.fetch(operand.vreg(), used);
                used.add(register);
                self.output.allocs[position] = Allocation::reg(register);
            }
        }
        // Copies an overwritten operand that is still needed.
        for (position, operand) in of_kind(OperandKind::Def) {
            let OperandConstraint::Reuse(reused) = operand.constraint() else { continue };
            let vreg = operands[reused].vreg();
            let mut register = self.output.allocs[first + reused].as_reg().expect("operands are in registers");
            let taken = written.contains(register);
            if taken || self.values[vreg.vreg()].last > inst && !self.is_in_memory(vreg) {
                let copy = self.take(vreg.class(), used | written);
                used.add(copy);
                self.move_to(Allocation::reg(register), Allocation::reg(copy));
                if taken {
                    self.output.allocs[first + reused] = Allocation::reg(copy);
                    register = copy;
                } else {
                    self.release(register);
                    self.hold(vreg, copy);
                }
            } else if self.values[vreg.vreg()].register == Some(register) {
                self.release(register);
            }
            written.add(register);
            self.output.allocs[position] = Allocation::reg(register);
        }
        for (_, operand) in of_kind(OperandKind::Use) {
            let value = self.values[operand.vreg().vreg()];
            if let (Some(register), true) = (value.register, value.last == inst && !value.shared) {
                self.release(register);
            }
        }
        for (position, operand) in of_kind(OperandKind::Def) {
            if let Some(register) = fixed_register(operand) {
                self.vacate(register, used | written);
                self.output.allocs[position] = Allocation::reg(register);
            }
        }
        for (position, operand) in of_kind(OperandKind::Def) {
            if self.output.allocs[position].is_none() {
                let vreg = operand.vreg();
                let wanted = self.values[vreg.vreg()].wanted;
                let wanted = wanted.filter(|&wanted| self.free.contains(wanted) && !written.contains(wanted));
                let register = wanted.unwrap_or_else(|| self.take(vreg.class(), written));
                written.add(register);
                self.output.allocs[position] = Allocation::reg(register);
            }
        }
        self.at = ProgPoint::after(inst);
        for (position, operand) in of_kind(OperandKind::Def) {
            let vreg = operand.vreg();
            let register = self.output.allocs[position];
            let value = self.values[vreg.vreg()];
            if value.shared {
                let slot = self.slot(vreg);
                self.move_to(register, slot);
            }
            if value.last.is_valid() {
                self.hold(vreg, register.as_reg().expect("operands are in registers"));
            }
        }
    }

    /// Passes the arguments of a jump to the parameters of its target.
    fn arguments(&mut self, block: Block, jump: Inst) {
        let function = self.function;
        let &[to] = function.block_succs(block) else { return };
        let arguments = function.branch_blockparams(block, jump, 0);
        let moves = arguments.iter().copied().zip(function.block_params(to).iter().copied());
        // Arguments that are parameters themselves are copied before any parameter is written.
        let mut copied: Vec<(VReg, Option<Allocation>, VReg)> = Vec::with_capacity(arguments.len());
        for (argument, param) in moves.filter(|(argument, param)| argument != param) {
            let copy = (self.values[argument.vreg()].block == to).then(|| {
                let register = self.fetch(argument, PRegSet::empty());
                let copy = self.new_slot(argument.class());
                self.move_to(Allocation::reg(register), copy);
                copy
            });
            copied.push((argument, copy, param));
        }
        for (argument, copy, param) in copied {
            let register = match copy {
                None => self.fetch(argument, PRegSet::empty()),
                Some(copy) => {
                    let register = self.take(argument.class(), PRegSet::empty());
                    self.move_to(copy, Allocation::reg(register));
                    register
                }
            };
            let slot = self.slot(param);
            self.move_to(Allocation::reg(register), slot);
        }
    }

    /// Returns the register of a value; loads it into one outside `avoid` if necessary.
    fn fetch(&mut self, vreg: VReg, avoid: PRegSet) -> PReg {
        self.values[vreg.vreg()].register.unwrap_or_else(|| {
            let register = self.take(vreg.class(), avoid);
            self.load(vreg, register);
            register
        })
    }

    fn move_to(&mut self, from: Allocation, to: Allocation) {
        self.output.edits.push((self.at, Edit::Move { from, to }));
    }

    /// Loads a value into a free register.
    fn load(&mut self, vreg: VReg, register: PReg) {
        let slot = self.slot(vreg);
        self.move_to(slot, Allocation::reg(register));
        self.hold(vreg, register);
    }

    fn hold(&mut self, vreg: VReg, register: PReg) {
        self.values[vreg.vreg()].register = Some(register);
        self.holders[register.index()] = vreg;
        self.free.remove(register);
    }

    /// Marks a register as free.
    fn release(&mut self, register: PReg) {
        self.values[self.holders[register.index()].vreg()].register = None;
        self.free.add(register);
    }

    fn is_in_memory(&self, vreg: VReg) -> bool {
        let value = &self.values[vreg.vreg()];
        value.shared || value.slot.is_valid()
    }

    /// Stack slot of a value, allocated on first use.
    fn slot(&mut self, vreg: VReg) -> Allocation {
        if self.values[vreg.vreg()].slot.is_invalid() {
            let slot = self.new_slot(vreg.class());
            self.values[vreg.vreg()].slot = slot.as_stack().expect("made as one");
        }
        Allocation::stack(self.values[vreg.vreg()].slot)
    }

    fn new_slot(&mut self, class: RegClass) -> Allocation {
        let size = self.function.spillslot_size(class);
        let slot = self.output.num_spillslots.next_multiple_of(size);
        self.output.num_spillslots = slot + size;
        Allocation::stack(SpillSlot::new(slot))
    }

    fn find_free(&self, class: RegClass, avoid: PRegSet) -> Option<PReg> {
        let free = self.free & avoid.invert();
        let MachineEnv { preferred_regs_by_class, non_preferred_regs_by_class, .. } = self.environment;
        let lists = [preferred_regs_by_class, non_preferred_regs_by_class];
        lists.into_iter().find_map(|list| (list[class as usize] & free).into_iter().next())
    }

    /// Returns a free register outside `avoid`, evicting a value if necessary.
    fn take(&mut self, class: RegClass, avoid: PRegSet) -> PReg {
        if let Some(register) = self.find_free(class, avoid) {
            return register;
        }
        let environment = self.environment;
        let all = environment.preferred_regs_by_class[class as usize]
            | environment.non_preferred_regs_by_class[class as usize];
        let candidates = all & avoid.invert();
        // Round-robin eviction: the most recently loaded values stay longest.
        let next = candidates.into_iter().find(|register| register.index() > self.spilled_last);
        let register = next.or_else(|| candidates.into_iter().next());
        let register = register.expect("an instruction has fewer operands than there are registers");
        self.spilled_last = register.index();
        self.spill(register);
        register
    }

    /// Stores the value of a register to its slot, unless it is there already.
    fn spill(&mut self, register: PReg) {
        let vreg = self.holders[register.index()];
        if !self.is_in_memory(vreg) {
            let slot = self.slot(vreg);
            self.move_to(Allocation::reg(register), slot);
        }
        self.release(register);
    }

    /// Frees a fixed register; its value moves to another register or to memory.
    fn vacate(&mut self, register: PReg, avoid: PRegSet) {
        if self.free.contains(register) {
            return;
        }
        match self.find_free(register.class(), avoid) {
            Some(other) => {
                let vreg = self.holders[register.index()];
                self.move_to(Allocation::reg(register), Allocation::reg(other));
                self.release(register);
                self.hold(vreg, other);
            }
            None => self.spill(register),
        }
    }
}
