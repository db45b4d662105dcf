//! `cargo xtask test`: everything that must pass, as an ordered list of steps. All of them run, whatever fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{root, tidy};

/// Says whether the step passed. What went wrong has been printed by then.
type Step = fn() -> bool;

const STEPS: &[(&str, Step)] = &[
    ("toolchain", toolchain),
    ("format", || passes(cargo("fmt").args(["--all", "--", "--check"]))),
    ("lint", || passes(cargo("clippy").args(["--workspace", "--all-targets", "--", "-D", "warnings"]))),
    // Documentation tests are included.
    ("test", || passes(cargo("test").args(["--workspace", "--no-fail-fast"]))),
    ("doc", || passes(cargo("doc").args(["--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))),
    ("tidy", tidy::run),
];

/// Runs the steps and prints a summary. Says whether all passed.
pub(crate) fn run() -> bool {
    let outcomes: Vec<(&str, bool, Duration)> = STEPS
        .iter()
        .map(|&(name, step)| {
            println!("\n=== {name} ===");
            let start = Instant::now();
            let passed = step();
            (name, passed, start.elapsed())
        })
        .collect();

    println!("\n=== summary ===");
    for (name, passed, time) in &outcomes {
        let result = if *passed { "ok" } else { "FAILED" };
        println!("{name:<10} {result:<6} {:>7.1} s", time.as_secs_f64());
    }
    outcomes.iter().all(|(_, passed, _)| *passed)
}

/// A minimal toolchain comes without rustfmt and clippy.
fn toolchain() -> bool {
    let complete = || ["fmt", "clippy"].iter().all(|tool| passes(cargo(tool).arg("--version").stderr(Stdio::null())));
    let install = || passes(Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]));
    let passed = complete() || (install() && complete());
    if !passed {
        eprintln!(
            "error: cargo has no rustfmt or clippy, and rustup could not add them: install both for this toolchain"
        );
    }
    passed
}

/// A command of the cargo that runs this.
fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).arg(command);
    cargo
}

fn passes(command: &mut Command) -> bool {
    command.status().map_or_else(
        |error| {
            eprintln!("error: cannot run {}: {error}", command.get_program().display());
            false
        },
        |status| status.success(),
    )
}
