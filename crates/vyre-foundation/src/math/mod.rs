//! Math library: `exp`, `sin`, `pow` and others, expanded to basic operations of the op table, with the same bits on all devices with
//! exact floats.
//!
//! Each function is defined once, over an abstract arithmetic with two interpretations. Evaluated, it is the evaluator of the op-table
//! row, which the oracle uses. Emitted, it is the instruction sequence that [`transform::expand_math`](crate::transform::expand_math)
//! substitutes before lowering, so no backend implements these functions.
//!
//! * The functions are generic over the precision: f32 with u32, or f64 with u64. `tables` has the constants of each. f16 is computed in f32
//!   and rounded once.
//! * They are branch-free, so lanes do not diverge.
//! * Most functions end in the sum of a large and a small term (double-single or double-double arithmetic), and only that sum rounds. Most
//!   results are therefore correctly rounded.
//! * Trigonometric functions reduce operands from π/4 on by the method of Payne and Hanek, also small ones: with a second method for these,
//!   every lane would compute both.
//! * Special values follow Annex F of the C standard.
//!
//! [`FUNCTIONS`], [`FUNCTIONS_F16`] and [`FUNCTIONS_F64`] contain the error bounds. `cargo xtask soak math` measures the errors: over all
//! operands of f16 and f32, over 2³⁰ pairs for functions of two operands, and over 10⁸ operands or pairs of f64, against `reference`. A test
//! measures a sample.

mod accuracy;
mod arithmetic;
mod exponential;
mod pair;
mod reference;
mod roots;
mod tables;
mod trigonometric;

use std::convert::identity;
use std::fmt;

use half::f16;

use crate::ir::{Pure, Scalar};
use arithmetic::{Arithmetic, Direct, Real};

pub use accuracy::Measured;
pub(crate) use arithmetic::{Emitter, Precision};

/// A function of the library for operands of one type.
pub struct Function<T> {
    /// Operation.
    pub op: Pure,
    /// Largest error of a result in units in the last place.
    pub bound: f64,
    /// Number of operands.
    pub arity: usize,
    lanes: fn(&[&[T]], &mut [T]),
    error: fn(&[T], T) -> f64,
}

impl<T: Measured> Function<T> {
    /// Computes the results for lists of operands: one list per parameter, as long as `results`.
    pub fn evaluate(&self, operands: &[&[T]], results: &mut [T]) {
        (self.lanes)(operands, results);
    }

    /// Error of a result in units in the last place of the exact value. It is infinite if the result is a NaN, an infinity or of a
    /// sign where the exact value is not.
    pub fn error(&self, operands: &[T], result: T) -> f64 {
        (self.error)(operands, result)
    }

    /// Number of seeds over which the error is measured.
    pub fn seeds(&self) -> u64 {
        T::SEEDS[self.arity - 1]
    }

    /// Operands of a seed: every operand once for functions of one operand of at most 32 bits, otherwise random ones of a distribution
    /// that favours finite results. The second is unused by functions of one operand.
    pub fn operands(&self, seed: u64) -> [T; 2] {
        T::operands(self.arity, seed)
    }
}

impl<T> fmt::Debug for Function<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.info().name)
    }
}

/// A type of operands, and the precision in which their functions are computed.
pub(crate) trait Host: Scalar {
    type Direct: Arithmetic + 'static;
    const DIRECT: &'static Self::Direct;
    fn widened(self) -> <Self::Direct as Arithmetic>::F;
    fn rounded(wide: <Self::Direct as Arithmetic>::F) -> Self;
}

macro_rules! hosts {
    ($($host:ident as $wide:ident: $widened:expr, $rounded:expr;)*) => { $(
        impl Host for $host {
            type Direct = Direct<$wide>;
            const DIRECT: &'static Direct<$wide> = &Direct::new();
            #[inline(always)]
            fn widened(self) -> $wide {
                $widened(self)
            }
            #[inline(always)]
            fn rounded(wide: $wide) -> $host {
                $rounded(wide)
            }
        }
    )* };
}
hosts! {
    f32 as f32: identity, identity;
    f64 as f64: identity, identity;
    f16 as f32: f16::to_f32, f16::from_f32;
}

