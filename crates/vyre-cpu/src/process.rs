//! The process that a device's threads belong to.
//!
//! `fork` copies the memory of a process but only the calling thread. A device in the child has queues and locks, but no thread that
//! serves them, so every use of it is refused instead of waiting forever.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use vyre_driver::Error;

/// Number of `fork` calls between the first process of the program and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, by the number of `fork` calls that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the calling process.
    ///
    /// # Errors
    /// `pthread_atfork` failed.
    pub(crate) fn current() -> Result<Process, Error> {
        #[cfg(unix)]
        {
            extern "C" fn in_child() {
                FORKS.fetch_add(1, Relaxed);
            }
            static REGISTERED: std::sync::OnceLock<i32> = std::sync::OnceLock::new();
            // SAFETY: the handler only increments an atomic, which is allowed after `fork`.
            let status = REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
            if *status != 0 {
                let reason = format!("pthread_atfork: {}", std::io::Error::from_raw_os_error(*status));
                return Err(Error::Backend { backend: "cpu", reason });
            }
        }
        Ok(Process(FORKS.load(Relaxed)))
    }

    /// Returns whether the calling process is this one, and not a child of it.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed)
    }

    /// Checks that the calling process has the device's threads.
    ///
    /// # Errors
    /// The calling process is a child of this one.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked { backend: "cpu" }) }
    }
}
