//! The programs of the engine: one for each way to follow the edges of a frontier, made from what a caller does with one edge.
//!
//! A frontier is a set of nodes, as `bits` and, where somebody pushes from it, as a `queue`; `counts` has how many nodes it has and how
//! many edges leave them. Objects are bound by these names:
//!
//! | | |
//! |---|---|
//! | `offsets`, `targets` | the rows of outgoing edges; `stride` and `first` tell where in `offsets` those of a node are |
//! | `order`, `starts`, `sliced` | the slices of rows of incoming edges |
//! | `weights` | those of the outgoing edges for a push, of the incoming ones for a pull |
//! | `bits`, `queue`, `counts`, `grid` | the frontier |
//! | `next`, `next_queue`, `next_counts` | the one that is made |
//!
//! They are compiled for the profile `dataflow`: most edges lead to nodes that somebody has reached before, and its passes look for something to
//! change before an atomic changes it. So nobody looks here.

use vyre_foundation::build::{Kernel, Object, Read, Val, kernel};
use vyre_foundation::ir::Program;

use super::{Edge, Step};
use crate::Error;
use crate::graph::{SLICE, UNREACHED};

/// Nodes of a word of `bits`.
pub(super) const WORD: u32 = 32;
/// Workgroups along x of an indirect grid; there are no more than that in one dimension.
const FOLD: u32 = 1 << 15;

/// Follows the edges of a queue. Nodes that are admitted become bits; with `appends`, also a queue, and they are counted. A node with as many edges
/// as a workgroup has lanes is followed by all of them.
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

/// Every node that a caller wants looks for edges that come from the frontier. A workgroup has a slice of rows.
pub(super) fn pull(name: &str, step: &Step, examined: bool) -> Result<Program, Error> {
    Ok(kernel(name, [SLICE, 1, 1], |k| {
        let (bits, next) = (k.read::<u32>("bits"), k.atomic::<u32>("next"));
        let counts = examined.then(|| k.atomic::<u32>("next_counts"));
        let visitor = (step.visit)(k);
        let order = k.read::<u32>("order");
        let target = order.load(k.global_index());
        let trips = k.var(0u32);
        let wanted = k.global_index().lt(order.len());
        let wanted = match &visitor.wants {
            Some(wants) => wanted & wants(target),
            None => wanted,
        };
        k.if_(wanted, || {
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

/// Calls `body` with each place of the row of an invocation, and what stands there, in a program with workgroups of [`SLICE`].
pub(crate) fn slice<'k>(k: &'k Kernel, body: impl FnOnce(Val<'k, u32>, Val<'k, u32>)) {
    let (starts, targets) = (k.read::<u32>("starts"), k.read::<u32>("sliced"));
    let (start, end) = (starts.load(k.group_index()), starts.load(k.group_index() + 1));
    let lane = k.local_index();
    k.for_range_step(start, end, SLICE, |column| body(column + lane, targets.load(column + lane)));
}

/// Calls `body` with each node of a word.
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

/// Where the outgoing edges of nodes are, or some of each: an offset for each kind stands in front of its edges.
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

/// Writes zeros.
pub(super) fn empty() -> Result<Program, Error> {
    Ok(kernel("empty", [64, 1, 1], |k| k.write::<u32>("words").store(k.global_index(), 0))?)
}

/// Words that a workgroup counts, with a lane for each bit.
pub(super) const COUNTED: u32 = 8;

/// Counts the nodes of `bits` and the edges that leave them. Going through all nodes in order is faster than to look at those that are
/// admitted, wherever they are.
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

/// Words that an invocation writes to the queue, for one change of its size.
pub(super) const GATHERED: u32 = 8;

/// Writes the nodes of some words to the queue, in no order, and how many they are to its size.
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

/// How many workgroups push from a queue.
pub(super) fn grid(lanes: u32) -> Result<Program, Error> {
    Ok(kernel("grid", [1, 1, 1], |k| {
        let (counts, grid) = (k.read::<u32>("counts"), k.write::<u32>("grid"));
        let groups = (counts.load(0) + (lanes - 1)) / lanes;
        grid.store(0, groups.min(FOLD));
        grid.store(1, (groups + (FOLD - 1)) / FOLD);
        grid.store(2, 1);
    })?)
}

/// Keeps the nodes of a frontier for which something holds, in `next`.
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

/// Does something with each node of a frontier.
pub(super) fn compute(name: &str, body: fn(&Kernel) -> super::Body<'_>) -> Result<Program, Error> {
    Ok(kernel(name, [64, 1, 1], |k| {
        let body = body(k);
        let (word, bits) = (k.global_index(), k.read::<u32>("bits"));
        nodes(k, word, bits.load(word), body);
    })?)
}
