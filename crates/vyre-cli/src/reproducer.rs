//! Reproducers of internal errors: a pass or backend that fails on a valid program, devices that disagree, wrong results, panics, and
//! [crashes](crate::crash).
//!
//! A reproducer is a `.vyre` file in the temporary folder. Its first line is the command that replays it. Comments with the error, the
//! versions, the device, the passes and the hash of each bound buffer follow. Bindings refer to data files by path, so these files must be
//! kept with it.

use std::fs::File;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use vyre_driver::atomic_file::create_unique;
use vyre_driver::{Choice, Device, Registry};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Argument, Grid};
use vyre_foundation::optimizer::{self, Request};
use vyre_foundation::run_line::RunLine;
use vyre_foundation::{Validated, text};
use vyre_runtime::pipeline::Pipeline;

#[cfg(unix)]
use crate::crash;
use crate::error::Error;
use crate::interrupt::Unfinished;
use crate::job::{Job, Work};
use crate::source::Source;
use crate::terminal;

/// Contents of a reproducer.
pub(crate) struct Reproducer<'a> {
    /// Stem of the file name.
    pub(crate) name: &'a str,
    /// Command that replays it, with `{}` for the file.
    pub(crate) command: String,
    /// Comment lines: device, passes, hashes.
    pub(crate) facts: Vec<String>,
    /// The programs, with a `//@ run` line.
    pub(crate) text: String,
}

impl Reproducer<'_> {
    /// Writes the file. Returns its path and the command that replays it.
    pub(crate) fn write(&self, error: &str) -> Result<(PathBuf, String), Error> {
        // The temporary folder is writable for other users, so the file must be new and its name unpredictable.
        let (folder, prefix) = (std::env::temp_dir(), format!("vyre-{}-", file_name(self.name)));
        let unwritable = |error: io::Error| Error::Unwritable { path: folder.join(&prefix), error };
        let created = Unfinished::create(|| create_unique(&folder, &prefix, ".vyre", |path| File::create_new(path)));
        let (unfinished, mut file) = created.map_err(unwritable)?;
        let path = unfinished.0.clone();
        let command = self.command.replace("{}", &quoted(&path.display().to_string()));
        let (version, os, arch) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH);
        let mut contents = format!("// {command}\n");
        let versions = format!("vyre {version} for {arch} {os}, optimizer {}", optimizer::fingerprint());
        for line in error.lines().chain([versions.as_str()]).chain(self.facts.iter().map(String::as_str)) {
            contents += format!("// {line}").trim_end();
            contents.push('\n');
        }
        contents += &self.text;
        file.write_all(contents.as_bytes()).map_err(unwritable)?;
        Ok((unfinished.keep(), command))
    }

    /// Attaches the reproducer to an error.
    pub(crate) fn of(&self, error: Error) -> Error {
        let written = self.write(&format!("error[{}]: {error}", error.code()));
        Error::Reproduced { error: Box::new(error), replay: written.map_err(Box::new) }
    }
}

/// A job and its devices, for a reproducer.
pub(crate) struct JobReproducer<'a> {
    pub(crate) job: &'a Job,
    pub(crate) registry: &'a Registry,
    /// Device names as given.
    pub(crate) devices: &'a [Option<&'a str>],
    /// Further flags of the command.
    pub(crate) flags: String,
}

/// Comment line with the passes selected for a program.
pub(crate) fn passes(program: &Validated<Program>, request: &Request<'_>) -> String {
    format!("passes: {}", optimizer::plan(program, request).pipeline)
}

/// Comment lines with the passes of programs compiled for a device.
pub(crate) fn passes_of<'p>(
    programs: impl IntoIterator<Item = &'p Validated<Program>>,
    device: &Device,
) -> impl Iterator<Item = String> {
    programs.into_iter().map(|program| {
        let request = Request { profile: device.profile(), target: device.target(), ..Request::default() };
        format!("passes of {}: {}", program.name(), optimizer::plan(program, &request).pipeline)
    })
}

