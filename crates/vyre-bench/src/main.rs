//! Benchmarks: ours and a baseline in the same process and run, alternating, best of N.
//!
//! `cargo xtask bench SUITE [NAME] [--json] [--quick]` builds this in release and runs it.

mod baseline;
mod compile;
mod drain;
mod gpu;
mod graph;
mod host;
mod job;
mod kernels;
mod line;
mod megakernel;
mod pipeline;
mod planners;

use std::process::ExitCode;

use vyre_runtime::Error;

const USAGE: &str = "usage: cargo xtask bench SUITE [NAME] [--json] [--quick]

NAME: only lines whose name contains it

suites:
  compile   the wire format and the optimizer, on generated programs
  kernels   the example kernels on the cpu device, against hand-written kernels, plain Rust with rayon, and their
            unoptimized forms; launch and compile overhead
  gpu       example kernels on the wgpu device, against hand-written WGSL through raw wgpu: kernel times, SPIR-V
            instructions, many dispatches, and time to first result
  pipeline  pipelines on the cpu and wgpu devices, against separate dispatches and a program fused by hand
  planners  the launch planners, against naive implementations
  megakernel
            host side of a megakernel: pruning, the launch policy and the ring, against limits and the standard library
  graph     graph algorithms on the cpu device, against hand-written ones, petgraph and the crate `graph`, and against
            fixed topologies
  host      typed kernels and buffers of the crate `vyre`, against the driver";

type Suite = fn(&line::Report) -> Result<(), Error>;

const SUITES: [(&str, Suite); 8] = [
    ("compile", |report| compile::run(report).map_err(Error::from)),
    ("kernels", |report| kernels::run(report).map_err(Error::from)),
    ("gpu", |report| gpu::run(report).map_err(Error::from)),
    ("pipeline", pipeline::run),
    ("planners", |report| planners::run(report).map_err(Error::from)),
    ("megakernel", megakernel::run),
    ("graph", graph::run),
    ("host", |report| host::run(report).map_err(Error::from)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let unknown = arguments
        .iter()
        .find(|argument| argument.starts_with('-') && !matches!(argument.as_str(), "--json" | "--quick"));
    let suites: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let only = suites.get(1).map_or(String::new(), |name| (*name).clone());
    let report = line::Report { json: flag("--json"), quick: flag("--quick"), only };
    let suite: Option<Suite> = match (unknown, suites.as_slice()) {
        (None, [suite] | [suite, _]) => SUITES.iter().find(|(name, _)| name == suite).map(|(_, run)| *run),
        _ => None,
    };
    match suite.map(|run| run(&report)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("error[{}]: {error}\n  = help: {}", error.code(), error.help());
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
