//! Weakly connected components: union-find with neighbour sampling (Afforest). After the first `ROUNDS` edges of every node are linked,
//! most nodes are in one component, and the remaining edges of its nodes are skipped.

use rustc_hash::FxHashMap;
use vyre_driver::{Argument, Buffer, Grid, Kernel};
use vyre_foundation::build::{self, Atomic, Object, Val, kernel};
use vyre_foundation::ir::{Element, Program};

use super::memory::{collected, filled, with_capacity};
use super::{Graph, check_length, wrong_result};
use crate::Error;
use crate::frontier::{Batch, Engine, Needs};

/// Weakly connected components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Components {
    /// For each node, the lowest node of its component.
    pub labels: Vec<u32>,
}

/// Edges of every node that are linked in the sampling phase.
const ROUNDS: u32 = 2;
/// Sampled nodes to find the largest component.
const PICKS: u32 = 1024;

/// Unites the trees of two nodes: hooks the root with the higher number onto the other.
fn link<'k>(k: &'k build::Kernel, labels: Object<'k, u32, Atomic>, a: Val<'k, u32>, b: Val<'k, u32>) {
    let (a, b) = (k.var(labels.load(a)), k.var(labels.load(b)));
    k.while_(
        || a.get().ne(b.get()),
        || {
            let (high, low) = (a.get().max(b.get()), a.get().min(b.get()));
            let parent = labels.load(high);
            k.if_(parent.eq(low), || k.break_());
            k.if_(parent.eq(high), || {
                let (_, hooked) = labels.compare_exchange(high, high, low);
                k.if_(hooked, || k.break_());
            });
            a.set(labels.load(labels.load(high)));
            b.set(labels.load(low));
        },
    );
}

/// Links every node with its `round`-th neighbour.
fn sample() -> Result<Program, Error> {
    Ok(kernel("components_sample", [64, 1, 1], |k| {
        let (offsets, targets) = (k.read::<u32>("offsets"), k.read::<u32>("targets"));
        let labels = k.atomic::<u32>("labels");
        let node = k.global_index();
        let index = offsets.load(node) + k.uniform::<u32>("round").load();
        k.if_(node.lt(labels.len()) & index.lt(offsets.load(node + 1)), || link(k, labels, node, targets.load(index)));
    })?)
}

/// Links nodes outside the largest component with their remaining neighbours.
fn rest() -> Result<Program, Error> {
    Ok(kernel("components_rest", [64, 1, 1], |k| {
        let (offsets, targets) = (k.read::<u32>("offsets"), k.read::<u32>("targets"));
        let labels = k.atomic::<u32>("labels");
        let node = k.global_index();
        let outside = labels.load(node).ne(k.uniform::<u32>("largest").load());
        let first = k.uniform::<u32>("round").load();
        k.if_(node.lt(labels.len()) & outside, || {
            k.for_range(offsets.load(node) + first, offsets.load(node + 1), |index| {
                link(k, labels, node, targets.load(index));
            });
        });
    })?)
}

/// Path compression: makes the root of every tree the parent of all its nodes.
fn flatten() -> Result<Program, Error> {
    Ok(kernel("components_flatten", [64, 1, 1], |k| {
        let labels = k.read_write::<u32>("labels");
        let node = k.global_index();
        k.if_(node.lt(labels.len()), || {
            let first = labels.load(node);
            let label = k.var(first);
            k.loop_(|| {
                let parent = labels.load(label.get());
                k.if_(parent.eq(label.get()), || k.break_());
                label.set(parent);
            });
            k.if_(label.get().ne(first), || labels.store(node, label.get()));
        });
    })?)
}

fn pick() -> Result<Program, Error> {
    Ok(kernel("components_pick", [64, 1, 1], |k| {
        let (labels, picks) = (k.read::<u32>("labels"), k.write::<u32>("picks"));
        let at = k.global_index();
        picks.store(at, labels.load(at * 2_654_435_761 % labels.len()));
    })?)
}

