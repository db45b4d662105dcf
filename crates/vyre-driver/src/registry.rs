//! Registry of backends, and device selection by measured throughput.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch::{Limits, Outcome};
use vyre_foundation::{Validated, text, validate};

use crate::backend::Backend;
use crate::{Cache, Device, DeviceKind, Error, Grid, PrivateFolder, Telemetry, atomic_file};

/// Backends of an application, in registration order. Registration is explicit.
#[derive(Default)]
pub struct Registry {
    backends: Vec<Box<dyn Backend>>,
    /// Device to use if the caller names none, and the reason.
    preferred: Option<(String, String)>,
    folder: Option<PrivateFolder>,
    telemetry: Arc<Telemetry>,
    cache: Option<Arc<Cache>>,
}

/// A selected device, and the reasons.
pub struct Choice {
    /// Name of its backend.
    pub name: &'static str,
    /// The device.
    pub device: Device,
    /// Reason for or against each backend, in registration order.
    pub reasons: Vec<(&'static str, String)>,
}

/// Name that requests the best device.
const AUTO: &str = "auto";

/// Environment variable that selects a device if the caller does not.
const VARIABLE: &str = "VYRE_DEVICE";

impl Registry {
    /// Adds a backend.
    #[must_use]
    pub fn with(mut self, backend: impl Backend + 'static) -> Registry {
        self.backends.push(Box::new(backend));
        self
    }

    /// Selects a device if the caller names none, before the environment. `origin` is the place of the setting.
    #[must_use]
    pub fn prefer(mut self, name: &str, origin: &str) -> Registry {
        self.preferred = Some((name.into(), format!("named by {origin}")));
        self
    }

    /// Shares data between processes in a folder: measured throughputs, valid for a day, times of dispatches, and
    /// optimized programs.
    #[must_use]
    pub fn remember(mut self, folder: &PrivateFolder) -> Registry {
        self.folder = Some(folder.clone());
        self.telemetry = Arc::new(Telemetry::kept_in(folder.clone()));
        self.cache = Some(Arc::new(Cache::kept_in(folder.subfolder("programs"))));
        self
    }

    /// Folder shared by all programs of a user: `$VYRE_CACHE`, `$XDG_CACHE_HOME/vyre`, or `~/.cache/vyre`.
    pub fn user_folder() -> Option<PathBuf> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = || variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        variable("VYRE_CACHE").or_else(|| folder().map(|folder| folder.join("vyre")))
    }

    /// Records of earlier dispatches, shared by the devices of the registry.
    pub fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    /// Cache of optimized programs, shared by the devices of the registry.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    /// A device with the shared state of the registry.
    fn with_shared_state(&self, device: Device) -> Device {
        let device = device.with_telemetry(&self.telemetry);
        match &self.cache {
            Some(cache) => device.with_cache(cache),
            None => device,
        }
    }

    /// Checks that a file contains throughputs measured by this version.
    pub fn reads_throughputs(file: &Path) -> bool {
        atomic_file::read(file, Record::MAX_BYTES).is_ok_and(|bytes| Record::parse(&bytes).is_some())
    }

    /// Registered backends.
    pub fn backends(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(|backend| &**backend)
    }

    /// Checks that the device named by the caller, a preference or the environment exists.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`] if it does not.
    pub fn check_device(&self, name: Option<&str>) -> Result<(), Error> {
        let (name, _) = self.requested_name(name);
        if name == AUTO { Ok(()) } else { self.backend(&name).map(|_| ()) }
    }

    fn backend(&self, name: &str) -> Result<&dyn Backend, Error> {
        self.backends().find(|backend| backend.name() == name).ok_or_else(|| {
            let known = self.backends().map(|backend| backend.name().to_owned()).collect();
            Error::NoSuchDevice { name: name.into(), known }
        })
    }

