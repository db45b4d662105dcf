//! Properties of all generated programs.

use proptest::prelude::*;
use vyre_foundation::diagnostics::Fault;
use vyre_foundation::ir::{Module, SourceMap};
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::{Error, text, validate};
use vyre_reference::Options;
use vyre_testkit::{Features, Random, generate, oracle, run};

fn explain(error: &Error, printed: &str) -> String {
    match error {
        Error::Text(diagnostics) | Error::Invalid(diagnostics) => {
            diagnostics.render(&SourceMap::of_text("generated", printed))
        }
        other => other.to_string(),
    }
}

proptest! {
    // The seed in the message suffices to reproduce a failure.
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn printing_round_trips(seed: u64) {
        let module = Module::from(generate(seed, &Features::default()).program);
        let printed = text::print(&module);
        let read = text::parse(&printed).map_err(|error| TestCaseError::fail(explain(&error, &printed)))?;
        prop_assert!(read == module, "{printed}");
        prop_assert_eq!(text::print(&read), printed);
    }

    #[test]
    fn oracle_completes_every_generated_program(seed: u64) {
        let generated = generate(seed, &Features::default());
        let printed = generated.program.to_string();
        // Parsing adds spans, so that a failure shows its location.
        let program = text::parse(&printed).and_then(|mut module| validate::program(module.programs.remove(0)));
        let program = program.map_err(|error| TestCaseError::fail(explain(&error, &printed)))?;
        let mut inputs = generated.inputs;
        let limits = Limits { fuel: 1 << 24, ..Limits::default() };
        let report = run(&oracle(16), &program, Grid::Groups(generated.groups), &mut inputs, limits).unwrap();
        let ended = matches!(report.outcome, Outcome::Completed | Outcome::Trapped { .. });
        prop_assert!(ended, "{:?}\n{printed}", report.outcome);
    }
}

/// Generated programs are race-free, so that all devices have the same result.
#[test]
fn generated_programs_are_free_of_races() {
    for seed in 0..3000 {
        let generated = generate(seed, &Features::default());
        let program = validate::program(generated.program).unwrap();
        let mut inputs = generated.inputs;
        let arguments = inputs.bind(&program).unwrap();
        let (_, findings) =
            vyre_reference::sanitize(&program, generated.groups, &arguments, &mut inputs.buffers, &Options::default())
                .unwrap();
        let race =
            findings.iter().find(|finding| matches!(finding.fault, Fault::Race { .. } | Fault::SameValueRace { .. }));
        assert!(race.is_none(), "seed {seed}: {}", race.unwrap());
    }
}

/// Start positions of tokens in a text.
fn token_starts(text: &[u8]) -> Vec<usize> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (0..text.len()).filter(|&at| at == 0 || !(is_word(text[at]) && is_word(text[at - 1]))).collect()
}

/// Mutates a text in a few places: characters, fragments, and tokens replaced by others of the text.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(5) {
        if bytes.is_empty() {
            break;
        }
        let (at, from) = (random.index(bytes.len()), random.index(bytes.len()));
        match random.below(6) {
            0 => bytes[at] = b" \n%@{}[]()=,.;\"-0aefzu_\\"[from % 24],
            1 => {
                bytes.remove(at);
            }
            2 => bytes.insert(at, bytes[from]),
            3 => {
                let end = (from + 20).min(bytes.len());
                let piece: Vec<u8> = bytes[from..end].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => {
                let end = (at + 1 + from % 30).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => {
                let mut starts = token_starts(&bytes);
                let (old, new) = (random.index(starts.len()), random.index(starts.len()));
                starts.push(bytes.len());
                let token = bytes[starts[new]..starts[new + 1]].to_vec();
                bytes.splice(starts[old]..starts[old + 1], token);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Invalid text yields errors, never a panic; errors can always be rendered.
#[test]
fn hostile_source_is_an_error() {
    let features = Features { size: 12, ..Features::default() };
    let print = |seed| generate(seed, &features).program.to_string();
    let sources: Vec<String> = (0..100).map(print).collect();
    let mut random = Random(0x1234_5678_9abc_def0);
    let mut valid = 0;
    for case in 0..100_000 {
        let source = mutated(&sources[case % sources.len()], &mut random);
        match text::parse(&source).and_then(validate::module) {
            Ok(_) => valid += 1,
            // Rendering takes longer than detection.
            Err(error) if case % 16 == 0 => assert!(!explain(&error, &source).is_empty(), "case {case}"),
            Err(_) => {}
        }
    }
    assert!(valid > 1000, "only {valid} changed texts are still valid: the changes are too coarse");
}
