//! What the library is written in: reals, words and truths, and the few operations on them that it needs.
//!
//! The functions are generic over [`Arithmetic`]. There are two: [`Direct`] computes, and [`Emitter`] writes instructions.
//! Each row of the table below defines an operation for both, so that they cannot grow apart.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use crate::ir::{BlockId, InstId, Op, Program, Scalar, Span, ValueId};

type F = f32;
type U = u32;
type B = bool;

/// Computes.
pub(crate) struct Direct;

/// Appends instructions to a block of a program, all with the span of what they stand for.
pub(crate) struct Emitter<'p> {
    program: RefCell<&'p mut Program>,
    block: BlockId,
    span: Span,
}

impl<'p> Emitter<'p> {
    pub(crate) fn new(program: &'p mut Program, block: BlockId, span: Span) -> Self {
        Emitter { program: RefCell::new(program), block, span }
    }

    #[inline(never)]
    fn push<R: Scalar>(&self, op: Op, operands: &[ValueId]) -> ValueId {
        let mut program = self.program.borrow_mut();
        let inst: InstId = program.push(self.block, op, operands.iter().copied(), &[R::TYPE], [], self.span);
        program.insts[inst].results[0]
    }
}

macro_rules! arithmetic {
    ($($name:ident($($arg:ident: $ty:ident),+) -> $result:ident = $op:ident, $value:expr;)*) => {
        /// An interpretation of the library: values of the three types, and operations of the op table on them.
        pub(crate) trait Arithmetic: Sized {
            /// An f32.
            type F: Copy;
            /// A u32.
            type U: Copy;
            /// A bool.
            type B: Copy;
            fn real(&self, value: f32) -> Self::F;
            fn word(&self, value: u32) -> Self::U;
            $( fn $name(&self, $($arg: Self::$ty),+) -> Self::$result; )*
        }

        impl Arithmetic for Direct {
            type F = F;
            type U = U;
            type B = B;
            #[inline(always)]
            fn real(&self, value: f32) -> F {
                value
            }
            #[inline(always)]
            fn word(&self, value: u32) -> U {
                value
            }
            $(
                #[inline(always)]
                fn $name(&self, $($arg: $ty),+) -> $result {
                    $value
                }
            )*
        }

        impl Arithmetic for Emitter<'_> {
            type F = ValueId;
            type U = ValueId;
            type B = ValueId;
            fn real(&self, value: f32) -> ValueId {
                self.program.borrow_mut().literal(value)
            }
            fn word(&self, value: u32) -> ValueId {
                self.program.borrow_mut().literal(value)
            }
            $(
                fn $name(&self, $($arg: ValueId),+) -> ValueId {
                    self.push::<$result>(Op::$op, &[$($arg),+])
                }
            )*
        }
    };
}
arithmetic! {
    add(a: F, b: F) -> F = Add, a + b;
    sub(a: F, b: F) -> F = Sub, a - b;
    mul(a: F, b: F) -> F = Mul, a * b;
    div(a: F, b: F) -> F = Div, a / b;
    neg(a: F) -> F = Neg, -a;
    fma(a: F, b: F, c: F) -> F = Fma, a.mul_add(b, c);
    abs(a: F) -> F = Abs, a.abs();
    sqrt(a: F) -> F = Sqrt, a.sqrt();
    round(a: F) -> F = Round, a.round_ties_even();
    eq(a: F, b: F) -> B = Eq, a == b;
    ne(a: F, b: F) -> B = Ne, a != b;
    lt(a: F, b: F) -> B = Lt, a < b;
    le(a: F, b: F) -> B = Le, a <= b;
    choose(condition: B, a: F, b: F) -> F = Select, if condition { a } else { b };
    bits(a: F) -> U = Bitcast, a.to_bits();
    of_bits(a: U) -> F = Bitcast, f32::from_bits(a);
    truncate(a: F) -> U = Cast, a as u32;
    convert(a: U) -> F = Cast, a as f32;
    word_add(a: U, b: U) -> U = Add, a.wrapping_add(b);
    word_sub(a: U, b: U) -> U = Sub, a.wrapping_sub(b);
    word_mul(a: U, b: U) -> U = Mul, a.wrapping_mul(b);
    mul_high(a: U, b: U) -> U = MulHigh, ((u64::from(a) * u64::from(b)) >> 32) as u32;
    word_and(a: U, b: U) -> U = And, a & b;
    word_or(a: U, b: U) -> U = Or, a | b;
    word_xor(a: U, b: U) -> U = Xor, a ^ b;
    shl(a: U, count: U) -> U = Shl, a.wrapping_shl(count);
    shr(a: U, count: U) -> U = Shr, a.wrapping_shr(count);
    word_eq(a: U, b: U) -> B = Eq, a == b;
    word_lt(a: U, b: U) -> B = Lt, a < b;
    choose_word(condition: B, a: U, b: U) -> U = Select, if condition { a } else { b };
    both(a: B, b: B) -> B = And, a & b;
    either(a: B, b: B) -> B = Or, a | b;
    not(a: B) -> B = Not, !a;
}

