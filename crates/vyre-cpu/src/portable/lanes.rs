//! Pure operations over all lanes, as loops that the compiler vectorizes.
//!
//! Each loop is compiled twice: for the baseline of the architecture, and for AVX2 with FMA. The version is chosen when
//! a kernel is prepared.

use vyre_foundation::ir::ops::MAX_OPERANDS;
use vyre_foundation::ir::{Pure, Type};

/// Computes `lanes` elements of a result from as many elements of each operand.
///
/// # Safety
/// The result and all operands of the operation point to `lanes` elements, of 4 or 8 bytes according to their types;
/// the result overlaps no operand; and the processor has the features that the function was compiled for.
pub(super) type LaneFn = unsafe fn(result: *mut u8, operands: &[*const u8; MAX_OPERANDS], lanes: usize);

/// Representation of a Rust type in a lane: 4 bytes up to 32 bits, a bool as 0 or 1.
trait Lane: Copy {
    type Storage: Copy;
    fn get(stored: Self::Storage) -> Self;
    fn put(self) -> Self::Storage;
}

macro_rules! lane {
    ($($ty:ty as $storage:ty: $stored:ident => $get:expr, $value:ident => $put:expr;)*) => { $(
        impl Lane for $ty {
            type Storage = $storage;
            #[inline(always)]
            fn get($stored: $storage) -> $ty {
                $get
            }
            #[inline(always)]
            fn put(self) -> $storage {
                let $value = self;
                $put
            }
        }
    )* };
}
lane! {
    u8 as u8: stored => stored, value => value;
    bool as u32: stored => stored != 0, value => u32::from(value);
    i32 as u32: stored => stored as i32, value => value as u32;
    u32 as u32: stored => stored, value => value;
    f32 as u32: stored => f32::from_bits(stored), value => value.to_bits();
    i64 as u64: stored => stored as i64, value => value as u64;
    u64 as u64: stored => stored, value => value;
    f64 as u64: stored => f64::from_bits(stored), value => value.to_bits();
}

/// Writes the result of a lane.
///
/// # Safety
/// The lane is in bounds.
#[inline(always)]
unsafe fn put<R: Lane>(result: *mut u8, lane: usize, value: R) {
    // SAFETY: promised by the caller.
    unsafe { result.cast::<R::Storage>().add(lane).write(value.put()) };
}

