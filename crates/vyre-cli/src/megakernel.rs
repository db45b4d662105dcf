//! `vyre megakernel`: a queue of small work items, drained by few launches.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use vyre_driver::{Argument, Device, Dispatch, Grid};
use vyre_foundation::ir::Space;
use vyre_foundation::launch::Limits;
use vyre_foundation::{Validated, ir, text, validate};
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::{Config, Handle, Op, Report, Segment, Session, WorkItem};

use crate::devices;
use crate::error::Error;
use crate::stdout::Stdout;

/// Drain a queue of small work items in few launches
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Run items of many operations and sizes, and show what becomes of them
    Demo(Workload),
    /// Compare the same items with one launch for each of them
    Bench(Workload),
}

#[derive(clap::Args)]
struct Workload {
    /// How many items there are
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    items: u32,
    /// Which items: the same seed gives the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Where to run them: `vyre devices` lists the devices; otherwise VYRE_DEVICE decides, or the fastest is taken
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write what each worker did and when to a file that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The operations of the demonstration: elementwise ones, one with barriers, one with three handles, one that counts atomically, and
/// one that reports hits.
const OPS: &str = include_str!("../../../examples/megakernel/ops.vyre");

/// Lengths in words, from 64 bytes to 64 KiB, and how many handles there are of each.
const LENGTHS: [(u32, usize); 5] = [(16, 1200), (64, 500), (256, 200), (1024, 80), (16_384, 20)];

/// Handles of atomic words.
const COUNTERS: usize = 16;

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let (workload, compares) = match &args.verb {
        Verb::Demo(workload) => (workload, false),
        Verb::Bench(workload) => (workload, true),
    };
    let registry = devices::registry(None);
    let choice = registry.choose(workload.device.as_deref(), None)?;
    let mut programs = validate::module(text::parse(OPS)?)?;
    // What goes round as often as its input says would do little else here.
    programs.retain(|program| program.name != "spin");
    let mut demo = Demo::new(&choice.device, &programs, workload.items)?;
    let items = demo.items(&programs, workload);

    // Kernels are compiled while the first items are interpreted.
    let first = demo.drain(&items)?;
    demo.session.finish_compiling();
    let report = demo.drain(&items)?;
    let one_by_one = if compares { Some(demo.one_by_one(&choice.device, &programs, &items)?) } else { None };
    if let Some(file) = &workload.trace {
        let unwritable = |error: std::io::Error| Error::Unwritable { path: file.clone(), reason: error.to_string() };
        std::fs::write(file, report.to_trace()).map_err(unwritable)?;
    }
    let written = if workload.json {
        writeln!(stdout, "{}", object(choice.name, &first, &report, one_by_one))
    } else {
        show(stdout, choice.name, &first, &report, one_by_one)
    };
    written.map_err(Error::Stdout)
}

struct Demo {
    session: Session,
    plain: Vec<(Handle, u32)>,
    counters: Vec<Handle>,
}

impl Demo {
    fn new(device: &Device, programs: &[Validated<ir::Program>], items: u32) -> Result<Demo, Error> {
        let words: u32 = LENGTHS.iter().map(|(length, count)| length * *count as u32).sum();
        let (atomic_words, queue) = (64 * COUNTERS as u32, items as usize);
        let config = Config { plain_words: words, atomic_words, queue, telemetry: true, ..Config::of(device) };
        let mut session = Session::new(device, config)?;
        for program in programs {
            session.register(Op::new(program.clone())?);
        }
        let mut plain = Vec::new();
        for (length, count) in LENGTHS {
            for _ in 0..count {
                let handle = session.allocate(Segment::Plain, length)?;
                let words: Vec<u8> = (0..length).flat_map(|i| (i % 1000).to_le_bytes()).collect();
                session.write(handle, &words)?;
                plain.push((handle, length));
            }
        }
        let counters = (0..COUNTERS).map(|_| session.allocate(Segment::Atomic, 64)).collect::<Result<_, _>>()?;
        Ok(Demo { session, plain, counters })
    }

