//! PageRank.
//!
//! Nodes are numbered by their place in the order of degrees: what many of them need is then close together, and each workgroup writes what
//! follows what another one has written.

use vyre_driver::{Buffer, Grid};
use vyre_foundation::build::kernel;
use vyre_foundation::ir::{Element, Program};

use super::memory::{collected, filled, zeroed};
use super::{Graph, SLICE, complete, wrong};
use crate::Error;
use crate::frontier::{Batch, Engine, Needs, Topology, slice};

/// How important each node is, by how important those are that lead to it.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRank {
    /// For each node. What nodes without outgoing edges have to give is lost, so the sum may be less than 1.
    pub ranks: Vec<f32>,
    /// How many times ranks were computed.
    pub iterations: u32,
    /// By how much they changed the last time, all together.
    pub change: f64,
}

const DAMPING: f32 = 0.85;
/// Partial sums of changes.
const SUMS: u32 = 256;
/// Iterations that are fused.
const FUSED: u32 = 4;

/// A rank from the `shares` of others, and the share that goes on from here.
fn iterate() -> Result<Program, Error> {
    Ok(kernel("pagerank", [SLICE, 1, 1], |k| {
        let (portions, shares) = (k.read::<f32>("portions"), k.read::<f32>("shares"));
        let [next, changes] = ["next", "changes"].map(|name| k.mutable::<f32>(name));
        let ranks = k.read_write::<f32>("ranks");
        let least = k.uniform::<f32>("least").load();
        let at = k.global_index();
        let sum = k.var(0.0f32);
        // What stands where a row has ended is no node, and what is outside of `shares` is 0.
        slice(k, |_, source| sum.set(sum.get() + shares.load(source)));
        let (old, rank) = (ranks.load(at), least + sum.get() * DAMPING);
        ranks.store(at, rank);
        changes.store(at, (rank - old).abs());
        next.store(at, rank * portions.load(at));
    })?)
}

fn sum() -> Result<Program, Error> {
    Ok(kernel("pagerank_change", [64, 1, 1], |k| {
        let (changes, sums) = (k.read::<f32>("changes"), k.write::<f32>("sums"));
        let at = k.global_index();
        let sum = k.var(0.0f32);
        k.for_range_step(at, changes.len(), SUMS, |node| sum.set(sum.get() + changes.load(node)));
        sums.store(at, sum.get());
    })?)
}

/// Device memory of PageRank: slices of rows, with the order of nodes and the portions that go along each edge; ranks, changes, and shares
/// of this iteration and the next; sums of changes.
///
/// # Errors
/// There is no memory to measure the slices.
pub fn needs(graph: &Graph) -> Result<Needs, Error> {
    let (nodes, rows) = (u64::from(graph.nodes()), graph.incoming());
    let mut buffers = vec![rows.slices() + 1, rows.sliced_len()?];
    buffers.extend([nodes; 6]);
    buffers.extend([u64::from(SUMS); FUSED as usize]);
    Ok(Needs { buffers, ..Needs::default() })
}

/// Computes ranks until they change by no more than `tolerance` all together, or `most` times. A negative tolerance and NaN are taken for 0.
///
/// # Errors
/// There is not enough memory, or the device failed.
pub fn pagerank(engine: &Engine<'_>, tolerance: f64, most: u32) -> Result<PageRank, Error> {
    let (graph, device) = (engine.graph(), engine.device());
    let nodes = graph.nodes();
    engine.admit(&needs(graph)?)?;
    let start = 1.0 / nodes as f32;
    let upload = |floats: &[f32]| device.upload(Element::F32, bytemuck::cast_slice(floats));
    let [order, sliced, portions] = engine.by_degree()?;
    let of_start = collected("ranks of nodes", portions.elements::<f32>()?.iter().map(|portion| start * portion))?;
    let mut shares = upload(&of_start)?;
    drop(of_start);
    let ranks = upload(&filled("ranks of nodes", start, nodes as usize)?)?;
    let mut next = device.allocate(Element::F32, nodes.into())?;
    let changes = device.allocate(Element::F32, nodes.into())?;
    let sums = (0..FUSED).map(|_| device.allocate(Element::F32, SUMS.into())).collect::<Result<Vec<Buffer>, _>>()?;
    let (iterate, sum) = (engine.kernel("pagerank", iterate)?, engine.kernel("pagerank_change", sum)?);

    let (mut iterations, mut change, mut previous) = (0, f64::INFINITY, None);
    let tolerance = tolerance.max(0.0);
    while iterations < most && change > tolerance {
        let decision = engine.decide(true, nodes, graph.edges(), previous, iterations)?;
        let at_once = if decision.topology == Topology::FusedDense { FUSED.min(most - iterations) } else { 1 };
        let mut batch = Batch::default();
        for sums in &sums[..at_once as usize] {
            let objects = vec![
                ("sliced", (&sliced).into()),
                ("portions", (&portions).into()),
                ("shares", (&shares).into()),
                ("next", (&next).into()),
                ("ranks", (&ranks).into()),
                ("changes", (&changes).into()),
                ("least", ((1.0 - DAMPING) / nodes as f32).into()),
            ];
            engine.add(&mut batch, &iterate, Grid::elements(nodes), objects, Vec::new())?;
            let objects = vec![("changes", (&changes).into()), ("sums", sums.into())];
            engine.add(&mut batch, &sum, Grid::elements(SUMS), objects, Vec::new())?;
            std::mem::swap(&mut shares, &mut next);
        }
        engine.submit(&batch)?;
        let last = sums[at_once as usize - 1].elements::<f32>()?;
        change = last.iter().map(|sum| f64::from(*sum)).sum();
        iterations += at_once;
        previous = Some(decision.topology);
        engine.record(&decision, 1, u64::from(graph.edges()) * u64::from(at_once));
    }
    let (found, mut ranks) = (ranks.elements::<f32>()?, zeroed::<f32>("ranks of nodes", nodes as usize)?);
    for (node, rank) in order.elements::<u32>()?.iter().zip(&found) {
        ranks[*node as usize] = *rank;
    }
    Ok(PageRank { ranks, iterations, change })
}

impl PageRank {
    /// Computes ranks once more, with more digits: they must not change by more than `tolerance`.
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the node that changes the most.
    pub fn verify(&self, graph: &Graph, tolerance: f64) -> Result<(), Error> {
        complete("pagerank", graph, self.ranks.len())?;
        let damping = f64::from(DAMPING);
        let share = |&node: &u32| f64::from(self.ranks[node as usize]) / graph.outgoing.of(node).len() as f64;
        let (mut total, mut worst) = (0.0, (0, 0.0));
        for node in 0..graph.nodes() {
            let sum: f64 = graph.incoming().of(node).iter().map(share).sum();
            let rank = (1.0 - damping) / f64::from(graph.nodes()) + damping * sum;
            let change = (rank - f64::from(self.ranks[node as usize])).abs();
            total += change;
            if change > worst.1 || !change.is_finite() {
                worst = (node, change);
            }
        }
        if total <= tolerance.max(1e-6) {
            return Ok(());
        }
        wrong("pagerank", worst.0, format!("ranks still change by {total}, this one by {}", worst.1))
    }
}
