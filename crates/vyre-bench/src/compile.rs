//! Compilation benchmarks: the wire format and the optimizer passes.
//!
//! The programs are generated, with about 1 000 and 10 000 instructions. All passes run, as for a hot program; a line
//! for each pass shows its share of the time.

use std::hint::black_box;

use vyre_foundation::ir::{Module, Program};
use vyre_foundation::optimizer::{self, Options, Pipeline, Registry};
use vyre_foundation::{Error, Validated, validate, wire};
use vyre_testkit::{Features, generate};

use crate::line::{Line, Report, Statistic};

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    for (instructions, limit_ns) in [(1_000, 3e6), (10_000, 40e6)] {
        let program = program_of(instructions)?;
        let nodes = program.stats().nodes as u64;
        let line = |name| Line {
            suite: "compile",
            name,
            device: "none",
            threads: 1,
            baseline: "limit",
            work: nodes,
            unit: "instructions",
        };
        let pipeline = Pipeline { passes: Registry::standard().schedule_all(), to_fixed_point: true };
        // As in a release build, independent of this build.
        let options = Options { validate_each: false, ..Options::default() };
        let optimize = |program: &Validated<Program>| {
            optimizer::run(program.clone(), &pipeline, &options, &mut |_| {}).map(|(_, report)| report)
        };
        // The first run parses the rules.
        optimize(&program)?;
        let settled = optimize(&program)?;
        let name = format!("optimize_{instructions}");
        report.against_limit(&Line { name: &name, ..line("") }, limit_ns, Statistic::Best, &mut || {
            black_box(optimize(&program).is_ok());
        });
        if instructions == 1_000 {
            shares(report, &line, &settled);
            let module = Module::from((*program).clone());
            let bytes = wire::encode(&module);
            report.against_limit(&line("encode_1000"), 200e3, Statistic::Best, &mut || {
                black_box(wire::encode(&module));
            });
            report.against_limit(&line("decode_1000"), 200e3, Statistic::Best, &mut || {
                black_box(wire::decode(&bytes).is_ok());
            });
        }
    }
    Ok(())
}

/// Prints a line for each pass: its time, with a quarter of the time of all passes as the baseline.
fn shares<'a>(report: &Report, line: &impl Fn(&'a str) -> Line<'a>, run: &optimizer::Report) {
    let total: u64 = run.metrics.iter().map(|metric| metric.runtime_ns).sum();
    for pass in Registry::standard().schedule_all() {
        let name = pass.metadata.name;
        let own = run.metrics.iter().filter(|metric| metric.pass == name).map(|metric| metric.runtime_ns).sum::<u64>();
        report.known(&Line { baseline: "quarter", ..line(name) }, own as f64, total as f64 / 4.0);
    }
}

/// Generated program with the size nearest to `instructions`.
fn program_of(instructions: usize) -> Result<Validated<Program>, Error> {
    nearest(instructions, (0..40).map(|seed| program_from(seed, instructions)))
}

/// Generated program with the optimized size nearest to `instructions`. Optimization removes most of a generated
/// program.
pub(crate) fn optimized_program_of(instructions: usize) -> Result<Validated<Program>, Error> {
    let optimized = (0..20).map(|seed| {
        let program = program_from(seed, 5 * instructions)?;
        Ok(optimizer::optimize(program, &optimizer::Request::default())?.program)
    });
    nearest(instructions, optimized)
}

fn program_from(seed: u64, instructions: usize) -> Result<Validated<Program>, Error> {
    let features = Features { size: instructions as u32, ..Features::default() };
    validate::program(generate(seed, &features).program)
}

fn nearest(
    instructions: usize,
    candidates: impl Iterator<Item = Result<Validated<Program>, Error>>,
) -> Result<Validated<Program>, Error> {
    let candidates = candidates.collect::<Result<Vec<_>, Error>>()?;
    let nearest = candidates.into_iter().min_by_key(|program| program.stats().nodes.abs_diff(instructions));
    Ok(nearest.expect("there are candidates"))
}
