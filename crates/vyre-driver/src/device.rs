//! Devices as callers see them: compilation, dispatch, submission and memory accounting.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Element, MemId, Program};
use vyre_foundation::launch::{self, Arguments, Limits, Outcome, Report};
use vyre_foundation::optimizer::Pipeline;
use vyre_foundation::{Validated, optimizer, wire};

use crate::backend::{self, Command, Completion, Groups, Launch, Ticket};
use crate::buffer::{Buffer, Pool};
use crate::cache::{Compiled, Key, Recent};
use crate::{Cache, Capabilities, DeviceKind, Error, Telemetry, Unacknowledged, Work, trace};

/// An open device. Clones share the device; threads may use it concurrently.
#[derive(Clone)]
pub struct Device {
    core: Arc<Core>,
    telemetry: Arc<Telemetry>,
    cache: Option<Arc<Cache>>,
    optimizes: bool,
    profile: optimizer::Profile,
}

/// State shared by the clones of a device and its buffers.
pub(crate) struct Core {
    pub(crate) backend: Box<dyn backend::Device>,
    pub(crate) pool: Lock<Pool>,
    /// Bytes of all buffers.
    pub(crate) used: AtomicU64,
    /// High-water mark of `used` since the device was opened or the mark was reset.
    pub(crate) peak: AtomicU64,
    /// Number of losses of the device.
    generation: AtomicU64,
    /// Recently compiled programs.
    recent: Lock<Recent>,
    /// Backend properties that optimized programs depend on.
    fingerprint: String,
    submissions: Lock<Submissions>,
    /// Serializes submissions.
    turn: Lock<()>,
}

/// Pending submissions. A device executes submissions in order, so a completed one acknowledges all earlier ones.
#[derive(Default)]
struct Submissions {
    count: u64,
    unacknowledged: VecDeque<Unacknowledged>,
}

/// A mutex that ignores poisoning: the guarded state is consistent between any two statements.
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Invalidates all buffers of the device.
    pub(crate) fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.pool.lock().clear();
        *self.recent.lock() = Recent::default();
    }

    pub(crate) fn submit(self: &Arc<Self>, commands: Vec<Command>, work: Work) -> Result<Pending, Error> {
        // Concurrent submissions are numbered in the order in which the backend receives them. The backend may compile
        // meanwhile, which does not block waiting threads.
        let _turn = self.turn.lock();
        let ticket = self.backend.submit(commands);
        let mut submissions = self.submissions.lock();
        if ticket.is_ok() {
            submissions.count += 1;
            let submission = submissions.count;
            submissions.unacknowledged.push_back(Unacknowledged { submission, work });
        }
        let number = submissions.count;
        drop(submissions);
        Ok(Pending { core: self.clone(), ticket: Some(self.observe(ticket)?), number })
    }

    fn acknowledge(&self, number: u64) {
        let unacknowledged = &mut self.submissions.lock().unacknowledged;
        while unacknowledged.front().is_some_and(|earliest| earliest.submission <= number) {
            unacknowledged.pop_front();
        }
    }

    /// Detects the loss of the device, on whichever call reports it, and lists the unacknowledged submissions.
    pub(crate) fn observe<T>(&self, mut result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::DeviceLost { unacknowledged, .. }) = &mut result {
            unacknowledged.extend(self.submissions.lock().unacknowledged.iter().cloned());
            self.invalidate();
        }
        result
    }
}

/// A submitted batch, whose completion can be taken once.
pub(crate) struct Pending {
    core: Arc<Core>,
    /// `None` after the completion was taken.
    ticket: Option<Box<dyn Ticket>>,
    number: u64,
}

impl Pending {
    /// Waits for the batch, optionally with a timeout; `None` after the timeout.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>> {
        let Some(ticket) = &mut self.ticket else { return Some(Err(Error::AlreadyTaken)) };
        let result = ticket.wait(timeout)?;
        self.ticket = None;
        if result.is_ok() {
            self.core.acknowledge(self.number);
        }
        Some(self.core.observe(result))
    }

    /// Waits for the batch.
    pub(crate) fn wait_until_done(&mut self) -> Result<Completion, Error> {
        loop {
            if let Some(result) = self.wait(None) {
                return result;
            }
        }
    }

    fn cancel(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            ticket.cancel();
        }
    }
}

