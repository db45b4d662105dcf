//! Multi-instruction arithmetic on registers: division, comparisons, min/max, reductions, and index computations of
//! lanes.

use iced_x86::{Code, Register};
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::Type;
use vyre_foundation::ir::ops::{Axis, Combiner, Comparison};

use crate::x86::machine::emit::{self, Emit, Pair, Regs, Source, at};
use crate::x86::machine::{Base, Class, Implicit, Operand, Reg, Width};
use crate::x86::plan::shape::{Axes, Tile};
use crate::x86::service;

/// Predicates of quiet float comparisons.
pub(super) mod float {
    pub(crate) const EQ: u8 = 0x00;
    pub(crate) const LT: u8 = 0x11;
    pub(crate) const LE: u8 = 0x12;
    pub(crate) const UNORDERED: u8 = 0x03;
    pub(crate) const NE: u8 = 0x04;
    pub(crate) const GE: u8 = 0x1d;
    pub(crate) const GT: u8 = 0x1e;
    pub(crate) const ORDERED: u8 = 0x07;
}

/// Predicates of AVX-512 integer comparisons.
mod integer {
    pub(crate) const EQ: u8 = 0;
    pub(crate) const LT: u8 = 1;
    pub(crate) const LE: u8 = 2;
    pub(crate) const NE: u8 = 4;
    pub(crate) const GE: u8 = 5;
    pub(crate) const GT: u8 = 6;
}

impl Emit {
    /// Selects `new` if any lane of the masks is set, `old` otherwise.
    pub(super) fn choose_scalar(&mut self, masks: &[Reg], new: Reg, old: Reg) -> Reg {
        self.test_none(masks);
        self.either(Code::Je_rel32_64, false, old, new)
    }

    pub(super) fn zeros(&mut self, classes: &[Class]) -> Regs {
        classes.iter().map(|&class| self.zero_of(class)).collect()
    }

    /// Lanes of a row of packs that count up from a scalar.
    pub(super) fn run_of(&mut self, tile: Tile, first: Reg) -> Regs {
        let splat = self.broadcast(first, false);
        let packs = (0..tile.columns).map(|column| {
            let iota = self.iota(column * tile.lanes);
            self.v2(emit::ADD_D, splat, iota)
        });
        packs.collect()
    }

    /// Workgroup id along an axis from the linear index of the workgroup, in each lane.
    pub(super) fn group_of_lanes(&mut self, index: Reg, axis: Axis) -> Reg {
        let count = |this: &mut Self, axis: i32| {
            let count = this.load_scalar(at(Base::Context, service::COUNTS + 4 * axis), Width::Dword);
            this.broadcast(count, false)
        };
        let x = count(self, 0);
        let rows = self.quotient_of_lanes(index, x);
        match axis {
            Axis::X => self.remainder_of_lanes(index, rows, x),
            Axis::Y => {
                let y = count(self, 1);
                let planes = self.quotient_of_lanes(rows, y);
                self.remainder_of_lanes(rows, planes, y)
            }
            Axis::Z => {
                let y = count(self, 1);
                self.quotient_of_lanes(rows, y)
            }
        }
    }

    pub(super) fn remainder_of_lanes(&mut self, a: Reg, quotient: Reg, by: Reg) -> Reg {
        let whole = self.v2(emit::MUL_D, quotient, by);
        self.v2(emit::SUB_D, a, whole)
    }

    /// Quotient and remainder of lanes by a nonzero constant.
    pub(super) fn divide_lanes(&mut self, a: Reg, by: u32) -> (Reg, Reg) {
        if by == 1 {
            return (a, self.zero());
        }
        if by.is_power_of_two() {
            let mask = self.constant(u64::from(by - 1), false);
            let quotient = self.v1i(emit::SHR_D_BY, a, by.trailing_zeros() as u8);
            return (quotient, self.v2(emit::AND, a, mask));
        }
        let by = self.splat(u64::from(by), false);
        let quotient = self.quotient_of_lanes(a, by);
        (quotient, self.remainder_of_lanes(a, quotient, by))
    }

