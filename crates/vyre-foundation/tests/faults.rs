//! The fault table: every example violates its rule, every code has a file test, and malformed arenas are reported.

use std::path::Path;

use vyre_foundation::diagnostics::{Diagnostics, FAULTS, Fault, Malformation};
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::ir::{
    BlockId, Element, InstId, Literal, MemId, MemOperand, Op, PerInvocation, Program, SourceMap, Span, Type, ValueId,
};
use vyre_foundation::{Error, text, validate};

fn faults_of(source: &str) -> Option<Diagnostics> {
    match text::parse(source).and_then(validate::module) {
        Ok(_) => None,
        Err(Error::Text(diagnostics) | Error::Invalid(diagnostics)) => Some(diagnostics),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_example_violates_only_its_rule() {
    for info in FAULTS {
        let Some(example) = info.example else { continue };
        let diagnostics = faults_of(example).unwrap_or_else(|| panic!("{} is not reported", info.code));
        let codes: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.fault.code()).collect();
        assert_eq!(codes, [info.code], "{}", diagnostics.render(&SourceMap::of_text(info.code, example)));
    }
}

#[test]
fn codes_are_distinct_and_in_order() {
    assert!(FAULTS.is_sorted_by(|a, b| a.code < b.code));
}

/// Rules that no test file can violate: V001 is about links inside the IR, P015 about texts above 4 GiB.
const WITHOUT_FILE: [&str; 2] = ["P015", "V001"];

#[test]
fn every_code_has_a_file_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/files");
    for info in FAULTS.iter().filter(|info| !WITHOUT_FILE.contains(&info.code)) {
        let folder = root.join(match &info.code[..1] {
            "P" => "text",
            "S" => "sanitize",
            _ => "validate",
        });
        let prefix = info.code.to_lowercase();
        let mut names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.any(|name| name.to_string_lossy().starts_with(&prefix)), "{} has no file test", info.code);
    }
}

/// A valid program with a branch and a loop.
fn program() -> Program {
    let source = "program p workgroup(4) {
        uniform u: u32
        write out: [u32; 4]
        %i = local_index
        %r = if true -> u32 {
            yield %i
        } else {
            yield 1
        }
        %s = loop (%k = 0) -> u32 {
            break %k
        }
        store out[%i], %r
    }";
    text::parse(source).unwrap().programs.remove(0)
}

#[track_caller]
fn malformed(expected: Malformation, change: impl FnOnce(&mut Program)) {
    let mut program = program();
    change(&mut program);
    let Err(Error::Invalid(diagnostics)) = validate::program(program) else { panic!("accepted") };
    let found = diagnostics
        .iter()
        .any(|diagnostic| matches!(diagnostic.fault, Fault::Malformed { what, .. } if what == expected));
    assert!(found, "{diagnostics}");
}

/// Finds the instruction of the body with this operation.
fn find(program: &Program, name: &str) -> InstId {
    let insts = &program.block(program.body()).insts;
    *insts.iter().find(|&&inst| program.inst(inst).op.info().name == name).unwrap()
}

#[test]
fn malformed_arenas_are_reported() {
    use Malformation as M;
    malformed(M::DanglingId, |p| {
        let inst = find(p, "store");
        p.inst_mut(inst).operands[0] = ValueId::from_index(1000);
    });
    malformed(M::DanglingId, |p| {
        let inst = find(p, "store");
        p.inst_mut(inst).op = Op::Store(MemOperand::plain(MemId::from_index(1000), Element::U32));
    });
    malformed(M::DanglingId, |p| {
        let inst = find(p, "if");
        p.inst_mut(inst).blocks[0] = BlockId::from_index(1000);
    });
    malformed(M::DanglingId, |p| p.block_mut(p.body()).insts.insert(0, InstId::from_index(1000)));
    malformed(M::SharedBlock, |p| {
        let inst = find(p, "if");
        p.inst_mut(inst).blocks[1] = p.inst(inst).blocks[0];
    });
    // A block that contains itself.
    malformed(M::SharedBlock, |p| {
        let inst = find(p, "if");
        p.inst_mut(inst).blocks[0] = p.body();
    });
    malformed(M::SharedInstruction, |p| {
        let inst = find(p, "local_index");
        p.block_mut(p.body()).insts.insert(0, inst);
    });
    malformed(M::DetachedValue, |p| {
        let (index, branch) = (find(p, "local_index"), find(p, "if"));
        p.inst_mut(branch).results[0] = p.inst(index).results[0];
    });
    malformed(M::WrongResults, |p| {
        let index = p.make(PerInvocation::LocalIndex, [], &[Type::F32], [], Span::NONE);
        p.block_mut(p.body()).insts.insert(0, index);
    });
    malformed(M::WrongBlocks, |p| {
        let inst = find(p, "if");
        p.inst_mut(inst).blocks.pop();
    });
    malformed(M::WrongParams, |p| {
        let inst = find(p, "loop");
        p.inst_mut(inst).operands.clear();
    });
    malformed(M::WrongParams, |p| {
        let inst = find(p, "if");
        p.add_param(p.inst(inst).blocks[0], Type::U32);
    });
    malformed(M::Unterminated, |p| {
        p.block_mut(p.body()).insts.pop();
    });
    malformed(M::BadLiteral, |p| {
        p.literal(Literal { ty: Type::U32, bits: 1 << 40 });
    });
    malformed(M::BadUniform, |p| {
        let id = p.memory_named("u").unwrap();
        p.memory_mut(id).length = Some(2);
    });
}
