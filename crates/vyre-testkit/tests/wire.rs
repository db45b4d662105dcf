//! Wire format tests: lossless, canonical, and robust against malformed input.

use proptest::prelude::*;
use vyre_foundation::ir::{Module, Program, SourceLoc, Span};
use vyre_foundation::{Error, text, validate, wire};
use vyre_testkit::{Features, Random, generate};

fn module(seed: u64, size: u32) -> Module {
    let features = Features { size, ..Features::default() };
    Module {
        programs: vec![generate(seed, &features).program, generate(seed ^ 1, &features).program],
        ..Module::default()
    }
}

/// A generated module with source locations.
fn located(seed: u64, size: u32) -> Module {
    let mut module = text::parse(&text::print(&module(seed, size))).unwrap();
    module.set_file("generated.vyre");
    module
}

fn locations(program: &Program) -> Vec<Option<SourceLoc>> {
    let spans = program.constants().values().map(|constant| constant.span);
    let mut spans: Vec<Span> = spans.chain(program.memories().values().map(|memory| memory.span)).collect();
    program.walk(|id, _| spans.push(program.inst(id).span));
    spans.into_iter().map(|span| program.locate(span)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoding_round_trips(seed: u64) {
        let module = module(seed, 60);
        let bytes = wire::encode(&module);
        let decoded = wire::decode(&bytes).unwrap();
        prop_assert!(decoded == module);
        prop_assert_eq!(wire::encode(&decoded), bytes);
        prop_assert!(validate::module(decoded).is_ok());
    }

    #[test]
    fn locations_are_kept(seed: u64) {
        let module = located(seed, 30);
        let bytes = wire::encode(&module);
        let decoded = wire::decode(&bytes).unwrap();
        prop_assert_eq!(wire::encode(&decoded), bytes);
        for (a, b) in module.programs.iter().zip(&decoded.programs) {
            prop_assert_eq!(locations(a), locations(b));
            prop_assert_eq!(wire::content_hash(a), wire::content_hash(b));
        }
    }

    /// Names of values, source locations and unused arena entries do not affect the hash.
    #[test]
    fn equal_programs_have_equal_hashes(seed: u64) {
        let module = module(seed, 40);
        let read = text::parse(&text::print(&module)).unwrap();
        for (a, b) in module.programs.iter().zip(&read.programs) {
            prop_assert_eq!(wire::content_hash(a), wire::content_hash(b));
        }
        prop_assert_ne!(wire::content_hash(&module.programs[0]), wire::content_hash(&module.programs[1]));
    }
}

/// Prepends a valid header to mutated contents.
fn with_header(contents: &[u8]) -> Vec<u8> {
    let mut file = wire::MAGIC.to_vec();
    file.extend([1, 0, 0, 0]);
    file.extend(blake3::hash(contents).as_bytes());
    file.extend(contents);
    file
}

#[test]
fn mutated_bytes_are_an_error_or_canonical() {
    let mut random = Random(0);
    let of_seed = |seed: u64| if seed.is_multiple_of(3) { located(seed, 20) } else { module(seed, 20) };
    let files: Vec<Vec<u8>> = (0..50).map(|seed| wire::encode(&of_seed(seed))[40..].to_vec()).collect();
    let mut decoded = 0;
    for case in 0..1_000_000u32 {
        let mut contents = files[case as usize % files.len()].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.index(contents.len());
            match random.below(4) {
                0 => contents[at] ^= 1 << random.below(8),
                1 => contents[at] = random.bits() as u8,
                2 => {
                    contents.remove(at);
                }
                _ => contents.insert(at, random.bits() as u8),
            }
        }
        if let Ok(module) = wire::decode(&with_header(&contents)) {
            decoded += 1;
            assert_eq!(wire::encode(&module)[40..], contents, "case {case} has two encodings");
            // It may be invalid, but validation must not panic.
            let _ = validate::module(module);
        }
    }
    assert!(decoded > 1000, "only {decoded} changed files still decode: the changes are too coarse");
}

#[test]
fn header_errors_are_typed() {
    let good = wire::encode(&module(1, 20));
    let reason = |bytes: &[u8]| match wire::decode(bytes) {
        Err(Error::Wire { at, reason }) => (at, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason(b"VYR").0, 3);
    assert_eq!(reason(&[b"WXYZ", &good[4..]].concat()).0, 0);
    let mut newer = good.clone();
    newer[4] = 2;
    assert!(reason(&newer).1.contains("major version 2"));
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(reason(&damaged).1.contains("corrupt"));
    assert!(reason(&good[..good.len() - 1]).1.contains("corrupt"));
    let mut minor = good.clone();
    minor[6] = 9;
    assert!(wire::decode(&minor).is_ok(), "a newer minor version is read");
    let unknown = [&[1, 4][..], b"frob", &[0]].concat();
    assert!(reason(&with_header(&unknown)).1.contains("`frob`"));
    let huge = [0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(reason(&with_header(&huge)).1.contains("do not fit into"));
}
