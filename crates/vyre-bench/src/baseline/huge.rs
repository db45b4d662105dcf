//! Arrays in huge pages.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An array that starts at a huge page and asks for more of them: going through megabytes at random then misses fewer
/// translations of addresses. Its contents are plain numbers.
pub(crate) struct Huge<T: Copy> {
    start: NonNull<T>,
    length: usize,
}

// SAFETY: the memory is owned.
unsafe impl<T: Copy + Send> Send for Huge<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Copy + Sync> Sync for Huge<T> {}

/// Types of which all bits 0 are a value.
#[allow(dead_code)] // It says something about types, and is never asked.
pub(crate) trait Number: Copy {}
impl Number for u8 {}
impl Number for u32 {}
impl Number for f32 {}

impl<T: Number> Huge<T> {
    /// An array of zeros, every page of which has been touched.
    pub(crate) fn zeros(length: usize) -> Huge<T> {
        let layout = layout::<T>(length);
        // SAFETY: the layout has a size that is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // Before anything is touched: pages that are there already stay small.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is that of the allocation. It is advice: whether it is followed does not matter here.
        unsafe {
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
        }
        // SAFETY: that many bytes were allocated.
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
        // SAFETY: that many elements were allocated, and all bits 0 are a value of every `Number`.
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
