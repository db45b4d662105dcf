//! `vyre doctor`: tests each device and the settings, and suggests fixes.
//!
//! `--conformance` prints the report of [`conformance`] instead.

use std::io::Write as _;

use serde_json::{Value, json};
use vyre_cpu::{Execution, HAS_CODE_GENERATOR};
use vyre_driver::atomic_file::TEMPORARY;
use vyre_driver::{Device, Oracle, PrivateFolder, Registry};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::launch::{Grid, Limits};

use crate::config::{Settings, isa_name, misspelt_variables};
use crate::error::Error;
use crate::stdout::{Stdout, counted};
use crate::{cache, conformance, devices};

/// Test each device of this machine, the settings and the cache, and suggest fixes
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Run the conformance suite, and print a report to paste into an issue
    #[arg(long)]
    conformance: bool,
    /// Device of the suite: `cpu`, `reference`, `wgpu` for all GPUs, or part of the name of a GPU [default: all GPUs]
    #[arg(long, value_name = "NAME", requires = "conformance")]
    device: Option<String>,
    /// Check to run; may be given several times [default: all]
    #[arg(long = "check", value_name = "CHECK", requires = "conformance", value_parser = conformance::names())]
    checks: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
The conformance suite compares devices with the oracle. It takes minutes on a software GPU. VYRE_PROGRAMS sets the number of generated
programs, VYRE_SEED the first seed. The exit code is 1 if a check fails.
  vyre doctor --conformance --device cpu
  vyre doctor --conformance --check operations --json";

/// Result of a test.
struct Finding {
    subject: String,
    fine: bool,
    found: String,
    /// Suggested fix.
    advice: Option<String>,
}

impl Finding {
    fn fine(subject: &str, found: impl Into<String>) -> Finding {
        Finding { subject: subject.into(), fine: true, found: found.into(), advice: None }
    }

    fn problem(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { subject: subject.into(), fine: false, found: found.into(), advice: Some(advice.into()) }
    }
}

/// The exit code is 0 if a device works, the default device can be opened, and the settings are valid.
pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<u8, Error> {
    if args.conformance {
        return conformance::run(args.device.as_deref(), &args.checks, args.json, stdout);
    }
    let mut findings = vec![version(), processor()];
    let settings = Settings::read();
    let registry = devices::registry_for(&settings, None);
    let mut works = false;
    for backend in registry.backends() {
        let subject = format!("device {}", backend.name());
        let (finding, fallback) =
            match Device::open(backend).map_err(Error::from).and_then(|device| what_works(&device)) {
                Ok((found, fallback)) => (Finding::fine(&subject, found), fallback),
                Err(error) => (Finding::problem(&subject, error.to_string(), advice(&error, &settings)), None),
            };
        works |= finding.fine;
        findings.push(finding);
        findings.extend(fallback.map(|reason| Finding::problem(&subject, reason, advice_on_fallback())));
    }
    let chosen = chosen(&registry);
    works &= chosen.fine && settings.problems.is_empty();
    findings.extend([chosen, kept(&settings)]);
    for error in &settings.problems {
        let location =
            error.location().map(|location| format!("{}:{}: ", location.file, location.line)).unwrap_or_default();
        findings.push(Finding::problem("settings", format!("{location}{error}"), error.help()));
    }
    for misspelt in misspelt_variables() {
        findings.push(Finding::problem("settings", misspelt, "`vyre config` lists the settings"));
    }
    if settings.problems.is_empty() {
        let file = settings.file.as_ref().map_or("there is no vyre.toml".into(), |file| file.display().to_string());
        findings.push(Finding::fine("settings", file));
    }
    if args.json {
        let object = |finding: &Finding| {
            let Finding { subject, fine, found, advice } = finding;
            json!({ "subject": subject, "fine": fine, "found": found, "advice": advice })
        };
        let findings: Vec<Value> = findings.iter().map(object).collect();
        writeln!(stdout, "{}", json!({ "works": works, "findings": findings })).map_err(Error::Stdout)?;
    } else {
        let (yes, no) = if is_utf8_locale() { ("✓", "✗") } else { ("ok", "no") };
        for Finding { subject, fine, found, advice } in &findings {
            let advice = advice.as_ref().map(|advice| format!("\n    help: {advice}")).unwrap_or_default();
            writeln!(stdout, "{} {subject}: {found}{advice}", if *fine { yes } else { no }).map_err(Error::Stdout)?;
        }
    }
    Ok(match settings.problems.first() {
        Some(error) => error.exit_code(),
        None if works => 0,
        None => 4,
    })
}

