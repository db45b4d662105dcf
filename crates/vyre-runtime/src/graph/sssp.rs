//! Single-source shortest paths by delta-stepping.
//!
//! The current bucket holds the nodes with a distance below `limit`. Its light edges (weight < `delta`) are relaxed until the bucket is
//! empty; heavy edges lead beyond the bucket, and are relaxed once for its settled nodes. Nodes beyond `limit` are collected in `far`. The
//! next `limit` is the least distance in `far` plus `delta`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Display;

use vyre_driver::{Buffer, Error as DriverError, Grid};
use vyre_foundation::build::{self, kernel};
use vyre_foundation::ir::{Element, Program};

use super::memory::filled;
use super::{Graph, UNREACHED, Weights, check_length, wrong_result};
use crate::Error;
use crate::frontier::{Batch, Engine, NamedArguments, Needs, Step, Test, Visitor, nodes};

/// Shortest path lengths from a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sssp {
    /// Distance of each node.
    pub distances: Distances,
}

/// Distances, of the type of the weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Distances {
    /// [`UNREACHED`] for unreachable nodes.
    Whole(Vec<u32>),
    /// Infinity for unreachable nodes; path lengths are finite.
    Real(Vec<f32>),
}

impl Distances {
    fn new(weights: Weights, mut words: Vec<u32>) -> Distances {
        match weights {
            Weights::None | Weights::Whole => Distances::Whole(words),
            Weights::Real => {
                let unreached = words.iter_mut().filter(|word| **word == UNREACHED);
                unreached.for_each(|word| *word = f32::INFINITY.to_bits());
                Distances::Real(bytemuck::cast_vec(words))
            }
        }
    }
}

const STEP: Step = Step { name: "sssp", visit: visit::<false>, until_admitted: false };
const REAL_STEP: Step = Step { name: "sssp_real", visit: visit::<true>, until_admitted: false };

/// Kinds of edges: index of their offset in a split row.
const LIGHT: u32 = 0;
const HEAVY: u32 = 1;

fn visit<const REAL: bool>(k: &build::Kernel) -> Visitor<'_> {
    let limit = k.uniform::<u32>("limit").load();
    let weights = k.read::<u32>("weights");
    let (distances, far) = (k.atomic::<u32>("distances"), k.atomic::<u32>("far"));
    Visitor::new(move |edge| {
        let (before, weight) = (distances.load(edge.source), weights.load(edge.index));
        let distance =
            if REAL { (before.bitcast::<f32>() + weight.bitcast::<f32>()).bitcast::<u32>() } else { before + weight };
        let closer = distance.lt(distances.min(edge.target, distance));
        k.if_(closer & distance.ge(limit), || {
            far.or(edge.target >> 5, k.lit(1u32) << (edge.target & 31));
        });
        closer & distance.lt(limit)
    })
}

/// Adds the nodes of a frontier to a set.
fn collect_kernel() -> Result<Program, Error> {
    Ok(kernel("sssp_collect", [64, 1, 1], |k| {
        let (bits, settled) = (k.read::<u32>("bits"), k.read_write::<u32>("settled"));
        let word = k.global_index();
        let found = bits.load(word);
        k.if_(found.ne(0), || settled.store(word, settled.load(word) | found));
    })?)
}

fn is_any(k: &build::Kernel) -> Test<'_> {
    Box::new(move |_| k.lit(true))
}

/// Removes nodes with a distance below `limit` from `far`, and computes the least distance of the others.
fn least_kernel() -> Result<Program, Error> {
    Ok(kernel("sssp_least", [64, 1, 1], |k| {
        let (distances, far) = (k.read::<u32>("distances"), k.read_write::<u32>("far"));
        let (least, limit) = (k.atomic::<u32>("least"), k.uniform::<u32>("limit").load());
        let word = k.global_index();
        let (found, kept, closest) = (far.load(word), k.var(0u32), k.var(UNREACHED));
        nodes(k, word, found, |node| {
            let distance = distances.load(node);
            k.if_(distance.ge(limit), || {
                kept.set(kept.get() | k.lit(1u32) << (node & 31));
                closest.set(closest.get().min(distance));
            });
        });
        k.if_(kept.get().ne(found), || far.store(word, kept.get()));
        k.if_(closest.get().lt(least.load(0)), || {
            least.min(0, closest.get());
        });
    })?)
}

