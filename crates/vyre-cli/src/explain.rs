//! `vyre explain`: why a program is compiled, or a pipeline planned, the way it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use vyre_cpu::Cpu;
use vyre_driver::{Device, Telemetry};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{MemId, Module, Program, Space};
use vyre_foundation::optimizer::cost::Roofline;
use vyre_foundation::optimizer::{self, Decision, Dump, Optimized, Options, Profile, Request};
use vyre_foundation::{Validated, text};

use crate::config::Settings;
use crate::error::Error;
use crate::job::bytes;
use crate::opt::{measures, profile, totals};
use crate::progress::Progress;
use crate::report::{self, History};
use crate::reproducer::{Reproducer, hashes, passes, quoted, watch, words};
use crate::selection::{Selection, assignment};
use crate::source::Source;
use crate::stdout::Stdout;
use crate::{devices, pipeline as pipelines, run as runs};

/// Explain how a program is compiled: which passes are selected and why, what they save, and what the program costs; or how a
/// pipeline is planned: what is fused and why not, and how much memory it takes
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// What a memory object of the kernel starts with, as for `vyre run`: only its length matters here
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    bindings: Vec<(String, String)>,
    /// What to select passes for, if not for release
    #[arg(long, value_name = "NAME", value_parser = Profile::ALL.map(Profile::name))]
    profile: Option<String>,
    /// Where a pipeline would run: `vyre devices` lists the devices
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The most memory that the buffers of a pipeline may take together
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    budget: Option<u64>,
    /// Also write an HTML page: the program after each pass, its estimated cost along the passes, and the emitted code
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
Objects of unknown length count as empty, so bind what decides about passes over memory. Every run records how long its dispatches
took, in the cache folder; all eligible passes are selected for a program that takes long.

Example:
  vyre explain examples/kernels/saxpy.vyre x=zeros:65536 y=zeros:65536";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let page = report::target(args.html.as_deref())?;
    if let Some((source, pipeline)) = args.selection.choice.pipeline(&args.selection.file, args.budget)? {
        if args.profile.is_some() {
            return Err(Error::Flag { flag: "--profile", about: "a pipeline" });
        }
        pipelines::bound(&args.bindings, &pipeline, &pipelines::interface(&pipeline)?)?;
        let (device, flags) = (args.device.as_deref(), args.flags());
        return pipelines::explain(&source, &pipeline, device, page.as_ref(), &flags, args.json, stdout);
    }
    if args.device.is_some() {
        return Err(Error::Flag { flag: "--device", about: "a program" });
    }
    let (source, program) = args.selection.read()?;
    args.selection.choice.leaves(&args.bindings)?;
    let inputs = runs::bound(&args.bindings, &program)?;
    let lengths = lengths(&inputs, &program);
    let registry = devices::registry(None)?;
    let (profile, options) = (args.profile.as_deref().map_or(Profile::Release, profile), Options::default());
    let reproducer = || {
        let (bindings, flags) = (words(&args.bindings), args.flags());
        let command = format!("vyre explain {{}} --profile {}{bindings}{flags}", profile.name());
        let (hints, lengths) = (Some(registry.telemetry().hints()), &lengths[..]);
        let request = Request { profile, hints, lengths, ..Request::default() };
        let facts = hashes(&inputs).map(|(_, fact)| fact).chain([passes(&program, &request)]).collect();
        let text = text::print(&Module::from(program.clone().into_inner()));
        Reproducer { name: &program.name, command, facts, text }
    };
    let progress = Progress::new("explaining", 0);
    let text = watch(reproducer, || {
        let history = page.as_ref().map(|_| History::new(&source, &program));
        let explained = Explained::new(&program, profile, options, &lengths, registry.telemetry(), history)?;
        if let Some(file) = &page {
            let what = json!({ "programs": [explained.page()?] });
            report::write(file, &program.name, &subtitle(&source, explained.profile.name()), what)?;
        }
        Ok(if args.json { format!("{}\n", explained.object()) } else { explained.text() })
    })?;
    drop(progress);
    stdout.write_all(text.as_bytes()).map_err(Error::Stdout)
}

impl Args {
    /// What it takes to explain a file in the same way, besides what is in it.
    fn flags(&self) -> String {
        let budget = self.budget.map(|bytes| format!(" --budget {bytes}")).unwrap_or_default();
        let page = self.html.as_deref().and_then(|file| std::path::absolute(file).ok());
        budget + &page.map(|file| format!(" --html {}", quoted(&file.display().to_string()))).unwrap_or_default()
    }
}

/// What a page is about, besides its title.
pub(crate) fn subtitle(source: &Source, what_for: &str) -> String {
    format!("{} · {what_for} · vyre {}", source.file, env!("CARGO_PKG_VERSION"))
}

