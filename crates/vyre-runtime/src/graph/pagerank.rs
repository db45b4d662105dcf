//! PageRank by pull iteration.
//!
//! Nodes are renumbered by descending in-degree, the order of the slices, so that loads of popular nodes have locality and workgroups write
//! adjacent ranges.

use vyre_driver::{Buffer, Grid};
use vyre_foundation::build::kernel;
use vyre_foundation::ir::{Element, Program};

use super::memory::{collected, filled, zeroed};
use super::{Graph, SLICE, check_length, wrong_result};
use crate::Error;
use crate::frontier::{Batch, Engine, Needs, Topology, slice};

/// Ranks of PageRank.
#[derive(Clone, Debug, PartialEq)]
pub struct PageRank {
    /// Rank of each node. Nodes without outgoing edges do not redistribute their rank, so the sum may be less than 1.
    pub ranks: Vec<f32>,
    /// Number of iterations.
    pub iterations: u32,
    /// L1 norm of the change in the last iteration.
    pub change: f64,
}

const DAMPING: f32 = 0.85;
/// Partial sums of the L1 norm.
const SUMS: u32 = 256;
/// Iterations that are submitted together.
const FUSED: u32 = 4;

/// Iteration: the new rank of each node from the `shares` of its in-neighbours, and the node's share (rank ÷ out-degree).
fn iterate() -> Result<Program, Error> {
    Ok(kernel("pagerank", [SLICE, 1, 1], |k| {
        let (portions, shares) = (k.read::<f32>("portions"), k.read::<f32>("shares"));
        let [next, changes] = ["next", "changes"].map(|name| k.mutable::<f32>(name));
        let ranks = k.read_write::<f32>("ranks");
        let least = k.uniform::<f32>("least").load();
        let at = k.global_index();
        let sum = k.var(0.0f32);
        // Padding is out of bounds of `shares`, so it loads 0.
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

/// Device memory: slices, the order of nodes, and reciprocal out-degrees; ranks, changes, and shares of this iteration and the next;
/// partial sums.
///
/// # Errors
/// There is not enough host memory to measure the slices.
pub fn needs(graph: &Graph) -> Result<Needs, Error> {
    let (nodes, rows) = (u64::from(graph.nodes()), graph.incoming());
    let mut buffers = vec![rows.slices() + 1, rows.sliced_len()?];
    buffers.extend([nodes; 6]);
    buffers.extend([u64::from(SUMS); FUSED as usize]);
    Ok(Needs { buffers, ..Needs::default() })
}

/// Iterates until the L1 norm of the change is at most `tolerance`, at most `most` times. A negative or NaN tolerance is treated as 0.
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
    /// Verifies that one more iteration in `f64` changes the ranks by at most `tolerance` (L1 norm).
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the node with the largest change.
    pub fn verify(&self, graph: &Graph, tolerance: f64) -> Result<(), Error> {
        check_length("pagerank", graph, self.ranks.len())?;
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
        wrong_result("pagerank", worst.0, format!("ranks change by {total} > {tolerance}, this one by {}", worst.1))
    }
}
