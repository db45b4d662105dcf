//! `vyre run`: one dispatch or pipeline, from files to files.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Map, Value, json};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Literal, Memory, Program, Space, Type};
use vyre_foundation::launch::{Grid, Limits, Outcome, Report, bind};

use crate::data;
use crate::devices;
use crate::error::Error;
use crate::outputs::{Outputs, results};
use crate::pipeline;
use crate::selection::{Choice, Selection, assignment};
use crate::source::Source;
use crate::stdout::Stdout;

/// How many values of a result are shown when nothing is said about it.
const SHOWN_VALUES: usize = 8;

/// Run a kernel, or a pipeline of kernels
#[derive(clap::Args)]
#[command(after_help = NOTATIONS)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// What a memory object of the kernel starts with; a result of known length starts with zeros
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    bindings: Vec<(String, String)>,
    /// Where a result goes; without this flag, the beginning of each result is shown
    #[arg(long, value_name = "NAME=TARGET", value_parser = assignment)]
    out: Vec<(String, String)>,
    #[command(flatten)]
    grid: GridArgs,
    /// Take the bindings, the grid and the like from the first `//@ run` line of the file
    #[arg(long, conflicts_with_all = ["bindings", "elements", "grid", "set", "program"])]
    replay: bool,
    /// Where to run it: `vyre devices` lists the devices; otherwise VYRE_DEVICE decides, or the fastest is taken
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// How many loop trips all invocations together may take
    #[arg(long, value_name = "N")]
    fuel: Option<u64>,
    /// How long the kernel may run
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// The most memory that the buffers of a pipeline may take together
    #[arg(long, value_name = "BYTES")]
    budget: Option<u64>,
    /// Lanes of a subgroup, on the device `reference`: a power of two up to 128
    #[arg(long, value_name = "N", value_parser = subgroup_size)]
    subgroup_size: Option<u32>,
    /// Write what the host and the device did and when to a file that Perfetto and chrome://tracing open
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print one JSON object about the run instead of text
    #[arg(long)]
    json: bool,
}

/// What a `//@ run` line says.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Directive {
    #[arg(value_parser = assignment)]
    bindings: Vec<(String, String)>,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    grid: GridArgs,
    #[arg(long)]
    fuel: Option<u64>,
    #[arg(long, value_parser = subgroup_size)]
    subgroup_size: Option<u32>,
}

impl Directive {
    /// The first of a file.
    fn read(file: &Path) -> Result<Directive, Error> {
        let source = Source::read(file)?;
        let Some(line) = source.directives().next() else {
            return Err(Error::NoDirective { file: source.file });
        };
        Directive::try_parse_from(line.split_whitespace()).map_err(|error| {
            // The first line says what is wrong; the rest is about a command line.
            let message = error.to_string();
            let reason = message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            Error::BadDirective { file: source.file.clone(), reason }
        })
    }
}

/// How many invocations to run.
#[derive(clap::Args)]
pub(crate) struct GridArgs {
    /// How many invocations to run in each dimension, instead of the kernel's own `launch`
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = sizes, conflicts_with = "grid")]
    elements: Option<[u32; 3]>,
    /// How many workgroups to run in each dimension
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = sizes)]
    grid: Option<[u32; 3]>,
}

impl GridArgs {
    /// The workgroups to run, and how many elements they were asked for.
    pub(crate) fn groups(&self, program: &Program) -> Result<([u32; 3], [u32; 3]), Error> {
        let grid = match (self.elements.or(program.launch), self.grid) {
            (_, Some(groups)) => Grid::Groups(groups),
            (Some(elements), None) => Grid::Elements(elements),
            (None, None) => return Err(Error::NoGrid { program: program.name.clone() }),
        };
        let groups = grid.groups(program.workgroup_size)?;
        let launched = match grid {
            Grid::Elements(elements) => elements,
            // Sizes that do not fit belong to a grid that is empty in another dimension.
            Grid::Groups(groups) => {
                std::array::from_fn(|axis| groups[axis].saturating_mul(program.workgroup_size[axis]))
            }
        };
        Ok((groups, launched))
    }
}

const NOTATIONS: &str = "\
Values:
  1.5             the value of a uniform
  1,2,3           these elements
  zeros:N         N zeros
  iota:N          0, 1, 2, …
  random:N:SEED   a fixed pseudo-random sequence: all bits of integers, floats from 0 to 1
  @file.npy       an array that numpy saved: little-endian, C order, exactly the type of the object
  @file.bin       the little-endian bytes of the elements

Targets:
  @file.npy       an array; it has the shape of the grid if that has as many elements
  @file.bin       the little-endian bytes of the elements
  @file.png       an image, as wide and high as the grid: u8 (grey, RGB or RGBA), u32 (0xAABBGGRR) or f32 (grey, 0 to 1)
  -               the values, on standard output

