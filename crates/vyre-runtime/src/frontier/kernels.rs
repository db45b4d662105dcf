//! Programs of the engine: push, pull, gather, count and filter, generated from a step's action on one edge.
//!
//! A frontier is a bitmap (`bits`) and, for pushes, a `queue`; `counts` holds the numbers of its nodes and of their outgoing edges. Objects
//! are bound by these names:
//!
//! | object | contents |
//! |---|---|
//! | `offsets`, `targets` | rows of outgoing edges; the row of `node` begins at `offsets[node * stride + first]` |
//! | `order`, `starts`, `sliced` | slices of the rows of incoming edges |
//! | `weights` | weights of outgoing edges in a push, of incoming edges in a pull |
//! | `bits`, `queue`, `counts`, `grid` | the frontier |
//! | `next`, `next_queue`, `next_counts` | the next frontier |
//!
//! They are compiled for the profile `dataflow`: most edges lead to visited nodes, and its pass `guard_idempotent_atomics` inserts a load
//! that skips an atomic without effect. The atomics here are therefore unconditional.

use vyre_foundation::build::{Kernel, Object, Read, Val, kernel};
use vyre_foundation::ir::Program;

use super::{Edge, Step};
use crate::Error;
use crate::graph::{SLICE, UNREACHED};

/// Nodes of a word of `bits`.
pub(super) const WORD: u32 = 32;
/// Maximum workgroups along x of an indirect grid; more are folded into y.
const FOLD: u32 = 1 << 15;

/// Push: visits the edges of the nodes in the queue. Admitted nodes are set in the bitmap; with `appends`, they are also enqueued and
/// counted. A node with at least as many edges as lanes is processed by the whole workgroup.
pub(super) fn push(name: &str, step: &Step, appends: bool, lanes: u32) -> Result<Program, Error> {
    Ok(kernel(name, [lanes, 1, 1], |k| {
        let (rows, targets) = (Rows::new(k), k.read::<u32>("targets"));
        let (queue, counts) = (k.read::<u32>("queue"), k.read::<u32>("counts"));
        let next = k.atomic::<u32>("next");
        let appended = appends.then(|| (k.mutable::<u32>("next_queue"), k.atomic::<u32>("next_counts")));
        let visitor = (step.visit)(k);
        let [sources, starts, ends] = ["sources", "starts", "ends"].map(|name| k.workgroup::<u32>(name, lanes));

        let follow = |source, index| {
            let target = targets.load(index);
            k.if_((visitor.visit)(Edge { source, target, index }), || {
                let (word, mask) = (target >> 5, k.lit(1u32) << (target & 31));
                match appended {
                    None => drop(next.or(word, mask)),
                    Some((queue, counts)) => k.if_((next.or(word, mask) & mask).eq(0), || {
                        queue.store(counts.add(0, 1), target);
                        counts.add(1, rows.degree(target));
                    }),
                }
            });
        };
        let (at, lane) = (k.global_index(), k.local_index());
        let inside = at.lt(counts.load(0));
        let source = queue.load(at);
        let start = rows.start(source);
        let end = inside.select(rows.end(source), start);
        sources.store(lane, source);
        starts.store(lane, start);
        ends.store(lane, end);
        k.if_((end - start).lt(lanes), || k.for_range(start, end, |index| follow(source, index)));
        k.workgroup_barrier();
        k.for_range(0, lanes, |other| {
            let (start, end) = (starts.load(other), ends.load(other));
            k.if_((end - start).ge(lanes), || {
                let source = sources.load(other);
                k.for_range_step(start + lane, end, lanes, |index| follow(source, index));
            });
        });
    })?)
}

/// Pull: every candidate node scans its incoming edges for sources in the frontier. A workgroup processes a slice of rows.
pub(super) fn pull(name: &str, step: &Step, examined: bool) -> Result<Program, Error> {
    Ok(kernel(name, [SLICE, 1, 1], |k| {
        let (bits, next) = (k.read::<u32>("bits"), k.atomic::<u32>("next"));
        let counts = examined.then(|| k.atomic::<u32>("next_counts"));
        let visitor = (step.visit)(k);
        let order = k.read::<u32>("order");
        let target = order.load(k.global_index());
        let trips = k.var(0u32);
        let inside = k.global_index().lt(order.len());
        let scans = match &visitor.is_candidate {
            Some(is_candidate) => inside & is_candidate(target),
            None => inside,
        };
        k.if_(scans, || {
            let admitted = k.var(0u32);
            slice(k, |index, source| {
                k.if_(source.eq(UNREACHED), || k.break_());
                trips.set(trips.get() + 1);
                k.if_((bits.load(source >> 5) >> (source & 31) & 1).ne(0), || {
                    k.if_((visitor.visit)(Edge { source, target, index }), || {
                        admitted.set(1);
                        if step.until_admitted {
                            k.break_();
                        }
                    });
                });
            });
            k.if_(admitted.get().ne(0), || {
                next.or(target >> 5, k.lit(1u32) << (target & 31));
            });
        });
        if let Some(counts) = counts {
            counts.add(2, trips.get());
        }
    })?)
}

/// Emits a loop over the invocation's row of a slice, and calls `body` with the index and the target of each edge. The workgroup size must
/// be [`SLICE`].
pub(crate) fn slice<'k>(k: &'k Kernel, body: impl FnOnce(Val<'k, u32>, Val<'k, u32>)) {
    let (starts, targets) = (k.read::<u32>("starts"), k.read::<u32>("sliced"));
    let (start, end) = (starts.load(k.group_index()), starts.load(k.group_index() + 1));
    let lane = k.local_index();
    k.for_range_step(start, end, SLICE, |column| body(column + lane, targets.load(column + lane)));
}

