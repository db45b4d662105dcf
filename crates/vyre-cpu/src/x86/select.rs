//! Instructions for operations that are functions of their operands.
//!
//! What the processor has no good instruction for goes to the runtime, which computes lane by lane with the evaluator of the op
//! table.

use iced_x86::{Code, Register};
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::ops::Op;
use vyre_foundation::ir::{InstId, Type, ValueId};

use super::emit::{self, Pair, Regs, Source};
use super::lower::Lower;
use super::machine::{Class, Implicit, Operand, Reg, Width};
use super::service::Site;
use super::shape::Axes;

/// Predicates of float comparisons, quiet.
mod float {
    pub(super) const EQ: u8 = 0x00;
    pub(super) const LT: u8 = 0x11;
    pub(super) const LE: u8 = 0x12;
    pub(super) const UNORDERED: u8 = 0x03;
    pub(super) const NE: u8 = 0x04;
    pub(super) const GE: u8 = 0x1d;
    pub(super) const GT: u8 = 0x1e;
    pub(super) const ORDERED: u8 = 0x07;
}

/// Predicates of integer comparisons of AVX-512.
mod integer {
    pub(super) const EQ: u8 = 0;
    pub(super) const LT: u8 = 1;
    pub(super) const LE: u8 = 2;
    pub(super) const NE: u8 = 4;
    pub(super) const GE: u8 = 5;
    pub(super) const GT: u8 = 6;
}

/// What jumps, and what sets a byte, if a comparison of scalars holds.
pub(super) fn comparison(op: &Op, signed: bool) -> Option<(Code, Code)> {
    Some(match (op, signed) {
        (Op::Eq, _) => (Code::Je_rel32_64, Code::Sete_rm8),
        (Op::Ne, _) => (Code::Jne_rel32_64, Code::Setne_rm8),
        (Op::Lt, true) => (Code::Jl_rel32_64, Code::Setl_rm8),
        (Op::Le, true) => (Code::Jle_rel32_64, Code::Setle_rm8),
        (Op::Gt, true) => (Code::Jg_rel32_64, Code::Setg_rm8),
        (Op::Ge, true) => (Code::Jge_rel32_64, Code::Setge_rm8),
        (Op::Lt, false) => (Code::Jb_rel32_64, Code::Setb_rm8),
        (Op::Le, false) => (Code::Jbe_rel32_64, Code::Setbe_rm8),
        (Op::Gt, false) => (Code::Ja_rel32_64, Code::Seta_rm8),
        (Op::Ge, false) => (Code::Jae_rel32_64, Code::Setae_rm8),
        _ => return None,
    })
}

/// An instruction being selected for one pack.
struct Pack<'a> {
    id: InstId,
    op: &'a Op,
    /// What `T` stands for in the signature of the operation.
    class: Type,
    result: Type,
    operands: &'a [ValueId],
    pack: usize,
}

