//! Graph algorithms on all devices and in all topologies, verified by sequential algorithms on the host.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use vyre_cpu::Cpu;
use vyre_driver::backend::{Command, Groups};
use vyre_driver::{Device, Error as DriverError, Oracle};
use vyre_runtime::Error;
use vyre_runtime::frontier::{Config, Engine, Needs, Topology};
use vyre_runtime::graph::sssp::Distances;
use vyre_runtime::graph::{self, Edge, Edges, Family, Graph, Weights};
use vyre_runtime::megakernel::policy::Policy;
use vyre_testkit::intercept::{Intercepted, Interceptor};
use vyre_wgpu::Wgpu;

fn graph(nodes: u32, list: &[(u32, u32)], symmetric: bool) -> Graph {
    let edge = |(at, &(source, target)): (usize, &(u32, u32))| Edge { source, target, weight: at as u32 * 7 % 31 };
    Graph::new(&Edges { nodes, list: list.iter().enumerate().map(edge).collect(), weights: Weights::Whole, symmetric })
        .unwrap()
}

/// Small graphs with corner cases, by name.
fn graphs() -> Vec<(&'static str, Graph)> {
    let chain: Vec<(u32, u32)> = (0..40).map(|node| (node, node + 1)).collect();
    let star: Vec<(u32, u32)> = (1..300).map(|node| (0, node)).collect();
    let apart = [(0, 1), (1, 2), (2, 0), (4, 5), (5, 6), (8, 9)];
    let loops = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 1), (2, 2), (1, 2), (1, 2)];
    let random = |family, scale, factor| Graph::new(&Edges::generate(family, scale, factor, 3).unwrap()).unwrap();
    let mut directed = Edges::generate(Family::Kronecker, 8, 4, 5).unwrap();
    directed.symmetric = false;
    let mut real = directed.clone();
    real.weights = Weights::Real;
    real.list.iter_mut().for_each(|edge| edge.weight = (edge.weight as f32 / 7.0 - 0.14).max(0.0).to_bits());
    vec![
        ("empty", graph(0, &[], true)),
        ("one node", graph(1, &[], true)),
        ("no edges", graph(70, &[], false)),
        ("a chain", graph(41, &chain, false)),
        ("a star", graph(300, &star, true)),
        ("disconnected", graph(11, &apart, true)),
        ("self-loops and duplicate edges", graph(3, &loops, false)),
        ("kron:8", random(Family::Kronecker, 8, 8)),
        ("urand:8", random(Family::Uniform, 8, 4)),
        ("directed", Graph::new(&directed).unwrap()),
        ("real weights", Graph::new(&real).unwrap()),
    ]
}

fn devices() -> Vec<(&'static str, Device)> {
    let mut devices =
        vec![("cpu", Device::open(&Cpu::default()).unwrap()), ("reference", Device::open(&Oracle::default()).unwrap())];
    match Device::open(&Wgpu) {
        Ok(device) => devices.push(("wgpu", device)),
        // Missing drivers are reported by the tests of the backend.
        Err(DriverError::NoAdapter { .. }) => eprintln!("not run on wgpu"),
        Err(error) => panic!("{error}"),
    }
    devices
}

const TOPOLOGIES: [Option<Topology>; 5] = [
    None,
    Some(Topology::SparseFrontier),
    Some(Topology::HybridFrontier),
    Some(Topology::DenseFrontier),
    Some(Topology::MemoryConstrained),
];

