//! Portable executor: runs SPMD form with plain Rust loops. Generates no code, so it works on every architecture, and
//! checks the code generator where there is one.

mod lanes;
mod run;

use vyre_foundation::ir::ops::Eval;

use crate::spmd::{Form, Step};
use lanes::LaneFn;

pub(crate) use run::run;

/// A program prepared for execution.
pub struct Kernel {
    form: Form,
    /// Implementation of each `Compute` step, by sequence and position.
    functions: Vec<Vec<Option<Function>>>,
    /// Free list of worker frames.
    idle: std::sync::Mutex<Vec<run::Frame>>,
}

/// Implementation of a computation.
#[derive(Clone, Copy)]
enum Function {
    /// All lanes in one call.
    Lanes(LaneFn),
    /// Lane by lane, with the evaluator of the op table.
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

    /// The form that the kernel executes.
    pub fn form(&self) -> &Form {
        &self.form
    }
}
