//! Hand-written kernels (the baseline `expert`) for the widest vectors of the processor; the plain kernels on other
//! architectures.

use super::{Image, Isa, Step, plain};

/// Dispatches to a function of `x86`, or to the plain one on an unknown architecture. Arguments after `;` are scratch
/// memory.
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
    /// Escape times of the points of an image.
    fn mandelbrot(image: &Image, pixels: &mut [u8]);
    /// `out = table[index]`. Every index must be in bounds of the table.
    fn gather(table: &[f32], index: &[u32], out: &mut [f32]);
    /// One n-body step, bit-identical to the kernel.
    fn nbody(step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]);
    /// C = A × B for square matrices, bit-identical to the kernel. `packed` has room for another matrix.
    fn matmul(side: usize, a: &[f32], b: &[f32], c: &mut [f32]; packed: &mut [f32]);
    /// The sum of all elements.
    fn reduce(data: &[f32]) -> f32;
    /// Inclusive prefix sums.
    fn scan(data: &[u32], sums: &mut [u32]);
    /// Number of occurrences of each byte.
    fn histogram(data: &[u8]) -> [u32; 256];
    /// Sorts keys. `scratch` has room for as many.
    fn sort(keys: &[u32], sorted: &mut [u32]; scratch: &mut [u32]);
}

/// One n-body step with approximate inverse square roots, refined by one Newton iteration.
pub(crate) fn nbody_rsqrt(step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    match Isa::detect() {
        Isa::Unknown => plain::nbody(step, bodies, velocities, moved),
        #[cfg(target_arch = "x86_64")]
        isa => x86::nbody_rsqrt(isa, step, bodies, velocities, moved),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
