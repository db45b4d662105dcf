//! Permission to execute generated code. Software drivers compile shaders to machine code, and Mesa's does not check
//! for permission: where the system denies it (SELinux `execmem`, `MemoryDenyWriteExecute=` of systemd), the first
//! dispatch ends in a SIGSEGV.

/// Returns the error of making a written page executable, as driver compilers do; `None` if that is permitted.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(crate) fn denied() -> Option<std::io::Error> {
    const BYTES: usize = 4096;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the system's choice overlaps no memory in use.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        // Out of memory, which implies nothing about permissions.
        return None;
    }
    // SELinux checks written pages only.
    // SAFETY: the mapping is new, writable, and not empty.
    unsafe { page.cast::<u8>().write_volatile(0) };
    // SAFETY: the range is the mapping made above, and no reference into it exists.
    let protected = unsafe { libc::mprotect(page, BYTES, libc::PROT_READ | libc::PROT_EXEC) };
    let error = (protected != 0).then(std::io::Error::last_os_error);
    // SAFETY: as above. A failure is ignored, for lack of a remedy.
    unsafe { libc::munmap(page, BYTES) };
    error
}

/// No software driver is known on other systems.
#[cfg(not(target_os = "linux"))]
pub(crate) fn denied() -> Option<std::io::Error> {
    None
}
