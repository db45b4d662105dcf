//! Memory accesses on registers: bounds checks, masked and narrow vectors, gathers, 4×4 transposes, and atomic updates.

use iced_x86::Code;
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::ops::Atomic;
use vyre_foundation::ir::{Element, MemId};

use super::services;
use crate::x86::machine::emit::{
    ADD_D, AND, AND_NOT, Emit, I8_LOAD, I16_LOAD, MUL_D, SAR_D_BY, SHL_D_BY, U8_LOAD, U16_LOAD, at, element,
};
use crate::x86::machine::{Address, Base, BlockId, Class, Operand, Reg, Width};
use crate::x86::plan::shape::Tile;

/// An object that is accessed.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub(super) memory: MemId,
    /// Offset of its entry in the context.
    pub(super) entry: i32,
    /// Element type in memory: private arrays have none narrower than 32 bits.
    pub(super) element: Element,
    /// The first element; of a private array, that of the first lane of the tile.
    pub(super) start: Reg,
    pub(super) private: bool,
}

/// Lane number, constant or in a register.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Known(i32),
    Found(Reg),
}

impl Lane {
    /// Address of a lane of a value in scratch memory.
    pub(super) fn address(emit: &mut Emit, start: i32, size: i32, lane: Lane) -> Address {
        let address = services::scratch(emit, start);
        match lane {
            Lane::Known(lane) => Address { displacement: start + lane * size, ..address },
            Lane::Found(lane) => Address { index: Some((lane, Width::Qword, size as u8)), ..address },
        }
    }
}

impl Object {
    pub(super) fn size(&self) -> i32 {
        self.element.size() as i32
    }

    /// Width of a scalar that is stored as an element.
    pub(super) fn width(&self) -> Width {
        match self.element.size() {
            1 => Width::Byte,
            2 => Width::Word,
            4 => Width::Dword,
            _ => Width::Qword,
        }
    }

    /// Address of the 64-bit length of the object.
    pub(super) fn length(&self) -> Address {
        at(Base::Context, self.entry + 8)
    }

    /// Distance between consecutive elements of a lane in a private array, in bytes.
    pub(super) fn private_stride(&self, tile: Tile) -> i32 {
        tile.size() as i32 * self.size()
    }

    /// Address of a pack's elements in a private array, for an index that is equal in its lanes.
    pub(super) fn private_address(&self, emit: &mut Emit, tile: Tile, index: Reg, pack: usize) -> Address {
        let sources = [Operand::Use(index, Width::Qword), Operand::Dword(self.private_stride(tile))];
        let scaled = emit.make(Code::Imul_r64_rm64_imm32, Class::Scalar, Width::Qword, &sources);
        let displacement = pack as i32 * tile.lanes as i32 * self.size();
        Address { base: Base::Reg(self.start), index: Some((scaled, Width::Qword, 1)), displacement }
    }

    /// Branches to a block unless the element at an index plus an offset is in bounds.
    pub(super) fn skip_unless_inside(self, emit: &mut Emit, index: Reg, offset: i32, to: BlockId) {
        let position = match offset {
            0 => index,
            offset => emit.lea(at(Base::Reg(index), offset), Width::Qword),
        };
        emit.cmp(position, self.length(), Width::Qword);
        emit.skip_to(to, Code::Jae_rel32_64);
    }

    /// Loads an element, or 0 out of bounds, by selecting the address of a zero.
    pub(super) fn load_or_zero(self, emit: &mut Emit, index: Reg, offset: i32) -> Reg {
        let zero = emit.constant(0, false);
        let zero = emit.lea(zero, Width::Qword);
        let size = self.size();
        let address = emit.lea(element(self.start, index, size as u8, offset * size), Width::Qword);
        let position = if offset == 0 { index } else { emit.lea(at(Base::Reg(index), offset), Width::Qword) };
        emit.cmp(position, self.length(), Width::Qword);
        let address = emit.s2(Code::Cmovae_r64_rm64, Width::Qword, address, zero);
        emit.load_element(self.element, at(Base::Reg(address), 0))
    }

