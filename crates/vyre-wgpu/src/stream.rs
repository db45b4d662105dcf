//! Command stream of a device: recording, submission and completion of commands.
//!
//! The commands of all submissions are recorded into one command buffer, which is submitted to the driver when the
//! device is idle, when a caller waits for it, or when it is full. A submitted command buffer is a *flight*. Recording
//! overlaps with the execution of earlier flights, of which the driver has at most [`MAX_FLIGHTS`]; later ones are
//! held until one ends. Submitting never blocks. Held flights are submitted by waiting callers, or by a helper thread.
//! Ranges of a launch with a [deadline](crate::deadline) are flights that are skipped after the deadline.
//!
//! An overdue flight stays with the driver. Later ones queue behind it, up to [`MAX_HELD`]; beyond that the device
//! counts as lost. When the device is closed meanwhile, a thread waits for the driver instead of the caller.
//!
//! Kernel parameters of a flight are gathered and written to one buffer before it; kernel reports go to another, which
//! is copied for the host after it. All flights share both buffers, because they execute in order. Reads go to separate
//! staging buffers, in stream order. Staging buffers for reads and writes are pooled.
//!
//! Where a device has timestamps, they are taken around the dispatches between two copies.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use vyre_driver::Error;

use crate::deadline::{Clock, Ranges};
use crate::device::{failed, ready};

/// Maximum number of dispatches and copies of a flight.
const MAX_STEPS: usize = 512;
/// Approximate limit of the bytes written by a flight.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of unfinished flights submitted to a GPU. Software drivers get one: Mesa's blocks a submission until the
/// previous one has been executed.
const MAX_FLIGHTS: usize = 4;
/// Maximum number of unfinished flights that are ranges of a launch: one executes, and the next is ready.
const RANGES_IN_FLIGHT: usize = 2;
/// Maximum number of flights held behind ranges or an overdue flight.
const MAX_HELD: usize = 64;
/// Longest single wait for the driver.
const SLICE: Duration = Duration::from_millis(50);
/// Size of the parameter and report buffers of flights.
const ARENA: u64 = 1 << 20;
/// Maximum number of steps of a flight with timestamps. With more, the duration of the whole flight is precise enough.
const MAX_TIMED: usize = 64;
/// Maximum number of passes of a flight.
const MAX_PASSES: u32 = 64;
/// Maximum number of bytes of pooled staging buffers, for each direction.
const MAX_IDLE: u64 = 64 << 20;

/// A wgpu device and its pending commands.
pub(crate) struct Stream {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Reason of a device loss.
    lost: Arc<Mutex<Option<String>>>,
    recorder: Mutex<Recorder>,
    /// Pool of staging buffers for reads, and of mapped ones for writes.
    idle: Mutex<Vec<wgpu::Buffer>>,
    idle_uploads: Mutex<Vec<wgpu::Buffer>>,
    timer: Option<Timer>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Maximum number of unfinished flights of the driver.
    most_flights: usize,
    /// Signals the closing thread that the other handles are gone; dropped after them, as the last field.
    closing: Option<std::sync::mpsc::Sender<()>>,
}

/// Timestamp queries of a flight.
struct Timer {
    queries: wgpu::QuerySet,
    /// Buffer that the queries are resolved to.
    ticks: wgpu::Buffer,
    nanoseconds_per_tick: f32,
}

/// The flight being recorded, and those held or in flight.
pub(crate) struct Recorder {
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<Pass>,
    flight: Arc<Flight>,
    /// Staging buffers that the flight copies to.
    staging: Vec<Arc<Staging>>,
    /// Staging buffers that it copies from.
    uploads: Vec<wgpu::Buffer>,
    /// Number of passes begun.
    passes: u32,
    given: Arena,
    reports: Arena,
    groups: HashMap<Bindings, wgpu::BindGroup>,
    steps: usize,
    bytes: u64,
    /// Recorded flights that wait to be submitted.
    held: VecDeque<HeldFlight>,
    in_flight: VecDeque<Arc<Flight>>,
    /// A helper thread submits held flights.
    is_helped: bool,
}

/// A flight that is recorded but not submitted.
struct HeldFlight {
    flight: Arc<Flight>,
    encoder: wgpu::CommandEncoder,
    /// Contents of the shared buffers, written before the flight.
    contents: [(wgpu::Buffer, Vec<u8>); 2],
    staging: Vec<Arc<Staging>>,
    uploads: Vec<wgpu::Buffer>,
    /// Launch that the flight is a range of, if any.
    ranges: Option<Arc<Ranges>>,
}

/// A compute pass and its current state.
struct Pass {
    pass: wgpu::ComputePass<'static>,
    pipeline: Option<wgpu::ComputePipeline>,
    group: Option<(wgpu::BindGroup, Vec<u32>)>,
}

