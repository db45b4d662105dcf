//! Behaviour specific to this backend: the loop budget of Mesa's software driver, device functions, bytes that are not
//! whole words, deadlines, and times.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use vyre_driver::{Device, DeviceKind, Grid};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::Exactness;
use vyre_foundation::ir::{Element, Module, Program, Pure, Type, TypeSet};
use vyre_foundation::launch::{self, Limits, Outcome};
use vyre_foundation::{Validated, text, validate, wire};
use vyre_testkit::{Features, differential, generate, oracle, run};
use vyre_wgpu::Wgpu;

use programs::program;
use shared::shared;

mod programs;
mod shared;

fn open() -> Device {
    Device::open(&Wgpu).unwrap_or_else(|error| panic!("{error}: {}", error.help()))
}

/// Nested loops with these trip counts.
fn nested(outer: u32, inner: u32) -> Validated<Program> {
    let mut program = program("nested").into_inner();
    program.specialize("INNER", inner.into()).expect("a constant of it");
    let uniform = program.memory_named("outer").expect("an object of it");
    program.memory_mut(uniform).default = Some(outer.into());
    validate::program(program).expect("it is valid still")
}

fn oracle_of(device: &Device) -> Device {
    oracle(device.capabilities().subgroup_size.unwrap_or(16))
}

