//! Encoding: from a function with allocated registers to bytes.
//!
//! Blocks are encoded first without their jumps; then block order and jump lengths are chosen (branch relaxation); then
//! everything is concatenated. The constant pool follows the code.
//!
//! The stack frame, from the stack pointer up: spilled values, the scratch area, the stack pointer of the caller, and the
//! floating point state (MXCSR) of the caller. It is aligned to 64 bytes.

use std::ops::Range;

use iced_x86::{Code, ConditionCode, Instruction, MemoryOperand, OpKind, Register};

use super::allocate::{CONTEXT, Location, Registers, register};
use super::{Address, Base, BlockId, Class, End, Function, Inst, Operand, Width};
use crate::stack::MAX_FRAME;
use crate::x86::Error;

/// Origin of machine instructions without a program instruction.
pub(crate) const NO_ORIGIN: u32 = u32::MAX;

/// Default floating-point state: round to nearest, keep denormals, mask all exceptions.
const DEFAULT_MXCSR: i32 = 0x1f80;

/// Alignment of entry points and constants.
const ALIGNMENT: usize = 64;

/// Alignment of loop headers.
const LOOP_ALIGNMENT: usize = 32;

/// Stack page size: pages must be touched in order, because the guard page follows the last one.
const PAGE: i32 = 4096;

/// Machine code, position-independent at multiples of 64.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// Code, followed by the constant pool.
    pub(crate) bytes: Vec<u8>,
    /// Size of the code in bytes.
    pub(crate) code_size: u32,
    /// Offset of the constant pool.
    pub(crate) pool: u32,
    /// Offset and origin wherever the origin changes.
    pub(crate) marks: Vec<(u32, u32)>,
}

/// Encoder, with buffers reused between functions.
pub(crate) struct Encoder {
    encoder: iced_x86::Encoder,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { encoder: iced_x86::Encoder::new(64) }
    }
}

impl Encoder {
    /// Encodes a function.
    pub(crate) fn encode(&mut self, function: &Function, registers: &Registers<'_>) -> Result<Encoded, Error> {
        let frame = Frame::new(function, registers)?;
        let mut buffer = self.encoder.take_buffer();
        buffer.clear();
        buffer.reserve(function.blocks.iter().map(|block| block.insts.len() * 8 + 16).sum::<usize>() + 256);
        self.encoder.set_buffer(buffer);
        let mut writer = Writer {
            encoder: &mut self.encoder,
            frame: &frame,
            wide: function.wide,
            position: 0,
            pool_addresses: Vec::new(),
            marks: vec![(0, NO_ORIGIN)],
        };
        writer.prologue()?;
        let prologue = writer.position;
        let mut bodies = writer.bodies(function, registers)?;
        let Writer { pool_addresses, marks, .. } = writer;
        let bytes = self.encoder.take_buffer();

        thread_jumps(&mut bodies);
        let layout = Layout::new(function, registers, &bodies, prologue)?;
        let encoded = layout.concatenate(function, &bytes, &pool_addresses, &marks);
        self.encoder.set_buffer(bytes);
        encoded
    }
}

/// Stack frame layout.
struct Frame {
    /// Registers to save, besides the one for the context.
    saved: Vec<Register>,
    scratch: i32,
    caller: i32,
    caller_mxcsr: i32,
    mxcsr: i32,
    size: i32,
}

impl Frame {
    fn new(function: &Function, registers: &Registers<'_>) -> Result<Self, Error> {
        let scratch = registers.spill_size().next_multiple_of(ALIGNMENT);
        let caller = (scratch + function.scratch as usize).next_multiple_of(8);
        let size = (caller + 16).next_multiple_of(ALIGNMENT);
        if size > MAX_FRAME {
            return Err(Error::Frame { bytes: size });
        }
        let caller_offset = caller as i32;
        Ok(Self {
            saved: registers.saved().collect(),
            scratch: scratch as i32,
            caller: caller_offset,
            caller_mxcsr: caller_offset + 8,
            mxcsr: caller_offset + 12,
            size: size as i32,
        })
    }
}