    /// Upper bound (exclusive) of indices for which the element at an offset from them is in bounds.
    pub(super) fn limit(self, emit: &mut Emit, offset: i32) -> Reg {
        if offset == 0 {
            return emit.broadcast_from(self.length(), false);
        }
        // The limit is 0 if the length is less than the offset.
        let zero = emit.immediate(0);
        let length = emit.load_scalar(self.length(), Width::Qword);
        let left = emit.s1i(Code::Sub_rm64_imm32, Width::Qword, length, Operand::Dword(offset));
        let left = emit.s2(Code::Cmovb_r64_rm64, Width::Qword, left, zero);
        emit.broadcast(left, false)
    }

    /// Masked gather of 32-bit elements at indices plus an offset; inactive lanes get 0.
    pub(super) fn gather(self, emit: &mut Emit, indices: Reg, mask: Reg, offset: i32) -> Reg {
        let full = if emit.wide() { Width::Zmm } else { Width::Ymm };
        let zero = emit.zero();
        let to = emit.reg(Class::Vector);
        let address =
            Address { base: Base::Reg(self.start), index: Some((indices, full, 4)), displacement: offset * 4 };
        let target = Operand::Update { from: zero, to, width: full };
        if emit.wide() {
            let code = Code::EVEX_Vgatherdps_zmm_k1_vm32z;
            emit.push(code, &[target, Operand::Memory(address)], false).mask = Some(mask);
        } else {
            let used = emit.reg(Class::Vector);
            let mask = Operand::Update { from: mask, to: used, width: full };
            emit.push(Code::VEX_Vgatherdps_ymm_vm32y_ymm, &[target, Operand::Memory(address), mask], false);
        }
        to
    }

    /// Indices of lanes' private elements among the elements of the whole tile.
    pub(super) fn private_indices(emit: &mut Emit, tile: Tile, indices: Reg, offset: i32, pack: usize) -> Reg {
        let size = emit.constant(u64::from(tile.size()), false);
        let scaled = emit.v2(MUL_D, indices, size);
        let own = emit.iota(offset as u32 * tile.size() + pack as u32 * tile.lanes);
        emit.v2(ADD_D, scaled, own)
    }

    /// Atomic update of an integer; returns its old value.
    pub(super) fn exchange(self, emit: &mut Emit, op: Atomic, address: Address, value: Reg, shared: bool) -> Reg {
        let width = self.width();
        let pick = |narrow, wide| if width == Width::Dword { narrow } else { wide };
        let signed = matches!(self.element, Element::I32 | Element::I64);
        let add = pick(Code::Xadd_rm32_r32, Code::Xadd_rm64_r64);
        let (combine, stays) = match op {
            Atomic::Add => return emit.fetch(add, address, value, width, shared),
            Atomic::Sub => {
                let negated = emit.s1_in_place(pick(Code::Neg_rm32, Code::Neg_rm64), width, value);
                return emit.fetch(add, address, negated, width, shared);
            }
            // `xchg` with memory is always locked.
            Atomic::Exchange => {
                let code = pick(Code::Xchg_rm32_r32, Code::Xchg_rm64_r64);
                return emit.fetch(code, address, value, width, false);
            }
            Atomic::And => (Some(pick(Code::And_r32_rm32, Code::And_r64_rm64)), Some(Code::Je_rel32_64)),
            Atomic::Or => (Some(pick(Code::Or_r32_rm32, Code::Or_r64_rm64)), Some(Code::Je_rel32_64)),
            Atomic::Xor => (Some(pick(Code::Xor_r32_rm32, Code::Xor_r64_rm64)), None),
            Atomic::Min => (None, Some(if signed { Code::Jge_rel32_64 } else { Code::Jae_rel32_64 })),
            Atomic::Max => (None, Some(if signed { Code::Jle_rel32_64 } else { Code::Jbe_rel32_64 })),
        };
        let cold = emit.is_cold();
        let (again, done) = (emit.block(cold), emit.block(cold));
        let (found, result) = (emit.param(again, Class::Scalar), emit.param(done, Class::Scalar));
        let first = emit.load_scalar(address, width);
        emit.jump(again, &[first]);
        emit.at = again;
        let new = combine.map_or(value, |code| emit.s2(code, width, found, value));
        if let Some(stays) = stays {
            emit.cmp(new, found, width);
            emit.jump_if(stays, done, &[found]);
        }
        let old = emit.compare_exchange(address, found, new, width, shared);
        emit.jump_if(Code::Je_rel32_64, done, &[found]);
        emit.jump(again, &[old]);
        emit.at = done;
        result
    }
}

