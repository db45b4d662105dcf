//! Telemetry of dispatches, for pass selection at the next compile.
//!
//! Devices record every dispatch under the [entry operation](crate::ir::Program::entry_op) of its program. The driver
//! keeps the encoded records between processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;

/// Totals of the dispatches of one operation. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Number of dispatches.
    pub dispatches: u64,
    /// Total time in kernels.
    pub total_ns: u64,
    /// Time of the longest dispatch.
    pub max_ns: u64,
    /// Total bytes bound.
    pub total_bytes: u64,
}

impl Record {
    /// Mean time of a dispatch.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.dispatches).unwrap_or(0)
    }
}

/// Bounded map from operations to records, with least-recently-recorded eviction. Shared between threads.
#[derive(Debug)]
pub struct Hints {
    capacity: usize,
    hot_ns: u64,
    /// The least recently recorded first. A list, since capacities are small.
    records: Mutex<Vec<(String, Record)>>,
}

impl Default for Hints {
    fn default() -> Self {
        Hints::new(Hints::DEFAULT_CAPACITY, Hints::DEFAULT_HOT_NS)
    }
}

/// First bytes of encoded hints; the last one is the version.
const MAGIC: [u8; 8] = *b"vyrehnt\x01";
const CHECKSUM: usize = 32;
/// Longer operation names are not recorded.
const MAX_NAME: usize = 1024;

impl Hints {
    /// Default number of operations.
    pub const DEFAULT_CAPACITY: usize = 256;
    /// Default mean time from which an operation is hot: 100 µs, where a better kernel is worth the compile time.
    pub const DEFAULT_HOT_NS: u64 = 100_000;

    /// Creates a record of up to `capacity` operations, of which those with a mean time of at least `hot_ns` are hot.
    pub fn new(capacity: usize, hot_ns: u64) -> Hints {
        Hints { capacity, hot_ns, records: Mutex::default() }
    }

    /// Records a dispatch.
    pub fn record(&self, op: &str, kernel_ns: u64, bytes: u64) {
        if self.capacity == 0 || op.len() > MAX_NAME {
            return;
        }
        let mut records = self.lock();
        let known = records.iter().position(|(known, _)| known == op);
        let (name, mut record) = match known {
            Some(position) => records.remove(position),
            None => (op.to_owned(), Record::default()),
        };
        record.dispatches = record.dispatches.saturating_add(1);
        record.total_ns = record.total_ns.saturating_add(kernel_ns);
        record.max_ns = record.max_ns.max(kernel_ns);
        record.total_bytes = record.total_bytes.saturating_add(bytes);
        records.push((name, record));
        if records.len() > self.capacity {
            records.remove(0);
        }
    }

    /// The mean time from which an operation is hot.
    pub fn hot_ns(&self) -> u64 {
        self.hot_ns
    }

    /// Returns true if the mean time of an operation is at least [`hot_ns`](Hints::hot_ns). An operation without
    /// records is cold.
    pub fn is_hot(&self, op: &str) -> bool {
        self.get(op).is_some_and(|record| record.mean_ns() >= self.hot_ns)
    }

    /// The record of an operation.
    pub fn get(&self, op: &str) -> Option<Record> {
        self.lock().iter().find(|(known, _)| known == op).map(|(_, record)| *record)
    }

    /// All records, least recently recorded first.
    pub fn records(&self) -> Vec<(String, Record)> {
        self.lock().clone()
    }

    /// Encodes the records, with a checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (name, record) in self.lock().iter() {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend(name.as_bytes());
            for number in [record.dispatches, record.total_ns, record.max_ns, record.total_bytes] {
                bytes.extend(number.to_le_bytes());
            }
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    /// Replaces the records by encoded ones; beyond the capacity, the oldest are dropped.
    ///
    /// # Errors
    /// The bytes are malformed or damaged. The records stay unchanged.
    pub fn load(&self, bytes: &[u8]) -> Result<(), Error> {
        let records = decode(bytes).ok_or(Error::BadHints { bytes: bytes.len() })?;
        let skipped = records.len().saturating_sub(self.capacity);
        *self.lock() = records.into_iter().skip(skipped).collect();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Record)>> {
        // The list is consistent between any two statements, even if a thread panicked.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decode(bytes: &[u8]) -> Option<Vec<(String, Record)>> {
    let (contents, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    if blake3::hash(contents).as_bytes() != checksum {
        return None;
    }
    let mut rest = contents.strip_prefix(&MAGIC)?;
    let mut take = |count: usize| {
        let (taken, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(taken)
    };
    let mut records: Vec<(String, Record)> = Vec::new();
    while let Some(length) = take(4) {
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let name = std::str::from_utf8(take(length.min(MAX_NAME + 1))?).ok()?;
        let mut number = || Some(u64::from_le_bytes(take(8)?.try_into().ok()?));
        let record = Record { dispatches: number()?, total_ns: number()?, max_ns: number()?, total_bytes: number()? };
        records.push((name.to_owned(), record));
    }
    rest.is_empty().then_some(records)
}