/// Encoded bytes of a block, without its jump.
struct Body {
    /// Range in the written bytes.
    bytes: Range<usize>,
    exit: Exit,
}

/// Exit of a block; blocks are numbered by their position in [`Registers::order`].
#[derive(Clone, Copy)]
enum Exit {
    Jump(usize),
    Branch {
        condition: u8,
        taken: usize,
        other: usize,
    },
    /// The bytes of the block end with a return.
    Return,
}

/// Relocation: a reference from code to a constant.
struct PoolAddress {
    /// Position of the 32-bit displacement.
    field: usize,
    /// End of the instruction, the base of the displacement.
    end: usize,
    /// Offset in the pool.
    offset: i32,
}

/// Writes instructions sequentially.
struct Writer<'a> {
    encoder: &'a mut iced_x86::Encoder,
    frame: &'a Frame,
    wide: bool,
    position: usize,
    pool_addresses: Vec<PoolAddress>,
    marks: Vec<(u32, u32)>,
}

impl Writer<'_> {
    fn prologue(&mut self) -> Result<(), Error> {
        let frame = self.frame;
        for &saved in frame.saved.iter().chain([&CONTEXT]) {
            self.emit(&Instruction::with1(Code::Push_r64, saved))?;
        }
        self.emit(&Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::RSP))?;
        if frame.size < PAGE {
            self.emit(&Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, frame.size))?;
        } else {
            // Stack probes: touches each page, so that an overflow hits the guard page.
            let lowest = MemoryOperand::with_base_displ(Register::RSP, -i64::from(frame.size));
            self.emit(&Instruction::with2(Code::Lea_r64_m, Register::R11, lowest))?;
            let start = self.position;
            self.emit(&Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, PAGE))?;
            let top = MemoryOperand::with_base(Register::RSP);
            self.emit(&Instruction::with2(Code::Test_rm32_r32, top, Register::ESP))?;
            self.emit(&Instruction::with2(Code::Cmp_r64_rm64, Register::RSP, Register::R11))?;
            self.emit(&Instruction::with_branch(Code::Ja_rel8_64, start as u64))?;
            self.emit(&Instruction::with2(Code::Mov_r64_rm64, Register::RSP, Register::R11))?;
        }
        self.emit(&Instruction::with2(Code::And_rm64_imm8, Register::RSP, -(ALIGNMENT as i32)))?;
        self.emit(&Instruction::with2(Code::Mov_rm64_r64, stack(frame.caller), Register::RAX))?;
        self.emit(&Instruction::with1(Code::VEX_Vstmxcsr_m32, stack(frame.caller_mxcsr)))?;
        self.emit(&Instruction::with2(Code::Mov_rm32_imm32, stack(frame.mxcsr), DEFAULT_MXCSR))?;
        self.emit(&Instruction::with1(Code::VEX_Vldmxcsr_m32, stack(frame.mxcsr)))?;
        self.emit(&Instruction::with2(Code::Mov_r64_rm64, CONTEXT, Register::RDI))
    }

    fn epilogue(&mut self) -> Result<(), Error> {
        let frame = self.frame;
        self.mark(NO_ORIGIN);
        self.emit(&Instruction::with1(Code::VEX_Vldmxcsr_m32, stack(frame.caller_mxcsr)))?;
        self.emit(&Ok(Instruction::with(Code::VEX_Vzeroupper)))?;
        self.emit(&Instruction::with2(Code::Mov_r64_rm64, Register::RSP, stack(frame.caller)))?;
        for &saved in frame.saved.iter().chain([&CONTEXT]).rev() {
            self.emit(&Instruction::with1(Code::Pop_r64, saved))?;
        }
        self.emit(&Ok(Instruction::with(Code::Retnq)))
    }

    /// Writes the bodies of all blocks.
    fn bodies(&mut self, function: &Function, registers: &Registers<'_>) -> Result<Vec<Body>, Error> {
        let order = registers.order();
        let mut positions = vec![0; function.blocks.len()];
        for (position, block) in order.iter().enumerate() {
            positions[block.0 as usize] = position;
        }
        let position_of = |block: BlockId| positions[block.0 as usize];
        let mut moves = registers.moves().peekable();
        let mut bodies = Vec::with_capacity(order.len());
        for (position, &id) in order.iter().enumerate() {
            let block = &function.blocks[id.0 as usize];
            let start = self.position;
            // One position more than instructions: the jump.
            let mut insts = block.insts.iter();
            for index in registers.insts(position) {
                while let Some((_, from, to)) = moves.next_if(|&(before, _, _)| before == index) {
                    self.move_value(from, to)?;
                }
                if let Some(inst) = insts.next() {
                    self.mark(inst.origin);
                    self.inst(inst, &mut registers.of(index)).map_err(|error| Error::Inst {
                        code: inst.code,
                        origin: inst.origin,
                        error: Box::new(error),
                    })?;
                }
            }
            let exit = match &block.end {
                End::Jump(edge) => Exit::Jump(position_of(edge.to)),
                End::Branch { code, taken, other } => Exit::Branch {
                    condition: condition(*code).ok_or(Error::Condition(*code))?,
                    taken: position_of(*taken),
                    other: position_of(*other),
                },
                End::Return => {
                    self.epilogue()?;
                    Exit::Return
                }
                End::Open => return Err(Error::OpenBlock(id)),
            };
            bodies.push(Body { bytes: start..self.position, exit });
        }
        Ok(bodies)
    }

    fn mark(&mut self, origin: u32) {
        let position = self.position as u32;
        match self.marks.last_mut() {
            Some((_, last)) if *last == origin => {}
            Some((at, last)) if *at == position => *last = origin,
            Some(_) | None => self.marks.push((position, origin)),
        }
    }

    fn emit(&mut self, instruction: &Result<Instruction, iced_x86::IcedError>) -> Result<(), Error> {
        let instruction = instruction.as_ref().map_err(Clone::clone)?;
        self.position += self.encoder.encode(instruction, self.position as u64)?;
        Ok(())
    }

    fn move_value(&mut self, from: Location, to: Location) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        let name = |class, number| match class {
            Class::Scalar => register(number, Width::Qword),
            Class::Vector if self.wide => register(number, Width::Zmm),
            Class::Vector => register(number, Width::Ymm),
            Class::Mask => register(number, Width::Mask),
        };
        let (Location::Register(class, _) | Location::Stack(class, _)) = to;
        // Vectors are aligned on the stack.
        let (to_register, to_stack) = match class {
            Class::Scalar => (Code::Mov_r64_rm64, Code::Mov_rm64_r64),
            Class::Vector if self.wide => (Code::EVEX_Vmovaps_zmm_k1z_zmmm512, Code::EVEX_Vmovaps_zmmm512_k1z_zmm),
            Class::Vector => (Code::VEX_Vmovaps_ymm_ymmm256, Code::VEX_Vmovaps_ymmm256_ymm),
            Class::Mask => (Code::VEX_Kmovq_kr_km64, Code::VEX_Kmovq_m64_kr),
        };
        let instruction = match (from, to) {
            (Location::Register(class, from), Location::Register(_, to)) => {
                Instruction::with2(to_register, name(class, to), name(class, from))
            }
            (Location::Stack(_, offset), Location::Register(class, to)) => {
                Instruction::with2(to_register, name(class, to), stack(offset as i32))
            }
            (Location::Register(class, from), Location::Stack(_, offset)) => {
                Instruction::with2(to_stack, stack(offset as i32), name(class, from))
            }
            (Location::Stack(..), Location::Stack(..)) => return Err(Error::Malformed("a move from memory to memory")),
        };
        self.emit(&instruction)
    }

    /// Encodes an instruction with allocated registers.
    fn inst(&mut self, inst: &Inst, registers: &mut impl Iterator<Item = u8>) -> Result<(), Error> {
        let mut next = || registers.next().ok_or(Error::Malformed("too few registers"));
        let mut instruction = with_immediate(inst)?;
        let mut pool_offset = None;
        for (position, operand) in (0_u32..).zip(&inst.operands) {
            match *operand {
                Operand::Def(_, width) | Operand::Use(_, width) => {
                    set_register(&mut instruction, position, register(next()?, width))?;
                }
                Operand::Update { width, .. } => {
                    set_register(&mut instruction, position, register(next()?, width))?;
                    // An updated operand has a use and a definition in the same register.
                    next()?;
                }
                Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) => {}
                Operand::Memory(Address { base, index, displacement }) => {
                    instruction.try_set_op_kind(position, OpKind::Memory)?;
                    let (base, displacement) = match base {
                        Base::Reg(_) => (register(next()?, Width::Qword), displacement),
                        Base::Context => (CONTEXT, displacement),
                        Base::Scratch => (Register::RSP, self.frame.scratch + displacement),
                        Base::Pool => {
                            // The displacement is filled in later; until then, the address is that of the instruction.
                            pool_offset = Some(displacement);
                            (Register::RIP, self.position as i32)
                        }
                    };
                    instruction.set_memory_base(base);
                    if let Some((_, width, scale)) = index {
                        instruction.set_memory_index(register(next()?, width));
                        instruction.set_memory_index_scale(u32::from(scale));
                    }
                    instruction.set_memory_displacement64(i64::from(displacement) as u64);
                    // The encoder chooses the shortest displacement if 8 bits are allowed.
                    instruction.set_memory_displ_size(u32::from(displacement != 0));
                }
            }
        }
        if inst.mask.is_some() {
            instruction.set_op_mask(register(next()?, Width::Mask));
            instruction.set_zeroing_masking(inst.zeroing);
        }
        instruction.set_has_lock_prefix(inst.locked);
        // Shift count, which iced represents as an operand.
        if instruction.op_count() as usize == inst.operands.len() + 1 {
            set_register(&mut instruction, inst.operands.len() as u32, Register::CL)?;
        }
        let start = self.position;
        self.emit(&Ok(instruction))?;
        if let Some(offset) = pool_offset {
            let field = start + self.encoder.get_constant_offsets().displacement_offset();
            self.pool_addresses.push(PoolAddress { field, end: self.position, offset });
        }
        Ok(())
    }
}