impl Emit {
    /// Loads one element as a value that is uniform.
    pub(super) fn load_element(&mut self, element: Element, address: Address) -> Reg {
        let scalar = |this: &mut Self, code, width| this.s1_of(code, Width::Dword, width, address);
        match element {
            Element::F32 => self.broadcast_from(address, false),
            Element::F64 => self.broadcast_from(address, true),
            Element::I8 => scalar(self, Code::Movsx_r32_rm8, Width::Byte),
            Element::U8 => scalar(self, Code::Movzx_r32_rm8, Width::Byte),
            Element::I16 => scalar(self, Code::Movsx_r32_rm16, Width::Word),
            Element::U16 => scalar(self, Code::Movzx_r32_rm16, Width::Word),
            Element::F16 => {
                let bits = scalar(self, Code::Movzx_r32_rm16, Width::Word);
                self.broadcast(bits, false)
            }
            Element::I32 | Element::U32 => self.load_scalar(address, Width::Dword),
            Element::I64 | Element::U64 => self.load_scalar(address, Width::Qword),
            Element::BF16 => unreachable!("legalized"),
        }
    }

    /// Loads consecutive elements: one register, or two for elements of 64 bits.
    pub(super) fn load_vector(&mut self, element: Element, address: Address) -> SmallVec<[Reg; 2]> {
        match element {
            Element::I8 => smallvec![self.widen(I8_LOAD, address)],
            Element::U8 => smallvec![self.widen(U8_LOAD, address)],
            Element::I16 => smallvec![self.widen(I16_LOAD, address)],
            Element::U16 | Element::F16 => smallvec![self.widen(U16_LOAD, address)],
            Element::I32 | Element::U32 | Element::F32 => smallvec![self.load(address)],
            Element::I64 | Element::U64 | Element::F64 => {
                let upper = Address { displacement: address.displacement + self.bytes(), ..address };
                smallvec![self.load(address), self.load(upper)]
            }
            Element::BF16 => unreachable!("legalized"),
        }
    }

    /// Masked load; inactive lanes get 0.
    pub(super) fn load_lanes_of(&mut self, address: Address, mask: Reg, of_64: bool) -> Reg {
        let to = self.reg(Class::Vector);
        if self.wide() {
            let code = if of_64 { Code::EVEX_Vmovupd_zmm_k1z_zmmm512 } else { Code::EVEX_Vmovups_zmm_k1z_zmmm512 };
            let operands = [Operand::Def(to, Width::Zmm), Operand::Memory(address)];
            let inst = self.push(code, &operands, false);
            (inst.mask, inst.zeroing) = (Some(mask), true);
        } else {
            let code = if of_64 { Code::VEX_Vmaskmovpd_ymm_ymm_m256 } else { Code::VEX_Vmaskmovps_ymm_ymm_m256 };
            let operands = [Operand::Def(to, Width::Ymm), Operand::Use(mask, Width::Ymm), Operand::Memory(address)];
            self.push(code, &operands, false);
        }
        to
    }

    /// 4×4 transposes within the 128-bit parts of four vectors.
    pub(super) fn transposed(&mut self, [a, b, c, d]: [Reg; 4]) -> [Reg; 4] {
        const LOW: (Code, Code) = (Code::VEX_Vunpcklps_ymm_ymm_ymmm256, Code::EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32);
        const HIGH: (Code, Code) = (Code::VEX_Vunpckhps_ymm_ymm_ymmm256, Code::EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32);
        const LOW_PAIRS: (Code, Code) =
            (Code::VEX_Vunpcklpd_ymm_ymm_ymmm256, Code::EVEX_Vunpcklpd_zmm_k1z_zmm_zmmm512b64);
        const HIGH_PAIRS: (Code, Code) =
            (Code::VEX_Vunpckhpd_ymm_ymm_ymmm256, Code::EVEX_Vunpckhpd_zmm_k1z_zmm_zmmm512b64);
        let (ab_low, cd_low) = (self.v2(LOW, a, b), self.v2(LOW, c, d));
        let (ab_high, cd_high) = (self.v2(HIGH, a, b), self.v2(HIGH, c, d));
        [
            self.v2(LOW_PAIRS, ab_low, cd_low),
            self.v2(HIGH_PAIRS, ab_low, cd_low),
            self.v2(LOW_PAIRS, ab_high, cd_high),
            self.v2(HIGH_PAIRS, ab_high, cd_high),
        ]
    }

