//! One processor for everybody: libraries that take as many threads as there are processors then have one.

/// While this lives, its thread and those that are started from it run on one processor. Elsewhere than on Linux, nothing is promised.
pub(crate) struct Pinned {
    #[cfg(target_os = "linux")]
    allowed: Option<libc::cpu_set_t>,
}

#[cfg(target_os = "linux")]
impl Pinned {
    /// Stays where the thread is now. If the system does not allow that, nothing changes.
    pub(crate) fn here() -> Pinned {
        // SAFETY: a set of processors is an array of bits, and zeros are an empty one.
        let (mut allowed, mut one): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the set is as large as is said, and 0 is the calling thread.
        let is_known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) } == 0;
        // SAFETY: it takes nothing.
        let here = usize::try_from(unsafe { libc::sched_getcpu() });
        if let (true, Ok(here)) = (is_known, here) {
            // SAFETY: it changes a bit of an array, and its index is checked.
            unsafe { libc::CPU_SET(here, &mut one) };
            set(&one);
        }
        Pinned { allowed: is_known.then_some(allowed) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(allowed) = &self.allowed {
            set(allowed);
        }
    }
}

#[cfg(target_os = "linux")]
fn set(processors: &libc::cpu_set_t) {
    // SAFETY: the set is as large as is said, and 0 is the calling thread. If it fails, the thread stays as it was.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) };
}

#[cfg(not(target_os = "linux"))]
impl Pinned {
    pub(crate) fn here() -> Pinned {
        Pinned {}
    }
}