/// Starts an instruction with its immediate, if any: the last operand, whose form iced derives from the encoding.
fn with_immediate(inst: &Inst) -> Result<Instruction, Error> {
    let none = Register::None;
    let last = inst.operands.last().copied();
    let value = match last {
        Some(Operand::Byte(value)) => i32::from(value),
        Some(Operand::Dword(value)) => value,
        Some(Operand::Qword(value)) => {
            return match inst.operands.len() {
                2 => Ok(Instruction::with2(inst.code, none, value)?),
                _ => Err(Error::Malformed("a 64-bit immediate in an instruction without exactly two operands")),
            };
        }
        Some(Operand::Def(..) | Operand::Use(..) | Operand::Update { .. } | Operand::Memory(_)) | None => {
            let mut instruction = Instruction::default();
            instruction.set_code(inst.code);
            return Ok(instruction);
        }
    };
    Ok(match inst.operands.len() {
        1 => Instruction::with1(inst.code, value),
        2 => Instruction::with2(inst.code, none, value),
        3 => Instruction::with3(inst.code, none, none, value),
        4 => Instruction::with4(inst.code, none, none, none, value),
        _ => Instruction::with5(inst.code, none, none, none, none, value),
    }?)
}

fn set_register(instruction: &mut Instruction, position: u32, register: Register) -> Result<(), Error> {
    instruction.try_set_op_kind(position, OpKind::Register)?;
    Ok(instruction.try_set_op_register(position, register)?)
}

