//! Soak test of 30 seconds, or `VYRE_SOAK_SECONDS`: producer threads submit valid and invalid items of three tenants and all priorities,
//! while one thread drains, another cancels, and the device repeatedly runs out of memory or is lost. Every item is executed exactly once,
//! and memory does not grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::backend::Command;
use vyre_driver::{Device, Error as DriverError};
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::Policy;
use vyre_runtime::megakernel::ring::{Otherwise, Pushed};
use vyre_runtime::megakernel::{
    Config, Failure, Handle, Latencies, Op, Priority, Producer, Report, Segment, Session, Share, WorkItem,
};
use vyre_testkit::intercept::{Intercepted, Interceptor};

const ACCUMULATE: u32 = 4;
const HISTOGRAM: u32 = 6;
const CHECKED: u32 = 7;
const SPIN: u32 = 8;
const FIND: u32 = 9;

const PRODUCERS: u64 = 4;
const TENANTS: u32 = 3;
const BINS: u32 = 64;
const SUMS: u32 = 16;

// Handles of a tenant, from 1, after those of the previous tenants: `BINS` words with the number of a bin, `SUMS` words with a sum, and:
/// Input that traps.
const BAD: u32 = 1 + BINS + SUMS;
/// Input that exceeds the fuel.
const LONG: u32 = BAD + 1;
/// Output that is never read.
const NOWHERE: u32 = LONG + 1;
/// Bins of the histogram, and the number of handles of a tenant.
const COUNTS: u32 = NOWHERE + 1;

/// Results of the items of a tenant.
#[derive(Clone, Default, Debug, PartialEq)]
struct Tally {
    items: u64,
    bins: Vec<u32>,
    sums: Vec<u32>,
    failed: u64,
    hits: u64,
}

/// Numbers of items that trap, run out of fuel, name an unknown op, and name memory of another tenant.
type Failures = [u64; 4];

impl Tally {
    fn new() -> Tally {
        Tally { bins: vec![0; BINS as usize], sums: vec![0; SUMS as usize], ..Tally::default() }
    }

    fn add(&mut self, other: &Tally) {
        self.bins.iter_mut().zip(&other.bins).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        self.items += other.items;
        self.failed += other.failed;
        self.hits += other.hits;
    }

    /// Derives an item of a tenant from a random number, and adds its expected results.
    fn item(&mut self, tenant: u32, random: u64, failures: &mut Failures) -> WorkItem {
        self.items += 1;
        let first = tenant * COUNTS;
        let item = |op_handle, input: u32, output: u32| WorkItem {
            op_handle,
            input_handle: first + input,
            output_handle: first + output,
            param: 0,
        };
        let bin = (random >> 8) as u32 % BINS;
        let kind = random % 100;
        if kind < 4 {
            failures[kind as usize] += 1;
            self.failed += 1;
        }
        match kind {
            0 => item(CHECKED, BAD, NOWHERE),
            1 => item(SPIN, LONG, NOWHERE),
            2 => item(99, LONG, NOWHERE),
            3 => WorkItem { input_handle: (first + COUNTS) % (TENANTS * COUNTS) + 1, ..item(ACCUMULATE, 0, NOWHERE) },
            4 => {
                // Bin 0 has the value 0, which is no hit.
                self.hits += u64::from(bin > 0);
                item(FIND, 1 + bin, NOWHERE)
            }
            5..40 => {
                let sum = (random >> 20) as u32 % SUMS;
                self.sums[sum as usize] = self.sums[sum as usize].wrapping_add(bin);
                item(ACCUMULATE, 1 + bin, 1 + BINS + sum)
            }
            _ => {
                self.bins[bin as usize] += 1;
                item(HISTOGRAM, 1 + bin, COUNTS)
            }
        }
    }
}

fn produce(queue: &Producer, tenant: u32, seed: u64, until: Instant) -> (Tally, Failures) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let (mut tally, mut failures) = (Tally::new(), Failures::default());
    while Instant::now() < until {
        let count = 1 + random() % 500;
        let items: Vec<WorkItem> = (0..count).map(|_| tally.item(tenant, random(), &mut failures)).collect();
        let priority = Priority::ALL[random() as usize % Priority::ALL.len()];
        // Half of the pushes first try without blocking.
        let otherwise = if random() % 2 == 0 { Otherwise::Return } else { Otherwise::Wait };
        let accepted = match queue.push(priority, &items, otherwise) {
            Pushed::All => items.len(),
            Pushed::WouldBlock { accepted } => accepted,
            Pushed::Closed { .. } => panic!("the queue is open"),
        };
        assert_eq!(queue.push(priority, &items[accepted..], Otherwise::Wait), Pushed::All);
    }
    (tally, failures)
}

