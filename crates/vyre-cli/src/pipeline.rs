//! Pipelines of modules, for `vyre run`, `vyre bench` and `vyre explain`.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use vyre::explain::{Explanation, Request};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::ir::{Access, BufferId, Memory, Program, Space, Terminator};
use vyre_foundation::launch::Report;
use vyre_foundation::{Validated, validate};
use vyre_runtime::pipeline::{Join, Pipeline, Plan, Use};

use crate::error::Error;
use crate::explain::request;
use crate::outputs::Target;
use crate::progress::Progress;
use crate::reproducer::{Reproducer, canonical, launched, watch};
use crate::source::Source;
use crate::stdout::Stdout;
use crate::{binding, devices, report};

/// Empty program with the external buffers of a pipeline as its objects, so that bindings, checks and output of kernels apply to pipelines.
pub(crate) fn interface(pipeline: &Pipeline) -> Result<Validated<Program>, Error> {
    let recorded = pipeline.recorded();
    let mut program = Program::new(recorded.name.clone(), [1; 3]);
    for buffer in recorded.buffers.values() {
        let access = match buffer.role {
            Role::In => Access::Read,
            Role::Out => Access::Write,
            Role::InOut => Access::ReadWrite,
            Role::Transient => continue,
        };
        program.add_memory(Memory {
            name: buffer.name.clone(),
            space: Space::Storage(access),
            element: buffer.element,
            length: Some(buffer.length),
            atomic: false,
            default: None,
            span: buffer.span,
        });
    }
    let body = program.body();
    program.push(body, Terminator::Return, [], &[], [], recorded.span);
    Ok(validate::program(program)?)
}

/// Returns whether the caller binds the initial contents of a buffer.
fn is_given(pipeline: &Pipeline, name: &str) -> bool {
    let buffers = &pipeline.recorded().buffers;
    buffers.values().any(|buffer| buffer.name == name && buffer.role.is_given())
}

/// Reads bindings, and refuses names that are not inputs of the pipeline.
pub(crate) fn bound(
    bindings: &[(String, String)],
    pipeline: &Pipeline,
    interface: &Validated<Program>,
) -> Result<Inputs, Error> {
    let given = |name: &str| is_given(pipeline, name);
    if let Some((name, _)) = bindings.iter().find(|(name, _)| !given(name)) {
        let objects = interface.memories().values().map(|memory| memory.name.clone());
        let known = objects.filter(|name| given(name)).collect();
        return Err(vyre_foundation::Error::UnknownBinding { name: name.clone(), known }.into());
    }
    binding::bound(bindings, interface)
}

/// Reads bindings, and requires one for each input.
pub(crate) fn inputs(
    bindings: &[(String, String)],
    pipeline: &Pipeline,
    interface: &Validated<Program>,
) -> Result<Inputs, Error> {
    let mut inputs = bound(bindings, pipeline, interface)?;
    for memory in interface.memories().values().filter(|memory| is_given(pipeline, &memory.name)) {
        if inputs.contents(&memory.name).is_none() {
            return Err(Error::MissingInput { name: memory.name.clone(), length: memory.length.unwrap_or(0) });
        }
    }
    inputs.complete(interface)?;
    inputs.bind(interface)?;
    Ok(inputs)
}

/// JSON object of a run.
pub(crate) fn ran(plan: &Plan, groups: &[Vec<Report>]) -> Value {
    let launch = |(launch, report): (&usize, &Report)| {
        let launch = &plan.launches[*launch];
        json!({
            "program": launch.program.name(),
            "dispatches": launch.dispatches,
            "milliseconds": report.time.as_secs_f64() * 1e3,
        })
    };
    let groups = plan.groups.iter().zip(groups);
    let groups: Vec<Value> = groups.map(|(group, reports)| group.iter().zip(reports).map(launch).collect()).collect();
    json!({
        "pipeline": plan.name,
        "peak_bytes": plan.memory.peak_bytes,
        "groups": groups,
    })
}

/// Explains the plan of a pipeline. `flags` are those of the reproducer's command.
pub(crate) fn explain(
    source: &Source,
    pipeline: &Pipeline,
    device: Option<&str>,
    page: Option<&Target>,
    flags: &str,
    json: bool,
    stdout: &mut Stdout,
) -> Result<(), Error> {
    let registry = devices::registry(None)?;
    let choice = registry.choose(device, None)?;
    let reproducer = || {
        let name = &pipeline.recorded().name;
        let command = format!("vyre explain {{}} --program {name} --device {}{flags}", choice.name);
        let mut facts = vec![format!("device {}: {}", choice.name, choice.device.capabilities().name)];
        facts.extend(launched(pipeline, &choice.device));
        Reproducer { name, command, facts, text: canonical(source) }
    };
    let progress = Progress::new("explaining", 0);
    let text = watch(reproducer, || {
        let plan = pipeline.plan(choice.device.capabilities())?;
        if let Some(file) = page {
            let source = source.explained();
            let mut programs = Vec::new();
            for launch in &plan.launches {
                let lengths: Vec<_> = launch.lengths(&plan).collect();
                let (profile, target) = (choice.device.profile(), choice.device.target());
                let request = Request { profile, target, lengths: &lengths, ..request(registry.telemetry())? };
                programs.push(Explanation::new(&launch.program, &request, Some(&source))?.view());
            }
            let what = json!({ "pipeline": object(&plan, choice.name, pipeline), "programs": programs });
            report::write(file, &plan.name, &source.subtitle(choice.name), what)?;
        }
        Ok(match json {
            true => format!("{}\n", object(&plan, choice.name, pipeline)),
            false => describe(&plan, choice.name, pipeline),
        })
    })?;
    drop(progress);
    stdout.write_all(text.as_bytes()).map_err(Error::Stdout)
}

