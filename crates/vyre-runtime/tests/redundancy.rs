//! Redundant-item elimination: a counter-example for each rule, and pruned batches compared with complete ones.

use proptest::collection::vec;
use proptest::prelude::*;
use vyre_driver::Error as DriverError;
use vyre_runtime::Error;
use vyre_runtime::megakernel::redundancy::{Pair, Pruner, Report, detect};
use vyre_runtime::megakernel::{Access, Traits, WorkItem};

/// Ops of the tests; `execute` defines them.
const COPY: u32 = 1;
const NOISE: u32 = 2;
const ACCUMULATE: u32 = 3;
const COMBINE: u32 = 4;
const SPLIT: u32 = 5;
const ROTATE: u32 = 6;
const SWAP: u32 = 7;
/// Op without declared traits.
const UNKNOWN: u32 = 8;
const OPS: std::ops::RangeInclusive<u32> = COPY..=UNKNOWN;

fn traits(op: u32) -> Traits {
    let pure = Traits { pure: true, ..Traits::default() };
    match op {
        COPY => pure,
        NOISE => Traits { pure: false, ..pure },
        ACCUMULATE => Traits { output: Access::Update, ..pure },
        COMBINE => Traits { param: Access::Read, ..pure },
        SPLIT => Traits { param: Access::Write, ..pure },
        ROTATE => Traits { param: Access::Update, ..pure },
        SWAP => Traits { input: Access::Update, output: Access::Update, ..pure },
        _ => Traits::default(),
    }
}

/// Interprets items over one word per handle. Written values depend on all operands that are read.
fn execute(items: &[WorkItem], memory: &mut [u32]) {
    let mut noise = 0;
    let mix = |op: u32, a: u32, b: u32| (a ^ b.rotate_left(9)).wrapping_mul(0x9E37_79B1).wrapping_add(op);
    for item in items {
        let [input, output, third] = [item.input_handle, item.output_handle, item.param].map(|handle| handle as usize);
        match item.op_handle {
            COPY => memory[output] = mix(COPY, memory[input], item.param),
            NOISE => {
                noise += 1;
                memory[output] = mix(NOISE, memory[input], noise);
            }
            ACCUMULATE => memory[output] = mix(ACCUMULATE, memory[output], memory[input]),
            COMBINE => memory[output] = mix(COMBINE, memory[input], memory[third]),
            SPLIT => {
                let read = memory[input];
                memory[output] = mix(SPLIT, read, 0);
                memory[third] = mix(SPLIT, read, 1);
            }
            ROTATE => {
                let [read, old] = [memory[input], memory[third]];
                memory[output] = mix(ROTATE, read, old);
                memory[third] = mix(ROTATE, old, read);
            }
            SWAP => memory.swap(input, output),
            _ => memory[output] = memory[output].wrapping_add(mix(UNKNOWN, memory[input], item.param)),
        }
    }
}

fn items(of: &[[u32; 4]]) -> Vec<WorkItem> {
    let item = |&[op_handle, input_handle, output_handle, param]: &[u32; 4]| WorkItem {
        op_handle,
        input_handle,
        output_handle,
        param,
    };
    of.iter().map(item).collect()
}

fn prune(of: &[[u32; 4]]) -> Vec<(usize, usize)> {
    let batch = items(of);
    // `prune` clears it in any case.
    let mut kept = items(&[[9; 4]]);
    let report = Pruner::default().prune(&batch, traits, &mut kept).unwrap();
    assert_eq!(report.total_redundant_ops, report.redundant_pairs.len());
    let expected: Vec<WorkItem> = (0..batch.len())
        .filter(|index| report.redundant_pairs.iter().all(|pair| pair.late != *index))
        .map(|index| batch[index])
        .collect();
    if report.redundant_pairs.is_empty() {
        assert_eq!(kept, []);
    } else {
        assert_eq!(kept, expected);
    }
    assert!(report.redundant_pairs.iter().all(|pair| pair.op_index_in_late == 0));
    report.redundant_pairs.iter().map(|pair| (pair.early, pair.late)).collect()
}

#[test]
fn an_item_is_four_words() {
    let item = WorkItem { op_handle: 1, input_handle: 2, output_handle: 3, param: 4 };
    assert_eq!(bytemuck::cast::<_, [u32; 4]>(item), [1, 2, 3, 4]);
    assert_eq!(bytemuck::cast::<_, [u32; 4]>(WorkItem::default()), [0; 4]);
}

