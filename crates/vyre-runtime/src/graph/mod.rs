//! Graphs in compressed sparse row form (CSR), and algorithms on them.
//!
//! ```text
//! file (Matrix Market, edge list, .sg, .wsg) or generator (kron, urand)
//!   → Edges          edge list, unsorted, with duplicates
//!   → Graph          CSR of both directions: sorted rows without duplicates and self-loops
//!   → bfs, …         on a device, by a frontier::Engine
//!   → verify         independent algorithm on the host
//! ```
//!
//! Nodes are numbered from 0; weights are non-negative integers or reals. A graph has fewer than 2³¹ nodes and 2³² edges.

pub mod bfs;
pub mod cache;
pub mod components;
mod generate;
pub(crate) mod memory;
pub mod pagerank;
mod progress;
mod read;
pub mod sssp;
pub mod triangles;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use vyre_driver::Error as DriverError;

use crate::Error;
use memory::{collected, concat, filled, with_capacity, zeroed};

pub use bfs::{Bfs, bfs};
pub use components::{Components, components};
pub use generate::Family;
pub use memory::limited;
pub use pagerank::{PageRank, pagerank};
pub use progress::{Progress, watched};
pub use read::BadFile;
pub use sssp::{Sssp, sssp};
pub use triangles::{triangles, verify_triangles};

/// Depth, parent or distance of an unreachable node.
pub const UNREACHED: u32 = u32::MAX;

/// A directed edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Zeroable)]
pub struct Edge {
    /// Source node.
    pub source: u32,
    /// Target node.
    pub target: u32,
    /// Weight: an integer or the bits of an `f32`, according to [`Weights`].
    pub weight: u32,
}

/// Type of edge weights. No weight is negative, so the bits of real weights have the order of their values, and comparisons need not
/// distinguish the types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// Unweighted: each edge has weight 1.
    #[default]
    None,
    /// `u32`.
    Whole,
    /// Bits of a finite `f32`.
    Real,
}

impl Weights {
    /// Returns the sum of two weights or path lengths.
    pub fn sum(self, a: u32, b: u32) -> u32 {
        match self {
            Weights::None | Weights::Whole => a.saturating_add(b),
            Weights::Real => (f32::from_bits(a) + f32::from_bits(b)).to_bits(),
        }
    }
}

/// An edge list, in any order; duplicates are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// Number of nodes.
    pub nodes: u32,
    /// The edges, between nodes less than `nodes`.
    pub list: Vec<Edge>,
    /// Type of the weights.
    pub weights: Weights,
    /// Each edge stands for both directions.
    pub symmetric: bool,
}

/// Adjacency in CSR: the neighbours of each node are a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Start of each row in `targets`, and the end of the last row.
    pub offsets: Vec<u32>,
    /// Neighbours, ascending within a row.
    pub targets: Vec<u32>,
    /// Weights of these edges; empty if unweighted.
    pub weights: Vec<u32>,
}

/// Violated invariant of rows that were read from a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRows {
    /// Offsets that descend, or do not end at the number of edges.
    #[error("row {row} of {nodes} begins at {offset} of {edges} edges")]
    Offset {
        /// The row; `nodes` stands for the end of the last row.
        row: u64,
        /// Number of nodes.
        nodes: u64,
        /// Start of the row.
        offset: u64,
        /// Number of edges.
        edges: u64,
    },
    /// An edge to a node that is out of bounds.
    #[error("an edge leads to node {node} of {nodes}")]
    NoSuchNode {
        /// The node.
        node: u32,
        /// Number of nodes.
        nodes: usize,
    },
    /// A row that is unsorted or has duplicates.
    #[error("the neighbours of node {node} are not in ascending order")]
    Unsorted {
        /// Node of the row.
        node: u32,
    },
    /// Different numbers of edges in the two directions.
    #[error("{edges} edges in one direction, but {reversed} in the other")]
    Counts {
        /// Edges in the first direction.
        edges: usize,
        /// Edges in the other direction.
        reversed: usize,
    },
    /// An edge without its reverse.
    #[error("the edge from {from} to {to} is missing in the other direction")]
    Missing {
        /// Source of the edge.
        from: u32,
        /// Target of the edge.
        to: u32,
    },
    /// An edge whose reverse has another weight.
    #[error("the edge from {from} to {to} has weight {weight}, but its reverse has {reversed}")]
    Weight {
        /// Source of the edge.
        from: u32,
        /// Target of the edge.
        to: u32,
        /// Weight of the edge.
        weight: u32,
        /// Weight of its reverse.
        reversed: u32,
    },
}

