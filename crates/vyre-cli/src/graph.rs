//! `vyre graph`: graph algorithms on graph files and random graphs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Access, Element, Memory, Program, Space, Span, Terminator};
use vyre_foundation::optimizer::{self, Request};
use vyre_foundation::run_line::{assignment, count};
use vyre_foundation::{Validated, validate};
use vyre_runtime::frontier::{Config, Engine, Iteration, Needs};
use vyre_runtime::graph::cache::{self, Cache, Lookup};
use vyre_runtime::graph::sssp::Distances;
use vyre_runtime::graph::{self, Edges, Family, Graph, Progress, UNREACHED, Weights};

use crate::compare::not_negative;
use crate::config::Settings;
use crate::error::Error;
use crate::job::bytes;
use crate::outputs::{Outputs, Target};
use crate::reproducer::{Reproducer, quoted, watch};
use crate::run::{outputs_object, show_results};
use crate::stdout::{Stdout, counted};
use crate::{devices, explain, progress, report, trace};

/// Run a graph algorithm on a device
#[derive(clap::Args)]
#[command(after_help = GRAPHS)]
pub(crate) struct Args {
    /// The algorithm
    algorithm: Algorithm,
    /// A graph file, or kron:SCALE or urand:SCALE for a random graph of 2^SCALE nodes
    #[arg(value_name = "GRAPH")]
    graph: String,
    /// Source node of bfs and sssp [default: the first node with edges]
    #[arg(long, value_name = "NODE", allow_negative_numbers = true)]
    source: Option<u32>,
    /// Bucket width of delta-stepping (sssp) [default: derived from the weights]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = positive)]
    delta: Option<f32>,
    /// Convergence threshold of pagerank: maximum sum of changes of all ranks [default: 0.0001]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = not_negative)]
    tolerance: Option<f64>,
    /// Maximum iterations of pagerank [default: 100]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// Edges per node of a random graph [default: 16]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    factor: Option<u32>,
    /// Seed of a random graph
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    seed: Option<u64>,
    /// Add the reverse of every edge
    #[arg(long)]
    symmetric: bool,
    /// Neither read nor write the cached graph
    #[arg(long)]
    no_cache: bool,
    /// Device memory budget of the algorithm
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    budget: Option<u64>,
    /// Maximum host memory for reading, generating and building the graph [default: available memory]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    memory_limit: Option<u64>,
    /// Print the topology of each step with its reason, edges examined, time and memory
    #[arg(long)]
    explain: bool,
    /// Verify the result on the host, and fail if it is wrong
    #[arg(long)]
    verify: bool,
    /// Write a timeline of the host and the device for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Write an HTML page: step and compile times, the topology of each step with its reason, the passes of each kernel, and a timeline
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Target of a result: @FILE.npy, @FILE.bin, or - for standard output
    #[arg(long, value_name = "NAME=TARGET", value_parser = assignment)]
    out: Vec<(String, String)>,
    /// Device to run on; `vyre devices` lists the devices [default: VYRE_DEVICE, or the fastest]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const GRAPHS: &str = "\
Files:
  NAME.mtx        Matrix Market
  NAME.sg, .wsg   serialized graph of the GAP benchmark suite
  other names     edge list: lines SOURCE TARGET [WEIGHT]
Matrix Market files and edge lists may be compressed (.gz). Weights must not be negative.

Results:
  bfs             parents, depths (u32; 4294967295 for unreached nodes)
  sssp            distances (u32; 4294967295 for unreached nodes; f32 and inf if weights are real)
  pagerank        ranks (f32)
  cc              labels (u32): the lowest node of each component
  tc              no arrays; prints the number of triangles";

#[derive(Clone, Copy, clap::ValueEnum)]
enum Algorithm {
    /// Breadth-first search
    Bfs,
    /// Single-source shortest paths
    Sssp,
    /// PageRank
    Pagerank,
    /// Connected components
    Cc,
    /// Triangle counting
    Tc,
}

impl Args {
    /// Source node of bfs and sssp.
    fn begin(&self, graph: &Graph) -> u32 {
        let leads = |node: &u32| !graph.outgoing().of(*node).is_empty();
        self.source.or_else(|| (0..graph.nodes()).find(leads)).unwrap_or(0)
    }