/// A shared buffer of flights, and the contents to write to it.
struct Arena {
    buffer: wgpu::Buffer,
    contents: Vec<u8>,
    alignment: u64,
    /// Start of the most recent part of `contents`.
    last: usize,
}

/// Bind group layout and bound ranges: buffer, offset and size, by binding.
pub(crate) type Bindings = (wgpu::BindGroupLayout, Vec<(wgpu::Buffer, u64, u64)>);

/// Commands submitted together.
pub(crate) struct Flight {
    /// Outcome of its submission; empty until then.
    turn: OnceLock<Turn>,
    /// End of the previous flight.
    started: OnceLock<Instant>,
    abandoned: OnceLock<AbandonReason>,
    /// Staging buffers that it copies to, kept alive so that they are not reused while the copies are pending.
    staging: OnceLock<Vec<Arc<Staging>>>,
    /// Number of pending callbacks: one for the work, and one for each mapping.
    left: AtomicUsize,
    unmapped: AtomicBool,
    ended: OnceLock<Instant>,
    launches: AtomicUsize,
    /// Staging buffer of its timestamps, and the duration of a tick.
    ticks: OnceLock<(Arc<Staging>, f32)>,
}

/// Outcome of submitting a flight.
enum Turn {
    /// Submitted to the driver.
    Submitted { index: wgpu::SubmissionIndex, at: Instant },
    /// Its launch was stopped before.
    Skipped,
    /// The device is lost.
    Refused(Error),
}

/// Reason for not waiting for a flight any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AbandonReason {
    Cancelled,
    /// Overdue since this time; the driver executes it without a limit.
    Overdue(Instant),
}

/// A command to record. Everything that can fail, except for binding, is done.
pub(crate) enum Step {
    Dispatch(Dispatch),
    /// Copy from a buffer with the data.
    Copy {
        source: wgpu::Buffer,
        target: wgpu::Buffer,
        start: u64,
        bytes: u64,
    },
    /// Write of a few words.
    Write {
        target: wgpu::Buffer,
        start: u64,
        data: Vec<u8>,
    },
    Clear {
        target: wgpu::Buffer,
        start: u64,
        bytes: u64,
    },
    Read {
        source: wgpu::Buffer,
        start: u64,
        staging: Arc<Staging>,
    },
}

/// A dispatch ready to be recorded.
pub(crate) struct Dispatch {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// Bindings of the storage objects.
    pub(crate) objects: Vec<(wgpu::Buffer, u64, u64)>,
    pub(crate) params: Vec<u32>,
    pub(crate) reporting: Reporting,
    pub(crate) shape: Shape,
    /// Launch of which it is a range, if that is dispatched in several flights.
    pub(crate) ranges: Option<Arc<Ranges>>,
}

/// Report location of a dispatch.
pub(crate) enum Reporting {
    Nowhere,
    /// The report buffer of the dispatch's flight, initialized with these words.
    InFlight(Vec<u32>),
    /// A buffer of the dispatch's launch.
    InBuffer(wgpu::Buffer),
}

impl Dispatch {
    /// Number of words in the report buffer of its flight.
    pub(crate) fn reported(&self) -> usize {
        match &self.reporting {
            Reporting::InFlight(words) => words.len(),
            Reporting::Nowhere | Reporting::InBuffer(_) => 0,
        }
    }
}

/// Grid of a dispatch.
pub(crate) enum Shape {
    Fixed([u32; 3]),
    /// Indirect grid: four words for `params`, then three for the dispatch, in a buffer that an earlier step has
    /// written.
    Computed(wgpu::Buffer),
}

/// Maximum bytes of a write that is recorded in the flight's buffer; a larger one has a staging buffer of its own.
pub(crate) const SMALL: usize = 16 << 10;

/// A kernel's part of the reports of a flight.
pub(crate) struct Report {
    flight: Arc<Flight>,
    bytes: std::ops::Range<u64>,
}

