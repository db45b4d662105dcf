//! `vyre cache`: the persistent cache.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use vyre_driver::atomic_file::TEMPORARY;
use vyre_driver::{Error as DriverError, PrivateFolder, Registry, Telemetry};
use vyre_runtime::Error as RuntimeError;
use vyre_runtime::graph::cache as graphs;

use crate::config::Settings;
use crate::error::Error;
use crate::progress::Progress;
use crate::stdout::Stdout;

/// List, verify or clear the persistent cache
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the entries
    List(Choice),
    /// Delete the entries, which are created again on demand
    Clear(Choice),
    /// Read all entries, and fail if one is damaged
    Verify(Choice),
}

#[derive(clap::Args)]
struct Choice {
    /// Restrict to one kind of entries
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
`vyre config` shows the folder, which is the setting `cache`. Damaged entries are harmless: they are replaced on demand.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Optimized programs
    Programs,
    /// Graphs in compressed sparse row form
    Graphs,
    /// Recorded times of dispatches, for pass selection
    Hints,
    /// Measured throughput of devices, valid for a day
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

    /// Files of this kind in the cache folder, including unfinished ones. Files with other names are ignored.
    fn files(self, folder: &Path) -> Vec<PathBuf> {
        let path = folder.join(self.name());
        match self {
            Kind::Programs | Kind::Graphs => {
                let listed = fs::read_dir(path).into_iter().flatten().flatten();
                let is_ours = |path: &PathBuf| {
                    let extension = path.extension().and_then(|extension| extension.to_str());
                    path.is_file()
                        && extension.is_some_and(|found| found == TEMPORARY || Some(found) == self.extension())
                };
                let mut files: Vec<PathBuf> = listed.map(|entry| entry.path()).filter(is_ours).collect();
                files.sort();
                files
            }
            Kind::Hints | Kind::Throughput => Vec::from_iter(Some(path).filter(|path| path.is_file())),
        }
    }

    /// Extension of the files of a kind with its own folder.
    fn extension(self) -> Option<&'static str> {
        match self {
            Kind::Programs => Some("program"),
            Kind::Graphs => Some("graph"),
            Kind::Hints | Kind::Throughput => None,
        }
    }

    /// Reads a file.
    fn inspect(self, file: &Path) -> State {
        let reason = |error: Error| match error {
            Error::Driver(DriverError::CachedProgram { reason, .. } | DriverError::Hints { reason, .. }) => {
                reason.to_string()
            }
            Error::Runtime(RuntimeError::CachedGraph { reason, .. }) => reason.to_string(),
            other => other.to_string(),
        };
        let found = match self {
            Kind::Programs => match vyre_driver::Cache::inspect(file) {
                Ok(Some(program)) => Ok(program.name().to_owned()),
                Ok(None) => return State::Deleted,
                Err(error) => Err(reason(error.into())),
            },
            Kind::Graphs => graphs::inspect(file)
                .map(|graph| format!("{} nodes, {} edges", graph.nodes(), graph.edges()))
                .map_err(|error| reason(error.into())),
            Kind::Hints => {
                Telemetry::inspect(file).map(|()| "records of dispatches".into()).map_err(|error| reason(error.into()))
            }
            Kind::Throughput if Registry::reads_throughputs(file) => Ok("throughput of devices".into()),
            Kind::Throughput => Err("written by another version".into()),
        };
        match found {
            Ok(contents) => State::Holds(contents),
            // Deleted by another process since it was listed.
            Err(_) if matches!(file.try_exists(), Ok(false)) => State::Deleted,
            Err(reason) => State::Damaged(reason),
        }
    }
}

/// A file of the cache.
struct Entry {
    kind: Kind,
    path: PathBuf,
    bytes: u64,
    age: Duration,
}

impl Entry {
    /// Reads and checks the file, unless it is unfinished.
    fn inspect(&self) -> State {
        match self.path.extension().is_some_and(|extension| extension == TEMPORARY) {
            true => State::Unknown,
            false => self.kind.inspect(&self.path),
        }
    }
}

/// Result of reading an entry.
enum State {
    /// Not read, or unfinished.
    Unknown,
    Holds(String),
    Damaged(String),
    Deleted,
}

/// All entries, or those of a kind.
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

/// Number of files, total bytes, and number of damaged files.
pub(crate) fn totals(folder: &Path) -> (usize, u64, usize) {
    let entries = entries(folder, None);
    let damaged = entries.iter().filter(|entry| matches!(entry.inspect(), State::Damaged(_)));
    (entries.len(), entries.iter().map(|entry| entry.bytes).sum(), damaged.count())
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<u8, Error> {
    // A folder that other users control could redirect reads and deletes through links.
    let folder = PrivateFolder::open(Settings::load()?.folder().ok_or(Error::NoCache)?)?.path().to_owned();
    let (choice, clears, verifies) = match &args.verb {
        Verb::List(choice) => (choice, false, false),
        Verb::Clear(choice) => (choice, true, false),
        Verb::Verify(choice) => (choice, false, true),
    };
    let entries = entries(&folder, choice.kind);
    if clears {
        for entry in &entries {
            match fs::remove_file(&entry.path) {
                // Not found: deleted by another process.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Unwritable { path: entry.path.clone(), error });
                }
                _ => {}
            }
        }
    }
    let progress = Progress::new("checking", entries.len() as u64);
    let mut found: Vec<(Entry, State)> = Vec::new();
    for entry in entries {
        let state = if verifies { entry.inspect() } else { State::Unknown };
        progress.step();
        if !matches!(state, State::Deleted) {
            found.push((entry, state));
        }
    }
    drop(progress);
    let bytes: u64 = found.iter().map(|(entry, _)| entry.bytes).sum();
    let damaged = found.iter().filter(|(_, state)| matches!(state, State::Damaged(_))).count();
    if choice.json {
        let object = |(entry, state): &(Entry, State)| {
            let mut object = json!({
                "kind": entry.kind.name(),
                "file": entry.path,
                "bytes": entry.bytes,
                "age_seconds": entry.age.as_secs(),
            });
            match state {
                State::Holds(contents) => object["holds"] = contents.clone().into(),
                State::Damaged(reason) => object["damaged"] = reason.clone().into(),
                State::Unknown | State::Deleted => {}
            }
            object
        };
        let entries: Vec<Value> = found.iter().map(object).collect();
        let mut object = json!({ "folder": folder, "bytes": bytes, "cleared": clears, "entries": entries });
        if verifies {
            object["damaged"] = damaged.into();
        }
        writeln!(stdout, "{object}").map_err(Error::Stdout)?;
        return Ok(u8::from(damaged > 0));
    }
    let mut show = || {
        for (entry, state) in found.iter().filter(|_| !clears) {
            let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
            let what = match state {
                State::Holds(contents) => format!("  {contents}"),
                State::Damaged(reason) => format!("  damaged: {reason}"),
                State::Unknown | State::Deleted => String::new(),
            };
            writeln!(
                stdout,
                "{:<12}{:>12} bytes{:>8} old  {name}{what}",
                entry.kind.name(),
                entry.bytes,
                age(entry.age)
            )?;
        }
        let (count, is) = (found.len(), if found.len() == 1 { "entry" } else { "entries" });
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
