//! Settings, and `vyre config`.
//!
//! Precedence: flag, environment variable, then the nearest `vyre.toml` in the current folder or its parents. A setting `name` is the
//! variable `VYRE_NAME` and the key `name`.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};
use vyre_cpu::Execution;
use vyre_driver::{PrivateFolder, Registry};
use vyre_foundation::ir::Span;
use vyre_foundation::launch::Limits;

use crate::error::Error;
use crate::source::Source;
use crate::stdout::Stdout;
use crate::{devices, terminal};

const FILE: &str = "vyre.toml";

/// Values of all settings, by the names of `SETTINGS`.
pub(crate) struct Settings {
    /// The `vyre.toml` that was read.
    pub(crate) file: Option<PathBuf>,
    pub(crate) device: Setting<String>,
    pub(crate) adapter: Setting<String>,
    pub(crate) cache: Setting<PathBuf>,
    pub(crate) threads: Setting<usize>,
    pub(crate) isa: Setting<Execution>,
    pub(crate) fuel: Setting<u64>,
    pub(crate) timeout: Setting<Duration>,
    /// Errors. Invalid settings have no value.
    pub(crate) problems: Vec<Error>,
}

/// Names and meanings of the settings.
const SETTINGS: [(&str, &str); 7] = [
    ("device", "device that kernels run on: `vyre devices` lists the devices, `auto` selects the fastest"),
    ("adapter", "GPU of the device wgpu: part of its name, as in `adapter = \"radeon\"`"),
    ("cache", "folder of the persistent cache; a relative path in vyre.toml starts at that file"),
    ("threads", "worker threads of the device cpu"),
    ("isa", "instruction set of the device cpu: portable, avx2 or avx512"),
    ("fuel", "maximum number of loop trips of all invocations of a dispatch together"),
    ("timeout", "deadline of a dispatch, in seconds"),
];

/// Reason why a text is not the value of a setting or a flag.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum BadValue {
    #[error("it is not an integer from 1 to 1024")]
    Threads,
    #[error("it is none of `portable`, `avx2` and `avx512`")]
    UnknownIsa,
    #[error("this processor does not support it")]
    UnavailableIsa,
    #[error("it is not an integer")]
    Fuel,
    #[error("`{0}` is not a number of seconds > 0")]
    Seconds(String),
}

/// Value and origin of a setting.
pub(crate) struct Setting<T> {
    /// `None` if the setting is absent or invalid.
    pub(crate) value: Option<T>,
    /// A variable, or a line of a file.
    pub(crate) origin: Option<String>,
    /// Why the value is invalid.
    wrong: Option<BadValue>,
}

/// A line of `vyre config`.
struct Row<'s> {
    name: &'static str,
    meaning: &'static str,
    /// Effective value, or null.
    value: Value,
    origin: Option<&'s str>,
    wrong: Option<&'s BadValue>,
}

impl Settings {
    /// Reads the settings, and fails if one is invalid.
    pub(crate) fn load() -> Result<Settings, Error> {
        let mut settings = Settings::read();
        match Error::of(std::mem::take(&mut settings.problems)) {
            None => Ok(settings),
            Some(error) => Err(error),
        }
    }

    /// Reads the valid settings, and collects errors in `problems`.
    pub(crate) fn read() -> Settings {
        let mut problems = Vec::new();
        let source = find().and_then(|path| read_file(&path).map_err(|error| problems.push(error)).ok());
        let file = source.as_ref().map(|source| PathBuf::from(&source.file));
        let entries = source.as_ref().map(|source| entries(source, &mut problems)).unwrap_or_default();
        let mut from = Origins { source: source.as_ref(), entries, problems };
        let beside = |text: &str| {
            let folder = file.as_ref().and_then(|file| file.parent()).unwrap_or("".as_ref());
            Ok(folder.join(text))
        };
        Settings {
            device: from.read("device", |text, _| Ok(text.into())),
            adapter: from.read("adapter", |text, _| Ok(text.into())),
            cache: from.read("cache", |text, in_file| if in_file { beside(text) } else { Ok(text.into()) }),
            threads: from.read("threads", |text, _| match text.parse() {
                Ok(threads @ 1..=1024) => Ok(threads),
                _ => Err(BadValue::Threads),
            }),
            isa: from.read("isa", |text, _| isa(text)),
            fuel: from.read("fuel", |text, _| text.parse().map_err(|_| BadValue::Fuel)),
            timeout: from.read("timeout", |text, _| seconds(text)),
            problems: from.problems,
            file,
        }
    }