/// A buffer that the host can read after the flight. Returns to the pool on drop.
pub(crate) struct Staging {
    buffer: wgpu::Buffer,
    bytes: u64,
    stream: Weak<Stream>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue, clock: Arc<dyn Clock>) -> Result<Arc<Stream>, Error> {
        let lost = Arc::new(Mutex::new(None));
        let record = lost.clone();
        device.set_device_lost_callback(move |_, reason| {
            lock(&record).get_or_insert(if reason.is_empty() { "it was destroyed".into() } else { reason });
        });
        let limits = device.limits();
        let is_software = device.adapter_info().device_type == wgpu::DeviceType::Cpu;
        let most_flights = if is_software { 1 } else { MAX_FLIGHTS };
        let uniform = u64::from(limits.min_uniform_buffer_offset_alignment).max(16);
        let storage = u64::from(limits.min_storage_buffer_offset_alignment).max(16);
        let arena = |usage, alignment| -> Result<Arena, Error> {
            let usage = usage | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            let descriptor = wgpu::BufferDescriptor { label: None, size: ARENA, usage, mapped_at_creation: false };
            let buffer = checked(&device, || device.create_buffer(&descriptor)).map_err(failed)?;
            Ok(Arena { buffer, contents: Vec::new(), alignment, last: 0 })
        };
        let recorder = Recorder {
            encoder: None,
            pass: None,
            flight: Arc::new(Flight::new()),
            staging: Vec::new(),
            uploads: Vec::new(),
            passes: 0,
            given: arena(wgpu::BufferUsages::UNIFORM, uniform)?,
            reports: arena(wgpu::BufferUsages::STORAGE, storage)?,
            groups: HashMap::new(),
            steps: 0,
            bytes: 0,
            held: VecDeque::new(),
            in_flight: VecDeque::new(),
            is_helped: false,
        };
        let timer = Timer::new(&device, &queue)?;
        let (recorder, idle, idle_uploads) = (Mutex::new(recorder), Mutex::default(), Mutex::default());
        Ok(Arc::new(Stream {
            device,
            queue,
            lost,
            recorder,
            idle,
            idle_uploads,
            timer,
            clock,
            most_flights,
            closing: None,
        }))
    }

    pub(crate) fn check_lost(&self) -> Result<(), Error> {
        match &*lock(&self.lost) {
            Some(reason) => Err(Error::DeviceLost { reason: reason.clone(), unacknowledged: Vec::new() }),
            None => Ok(()),
        }
    }

    /// Runs wgpu calls in error scopes. An out-of-memory error reports `requested` bytes.
    pub(crate) fn attempt<T>(&self, requested: u64, run: impl FnOnce() -> T) -> Result<T, Error> {
        checked(&self.device, run).map_err(|error| {
            // A lost device refuses all calls, and reports its loss when polled.
            let _ = self.device.poll(wgpu::PollType::Poll);
            match (self.check_lost(), &error) {
                (Err(lost), _) => lost,
                (Ok(()), wgpu::Error::OutOfMemory { .. }) => Error::OutOfMemory { requested, available: 0 },
                (Ok(()), wgpu::Error::Validation { .. } | wgpu::Error::Internal { .. }) => failed(error),
            }
        })
    }

    pub(crate) fn create(&self, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Error> {
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        self.attempt(size, || self.device.create_buffer(&descriptor))
    }

    /// Creates a buffer mapped for writing.
    fn create_mapped(&self, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Error> {
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: true };
        self.attempt(size, || self.device.create_buffer(&descriptor))
    }

    /// Creates a buffer with contents.
    pub(crate) fn filled(&self, contents: &[u8], usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Error> {
        let buffer = self.create_mapped((contents.len() as u64).next_multiple_of(16).max(16), usage)?;
        fill(&buffer, contents)?;
        Ok(buffer)
    }

    /// Locks the recorder.
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// Returns a staging buffer for reads, from the pool if possible.
    pub(crate) fn staging(self: &Arc<Self>, bytes: u64) -> Result<Arc<Staging>, Error> {
        let buffer = match take(&self.idle, bytes) {
            Some(buffer) => buffer,
            None => self.create(staging_size(bytes), wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)?,
        };
        Ok(Arc::new(Staging { buffer, bytes, stream: Arc::downgrade(self) }))
    }

    /// Returns a staging buffer for writes with contents, from the pool if possible.
    pub(crate) fn upload(&self, contents: &[u8]) -> Result<wgpu::Buffer, Error> {
        let bytes = contents.len() as u64;
        let buffer = match take(&self.idle_uploads, bytes) {
            Some(buffer) => buffer,
            None => {
                let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
                self.create_mapped(staging_size(bytes), usage)?
            }
        };
        fill(&buffer, contents)?;
        Ok(buffer)
    }

    /// Creates the bind group of a dispatch, with the shared buffers.
    pub(crate) fn bind(&self, recorder: &mut Recorder, dispatch: &Dispatch) -> Result<wgpu::BindGroup, Error> {
        let mut bindings =
            vec![(recorder.given.buffer.clone(), 0, (4 * dispatch.params.len() as u64).next_multiple_of(16))];
        bindings.extend(dispatch.objects.iter().cloned());
        match &dispatch.reporting {
            Reporting::Nowhere => {}
            Reporting::InFlight(words) => bindings.push((recorder.reports.buffer.clone(), 0, 4 * words.len() as u64)),
            Reporting::InBuffer(buffer) => bindings.push((buffer.clone(), 0, buffer.size())),
        }
        recorder.group((dispatch.layout.clone(), bindings), |(layout, bindings)| {
            let mut entries = Vec::new();
            for (binding, (buffer, offset, size)) in (0..).zip(bindings) {
                let size = std::num::NonZeroU64::new(*size);
                let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset: *offset, size });
                entries.push(wgpu::BindGroupEntry { binding, resource });
            }
            let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
            self.attempt(0, || self.device.create_bind_group(&descriptor))
        })
    }

    /// Records a step, a dispatch with its bind group. Returns the flight of the step, and its report location.
    pub(crate) fn record(
        self: &Arc<Self>,
        recorder: &mut Recorder,
        step: &Step,
        group: Option<&wgpu::BindGroup>,
    ) -> (Arc<Flight>, Option<Report>) {
        let (given, reported, ranges) = match step {
            Step::Dispatch(dispatch) => (dispatch.params.len(), dispatch.reported(), dispatch.ranges.as_ref()),
            Step::Write { data, .. } => (data.len() / 4, 0, None),
            Step::Copy { .. } | Step::Clear { .. } | Step::Read { .. } => (0, 0, None),
        };
        let full = recorder.steps >= MAX_STEPS || recorder.bytes >= MAX_BYTES || recorder.passes >= MAX_PASSES;
        if full || ranges.is_some() || !recorder.given.fits(given) || !recorder.reports.fits(reported) {
            self.seal(recorder, None);
        }
        recorder.steps += 1;
        let flight = recorder.flight.clone();
        let report = recorder.record(self, step, group);
        if let Some(ranges) = ranges {
            ranges.add(&flight);
            self.seal(recorder, Some(ranges.clone()));
        }
        (flight, report)
    }

    /// Submits the recorded commands if the device is idle.
    pub(crate) fn start(self: &Arc<Self>, recorder: &mut Recorder) {
        if recorder.in_flight.iter().all(|flight| flight.is_done()) {
            self.seal(recorder, None);
        }
        self.advance(recorder);
        if !recorder.held.is_empty() && !recorder.is_helped {
            let stream = Arc::downgrade(self);
            let helper = std::thread::Builder::new().name("vyre-wgpu".into());
            // Without the thread, waiting callers submit the held flights.
            recorder.is_helped = helper.spawn(move || help(&stream)).is_ok();
        }
    }

    /// Ensures that the report buffer has room.
    pub(crate) fn reserve_report(self: &Arc<Self>, recorder: &mut Recorder, words: u64) -> Result<(), Error> {
        if 4 * words <= recorder.reports.buffer.size() {
            return Ok(());
        }
        self.seal(recorder, None);
        recorder.reports.buffer = self.create((4 * words).next_power_of_two(), recorder.reports.buffer.usage())?;
        Ok(())
    }

    /// Back-pressure: blocks until no flight is held, except behind ranges or an overdue flight.
    ///
    /// # Errors
    /// The device is lost, or counts as lost because too many flights are held behind an overdue one.
    pub(crate) fn make_room(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            let earliest = {
                let mut recorder = self.recorder();
                self.advance(&mut recorder);
                let is_overdue = recorder.in_flight.iter().any(|flight| flight.overdue_since().is_some());
                let in_turn = is_overdue || recorder.held.iter().any(|held| held.ranges.is_some());
                if recorder.held.is_empty() || (in_turn && recorder.held.len() <= MAX_HELD) {
                    return Ok(());
                }
                if is_overdue {
                    let reason = format!("{MAX_HELD} flights are held behind one that is overdue");
                    lock(&self.lost).get_or_insert(reason);
                }
                recorder.in_flight.front().cloned()
            };
            self.check_lost()?;
            if let Some(earliest) = earliest {
                self.poll(&earliest, SLICE)?;
            }
        }
    }

    /// Closes the flight being recorded and queues it for submission.
    fn seal(self: &Arc<Self>, recorder: &mut Recorder, ranges: Option<Arc<Ranges>>) {
        let Some(mut encoder) = recorder.encoder.take() else { return };
        recorder.pass = None;
        let flight = std::mem::replace(&mut recorder.flight, Arc::new(Flight::new()));
        let mut staging = std::mem::take(&mut recorder.staging);
        let uploads = std::mem::take(&mut recorder.uploads);
        let reported = recorder.reports.contents.len() as u64;
        let mut stage = || -> Result<(), Error> {
            if let (Some(timer), 1.., ..=MAX_TIMED) = (&self.timer, recorder.passes, recorder.steps) {
                let place = self.staging(16 * u64::from(recorder.passes))?;
                encoder.resolve_query_set(&timer.queries, 0..2 * recorder.passes, &timer.ticks, 0);
                encoder.copy_buffer_to_buffer(&timer.ticks, 0, &place.buffer, 0, place.bytes);
                let _ = flight.ticks.set((place.clone(), timer.nanoseconds_per_tick));
                staging.push(place);
            }
            if reported > 0 {
                let place = self.staging(reported)?;
                encoder.copy_buffer_to_buffer(&recorder.reports.buffer, 0, &place.buffer, 0, reported);
                // Reports are read from the last one.
                staging.push(place);
            }
            Ok(())
        };
        match stage() {
            Ok(()) => {
                let contents = [&mut recorder.given, &mut recorder.reports]
                    .map(|arena| (arena.buffer.clone(), std::mem::take(&mut arena.contents)));
                recorder.held.push_back(HeldFlight { flight, encoder, contents, staging, uploads, ranges });
            }
            Err(error) => self.refuse(&flight, &error),
        }
        recorder.passes = 0;
        recorder.given.clear();
        recorder.reports.clear();
        recorder.groups.clear();
        recorder.steps = 0;
        recorder.bytes = 0;
        self.advance(recorder);
    }

    /// Marks the device as lost, because recorded commands cannot be executed and possibly no caller waits for their
    /// error.
    fn refuse(&self, flight: &Flight, error: &Error) {
        let reason = lock(&self.lost).get_or_insert_with(|| error.to_string()).clone();
        let _ = flight.turn.set(Turn::Refused(Error::DeviceLost { reason, unacknowledged: Vec::new() }));
    }

    /// Submits flights in order as far as the driver has room, and records which have started.
    fn advance(self: &Arc<Self>, recorder: &mut Recorder) {
        let now = self.clock.now();
        loop {
            recorder.record_starts();
            // The last finished flight is kept until the next one has started.
            while recorder.in_flight.front().is_some_and(|flight| flight.is_done())
                && recorder.in_flight.get(1).is_some_and(|next| next.started.get().is_some())
            {
                recorder.in_flight.pop_front();
            }
            let busy = recorder.in_flight.iter().filter(|flight| !flight.is_done()).count();
            let most = match recorder.held.front().map(|held| &held.ranges) {
                Some(Some(_)) => self.most_flights.min(RANGES_IN_FLIGHT),
                Some(None) => self.most_flights,
                None => return,
            };
            let is_over = |held: &HeldFlight| held.ranges.as_ref().is_some_and(|ranges| !ranges.admits(now));
            if recorder.held.front().is_some_and(is_over) {
                if let Some(held) = recorder.held.pop_front() {
                    held.flight.left.store(0, Ordering::Release);
                    let _ = held.flight.turn.set(Turn::Skipped);
                }
                continue;
            }
            if busy >= most {
                return;
            }
            if let Some(held) = recorder.held.pop_front() {
                let flight = held.flight.clone();
                match self
                    .check_lost()
                    .and_then(|()| self.submit(held))
                    .and_then(|index| self.check_lost().map(|()| index))
                {
                    Ok(index) => {
                        let _ = flight.turn.set(Turn::Submitted { index, at: self.clock.now() });
                        recorder.in_flight.push_back(flight);
                    }
                    Err(error) => self.refuse(&flight, &error),
                }
            }
        }
    }

    /// Submits a flight to the driver.
    fn submit(self: &Arc<Self>, held: HeldFlight) -> Result<wgpu::SubmissionIndex, Error> {
        let HeldFlight { flight, encoder, contents, staging, uploads, ranges: _ } = held;
        flight.left.store(1 + staging.len(), Ordering::Release);
        self.attempt(0, || {
            for (buffer, contents) in &contents {
                self.queue.write_buffer(buffer, 0, contents);
            }
            let index = self.queue.submit([encoder.finish()]);
            let (done, clock) = (flight.clone(), self.clock.clone());
            self.queue.on_submitted_work_done(move || done.step(true, clock.now()));
            for staging in &staging {
                let (done, clock) = (flight.clone(), self.clock.clone());
                let step = move |result: Result<(), _>| done.step(result.is_ok(), clock.now());
                staging.buffer.map_async(wgpu::MapMode::Read, .., step);
            }
            let _ = flight.staging.set(staging);
            for upload in uploads {
                self.keep_upload(&upload);
            }
            index
        })
    }

    /// Maps a staging buffer for writes once the device has copied from it, and returns it to the pool.
    fn keep_upload(self: &Arc<Self>, upload: &wgpu::Buffer) {
        let stream = Arc::downgrade(self);
        let kept = upload.clone();
        upload.map_async(wgpu::MapMode::Write, .., move |result| {
            if let (Ok(()), Some(stream)) = (result, stream.upgrade()) {
                put_back(&stream.idle_uploads, kept);
            }
        });
    }

    /// Submits flights as far as possible; returns whether this one has ended.
    ///
    /// # Errors
    /// The device is lost.
    pub(crate) fn poll_flight(self: &Arc<Self>, flight: &Arc<Flight>) -> Result<bool, Error> {
        if !flight.is_done() || flight.turn.get().is_none() {
            let mut recorder = self.recorder();
            if Arc::ptr_eq(&recorder.flight, flight) {
                self.seal(&mut recorder, None);
            }
            self.advance(&mut recorder);
        }
        match flight.turn.get() {
            None => return Ok(false),
            Some(Turn::Skipped) => return Ok(true),
            Some(Turn::Refused(error)) => return Err(error.clone()),
            Some(Turn::Submitted { .. }) => {}
        }
        if !flight.is_done() {
            self.check_lost()?;
            return Ok(false);
        }
        if flight.unmapped.load(Ordering::Acquire) {
            self.check_lost()?;
            return Err(failed("a staging buffer could not be mapped"));
        }
        Ok(true)
    }

    /// Waits for the driver to finish a flight, or the one it is held behind, up to a timeout.
    ///
    /// # Errors
    /// The device is lost. wgpu also calls the callbacks of commands that were not executed.
    pub(crate) fn poll(self: &Arc<Self>, flight: &Arc<Flight>, timeout: Duration) -> Result<(), Error> {
        let index_of = |flight: &Flight| match flight.turn.get() {
            Some(Turn::Submitted { index, .. }) if !flight.is_done() => Some(index.clone()),
            _ => None,
        };
        let index = index_of(flight).or_else(|| self.recorder().in_flight.iter().find_map(|flight| index_of(flight)));
        let poll = match index {
            Some(_) if !timeout.is_zero() => {
                wgpu::PollType::Wait { submission_index: index, timeout: Some(timeout.min(SLICE)) }
            }
            _ => wgpu::PollType::Poll,
        };
        match self.device.poll(poll) {
            // Completion is signalled by callbacks; a timeout is no error.
            Ok(_) | Err(wgpu::PollError::Timeout) => {}
            // A lost device does not recognize submission indices.
            Err(error) => {
                let _ = self.device.poll(wgpu::PollType::Poll);
                lock(&self.lost).get_or_insert_with(|| error.to_string());
            }
        }
        self.check_lost()
    }
}

