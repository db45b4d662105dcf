//! Jobs of `vyre run` and `vyre bench`: a kernel or pipeline with its inputs, grid and limits.
//!
//! The arguments describe a [`Job`], which is compiled for a device and executed in rounds of upload, launch and download.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vyre_driver::{Buffer, Choice, Dispatch, Grid, Registry};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{MemId, Program};
use vyre_foundation::launch::{Arguments, Limits, Outcome, Report, Slice};
use vyre_foundation::run_line::{assignment, count, subgroup_size};
use vyre_runtime::pipeline::{Compiled, Pipeline};

use crate::binding::{Case, GridArgs};
use crate::config::{Settings, seconds};
use crate::error::Error;
use crate::pipeline;
use crate::reproducer;
use crate::selection::Selection;
use crate::source::{Parsed, Source};

/// Arguments that describe a job.
#[derive(clap::Args)]
pub(crate) struct Input {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Value of a uniform, or initial contents of a storage object; results of known length default to zeros
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    bindings: Vec<(String, String)>,
    #[command(flatten)]
    grid: GridArgs,
    /// Take bindings, grid and limits from the first `//@ run` line of the file
    #[arg(long, conflicts_with_all = ["bindings", "elements", "grid", "set", "program"])]
    replay: bool,
    /// Maximum number of loop trips of all invocations together
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    fuel: Option<u64>,
    /// Deadline of the kernel
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    timeout: Option<Duration>,
    /// Memory budget for all buffers of a pipeline together
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    budget: Option<u64>,
    /// Lanes of a subgroup, on the device `reference`: a power of two up to 128
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = subgroup_size)]
    subgroup_size: Option<u32>,
}

/// Parses a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "it is not an integer number of bytes")
}

/// A kernel or pipeline with inputs, grid and limits.
pub(crate) struct Job {
    pub(crate) source: Source,
    /// The kernel, or a program whose objects are the external buffers of the pipeline.
    pub(crate) interface: Validated<Program>,
    pub(crate) inputs: Inputs,
    pub(crate) limits: Limits,
    pub(crate) subgroup_size: Option<u32>,
    /// Bindings of the objects, as written.
    pub(crate) bindings: Vec<(String, String)>,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// The interface itself, in `groups` workgroups for a grid of `launched` elements.
    Kernel {
        arguments: Arguments<Slice>,
        groups: [u32; 3],
        launched: [u32; 3],
    },
    Pipeline(Box<Pipeline>),
}

impl Input {
    pub(crate) fn job(&self) -> Result<Job, Error> {
        let settings = Settings::load()?;
        let choice = &self.selection.choice;
        let parsed = Parsed::read(&self.selection.file)?;
        if let Some(position) = choice.position(&parsed)? {
            let (source, mut pipeline) = choice.pipeline(parsed, position, self.budget)?;
            let flags = [
                ("--replay", self.replay),
                ("--elements", self.grid.elements.is_some()),
                ("--grid", self.grid.grid.is_some()),
                ("--subgroup-size", self.subgroup_size.is_some()),
            ];
            if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
                return Err(Error::Flag { flag, about: "a pipeline" });
            }
            let interface = pipeline::interface(&pipeline)?;
            let limits = settings.limits(self.fuel, self.timeout);
            pipeline.limits(limits);
            return Ok(Job {
                inputs: pipeline::inputs(&self.bindings, &pipeline, &interface)?,
                source,
                interface,
                limits,
                subgroup_size: None,
                bindings: self.bindings.clone(),
                work: Work::Pipeline(Box::new(pipeline)),
            });
        }
        if self.budget.is_some() {
            return Err(Error::Flag { flag: "--budget", about: "a program" });
        }
        let case = Case::of(parsed, self.replay, choice, &self.bindings, &self.grid)?;
        let Case { source, program: interface, bindings, inputs, arguments, groups, launched, .. } = case;
        if self.replay {
            reproducer::expect_inputs(&source, &inputs)?;
        }
        Ok(Job {
            source,
            interface,
            inputs,
            limits: settings.limits(self.fuel.or(case.fuel), self.timeout),
            subgroup_size: self.subgroup_size.or(case.subgroup_size),
            bindings,
            work: Work::Kernel { arguments, groups, launched },
        })
    }
}

impl Job {
    /// Elements of the grid, which determine the shape of arrays and images; zero for a pipeline.
    pub(crate) fn launched(&self) -> [u32; 3] {
        match self.work {
            Work::Kernel { launched, .. } => launched,
            Work::Pipeline(_) => [0; 3],
        }
    }

