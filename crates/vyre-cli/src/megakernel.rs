//! `vyre megakernel`: demo, benchmark and monitor of a queue of small work items.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use vyre_driver::{Argument, Device, Grid};
use vyre_foundation::ir::Space;
use vyre_foundation::optimizer::Profile;
use vyre_foundation::run_line::count;
use vyre_foundation::{Validated, ir};
use vyre_runtime::megakernel::ring::{Otherwise, Pushed};
use vyre_runtime::megakernel::{Config, Handle, Op, Priority, Report, Session, Share, WorkItem, tune};
use vyre_testkit::mix::{self, Mix};

use crate::error::Error;
use crate::progress::Progress;
use crate::reproducer::{Reproducer, passes_of, watch};
use crate::stdout::{Stdout, counted};
use crate::{devices, explain, report, trace};

/// Drain a queue of small work items in few launches
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Run a mix of items of many ops and sizes, and print throughput, latency and kernels
    Demo(Workload),
    /// Compare the same items with one launch per item
    Bench(Workload),
    /// Monitor a session of three tenants: queue, workers, and the share of each tenant
    Top(Top),
}

#[derive(clap::Args)]
struct Top {
    /// Stop after N seconds [default: when interrupted, or when standard output is closed]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    seconds: Option<u64>,
    /// Print one report and exit; this is the default for text if standard output is not a terminal
    #[arg(long)]
    once: bool,
    /// Device to run on; `vyre devices` lists the devices [default: VYRE_DEVICE, or the fastest]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object per line and refresh instead of text
    #[arg(long)]
    json: bool,
}

/// Maximum of `--items`, which bounds the memory of the demo: about 500 bytes per item, mostly for hits.
const MOST_ITEMS: i64 = 10_000_000;

#[derive(clap::Args)]
struct Workload {
    /// Number of items, up to 10000000; each takes about 500 bytes of memory
    #[arg(long, value_name = "N", default_value_t = 200_000, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MOST_ITEMS))]
    items: u32,
    /// Seed of the mix of items
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = count)]
    seed: u64,
    /// Device to run on; `vyre devices` lists the devices [default: VYRE_DEVICE, or the fastest]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write a timeline of the host and each worker for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write an HTML page: throughput, latency percentiles, the decisions for each slice with their reasons, the passes of each kernel,
    /// and a timeline
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Args {
    /// Files of `--trace` and `--html`.
    pub(crate) fn files(&self) -> [Option<&Path>; 2] {
        match &self.verb {
            Verb::Demo(workload) | Verb::Bench(workload) => [workload.trace.as_deref(), workload.html.as_deref()],
            Verb::Top(_) => [None; 2],
        }
    }
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let (workload, compares) = match &args.verb {
        Verb::Demo(workload) => (workload, false),
        Verb::Bench(workload) => (workload, true),
        Verb::Top(args) => return top(args, stdout),
    };
    let page = report::target(workload.html.as_deref())?;
    if page.is_some() {
        trace::start();
    }
    let registry = devices::registry(None)?;
    let choice = registry.choose(workload.device.as_deref(), None)?;
    let programs = mix::programs();
    let reproducer = || {
        let (verb, Workload { items, seed, .. }) = (if compares { "bench" } else { "demo" }, workload);
        let command = format!("vyre megakernel {verb} --items {items} --seed {seed} --device {}", choice.name);
        let device = std::iter::once(format!("device {}: {}", choice.name, choice.device.capabilities().name));
        let facts = device.chain(passes_of(&programs, &choice.device.with_profile(Profile::Megakernel))).collect();
        Reproducer { name: "megakernel", command, facts, text: mix::OPS.into() }
    };
    let progress = Progress::new("draining", 0);
    let (demo, first, report, one_by_one) = watch(reproducer, || {
        let mut demo = Demo::new(&choice.device, &programs, workload.items as usize, &[Share::default()])?;
        let items = demo.mixes[0].items(&programs, workload.items as usize, workload.seed);
        // During the first drain, kernels are compiled in the background and items are interpreted until then.
        let first = demo.drain("first", &items)?;
        demo.session.finish_compiling();
        let report = demo.drain("second", &items)?;
        let one_by_one = if compares { Some(demo.one_by_one(&choice.device, &programs, &items)?) } else { None };
        Ok((demo, first, report, one_by_one))
    })?;
    drop(progress);
    let object = object(choice.name, &first, &report, one_by_one);
    if let Some(file) = &page {
        let title = format!("megakernel, {}", counted(report.items, "item"));
        let timeline = trace::events();
        let device = choice.device.with_profile(Profile::Megakernel);
        let kernels = explain::kernels(&demo.session.programs(), &device, registry.telemetry())?;
        let what = json!({ "megakernel": object, "programs": kernels, "timeline": timeline });
        report::write(file, &title, choice.name, what)?;
    }
    let written = if workload.json {
        writeln!(stdout, "{object}")
    } else {
        show(stdout, choice.name, &first, &report, one_by_one)
    };
    written.map_err(Error::Stdout)
}