fn stack(offset: i32) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RSP, i64::from(offset))
}

/// Condition number in the encoding of a conditional jump, which iced counts from 1. The lowest bit inverts the
/// condition.
fn condition(code: Code) -> Option<u8> {
    (code.condition_code() as u8).checked_sub(ConditionCode::o as u8)
}

/// Jump threading: redirects jumps to empty blocks to their final targets.
fn thread_jumps(bodies: &mut [Body]) {
    let next = |bodies: &[Body], position: usize| match bodies[position].exit {
        Exit::Jump(to) if bodies[position].bytes.is_empty() => to,
        Exit::Jump(_) | Exit::Branch { .. } | Exit::Return => position,
    };
    let last = |bodies: &[Body], mut position: usize| {
        // A cycle of empty blocks has no final target.
        for _ in 0..bodies.len() {
            let to = next(bodies, position);
            if to == position {
                break;
            }
            position = to;
        }
        position
    };
    for position in 0..bodies.len() {
        bodies[position].exit = match bodies[position].exit {
            Exit::Jump(to) => Exit::Jump(last(bodies, to)),
            Exit::Branch { condition, taken, other } => {
                let (taken, other) = (last(bodies, taken), last(bodies, other));
                if taken == other { Exit::Jump(taken) } else { Exit::Branch { condition, taken, other } }
            }
            Exit::Return => Exit::Return,
        };
    }
}

