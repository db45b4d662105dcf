//! Graph benchmarks on the cpu device, against hand-written algorithms, petgraph and the crate `graph`.

use graph::prelude::{CsrLayout, DirectedCsrGraph, GraphBuilder, UndirectedCsrGraph};
use petgraph::graph::UnGraph;
use vyre_cpu::Cpu;
use vyre_driver::Device;
use vyre_runtime::Error;
use vyre_runtime::frontier::{Config, Engine, Needs, Topology};
use vyre_runtime::graph::{self as ours, Edges, Family, Graph, UNREACHED};

use crate::baseline::{Pinned, graph as expert};
use crate::line::{Contender, Line, Report};

/// Iterations of PageRank for each measurement.
const ITERATIONS: u32 = 10;

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    for (name, family, scale) in
        [("kron16", Family::Kronecker, 16), ("kron18", Family::Kronecker, 18), ("urand18", Family::Uniform, 18)]
    {
        if report.quick && scale > 16 {
            continue;
        }
        if !["bfs", "pagerank", "cc", "sssp", "tc"].iter().any(|algorithm| wanted(report, algorithm, name)) {
            continue;
        }
        let graph = Graph::new(&Edges::generate(family, scale, 16, 27_491_095)?)?;
        let others = Others::new(&graph);
        for threads in [2, 1] {
            // The crate `graph` uses all processors that the thread may run on.
            let _pinned = (threads == 1).then(Pinned::here);
            measure(report, name, &graph, &others, threads)?;
        }
    }
    Ok(())
}

/// Returns whether any line is selected.
fn wanted(report: &Report, algorithm: &str, graph: &str) -> bool {
    let baselines = ["", "_vs_petgraph", "_vs_graph", "_fixed_sparse", "_fixed_hybrid", "_fixed_dense"];
    baselines.iter().any(|baseline| report.is_selected(&format!("{algorithm}_{graph}{baseline}_one_thread")))
}

/// The graph in the formats of other libraries.
struct Others {
    petgraph: UnGraph<(), u32, u32>,
    weighted: DirectedCsrGraph<u32, (), f32>,
    directed: DirectedCsrGraph<u32>,
    undirected: UndirectedCsrGraph<u32>,
}

impl Others {
    fn new(graph: &Graph) -> Others {
        let rows = || (0..graph.nodes()).flat_map(|node| graph.outgoing().range(node).map(move |at| (node, at)));
        let once = || rows().map(|(node, at)| (node, at, graph.outgoing().targets[at])).filter(|(a, _, b)| a < b);
        let mut petgraph = UnGraph::with_capacity(graph.nodes() as usize, graph.edges() as usize / 2);
        for _ in 0..graph.nodes() {
            petgraph.add_node(());
        }
        for (a, at, b) in once() {
            petgraph.add_edge(a.into(), b.into(), graph.outgoing().weights[at]);
        }
        // The builder derives the node count from the edges: a self-loop adds the last node, and changes no result.
        let last = graph.nodes() - 1;
        let edges = rows().map(|(node, at)| (node, graph.outgoing().targets[at], graph.outgoing().weights[at] as f32));
        let edges: Vec<(u32, u32, f32)> = edges.chain([(last, last, 1.0)]).collect();
        let sorted = || GraphBuilder::new().csr_layout(CsrLayout::Sorted);
        let directed = sorted().edges(edges.iter().map(|(source, target, _)| (*source, *target)).collect::<Vec<_>>());
        let (directed, weighted) = (directed.build(), sorted().edges_with_values(edges).build());
        let undirected = GraphBuilder::new().csr_layout(CsrLayout::Deduplicated);
        let undirected = undirected.edges(once().map(|(a, _, b)| (a, b)).collect::<Vec<_>>());
        let mut undirected: UndirectedCsrGraph<u32> = undirected.build();
        graph::triangle_count::relabel_graph(&mut undirected);
        Others { petgraph, weighted, directed, undirected }
    }
}