macro_rules! library {
    ($($op:ident = $module:ident::$function:ident($($operand:ident),+), $bound:literal, $exact:path;)*) => {
        /// The functions for f32. Their bounds are measured errors, rounded up: over all operands, or, of functions of two operands,
        /// over 2³⁰ pairs, with a margin.
        pub static FUNCTIONS: &[Function<f32>] =
            &[ $( library!(@function f32, $op, $function($($operand),+), $bound, $exact), )* ];

        /// The functions for f16.
        pub static FUNCTIONS_F16: &[Function<f16>] =
            &[ $( library!(@function f16, $op, $function($($operand),+), F16_BOUND, $exact), )* ];

        /// The functions for f64, with the bounds of f32: the methods and their relative errors are the same.
        pub static FUNCTIONS_F64: &[Function<f64>] = &[ $( Function {
            error: |operands, result| {
                let [$($operand),+] = *operands else { unreachable!("one operand for each parameter") };
                accuracy::ulps_of_scaled(reference::$function($($operand),+), result)
            },
            ..library!(@function f64, $op, $function($($operand),+), $bound, $exact)
        }, )* ];

        /// Result of the reference of a function for f64.
        #[cfg(test)]
        fn reference_of(op: Pure, operands: &[f64]) -> reference::Scaled {
            match (op, operands) {
                $( (Pure::$op, &[$($operand),+]) => reference::$function($($operand),+), )*
                _ => unreachable!("the library has all functions, and one operand for each parameter"),
            }
        }

        /// Evaluated functions.
        pub(crate) mod direct {
            use super::*;
            $(
                #[inline(always)]
                pub(crate) fn $function<T: Host>($($operand: T),+) -> T {
                    T::rounded($module::$function($(Real::new(T::DIRECT, $operand.widened())),+).value())
                }
            )*
        }

        /// Result of a function in an interpretation, or `None` if the operation is not of the library.
        pub(crate) fn apply<M: Arithmetic>(m: &M, op: Pure, operands: &[M::F]) -> Option<M::F> {
            match (op, operands) {
                $( (Pure::$op, &[$($operand),+]) => {
                    Some($module::$function($(Real::new(m, $operand)),+).value())
                } )*
                _ => None,
            }
        }
    };
    (@function $ty:ty, $op:ident, $function:ident($($operand:ident),+), $bound:expr, $exact:path) => {
        Function {
            op: Pure::$op,
            bound: $bound,
            arity: [$(stringify!($operand)),+].len(),
            lanes: |operands, results| {
                let [$($operand),+] = operands else { unreachable!("one list for each parameter") };
                $( let $operand = &$operand[..results.len()]; )+
                for (lane, result) in results.iter_mut().enumerate() {
                    *result = direct::$function::<$ty>($($operand[lane]),+);
                }
            },
            error: |operands, result| {
                let [$($operand),+] = *operands else { unreachable!("one operand for each parameter") };
                accuracy::ulps($exact($(f64::from($operand)),+), result)
            },
        }
    };
}

/// Bound of all functions for f16: an error below 1 ULP of f32 is 2⁻¹³ ULP of f16, and the conversion rounds.
const F16_BOUND: f64 = 0.501;

library! {
    Exp = exponential::exp(x), 0.76, f64::exp;
    Exp2 = exponential::exp2(x), 0.76, f64::exp2;
    Log = exponential::log(x), 0.51, f64::ln;
    Log2 = exponential::log2(x), 0.51, f64::log2;
    Sin = trigonometric::sin(x), 0.76, f64::sin;
    Cos = trigonometric::cos(x), 0.76, f64::cos;
    Tan = trigonometric::tan(x), 0.95, f64::tan;
    Asin = trigonometric::asin(x), 0.65, f64::asin;
    Acos = trigonometric::acos(x), 0.63, f64::acos;
    Atan = trigonometric::atan(x), 0.67, f64::atan;
    Atan2 = trigonometric::atan2(y, x), 0.9, f64::atan2;
    Sinh = exponential::sinh(x), 0.79, f64::sinh;
    Cosh = exponential::cosh(x), 0.61, f64::cosh;
    Tanh = exponential::tanh(x), 0.78, f64::tanh;
    Asinh = exponential::asinh(x), 0.53, f64::asinh;
    Acosh = exponential::acosh(x), 0.51, f64::acosh;
    Atanh = exponential::atanh(x), 0.55, accuracy::atanh;
    Pow = exponential::pow(x, y), 0.8, f64::powf;
    Cbrt = roots::cbrt(x), 0.51, f64::cbrt;
    Hypot = roots::hypot(x, y), 0.76, f64::hypot;
}

/// Pattern of the operations that are functions of the library, for exhaustive matches over [`Pure`].
#[macro_export]
macro_rules! library_functions {
    () => {
        $crate::ir::Pure::Exp
            | $crate::ir::Pure::Exp2
            | $crate::ir::Pure::Log
            | $crate::ir::Pure::Log2
            | $crate::ir::Pure::Sin
            | $crate::ir::Pure::Cos
            | $crate::ir::Pure::Tan
            | $crate::ir::Pure::Asin
            | $crate::ir::Pure::Acos
            | $crate::ir::Pure::Atan
            | $crate::ir::Pure::Atan2
            | $crate::ir::Pure::Sinh
            | $crate::ir::Pure::Cosh
            | $crate::ir::Pure::Tanh
            | $crate::ir::Pure::Asinh
            | $crate::ir::Pure::Acosh
            | $crate::ir::Pure::Atanh
            | $crate::ir::Pure::Pow
            | $crate::ir::Pure::Cbrt
            | $crate::ir::Pure::Hypot
    };
}
