//! The kernels by hand, for the widest vectors of the processor. Where there are none that are known, they are the plain ones.

use super::{Image, Isa, Step, plain};

/// A function of `x86`, or the plain one if the machine has no vectors that are known. What comes after `;` is memory to work in.
macro_rules! choose {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(; $scratch:ident: $of_scratch:ty)?) $(-> $result:ty)?;
    )*) => {
        $(
            $(#[$doc])*
            pub(crate) fn $name($($argument: $type,)* $($scratch: $of_scratch)?) $(-> $result)? {
                match Isa::detect() {
                    Isa::Unknown => {
                        $(let _ = $scratch;)?
                        plain::$name($($argument),*)
                    }
                    #[cfg(target_arch = "x86_64")]
                    isa => x86::$name(isa, $($argument,)* $($scratch)?),
                }
            }
        )*
    };
}

choose! {
    /// y += a × x.
    fn saxpy(a: f32, x: &[f32], y: &mut [f32]);
    /// The finalizer of MurmurHash3, of every key.
    fn hash(keys: &[u32], hashes: &mut [u32]);
    /// How fast the points of an image escape.
    fn mandelbrot(image: &Image, pixels: &mut [u8]);
    /// `out = table[index]`. Every index is inside of the table.
    fn gather(table: &[f32], index: &[u32], out: &mut [f32]);
    /// One step of bodies, with the bits of the kernel.
    fn nbody(step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]);
    /// C = A × B, of square matrices, with the bits of the kernel. There is room for another matrix in `packed`.
    fn matmul(side: usize, a: &[f32], b: &[f32], c: &mut [f32]; packed: &mut [f32]);
    /// The sum of all elements.
    fn reduce(data: &[f32]) -> f32;
    /// Inclusive prefix sums.
    fn scan(data: &[u32], sums: &mut [u32]);
    /// How often each byte occurs.
    fn histogram(data: &[u8]) -> [u32; 256];
    /// The keys in order. There is room for as many in `scratch`.
    fn sort(keys: &[u32], sorted: &mut [u32]; scratch: &mut [u32]);
}

/// One step of bodies, with square roots and quotients that are approximated and improved by one step of Newton's.
pub(crate) fn nbody_rsqrt(step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    match Isa::detect() {
        Isa::Unknown => plain::nbody(step, bodies, velocities, moved),
        #[cfg(target_arch = "x86_64")]
        isa => x86::nbody_rsqrt(isa, step, bodies, velocities, moved),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