Example:
  vyre run examples/kernels/saxpy.vyre a=2 x=iota:8 y=1,1,1,1,1,1,1,1 --elements 8 --out y=-";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let directive = if args.replay { Some(Directive::read(&args.selection.file)?) } else { None };
    let directive = directive.as_ref();
    let subgroup_size = args.subgroup_size.or(directive.and_then(|directive| directive.subgroup_size));
    let registry = devices::registry(subgroup_size);
    registry.knows(args.device.as_deref())?;
    if let Some(request) = args.pipeline()? {
        return pipeline::run(&request, &registry, stdout);
    }
    let (source, program) = match directive {
        Some(directive) => directive.choice.read(&args.selection.file)?,
        None => args.selection.read()?,
    };
    let mut inputs = inputs(directive.map_or(&args.bindings, |directive| &directive.bindings), &program)?;
    let (groups, launched) = directive.map_or(&args.grid, |directive| &directive.grid).groups(&program)?;
    // The device checks this too, but need not be opened for nothing.
    bind(&program, &inputs.arguments())?;
    let outputs = Outputs::plan(&args.out, &program, &inputs, launched)?;

    let defaults = Limits::default();
    let fuel = args.fuel.or(directive.and_then(|directive| directive.fuel)).unwrap_or(defaults.fuel);
    let limits = Limits { fuel, deadline: args.timeout, ..defaults };
    let choice = registry.choose(args.device.as_deref(), Some(&program))?;
    if let Some(given) = subgroup_size
        && choice.device.capabilities().subgroup_size != Some(given)
    {
        return Err(Error::SubgroupSize { device: choice.name, given });
    }
    let start = Instant::now();
    let report = choice.device.execute(&program, Grid::Groups(groups), &mut inputs, limits);
    let (device, elapsed) = (choice.name, start.elapsed());
    devices::warn_of_damage(&registry);
    let run = Run { source, program: &program, device, groups, launched, elapsed, report: report? };

    let failure = failure(&run.report.outcome, limits, &run.source);
    if !args.json {
        show_trace(&run.report, stdout)?;
    }
    if failure.is_none() {
        outputs.save(&inputs)?;
    }
    match (args.json, failure) {
        (true, failure) => {
            let printed = if failure.is_none() { outputs.printed.as_slice() } else { &[] };
            writeln!(stdout, "{}", run.object(printed, &inputs)).map_err(Error::Stdout)?;
            failure.map_or(Ok(()), Err)
        }
        (false, Some(failure)) => Err(failure),
        (false, None) if args.out.is_empty() => show_summary(&program, &inputs, stdout),
        (false, None) => show_results(&outputs.printed, &inputs, stdout),
    }
}

// What is run.

impl Args {
    /// What is asked for, if it is about a pipeline.
    fn pipeline(&self) -> Result<Option<pipeline::Request<'_>>, Error> {
        let Some((source, pipeline)) = self.selection.choice.pipeline(&self.selection.file, self.budget)? else {
            return Ok(None);
        };
        let flags = [
            ("--replay", self.replay),
            ("--elements", self.grid.elements.is_some()),
            ("--grid", self.grid.grid.is_some()),
            ("--subgroup-size", self.subgroup_size.is_some()),
        ];
        if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
            return Err(Error::Flag { flag, about: "a pipeline" });
        }
        let defaults = Limits::default();
        let limits = Limits { fuel: self.fuel.unwrap_or(defaults.fuel), deadline: self.timeout, ..defaults };
        let (bindings, out, device) = (&self.bindings, &self.out, self.device.as_deref());
        Ok(Some(pipeline::Request { source, pipeline, bindings, out, device, limits, json: self.json }))
    }
}

pub(crate) fn inputs(bindings: &[(String, String)], program: &Validated<Program>) -> Result<Inputs, Error> {
    let mut inputs = bound(bindings, program)?;
    inputs.complete(program)?;
    Ok(inputs)
}

/// What the command line says, and nothing else.
pub(crate) fn bound(bindings: &[(String, String)], program: &Program) -> Result<Inputs, Error> {
    let mut inputs = Inputs::default();
    for (name, text) in bindings {
        let memory = program.memory_named(name).map(|id| &program.memory[id]);
        let bindable = memory.filter(|memory| matches!(memory.space, Space::Storage(_) | Space::Uniform));
        match (bindable, text.strip_prefix('@')) {
            (Some(memory), Some(path)) => inputs.bytes(program, name, data::read(Path::new(path), memory)?)?,
            (Some(_), None) => {
                let result = inputs.notation(program, name, text);
                result.map_err(|error| Error::Binding { name: name.clone(), error })?;
            }
            // Here the name is the error, whatever it is bound to.
            (None, _) => inputs.notation(program, name, text)?,
        }
    }
    Ok(inputs)
}

