//! Memory that programs read and write.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use vyre_driver::{Error, backend};
use vyre_foundation::ir::{Element, Op, Type};
use vyre_foundation::planted::{self, Bug};

/// Zeroed memory that several threads access at once.
///
/// No Rust reference to its contents is ever made: all access is through raw pointers, element by element or in runs of
/// elements. A program with a race makes threads access the same bytes; each aligned element of up to 8 bytes is then moved
/// by one instruction, so that a racy load gives a value that was stored, which is what the semantics ask for.
///
/// Large blocks are in huge pages where the system has them, so that going through megabytes at random misses fewer
/// translations of addresses. Their pages come into being when they are first touched, by the thread that touches them.
pub(crate) struct Block {
    start: NonNull<u8>,
    /// From [`map`] if it is at least [`HUGE_PAGE`], where there is such a thing; else from the allocator.
    size: usize,
}

// SAFETY: the memory is owned, and is accessed as described above.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl backend::Memory for Block {
    fn peek(&self, byte: u64) -> Option<u32> {
        // SAFETY: the driver has checked that the word lies inside, and is aligned.
        Some(unsafe { AtomicU32::from_ptr(self.at(byte).cast()) }.load(Relaxed))
    }

    fn poke(&self, byte: u64, word: u32) -> bool {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(byte).cast()) }.store(word, Relaxed);
        true
    }
}

impl Block {
    /// A cache line, so that lanes of a block do not share one with another block.
    const ALIGNMENT: usize = 64;

    pub(crate) fn new(bytes: u64) -> Result<Block, Error> {
        let out_of_memory = || Error::OutOfMemory { requested: bytes, available: 0 };
        let size = usize::try_from(bytes).map_err(|_| out_of_memory())?.max(1);
        #[cfg(unix)]
        if size >= HUGE_PAGE {
            let start = map(size).ok_or_else(out_of_memory)?;
            return Ok(Block { start, size });
        }
        let layout = Layout::from_size_align(size, Block::ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has a size that is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Block { start, size })
    }

    /// Fills it with zeros. The caller is the only one who uses it.
    pub(crate) fn clear(&self) {
        // SAFETY: all of it is owned, and nobody else accesses it now.
        unsafe { self.start.as_ptr().write_bytes(0, self.size) };
    }

    /// A pointer to a byte. It must lie inside.
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
            // SAFETY: mapped in `new`, where as many whole huge pages were kept.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.size.next_multiple_of(HUGE_PAGE)) };
            return;
        }
        // SAFETY: allocated in `new` with this layout, which was possible.
        unsafe { dealloc(self.start.as_ptr(), Layout::from_size_align_unchecked(self.size, Block::ALIGNMENT)) };
    }
}

