//! Optimized programs mean the same as the originals.

use vyre_foundation::optimizer::{self, Options, Pipeline, Registry, Request};
use vyre_foundation::{text, validate};
use vyre_testkit::{changed_meaning, different, files, rotating_seeds};

/// Passes that do not come to an end are a mistake.
fn strict() -> Options {
    Options { strict: true, ..Options::default() }
}

#[test]
fn every_pass_alone_keeps_the_meaning() {
    for &pass in Registry::standard().passes() {
        let pipeline = Pipeline { passes: vec![pass], to_fixed_point: true };
        for seed in rotating_seeds(200) {
            let change =
                |program| optimizer::run(program, &pipeline, &strict(), &mut |_| {}).map(|(program, _)| program);
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
        let change = |program| optimizer::run(program, &pipeline, &strict(), &mut |_| {}).map(|(program, _)| program);
        if let Some(wrong) = changed_meaning(seed, &change) {
            panic!("{wrong}");
        }
    }
}

#[test]
fn the_selected_passes_keep_the_meaning() {
    for seed in rotating_seeds(2500) {
        let change = |program| {
            optimizer::optimize(program, &Request { options: strict(), ..Request::default() })
                .map(|optimized| optimized.program)
        };
        if let Some(wrong) = changed_meaning(seed, &change) {
            panic!("{wrong}");
        }
    }
}

/// Kernels that people write have more of what passes look for than random ones.
#[test]
fn the_file_tests_and_example_kernels_keep_their_meaning() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
    let mut count = 0;
    for path in ["examples/kernels", "tests/files"].iter().flat_map(|folder| files::in_folder(&root.join(folder))) {
        for case in files::cases(&path).unwrap_or_default() {
            let optimized = optimizer::run(case.program.clone(), &pipeline, &strict(), &mut |_| {});
            let (optimized, _) = optimized.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if let Some(wrong) = different(&case.program, &optimized, case.grid, &case.inputs, case.limits) {
                panic!("{}: {wrong}", path.display());
            }
            count += 1;
        }
    }
    assert!(count > 30, "only {count} cases were run");
}

/// What the whole pipeline costs on every example kernel, less one pass: the estimate, and the nine measures.
fn figures(without: Option<&str>) -> Vec<(String, Vec<u64>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kernels");
    let options = Options { disabled: without.map(str::to_owned).into_iter().collect(), ..strict() };
    let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
    let mut figures = Vec::new();
    for path in files::in_folder(&folder) {
        let module = text::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for program in module.programs {
            let name = program.name.clone();
            let program = validate::program(program).unwrap();
            let (_, report) = optimizer::run(program, &pipeline, &options, &mut |_| {}).unwrap();
            figures.push((name, [report.cost_after].into_iter().chain(report.after.values()).collect()));
        }
    }
    figures
}

#[test]
fn every_pass_makes_an_example_kernel_better() {
    let with_all = figures(None);
    for &pass in Registry::standard().passes() {
        let name = pass.metadata.name;
        let without = figures(Some(name));
        // The estimate is what counts; measures that have nothing to do with it come after.
        let measures = std::iter::once("cost").chain(optimizer::Measures::NAMES);
        let pays = measures.enumerate().find_map(|(measure, of)| {
            without.iter().zip(&with_all).find_map(|((kernel, without), (_, with))| {
                let (without, with) = (without[measure], with[measure]);
                (without > with).then(|| format!("{kernel}: {of} {without} without it, {with} with it"))
            })
        });
        match pays {
            Some(pays) => println!("{name:24} {pays}"),
            None => panic!("{name} makes no example kernel better"),
        }
    }
}
