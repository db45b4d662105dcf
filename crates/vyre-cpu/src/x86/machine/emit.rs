//! Emitter of machine instructions, at the end of the current block.
//!
//! Abstracts over AVX2 and AVX-512: vectors have 8 or 16 lanes of 32 bits, and a *mask*, also the form of a divergent
//! bool, is a vector with all bits of a lane set or none, or a `k` register.

use iced_x86::Code;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::{Address, Base, Block, BlockId, Class, Edge, End, Function, Implicit, Inst, Operand, Reg, Width};

/// Encodings with 32-byte and 64-byte vectors.
pub(crate) type Pair = (Code, Code);

/// Last source operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Reg(Reg),
    Memory(Address),
}

impl Source {
    fn operand(self, width: Width) -> Operand {
        match self {
            Source::Reg(reg) => Operand::Use(reg, width),
            Source::Memory(address) => Operand::Memory(address),
        }
    }
}

impl From<Reg> for Source {
    fn from(reg: Reg) -> Source {
        Source::Reg(reg)
    }
}

impl From<Address> for Source {
    fn from(address: Address) -> Source {
        Source::Memory(address)
    }
}

pub(crate) struct Emit {
    pub(crate) function: Function,
    pub(crate) at: BlockId,
    /// Instruction of the program that code is being emitted for.
    pub(crate) origin: u32,
    constants: FxHashMap<(u64, bool), i32>,
    /// Pool offsets of the lane numbers for [`Emit::pick_lanes`].
    picks: FxHashMap<[u8; 16], i32>,
    /// Pool offsets of four-word constants.
    quads: FxHashMap<[u32; 4], i32>,
}

/// Registers of a value, or arguments of a block.
pub(crate) type Regs = SmallVec<[Reg; 4]>;

impl Emit {
    pub(crate) fn new(wide: bool) -> Emit {
        let function = Function { blocks: Vec::new(), classes: Vec::new(), pool: Vec::new(), scratch: 0, wide };
        let mut emit = Emit {
            function,
            at: BlockId(0),
            origin: 0,
            constants: FxHashMap::default(),
            picks: FxHashMap::default(),
            quads: FxHashMap::default(),
        };
        emit.at = emit.block(false);
        emit
    }

    // Blocks.

    pub(crate) fn block(&mut self, cold: bool) -> BlockId {
        self.function.blocks.push(Block { params: Vec::new(), insts: Vec::new(), end: End::Open, cold });
        BlockId(self.function.blocks.len() as u32 - 1)
    }