macro_rules! handles {
    ($($(#[doc = $doc:literal])+ $handle:ident, $value:ident;)*) => { $(
        $(#[doc = $doc])+
        pub(crate) struct $handle<'m, M: Arithmetic> {
            m: &'m M,
            value: M::$value,
        }

        impl<M: Arithmetic> Clone for $handle<'_, M> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<M: Arithmetic> Copy for $handle<'_, M> {}
    )* };
}
handles! {
    /// An f32 of an interpretation.
    Real, F;
    /// A u32 of an interpretation.
    Word, U;
    /// A bool of an interpretation.
    Truth, B;
}

/// What can stand where a real is wanted: one, or a literal.
pub(crate) trait IntoReal<'m, M: Arithmetic> {
    fn into_real(self, m: &'m M) -> M::F;
}

impl<'m, M: Arithmetic> IntoReal<'m, M> for Real<'m, M> {
    #[inline(always)]
    fn into_real(self, _: &'m M) -> M::F {
        self.value
    }
}

impl<'m, M: Arithmetic> IntoReal<'m, M> for f32 {
    #[inline(always)]
    fn into_real(self, m: &'m M) -> M::F {
        m.real(self)
    }
}

/// What can stand where a word is wanted: one, or a literal.
pub(crate) trait IntoWord<'m, M: Arithmetic> {
    fn into_word(self, m: &'m M) -> M::U;
}

impl<'m, M: Arithmetic> IntoWord<'m, M> for Word<'m, M> {
    #[inline(always)]
    fn into_word(self, _: &'m M) -> M::U {
        self.value
    }
}

impl<'m, M: Arithmetic> IntoWord<'m, M> for u32 {
    #[inline(always)]
    fn into_word(self, m: &'m M) -> M::U {
        m.word(self)
    }
}

macro_rules! operators {
    ($($handle:ident, $operand:ident, $as:ident: $($op:ident $method:ident = $name:ident),+;)*) => { $( $(
        impl<'m, M: Arithmetic, R: $operand<'m, M>> $op<R> for $handle<'m, M> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: R) -> Self {
                let m = self.m;
                $handle { m, value: m.$name(self.value, other.$as(m)) }
            }
        }
    )+ )* };
}
operators! {
    Real, IntoReal, into_real: Add add = add, Sub sub = sub, Mul mul = mul, Div div = div;
    Word, IntoWord, into_word: Add add = word_add, Sub sub = word_sub, Mul mul = word_mul, BitAnd bitand = word_and,
        BitOr bitor = word_or, BitXor bitxor = word_xor, Shl shl = shl, Shr shr = shr;
}

impl<M: Arithmetic> Neg for Real<'_, M> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Real { m: self.m, value: self.m.neg(self.value) }
    }
}

impl<'m, M: Arithmetic> Real<'m, M> {
    #[inline(always)]
    pub(crate) fn new(m: &'m M, value: M::F) -> Self {
        Real { m, value }
    }

    #[inline(always)]
    pub(crate) fn value(self) -> M::F {
        self.value
    }

    /// A literal.
    #[inline(always)]
    pub(super) fn lit(self, value: f32) -> Self {
        Real { m: self.m, value: self.m.real(value) }
    }

    /// `self × b + c`, rounded once.
    #[inline(always)]
    pub(super) fn fma(self, b: impl IntoReal<'m, M>, c: impl IntoReal<'m, M>) -> Self {
        let m = self.m;
        Real { m, value: m.fma(self.value, b.into_real(m), c.into_real(m)) }
    }

    #[inline(always)]
    pub(super) fn abs(self) -> Self {
        Real { m: self.m, value: self.m.abs(self.value) }
    }

    #[inline(always)]
    pub(super) fn sqrt(self) -> Self {
        Real { m: self.m, value: self.m.sqrt(self.value) }
    }

