//! Instruction selection for pure operations.
//!
//! An operation without a good instruction sequence calls the runtime, which evaluates it lane by lane with the op
//! table.

use iced_x86::{Code, Register};
use smallvec::{SmallVec, smallvec};
use vyre_foundation::ir::ops::{Comparison, Pure};
use vyre_foundation::ir::{InstId, Type, ValueId};

use super::arithmetic::float;
use super::{Lower, services};
use crate::x86::machine::emit::{self, Pair, Regs, Source};
use crate::x86::machine::{Class, Implicit, Operand, Reg, Width};
use crate::x86::plan::shape::Axes;
use crate::x86::service::Site;

/// Conditional jump and byte-set instructions for a comparison of scalars.
pub(super) fn comparison(relation: Comparison, signed: bool) -> (Code, Code) {
    match (relation, signed) {
        (Comparison::Eq, _) => (Code::Je_rel32_64, Code::Sete_rm8),
        (Comparison::Ne, _) => (Code::Jne_rel32_64, Code::Setne_rm8),
        (Comparison::Lt, true) => (Code::Jl_rel32_64, Code::Setl_rm8),
        (Comparison::Le, true) => (Code::Jle_rel32_64, Code::Setle_rm8),
        (Comparison::Gt, true) => (Code::Jg_rel32_64, Code::Setg_rm8),
        (Comparison::Ge, true) => (Code::Jge_rel32_64, Code::Setge_rm8),
        (Comparison::Lt, false) => (Code::Jb_rel32_64, Code::Setb_rm8),
        (Comparison::Le, false) => (Code::Jbe_rel32_64, Code::Setbe_rm8),
        (Comparison::Gt, false) => (Code::Ja_rel32_64, Code::Seta_rm8),
        (Comparison::Ge, false) => (Code::Jae_rel32_64, Code::Setae_rm8),
    }
}

/// An instruction being selected for one pack.
struct Pack<'a> {
    id: InstId,
    op: Pure,
    /// Type that `T` stands for in the operation's signature.
    class: Type,
    result: Type,
    operands: &'a [ValueId],
    pack: usize,
}

