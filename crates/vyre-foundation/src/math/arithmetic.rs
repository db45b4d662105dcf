//! Abstract arithmetic of the math library: f32, u32 and bool values, and the operations on them that its functions use.
//!
//! The functions are generic over [`Arithmetic`], which has two implementations: [`Direct`] evaluates on the host, and
//! [`Emitter`] appends instructions to a program. A row of the table below defines an operation in both.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use crate::ir::{BlockId, InstId, Program, Pure, Scalar, Span, ValueId};

type F = f32;
type U = u32;
type B = bool;

/// Evaluation on the host.
pub(crate) struct Direct;

/// Emission of instructions at the end of a block, all with the span of the math function that they expand.
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
    fn push<R: Scalar>(&self, op: Pure, operands: &[ValueId]) -> ValueId {
        let mut program = self.program.borrow_mut();
        let inst: InstId = program.push(self.block, op, operands.iter().copied(), &[R::TYPE], [], self.span);
        program.inst(inst).results[0]
    }
}

macro_rules! arithmetic {
    ($($name:ident($($arg:ident: $ty:ident),+) -> $result:ident = $op:ident, $value:expr;)*) => {
        /// Interpretation of the library: values of the three types, and operations of the op table on them.
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
                    self.push::<$result>(Pure::$op, &[$($arg),+])
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
    ($($(#[doc = $doc:literal])+ $handle:ident($value:ident);)*) => { $(
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
    Real(F);
    /// A u32 of an interpretation.
    Word(U);
    /// A bool of an interpretation.
    Truth(B);
}

macro_rules! literals {
    ($($handle:ident($value:ident), $host:ty: $operand:ident, $into:ident = $literal:ident;)*) => { $(
        /// Operand: a value of the interpretation, or a literal of the host.
        pub(crate) trait $operand<'m, M: Arithmetic> {
            fn $into(self, m: &'m M) -> M::$value;
        }

        impl<'m, M: Arithmetic> $operand<'m, M> for $handle<'m, M> {
            #[inline(always)]
            fn $into(self, _: &'m M) -> M::$value {
                self.value
            }
        }

        impl<'m, M: Arithmetic> $operand<'m, M> for $host {
            #[inline(always)]
            fn $into(self, m: &'m M) -> M::$value {
                m.$literal(self)
            }
        }
    )* };
}
literals! {
    Real(F), f32: IntoReal, into_real = real;
    Word(U), u32: IntoWord, into_word = word;
}

/// Implements Rust operators by operations of [`Arithmetic`].
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
    ($($handle:ident: $op:ident $method:ident($($other:ident)?) = $name:ident;)*) => { $(
        impl<M: Arithmetic> $op for $handle<'_, M> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, $($other: Self)?) -> Self {
                $handle { m: self.m, value: self.m.$name(self.value, $($other.value)?) }
            }
        }
    )* };
}
operators! {
    Real, IntoReal, into_real: Add add = add, Sub sub = sub, Mul mul = mul, Div div = div;
    Word, IntoWord, into_word: Add add = word_add, Sub sub = word_sub, Mul mul = word_mul, BitAnd bitand = word_and,
        BitOr bitor = word_or, BitXor bitxor = word_xor, Shl shl = shl, Shr shr = shr;
}
operators! {
    Real: Neg neg() = neg;
    Truth: BitAnd bitand(other) = both;
    Truth: BitOr bitor(other) = either;
    Truth: Not not() = not;
}

/// Implements methods by operations of [`Arithmetic`].
macro_rules! methods {
    ($($handle:ident { $(
        $(#[doc = $doc:literal])* $method:ident($($arg:ident: $operand:ident, $as:ident),*) -> $result:ident = $name:ident;
    )* })*) => { $(
        impl<'m, M: Arithmetic> $handle<'m, M> { $(
            $(#[doc = $doc])*
            #[inline(always)]
            pub(super) fn $method(self, $($arg: impl $operand<'m, M>),*) -> $result<'m, M> {
                let m = self.m;
                $result { m, value: m.$name(self.value, $($arg.$as(m)),*) }
            }
        )* }
    )* };
}
methods! {
    Real {
        /// `self × b + c`, rounded once.
        fma(b: IntoReal, into_real, c: IntoReal, into_real) -> Real = fma;
        abs() -> Real = abs;
        sqrt() -> Real = sqrt;
        /// The nearest integral number.
        round() -> Real = round;
        eq(b: IntoReal, into_real) -> Truth = eq;
        ne(b: IntoReal, into_real) -> Truth = ne;
        lt(b: IntoReal, into_real) -> Truth = lt;
        le(b: IntoReal, into_real) -> Truth = le;
        bits() -> Word = bits;
        /// Converts a number ≥ 0 to an integer, rounding down.
        truncate() -> Word = truncate;
    }
    Word {
        of_bits() -> Real = of_bits;
        /// Converts an integer to the nearest f32.
        convert() -> Real = convert;
        /// High word of the product.
        mul_high(b: IntoWord, into_word) -> Word = mul_high;
        eq(b: IntoWord, into_word) -> Truth = word_eq;
        lt(b: IntoWord, into_word) -> Truth = word_lt;
    }
    Truth {
        choose(yes: IntoReal, into_real, no: IntoReal, into_real) -> Real = choose;
        choose_word(yes: IntoWord, into_word, no: IntoWord, into_word) -> Word = choose_word;
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

    #[inline(always)]
    pub(super) fn is_nan(self) -> Truth<'m, M> {
        self.ne(self)
    }

    /// Minimum of the number and a limit. NaNs propagate.
    #[inline(always)]
    pub(super) fn at_most(self, limit: f32) -> Self {
        self.lit(limit).lt(self).choose(limit, self)
    }

    /// Maximum of the number and a limit. NaNs propagate.
    #[inline(always)]
    pub(super) fn at_least(self, limit: f32) -> Self {
        self.lt(limit).choose(limit, self)
    }

    /// Sign bit; all other bits are 0.
    #[inline(always)]
    pub(super) fn sign(self) -> Word<'m, M> {
        self.bits() & 0x8000_0000
    }

    /// Negates the number if `sign` has the sign bit.
    #[inline(always)]
    pub(super) fn flipped(self, sign: Word<'m, M>) -> Self {
        (self.bits() ^ sign).of_bits()
    }
}

impl<M: Arithmetic> Word<'_, M> {
    /// A literal.
    #[inline(always)]
    pub(super) fn lit(self, value: u32) -> Self {
        Word { m: self.m, value: self.m.word(value) }
    }
}
