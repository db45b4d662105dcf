//! What is particular to this backend: the loop budget of Mesa's software driver, functions of the device, bytes that are not
//! whole words, deadlines, and times.

use std::time::Duration;

use vyre_driver::{Device, DeviceKind, Dispatch, Grid};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Element, Literal, Module, Op, Program};
use vyre_foundation::launch::{self, Limits, Outcome};
use vyre_foundation::{Validated, text, validate, wire};
use vyre_testkit::{Features, generate, oracle, run};
use vyre_wgpu::Wgpu;

fn open() -> Device {
    Device::open(&Wgpu).unwrap_or_else(|error| panic!("{error}: {}", error.help()))
}

fn read(source: &str) -> Validated<Program> {
    let module = text::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    validate::program(module.programs.into_iter().next().expect("a program")).unwrap_or_else(|error| panic!("{error}"))
}

fn oracle_of(device: &Device) -> Device {
    oracle(device.capabilities().subgroup_size.unwrap_or(16))
}

/// Runs a program here and on the oracle, and asks for the same bytes and the same outcome.
fn check(source: &str, groups: [u32; 3]) {
    let device = open();
    let program = read(source);
    let (mut expected, mut actual) = (Inputs::default(), Inputs::default());
    let grid = launch::Grid::Groups(groups);
    let right = run(&oracle_of(&device), &program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
    let report = run(&device, &program, grid, &mut actual, Limits::default()).expect("the device runs it");
    assert_eq!(report.outcome, right.outcome, "{source}");
    assert_eq!(report.trace, right.trace, "{source}");
    for memory in program.memory.values() {
        assert_eq!(actual.contents(&memory.name), expected.contents(&memory.name), "{}\n{source}", memory.name);
    }
}

#[test]
fn loops_are_right_or_an_error_whatever_the_driver_does() {
    // A loop in a loop, both arms of a divergent branch, and loops one after the other: each is more than the 65 535 trips
    // after which Mesa's software driver ends all loops of a subgroup, or just below.
    let nested = |outer: u32, inner: u32| {
        format!(
            "program p workgroup(8) {{
    write out: [u32; 8]
    uniform outer: u32 = {outer}
    %i = local_index
    %outer = load outer
    %odd = and %i, 1
    %is_odd = ne %odd, 0
    %r = if %is_odd -> u32 {{
        %a = loop (%k = 0, %sum = %i) -> u32 {{
            %done = eq %k, %outer
            if %done {{
                break %sum
            }}
            %t = loop (%j = 0, %acc = %sum) -> u32 {{
                %end = ge %j, {inner}
                if %end {{
                    break %acc
                }}
                %mixed = mul %acc, 1664525
                %nacc = add %mixed, %j
                %nj = add %j, 1
                continue %nj, %nacc
            }}
            %next = add %k, 1
            continue %next, %t
        }}
        yield %a
    }} else {{
        %b = loop (%k = 0, %sum = %i) -> u32 {{
            %done = eq %k, %outer
            if %done {{
                break %sum
            }}
            %mixed = mul %sum, 22695477
            %nsum = add %mixed, %k
            %next = add %k, 1
            continue %next, %nsum
        }}
        yield %b
    }}
    store out[%i], %r
}}"
        )
    };
    check(&nested(10, 10), [1, 1, 1]);
    check(&nested(300, 300), [3, 1, 1]);
    check(&nested(20_000, 1), [1, 1, 1]);
    // Too much for a device that counts; never silently wrong.
    let device = open();
    let program = read(&nested(3000, 3000));
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

/// A program that is `fast` has the floats of the device: near those of the oracle, and not slower.
#[test]
fn fast_programs_take_the_functions_of_the_device() {
    let source = "program p workgroup(64) fast {
    write out: [f32; 1024]
    %i = global_index
    %f = cast %i to f32
    %x = div %f, 512.0
    %e = exp %x
    %s = sin %x
    %c = fma %s, %e, 1.0
    %p = pow %x, 1.5
    %h = hypot %p, %c
    store out[%i], %h
}";
    let device = open();
    let program = read(source);
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
fn parts_of_words_are_written_alone() {
    let device = open();
    let buffer = device.upload(Element::U8, &[9; 16]).expect("a few bytes");
    buffer.slice(5..8).expect("inside").write(&[1, 2, 3]).expect("writes");
    buffer.slice(13..14).expect("inside").write(&[4]).expect("writes");
    let found = buffer.read().expect("reads");
    assert_eq!(found, [9, 9, 9, 9, 9, 1, 2, 3, 9, 9, 9, 9, 9, 4, 9, 9]);
    assert_eq!(buffer.slice(6..14).expect("inside").read().expect("reads"), found[6..14]);
}

