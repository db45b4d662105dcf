//! The pass manager: validates, times, dumps, bisects and disables passes, and undoes those that raise the cost.

use std::time::Instant;

use super::{Measures, Metric, Pass, Pipeline, Report, Verdict, cost, fold_oob_accesses};
use crate::analysis::{Analyses, Analysis};
use crate::diagnostics::{Diagnostics, Fault};
use crate::ir::Program;
use crate::{Error, Validated, validate};

/// Options of the pass manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the program is validated after every pass. The result is always validated.
    pub validate_each: bool,
    /// Disabled passes, by name.
    pub disabled: Vec<String>,
    /// Stops after this number of changes. Bisection over it finds the first change that breaks a program.
    pub max_changes: Option<usize>,
    /// Limit of rounds of a fixed-point pipeline.
    pub max_iterations: usize,
    /// Whether reaching that limit is an error instead of a note in the report.
    pub strict: bool,
    /// Programs passed to the observer.
    pub dump: Dump,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            validate_each: cfg!(debug_assertions),
            disabled: Vec::new(),
            max_changes: None,
            max_iterations: 50,
            strict: false,
            dump: Dump::None,
        }
    }
}

/// Programs passed to the observer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dump {
    /// None.
    #[default]
    None,
    /// The program after every pass.
    All,
    /// The program after every pass that changed it.
    Changed,
    /// The input of a pass that broke the program.
    OnFailure,
}

/// A program between two passes.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Round of the pipeline, from 0.
    pub iteration: usize,
    /// The pass that ran, or failed.
    pub pass: &'static str,
    /// Whether the pass changed the program.
    pub changed: bool,
    /// The program after the pass; if the pass broke it, before.
    pub program: &'a Program,
}

/// Runs a pipeline on a program.
///
/// # Errors
/// A pass broke the program (the error contains the program before the pass, as text), or, with [`Options::strict`],
/// the passes did not converge.
pub fn run(
    program: Validated<Program>,
    pipeline: &Pipeline,
    options: &Options,
    observer: &mut dyn FnMut(Snapshot<'_>),
) -> Result<(Validated<Program>, Report), Error> {
    let _span = tracing::info_span!("optimize", program = program.name()).entered();
    let mut runner = Runner::new(program, options, observer);
    let rounds = if pipeline.to_fixed_point { options.max_iterations } else { 1 };
    let enabled = |pass: &&&Pass| !options.disabled.iter().any(|name| name == pass.metadata.name);
    let passes: Vec<&Pass> = pipeline.passes.iter().filter(enabled).copied().collect();
    // For each pass, the number of changes at its last execution without effect.
    let mut unchanged_at = vec![None; passes.len()];
    loop {
        let changes = runner.changes;
        for (pass, unchanged_at) in passes.iter().zip(&mut unchanged_at) {
            if options.max_changes.is_some_and(|most| runner.changes >= most) {
                break;
            }
            if *unchanged_at == Some(runner.changes) {
                runner.skip(pass);
            } else if runner.execute(pass)? {
                *unchanged_at = None;
            } else {
                *unchanged_at = Some(runner.changes);
            }
        }
        runner.report.iterations += 1;
        if runner.changes == changes || options.max_changes.is_some_and(|most| runner.changes >= most) {
            break;
        }
        if runner.report.iterations >= rounds {
            if pipeline.to_fixed_point {
                runner.report.not_converged = runner.last_change;
            }
            break;
        }
    }
    if let (true, Some(pass)) = (options.strict, runner.report.not_converged) {
        return Err(Error::NotConverged { pass: pass.into(), iterations: runner.report.iterations });
    }
    runner.finish()
}

/// Validates a program between passes. Accesses at constant indices out of bounds are accepted, because they are folded
/// at the end at the latest.
fn verify_between_passes(program: &Program) -> Option<Diagnostics> {
    let faults = validate::diagnose(program)?;
    let faults = faults.iter().filter(|diagnostic| !matches!(diagnostic.fault, Fault::OutOfBounds { .. }));
    Diagnostics::from_list(faults.cloned().collect())
}

struct Runner<'a> {
    program: Program,
    analyses: Analyses,
    options: &'a Options,
    observer: &'a mut dyn FnMut(Snapshot<'_>),
    report: Report,
    measures: Measures,
    cost: u64,
    changes: usize,
    /// Copy of the program, and the number of changes at that time. Passes without effect share it.
    snapshot: Option<(usize, Program)>,
    last_change: Option<&'static str>,
}

