//! Chooses registers quickly, block by block.
//!
//! Between blocks all values are in memory: what another block than its own needs is stored once, where it is written, and
//! loaded by each block that uses it. Inside a block, values stay in registers as long as there is room. Liveness is never
//! computed, so the time does not depend on how many values are alive how long; that is what makes `regalloc2`'s own fast
//! algorithm slow for functions of thousands of blocks.

use regalloc2::{
    Allocation, Block, Edit, Function, Inst, MachineEnv, Operand, OperandConstraint, OperandKind, Output, PReg,
    ProgPoint, RegClass, SpillSlot, VReg,
};

/// Chooses registers for the operands of a function, and the moves between them.
pub(super) fn allocate(function: &impl Function, environment: &MachineEnv, output: &mut Output) {
    output.edits.clear();
    output.allocs.clear();
    output.inst_alloc_offsets.clear();
    output.num_spillslots = 0;
    let values = values(function);
    let banks = [RegClass::Int, RegClass::Float, RegClass::Vector].map(|class| Bank {
        preferred: numbers(environment.preferred_regs_by_class[class as usize]),
        others: numbers(environment.non_preferred_regs_by_class[class as usize]),
        occupied: 0,
        holders: [0; 32],
        next: 0,
    });
    let mut local = Local { function, values, banks, output, at: ProgPoint::before(Inst::new(0)) };
    for block in (0..function.num_blocks()).map(Block::new) {
        local.block(block);
    }
}

/// A virtual register.
#[derive(Clone, Copy)]
struct Value {
    /// The block that writes it.
    block: Block,
    /// The instruction of that block that reads it last.
    last: Inst,
    /// Whether another block reads it, or it is a parameter. Then it is in memory from where it is written on.
    shared: bool,
    /// A register that an instruction wants it in.
    wanted: Option<PReg>,
    /// The register it is in.
    register: Option<PReg>,
    /// Where it is in memory, if it is.
    slot: SpillSlot,
}

/// Finds out where values are read.
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

/// The registers of a class, as bits.
struct Bank {
    preferred: u32,
    /// Taken when no preferred one is free.
    others: u32,
    /// Hold a value.
    occupied: u32,
    /// The values they hold, by number.
    holders: [u32; 32],
    /// Where to look first for a register to take from its value.
    next: u32,
}

fn numbers(registers: regalloc2::PRegSet) -> u32 {
    registers.into_iter().fold(0, |bits, register| bits | bit(register))
}

fn bit(register: PReg) -> u32 {
    1 << register.hw_enc()
}

/// Registers of each class.
type Set = [u32; 3];

fn add(set: &mut Set, register: PReg) {
    set[register.class() as usize] |= bit(register);
}

fn has(set: &Set, register: PReg) -> bool {
    set[register.class() as usize] & bit(register) != 0
}

fn union(a: &Set, b: &Set) -> Set {
    std::array::from_fn(|class| a[class] | b[class])
}

struct Local<'a, F> {
    function: &'a F,
    values: Vec<Value>,
    banks: [Bank; 3],
    output: &'a mut Output,
    /// Where moves go.
    at: ProgPoint,
}

