//! A work-stealing thread pool that executes one parallel loop at a time. Workers spin before they park.
//!
//! Waking a parked thread costs more than a small kernel takes, so workers stay awake for some microseconds after each
//! loop, in which the next one usually comes. The thread that asks for a loop takes part in it.
//!
//! Each thread starts with its own share of the iterations, the same one in loops of equal length, for cache affinity
//! between kernels. A worker whose share is empty steals iterations from other shares. Thread 0, the caller, goes through the shares in ascending
//! order, so every iteration that it starts has all lower iterations started before it: iterations may wait for lower
//! ones.
//!
//! # Protocol
//! The loop is a value on the caller's stack, which workers reach through a pointer. The *gate* is one atomic word: the bit
//! [`OPEN`], and the number of workers inside.
//!
//! 1. The caller holds `turn`. The gate is closed and no worker is inside that uses a loop, so the caller may write `next`
//!    and `current`.
//! 2. The caller opens the gate (release), increments `epoch`, and then takes the lock `sleeping` to notify parked workers. A
//!    worker reads `epoch` under that lock before it waits, so no wake-up is lost: it sees the new epoch, or is counted as
//!    parked when the caller has the lock.
//! 3. A worker that sees another epoch increments the gate (acquire). Only if the old value had [`OPEN`] does it read `current`
//!    and take iterations from `next`. It decrements the gate (release) in either case.
//! 4. When the caller finds no iteration left it clears [`OPEN`] and waits until the gate is 0 (acquire). A worker whose
//!    increment comes before that in the gate's modification order is counted, and the caller waits for it; one whose increment
//!    comes after sees that the gate is closed. So no worker uses the loop after the caller returns, and all effects of its
//!    iterations happen before the caller returns.
//! 5. Dropping the pool sets `shutdown` before it increments `epoch` and notifies, as in 2.
//!
//! The model in this file runs the protocol under loom, which explores the interleavings of its threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize},
    },
    thread::{self, JoinHandle},
};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize},
    },
    thread::{self, JoinHandle},
};

use vyre_foundation::launch::WorkerSpan;

use crate::dispatch::Timings;
use crate::process::Process;
use crate::stack;

/// Spin time of a worker before it parks, about the time that waking it takes. The model has no clock.
const SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 100 });

/// The bit of the gate that lets workers in; the other bits count those inside.
const OPEN: usize = 1 << (usize::BITS - 1);

pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Serializes loops of different threads.
    turn: Mutex<()>,
    /// The process that owns the workers.
    process: Process,
}

struct Shared {
    gate: AtomicUsize,
    /// The loop in execution; read only inside the open gate.
    current: AtomicPtr<Loop<'static>>,
    /// Number of loops so far; a change announces a new one.
    epoch: AtomicU32,
    shutdown: AtomicBool,
    /// Number of parked workers.
    sleeping: Mutex<usize>,
    wake: Condvar,
    /// Next iteration of each share.
    next: Vec<OwnLine>,
}

/// A number on a cache line of its own, against false sharing.
#[repr(align(64))]
struct OwnLine(AtomicU32);

/// A parallel loop over `0..end`.
struct Loop<'a> {
    body: &'a (dyn Fn(u32) + Sync),
    next: &'a [OwnLine],
    end: u32,
    /// First panic of an iteration, on any thread.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    timings: Option<&'a Timings>,
}

impl Loop<'_> {
    fn work(&self, worker: u32) {
        let from = self.timings.map(|_| Instant::now());
        let mut is_first = true;
        let shares = self.next.len() as u32;
        // The worker's own share, then work stealing from the others.
        for share in (worker..shares).chain(0..worker) {
            let end = start_of(share + 1, shares, self.end);
            loop {
                // Each index is taken once; the gate orders the effects of its body.
                let index = self.next[share as usize].0.fetch_add(1, Relaxed);
                // Each thread overshoots once, so the counter cannot wrap.
                if index >= end {
                    break;
                }
                is_first = false;
                // A panic must neither end the worker nor let the caller return while other workers use the loop.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.body)(index))) {
                    lock(&self.panic).get_or_insert(panic);
                }
            }
        }
        if let (Some(timings), Some(from), false) = (self.timings, from, is_first) {
            let worked = WorkerSpan { worker, from, until: Instant::now() };
            timings.lock().unwrap_or_else(PoisonError::into_inner).push(worked);
        }
    }
}