/// Runs a check on every device, for every graph and topology.
fn everywhere(check: impl Fn(&Engine<'_>) -> Result<(), Error>) {
    for (device_name, device) in devices() {
        for (graph_name, graph) in graphs() {
            for fixed in TOPOLOGIES {
                let config = Config { fixed, explains: true, ..Config::default() };
                let engine = Engine::new(&device, &graph, config, graph::sssp::needs(&graph, None)).unwrap();
                check(&engine).unwrap_or_else(|error| panic!("{device_name}, {graph_name}, {fixed:?}: {error}"));
            }
        }
    }
}

/// Up to two source nodes.
fn sources(engine: &Engine<'_>) -> impl Iterator<Item = u32> {
    let nodes = engine.graph().nodes();
    [0, nodes / 2].into_iter().filter(move |node| *node < nodes)
}

#[test]
fn breadth_first_search() {
    everywhere(|engine| {
        for source in sources(engine) {
            graph::bfs(engine, source)?.verify(engine.graph(), source)?;
        }
        Ok(())
    });
}

#[test]
fn shortest_paths() {
    everywhere(|engine| {
        for (source, delta) in sources(engine).zip([None, Some(40.0)]) {
            graph::sssp(engine, source, delta)?.verify(engine.graph(), source)?;
        }
        Ok(())
    });
}

#[test]
fn shortest_paths_with_real_weights() {
    let device = Device::open(&Cpu::default()).unwrap();
    let run = |weights: [f32; 2], delta| {
        let edge = |(source, weight): (u32, f32)| Edge { source, target: source + 1, weight: weight.to_bits() };
        let list = (0..).zip(weights).map(edge).collect();
        let graph = Graph::new(&Edges { nodes: 4, list, weights: Weights::Real, symmetric: false }).unwrap();
        let engine = Engine::new(&device, &graph, Config::default(), Needs::default()).unwrap();
        let found = graph::sssp(&engine, 0, delta)?;
        found.verify(&graph, 0)?;
        Ok::<_, Error>(found.distances)
    };
    assert_eq!(run([0.5, 0.25], None).unwrap(), Distances::Real(vec![0.0, 0.5, 0.75, f32::INFINITY]));
    // Deltas far below the weights, negative, infinite or NaN still terminate.
    for delta in [f32::MIN_POSITIVE, -1.0, f32::NAN, f32::INFINITY] {
        let expected = Distances::Real(vec![0.0, 1e30, 1e30, f32::INFINITY]);
        assert_eq!(run([1e30, 1.0], Some(delta)).unwrap(), expected);
    }
    // Path lengths must be finite, since infinity stands for unreachable.
    for weight in [f32::MAX, f32::INFINITY, f32::NAN, -1.0] {
        assert_eq!(run([weight, 1.0], None).unwrap_err().code(), "D019");
    }
}

#[test]
fn connected_components() {
    everywhere(|engine| graph::components(engine)?.verify(engine.graph()));
}

#[test]
fn page_rank() {
    everywhere(|engine| {
        let found = graph::pagerank(engine, 1e-4, 100)?;
        assert!(found.change <= 1e-4 && found.iterations < 100, "{} {}", found.change, found.iterations);
        found.verify(engine.graph(), 1e-4)
    });
}

#[test]
fn triangle_counts() {
    everywhere(|engine| match graph::triangles(engine) {
        Err(Error::NotSymmetric) if !engine.graph().is_symmetric() => Ok(()),
        found => graph::verify_triangles(engine.graph(), found?),
    });
}

/// Returns the topologies of a breadth-first search.
fn topologies(device: &Device, graph: &Graph, config: Config) -> Vec<Topology> {
    let config = Config { explains: true, ..config };
    let engine = Engine::new(device, graph, config, graph::bfs::needs(graph)).unwrap();
    let source = (0..graph.nodes()).find(|node| !graph.outgoing().of(*node).is_empty()).unwrap();
    graph::bfs(&engine, source).unwrap().verify(graph, source).unwrap();
    let iterations = engine.iterations();
    assert!(iterations.iter().all(|step| !step.reason.is_empty() && step.bytes > 0));
    assert!(iterations.iter().all(|step| step.compile_time <= step.time));
    // Kernels are compiled once per engine.
    let compiled = engine.compile_time();
    graph::bfs(&engine, source).unwrap();
    assert!(!compiled.is_zero() && engine.compile_time() == compiled);
    assert!(engine.iterations()[iterations.len()..].iter().all(|step| step.compile_time.is_zero()));
    iterations.iter().map(|step| step.topology).collect()
}

#[test]
fn the_policy_chooses_topologies() {
    let device = Device::open(&Cpu::default()).unwrap();
    let kron = Graph::new(&Edges::generate(Family::Kronecker, 12, 16, 1).unwrap()).unwrap();
    let found = topologies(&device, &kron, Config::default());
    assert_eq!(found[0], Topology::SparseFrontier);
    assert!(found.contains(&Topology::DenseFrontier), "{found:?}");
    // The frontier of a chain has one node, far below the sparse threshold.
    let (_, chain) = graphs().into_iter().find(|(name, _)| *name == "a chain").unwrap();
    assert!(topologies(&device, &chain, Config::default()).iter().all(|step| *step == Topology::SparseFrontier));

    // Complete bipartite layers are dense at each step.
    let (layers, width) = (12, 100);
    let between =
        |layer: u32| (0..width * width).map(move |at| (layer * width + at / width, (layer + 1) * width + at % width));
    let edges: Vec<(u32, u32)> = (0..layers - 1).flat_map(between).collect();
    let ladder = graph(layers * width, &edges, true);
    let policy = Policy { dense_frontier_threshold_bps: 7000, ..Config::default().policy };
    let found = topologies(&device, &ladder, Config { policy, ..Config::default() });
    assert_eq!(found[1..5], [Topology::DenseFrontier; 4]);
    assert!(found[5..].iter().all(|step| *step == Topology::FusedDense) && found.len() == 9, "{found:?}");

    let engine = Engine::new(&device, &kron, Config { explains: true, ..Config::default() }, Needs::default()).unwrap();
    graph::pagerank(&engine, 0.0, 9).unwrap();
    let iterations = engine.iterations();
    let found: Vec<Topology> = iterations.iter().map(|step| step.topology).collect();
    assert_eq!(found[..4], [Topology::DenseFrontier; 4]);
    assert_eq!(found[4..], [Topology::FusedDense; 2], "one record of four iterations, and one of the last");
}

/// An algorithm with its needs.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Bfs,
    Sssp,
    /// `Sssp` with a delta below most weights, so that rows are split into light and heavy edges.
    SsspSplit,
    PageRank,
    Components,
    Triangles,
}

