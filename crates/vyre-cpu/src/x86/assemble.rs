//! From machine code over virtual registers to bytes: dead code goes, registers are chosen, instructions are encoded.

use super::allocate::Allocator;
use super::encode::{Encoded, Encoder};
use super::machine::Function;
use super::prune::prune;
use super::sink::sink;

/// Assembles one function after the other; it keeps the memory it needs for that.
#[derive(Default)]
pub(crate) struct Assembler {
    allocator: Allocator,
    encoder: Encoder,
}

impl Assembler {
    /// Assembles a function, which loses its dead code. What is not assembled is said in words; it is a fault of the
    /// instruction selection, or a function that is too large.
    pub(crate) fn assemble(&mut self, function: &mut Function) -> Result<Encoded, String> {
        prune(function);
        sink(function);
        let registers = self.allocator.allocate(function)?;
        self.encoder.encode(function, &registers)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Deref, DerefMut};

    use iced_x86::{Code, Register};
    use smallvec::smallvec;

    use super::super::emit::Emit;
    use super::super::listing::listing;
    use super::super::machine::{Address, Base, BlockId, Class, Edge, End, Implicit, Inst, Operand, Reg, Width};
    use super::super::pages::Executable;
    use super::*;

    /// Builds functions.
    struct Builder(Emit);

    impl Deref for Builder {
        type Target = Emit;
        fn deref(&self) -> &Emit {
            &self.0
        }
    }

    impl DerefMut for Builder {
        fn deref_mut(&mut self) -> &mut Emit {
            &mut self.0
        }
    }

    impl Builder {
        fn new() -> Self {
            let mut emit = Emit::new(false);
            emit.origin = 7;
            Builder(emit)
        }

        fn inst(&mut self, code: Code, operands: &[Operand]) -> &mut Inst {
            self.push(code, operands, false)
        }

        /// Jumps to a block, whose parameters may be declared later.
        fn jump(&mut self, to: BlockId, arguments: &[Reg]) {
            let at = self.at.0 as usize;
            self.function.blocks[at].end = End::Jump(Edge { to, arguments: arguments.iter().copied().collect() });
        }

        fn constant(&mut self, value: i64) -> Reg {
            let reg = self.reg(Class::Scalar);
            self.inst(Code::Mov_r64_imm64, &[def(reg), Operand::Qword(value)]);
            reg
        }

        fn load(&mut self, offset: i32) -> Reg {
            let reg = self.reg(Class::Scalar);
            self.inst(Code::Mov_r64_rm64, &[def(reg), context(offset)]);
            reg
        }

        fn store(&mut self, offset: i32, reg: Reg) {
            self.inst(Code::Mov_rm64_r64, &[context(offset), read(reg)]).effect = true;
        }

        fn load_vector(&mut self, address: Operand) -> Reg {
            let reg = self.reg(Class::Vector);
            self.inst(Code::VEX_Vmovdqu_ymm_ymmm256, &[Operand::Def(reg, Width::Ymm), address]);
            reg
        }

        fn store_vector(&mut self, address: Operand, reg: Reg) {
            self.inst(Code::VEX_Vmovdqu_ymmm256_ymm, &[address, Operand::Use(reg, Width::Ymm)]).effect = true;
        }

        fn vector(&mut self, code: Code, left: Reg, right: Reg) -> Reg {
            let to = self.reg(Class::Vector);
            let ymm = Width::Ymm;
            self.inst(code, &[Operand::Def(to, ymm), Operand::Use(left, ymm), Operand::Use(right, ymm)]);
            to
        }
    }

    fn def(reg: Reg) -> Operand {
        Operand::Def(reg, Width::Qword)
    }

    fn read(reg: Reg) -> Operand {
        Operand::Use(reg, Width::Qword)
    }

    fn update(from: Reg, to: Reg) -> Operand {
        Operand::Update { from, to, width: Width::Qword }
    }

    fn memory(base: Base, displacement: i32) -> Operand {
        Operand::Memory(Address { base, index: None, displacement })
    }