/// Helper thread: submits held flights until none is left or the device is closed.
fn help(stream: &Weak<Stream>) {
    while let Some(stream) = stream.upgrade() {
        let earliest = {
            let mut recorder = stream.recorder();
            stream.advance(&mut recorder);
            if recorder.held.is_empty() {
                recorder.is_helped = false;
                return;
            }
            recorder.in_flight.iter().find(|flight| !flight.is_done()).cloned()
        };
        match earliest {
            // Callers learn of a loss from their own flights.
            Some(earliest) => drop(stream.poll(&earliest, SLICE)),
            None => std::thread::yield_now(),
        }
    }
}

impl Drop for Stream {
    /// wgpu waits for the driver when the last handle of a queue is dropped. If a flight that was given up is still
    /// executing, the handle moves to a thread.
    fn drop(&mut self) {
        let recorder = self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner);
        let executes = |flight: &Arc<Flight>| !flight.is_done() && flight.abandoned.get().is_some();
        if !recorder.in_flight.iter().any(executes) {
            return;
        }
        let handles = std::mem::ManuallyDrop::new((self.queue.clone(), self.device.clone()));
        // If no thread can be spawned, the handles are leaked.
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        self.closing = Some(sender);
        let _ = std::thread::Builder::new().name("vyre-wgpu-close".into()).spawn(move || {
            let _ = receiver.recv();
            drop(std::mem::ManuallyDrop::into_inner(handles));
        });
    }
}

