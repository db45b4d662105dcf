//! SSA values and the operations on them.

use std::marker::PhantomData;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

use half::f16;

use super::Kernel;
use crate::ir::{Literal, Op, Pure, ResultTypes, Scalar, Subgroup, ValueId, Values};

/// A typed SSA value. Its scope is the block that defines it.
#[derive(Clone, Copy)]
pub struct Val<'k, T> {
    kernel: &'k Kernel,
    id: ValueId,
    ty: PhantomData<T>,
}

impl<'k, T: Scalar> Val<'k, T> {
    pub(super) fn new(kernel: &'k Kernel, id: ValueId) -> Self {
        Val { kernel, id, ty: PhantomData }
    }

    /// The kernel of the value.
    pub fn kernel(self) -> &'k Kernel {
        self.kernel
    }

    /// [`Cast`](Pure::Cast). A cast to its own type returns the value itself.
    #[track_caller]
    #[must_use]
    pub fn cast<U: Scalar>(self) -> Val<'k, U> {
        let operand = self.operand(self.kernel);
        if T::TYPE == U::TYPE { Val::new(self.kernel, operand) } else { self.kernel.apply(Pure::Cast, &[operand]) }
    }

    /// Sets the debug name of the value.
    #[track_caller]
    pub fn named(self, name: &str) -> Self {
        let id = self.operand(self.kernel);
        let mut state = self.kernel.state.borrow_mut();
        state.check_name(name);
        state.program.set_value_name(id, name);
        self
    }
}

/// Argument of type `T`: a [`Val`] or a Rust literal.
#[diagnostic::on_unimplemented(message = "this must be a value of type `{T}`", label = "not a value of type `{T}`")]
pub trait Arg<'k, T> {
    /// The value, checked to be in scope.
    #[doc(hidden)]
    #[track_caller]
    fn operand(self, kernel: &'k Kernel) -> ValueId;
}

impl<'k, T: Scalar> Arg<'k, T> for T {
    fn operand(self, kernel: &'k Kernel) -> ValueId {
        kernel.lit(self).id
    }
}

impl<'k, T: Scalar> Arg<'k, T> for Val<'k, T> {
    fn operand(self, kernel: &'k Kernel) -> ValueId {
        let mut state = kernel.state.borrow_mut();
        if std::ptr::eq(self.kernel, kernel) {
            state.check_visible(self.id);
            return self.id;
        }
        state.misuse("this value belongs to another kernel");
        state.program.literal(Literal::zero(T::TYPE))
    }
}

/// A list of values: `()`, a [`Val`], or tuples and arrays of these. Closures of branches return one.
pub trait Bundle<'k>: Sized {
    #[doc(hidden)]
    fn types(into: &mut ResultTypes);
    #[doc(hidden)]
    #[track_caller]
    fn operands(self, kernel: &'k Kernel, into: &mut Values);
    #[doc(hidden)]
    fn from_values(kernel: &'k Kernel, values: &mut dyn Iterator<Item = ValueId>) -> Self;

    #[doc(hidden)]
    fn result_types() -> ResultTypes {
        let mut types = ResultTypes::new();
        Self::types(&mut types);
        types
    }
}

/// Values that take a [debug name](Kernel::debug_name): a [`Val`], or tuples and arrays of these. `Val` has no type bound here, so that
/// rustc reports a type error at a use of the value.
pub trait Nameable {
    #[doc(hidden)]
    fn name(&self, kernel: &Kernel, name: &str);
}

impl<T> Nameable for Val<'_, T> {
    fn name(&self, kernel: &Kernel, name: &str) {
        if std::ptr::eq(self.kernel, kernel) {
            kernel.state.borrow_mut().name_value(self.id, name);
        }
    }
}

impl<V: Nameable, const N: usize> Nameable for [V; N] {
    fn name(&self, kernel: &Kernel, name: &str) {
        self.iter().for_each(|part| part.name(kernel, name));
    }
}

impl Kernel {
    #[track_caller]
    pub(super) fn operands_of<'k>(&'k self, values: impl Bundle<'k>) -> Values {
        let mut operands = Values::new();
        values.operands(self, &mut operands);
        operands
    }
}