impl<F: Function> Local<'_, F> {
    fn block(&mut self, block: Block) {
        for bank in &mut self.banks {
            while bank.occupied != 0 {
                let number = bank.occupied.trailing_zeros();
                bank.occupied &= bank.occupied - 1;
                self.values[bank.holders[number as usize] as usize].register = None;
            }
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
        // Registers that are fixed; that are read, and that are written, as far as is known.
        let (mut fixed, mut read, mut written) = ([0; 3], [0; 3], [0; 3]);
        for operand in operands {
            if let Some(register) = fixed_register(operand) {
                add(&mut fixed, register);
                if operand.kind() == OperandKind::Def {
                    add(&mut written, register);
                }
            }
        }
        for (position, operand) in of_kind(OperandKind::Use) {
            let Some(register) = fixed_register(operand) else { continue };
            let vreg = operand.vreg();
            if self.values[vreg.vreg()].register != Some(register) {
                self.vacate(register, &union(&fixed, &read));
                match self.values[vreg.vreg()].register {
                    Some(from) => self.move_to(Allocation::reg(from), Allocation::reg(register)),
                    None => self.load(vreg, register),
                }
            }
            add(&mut read, register);
            self.output.allocs[position] = Allocation::reg(register);
        }
        for (position, operand) in of_kind(OperandKind::Use) {
            if fixed_register(operand).is_some() {
                continue;
            }
            let vreg = operand.vreg();
            let register = self.values[vreg.vreg()].register.unwrap_or_else(|| {
                let register = self.take(vreg.class(), &union(&fixed, &read));
                self.load(vreg, register);
                register
            });
            add(&mut read, register);
            self.output.allocs[position] = Allocation::reg(register);
        }
        // What is overwritten and needed again goes elsewhere first.
        for (position, operand) in of_kind(OperandKind::Def) {
            let OperandConstraint::Reuse(reused) = operand.constraint() else { continue };
            let vreg = operands[reused].vreg();
            let mut register = self.output.allocs[first + reused].as_reg().expect("operands are in registers");
            let value = self.values[vreg.vreg()];
            let again = value.last > inst && !self.is_in_memory(vreg);
            if again || has(&written, register) {
                let copy = self.take(vreg.class(), &union(&union(&fixed, &read), &written));
                self.move_to(Allocation::reg(register), Allocation::reg(copy));
                if has(&written, register) {
                    self.output.allocs[first + reused] = Allocation::reg(copy);
                    register = copy;
                } else if value.register == Some(register) {
                    self.release(register);
                    self.hold(vreg, copy);
                }
                add(&mut read, copy);
            } else if value.register == Some(register) {
                self.release(register);
            }
            add(&mut written, register);
            self.output.allocs[position] = Allocation::reg(register);
        }
        for (_, operand) in of_kind(OperandKind::Use) {
            let value = self.values[operand.vreg().vreg()];
            if let (Some(register), true) = (value.register, value.last == inst && !value.shared) {
                self.release(register);
            }
        }
        for (position, operand) in of_kind(OperandKind::Def) {
            let Some(register) = fixed_register(operand) else { continue };
            self.vacate(register, &union(&union(&fixed, &read), &written));
            self.output.allocs[position] = Allocation::reg(register);
        }
        for (position, operand) in of_kind(OperandKind::Def) {
            if self.output.allocs[position].is_none() {
                let vreg = operand.vreg();
                let wanted = self.values[vreg.vreg()].wanted.filter(|&wanted| {
                    let bank = &self.banks[wanted.class() as usize];
                    bank.occupied & bit(wanted) == 0 && !has(&written, wanted)
                });
                let register = wanted.unwrap_or_else(|| self.take(vreg.class(), &written));
                add(&mut written, register);
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

    /// Passes what a jump gives to the parameters of the block it leads to.
    fn arguments(&mut self, block: Block, jump: Inst) {
        let function = self.function;
        let &[to] = function.block_succs(block) else { return };
        let arguments = function.branch_blockparams(block, jump, 0);
        let moves = arguments.iter().copied().zip(function.block_params(to).iter().copied());
        // What may be a parameter itself is copied before any parameter is written.
        let mut moves: Vec<(VReg, Option<Allocation>, VReg)> = moves
            .filter(|(argument, param)| argument != param)
            .map(|(argument, param)| (argument, None, param))
            .collect();
        for (argument, copy, _) in &mut moves {
            if self.values[argument.vreg()].block == to {
                let register = self.fetch(*argument);
                let slot = self.new_slot(argument.class());
                self.move_to(Allocation::reg(register), slot);
                *copy = Some(slot);
            }
        }
        for (argument, copy, param) in moves {
            let register = match copy {
                Some(copy) => {
                    let register = self.take(argument.class(), &[0; 3]);
                    self.move_to(copy, Allocation::reg(register));
                    register
                }
                None => self.fetch(argument),
            };
            let slot = self.slot(param);
            self.move_to(Allocation::reg(register), slot);
        }
    }

    /// The register of a value.
    fn fetch(&mut self, vreg: VReg) -> PReg {
        self.values[vreg.vreg()].register.unwrap_or_else(|| {
            let register = self.take(vreg.class(), &[0; 3]);
            self.load(vreg, register);
            register
        })
    }

    fn move_to(&mut self, from: Allocation, to: Allocation) {
        self.output.edits.push((self.at, Edit::Move { from, to }));
    }

    /// Loads a value into a register that is free.
    fn load(&mut self, vreg: VReg, register: PReg) {
        let slot = self.slot(vreg);
        self.move_to(slot, Allocation::reg(register));
        self.hold(vreg, register);
    }

    fn hold(&mut self, vreg: VReg, register: PReg) {
        self.values[vreg.vreg()].register = Some(register);
        let bank = &mut self.banks[register.class() as usize];
        bank.occupied |= bit(register);
        bank.holders[register.hw_enc()] = vreg.vreg() as u32;
    }

    /// A register holds its value no longer.
    fn release(&mut self, register: PReg) {
        let bank = &mut self.banks[register.class() as usize];
        bank.occupied &= !bit(register);
        self.values[bank.holders[register.hw_enc()] as usize].register = None;
    }

    fn is_in_memory(&self, vreg: VReg) -> bool {
        let value = &self.values[vreg.vreg()];
        value.shared || value.slot.is_valid()
    }

    /// Where a value is in memory, or will be.
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

    /// Takes a register, which is then free, that is not one of those to avoid.
    fn take(&mut self, class: RegClass, avoid: &Set) -> PReg {
        if let Some(register) = self.free(class, avoid) {
            return register;
        }
        let bank = &mut self.banks[class as usize];
        let victims = (bank.preferred | bank.others) & !avoid[class as usize];
        // One after the other, so that what was loaded last stays longest.
        let later = victims & (u32::MAX << bank.next);
        let number = if later == 0 { victims } else { later }.trailing_zeros();
        assert!(number < 32, "an instruction has fewer operands than there are registers");
        bank.next = (number + 1) % 32;
        let register = PReg::new(number as usize, class);
        self.spill(register);
        register
    }

    fn free(&self, class: RegClass, avoid: &Set) -> Option<PReg> {
        let bank = &self.banks[class as usize];
        let taken = bank.occupied | avoid[class as usize];
        let free = [bank.preferred & !taken, bank.others & !taken].into_iter().find(|&free| free != 0)?;
        Some(PReg::new(free.trailing_zeros() as usize, class))
    }

    /// Puts the value of a register into memory, unless it is there already.
    fn spill(&mut self, register: PReg) {
        let holder = self.banks[register.class() as usize].holders[register.hw_enc()];
        let vreg = VReg::new(holder as usize, register.class());
        if !self.is_in_memory(vreg) {
            let slot = self.slot(vreg);
            self.move_to(Allocation::reg(register), slot);
        }
        self.release(register);
    }

    /// Frees a register, for a value that must be there. What it holds goes elsewhere.
    fn vacate(&mut self, register: PReg, avoid: &Set) {
        let bank = &self.banks[register.class() as usize];
        if bank.occupied & bit(register) == 0 {
            return;
        }
        let vreg = VReg::new(bank.holders[register.hw_enc()] as usize, register.class());
        match self.free(register.class(), avoid) {
            Some(other) => {
                self.move_to(Allocation::reg(register), Allocation::reg(other));
                self.release(register);
                self.hold(vreg, other);
            }
            None => self.spill(register),
        }
    }
}
