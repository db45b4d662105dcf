//! Registry of devices, and `vyre devices`.

use std::io::Write as _;

use serde_json::{Value, json};
use vyre_cpu::Cpu;
use vyre_driver::{Cache, Capabilities, Choice, Device, DeviceKind, Oracle, Registry};
use vyre_foundation::ir::{Program, Type};
use vyre_foundation::{Validated, text, validate};

use crate::config::Settings;
use crate::error::Error;
use crate::stdout::{Stdout, counted};
use crate::terminal;

/// All backends of this build, with telemetry of earlier dispatches. `subgroup_size` configures the oracle.
pub(crate) fn registry(subgroup_size: Option<u32>) -> Result<Registry, Error> {
    Ok(registry_for(&Settings::load()?, subgroup_size))
}

/// Same as [`registry`], with settings that may have errors.
pub(crate) fn registry_for(settings: &Settings, subgroup_size: Option<u32>) -> Registry {
    let oracle = subgroup_size.map_or(Oracle::default(), |subgroup_size| Oracle { subgroup_size });
    let registry = Registry::default().with(Cpu {
        threads: settings.threads.value,
        execution: settings.isa.value,
        ..Cpu::default()
    });
    #[cfg(feature = "wgpu")]
    let registry = match &settings.adapter.value {
        Some(name) => registry.with(vyre_wgpu::Adapter(name.clone())),
        None => registry.with(vyre_wgpu::Wgpu),
    };
    let mut registry = registry.with(oracle);
    if let (Some(name), Some(origin)) = (&settings.device.value, &settings.device.origin) {
        registry = registry.prefer(name, origin);
    }
    if let Some(folder) = settings.private_folder() {
        registry = registry.remember(&folder);
    }
    registry.telemetry().problem().cloned().into_iter().for_each(warn);
    registry
}

/// Warns about damaged entries of the program cache.
pub(crate) fn warn_of_damage(registry: &Registry) {
    let problems = registry.cache().map(Cache::take_problems);
    problems.unwrap_or_default().into_iter().for_each(warn);
}

/// Origin of the setting that names a device.
pub(crate) fn named_by(name: &str) -> Option<String> {
    let device = Settings::read().device;
    device.origin.filter(|_| device.value.as_deref() == Some(name))
}

pub(crate) fn warn(problem: impl Into<Error>) {
    let problem = problem.into();
    let _ = writeln!(terminal::stderr(), "warning[{}]: {problem}\n  = help: {}", problem.code(), problem.help());
}

/// List devices, their capabilities, and which one is selected and why
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let registry = registry(None)?;
    // Devices are listed even if the selected one does not exist.
    let choice = registry.choose(None, None);
    let chosen = choice.as_ref().ok();
    let mut objects = Vec::new();
    for backend in registry.backends() {
        let (name, reason) = (backend.name(), chosen.and_then(|choice| reason(choice, backend.name())));
        let this = chosen.filter(|choice| choice.name == name);
        let opened = this.map_or_else(|| Device::open(backend), |choice| Ok(choice.device.clone()));
        let default = this.is_some();
        if args.json {
            let mut object =
                json!({ "name": name, "description": backend.description(), "default": default, "reason": reason });
            match opened {
                Ok(device) => {
                    object["capabilities"] = capabilities(device.capabilities());
                    object["fallback"] = json!(fallback(&device));
                }
                Err(error) => {
                    object["error"] =
                        json!({ "code": error.code(), "message": error.to_string(), "help": error.help() });
                }
            }
            objects.push(object);
            continue;
        }
        let mark = if default { " (default)" } else { "" };
        let verdict = if default { "selected" } else { "not selected" };
        let because = reason.map(|reason| format!("\n    {verdict}: {reason}")).unwrap_or_default();
        let details = match opened {
            Ok(device) => {
                let fallback = fallback(&device).map(|reason| format!("\n    portable executor ({reason})"));
                description(device.capabilities()) + &fallback.unwrap_or_default()
            }
            Err(error) => format!("\n    not available: {error}\n    help: {}", error.help()),
        };
        writeln!(stdout, "{name}{mark}\n    {}{details}{because}", backend.description()).map_err(Error::Stdout)?;
    }
    if args.json {
        let default = chosen.map(|choice| choice.name);
        writeln!(stdout, "{}", json!({ "default": default, "devices": objects })).map_err(Error::Stdout)?;
    }
    Ok(choice.map(drop)?)
}

/// A small kernel that every device can run.
pub(crate) fn probe() -> Result<Validated<Program>, Error> {
    Ok(validate::program(text::parse(include_str!("probe.vyre"))?.programs.swap_remove(0))?)
}

