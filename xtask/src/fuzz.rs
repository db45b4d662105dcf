//! `cargo xtask fuzz`: coverage-guided fuzzing with cargo-fuzz, on stable Rust without sanitizers.

use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use crate::root;
use crate::test::{cargo, passes, quiet};

/// Fuzz targets; `fuzz/src/lib.rs` describes them.
pub(crate) const TARGETS: [&str; 3] = ["wire", "text", "lower"];

/// Writes the seed corpus, and runs a target until the time is over or an input fails. Returns true if no input failed.
pub(crate) fn run(target: &str, seconds: u32) -> bool {
    if !TARGETS.contains(&target) {
        eprintln!("error: there is no fuzz target `{target}`; the targets are {}", TARGETS.join(", "));
        return false;
    }
    if !installed() {
        println!("installing cargo-fuzz");
        passes(cargo("install").args(["--locked", "cargo-fuzz"]));
        if !installed() {
            eprintln!("error: fuzzing needs cargo-fuzz, and `cargo install --locked cargo-fuzz` did not give it");
            return false;
        }
    }
    let corpus = ["--quiet", "--locked", "--package", "vyre-testkit", "--example", "corpus", "--", "fuzz/corpus"];
    if !passes(cargo("run").args(corpus)) {
        return false;
    }
    let started = SystemTime::now();
    // An input of a few kilobytes that takes seconds counts as a hang.
    let time = format!("-max_total_time={seconds}");
    let arguments = ["run", "--sanitizer", "none", target, "--", &time, "-timeout=10", "-rss_limit_mb=2048"];
    let passed = passes(cargo("fuzz").args(arguments).arg("-print_final_stats=1"));
    for case in found_since(target, started) {
        eprintln!("error: `{target}` fails on {}", case.display());
        eprintln!("help: reproduce it with `cargo fuzz run --sanitizer none {target} {}`", case.display());
    }
    passed
}

fn installed() -> bool {
    quiet(cargo("fuzz").arg("--version"))
}

/// Failing inputs written after a time.
fn found_since(target: &str, started: SystemTime) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root().join("fuzz/artifacts").join(target)) else { return Vec::new() };
    let is_new =
        |path: &PathBuf| path.metadata().and_then(|data| data.modified()).is_ok_and(|modified| modified >= started);
    entries.flatten().map(|entry| entry.path()).filter(is_new).collect()
}

/// The fuzz crate is a separate workspace, which the lints of the main one do not reach. Folder and profile are shared,
/// so that common dependencies are built once.
pub(crate) fn lint() -> bool {
    passes(fuzz_crate("clippy").args(["--locked", "--", "-D", "warnings"]))
}

pub(crate) fn format() -> bool {
    passes(fuzz_crate("fmt").args(["--", "--check"]))
}

fn fuzz_crate(command: &str) -> Command {
    let mut cargo = cargo(command);
    cargo.args(["--manifest-path", "fuzz/Cargo.toml"]);
    cargo
}