#[test]
fn accesses_of_an_item_follow_the_traits() {
    let item = items(&[[COPY, 1, 2, 3]])[0];
    let traits = Traits { param: Access::Update, ..Traits::default() };
    assert_eq!(traits.accesses(&item), [(1, Access::Read), (2, Access::Write), (3, Access::Update)]);
    assert!(traits.feeds_itself(&item) && !Traits::default().feeds_itself(&item));
    assert!(Traits::default().feeds_itself(&WorkItem { output_handle: 1, ..item }));
    let [none, read, write, update] =
        [Access::None, Access::Read, Access::Write, Access::Update].map(|access| (access.reads(), access.writes()));
    assert_eq!([none, read, write, update], [(false, false), (true, false), (false, true), (true, true)]);
}

#[test]
fn later_copies_are_pruned() {
    let copy = [COPY, 1, 2, 0];
    assert_eq!(prune(&[copy, copy]), [(0, 1)]);
    assert_eq!(prune(&[copy, [COPY, 1, 3, 0], copy, [COPY, 1, 3, 0], copy]), [(0, 2), (1, 3), (0, 4)]);
    assert_eq!(prune(&[copy, copy, [COPY, 1, 3, 0]]), [(0, 1)]);
    assert_eq!(prune(&[]), []);
    assert_eq!(prune(&[copy]), []);
}

#[test]
fn items_with_a_different_word_are_kept() {
    for other in [[COMBINE, 1, 2, 5], [COPY, 9, 2, 5], [COPY, 1, 9, 5], [COPY, 1, 2, 9]] {
        assert_eq!(prune(&[[COPY, 1, 2, 5], other]), []);
    }
}

#[test]
fn an_overwritten_input_prevents_pruning() {
    assert_eq!(prune(&[[COPY, 1, 2, 0], [COPY, 3, 1, 0], [COPY, 1, 2, 0]]), []);
    // The kept repetition becomes the twin.
    assert_eq!(prune(&[[COPY, 1, 2, 0], [COPY, 3, 1, 0], [COPY, 1, 2, 0], [COPY, 1, 2, 0]]), [(2, 3)]);
}

#[test]
fn an_overwritten_output_prevents_pruning() {
    assert_eq!(prune(&[[COPY, 1, 2, 0], [COPY, 3, 2, 0], [COPY, 1, 2, 0]]), []);
}

#[test]
fn in_place_items_are_kept() {
    assert_eq!(prune(&[[COPY, 1, 1, 0], [COPY, 1, 1, 0]]), []);
    assert_eq!(prune(&[[SWAP, 1, 2, 0], [SWAP, 1, 2, 0]]), []);
}

#[test]
fn accumulating_and_undeclared_ops_are_kept() {
    for op in [NOISE, ACCUMULATE, UNKNOWN] {
        assert_eq!(prune(&[[op, 1, 2, 0], [op, 1, 2, 0]]), []);
    }
}

#[test]
fn pruned_items_are_no_writers() {
    let (first, second) = ([COPY, 1, 2, 0], [COPY, 2, 3, 0]);
    assert_eq!(prune(&[first, second, first, second]), [(0, 2), (1, 3)]);
}

#[test]
fn reads_in_between_do_not_prevent_pruning() {
    assert_eq!(prune(&[[COPY, 1, 2, 0], [COPY, 1, 3, 0], [COPY, 2, 4, 0], [COPY, 1, 2, 0]]), [(0, 3)]);
}

#[test]
fn impure_writers_prevent_pruning() {
    for writer in [[NOISE, 9, 1, 0], [UNKNOWN, 9, 2, 0], [ACCUMULATE, 9, 1, 0], [SWAP, 1, 9, 0]] {
        assert_eq!(prune(&[[COPY, 1, 2, 0], writer, [COPY, 1, 2, 0]]), []);
    }
}

