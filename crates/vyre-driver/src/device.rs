//! Devices as callers see them.

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

/// An open device. Clones are the same device; several threads may use it at once.
#[derive(Clone)]
pub struct Device {
    core: Arc<Core>,
    telemetry: Arc<Telemetry>,
    cache: Option<Arc<Cache>>,
    optimizes: bool,
    profile: optimizer::Profile,
}

/// What the clones of a device and its buffers share.
pub(crate) struct Core {
    pub(crate) backend: Box<dyn backend::Device>,
    pub(crate) pool: Lock<Pool>,
    /// Bytes of all buffers.
    pub(crate) used: AtomicU64,
    /// High-water mark of `used` since the device was opened or the mark was reset.
    pub(crate) peak: AtomicU64,
    /// How often the device was lost.
    generation: AtomicU64,
    /// The programs that were compiled last.
    recent: Lock<Recent>,
    /// What optimized programs depend on in the backend.
    fingerprint: String,
    submissions: Lock<Submissions>,
    /// The turn to submit.
    turn: Lock<()>,
}

/// What was submitted. A device executes submissions in order, so that one that is done acknowledges those before it.
#[derive(Default)]
struct Submissions {
    count: u64,
    unacknowledged: VecDeque<Unacknowledged>,
}

/// A mutex that does not care whether somebody panicked: what it guards is consistent between any two statements.
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

    /// Every buffer of the device is gone.
    pub(crate) fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.pool.lock().clear();
        *self.recent.lock() = Recent::default();
    }

    pub(crate) fn submit(self: &Arc<Self>, commands: Vec<Command>, work: Work) -> Result<Pending, Error> {
        // Threads that submit at once are numbered in the order in which the backend takes their work. The backend may compile,
        // which threads that wait do not wait for.
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

    /// Notices when the device is lost, whoever is told first, and says what was lost with it.
    pub(crate) fn observe<T>(&self, mut result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::DeviceLost { unacknowledged, .. }) = &mut result {
            unacknowledged.extend(self.submissions.lock().unacknowledged.iter().cloned());
            self.invalidate();
        }
        result
    }
}

/// A batch that was submitted, and whose completion can be taken once.
pub(crate) struct Pending {
    core: Arc<Core>,
    /// `None` after the completion was taken.
    ticket: Option<Box<dyn Ticket>>,
    number: u64,
}

impl Pending {
    /// Waits until the batch is done, or for a time; `None` if it is not done by then.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>> {
        let Some(ticket) = &mut self.ticket else { return Some(Err(Error::AlreadyTaken)) };
        let result = ticket.wait(timeout)?;
        self.ticket = None;
        if result.is_ok() {
            self.core.acknowledge(self.number);
        }
        Some(self.core.observe(result))
    }

    /// Waits until the batch is done.
    pub(crate) fn wait_on(&mut self) -> Result<Completion, Error> {
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

/// A program prepared for a device. Clones share it.
#[derive(Clone)]
pub struct Kernel(Arc<Prepared>);

struct Prepared {
    core: Arc<Core>,
    /// As it is run: optimized.
    program: Validated<Program>,
    kernel: Arc<dyn backend::Kernel>,
    name: Arc<str>,
    /// The operation under which its dispatches are recorded: that of the program before it was optimized.
    entry_op: Option<Arc<str>>,
    compilation: Compilation,
}

/// How a kernel came about.
#[derive(Clone, Debug)]
pub struct Compilation {
    /// Where its program comes from.
    pub origin: Origin,
    /// For each pass, whether it was selected and why; empty on devices that run programs as they are written.
    pub decisions: Vec<optimizer::Decision>,
    /// What the passes did, if they ran for this device: what comes from disk comes without it.
    pub report: Option<Arc<optimizer::Report>>,
    /// The reason why the device executes it in a slower way than others, such as without machine code. Objects count with the lengths
    /// that they are declared or [compiled for](Device::compile_for) with; [`Dispatch::fallback`] has those of the buffers.
    pub fallback: Option<String>,
}

/// Where the program of a kernel comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is the caller's.
    AsWritten,
    /// It was optimized now.
    Optimized,
    /// The device has compiled it before.
    Memory,
    /// It was optimized before, perhaps by another process, and kept in the [`Cache`].
    Disk,
}