impl Recorder {
    /// Records which flights have started: those whose predecessors have ended or are overdue.
    fn record_starts(&mut self) {
        let (mut before, mut is_stuck) = (None, false);
        for flight in &self.in_flight {
            let Some(Turn::Submitted { at, .. }) = flight.turn.get() else { continue };
            let started = *flight.started.get_or_init(|| before.map_or(*at, |before: Instant| before.max(*at)));
            let Some(end) = flight.ended.get().copied().or_else(|| flight.overdue_since()) else { return };
            before = Some(end.max(started));
            is_stuck |= !flight.is_done();
        }
        // Flights held behind an overdue one have deadlines, too.
        for held in self.held.iter().filter(|_| is_stuck) {
            let (Some(end), flight) = (before, &held.flight) else { return };
            let started = *flight.started.get_or_init(|| end);
            let Some(since) = flight.overdue_since() else { return };
            before = Some(since.max(started));
        }
    }

    /// Returns the bind group for `bindings`, cached within the flight.
    fn group(
        &mut self,
        bindings: Bindings,
        create: impl FnOnce(&Bindings) -> Result<wgpu::BindGroup, Error>,
    ) -> Result<wgpu::BindGroup, Error> {
        if let Some(known) = self.groups.get(&bindings) {
            return Ok(known.clone());
        }
        let group = create(&bindings)?;
        self.groups.insert(bindings, group.clone());
        Ok(group)
    }

