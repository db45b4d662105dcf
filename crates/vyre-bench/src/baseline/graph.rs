//! Hand-written graph algorithms after the GAP benchmark suite: direction-optimizing BFS, pull PageRank, Afforest,
//! delta-stepping, and triangle counting by merging rows of a degree-ordered graph. They run on the rayon pool of the
//! caller.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};

use rayon::prelude::*;
use vyre_runtime::graph::{Graph, UNREACHED};

/// Nodes of a task.
const CHUNK: usize = 1024;

/// Spinning barrier: waits are mostly too short for sleeping.
struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    /// Waits for all threads; returns true in the last one to arrive.
    fn wait(&self) -> bool {
        let number = self.arrived.fetch_add(1, AcqRel);
        let all = (number / self.threads + 1) * self.threads;
        let mut turns = 0u32;
        while self.arrived.load(Acquire) < all {
            turns += 1;
            // The missing thread may need this processor.
            if turns.is_multiple_of(1000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        number + 1 == all
    }
}

fn atomics(count: usize, value: impl Fn(u32) -> u32 + Sync) -> Vec<AtomicU32> {
    (0..count as u32).map(|at| AtomicU32::new(value(at))).collect()
}

fn plain(atomics: Vec<AtomicU32>) -> Vec<u32> {
    atomics.into_iter().map(AtomicU32::into_inner).collect()
}

/// Parents in a BFS tree.
pub(crate) fn bfs(graph: &Graph, source: u32) -> Vec<u32> {
    const ALPHA: usize = 15;
    const BETA: usize = 18;
    let nodes = graph.nodes() as usize;
    let degree = |node: u32| graph.outgoing().of(node).len();
    let parents = atomics(nodes, |_| UNREACHED);
    parents[source as usize].store(source, Relaxed);
    let mut queue = vec![source];
    let mut unexplored = graph.edges() as usize;
    let mut scouted = degree(source);
    while !queue.is_empty() {
        if scouted > unexplored / ALPHA {
            let words = nodes.div_ceil(64);
            let (mut front, mut awake): (Vec<u64>, usize) = (vec![0; words], queue.len());
            for node in queue.drain(..) {
                front[node as usize / 64] |= 1 << (node % 64);
            }
            loop {
                let next: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
                let before = awake;
                awake = (0..words.div_ceil(CHUNK / 64))
                    .into_par_iter()
                    .map(|chunk| {
                        let mut awake = 0;
                        for node in (chunk * CHUNK..nodes.min((chunk + 1) * CHUNK)).map(|node| node as u32) {
                            if parents[node as usize].load(Relaxed) != UNREACHED {
                                continue;
                            }
                            let hit = |other: &&u32| front[**other as usize / 64] >> (**other % 64) & 1 != 0;
                            if let Some(parent) = graph.incoming().of(node).iter().find(hit) {
                                parents[node as usize].store(*parent, Relaxed);
                                let word = &next[node as usize / 64];
                                // Each thread writes only the words of its chunk.
                                word.store(word.load(Relaxed) | 1 << (node % 64), Relaxed);
                                awake += 1;
                            }
                        }
                        awake
                    })
                    .sum();
                front = next.into_iter().map(AtomicU64::into_inner).collect();
                if awake < before && awake <= nodes / BETA {
                    break;
                }
            }
            for (word, bits) in (0..).zip(&front) {
                let mut rest = *bits;
                while rest != 0 {
                    queue.push(word * 64 + rest.trailing_zeros());
                    rest &= rest - 1;
                }
            }
            scouted = 1;
        } else {
            unexplored = unexplored.saturating_sub(scouted);
            let found: Vec<(Vec<u32>, usize)> = queue
                .par_chunks(64)
                .map(|chunk| {
                    let (mut local, mut edges) = (Vec::new(), 0);
                    for node in chunk {
                        for next in graph.outgoing().of(*node) {
                            let parent = &parents[*next as usize];
                            if parent.load(Relaxed) == UNREACHED
                                && parent.compare_exchange(UNREACHED, *node, Relaxed, Relaxed).is_ok()
                            {
                                local.push(*next);
                                edges += degree(*next);
                            }
                        }
                    }
                    (local, edges)
                })
                .collect();
            scouted = found.iter().map(|(_, edges)| edges).sum();
            queue = found.into_iter().flat_map(|(local, _)| local).collect();
        }
    }
    plain(parents)
}

/// Ranks after a number of iterations.
pub(crate) fn pagerank(graph: &Graph, iterations: u32) -> Vec<f32> {
    let nodes = graph.nodes() as usize;
    let least = 0.15 / nodes as f32;
    let mut ranks = vec![1.0 / nodes as f32; nodes];
    let mut shares = vec![0.0f32; nodes];
    let outgoing = |node: usize| (graph.outgoing().offsets[node + 1] - graph.outgoing().offsets[node]) as f32;
    for _ in 0..iterations {
        shares.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, part)| {
            for (node, share) in (chunk * CHUNK..).zip(part) {
                *share = ranks[node] / outgoing(node);
            }
        });
        let changes: Vec<f64> = ranks
            .par_chunks_mut(CHUNK)
            .enumerate()
            .map(|(chunk, part)| {
                let mut change = 0.0;
                for (node, rank) in (chunk * CHUNK..).zip(part) {
                    let sum: f32 = graph.incoming().of(node as u32).iter().map(|other| shares[*other as usize]).sum();
                    let new = least + 0.85 * sum;
                    change += f64::from((new - *rank).abs());
                    *rank = new;
                }
                change
            })
            .collect();
        std::hint::black_box(changes.into_iter().sum::<f64>());
    }
    ranks
}

