//! Shortest paths by weight: delta-stepping.
//!
//! Nodes that are closer than a limit are followed until none of them comes closer any more, along edges that are lighter than `delta`: others
//! lead beyond the limit, and are followed once all of these nodes are where they stay. Nodes beyond wait in `far`. Then the limit moves to
//! `delta` past the closest of these.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Display;

use vyre_driver::{Buffer, Error as DriverError, Grid};
use vyre_foundation::build::{self, kernel};
use vyre_foundation::ir::{Element, Program};

use super::memory::filled;
use super::{Graph, UNREACHED, Weights, complete, wrong};
use crate::Error;
use crate::frontier::{Batch, Engine, NamedArguments, Needs, Step, Test, Visitor, nodes};

/// The lengths of the shortest paths from a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Sssp {
    /// For each node.
    pub distances: Distances,
}

/// Lengths of paths, of the type that weights have.
#[derive(Clone, Debug, PartialEq)]
pub enum Distances {
    /// [`UNREACHED`] where there is no path.
    Whole(Vec<u32>),
    /// Infinity where there is no path: paths that are there are finite.
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

/// Kinds of edges, by the place of their offset.
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

/// Leaves out of `far` what has come closer than the limit, and finds the closest of the others.
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

/// Width of the buckets of delta-stepping.
struct Buckets {
    /// A weight, as the graph has them.
    delta: u32,
    /// Some edges are heavier than that, so that rows are split.
    is_split: bool,
    /// A path could be longer than lengths can be.
    overflows: bool,
}

impl Buckets {
    fn new(graph: &Graph, delta: Option<f32>) -> Buckets {
        let heaviest = graph.outgoing.weights.iter().max().copied().unwrap_or(1);
        let degree = (graph.edges() / graph.nodes().max(1)).max(1);
        // A step costs something however few nodes it has, so that following some edges twice is better than many steps.
        let (longest, limit, delta) = match graph.weights() {
            Weights::None | Weights::Whole => {
                let delta = delta.map_or(heaviest.saturating_mul(2) / degree, |delta| delta as u32);
                (f64::from(heaviest) * f64::from(graph.nodes()), f64::from(UNREACHED), delta.max(1))
            }
            Weights::Real => {
                // Bits of what is no weight are above those of infinity.
                let heaviest = f32::from_bits(heaviest.min(f32::INFINITY.to_bits()));
                let delta = delta.unwrap_or(heaviest * 2.0 / degree as f32).max(f32::MIN_POSITIVE);
                // Rounding a sum at most doubles what an edge adds to it.
                (2.0 * f64::from(heaviest) * f64::from(graph.nodes()), f64::from(f32::MAX), delta.to_bits())
            }
        };
        // Without heavy edges, all are followed.
        Buckets { delta, is_split: graph.is_weighted() && delta <= heaviest, overflows: longest >= limit }
    }

    fn needs(&self, graph: &Graph) -> Needs {
        let (nodes, edges) = (u64::from(graph.nodes()), u64::from(graph.edges()));
        let offsets = if self.is_split { 2 * nodes + 1 } else { nodes + 1 };
        let words = nodes.div_ceil(32).max(1);
        Needs { frontiers: 1, weights: true, buffers: vec![offsets, edges, nodes, words, words, 1] }
    }
}

/// Device memory of delta-stepping: rows, with two offsets for each node if they are split into light and heavy edges; weights; distances;
/// the sets of far and of settled nodes, and the least distance of the former.
pub fn needs(graph: &Graph, delta: Option<f32>) -> Needs {
    Buckets::new(graph, delta).needs(graph)
}

/// Finds the shortest paths from a node. `delta` is how far apart nodes may be that are followed at once; without it, it follows from the
/// weights. Sums of real numbers are rounded, edge by edge from the source on.
///
/// # Errors
/// [`Error::NoSuchNode`], there is not enough memory, paths may be too long to be counted, or the device failed.
pub fn sssp(engine: &Engine<'_>, source: u32, delta: Option<f32>) -> Result<Sssp, Error> {
    let words = run(engine, source, delta)?.elements()?;
    Ok(Sssp { distances: Distances::new(engine.graph().weights(), words) })
}

/// The same, and leaves the distances on the device; real ones as bits, with [`UNREACHED`] where there is no path.
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
            // A sum may be rounded to less than the limit.
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
        // A real number that is added may be too small to matter, and the closest would not be followed then.
        limit = weights.sum(closest, delta).max(closest + 1);
        engine.select("sssp_near", is_near, &far, &mut near, of_kind(LIGHT, given(limit)))?;
    }
}

impl Sssp {
    /// Compares with what Dijkstra's algorithm finds. Rounded sums have to be the same: rounding keeps the order of numbers, so that going
    /// on from the shorter of two paths is never longer, and the least length does not depend on the order in which paths are found.
    ///
    /// # Errors
    /// [`Error::WrongResult`] names the first node with another distance. [`Error::NoSuchNode`]: the source is none of the graph.
    pub fn verify(&self, graph: &Graph, source: u32) -> Result<(), Error> {
        graph.node(source)?;
        let length = match &self.distances {
            Distances::Whole(distances) => distances.len(),
            Distances::Real(distances) => distances.len(),
        };
        complete("sssp", graph, length)?;
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
            _ => wrong("sssp", source, "the weights of the graph are of another type than its distance".into()),
        }
    }
}

/// Makes room for one more node in the queue of Dijkstra's algorithm.
fn reserve_one<T>(heap: &mut BinaryHeap<T>) -> Result<(), Error> {
    let requested = heap.len() + 1;
    heap.try_reserve(1).map_err(|_| DriverError::Reservation { field: "queue of nodes", requested }.into())
}

fn compare<T: PartialEq + Display>(found: &[T], expected: &[T]) -> Result<(), Error> {
    for (node, (found, expected)) in (0..).zip(found.iter().zip(expected)) {
        if found != expected {
            return wrong("sssp", node, format!("its distance is {found} instead of {expected}"));
        }
    }
    Ok(())
}
