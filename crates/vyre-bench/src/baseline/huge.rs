//! Arrays in huge pages.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An array aligned to huge pages, which it requests, to reduce TLB misses of random accesses. Its elements are plain
/// numbers.
pub(crate) struct Huge<T: Copy> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: the memory is owned.
unsafe impl<T: Copy + Send> Send for Huge<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Copy + Sync> Sync for Huge<T> {}

/// Types for which all zero bits are a valid value.
#[allow(dead_code)] // A marker for the safety of `zeros`, without methods.
pub(crate) trait Number: Copy {}
impl Number for u8 {}
impl Number for u32 {}
impl Number for f32 {}

impl<T: Number> Huge<T> {
    /// A zeroed array with all pages touched.
    pub(crate) fn zeros(length: usize) -> Huge<T> {
        let layout = layout::<T>(length);
        // SAFETY: the layout has a nonzero size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // Before the first touch: pages already allocated stay small.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is that of the allocation. The advice is optional, so its result is ignored.
        unsafe {
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
        }
        // SAFETY: the layout has that many bytes.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        Huge { start: start.cast(), length }
    }

    /// A copy.
    pub(crate) fn of(contents: &[T]) -> Huge<T> {
        let mut array = Huge::zeros(contents.len());
        array.copy_from_slice(contents);
        array
    }
}

fn layout<T>(length: usize) -> Layout {
    const PAGE: usize = 2 << 20;
    let bytes = (length * size_of::<T>()).max(1);
    Layout::from_size_align(bytes.next_multiple_of(PAGE), PAGE).expect("an array that fits into memory")
}

impl<T: Copy> Deref for Huge<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `length` elements were allocated, and all zero bits are a valid `Number`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<T: Copy> DerefMut for Huge<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl<T: Copy> Drop for Huge<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeros` with this layout.
        unsafe { dealloc(self.start.as_ptr().cast(), layout::<T>(self.length)) };
    }
}