#[test]
fn third_handles_are_checked() {
    // Read.
    assert_eq!(prune(&[[COMBINE, 1, 2, 3], [COMBINE, 1, 2, 3]]), [(0, 1)]);
    assert_eq!(prune(&[[COMBINE, 1, 2, 3], [COPY, 1, 3, 0], [COMBINE, 1, 2, 3]]), []);
    assert_eq!(prune(&[[COMBINE, 1, 2, 2], [COMBINE, 1, 2, 2]]), []);
    // Written.
    assert_eq!(prune(&[[SPLIT, 1, 2, 3], [SPLIT, 1, 2, 3]]), [(0, 1)]);
    assert_eq!(prune(&[[SPLIT, 1, 2, 3], [COPY, 1, 3, 0], [SPLIT, 1, 2, 3]]), []);
    assert_eq!(prune(&[[SPLIT, 1, 2, 1], [SPLIT, 1, 2, 1]]), []);
    assert_eq!(prune(&[[COPY, 3, 4, 0], [SPLIT, 1, 2, 3], [COPY, 3, 4, 0]]), []);
    // Updated.
    assert_eq!(prune(&[[ROTATE, 1, 2, 3], [ROTATE, 1, 2, 3]]), []);
    // A scalar that equals a handle is no operand.
    assert_eq!(prune(&[[COPY, 1, 2, 3], [COPY, 9, 3, 0], [COPY, 1, 2, 3]]), [(0, 2)]);
    assert_eq!(prune(&[[COPY, 1, 2, 2], [COPY, 1, 2, 2]]), [(0, 1)]);
}

#[test]
fn scratch_memory_is_retained_up_to_four_times_the_need() {
    let mut pruner = Pruner::default();
    assert_eq!(pruner.retained_capacity(), 0);
    let batch = |len: u32| items(&(0..len).map(|number| [COPY, 1, number / 2 + 2, 0]).collect::<Vec<_>>());
    let mut kept = Vec::new();
    let mut after = |len| {
        let report = pruner.prune(&batch(len), traits, &mut kept).unwrap();
        assert_eq!(report.total_redundant_ops, len as usize / 2);
        pruner.retained_capacity()
    };
    assert_eq!(after(8192), 8192);
    assert_eq!(after(2048), 8192);
    assert_eq!(after(2047), 2048);
    assert_eq!(after(4096), 4096);
    // A capacity of up to 1024 is always retained.
    assert_eq!(after(600), 1024);
    assert_eq!(after(2), 1024);
    assert_eq!(after(8192), 8192);
    // A batch that needs no table frees memory, too.
    assert!(after(1) <= 2);
}

#[test]
fn provably_distinct_outputs_need_no_table() {
    let mut kept = Vec::new();
    let mut capacity = |of: &[[u32; 4]]| {
        let mut pruner = Pruner::default();
        assert_eq!(pruner.prune(&items(of), traits, &mut kept), Ok(Report::default()));
        assert_eq!(kept, []);
        pruner.retained_capacity()
    };
    let to = |outputs: &[u32]| outputs.iter().map(|output| [COPY, 1, *output, 0]).collect::<Vec<_>>();
    let row = |from: u32, count: u32| to(&(from..from + count).collect::<Vec<_>>());
    assert_eq!(capacity(&row(77, 4096)), 0);
    assert_eq!(capacity(&to(&[u32::MAX])), 0);
    assert_eq!(capacity(&to(&[u32::MAX - 4095, u32::MAX])), 0);
    // Too many outputs, too large a range, or duplicates.
    assert!(capacity(&row(77, 4097)) > 0);
    assert!(capacity(&to(&[0, 4096])) > 0);
    assert!(capacity(&[[COPY, 1, 2, 0], [COPY, 3, 2, 0]]) > 0);
}

#[test]
fn detect_finds_common_items_of_arms() {
    let arms = [
        items(&[[1, 2, 3, 0], [1, 2, 3, 0], [4, 5, 6, 0]]),
        items(&[[7, 7, 7, 0], [1, 2, 3, 9]]),
        items(&[]),
        items(&[[7, 7, 7, 1], [1, 2, 3, 4], [1, 2, 3, 5], [3, 2, 1, 0]]),
    ];
    let arms: Vec<&[WorkItem]> = arms.iter().map(Vec::as_slice).collect();
    let report = detect(&arms).unwrap();
    let pair = |early, late, op_index_in_late| Pair { early, late, op_index_in_late };
    assert_eq!(report.redundant_pairs, [pair(0, 1, 1), pair(1, 3, 0), pair(0, 3, 1), pair(0, 3, 2)]);
    assert_eq!(report.total_redundant_ops, 4);
    assert_eq!(detect(&[]), Ok(Report::default()));
}