/// Jump at the end of a block.
struct Jump {
    /// `None`: unconditional.
    condition: Option<u8>,
    to: usize,
    /// 32-bit distance instead of 8-bit.
    long: bool,
}

impl Jump {
    fn size(&self) -> usize {
        match (self.long, self.condition) {
            (false, _) => 2,
            (true, None) => 5,
            (true, Some(_)) => 6,
        }
    }
}

/// A block in the final layout.
struct Placed {
    bytes: Range<usize>,
    jumps: Vec<Jump>,
    alignment: usize,
    start: usize,
}

/// Final layout of all blocks.
struct Layout {
    prologue: usize,
    blocks: Vec<Placed>,
    /// Position in the layout, by position in the allocator's order.
    places: Vec<usize>,
    size: usize,
}

impl Layout {
    fn new(function: &Function, registers: &Registers<'_>, bodies: &[Body], prologue: usize) -> Result<Self, Error> {
        let reached = reached(bodies);
        let order = registers.order();
        let is_cold = |position: usize| position != 0 && function.blocks[order[position].0 as usize].cold;
        let mut sequence: Vec<usize> = (0..order.len()).filter(|&position| reached[position]).collect();
        sequence.sort_by_key(|&position| is_cold(position));

        let mut places = vec![usize::MAX; order.len()];
        for (place, &position) in sequence.iter().enumerate() {
            places[position] = place;
        }
        let blocks = sequence
            .iter()
            .enumerate()
            .map(|(place, &position)| {
                let next = sequence.get(place + 1).copied();
                let jump = |condition, to| Jump { condition, to, long: false };
                let jumps = match bodies[position].exit {
                    Exit::Return => vec![],
                    Exit::Jump(to) if Some(to) == next => vec![],
                    Exit::Jump(to) => vec![jump(None, to)],
                    Exit::Branch { condition, taken, other } if Some(other) == next => {
                        vec![jump(Some(condition), taken)]
                    }
                    Exit::Branch { condition, taken, other } if Some(taken) == next => {
                        vec![jump(Some(condition ^ 1), other)]
                    }
                    Exit::Branch { condition, taken, other } => vec![jump(Some(condition), taken), jump(None, other)],
                };
                let is_hot_loop = registers.is_loop(position) && !is_cold(position);
                Placed {
                    bytes: bodies[position].bytes.clone(),
                    jumps,
                    alignment: if is_hot_loop { LOOP_ALIGNMENT } else { 1 },
                    start: 0,
                }
            })
            .collect();
        let mut layout = Self { prologue, blocks, places, size: 0 };
        // Branch relaxation: jumps only grow, so the loop terminates.
        loop {
            layout.assign();
            if !layout.lengthen() {
                break;
            }
        }
        if layout.size + function.pool.len() > i32::MAX as usize {
            return Err(Error::Size);
        }
        Ok(layout)
    }

    /// Assigns start offsets to blocks.
    fn assign(&mut self) {
        let mut position = self.prologue;
        for block in &mut self.blocks {
            block.start = position.next_multiple_of(block.alignment);
            position = block.start + block.bytes.len() + block.jumps.iter().map(Jump::size).sum::<usize>();
        }
        self.size = position;
    }

