//! Items that are there more than once: found across arms, and left out of a batch where that changes nothing.
//!
//! [`detect`] looks at the structure alone and tells how much arms have in common. [`Pruner`] looks at what ops do with memory.

use rustc_hash::FxHashMap;
use vyre_driver::Error as DriverError;

use super::{Access, Traits, WorkItem};
use crate::Error;

/// An item that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The arm that had it first; in a batch, the position of the item that stays.
    pub early: usize,
    /// The arm that has it again; in a batch, the position of the item that goes.
    pub late: usize,
    /// Where the later arm has it; in a batch, 0.
    pub op_index_in_late: usize,
}

/// The items that were there before, in the order in which they are met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All of them.
    pub redundant_pairs: Vec<Pair>,
    /// How many they are.
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

/// Finds items of which an earlier arm has one with the same op, input and output. Parameters are not compared, and what an arm
/// repeats of itself does not count.
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

/// Leaves redundant items out of batches, and keeps the memory that this takes.
///
/// An item is redundant if executing it would write what is there already. That is known when an equal item was executed before
/// (its twin) and
///
/// - the op is pure, so that only memory that it names decides what it writes,
/// - it does not read what it writes, or its twin would have changed what it sees,
/// - nobody has since written what it reads, or it would write something else,
/// - nobody has since written what it writes, or that would be missed.
///
/// Only items that stay are executed, so only they are twins and writers. A batch is taken to be executed in its order, or in
/// another one that has the same result.
///
/// So the twin of an item can only be whoever wrote last where the item would write, and all that has to be known of a batch is
/// the last writer of each handle. What writes nowhere stays.
#[derive(Clone, Debug, Default)]
pub struct Pruner {
    /// For handles, the last item that stays and writes there.
    writers: Table,
}

impl Pruner {
    /// Writes the items that stay to `kept`, in their order, and reports the twin of each that goes.
    ///
    /// Where nothing goes, `kept` is empty, and the batch can be used as it is.
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
        // The table holds an index and one more.
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

    /// How many items, of which each writes to one handle, a batch can have without need for more memory.
    pub fn retained_capacity(&self) -> usize {
        self.writers.capacity()
    }

    /// The item that has done what this one would do, if it is redundant.
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

/// How many items are looked up together.
const BLOCK: usize = 32;

/// Whether it is quickly seen that no two items have the same output, so that no two are equal.
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

/// Indices of items by handles. Each is one word: the handle, and the index plus one; 0 is free. At most half is in use, so that
/// looking for something ends soon.
#[derive(Clone, Debug, Default)]
struct Table {
    slots: Vec<u64>,
    /// There are as many slots as handles, up to the last one, so each has its own.
    direct: bool,
}

impl Table {
    /// Empties the table, which can then hold these handles.
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

    /// Gives memory back, if there is far more of it than so many handles need.
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
        // Where each has its own slot, those without one are not written.
        (*self.slots.get(self.find(handle))? as u32 as usize).checked_sub(1)
    }

    #[inline(always)]
    fn set(&mut self, handle: u32, index: usize) {
        let slot = self.find(handle);
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = u64::from(handle) << 32 | (index as u64 + 1);
        }
    }

    /// Where a handle is, or would be.
    #[inline(always)]
    fn find(&self, handle: u32) -> usize {
        let mut slot = self.home(handle);
        if self.direct {
            return slot;
        }
        // Traits that differ from call to call can fill the table; the search ends nevertheless.
        for _ in 0..self.slots.len() {
            let entry = self.slots[slot];
            if entry == 0 || (entry >> 32) as u32 == handle {
                break;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Reads where some items are looked for. These reads do not wait for each other, as they would if each were made when it is
    /// known what came of the one before; in large batches that would take most of the time.
    #[inline(always)]
    fn touch(&self, items: &[WorkItem]) {
        let read = items.iter().filter_map(|item| self.slots.get(self.home(item.output_handle)));
        let read = read.fold(0, |read, entry| read ^ entry);
        std::hint::black_box(read);
    }

    /// Where to begin to look. Neighbours stay in one line of the cache, because handles are often used in their order. Lines are
    /// spread by both halves of a product: handles are often multiples of something, and one half alone can be, too.
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

/// How many slots so many handles need: one is always free.
fn slots(handles: usize) -> Option<usize> {
    handles.max(1).checked_mul(2)?.checked_next_power_of_two()
}