/// Fault injection: the next submission runs out of memory, or loses the device.
#[derive(Default)]
struct Trouble {
    short: AtomicBool,
    lost: AtomicBool,
}

impl Interceptor for Trouble {
    // The submission may be a launch, a read or a write.
    fn submit(&self, _commands: &mut [Command]) -> Result<(), DriverError> {
        if self.short.swap(false, Relaxed) {
            return Err(DriverError::OutOfMemory { requested: 1, available: 0 });
        }
        if self.lost.swap(false, Relaxed) {
            return Err(DriverError::DeviceLost { reason: "injected".into(), unacknowledged: vec![] });
        }
        Ok(())
    }
}

fn flaky(trouble: &Arc<Trouble>) -> Device {
    let (name, backend, interceptor) = ("flaky", Cpu::default(), trouble.clone());
    Device::open(&Intercepted { name, backend, interceptor }).unwrap()
}

/// Resident set size of this process, on systems with `/proc`.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(4096 * pages.split_whitespace().nth(1)?.parse::<u64>().ok()?)
}

#[test]
fn every_item_is_executed_exactly_once() {
    let seconds = std::env::var("VYRE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(30));
    let trouble = Arc::new(Trouble::default());
    let device = flaky(&trouble);
    let bytes = 4 * u64::from(NOWHERE + BINS);
    let config = Config {
        plain_words: TENANTS * COUNTS,
        atomic_words: TENANTS * BINS,
        tenants: (1..=TENANTS).map(|weight| Share { weight, slots: Some(5000), bytes, time: None }).collect(),
        slice: 2000,
        fuel: 1000,
        telemetry: true,
        journal: Some(20_000),
        policy: Policy { priority_age_threshold: 2, ..Config::of(&device).policy },
        ..Config::of(&device)
    };
    let mut session = Session::new(&device, config).unwrap();
    for program in validate::module(text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap())
        .unwrap()
        .into_inner()
        .programs
    {
        session.register(Op::new(program).unwrap());
    }
    let mut producers = Vec::new();
    for id in 0..TENANTS {
        let mut tenant = session.tenant(id).unwrap();
        for handle in 1..=NOWHERE {
            let word = match handle {
                1..=BINS => handle - 1,
                BAD => 666,
                LONG => u32::MAX,
                _ => 0,
            };
            let given = tenant.allocate(Segment::Plain, 1).unwrap();
            assert_eq!(given.0, id * COUNTS + handle);
            tenant.write(given, &word.to_le_bytes()).unwrap();
        }
        assert_eq!(tenant.allocate(Segment::Atomic, BINS).unwrap().0, (id + 1) * COUNTS);
        producers.push(tenant.producer());
    }

    let begin = Instant::now();
    let (mut expected, mut found) = (vec![Tally::new(); TENANTS as usize], vec![Tally::new(); TENANTS as usize]);
    let (mut expected_failures, mut failures) = (Failures::default(), Failures::default());
    let (mut drains, mut cancelled, mut short, mut refused, mut lost, mut over) = (0u64, 0u64, 0u64, 0u64, 0u64, 0u64);
    let (mut requeues, mut promotions, mut cuts) = (0, 0, 0);
    let mut times = [Duration::ZERO; TENANTS as usize];
    let mut latencies = Latencies::default();
    let mut warm = None;
    let (is_over, executed) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut take = |report: &Report, found: &mut [Tally]| {
        for ((tally, usage), time) in found.iter_mut().zip(&report.tenants).zip(&mut times) {
            tally.items += usage.items;
            tally.failed += usage.failures;
            tally.hits += usage.hits;
            *time += usage.time;
        }
        for failed in &report.failures {
            failures[match &failed.reason {
                Failure::Trapped(5) => 0,
                Failure::OutOfFuel => 1,
                Failure::UnknownOp => 2,
                Failure::ForeignHandle => 3,
                other => panic!("{other:?}"),
            }] += 1;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PRODUCERS)
            .map(|number| {
                let tenant = number as u32 % TENANTS;
                let producer = &producers[tenant as usize];
                scope.spawn(move || (tenant, produce(producer, tenant, number + 1, begin + time)))
            })
            .collect();
        let canceller = session.canceller();
        let (is_over, executed, troubles) = (&is_over, &executed, &trouble);
        let pressure = scope.spawn(move || {
            let (mut round, mut before, mut waited) = (0u32, 0, 0);
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(7));
                // Waits for progress before the next cancellation, so that drains do not livelock on slow machines.
                let now = executed.load(Relaxed);
                waited += 1;
                if now == before && waited < 20 {
                    continue;
                }
                (round, before, waited) = (round + 1, now, 0);
                canceller.cancel();
                troubles.short.fetch_or(round.is_multiple_of(31), Relaxed);
                troubles.lost.fetch_or(round.is_multiple_of(73), Relaxed);
            }
        });
        loop {
            let ended = threads.iter().all(std::thread::ScopedJoinHandle::is_finished);
            drains += 1;
            // Every 37th drain has a budget that is too small.
            session.set_budget(u64::from(drains.is_multiple_of(37)));
            let report = match session.drain() {
                Ok(report) => report,
                Err(Error::Driver(DriverError::OverBudget { budget: 1, .. })) => {
                    refused += 1;
                    continue;
                }
                Err(Error::Driver(DriverError::OutOfMemory { .. })) => {
                    short += 1;
                    continue;
                }
                Err(Error::DeviceLost { .. }) => {
                    lost += 1;
                    // Faults are also injected during the resume.
                    while session.resume(&flaky(&trouble)).is_err() {}
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            take(&report, &mut found);
            cuts += report.cuts;
            executed.fetch_add(report.items, Relaxed);
            cancelled += u64::from(report.cancelled);
            requeues += report.priority.requeues;
            promotions += report.priority.aged_promotions;
            report.telemetry.iter().for_each(|telemetry| latencies.merge(&telemetry.latencies));
            let more = session.tenant(drains as u32 % TENANTS).unwrap().allocate(Segment::Plain, 1);
            over += u64::from(matches!(more, Err(Error::OverQuota { .. })));
            if begin.elapsed() > time / 2 && warm.is_none() {
                warm = resident();
            }
            if ended && !report.cancelled && report.items == 0 {
                break;
            }
        }
        is_over.store(true, Relaxed);
        pressure.join().unwrap();
        trouble.short.store(false, Relaxed);
        trouble.lost.store(false, Relaxed);
        for thread in threads {
            let (tenant, (tally, failures)) = thread.join().unwrap();
            expected[tenant as usize].add(&tally);
            expected_failures.iter_mut().zip(failures).for_each(|(sum, count)| *sum += count);
        }
    });
    for (id, found) in (0..).zip(&mut found) {
        let tenant = session.tenant(id).unwrap();
        let read = |handle: u32| tenant.read(Handle(id * COUNTS + handle)).unwrap();
        found.bins = read(COUNTS);
        found.sums = (0..SUMS).map(|sum| read(1 + BINS + sum)[0]).collect();
    }
    assert_eq!((&found, failures), (&expected, expected_failures));
    assert!(failures.iter().all(|count| *count > 0) && found.iter().all(|tally| tally.hits > 0));
    if let (Some(warm), Some(end)) = (warm, resident()) {
        // Threads of a new device may get allocator arenas of their own, unless `MALLOC_ARENA_MAX` limits them.
        let most = if std::env::var_os("MALLOC_ARENA_MAX").is_some() { 8 << 20 } else { 48 << 20 };
        assert!(end < warm + most, "{warm} bytes after half of the time, {end} at the end");
        println!("{warm} bytes after half of the time, {end} at the end");
    }
    let items: u64 = found.iter().map(|tally| tally.items).sum();
    println!(
        "{items} items in {drains} drains: {cancelled} cancelled, {short} out of memory, {cuts} slices cut, {refused} over \
         the budget, {lost} devices lost, {:?}; \
         {requeues} requeues, {promotions} aged promotions; time of tenants {times:?}",
        begin.elapsed()
    );
    let [p50, p90, p99] = [50.0, 90.0, 99.0].map(|percent| latencies.percentile(percent));
    println!("latency: p50 {p50:?}, p90 {p90:?}, p99 {p99:?}, max {:?}", latencies.longest);
    let happened = [cancelled, short + cuts, refused, lost, over, requeues, promotions];
    assert!(happened.iter().all(|count| *count > 0), "{happened:?}");
}
