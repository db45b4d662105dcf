//! Tests of telemetry hints, pass selection, the registry, pipelines, the pass manager and the cost model.

use vyre_foundation::ir::{Op, PerInvocation, Program, Pure};
use vyre_foundation::optimizer::cost::{self, Roofline};
use vyre_foundation::optimizer::{
    self, Analyses, Boundary, Capability, Decision, Dump, Family, Hints, Measures, Metadata, Metric, Options, Pass,
    Phase, Pipeline, Profile, Reason, Record, Registry, Report, Request, Shape, Target, Verdict, select,
};
use vyre_foundation::{Error, Validated, text, validate};

fn program(name: &str) -> Validated<Program> {
    let module = text::parse(include_str!("optimizer.vyre")).and_then(validate::module).unwrap();
    module.program(name).unwrap().clone()
}

// Hints.

#[test]
fn hints_evict_the_least_recently_recorded_operation() {
    let hints = Hints::new(2, 10);
    hints.record("a", 10, 1);
    hints.record("b", 10, 1);
    hints.record("a", 30, 5);
    hints.record("c", 1, 1);
    let record = Record { dispatches: 2, total_ns: 40, max_ns: 30, total_bytes: 6 };
    assert_eq!((hints.get("a"), hints.get("b")), (Some(record), None));
    assert_eq!(hints.records().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
    // Lookups do not update the eviction order.
    assert!(hints.is_hot("a"));
    hints.record("d", 1, 1);
    assert_eq!(hints.get("a"), None);
}

#[test]
fn hints_without_capacity_record_nothing() {
    let hints = Hints::new(0, 0);
    hints.record("a", u64::MAX, 1);
    assert!(hints.records().is_empty() && !hints.is_hot("a"));
    let full = Hints::default();
    full.record("a", 1, 1);
    hints.load(&full.encode()).unwrap();
    assert!(hints.records().is_empty());
}

#[test]
fn sums_of_hints_saturate() {
    let hints = Hints::default();
    hints.record("a", u64::MAX, u64::MAX);
    hints.record("a", u64::MAX, u64::MAX);
    let expected = Record { dispatches: 2, total_ns: u64::MAX, max_ns: u64::MAX, total_bytes: u64::MAX };
    assert_eq!(hints.get("a"), Some(expected));
}

#[test]
fn an_operation_is_hot_if_its_mean_time_reaches_the_threshold() {
    let hints = Hints::default();
    assert_eq!(hints.hot_ns(), 100_000);
    assert!(!hints.is_hot("a"), "an operation without records is cold");
    hints.record("a", 100_000, 0);
    assert!(hints.is_hot("a"));
    hints.record("a", 99_999, 0);
    assert!(!hints.is_hot("a"));
    let eager = Hints::new(4, 0);
    assert!(!eager.is_hot("a"));
    eager.record("a", 0, 0);
    assert!(eager.is_hot("a"));
}

#[test]
fn hints_round_trip_and_damaged_ones_are_rejected() {
    let hints = Hints::default();
    for op in 0..300 {
        hints.record(&format!("op{op}"), op, 2 * op);
    }
    assert_eq!(hints.records().len(), Hints::DEFAULT_CAPACITY);
    let bytes = hints.encode();
    let other = Hints::default();
    other.load(&bytes).unwrap();
    assert_eq!(other.records(), hints.records());
    let fewer = Hints::new(3, 0);
    fewer.load(&bytes).unwrap();
    assert_eq!(fewer.records(), hints.records()[253..]);

    // Damaged hints are rejected as a whole.
    let damaged = |bytes: &[u8]| {
        assert_eq!(other.load(bytes), Err(Error::BadHints { bytes: bytes.len() }));
        assert_eq!(other.records(), hints.records());
    };
    for length in (0..bytes.len()).step_by(37) {
        damaged(&bytes[..length]);
    }
    for position in (0..bytes.len()).step_by(41) {
        let mut flipped = bytes.clone();
        flipped[position] ^= 1 << (position % 8);
        damaged(&flipped);
    }
    damaged(&[&bytes[..], &[0]].concat());
}

#[test]
fn threads_share_hints() {
    let hints = Hints::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| hints.record("a", 1, 1)));
        }
    });
    assert_eq!(hints.get("a").map(|record| record.dispatches), Some(4000));
}