impl<'k, T: Scalar> Bundle<'k> for Val<'k, T> {
    fn types(into: &mut ResultTypes) {
        into.push(T::TYPE);
    }
    fn operands(self, kernel: &'k Kernel, into: &mut Values) {
        into.push(self.operand(kernel));
    }
    fn from_values(kernel: &'k Kernel, values: &mut dyn Iterator<Item = ValueId>) -> Self {
        Val::new(kernel, values.next().expect("one value for each type"))
    }
}

impl<'k, B: Bundle<'k>, const N: usize> Bundle<'k> for [B; N] {
    fn types(into: &mut ResultTypes) {
        (0..N).for_each(|_| B::types(into));
    }
    fn operands(self, kernel: &'k Kernel, into: &mut Values) {
        for part in self {
            part.operands(kernel, into);
        }
    }
    fn from_values(kernel: &'k Kernel, values: &mut dyn Iterator<Item = ValueId>) -> Self {
        std::array::from_fn(|_| B::from_values(kernel, values))
    }
}

macro_rules! bundle_of_tuples {
    ($(($($part:ident)*);)*) => { $(
        #[allow(unused_variables, clippy::unused_unit)] // `()` has no parts.
        impl<'k, $($part: Bundle<'k>),*> Bundle<'k> for ($($part,)*) {
            fn types(into: &mut ResultTypes) {
                $( $part::types(into); )*
            }
            #[allow(non_snake_case)]
            fn operands(self, kernel: &'k Kernel, into: &mut Values) {
                let ($($part,)*) = self;
                $( $part.operands(kernel, into); )*
            }
            fn from_values(kernel: &'k Kernel, values: &mut dyn Iterator<Item = ValueId>) -> Self {
                ($($part::from_values(kernel, values),)*)
            }
        }
        #[allow(unused_variables)]
        impl<$($part: Nameable),*> Nameable for ($($part,)*) {
            #[allow(non_snake_case)]
            fn name(&self, kernel: &Kernel, name: &str) {
                let ($($part,)*) = self;
                $( $part.name(kernel, name); )*
            }
        }
    )* };
}
bundle_of_tuples! { (); (A B); (A B C); (A B C D); (A B C D E); (A B C D E F); (A B C D E F G); (A B C D E F G H); }

macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $class:ident($($super:ident)+): $($ty:ident)*;)*) => { $(
        $(#[doc = $doc])+
        pub trait $class: $($super +)+ {}
        $( impl $class for $ty {} )*
    )* };
}
classes! {
    /// Types with arithmetic and order: all but bool.
    Number(Scalar): i32 u32 f32 i64 u64 f64 f16;
    /// Signed numbers.
    Signed(Number): i32 f32 i64 f64 f16;
    /// Floats.
    Float(Signed): f32 f64 f16;
    /// Types with bitwise operations: integers and bool.
    Logic(Scalar): bool i32 u32 i64 u64;
    /// Integers.
    Integer(Number Logic): i32 u32 i64 u64;
    /// Numbers that are accessed atomically: those of 32 and 64 bits.
    AtomicNumber(Number): i32 u32 f32 i64 u64 f64;
}

/// Operators between values, and between a value and a literal on either side.
macro_rules! binary_operators {
    ($($trait:ident $method:ident($class:ident, $right:tt) = $op:path, $($ty:ident)*;)*) => { $(
        impl<'k, T: $class, R: Arg<'k, $right>> $trait<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, right: R) -> Val<'k, T> {
                let kernel = self.kernel;
                kernel.apply($op, &[self.operand(kernel), right.operand(kernel)])
            }
        }
        $( impl<'k> $trait<Val<'k, binary_operators!(@right $right $ty)>> for $ty {
            type Output = Val<'k, $ty>;
            #[track_caller]
            fn $method(self, right: Val<'k, binary_operators!(@right $right $ty)>) -> Val<'k, $ty> {
                right.kernel.lit(self).$method(right)
            }
        } )*
    )* };
    (@right T $ty:ident) => { $ty };
    (@right u32 $ty:ident) => { u32 };
}
binary_operators! {
    Add add(Number, T) = Pure::Add, i32 u32 f32 i64 u64 f64 f16;
    Sub sub(Number, T) = Pure::Sub, i32 u32 f32 i64 u64 f64 f16;
    Mul mul(Number, T) = Pure::Mul, i32 u32 f32 i64 u64 f64 f16;
    Div div(Number, T) = Pure::Div, i32 u32 f32 i64 u64 f64 f16;
    Rem rem(Integer, T) = Pure::Rem, i32 u32 i64 u64;
    BitAnd bitand(Logic, T) = Pure::And, bool i32 u32 i64 u64;
    BitOr bitor(Logic, T) = Pure::Or, bool i32 u32 i64 u64;
    BitXor bitxor(Logic, T) = Pure::Xor, bool i32 u32 i64 u64;
    Shl shl(Integer, u32) = Pure::Shl, i32 u32 i64 u64;
    Shr shr(Integer, u32) = Pure::Shr, i32 u32 i64 u64;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident($class:ident) = $op:path;)*) => { $(
        impl<'k, T: $class> $trait for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self) -> Val<'k, T> {
                self.kernel.apply($op, &[self.operand(self.kernel)])
            }
        }
    )* };
}
unary_operators! {
    Neg neg(Signed) = Pure::Neg;
    Not not(Logic) = Pure::Not;
}