/// Parts of a page about kernels that were made for a device, and are not in a file.
pub(crate) fn kernels(
    programs: &[Validated<Program>],
    device: &Device,
    telemetry: &Telemetry,
) -> Result<Vec<Value>, Error> {
    let kernel = |program: &Validated<Program>| {
        let text = text::print(&Module::from(program.clone().into_inner()));
        let source = Source { file: "generated kernel".into(), text, wire: false };
        // What is read has places in the text.
        let program = source.validate(source.parse()?)?.swap_remove(0);
        let history = Some(History::new(&source, &program));
        Explained::new(&program, device.profile(), device.options(), &[], telemetry, history)?.page()
    };
    programs.iter().map(kernel).collect()
}

/// How long the objects are that the command line says something about.
fn lengths(inputs: &Inputs, program: &Validated<Program>) -> Vec<(MemId, u64)> {
    let length = |(id, memory): (MemId, &vyre_foundation::ir::Memory)| match memory.space {
        Space::Storage(_) => {
            inputs.contents(&memory.name).map(|bytes| (id, (bytes.len() / memory.element.size()) as u64))
        }
        Space::Workgroup | Space::Private | Space::Uniform => None,
    };
    program.memory.iter().filter_map(length).collect()
}

/// What happened to a pass in all its executions.
#[derive(Clone, Copy, Default)]
struct Pass {
    runs: usize,
    changes: usize,
    refusals: usize,
    /// The measure that it reduced most in one execution, and by how much.
    saved: Option<(&'static str, u64)>,
}

/// What there is to say about how a program is compiled.
pub(crate) struct Explained<'a> {
    profile: Profile,
    before: &'a Program,
    optimized: Optimized,
    telemetry: &'a Telemetry,
    history: Option<History<'a>>,
    /// The reason why the device cpu has no machine code for the optimized program.
    fallback: Option<String>,
}

/// Compiles an optimized program for the device cpu, and returns the reason if that leaves it without machine code.
fn fallback(program: &Validated<Program>) -> Result<Option<String>, Error> {
    let cpu = Cpu { threads: Some(1), execution: Settings::load()?.isa.value, ..Cpu::default() };
    let kernel = Device::open(&cpu)?.as_written().compile(program)?;
    Ok(kernel.compilation().fallback.clone())
}

