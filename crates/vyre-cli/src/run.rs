//! `vyre run`: runs a kernel or a pipeline on data from the command line or files.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::PathBuf;

use clap::ArgGroup;
use serde_json::{Map, Value, json};
use vyre_driver::backend::Backend as _;
use vyre_driver::{Oracle, Registry};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Literal, Memory, Program, Type};
use vyre_foundation::launch::{Limits, Outcome, Report};
use vyre_foundation::run_line::assignment;

use crate::compare::{Expected, Tolerance};
use crate::error::Error;
use crate::job::{self, CompiledJob, Job, Prepared, RoundResult, shown};
use crate::outputs::{Outputs, results};
use crate::progress::Progress;
use crate::reproducer::{JobReproducer, absolute, quoted, watch};
use crate::source::Source;
use crate::stdout::Stdout;
use crate::{devices, pipeline};

/// Values of a result that are printed without `--out`.
const SHOWN_VALUES: usize = 8;

/// Run a kernel, or a pipeline of kernels
#[derive(clap::Args)]
#[command(after_help = NOTATIONS)]
#[command(group = ArgGroup::new("comparison").args(["expect", "compare_devices"]).multiple(true))]
#[command(group = ArgGroup::new("closeness").args(["atol", "rtol", "ulp"]).multiple(true).requires("comparison"))]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) job: job::Input,
    /// Target of a result; without --out, the first values of each result are printed
    #[arg(long, value_name = "NAME=TARGET", value_parser = assignment)]
    out: Vec<(String, String)>,
    /// Device to run on; `vyre devices` lists the devices [default: VYRE_DEVICE, or the fastest]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Write a timeline of the host and the device for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Run on each of these devices, and fail if a result differs from the first; `reference` takes the subgroup size of the others
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "device", help_heading = "Comparison")]
    compare_devices: Vec<String>,
    /// Expected result, in the notation of bindings; if it differs, the first differences are printed and the exit code is 1
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment, help_heading = "Comparison")]
    expect: Vec<(String, String)>,
    #[command(flatten)]
    tolerance: Tolerance,
    /// Number of runs, each from the same inputs
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print the times of compile, upload, launch and download
    #[arg(long)]
    stats: bool,
    /// Print one JSON object about the run instead of text
    #[arg(long)]
    json: bool,
}

const NOTATIONS: &str = "\
Values:
  1.5             value of a uniform
  1,2,3           list of elements
  zeros:N         N zeros
  iota:N          0, 1, 2, …, N-1
  random:N:SEED   N pseudo-random elements of a seed: uniform integers, or floats in [0, 1)
  @file.npy       array saved by numpy: little-endian, C order, of exactly the type of the object
  @file.bin       raw little-endian elements

Targets:
  @file.npy       array, with the shape of the grid if the numbers of elements are equal
  @file.bin       raw little-endian elements
  @file.png       image of the size of the grid: u8 (grey, RGB or RGBA), u32 (0xAABBGGRR) or f32 (grey, 0 to 1)
  -               values on standard output

Example:
  vyre run examples/kernels/saxpy.vyre a=2 x=iota:8 y=1,1,1,1,1,1,1,1 --elements 8 --out y=-";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let job = args.job.job()?;
    let mut registry = devices::registry(job.subgroup_size)?;
    let devices = device_names(&args.compare_devices, args.device.as_deref());
    devices.iter().try_for_each(|name| registry.check_device(*name))?;
    if args.compare_devices.len() == 1 {
        return Err(Error::Flag { flag: "--compare-devices", about: "a single device" });
    }
    let mut compared = args.compare_devices.iter().enumerate();
    if let Some((_, name)) = compared.find(|(at, name)| args.compare_devices[..*at].contains(name)) {
        return Err(Error::DeviceTwice { name: name.clone() });
    }
    if job.subgroup_size.is_none() {
        registry = with_equal_subgroups(registry, &args.compare_devices)?;
    }
    let outputs = Outputs::plan(&args.out, &job.interface, &job.inputs, job.launched())?;
    let expected = Expected::read(&args.expect, &job.interface)?;
    let watched = JobReproducer { job: &job, registry: &registry, devices: &devices, flags: args.flags() };
    watch(|| watched.reproducer(), || execute(args, &job, &registry, &devices, &outputs, &expected, stdout))
}