// Selection.

const fn row(name: &'static str, phase: Phase, family: Family) -> Metadata {
    Metadata::new(name, phase, family)
}

/// A pass of each family that the release profile accepts.
const FAMILIES: [Metadata; 8] = [
    row("scalar", Phase::ScalarAlgebra, Family::Scalar),
    row("sync", Phase::Sync, Family::Sync),
    row("unknown", Phase::Cleanup, Family::Unknown),
    row("loop", Phase::Loop, Family::Loop),
    row("memory", Phase::Memory, Family::Memory),
    row("fusion", Phase::FusionCse, Family::Fusion),
    row("dataflow", Phase::Cleanup, Family::Dataflow),
    row("megakernel", Phase::Cleanup, Family::Megakernel),
];

fn shape(nodes: usize, peak_device_bytes: u64, top_level_regions: usize) -> Shape {
    Shape { nodes, peak_device_bytes, top_level_regions, entry_op: Some("op".into()) }
}

fn reasons(decisions: &[Decision]) -> Vec<(&'static str, bool, Reason)> {
    decisions.iter().map(|decision| (decision.metadata.name, decision.selected, decision.reason)).collect()
}

fn release(passes: &[Metadata], shape: &Shape, hints: Option<&Hints>, report: Option<&Report>) -> Vec<Decision> {
    select(Profile::Release, Target::default(), passes, shape, hints, report)
}