/// Methods that apply an operation to a value of a type class or a type, and to arguments.
macro_rules! methods {
    ($(impl $([$class:ident])? $self:ident {
        $($name:ident$(<$generic:ident>)?($($arg:ident: $arg_ty:ty),*) -> $result:ty = $op:path;)*
    })*) => { $(
        impl<'k $(, T: $class)?> Val<'k, $self> { $(
            #[doc = concat!("[`", stringify!($op), "`]")]
            #[track_caller]
            #[must_use]
            pub fn $name$(<$generic: Scalar>)?(self $(, $arg: impl Arg<'k, $arg_ty>)*) -> $result {
                let kernel = self.kernel;
                kernel.apply($op, &[self.operand(kernel) $(, $arg.operand(kernel))*])
            }
        )* }
    )* };
}
methods! {
    impl[Number] T {
        min(other: T) -> Val<'k, T> = Pure::Min;
        max(other: T) -> Val<'k, T> = Pure::Max;
        lt(other: T) -> Val<'k, bool> = Pure::Lt;
        le(other: T) -> Val<'k, bool> = Pure::Le;
        gt(other: T) -> Val<'k, bool> = Pure::Gt;
        ge(other: T) -> Val<'k, bool> = Pure::Ge;
        subgroup_add() -> Val<'k, T> = Subgroup::Add;
        subgroup_mul() -> Val<'k, T> = Subgroup::Mul;
        subgroup_min() -> Val<'k, T> = Subgroup::Min;
        subgroup_max() -> Val<'k, T> = Subgroup::Max;
        subgroup_inclusive_add() -> Val<'k, T> = Subgroup::InclusiveAdd;
        subgroup_exclusive_add() -> Val<'k, T> = Subgroup::ExclusiveAdd;
        subgroup_inclusive_mul() -> Val<'k, T> = Subgroup::InclusiveMul;
        subgroup_exclusive_mul() -> Val<'k, T> = Subgroup::ExclusiveMul;
    }
    impl[Signed] T {
        abs() -> Val<'k, T> = Pure::Abs;
    }
    impl[Float] T {
        fma(factor: T, summand: T) -> Val<'k, T> = Pure::Fma;
        ldexp(exponent: i32) -> Val<'k, T> = Pure::Ldexp;
        sqrt() -> Val<'k, T> = Pure::Sqrt;
        floor() -> Val<'k, T> = Pure::Floor;
        ceil() -> Val<'k, T> = Pure::Ceil;
        trunc() -> Val<'k, T> = Pure::Trunc;
        round() -> Val<'k, T> = Pure::Round;
        frexp_fraction() -> Val<'k, T> = Pure::FrexpFraction;
        frexp_exponent() -> Val<'k, i32> = Pure::FrexpExponent;
        modf_fraction() -> Val<'k, T> = Pure::ModfFraction;
        exp() -> Val<'k, T> = Pure::Exp;
        exp2() -> Val<'k, T> = Pure::Exp2;
        log() -> Val<'k, T> = Pure::Log;
        log2() -> Val<'k, T> = Pure::Log2;
        sin() -> Val<'k, T> = Pure::Sin;
        cos() -> Val<'k, T> = Pure::Cos;
        tan() -> Val<'k, T> = Pure::Tan;
        asin() -> Val<'k, T> = Pure::Asin;
        acos() -> Val<'k, T> = Pure::Acos;
        atan() -> Val<'k, T> = Pure::Atan;
        sinh() -> Val<'k, T> = Pure::Sinh;
        cosh() -> Val<'k, T> = Pure::Cosh;
        tanh() -> Val<'k, T> = Pure::Tanh;
        asinh() -> Val<'k, T> = Pure::Asinh;
        acosh() -> Val<'k, T> = Pure::Acosh;
        atanh() -> Val<'k, T> = Pure::Atanh;
        cbrt() -> Val<'k, T> = Pure::Cbrt;
        atan2(x: T) -> Val<'k, T> = Pure::Atan2;
        pow(exponent: T) -> Val<'k, T> = Pure::Pow;
        hypot(other: T) -> Val<'k, T> = Pure::Hypot;
    }
    impl[Integer] T {
        mul_high(other: T) -> Val<'k, T> = Pure::MulHigh;
        rotate_left(count: u32) -> Val<'k, T> = Pure::RotateLeft;
        count_ones() -> Val<'k, u32> = Pure::CountOnes;
        leading_zeros() -> Val<'k, u32> = Pure::LeadingZeros;
        trailing_zeros() -> Val<'k, u32> = Pure::TrailingZeros;
        reverse_bits() -> Val<'k, T> = Pure::ReverseBits;
        extract_bits(offset: u32, count: u32) -> Val<'k, T> = Pure::ExtractBits;
        insert_bits(bits: T, offset: u32, count: u32) -> Val<'k, T> = Pure::InsertBits;
    }
    impl[Logic] T {
        subgroup_and() -> Val<'k, T> = Subgroup::And;
        subgroup_or() -> Val<'k, T> = Subgroup::Or;
        subgroup_xor() -> Val<'k, T> = Subgroup::Xor;
    }
    impl[Scalar] T {
        eq(other: T) -> Val<'k, bool> = Pure::Eq;
        ne(other: T) -> Val<'k, bool> = Pure::Ne;
        bitcast<U>() -> Val<'k, U> = Pure::Bitcast;
        broadcast() -> Val<'k, T> = Op::Broadcast;
        subgroup_shuffle(lane: u32) -> Val<'k, T> = Subgroup::Shuffle;
        subgroup_shuffle_up(distance: u32) -> Val<'k, T> = Subgroup::ShuffleUp;
        subgroup_shuffle_down(distance: u32) -> Val<'k, T> = Subgroup::ShuffleDown;
        subgroup_shuffle_xor(mask: u32) -> Val<'k, T> = Subgroup::ShuffleXor;
        subgroup_broadcast_first() -> Val<'k, T> = Subgroup::BroadcastFirst;
        subgroup_compact(keep: bool) -> (Val<'k, T>, Val<'k, u32>) = Subgroup::Compact;
    }
    impl bool {
        select<U>(yes: U, no: U) -> Val<'k, U> = Pure::Select;
        subgroup_ballot() -> [Val<'k, u32>; 4] = Subgroup::Ballot;
        subgroup_all() -> Val<'k, bool> = Subgroup::All;
        subgroup_any() -> Val<'k, bool> = Subgroup::Any;
    }
    impl f64 {
        to_bits() -> Val<'k, u64> = Pure::Bitcast;
    }
    impl f32 {
        to_bits() -> Val<'k, u32> = Pure::Bitcast;
        pack_f16(high: f32) -> Val<'k, u32> = Pure::PackF16;
        quantize_f16() -> Val<'k, f32> = Pure::QuantizeF16;
        pack_snorm16(high: f32) -> Val<'k, u32> = Pure::PackSnorm16;
        pack_unorm16(high: f32) -> Val<'k, u32> = Pure::PackUnorm16;
        pack_snorm8(b: f32, c: f32, d: f32) -> Val<'k, u32> = Pure::PackSnorm8;
        pack_unorm8(b: f32, c: f32, d: f32) -> Val<'k, u32> = Pure::PackUnorm8;
    }
    impl i32 {
        pack_i8_clamp(b: i32, c: i32, d: i32) -> Val<'k, u32> = Pure::PackI8Clamp;
    }
    impl u32 {
        unpack_f16_low() -> Val<'k, f32> = Pure::UnpackF16Low;
        unpack_f16_high() -> Val<'k, f32> = Pure::UnpackF16High;
        unpack_snorm16(lane: u32) -> Val<'k, f32> = Pure::UnpackSnorm16;
        unpack_unorm16(lane: u32) -> Val<'k, f32> = Pure::UnpackUnorm16;
        unpack_snorm8(lane: u32) -> Val<'k, f32> = Pure::UnpackSnorm8;
        unpack_unorm8(lane: u32) -> Val<'k, f32> = Pure::UnpackUnorm8;
        dot4_u8(b: u32, sum: u32) -> Val<'k, u32> = Pure::Dot4U8;
        dot4_i8(b: u32, sum: i32) -> Val<'k, i32> = Pure::Dot4I8;
        dot4_i8u8(b: u32, sum: i32) -> Val<'k, i32> = Pure::Dot4I8U8;
        add_u8x4(b: u32) -> Val<'k, u32> = Pure::AddU8x4;
        min_u8x4(b: u32) -> Val<'k, u32> = Pure::MinU8x4;
        max_u8x4(b: u32) -> Val<'k, u32> = Pure::MaxU8x4;
        min_i8x4(b: u32) -> Val<'k, u32> = Pure::MinI8x4;
        max_i8x4(b: u32) -> Val<'k, u32> = Pure::MaxI8x4;
        eq_u8x4(b: u32) -> Val<'k, u32> = Pure::EqU8x4;
        lt_u8x4(b: u32) -> Val<'k, u32> = Pure::LtU8x4;
        lookup_u8x4(t0: u32, t1: u32, t2: u32, t3: u32) -> Val<'k, u32> = Pure::LookupU8x4;
        pack_u8_clamp(b: u32, c: u32, d: u32) -> Val<'k, u32> = Pure::PackU8Clamp;
    }
}

/// Methods composed of several operations, with the semantics of Rust's methods.
impl<'k, T: Number> Val<'k, T> {
    /// Clamps the value to a range. NaN stays NaN.
    #[track_caller]
    #[must_use]
    pub fn clamp(self, least: impl Arg<'k, T>, most: impl Arg<'k, T>) -> Val<'k, T> {
        let least = Val::<T>::new(self.kernel, least.operand(self.kernel));
        let most = Val::<T>::new(self.kernel, most.operand(self.kernel));
        if T::TYPE.is_float() {
            let raised = self.lt(least).select(least, self);
            raised.gt(most).select(most, raised)
        } else {
            self.max(least).min(most)
        }
    }
}

impl<'k, T: Float> Val<'k, T> {
    /// True for NaN.
    #[track_caller]
    #[must_use]
    pub fn is_nan(self) -> Val<'k, bool> {
        self.ne(self)
    }

    /// Fractional part, `x - trunc(x)`.
    #[track_caller]
    #[must_use]
    pub fn fract(self) -> Val<'k, T> {
        self - self.trunc()
    }
}