    /// Device memory of the algorithm.
    fn needs(&self, graph: &Graph) -> Result<Needs, Error> {
        Ok(match self.algorithm {
            Algorithm::Bfs => graph::bfs::needs(graph),
            Algorithm::Sssp => graph::sssp::needs(graph, self.delta),
            Algorithm::Pagerank => graph::pagerank::needs(graph)?,
            Algorithm::Cc => graph::components::needs(graph),
            Algorithm::Tc => graph::triangles::needs(graph),
        })
    }
}

fn positive(text: &str) -> Result<f32, &'static str> {
    match text.parse::<f32>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("it is not a finite number > 0"),
    }
}

/// Summary line and results of a run.
struct Outcome {
    line: String,
    elapsed: Duration,
    results: Vec<(&'static str, Vec<u8>)>,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let page = report::target(args.html.as_deref())?;
    if page.is_some() {
        trace::start();
    }
    // Files are checked before the graph is read, which can take long; names of results depend on the graph.
    args.out
        .iter()
        .filter_map(|(_, target)| target.strip_prefix('@'))
        .try_for_each(|path| Target::find(path.as_ref()).map(drop))?;
    let begins = matches!(args.algorithm, Algorithm::Bfs | Algorithm::Sssp);
    let inapplicable = [
        ("--source", args.source.is_some() && !begins),
        ("--delta", args.delta.is_some() && !matches!(args.algorithm, Algorithm::Sssp)),
        ("--tolerance", args.tolerance.is_some() && !matches!(args.algorithm, Algorithm::Pagerank)),
        ("--iterations", args.iterations.is_some() && !matches!(args.algorithm, Algorithm::Pagerank)),
    ];
    if let Some((flag, _)) = inapplicable.into_iter().find(|(_, given)| *given) {
        return Err(Error::Flag { flag, about: args.algorithm.name() });
    }
    let started = Instant::now();
    let (graph, kept) = watched(|| match args.memory_limit {
        Some(bytes) => graph::limited(bytes, || graph(args)),
        None => graph(args),
    })?;
    let built = started.elapsed();
    let (nodes, edges) = (graph.nodes(), graph.edges());
    if args.begin(&graph) >= nodes {
        return Err(Error::Source { source_node: args.begin(&graph), nodes });
    }
    let interface = interface(args.algorithm, &graph)?;
    let mut zeros = Inputs::default();
    zeros.complete(&interface)?;
    let outputs = Outputs::plan(&args.out, &interface, &zeros, [0; 3])?;

    let registry = devices::registry(None)?;
    let choice = registry.choose(args.device.as_deref(), None)?;
    let explains = args.explain || args.json || args.html.is_some();
    let config = Config { budget: args.budget, explains, ..Config::default() };
    let engine = Engine::new(&choice.device, &graph, config, args.needs(&graph)?)?;
    let bar = progress::Progress::new("running", 0);
    let found = watch(|| reproducer(args, &engine, choice.name), || args.algorithm.run(&engine, args))?;
    drop(bar);
    let elapsed = found.elapsed;
    devices::warn_of_damage(&registry);
    let iterations = engine.iterations();
    let mut inputs = Inputs::default();
    for (name, bytes) in found.results {
        inputs.bytes(&interface, name, bytes)?;
    }
    outputs.save(&inputs)?;
    let mut object = json!({
        "algorithm": interface.name(),
        "device": choice.name,
        "nodes": nodes,
        "edges": edges,
        "built_ns": built.as_nanos() as u64,
        "from_cache": kept,
        "elapsed_ns": elapsed.as_nanos() as u64,
        "compile_ns": engine.compile_time().as_nanos() as u64,
        "result": found.line,
        "verified": args.verify,
        "iterations": iterations.iter().map(object).collect::<Vec<_>>(),
    });
    if let Some(file) = &page {
        let title = format!("{} on {}", interface.name(), args.graph);
        let timeline = trace::events();
        let kernels = explain::kernels(&engine.programs(), engine.device(), registry.telemetry())?;
        let what = json!({ "graph": &object, "programs": kernels, "timeline": timeline });
        report::write(file, &title, choice.name, what)?;
    }
    if args.json {
        object["outputs"] = outputs_object(&outputs.printed, &inputs).into();
        return writeln!(stdout, "{object}").map_err(Error::Stdout);
    }
    let mut show = || {
        let from = if kept { ", from the cache" } else { "" };
        let (nodes, edges) = (counted(nodes, "node"), counted(edges, "edge"));
        writeln!(stdout, "{nodes}, {edges}, ready after {:.1} ms{from}", milliseconds(built))?;
        if args.explain {
            show_steps(&iterations, stdout)?;
        }
        let verified = if args.verify { ", verified" } else { "" };
        writeln!(
            stdout,
            "{} on {}: {}{verified}; {:.1} ms",
            interface.name(),
            choice.name,
            found.line,
            milliseconds(elapsed)
        )
    };
    show().map_err(Error::Stdout)?;
    show_results(&outputs.printed, &inputs, stdout)
}

/// Reproducer with the kernels compiled so far, and the command that repeats the run.
fn reproducer(args: &Args, engine: &Engine<'_>, device: &str) -> Reproducer<'static> {
    let (algorithm, device_name) = (args.algorithm.name(), &engine.device().capabilities().name);
    let graph = match std::path::absolute(&args.graph) {
        Ok(file) if file.exists() => file.display().to_string(),
        _ => args.graph.clone(),
    };
    let mut command = format!("vyre graph {algorithm} {}", quoted(&graph));
    command += &args.tolerance.map(|tolerance| format!(" --tolerance {tolerance}")).unwrap_or_default();
    command += &args.iterations.map(|iterations| format!(" --iterations {iterations}")).unwrap_or_default();
    command += &args.source.map(|source| format!(" --source {source}")).unwrap_or_default();
    command += &args.factor.map(|factor| format!(" --factor {factor}")).unwrap_or_default();
    command += &args.seed.map(|seed| format!(" --seed {seed}")).unwrap_or_default();
    command += &args.delta.map(|delta| format!(" --delta {delta}")).unwrap_or_default();
    command += &args.budget.map(|budget| format!(" --budget {budget}")).unwrap_or_default();
    command += &args.memory_limit.map(|bytes| format!(" --memory-limit {bytes}")).unwrap_or_default();
    command += if args.symmetric { " --symmetric" } else { "" };
    command += &format!(" --no-cache --verify --device {device}");

    let mut hash = blake3::Hasher::new();
    let rows = engine.graph().outgoing();
    for word in [&rows.offsets, &rows.targets, &rows.weights].into_iter().flat_map(|words| words.iter()) {
        hash.update(&word.to_le_bytes());
    }
    let (nodes, edges) = (engine.graph().nodes(), engine.graph().edges());
    let mut facts = vec![
        format!("device {device}: {device_name}"),
        format!("{graph}: {nodes} nodes, {edges} edges, rows with blake3 {}", hash.finalize().to_hex()),
    ];
    let mut text = String::new();
    for program in engine.programs() {
        let (profile, target) = (engine.device().profile(), engine.device().target());
        let plan = optimizer::plan(&program, &Request { profile, target, ..Request::default() });
        facts.push(format!("passes of {}: {}", program.name(), plan.pipeline));
        text += &program.to_string();
    }
    Reproducer { name: algorithm, command, facts, text }
}

/// Shows the progress of reading and building a graph.
fn watched<R>(build: impl FnOnce() -> R) -> R {
    let bar = progress::Progress::new("reading", 1);
    let watch = move |progress: Progress| {
        bar.set(progress.done, progress.all);
        bar.set_message(progress.stage.into());
    };
    graph::watched(watch, build)
}

/// Loads or generates the graph. The flag is true if it was in the cache.
fn graph(args: &Args) -> Result<(Graph, bool), Error> {
    let family = match args.graph.split_once(':') {
        Some(("kron", scale)) => Some((Family::Kronecker, scale)),
        Some(("urand", scale)) => Some((Family::Uniform, scale)),
        _ => None,
    };
    let random = match family {
        None => None,
        Some((family, scale)) => match scale.parse::<u32>() {
            Ok(scale @ ..=30) => Some((family, scale)),
            _ => return Err(Error::Scale { text: scale.into() }),
        },
    };
    let path = Path::new(&args.graph);
    let inapplicable = [("--factor", args.factor.is_some()), ("--seed", args.seed.is_some())];
    if let (None, Some((flag, _))) = (random, inapplicable.into_iter().find(|(_, given)| *given)) {
        return Err(Error::Flag { flag, about: "the graph of a file" });
    }
    if let (None, Err(error)) = (random, std::fs::metadata(path)) {
        return Err(Error::Read { path: path.into(), error });
    }
    let (factor, seed) = (args.factor.unwrap_or(16), args.seed.unwrap_or(27_491_095));
    let build = || {
        let graph = match random {
            Some((family, scale)) => Graph::new(&Edges::generate(family, scale, factor, seed)?)?,
            None => Graph::read(path)?,
        };
        if args.symmetric { graph.symmetric() } else { Ok(graph) }
    };
    let origin = match random {
        Some((family, scale)) => Some(format!("{family:?} {scale} {factor} {seed}")),
        None => cache::origin(path),
    };
    let settings = Settings::load()?;
    let folder = if args.no_cache { None } else { settings.private_folder() };
    let (Some(origin), Some(folder)) = (origin, folder) else { return Ok((build()?, false)) };
    let origin = format!("{} {origin}", if args.symmetric { "symmetric" } else { "as it is" });
    let (graph, found) = Cache::kept_in(folder.subfolder("graphs")).graph(&origin, build)?;
    if let Lookup::Damaged(problem) = &found {
        devices::warn(problem.clone());
    }
    Ok((graph, found == Lookup::Hit))
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Bfs => "bfs",
            Algorithm::Sssp => "sssp",
            Algorithm::Pagerank => "pagerank",
            Algorithm::Cc => "cc",
            Algorithm::Tc => "tc",
        }
    }

