//! Triangle counting.
//!
//! Nodes are renumbered by descending degree, and edges are oriented towards lower numbers, which bounds the out-degree of hubs. A
//! workgroup marks the out-neighbours of a node in a bitmap, and counts the marked out-neighbours of those.

use vyre_driver::Grid;
use vyre_foundation::build::kernel;
use vyre_foundation::ir::{Element, Program};

use super::memory::{collected, concat, with_capacity, zeroed};
use super::{Graph, Rows, in_parts, wrong_result};
use crate::Error;
use crate::frontier::{Batch, Engine, Needs};

/// Workgroups, each with a bitmap of nodes.
const GROUPS: u32 = 64;
/// Maximum lanes of a workgroup.
const MOST_LANES: u32 = 64;

fn count(lanes: u32) -> Result<Program, Error> {
    Ok(kernel("triangles", [lanes, 1, 1], |k| {
        let (starts, lower) = (k.read::<u32>("starts"), k.read::<u32>("lower"));
        let (marks, found) = (k.atomic::<u32>("marks"), k.write::<u32>("found"));
        let (group, lane) = (k.group_index(), k.local_index());
        let own = group * k.uniform::<u32>("words").load();
        let triangles = k.var(0u32);
        k.for_range_step(group, starts.len() - 1, GROUPS, |node| {
            let (start, end) = (starts.load(node), starts.load(node + 1));
            let mark = |set: bool| {
                k.for_range_step(start + lane, end, lanes, |at| {
                    let neighbour = lower.load(at);
                    let bit = k.lit(1u32) << (neighbour & 31);
                    if set {
                        marks.or(own + (neighbour >> 5), bit);
                    } else {
                        marks.store(own + (neighbour >> 5), 0);
                    }
                });
            };
            mark(true);
            k.storage_barrier();
            k.for_range(start, end, |at| {
                let neighbour = lower.load(at);
                k.for_range_step(starts.load(neighbour) + lane, starts.load(neighbour + 1), lanes, |at| {
                    let third = lower.load(at);
                    let marked = marks.load(own + (third >> 5)) >> (third & 31) & 1;
                    triangles.set(triangles.get() + marked);
                });
            });
            k.storage_barrier();
            mark(false);
            k.storage_barrier();
        });
        found.store(k.global_index(), triangles.get());
    })?)
}

/// Device memory: rows of oriented edges, which are half of all, bitmaps, and the counts of lanes.
pub fn needs(graph: &Graph) -> Needs {
    let marks = u64::from(GROUPS) * u64::from(graph.nodes().div_ceil(32));
    let counts = u64::from(GROUPS) * u64::from(MOST_LANES);
    let buffers = vec![u64::from(graph.nodes()) + 1, u64::from(graph.edges()) / 2, marks, counts];
    Needs { buffers, ..Needs::default() }
}

/// Counts the triangles of a symmetric graph.
///
/// # Errors
/// The graph is not symmetric, there is not enough memory, or the device failed.
pub fn triangles(engine: &Engine<'_>) -> Result<u64, Error> {
    let (graph, device) = (engine.graph(), engine.device());
    engine.admit(&needs(graph))?;
    let (lower, lanes) = (lower(graph)?, engine.lanes().min(MOST_LANES));
    let upload = |words: &[u32]| device.upload(Element::U32, bytemuck::cast_slice(words));
    let (starts, lower) = (upload(&lower.offsets)?, upload(&lower.targets)?);
    let words = graph.nodes().div_ceil(32);
    let marks = device.allocate(Element::U32, u64::from(GROUPS) * u64::from(words))?;
    let found = device.allocate(Element::U32, (GROUPS * MOST_LANES).into())?;
    let mut batch = Batch::default();
    let objects = vec![
        ("starts", (&starts).into()),
        ("lower", (&lower).into()),
        ("marks", (&marks).into()),
        ("found", (&found).into()),
        ("words", words.into()),
    ];
    let kernel = engine.kernel("triangles", || count(lanes))?;
    engine.add(&mut batch, &kernel, Grid::Groups([GROUPS, 1, 1]), objects, Vec::new())?;
    engine.submit(&batch)?;
    Ok(found.elements::<u32>()?.into_iter().map(u64::from).sum())
}

/// Renumbers nodes by descending degree, and keeps the edges to lower numbers.
fn lower(graph: &Graph) -> Result<Rows, Error> {
    if !graph.is_symmetric() {
        return Err(Error::NotSymmetric);
    }
    let nodes = graph.nodes() as usize;
    let degree = |node: u32| graph.outgoing.of(node).len();
    let mut by_rank = collected("nodes of the graph", 0..graph.nodes())?;
    // The order of a stable sort by degree, without its memory.
    by_rank.sort_unstable_by_key(|node| (std::cmp::Reverse(degree(*node)), *node));
    let mut ranks: Vec<u32> = zeroed("nodes of the graph", nodes)?;
    for (rank, node) in (0..).zip(&by_rank) {
        ranks[*node as usize] = rank;
    }
    let parts = in_parts("ordering", nodes, |part| {
        let most = by_rank[part.clone()].iter().map(|node| degree(*node)).sum();
        let mut lengths = with_capacity("nodes of the graph", part.len())?;
        let mut targets = with_capacity("edges of the graph", most)?;
        for rank in part {
            let before = targets.len();
            let neighbours = graph.outgoing.of(by_rank[rank]).iter().map(|node| ranks[*node as usize]);
            targets.extend(neighbours.filter(|other| (*other as usize) < rank));
            lengths.push((targets.len() - before) as u32);
        }
        Ok::<_, Error>((lengths, targets))
    });
    let mut offsets = with_capacity("nodes of the graph", nodes + 1)?;
    offsets.push(0);
    let (mut end, mut lower) = (0, Vec::new());
    for part in parts {
        let (lengths, targets): (Vec<u32>, Vec<u32>) = part?;
        offsets.extend(lengths.into_iter().map(|length| {
            end += length;
            end
        }));
        lower.push(targets);
    }
    Ok(Rows { offsets, targets: concat("edges of the graph", lower)?, ..Rows::default() })
}

/// Verifies a count by merge intersection of the rows of both ends of every edge.
///
/// # Errors
/// [`Error::WrongResult`] if the counts differ.
pub fn verify_triangles(graph: &Graph, found: u64) -> Result<(), Error> {
    let counted = in_parts("verifying", graph.nodes() as usize, |part| {
        let mut triangles = 0u64;
        for node in part.start as u32..part.end as u32 {
            let row = graph.outgoing.of(node);
            for &middle in row.iter().take_while(|middle| **middle < node) {
                let (mut others, mut row) = (graph.outgoing.of(middle).iter().peekable(), row.iter().peekable());
                while let (Some(&&a), Some(&&b)) = (row.peek(), others.peek()) {
                    if a >= middle || b >= middle {
                        break;
                    }
                    triangles += u64::from(a == b);
                    if a <= b {
                        row.next();
                    }
                    if b <= a {
                        others.next();
                    }
                }
            }
        }
        triangles
    });
    let expected: u64 = counted.into_iter().sum();
    if found == expected { Ok(()) } else { wrong_result("tc", 0, format!("{found} triangles instead of {expected}")) }
}
