//! Host memory of graphs: a limit that is checked before allocation, and fallible allocations.
//!
//! Numbers of nodes and edges come from files and arguments, and a short file can name a large node. Each stage therefore estimates its
//! peak memory from these numbers and [checks](check) it against the limit first: that of [`limited`], or else the available memory of the
//! machine. An allocation that fails nevertheless, such as under `ulimit -v`, is [`Reservation`](vyre_driver::Error::Reservation).

use std::cell::Cell;

use bytemuck::Zeroable;

use crate::Error;

thread_local! {
    // Checks run on the calling thread, before it starts workers.
    static LIMIT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work` with a limit of `bytes` on the host memory for reading, generating and building graphs, the graph included.
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

/// Returns the limit of the innermost [`limited`], or the available memory of the machine.
pub(super) fn limit() -> u64 {
    LIMIT.get().or_else(available).unwrap_or(u64::MAX)
}

/// Fails if `required` bytes exceed the [`limit`].
pub(super) fn check(required: u64, subject: impl FnOnce() -> String) -> Result<(), Error> {
    let limit = limit();
    if required > limit {
        return Err(Error::OverMemoryLimit { subject: subject(), required, limit });
    }
    Ok(())
}

/// Returns the memory available without swapping, or the limit of the control group if that is less.
fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|information| {
        let line = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    });
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|most| most.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

/// Error of a failed allocation.
pub(super) fn refused(field: &'static str, requested: usize) -> Error {
    vyre_driver::Error::Reservation { field, requested }.into()
}

/// Reserves exactly `count` more elements.
pub(crate) fn reserve<T>(list: &mut Vec<T>, field: &'static str, count: usize) -> Result<(), Error> {
    list.try_reserve_exact(count).map_err(|_| refused(field, count))
}

/// Allocates an empty list with capacity for `count` elements.
pub(crate) fn with_capacity<T>(field: &'static str, count: usize) -> Result<Vec<T>, Error> {
    let mut list = Vec::new();
    reserve(&mut list, field, count)?;
    Ok(list)
}

/// Allocates `count` zeros, in pages that the operating system commits on first access.
pub(crate) fn zeroed<T: Zeroable>(field: &'static str, count: usize) -> Result<Vec<T>, Error> {
    bytemuck::try_zeroed_vec(count).map_err(|()| refused(field, count))
}

/// Allocates `count` copies of a value.
pub(crate) fn filled<T: Clone>(field: &'static str, value: T, count: usize) -> Result<Vec<T>, Error> {
    let mut list = with_capacity(field, count)?;
    list.resize(count, value);
    Ok(list)
}

/// Collects an iterator of known length.
pub(crate) fn collected<T>(field: &'static str, elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut list = with_capacity(field, elements.len())?;
    list.extend(elements);
    Ok(list)
}

/// Concatenates lists.
pub(crate) fn concat<T>(field: &'static str, lists: Vec<Vec<T>>) -> Result<Vec<T>, Error> {
    let mut lists = lists.into_iter();
    let mut all = lists.next().unwrap_or_default();
    reserve(&mut all, field, lists.as_slice().iter().map(Vec::len).sum())?;
    lists.for_each(|list| all.extend(list));
    Ok(all)
}
