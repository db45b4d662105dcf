//! Trace files of `--trace`, in the format of chrome://tracing and Perfetto.
//!
//! The libraries report phases and device work through [`tracing`]; see [`vyre_driver::trace`]. Each host thread is a track of the process
//! `host`, and each worker of a device a track of the process `device`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use vyre_driver::trace::DEVICE;

use crate::error::Error;
use crate::outputs::Target;

/// Maximum number of events, so that a browser can show the trace.
const MOST_EVENTS: usize = 1 << 20;

/// Process id of the host threads.
const HOST: u32 = 1;
/// Process id of the device workers.
const WORKERS: u32 = 2;

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Runs `body` and writes its trace to `file`, also if `body` fails. `file` must differ from `page`.
pub(crate) fn around<T>([file, page]: [Option<&Path>; 2], body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let Some(file) = file else { return body() };
    let target = Target::find_like(file, "{\"traceEvents\"")?;
    if page.is_some_and(|page| target.is(page)) {
        return Err(Error::OutTwice { target: file.into() });
    }
    start();
    let result = body();
    let written = target.write(json!({ "traceEvents": events() }).to_string().as_bytes());
    result.and_then(|done| written.map(|()| done))
}

/// Starts recording.
pub(crate) fn start() {
    let recorder = RECORDER.get_or_init(|| Recorder { started: Instant::now(), log: Mutex::default() });
    // Fails if recording has already started.
    let _ = tracing::subscriber::set_global_default(recorder);
}

/// Events recorded so far.
pub(crate) fn events() -> Vec<Value> {
    let Some(recorder) = RECORDER.get() else { return Vec::new() };
    let mut log = recorder.lock();
    log.separate();
    let name = |what: &str, pid: u32, tid: usize, name: &str| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    let mut events = vec![name("process_name", HOST, 0, "host"), name("process_name", WORKERS, 0, "device")];
    events.extend(log.threads.iter().enumerate().map(|(track, thread)| name("thread_name", HOST, track, thread)));
    let workers: BTreeSet<usize> = log.done.iter().filter(|done| done.pid == WORKERS).map(|done| done.track).collect();
    events.extend(workers.iter().map(|worker| name("thread_name", WORKERS, *worker, &format!("worker {worker}"))));
    events.extend(log.done.iter().map(|done| {
        let CompletedEvent { pid, track, .. } = done;
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        json!({
            "ph": "X", "name": done.name, "pid": pid, "tid": track,
            "ts": micros(done.from), "dur": micros(done.time), "args": done.fields,
        })
    }));
    if log.dropped > 0 {
        let at = recorder.started.elapsed().as_micros() as u64;
        events.push(json!({ "ph": "i", "name": format!("{} events were dropped", log.dropped), "pid": HOST, "tid": 0, "ts": at, "s": "g" }));
    }
    events
}

/// Collects spans and events.
struct Recorder {
    started: Instant,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Open spans by number, with the time of entry.
    open: BTreeMap<u64, (CompletedEvent, Option<Instant>)>,
    spans: u64,
    done: Vec<CompletedEvent>,
    dropped: u64,
    /// Thread names by track.
    threads: Vec<String>,
}

/// A completed event.
struct CompletedEvent {
    name: String,
    pid: u32,
    track: usize,
    from: Duration,
    time: Duration,
    fields: Map<String, Value>,
}

impl Log {
    fn push(&mut self, done: CompletedEvent) {
        if self.done.len() < MOST_EVENTS {
            self.done.push(done);
        } else {
            self.dropped += 1;
        }
    }

    /// Makes the events of each worker disjoint. Events with known durations but unknown ends are recorded as ending when reported; their
    /// starts are moved back to before the next event.
    fn separate(&mut self) {
        let mut work: Vec<&mut CompletedEvent> = self.done.iter_mut().filter(|done| done.pid == WORKERS).collect();
        work.sort_by_key(|done| (done.track, std::cmp::Reverse(done.from + done.time)));
        for pair in 1..work.len() {
            let (later, earlier) = work.split_at_mut(pair);
            let (later, earlier) = (&later[pair - 1], &mut earlier[0]);
            if later.track == earlier.track {
                earlier.from = earlier.from.min(later.from.saturating_sub(earlier.time));
            }
        }
    }

    /// Track of the calling thread.
    fn thread(&mut self) -> usize {
        thread_local!(static TRACK: Cell<Option<usize>> = const { Cell::new(None) });
        TRACK.get().unwrap_or_else(|| {
            let track = self.threads.len();
            let name = std::thread::current().name().map_or_else(|| format!("thread {track}"), str::to_owned);
            self.threads.push(name);
            TRACK.set(Some(track));
            track
        })
    }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Log> {
        // The log is consistent after every statement, so a poisoned lock is usable.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for &'static Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("vyre")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let name = attributes.metadata().name();
        let name = fields.about.map_or(name.into(), |about| format!("{name} {about}"));
        let mut log = self.lock();
        log.spans += 1;
        let number = log.spans;
        let (from, time) = (Duration::ZERO, Duration::ZERO);
        log.open.insert(number, (CompletedEvent { name, pid: HOST, track: 0, from, time, fields: fields.all }, None));
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some((open, _)) = self.lock().open.get_mut(&span.into_u64()) {
            open.fields.append(&mut fields.all);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    /// Records device work.
    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() != DEVICE {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut number = |name: &str| fields.all.remove(name).and_then(|value| value.as_u64()).unwrap_or(0);
        let (track, ago) = (number("worker") as usize, Duration::from_nanos(number("ago_ns")));
        let time = Duration::from_nanos(number("time_ns"));
        let name = fields.about.unwrap_or_default();
        fields.all.remove("op");
        let from = self.started.elapsed().saturating_sub(ago);
        self.lock().push(CompletedEvent { name, pid: WORKERS, track, from, time, fields: fields.all });
    }

    fn enter(&self, span: &Id) {
        let mut log = self.lock();
        let track = log.thread();
        if let Some((open, entered)) = log.open.get_mut(&span.into_u64()) {
            open.track = track;
            *entered = Some(Instant::now());
        }
    }

    fn exit(&self, span: &Id) {
        let now = Instant::now();
        let mut log = self.lock();
        // The libraries enter each span once.
        if let Some((mut done, Some(entered))) = log.open.remove(&span.into_u64()) {
            (done.from, done.time) = (entered.duration_since(self.started), now.duration_since(entered));
            log.push(done);
        }
    }
}

/// The fields of a span or event.
#[derive(Default)]
struct Fields {
    all: Map<String, Value>,
    /// The first field if it is text: the subject of the event.
    about: Option<String>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.all.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.all.is_empty() {
            self.about = Some(value.into());
        }
        self.all.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
