//! The stream of commands to a device.
//!
//! The commands of all submissions are recorded into one command buffer, which is handed to the driver when the device has nothing
//! to do, when somebody waits for it, or when enough has come together. What was handed over at once is a *flight*. Recording one
//! overlaps with the execution of those before, of which there are a few at most.
//!
//! What the host says to the kernels of a flight is gathered here, and put into one buffer before the flight; so is what kernels
//! report, in another that is copied for the host after it. Both buffers are the same for all flights: flights are executed in
//! order. What is read goes to a staging buffer of its own at its place in the order. Staging buffers are used again, those for
//! what the host writes as well.
//!
//! Where a device has timestamps, they are taken around the dispatches between two copies.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use vyre_driver::Error;

use crate::device::{failed, ready};

/// Dispatches and copies of a flight, at most.
const MOST_STEPS: usize = 512;
/// Bytes that the writes of a flight hold, about.
const MOST_BYTES: u64 = 64 << 20;
/// Flights that the driver has not finished, at most.
const MOST_FLIGHTS: usize = 4;
/// Bytes of the buffers for what the host and the kernels of a flight say.
const ARENA: u64 = 1 << 20;
/// Steps of a flight whose timestamps are read. With more of them, what the whole flight took says as much.
const MOST_TIMED: usize = 64;
/// Passes of a flight, at most.
const MOST_PASSES: u32 = 64;
/// Bytes of staging buffers that are kept for later, for each direction.
const MOST_IDLE: u64 = 64 << 20;

/// A device of wgpu and what is on its way to it.
pub(crate) struct Stream {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    /// Why the device was lost, if it was.
    lost: Arc<Mutex<Option<String>>>,
    recorder: Mutex<Recorder>,
    /// Staging buffers that nobody uses: for what is read, and, mapped, for what is written.
    idle: Mutex<Vec<wgpu::Buffer>>,
    idle_uploads: Mutex<Vec<wgpu::Buffer>>,
    timer: Option<Timer>,
}

/// The timestamps of a flight.
struct Timer {
    queries: wgpu::QuerySet,
    /// Where the device puts them.
    ticks: wgpu::Buffer,
    nanoseconds_per_tick: f32,
}

/// What comes together to the next flight.
pub(crate) struct Recorder {
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<Pass>,
    flight: Arc<Flight>,
    /// Staging buffers that the flight copies to.
    staging: Vec<Arc<Staging>>,
    /// Staging buffers that it copies from.
    uploads: Vec<wgpu::Buffer>,
    /// Passes that were begun.
    passes: u32,
    given: Arena,
    reports: Arena,
    groups: HashMap<Bindings, wgpu::BindGroup>,
    steps: usize,
    bytes: u64,
    in_flight: VecDeque<Arc<Flight>>,
}

/// Dispatches one after the other, and what is set for the next.
struct Pass {
    pass: wgpu::ComputePass<'static>,
    pipeline: Option<wgpu::ComputePipeline>,
    group: Option<(wgpu::BindGroup, Vec<u32>)>,
}

/// A buffer of a flight, and what is put into it before that.
struct Arena {
    buffer: wgpu::Buffer,
    contents: Vec<u8>,
    alignment: u64,
    /// Where the last part begins.
    last: usize,
}

/// What is bound, by the number of its binding: a buffer, where it begins there, and how many bytes.
pub(crate) type Bindings = (wgpu::BindGroupLayout, Vec<(wgpu::Buffer, u64, u64)>);

/// Commands that are executed together.
pub(crate) struct Flight {
    /// What became of it when it was handed over.
    begun: OnceLock<Result<(wgpu::SubmissionIndex, Instant), Error>>,
    /// What it copies to. It keeps them: one that somebody has lost interest in must not be used for something else before.
    staging: OnceLock<Vec<Arc<Staging>>>,
    /// Callbacks that have not been called yet: one for the work, and one for each mapping.
    left: AtomicUsize,
    unmapped: AtomicBool,
    ended: OnceLock<Instant>,
    launches: AtomicUsize,
    /// Where the timestamps of its passes are, and how long a tick is.
    ticks: OnceLock<(Arc<Staging>, f32)>,
}