fn is_near(k: &build::Kernel) -> Test<'_> {
    let (distances, limit) = (k.read::<u32>("distances"), k.uniform::<u32>("limit").load());
    Box::new(move |node| distances.load(node).lt(limit))
}

/// Buckets of delta-stepping.
struct Buckets {
    /// Width of a bucket, of the type of the weights.
    delta: u32,
    /// Rows are split: there are heavy edges.
    is_split: bool,
    /// A path length may overflow.
    overflows: bool,
}

impl Buckets {
    fn new(graph: &Graph, delta: Option<f32>) -> Buckets {
        let heaviest = graph.outgoing.weights.iter().max().copied().unwrap_or(1);
        let degree = (graph.edges() / graph.nodes().max(1)).max(1);
        // A step has a fixed cost, so relaxing some edges twice (wide buckets) is faster than many steps.
        let (longest, limit, delta) = match graph.weights() {
            Weights::None | Weights::Whole => {
                let delta = delta.map_or(heaviest.saturating_mul(2) / degree, |delta| delta as u32);
                (f64::from(heaviest) * f64::from(graph.nodes()), f64::from(UNREACHED), delta.max(1))
            }
            Weights::Real => {
                // NaN, which is no weight, has bits above those of infinity.
                let heaviest = f32::from_bits(heaviest.min(f32::INFINITY.to_bits()));
                let delta = delta.unwrap_or(heaviest * 2.0 / degree as f32).max(f32::MIN_POSITIVE);
                // Rounding at most doubles the increment of a sum by an edge.
                (2.0 * f64::from(heaviest) * f64::from(graph.nodes()), f64::from(f32::MAX), delta.to_bits())
            }
        };
        // Rows are split only if there are heavy edges.
        Buckets { delta, is_split: graph.is_weighted() && delta <= heaviest, overflows: longest >= limit }
    }

    fn needs(&self, graph: &Graph) -> Needs {
        let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
        let offsets = if self.is_split { 2 * nodes + 1 } else { nodes + 1 };
        let words = nodes.div_ceil(32).max(1);
        Needs { frontiers: 1, weights: true, buffers: vec![offsets, edges, nodes, words, words, 1] }
    }
}

/// Device memory: rows, with two offsets for each node if they are split into light and heavy edges; weights; distances; the sets of far
/// and settled nodes, and the least distance of the former.
pub fn needs(graph: &Graph, delta: Option<f32>) -> Needs {
    Buckets::new(graph, delta).needs(graph)
}

/// Computes the shortest paths from a node. `delta` is the width of a bucket; `None` derives it from weights and degrees (2 · heaviest
/// weight ÷ mean degree). Real path lengths are rounded after each edge, from the source on.
///
/// # Errors
/// [`Error::NoSuchNode`], there is not enough memory, path lengths may overflow, or the device failed.
pub fn sssp(engine: &Engine<'_>, source: u32, delta: Option<f32>) -> Result<Sssp, Error> {
    let words = run(engine, source, delta)?.elements()?;
    Ok(Sssp { distances: Distances::new(engine.graph().weights(), words) })
}