#[test]
fn families_are_selected_at_their_threshold() {
    let selected = |shape: &Shape| -> Vec<&str> {
        let decisions = release(&FAMILIES, shape, None, None);
        for decision in &decisions {
            let (reason, priority) = match (decision.metadata.family, decision.selected) {
                (Family::Scalar | Family::Sync | Family::Unknown, true) => (Reason::AlwaysOn, 200),
                (_, true) => (Reason::ProgramShape, 300),
                (_, false) => (Reason::BelowThreshold, 0),
            };
            assert_eq!((decision.reason, decision.priority, decision.because_of), (reason, priority, None));
        }
        decisions.iter().filter(|decision| decision.selected).map(|decision| decision.metadata.name).collect()
    };
    let always = ["scalar", "sync", "unknown"];
    let with = |more: &[&'static str]| [&always[..], more].concat();
    assert_eq!(selected(&shape(11, (16 << 10) - 1, 1)), always);
    assert_eq!(selected(&shape(12, 0, 0)), with(&["loop"]));
    assert_eq!(selected(&shape(0, 16 << 10, 0)), with(&["memory"]));
    assert_eq!(selected(&shape(0, 0, 2)), with(&["fusion"]));
    assert_eq!(selected(&shape(63, 0, 0)), with(&["loop"]));
    assert_eq!(selected(&shape(64, 0, 0)), with(&["loop", "dataflow"]));
    assert_eq!(selected(&shape(511, 0, 0)), with(&["loop", "dataflow"]));
    assert_eq!(selected(&shape(512, 0, 0)), with(&["loop", "dataflow", "megakernel"]));
}

#[test]
fn profiles_accept_by_phase_and_boundary() {
    let accepted = |row: Metadata| Profile::ALL.map(|profile| profile.accepts(&row));
    let base = row("pass", Phase::Loop, Family::Loop);
    assert_eq!(accepted(base), [true, false, false]);
    assert_eq!(accepted(Metadata { phase: Phase::Dataflow, ..base }), [false, true, false]);
    assert_eq!(accepted(Metadata { phase: Phase::Megakernel, ..base }), [false, false, true]);
    assert_eq!(accepted(Metadata { phase: Phase::Unclassified, ..base }), [false; 3]);
    // Capabilities are checked separately.
    assert_eq!(accepted(Metadata { requires_caps: &Capability::ALL, ..base }), [true, false, false]);
    for phase in [Phase::Loop, Phase::Dataflow, Phase::Megakernel] {
        let base = Metadata { phase, ..base };
        assert_eq!(accepted(Metadata { preserves_abi: false, ..base }), [false; 3]);
        for boundary in [Boundary::AbiChanging, Boundary::BackendAware, Boundary::Unknown] {
            assert_eq!(accepted(Metadata { boundary, ..base }), [false; 3], "{phase:?} {boundary:?}");
        }
        let domain = Metadata { boundary: Boundary::DomainSpecific, ..base };
        assert_eq!(accepted(domain), [false, phase == Phase::Dataflow, false]);
        let runtime = Metadata { boundary: Boundary::RuntimeAware, ..base };
        assert_eq!(accepted(runtime), [false, false, phase == Phase::Megakernel]);
    }
}

#[test]
fn hot_programs_select_every_eligible_pass() {
    let hints = Hints::default();
    hints.record("op", 100_000, 1);
    let mut passes = FAMILIES.to_vec();
    passes.push(row("foreign", Phase::Unclassified, Family::Scalar));
    let decisions = release(&passes, &shape(0, 0, 0), Some(&hints), None);
    let (foreign, others) = decisions.split_last().unwrap();
    assert!(
        others.iter().all(|decision| decision.selected
            && decision.reason == Reason::HotPathTelemetry
            && decision.priority == 500)
    );
    assert_eq!((foreign.selected, foreign.reason, foreign.priority), (false, Reason::ProfileRejected, 0));

    // A program without a name is cold.
    let nameless = Shape { entry_op: None, ..shape(0, 0, 0) };
    let cold = release(&passes, &shape(0, 0, 0), None, None);
    assert_eq!(release(&passes, &nameless, Some(&hints), None), cold);
    assert_eq!(release(&passes, &shape(0, 0, 0), Some(&Hints::default()), None), cold);
}

fn metric(pass: &'static str, verdict: Verdict, before: u64, after: u64) -> Metric {
    Metric {
        iteration: 0,
        pass,
        verdict,
        required: vec![],
        computed: vec![],
        invalidated: vec![],
        runtime_ns: 0,
        before: Measures { memory_ops: before, ..Measures::default() },
        after: Measures { memory_ops: after, nodes: 1, ..Measures::default() },
        cost: 0,
    }
}

#[test]
fn reasons_name_the_value_and_the_threshold() {
    let described = |shape: &Shape, name: &str| {
        let decisions = release(&FAMILIES, shape, None, None);
        decisions.iter().find(|decision| decision.metadata.name == name).map(Decision::describe).unwrap()
    };
    let small = shape(11, 0, 1);
    assert_eq!(described(&small, "loop"), "11 nodes < 12");
    assert_eq!(described(&small, "memory"), "0 B known < 16 KiB; bind lengths to let it run");
    assert_eq!(described(&small, "fusion"), "1 top-level regions < 2");
    assert_eq!(described(&small, "scalar"), "always on");
    let large = shape(12, (1 << 20) + 1, 2);
    assert_eq!(described(&large, "loop"), "12 nodes ≥ 12");
    assert_eq!(described(&large, "memory"), "1048577 B known ≥ 16 KiB");
}

#[test]
fn passes_with_a_reported_reduction_are_selected() {
    let report = Report {
        metrics: vec![
            metric("loop", Verdict::Changed, 2, 3),
            metric("loop", Verdict::Changed, 3, 2),
            metric("memory", Verdict::Changed, 2, 2),
            metric("fusion", Verdict::Refused { before: 1, after: 2 }, 3, 2),
            metric("scalar", Verdict::Changed, 3, 2),
        ],
        ..Report::default()
    };
    let decisions = release(&FAMILIES, &shape(0, 0, 0), None, Some(&report));
    let decided = |name: &str| {
        let decision = decisions.iter().find(|decision| decision.metadata.name == name).unwrap();
        (decision.selected, decision.reason, decision.priority)
    };
    assert_eq!(decided("loop"), (true, Reason::PassCostReport, 400));
    assert_eq!(decided("scalar"), (true, Reason::PassCostReport, 400));
    assert_eq!(decided("memory"), (false, Reason::BelowThreshold, 0));
    assert_eq!(decided("fusion"), (false, Reason::BelowThreshold, 0));
    assert_eq!(decided("sync"), (true, Reason::AlwaysOn, 200));
    assert_eq!(report.metrics[1].best_reduction(), Some(("memory_ops", 1)));
    let described = |decisions: &[Decision]| {
        decisions.iter().find(|decision| decision.metadata.name == "loop").map(Decision::describe).unwrap()
    };
    assert_eq!(described(&decisions), "memory ops fell by 1 ≥ 1 in the previous run");
    // Hints take precedence over reports.
    let hints = Hints::new(1, 2000);
    hints.record("op", 2500, 0);
    let hot = release(&FAMILIES, &shape(0, 0, 0), Some(&hints), Some(&report));
    assert!(hot.iter().all(|decision| decision.reason == Reason::HotPathTelemetry));
    assert_eq!(described(&hot), "mean dispatch time 2.5µs ≥ 2µs");
}

#[test]
fn an_empty_report_selects_nothing() {
    for shape in [shape(0, 0, 0), shape(100, 1 << 20, 3)] {
        let none = release(&FAMILIES, &shape, None, None);
        assert_eq!(release(&FAMILIES, &shape, None, Some(&Report::default())), none);
    }
}

#[test]
fn requirements_of_selected_passes_are_selected() {
    let passes = [
        row("base", Phase::Memory, Family::Memory),
        Metadata { requires: &["base"], ..row("middle", Phase::Memory, Family::Fusion) },
        Metadata { requires: &["middle", "not_there"], ..row("top", Phase::Cleanup, Family::Scalar) },
        row("other", Phase::Memory, Family::Memory),
    ];
    let decisions = release(&passes, &shape(0, 0, 0), None, None);
    assert_eq!(
        reasons(&decisions),
        [
            ("base", true, Reason::RequiredDependency),
            ("middle", true, Reason::RequiredDependency),
            ("top", true, Reason::AlwaysOn),
            ("other", false, Reason::BelowThreshold),
        ]
    );
    assert_eq!(
        decisions.iter().map(|decision| decision.because_of).collect::<Vec<_>>(),
        [Some("middle"), Some("top"), None, None]
    );
    assert_eq!(decisions.iter().map(|decision| decision.priority).collect::<Vec<_>>(), [100, 100, 200, 0]);
    // A pass that is selected for another reason keeps that reason.
    let decisions = release(&passes, &shape(0, 16 << 10, 0), None, None);
    assert_eq!(decisions[0].reason, Reason::ProgramShape);
}

/// Telemetry cannot select passes that require a missing capability, directly or through other passes.
#[test]
fn missing_capabilities_reject_passes_and_their_dependents() {
    let passes = [
        Metadata { requires: &["middle"], ..row("top", Phase::Cleanup, Family::Scalar) },
        Metadata { requires: &["tiles"], ..row("middle", Phase::Memory, Family::Scalar) },
        Metadata { requires_caps: &[Capability::Scratchpad], ..row("tiles", Phase::Memory, Family::Memory) },
        Metadata { requires_caps: &[Capability::LoopsAsWritten], ..row("unroll", Phase::Loop, Family::Scalar) },
        Metadata { requires_caps: &Capability::ALL, ..row("foreign", Phase::Unclassified, Family::Scalar) },
    ];
    let hints = Hints::new(1, 0);
    hints.record("op", 1, 1);
    for hints in [None, Some(&hints)] {
        let on = |target| select(Profile::Release, target, &passes, &shape(1000, 1 << 20, 4), hints, None);
        let decisions = on(Target { scratchpad: false, loops_as_written: true });
        let found: Vec<_> = decisions
            .iter()
            .filter(|decision| !decision.selected)
            .map(|decision| (decision.metadata.name, decision.reason, decision.because_of, decision.priority))
            .collect();
        let expected = [
            ("top", Reason::TargetRejected, Some("middle"), 0),
            ("middle", Reason::TargetRejected, Some("tiles"), 0),
            ("tiles", Reason::TargetRejected, None, 0),
            ("foreign", Reason::ProfileRejected, None, 0),
        ];
        assert_eq!(found, expected);
        let slow_scratchpad = "workgroup memory of the device is no faster than its caches";
        assert_eq!(decisions[2].describe(), slow_scratchpad);
        assert_eq!(decisions[1].describe(), format!("requires tiles: {slow_scratchpad}"));
        assert_eq!(decisions[2].missing, Some(Capability::Scratchpad));

        let decisions = on(Target { scratchpad: true, loops_as_written: false });
        let rejected: Vec<_> = decisions.iter().filter(|decision| decision.reason == Reason::TargetRejected).collect();
        assert_eq!(rejected.len(), 1);
        assert_eq!((rejected[0].metadata.name, rejected[0].missing), ("unroll", Some(Capability::LoopsAsWritten)));
        assert!(on(Target::default())[..4].iter().all(|decision| decision.selected));
    }
}

#[test]
fn dependents_of_a_rejected_pass_are_rejected() {
    let passes = [
        Metadata { requires: &["middle"], ..row("top", Phase::Cleanup, Family::Scalar) },
        Metadata { requires: &["foreign"], ..row("middle", Phase::Memory, Family::Scalar) },
        row("foreign", Phase::Unclassified, Family::Scalar),
        row("fine", Phase::Cleanup, Family::Scalar),
    ];
    let hints = Hints::new(1, 0);
    hints.record("op", 1, 1);
    for hints in [None, Some(&hints)] {
        let decisions = release(&passes, &shape(1000, 1 << 20, 4), hints, None);
        let rejected: Vec<_> = decisions
            .iter()
            .filter(|decision| decision.reason == Reason::ProfileRejected)
            .map(|decision| (decision.metadata.name, decision.selected, decision.because_of, decision.priority))
            .collect();
        let expected =
            [("top", false, Some("middle"), 0), ("middle", false, Some("foreign"), 0), ("foreign", false, None, 0)];
        assert_eq!(rejected, expected);
        assert!(decisions[3].selected);
    }
}

#[test]
fn the_shape_counts_nested_nodes_and_bound_lengths() {
    let program = program("regions");
    let shape = Shape::of(&program, &[]);
    assert_eq!((shape.top_level_regions, shape.peak_device_bytes), (1, 16));
    assert_eq!(shape.entry_op.as_deref(), Some("regions"));
    assert!(shape.nodes >= 7, "{shape:?}");
    let x = program.memory_named("x").unwrap();
    assert_eq!(Shape::of(&program, &[(x, 4096)]).peak_device_bytes, 16 + 16384);
    assert_eq!(Shape::of(&program, &[(x, u64::MAX)]).peak_device_bytes, u64::MAX);
}

// The registry and pipelines.

fn no_change(_: &mut Program, _: &mut Analyses) -> bool {
    false
}

fn pass(metadata: Metadata) -> &'static Pass {
    Box::leak(Box::new(Pass { metadata, speculative: false, run: no_change }))
}

