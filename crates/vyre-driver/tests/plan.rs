//! Planner tests: cases computed by hand, and properties against naive implementations.

use proptest::collection::vec;
use proptest::prelude::*;
use vyre_driver::Error;
use vyre_driver::plan::barrier::{self, Dependency};
use vyre_driver::plan::frontier::{self, MemoryPlan, Wave};
use vyre_driver::plan::launch_fusion::{self, Stage};

const MAX: u64 = u64::MAX;
const HOST: u64 = 0;

/// Stages of (layout, input, output, scratch), numbered from 0. The layout `HOST` requires host materialization.
fn stages(of: &[(u64, u64, u64, u64)]) -> Vec<Stage> {
    let stage = |(id, &(layout, input_bytes, output_bytes, scratch_bytes)): (u32, &(u64, _, _, _))| Stage {
        id,
        layout_hash: layout.max(1),
        input_bytes,
        output_bytes,
        scratch_bytes,
        requires_host_materialization: layout == HOST,
    };
    (0..).zip(of).map(stage).collect()
}

fn fuse(of: &[(u64, u64, u64, u64)], budget: u64) -> Result<launch_fusion::Plan, Error> {
    launch_fusion::Planner::default().plan(&stages(of), budget)
}

fn ids(of: &[(u64, u64, u64, u64)], budget: u64) -> Vec<Vec<u32>> {
    fuse(of, budget).unwrap().groups().map(|group| group.stage_ids.to_vec()).collect()
}

fn edges(of: &[(usize, usize)]) -> Vec<Dependency> {
    of.iter().map(|&(before, after)| Dependency { before, after }).collect()
}

fn layers(waves: usize, of: &[(usize, usize)]) -> Result<Vec<Vec<usize>>, Error> {
    let plan = barrier::Planner::default().plan(waves, &edges(of))?;
    assert_eq!(plan.global_barriers, plan.groups().len().saturating_sub(1));
    Ok(plan.groups().map(<[usize]>::to_vec).collect())
}

/// Plans waves of (frontier, scratch, output), with nothing resident and no readback.
fn envelope(of: &[(u64, u64, u64)], dependencies: &[(usize, usize)], budget: u64) -> Result<MemoryPlan, Error> {
    frontier::Planner::default().plan(&waves(of), &edges(dependencies), 0, budget, 0)
}

fn waves(of: &[(u64, u64, u64)]) -> Vec<Wave> {
    let wave = |&(frontier_bytes, scratch_bytes, output_bytes)| Wave { frontier_bytes, scratch_bytes, output_bytes };
    of.iter().map(wave).collect()
}

fn overflow<T>(field: &'static str) -> Result<T, Error> {
    Err(Error::Overflow { field })
}

#[test]
fn a_chain_is_one_launch() {
    let plan = fuse(&[(7, 64, 32, 8), (7, 32, 48, 8), (7, 48, 16, 8)], 256).unwrap();
    assert_eq!([plan.launch_count, plan.avoided_launches], [1, 2]);
    assert_eq!(plan.avoided_intermediate_bytes, 80);
    let group = plan.groups().next().unwrap();
    assert_eq!((group.stage_ids, group.layout_hash), (&[0, 1, 2][..], 7));
    assert_eq!([group.required_bytes, group.avoided_intermediate_bytes], [64 + 32 + 8 + 48 + 8 + 16 + 8, 80]);
}

#[test]
fn layout_host_and_budget_split_groups() {
    let mixed = [(1, 8, 8, 0), (2, 8, 8, 0), (2, 8, 8, 0), (1, 8, 8, 0), (HOST, 8, 8, 0), (1, 8, 8, 0)];
    assert_eq!(ids(&mixed, 100), [&[0][..], &[1, 2], &[3], &[4, 5]]);
    let chain = [(1, 8, 8, 0); 5];
    assert_eq!(ids(&chain, 24), [&[0, 1][..], &[2, 3], &[4]]);
    assert_eq!(ids(&chain, 23), [[0], [1], [2], [3], [4]]);
    // The second stage alone exceeds the budget; in the group, its input is already held.
    assert_eq!(ids(&[(1, 8, 8, 0), (1, 90, 8, 0)], 24), [[0, 1]]);
    assert_eq!(fuse(&[], 1).unwrap(), launch_fusion::Plan::default());
}

