//! k-core decomposition of a random graph, with frontiers: the k-core is the subgraph that remains when nodes with fewer than k
//! neighbours are removed repeatedly.

use vyre::build::Kernel;
use vyre::frontier::{Config, Engine, Needs, Step, Test, Visitor};
use vyre::graph::{Edges, Family, Graph};
use vyre::{Device, Error, ir};

/// Removing a node decrements the degrees of its neighbours, and admits those that fall below k to the next frontier.
const PEEL: Step = Step { name: "peel", visit: peel, until_admitted: false };

fn peel(k: &Kernel) -> Visitor<'_> {
    let (left, core) = (k.atomic::<u32>("left"), k.uniform::<u32>("k").load());
    Visitor::new(move |edge| left.sub(edge.target, 1).eq(core))
}

fn is_outside(k: &Kernel) -> Test<'_> {
    let (left, core) = (k.read::<u32>("left"), k.uniform::<u32>("k").load());
    Box::new(move |node| left.load(node).lt(core))
}

fn is_inside(k: &Kernel) -> Test<'_> {
    let (left, core) = (k.read::<u32>("left"), k.uniform::<u32>("k").load());
    Box::new(move |node| left.load(node).ge(core))
}

/// Number of nodes of each core, from the 0-core to the last non-empty one.
fn core_sizes(engine: &Engine<'_>) -> Result<Vec<u32>, Error> {
    let graph = engine.graph();
    let degrees = (0..graph.nodes()).flat_map(|node| (graph.outgoing().of(node).len() as u32).to_le_bytes());
    let left = engine.device().upload(ir::Element::U32, &degrees.collect::<Vec<u8>>())?;
    let (mut inside, mut outside) = (engine.frontier(0..graph.nodes())?, engine.frontier([])?);
    let mut sizes = Vec::new();
    while !inside.is_empty() {
        sizes.push(inside.len());
        let k = sizes.len() as u32;
        let given = || vec![("left", (&left).into()), ("k", k.into())];
        engine.select("is_outside", is_outside, inside.bits(), &mut outside, given())?;
        while !outside.is_empty() {
            engine.advance(&PEEL, &mut outside, &|_| given())?;
        }
        engine.filter("is_inside", is_inside, &mut inside, given())?;
    }
    Ok(sizes)
}

/// Sequential reference implementation.
fn sequential(graph: &Graph) -> Vec<u32> {
    let mut left: Vec<usize> = (0..graph.nodes()).map(|node| graph.outgoing().of(node).len()).collect();
    let mut gone = vec![false; left.len()];
    let mut sizes = Vec::new();
    for k in 1.. {
        let size = gone.iter().filter(|gone| !**gone).count();
        if size == 0 {
            return sizes;
        }
        sizes.push(size as u32);
        let mut stack: Vec<usize> = (0..left.len()).filter(|node| !gone[*node] && left[*node] < k).collect();
        stack.iter().for_each(|node| gone[*node] = true);
        while let Some(node) = stack.pop() {
            for next in graph.outgoing().of(node as u32).iter().map(|next| *next as usize) {
                left[next] -= 1;
                if left[next] < k && !std::mem::replace(&mut gone[next], true) {
                    stack.push(next);
                }
            }
        }
    }
    sizes
}

fn main() -> Result<(), Error> {
    let graph = Graph::new(&Edges::generate(Family::Kronecker, 12, 8, 1)?)?;
    let device = Device::auto()?;
    let needs = Needs { frontiers: 2, ..Needs::traversal(&graph, 1) };
    let engine = Engine::new(device.driver(), &graph, Config::default(), needs)?;
    let sizes = core_sizes(&engine)?;
    assert_eq!(sizes, sequential(&graph));
    println!("{} nodes, {} edges", graph.nodes(), graph.edges());
    for (k, size) in sizes.iter().enumerate().step_by(10) {
        println!("the {k}-core has {size} nodes");
    }
    println!("the last one is the {}-core, with {} nodes", sizes.len() - 1, sizes[sizes.len() - 1]);
    Ok(())
}