    /// Result arrays, with one element per node.
    fn results(self, weights: Weights) -> &'static [(&'static str, Element)] {
        match self {
            Algorithm::Bfs => &[("parents", Element::U32), ("depths", Element::U32)],
            Algorithm::Sssp if weights == Weights::Real => &[("distances", Element::F32)],
            Algorithm::Sssp => &[("distances", Element::U32)],
            Algorithm::Pagerank => &[("ranks", Element::F32)],
            Algorithm::Cc => &[("labels", Element::U32)],
            Algorithm::Tc => &[],
        }
    }

    fn run(self, engine: &Engine<'_>, args: &Args) -> Result<Outcome, Error> {
        let graph = engine.graph();
        let (source, started) = (args.begin(graph), Instant::now());
        match self {
            Algorithm::Bfs => {
                let found = graph::bfs(engine, source)?;
                let elapsed = started.elapsed();
                if args.verify {
                    found.verify(graph, source)?;
                }
                let reached = found.depths.iter().filter(|depth| **depth != UNREACHED);
                let (count, most) = (reached.clone().count(), reached.max().copied().unwrap_or(0));
                let line =
                    format!("{} reached from {source}, at most {} away", counted(count, "node"), counted(most, "edge"));
                Ok(Outcome {
                    line,
                    elapsed,
                    results: vec![words("parents", &found.parents), words("depths", &found.depths)],
                })
            }
            Algorithm::Sssp => {
                let found = graph::sssp(engine, source, args.delta)?;
                let elapsed = started.elapsed();
                if args.verify {
                    found.verify(graph, source)?;
                }
                let (count, most, words) = match found.distances {
                    Distances::Whole(distances) => {
                        let reached = distances.iter().filter(|distance| **distance != UNREACHED);
                        (reached.clone().count(), reached.max().unwrap_or(&0).to_string(), distances)
                    }
                    Distances::Real(distances) => {
                        let reached = distances.iter().filter(|distance| distance.is_finite());
                        let most = reached.clone().copied().fold(0.0, f32::max);
                        let bits = distances.iter().map(|distance| distance.to_bits()).collect();
                        (reached.count(), most.to_string(), bits)
                    }
                };
                let line = format!("{} reached from {source}, at most {most} away", counted(count, "node"));
                Ok(Outcome { line, elapsed, results: vec![self::words("distances", &words)] })
            }
            Algorithm::Pagerank => {
                let tolerance = args.tolerance.unwrap_or(1e-4);
                let found = graph::pagerank(engine, tolerance, args.iterations.unwrap_or(100))?;
                let elapsed = started.elapsed();
                if args.verify {
                    let verified = found.verify(graph, tolerance);
                    // A result that did not converge is not a wrong result.
                    if verified.is_err() && found.change > tolerance {
                        return Err(Error::NotSettled { iterations: found.iterations, change: found.change });
                    }
                    verified?;
                }
                let iterations = counted(found.iterations, "iteration");
                let line = format!("{iterations}, the last changed ranks by {:.1e}", found.change);
                let bits: Vec<u32> = found.ranks.iter().map(|rank| rank.to_bits()).collect();
                Ok(Outcome { line, elapsed, results: vec![words("ranks", &bits)] })
            }
            Algorithm::Cc => {
                let found = graph::components(engine)?;
                let elapsed = started.elapsed();
                if args.verify {
                    found.verify(graph)?;
                }
                let line = counted(found.count(), "component");
                Ok(Outcome { line, elapsed, results: vec![words("labels", &found.labels)] })
            }
            Algorithm::Tc => {
                let found = graph::triangles(engine)?;
                let elapsed = started.elapsed();
                if args.verify {
                    graph::verify_triangles(graph, found)?;
                }
                Ok(Outcome { line: counted(found, "triangle"), elapsed, results: Vec::new() })
            }
        }
    }
}

