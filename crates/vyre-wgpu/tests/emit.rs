//! Emission: SPIR-V validated by `spirv-val`, WGSL that naga parses again, and text or a typed error for the other
//! languages.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use naga::valid::{Capabilities, ValidationFlags, Validator};
use vyre_driver::Error;
use vyre_foundation::ir::{Barrier, Program, Type, TypeSet};
use vyre_foundation::{Validated, text, validate};
use vyre_testkit::{Features, files, generate};
use vyre_wgpu::{Emitted, Target, emit};

use programs::program;

mod programs;

/// Programs of the examples and of the runnable file tests.
fn programs() -> Vec<Validated<Program>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["examples/kernels", "tests/files/run"].map(|folder| root.join(folder));
    let mut programs = Vec::new();
    for path in folders.iter().flat_map(|folder| files::in_folder(folder)) {
        let source = std::fs::read_to_string(&path).expect("a file that was listed");
        let module = text::parse(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let module = validate::module(module).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        programs.extend_from_slice(&module.programs);
    }
    assert!(programs.len() > 20, "the examples are there");
    programs
}

/// Generated programs, which cover the operation table.
fn generated(count: u64) -> Vec<Validated<Program>> {
    let program = |seed| validate::program(generate(seed, &Features::default()).program).expect("valid programs");
    (0..count).map(program).collect()
}

fn text_of(program: &Validated<Program>, target: Target) -> Option<String> {
    match emit(program, target) {
        Ok(Emitted::Text(text)) => Some(text),
        Ok(Emitted::Words(_)) => panic!("{} is text", target.name()),
        Err(Error::Unsupported { .. }) => None,
        Err(error) => panic!("{} as {}: {error}", program.name(), target.name()),
    }
}

/// Returns whether a program uses only features that every language has.
fn is_plain(program: &Program) -> bool {
    let plain = TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32]);
    let mut all = program.memories().values().all(|memory| plain.contains(memory.element.value_type()));
    program.walk(|id, _| {
        let inst = program.inst(id);
        all &= inst.results.iter().chain(&inst.operands).all(|&value| plain.contains(program.ty(value)));
    });
    all
}

#[test]
fn spirv_is_valid() {
    for program in programs().iter().chain(&generated(60)) {
        let words = match emit(program, Target::SpirV) {
            Ok(Emitted::Words(words)) => words,
            other => panic!("{}: {other:?}", program.name()),
        };
        let mut validator = Command::new("spirv-val")
            .args(["--target-env", "vulkan1.1", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spirv-val runs: install the package spirv-tools");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        validator.stdin.take().expect("it is piped").write_all(&bytes).expect("it reads its input");
        let output = validator.wait_with_output().expect("it ends");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}: {}", program.name(), String::from_utf8_lossy(&said));
    }
}

#[test]
fn wgsl_round_trips_through_naga() {
    for program in programs().iter().chain(&generated(60)) {
        let source = text_of(program, Target::Wgsl).expect("naga's WGSL has everything");
        let module = naga::front::wgsl::parse_str(&source)
            .unwrap_or_else(|error| panic!("{}: {}\n{source}", program.name(), error.emit_to_string(&source)));
        let validated = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
        assert!(validated.is_ok(), "{}: {:?}\n{source}", program.name(), validated.err());
    }
}

#[test]
fn other_languages_are_text_or_a_typed_error() {
    for target in [Target::Msl, Target::Hlsl, Target::Glsl] {
        for program in programs().iter().chain(&generated(60)) {
            let text = text_of(program, target);
            assert!(text.is_some() || !is_plain(program), "{} as {}", program.name(), target.name());
        }
    }
}

#[test]
fn unsupported_features_are_typed_errors() {
    let program = program("wide");
    let error = emit(&program, Target::Msl).expect_err("Metal has no f64");
    assert_eq!(error.code(), "D001");
    assert!(matches!(&error, Error::Unsupported { needed, .. } if needed.contains("f64")), "{error}");
}

#[test]
fn targets_are_found_by_name() {
    for target in Target::ALL {
        assert_eq!(Target::from_name(target.name()), Some(target));
    }
    assert_eq!(Target::from_name("ptx"), None);
    // Workgroup barriers are expressible in every language.
    let barrier = |program: &&Validated<Program>| program.contains(program.body(), |op| *op == Barrier::Workgroup);
    let programs = programs();
    let program = programs.iter().find(barrier).expect("examples have barriers");
    assert!(text_of(program, Target::Wgsl).is_some_and(|text| text.contains("workgroupBarrier()")));
}

/// naga's text writers recurse over expressions, so expression depth must not grow with the program.
#[test]
fn a_long_chain_of_operations() {
    let mut source = "program p workgroup(1) {\nread_write x: [u32]\n%0 = load x[0]\n".to_owned();
    for position in 0..50_000 {
        source += &format!("%{} = add %{position}, 1\n", position + 1);
    }
    source += "store x[0], %50000\n}\n";
    let program = validate::module(text::parse(&source).unwrap()).unwrap().programs[0].clone();
    for target in Target::ALL {
        emit(&program, target).unwrap();
    }
    vyre_wgpu::verify(&program).unwrap();
}

/// Program constants can be overridden in a pipeline of the emitted WGSL.
#[test]
fn constants_are_overrides_of_wgsl() {
    let program = program("scaled");
    let text = text_of(&program, Target::Wgsl).expect("WGSL has all of it");
    assert!(text.contains("override scale: f32 = 2.5f;") && text.contains("override start: u32 = 3u;"), "{text}");
    naga::front::wgsl::parse_str(&text).expect("it can be read again");
    assert!(text_of(&program, Target::Msl).is_some());
}