#[test]
fn errors_have_a_fixed_precedence() {
    let zero = Err(Error::ZeroBudget);
    assert_eq!(fuse(&[], 0), zero);
    let mut planner = launch_fusion::Planner::default();
    for count in [2, 8, 9, 100] {
        // Over the budget, overflowing, and duplicate.
        let mut list = stages(&vec![(1, 64, 32, 64); count]);
        list[0].scratch_bytes = MAX;
        list[count - 1].id = list[count / 2 - 1].id;
        assert_eq!(planner.plan(&list, 0), zero);
        let id = list[count / 2 - 1].id;
        assert_eq!(planner.plan(&list, 128), Err(Error::DuplicateStage { id }));
        // Without the duplicate, and with ids out of order.
        list[count - 1].id = 1000;
        list.swap(0, count - 1);
        let over = Error::StageOverBudget { id: 1000, required: 160, budget: 128 };
        assert_eq!(planner.plan(&list, 128), Err(over));
        list.swap(0, count - 1);
        let over = Error::StageOverBudget { id: list[1].id, required: 160, budget: 128 };
        assert_eq!(planner.plan(&list, 128), Err(over));
    }
    // The joined sum overflows, so the stage does not join; and it is over the budget by itself.
    let over = Error::StageOverBudget { id: 1, required: MAX, budget: MAX - 1 };
    assert_eq!(fuse(&[(1, MAX - 5, 0, 0), (1, MAX - 20, 10, 10)], MAX - 1), Err(over));
}

#[test]
fn sums_of_stages_overflow() {
    assert_eq!(fuse(&[(1, MAX, 1, 0)], MAX), overflow("stage io bytes"));
    assert_eq!(fuse(&[(1, MAX - 1, 1, 1)], MAX), overflow("stage required bytes"));
    assert_eq!(fuse(&[(1, MAX, 0, 0), (1, 0, 0, 1)], MAX), overflow("fused scratch bytes"));
    assert_eq!(fuse(&[(1, MAX - 1, 0, 0), (1, 0, 1, 1)], MAX), overflow("fused output bytes"));
    let half = 1 << 63;
    let halves = [(1, 0, half, 0), (1, 0, 0, 0), (HOST, 0, half, 0), (1, 0, 0, 0)];
    assert_eq!(fuse(&halves, MAX), overflow("total avoided intermediate bytes"));
    // The largest sums without overflow.
    assert_eq!(fuse(&[(1, MAX - 2, 1, 1), (1, 0, 0, 0)], MAX).unwrap().avoided_intermediate_bytes, 1);
    assert_eq!(fuse(&halves[1..], MAX).unwrap().avoided_intermediate_bytes, half);
}

#[test]
fn planner_capacity_is_retained() {
    assert_eq!(launch_fusion::Planner::default().capacity(), 0);
    let mut planner = launch_fusion::Planner::with_capacity(50).unwrap();
    let capacity = planner.capacity();
    assert!(capacity >= 50);
    planner.plan(&stages(&[(1, 1, 1, 1); 50]), 10).unwrap();
    assert_eq!(planner.capacity(), capacity);
    planner.plan(&stages(&[(1, 1, 1, 1); 500]), 10).unwrap();
    assert!(planner.capacity() >= 500);
    let refused = launch_fusion::Planner::with_capacity(usize::MAX).map(|planner| planner.capacity());
    assert_eq!(refused, Err(Error::Reservation { field: "seen stage ids", requested: usize::MAX }));
}

#[test]
fn waves_in_layers() {
    assert_eq!(layers(0, &[]).unwrap(), [[0; 0]; 0]);
    assert_eq!(layers(3, &[]).unwrap(), [[0, 1, 2]]);
    assert_eq!(layers(4, &[(0, 1), (0, 2), (1, 3), (2, 3), (0, 1)]).unwrap(), [&[0][..], &[1, 2], &[3]]);
    assert_eq!(layers(4, &[(1, 0), (2, 1), (3, 2), (3, 0), (2, 1)]).unwrap(), [[3], [2], [1], [0]]);
}