impl Algorithm {
    const ALL: [Algorithm; 6] = [
        Algorithm::Bfs,
        Algorithm::Sssp,
        Algorithm::SsspSplit,
        Algorithm::PageRank,
        Algorithm::Components,
        Algorithm::Triangles,
    ];

    fn delta(self) -> Option<f32> {
        matches!(self, Algorithm::SsspSplit).then_some(3.0)
    }

    fn needs(self, graph: &Graph) -> Needs {
        match self {
            Algorithm::Bfs => graph::bfs::needs(graph),
            Algorithm::Sssp | Algorithm::SsspSplit => graph::sssp::needs(graph, self.delta()),
            Algorithm::PageRank => graph::pagerank::needs(graph).unwrap(),
            Algorithm::Components => graph::components::needs(graph),
            Algorithm::Triangles => graph::triangles::needs(graph),
        }
    }

    fn run(self, engine: &Engine<'_>) -> Result<(), Error> {
        let (graph, source) = (engine.graph(), engine.graph().nodes() / 3);
        match self {
            Algorithm::Bfs => graph::bfs(engine, source)?.verify(graph, source),
            Algorithm::Sssp | Algorithm::SsspSplit => graph::sssp(engine, source, self.delta())?.verify(graph, source),
            Algorithm::PageRank => graph::pagerank(engine, 1e-4, 100)?.verify(graph, 1e-4),
            Algorithm::Components => graph::components(engine)?.verify(graph),
            Algorithm::Triangles => graph::verify_triangles(graph, graph::triangles(engine)?),
        }
    }
}

/// Returns the budget that an error requires.
fn required<T>(result: Result<T, Error>) -> u64 {
    match result {
        Err(Error::Driver(DriverError::OverBudget { required, .. })) => required,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the budget was accepted"),
    }
}

/// Directed and undirected graphs whose buffers are rounded by 0 to 20 %.
fn graphs_of_all_sizes() -> Vec<Graph> {
    let generate = |scale, factor| Edges::generate(Family::Kronecker, scale, factor, 1).unwrap();
    let mut directed = generate(10, 5);
    directed.symmetric = false;
    let mut odd = generate(11, 3);
    odd.nodes += 1;
    let path: Vec<(u32, u32)> = (1..777).map(|node| (node - 1, node)).collect();
    let mut graphs: Vec<Graph> =
        [generate(12, 16), generate(10, 9), directed, odd].iter().map(|edges| Graph::new(edges).unwrap()).collect();
    graphs.push(graph(777, &path, false));
    graphs.push(graph(1, &[], true));
    graphs
}

#[test]
fn device_memory_stays_within_the_budget() {
    for graph in graphs_of_all_sizes() {
        for algorithm in Algorithm::ALL {
            if matches!(algorithm, Algorithm::Triangles) && !graph.is_symmetric() {
                continue;
            }
            let device = Device::open(&Cpu::default()).unwrap();
            let needs = algorithm.needs(&graph);
            let engine = |budget| {
                let config = Config { budget: Some(budget), explains: true, ..Config::default() };
                Engine::new(&device, &graph, config, needs.clone())
            };
            let what = |budget: u64| format!("{algorithm:?}, {} nodes, budget {budget}", graph.nodes());
            let least = required(engine(0));
            assert_eq!(required(engine(least - 1)), least, "{}", what(least - 1));
            let around = [least, least + 1, least + 255, least + 4096];
            let shares = [21, 22, 24, 28, 32, 40, 50, 70, 100].map(|twentieths| least * twentieths / 20);
            for budget in around.into_iter().chain(shares) {
                let engine = engine(budget).unwrap_or_else(|error| panic!("{}: {error}", what(budget)));
                device.reset_peak_bytes();
                algorithm.run(&engine).unwrap_or_else(|error| panic!("{}: {error}", what(budget)));
                assert!(device.peak_bytes() <= budget, "{}: peak {}", what(budget), device.peak_bytes());
                assert!(engine.iterations().iter().all(|step| step.bytes <= budget), "{}", what(budget));
            }
        }
    }
}

