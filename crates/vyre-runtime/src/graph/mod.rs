//! Graphs: where they come from, and what a device finds out about them.
//!
//! ```text
//! file (Matrix Market, edge list, .sg, .wsg) or generator (kron, urand)
//!   → Edges          as they stand there
//!   → Graph          rows of neighbours, sorted, each there once, without loops; for both directions
//!   → bfs, …         on a device, by a frontier::Engine
//!   → verify         by other means, on the host
//! ```
//!
//! Nodes are numbers from 0 on, weights are whole or real numbers that are not negative. A graph has less than 2³¹ nodes and 2³² edges.

pub mod bfs;
pub mod cache;
pub mod components;
mod generate;
pub mod pagerank;
mod progress;
mod read;
pub mod sssp;
pub mod triangles;
mod words;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::Error;

pub use bfs::{Bfs, bfs};
pub use components::{Components, components};
pub use generate::Family;
pub use pagerank::{PageRank, pagerank};
pub use progress::{Progress, watched};
pub use sssp::{Sssp, sssp};
pub use triangles::{triangles, verify_triangles};
pub use words::Words;

/// What is said of nodes that cannot be reached.
pub const UNREACHED: u32 = u32::MAX;

/// An edge as it stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where it begins.
    pub source: u32,
    /// Where it ends.
    pub target: u32,
    /// What it costs to follow it: a number, or the bits of an `f32`, as [`Weights`] says.
    pub weight: u32,
}

/// What the weights of edges are. None is negative, so bits of real ones are in the order of their values, and code that only compares
/// need not know which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// There are none: each edge counts 1.
    #[default]
    None,
    /// `u32`.
    Whole,
    /// The bits of an `f32`, which is finite.
    Real,
}

impl Weights {
    /// The sum of two weights, or of lengths of paths.
    pub fn sum(self, a: u32, b: u32) -> u32 {
        match self {
            Weights::None | Weights::Whole => a.saturating_add(b),
            Weights::Real => (f32::from_bits(a) + f32::from_bits(b)).to_bits(),
        }
    }
}

/// A list of edges, in any order; some may be there several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// How many nodes there are.
    pub nodes: u32,
    /// The edges. They use no other nodes.
    pub list: Vec<Edge>,
    /// What weights mean.
    pub weights: Weights,
    /// Whether each edge can be followed both ways.
    pub symmetric: bool,
}

/// Neighbours of all nodes, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Where each row begins, and where the last one ends.
    pub offsets: Words,
    /// The neighbours, in ascending order in each row.
    pub targets: Words,
    /// The weights of these edges; empty if there are none.
    pub weights: Words,
}

impl Rows {
    /// Where the row of a node is.
    pub fn range(&self, node: u32) -> Range<usize> {
        self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize
    }

    /// The neighbours of a node.
    pub fn of(&self, node: u32) -> &[u32] {
        &self.targets[self.range(node)]
    }

    /// What is wrong with rows from outside, of which there is at least the end.
    fn check(&self) -> Result<(), String> {
        let (offsets, edges) = (&*self.offsets, self.targets.len());
        let nodes = offsets.len() - 1;
        let begins = |row: usize| Err(format!("row {row} of {nodes} begins at {} of {edges} edges", offsets[row]));
        if offsets[0] != 0 {
            return begins(0);
        }
        if let Some(row) = offsets.windows(2).position(|row| row[0] > row[1]) {
            return begins(row + 1);
        }
        if offsets[nodes] as usize != edges {
            return begins(nodes);
        }
        let parts = in_parts("checking", nodes, |part| {
            for node in part.start as u32..part.end as u32 {
                let row = self.of(node);
                if let Some(outside) = row.iter().find(|target| **target as usize >= nodes) {
                    return Err(format!("an edge leads to node {outside} of {nodes}"));
                }
                if !row.is_sorted_by(|target, next| target < next) {
                    return Err(format!("the neighbours of node {node} are not in ascending order"));
                }
            }
            Ok(())
        });
        parts.into_iter().collect()
    }
}

impl Rows {
    /// The same, with the edges of each row that are lighter than a limit before the others. Each row has two offsets: that of its light
    /// edges, and that of the others.
    pub(crate) fn split(&self, limit: u32) -> Rows {
        let parts = in_parts("splitting rows", self.offsets.len() - 1, |nodes| {
            let mut part = [Vec::new(), Vec::new(), Vec::new()];
            let [offsets, targets, weights] = &mut part;
            for node in nodes {
                let row = self.range(node as u32);
                let light = self.weights[row.clone()].iter().filter(|weight| **weight < limit).count();
                offsets.extend([row.start as u32, (row.start + light) as u32]);
                for is_light in [true, false] {
                    let of_kind = row.clone().filter(|at| (self.weights[*at] < limit) == is_light);
                    targets.extend(of_kind.clone().map(|at| self.targets[at]));
                    weights.extend(of_kind.map(|at| self.weights[at]));
                }
            }
            part
        });
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for part in parts {
            all.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
        }
        let [mut offsets, targets, weights] = all;
        offsets.push(self.targets.len() as u32);
        Rows { offsets: offsets.into(), targets: targets.into(), weights: weights.into() }
    }
}