    /// The nearest integral number.
    #[inline(always)]
    pub(super) fn round(self) -> Self {
        Real { m: self.m, value: self.m.round(self.value) }
    }

    #[inline(always)]
    pub(super) fn eq(self, b: impl IntoReal<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.eq(self.value, b.into_real(self.m)) }
    }

    #[inline(always)]
    pub(super) fn ne(self, b: impl IntoReal<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.ne(self.value, b.into_real(self.m)) }
    }

    #[inline(always)]
    pub(super) fn lt(self, b: impl IntoReal<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.lt(self.value, b.into_real(self.m)) }
    }

    #[inline(always)]
    pub(super) fn le(self, b: impl IntoReal<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.le(self.value, b.into_real(self.m)) }
    }

    #[inline(always)]
    pub(super) fn is_nan(self) -> Truth<'m, M> {
        self.ne(self)
    }

    /// The number, or a limit that it is above. A NaN stays one.
    #[inline(always)]
    pub(super) fn at_most(self, limit: f32) -> Self {
        self.lit(limit).lt(self).choose(limit, self)
    }

    /// The number, or a limit that it is below. A NaN stays one.
    #[inline(always)]
    pub(super) fn at_least(self, limit: f32) -> Self {
        self.lt(limit).choose(limit, self)
    }

    #[inline(always)]
    pub(super) fn bits(self) -> Word<'m, M> {
        Word { m: self.m, value: self.m.bits(self.value) }
    }

    /// As an integer; the number is at least 0.
    #[inline(always)]
    pub(super) fn truncate(self) -> Word<'m, M> {
        Word { m: self.m, value: self.m.truncate(self.value) }
    }

    /// The sign bit alone.
    #[inline(always)]
    pub(super) fn sign(self) -> Word<'m, M> {
        self.bits() & 0x8000_0000
    }

    /// With its sign flipped where `sign` has the sign bit.
    #[inline(always)]
    pub(super) fn flipped(self, sign: Word<'m, M>) -> Self {
        (self.bits() ^ sign).of_bits()
    }
}

impl<'m, M: Arithmetic> Word<'m, M> {
    /// A literal.
    #[inline(always)]
    pub(super) fn lit(self, value: u32) -> Self {
        Word { m: self.m, value: self.m.word(value) }
    }

    #[inline(always)]
    pub(super) fn of_bits(self) -> Real<'m, M> {
        Real { m: self.m, value: self.m.of_bits(self.value) }
    }

    /// As the nearest real.
    #[inline(always)]
    pub(super) fn convert(self) -> Real<'m, M> {
        Real { m: self.m, value: self.m.convert(self.value) }
    }

    /// High word of the product.
    #[inline(always)]
    pub(super) fn mul_high(self, b: impl IntoWord<'m, M>) -> Self {
        Word { m: self.m, value: self.m.mul_high(self.value, b.into_word(self.m)) }
    }

    #[inline(always)]
    pub(super) fn eq(self, b: impl IntoWord<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.word_eq(self.value, b.into_word(self.m)) }
    }

    #[inline(always)]
    pub(super) fn lt(self, b: impl IntoWord<'m, M>) -> Truth<'m, M> {
        Truth { m: self.m, value: self.m.word_lt(self.value, b.into_word(self.m)) }
    }
}

impl<'m, M: Arithmetic> Truth<'m, M> {
    #[inline(always)]
    pub(super) fn choose(self, yes: impl IntoReal<'m, M>, no: impl IntoReal<'m, M>) -> Real<'m, M> {
        let m = self.m;
        Real { m, value: m.choose(self.value, yes.into_real(m), no.into_real(m)) }
    }

    #[inline(always)]
    pub(super) fn choose_word(self, yes: impl IntoWord<'m, M>, no: impl IntoWord<'m, M>) -> Word<'m, M> {
        let m = self.m;
        Word { m, value: m.choose_word(self.value, yes.into_word(m), no.into_word(m)) }
    }
}

impl<M: Arithmetic> BitAnd for Truth<'_, M> {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Truth { m: self.m, value: self.m.both(self.value, other.value) }
    }
}

impl<M: Arithmetic> BitOr for Truth<'_, M> {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Truth { m: self.m, value: self.m.either(self.value, other.value) }
    }
}

impl<M: Arithmetic> Not for Truth<'_, M> {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Truth { m: self.m, value: self.m.not(self.value) }
    }
}
