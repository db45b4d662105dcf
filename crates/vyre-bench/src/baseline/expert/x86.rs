//! Expert kernels for AVX2 and AVX-512.
//!
//! The work of a thread is a function over [`Lanes`], which `on` compiles for both. Arguments are checked before, so
//! its loops have no checks.

// Arrays hold registers, and several are indexed in parallel.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch, _mm_sfence};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;

use super::super::lanes::{Avx2, Avx512, Lanes};
use super::super::{Image, Isa, Step, plain};

/// Calls a function that is generic over [`Lanes`], in the instance for the vector extension `$isa`.
macro_rules! on {
    ($isa:expr, $body:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?) => {{
        #[target_feature(enable = "avx2,fma")]
        fn avx2($($argument: $type),*) $(-> $result)? {
            // SAFETY: this function is called only if the processor supports the features; the rest is the obligation
            // of the macro's user.
            unsafe { $body::<Avx2>($($argument),*) }
        }

        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512($($argument: $type),*) $(-> $result)? {
            // SAFETY: as above.
            unsafe { $body::<Avx512>($($argument),*) }
        }

        match $isa {
            // SAFETY: `Isa::detect` has found the features.
            Isa::Avx512 => unsafe { avx512($($argument),*) },
            // SAFETY: as above.
            Isa::Avx2 => unsafe { avx2($($argument),*) },
            Isa::Unknown => unreachable!("the plain kernels are for this"),
        }
    }};
}

/// Elements of a task: small enough for the L2 cache, and a multiple of the vector length.
const PART: usize = 1 << 15;

/// Returns whether non-temporal stores may start here.
fn is_aligned<T>(part: &[T]) -> bool {
    part.as_ptr().addr().is_multiple_of(64)
}

pub(super) fn saxpy(isa: Isa, a: f32, x: &[f32], y: &mut [f32]) {
    #[inline(always)]
    unsafe fn part<L: Lanes>(a: f32, x: &[f32], y: &mut [f32]) {
        let whole = y.len() / (4 * L::COUNT) * (4 * L::COUNT);
        let (from, to) = (x.as_ptr(), y.as_mut_ptr());
        // SAFETY: both have `whole` elements.
        unsafe {
            let a = L::splat(a);
            for start in (0..whole).step_by(4 * L::COUNT) {
                for vector in 0..4 {
                    let at = start + vector * L::COUNT;
                    // Two roundings, as in the kernel.
                    L::store(to.add(at), L::add(L::mul(a, L::load(from.add(at))), L::load(to.add(at))));
                }
            }
        }
        for (y, x) in y[whole..].iter_mut().zip(&x[whole..]) {
            *y += a * x;
        }
    }
    assert_eq!(x.len(), y.len());
    y.par_chunks_mut(PART).zip(x.par_chunks(PART)).for_each(|(y, x)| on!(isa, part(a: f32, x: &[f32], y: &mut [f32])));
}

pub(super) fn hash(isa: Isa, keys: &[u32], hashes: &mut [u32]) {
    #[inline(always)]
    unsafe fn part<L: Lanes>(keys: &[u32], hashes: &mut [u32]) {
        let whole = hashes.len() / (4 * L::COUNT) * (4 * L::COUNT);
        let (from, to) = (keys.as_ptr(), hashes.as_mut_ptr());
        // SAFETY: both have `whole` elements, and the hashes are aligned.
        unsafe {
            let (factor1, factor2) = (L::splat_u(0x85eb_ca6b), L::splat_u(0xc2b2_ae35));
            for start in (0..whole).step_by(4 * L::COUNT) {
                // Non-temporal stores: the output is not read soon, so its cache lines need not be fetched.
                for vector in 0..4 {
                    let at = start + vector * L::COUNT;
                    let key = L::load_u(from.add(at));
                    let hash = L::mul_u(L::xor_u(key, L::shr_16(key)), factor1);
                    let hash = L::mul_u(L::xor_u(hash, L::shr_13(hash)), factor2);
                    L::stream_u(to.add(at), L::xor_u(hash, L::shr_16(hash)));
                }
            }
            _mm_sfence();
        }
        for (hash, key) in hashes[whole..].iter_mut().zip(&keys[whole..]) {
            *hash = plain::hash_of(*key);
        }
    }
    assert!(keys.len() == hashes.len() && is_aligned(hashes));
    hashes
        .par_chunks_mut(PART)
        .zip(keys.par_chunks(PART))
        .for_each(|(hashes, keys)| on!(isa, part(keys: &[u32], hashes: &mut [u32])));
}

