//! Every rule with an example is broken by it, and only that rule.

use vyre_foundation::diagnostics::{Diagnostics, FAULTS};
use vyre_foundation::{Error, text, validate};

fn faults_of(source: &str) -> Option<Diagnostics> {
    match text::parse(source).and_then(validate::module) {
        Ok(_) => None,
        Err(Error::Text(diagnostics) | Error::Invalid(diagnostics)) => Some(diagnostics),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_example_breaks_its_rule_and_no_other() {
    for info in FAULTS {
        let Some(example) = info.example else { continue };
        let diagnostics = faults_of(example).unwrap_or_else(|| panic!("{} is not reported", info.code));
        let codes: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.fault.code()).collect();
        assert_eq!(codes, [info.code], "{}", diagnostics.render(info.code, example));
    }
}

#[test]
fn codes_are_distinct_and_in_order() {
    assert!(FAULTS.is_sorted_by(|a, b| a.code < b.code));
}
