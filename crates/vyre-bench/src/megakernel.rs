//! Host-side megakernel benchmarks: pruning against limits and hash maps, the launch policy against limits and its own
//! cache, and the ring against standard library queues.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;

use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{Policy, Request, Topology};
use vyre_runtime::megakernel::redundancy::Pruner;
use vyre_runtime::megakernel::ring::{Otherwise, Ring};
use vyre_runtime::megakernel::{Access, Traits, WorkItem};

use crate::drain;
use crate::line::{Line, Report, Statistic};

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    for (order, name) in [(Order::Dense, ""), (Order::Shuffled, "_shuffled")] {
        pruning(report, &format!("prune_ns_per_item{name}"), &batch(1 << 16, order), 25.0)?;
        pruning(report, &format!("prune_ns_per_item_1m{name}"), &batch(1 << 20, order), 50.0)?;
    }
    policy(report)?;
    for (name, batch) in [("ring_batch_1", 1), ("ring_batch_64", 64), ("ring_batch_1024", 1024)] {
        ring(report, name, batch);
    }
    for (name, batch, limit_ns) in [("ring_drain_batch_1", 1, 15.0), ("ring_drain_batch_16", 16, 3.0)] {
        ring_take(report, name, batch, limit_ns);
    }
    drain::run(report)
}

/// Measures a ring that is filled by batches of 64 and drained by batches of `batch`, against a limit in nanoseconds per item.
fn ring_take(report: &Report, name: &str, batch: usize, limit_ns: f64) {
    const ITEMS: usize = 1 << 12;
    let items = vec![WorkItem { op_handle: 1, ..WorkItem::default() }; ITEMS];
    let ring = Ring::new(ITEMS);
    let mut taken = Vec::with_capacity(batch);
    report.against_limit(&line(name, "limit", ITEMS, "items"), limit_ns * ITEMS as f64, Statistic::Best, &mut || {
        for items in items.chunks(64) {
            let _ = black_box(ring.push(items, Otherwise::Return));
        }
        for _ in 0..ITEMS / batch {
            taken.clear();
            let _ = black_box(ring.drain(&mut taken, batch, Otherwise::Return));
        }
    });
}

fn line<'a>(name: &'a str, baseline: &'a str, work: usize, unit: &'a str) -> Line<'a> {
    Line { suite: "megakernel", name, device: "none", threads: 1, baseline, work: work as u64, unit }
}

const PURE: Traits = Traits { pure: true, input: Access::Read, output: Access::Write, param: Access::None };

/// Order of the items' handles.
#[derive(Clone, Copy)]
enum Order {
    /// Consecutive, as in an arena filled from its start.
    Dense,
    /// Random.
    Shuffled,
}

/// Every tenth item is a copy of a random earlier one.
fn batch(len: usize, order: Order) -> Vec<WorkItem> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u32
    };
    let mut items: Vec<WorkItem> = Vec::with_capacity(len);
    for index in 0..len {
        let item = if index % 10 == 9 {
            items[random() as usize % index]
        } else {
            // The factor is odd, so all numbers are distinct.
            let number = match order {
                Order::Dense => index as u32,
                Order::Shuffled => (index as u32).wrapping_mul(0x9E37_79B1) % (1 << 31),
            };
            // No input is ever written, so all copies are redundant.
            WorkItem { op_handle: random() % 16, input_handle: 2 * number + 1, output_handle: 2 * number, param: 0 }
        };
        items.push(item);
    }
    items
}

fn pruning(report: &Report, name: &str, items: &[WorkItem], limit_ns: f64) -> Result<(), Error> {
    let len = items.len();
    let traits = [PURE; 16];
    let traits = |op: u32| traits.get(op as usize).copied().unwrap_or_default();
    let mut pruner = Pruner::default();
    let mut kept = Vec::new();
    let found = pruner.prune(items, traits, &mut kept)?;
    assert_eq!(found.redundant_pairs.iter().map(|pair| (pair.early, pair.late)).collect::<Vec<_>>(), naive(items));
    assert!(kept.len() + found.total_redundant_ops == len && found.total_redundant_ops == len / 10);
    report.against_limit(&line(name, "limit", len, "items"), limit_ns * len as f64, Statistic::Best, &mut || {
        black_box(pruner.prune(black_box(items), traits, &mut kept).is_ok());
    });
    let name = format!("{name}_vs_maps");
    let ours = &mut || {
        black_box(pruner.prune(black_box(items), traits, &mut kept).is_ok());
    };
    let plain = &mut || {
        black_box(naive(black_box(items)));
    };
    report.compare(ours, &mut [(line(&name, "maps", len, "items"), plain)]);
    Ok(())
}