    /// Ends the pass, for copies between passes.
    fn between(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()))
    }

    fn record(&mut self, stream: &Stream, step: &Step, group: Option<&wgpu::BindGroup>) -> Option<Report> {
        let device = &stream.device;
        match step {
            Step::Dispatch(dispatch) => return self.dispatch(stream, dispatch, group?),
            Step::Copy { source, target, start, bytes } => {
                self.bytes += bytes;
                self.uploads.push(source.clone());
                self.between(device).copy_buffer_to_buffer(source, 0, target, *start, *bytes);
            }
            Step::Write { target, start, data } => {
                let at = self.given.push(data);
                let source = self.given.buffer.clone();
                self.between(device).copy_buffer_to_buffer(&source, at, target, *start, data.len() as u64);
            }
            Step::Clear { target, start, bytes } => self.between(device).clear_buffer(target, *start, Some(*bytes)),
            Step::Read { source, start, staging } => {
                self.bytes += staging.bytes;
                self.between(device).copy_buffer_to_buffer(source, *start, &staging.buffer, 0, staging.bytes);
                self.staging.push(staging.clone());
            }
        }
        None
    }

    fn dispatch(&mut self, stream: &Stream, dispatch: &Dispatch, bound: &wgpu::BindGroup) -> Option<Report> {
        let device = &stream.device;
        self.flight.launches.fetch_add(1, Ordering::Relaxed);
        let params: Vec<u8> = dispatch.params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let given = match &dispatch.shape {
            Shape::Fixed(_) => self.given.push(&params),
            Shape::Computed(shape) => {
                let at = self.given.push_unshared(&params);
                let target = self.given.buffer.clone();
                self.between(device).copy_buffer_to_buffer(shape, 0, &target, at, 16);
                at
            }
        };
        let mut offsets = vec![given as u32];
        let report = match &dispatch.reporting {
            Reporting::Nowhere => None,
            Reporting::InFlight(words) => {
                let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let at = self.reports.push_unshared(&words);
                offsets.push(at as u32);
                Some(Report { flight: self.flight.clone(), bytes: at..at + words.len() as u64 })
            }
            Reporting::InBuffer(_) => {
                offsets.push(0);
                None
            }
        };
        if self.pass.is_none() {
            let first = 2 * self.passes;
            self.passes += 1;
            let timestamp_writes = stream.timer.as_ref().map(|timer| wgpu::ComputePassTimestampWrites {
                query_set: &timer.queries,
                beginning_of_pass_write_index: Some(first),
                end_of_pass_write_index: Some(first + 1),
            });
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            let pass = self.between(device).begin_compute_pass(&descriptor).forget_lifetime();
            self.pass = Some(Pass { pass, pipeline: None, group: None });
        }
        let Pass { pass, pipeline, group } = self.pass.as_mut().expect("begun above");
        if pipeline.as_ref() != Some(&dispatch.pipeline) {
            pass.set_pipeline(&dispatch.pipeline);
            *pipeline = Some(dispatch.pipeline.clone());
        }
        if group.as_ref().is_none_or(|(known, at)| (known, at) != (bound, &offsets)) {
            pass.set_bind_group(0, bound, &offsets);
            *group = Some((bound.clone(), offsets));
        }
        match &dispatch.shape {
            Shape::Fixed([x, y, z]) => pass.dispatch_workgroups(*x, *y, *z),
            Shape::Computed(shape) => pass.dispatch_workgroups_indirect(shape, 16),
        }
        report
    }
}

