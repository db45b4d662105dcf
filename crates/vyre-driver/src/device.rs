//! Devices as callers see them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{Element, Literal, MemId, Program};
use vyre_foundation::launch::{self, Limits, Outcome, Report};
use vyre_foundation::{Validated, optimizer, wire};

use crate::backend::{self, Bound, Command, Completion, Groups, Launch, Ticket};
use crate::buffer::{Buffer, Pool};
use crate::cache::{Compiled, Key, Passes, Recent};
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

/// A program prepared for a device.
#[derive(Clone)]
pub struct Kernel {
    core: Arc<Core>,
    /// As it is run: optimized.
    program: Arc<Validated<Program>>,
    kernel: Arc<dyn backend::Kernel>,
    name: Arc<str>,
    /// The operation under which its dispatches are recorded: that of the program before it was optimized.
    entry_op: Option<Arc<str>>,
    compilation: Arc<Compilation>,
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
    /// The reason why the device executes it in a slower way than others, such as without machine code.
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
type Optimized = (Origin, Arc<Validated<Program>>, Option<Arc<optimizer::Report>>);

impl Kernel {
    /// The program as it is run. Callers bind it as they would bind the one it was made from.
    pub fn program(&self) -> &Validated<Program> {
        &self.program
    }

    /// How it came about.
    pub fn compilation(&self) -> &Compilation {
        &self.compilation
    }
}

/// What a memory object is bound to.
#[derive(Clone, Debug)]
pub enum Argument {
    /// The value of a uniform.
    Scalar(Literal),
    /// The memory of a storage object.
    Buffer(Buffer),
}

impl<T: Into<Literal>> From<T> for Argument {
    fn from(value: T) -> Self {
        Argument::Scalar(value.into())
    }
}

impl From<&Buffer> for Argument {
    fn from(buffer: &Buffer) -> Self {
        Argument::Buffer(buffer.clone())
    }
}

/// How many invocations to run.
#[derive(Clone, Debug)]
pub enum Grid {
    /// Known now.
    Fixed(launch::Grid),
    /// Three u32, the numbers of workgroups, as they are in this buffer when the dispatch begins.
    Indirect(Buffer),
}

impl Grid {
    /// At least this many invocations, rounded up to whole workgroups.
    pub fn elements(elements: u32) -> Grid {
        Grid::Fixed(launch::Grid::Elements([elements, 1, 1]))
    }

    /// This many workgroups.
    pub fn groups(groups: [u32; 3]) -> Grid {
        Grid::Fixed(launch::Grid::Groups(groups))
    }
}

/// One run of a kernel.
#[derive(Clone)]
pub struct Dispatch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// How many invocations.
    pub grid: Grid,
    /// What its objects are bound to, by name.
    pub arguments: Vec<(&'a str, Argument)>,
    /// What it may use up.
    pub limits: Limits,
}

impl Dispatch<'_> {
    /// Bytes of the buffers bound.
    fn bytes(&self) -> u64 {
        let of = |argument: &Argument| match argument {
            Argument::Buffer(buffer) => buffer.as_slice().bytes,
            Argument::Scalar(_) => 0,
        };
        self.arguments.iter().map(|(_, argument)| of(argument)).sum()
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

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
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
        let _span = tracing::info_span!("compile", program = program.name).entered();
        self.capabilities().check(program)?;
        let hash = wire::content_hash(program);
        let passes = self.optimizes.then(|| self.select(program, hash, lengths));
        let key = Key::new(program, hash, &self.core.fingerprint, passes.as_ref());
        let known = self.core.recent.lock().get(&key);
        let shared = known.as_ref().and_then(|known| known.kernel.upgrade());
        let (origin, optimized, report) = match (known, &passes) {
            (Some(known), _) => (Origin::Memory, known.program, known.report),
            (None, Some(passes)) => self.optimize(program, hash, &key, passes)?,
            (None, None) => (Origin::AsWritten, Arc::new(program.clone()), None),
        };
        let kernel = match shared {
            Some(kernel) => kernel,
            None => {
                let _span = tracing::info_span!("lower", program = program.name).entered();
                self.core.observe(self.core.backend.compile(&optimized))?
            }
        };
        let compiled = Compiled { program: optimized.clone(), report: report.clone(), kernel: Arc::downgrade(&kernel) };
        self.core.recent.lock().insert(key, compiled);
        let decisions = passes.map(|passes| passes.plan.decisions).unwrap_or_default();
        let fallback = kernel.fallback().map(str::to_owned);
        let compilation = Arc::new(Compilation { origin, decisions, report, fallback });
        let entry_op = program.entry_op().map(Arc::from);
        let name = program.name.as_str().into();
        Ok(Kernel { core: self.core.clone(), program: optimized, kernel, name, entry_op, compilation })
    }