/// Device memory: labels, sampled labels, and rows of edges, in both directions if the graph is directed.
pub fn needs(graph: &Graph) -> Needs {
    let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
    let mut buffers = vec![nodes, PICKS.into(), nodes + 1, edges];
    if !graph.is_symmetric() {
        buffers.extend([nodes + 1, edges]);
    }
    Needs { buffers, ..Needs::default() }
}

/// Computes the components of a graph.
///
/// # Errors
/// There is not enough memory, or the device failed.
pub fn components(engine: &Engine<'_>) -> Result<Components, Error> {
    Ok(Components { labels: run(engine)?.elements()? })
}

/// Computes the components of a graph, and returns the labels on the device.
///
/// # Errors
/// There is not enough memory, or the device failed.
pub fn run(engine: &Engine<'_>) -> Result<Buffer, Error> {
    let (graph, device) = (engine.graph(), engine.device());
    let nodes = graph.nodes();
    engine.admit(&needs(graph))?;
    let numbers = collected("nodes of the graph", 0..nodes)?;
    let labels = device.upload(Element::U32, bytemuck::cast_slice(&numbers))?;
    let picks = device.allocate(Element::U32, PICKS.into())?;
    let add = |batch: &mut Batch, kernel: &Kernel, given: Vec<(&str, Argument)>| {
        engine.add(batch, kernel, Grid::elements(nodes), vec![("labels", (&labels).into())], given)
    };
    let flatten = engine.kernel("components_flatten", flatten)?;
    let mut batch = Batch::default();
    for round in 0..ROUNDS {
        add(&mut batch, &engine.kernel("components_sample", sample)?, vec![("round", round.into())])?;
        add(&mut batch, &flatten, Vec::new())?;
    }
    let objects = vec![("labels", (&labels).into()), ("picks", (&picks).into())];
    engine.add(&mut batch, &engine.kernel("components_pick", pick)?, Grid::elements(PICKS), objects, Vec::new())?;
    engine.submit(&batch)?;

    let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
    for label in picks.elements::<u32>()? {
        *counts.entry(label).or_default() += 1;
    }
    let largest = counts.into_iter().max_by_key(|(label, count)| (*count, *label)).map_or(0, |(label, _)| label);
    let rest = engine.kernel("components_rest", rest)?;
    let mut batch = Batch::default();
    add(&mut batch, &rest, vec![("largest", largest.into()), ("round", ROUNDS.into())])?;
    if !graph.is_symmetric() {
        // Edges from the largest component to other nodes are only in rows that the dispatch above skips.
        let mut given = engine.incoming_rows()?;
        given.extend([("largest", largest.into()), ("round", 0u32.into())]);
        add(&mut batch, &rest, given)?;
    }
    add(&mut batch, &flatten, Vec::new())?;
    engine.submit(&batch)?;
    Ok(labels)
}

impl Components {
    /// Returns the number of components.
    pub fn count(&self) -> usize {
        self.labels.iter().zip(0..).filter(|(label, node)| **label == *node).count()
    }

    /// Verifies the labels by depth-first search along edges in both directions.
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the first node with a wrong label.
    pub fn verify(&self, graph: &Graph) -> Result<(), Error> {
        check_length("cc", graph, self.labels.len())?;
        let mut seen = filled("nodes of the graph", false, graph.nodes() as usize)?;
        // Each node is pushed once.
        let mut stack = with_capacity("nodes of the graph", graph.nodes() as usize)?;
        for start in 0..graph.nodes() {
            if std::mem::replace(&mut seen[start as usize], true) {
                continue;
            }
            stack.push(start);
            while let Some(node) = stack.pop() {
                let label = self.labels[node as usize];
                if label != start {
                    return wrong_result("cc", node, format!("its label is {label} instead of {start}"));
                }
                for &next in graph.outgoing.of(node).iter().chain(graph.incoming().of(node)) {
                    if !std::mem::replace(&mut seen[next as usize], true) {
                        stack.push(next);
                    }
                }
            }
        }
        Ok(())
    }
}