/// Emits a loop over the set bits of a bitmap word, and calls `body` with each node.
pub(crate) fn nodes<'k>(k: &'k Kernel, word: Val<'k, u32>, bits: Val<'k, u32>, body: impl FnOnce(Val<'k, u32>)) {
    let rest = k.var(bits);
    k.while_(
        || rest.get().ne(0),
        || {
            let node = word * WORD + rest.get().trailing_zeros();
            rest.set(rest.get() & (rest.get() - 1));
            body(node);
        },
    );
}

/// Rows of outgoing edges, possibly split: each node has `stride` offsets, and `first` selects the kind of edges.
struct Rows<'k> {
    offsets: Object<'k, u32, Read>,
    stride: Val<'k, u32>,
    first: Val<'k, u32>,
}

impl<'k> Rows<'k> {
    fn new(k: &'k Kernel) -> Rows<'k> {
        let [stride, first] = ["stride", "first"].map(|name| k.uniform::<u32>(name).load());
        Rows { offsets: k.read::<u32>("offsets"), stride, first }
    }

    fn start(&self, node: Val<'k, u32>) -> Val<'k, u32> {
        self.offsets.load(node * self.stride + self.first)
    }

    fn end(&self, node: Val<'k, u32>) -> Val<'k, u32> {
        self.offsets.load(node * self.stride + self.first + 1)
    }

    fn degree(&self, node: Val<'k, u32>) -> Val<'k, u32> {
        self.end(node) - self.start(node)
    }
}

/// Clears `words`.
pub(super) fn empty() -> Result<Program, Error> {
    Ok(kernel("empty", [64, 1, 1], |k| k.write::<u32>("words").store(k.global_index(), 0))?)
}

/// Words counted by a workgroup, with a lane for each bit.
pub(super) const COUNTED: u32 = 8;

/// Counts the nodes of `bits` and their outgoing edges. A sequential scan of all nodes is faster than random access to the admitted ones.
pub(super) fn count() -> Result<Program, Error> {
    Ok(kernel("count", [WORD, 1, 1], |k| {
        let (bits, rows) = (k.read::<u32>("bits"), Rows::new(k));
        let counts = k.atomic::<u32>("counts");
        let (nodes, edges) = (k.var(0u32), k.var(0u32));
        let first = k.group_index() * COUNTED;
        k.for_range(first, (first + COUNTED).min(bits.len()), |word| {
            let found = bits.load(word);
            k.if_(found.ne(0), || {
                let is_member = found >> k.local_index() & 1;
                nodes.set(nodes.get() + is_member);
                edges.set(edges.get() + is_member * rows.degree(word * WORD + k.local_index()));
            });
        });
        counts.add(0, nodes.get());
        counts.add(1, edges.get());
    })?)
}

/// Words gathered by an invocation with one atomic on the queue size.
pub(super) const GATHERED: u32 = 8;

/// Stream compaction: appends the nodes of a range of bitmap words to the queue, in unspecified order.
pub(super) fn gather() -> Result<Program, Error> {
    Ok(kernel("gather", [64, 1, 1], |k| {
        let (bits, queue, size) = (k.read::<u32>("bits"), k.mutable::<u32>("queue"), k.atomic::<u32>("size"));
        let (first, end) = (k.uniform::<u32>("first").load(), k.uniform::<u32>("end").load());
        let start = first + k.global_index() * GATHERED;
        let end = end.min(start + GATHERED);
        let count = k.var(0u32);
        k.for_range(start, end, |word| count.set(count.get() + bits.load(word).count_ones()));
        k.if_(count.get().ne(0), || {
            let at = k.var(size.add(0, count.get()));
            k.for_range(start, end, |word| {
                nodes(k, word, bits.load(word), |node| {
                    queue.store(at.get(), node);
                    at.set(at.get() + 1);
                });
            });
        });
    })?)
}

/// Computes the indirect grid of a push from a queue.
pub(super) fn grid(lanes: u32) -> Result<Program, Error> {
    Ok(kernel("grid", [1, 1, 1], |k| {
        let (counts, grid) = (k.read::<u32>("counts"), k.write::<u32>("grid"));
        let groups = (counts.load(0) + (lanes - 1)) / lanes;
        grid.store(0, groups.min(FOLD));
        grid.store(1, (groups + (FOLD - 1)) / FOLD);
        grid.store(2, 1);
    })?)
}

/// Writes the nodes of a frontier that satisfy a predicate to `next`, and counts them.
pub(super) fn filter(name: &str, test: fn(&Kernel) -> super::Test<'_>) -> Result<Program, Error> {
    Ok(kernel(name, [64, 1, 1], |k| {
        let (bits, rows) = (k.read::<u32>("bits"), Rows::new(k));
        let (next, counts) = (k.mutable::<u32>("next"), k.atomic::<u32>("next_counts"));
        let test = test(k);
        let word = k.global_index();
        let found = bits.load(word);
        let (kept, edges) = (k.var(0u32), k.var(0u32));
        nodes(k, word, found, |node| {
            k.if_(test(node), || {
                kept.set(kept.get() | k.lit(1u32) << (node & 31));
                edges.set(edges.get() + rows.degree(node));
            });
        });
        next.store(word, kept.get());
        counts.add(0, kept.get().count_ones());
        counts.add(1, edges.get());
    })?)
}

/// Runs an action on each node of a frontier.
pub(super) fn compute(name: &str, body: fn(&Kernel) -> super::Body<'_>) -> Result<Program, Error> {
    Ok(kernel(name, [64, 1, 1], |k| {
        let body = body(k);
        let (word, bits) = (k.global_index(), k.read::<u32>("bits"));
        nodes(k, word, bits.load(word), body);
    })?)
}
