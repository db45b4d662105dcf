//! `vyre doctor --conformance`: runs the conformance suite on devices of this machine and prints a report for bug reports.
//!
//! Text is written check by check, so that a driver crash leaves the name of the failing check.

use std::io::Write as _;

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};
use vyre_driver::backend::Backend;
use vyre_driver::{Device, Error as DriverError, Registry};
use vyre_testkit::conformance::{Check, Subject, Verdict, checks};

use crate::config::Settings;
use crate::devices;
use crate::error::Error;
use crate::stdout::{Stdout, counted};

/// Default of `VYRE_PROGRAMS`, the number of generated programs: a sixth of the time of the suite on a software GPU.
const PROGRAMS: u64 = 100;

/// Parser of the names of checks.
pub(crate) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(checks().into_iter().map(|check| check.name))
}

/// A device of the report.
struct Candidate<'r> {
    backend: &'r dyn Backend,
    /// Argument of `--device` that selects it.
    selector: String,
    /// Driver and interface of a GPU.
    driver: Option<String>,
}

/// The exit code is 0 if every check passes on every device, and 1 otherwise.
pub(crate) fn run(device: Option<&str>, selected: &[String], json: bool, stdout: &mut Stdout) -> Result<u8, Error> {
    let settings = Settings::load()?;
    let registry = devices::registry_for(&settings, None);
    let gpus = gpus();
    let candidates: Vec<Candidate<'_>> = match device {
        None if cfg!(feature = "wgpu") => gpus.iter().map(Gpu::candidate).collect(),
        None => registered(&registry, "cpu"),
        Some(GPU) => gpus.iter().map(Gpu::candidate).collect(),
        Some(name) => {
            let found = registered(&registry, name);
            let is_named = |gpu: &&Gpu| gpu.name.to_lowercase().contains(&name.to_lowercase());
            if found.is_empty() { gpus.iter().filter(is_named).map(Gpu::candidate).collect() } else { found }
        }
    };
    if candidates.is_empty() {
        return Err(missing(&registry, device));
    }
    let checks: Vec<Check> = checks()
        .into_iter()
        .filter(|check| selected.is_empty() || selected.iter().any(|name| name == check.name))
        .collect();

    let system = system();
    if !json {
        writeln!(stdout, "vyre {}, conformance suite\nsystem: {system}", env!("CARGO_PKG_VERSION"))
            .map_err(Error::Stdout)?;
    }
    let mut reports = Vec::new();
    for candidate in &candidates {
        reports.push(report(candidate, &checks, json, stdout)?);
    }
    let passed = reports.iter().all(|report| report["passed"] == true);
    if json {
        let report =
            json!({ "version": env!("CARGO_PKG_VERSION"), "system": system, "passed": passed, "devices": reports });
        writeln!(stdout, "{report}").map_err(Error::Stdout)?;
    }
    Ok(u8::from(!passed))
}