#[test]
fn registries_that_cannot_be_scheduled_are_rejected() {
    let requiring = |name, requires: &'static [&'static str]| {
        pass(Metadata { requires, ..row(name, Phase::Cleanup, Family::Scalar) })
    };
    let refused = |passes: Vec<&'static Pass>| Registry::new(passes).unwrap_err();
    let duplicate = refused(vec![requiring("a", &[]), requiring("b", &[]), requiring("a", &[])]);
    assert_eq!(duplicate, Error::DuplicatePass { pass: "a".into() });
    let unknown = refused(vec![requiring("a", &["b"])]);
    assert_eq!(unknown, Error::UnknownRequirement { pass: "a".into(), requires: "b".into() });
    let cycle = refused(vec![requiring("a", &["b"]), requiring("b", &["a"]), requiring("c", &[])]);
    assert_eq!(cycle, Error::RequirementCycle { passes: vec!["a".into(), "b".into()] });
    assert_eq!(refused(vec![requiring("a", &["a"])]), Error::RequirementCycle { passes: vec!["a".into()] });
    let rejected = refused(vec![requiring("a", &["b"]), pass(row("b", Phase::Unclassified, Family::Scalar))]);
    assert_eq!(rejected, Error::RejectedRequirement { pass: "a".into(), requires: "b".into(), profile: "release" });
}