/// Lowest node of each node's component in a symmetric graph.
pub(crate) fn components(graph: &Graph) -> Vec<u32> {
    const ROUNDS: usize = 2;
    let nodes = graph.nodes() as usize;
    let labels = atomics(nodes, |node| node);
    let label = |node: u32| labels[node as usize].load(Relaxed);
    let link = |a: u32, b: u32| {
        let (mut a, mut b) = (label(a), label(b));
        while a != b {
            let (high, low) = (a.max(b), a.min(b));
            let parent = label(high);
            if parent == low
                || (parent == high && labels[high as usize].compare_exchange(high, low, Relaxed, Relaxed).is_ok())
            {
                break;
            }
            a = label(label(high));
            b = label(low);
        }
    };
    let all = || (0..nodes as u32).into_par_iter().with_min_len(CHUNK);
    let flatten = || {
        all().for_each(|node| {
            while label(node) != label(label(node)) {
                labels[node as usize].store(label(label(node)), Relaxed);
            }
        });
    };
    for round in 0..ROUNDS {
        all().for_each(|node| {
            if let Some(next) = graph.outgoing().of(node).get(round) {
                link(node, *next);
            }
        });
        flatten();
    }
    let mut counts = std::collections::HashMap::new();
    for at in 0..1024u32 {
        *counts.entry(label(at.wrapping_mul(2_654_435_761) % nodes as u32)).or_insert(0) += 1;
    }
    let largest = counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(label, _)| label);
    all().for_each(|node| {
        if label(node) != largest {
            graph.outgoing().of(node).iter().skip(ROUNDS).for_each(|next| link(node, *next));
        }
    });
    flatten();
    plain(labels)
}

