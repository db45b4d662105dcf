//! Several threads submit items, good and bad ones, while one drains and another one cancels, for 20 seconds or as many as
//! `VYRE_SOAK_SECONDS` says: no item is lost, none is executed twice, and memory does not grow.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::Device;
use vyre_foundation::{text, validate};
use vyre_runtime::megakernel::ring::{Otherwise, Pushed, Ring};
use vyre_runtime::megakernel::{Config, Failure, Latencies, Op, Report, Segment, Session, WorkItem};

const ACCUMULATE: u32 = 4;
const HISTOGRAM: u32 = 6;
const CHECKED: u32 = 7;
const SPIN: u32 = 8;
const FIND: u32 = 9;

const PRODUCERS: u64 = 4;
const BINS: u32 = 64;
const SUMS: u32 = 16;

/// Handles: a word for each bin, with its number; a word for each sum; one with a number that traps; one that takes too many trips;
/// one for results that nobody reads; the bins.
const BAD: u32 = 1 + BINS + SUMS;
const LONG: u32 = BAD + 1;
const NOWHERE: u32 = LONG + 1;
const COUNTS: u32 = NOWHERE + 1;

/// What comes of items.
#[derive(Default, Debug, PartialEq)]
struct Tally {
    items: u64,
    bins: Vec<u32>,
    sums: Vec<u32>,
    trapped: u64,
    out_of_fuel: u64,
    unknown: u64,
    hits: u64,
}

impl Tally {
    fn new() -> Tally {
        Tally { bins: vec![0; BINS as usize], sums: vec![0; SUMS as usize], ..Tally::default() }
    }

    fn add(&mut self, other: &Tally) {
        self.bins.iter_mut().zip(&other.bins).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, count)| *sum = sum.wrapping_add(*count));
        self.items += other.items;
        self.trapped += other.trapped;
        self.out_of_fuel += other.out_of_fuel;
        self.unknown += other.unknown;
        self.hits += other.hits;
    }

    /// An item by a number, and what is to come of it.
    fn item(&mut self, random: u64) -> WorkItem {
        self.items += 1;
        let item =
            |op_handle, input_handle, output_handle| WorkItem { op_handle, input_handle, output_handle, param: 0 };
        let bin = (random >> 8) as u32 % BINS;
        match random % 100 {
            0 => {
                self.trapped += 1;
                item(CHECKED, BAD, NOWHERE)
            }
            1 => {
                self.out_of_fuel += 1;
                item(SPIN, LONG, NOWHERE)
            }
            2 => {
                self.unknown += 1;
                item(99, LONG, NOWHERE)
            }
            3 => {
                // The number of each bin but the first is larger than 0.
                self.hits += u64::from(bin > 0);
                item(FIND, 1 + bin, 0)
            }
            4..40 => {
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

    /// What a drain says that has come of items.
    fn take(&mut self, report: &Report) {
        self.items += report.items;
        self.hits += report.hits.len() as u64;
        for (_, failure) in &report.failures {
            match failure {
                Failure::Trapped(5) => self.trapped += 1,
                Failure::OutOfFuel => self.out_of_fuel += 1,
                Failure::UnknownOp => self.unknown += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn produce(queue: &Ring, seed: u64, until: Instant) -> Tally {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut tally = Tally::new();
    while Instant::now() < until {
        let items: Vec<WorkItem> = (0..1 + random() % 500).map(|_| tally.item(random())).collect();
        // Some do not want to wait at first, and then for the rest.
        let accepted = match queue.push(&items, if random() % 2 == 0 { Otherwise::Return } else { Otherwise::Wait }) {
            Pushed::All => items.len(),
            Pushed::WouldBlock { accepted } => accepted,
            Pushed::Closed { .. } => panic!("nobody closes the queue"),
        };
        assert_eq!(queue.push(&items[accepted..], Otherwise::Wait), Pushed::All);
    }
    tally
}

/// Bytes of this process that are in memory, where the system tells.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(4096 * pages.split_whitespace().nth(1)?.parse::<u64>().ok()?)
}

#[test]
fn nothing_is_lost_or_done_twice() {
    let seconds = std::env::var("VYRE_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(20));
    let device = Device::open(&Cpu::default()).unwrap();
    let config = Config {
        plain_words: COUNTS,
        atomic_words: BINS,
        queue: 5000,
        slice: 2000,
        fuel: 1000,
        telemetry: true,
        ..Config::of(&device)
    };
    let mut session = Session::new(&device, config).unwrap();
    for program in
        validate::module(text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap()).unwrap()
    {
        session.register(Op::new(program).unwrap());
    }
    let mut handles = Vec::new();
    for handle in 1..=NOWHERE {
        let word = match handle {
            1..=BINS => handle - 1,
            BAD => 666,
            LONG => u32::MAX,
            _ => 0,
        };
        handles.push(session.allocate(Segment::Plain, 1).unwrap());
        session.write(handles[handle as usize - 1], &word.to_le_bytes()).unwrap();
    }
    let counts = session.allocate(Segment::Atomic, BINS).unwrap();
    assert_eq!(counts.0, COUNTS);

    let begin = Instant::now();
    let (mut expected, mut found, mut drains, mut cancelled) = (Tally::new(), Tally::new(), 0u64, 0u64);
    let mut latencies = Latencies::default();
    let mut warm = None;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let queue = session.queue();
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let queue = queue.clone();
                scope.spawn(move || produce(&queue, producer + 1, begin + time))
            })
            .collect();
        let canceller = session.canceller();
        let is_over = &is_over;
        scope.spawn(move || {
            while !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(7));
                canceller.cancel();
            }
        });
        loop {
            let ended = producers.iter().all(std::thread::ScopedJoinHandle::is_finished);
            let report = session.drain().unwrap();
            found.take(&report);
            drains += 1;
            cancelled += u64::from(report.cancelled);
            report.telemetry.iter().for_each(|telemetry| latencies.merge(&telemetry.latencies));
            if begin.elapsed() > time / 4 && warm.is_none() {
                warm = resident();
            }
            if ended && !report.cancelled && report.items == 0 {
                break;
            }
        }
        is_over.store(true, Relaxed);
        producers.into_iter().for_each(|producer| expected.add(&producer.join().unwrap()));
    });
    found.bins = session.read(counts).unwrap();
    found.sums = (0..SUMS).map(|sum| session.read(handles[(BINS + sum) as usize]).unwrap()[0]).collect();
    assert_eq!(found, expected);
    assert!(cancelled > 0 && expected.trapped > 0 && expected.out_of_fuel > 0 && expected.hits > 0);
    if let (Some(warm), Some(end)) = (warm, resident()) {
        assert!(end < warm + (16 << 20), "{warm} bytes after a quarter of the time, {end} at the end");
    }
    println!(
        "{} items in {drains} drains, {cancelled} of them cancelled, {:?}; half of the items took {:?}, 99 % {:?}",
        found.items,
        begin.elapsed(),
        latencies.percentile(50.0),
        latencies.percentile(99.0)
    );
}