/// Something to be recorded. Whatever could fail has been done.
pub(crate) enum Step {
    Dispatch(Dispatch),
    /// From a buffer that holds the data.
    Copy {
        source: wgpu::Buffer,
        target: wgpu::Buffer,
        start: u64,
        bytes: u64,
    },
    /// A few words.
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

/// A dispatch that can be recorded.
pub(crate) struct Dispatch {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) group: wgpu::BindGroup,
    pub(crate) params: Vec<u32>,
    /// What the report is before.
    pub(crate) report: Option<Vec<u32>>,
    pub(crate) grid: Grid,
}

/// Workgroups as they are launched.
pub(crate) enum Grid {
    Fixed([u32; 3]),
    /// Four words for `params`, and then three words, in a buffer that an earlier step has written.
    Computed(wgpu::Buffer),
}

/// Writes that are not larger are put into the buffer of the flight.
pub(crate) const SMALL: usize = 16 << 10;

/// Part of what a flight leaves for the host.
pub(crate) struct Report {
    flight: Arc<Flight>,
    bytes: std::ops::Range<u64>,
}

/// A buffer that the host can read when the flight is done. It goes back to the others when it is dropped.
pub(crate) struct Staging {
    buffer: wgpu::Buffer,
    bytes: u64,
    stream: Weak<Stream>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Result<Arc<Stream>, Error> {
        let lost = Arc::new(Mutex::new(None));
        let record = lost.clone();
        device.set_device_lost_callback(move |_, reason| {
            lock(&record).get_or_insert(if reason.is_empty() { "it was destroyed".into() } else { reason });
        });
        // Errors are asked for where they can happen; what slips through must not end the process.
        device.on_uncaptured_error(Arc::new(|_| {}));
        let limits = device.limits();
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
            in_flight: VecDeque::new(),
        };
        let timer = Timer::new(&device, &queue)?;
        let (recorder, idle, idle_uploads) = (Mutex::new(recorder), Mutex::default(), Mutex::default());
        Ok(Arc::new(Stream { device, queue, lost, recorder, idle, idle_uploads, timer }))
    }

    pub(crate) fn check_lost(&self) -> Result<(), Error> {
        match &*lock(&self.lost) {
            Some(reason) => Err(Error::DeviceLost { reason: reason.clone(), unacknowledged: Vec::new() }),
            None => Ok(()),
        }
    }

    /// Runs something that wgpu may have an error about; memory of so many bytes was asked for.
    pub(crate) fn attempt<T>(&self, requested: u64, run: impl FnOnce() -> T) -> Result<T, Error> {
        checked(&self.device, run).map_err(|error| {
            // A device that is lost refuses everything; that it is lost it says when it is polled.
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

    /// A buffer that the host can write before it is unmapped.
    fn create_mapped(&self, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Error> {
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: true };
        self.attempt(size, || self.device.create_buffer(&descriptor))
    }

    /// A buffer with these contents.
    pub(crate) fn filled(&self, contents: &[u8], usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, Error> {
        let buffer = self.create_mapped((contents.len() as u64).next_multiple_of(16).max(16), usage)?;
        fill(&buffer, contents)?;
        Ok(buffer)
    }

    /// Takes the turn to record.
    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.recorder)
    }

    /// A staging buffer for this many bytes.
    pub(crate) fn staging(self: &Arc<Self>, bytes: u64) -> Result<Arc<Staging>, Error> {
        let buffer = match take(&self.idle, bytes) {
            Some(buffer) => buffer,
            None => self.create(staging_size(bytes), wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)?,
        };
        Ok(Arc::new(Staging { buffer, bytes, stream: Arc::downgrade(self) }))
    }

    /// A staging buffer that begins with these bytes.
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

    /// Records a step. What it reports is where the result says.
    pub(crate) fn record(self: &Arc<Self>, recorder: &mut Recorder, step: &Step) -> Option<Report> {
        let (given, reported) = match step {
            Step::Dispatch(dispatch) => (dispatch.params.len(), dispatch.report.as_ref().map_or(0, Vec::len)),
            Step::Write { data, .. } => (data.len() / 4, 0),
            Step::Copy { .. } | Step::Clear { .. } | Step::Read { .. } => (0, 0),
        };
        let full = recorder.steps >= MOST_STEPS || recorder.bytes >= MOST_BYTES || recorder.passes >= MOST_PASSES;
        if full || !recorder.given.fits(given) || !recorder.reports.fits(reported) {
            self.flush(recorder);
        }
        recorder.steps += 1;
        recorder.record(self, step)
    }

    /// Begins to execute what is recorded, if the device has nothing else to do.
    pub(crate) fn start(self: &Arc<Self>, recorder: &mut Recorder) {
        if recorder.in_flight.iter().all(|flight| flight.left.load(Ordering::Acquire) == 0) {
            self.flush(recorder);
        }
    }

    /// Makes room for a report.
    pub(crate) fn reserve_report(self: &Arc<Self>, recorder: &mut Recorder, words: u64) -> Result<(), Error> {
        if 4 * words <= recorder.reports.buffer.size() {
            return Ok(());
        }
        self.flush(recorder);
        recorder.reports.buffer = self.create((4 * words).next_power_of_two(), recorder.reports.buffer.usage())?;
        Ok(())
    }

    /// Hands over what is recorded. Where that fails, the device counts as lost: there may be nobody who waits for it.
    fn flush(self: &Arc<Self>, recorder: &mut Recorder) {
        let Some(mut encoder) = recorder.encoder.take() else { return };
        recorder.pass = None;
        let flight = std::mem::replace(&mut recorder.flight, Arc::new(Flight::new()));
        while recorder.in_flight.front().is_some_and(|earliest| earliest.left.load(Ordering::Acquire) == 0) {
            recorder.in_flight.pop_front();
        }
        if recorder.in_flight.len() >= MOST_FLIGHTS
            && let Some(earliest) = recorder.in_flight.pop_front()
            && let Some(Ok((index, _))) = earliest.begun.get()
        {
            let submission_index = Some(index.clone());
            let _ = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: None });
        }
        let reported = recorder.reports.contents.len() as u64;
        let begun = self.check_lost().and_then(|()| {
            let mut staging = std::mem::take(&mut recorder.staging);
            if let (Some(timer), 1.., ..=MOST_TIMED) = (&self.timer, recorder.passes, recorder.steps) {
                let place = self.staging(16 * u64::from(recorder.passes))?;
                encoder.resolve_query_set(&timer.queries, 0..2 * recorder.passes, &timer.ticks, 0);
                encoder.copy_buffer_to_buffer(&timer.ticks, 0, &place.buffer, 0, place.bytes);
                let _ = flight.ticks.set((place.clone(), timer.nanoseconds_per_tick));
                staging.push(place);
            }
            if reported > 0 {
                let place = self.staging(reported)?;
                encoder.copy_buffer_to_buffer(&recorder.reports.buffer, 0, &place.buffer, 0, reported);
                // The last one is where reports are looked for.
                staging.push(place);
            }
            flight.left.store(1 + staging.len(), Ordering::Release);
            let index = self.attempt(0, || {
                for arena in [&recorder.given, &recorder.reports] {
                    self.queue.write_buffer(&arena.buffer, 0, &arena.contents);
                }
                self.queue.submit([encoder.finish()])
            })?;
            let done = flight.clone();
            self.queue.on_submitted_work_done(move || done.step(true));
            for staging in &staging {
                let done = flight.clone();
                staging.buffer.map_async(wgpu::MapMode::Read, .., move |result| done.step(result.is_ok()));
            }
            let _ = flight.staging.set(staging);
            for upload in recorder.uploads.drain(..) {
                self.keep_upload(&upload);
            }
            Ok((index, Instant::now()))
        });
        let begun = begun.map_err(|error| {
            let reason = lock(&self.lost).get_or_insert_with(|| error.to_string()).clone();
            Error::DeviceLost { reason, unacknowledged: Vec::new() }
        });
        let _ = flight.begun.set(begun);
        recorder.in_flight.push_back(flight);
        recorder.staging.clear();
        recorder.uploads.clear();
        recorder.passes = 0;
        recorder.given.clear();
        recorder.reports.clear();
        recorder.groups.clear();
        recorder.steps = 0;
        recorder.bytes = 0;
    }

    /// Maps a staging buffer, which happens when the device no longer copies from it, and keeps it for later.
    fn keep_upload(self: &Arc<Self>, upload: &wgpu::Buffer) {
        let stream = Arc::downgrade(self);
        let kept = upload.clone();
        upload.map_async(wgpu::MapMode::Write, .., move |result| {
            if let (Ok(()), Some(stream)) = (result, stream.upgrade()) {
                put_back(&stream.idle_uploads, kept);
            }
        });
    }

    /// Waits until a flight is done, or for a time; whether it is.
    pub(crate) fn wait(self: &Arc<Self>, flight: &Arc<Flight>, timeout: Option<Duration>) -> Result<bool, Error> {
        if flight.begun.get().is_none() {
            let mut recorder = self.recorder();
            if Arc::ptr_eq(&recorder.flight, flight) {
                self.flush(&mut recorder);
            }
        }
        let (index, _) = match flight.begun.get() {
            Some(Ok(begun)) => begun,
            Some(Err(error)) => return Err(error.clone()),
            // Another thread is handing it over.
            None => return Ok(false),
        };
        if flight.left.load(Ordering::Acquire) > 0 {
            let submission_index = Some(index.clone());
            let poll = match timeout {
                Some(Duration::ZERO) => wgpu::PollType::Poll,
                _ => wgpu::PollType::Wait { submission_index, timeout },
            };
            match self.device.poll(poll) {
                // Whether it is done is said by its callbacks; that a wait timed out is no error.
                Ok(_) | Err(wgpu::PollError::Timeout) => {}
                // What a lost device was given is not known to it.
                Err(error) => {
                    let _ = self.device.poll(wgpu::PollType::Poll);
                    lock(&self.lost).get_or_insert_with(|| error.to_string());
                }
            }
            self.check_lost()?;
        }
        if flight.left.load(Ordering::Acquire) > 0 {
            return Ok(false);
        }
        if flight.unmapped.load(Ordering::Acquire) {
            self.check_lost()?;
            return Err(failed("a staging buffer could not be mapped"));
        }
        Ok(true)
    }
}