// What came of it.

struct Run<'p> {
    source: Source,
    program: &'p Validated<Program>,
    device: &'static str,
    groups: [u32; 3],
    launched: [u32; 3],
    elapsed: Duration,
    report: Report,
}

/// What a dispatch that did not complete is as an error.
pub(crate) fn failure(outcome: &Outcome, limits: Limits, source: &Source) -> Option<Error> {
    match *outcome {
        Outcome::Completed => None,
        Outcome::Trapped { code, invocation, span, count } => {
            Some(Error::Trapped { code, invocation, count, place: source.place(span) })
        }
        Outcome::OutOfFuel { span } => Some(Error::OutOfFuel { fuel: limits.fuel, place: source.place(span) }),
        Outcome::DeadlinePassed { span } => {
            Some(Error::TimedOut { timeout: limits.deadline.unwrap_or_default(), place: source.place(span) })
        }
    }
}

pub(crate) fn show_trace(report: &Report, stdout: &mut Stdout) -> Result<(), Error> {
    for line in &report.trace {
        writeln!(stdout, "[{}] {}", line.invocation, line.text).map_err(Error::Stdout)?;
    }
    match report.dropped_lines {
        0 => Ok(()),
        1 => writeln!(stdout, "(1 more line was dropped)").map_err(Error::Stdout),
        dropped => writeln!(stdout, "({dropped} more lines were dropped)").map_err(Error::Stdout),
    }
}

/// The values of results in JSON, by name.
pub(crate) fn outputs_object(printed: &[&Memory], inputs: &Inputs) -> Map<String, Value> {
    printed.iter().map(|memory| (memory.name.clone(), values(memory, inputs).map(number).collect())).collect()
}

impl Run<'_> {
    fn object(&self, printed: &[&Memory], inputs: &Inputs) -> Value {
        let trace: Vec<Value> =
            self.report.trace.iter().map(|line| json!({ "invocation": line.invocation, "text": line.text })).collect();
        json!({
            "program": self.program.name,
            "device": self.device,
            "grid": {
                "groups": self.groups,
                "workgroup_size": self.program.workgroup_size,
                "elements": self.launched,
            },
            "milliseconds": self.elapsed.as_secs_f64() * 1e3,
            "instructions": self.report.instructions,
            "outcome": self.outcome(),
            "trace": trace,
            "dropped_lines": self.report.dropped_lines,
            "outputs": outputs_object(printed, inputs),
        })
    }

    fn outcome(&self) -> Value {
        let (kind, span) = match self.report.outcome {
            Outcome::Completed => return json!({ "kind": "completed" }),
            Outcome::Trapped { span, .. } => ("trapped", span),
            Outcome::OutOfFuel { span } => ("out_of_fuel", span),
            Outcome::DeadlinePassed { span } => ("timed_out", span),
        };
        let place = self.source.place(span);
        let mut object = json!({
            "kind": kind,
            "line": place.as_ref().map(|place| place.line),
            "column": place.as_ref().map(|place| place.column),
        });
        if let Outcome::Trapped { code, invocation, count, .. } = self.report.outcome {
            object["code"] = code.into();
            object["invocation"] = invocation.into();
            object["count"] = count.into();
        }
        object
    }
}

/// `y: [f32; 1024] = 1.0, 2.0, …` for every result.
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

/// Values with commas between them.
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

/// A value in JSON, which has no infinities and NaNs: these become strings.
fn number(value: Literal) -> Value {
    let plain = value.plain();
    match value.ty {
        Type::Bool => (value.bits != 0).into(),
        Type::I32 => (value.bits as i32).into(),
        Type::U32 | Type::U64 => value.bits.into(),
        Type::I64 => (value.bits as i64).into(),
        // The shortest decimal, read as f64, is written with the same digits.
        Type::F32 | Type::F64 | Type::F16 => match plain.parse::<f64>() {
            Ok(number) if number.is_finite() => number.into(),
            _ => plain.into(),
        },
    }
}

// Notations of the command line.

fn sizes(text: &str) -> Result<[u32; 3], String> {
    let mut sizes = [1; 3];
    for (axis, part) in text.split(',').enumerate() {
        let size = sizes.get_mut(axis).ok_or("there are at most three dimensions")?;
        *size = part.trim().parse().map_err(|_| format!("`{part}` is not a size: sizes are integers below 2^32"))?;
    }
    Ok(sizes)
}

fn subgroup_size(text: &str) -> Result<u32, &'static str> {
    let size: u32 = text.parse().map_err(|_| "it is not a number")?;
    if size.is_power_of_two() && size <= 128 { Ok(size) } else { Err("it is not a power of two from 1 to 128") }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