#[test]
fn invalid_dependencies_are_errors() {
    let unknown = |before, after, wave_count| Err(Error::UnknownWave { before, after, wave_count });
    assert_eq!(layers(0, &[(0, 0)]), unknown(0, 0, 0));
    assert_eq!(layers(2, &[(0, 1), (2, 1)]), unknown(2, 1, 2));
    assert_eq!(layers(2, &[(0, usize::MAX)]), unknown(0, usize::MAX, 2));
    assert_eq!(layers(2, &[(0, 1), (1, 1)]), Err(Error::SelfDependency { wave: 1 }));
    assert_eq!(layers(5, &[(0, 1), (1, 2), (2, 1), (2, 3)]), Err(Error::Cycle { unscheduled: 3 }));
    let refused = Err(Error::Reservation { field: "wave layers", requested: usize::MAX });
    assert_eq!(layers(usize::MAX, &[]), refused);
    assert_eq!(layers(usize::MAX, &[(0, 1)]), refused);
}

#[test]
fn diamond_memory_peaks() {
    let of = [1, 2, 4, 8].map(|times| (1024 * times, 512 * times, 256 * times));
    let edges = edges(&[(0, 1), (0, 2), (1, 3), (2, 3)]);
    let plan = frontier::Planner::default().plan(&waves(&of), &edges, 16_000, 128 << 10, 1 << 20).unwrap();
    assert_eq!(plan.barriers.global_barriers, 2);
    assert_eq!(plan.barriers.groups().nth(1), Some(&[1, 2][..]));
    assert_eq!([plan.peak_frontier_bytes, plan.peak_scratch_bytes, plan.peak_output_bytes], [8192, 4096, 2048]);
    assert_eq!((plan.amortized_readback_bytes, plan.max_group_width), (1 << 20, 2));
    assert_eq!(envelope(&of, &[], 128 << 10).unwrap().amortized_readback_bytes, 256 * 15);
}

#[test]
fn groups_are_split_to_fit_the_budget() {
    let plan = envelope(&[(10, 10, 10); 3], &[], 100).unwrap();
    assert_eq!(plan.barriers.groups().collect::<Vec<_>>(), [[0], [1], [2]]);
    assert_eq!((plan.barriers.global_barriers, plan.max_group_width, plan.peak_scratch_bytes), (2, 1, 10));
    // Waves of cost 0 fit a budget of 0.
    assert_eq!(envelope(&[(0, 0, 0); 3], &[], 0).unwrap().max_group_width, 3);
    assert_eq!(envelope(&[], &[], 0).unwrap(), MemoryPlan::default());
    let chains: Vec<(usize, usize)> = (0..9 * 5).map(|wave| (wave, wave + 5)).collect();
    let plan = envelope(&[(10, 10, 10); 50], &chains, 1 << 40).unwrap();
    assert!(plan.barriers.groups().len() == 10 && plan.barriers.groups().all(|group| group.len() == 5));
}

#[test]
fn budgets_too_small_are_errors() {
    let over = |field, required, budget| Err(Error::OverBudget { field, required, budget });
    let single = "single fused frontier wave bytes";
    assert_eq!(envelope(&[(100, 100, 100)], &[], 500), over(single, 600, 500));
    let resident = |of: &[(u64, u64, u64)], dependencies: &[(usize, usize)], resident, budget| {
        frontier::Planner::default().plan(&waves(of), &edges(dependencies), resident, budget, 0)
    };
    assert_eq!(resident(&[], &[], 5, 4), over("resident graph bytes", 5, 4));
    assert_eq!(resident(&[(3, 0, 0)], &[], 5, 7), over(single, 3, 2));
    // Dependencies first, then costs.
    assert_eq!(resident(&[(3, 0, 0)], &[(0, 0)], 5, 4), Err(Error::SelfDependency { wave: 0 }));
    assert_eq!(resident(&[(3, 0, 0), (0, MAX, 0)], &[], 5, 4), overflow("fused wave scratch bytes"));
}