fn execute(
    args: &Args,
    job: &Job,
    registry: &Registry,
    devices: &[Option<&str>],
    outputs: &Outputs<'_>,
    expected: &Expected,
    stdout: &mut Stdout,
) -> Result<(), Error> {
    let rounds = u64::from(args.repeat) * devices.len() as u64;
    let progress = Progress::new("running", if rounds > 1 { rounds } else { 0 });
    let mut runs = Vec::new();
    for name in devices {
        let mut ready = job.prepare(registry, *name)?;
        if let Some(given) = job.subgroup_size
            && args.compare_devices.is_empty()
            && ready.choice.device.capabilities().subgroup_size != Some(given)
        {
            return Err(Error::SubgroupSize { device: ready.choice.name, given });
        }
        let mut done = ready.round()?;
        progress.step();
        for _ in 1..args.repeat {
            if done.outcome() == Outcome::Completed {
                done = ready.round()?;
                progress.step();
            }
        }
        runs.push((ready, done));
    }
    drop(progress);
    devices::warn_of_damage(registry);
    let (first, done) = &runs[0];
    let failure = failure(&done.outcome(), job.limits, first.choice.device.capabilities().max_loop_trips, &job.source);
    if !args.json {
        done.reports().try_for_each(|report| show_trace(report, stdout))?;
    }
    if failure.is_none() {
        outputs.save(&done.results)?;
    }
    // Differences are reported last, after the results.
    let disagreement = runs[1..].iter().find_map(|other| disagreement(&runs[0], other, args.tolerance));
    let is_overdue = matches!(done.outcome(), Outcome::DeadlinePassed { .. });
    let missed = expected.first_difference(&done.results, args.tolerance).filter(|_| !is_overdue).map(|missed| {
        let (device, than) = (first.choice.name, "expected".into());
        Error::Differs { device, than, difference: Box::new(missed), lanes: None }
    });
    let (same, as_expected) = (disagreement.is_none(), missed.is_none());
    let wrong = disagreement.or(missed);
    if args.json {
        let printed = if failure.is_none() { outputs.printed.as_slice() } else { &[] };
        let mut object = object(job, first, done, printed);
        if failure.is_none() {
            object["results"] = results(&job.interface).map(|memory| result(memory, &done.results, outputs)).collect();
        }
        if runs.len() > 1 {
            object["devices"] = runs.iter().map(|(ready, _)| ready.choice.name).collect();
            object["same"] = same.into();
        }
        if !args.expect.is_empty() {
            object["as_expected"] = (failure.is_none() && as_expected).into();
        }
        if args.stats {
            object["stats"] = runs.iter().map(|(ready, _)| ready.statistics().object()).collect();
        }
        writeln!(stdout, "{object}").map_err(Error::Stdout)?;
        return failure.or(wrong).map_or(Ok(()), Err);
    }
    if let Some(failure) = failure {
        return Err(wrong.unwrap_or(failure));
    }
    match args.out.is_empty() {
        true => show_summary(&job.interface, &done.results, stdout)?,
        false => show_results(&outputs.printed, &done.results, stdout)?,
    }
    for (path, shape) in outputs.saved() {
        let (time, device) = (shown(first.device_time()), devices::phrase(&first.choice));
        writeln!(stdout, "{}: {shape}, {time} on {device}", path.display()).map_err(Error::Stdout)?;
    }
    let exact = args.tolerance.flags().is_empty();
    if runs.len() > 1 && same {
        let names: Vec<&str> = runs.iter().map(|(ready, _)| ready.choice.name).collect();
        let same = if exact { "identical" } else { "equal within tolerance" };
        writeln!(stdout, "{same} on {}", names.join(", ")).map_err(Error::Stdout)?;
    }
    if !args.expect.is_empty() && as_expected {
        let names: Vec<&str> = args.expect.iter().map(|(name, _)| name.as_str()).collect();
        let expected = if exact { "as expected" } else { "as expected within tolerance" };
        writeln!(stdout, "{expected}: {}", names.join(", ")).map_err(Error::Stdout)?;
    }
    if args.stats {
        let mut texts = runs.iter().map(|(ready, _)| ready.statistics().text());
        texts.try_for_each(|text| stdout.write_all(text.as_bytes())).map_err(Error::Stdout)?;
    }
    wrong.map_or(Ok(()), Err)
}

impl Args {
    /// Flags that repeat the comparison.
    fn flags(&self) -> String {
        let mut flags = self.tolerance.flags();
        for (name, value) in &self.expect {
            let _ = write!(flags, " --expect {}", quoted(&format!("{name}={}", absolute(value))));
        }
        flags
    }
}

/// Gives the oracle the subgroup size of the first other device, so that the devices can be compared.
fn with_equal_subgroups(registry: Registry, names: &[String]) -> Result<Registry, Error> {
    let oracle = Oracle::default();
    let (oracles, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| *name == oracle.name());
    match others.first() {
        Some(other) if !oracles.is_empty() => devices::registry(registry.open(other)?.capabilities().subgroup_size),
        _ => Ok(registry),
    }
}

