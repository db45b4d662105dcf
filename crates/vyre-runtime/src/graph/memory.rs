//! Host memory of graphs: an upper bound that is checked before memory is allocated, and allocations that can fail.
//!
//! Numbers of nodes and edges come from files and arguments, and a short file can name a large node. Each stage therefore estimates its peak
//! from these numbers and [checks](check) it against the limit first. The limit is that of [`limited`], or else the memory that the machine
//! has available. An allocation that fails nevertheless, such as under `ulimit -v`, is [`Reservation`](vyre_driver::Error::Reservation).

use std::cell::Cell;

use bytemuck::Zeroable;

use crate::Error;

thread_local! {
    // Checks are made by the thread that calls, before it hands work to others.
    static LIMIT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work`, in which reading, generating and building a graph takes at most `bytes` of host memory at a time, the graph included.
pub fn limited<R>(bytes: u64, work: impl FnOnce() -> R) -> R {
    /// Restores the outer limit, also when `work` panics.
    struct Restore(Option<u64>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(Some(bytes)));
    work()
}

/// The limit of the innermost [`limited`], or the available memory of the machine.
pub(super) fn limit() -> u64 {
    LIMIT.get().or_else(available).unwrap_or(u64::MAX)
}

/// Refuses to use `required` bytes if that is more than the [`limit`].
pub(super) fn check(required: u64, subject: impl FnOnce() -> String) -> Result<(), Error> {
    let limit = limit();
    if required > limit {
        return Err(Error::OverMemoryLimit { subject: subject(), required, limit });
    }
    Ok(())
}

/// Memory that can be used without swapping, of the machine or of the control group, whichever is less.
fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|information| {
        let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|most| most.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// The error of an allocation that failed.
pub(super) fn refused(field: &'static str, requested: usize) -> Error {
    vyre_driver::Error::Reservation { field, requested }.into()
}

/// Makes room for exactly `count` more elements.
pub(crate) fn reserve<T>(list: &mut Vec<T>, field: &'static str, count: usize) -> Result<(), Error> {
    list.try_reserve_exact(count).map_err(|_| refused(field, count))
}

/// An empty list with room for `count` elements.
pub(crate) fn with_capacity<T>(field: &'static str, count: usize) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    reserve(&mut list, field, count)?;
    Ok(list)
}

/// `count` zeros, in pages that the operating system provides at first use.
pub(crate) fn zeroed<T: Zeroable>(field: &'static str, count: usize) -> Result<Vec<T>, Error> {
    bytemuck::try_zeroed_vec(count).map_err(|()| refused(field, count))
}

/// `count` copies of a value.
pub(crate) fn filled<T: Clone>(field: &'static str, value: T, count: usize) -> Result<Vec<T>, Error> {
    let mut list = with_capacity(field, count)?;
    list.resize(count, value);
    Ok(list)
}

/// The elements of an iterator of known length.
pub(crate) fn collected<T>(field: &'static str, elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut list = with_capacity(field, elements.len())?;
    list.extend(elements);
    Ok(list)
}

/// All lists, one after the other.
pub(crate) fn concat<T>(field: &'static str, lists: Vec<Vec<T>>) -> Result<Vec<T>, Error> {
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    reserve(&mut all, field, lists.as_slice().iter().map(Vec::len).sum())?;
    lists.for_each(|list| all.extend(list));
    Ok(all)
}
