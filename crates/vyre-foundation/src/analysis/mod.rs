//! Static analyses of programs.
//!
//! Each analysis is a plain function of a program. [`Analyses`] caches results for passes.

mod affine;
mod alias;
mod cache;
mod divergence;
mod effects;
mod liveness;
mod loops;
mod progress;
mod ranges;
mod structure;
mod uses;

pub use affine::AffineIndex;
pub(crate) use affine::{AffineForm, Counts};
pub(crate) use alias::exclusive_range;
pub use alias::{Alias, Location, alias};
pub use cache::{Analyses, Analysis};
pub use divergence::{Divergence, Domain, Join, Scope, Uniformity};
pub use effects::{Effects, Objects, Summary};
pub use liveness::{LiveRange, Liveness, Splits, Storage};
pub(crate) use loops::breaks_when;
pub use loops::{
    ConstTripCount, Counted, Exits, Increment, const_trip_count, counted, exits_of, incoming_values, is_loop_invariant,
    yields_of,
};
pub use progress::may_merge_workgroups;
pub use ranges::{Interval, Lengths, Ranges};
pub use structure::Structure;
pub use uses::Uses;
