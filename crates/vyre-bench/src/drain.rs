//! Megakernel benchmarks: against one task, submission or dispatch per item, and ablations of its optimizations.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crossbeam_queue::SegQueue;
use vyre_cpu::Cpu;
use vyre_driver::Device;
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{Policy, Sizing};
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::tune::{NEVER, Settings, Tuner};
use vyre_runtime::megakernel::{Config, Failure, Op, Order, Segment, Session, WorkItem};
use vyre_testkit::mix::{self, Mix};
use vyre_wgpu::Wgpu;

use crate::baseline::raw::Raw;
use crate::line::{Line, Report};

/// Ops used, by their position in the file.
const SCALE: u32 = 1;
const ROTATE: u32 = 3;
const ACCUMULATE: u32 = 4;
const SCAN: u32 = 5;

/// A session with all ops of the file.
fn session(device: &Device, config: Config) -> Result<Session, Error> {
    let mut session = Session::new(device, config)?;
    for program in validate::module(text::parse(mix::OPS)?)?.into_inner().programs {
        session.register(Op::new(program)?);
    }
    Ok(session)
}

/// A session with a queue of items and their memory.
struct Queue {
    session: Session,
    items: Vec<WorkItem>,
    drains: u32,
}

impl Queue {
    /// `shape` returns the op, input and output of each item.
    fn new(
        device: &Device,
        policy: Policy,
        (handles, words): (u32, u32),
        items: u32,
        shape: impl Fn(u32) -> [u32; 3],
    ) -> Result<Queue, Error> {
        let config = Config { plain_words: handles * words, policy, ..Config::of(device) };
        let mut session = session(device, config)?;
        for _ in 0..handles {
            session.allocate(Segment::Plain, words)?;
        }
        let item = |number| {
            let [op_handle, input, output] = shape(number);
            WorkItem { op_handle, input_handle: input + 1, output_handle: output + 1, param: 3 }
        };
        Ok(Queue::warm(session, (0..items).map(item).collect()))
    }

    /// Drains a few times, so that hot ops are detected and compiled.
    fn warm(session: Session, items: Vec<WorkItem>) -> Queue {
        let mut queue = Queue { session, items, drains: 0 };
        for _ in 0..3 {
            queue.drain();
            queue.session.finish_compiling();
        }
        queue
    }

    /// Drains the queue, with as many launches as needed to report all hits; returns the device time.
    fn drain(&mut self) -> f64 {
        assert_eq!(self.session.submit(&self.items), Pushed::All);
        let mut device = 0.0;
        loop {
            let drained = self.session.drain().expect("it drained before");
            assert!(drained.failures.iter().all(|failed| matches!(failed.reason, Failure::Trapped(_))));
            self.drains += 1;
            device += drained.device.as_nanos() as f64;
            if drained.tenants[0].queued == 0 {
                return device;
            }
        }
    }
}

fn line<'a>(name: &'a str, device: &'a str, baseline: &'a str, items: u32) -> Line<'a> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
    Line { suite: "megakernel", name, device, threads, baseline, work: u64::from(items), unit: "items" }
}

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    let cpu = Device::open(&Cpu::default())?;
    words(report, &cpu)?;
    modes(report, &cpu)?;
    orders(report, &cpu)?;
    tuning(report, &cpu)?;
    if report.is_selected("wgpu_vs_submit_per_item") || report.is_selected("wgpu_vs_dispatch_per_item") {
        gpu(report)?;
    }
    Ok(())
}

/// Items of one word.
fn words(report: &Report, device: &Device) -> Result<(), Error> {
    const ITEMS: u32 = 1 << 16;
    if !["cpu_vs_rayon_spawn", "cpu_vs_crossbeam", "cpu_overhead_per_item"].iter().any(|name| report.is_selected(name))
    {
        return Ok(());
    }
    let policy = Config::default().policy;
    let mut queue = Queue::new(device, policy, (2 * ITEMS, 1), ITEMS, |item| [SCALE, 2 * item, 2 * item + 1])?;
    let mut launches = f64::MAX;
    let input: Vec<AtomicU32> = (0..ITEMS).map(AtomicU32::new).collect();
    let output: Vec<AtomicU32> = (0..ITEMS).map(AtomicU32::new).collect();
    let work = |i: usize| output[i].store(3 * input[i].load(Ordering::Relaxed), Ordering::Relaxed);
    let mut spawned = || {
        rayon::scope(|scope| {
            for i in 0..ITEMS as usize {
                scope.spawn(move |_| work(i));
            }
        });
    };
    let mut queued = || {
        let queue = SegQueue::new();
        (0..ITEMS as usize).for_each(|i| queue.push(i));
        let take = || std::iter::from_fn(|| queue.pop()).for_each(work);
        rayon::join(take, take);
    };
    report.compare(
        &mut || launches = launches.min(queue.drain()),
        &mut [
            (line("cpu_vs_rayon_spawn", "cpu", "spawn", ITEMS), &mut spawned),
            (line("cpu_vs_crossbeam", "cpu", "queue", ITEMS), &mut queued),
        ],
    );
    report.known(&line("cpu_overhead_per_item", "cpu", "3 ns", ITEMS), launches, 3.0 * f64::from(ITEMS));
    Ok(())
}