/// Shortest distances from a node by delta-stepping. Each thread has its own bins of reached nodes; the threads share the
/// nodes of the current bin, the frontier.
pub(crate) fn sssp(graph: &Graph, source: u32, delta: u32) -> Vec<u32> {
    let distances = atomics(graph.nodes() as usize, |_| UNREACHED);
    distances[source as usize].store(0, Relaxed);
    let threads = rayon::current_num_threads();
    let barrier = Barrier { threads, arrived: AtomicUsize::new(0) };
    let shared = RwLock::new(vec![source]);
    let coming = Mutex::new(Vec::new());
    let (cursor, lowest, current) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    rayon::broadcast(|_| {
        let mut bins: Vec<Vec<u32>> = Vec::new();
        let relax = |node: u32, bins: &mut Vec<Vec<u32>>| {
            let from = distances[node as usize].load(Relaxed);
            for at in graph.outgoing().range(node) {
                let next = &distances[graph.outgoing().targets[at] as usize];
                let through = from + graph.outgoing().weights[at];
                let mut old = next.load(Relaxed);
                while through < old {
                    match next.compare_exchange_weak(old, through, Relaxed, Relaxed) {
                        Ok(_) => {
                            let bin = (through / delta) as usize;
                            if bins.len() <= bin {
                                bins.resize_with(bin + 1, Vec::new);
                            }
                            bins[bin].push(graph.outgoing().targets[at]);
                            break;
                        }
                        Err(now) => old = now,
                    }
                }
            }
        };
        loop {
            let turn = current.load(Relaxed);
            if turn == usize::MAX {
                break;
            }
            {
                let frontier = shared.read().expect("not poisoned");
                loop {
                    let start = cursor.fetch_add(64, Relaxed);
                    if start >= frontier.len() {
                        break;
                    }
                    for &node in &frontier[start..frontier.len().min(start + 64)] {
                        if distances[node as usize].load(Relaxed) >= delta * turn as u32 {
                            relax(node, &mut bins);
                        }
                    }
                }
                // Small remainders of the current bin are processed locally instead of shared.
                while bins.get(turn).is_some_and(|bin| !bin.is_empty() && bin.len() < 1000) {
                    for node in std::mem::take(&mut bins[turn]) {
                        relax(node, &mut bins);
                    }
                }
            }
            let next =
                bins.iter().enumerate().skip(turn).find(|(_, bin)| !bin.is_empty()).map_or(usize::MAX, |(at, _)| at);
            if barrier.wait() {
                lowest.store(usize::MAX, Relaxed);
                cursor.store(0, Relaxed);
            }
            barrier.wait();
            lowest.fetch_min(next, Relaxed);
            barrier.wait();
            let turn = lowest.load(Relaxed);
            if let Some(bin) = bins.get_mut(turn) {
                coming.lock().expect("not poisoned").append(bin);
            }
            if barrier.wait() {
                *shared.write().expect("not poisoned") = std::mem::take(&mut *coming.lock().expect("not poisoned"));
                current.store(turn, Relaxed);
            }
            barrier.wait();
        }
    });
    plain(distances)
}

/// Number of triangles of a symmetric graph.
pub(crate) fn triangles(graph: &Graph) -> u64 {
    let nodes = graph.nodes();
    let mut by_rank: Vec<u32> = (0..nodes).collect();
    by_rank.par_sort_unstable_by_key(|node| std::cmp::Reverse(graph.outgoing().of(*node).len()));
    let mut ranks = vec![0; nodes as usize];
    for (rank, node) in (0..).zip(&by_rank) {
        ranks[*node as usize] = rank;
    }
    let rows: Vec<Vec<u32>> = by_rank
        .par_iter()
        .map(|node| {
            let mut row: Vec<u32> = graph.outgoing().of(*node).iter().map(|next| ranks[*next as usize]).collect();
            row.retain(|next| *next < ranks[*node as usize]);
            row.sort_unstable();
            row
        })
        .collect();
    let count = |row: &Vec<u32>| {
        let mut triangles = 0;
        for &middle in row {
            let mut at = 0;
            for &third in &rows[middle as usize] {
                // Both are below `middle`, which is in the row and bounds the search.
                while row[at] < third {
                    at += 1;
                }
                triangles += u64::from(row[at] == third);
            }
        }
        triangles
    };
    rows.par_iter().with_max_len(64).map(count).sum()
}
