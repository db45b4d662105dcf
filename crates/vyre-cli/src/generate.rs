//! `vyre generate`: random valid programs.

use vyre_foundation::run_line::count;
use vyre_testkit::{Features, generate};

use crate::devices;
use crate::error::Error;
use crate::print::Output;
use crate::progress::Progress;
use crate::stdout::Stdout;

/// Print a random program that is valid, terminates, and has the same results on all devices of equal subgroup size
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Seed of the program
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    seed: u64,
    /// Approximate number of instructions, up to 100000
    #[arg(long, value_name = "N", default_value_t = Features::default().size, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(..=100_000))]
    size: u32,
    /// Use only types and operations that this device supports
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Leave out prints, traps and early returns
    #[arg(long)]
    no_effects: bool,
    #[command(flatten)]
    output: Output,
}

const EXAMPLE: &str = "\
The last line, `//@ run …`, has bindings and grid for --replay:
  vyre generate --seed 7 --out seven.vyre
  vyre run seven.vyre --replay --compare-devices cpu,reference";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let target = args.output.target()?;
    let features = match &args.device {
        Some(name) => Features::of(devices::registry(None)?.open(name)?.capabilities()),
        None => Features::default(),
    };
    let features = Features { size: args.size, effects: !args.no_effects, ..features };
    let progress = Progress::new("generating", 0);
    let source = generate(args.seed, &features).source();
    drop(progress);
    args.output.save(source.as_bytes(), target.as_ref(), stdout)
}
