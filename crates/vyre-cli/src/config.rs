//! Settings, and `vyre config`.
//!
//! What no flag says is looked up in the environment, then in the nearest `vyre.toml`: that of the current folder, or else of
//! one around it. A setting `name` is the variable `VYRE_NAME` and the key `name`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};
use vyre_cpu::Execution;
use vyre_driver::Registry;
use vyre_foundation::ir::Span;
use vyre_foundation::launch::Limits;

use crate::error::Error;
use crate::source::Source;
use crate::stdout::Stdout;

const FILE: &str = "vyre.toml";

/// Everything that can be set. `Settings::load` and `SETTINGS` have the same names.
pub(crate) struct Settings {
    /// The file that was found.
    pub(crate) file: Option<PathBuf>,
    pub(crate) device: Setting<String>,
    pub(crate) adapter: Setting<String>,
    pub(crate) cache: Setting<PathBuf>,
    pub(crate) threads: Setting<usize>,
    pub(crate) isa: Setting<Execution>,
    pub(crate) fuel: Setting<u64>,
    pub(crate) timeout: Setting<Duration>,
}

/// The names, and what they mean.
const SETTINGS: [(&str, &str); 7] = [
    ("device", "where kernels run: `vyre devices` lists the devices, `auto` is the fastest"),
    ("adapter", "a part of the name of the GPU that the device wgpu uses"),
    ("cache", "the folder of what is kept from run to run; in a file, it is relative to that"),
    ("threads", "how many threads the device cpu has"),
    ("isa", "what the device cpu generates code for: portable, avx2 or avx512"),
    ("fuel", "how many loop trips all invocations of a dispatch may take"),
    ("timeout", "how many seconds a dispatch may take"),
];

/// What is set, and where.
pub(crate) struct Setting<T> {
    /// Nothing if it is not set.
    pub(crate) value: Option<T>,
    text: String,
    /// A variable, or a line of a file.
    pub(crate) origin: Option<String>,
}

impl Settings {
    pub(crate) fn load() -> Result<Settings, Error> {
        let source = match find() {
            Some(path) => Some(Source::read(&path)?),
            None => None,
        };
        let file = source.as_ref().map(|source| PathBuf::from(&source.file));
        let entries = source.as_ref().map_or(Ok(Vec::new()), entries)?;
        let from = Origins { source: source.as_ref(), entries };
        let beside = |text: &str| {
            let folder = file.as_ref().and_then(|file| file.parent()).unwrap_or("".as_ref());
            Ok(folder.join(text))
        };
        Ok(Settings {
            device: from.read("device", |text, _| Ok(text.into()))?,
            adapter: from.read("adapter", |text, _| Ok(text.into()))?,
            cache: from.read("cache", |text, in_file| if in_file { beside(text) } else { Ok(text.into()) })?,
            threads: from.read("threads", |text, _| match text.parse() {
                Ok(threads @ 1..=1024) => Ok(threads),
                _ => Err("it is not a number from 1 to 1024".into()),
            })?,
            isa: from.read("isa", |text, _| isa(text))?,
            fuel: from.read("fuel", |text, _| text.parse().map_err(|_| "it is not a whole number".into()))?,
            timeout: from.read("timeout", |text, _| seconds(text))?,
            file,
        })
    }

    /// Where things are kept, if that is known.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.cache.value.clone().or_else(Registry::user_folder)
    }

    /// What a dispatch may use up: what flags say, or else the settings.
    pub(crate) fn limits(&self, fuel: Option<u64>, timeout: Option<Duration>) -> Limits {
        let defaults = Limits::default();
        let fuel = fuel.or(self.fuel.value).unwrap_or(defaults.fuel);
        Limits { fuel, deadline: timeout.or(self.timeout.value), ..defaults }
    }

    /// The name, value and origin of each.
    fn rows(&self) -> [(&'static str, String, Option<&String>); 7] {
        let folder = || Registry::user_folder().map_or("none".into(), |folder| folder.display().to_string());
        let threads = || std::thread::available_parallelism().map_or(1, usize::from).to_string();
        let values = [
            self.device.shown(|| "auto".into()),
            self.adapter.shown(|| "the best".into()),
            self.cache.shown(folder),
            self.threads.shown(threads),
            self.isa.shown(|| format!("{:?}", Execution::best()).to_lowercase()),
            self.fuel.shown(|| Limits::default().fuel.to_string()),
            self.timeout.shown(|| "none".into()),
        ];
        let mut names = SETTINGS.iter();
        values.map(|(value, origin)| (names.next().map_or("", |(name, _)| name), value, origin))
    }
}

