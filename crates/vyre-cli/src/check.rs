//! `vyre check`: validation of files, explanations of rules, and runs with the sanitizers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use vyre_foundation::diagnostics::{Diagnostics, FAULTS, FaultInfo};
use vyre_foundation::ir::ops::{OpInfo, TABLE};
use vyre_foundation::ir::{Module, Pipeline, Program, SourceMap, Stats};
use vyre_foundation::optimizer::{Pass, Registry};
use vyre_foundation::run_line::{assignment, count};
use vyre_foundation::{Validated, text, validate};
use vyre_reference::Options;

use crate::binding::{Case, GridArgs};
use crate::config::{Settings, seconds};
use crate::error::Error;
use crate::print::Output;
use crate::progress::Progress;
use crate::reproducer::{Reproducer, hashes, replayable, watch};
use crate::source::Parsed;
use crate::stdout::{Stdout, counted};
use crate::{run, selection};

/// Validate files, explain rules, or run a kernel with the sanitizers
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("of_a_run").args(OF_A_RUN).multiple(true).requires("run"))]
pub(crate) struct Args {
    /// The .vyre files; with --run, one file and its bindings (NAME=VALUE)
    #[arg(required_unless_present = "explain")]
    files: Vec<PathBuf>,
    /// Run the kernel on the oracle, and report data races, out-of-bounds accesses and reads of uninitialized memory
    #[arg(long)]
    run: bool,
    /// Explain a rule, such as V030; `codes` lists the rules, `ops` the operations, `passes` the optimizer passes
    #[arg(long, value_name = "CODE", conflicts_with = "files")]
    explain: Option<String>,
    /// Print one JSON object per file, with its errors; with --explain, one object with the `text`
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "With --run")]
    choice: selection::Choice,
    #[command(flatten, next_help_heading = "With --run")]
    grid: GridArgs,
    /// Take bindings, grid and limits from the first `//@ run` line of the file
    #[arg(long, conflicts_with_all = ["elements", "grid", "set", "program"])]
    replay: bool,
    /// Maximum number of loop trips of all invocations together
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    fuel: Option<u64>,
    /// Deadline of the kernel
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    timeout: Option<Duration>,
    /// Treat warnings of the sanitizers as errors
    #[arg(long)]
    deny: bool,
}

/// Flags that require `--run`.
const OF_A_RUN: [&str; 8] = ["set", "program", "elements", "grid", "replay", "fuel", "timeout", "deny"];

/// Checks every file. The exit code is the highest of all errors.
pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<u8, Error> {
    if let Some(subject) = &args.explain {
        let output = Output { out: None, json: args.json };
        return output.save(explain(subject)?.as_bytes(), None, stdout).map(|()| 0);
    }
    if args.run {
        return sanitize(args, stdout);
    }
    let mut exit_code = 0;
    for path in &args.files {
        let result = checked(path);
        if args.json {
            writeln!(stdout, "{}", object(path, &result)).map_err(Error::Stdout)?;
        }
        match result {
            Ok(module) if !args.json => {
                let lines =
                    module.programs.iter().map(|program| summary(program)).chain(module.pipelines.iter().map(outline));
                for line in lines {
                    writeln!(stdout, "{}: {line}", path.display()).map_err(Error::Stdout)?;
                }
            }
            Ok(_) => {}
            Err(error) => {
                if !args.json {
                    stdout.flush().map_err(Error::Stdout)?;
                    error.report(false);
                }
                exit_code = exit_code.max(error.exit_code());
            }
        }
    }
    Ok(exit_code)
}