/// A program with a `//@ run` line for `--replay`.
pub(crate) fn replayable(
    program: &Validated<Program>,
    groups: [u32; 3],
    fuel: u64,
    subgroup_size: Option<u32>,
    bindings: &[(String, String)],
    inputs: &Inputs,
) -> String {
    // Words of the line cannot be quoted, so values with spaces are written out.
    let binding = |((name, value), (_, written)): (&(String, String), (String, String))| {
        let value = absolute(value);
        (name.clone(), if value.contains(' ') { written } else { value })
    };
    let bindings = bindings.iter().zip(inputs.notations(program)).map(binding).collect();
    let grid = Some(Grid::Groups(groups));
    let line = RunLine { grid, fuel: Some(fuel), subgroup_size, bindings, ..RunLine::default() };
    format!("{}{line}\n", **program)
}

/// Runs `work`, and writes a reproducer if it fails with an unexpected error, panics or crashes.
pub(crate) fn watch<'a, R>(
    reproducer: impl Fn() -> Reproducer<'a>,
    work: impl FnOnce() -> Result<R, Error>,
) -> Result<R, Error> {
    #[cfg(unix)]
    {
        if let Some(signal) = crash::earlier() {
            return Err(reproducer().of(Error::Crashed { signal }));
        }
        crash::arm();
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Err(error)) if error.is_unexpected() => Err(reproducer().of(error)),
        Ok(result) => result,
        Err(panic) => {
            let replay = reproducer().write("a panic").map_or_else(|error| error.to_string(), |(_, command)| command);
            let _ = writeln!(terminal::stderr(), "  = replay: {replay}");
            resume_unwind(panic)
        }
    }
}

impl<'a> JobReproducer<'a> {
    /// Opens the devices again, because the default device is otherwise unknown if it failed to run the job.
    fn opened(&self) -> Vec<Choice> {
        self.devices.iter().filter_map(|name| self.registry.choose(*name, None).ok()).collect()
    }

    pub(crate) fn reproducer(&self) -> Reproducer<'a> {
        let JobReproducer { job, flags, .. } = self;
        let (program, opened) = (&job.interface, self.opened());
        let mut facts: Vec<String> = opened
            .iter()
            .map(|choice| format!("device {}: {}", choice.name, choice.device.capabilities().name))
            .collect();
        let names: Vec<&str> = opened.iter().map(|choice| choice.name).collect();
        let timeout = job.limits.deadline.map(|timeout| format!(" --timeout {}", timeout.as_secs_f64()));
        let flags = timeout.unwrap_or_default() + flags;
        let flags = match names.as_slice() {
            [] => flags,
            [name] => format!(" --device {name}{flags}"),
            names => format!(" --compare-devices {}{flags}", names.join(",")),
        };
        facts.extend(hashes(&job.inputs).map(|(_, fact)| fact));
        let (text, command) = match &job.work {
            Work::Kernel { groups, .. } => {
                facts.push(passes(program, &Request::default()));
                let (fuel, lanes) = (job.limits.fuel, job.subgroup_size);
                let text = replayable(program, *groups, fuel, lanes, &job.bindings, &job.inputs);
                (text, format!("vyre run {{}} --replay{flags}"))
            }
            Work::Pipeline(pipeline) => {
                facts.extend(opened.first().into_iter().flat_map(|choice| launched(pipeline, &choice.device)));
                let command = format!("vyre run {{}} --program {}{}{flags}", program.name(), words(&job.bindings));
                (canonical(&job.source), command)
            }
        };
        Reproducer { name: program.name(), command, facts, text }
    }
}

/// Comment lines with the passes of each launch of a pipeline; empty if planning fails.
pub(crate) fn launched(pipeline: &Pipeline, device: &Device) -> Vec<String> {
    let planned = catch_unwind(AssertUnwindSafe(|| pipeline.plan(device.capabilities())));
    let Ok(Ok(plan)) = planned else { return Vec::new() };
    passes_of(plan.launches.iter().map(|launch| &launch.program), device).collect()
}