fn measure(report: &Report, graph_name: &str, graph: &Graph, others: &Others, threads: u32) -> Result<(), Error> {
    let device = Device::open(&Cpu { threads: Some(threads as usize), ..Cpu::default() })?;
    let engine = Engine::new(&device, graph, Config::default(), Needs::default())?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build().expect("threads");
    let source = (0..graph.nodes()).max_by_key(|node| (graph.outgoing().of(*node).len() == 16, *node)).unwrap_or(0);
    let suffix = if threads == 1 { "_one_thread" } else { "" };
    let compare = |algorithm: &str, unit, work: u64, ours: Contender<'_>, contenders: Vec<(&str, Contender<'_>)>| {
        let names: Vec<String> = contenders
            .iter()
            .map(|(baseline, _)| match *baseline {
                "expert" => format!("{algorithm}_{graph_name}{suffix}"),
                other => format!("{algorithm}_{graph_name}_vs_{other}{suffix}"),
            })
            .collect();
        let mut lines: Vec<(Line<'_>, Contender<'_>)> = contenders
            .into_iter()
            .zip(&names)
            .map(|((baseline, run), name)| {
                (Line { suite: "graph", name, device: "cpu", threads, baseline, work, unit }, run)
            })
            .collect();
        report.compare(ours, &mut lines);
    };
    let is_selected = |algorithm: &str| wanted(report, algorithm, graph_name);
    let edges = u64::from(graph.edges());

    if is_selected("bfs") {
        let bfs = ours::bfs(&engine, source)?;
        bfs.verify(graph, source)?;
        let reached = |parents: &[u32]| parents.iter().filter(|parent| **parent != UNREACHED).count();
        assert_eq!(pool.install(|| reached(&expert::bfs(graph, source))), reached(&bfs.parents));
        let mut ours = || drop(ours::bfs::run(&engine, source).expect("it ran before"));
        let mut by_hand = || drop(pool.install(|| expert::bfs(graph, source)));
        let mut petgraph = || {
            let mut search = petgraph::visit::Bfs::new(&others.petgraph, source.into());
            let mut parents = vec![UNREACHED; graph.nodes() as usize];
            while let Some(node) = search.next(&others.petgraph) {
                parents[node.index()] = 0;
            }
            std::hint::black_box(parents);
        };
        compare("bfs", "edges", edges, &mut ours, vec![("expert", &mut by_hand), ("petgraph", &mut petgraph)]);
        for (name, topology) in [
            ("sparse", Topology::SparseFrontier),
            ("hybrid", Topology::HybridFrontier),
            ("dense", Topology::DenseFrontier),
        ] {
            let config = Config { fixed: Some(topology), ..Config::default() };
            let fixed = Engine::new(&device, graph, config, Needs::default())?;
            ours::bfs(&fixed, source)?.verify(graph, source)?;
            let name = format!("bfs_{graph_name}_fixed_{name}{suffix}");
            let line = Line {
                suite: "graph",
                name: &name,
                device: "cpu",
                threads,
                baseline: "fixed",
                work: edges,
                unit: "edges",
            };
            let mut theirs = || drop(ours::bfs::run(&fixed, source).expect("it ran before"));
            report.compare(&mut ours, &mut [(line, &mut theirs)]);
        }
    }
    if is_selected("pagerank") {
        let found = ours::pagerank(&engine, 0.0, ITERATIONS)?;
        let theirs = pool.install(|| expert::pagerank(graph, ITERATIONS));
        assert!(found.ranks.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-6));
        let mut ours = || drop(ours::pagerank(&engine, 0.0, ITERATIONS).expect("it ran before"));
        let mut by_hand = || drop(pool.install(|| expert::pagerank(graph, ITERATIONS)));
        let config = graph::page_rank::PageRankConfig::new(ITERATIONS as usize, 0.0, 0.85);
        let mut neo = || drop(pool.install(|| graph::page_rank::page_rank(&others.directed, config)));
        let work = edges * u64::from(ITERATIONS);
        compare("pagerank", "edges", work, &mut ours, vec![("expert", &mut by_hand), ("graph", &mut neo)]);
    }
    if is_selected("cc") {
        let found = ours::components(&engine)?;
        assert_eq!(pool.install(|| expert::components(graph)), found.labels);
        let mut ours = || drop(ours::components::run(&engine).expect("it ran before"));
        let mut by_hand = || drop(pool.install(|| expert::components(graph)));
        let mut petgraph = || {
            std::hint::black_box(petgraph::algo::connected_components(&others.petgraph));
        };
        let config = graph::wcc::WccConfig::default();
        let mut neo = || drop(pool.install(|| graph::wcc::wcc_afforest(&others.directed, config)));
        let baselines: Vec<(&str, Contender<'_>)> =
            vec![("expert", &mut by_hand), ("petgraph", &mut petgraph), ("graph", &mut neo)];
        compare("cc", "edges", edges, &mut ours, baselines);
    }
    if is_selected("sssp") {
        let found = ours::sssp(&engine, source, None)?;
        let by_hand = pool.install(|| expert::sssp(graph, source, 2));
        assert_eq!(found.distances, ours::sssp::Distances::Whole(by_hand));
        let mut ours = || drop(ours::sssp::run(&engine, source, None).expect("it ran before"));
        let mut by_hand = || drop(pool.install(|| expert::sssp(graph, source, 2)));
        let mut petgraph = || {
            let cost = |edge: petgraph::graph::EdgeReference<'_, u32, u32>| *edge.weight();
            drop(petgraph::algo::dijkstra(&others.petgraph, source.into(), None, cost));
        };
        let config = graph::sssp::DeltaSteppingConfig::new(source as usize, 2.0);
        let mut neo = || drop(pool.install(|| graph::sssp::delta_stepping(&others.weighted, config)));
        let baselines: Vec<(&str, Contender<'_>)> =
            vec![("expert", &mut by_hand), ("petgraph", &mut petgraph), ("graph", &mut neo)];
        compare("sssp", "edges", edges, &mut ours, baselines);
    }
    if is_selected("tc") {
        let found = ours::triangles(&engine)?;
        assert_eq!(pool.install(|| expert::triangles(graph)), found);
        let mut ours = || assert_eq!(ours::triangles(&engine).expect("it ran before"), found);
        let mut by_hand = || assert_eq!(pool.install(|| expert::triangles(graph)), found);
        let mut neo = || {
            assert_eq!(pool.install(|| graph::triangle_count::global_triangle_count(&others.undirected)), found);
        };
        compare("tc", "edges", edges, &mut ours, vec![("expert", &mut by_hand), ("graph", &mut neo)]);
    }
    Ok(())
}
