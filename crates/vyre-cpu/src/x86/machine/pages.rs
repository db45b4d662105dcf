//! Executable memory for JIT code.
//!
//! Pages are written first and executable afterwards, never both at once (W^X).
//!
//! With the environment variable `VYRE_PERF_MAP` set, the name and address of each function is appended to
//! `/tmp/perf-PID.map`, where `perf report` looks for the names of generated code.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr::NonNull;

use crate::memory::page_size;
use crate::x86::Error;

/// Code that can be called.
pub(crate) struct Executable {
    start: NonNull<u8>,
    /// Size of the mapping: whole pages.
    size: usize,
}

// SAFETY: the pages are not written after construction, and are unmapped on drop.
unsafe impl Send for Executable {}
// SAFETY: as above; threads may read and execute the pages concurrently.
unsafe impl Sync for Executable {}

impl Executable {
    /// Copies code to executable pages, page-aligned.
    pub(crate) fn new(code: &[u8]) -> Result<Self, Error> {
        let size = code.len().next_multiple_of(page_size()).max(page_size());
        let fail = |action| Error::Pages { action, bytes: size, error: std::io::Error::last_os_error() };
        // SAFETY: a new anonymous mapping at an address of the system's choice overlaps no memory in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(fail("map"));
        }
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(fail("map"));
        };
        // From here on, dropping `pages` unmaps them.
        let pages = Self { start, size };
        // SAFETY: the mapping is writable, new, and at least as long as the code.
        unsafe { start.as_ptr().copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        // SAFETY: the range is the mapping made above, and no reference into it exists.
        if unsafe { libc::mprotect(start.as_ptr().cast(), size, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(fail("protect"));
        }
        Ok(pages)
    }

    /// Entry point at the first byte, which takes a pointer to its context. Callers must keep this value alive during
    /// the call, and pass a context that the code was compiled for.
    pub(crate) fn entry(&self) -> unsafe extern "sysv64" fn(*mut u8) {
        // SAFETY: a function pointer has the size of a pointer and is not null; callers promise that code of this
        // signature is there.
        unsafe { std::mem::transmute::<*mut u8, unsafe extern "sysv64" fn(*mut u8)>(self.start.as_ptr()) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, and its code is no longer called. A failure is ignored, for
        // lack of a remedy.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// Appends a function to the perf map if `VYRE_PERF_MAP` is set.
pub(crate) fn name_for_perf(executable: &Executable, size: usize, name: &str) {
    if std::env::var_os("VYRE_PERF_MAP").is_none() {
        return;
    }
    let path = format!("/tmp/perf-{}.map", std::process::id());
    // The path is predictable, so another user may have placed a link or a pipe there.
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let opened = options.open(path).ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()));
    // A single write keeps lines of several threads apart. Errors are ignored: they only affect symbol names of a
    // profile.
    if let Some(mut file) = opened {
        let name = name.replace(['\n', '\r'], " ");
        let _ = file.write_all(format!("{:x} {size:x} {name}\n", executable.start.as_ptr() as usize).as_bytes());
    }
}
