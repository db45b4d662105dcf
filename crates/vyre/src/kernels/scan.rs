//! Prefix scans and stream compaction.
//!
//! An invocation scans a few consecutive elements, and eight lanes form a block: prefixes inside of a block are computed by log-step
//! exchanges between lanes, and the carry passes from block to block. Each chunk is scanned from its carry-in, the reduction of all
//! earlier chunks, in the order of [`reduce`](super::reduce).
//!
//! Where workgroups make forward progress independently and subgroups can shuffle, a scan is one launch (a chained scan): a workgroup of
//! one subgroup reduces a chunk, waits for the carry of its predecessor, publishes its own, and scans the chunk, which is still in a cache.
//! Elsewhere it is reduce-then-scan: one launch reduces chunks and another scans them, a few chunks at a time, so that these are still in a
//! cache. Both apply the same operations in the same order.

use super::reduce::{self, CHUNK, LANES, bounds, chunks, grid};
use super::{built, expect, length};
use crate::build::{Kernel, Object, Read, ReadWrite, Single, Stored, Val, Write};
use crate::device::Batch;
use crate::{Buffer, Device, Element, Error, Number};

/// Inclusive scan: `y[i]` becomes the reduction of `x[0]` to `x[i]` by `op`.
///
/// `op` must be associative and commutative, exactly or approximately (as float addition is), and `op(identity, v)` must be `v`.
///
/// - Work: n, in one launch where workgroups make forward progress independently and elements have 32 bits, and elsewhere in two for each
///   262 144 elements. Every element is read twice, the second time most likely from a cache.
/// - Memory: at most 1.25 × n ÷ 65 536 elements.
/// - Exactness: the order in which `op` is applied depends on the length only.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn inclusive_scan<T, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>, identity: T, op: F) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    let mut batch = Batch::new(device);
    Scan::new(x, y, identity, op).record::<true>(&mut batch)?;
    batch.run()
}

/// Exclusive scan: `y[i]` becomes the reduction of all elements before `x[i]`, and `y[0]` the identity; otherwise as [`inclusive_scan`].
///
/// - Work: n, in launches as [`inclusive_scan`].
/// - Memory: at most 1.25 × n ÷ 65 536 elements.
/// - Exactness: the order in which `op` is applied depends on the length only.
///
/// # Errors
/// The lengths differ, or a launch fails.
pub fn exclusive_scan<T, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>, identity: T, op: F) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    let mut batch = Batch::new(device);
    Scan::new(x, y, identity, op).record::<false>(&mut batch)?;
    batch.run()
}

/// Stream compaction: copies the elements that satisfy `condition` to the start of `y`, in order, and returns their number. The rest of
/// `y` is unchanged; elements beyond the end of `y` are counted, but not stored.
///
/// - Work: n, in three launches where a scan is one, and elsewhere in four. Every element is read twice.
/// - Memory: n ÷ 32 768 words.
/// - Exactness: bits and order are preserved.
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
    Scan::new(&counts, &ends, 0, |a, b| a + b).record::<true>(&mut batch)?;

    let pack = built("pack", [LANES, 1, 1], move |k| {
        let (x, ends, y) = (k.read::<T>("x"), k.read::<u32>("ends"), k.write::<T>("y"));
        let (group, lane) = (k.group_index(), k.local_index());
        let [start, end] = bounds(group, CHUNK, x.len());
        let steps = Steps::new(k);
        let next = k.var(group.gt(0).select(ends.load(group - 1), 0u32));
        k.for_range_step(start, end, LANES, |tile| {
            let i = tile + lane;
            let value = x.load(i);
            let is_kept = i.lt(end) & condition(value);
            let own = is_kept.select(1u32, 0u32);
            let [before, after] = steps.run([own, next.get(), k.lit(0u32)], |a, b| a + b);
            k.if_(is_kept, || y.store(before, value));
            next.set(after);
        });
    });
    batch.push(pack.__buffer("x", x).__buffer("ends", &ends).__buffer("y", y), grid(groups))?;
    batch.run()?;
    Ok(ends.slice(groups - 1..groups)?.download()?[0] as usize)
}

