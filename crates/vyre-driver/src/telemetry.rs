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

use crate::{Error, shared};

/// The content hash of a program.
type Hash = [u8; 32];

/// Programs whose last compile is remembered.
const REPORTS: usize = 64;

/// Longer files are not records.
const MOST_BYTES: u64 = 1 << 20;

/// Records of dispatches and compiles, shared by the devices of a [`Registry`](crate::Registry).
#[derive(Debug, Default)]
pub struct Telemetry {
    hints: Hints,
    /// What the last compile of a program did, by the hash of its contents; the most recent last.
    reports: Mutex<VecDeque<(Hash, Arc<Report>)>>,
    file: Option<PathBuf>,
    changed: AtomicBool,
    problem: Option<Error>,
}

impl Telemetry {
    /// Records that a file keeps. They are written when the last device that uses them is gone.
    pub fn kept_in(file: impl Into<PathBuf>) -> Telemetry {
        let file = file.into();
        let hints = Hints::default();
        let problem = match shared::read(&file, MOST_BYTES) {
            Ok(bytes) => hints.load(&bytes).err().map(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(error.to_string()),
        };
        let problem = problem.map(|reason| Error::Hints { file: file.clone(), reason });
        let (reports, changed) = (Mutex::default(), AtomicBool::new(false));
        Telemetry { hints, reports, file: Some(file), changed, problem }
    }

    /// How long dispatches took.
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// The file that keeps the records.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
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
        if let (Some(file), true) = (&self.file, self.changed.load(Ordering::Relaxed)) {
            shared::replace(file, &[&self.hints.encode()]);
        }
    }
}