pub(super) fn gather(isa: Isa, table: &[f32], index: &[u32], out: &mut [f32]) {
    /// Prefetch distance in elements.
    const AHEAD: usize = 64;

    #[inline(always)]
    unsafe fn part<L: Lanes>(table: &[f32], index: &[u32], out: &mut [f32]) {
        let whole = out.len() / L::COUNT * L::COUNT;
        let (table_start, from, to) = (table.as_ptr(), index.as_ptr(), out.as_mut_ptr());
        // SAFETY: both parts have `whole` elements, the output is aligned, and every index is in bounds of the table.
        unsafe {
            for at in (0..whole).step_by(L::COUNT) {
                if at + AHEAD + L::COUNT <= whole {
                    for lane in 0..L::COUNT {
                        let later = *from.add(at + AHEAD + lane) as usize;
                        _mm_prefetch::<_MM_HINT_NTA>(table_start.add(later).cast());
                    }
                }
                L::stream(to.add(at), L::gather(table_start, L::load_u(from.add(at))));
            }
            _mm_sfence();
        }
        for (out, index) in out[whole..].iter_mut().zip(&index[whole..]) {
            *out = table[*index as usize];
        }
    }
    assert!(index.len() == out.len() && is_aligned(out) && table.len() < 1 << 31);
    out.par_chunks_mut(PART)
        .zip(index.par_chunks(PART))
        .for_each(|(out, index)| on!(isa, part(table: &[f32], index: &[u32], out: &mut [f32])));
}

pub(super) fn reduce(isa: Isa, data: &[f32]) -> f32 {
    #[inline(always)]
    unsafe fn part<L: Lanes>(data: &[f32]) -> f32 {
        // Enough independent chains of additions to hide their latency.
        const CHAINS: usize = 8;
        let whole = data.len() / (CHAINS * L::COUNT) * (CHAINS * L::COUNT);
        let from = data.as_ptr();
        let mut lanes = [0f32; 16];
        // SAFETY: there are `whole` elements, and at most 16 lanes.
        unsafe {
            let mut sums = [L::splat(0.0); CHAINS];
            for start in (0..whole).step_by(CHAINS * L::COUNT) {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    *sum = L::add(*sum, L::load(from.add(start + chain * L::COUNT)));
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = L::add(total, *sum);
            }
            L::store(lanes.as_mut_ptr(), total);
        }
        lanes.iter().sum::<f32>() + data[whole..].iter().sum::<f32>()
    }
    data.par_chunks(PART).map(|data| on!(isa, part(data: &[f32]) -> f32)).sum()
}

