//! `vyre explain`: reasons for the passes of a program, or for the plan of a pipeline.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use vyre::explain::{Explanation, Request, Source};
use vyre_driver::{Device, Telemetry};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{MemId, Program, Space};
use vyre_foundation::optimizer::{self, Profile};
use vyre_foundation::run_line::assignment;

use crate::binding::bound;
use crate::config::Settings;
use crate::error::Error;
use crate::job::bytes;
use crate::opt::profile;
use crate::progress::Progress;
use crate::reproducer::{Reproducer, hashes, passes, quoted, watch, words};
use crate::selection::Selection;
use crate::source::Parsed;
use crate::stdout::Stdout;
use crate::{devices, pipeline as pipelines, report};

/// Explain the optimization of a program (selected passes, reasons, savings, cost), or the plan of a pipeline (fusion, memory)
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Contents of a memory object, as for `vyre run`; only the length is used
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    bindings: Vec<(String, String)>,
    /// Optimization profile [default: release]
    #[arg(long, value_name = "NAME", value_parser = Profile::ALL.map(Profile::name))]
    profile: Option<String>,
    /// Device that passes are selected and pipelines are planned for; `vyre devices` lists the devices
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Memory budget for all buffers of a pipeline together
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    budget: Option<u64>,
    /// Also write an HTML page: the program after each pass, its estimated cost along the passes, and the emitted code
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
Objects without a binding count as empty, and passes over memory are selected from 16 KiB: bind lengths with NAME=zeros:N. Each run
records the times of its dispatches in the cache folder; for a slow program, all eligible passes are selected.

Example:
  vyre explain examples/kernels/saxpy.vyre x=zeros:65536 y=zeros:65536";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let page = report::target(args.html.as_deref())?;
    let choice = &args.selection.choice;
    let parsed = Parsed::read(&args.selection.file)?;
    if let Some(position) = choice.position(&parsed)? {
        let (source, pipeline) = choice.pipeline(parsed, position, args.budget)?;
        if args.profile.is_some() {
            return Err(Error::Flag { flag: "--profile", about: "a pipeline" });
        }
        pipelines::bound(&args.bindings, &pipeline, &pipelines::interface(&pipeline)?)?;
        let (device, flags) = (args.device.as_deref(), args.flags());
        return pipelines::explain(&source, &pipeline, device, page.as_ref(), &flags, args.json, stdout);
    }
    if args.budget.is_some() {
        return Err(Error::Flag { flag: "--budget", about: "a program" });
    }
    let (source, program) = choice.program(parsed)?;
    choice.leaves(&args.bindings)?;
    let inputs = bound(&args.bindings, &program)?;
    let lengths = lengths(&inputs, &program);
    let registry = devices::registry(None)?;
    let device = args.device.as_deref().map(|name| registry.choose(Some(name), None)).transpose()?;
    let target = device.as_ref().map(|choice| choice.device.target()).unwrap_or_default();
    let profile = args.profile.as_deref().map_or(Profile::Release, profile);
    let reproducer = || {
        let (bindings, flags) = (words(&args.bindings), args.flags());
        let device = device.as_ref().map(|choice| format!(" --device {}", choice.name)).unwrap_or_default();
        let command = format!("vyre explain {{}} --profile {}{device}{bindings}{flags}", profile.name());
        let (hints, lengths) = (Some(registry.telemetry().hints()), &lengths[..]);
        let request = optimizer::Request { profile, target, hints, lengths, ..optimizer::Request::default() };
        let facts = hashes(&inputs).map(|(_, fact)| fact).chain([passes(&program, &request)]).collect();
        Reproducer { name: program.name(), command, facts, text: program.to_string() }
    };
    let progress = Progress::new("explaining", 0);
    let text = watch(reproducer, || {
        let (source, program) = match page.as_ref().map(|_| &source) {
            // The page of a binary file shows its printed text.
            Some(source) if source.wire => {
                let (printed, program) = Source::printed(&program)?;
                (Some(Source { file: source.file.clone(), ..printed }), program)
            }
            source => (source.map(crate::source::Source::explained), program.clone()),
        };
        let request = Request { profile, target, lengths: &lengths, ..request(registry.telemetry())? };
        let explanation = Explanation::new(&program, &request, source.as_ref())?;
        if let (Some(file), Some(source)) = (&page, &source) {
            let views = json!({ "programs": [explanation.view()] });
            report::write(file, program.name(), &source.subtitle(profile.name()), views)?;
        }
        Ok(if args.json { format!("{}\n", explanation.json()) } else { explanation.to_string() })
    })?;
    drop(progress);
    stdout.write_all(text.as_bytes()).map_err(Error::Stdout)
}

impl Args {
    /// Flags that repeat the explanation.
    fn flags(&self) -> String {
        let budget = self.budget.map(|bytes| format!(" --budget {bytes}")).unwrap_or_default();
        let page = self.html.as_deref().and_then(|file| std::path::absolute(file).ok());
        budget + &page.map(|file| format!(" --html {}", quoted(&file.display().to_string()))).unwrap_or_default()
    }
}

/// Default request, with the instruction set of the settings.
pub(crate) fn request(telemetry: &Telemetry) -> Result<Request<'_>, Error> {
    Ok(Request { execution: Settings::load()?.execution(), ..Request::new(telemetry) })
}

/// Views of a page about generated kernels.
pub(crate) fn kernels(
    programs: &[Validated<Program>],
    device: &Device,
    telemetry: &Telemetry,
) -> Result<Vec<Value>, Error> {
    let kernel = |program: &Validated<Program>| {
        let (source, program) = Source::printed(program)?;
        let request = Request { profile: device.profile(), target: device.target(), ..request(telemetry)? };
        Ok(Explanation::new(&program, &request, Some(&source))?.view())
    };
    programs.iter().map(kernel).collect()
}

/// Lengths of the bound objects.
fn lengths(inputs: &Inputs, program: &Validated<Program>) -> Vec<(MemId, u64)> {
    let length = |(id, memory): (MemId, &vyre_foundation::ir::Memory)| match memory.space {
        Space::Storage(_) => {
            inputs.contents(&memory.name).map(|bytes| (id, (bytes.len() / memory.element.size()) as u64))
        }
        Space::Workgroup | Space::Private | Space::Uniform => None,
    };
    program.memories().iter().filter_map(length).collect()
}