impl Arena {
    fn fits(&self, words: usize) -> bool {
        let needed = (4 * words as u64).next_multiple_of(self.alignment);
        self.contents.len() as u64 + needed <= self.buffer.size() || self.contents.is_empty()
    }

    /// Appends bytes and returns their offset. Reuses the last part if it is equal.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        match self.contents.get(self.last..self.last + bytes.len()) {
            Some(last) if last == bytes => self.last as u64,
            _ => {
                let at = self.push_unshared(bytes);
                self.last = at as usize;
                at
            }
        }
    }

    /// Appends bytes that the kernel modifies.
    fn push_unshared(&mut self, bytes: &[u8]) -> u64 {
        let at = self.contents.len();
        self.contents.extend(bytes);
        let end = (self.contents.len() as u64).next_multiple_of(self.alignment);
        self.contents.resize(end as usize, 0);
        self.last = self.contents.len();
        at as u64
    }

    fn clear(&mut self) {
        self.contents.clear();
        self.last = 0;
    }
}

impl Flight {
    fn new() -> Flight {
        Flight {
            turn: OnceLock::new(),
            started: OnceLock::new(),
            abandoned: OnceLock::new(),
            staging: OnceLock::new(),
            left: AtomicUsize::new(1),
            unmapped: AtomicBool::new(false),
            ended: OnceLock::new(),
            launches: AtomicUsize::new(0),
            ticks: OnceLock::new(),
        }
    }