    /// Sum of two optional addends.
    pub(super) fn sum(&mut self, a: Option<Reg>, b: Option<Reg>) -> Option<Reg> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.s2(Code::Add_r32_rm32, Width::Dword, a, b)),
            (one, other) => one.or(other),
        }
    }

    pub(super) fn divided(&mut self, a: Reg, by: u32) -> Reg {
        if by == 1 {
            return a;
        }
        if by.is_power_of_two() {
            let shift = Operand::Byte(by.trailing_zeros() as i8);
            return self.s1i(Code::Shr_rm32_imm8, Width::Dword, a, shift);
        }
        let by = self.immediate(u64::from(by));
        self.quotient(a, by, Width::Dword, false, true)
    }

    pub(super) fn scaled(&mut self, a: Reg, by: u32) -> Reg {
        if by == 1 {
            return a;
        }
        let sources = [Operand::Use(a, Width::Dword), Operand::Dword(by as i32)];
        self.make(Code::Imul_r32_rm32_imm32, Class::Scalar, Width::Dword, &sources)
    }

    /// Selects zeros if a scalar is nonzero, the registers otherwise.
    pub(super) fn zero_if(&mut self, ended: Reg, regs: &[Reg]) -> Regs {
        let chosen = regs.iter().map(|&reg| {
            let zero = self.zero_of(self.class(reg));
            self.test(ended);
            self.either(Code::Jne_rel32_64, true, zero, reg)
        });
        chosen.collect()
    }

    pub(super) fn zero_of(&mut self, class: Class) -> Reg {
        match class {
            Class::Scalar => self.immediate(0),
            Class::Vector => self.zero(),
            Class::Mask => self.mask_constant(false),
        }
    }

    /// Signed or unsigned quotient or remainder of scalars, defined for all operands.
    pub(super) fn quotient(&mut self, a: Reg, b: Reg, width: Width, signed: bool, is_quotient: bool) -> Reg {
        let of_64 = width == Width::Qword;
        let pick = |narrow: Code, wide: Code| if of_64 { wide } else { narrow };
        let join = self.block(self.is_cold());
        let result = self.param(join, Class::Scalar);
        self.push(
            pick(Code::Test_rm32_r32, Code::Test_rm64_r64),
            &[Operand::Use(b, width), Operand::Use(b, width)],
            false,
        );
        let (by_zero, rest) = self.branch(Code::Je_rel32_64, true, false);
        self.at = by_zero;
        let given = if is_quotient { a } else { self.immediate(0) };
        self.jump(join, &[given]);
        self.at = rest;
        if signed {
            // The minimum divided by −1 would fault.
            self.cmp_immediate(b, -1, width);
            let (by_minus_one, rest) = self.branch(Code::Je_rel32_64, true, false);
            self.at = by_minus_one;
            let given = if is_quotient {
                self.s1_in_place(pick(Code::Neg_rm32, Code::Neg_rm64), width, a)
            } else {
                self.immediate(0)
            };
            self.jump(join, &[given]);
            self.at = rest;
        }
        let (quotient, remainder) = (self.reg(Class::Scalar), self.reg(Class::Scalar));
        let high = self.reg(Class::Scalar);
        let code = if signed {
            let extend = self.push(pick(Code::Cdq, Code::Cqo), &[], false);
            extend.implicit = smallvec![Implicit::Use(a, Register::RAX), Implicit::Def(high, Register::RDX)];
            pick(Code::Idiv_rm32, Code::Idiv_rm64)
        } else {
            self.push(Code::Mov_r32_imm32, &[Operand::Def(high, Width::Dword), Operand::Dword(0)], false);
            pick(Code::Div_rm32, Code::Div_rm64)
        };
        let inst = self.push(code, &[Operand::Use(b, width)], false);
        inst.implicit = smallvec![
            Implicit::Use(a, Register::RAX),
            Implicit::Use(high, Register::RDX),
            Implicit::Def(quotient, Register::RAX),
            Implicit::Def(remainder, Register::RDX),
        ];
        self.jump(join, &[if is_quotient { quotient } else { remainder }]);
        self.at = join;
        result
    }

    // Lanes.

    /// Mask of equal 32-bit lanes.
    pub(super) fn equal(&mut self, a: Reg, b: Reg) -> Reg {
        self.compare_integers(Comparison::Eq, Type::U32, a, b.into())
    }

    /// Mask of lanes with `a` < `b`, unsigned, 32 bits.
    pub(super) fn less(&mut self, a: Reg, b: Reg) -> Reg {
        self.compare_integers(Comparison::Lt, Type::U32, a, b.into())
    }

    /// Fraction in [½, 1) or exponent of f32 lanes. Subnormal lanes are first scaled by 2²⁴.
    pub(super) fn frexp(&mut self, a: Reg, exponent: bool) -> Reg {
        let [rest, normal, up, below] = [0x7fff_ffff, 0x0080_0000, 16_777_216f32.to_bits(), 0x7f7f_ffff]
            .map(|bits| self.constant(u64::from(bits), false));
        let magnitude = self.v2(emit::AND, a, rest);
        let subnormal = self.compare_integers(Comparison::Lt, Type::U32, magnitude, normal.into());
        let scaled = self.v2(emit::MUL_S, magnitude, up);
        let scaled = self.blend(subnormal, scaled, magnitude);
        // Zeros, infinities and NaNs.
        let one = self.constant(1, false);
        let less = self.v2(emit::SUB_D, magnitude, one);
        let special = self.compare_integers(Comparison::Ge, Type::U32, less, below.into());
        if exponent {
            let lost = self.mask_to_vector(subnormal);
            let [factor, half] = [24, 126].map(|power| self.constant(power, false));
            let lost = self.v2(emit::AND, lost, factor);
            let biased = self.v1i(emit::SHR_D_BY, scaled, 23);
            let exponent = self.v2(emit::SUB_D, biased, lost);
            let exponent = self.v2(emit::SUB_D, exponent, half);
            let zero = self.zero();
            return self.blend(special, zero, exponent);
        }
        // Keeps sign and fraction, and sets the exponent to that of ½.
        let [fraction, half, top] = [0x007f_ffff, 0x3f00_0000, 1 << 31].map(|bits| self.constant(bits, false));
        let sign = self.v2(emit::AND, a, top);
        let fraction = self.v2(emit::AND, scaled, fraction);
        let fraction = self.v2(emit::OR, fraction, half);
        let fraction = self.v2(emit::OR, fraction, sign);
        self.blend(special, a, fraction)
    }

    /// Dot products of the bytes of 32-bit lanes, each operand signed or unsigned, plus a sum.
    pub(super) fn dot4(&mut self, [a, b]: [Reg; 2], signed: [bool; 2], sum: Reg) -> Reg {
        // VNNI multiplies unsigned by signed bytes. Other sign combinations built on it are no faster than the general
        // form below.
        if signed == [true, false] && self.wide() && std::arch::is_x86_feature_detected!("avx512vnni") {
            return self.v3((Code::INVALID, Code::EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32), sum, b, a);
        }
        // Even and odd bytes are extended to 16 bits, so that `vpmaddwd` cannot saturate.
        let mut parts = |bytes: Reg, signed: bool| {
            if signed {
                let up = self.v1i(emit::SHL_W_BY, bytes, 8);
                return [self.v1i(emit::SAR_W_BY, up, 8), self.v1i(emit::SAR_W_BY, bytes, 8)];
            }
            let low = self.constant(0x00ff_00ff, false);
            [self.v2(emit::AND, bytes, low), self.v1i(emit::SHR_W_BY, bytes, 8)]
        };
        let ([a_even, a_odd], [b_even, b_odd]) = (parts(a, signed[0]), parts(b, signed[1]));
        let (even, odd) = (self.v2(emit::DOT_W, a_even, b_even), self.v2(emit::DOT_W, a_odd, b_odd));
        let products = self.v2(emit::ADD_D, even, odd);
        self.v2(emit::ADD_D, products, sum)
    }

    /// Byte shuffle of a table repeated in each 128 bits, by the low four bits of each index byte.
    pub(super) fn lookup(&mut self, table: Reg, index: Reg) -> Reg {
        let entries = self.constant(0x0f0f_0f0f, false);
        let index = self.v2(emit::AND, index, entries);
        self.v2(emit::SHUFFLE_B, table, index)
    }

    /// Byte lookup in a table that is equal in all lanes.
    pub(super) fn lookup_in_one(&mut self, [t0, t1, t2, t3]: [Reg; 4], index: Reg) -> Reg {
        let (low, high) = (self.v2(emit::UNPACK_LOW_D, t0, t1), self.v2(emit::UNPACK_LOW_D, t2, t3));
        let table = self.v2(emit::UNPACK_LOW_Q, low, high);
        self.lookup(table, index)
    }

    /// Byte lookup in a table of 16 bytes per lane: one byte shuffle for each word of the tables, combined by OR. The
    /// shuffle works within 128 bits and yields 0 where the highest bit of an index byte is set. For each word of the
    /// table, indices of bytes in other words get that bit, and the others select a byte of their own lane.
    pub(super) fn lookup_in_each(&mut self, words: [Reg; 4], index: Reg) -> Reg {
        let entries = self.constant(0x0f0f_0f0f, false);
        let index = self.v2(emit::AND, index, entries);
        let up = self.constant(0x7c7c_7c7c, false);
        let places = self.constant_quad([0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0]);
        let mut result = None;
        for (word, from) in words.into_iter().zip([0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c]) {
            let from = self.constant(from, false);
            let entry = self.v2(emit::XOR, index, from);
            let entry = self.v2(emit::ADD_B, entry, up);
            let entry = self.v2(emit::XOR, entry, places);
            let bytes = self.v2(emit::SHUFFLE_B, word, entry);
            result = Some(match result {
                None => bytes,
                Some(result) => self.v2(emit::OR, result, bytes),
            });
        }
        result.expect("a table has words")
    }

    /// Population count per lane, by adding bits in pairs, nibbles and bytes.
    pub(super) fn count_ones(&mut self, a: Reg) -> Reg {
        let [pairs, fours, bytes] = [0x5555_5555, 0x3333_3333, 0x0f0f_0f0f].map(|mask| self.constant(mask, false));
        let upper = self.v1i(emit::SHR_D_BY, a, 1);
        let upper = self.v2(emit::AND, upper, pairs);
        let a = self.v2(emit::SUB_D, a, upper);
        let (lower, upper) = (self.v2(emit::AND, a, fours), self.v1i(emit::SHR_D_BY, a, 2));
        let upper = self.v2(emit::AND, upper, fours);
        let a = self.v2(emit::ADD_D, lower, upper);
        let upper = self.v1i(emit::SHR_D_BY, a, 4);
        let a = self.v2(emit::ADD_D, a, upper);
        let a = self.v2(emit::AND, a, bytes);
        let each = self.constant(0x0101_0101, false);
        let a = self.v2(emit::MUL_D, a, each);
        self.v1i(emit::SHR_D_BY, a, 24)
    }

    pub(super) fn compare_integers(&mut self, relation: Comparison, ty: Type, a: Reg, b: Source) -> Reg {
        let (signed, of_64) = (matches!(ty, Type::I32 | Type::I64), ty.bits() == 64);
        if self.wide() {
            let code = match (signed, of_64) {
                (true, false) => Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8,
                (false, false) => Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8,
                (true, true) => Code::EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8,
                (false, true) => Code::EVEX_Vpcmpuq_kr_k1_zmm_zmmm512b64_imm8,
            };
            let predicate = match relation {
                Comparison::Eq => integer::EQ,
                Comparison::Ne => integer::NE,
                Comparison::Lt => integer::LT,
                Comparison::Le => integer::LE,
                Comparison::Gt => integer::GT,
                Comparison::Ge => integer::GE,
            };
            return self.compare((Code::INVALID, code), a, b, predicate);
        }
        let equal: Pair = (
            if of_64 { Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256 } else { Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256 },
            Code::INVALID,
        );
        let greater: Pair = (
            if of_64 { Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256 } else { Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256 },
            Code::INVALID,
        );
        let b_reg = |this: &mut Self| match b {
            Source::Reg(reg) => reg,
            Source::Memory(address) => this.load(address),
        };
        match (relation, signed) {
            (Comparison::Eq, _) => self.v2(equal, a, b),
            (Comparison::Ne, _) => {
                let equal = self.v2(equal, a, b);
                self.mask_not(equal)
            }
            (Comparison::Gt, true) => self.v2(greater, a, b),
            (Comparison::Lt, true) => {
                let b = b_reg(self);
                self.v2(greater, b, a)
            }
            (Comparison::Le, true) => {
                let greater = self.v2(greater, a, b);
                self.mask_not(greater)
            }
            (Comparison::Ge, true) => {
                let b = b_reg(self);
                let less = self.v2(greater, b, a);
                self.mask_not(less)
            }
            // `a` ≥ `b` if the maximum is `a`.
            (Comparison::Ge, false) if !of_64 => self.is_extreme(emit::MAX_U, a, b),
            (Comparison::Lt, false) if !of_64 => {
                let greatest = self.is_extreme(emit::MAX_U, a, b);
                self.mask_not(greatest)
            }
            (Comparison::Le, false) if !of_64 => self.is_extreme(emit::MIN_U, a, b),
            (Comparison::Gt, false) if !of_64 => {
                let least = self.is_extreme(emit::MIN_U, a, b);
                self.mask_not(least)
            }
            (Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge, false) => {
                // Flipping the top bits turns unsigned into signed order.
                let top = self.constant(1 << 63, true);
                let b = b_reg(self);
                let (a, b) = (self.v2(emit::XOR, a, top), self.v2(emit::XOR, b, top));
                self.compare_integers(relation, Type::I64, a, b.into())
            }
        }
    }

    /// Mask of 32-bit lanes whose unsigned minimum or maximum is the first operand.
    fn is_extreme(&mut self, extreme: Pair, a: Reg, b: Source) -> Reg {
        let extreme = self.v2(extreme, a, b);
        let equal: Pair = (Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, Code::INVALID);
        self.v2(equal, extreme, a)
    }

    /// Unsigned quotients of 32-bit lanes by nonzero divisors.
    pub(super) fn quotient_of_lanes(&mut self, a: Reg, b: Reg) -> Reg {
        self.divide(a, b, false, true)
    }

    /// Quotient or remainder of 32-bit lanes, defined for all operands. Truncating the quotient in f64 is exact: its
    /// error is below 2⁻²¹ / b, and a quotient that is not an integer is at least 1 / b from the next integer.
    pub(super) fn divide(&mut self, a: Reg, b: Reg, signed: bool, is_quotient: bool) -> Reg {
        let mut halves: SmallVec<[Reg; 2]> = SmallVec::new();
        for half in 0..2 {
            let [x, y] = [a, b].map(|reg| {
                let part = if half == 1 { self.upper(reg) } else { reg };
                if signed {
                    self.widen(emit::I32_TO_DOUBLE, part)
                } else {
                    // The bits of 2⁵² OR n are those of the f64 2⁵² + n.
                    let wide = self.widen(emit::ZERO_EXTEND, part);
                    let magic = self.constant(0x4330_0000_0000_0000, true);
                    let sum = self.v2(emit::OR, wide, magic);
                    self.v2(emit::SUB_PD, sum, magic)
                }
            });
            let quotient = self.v2(emit::DIV_PD, x, y);
            halves.push(if signed {
                self.narrow(emit::DOUBLE_TO_I32, quotient)
            } else {
                let whole = self.v1i(emit::ROUND_PD, quotient, 0x0b);
                let magic = self.constant(0x4330_0000_0000_0000, true);
                // The low bits of the f64 2⁵² + n are n.
                self.v2(emit::ADD_PD, whole, magic)
            });
        }
        let quotient = if signed { self.join(halves[0], halves[1]) } else { self.low_halves(halves[0], halves[1]) };
        // Division by 0 yields the dividend, and remainder 0. The minimum divided by −1 is itself, by the conversion.
        let zero = self.constant(0, false);
        let by_zero = self.compare_integers(Comparison::Eq, Type::U32, b, zero.into());
        let quotient = self.blend(by_zero, a, quotient);
        if is_quotient {
            return quotient;
        }
        let whole = self.v2(emit::MUL_D, quotient, b);
        let remainder = self.v2(emit::SUB_D, a, whole);
        let zero = self.zero();
        self.blend(by_zero, zero, remainder)
    }

    /// Minimum or maximum of floats: prefers a number over a NaN, and orders −0 below +0.
    pub(super) fn extreme(&mut self, a: Reg, b: Reg, is_min: bool, double: bool) -> Reg {
        let pick = |single: Pair, wide: Pair| if double { wide } else { single };
        let compare = pick(emit::CMP_S, emit::CMP_PD);
        let pair = match (is_min, double) {
            (true, false) => emit::MIN_PS,
            (false, false) => emit::MAX_PS,
            (true, true) => emit::MIN_PD,
            (false, true) => emit::MAX_PD,
        };
        // The instruction returns `b` if either operand is a NaN or both are zeros.
        let extreme = self.v2(pair, a, b);
        // For zeros the signs combine: one −0 makes the minimum −0, one +0 the maximum +0.
        let combined = self.v2(if is_min { emit::OR } else { emit::AND }, a, b);
        let equal = self.compare(compare, a, b, float::EQ);
        let extreme = self.blend_lanes(equal, combined, extreme, double);
        let not_a_number = self.compare(compare, b, b, float::UNORDERED);
        self.blend_lanes(not_a_number, a, extreme, double)
    }

    /// Tree reduction of all lanes; every lane gets the result.
    pub(super) fn reduce_lanes(&mut self, op: Combiner, ty: Type, mut lanes: Reg) -> Reg {
        let mut half = self.bytes() as u32 / 4 / 2;
        while half > 0 {
            let others = self.swap_lanes(lanes, half);
            lanes = self.combine(op, ty, lanes, others);
            half /= 2;
        }
        lanes
    }

    /// Combines 32-bit lanes by an operation that is associative and commutative, up to rounding of floats.
    pub(super) fn combine(&mut self, op: Combiner, ty: Type, a: Reg, b: Reg) -> Reg {
        let float = ty == Type::F32;
        let pair = match op {
            Combiner::Add if float => emit::ADD_S,
            Combiner::Add => emit::ADD_D,
            Combiner::Mul if float => emit::MUL_S,
            Combiner::Mul => emit::MUL_D,
            Combiner::Min | Combiner::Max if float => return self.extreme(a, b, op == Combiner::Min, false),
            Combiner::Min if ty == Type::I32 => emit::MIN_S,
            Combiner::Min => emit::MIN_U,
            Combiner::Max if ty == Type::I32 => emit::MAX_S,
            Combiner::Max => emit::MAX_U,
            Combiner::And => emit::AND,
            Combiner::Or => emit::OR,
            Combiner::Xor => emit::XOR,
        };
        self.v2(pair, a, b)
    }

    /// Appends the registers of one copy of a value that was computed in lanes.
    pub(super) fn extend_by_lanes(&mut self, regs: &mut Regs, axes: Axes, ty: Type, lanes: &[Reg]) {
        if axes.intersects(Axes::LANE) {
            regs.extend_from_slice(lanes);
        } else if ty.is_float() {
            regs.push(lanes[0]);
        } else if ty == Type::Bool {
            let bits = self.mask_bits(lanes[0]);
            regs.push(self.s1i(Code::And_rm32_imm32, Width::Dword, bits, Operand::Dword(1)));
        } else {
            regs.push(self.first_lane(lanes[0], ty.bits() == 64));
        }
    }
}
