//! Progress reports of reading and building graphs.

use std::cell::RefCell;
use std::rc::Rc;

/// Progress of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Name of the stage, such as `parsing`.
    pub stage: &'static str,
    /// Completed units.
    pub done: u64,
    /// Total units.
    pub all: u64,
}

type Watch = Rc<dyn Fn(Progress)>;

thread_local! {
    // Set on the calling thread, which does a part of every stage and reports for all threads.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Runs `work`, and calls `watch` repeatedly while it reads or builds a graph.
pub fn watched<R>(watch: impl Fn(Progress) + 'static, work: impl FnOnce() -> R) -> R {
    /// Restores the outer callback, also when `work` panics.
    struct Restore(Option<Watch>);
    impl Drop for Restore {
        fn drop(&mut self) {
            WATCH.set(self.0.take());
        }
    }
    let _restore = Restore(WATCH.replace(Some(Rc::new(watch))));
    work()
}

pub(super) fn report(stage: &'static str, done: usize, all: usize) {
    if let Some(watch) = WATCH.with_borrow(Option::clone) {
        watch(Progress { stage, done: done as u64, all: all as u64 });
    }
}
