//! `vyre opt`: runs the optimizer on a program.
//!
//! Standard output, or the file of `--out`, carries the program only. Reports, timings and dumps go to standard error.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use vyre::explain::{measures, totals};
use vyre_foundation::ir::{Module, Program};
use vyre_foundation::optimizer::{
    self, Dump, Measures, Options, Pipeline, Profile, Registry, Report, Request, Verdict,
};
use vyre_foundation::run_line::count;
use vyre_foundation::{Validated, text, validate, wire};

use crate::error::Error;
use crate::print::{hex, save};
use crate::reproducer::{Reproducer, quoted, watch};
use crate::selection::Selection;
use crate::stdout::Stdout;
use crate::{outputs, terminal};

/// Optimize a program and print it
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Run these passes instead of the selected ones: once, `a,b`, or to a fixed point, `fixpoint(a,b)`
    #[arg(long, value_name = "PIPELINE", conflicts_with = "profile")]
    passes: Option<String>,
    /// Optimization profile
    #[arg(long, value_name = "NAME", default_value = Profile::Release.name(), value_parser = Profile::ALL.map(Profile::name))]
    profile: String,
    /// Leave out a pass
    #[arg(long, value_name = "PASS")]
    disable: Vec<String>,
    /// Stop after N changes, to bisect a miscompilation
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    bisect: Option<u64>,
    /// Validate the program after every pass, not only at the end
    #[arg(long)]
    validate: bool,
    /// Print the program after a pass, after `all` passes, or after those that `changed` it, to standard error
    #[arg(long, value_name = "PASS|all|changed")]
    print_after: Option<String>,
    /// Print the time of each pass to standard error
    #[arg(long)]
    timing: bool,
    /// Print cost and measures after each change to standard error
    #[arg(long)]
    report: bool,
    /// Print one JSON object with report, timing and the program as `text`, or as `hex` with --wire; with --out, the `file`
    #[arg(long)]
    json: bool,
    /// Print the binary form
    #[arg(long)]
    wire: bool,
    /// Output file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const NOTES: &str = "\
`vyre check --explain passes` lists the passes. Without --passes, they are selected by the shape of the program; `vyre explain` also uses
the recorded times of its dispatches. --report prints the pipeline in the syntax of --passes.

A pass that makes a program invalid is a bug: the exit code is 1, and a reproducer is written to the temporary folder.

Example:
  vyre opt examples/kernels/matmul.vyre --report --disable unroll_loops";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let target = outputs::target(args.out.as_deref())?;
    let (_, program) = args.selection.read()?;
    let pipeline = pipeline(args, &program)?;
    let shown = Shown::parse(args.print_after.as_deref())?;
    let options = Options {
        validate_each: args.validate || Options::default().validate_each,
        max_changes: args.bisect.map(|changes| usize::try_from(changes).unwrap_or(usize::MAX)),
        // A pipeline that does not converge is a warning, not an error.
        strict: false,
        dump: shown.dump(),
        ..Options::default()
    };
    let mut stderr = terminal::stderr();
    let mut show = |snapshot: optimizer::Snapshot<'_>| {
        if shown.shows(snapshot.pass) {
            let changed = if snapshot.changed { "" } else { ", unchanged" };
            let _ = writeln!(
                stderr,
                "// after {} in round {}{changed}\n{}",
                snapshot.pass,
                snapshot.iteration + 1,
                snapshot.program
            );
        }
    };
    let reproducer = || {
        let bisect = args.bisect.map(|changes| format!(" --bisect {changes}")).unwrap_or_default();
        let validate = if args.validate { " --validate" } else { "" };
        let command = format!("vyre opt {{}} --passes {}{bisect}{validate}", quoted(&pipeline.to_string()));
        let facts = vec![format!("passes: {pipeline}")];
        Reproducer { name: program.name(), command, facts, text: program.to_string() }
    };
    let (optimized, report) = watch(reproducer, || optimize(&program, &pipeline, &options, &mut show))?;

    let bytes =
        if args.wire { wire::encode(&Module::from(optimized.clone())) } else { optimized.to_string().into_bytes() };
    if args.json {
        let mut object = object(&optimized, &pipeline, &report);
        match &target {
            Some(target) => {
                target.write(&bytes)?;
                (object["file"], object["bytes"]) = (json!(args.out), bytes.len().into());
            }
            None if args.wire => object["hex"] = hex(&bytes).into(),
            None => object["text"] = String::from_utf8_lossy(&bytes).into(),
        }
        return writeln!(stdout, "{object}").map_err(Error::Stdout);
    }
    let mut said = String::new();
    if args.report {
        said += &describe(&pipeline, &report);
    }
    if args.timing {
        said += &timing(&report);
    }
    if let Some(pass) = report.not_converged {
        let rounds = report.iterations;
        let _ = writeln!(
            said,
            "warning: the passes did not reach a fixed point in {rounds} rounds; the last change was by `{pass}`"
        );
    }
    let _ = stderr.write_all(said.as_bytes());
    save(&bytes, target.as_ref(), stdout)
}