/// Ablation of specialized kernels and windows.
fn modes(report: &Report, device: &Device) -> Result<(), Error> {
    const ITEMS: u32 = 20_000;
    let never = u32::MAX;
    let standard = Config::default().policy;
    let apart = Policy { hot_window_threshold: never, ..standard };
    let interpreting = Policy { jit_queue_len_threshold: never, hot_opcode_threshold: never, ..apart };
    // Most items have one op.
    let skewed = |item: u32| {
        let op = [SCALE, SCALE, SCALE, ROTATE, SCALE, SCALE, ACCUMULATE, SCALE, SCALE, SCAN][item as usize % 10];
        [op, 2 * item, 2 * item + 1]
    };
    let mut compiled = Queue::new(device, apart, (2 * ITEMS, 64), ITEMS, skewed)?;
    let mut interpreted = Queue::new(device, interpreting, (2 * ITEMS, 64), ITEMS, skewed)?;
    let of_modes = line("jit_vs_interpreter", "cpu", "switch", ITEMS);
    report.compare(
        &mut || {
            compiled.drain();
        },
        &mut [(of_modes, &mut || {
            interpreted.drain();
        })],
    );
    // Chains of eight items over three handles.
    let chained = |item: u32| {
        let (chain, link) = (item / 8 * 3, item % 8);
        [if link % 3 == 2 { ACCUMULATE } else { SCALE }, chain + link % 3, chain + (link + 1) % 3]
    };
    let mut fused = Queue::new(device, standard, (3 * ITEMS / 8, 64), ITEMS, chained)?;
    let mut alone = Queue::new(device, apart, (3 * ITEMS / 8, 64), ITEMS, chained)?;
    let of_windows = line("window_fusion", "cpu", "apart", ITEMS);
    report.compare(
        &mut || {
            fused.drain();
        },
        &mut [(of_windows, &mut || {
            alone.drain();
        })],
    );
    Ok(())
}

/// Ablation of dependency counters: chains of very different lengths.
fn orders(report: &Report, device: &Device) -> Result<(), Error> {
    const CHAINS: u32 = 64;
    const LONGEST: u32 = 512;
    const WORDS: u32 = 256;
    let links = (0..LONGEST).flat_map(|link| (0..CHAINS).map(move |chain| (link, chain)));
    let links = links.filter(|(link, chain)| link * (chain + 1) < LONGEST);
    let item = |(link, chain)| {
        let [input_handle, output_handle] = [link % 2, (link + 1) % 2].map(|side| 1 + 2 * chain + side);
        WorkItem { op_handle: ROTATE, input_handle, output_handle, param: 0 }
    };
    let items: Vec<WorkItem> = links.map(item).collect();
    let queue = |order: Order| -> Result<Queue, Error> {
        let policy = Policy { hot_window_threshold: u32::MAX, ..Config::default().policy };
        let config = Config { plain_words: 2 * CHAINS * WORDS, policy, order, ..Config::of(device) };
        let mut session = session(device, config)?;
        for _ in 0..2 * CHAINS {
            session.allocate(Segment::Plain, WORDS)?;
        }
        Ok(Queue::warm(session, items.clone()))
    };
    let (mut counted, mut barriers) = (queue(Order::Counters)?, queue(Order::Barriers)?);
    report.compare(
        &mut || {
            counted.drain();
        },
        &mut [(line("counters_vs_barriers", "cpu", "barriers", items.len() as u32), &mut || {
            barriers.drain();
        })],
    );
    Ok(())
}

