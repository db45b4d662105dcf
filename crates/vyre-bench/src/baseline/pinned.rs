//! CPU affinity: pins a thread to one processor, for libraries that start a thread per available processor.

/// While this value lives, its thread and threads started from it run on one processor. No effect outside of Linux.
pub(crate) struct Pinned {
    #[cfg(target_os = "linux")]
    allowed: Option<libc::cpu_set_t>,
}

#[cfg(target_os = "linux")]
impl Pinned {
    /// Pins to the current processor. If the system refuses, nothing changes.
    pub(crate) fn here() -> Pinned {
        // SAFETY: a set of processors is a bit array, and all zeros is the empty set.
        let (mut allowed, mut one): (libc::cpu_set_t, libc::cpu_set_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the size is that of the set, and 0 is the calling thread.
        let is_known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) } == 0;
        // SAFETY: it takes no arguments.
        let here = usize::try_from(unsafe { libc::sched_getcpu() });
        if let (true, Ok(here)) = (is_known, here) {
            // SAFETY: sets a bit of an array at a checked index.
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
    // SAFETY: the size is that of the set, and 0 is the calling thread. On failure, the affinity is unchanged.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) };
}

#[cfg(not(target_os = "linux"))]
impl Pinned {
    pub(crate) fn here() -> Pinned {
        Pinned {}
    }
}