/// Fusion decision: `yes`, or `no: REASON`.
fn why(join: &Join) -> String {
    match join {
        Join::Fused => "yes".into(),
        Join::Refused(reason) => format!("no: {reason}"),
        Join::Budget => "no: the fused plan exceeds the memory budget".into(),
    }
}

/// The launch that a dispatch is part of.
fn launch_of(plan: &Plan, dispatch: usize) -> Option<usize> {
    plan.launches.iter().position(|launch| launch.dispatches.contains(&dispatch))
}

fn describe(plan: &Plan, device: &str, pipeline: &Pipeline) -> String {
    let (dispatches, launches, groups) = (plan.order.len(), plan.launches.len(), plan.groups.len());
    let mut text = format!(
        "pipeline {} on {device}: {dispatches} dispatches, {launches} launches, {groups} barrier groups\n\n\
         {:<28}{:<8}fused with the previous dispatch?\n",
        plan.name, "dispatch", "launch"
    );
    for (position, &dispatch) in plan.order.iter().enumerate() {
        let why = position.checked_sub(1).map(|edge| why(&plan.joins[edge])).unwrap_or_default();
        let launch = launch_of(plan, dispatch).map(|launch| launch.to_string()).unwrap_or_default();
        let name = format!("{dispatch} {}", pipeline.recorded().dispatches[dispatch].program);
        let _ = writeln!(text, "{}", format!("{name:<28}{launch:<8}{why}").trim_end());
    }
    let _ = writeln!(text, "\n{:<8}{:<28}bytes in use", "group", "launches");
    for (group, launches) in plan.groups.iter().enumerate() {
        let launches = launches.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{group:<8}{launches:<28}{}", plan.memory.over_time[group]);
    }
    let memory = &plan.memory;
    let _ = writeln!(
        text,
        "\nfusion saves {} of {dispatches} launches and {} bytes of buffers",
        plan.avoided_launches(),
        plan.avoided_bytes()
    );
    let budget = if memory.budget_bytes == u64::MAX { String::new() } else { format!(" of {}", memory.budget_bytes) };
    let _ = writeln!(
        text,
        "peak memory is {}{budget} bytes; {} without sharing memory between buffers",
        memory.peak_bytes, memory.unshared_bytes
    );
    text
}

fn object(plan: &Plan, device: &str, pipeline: &Pipeline) -> Value {
    let recorded = pipeline.recorded();
    let name = |id: &BufferId| recorded.buffers[*id].name.as_str();
    let dispatches: Vec<Value> = plan
        .order
        .iter()
        .enumerate()
        .map(|(position, &dispatch)| {
            let join = position.checked_sub(1).map(|edge| &plan.joins[edge]);
            let uses = pipeline.uses(dispatch).unwrap_or_default();
            let names = |which: fn(&Use) -> bool| -> Vec<&str> {
                uses.iter().filter(|used| which(used)).map(|used| name(&used.buffer)).collect()
            };
            json!({
                "dispatch": dispatch,
                "program": recorded.dispatches[dispatch].program,
                "reads": names(|used| used.reads),
                "writes": names(|used| used.writes),
                "launch": launch_of(plan, dispatch),
                "fused": join.map(|join| *join == Join::Fused),
                "why": join.map(why),
            })
        })
        .collect();
    let launched: Vec<Value> = plan
        .launches
        .iter()
        .enumerate()
        .map(|(number, launch)| {
            json!({
                "program": launch.program.name(),
                "dispatches": launch.dispatches,
                "group": plan.groups.iter().position(|group| group.contains(&number)),
                "workgroups": launch.groups,
                "dropped": launch.dropped.iter().map(name).collect::<Vec<_>>(),
            })
        })
        .collect();
    let buffers = recorded.buffers.values();
    let buffers: Vec<Value> = buffers
        .map(|buffer| json!({ "name": buffer.name, "role": buffer.role.name(), "bytes": buffer.bytes() }))
        .collect();
    let memory = &plan.memory;
    let groups = plan.groups.iter().zip(&memory.over_time);
    let groups: Vec<Value> = groups.map(|(launches, bytes)| json!({ "launches": launches, "bytes": bytes })).collect();
    json!({
        "pipeline": plan.name,
        "device": device,
        "dispatches": dispatches,
        "launches": plan.launches.len(),
        "launched": launched,
        "buffers": buffers,
        "groups": groups,
        "avoided_launches": plan.avoided_launches(),
        "avoided_bytes": plan.avoided_bytes(),
        "memory": {
            "budget_bytes": memory.budget_bytes,
            "peak_bytes": memory.peak_bytes,
            "resident_bytes": memory.resident_bytes,
            "unshared_bytes": memory.unshared_bytes,
        },
    })
}
