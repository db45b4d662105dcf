//! Soak campaigns with a configurable duration: `cargo xtask soak CAMPAIGN …` builds this in release mode and runs it.

mod deadline;
mod diff;
mod math;

use std::process::ExitCode;

use clap::Parser;

/// Search for bugs for a given time
#[derive(Parser)]
#[command(bin_name = "cargo xtask soak")]
enum Campaign {
    Deadline(deadline::Args),
    Diff(diff::Args),
    Math(math::Args),
}

fn main() -> ExitCode {
    let found_nothing = match Campaign::parse() {
        Campaign::Deadline(args) => deadline::run(&args),
        Campaign::Diff(args) => diff::run(&args),
        Campaign::Math(args) => math::run(&args),
    };
    if found_nothing { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