#[test]
fn passes_are_ordered_by_requirements_phase_and_list() {
    let registry = Registry::new(vec![
        pass(row("last", Phase::Cleanup, Family::Scalar)),
        pass(Metadata { requires: &["last"], ..row("early_but_needy", Phase::Canonicalization, Family::Scalar) }),
        pass(row("second", Phase::Loop, Family::Scalar)),
        pass(row("third", Phase::Loop, Family::Scalar)),
        pass(row("first", Phase::ScalarAlgebra, Family::Scalar)),
    ]);
    let names: Vec<&str> = registry.unwrap().schedule_all().iter().map(|pass| pass.metadata.name).collect();
    assert_eq!(names, ["first", "second", "third", "last", "early_but_needy"]);
}

#[test]
fn every_registered_pass_is_reachable_by_a_profile() {
    let registry = Registry::standard();
    Registry::new(registry.passes().to_vec()).expect("the list can be scheduled");
    let hints = Hints::new(1, 0);
    hints.record("op", 1, 1);
    for (position, pass) in registry.passes().iter().enumerate() {
        let reachable = Profile::ALL.iter().any(|&profile| {
            let decisions =
                select(profile, Target::default(), &registry.metadata(), &shape(0, 0, 0), Some(&hints), None);
            decisions[position].selected
        });
        assert!(reachable, "{pass:?}");
    }
}

