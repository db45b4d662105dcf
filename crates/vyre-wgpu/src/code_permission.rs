//! Permission to execute generated code. Drivers in software compile shaders to machine code, and Mesa's does not look whether the system
//! allows that: where it does not (SELinux `execmem`, `MemoryDenyWriteExecute=` of systemd), the first dispatch is a SIGSEGV.

/// Returns the error of making a written page executable, which is what compilers in drivers do; `None` if that is allowed.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn denied() -> Option<std::io::Error> {
    const BYTES: usize = 4096;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory that is in use.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        // There is no memory, which says nothing about permissions.
        return None;
    }
    // SELinux asks only for pages that were written.
    // SAFETY: the mapping is new, writable, and not empty.
    unsafe { page.cast::<u8>().write_volatile(0) };
    // SAFETY: the range is the mapping made above, and no reference into it exists.
    let protected = unsafe { libc::mprotect(page, BYTES, libc::PROT_READ | libc::PROT_EXEC) };
    let error = (protected != 0).then(std::io::Error::last_os_error);
    // SAFETY: as above. The result says nothing that could be acted upon.
    unsafe { libc::munmap(page, BYTES) };
    error
}

/// Elsewhere there is no driver in software that vyre knows of.
#[cfg(not(target_os = "linux"))]
pub(crate) fn denied() -> Option<std::io::Error> {
    None
}
