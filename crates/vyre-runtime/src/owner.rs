//! Identity tags of pipelines and engines. A reference with another tag than its user is refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identity of a pipeline or an engine. A clone of a pipeline has the tag of the original, so each accepts references of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u64);

impl Default for Owner {
    /// Returns a fresh identity.
    fn default() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