struct Demo {
    session: Session,
    /// Workload of each tenant.
    mixes: Vec<Mix>,
}

impl Demo {
    fn new(
        device: &Device,
        programs: &[Validated<ir::Program>],
        queue: usize,
        shares: &[Share],
    ) -> Result<Demo, Error> {
        let tenants = shares.len() as u32;
        let mut session = Session::new(
            device,
            Config {
                plain_words: tenants * mix::PLAIN_WORDS,
                atomic_words: tenants * mix::ATOMIC_WORDS,
                queue,
                tenants: shares.to_vec(),
                telemetry: true,
                tune: tenants > 1,
                ..Config::of(device)
            },
        )?;
        for program in programs {
            session.register(Op::new(program.clone())?);
        }
        let mixes = (0..tenants).map(|id| Mix::new(session.tenant(id)?)).collect::<Result<_, _>>()?;
        Ok(Demo { session, mixes })
    }

    /// Executes all items, in as many drains as their hits need.
    fn drain(&mut self, which: &str, items: &[WorkItem]) -> Result<Report, Error> {
        let _span = tracing::info_span!("drain", which).entered();
        let pushed = self.session.submit(items);
        debug_assert_eq!(pushed, Pushed::All, "the queue holds all of them");
        let mut report = self.session.drain()?;
        while report.tenants.iter().any(|usage| usage.queued > 0) {
            report.add(self.session.drain()?)?;
        }
        Ok(report)
    }
}

impl Demo {
    /// Time of the same items with one launch per item, extrapolated from the first 2000.
    fn one_by_one(
        &self,
        device: &Device,
        programs: &[Validated<ir::Program>],
        items: &[WorkItem],
    ) -> Result<Duration, Error> {
        let kernels = programs.iter().map(|program| device.compile(program)).collect::<Result<Vec<_>, _>>()?;
        let hits = device.allocate(ir::Element::U32, 1 << 20)?;
        let hit_count = device.allocate(ir::Element::U32, 1)?;
        let part = &items[..items.len().min(2_000)];
        let start = Instant::now();
        for item in part {
            let (kernel, program) = (&kernels[item.op_handle as usize - 1], &programs[item.op_handle as usize - 1]);
            let mut arguments: Vec<(&str, Argument)> = Vec::new();
            let mut elements = 0;
            for memory in program.memories().values() {
                let argument: Argument = match (memory.name.as_str(), memory.space) {
                    (_, Space::Workgroup | Space::Private) => continue,
                    ("param", Space::Uniform) => item.param.into(),
                    ("hits", _) => (&hits).into(),
                    ("hit_count", _) => (&hit_count).into(),
                    (name, _) => {
                        let handle = match name {
                            "input" => item.input_handle,
                            "output" => item.output_handle,
                            _ => item.param,
                        };
                        let words = self.session.memory(Handle(handle))?;
                        if name == "output" || elements == 0 {
                            elements = words.len();
                        }
                        Argument::Buffer(words.view(memory.element, words.len())?)
                    }
                };
                arguments.push((memory.name.as_str(), argument));
            }
            device.run(&kernel.dispatch(Grid::elements(elements), arguments)?)?;
        }
        Ok(start.elapsed().mul_f64(items.len() as f64 / part.len().max(1) as f64))
    }
}

/// Weights of the tenants of `top`.
const WEIGHTS: [u32; 3] = [1, 2, 4];

/// Refresh interval.
const TICK: Duration = Duration::from_millis(250);