/// Runs the checks on one device. Text is printed incrementally.
fn report(candidate: &Candidate<'_>, checks: &[Check], json: bool, stdout: &mut Stdout) -> Result<Value, Error> {
    let Candidate { backend, selector, driver } = candidate;
    let mut object = json!({ "backend": backend.name(), "driver": driver, "passed": false });
    let device = match Device::open(*backend) {
        Ok(device) => device,
        Err(error) => {
            if !json {
                writeln!(stdout, "\n{}: {selector}\nFAILED  cannot be opened: {error}", backend.name())
                    .map_err(Error::Stdout)?;
            }
            object["error"] = json!({ "code": error.code(), "message": error.to_string(), "help": error.help() });
            return Ok(object);
        }
    };
    let defaults = Subject::new(*backend);
    let subject = Subject { programs: defaults.programs.or(Some(PROGRAMS)), ..defaults };
    let programs = subject.programs.unwrap_or_default();
    let capabilities = device.capabilities();
    object["capabilities"] = devices::capabilities(capabilities);
    object["first_seed"] = json!(subject.first_seed);
    object["programs"] = json!(programs);
    if !json {
        let driver = driver.as_ref().map(|driver| format!("\n    driver: {driver}")).unwrap_or_default();
        let description = devices::description(capabilities);
        let generated = format!("{} from seed {}", counted(programs, "program"), subject.first_seed);
        writeln!(stdout, "\n{}{driver}{description}\n    generated: {generated}", backend.name())
            .map_err(Error::Stdout)?;
    }

    let mut results = Vec::new();
    let mut failed = 0;
    for check in checks {
        if !json {
            write!(stdout, "{:<24}", check.name).and_then(|()| stdout.flush()).map_err(Error::Stdout)?;
        }
        let Verdict { failure, time } = check.run(&subject);
        let seconds = time.as_secs_f64();
        let repeat = format!(
            "VYRE_SEED={} VYRE_PROGRAMS={programs} vyre doctor --conformance --device \"{selector}\" --check {}",
            subject.first_seed, check.name
        );
        if !json {
            let verdict = if failure.is_none() { "ok" } else { "FAILED" };
            writeln!(stdout, "{verdict:<8}{seconds:>6.1} s").map_err(Error::Stdout)?;
            for line in failure.iter().flat_map(|failure| failure.lines().chain(["to repeat this check:", &repeat])) {
                writeln!(stdout, "    {line}").map_err(Error::Stdout)?;
            }
            stdout.flush().map_err(Error::Stdout)?;
        }
        failed += usize::from(failure.is_some());
        let repeat = failure.is_some().then_some(repeat);
        results.push(json!({
            "name": check.name,
            "passed": failure.is_none(),
            "seconds": seconds,
            "failure": failure,
            "repeat": repeat,
        }));
    }
    if !json {
        let total = counted(checks.len(), "check");
        writeln!(stdout, "{failed} of {total} failed").map_err(Error::Stdout)?;
    }
    object["passed"] = json!(failed == 0);
    object["checks"] = json!(results);
    Ok(object)
}

/// The name that selects all GPUs.
const GPU: &str = "wgpu";

/// A backend of the registry; GPUs are enumerated instead.
fn registered<'r>(registry: &'r Registry, name: &str) -> Vec<Candidate<'r>> {
    let named = registry.backends().filter(|backend| backend.name() == name && name != GPU);
    named.map(|backend| Candidate { backend, selector: name.into(), driver: None }).collect()
}

/// The error of a request that selects no device.
fn missing(registry: &Registry, device: Option<&str>) -> Error {
    let name = device.unwrap_or(GPU);
    let opened = registry.backends().find(|backend| backend.name() == name).map(Device::open);
    match opened {
        Some(Err(error)) => error.into(),
        _ => {
            let known = registry.backends().map(|backend| backend.name().to_owned());
            let known = known.chain(gpus().into_iter().map(|gpu| gpu.name)).collect();
            DriverError::NoSuchDevice { name: name.into(), known }.into()
        }
    }
}

/// A GPU of this machine.
struct Gpu {
    backend: Box<dyn Backend>,
    name: String,
    driver: String,
}

impl Gpu {
    fn candidate(&self) -> Candidate<'_> {
        Candidate { backend: &*self.backend, selector: self.name.clone(), driver: Some(self.driver.clone()) }
    }
}

#[cfg(feature = "wgpu")]
fn gpus() -> Vec<Gpu> {
    let gpu = |adapter: vyre_wgpu::Enumerated| Gpu {
        name: adapter.name.clone(),
        driver: format!("{} ({})", adapter.driver, adapter.interface),
        backend: Box::new(adapter),
    };
    vyre_wgpu::adapters().into_iter().map(gpu).collect()
}

#[cfg(not(feature = "wgpu"))]
fn gpus() -> Vec<Gpu> {
    Vec::new()
}

/// Processor architecture and operating system; on Linux with kernel version and distribution.
fn system() -> String {
    let mut system = format!("{} {}", std::env::consts::ARCH, std::env::consts::OS);
    if let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") {
        system += &format!(" {}", release.trim());
    }
    let distribution = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if let Some(name) = distribution.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")) {
        system += &format!(", {}", name.trim_matches('"'));
    }
    system
}
