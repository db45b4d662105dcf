//! Abstract arithmetic in which the library is written: floats of one precision, words of the same width, bools, and the operations that
//! the functions need.
//!
//! The functions are generic over [`Arithmetic`], which has two interpretations for each [`Precision`]: [`Direct`] computes, and
//! [`Emitter`] appends instructions. A row of the table below defines an operation for both.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use super::tables::Tables;
use crate::ir::{BlockId, InstId, Program, Pure, Scalar, Span, Type, ValueId};

/// A float type in which functions are computed.
pub(crate) trait Precision: Scalar + Tables {
    /// Unsigned integer of the same width.
    type Word: Scalar;
    /// Number of bits of the fraction.
    const FRACTION: u32;
    /// Exponent of the largest numbers.
    const GREATEST: i32;
    /// A number that the type represents exactly.
    fn exactly(value: f32) -> Self;
    fn word(value: u64) -> Self::Word;
}

impl Precision for f32 {
    type Word = u32;
    const FRACTION: u32 = 23;
    const GREATEST: i32 = 127;
    #[inline(always)]
    fn exactly(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn word(value: u64) -> u32 {
        value as u32
    }
}

impl Precision for f64 {
    type Word = u64;
    const FRACTION: u32 = 52;
    const GREATEST: i32 = 1023;
    #[inline(always)]
    fn exactly(value: f32) -> f64 {
        f64::from(value)
    }
    #[inline(always)]
    fn word(value: u64) -> u64 {
        value
    }
}

/// Evaluation.
pub(crate) struct Direct<P>(PhantomData<P>);

impl<P> Direct<P> {
    pub(crate) const fn new() -> Self {
        Direct(PhantomData)
    }
}

/// Emission: appends instructions to a block of a program, with the span of the function that they expand.
pub(crate) struct Emitter<'p, P> {
    program: RefCell<&'p mut Program>,
    block: BlockId,
    span: Span,
    precision: PhantomData<P>,
}

impl<'p, P> Emitter<'p, P> {
    pub(crate) fn new(program: &'p mut Program, block: BlockId, span: Span) -> Self {
        Emitter { program: RefCell::new(program), block, span, precision: PhantomData }
    }

    #[inline(never)]
    fn push(&self, op: Pure, operands: &[ValueId], result: Type) -> ValueId {
        let mut program = self.program.borrow_mut();
        if op == Pure::Cast && program.ty(operands[0]) == result {
            return operands[0];
        }
        let inst: InstId = program.push(self.block, op, operands.iter().copied(), &[result], [], self.span);
        program.inst(inst).results[0]
    }
}

macro_rules! arithmetic {
    ($($name:ident($($arg:ident: $ty:ident),+) -> $result:ident = $op:ident, $value:expr;)*) => {
        /// An interpretation of the library: values of four types, and operations of the op table on them.
        pub(crate) trait Arithmetic: Sized {
            /// Precision of the floats.
            type P: Precision;
            /// A float.
            type F: Copy;
            /// A word.
            type U: Copy;
            /// A u32: the number of positions of a shift.
            type C: Copy;
            /// A bool.
            type B: Copy;
            fn real(&self, value: Self::P) -> Self::F;
            fn word(&self, value: <Self::P as Precision>::Word) -> Self::U;
            fn count(&self, value: u32) -> Self::C;
            $( fn $name(&self, $($arg: Self::$ty),+) -> Self::$result; )*
        }

        arithmetic!(@direct f32, u32, u64; $($name($($arg: $ty),+) -> $result = $value;)*);
        arithmetic!(@direct f64, u64, u128; $($name($($arg: $ty),+) -> $result = $value;)*);

        impl<P: Precision> Arithmetic for Emitter<'_, P> {
            type P = P;
            type F = ValueId;
            type U = ValueId;
            type C = ValueId;
            type B = ValueId;
            fn real(&self, value: P) -> ValueId {
                self.program.borrow_mut().literal(crate::ir::Literal { ty: P::TYPE, bits: value.to_bits() })
            }
            fn word(&self, value: P::Word) -> ValueId {
                self.program.borrow_mut().literal(crate::ir::Literal { ty: P::Word::TYPE, bits: value.to_bits() })
            }
            fn count(&self, value: u32) -> ValueId {
                self.program.borrow_mut().literal(value)
            }
            $(
                fn $name(&self, $($arg: ValueId),+) -> ValueId {
                    self.push(Pure::$op, &[$($arg),+], arithmetic!(@type $result))
                }
            )*
        }
    };
    (@direct $float:ty, $word:ty, $product:ty; $($name:ident($($arg:ident: $ty:ident),+) -> $result:ident = $value:expr;)*) => {
        const _: () = {
            type F = $float;
            type U = $word;
            type C = u32;
            type B = bool;
            #[allow(dead_code)] // Only `mul_high` names it.
            type Product = $product;
            impl Arithmetic for Direct<F> {
                type P = F;
                type F = F;
                type U = U;
                type C = C;
                type B = B;
                #[inline(always)]
                fn real(&self, value: F) -> F {
                    value
                }
                #[inline(always)]
                fn word(&self, value: U) -> U {
                    value
                }
                #[inline(always)]
                fn count(&self, value: u32) -> u32 {
                    value
                }
                $(
                    #[inline(always)]
                    fn $name(&self, $($arg: $ty),+) -> $result {
                        $value
                    }
                )*
            }
        };
    };
    (@type F) => { P::TYPE };
    (@type U) => { P::Word::TYPE };
    (@type C) => { Type::U32 };
    (@type B) => { Type::Bool };
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
    of_bits(a: U) -> F = Bitcast, F::from_bits(a);
    convert(a: U) -> F = Cast, a as F;
    count_of(a: U) -> C = Cast, a as C;
    word_add(a: U, b: U) -> U = Add, a.wrapping_add(b);
    word_sub(a: U, b: U) -> U = Sub, a.wrapping_sub(b);
    word_mul(a: U, b: U) -> U = Mul, a.wrapping_mul(b);
    mul_high(a: U, b: U) -> U = MulHigh, ((Product::from(a) * Product::from(b)) >> U::BITS) as U;
    word_and(a: U, b: U) -> U = And, a & b;
    word_or(a: U, b: U) -> U = Or, a | b;
    word_xor(a: U, b: U) -> U = Xor, a ^ b;
    shl(a: U, count: C) -> U = Shl, a.wrapping_shl(count);
    shr(a: U, count: C) -> U = Shr, a.wrapping_shr(count);
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
    /// A float of an interpretation.
    Real(F);
    /// A word of an interpretation.
    Word(U);
    /// A bool of an interpretation.
    Truth(B);
}