/// A program that is ready for the backend, where it comes from, and what the passes did if they ran.
type Optimized = (Origin, Validated<Program>, Option<Arc<optimizer::Report>>);

/// A program as a device executes it.
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
    /// The program as it is run. Callers bind it as they would bind the one it was made from.
    pub fn program(&self) -> &Validated<Program> {
        &self.0.program
    }

    /// How it came about.
    pub fn compilation(&self) -> &Compilation {
        &self.0.compilation
    }

    /// Binds the objects of the program by name, under the default limits.
    ///
    /// # Errors
    /// The arguments do not fit the program, or are more than the device can bind; the grid is too large, or not three u32; a buffer
    /// is another device's.
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

/// One run of a kernel, whose arguments and grid were checked when [`Kernel::dispatch`] made it. It may be submitted any number of
/// times.
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

    /// The same dispatch under other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Dispatch {
        self.limits = limits;
        self
    }

    /// The reason why the device executes this dispatch in a slower way than others, such as for an object that is too long for machine
    /// code.
    pub fn fallback(&self) -> Option<String> {
        let length = |id| match self.arguments.get(id)? {
            launch::Argument::Buffer(buffer) => Some(u64::from(buffer.len())),
            launch::Argument::Scalar(_) => None,
        };
        self.kernel.0.kernel.fallback(&length)
    }

    /// Bytes of the buffers bound.
    fn bytes(&self) -> u64 {
        self.arguments.buffers().map(|(_, buffer)| buffer.as_slice().bytes).sum()
    }

    /// The command of the backend.
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
        let limits = Limits { times_workers: self.limits.times_workers || trace::listens(), ..self.limits };
        Ok(Launch { kernel: kernel.clone(), groups, arguments, limits })
    }
}

/// Bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// In buffers.
    pub used: u64,
    /// Kept for buffers to come.
    pub pooled: u64,
    /// In all, if that is known.
    pub total: Option<u64>,
}