/// Rows of a slice have places for as many neighbours, so that lanes that have a row each load neighbouring words.
pub(crate) const SLICE: u32 = 32;

/// The same neighbours, in slices of rows of almost the same length: first the first neighbour of each row of a slice, then the second of
/// each, and so on. Where a row has no more, [`UNREACHED`] stands instead.
#[derive(Default)]
pub(crate) struct Slices {
    /// The nodes, those with the longest rows first.
    pub(crate) order: Vec<u32>,
    /// Where each slice begins, and where the last one ends.
    pub(crate) starts: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    /// Empty if there are none.
    pub(crate) weights: Vec<u32>,
}

impl Rows {
    pub(crate) fn sliced(&self) -> Result<Slices, Error> {
        let nodes = self.offsets.len() as u32 - 1;
        let mut order: Vec<u32> = (0..nodes).collect();
        order.sort_by_key(|node| std::cmp::Reverse(self.range(*node).len()));
        let mut made = Slices { starts: vec![0], ..Slices::default() };
        for slice in order.chunks(SLICE as usize) {
            let longest = self.range(slice[0]).len() as u64;
            let end = made.starts.last().map_or(0, |start| u64::from(*start)) + longest * u64::from(SLICE);
            made.starts.push(u32::try_from(end).map_err(|_| Error::Overflow { field: "edges of the graph" })?);
        }
        let columns = |words: &[u32]| {
            let parts = in_parts("slicing", made.starts.len() - 1, |slices| {
                let first = made.starts[slices.start] as usize;
                let mut part = vec![UNREACHED; made.starts[slices.end] as usize - first];
                for slice in slices {
                    let start = made.starts[slice] as usize - first;
                    let rows = order[slice * SLICE as usize..].iter().take(SLICE as usize);
                    for (lane, node) in rows.enumerate() {
                        for (at, word) in words[self.range(*node)].iter().enumerate() {
                            part[start + at * SLICE as usize + lane] = *word;
                        }
                    }
                }
                part
            });
            parts.concat()
        };
        let targets = columns(&self.targets);
        let weights = if self.weights.is_empty() { Vec::new() } else { columns(&self.weights) };
        Ok(Slices { order, targets, weights, ..made })
    }
}

/// A graph: no edge is there twice, and none leads back to where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Where edges lead to.
    pub outgoing: Rows,
    /// Where edges come from, if that is not the same.
    incoming: Option<Rows>,
    weights: Weights,
}

impl Graph {
    /// How many nodes there are.
    pub fn nodes(&self) -> u32 {
        (self.outgoing.offsets.len() - 1) as u32
    }

    /// How many edges there are; one that can be followed both ways counts twice.
    pub fn edges(&self) -> u32 {
        self.outgoing.targets.len() as u32
    }

    /// Where edges come from.
    pub fn incoming(&self) -> &Rows {
        self.incoming.as_ref().unwrap_or(&self.outgoing)
    }

    /// Whether every edge can be followed both ways.
    pub fn is_symmetric(&self) -> bool {
        self.incoming.is_none()
    }

    /// What the weights of edges are.
    pub fn weights(&self) -> Weights {
        self.weights
    }

    /// Whether edges have weights.
    pub fn is_weighted(&self) -> bool {
        self.weights != Weights::None
    }

    /// The same graph with edges that can be followed both ways.
    ///
    /// # Errors
    /// These are too many edges.
    pub fn symmetric(self) -> Result<Graph, Error> {
        if self.is_symmetric() {
            return Ok(self);
        }
        let (rows, weights) = (&self.outgoing, self.weights);
        let row = |source: u32| {
            rows.range(source).map(move |at| {
                let weight = rows.weights.get(at).copied().unwrap_or(1);
                Edge { source, target: rows.targets[at], weight }
            })
        };
        let list = (0..self.nodes()).flat_map(row).collect();
        Graph::new(&Edges { nodes: self.nodes(), list, weights, symmetric: true })
    }