#[test]
fn an_impossible_reservation_is_an_error() {
    // The table would exceed the address space.
    let arm = vec![WorkItem::default(); 1 << 22];
    let arms = vec![arm.as_slice(); 1 << 22];
    let error = Error::from(DriverError::Reservation { field: "items of arms", requested: 1 << 44 });
    assert_eq!(detect(&arms), Err(error.clone()));
    assert_eq!(error.code(), "D020");
}

fn batches(handles: u32, len: usize) -> impl Strategy<Value = Vec<WorkItem>> {
    let item = (OPS, 0..handles, 0..handles, 0..handles);
    vec(item.prop_map(|(op, input, output, param)| items(&[[op, input, output, param]])[0]), 0..len)
}

fn renamed(batch: &[WorkItem], rename: fn(u32) -> u32) -> Vec<WorkItem> {
    let item = |item: &WorkItem| {
        let [input_handle, output_handle, param] = [item.input_handle, item.output_handle, item.param].map(rename);
        WorkItem { op_handle: item.op_handle, input_handle, output_handle, param }
    };
    batch.iter().map(item).collect()
}

/// Reference implementation of the rules: for each item, the last equal kept item, and all kept items in between.
fn reference(batch: &[WorkItem]) -> Vec<Pair> {
    let mut stays: Vec<usize> = Vec::new();
    let mut pairs = Vec::new();
    for (late, item) in batch.iter().enumerate() {
        let accesses = traits(item.op_handle).accesses(item);
        let redundant = |twin: usize| {
            let mut handles = accesses.iter().filter(|(_, access)| *access != Access::None);
            let written = |handle: u32| {
                stays.iter().filter(|index| **index > twin).any(|index| {
                    let other = &batch[*index];
                    let accesses = traits(other.op_handle).accesses(other);
                    accesses.iter().any(|(target, access)| access.writes() && *target == handle)
                })
            };
            traits(item.op_handle).pure
                && accesses.iter().all(|(read, reads)| {
                    accesses.iter().all(|(target, writes)| !(reads.reads() && writes.writes() && read == target))
                })
                && handles.all(|(handle, _)| !written(*handle))
        };
        match stays.iter().rev().find(|index| batch[**index] == *item) {
            Some(&early) if redundant(early) => pairs.push(Pair { early, late, op_index_in_late: 0 }),
            _ => stays.push(late),
        }
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pruned_batches_have_equal_results(batch in batches(4, 60), other in batches(3, 60), seed in any::<u32>()) {
        let mut pruner = Pruner::default();
        let mut kept = Vec::new();
        // The second batch is unaffected by the scratch memory of the first.
        for batch in [batch, other] {
            let report = pruner.prune(&batch, traits, &mut kept).unwrap();
            prop_assert_eq!(&report.redundant_pairs, &reference(&batch));
            // The result is invariant under renaming of handles.
            for rename in [|handle| u32::MAX - handle, |handle| handle << 20, |handle| handle * 4099 + 77] {
                let renamed = pruner.prune(&renamed(&batch, rename), traits, &mut kept).unwrap();
                prop_assert_eq!(&renamed, &report);
            }
            pruner.prune(&batch, traits, &mut kept).unwrap();
            let mut expected = [seed, seed ^ 1, seed ^ 2, seed ^ 3];
            let mut found = expected;
            execute(&batch, &mut expected);
            // Impure ops may count their executions, so all of them are kept, in order.
            execute(if report.total_redundant_ops == 0 { &batch } else { &kept }, &mut found);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn distinct_outputs_are_not_pruned(outputs in proptest::collection::hash_set(0u32..5000, 0..300)) {
        let batch: Vec<[u32; 4]> = outputs.iter().map(|output| [COPY, 9000, *output, 0]).collect();
        prop_assert_eq!(prune(&batch), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn large_batches_follow_the_rules(batch in batches(200, 2000), shift in 0u32..24) {
        // A small number of ops and parameters, so that some items are equal.
        let batch: Vec<WorkItem> = batch
            .iter()
            .map(|item| WorkItem { op_handle: COPY, input_handle: (item.input_handle % 8 + 300) << shift, param: 0, ..*item })
            .map(|item| WorkItem { output_handle: item.output_handle << shift, ..item })
            .collect();
        let report = Pruner::default().prune(&batch, traits, &mut Vec::new()).unwrap();
        prop_assert_eq!(report.redundant_pairs, reference(&batch));
    }
}
