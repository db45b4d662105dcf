//! Scans, and what is made of them.
//!
//! A lane has some neighbours, and eight lanes are a block: what is before an element in its block is found in steps between lanes, and
//! what is before the block is handed on from one to the next. Elements are scanned by the chunks of [`reduce`](super::reduce),
//! since what all chunks before make must be known.
//!
//! Where workgroups can wait for each other and lanes can read each other's registers, that is one launch: a workgroup of one
//! subgroup reduces a chunk, waits for what is before it, and finds the chunk in a cache when it scans it. Elsewhere, workgroups
//! of more lanes reduce chunks in one launch and scan them in another, and some chunks at a time go through both, so that they are
//! still in a cache. All do the same operations in the same order.

use super::reduce::{self, CHUNK, LANES, bounds, chunks, grid};
use super::{built, expect, length};
use crate::build::{Kernel, Object, Read, ReadWrite, Single, Stored, Val, Write};
use crate::device::Batch;
use crate::{Buffer, Device, Element, Error, Number};

/// `y[i]` is `op` of `x[0]` to `x[i]`.
///
/// `op` is associative and commutative, or nearly so, as sums of floats are, and `op(identity, v)` is `v`.
///
/// - Work: n, in one launch where workgroups can wait for each other and elements have 32 bits, and elsewhere in two for each 262 144
///   elements. Every element is read twice, the second time most likely from a cache.
/// - Memory: n ÷ 65 536 elements, and at most a quarter more.
/// - Exactness: in which order `op` is applied depends on the length alone.
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

/// `y[i]` is `op` of all elements before `x[i]`, and `y[0]` the identity; otherwise as [`inclusive_scan`].
///
/// - Work: n, in launches as [`inclusive_scan`].
/// - Memory: n ÷ 65 536 elements, and at most a quarter more.
/// - Exactness: in which order `op` is applied depends on the length alone.
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

/// Puts the elements that meet a condition next to each other, in their order, at the beginning of `y`, and gives how many there
/// are. The rest of `y` stays as it is; elements for which it is too short are left out.
///
/// - Work: n, in three launches where scans are one, and elsewhere in four. Every element is read twice.
/// - Memory: n ÷ 32 768 words.
/// - Exactness: bits and order stay as they are.
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

/// Lanes between which there are steps. Every device has subgroups of as many, or does without subgroups.
const BLOCK: u32 = 8;

/// Scans a value of each lane, from what is before all of them on. Gives what is before each lane, and what is before the lanes that
/// follow.
///
/// `lower` gives lanes what the lane so much below has, if that is in the same block, and `lane` gives all what one lane has.
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

/// Two arrays through which the lanes of a workgroup see each other's values.
struct Steps<'k, T> {
    arrays: [Object<'k, T, ReadWrite>; 2],
}

impl<'k, T: Number> Steps<'k, T> {
    /// So many elements are before that of the first lane.
    const BEFORE: u32 = BLOCK / 2;

    fn new(k: &'k Kernel) -> Steps<'k, T> {
        Steps { arrays: ["partial", "partial_next"].map(|name| k.workgroup::<T>(name, Self::BEFORE + LANES)) }
    }

    /// [`scan_lanes`], for all lanes of a workgroup.
    fn run(&self, values: [Val<'k, T>; 3], op: impl Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T>) -> [Val<'k, T>; 2] {
        let k = values[0].kernel();
        let at = k.local_index() + Self::BEFORE;
        let [mut to, mut next] = self.arrays;
        let lower = |value, distance| {
            // All have read this array when they met to read the other one.
            std::mem::swap(&mut to, &mut next);
            to.store(at, value);
            k.workgroup_barrier();
            to.load(at - distance)
        };
        // The last thing that was stored is what lanes have at the end; that was the fourth.
        let last = self.arrays[0];
        scan_lanes(values, LANES, lower, |_, lane| last.load(lane + Self::BEFORE), op)
    }
}

/// A scan of `x` into `y`, which are different buffers.
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

    /// Adds its launches.
    pub(super) fn record<const INCLUSIVE: bool>(&self, batch: &mut Batch<'_>) -> Result<(), Error> {
        let groups = chunks(length("x", self.x)?);
        expect("y", self.y, self.x.len())?;
        let capabilities = batch.device().driver().capabilities();
        // Subgroups exchange 32 bits at once.
        match capabilities.subgroup_size.filter(|_| capabilities.independent_groups && size_of::<T>() == 4) {
            Some(8) if groups > 0 => self.record_chain::<INCLUSIVE, 8>(batch, groups),
            Some(16) if groups > 0 => self.record_chain::<INCLUSIVE, 16>(batch, groups),
            _ => self.record_steps::<INCLUSIVE>(batch, groups),
        }
    }

    /// One launch, of workgroups that are subgroups and wait for each other.
    fn record_chain<const INCLUSIVE: bool, const SUBGROUP: u32>(
        &self,
        batch: &mut Batch<'_>,
        groups: usize,
    ) -> Result<(), Error> {
        // How many chunks were taken, and how many have handed on what they and those before them make.
        const TAKEN: u32 = 0;
        const HANDED_ON: u32 = 1;

        let Scan { x, y, identity, op } = *self;
        let (counts, carries) = (batch.device().zeros::<u32>(2)?, batch.device().zeros::<T>(groups + 1)?);
        let launch = built("scan_chain", [SUBGROUP, 1, 1], move |k| {
            let (identity, x, y) = (k.uniform::<T>("identity"), k.read::<T>("x"), k.write::<T>("y"));
            let (counts, carries) = (k.atomic::<u32>("counts"), k.read_write::<T>("carries"));
            let (identity, lane) = (identity.load(), k.local_index());
            // Who comes first takes the first chunk, so that those before it are at least begun.
            let taken = k.var(0u32);
            k.if_(lane.eq(0), || taken.set(counts.add(TAKEN, 1)));
            let chunk = taken.get().broadcast();
            let [start, end] = bounds(chunk, CHUNK, x.len());

            // What the lanes of `reduce` have, side by side, and their tree.
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
                    // This changes nothing, but is not the same as the look before.
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

    /// Launches that reduce some chunks, and launches that scan them.
    fn record_steps<const INCLUSIVE: bool>(&self, batch: &mut Batch<'_>, groups: usize) -> Result<(), Error> {
        let Scan { x, y, identity, op } = *self;
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
                let chunk = first + k.group_index();
                let before = k.var(part.gt(0).select(carries.load(part), identity));
                k.for_range(first, chunk, |earlier| before.set(op(before.get(), totals.load(earlier))));
                // The last of these workgroups hands on what all of them make.
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

/// Chunks that go through both steps together: what they read stays in a cache.
const AT_A_TIME: usize = (1 << 18) / CHUNK as usize;

/// Scans a chunk, from what is before it on.
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
    // A lane takes some neighbours, so that steps between lanes are needed once for all of them.
    let wide = if size_of::<T>() == 4 { 4 } else { 1 };
    let before = k.var(before);
    k.for_range_step(start, end, lanes * wide, |row| {
        // What is beyond the end is not stored.
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