    /// Path of the cache folder.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.cache.value.clone().or_else(Registry::user_folder)
    }

    /// Opens the cache folder if it is private to the user. Otherwise the first call prints a warning.
    pub(crate) fn private_folder(&self) -> Option<PrivateFolder> {
        static WARNED: Once = Once::new();
        let opened = PrivateFolder::open(self.folder()?);
        opened.map_err(|error| WARNED.call_once(|| devices::warn(error))).ok()
    }

    /// Instruction set of the device `cpu`.
    pub(crate) fn execution(&self) -> Execution {
        self.isa.value.unwrap_or_else(Execution::best)
    }

    /// Limits of a dispatch, from flags or else from the settings.
    pub(crate) fn limits(&self, fuel: Option<u64>, timeout: Option<Duration>) -> Limits {
        let defaults = Limits::default();
        let fuel = fuel.or(self.fuel.value).unwrap_or(defaults.fuel);
        Limits { fuel, deadline: timeout.or(self.timeout.value), ..defaults }
    }

    /// All settings with their effective values.
    fn rows(&self) -> Vec<Row<'_>> {
        let folder = self.folder().and_then(|folder| std::path::absolute(folder).ok());
        let threads = || std::thread::available_parallelism().map_or(1, usize::from);
        let rows = [
            self.device.row(json!(self.device.value.as_deref().unwrap_or("auto"))),
            self.adapter.row(json!(self.adapter.value)),
            self.cache.row(json!(folder)),
            self.threads.row(json!(self.threads.value.unwrap_or_else(threads))),
            self.isa.row(json!(isa_name(self.execution()))),
            self.fuel.row(json!(self.fuel.value.unwrap_or(Limits::default().fuel))),
            self.timeout.row(json!(self.timeout.value.map(|timeout| timeout.as_secs_f64()))),
        ];
        SETTINGS.into_iter().zip(rows).map(|((name, meaning), row)| Row { name, meaning, ..row }).collect()
    }
}

impl<T> Setting<T> {
    fn row(&self, value: Value) -> Row<'_> {
        let (origin, wrong) = (self.origin.as_deref(), self.wrong.as_ref());
        Row { name: "", meaning: "", value: if wrong.is_some() { Value::Null } else { value }, origin, wrong }
    }
}

fn find() -> Option<PathBuf> {
    let folder = std::env::current_dir().ok()?;
    folder.ancestors().map(|folder| folder.join(FILE)).find(|path| path.exists())
}

/// Reads a `vyre.toml`.
fn read_file(path: &Path) -> Result<Source, Error> {
    const MAX_BYTES: u64 = 1 << 20;
    let file = path.display().to_string();
    let unusable = |reason: &str| Error::Config { location: None, reason: format!("`{file}` {reason}") };
    let unreadable = |error| Error::Read { path: path.into(), error };
    // Reading a pipe would block.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unusable("is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(unusable(&format!("is larger than {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map(|text| Source::of_text(file.clone(), text)).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        // The text before the offset is valid, so the lossy copy has the same position.
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        let source = Source::of_text(file.clone(), text);
        let span = Span { start: offset as u32, end: offset as u32 };
        misconfigured(&source, span, format!("`{file}` is not text: byte {offset} is not UTF-8"))
    })
}

/// Sources of settings: environment variables and a file.
struct Origins<'s> {
    source: Option<&'s Source>,
    entries: Vec<(String, String, Span)>,
    problems: Vec<Error>,
}

impl Origins<'_> {
    fn read<T>(&mut self, name: &str, parse: impl Fn(&str, bool) -> Result<T, BadValue>) -> Setting<T> {
        let variable = format!("VYRE_{}", name.to_uppercase());
        if let Some(text) = std::env::var_os(&variable).filter(|text| !text.is_empty()) {
            let text = text.to_string_lossy().into_owned();
            let (value, wrong) = split(parse(&text, false));
            if let Some(reason) = wrong.clone() {
                self.problems.push(Error::Variable { variable: variable.clone(), text, reason });
            }
            return Setting { value, origin: Some(variable), wrong };
        }
        let entry = self.entries.iter().find(|(key, ..)| key == name);
        let (Some(source), Some((_, text, span))) = (self.source, entry) else {
            return Setting { value: None, origin: None, wrong: None };
        };
        let (value, wrong) = split(parse(text, true));
        if let Some(reason) = &wrong {
            self.problems.push(misconfigured(source, *span, format!("`{name}`: {reason}")));
        }
        let origin = source.location(*span).map(|location| format!("{}:{}", location.file, location.line));
        Setting { value, origin, wrong }
    }
}

fn split<T, E>(result: Result<T, E>) -> (Option<T>, Option<E>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error)),
    }
}

fn misconfigured(source: &Source, span: Span, reason: String) -> Error {
    Error::Config { location: source.location(span), reason }
}