fn words(name: &'static str, words: &[u32]) -> (&'static str, Vec<u8>) {
    (name, words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// A program whose objects are the results of the algorithm, so that results are written and printed like those of kernels.
fn interface(algorithm: Algorithm, graph: &Graph) -> Result<Validated<Program>, Error> {
    let mut program = Program::new(algorithm.name(), [1; 3]);
    for (name, element) in algorithm.results(graph.weights()) {
        program.add_memory(Memory {
            name: (*name).into(),
            space: Space::Storage(Access::Write),
            element: *element,
            length: Some(graph.nodes()),
            atomic: false,
            default: None,
            span: Span::NONE,
        });
    }
    let body = program.body();
    program.push(body, Terminator::Return, [], &[], [], Span::NONE);
    Ok(validate::program(program)?)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn show_steps(iterations: &[Iteration], stdout: &mut Stdout) -> std::io::Result<()> {
    writeln!(
        stdout,
        "{:>4} {:>10} {:>11} {:>9} {:18} {:>11} {:>9} {:>8}  why",
        "step", "nodes", "edges", "density", "topology", "examined", "ms", "MiB"
    )?;
    for (number, step) in iterations.iter().enumerate() {
        writeln!(
            stdout,
            "{number:>4} {:>10} {:>11} {:>7.2} % {:18} {:>11} {:>9.3} {:>8.1}  {}",
            step.nodes,
            step.edges,
            f64::from(step.density_bps) / 100.0,
            format!("{:?}", step.topology),
            step.examined,
            milliseconds(step.time),
            step.bytes as f64 / f64::from(1 << 20),
            step.reason,
        )?;
    }
    Ok(())
}

fn object(step: &Iteration) -> Value {
    json!({
        "nodes": step.nodes,
        "edges": step.edges,
        "density_bps": step.density_bps,
        "topology": format!("{:?}", step.topology),
        "reason": step.reason,
        "examined": step.examined,
        "parts": step.parts,
        "time_ns": step.time.as_nanos() as u64,
        "compile_ns": step.compile_time.as_nanos() as u64,
        "bytes": step.bytes,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use vyre_driver::{Device, Oracle};

    use super::*;
    use crate::source::Parsed;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn wrong_results_leave_a_file_and_the_command() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/path.el");
        let Line { args } = Line::parse_from(["graph", "bfs", file, "--source=1", "--symmetric", "--no-cache"]);
        let (graph, _) = graph(&args).unwrap();
        let device = Device::open(&Oracle::default()).unwrap();
        let engine = Engine::new(&device, &graph, Config::default(), args.needs(&graph).unwrap()).unwrap();
        let result = watch(
            || reproducer(&args, &engine, "reference"),
            || {
                args.algorithm.run(&engine, &args)?;
                Err::<(), _>(
                    vyre_runtime::Error::WrongResult { algorithm: "bfs", node: 2, reason: "why".into() }.into(),
                )
            },
        );
        let Err(Error::Reproduced { error, replay: Ok((reproducer, command)) }) = result else { panic!("{result:?}") };
        assert_eq!((error.code(), error.exit_code()), ("D034", 1));
        let again = Line::parse_from(command.strip_prefix("vyre ").unwrap().split(' ')).args;
        assert_eq!((again.graph.as_str(), again.source, again.symmetric), (file, Some(1), true));
        assert_eq!((again.verify, again.device.as_deref()), (true, Some("reference")));
        let (source, kernels) = Parsed::read(&reproducer).unwrap().validate().unwrap();
        std::fs::remove_file(reproducer).unwrap();
        assert!(source.text.starts_with(&format!("// {command}\n// error[D034]: ")), "{}", source.text);
        assert!(source.text.contains(&format!("\n// {file}: {} nodes, ", graph.nodes())), "{}", source.text);
        assert!(!kernels.programs.is_empty());
        for kernel in &kernels.programs {
            assert!(source.text.contains(&format!("\n// passes of {}: ", kernel.name())), "{}", source.text);
        }
    }
}