/// The pipeline of `--passes`, or the selected one, without disabled passes.
fn pipeline(args: &Args, program: &Validated<Program>) -> Result<Pipeline, Error> {
    let registry = Registry::standard();
    let mut pipeline = match &args.passes {
        Some(text) => Pipeline::parse(text, registry)?,
        None => {
            let request = Request { profile: profile(&args.profile), ..Request::default() };
            optimizer::plan(program, &request).pipeline
        }
    };
    for name in &args.disable {
        let disabled = registry.named(name)?.metadata.name;
        pipeline.passes.retain(|pass| pass.metadata.name != disabled);
    }
    Ok(pipeline)
}

/// Returns the profile of a name that clap has validated.
pub(crate) fn profile(name: &str) -> Profile {
    Profile::ALL.into_iter().find(|profile| profile.name() == name).expect("clap accepts only names of profiles")
}

/// Passes after which the program is printed.
enum Shown {
    Nothing,
    All,
    Changed,
    After(&'static str),
}

impl Shown {
    fn parse(text: Option<&str>) -> Result<Shown, Error> {
        Ok(match text {
            None => Shown::Nothing,
            Some("all") => Shown::All,
            Some("changed") => Shown::Changed,
            Some(name) => Shown::After(Registry::standard().named(name)?.metadata.name),
        })
    }

    fn dump(&self) -> Dump {
        match self {
            Shown::Nothing => Dump::None,
            Shown::All | Shown::After(_) => Dump::All,
            Shown::Changed => Dump::Changed,
        }
    }

