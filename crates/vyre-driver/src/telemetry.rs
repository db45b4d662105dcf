//! Profile-guided optimization data: records of dispatches and compiles.
//!
//! Every device records the times of its dispatches, under the operation that their program came from, and the reports
//! of the passes. Programs that take long are optimized harder at the next compile. A file keeps the records for other
//! processes; they only set priorities, so losing them affects no results.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vyre_foundation::optimizer::{Hints, Report};

use crate::{Damage, Error, PrivateFolder, atomic_file};

/// Content hash of a program.
type Hash = [u8; 32];

/// Number of programs whose last report is kept.
const REPORTS: usize = 64;

/// Longest file of records.
const MAX_BYTES: u64 = 1 << 20;

/// Records of dispatches and compiles, shared by the devices of a [`Registry`](crate::Registry).
#[derive(Debug, Default)]
pub struct Telemetry {
    hints: Hints,
    /// Report of the last compile of each program, by content hash; the most recent last.
    reports: Mutex<VecDeque<(Hash, Arc<Report>)>>,
    folder: Option<PrivateFolder>,
    changed: AtomicBool,
    problem: Option<Error>,
}

impl Telemetry {
    /// Opens the records in the file [`FILE`](Telemetry::FILE) of a folder. They are written when the last device that
    /// uses them is dropped.
    pub fn kept_in(folder: PrivateFolder) -> Telemetry {
        let hints = Hints::default();
        let read = folder.read(Self::FILE, MAX_BYTES);
        let problem = load(&hints, read).err().map(|reason| {
            let file = folder.path().join(Self::FILE);
            Error::Hints { file, reason }
        });
        let (reports, changed) = (Mutex::default(), AtomicBool::new(false));
        Telemetry { hints, reports, folder: Some(folder), changed, problem }
    }

    /// Name of the file.
    pub const FILE: &str = "hints";

    /// Validates a file of records, without changing it.
    ///
    /// # Errors
    /// [`Error::Hints`] with the damage.
    pub fn inspect(file: &Path) -> Result<(), Error> {
        load(&Hints::default(), atomic_file::read(file, MAX_BYTES))
            .map_err(|reason| Error::Hints { file: file.into(), reason })
    }

    /// Recorded times of dispatches.
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// File of the records.
    pub fn file(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.path().join(Self::FILE))
    }

    /// Damage of the file. It is then ignored as a whole, and replaced.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// Records a dispatch of an operation.
    pub fn record(&self, op: &str, time: Duration, bytes: u64) {
        self.hints.record(op, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), bytes);
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Report of the last compile of a program.
    pub(crate) fn report(&self, program: Hash) -> Option<Arc<Report>> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.iter().rev().find(|(known, _)| *known == program).map(|(_, report)| report.clone())
    }

    pub(crate) fn compiled(&self, program: Hash, report: Arc<Report>) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.retain(|(known, _)| *known != program);
        reports.push_back((program, report));
        if reports.len() > REPORTS {
            reports.pop_front();
        }
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let (Some(folder), true) = (&self.folder, self.changed.load(Ordering::Relaxed)) {
            // A failed write only loses hints for the next process.
            let _ = folder.replace(Self::FILE, &[&self.hints.encode()]);
        }
    }
}

/// Loads the contents of a file. A missing file has no records.
fn load(hints: &Hints, read: io::Result<Vec<u8>>) -> Result<(), Damage> {
    match read {
        Ok(bytes) => Ok(hints.load(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}