#[test]
fn sums_of_waves_overflow() {
    let quarter = MAX / 4;
    assert_eq!(envelope(&[(0, quarter + 1, 0)], &[], MAX), overflow("fused wave scratch bytes"));
    assert_eq!(envelope(&[(4, quarter, 0)], &[], MAX), overflow("fused wave bytes"));
    assert_eq!(envelope(&[(0, quarter, 4)], &[], MAX), overflow("fused wave bytes"));
    assert_eq!(envelope(&[(9, 0, 0), (MAX, 0, 1)], &[], 1), overflow("fused wave bytes"));
    assert_eq!(envelope(&[(MAX, 0, 0), (1, 0, 0)], &[], MAX), overflow("barrier group fused wave budget bytes"));
    let plan = envelope(&[(2, quarter, 1), (MAX, 0, 0)], &[(0, 1)], MAX).unwrap();
    assert_eq!((plan.peak_frontier_bytes, plan.peak_scratch_bytes), (MAX, quarter));
}

/// Fewest launches over all partitions in which every group fits.
fn fewest_launches(stages: &[Stage], budget: u64) -> Option<u32> {
    let cuts = 0..1_u32 << (stages.len() - 1);
    let starts = |cuts: u32, stage: usize| stage == 0 || cuts >> (stage - 1) & 1 == 1;
    let fits = |cuts: &u32| {
        let mut held = 0;
        stages.iter().enumerate().all(|(index, stage)| {
            let start = starts(*cuts, index);
            held = if start { stage.input_bytes } else { held } + stage.scratch_bytes + stage.output_bytes;
            let joins = !stage.requires_host_materialization
                && index.checked_sub(1).is_some_and(|previous| stages[previous].layout_hash == stage.layout_hash);
            held <= budget && (start || joins)
        })
    };
    cuts.filter(fits).map(|cuts| cuts.count_ones() + 1).min()
}

/// Waves with random dependencies, some duplicate, some cyclic.
fn graph() -> impl Strategy<Value = (usize, Vec<(usize, usize)>)> {
    (2..12_usize).prop_flat_map(|count| {
        let edge = (0..count, 1..count).prop_map(move |(before, step)| (before, (before + step) % count));
        let names = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
        (vec(edge, 0..30), names, prop::bool::weighted(0.9)).prop_map(move |(edges, names, acyclic)| {
            let named = |(a, b): (usize, usize)| {
                let (a, b) = if acyclic { (a.min(b), a.max(b)) } else { (a, b) };
                (names[a], names[b])
            };
            (count, edges.into_iter().map(named).collect())
        })
    })
}

