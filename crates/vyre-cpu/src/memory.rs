//! Memory that programs read and write.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use vyre_driver::{Error, backend};
use vyre_foundation::ir::Element;

/// Zeroed memory that several threads access at once.
///
/// No Rust reference to its contents is ever made: all access is through raw pointers, element by element or in runs of
/// elements. A program with a race makes threads access the same bytes; each aligned element of up to 8 bytes is then moved
/// by one instruction, so that a racy load gives a value that was stored, which is what the semantics ask for.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned, and is accessed as described above.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl backend::Memory for Block {}

impl Block {
    /// A cache line, so that lanes of a block do not share one with another block.
    const ALIGNMENT: usize = 64;

    pub(crate) fn new(bytes: u64) -> Result<Block, Error> {
        let out_of_memory = || Error::OutOfMemory { requested: bytes, available: 0 };
        let size = usize::try_from(bytes).map_err(|_| out_of_memory())?.max(1);
        let layout = Layout::from_size_align(size, Block::ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has a size that is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Block { start, layout })
    }

    /// A pointer to a byte. It must lie inside.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.layout.size() as u64);
        // SAFETY: the driver has checked that ranges lie inside their memory.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// An object of a program as one worker sees it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    /// The first element; of a private array, that of lane 0.
    pub(crate) start: *mut u8,
    /// In elements.
    pub(crate) length: u32,
    pub(crate) element: Element,
    /// From one lane to the next, in bytes: not 0 only for private arrays.
    pub(crate) lane_stride: usize,
}

impl View {
    /// The bits at an index, or 0 outside.
    pub(crate) fn load(&self, lane: usize, index: u64) -> u64 {
        if index >= u64::from(self.length) {
            return 0;
        }
        // SAFETY: the index is inside, and elements are aligned.
        unsafe {
            let at = self.pointer(lane, index);
            match self.element {
                Element::I8 => u64::from(at.cast::<i8>().read() as i32 as u32),
                Element::U8 => u64::from(at.read()),
                Element::I16 => u64::from(at.cast::<i16>().read() as i32 as u32),
                Element::U16 | Element::F16 => u64::from(at.cast::<u16>().read()),
                Element::I32 | Element::U32 | Element::F32 => u64::from(at.cast::<u32>().read()),
                Element::I64 | Element::U64 | Element::F64 => at.cast::<u64>().read(),
            }
        }
    }

    /// Writes the bits at an index; outside, nothing happens.
    pub(crate) fn store(&self, lane: usize, index: u64, bits: u64) {
        if index >= u64::from(self.length) {
            return;
        }
        // SAFETY: the index is inside, and elements are aligned.
        unsafe {
            let at = self.pointer(lane, index);
            match self.element.size() {
                1 => at.write(bits as u8),
                2 => at.cast::<u16>().write(bits as u16),
                4 => at.cast::<u32>().write(bits as u32),
                _ => at.cast::<u64>().write(bits),
            }
        }
    }

    /// Changes an element atomically and returns the old bits; outside, nothing happens and the old bits are 0.
    pub(crate) fn update(&self, index: u64, change: impl Fn(u64) -> Option<u64>) -> u64 {
        if index >= u64::from(self.length) {
            return 0;
        }
        let at = self.pointer(0, index);
        // SAFETY: the index is inside, elements are aligned, and atomic objects are accessed atomically everywhere.
        unsafe {
            if self.element.size() == 4 {
                let word = AtomicU32::from_ptr(at.cast());
                let changed = |bits: u32| change(u64::from(bits)).map(|bits| bits as u32);
                u64::from(word.fetch_update(Relaxed, Relaxed, changed).unwrap_or_else(|old| old))
            } else {
                let word = AtomicU64::from_ptr(at.cast());
                word.fetch_update(Relaxed, Relaxed, change).unwrap_or_else(|old| old)
            }
        }
    }

    /// Loads atomically.
    pub(crate) fn load_atomic(&self, index: u64) -> u64 {
        self.update(index, |_| None)
    }

    fn pointer(&self, lane: usize, index: u64) -> *mut u8 {
        let offset = lane * self.lane_stride + index as usize * self.element.size();
        // SAFETY: callers have checked the index, and a private array has room for every lane.
        unsafe { self.start.add(offset) }
    }

    /// Whether `count` elements from an index up are all inside.
    pub(crate) fn holds(&self, index: u64, count: usize) -> bool {
        index + count as u64 <= u64::from(self.length)
    }
}