    /// Items in no order, and chains of them, each on what the one before it wrote.
    fn items(&self, programs: &[Validated<ir::Program>], workload: &Workload) -> Vec<WorkItem> {
        let mut state = workload.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below.max(1)
        };
        let number =
            |name: &str| programs.iter().position(|program| program.name == name).map_or(0, |at| at as u32 + 1);
        let mut items = Vec::with_capacity(workload.items as usize);
        while items.len() < workload.items as usize {
            let (input, length) = self.plain[random(self.plain.len())];
            let (other, other_length) = self.plain[random(self.plain.len())];
            let output = if other_length == length && other != input { other } else { self.neighbour(input, length) };
            let op = random(programs.len()) as u32 + 1;
            let mut item = WorkItem { op_handle: op, input_handle: input.0, output_handle: output.0, param: 3 };
            if op == number("sum") {
                item.param = self.neighbour(output, length).0;
            } else if op == number("histogram") {
                item.output_handle = self.counters[random(COUNTERS)].0;
            } else if op == number("find") {
                item.param = 998;
            } else if op == number("scale") {
                // A chain: there and back, twice.
                let back = WorkItem { input_handle: output.0, output_handle: input.0, param: 5, ..item };
                items.extend([item, back, item]);
                continue;
            }
            items.push(item);
        }
        items.truncate(workload.items as usize);
        items
    }

    /// Another handle of the same length: they are next to each other.
    fn neighbour(&self, handle: Handle, length: u32) -> Handle {
        let at = self.plain.iter().position(|(other, _)| *other == handle).unwrap_or(0);
        let next = [at + 1, at.wrapping_sub(1)].into_iter().filter_map(|at| self.plain.get(at));
        next.filter(|(_, other)| *other == length).map(|(other, _)| *other).next().unwrap_or(handle)
    }

    fn drain(&mut self, items: &[WorkItem]) -> Result<Report, Error> {
        let pushed = self.session.submit(items);
        debug_assert_eq!(pushed, Pushed::All, "the queue holds all of them");
        Ok(self.session.drain()?)
    }

    /// What the same items take with a launch for each of them; a part of them is enough to know.
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
            for memory in program.memory.values() {
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
            device.run(&Dispatch { kernel, grid: Grid::elements(elements), arguments, limits: Limits::default() })?;
        }
        Ok(start.elapsed().mul_f64(items.len() as f64 / part.len().max(1) as f64))
    }
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
    let each = |time: Duration| time.as_nanos() as f64 / report.items.max(1) as f64;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    writeln!(
        stdout,
        "{} items on {device}: {:.0} ms, {:.0} ns each",
        report.items,
        milliseconds(report.elapsed),
        each(report.elapsed)
    )?;
    writeln!(
        stdout,
        "  {} launches between {} barriers took {:.0} ms of it; {} items waited for counters instead",
        report.launches,
        report.groups,
        milliseconds(report.device),
        report.counted
    )?;
    if let Some(telemetry) = &report.telemetry {
        let of = |percent| milliseconds(telemetry.latencies.percentile(percent));
        writeln!(
            stdout,
            "  in the queue and done after {:.1} ms (half of them), {:.1} ms (99 %); workers were busy {:.0} % of the time",
            of(50.0),
            of(99.0),
            100.0 * telemetry.occupancy()
        )?;
    }
    writeln!(stdout, "  {} items ran with others of their window, {} were left out", report.fused, report.pruned)?;
    writeln!(stdout, "  {} hits, {} failures", report.hits.len(), report.failures.len())?;
    writeln!(
        stdout,
        "  the first time: {:.0} ms, {} items were interpreted",
        milliseconds(first.elapsed),
        first.interpreted
    )?;
    if let Some(one_by_one) = one_by_one {
        let ratio = one_by_one.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        writeln!(stdout, "one launch for each item: {:.0} ms, {ratio:.1} times as long", milliseconds(one_by_one))?;
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