impl Rows {
    /// Returns the position of a node's row in `targets`; empty if the node does not exist.
    pub fn range(&self, node: u32) -> Range<usize> {
        match self.offsets.get(node as usize..).and_then(|offsets| offsets.first_chunk()) {
            Some(&[start, end]) => start as usize..end as usize,
            None => 0..0,
        }
    }

    /// Returns the neighbours of a node; empty if the node does not exist.
    pub fn of(&self, node: u32) -> &[u32] {
        self.targets.get(self.range(node)).unwrap_or_default()
    }

    /// Returns the weight of the edge at a position of `targets`; 1 if unweighted.
    fn weight(&self, at: usize) -> u32 {
        self.weights.get(at).copied().unwrap_or(1)
    }

    /// Checks the invariants of rows from a file. `offsets` is not empty.
    fn check(&self) -> Result<(), BadRows> {
        let (offsets, edges) = (&*self.offsets, self.targets.len());
        let nodes = offsets.len() - 1;
        let begins = |row: usize| {
            let (row, nodes, offset, edges) = (row as u64, nodes as u64, offsets[row].into(), edges as u64);
            Err(BadRows::Offset { row, nodes, offset, edges })
        };
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
                if let Some(&node) = row.iter().find(|target| **target as usize >= nodes) {
                    return Err(BadRows::NoSuchNode { node, nodes });
                }
                if !row.is_sorted_by(|target, next| target < next) {
                    return Err(BadRows::Unsorted { node });
                }
            }
            Ok(())
        });
        parts.into_iter().collect()
    }

    /// Checks that `other` is the transpose, with the same weights. Rows have no duplicates: equal edge counts and one inclusion suffice.
    fn check_transpose(&self, other: &Rows) -> Result<(), BadRows> {
        let (edges, reversed) = (self.targets.len(), other.targets.len());
        if edges != reversed {
            return Err(BadRows::Counts { edges, reversed });
        }
        let parts = in_parts("checking", self.offsets.len() - 1, |part| {
            for node in part.start as u32..part.end as u32 {
                for at in self.range(node) {
                    let target = self.targets[at];
                    let row = other.range(target);
                    let Ok(back) = other.of(target).binary_search(&node) else {
                        return Err(BadRows::Missing { from: node, to: target });
                    };
                    let (weight, reversed) = (self.weight(at), other.weight(row.start + back));
                    if weight != reversed {
                        return Err(BadRows::Weight { from: node, to: target, weight, reversed });
                    }
                }
            }
            Ok(())
        });
        parts.into_iter().collect()
    }
}

impl Rows {
    /// Partitions each row into light edges (weight < `limit`) followed by heavy ones. Each row has two offsets: those of its light and of
    /// its heavy edges.
    pub(crate) fn split(&self, limit: u32) -> Result<Rows, Error> {
        let parts = in_parts("splitting rows", self.offsets.len() - 1, |nodes| {
            let places = self.offsets[nodes.start] as usize..self.offsets[nodes.end] as usize;
            let mut offsets = with_capacity("offsets of split rows", 2 * nodes.len())?;
            let mut targets = with_capacity("edges of split rows", places.len())?;
            let mut weights = with_capacity("edges of split rows", places.len())?;
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
            Ok::<_, Error>((offsets, targets, weights))
        });
        let mut all = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let (offsets, targets, weights) = part?;
            all.0.push(offsets);
            all.1.push(targets);
            all.2.push(weights);
        }
        all.0.push(vec![self.targets.len() as u32]);
        Ok(Rows {
            offsets: concat("offsets of split rows", all.0)?,
            targets: concat("edges of split rows", all.1)?,
            weights: concat("edges of split rows", all.2)?,
        })
    }
}

/// Rows of a slice, one for each lane of a workgroup.
pub(crate) const SLICE: u32 = 32;

/// Adjacency in sliced ELLPACK (SELL-C-σ): rows sorted by length, in slices of [`SLICE`] rows that are stored column by column, so that
/// lanes load adjacent words. Rows are padded with [`UNREACHED`] to the longest row of their slice.
pub(crate) struct Slices {
    /// Nodes by descending length of their rows.
    pub(crate) order: Vec<u32>,
    /// Start of each slice, and the end of the last one.
    pub(crate) starts: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    /// Empty if unweighted.
    pub(crate) weights: Vec<u32>,
}