#[test]
fn needs_of_algorithms_without_frontiers_are_exact() {
    for graph in graphs_of_all_sizes() {
        for algorithm in [Algorithm::PageRank, Algorithm::Components, Algorithm::Triangles] {
            if matches!(algorithm, Algorithm::Triangles) && !graph.is_symmetric() {
                continue;
            }
            let device = Device::open(&Cpu::default()).unwrap();
            let engine = |budget| {
                let config = Config { budget: Some(budget), ..Config::default() };
                Engine::new(&device, &graph, config, algorithm.needs(&graph))
            };
            let least = required(engine(0));
            algorithm.run(&engine(least).unwrap()).unwrap();
            assert_eq!(device.peak_bytes(), least, "{algorithm:?}, {} nodes", graph.nodes());
        }
    }
}

#[test]
fn an_engine_for_other_needs_keeps_its_budget() {
    let device = Device::open(&Cpu::default()).unwrap();
    for graph in graphs_of_all_sizes() {
        // All pairs of algorithms: arrays that the first one left resident are evicted for the second.
        let all: Vec<Algorithm> = Algorithm::ALL
            .into_iter()
            .filter(|algorithm| graph.is_symmetric() || !matches!(algorithm, Algorithm::Triangles))
            .collect();
        for needs in [Needs::default(), graph::bfs::needs(&graph)] {
            for budget in [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22] {
                let config = Config { budget: Some(budget), ..Config::default() };
                let Ok(engine) = Engine::new(&device, &graph, config, needs.clone()) else { continue };
                for (algorithm, next) in all.iter().flat_map(|first| all.iter().map(move |next| (first, next))) {
                    for algorithm in [algorithm, next] {
                        device.reset_peak_bytes();
                        match algorithm.run(&engine) {
                            Ok(()) => {}
                            Err(Error::Driver(DriverError::OverBudget { required, .. })) => assert!(required > budget),
                            Err(error) => panic!("{algorithm:?}: {error}"),
                        }
                        let peak = device.peak_bytes();
                        assert!(peak <= budget, "{algorithm:?}, {} nodes: {peak} of {budget}", graph.nodes());
                    }
                }
            }
        }
    }
}

/// Counts launches with indirect grids: a push step has one for each part of the frontier.
#[derive(Default)]
struct Pushes(AtomicU32);

impl Interceptor for Pushes {
    fn submit(&self, commands: &mut [Command]) -> Result<(), DriverError> {
        let is_push = |command: &&Command| matches!(command, Command::Launch(launch) if matches!(launch.groups, Groups::Indirect(_)));
        self.0.fetch_add(commands.iter().filter(is_push).count() as u32, Relaxed);
        Ok(())
    }
}

#[test]
fn steps_are_executed_in_the_reported_number_of_parts() {
    let pushes = Arc::new(Pushes::default());
    let device = Device::open(&Intercepted { name: "counted", backend: Cpu::default(), interceptor: pushes.clone() });
    let device = device.unwrap();
    let graph = Graph::new(&Edges::generate(Family::Kronecker, 14, 4, 1).unwrap()).unwrap();
    let run = |algorithm: Algorithm, budget| {
        let config = Config { budget: Some(budget), explains: true, ..Config::default() };
        let engine = Engine::new(&device, &graph, config, algorithm.needs(&graph))?;
        algorithm.run(&engine)?;
        Ok::<_, Error>(engine.iterations())
    };
    let least = required(run(Algorithm::Bfs, 0));
    let mut most = 64;
    for (budget, at_least) in [(least, 64), (least + (1 << 12), 2), (least * 11 / 10, 1)] {
        let iterations = run(Algorithm::Bfs, budget).unwrap();
        let parts = iterations[0].parts;
        assert!((at_least..=most).contains(&parts), "{parts} parts with {budget} bytes");
        most = parts;
        assert_eq!(pushes.0.swap(0, Relaxed), iterations.iter().map(|step| step.parts).sum::<u32>());
        for step in iterations {
            assert_eq!((step.topology, step.parts), (Topology::MemoryConstrained, parts));
            assert!(step.reason.contains(&format!("; {parts} part")), "{}", step.reason);
        }
    }
    // PageRank has no frontier, so its iterations have one part.
    let least = required(run(Algorithm::PageRank, 0));
    assert!(run(Algorithm::PageRank, least).unwrap().iter().all(|step| step.parts == 1));
}
