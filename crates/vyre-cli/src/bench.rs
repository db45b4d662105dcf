//! `vyre bench`: measures compile, upload, launch and download times of a kernel or pipeline.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::devices;
use crate::error::Error;
use crate::job::{self, Statistics, shown};
use crate::progress::Progress;
use crate::reproducer::{JobReproducer, watch};
use crate::run::{device_names, failure};
use crate::stdout::Stdout;

/// Measure compile, upload, launch and download times of a kernel or pipeline
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(flatten)]
    job: job::Input,
    /// Devices to measure, such as cpu,wgpu; `vyre devices` lists the devices
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    device: Vec<String>,
    /// Number of rounds on each device
    #[arg(long, value_name = "N", default_value_t = 20, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
Each round runs once on every device, from the same inputs. Times are medians over all rounds; `best launch` is the minimum. `launch` is
the time from submission until the host observes completion, `on device` the execution time that the device reports. `speed` is the launch
time of the first device ÷ the launch time of this one.

Example:
  vyre bench examples/kernels/saxpy.vyre a=2 x=iota:1000000 y=zeros:1000000 --elements 1000000 --device cpu,wgpu";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let job = args.job.job()?;
    let registry = devices::registry(job.subgroup_size)?;
    let names = device_names(&args.device, None);
    names.iter().try_for_each(|name| registry.check_device(*name))?;
    let progress = Progress::new("measuring", u64::from(args.repeat) * names.len() as u64);
    let watched = JobReproducer { job: &job, registry: &registry, devices: &names, flags: String::new() };
    let measured = watch(
        || watched.reproducer(),
        || {
            let prepared = names.iter().map(|name| job.prepare(&registry, *name));
            let mut prepared = prepared.collect::<Result<Vec<_>, Error>>()?;
            for _ in 0..args.repeat {
                for ready in &mut prepared {
                    let done = ready.round()?;
                    if let Some(failure) = failure(
                        &done.outcome(),
                        job.limits,
                        ready.choice.device.capabilities().max_loop_trips,
                        &job.source,
                    ) {
                        return Err(failure);
                    }
                    progress.step();
                }
            }
            Ok(prepared.iter().map(job::CompiledJob::statistics).collect::<Vec<Statistics>>())
        },
    )?;
    drop(progress);
    devices::warn_of_damage(&registry);
    let speed =
        |statistics: &Statistics| measured[0].launch().as_secs_f64() / statistics.launch().as_secs_f64().max(1e-9);
    if args.json {
        let object = |statistics: &Statistics| {
            let mut object = statistics.object();
            object["speed"] = speed(statistics).into();
            object
        };
        let devices: Vec<Value> = measured.iter().map(object).collect();
        let object = json!({ "program": job.interface.name(), "devices": devices });
        return writeln!(stdout, "{object}").map_err(Error::Stdout);
    }
    let mut show = || {
        let titles = ["compile", "upload", "best launch", "launch", "on device", "download"];
        write!(stdout, "{:<12}", job.interface.name())?;
        titles.iter().try_for_each(|title| write!(stdout, "{title:>13}"))?;
        writeln!(stdout, "{:>9}", "speed")?;
        for statistics in &measured {
            let [upload, launch, on_device, download] = statistics.phases.map(|(_, times)| times);
            write!(stdout, "{:<12}", statistics.device)?;
            let times =
                [statistics.compile, upload.median, launch.best, launch.median, on_device.median, download.median];
            times.into_iter().try_for_each(|time| write!(stdout, "{:>13}", shown(time)))?;
            writeln!(stdout, "{:>9.2}", speed(statistics))?;
        }
        let rounds = args.repeat;
        writeln!(stdout, "{rounds} round{} on each device", if rounds == 1 { "" } else { "s" })
    };
    show().map_err(Error::Stdout)
}