    fn context(displacement: i32) -> Operand {
        memory(Base::Context, displacement)
    }

    /// Runs a function with words as its context.
    fn run(mut function: Function, words: &mut [u64]) -> Encoded {
        let encoded = Assembler::default().assemble(&mut function).unwrap();
        let code = Executable::new(&encoded.bytes).unwrap();
        // SAFETY: the functions of the tests access only the words they are given.
        unsafe { code.entry()(words.as_mut_ptr().cast()) };
        encoded
    }

    fn has_avx2() -> bool {
        std::arch::is_x86_feature_detected!("avx2")
    }

    fn text(mut function: Function) -> String {
        let encoded = Assembler::default().assemble(&mut function).unwrap();
        listing(&encoded, |origin| Some(format!("origin {origin}")))
    }

    #[test]
    fn arithmetic() {
        let mut b = Builder::new();
        let (x, y) = (b.load(0), b.load(8));
        let sum = b.s2(Code::Add_r64_rm64, Width::Qword, x, y);
        let product = b.s2(Code::Imul_r64_rm64, Width::Qword, sum, x);
        let less = b.reg(Class::Scalar);
        b.inst(Code::Sub_rm64_imm8, &[update(product, less), Operand::Byte(-3)]);
        let masked = b.reg(Class::Scalar);
        b.inst(Code::And_rm64_imm32, &[update(less, masked), Operand::Dword(0x7fff_ffff)]);
        b.store(16, masked);
        b.store(24, x);
        b.inst(Code::Mov_rm32_imm32, &[context(32), Operand::Dword(-2)]).effect = true;
        b.ret();
        let mut words = [5, 6, 0, 0, 0];
        run(b.0.function, &mut words);
        assert_eq!(words, [5, 6, 58, 5, 0xffff_fffe]);
    }

    #[test]
    fn loop_with_parameters() {
        // sum and product of 1..=n, with the values crossing each round.
        let mut b = Builder::new();
        let n = b.load(0);
        let zero = b.constant(0);
        let one = b.constant(1);
        let header = b.block(false);
        b.jump(header, &[zero, one, n]);
        let sum = b.param(header, Class::Scalar);
        let product = b.param(header, Class::Scalar);
        let i = b.param(header, Class::Scalar);
        // Nobody reads it outside of its own computation.
        let dead = b.param(header, Class::Scalar);
        if let End::Jump(edge) = &mut b.function.blocks[0].end {
            edge.arguments.push(n);
        }
        b.at = header;
        let next_sum = b.s2(Code::Add_r64_rm64, Width::Qword, sum, i);
        let next_product = b.s2(Code::Imul_r64_rm64, Width::Qword, product, i);
        let next_dead = b.s2(Code::Imul_r64_rm64, Width::Qword, dead, i);
        let next = b.reg(Class::Scalar);
        b.inst(Code::Sub_rm64_imm8, &[update(i, next), Operand::Byte(1)]);
        let (again, exit) = b.branch(Code::Jne_rel32_64, false, false);
        b.at = again;
        // Exchanges sum and product.
        b.jump(header, &[next_product, next_sum, next, next_dead]);
        b.at = exit;
        b.store(8, next_sum);
        b.store(16, next_product);
        b.ret();
        let mut function = b.function.clone();
        prune(&mut function);
        assert_eq!(function.blocks[header.0 as usize].params.len(), 3);
        let mut words = [5, 0, 0];
        run(b.0.function, &mut words);
        let (mut sum, mut product) = (0_u64, 1_u64);
        for i in (1..=5).rev() {
            let (s, p) = (sum + i, product * i);
            if i == 1 {
                (sum, product) = (s, p);
            } else {
                (sum, product) = (p, s);
            }
        }
        assert_eq!(words, [5, sum, product]);
    }