    fn select(&self, program: &Validated<Program>, hash: [u8; 32], lengths: &[(MemId, u64)]) -> Passes {
        let (hints, earlier) = (Some(self.telemetry.hints()), self.telemetry.report(hash));
        let (profile, report, options) = (self.profile, earlier.as_deref(), self.options());
        let request = optimizer::Request { profile, hints, report, lengths, options };
        Passes { plan: optimizer::plan(program, &request), options: request.options }
    }

    /// What its programs are optimized for.
    pub fn profile(&self) -> optimizer::Profile {
        self.profile
    }

    /// How the optimizer is run for this device.
    pub fn options(&self) -> optimizer::Options {
        let mut options = optimizer::Options::default();
        let kind = self.capabilities().kind;
        // On a processor, workgroup memory is as far away as storage.
        if kind != DeviceKind::Gpu {
            options.disabled.push("promote_tiles".into());
        }
        // The compilers of graphics drivers unroll, and know how much of it pays on their device.
        if matches!(kind, DeviceKind::Gpu | DeviceKind::SoftwareGpu) {
            options.disabled.push("unroll_loops".into());
        }
        options
    }

    /// Takes an optimized program from the cache, or runs the passes and puts it there.
    fn optimize(
        &self,
        program: &Validated<Program>,
        hash: [u8; 32],
        key: &Key,
        passes: &Passes,
    ) -> Result<Optimized, Error> {
        let kept = self.cache.as_ref().and_then(|cache| cache.load(key));
        let (origin, optimized, report) = match kept {
            Some(optimized) => (Origin::Disk, optimized, None),
            None => {
                let Passes { plan, options } = passes;
                let (optimized, report) = optimizer::run(program.clone(), &plan.pipeline, options, &mut |_| {})?;
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
            Ok(()) => Ok((origin, Arc::new(optimized), report)),
            Err(_) => Ok((Origin::AsWritten, Arc::new(program.clone()), report)),
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
    pub fn submit(&self, dispatches: &[Dispatch<'_>]) -> Result<Submission, Error> {
        self.submit_on_zeros(&[], dispatches)
    }

    /// The same, in a submission that fills buffers with zeros first.
    ///
    /// # Errors
    /// A dispatch is not possible, or a buffer is another device's; then nothing is done.
    pub fn submit_on_zeros(&self, cleared: &[&Buffer], dispatches: &[Dispatch<'_>]) -> Result<Submission, Error> {
        let _span = tracing::info_span!("submit", launches = dispatches.len()).entered();
        let ranges = cleared.iter().map(|buffer| buffer.on(self, "buffer"));
        let ranges = ranges.filter(|range| range.as_ref().map_or(true, |range| range.bytes > 0));
        let clears = ranges.map(|range| range.map(Command::Clear));
        let launches = dispatches.iter().map(|dispatch| self.launch(dispatch).map(Command::Launch));
        let commands = clears.chain(launches).collect::<Result<Vec<Command>, Error>>()?;
        let launched = dispatches.iter().map(|dispatch| (dispatch.kernel.entry_op.clone(), dispatch.bytes())).collect();
        let work = Work::Launches(dispatches.iter().map(|dispatch| dispatch.kernel.name.clone()).collect());
        Ok(Submission { pending: self.core.submit(commands, work)?, launched, telemetry: self.telemetry.clone() })
    }

    /// Runs one dispatch and waits for it.
    ///
    /// # Errors
    /// The dispatch is not possible, or the device was lost.
    pub fn run(&self, dispatch: &Dispatch<'_>) -> Result<Report, Error> {
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
        let lengths = program.memory.iter().filter_map(|(object, memory)| {
            let bytes = inputs.contents(&memory.name)?.len();
            Some((object, (bytes / memory.element.size()) as u64))
        });
        let kernel = self.compile_for(program, &lengths.collect::<Vec<_>>())?;
        let mut buffers = Vec::new();
        let mut arguments = Vec::new();
        for (name, argument) in inputs.arguments() {
            let argument = match argument {
                launch::Argument::Scalar(literal) => Argument::Scalar(literal),
                launch::Argument::Slice(slice) => {
                    let position = slice.buffer as usize;
                    let buffer = self.upload(slice.element, &inputs.buffers[position])?;
                    buffers.push((position, buffer.clone()));
                    Argument::Buffer(buffer)
                }
            };
            arguments.push((name, argument));
        }
        let report = self.run(&Dispatch { kernel: &kernel, grid: Grid::Fixed(grid), arguments, limits })?;
        // After a deadline the contents are unspecified, and a device may be busy with the dispatch for long.
        if !matches!(report.outcome, Outcome::DeadlinePassed { .. }) {
            for (position, buffer) in buffers {
                inputs.buffers[position] = buffer.read()?;
            }
        }
        Ok(report)
    }

    /// Checks a dispatch and turns it into what the backend takes.
    fn launch(&self, dispatch: &Dispatch<'_>) -> Result<Launch, Error> {
        let kernel = dispatch.kernel;
        if !Arc::ptr_eq(&kernel.core, &self.core) {
            return Err(Error::Foreign { name: kernel.program.name.clone() });
        }
        let given: Vec<(&str, launch::Argument)> = dispatch
            .arguments
            .iter()
            .map(|(name, argument)| {
                let argument = match argument {
                    Argument::Scalar(literal) => launch::Argument::Scalar(*literal),
                    Argument::Buffer(buffer) => launch::Argument::Slice(buffer.as_slice()),
                };
                (*name, argument)
            })
            .collect();
        let checked = launch::bind(&kernel.program, &given)?;
        let mut arguments = SecondaryMap::with_capacity(kernel.program.memory.len(), None);
        for (id, memory) in kernel.program.memory.iter() {
            arguments[id] = match checked.get(id) {
                None => None,
                Some(launch::Argument::Scalar(literal)) => Some(Bound::Scalar(literal)),
                Some(launch::Argument::Slice(slice)) => {
                    let limit = self.capabilities().max_binding_bytes;
                    if slice.bytes > limit {
                        let needed = format!("{} bytes bound to `{}`", slice.bytes, memory.name);
                        return Err(Error::Unsupported { needed, available: format!("bindings of {limit} bytes") });
                    }
                    let buffer = dispatch.arguments.iter().find_map(|(name, argument)| match argument {
                        Argument::Buffer(buffer) if *name == memory.name => Some(buffer),
                        _ => None,
                    });
                    let buffer = buffer.expect("a slice was made from a buffer of that name");
                    Some(Bound::Range(buffer.on(self, &memory.name)?))
                }
            };
        }
        let groups = match &dispatch.grid {
            Grid::Fixed(grid) => Groups::Fixed(grid.groups(kernel.program.workgroup_size)?),
            Grid::Indirect(buffer) => {
                if (buffer.element(), buffer.len()) != (Element::U32, 3) {
                    return Err(Error::IndirectGrid { found: format!("{buffer:?}") });
                }
                Groups::Indirect(buffer.on(self, "grid")?)
            }
        };
        let times_workers = dispatch.limits.times_workers || trace::listens();
        let limits = Limits { times_workers, ..dispatch.limits };
        Ok(Launch { kernel: kernel.kernel.clone(), groups, arguments, limits })
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
