//! Algorithms on frontiers, on all devices and in all topologies, against plain code.
#![cfg(not(loom))]

use vyre_cpu::Cpu;
use vyre_driver::{Device, Error, Oracle};
use vyre_runtime::frontier::{Config, Engine, Topology};
use vyre_runtime::graph::{self, Edge, Edges, Family, Graph};
use vyre_wgpu::Wgpu;

fn graph(nodes: u32, list: &[(u32, u32)], symmetric: bool) -> Graph {
    let edge = |(at, &(source, target)): (usize, &(u32, u32))| Edge { source, target, weight: at as u32 * 7 % 31 };
    Graph::new(&Edges { nodes, list: list.iter().enumerate().map(edge).collect(), weighted: true, symmetric }).unwrap()
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
                let engine = Engine::new(&device, &graph, config, 64).unwrap();
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
        for (source, delta) in sources(engine).zip([None, Some(40)]) {
            graph::sssp(engine, source, delta)?.verify(engine.graph(), source)?;
        }
        Ok(())
    });
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