/// Suggested fix for a device that does not work.
fn advice(error: &Error, settings: &Settings) -> String {
    match (error, &settings.adapter.origin) {
        (Error::Driver(vyre_driver::Error::NoAdapter { .. }), Some(origin)) => {
            format!("{origin} matches no adapter: set it to part of the name of an adapter, or remove it")
        }
        _ => error.help(),
    }
}

/// Returns whether the locale is UTF-8.
fn is_utf8_locale() -> bool {
    let value = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(value).unwrap_or_default().to_lowercase();
    cfg!(windows) || locale.contains("utf-8") || locale.contains("utf8")
}

fn version() -> Finding {
    let (version, arch, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS);
    Finding::fine("vyre", format!("{version} for {arch} {os}"))
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match Execution::best() {
        Execution::Portable if !HAS_CODE_GENERATOR => Finding::problem(
            "processor",
            format!("{}, portable executor (no code generator for this target)", counted(cores, "thread")),
            SLOWER,
        ),
        Execution::Portable => {
            Finding::problem("processor", format!("{}, portable executor (no AVX2)", counted(cores, "thread")), SLOWER)
        }
        best => {
            let (threads, isa) = (counted(cores, "thread"), isa_name(best));
            let found = format!("{threads}, {isa}; portable executor for objects of 2^31 elements or more");
            Finding::fine("processor", found)
        }
    }
}

/// Help for processors without a code generator.
const SLOWER: &str =
    "no action needed: the device cpu works, but several times slower than with AVX2; a GPU would be faster";

/// Help for systems that deny executable memory.
const ALLOW_CODE: &str = "programs run, but several times slower: allow executable memory for the process (SELinux: `execmem`; \
    systemd: `MemoryDenyWriteExecute=no`)";

fn advice_on_fallback() -> &'static str {
    if HAS_CODE_GENERATOR { ALLOW_CODE } else { SLOWER }
}

/// Runs a kernel on a device and compares the result with the oracle. Also returns the reason if the device used its portable executor.
fn what_works(device: &Device) -> Result<(String, Option<String>), Error> {
    let program = devices::probe()?;
    let run = |device: &Device| {
        let mut inputs = Inputs::default();
        for (name, notation) in [("a", "2"), ("x", "random:1000:1"), ("y", "iota:1000")] {
            inputs.notation(&program, name, notation)?;
        }
        device.execute(&program, Grid::Elements([1000, 1, 1]), &mut inputs, Limits::default())?;
        Ok::<_, Error>(inputs.contents("y").unwrap_or_default().to_vec())
    };
    let (capabilities, right) = (device.capabilities(), run(&Device::open(&Oracle::default())?)?);
    if run(device)? != right && capabilities.floats.exact_f32 {
        return Err(Error::NotWorking { device: capabilities.name.clone() });
    }
    let adapters: String = capabilities.reasons.iter().map(|reason| format!("\n    adapter {reason}")).collect();
    let fallback = device.compile(&program)?.compilation().fallback.clone();
    Ok((format!("{} works{adapters}", capabilities.name), fallback))
}

fn chosen(registry: &Registry) -> Finding {
    match registry.choose(None, None) {
        Ok(choice) => {
            let reason = choice.reasons.iter().find(|(name, _)| *name == choice.name);
            let because = reason.map(|(_, reason)| format!(": {reason}")).unwrap_or_default();
            Finding::fine("default device", format!("{}{because}", choice.name))
        }
        Err(error) => Finding::problem("default device", error.to_string(), error.help()),
    }
}

fn kept(settings: &Settings) -> Finding {
    let Some(folder) = settings.folder() else {
        return Finding::problem("cache", Error::NoCache.to_string(), Error::NoCache.help());
    };
    let private = match PrivateFolder::open(&folder) {
        Ok(private) => private,
        Err(error) => return Finding::problem("cache", error.to_string(), error.help()),
    };
    let probe = format!("doctor.{}.{TEMPORARY}", std::process::id());
    let writable = private.replace(&probe, &[]).and_then(|()| private.remove(&probe));
    let shown = folder.display();
    match writable {
        Ok(()) => {
            let (entries, bytes, damaged) = cache::totals(&folder);
            let found = format!("{shown} has {} in {}", counted(bytes, "byte"), counted(entries, "file"));
            match damaged {
                0 => Finding::fine("cache", found),
                _ => Finding::problem(
                    "cache",
                    format!("{found}, {damaged} of them damaged"),
                    "no action needed: damaged entries are replaced on demand; `vyre cache verify` lists them, `vyre cache clear` deletes all",
                ),
            }
        }
        Err(error) => Finding::problem(
            "cache",
            format!("{shown} cannot be written: {error}"),
            "set VYRE_CACHE to a writable folder; without a cache, each run optimizes programs again",
        ),
    }
}