/// Longest path to each wave by Bellman–Ford relaxation; `None` with a cycle.
fn longest_paths(count: usize, edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let mut layers = vec![0; count];
    for _ in 0..=count {
        let last = layers.clone();
        for &(before, after) in edges {
            layers[after] = layers[after].max(layers[before] + 1);
        }
        if layers == last {
            return Some(layers);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fusion_of_chains_is_minimal(
        sizes in vec((prop::bool::weighted(0.1), 1..3_u64, 0..64_u64, 0..64_u64, 0..=100_u64), 1..=10),
        budget in 1..500_u64,
    ) {
        let mut held = 100;
        let chain: Vec<_> = sizes.iter().map(|&(host, layout, output, scratch, percent)| {
            // At most the bytes that the previous stage held.
            let input = held * percent / 100;
            held = input + output + scratch;
            (if host { HOST } else { layout }, input, output, scratch)
        }).collect();
        match fuse(&chain, budget) {
            Ok(plan) => {
                prop_assert_eq!(Some(plan.launch_count), fewest_launches(&stages(&chain), budget));
                prop_assert_eq!(plan.launch_count + plan.avoided_launches, chain.len() as u32);
                prop_assert!(plan.groups().flat_map(|group| group.stage_ids).copied().eq(0..chain.len() as u32));
                prop_assert!(plan.groups().all(|group| group.required_bytes <= budget));
                let avoided = plan.groups().map(|group| group.avoided_intermediate_bytes).sum::<u64>();
                prop_assert_eq!(plan.avoided_intermediate_bytes, avoided);
            }
            Err(error) => {
                prop_assert_eq!(error.code(), "D017");
                prop_assert_eq!(fewest_launches(&stages(&chain), budget), None);
            }
        }
    }

    #[test]
    fn groups_are_layers_of_longest_paths((count, edges) in graph()) {
        match (layers(count, &edges), longest_paths(count, &edges)) {
            (Ok(groups), Some(expected)) => {
                let last = expected.iter().max().unwrap();
                let expected = (0..=*last).map(|layer| (0..count).filter(|wave| expected[*wave] == layer).collect());
                prop_assert_eq!(groups, expected.collect::<Vec<Vec<usize>>>());
            }
            (found, expected) => {
                prop_assert!(expected.is_none());
                prop_assert_eq!(found.unwrap_err().code(), "D023");
            }
        }
    }

    #[test]
    fn groups_fit_their_budget(
        (count, edges) in graph(),
        sizes in vec((0..50_u64, 0..50_u64, 0..50_u64), 12),
        budget in 100..600_u64,
    ) {
        let Ok(layers) = layers(count, &edges) else { return Ok(()) };
        let cost = |wave: &usize| sizes[*wave].0 + 4 * sizes[*wave].1 + sizes[*wave].2;
        let too_large: Vec<u64> = layers.iter().flatten().map(cost).filter(|cost| *cost > budget).collect();
        let plan = envelope(&sizes[..count], &edges, budget);
        if let Some(&required) = too_large.first() {
            let field = "single fused frontier wave bytes";
            prop_assert_eq!(plan, Err(Error::OverBudget { field, required, budget }));
            return Ok(());
        }
        let plan = plan.unwrap();
        let mut expected: Vec<Vec<usize>> = Vec::new();
        for layer in &layers {
            expected.push(Vec::new());
            for wave in layer {
                let group = expected.last().unwrap();
                if group.iter().chain([wave]).map(cost).sum::<u64>() > budget {
                    expected.push(Vec::new());
                }
                expected.last_mut().unwrap().push(*wave);
            }
        }
        prop_assert!(plan.barriers.groups().all(|group| group.iter().map(cost).sum::<u64>() <= budget));
        prop_assert!(plan.barriers.groups().eq(&expected));
        prop_assert_eq!(plan.barriers.global_barriers, expected.len() - 1);
        let peak = |bytes: fn(&(u64, u64, u64)) -> u64| {
            expected.iter().map(|group| group.iter().map(|wave| bytes(&sizes[*wave])).sum::<u64>()).max().unwrap()
        };
        let peaks = [plan.peak_frontier_bytes, plan.peak_scratch_bytes, plan.peak_output_bytes];
        prop_assert_eq!(peaks, [peak(|sizes| sizes.0), peak(|sizes| sizes.1), peak(|sizes| sizes.2)]);
        prop_assert_eq!(Some(plan.max_group_width), expected.iter().map(Vec::len).max());
    }

    #[test]
    fn planners_are_reusable(graphs in vec(graph(), 3), budgets in vec(0..99_u64, 3)) {
        let (mut fusion, mut memory) = (launch_fusion::Planner::default(), frontier::Planner::default());
        for ((count, of), budget) in graphs.iter().zip(budgets) {
            let sizes: Vec<_> = of.iter().map(|&(a, b)| (1 + b as u64 % 2, a as u64, b as u64, 3)).collect();
            prop_assert_eq!(fusion.plan(&stages(&sizes), budget), fuse(&sizes, budget));
            let sizes = vec![(9, 4, 7); *count];
            let again = memory.plan(&waves(&sizes), &edges(of), 0, budget, 0);
            prop_assert_eq!(again, envelope(&sizes, of, budget));
        }
    }
}