/// Autotuning in 20 drains of the mix of `vyre megakernel demo`, against the best of all settings by exhaustive search,
/// and the default ones.
fn tuning(report: &Report, device: &Device) -> Result<(), Error> {
    const ITEMS: u32 = 100_000;
    if !report.is_selected("tuned") {
        return Ok(());
    }
    let programs = mix::programs();
    let queue = |tune: bool, settings: Option<Settings>| -> Result<Queue, Error> {
        let (plain_words, atomic_words) = (mix::PLAIN_WORDS, mix::ATOMIC_WORDS);
        let mut config = Config { tune, plain_words, atomic_words, ..Config::of(device) };
        if let Some(Settings { width, jit, multiplier, batch }) = settings {
            let or_never = |threshold| if jit == NEVER { NEVER } else { threshold };
            config.slice = batch as usize;
            config.policy = Policy {
                sizing: NonZeroU32::new(width).map_or(Sizing::Widest, Sizing::Preferred),
                jit_queue_len_threshold: jit,
                hot_opcode_threshold: or_never(config.policy.hot_opcode_threshold),
                hot_window_threshold: or_never(config.policy.hot_window_threshold),
                hit_capacity_multiplier: multiplier,
                ..config.policy
            };
        }
        let mut session = Session::new(device, config)?;
        for program in &programs {
            session.register(Op::new(program.clone())?);
        }
        let items = Mix::new(session.tenant(0)?)?.items(&programs, ITEMS as usize, 1);
        Ok(Queue { session, items, drains: 0 })
    };
    let best = |queue: &mut Queue| {
        let times = (0..if report.quick { 3 } else { 8 }).map(|_| {
            let start = Instant::now();
            queue.drain();
            start.elapsed().as_nanos() as f64
        });
        times.fold(f64::MAX, f64::min)
    };
    let of = |settings: Option<Settings>| -> Result<f64, Error> {
        let queue = queue(false, settings)?;
        Ok(best(&mut Queue::warm(queue.session, queue.items)))
    };
    let mut fixed: Vec<(f64, Settings)> = Vec::new();
    for width in [16, 32, 64, 128, 256] {
        for jit in [0, NEVER] {
            for batch in [1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16] {
                let settings = Settings { width, jit, multiplier: 2, batch };
                fixed.push((of(Some(settings))?, settings));
                eprintln!("{settings:?}: {:.0} ns", fixed[fixed.len() - 1].0 / f64::from(ITEMS));
            }
        }
    }
    let least = |fixed: &[(f64, Settings)]| {
        fixed.iter().copied().min_by(|(a, _), (b, _)| a.total_cmp(b)).expect("some were tried")
    };
    // Hit capacity has little effect, so it is varied only for the best of the other settings.
    for multiplier in [1, 4] {
        let settings = Settings { multiplier, ..least(&fixed).1 };
        fixed.push((of(Some(settings))?, settings));
    }
    let mut tuned = queue(true, None)?;
    while !tuned.session.tuner().is_some_and(Tuner::is_settled) {
        tuned.drain();
    }
    let drains = tuned.drains;
    let found = tuned.session.tuner().map(Tuner::settings);
    let (least, of_least) = least(&fixed);
    eprintln!("tuned in {drains} drains to {found:?}; of all settings {of_least:?} is best");
    let tuned = best(&mut tuned);
    report.known(&line("tuned", "cpu", "best fixed", ITEMS), tuned, least);
    report.known(&line("tuned_vs_standard", "cpu", "standard", ITEMS), tuned, of(None)?);
    Ok(())
}

/// Items of 256 bytes on the GPU device, against raw wgpu: one submission per item, and one dispatch per item in a
/// single encoder.
fn gpu(report: &Report) -> Result<(), Error> {
    const ITEMS: u32 = 100_000;
    const SOURCE: &str = "
        @group(0) @binding(0) var<storage, read> input: array<u32>;
        @group(0) @binding(1) var<storage, read_write> output: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            output[id.x] = 3u * input[id.x];
        }";
    let device = Device::open(&Wgpu)?;
    report.adapter(device.capabilities());
    let policy = Config::of(&device).policy;
    let mut queue = Queue::new(&device, policy, (2 * ITEMS, 64), ITEMS, |item| [SCALE, 2 * item, 2 * item + 1])?;
    let raw = Raw::open();
    let (input, output) = (raw.buffer(&[0; 256]), raw.buffer(&[0; 256]));
    let dispatch = raw.dispatch(SOURCE, "main", [1, 1, 1], &[(0, &input), (1, &output)]);
    let best = |rounds: usize, work: &mut dyn FnMut()| {
        let times = (0..rounds).map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64
        });
        times.fold(f64::MAX, f64::min)
    };
    let rounds = if report.quick { 2 } else { 5 };
    let some = 1000;
    let each = f64::from(ITEMS) / f64::from(some);
    let submitted = best(rounds, &mut || (0..some).for_each(|_| raw.run([&dispatch]))) * each;
    let dispatched = best(rounds, &mut || raw.run(std::iter::repeat_n(&dispatch, some as usize))) * each;
    let ours = best(rounds, &mut || {
        queue.drain();
    });
    report.known(&line("wgpu_vs_submit_per_item", "wgpu", "submit", ITEMS), ours, submitted);
    report.known(&line("wgpu_vs_dispatch_per_item", "wgpu", "encoder", ITEMS), ours, dispatched);
    Ok(())
}
