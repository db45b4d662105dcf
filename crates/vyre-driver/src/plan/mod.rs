//! Launch planning: fusion groups, barriers and memory.
//!
//! - [`launch_fusion`] merges adjacent stages of a sequence into fewer launches.
//! - [`barrier`] groups dependent waves with the fewest barriers.
//! - [`frontier`] splits such groups until each fits into memory.
//!
//! The planners are pure and deterministic. Each is a value that keeps its scratch memory, so that planning again
//! allocates only the plan. Sizes are untrusted: sums are checked, and memory is reserved before use, so that too large
//! a size is an error that names it.

pub mod barrier;
pub mod frontier;
pub mod launch_fusion;

use crate::Error;

/// Clears a list and reserves capacity for `count` items.
fn reserve<T>(list: &mut Vec<T>, field: &'static str, count: usize) -> Result<(), Error> {
    list.clear();
    list.try_reserve_exact(count).map_err(|_| Error::Reservation { field, requested: count })
}

/// Range of a group in a list of consecutive groups.
fn part<'l, T, G>(list: &'l [T], groups: &[G], group: usize, end: impl Fn(&G) -> usize) -> &'l [T] {
    let start = group.checked_sub(1).map_or(0, |previous| end(&groups[previous]));
    &list[start..end(&groups[group])]
}
