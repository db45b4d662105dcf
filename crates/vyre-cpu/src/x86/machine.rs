//! Machine code before registers are chosen: blocks of x86 instructions over virtual registers, in SSA form.
//!
//! An instruction is one encoding ([`Code`]) with its operands in the order of the manual. Nothing below this module knows what
//! instructions do, only which operands they read and write. A flag that one instruction sets is read by the next one or by
//! the terminator right after it: what the register allocator puts in between are moves, which keep flags.

use iced_x86::{Code, Register};
use smallvec::SmallVec;

/// A virtual register. It is written once: by an instruction, or as a parameter of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg(pub(crate) u32);

/// What kind of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// General purpose, 64 bits.
    Scalar,
    /// `ymm` or, with AVX-512, `zmm`.
    Vector,
    /// `k`; with AVX-512 only. `k0` is never used.
    Mask,
}

/// How much of a register an operand is, which is how it is written in assembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Byte,
    Word,
    Dword,
    Qword,
    Xmm,
    Ymm,
    Zmm,
    Mask,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Reg(Reg),
    /// The context the code was called with; it has a register of its own.
    Context,
    /// The scratch area of the stack frame, aligned to 64 bytes.
    Scratch,
    /// The constants of the function, aligned to 64 bytes.
    Pool,
}

/// The address of a memory operand: base + index × scale + displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Base,
    /// Register, its width (a vector for gathers and scatters), and scale.
    pub(crate) index: Option<(Reg, Width, u8)>,
    pub(crate) displacement: i32,
}

/// An operand that stands in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Is written, after everything was read.
    Def(Reg, Width),
    /// Is read.
    Use(Reg, Width),
    /// Is read as `from` and written as `to`: one register.
    Update {
        from: Reg,
        to: Reg,
        width: Width,
    },
    /// An immediate of 8 bits, as it is or to be extended to the size of the operation: whichever the encoding has.
    Byte(i8),
    /// An immediate of 32 bits, as it is or to be extended to 64.
    Dword(i32),
    /// An immediate of 64 bits.
    Qword(i64),
    Memory(Address),
}

/// An operand that does not stand in the encoding, because it is always in the same register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implicit {
    Use(Reg, Register),
    Def(Reg, Register),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) code: Code,
    pub(crate) operands: SmallVec<[Operand; 3]>,
    pub(crate) implicit: SmallVec<[Implicit; 1]>,
    /// The mask of an AVX-512 instruction.
    pub(crate) mask: Option<Reg>,
    /// Whether lanes that are not in the mask become zero; they keep what they were otherwise.
    pub(crate) zeroing: bool,
    /// Whether no other processor accesses its memory operand in between.
    pub(crate) locked: bool,
    /// Whether it does something besides writing its results: it must stay even if nobody reads these.
    pub(crate) effect: bool,
    /// Which instruction of the program it was made for; the caller's number.
    pub(crate) origin: u32,
}

/// Where control goes, and what the parameters there get.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) to: BlockId,
    pub(crate) arguments: SmallVec<[Reg; 4]>,
}

/// A block, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// How a block ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Jump(Edge),
    /// A conditional jump by the flags that the last instruction has set. The blocks it leads to have no parameters and no
    /// other predecessor.
    Branch {
        /// Encoding of the jump, with a 32-bit distance.
        code: Code,
        taken: BlockId,
        other: BlockId,
    },
    Return,
    /// Not ended yet.
    Open,
}

/// A sequence of instructions.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) params: Vec<Reg>,
    pub(crate) insts: Vec<Inst>,
    pub(crate) end: End,
    /// Rarely executed: stands behind the others.
    pub(crate) cold: bool,
}

/// A function: it is called with a pointer to its context in `rdi`, and keeps what the System V convention asks for.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The first is the entry.
    pub(crate) blocks: Vec<Block>,
    /// The class of each virtual register.
    pub(crate) classes: Vec<Class>,
    /// Constants.
    pub(crate) pool: Vec<u8>,
    /// How many bytes of scratch memory it has on the stack.
    pub(crate) scratch: u32,
    /// Whether vectors have 64 bytes; they have 32 otherwise.
    pub(crate) wide: bool,
}