pub(super) fn mandelbrot(isa: Isa, image: &Image, pixels: &mut [u8]) {
    /// Rows computed together: neighbours have similar escape times, and four chains hide each other's latency.
    const ROWS: usize = 4;
    /// Trips between two checks whether all points have escaped.
    const TRIPS: u32 = 4;

    #[inline(always)]
    unsafe fn part<L: Lanes>(image: &Image, columns: &[f32], rows: &[f32], pixels: &mut [u8]) {
        // SAFETY: there is a whole number of vectors of columns, and at most 16 lanes.
        unsafe {
            let (zero, two, four) = (L::splat(0.0), L::splat(2.0), L::splat(4.0));
            let mut cy = [zero; ROWS];
            for row in 0..ROWS {
                cy[row] = L::splat(rows[row]);
            }
            for column in (0..columns.len()).step_by(L::COUNT) {
                let cx = L::load(columns.as_ptr().add(column));
                let (mut x, mut y) = ([zero; ROWS], [zero; ROWS]);
                let mut trips = [L::splat_u(0); ROWS];
                for _ in 0..image.max_trips / TRIPS {
                    // Escaped points are iterated, too: they diverge to infinity or NaN, and are never counted again.
                    for _ in 0..TRIPS {
                        for row in 0..ROWS {
                            let (xx, yy) = (L::mul(x[row], x[row]), L::mul(y[row], y[row]));
                            trips[row] = L::count(trips[row], L::at_most(L::add(xx, yy), four));
                            y[row] = L::fma(L::mul(x[row], y[row]), two, cy[row]);
                            x[row] = L::add(L::sub(xx, yy), cx);
                        }
                    }
                    let mut any = false;
                    for row in 0..ROWS {
                        let norm = L::add(L::mul(x[row], x[row]), L::mul(y[row], y[row]));
                        any |= L::any(L::at_most(norm, four));
                    }
                    if !any {
                        break;
                    }
                }
                for row in 0..ROWS {
                    let mut lanes = [0u32; 16];
                    L::store_u(lanes.as_mut_ptr(), trips[row]);
                    let start = row * columns.len() + column;
                    for (pixel, trips) in pixels[start..start + L::COUNT].iter_mut().zip(lanes) {
                        *pixel = image.shade(trips);
                    }
                }
            }
        }
    }
    let (columns, rows) = image.points();
    let columns = columns.as_slice();
    assert!(image.side.is_multiple_of(16) && image.max_trips.is_multiple_of(TRIPS));
    assert!(pixels.len() == image.side * image.side);
    pixels
        .par_chunks_mut(ROWS * image.side)
        .zip(rows.par_chunks(ROWS))
        .for_each(|(pixels, rows)| on!(isa, part(image: &Image, columns: &[f32], rows: &[f32], pixels: &mut [u8])));
}

pub(super) fn nbody(isa: Isa, step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    nbody_by::<true>(isa, step, bodies, velocities, moved);
}

pub(super) fn nbody_rsqrt(isa: Isa, step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    nbody_by::<false>(isa, step, bodies, velocities, moved);
}

