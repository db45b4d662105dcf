//! Ctrl-C and SIGTERM: what is unfinished is removed, and the exit code is 130 or 143.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Exit codes of commands that were ended by a signal are above this, as shells have them.
const SIGNAL: i32 = 128;

static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, an interruption leaves nothing unfinished behind. Where it cannot be heard of, it ends the process as ever. No thread
/// may have been started before.
pub(crate) fn listen() {
    #[cfg(unix)]
    {
        use nix::sys::signal::{SigSet, Signal};
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        // Threads block what the one that starts them does, so the signal stays for the one that waits for it.
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
    // The list stays locked, so that nobody gives an unfinished file its name now.
    std::process::exit(SIGNAL + signal)
}

/// Does something as a whole or not at all, as far as interruptions are concerned.
pub(crate) fn uninterrupted<R>(work: impl FnOnce() -> R) -> R {
    let _unfinished = unfinished();
    work()
}

/// A file or folder that is removed in the end, however that comes.
#[derive(Debug)]
pub(crate) struct Unfinished(pub(crate) PathBuf);

impl Unfinished {
    /// Creates a file or folder. `create` returns its path, at which nothing may have been before.
    pub(crate) fn create<T>(create: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(Unfinished, T)> {
        let mut unfinished = unfinished();
        let (path, created) = create()?;
        unfinished.push(path.clone());
        Ok((Unfinished(path), created))
    }

    /// Keeps what is complete now.
    pub(crate) fn keep(mut self) -> PathBuf {
        let mut unfinished = unfinished();
        let path = std::mem::take(&mut self.0);
        unfinished.retain(|known| *known != path);
        path
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What is kept has no path here.
        if !self.0.as_os_str().is_empty() {
            let mut unfinished = unfinished();
            unfinished.retain(|path| *path != self.0);
            remove(&self.0);
        }
    }
}

/// What has got another name meanwhile is not there any more, and what cannot be removed is small.
fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}