/// Bytes of a huge page. Where they have another size, blocks are aligned as well as here and not in huge pages.
#[cfg(unix)]
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed pages that nobody has touched yet, aligned to a huge page and as many whole ones as have room for the size.
#[cfg(unix)]
fn map(size: usize) -> Option<NonNull<u8>> {
    let kept = size.checked_next_multiple_of(HUGE_PAGE)?;
    // The system aligns to small pages only; what is too much goes back.
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
    // SAFETY: all ranges are whole pages of the mapping made above, which nobody else knows of.
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

/// Asks for huge pages in a range that has not been touched: pages that are there already stay small.
///
/// # Safety
/// The range is allocated memory of the caller's.
pub(crate) unsafe fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let before = start.align_offset(HUGE_PAGE);
        let whole = bytes.saturating_sub(before) / HUGE_PAGE * HUGE_PAGE;
        if whole > 0 {
            // SAFETY: the range lies inside of the caller's. It is advice: contents stay as they are, and whether it is
            // followed does not matter.
            unsafe { libc::madvise(start.add(before).cast(), whole, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
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
        if index + u64::from(planted::is(Bug::CpuStoreBound)) >= u64::from(self.length) {
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

    /// Replaces an element atomically if a function of its old bits gives new ones; outside, nothing happens and the old
    /// bits are 0.
    pub(crate) fn replace(&self, index: u64, change: impl Fn(u64) -> Option<u64>) -> u64 {
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
        self.replace(index, |_| None)
    }

    /// Loads one element for each lane of a mask: the one at its index plus an offset, or 0 outside.
    ///
    /// # Safety
    /// `target` has a lane, of 4 or 8 bytes according to the element, for each index and each element of the mask. It is not
    /// memory of an object.
    pub(crate) unsafe fn gather(&self, indices: &[u32], offset: u64, mask: &[u32], target: *mut u8) {
        /// The loop for elements of one type.
        #[inline(always)]
        unsafe fn each<E: Copy, L: Default>(
            view: &View,
            indices: &[u32],
            offset: u64,
            mask: &[u32],
            target: *mut L,
            widen: impl Fn(E) -> L,
        ) {
            let length = u64::from(view.length).saturating_sub(u64::from(planted::is(Bug::CpuGatherBound)));
            for (lane, (&index, &mask)) in indices.iter().zip(mask).enumerate() {
                let at = u64::from(index) + offset;
                // What inactive lanes would load is not needed, and their index may be anything.
                if mask != 0 {
                    // SAFETY: the index is checked here; the rest is promised by the caller.
                    unsafe {
                        let value = if at < length {
                            widen(view.start.add(lane * view.lane_stride).cast::<E>().add(at as usize).read())
                        } else {
                            L::default()
                        };
                        target.add(lane).write(value);
                    }
                }
            }
        }
        let narrow = target.cast::<u32>();
        // SAFETY: promised by the caller. Other threads may write to the elements: see `Block`.
        unsafe {
            match self.element {
                Element::I8 => each(self, indices, offset, mask, narrow, |e: i8| e as i32 as u32),
                Element::U8 => each(self, indices, offset, mask, narrow, |e: u8| u32::from(e)),
                Element::I16 => each(self, indices, offset, mask, narrow, |e: i16| e as i32 as u32),
                Element::U16 | Element::F16 => each(self, indices, offset, mask, narrow, |e: u16| u32::from(e)),
                Element::I32 | Element::U32 | Element::F32 => {
                    each(self, indices, offset, mask, narrow, |e: u32| e);
                }
                Element::I64 | Element::U64 | Element::F64 => {
                    each(self, indices, offset, mask, target.cast::<u64>(), |e: u64| e);
                }
            }
        }
    }

    /// Stores one element for each lane of a mask at its index, in the order of the lanes; outside, nothing happens.
    ///
    /// # Safety
    /// `source` has a lane, of 4 or 8 bytes according to the element, for each index and each element of the mask. It is not
    /// memory of an object.
    pub(crate) unsafe fn scatter(&self, indices: &[u32], mask: &[u32], source: *const u8) {
        /// The loop for elements of one type.
        #[inline(always)]
        unsafe fn each<E, L: Copy>(
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
                        target.write(narrowed(source.add(lane).read()));
                    }
                }
            }
        }
        // SAFETY: promised by the caller. Other threads may access the elements: see `Block`.
        unsafe {
            match self.element.size() {
                1 => each(self, indices, mask, source.cast::<u32>(), |bits| bits as u8),
                2 => each(self, indices, mask, source.cast::<u32>(), |bits| bits as u16),
                4 => each(self, indices, mask, source.cast::<u32>(), |bits| bits),
                _ => each(self, indices, mask, source.cast::<u64>(), |bits| bits),
            }
        }
    }

    /// Loads consecutive elements of at most 4 bytes into lanes of 4 bytes.
    ///
    /// # Safety
    /// All of them are inside, and `target` has room for so many. It is not memory of an object.
    pub(crate) unsafe fn load_run(&self, first: usize, target: *mut u32, count: usize) {
        /// Widens every element.
        unsafe fn widen<E: Copy>(source: *const E, target: *mut u32, count: usize, wide: impl Fn(E) -> u32) {
            for k in 0..count {
                // SAFETY: promised by the caller.
                unsafe { target.add(k).write(wide(source.add(k).read())) };
            }
        }
        // SAFETY: promised by the caller. Other threads may write to the elements: see `Block`.
        unsafe {
            match self.element {
                Element::I8 if !planted::is(Bug::CpuByteSign) => {
                    widen(self.start.cast::<i8>().add(first), target, count, |e| e as i32 as u32);
                }
                Element::I8 | Element::U8 => widen(self.start.add(first), target, count, u32::from),
                Element::I16 => widen(self.start.cast::<i16>().add(first), target, count, |e| e as i32 as u32),
                Element::U16 | Element::F16 => widen(self.start.cast::<u16>().add(first), target, count, u32::from),
                Element::I32 | Element::U32 | Element::F32 => {
                    std::ptr::copy_nonoverlapping(self.start.cast::<u32>().add(first), target, count);
                }
                Element::I64 | Element::U64 | Element::F64 => unreachable!("lanes of 8 bytes"),
            }
        }
    }

    /// Stores consecutive elements of at most 4 bytes from lanes of 4 bytes.
    ///
    /// # Safety
    /// All of them are inside, and `source` has so many. It is not memory of an object.
    pub(crate) unsafe fn store_run(&self, first: usize, source: *const u32, count: usize) {
        // SAFETY: promised by the caller. Other threads may access the elements: see `Block`.
        unsafe {
            match self.element.size() {
                1 => (0..count).for_each(|k| self.start.add(first + k).write(source.add(k).read() as u8)),
                2 => {
                    let target = self.start.cast::<u16>().add(first);
                    (0..count).for_each(|k| target.add(k).write(source.add(k).read() as u16));
                }
                _ => std::ptr::copy_nonoverlapping(source, self.start.cast::<u32>().add(first), count),
            }
        }
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

/// Changes, lane after lane, the element at each lane's index with its operand, and gives the old bits: for the lanes of a mask
/// whose index is inside. Outside, nothing happens and the old bits are 0.
///
/// # Safety
/// Operands and results have a lane, of the size of the element, for each index and each element of the mask; they are not
/// memory of an object, and results do not overlap operands. The elements are of the type the function is for.
pub(crate) type Update = unsafe fn(view: &View, indices: &[u32], mask: &[u32], operands: *const u8, results: *mut u8);

/// The function of an atomic operation on elements of a type. Arrays of a workgroup belong to one thread: they are not
/// `shared`, and need no atomic instructions.
pub(crate) fn update_function(op: &Op, ty: Type, shared: bool) -> Update {
    /// The loop for one operation and type.
    #[inline(always)]
    unsafe fn each<L: Copy + Default>(
        view: &View,
        (indices, mask): (&[u32], &[u32]),
        (operands, results): (*const u8, *mut u8),
        update: impl Fn(*mut u8, L) -> L,
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
                                <$atomic>::from_ptr(at.cast()).$method(operand, Relaxed)
                            })
                        }
                    } else {
                        // SAFETY: promised by the caller.
                        |view, indices, mask, operands, results| unsafe {
                            each::<$plain>(view, (indices, mask), (operands, results), |at, $operand| {
                                let at = at.cast::<$plain>();
                                let $old = at.read();
                                at.write($new);
                                $old
                            })
                        }
                    }
                };
            }
            match op {
                Op::AtomicAdd(_) => function!(fetch_add, |old, operand| old.wrapping_add(operand)),
                Op::AtomicSub(_) => function!(fetch_sub, |old, operand| old.wrapping_sub(operand)),
                Op::AtomicMin(_) => function!(fetch_min, |old, operand| old.min(operand)),
                Op::AtomicMax(_) => function!(fetch_max, |old, operand| old.max(operand)),
                Op::AtomicAnd(_) => function!(fetch_and, |old, operand| old & operand),
                Op::AtomicOr(_) => function!(fetch_or, |old, operand| old | operand),
                Op::AtomicXor(_) => function!(fetch_xor, |old, operand| old ^ operand),
                Op::AtomicExchange(_) => function!(swap, |old, operand| operand),
                op => unreachable!("`{}` has no operand to change with", op.row().name),
            }
        }};
    }
    match ty {
        Type::I32 if planted::is(Bug::CpuAtomicSign) => functions!(AtomicU32, u32),
        Type::I32 => functions!(AtomicI32, i32),
        Type::U32 => functions!(AtomicU32, u32),
        Type::I64 => functions!(AtomicI64, i64),
        Type::U64 => functions!(AtomicU64, u64),
        ty => unreachable!("validated: {ty} has no atomics"),
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
            // SAFETY: the offset is inside, and nobody else has the block.
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
}
