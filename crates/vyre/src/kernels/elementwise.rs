//! Elementwise kernels.

use super::{built, expect, length};
use crate::build::{Single, Stored, Val};
use crate::{Buffer, Device, Element, Error, Launch, Number};

/// Workgroup of kernels with independent invocations.
const GROUP: [u32; 3] = [256, 1, 1];

/// `y[i] = f(x[i])`. Elements of 8 and 16 bits are extended to 32 bits by loads and truncated by stores.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: that of `f`.
///
/// # Errors
/// The lengths differ, or the launch fails.
pub fn map<T, U, F>(device: &Device, x: &Buffer<T>, y: &mut Buffer<U>, f: F) -> Result<(), Error>
where
    T: Element + Single + 'static,
    U: Element + Single + 'static,
    F: for<'k> Fn(Val<'k, <T as Stored>::Value>) -> Val<'k, <U as Stored>::Value> + 'static,
{
    let n = length("x", x)?;
    expect("y", y, n)?;
    mapped(x, y, f).run(device, n)?;
    Ok(())
}

pub(super) fn mapped<'a, T, U, F>(x: &'a Buffer<T>, y: &'a Buffer<U>, f: F) -> Launch<'a>
where
    T: Element + Single + 'static,
    U: Element + Single + 'static,
    F: for<'k> Fn(Val<'k, <T as Stored>::Value>) -> Val<'k, <U as Stored>::Value> + 'static,
{
    let launch = built("map", GROUP, move |k| {
        let (x, y, i) = (k.read::<T>("x"), k.write::<U>("y"), k.global_index());
        k.if_(i.lt(y.len()), || y.store(i, f(x.load(i))));
    });
    launch.__buffer("x", x).__buffer("y", y)
}

/// `y[i] = f(a[i], b[i])`.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: that of `f`.
///
/// # Errors
/// The lengths differ, or the launch fails.
pub fn zip<A, B, U, F>(device: &Device, a: &Buffer<A>, b: &Buffer<B>, y: &mut Buffer<U>, f: F) -> Result<(), Error>
where
    A: Element + Single + 'static,
    B: Element + Single + 'static,
    U: Element + Single + 'static,
    F: for<'k> Fn(Val<'k, <A as Stored>::Value>, Val<'k, <B as Stored>::Value>) -> Val<'k, <U as Stored>::Value>
        + 'static,
{
    let n = length("a", a)?;
    expect("b", b, n)?;
    expect("y", y, n)?;
    let launch = built("zip", GROUP, move |k| {
        let (a, b) = (k.read::<A>("a"), k.read::<B>("b"));
        let (y, i) = (k.write::<U>("y"), k.global_index());
        k.if_(i.lt(y.len()), || y.store(i, f(a.load(i), b.load(i))));
    });
    launch.__buffer("a", a).__buffer("b", b).__buffer("y", y).run(device, n)?;
    Ok(())
}

/// `y[i] = value`.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: bits are preserved, including NaN payloads.
///
/// # Errors
/// The launch fails.
pub fn fill<T: Number + 'static>(device: &Device, y: &mut Buffer<T>, value: T) -> Result<(), Error> {
    let n = length("y", y)?;
    let launch = built("fill", GROUP, |k| {
        let (value, y, i) = (k.uniform::<T>("value"), k.write::<T>("y"), k.global_index());
        k.if_(i.lt(y.len()), || y.store(i, value.load()));
    });
    launch.__scalar("value", value).__buffer("y", y).run(device, n)?;
    Ok(())
}

/// `y[i] = x[i]`.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: bits are preserved, including NaN payloads.
///
/// # Errors
/// The lengths differ, or the launch fails.
pub fn copy<T: Element + Single + 'static>(device: &Device, x: &Buffer<T>, y: &mut Buffer<T>) -> Result<(), Error> {
    map(device, x, y, |v| v)
}

/// Gather: `y[i] = table[index[i]]`; 0 where an index is out of bounds.
///
/// - Work: n, the number of indices, in one launch.
/// - Memory: none.
/// - Exactness: bits are preserved, including NaN payloads.
///
/// # Errors
/// The lengths of the indices and of `y` differ, or the launch fails.
pub fn gather<T>(device: &Device, table: &Buffer<T>, index: &Buffer<u32>, y: &mut Buffer<T>) -> Result<(), Error>
where
    T: Element + Single + 'static,
{
    let n = length("index", index)?;
    expect("y", y, n)?;
    gathered(table, index, y).run(device, n)?;
    Ok(())
}

pub(super) fn gathered<'a, T>(table: &'a Buffer<T>, index: &'a Buffer<u32>, y: &'a Buffer<T>) -> Launch<'a>
where
    T: Element + Single + 'static,
{
    let launch = built("gather", GROUP, |k| {
        let (table, index) = (k.read::<T>("table"), k.read::<u32>("index"));
        let (y, i) = (k.write::<T>("y"), k.global_index());
        k.if_(i.lt(y.len()), || y.store(i, table.load(index.load(i))));
    });
    launch.__buffer("table", table).__buffer("index", index).__buffer("y", y)
}

/// Scatter: `y[index[i]] = x[i]`; stores with an out-of-bounds index are dropped. Other elements of `y` are unchanged.
///
/// - Work: n, the number of indices, in one launch.
/// - Memory: none.
/// - Exactness: bits are preserved, including NaN payloads. If indices repeat, any of the values is stored, and results may differ from run
///   to run.
///
/// # Errors
/// The lengths of the indices and of `x` differ, or the launch fails.
pub fn scatter<T>(device: &Device, x: &Buffer<T>, index: &Buffer<u32>, y: &mut Buffer<T>) -> Result<(), Error>
where
    T: Element + Single + 'static,
{
    let n = length("x", x)?;
    expect("index", index, n)?;
    let launch = built("scatter", GROUP, |k| {
        let (x, index) = (k.read::<T>("x"), k.read::<u32>("index"));
        let (y, i) = (k.write::<T>("y"), k.global_index());
        k.if_(i.lt(x.len()), || y.store(index.load(i), x.load(i)));
    });
    launch.__buffer("x", x).__buffer("index", index).__buffer("y", y).run(device, n)?;
    Ok(())
}