impl Lower<'_> {
    pub(super) fn compute(&mut self, id: InstId) {
        let program = self.program;
        let inst = &program.insts[id];
        let result = inst.results[0];
        let (axes, ty, class) = (self.shape.axes[result], program.ty(result), program.class(inst));
        let tile = self.shape.tile;
        let in_lanes = axes.meets(Axes::LANE);
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            if !in_lanes && let Some(reg) = self.compute_scalar(&inst.op, class, ty, &inst.operands, pack) {
                regs.push(reg);
                continue;
            }
            let lanes = Pack { id, op: &inst.op, class, result: ty, operands: &inst.operands, pack };
            let computed = match self.compute_pack(&lanes) {
                Some(computed) => computed,
                None => self.evaluate(&lanes),
            };
            self.extend_by_lanes(&mut regs, axes, ty, &computed);
        }
        if self.is_linear(result) {
            for row in 0..tile.rows_of(axes) {
                let base = self.linear_base(&inst.op, &inst.operands, row);
                regs.push(base);
            }
        }
        self.hold(result, &regs);
    }

    /// Adds the registers of one copy of a value whose lanes were computed.
    pub(super) fn extend_by_lanes(&mut self, regs: &mut Regs, axes: Axes, ty: Type, lanes: &[Reg]) {
        if axes.meets(Axes::LANE) {
            regs.extend_from_slice(lanes);
        } else if ty.is_float() {
            regs.push(lanes[0]);
        } else if ty == Type::Bool {
            let bits = self.emit.mask_bits(lanes[0]);
            regs.push(self.emit.s1i(Code::And_rm32_imm32, Width::Dword, bits, Operand::Dword(1)));
        } else {
            regs.push(self.emit.first_lane(lanes[0], ty.bits() == 64));
        }
    }

    /// The first lane of a row of a linear result.
    fn linear_base(&mut self, op: &Op, operands: &[ValueId], row: usize) -> Reg {
        let pack = row * self.shape.tile.columns as usize;
        let mut part = |value: ValueId| {
            if self.is_linear(value) { self.base(value, row) } else { self.scalar(value, pack) }
        };
        match (op, operands) {
            (Op::Add, &[a, b]) => {
                let (a, b) = (part(a), part(b));
                self.emit.s2(Code::Add_r32_rm32, Width::Dword, a, b)
            }
            (Op::Sub, &[a, b]) => {
                let (a, b) = (part(a), part(b));
                self.emit.s2(Code::Sub_r32_rm32, Width::Dword, a, b)
            }
            (_, &[a, ..]) => part(a),
            (op, _) => unreachable!("`{}` keeps nothing linear", op.row().name),
        }
    }

    // Scalars.

    fn compute_scalar(&mut self, op: &Op, class: Type, ty: Type, operands: &[ValueId], pack: usize) -> Option<Reg> {
        let integer = |ty: Type| !ty.is_float();
        if !integer(ty) || !operands.iter().all(|&operand| integer(self.program.ty(operand))) {
            return None;
        }
        let of_64 = class.bits() == 64;
        let width = if of_64 { Width::Qword } else { Width::Dword };
        let pick = |narrow: Code, wide: Code| if of_64 { wide } else { narrow };
        let signed = matches!(class, Type::I32 | Type::I64);
        let known = |this: &Self, k: usize| this.program.known(operands[k]).map(|literal| literal.bits);
        let small = |this: &Self, k: usize| {
            let bits = known(this, k)?;
            let value = if of_64 { bits as i64 } else { i64::from(bits as u32 as i32) };
            i32::try_from(value).ok()
        };
        // One with an immediate, or two registers.
        macro_rules! binary {
            ($rr32:ident, $rr64:ident, $ri32:ident, $ri64:ident) => {{
                let a = self.scalar(operands[0], pack);
                match small(self, 1) {
                    Some(immediate) => {
                        self.emit.s1i(pick(Code::$ri32, Code::$ri64), width, a, Operand::Dword(immediate))
                    }
                    None => {
                        let b = self.scalar(operands[1], pack);
                        self.emit.s2(pick(Code::$rr32, Code::$rr64), width, a, b)
                    }
                }
            }};
        }
        macro_rules! shift {
            ($ri32:ident, $ri64:ident, $rr32:ident, $rr64:ident) => {{
                let a = self.scalar(operands[0], pack);
                match known(self, 1) {
                    Some(count) => {
                        let count = Operand::Byte((count % u64::from(class.bits())) as i8);
                        self.emit.s1i(pick(Code::$ri32, Code::$ri64), width, a, count)
                    }
                    None => {
                        let count = self.scalar(operands[1], pack);
                        let sources = [Operand::Use(a, width), Operand::Use(count, width)];
                        self.emit.make(pick(Code::$rr32, Code::$rr64), Class::Scalar, width, &sources)
                    }
                }
            }};
        }
        macro_rules! unary {
            ($emit:ident, $narrow:ident, $wide:ident) => {{
                let a = self.scalar(operands[0], pack);
                self.emit.$emit(pick(Code::$narrow, Code::$wide), width, a)
            }};
        }
        macro_rules! both {
            () => {
                (self.scalar(operands[0], pack), self.scalar(operands[1], pack))
            };
        }
        Some(match op {
            Op::Add => binary!(Add_r32_rm32, Add_r64_rm64, Add_rm32_imm32, Add_rm64_imm32),
            Op::Sub => binary!(Sub_r32_rm32, Sub_r64_rm64, Sub_rm32_imm32, Sub_rm64_imm32),
            Op::Mul => {
                let (a, b) = both!();
                self.emit.s2(pick(Code::Imul_r32_rm32, Code::Imul_r64_rm64), width, a, b)
            }
            Op::MulHigh if !of_64 => {
                let mut wide = |k: usize| {
                    let reg = self.scalar(operands[k], pack);
                    if signed { self.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, reg) } else { reg }
                };
                let (a, b) = (wide(0), wide(1));
                let product = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, a, b);
                self.emit.s1i(Code::Shr_rm64_imm8, Width::Qword, product, Operand::Byte(32))
            }
            Op::Div | Op::Rem => {
                let (a, b) = both!();
                self.quotient(a, b, width, signed, *op == Op::Div)
            }
            Op::And => binary!(And_r32_rm32, And_r64_rm64, And_rm32_imm32, And_rm64_imm32),
            Op::Or => binary!(Or_r32_rm32, Or_r64_rm64, Or_rm32_imm32, Or_rm64_imm32),
            Op::Xor => binary!(Xor_r32_rm32, Xor_r64_rm64, Xor_rm32_imm32, Xor_rm64_imm32),
            Op::Not if class == Type::Bool => {
                let a = self.scalar(operands[0], pack);
                self.emit.s1i(Code::Xor_rm32_imm32, Width::Dword, a, Operand::Dword(1))
            }
            Op::Not => unary!(s1_in_place, Not_rm32, Not_rm64),
            Op::Neg => unary!(s1_in_place, Neg_rm32, Neg_rm64),
            Op::Shl => shift!(Shl_rm32_imm8, Shl_rm64_imm8, VEX_Shlx_r32_rm32_r32, VEX_Shlx_r64_rm64_r64),
            Op::Shr if signed => shift!(Sar_rm32_imm8, Sar_rm64_imm8, VEX_Sarx_r32_rm32_r32, VEX_Sarx_r64_rm64_r64),
            Op::Shr => shift!(Shr_rm32_imm8, Shr_rm64_imm8, VEX_Shrx_r32_rm32_r32, VEX_Shrx_r64_rm64_r64),
            Op::RotateLeft => {
                let (a, count) = both!();
                let to = self.emit.reg(Class::Scalar);
                let rotated = Operand::Update { from: a, to, width };
                let code = pick(Code::Rol_rm32_CL, Code::Rol_rm64_CL);
                self.emit.push(code, &[rotated], false).implicit = smallvec![Implicit::Use(count, Register::RCX)];
                to
            }
            Op::CountOnes => unary!(s1, Popcnt_r32_rm32, Popcnt_r64_rm64),
            Op::LeadingZeros => unary!(s1, Lzcnt_r32_rm32, Lzcnt_r64_rm64),
            Op::TrailingZeros => unary!(s1, Tzcnt_r32_rm32, Tzcnt_r64_rm64),
            Op::Min | Op::Max => {
                let (a, b) = both!();
                self.emit.cmp(a, b, width);
                // `b` replaces `a` if it is beyond it.
                let code = match (op, signed) {
                    (Op::Min, true) => pick(Code::Cmovg_r32_rm32, Code::Cmovg_r64_rm64),
                    (Op::Min, false) => pick(Code::Cmova_r32_rm32, Code::Cmova_r64_rm64),
                    (_, true) => pick(Code::Cmovl_r32_rm32, Code::Cmovl_r64_rm64),
                    (_, false) => pick(Code::Cmovb_r32_rm32, Code::Cmovb_r64_rm64),
                };
                self.emit.s2(code, width, a, b)
            }
            Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => {
                let (a, b) = both!();
                self.emit.cmp(a, b, width);
                self.emit.set(comparison(op, signed)?.1)
            }
            Op::Select => {
                let [condition, a, b] = [0, 1, 2].map(|k| self.scalar(operands[k], pack));
                self.emit.test(condition);
                self.emit.s2(Code::Cmovne_r64_rm64, Width::Qword, b, a)
            }
            Op::Bitcast => self.scalar(operands[0], pack),
            Op::Cast => {
                let a = self.scalar(operands[0], pack);
                let from = self.program.ty(operands[0]);
                match (from, ty) {
                    (Type::Bool, _) => a,
                    (_, Type::Bool) => {
                        let zero = self.emit.immediate(0);
                        self.emit.cmp(a, zero, if from.bits() == 64 { Width::Qword } else { Width::Dword });
                        self.emit.set(Code::Setne_rm8)
                    }
                    (Type::I32, Type::I64 | Type::U64) => {
                        self.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, a)
                    }
                    (Type::I64 | Type::U64, Type::I32 | Type::U32) => self.emit.s1(Code::Mov_r32_rm32, Width::Dword, a),
                    _ => a,
                }
            }
            _ => return None,
        })
    }

    /// Quotient or remainder of scalars, for all operands.
    pub(super) fn quotient(&mut self, a: Reg, b: Reg, width: Width, signed: bool, is_quotient: bool) -> Reg {
        let of_64 = width == Width::Qword;
        let pick = |narrow: Code, wide: Code| if of_64 { wide } else { narrow };
        let join = self.emit.block(self.emit.is_cold());
        let result = self.emit.param(join, Class::Scalar);
        self.emit.push(
            pick(Code::Test_rm32_r32, Code::Test_rm64_r64),
            &[Operand::Use(b, width), Operand::Use(b, width)],
            false,
        );
        let (by_zero, rest) = self.emit.branch(Code::Je_rel32_64, true, false);
        self.emit.at = by_zero;
        let given = if is_quotient { a } else { self.emit.immediate(0) };
        self.emit.jump(join, &[given]);
        self.emit.at = rest;
        if signed {
            // The least number has no opposite, and dividing by −1 would fault on it.
            self.emit.cmp_immediate(b, -1, width);
            let (by_minus_one, rest) = self.emit.branch(Code::Je_rel32_64, true, false);
            self.emit.at = by_minus_one;
            let given = if is_quotient {
                self.emit.s1_in_place(pick(Code::Neg_rm32, Code::Neg_rm64), width, a)
            } else {
                self.emit.immediate(0)
            };
            self.emit.jump(join, &[given]);
            self.emit.at = rest;
        }
        let (quotient, remainder) = (self.emit.reg(Class::Scalar), self.emit.reg(Class::Scalar));
        let high = self.emit.reg(Class::Scalar);
        let code = if signed {
            let extend = self.emit.push(pick(Code::Cdq, Code::Cqo), &[], false);
            extend.implicit = smallvec![Implicit::Use(a, Register::RAX), Implicit::Def(high, Register::RDX)];
            pick(Code::Idiv_rm32, Code::Idiv_rm64)
        } else {
            self.emit.push(Code::Mov_r32_imm32, &[Operand::Def(high, Width::Dword), Operand::Dword(0)], false);
            pick(Code::Div_rm32, Code::Div_rm64)
        };
        let inst = self.emit.push(code, &[Operand::Use(b, width)], false);
        inst.implicit = smallvec![
            Implicit::Use(a, Register::RAX),
            Implicit::Use(high, Register::RDX),
            Implicit::Def(quotient, Register::RAX),
            Implicit::Def(remainder, Register::RDX),
        ];
        self.emit.jump(join, &[if is_quotient { quotient } else { remainder }]);
        self.emit.at = join;
        result
    }

    // Lanes.

    /// Lanes of 32 bits that are equal.
    pub(super) fn equal(&mut self, a: Reg, b: Reg) -> Reg {
        self.compare_integers(&Op::Eq, Type::U32, a, b.into())
    }

    /// Unsigned lanes of 32 bits that are less.
    pub(super) fn less(&mut self, a: Reg, b: Reg) -> Reg {
        self.compare_integers(&Op::Lt, Type::U32, a, b.into())
    }

    /// Whether nobody needs a value after an instruction that has as many copies.
    fn dies(&self, value: ValueId, id: InstId) -> bool {
        let result = self.program.insts[id].results[0];
        self.last_uses[value] == Some(id)
            && self.shape.axes[value].within_tile() == self.shape.axes[result].within_tile()
    }

    /// A bool operand as a mask, anything else as a vector.
    fn lanes(&mut self, value: ValueId, pack: usize, half: usize) -> Reg {
        if self.program.ty(value) == Type::Bool { self.mask_of(value, pack) } else { self.vector(value, pack, half) }
    }

    /// A value as the last source of an instruction: constants stay in memory.
    fn source(&mut self, value: ValueId, pack: usize, half: usize) -> Source {
        match self.program.known(value) {
            Some(literal) => self.emit.constant(literal.bits, literal.ty.bits() == 64).into(),
            None => self.lanes(value, pack, half).into(),
        }
    }

    /// Selects instructions for one pack, if the processor has good ones; gives a register, or two for lanes of 64 bits.
    fn compute_pack(&mut self, p: &Pack<'_>) -> Option<SmallVec<[Reg; 2]>> {
        if let Op::Cast | Op::Bitcast = p.op {
            return self.convert(p);
        }
        if p.result == Type::Bool && p.class.bits() == 64 {
            // A comparison: one mask of two halves.
            let halves = [0, 1].map(|half| self.compute_half(p, half));
            let [Some(low), Some(high)] = halves else { return None };
            return Some(smallvec![self.emit.mask_of_halves(low, high)]);
        }
        let halves = if p.result.bits() == 64 { 2 } else { 1 };
        (0..halves).map(|half| self.compute_half(p, half)).collect()
    }

    fn compute_half(&mut self, p: &Pack<'_>, half: usize) -> Option<Reg> {
        let of_64 = p.class.bits() == 64;
        match (p.class, p.op) {
            (Type::Bool, _) => self.compute_bools(p),
            // Bits are bits.
            (_, Op::Select) => {
                let mask = self.mask_of(p.operands[0], p.pack);
                let mask = if of_64 { self.emit.mask_half(mask, half == 1) } else { mask };
                let [a, b] = [1, 2].map(|k| self.vector(p.operands[k], p.pack, half));
                Some(self.emit.blend_lanes(mask, a, b, of_64))
            }
            (Type::I32 | Type::U32 | Type::I64 | Type::U64, _) => self.compute_integers(p, half),
            (Type::F32 | Type::F64, _) => self.compute_floats(p, half, of_64),
            (Type::F16, _) => None,
        }
    }

    fn compute_bools(&mut self, p: &Pack<'_>) -> Option<Reg> {
        let masks: SmallVec<[Reg; 3]> = p.operands.iter().map(|&operand| self.mask_of(operand, p.pack)).collect();
        Some(match (p.op, &masks[..]) {
            (Op::And, &[a, b]) => self.emit.mask_and(a, b),
            (Op::Or, &[a, b]) => self.emit.mask_or(a, b),
            (Op::Xor | Op::Ne, &[a, b]) => self.emit.mask_xor(a, b),
            (Op::Eq, &[a, b]) => {
                let differ = self.emit.mask_xor(a, b);
                self.emit.mask_not(differ)
            }
            (Op::Not, &[a]) => self.emit.mask_not(a),
            (Op::Select, &[condition, a, b]) => self.emit.blend_masks(condition, a, b),
            _ => return None,
        })
    }

    fn compute_integers(&mut self, p: &Pack<'_>, half: usize) -> Option<Reg> {
        let (signed, of_64) = (matches!(p.class, Type::I32 | Type::I64), p.class.bits() == 64);
        let pick = |narrow: Pair, wide: Pair| if of_64 { wide } else { narrow };
        let is_known = |this: &Self, k: usize| this.program.known(p.operands[k]).is_some();
        macro_rules! a {
            () => {
                self.vector(p.operands[0], p.pack, half)
            };
        }
        macro_rules! commutative {
            ($pair:expr) => {{
                let (first, last) = if is_known(self, 0) { (1, 0) } else { (0, 1) };
                let first = self.vector(p.operands[first], p.pack, half);
                let last = self.source(p.operands[last], p.pack, half);
                self.emit.v2($pair, first, last)
            }};
        }
        macro_rules! shift {
            ($by:expr, $variable:expr) => {{
                let a = a!();
                match self.program.known(p.operands[1]) {
                    Some(count) => self.emit.v1i($by, a, (count.bits % 32) as u8),
                    None => {
                        let count = self.vector(p.operands[1], p.pack, 0);
                        let mask = self.emit.constant(31, false);
                        let count = self.emit.v2(emit::AND, count, mask);
                        self.emit.v2($variable, a, count)
                    }
                }
            }};
        }
        Some(match p.op {
            Op::Add => commutative!(pick(emit::ADD_D, emit::ADD_Q)),
            Op::And => commutative!(emit::AND),
            Op::Or => commutative!(emit::OR),
            Op::Xor => commutative!(emit::XOR),
            Op::Sub => {
                let (a, b) = (a!(), self.source(p.operands[1], p.pack, half));
                self.emit.v2(pick(emit::SUB_D, emit::SUB_Q), a, b)
            }
            Op::Neg => {
                let (zero, a) = (self.emit.zero(), a!());
                self.emit.v2(pick(emit::SUB_D, emit::SUB_Q), zero, a)
            }
            Op::Not => {
                let a = a!();
                let ones = self.emit.constant(0xffff_ffff, false);
                self.emit.v2(emit::XOR, a, ones)
            }
            Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => {
                let (a, b) = (a!(), self.source(p.operands[1], p.pack, half));
                self.compare_integers(p.op, p.class, a, b)
            }
            _ if of_64 => return self.compute_wide_integers(p, half),
            Op::Mul => commutative!(emit::MUL_D),
            Op::Min => commutative!(if signed { emit::MIN_S } else { emit::MIN_U }),
            Op::Max => commutative!(if signed { emit::MAX_S } else { emit::MAX_U }),
            Op::MulHigh => {
                let (a, b) = (a!(), self.vector(p.operands[1], p.pack, 0));
                let pair = if signed { emit::MUL_EVEN_S } else { emit::MUL_EVEN_U };
                let even = self.emit.v2(pair, a, b);
                let (a, b) = (self.emit.v1i(emit::SHR_Q_BY, a, 32), self.emit.v1i(emit::SHR_Q_BY, b, 32));
                let odd = self.emit.v2(pair, a, b);
                let even = self.emit.v1i(emit::SHR_Q_BY, even, 32);
                let upper = self.emit.constant(0xffff_ffff_0000_0000, true);
                let odd = self.emit.v2(emit::AND, odd, upper);
                self.emit.v2(emit::OR, even, odd)
            }
            Op::Div | Op::Rem => {
                let (a, b) = (a!(), self.vector(p.operands[1], p.pack, 0));
                self.divide(a, b, signed, *p.op == Op::Div)
            }
            Op::Abs => {
                let a = a!();
                self.emit.v1(emit::ABS_D, a)
            }
            Op::Shl => shift!(emit::SHL_D_BY, emit::SHL_D),
            Op::Shr if signed => shift!(emit::SAR_D_BY, emit::SAR_D),
            Op::Shr => shift!(emit::SHR_D_BY, emit::SHR_D),
            Op::RotateLeft => {
                let a = a!();
                if let Some(count) = self.program.known(p.operands[1]) {
                    let count = (count.bits % 32) as u8;
                    // A shift by 32 gives 0, so a rotation by 0 needs no care.
                    let (up, down) =
                        (self.emit.v1i(emit::SHL_D_BY, a, count), self.emit.v1i(emit::SHR_D_BY, a, 32 - count));
                    return Some(self.emit.v2(emit::OR, up, down));
                }
                let count = self.vector(p.operands[1], p.pack, 0);
                let mask = self.emit.constant(31, false);
                let count = self.emit.v2(emit::AND, count, mask);
                let all = self.emit.splat(32, false);
                let rest = self.emit.v2(emit::SUB_D, all, count);
                let (up, down) = (self.emit.v2(emit::SHL_D, a, count), self.emit.v2(emit::SHR_D, a, rest));
                self.emit.v2(emit::OR, up, down)
            }
            Op::CountOnes => {
                let a = a!();
                self.count_ones(a)
            }
            // The ones below the lowest one.
            Op::TrailingZeros => {
                let (a, ones) = (a!(), self.emit.splat(0xffff_ffff, false));
                let (below, others) = (self.emit.v2(emit::ADD_D, a, ones), self.emit.v2(emit::XOR, a, ones));
                let below = self.emit.v2(emit::AND, below, others);
                self.count_ones(below)
            }
            // What is not the highest one or below.
            Op::LeadingZeros => {
                let mut a = a!();
                for distance in [1, 2, 4, 8, 16] {
                    let lower = self.emit.v1i(emit::SHR_D_BY, a, distance);
                    a = self.emit.v2(emit::OR, a, lower);
                }
                let ones = self.emit.constant(0xffff_ffff, false);
                let above = self.emit.v2(emit::XOR, a, ones);
                self.count_ones(above)
            }
            _ => return None,
        })
    }

    /// How many bits of each lane are ones: those of pairs, of fours and of bytes are added, each where they stand.
    fn count_ones(&mut self, a: Reg) -> Reg {
        let [pairs, fours, bytes] = [0x5555_5555, 0x3333_3333, 0x0f0f_0f0f].map(|mask| self.emit.constant(mask, false));
        let upper = self.emit.v1i(emit::SHR_D_BY, a, 1);
        let upper = self.emit.v2(emit::AND, upper, pairs);
        let a = self.emit.v2(emit::SUB_D, a, upper);
        let (lower, upper) = (self.emit.v2(emit::AND, a, fours), self.emit.v1i(emit::SHR_D_BY, a, 2));
        let upper = self.emit.v2(emit::AND, upper, fours);
        let a = self.emit.v2(emit::ADD_D, lower, upper);
        let upper = self.emit.v1i(emit::SHR_D_BY, a, 4);
        let a = self.emit.v2(emit::ADD_D, a, upper);
        let a = self.emit.v2(emit::AND, a, bytes);
        let each = self.emit.constant(0x0101_0101, false);
        let a = self.emit.v2(emit::MUL_D, a, each);
        self.emit.v1i(emit::SHR_D_BY, a, 24)
    }

    fn compare_integers(&mut self, op: &Op, ty: Type, a: Reg, b: Source) -> Reg {
        let (signed, of_64) = (matches!(ty, Type::I32 | Type::I64), ty.bits() == 64);
        if self.emit.wide() {
            let code = match (signed, of_64) {
                (true, false) => Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8,
                (false, false) => Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8,
                (true, true) => Code::EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8,
                (false, true) => Code::EVEX_Vpcmpuq_kr_k1_zmm_zmmm512b64_imm8,
            };
            let predicate = match op {
                Op::Eq => integer::EQ,
                Op::Ne => integer::NE,
                Op::Lt => integer::LT,
                Op::Le => integer::LE,
                Op::Gt => integer::GT,
                _ => integer::GE,
            };
            return self.emit.compare((Code::INVALID, code), a, b, predicate);
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
            Source::Memory(address) => this.emit.load(address),
        };
        match (op, signed) {
            (Op::Eq, _) => self.emit.v2(equal, a, b),
            (Op::Ne, _) => {
                let equal = self.emit.v2(equal, a, b);
                self.emit.mask_not(equal)
            }
            (Op::Gt, true) => self.emit.v2(greater, a, b),
            (Op::Lt, true) => {
                let b = b_reg(self);
                self.emit.v2(greater, b, a)
            }
            (Op::Le, true) => {
                let greater = self.emit.v2(greater, a, b);
                self.emit.mask_not(greater)
            }
            (Op::Ge, true) => {
                let b = b_reg(self);
                let less = self.emit.v2(greater, b, a);
                self.emit.mask_not(less)
            }
            (_, false) if !of_64 => {
                // The greater of the two is the first if that is not less.
                let (pair, negated) = match op {
                    Op::Ge => (emit::MAX_U, false),
                    Op::Lt => (emit::MAX_U, true),
                    Op::Le => (emit::MIN_U, false),
                    _ => (emit::MIN_U, true),
                };
                let extreme = self.emit.v2(pair, a, b);
                let same = self.emit.v2(equal, extreme, a);
                if negated { self.emit.mask_not(same) } else { same }
            }
            _ => {
                // Unsigned order is signed order with the top bits flipped.
                let top = self.emit.constant(1 << 63, true);
                let b = b_reg(self);
                let (a, b) = (self.emit.v2(emit::XOR, a, top), self.emit.v2(emit::XOR, b, top));
                self.compare_integers(op, Type::I64, a, b.into())
            }
        }
    }

    /// Unsigned quotients of lanes of 32 bits by numbers that are not 0.
    pub(super) fn quotient_of_lanes(&mut self, a: Reg, b: Reg) -> Reg {
        self.divide(a, b, false, true)
    }

    /// Quotient or remainder of lanes of 32 bits, for all operands. A quotient of doubles is near enough to be exact when it is
    /// truncated: it is off by less than 2⁻²¹ / b, and a quotient that is no integer is 1 / b away from the next one.
    fn divide(&mut self, a: Reg, b: Reg, signed: bool, is_quotient: bool) -> Reg {
        let mut halves: SmallVec<[Reg; 2]> = SmallVec::new();
        for half in 0..2 {
            let [x, y] = [a, b].map(|reg| {
                let part = if half == 1 { self.emit.upper(reg) } else { reg };
                if signed {
                    self.emit.widen(emit::I32_TO_DOUBLE, part)
                } else {
                    // The bits of 2⁵² with the number below are 2⁵² plus the number.
                    let wide = self.emit.widen(emit::ZERO_EXTEND, part);
                    let magic = self.emit.constant(0x4330_0000_0000_0000, true);
                    let sum = self.emit.v2(emit::OR, wide, magic);
                    self.emit.v2(emit::SUB_PD, sum, magic)
                }
            });
            let quotient = self.emit.v2(emit::DIV_PD, x, y);
            halves.push(if signed {
                self.emit.narrow(emit::DOUBLE_TO_I32, quotient)
            } else {
                let whole = self.emit.v1i(emit::ROUND_PD, quotient, 0x0b);
                let magic = self.emit.constant(0x4330_0000_0000_0000, true);
                // The low bits of 2⁵² plus the number are the number.
                self.emit.v2(emit::ADD_PD, whole, magic)
            });
        }
        let quotient =
            if signed { self.emit.join(halves[0], halves[1]) } else { self.emit.low_halves(halves[0], halves[1]) };
        // By 0: the dividend, or no remainder. The least number by −1 is itself, as the conversion has it.
        let zero = self.emit.constant(0, false);
        let by_zero = self.compare_integers(&Op::Eq, Type::U32, b, zero.into());
        let quotient = self.emit.blend(by_zero, a, quotient);
        if is_quotient {
            return quotient;
        }
        let whole = self.emit.v2(emit::MUL_D, quotient, b);
        let remainder = self.emit.v2(emit::SUB_D, a, whole);
        let zero = self.emit.zero();
        self.emit.blend(by_zero, zero, remainder)
    }

    fn compute_floats(&mut self, p: &Pack<'_>, half: usize, double: bool) -> Option<Reg> {
        let pick = |single: Pair, wide: Pair| if double { wide } else { single };
        let sign: u64 = if double { 1 << 63 } else { 1 << 31 };
        let is_known = |this: &Self, k: usize| this.program.known(p.operands[k]).is_some();
        macro_rules! operand {
            ($k:expr) => {
                self.vector(p.operands[$k], p.pack, half)
            };
        }
        macro_rules! binary {
            ($single:expr, $double:expr, $commutes:expr) => {{
                let (first, last) = if $commutes && is_known(self, 0) { (1, 0) } else { (0, 1) };
                let first = operand!(first);
                let last = self.source(p.operands[last], p.pack, half);
                self.emit.v2(pick($single, $double), first, last)
            }};
        }
        let compare = pick(emit::CMP_S, emit::CMP_PD);
        Some(match p.op {
            // The operands of a sum are not swapped: which of two NaNs is kept may differ, but that is unspecified.
            Op::Add => binary!(emit::ADD_S, emit::ADD_PD, true),
            Op::Sub => binary!(emit::SUB_S, emit::SUB_PD, false),
            Op::Mul => binary!(emit::MUL_S, emit::MUL_PD, true),
            Op::Div => binary!(emit::DIV_S, emit::DIV_PD, false),
            Op::Neg => {
                let (a, sign) = (operand!(0), self.emit.constant(sign, double));
                self.emit.v2(emit::XOR, a, sign)
            }
            Op::Abs => {
                let (a, rest) = (operand!(0), self.emit.constant(sign - 1, double));
                self.emit.v2(emit::AND, a, rest)
            }
            Op::Min | Op::Max => {
                let (a, b) = (operand!(0), operand!(1));
                self.extreme(a, b, *p.op == Op::Min, double)
            }
            Op::Fma => {
                // An operand that is not needed any more is overwritten: most often the sum, or a factor.
                let dies = |this: &Self, k: usize| this.dies(p.operands[k], p.id);
                let (first, last) =
                    if is_known(self, 0) || (!is_known(self, 1) && dies(self, 1)) { (1, 0) } else { (0, 1) };
                let sum = operand!(2);
                let factor = operand!(first);
                let last = self.source(p.operands[last], p.pack, half);
                if dies(self, 2) || !dies(self, first) {
                    self.emit.v3(pick(emit::FMA_ONTO_S, emit::FMA_ONTO_PD), sum, factor, last)
                } else {
                    self.emit.v3(pick(emit::FMA_TIMES_S, emit::FMA_TIMES_PD), factor, sum, last)
                }
            }
            Op::Sqrt => {
                let a = operand!(0);
                self.emit.v1(pick(emit::SQRT_S, emit::SQRT_PD), a)
            }
            Op::Floor | Op::Ceil | Op::Trunc | Op::Round => {
                let a = operand!(0);
                // Without exceptions; for AVX-512 the upper half of the immediate is the number of fraction bits, 0.
                let mode = match p.op {
                    Op::Round => 0x08,
                    Op::Floor => 0x09,
                    Op::Ceil => 0x0a,
                    _ => 0x0b,
                };
                self.emit.v1i(pick(emit::ROUND_S, emit::ROUND_PD), a, mode)
            }
            Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => {
                let predicate = match p.op {
                    Op::Eq => float::EQ,
                    Op::Ne => float::NE,
                    Op::Lt => float::LT,
                    Op::Le => float::LE,
                    Op::Gt => float::GT,
                    _ => float::GE,
                };
                let (a, b) = (operand!(0), self.source(p.operands[1], p.pack, half));
                self.emit.compare(compare, a, b, predicate)
            }
            _ => return None,
        })
    }

    /// The smaller or greater of floats: a number rather than a NaN, and −0 below +0.
    pub(super) fn extreme(&mut self, a: Reg, b: Reg, is_min: bool, double: bool) -> Reg {
        let pick = |single: Pair, wide: Pair| if double { wide } else { single };
        let compare = pick(emit::CMP_S, emit::CMP_PD);
        let pair = match (is_min, double) {
            (true, false) => emit::MIN_PS,
            (false, false) => emit::MAX_PS,
            (true, true) => emit::MIN_PD,
            (false, true) => emit::MAX_PD,
        };
        // The instruction gives `b` if one is a NaN or both are zeros.
        let extreme = self.emit.v2(pair, a, b);
        // Of zeros, the signs combine: one −0 makes a minimum −0, one +0 makes a maximum +0.
        let combined = self.emit.v2(if is_min { emit::OR } else { emit::AND }, a, b);
        let equal = self.emit.compare(compare, a, b, float::EQ);
        let extreme = self.emit.blend_lanes(equal, combined, extreme, double);
        let not_a_number = self.emit.compare(compare, b, b, float::UNORDERED);
        self.emit.blend_lanes(not_a_number, a, extreme, double)
    }

    /// What lanes of 64 bits have no instruction for.
    fn compute_wide_integers(&mut self, p: &Pack<'_>, half: usize) -> Option<Reg> {
        let operand = |this: &mut Self, k: usize| this.vector(p.operands[k], p.pack, half);
        Some(match p.op {
            Op::Mul => {
                // The low half: low × low, and the crossed products above it.
                let (a, b) = (operand(self, 0), operand(self, 1));
                let (a_high, b_high) = (self.emit.v1i(emit::SHR_Q_BY, a, 32), self.emit.v1i(emit::SHR_Q_BY, b, 32));
                let low = self.emit.v2(emit::MUL_EVEN_U, a, b);
                let (x, y) = (self.emit.v2(emit::MUL_EVEN_U, a_high, b), self.emit.v2(emit::MUL_EVEN_U, a, b_high));
                let crossed = self.emit.v2(emit::ADD_Q, x, y);
                let crossed = self.emit.v1i(emit::SHL_Q_BY, crossed, 32);
                self.emit.v2(emit::ADD_Q, low, crossed)
            }
            Op::Shl | Op::Shr if *p.op == Op::Shl || p.class == Type::U64 => {
                let a = operand(self, 0);
                let count = self.vector(p.operands[1], p.pack, 0);
                let count = if half == 1 { self.emit.upper(count) } else { count };
                let count = self.emit.widen(emit::ZERO_EXTEND, count);
                let mask = self.emit.constant(63, true);
                let count = self.emit.v2(emit::AND, count, mask);
                self.emit.v2(if *p.op == Op::Shl { emit::SHL_Q } else { emit::SHR_Q }, a, count)
            }
            Op::Min | Op::Max => {
                let (a, b) = (operand(self, 0), operand(self, 1));
                let less = self.compare_integers(&Op::Lt, p.class, a, b.into());
                let (first, second) = if *p.op == Op::Min { (a, b) } else { (b, a) };
                self.emit.blend_lanes(less, first, second, true)
            }
            _ => return None,
        })
    }

    /// Conversions between types.
    fn convert(&mut self, p: &Pack<'_>) -> Option<SmallVec<[Reg; 2]>> {
        let from = self.program.ty(p.operands[0]);
        let operand = p.operands[0];
        let halves = if from.bits() == 64 { 2 } else { 1 };
        if *p.op == Op::Bitcast || from == p.result {
            return Some((0..halves).map(|half| self.lanes(operand, p.pack, half)).collect());
        }
        let is_narrow = |ty: Type| matches!(ty, Type::I32 | Type::U32);
        let is_wide = |ty: Type| matches!(ty, Type::I64 | Type::U64);
        let widens = match (from, p.result) {
            (Type::I32, Type::I64 | Type::U64) => Some(emit::SIGN_EXTEND),
            (Type::U32, Type::I64 | Type::U64) => Some(emit::ZERO_EXTEND),
            (Type::F32, Type::F64) => Some(emit::SINGLE_TO_DOUBLE),
            (Type::I32, Type::F64) => Some(emit::I32_TO_DOUBLE),
            _ => None,
        };
        if let Some(pair) = widens {
            let low = self.vector(operand, p.pack, 0);
            let high = self.emit.upper(low);
            return Some(smallvec![self.emit.widen(pair, low), self.emit.widen(pair, high)]);
        }
        Some(match (from, p.result) {
            (Type::Bool, Type::I32 | Type::U32 | Type::F32) => {
                let mask = self.mask_of(operand, p.pack);
                let vector = self.emit.mask_to_vector(mask);
                let one = if p.result == Type::F32 { u64::from(1f32.to_bits()) } else { 1 };
                let one = self.emit.constant(one, false);
                smallvec![self.emit.v2(emit::AND, vector, one)]
            }
            (Type::I32 | Type::U32, Type::Bool) => {
                let (a, zero) = (self.vector(operand, p.pack, 0), self.emit.constant(0, false));
                smallvec![self.compare_integers(&Op::Ne, from, a, zero.into())]
            }
            (Type::F32, Type::Bool) => {
                let (a, zero) = (self.vector(operand, p.pack, 0), self.emit.constant(0, false));
                smallvec![self.emit.compare(emit::CMP_S, a, zero, float::NE)]
            }
            (from, to) if is_narrow(from) && is_narrow(to) || is_wide(from) && is_wide(to) => {
                self.halves(operand, p.pack)
            }
            (from, to) if is_wide(from) && is_narrow(to) => {
                let [low, high] = [0, 1].map(|half| self.vector(operand, p.pack, half));
                smallvec![self.emit.low_halves(low, high)]
            }
            (Type::I32, Type::F32) => {
                let a = self.source(operand, p.pack, 0);
                smallvec![self.emit.v1(emit::FROM_I32, a)]
            }
            (Type::U32, Type::F32) => {
                let a = self.vector(operand, p.pack, 0);
                if self.emit.wide() {
                    let pair = (Code::INVALID, Code::EVEX_Vcvtudq2ps_zmm_k1z_zmmm512b32_er);
                    return Some(smallvec![self.emit.v1(pair, a)]);
                }
                // Both halves are exact, and so is all but the last rounding.
                let mask = self.emit.constant(0xffff, false);
                let low = self.emit.v2(emit::AND, a, mask);
                let high = self.emit.v1i(emit::SHR_D_BY, a, 16);
                let (low, high) = (self.emit.v1(emit::FROM_I32, low), self.emit.v1(emit::FROM_I32, high));
                let scale = self.emit.constant(u64::from(65536f32.to_bits()), false);
                smallvec![self.emit.v3(emit::FMA_ONTO_S, low, high, scale)]
            }
            (Type::F32, Type::I32) => {
                let a = self.vector(operand, p.pack, 0);
                // Beyond the range the instruction gives the least number, which is right below it.
                let truncated = self.emit.v1(emit::TO_I32, a);
                let bound = self.emit.constant(u64::from(2147483648f32.to_bits()), false);
                let beyond = self.emit.compare(emit::CMP_S, a, bound, float::GE);
                let beyond = self.emit.mask_to_vector(beyond);
                let saturated = self.emit.v2(emit::XOR, truncated, beyond);
                let number = self.emit.compare(emit::CMP_S, a, a, float::ORDERED);
                let number = self.emit.mask_to_vector(number);
                smallvec![self.emit.v2(emit::AND, saturated, number)]
            }
            (Type::F32, Type::U32) => {
                let (a, zero) = (self.vector(operand, p.pack, 0), self.emit.zero());
                // A NaN becomes the second operand.
                let a = self.emit.v2(emit::MAX_PS, a, zero);
                let half = self.emit.constant(u64::from(2147483648f32.to_bits()), false);
                let large = self.emit.compare(emit::CMP_S, a, half, float::GE);
                let large = self.emit.mask_to_vector(large);
                let offset = self.emit.v2(emit::AND, large, half);
                let small = self.emit.v2(emit::SUB_S, a, offset);
                let truncated = self.emit.v1(emit::TO_I32, small);
                let top = self.emit.constant(1 << 31, false);
                let top = self.emit.v2(emit::AND, large, top);
                let whole = self.emit.v2(emit::XOR, truncated, top);
                let bound = self.emit.constant(u64::from(4294967296f32.to_bits()), false);
                let beyond = self.emit.compare(emit::CMP_S, a, bound, float::GE);
                let beyond = self.emit.mask_to_vector(beyond);
                smallvec![self.emit.v2(emit::OR, whole, beyond)]
            }
            (Type::F64, Type::F32) => {
                let [low, high] = [0, 1].map(|half| {
                    let part = self.vector(operand, p.pack, half);
                    self.emit.narrow(emit::DOUBLE_TO_SINGLE, part)
                });
                smallvec![self.emit.join(low, high)]
            }
            _ => return None,
        })
    }

    /// Has the runtime compute lane by lane.
    fn evaluate(&mut self, p: &Pack<'_>) -> SmallVec<[Reg; 2]> {
        for (number, &operand) in p.operands.iter().enumerate() {
            self.pass(operand, p.pack, number);
        }
        let evaluator = p.op.row().evaluator(p.class, p.result).expect("a pure operation has an evaluator");
        let operands = p.operands.iter().map(|&operand| self.program.ty(operand)).collect();
        self.service(Site::Evaluate { evaluator, operands, result: p.result });
        self.receive(p.result, 0)
    }
}