    fn shows(&self, pass: &str) -> bool {
        match self {
            Shown::Nothing => false,
            Shown::All | Shown::Changed => true,
            Shown::After(name) => *name == pass,
        }
    }
}

/// Runs passes. If one breaks the program, writes a reproducer.
fn optimize(
    program: &Validated<Program>,
    pipeline: &Pipeline,
    options: &Options,
    observer: &mut dyn FnMut(optimizer::Snapshot<'_>),
) -> Result<(Validated<Program>, Report), Error> {
    let run = |options: &Options, observer: &mut dyn FnMut(optimizer::Snapshot<'_>)| {
        optimizer::run(program.clone(), pipeline, options, observer)
    };
    let error = match run(options, observer) {
        Ok(done) => return Ok(done),
        // Validation after each pass identifies the pass.
        Err(vyre_foundation::Error::PassBroke { .. }) if !options.validate_each => {
            let careful = Options { validate_each: true, dump: Dump::None, ..options.clone() };
            match run(&careful, &mut |_| {}) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    Err(match error {
        vyre_foundation::Error::PassBroke { ref pass, ref before, .. } => {
            let (before, pipeline) = match text::parse(before).and_then(validate::module) {
                Ok(_) => (before.clone(), pass.clone()),
                // An intermediate program may have accesses that are known to be out of bounds, which the validator rejects in files.
                Err(_) => (program.to_string(), pipeline.to_string()),
            };
            let error = Error::Broke { pass: pass.clone(), error: error.clone() };
            let command = format!("vyre opt {{}} --passes {} --validate", quoted(&pipeline));
            Reproducer { name: pass, command, facts: vec![format!("passes: {pipeline}")], text: before }.of(error)
        }
        other => other.into(),
    })
}

/// Short names of the measures, in their order.
const COLUMNS: [&str; 9] = ["nodes", "static", "instrs", "memory", "atomic", "flow", "live", "allocs", "heap"];

/// Text of `--report`: the pipeline, measures after each change, refused changes, and totals.
fn describe(pipeline: &Pipeline, report: &Report) -> String {
    let mut text = format!("pipeline: {pipeline}\n\n{:<22}{:>5}{:>9}", "after", "round", "cost");
    let row = |text: &mut String, name: &str, round: String, cost: u64, measures: &Measures| {
        let _ = write!(text, "{name:<22}{round:>5}{cost:>9}");
        for value in measures.values() {
            let _ = write!(text, "{value:>7}");
        }
        text.push('\n');
    };
    for column in COLUMNS {
        let _ = write!(text, "{column:>7}");
    }
    text.push('\n');
    row(&mut text, "(as written)", String::new(), report.cost_before, &report.before);
    for metric in report.metrics.iter().filter(|metric| metric.changed()) {
        row(&mut text, metric.pass, (metric.iteration + 1).to_string(), metric.cost, &metric.after);
    }
    row(&mut text, "(optimized)", String::new(), report.cost_after, &report.after);
    text.push('\n');
    for metric in &report.metrics {
        if let Verdict::Refused { before, after } = metric.verdict {
            let round = metric.iteration + 1;
            let _ = writeln!(
                text,
                "refused: {} in round {round} would have raised the cost from {before} to {after}",
                metric.pass
            );
        }
    }
    let _ = writeln!(text, "{}", totals(report));
    text
}

/// Executions, changes and total time of a pass.
#[derive(Clone, Copy, Default)]
struct Time {
    runs: usize,
    changes: usize,
    ns: u64,
}

fn times(report: &Report) -> BTreeMap<&'static str, Time> {
    let mut times: BTreeMap<&'static str, Time> = BTreeMap::new();
    for metric in report.metrics.iter().filter(|metric| metric.ran()) {
        let time = times.entry(metric.pass).or_default();
        time.runs += 1;
        time.changes += usize::from(metric.changed());
        time.ns += metric.runtime_ns;
    }
    times
}

/// Text of `--timing`, longest pass first.
fn timing(report: &Report) -> String {
    let mut times: Vec<(&str, Time)> = times(report).into_iter().collect();
    times.sort_by_key(|(_, time)| std::cmp::Reverse(time.ns));
    let total = times.iter().map(|(_, time)| time.ns).sum::<u64>();
    let mut text = format!("{:<24}{:>6}{:>9}{:>12}{:>8}\n", "pass", "runs", "changes", "time", "share");
    let mut row = |name: &str, time: Time| {
        let share = if total == 0 { 0.0 } else { time.ns as f64 / total as f64 * 100.0 };
        let micros = format!("{:.1} µs", time.ns as f64 / 1e3);
        let _ = writeln!(text, "{name:<24}{:>6}{:>9}{micros:>12}{share:>6.1} %", time.runs, time.changes);
    };
    for &(name, time) in &times {
        row(name, time);
    }
    let sum = |of: fn(&Time) -> usize| times.iter().map(|(_, time)| of(time)).sum();
    row("total", Time { runs: sum(|time| time.runs), changes: sum(|time| time.changes), ns: total });
    text
}

fn object(program: &Program, pipeline: &Pipeline, report: &Report) -> Value {
    let changes: Vec<Value> = report
        .metrics
        .iter()
        .filter(|metric| metric.changed())
        .map(|metric| {
            json!({
                "pass": metric.pass,
                "round": metric.iteration + 1,
                "cost": metric.cost,
                "before": measures(&metric.before),
                "after": measures(&metric.after),
            })
        })
        .collect();
    let refusals: Vec<Value> = report
        .metrics
        .iter()
        .filter_map(|metric| match metric.verdict {
            Verdict::Refused { before, after } => Some(json!({
                "pass": metric.pass,
                "round": metric.iteration + 1,
                "cost_before": before,
                "cost_after": after,
            })),
            Verdict::Skipped | Verdict::Unchanged | Verdict::Changed => None,
        })
        .collect();
    let timing: Vec<Value> = times(report)
        .into_iter()
        .map(|(pass, time)| json!({ "pass": pass, "runs": time.runs, "changes": time.changes, "nanoseconds": time.ns }))
        .collect();
    json!({
        "program": program.name(),
        "pipeline": pipeline.to_string(),
        "rounds": report.iterations,
        "not_converged": report.not_converged,
        "cost_before": report.cost_before,
        "cost_after": report.cost_after,
        "before": measures(&report.before),
        "after": measures(&report.after),
        "changes": changes,
        "refusals": refusals,
        "timing": timing,
    })
}

#[cfg(test)]
mod tests {
    use vyre_foundation::ir::PerInvocation;
    use vyre_foundation::optimizer::{Family, Metadata, Options, Pass, Phase, Pipeline};
    use vyre_foundation::{text, validate};

    use super::optimize;
    use crate::error::Error;

    /// A broken pass that deletes definitions of used values.
    static BREAKS: Pass = Pass {
        metadata: Metadata::new("breaks_everything", Phase::Cleanup, Family::Scalar),
        speculative: false,
        run: |program, _| {
            let body = program.body();
            let before = program.block(body).insts.len();
            let mut kept = program.block(body).insts.clone();
            kept.retain(|&inst| program.inst(inst).op != PerInvocation::GlobalIndex);
            program.block_mut(body).insts = kept;
            before != program.block(body).insts.len()
        },
    };

    #[test]
    fn a_pass_that_breaks_the_program_leaves_a_reproducer() {
        let source = "program p workgroup(1) {\n    write y: [u32]\n    %i = global_index\n    store y[%i], %i\n}";
        let program = || validate::program(text::parse(source).unwrap().programs.remove(0)).unwrap();
        let pipeline = Pipeline { passes: vec![&BREAKS], to_fixed_point: true };
        for validate_each in [false, true] {
            let options = Options { validate_each, ..Options::default() };
            let Err(error) = optimize(&program(), &pipeline, &options, &mut |_| {}) else { panic!("accepted") };
            assert_eq!((error.exit_code(), error.code()), (1, "O007"));
            let Error::Reproduced { error: broke, replay: Ok((path, command)) } = &error else { panic!("{error}") };
            assert!(matches!(&**broke, Error::Broke { pass, .. } if pass == "breaks_everything"));
            assert_eq!(*command, format!("vyre opt {} --passes breaks_everything --validate", path.display()));
            let contents = std::fs::read_to_string(path).unwrap();
            assert!(contents.starts_with(&format!("// {command}\n")), "{contents}");
            assert_eq!(text::parse(&contents), text::parse(source), "the reproducer is the input of the pass");
            std::fs::remove_file(path).unwrap();
        }
    }
}