impl Device {
    /// Opens the device of a backend.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
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
        // What defines the meaning of programs runs them as they are.
        let optimizes = !matches!(core.backend.capabilities().kind, DeviceKind::Oracle | DeviceKind::Null);
        Ok(Device {
            core: Arc::new(core),
            telemetry: Arc::default(),
            cache: None,
            optimizes,
            profile: optimizer::Profile::default(),
        })
    }

    /// The same device, recording its dispatches elsewhere.
    #[must_use]
    pub fn with_telemetry(mut self, telemetry: &Arc<Telemetry>) -> Device {
        self.telemetry = telemetry.clone();
        self
    }

    /// The same device, keeping optimized programs for other processes.
    #[must_use]
    pub fn with_cache(mut self, cache: &Arc<Cache>) -> Device {
        self.cache = Some(cache.clone());
        self
    }

    /// The same device, compiling programs as they are written instead of optimizing them.
    #[must_use]
    pub fn as_written(&self) -> Device {
        Device { optimizes: false, ..self.clone() }
    }

    /// The same device, selecting passes for another sort of programs.
    #[must_use]
    pub fn with_profile(&self, profile: optimizer::Profile) -> Device {
        Device { profile, ..self.clone() }
    }

    /// What is known of earlier dispatches.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.core.backend.capabilities()
    }

    /// Bytes in use and in all.
    pub fn memory(&self) -> MemoryFigures {
        MemoryFigures {
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

    /// Lowers the high-water mark to the bytes that are in use now.
    pub fn reset_peak_bytes(&self) {
        self.core.peak.store(self.core.used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Prepares a program: optimizes it, harder if its dispatches have taken long, and hands it to the backend. What was
    /// done before is not done again.
    ///
    /// # Errors
    /// The device lacks something that it needs.
    pub fn compile(&self, program: &Validated<Program>) -> Result<Kernel, Error> {
        self.compile_for(program, &[])
    }

    /// Prepares a program for objects of these lengths, in elements: they decide which passes are worth their time.
    ///
    /// # Errors
    /// The device lacks something that it needs.
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

    /// The program that [`compile`](Device::compile) hands to the backend.
    ///
    /// # Errors
    /// The device lacks something that it needs.
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

    /// What its programs are optimized for.
    pub fn profile(&self) -> optimizer::Profile {
        self.profile
    }

    /// The device as the optimizer sees it.
    pub fn target(&self) -> optimizer::Target {
        let kind = self.capabilities().kind;
        optimizer::Target {
            // A processor keeps workgroup memory in the same caches as storage.
            scratchpad: kind == DeviceKind::Gpu,
            // The compilers of graphics drivers unroll, and know how much of it pays on their device.
            loops_as_written: !matches!(kind, DeviceKind::Gpu | DeviceKind::SoftwareGpu),
        }
    }

    /// Takes an optimized program from the cache, or runs the passes and puts it there.
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
        // A pass may use a little more of something than the program did; where that is too much, the program stays as it is.
        match self.capabilities().check(&optimized) {
            Ok(()) => Ok((origin, optimized, report)),
            Err(_) => Ok((Origin::AsWritten, program.clone(), report)),
        }
    }

    /// A buffer of zeros.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn allocate(&self, element: Element, length: u64) -> Result<Buffer, Error> {
        Buffer::new(&self.core, element, length, false)
    }

    /// A buffer with these contents, which are whole elements.
    ///
    /// # Errors
    /// They are not, or there is not that much memory.
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

    /// Submits dispatches, to be executed one after the other. It does not wait for them.
    ///
    /// # Errors
    /// A dispatch is not possible; then none of them is executed.
    pub fn submit(&self, dispatches: &[Dispatch]) -> Result<Submission, Error> {
        self.clear_and_submit(&[], dispatches)
    }

    /// The same, in a submission that fills buffers with zeros first.
    ///
    /// # Errors
    /// A dispatch is not possible, or a buffer is another device's; then nothing is done.
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
    /// The dispatch is not possible, or the device was lost.
    pub fn run(&self, dispatch: &Dispatch) -> Result<Report, Error> {
        let mut reports = self.submit(std::slice::from_ref(dispatch))?.wait()?;
        reports.pop().ok_or(Error::Backend { backend: "device", reason: "a dispatch gave no report".into() })
    }

    /// A whole job: compiles a program, uploads its inputs, runs it and waits, and puts the results back into the inputs.
    ///
    /// # Errors
    /// The program or its arguments do not fit, or the device was lost.
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
        // After a deadline the contents are unspecified, and a device may be busy with the dispatch for long.
        if !matches!(report.outcome, Outcome::DeadlinePassed { .. }) {
            for (position, buffer) in buffers {
                inputs.buffers[position] = buffer.read()?;
            }
        }
        Ok(report)
    }
}

/// Dispatches that were submitted.
pub struct Submission {
    pending: Pending,
    /// The operation that each dispatch is recorded under, and the bytes bound to it.
    launched: Vec<(Option<Arc<str>>, u64)>,
    telemetry: Arc<Telemetry>,
}

impl Submission {
    /// Its number among the submissions of the device, by which [`Error::DeviceLost`] speaks of it.
    pub fn number(&self) -> u64 {
        self.pending.number
    }

    /// Waits until all dispatches are done, and returns a report for each.
    ///
    /// # Errors
    /// The submission was cancelled, the device was lost, or the reports were taken before.
    pub fn wait(mut self) -> Result<Vec<Report>, Error> {
        let _span = tracing::info_span!("wait").entered();
        let result = self.pending.wait_on();
        self.record(result)
    }

    /// Waits for a time; `None` if the dispatches are not done by then. The reports are given once.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Vec<Report>, Error>> {
        let result = self.pending.wait(Some(timeout))?;
        Some(self.record(result))
    }

    /// Asks for the submission to be given up. Waiting then gives [`Error::Cancelled`], unless it was done already.
    pub fn cancel(&mut self) {
        self.pending.cancel();
    }

    /// Remembers what the dispatches took.
    fn record(&self, result: Result<Completion, Error>) -> Result<Vec<Report>, Error> {
        let reports = result?.reports;
        if trace::listens() {
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
