//! Stack bounds of the threads that execute kernels.
//!
//! Generated code has one stack frame, of at most [`MAX_FRAME`] bytes, and calls the runtime from it. The device's own threads
//! have stacks of a known size; a caller that waits executes kernels itself only if its stack has room for the largest frame.

/// Largest stack frame of generated code, in bytes.
pub(crate) const MAX_FRAME: usize = 1 << 20;

/// Stack for everything else while a kernel runs: the queue, the pool, runtime services, and the portable executor with 128
/// levels of nested blocks.
const RESERVE: usize = 512 << 10;

/// Stack size of the device's own threads.
pub(crate) const THREAD_STACK_SIZE: usize = MAX_FRAME + 2 * RESERVE;

/// Returns whether the calling thread is known to have room for a kernel. False on systems that do not tell the bounds of a stack,
/// and on stacks that the system does not know of, such as those of coroutines.
pub(crate) fn holds_kernels() -> bool {
    thread_local! {
        static BOUNDS: Option<std::ops::Range<usize>> = bounds();
    }
    let local = 0_u8;
    let at = (&raw const local).addr();
    BOUNDS.with(|bounds| {
        bounds.as_ref().is_some_and(|stack| stack.contains(&at) && at - stack.start >= MAX_FRAME + RESERVE)
    })
}

/// Addresses of the calling thread's stack, guard pages excluded.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn bounds() -> Option<std::ops::Range<usize>> {
    // SAFETY: the attributes are written by the first call before they are read, and destroyed once.
    unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let (mut start, mut size) = (std::ptr::null_mut(), 0);
        let status = libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        (status == 0).then(|| start.addr()..start.addr() + size)
    }
}

/// Addresses of the calling thread's stack.
#[cfg(target_os = "macos")]
fn bounds() -> Option<std::ops::Range<usize>> {
    // SAFETY: both functions only read properties of the calling thread.
    unsafe {
        let thread = libc::pthread_self();
        let end = libc::pthread_get_stackaddr_np(thread).addr();
        Some(end - libc::pthread_get_stacksize_np(thread)..end)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
fn bounds() -> Option<std::ops::Range<usize>> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn on_stack_of(bytes: usize) -> bool {
        std::thread::Builder::new().stack_size(bytes).spawn(holds_kernels).unwrap().join().unwrap()
    }

    #[test]
    fn kernel_room_depends_on_the_thread_stack() {
        assert!(on_stack_of(THREAD_STACK_SIZE));
        assert!(on_stack_of(2 << 20), "a thread of the standard library");
        // The C library may reuse a stack that is up to four times as large as what was asked for.
        assert!(!on_stack_of(64 << 10));
    }
}
