//! A pool of threads that spin for a while before they sleep.
//!
//! Waking a sleeping thread costs more than a small kernel takes, so workers stay awake for some microseconds after each
//! loop, in which the next one usually comes. The thread that asks for a loop takes part in it.
//!
//! Every thread begins with a share of its own, the same one in loops that are as long: what a kernel has left in the cache of a
//! processor is most likely what the next one needs there. Who is done helps the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vyre_foundation::launch::Worked;

/// How long a worker looks for work before it sleeps: about as long as it takes to wake it.
const SPIN: Duration = Duration::from_micros(100);

pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Loops of different threads take turns.
    turn: Mutex<()>,
}

struct Shared {
    /// The loop that is being executed; null between loops.
    current: AtomicPtr<Loop<'static>>,
    /// How many workers may be looking at it.
    inside: AtomicUsize,
    /// Counts loops, so that a worker sees that there is a new one.
    epoch: AtomicU32,
    shutdown: AtomicBool,
    sleeping: Mutex<usize>,
    wake: Condvar,
    /// What is next in the share of each thread.
    next: Vec<OwnLine>,
}

/// A number that has its cache line for itself.
#[derive(Default)]
#[repr(align(64))]
struct OwnLine(AtomicU32);

/// A loop over `0..end`, whose iterations are taken one by one.
struct Loop<'a> {
    body: &'a (dyn Fn(u32) + Sync),
    next: &'a [OwnLine],
    end: u32,
    /// Some call panicked, on whatever thread.
    panicked: AtomicBool,
    /// Where threads note when they were at it.
    worked: Option<&'a Mutex<Vec<Worked>>>,
}

impl Loop<'_> {
    fn work(&self, worker: u32) {
        let from = self.worked.map(|_| Instant::now());
        let mut is_first = true;
        let shares = self.next.len() as u32;
        for share in (worker..shares).chain(0..worker) {
            let end = start_of(share + 1, shares, self.end);
            loop {
                let index = self.next[share as usize].0.fetch_add(1, SeqCst);
                // Every thread overshoots once, and there are few threads.
                if index >= end {
                    break;
                }
                is_first = false;
                // A worker must survive, and the caller must not leave while others still use the loop.
                if catch_unwind(AssertUnwindSafe(|| (self.body)(index))).is_err() {
                    self.panicked.store(true, SeqCst);
                }
            }
        }
        if let (Some(worked), Some(from), false) = (self.worked, from, is_first) {
            lock(worked).push(Worked { worker, from, until: Instant::now() });
        }
    }
}

/// Where one of the shares of so many iterations begins.
fn start_of(share: u32, shares: u32, iterations: u32) -> u32 {
    (u64::from(share) * u64::from(iterations) / u64::from(shares)) as u32
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool in which `threads` work on a loop, the caller included.
    pub(crate) fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            current: AtomicPtr::new(std::ptr::null_mut()),
            inside: AtomicUsize::new(0),
            epoch: AtomicU32::new(0),
            shutdown: AtomicBool::new(false),
            sleeping: Mutex::new(0),
            wake: Condvar::new(),
            next: (0..threads).map(|_| OwnLine::default()).collect(),
        });
        let workers = (1..threads).filter_map(|number| {
            let shared = shared.clone();
            // A system that gives no more threads gets fewer workers.
            std::thread::Builder::new()
                .name(format!("vyre-cpu-{number}"))
                .spawn(move || shared.worker(number as u32))
                .ok()
        });
        let workers = workers.collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` with every number below `end`, on all threads, and returns when all calls have. If one of them panics,
    /// so does this, after the others are done.
    pub(crate) fn for_each(&self, end: u32, body: &(dyn Fn(u32) + Sync)) {
        self.for_each_timed(end, body, None);
    }

    /// The same, and threads note when they were at it.
    pub(crate) fn for_each_timed(&self, end: u32, body: &(dyn Fn(u32) + Sync), worked: Option<&Mutex<Vec<Worked>>>) {
        if worked.is_none() && (end <= 1 || self.workers.is_empty()) {
            (0..end).for_each(body);
            return;
        }
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        for (share, next) in (0..).zip(&shared.next) {
            next.0.store(start_of(share, shared.next.len() as u32, end), SeqCst);
        }
        let mut task = Loop { body, next: &shared.next, end, panicked: AtomicBool::new(false), worked };
        shared.current.store((&raw mut task).cast(), SeqCst);
        shared.epoch.fetch_add(1, SeqCst);
        if *lock(&shared.sleeping) > 0 {
            shared.wake.notify_all();
        }
        task.work(0);
        // From here on no worker begins to look at the loop. One that was looking when this was stored has counted itself
        // before it read the pointer, so it is seen here; all accesses are in one total order.
        shared.current.store(std::ptr::null_mut(), SeqCst);
        while shared.inside.load(SeqCst) != 0 {
            std::hint::spin_loop();
        }
        assert!(!task.panicked.load(SeqCst), "a panic while executing a program");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        {
            let _asleep = lock(&self.shared.sleeping);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing to say any more.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn worker(&self, number: u32) {
        let mut seen = 0;
        while !self.shutdown.load(SeqCst) {
            seen = self.next_epoch(seen);
            self.inside.fetch_add(1, SeqCst);
            let current = self.current.load(SeqCst);
            if !current.is_null() {
                // SAFETY: the loop lives until its caller has seen `inside` at 0 after taking the pointer back, and this
                // worker had counted itself before it read the pointer.
                unsafe { (*current).work(number) };
            }
            self.inside.fetch_sub(1, SeqCst);
        }
    }

    /// Waits for another epoch: spins, then sleeps.
    fn next_epoch(&self, seen: u32) -> u32 {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            // How long a pause takes depends on the processor very much, so a clock says when it is enough.
            for _ in 0..16 {
                let epoch = self.epoch.load(SeqCst);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
        }
        let mut sleeping = lock(&self.sleeping);
        loop {
            let epoch = self.epoch.load(SeqCst);
            if epoch != seen {
                return epoch;
            }
            *sleeping += 1;
            sleeping = self.wake.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
            *sleeping -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_index_is_visited_once() {
        let pool = Pool::new(3);
        for end in [0, 1, 2, 7, 1000, 3] {
            let visits: Vec<AtomicU32> = (0..end).map(|_| AtomicU32::new(0)).collect();
            pool.for_each(end, &|index| {
                visits[index as usize].fetch_add(1, SeqCst);
            });
            assert!(visits.iter().all(|visits| visits.load(SeqCst) == 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        let broken = catch_unwind(AssertUnwindSafe(|| pool.for_each(100, &|index| assert_ne!(index, 50))));
        assert!(broken.is_err());
        let sum = AtomicU64::new(0);
        pool.for_each(100, &|index| {
            sum.fetch_add(u64::from(index), SeqCst);
        });
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn callers_take_turns() {
        let pool = Pool::new(2);
        let sum = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.for_each(10, &|index| {
                            sum.fetch_add(u64::from(index), SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 200 * 45);
    }
}