/// Runs one kernel with the sanitizers. The exit code is 1 if there are findings.
fn sanitize(args: &Args, stdout: &mut Stdout) -> Result<u8, Error> {
    let mut words = args.files.iter();
    let file = words.next().expect("clap asks for a file");
    let bindings = words.map(|word| {
        assignment(&word.to_string_lossy())
            .map_err(|reason| Error::NotABinding { text: word.display().to_string(), reason: reason.to_string() })
    });
    let bindings = bindings.collect::<Result<Vec<_>, Error>>()?;
    if args.replay
        && let Some((name, _)) = bindings.first()
    {
        return Err(Error::NotABinding {
            text: name.clone(),
            reason: "--replay takes all bindings from the file".into(),
        });
    }
    let case = Case::of(Parsed::read(file)?, args.replay, &args.choice, &bindings, &args.grid)?;
    let Case { source, program, bindings, inputs, arguments, groups, subgroup_size: lanes, .. } = case;
    let limits = Settings::load()?.limits(args.fuel.or(case.fuel), args.timeout);
    let subgroup_size = lanes.unwrap_or(Options::default().subgroup_size);
    let options = Options { limits, subgroup_size };
    let reproducer = || {
        let timeout = args.timeout.map(|timeout| format!(" --timeout {}", timeout.as_secs_f64())).unwrap_or_default();
        let command = format!("vyre check --run {{}} --replay{timeout}");
        let facts = std::iter::once("device reference, with the sanitizers; passes: none".into());
        let facts = facts.chain(hashes(&inputs).map(|(_, fact)| fact)).collect();
        let text = replayable(&program, groups, limits.fuel, lanes, &bindings, &inputs);
        Reproducer { name: program.name(), command, facts, text }
    };
    let progress = Progress::new("checking", 0);
    let mut buffers = inputs.buffers.clone();
    let (report, findings) =
        watch(reproducer, || Ok(vyre_reference::sanitize(&program, groups, &arguments, &mut buffers, &options)?))?;
    drop(progress);
    let failure = run::failure(&report.outcome, limits, None, &source);
    let counted = findings.iter().filter(|finding| args.deny || !finding.fault.is_warning()).count();
    if args.json {
        let findings: Vec<Value> = findings
            .iter()
            .map(|finding| {
                let location = source.location(finding.span);
                json!({
                    "code": finding.fault.code(),
                    "warning": finding.fault.is_warning(),
                    "message": finding.fault.to_string(),
                    "line": location.as_ref().map(|location| location.line),
                    "column": location.as_ref().map(|location| location.column),
                    "help": finding.fault.help(),
                })
            })
            .collect();
        let object = json!({ "program": program.name(), "instructions": report.instructions, "findings": findings });
        writeln!(stdout, "{object}").map_err(Error::Stdout)?;
    } else if let Some(findings) = Diagnostics::from_list(findings) {
        stdout.write_all(findings.render(program.sources()).as_bytes()).map_err(Error::Stdout)?;
    } else if failure.is_none() {
        writeln!(stdout, "{}: nothing was found", program.name()).map_err(Error::Stdout)?;
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(u8::from(counted > 0)),
    }
}

fn checked(path: &Path) -> Result<Validated<Module>, Error> {
    let (source, module) = Parsed::read(path)?.validate()?;
    if module.programs.is_empty() {
        return Err(Error::NoPrograms { file: source.file });
    }
    Ok(module)
}

/// `pipeline soften: 3 dispatches, 4 buffers`
fn outline(pipeline: &Pipeline) -> String {
    let (dispatches, buffers) = (pipeline.dispatches.len(), pipeline.buffers.len());
    let plural = if dispatches == 1 { "" } else { "es" };
    format!("pipeline {}: {dispatches} dispatch{plural}, {}", pipeline.name, counted(buffers, "buffer"))
}

/// `saxpy, workgroup 256 x 1 x 1: 11 instructions, …`
fn summary(program: &Program) -> String {
    let [x, y, z] = program.workgroup_size();
    let mut text = format!("{}, workgroup {x} x {y} x {z}", program.name());
    if let Some([x, y, z]) = program.launch() {
        let _ = write!(text, ", launch {x} x {y} x {z}");
    }
    let Stats {
        nodes: _,
        instructions,
        memory_ops,
        atomic_ops,
        control_flow_ops,
        top_level_regions,
        static_storage_bytes,
        register_pressure,
    } = program.stats();
    let _ = write!(
        text,
        ": {instructions} instructions ({memory_ops} memory, {atomic_ops} atomic, {control_flow_ops} control flow), \
         {top_level_regions} regions, {static_storage_bytes} static bytes, {register_pressure} live values"
    );
    text
}