impl Rows {
    pub(crate) fn sliced(&self) -> Result<Slices, Error> {
        let nodes = self.offsets.len() as u32 - 1;
        let mut order = collected("nodes in the order of degrees", 0..nodes)?;
        // An unstable sort allocates no memory; the node as the second key makes the order that of a stable sort.
        order.sort_unstable_by_key(|node| (std::cmp::Reverse(self.range(*node).len()), *node));
        let mut starts = with_capacity("slices of rows", self.slices() as usize + 1)?;
        starts.push(0);
        for slice in order.chunks(SLICE as usize) {
            let longest = self.range(slice[0]).len() as u64;
            let end = starts.last().map_or(0, |start| u64::from(*start)) + longest * u64::from(SLICE);
            starts.push(u32::try_from(end).map_err(|_| DriverError::Overflow { field: "edges of the graph" })?);
        }
        let columns = |words: &[u32]| {
            let parts = in_parts("slicing", starts.len() - 1, |slices| {
                let first = starts[slices.start] as usize;
                let mut part = filled("edges of slices", UNREACHED, starts[slices.end] as usize - first)?;
                for slice in slices {
                    let start = starts[slice] as usize - first;
                    let rows = order[slice * SLICE as usize..].iter().take(SLICE as usize);
                    for (lane, node) in rows.enumerate() {
                        for (at, word) in words[self.range(*node)].iter().enumerate() {
                            part[start + at * SLICE as usize + lane] = *word;
                        }
                    }
                }
                Ok(part)
            });
            concat("edges of slices", parts.into_iter().collect::<Result<_, Error>>()?)
        };
        let targets = columns(&self.targets)?;
        let weights = if self.weights.is_empty() { Vec::new() } else { columns(&self.weights)? };
        Ok(Slices { order, starts, targets, weights })
    }

    /// Number of slices.
    pub(crate) fn slices(&self) -> u64 {
        (self.offsets.len() as u64 - 1).div_ceil(SLICE.into())
    }

    /// Returns the length of `targets` of the slices, with padding, from a histogram of the lengths of rows.
    pub(crate) fn sliced_len(&self) -> Result<u64, Error> {
        let lengths = || self.offsets.windows(2).map(|row| (row[1] - row[0]) as usize);
        let mut histogram: Vec<u32> = zeroed("lengths of rows", lengths().max().map_or(0, |longest| longest + 1))?;
        lengths().for_each(|length| histogram[length] += 1);
        let (mut rank, mut words) = (0u64, 0);
        for (length, count) in histogram.iter().enumerate().rev() {
            // The first row of a slice is its longest.
            let first = rank.div_ceil(SLICE.into());
            rank += u64::from(*count);
            words += (rank.div_ceil(SLICE.into()) - first) * length as u64 * u64::from(SLICE);
        }
        Ok(words)
    }
}

/// A graph without duplicate edges and self-loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    outgoing: Rows,
    /// Rows of incoming edges; `None` if the graph is symmetric.
    incoming: Option<Rows>,
    weights: Weights,
}

