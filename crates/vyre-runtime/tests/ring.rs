//! Stress tests of the ring on real threads. `ring_model.rs` explores the interleavings.

use std::collections::BTreeMap;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use vyre_runtime::megakernel::WorkItem;
use vyre_runtime::megakernel::ring::{Drained, Otherwise, Pushed, Ring};

fn items(producer: u32, numbers: std::ops::Range<u32>) -> Vec<WorkItem> {
    numbers.map(|number| WorkItem { op_handle: producer, param: number, ..WorkItem::default() }).collect()
}

#[test]
fn a_full_ring_accepts_a_prefix() {
    let ring = Ring::new(4);
    assert_eq!(ring.capacity(), 4);
    let batch = items(1, 0..6);
    assert_eq!(ring.push(&batch[..3], Otherwise::Return), Pushed::All);
    assert_eq!(ring.push(&batch[3..], Otherwise::Return), Pushed::WouldBlock { accepted: 1 });
    assert_eq!(ring.push(&batch[4..], Otherwise::Return), Pushed::WouldBlock { accepted: 0 });
    assert_eq!(ring.push(&[], Otherwise::Wait), Pushed::All);
    let mut drained = vec![WorkItem::default()];
    assert_eq!(ring.drain(&mut drained, 0, Otherwise::Wait), Drained::Items(0));
    assert_eq!(ring.drain(&mut drained, 3, Otherwise::Wait), Drained::Items(3));
    assert_eq!(ring.push(&batch[4..], Otherwise::Return), Pushed::All);
    assert_eq!(ring.drain(&mut drained, usize::MAX, Otherwise::Wait), Drained::Items(3));
    assert_eq!(ring.drain(&mut drained, 3, Otherwise::Return), Drained::WouldBlock);
    // Drained items are appended.
    assert_eq!(drained[0], WorkItem::default());
    assert_eq!(drained[1..], batch);
}

#[test]
fn a_closed_ring_is_drained_before_it_reports_closed() {
    let ring = Ring::new(4);
    let batch = items(1, 0..3);
    assert_eq!(ring.push(&batch, Otherwise::Return), Pushed::All);
    ring.close();
    ring.close();
    assert_eq!(ring.push(&batch, Otherwise::Wait), Pushed::Closed { accepted: 0 });
    assert_eq!(ring.push(&[], Otherwise::Wait), Pushed::All);
    let mut drained = Vec::new();
    assert_eq!(ring.drain(&mut drained, 2, Otherwise::Wait), Drained::Items(2));
    assert_eq!(ring.drain(&mut drained, 2, Otherwise::Return), Drained::Items(1));
    assert_eq!(ring.drain(&mut drained, 2, Otherwise::Wait), Drained::Closed);
    assert_eq!(ring.drain(&mut drained, 2, Otherwise::Return), Drained::Closed);
    assert_eq!(drained, batch);
}

#[test]
fn the_minimum_capacity_is_one() {
    let ring = Ring::new(0);
    assert_eq!(ring.capacity(), 1);
    let mut drained = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(ring.push(&items(1, 0..100), Otherwise::Wait), Pushed::All));
        while drained.len() < 100 {
            assert_eq!(ring.drain(&mut drained, 7, Otherwise::Wait), Drained::Items(1));
        }
    });
    assert_eq!(drained, items(1, 0..100));
}

/// Producers push batches of the given sizes, and consumers drain at most `limit` items at a time, until the ring is closed after the last
/// producer. Checks that every item is drained exactly once, and that a consumer sees the items of a producer in order.
fn exchange(capacity: usize, producers: &[Vec<u32>], consumers: usize, limit: usize) {
    let ring = Ring::new(capacity);
    let push = |(producer, batches): (u32, &Vec<u32>)| {
        let mut next = 0;
        for count in batches {
            let batch = items(producer, next..next + count);
            next += count;
            // Retries a refused push, alternately blocking and not.
            let mut rest = &batch[..];
            while let Pushed::WouldBlock { accepted } = ring.push(rest, Otherwise::Return) {
                rest = &rest[accepted..];
                if count % 2 == 0 {
                    assert_eq!(ring.push(rest, Otherwise::Wait), Pushed::All);
                    break;
                }
                thread::yield_now();
            }
        }
    };
    let drained: Vec<Vec<WorkItem>> = thread::scope(|scope| {
        let drain = || {
            let mut drained = Vec::new();
            while let Drained::Items(count) = ring.drain(&mut drained, limit, Otherwise::Wait) {
                assert!((1..=limit.min(capacity)).contains(&count));
            }
            drained
        };
        let consumers: Vec<_> = (0..consumers).map(|_| scope.spawn(drain)).collect();
        let push = &push;
        let producers: Vec<_> = (0..).zip(producers).map(|producer| scope.spawn(move || push(producer))).collect();
        for producer in producers {
            producer.join().unwrap();
        }
        ring.close();
        consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
    });
    let mut all: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for drained in drained {
        let mut last = BTreeMap::new();
        for item in drained {
            assert!(last.insert(item.op_handle, item.param).is_none_or(|last| last < item.param));
            all.entry(item.op_handle).or_default().push(item.param);
        }
    }
    for (producer, batches) in (0..).zip(producers) {
        let mut found = all.remove(&producer).unwrap_or_default();
        found.sort_unstable();
        assert!(found.into_iter().eq(0..batches.iter().sum()));
    }
}

#[test]
fn many_small_batches() {
    exchange(64, &[vec![3; 10_000], vec![16; 2_000], vec![1; 5_000]], 2, 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn items_are_drained_once_and_in_order(
        capacity in 1usize..20,
        producers in vec(vec(0u32..30, 0..20), 1..4),
        consumers in 1usize..3,
        limit in 1usize..30,
    ) {
        exchange(capacity, &producers, consumers, limit);
    }
}