impl Recorder {
    /// The flight that the next step belongs to.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The buffers for what the host says, and for what kernels report.
    pub(crate) fn arenas(&self) -> [&wgpu::Buffer; 2] {
        [&self.given.buffer, &self.reports.buffer]
    }

    /// What was bound like this before in the flight, or what `create` gives.
    pub(crate) fn group(
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

    /// Ends the pass: copies stand between passes.
    fn between(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()))
    }

    fn record(&mut self, stream: &Stream, step: &Step) -> Option<Report> {
        let device = &stream.device;
        match step {
            Step::Dispatch(dispatch) => return self.dispatch(stream, dispatch),
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

    fn dispatch(&mut self, stream: &Stream, dispatch: &Dispatch) -> Option<Report> {
        let device = &stream.device;
        self.flight.launches.fetch_add(1, Ordering::Relaxed);
        let params: Vec<u8> = dispatch.params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let given = match &dispatch.grid {
            Grid::Fixed(_) => self.given.push(&params),
            Grid::Computed(shape) => {
                let at = self.given.push_alone(&params);
                let target = self.given.buffer.clone();
                self.between(device).copy_buffer_to_buffer(shape, 0, &target, at, 16);
                at
            }
        };
        let mut offsets = vec![given as u32];
        let report = dispatch.report.as_ref().map(|words| {
            let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = self.reports.push_alone(&words);
            offsets.push(at as u32);
            Report { flight: self.flight.clone(), bytes: at..at + words.len() as u64 }
        });
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
        if group.as_ref().is_none_or(|(known, at)| (known, at) != (&dispatch.group, &offsets)) {
            pass.set_bind_group(0, &dispatch.group, &offsets);
            *group = Some((dispatch.group.clone(), offsets));
        }
        match &dispatch.grid {
            Grid::Fixed([x, y, z]) => pass.dispatch_workgroups(*x, *y, *z),
            Grid::Computed(shape) => pass.dispatch_workgroups_indirect(shape, 16),
        }
        report
    }
}

impl Arena {
    fn fits(&self, words: usize) -> bool {
        let needed = (4 * words as u64).next_multiple_of(self.alignment);
        self.contents.len() as u64 + needed <= self.buffer.size() || self.contents.is_empty()
    }

    /// Puts bytes into the buffer, and says where. What is equal to the last ones is there already.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        match self.contents.get(self.last..self.last + bytes.len()) {
            Some(last) if last == bytes => self.last as u64,
            _ => {
                let at = self.push_alone(bytes);
                self.last = at as usize;
                at
            }
        }
    }

    /// The same for bytes that will be changed.
    fn push_alone(&mut self, bytes: &[u8]) -> u64 {
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
            begun: OnceLock::new(),
            staging: OnceLock::new(),
            left: AtomicUsize::new(1),
            unmapped: AtomicBool::new(false),
            ended: OnceLock::new(),
            launches: AtomicUsize::new(0),
            ticks: OnceLock::new(),
        }
    }

    fn step(&self, good: bool) {
        if !good {
            self.unmapped.store(true, Ordering::Release);
        }
        let _ = self.ended.set(Instant::now());
        self.left.fetch_sub(1, Ordering::AcqRel);
    }

    /// How long it has been executed.
    pub(crate) fn elapsed(&self) -> Duration {
        let Some(Ok((_, begun))) = self.begun.get() else { return Duration::ZERO };
        self.ended.get().map_or_else(|| begun.elapsed(), |ended| ended.duration_since(*begun))
    }

    /// What a launch took: each counts as much as the others. Without timestamps, what the driver does when is not known.
    pub(crate) fn time(&self) -> Duration {
        let all = self.measured().unwrap_or_else(|| self.elapsed());
        all / self.launches.load(Ordering::Relaxed).max(1) as u32
    }

    /// What the device says its passes took, after them.
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
        let count = 2 * MOST_PASSES;
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
    /// What the kernel said, after the flight.
    pub(crate) fn contents(&self) -> Result<Vec<u8>, Error> {
        let staging = self.flight.staging.get().and_then(|staging| staging.last());
        let staging = staging.ok_or_else(|| failed("a flight has no reports"))?;
        Ok(staging.buffer.get_mapped_range(self.bytes.clone()).map_err(failed)?.to_vec())
    }
}