    /// Loads four elements for each of 16 lanes and transposes them (AoS to SoA), into one vector per element.
    pub(super) fn load_lanes_by_fours(&mut self, first: Address) -> [Reg; 4] {
        const HALVES: (Code, Code) = (Code::INVALID, Code::EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8);
        let at = |vector: i32| Address { displacement: first.displacement + 64 * vector, ..first };
        // Halves of two vectors, with two of the four elements.
        let [[ab_low, cd_low], [ab_high, cd_high]] = [0, 2].map(|vector| {
            let loaded = self.load(at(vector));
            [0, 2].map(|number| {
                let lanes = std::array::from_fn(|lane| (4 * (lane % 8) + number + lane / 8) as u8);
                self.pick_lanes(lanes, loaded, at(vector + 1))
            })
        });
        let mut join = |low, high, parts| self.v2i(HALVES, low, high, parts);
        [
            join(ab_low, ab_high, 0x44),
            join(ab_low, ab_high, 0xee),
            join(cd_low, cd_high, 0x44),
            join(cd_low, cd_high, 0xee),
        ]
    }

    /// Transposes four vectors to four consecutive elements per lane (SoA to AoS).
    pub(super) fn lanes_by_fours(&mut self, [a, b, c, d]: [Reg; 4]) -> [Reg; 4] {
        const HALVES: (Code, Code) = (Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, Code::INVALID);
        if !self.wide() {
            let [a, b, c, d] = self.transposed([a, b, c, d]);
            let mut pick = |a, b, parts| self.v2i(HALVES, a, b, parts);
            return [pick(a, b, 0x20), pick(c, d, 0x20), pick(a, b, 0x31), pick(c, d, 0x31)];
        }
        // Interleaves pairs of elements for half of the lanes, then all four for a quarter.
        let [low, high] = [0, 8].map(|first| {
            let lanes = std::array::from_fn(|lane| (first + lane / 2 + 16 * (lane % 2)) as u8);
            [self.pick_lanes(lanes, a, b), self.pick_lanes(lanes, c, d)]
        });
        let mut quarter = |[pairs, others]: [Reg; 2], first: usize| {
            let lanes = std::array::from_fn(|lane| (first + lane / 4 * 2 + lane % 2 + 16 * (lane % 4 / 2)) as u8);
            self.pick_lanes(lanes, pairs, others)
        };
        [quarter(low, 0), quarter(low, 8), quarter(high, 0), quarter(high, 8)]
    }

    /// Mask of active lanes whose index is below a bound. With AVX2, only the top bit of each lane is significant.
    pub(super) fn inside_mask(&mut self, indices: Reg, bound: Option<Reg>, active: Option<Reg>) -> Reg {
        let Some(bound) = bound else { return active.unwrap_or_else(|| self.mask_constant(true)) };
        let inside = if self.wide() {
            self.less(indices, bound)
        } else {
            // No length has the top bit set: indices with it are out of bounds, and the others compare as signed
            // numbers.
            let less = self.v2((Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, Code::INVALID), bound, indices);
            self.v2(AND_NOT, indices, less)
        };
        match active {
            Some(active) => self.mask_and(active, inside),
            None => inside,
        }
    }

    /// Value in private memory that stands for an element narrower than 32 bits.
    pub(super) fn as_stored(&mut self, element: Element, value: Reg) -> Reg {
        let keep = |this: &mut Self, bits: u64| {
            let mask = this.constant(bits, false);
            this.v2(AND, value, mask)
        };
        let extend = |this: &mut Self, bits: u8| {
            let up = this.v1i(SHL_D_BY, value, bits);
            this.v1i(SAR_D_BY, up, bits)
        };
        match element {
            Element::I8 => extend(self, 24),
            Element::U8 => keep(self, 0xff),
            Element::I16 => extend(self, 16),
            Element::U16 | Element::F16 => keep(self, 0xffff),
            Element::I32 | Element::U32 | Element::F32 | Element::I64 | Element::U64 | Element::F64 => value,
            Element::BF16 => unreachable!("legalized"),
        }
    }

