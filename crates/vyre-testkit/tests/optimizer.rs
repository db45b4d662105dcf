//! Tests that passes preserve semantics, on generated programs and kernels.

use vyre_foundation::analysis::{Analyses, Analysis, Scope};
use vyre_foundation::ir::Program;
use vyre_foundation::optimizer::{self, Options, Pipeline, Registry, Request};
use vyre_foundation::{text, validate};
use vyre_testkit::{Features, files, generate, output_difference, rotating_seeds, semantic_difference};

/// Passes that do not converge are an error.
fn strict() -> Options {
    Options { strict: true, ..Options::default() }
}

#[test]
fn every_pass_preserves_semantics() {
    for &pass in Registry::standard().passes() {
        let pipeline = Pipeline { passes: vec![pass], to_fixed_point: true };
        for seed in rotating_seeds(200) {
            let change =
                |program| optimizer::run(program, &pipeline, &strict(), &mut |_| {}).map(|(program, _)| program);
            if let Some(wrong) = semantic_difference(seed, &change) {
                panic!("{}: {wrong}", pass.metadata.name);
            }
        }
    }
}

#[test]
fn all_passes_together_preserve_semantics() {
    let registry = Registry::standard();
    let everything = registry.schedule_all();
    for seed in rotating_seeds(2500) {
        let pipeline = Pipeline { passes: everything.clone(), to_fixed_point: true };
        let change = |program| optimizer::run(program, &pipeline, &strict(), &mut |_| {}).map(|(program, _)| program);
        if let Some(wrong) = semantic_difference(seed, &change) {
            panic!("{wrong}");
        }
    }
}

#[test]
fn the_selected_passes_preserve_semantics() {
    for seed in rotating_seeds(2500) {
        let change = |program| {
            optimizer::optimize(program, &Request { options: strict(), ..Request::default() })
                .map(|optimized| optimized.program)
        };
        if let Some(wrong) = semantic_difference(seed, &change) {
            panic!("{wrong}");
        }
    }
}

/// Returns the analyses that a change made stale, by comparing cached results with new ones on everything reachable.
fn stale(program: &Program, known: &mut Analyses) -> Vec<Analysis> {
    let mut fresh = Analyses::default();
    let (structure, uses) =
        ((known.structure(program), fresh.structure(program)), (known.uses(program), fresh.uses(program)));
    let uniformity = (known.uniformity(program), fresh.uniformity(program));
    let ranges = (known.ranges(program), fresh.ranges(program));
    let effects = (known.effects(program), fresh.effects(program));
    let mut stale = Vec::new();
    let mut check = |analysis: Analysis, holds: bool| {
        if !holds && !stale.contains(&analysis) {
            stale.push(analysis);
        }
    };
    for block in program.reachable_blocks() {
        check(Analysis::Structure, structure.0.owner(block) == structure.1.owner(block));
        check(Analysis::Structure, structure.0.depth(block) == structure.1.depth(block));
        for scope in [Scope::Workgroup, Scope::Subgroup] {
            check(
                Analysis::Uniformity,
                uniformity.0.is_converged(block, scope) == uniformity.1.is_converged(block, scope),
            );
        }
        check(Analysis::Effects, effects.0.of_block(block) == effects.1.of_block(block));
        for &id in &program.block(block).insts {
            check(Analysis::Structure, structure.0.block_of(id) == structure.1.block_of(id));
            check(Analysis::Effects, effects.0.inst(id) == effects.1.inst(id));
            check(Analysis::Ranges, ranges.0.decided(id) == ranges.1.decided(id));
            check(Analysis::Ranges, ranges.0.is_in_bounds(id) == ranges.1.is_in_bounds(id));
            check(Analysis::Ranges, ranges.0.is_aligned(id) == ranges.1.is_aligned(id));
            let inst = program.inst(id);
            for &value in inst.operands.iter().chain(&inst.results).chain(&program.block(block).params) {
                check(Analysis::Uses, uses.0.count(value) == uses.1.count(value));
                check(Analysis::Ranges, ranges.0.of_value(value) == ranges.1.of_value(value));
                check(Analysis::Uniformity, uniformity.0.scope(value) == uniformity.1.scope(value));
            }
        }
    }
    stale
}

/// Analyses that a pass does not declare as invalidated are reused by the next pass.
#[test]
fn passes_declare_the_analyses_they_invalidate() {
    let mut changes = 0;
    for seed in rotating_seeds(1000) {
        let mut program = generate(seed, &Features::default()).program;
        for &pass in &Registry::standard().schedule_all() {
            let mut analyses = Analyses::default();
            analyses.structure(&program);
            analyses.uses(&program);
            analyses.uniformity(&program);
            analyses.ranges(&program);
            analyses.effects(&program);
            if !(pass.run)(&mut program, &mut analyses) {
                continue;
            }
            changes += 1;
            let undeclared: Vec<Analysis> = stale(&program, &mut analyses)
                .into_iter()
                .filter(|analysis| !pass.metadata.invalidates.contains(analysis))
                .collect();
            assert!(undeclared.is_empty(), "seed {seed}: {} invalidates {undeclared:?}", pass.metadata.name);
        }
    }
    assert!(changes > 0, "no pass changed any program");
}

/// Real kernels have more patterns that passes match than generated programs.
#[test]
fn passes_preserve_semantics_of_file_tests_and_example_kernels() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
    let mut count = 0;
    for path in ["examples/kernels", "tests/files"].iter().flat_map(|folder| files::in_folder(&root.join(folder))) {
        for case in files::cases(&path).unwrap_or_default() {
            let optimized = optimizer::run(case.program.clone(), &pipeline, &strict(), &mut |_| {});
            let (optimized, _) = optimized.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if let Some(wrong) = output_difference(&case.program, &optimized, case.grid, &case.inputs, case.limits) {
                panic!("{}: {wrong}", path.display());
            }
            count += 1;
        }
    }
    assert!(count > 30, "only {count} cases were run");
}

/// Estimated cost and measures of each example kernel after all passes but one.
fn figures(without: Option<&str>) -> Vec<(String, Vec<u64>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kernels");
    let options = Options { disabled: without.map(str::to_owned).into_iter().collect(), ..strict() };
    let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
    let mut figures = Vec::new();
    for path in files::in_folder(&folder) {
        let module = text::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for program in module.programs {
            let name = program.name().to_owned();
            let program = validate::program(program).unwrap();
            let (_, report) = optimizer::run(program, &pipeline, &options, &mut |_| {}).unwrap();
            figures.push((name, [report.cost_after].into_iter().chain(report.after.values()).collect()));
        }
    }
    figures
}

#[test]
fn every_pass_improves_an_example_kernel() {
    let with_all = figures(None);
    for &pass in Registry::standard().passes() {
        let name = pass.metadata.name;
        let without = figures(Some(name));
        // The cost estimate first, then the measures that do not affect it.
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