impl Staging {
    /// What was copied, after the flight.
    pub(crate) fn contents(&self) -> Result<Vec<u8>, Error> {
        Ok(self.buffer.get_mapped_range(..self.bytes).map_err(failed)?.to_vec())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Some(stream) = self.stream.upgrade() else { return };
        self.buffer.unmap();
        put_back(&stream.idle, self.buffer.clone());
    }
}

/// The size of a staging buffer for this many bytes, so that others find a use for it, too.
fn staging_size(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(256).min(bytes.next_multiple_of(1 << 20))
}

/// A staging buffer that is not much too large.
fn take(idle: &Mutex<Vec<wgpu::Buffer>>, bytes: u64) -> Option<wgpu::Buffer> {
    let mut idle = lock(idle);
    let fits = |buffer: &wgpu::Buffer| (bytes..=4 * bytes.max(1 << 12)).contains(&buffer.size());
    idle.iter().position(fits).map(|position| idle.swap_remove(position))
}

/// Keeps a staging buffer, if there are not too many.
fn put_back(idle: &Mutex<Vec<wgpu::Buffer>>, buffer: wgpu::Buffer) {
    let mut idle = lock(idle);
    if idle.iter().map(wgpu::Buffer::size).sum::<u64>() + buffer.size() <= MOST_IDLE {
        idle.push(buffer);
    }
}

/// Writes the beginning of a buffer that is mapped, and unmaps it.
fn fill(buffer: &wgpu::Buffer, contents: &[u8]) -> Result<(), Error> {
    let mut view = buffer.get_mapped_range_mut(..).map_err(failed)?;
    view.slice(..contents.len()).copy_from_slice(contents);
    drop(view);
    buffer.unmap();
    Ok(())
}

/// Runs something and gives the first error that wgpu has about it.
fn checked<T>(device: &wgpu::Device, run: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
    let scopes = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal]
        .map(|filter| device.push_error_scope(filter));
    let result = run();
    let mut first = None;
    // Scopes are popped in the reverse order.
    for scope in scopes.into_iter().rev() {
        first = ready(scope.pop()).or(first);
    }
    first.map_or(Ok(result), Err)
}
