//! Redundant items: structural duplicates across arms, and elimination of redundant items of a batch.
//!
//! [`detect`] compares operands only, to estimate the overlap of arms. [`Pruner`] also checks effects, and removes items soundly.

use rustc_hash::FxHashMap;
use vyre_driver::Error as DriverError;

use super::{Access, Traits, WorkItem};
use crate::Error;

/// A redundant item and its twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// First arm with the item; in a batch, the position of the kept twin.
    pub early: usize,
    /// Later arm with the item; in a batch, the position of the pruned item.
    pub late: usize,
    /// Position in the later arm; in a batch, 0.
    pub op_index_in_late: usize,
}

/// Redundant items, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The redundant items.
    pub redundant_pairs: Vec<Pair>,
    /// Number of redundant items.
    pub total_redundant_ops: usize,
}

impl Report {
    fn add(&mut self, pair: Pair) -> Result<(), Error> {
        let pairs = &mut self.redundant_pairs;
        let requested = pairs.len() + 1;
        pairs.try_reserve(1).map_err(|_| DriverError::Reservation { field: "redundant pairs", requested })?;
        pairs.push(pair);
        self.total_redundant_ops += 1;
        Ok(())
    }
}

/// Finds items with the same op, input and output as an item of an earlier arm. Parameters are not compared, and repetitions within an arm
/// do not count.
pub fn detect(arms: &[&[WorkItem]]) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut first_arms = FxHashMap::default();
    let items = arms.iter().try_fold(0usize, |sum, arm| sum.checked_add(arm.len()));
    let requested = items.ok_or(DriverError::Overflow { field: "items of arms" })?;
    first_arms.try_reserve(requested).map_err(|_| DriverError::Reservation { field: "items of arms", requested })?;
    for (late, arm) in arms.iter().enumerate() {
        for (op_index_in_late, item) in arm.iter().enumerate() {
            let triple = [item.op_handle, item.input_handle, item.output_handle];
            let early = *first_arms.entry(triple).or_insert(late);
            if early != late {
                report.add(Pair { early, late, op_index_in_late })?;
            }
        }
    }
    Ok(report)
}

/// Redundant-item elimination for batches, with reused scratch memory.
///
/// An item is redundant if it would store the values that memory already holds. This is the case if an equal item was executed before (its
/// twin) and
///
/// - the op is pure, so its results depend only on the memory that it names,
/// - it does not read its outputs, which its twin has changed,
/// - no item since then wrote its inputs,
/// - no item since then wrote its outputs.
///
/// Only kept items are executed, so only they are twins and writers. A batch is assumed to execute in order, or with an equal result.
///
/// The twin of an item can thus only be the last writer of its output, and the last writer of each handle is the only state. Items that
/// write no memory are kept.
#[derive(Clone, Debug, Default)]
pub struct Pruner {
    /// Last kept writer of each handle.
    writers: Table,
}

impl Pruner {
    /// Writes the kept items to `kept`, in order, and reports the twin of each pruned one.
    ///
    /// If no item is pruned, `kept` is empty, and the batch can be used as it is.
    pub fn prune(
        &mut self,
        items: &[WorkItem],
        traits: impl Fn(u32) -> Traits,
        kept: &mut Vec<WorkItem>,
    ) -> Result<Report, Error> {
        kept.clear();
        let mut report = Report::default();
        if has_distinct_outputs(items) {
            self.writers.shrink(items.len());
            return Ok(report);
        }
        // Table entries are an index plus one.
        u32::try_from(items.len()).map_err(|_| DriverError::Overflow { field: "items of a batch" })?;
        let written = |item: &WorkItem| {
            let accesses = traits(item.op_handle).accesses(item).into_iter();
            accesses.filter(|(_, access)| access.writes()).map(|(handle, _)| handle)
        };
        self.writers.prepare(items.iter().flat_map(written))?;

        let mut copied = 0;
        for (index, item) in items.iter().enumerate() {
            if index % BLOCK == 0 {
                self.writers.touch(&items[index..items.len().min(index + BLOCK)]);
            }
            let traits = traits(item.op_handle);
            if let Some(twin) = self.twin(items, item, traits) {
                if copied == 0 {
                    let requested = items.len() - 1;
                    let reserved = kept.try_reserve(requested);
                    reserved.map_err(|_| DriverError::Reservation { field: "kept items", requested })?;
                }
                kept.extend_from_slice(&items[copied..index]);
                copied = index + 1;
                report.add(Pair { early: twin, late: index, op_index_in_late: 0 })?;
                continue;
            }
            for (handle, access) in traits.accesses(item) {
                if access.writes() {
                    self.writers.set(handle, index);
                }
            }
        }
        if copied > 0 {
            kept.extend_from_slice(&items[copied..]);
        }
        Ok(report)
    }

    /// Returns the number of written handles for which the scratch memory suffices.
    pub fn retained_capacity(&self) -> usize {
        self.writers.capacity()
    }

