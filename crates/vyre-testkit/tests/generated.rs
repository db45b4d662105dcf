//! Properties that hold for every generated program.

use proptest::prelude::*;
use vyre_foundation::ir::Module;
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::{Error, text, validate};
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