    /// Opens the device named by the caller, else the preferred one, else the one in the environment variable
    /// `VYRE_DEVICE`, else the best one for the program. `auto` requests the best one explicitly.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn choose(&self, name: Option<&str>, program: Option<&Validated<Program>>) -> Result<Choice, Error> {
        let (name, by) = self.requested_name(name);
        if name == AUTO {
            return self.best(program);
        }
        let backend = self.backend(&name)?;
        let device = self.with_shared_state(Device::open(backend)?);
        Ok(Choice { name: backend.name(), device, reasons: vec![(backend.name(), by)] })
    }

    /// Requested device name, and the reason.
    fn requested_name(&self, name: Option<&str>) -> (String, String) {
        let variable = || std::env::var(VARIABLE).ok().filter(|name| !name.is_empty());
        match (name, &self.preferred) {
            (Some(name), _) => (name.into(), "named explicitly".into()),
            (None, Some(preferred)) => preferred.clone(),
            (None, None) => {
                variable().map_or_else(|| (AUTO.into(), String::new()), |name| (name, format!("named by {VARIABLE}")))
            }
        }
    }

    /// Opens a device by name.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn open(&self, name: &str) -> Result<Device, Error> {
        self.choose(Some(name), None).map(|choice| choice.device)
    }

    /// Selects the device with the highest measured throughput among the fast ones that support the program.
    fn best(&self, program: Option<&Validated<Program>>) -> Result<Choice, Error> {
        let mut record = Record::load(self.folder.as_ref());
        let mut reasons = Vec::new();
        let mut candidates = Vec::new();
        for backend in self.backends() {
            let name = backend.name();
            match record.get(name) {
                Some(Speed::OnRequest) => reasons.push((name, ON_REQUEST.into())),
                Some(Speed::Measured(throughput)) => candidates.push((throughput, backend, None)),
                None => match measured(backend) {
                    Ok(Some((device, throughput))) => {
                        record.set(name, Speed::Measured(throughput));
                        candidates.push((throughput, backend, Some(device)));
                    }
                    Ok(None) => {
                        record.set(name, Speed::OnRequest);
                        reasons.push((name, ON_REQUEST.into()));
                    }
                    // A failure is not recorded: the driver may work next time.
                    Err(error) => reasons.push((name, error.to_string())),
                },
            }
        }
        record.save(self.folder.as_ref());
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut chosen = None;
        for (throughput, backend, device) in candidates {
            let speed = format!("{:.0} million steps per second", throughput / 1e6);
            if chosen.is_some() {
                reasons.push((backend.name(), format!("slower: {speed}")));
                continue;
            }
            let opened = device.map_or_else(|| Device::open(backend), Ok);
            let usable = opened.and_then(|device| match program {
                Some(program) => device.capabilities().check(program).map(|()| device),
                None => Ok(device),
            });
            match usable {
                Ok(device) => {
                    reasons.push((backend.name(), format!("fastest: {speed}")));
                    chosen = Some((backend.name(), self.with_shared_state(device)));
                }
                Err(error) => reasons.push((backend.name(), error.to_string())),
            }
        }
        let order = |name: &str| self.backends().position(|backend| backend.name() == name);
        reasons.sort_by_key(|(name, _)| order(name));
        match chosen {
            Some((name, device)) => Ok(Choice { name, device, reasons }),
            None => {
                let reason = reasons.iter().map(|(name, reason)| format!("{name}: {reason}"));
                Err(Error::NoAdapter { backend: AUTO, reason: reason.collect::<Vec<_>>().join("; ") })
            }
        }
    }
}

/// Reason for devices that are slow by design.
const ON_REQUEST: &str = "never selected automatically";

/// Opens and measures a backend, unless its kind is slow by design. That includes software GPU drivers: they run on the
/// processor, for which there is the device `cpu`.
fn measured(backend: &dyn Backend) -> Result<Option<(Device, f64)>, Error> {
    let device = Device::open(backend)?;
    match device.capabilities().kind {
        DeviceKind::Null | DeviceKind::Oracle | DeviceKind::SoftwareGpu => Ok(None),
        DeviceKind::Cpu | DeviceKind::Gpu => {
            let throughput = throughput(&device)?;
            Ok(Some((device, throughput)))
        }
    }
}

