//! Properties that hold for every generated program.

use proptest::prelude::*;
use vyre_foundation::diagnostics::Fault;
use vyre_foundation::ir::Module;
use vyre_foundation::launch::{Grid, Limits, Outcome, bind};
use vyre_foundation::{Error, text, validate};
use vyre_reference::Options;
use vyre_testkit::{Features, generate, oracle, run};

fn explain(error: &Error, printed: &str) -> String {
    match error {
        Error::Text(diagnostics) | Error::Invalid(diagnostics) => diagnostics.render("generated", printed),
        other => other.to_string(),
    }
}

proptest! {
    // The seed in the message is enough to replay a failure.
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_reads_back_as_the_same_module(seed: u64) {
        let module = Module { programs: vec![generate(seed, &Features::default()).program] };
        let printed = text::print(&module);
        let read = text::parse(&printed).map_err(|error| TestCaseError::fail(explain(&error, &printed)))?;
        prop_assert!(read == module, "{printed}");
        prop_assert_eq!(text::print(&read), printed);
    }

    #[test]
    fn the_oracle_runs_every_valid_program_to_its_end(seed: u64) {
        let generated = generate(seed, &Features::default());
        let printed = text::print(&Module { programs: vec![generated.program.clone()] });
        // Reading gives spans, so that a failure shows its place.
        let program = text::parse(&printed).and_then(|mut module| validate::program(module.programs.remove(0)));
        let program = program.map_err(|error| TestCaseError::fail(explain(&error, &printed)))?;
        let mut inputs = generated.inputs;
        let limits = Limits { fuel: 1 << 24, ..Limits::default() };
        let report = run(&oracle(16), &program, Grid::Groups(generated.groups), &mut inputs, limits).unwrap();
        let ended = matches!(report.outcome, Outcome::Completed | Outcome::Trapped { .. });
        prop_assert!(ended, "{:?}\n{printed}", report.outcome);
    }
}

/// What the generator promises: no race, so that every device has the same answer.
#[test]
fn generated_programs_are_free_of_races() {
    for seed in 0..3000 {
        let generated = generate(seed, &Features::default());
        let program = validate::program(generated.program).unwrap();
        let mut inputs = generated.inputs;
        let arguments = bind(&program, &inputs.arguments()).unwrap();
        let (_, findings) =
            vyre_reference::sanitize(&program, generated.groups, &arguments, &mut inputs.buffers, &Options::default())
                .unwrap();
        let race =
            findings.iter().find(|finding| matches!(finding.fault, Fault::Race { .. } | Fault::SameValueRace { .. }));
        assert!(race.is_none(), "seed {seed}: {}", race.unwrap());
    }
}

/// Changes a text in a few places: characters, lines, pieces of other lines.
fn mutated(text: &str, changes: &[(u32, u32, u8)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for &(at, from, kind) in changes {
        if bytes.is_empty() {
            break;
        }
        let (at, from) = (at as usize % bytes.len(), from as usize % bytes.len());
        match kind % 5 {
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
            _ => {
                let end = (at + 1 + from % 30).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A wrong text gives errors, never a panic; and errors can always be shown.
    #[test]
    fn hostile_sourceis_an_error(seed: u64, changes in proptest::collection::vec(any::<(u32, u32, u8)>(), 1..6)) {
        let features = Features { size: 25, ..Features::default() };
        let source = text::print(&Module { programs: vec![generate(seed, &features).program] });
        let source = mutated(&source, &changes);
        match text::parse(&source).and_then(validate::module) {
            Ok(programs) => prop_assert!(programs.len() <= 2),
            Err(error) => prop_assert!(!explain(&error, &source).is_empty()),
        }
    }
}
