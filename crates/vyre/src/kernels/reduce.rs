//! Reductions: one value of all elements.
//!
//! A workgroup has a chunk of the elements, through which its lanes go side by side; then what they have is reduced in a tree. What chunks
//! gave is reduced in the same way, until there is one value.

use std::ops::Range;

use super::sort::Key;
use super::{built, length};
use crate::build::Val;
use crate::device::Batch;
use crate::{Buffer, Device, Error, Number};

/// Invocations of a workgroup. So many are in registers of a processor at once.
pub(super) const LANES: u32 = 64;

/// Elements of a workgroup: few enough for the second cache, enough to make up for the tree.
pub(super) const CHUNK: u32 = 1 << 16;

/// `op` of all elements, in some order; `identity` if there are none.
///
/// `op` is associative and commutative, or nearly so, as sums of floats are, and `op(identity, v)` is `v`.
///
/// - Work: n, in one launch for up to 65 536 elements and two for more. Every element is read once.
/// - Memory: n ÷ 65 536 elements.
/// - Exactness: which element meets which depends on the length alone. Element i belongs to chunk i ÷ 65 536 and lane i mod 64: each lane
///   starts with the identity and takes its elements in their order, then lane l takes what l + 32 has, then l + 16, and so on; and the
///   same with what chunks have.
///
/// # Errors
/// A launch fails.
pub fn reduce<T, F>(device: &Device, x: &Buffer<T>, identity: T, op: F) -> Result<T, Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + Copy + 'static,
{
    if length("x", x)? == 0 {
        return Ok(identity);
    }
    let mut batch = Batch::new(device);
    let mut totals = device.zeros(chunks(x.len()))?;
    record(&mut batch, x, 0..totals.len(), &totals, identity, op)?;
    while totals.len() > 1 {
        let fewer = device.zeros(chunks(totals.len()))?;
        record(&mut batch, &totals, 0..fewer.len(), &fewer, identity, op)?;
        totals = fewer;
    }
    batch.run()?;
    Ok(totals.download()?[0])
}

/// The sum of all elements.
///
/// - Work: n, in launches as [`reduce`].
/// - Memory: n ÷ 65 536 elements.
/// - Exactness: integers wrap; floats are rounded after each addition, in the order of [`reduce`].
///
/// # Errors
/// A launch fails.
pub fn sum<T: Number + 'static>(device: &Device, x: &Buffer<T>) -> Result<T, Error> {
    reduce(device, x, bytemuck::Zeroable::zeroed(), |a, b| a + b)
}

/// The least element, if there is one. NaNs count only where there is nothing else, and then as infinity.
///
/// - Work: n, in launches as [`reduce`].
/// - Memory: n ÷ 65 536 elements.
/// - Exactness: exact; −0 is less than +0.
///
/// # Errors
/// A launch fails.
pub fn min<T: Key>(device: &Device, x: &Buffer<T>) -> Result<Option<T>, Error> {
    if x.is_empty() { Ok(None) } else { reduce(device, x, T::GREATEST, |a, b| a.min(b)).map(Some) }
}

/// The greatest element, if there is one. NaNs count only where there is nothing else, and then as negative infinity.
///
/// - Work: n, in launches as [`reduce`].
/// - Memory: n ÷ 65 536 elements.
/// - Exactness: exact; −0 is less than +0.
///
/// # Errors
/// A launch fails.
pub fn max<T: Key>(device: &Device, x: &Buffer<T>) -> Result<Option<T>, Error> {
    if x.is_empty() { Ok(None) } else { reduce(device, x, T::LEAST, |a, b| a.max(b)).map(Some) }
}

/// How many chunks so many elements are.
pub(super) fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK as usize)
}

/// Invocations for so many chunks.
pub(super) fn grid(chunks: usize) -> usize {
    chunks * LANES as usize
}

/// Where a chunk of so many elements begins and ends.
pub(super) fn bounds<'k>(chunk: Val<'k, u32>, size: u32, length: Val<'k, u32>) -> [Val<'k, u32>; 2] {
    let start = chunk * size;
    [start, (start + size).min(length)]
}

/// Reduces some chunks, to one total each.
pub(super) fn record<T, F>(
    batch: &mut Batch<'_>,
    x: &Buffer<T>,
    chunks: Range<usize>,
    totals: &Buffer<T>,
    identity: T,
    op: F,
) -> Result<(), Error>
where
    T: Number + 'static,
    F: for<'k> Fn(Val<'k, T>, Val<'k, T>) -> Val<'k, T> + 'static,
{
    let launch = built("reduce", [LANES, 1, 1], move |k| {
        let (first, identity) = (k.uniform::<u32>("first"), k.uniform::<T>("identity"));
        let (x, totals) = (k.read::<T>("x"), k.write::<T>("totals"));
        let tree = k.workgroup::<T>("tree", LANES);
        let (lane, chunk) = (k.local_index(), first.load() + k.group_index());
        let [start, end] = bounds(chunk, CHUNK, x.len());
        let own = k.var(identity.load());
        k.for_range_step(start + lane, end, LANES, |i| own.set(op(own.get(), x.load(i))));
        tree.store(lane, own.get());
        let width = k.var(LANES / 2);
        k.while_(
            || width.get().gt(0),
            || {
                k.workgroup_barrier();
                let width_now = width.get();
                k.if_(lane.lt(width_now), || tree.store(lane, op(tree.load(lane), tree.load(lane + width_now))));
                width.set(width_now >> 1);
            },
        );
        k.if_(lane.eq(0), || totals.store(chunk, tree.load(0)));
    });
    let launch = launch.__scalar("first", chunks.start).__scalar("identity", identity);
    batch.push(launch.__buffer("x", x).__buffer("totals", totals), grid(chunks.len()))
}