impl<T> Setting<T> {
    fn shown(&self, default: impl FnOnce() -> String) -> (String, Option<&String>) {
        (if self.value.is_some() { self.text.clone() } else { default() }, self.origin.as_ref())
    }
}

fn find() -> Option<PathBuf> {
    let folder = std::env::current_dir().ok()?;
    folder.ancestors().map(|folder| folder.join(FILE)).find(|path| path.exists())
}

/// Where settings come from.
struct Origins<'s> {
    source: Option<&'s Source>,
    entries: Vec<(String, String, Span)>,
}

impl Origins<'_> {
    fn read<T>(&self, name: &str, parse: impl Fn(&str, bool) -> Result<T, String>) -> Result<Setting<T>, Error> {
        let variable = format!("VYRE_{}", name.to_uppercase());
        if let Some(text) = std::env::var_os(&variable).filter(|text| !text.is_empty()) {
            let text = text.to_string_lossy().into_owned();
            return match parse(&text, false) {
                Ok(value) => Ok(Setting { value: Some(value), text, origin: Some(variable) }),
                Err(reason) => Err(Error::Variable { variable, text, reason }),
            };
        }
        let entry = self.entries.iter().find(|(key, ..)| key == name);
        let (Some(source), Some((_, text, span))) = (self.source, entry) else {
            return Ok(Setting { value: None, text: String::new(), origin: None });
        };
        let value = parse(text, true).map_err(|reason| misconfigured(source, *span, format!("`{name}`: {reason}")))?;
        let origin = source.place(*span).map(|place| format!("{}:{}", place.file, place.line));
        Ok(Setting { value: Some(value), text: text.clone(), origin })
    }
}

fn misconfigured(source: &Source, span: Span, reason: String) -> Error {
    Error::Config { place: source.place(span), reason }
}

/// The keys and values of a file, and where they are.
fn entries(source: &Source) -> Result<Vec<(String, String, Span)>, Error> {
    let spanned = |range: std::ops::Range<usize>| Span { start: range.start as u32, end: range.end as u32 };
    let table = DeTable::parse(&source.text).map_err(|error| {
        let reason = error.message().lines().next().unwrap_or_default().to_owned();
        misconfigured(source, error.span().map_or(Span::NONE, spanned), reason)
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let (name, span) = (key.get_ref().to_string(), spanned(key.span()));
        if !SETTINGS.iter().any(|(known, _)| *known == name) {
            let nearest = SETTINGS.iter().min_by_key(|(known, _)| strsim::damerau_levenshtein(known, &name));
            let nearest = nearest.map_or("", |(known, _)| known);
            let reason = format!("there is no setting `{name}`; is `{nearest}` meant?");
            return Err(misconfigured(source, span, reason));
        }
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => number.to_string(),
                Err(_) => number.to_string(),
            },
            DeValue::Float(number) => number.as_str().into(),
            DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                return Err(misconfigured(source, span, format!("`{name}` is neither text nor a number")));
            }
        };
        entries.push((name, text, span));
    }
    Ok(entries)
}

fn isa(text: &str) -> Result<Execution, String> {
    let execution = match text {
        "portable" => Execution::Portable,
        "avx2" => Execution::Avx2,
        "avx512" => Execution::Avx512,
        _ => return Err("it is not portable, avx2 or avx512".into()),
    };
    if execution.is_available() { Ok(execution) } else { Err("this processor does not have it".into()) }
}

/// A number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Show the settings, and where each value comes from
#[derive(clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const NOTES: &str = "\
A flag goes before a variable, such as VYRE_DEVICE, and that before the file vyre.toml of this folder, or of the nearest one around it
that has one:
  device = \"cpu\"
  threads = 4
  timeout = 10";

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let settings = Settings::load()?;
    if args.json {
        let values: Map<String, Value> = settings
            .rows()
            .into_iter()
            .map(|(name, value, origin)| (name.to_owned(), json!({ "value": value, "origin": origin })))
            .collect();
        return writeln!(stdout, "{}", json!({ "file": settings.file, "settings": values })).map_err(Error::Stdout);
    }
    let mut show = || {
        for ((name, value, origin), (_, meaning)) in settings.rows().into_iter().zip(SETTINGS) {
            let origin = origin.map_or("default", |origin| origin);
            writeln!(stdout, "{name} = {value}  ({origin})\n    {meaning}")?;
        }
        match &settings.file {
            Some(file) => writeln!(stdout, "\nread: {}", file.display()),
            None => writeln!(stdout, "\nthere is no {FILE} in this folder, nor in one around it"),
        }
    };
    show().map_err(Error::Stdout)
}