impl<'a> Runner<'a> {
    fn new(program: Validated<Program>, options: &'a Options, observer: &'a mut dyn FnMut(Snapshot<'_>)) -> Runner<'a> {
        let program = program.into_inner();
        let measures = Measures::of(&program);
        let cost_before = cost::estimate(&program);
        Runner {
            program,
            analyses: Analyses::default(),
            options,
            observer,
            report: Report { before: measures, cost_before, ..Report::default() },
            measures,
            cost: cost_before,
            changes: 0,
            snapshot: None,
            last_change: None,
        }
    }

    fn skip(&mut self, pass: &Pass) {
        self.report.metrics.push(Metric {
            iteration: self.report.iterations,
            pass: pass.metadata.name,
            verdict: Verdict::Skipped,
            required: Vec::new(),
            computed: Vec::new(),
            invalidated: Vec::new(),
            runtime_ns: 0,
            before: self.measures,
            after: self.measures,
            cost: self.cost,
        });
    }

    /// Runs a pass. Returns true if the program changed.
    fn execute(&mut self, pass: &Pass) -> Result<bool, Error> {
        let before = self.measures;
        // Kept to undo a speculative pass, or to report the input of a broken one.
        let snapshot = self.snapshot.take().filter(|(changes, _)| *changes == self.changes).map(|(_, program)| program);
        let original = match pass.speculative || self.options.validate_each {
            true => Some(snapshot.unwrap_or_else(|| self.program.clone())),
            false => snapshot,
        };
        let _span = tracing::debug_span!("pass", name = pass.metadata.name).entered();
        let start = Instant::now();
        let mut changed = (pass.run)(&mut self.program, &mut self.analyses);
        let runtime_ns = start.elapsed().as_nanos() as u64;
        let (required, computed) = self.analyses.take_requests();
        let mut verdict = if changed { Verdict::Changed } else { Verdict::Unchanged };
        let mut invalidated = Vec::new();

        if changed {
            if self.options.validate_each
                && let Some(diagnostics) = verify_between_passes(&self.program)
            {
                let original = original.expect("kept, since every pass is validated");
                return Err(self.broken(pass, &original, diagnostics));
            }
            let cost = cost::estimate(&self.program);
            if let (Some(original), true) = (original, pass.speculative && cost > self.cost) {
                self.program = original;
                verdict = Verdict::Refused { before: self.cost, after: cost };
                changed = false;
            } else {
                self.changes += 1;
                self.last_change = Some(pass.metadata.name);
                self.measures = Measures::of(&self.program);
                self.cost = cost;
            }
            // A refused pass may have requested analyses of its result.
            let stale = if changed { pass.metadata.invalidates } else { &Analysis::ALL };
            invalidated = self.analyses.invalidate(stale);
        } else {
            self.snapshot = original.map(|original| (self.changes, original));
        }
        let iteration = self.report.iterations;
        self.report.metrics.push(Metric {
            iteration,
            pass: pass.metadata.name,
            verdict,
            required,
            computed,
            invalidated,
            runtime_ns,
            before,
            after: self.measures,
            cost: self.cost,
        });
        let shown = match self.options.dump {
            Dump::All => true,
            Dump::Changed => changed,
            Dump::None | Dump::OnFailure => false,
        };
        if shown {
            let program = &self.program;
            (self.observer)(Snapshot { iteration, pass: pass.metadata.name, changed, program });
        }
        Ok(changed)
    }

    fn broken(&mut self, pass: &Pass, original: &Program, diagnostics: Diagnostics) -> Error {
        if self.options.dump != Dump::None {
            let (iteration, pass) = (self.report.iterations, pass.metadata.name);
            (self.observer)(Snapshot { iteration, pass, changed: true, program: original });
        }
        Error::PassBroke { pass: pass.metadata.name.into(), before: original.to_string(), diagnostics }
    }

    fn finish(mut self) -> Result<(Validated<Program>, Report), Error> {
        if self.changes > 0 {
            fold_oob_accesses::run(&mut self.program);
        }
        let mut program = validate::program(self.program).map_err(|error| match error {
            Error::Invalid(diagnostics) => Error::PassBroke {
                // `validate_each` finds the pass.
                pass: self.last_change.unwrap_or_default().into(),
                before: String::new(),
                diagnostics,
            },
            other => other,
        })?;
        if self.changes > 0 {
            program.compact();
        }
        self.report.after = Measures::of(&program);
        self.report.cost_after = cost::estimate(&program);
        Ok((program, self.report))
    }
}