#[test]
fn profile_passes_run_after_the_release_passes() {
    // All eligible passes are selected for a hot program.
    let (program, hints) = (program("small"), Hints::new(1, 0));
    hints.record("small", 1, 1);
    let passes = |profile| {
        let plan = optimizer::plan(&program, &Request { profile, hints: Some(&hints), ..Request::default() });
        plan.pipeline.passes.iter().map(|pass| pass.metadata.name).collect::<Vec<_>>()
    };
    let general = passes(Profile::Release);
    assert_eq!(passes(Profile::Dataflow), [&general[..], &["guard_idempotent_atomics"]].concat());
    assert_eq!(passes(Profile::Megakernel), [&general[..], &["merge_arms", "hoist_prologues"]].concat());
}

#[test]
fn printed_pipelines_parse_to_the_same_pipeline() {
    let registry = Registry::standard();
    for text in
        ["", "fixpoint()", "fold_constants", "value_numbering,fold_constants", "fixpoint(fold_constants,specialize)"]
    {
        assert_eq!(Pipeline::parse(text, registry).unwrap().to_string(), text);
    }
    let all = Pipeline { passes: registry.schedule_all(), to_fixed_point: true };
    assert_eq!(Pipeline::parse(&all.to_string(), registry).unwrap().to_string(), all.to_string());
    let spaced = Pipeline::parse("  fixpoint( fold_constants ,\n specialize )", registry).unwrap();
    assert_eq!(spaced.to_string(), "fixpoint(fold_constants,specialize)");
    for bad in ["fixpoint(fold_constants", "fold_constants,", ",", "fold_constants,,specialize"] {
        assert_eq!(Pipeline::parse(bad, registry).unwrap_err().code(), "O006", "{bad}");
    }
    for unknown in ["nothing", "fold_constants)", "fixpoint(fixpoint(fold_constants))", "FOLD_CONSTANTS"] {
        let Err(Error::UnknownPass { known, .. }) = Pipeline::parse(unknown, registry) else { panic!("{unknown}") };
        assert_eq!(known.len(), registry.passes().len());
    }
}

// The pass manager.

fn fixpoint(passes: Vec<&'static Pass>) -> Pipeline {
    Pipeline { passes, to_fixed_point: true }
}

fn standard() -> Pipeline {
    fixpoint(Registry::standard().schedule_all())
}

/// Replaces one operation by another in the body.
fn replace_ops(program: &mut Program, from: impl Into<Op>, to: impl Into<Op>) -> bool {
    let (mut changed, from, to) = (false, from.into(), to.into());
    for id in program.block(program.body()).insts.clone() {
        if program.inst(id).op == from {
            program.inst_mut(id).op = to.clone();
            changed = true;
        }
    }
    changed
}

