//! The generator reaches everything that can be reached.

use vyre_testkit::{Coverage, Features, generate};

#[test]
fn twenty_thousand_programs_use_everything_everywhere() {
    let mut coverage = Coverage::default();
    for seed in 0..20_000 {
        coverage.record(&generate(seed, &Features::default()).program);
    }
    println!("{coverage}");
    let missing: Vec<String> = coverage.missing().iter().map(ToString::to_string).collect();
    assert!(missing.is_empty(), "not reached:\n{}", missing.join("\n"));
}
