//! Fuzz tests of the public functions of graphs and frontiers: random and extreme arguments give results or typed errors, and terminate.
#![cfg(not(loom))]

use std::path::Path;

use proptest::prelude::*;
use vyre_cpu::Cpu;
use vyre_driver::{Device, Error as DriverError, PrivateFolder};
use vyre_foundation::build;
use vyre_runtime::Error;
use vyre_runtime::frontier::{Body, Config, Engine, Needs, Step, Test, Topology, Visitor};
use vyre_runtime::graph::cache::{self, Cache};
use vyre_runtime::graph::sssp::Distances;
use vyre_runtime::graph::{self, Bfs, Components, Edge, Edges, Family, Graph, PageRank, Rows, Sssp, Weights};
use vyre_runtime::megakernel::policy::Policy;

fn device() -> Device {
    Device::open(&Cpu::default()).unwrap()
}

/// Small, random and extreme numbers.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..80u32, any::<u32>(), Just(u32::MAX), Just(u32::MAX - 1), Just(1 << 31), Just(i32::MAX as u32)]
}

fn weights() -> impl Strategy<Value = Weights> {
    prop_oneof![Just(Weights::None), Just(Weights::Whole), Just(Weights::Real)]
}

fn edges() -> impl Strategy<Value = Edges> {
    let node = || prop_oneof![9 => 0..40u32, 1 => number()];
    let edge = (node(), node(), number()).prop_map(|(source, target, weight)| Edge { source, target, weight });
    let parts = (node(), prop::collection::vec(edge, 0..60), weights(), any::<bool>());
    parts.prop_map(|(nodes, list, weights, symmetric)| Edges { nodes, list, weights, symmetric })
}

/// Builds a graph of at most 64 nodes from the edges that are in bounds.
fn fitting(mut edges: Edges) -> Graph {
    edges.nodes = edges.nodes.clamp(1, 64);
    edges.list.retain(|edge| edge.source.max(edge.target) < edges.nodes);
    Graph::new(&edges).unwrap()
}

fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![
        Just(Topology::Empty),
        Just(Topology::MemoryConstrained),
        Just(Topology::SparseFrontier),
        Just(Topology::HybridFrontier),
        Just(Topology::DenseFrontier),
        Just(Topology::FusedDense),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let budget = prop::option::of(prop_oneof![0..100_000u64, any::<u64>(), Just(u64::MAX)]);
    let bps = || prop_oneof![4 => 0..=10_000u16, 1 => any::<u16>()];
    let parts = (budget, prop::option::of(topology()), any::<bool>(), bps(), bps(), bps());
    parts.prop_map(|(budget, fixed, explains, sparse, dense, short)| {
        let policy = Policy {
            sparse_frontier_threshold_bps: sparse,
            dense_frontier_threshold_bps: dense,
            memory_pressure_threshold_bps: short,
            ..Policy::default()
        };
        Config { policy, budget, fixed, explains }
    })
}

const VISIT: Step = Step { name: "visit", visit, until_admitted: true };

fn visit(k: &build::Kernel) -> Visitor<'_> {
    let seen = k.atomic::<u32>("seen");
    Visitor::new(move |edge| seen.exchange(edge.target, 1).eq(0))
}

fn is_even(k: &build::Kernel) -> Test<'_> {
    Box::new(move |node| (node & k.lit(1u32)).eq(0))
}