fn nbody_by<const EXACT: bool>(isa: Isa, step: Step, bodies: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
    /// Bodies of a task.
    const BODIES: usize = 64;

    /// Each lane is a body, which interacts with the others one by one.
    #[inline(always)]
    unsafe fn part<L: Lanes, const EXACT: bool>(
        step: Step,
        bodies: &[f32],
        own: &[f32],
        velocities: &mut [f32],
        moved: &mut [f32],
    ) {
        // As many vectors as AVX2 registers allow; each load of another body is used for both.
        const VECTORS: usize = 2;
        for first in (0..BODIES).step_by(VECTORS * L::COUNT) {
            let mut places = [[0f32; VECTORS * 16]; 3];
            for lane in 0..VECTORS * L::COUNT {
                for (axis, places) in places.iter_mut().enumerate() {
                    places[lane] = own[4 * (first + lane) + axis];
                }
            }
            let mut pulls = [[0f32; VECTORS * 16]; 3];
            // SAFETY: the arrays have room for the vectors.
            unsafe {
                let zero = L::splat(0.0);
                let (mut place, mut pull) = ([[zero; 3]; VECTORS], [[zero; 3]; VECTORS]);
                for vector in 0..VECTORS {
                    for axis in 0..3 {
                        place[vector][axis] = L::load(places[axis].as_ptr().add(vector * L::COUNT));
                    }
                }
                let softening_squared = L::splat(step.softening * step.softening);
                let (one, three) = (L::splat(1.0), L::splat(3.0));
                for other in bodies.chunks_exact(4) {
                    let (x, y, z, mass) =
                        (L::splat(other[0]), L::splat(other[1]), L::splat(other[2]), L::splat(other[3]));
                    for vector in 0..VECTORS {
                        let place = &place[vector];
                        let (dx, dy, dz) = (L::sub(x, place[0]), L::sub(y, place[1]), L::sub(z, place[2]));
                        let squared = L::fma(dz, dz, L::fma(dy, dy, L::fma(dx, dx, softening_squared)));
                        let inverse = if EXACT {
                            L::div(one, L::sqrt(squared))
                        } else {
                            // One Newton iteration yields twice the inverse; the factor of eight is compensated below.
                            let near = L::rsqrt(squared);
                            L::mul(near, L::sub(three, L::mul(squared, L::mul(near, near))))
                        };
                        let strength = L::mul(mass, L::mul(L::mul(inverse, inverse), inverse));
                        let pull = &mut pull[vector];
                        pull[0] = L::fma(strength, dx, pull[0]);
                        pull[1] = L::fma(strength, dy, pull[1]);
                        pull[2] = L::fma(strength, dz, pull[2]);
                    }
                }
                let scale = L::splat(if EXACT { 1.0 } else { 0.125 });
                for vector in 0..VECTORS {
                    for axis in 0..3 {
                        let pull = L::mul(pull[vector][axis], scale);
                        L::store(pulls[axis].as_mut_ptr().add(vector * L::COUNT), pull);
                    }
                }
            }
            for lane in 0..VECTORS * L::COUNT {
                let body = first + lane;
                for axis in 0..3 {
                    let velocity = &mut velocities[3 * body + axis];
                    *velocity = pulls[axis][lane].mul_add(step.dt, *velocity);
                    moved[4 * body + axis] = velocity.mul_add(step.dt, places[axis][lane]);
                }
                moved[4 * body + 3] = own[4 * body + 3];
            }
        }
    }

    #[inline(always)]
    unsafe fn exact<L: Lanes>(step: Step, bodies: &[f32], own: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
        // SAFETY: as for `part`.
        unsafe { part::<L, true>(step, bodies, own, velocities, moved) }
    }

    #[inline(always)]
    unsafe fn near<L: Lanes>(step: Step, bodies: &[f32], own: &[f32], velocities: &mut [f32], moved: &mut [f32]) {
        // SAFETY: as for `part`.
        unsafe { part::<L, false>(step, bodies, own, velocities, moved) }
    }

    let count = bodies.len() / 4;
    assert!(count.is_multiple_of(BODIES) && velocities.len() == 3 * count && moved.len() == 4 * count);
    let results = velocities.par_chunks_mut(3 * BODIES).zip(moved.par_chunks_mut(4 * BODIES));
    results.zip(bodies.par_chunks(4 * BODIES)).for_each(|((velocities, moved), own)| {
        if EXACT {
            on!(isa, exact(step: Step, bodies: &[f32], own: &[f32], velocities: &mut [f32], moved: &mut [f32]));
        } else {
            on!(isa, near(step: Step, bodies: &[f32], own: &[f32], velocities: &mut [f32], moved: &mut [f32]));
        }
    });
}

