//! Machine code before registers are chosen: blocks of x86 instructions over virtual registers, in SSA form.
//!
//! An instruction is one encoding ([`Code`]) with its operands in the order of the manual. Nothing below this module knows what
//! instructions do, only which operands they read and write. A flag that one instruction sets is read by the next one or by
//! the terminator right after it: what the register allocator puts in between are moves, which keep flags.
//!
//! [`emit`] builds a function; [`mod@assemble`] turns it into bytes: [dead code](dead_code) goes, [what only slow paths
//! need](sink_to_slow_path) moves there, [loads are fused](fuse_loads) with their readers, [registers are chosen](allocate), for
//! large functions [block by block](block_allocator), and instructions are [encoded](encode). [`pages`] makes the bytes executable,
//! and [`mod@listing`] prints them.

pub(crate) mod allocate;
pub(crate) mod assemble;
pub(crate) mod block_allocator;
pub(crate) mod dead_code;
pub(crate) mod emit;
pub(crate) mod encode;
pub(crate) mod fuse_loads;
pub(crate) mod listing;
pub(crate) mod pages;
pub(crate) mod sink_to_slow_path;

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
    /// Whether it does something besides writing its results: it must stay even if nothing reads these.
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

/// How a register takes part in an instruction.
pub(crate) enum Role {
    Use(Reg),
    Def(Reg),
    /// Written to the register of the one before.
    Reuse(Reg),
    /// What the one before is in is overwritten.
    Consumed,
    FixedUse(Reg, Register),
    FixedDef(Reg, Register),
}

impl Inst {
    pub(crate) fn new(code: Code, operands: &[Operand], effect: bool, origin: u32) -> Inst {
        Inst {
            code,
            operands: SmallVec::from_slice(operands),
            implicit: SmallVec::new(),
            mask: None,
            zeroing: false,
            locked: false,
            effect,
            origin,
        }
    }

    /// Lists registers: first those in the encoding, an address as its base and index and an update as what is read and what is
    /// written, then the mask, twice if it is overwritten, then those of implicit operands.
    pub(crate) fn roles(&self, mut add: impl FnMut(Role)) {
        for operand in &self.operands {
            match *operand {
                Operand::Def(reg, _) => add(Role::Def(reg)),
                Operand::Use(reg, _) => add(Role::Use(reg)),
                Operand::Update { from, to, .. } => {
                    add(Role::Use(from));
                    add(Role::Reuse(to));
                }
                Operand::Byte(_) | Operand::Dword(_) | Operand::Qword(_) => {}
                Operand::Memory(address) => {
                    if let Base::Reg(reg) = address.base {
                        add(Role::Use(reg));
                    }
                    if let Some((reg, _, _)) = address.index {
                        add(Role::Use(reg));
                    }
                }
            }
        }
        if let Some(reg) = self.mask {
            add(Role::Use(reg));
            if self.consumes_mask() {
                add(Role::Consumed);
            }
        }
        for implicit in &self.implicit {
            match *implicit {
                Implicit::Use(reg, register) => add(Role::FixedUse(reg, register)),
                Implicit::Def(reg, register) => add(Role::FixedDef(reg, register)),
            }
        }
    }

    /// Calls `read` with each register that it reads.
    pub(crate) fn reads(&self, mut read: impl FnMut(Reg)) {
        self.roles(|role| match role {
            Role::Use(reg) | Role::FixedUse(reg, _) => read(reg),
            Role::Def(_) | Role::Reuse(_) | Role::Consumed | Role::FixedDef(..) => {}
        });
    }

    /// Calls `write` with each register that it writes.
    pub(crate) fn writes(&self, mut write: impl FnMut(Reg)) {
        self.roles(|role| match role {
            Role::Def(reg) | Role::Reuse(reg) | Role::FixedDef(reg, _) => write(reg),
            Role::Use(_) | Role::Consumed | Role::FixedUse(..) => {}
        });
    }

    /// Whether it overwrites its mask: gathers and scatters with AVX-512 clear the bits of the lanes they have done. They are
    /// the only instructions with a mask and a vector in an address.
    pub(crate) fn consumes_mask(&self) -> bool {
        let vectors = |operand: &Operand| match operand {
            Operand::Memory(address) => matches!(address.index, Some((_, Width::Xmm | Width::Ymm | Width::Zmm, _))),
            _ => false,
        };
        self.mask.is_some() && self.operands.iter().any(vectors)
    }
}

impl Block {
    /// The blocks that it leads to.
    pub(crate) fn successors(&self) -> SmallVec<[BlockId; 2]> {
        match &self.end {
            End::Jump(edge) => SmallVec::from_slice(&[edge.to]),
            End::Branch { taken, other, .. } => SmallVec::from_slice(&[*taken, *other]),
            End::Return | End::Open => SmallVec::new(),
        }
    }
}

impl Function {
    /// The blocks that can be reached, each after those it leads to except along edges that close a loop. Of the successors of a
    /// branch, the one with the lower number comes last: builders of functions make the body of a loop before what follows it,
    /// so that loops stay together.
    pub(crate) fn postorder(&self) -> Vec<BlockId> {
        let mut order = Vec::new();
        let mut seen = vec![false; self.blocks.len()];
        seen[0] = true;
        // Blocks on the way, with how many of their successors were visited.
        let mut path = vec![(BlockId(0), 0)];
        while let Some((block, next)) = path.pop() {
            let mut successors = self.blocks[block.0 as usize].successors();
            successors.sort_unstable_by_key(|block| std::cmp::Reverse(block.0));
            match successors.get(next) {
                Some(&successor) => {
                    path.push((block, next + 1));
                    if !std::mem::replace(&mut seen[successor.0 as usize], true) {
                        path.push((successor, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order
    }
}