fn top(args: &Top, stdout: &mut Stdout) -> Result<(), Error> {
    let registry = devices::registry(None)?;
    let choice = registry.choose(args.device.as_deref(), None)?;
    let programs = mix::programs();
    let shares = WEIGHTS.map(|weight| Share { weight, ..Share::default() });
    let Demo { mut session, mixes } = Demo::new(&choice.device, &programs, 20_000, &shares)?;
    let once = args.once || !args.json && !std::io::stdout().is_terminal();
    let end = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    std::thread::scope(|scope| {
        for (id, mix) in (0..).zip(&mixes) {
            let producer = session.tenant(id)?.producer();
            let items = mix.items(&programs, 10_000, u64::from(id) + 1);
            // Cycles through all priorities until the session is shut down.
            scope.spawn(move || {
                let parts = items.chunks(500).cycle().zip(Priority::ALL.into_iter().cycle());
                parts
                    .take_while(|(part, priority)| producer.push(*priority, part, Otherwise::Wait) == Pushed::All)
                    .for_each(drop);
            });
        }
        let mut ticks = 0;
        // Device time per tenant since the start, because fair queueing balances shares over time, not within a refresh.
        let mut used = [Duration::ZERO; WEIGHTS.len()];
        let result = loop {
            let report = match tick(&mut session) {
                Ok(report) => report,
                Err(error) => break Err(error),
            };
            ticks += 1;
            used.iter_mut().zip(&report.tenants).for_each(|(used, usage)| *used += usage.time);
            // A single report is printed after kernels have been compiled.
            if once && ticks < 8 {
                continue;
            }
            let shown = match args.json {
                true => format!("{}\n", status(choice.name, &session, &report, used)),
                false => screen(choice.name, &session, &report, used),
            };
            let cleared = if once || args.json { Ok(()) } else { stdout.clear_screen() };
            let written = cleared.and_then(|()| stdout.write_all(shown.as_bytes())).and_then(|()| stdout.flush());
            if let Err(error) = written {
                break Err(Error::Stdout(error));
            }
            if once || stdout.is_closed() || end.is_some_and(|end| Instant::now() >= end) {
                break Ok(());
            }
        };
        // Wakes producers that wait for a queue slot.
        session.canceller().cancel();
        drop(session.shutdown());
        result
    })
}

/// Drains the queue for one refresh interval.
fn tick(session: &mut Session) -> Result<Report, Error> {
    let mut report = session.drain()?;
    while report.elapsed < TICK {
        report.add(session.drain()?)?;
    }
    Ok(report)
}

/// Status of a session as JSON.
fn status(device: &str, session: &Session, report: &Report, used: [Duration; WEIGHTS.len()]) -> serde_json::Value {
    let mut object: serde_json::Value = report.to_json().parse().expect("a report is an object");
    object["device"] = device.into();
    let tenants = report.tenants.iter().zip(WEIGHTS).zip(used);
    object["tenants"] = tenants
        .map(|((usage, weight), used)| {
            json!({
                "weight": weight, "used_ns": used.as_nanos() as u64, "items": usage.items,
                "queued": usage.queued, "failures": usage.failures,
            })
        })
        .collect();
    let counted = report.priority;
    object["priority"] = json!({
        "promoted": counted.aged_promotions, "put_back": counted.requeues, "oldest_slices": counted.oldest_age,
    });
    object["tuned"] = session.tuner().map(|tuner| {
        let tune::Settings { width, jit, batch, .. } = tuner.settings();
        json!({ "settled": tuner.is_settled(), "width": width, "batch": batch, "compiled_from": (jit != tune::NEVER).then_some(jit) })
    }).into();
    object
}

