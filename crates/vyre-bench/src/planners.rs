//! Planner benchmarks: launch planners against naive implementations: a set of ids, a list for each group, a list of
//! successors for each wave.

use std::collections::HashSet;
use std::hint::black_box;

use vyre_driver::Error;
use vyre_driver::plan::barrier::Dependency;
use vyre_driver::plan::frontier::{self, Wave};
use vyre_driver::plan::launch_fusion::{self, Stage};

use crate::line::{Line, Report};

const STAGES: u32 = 10_000;
const LAYERS: usize = 32;
const WIDTH: usize = 32;
/// A budget that is never exceeded.
const BUDGET: u64 = 1 << 40;

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    fusion(report, "fusion_fusable", &stages(1, |_| 0))?;
    fusion(report, "fusion_unfusable", &stages(1, u64::from))?;
    // Shuffled ids. A permutation, because the step is coprime to the count.
    fusion(report, "fusion_shuffled", &stages(7_919, u64::from))?;
    let mut edges = lattice();
    frontier(report, "frontier_lattice", &edges)?;
    // Reverse topological order: the worst case of the relaxation pass.
    edges.reverse();
    frontier(report, "frontier_reversed", &edges)
}

fn fusion(report: &Report, name: &str, stages: &[Stage]) -> Result<(), Error> {
    let mut planner = launch_fusion::Planner::default();
    let plan = planner.plan(stages, BUDGET)?;
    assert!(plan.groups().map(|group| group.stage_ids).eq(plain_fusion(stages).iter().map(|group| &group.0)));
    let ours = &mut || {
        black_box(planner.plan(black_box(stages), BUDGET).is_ok());
    };
    let plain = &mut || {
        black_box(plain_fusion(black_box(stages)));
    };
    report.compare(ours, &mut [(line(name, stages.len(), "stages"), plain)]);
    Ok(())
}

fn frontier(report: &Report, name: &str, edges: &[Dependency]) -> Result<(), Error> {
    let waves = vec![Wave { frontier_bytes: 1024, scratch_bytes: 512, output_bytes: 256 }; LAYERS * WIDTH];
    let mut planner = frontier::Planner::default();
    let plan = planner.plan(&waves, edges, 0, BUDGET, 0)?;
    let (groups, peak) = plain_frontier(&waves, edges);
    assert!(plan.barriers.groups().eq(&groups) && plan.peak_output_bytes == peak);
    let ours = &mut || {
        black_box(planner.plan(black_box(&waves), black_box(edges), 0, BUDGET, 0).is_ok());
    };
    let plain = &mut || {
        black_box(plain_frontier(black_box(&waves), black_box(edges)));
    };
    report.compare(ours, &mut [(line(name, edges.len(), "edges"), plain)]);
    Ok(())
}

fn line<'a>(name: &'a str, work: usize, unit: &'a str) -> Line<'a> {
    Line { suite: "planners", name, device: "none", threads: 1, baseline: "plain", work: work as u64, unit }
}

fn stages(step: u32, layout: impl Fn(u32) -> u64) -> Vec<Stage> {
    let stage = |number| Stage {
        id: number * step % STAGES,
        layout_hash: layout(number),
        input_bytes: 64,
        output_bytes: 64,
        scratch_bytes: 16,
        requires_host_materialization: false,
    };
    (0..STAGES).map(stage).collect()
}

/// Every wave of a layer depends on all waves of the previous layer.
fn lattice() -> Vec<Dependency> {
    let next = |before: usize| (before / WIDTH + 1) * WIDTH;
    let after = |before| (next(before)..next(before) + WIDTH).map(move |after| Dependency { before, after });
    (0..(LAYERS - 1) * WIDTH).flat_map(after).collect()
}

/// Stages of each group, bytes required, and bytes not written.
fn plain_fusion(stages: &[Stage]) -> Vec<(Vec<u32>, u64, u64)> {
    let mut seen = HashSet::new();
    let mut groups: Vec<(Vec<u32>, u64, u64)> = Vec::new();
    let mut previous: Option<&Stage> = None;
    for stage in stages {
        assert!(seen.insert(stage.id));
        let added = stage.scratch_bytes + stage.output_bytes;
        let joins =
            |previous: &&Stage| previous.layout_hash == stage.layout_hash && !stage.requires_host_materialization;
        match (previous.filter(joins), groups.last_mut()) {
            (Some(previous), Some((ids, required, avoided))) if *required + added <= BUDGET => {
                ids.push(stage.id);
                *required += added;
                *avoided += previous.output_bytes;
            }
            _ => groups.push((vec![stage.id], stage.input_bytes + added, 0)),
        }
        previous = Some(stage);
    }
    groups
}

/// Groups, and the largest output of a group: less than our planner computes.
fn plain_frontier(waves: &[Wave], edges: &[Dependency]) -> (Vec<Vec<usize>>, u64) {
    let mut successors = vec![Vec::new(); waves.len()];
    let mut waiting = vec![0; waves.len()];
    for edge in edges {
        successors[edge.before].push(edge.after);
        waiting[edge.after] += 1;
    }
    let mut groups = Vec::new();
    let mut ready: Vec<usize> = (0..waves.len()).filter(|wave| waiting[*wave] == 0).collect();
    while !ready.is_empty() {
        ready.sort_unstable();
        let mut next = Vec::new();
        for successor in ready.iter().flat_map(|wave| &successors[*wave]) {
            waiting[*successor] -= 1;
            if waiting[*successor] == 0 {
                next.push(*successor);
            }
        }
        groups.push(std::mem::replace(&mut ready, next));
    }
    let output = |group: &Vec<usize>| group.iter().map(|wave| waves[*wave].output_bytes).sum();
    let peak = groups.iter().map(output).max().unwrap_or(0);
    (groups, peak)
}
