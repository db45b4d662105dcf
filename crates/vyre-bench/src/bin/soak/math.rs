//! How far the results of the math library are from the true ones.
//!
//! A function of one operand is measured at all 2³² of them; one of two at 2³⁰ pairs, which are random but chosen so that the
//! function has something to do.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use vyre_foundation::math::{FUNCTIONS, Function};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these functions
    functions: Vec<String>,
}

/// Operands that a thread does at a time.
const CHUNK: usize = 1 << 12;
const PAIRS: u64 = 1 << 30;

/// The operands with the largest error.
#[derive(Clone, Copy)]
struct Worst {
    error: f64,
    operands: [f32; 2],
    result: f32,
}

/// Measures, prints, and says whether all functions keep their bounds.
pub(crate) fn run(args: &Args) -> bool {
    let name = |function: &Function| function.op.info().name;
    if let Some(unknown) = args.functions.iter().find(|asked| !FUNCTIONS.iter().any(|known| name(known) == **asked)) {
        let names: Vec<&str> = FUNCTIONS.iter().map(name).collect();
        eprintln!("error: `{unknown}` is not a function of the library\n  = help: it has {}", names.join(", "));
        return false;
    }
    let mut passed = true;
    for function in
        FUNCTIONS.iter().filter(|f| args.functions.is_empty() || args.functions.iter().any(|n| n == name(f)))
    {
        let start = Instant::now();
        let Worst { error, operands, result } = measure(function);
        let kept = error <= function.bound;
        passed &= kept;
        let operands: Vec<String> =
            operands[..function.arity].iter().map(|x| format!("{x:e} (0x{:08x})", x.to_bits())).collect();
        println!(
            "{:<6} {error:.4} ULP at {} -> {result:e}; bound {} {}; {:.0} s",
            name(function),
            operands.join(", "),
            function.bound,
            if kept { "kept" } else { "BROKEN" },
            start.elapsed().as_secs_f64()
        );
    }
    passed
}

fn measure(function: &Function) -> Worst {
    let total = if function.arity == 1 { 1 << 32 } else { PAIRS };
    let next = AtomicU64::new(0);
    let worst = Mutex::new(Worst { error: 0.0, operands: [0.0; 2], result: 0.0 });
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                let mut own = Worst { error: 0.0, operands: [0.0; 2], result: 0.0 };
                let mut operands = [vec![0.0; CHUNK], vec![0.0; CHUNK]];
                let mut results = vec![0.0; CHUNK];
                loop {
                    let first = next.fetch_add(CHUNK as u64, Ordering::Relaxed);
                    if first >= total {
                        break;
                    }
                    let [x, y] = &mut operands;
                    for ((x, y), position) in x.iter_mut().zip(y).zip(first..) {
                        [*x, *y] = match function.arity {
                            1 => [f32::from_bits(position as u32), 0.0],
                            _ => Function::sample(position),
                        };
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
