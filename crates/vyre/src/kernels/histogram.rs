//! Histograms.

use super::reduce::{LANES, bounds, grid};
use super::{built, length};
use crate::build::Single;
use crate::device::Batch;
use crate::{Buffer, Device, Element, Error};

/// Elements of a workgroup: long enough to amortize clearing and merging its private bins.
const CHUNK: u32 = 1 << 17;

/// Counts values: `bins[v]` becomes the number of elements equal to `v`. Values of `bins.len()` or more are ignored. Elements are u8, u16
/// or u32.
///
/// - Work: n, in one launch; every element is read once. Up to 4096 bins are privatized in workgroup memory; more are counted by atomics
///   in storage.
/// - Memory: none.
/// - Exactness: exact.
///
/// ```
/// # use vyre::{Device, kernels};
/// # fn main() -> Result<(), vyre::Error> {
/// # let device = Device::auto()?;
/// let mut bins = device.zeros(4)?;
/// kernels::histogram(&device, &device.upload(&[3u8, 1, 3, 7])?, &mut bins)?;
/// assert_eq!(bins.download()?, [0, 1, 0, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The launch fails.
pub fn histogram<T>(device: &Device, x: &Buffer<T>, bins: &mut Buffer<u32>) -> Result<(), Error>
where
    T: Element + Single<Value = u32> + 'static,
{
    let groups = length("x", x)?.div_ceil(CHUNK as usize);
    let mut batch = Batch::new(device);
    batch.clear(bins)?;
    // Bytes need at most 256 bins.
    let launch = if size_of::<T>() == 1 && bins.len() <= 256 {
        counted::<T, 256>()
    } else if bins.len() <= 4096 {
        counted::<T, 4096>()
    } else {
        counted::<T, 0>()
    };
    batch.push(launch.__buffer("x", x).__buffer("bins", bins), grid(groups))?;
    batch.run()
}

/// Launch of the histogram kernel with `OWN` privatized bins per workgroup; if `OWN` is 0, each element is an atomic add to storage.
fn counted<'a, T: Element + Single<Value = u32> + 'static, const OWN: u32>() -> crate::Launch<'a> {
    built("histogram", [LANES, 1, 1], |k| {
        let (x, bins) = (k.read::<T>("x"), k.atomic::<u32>("bins"));
        let lane = k.local_index();
        let [start, end] = bounds(k.group_index(), CHUNK, x.len());
        let own = (OWN > 0).then(|| k.workgroup_atomic::<u32>("own", OWN));
        if let Some(own) = own {
            k.for_range_step(lane, OWN, LANES, |bin| own.store(bin, 0));
            k.workgroup_barrier();
        }
        k.for_range_step(start + lane, end, LANES, |i| {
            own.unwrap_or(bins).add(x.load(i), 1);
        });
        if let Some(own) = own {
            k.workgroup_barrier();
            k.for_range_step(lane, OWN, LANES, |bin| {
                let count = own.load(bin);
                // Skips the atomic for empty bins, which are frequent with small or skewed inputs.
                k.if_(count.ne(0), || {
                    bins.add(bin, count);
                });
            });
        }
    })
}