/// Compares bytes and outcome with the oracle.
fn check(program: &Validated<Program>, groups: [u32; 3]) {
    let device = open();
    let (mut expected, mut actual) = (Inputs::default(), Inputs::default());
    let grid = launch::Grid::Groups(groups);
    let right = run(&oracle_of(&device), program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
    let report = run(&device, program, grid, &mut actual, Limits::default()).expect("the device runs it");
    assert_eq!((report.outcome, report.trace), (right.outcome, right.trace));
    for memory in program.memories().values() {
        assert_eq!(actual.contents(&memory.name), expected.contents(&memory.name), "{}", memory.name);
    }
}

#[test]
fn long_loops_are_exact_or_an_error() {
    // More than the 65 535 trips after which Mesa's software driver ends all loops of a subgroup, or just below.
    check(&nested(10, 10), [1, 1, 1]);
    check(&nested(300, 300), [3, 1, 1]);
    check(&nested(20_000, 1), [1, 1, 1]);
    // Beyond the budget of a device that counts: an error, never silently wrong.
    let device = open();
    let program = nested(3000, 3000);
    let (mut expected, mut actual) = (Inputs::default(), Inputs::default());
    let grid = launch::Grid::Groups([1, 1, 1]);
    run(&oracle_of(&device), &program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
    let report = run(&device, &program, grid, &mut actual, Limits::default()).expect("the device runs it");
    match report.outcome {
        Outcome::Completed => assert_eq!(actual.contents("out"), expected.contents("out")),
        Outcome::OutOfFuel { span } => {
            assert!(device.capabilities().max_loop_trips.is_some());
            assert!(span.end > span.start, "the loop is named");
        }
        other => panic!("{other:?}"),
    }
}

/// Subgroups of a workgroup with different trip counts keep different counts of fuel, as the driver does. Lanes end,
/// whole subgroups end, and workgroup-uniform loops are in between.
#[test]
fn divergent_subgroup_loops_are_exact_or_an_error() {
    let device = open();
    for (ends, trips, together) in
        [("uneven", 20, 10), ("uneven", 2000, 50), ("uneven_ends", 20, 10), ("uneven_ends", 2000, 50)]
    {
        check(&uneven(ends, trips, together), [2, 1, 1]);
    }
    for name in ["uneven", "uneven_ends"] {
        for trips in [2_800, 3_100, 3_400, 3_700, 4_000, 8_000] {
            let program = uneven(name, trips, 300);
            let (mut expected, mut actual) = (Inputs::default(), Inputs::default());
            let grid = launch::Grid::Groups([1, 1, 1]);
            run(&oracle_of(&device), &program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
            let report = run(&device, &program, grid, &mut actual, Limits::default()).expect("the device runs it");
            println!("{name}, {trips} trips: {:?}", report.outcome);
            match report.outcome {
                Outcome::Completed => assert_eq!(actual.contents("out"), expected.contents("out"), "{name}, {trips}"),
                Outcome::OutOfFuel { .. } => assert!(device.capabilities().max_loop_trips.is_some()),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Loops whose trip count depends on the subgroup id, and workgroup-uniform loops.
fn uneven(name: &str, trips: u32, together: u32) -> Validated<Program> {
    let mut program = program(name).into_inner();
    program.specialize("TRIPS", trips.into()).expect("a constant of it");
    program.specialize("TOGETHER", together.into()).expect("a constant of it");
    validate::program(program).expect("it is valid still")
}

/// `fast` programs use the math functions of the device: results are close to the oracle's.
#[test]
fn fast_programs_use_device_functions() {
    let device = open();
    let program = program("approximate");
    let module = Module::from((*program).clone());
    assert_eq!(text::parse(&text::print(&module)).expect("text that was printed"), module);
    assert_eq!(wire::decode(&wire::encode(&module)).expect("bytes that were encoded"), module);
    let (mut expected, mut actual) = (Inputs::default(), Inputs::default());
    let grid = launch::Grid::Groups([16, 1, 1]);
    run(&oracle_of(&device), &program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
    run(&device, &program, grid, &mut actual, Limits::default()).expect("the device runs it");
    let floats = |inputs: &Inputs| -> Vec<f32> {
        let bytes = inputs.contents("out").expect("it is bound").chunks_exact(4);
        bytes.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    };
    for (index, (a, b)) in floats(&expected).into_iter().zip(floats(&actual)).enumerate() {
        assert!((a - b).abs() <= 1e-3 * a.abs(), "out[{index}] is {b}, should be about {a}");
    }
}

#[test]
fn sub_word_writes_preserve_neighbours() {
    let device = open();
    let buffer = device.upload(Element::U8, &[9; 16]).expect("a few bytes");
    buffer.slice(5..8).expect("inside").write(&[1, 2, 3]).expect("writes");
    buffer.slice(13..14).expect("inside").write(&[4]).expect("writes");
    let found = buffer.read().expect("reads");
    assert_eq!(found, [9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 9, 9, 9, 4, 9, 9]);
    assert_eq!(buffer.slice(6..14).expect("inside").read().expect("reads"), found[6..14]);
}

#[test]
fn deadlines_end_infinite_loops() {
    let device = open();
    let kernel = device.compile(&program("endless")).expect("compiles");
    let limits = Limits { deadline: Some(Duration::from_millis(5)), ..Limits::default() };
    let dispatch = kernel.dispatch(Grid::Groups([1000, 1, 1]), []).expect("it fits").limits(limits);
    let report = device.run(&dispatch).expect("a report");
    assert!(
        matches!(report.outcome, Outcome::DeadlinePassed { .. } | Outcome::OutOfFuel { .. }),
        "{:?}",
        report.outcome
    );
}

/// A launch dispatched in ranges because of its deadline has the ids, lines and traps of a single one.
#[test]
fn ranged_launches_match_single_launches() {
    let device = open();
    let program = program("in_ranges");
    let limits = Limits { deadline: Some(Duration::from_secs(3600)), ..Limits::default() };
    for groups in [[20_000, 1, 1], [100, 20, 10], [3, 1, 5000]] {
        let grid = launch::Grid::Groups(groups);
        let mut expected = Inputs::default();
        expected.notation(&program, "bound", "3").expect("a notation");
        let mut actual = expected.clone();
        let right = run(&oracle_of(&device), &program, grid, &mut expected, limits).expect("the oracle runs it");
        let report = run(&device, &program, grid, &mut actual, limits).expect("the device runs it");
        assert!(matches!(right.outcome, Outcome::Trapped { .. }) && right.trace.len() > 4, "{:?}", right.outcome);
        assert_eq!((report.outcome, report.trace), (right.outcome, right.trace), "{groups:?}");
        assert!(actual.contents("out") == expected.contents("out"), "{groups:?}");
    }
}

/// Errors that the application causes on its own device reach its handler.
#[test]
fn shared_devices_keep_the_applications_error_handler() {
    let shared = shared(|_| {});
    let errors = Arc::new(AtomicUsize::new(0));
    let seen = errors.clone();
    shared.device.on_uncaptured_error(Arc::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    let device = Device::open(&shared).expect("a device");
    let buffer = device.upload(Element::U8, &[7; 16]).expect("a few bytes");
    assert_eq!(buffer.read().expect("reads"), [7; 16]);
    assert_eq!(errors.load(Ordering::Relaxed), 0, "vyre's own errors are its own");
    let _ = shared.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: shared.device.limits().max_buffer_size + 16,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    assert_eq!(errors.load(Ordering::Relaxed), 1);
}

#[test]
fn software_adapters_report_their_kind() {
    let device = open();
    let capabilities = device.capabilities();
    assert!(matches!(capabilities.kind, DeviceKind::SoftwareGpu | DeviceKind::Gpu));
    assert!(!capabilities.name.is_empty());
}

/// On a device with exact f32, every float of a program without `fma` equals the oracle's, bit by bit.
#[test]
fn exact_devices_match_the_oracle_bit_by_bit() {
    let device = open();
    let capabilities = device.capabilities();
    let floats = capabilities.floats;
    if !(floats.exact_f32 && floats.subnormals && floats.infinities_and_nans) {
        // No guarantee to check; the conformance suite compares by classes.
        return;
    }
    let types = TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32]);
    let features = Features { types, subgroups: capabilities.subgroup_size.is_some(), ..Features::default() };
    let mut compared = 0;
    for seed in 0..200 {
        let generated = generate(seed, &features);
        let fuses = generated.program.contains(generated.program.body(), |op| *op == Pure::Fma);
        if fuses && !floats.fused_fma {
            continue;
        }
        compared += 1;
        let program = validate::program(generated.program).expect("generated programs are valid");
        let grid = launch::Grid::Groups(generated.groups);
        let wrong = differential::find_difference(&device, &program, grid, &generated.inputs, Exactness::Exact);
        assert_eq!(wrong, None, "seed {seed}");
    }
    assert!(compared > 50, "only {compared} programs were compared");
}

/// A launch takes no longer than the host has waited for it.
#[test]
fn launch_times_are_bounded_by_host_time() {
    let device = open();
    let program = program("spin");
    let kernel = device.compile(&program).expect("compiles");
    let out = device.allocate(Element::U32, 64 * 256).expect("there is memory");
    let run = |trips: u32| {
        let arguments = [("trips", trips.into()), ("out", (&out).into())];
        let dispatch = kernel.dispatch(Grid::Groups([256, 1, 1]), arguments).expect("it fits");
        let begun = std::time::Instant::now();
        let reports = device.submit(&[dispatch]).expect("it can be launched").wait().expect("it ends");
        (reports[0].time, begun.elapsed())
    };
    run(1);
    for trips in [1, 20_000] {
        let (time, waited) = run(trips);
        assert!(!time.is_zero() && time <= waited, "{time:?} of {waited:?}");
    }
}