#[test]
fn a_deadline_ends_what_never_ends() {
    let device = open();
    let kernel = device.compile(&read("program p workgroup(64) {\nloop {\n}\n}")).expect("compiles");
    let limits = Limits { deadline: Some(Duration::from_millis(5)), ..Limits::default() };
    let grid = Grid::groups([1000, 1, 1]);
    let report = device.run(&Dispatch { kernel: &kernel, grid, arguments: vec![], limits }).expect("a report");
    assert!(
        matches!(report.outcome, Outcome::DeadlinePassed { .. } | Outcome::OutOfFuel { .. }),
        "{:?}",
        report.outcome
    );
}

#[test]
fn software_adapters_say_what_they_are() {
    let device = open();
    let capabilities = device.capabilities();
    assert!(matches!(capabilities.kind, DeviceKind::SoftwareGpu | DeviceKind::Gpu));
    assert!(!capabilities.name.is_empty());
}

/// On a device whose f32 is exact, every float of a program that does not fuse is the oracle's, bit by bit.
#[test]
fn floats_are_exact_where_the_device_says_so() {
    let device = open();
    let capabilities = device.capabilities();
    let floats = capabilities.floats;
    if !(floats.exact_f32 && floats.subnormals && floats.infinities_and_nans) {
        // Nothing was promised; the conformance suite compares by classes.
        return;
    }
    let oracle = oracle_of(&device);
    let types = vyre_foundation::ir::TypeSet::of(&[
        vyre_foundation::ir::Type::Bool,
        vyre_foundation::ir::Type::I32,
        vyre_foundation::ir::Type::U32,
        vyre_foundation::ir::Type::F32,
    ]);
    let features = Features { types, subgroups: capabilities.subgroup_size.is_some(), ..Features::default() };
    let mut compared = 0;
    for seed in 0..200 {
        let generated = generate(seed, &features);
        let mut fuses = false;
        generated.program.walk(|id, _| fuses |= generated.program.insts[id].op == Op::Fma);
        if fuses && !floats.fused_fma {
            continue;
        }
        compared += 1;
        let program = validate::program(generated.program).expect("generated programs are valid");
        let grid = launch::Grid::Groups(generated.groups);
        let (mut expected, mut actual) = (generated.inputs.clone(), generated.inputs);
        run(&oracle, &program, grid, &mut expected, Limits::default()).expect("the oracle runs it");
        run(&device, &program, grid, &mut actual, Limits::default()).expect("the device runs it");
        for memory in program.memory.values() {
            let (Some(a), Some(b)) = (expected.contents(&memory.name), actual.contents(&memory.name)) else { continue };
            let (size, ty) = (memory.element.size(), memory.element.value_type());
            for (index, (a, b)) in a.chunks_exact(size).zip(b.chunks_exact(size)).enumerate() {
                let (a, b) = (memory.element.read(a), memory.element.read(b));
                let (a, b) = (Literal { ty, bits: a }, Literal { ty, bits: b });
                // All NaNs are equal, and are shown alike.
                let same = a == b || (a.plain() == "NaN" && b.plain() == "NaN");
                assert!(same, "seed {seed}: {}[{index}] is {b}, should be {a}", memory.name);
            }
        }
    }
    assert!(compared > 50, "only {compared} programs were compared");
}

/// No launch takes longer than the host has waited for it.
#[test]
fn times_are_those_of_the_device() {
    let device = open();
    let program = read(
        "program spin workgroup(64) {
            uniform trips: u32
            write out: [u32]
            %i = global_index
            %n = load trips
            %last = loop (%k = 0, %x = %i) -> u32 {
                %done = ge %k, %n
                if %done {
                    break %x
                }
                %y = mul %x, 1664525
                %z = xor %y, %k
                %next = add %k, 1
                continue %next, %z
            }
            store out[%i], %last
        }",
    );
    let kernel = device.compile(&program).expect("compiles");
    let out = device.allocate(Element::U32, 64 * 256).expect("there is memory");
    let run = |trips: u32| {
        let arguments = vec![("trips", trips.into()), ("out", (&out).into())];
        let dispatch =
            Dispatch { kernel: &kernel, grid: Grid::groups([256, 1, 1]), arguments, limits: Limits::default() };
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
