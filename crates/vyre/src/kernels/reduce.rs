//! Tree reductions.
//!
//! A workgroup reduces a chunk of the elements: its invocations stride through the chunk, then reduce their partial results in a tree
//! in workgroup memory. The results of the chunks are reduced in the same way until one value is left.

use std::ops::Range;

use super::sort::Key;
use super::{built, length};
use crate::build::Val;
use crate::device::Batch;
use crate::{Buffer, Device, Error, Number};

/// Invocations of a workgroup: the CPU keeps the accumulators of 64 in registers.
pub(super) const LANES: u32 = 64;

/// Elements of a workgroup: a chunk fits into the L2 cache, and is long enough to amortize the tree.
pub(super) const CHUNK: u32 = 1 << 16;

/// Reduces all elements with `op`; returns `identity` for an empty buffer.
///
/// `op` must be associative and commutative, exactly or approximately (as float addition is), and `op(identity, v)` must be `v`.
///
/// - Work: n, in one launch for up to 65 536 elements and two for more. Every element is read once.
/// - Memory: n ÷ 65 536 elements.
/// - Exactness: the order depends on the length only. Element i belongs to chunk i ÷ 65 536 and invocation i mod 64. Each invocation
///   folds its elements in ascending order, from the identity; then invocation l combines its result with that of l + 32, then of
///   l + 16, and so on. The results of the chunks are reduced in the same order.
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

/// Sums all elements.
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

/// Returns the minimum, or `None` for an empty buffer. NaNs are ignored; if all elements are NaN, the result is infinity.
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

/// Returns the maximum, or `None` for an empty buffer. NaNs are ignored; if all elements are NaN, the result is negative infinity.
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

/// Number of chunks that `elements` elements form.
pub(super) fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK as usize)
}

/// Number of invocations for `chunks` chunks.
pub(super) fn grid(chunks: usize) -> usize {
    chunks * LANES as usize
}

/// Start and end of a chunk of `size` elements.
pub(super) fn bounds<'k>(chunk: Val<'k, u32>, size: u32, length: Val<'k, u32>) -> [Val<'k, u32>; 2] {
    let start = chunk * size;
    [start, (start + size).min(length)]
}

/// Records the reduction of a range of chunks, to one total each.
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