static ADD_TO_SUB: Pass = Pass {
    metadata: row("add_to_sub", Phase::Cleanup, Family::Scalar),
    speculative: false,
    run: |program, _| replace_ops(program, Pure::Add, Pure::Sub),
};
static SUB_TO_ADD: Pass = Pass {
    metadata: row("sub_to_add", Phase::Cleanup, Family::Scalar),
    speculative: false,
    run: |program, _| replace_ops(program, Pure::Sub, Pure::Add),
};
/// Removes definitions of values that are still used.
static BREAKS: Pass = Pass {
    metadata: row("breaks", Phase::Cleanup, Family::Scalar),
    speculative: false,
    run: |program, _| replace_ops(program, PerInvocation::GlobalIndex, Pure::Add),
};
static MORE_EXPENSIVE: Pass = Pass {
    metadata: row("dearer", Phase::Cleanup, Family::Scalar),
    speculative: true,
    run: |program, _| replace_ops(program, Pure::Add, Pure::Div),
};
static CHEAPER: Pass = Pass {
    metadata: row("cheaper", Phase::Cleanup, Family::Scalar),
    speculative: true,
    run: |program, _| replace_ops(program, Pure::Mul, Pure::Add),
};

#[test]
fn disabled_passes_do_not_run() {
    let options = Options { disabled: vec!["fold_constants".into()], ..Options::default() };
    let (_, report) = optimizer::run(program("small"), &standard(), &options, &mut |_| {}).unwrap();
    assert!(report.metrics.iter().all(|metric| metric.pass != "fold_constants"));
    let (_, report) = optimizer::run(program("small"), &standard(), &Options::default(), &mut |_| {}).unwrap();
    assert!(report.best_reduction("fold_constants").is_some());
    assert!(report.cost_after < report.cost_before);
}

#[test]
fn bisection_stops_at_the_change_limit() {
    let program = program("small");
    let original = program.to_string();
    let pipeline = fixpoint(vec![&ADD_TO_SUB, &SUB_TO_ADD]);
    for most in [0, 1, 2, 5] {
        let options = Options { max_changes: Some(most), ..Options::default() };
        let (changed, report) = optimizer::run(program.clone(), &pipeline, &options, &mut |_| {}).unwrap();
        assert_eq!((report.changes(), report.not_converged), (most, None));
        let text = changed.to_string();
        assert_eq!(text == original, most % 2 == 0, "{text}");
    }
}

#[test]
fn dumps_follow_the_option() {
    let shown = |dump| {
        let mut shown = Vec::new();
        let options = Options { dump, max_changes: Some(1), ..Options::default() };
        let registry = Registry::standard();
        let passes = ["specialize", "fold_constants"].map(|name| registry.named(name).unwrap()).to_vec();
        optimizer::run(program("small"), &fixpoint(passes), &options, &mut |snapshot| {
            shown.push((snapshot.pass, snapshot.changed));
        })
        .unwrap();
        shown
    };
    assert_eq!(shown(Dump::None), []);
    assert_eq!(shown(Dump::OnFailure), []);
    assert_eq!(shown(Dump::Changed), [("fold_constants", true)]);
    assert_eq!(shown(Dump::All), [("specialize", false), ("fold_constants", true)]);
}

#[test]
fn the_last_pass_to_change_a_diverging_program_is_named() {
    let pipeline = fixpoint(vec![&ADD_TO_SUB, &SUB_TO_ADD]);
    let strict = Options { strict: true, ..Options::default() };
    let error = optimizer::run(program("small"), &pipeline, &strict, &mut |_| {}).unwrap_err();
    assert_eq!(error, Error::NotConverged { pass: "sub_to_add".into(), iterations: 50 });
    let lenient = Options { strict: false, max_iterations: 3, ..Options::default() };
    let (_, report) = optimizer::run(program("small"), &pipeline, &lenient, &mut |_| {}).unwrap();
    assert_eq!((report.not_converged, report.iterations, report.changes()), (Some("sub_to_add"), 3, 6));
    // A pipeline without a fixed point does not need to converge.
    let once = Pipeline { to_fixed_point: false, ..pipeline };
    let (_, report) = optimizer::run(program("small"), &once, &strict, &mut |_| {}).unwrap();
    assert_eq!((report.not_converged, report.iterations), (None, 1));
}

