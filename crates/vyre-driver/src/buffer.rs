//! Buffers: typed parts of device memory, taken from a pool and given back when they are dropped.

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

/// A typed part of the memory of a device. Clones share the memory; it goes back to the device's pool with the last of them.
#[derive(Clone)]
pub struct Buffer {
    allocation: Arc<Allocation>,
    element: Element,
    /// In bytes.
    start: u64,
    /// In elements.
    length: u32,
}

/// Memory that was taken from the pool.
struct Allocation {
    /// Never used twice, so that overlapping can be decided by it.
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

/// Memory that is not in use, by size.
#[derive(Default)]
pub(crate) struct Pool {
    free: BTreeMap<u64, Vec<Arc<dyn backend::Memory>>>,
    pub(crate) bytes: u64,
}

impl Pool {
    /// More than this is given back to the device at once.
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

    /// Gives everything back to the device.
    pub(crate) fn clear(&mut self) {
        *self = Pool::default();
    }
}

impl Buffer {
    /// The size that is allocated for a request: a quarter of a power of two, so that at most a fifth is wasted and buffers of
    /// similar sizes can take each other's place. `None` is more than can be counted.
    pub fn size_class(bytes: u64) -> Option<u64> {
        const SMALLEST: u64 = 256;
        if bytes <= SMALLEST {
            return Some(SMALLEST);
        }
        let step = (bytes.checked_next_power_of_two()? / 8).max(16);
        bytes.checked_next_multiple_of(step)
    }

    /// Memory for `length` elements. Unless it is about to be overwritten, it is filled with zeros.
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
        // What is allocated may be a little more than what is asked for, but never more than there is.
        let rounded = |used: u64| {
            let bytes = Buffer::size_class(requested).filter(|_| requested <= available(used))?;
            Some(bytes.min(available(used)).max(requested.next_multiple_of(16)).max(16))
        };
        // Bytes are reserved before they are allocated, so that threads that allocate at once stay within what is left.
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
                    // What the pool holds back may be what is missing.
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

    /// What it is made of.
    pub fn element(&self) -> Element {
        self.element
    }

    /// How many elements it has.
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// A part of the buffer, by elements. It shares the memory.
    ///
    /// # Errors
    /// The part is not inside.
    pub fn slice(&self, elements: Range<u32>) -> Result<Buffer, Error> {
        if elements.start > elements.end || elements.end > self.length {
            let (start, end) = (u64::from(elements.start), u64::from(elements.end));
            return Err(Error::OutOfRange { start, end, length: u64::from(self.length) });
        }
        let start = self.start + u64::from(elements.start) * self.element.size() as u64;
        Ok(Buffer { start, length: elements.end - elements.start, ..self.clone() })
    }

    /// The beginning of the memory, as `length` elements of another type.
    ///
    /// # Errors
    /// There is less memory than that, or it does not begin at a multiple of the element's size.
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

    /// Bytes of the allocation that the buffer is a part of, as the pool rounds them: the device counts these as used.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocation.bytes
    }

    /// Whether both buffers are parts of the same allocation, overlapping or not.
    pub fn shares_allocation(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
    }

    /// Whether there is memory that both are parts of.
    pub fn overlaps(&self, other: &Buffer) -> bool {
        self.as_slice().overlaps(&other.as_slice())
    }

    /// Replaces the contents. What was submitted before still sees the old ones.
    ///
    /// # Errors
    /// There are not as many bytes as the buffer has, or the device was lost.
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

    /// Reads the contents, after everything that was submitted before.
    ///
    /// # Errors
    /// The device was lost.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        self.elements()
    }

    /// Reads the contents as elements of a type, whose size divides that of the buffer.
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
            Some(mut pending) => Ok(contents(pending.wait_on()?).map_or_else(Vec::new, Contents::elements)),
        }
    }

    /// A word as it is now, while launches that use it atomically may be running; `None` where the device does not let anybody look.
    pub fn peek(&self, word: u32) -> Option<u32> {
        self.allocation.memory.peek(self.word(word)?)
    }

    /// Replaces a word at once, for launches that are running and use it atomically; says whether the device can do that.
    pub fn poke(&self, word: u32, value: u32) -> bool {
        self.word(word).is_some_and(|byte| self.allocation.memory.poke(byte, value))
    }

    /// Where a word begins, if it is inside.
    fn word(&self, word: u32) -> Option<u64> {
        let byte = 4 * u64::from(word);
        let bytes = u64::from(self.length) * self.element.size() as u64;
        (byte + 4 <= bytes && self.start.is_multiple_of(4)).then_some(self.start + byte)
    }

    /// Begins to read the contents, as they are after everything that was submitted before.
    ///
    /// # Errors
    /// The device was lost.
    pub fn download(&self) -> Result<Download, Error> {
        Ok(Download { pending: self.begin_reading(1)? })
    }

    /// `None` if there is nothing to read.
    fn begin_reading(&self, alignment: usize) -> Result<Option<Pending>, Error> {
        let range = self.live("buffer")?;
        if range.bytes == 0 {
            return Ok(None);
        }
        self.allocation.core.submit(vec![Command::Read(range, alignment)], Work::Read).map(Some)
    }

    /// The part of the allocation that the buffer is, for checks.
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

    /// The memory, if the device still has it.
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

/// Equal buffers are the same elements of the same memory.
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

/// Contents that are on their way.
pub struct Download {
    /// `None` if there is nothing to read.
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
            Some(mut pending) => pending.wait_on().map(bytes),
        }
    }

    /// Waits for a time; `None` if the contents are not there by then. They are given once.
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
