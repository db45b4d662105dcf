//! Buffers: typed ranges of device memory, allocated from a pool.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vyre_foundation::ir::Element;
use vyre_foundation::launch;

use crate::backend::{self, Command, Completion, Contents};
use crate::device::{Core, Pending};
use crate::{Error, Work};

/// A typed range of device memory. Clones share the memory, which returns to the device's pool with the last of them.
#[derive(Clone)]
pub struct Buffer {
    allocation: Arc<Allocation>,
    element: Element,
    /// Start offset in bytes.
    start: u64,
    /// Number of elements.
    length: u32,
}

/// A memory block from the pool.
struct Allocation {
    /// Unique for the lifetime of the process, to detect overlap.
    id: u64,
    memory: Arc<dyn backend::Memory>,
    bytes: u64,
    core: Arc<Core>,
    generation: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.generation == self.core.generation() {
            self.core.pool.lock().put(self.bytes, self.memory.clone());
        }
        self.core.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Free memory blocks, by size.
#[derive(Default)]
pub(crate) struct Pool {
    free: BTreeMap<u64, Vec<Arc<dyn backend::Memory>>>,
    pub(crate) bytes: u64,
}

impl Pool {
    /// Capacity in bytes; blocks beyond it are freed at once.
    const CAPACITY: u64 = 256 << 20;

    fn take(&mut self, bytes: u64) -> Option<Arc<dyn backend::Memory>> {
        let memory = self.free.get_mut(&bytes)?.pop()?;
        self.bytes -= bytes;
        Some(memory)
    }

    fn put(&mut self, bytes: u64, memory: Arc<dyn backend::Memory>) {
        if self.bytes.saturating_add(bytes) <= Pool::CAPACITY {
            self.bytes += bytes;
            self.free.entry(bytes).or_default().push(memory);
        }
    }

    /// Frees all pooled blocks.
    pub(crate) fn clear(&mut self) {
        *self = Pool::default();
    }
}

impl Buffer {
    /// Size class of an allocation, a quarter of a power of two: at most a fifth is wasted, and buffers of similar
    /// sizes can reuse each other's memory. `None` on overflow.
    pub fn size_class(bytes: u64) -> Option<u64> {
        const SMALLEST: u64 = 256;
        if bytes <= SMALLEST {
            return Some(SMALLEST);
        }
        let step = (bytes.checked_next_power_of_two()? / 8).max(16);
        bytes.checked_next_multiple_of(step)
    }

    /// Allocates a buffer, zeroed unless it is about to be overwritten.
    pub(crate) fn new(core: &Arc<Core>, element: Element, length: u64, overwritten: bool) -> Result<Buffer, Error> {
        let capabilities = core.backend.capabilities();
        let requested = length.saturating_mul(element.size() as u64);
        let Ok(length) = u32::try_from(length) else {
            return Err(vyre_foundation::Error::TooLarge { elements: length, element }.into());
        };
        let available = |used: u64| {
            let left = capabilities.memory_bytes.map_or(u64::MAX, |memory| memory.saturating_sub(used));
            left.min(capabilities.max_buffer_bytes)
        };
        // The rounded size may exceed the request, but not the available memory.
        let rounded = |used: u64| {
            let bytes = Buffer::size_class(requested).filter(|_| requested <= available(used))?;
            Some(bytes.min(available(used)).max(requested.next_multiple_of(16)).max(16))
        };
        // Bytes are reserved before they are allocated, so that concurrent allocations stay within the limit.
        let reserve = |used: u64| rounded(used).and_then(|bytes| used.checked_add(bytes));
        let reserved = core.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        let out_of_memory = |used: u64| Error::OutOfMemory { requested, available: available(used) };
        let used = reserved.map_err(out_of_memory)?;
        let bytes = rounded(used).ok_or(out_of_memory(used))?;

        let pooled = core.pool.lock().take(bytes);
        let reused = pooled.is_some();
        let memory = match pooled {
            Some(memory) => memory,
            None => {
                let allocated = core.observe(core.backend.allocate(bytes).or_else(|_| {
                    // Frees pooled memory and retries.
                    core.pool.lock().clear();
                    core.backend.allocate(bytes)
                }));
                allocated.inspect_err(|_| {
                    core.used.fetch_sub(bytes, Ordering::Relaxed);
                })?
            }
        };
        core.peak.fetch_max(used + bytes, Ordering::Relaxed);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let allocation = Allocation { id, memory, bytes, core: core.clone(), generation: core.generation() };
        let buffer = Buffer { allocation: Arc::new(allocation), element, start: 0, length };
        if reused && !overwritten && requested > 0 {
            core.submit(vec![Command::Clear(buffer.range())], Work::Clear)?;
        }
        Ok(buffer)
    }

    /// Element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns a subrange of elements, which shares the memory.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn slice(&self, elements: Range<u32>) -> Result<Buffer, Error> {
        if elements.start > elements.end || elements.end > self.length {
            let (start, end) = (u64::from(elements.start), u64::from(elements.end));
            return Err(Error::OutOfRange { start, end, length: u64::from(self.length) });
        }
        let start = self.start + u64::from(elements.start) * self.element.size() as u64;
        Ok(Buffer { start, length: elements.end - elements.start, ..self.clone() })
    }

    /// Reinterprets the start of the memory as `length` elements of another type.
    ///
    /// # Errors
    /// There is less memory than that, or its start is not aligned to the element size.
    pub fn view(&self, element: Element, length: u32) -> Result<Buffer, Error> {
        let (size, bytes) = (element.size() as u64, self.range().bytes);
        if u64::from(length) * size > bytes {
            return Err(Error::OutOfRange { start: 0, end: u64::from(length), length: bytes / size });
        }
        if !self.start.is_multiple_of(size) {
            return Err(Error::ElementSize { size: element.size(), bytes: self.start });
        }
        Ok(Buffer { element, length, ..self.clone() })
    }