    /// Returns whether the current block has no terminator yet.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.function.blocks[self.at.0 as usize].end, End::Open)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.function.blocks[self.at.0 as usize].cold
    }

    pub(crate) fn param(&mut self, block: BlockId, class: Class) -> Reg {
        let reg = self.reg(class);
        self.function.blocks[block.0 as usize].params.push(reg);
        reg
    }

    fn end(&mut self, end: End) {
        let block = &mut self.function.blocks[self.at.0 as usize];
        debug_assert!(matches!(block.end, End::Open), "a block ends once");
        block.end = end;
    }

    /// Ends the current block with a jump; the caller sets the next one.
    pub(crate) fn jump(&mut self, to: BlockId, arguments: &[Reg]) {
        debug_assert_eq!(self.function.blocks[to.0 as usize].params.len(), arguments.len());
        self.end(End::Jump(Edge { to, arguments: SmallVec::from_slice(arguments) }));
    }

    pub(crate) fn ret(&mut self) {
        self.end(End::Return);
    }

    /// Ends the current block with a conditional jump; returns the blocks for taken and not taken.
    pub(crate) fn branch(&mut self, code: Code, cold_taken: bool, cold_other: bool) -> (BlockId, BlockId) {
        let cold = self.is_cold();
        let (taken, other) = (self.block(cold || cold_taken), self.block(cold || cold_other));
        self.end(End::Branch { code, taken, other });
        (taken, other)
    }

    /// Selects between registers by flags, with a branch.
    pub(crate) fn either(&mut self, code: Code, cold_taken: bool, taken: Reg, other: Reg) -> Reg {
        let class = self.class(taken);
        let (to_taken, to_other) = self.branch(code, cold_taken, false);
        let join = self.block(self.is_cold());
        let result = self.param(join, class);
        for (at, reg) in [(to_taken, taken), (to_other, other)] {
            self.at = at;
            self.jump(join, &[reg]);
        }
        self.at = join;
        result
    }

    /// Jumps by flags to a block without parameters; falls through otherwise.
    pub(crate) fn skip_to(&mut self, block: BlockId, code: Code) {
        self.jump_if(code, block, &[]);
    }

    /// Jumps to a block by flags; falls through otherwise.
    pub(crate) fn jump_if(&mut self, code: Code, block: BlockId, arguments: &[Reg]) {
        let cold = self.function.blocks[block.0 as usize].cold;
        let (skip, go) = self.branch(code, cold, false);
        self.at = skip;
        self.jump(block, arguments);
        self.at = go;
    }

    /// Continues in another block, which has no parameters.
    pub(crate) fn enter(&mut self, block: BlockId) {
        self.jump(block, &[]);
        self.at = block;
    }

    /// Ends the current block with a switch on a 32-bit scalar; returns a block for each case, and the default block.
    pub(crate) fn switch(&mut self, selector: Reg, cases: &[u32]) -> Vec<BlockId> {
        let mut arms = Vec::with_capacity(cases.len() + 1);
        for &case in cases {
            self.cmp_immediate(selector, case as i32, Width::Dword);
            let (arm, rest) = self.branch(Code::Je_rel32_64, false, false);
            arms.push(arm);
            self.at = rest;
        }
        arms.push(self.at);
        arms
    }

    // Registers.

    pub(crate) fn reg(&mut self, class: Class) -> Reg {
        self.function.classes.push(class);
        Reg(self.function.classes.len() as u32 - 1)
    }

    pub(crate) fn class(&self, reg: Reg) -> Class {
        self.function.classes[reg.0 as usize]
    }

    pub(crate) fn wide(&self) -> bool {
        self.function.wide
    }

    /// Bytes of a vector register.
    pub(crate) fn bytes(&self) -> i32 {
        if self.function.wide { 64 } else { 32 }
    }

    fn full(&self) -> Width {
        if self.function.wide { Width::Zmm } else { Width::Ymm }
    }

    pub(crate) fn half(&self) -> Width {
        if self.function.wide { Width::Ymm } else { Width::Xmm }
    }

    pub(crate) fn pick(&self, pair: Pair) -> Code {
        if self.function.wide { pair.1 } else { pair.0 }
    }

    // Instructions.

    pub(crate) fn push(&mut self, code: Code, operands: &[Operand], effect: bool) -> &mut Inst {
        let inst = Inst::new(code, operands, effect, self.origin);
        let insts = &mut self.function.blocks[self.at.0 as usize].insts;
        insts.push(inst);
        insts.last_mut().expect("just pushed")
    }

    /// Emits an instruction without effects that defines a new register, its first operand.
    pub(crate) fn make(&mut self, code: Code, class: Class, width: Width, sources: &[Operand]) -> Reg {
        let to = self.reg(class);
        let inst = self.push(code, &[Operand::Def(to, width)], false);
        inst.operands.extend_from_slice(sources);
        to
    }

    /// Emits an instruction that defines a new vector.
    fn vector(&mut self, pair: Pair, sources: &[Operand]) -> Reg {
        let (code, full) = (self.pick(pair), self.full());
        self.make(code, Class::Vector, full, sources)
    }

    /// Copies a register.
    pub(crate) fn copy(&mut self, a: Reg) -> Reg {
        match self.class(a) {
            Class::Scalar => self.s1(Code::Mov_r64_rm64, Width::Qword, a),
            Class::Vector => self.v1(MOVE, a),
            Class::Mask => self.mask_or(a, a),
        }
    }

    /// Unary vector instruction.
    pub(crate) fn v1(&mut self, pair: Pair, a: impl Into<Source>) -> Reg {
        let a = a.into().operand(self.full());
        self.vector(pair, &[a])
    }

    /// Unary vector instruction with an immediate.
    pub(crate) fn v1i(&mut self, pair: Pair, a: Reg, immediate: u8) -> Reg {
        let a = Operand::Use(a, self.full());
        self.vector(pair, &[a, Operand::Byte(immediate as i8)])
    }

    /// Binary vector instruction.
    pub(crate) fn v2(&mut self, pair: Pair, a: Reg, b: impl Into<Source>) -> Reg {
        let full = self.full();
        self.vector(pair, &[Operand::Use(a, full), b.into().operand(full)])
    }

    /// Binary vector instruction with an immediate.
    pub(crate) fn v2i(&mut self, pair: Pair, a: Reg, b: impl Into<Source>, immediate: u8) -> Reg {
        let full = self.full();
        self.vector(pair, &[Operand::Use(a, full), b.into().operand(full), Operand::Byte(immediate as i8)])
    }

    /// Ternary vector instruction that overwrites its first source.
    pub(crate) fn v3(&mut self, pair: Pair, a: Reg, b: Reg, c: impl Into<Source>) -> Reg {
        let (to, full) = (self.reg(Class::Vector), self.full());
        let c = c.into().operand(full);
        let operands = [Operand::Update { from: a, to, width: full }, Operand::Use(b, full), c];
        self.push(self.pick(pair), &operands, false);
        to
    }

    /// Widening vector instruction: reads half a vector.
    pub(crate) fn widen(&mut self, pair: Pair, a: impl Into<Source>) -> Reg {
        let a = a.into().operand(self.half());
        self.vector(pair, &[a])
    }

    /// Narrowing vector instruction: writes half a vector.
    pub(crate) fn narrow(&mut self, pair: Pair, a: Reg) -> Reg {
        let (code, a) = (self.pick(pair), Operand::Use(a, self.full()));
        self.make(code, Class::Vector, self.half(), &[a])
    }

    /// Rounds f32 lanes to f16 and back.
    pub(crate) fn quantize(&mut self, a: Reg) -> Reg {
        let (half, full) = (self.half(), self.full());
        let code = self.pick((Code::VEX_Vcvtps2ph_xmmm128_ymm_imm8, Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae));
        // Round to nearest, ties to even.
        let halves = self.make(code, Class::Vector, half, &[Operand::Use(a, full), Operand::Byte(0)]);
        self.widen((Code::VEX_Vcvtph2ps_ymm_xmmm128, Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae), halves)
    }

    /// Upper half of a vector.
    pub(crate) fn upper(&mut self, a: Reg) -> Reg {
        let code = self.pick((Code::VEX_Vextracti128_xmmm128_ymm_imm8, Code::EVEX_Vextracti64x4_ymmm256_k1z_zmm_imm8));
        let a = Operand::Use(a, self.full());
        self.make(code, Class::Vector, self.half(), &[a, Operand::Byte(1)])
    }

    /// Joins two halves to a vector.
    pub(crate) fn join(&mut self, low: Reg, high: Reg) -> Reg {
        let pair = (Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, Code::EVEX_Vinserti64x4_zmm_k1z_zmm_ymmm256_imm8);
        let (low, high) = (Operand::Use(low, self.full()), Operand::Use(high, self.half()));
        self.vector(pair, &[low, high, Operand::Byte(1)])
    }

    pub(crate) fn load(&mut self, address: Address) -> Reg {
        self.v1(MOVE, address)
    }

    pub(crate) fn store(&mut self, address: Address, value: Reg) {
        let code = self.pick((Code::VEX_Vmovups_ymmm256_ymm, Code::EVEX_Vmovups_zmmm512_k1z_zmm));
        let full = self.full();
        self.push(code, &[Operand::Memory(address), Operand::Use(value, full)], true);
    }

    /// Non-temporal store. The address is a multiple of the vector size.
    pub(crate) fn stream(&mut self, address: Address, value: Reg) {
        let code = self.pick((Code::VEX_Vmovntps_m256_ymm, Code::EVEX_Vmovntps_m512_zmm));
        let full = self.full();
        self.push(code, &[Operand::Memory(address), Operand::Use(value, full)], true);
    }

    /// Stores half a vector.
    pub(crate) fn store_half(&mut self, address: Address, value: Reg) {
        let (code, half) = (self.pick((Code::VEX_Vmovups_xmmm128_xmm, Code::VEX_Vmovups_ymmm256_ymm)), self.half());
        self.push(code, &[Operand::Memory(address), Operand::Use(value, half)], true);
    }

    /// Loads four elements into the lowest 128 bits.
    pub(crate) fn load_quad(&mut self, address: Address) -> Reg {
        let code = self.pick((Code::VEX_Vmovups_xmm_xmmm128, Code::EVEX_Vmovups_xmm_k1z_xmmm128));
        self.make(code, Class::Vector, Width::Xmm, &[Operand::Memory(address)])
    }

    /// Inserts four elements from memory into the 128-bit part `part` of a vector.
    pub(crate) fn insert_quad(&mut self, vector: Reg, address: Address, part: u8) -> Reg {
        let pair = (Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, Code::EVEX_Vinserti32x4_zmm_k1z_zmm_xmmm128_imm8);
        self.v2i(pair, vector, address, part)
    }

    /// Stores the 128-bit part `part` of a vector.
    pub(crate) fn store_quad(&mut self, address: Address, vector: Reg, part: u8) {
        let full = self.full();
        let code = self.pick((Code::VEX_Vextractf128_xmmm128_ymm_imm8, Code::EVEX_Vextracti32x4_xmmm128_k1z_zmm_imm8));
        if part == 0 {
            let code = self.pick((Code::VEX_Vmovups_xmmm128_xmm, Code::EVEX_Vmovups_xmmm128_k1z_xmm));
            self.push(code, &[Operand::Memory(address), Operand::Use(vector, Width::Xmm)], true);
        } else {
            let operands = [Operand::Memory(address), Operand::Use(vector, full), Operand::Byte(part as i8)];
            self.push(code, &operands, true);
        }
    }

    /// Broadcasts an element from memory.
    pub(crate) fn broadcast_from(&mut self, address: Address, of_64: bool) -> Reg {
        let pair = if of_64 {
            (Code::VEX_Vbroadcastsd_ymm_m64, Code::EVEX_Vbroadcastsd_zmm_k1z_xmmm64)
        } else {
            (Code::VEX_Vbroadcastss_ymm_m32, Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32)
        };
        self.v1(pair, address)
    }

    /// Broadcasts a scalar.
    pub(crate) fn broadcast(&mut self, scalar: Reg, of_64: bool) -> Reg {
        let scalar = Operand::Use(scalar, if of_64 { Width::Qword } else { Width::Dword });
        let pick = |narrow: Code, wide: Code| if of_64 { wide } else { narrow };
        if self.wide() {
            let code = pick(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, Code::EVEX_Vpbroadcastq_zmm_k1z_r64);
            return self.vector((Code::INVALID, code), &[scalar]);
        }
        let code = pick(Code::VEX_Vmovd_xmm_rm32, Code::VEX_Vmovq_xmm_rm64);
        let first = self.make(code, Class::Vector, Width::Xmm, &[scalar]);
        let code = pick(Code::VEX_Vpbroadcastd_ymm_xmmm32, Code::VEX_Vpbroadcastq_ymm_xmmm64);
        self.vector((code, Code::INVALID), &[Operand::Use(first, Width::Xmm)])
    }

    /// Extracts the first lane.
    pub(crate) fn first_lane(&mut self, vector: Reg, of_64: bool) -> Reg {
        let (code, width) =
            if of_64 { (Code::VEX_Vmovq_rm64_xmm, Width::Qword) } else { (Code::VEX_Vmovd_rm32_xmm, Width::Dword) };
        self.make(code, Class::Scalar, width, &[Operand::Use(vector, Width::Xmm)])
    }

    /// Pool address of a constant in all lanes.
    pub(crate) fn constant(&mut self, bits: u64, of_64: bool) -> Address {
        let lanes = if of_64 { self.bytes() / 8 } else { self.bytes() / 4 };
        let pool = &mut self.function.pool;
        let offset = *self.constants.entry((bits, of_64)).or_insert_with(|| {
            let offset = pool.len() as i32;
            for _ in 0..lanes {
                if of_64 {
                    pool.extend_from_slice(&bits.to_le_bytes());
                } else {
                    pool.extend_from_slice(&(bits as u32).to_le_bytes());
                }
            }
            offset
        });
        Address { base: Base::Pool, index: None, displacement: offset }
    }

    /// Pool address of four words in each 128 bits.
    pub(crate) fn constant_quad(&mut self, words: [u32; 4]) -> Address {
        let (times, pool) = (self.bytes() / 16, &mut self.function.pool);
        let offset = *self.quads.entry(words).or_insert_with(|| {
            let offset = pool.len() as i32;
            for _ in 0..times {
                pool.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            offset
        });
        Address { base: Base::Pool, index: None, displacement: offset }
    }

    /// Pool address of the 32-bit lanes start, start + 1, start + 2, ….
    pub(crate) fn iota(&mut self, start: u32) -> Address {
        let lanes = self.bytes() as u32 / 4;
        let pool = &mut self.function.pool;
        // No 32-bit constant has this key: the high half of theirs is 0.
        let offset = *self.constants.entry((u64::from(start) | 0xffff_ffff << 32, false)).or_insert_with(|| {
            let offset = pool.len() as i32;
            for lane in 0..lanes {
                pool.extend_from_slice(&(start + lane).to_le_bytes());
            }
            offset
        });
        Address { base: Base::Pool, index: None, displacement: offset }
    }

    pub(crate) fn splat(&mut self, bits: u64, of_64: bool) -> Reg {
        if bits == 0 {
            return self.zero();
        }
        let address = self.constant(bits, of_64);
        self.load(address)
    }

    pub(crate) fn zero(&mut self) -> Reg {
        // A load instead of a self-XOR, which would read an undefined register.
        let address = self.constant(0, false);
        self.load(address)
    }

    // Lane permutations, 32 bits.

    /// Lane `i` of the result is lane `from[i]`, modulo the lane count.
    pub(crate) fn permute(&mut self, from: Reg, lanes: Reg) -> Reg {
        self.v2((Code::VEX_Vpermd_ymm_ymm_ymmm256, Code::EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32), from, lanes)
    }

    /// Compresses the lanes of a mask to the front, and fills with zeros. AVX-512 only.
    pub(crate) fn compress(&mut self, mask: Reg, lanes: Reg) -> Reg {
        let (to, full) = (self.reg(Class::Vector), self.full());
        let operands = [Operand::Def(to, full), Operand::Use(lanes, full)];
        let inst = self.push(Code::EVEX_Vpcompressd_zmmm512_k1z_zmm, &operands, false);
        (inst.mask, inst.zeroing) = (Some(mask), true);
        to
    }

    /// Indices of the bits set in the low byte of a scalar, ascending, then zeros, as eight 32-bit lanes.
    pub(crate) fn set_bits(&mut self, bits: Reg) -> Reg {
        // Spreads each bit to a byte of ones, which then selects index bytes with `pext`.
        let ones = self.immediate(0x0101_0101_0101_0101);
        let spread = self.make_scalar_2(Code::VEX_Pdep_r64_r64_rm64, bits, ones);
        let factor = self.immediate(0xff);
        let bytes = self.s2(Code::Imul_r64_rm64, Width::Qword, spread, factor);
        let numbers = self.immediate(0x0706_0504_0302_0100);
        let packed = self.make_scalar_2(Code::VEX_Pext_r64_r64_rm64, numbers, bytes);
        let code = Code::VEX_Vmovq_xmm_rm64;
        let packed = self.make(code, Class::Vector, Width::Xmm, &[Operand::Use(packed, Width::Qword)]);
        self.vector((Code::VEX_Vpmovzxbd_ymm_xmmm64, Code::INVALID), &[Operand::Use(packed, Width::Xmm)])
    }

    /// Binary 64-bit scalar instruction.
    fn make_scalar_2(&mut self, code: Code, a: Reg, b: Reg) -> Reg {
        let operands = [Operand::Use(a, Width::Qword), Operand::Use(b, Width::Qword)];
        self.make(code, Class::Scalar, Width::Qword, &operands)
    }

    /// Permutes two vectors of 16 lanes by constant lane numbers; those of the second start at 16. AVX-512 only.
    pub(crate) fn pick_lanes(&mut self, lanes: [u8; 16], a: Reg, b: impl Into<Source>) -> Reg {
        let pool = &mut self.function.pool;
        let displacement = *self.picks.entry(lanes).or_insert_with(|| {
            let offset = pool.len() as i32;
            pool.extend(lanes.iter().flat_map(|&lane| u32::from(lane).to_le_bytes()));
            offset
        });
        let lanes = self.load(Address { base: Base::Pool, index: None, displacement });
        self.v3((Code::INVALID, Code::EVEX_Vpermi2d_zmm_k1z_zmm_zmmm512b32), lanes, a, b)
    }

    /// Shifts lanes up by `distance`, and fills the lowest ones with a constant.
    pub(crate) fn shift_up(&mut self, lanes: Reg, distance: u32, fill: u64) -> Reg {
        let fill = self.constant(fill, false);
        if self.wide() {
            let fill = self.load(fill);
            let pair = (Code::INVALID, Code::EVEX_Valignd_zmm_k1z_zmm_zmmm512b32_imm8);
            return self.v2i(pair, lanes, fill, 16 - distance as u8);
        }
        // For each half, the half below it.
        let below = self.v2i((Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, Code::INVALID), lanes, fill, 0x02);
        if distance == 4 {
            return below;
        }
        let align = (Code::VEX_Vpalignr_ymm_ymm_ymmm256_imm8, Code::INVALID);
        self.v2i(align, lanes, below, 16 - 4 * distance as u8)
    }

    /// Exchanges lanes whose numbers differ by a power of two (butterfly).
    pub(crate) fn swap_lanes(&mut self, lanes: Reg, distance: u32) -> Reg {
        let shuffle = (Code::VEX_Vpshufd_ymm_ymmm256_imm8, Code::EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8);
        let quarters = Code::EVEX_Vshufi32x4_zmm_k1z_zmm_zmmm512b32_imm8;
        match distance {
            1 => self.v1i(shuffle, lanes, 0xb1),
            2 => self.v1i(shuffle, lanes, 0x4e),
            4 if !self.wide() => self.v1i((Code::VEX_Vpermq_ymm_ymmm256_imm8, Code::INVALID), lanes, 0x4e),
            4 => self.v2i((Code::INVALID, quarters), lanes, lanes, 0xb1),
            _ => self.v2i((Code::INVALID, quarters), lanes, lanes, 0x4e),
        }
    }

    // Masks.

    pub(crate) fn mask_class(&self) -> Class {
        if self.wide() { Class::Mask } else { Class::Vector }
    }

    fn k2(&mut self, code: Code, a: Reg, b: Reg) -> Reg {
        self.make(code, Class::Mask, Width::Mask, &[Operand::Use(a, Width::Mask), Operand::Use(b, Width::Mask)])
    }

    pub(crate) fn mask_constant(&mut self, ones: bool) -> Reg {
        if !self.wide() {
            return self.splat(if ones { 0xffff_ffff } else { 0 }, false);
        }
        let scalar = self.immediate(if ones { 0xffff } else { 0 });
        self.make(Code::VEX_Kmovw_kr_r32, Class::Mask, Width::Mask, &[Operand::Use(scalar, Width::Dword)])
    }

    pub(crate) fn mask_and(&mut self, a: Reg, b: Reg) -> Reg {
        if self.wide() { self.k2(Code::VEX_Kandw_kr_kr_kr, a, b) } else { self.v2(AND, a, b) }
    }

    pub(crate) fn mask_or(&mut self, a: Reg, b: Reg) -> Reg {
        if self.wide() { self.k2(Code::VEX_Korw_kr_kr_kr, a, b) } else { self.v2(OR, a, b) }
    }

    pub(crate) fn mask_xor(&mut self, a: Reg, b: Reg) -> Reg {
        if self.wide() { self.k2(Code::VEX_Kxorw_kr_kr_kr, a, b) } else { self.v2(XOR, a, b) }
    }

    /// `b & !a`.
    pub(crate) fn mask_and_not(&mut self, a: Reg, b: Reg) -> Reg {
        if self.wide() { self.k2(Code::VEX_Kandnw_kr_kr_kr, a, b) } else { self.v2(AND_NOT, a, b) }
    }

    pub(crate) fn mask_not(&mut self, a: Reg) -> Reg {
        if self.wide() {
            return self.make(Code::VEX_Knotw_kr_kr, Class::Mask, Width::Mask, &[Operand::Use(a, Width::Mask)]);
        }
        let ones = self.constant(0xffff_ffff, false);
        self.v2(XOR, a, ones)
    }

    /// Selects `a` where the mask is set, `b` elsewhere; 32-bit lanes.
    pub(crate) fn blend(&mut self, mask: Reg, a: Reg, b: Reg) -> Reg {
        self.blend_lanes(mask, a, b, false)
    }

    /// Selects `a` where the mask is set, `b` elsewhere. For 64-bit lanes, the mask has 64-bit lanes, too.
    pub(crate) fn blend_lanes(&mut self, mask: Reg, a: Reg, b: Reg, of_64: bool) -> Reg {
        let full = self.full();
        let (a, b) = (Operand::Use(a, full), Operand::Use(b, full));
        if !self.wide() {
            // 64-bit masks have all bits of a lane set, so the 32-bit blend works for both.
            let pair = (Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, Code::INVALID);
            return self.vector(pair, &[b, a, Operand::Use(mask, full)]);
        }
        let code = match of_64 {
            true => Code::EVEX_Vpblendmq_zmm_k1z_zmm_zmmm512b64,
            false => Code::EVEX_Vpblendmd_zmm_k1z_zmm_zmmm512b32,
        };
        let to = self.reg(Class::Vector);
        self.push(code, &[Operand::Def(to, full), b, a], false).mask = Some(mask);
        to
    }

    /// Selects between masks.
    pub(crate) fn blend_masks(&mut self, mask: Reg, a: Reg, b: Reg) -> Reg {
        if self.wide() {
            let (a, b) = (self.mask_and(mask, a), self.mask_and_not(mask, b));
            self.mask_or(a, b)
        } else {
            self.blend(mask, a, b)
        }
    }

    /// A mask as a vector with all bits of a lane set or none.
    pub(crate) fn mask_to_vector(&mut self, mask: Reg) -> Reg {
        if !self.wide() {
            return mask;
        }
        self.vector((Code::INVALID, Code::EVEX_Vpmovm2d_zmm_kr), &[Operand::Use(mask, Width::Mask)])
    }

    /// Mask of the nonzero lanes.
    pub(crate) fn mask_from_vector(&mut self, vector: Reg) -> Reg {
        if !self.wide() {
            let zero = self.constant(0, false);
            let equal = self.v2((Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, Code::INVALID), vector, zero);
            return self.mask_not(equal);
        }
        let vector = Operand::Use(vector, self.full());
        self.make(Code::EVEX_Vptestmd_kr_k1_zmm_zmmm512b32, Class::Mask, Width::Mask, &[vector, vector])
    }

    /// One bit per lane, in a scalar.
    pub(crate) fn mask_bits(&mut self, mask: Reg) -> Reg {
        let (code, width) =
            if self.wide() { (Code::VEX_Kmovw_r32_kr, Width::Mask) } else { (Code::VEX_Vmovmskps_r32_ymm, Width::Ymm) };
        self.make(code, Class::Scalar, Width::Dword, &[Operand::Use(mask, width)])
    }

    /// Mask for the 64-bit lanes in one half.
    pub(crate) fn mask_half(&mut self, mask: Reg, upper: bool) -> Reg {
        if self.wide() {
            if !upper {
                return mask;
            }
            let sources = [Operand::Use(mask, Width::Mask), Operand::Byte(8)];
            return self.make(Code::VEX_Kshiftrw_kr_kr_imm8, Class::Mask, Width::Mask, &sources);
        }
        let half = if upper { self.upper(mask) } else { mask };
        self.widen((Code::VEX_Vpmovsxdq_ymm_xmmm128, Code::INVALID), half)
    }

    /// Joins the masks of the 64-bit lanes in two halves.
    pub(crate) fn mask_of_halves(&mut self, low: Reg, high: Reg) -> Reg {
        if self.wide() { self.k2(Code::VEX_Kunpckbw_kr_kr_kr, high, low) } else { self.low_halves(low, high) }
    }

    /// Lower halves of the 64-bit lanes of two vectors.
    pub(crate) fn low_halves(&mut self, low: Reg, high: Reg) -> Reg {
        if self.wide() {
            let pair = (Code::INVALID, Code::EVEX_Vpmovqd_ymmm256_k1z_zmm);
            let (low, high) = (self.narrow(pair, low), self.narrow(pair, high));
            return self.join(low, high);
        }
        let mixed = self.v2i((Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, Code::INVALID), low, high, 0x88);
        self.v1i((Code::VEX_Vpermq_ymm_ymmm256_imm8, Code::INVALID), mixed, 0xd8)
    }

    /// Compares lanes to a mask; the encodings take the predicate as last operand.
    pub(crate) fn compare(&mut self, pair: Pair, a: Reg, b: impl Into<Source>, predicate: u8) -> Reg {
        let full = self.full();
        let sources = [Operand::Use(a, full), b.into().operand(full), Operand::Byte(predicate as i8)];
        let width = if self.wide() { Width::Mask } else { full };
        self.make(self.pick(pair), self.mask_class(), width, &sources)
    }

    /// Sets the zero flag if no lane of any of the masks is set.
    pub(crate) fn test_none(&mut self, masks: &[Reg]) {
        let any = masks[1..].iter().fold(masks[0], |all, &mask| self.mask_or(all, mask));
        self.test_mask(any);
    }

    /// Sets the carry flag if all lanes of all masks are set.
    pub(crate) fn test_all(&mut self, masks: &[Reg]) {
        let all = masks[1..].iter().fold(masks[0], |all, &mask| self.mask_and(all, mask));
        if self.wide() {
            self.test_mask(all);
        } else {
            let ones = self.constant(0xffff_ffff, false);
            let operands = [Operand::Use(all, Width::Ymm), Operand::Memory(ones)];
            self.push(Code::VEX_Vtestps_ymm_ymmm256, &operands, false);
        }
    }

    fn test_mask(&mut self, mask: Reg) {
        let (code, width) = if self.wide() {
            (Code::VEX_Kortestw_kr_kr, Width::Mask)
        } else {
            (Code::VEX_Vptest_ymm_ymmm256, Width::Ymm)
        };
        self.push(code, &[Operand::Use(mask, width), Operand::Use(mask, width)], false);
    }

    // Scalars. Those of 32 bits are zero-extended to 64.

    pub(crate) fn immediate(&mut self, bits: u64) -> Reg {
        match u32::try_from(bits) {
            Ok(bits) => self.make(Code::Mov_r32_imm32, Class::Scalar, Width::Dword, &[Operand::Dword(bits as i32)]),
            Err(_) => self.make(Code::Mov_r64_imm64, Class::Scalar, Width::Qword, &[Operand::Qword(bits as i64)]),
        }
    }

    /// Unary scalar instruction.
    pub(crate) fn s1(&mut self, code: Code, width: Width, a: impl Into<Source>) -> Reg {
        self.s1_of(code, width, width, a)
    }

    /// Unary scalar instruction with a source of another width.
    pub(crate) fn s1_of(&mut self, code: Code, to_width: Width, width: Width, a: impl Into<Source>) -> Reg {
        self.make(code, Class::Scalar, to_width, &[a.into().operand(width)])
    }

    /// Unary scalar instruction that overwrites its source.
    pub(crate) fn s1_in_place(&mut self, code: Code, width: Width, a: Reg) -> Reg {
        let to = self.reg(Class::Scalar);
        self.push(code, &[Operand::Update { from: a, to, width }], false);
        to
    }

    /// Binary scalar instruction that overwrites its first source.
    pub(crate) fn s2(&mut self, code: Code, width: Width, a: Reg, b: impl Into<Source>) -> Reg {
        self.s1i(code, width, a, b.into().operand(width))
    }

    /// Scalar instruction with an immediate that overwrites its source.
    pub(crate) fn s1i(&mut self, code: Code, width: Width, a: Reg, immediate: Operand) -> Reg {
        let to = self.reg(Class::Scalar);
        self.push(code, &[Operand::Update { from: a, to, width }, immediate], false);
        to
    }

    /// Sets a 32-bit scalar to 1 if a condition holds by the current flags, otherwise to 0.
    pub(crate) fn set(&mut self, code: Code) -> Reg {
        let byte = self.make(code, Class::Scalar, Width::Byte, &[]);
        self.s1_of(Code::Movzx_r32_rm8, Width::Dword, Width::Byte, byte)
    }

    /// Computes an address.
    pub(crate) fn lea(&mut self, address: Address, width: Width) -> Reg {
        let code = if width == Width::Dword { Code::Lea_r32_m } else { Code::Lea_r64_m };
        self.make(code, Class::Scalar, width, &[Operand::Memory(address)])
    }

    pub(crate) fn load_scalar(&mut self, address: Address, width: Width) -> Reg {
        let code = if width == Width::Dword { Code::Mov_r32_rm32 } else { Code::Mov_r64_rm64 };
        self.s1(code, width, address)
    }

    pub(crate) fn store_scalar(&mut self, address: Address, value: Reg, width: Width) {
        let code = match width {
            Width::Byte => Code::Mov_rm8_r8,
            Width::Word => Code::Mov_rm16_r16,
            Width::Dword => Code::Mov_rm32_r32,
            _ => Code::Mov_rm64_r64,
        };
        self.push(code, &[Operand::Memory(address), Operand::Use(value, width)], true);
    }

    /// Read-modify-write of memory with a scalar, with a lock prefix if shared.
    pub(crate) fn update(&mut self, code: Code, address: Address, operand: Reg, width: Width, shared: bool) {
        let operands = [Operand::Memory(address), Operand::Use(operand, width)];
        self.push(code, &operands, true).locked = shared;
    }

    /// Read-modify-write of memory that returns the old value, with a lock prefix if shared.
    pub(crate) fn fetch(&mut self, code: Code, address: Address, operand: Reg, width: Width, shared: bool) -> Reg {
        let to = self.reg(Class::Scalar);
        let operands = [Operand::Memory(address), Operand::Update { from: operand, to, width }];
        self.push(code, &operands, true).locked = shared;
        to
    }

    /// Compare-exchange of memory: sets the zero flag on success, and returns the old value.
    pub(crate) fn compare_exchange(
        &mut self,
        address: Address,
        expected: Reg,
        new: Reg,
        width: Width,
        shared: bool,
    ) -> Reg {
        let code = if width == Width::Dword { Code::Cmpxchg_rm32_r32 } else { Code::Cmpxchg_rm64_r64 };
        let old = self.reg(Class::Scalar);
        let inst = self.push(code, &[Operand::Memory(address), Operand::Use(new, width)], true);
        inst.locked = shared;
        inst.implicit =
            smallvec![Implicit::Use(expected, iced_x86::Register::RAX), Implicit::Def(old, iced_x86::Register::RAX)];
        old
    }

    /// Compares scalars, to set flags.
    pub(crate) fn cmp(&mut self, a: Reg, b: impl Into<Source>, width: Width) {
        let code = if width == Width::Dword { Code::Cmp_r32_rm32 } else { Code::Cmp_r64_rm64 };
        let b = b.into().operand(width);
        self.push(code, &[Operand::Use(a, width), b], false);
    }

    pub(crate) fn cmp_immediate(&mut self, a: Reg, b: i32, width: Width) {
        let code = if width == Width::Dword { Code::Cmp_rm32_imm32 } else { Code::Cmp_rm64_imm32 };
        self.push(code, &[Operand::Use(a, width), Operand::Dword(b)], false);
    }

    /// Compares a 32-bit scalar with 0, to set flags.
    pub(crate) fn test(&mut self, a: Reg) {
        self.push(Code::Test_rm32_r32, &[Operand::Use(a, Width::Dword), Operand::Use(a, Width::Dword)], false);
    }

    /// Calls a function that preserves all registers, whose address is in the context.
    pub(crate) fn call(&mut self, function: Address, arguments: &[(Reg, iced_x86::Register)]) {
        let inst = self.push(Code::Call_rm64, &[Operand::Memory(function)], true);
        inst.implicit = arguments.iter().map(|&(reg, register)| Implicit::Use(reg, register)).collect();
    }
}

