//! Backend pipeline, from machine code over virtual registers to bytes.

use super::Function;
use super::allocate::Allocator;
use super::dead_code::eliminate_dead_code;
use super::encode::{Encoded, Encoder};
use super::fuse_loads::fuse;
use super::sink_to_slow_path::{sink_to_slow_path, split_cold_ranges};
use crate::x86::Error;

/// Assembler, with buffers reused between functions.
#[derive(Default)]
pub(crate) struct Assembler {
    allocator: Allocator,
    encoder: Encoder,
}

impl Assembler {
    /// Assembles a function, after eliminating its dead code. Fails on a bug of the instruction selection, or a
    /// function that is too large.
    pub(crate) fn assemble(&mut self, function: &mut Function) -> Result<Encoded, Error> {
        eliminate_dead_code(function);
        sink_to_slow_path(function);
        fuse(function);
        split_cold_ranges(function);
        let registers = self.allocator.allocate(function)?;
        self.encoder.encode(function, &registers)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use iced_x86::Code;
    use vyre_foundation::validate;
    use vyre_testkit::{Features, generate};

    use super::super::emit::{Emit, at};
    use super::super::listing::listing;
    use super::super::pages::Executable;
    use super::super::{Address, Base, BlockId, Class, Operand, Reg, Width};
    use super::*;
    use crate::device::legal;
    use crate::x86::Level;
    use crate::x86::lower::lower;
    use crate::x86::plan::Plan;

    fn load(b: &mut Emit, offset: i32) -> Reg {
        b.load_scalar(at(Base::Context, offset), Width::Qword)
    }

    fn store(b: &mut Emit, offset: i32, reg: Reg) {
        b.store_scalar(at(Base::Context, offset), reg, Width::Qword);
    }

    /// Runs a function with `words` as its context.
    fn run(function: &Function, words: &mut [u64]) {
        let encoded = Assembler::default().assemble(&mut function.clone()).unwrap();
        let code = Executable::new(&encoded.bytes).unwrap();
        // SAFETY: the functions of the tests access only the words they are given.
        unsafe { code.entry()(words.as_mut_ptr().cast()) };
    }

    #[test]
    fn loop_with_parameters() {
        // Sum and product of 1..=n, in parameters that are swapped every trip.
        let mut b = Emit::new(false);
        let (n, zero, one) = (load(&mut b, 0), b.immediate(0), b.immediate(1));
        let header = b.block(false);
        // `dead` is read only by its own update.
        let [sum, product, i, dead] = [(); 4].map(|()| b.param(header, Class::Scalar));
        b.jump(header, &[zero, one, n, n]);
        b.at = header;
        let next_sum = b.s2(Code::Add_r64_rm64, Width::Qword, sum, i);
        let next_product = b.s2(Code::Imul_r64_rm64, Width::Qword, product, i);
        let next_dead = b.s2(Code::Imul_r64_rm64, Width::Qword, dead, i);
        let next = b.s1i(Code::Sub_rm64_imm8, Width::Qword, i, Operand::Byte(1));
        let (again, exit) = b.branch(Code::Jne_rel32_64, false, false);
        b.at = again;
        // Swaps sum and product.
        b.jump(header, &[next_product, next_sum, next, next_dead]);
        b.at = exit;
        store(&mut b, 8, next_sum);
        store(&mut b, 16, next_product);
        b.ret();
        let mut function = b.function.clone();
        eliminate_dead_code(&mut function);
        assert_eq!(function.blocks[header.0 as usize].params.len(), 3);
        let mut words = [5, 0, 0];
        run(&b.function, &mut words);
        let (mut sum, mut product) = (0_u64, 1_u64);
        for i in (1..=5).rev() {
            let (s, p) = (sum + i, product * i);
            (sum, product) = if i == 1 { (s, p) } else { (p, s) };
        }
        assert_eq!(words, [5, sum, product]);
    }

    #[test]
    fn branches_constants_and_scratch() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        let mut b = Emit::new(false);
        b.origin = 7;
        b.function.pool = (0..64_u8).collect();
        b.function.scratch = 96;
        let (x, y) = (load(&mut b, 0), load(&mut b, 8));
        let constant = b.load(at(Base::Pool, 32));
        let sum = b.v2((Code::VEX_Vpaddb_ymm_ymm_ymmm256, Code::INVALID), constant, at(Base::Pool, 0));
        b.store(at(Base::Scratch, 64), sum);
        // Dead, and so is the comparison that sets its flags.
        b.cmp(y, x, Width::Qword);
        b.s2(Code::Cmova_r64_rm64, Width::Qword, x, y);
        b.cmp(x, y, Width::Qword);
        let max = b.s2(Code::Cmovb_r64_rm64, Width::Qword, x, y);
        b.cmp(x, y, Width::Qword);
        let (below, above) = b.branch(Code::Jb_rel32_64, true, false);
        let join = b.block(false);
        let result = b.param(join, Class::Scalar);
        for (block, number) in [(below, 1), (above, 2)] {
            b.at = block;
            let number = b.immediate(number);
            b.jump(join, &[number]);
        }
        b.at = join;
        store(&mut b, 16, result);
        store(&mut b, 24, max);
        let index = b.immediate(8);
        let address = Address { base: Base::Scratch, index: Some((index, Width::Qword, 2)), displacement: 48 };
        let scratch = b.load_scalar(address, Width::Qword);
        store(&mut b, 32, scratch);
        b.ret();
        for (x, y) in [(3, 4), (4, 3), (4, 4)] {
            let mut words = [x, y, 0, 0, 0];
            run(&b.function, &mut words);
            let bytes = u64::from_le_bytes(std::array::from_fn(|i| i as u8 * 2 + 32));
            assert_eq!(words, [x, y, if x < y { 1 } else { 2 }, x.max(y), bytes]);
        }
        let encoded = Assembler::default().assemble(&mut b.function).unwrap();
        let text = listing(&encoded, |origin| Some(format!("origin {origin}")));
        assert_eq!(text.matches("cmp ").count(), 2, "{text}");
        for expected in [", [.pool+0x0]\n", "    0x0020: 23222120 27262524", "  ; origin 7\n", ".L1:\n"] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn floating_point_state_is_set_and_restored() {
        let mut b = Emit::new(false);
        b.push(Code::VEX_Vstmxcsr_m32, &[Operand::Memory(at(Base::Context, 0))], true);
        b.ret();
        let mut words = [0, 0];
        let mut state = 0_u32;
        // Rounds down and flushes denormals.
        let (odd, default) = (0xbf80_u32, 0x1f80_u32);
        // SAFETY: changes the floating-point state of this thread until it is restored below.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const odd) };
        run(&b.function, &mut words);
        // SAFETY: stores to the variable, and restores the floating-point state.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut state);
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const default);
        }
        assert_eq!((words[0], state), (0x1f80, odd));
    }

    #[test]
    fn large_frames() {
        let mut b = Emit::new(false);
        b.function.scratch = 100_000;
        let x = load(&mut b, 0);
        b.store_scalar(at(Base::Scratch, 99_992), x, Width::Qword);
        b.store_scalar(at(Base::Scratch, 0), x, Width::Qword);
        let y = b.load_scalar(at(Base::Scratch, 99_992), Width::Qword);
        store(&mut b, 8, y);
        b.ret();
        let mut words = [17, 0];
        run(&b.function, &mut words);
        assert_eq!(words, [17, 17]);
    }

    #[test]
    fn malformed_functions_are_errors() {
        let mut assembler = Assembler::default();
        let mut open = Emit::new(false).function;
        assert!(matches!(assembler.assemble(&mut open), Err(Error::OpenBlock(BlockId(0)))));

        let mut b = Emit::new(false);
        let undefined = b.reg(Class::Scalar);
        store(&mut b, 0, undefined);
        b.ret();
        assert!(matches!(assembler.assemble(&mut b.function), Err(Error::Registers(_))));

        let mut b = Emit::new(false);
        let x = load(&mut b, 0);
        let operands = [Operand::Memory(at(Base::Context, 0)), Operand::Use(x, Width::Dword)];
        b.push(Code::Mov_rm64_r64, &operands, true);
        b.ret();
        assert!(matches!(assembler.assemble(&mut b.function), Err(Error::Inst { code: Code::Mov_rm64_r64, .. })));
    }

    /// Symbolic check of both allocators on generated programs.
    #[test]
    fn registers_of_generated_programs() {
        let mut assembler = Assembler::default();
        for seed in 0..150 {
            let program = generate(seed, &Features::default()).program;
            let program = validate::program(program).expect("generated programs are valid");
            let program = legal(&program);
            for level in [Level::Avx2, Level::Avx512] {
                let lowered = lower(&Plan::of(&program, level));
                for fast_above in [0, usize::MAX] {
                    assembler.allocator.fast_above = fast_above;
                    let assembled = assembler.assemble(&mut lowered.function.clone());
                    assert!(assembled.is_ok(), "seed {seed}, {level:?}: {assembled:?}");
                }
            }
        }
    }

    #[test]
    fn unreachable_blocks_are_removed() {
        let mut b = Emit::new(false);
        let x = load(&mut b, 0);
        let (lost, last) = (b.block(false), b.block(false));
        let param = b.param(last, Class::Scalar);
        b.jump(last, &[x]);
        b.at = lost;
        let y = load(&mut b, 8);
        b.jump(last, &[y]);
        b.at = last;
        store(&mut b, 8, param);
        b.ret();
        eliminate_dead_code(&mut b.function);
        assert_eq!(b.function.blocks.len(), 2);
        let mut words = [3, 4];
        run(&b.function, &mut words);
        assert_eq!(words, [3, 3]);
    }

    #[test]
    fn short_and_long_jumps_reach_their_targets() {
        // Body lengths around the limit of 8-bit jumps.
        for length in 20..50 {
            let mut b = Emit::new(false);
            let x = load(&mut b, 0);
            b.cmp_immediate(x, 1, Width::Qword);
            let (over, through) = b.branch(Code::Je_rel32_64, false, false);
            let join = b.block(false);
            b.at = through;
            for _ in 0..length {
                b.push(Code::Inc_rm64, &[Operand::Memory(at(Base::Context, 8))], true);
            }
            b.jump(join, &[]);
            b.at = over;
            b.jump(join, &[]);
            b.at = join;
            b.ret();
            for (x, expected) in [(1, 0), (2, length)] {
                let mut words = [x, 0];
                run(&b.function, &mut words);
                assert_eq!(words, [x, expected]);
            }
        }
    }
}