impl<'a> Explained<'a> {
    /// Optimizes a program, for objects of these lengths. A history follows the passes if there is going to be a page.
    pub(crate) fn new(
        program: &'a Validated<Program>,
        profile: Profile,
        options: Options,
        lengths: &[(MemId, u64)],
        telemetry: &'a Telemetry,
        mut history: Option<History<'a>>,
    ) -> Result<Explained<'a>, Error> {
        let options = Options { strict: false, dump: Dump::Changed, ..options };
        let request = Request { profile, hints: Some(telemetry.hints()), report: None, lengths, options };
        let plan = optimizer::plan(program, &request);
        let (optimized, report) = optimizer::run(program.clone(), &plan.pipeline, &request.options, &mut |snapshot| {
            if let Some(history) = &mut history {
                history.add(snapshot.program);
            }
        })?;
        let fallback = fallback(&optimized)?;
        let optimized = Optimized { program: optimized, decisions: plan.decisions, report };
        Ok(Explained { profile, before: program, optimized, telemetry, history, fallback })
    }

    /// All of it, with the program after each pass and the code that comes out.
    pub(crate) fn page(&self) -> Result<Value, Error> {
        let Some(history) = &self.history else { return Ok(Value::Null) };
        let mut page = history.object(&self.optimized.report, &self.object());
        let code = vyre_cpu::listing(&Arc::new(self.optimized.program.clone()), Settings::load()?.execution());
        let code = report::emitted("machine code", code.map_err(Error::from));
        #[cfg(not(feature = "wgpu"))]
        let emitted = [code];
        #[cfg(feature = "wgpu")]
        let emitted = {
            let shader = crate::emit::shader(&self.optimized.program, vyre_wgpu::Target::Wgsl.name());
            [report::emitted("WGSL", shader.map(|bytes| String::from_utf8_lossy(&bytes).into())), code]
        };
        page["emitted"] = json!(emitted);
        Ok(page)
    }

    fn passes(&self) -> BTreeMap<&'static str, Pass> {
        let mut passes: BTreeMap<&'static str, Pass> = BTreeMap::new();
        for metric in self.optimized.report.metrics.iter().filter(|metric| metric.ran()) {
            let pass = passes.entry(metric.pass).or_default();
            pass.runs += 1;
            pass.changes += usize::from(metric.changed());
            pass.refusals += usize::from(matches!(metric.verdict, optimizer::Verdict::Refused { .. }));
            if let Some((measure, by)) = metric.best_reduction()
                && pass.saved.is_none_or(|(_, most)| by > most)
            {
                pass.saved = Some((measure, by));
            }
        }
        passes
    }

    fn text(&self) -> String {
        let report = &self.optimized.report;
        let mut text = format!("{}, profile {}\n{}\n\n", self.before.name, self.profile.name(), self.hot());

        let passes = self.passes();
        let _ = writeln!(text, "{:<24}{:<44}{:<10}most saved at once", "pass", "selected?", "changes");
        for decision in &self.optimized.decisions {
            let pass = passes.get(decision.metadata.name).copied().unwrap_or_default();
            let changes = match (decision.selected, pass.changes, pass.refusals) {
                (false, ..) => String::new(),
                (true, 0, 0) => "none".into(),
                (true, 0, _) => "refused".into(),
                (true, changes, _) => changes.to_string(),
            };
            let saved = pass.saved.map(|(measure, by)| format!("{by} {}", measure.replace('_', " ")));
            let (name, why) = (decision.metadata.name, why(decision));
            let row = format!("{name:<24}{why:<44}{changes:<10}{}", saved.unwrap_or_default());
            let _ = writeln!(text, "{}", row.trim_end());
        }

        let _ = writeln!(text, "\ncost along the passes\n{:>9}  as written", report.cost_before);
        for metric in report.metrics.iter().filter(|metric| metric.changed()) {
            let _ = writeln!(text, "{:>9}  {}, round {}", metric.cost, metric.pass, metric.iteration + 1);
        }
        let _ = writeln!(text, "{}", totals(report));

        let _ = writeln!(
            text,
            "\n{:<22}{:>10}{:>14}{:>22}",
            "of one invocation", "bytes", "operations", "operations per byte"
        );
        for (name, program) in [("as written", self.before), ("optimized", &self.optimized.program)] {
            let roofline = Roofline::of(program);
            let intensity = roofline.intensity().map_or("-".into(), |intensity| format!("{intensity:.2}"));
            let _ = writeln!(text, "{name:<22}{:>10.1}{:>14.1}{intensity:>22}", roofline.bytes, roofline.operations);
        }
        if let Some(reason) = &self.fallback {
            let _ = writeln!(text, "\non the device cpu, the portable executor runs it: {reason}");
        }
        text
    }

    /// What is known of earlier dispatches, and what follows.
    fn hot(&self) -> String {
        let hints = self.telemetry.hints();
        let threshold = micros(hints.hot_ns());
        let Some(op) = self.before.entry_op() else { return "without a name, dispatches are not recorded".into() };
        match hints.get(op) {
            None => format!("no dispatch of `{op}` is recorded; from {threshold} on average, all eligible passes run"),
            Some(record) => {
                let (mean, most) = (micros(record.mean_ns()), micros(record.max_ns));
                let recorded = format!("{} recorded, {mean} on average, {most} at most", record.dispatches);
                match hints.is_hot(op) {
                    true => format!("`{op}` is hot: {recorded}; all eligible passes run"),
                    false => format!("`{op}` is cold: {recorded}; from {threshold} on, all eligible passes run"),
                }
            }
        }
    }

    fn object(&self) -> Value {
        let report = &self.optimized.report;
        let passes = self.passes();
        let decisions: Vec<Value> = self
            .optimized
            .decisions
            .iter()
            .map(|decision| {
                let pass = passes.get(decision.metadata.name).copied().unwrap_or_default();
                json!({
                    "pass": decision.metadata.name,
                    "selected": decision.selected,
                    "reason": format!("{:?}", decision.reason),
                    "why": why(decision),
                    "because_of": decision.because_of,
                    "priority": decision.priority,
                    "runs": pass.runs,
                    "changes": pass.changes,
                    "refusals": pass.refusals,
                    "saved": pass.saved.map(|(measure, by)| json!({ "measure": measure, "by": by })),
                })
            })
            .collect();
        let costs: Vec<Value> = report
            .metrics
            .iter()
            .filter(|metric| metric.changed())
            .map(|metric| json!({ "pass": metric.pass, "round": metric.iteration + 1, "cost": metric.cost }))
            .collect();
        let roofline = |program: &Program| {
            let roofline = Roofline::of(program);
            json!({ "bytes": roofline.bytes, "operations": roofline.operations, "intensity": roofline.intensity() })
        };
        let hints = self.telemetry.hints();
        let op = self.before.entry_op();
        let record = op.and_then(|op| hints.get(op)).map(|record| {
            json!({
                "dispatches": record.dispatches,
                "mean_ns": record.mean_ns(),
                "max_ns": record.max_ns,
                "total_bytes": record.total_bytes,
            })
        });
        json!({
            "program": self.before.name,
            "profile": self.profile.name(),
            "telemetry": {
                "file": self.telemetry.file().map(|file| file.display().to_string()),
                "operation": op,
                "hot": op.is_some_and(|op| hints.is_hot(op)),
                "hot_ns": hints.hot_ns(),
                "record": record,
            },
            "passes": decisions,
            "rounds": report.iterations,
            "not_converged": report.not_converged,
            "cost_before": report.cost_before,
            "cost_after": report.cost_after,
            "costs": costs,
            "measures": { "before": measures(&report.before), "after": measures(&report.after) },
            "roofline": { "before": roofline(self.before), "after": roofline(&self.optimized.program) },
            "fallback": self.fallback,
        })
    }
}

/// `yes: 61 nodes ≥ 12`
fn why(decision: &Decision) -> String {
    format!("{}: {}", if decision.selected { "yes" } else { "no" }, decision.describe())
}

fn micros(ns: u64) -> String {
    format!("{} µs", (ns as f64 / 1e3).round())
}
