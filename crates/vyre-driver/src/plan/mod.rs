//! Launch planning: what is launched together, what waits for what, and how much memory that takes.
//!
//! - [`launch_fusion`] merges neighbours in a sequence of stages into fewer launches.
//! - [`barrier`] groups waves that depend on each other, so that the fewest barriers keep them in order.
//! - [`frontier`] splits such groups until each fits into memory.
//!
//! The planners are pure and deterministic: equal input gives equal plans. Each is a value that keeps its scratch memory, so that
//! planning again allocates nothing but the plan. Sizes come from callers and may be anything: sums are checked, and memory is
//! reserved before it is used, so that too large a size is an error that names it.

pub mod barrier;
pub mod frontier;
pub mod launch_fusion;

use crate::Error;

/// Empties a list that can then hold `count` without growing.
fn reserve<T>(list: &mut Vec<T>, field: &'static str, count: usize) -> Result<(), Error> {
    list.clear();
    list.try_reserve_exact(count).map_err(|_| Error::Reservation { field, requested: count })
}

/// The part of a list that a group has, where groups follow each other and each knows where it ends.
fn part<'l, T, G>(list: &'l [T], groups: &[G], group: usize, end: impl Fn(&G) -> usize) -> &'l [T] {
    let start = group.checked_sub(1).map_or(0, |previous| end(&groups[previous]));
    &list[start..end(&groups[group])]
}