impl Graph {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        (self.outgoing.offsets.len() - 1) as u32
    }

    /// Returns the number of directed edges; an undirected edge counts twice.
    pub fn edges(&self) -> u32 {
        self.outgoing.targets.len() as u32
    }

    /// Returns the rows of outgoing edges.
    pub fn outgoing(&self) -> &Rows {
        &self.outgoing
    }

    /// Returns the rows of incoming edges.
    pub fn incoming(&self) -> &Rows {
        self.incoming.as_ref().unwrap_or(&self.outgoing)
    }

    /// Checks that a node is in bounds.
    pub(crate) fn node(&self, node: u32) -> Result<(), Error> {
        let nodes = self.nodes();
        if node < nodes { Ok(()) } else { Err(Error::NoSuchNode { node, nodes }) }
    }

    /// Returns true if every edge has its reverse, with the same weight.
    pub fn is_symmetric(&self) -> bool {
        self.incoming.is_none()
    }

    /// Returns the type of the weights.
    pub fn weights(&self) -> Weights {
        self.weights
    }

    /// Returns true if edges have weights.
    pub fn is_weighted(&self) -> bool {
        self.weights != Weights::None
    }

    /// Returns the undirected graph: adds the reverse of every edge.
    ///
    /// # Errors
    /// There are too many edges, or they take more memory than the [limit](limited).
    pub fn symmetric(self) -> Result<Graph, Error> {
        if self.is_symmetric() {
            return Ok(self);
        }
        let (nodes, rows, weights) = (self.nodes(), &self.outgoing, self.weights);
        check_building(nodes, rows.targets.len(), weights, true)?;
        let mut list = with_capacity("edges of the graph", rows.targets.len())?;
        for source in 0..nodes {
            let edge = |at: usize| Edge { source, target: rows.targets[at], weight: rows.weight(at) };
            list.extend(rows.range(source).map(edge));
        }
        Graph::new(&Edges { nodes, list, weights, symmetric: true })
    }

    /// Builds the rows of an edge list, on all cores. Of duplicate edges, the lightest is kept.
    ///
    /// # Errors
    /// There are too many nodes or edges, they take more memory than the [limit](limited), or an edge has a node that is out of bounds.
    pub fn new(edges: &Edges) -> Result<Graph, Error> {
        let _span = tracing::info_span!("build graph", edges = edges.list.len()).entered();
        if edges.list.len() as u64 * 2 > u64::from(u32::MAX) {
            return Err(DriverError::Overflow { field: "edges of the graph" }.into());
        }
        if edges.nodes > i32::MAX as u32 {
            return Err(DriverError::Overflow { field: "nodes of the graph" }.into());
        }
        check_building(edges.nodes, edges.list.len(), edges.weights, edges.symmetric)?;
        let outgoing = rows(edges, true, edges.symmetric)?;
        let incoming = if edges.symmetric { None } else { Some(rows(edges, false, true)?) };
        // A list with both directions of every edge is symmetric even if it is not marked so.
        let incoming = incoming.filter(|incoming| *incoming != outgoing);
        Ok(Graph { outgoing, incoming, weights: edges.weights })
    }
}

/// Checks the peak memory of building a graph from an edge list, the list included.
fn check_building(nodes: u32, edges: usize, weights: Weights, symmetric: bool) -> Result<(), Error> {
    let (n, listed) = (u64::from(nodes), edges as u64);
    let entries = if symmetric { 2 * listed } else { listed };
    let words = if weights == Weights::None { 1 } else { 2 };
    let rows = 4 * (n + 1) + 4 * words * entries;
    // Cursors, ends of rows and packed entries: freed before the sorted parts are concatenated to rows.
    let placing = 8 * n + 8 * entries;
    let first_direction = if symmetric { 0 } else { rows };
    let list = size_of::<Edge>() as u64 * listed;
    memory::check(list + first_direction + rows + placing.max(rows), || format!("{nodes} nodes and {edges} edges"))
}

/// Fails with [`Error::WrongResult`].
fn wrong_result(algorithm: &'static str, node: u32, reason: String) -> Result<(), Error> {
    Err(Error::WrongResult { algorithm, node, reason })
}