/// Measured throughput in integer steps per second, of a small kernel that takes a few milliseconds.
fn throughput(device: &Device) -> Result<f64, Error> {
    const ELEMENTS: u32 = 1 << 16;
    const ROUNDS: u32 = 64;
    const PROGRAM: &str = include_str!("measure.vyre");
    let program = validate::program(text::parse(PROGRAM)?.programs.remove(0))?;
    let kernel = device.compile(&program)?;
    let data = device.allocate(Element::U32, u64::from(ELEMENTS))?;
    let limits = Limits { deadline: Some(Duration::from_secs(5)), ..Limits::default() };
    let dispatch = kernel.dispatch(Grid::elements(ELEMENTS), [("data", (&data).into())])?.limits(limits);
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let report = device.run(&dispatch)?;
        if report.outcome != Outcome::Completed {
            return Err(Error::Stopped { kernel: program.name().to_owned(), outcome: format!("{:?}", report.outcome) });
        }
        best = best.min(start.elapsed());
    }
    Ok(f64::from(ELEMENTS * ROUNDS) / best.as_secs_f64().max(1e-9))
}

/// Throughputs by backend name, in a small text file. Backends that could not be opened or measured are absent, and an
/// unreadable file counts as empty.
#[derive(Default)]
struct Record {
    speeds: Vec<(String, Speed)>,
    /// Unsaved changes.
    changed: bool,
}

/// Throughput of a backend.
#[derive(Clone, Copy)]
enum Speed {
    /// Steps per second.
    Measured(f64),
    /// Not measured, because the device is never selected automatically.
    OnRequest,
}

impl Record {
    const FILE: &str = "throughput";
    const HEADER: &str = concat!("vyre throughput 3, ", env!("CARGO_PKG_VERSION"));
    const MAX_BYTES: u64 = 1 << 16;
    /// Time to live: afterwards a driver may have been installed or updated.
    const LIFETIME: Duration = Duration::from_secs(24 * 3600);

    fn load(folder: Option<&PrivateFolder>) -> Record {
        let read = |folder: &PrivateFolder| {
            let modified = folder.file(Self::FILE).ok()?.metadata().ok()?.modified().ok()?;
            SystemTime::now().duration_since(modified).ok().filter(|age| *age < Self::LIFETIME)?;
            Record::parse(&folder.read(Self::FILE, Self::MAX_BYTES).ok()?)
        };
        folder.and_then(read).unwrap_or_default()
    }

    fn parse(bytes: &[u8]) -> Option<Record> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        lines.next().filter(|header| *header == Record::HEADER)?;
        let speed = |text: &str| match text {
            "on-request" => Some(Speed::OnRequest),
            number => {
                let throughput = number.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)?;
                Some(Speed::Measured(throughput))
            }
        };
        let entry = |line: &str| line.split_once(' ').and_then(|(name, text)| Some((name.to_owned(), speed(text)?)));
        Some(Record { speeds: lines.filter_map(entry).collect(), changed: false })
    }

    fn get(&self, name: &str) -> Option<Speed> {
        self.speeds.iter().find(|(known, _)| known == name).map(|(_, speed)| *speed)
    }

    fn set(&mut self, name: &str, speed: Speed) {
        self.speeds.push((name.into(), speed));
        self.changed = true;
    }

    fn save(&self, folder: Option<&PrivateFolder>) {
        let Some(folder) = folder.filter(|_| self.changed) else { return };
        let lines = self.speeds.iter().map(|(name, speed)| match speed {
            Speed::Measured(throughput) => format!("{name} {throughput:.0}\n"),
            Speed::OnRequest => format!("{name} on-request\n"),
        });
        let text = format!("{}\n{}", Record::HEADER, lines.collect::<String>());
        // On failure, the next process measures again.
        let _ = folder.replace(Self::FILE, &[text.as_bytes()]);
    }
}
