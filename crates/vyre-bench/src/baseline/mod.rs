//! What the kernels are measured against, on all cores.
//!
//! [`plain`] has the loops that one writes without much thought, in parallel by rayon. [`expert`] has what one writes with a lot of
//! it: vectors by hand, stores past the caches, blocks that fit into them. Both give the results of the kernels; where sums of floats
//! are not in the same order, they differ by roundings.

// Intrinsics, memory in huge pages, and threads that write to disjoint parts of an array that no iterator can cut.
#![allow(unsafe_code)]

pub(crate) mod expert;
mod huge;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub(crate) mod plain;

pub(crate) use huge::Huge;

/// The vectors of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// 16 lanes of 32 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 lanes of 32 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the compiler makes of plain loops.
    Unknown,
}

impl Isa {
    /// The widest that the processor and the system have.
    pub(crate) fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let dq = is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512bw");
            if avx2 && dq && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Unknown
    }
}

/// The image that the kernel `mandelbrot` draws.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    pub(crate) side: usize,
    pub(crate) max_trips: u32,
    pub(crate) center: (f32, f32),
    pub(crate) span: f32,
}

impl Image {
    /// The real parts of the columns and the imaginary parts of the rows.
    fn points(&self) -> (Vec<f32>, Vec<f32>) {
        let at = |pixel: usize, center: f32| ((pixel as f32 + 0.5) / self.side as f32 - 0.5).mul_add(self.span, center);
        let axis = |center: f32| (0..self.side).map(|pixel| at(pixel, center)).collect();
        (axis(self.center.0), axis(self.center.1))
    }

    fn shade(&self, trips: u32) -> u8 {
        if trips >= self.max_trips { 0 } else { (trips * 5).min(255) as u8 }
    }
}

/// What the kernel `nbody` is given beside the bodies.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) dt: f32,
    pub(crate) softening: f32,
}
