//! `vyre shrink`: test-case reduction of programs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use vyre_driver::PrivateFolder;
use vyre_foundation::ir::{Module, Program};
use vyre_foundation::run_line::RunLine;
use vyre_foundation::{text, wire};
use vyre_testkit::shrink;

use crate::error::Error;
use crate::interrupt::Unfinished;
use crate::outputs::Target;
use crate::print::Output;
use crate::progress::Progress;
use crate::reproducer::quoted;
use crate::selection::Selection;
use crate::source::Source;
use crate::stdout::Stdout;

/// Reduce a program while a command succeeds
#[derive(clap::Args)]
#[command(after_help = CONVENTION)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Shell command that exits with 0 for the original program and for every accepted candidate
    #[arg(long = "while", value_name = "CMD")]
    command: String,
    #[command(flatten)]
    output: Output,
}

const CONVENTION: &str = "\
{} in the command is replaced by the path of a candidate, or the path is appended if there is no {}. Candidates are valid programs in the
format of the file (text or binary). Their `//@ run` lines bind the remaining objects, so that `vyre run --replay` works.
A candidate may run much longer than the original: limit it with `timeout`, or with --fuel of `vyre run`.

Example, for two devices with different results:
  vyre shrink bad.vyre --out small.vyre --while 'vyre run {} --replay --compare-devices cpu,reference; test $? = 1'";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let target = args.output.target()?;
    let (source, program) = args.selection.read()?;
    let folder = folder()?;
    let name = args.selection.file.file_name().unwrap_or_default();
    let candidate = folder.0.join(name);
    let holds = |program: &Program| -> Result<ExitStatus, Error> {
        Target::find(&candidate)?.write(&contents(program, &source))?;
        execute(&args.command, &candidate)
    };
    let status = holds(&program)?;
    if !status.success() {
        return Err(Error::DoesNotHold { file: source.file.clone(), status: status.to_string() });
    }

    let progress = Progress::new("shrinking", 0);
    let mut failure = None;
    let (mut tried, mut taken) = (0u64, program.stats().nodes);
    let small = shrink(&program, &mut |program| {
        if failure.is_some() {
            return false;
        }
        let success = match holds(program) {
            Ok(status) => status.success(),
            Err(error) => {
                failure = Some(error);
                false
            }
        };
        tried += 1;
        if success {
            taken = program.stats().nodes;
        }
        progress.set_message(format!("{taken} instructions after {tried} candidates"));
        success
    });
    drop(progress);
    match failure {
        Some(error) => Err(error),
        None => args.output.save(&contents(&small, &source), target.as_ref(), stdout),
    }
}

/// Encodes a candidate in the format of the original file.
fn contents(program: &Program, source: &Source) -> Vec<u8> {
    let module = Module::from(program);
    if source.wire {
        return wire::encode(&module);
    }
    let mut text = text::print(&module);
    for line in RunLine::of_file(&source.text).filter_map(|arguments| kept(arguments, program)) {
        let _ = writeln!(text, "{line}");
    }
    text.into_bytes()
}

/// Restricts a run line to the objects of a smaller program. Returns `None` if the line runs another program.
fn kept(arguments: &str, program: &Program) -> Option<RunLine> {
    let mut line = RunLine::parse(arguments).ok()?;
    let is_constant = |name: &str| program.constants().values().any(|constant| constant.name == name);
    let is_object = |name: &str| program.memory_named(name).is_some();
    line.constants.retain(|(name, _)| is_constant(name) || is_object(name));
    line.bindings.retain(|(name, _)| is_object(name));
    line.program.as_ref().is_none_or(|name| *name == program.name()).then_some(line)
}

/// Runs the command for a file, without output.
fn execute(command: &str, file: &Path) -> Result<ExitStatus, Error> {
    let quoted = quoted(&file.display().to_string());
    let line = if command.contains("{}") { command.replace("{}", &quoted) } else { format!("{command} {quoted}") };
    let mut shell = if cfg!(windows) { Command::new("cmd") } else { Command::new("sh") };
    let shell = shell.arg(if cfg!(windows) { "/C" } else { "-c" }).arg(line);
    let shell = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().map_err(|error| Error::Spawn { command: command.into(), error })
}

/// Creates a private temporary folder for candidates.
fn folder() -> Result<Unfinished, Error> {
    const PREFIX: &str = "vyre-shrink-";
    let create = || PrivateFolder::temporary(PREFIX).map(|folder| (folder.path().to_owned(), ()));
    match Unfinished::create(create) {
        Ok((folder, ())) => Ok(folder),
        Err(error) => Err(Error::Unwritable { path: std::env::temp_dir().join(PREFIX), error }),
    }
}