/// Address with a base and a displacement.
pub(crate) fn at(base: Base, displacement: i32) -> Address {
    Address { base, index: None, displacement }
}

/// Address of an array element.
pub(crate) fn element(base: Reg, index: Reg, scale: u8, displacement: i32) -> Address {
    Address { base: Base::Reg(base), index: Some((index, Width::Qword, scale)), displacement }
}

macro_rules! pairs {
    ($($name:ident = $narrow:ident, $wide:ident;)*) => { $( pub(crate) const $name: Pair = (Code::$narrow, Code::$wide); )* };
}

pairs! {
    MOVE = VEX_Vmovups_ymm_ymmm256, EVEX_Vmovups_zmm_k1z_zmmm512;
    AND = VEX_Vpand_ymm_ymm_ymmm256, EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32;
    AND_NOT = VEX_Vpandn_ymm_ymm_ymmm256, EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32;
    OR = VEX_Vpor_ymm_ymm_ymmm256, EVEX_Vpord_zmm_k1z_zmm_zmmm512b32;
    XOR = VEX_Vpxor_ymm_ymm_ymmm256, EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32;
    ADD_D = VEX_Vpaddd_ymm_ymm_ymmm256, EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
    SUB_D = VEX_Vpsubd_ymm_ymm_ymmm256, EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32;
    MUL_D = VEX_Vpmulld_ymm_ymm_ymmm256, EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32;
    MUL_EVEN_U = VEX_Vpmuludq_ymm_ymm_ymmm256, EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64;
    MUL_EVEN_S = VEX_Vpmuldq_ymm_ymm_ymmm256, EVEX_Vpmuldq_zmm_k1z_zmm_zmmm512b64;
    MIN_S = VEX_Vpminsd_ymm_ymm_ymmm256, EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32;
    MAX_S = VEX_Vpmaxsd_ymm_ymm_ymmm256, EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32;
    MIN_U = VEX_Vpminud_ymm_ymm_ymmm256, EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32;
    MAX_U = VEX_Vpmaxud_ymm_ymm_ymmm256, EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32;
    ABS_D = VEX_Vpabsd_ymm_ymmm256, EVEX_Vpabsd_zmm_k1z_zmmm512b32;
    SHL_D = VEX_Vpsllvd_ymm_ymm_ymmm256, EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32;
    SHR_D = VEX_Vpsrlvd_ymm_ymm_ymmm256, EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32;
    SAR_D = VEX_Vpsravd_ymm_ymm_ymmm256, EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32;
    SHL_D_BY = VEX_Vpslld_ymm_ymm_imm8, EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
    SHR_D_BY = VEX_Vpsrld_ymm_ymm_imm8, EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8;
    SAR_D_BY = VEX_Vpsrad_ymm_ymm_imm8, EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8;
    ADD_B = VEX_Vpaddb_ymm_ymm_ymmm256, EVEX_Vpaddb_zmm_k1z_zmm_zmmm512;
    SUB_B = VEX_Vpsubb_ymm_ymm_ymmm256, EVEX_Vpsubb_zmm_k1z_zmm_zmmm512;
    SUB_SATURATING_UB = VEX_Vpsubusb_ymm_ymm_ymmm256, EVEX_Vpsubusb_zmm_k1z_zmm_zmmm512;
    MIN_UB = VEX_Vpminub_ymm_ymm_ymmm256, EVEX_Vpminub_zmm_k1z_zmm_zmmm512;
    MAX_UB = VEX_Vpmaxub_ymm_ymm_ymmm256, EVEX_Vpmaxub_zmm_k1z_zmm_zmmm512;
    MIN_SB = VEX_Vpminsb_ymm_ymm_ymmm256, EVEX_Vpminsb_zmm_k1z_zmm_zmmm512;
    MAX_SB = VEX_Vpmaxsb_ymm_ymm_ymmm256, EVEX_Vpmaxsb_zmm_k1z_zmm_zmmm512;
    SHUFFLE_B = VEX_Vpshufb_ymm_ymm_ymmm256, EVEX_Vpshufb_zmm_k1z_zmm_zmmm512;
    DOT_W = VEX_Vpmaddwd_ymm_ymm_ymmm256, EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512;
    SHL_W_BY = VEX_Vpsllw_ymm_ymm_imm8, EVEX_Vpsllw_zmm_k1z_zmmm512_imm8;
    SHR_W_BY = VEX_Vpsrlw_ymm_ymm_imm8, EVEX_Vpsrlw_zmm_k1z_zmmm512_imm8;
    SAR_W_BY = VEX_Vpsraw_ymm_ymm_imm8, EVEX_Vpsraw_zmm_k1z_zmmm512_imm8;
    UNPACK_LOW_D = VEX_Vpunpckldq_ymm_ymm_ymmm256, EVEX_Vpunpckldq_zmm_k1z_zmm_zmmm512b32;
    UNPACK_LOW_Q = VEX_Vpunpcklqdq_ymm_ymm_ymmm256, EVEX_Vpunpcklqdq_zmm_k1z_zmm_zmmm512b64;
    ADD_Q = VEX_Vpaddq_ymm_ymm_ymmm256, EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64;
    SUB_Q = VEX_Vpsubq_ymm_ymm_ymmm256, EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64;
    SHL_Q = VEX_Vpsllvq_ymm_ymm_ymmm256, EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64;
    SHR_Q = VEX_Vpsrlvq_ymm_ymm_ymmm256, EVEX_Vpsrlvq_zmm_k1z_zmm_zmmm512b64;
    SHL_Q_BY = VEX_Vpsllq_ymm_ymm_imm8, EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8;
    SHR_Q_BY = VEX_Vpsrlq_ymm_ymm_imm8, EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8;
    ADD_S = VEX_Vaddps_ymm_ymm_ymmm256, EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er;
    SUB_S = VEX_Vsubps_ymm_ymm_ymmm256, EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er;
    MUL_S = VEX_Vmulps_ymm_ymm_ymmm256, EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er;
    DIV_S = VEX_Vdivps_ymm_ymm_ymmm256, EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er;
    MIN_PS = VEX_Vminps_ymm_ymm_ymmm256, EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae;
    MAX_PS = VEX_Vmaxps_ymm_ymm_ymmm256, EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae;
    SQRT_S = VEX_Vsqrtps_ymm_ymmm256, EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er;
    FMA_TIMES_S = VEX_Vfmadd132ps_ymm_ymm_ymmm256, EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er;
    FMA_ONTO_S = VEX_Vfmadd231ps_ymm_ymm_ymmm256, EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    ROUND_S = VEX_Vroundps_ymm_ymmm256_imm8, EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae;
    CMP_S = VEX_Vcmpps_ymm_ymm_ymmm256_imm8, EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
    ADD_PD = VEX_Vaddpd_ymm_ymm_ymmm256, EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
    SUB_PD = VEX_Vsubpd_ymm_ymm_ymmm256, EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er;
    MUL_PD = VEX_Vmulpd_ymm_ymm_ymmm256, EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er;
    DIV_PD = VEX_Vdivpd_ymm_ymm_ymmm256, EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er;
    MIN_PD = VEX_Vminpd_ymm_ymm_ymmm256, EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae;
    MAX_PD = VEX_Vmaxpd_ymm_ymm_ymmm256, EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae;
    SQRT_PD = VEX_Vsqrtpd_ymm_ymmm256, EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er;
    FMA_TIMES_PD = VEX_Vfmadd132pd_ymm_ymm_ymmm256, EVEX_Vfmadd132pd_zmm_k1z_zmm_zmmm512b64_er;
    FMA_ONTO_PD = VEX_Vfmadd231pd_ymm_ymm_ymmm256, EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    ROUND_PD = VEX_Vroundpd_ymm_ymmm256_imm8, EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae;
    CMP_PD = VEX_Vcmppd_ymm_ymm_ymmm256_imm8, EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae;
    FROM_I32 = VEX_Vcvtdq2ps_ymm_ymmm256, EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er;
    TO_I32 = VEX_Vcvttps2dq_ymm_ymmm256, EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae;
    SINGLE_TO_DOUBLE = VEX_Vcvtps2pd_ymm_xmmm128, EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae;
    DOUBLE_TO_SINGLE = VEX_Vcvtpd2ps_xmm_ymmm256, EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er;
    I32_TO_DOUBLE = VEX_Vcvtdq2pd_ymm_xmmm128, EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er;
    DOUBLE_TO_I32 = VEX_Vcvttpd2dq_xmm_ymmm256, EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae;
    SIGN_EXTEND = VEX_Vpmovsxdq_ymm_xmmm128, EVEX_Vpmovsxdq_zmm_k1z_ymmm256;
    ZERO_EXTEND = VEX_Vpmovzxdq_ymm_xmmm128, EVEX_Vpmovzxdq_zmm_k1z_ymmm256;
    I16_LOAD = VEX_Vpmovsxwd_ymm_xmmm128, EVEX_Vpmovsxwd_zmm_k1z_ymmm256;
    U16_LOAD = VEX_Vpmovzxwd_ymm_xmmm128, EVEX_Vpmovzxwd_zmm_k1z_ymmm256;
    I8_LOAD = VEX_Vpmovsxbd_ymm_xmmm64, EVEX_Vpmovsxbd_zmm_k1z_xmmm128;
    U8_LOAD = VEX_Vpmovzxbd_ymm_xmmm64, EVEX_Vpmovzxbd_zmm_k1z_xmmm128;
}
