//! Device memory: blocks, guarded copies, and views with bounds-checked and relaxed atomic accesses.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vyre_driver::{Error, backend};
use vyre_foundation::ir::{Atomic, Element, Pure, Type};

/// Zeroed memory that several threads access at once.
///
/// No Rust reference to its contents is ever created: all accesses go through raw pointers. Threads of a program with a
/// data race access the same element, and a racy load must return a value that was stored. So elements of objects that
/// a dispatch writes are accessed by atomics of the element's size, relaxed where the program has a plain access.
/// Objects that it only reads are accessed without atomics. Commands that copy or clear a range do not overlap with
/// dispatches; [`Block::exclusive`] serializes them with the host's [`peek`](backend::Memory::peek) and
/// [`poke`](backend::Memory::poke).
///
/// Large blocks are placed in huge pages where available, to reduce TLB misses of random accesses. Their pages are
/// allocated on first touch, by the touching thread.
pub(crate) struct Block {
    start: NonNull<u8>,
    /// Allocated by [`map`] from [`HUGE_PAGE`] bytes on, where the system has it; otherwise by the global allocator.
    size: usize,
    /// Held by commands that copy or clear the block.
    copying: Mutex<()>,
    /// Dispatches access the block itself, not [guarded](Guard) copies, so the host can access words while one runs.
    in_place: bool,
}

// SAFETY: the memory is owned, and is accessed as described above.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl backend::Memory for Block {
    fn peek(&self, byte: u64) -> Option<u32> {
        self.in_place.then(|| {
            let _exclusive = self.exclusive();
            self.word(byte)
        })
    }

    fn poke(&self, byte: u64, word: u32) -> bool {
        if self.in_place {
            let _exclusive = self.exclusive();
            // SAFETY: the driver has checked that the word lies inside, and is aligned; nothing copies it meanwhile.
            unsafe { AtomicU32::from_ptr(self.at(byte).cast()) }.store(word, Relaxed);
        }
        self.in_place
    }
}

impl Block {
    /// Cache line size, against false sharing between blocks.
    const ALIGNMENT: usize = 64;

    pub(crate) fn new(bytes: u64) -> Result<Block, Error> {
        let out_of_memory = || Error::OutOfMemory { requested: bytes, available: 0 };
        let size = usize::try_from(bytes).map_err(|_| out_of_memory())?.max(1);
        #[cfg(unix)]
        if size >= HUGE_PAGE {
            let start = map(size).ok_or_else(out_of_memory)?;
            return Ok(Block::owning(start, size));
        }
        let layout = Layout::from_size_align(size, Block::ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has a size that is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Block::owning(start, size))
    }

    fn owning(start: NonNull<u8>, size: usize) -> Block {
        Block { start, size, copying: Mutex::new(()), in_place: true }
    }

    /// Marks the block as one that dispatches access through [guarded](Guard) copies, which disables `peek` and `poke`.
    pub(crate) fn copied_by_dispatches(self) -> Block {
        let mut block = self;
        block.in_place = false;
        block
    }

    /// Locks out word accesses of the host, for commands that access the block without atomics.
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads an aligned word that is in bounds.
    pub(crate) fn word(&self, byte: u64) -> u32 {
        // SAFETY: the driver has checked that the word lies inside, and is aligned.
        unsafe { AtomicU32::from_ptr(self.at(byte).cast()) }.load(Relaxed)
    }

    /// Zeroes the block. The caller has exclusive access.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub(crate) fn clear(&self) {
        // SAFETY: the block owns the memory, and the caller has exclusive access.
        unsafe { self.start.as_ptr().write_bytes(0, self.size) };
    }

    /// Returns a pointer to a byte, which must be in bounds.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.size as u64);
        // SAFETY: the driver has checked that ranges lie inside their memory.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        #[cfg(unix)]
        if self.size >= HUGE_PAGE {
            // SAFETY: `new` mapped as many whole huge pages at this address.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.size.next_multiple_of(HUGE_PAGE)) };
            return;
        }
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.size, Block::ALIGNMENT)) };
    }
}

