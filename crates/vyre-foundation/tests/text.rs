//! The text format: what is printed reads back as the same module.

use vyre_foundation::ir::Literal;
use vyre_foundation::{text, validate};

#[test]
fn examples_read_back_as_printed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kernels");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let module = text::parse(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let printed = text::print(&module);
        assert_eq!(text::parse(&printed).as_ref(), Ok(&module), "{}", path.display());
        assert_eq!(text::print(&text::parse(&printed).unwrap()), printed, "{}", path.display());
        validate::module(module).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn literals_keep_their_signs() {
    let literals: [(&str, Literal); 5] = [
        ("-0x10i32", (-16i32).into()),
        ("-7i64", (-7i64).into()),
        ("-0.0", (-0.0f32).into()),
        ("-0.0f64", (-0.0f64).into()),
        ("0xfffffff0", 0xffff_fff0u32.into()),
    ];
    for (text, literal) in literals {
        assert_eq!(text::parse_literal(text), Ok(literal), "{text}");
    }
}

#[test]
fn peak_bytes_count_run_time_objects_with_their_length() {
    let source = "program p workgroup(1) {
        uniform scale: f32
        read x: [f32]
        read z: [f64]
        write y: [u16; 10]
        workgroup tile: [f32; 8]
    }";
    let program = text::parse(source).unwrap().programs.remove(0);
    let known = 4 + 20 + 32;
    assert_eq!(program.estimate_peak_device_bytes(|_| None), known);
    let x = program.memory_named("x").unwrap();
    assert_eq!(program.estimate_peak_device_bytes(|id| (id == x).then_some(100)), known + 400);
    assert_eq!(program.estimate_peak_device_bytes(|_| Some(u64::MAX)), u64::MAX, "it saturates");
}