/// Returns the reason if a device falls back to its portable executor. `vyre doctor` reports devices that cannot compile at all.
fn fallback(device: &Device) -> Option<String> {
    device.compile(&probe().ok()?).ok()?.compilation().fallback.clone()
}

/// Reason for selecting or not selecting a device.
fn reason<'c>(choice: &'c Choice, name: &str) -> Option<&'c str> {
    choice.reasons.iter().find(|(backend, _)| *backend == name).map(|(_, reason)| reason.as_str())
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Null => "null",
        DeviceKind::Oracle => "interpreter",
        DeviceKind::Cpu => "processor",
        DeviceKind::Gpu => "GPU",
        DeviceKind::SoftwareGpu => "software GPU driver",
    }
}

fn types(capabilities: &Capabilities) -> Vec<&'static str> {
    capabilities.types.iter().map(Type::name).collect()
}

/// Short description of a device: `cpu (AVX2, 2 threads)`, `wgpu (llvmpipe, software Vulkan)`.
pub(crate) fn phrase(choice: &Choice) -> String {
    let Capabilities { name, kind, threads, instruction_set, .. } = choice.device.capabilities();
    let details = match kind {
        DeviceKind::Cpu => instruction_set.iter().map(ToString::to_string).chain(threads.map(|n| counted(n, "thread"))),
        DeviceKind::Gpu => return format!("{} ({name})", choice.name),
        DeviceKind::SoftwareGpu => return format!("{} ({name}, software Vulkan)", choice.name),
        DeviceKind::Null | DeviceKind::Oracle => return choice.name.into(),
    };
    format!("{} ({})", choice.name, details.collect::<Vec<_>>().join(", "))
}

pub(crate) fn description(capabilities: &Capabilities) -> String {
    let Capabilities { name, floats, .. } = capabilities;
    let code = capabilities.instruction_set.map(|name| format!(", {name}")).unwrap_or_default();
    let threads = capabilities.threads.map(|threads| format!(", {}", counted(threads, "thread"))).unwrap_or_default();
    let memory = capabilities.memory_bytes.map_or("unknown".into(), |bytes| format!("{} MiB", bytes >> 20));
    let subgroup = capabilities.subgroup_size.map_or("none".into(), |size| size.to_string());
    let trips = capabilities
        .max_loop_trips
        .map(|trips| format!("\n    loops: at most {trips} trips per invocation, independent of fuel"));
    let adapters: String = capabilities.reasons.iter().map(|reason| format!("\n    adapter {reason}")).collect();
    let bindings = match capabilities.max_binding_bytes {
        u64::MAX => "of any size".into(),
        bytes => format!("up to {bytes} bytes"),
    };
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    format!(
        "\n    {name} ({}{code}{threads})\n    types: {}\n    64-bit atomics: {}, subgroup size: {subgroup}\n    \
         workgroups: up to {} invocations, {} bytes\n    bindings: {bindings}, memory: {memory}{}\n    \
         floats: exact f32 {}, fused fma {}, subnormals {}, infinities and NaNs {}{adapters}",
        kind(capabilities.kind),
        types(capabilities).join(", "),
        yes(capabilities.atomics_64),
        capabilities.max_workgroup_invocations,
        capabilities.max_workgroup_bytes,
        trips.unwrap_or_default(),
        yes(floats.exact_f32),
        yes(floats.fused_fma),
        yes(floats.subnormals),
        yes(floats.infinities_and_nans),
    )
}

pub(crate) fn capabilities(capabilities: &Capabilities) -> Value {
    json!({
        "name": capabilities.name,
        "kind": kind(capabilities.kind),
        "types": types(capabilities),
        "atomics_64": capabilities.atomics_64,
        "subgroup_size": capabilities.subgroup_size,
        "max_workgroup_size": capabilities.max_workgroup_size,
        "max_workgroup_invocations": capabilities.max_workgroup_invocations,
        "max_workgroup_bytes": capabilities.max_workgroup_bytes,
        "max_storage_objects": capabilities.max_storage_objects,
        "max_binding_bytes": capabilities.max_binding_bytes,
        "max_buffer_bytes": capabilities.max_buffer_bytes,
        "memory_bytes": capabilities.memory_bytes,
        "max_loop_trips": capabilities.max_loop_trips,
        "threads": capabilities.threads,
        "instruction_set": capabilities.instruction_set,
        "adapters": capabilities.reasons,
        "floats": {
            "exact_f32": capabilities.floats.exact_f32,
            "fused_fma": capabilities.floats.fused_fma,
            "subnormals": capabilities.floats.subnormals,
            "infinities_and_nans": capabilities.floats.infinities_and_nans,
        },
    })
}
