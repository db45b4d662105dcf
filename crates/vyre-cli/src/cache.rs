//! `vyre cache`: what is kept from run to run.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use vyre_driver::{Registry, Telemetry};
use vyre_runtime::graph::cache as graphs;

use crate::config::Settings;
use crate::error::Error;
use crate::progress::Progress;
use crate::stdout::Stdout;

/// List, check or delete what is kept from run to run
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List what is kept
    List(Choice),
    /// Delete what is kept: it is made again when it is needed
    Clear(Choice),
    /// Read all that is kept, and fail if something is damaged
    Verify(Choice),
}

#[derive(clap::Args)]
struct Choice {
    /// Only what is of this kind
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
The folder is a setting, `cache`: `vyre config` shows it. Damaged entries do no harm: they are replaced when they are needed.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Optimized programs
    Programs,
    /// Graphs that were built
    Graphs,
    /// What dispatches took
    Hints,
    /// How fast devices are, measured once a day
    Throughput,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Programs, Kind::Graphs, Kind::Hints, Kind::Throughput];

    fn name(self) -> &'static str {
        match self {
            Kind::Programs => "programs",
            Kind::Graphs => "graphs",
            Kind::Hints => "hints",
            Kind::Throughput => "throughput",
        }
    }

    /// Its files below the folder of the cache, also those that are still being written.
    fn files(self, folder: &Path) -> Vec<PathBuf> {
        let place = folder.join(self.name());
        match self {
            Kind::Programs | Kind::Graphs => {
                let listed = fs::read_dir(place).into_iter().flatten().flatten();
                let mut files: Vec<PathBuf> = listed.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
                files.sort();
                files
            }
            Kind::Hints | Kind::Throughput => Vec::from_iter(Some(place).filter(|place| place.is_file())),
        }
    }

    /// What is in a file, or what is wrong with it.
    fn inspect(self, file: &Path) -> Result<String, String> {
        let reason = |error: vyre_driver::Error| match error {
            vyre_driver::Error::CachedProgram { reason, .. }
            | vyre_driver::Error::CachedGraph { reason, .. }
            | vyre_driver::Error::Hints { reason, .. } => reason,
            other => other.to_string(),
        };
        match self {
            Kind::Programs => vyre_driver::Cache::inspect(file).map(|program| program.name.clone()).map_err(reason),
            Kind::Graphs => graphs::inspect(file)
                .map(|graph| format!("{} nodes, {} edges", graph.nodes(), graph.edges()))
                .map_err(reason),
            Kind::Hints => match Telemetry::kept_in(file).problem() {
                Some(problem) => Err(reason(problem.clone())),
                None => Ok("records of dispatches".into()),
            },
            Kind::Throughput if Registry::reads_throughputs(file) => Ok("speeds of devices".into()),
            Kind::Throughput => Err("it is of another version".into()),
        }
    }
}

/// A file that is kept.
struct Entry {
    kind: Kind,
    path: PathBuf,
    bytes: u64,
    age: Duration,
}

impl Entry {
    /// What is in it, or what is wrong with it; nothing is known of a file that is being written.
    fn inspect(&self) -> Option<Result<String, String>> {
        let unfinished = self.path.extension().is_some_and(|extension| extension == "tmp");
        (!unfinished).then(|| self.kind.inspect(&self.path))
    }
}

/// Everything that is kept, or everything of a kind.
fn entries(folder: &Path, kind: Option<Kind>) -> Vec<Entry> {
    let kinds = Kind::ALL.into_iter().filter(|known| kind.is_none_or(|kind| kind == *known));
    let files = kinds.flat_map(|kind| kind.files(folder).into_iter().map(move |path| (kind, path)));
    let entry = |(kind, path): (Kind, PathBuf)| {
        let metadata = fs::metadata(&path).ok()?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Entry { kind, path, bytes: metadata.len(), age: modified.elapsed().unwrap_or_default() })
    };
    files.filter_map(entry).collect()
}

/// How many files are kept, their bytes, and how many of them are damaged.
pub(crate) fn totals(folder: &Path) -> (usize, u64, usize) {
    let entries = entries(folder, None);
    let damaged = entries.iter().filter(|entry| matches!(entry.inspect(), Some(Err(_))));
    (entries.len(), entries.iter().map(|entry| entry.bytes).sum(), damaged.count())
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<u8, Error> {
    let folder = Settings::load()?.folder().ok_or(Error::NoCache)?;
    let (choice, clears, verifies) = match &args.verb {
        Verb::List(choice) => (choice, false, false),
        Verb::Clear(choice) => (choice, true, false),
        Verb::Verify(choice) => (choice, false, true),
    };
    let entries = entries(&folder, choice.kind);
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if clears {
        for entry in &entries {
            match fs::remove_file(&entry.path) {
                // Somebody else was faster.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Unwritable { path: entry.path.clone(), error });
                }
                _ => {}
            }
        }
    }
    let progress = Progress::new("checking", entries.len() as u64);
    let mut found = Vec::new();
    for entry in &entries {
        found.push(if verifies { entry.inspect() } else { None });
        progress.step();
    }
    drop(progress);
    let damaged = found.iter().flatten().filter(|result| result.is_err()).count();
    if choice.json {
        let object = |(entry, found): (&Entry, &Option<Result<String, String>>)| {
            let mut object = json!({
                "kind": entry.kind.name(),
                "file": entry.path,
                "bytes": entry.bytes,
                "age_seconds": entry.age.as_secs(),
            });
            match found {
                Some(Ok(what)) => object["holds"] = what.clone().into(),
                Some(Err(reason)) => object["damaged"] = reason.clone().into(),
                None => {}
            }
            object
        };
        let entries: Vec<Value> = entries.iter().zip(&found).map(object).collect();
        let mut object = json!({ "folder": folder, "bytes": bytes, "cleared": clears, "entries": entries });
        if verifies {
            object["damaged"] = damaged.into();
        }
        writeln!(stdout, "{object}").map_err(Error::Stdout)?;
        return Ok(u8::from(damaged > 0));
    }
    let mut show = || {
        for (entry, found) in entries.iter().zip(&found).filter(|_| !clears) {
            let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
            let what = match found {
                Some(Ok(what)) => format!("  {what}"),
                Some(Err(reason)) => format!("  damaged: {reason}"),
                None => String::new(),
            };
            writeln!(
                stdout,
                "{:<12}{:>12} bytes{:>8} old  {name}{what}",
                entry.kind.name(),
                entry.bytes,
                age(entry.age)
            )?;
        }
        let (count, is) = (entries.len(), if entries.len() == 1 { "entry" } else { "entries" });
        let verb = if clears { "deleted" } else { "kept" };
        let damage = if verifies { format!(", {damaged} damaged") } else { String::new() };
        writeln!(stdout, "{count} {is}, {bytes} bytes {verb} in {}{damage}", folder.display())
    };
    show().map_err(Error::Stdout)?;
    Ok(u8::from(damaged > 0))
}

/// `3 h`
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min", seconds / 60),
        seconds @ ..86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
