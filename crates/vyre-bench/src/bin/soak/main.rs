//! Tests that take minutes or hours. `cargo xtask soak WHAT …` builds this for the processor it runs on, and runs it.

mod math;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask soak", about = "Tests that take minutes or hours")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// How exact the math library is: over all operands, or many pairs of them
    Math(math::Args),
}

fn main() -> ExitCode {
    let passed = match Args::parse().what {
        What::Math(args) => math::run(&args),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
