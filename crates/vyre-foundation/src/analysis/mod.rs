//! What can be known about a program without running it.
//!
//! Each analysis is a plain function of a program. [`Analyses`] keeps the results for passes, until they change the program.

mod alias;
mod cache;
mod effects;
mod loops;
mod progress;
mod ranges;
mod structure;
mod uniformity;
mod uses;

pub use alias::{AffineIndex, Alias, Location, alias};
pub use cache::{Analyses, Analysis};
pub use effects::{Effects, Objects, Summary};
pub(crate) use loops::leaves_when;
pub use loops::{Counted, Exits, Finite, Stays, counted, exits_of, finite, given, is_outside, yields_of};
pub use progress::may_merge_workgroups;
pub use ranges::{Interval, Lengths, Ranges};
pub use structure::Structure;
pub use uniformity::{Scope, Uniformity};
pub use uses::Uses;