/// A program compiled for a device. Clones share it.
#[derive(Clone)]
pub struct Kernel(Arc<Prepared>);

struct Prepared {
    core: Arc<Core>,
    /// Optimized program, as executed.
    program: Validated<Program>,
    kernel: Arc<dyn backend::Kernel>,
    name: Arc<str>,
    /// Operation under which dispatches are recorded: that of the unoptimized program.
    entry_op: Option<Arc<str>>,
    compilation: Compilation,
}

/// Record of a kernel's compilation.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// Origin of the executed program.
    pub origin: Origin,
    /// Decision about each pass; empty on devices that do not optimize.
    pub decisions: Vec<optimizer::Decision>,
    /// Report of the passes, if they ran for this device; programs from disk have none.
    pub report: Option<Arc<optimizer::Report>>,
    /// Reason for slow execution, such as missing machine code. Objects are assumed to have the lengths that they are
    /// declared or [compiled for](Device::compile_for) with; [`Dispatch::fallback`] uses those of the buffers.
    pub fallback: Option<String>,
}

/// Origin of the program of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Unoptimized, as given by the caller.
    AsWritten,
    /// Optimized by this compile.
    Optimized,
    /// Compiled by the device before.
    Memory,
    /// Optimized before, possibly by another process, and loaded from the [`Cache`].
    Disk,
}

/// Origin and program, and the report of the passes if they ran.
type Optimized = (Origin, Validated<Program>, Option<Arc<optimizer::Report>>);

/// Result of optimizing a program for a device.
struct Form {
    key: Key,
    program: Validated<Program>,
    origin: Origin,
    decisions: Vec<optimizer::Decision>,
    report: Option<Arc<optimizer::Report>>,
    /// The kernel, if one is in use.
    kernel: Option<Arc<dyn backend::Kernel>>,
}

impl Kernel {
    /// The program as executed. Its objects are bound like those of the original one.
    pub fn program(&self) -> &Validated<Program> {
        &self.0.program
    }

    /// Record of the compilation.
    pub fn compilation(&self) -> &Compilation {
        &self.0.compilation
    }

    /// Binds the objects of the program by name, with default limits.
    ///
    /// # Errors
    /// The arguments do not fit the program, or exceed the binding limits of the device; the grid is too large, or not
    /// three u32; a buffer belongs to another device.
    pub fn dispatch<'n>(
        &self,
        grid: Grid,
        arguments: impl IntoIterator<Item = (&'n str, Argument)>,
    ) -> Result<Dispatch, Error> {
        let Prepared { core, program, .. } = &*self.0;
        let limit = core.backend.capabilities().max_binding_bytes;
        let arguments = launch::bind(program, arguments, |memory, buffer: &Buffer| {
            let slice = buffer.on(core, &memory.name)?;
            if slice.bytes > limit {
                let needed = format!("{} bytes bound to `{}`", slice.bytes, memory.name);
                return Err(Error::Unsupported { needed, available: format!("bindings of {limit} bytes") });
            }
            Ok(slice)
        })?;
        let groups = match grid.fixed() {
            Ok(grid) => Groups::Fixed(grid.groups(program.workgroup_size())?),
            Err(buffer) if (buffer.element(), buffer.len()) != (Element::U32, 3) => {
                return Err(Error::IndirectGrid { found: format!("{buffer:?}") });
            }
            Err(buffer) => {
                buffer.on(core, "grid")?;
                Groups::Indirect(buffer)
            }
        };
        Ok(Dispatch { kernel: self.clone(), groups, arguments, limits: Limits::default() })
    }
}

/// Argument of a memory object: a buffer, or the value of a uniform.
pub type Argument = launch::Argument<Buffer>;

/// Number of invocations: fixed, or the contents of a buffer.
pub type Grid = launch::Grid<Buffer>;

