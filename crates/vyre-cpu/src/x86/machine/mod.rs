//! Machine code before register allocation: blocks of x86 instructions over virtual registers, in SSA form.
//!
//! An instruction is one encoding ([`Code`]) with its operands in the order of the manual. The passes below know which
//! operands instructions read and write, not their semantics. Flags are read only by the next instruction or the
//! terminator: the register allocator inserts only moves in between, which preserve flags.
//!
//! [`emit`] builds a function; [`mod@assemble`] turns it into bytes: [dead-code elimination](dead_code), [sinking into
//! slow paths](sink_to_slow_path), [load folding](fuse_loads), [register allocation](allocate), which is
//! [block-local](block_allocator) for large functions, and [encoding](encode). [`pages`] makes the bytes executable,
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

/// Virtual register in SSA form: defined once, by an instruction or as a block parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reg(pub(crate) u32);

/// Register class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// General purpose, 64 bits.
    Scalar,
    /// `ymm` or, with AVX-512, `zmm`.
    Vector,
    /// `k`, AVX-512 only. `k0` is never used.
    Mask,
}

/// Width of a register operand, which determines its name in assembly.
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

/// Base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Reg(Reg),
    /// Context of the call, in a dedicated register.
    Context,
    /// Scratch area of the stack frame, aligned to 64 bytes.
    Scratch,
    /// Constant pool, aligned to 64 bytes.
    Pool,
}

/// Address of a memory operand: base + index × scale + displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Base,
    /// Register, its width (a vector for gathers and scatters), and scale.
    pub(crate) index: Option<(Reg, Width, u8)>,
    pub(crate) displacement: i32,
}

/// Explicit operand of an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Definition, written after all reads.
    Def(Reg, Width),
    /// Use.
    Use(Reg, Width),
    /// Use of `from` and definition of `to` in the same register.
    Update {
        from: Reg,
        to: Reg,
        width: Width,
    },
    /// 8-bit immediate, sign-extended if the encoding does so.
    Byte(i8),
    /// 32-bit immediate, sign-extended to 64 bits if the encoding does so.
    Dword(i32),
    /// 64-bit immediate.
    Qword(i64),
    Memory(Address),
}

/// Operand in a fixed register, which is not part of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implicit {
    Use(Reg, Register),
    Def(Reg, Register),
}

/// Machine instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) code: Code,
    pub(crate) operands: SmallVec<[Operand; 3]>,
    pub(crate) implicit: SmallVec<[Implicit; 1]>,
    /// Mask of an AVX-512 instruction.
    pub(crate) mask: Option<Reg>,
    /// Lanes outside the mask become zero (zero masking); otherwise they keep their value.
    pub(crate) zeroing: bool,
    /// Lock prefix: atomic read-modify-write.
    pub(crate) locked: bool,
    /// Has effects besides its results, so it is never dead.
    pub(crate) effect: bool,
    /// Origin: instruction of the program it was lowered from; a number of the caller's choice.
    pub(crate) origin: u32,
}

/// Control-flow edge with block arguments.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) to: BlockId,
    pub(crate) arguments: SmallVec<[Reg; 4]>,
}

/// Block, by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// Terminator of a block.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Jump(Edge),
    /// Conditional jump by the flags that the last instruction has set. Its targets have no parameters and no other
    /// predecessors.
    Branch {
        /// Encoding of the jump, with a 32-bit distance.
        code: Code,
        taken: BlockId,
        other: BlockId,
    },
    Return,
    /// No terminator yet.
    Open,
}

/// Basic block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) params: Vec<Reg>,
    pub(crate) insts: Vec<Inst>,
    pub(crate) end: End,
    /// Rarely executed: placed after the others.
    pub(crate) cold: bool,
}

/// A function in the System V calling convention, with a pointer to its context in `rdi`.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The first block is the entry.
    pub(crate) blocks: Vec<Block>,
    /// Class of each virtual register.
    pub(crate) classes: Vec<Class>,
    /// Constant pool.
    pub(crate) pool: Vec<u8>,
    /// Bytes of scratch memory in the stack frame.
    pub(crate) scratch: u32,
    /// Vectors have 64 bytes instead of 32.
    pub(crate) wide: bool,
}

/// Constraint on a register of an instruction.
pub(crate) enum Role {
    Use(Reg),
    Def(Reg),
    /// Definition in the register of the preceding use.
    Reuse(Reg),
    /// The register of the preceding use is overwritten.
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

    /// Visits the registers in order: explicit operands (base and index of an address, use and definition of an
    /// update), the mask (twice if it is overwritten), implicit operands.
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

    /// Calls `read` with each register that the instruction reads.
    pub(crate) fn reads(&self, mut read: impl FnMut(Reg)) {
        self.roles(|role| match role {
            Role::Use(reg) | Role::FixedUse(reg, _) => read(reg),
            Role::Def(_) | Role::Reuse(_) | Role::Consumed | Role::FixedDef(..) => {}
        });
    }

    /// Calls `write` with each register that the instruction defines.
    pub(crate) fn writes(&self, mut write: impl FnMut(Reg)) {
        self.roles(|role| match role {
            Role::Def(reg) | Role::Reuse(reg) | Role::FixedDef(reg, _) => write(reg),
            Role::Use(_) | Role::Consumed | Role::FixedUse(..) => {}
        });
    }

    /// Returns whether the instruction overwrites its mask: AVX-512 gathers and scatters clear the bits of completed
    /// lanes. Only they have a mask and a vector index.
    pub(crate) fn consumes_mask(&self) -> bool {
        let vectors = |operand: &Operand| match operand {
            Operand::Memory(address) => matches!(address.index, Some((_, Width::Xmm | Width::Ymm | Width::Zmm, _))),
            _ => false,
        };
        self.mask.is_some() && self.operands.iter().any(vectors)
    }
}

impl Block {
    /// Successor blocks.
    pub(crate) fn successors(&self) -> SmallVec<[BlockId; 2]> {
        match &self.end {
            End::Jump(edge) => SmallVec::from_slice(&[edge.to]),
            End::Branch { taken, other, .. } => SmallVec::from_slice(&[*taken, *other]),
            End::Return | End::Open => SmallVec::new(),
        }
    }
}

impl Function {
    /// Reachable blocks in postorder. Of a branch's successors, the one with the lower number comes last: the builder
    /// creates the body of a loop before its exit, so loops stay contiguous.
    pub(crate) fn postorder(&self) -> Vec<BlockId> {
        let mut order = Vec::new();
        let mut seen = vec![false; self.blocks.len()];
        seen[0] = true;
        // Depth-first path: each block with the number of successors visited.
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
