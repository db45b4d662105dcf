//! Standard kernels: maps, reductions, scans, compaction, histograms, radix sorts, matrix products and random numbers, on every device.
//!
//! ```
//! use vyre::{Device, kernels};
//!
//! # fn main() -> Result<(), vyre::Error> {
//! let device = Device::auto()?;
//! let x = device.upload(&[3.0f32, -1.0, 4.0, -1.0, 5.0])?;
//! let mut squares = device.zeros::<f32>(5)?;
//! kernels::map(&device, &x, &mut squares, |v| v * v)?;
//! assert_eq!(kernels::sum(&device, &squares)?, 52.0);
//!
//! let mut sums = device.zeros(5)?;
//! kernels::inclusive_scan(&device, &x, &mut sums, 0.0, |a, b| a + b)?;
//! assert_eq!(sums.download()?, [3.0, 2.0, 6.0, 5.0, 10.0]);
//! # Ok(())
//! # }
//! ```
//!
//! | | | work | memory besides the arguments |
//! |---|---|---|---|
//! | [`map`] [`zip`] [`fill`] [`copy`] [`gather`] [`scatter`] | elementwise | n | none |
//! | [`reduce`] [`sum`] [`min`] [`max`] | reduction | n | n ÷ 65 536 |
//! | [`inclusive_scan`] [`exclusive_scan`] | prefix scan | n | n ÷ 65 536 |
//! | [`compact`] | stream compaction | n | n ÷ 32 768 words |
//! | [`histogram`] | histogram | n | none |
//! | [`sort`] [`sort_by_key`] [`argsort`] [`top_k`] | LSD radix sort, 8 bits per pass | n × bytes per key | n, 2 n (4 n unless values have 32 bits), 3 n, 4 n |
//! | [`transpose`] [`matmul`] [`spmv`] | dense and sparse matrices | m n, m n k, stored elements | none |
//! | [`random`] [`uniform`] [`normal`] | counter-based random numbers | n | none |
//!
//! n is the number of elements. Memory is temporary device memory, in elements; sorts need n ÷ 32 words more.
//!
//! # Operations
//!
//! An operation is a closure over values of a kernel, with the operators and methods of [`Val`]. It is called once, when
//! the kernel is built. The kernel is cached by the type of the closure, so a closure with captures is a compile error: pass
//! varying values in a buffer, or write a [`kernel`](crate::kernel) with a parameter. Loops and branches are made with
//! [`Val::kernel`], and functions marked `#[kernel(inline)]` are called through their `build`:
//!
//! ```
//! # use vyre::{Device, kernel, kernels};
//! #[kernel(inline)]
//! fn steps(n: u32) -> u32 {
//!     let mut n = n;
//!     let mut steps = 0;
//!     while n > 1 {
//!         n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
//!         steps += 1;
//!     }
//!     steps
//! }
//!
//! # fn main() -> Result<(), vyre::Error> {
//! # let device = Device::auto()?;
//! let n = device.upload(&[1u32, 6, 27])?;
//! let mut y = device.zeros::<u32>(3)?;
//! kernels::map(&device, &n, &mut y, |n| steps::build(n.kernel(), n))?;
//! assert_eq!(y.download()?, [0, 8, 111]);
//! # Ok(())
//! # }
//! ```
//!
//! ```compile_fail
//! # let device = vyre::Device::auto().unwrap();
//! # let x = device.upload(&[1.0f32]).unwrap();
//! # let mut y = device.zeros(1).unwrap();
//! let factor = 2.0f32;
//! vyre::kernels::map(&device, &x, &mut y, move |v| v * factor).unwrap();
//! ```
//!
//! # Exactness
//!
//! Results depend on the arguments only: the division of work depends on lengths, not on the device or its threads. Float results
//! therefore have the same bits in every run and on all devices with exact floats. A call makes one submission and waits for it; nothing
//! is read back in between.
//!
//! # Errors
//!
//! In addition to the errors of a launch, mismatched lengths are an [`Error::Length`], and buffers of more than 2³¹ elements (of 2³⁰
//! 64-bit keys) an [`Error::TooLarge`]. Both name the argument.

mod elementwise;
mod histogram;
mod matrix;
mod random;
mod reduce;
mod scan;
mod sort;

pub use elementwise::{copy, fill, gather, map, scatter, zip};
pub use histogram::histogram;
pub use matrix::{matmul, spmv, transpose};
pub use random::{normal, random, uniform};
pub use reduce::{max, min, reduce, sum};
pub use scan::{compact, exclusive_scan, inclusive_scan};
pub use sort::{Key, argsort, sort, sort_by_key, top_k};

#[cfg(doc)]
use crate::build::Val;
use crate::build::{self, Kernel};
use crate::{Buffer, Element, Error, Launch};

/// Makes a launch, without arguments, of the kernel that a closure builds. Kernels are cached per device by the closure's type.
fn built<'a, B: Fn(&Kernel) + 'static>(name: &'static str, workgroup: [u32; 3], body: B) -> Launch<'a> {
    const { assert!(size_of::<B>() == 0, "the closure must not capture variables: its kernel is built once and cached") };
    Launch::__new::<B>(move || Ok(build::kernel(name, workgroup, &body)?))
}

/// Returns the length of a buffer if it is at most 2³¹, so that the sum of two indices fits into 32 bits.
fn length<T: Element>(name: &'static str, buffer: &Buffer<T>) -> Result<usize, Error> {
    limited(name, buffer.len(), 1)
}

/// Returns `length` if `length` × `words` is at most 2³¹, so that the sum of two word indices fits into 32 bits.
fn limited(name: &'static str, length: usize, words: usize) -> Result<usize, Error> {
    if length <= (1 << 31) / words { Ok(length) } else { Err(Error::TooLarge { name, value: length as i128 }) }
}

/// Checks the length of a buffer.
fn expect<T: Element>(name: &'static str, buffer: &Buffer<T>, expected: usize) -> Result<(), Error> {
    let found = buffer.len();
    if found == expected { Ok(()) } else { Err(Error::Length { name, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_limited() {
        for (words, most) in [(1, 1usize << 31), (2, 1 << 30)] {
            assert_eq!(limited("keys", most, words), Ok(most));
            let error = Error::TooLarge { name: "keys", value: most as i128 + 1 };
            assert_eq!(limited("keys", most + 1, words), Err(error));
        }
    }
}
