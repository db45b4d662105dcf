//! `cargo xtask test`: everything that must pass, as an ordered list of steps. All of them run, whatever fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{fuzz, mutants, root, tidy};

/// Says whether the step passed. What went wrong has been printed by then.
type Step = fn(Options) -> bool;

/// What is tested.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Whether the tests that need a GPU, or a driver that plays one, are run.
    pub(crate) gpu: bool,
}

const STEPS: &[(&str, Step)] = &[
    ("toolchain", |_| toolchain()),
    ("packages", packages),
    ("format", |_| passes(cargo("fmt").args(["--all", "--", "--check"])) & fuzz::format()),
    ("lint", |_| passes(cargo("clippy").args(["--workspace", "--all-targets", "--", "-D", "warnings"]))),
    // Fuzzing takes its time and is run by itself; that it builds is checked here.
    ("fuzz lint", |_| fuzz::lint()),
    // Documentation tests are included.
    ("test", |options| {
        let without_gpu: &[&str] = if options.gpu { &[] } else { &["--exclude", GPU_CRATE] };
        passes(cargo("test").args(["--workspace", "--no-fail-fast"]).args(without_gpu))
    }),
    // A build of its own, in which locks are those of the model.
    ("model", |_| {
        let mut model = cargo("test");
        model.args(["--package", "vyre-runtime", "--test", "ring_model"]);
        passes(model.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", root().join("target/loom")))
    }),
    ("mutants", |options| mutants::run(&[], options.gpu)),
    ("examples", |_| examples()),
    ("doc", |_| passes(cargo("doc").args(["--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))),
    ("tidy", |_| tidy::run()),
];

/// The crate whose tests need a GPU.
pub(crate) const GPU_CRATE: &str = "vyre-wgpu";

/// Runs the steps and prints a summary. Says whether all passed.
pub(crate) fn run(options: Options) -> bool {
    let outcomes: Vec<(&str, bool, Duration)> = STEPS
        .iter()
        .map(|&(name, step)| {
            println!("\n=== {name} ===");
            let start = Instant::now();
            let passed = step(options);
            (name, passed, start.elapsed())
        })
        .collect();

    println!("\n=== summary ===");
    for (name, passed, time) in &outcomes {
        let result = if *passed { "ok" } else { "FAILED" };
        println!("{name:<10} {result:<6} {:>7.1} s", time.as_secs_f64());
    }
    if !options.gpu {
        println!("not run: the tests of {GPU_CRATE}, because of --no-gpu");
    }
    outcomes.iter().all(|(_, passed, _)| *passed)
}

/// Runs the examples of the crate `vyre`, which check their results themselves, where they may leave files.
fn examples() -> bool {
    let folder = root().join("target/examples");
    let listed = std::fs::create_dir_all(&folder).and_then(|()| std::fs::read_dir(root().join("crates/vyre/examples")));
    let files = match listed {
        Ok(entries) => entries.flatten().map(|entry| entry.path()),
        Err(error) => {
            eprintln!("error: cannot list the examples: {error}");
            return false;
        }
    };
    let names = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()));
    // Those of the whole workspace, as the tests have built them: for one package alone, its dependencies had other features.
    let built = passes(cargo("build").args(["--workspace", "--examples"]));
    // Each one, whatever becomes of the others.
    names.fold(built, |passed, name| {
        println!("{name}");
        let mut example = Command::new(root().join("target/debug/examples").join(name));
        passes(example.current_dir(&folder).stdout(Stdio::null())) && passed
    })
}

/// What the tests need from the system: a solver for the proofs, a browser for pages, and for the GPU a Vulkan driver and a validator of
/// SPIR-V.
fn packages(options: Options) -> bool {
    let missing = || -> Vec<&str> {
        let mut missing = Vec::new();
        if !quiet(Command::new("z3").arg("--version")) {
            missing.push("z3");
        }
        let named = std::env::var_os("CHROMIUM").into_iter();
        let mut browsers = named.chain(["chromium", "chromium-browser", "google-chrome"].map(Into::into));
        if !browsers.any(|browser| quiet(Command::new(browser).arg("--version"))) {
            missing.push("chromium");
        }
        if !options.gpu {
            return missing;
        }
        let driver = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"].iter().any(|folder| {
            std::fs::read_dir(folder).is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.path().extension().is_some_and(|extension| extension == "json"))
            })
        });
        if !driver && cfg!(target_os = "linux") {
            missing.push("mesa-vulkan-drivers");
        }
        if !quiet(Command::new("spirv-val").arg("--version")) {
            missing.push("spirv-tools");
        }
        missing
    };
    let needed = missing();
    if needed.is_empty() {
        return true;
    }
    println!("missing: {}", needed.join(", "));
    // Only root can install; anybody else is told what to do.
    if quiet(Command::new("apt-get").arg("--version")) {
        let environment = ("DEBIAN_FRONTEND", "noninteractive");
        passes(Command::new("apt-get").arg("update").env(environment.0, environment.1));
        let install = ["install", "-y", "--no-install-recommends"];
        passes(Command::new("apt-get").args(install).args(&needed).env(environment.0, environment.1));
    }
    let still = missing();
    if !still.is_empty() {
        eprintln!(
            "error: the proofs of the rewrite rules need z3; the tests of pages need Chromium; the GPU tests need a Vulkan\n\
             driver (Mesa's software driver will do) and spirv-val.\n\
             Debian, Ubuntu: sudo apt-get install {0}\n\
             Fedora: sudo dnf install {0}\n\
             elsewhere: Z3, Chromium or Chrome (CHROMIUM names it), the driver of your GPU, and the SPIRV-Tools of the Vulkan SDK\n\
             The GPU tests can be left out with `cargo xtask test --no-gpu`",
            still.join(" ")
        );
    }
    still.is_empty()
}

pub(crate) fn quiet(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
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
pub(crate) fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).arg(command);
    cargo
}

pub(crate) fn passes(command: &mut Command) -> bool {
    command.status().map_or_else(
        |error| {
            eprintln!("error: cannot run {}: {error}", command.get_program().display());
            false
        },
        |status| status.success(),
    )
}
