//! Progress bars of long operations.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};

/// The latest bar.
static LATEST: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Removes the bar from the terminal before the process exits early.
pub(crate) fn clear() {
    let latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = latest.and_then(|latest| latest.upgrade()) {
        bar.finish_and_clear();
    }
}

/// A progress bar on standard error. It appears after a second, on terminals only, and disappears on drop.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar of `steps` steps, or an indeterminate one if `steps` is 0.
    pub(crate) fn new(message: &'static str, steps: u64) -> Progress {
        const PATIENCE: Duration = Duration::from_secs(1);
        let bar = if steps == 0 { ProgressBar::no_length() } else { ProgressBar::new(steps) };
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let template = if steps == 0 { "{msg} {elapsed}" } else { "{msg:10} {wide_bar} {percent:>3} %" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message);
        let shown = bar.downgrade();
        *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown.clone());
        let show = move || {
            std::thread::sleep(PATIENCE);
            if let Some(bar) = shown.upgrade().filter(|bar| !bar.is_finished()) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(Duration::from_millis(200));
            }
        };
        // If the thread cannot be started, there is no bar.
        let _ = std::thread::Builder::new().spawn(show);
        Progress(bar)
    }

    /// Sets the position to `done` of `all` steps.
    pub(crate) fn set(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }

    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    pub(crate) fn set_message(&self, message: String) {
        self.0.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