/// The devices of a comparison, or the one device of `--device`.
pub(crate) fn device_names<'a>(several: &'a [String], one: Option<&'a str>) -> Vec<Option<&'a str>> {
    if several.is_empty() { vec![one] } else { several.iter().map(|name| Some(name.as_str())).collect() }
}

/// Compares outcome, trace and results of a device with those of the first.
fn disagreement(
    first: &(CompiledJob<'_>, RoundResult),
    other: &(CompiledJob<'_>, RoundResult),
    tolerance: Tolerance,
) -> Option<Error> {
    let (device, than) = (other.0.choice.name, first.0.choice.name);
    let (ours, theirs) = (first.1.reports(), other.1.reports());
    let sizes = [first, other].map(|(ready, _)| ready.choice.device.capabilities().subgroup_size.unwrap_or(0));
    let collective = first.0.interface().insts().values().any(|inst| inst.op.needs_subgroups());
    let lanes = (collective && sizes[0] != sizes[1]).then_some(sizes);
    let said = |report: &Report| (report.outcome.clone(), report.trace.clone(), report.dropped_lines);
    // Traces of pipelines are not compared, because devices may fuse different launches.
    if first.1.outcome() != other.1.outcome() || ours.map(said).ne(theirs.map(said)) && first.1.groups.len() == 1 {
        let outcome = match other.1.outcome() {
            outcome if outcome == first.1.outcome() => "it prints different lines".into(),
            outcome => outcome.to_string(),
        };
        return Some(Error::Disagrees { device, than, outcome, lanes });
    }
    let difference = tolerance.between(first.0.interface(), &other.1.results, &first.1.results)?;
    Some(Error::Differs { device, than: format!("on {than}"), difference: Box::new(difference), lanes })
}

// Results.

/// Converts an outcome into an error. `trips` is the device's limit of loop trips per invocation.
pub(crate) fn failure(outcome: &Outcome, limits: Limits, trips: Option<u64>, source: &Source) -> Option<Error> {
    match *outcome {
        Outcome::Completed => None,
        Outcome::Trapped { code, invocation, span, count } => {
            Some(Error::Trapped { code, invocation, count, location: source.location(span) })
        }
        Outcome::OutOfFuel { span } => {
            let location = source.location(span);
            Some(match trips.filter(|trips| *trips < limits.fuel) {
                Some(trips) => Error::TooManyTrips { trips, location },
                None => Error::OutOfFuel { fuel: limits.fuel, location },
            })
        }
        Outcome::DeadlinePassed { span } => {
            Some(Error::TimedOut { timeout: limits.deadline.unwrap_or_default(), location: source.location(span) })
        }
    }
}

pub(crate) fn show_trace(report: &Report, stdout: &mut Stdout) -> Result<(), Error> {
    for line in &report.trace {
        writeln!(stdout, "[{}] {}", line.invocation, line.text).map_err(Error::Stdout)?;
    }
    match report.dropped_lines {
        0 => Ok(()),
        1 => writeln!(stdout, "(1 more line dropped)").map_err(Error::Stdout),
        dropped => writeln!(stdout, "({dropped} more lines dropped)").map_err(Error::Stdout),
    }
}

/// Values of the printed results as JSON, by name.
pub(crate) fn outputs_object(printed: &[&Memory], inputs: &Inputs) -> Map<String, Value> {
    printed.iter().map(|memory| (memory.name.clone(), values(memory, inputs).map(number).collect())).collect()
}

/// Summary of a result for `--json`: type, length, first values and files.
fn result(memory: &Memory, inputs: &Inputs, outputs: &Outputs<'_>) -> Value {
    let values = values(memory, inputs);
    json!({
        "name": memory.name,
        "type": memory.element.to_string(),
        "length": values.len(),
        "first": values.take(SHOWN_VALUES).map(number).collect::<Vec<_>>(),
        "files": outputs.files_of(&memory.name).collect::<Vec<_>>(),
    })
}

/// JSON object of a run.
fn object(job: &Job, ready: &CompiledJob<'_>, done: &RoundResult, printed: &[&Memory]) -> Value {
    let mut object = match &ready.prepared {
        Prepared::Kernel { groups, .. } => json!({
            "program": job.interface.name(),
            "grid": {
                "groups": groups,
                "workgroup_size": job.interface.workgroup_size(),
                "elements": job.launched(),
            },
            "instructions": done.reports().next().and_then(|report| report.instructions),
        }),
        Prepared::Pipeline(compiled) => pipeline::ran(compiled.plan(), &done.groups),
    };
    let lines = done.reports().flat_map(|report| &report.trace);
    object["device"] = ready.choice.name.into();
    object["milliseconds"] = (ready.elapsed().as_secs_f64() * 1e3).into();
    object["outcome"] = outcome(&done.outcome(), &job.source);
    object["trace"] = lines.map(|line| json!({ "invocation": line.invocation, "text": line.text })).collect();
    object["dropped_lines"] = done.reports().map(|report| report.dropped_lines).sum::<u64>().into();
    object["outputs"] = outputs_object(printed, &done.results).into();
    object
}

fn outcome(outcome: &Outcome, source: &Source) -> Value {
    let (kind, span) = match *outcome {
        Outcome::Completed => return json!({ "kind": "completed" }),
        Outcome::Trapped { span, .. } => ("trapped", span),
        Outcome::OutOfFuel { span } => ("out_of_fuel", span),
        Outcome::DeadlinePassed { span } => ("timed_out", span),
    };
    let location = source.location(span);
    let mut object = json!({
        "kind": kind,
        "line": location.as_ref().map(|location| location.line),
        "column": location.as_ref().map(|location| location.column),
    });
    if let Outcome::Trapped { code, invocation, count, .. } = *outcome {
        object["code"] = code.into();
        object["invocation"] = invocation.into();
        object["count"] = count.into();
    }
    object
}

/// Prints `y: [f32; 1024] = 1.0, 2.0, …` for every result.
pub(crate) fn show_summary(program: &Program, inputs: &Inputs, stdout: &mut Stdout) -> Result<(), Error> {
    for memory in results(program) {
        let values = values(memory, inputs);
        let length = values.len();
        let is = if length == 0 { "" } else { " = " };
        let more = if length > SHOWN_VALUES { ", …" } else { "" };
        let shown = List(values.take(SHOWN_VALUES));
        writeln!(stdout, "{}: [{}; {length}]{is}{shown}{more}", memory.name, memory.element).map_err(Error::Stdout)?;
    }
    Ok(())
}

pub(crate) fn show_results(printed: &[&Memory], inputs: &Inputs, stdout: &mut Stdout) -> Result<(), Error> {
    for memory in printed {
        if printed.len() > 1 {
            write!(stdout, "{} = ", memory.name).map_err(Error::Stdout)?;
        }
        writeln!(stdout, "{}", List(values(memory, inputs))).map_err(Error::Stdout)?;
    }
    Ok(())
}

fn values(memory: &Memory, inputs: &Inputs) -> impl ExactSizeIterator<Item = Literal> + Clone {
    let element = memory.element;
    let contents = inputs.contents(&memory.name).unwrap_or_default();
    let elements = contents.chunks_exact(element.size());
    elements.map(move |bytes| Literal { ty: element.value_type(), bits: element.read(bytes) })
}

/// Comma-separated values.
struct List<I>(I);

impl<I: Iterator<Item = Literal> + Clone> fmt::Display for List<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, value) in self.0.clone().enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            f.write_str(&value.plain())?;
        }
        Ok(())
    }
}