/// Valid keys and values of a file, with their spans.
fn entries(source: &Source, problems: &mut Vec<Error>) -> Vec<(String, String, Span)> {
    let spanned = |range: std::ops::Range<usize>| Span { start: range.start as u32, end: range.end as u32 };
    let mut entries = Vec::new();
    let table = match DeTable::parse(&source.text) {
        Ok(table) => table,
        Err(error) => {
            let reason = error.message().lines().next().unwrap_or_default().to_owned();
            problems.push(misconfigured(source, error.span().map_or(Span::NONE, spanned), reason));
            return entries;
        }
    };
    for (key, value) in table.get_ref() {
        let (name, span) = (key.get_ref().to_string(), spanned(key.span()));
        if !SETTINGS.iter().any(|(known, _)| *known == name) {
            let nearest = nearest(&name).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
            let reason = format!("there is no setting `{name}`{nearest}");
            problems.push(misconfigured(source, span, reason));
            continue;
        }
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.to_string(),
                Err(_) => number.to_string(),
            },
            DeValue::Float(number) => number.as_str().into(),
            DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                problems.push(misconfigured(source, span, format!("`{name}` is neither a string nor a number")));
                continue;
            }
        };
        entries.push((name, text, span));
    }
    entries
}

/// Returns the setting with the smallest edit distance to a name, if it is small enough for a typo.
fn nearest(name: &str) -> Option<&'static str> {
    let near = |known: &&str| strsim::damerau_levenshtein(known, name) <= known.len() / 3;
    SETTINGS.into_iter().map(|(known, _)| known).find(near)
}

/// Values of the setting `isa`.
const ISAS: [(&str, Execution); 3] =
    [("portable", Execution::Portable), ("avx2", Execution::Avx2), ("avx512", Execution::Avx512)];

pub(crate) fn isa_name(isa: Execution) -> &'static str {
    ISAS.iter().find(|(_, execution)| *execution == isa).map_or("", |(name, _)| name)
}

fn isa(text: &str) -> Result<Execution, BadValue> {
    let Some((_, execution)) = ISAS.iter().find(|(name, _)| *name == text) else {
        return Err(BadValue::UnknownIsa);
    };
    if execution.is_available() { Ok(*execution) } else { Err(BadValue::UnavailableIsa) }
}

/// Parses a positive number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, BadValue> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| BadValue::Seconds(text.into()))
}

/// Messages about `VYRE_*` variables whose names are near to settings. Other variables belong to tests.
pub(crate) fn misspelt_variables() -> Vec<String> {
    let misspelt = |variable: String| {
        let name = variable.strip_prefix("VYRE_")?.to_lowercase();
        let known = nearest(&name).filter(|known| *known != name)?.to_uppercase();
        Some(format!("there is no variable {variable}; did you mean VYRE_{known}?"))
    };
    let variables = std::env::vars_os().map(|(variable, _)| variable.to_string_lossy().into_owned());
    variables.filter_map(misspelt).collect()
}

/// Show the settings with their values and origins
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
Precedence: flags, then variables such as VYRE_DEVICE, then the nearest vyre.toml in this folder or its parents:
  device = \"cpu\"
  threads = 4
  timeout = 10
VYRE_PERF_MAP=1 makes the device cpu write a map of its code for the profiler perf; it is a variable only.";

/// Prints all settings, and reports invalid ones afterwards.
pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let mut settings = Settings::read();
    for warning in misspelt_variables() {
        let _ = writeln!(terminal::stderr(), "warning: {warning}");
    }
    if args.json {
        let values: Map<String, Value> = settings
            .rows()
            .into_iter()
            .map(|Row { name, value, origin, wrong, .. }| {
                (name.to_owned(), json!({ "value": value, "origin": origin, "wrong": wrong.map(ToString::to_string) }))
            })
            .collect();
        let object = json!({ "file": settings.file, "settings": values });
        writeln!(stdout, "{object}").map_err(Error::Stdout)?;
    } else {
        settings.show(stdout).map_err(Error::Stdout)?;
    }
    let device = devices::registry_for(&settings, None).check_device(None);
    settings.problems.extend(device.map_err(Error::from).err());
    Error::of(settings.problems).map_or(Ok(()), Err)
}

impl Settings {
    fn show(&self, stdout: &mut Stdout) -> std::io::Result<()> {
        for Row { name, meaning, value, origin, wrong } in self.rows() {
            let value = match (value, wrong) {
                (_, Some(reason)) => format!("is invalid: {reason}"),
                (Value::Null, _) if name == "adapter" => "= auto".into(),
                (Value::Null, _) => "= none".into(),
                (Value::String(text), _) => format!("= {text}"),
                (number, _) => format!("= {number}"),
            };
            writeln!(stdout, "{name} {value}  ({})\n    {meaning}", origin.unwrap_or("default"))?;
        }
        match &self.file {
            Some(file) => writeln!(stdout, "\nread: {}", file.display()),
            None => writeln!(stdout, "\nno {FILE} in this folder or its parents"),
        }
    }
}