fn object(path: &Path, result: &Result<Validated<Module>, Error>) -> Value {
    let program = |program: &Validated<Program>| {
        let stats = program.stats();
        json!({
            "name": program.name(),
            "workgroup_size": program.workgroup_size(),
            "launch": program.launch(),
            "stats": {
                "nodes": stats.nodes,
                "instructions": stats.instructions,
                "memory_ops": stats.memory_ops,
                "atomic_ops": stats.atomic_ops,
                "control_flow_ops": stats.control_flow_ops,
                "top_level_regions": stats.top_level_regions,
                "static_storage_bytes": stats.static_storage_bytes,
                "register_pressure": stats.register_pressure,
            },
        })
    };
    let pipeline = |pipeline: &Pipeline| {
        json!({
            "name": pipeline.name,
            "dispatches": pipeline.dispatches.len(),
            "buffers": pipeline.buffers.len(),
        })
    };
    json!({
        "file": path.display().to_string(),
        "ok": result.is_ok(),
        "programs": result.iter().flat_map(|module| &module.programs).map(program).collect::<Vec<_>>(),
        "pipelines": result.iter().flat_map(|module| &module.pipelines).map(pipeline).collect::<Vec<_>>(),
        "errors": result.as_ref().err().map(Error::objects).unwrap_or_default(),
    })
}

// Explanations.

fn explain(subject: &str) -> Result<String, Error> {
    match subject {
        "ops" => Ok(TABLE.iter().map(operation).collect()),
        "passes" => Ok(Registry::standard().schedule_all().into_iter().map(pass).collect()),
        "codes" => Ok(FAULTS.iter().map(|fault| format!("{}  {}\n", fault.code, fault.doc.trim())).collect()),
        code => match FAULTS.iter().find(|fault| fault.code.eq_ignore_ascii_case(code)) {
            Some(fault) => Ok(rule(fault)),
            None => Err(Error::UnknownRule { code: code.into() }),
        },
    }
}

/// A line of `--explain passes`, which lists passes in the order in which they run.
fn pass(pass: &Pass) -> String {
    let metadata = &pass.metadata;
    let mut text =
        format!("{:<24}{:<18}{:<12}", metadata.name, format!("{:?}", metadata.phase), format!("{:?}", metadata.family));
    let capabilities = metadata.requires_caps.iter().map(|capability| capability.name());
    let required: Vec<&str> = metadata.requires.iter().copied().chain(capabilities).collect();
    if !required.is_empty() {
        let _ = write!(text, "requires {}", required.join(", "));
    }
    format!("{}\n", text.trim_end())
}

fn rule(fault: &FaultInfo) -> String {
    let mut explained = format!("{}: {}\n", fault.code, fault.doc.trim());
    let Some(example) = fault.example else { return explained };
    explained += "\nExample that breaks the rule:\n\n";
    for line in example.lines() {
        let _ = writeln!(explained, "    {line}");
    }
    explained += "\nError of `vyre check`:\n\n";
    let result = text::parse(example).and_then(validate::module);
    if let Err(vyre_foundation::Error::Text(diagnostics) | vyre_foundation::Error::Invalid(diagnostics)) = result {
        for line in diagnostics.render(&SourceMap::of_text("example.vyre", example)).trim_end().lines() {
            let _ = writeln!(explained, "{}", format!("    {line}").trim_end());
        }
    }
    explained
}

/// An entry of `--explain ops`: syntax, types and meaning of an operation.
fn operation(row: &OpInfo) -> String {
    let (written, types) = row.written();
    let types = if types.is_empty() { types } else { format!("  ({types})") };
    format!("{written}{types}\n    {}\n", row.doc.trim())
}
