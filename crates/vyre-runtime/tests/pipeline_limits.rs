//! Pipelines keep the guarantees of direct launches: overlapping arguments are refused, every dispatch is executed, and fuel, deadlines and
//! traps of a dispatch stop no other dispatch.

use std::time::Duration;

use proptest::prelude::*;
use vyre_cpu::Cpu;
use vyre_driver::{Buffer, Device, Oracle};
use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::{Validated, text, validate};
use vyre_runtime::Error;
use vyre_runtime::pipeline::{Argument, BufferRef, Compiled, Join, Pipeline, Plan};

const PROGRAMS: &str = "
program add workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %y = add %x, 1
    store y[%i], %y
}
program trapper workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %t = eq %x, 1
    if %t {
        trap 9
    }
    %y = add %x, 2
    store y[%i], %y
}
program spin workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %r = loop (%n = 0) -> u32 {
        %d = eq %n, %x
        if %d {
            break %n
        }
        %k = add %n, 1
        continue %k
    }
    store y[%i], %r
}
program count_to_literal workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %r = loop (%n = 0) -> u32 {
        %d = ge %n, 100
        if %d {
            break %n
        }
        %k = add %n, 1
        continue %k
    }
    %y = add %x, %r
    store y[%i], %y
}
program count_to_uniform workgroup(64) {
    uniform trips: u32
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %trips = load trips
    %r = loop (%n = 0) -> u32 {
        %d = ge %n, %trips
        if %d {
            break %n
        }
        %k = add %n, 1
        continue %k
    }
    %y = add %x, %r
    store y[%i], %y
}
program count_to_length workgroup(64) {
    read x: [u32]
    read taps: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %taps = length taps
    %r = loop (%n = 0) -> u32 {
        %d = ge %n, %taps
        if %d {
            break %n
        }
        %k = add %n, 1
        continue %k
    }
    %y = add %x, %r
    store y[%i], %y
}
program leave workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %odd = and %x, 1
    %leaves = eq %odd, 1
    if %leaves {
        return
    }
    store y[%i], %x
}
";