/// Status of a session as text.
fn screen(device: &str, session: &Session, report: &Report, used: [Duration; WEIGHTS.len()]) -> String {
    let mut text = String::new();
    let seconds = report.elapsed.as_secs_f64().max(1e-9);
    let queued: usize = report.tenants.iter().map(|usage| usage.queued).sum();
    let _ = writeln!(text, "{device}: {:.0} items/s, {queued} queued", report.items as f64 / seconds);
    if let Some(telemetry) = &report.telemetry {
        let of = |percent| telemetry.latencies.percentile(percent).as_secs_f64() * 1e3;
        let busy = 100.0 * telemetry.occupancy();
        let _ = writeln!(
            text,
            "workers busy {busy:.0} %, latency p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms",
            of(50.0),
            of(90.0),
            of(99.0)
        );
    }
    let counted = report.priority;
    let _ = writeln!(
        text,
        "aging promoted {} items, {} were requeued, the oldest waited for {} slices",
        counted.aged_promotions, counted.requeues, counted.oldest_age
    );
    if let Some(tuner) = session.tuner() {
        let tune::Settings { width, jit, batch, .. } = tuner.settings();
        let state = if tuner.is_settled() { "tuned to" } else { "trying" };
        let jit = if jit == tune::NEVER { "never compiled".into() } else { format!("compiled from {jit} items") };
        let _ = writeln!(text, "{state} workgroups of {width}, slices of {batch}, {jit}");
    }
    let _ = writeln!(
        text,
        "\n{:10} {:>7} {:>7} {:>10} {:>9} {:>9}",
        "tenant", "share", "used", "items/s", "queued", "failures"
    );
    let total = used.iter().sum::<Duration>().as_secs_f64().max(1e-9);
    let weights: u32 = WEIGHTS.iter().sum();
    for (((id, usage), weight), used) in report.tenants.iter().enumerate().zip(WEIGHTS).zip(used) {
        let share = 100.0 * f64::from(weight) / f64::from(weights);
        let used = 100.0 * used.as_secs_f64() / total;
        let rate = usage.items as f64 / seconds;
        let (queued, failures) = (usage.queued, usage.failures);
        let _ = writeln!(text, "{id:<10} {share:>5.1} % {used:>5.1} % {rate:>10.0} {queued:>9} {failures:>9}");
    }
    let _ = writeln!(text, "\n{:24} {:>10}", "op", "items/s");
    for (name, items) in &report.ops {
        let _ = writeln!(text, "{name:24} {:>10.0}", *items as f64 / seconds);
    }
    text
}

fn object(device: &str, first: &Report, report: &Report, one_by_one: Option<Duration>) -> serde_json::Value {
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    let mut object: serde_json::Value = report.to_json().parse().expect("a report is an object");
    object["device"] = device.into();
    object["first_elapsed_ns"] = nanoseconds(first.elapsed).into();
    object["first_interpreted"] = first.interpreted.into();
    object["one_by_one_ns"] = one_by_one.map(nanoseconds).into();
    object
}

fn show(
    stdout: &mut Stdout,
    device: &str,
    first: &Report,
    report: &Report,
    one_by_one: Option<Duration>,
) -> std::io::Result<()> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    writeln!(
        stdout,
        "{} on {device}: {:.0} ms, {:.0} items/s",
        counted(report.items, "item"),
        milliseconds(report.elapsed),
        report.items as f64 / report.elapsed.as_secs_f64().max(1e-9)
    )?;
    writeln!(
        stdout,
        "  {} launches in {} barrier groups took {:.0} ms; {} items ordered by counters",
        report.launches,
        report.groups,
        milliseconds(report.device),
        report.counted
    )?;
    if let Some(telemetry) = &report.telemetry {
        let of = |percent| milliseconds(telemetry.latencies.percentile(percent));
        writeln!(
            stdout,
            "  latency p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms; workers busy {:.0} % of the time",
            of(50.0),
            of(90.0),
            of(99.0),
            100.0 * telemetry.occupancy()
        )?;
    }
    writeln!(stdout, "  {} items fused into windows, {} redundant items pruned", report.fused, report.pruned)?;
    writeln!(stdout, "  {} hits, {} failures", report.hits.len(), report.failures.len())?;
    writeln!(stdout, "  first drain: {:.0} ms, {} items interpreted", milliseconds(first.elapsed), first.interpreted)?;
    if let Some(one_by_one) = one_by_one {
        let ratio = one_by_one.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        writeln!(stdout, "one launch per item: {:.0} ms, {ratio:.1} times as long", milliseconds(one_by_one))?;
    }
    writeln!(stdout)?;
    let mut kernels: Vec<_> = report.kernels.iter().collect();
    kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.time));
    writeln!(stdout, "{:40} {:>10} {:>10} {:>12}", "kernel", "units", "launches", "ms")?;
    for kernel in kernels.iter().take(12) {
        writeln!(
            stdout,
            "{:40} {:>10} {:>10} {:>12.2}",
            kernel.name,
            kernel.units,
            kernel.launches,
            milliseconds(kernel.time)
        )?;
    }
    Ok(())
}