impl Inst {
    /// Calls `read` with each register that it reads.
    pub(crate) fn reads(&self, mut read: impl FnMut(Reg)) {
        for operand in &self.operands {
            match *operand {
                Operand::Use(reg, _) | Operand::Update { from: reg, .. } => read(reg),
                Operand::Memory(address) => {
                    if let Base::Reg(reg) = address.base {
                        read(reg);
                    }
                    if let Some((reg, _, _)) = address.index {
                        read(reg);
                    }
                }
                Operand::Def(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) => {}
            }
        }
        if let Some(reg) = self.mask {
            read(reg);
        }
        for implicit in &self.implicit {
            match *implicit {
                Implicit::Use(reg, _) => read(reg),
                Implicit::Def(..) => {}
            }
        }
    }

    /// Calls `write` with each register that it writes.
    pub(crate) fn writes(&self, mut write: impl FnMut(Reg)) {
        for operand in &self.operands {
            match *operand {
                Operand::Def(reg, _) | Operand::Update { to: reg, .. } => write(reg),
                Operand::Use(..) | Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) | Operand::Memory(_) => {}
            }
        }
        for implicit in &self.implicit {
            match *implicit {
                Implicit::Def(reg, _) => write(reg),
                Implicit::Use(..) => {}
            }
        }
    }

    /// Whether it overwrites its mask: gathers and scatters with AVX-512 clear the bits of the lanes they have done. They are
    /// the only instructions with a mask and a vector in an address.
    pub(crate) fn consumes_mask(&self) -> bool {
        self.mask.is_some()
            && self.operands.iter().any(|operand| match operand {
                Operand::Memory(address) => {
                    matches!(address.index, Some((_, Width::Xmm | Width::Ymm | Width::Zmm, _)))
                }
                Operand::Def(..)
                | Operand::Use(..)
                | Operand::Update { .. }
                | Operand::Byte(_)
                | Operand::Dword(_)
                | Operand::Qword(_) => false,
            })
    }
}

impl Function {
    /// Finds a register that is read where it has no value on some way from the entry: the origin of the instruction that
    /// reads it, and the register. It explains why registers cannot be allocated.
    pub(crate) fn unwritten(&self) -> Option<(u32, Reg)> {
        let count = self.classes.len();
        let successors = |block: &Block| -> SmallVec<[BlockId; 2]> {
            match &block.end {
                End::Jump(edge) => SmallVec::from_slice(&[edge.to]),
                End::Branch { taken, other, .. } => SmallVec::from_slice(&[*taken, *other]),
                End::Return | End::Open => SmallVec::new(),
            }
        };
        // Registers that have a value at the start of each block that was reached.
        let mut known: Vec<Option<Vec<bool>>> = vec![None; self.blocks.len()];
        known[0] = Some(vec![false; count]);
        let mut pending = vec![0];
        while let Some(number) = pending.pop() {
            let block = &self.blocks[number];
            let mut written = known[number].clone().expect("reached");
            block.params.iter().for_each(|param| written[param.0 as usize] = true);
            block.insts.iter().for_each(|inst| inst.writes(|reg| written[reg.0 as usize] = true));
            for next in successors(block) {
                let next = next.0 as usize;
                let merged: Vec<bool> = match &known[next] {
                    None => written.clone(),
                    Some(old) => old.iter().zip(&written).map(|(old, new)| *old && *new).collect(),
                };
                if known[next].as_ref() != Some(&merged) {
                    known[next] = Some(merged);
                    pending.push(next);
                }
            }
        }
        for (block, known) in self.blocks.iter().zip(known) {
            let Some(mut written) = known else { continue };
            block.params.iter().for_each(|param| written[param.0 as usize] = true);
            for inst in &block.insts {
                let mut missing = None;
                inst.reads(|reg| {
                    if !written[reg.0 as usize] {
                        missing = Some((inst.origin, reg));
                    }
                });
                if missing.is_some() {
                    return missing;
                }
                inst.writes(|reg| written[reg.0 as usize] = true);
            }
            if let End::Jump(edge) = &block.end {
                let last = block.insts.last().map_or(0, |inst| inst.origin);
                if let Some(&reg) = edge.arguments.iter().find(|reg| !written[reg.0 as usize]) {
                    return Some((last, reg));
                }
            }
        }
        None
    }
}