/// Computes the shortest paths, and returns the distances on the device: reals as bits, [`UNREACHED`] for unreachable nodes.
///
/// # Errors
/// As for [`sssp`].
pub fn run(engine: &Engine<'_>, source: u32, delta: Option<f32>) -> Result<Buffer, Error> {
    let graph = engine.graph();
    graph.node(source)?;
    let buckets = Buckets::new(graph, delta);
    engine.admit(&buckets.needs(graph))?;
    let weights = graph.weights();
    let Buckets { delta, is_split, overflows } = buckets;
    if overflows {
        return Err(vyre_driver::Error::Overflow { field: "lengths of paths" }.into());
    }
    let distances = engine.per_node(UNREACHED)?;
    distances.slice(source..source + 1)?.write(&0u32.to_le_bytes())?;
    let mut near = engine.frontier([source])?;
    let [far, settled] = [0; 2].map(|_| engine.device().allocate(Element::U32, near.bits().len().into()));
    let (far, settled) = (far?, settled?);
    let least = engine.device().allocate(Element::U32, 1)?;
    let (collect, find_least) =
        (engine.kernel("sssp_collect", collect_kernel)?, engine.kernel("sssp_least", least_kernel)?);
    let rows = if is_split { engine.split_rows(delta)? } else { Vec::new() };
    let step = if weights == Weights::Real { &REAL_STEP } else { &STEP };
    let mut limit = delta;
    loop {
        let of_kind = |kind: u32, given: NamedArguments<'static>| {
            let mut all = rows.clone();
            all.push(("first", kind.into()));
            all.extend(given);
            all
        };
        let given = |limit: u32| vec![("distances", (&distances).into()), ("limit", limit.into())];
        let following = |kind| {
            let mut given = given(limit);
            given.push(("far", (&far).into()));
            of_kind(kind, given)
        };
        loop {
            while !near.is_empty() {
                let mut batch = Batch::default();
                let objects = vec![("bits", near.bits().into()), ("settled", (&settled).into())];
                engine.add(&mut batch, &collect, Grid::elements(settled.len()), objects, Vec::new())?;
                engine.submit(&batch)?;
                engine.advance(step, &mut near, &|_| following(LIGHT))?;
            }
            if !is_split {
                break;
            }
            engine.select("sssp_settled", is_any, &settled, &mut near, of_kind(HEAVY, Vec::new()))?;
            engine.advance(step, &mut near, &|_| following(HEAVY))?;
            let mut batch = Batch::default();
            batch.clear(&[&settled]);
            engine.submit(&batch)?;
            // A sum may round to less than the limit, which refills the bucket.
            if near.is_empty() {
                break;
            }
        }

        least.write(&UNREACHED.to_le_bytes())?;
        let mut batch = Batch::default();
        let objects = vec![("far", (&far).into()), ("least", (&least).into())];
        engine.add(&mut batch, &find_least, Grid::elements(far.len()), objects, given(limit))?;
        engine.submit(&batch)?;
        let closest = least.elements::<u32>()?[0];
        if closest == UNREACHED {
            return Ok(distances);
        }
        // `closest + delta` may round to `closest`; the limit must exceed it for progress.
        limit = weights.sum(closest, delta).max(closest + 1);
        engine.select("sssp_near", is_near, &far, &mut near, of_kind(LIGHT, given(limit)))?;
    }
}

impl Sssp {
    /// Verifies the distances with Dijkstra's algorithm, for equality also of rounded lengths: rounding is monotonic, so extending the
    /// shorter of two paths never gives the longer one, and the least length does not depend on the order of relaxations.
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the first node with another distance. [`Error::NoSuchNode`]: the source is out of bounds.
    pub fn verify(&self, graph: &Graph, source: u32) -> Result<(), Error> {
        graph.node(source)?;
        let length = match &self.distances {
            Distances::Whole(distances) => distances.len(),
            Distances::Real(distances) => distances.len(),
        };
        check_length("sssp", graph, length)?;
        let mut distances = filled("distances of nodes", UNREACHED, graph.nodes() as usize)?;
        let mut heap = BinaryHeap::from([Reverse((0, source))]);
        distances[source as usize] = 0;
        while let Some(Reverse((distance, node))) = heap.pop() {
            if distance > distances[node as usize] {
                continue;
            }
            for at in graph.outgoing.range(node) {
                let next = graph.outgoing.targets[at];
                let weight = graph.outgoing.weight(at);
                let through = graph.weights().sum(distance, weight);
                if through < distances[next as usize] {
                    distances[next as usize] = through;
                    reserve_one(&mut heap)?;
                    heap.push(Reverse((through, next)));
                }
            }
        }
        match (&self.distances, &Distances::new(graph.weights(), distances)) {
            (Distances::Whole(found), Distances::Whole(expected)) => compare(found, expected),
            (Distances::Real(found), Distances::Real(expected)) => compare(found, expected),
            _ => wrong_result("sssp", source, "the weights of the graph are of another type than its distance".into()),
        }
    }
}

/// Reserves one more entry of the heap.
fn reserve_one<T>(heap: &mut BinaryHeap<T>) -> Result<(), Error> {
    let requested = heap.len() + 1;
    heap.try_reserve(1).map_err(|_| DriverError::Reservation { field: "queue of nodes", requested }.into())
}

fn compare<T: PartialEq + Display>(found: &[T], expected: &[T]) -> Result<(), Error> {
    for (node, (found, expected)) in (0..).zip(found.iter().zip(expected)) {
        if found != expected {
            return wrong_result("sssp", node, format!("its distance is {found} instead of {expected}"));
        }
    }
    Ok(())
}
