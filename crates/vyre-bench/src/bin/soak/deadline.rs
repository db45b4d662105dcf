//! `soak deadline`: lateness of waits for dispatches that exceed their deadline, in real time. The tests use a
//! simulated clock instead.

use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::backend::Backend;
use vyre_driver::{Device, Error, Grid};
use vyre_foundation::ir::Element;
use vyre_foundation::launch::{Limits, Outcome};
use vyre_foundation::{text, validate};
use vyre_wgpu::Wgpu;

/// A loop with barriers that ends after 2³² trips, which no driver finishes within a deadline of seconds.
const ENDLESS: &str = "program endless workgroup(1024) {
    write y: [u32; 16]
    workgroup t: [u32; 1024]
    %l = local_index
    loop (%k = 0) {
        workgroup_barrier
        %v = load t[%l]
        %w = add %v, 1
        store t[%l], %w
        %n = add %k, 1
        %c = eq %n, 0
        %u = broadcast %c
        if %u {
            break
        }
        continue %n
    }
    store y[0], 1
}";

/// Largest accepted lateness.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Measure how late waits return after the deadline of a dispatch that does not end in time
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of dispatches, each on a new device
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Deadline in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Device
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = ["cpu", "wgpu"])]
    device: String,
}

/// Returns true if every wait ended with the deadline error, at most a second late.
pub(crate) fn run(args: &Args) -> bool {
    let backend: &dyn Backend = if args.device == "wgpu" { &Wgpu } else { &Cpu::default() };
    let deadline = Duration::from_secs_f64(args.seconds);
    (1..=args.rounds).fold(true, |passed, round| match lateness(backend, deadline) {
        Ok((late, outcome)) => {
            println!("round {round}: {outcome:?} {:.3} s after the deadline", late.as_secs_f64());
            passed && late <= TOLERANCE && matches!(outcome, Outcome::DeadlinePassed { .. })
        }
        Err(error) => {
            eprintln!("error[{}]: {error}\n  = help: {}", error.code(), error.help());
            false
        }
    })
}

/// Time from the deadline of a dispatch to the end of the wait for it.
fn lateness(backend: &dyn Backend, deadline: Duration) -> Result<(Duration, Outcome), Error> {
    let module = text::parse(ENDLESS).expect("the program is well-formed");
    let module = validate::module(module).expect("the program is valid");
    let device = Device::open(backend)?;
    let kernel = device.compile(&module.programs[0])?;
    let y = device.allocate(Element::U32, 16)?;
    let limits = Limits { fuel: u64::MAX, deadline: Some(deadline), ..Limits::default() };
    let dispatch = kernel.dispatch(Grid::Groups([3, 1, 1]), [("y", (&y).into())])?.limits(limits);
    let start = Instant::now();
    let reports = device.submit(&[dispatch])?.wait()?;
    Ok((start.elapsed().saturating_sub(deadline), reports[0].outcome.clone()))
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..1e6).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds, such as `1.5`"),
    }
}
