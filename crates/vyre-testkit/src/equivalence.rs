//! Semantic equivalence of transformed programs, by execution on the oracle.

use vyre_driver::Floats;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::{Error, Validated, validate};

use crate::differential::{Tolerance, difference, limits, same_report, seed_of_now};
use crate::{Features, generate, oracle, run, shrink};

/// Seeds that differ between runs, unless `VYRE_SEED` sets the first; prints them.
pub fn rotating_seeds(count: u64) -> std::ops::Range<u64> {
    let given = std::env::var("VYRE_SEED").ok().and_then(|value| value.parse().ok());
    let first = given.unwrap_or_else(seed_of_now);
    println!("seeds {first} to {}", first + count);
    first..first + count
}

/// Transforms the generated program of a seed and compares both on the oracle. If they differ, or the transformation
/// fails, returns the difference with a reduced program.
pub fn semantic_difference(
    seed: u64,
    change: &dyn Fn(Validated<Program>) -> Result<Validated<Program>, Error>,
) -> Option<String> {
    let generated = generate(seed, &Features::default());
    let program = validate::program(generated.program).expect("generated programs are valid");
    let grid = Grid::Groups(generated.groups);
    let wrong = |program: &Validated<Program>, limits: Limits| match change(program.clone()) {
        Ok(changed) => output_difference(program, &changed, grid, &generated.inputs.only(program), limits),
        Err(error) => Some(error.to_string()),
    };
    let first = wrong(&program, limits())?;
    // The loop of a reduced program may be infinite, because its exit was removed.
    let few_trips = Limits { fuel: 1 << 18, ..limits() };
    let small = shrink(&program, &mut |candidate| wrong(candidate, few_trips).is_some());
    let shown = wrong(&small, few_trips).unwrap_or(first);
    Some(format!("seed {seed}: {shown}\n{}", *small))
}

/// First difference between a transformed program and the original on the oracle. Runs that do not complete are not
/// compared.
///
/// # Panics
/// The inputs do not fit.
pub fn output_difference(
    original: &Validated<Program>,
    changed: &Validated<Program>,
    grid: Grid,
    inputs: &Inputs,
    limits: Limits,
) -> Option<String> {
    let (mut expected, mut actual) = (inputs.clone(), inputs.clone());
    let oracle = oracle(16);
    let right = run(&oracle, original, grid, &mut expected, limits).expect("the oracle runs everything");
    if !matches!(right.outcome, Outcome::Completed | Outcome::Trapped { .. }) {
        return None;
    }
    let report = run(&oracle, changed, grid, &mut actual, limits).expect("the oracle runs everything");
    if !same_report(&right, &report) {
        return Some(format!("{report:?}, expected {right:?}"));
    }
    difference(original, &expected, &actual, Tolerance::Bits, Floats::EXACT)
}
