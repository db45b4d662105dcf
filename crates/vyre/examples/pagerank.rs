//! PageRank: prints the ten highest-ranked nodes of a graph file (Matrix Market, or lines `SOURCE TARGET`), or of a random graph.

use std::path::Path;

use vyre::frontier::{Config, Engine};
use vyre::graph::{self, Edges, Family, Graph};
use vyre::{Device, Error};

/// Convergence threshold: maximum sum of changes of all ranks in an iteration.
const TOLERANCE: f64 = 1e-4;

fn main() -> Result<(), Error> {
    let graph = match std::env::args_os().nth(1) {
        Some(file) => Graph::read(Path::new(&file))?,
        None => Graph::new(&Edges::generate(Family::Kronecker, 16, 16, 1)?)?,
    };
    println!("{} nodes, {} edges", graph.nodes(), graph.edges());

    let device = Device::auto()?;
    let engine = Engine::new(device.driver(), &graph, Config::default(), graph::pagerank::needs(&graph)?)?;
    let found = graph::pagerank(&engine, TOLERANCE, 100)?;
    found.verify(&graph, TOLERANCE)?;
    println!("{} iterations; the last changed the ranks by {:.1e}", found.iterations, found.change);

    let mut nodes: Vec<u32> = (0..graph.nodes()).collect();
    nodes.sort_by(|a, b| found.ranks[*b as usize].total_cmp(&found.ranks[*a as usize]));
    println!("    node      rank   edges in");
    for node in nodes.into_iter().take(10) {
        println!("{node:>8}  {:.6} {:>10}", found.ranks[node as usize], graph.incoming().of(node).len());
    }
    Ok(())
}