/// Text of a file without comments, because comments of an earlier reproducer are outdated.
pub(crate) fn canonical(source: &Source) -> String {
    text::parse(&source.text).map_or_else(|_| source.text.clone(), |module| module.to_string())
}

/// Bindings as shell words, each preceded by a space.
pub(crate) fn words(bindings: &[(String, String)]) -> String {
    bindings.iter().map(|(name, value)| format!(" {}", quoted(&format!("{name}={}", absolute(value))))).collect()
}

/// Bound buffers by name, with comment lines of type, length and hash.
pub(crate) fn hashes(inputs: &Inputs) -> impl Iterator<Item = (&str, String)> {
    inputs.arguments().filter_map(|(name, argument)| {
        let (Argument::Buffer(slice), Some(contents)) = (argument, inputs.contents(name)) else { return None };
        let (element, length) = (slice.element, contents.len() / slice.element.size());
        Some((name, format!("{name}: [{element}; {length}], blake3 {}", blake3::hash(contents).to_hex())))
    })
}

/// Checks that the data bound to a reproducer have the recorded hashes.
pub(crate) fn expect_inputs(source: &Source, inputs: &Inputs) -> Result<(), Error> {
    let recorded =
        || source.text.lines().take_while(|line| line.starts_with("//")).filter(|line| line.contains("blake3"));
    if recorded().next().is_none() {
        return Ok(());
    }
    let is_changed = |(name, fact): &(&str, String)| {
        let about = format!("// {name}: ");
        recorded().any(|line| line.starts_with(&about) && line[3..] != **fact)
    };
    match hashes(inputs).find(is_changed) {
        Some((name, _)) => Err(Error::ChangedInput { name: name.into(), file: source.file.clone() }),
        None => Ok(()),
    }
}

/// Makes the path of an `@FILE` value absolute.
pub(crate) fn absolute(value: &str) -> String {
    match value.strip_prefix('@').and_then(|path| std::path::absolute(Path::new(path)).ok()) {
        Some(path) => format!("@{}", path.display()),
        None => value.into(),
    }
}

/// Converts a program's name to at most 64 characters of a file name.
fn file_name(program: &str) -> String {
    const LONGEST: usize = 64;
    program.chars().take(LONGEST).map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

/// Quotes a text as one shell word.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "@%+=:,./-_".contains(letter);
    if cfg!(windows) {
        format!("\"{text}\"")
    } else if text.chars().all(plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use clap::Parser;
    use vyre_driver::{Oracle, Registry};

    use super::{JobReproducer, watch};
    use crate::error::Error;
    use crate::job::Input;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        input: Input,
    }

    #[test]
    fn a_panic_leaves_a_runnable_reproducer() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/two_parts.vyre");
        let line =
            Line::parse_from(["run", file, "--set=SCALE=7", "x=iota:4", "unused=zeros:4", "y=zeros:4", "--grid=3"]);
        let job = line.input.job().unwrap();
        let registry = Registry::default().with(Oracle::default());
        let watched =
            JobReproducer { job: &job, registry: &registry, devices: &[Some("reference")], flags: String::new() };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            watch(|| watched.reproducer(), || -> Result<(), Error> { panic!("on purpose") })
        }));
        assert!(panicked.is_err());
        let (path, command) = watched.reproducer().write("a panic").unwrap();
        assert_eq!(command, format!("vyre run {} --replay --device reference", path.display()));
        let again = Line::parse_from(["run", path.to_str().unwrap(), "--replay"]).input.job().unwrap();
        assert_eq!(*again.interface, *job.interface);
        assert_eq!(again.launched()[0], 3 * job.interface.workgroup_size()[0]);
        std::fs::remove_file(path).unwrap();
    }
}
