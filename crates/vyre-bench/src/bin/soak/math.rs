//! Errors of the math library in ULP.
//!
//! Functions of one operand of f16 and f32 are measured at every operand, and functions of two at 2³⁰ random pairs or more, most of which
//! have a finite result. Functions of f64 are measured at 10⁸ random operands or pairs against double-double arithmetic.

use std::convert::identity;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use vyre_foundation::math::{FUNCTIONS, FUNCTIONS_F16, FUNCTIONS_F64, Function, Measured};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these functions
    functions: Vec<String>,
    /// Only functions of this type: f16, f32 or f64
    #[arg(long = "type", value_name = "TYPE")]
    ty: Option<String>,
}

impl Args {
    fn selects<T: Measured>(&self, function: &Function<T>) -> bool {
        let name = function.op.info().name;
        self.ty.as_deref().is_none_or(|ty| ty == T::TYPE.name())
            && (self.functions.is_empty() || self.functions.iter().any(|selected| selected == name))
    }
}

/// Operands per unit of work of a thread.
const CHUNK: usize = 1 << 12;

/// Largest error and its operands.
#[derive(Clone, Copy)]
struct Worst<T> {
    error: f64,
    operands: [T; 2],
    result: T,
}

/// Measures the functions, prints their largest errors, and returns whether all are within their bounds.
pub(crate) fn run(args: &Args) -> bool {
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.op.info().name).collect();
    if let Some(unknown) = args.functions.iter().find(|selected| !names.contains(&selected.as_str())) {
        eprintln!("error: `{unknown}` is not a function of the library\n  = help: it has {}", names.join(", "));
        return false;
    }
    let types = ["f16", "f32", "f64"];
    if let Some(unknown) = args.ty.as_deref().filter(|ty| !types.contains(ty)) {
        eprintln!("error: `{unknown}` is not a type of the library\n  = help: it has {}", types.join(", "));
        return false;
    }
    // All of them are measured, also after an error beyond its bound.
    let reports = [report(args, FUNCTIONS_F16), report(args, FUNCTIONS), report(args, FUNCTIONS_F64)];
    reports.into_iter().all(identity)
}

/// Measures the selected functions of a type.
fn report<T: Measured + Send + Sync>(args: &Args, functions: &[Function<T>]) -> bool {
    let mut passed = true;
    for function in functions.iter().filter(|function| args.selects(function)) {
        let start = Instant::now();
        let Worst { error, operands, result } = measure(function);
        let kept = error <= function.bound;
        passed &= kept;
        let shown = |value: T| format!("{:e} (0x{:x})", value.into(), value.to_bits());
        let operands: Vec<String> = operands[..function.arity].iter().copied().map(shown).collect();
        println!(
            "{} {:<6} {error:.4} ULP of {} at {} -> {}; bound {} {}; {:.0} s",
            T::TYPE,
            function.op.info().name,
            function.seeds(),
            operands.join(", "),
            shown(result),
            function.bound,
            if kept { "kept" } else { "BROKEN" },
            start.elapsed().as_secs_f64()
        );
    }
    passed
}

fn measure<T: Measured + Send + Sync>(function: &Function<T>) -> Worst<T> {
    let total = function.seeds();
    let next = AtomicU64::new(0);
    let none = Worst { error: 0.0, operands: [T::from_bits(0); 2], result: T::from_bits(0) };
    let worst = Mutex::new(none);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                let mut own = none;
                let mut operands = [vec![T::from_bits(0); CHUNK], vec![T::from_bits(0); CHUNK]];
                let mut results = vec![T::from_bits(0); CHUNK];
                loop {
                    let first = next.fetch_add(CHUNK as u64, Ordering::Relaxed);
                    if first >= total {
                        break;
                    }
                    let [x, y] = &mut operands;
                    for ((x, y), seed) in x.iter_mut().zip(y).zip(first..) {
                        [*x, *y] = function.operands(seed);
                    }
                    let [x, y] = &operands;
                    function.evaluate(&[x.as_slice(), y.as_slice()][..function.arity], &mut results);
                    for (lane, &result) in results.iter().enumerate() {
                        let operands = [x[lane], y[lane]];
                        let error = function.error(&operands[..function.arity], result);
                        if error > own.error {
                            own = Worst { error, operands, result };
                        }
                    }
                }
                let mut worst = worst.lock().expect("no thread panics while it holds this");
                if own.error > worst.error {
                    *worst = own;
                }
            });
        }
    });
    worst.into_inner().expect("no thread panics while it holds this")
}
