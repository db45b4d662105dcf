//! Direction-optimizing breadth-first search.

use vyre_driver::Buffer;
use vyre_foundation::build;

use super::memory::{filled, with_capacity};
use super::{Graph, UNREACHED, check_length, wrong_result};
use crate::Error;
use crate::frontier::{Engine, Needs, Step, Visitor};

/// Breadth-first search tree of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bfs {
    /// Parent of each node in the tree; the source is its own parent.
    pub parents: Vec<u32>,
    /// Depth of each node: the number of edges from the source.
    pub depths: Vec<u32>,
}

/// Admits each node on its first visit. Edges of the same step may overwrite its parent, with one of the same depth.
const STEP: Step = Step { name: "bfs", visit, until_admitted: true };

fn visit(k: &build::Kernel) -> Visitor<'_> {
    let depth = k.uniform::<u32>("depth").load();
    let (parents, depths) = (k.mutable::<u32>("parents"), k.read_write::<u32>("depths"));
    Visitor::new(move |edge| {
        let first = depths.load(edge.target).eq(UNREACHED);
        k.if_(first, || {
            depths.store(edge.target, depth);
            parents.store(edge.target, edge.source);
        });
        first
    })
    .pull_candidates(move |node| depths.load(node).eq(UNREACHED))
}

/// Device memory: rows, a frontier, parents and depths.
pub fn needs(graph: &Graph) -> Needs {
    Needs::traversal(graph, 2)
}

/// Runs a breadth-first search from a node.
///
/// # Errors
/// [`Error::NoSuchNode`], there is not enough memory, or the device failed.
pub fn bfs(engine: &Engine<'_>, source: u32) -> Result<Bfs, Error> {
    let (parents, depths) = run(engine, source)?;
    Ok(Bfs { parents: parents.elements()?, depths: depths.elements()? })
}

/// Runs a breadth-first search, and returns parents and depths on the device.
///
/// # Errors
/// As for [`bfs`].
pub fn run(engine: &Engine<'_>, source: u32) -> Result<(Buffer, Buffer), Error> {
    engine.graph().node(source)?;
    engine.admit(&needs(engine.graph()))?;
    let (parents, depths) = (engine.per_node(UNREACHED)?, engine.per_node(UNREACHED)?);
    parents.slice(source..source + 1)?.write(&source.to_le_bytes())?;
    depths.slice(source..source + 1)?.write(&0u32.to_le_bytes())?;
    let mut frontier = engine.frontier([source])?;
    while !frontier.is_empty() {
        engine.advance(&STEP, &mut frontier, &|step| {
            vec![("depth", (step + 1).into()), ("parents", (&parents).into()), ("depths", (&depths).into())]
        })?;
    }
    Ok((parents, depths))
}

impl Bfs {
    /// Verifies the tree: depths are those of a sequential search, and parents are in-neighbours of depth − 1.
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the first wrong node. [`Error::NoSuchNode`]: the source is out of bounds.
    pub fn verify(&self, graph: &Graph, source: u32) -> Result<(), Error> {
        graph.node(source)?;
        check_length("bfs", graph, self.depths.len())?;
        check_length("bfs", graph, self.parents.len())?;
        let mut depths = filled("depths of nodes", UNREACHED, graph.nodes() as usize)?;
        // Each node is enqueued at most once.
        let mut queue = with_capacity("nodes of the graph", graph.nodes() as usize)?;
        queue.push(source);
        depths[source as usize] = 0;
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &next in graph.outgoing.of(node) {
                if depths[next as usize] == UNREACHED {
                    depths[next as usize] = depths[node as usize] + 1;
                    queue.push(next);
                }
            }
        }
        for (node, &depth) in (0..).zip(&depths) {
            let (found, parent) = (self.depths[node as usize], self.parents[node as usize]);
            if found != depth {
                return wrong_result("bfs", node, format!("its depth is {found} instead of {depth}"));
            }
            let fits = match depth {
                UNREACHED => parent == UNREACHED,
                0 => parent == node,
                _ => {
                    depths.get(parent as usize).is_some_and(|before| before.wrapping_add(1) == depth)
                        && graph.incoming().of(node).binary_search(&parent).is_ok()
                }
            };
            if !fits {
                return wrong_result(
                    "bfs",
                    node,
                    format!("its parent is {parent}, which is no in-neighbour of depth − 1"),
                );
            }
        }
        Ok(())
    }
}
