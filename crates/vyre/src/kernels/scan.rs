//! Scans, and what is made of them.
//!
//! Elements are scanned by the chunks of [`reduce`](super::reduce), in two steps: what all of a chunk makes, and then, with what all
//! chunks before make, the scan of each. So that the second step finds in a cache what the first one has read, some chunks
//! at a time go through both. They hand what they make to those after them, in an order that does not depend on how many are some.

use super::reduce::{self, CHUNK, LANES, bounds, chunks, grid};
use super::{built, expect, length};
use crate::build::{Kernel, Object, ReadWrite, Single, Stored, Val};
use crate::device::Batch;
use crate::{Buffer, Device, Element, Error, Number};

/// `y[i]` is `op` of `x[0]` to `x[i]`.
///
/// `op` is associative and commutative, or nearly so, as sums of floats are, and `op(identity, v)` is `v`. In which order it is applied
/// depends on the length alone.
///
/// Work n, n ÷ 65 536 elements of memory, in two launches for each quarter of a million of elements. Every element is read twice, the
/// second time most likely from a cache.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn inclusive_scan<T, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>, identity: T, op: F) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    let mut batch = Batch::new(device);
    record::<T, F, true>(&mut batch, x, y, identity, op)?;
    batch.run()
}

/// `y[i]` is `op` of all elements before `x[i]`, and `y[0]` the identity; otherwise as [`inclusive_scan`].
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn exclusive_scan<T, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>, identity: T, op: F) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    let mut batch = Batch::new(device);
    record::<T, F, false>(&mut batch, x, y, identity, op)?;
    batch.run()
}

/// Puts the elements that meet a condition next to each other, in their order, at the beginning of `y`, and gives how many there
/// are. The rest of `y` stays as it is; elements for which it is too short are left out.
///
/// Work n, n ÷ 32 768 words of memory, in four launches for up to 2³¹ elements. Every element is read twice.
///
/// ```
/// # use vyre::{Device, kernels};
/// # fn main() -> Result<(), vyre::Error> {
/// # let device = Device::auto()?;
/// let x = device.upload(&[3, -1, 4, -1, 5])?;
/// let mut y = device.zeros::<i32>(5)?;
/// assert_eq!(kernels::compact(&device, &x, &mut y, |v| v.gt(0))?, 3);
/// assert_eq!(y.download()?, [3, 4, 5, 0, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A launch fails.
pub fn compact<T, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>, condition: F) -> Result<usize, Error>
where
    T: Element + Single + 'static,
    F: for<'k> Fn(Val<'k, <T as Stored>::Value>) -> Val<'k, bool> + Copy + 'static,
{
    let groups = chunks(length("x", x)?);
    if groups == 0 {
        return Ok(0);
    }
    let (counts, ends) = (device.zeros::<u32>(groups)?, device.zeros::<u32>(groups)?);
    let mut batch = Batch::new(device);

    let count = built("count", [LANES, 1, 1], move |k| {
        let (x, counts) = (k.read::<T>("x"), k.atomic::<u32>("counts"));
        let [start, end] = bounds(k.group_index(), CHUNK, x.len());
        let own = k.var(0u32);
        k.for_range_step(start + k.local_index(), end, LANES, |i| {
            own.set(own.get() + condition(x.load(i)).select(1u32, 0u32));
        });
        counts.add(k.group_index(), own.get());
    });
    batch.push(count.__buffer("x", x).__buffer("counts", &counts), grid(groups))?;
    record::<u32, _, true>(&mut batch, &counts, &ends, 0, |a, b| a + b)?;

    let pack = built("pack", [LANES, 1, 1], move |k| {
        let (x, ends, y) = (k.read::<T>("x"), k.read::<u32>("ends"), k.write::<T>("y"));
        let (group, lane) = (k.group_index(), k.local_index());
        let [start, end] = bounds(group, CHUNK, x.len());
        let mut steps = Steps::new(k, 1, k.lit(0u32));
        let next = k.var(group.gt(0).select(ends.load(group - 1), 0u32));
        k.for_range_step(start, end, LANES, |tile| {
            let i = tile + lane;
            let value = x.load(i);
            let is_kept = i.lt(end) & condition(value);
            steps.run(&[is_kept.select(1u32, 0u32)], &|a, b| a + b);
            k.if_(is_kept, || y.store(next.get() + steps.before(0), value));
            next.set(next.get() + steps.all(0));
        });
    });
    batch.push(pack.__buffer("x", x).__buffer("ends", &ends).__buffer("y", y), grid(groups))?;
    batch.run()?;
    Ok(ends.slice(groups - 1..groups)?.download()?[0] as usize)
}

/// What is needed to scan a row of values, one of each lane of a workgroup, or some rows at once: two arrays with identities before
/// each row, so that the first lanes find something before them.
struct Steps<'k, T> {
    arrays: [Object<'k, T, ReadWrite>; 2],
    lane: Val<'k, u32>,
}

impl<'k, T: Number> Steps<'k, T> {
    const BEFORE: u32 = LANES / 2;
    const ROW: u32 = Self::BEFORE + LANES;

