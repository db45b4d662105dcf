//! Identity of pipelines and engines, by which they tell their own references and values from those of others.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identity of a pipeline or an engine. Clones of a pipeline have the same: what one handed out is valid in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u64);

impl Default for Owner {
    /// An identity that no other call returns.
    fn default() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