impl From<&Buffer> for Argument {
    fn from(buffer: &Buffer) -> Self {
        Argument::Buffer(buffer.clone())
    }
}

/// A validated execution of a kernel, with its arguments and grid. It may be submitted any number of times.
#[derive(Clone)]
pub struct Dispatch {
    kernel: Kernel,
    groups: Groups<Buffer>,
    arguments: Arguments<Buffer>,
    limits: Limits,
}

impl Dispatch {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Replaces the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Dispatch {
        self.limits = limits;
        self
    }

    /// Reason for slow execution of this dispatch, such as an object too long for machine code.
    pub fn fallback(&self) -> Option<String> {
        let length = |id| match self.arguments.get(id)? {
            launch::Argument::Buffer(buffer) => Some(u64::from(buffer.len())),
            launch::Argument::Scalar(_) => None,
        };
        self.kernel.0.kernel.fallback(&length)
    }

    /// Bytes of the bound buffers.
    fn bytes(&self) -> u64 {
        self.arguments.buffers().map(|(_, buffer)| buffer.as_slice().bytes).sum()
    }

    /// Backend command of the dispatch.
    fn launch(&self, core: &Arc<Core>) -> Result<Launch, Error> {
        let Prepared { core: of, program, kernel, .. } = &*self.kernel.0;
        if !Arc::ptr_eq(of, core) {
            return Err(Error::Foreign { name: program.name().to_owned() });
        }
        let arguments = self.arguments.try_map(|id, buffer| buffer.live(&program.memory(id).name))?;
        let groups = match &self.groups {
            Groups::Fixed(groups) => Groups::Fixed(*groups),
            Groups::Indirect(buffer) => Groups::Indirect(buffer.live("grid")?),
        };
        let limits = Limits { times_workers: self.limits.times_workers || trace::is_enabled(), ..self.limits };
        Ok(Launch { kernel: kernel.clone(), groups, arguments, limits })
    }
}

/// Memory statistics of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// Allocated by buffers.
    pub used: u64,
    /// Kept in the pool for later buffers.
    pub pooled: u64,
    /// Total memory, if known.
    pub total: Option<u64>,
}