/// Converts a value to JSON. Infinities and NaNs become strings.
fn number(value: Literal) -> Value {
    let plain = value.plain();
    match value.ty {
        Type::Bool => (value.bits != 0).into(),
        Type::I32 => (value.bits as i32).into(),
        Type::U32 | Type::U64 => value.bits.into(),
        Type::I64 => (value.bits as i64).into(),
        // The shortest decimal of an f32 or f16 is also the shortest decimal of its nearest f64, so JSON has the same digits.
        Type::F32 | Type::F64 | Type::F16 => match plain.parse::<f64>() {
            Ok(number) if number.is_finite() => number.into(),
            _ => plain.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use vyre_foundation::ir::Span;
    use vyre_foundation::launch::{Limits, Outcome};

    use super::failure;
    use crate::source::Source;

    #[test]
    fn errors_distinguish_fuel_from_the_trip_limit_of_the_device() {
        let source = Source::of_text("loop.vyre".into(), String::new());
        let code = |limits: Limits, trips: Option<u64>| {
            let outcome = Outcome::OutOfFuel { span: Span::NONE };
            failure(&outcome, limits, trips, &source).map(|error| (error.code(), error.to_string()))
        };
        let device = "the kernel takes more than the 65535 loop trips per invocation that the device allows";
        assert_eq!(code(Limits::default(), Some(65_535)), Some(("C043", device.into())));
        let fuel = "the kernel ran out of fuel after 1000 loop trips";
        let limits = Limits { fuel: 1000, ..Limits::default() };
        assert_eq!(code(limits, Some(65_535)), Some(("C024", fuel.into())));
        assert_eq!(code(limits, None), Some(("C024", fuel.into())));
    }
}