impl<'k, T: Integer> Val<'k, T> {
    /// Right rotation; the count is taken modulo the width.
    #[track_caller]
    #[must_use]
    pub fn rotate_right(self, count: impl Arg<'k, u32>) -> Val<'k, T> {
        let count = Val::<u32>::new(self.kernel, count.operand(self.kernel));
        self.rotate_left(0u32 - count)
    }
}

impl<'k> Val<'k, i32> {
    /// Sign: -1, 0 or 1.
    #[track_caller]
    #[must_use]
    pub fn signum(self) -> Val<'k, i32> {
        self.clamp(-1, 1)
    }
}

impl<'k> Val<'k, f32> {
    /// Sign: -1 or 1, also for zeros; NaN stays NaN.
    #[track_caller]
    #[must_use]
    pub fn signum(self) -> Val<'k, f32> {
        self.is_nan().select(self, self.kernel.lit(1.0f32).copysign(self))
    }

    /// Magnitude of the value with the sign of `sign`.
    #[track_caller]
    #[must_use]
    pub fn copysign(self, sign: impl Arg<'k, f32>) -> Val<'k, f32> {
        let sign = Val::<f32>::new(self.kernel, sign.operand(self.kernel));
        ((self.to_bits() & 0x7fff_ffff) | (sign.to_bits() & 0x8000_0000)).bitcast()
    }

    /// True unless the value is an infinity or NaN.
    #[track_caller]
    #[must_use]
    pub fn is_finite(self) -> Val<'k, bool> {
        (self.to_bits() & 0x7f80_0000).ne(0x7f80_0000)
    }

    /// Reciprocal, `1 / x`.
    #[track_caller]
    #[must_use]
    pub fn recip(self) -> Val<'k, f32> {
        1.0f32 / self
    }
}
