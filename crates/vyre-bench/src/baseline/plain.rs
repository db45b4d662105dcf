//! Kernels as plain loops, parallelized by rayon.
//!
//! The loops are compiled for the vectors of this machine, like with `-C target-cpu=native`; otherwise every `mul_add`
//! would be a function call.

use rayon::prelude::*;

use super::{Image, Isa, Step};

/// Elements of a task.
const PART: usize = 1 << 16;

/// Function multiversioning: compiles a function for each instruction set, and calls the version for this machine.
macro_rules! native {
    (fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn any($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) $(-> $result)? {
                any($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($argument: $type),*) $(-> $result)? {
                any($($argument),*)
            }

            match Isa::detect() {
                // SAFETY: the processor supports the features of the function.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { avx2($($argument),*) },
                Isa::Unknown => any($($argument),*),
            }
        }
    };
}

/// y += a × x.
pub(crate) fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    native! {
        fn part(a: f32, x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += a * x;
            }
        }
    }
    y.par_chunks_mut(PART).zip(x.par_chunks(PART)).for_each(|(y, x)| part(a, x, y));
}

/// The finalizer of MurmurHash3, of every key.
pub(crate) fn hash(keys: &[u32], hashes: &mut [u32]) {
    native! {
        fn part(keys: &[u32], hashes: &mut [u32]) {
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = hash_of(*key);
            }
        }
    }
    hashes.par_chunks_mut(PART).zip(keys.par_chunks(PART)).for_each(|(hashes, keys)| part(keys, hashes));
}

#[inline(always)]
pub(super) fn hash_of(key: u32) -> u32 {
    let mut hash = key;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Escape times of the points of an image.
pub(crate) fn mandelbrot(image: &Image, pixels: &mut [u8]) {
    native! {
        fn part(image: &Image, columns: &[f32], cy: f32, pixels: &mut [u8]) {
            for (pixel, cx) in pixels.iter_mut().zip(columns) {
                let (mut x, mut y, mut trips) = (0f32, 0f32, 0u32);
                while trips < image.max_trips && x * x + y * y <= 4.0 {
                    (x, y) = (x * x - y * y + cx, (x * y).mul_add(2.0, cy));
                    trips += 1;
                }
                *pixel = image.shade(trips);
            }
        }
    }
    let (columns, rows) = image.points();
    pixels.par_chunks_mut(image.side).zip(&rows).for_each(|(pixels, cy)| part(image, &columns, *cy, pixels));
}

/// `out = table[index]`.
pub(crate) fn gather(table: &[f32], index: &[u32], out: &mut [f32]) {
    native! {
        fn part(table: &[f32], index: &[u32], out: &mut [f32]) {
            for (out, index) in out.iter_mut().zip(index) {
                *out = table[*index as usize];
            }
        }
    }
    out.par_chunks_mut(PART).zip(index.par_chunks(PART)).for_each(|(out, index)| part(table, index, out));
}

/// One n-body step. A body is x, y, z and mass; the forces are those of the kernel.
pub(crate) fn nbody(step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    native! {
        fn part(step: Step, bodies: &[f32], own: &[f32], velocity: &mut [f32], moved: &mut [f32]) {
            let mut pull = [0f32; 3];
            for other in bodies.chunks_exact(4) {
                let d = [other[0] - own[0], other[1] - own[1], other[2] - own[2]];
                let squared = step.softening * step.softening;
                let squared = d[2].mul_add(d[2], d[1].mul_add(d[1], d[0].mul_add(d[0], squared)));
                let inverse = 1.0 / squared.sqrt();
                let strength = other[3] * (inverse * inverse * inverse);
                for axis in 0..3 {
                    pull[axis] = strength.mul_add(d[axis], pull[axis]);
                }
            }
            for axis in 0..3 {
                velocity[axis] = pull[axis].mul_add(step.dt, velocity[axis]);
                moved[axis] = velocity[axis].mul_add(step.dt, own[axis]);
            }
            moved[3] = own[3];
        }
    }
    let results = velocities.par_chunks_mut(3).zip(moved.par_chunks_mut(4));
    results.zip(bodies.par_chunks(4)).for_each(|((velocity, moved), own)| part(step, bodies, own, velocity, moved));
}

/// C = A × B for square matrices.
pub(crate) fn matmul(side: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    native! {
        fn part(side: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
            c.fill(0.0);
            for (a, b) in a.iter().zip(b.chunks_exact(side)) {
                for (c, b) in c.iter_mut().zip(b) {
                    *c = a.mul_add(*b, *c);
                }
            }
        }
    }
    c.par_chunks_mut(side).zip(a.par_chunks(side)).for_each(|(c, a)| part(side, a, b, c));
}

/// The product by the crate `matrixmultiply`.
pub(crate) fn matmul_of_library(side: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    assert_eq!([a.len(), b.len(), c.len()], [side * side; 3]);
    let (row, column) = (side as isize, 1);
    // SAFETY: all matrices have `side` rows of `side` elements.
    unsafe {
        matrixmultiply::sgemm(
            side,
            side,
            side,
            1.0,
            a.as_ptr(),
            row,
            column,
            b.as_ptr(),
            row,
            column,
            0.0,
            c.as_mut_ptr(),
            row,
            column,
        );
    }
}

/// Sum of all elements.
pub(crate) fn reduce(data: &[f32]) -> f32 {
    data.par_iter().sum()
}

/// Inclusive prefix sums in two passes: of each part, then with the sum of the previous parts added.
pub(crate) fn scan(data: &[u32], sums: &mut [u32]) {
    let part = data.len().div_ceil(rayon::current_num_threads()).max(1);
    let totals: Vec<u32> = data
        .par_chunks(part)
        .zip(sums.par_chunks_mut(part))
        .map(|(data, sums)| {
            let mut sum = 0u32;
            for (to, element) in sums.iter_mut().zip(data) {
                sum = sum.wrapping_add(*element);
                *to = sum;
            }
            sum
        })
        .collect();
    let mut before = 0u32;
    let offsets = totals.iter().map(|total| {
        let offset = before;
        before = before.wrapping_add(*total);
        offset
    });
    let offsets: Vec<u32> = offsets.collect();
    sums.par_chunks_mut(part).zip(&offsets).for_each(|(sums, offset)| {
        for sum in sums {
            *sum = sum.wrapping_add(*offset);
        }
    });
}

/// Number of occurrences of each byte.
pub(crate) fn histogram(data: &[u8]) -> [u32; 256] {
    let count = |mut bins: [u32; 256], data: &[u8]| {
        for byte in data {
            bins[usize::from(*byte)] += 1;
        }
        bins
    };
    data.par_chunks(PART).fold(|| [0; 256], count).reduce(|| [0; 256], added)
}

pub(super) fn added(mut bins: [u32; 256], more: [u32; 256]) -> [u32; 256] {
    for (bin, more) in bins.iter_mut().zip(more) {
        *bin += more;
    }
    bins
}

/// Sorts keys.
pub(crate) fn sort(keys: &[u32], sorted: &mut [u32]) {
    sorted.copy_from_slice(keys);
    sorted.par_sort_unstable();
}