/// Checks that a result has an element for each node.
fn check_length(algorithm: &'static str, graph: &Graph, length: usize) -> Result<(), Error> {
    let nodes = graph.nodes();
    if length == nodes as usize {
        return Ok(());
    }
    wrong_result(algorithm, nodes.min(length as u32), format!("{length} results for {nodes} nodes"))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Parallel for: applies `work` to parts of `0..count` on all cores, and returns the results in the order of the parts.
fn in_parts<R: Send>(stage: &'static str, count: usize, work: impl Fn(Range<usize>) -> R + Sync) -> Vec<R> {
    // More parts than cores: for load balancing, and to report progress.
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
        // If a thread cannot be created, the others do its parts.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || run(None)).ok();
        let others: Vec<_> = (1..threads().min(parts)).map_while(spawn).collect();
        // The calling thread does the first part, so that it reports progress.
        let mut results = run(Some(0));
        for other in others {
            results.extend(other.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        }
        results
    });
    results.sort_by_key(|(part, _)| *part);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Parallel for over mutable blocks of a list: `work` gets the number of a block and the block. Results are in the order of the blocks.
fn in_blocks<T: Send, R: Send>(
    stage: &'static str,
    list: &mut [T],
    block: usize,
    work: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    let blocks: Vec<Mutex<&mut [T]>> = list.chunks_mut(block).map(Mutex::new).collect();
    let parts = in_parts(stage, blocks.len() * block, |part| {
        let numbers = part.start.div_ceil(block)..part.end.div_ceil(block);
        let work = |number: usize| work(number, &mut blocks[number].lock().unwrap_or_else(PoisonError::into_inner));
        numbers.map(work).collect::<Vec<R>>()
    });
    parts.into_iter().flatten().collect()
}

/// Builds rows by a counting sort: each edge is entered in the row of its source, of its target, or in both.
fn rows(edges: &Edges, of_sources: bool, of_targets: bool) -> Result<Rows, Error> {
    let nodes = edges.nodes as usize;
    let entries = |edge: &Edge| {
        let packed = |neighbour: u32| u64::from(neighbour) << 32 | u64::from(edge.weight);
        let proper = edge.source != edge.target;
        let out = (of_sources && proper).then_some((edge.source as usize, packed(edge.target)));
        let back = (of_targets && proper).then_some((edge.target as usize, packed(edge.source)));
        out.into_iter().chain(back)
    };
    let cursors: Vec<AtomicU32> = zeroed("nodes of the graph", nodes)?;
    let counted = in_parts("counting", edges.list.len(), |part| {
        for edge in &edges.list[part] {
            let node = edge.source.max(edge.target);
            if node >= edges.nodes {
                return Err(Error::NoSuchNode { node, nodes: edges.nodes });
            }
            entries(edge).for_each(|(row, _)| _ = cursors[row].fetch_add(1, Relaxed));
        }
        Ok(())
    });
    counted.into_iter().collect::<Result<(), Error>>()?;
    let mut ends = with_capacity("nodes of the graph", nodes)?;
    let mut end = 0;
    for cursor in &cursors {
        let start = end;
        end += cursor.swap(start, Relaxed);
        ends.push(end);
    }
    let packed: Vec<AtomicU64> = zeroed("edges of the graph", end as usize)?;
    in_parts("placing", edges.list.len(), |part| {
        for (row, entry) in edges.list[part].iter().flat_map(entries) {
            packed[cursors[row].fetch_add(1, Relaxed) as usize].store(entry, Relaxed);
        }
    });
    drop(cursors);
    let start_of = |node: usize| node.checked_sub(1).map_or(0, |before| ends[before]) as usize;
    // Removing duplicates shortens rows, so each part builds its own rows, and these are concatenated.
    let parts = in_parts("sorting", nodes, |part| {
        let most = start_of(part.end) - start_of(part.start);
        let mut lengths: Vec<u32> = with_capacity("nodes of the graph", part.len())?;
        let mut targets: Vec<u32> = with_capacity("edges of the graph", most)?;
        let is_weighted = edges.weights != Weights::None;
        let mut weights: Vec<u32> = with_capacity("edges of the graph", if is_weighted { most } else { 0 })?;
        let mut row: Vec<u64> = Vec::new();
        for node in part {
            let unsorted = &packed[start_of(node)..ends[node] as usize];
            row.clear();
            row.try_reserve(unsorted.len())
                .map_err(|_| DriverError::Reservation { field: "edges of a node", requested: unsorted.len() })?;
            row.extend(unsorted.iter().map(|entry| entry.load(Relaxed)));
            row.sort_unstable();
            row.dedup_by_key(|entry| *entry >> 32);
            lengths.push(row.len() as u32);
            targets.extend(row.iter().map(|entry| (entry >> 32) as u32));
            if is_weighted {
                weights.extend(row.iter().map(|entry| *entry as u32));
            }
        }
        Ok::<_, Error>((lengths, targets, weights))
    });
    drop(packed);
    drop(ends);
    let parts = parts.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let mut offsets = with_capacity("nodes of the graph", nodes + 1)?;
    let (target_count, weight_count) =
        parts.iter().fold((0, 0), |sum, part| (sum.0 + part.1.len(), sum.1 + part.2.len()));
    let mut targets = with_capacity("edges of the graph", target_count)?;
    let mut weights = with_capacity("edges of the graph", weight_count)?;
    offsets.push(0);
    let mut end = 0;
    for part in parts {
        offsets.extend(part.0.into_iter().map(|length| {
            end += length;
            end
        }));
        targets.extend(part.1);
        weights.extend(part.2);
    }
    Ok(Rows { offsets, targets, weights })
}
