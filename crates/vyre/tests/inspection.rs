//! Kernels as text, WGSL, machine code and pages, and errors as printed by `main`.

use std::error::Error as _;
use std::path::PathBuf;

use serde_json::Value;
use vyre::{Device, Error, Number, build, emit, explain, kernel};
use vyre_foundation::ir::{Module, Program};
use vyre_foundation::optimizer::{Options, Pipeline, Registry, run};
use vyre_foundation::{text, validate, wire};

#[kernel(workgroup = 256)]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        y[i] += a * x[i];
    }
}

#[kernel(inline)]
fn polynomial<T: Number>(at: T, slope: T) -> T {
    let squared = at * at;
    squared * slope
}

#[kernel(workgroup = (8, 8))]
#[rustfmt::skip]
fn names<T: Number, const COUNT: usize>(scale: T, x: &[T], y: &mut [T]) {
    #[shared]
    let tile: [T; 64];
    let i = global_index();
    let value = x[i];
    // A shadowed name, and a second name of a value.
    let value = value + scale; let same = value;
    tile[local_index()] = same;
    workgroup_barrier();
    let mut sum = tile[0];
    for k in 1..COUNT {
        sum = sum + tile[k];
    }
    let (low, mut high) = (x[i + 1], x[i + 2]);
    let größe = low * high;
    if low < high {
        high = polynomial(größe, low);
    }
    for _ in 0..2 {
        y[i] = sum;
    }
    y[i] = high;
}

const SAXPY: &str = "\
program saxpy workgroup(256) {
    uniform a: f32
    read x: [f32]
    read_write y: [f32]

    %i = global_index
    %0 = length y
    %1 = lt %i, %0
    if %1 {
        %a = load a
        %2 = load x[%i]
        %3 = mul %a, %2
        %4 = load y[%i]
        %5 = add %4, %3
        store y[%i], %5
    }
}
";

const NAMES: &str = "\
program names workgroup(8, 8) {
    const COUNT: u32 = 4
    uniform scale: f32
    read x: [f32]
    write y: [f32]
    workgroup tile: [f32; 64]

    %i = global_index
    %value = load x[%i]
    %scale = load scale
    %value.1 = add %value, %scale
    %0 = local_index
    store tile[%0], %value.1
    workgroup_barrier
    %sum = load tile[0]
    %sum.2 = loop (%k = 1, %sum.1 = %sum) -> f32 {
        %1 = ge %k, COUNT
        if %1 {
            break %sum.1
        }
        %2 = load tile[%k]
        %sum.3 = add %sum.1, %2
        %3 = add %k, 1
        continue %3, %sum.3
    }
    %4 = add %i, 1
    %low = load x[%4]
    %5 = add %i, 2
    %high = load x[%5]
    %at = mul %low, %high
    %6 = lt %low, %high
    %high.1 = if %6 -> f32 {
        %squared = mul %at, %at
        %high.2 = mul %squared, %low
        yield %high.2
    } else {
        yield %high
    }
    loop (%7 = 0i32) {
        %8 = ge %7, 2i32
        if %8 {
            break
        }
        store y[%i], %sum.2
        %9 = add %7, 1i32
        continue %9
    }
    store y[%i], %high.1
}
";

#[kernel(workgroup = 64)]
fn traps(y: &mut [u32]) {
    if y[0] == 0 {
        trap(7);
    }
}

fn doubled() -> Program {
    let double = build::kernel("double", [64, 1, 1], |k| {
        let y = k.read_write::<f32>("y");
        let i = k.global_index();
        y.store(i, y.load(i) * 2.0f32);
    });
    double.unwrap()
}

#[test]
fn the_text_has_the_names_of_the_source() {
    assert_eq!(saxpy::text().unwrap(), SAXPY);
    assert_eq!(saxpy::program().unwrap().to_string(), SAXPY);
    assert_eq!(names::<f32, 4>::text().unwrap(), NAMES);
}

#[test]
fn names_survive_text_and_passes_and_do_not_affect_equality() {
    let program = names::<f32, 4>::program().unwrap();
    let module = Module::from(program.clone());
    let printed = module.to_string();
    assert_eq!(printed, program.to_string());
    let read = text::parse(&printed).unwrap();
    assert_eq!(read, module);
    assert_eq!(read.to_string(), printed);

    let mut nameless = program.clone();
    nameless.strip_value_names();
    assert_eq!(nameless, program);
    assert_ne!(nameless.to_string(), printed);
    assert_eq!(wire::content_hash(&nameless), wire::content_hash(&program));
    assert_eq!(wire::encode(&Module::from(nameless)), wire::encode(&module));

    let pipeline = Pipeline::parse("fixpoint(simplify,value_numbering,eliminate_dead_code)", Registry::standard());
    let program = validate::program(program).unwrap();
    let (optimized, _) = run(program, &pipeline.unwrap(), &Options::default(), &mut |_| {}).unwrap();
    let optimized = optimized.to_string();
    for name in ["%i = ", "%value = ", "(%k = ", "%low = "] {
        assert!(optimized.contains(name), "{name}\n{optimized}");
    }
}

#[test]
fn kernels_and_programs_are_emitted_as_wgsl() {
    for (wgsl, parts) in [
        (saxpy::wgsl(), ["@compute @workgroup_size(256, 1, 1)", "var<storage, read_write> y: array<f32>"]),
        (names::<u32, 3>::wgsl(), ["@compute @workgroup_size(8, 8, 1)", "var<workgroup> tile: array<u32, 64>"]),
        (emit::wgsl(&doubled()), ["@compute @workgroup_size(64, 1, 1)", "var<storage, read_write> y: array<f32>"]),
    ] {
        if cfg!(feature = "wgpu") {
            let wgsl = wgsl.unwrap();
            parts.iter().for_each(|part| assert!(wgsl.contains(part), "{part}\n{wgsl}"));
        } else {
            assert_eq!(wgsl, Err(Error::MissingFeature { what: "WGSL", feature: "wgpu" }));
        }
    }
}