fn program(name: &str) -> Validated<Program> {
    let module = validate::module(text::parse(PROGRAMS).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    module.program(name).unwrap().clone()
}

fn devices() -> [Device; 2] {
    [Device::open(&Cpu::default()).unwrap(), Device::open(&Oracle::default()).unwrap()]
}

fn elements(count: u32) -> Grid {
    Grid::Elements([count, 1, 1])
}

fn upload(device: &Device, words: &[u32]) -> Buffer {
    device.upload(Element::U32, bytemuck::cast_slice(words)).unwrap()
}

/// Runs a program directly, without a pipeline.
fn launch(device: &Device, program: &Validated<Program>, x: &Buffer, y: &Buffer) -> Result<(), Error> {
    let kernel = device.compile(program)?;
    device.run(&kernel.dispatch(Grid::elements(x.len()), [("x", x.into()), ("y", y.into())])?)?;
    Ok(())
}

#[test]
fn overlapping_arguments_are_refused_with_the_error_of_a_direct_launch() {
    let add = program("add");
    for device in devices() {
        for start in [1, 16, 63, 64, 100] {
            let all = upload(&device, &(0..200).collect::<Vec<_>>());
            let (x, y) = (all.slice(0..64).unwrap(), all.slice(start..start + 64).unwrap());
            let direct = launch(&device, &add, &x, &y);
            let mut pipeline = Pipeline::new("overlap");
            let (a, b) = (pipeline.attach(&x), pipeline.attach(&y));
            let recorded = pipeline.dispatch(add.clone(), elements(64), &[("x", a.into()), ("y", b.into())]);
            assert_eq!(recorded, direct);
            assert_eq!(recorded.as_ref().err().map(Error::code), (start < 64).then_some("L011"));
            assert_eq!(pipeline.recorded().dispatches.len(), usize::from(start >= 64));
        }
        // The whole allocation with a part of it.
        let all = upload(&device, &[0; 128]);
        let mut pipeline = Pipeline::new("overlap");
        let (whole, part) = (pipeline.attach(&all), pipeline.attach(&all.slice(100..128).unwrap()));
        for (x, y) in [(whole, part), (part, whole)] {
            let refused = pipeline.dispatch(add.clone(), elements(64), &[("x", x.into()), ("y", y.into())]);
            assert_eq!(refused.unwrap_err().code(), "L011");
        }
    }
}

#[test]
fn overlapping_arguments_that_are_only_read_are_accepted() {
    let length = program("count_to_length");
    for device in devices() {
        let (all, y) = (upload(&device, &[7; 96]), upload(&device, &[0; 64]));
        let mut pipeline = Pipeline::new("reads");
        let x = pipeline.attach(&all.slice(0..64).unwrap());
        let taps = pipeline.attach(&all.slice(32..96).unwrap());
        let out = pipeline.attach(&y);
        let arguments = [("x", x.into()), ("taps", taps.into()), ("y", out.into())];
        pipeline.dispatch(length.clone(), elements(64), &arguments).unwrap();
        let plan = pipeline.plan(device.capabilities()).unwrap();
        plan.compile(&device).unwrap().run(Limits::default()).unwrap();
        assert_eq!(y.elements::<u32>().unwrap(), [71; 64]);
    }
}

#[test]
fn plans_that_do_not_execute_every_dispatch_once_are_refused() {
    let [device, _] = devices();
    let mut pipeline = Pipeline::new("three");
    let buffers = chain(&mut pipeline, "trapper", 3, Role::Out, &[]);
    assert_eq!(buffers.len(), 4);
    let plan = pipeline.plan(device.capabilities()).unwrap();
    assert_eq!(plan.groups, [[0], [1], [2]]);
    let refused = |change: fn(&mut Plan)| {
        let mut changed = plan.clone();
        change(&mut changed);
        changed.compile(&device).err().map(|error| error.to_string())
    };
    let says =
        |dispatch: usize, planned: usize| Some(Error::IncompletePlan { dispatch, planned, recorded: 3 }.to_string());
    assert_eq!(refused(|_| ()), None);
    assert_eq!(refused(|plan| drop(plan.groups.pop())), says(2, 0));
    assert_eq!(refused(|plan| plan.groups[0].push(1)), says(1, 2));
    assert_eq!(refused(|plan| plan.groups[2].push(7)), says(3, 1));
    assert_eq!(refused(|plan| plan.launches[0].dispatches.clear()), says(0, 0));
}

/// Records dispatches over parts of one buffer, and returns the accepted ones.
fn over_parts(device: &Device, parts: &[(u32, u32, u32)]) -> (Pipeline, Buffer, Vec<(Buffer, Buffer)>) {
    let all = upload(device, &(0..300).collect::<Vec<_>>());
    let add = program("add");
    let mut pipeline = Pipeline::new("parts");
    let mut accepted = Vec::new();
    for &(x, y, length) in parts {
        let (x, y) = (all.slice(x..x + length).unwrap(), all.slice(y..y + length).unwrap());
        let (a, b) = (pipeline.attach(&x), pipeline.attach(&y));
        match pipeline.dispatch(add.clone(), elements(length), &[("x", a.into()), ("y", b.into())]) {
            Ok(()) => accepted.push((x, y)),
            Err(error) => assert_eq!(error.code(), "L011"),
        }
    }
    (pipeline, all, accepted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn dispatches_over_parts_of_a_buffer_match_direct_launches(
        parts in prop::collection::vec((0u32..200, 0u32..200, 1u32..100), 0..8)
    ) {
        thread_local!(static CPU: Device = Device::open(&Cpu::default()).unwrap());
        let cpu = CPU.with(Device::clone);
        let (pipeline, all, accepted) = over_parts(&cpu, &parts);
        let plan = pipeline.plan(cpu.capabilities()).unwrap();
        let run = plan.compile(&cpu).unwrap().run(Limits::default()).unwrap();
        prop_assert_eq!(run.outcome(), Outcome::Completed);
        let planned = all.elements::<u32>().unwrap();

        all.write(bytemuck::cast_slice(&(0..300).collect::<Vec<u32>>())).unwrap();
        let add = program("add");
        for (x, y) in &accepted {
            launch(&cpu, &add, x, y).unwrap();
        }
        prop_assert_eq!(planned, all.elements::<u32>().unwrap());
    }
}

/// Records a chain of dispatches of a program: each reads a buffer and writes the next one. The first buffer is an input, the last an
/// output, and those in between have the role `between`.
fn chain(
    pipeline: &mut Pipeline,
    name: &str,
    stages: usize,
    between: Role,
    more: &[(&str, Argument)],
) -> Vec<BufferRef> {
    let role = |at: usize| match at {
        0 => Role::In,
        _ if at == stages => Role::Out,
        _ => between,
    };
    let buffers: Vec<BufferRef> =
        (0..=stages).map(|at| pipeline.buffer(format!("b{at}"), role(at), Element::U32, 64)).collect();
    for pair in buffers.windows(2) {
        let arguments: Vec<_> =
            [("x", pair[0].into()), ("y", pair[1].into())].into_iter().chain(more.to_vec()).collect();
        pipeline.dispatch(program(name), elements(64), &arguments).unwrap();
    }
    buffers
}

fn compiled(device: &Device, pipeline: &Pipeline, input: u32) -> Compiled {
    let compiled = pipeline.plan(device.capabilities()).unwrap().compile(device).unwrap();
    compiled.buffer("b0").unwrap().write(bytemuck::cast_slice(&[input; 64])).unwrap();
    compiled
}

fn words(compiled: &Compiled, name: &str) -> Vec<u32> {
    compiled.buffer(name).unwrap().elements().unwrap()
}

#[test]
fn dispatches_with_unbounded_trips_are_not_fused() {
    for device in devices() {
        let mut pipeline = Pipeline::new("spins");
        chain(&mut pipeline, "spin", 3, Role::Out, &[]);
        let compiled = compiled(&device, &pipeline, 100);
        let plan = compiled.plan();
        assert_eq!(plan.launches.len(), 3);
        assert!(
            plan.joins
                .iter()
                .all(|join| matches!(join, Join::Refused(reason) if reason.contains("`spin` have no known bound"))),
            "{:?}",
            plan.joins
        );
        // Each takes 64 × 101 trips.
        let run = compiled.run(Limits { fuel: 64 * 101, ..Limits::default() }).unwrap();
        assert_eq!(run.outcome(), Outcome::Completed);
        assert_eq!(words(&compiled, "b3"), [100; 64]);
        let run = compiled.run(Limits { fuel: 64 * 50, ..Limits::default() }).unwrap();
        assert!(matches!(run.outcome(), Outcome::OutOfFuel { .. }));
    }
}

#[test]
fn results_before_a_dispatch_that_runs_out_of_fuel_are_complete() {
    for device in devices() {
        let mut pipeline = Pipeline::new("spins");
        let ids = ["x", "sum", "spun"].map(|name| {
            let role = if name == "x" { Role::In } else { Role::Out };
            pipeline.buffer(name, role, Element::U32, 10_000)
        });
        for (name, from, to) in [("add", ids[0], ids[1]), ("spin", ids[1], ids[2])] {
            pipeline.dispatch(program(name), elements(10_000), &[("x", from.into()), ("y", to.into())]).unwrap();
        }
        let compiled = pipeline.plan(device.capabilities()).unwrap().compile(&device).unwrap();
        compiled.buffer("x").unwrap().write(bytemuck::cast_slice(&[1u32 << 30; 10_000])).unwrap();
        let run = compiled.run(Limits { fuel: 1000, ..Limits::default() }).unwrap();
        assert!(matches!(run.outcome(), Outcome::OutOfFuel { .. }));
        assert_eq!(words(&compiled, "sum"), [(1 << 30) + 1; 10_000]);
    }
}

#[test]
fn results_before_a_dispatch_that_traps_are_complete() {
    for device in devices() {
        let mut pipeline = Pipeline::new("trap");
        let ids = ["x", "sum", "last"].map(|name| {
            let role = if name == "x" { Role::In } else { Role::Out };
            pipeline.buffer(name, role, Element::U32, 10_000)
        });
        for (name, from, to) in [("add", ids[0], ids[1]), ("trapper", ids[1], ids[2])] {
            pipeline.dispatch(program(name), elements(10_000), &[("x", from.into()), ("y", to.into())]).unwrap();
        }
        let compiled = pipeline.plan(device.capabilities()).unwrap().compile(&device).unwrap();
        assert_eq!(compiled.plan().launches.len(), 1);
        let given: Vec<u32> = (0..10_000).map(|at| at % 100).collect();
        compiled.buffer("x").unwrap().write(bytemuck::cast_slice(&given)).unwrap();
        let run = compiled.run(Limits::default()).unwrap();
        assert!(matches!(run.outcome(), Outcome::Trapped { code: 9, invocation: 0, count: 100, .. }));
        assert_eq!(words(&compiled, "sum"), given.iter().map(|at| at + 1).collect::<Vec<_>>());
    }
}

#[test]
fn dispatches_with_bounded_trips_are_fused_within_their_fuel() {
    let trips = [("trips", Argument::from(100u32))];
    let bounded: [(&str, &[(&str, Argument)]); 3] =
        [("count_to_literal", &[]), ("count_to_uniform", &trips), ("leave", &[])];
    for device in devices() {
        for (name, more) in bounded {
            let mut pipeline = Pipeline::new("counts");
            chain(&mut pipeline, name, 3, Role::Out, more);
            let fused = compiled(&device, &pipeline, 4);
            assert_eq!(fused.plan().launches.len(), 1, "{name}: {:?}", fused.plan().joins);
            // The trips of one dispatch suffice as the limit of each.
            let run = fused.run(Limits { fuel: 64 * 101, ..Limits::default() }).unwrap();
            assert_eq!(run.outcome(), Outcome::Completed, "{name}");
            assert_eq!(words(&fused, "b3"), [if name == "leave" { 4 } else { 304 }; 64]);
            if name == "leave" {
                continue;
            }
            // With one trip less, a dispatch could stop the others.
            let tight = Limits { fuel: 64 * 101 - 1, ..Limits::default() };
            assert_eq!(fused.run(tight).unwrap_err().code(), "D028");
            pipeline.limits(tight);
            let alone = compiled(&device, &pipeline, 4);
            assert_eq!(alone.plan().launches.len(), 3);
            let refused = format!("`{name}` may take 6464 loop trips > fuel 6463");
            assert_eq!(alone.plan().joins, [Join::Refused(refused.clone()), Join::Refused(refused)]);
            alone.run(tight).unwrap();
        }
    }
}

#[test]
fn loops_over_the_length_of_a_buffer_are_bounded() {
    for device in devices() {
        let mut pipeline = Pipeline::new("taps");
        let taps = pipeline.buffer("taps", Role::In, Element::U32, 9);
        chain(&mut pipeline, "count_to_length", 4, Role::Transient, &[("taps", taps.into())]);
        let compiled = compiled(&device, &pipeline, 1);
        assert_eq!(compiled.plan().launches.len(), 1);
        let run = compiled.run(Limits { fuel: 64 * 10, ..Limits::default() }).unwrap();
        assert_eq!((run.outcome(), words(&compiled, "b4")), (Outcome::Completed, vec![37; 64]));
    }
}

#[test]
fn fused_launches_keep_the_loop_trip_limit_of_the_device() {
    let [device, _] = devices();
    let mut pipeline = Pipeline::new("counts");
    chain(&mut pipeline, "count_to_literal", 4, Role::Transient, &[]);
    let mut capabilities = device.capabilities().clone();
    capabilities.max_loop_trips = Some(500);
    // 2 × 101 ≤ 250 < 3 × 101.
    let plan = pipeline.plan(&capabilities).unwrap();
    assert_eq!(plan.launches.iter().map(|launch| launch.dispatches.len()).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn a_deadline_prevents_fusion_that_could_leave_results_incomplete() {
    let limits = Limits { deadline: Some(Duration::from_secs(3600)), ..Limits::default() };
    for device in devices() {
        for (between, launches) in [(Role::Transient, 1), (Role::Out, 3)] {
            let mut pipeline = Pipeline::new("adds");
            chain(&mut pipeline, "add", 3, between, &[]);
            // Without a deadline, all dispatches are fused. A deadline is then refused if a visible result could be incomplete.
            let fused = compiled(&device, &pipeline, 1);
            assert_eq!(fused.plan().launches.len(), 1);
            fused.run(Limits::default()).unwrap();
            assert_eq!(fused.run(limits).err().map(|error| error.code()), (launches > 1).then_some("D028"));

            pipeline.limits(limits);
            let planned = compiled(&device, &pipeline, 1);
            assert_eq!(planned.plan().launches.len(), launches, "{:?}", planned.plan().joins);
            assert_eq!(planned.run(limits).unwrap().outcome(), Outcome::Completed);
            assert_eq!(words(&planned, "b3"), [4; 64]);
        }
    }
}

/// Small and extreme numbers.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..200, Just(u32::MAX), Just(u32::MAX - 1), Just(1 << 31), any::<u32>()]
}

/// Codes of the errors of recording, planning and running.
const CODES: [&str; 19] = [
    "L001", "L002", "L003", "L004", "L005", "L006", "L007", "L008", "L009", "L010", "L011", "L012", "L013", "F006",
    "D006", "D018", "D019", "D028", "D042",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_arguments_give_typed_errors(
        buffers in prop::collection::vec((0usize..4, number()), 1..6),
        dispatches in prop::collection::vec((0usize..7, any::<bool>(), (number(), 0u32..3, 0u32..3), [0usize..8, 0usize..8, 0usize..8]), 0..6),
        budget in prop_oneof![Just(None), any::<u64>().prop_map(Some), (0u64..4096).prop_map(Some)],
        fuel in prop_oneof![Just(0), Just(u64::MAX), 0u64..100_000],
        deadline in prop_oneof![Just(None), Just(Some(Duration::ZERO)), Just(Some(Duration::MAX))],
    ) {
        thread_local!(static CPU: Device = Device::open(&Cpu::default()).unwrap());
        let cpu = CPU.with(Device::clone);
        let programs = validate::module(text::parse(PROGRAMS).unwrap()).unwrap().into_inner().programs;
        let mut pipeline = Pipeline::new("any");
        let mut longest = 0;
        let (mut other, mut known) = (Pipeline::new("other"), Vec::new());
        for (number, &(role, length)) in buffers.iter().enumerate() {
            let role = [Role::In, Role::Out, Role::InOut, Role::Transient][role];
            known.push(pipeline.buffer(format!("b{number}"), role, Element::U32, length));
            longest = longest.max(length);
        }
        let typed = |error: &Error| CODES.contains(&error.code()) || error.code().starts_with('V');
        let mut recorded = 0;
        for (program, by_groups, (x, y, z), bound) in dispatches {
            let grid = [x, y, z];
            let grid = if by_groups { Grid::Groups(grid) } else { Grid::Elements(grid) };
            // Some buffers are foreign, and some names are not objects of the program.
            let foreign = other.buffer("other", Role::InOut, Element::U32, longest);
            let buffer = |at: usize| Argument::Buffer(known.get(bound[at]).copied().unwrap_or(foreign));
            let arguments = [("x", buffer(0)), ("y", buffer(1)), ("taps", buffer(2)), ("trips", 3u32.into())];
            let names = |name: &str| programs[program].memory_named(name).is_some() || bound[2] == 7;
            let arguments: Vec<_> = arguments.into_iter().filter(|(name, _)| names(name)).collect();
            match pipeline.dispatch(programs[program].clone(), grid, &arguments) {
                Ok(()) => recorded += 1,
                Err(error) => prop_assert!(typed(&error), "{error}"),
            }
        }
        if let Some(bytes) = budget {
            pipeline.budget(bytes);
        }
        let limits = Limits { fuel, deadline, ..Limits::default() };
        prop_assert_eq!(pipeline.uses(recorded).is_none(), true);
        for planned in [true, false] {
            if planned {
                pipeline.limits(limits);
            }
            let plan = match pipeline.plan(cpu.capabilities()) {
                Ok(plan) => plan,
                Err(error) => {
                    prop_assert!(typed(&error), "{error}");
                    break;
                }
            };
            // Plans of gigabytes are not run.
            let total = |grid: [u32; 3]| grid.iter().map(|&count| u64::from(count)).product::<u64>();
            if longest > 1 << 20 || plan.launches.iter().any(|launch| total(launch.groups) > 1 << 12) {
                break;
            }
            let compiled = plan.compile(&cpu).unwrap();
            prop_assert_eq!(compiled.buffer("nothing").unwrap_err().code(), "L002");
            if let Err(error) = compiled.run(if planned { limits } else { Limits::default() }) {
                prop_assert!(typed(&error) && !planned, "{error}");
            }
        }
    }
}

#[test]
fn buffers_of_another_pipeline_are_refused() {
    let mut larger = Pipeline::new("larger");
    let foreign = *chain(&mut larger, "add", 3, Role::Out, &[]).last().unwrap();
    let mut pipeline = Pipeline::new("smaller");
    let x = pipeline.buffer("x", Role::In, Element::U32, 4);
    let refused = pipeline.dispatch(program("add"), elements(4), &[("x", x.into()), ("y", foreign.into())]);
    assert_eq!(refused, Err(Error::ForeignBuffer { object: "y".into() }));

    // Also at the same position; buffers of a clone are accepted.
    let mut other = Pipeline::new("other");
    let [_, foreign] = ["x", "y"].map(|name| other.buffer(name, Role::Out, Element::U32, 4));
    let y = pipeline.buffer("y", Role::Out, Element::U32, 4);
    assert_eq!(foreign.id(), y.id());
    let refused = pipeline.dispatch(program("add"), elements(4), &[("x", x.into()), ("y", foreign.into())]);
    assert_eq!(refused, Err(Error::ForeignBuffer { object: "y".into() }));
    let mut clone = pipeline.clone();
    clone.dispatch(program("add"), elements(4), &[("x", x.into()), ("y", y.into())]).unwrap();
}