    #[test]
    fn more_vectors_than_registers() {
        if !has_avx2() {
            return;
        }
        let mut b = Builder::new();
        let vectors: Vec<Reg> = (0..40).map(|i| b.load_vector(context(i * 32))).collect();
        let pairs: Vec<Reg> = (0..40)
            .map(|i| b.vector(Code::VEX_Vpaddq_ymm_ymm_ymmm256, vectors[i], vectors[(i * 7 + 3) % 40]))
            .collect();
        for (i, pair) in pairs.iter().enumerate() {
            let sum = b.vector(Code::VEX_Vpaddq_ymm_ymm_ymmm256, *pair, vectors[39 - i]);
            b.store_vector(context(i as i32 * 32), sum);
        }
        b.ret();
        let before: Vec<u64> = (0..160).map(|i| i * i + 1).collect();
        let mut words = before.clone();
        run(b.0.function, &mut words);
        for i in 0..40 {
            for lane in 0..4 {
                let of = |i: usize| before[i * 4 + lane];
                assert_eq!(words[i * 4 + lane], of(i) + of((i * 7 + 3) % 40) + of(39 - i));
            }
        }
    }

    #[test]
    fn implicit_registers() {
        let mut b = Builder::new();
        let (x, y) = (b.load(0), b.load(8));
        let zero = b.constant(0);
        let (quotient, remainder) = (b.reg(Class::Scalar), b.reg(Class::Scalar));
        b.inst(Code::Div_rm64, &[read(y)]).implicit = smallvec![
            Implicit::Use(x, Register::RAX),
            Implicit::Use(zero, Register::RDX),
            Implicit::Def(quotient, Register::RAX),
            Implicit::Def(remainder, Register::RDX)
        ];
        // Only the quotient of this one is of interest.
        let (half, rest) = (b.reg(Class::Scalar), b.reg(Class::Scalar));
        b.inst(Code::Div_rm64, &[read(remainder)]).implicit = smallvec![
            Implicit::Use(y, Register::RAX),
            Implicit::Use(zero, Register::RDX),
            Implicit::Def(half, Register::RAX),
            Implicit::Def(rest, Register::RDX)
        ];
        let shifted = b.reg(Class::Scalar);
        b.inst(Code::Shl_rm64_CL, &[update(x, shifted)]).implicit = smallvec![Implicit::Use(remainder, Register::CL)];
        b.store(16, quotient);
        b.store(24, remainder);
        b.store(32, half);
        b.store(40, shifted);
        b.store(48, zero);
        b.ret();
        let mut words = [100, 7, 9, 9, 9, 9, 9];
        run(b.0.function, &mut words);
        assert_eq!(words, [100, 7, 14, 2, 3, 400, 0]);
    }

