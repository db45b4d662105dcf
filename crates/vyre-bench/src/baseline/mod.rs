//! Baselines of the kernels, on all cores.
//!
//! [`plain`] has straightforward loops, parallelized by rayon. [`expert`] is hand-optimized: explicit vectors,
//! non-temporal stores, cache blocking. Both compute the results of the kernels, up to rounding where the summation
//! order of floats differs. [`raw`] has WGSL kernels for the GPU.

// Intrinsics, huge-page memory, and threads that write to disjoint elements of an array that no iterator can split.
#![allow(unsafe_code)]

pub(crate) mod expert;
pub(crate) mod graph;
mod huge;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod pinned;
pub(crate) mod plain;
pub(crate) mod raw;

pub(crate) use huge::Huge;
pub(crate) use pinned::Pinned;

/// Vector instruction set of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// 16 lanes of 32 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 lanes of 32 bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Auto-vectorization by the compiler.
    Unknown,
}

impl Isa {
    /// Widest instruction set supported by the processor and the system.
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

/// Image drawn by the kernel `mandelbrot`.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    pub(crate) side: usize,
    pub(crate) max_trips: u32,
    pub(crate) center: (f32, f32),
    pub(crate) span: f32,
}

impl Image {
    /// Complex coordinates of the pixel centers: the real part of each column, and the imaginary part of each row.
    fn points(&self) -> (Vec<f32>, Vec<f32>) {
        let at = |pixel: usize, center: f32| ((pixel as f32 + 0.5) / self.side as f32 - 0.5).mul_add(self.span, center);
        let axis = |center: f32| (0..self.side).map(|pixel| at(pixel, center)).collect();
        (axis(self.center.0), axis(self.center.1))
    }

    fn shade(&self, trips: u32) -> u8 {
        if trips >= self.max_trips { 0 } else { (trips * 5).min(255) as u8 }
    }
}

/// Parameters of the kernel `nbody` besides the bodies.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) dt: f32,
    pub(crate) softening: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers.
    fn words(count: usize) -> Vec<u32> {
        (0..count as u32).map(|index| plain::hash_of(index + 1)).collect()
    }

    fn floats(count: usize) -> Vec<f32> {
        words(count).into_iter().map(|word| (word >> 8) as f32 / (1 << 24) as f32).collect()
    }

    /// Lengths: shorter than a vector, a multiple of the elements of a task, and one with a remainder.
    const COUNTS: [usize; 3] = [5, 1 << 16, (1 << 16) + 77];

    #[test]
    fn expert_arrays_match_plain_loops() {
        for count in COUNTS {
            let (integers, numbers) = (Huge::of(&words(count)), Huge::of(&floats(count)));
            let (mut by_hand, mut naive) = (Huge::of(&numbers), numbers.to_vec());
            expert::saxpy(1.5, &numbers, &mut by_hand);
            plain::saxpy(1.5, &numbers, &mut naive);
            assert!(*by_hand == naive, "saxpy of {count}");

            let index: Vec<u32> = integers.iter().map(|word| word % count as u32).collect();
            expert::gather(&numbers, &index, &mut by_hand);
            plain::gather(&numbers, &index, &mut naive);
            assert!(*by_hand == naive, "gather of {count}");

            let (sum, expected) = (expert::reduce(&numbers), plain::reduce(&numbers));
            assert!((sum - expected).abs() < 1e-3 * expected, "reduce of {count}: {sum} instead of {expected}");

            let (mut by_hand, mut naive) = (Huge::zeros(count), vec![0; count]);
            expert::hash(&integers, &mut by_hand);
            plain::hash(&integers, &mut naive);
            assert!(*by_hand == naive, "hash of {count}");
            expert::scan(&integers, &mut by_hand);
            plain::scan(&integers, &mut naive);
            assert!(*by_hand == naive, "scan of {count}");
            expert::sort(&integers, &mut by_hand, &mut Huge::zeros(count));
            plain::sort(&integers, &mut naive);
            assert!(*by_hand == naive, "sort of {count}");

            let bytes: Vec<u8> = integers.iter().map(|word| *word as u8).collect();
            assert_eq!(expert::histogram(&bytes), plain::histogram(&bytes), "histogram of {count}");
        }
    }

    #[test]
    fn expert_images_bodies_and_matrices_match_plain_loops() {
        let image = Image { side: 64, max_trips: 64, center: (-0.75, 0.0), span: 2.5 };
        let (mut by_hand, mut naive) = (vec![0; 64 * 64], vec![0; 64 * 64]);
        expert::mandelbrot(&image, &mut by_hand);
        plain::mandelbrot(&image, &mut naive);
        assert!(by_hand == naive, "mandelbrot");

        let step = Step { dt: 0.01, softening: 0.1 };
        let bodies = floats(4 * 128);
        let space = || (vec![0f32; 3 * 128], vec![0f32; 4 * 128]);
        let (mut by_hand, mut near, mut naive) = (space(), space(), space());
        expert::nbody(step, &bodies, &mut by_hand.0, &mut by_hand.1);
        expert::nbody_rsqrt(step, &bodies, &mut near.0, &mut near.1);
        plain::nbody(step, &bodies, &mut naive.0, &mut naive.1);
        assert!(by_hand == naive, "nbody");
        assert!(near.0.iter().zip(&naive.0).all(|(near, exact)| (near - exact).abs() < 1e-3), "nbody_rsqrt");

        // More than one slice of B, and a partial last block of rows.
        let side = 288;
        let (a, b) = (floats(side * side), floats(2 * side * side)[side * side..].to_vec());
        let (mut by_hand, mut naive) = (vec![0.0; side * side], vec![0.0; side * side]);
        expert::matmul(side, &a, &b, &mut by_hand, &mut vec![0.0; side * side]);
        plain::matmul(side, &a, &b, &mut naive);
        assert!(by_hand == naive, "matmul");
    }
}
