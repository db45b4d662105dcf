//! Executes SPMD form with plain Rust loops. No code is generated: it works on every architecture, and is a second opinion
//! where code is.

mod lanes;
mod run;

use vyre_foundation::ir::ops::Eval;

use crate::spmd::{Form, Step};
use lanes::LaneFn;

pub(crate) use run::run;

/// A program that is ready to be executed.
pub struct Kernel {
    form: Form,
    /// For each step of each sequence, how it is computed, if it is a computation.
    functions: Vec<Vec<Option<Function>>>,
    /// Memory of workers that is not in use.
    idle: std::sync::Mutex<Vec<run::Frame>>,
}

/// How a computation is done.
#[derive(Clone, Copy)]
enum Function {
    /// Over all lanes at once.
    Lanes(LaneFn),
    /// Lane by lane.
    Evaluator(Eval),
}

impl Kernel {
    /// Prepares a program in SPMD form.
    pub fn new(form: Form) -> Kernel {
        let fast = lanes::has_fast_versions();
        let function = |step: &Step| match step {
            Step::Compute { op, class, result, .. } => Some(match lanes::select(*op, *class, result.ty, fast) {
                Some(function) => Function::Lanes(function),
                None => {
                    let evaluator = op.info().evaluator(*class, result.ty);
                    Function::Evaluator(evaluator.expect("a pure operation has an evaluator"))
                }
            }),
            _ => None,
        };
        let functions = form.sequences.iter().map(|steps| steps.iter().map(function).collect()).collect();
        Kernel { form, functions, idle: std::sync::Mutex::new(Vec::new()) }
    }

    /// The form it executes.
    pub fn form(&self) -> &Form {
        &self.form
    }
}