/// Naive implementation with hash maps: redundant pairs of pure items that neither read their output nor have a third
/// handle.
fn naive(items: &[WorkItem]) -> Vec<(usize, usize)> {
    let mut twins: HashMap<WorkItem, usize> = HashMap::new();
    let mut writers: HashMap<u32, usize> = HashMap::new();
    let mut pairs = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let twin = twins.entry(*item).or_insert(index);
        let untouched = |handle| writers.get(&handle).is_none_or(|writer| writer <= twin);
        if *twin != index && untouched(item.input_handle) && untouched(item.output_handle) {
            pairs.push((*twin, index));
            continue;
        }
        *twin = index;
        writers.insert(item.output_handle, index);
    }
    pairs
}

/// Numbers of distinct requests: within, and beyond the cache capacity.
const FEW: u32 = 64;
const MANY: u32 = 1024;
/// Recommendations per measurement: a single one takes less time than reading the clock.
const RECOMMENDATIONS: usize = 1024;

fn policy(report: &Report) -> Result<(), Error> {
    let policy = Policy::default();
    let requests = |count: u32, previous_topology| -> Vec<Request> {
        let request = |number: u32| Request {
            max_compute_workgroups_per_dimension: 65_535,
            graph_node_count: 1 << 20,
            graph_edge_count: 1 << 22,
            hot_opcode_count: number % 16,
            resident_device_bytes: 1 << 20,
            device_memory_budget_bytes: 1 << 30,
            previous_topology,
            ..Request::direct(number * 97 + 1, 256, 256)
        };
        (0..count).map(request).collect()
    };
    // Requests with a previous topology are not cached; an empty one holds nothing back.
    let computed = requests(FEW, Some(Topology::Empty));
    let missed = requests(MANY, None);
    let cached = requests(FEW, None);
    for request in [&computed, &missed, &cached].into_iter().flatten() {
        policy.recommend(request)?;
    }
    let all = |requests: &[Request]| {
        for request in requests.iter().cycle().take(RECOMMENDATIONS) {
            black_box(policy.recommend(black_box(request)).is_ok());
        }
    };
    let limit = |limit_ns: f64| limit_ns * RECOMMENDATIONS as f64;
    let each = |name, baseline| line(name, baseline, RECOMMENDATIONS, "requests");
    report.against_limit(&each("policy_ns", "limit"), limit(150.0), Statistic::Best, &mut || all(&computed));
    report.against_limit(&each("policy_ns_missed", "limit"), limit(150.0), Statistic::Best, &mut || all(&missed));
    report.against_limit(&each("policy_ns_cached", "limit"), limit(75.0), Statistic::Best, &mut || all(&cached));
    let ours = &mut || all(&cached);
    let again = &mut || all(&computed);
    report.compare(ours, &mut [(each("policy_ns_cached_vs_computed", "computed"), again)]);
    Ok(())
}

/// Items per measurement.
const ITEMS: usize = 1 << 16;

fn ring(report: &Report, name: &str, batch: usize) {
    let items = vec![WorkItem { op_handle: 1, ..WorkItem::default() }; batch];
    let rounds = ITEMS / batch;
    let mut drained = Vec::with_capacity(batch);
    let mut others = drained.clone();
    let mut received = drained.clone();

    let ring = Ring::new(1024);
    let ours = &mut || {
        for _ in 0..rounds {
            let _ = black_box(ring.push(black_box(&items), Otherwise::Return));
            drained.clear();
            let _ = black_box(ring.drain(&mut drained, 1024, Otherwise::Return));
        }
    };
    let queue = Mutex::new(VecDeque::<WorkItem>::with_capacity(1024));
    let locked = &mut || {
        for _ in 0..rounds {
            queue.lock().expect("no panic").extend(black_box(&items));
            others.clear();
            others.extend(queue.lock().expect("no panic").drain(..));
            black_box(&others);
        }
    };
    let (sender, receiver) = sync_channel(1024);
    let channel = &mut || {
        for _ in 0..rounds {
            for item in black_box(&items) {
                sender.try_send(*item).expect("there is room");
            }
            received.clear();
            received.extend(receiver.try_iter());
            black_box(&received);
        }
    };
    let against = format!("{name}_vs_mpsc");
    report.compare(
        ours,
        &mut [(line(name, "mutex", ITEMS, "items"), locked), (line(&against, "mpsc", ITEMS, "items"), channel)],
    );
}