    /// Size of the underlying allocation, as rounded by the pool and counted as used by the device.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocation.bytes
    }

    /// Returns whether both buffers are parts of the same allocation, overlapping or not.
    pub fn shares_allocation(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Returns whether the buffers share bytes.
    pub fn overlaps(&self, other: &Buffer) -> bool {
        self.as_slice().overlaps(&other.as_slice())
    }

    /// Replaces the contents. Work submitted earlier still sees the old contents.
    ///
    /// # Errors
    /// The length differs from the buffer's, or the device was lost.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let range = self.live("buffer")?;
        if bytes.len() as u64 != range.bytes {
            let (given, element, length) = (bytes.len() as u64, self.element, self.length);
            return Err(Error::WriteLength { given, element, length });
        }
        if range.bytes > 0 {
            let _span = tracing::info_span!("upload", bytes = range.bytes).entered();
            let mut data = Contents::reserved(bytes.len())?;
            data.extend_from_slice(bytes);
            self.allocation.core.submit(vec![Command::Write(range, data)], Work::Write)?;
        }
        Ok(())
    }

    /// Reads the contents, after all work submitted earlier.
    ///
    /// # Errors
    /// The device was lost.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        self.elements()
    }

    /// Reads the contents as elements of another type, whose size divides the buffer's.
    ///
    /// # Errors
    /// The size of the buffer is not a multiple of the element's, or the device was lost.
    pub fn elements<T: bytemuck::Pod>(&self) -> Result<Vec<T>, Error> {
        let bytes = self.live("buffer")?.bytes;
        if bytes.checked_rem(size_of::<T>() as u64) != Some(0) {
            return Err(Error::ElementSize { size: size_of::<T>(), bytes });
        }
        let _span = tracing::info_span!("download", elements = self.length).entered();
        match self.begin_reading(align_of::<T>())? {
            None => Ok(Vec::new()),
            Some(mut pending) => Ok(contents(pending.wait_until_done()?).map_or_else(Vec::new, Contents::elements)),
        }
    }

    /// Loads a word while launches that access it atomically may be running; `None` if the device does not support
    /// that.
    pub fn peek(&self, word: u32) -> Option<u32> {
        self.allocation.memory.peek(self.word(word)?)
    }

    /// Stores a word while launches that access it atomically may be running; returns whether the device supports that.
    pub fn poke(&self, word: u32, value: u32) -> bool {
        self.word(word).is_some_and(|byte| self.allocation.memory.poke(byte, value))
    }

    /// Byte offset of a word, if it is in bounds.
    fn word(&self, word: u32) -> Option<u64> {
        let byte = 4 * u64::from(word);
        let bytes = u64::from(self.length) * self.element.size() as u64;
        (byte + 4 <= bytes && self.start.is_multiple_of(4)).then_some(self.start + byte)
    }

    /// Starts to read the contents, after all work submitted earlier.
    ///
    /// # Errors
    /// The device was lost.
    pub fn download(&self) -> Result<Download, Error> {
        Ok(Download { pending: self.begin_reading(1)? })
    }

    /// Returns `None` for an empty buffer.
    fn begin_reading(&self, alignment: usize) -> Result<Option<Pending>, Error> {
        let range = self.live("buffer")?;
        if range.bytes == 0 {
            return Ok(None);
        }
        self.allocation.core.submit(vec![Command::Read(range, alignment)], Work::Read).map(Some)
    }

    /// Range of the buffer in its allocation, for checks.
    pub fn as_slice(&self) -> launch::Slice {
        launch::Slice {
            buffer: self.allocation.id,
            element: self.element,
            start: self.start,
            bytes: u64::from(self.length) * self.element.size() as u64,
        }
    }

    fn range(&self) -> backend::Range {
        let bytes = u64::from(self.length) * self.element.size() as u64;
        backend::Range { memory: self.allocation.memory.clone(), start: self.start, bytes }
    }

    /// The range, unless the device was lost.
    pub(crate) fn live(&self, name: &str) -> Result<backend::Range, Error> {
        if self.allocation.generation != self.allocation.core.generation() {
            return Err(Error::Stale { name: name.into() });
        }
        Ok(self.range())
    }

    /// The buffer as an argument, if it belongs to this device.
    pub(crate) fn on(&self, core: &Arc<Core>, name: &str) -> Result<launch::Slice, Error> {
        if !Arc::ptr_eq(&self.allocation.core, core) {
            return Err(Error::Foreign { name: name.into() });
        }
        Ok(self.as_slice())
    }
}

/// Buffers are equal if they are the same elements of the same memory.
impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer [{}; {}]", self.element, self.length)
    }
}

/// A pending read.
pub struct Download {
    /// `None` for an empty buffer.
    pending: Option<Pending>,
}

impl Download {
    /// Waits for the contents.
    ///
    /// # Errors
    /// The device was lost, or the contents were taken before.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        match self.pending {
            None => Ok(Vec::new()),
            Some(mut pending) => pending.wait_until_done().map(bytes),
        }
    }

    /// Waits with a timeout; `None` after it. Returns the contents once.
    pub fn poll(&mut self, timeout: Duration) -> Option<Result<Vec<u8>, Error>> {
        match &mut self.pending {
            None => Some(Ok(Vec::new())),
            Some(pending) => pending.wait(Some(timeout)).map(|result| result.map(bytes)),
        }
    }
}

fn contents(mut completion: Completion) -> Option<Contents> {
    completion.data.pop()
}

fn bytes(completion: Completion) -> Vec<u8> {
    contents(completion).map_or_else(Vec::new, Contents::elements)
}