/// GotoBLAS algorithm: B is packed in slices of `DEPTH` rows, A in blocks that stay in the L2 cache, both in the access
/// order of the innermost loop, which keeps a tile of C in registers. Every element of C is one chain of fused
/// multiply-adds, as in the kernel.
pub(super) fn matmul(isa: Isa, side: usize, a: &[f32], b: &[f32], c: &mut [f32], packed: &mut [f32]) {
    /// Rows of a slice of B.
    const DEPTH: usize = 256;
    /// Rows of a block of A, a multiple of the tile heights.
    const HEIGHT: usize = 48;

    /// Packs columns of a slice of B: two vectors of each row.
    #[inline(always)]
    unsafe fn pack<L: Lanes>(b: &[f32], side: usize, column: usize, packed: &mut [f32]) {
        // SAFETY: the columns are in bounds of the matrix, and there is room for all rows of the slice.
        unsafe {
            for row in 0..b.len() / side {
                let from = b.as_ptr().add(row * side + column);
                let to = packed.as_mut_ptr().add(row * 2 * L::COUNT);
                L::store(to, L::load(from));
                L::store(to.add(L::COUNT), L::load(from.add(L::COUNT)));
            }
        }
    }

    /// Adds the product of a block of A and a slice of B to at most `HEIGHT` rows of C.
    #[inline(always)]
    unsafe fn block<L: Lanes>(a: &[f32], from: usize, depth: usize, side: usize, packed: &[f32], c: &mut [f32]) {
        // SAFETY: as for the caller. A tile and its operands from A and B fill the registers: 16 or 32.
        unsafe {
            if L::COUNT == 8 {
                tiles::<L, 6>(a, from, depth, side, packed, c);
            } else {
                tiles::<L, 12>(a, from, depth, side, packed, c);
            }
        }
    }

    #[inline(always)]
    unsafe fn tiles<L: Lanes, const ROWS: usize>(
        a: &[f32],
        from: usize,
        depth: usize,
        side: usize,
        packed: &[f32],
        c: &mut [f32],
    ) {
        let rows = c.len() / side;
        // Columns of each tile's rows of A, contiguously; missing rows are 0.
        let mut block = [0f32; HEIGHT * DEPTH];
        for (tile, block) in block.chunks_exact_mut(ROWS * depth).enumerate() {
            for row in tile * ROWS..((tile + 1) * ROWS).min(rows) {
                for (k, element) in a[row * side + from..][..depth].iter().enumerate() {
                    block[k * ROWS + row % ROWS] = *element;
                }
            }
        }
        let width = 2 * L::COUNT;
        // SAFETY: the packed slice has `depth` rows for each column, the block as many columns, and C `rows` rows.
        unsafe {
            for column in (0..side).step_by(width) {
                let b = packed.as_ptr().add(column * depth);
                for tile in 0..rows.div_ceil(ROWS) {
                    let a = block.as_ptr().add(tile * ROWS * depth);
                    let here = (rows - tile * ROWS).min(ROWS);
                    let to = c.as_mut_ptr().add(tile * ROWS * side + column);
                    let mut sums = [[L::splat(0.0); 2]; ROWS];
                    if from > 0 {
                        for row in 0..ROWS {
                            if row < here {
                                sums[row][0] = L::load(to.add(row * side));
                                sums[row][1] = L::load(to.add(row * side + L::COUNT));
                            }
                        }
                    }
                    for k in 0..depth {
                        let left = L::load(b.add(k * width));
                        let right = L::load(b.add(k * width + L::COUNT));
                        for row in 0..ROWS {
                            let a = L::splat(*a.add(k * ROWS + row));
                            sums[row][0] = L::fma(a, left, sums[row][0]);
                            sums[row][1] = L::fma(a, right, sums[row][1]);
                        }
                    }
                    for row in 0..ROWS {
                        if row < here {
                            L::store(to.add(row * side), sums[row][0]);
                            L::store(to.add(row * side + L::COUNT), sums[row][1]);
                        }
                    }
                }
            }
        }
    }

    assert!(side.is_multiple_of(32) && [a.len(), b.len(), c.len()] == [side * side; 3]);
    let width = if isa == Isa::Avx512 { 32 } else { 16 };
    for from in (0..side).step_by(DEPTH) {
        let depth = DEPTH.min(side - from);
        let b = &b[from * side..(from + depth) * side];
        let packed = &mut packed[..depth * side];
        packed.par_chunks_mut(width * depth).enumerate().for_each(|(column, packed)| {
            let column = column * width;
            on!(isa, pack(b: &[f32], side: usize, column: usize, packed: &mut [f32]));
        });
        let packed = &*packed;
        c.par_chunks_mut(HEIGHT * side).zip(a.par_chunks(HEIGHT * side)).for_each(|(c, a)| {
            on!(isa, block(a: &[f32], from: usize, depth: usize, side: usize, packed: &[f32], c: &mut [f32]));
        });
    }
}

