//! What dispatches took, for the next compile.
//!
//! Devices record every dispatch under the operation that its program [came from](crate::ir::Program::entry_op). The
//! driver keeps the encoded records between processes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;

/// What is known about the dispatches of one operation. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How many there were.
    pub dispatches: u64,
    /// Time in kernels, together.
    pub total_ns: u64,
    /// Time of the longest.
    pub max_ns: u64,
    /// Bytes bound, together.
    pub total_bytes: u64,
}

impl Record {
    /// Time of a dispatch, on average.
    pub fn mean_ns(&self) -> u64 {
        self.total_ns.checked_div(self.dispatches).unwrap_or(0)
    }
}

/// A bounded record of dispatches by operation; the operation that was recorded longest ago makes room. Threads share it.
#[derive(Debug)]
pub struct Hints {
    capacity: usize,
    hot_ns: u64,
    /// The least recently recorded first. Capacities are small, so a list is as good as anything.
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
/// Longer names are not recorded: a name is an identifier that a person wrote.
const MAX_NAME: usize = 1024;

impl Hints {
    /// Operations that are remembered by default.
    pub const DEFAULT_CAPACITY: usize = 256;
    /// The mean time from which an operation is hot by default: 100 µs, where a better kernel is worth the compile time.
    pub const DEFAULT_HOT_NS: u64 = 100_000;

    /// Remembers up to `capacity` operations (none with 0), of which those that take `hot_ns` on average are hot.
    pub fn new(capacity: usize, hot_ns: u64) -> Hints {
        Hints { capacity, hot_ns, records: Mutex::default() }
    }

    /// Adds a dispatch.
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

    /// Whether the dispatches of an operation take long. What was never recorded is cold.
    pub fn is_hot(&self, op: &str) -> bool {
        self.get(op).is_some_and(|record| record.mean_ns() >= self.hot_ns)
    }

    /// What is known about an operation.
    pub fn get(&self, op: &str) -> Option<Record> {
        self.lock().iter().find(|(known, _)| known == op).map(|(_, record)| *record)
    }

    /// All records, the most recent last.
    pub fn records(&self) -> Vec<(String, Record)> {
        self.lock().clone()
    }

    /// The records as bytes, with a checksum.
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

    /// Replaces the records by encoded ones; the oldest of more than fit are left out.
    ///
    /// # Errors
    /// The bytes are not what [`encode`](Hints::encode) gives. Then nothing is replaced.
    pub fn load(&self, bytes: &[u8]) -> Result<(), Error> {
        let records = decode(bytes).ok_or(Error::BadHints { bytes: bytes.len() })?;
        let skipped = records.len().saturating_sub(self.capacity);
        *self.lock() = records.into_iter().skip(skipped).collect();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Record)>> {
        // The list is consistent between any two statements, whoever panicked.
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
