//! Exit code of a process that runs out of memory.
//!
//! Allocations whose size depends on input are fallible and return errors. Any other failed allocation, such as of a growing string, makes
//! the standard library abort (for example under `ulimit -v`). The global allocator records failed allocations; the handler of SIGABRT then
//! prints an error and exits with its code instead of a crash.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;

use crate::error::OUT_OF_MEMORY;

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

thread_local! {
    /// Bytes of the last failed allocation of this thread.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator, recording failures.
struct RecordingAllocator;

impl RecordingAllocator {
    fn record(start: *mut u8, bytes: usize) -> *mut u8 {
        if start.is_null() {
            FAILED.set(bytes);
        }
        start
    }
}

// SAFETY: every call is forwarded to the system allocator with the same arguments and result. Recording a failure neither allocates nor
// unwinds: the cell is a constant-initialized thread local without a destructor.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the same contract.
        RecordingAllocator::record(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        RecordingAllocator::record(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        RecordingAllocator::record(unsafe { System.realloc(start, layout, size) }, size)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) };
    }
}

/// Exits with an error if an allocation of this thread has failed. Async-signal-safe, for handlers of SIGABRT.
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
        "error[{code}]: out of memory: {bytes} bytes could not be allocated\n  = help: free memory, raise the memory limit \
         (`ulimit -v`), or split the work into smaller parts"
    );
    let unused = rest.len();
    let length = text.len() - unused;
    // SAFETY: the text has that length, and both functions are async-signal-safe.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(i32::from(exit_code));
    }
}

/// Installs a handler of SIGABRT for failed allocations. [`crate::crash::arm`] replaces it by one that also handles crashes.
#[allow(unsafe_code)]
pub(crate) fn arm() {
    extern "C" fn aborted(signal: libc::c_int) {
        exit_if_failed();
        // SAFETY: `raise` is async-signal-safe. The default action applies now.
        unsafe { libc::raise(signal) };
    }
    let handler: extern "C" fn(libc::c_int) = aborted;
    // SAFETY: all zeros are a valid `sigaction` with an empty signal mask. The handler has the type required without `SA_SIGINFO`, and calls
    // async-signal-safe functions only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut());
    }
}