    /// Lengthens jumps whose distance exceeds 8 bits.
    fn lengthen(&mut self) -> bool {
        let mut changed = false;
        for place in 0..self.blocks.len() {
            let mut end = self.blocks[place].start + self.blocks[place].bytes.len();
            for index in 0..self.blocks[place].jumps.len() {
                let jump = &self.blocks[place].jumps[index];
                end += jump.size();
                let to = self.blocks[self.places[jump.to]].start;
                if !jump.long && i8::try_from(to as i64 - end as i64).is_err() {
                    self.blocks[place].jumps[index].long = true;
                    changed = true;
                }
            }
        }
        changed
    }

    fn concatenate(
        &self,
        function: &Function,
        bytes: &[u8],
        pool_addresses: &[PoolAddress],
        marks: &[(u32, u32)],
    ) -> Result<Encoded, Error> {
        let pool = self.size.next_multiple_of(ALIGNMENT);
        let mut out = Vec::with_capacity(pool + function.pool.len());
        let mut out_marks = Vec::with_capacity(marks.len() + self.blocks.len());
        let mut add = |range: Range<usize>, out: &mut Vec<u8>| -> Result<(), Error> {
            let start = out.len();
            out.extend_from_slice(&bytes[range.clone()]);
            // The mark in effect at the start may precede it.
            let first = marks.partition_point(|&(at, _)| at as usize <= range.start).saturating_sub(1);
            for &(at, origin) in marks[first..].iter().take_while(|&&(at, _)| (at as usize) < range.end) {
                out_marks.push(((start + (at as usize).saturating_sub(range.start)) as u32, origin));
            }
            let first = pool_addresses.partition_point(|address| address.field < range.start);
            for address in pool_addresses[first..].iter().take_while(|address| address.field < range.end) {
                let end = start + (address.end - range.start);
                let distance = pool as i64 + i64::from(address.offset) - end as i64;
                let distance = i32::try_from(distance).map_err(|_| Error::Size)?;
                let field = start + (address.field - range.start);
                out[field..field + 4].copy_from_slice(&distance.to_le_bytes());
            }
            Ok(())
        };
        add(0..self.prologue, &mut out)?;
        for block in &self.blocks {
            pad(&mut out, block.start);
            add(block.bytes.clone(), &mut out)?;
            for jump in &block.jumps {
                let distance = self.blocks[self.places[jump.to]].start as i32 - (out.len() + jump.size()) as i32;
                match (jump.long, jump.condition) {
                    (false, None) => out.push(0xeb),
                    (false, Some(condition)) => out.push(0x70 | condition),
                    (true, None) => out.push(0xe9),
                    (true, Some(condition)) => out.extend([0x0f, 0x80 | condition]),
                }
                if jump.long {
                    out.extend(distance.to_le_bytes());
                } else {
                    out.push(distance as u8);
                }
            }
        }
        let code_size = out.len() as u32;
        // Unreachable breakpoints.
        out.resize(pool, 0xcc);
        out.extend_from_slice(&function.pool);
        out_marks.dedup_by_key(|&mut (_, origin)| origin);
        Ok(Encoded { bytes: out, code_size, pool: pool as u32, marks: out_marks })
    }
}

/// Blocks still reachable after jump threading.
fn reached(bodies: &[Body]) -> Vec<bool> {
    let mut reached = vec![false; bodies.len()];
    let mut work = vec![0];
    while let Some(position) = work.pop() {
        if !std::mem::replace(&mut reached[position], true) {
            match bodies[position].exit {
                Exit::Jump(to) => work.push(to),
                Exit::Branch { taken, other, .. } => work.extend([taken, other]),
                Exit::Return => {}
            }
        }
    }
    reached
}

/// Pads with the fewest possible no-op instructions.
fn pad(out: &mut Vec<u8>, size: usize) {
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    while out.len() < size {
        out.extend_from_slice(NOPS[(size - out.len()).min(NOPS.len()) - 1]);
    }
}
