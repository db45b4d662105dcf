//! Megakernels, against one call, task or launch for each item.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use vyre_cpu::Cpu;
use vyre_driver::{Device, Error};
use vyre_foundation::{text, validate};
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::{Config, Op, Segment, Session, WorkItem};

use crate::line::{Line, Report};

/// Items of each measurement.
const ITEMS: usize = 1 << 16;

const OPS: &str = include_str!("../../vyre-runtime/tests/ops.vyre");

fn ops() -> Result<Vec<Op>, Error> {
    validate::module(text::parse(OPS)?)?.into_iter().map(Op::new).collect()
}

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    small_items(report)?;
    Ok(())
}

/// Items of one word on the cpu.
fn small_items(report: &Report) -> Result<(), Error> {
    let device = Device::open(&Cpu::default())?;
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
    let config = Config { plain_words: 4 * ITEMS as u32, ..Config::default() };
    let mut session = Session::new(&device, config)?;
    for op in ops()? {
        session.register(op);
    }
    let mut items = Vec::new();
    for _ in 0..ITEMS {
        let (input, output) = (session.allocate(Segment::Plain, 1)?, session.allocate(Segment::Plain, 1)?);
        items.push(WorkItem { op_handle: 1, input_handle: input.0, output_handle: output.0, param: 3 });
    }
    let mut device_time = f64::MAX;
    let mut ours = || {
        assert_eq!(session.submit(&items), Pushed::All);
        let drained = session.drain().expect("it drained before");
        assert!(drained.failures.is_empty());
        device_time = device_time.min(drained.device.as_nanos() as f64);
    };
    let input: Vec<AtomicU32> = (0..ITEMS as u32).map(AtomicU32::new).collect();
    let output: Vec<AtomicU32> = (0..ITEMS as u32).map(AtomicU32::new).collect();
    let work = |i: usize| output[i].store(3 * input[i].load(Ordering::Relaxed), Ordering::Relaxed);
    let mut spawned = || {
        rayon::scope(|scope| {
            for i in 0..ITEMS {
                scope.spawn(move |_| work(i));
            }
        });
    };
    let mut queued = || {
        let queue = Mutex::new((0..ITEMS).collect::<std::collections::VecDeque<usize>>());
        let take = || {
            loop {
                let next = queue.lock().expect("nobody panics").pop_front();
                let Some(i) = next else { break };
                work(i);
            }
        };
        rayon::join(take, take);
    };
    let line = |name, baseline| Line {
        suite: "megakernel",
        name,
        device: "cpu",
        threads,
        baseline,
        work: ITEMS as u64,
        unit: "items",
    };
    report.compare(
        &mut ours,
        &mut [(line("cpu_vs_rayon_spawn", "spawn"), &mut spawned), (line("cpu_vs_mutex", "mutex"), &mut queued)],
    );
    report.known(&line("cpu_overhead_per_item", "3 ns"), device_time, 3.0 * ITEMS as f64);
    Ok(())
}
