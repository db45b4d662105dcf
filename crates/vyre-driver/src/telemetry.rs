//! What dispatches teach the next compile.
//!
//! Every device records how long its dispatches took, under the operation that their program came from, and what the passes
//! did to the programs it compiled. The next compile of a program that takes long is optimized harder. A file keeps the
//! records for other processes; what is in it only ever prioritizes, so losing it does no harm.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vyre_foundation::optimizer::{Hints, Report};

use crate::{Damage, Error, PrivateFolder, atomic_file};

/// The content hash of a program.
type Hash = [u8; 32];

/// Programs whose last compile is remembered.
const REPORTS: usize = 64;

/// Longer files are not records.
const MAX_BYTES: u64 = 1 << 20;

/// Records of dispatches and compiles, shared by the devices of a [`Registry`](crate::Registry).
#[derive(Debug, Default)]
pub struct Telemetry {
    hints: Hints,
    /// What the last compile of a program did, by the hash of its contents; the most recent last.
    reports: Mutex<VecDeque<(Hash, Arc<Report>)>>,
    folder: Option<PrivateFolder>,
    changed: AtomicBool,
    problem: Option<Error>,
}

impl Telemetry {
    /// Records in the file [`FILE`](Telemetry::FILE) of a folder. They are written when the last device that uses them is gone.
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

    /// Checks a file of records, and leaves it as it is.
    ///
    /// # Errors
    /// [`Error::Hints`] with the reason why it cannot be used.
    pub fn inspect(file: &Path) -> Result<(), Error> {
        load(&Hints::default(), atomic_file::read(file, MAX_BYTES))
            .map_err(|reason| Error::Hints { file: file.into(), reason })
    }

    /// How long dispatches took.
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// The file that keeps the records.
    pub fn file(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.path().join(Self::FILE))
    }

    /// Why the file could not be used. It is ignored as a whole, and replaced by what is recorded from now on.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }

    /// Adds what an operation took.
    pub fn record(&self, op: &str, time: Duration, bytes: u64) {
        self.hints.record(op, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), bytes);
        self.changed.store(true, Ordering::Relaxed);
    }

    /// What the last compile of a program did.
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
            // The records are only a hint: without them the next process starts with none.
            let _ = folder.replace(Self::FILE, &[&self.hints.encode()]);
        }
    }
}

/// Loads the contents of a file. A file that does not exist has no records.
fn load(hints: &Hints, read: io::Result<Vec<u8>>) -> Result<(), Damage> {
    match read {
        Ok(bytes) => Ok(hints.load(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}