/// First iteration of a share when `iterations` are divided into `shares`.
fn start_of(share: u32, shares: u32, iterations: u32) -> u32 {
    (u64::from(share) * u64::from(iterations) / u64::from(shares)) as u32
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Creates a pool in which `threads` threads work on a loop, the caller included.
    pub(crate) fn new(threads: usize, process: Process) -> Pool {
        let shared = Arc::new(Shared {
            gate: AtomicUsize::new(0),
            current: AtomicPtr::new(std::ptr::null_mut()),
            epoch: AtomicU32::new(0),
            shutdown: AtomicBool::new(false),
            sleeping: Mutex::new(0),
            wake: Condvar::new(),
            next: (0..threads).map(|_| OwnLine(AtomicU32::new(0))).collect(),
        });
        let workers = (1..threads).filter_map(|number| {
            let shared = shared.clone();
            // If the system refuses threads, the pool has fewer workers.
            thread::Builder::new()
                .name(format!("vyre-cpu-{number}"))
                .stack_size(stack::THREAD_STACK_SIZE)
                .spawn(move || shared.worker(number as u32))
                .ok()
        });
        let workers = workers.collect();
        Pool { shared, workers, turn: Mutex::new(()), process }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` with every number below `end`, on all threads, and returns after all calls. Propagates a panic of a
    /// call after the other calls have returned.
    pub(crate) fn for_each(&self, end: u32, body: &(dyn Fn(u32) + Sync)) {
        self.for_each_timed(end, body, None);
    }

    /// `for_each` that also records the workers' spans.
    pub(crate) fn for_each_timed(&self, end: u32, body: &(dyn Fn(u32) + Sync), timings: Option<&Timings>) {
        if timings.is_none() && (end <= 1 || self.workers.is_empty()) {
            (0..end).for_each(body);
            return;
        }
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        for (share, next) in (0..).zip(&shared.next) {
            next.0.store(start_of(share, shared.next.len() as u32, end), Relaxed);
        }
        let task = Loop { body, next: &shared.next, end, panic: Mutex::new(None), timings };
        shared.current.store((&raw const task).cast_mut().cast(), Relaxed);
        shared.gate.fetch_or(OPEN, Release);
        shared.wake_workers();
        task.work(0);
        shared.gate.fetch_and(!OPEN, AcqRel);
        while shared.gate.load(Acquire) != 0 {
            spin_loop();
        }
        // Releases the turn before the panic propagates, so that the next loop can start.
        drop(turn);
        let panic = lock(&task.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

fn spin_loop() {
    #[cfg(loom)]
    thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

impl Drop for Pool {
    fn drop(&mut self) {
        let workers = std::mem::take(&mut self.workers);
        // A child process after `fork` has the handles, but not the threads: joining would block forever.
        if !self.process.is_current() {
            std::mem::forget(workers);
            return;
        }
        self.shared.shutdown.store(true, Release);
        self.shared.wake_workers();
        for worker in workers {
            // Panics of iterations are caught, so `join` returns no error worth reporting.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Wakes all workers for a new epoch.
    fn wake_workers(&self) {
        self.epoch.fetch_add(1, Release);
        if *lock(&self.sleeping) > 0 {
            self.wake.notify_all();
        }
    }

    fn worker(&self, number: u32) {
        let mut seen = 0;
        while !self.shutdown.load(Acquire) {
            seen = self.next_epoch(seen);
            if self.gate.fetch_add(1, Acquire) & OPEN != 0 {
                let current = self.current.load(Relaxed);
                // SAFETY: this worker has entered the open gate, so the caller wrote the pointer before, and waits for
                // the gate to empty before the loop is dropped.
                unsafe { (*current).work(number) };
            }
            self.gate.fetch_sub(1, Release);
        }
    }

    /// Waits for another epoch: spins, then parks.
    fn next_epoch(&self, seen: u32) -> u32 {
        let start = Instant::now();
        while start.elapsed() < SPIN {
            // The duration of a pause instruction varies between processors, so a clock bounds the spin.
            for _ in 0..16 {
                let epoch = self.epoch.load(Acquire);
                if epoch != seen {
                    return epoch;
                }
                spin_loop();
            }
        }
        let mut sleeping = lock(&self.sleeping);
        loop {
            let epoch = self.epoch.load(Acquire);
            if epoch != seen {
                return epoch;
            }
            *sleeping += 1;
            sleeping = self.wake.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
            *sleeping -= 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(threads, Process::current().expect("a process"))
    }

    #[test]
    fn every_index_is_visited_once() {
        let pool = pool(3);
        for end in [0, 1, 2, 7, 1000, 3] {
            let visits: Vec<AtomicU32> = (0..end).map(|_| AtomicU32::new(0)).collect();
            pool.for_each(end, &|index| {
                visits[index as usize].fetch_add(1, Relaxed);
            });
            assert!(visits.iter().all(|visits| visits.load(Relaxed) == 1));
        }
    }

    #[test]
    fn panics_propagate_and_the_pool_stays_usable() {
        let pool = pool(3);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(100, &|index| {
                if index == 50 {
                    std::panic::panic_any("iteration 50")
                }
            });
        }));
        assert_eq!(broken.unwrap_err().downcast_ref(), Some(&"iteration 50"));
        let sum = AtomicU64::new(0);
        pool.for_each(100, &|index| {
            sum.fetch_add(u64::from(index), Relaxed);
        });
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn callers_take_turns() {
        let pool = pool(2);
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.for_each(10, &|index| {
                            sum.fetch_add(u64::from(index), Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 200 * 45);
    }
}

/// The protocol under loom: `cargo xtask test model`.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;

    use super::*;

    /// One cell per iteration. Loom fails on unordered accesses to a cell of which one writes.
    struct Cells(Vec<UnsafeCell<u32>>);

    // SAFETY: loom checks this claim.
    unsafe impl Sync for Cells {}

    impl Cells {
        fn new(count: u32) -> Cells {
            Cells((0..count).map(|_| UnsafeCell::new(0)).collect())
        }

        fn add(&self, index: u32) {
            // SAFETY: loom fails if the access races.
            self.0[index as usize].with_mut(|cell| unsafe { *cell += 1 });
        }

        fn counts(&self) -> Vec<u32> {
            // SAFETY: as above.
            self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect()
        }
    }

    fn pool(threads: usize) -> Pool {
        Pool::new(threads, Process::current().expect("a process"))
    }

    /// Explores interleavings with at most `preemptions` preemptions.
    fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn loops_visit_every_index_once_and_end_before_their_caller_returns() {
        explore(3, || {
            let pool = pool(2);
            for end in [2, 3] {
                let cells = Cells::new(end);
                pool.for_each(end, &|index| cells.add(index));
                assert_eq!(cells.counts(), vec![1; end as usize]);
            }
        });
    }

    #[test]
    fn two_workers_and_a_caller_share_a_loop() {
        explore(2, || {
            let pool = pool(3);
            let cells = Cells::new(3);
            pool.for_each(3, &|index| cells.add(index));
            assert_eq!(cells.counts(), [1; 3]);
        });
    }

    #[test]
    fn callers_take_turns() {
        explore(2, || {
            let pool = Arc::new(pool(2));
            let other = thread::spawn({
                let pool = pool.clone();
                move || {
                    let cells = Cells::new(2);
                    pool.for_each(2, &|index| cells.add(index));
                    assert_eq!(cells.counts(), [1; 2]);
                }
            });
            let cells = Cells::new(2);
            pool.for_each(2, &|index| cells.add(index));
            assert_eq!(cells.counts(), [1; 2]);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_pool_without_loops_ends() {
        explore(3, || drop(pool(3)));
    }
}