    #[test]
    fn branches_constants_and_scratch() {
        if !has_avx2() {
            return;
        }
        let mut b = Builder::new();
        b.function.pool = (0..64_u8).collect();
        b.function.scratch = 96;
        let (x, y) = (b.load(0), b.load(8));
        let ymm = Width::Ymm;
        let constant = b.load_vector(memory(Base::Pool, 32));
        let sum = b.reg(Class::Vector);
        b.inst(
            Code::VEX_Vpaddb_ymm_ymm_ymmm256,
            &[Operand::Def(sum, ymm), Operand::Use(constant, ymm), memory(Base::Pool, 0)],
        );
        b.inst(Code::VEX_Vmovdqa_ymmm256_ymm, &[memory(Base::Scratch, 64), Operand::Use(sum, ymm)]).effect = true;
        // Dead, and so is what it compares.
        let flag = b.reg(Class::Scalar);
        b.inst(Code::Cmp_r64_rm64, &[read(y), read(x)]);
        b.inst(Code::Cmova_r64_rm64, &[update(x, flag), read(y)]);
        b.inst(Code::Cmp_r64_rm64, &[read(x), read(y)]);
        let max = b.reg(Class::Scalar);
        b.inst(Code::Cmovb_r64_rm64, &[update(x, max), read(y)]);
        b.inst(Code::Cmp_r64_rm64, &[read(x), read(y)]);
        let (below, above) = b.branch(Code::Jb_rel32_64, false, false);
        let join = b.block(false);
        let result = b.param(join, Class::Scalar);
        b.function.blocks[below.0 as usize].cold = true;
        b.at = below;
        let one = b.constant(1);
        b.jump(join, &[one]);
        b.at = above;
        let two = b.constant(2);
        b.jump(join, &[two]);
        b.at = join;
        b.store(16, result);
        b.store(24, max);
        let base = b.constant(8);
        let scratch = b.reg(Class::Scalar);
        let address = Address { base: Base::Scratch, index: Some((base, Width::Qword, 2)), displacement: 48 };
        b.inst(Code::Mov_r64_rm64, &[def(scratch), Operand::Memory(address)]);
        b.store(32, scratch);
        b.ret();
        let function = b.function.clone();
        for (x, y) in [(3, 4), (4, 3), (4, 4)] {
            let mut words = [x, y, 0, 0, 0];
            run(function.clone(), &mut words);
            let bytes = u64::from_le_bytes(std::array::from_fn(|i| i as u8 * 2 + 32));
            assert_eq!(words, [x, y, if x < y { 1 } else { 2 }, x.max(y), bytes]);
        }
        let text = text(function);
        assert_eq!(text.matches("cmp ").count(), 2, "{text}");
        assert!(text.contains(", [.pool+0x0]\n"), "{text}");
        assert!(text.contains("    0x0020: 23222120 27262524"), "{text}");
        assert!(text.contains("  ; origin 7\n"), "{text}");
        assert!(text.contains(".L1:\n"), "{text}");
    }