    /// Stores a vector, or its lanes in a mask.
    pub(super) fn store_lanes(&mut self, address: Address, value: Reg, mask: Option<Reg>, of_64: bool) {
        let Some(mask) = mask else {
            self.store(address, value);
            return;
        };
        if self.wide() {
            let code = if of_64 { Code::EVEX_Vmovupd_zmmm512_k1z_zmm } else { Code::EVEX_Vmovups_zmmm512_k1z_zmm };
            let operands = [Operand::Memory(address), Operand::Use(value, Width::Zmm)];
            self.push(code, &operands, true).mask = Some(mask);
        } else {
            let code = if of_64 { Code::VEX_Vmaskmovpd_m256_ymm_ymm } else { Code::VEX_Vmaskmovps_m256_ymm_ymm };
            let operands = [Operand::Memory(address), Operand::Use(mask, Width::Ymm), Operand::Use(value, Width::Ymm)];
            self.push(code, &operands, true);
        }
    }

    /// Stores the low bytes of all lanes.
    pub(super) fn store_narrow(&mut self, element: Element, address: Address, value: Reg) {
        let bytes = element.size() == 1;
        if self.wide() {
            let code = if bytes { Code::EVEX_Vpmovdb_xmmm128_k1z_zmm } else { Code::EVEX_Vpmovdw_ymmm256_k1z_zmm };
            self.push(code, &[Operand::Memory(address), Operand::Use(value, Width::Zmm)], true);
            return;
        }
        let mask = self.constant(if bytes { 0xff } else { 0xffff }, false);
        let low = self.v2(AND, value, mask);
        let words = self.v2((Code::VEX_Vpackusdw_ymm_ymm_ymmm256, Code::INVALID), low, low);
        // Gathers the words of both 128-bit halves.
        let words = self.v1i((Code::VEX_Vpermq_ymm_ymmm256_imm8, Code::INVALID), words, 0xd8);
        if bytes {
            let packed = self.v2((Code::VEX_Vpackuswb_ymm_ymm_ymmm256, Code::INVALID), words, words);
            let operands = [Operand::Memory(address), Operand::Use(packed, Width::Xmm)];
            self.push(Code::VEX_Vmovq_xmmm64_xmm, &operands, true);
        } else {
            self.store_half(address, words);
        }
    }

    /// Emits a loop over the set bits of a mask, in lane order.
    pub(super) fn for_each_lane(&mut self, bits: Reg, body: impl FnOnce(&mut Self, Lane)) {
        let cold = self.is_cold();
        let (header, done) = (self.block(cold), self.block(cold));
        let left = self.param(header, Class::Scalar);
        self.test(bits);
        self.skip_to(done, Code::Je_rel32_64);
        self.jump(header, &[bits]);
        self.at = header;
        let lane = self.s1(Code::Tzcnt_r32_rm32, Width::Dword, left);
        let rest = self.s1(Code::VEX_Blsr_r32_rm32, Width::Dword, left);
        body(self, Lane::Found(lane));
        self.test(rest);
        self.skip_to(done, Code::Je_rel32_64);
        self.jump(header, &[rest]);
        self.at = done;
    }

    /// Loads a lane that is in memory, for ascending lanes. Bytes are loaded four at a time.
    pub(super) fn lane_in_memory(
        &mut self,
        (element, address): (Element, Address),
        lane: i32,
        word: &mut Option<Reg>,
    ) -> Reg {
        let displacement = address.displacement + lane * element.size() as i32;
        let address = Address { displacement, ..address };
        if element != Element::U8 {
            return self.load_element(element, address);
        }
        let bytes = match *word {
            Some(word) if lane % 4 != 0 => self.s1i(Code::Shr_rm32_imm8, Width::Dword, word, Operand::Byte(8)),
            _ => self.load_scalar(address, Width::Dword),
        };
        *word = Some(bytes);
        self.s1_of(Code::Movzx_r32_rm8, Width::Dword, Width::Byte, bytes)
    }
}