    /// Compiles the job for the named device, or for the default device.
    pub(crate) fn prepare(&self, registry: &Registry, device: Option<&str>) -> Result<CompiledJob<'_>, Error> {
        let program = matches!(self.work, Work::Kernel { .. }).then_some(&self.interface);
        let choice = registry.choose(device, program)?;
        let start = Instant::now();
        let compile;
        let prepared = match &self.work {
            Work::Kernel { arguments, groups, .. } => {
                let length = |slice: &Slice| slice.bytes / slice.element.size() as u64;
                let lengths: Vec<_> = arguments.buffers().map(|(id, slice)| (id, length(slice))).collect();
                let kernel = choice.device.compile_for(&self.interface, &lengths)?;
                compile = start.elapsed();
                let mut buffers = Vec::new();
                let arguments = arguments.try_map(|id, slice| {
                    let buffer = choice.device.allocate(slice.element, length(slice))?;
                    buffers.push((id, slice.buffer as usize, buffer.clone()));
                    Ok::<_, Error>(buffer)
                })?;
                let name = |id: MemId| self.interface.memory(id).name.as_str();
                let arguments = arguments.iter().map(|(id, argument)| (name(id), argument.clone()));
                let dispatch = kernel.dispatch(Grid::Groups(*groups), arguments)?.limits(self.limits);
                Prepared::Kernel { dispatch: Box::new(dispatch), buffers, groups: *groups }
            }
            Work::Pipeline(pipeline) => {
                let plan = pipeline.plan(choice.device.capabilities())?;
                let compiled = plan.compile(&choice.device)?;
                compile = start.elapsed();
                Prepared::Pipeline(Box::new(compiled))
            }
        };
        Ok(CompiledJob { job: self, choice, prepared, compile, rounds: Vec::new() })
    }
}

/// A job compiled for a device.
pub(crate) struct CompiledJob<'j> {
    job: &'j Job,
    pub(crate) choice: Choice,
    pub(crate) prepared: Prepared,
    compile: Duration,
    rounds: Vec<Round>,
}

pub(crate) enum Prepared {
    Kernel {
        dispatch: Box<Dispatch>,
        /// Device memory of each storage object, and the index of its initial contents among the inputs.
        buffers: Vec<(MemId, usize, Buffer)>,
        groups: [u32; 3],
    },
    Pipeline(Box<Compiled>),
}

/// Times of a round. On devices with asynchronous uploads, part of the upload is counted in the launch.
#[derive(Clone, Copy)]
struct Round {
    upload: Duration,
    /// Time from submission until the host observes completion.
    launch: Duration,
    /// Execution time that the device reports.
    device: Duration,
    download: Duration,
}

/// Reports and results of a round.
pub(crate) struct RoundResult {
    /// Reports of the launches of each barrier group of a pipeline; one for a kernel.
    pub(crate) groups: Vec<Vec<Report>>,
    /// Contents of the writable objects.
    pub(crate) results: Inputs,
}

/// Returns whether a launch missed its deadline, which leaves its results unspecified.
fn is_overdue(report: &Report) -> bool {
    matches!(report.outcome, Outcome::DeadlinePassed { .. })
}

impl RoundResult {
    pub(crate) fn reports(&self) -> impl Iterator<Item = &Report> {
        self.groups.iter().flatten()
    }

    /// Outcome of the first launch that did not complete, or `Completed`.
    pub(crate) fn outcome(&self) -> Outcome {
        let mut outcomes = self.reports().map(|report| &report.outcome);
        outcomes.find(|outcome| **outcome != Outcome::Completed).cloned().unwrap_or(Outcome::Completed)
    }
}