    fn step(&self, good: bool, now: Instant) {
        if !good {
            self.unmapped.store(true, Ordering::Release);
        }
        let _ = self.ended.set(now);
        self.left.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether all callbacks were called, or the flight was skipped.
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// End of the previous flight, if it has ended.
    pub(crate) fn started(&self) -> Option<Instant> {
        self.started.get().copied()
    }

    /// Stops waiting for its results.
    pub(crate) fn abandon(&self, reason: AbandonReason) {
        let _ = self.abandoned.set(reason);
    }

    /// Time since which it is overdue.
    fn overdue_since(&self) -> Option<Instant> {
        match self.abandoned.get() {
            Some(AbandonReason::Overdue(since)) => Some(*since),
            Some(AbandonReason::Cancelled) | None => None,
        }
    }

    /// Duration from submission to completion.
    fn elapsed(&self) -> Duration {
        match (self.turn.get(), self.ended.get()) {
            (Some(Turn::Submitted { at, .. }), Some(ended)) => ended.saturating_duration_since(*at),
            _ => Duration::ZERO,
        }
    }

    /// Execution time of a launch: an equal share of the flight's. Without timestamps, that of the whole flight in the
    /// driver.
    pub(crate) fn time(&self) -> Duration {
        let all = self.measured().unwrap_or_else(|| self.elapsed());
        all / self.launches.load(Ordering::Relaxed).max(1) as u32
    }

    /// Execution time of the flight's passes, measured by timestamps.
    fn measured(&self) -> Option<Duration> {
        let (staging, nanoseconds_per_tick) = self.ticks.get()?;
        let contents = staging.contents().ok()?;
        let ticks: Vec<u64> =
            contents.chunks_exact(8).filter_map(|tick| Some(u64::from_le_bytes(tick.try_into().ok()?))).collect();
        let total: u64 = ticks.chunks_exact(2).map(|pass| pass[1].saturating_sub(pass[0])).sum();
        Some(Duration::from_nanos((total as f64 * f64::from(*nanoseconds_per_tick)) as u64))
            .filter(|time| !time.is_zero())
    }
}

impl Timer {
    fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Option<Timer>, Error> {
        if !device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Ok(None);
        }
        let count = 2 * MAX_PASSES;
        let made = checked(device, || Timer {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count,
            }),
            ticks: device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 8 * u64::from(count),
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
            nanoseconds_per_tick: queue.get_timestamp_period(),
        });
        made.map(Some).map_err(failed)
    }
}

impl Report {
    /// Bytes of the kernel's report. The flight must have completed.
    pub(crate) fn contents(&self) -> Result<Vec<u8>, Error> {
        let staging = self.flight.staging.get().and_then(|staging| staging.last());
        let staging = staging.ok_or_else(|| failed("a flight has no reports"))?;
        Ok(staging.buffer.get_mapped_range(self.bytes.clone()).map_err(failed)?.to_vec())
    }
}

impl Staging {
    /// Copied contents. The flight must have completed.
    pub(crate) fn contents(&self) -> Result<Vec<u8>, Error> {
        Ok(self.buffer.get_mapped_range(..self.bytes).map_err(failed)?.to_vec())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Some(stream) = self.stream.upgrade() else { return };
        // A staging buffer that was never mapped, because its flight was not submitted, cannot be unmapped.
        if stream.attempt(0, || self.buffer.unmap()).is_ok() {
            put_back(&stream.idle, self.buffer.clone());
        }
    }
}

/// Rounds up the size of a staging buffer, so that it can be reused for other sizes.
fn staging_size(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(256).min(bytes.next_multiple_of(1 << 20))
}

/// Takes a buffer of suitable size from a pool.
fn take(idle: &Mutex<Vec<wgpu::Buffer>>, bytes: u64) -> Option<wgpu::Buffer> {
    let mut idle = lock(idle);
    let fits = |buffer: &wgpu::Buffer| (bytes..=4 * bytes.max(1 << 12)).contains(&buffer.size());
    idle.iter().position(fits).map(|position| idle.swap_remove(position))
}

/// Returns a buffer to a pool, unless the pool is full.
fn put_back(idle: &Mutex<Vec<wgpu::Buffer>>, buffer: wgpu::Buffer) {
    let mut idle = lock(idle);
    if idle.iter().map(wgpu::Buffer::size).sum::<u64>() + buffer.size() <= MAX_IDLE {
        idle.push(buffer);
    }
}

/// Writes the beginning of a mapped buffer, and unmaps it.
fn fill(buffer: &wgpu::Buffer, contents: &[u8]) -> Result<(), Error> {
    let mut view = buffer.get_mapped_range_mut(..).map_err(failed)?;
    view.slice(..contents.len()).copy_from_slice(contents);
    drop(view);
    buffer.unmap();
    Ok(())
}

/// Runs wgpu calls in error scopes; returns the first error.
fn checked<T>(device: &wgpu::Device, run: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
    let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal]
        .map(|filter| device.push_error_scope(filter));
    let result = run();
    let mut first = None;
    // Scopes are popped in reverse order.
    for scope in scopes.into_iter().rev() {
        first = ready(scope.pop()).or(first);
    }
    first.map_or(Ok(result), Err)
}