fn mark(k: &build::Kernel) -> Body<'_> {
    let seen = k.mutable::<u32>("seen");
    Box::new(move |node| seen.store(node, 7))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn graphs_of_arbitrary_edges(edges in edges(), node in number(), limit in 0..1u64 << 22) {
        let is_inside = |edge: &Edge| edge.source.max(edge.target) < edges.nodes;
        match graph::limited(limit, || Graph::new(&edges)) {
            Ok(graph) => {
                prop_assert!(edges.list.iter().all(is_inside));
                prop_assert_eq!(graph.nodes(), edges.nodes);
                prop_assert!(node < graph.nodes() || graph.outgoing().of(node).is_empty());
                prop_assert!(node < graph.nodes() || graph.incoming().range(node).is_empty());
                let symmetric = graph.clone().symmetric().unwrap();
                prop_assert!(symmetric.is_symmetric() && symmetric.edges() >= graph.edges());
                graph.weights().sum(node, node);
            }
            Err(Error::NoSuchNode { node, nodes }) => prop_assert!(nodes == edges.nodes && node >= nodes),
            Err(Error::OverMemoryLimit { required, limit: said, .. }) => prop_assert!(required > limit && said == limit),
            Err(Error::Driver(DriverError::Overflow { .. })) => prop_assert!(edges.nodes > i32::MAX as u32),
            Err(error) => prop_assert!(false, "{}", error),
        }
        let rows = Rows { offsets: edges.list.iter().map(|edge| edge.weight).collect(), ..Rows::default() };
        rows.of(node);
        rows.range(node);
    }

    #[test]
    fn random_graphs_of_arbitrary_size(scale in number(), factor in number(), seed in any::<u64>(), limit in 0..1u64 << 20) {
        for family in [Family::Kronecker, Family::Uniform] {
            match graph::limited(limit, || Edges::generate(family, scale, factor, seed)) {
                Ok(edges) => prop_assert!(12 * edges.list.len() as u64 <= limit),
                Err(error) => prop_assert!(["D019", "D048"].contains(&error.code()), "{}", error),
            }
        }
    }

    #[test]
    fn algorithms_with_arbitrary_configurations(
        edges in edges(),
        config in config(),
        source in number(),
        delta in prop::option::of(any::<f32>()),
        tolerance in any::<f64>(),
        most in 0..20u32,
    ) {
        let (graph, device) = (fitting(edges), device());
        let engine = match Engine::new(&device, &graph, config, graph::bfs::needs(&graph)) {
            Ok(engine) => engine,
            Err(error) => {
                prop_assert!(["D018", "D047"].contains(&error.code()), "{}", error);
                return Ok(());
            }
        };
        prop_assert!(config.fixed != Some(Topology::Empty));
        let known = |error: Error| {
            prop_assert!(["D018", "D019", "D025", "D035", "D046"].contains(&error.code()), "{}", error);
            prop_assert!(error.code() != "D046" || source >= graph.nodes());
            Ok(())
        };
        match graph::bfs(&engine, source) {
            Ok(found) => found.verify(&graph, source).unwrap(),
            Err(error) => known(error)?,
        }
        match graph::sssp(&engine, source, delta) {
            Ok(found) => found.verify(&graph, source).unwrap(),
            Err(error) => known(error)?,
        }
        match graph::components(&engine) {
            Ok(found) => found.verify(&graph).unwrap(),
            Err(error) => known(error)?,
        }
        match graph::triangles(&engine) {
            Ok(found) => graph::verify_triangles(&graph, found).unwrap(),
            Err(error) => known(error)?,
        }
        match graph::pagerank(&engine, tolerance, most) {
            Ok(found) => prop_assert!(found.iterations <= most),
            Err(error) => known(error)?,
        }
        engine.iterations();
        engine.programs();
    }

    #[test]
    fn frontiers_of_arbitrary_nodes(
        edges in edges(),
        config in config(),
        frontiers in number(),
        buffers in prop::collection::vec(any::<u64>(), 0..4),
        mut nodes in prop::collection::vec(0..64u32, 0..20),
        outside in prop::option::of(number()),
        name in "[a-z]{1,6}",
    ) {
        let (graph, device) = (fitting(edges), device());
        // Impossible needs are refused, or ignored without a budget.
        let needs = Needs { frontiers, weights: true, buffers };
        if let Err(error) = Engine::new(&device, &graph, config, needs) {
            prop_assert!(["D018", "D019", "D047"].contains(&error.code()), "{}", error);
        }
        let Ok(engine) = Engine::new(&device, &graph, config, Needs::default()) else { return Ok(()) };
        nodes.extend(outside);
        let inside = nodes.iter().all(|node| *node < graph.nodes());
        let seen = engine.per_node(0).unwrap();
        let mut frontier = match engine.frontier(nodes.iter().copied()) {
            Ok(frontier) => frontier,
            Err(error) => {
                prop_assert!(error.code() == "D046" && !inside, "{}", error);
                return Ok(());
            }
        };
        prop_assert!(inside);
        let seen_as = |name: &'static str| vec![(name, (&seen).into())];
        // An argument for an object that the step does not declare.
        let unknown: &'static str = Box::leak(name.into_boxed_str());
        let wrong = engine.advance(&VISIT, &mut frontier, &|_| seen_as(unknown));
        prop_assert!(wrong.is_err() || unknown == "seen" || frontier.is_empty());
        let policy_is_wrong = |error: &Error| error.code() == "D025";
        let mut steps = 0;
        while !frontier.is_empty() {
            match engine.advance(&VISIT, &mut frontier, &|_| seen_as("seen")) {
                Ok(()) => steps += 1,
                Err(error) => {
                    prop_assert!(policy_is_wrong(&error), "{}", error);
                    break;
                }
            }
            prop_assert!(steps <= 66, "each step reaches at least one new node");
        }
        engine.filter("is_even", is_even, &mut frontier, Vec::new()).unwrap();
        engine.compute("mark", mark, &frontier, seen_as("seen")).unwrap();
        // A shorter bitmap: nodes beyond it are not in the set.
        let other = device.allocate(vyre_foundation::ir::Element::U32, 1).unwrap();
        engine.select("is_even", is_even, &other, &mut frontier, Vec::new()).unwrap();
        prop_assert_eq!(frontier.len(), 0);
    }

    #[test]
    fn results_of_arbitrary_length_are_verified(
        edges in edges(),
        found in prop::collection::vec(number(), 0..80),
        source in number(),
        tolerance in any::<f64>(),
    ) {
        let graph = fitting(edges);
        let real: Vec<f32> = found.iter().map(|word| f32::from_bits(*word)).collect();
        let is_short = found.len() != graph.nodes() as usize;
        let outcomes = [
            Bfs { parents: found.clone(), depths: found.clone() }.verify(&graph, source),
            Bfs { parents: Vec::new(), depths: vec![0; graph.nodes() as usize] }.verify(&graph, source),
            Sssp { distances: Distances::Whole(found.clone()) }.verify(&graph, source),
            Sssp { distances: Distances::Real(real.clone()) }.verify(&graph, source),
            Components { labels: found.clone() }.verify(&graph),
            PageRank { ranks: real, iterations: 1, change: 0.0 }.verify(&graph, tolerance),
        ];
        Components { labels: found }.count();
        for outcome in outcomes {
            match outcome {
                Ok(()) => prop_assert!(!is_short),
                Err(error) => prop_assert!(["D034", "D046"].contains(&error.code()), "{}", error),
            }
        }
        let _ = graph::verify_triangles(&graph, u64::MAX);
    }

    #[test]
    fn files_of_arbitrary_name(name in "[ -~]{0,12}", limit in any::<u64>()) {
        let path = Path::new("/nonexistent").join(name.replace('/', "_"));
        prop_assert_eq!(graph::limited(limit, || Graph::read(&path)).unwrap_err().code(), "D032");
        prop_assert_eq!(cache::inspect(&path).unwrap_err().code(), "D039");
        prop_assert_eq!(cache::origin(&path), None);
        let graph = Graph::new(&Edges::default()).unwrap();
        let (kept, _) = Cache::kept_in(PrivateFolder::open(&path).unwrap()).graph(&name, || Ok(graph.clone())).unwrap();
        prop_assert_eq!(kept, graph);
    }
}

