//! Developer tasks, run as `cargo xtask <command>`. Uses only the standard library, to minimize build time.

mod bench;
mod docs;
mod emulate;
mod fuzz;
mod msrv;
mod mutants;
mod release;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

const USAGE: &str = "\
Developer tasks of the vyre repository

Usage: cargo xtask <command>

Commands:
  test [STEP ...] [--list] [--quick] [--no-gpu]
                    Install the system packages of the tests, and run all checks, or only the named steps. --list prints
                    the steps, --quick skips slow steps and shortens randomized tests, --no-gpu skips tests that need a
                    Vulkan driver
  mutants [NAME ...] [--list] [--no-gpu]
                    Build a copy of the source with the mutants of tests/mutants, and print which test detects each of
                    them, or each of the named ones. --list prints the mutants, --no-gpu skips those that need a Vulkan
                    driver
  docs [--open]     Install mdBook, and build the book in docs/ as web pages in target/book
  tidy              Check the rules of the repository: crate dependencies, packages, names, files, links, mutants
  msrv              Install the minimum supported Rust version, and check the crates with it
  release           Dry run of a release: build every package from its archive, check the rules and the changelog, and print
                    the commands that publish the crates. Nothing is published
  fuzz TARGET [--seconds N]
                    Install cargo-fuzz, and fuzz TARGET (wire, text or lower) for N seconds [default: 300]. A failing
                    input is an error
  emulate avx512 [--programs N]
                    Install Bochs, and run the conformance suite of the CPU backend on an emulated AVX-512 processor,
                    with N generated programs [default: 300]
  bench [SUITE [NAME]] [--json] [--quick]
                    Measure a suite, or its lines whose name contains NAME, or all suites, against baselines
  bench [SUITE] --record
                    Measure a suite, or all of them, save the results under bench/records, and update bench/README.md and
                    the README
  bench --redraw    Update bench/README.md and the README from the saved results
  soak diff [--minutes N] [--device cpu|wgpu] [--seed S]
                    Compare a device with the oracle on generated programs for N minutes
  soak deadline [--rounds N] [--seconds S] [--device cpu|wgpu]
                    Measure how late waits return after the deadline of a dispatch; more than a second is an error
  soak megakernel [--minutes N]
                    Submit items of several tenants to a megakernel from several threads, with faults, cancellations and
                    device losses, for N minutes [default: 10]; every item must execute exactly once
  soak math [--type f16|f32|f64] [FUNCTION ...]
                    Measure the error of math library functions: over all operands of f16 and f32, and over 10^8 of f64";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let passed = match args[..] {
        [] | ["help" | "-h" | "--help"] => {
            println!("{USAGE}");
            true
        }
        ["test", ..] => match test::Options::parse(&args[1..]) {
            Ok(options) => test::run(&options),
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::from(2);
            }
        },
        ["fuzz", target] => fuzz::run(target, 300),
        ["fuzz", target, "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(target, seconds),
            Err(_) => {
                eprintln!("error: `{seconds}` is not a number of seconds");
                return ExitCode::from(2);
            }
        },
        ["emulate", "avx512"] => emulate::run(300),
        ["emulate", "avx512", "--programs", programs] => match programs.parse() {
            Ok(programs) => emulate::run(programs),
            Err(_) => {
                eprintln!("error: `{programs}` is not a number of programs");
                return ExitCode::from(2);
            }
        },
        ["bench", ..] => bench::run(&args[1..]),
        ["soak", "megakernel"] => soak::megakernel(10),
        ["soak", "megakernel", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) => soak::megakernel(minutes),
            Err(_) => {
                eprintln!("error: `{minutes}` is not a number of minutes");
                return ExitCode::from(2);
            }
        },
        ["soak", ..] => soak::run(&args[1..]),
        ["mutants", ..] => match mutants::Options::parse(&args[1..]) {
            Ok(options) => mutants::run(&options),
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::from(2);
            }
        },
        ["docs"] => docs::run(false),
        ["docs", "--open"] => docs::run(true),
        ["tidy"] => tidy::run(),
        ["msrv"] => msrv::run(),
        ["release"] => release::run(),
        _ => {
            eprintln!("error: `cargo xtask {}` is not a task\n\n{USAGE}", args.join(" "));
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The folder of final artifacts, as cargo resolves it from `CARGO_TARGET_DIR` and its configuration files.
fn target_dir() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        json_string(&METADATA, "target_directory").map_or_else(|| root().join("target"), PathBuf::from)
    });
    &FOLDER
}

/// The folder of intermediate artifacts: the target folder, unless cargo is configured otherwise.
fn build_dir() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        json_string(&METADATA, "build_directory").map_or_else(|| target_dir().to_owned(), PathBuf::from)
    });
    &FOLDER
}

/// Description of the workspace by `cargo metadata`.
static METADATA: LazyLock<String> = LazyLock::new(|| {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--locked", "--no-deps", "--format-version", "1", "--manifest-path"]);
    let output = metadata.arg(root().join("Cargo.toml")).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
});

/// The first string under a key in JSON that cargo printed. Escapes other than the backslash do not occur in its paths.
fn json_string(json: &str, key: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!("\"{key}\":\""))?;
    Some(rest.split_once('"')?.0.replace("\\\\", "\\"))
}
