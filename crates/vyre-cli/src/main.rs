//! The `vyre` command.
//!
//! Each verb is a module with its arguments and one function. A verb writes its results to standard output. Its [`Error`] is printed
//! here, on standard error, and determines the exit code.

mod bench;
mod binding;
mod cache;
mod check;
mod compare;
mod config;
mod conformance;
#[cfg(unix)]
mod crash;
mod data;
mod devices;
mod doctor;
mod emit;
mod error;
mod explain;
mod generate;
mod graph;
mod interrupt;
mod job;
mod manual;
mod megakernel;
mod opt;
#[cfg(unix)]
mod out_of_memory;
mod outputs;
mod pipeline;
mod print;
mod progress;
mod report;
mod reproducer;
mod run;
mod selection;
mod shrink;
mod source;
mod stdout;
mod terminal;
mod trace;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Error;
use crate::stdout::Stdout;

/// The exit code of a bug in this command.
const INTERNAL: u8 = 70;

/// Check, print, optimize and run GPU kernels.
#[derive(Parser)]
#[command(name = "vyre", version, after_help = NOTES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const NOTES: &str = "\
First steps: `vyre doctor` tests the devices of this machine, and `vyre run --help` shows how to bind data to a kernel.

Defaults of flags come from VYRE_* variables and vyre.toml: `vyre config` lists the settings. With --json, results are JSON on
standard output, and errors are JSON on standard error. Colors and progress bars appear on terminals only; NO_COLOR disables colors.

Exit codes:
   0  success
   1  the kernel trapped, a result or a check failed, or a pass broke the program
   2  invalid command line, binding or data file
   3  invalid .vyre file
   4  no such device
   5  out of fuel, or past the deadline
  70  a bug in vyre
 130  interrupted
 143  ended by SIGTERM";

#[derive(Subcommand)]
enum Verb {
    Check(check::Args),
    Print(print::Args),
    Run(Box<run::Args>),
    Bench(Box<bench::Args>),
    Opt(Box<opt::Args>),
    Explain(explain::Args),
    Emit(emit::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Config(config::Args),
    Cache(cache::Args),
    Megakernel(megakernel::Args),
    Graph(graph::Args),
    Generate(generate::Args),
    Shrink(shrink::Args),
    Completions(manual::Completions),
    Man(manual::Pages),
}

fn main() -> ExitCode {
    #[cfg(unix)]
    out_of_memory::arm();
    quieten_drivers();
    ExitCode::from(guard(command))
}

/// Disables Mesa's device-selection layer for Vulkan where there is no desktop session, because the layer then prints an error. It stays
/// enabled if one of its variables is set. vyre selects the GPU itself.
#[allow(unsafe_code)]
fn quieten_drivers() {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let has_session = variable("XDG_RUNTIME_DIR").is_some_and(|folder| folder.is_absolute());
    let is_configured = ["MESA_VK_DEVICE_SELECT", "NODEVICE_SELECT"].into_iter().any(|name| variable(name).is_some());
    if cfg!(target_os = "linux") && !has_session && !is_configured {
        // SAFETY: no thread has been started yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Prints a panic as an internal error, and returns its exit code.
fn guard(body: impl FnOnce() -> u8 + std::panic::UnwindSafe) -> u8 {
    std::panic::set_hook(Box::new(|panic| {
        let _ = writeln!(
            terminal::stderr(),
            "error: a bug in vyre: {panic}\n  = help: please report it with this message, the command line and the input files"
        );
    }));
    std::panic::catch_unwind(body).unwrap_or(INTERNAL)
}

fn command() -> u8 {
    // Looked up before parsing, so that errors of the command line itself are JSON too.
    let json = std::env::args_os().any(|argument| argument == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            let error = match message.use_stderr() {
                true => Error::Usage { message },
                // `--help` and `--version` arrive as errors of clap.
                false => match message.print().and_then(|()| std::io::stdout().flush()) {
                    Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Error::Stdout(error),
                    _ => return 0,
                },
            };
            error.report(json);
            return error.exit_code();
        }
    };
    interrupt::listen();
    let mut stdout = Stdout::default();
    let result = match &cli.verb {
        Verb::Check(args) => check::run(args, &mut stdout),
        Verb::Print(args) => print::run(args, &mut stdout).map(|()| 0),
        Verb::Run(args) => trace::around([args.trace.as_deref(), None], || run::run(args, &mut stdout)).map(|()| 0),
        Verb::Opt(args) => opt::run(args, &mut stdout).map(|()| 0),
        Verb::Explain(args) => explain::run(args, &mut stdout).map(|()| 0),
        Verb::Emit(args) => emit::run(args, &mut stdout).map(|()| 0),
        Verb::Devices(args) => devices::run(args, &mut stdout).map(|()| 0),
        Verb::Bench(args) => bench::run(args, &mut stdout).map(|()| 0),
        Verb::Doctor(args) => doctor::run(args, &mut stdout),
        Verb::Cache(args) => cache::run(args, &mut stdout),
        Verb::Completions(args) => manual::completions(args, &mut stdout).map(|()| 0),
        Verb::Man(args) => manual::pages(args, &mut stdout).map(|()| 0),
        Verb::Config(args) => config::run(args, &mut stdout).map(|()| 0),
        Verb::Megakernel(args) => trace::around(args.files(), || megakernel::run(args, &mut stdout)).map(|()| 0),
        Verb::Graph(args) => {
            let files = [args.trace.as_deref(), args.html.as_deref()];
            trace::around(files, || graph::run(args, &mut stdout)).map(|()| 0)
        }
        Verb::Generate(args) => generate::run(args, &mut stdout).map(|()| 0),
        Verb::Shrink(args) => shrink::run(args, &mut stdout).map(|()| 0),
    };
    // Output precedes the error message.
    let flushed = stdout.flush().map_err(Error::Stdout);
    match result.and_then(|code| flushed.map(|()| code)) {
        Ok(code) => code,
        Err(error) => {
            error.report(json);
            error.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{INTERNAL, guard};

    #[test]
    fn a_panic_is_exit_code_70() {
        assert_eq!(guard(|| panic!("on purpose")), INTERNAL);
        assert_eq!(guard(|| 3), 3);
    }
}