/// Single-pass chained scan: threads take tiles in order. Summing a tile brings it into the cache;
/// once the sum of all earlier tiles is known, its own is published, and the prefix sums are written while the tile is
/// cached: memory is read once.
pub(super) fn scan(isa: Isa, data: &[u32], sums: &mut [u32]) {
    /// Elements of a tile.
    const TILE: usize = 1 << 14;
    const KNOWN: u64 = 1 << 32;

    #[inline(always)]
    unsafe fn total<L: Lanes>(data: &[u32]) -> u32 {
        const CHAINS: usize = 4;
        let whole = data.len() / (CHAINS * L::COUNT) * (CHAINS * L::COUNT);
        let from = data.as_ptr();
        let mut lanes = [0u32; 16];
        // SAFETY: there are `whole` elements, and at most 16 lanes.
        unsafe {
            let mut sums = [L::splat_u(0); CHAINS];
            for start in (0..whole).step_by(CHAINS * L::COUNT) {
                for (chain, sum) in sums.iter_mut().enumerate() {
                    *sum = L::add_u(*sum, L::load_u(from.add(start + chain * L::COUNT)));
                }
            }
            let both = [L::add_u(sums[0], sums[1]), L::add_u(sums[2], sums[3])];
            L::store_u(lanes.as_mut_ptr(), L::add_u(both[0], both[1]));
        }
        lanes.iter().chain(&data[whole..]).fold(0, |sum, element| sum.wrapping_add(*element))
    }

    #[inline(always)]
    unsafe fn part<L: Lanes>(before: u32, data: &[u32], sums: &mut [u32]) {
        let whole = data.len() / L::COUNT * L::COUNT;
        let (from, to) = (data.as_ptr(), sums.as_mut_ptr());
        let mut lanes = [before; 16];
        // SAFETY: both have `whole` elements, the sums are aligned, and there are at most 16 lanes.
        unsafe {
            let mut before = L::splat_u(before);
            for at in (0..whole).step_by(L::COUNT) {
                let own = L::prefix_sums(L::load_u(from.add(at)));
                L::stream_u(to.add(at), L::add_u(own, before));
                before = L::add_u(before, L::last(own));
            }
            L::store_u(lanes.as_mut_ptr(), before);
            _mm_sfence();
        }
        let mut sum = lanes[0];
        for (to, element) in sums[whole..].iter_mut().zip(&data[whole..]) {
            sum = sum.wrapping_add(*element);
            *to = sum;
        }
    }

    assert!(data.len() == sums.len() && is_aligned(sums));
    let tiles = data.len().div_ceil(TILE);
    // Sum of all earlier tiles, and whether it is known.
    let before: Vec<AtomicU64> = (0..=tiles).map(|_| AtomicU64::new(0)).collect();
    before[0].store(KNOWN, Ordering::Relaxed);
    let next = AtomicUsize::new(0);
    let to = Shared(sums.as_mut_ptr());
    rayon::broadcast(|_| {
        let to = &to;
        loop {
            let tile = next.fetch_add(1, Ordering::Relaxed);
            if tile >= tiles {
                return;
            }
            let start = tile * TILE;
            let data = &data[start..(start + TILE).min(data.len())];
            // SAFETY: every tile is taken once, and is in bounds of the sums.
            let sums = unsafe { std::slice::from_raw_parts_mut(to.0.add(start), data.len()) };
            let total = on!(isa, total(data: &[u32]) -> u32);
            // Terminates: the thread with the previous tile is working on it, or is descheduled and continues later.
            let mut known = before[tile].load(Ordering::Acquire);
            let mut looks = 0;
            while known < KNOWN {
                looks += 1;
                if looks % 256 == 0 {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                known = before[tile].load(Ordering::Acquire);
            }
            let known = known as u32;
            before[tile + 1].store(KNOWN | u64::from(known.wrapping_add(total)), Ordering::Release);
            on!(isa, part(known: u32, data: &[u32], sums: &mut [u32]));
        }
    });
}

/// A pointer shared by threads that write to disjoint elements.
struct Shared<T>(*mut T);

// SAFETY: every write argues that its element is exclusive.
unsafe impl<T> Sync for Shared<T> {}

/// Adjacent bytes are counted in different tables, which avoids store-to-load dependencies between equal bytes.
pub(super) fn histogram(_: Isa, data: &[u8]) -> [u32; 256] {
    const TABLES: usize = 8;
    let part = |data: &[u8]| {
        let mut tables = [[0u32; 256]; TABLES];
        let words = data.chunks_exact(TABLES);
        for byte in words.remainder() {
            tables[0][usize::from(*byte)] += 1;
        }
        for word in words {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            for (place, table) in tables.iter_mut().enumerate() {
                table[(word >> (8 * place)) as usize & 0xff] += 1;
            }
        }
        tables.into_iter().fold([0; 256], plain::added)
    };
    data.par_chunks(1 << 18).map(part).reduce(|| [0; 256], plain::added)
}

/// Radix sort with 8-bit digits. All threads scatter the keys into buckets by their highest digit; a bucket of random
/// keys then fits into the L1 cache, where one thread sorts it from the lowest digit upwards.
pub(super) fn sort(_: Isa, keys: &[u32], sorted: &mut [u32], scratch: &mut [u32]) {
    const DIGITS: usize = 256;

    fn digit(key: u32, place: u32) -> usize {
        (key >> (8 * place)) as usize % DIGITS
    }

    /// Scatters keys to the start of their digits.
    ///
    /// # Safety
    /// The elements of `to` from each start, one for each key with that digit, are in bounds and written by no other thread.
    unsafe fn scatter(keys: &[u32], place: u32, starts: &mut [u32; DIGITS], to: *mut u32) {
        for key in keys {
            let start = &mut starts[digit(*key, place)];
            // SAFETY: promised by the caller.
            unsafe { *to.add(*start as usize) = *key };
            *start += 1;
        }
    }

    /// Replaces a count by a start (exclusive prefix sum in `before`).
    fn begin(counts: &mut u32, before: &mut u32) {
        *before += std::mem::replace(counts, *before);
    }

    assert_eq!([sorted.len(), scratch.len()], [keys.len(); 2]);
    let part = keys.len().div_ceil(rayon::current_num_threads()).max(1);
    let count = |keys: &[u32]| {
        let mut counts = [0u32; DIGITS];
        for key in keys {
            counts[digit(*key, 3)] += 1;
        }
        counts
    };
    let mut starts: Vec<[u32; DIGITS]> = keys.par_chunks(part).map(count).collect();
    let (mut before, mut lengths) = (0, [0; DIGITS]);
    for digit in 0..DIGITS {
        let first = before;
        for starts in &mut starts {
            begin(&mut starts[digit], &mut before);
        }
        lengths[digit] = (before - first) as usize;
    }
    let to = Shared(scratch.as_mut_ptr());
    keys.par_chunks(part).zip(starts).for_each(|(keys, mut starts)| {
        let to = &to;
        // SAFETY: the counts of all digits and parts sum up to the length, so places are in bounds and unique.
        unsafe { scatter(keys, 3, &mut starts, to.0) };
    });

    let mut buckets = Vec::with_capacity(DIGITS);
    let (mut sorted, mut scratch) = (sorted, scratch);
    for length in lengths {
        let (to, from);
        (to, sorted) = sorted.split_at_mut(length);
        (from, scratch) = scratch.split_at_mut(length);
        buckets.push((from, to));
    }
    buckets.into_par_iter().for_each(|(from, to)| {
        let mut starts = [[0u32; DIGITS]; 3];
        for key in &*from {
            for (place, counts) in starts.iter_mut().enumerate() {
                counts[digit(*key, place as u32)] += 1;
            }
        }
        for counts in &mut starts {
            let mut before = 0;
            for count in counts {
                begin(count, &mut before);
            }
        }
        // SAFETY: both have as many elements as were counted.
        unsafe {
            scatter(from, 0, &mut starts[0], to.as_mut_ptr());
            scatter(to, 1, &mut starts[1], from.as_mut_ptr());
            scatter(from, 2, &mut starts[2], to.as_mut_ptr());
        }
    });
}
