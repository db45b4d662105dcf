//! `soak diff`: differential testing of a device against the oracle, on generated programs.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::Device;
use vyre_driver::backend::Backend;
use vyre_testkit::differential;
use vyre_wgpu::Wgpu;

/// Interval of progress reports.
const PROGRESS: Duration = Duration::from_secs(10);

/// Compare a device with the oracle on generated programs; the first difference is shrunk and saved as a file test
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// Device
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = ["cpu", "wgpu"])]
    device: String,
    /// First seed [default: from the current time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

/// Returns true if no program failed.
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
            println!("no differences in {programs} programs, seeds {first} to {}", first.wrapping_add(programs));
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
        // Bounds that a `Duration` can represent.
        Ok(minutes) if (0.0..1e9).contains(&minutes) => Ok(minutes),
        _ => Err("expected a number of minutes, such as `5`"),
    }
}