    /// Returns the twin of an item, if it is redundant.
    #[inline(always)]
    fn twin(&self, items: &[WorkItem], item: &WorkItem, traits: Traits) -> Option<usize> {
        if !traits.pure {
            return None;
        }
        let accesses = traits.accesses(item);
        let (written, _) = accesses.iter().find(|(_, access)| access.writes())?;
        let twin = self.writers.get(*written)?;
        let is_later = |handle: u32| self.writers.get(handle).is_some_and(|last| last > twin);
        let redundant = items[twin] == *item
            && !traits.feeds_itself(item)
            && !accesses.iter().any(|(handle, access)| *access != Access::None && is_later(*handle));
        redundant.then_some(twin)
    }
}

/// Items prefetched together.
const BLOCK: usize = 32;

/// Fast path: returns true if all outputs provably differ, so that no two items are equal. Uses a bitmap over a range of handles.
fn has_distinct_outputs(items: &[WorkItem]) -> bool {
    const RANGE: usize = 4096;
    if items.len() <= 1 {
        return true;
    }
    if items.len() > RANGE {
        return false;
    }
    let outputs = || items.iter().map(|item| item.output_handle);
    let least = outputs().min().unwrap_or(0);
    let mut seen = [0u64; RANGE / 64];
    outputs().all(|output| {
        let offset = (output - least) as usize;
        let bit = 1 << (offset % 64);
        let new = seen.get(offset / 64).is_some_and(|word| word & bit == 0);
        if new {
            seen[offset / 64] |= bit;
        }
        new
    })
}

/// Hash table with open addressing from handles to indices of items. An entry is one word: the handle, and the index plus one; 0 is free.
/// The load factor is at most 1/2.
#[derive(Clone, Debug, Default)]
struct Table {
    slots: Vec<u64>,
    /// Direct addressing: the largest handle is less than the number of slots.
    direct: bool,
}

impl Table {
    /// Clears the table, and sizes it for these handles.
    fn prepare(&mut self, written: impl Iterator<Item = u32>) -> Result<(), Error> {
        const FIELD: &str = "written handles";
        let (handles, last) = written.fold((0, 0), |(count, last), handle| (count + 1, handle.max(last)));
        self.slots.clear();
        self.shrink(handles);
        let slots = slots(handles).ok_or(DriverError::Overflow { field: FIELD })?;
        let reserved = self.slots.try_reserve_exact(slots);
        reserved.map_err(|_| DriverError::Reservation { field: FIELD, requested: handles })?;
        self.slots.resize(slots, 0);
        self.direct = (last as usize) < slots;
        Ok(())
    }

    /// Frees memory if the capacity is over 1024 and over four times `handles`.
    fn shrink(&mut self, handles: usize) {
        if self.capacity() > handles.saturating_mul(4).max(1024) {
            self.slots.clear();
            self.slots.shrink_to(slots(handles).unwrap_or(0));
        }
    }

    fn capacity(&self) -> usize {
        self.slots.capacity() / 2
    }

    #[inline(always)]
    fn get(&self, handle: u32) -> Option<usize> {
        // With direct addressing, a handle beyond the slots was not written.
        (*self.slots.get(self.find(handle))? as u32 as usize).checked_sub(1)
    }

    #[inline(always)]
    fn set(&mut self, handle: u32, index: usize) {
        let slot = self.find(handle);
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = u64::from(handle) << 32 | (index as u64 + 1);
        }
    }

    /// Returns the slot of a handle, or the free slot for it (linear probing).
    #[inline(always)]
    fn find(&self, handle: u32) -> usize {
        let mut slot = self.home(handle);
        if self.direct {
            return slot;
        }
        // Inconsistent `traits` can fill the table, so the probe is bounded.
        for _ in 0..self.slots.len() {
            let entry = self.slots[slot];
            if entry == 0 || (entry >> 32) as u32 == handle {
                break;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Prefetches the home slots of items by independent loads. The dependent loads of the lookups would dominate the time of large
    /// batches.
    #[inline(always)]
    fn touch(&self, items: &[WorkItem]) {
        let read = items.iter().filter_map(|item| self.slots.get(self.home(item.output_handle)));
        let read = read.fold(0, |read, entry| read ^ entry);
        std::hint::black_box(read);
    }

    /// Returns the home slot of a handle. Eight adjacent handles share a cache line, since handles are often used in order. Lines are
    /// hashed by folding a 128-bit product: for handles that are multiples of a number, one half of the product alone can be regular.
    #[inline(always)]
    fn home(&self, handle: u32) -> usize {
        if self.direct {
            return handle as usize;
        }
        let product = (u128::from(handle >> 3) + 0x9E37_79B9_7F4A_7C15) * 0xD1B5_4A32_D192_ED03;
        let line = product as u64 ^ (product >> 64) as u64;
        (line << 3 | u64::from(handle & 7)) as usize & (self.slots.len() - 1)
    }
}

/// Returns the number of slots for `handles` handles, at least one of them free.
fn slots(handles: usize) -> Option<usize> {
    handles.max(1).checked_mul(2)?.checked_next_power_of_two()
}
