//! Exit code of a process that runs out of memory.
//!
//! Allocations whose size comes from outside are fallible where they are made, and fail with an error. Any other, such as a string
//! that grows, makes the standard library abort when the system has no memory left (`ulimit -v`). The allocator of this command
//! notes that an allocation has failed; the handler of SIGABRT then reports it and exits with the code of that error, where it would
//! end in a crash otherwise.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;

use crate::error::OUT_OF_MEMORY;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

thread_local! {
    /// Bytes of the last allocation of this thread that failed.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}

/// The allocator of the system, which notes failures.
struct Noting;

impl Noting {
    fn note(start: *mut u8, bytes: usize) -> *mut u8 {
        if start.is_null() {
            FAILED.set(bytes);
        }
        start
    }
}

// SAFETY: every call is passed on to the allocator of the system, with the same arguments and result. Noting a failure neither
// allocates nor unwinds: the cell is constant data of the thread without a destructor.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function, which is the same.
        Noting::note(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        Noting::note(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        Noting::note(unsafe { System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) };
    }
}

/// Ends the process with an error if the thread aborts because an allocation has failed. For handlers of SIGABRT.
#[allow(unsafe_code)]
pub(crate) fn exit_if_failed() {
    let bytes = FAILED.get();
    if bytes == 0 {
        return;
    }
    let (code, exit_code) = OUT_OF_MEMORY;
    let mut text = [0; 256];
    let mut rest = text.as_mut_slice();
    let _ = writeln!(
        rest,
        "error[{code}]: there is no memory left: {bytes} bytes could not be allocated\n  = help: free memory, raise its limit, or \
         work in smaller pieces"
    );
    let unused = rest.len();
    let length = text.len() - unused;
    // SAFETY: the text has that length, and handlers of signals may call both functions.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(i32::from(exit_code));
    }
}

/// Installs a handler of SIGABRT that does nothing else. [Crashes](crate::crash) replace it by one that does more.
#[allow(unsafe_code)]
pub(crate) fn arm() {
    extern "C" fn aborted(signal: libc::c_int) {
        exit_if_failed();
        // SAFETY: handlers of signals may call it. The signal has its own effect now.
        unsafe { libc::raise(signal) };
    }
    let handler: extern "C" fn(libc::c_int) = aborted;
    // SAFETY: all zeros are a valid `sigaction`, whose set of signals is empty. The handler has the type that is expected without
    // `SA_SIGINFO`, and calls nothing that a handler may not call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut());
    }
}