    /// Makes rows of edges, on all cores. Of several edges between the same nodes, the lightest one stays.
    ///
    /// # Errors
    /// There are too many edges.
    pub fn new(edges: &Edges) -> Result<Graph, Error> {
        let _span = tracing::info_span!("build graph", edges = edges.list.len()).entered();
        if edges.list.len() as u64 * 2 > u64::from(u32::MAX) {
            return Err(Error::Overflow { field: "edges of the graph" });
        }
        let outgoing = rows(edges, true, edges.symmetric);
        let incoming = if edges.symmetric { None } else { Some(rows(edges, false, true)) };
        // A list that names both directions of every edge is symmetric, whatever it says of itself.
        let incoming = incoming.filter(|incoming| *incoming != outgoing);
        Ok(Graph { outgoing, incoming, weights: edges.weights })
    }
}

/// A result that is not what it should be.
fn wrong(algorithm: &'static str, node: u32, reason: String) -> Result<(), Error> {
    Err(Error::WrongResult { algorithm, node, reason })
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Parts of `0..count`, on which something is done by all cores. The results are in order.
fn in_parts<R: Send>(stage: &'static str, count: usize, work: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    // More than there are cores: parts are not alike, cores have other things to do, and somebody may watch.
    let parts = (count / 4096).clamp(1, 64);
    let bound = |part: usize| count * part / parts;
    let next = AtomicUsize::new(1);
    let run = |first: Option<usize>| {
        let others = std::iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|part| *part < parts);
        let done = first.into_iter().chain(others).map(|part| {
            let result = work(bound(part)..bound(part + 1));
            progress::report(stage, part + 1, parts);
            (part, result)
        });
        done.collect::<Vec<(usize, R)>>()
    };
    let mut results = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads().min(parts)).map(|_| scope.spawn(|| run(None))).collect();
        // Who waits does one in any case, and tells of it.
        let mut results = run(Some(0));
        for other in others {
            results.extend(other.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        }
        results
    });
    results.sort_by_key(|(part, _)| *part);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The rows of edges: each edge is in the row of its source, of its target, or in both.
fn rows(edges: &Edges, of_sources: bool, of_targets: bool) -> Rows {
    let nodes = edges.nodes as usize;
    let entries = |edge: &Edge| {
        let packed = |neighbour: u32| u64::from(neighbour) << 32 | u64::from(edge.weight);
        let proper = edge.source != edge.target;
        let out = (of_sources && proper).then_some((edge.source as usize, packed(edge.target)));
        let back = (of_targets && proper).then_some((edge.target as usize, packed(edge.source)));
        out.into_iter().chain(back)
    };
    let cursors: Vec<AtomicU32> = (0..nodes).map(|_| AtomicU32::new(0)).collect();
    in_parts("counting", edges.list.len(), |part| {
        for (row, _) in edges.list[part].iter().flat_map(entries) {
            cursors[row].fetch_add(1, Relaxed);
        }
    });
    let mut ends = Vec::with_capacity(nodes);
    let mut end = 0;
    for cursor in &cursors {
        let start = end;
        end += cursor.swap(start, Relaxed);
        ends.push(end);
    }
    let packed: Vec<AtomicU64> = (0..end).map(|_| AtomicU64::new(0)).collect();
    in_parts("placing", edges.list.len(), |part| {
        for (row, entry) in edges.list[part].iter().flat_map(entries) {
            packed[cursors[row].fetch_add(1, Relaxed) as usize].store(entry, Relaxed);
        }
    });
    // Rows become shorter here, so each part makes its own, and they are put together in the end.
    let parts = in_parts("sorting", nodes, |part| {
        let (mut lengths, mut targets, mut weights) = (Vec::with_capacity(part.len()), Vec::new(), Vec::new());
        let mut row = Vec::new();
        for node in part {
            let start = node.checked_sub(1).map_or(0, |before| ends[before]) as usize;
            row.clear();
            row.extend(packed[start..ends[node] as usize].iter().map(|entry| entry.load(Relaxed)));
            row.sort_unstable();
            row.dedup_by_key(|entry| *entry >> 32);
            lengths.push(row.len() as u32);
            targets.extend(row.iter().map(|entry| (entry >> 32) as u32));
            if edges.weights != Weights::None {
                weights.extend(row.iter().map(|entry| *entry as u32));
            }
        }
        (lengths, targets, weights)
    });
    let (mut offsets, mut targets, mut weights) = (Vec::with_capacity(nodes + 1), Vec::new(), Vec::new());
    offsets.push(0);
    targets.reserve_exact(parts.iter().map(|part| part.1.len()).sum());
    weights.reserve_exact(parts.iter().map(|part| part.2.len()).sum());
    let mut end = 0;
    for part in parts {
        offsets.extend(part.0.into_iter().map(|length| {
            end += length;
            end
        }));
        targets.extend(part.1);
        weights.extend(part.2);
    }
    Rows { offsets: offsets.into(), targets: targets.into(), weights: weights.into() }
}
