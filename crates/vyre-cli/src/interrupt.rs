//! Handling of Ctrl-C and SIGTERM: removes unfinished files, and exits with code 130 or 143.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Base of exit codes for signals, as in shells.
const SIGNAL: i32 = 128;

static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handlers; if that fails, signals keep their default action. Must be called before any thread is started.
pub(crate) fn listen() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, Signal};
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        // New threads inherit the signal mask, so only the waiting thread receives the signal.
        if signals.thread_block().is_ok() {
            let wait = move || {
                if let Ok(signal) = signals.wait() {
                    end(signal as i32);
                }
            };
            if std::thread::Builder::new().spawn(wait).is_err() {
                let _ = signals.thread_unblock();
            }
        }
    }
    const SIGINT: i32 = 2;
    let _ = ctrlc::set_handler(|| end(SIGINT));
}

fn end(signal: i32) -> ! {
    let unfinished = unfinished();
    unfinished.iter().for_each(|path| remove(path));
    crate::progress::clear();
    // The list stays locked, so that no file is renamed to its target any more.
    std::process::exit(SIGNAL + signal)
}

/// Runs `work` without interruption by signals.
pub(crate) fn uninterrupted<R>(work: impl FnOnce() -> R) -> R {
    let _unfinished = unfinished();
    work()
}

/// A temporary file or folder, removed on drop or on interruption.
#[derive(Debug)]
pub(crate) struct Unfinished(pub(crate) PathBuf);

impl Unfinished {
    /// Creates a file or folder. `create` returns its path, which must not have existed.
    pub(crate) fn create<T>(create: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(Unfinished, T)> {
        let mut unfinished = unfinished();
        let (path, created) = create()?;
        unfinished.push(path.clone());
        Ok((Unfinished(path), created))
    }

    /// Cancels the removal and returns the path.
    pub(crate) fn keep(mut self) -> PathBuf {
        let mut unfinished = unfinished();
        let path = std::mem::take(&mut self.0);
        unfinished.retain(|known| *known != path);
        path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // The path is empty after `keep`.
        if !self.0.as_os_str().is_empty() {
            let mut unfinished = unfinished();
            unfinished.retain(|path| *path != self.0);
            remove(&self.0);
        }
    }
}

/// Removes a file or folder, ignoring errors: it may have been renamed.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}
