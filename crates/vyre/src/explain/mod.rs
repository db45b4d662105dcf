//! Optimization reports: selected passes with reasons, the program after each pass, its estimated cost, and the emitted code.
//!
//! `saxpy::explain_html("saxpy.html")` writes the page of a kernel; [`html`] is for programs made with the builder. The command `vyre
//! explain` prints an [`Explanation`] of a file.

mod diff;
mod history;
mod page;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};
use vyre_driver::Telemetry;
use vyre_foundation::ir::{MemId, Program};
use vyre_foundation::optimizer::cost::Roofline;
use vyre_foundation::optimizer::{
    self, Decision, Dump, Measures, Optimized, Options, Profile, Report, Target, Verdict,
};
use vyre_foundation::{Validated, text, validate};

use crate::Error;
use crate::device::{registry, validated};
use history::History;

pub use page::page;

/// Renders a self-contained HTML page about a program: the program after each pass, the cost along the passes, and the emitted code.
///
/// ```
/// use vyre::{build, explain};
///
/// # fn main() -> Result<(), vyre::Error> {
/// let program = build::kernel("double", [64, 1, 1], |k| {
///     let y = k.read_write::<f32>("y");
///     let i = k.global_index();
///     y.store(i, y.load(i) * 2.0f32);
/// })?;
/// assert!(explain::html(&program)?.starts_with("<!DOCTYPE html>"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The program is invalid, or the device `cpu` cannot be opened.
pub fn html(program: &Program) -> Result<String, Error> {
    let (source, program) = Source::printed(&validated(program.clone())?)?;
    html_of(&program, &source)
}

/// Writes the page of a Rust kernel.
#[doc(hidden)]
pub fn __kernel(program: &Program, source: Option<Source>, path: &Path) -> Result<(), Error> {
    let html = match source {
        Some(source) => html_of(&validated(program.clone())?, &source)?,
        None => html(program)?,
    };
    std::fs::write(path, html).map_err(|error| Error::Write { path: path.into(), reason: error.to_string() })
}

fn html_of(program: &Validated<Program>, source: &Source) -> Result<String, Error> {
    let registry = registry();
    let request = Request::new(registry.telemetry());
    let explanation = Explanation::new(program, &request, Some(source))?;
    let views = json!({ "programs": [explanation.view()] });
    Ok(page(program.name(), &source.subtitle(request.profile.name()), views))
}

/// Source text of a program.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path of the file.
    pub file: String,
    /// The text, or the relevant part of it.
    pub text: String,
    /// Line of the file at which the text begins, from 1.
    pub first_line: u32,
}

impl Source {
    /// Prints a program and parses the text again, so that the spans of the returned program are positions in the printed text.
    ///
    /// # Errors
    /// The program is nested deeper than the parser accepts.
    pub fn printed(program: &Validated<Program>) -> Result<(Source, Validated<Program>), Error> {
        let text = program.to_string();
        let program = validate::module(text::parse(&text)?)?.programs[0].clone();
        Ok((Source { file: "generated kernel".into(), text, first_line: 1 }, program))
    }

    /// Subtitle of a page: the file, the purpose of the program, and the version.
    pub fn subtitle(&self, purpose: &str) -> String {
        let line = if self.first_line > 1 { format!(":{}", self.first_line) } else { String::new() };
        format!("{}{line} · {purpose} · vyre {}", self.file, env!("CARGO_PKG_VERSION"))
    }
}

/// Inputs of the optimizer.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Optimization profile.
    pub profile: Profile,
    /// Device that the program is optimized for.
    pub target: Target,
    /// Lengths of memory objects. Objects of unknown length count as empty.
    pub lengths: &'a [(MemId, u64)],
    /// Records of earlier dispatches.
    pub telemetry: &'a Telemetry,
    /// Instruction set of the machine code.
    #[cfg(feature = "cpu")]
    pub execution: vyre_cpu::Execution,
}

impl<'a> Request<'a> {
    /// Creates a request of the profile `release` for this processor, with objects of unknown length.
    pub fn new(telemetry: &'a Telemetry) -> Request<'a> {
        Request {
            profile: Profile::Release,
            target: Target::default(),
            lengths: &[],
            telemetry,
            #[cfg(feature = "cpu")]
            execution: vyre_cpu::Execution::best(),
        }
    }
}

/// Compiles an optimized program for the device `cpu`, and returns the reason if there is no machine code.
#[cfg(feature = "cpu")]
fn fallback(program: &Validated<Program>, request: &Request<'_>) -> Result<Option<String>, Error> {
    let execution = Some(request.execution);
    let cpu = vyre_cpu::Cpu { threads: Some(1), execution, ..vyre_cpu::Cpu::default() };
    let kernel = vyre_driver::Device::open(&cpu)?.as_written().compile_for(program, request.lengths)?;
    Ok(kernel.compilation().fallback.clone())
}

/// Totals of a pass over all rounds.
#[derive(Clone, Copy, Default)]
struct Pass {
    runs: usize,
    changes: usize,
    refusals: usize,
    /// The largest reduction of a measure in one round.
    saved: Option<(&'static str, u64)>,
}

/// Pass selection with reasons, and the effects of each pass. Its `Display` is the output of `vyre explain`.
pub struct Explanation<'a> {
    profile: Profile,
    before: &'a Program,
    optimized: Optimized,
    telemetry: &'a Telemetry,
    history: Option<History<'a>>,
    /// Reason why the device `cpu` has no machine code for the optimized program.
    fallback: Option<String>,
    #[cfg(feature = "cpu")]
    execution: vyre_cpu::Execution,
}

impl<'a> Explanation<'a> {
    /// Optimizes a program. With a source, records the text after each pass for the [view](Explanation::view).
    ///
    /// # Errors
    /// A pass fails, which is a bug in vyre, or the device `cpu` cannot be opened.
    pub fn new(
        program: &'a Validated<Program>,
        request: &Request<'a>,
        source: Option<&'a Source>,
    ) -> Result<Explanation<'a>, Error> {
        let Request { profile, target, lengths, telemetry, .. } = *request;
        let mut history = source.map(|source| History::new(source, program));
        let options = Options { dump: Dump::Changed, ..Options::default() };
        let hints = Some(telemetry.hints());
        let request_of_passes = optimizer::Request { profile, target, hints, lengths, ..Default::default() };
        let plan = optimizer::plan(program, &request_of_passes);
        let (optimized, report) = optimizer::run(program.clone(), &plan.pipeline, &options, &mut |snapshot| {
            if let Some(history) = &mut history {
                history.add(snapshot.program);
            }
        })?;
        Ok(Explanation {
            profile,
            before: program,
            #[cfg(feature = "cpu")]
            fallback: fallback(&optimized, request)?,
            #[cfg(not(feature = "cpu"))]
            fallback: None,
            optimized: Optimized { program: optimized, decisions: plan.decisions, report },
            telemetry,
            history,
            #[cfg(feature = "cpu")]
            execution: request.execution,
        })
    }