    fn new(k: &'k Kernel, rows: u32, identity: Val<'k, T>) -> Steps<'k, T> {
        let arrays = ["partial", "partial_next"].map(|name| k.workgroup::<T>(name, rows * Self::ROW));
        let lane = k.local_index();
        k.if_(lane.lt(Self::BEFORE), || {
            for row in 0..rows {
                arrays.iter().for_each(|array| array.store(lane + row * Self::ROW, identity));
            }
        });
        Steps { arrays, lane }
    }

    /// Scans a value of each lane for every row.
    fn run(&mut self, own: &[Val<'k, T>], op: &impl for<'o> Fn(Val<'o, T>, Val<'o, T>) -> Val<'o, T>) {
        let k = self.lane.kernel();
        let rows = || (0..own.len() as u32).map(|row| self.lane + (row * Self::ROW + Self::BEFORE));
        // Everybody has read what an earlier run has made.
        k.workgroup_barrier();
        let [mut from, mut to] = self.arrays;
        rows().zip(own).for_each(|(at, &own)| from.store(at, own));
        let (mut so_far, mut distance) = (own.to_vec(), 1);
        while distance < LANES {
            k.workgroup_barrier();
            for (at, so_far) in rows().zip(&mut so_far) {
                *so_far = op(from.load(at - distance), *so_far);
                to.store(at, *so_far);
            }
            std::mem::swap(&mut from, &mut to);
            distance *= 2;
        }
        k.workgroup_barrier();
        self.arrays = [from, to];
    }

    /// What all lanes before this one make.
    fn before(&self, row: u32) -> Val<'k, T> {
        self.arrays[0].load(self.lane + (row * Self::ROW + Self::BEFORE - 1))
    }

    /// What all lanes make.
    fn all(&self, row: u32) -> Val<'k, T> {
        self.arrays[0].load((row + 1) * Self::ROW - 1)
    }
}

/// Scans `x` into `y`, which are different buffers.
pub(super) fn record<T, F, const INCLUSIVE: bool>(
    batch: &mut Batch<'_>,
    x: &Buffer<T>,
    y: &Buffer<T>,
    identity: T,
    op: F,
) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    let groups = chunks(length("x", x)?);
    expect("y", y, x.len())?;
    let totals = batch.device().zeros::<T>(groups)?;
    // One for those at a time, and one more that nobody reads.
    let carries = batch.device().zeros::<T>(groups.div_ceil(AT_A_TIME) + 1)?;
    for (part, first) in (0..groups).step_by(AT_A_TIME).enumerate() {
        let some = first..(first + AT_A_TIME).min(groups);
        reduce::record(batch, x, some.clone(), &totals, identity, op)?;
        let launch = built("scan", [LANES, 1, 1], move |k| {
            let (first, part) = (k.uniform::<u32>("first"), k.uniform::<u32>("part"));
            let (identity, x) = (k.uniform::<T>("identity"), k.read::<T>("x"));
            let (totals, carries, y) = (k.read::<T>("totals"), k.read_write::<T>("carries"), k.write::<T>("y"));
            let (first, part, identity) = (first.load(), part.load(), identity.load());
            let (lane, chunk) = (k.local_index(), first + k.group_index());
            let [start, end] = bounds(chunk, CHUNK, x.len());
            let before = k.var(part.gt(0).select(carries.load(part), identity));
            k.for_range(first, chunk, |earlier| before.set(op(before.get(), totals.load(earlier))));
            // The last of these workgroups hands on what all of them make.
            let is_last = lane.eq(0) & (k.group_index() + 1).eq(k.group_count(crate::ir::Axis::X));
            k.if_(is_last, || carries.store(part + 1, op(before.get(), totals.load(chunk))));

            // A lane takes some neighbours of a row, so that the steps between lanes are needed once for all of them, and lanes go
            // through the steps of some rows at once.
            let wide = if size_of::<T>() == 4 { 4 } else { 1 };
            let mut steps = Steps::new(k, ROWS, identity);
            k.for_range_step(start, end, ROWS * LANES * wide, |tile| {
                // What is beyond the end is not stored.
                let at = |row| tile + (lane * wide + row * LANES * wide);
                let sums = |row| {
                    let mut sums = if wide == 4 { x.load_wide::<4>(at(row)).to_vec() } else { vec![x.load(at(row))] };
                    for i in 1..sums.len() {
                        sums[i] = op(sums[i - 1], sums[i]);
                    }
                    sums
                };
                let rows: Vec<Vec<_>> = (0..ROWS).map(sums).collect();
                let totals: Vec<_> = rows.iter().map(|sums| sums[sums.len() - 1]).collect();
                steps.run(&totals, &op);
                for (row, sums) in (0..).zip(&rows) {
                    let before_own = op(before.get(), steps.before(row));
                    before.set(op(before.get(), steps.all(row)));
                    let mut results: Vec<_> = sums.iter().map(|&sum| op(before_own, sum)).collect();
                    if !INCLUSIVE {
                        results.rotate_right(1);
                        results[0] = before_own;
                    }
                    match results.as_slice() {
                        &[r0, r1, r2, r3] => y.store_wide(at(row), [r0, r1, r2, r3]),
                        results => y.store(at(row), results[0]),
                    }
                }
            });
        });
        let launch = launch.__scalar("first", first).__scalar("part", part).__scalar("identity", identity);
        let launch = launch.__buffer("x", x).__buffer("totals", &totals).__buffer("carries", &carries).__buffer("y", y);
        batch.push(launch, grid(some.len()))?;
    }
    Ok(())
}

/// Rows that go through the steps between lanes together.
const ROWS: u32 = 4;

/// Chunks that go through both steps together: what they read stays in a cache.
const AT_A_TIME: usize = (1 << 18) / CHUNK as usize;
