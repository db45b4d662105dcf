//! How far a graph is read or built, for somebody who waits for it.

use std::cell::RefCell;
use std::rc::Rc;

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done, such as `parsing`.
    pub stage: &'static str,
    /// How much of it.
    pub done: u64,
    /// How much there is.
    pub all: u64,
}

type Watch = Rc<dyn Fn(Progress)>;

thread_local! {
    // Of the thread that waits: it does a part of all work, and speaks for the others.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Does something with graphs, and calls `watch` now and then while one is read or built.
pub fn watched<R>(watch: impl Fn(Progress) + 'static, work: impl FnOnce() -> R) -> R {
    /// Also when the work panics.
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
