//! Optimized programs mean the same as the originals.

use vyre_foundation::optimizer::{self, Options, Pipeline, Registry, Request};
use vyre_testkit::{changed_meaning, rotating_seeds};

#[test]
fn every_pass_alone_keeps_the_meaning() {
    for &pass in Registry::standard().passes() {
        let pipeline = Pipeline { passes: vec![pass], to_fixed_point: true };
        for seed in rotating_seeds(200) {
            let change = |program| {
                optimizer::run(program, &pipeline, &Options::default(), &mut |_| {}).map(|(program, _)| program)
            };
            if let Some(wrong) = changed_meaning(seed, &change) {
                panic!("{}: {wrong}", pass.metadata.name);
            }
        }
    }
}

#[test]
fn all_passes_together_keep_the_meaning() {
    let registry = Registry::standard();
    let everything = registry.schedule_all();
    for seed in rotating_seeds(2500) {
        let pipeline = Pipeline { passes: everything.clone(), to_fixed_point: true };
        let change =
            |program| optimizer::run(program, &pipeline, &Options::default(), &mut |_| {}).map(|(program, _)| program);
        if let Some(wrong) = changed_meaning(seed, &change) {
            panic!("{wrong}");
        }
    }
}

#[test]
fn the_selected_passes_keep_the_meaning() {
    for seed in rotating_seeds(2500) {
        let change = |program| optimizer::optimize(program, &Request::default()).map(|optimized| optimized.program);
        if let Some(wrong) = changed_meaning(seed, &change) {
            panic!("{wrong}");
        }
    }
}