    /// Returns the view of a [page], with the program after each pass and the emitted code; `null` without a source.
    pub fn view(&self) -> Value {
        let Some(history) = &self.history else { return Value::Null };
        let mut view = history.object(&self.optimized.report, &self.json());
        view["emitted"] = Value::Array(Vec::from([
            #[cfg(feature = "wgpu")]
            page::emitted("WGSL", crate::emit::shader(&self.optimized.program)),
            #[cfg(feature = "cpu")]
            page::emitted("machine code", crate::emit::listing(&self.optimized.program, self.execution)),
        ]));
        view
    }

    fn passes(&self) -> BTreeMap<&'static str, Pass> {
        let mut passes: BTreeMap<&'static str, Pass> = BTreeMap::new();
        for metric in self.optimized.report.metrics.iter().filter(|metric| metric.ran()) {
            let pass = passes.entry(metric.pass).or_default();
            pass.runs += 1;
            pass.changes += usize::from(metric.changed());
            pass.refusals += usize::from(matches!(metric.verdict, Verdict::Refused { .. }));
            if let Some((measure, by)) = metric.best_reduction()
                && pass.saved.is_none_or(|(_, most)| by > most)
            {
                pass.saved = Some((measure, by));
            }
        }
        passes
    }

    /// Describes the recorded dispatches of the program: count, times, and whether they make it hot.
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

    /// Returns the object that `vyre explain --json` prints.
    pub fn json(&self) -> Value {
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
            "program": self.before.name(),
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

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.optimized.report;
        writeln!(f, "{}, profile {}\n{}\n", self.before.name(), self.profile.name(), self.hot())?;

        let passes = self.passes();
        writeln!(f, "{:<24}{:<9}{:<24}decision", "pass", "changes", "largest reduction")?;
        for decision in &self.optimized.decisions {
            let pass = passes.get(decision.metadata.name).copied().unwrap_or_default();
            let changes = match (decision.selected, pass.changes, pass.refusals) {
                (false, ..) => String::new(),
                (true, 0, 0) => "none".into(),
                (true, 0, _) => "refused".into(),
                (true, changes, _) => changes.to_string(),
            };
            let saved = pass.saved.map(|(measure, by)| format!("{by} {}", measure.replace('_', " ")));
            let (name, saved) = (decision.metadata.name, saved.unwrap_or_default());
            writeln!(f, "{name:<24}{changes:<9}{saved:<24}{}", why(decision))?;
        }

        writeln!(f, "\ncost along the passes\n{:>9}  as written", report.cost_before)?;
        for metric in report.metrics.iter().filter(|metric| metric.changed()) {
            writeln!(f, "{:>9}  {}, round {}", metric.cost, metric.pass, metric.iteration + 1)?;
        }
        writeln!(f, "{}", totals(report))?;

        writeln!(f, "\n{:<22}{:>10}{:>14}{:>22}", "per invocation", "bytes", "operations", "operations per byte")?;
        for (name, program) in [("as written", self.before), ("optimized", &self.optimized.program)] {
            let roofline = Roofline::of(program);
            let intensity = roofline.intensity().map_or("-".into(), |intensity| format!("{intensity:.2}"));
            writeln!(f, "{name:<22}{:>10.1}{:>14.1}{intensity:>22}", roofline.bytes, roofline.operations)?;
        }
        if let Some(reason) = &self.fallback {
            writeln!(f, "\nno machine code: the device cpu uses the portable executor: {reason}")?;
        }
        Ok(())
    }
}

/// `selected: 61 nodes ≥ 12`
fn why(decision: &Decision) -> String {
    format!("{}: {}", if decision.selected { "selected" } else { "not selected" }, decision.describe())
}

fn micros(ns: u64) -> String {
    format!("{} µs", (ns as f64 / 1e3).round())
}

/// Formats cost, changes and rounds of an optimizer run in one line.
pub fn totals(report: &Report) -> String {
    let (before, after) = (report.cost_before, report.cost_after);
    let share = if before == 0 { 0.0 } else { (after as f64 - before as f64) / before as f64 * 100.0 };
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let (changes, rounds) = (report.changes(), report.iterations);
    format!(
        "cost {before} → {after} ({share:+.1} %), {changes} change{} in {rounds} round{}",
        plural(changes),
        plural(rounds)
    )
}

/// Returns the measures of a program as a JSON object.
pub fn measures(measures: &Measures) -> Map<String, Value> {
    let names = Measures::NAMES.into_iter().map(str::to_owned);
    names.zip(measures.values().map(Value::from)).collect()
}
