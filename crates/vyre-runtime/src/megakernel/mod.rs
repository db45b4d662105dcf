//! Megakernels: one launch drains a queue of small work items, instead of a launch for each.
//!
//! ```text
//! items    four numbers each: an op and what it works on
//!   → ring        producers leave items for whoever launches
//!   → redundancy  items that would change nothing are left out of a batch
//!   → policy      how many workers, how much memory, interpreted or compiled
//! ```

mod item;
pub mod policy;
pub mod redundancy;
pub mod ring;

pub use item::{Access, Traits, WorkItem};