#[test]
fn kernels_and_programs_are_emitted_as_machine_code() {
    let has_code = cfg!(all(feature = "cpu", target_arch = "x86_64", unix)) && is_avx2();
    for (asm, instruction) in
        [(saxpy::asm(), "vmulps"), (names::<f32, 3>::asm(), "vaddps"), (emit::asm(&doubled()), "vmulps")]
    {
        match asm {
            Ok(asm) => assert!(has_code && asm.contains(instruction), "{asm}"),
            Err(Error::NoMachineCode { .. }) => assert!(cfg!(feature = "cpu") && !has_code),
            Err(error) => assert_eq!((error.code(), cfg!(feature = "cpu")), ("K008", false)),
        }
    }
}

fn is_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A file in cargo's temporary folder.
fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The data of a page.
fn data(page: &str) -> Value {
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    let (_, data) = page.split_once("id=\"data\">").expect("a page has data");
    let (data, _) = data.split_once("</script>").expect("the data has an end");
    serde_json::from_str(data).expect("the data is JSON")
}

#[test]
fn the_page_of_a_kernel_has_its_source_and_its_passes() {
    let path = file("names.html");
    names::<f32, 4>::explain_html(&path).unwrap();
    let data = data(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(data["title"], "names");
    let [program] = &data["programs"].as_array().unwrap()[..] else { panic!("{data}") };
    let source = program["source"].as_str().unwrap();
    assert!(
        source.starts_with("fn names<T: Number, const COUNT: usize>(scale: T, x: &[T], y: &mut [T]) {\n"),
        "{source}"
    );
    assert!(source.ends_with("    y[i] = high;\n}"), "{source}");
    assert!(program["file"].as_str().unwrap().ends_with("inspection.rs"));

    // Lines of the program refer to source lines.
    let source: Vec<&str> = source.lines().collect();
    let lines = program["lines"].as_array().unwrap().iter().zip(program["places"].as_array().unwrap());
    let mut found = Vec::new();
    for (line, place) in lines {
        let line = line.as_str().unwrap().trim();
        if let Some(place) = place.as_u64().filter(|place| *place > 0) {
            found.push((line, source[place as usize - 1].trim()));
        }
    }
    assert!(found.contains(&("%i = global_index", "let i = global_index();")), "{found:?}");
    let of_line = |made: &str| found.iter().find(|(line, _)| line.starts_with(made)).map(|(_, source)| *source);
    assert_eq!(of_line("%value.1 = add"), Some("let value = value + scale; let same = value;"));
    assert_eq!(of_line("%sum.3 = add"), Some("sum = sum + tile[k];"));

    let steps = program["steps"].as_array().unwrap();
    assert_eq!(steps[0]["pass"], "as written");
    assert!(steps.iter().any(|step| step["verdict"] == "changed" && step["change"].is_array()), "{steps:?}");
    let emitted: Vec<&Value> = program["emitted"].as_array().unwrap().iter().map(|code| &code["name"]).collect();
    let wgsl = cfg!(feature = "wgpu").then_some("WGSL");
    let code = cfg!(feature = "cpu").then_some("machine code");
    assert_eq!(emitted, wgsl.into_iter().chain(code).collect::<Vec<_>>());
}

#[test]
fn the_page_of_a_program_has_its_text() {
    let data = data(&explain::html(&doubled()).unwrap());
    assert_eq!(data["programs"][0]["source"], doubled().to_string());
    assert_eq!(data["programs"][0]["places"].as_array().unwrap().iter().filter(|place| **place != 0).count(), 4);
}

#[test]
fn unwritable_pages_are_errors() {
    let path = file("no such folder").join("page.html");
    let error = saxpy::explain_html(&path).unwrap_err();
    assert_eq!(error.code(), "K010");
    assert!(matches!(&error, Error::Write { path: given, .. } if *given == path), "{error}");
}

#[test]
fn invalid_programs_are_errors() {
    // Not every invocation reaches the barrier.
    let program = build::kernel("diverges", [64, 1, 1], |k| {
        k.if_(k.local_index().lt(3), || k.workgroup_barrier());
    });
    let program = program.unwrap();
    for error in [emit::wgsl(&program), emit::asm(&program), explain::html(&program)].map(Result::unwrap_err) {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[test]
fn errors_of_main_are_readable() {
    let device = Device::named("reference").unwrap();
    let mut y = device.zeros(1).unwrap();
    let error = traps(&mut y).run(&device, 1).unwrap_err();
    let Error::Trapped { location: Some(location), .. } = &error else { panic!("{error}") };
    let expected = format!(
        "[K002] {location}: `traps` trapped with code 7 in invocation 0 (64 in all)\nhelp: the kernel defines this code: check the condition that leads to this `trap`"
    );
    assert_eq!(format!("{error:?}"), expected);
    assert!(error.source().is_none());
    let boxed: Box<dyn std::error::Error> = error.into();
    assert_eq!(format!("{boxed:?}"), expected);

    let Err(error) = Device::named("abacus") else { panic!("there is no such device") };
    let debug = format!("{error:?}");
    assert!(debug.starts_with("[D002] there is no device named `abacus`\nhelp: available devices: "), "{debug}");
}