#[test]
fn a_fixed_topology_that_follows_no_edges_is_refused() {
    let graph = Graph::new(&Edges::generate(Family::Kronecker, 6, 4, 1).unwrap()).unwrap();
    let config = Config { fixed: Some(Topology::Empty), ..Config::default() };
    let error = Engine::new(&device(), &graph, config, Needs::default()).err().unwrap();
    assert_eq!(error, Error::FixedTopology { topology: "Empty" });
    assert_eq!(error.code(), "D047");
}

#[test]
fn frontiers_of_another_engine_are_refused() {
    let (device, chain) = (device(), [Edge { source: 0, target: 1, weight: 1 }]);
    let small = fitting(Edges { nodes: 2, list: chain.into(), ..Edges::default() });
    let large = fitting(Edges { nodes: 64, list: chain.into(), ..Edges::default() });
    let engine = |graph| Engine::new(&device, graph, Config::default(), Needs::default()).unwrap();
    let (engine, same_size, other) = (engine(&small), engine(&small), engine(&large));
    let seen = engine.per_node(0).unwrap();
    let arguments = || vec![("seen", (&seen).into())];
    for foreign in [&same_size, &other] {
        let mut frontier = foreign.frontier([0]).unwrap();
        let bits = frontier.bits().clone();
        let refused = [
            engine.advance(&VISIT, &mut frontier, &|_| arguments()),
            engine.filter("is_even", is_even, &mut frontier, Vec::new()),
            engine.select("is_even", is_even, &bits, &mut frontier, Vec::new()),
            engine.compute("mark", mark, &frontier, arguments()),
        ];
        assert!(refused.iter().all(|result| *result == Err(Error::ForeignFrontier)), "{refused:?}");
        assert_eq!((frontier.len(), frontier.steps()), (1, 0));
    }
}