impl CompiledJob<'_> {
    /// Runs the job once, from its inputs.
    pub(crate) fn round(&mut self) -> Result<RoundResult, Error> {
        let Job { interface, inputs, limits, .. } = self.job;
        let (mut results, start) = (Inputs::default(), Instant::now());
        let (groups, upload, launched) = match &self.prepared {
            Prepared::Kernel { dispatch, buffers, .. } => {
                for (_, position, buffer) in buffers {
                    buffer.write(&inputs.buffers[*position])?;
                }
                let upload = start.elapsed();
                let report = self.choice.device.run(dispatch)?;
                let launched = start.elapsed();
                // After a deadline the contents are unspecified, and reading would wait for the dispatch to end.
                let is_readable = !is_overdue(&report);
                for (id, _, buffer) in buffers.iter().filter(|_| is_readable) {
                    let memory = interface.memory(*id);
                    if memory.writable() {
                        results.bytes(interface, &memory.name, buffer.read()?)?;
                    }
                }
                (vec![vec![report]], upload, launched)
            }
            Prepared::Pipeline(compiled) => {
                for memory in interface.memories().values().filter(|memory| memory.readable()) {
                    let contents = inputs.contents(&memory.name).unwrap_or_default();
                    compiled.buffer(&memory.name)?.write(contents)?;
                }
                let upload = start.elapsed();
                let run = compiled.run(*limits)?;
                let launched = start.elapsed();
                let is_readable = !run.groups.iter().flatten().any(is_overdue);
                for memory in interface.memories().values().filter(|memory| memory.writable() && is_readable) {
                    results.bytes(interface, &memory.name, compiled.buffer(&memory.name)?.read()?)?;
                }
                (run.groups, upload, launched)
            }
        };
        self.rounds.push(Round {
            upload,
            launch: launched - upload,
            device: groups.iter().flatten().map(|report| report.time).sum(),
            download: start.elapsed() - launched,
        });
        Ok(RoundResult { groups, results })
    }

    pub(crate) fn interface(&self) -> &Validated<Program> {
        &self.job.interface
    }

    /// Total time of the last round.
    pub(crate) fn elapsed(&self) -> Duration {
        self.rounds.last().map_or(Duration::ZERO, |round| round.upload + round.launch + round.download)
    }

    /// Execution time of the last round, as the device reports it.
    pub(crate) fn device_time(&self) -> Duration {
        self.rounds.last().map_or(Duration::ZERO, |round| round.device)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let of = |time: fn(&Round) -> Duration| {
            let mut times: Vec<Duration> = self.rounds.iter().map(time).collect();
            times.sort_unstable();
            let at = |position: usize| times.get(position).copied().unwrap_or_default();
            Times { best: at(0), median: at(times.len() / 2), worst: at(times.len().saturating_sub(1)) }
        };
        Statistics {
            device: self.choice.name,
            fallback: match &self.prepared {
                Prepared::Kernel { dispatch, .. } => dispatch.fallback(),
                Prepared::Pipeline(_) => None,
            },
            rounds: self.rounds.len(),
            compile: self.compile,
            phases: [
                ("upload", of(|round| round.upload)),
                ("launch", of(|round| round.launch)),
                ("on device", of(|round| round.device)),
                ("download", of(|round| round.download)),
            ],
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) best: Duration,
    pub(crate) median: Duration,
    pub(crate) worst: Duration,
}

/// Times of all rounds on a device.
pub(crate) struct Statistics {
    pub(crate) device: &'static str,
    /// Reason why the device uses its portable executor, if it does.
    pub(crate) fallback: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) compile: Duration,
    pub(crate) phases: [(&'static str, Times); 4],
}

impl Statistics {
    /// Median launch time.
    pub(crate) fn launch(&self) -> Duration {
        self.phases[1].1.median
    }

    /// A line for each phase.
    pub(crate) fn text(&self) -> String {
        let Statistics { device, fallback, rounds, compile, phases } = self;
        let plural = if *rounds == 1 { "" } else { "s" };
        let mut text = format!("{device}: {rounds} round{plural}, compiled in {}\n", shown(*compile));
        if let Some(reason) = fallback {
            text += &format!("  portable executor ({reason})\n");
        }
        text += &format!("  {:<12}{:>12}{:>12}{:>12}\n", "", "best", "median", "worst");
        for (phase, Times { best, median, worst }) in phases {
            text += &format!("  {phase:<12}{:>12}{:>12}{:>12}\n", shown(*best), shown(*median), shown(*worst));
        }
        text
    }

    pub(crate) fn object(&self) -> Value {
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let mut object = json!({
            "device": self.device,
            "fallback": self.fallback,
            "rounds": self.rounds,
            "compile_ns": nanoseconds(self.compile),
        });
        for (phase, Times { best, median, worst }) in self.phases {
            object[phase.replace(' ', "_")] = json!({
                "best_ns": nanoseconds(best),
                "median_ns": nanoseconds(median),
                "worst_ns": nanoseconds(worst),
            });
        }
        object
    }
}

/// `1.250 ms`
pub(crate) fn shown(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