    #[test]
    fn floating_point_state_is_set_and_restored() {
        let mut b = Builder::new();
        b.inst(Code::VEX_Vstmxcsr_m32, &[context(0)]).effect = true;
        b.ret();
        let mut words = [0, 0];
        let mut state = 0_u32;
        // Rounds down and flushes denormal numbers.
        let (odd, default) = (0xbf80_u32, 0x1f80_u32);
        // SAFETY: changes how this thread calculates, until it is set back below.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const odd) };
        run(b.0.function, &mut words);
        // SAFETY: stores to the variable; sets back what was changed.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut state);
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default);
        }
        assert_eq!((words[0], state), (0x1f80, odd));
    }

    #[test]
    fn large_frames() {
        let mut b = Builder::new();
        b.function.scratch = 100_000;
        let x = b.load(0);
        b.inst(Code::Mov_rm64_r64, &[memory(Base::Scratch, 99_992), read(x)]).effect = true;
        b.inst(Code::Mov_rm64_r64, &[memory(Base::Scratch, 0), read(x)]).effect = true;
        let y = b.reg(Class::Scalar);
        b.inst(Code::Mov_r64_rm64, &[def(y), memory(Base::Scratch, 99_992)]);
        b.store(8, y);
        b.ret();
        let mut words = [17, 0];
        run(b.0.function, &mut words);
        assert_eq!(words, [17, 17]);
    }

    #[test]
    fn faults_are_errors() {
        let mut open = Builder::new().0.function;
        assert!(Assembler::default().assemble(&mut open).unwrap_err().contains("not ended"));

        let mut b = Builder::new();
        let undefined = b.reg(Class::Scalar);
        b.store(0, undefined);
        b.ret();
        let mut assembler = Assembler::default();
        assert!(assembler.assemble(&mut b.function).is_err());

        let mut b = Builder::new();
        let x = b.load(0);
        b.inst(Code::Mov_rm64_r64, &[context(0), Operand::Use(x, Width::Dword)]).effect = true;
        b.ret();
        assert!(assembler.assemble(&mut b.function).unwrap_err().contains("Mov_rm64_r64"));
    }

    #[test]
    fn wide_vectors_and_masks() {
        let mut b = Builder::new();
        b.function.wide = true;
        b.function.pool = vec![0; 64];
        let zmm = Width::Zmm;
        let vectors: Vec<Reg> = (0..36)
            .map(|i| {
                let reg = b.reg(Class::Vector);
                b.inst(Code::EVEX_Vmovups_zmm_k1z_zmmm512, &[Operand::Def(reg, zmm), context(i * 64)]);
                reg
            })
            .collect();
        let mask = b.reg(Class::Mask);
        b.inst(
            Code::EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8,
            &[Operand::Def(mask, Width::Mask), Operand::Use(vectors[0], zmm), memory(Base::Pool, 0), Operand::Byte(1)],
        );
        let sum = b.reg(Class::Vector);
        let add = b.inst(
            Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
            &[Operand::Def(sum, zmm), Operand::Use(vectors[1], zmm), Operand::Use(vectors[2], zmm)],
        );
        (add.mask, add.zeroing) = (Some(mask), true);
        let kept = b.reg(Class::Vector);
        let add = b.inst(
            Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
            &[
                Operand::Update { from: sum, to: kept, width: zmm },
                Operand::Use(sum, zmm),
                Operand::Use(vectors[3], zmm),
            ],
        );
        add.mask = Some(mask);
        // The gather overwrites the mask, which is used afterwards.
        let base = b.load(0);
        let gathered = b.reg(Class::Vector);
        let address = Address { base: Base::Reg(base), index: Some((vectors[4], zmm, 4)), displacement: 64 };
        let gather = b.inst(
            Code::EVEX_Vpgatherdd_zmm_k1_vm32z,
            &[Operand::Update { from: kept, to: gathered, width: zmm }, Operand::Memory(address)],
        );
        gather.mask = Some(mask);
        // Only with VEX: cannot use the upper registers.
        let bits = b.reg(Class::Scalar);
        b.inst(Code::VEX_Vmovmskps_r32_ymm, &[Operand::Def(bits, Width::Dword), Operand::Use(vectors[35], Width::Ymm)]);
        b.store(0, bits);
        for (i, &reg) in vectors.iter().chain([&sum, &kept, &gathered]).enumerate() {
            let store = b.inst(Code::EVEX_Vmovups_zmmm512_k1z_zmm, &[context(i as i32 * 64), Operand::Use(reg, zmm)]);
            (store.effect, store.mask) = (true, Some(mask));
        }
        b.ret();
        let text = text(b.0.function);
        for expected in
            ["vaddps zmm", "{z}, zmm", "vpcmpltud k", "zmm31", "vmovaps [rsp", "kmovq k", "vpgatherdd zmm", "vmovmskps"]
        {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    /// Small numbers that look random.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    const WORDS: usize = 32;

    /// Builds a random function, nesting loops and branches.
    struct Generator {
        b: Builder,
        random: Random,
        scalars: Vec<Reg>,
        vectors: Vec<Reg>,
    }

    impl Generator {
        fn scalar(&mut self) -> Reg {
            self.scalars[self.random.below(self.scalars.len())]
        }

        fn vector(&mut self) -> Reg {
            self.vectors[self.random.below(self.vectors.len())]
        }

        fn step(&mut self) {
            let (x, y) = (self.scalar(), self.scalar());
            match self.random.below(14) {
                0 | 1 => {
                    let sum = self.b.s2(Code::Add_r64_rm64, Width::Qword, x, y);
                    self.scalars.push(sum);
                }
                2 => {
                    let product = self.b.s2(Code::Imul_r64_rm64, Width::Qword, x, y);
                    self.scalars.push(product);
                }
                3 => {
                    let offset = self.random.below(WORDS) as i32 * 8;
                    self.b.store(offset, x);
                }
                4 => {
                    let offset = self.random.below(WORDS) as i32 * 8;
                    let loaded = self.b.load(offset);
                    self.scalars.push(loaded);
                }
                5 => {
                    self.b.inst(Code::Cmp_r64_rm64, &[read(x), read(y)]);
                    let from = self.scalar();
                    let to = self.b.reg(Class::Scalar);
                    self.b.inst(Code::Cmovb_r64_rm64, &[update(from, to), read(x)]);
                    self.scalars.push(to);
                }
                6 => {
                    let shifted = self.b.reg(Class::Scalar);
                    self.b.inst(Code::Shl_rm64_CL, &[update(x, shifted)]).implicit =
                        smallvec![Implicit::Use(y, Register::RCX)];
                    self.scalars.push(shifted);
                }
                7 => {
                    // The divisor is not zero.
                    let divisor = self.b.reg(Class::Scalar);
                    self.b.inst(Code::Or_rm64_imm8, &[update(y, divisor), Operand::Byte(1)]);
                    let zero = self.b.constant(0);
                    let (quotient, remainder) = (self.b.reg(Class::Scalar), self.b.reg(Class::Scalar));
                    self.b.inst(Code::Div_rm64, &[read(divisor)]).implicit = smallvec![
                        Implicit::Use(x, Register::RAX),
                        Implicit::Use(zero, Register::RDX),
                        Implicit::Def(quotient, Register::RAX),
                        Implicit::Def(remainder, Register::RDX)
                    ];
                    self.scalars.extend([quotient, remainder]);
                }
                8 => {
                    let offset = self.random.below(WORDS - 4) as i32 * 8;
                    let loaded = self.b.load_vector(context(offset));
                    self.vectors.push(loaded);
                }
                9 => {
                    let offset = self.random.below(WORDS - 4) as i32 * 8;
                    let vector = self.vector();
                    self.b.store_vector(context(offset), vector);
                }
                _ => {
                    let (left, right) = (self.vector(), self.vector());
                    let sum = self.b.vector(Code::VEX_Vpaddq_ymm_ymm_ymmm256, left, right);
                    self.vectors.push(sum);
                }
            }
        }

        fn steps(&mut self, depth: usize) {
            for _ in 0..self.random.below(25) {
                self.step();
            }
            if depth == 0 {
                return;
            }
            for _ in 0..self.random.below(3) {
                if self.random.below(2) == 0 {
                    self.diamond(depth - 1);
                } else {
                    self.repeat(depth - 1);
                }
                for _ in 0..self.random.below(25) {
                    self.step();
                }
            }
        }

        /// Random values, for parameters.
        fn some(&mut self) -> (Vec<Class>, Vec<Reg>) {
            let scalars: Vec<Reg> = (0..self.random.below(5)).map(|_| self.scalar()).collect();
            let vectors: Vec<Reg> = (0..self.random.below(5)).map(|_| self.vector()).collect();
            let regs: Vec<Reg> = scalars.into_iter().chain(vectors).collect();
            (regs.iter().map(|reg| self.b.function.classes[reg.0 as usize]).collect(), regs)
        }

        /// Random values of the given classes.
        fn alike(&mut self, classes: &[Class]) -> Vec<Reg> {
            classes.iter().map(|class| if *class == Class::Scalar { self.scalar() } else { self.vector() }).collect()
        }

        fn params(&mut self, block: BlockId, classes: &[Class]) {
            for &class in classes {
                let param = self.b.param(block, class);
                if class == Class::Scalar { &mut self.scalars } else { &mut self.vectors }.push(param);
            }
        }

        fn diamond(&mut self, depth: usize) {
            let (x, y) = (self.scalar(), self.scalar());
            self.b.inst(Code::Cmp_r64_rm64, &[read(x), read(y)]);
            let (taken, other) = self.b.branch(Code::Jb_rel32_64, false, false);
            let (scalars, vectors) = (self.scalars.len(), self.vectors.len());
            self.b.at = taken;
            self.b.function.blocks[taken.0 as usize].cold = self.random.below(3) == 0;
            self.steps(depth);
            let (classes, arguments) = self.some();
            let join = self.b.block(false);
            self.b.jump(join, &arguments);
            self.scalars.truncate(scalars);
            self.vectors.truncate(vectors);
            self.b.at = other;
            if self.random.below(3) > 0 {
                self.steps(depth);
            }
            let arguments = self.alike(&classes);
            self.b.jump(join, &arguments);
            self.scalars.truncate(scalars);
            self.vectors.truncate(vectors);
            self.b.at = join;
            self.params(join, &classes);
        }

        fn repeat(&mut self, depth: usize) {
            let trips = 1 + self.random.below(3) as i64;
            let count = self.b.constant(trips);
            let header = self.b.block(false);
            let (classes, mut arguments) = self.some();
            arguments.push(count);
            self.b.jump(header, &arguments);
            self.b.at = header;
            self.params(header, &classes);
            let count = self.b.param(header, Class::Scalar);
            self.steps(depth);
            let mut arguments = self.alike(&classes);
            let next = self.b.reg(Class::Scalar);
            self.b.inst(Code::Sub_rm64_imm8, &[update(count, next), Operand::Byte(1)]);
            let (again, exit) = self.b.branch(Code::Jne_rel32_64, false, false);
            self.b.at = again;
            arguments.push(next);
            self.b.jump(header, &arguments);
            self.b.at = exit;
        }
    }

    type Value = [u64; 4];

    /// Does what a function does, one instruction after the other.
    fn interpret(function: &Function, words: &mut [u64]) {
        let mut regs: Vec<Value> = vec![[0; 4]; function.classes.len()];
        let mut less = false;
        let mut zero = false;
        let mut block = 0;
        loop {
            for inst in &function.blocks[block].insts {
                let reads: Vec<Value> = {
                    let mut reads = vec![];
                    inst.reads(|reg| reads.push(regs[reg.0 as usize]));
                    reads
                };
                let word = inst.operands.iter().find_map(|operand| match operand {
                    Operand::Memory(address) => Some(address.displacement as usize / 8),
                    _ => None,
                });
                let scalar = |position: usize| reads[position][0];
                let one = |value: u64| vec![[value, 0, 0, 0]];
                let results: Vec<Value> = match inst.code {
                    Code::Mov_r64_imm64 => match inst.operands[1] {
                        Operand::Qword(value) => one(value as u64),
                        _ => unreachable!(),
                    },
                    Code::Mov_r64_rm64 => one(words[word.unwrap()]),
                    Code::Mov_rm64_r64 => {
                        words[word.unwrap()] = scalar(0);
                        vec![]
                    }
                    Code::Add_r64_rm64 => one(scalar(0).wrapping_add(scalar(1))),
                    Code::Imul_r64_rm64 => one(scalar(0).wrapping_mul(scalar(1))),
                    Code::Cmp_r64_rm64 => {
                        less = scalar(0) < scalar(1);
                        vec![]
                    }
                    Code::Cmovb_r64_rm64 => one(if less { scalar(1) } else { scalar(0) }),
                    Code::Shl_rm64_CL => one(scalar(0) << (scalar(1) & 63)),
                    Code::Or_rm64_imm8 => one(scalar(0) | 1),
                    Code::Div_rm64 => {
                        vec![[scalar(1) / scalar(0), 0, 0, 0], [scalar(1) % scalar(0), 0, 0, 0]]
                    }
                    Code::Sub_rm64_imm8 => {
                        zero = scalar(0) == 1;
                        one(scalar(0).wrapping_sub(1))
                    }
                    Code::VEX_Vmovdqu_ymm_ymmm256 => {
                        vec![words[word.unwrap()..][..4].try_into().unwrap()]
                    }
                    Code::VEX_Vmovdqu_ymmm256_ymm => {
                        words[word.unwrap()..][..4].copy_from_slice(&reads[0]);
                        vec![]
                    }
                    Code::VEX_Vpaddq_ymm_ymm_ymmm256 => {
                        vec![std::array::from_fn(|lane| reads[0][lane].wrapping_add(reads[1][lane]))]
                    }
                    other => panic!("{other:?}"),
                };
                let mut results = results.into_iter();
                inst.writes(|reg| regs[reg.0 as usize] = results.next().unwrap());
            }
            match &function.blocks[block].end {
                End::Jump(edge) => {
                    let values: Vec<Value> = edge.arguments.iter().map(|reg| regs[reg.0 as usize]).collect();
                    block = edge.to.0 as usize;
                    for (param, value) in function.blocks[block].params.iter().zip(values) {
                        regs[param.0 as usize] = value;
                    }
                }
                End::Branch { code, taken, other } => {
                    let holds = if *code == Code::Jb_rel32_64 { less } else { zero != (*code == Code::Jne_rel32_64) };
                    block = if holds { taken } else { other }.0 as usize;
                }
                End::Return => return,
                End::Open => unreachable!(),
            }
        }
    }

    #[test]
    fn random_functions() {
        if !has_avx2() {
            return;
        }
        let mut assembler = Assembler::default();
        for seed in 0..400 {
            // Both ways to choose registers.
            assembler.allocator.fast_above = if seed % 4 == 0 { 0 } else { usize::MAX };
            let mut generator = Generator { b: Builder::new(), random: Random(seed), scalars: vec![], vectors: vec![] };
            for i in 0..4 + generator.random.below(20) {
                let scalar = generator.b.load(i as i32 * 8);
                generator.scalars.push(scalar);
                let vector = generator.b.load_vector(context(i as i32 * 8));
                generator.vectors.push(vector);
            }
            generator.steps(3);
            for offset in 0..WORDS / 2 {
                let scalar = generator.scalar();
                generator.b.store(offset as i32 * 8, scalar);
            }
            for row in 4..8 {
                let vector = generator.vector();
                generator.b.store_vector(context(row * 32), vector);
            }
            generator.b.ret();
            let mut function = generator.b.0.function;

            let words: [u64; WORDS] = std::array::from_fn(|i| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut expected = words;
            interpret(&function, &mut expected);
            // These instructions cannot name the upper registers of a wide function, only moves can.
            let mut wide = Function { wide: true, ..function.clone() };
            assembler.assemble(&mut wide).unwrap();
            let encoded = assembler.assemble(&mut function).unwrap();
            let code = Executable::new(&encoded.bytes).unwrap();
            let mut actual = words;
            // SAFETY: the function accesses only the words.
            unsafe { code.entry()(actual.as_mut_ptr().cast()) };
            assert_eq!(actual, expected, "seed {seed}\n{}", listing(&encoded, |_| None));
        }
    }

    #[test]
    fn unreachable_blocks_go() {
        let mut b = Builder::new();
        let x = b.load(0);
        let (lost, last) = (b.block(false), b.block(false));
        b.jump(last, &[x]);
        let param = b.param(last, Class::Scalar);
        b.at = lost;
        let y = b.load(8);
        b.jump(last, &[y]);
        b.at = last;
        b.store(8, param);
        b.ret();
        prune(&mut b.function);
        assert_eq!(b.function.blocks.len(), 2);
        let mut words = [3, 4];
        run(b.0.function, &mut words);
        assert_eq!(words, [3, 3]);
    }

    #[test]
    fn distances_of_jumps() {
        // Bodies around the length at which jumps over them need 32 bits.
        for length in 20..50 {
            let mut b = Builder::new();
            let x = b.load(0);
            b.inst(Code::Cmp_rm64_imm8, &[read(x), Operand::Byte(1)]);
            let (over, through) = b.branch(Code::Je_rel32_64, false, false);
            let join = b.block(false);
            b.at = through;
            for _ in 0..length {
                b.inst(Code::Inc_rm64, &[context(8)]).effect = true;
            }
            b.jump(join, &[]);
            b.at = over;
            b.jump(join, &[]);
            b.at = join;
            b.ret();
            for (x, expected) in [(1, 0), (2, length)] {
                let mut words = [x, 0];
                run(b.function.clone(), &mut words);
                assert_eq!(words, [x, expected]);
            }
        }
    }
}
