//! Benchmarks: ours and a baseline in the same process and run, alternating, best of N.
//!
//! `cargo xtask bench SUITE [NAME] [--json] [--quick]` builds this in release and runs it.

mod kernels;
mod line;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask bench SUITE [NAME] [--json] [--quick]

NAME: only the lines whose name contains it

suites:
  kernels   the example kernels on the cpu device, against plain Rust and against the oracle";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let unknown = arguments
        .iter()
        .find(|argument| argument.starts_with('-') && !matches!(argument.as_str(), "--json" | "--quick"));
    let suites: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let only = suites.get(1).map_or(String::new(), |name| (*name).clone());
    let report = line::Report { json: flag("--json"), quick: flag("--quick"), only };
    match (unknown, suites.as_slice()) {
        (None, [suite, ..]) if suite.as_str() == "kernels" && suites.len() <= 2 => match kernels::run(&report) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error[{}]: {error}\n  = help: {}", error.code(), error.help());
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