#[test]
fn a_pass_that_breaks_the_program_is_named() {
    let pipeline = fixpoint(vec![&ADD_TO_SUB, &BREAKS]);
    let mut shown = Vec::new();
    let options = Options { validate_each: true, dump: Dump::OnFailure, ..Options::default() };
    let error = optimizer::run(program("small"), &pipeline, &options, &mut |snapshot| shown.push(snapshot.pass));
    let Err(Error::PassBroke { pass, before, .. }) = error else { panic!("accepted") };
    assert_eq!((pass.as_str(), shown.as_slice()), ("breaks", &["breaks"][..]));
    // The program is the input of the pass.
    assert!(before.contains("sub 2, 3"), "{before}");
    validate::module(text::parse(&before).unwrap()).unwrap();

    let late = Options { validate_each: false, ..Options::default() };
    let pipeline = Pipeline { to_fixed_point: false, ..pipeline };
    let error = optimizer::run(program("small"), &pipeline, &late, &mut |_| {});
    assert!(matches!(error, Err(Error::PassBroke { pass, .. }) if pass == "breaks"));
}

#[test]
fn speculative_passes_that_raise_the_cost_are_undone() {
    let original = program("small");
    let cost = cost::estimate(&original);
    let (same, report) =
        optimizer::run(original.clone(), &fixpoint(vec![&MORE_EXPENSIVE]), &Options::default(), &mut |_| {}).unwrap();
    assert_eq!(same, original);
    let Verdict::Refused { before, after } = report.metrics[0].verdict else { panic!("{report:?}") };
    assert!(before == cost && after > cost);
    assert_eq!((report.changes(), report.metrics[0].cost), (0, cost));

    let (_, report) = optimizer::run(original, &fixpoint(vec![&CHEAPER]), &Options::default(), &mut |_| {}).unwrap();
    assert_eq!(report.metrics[0].verdict, Verdict::Changed);
    assert_eq!((report.metrics[0].cost, report.changes()), (report.cost_after, 1));
    assert!(report.cost_after < cost);
}

#[test]
fn passes_without_effect_are_skipped_until_the_program_changes() {
    let pipeline = fixpoint(vec![&SUB_TO_ADD, &CHEAPER]);
    let (_, report) = optimizer::run(program("small"), &pipeline, &Options::default(), &mut |_| {}).unwrap();
    let verdicts: Vec<_> =
        report.metrics.iter().map(|metric| (metric.iteration, metric.pass, metric.verdict)).collect();
    assert_eq!(
        verdicts,
        [
            (0, "sub_to_add", Verdict::Unchanged),
            (0, "cheaper", Verdict::Changed),
            (1, "sub_to_add", Verdict::Unchanged),
            (1, "cheaper", Verdict::Unchanged),
        ]
    );
}

#[test]
fn a_hot_program_selects_more_passes() {
    let selected = |hints: &Hints| {
        let request = Request { hints: Some(hints), ..Request::default() };
        let decisions = optimizer::optimize(program("small"), &request).unwrap().decisions;
        decisions.iter().filter(|decision| decision.selected).count()
    };
    let hints = Hints::default();
    let cold = selected(&hints);
    hints.record("small", 200_000, 16);
    assert!(selected(&hints) > cold);
}

// Costs.

#[test]
fn the_roofline_counts_by_frequency() {
    let straight = program("straight");
    assert_eq!(Roofline::of(&straight), Roofline { bytes: 12.0, operations: 3.0 });
    assert_eq!(Roofline::of(&straight).intensity(), Some(0.25));

    let nested = program("counted");
    let roofline = Roofline::of(&nested);
    assert!(roofline.bytes >= 44.0 && roofline.bytes <= 48.0, "{roofline:?}");
    assert!(roofline.operations >= 30.0 && roofline.operations <= 33.0, "{roofline:?}");
    assert_eq!(Roofline::of(&program("nothing")).intensity(), None);
}
