//! Algorithms on frontiers, on all devices and in all topologies, against plain code.
#![cfg(not(loom))]

use vyre_cpu::Cpu;
use vyre_driver::{Device, Error, Oracle};
use vyre_runtime::frontier::{Config, Engine, Needs, Topology};
use vyre_runtime::graph::sssp::Distances;
use vyre_runtime::graph::{self, Edge, Edges, Family, Graph, Weights};
use vyre_runtime::megakernel::policy::Policy;
use vyre_wgpu::Wgpu;

fn graph(nodes: u32, list: &[(u32, u32)], symmetric: bool) -> Graph {
    let edge = |(at, &(source, target)): (usize, &(u32, u32))| Edge { source, target, weight: at as u32 * 7 % 31 };
    Graph::new(&Edges { nodes, list: list.iter().enumerate().map(edge).collect(), weights: Weights::Whole, symmetric })
        .unwrap()
}

/// Small graphs of all sorts, by name.
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
        ("loops and edges that are there twice", graph(3, &loops, false)),
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
        // Where a driver should be and is not, the tests of the backend itself fail.
        Err(Error::NoAdapter { .. }) => eprintln!("not run on wgpu"),
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

/// On every device, for every graph and topology.
fn everywhere(check: impl Fn(&Engine<'_>) -> Result<(), Error>) {
    for (device_name, device) in devices() {
        for (graph_name, graph) in graphs() {
            for fixed in TOPOLOGIES {
                let config = Config { fixed, explains: true, ..Config::default() };
                let engine = Engine::new(&device, &graph, config, Needs { node_bytes: 16, edge_bytes: 4 }).unwrap();
                check(&engine).unwrap_or_else(|error| panic!("{device_name}, {graph_name}, {fixed:?}: {error}"));
            }
        }
    }
}

/// Two nodes, if there are any.
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
fn real_lengths() {
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
    // A delta that is nothing beside the weights, or no number, still leads to the end.
    for delta in [f32::MIN_POSITIVE, -1.0, f32::NAN, f32::INFINITY] {
        let expected = Distances::Real(vec![0.0, 1e30, 1e30, f32::INFINITY]);
        assert_eq!(run([1e30, 1.0], Some(delta)).unwrap(), expected);
    }
    // Paths are finite, so that an infinite one means that there is none.
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

/// The topologies of a breadth-first search.
fn topologies(device: &Device, graph: &Graph, config: Config) -> Vec<Topology> {
    let config = Config { explains: true, ..config };
    let engine = Engine::new(device, graph, config, Needs { node_bytes: 8, edge_bytes: 0 }).unwrap();
    let source = (0..graph.nodes()).find(|node| !graph.outgoing.of(*node).is_empty()).unwrap();
    graph::bfs(&engine, source).unwrap().verify(graph, source).unwrap();
    let iterations = engine.iterations();
    assert!(iterations.iter().all(|step| !step.reason.is_empty() && step.bytes > 0));
    iterations.iter().map(|step| step.topology).collect()
}

#[test]
fn the_policy_decides() {
    let device = Device::open(&Cpu::default()).unwrap();
    let kron = Graph::new(&Edges::generate(Family::Kronecker, 12, 16, 1).unwrap()).unwrap();
    let found = topologies(&device, &kron, Config::default());
    assert_eq!(found[0], Topology::SparseFrontier);
    assert!(found.contains(&Topology::DenseFrontier), "{found:?}");
    // Half of all edges is never reached by a chain.
    let (_, chain) = graphs().into_iter().find(|(name, _)| *name == "a chain").unwrap();
    assert!(topologies(&device, &chain, Config::default()).iter().all(|step| *step == Topology::SparseFrontier));

    // A ladder of layers is dense at each step.
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
    assert_eq!(found[4..], [Topology::FusedDense; 2], "four at once, and the last one");
}

#[test]
fn memory_budgets_are_kept() {
    let device = Device::open(&Cpu::default()).unwrap();
    let graph = Graph::new(&Edges::generate(Family::Kronecker, 14, 4, 1).unwrap()).unwrap();
    let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
    let needed = nodes * 12 + edges * 4 + nodes / 4;
    // Queues for a tenth of the nodes.
    let config = Config { budget: Some(needed + nodes * 4 / 10), ..Config::default() };
    let found = topologies(&device, &graph, config);
    assert!(found.iter().all(|step| *step == Topology::MemoryConstrained), "{found:?}");
    let used = {
        let config = Config { explains: true, ..config };
        let engine = Engine::new(&device, &graph, config, Needs { node_bytes: 8, edge_bytes: 0 }).unwrap();
        graph::bfs(&engine, 3).unwrap();
        engine.iterations().iter().map(|step| step.bytes).max().unwrap()
    };
    // A buffer may be a fifth larger than what is asked for.
    assert!(used * 5 <= config.budget.unwrap() * 6, "{used} of {config:?}");
    let too_little = Config { budget: Some(needed + 16), ..Config::default() };
    let error = Engine::new(&device, &graph, too_little, Needs { node_bytes: 8, edge_bytes: 0 }).err().unwrap();
    assert_eq!(error.code(), "D018");
}
