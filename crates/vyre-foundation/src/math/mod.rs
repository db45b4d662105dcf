//! The math library: functions of f32 that are made of other operations of the op table, with the same bits on all devices
//! with exact floats.
//!
//! Each function is defined once, over an abstract arithmetic that has two interpretations. One
//! computes: it is the evaluator of the function's row in the op table, by which the oracle runs it. The other writes
//! instructions: [`transform::expand_math`](crate::transform::expand_math) puts them in the place of the function before a
//! program is lowered, so that no backend knows these functions.
//!
//! * They use f32, u32 and bool only, which all devices have, and no control flow, so that lanes stay together.
//! * Most end in the sum of a large and a small part, where only that sum rounds to f32. So results are seldom other than the
//!   correctly rounded ones, and never far off.
//! * Special values follow Annex F of the C standard.
//!
//! [`FUNCTIONS`] says how far results may be off. `cargo xtask soak math` measures it over all operands (of functions of two,
//! over 2³⁰ pairs), and a test over a sample of them.

mod accuracy;
mod arithmetic;
mod exponential;
mod pair;
mod roots;
mod trigonometric;

use std::fmt;

use crate::ir::Pure;
use arithmetic::{Arithmetic, Direct, Real};

pub(crate) use arithmetic::Emitter;

/// A function of the library.
pub struct Function {
    /// Its operation.
    pub op: Pure,
    /// How far its results are from the true ones at most, in units in the last place.
    pub bound: f64,
    /// How many operands it has.
    pub arity: usize,
    lanes: fn(&[&[f32]], &mut [f32]),
    exact: fn(&[f32]) -> f64,
}

impl Function {
    /// Computes the results for lists of operands, of which there is one for each parameter, as long as `results`.
    pub fn evaluate(&self, operands: &[&[f32]], results: &mut [f32]) {
        (self.lanes)(operands, results);
    }

    /// How far a result is from the true one, which is computed in f64, in units in the last place of that. A result that is
    /// wrong in kind (NaN, infinity, or sign) is infinitely far.
    pub fn error(&self, operands: &[f32], result: f32) -> f64 {
        accuracy::ulps((self.exact)(operands), result)
    }

    /// Two operands at which a function of two has something to do, other ones for each seed.
    pub fn sample(seed: u64) -> [f32; 2] {
        accuracy::sample(seed)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.info().name)
    }
}

macro_rules! library {
    ($($op:ident = $module:ident::$function:ident($($operand:ident),+), $bound:literal, $exact:path;)*) => {
        /// The functions, with the bounds that were measured and rounded up: over all operands, or for functions of two
        /// operands over many pairs, and with some room.
        pub static FUNCTIONS: &[Function] = &[ $( Function {
            op: Pure::$op,
            bound: $bound,
            arity: [$(stringify!($operand)),+].len(),
            lanes: |operands, results| {
                let [$($operand),+] = operands else { unreachable!("one list for each parameter") };
                $( let $operand = &$operand[..results.len()]; )+
                for (lane, result) in results.iter_mut().enumerate() {
                    *result = direct::$function($($operand[lane]),+);
                }
            },
            exact: |operands| {
                let [$($operand),+] = *operands else { unreachable!("one operand for each parameter") };
                $exact($(f64::from($operand)),+)
            },
        }, )* ];

        /// The functions, computed.
        pub(crate) mod direct {
            use super::*;
            $(
                #[inline(always)]
                pub(crate) fn $function($($operand: f32),+) -> f32 {
                    $module::$function($(Real::new(&Direct, $operand)),+).value()
                }
            )*
        }

        /// The result of a function in any interpretation, or `None` if the operation is not of the library.
        pub(crate) fn apply<M: Arithmetic>(m: &M, op: Pure, operands: &[M::F]) -> Option<M::F> {
            match (op, operands) {
                $( (Pure::$op, &[$($operand),+]) => {
                    Some($module::$function($(Real::new(m, $operand)),+).value())
                } )*
                _ => None,
            }
        }
    };
}
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
