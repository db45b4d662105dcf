//! `cargo xtask test`: everything that must pass, as an ordered list of steps. A failing step does not stop the others.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{fuzz, mutants, release, root, target_dir, tidy};

/// One entry of the list. Its function returns true if the step passed, and prints the reason otherwise.
struct Step {
    name: &'static str,
    summary: &'static str,
    /// Part of `--quick`.
    quick: bool,
    run: fn(&Options) -> bool,
}

/// Selection of steps, and the amount of testing in them.
#[derive(Default)]
pub(crate) struct Options {
    /// Names of the steps to run; all of them if there is none.
    steps: Vec<String>,
    /// Prints the steps instead of running them.
    list: bool,
    /// Leaves out slow steps and shortens randomized tests.
    quick: bool,
    /// Leaves out the tests that need a Vulkan driver.
    no_gpu: bool,
}

impl Options {
    /// Parses the arguments behind `cargo xtask test`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        for &argument in arguments {
            match argument {
                "--list" => options.list = true,
                "--quick" => options.quick = true,
                "--no-gpu" => options.no_gpu = true,
                step if STEPS.iter().any(|known| known.name == step) => options.steps.push(step.into()),
                unknown => {
                    let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                    return Err(format!(
                        "`{unknown}` is neither an option nor a step; the steps are {}",
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(options)
    }

    fn selects(&self, step: &Step) -> bool {
        if self.steps.is_empty() { step.quick || !self.quick } else { self.steps.iter().any(|name| name == step.name) }
    }
}

const STEPS: &[Step] = &[
    Step { name: "toolchain", summary: "rustfmt and clippy are installed", quick: true, run: |_| toolchain() },
    Step { name: "packages", summary: "system packages of the tests are installed", quick: true, run: packages },
    Step {
        name: "format",
        summary: "rustfmt changes nothing",
        quick: true,
        run: |_| passes(cargo("fmt").args(["--all", "--", "--check"])) & fuzz::format(),
    },
    Step {
        name: "lint",
        summary: "clippy has no warnings",
        quick: false,
        run: |_| passes(cargo("clippy").args(["--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    },
    // Fuzzing itself runs on request (`cargo xtask fuzz`).
    Step { name: "fuzz-lint", summary: "the fuzz targets build without warnings", quick: false, run: |_| fuzz::lint() },
    Step { name: "test", summary: "unit, integration and documentation tests", quick: true, run: tests },
    Step { name: "model", summary: "loom models of the lock-free protocols", quick: false, run: |_| models() },
    Step {
        name: "mutants",
        summary: "the tests detect every mutant",
        quick: false,
        run: |options| mutants::run(&mutants::Options::all(options.no_gpu)),
    },
    Step { name: "examples", summary: "the examples run and check their results", quick: false, run: |_| examples() },
    Step {
        name: "doc",
        summary: "rustdoc has no warnings",
        quick: false,
        run: |_| passes(cargo("doc").args(["--locked", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")),
    },
    // `cargo xtask release` also builds the archives.
    Step {
        name: "package",
        summary: "archives of the crates can be made",
        quick: true,
        run: |_| release::package(false),
    },
    Step { name: "tidy", summary: "rules of the repository hold", quick: true, run: |_| tidy::run() },
];

/// The crate whose tests need a GPU.
pub(crate) const GPU_CRATE: &str = "vyre-wgpu";

/// Runs the selected steps and prints the time of each. Returns true if all passed.
pub(crate) fn run(options: &Options) -> bool {
    let steps = STEPS.iter().filter(|step| options.selects(step));
    if options.list {
        steps.for_each(|step| println!("{:<10} {}", step.name, step.summary));
        return true;
    }
    let outcomes: Vec<(&str, bool, Duration)> = steps
        .map(|step| {
            println!("\n=== {} ===", step.name);
            let start = Instant::now();
            let passed = (step.run)(options);
            let time = start.elapsed();
            println!("{}: {} in {:.1} s", step.name, verdict(passed), time.as_secs_f64());
            (step.name, passed, time)
        })
        .collect();

    println!("\n=== summary ===");
    for (name, passed, time) in &outcomes {
        println!("{name:<10} {:<6} {:>7.1} s", verdict(*passed), time.as_secs_f64());
    }
    let total: Duration = outcomes.iter().map(|(_, _, time)| *time).sum();
    println!("{:<10} {:>14.1} s", "total", total.as_secs_f64());
    if options.no_gpu {
        println!("not run: the tests of {GPU_CRATE}, because of --no-gpu");
    }
    outcomes.iter().all(|(_, passed, _)| *passed)
}

fn verdict(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}

/// The tests of all crates, documentation tests included.
fn tests(options: &Options) -> bool {
    let mut command = cargo("test");
    command.args(["--locked", "--workspace", "--no-fail-fast"]);
    if options.no_gpu {
        command.args(["--exclude", GPU_CRATE]);
    }
    if options.quick {
        // Fewer generated programs and shorter campaigns; explicit settings of the caller take precedence.
        for (variable, value) in [("VYRE_PROGRAMS", "200"), ("VYRE_SOAK_SECONDS", "2")] {
            if std::env::var_os(variable).is_none() {
                command.env(variable, value);
            }
        }
    }
    passes(&mut command)
}

/// Runs the loom models (tests in modules called `model`) in a separate build: `--cfg loom` replaces the atomics and
/// locks of the protocols.
///
/// The build dominates the time: one command builds both packages, which resolves their features together and builds
/// each dependency once, and only third-party crates, loom among them, are optimized.
fn models() -> bool {
    let mut models = cargo("test");
    models.args(["--config", "profile.dev.opt-level=0", "--config", r#"profile.dev.package."*".opt-level=1"#]);
    models.args(["--locked", "--package", "vyre-runtime", "--package", "vyre-cpu"]);
    models.args(["--lib", "--test", "ring_model", "model::"]);
    passes(models.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_dir().join("loom")))
}

/// Runs the examples of the crate `vyre`, which check their results, in a scratch folder.
fn examples() -> bool {
    let folder = target_dir().join("examples");
    let listed = std::fs::create_dir_all(&folder).and_then(|()| std::fs::read_dir(root().join("crates/vyre/examples")));
    let files = match listed {
        Ok(entries) => entries.flatten().map(|entry| entry.path()),
        Err(error) => {
            eprintln!("error: cannot list the examples: {error}");
            return false;
        }
    };
    let names = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()));
    // The whole workspace, as in the step `test`: a single package would resolve other features and rebuild its
    // dependencies.
    let built = passes(cargo("build").args(["--locked", "--workspace", "--examples"]));
    names.fold(built, |passed, name| {
        println!("{name}");
        let mut example = Command::new(target_dir().join("debug/examples").join(name));
        passes(example.current_dir(&folder).stdout(Stdio::null())) && passed
    })
}

/// Installs the system packages of the tests: an SMT solver for the proofs, a browser for HTML reports, and for the GPU
/// a Vulkan driver and SPIRV-Tools.
fn packages(options: &Options) -> bool {
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
        if options.no_gpu {
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
    // Installing requires root; otherwise the message below names the packages.
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

/// A cargo command, with the same cargo that runs this, at the root of the workspace.
pub(crate) fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A relative CARGO_TARGET_DIR refers to the caller's folder, not to the root.
    cargo.current_dir(root()).env("CARGO_TARGET_DIR", target_dir()).arg(command);
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
