//! The generator reaches all possible cells.

use vyre_testkit::{Coverage, Features, generate};

#[test]
fn generator_covers_every_cell() {
    let mut coverage = Coverage::default();
    for seed in 0..40_000 {
        coverage.record(&generate(seed, &Features::default()).program);
    }
    println!("{coverage}");
    let missing: Vec<String> = coverage.missing().iter().map(ToString::to_string).collect();
    assert!(missing.is_empty(), "not reached:\n{}", missing.join("\n"));
}