/// Lanes of a block, in which prefixes are computed by log-step exchanges. No device with subgroups has smaller ones.
const BLOCK: u32 = 8;

/// Scans one value per lane, from a carry-in. Returns the exclusive prefix of each lane, and the carry-out.
///
/// `lower(value, d)` returns the value of the lane `d` below, if that is in the same block; `lane(value, l)` broadcasts that of lane `l`.
fn scan_lanes<'k, T: Number>(
    [own, before, identity]: [Val<'k, T>; 3],
    lanes: u32,
    mut lower: impl FnMut(Val<'k, T>, u32) -> Val<'k, T>,
    lane: impl Fn(Val<'k, T>, u32) -> Val<'k, T>,
    op: impl Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T>,
) -> [Val<'k, T>; 2] {
    let index = own.kernel().local_index();
    let mut lower_or_identity =
        |value, distance| (index & (BLOCK - 1)).ge(distance).select(lower(value, distance), identity);
    let mut so_far = own;
    for distance in [1, 2, 4] {
        so_far = op(lower_or_identity(so_far, distance), so_far);
    }
    let before_in_block = lower_or_identity(so_far, 1);
    let (mut before_block, mut after) = (before, before);
    for last in (BLOCK - 1..lanes).step_by(BLOCK as usize) {
        if last >= BLOCK {
            before_block = index.gt(last - BLOCK).select(after, before_block);
        }
        after = op(after, lane(so_far, last));
    }
    [op(before_block, before_in_block), after]
}

/// Lane exchange through workgroup memory, double-buffered, so that one barrier per step is enough.
struct Steps<'k, T> {
    arrays: [Object<'k, T, ReadWrite>; 2],
}

impl<'k, T: Number> Steps<'k, T> {
    /// Padding in front of the element of the first lane.
    const BEFORE: u32 = BLOCK / 2;

    fn new(k: &'k Kernel) -> Steps<'k, T> {
        Steps { arrays: ["partial", "partial_next"].map(|name| k.workgroup::<T>(name, Self::BEFORE + LANES)) }
    }

    /// [`scan_lanes`] over all invocations of a workgroup.
    fn run(&self, values: [Val<'k, T>; 3], op: impl Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T>) -> [Val<'k, T>; 2] {
        let k = values[0].kernel();
        let at = k.local_index() + Self::BEFORE;
        let [mut to, mut next] = self.arrays;
        let lower = |value, distance| {
            // Every lane read this array before the barrier of the previous step.
            std::mem::swap(&mut to, &mut next);
            to.store(at, value);
            k.workgroup_barrier();
            to.load(at - distance)
        };
        // The fourth and last step stored the final values, in the first array.
        let last = self.arrays[0];
        scan_lanes(values, LANES, lower, |_, lane| last.load(lane + Self::BEFORE), op)
    }
}

/// A scan of `x` into `y`, which must not alias.
pub(super) struct Scan<'a, T, F> {
    x: &'a Buffer<T>,
    y: &'a Buffer<T>,
    identity: T,
    op: F,
}

impl<'a, T, F> Scan<'a, T, F>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    pub(super) fn new(x: &'a Buffer<T>, y: &'a Buffer<T>, identity: T, op: F) -> Scan<'a, T, F> {
        Scan { x, y, identity, op }
    }

    /// Records the launches of the scan.
    pub(super) fn record<const INCLUSIVE: bool>(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let groups = chunks(length("x", self.x)?);
        expect("y", self.y, self.x.len())?;
        let capabilities = batch.device().driver().capabilities();
        // Subgroup shuffles move 32 bits.
        match capabilities.subgroup_size.filter(|_| capabilities.independent_groups && size_of::<T>() == 4) {
            Some(8) if groups > 0 => self.record_chain::<INCLUSIVE, 8>(batch, groups),
            Some(16) if groups > 0 => self.record_chain::<INCLUSIVE, 16>(batch, groups),
            _ => self.record_steps::<INCLUSIVE>(batch, groups),
        }
    }

    /// Chained scan: one launch, whose workgroups are single subgroups and wait for their predecessors.
    fn record_chain<const INCLUSIVE: bool, const SUBGROUP: u32>(
        &self,
        batch: &mut Batch<'_>,
        groups: usize,
    ) -> Result<(), Error> {
        // Indices of two counters: chunks that workgroups have taken, and chunks whose carry is published.
        const TAKEN: u32 = 0;
        const HANDED_ON: u32 = 1;

        let Scan { x, y, identity, op } = *self;
        let (counts, carries) = (batch.device().zeros::<u32>(2)?, batch.device().zeros::<T>(groups + 1)?);
        let launch = built("scan_chain", [SUBGROUP, 1, 1], move |k| {
            let (identity, x, y) = (k.uniform::<T>("identity"), k.read::<T>("x"), k.write::<T>("y"));
            let (counts, carries) = (k.atomic::<u32>("counts"), k.read_write::<T>("carries"));
            let (identity, lane) = (identity.load(), k.local_index());
            // Workgroups take chunks in the order in which they start, so that every predecessor of a chunk has started.
            let taken = k.var(0u32);
            k.if_(lane.eq(0), || taken.set(counts.add(TAKEN, 1)));
            let chunk = taken.get().broadcast();
            let [start, end] = bounds(chunk, CHUNK, x.len());

            // The accumulators of the invocations of `reduce`, several per lane, and its tree.
            let own: Vec<_> = (0..LANES / SUBGROUP).map(|_| k.var(identity)).collect();
            let rest = end - ((end - start) & (LANES - 1));
            k.for_range_step(start, rest, LANES, |row| {
                for (first, own) in (0..).step_by(SUBGROUP as usize).zip(&own) {
                    own.set(op(own.get(), x.load(row + lane + first)));
                }
            });
            for (first, own) in (0..).step_by(SUBGROUP as usize).zip(&own) {
                let i = rest + lane + first;
                own.set(i.lt(end).select(op(own.get(), x.load(i)), own.get()));
            }
            let mut tree: Vec<_> = own.iter().map(|own| own.get()).collect();
            while tree.len() > 1 {
                let upper = tree.split_off(tree.len() / 2);
                tree.iter_mut().zip(upper).for_each(|(own, upper)| *own = op(*own, upper));
            }
            let (mut total, mut width) = (tree[0], SUBGROUP / 2);
            while width > 0 {
                total = op(total, total.subgroup_shuffle((lane + width) & (SUBGROUP - 1)));
                width /= 2;
            }

            let handed_on = k.var(0u32);
            k.if_(lane.eq(0), || {
                let look = || {
                    // An atomic or with 0 is a load that is not hoisted out of the loop.
                    handed_on.set(counts.or(HANDED_ON, 0));
                    handed_on.get().ne(chunk)
                };
                k.while_(look, || {});
            });
            let before = chunk.gt(0).select(carries.load(handed_on.get().broadcast()), identity);
            k.if_(lane.eq(0), || carries.store(chunk + 1, op(before, total)));
            k.storage_barrier();
            k.if_(lane.eq(0), || {
                counts.add(HANDED_ON, 1);
            });

            let scan = |values| {
                scan_lanes(
                    values,
                    SUBGROUP,
                    |value, below| value.subgroup_shuffle(k.subgroup_lane() - below),
                    |value, lane| value.subgroup_shuffle(lane),
                    op,
                )
            };
            scan_chunk::<T, F, INCLUSIVE>([start, end], [before, identity], (x, y), SUBGROUP, op, scan);
        });
        let launch = launch.__scalar("identity", identity).__buffer("x", x).__buffer("y", y);
        batch.push(launch.__buffer("counts", &counts).__buffer("carries", &carries), groups * SUBGROUP as usize)
    }

    /// Reduce-then-scan: alternating launches that reduce a few chunks and scan them.
    fn record_steps<const INCLUSIVE: bool>(&self, batch: &mut Batch<'_>, groups: usize) -> Result<(), Error> {
        let Scan { x, y, identity, op } = *self;
        let totals = batch.device().zeros::<T>(groups)?;
        // A carry-in for each pair of launches, and the carry-out of the last, which is not read.
        let carries = batch.device().zeros::<T>(groups.div_ceil(AT_A_TIME) + 1)?;
        for (part, first) in (0..groups).step_by(AT_A_TIME).enumerate() {
            let some = first..(first + AT_A_TIME).min(groups);
            reduce::record(batch, x, some.clone(), &totals, identity, op)?;
            let launch = built("scan", [LANES, 1, 1], move |k| {
                let (first, part) = (k.uniform::<u32>("first"), k.uniform::<u32>("part"));
                let (identity, x) = (k.uniform::<T>("identity"), k.read::<T>("x"));
                let (totals, carries, y) = (k.read::<T>("totals"), k.read_write::<T>("carries"), k.write::<T>("y"));
                let (first, part, identity) = (first.load(), part.load(), identity.load());
                let chunk = first + k.group_index();
                let before = k.var(part.gt(0).select(carries.load(part), identity));
                k.for_range(first, chunk, |earlier| before.set(op(before.get(), totals.load(earlier))));
                // The last workgroup stores the carry-out of the launch.
                let is_last = k.local_index().eq(0) & (k.group_index() + 1).eq(k.group_count(crate::ir::Axis::X));
                k.if_(is_last, || carries.store(part + 1, op(before.get(), totals.load(chunk))));
                let steps = Steps::new(k);
                let (bounds, before) = (bounds(chunk, CHUNK, x.len()), before.get());
                let scan = |values| steps.run(values, op);
                scan_chunk::<T, F, INCLUSIVE>(bounds, [before, identity], (x, y), LANES, op, scan);
            });
            let launch = launch.__scalar("first", first).__scalar("part", part).__scalar("identity", identity);
            let launch =
                launch.__buffer("x", x).__buffer("totals", &totals).__buffer("carries", &carries).__buffer("y", y);
            batch.push(launch, grid(some.len()))?;
        }
        Ok(())
    }
}

/// Chunks per pair of launches: few enough for the second launch to read them from a cache.
const AT_A_TIME: usize = (1 << 18) / CHUNK as usize;

/// Scans a chunk, from its carry-in.
fn scan_chunk<'k, T, F, const INCLUSIVE: bool>(
    [start, end]: [Val<'k, u32>; 2],
    [before, identity]: [Val<'k, T>; 2],
    (x, y): (Object<'k, T, Read>, Object<'k, T, Write>),
    lanes: u32,
    op: F,
    scan: impl Fn([Val<'k, T>; 3]) -> [Val<'k, T>; 2],
) where
    T: Number,
    F: Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T>,
{
    let k = start.kernel();
    // An invocation scans `wide` consecutive elements, which amortizes the exchange between lanes.
    let wide = if size_of::<T>() == 4 { 4 } else { 1 };
    let before = k.var(before);
    k.for_range_step(start, end, lanes * wide, |row| {
        // Elements beyond the end read as 0, and their stores are dropped.
        let at = row + k.local_index() * wide;
        let mut sums = if wide == 4 { x.load_wide::<4>(at).to_vec() } else { vec![x.load(at)] };
        for i in 1..sums.len() {
            sums[i] = op(sums[i - 1], sums[i]);
        }
        let [before_own, after] = scan([sums[sums.len() - 1], before.get(), identity]);
        before.set(after);
        let mut results: Vec<_> = sums.iter().map(|&sum| op(before_own, sum)).collect();
        if !INCLUSIVE {
            results.rotate_right(1);
            results[0] = before_own;
        }
        match results.as_slice() {
            &[r0, r1, r2, r3] => y.store_wide(at, [r0, r1, r2, r3]),
            results => y.store(at, results[0]),
        }
    });
}