/// Returns whether the processor has AVX2 and FMA, the features of the fast versions.
pub(super) fn has_fast_versions() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The loop of a function, in the version for this processor; `each 4` applies a function to the bytes of words.
macro_rules! lane_fn {
    ($fast:expr, ($($function:tt)+)) => { lane_fn!($fast, $($function)+) };
    ($fast:expr, |$($arg:ident: $ty:ty),+| $body:expr) => { lane_fn!($fast, each 1, |$($arg: $ty),+| $body) };
    ($fast:expr, each $parts:literal, |$($arg:ident: $ty:ty),+| $body:expr) => {{
        #[inline(always)]
        unsafe fn each(result: *mut u8, operands: &[*const u8; MAX_OPERANDS], lanes: usize) {
            let ([$($arg,)+ ..], lanes) = (*operands, $parts * lanes);
            // SAFETY: promised by the caller.
            $( let $arg = unsafe { std::slice::from_raw_parts($arg.cast::<<$ty as Lane>::Storage>(), lanes) }; )+
            for lane in 0..lanes {
                $( let $arg = <$ty as Lane>::get($arg[lane]); )+
                // SAFETY: promised by the caller.
                unsafe { put(result, lane, $body) };
            }
        }
        unsafe fn plain(result: *mut u8, operands: &[*const u8; MAX_OPERANDS], lanes: usize) {
            // SAFETY: promised by the caller.
            unsafe { each(result, operands, lanes) };
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn with_avx2(result: *mut u8, operands: &[*const u8; MAX_OPERANDS], lanes: usize) {
            // SAFETY: promised by the caller.
            unsafe { each(result, operands, lanes) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        use plain as with_avx2;
        Some(if $fast { with_avx2 as LaneFn } else { plain as LaneFn })
    }};
}

/// The loop for each type of a class; `T` stands for the type.
macro_rules! by_type {
    ($fast:expr, $class:expr, [$($variant:ident $rust:ty),+], $function:tt) => {
        match $class {
            $( Type::$variant => {
                #[allow(dead_code)] // Some functions do not mention it.
                type T = $rust;
                lane_fn!($fast, $function)
            } )+
            _ => None,
        }
    };
}

macro_rules! integers {
    ($fast:expr, $class:expr, $($f:tt)+) => { by_type!($fast, $class, [I32 i32, U32 u32, I64 i64, U64 u64], ($($f)+)) };
}
macro_rules! signed {
    ($fast:expr, $class:expr, $($f:tt)+) => { by_type!($fast, $class, [I32 i32, I64 i64], ($($f)+)) };
}
macro_rules! floats {
    ($fast:expr, $class:expr, $($f:tt)+) => { by_type!($fast, $class, [F32 f32, F64 f64], ($($f)+)) };
}
macro_rules! numbers {
    ($fast:expr, $class:expr, $($f:tt)+) => {
        by_type!($fast, $class, [I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64], ($($f)+))
    };
}
macro_rules! all {
    ($fast:expr, $class:expr, $($f:tt)+) => {
        by_type!($fast, $class, [Bool bool, I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64], ($($f)+))
    };
}
macro_rules! casts {
    ($fast:expr, $from:expr, $to:expr, $($variant:ident $target:ty),+) => {
        match $to {
            $( Type::$variant => numbers!($fast, $from, |a: T| a as $target), )+
            Type::Bool => numbers!($fast, $from, |a: T| a != 0 as T),
            Type::F16 => None,
        }
    };
}

/// Returns the loop of a pure operation on a type. Rare operations (all of f16, among others) have none: they are
/// evaluated lane by lane with the evaluator of the op table.
pub(super) fn select(op: Pure, class: Type, result: Type, fast: bool) -> Option<LaneFn> {
    match op {
        Pure::Add => {
            integers!(fast, class, |a: T, b: T| a.wrapping_add(b)).or_else(|| floats!(fast, class, |a: T, b: T| a + b))
        }
        Pure::Sub => {
            integers!(fast, class, |a: T, b: T| a.wrapping_sub(b)).or_else(|| floats!(fast, class, |a: T, b: T| a - b))
        }
        Pure::Mul => {
            integers!(fast, class, |a: T, b: T| a.wrapping_mul(b)).or_else(|| floats!(fast, class, |a: T, b: T| a * b))
        }
        Pure::MulHigh => match class {
            Type::I32 => lane_fn!(fast, |a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
            Type::U32 => lane_fn!(fast, |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            _ => None,
        },
        Pure::Div => integers!(fast, class, |a: T, b: T| if b == 0 { a } else { a.wrapping_div(b) })
            .or_else(|| floats!(fast, class, |a: T, b: T| a / b)),
        Pure::Rem => integers!(fast, class, |a: T, b: T| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        Pure::Neg => signed!(fast, class, |a: T| a.wrapping_neg()).or_else(|| floats!(fast, class, |a: T| -a)),
        Pure::Abs => signed!(fast, class, |a: T| a.wrapping_abs()).or_else(|| floats!(fast, class, |a: T| a.abs())),
        Pure::Min => integers!(fast, class, |a: T, b: T| if a < b { a } else { b }).or_else(|| {
            // Two selects without a branch: the first orders numbers and zeros, the second drops a NaN.
            floats!(fast, class, |a: T, b: T| {
                let lower = if (a < b) | ((a == b) & a.is_sign_negative()) { a } else { b };
                if b.is_nan() { a } else { lower }
            })
        }),
        Pure::Max => integers!(fast, class, |a: T, b: T| if a > b { a } else { b }).or_else(|| {
            floats!(fast, class, |a: T, b: T| {
                let higher = if (a > b) | ((a == b) & b.is_sign_negative()) { a } else { b };
                if b.is_nan() { a } else { higher }
            })
        }),
        Pure::Fma => floats!(fast, class, |a: T, b: T, c: T| a.mul_add(b, c)),
        Pure::Sqrt => floats!(fast, class, |a: T| a.sqrt()),
        Pure::Floor => floats!(fast, class, |a: T| a.floor()),
        Pure::Ceil => floats!(fast, class, |a: T| a.ceil()),
        Pure::Trunc => floats!(fast, class, |a: T| a.trunc()),
        Pure::Round => floats!(fast, class, |a: T| a.round_ties_even()),
        Pure::And => integers!(fast, class, |a: T, b: T| a & b).or_else(|| lane_fn!(fast, |a: u32, b: u32| a & b)),
        Pure::Or => integers!(fast, class, |a: T, b: T| a | b).or_else(|| lane_fn!(fast, |a: u32, b: u32| a | b)),
        Pure::Xor => integers!(fast, class, |a: T, b: T| a ^ b).or_else(|| lane_fn!(fast, |a: u32, b: u32| a ^ b)),
        Pure::Not => integers!(fast, class, |a: T| !a).or_else(|| lane_fn!(fast, |a: u32| a ^ 1)),
        Pure::Shl => integers!(fast, class, |a: T, count: u32| a.wrapping_shl(count)),
        Pure::Shr => integers!(fast, class, |a: T, count: u32| a.wrapping_shr(count)),
        Pure::RotateLeft => integers!(fast, class, |a: T, count: u32| a.rotate_left(count % T::BITS)),
        Pure::CountOnes => integers!(fast, class, |a: T| a.count_ones()),
        Pure::LeadingZeros => integers!(fast, class, |a: T| a.leading_zeros()),
        Pure::TrailingZeros => integers!(fast, class, |a: T| a.trailing_zeros()),
        Pure::ReverseBits => integers!(fast, class, |a: T| a.reverse_bits()),
        Pure::Eq => all!(fast, class, |a: T, b: T| a == b),
        Pure::Ne => all!(fast, class, |a: T, b: T| a != b),
        Pure::Lt => numbers!(fast, class, |a: T, b: T| a < b),
        Pure::Le => numbers!(fast, class, |a: T, b: T| a <= b),
        Pure::Gt => numbers!(fast, class, |a: T, b: T| a > b),
        Pure::Ge => numbers!(fast, class, |a: T, b: T| a >= b),
        // A select of bits works for all types of one width.
        Pure::Select if class.bits() == 64 => {
            lane_fn!(fast, |condition: bool, a: u64, b: u64| if condition { a } else { b })
        }
        Pure::Select => lane_fn!(fast, |condition: bool, a: u32, b: u32| if condition { a } else { b }),
        Pure::Cast => match class {
            Type::Bool => match result {
                Type::Bool | Type::I32 | Type::U32 => lane_fn!(fast, |a: u32| a),
                Type::F32 => lane_fn!(fast, |a: u32| a as f32),
                Type::I64 | Type::U64 => lane_fn!(fast, |a: u32| u64::from(a)),
                Type::F64 => lane_fn!(fast, |a: u32| f64::from(a)),
                Type::F16 => None,
            },
            _ => casts!(fast, class, result, I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64),
        },
        Pure::Bitcast if class.bits() == 64 => lane_fn!(fast, |a: u64| a),
        Pure::Bitcast => lane_fn!(fast, |a: u32| a),
        Pure::Dot4U8 => lane_fn!(fast, |a: u32, b: u32, sum: u32| {
            let product = |at: u32| ((a >> at) & 0xff) * ((b >> at) & 0xff);
            sum.wrapping_add(product(0) + product(8) + product(16) + product(24))
        }),
        Pure::Dot4I8 => lane_fn!(fast, |a: u32, b: u32, sum: i32| {
            let product = |at: u32| ((a << at) as i32 >> 24) * ((b << at) as i32 >> 24);
            sum.wrapping_add(product(0) + product(8) + product(16) + product(24))
        }),
        Pure::Dot4I8U8 => lane_fn!(fast, |a: u32, b: u32, sum: i32| {
            let product = |at: u32| ((a << at) as i32 >> 24) * (b << at >> 24) as i32;
            sum.wrapping_add(product(0) + product(8) + product(16) + product(24))
        }),
        Pure::AddU8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| a.wrapping_add(b)),
        Pure::MinU8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| a.min(b)),
        Pure::MaxU8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| a.max(b)),
        Pure::MinI8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| (a as i8).min(b as i8) as u8),
        Pure::MaxI8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| (a as i8).max(b as i8) as u8),
        Pure::EqU8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| if a == b { 0xffu8 } else { 0 }),
        Pure::LtU8x4 => lane_fn!(fast, each 4, |a: u8, b: u8| if a < b { 0xffu8 } else { 0 }),
        Pure::LookupU8x4 => lane_fn!(fast, |index: u32, t0: u32, t1: u32, t2: u32, t3: u32| {
            let byte = |at: u32| {
                let entry = (index >> at) & 15;
                let low = if entry < 4 { t0 } else { t1 };
                let high = if entry < 12 { t2 } else { t3 };
                let word = if entry < 8 { low } else { high };
                ((word >> (8 * (entry & 3))) & 0xff) << at
            };
            byte(0) | byte(8) | byte(16) | byte(24)
        }),
        Pure::PackU8Clamp => lane_fn!(fast, |a: u32, b: u32, c: u32, d: u32| {
            a.min(255) | b.min(255) << 8 | c.min(255) << 16 | d.min(255) << 24
        }),
        Pure::PackI8Clamp => lane_fn!(fast, |a: i32, b: i32, c: i32, d: i32| {
            let byte = |value: i32| (value.clamp(-128, 127) & 0xff) as u32;
            byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24
        }),
        Pure::ExtractBits => integers!(fast, class, |a: T, offset: u32, count: u32| {
            let offset = offset.min(T::BITS);
            let count = count.min(T::BITS - offset);
            let field = a.wrapping_shl(T::BITS - offset - count).wrapping_shr(T::BITS - count);
            if count == 0 { 0 } else { field }
        }),
        Pure::Ldexp
        | Pure::FrexpFraction
        | Pure::FrexpExponent
        | Pure::ModfFraction
        | Pure::InsertBits
        | Pure::PackF16
        | Pure::UnpackF16Low
        | Pure::UnpackF16High
        | Pure::QuantizeF16
        | Pure::PackSnorm16
        | Pure::PackUnorm16
        | Pure::PackSnorm8
        | Pure::PackUnorm8
        | Pure::UnpackSnorm16
        | Pure::UnpackUnorm16
        | Pure::UnpackSnorm8
        | Pure::UnpackUnorm8 => None,
        vyre_foundation::library_functions!() => None,
    }
}
