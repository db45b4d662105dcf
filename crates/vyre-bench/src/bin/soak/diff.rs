//! `soak diff`: generated programs on a device and on the oracle.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::Device;
use vyre_driver::backend::Backend;
use vyre_testkit::differential;
use vyre_wgpu::Wgpu;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(10);

/// Compare a device with the oracle on generated programs; the first that goes wrong is made small and kept as a file
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to go on
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// The device
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = ["cpu", "wgpu"])]
    device: String,
    /// The first seed; otherwise the time decides
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Says whether nothing went wrong.
pub(crate) fn run(args: &Args) -> bool {
    let backend: &dyn Backend = if args.device == "wgpu" { &Wgpu } else { &Cpu::default() };
    let device = match Device::open(backend) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("error[{}]: {error}\n  = help: {}", error.code(), error.help());
            return false;
        }
    };
    let first = args.seed.unwrap_or_else(differential::seed_of_now);
    println!("{}: seeds from {first} on, for {} minutes", args.device, args.minutes);
    let start = Instant::now();
    let end = Duration::from_secs_f64(args.minutes * 60.0);
    let shown = Mutex::new(start);
    let goes_on = |programs: u64| {
        if let Ok(mut shown) = shown.lock()
            && shown.elapsed() >= PROGRESS
        {
            *shown = Instant::now();
            let elapsed = start.elapsed().as_secs_f64();
            let rate = programs as f64 / elapsed;
            println!("{elapsed:5.0} s  {programs} programs, {rate:.0}/s, at seed {}", first.wrapping_add(programs));
        }
        start.elapsed() < end
    };
    match differential::campaign(backend, &device, first, &goes_on) {
        Ok(programs) => {
            println!("nothing wrong in {programs} programs, seeds {first} to {}", first.wrapping_add(programs));
            true
        }
        Err(finding) => {
            eprintln!("error: {finding}");
            false
        }
    }
}

fn minutes(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        // What a `Duration` holds, with room.
        Ok(minutes) if (0.0..1e9).contains(&minutes) => Ok(minutes),
        _ => Err("it is not a number of minutes"),
    }
}