/// A constant of the precision, from [`Tables`] or its `Word`.
#[derive(Clone, Copy)]
pub(crate) struct Constant<T>(pub(crate) T);

macro_rules! operands {
    ($($handle:ident($value:ident): $operand:ident, $into:ident;)*) => { $(
        /// An operand of such a type: a value or a literal.
        pub(crate) trait $operand<'m, M: Arithmetic> {
            fn $into(self, m: &'m M) -> M::$value;
        }

        impl<'m, M: Arithmetic> $operand<'m, M> for $handle<'m, M> {
            #[inline(always)]
            fn $into(self, _: &'m M) -> M::$value {
                self.value
            }
        }
    )* };
}
operands! {
    Real(F): IntoReal, into_real;
    Word(U): IntoWord, into_word;
}

/// Count of a shift.
#[derive(Clone, Copy)]
pub(crate) struct Count<C>(C);

/// Count of a shift, or a literal.
pub(crate) trait IntoCount<'m, M: Arithmetic> {
    fn into_count(self, m: &'m M) -> M::C;
}

impl<'m, M: Arithmetic> IntoCount<'m, M> for Count<M::C> {
    #[inline(always)]
    fn into_count(self, _: &'m M) -> M::C {
        self.0
    }
}

impl<'m, M: Arithmetic> IntoReal<'m, M> for f32 {
    #[inline(always)]
    fn into_real(self, m: &'m M) -> M::F {
        m.real(M::P::exactly(self))
    }
}

impl<'m, M: Arithmetic> IntoReal<'m, M> for Constant<M::P> {
    #[inline(always)]
    fn into_real(self, m: &'m M) -> M::F {
        m.real(self.0)
    }
}

impl<'m, M: Arithmetic> IntoWord<'m, M> for u64 {
    #[inline(always)]
    fn into_word(self, m: &'m M) -> M::U {
        m.word(M::P::word(self))
    }
}

impl<'m, M: Arithmetic> IntoCount<'m, M> for u32 {
    #[inline(always)]
    fn into_count(self, m: &'m M) -> M::C {
        m.count(self)
    }
}

/// Rust operators, one per operation.
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
        BitOr bitor = word_or, BitXor bitxor = word_xor;
    Word, IntoCount, into_count: Shl shl = shl, Shr shr = shr;
}
operators! {
    Real: Neg neg() = neg;
    Truth: BitAnd bitand(other) = both;
    Truth: BitOr bitor(other) = either;
    Truth: Not not() = not;
}

/// Methods, one per operation.
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
        /// Nearest integral number, ties to even.
        round() -> Real = round;
        eq(b: IntoReal, into_real) -> Truth = eq;
        ne(b: IntoReal, into_real) -> Truth = ne;
        lt(b: IntoReal, into_real) -> Truth = lt;
        le(b: IntoReal, into_real) -> Truth = le;
        bits() -> Word = bits;
    }
    Word {
        of_bits() -> Real = of_bits;
        /// Conversion to the nearest float.
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

/// Mask of the sign bit.
pub(super) const fn sign_bit<P: Precision>() -> u64 {
    1 << (P::TYPE.bits() - 1)
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
    pub(super) fn lit(self, value: impl IntoReal<'m, M>) -> Self {
        Real { m: self.m, value: value.into_real(self.m) }
    }

    #[inline(always)]
    pub(super) fn is_nan(self) -> Truth<'m, M> {
        self.ne(self)
    }

    /// Minimum with a limit; NaN stays NaN.
    #[inline(always)]
    pub(super) fn at_most(self, limit: impl IntoReal<'m, M>) -> Self {
        let limit = self.lit(limit);
        limit.lt(self).choose(limit, self)
    }

    /// Maximum with a limit; NaN stays NaN.
    #[inline(always)]
    pub(super) fn at_least(self, limit: impl IntoReal<'m, M>) -> Self {
        let limit = self.lit(limit);
        self.lt(limit).choose(limit, self)
    }

    /// Sign bit; the other bits are 0.
    #[inline(always)]
    pub(super) fn sign(self) -> Word<'m, M> {
        self.bits() & sign_bit::<M::P>()
    }

    /// The number with its sign flipped if `sign` has the sign bit.
    #[inline(always)]
    pub(super) fn flipped(self, sign: Word<'m, M>) -> Self {
        (self.bits() ^ sign).of_bits()
    }
}

impl<'m, M: Arithmetic> Word<'m, M> {
    /// A literal.
    #[inline(always)]
    pub(super) fn lit(self, value: u64) -> Self {
        Word { m: self.m, value: value.into_word(self.m) }
    }

    /// Conversion to the count of a shift.
    #[inline(always)]
    pub(super) fn count(self) -> Count<M::C> {
        Count(self.m.count_of(self.value))
    }
}
