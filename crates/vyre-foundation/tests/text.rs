//! The text format: printed modules parse to equal modules.

use vyre_foundation::diagnostics::Fault;
use vyre_foundation::ir::Literal;
use vyre_foundation::{text, validate};

#[test]
fn examples_round_trip_through_text() {
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
fn numbers_out_of_range_are_rejected() {
    for text in ["1e39", "-1e39", "1e309f64", "65520f16", "4294967296"] {
        let reason = "it is out of the range of its type";
        assert_eq!(text::parse_literal(text), Err(Fault::BadNumber { text: text.into(), reason }));
    }
}

#[test]
fn peak_bytes_include_objects_of_runtime_length() {
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

/// Messages about invalid programs contain their text.
#[test]
fn invalid_programs_can_be_printed() {
    use vyre_foundation::ir::ops::{Control, Form, Payload, TABLE};
    use vyre_foundation::ir::{Module, Program, Span};

    let mut program = Program::new("p", [1, 1, 1]);
    let body = program.body();
    for row in TABLE.iter().filter(|row| !matches!(row.form, Form::Load | Form::Store)) {
        let payloads = [Payload::None, Payload::Text("text"), Payload::Cases(&[1, 2])];
        let Some(op) = payloads.into_iter().find_map(|payload| row.op(payload)) else { continue };
        for blocks in 0..3 {
            let blocks: Vec<_> = (0..blocks).map(|_| program.add_block()).collect();
            program.push(body, op.clone(), [], &[], blocks, Span::NONE);
        }
    }
    text::print(&Module::from(program));

    let mut deep = Program::new("p", [1, 1, 1]);
    let mut block = deep.body();
    for _ in 0..100_000 {
        let nested = deep.add_block();
        deep.push(block, Control::Region("deep".into()), [], &[], [nested], Span::NONE);
        block = nested;
    }
    let printed = text::print(&Module::from(deep.clone()));
    assert!(printed.contains("nested too deep"), "{printed}");
    assert!(validate::program(deep).is_err());
}

/// Text cannot express a terminator with results, but a program can contain one.
#[test]
fn a_terminator_has_no_results() {
    use vyre_foundation::ir::{Program, Span, Terminator, Type};

    for (op, operands) in [(Terminator::Return, 0), (Terminator::Trap, 1)] {
        let mut program = Program::new("p", [1, 1, 1]);
        let body = program.body();
        let code = program.literal(1u32);
        program.push(body, op, std::iter::repeat_n(code, operands), &[Type::U32], [], Span::NONE);
        assert_eq!(validate::program(program).unwrap_err().code(), "V001");
    }
}