impl Device {
    /// Opens the device of a backend.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn open(backend: &dyn backend::Backend) -> Result<Device, Error> {
        let _span = tracing::info_span!("open", backend = backend.name()).entered();
        let device = backend.open()?;
        let core = Core {
            fingerprint: device.capabilities().fingerprint(backend.name()),
            backend: device,
            pool: Lock(Mutex::new(Pool::default())),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            recent: Lock(Mutex::new(Recent::default())),
            submissions: Lock(Mutex::default()),
            turn: Lock(Mutex::default()),
        };
        // The oracle executes programs unoptimized, since it defines their semantics.
        let optimizes = !matches!(core.backend.capabilities().kind, DeviceKind::Oracle | DeviceKind::Null);
        Ok(Device {
            core: Arc::new(core),
            telemetry: Arc::default(),
            cache: None,
            optimizes,
            profile: optimizer::Profile::default(),
        })
    }

    /// Uses other telemetry for its dispatches.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: &Arc<Telemetry>) -> Device {
        self.telemetry = telemetry.clone();
        self
    }

    /// Uses a persistent cache of optimized programs.
    #[must_use]
    pub fn with_cache(mut self, cache: &Arc<Cache>) -> Device {
        self.cache = Some(cache.clone());
        self
    }

    /// The same device without optimization of programs.
    #[must_use]
    pub fn as_written(&self) -> Device {
        Device { optimizes: false, ..self.clone() }
    }

    /// The same device with another optimization profile.
    #[must_use]
    pub fn with_profile(&self, profile: optimizer::Profile) -> Device {
        Device { profile, ..self.clone() }
    }

    /// Records of earlier dispatches.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Capabilities of the device.
    pub fn capabilities(&self) -> &Capabilities {
        self.core.backend.capabilities()
    }

    /// Memory statistics.
    pub fn memory(&self) -> MemoryStats {
        MemoryStats {
            used: self.core.used.load(Ordering::Relaxed),
            pooled: self.core.pool.lock().bytes,
            total: self.capabilities().memory_bytes,
        }
    }

    /// High-water mark of the bytes in buffers, as the pool rounds them, since the device was opened or the mark was reset.
    /// Clones of a device share it.
    pub fn peak_bytes(&self) -> u64 {
        self.core.peak.load(Ordering::Relaxed)
    }

    /// Resets the high-water mark to the bytes currently in use.
    pub fn reset_peak_bytes(&self) {
        self.core.peak.store(self.core.used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Compiles a program: optimizes it, harder if its dispatches have taken long, and passes it to the backend. Uses
    /// the caches.
    ///
    /// # Errors
    /// The device does not support the program.
    pub fn compile(&self, program: &Validated<Program>) -> Result<Kernel, Error> {
        self.compile_for(program, &[])
    }

    /// Compiles a program for objects of these lengths, in elements, which influence the selection of passes.
    ///
    /// # Errors
    /// The device does not support the program.
    pub fn compile_for(&self, program: &Validated<Program>, lengths: &[(MemId, u64)]) -> Result<Kernel, Error> {
        let _span = tracing::info_span!("compile", program = program.name()).entered();
        let Form { key, program: optimized, origin, decisions, report, kernel } = self.form(program, lengths)?;
        let kernel = match kernel {
            Some(kernel) => kernel,
            None => {
                let _span = tracing::info_span!("lower", program = program.name()).entered();
                let kernel = self.core.observe(self.core.backend.compile(&optimized))?;
                let (program, report, kept) = (optimized.clone(), report.clone(), Arc::downgrade(&kernel));
                self.core.recent.lock().insert(key, Compiled { program, report, kernel: kept });
                kernel
            }
        };
        let fallback = kernel.fallback(&|id| {
            let given = lengths.iter().find(|(object, _)| *object == id).map(|(_, length)| *length);
            given.or_else(|| optimized.memory(id).length.map(u64::from))
        });
        let compilation = Compilation { origin, decisions, report, fallback };
        let entry_op = program.entry_op().map(Arc::from);
        let name = program.name().into();
        let core = self.core.clone();
        Ok(Kernel(Arc::new(Prepared { core, program: optimized, kernel, name, entry_op, compilation })))
    }

    /// The program that [`compile`](Device::compile) passes to the backend.
    ///
    /// # Errors
    /// The device does not support the program.
    pub fn optimized(&self, program: &Validated<Program>) -> Result<Validated<Program>, Error> {
        Ok(self.form(program, &[])?.program)
    }

    fn form(&self, program: &Validated<Program>, lengths: &[(MemId, u64)]) -> Result<Form, Error> {
        self.capabilities().check(program)?;
        let hash = wire::content_hash(program);
        let plan = self.optimizes.then(|| self.select(program, hash, lengths));
        let key = Key::new(program, hash, &self.core.fingerprint, plan.as_ref().map(|plan| &plan.pipeline));
        let known = self.core.recent.lock().get(&key);
        let kernel = known.as_ref().and_then(|known| known.kernel.upgrade());
        let (origin, optimized, report) = match (known, &plan) {
            // Equal programs of different files share a kernel, but not their sources.
            (Some(known), _) => (Origin::Memory, known.program.with_sources(program.sources()), known.report),
            (None, Some(plan)) => self.optimize(program, hash, &key, &plan.pipeline)?,
            (None, None) => (Origin::AsWritten, program.clone(), None),
        };
        let decisions = plan.map(|plan| plan.decisions).unwrap_or_default();
        Ok(Form { key, program: optimized, origin, decisions, report, kernel })
    }

    fn select(&self, program: &Validated<Program>, hash: [u8; 32], lengths: &[(MemId, u64)]) -> optimizer::Plan {
        let (hints, earlier) = (Some(self.telemetry.hints()), self.telemetry.report(hash));
        let (profile, target, report) = (self.profile, self.target(), earlier.as_deref());
        let request = optimizer::Request { profile, target, hints, report, lengths, ..Default::default() };
        optimizer::plan(program, &request)
    }

    /// Optimization profile.
    pub fn profile(&self) -> optimizer::Profile {
        self.profile
    }

    /// Device properties for the optimizer.
    pub fn target(&self) -> optimizer::Target {
        let kind = self.capabilities().kind;
        optimizer::Target {
            // On a processor, workgroup memory is in the same caches as storage.
            scratchpad: kind == DeviceKind::Gpu,
            // GPU driver compilers unroll loops themselves, with knowledge of the device.
            loops_as_written: !matches!(kind, DeviceKind::Gpu | DeviceKind::SoftwareGpu),
        }
    }

    /// Loads an optimized program from the cache, or runs the passes and stores it.
    fn optimize(
        &self,
        program: &Validated<Program>,
        hash: [u8; 32],
        key: &Key,
        passes: &Pipeline,
    ) -> Result<Optimized, Error> {
        let kept = self.cache.as_ref().and_then(|cache| cache.load(key, program.sources()));
        let (origin, optimized, report) = match kept {
            Some(optimized) => (Origin::Disk, optimized, None),
            None => {
                let options = optimizer::Options::default();
                let (optimized, report) = optimizer::run(program.clone(), passes, &options, &mut |_| {})?;
                let report = Arc::new(report);
                self.telemetry.compiled(hash, report.clone());
                if let Some(cache) = &self.cache {
                    cache.store(key, &optimized);
                }
                (Origin::Optimized, optimized, Some(report))
            }
        };
        // Passes may increase resource usage slightly; if that exceeds the limits of the device, the program stays
        // unoptimized.
        match self.capabilities().check(&optimized) {
            Ok(()) => Ok((origin, optimized, report)),
            Err(_) => Ok((Origin::AsWritten, program.clone(), report)),
        }
    }

    /// Allocates a zeroed buffer.
    ///
    /// # Errors
    /// Not enough memory is available.
    pub fn allocate(&self, element: Element, length: u64) -> Result<Buffer, Error> {
        Buffer::new(&self.core, element, length, false)
    }

    /// Allocates a buffer with contents, which must be whole elements.
    ///
    /// # Errors
    /// The length is not a multiple of the element size, or not enough memory is available.
    pub fn upload(&self, element: Element, bytes: &[u8]) -> Result<Buffer, Error> {
        let size = element.size();
        if !bytes.len().is_multiple_of(size) {
            let name = "upload".into();
            return Err(vyre_foundation::Error::PartialElement { name, bytes: bytes.len() as u64, element }.into());
        }
        let buffer = Buffer::new(&self.core, element, (bytes.len() / size) as u64, true)?;
        buffer.write(bytes)?;
        Ok(buffer)
    }

    /// Submits dispatches for execution in order, without blocking.
    ///
    /// # Errors
    /// A dispatch is invalid; then none of them is executed.
    pub fn submit(&self, dispatches: &[Dispatch]) -> Result<Submission, Error> {
        self.clear_and_submit(&[], dispatches)
    }

    /// Like [`submit`](Device::submit), but zeroes buffers first, in the same submission.
    ///
    /// # Errors
    /// A dispatch is invalid, or a buffer belongs to another device; then nothing is executed.
    pub fn clear_and_submit(&self, cleared: &[&Buffer], dispatches: &[Dispatch]) -> Result<Submission, Error> {
        let _span = tracing::info_span!("submit", launches = dispatches.len()).entered();
        let ranges = cleared.iter().map(|buffer| buffer.on(&self.core, "buffer").and_then(|_| buffer.live("buffer")));
        let ranges = ranges.filter(|range| range.as_ref().map_or(true, |range| range.bytes > 0));
        let clears = ranges.map(|range| range.map(Command::Clear));
        let launches = dispatches.iter().map(|dispatch| dispatch.launch(&self.core).map(Command::Launch));
        let commands = clears.chain(launches).collect::<Result<Vec<Command>, Error>>()?;
        let launched =
            dispatches.iter().map(|dispatch| (dispatch.kernel.0.entry_op.clone(), dispatch.bytes())).collect();
        let work = Work::Launches(dispatches.iter().map(|dispatch| dispatch.kernel.0.name.clone()).collect());
        Ok(Submission { pending: self.core.submit(commands, work)?, launched, telemetry: self.telemetry.clone() })
    }

    /// Runs one dispatch and waits for it.
    ///
    /// # Errors
    /// The dispatch is invalid, or the device was lost.
    pub fn run(&self, dispatch: &Dispatch) -> Result<Report, Error> {
        let mut reports = self.submit(std::slice::from_ref(dispatch))?.wait()?;
        reports.pop().ok_or(Error::Backend { backend: "device", reason: "a dispatch returned no report".into() })
    }

    /// Runs a complete job: compiles a program, uploads its inputs, runs it, waits, and downloads the results into the
    /// inputs.
    ///
    /// # Errors
    /// The program or its arguments are invalid, or the device was lost.
    pub fn execute(
        &self,
        program: &Validated<Program>,
        grid: launch::Grid,
        inputs: &mut Inputs,
        limits: Limits,
    ) -> Result<Report, Error> {
        let lengths = program.memories().iter().filter_map(|(object, memory)| {
            let bytes = inputs.contents(&memory.name)?.len();
            Some((object, (bytes / memory.element.size()) as u64))
        });
        let kernel = self.compile_for(program, &lengths.collect::<Vec<_>>())?;
        let mut buffers = Vec::new();
        let mut arguments = Vec::new();
        for (name, argument) in inputs.arguments() {
            let argument = match argument {
                launch::Argument::Scalar(literal) => Argument::Scalar(literal),
                launch::Argument::Buffer(slice) => {
                    let position = slice.buffer as usize;
                    let buffer = self.upload(slice.element, &inputs.buffers[position])?;
                    buffers.push((position, buffer.clone()));
                    Argument::Buffer(buffer)
                }
            };
            arguments.push((name, argument));
        }
        let report = self.run(&kernel.dispatch(grid.widen(), arguments)?.limits(limits))?;
        // After a deadline the contents are unspecified, and the device may be busy with the dispatch for long.
        if !matches!(report.outcome, Outcome::DeadlinePassed { .. }) {
            for (position, buffer) in buffers {
                inputs.buffers[position] = buffer.read()?;
            }
        }
        Ok(report)
    }
}

/// Submitted dispatches.
pub struct Submission {
    pending: Pending,
    /// Operation under which each dispatch is recorded, and the bytes bound to it.
    launched: Vec<(Option<Arc<str>>, u64)>,
    telemetry: Arc<Telemetry>,
}

impl Submission {
    /// Sequence number among the submissions of the device, as used in [`Error::DeviceLost`].
    pub fn number(&self) -> u64 {
        self.pending.number
    }

    /// Waits for all dispatches, and returns a report for each.
    ///
    /// # Errors
    /// The submission was cancelled, the device was lost, or the reports were already taken.
    pub fn wait(mut self) -> Result<Vec<Report>, Error> {
        let _span = tracing::info_span!("wait").entered();
        let result = self.pending.wait_until_done();
        self.record(result)
    }

    /// Waits with a timeout; `None` after it. Returns the reports once.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Vec<Report>, Error>> {
        let result = self.pending.wait(Some(timeout))?;
        Some(self.record(result))
    }

    /// Requests cancellation. Waiting then returns [`Error::Cancelled`], unless the submission was already done.
    pub fn cancel(&mut self) {
        self.pending.cancel();
    }

    /// Records the times of the dispatches.
    fn record(&self, result: Result<Completion, Error>) -> Result<Vec<Report>, Error> {
        let reports = result?.reports;
        if trace::is_enabled() {
            let ops = self.launched.iter().map(|(op, _)| op.as_deref().unwrap_or("kernel"));
            trace::done(ops.zip(&reports));
        }
        for ((op, bytes), report) in self.launched.iter().zip(&reports) {
            if let Some(op) = op {
                self.telemetry.record(op, report.time, *bytes);
            }
        }
        Ok(reports)
    }
}