/// Size of a huge page. On systems with another size, blocks have the same alignment but no huge pages.
#[cfg(unix)]
const HUGE_PAGE: usize = 2 << 20;

/// Maps untouched zeroed pages, aligned to a huge page: the smallest number of whole huge pages that holds `size`
/// bytes.
#[cfg(unix)]
fn map(size: usize) -> Option<NonNull<u8>> {
    let kept = size.checked_next_multiple_of(HUGE_PAGE)?;
    // The system aligns to small pages only: maps one huge page more and unmaps the excess.
    let mapped = kept.checked_add(HUGE_PAGE)?;
    // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory that is in use.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(HUGE_PAGE);
    let after = mapped - before - kept;
    // SAFETY: all ranges are whole pages of the mapping made above, to which no other reference exists.
    unsafe {
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        let start = start.add(before);
        if after > 0 {
            libc::munmap(start.add(kept).cast(), after);
        }
        advise_huge_pages(start, kept);
        NonNull::new(start)
    }
}

/// Requests huge pages for a range that was not touched yet: pages already allocated stay small.
///
/// # Safety
/// The caller owns the range.
pub(crate) unsafe fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let before = start.align_offset(HUGE_PAGE);
        let whole = bytes.saturating_sub(before) / HUGE_PAGE * HUGE_PAGE;
        if whole > 0 {
            // SAFETY: the range lies inside the caller's. `MADV_HUGEPAGE` is a hint that does not change contents, so
            // its result is ignored.
            unsafe { libc::madvise(start.add(before).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Guard pages that detect out-of-bounds accesses to storage objects.
///
/// With a side, every dispatch works on copies of its storage objects, each between two inaccessible pages, and writes
/// back those that the program stores to. An access that is out of bounds by one byte on that side ends the process
/// with a memory fault at the instruction. For debugging the backend: dispatches are much slower, and the host cannot
/// access words while one runs. Unix only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// No guard pages: dispatches access buffers in place.
    #[default]
    None,
    /// The first byte of an object follows an inaccessible page.
    Below,
    /// The last byte of an object is followed by an inaccessible page.
    Above,
}

/// Memory between two inaccessible pages.
#[cfg(unix)]
pub(crate) struct Guarded {
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
}

#[cfg(unix)]
impl Guarded {
    /// Copies bytes to the start of the accessible pages (`below`), or to their end.
    ///
    /// # Safety
    /// The source is valid for reads of that many bytes, and no other thread writes to it.
    pub(crate) unsafe fn copy_of(source: *const u8, bytes: usize, below: bool) -> Result<Guarded, Error> {
        let out_of_memory = || Error::OutOfMemory { requested: bytes as u64, available: 0 };
        let page = page_size();
        let inside = bytes.checked_next_multiple_of(page).ok_or_else(out_of_memory)?;
        let mapped = inside.checked_add(2 * page).ok_or_else(out_of_memory)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice overlaps no memory in use.
        let mapping = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(out_of_memory());
        }
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or_else(out_of_memory)?;
        // SAFETY: all offsets are inside the mapping.
        let start = unsafe { mapping.add(if below { page } else { page + inside - bytes }) };
        // From here on, dropping `guarded` unmaps the pages.
        let guarded = Guarded { mapping, mapped, start };
        // SAFETY: the pages are the mapping without its first and last page, and nothing refers to them; they have room
        // for the bytes, which the caller promises to be readable.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            if inside > 0 && libc::mprotect(mapping.add(page).as_ptr().cast(), inside, protection) != 0 {
                return Err(out_of_memory());
            }
            start.as_ptr().copy_from_nonoverlapping(source, bytes);
        }
        Ok(guarded)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

#[cfg(unix)]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `copy_of`, and no reference to it is left.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(unix)]
pub(crate) fn page_size() -> usize {
    // SAFETY: queries a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Representation of an element in memory.
trait Stored: Copy {
    /// Loads an element, atomically if other threads may store to it.
    ///
    /// # Safety
    /// The pointer is aligned and in bounds of an object.
    unsafe fn load<const RACING: bool>(at: *mut Self) -> Self;

    /// Stores an element, atomically if other threads may access it.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn store<const RACING: bool>(self, at: *mut Self);
}

macro_rules! stored {
    ($($plain:ty, $atomic:ty;)*) => { $(
        impl Stored for $plain {
            #[inline(always)]
            unsafe fn load<const RACING: bool>(at: *mut Self) -> Self {
                // SAFETY: promised by the caller; memory that several threads access is accessed atomically by all of
                // them.
                unsafe { if RACING { <$atomic>::from_ptr(at).load(Relaxed) } else { at.read() } }
            }

            #[inline(always)]
            unsafe fn store<const RACING: bool>(self, at: *mut Self) {
                // SAFETY: as above.
                unsafe { if RACING { <$atomic>::from_ptr(at).store(self, Relaxed) } else { at.write(self) } }
            }
        }
    )* };
}

stored! {
    i8, AtomicI8;
    u8, AtomicU8;
    i16, AtomicI16;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

/// A memory object as seen by one worker.
#[derive(Clone, Copy)]
pub(crate) struct View {
    /// First element; of lane 0, for a private array.
    pub(crate) start: *mut u8,
    /// Number of elements.
    pub(crate) length: u32,
    pub(crate) element: Element,
    /// Distance between lanes in bytes: nonzero for private arrays only.
    pub(crate) lane_stride: usize,
    /// Other threads may store to elements while this one accesses them.
    pub(crate) racing: bool,
}

impl View {
    /// The same bytes as elements of another type. Argument binding has checked that their count fits 32 bits.
    pub(crate) fn with_element(self, element: Element) -> View {
        if element == self.element {
            return self;
        }
        let bytes = u64::from(self.length) * self.element.size() as u64;
        View { element, length: (bytes / element.size() as u64) as u32, ..self }
    }

    /// Returns the bits at an index, or 0 out of bounds.
    pub(crate) fn load(&self, lane: usize, index: u64) -> u64 {
        if index >= u64::from(self.length) {
            return 0;
        }
        if self.racing { self.load_inside::<true>(lane, index) } else { self.load_inside::<false>(lane, index) }
    }

    fn load_inside<const RACING: bool>(&self, lane: usize, index: u64) -> u64 {
        let at = self.pointer(lane, index);
        // SAFETY: the index is in bounds, and elements are aligned.
        unsafe {
            match self.element {
                Element::I8 => u64::from(i8::load::<RACING>(at.cast()) as i32 as u32),
                Element::U8 => u64::from(u8::load::<RACING>(at)),
                Element::I16 => u64::from(i16::load::<RACING>(at.cast()) as i32 as u32),
                Element::U16 | Element::F16 => u64::from(u16::load::<RACING>(at.cast())),
                Element::I32 | Element::U32 | Element::F32 => u64::from(u32::load::<RACING>(at.cast())),
                Element::I64 | Element::U64 | Element::F64 => u64::load::<RACING>(at.cast()),
                Element::BF16 => unreachable!("legalized"),
            }
        }
    }

    /// Stores bits at an index; does nothing out of bounds.
    pub(crate) fn store(&self, lane: usize, index: u64, bits: u64) {
        if index >= u64::from(self.length) {
            return;
        }
        if self.racing {
            self.store_inside::<true>(lane, index, bits);
        } else {
            self.store_inside::<false>(lane, index, bits);
        }
    }

    fn store_inside<const RACING: bool>(&self, lane: usize, index: u64, bits: u64) {
        let at = self.pointer(lane, index);
        // SAFETY: the index is in bounds, and elements are aligned.
        unsafe {
            match self.element.size() {
                1 => (bits as u8).store::<RACING>(at),
                2 => (bits as u16).store::<RACING>(at.cast()),
                4 => (bits as u32).store::<RACING>(at.cast()),
                _ => bits.store::<RACING>(at.cast()),
            }
        }
    }

    /// Atomic read-modify-write: stores `change(old)` if it is `Some`, and returns the old bits. Out of bounds it does
    /// nothing and returns 0. A replacement has release, the read acquire ordering.
    pub(crate) fn replace(&self, index: u64, change: impl Fn(u64) -> Option<u64>) -> u64 {
        if index >= u64::from(self.length) {
            return 0;
        }
        let at = self.pointer(0, index);
        // SAFETY: the index is in bounds, elements are aligned, and atomic objects are accessed atomically everywhere.
        unsafe {
            if self.element.size() == 4 {
                let word = AtomicU32::from_ptr(at.cast());
                let changed = |bits: u32| change(u64::from(bits)).map(|bits| bits as u32);
                u64::from(word.fetch_update(AcqRel, Acquire, changed).unwrap_or_else(|old| old))
            } else {
                let word = AtomicU64::from_ptr(at.cast());
                word.fetch_update(AcqRel, Acquire, change).unwrap_or_else(|old| old)
            }
        }
    }

    /// Loads atomically.
    pub(crate) fn load_atomic(&self, index: u64) -> u64 {
        self.replace(index, |_| None)
    }

    /// Gathers one element for each lane of a mask: the one at the lane's index plus `offset`, or 0 out of bounds.
    ///
    /// # Safety
    /// `target` has a lane, of 4 or 8 bytes according to the element, for each index and each element of the mask, and
    /// does not overlap memory of an object.
    pub(crate) unsafe fn gather(&self, indices: &[u32], offset: u64, mask: &[u32], target: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe {
            if self.racing {
                self.gather_lanes::<true>(indices, offset, mask, target);
            } else {
                self.gather_lanes::<false>(indices, offset, mask, target);
            }
        }
    }

    /// # Safety
    /// As for `gather`.
    unsafe fn gather_lanes<const RACING: bool>(&self, indices: &[u32], offset: u64, mask: &[u32], target: *mut u8) {
        /// The loop for elements of one type.
        #[inline(always)]
        unsafe fn each<const RACING: bool, E: Stored, L: Default>(
            view: &View,
            indices: &[u32],
            offset: u64,
            mask: &[u32],
            target: *mut L,
            widen: impl Fn(E) -> L,
        ) {
            let length = u64::from(view.length);
            for (lane, (&index, &mask)) in indices.iter().zip(mask).enumerate() {
                let at = u64::from(index) + offset;
                // Results of inactive lanes are unused, and their indices may be out of bounds.
                if mask != 0 {
                    // SAFETY: the index is checked here; the rest is promised by the caller.
                    unsafe {
                        let value = if at < length {
                            let first = view.start.add(lane * view.lane_stride).cast::<E>();
                            widen(E::load::<RACING>(first.add(at as usize)))
                        } else {
                            L::default()
                        };
                        target.add(lane).write(value);
                    }
                }
            }
        }
        let narrow = target.cast::<u32>();
        // SAFETY: promised by the caller.
        unsafe {
            match self.element {
                Element::I8 => {
                    each::<RACING, _, _>(self, indices, offset, mask, narrow, |e: i8| e as i32 as u32);
                }
                Element::U8 => each::<RACING, _, _>(self, indices, offset, mask, narrow, |e: u8| u32::from(e)),
                Element::I16 => {
                    each::<RACING, _, _>(self, indices, offset, mask, narrow, |e: i16| e as i32 as u32);
                }
                Element::U16 | Element::F16 => {
                    each::<RACING, _, _>(self, indices, offset, mask, narrow, |e: u16| u32::from(e));
                }
                Element::I32 | Element::U32 | Element::F32 => {
                    each::<RACING, _, _>(self, indices, offset, mask, narrow, |e: u32| e);
                }
                Element::I64 | Element::U64 | Element::F64 => {
                    each::<RACING, _, _>(self, indices, offset, mask, target.cast::<u64>(), |e: u64| e);
                }
                Element::BF16 => unreachable!("legalized"),
            }
        }
    }

    /// Scatters one element for each lane of a mask to its index, in lane order; does nothing out of bounds.
    ///
    /// # Safety
    /// `source` has a lane, of 4 or 8 bytes according to the element, for each index and each element of the mask, and
    /// does not overlap memory of an object.
    pub(crate) unsafe fn scatter(&self, indices: &[u32], mask: &[u32], source: *const u8) {
        // SAFETY: promised by the caller.
        unsafe {
            if self.racing {
                self.scatter_lanes::<true>(indices, mask, source);
            } else {
                self.scatter_lanes::<false>(indices, mask, source);
            }
        }
    }

    /// # Safety
    /// As for `scatter`.
    unsafe fn scatter_lanes<const RACING: bool>(&self, indices: &[u32], mask: &[u32], source: *const u8) {
        /// The loop for elements of one type.
        #[inline(always)]
        unsafe fn each<const RACING: bool, E: Stored, L: Copy>(
            view: &View,
            indices: &[u32],
            mask: &[u32],
            source: *const L,
            narrowed: impl Fn(L) -> E,
        ) {
            for (lane, (&index, &mask)) in indices.iter().zip(mask).enumerate() {
                if mask != 0 && index < view.length {
                    // SAFETY: the index is checked here; the rest is promised by the caller.
                    unsafe {
                        let target = view.start.add(lane * view.lane_stride).cast::<E>().add(index as usize);
                        narrowed(source.add(lane).read()).store::<RACING>(target);
                    }
                }
            }
        }
        // SAFETY: promised by the caller.
        unsafe {
            match self.element.size() {
                1 => each::<RACING, _, _>(self, indices, mask, source.cast::<u32>(), |bits| bits as u8),
                2 => each::<RACING, _, _>(self, indices, mask, source.cast::<u32>(), |bits| bits as u16),
                4 => each::<RACING, _, _>(self, indices, mask, source.cast::<u32>(), |bits| bits),
                _ => each::<RACING, _, _>(self, indices, mask, source.cast::<u64>(), |bits| bits),
            }
        }
    }

    /// Loads consecutive elements of at most 4 bytes into lanes of 4 bytes.
    ///
    /// # Safety
    /// All elements are in bounds. `target` has room for `count` lanes and does not overlap memory of an object.
    pub(crate) unsafe fn load_run(&self, first: usize, target: *mut u32, count: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            if self.racing {
                self.load_each::<true>(first, target, count);
            } else {
                self.load_each::<false>(first, target, count);
            }
        }
    }

    /// # Safety
    /// As for `load_run`.
    unsafe fn load_each<const RACING: bool>(&self, first: usize, target: *mut u32, count: usize) {
        /// Loads and widens the elements.
        #[inline(always)]
        unsafe fn widen<const RACING: bool, E: Stored>(
            source: *mut E,
            target: *mut u32,
            count: usize,
            wide: impl Fn(E) -> u32,
        ) {
            for k in 0..count {
                // SAFETY: promised by the caller.
                unsafe { target.add(k).write(wide(E::load::<RACING>(source.add(k)))) };
            }
        }
        // SAFETY: promised by the caller.
        unsafe {
            match self.element {
                Element::I8 => {
                    widen::<RACING, _>(self.start.cast::<i8>().add(first), target, count, |e| e as i32 as u32);
                }
                Element::U8 => widen::<RACING, _>(self.start.add(first), target, count, u32::from),
                Element::I16 => {
                    widen::<RACING, _>(self.start.cast::<i16>().add(first), target, count, |e| e as i32 as u32);
                }
                Element::U16 | Element::F16 => {
                    widen::<RACING, _>(self.start.cast::<u16>().add(first), target, count, u32::from);
                }
                Element::I32 | Element::U32 | Element::F32 => {
                    widen::<RACING, _>(self.start.cast::<u32>().add(first), target, count, |e| e);
                }
                Element::I64 | Element::U64 | Element::F64 => unreachable!("lanes of 8 bytes"),
                Element::BF16 => unreachable!("legalized"),
            }
        }
    }

    /// Stores consecutive elements of at most 4 bytes from lanes of 4 bytes.
    ///
    /// # Safety
    /// All elements are in bounds. `source` has `count` lanes and does not overlap memory of an object.
    pub(crate) unsafe fn store_run(&self, first: usize, source: *const u32, count: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            if self.racing {
                self.store_each::<true>(first, source, count);
            } else {
                self.store_each::<false>(first, source, count);
            }
        }
    }

    /// # Safety
    /// As for `store_run`.
    unsafe fn store_each<const RACING: bool>(&self, first: usize, source: *const u32, count: usize) {
        /// Narrows and stores the lanes.
        #[inline(always)]
        unsafe fn narrow<const RACING: bool, E: Stored>(
            source: *const u32,
            target: *mut E,
            count: usize,
            narrowed: impl Fn(u32) -> E,
        ) {
            for k in 0..count {
                // SAFETY: promised by the caller.
                unsafe { narrowed(source.add(k).read()).store::<RACING>(target.add(k)) };
            }
        }
        // SAFETY: promised by the caller.
        unsafe {
            match self.element.size() {
                1 => narrow::<RACING, _>(source, self.start.add(first), count, |bits| bits as u8),
                2 => narrow::<RACING, _>(source, self.start.cast::<u16>().add(first), count, |bits| bits as u16),
                _ => narrow::<RACING, _>(source, self.start.cast::<u32>().add(first), count, |bits| bits),
            }
        }
    }

    fn pointer(&self, lane: usize, index: u64) -> *mut u8 {
        let offset = lane * self.lane_stride + index as usize * self.element.size();
        // SAFETY: callers have checked the index, and a private array has room for every lane.
        unsafe { self.start.add(offset) }
    }

    /// Returns whether `count` elements from an index on are in bounds.
    pub(crate) fn holds(&self, index: u64, count: usize) -> bool {
        index + count as u64 <= u64::from(self.length)
    }
}

/// Atomic update: combines the element at each lane's index with the lane's operand, in lane order, and returns the old
/// bits, for the lanes of a mask. Out of bounds it does nothing and returns 0. The return value of the function is the
/// number of compare-exchanges that failed because another thread changed the element.
///
/// # Safety
/// Operands and results have a lane, of the size of the element, for each index and each element of the mask; they do
/// not overlap memory of an object, and results do not overlap operands. The elements have the type that the function
/// was selected for.
pub(crate) type Update =
    unsafe fn(view: &View, indices: &[u32], mask: &[u32], operands: *const u8, results: *mut u8) -> u64;

/// Returns the update function of an atomic operation for an element type. Workgroup arrays are accessed by one thread
/// only: they are not `shared`, and need no atomic instructions.
pub(crate) fn update_function(op: Atomic, ty: Type, shared: bool) -> Update {
    /// The loop for one operation and type.
    #[inline(always)]
    unsafe fn each<L: Copy + Default>(
        view: &View,
        (indices, mask): (&[u32], &[u32]),
        (operands, results): (*const u8, *mut u8),
        mut update: impl FnMut(*mut u8, L) -> L,
    ) {
        let (operands, results) = (operands.cast::<L>(), results.cast::<L>());
        for (lane, (&index, &mask)) in indices.iter().zip(mask).enumerate() {
            if mask != 0 {
                // SAFETY: the index is checked here; the rest is promised by the caller.
                unsafe {
                    let inside = index < view.length;
                    let at = view.start.wrapping_add(index as usize * size_of::<L>());
                    let old = if inside { update(at, operands.add(lane).read()) } else { L::default() };
                    results.add(lane).write(old);
                }
            }
        }
    }

    macro_rules! functions {
        ($atomic:ty, $plain:ty) => {{
            macro_rules! function {
                ($method:ident, |$old:ident, $operand:ident| $new:expr) => {
                    if shared {
                        // SAFETY: promised by the caller; atomic objects are accessed atomically everywhere.
                        |view, indices, mask, operands, results| unsafe {
                            each::<$plain>(view, (indices, mask), (operands, results), |at, operand| {
                                <$atomic>::from_ptr(at.cast()).$method(operand, AcqRel)
                            });
                            0
                        }
                    } else {
                        // SAFETY: promised by the caller.
                        |view, indices, mask, operands, results| unsafe {
                            each::<$plain>(view, (indices, mask), (operands, results), |at, $operand| {
                                let at = at.cast::<$plain>();
                                let $old = at.read();
                                at.write($new);
                                $old
                            });
                            0
                        }
                    }
                };
            }
            match op {
                Atomic::Add => function!(fetch_add, |old, operand| old.wrapping_add(operand)),
                Atomic::Sub => function!(fetch_sub, |old, operand| old.wrapping_sub(operand)),
                Atomic::Min => function!(fetch_min, |old, operand| old.min(operand)),
                Atomic::Max => function!(fetch_max, |old, operand| old.max(operand)),
                Atomic::And => function!(fetch_and, |old, operand| old & operand),
                Atomic::Or => function!(fetch_or, |old, operand| old | operand),
                Atomic::Xor => function!(fetch_xor, |old, operand| old ^ operand),
                Atomic::Exchange => function!(swap, |old, operand| operand),
            }
        }};
    }
    /// Updates of floats by an evaluator of the op table, in a compare-exchange loop if the array is shared.
    macro_rules! float_functions {
        ($atomic:ty, $plain:ty, $ty:expr, $bits:expr) => {{
            macro_rules! function {
                ($op:expr) => {
                    match shared {
                        true => function!($op, true),
                        false => function!($op, false),
                    }
                };
                ($op:expr, $shared:literal) => {
                    // SAFETY: promised by the caller; atomic objects are accessed atomically everywhere.
                    |view, indices, mask, operands, results| unsafe {
                        let combine = $op.info().evaluator($ty, $ty).expect("floats can be combined");
                        let new = |old: $plain, operand: $plain| combine(&[old.into(), operand.into()]) as $plain;
                        let mut failed = 0;
                        each::<$plain>(view, (indices, mask), (operands, results), |at, operand| {
                            if !$shared {
                                let at = at.cast::<$plain>();
                                let old = at.read();
                                at.write(new(old, operand));
                                return old;
                            }
                            let element = <$atomic>::from_ptr(at.cast());
                            let mut old = element.load(Relaxed);
                            while let Err(found) = element.compare_exchange(old, new(old, operand), AcqRel, Relaxed) {
                                (old, failed) = (found, failed + 1);
                            }
                            old
                        });
                        failed
                    }
                };
            }
            match op {
                Atomic::Add => function!(Pure::Add),
                Atomic::Sub => function!(Pure::Sub),
                Atomic::Min => function!(Pure::Min),
                Atomic::Max => function!(Pure::Max),
                Atomic::Exchange => update_function(op, $bits, shared),
                Atomic::And | Atomic::Or | Atomic::Xor => unreachable!("validated: bitwise atomics are of integers"),
            }
        }};
    }
    match ty {
        Type::I32 => functions!(AtomicI32, i32),
        Type::U32 => functions!(AtomicU32, u32),
        Type::I64 => functions!(AtomicI64, i64),
        Type::U64 => functions!(AtomicU64, u64),
        Type::F32 => float_functions!(AtomicU32, u32, Type::F32, Type::U32),
        Type::F64 => float_functions!(AtomicU64, u64, Type::F64, Type::U64),
        ty @ (Type::Bool | Type::F16) => unreachable!("validated: {ty} has no atomics"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_and_aligned_at_every_size() {
        for size in [0, 1, 64, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20] {
            let block = Block::new(size).expect("a few megabytes");
            assert_eq!(block.at(0).addr() % if size < 2 << 20 { 64 } else { 2 << 20 }, 0);
            // SAFETY: the offset is in bounds, and nothing else accesses the block.
            let is_zero = || (0..size).all(|offset| unsafe { block.at(offset).read() } == 0);
            assert!(is_zero());
            for offset in (0..size).step_by(4093).chain(size.checked_sub(1)) {
                // SAFETY: as above.
                unsafe { block.at(offset).write(1) };
            }
            assert_eq!(is_zero(), size == 0);
            block.clear();
            assert!(is_zero());
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        for requested in [u64::MAX, isize::MAX as u64, isize::MAX as u64 - (4 << 20), 1 << 56] {
            assert!(matches!(Block::new(requested), Err(Error::OutOfMemory { requested: r, .. }) if r == requested));
        }
    }
    /// Miri reports a data race if one of the accesses is not atomic.
    #[test]
    fn racing_accesses_give_values_that_were_stored() {
        const LANES: usize = 32;
        let rounds = if cfg!(miri) { 3 } else { 1000 };
        for element in [Element::U8, Element::I16, Element::U32, Element::U64] {
            let block = Block::new((LANES * element.size()) as u64).expect("a few bytes");
            let (indices, mask) = (std::array::from_fn::<u32, LANES, _>(|lane| lane as u32), [u32::MAX; LANES]);
            let is_stored = |bits: u64| matches!(bits, 0 | 0x5555_5555 | 0x55 | 0x5555);
            let access = |block: &Block| {
                let view = View { start: block.at(0), length: LANES as u32, element, lane_stride: 0, racing: true };
                for _ in 0..rounds {
                    let (mut wide, mut narrow) = ([0x5555_5555_u64; LANES], [0x5555_5555_u32; LANES]);
                    // SAFETY: the arrays have all lanes, of the size that the element has in them.
                    unsafe {
                        if element == Element::U64 {
                            view.scatter(&indices, &mask, wide.as_ptr().cast());
                            view.gather(&indices, 0, &mask, wide.as_mut_ptr().cast());
                        } else {
                            view.scatter(&indices, &mask, narrow.as_ptr().cast());
                            view.gather(&indices, 0, &mask, narrow.as_mut_ptr().cast());
                            assert!(narrow.iter().all(|&bits| is_stored(u64::from(bits))));
                            view.load_run(0, narrow.as_mut_ptr(), LANES);
                            view.store_run(0, narrow.as_ptr(), LANES);
                            wide = narrow.map(u64::from);
                        }
                    }
                    assert!(wide.iter().all(|&bits| is_stored(bits)), "{element}: {wide:x?}");
                    view.store(0, 3, 0);
                    assert!(is_stored(view.load(0, 3)));
                }
            };
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| access(&block));
                }
            });
        }
    }

    #[cfg(unix)]
    #[test]
    fn accesses_outside_of_guarded_memory_are_faults() {
        /// Forks a child process that reads the byte; returns whether a memory fault ends it.
        fn faults(at: *const u8) -> bool {
            // SAFETY: the child reads the byte, which may fault, and calls only `_exit`.
            unsafe {
                match libc::fork() {
                    0 => {
                        at.read_volatile();
                        libc::_exit(0)
                    }
                    child => {
                        let mut status = 0;
                        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                        libc::WIFSIGNALED(status)
                    }
                }
            }
        }
        for bytes in [0, 1, 20, 4096, 10_000] {
            let source: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
            for below in [false, true] {
                // SAFETY: the vector has that many bytes.
                let copy = unsafe { Guarded::copy_of(source.as_ptr(), bytes, below) }.expect("a few pages");
                // SAFETY: the copy has as many bytes, and is alive.
                assert_eq!(unsafe { std::slice::from_raw_parts(copy.start(), bytes) }, source);
                let (first, end) = (copy.start().cast_const(), copy.start().wrapping_add(bytes).cast_const());
                assert!(faults(if below { first.wrapping_sub(1) } else { end }), "{bytes} bytes");
                assert!(bytes == 0 || !faults(first) && !faults(end.wrapping_sub(1)));
            }
        }
    }
}