impl Lower<'_> {
    pub(super) fn compute(&mut self, id: InstId, op: Pure) {
        let program = self.plan.program;
        let inst = program.inst(id);
        let result = inst.results[0];
        let (axes, ty, class) = (self.plan.shape.axes[result], program.ty(result), program.class(inst));
        let tile = self.plan.shape.tile;
        let in_lanes = axes.intersects(Axes::LANE);
        let mut regs = Regs::new();
        for pack in tile.packs_of(axes) {
            if !in_lanes && let Some(reg) = self.compute_scalar(op, class, ty, &inst.operands, pack) {
                regs.push(reg);
                continue;
            }
            let lanes = Pack { id, op, class, result: ty, operands: &inst.operands, pack };
            let computed = match self.compute_pack(&lanes) {
                Some(computed) => computed,
                None => self.evaluate(&lanes),
            };
            self.emit.extend_by_lanes(&mut regs, axes, ty, &computed);
        }
        if self.plan.shape.is_linear(result) {
            for row in 0..tile.rows_of(axes) {
                let base = self.linear_base(op, &inst.operands, row);
                regs.push(base);
            }
        }
        self.define(result, &regs);
    }

    /// First lane of a row of a linear result.
    fn linear_base(&mut self, op: Pure, operands: &[ValueId], row: usize) -> Reg {
        let pack = row * self.plan.shape.tile.columns as usize;
        let mut part = |value: ValueId| {
            if self.plan.shape.is_linear(value) { self.base(value, row) } else { self.scalar(value, pack) }
        };
        match (op, operands) {
            (Pure::Add, &[a, b]) => {
                let (a, b) = (part(a), part(b));
                self.emit.s2(Code::Add_r32_rm32, Width::Dword, a, b)
            }
            (Pure::Sub, &[a, b]) => {
                let (a, b) = (part(a), part(b));
                self.emit.s2(Code::Sub_r32_rm32, Width::Dword, a, b)
            }
            _ => part(operands[0]),
        }
    }

    // Scalars.

    fn compute_scalar(&mut self, op: Pure, class: Type, ty: Type, operands: &[ValueId], pack: usize) -> Option<Reg> {
        let integer = |ty: Type| !ty.is_float();
        if !integer(ty) || !operands.iter().all(|&operand| integer(self.plan.program.ty(operand))) {
            return None;
        }
        let of_64 = class.bits() == 64;
        let width = if of_64 { Width::Qword } else { Width::Dword };
        let pick = |narrow: Code, wide: Code| if of_64 { wide } else { narrow };
        let signed = matches!(class, Type::I32 | Type::I64);
        let known = |this: &Self, k: usize| this.plan.program.known(operands[k]).map(|literal| literal.bits);
        let small = |this: &Self, k: usize| {
            let bits = known(this, k)?;
            let value = if of_64 { bits as i64 } else { i64::from(bits as u32 as i32) };
            i32::try_from(value).ok()
        };
        // Register–immediate or register–register form.
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
            Pure::Add => binary!(Add_r32_rm32, Add_r64_rm64, Add_rm32_imm32, Add_rm64_imm32),
            Pure::Sub => binary!(Sub_r32_rm32, Sub_r64_rm64, Sub_rm32_imm32, Sub_rm64_imm32),
            Pure::Mul => {
                let (a, b) = both!();
                self.emit.s2(pick(Code::Imul_r32_rm32, Code::Imul_r64_rm64), width, a, b)
            }
            Pure::MulHigh if !of_64 => {
                let mut wide = |k: usize| {
                    let reg = self.scalar(operands[k], pack);
                    if signed { self.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, reg) } else { reg }
                };
                let (a, b) = (wide(0), wide(1));
                let product = self.emit.s2(Code::Imul_r64_rm64, Width::Qword, a, b);
                self.emit.s1i(Code::Shr_rm64_imm8, Width::Qword, product, Operand::Byte(32))
            }
            Pure::Div | Pure::Rem => {
                let (a, b) = both!();
                self.emit.quotient(a, b, width, signed, op == Pure::Div)
            }
            Pure::And => binary!(And_r32_rm32, And_r64_rm64, And_rm32_imm32, And_rm64_imm32),
            Pure::Or => binary!(Or_r32_rm32, Or_r64_rm64, Or_rm32_imm32, Or_rm64_imm32),
            Pure::Xor => binary!(Xor_r32_rm32, Xor_r64_rm64, Xor_rm32_imm32, Xor_rm64_imm32),
            Pure::Not if class == Type::Bool => {
                let a = self.scalar(operands[0], pack);
                self.emit.s1i(Code::Xor_rm32_imm32, Width::Dword, a, Operand::Dword(1))
            }
            Pure::Not => unary!(s1_in_place, Not_rm32, Not_rm64),
            Pure::Neg => unary!(s1_in_place, Neg_rm32, Neg_rm64),
            Pure::Shl => shift!(Shl_rm32_imm8, Shl_rm64_imm8, VEX_Shlx_r32_rm32_r32, VEX_Shlx_r64_rm64_r64),
            Pure::Shr if signed => shift!(Sar_rm32_imm8, Sar_rm64_imm8, VEX_Sarx_r32_rm32_r32, VEX_Sarx_r64_rm64_r64),
            Pure::Shr => shift!(Shr_rm32_imm8, Shr_rm64_imm8, VEX_Shrx_r32_rm32_r32, VEX_Shrx_r64_rm64_r64),
            Pure::RotateLeft => {
                let (a, count) = both!();
                let to = self.emit.reg(Class::Scalar);
                let rotated = Operand::Update { from: a, to, width };
                let code = pick(Code::Rol_rm32_CL, Code::Rol_rm64_CL);
                self.emit.push(code, &[rotated], false).implicit = smallvec![Implicit::Use(count, Register::RCX)];
                to
            }
            Pure::CountOnes => unary!(s1, Popcnt_r32_rm32, Popcnt_r64_rm64),
            Pure::LeadingZeros => unary!(s1, Lzcnt_r32_rm32, Lzcnt_r64_rm64),
            Pure::TrailingZeros => unary!(s1, Tzcnt_r32_rm32, Tzcnt_r64_rm64),
            Pure::Min | Pure::Max => {
                let (a, b) = both!();
                self.emit.cmp(a, b, width);
                // `cmov` selects `b` if it is smaller (or greater).
                let code = match (op, signed) {
                    (Pure::Min, true) => pick(Code::Cmovg_r32_rm32, Code::Cmovg_r64_rm64),
                    (Pure::Min, false) => pick(Code::Cmova_r32_rm32, Code::Cmova_r64_rm64),
                    (_, true) => pick(Code::Cmovl_r32_rm32, Code::Cmovl_r64_rm64),
                    (_, false) => pick(Code::Cmovb_r32_rm32, Code::Cmovb_r64_rm64),
                };
                self.emit.s2(code, width, a, b)
            }
            op if let Some(relation) = op.comparison() => {
                let (a, b) = both!();
                self.emit.cmp(a, b, width);
                self.emit.set(comparison(relation, signed).1)
            }
            Pure::Select => {
                let [condition, a, b] = [0, 1, 2].map(|k| self.scalar(operands[k], pack));
                self.emit.test(condition);
                self.emit.s2(Code::Cmovne_r64_rm64, Width::Qword, b, a)
            }
            Pure::Bitcast => self.scalar(operands[0], pack),
            Pure::Cast => {
                let a = self.scalar(operands[0], pack);
                let from = self.plan.program.ty(operands[0]);
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

    /// A bool operand as a mask, other operands as vectors.
    fn lanes(&mut self, value: ValueId, pack: usize, half: usize) -> Reg {
        if self.plan.program.ty(value) == Type::Bool { self.mask(value, pack) } else { self.vector(value, pack, half) }
    }

    /// Last source operand of an instruction: constants stay in memory.
    fn source(&mut self, value: ValueId, pack: usize, half: usize) -> Source {
        match self.plan.program.known(value) {
            Some(literal) => self.emit.constant(literal.bits, literal.ty.bits() == 64).into(),
            None => self.lanes(value, pack, half).into(),
        }
    }

    /// Selects instructions for one pack, if there is a good sequence; returns one register, or two for 64-bit lanes.
    fn compute_pack(&mut self, p: &Pack<'_>) -> Option<SmallVec<[Reg; 2]>> {
        if let Pure::Cast | Pure::Bitcast = p.op {
            return self.convert(p);
        }
        if p.result == Type::Bool && p.class.bits() == 64 {
            // Comparison of 64-bit lanes: joins the masks of both halves.
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
            // A bitwise blend works for every type.
            (_, Pure::Select) => {
                let mask = self.mask(p.operands[0], p.pack);
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
        let masks: SmallVec<[Reg; 3]> = p.operands.iter().map(|&operand| self.mask(operand, p.pack)).collect();
        Some(match (p.op, &masks[..]) {
            (Pure::And, &[a, b]) => self.emit.mask_and(a, b),
            (Pure::Or, &[a, b]) => self.emit.mask_or(a, b),
            (Pure::Xor | Pure::Ne, &[a, b]) => self.emit.mask_xor(a, b),
            (Pure::Eq, &[a, b]) => {
                let differ = self.emit.mask_xor(a, b);
                self.emit.mask_not(differ)
            }
            (Pure::Not, &[a]) => self.emit.mask_not(a),
            (Pure::Select, &[condition, a, b]) => self.emit.blend_masks(condition, a, b),
            _ => return None,
        })
    }

    fn compute_integers(&mut self, p: &Pack<'_>, half: usize) -> Option<Reg> {
        let (signed, of_64) = (matches!(p.class, Type::I32 | Type::I64), p.class.bits() == 64);
        let pick = |narrow: Pair, wide: Pair| if of_64 { wide } else { narrow };
        let is_known = |this: &Self, k: usize| this.plan.program.known(p.operands[k]).is_some();
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
                match self.plan.program.known(p.operands[1]) {
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
            Pure::Add => commutative!(pick(emit::ADD_D, emit::ADD_Q)),
            Pure::And => commutative!(emit::AND),
            Pure::Or => commutative!(emit::OR),
            Pure::Xor => commutative!(emit::XOR),
            Pure::Sub => {
                let (a, b) = (a!(), self.source(p.operands[1], p.pack, half));
                self.emit.v2(pick(emit::SUB_D, emit::SUB_Q), a, b)
            }
            Pure::Neg => {
                let (zero, a) = (self.emit.zero(), a!());
                self.emit.v2(pick(emit::SUB_D, emit::SUB_Q), zero, a)
            }
            Pure::Not => {
                let a = a!();
                let ones = self.emit.constant(0xffff_ffff, false);
                self.emit.v2(emit::XOR, a, ones)
            }
            op if let Some(relation) = op.comparison() => {
                let (a, b) = (a!(), self.source(p.operands[1], p.pack, half));
                self.emit.compare_integers(relation, p.class, a, b)
            }
            _ if of_64 => return self.compute_wide_integers(p, half),
            Pure::Mul => commutative!(emit::MUL_D),
            Pure::Min => commutative!(if signed { emit::MIN_S } else { emit::MIN_U }),
            Pure::Max => commutative!(if signed { emit::MAX_S } else { emit::MAX_U }),
            Pure::MulHigh => {
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
            Pure::Div | Pure::Rem => {
                let (a, b) = (a!(), self.vector(p.operands[1], p.pack, 0));
                self.emit.divide(a, b, signed, p.op == Pure::Div)
            }
            Pure::Abs => {
                let a = a!();
                self.emit.v1(emit::ABS_D, a)
            }
            Pure::Shl => shift!(emit::SHL_D_BY, emit::SHL_D),
            Pure::Shr if signed => shift!(emit::SAR_D_BY, emit::SAR_D),
            Pure::Shr => shift!(emit::SHR_D_BY, emit::SHR_D),
            Pure::RotateLeft => {
                let a = a!();
                if let Some(count) = self.plan.program.known(p.operands[1]) {
                    let count = (count.bits % 32) as u8;
                    // A shift by 32 gives 0, so a rotation by 0 needs no special case.
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
            Pure::ExtractBits => {
                // A field with constant offset and width is two shifts.
                let known = |k: usize| self.plan.program.known(p.operands[k]).map(|literal| literal.bits.min(32) as u8);
                let (Some(offset), Some(count)) = (known(1), known(2)) else { return None };
                let count = count.min(32 - offset);
                let left = a!();
                if count == 0 {
                    return Some(self.emit.zero());
                }
                let left =
                    if offset + count == 32 { left } else { self.emit.v1i(emit::SHL_D_BY, left, 32 - offset - count) };
                let down = if signed { emit::SAR_D_BY } else { emit::SHR_D_BY };
                if count == 32 { left } else { self.emit.v1i(down, left, 32 - count) }
            }
            Pure::AddU8x4 => commutative!(emit::ADD_B),
            Pure::MinU8x4 => commutative!(emit::MIN_UB),
            Pure::MaxU8x4 => commutative!(emit::MAX_UB),
            Pure::MinI8x4 => commutative!(emit::MIN_SB),
            Pure::MaxI8x4 => commutative!(emit::MAX_SB),
            Pure::EqU8x4 if !self.emit.wide() => commutative!((Code::VEX_Vpcmpeqb_ymm_ymm_ymmm256, Code::INVALID)),
            // The AVX-512 instruction yields a 64-bit mask, and masks here have 16 bits. Instead: the minimum of the
            // difference and 1 is 0 for equal bytes and 1 for others; minus 1, that is 0xff or 0.
            Pure::EqU8x4 => {
                let differ = commutative!(emit::XOR);
                let one = self.emit.constant(0x0101_0101, false);
                let differ = self.emit.v2(emit::MIN_UB, differ, one);
                self.emit.v2(emit::SUB_B, differ, one)
            }
            Pure::LtU8x4 => {
                let (a, b) = (a!(), self.vector(p.operands[1], p.pack, 0));
                let above = self.emit.v2(emit::SUB_SATURATING_UB, b, a);
                let one = self.emit.constant(0x0101_0101, false);
                let above = self.emit.v2(emit::MIN_UB, above, one);
                let zero = self.emit.zero();
                self.emit.v2(emit::SUB_B, zero, above)
            }
            Pure::Dot4U8 | Pure::Dot4I8 | Pure::Dot4I8U8 => {
                let [a, b] = [0, 1].map(|k| self.vector(p.operands[k], p.pack, 0));
                let sum = self.vector(p.operands[2], p.pack, 0);
                self.emit.dot4([a, b], [p.op != Pure::Dot4U8, p.op == Pure::Dot4I8], sum)
            }
            Pure::LookupU8x4 => {
                let index = a!();
                let words = [1, 2, 3, 4].map(|k| p.operands[k]);
                let known = words.map(|word| self.plan.program.known(word).map(|literal| literal.bits as u32));
                if let [Some(t0), Some(t1), Some(t2), Some(t3)] = known {
                    let table = self.emit.constant_quad([t0, t1, t2, t3]);
                    let table = self.emit.load(table);
                    return Some(self.emit.lookup(table, index));
                }
                let uniform = words.iter().all(|&word| !self.plan.shape.axes[word].intersects(Axes::LANE));
                let words = words.map(|word| self.vector(word, p.pack, 0));
                if uniform { self.emit.lookup_in_one(words, index) } else { self.emit.lookup_in_each(words, index) }
            }
            Pure::PackU8Clamp | Pure::PackI8Clamp => {
                let mut word = None;
                for (position, &operand) in p.operands.iter().enumerate() {
                    let mut byte = self.vector(operand, p.pack, 0);
                    if signed {
                        let [least, most] =
                            [-128i32, 127].map(|bound| self.emit.constant(u64::from(bound as u32), false));
                        byte = self.emit.v2(emit::MIN_S, byte, most);
                        byte = self.emit.v2(emit::MAX_S, byte, least);
                        if position < 3 {
                            let mask = self.emit.constant(0xff, false);
                            byte = self.emit.v2(emit::AND, byte, mask);
                        }
                    } else {
                        let most = self.emit.constant(255, false);
                        byte = self.emit.v2(emit::MIN_U, byte, most);
                    }
                    word = Some(match word {
                        None => byte,
                        Some(word) => {
                            let byte = self.emit.v1i(emit::SHL_D_BY, byte, 8 * position as u8);
                            self.emit.v2(emit::OR, word, byte)
                        }
                    });
                }
                word.expect("it has operands")
            }
            Pure::UnpackSnorm16 => self.unpack_norm(p, 16, true),
            Pure::UnpackUnorm16 => self.unpack_norm(p, 16, false),
            Pure::UnpackSnorm8 => self.unpack_norm(p, 8, true),
            Pure::UnpackUnorm8 => self.unpack_norm(p, 8, false),
            Pure::CountOnes => {
                let a = a!();
                self.emit.count_ones(a)
            }
            // Mask of the bits below the lowest set bit.
            Pure::TrailingZeros => {
                let (a, ones) = (a!(), self.emit.splat(0xffff_ffff, false));
                let (below, others) = (self.emit.v2(emit::ADD_D, a, ones), self.emit.v2(emit::XOR, a, ones));
                let below = self.emit.v2(emit::AND, below, others);
                self.emit.count_ones(below)
            }
            // Smears the highest set bit downwards and inverts.
            Pure::LeadingZeros => {
                let mut a = a!();
                for distance in [1, 2, 4, 8, 16] {
                    let lower = self.emit.v1i(emit::SHR_D_BY, a, distance);
                    a = self.emit.v2(emit::OR, a, lower);
                }
                let ones = self.emit.constant(0xffff_ffff, false);
                let above = self.emit.v2(emit::XOR, a, ones);
                self.emit.count_ones(above)
            }
            _ => return None,
        })
    }

    fn compute_floats(&mut self, p: &Pack<'_>, half: usize, double: bool) -> Option<Reg> {
        let pick = |single: Pair, wide: Pair| if double { wide } else { single };
        let sign: u64 = if double { 1 << 63 } else { 1 << 31 };
        let is_known = |this: &Self, k: usize| this.plan.program.known(p.operands[k]).is_some();
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
        macro_rules! round {
            ($mode:expr) => {{
                let a = operand!(0);
                self.emit.v1i(pick(emit::ROUND_S, emit::ROUND_PD), a, $mode)
            }};
        }
        let compare = pick(emit::CMP_S, emit::CMP_PD);
        Some(match p.op {
            // Sums commute, although another NaN may be propagated: which of two is unspecified.
            Pure::Add => binary!(emit::ADD_S, emit::ADD_PD, true),
            Pure::Sub => binary!(emit::SUB_S, emit::SUB_PD, false),
            Pure::Mul => binary!(emit::MUL_S, emit::MUL_PD, true),
            Pure::Div => binary!(emit::DIV_S, emit::DIV_PD, false),
            Pure::Neg => {
                let (a, sign) = (operand!(0), self.emit.constant(sign, double));
                self.emit.v2(emit::XOR, a, sign)
            }
            Pure::Abs => {
                let (a, rest) = (operand!(0), self.emit.constant(sign - 1, double));
                self.emit.v2(emit::AND, a, rest)
            }
            Pure::Min | Pure::Max => {
                let (a, b) = (operand!(0), operand!(1));
                self.emit.extreme(a, b, p.op == Pure::Min, double)
            }
            Pure::Fma => {
                // Overwrites an operand that dies here: mostly the addend, otherwise a factor.
                let dies = |this: &Self, k: usize| this.plan.dies(p.operands[k], p.id);
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
            Pure::Ldexp if !double => {
                let (value, exponent) = (operand!(0), operand!(1));
                self.scale(value, exponent)
            }
            Pure::QuantizeF16 => {
                let a = operand!(0);
                self.emit.quantize(a)
            }
            Pure::FrexpFraction | Pure::FrexpExponent if !double => {
                let a = operand!(0);
                self.emit.frexp(a, p.op == Pure::FrexpExponent)
            }
            Pure::ModfFraction => {
                let a = operand!(0);
                let [rest, top, infinity] =
                    [sign - 1, sign, if double { f64::INFINITY.to_bits() } else { 0x7f80_0000 }]
                        .map(|bits| self.emit.constant(bits, double));
                let magnitude = self.emit.v2(emit::AND, a, rest);
                // Truncates, with exceptions suppressed.
                let whole = self.emit.v1i(pick(emit::ROUND_S, emit::ROUND_PD), magnitude, 0x0b);
                let fraction = self.emit.v2(pick(emit::SUB_S, emit::SUB_PD), magnitude, whole);
                let infinite = self.emit.compare(compare, magnitude, infinity, float::EQ);
                let zero = self.emit.zero();
                let fraction = self.emit.blend_lanes(infinite, zero, fraction, double);
                let sign = self.emit.v2(emit::AND, a, top);
                self.emit.v2(emit::OR, fraction, sign)
            }
            Pure::Sqrt => {
                let a = operand!(0);
                self.emit.v1(pick(emit::SQRT_S, emit::SQRT_PD), a)
            }
            // Exceptions are suppressed; with AVX-512, the upper half of the immediate is the number of fraction bits,
            // 0.
            Pure::Round => round!(0x08),
            Pure::Floor => round!(0x09),
            Pure::Ceil => round!(0x0a),
            Pure::Trunc => round!(0x0b),
            op if let Some(relation) = op.comparison() => {
                let predicate = match relation {
                    Comparison::Eq => float::EQ,
                    Comparison::Ne => float::NE,
                    Comparison::Lt => float::LT,
                    Comparison::Le => float::LE,
                    Comparison::Gt => float::GT,
                    Comparison::Ge => float::GE,
                };
                let (a, b) = (operand!(0), self.source(p.operands[1], p.pack, half));
                self.emit.compare(compare, a, b, predicate)
            }
            _ => return None,
        })
    }

    /// Extracts one of the normalized integers packed in words, as f32.
    fn unpack_norm(&mut self, p: &Pack<'_>, bits: u8, signed: bool) -> Reg {
        let word = self.vector(p.operands[0], p.pack, 0);
        let (last, rest) = (32 / u64::from(bits) - 1, 32 - bits);
        let field = match self.plan.program.known(p.operands[1]) {
            Some(lane) => {
                let up = rest - (lane.bits & last) as u8 * bits;
                self.emit.v1i(emit::SHL_D_BY, word, up)
            }
            None => {
                // `last - lane` fields are above the selected one.
                let lane = self.vector(p.operands[1], p.pack, 0);
                let mask = self.emit.constant(last, false);
                let lane = self.emit.v2(emit::AND_NOT, lane, mask);
                let up = self.emit.v1i(emit::SHL_D_BY, lane, bits.ilog2() as u8);
                self.emit.v2(emit::SHL_D, word, up)
            }
        };
        let mut field = self.emit.v1i(if signed { emit::SAR_D_BY } else { emit::SHR_D_BY }, field, rest);
        let largest = (1i32 << (bits - u8::from(signed))) - 1;
        if signed {
            let least = self.emit.constant(u64::from(-largest as u32), false);
            field = self.emit.v2(emit::MAX_S, field, least);
        }
        let number = self.emit.v1(emit::FROM_I32, field);
        let largest = self.emit.constant(u64::from((largest as f32).to_bits()), false);
        self.emit.v2(emit::DIV_S, number, largest)
    }

    /// f32 lanes times powers of two. Without `vscalefps`, three multiplications, of which only the last may round: an
    /// earlier one rounds only if its result is subnormal, and then the final result is 0.
    fn scale(&mut self, value: Reg, exponent: Reg) -> Reg {
        if self.emit.wide() {
            let exponent = self.emit.v1(emit::FROM_I32, exponent);
            return self.emit.v2((Code::INVALID, Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er), value, exponent);
        }
        let clamped = |this: &mut Self, value: Reg, low: i32, high: i32| {
            let [low, high] = [low, high].map(|bound| this.emit.constant(u64::from(bound as u32), false));
            let value = this.emit.v2(emit::MIN_S, value, high);
            this.emit.v2(emit::MAX_S, value, low)
        };
        let exponent = clamped(self, exponent, -300, 300);
        let last = clamped(self, exponent, -126, 127);
        let rest = self.emit.v2(emit::SUB_D, exponent, last);
        let first = clamped(self, rest, -126, 127);
        let second = self.emit.v2(emit::SUB_D, rest, first);
        [first, second, last].into_iter().fold(value, |value, exponent| {
            let bias = self.emit.constant(127, false);
            let biased = self.emit.v2(emit::ADD_D, exponent, bias);
            let power = self.emit.v1i(emit::SHL_D_BY, biased, 23);
            self.emit.v2(emit::MUL_S, value, power)
        })
    }

    /// Operations on 64-bit integer lanes without an instruction of their own.
    fn compute_wide_integers(&mut self, p: &Pack<'_>, half: usize) -> Option<Reg> {
        let operand = |this: &mut Self, k: usize| this.vector(p.operands[k], p.pack, half);
        Some(match p.op {
            Pure::Mul => {
                // Low half: low × low, plus the cross products shifted up.
                let (a, b) = (operand(self, 0), operand(self, 1));
                let (a_high, b_high) = (self.emit.v1i(emit::SHR_Q_BY, a, 32), self.emit.v1i(emit::SHR_Q_BY, b, 32));
                let low = self.emit.v2(emit::MUL_EVEN_U, a, b);
                let (x, y) = (self.emit.v2(emit::MUL_EVEN_U, a_high, b), self.emit.v2(emit::MUL_EVEN_U, a, b_high));
                let crossed = self.emit.v2(emit::ADD_Q, x, y);
                let crossed = self.emit.v1i(emit::SHL_Q_BY, crossed, 32);
                self.emit.v2(emit::ADD_Q, low, crossed)
            }
            Pure::Shl | Pure::Shr if p.op == Pure::Shl || p.class == Type::U64 => {
                let a = operand(self, 0);
                let count = self.vector(p.operands[1], p.pack, 0);
                let count = if half == 1 { self.emit.upper(count) } else { count };
                let count = self.emit.widen(emit::ZERO_EXTEND, count);
                let mask = self.emit.constant(63, true);
                let count = self.emit.v2(emit::AND, count, mask);
                self.emit.v2(if p.op == Pure::Shl { emit::SHL_Q } else { emit::SHR_Q }, a, count)
            }
            Pure::Min | Pure::Max => {
                let (a, b) = (operand(self, 0), operand(self, 1));
                let less = self.emit.compare_integers(Comparison::Lt, p.class, a, b.into());
                let (first, second) = if p.op == Pure::Min { (a, b) } else { (b, a) };
                self.emit.blend_lanes(less, first, second, true)
            }
            _ => return None,
        })
    }

    /// Casts and bitcasts.
    fn convert(&mut self, p: &Pack<'_>) -> Option<SmallVec<[Reg; 2]>> {
        let from = self.plan.program.ty(p.operands[0]);
        let operand = p.operands[0];
        let halves = if from.bits() == 64 { 2 } else { 1 };
        if p.op == Pure::Bitcast || from == p.result {
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
                let mask = self.mask(operand, p.pack);
                let vector = self.emit.mask_to_vector(mask);
                let one = if p.result == Type::F32 { u64::from(1f32.to_bits()) } else { 1 };
                let one = self.emit.constant(one, false);
                smallvec![self.emit.v2(emit::AND, vector, one)]
            }
            (Type::I32 | Type::U32, Type::Bool) => {
                let (a, zero) = (self.vector(operand, p.pack, 0), self.emit.constant(0, false));
                smallvec![self.emit.compare_integers(Comparison::Ne, from, a, zero.into())]
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
                // Both halves convert exactly, so only the final sum rounds.
                let mask = self.emit.constant(0xffff, false);
                let low = self.emit.v2(emit::AND, a, mask);
                let high = self.emit.v1i(emit::SHR_D_BY, a, 16);
                let (low, high) = (self.emit.v1(emit::FROM_I32, low), self.emit.v1(emit::FROM_I32, high));
                let scale = self.emit.constant(u64::from(65536f32.to_bits()), false);
                smallvec![self.emit.v3(emit::FMA_ONTO_S, low, high, scale)]
            }
            (Type::F32, Type::I32) => {
                let a = self.vector(operand, p.pack, 0);
                // Out of range, the instruction returns the minimum, which is correct for values below the range.
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
                // `max` returns the second operand for a NaN.
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

    /// Evaluates an operation by the runtime, lane by lane.
    fn evaluate(&mut self, p: &Pack<'_>) -> SmallVec<[Reg; 2]> {
        for (number, &operand) in p.operands.iter().enumerate() {
            self.pass(operand, p.pack, number);
        }
        let evaluator = p.op.info().evaluator(p.class, p.result).expect("a pure operation has an evaluator");
        let operands = p.operands.iter().map(|&operand| self.plan.program.ty(operand)).collect();
        self.services.call(&mut self.emit, Site::Evaluate { evaluator, operands, result: p.result });
        services::receive(&mut self.emit, p.result, 0)
    }
}
