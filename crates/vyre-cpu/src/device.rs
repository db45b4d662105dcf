//! The CPU device: an in-order command queue.
//!
//! A batch of commands is executed by the device's own thread or by a caller that waits for it, whichever is first:
//! waiting for a small kernel usually runs it inline, without waking a thread. To leave batches to such callers, the
//! device's thread delays for [`Queue::DELAY`] while new batches keep arriving. A caller whose stack may be too small for
//! a kernel leaves the queue to the device's thread.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vyre_driver::backend::{
    self, Backend, Command, Completion, Contents, Device, Groups, Kernel, Memory, Range, Ticket,
};
use vyre_driver::{Capabilities, DeviceKind, Error};
use vyre_foundation::Validated;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{MemId, Program};
use vyre_foundation::launch::{self, Argument, Report};
use vyre_foundation::transform::{bf16_words, expand_math};

use crate::dispatch::Launch;
#[cfg(unix)]
use crate::memory::Guarded;
use crate::memory::{self, Block, Guard, View};
use crate::pool::Pool;
use crate::process::Process;
#[cfg(all(target_arch = "x86_64", unix))]
use crate::x86::{self, Level};
use crate::{portable, spmd, stack};

/// The CPU backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// Number of threads that execute workgroups [default: the number of cores].
    pub threads: Option<usize>,
    /// Execution mode [default: the fastest that the processor supports].
    pub execution: Option<Execution>,
    /// Guard pages around storage objects, for debugging.
    pub guard: Guard,
}

/// Availability of the code generator, which needs x86-64 and the memory calls of Unix-like systems. Every other target
/// has only the portable executor.
pub const HAS_CODE_GENERATOR: bool = cfg!(all(target_arch = "x86_64", unix));

/// Execution mode of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Plain loops over lanes, on every processor.
    Portable,
    /// Generated code with vectors of 8 lanes.
    Avx2,
    /// Generated code with vectors of 16 lanes.
    Avx512,
}

impl Execution {
    /// Returns the fastest mode that this processor supports.
    pub fn best() -> Execution {
        #[cfg(all(target_arch = "x86_64", unix))]
        match Level::detect() {
            Some(Level::Avx512) => return Execution::Avx512,
            Some(Level::Avx2) => return Execution::Avx2,
            None => {}
        }
        Execution::Portable
    }

    /// Returns whether this processor supports the mode.
    pub fn is_available(self) -> bool {
        match (self, Execution::best()) {
            (Execution::Portable, _) | (Execution::Avx2, Execution::Avx2) | (_, Execution::Avx512) => true,
            (Execution::Avx2 | Execution::Avx512, Execution::Portable) | (Execution::Avx512, Execution::Avx2) => false,
        }
    }

    #[cfg(all(target_arch = "x86_64", unix))]
    fn level(self) -> Option<Level> {
        match self {
            Execution::Portable => None,
            Execution::Avx2 => Some(Level::Avx2),
            Execution::Avx512 => Some(Level::Avx512),
        }
    }

    /// Name of the instruction set, as in the vendors' manuals; `portable` without a code generator.
    pub fn instruction_set(self) -> &'static str {
        match self {
            Execution::Portable => "portable",
            Execution::Avx2 => "AVX2",
            Execution::Avx512 => "AVX-512",
        }
    }

    /// Number of lanes of a subgroup.
    fn subgroup_size(self) -> u32 {
        match self {
            Execution::Portable | Execution::Avx512 => 16,
            Execution::Avx2 => 8,
        }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn description(&self) -> &'static str {
        "this machine's processor, all cores"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        let execution = self.execution.unwrap_or_else(Execution::best);
        if !execution.is_available() {
            let reason = format!(
                "this processor does not support {execution:?}; leave `execution` unset to use the fastest supported mode"
            );
            return Err(Error::Backend { backend: "cpu", reason });
        }
        if self.guard != Guard::None && cfg!(not(unix)) {
            return Err(Error::Backend {
                backend: "cpu",
                reason: "guard pages are available on Unix only; use `Guard::None`".into(),
            });
        }
        let process = Process::current()?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = Pool::new(self.threads.unwrap_or(cores).max(1), process);
        let capabilities = Capabilities {
            memory_bytes: physical_memory(),
            threads: Some(pool.threads() as u32),
            instruction_set: Some(execution.instruction_set()),
            // Forward progress: a workgroup stays on its thread, workgroups that may wait for each other are not
            // merged, and x86 makes stores visible in program order.
            independent_groups: cfg!(target_arch = "x86_64"),
            ..Capabilities::unlimited(processor_name(), DeviceKind::Cpu, execution.subgroup_size())
        };
        let queue = Arc::new(Queue {
            pool,
            waiting: Mutex::new(Waiting::default()),
            arrived: Condvar::new(),
            executing: Mutex::new(()),
            guard: self.guard,
            process,
        });
        let server = {
            let queue = queue.clone();
            let thread = std::thread::Builder::new().name("vyre-cpu".into()).stack_size(stack::THREAD_STACK_SIZE);
            thread.spawn(move || queue.serve())
        };
        let server = server.map_err(|error| Error::Backend { backend: "cpu", reason: error.to_string() })?;
        Ok(Box::new(CpuDevice { capabilities, execution, queue, server: Some(server) }))
    }
}

/// Assembly listing of a program, with each IR instruction printed before the machine instructions that it was lowered
/// to. Can target another processor than this one.
///
/// # Errors
/// No code is generated: the execution is portable, or the program is not supported, for instance because its stack
/// frame is too large.
#[cfg_attr(not(all(target_arch = "x86_64", unix)), expect(unused_variables))]
pub fn listing(program: &Validated<Program>, execution: Execution) -> Result<String, Error> {
    let failed = |reason: String| Error::Backend { backend: "cpu", reason };
    #[cfg(all(target_arch = "x86_64", unix))]
    if let Some(level) = execution.level() {
        return x86::listing(&legal(program), level).map_err(|error| failed(error.to_string()));
    }
    Err(failed(format!("no code is generated for {execution:?} execution")))
}

/// Replaces what no execution of this backend supports: functions of the math library, and elements of bf16.
pub(crate) fn legal(program: &Validated<Program>) -> Validated<Program> {
    bf16_words(&expand_math(program, |_| false))
}

fn processor_name() -> String {
    let information = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = information.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Physical memory of the machine, if the system reports it.
fn physical_memory() -> Option<u64> {
    let information = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = information.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

struct CpuDevice {
    capabilities: Capabilities,
    execution: Execution,
    queue: Arc<Queue>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Drop for CpuDevice {
    fn drop(&mut self) {
        // A child process after `fork` has the handle, but not the thread: joining would block forever.
        if !self.queue.process.is_current() {
            std::mem::forget(self.server.take());
            return;
        }
        lock(&self.queue.waiting).closed = true;
        self.queue.arrived.notify_all();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

struct CpuKernel {
    program: Validated<Program>,
    /// Objects that the program stores to.
    written: SecondaryMap<MemId, bool>,
    subgroup_size: u32,
    code: Code,
    /// Fallback kernel, lowered on first use if there is machine code.
    portable: OnceLock<portable::Kernel>,
}

/// Machine code of a program.
enum Code {
    /// Portable execution was requested.
    #[cfg(all(target_arch = "x86_64", unix))]
    NotWanted,
    #[cfg(all(target_arch = "x86_64", unix))]
    Generated(Box<x86::Kernel>),
    /// No code could be generated, for this reason.
    Missing(String),
}

impl Kernel for CpuKernel {
    #[cfg_attr(not(all(target_arch = "x86_64", unix)), expect(unused_variables))]
    fn fallback(&self, length: &dyn Fn(MemId) -> Option<u64>) -> Option<String> {
        match &self.code {
            #[cfg(all(target_arch = "x86_64", unix))]
            Code::NotWanted => None,
            #[cfg(all(target_arch = "x86_64", unix))]
            Code::Generated(code) => {
                let (id, length) = code.too_long(length)?;
                let (name, most) = (&self.program.memory(id).name, x86::MAX_LENGTH);
                Some(format!("no machine code: `{name}` has {length} elements, and code can index {most}"))
            }
            Code::Missing(reason) => Some(reason.clone()),
        }
    }
}

impl CpuKernel {
    fn portable(&self) -> &portable::Kernel {
        self.portable.get_or_init(|| portable::Kernel::new(spmd::lower(&self.program, self.subgroup_size)))
    }

    fn run(&self, launch: &Launch<'_>, pool: &Pool) -> Report {
        #[cfg(all(target_arch = "x86_64", unix))]
        if let Code::Generated(code) = &self.code
            && code.too_long(|id| launch.storage[id].as_ref().map(|view| view.length.into())).is_none()
        {
            return code.run(launch, pool);
        }
        portable::run(self.portable(), launch, pool)
    }
}

impl Device for CpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error> {
        let program = legal(program);
        #[cfg(all(target_arch = "x86_64", unix))]
        // Programs without machine code run on the portable executor.
        let code = match self.execution.level().map(|level| x86::compile(&program, level)) {
            None => Code::NotWanted,
            Some(Ok(code)) => Code::Generated(Box::new(code)),
            Some(Err(reason)) => Code::Missing(format!("no machine code: {reason}")),
        };
        #[cfg(not(all(target_arch = "x86_64", unix)))]
        let code = Code::Missing("no machine code: no code generator for this target".into());
        let kernel = CpuKernel {
            subgroup_size: self.execution.subgroup_size(),
            code,
            written: program.written(),
            portable: OnceLock::new(),
            program,
        };
        Ok(Arc::new(kernel))
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error> {
        let block = Block::new(bytes)?;
        Ok(Arc::new(if self.queue.guard == Guard::None { block } else { block.copied_by_dispatches() }))
    }

    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error> {
        self.queue.process.check()?;
        let batch = Arc::new(Batch {
            commands: Mutex::new(commands),
            cancelled: AtomicBool::new(false),
            result: Mutex::new(None),
            settled: Condvar::new(),
        });
        let parked = {
            let mut waiting = lock(&self.queue.waiting);
            waiting.batches.push_back(batch.clone());
            waiting.submitted = true;
            waiting.parked
        };
        if parked {
            self.queue.arrived.notify_one();
        }
        Ok(Box::new(CpuTicket { batch, queue: self.queue.clone() }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Commands of one submission.
struct Batch {
    commands: Mutex<Vec<Command>>,
    cancelled: AtomicBool,
    result: Mutex<Option<Result<Completion, Error>>>,
    settled: Condvar,
}

/// Queue of the device, and the resources that execute its batches.
struct Queue {
    pool: Pool,
    waiting: Mutex<Waiting>,
    /// Signals a new batch, or that the device is closed.
    arrived: Condvar,
    /// Held by the thread that takes batches from the queue until they are done, so that batches execute in order.
    executing: Mutex<()>,
    guard: Guard,
    /// The process that owns the threads.
    process: Process,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<Arc<Batch>>,
    /// A batch was submitted since the device's thread last cleared this flag. The thread reads `batches` after
    /// clearing it, so no batch is missed.
    submitted: bool,
    /// The device's thread shall execute the batches now, without delay.
    delay_cancelled: bool,
    /// The device's thread is parked.
    parked: bool,
    closed: bool,
}

impl Queue {
    /// Delay before the device's thread takes a batch, during which a caller that waits may execute it inline.
    /// Submissions at shorter intervals wake no thread, which would take longer than a small kernel.
    const DELAY: Duration = Duration::from_micros(100);

    /// Executes batches until the device is closed.
    fn serve(&self) {
        loop {
            let mut waiting = lock(&self.waiting);
            if std::mem::take(&mut waiting.submitted) {
                if !waiting.delay_cancelled && !waiting.closed {
                    let delayed = self.arrived.wait_timeout(waiting, Queue::DELAY);
                    waiting = delayed.unwrap_or_else(PoisonError::into_inner).0;
                }
            } else {
                while !waiting.submitted && !waiting.closed {
                    waiting.parked = true;
                    waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                    waiting.parked = false;
                }
            }
            waiting.delay_cancelled = false;
            let (idle, closed) = (waiting.batches.is_empty(), waiting.closed);
            drop(waiting);
            if !idle {
                self.execute_all();
            } else if closed {
                return;
            }
        }
    }

    /// Makes the device's thread execute the queue at once, for a caller that cannot execute it inline.
    fn cancel_delay(&self) {
        let mut waiting = lock(&self.waiting);
        if !waiting.batches.is_empty() {
            waiting.delay_cancelled = true;
            self.arrived.notify_one();
        }
    }

    fn execute_all(&self) {
        let _turn = lock(&self.executing);
        while self.execute_next() {}
    }

    /// Executes the oldest batch. The caller holds `executing`.
    fn execute_next(&self) -> bool {
        let Some(batch) = lock(&self.waiting).batches.pop_front() else { return false };
        let commands = std::mem::take(&mut *lock(&batch.commands));
        // A panic of the executor fails its batch only; the device continues with the next one.
        let result = catch_unwind(AssertUnwindSafe(|| self.execute(commands, &batch.cancelled)));
        let result = result.unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().copied().or_else(|| Some(panic.downcast_ref::<String>()?));
            let reason = format!("panic while executing a program: {}", message.unwrap_or("no message"));
            Err(Error::Backend { backend: "cpu", reason })
        });
        *lock(&batch.result) = Some(result);
        batch.settled.notify_all();
        true
    }

    fn execute(&self, commands: Vec<Command>, cancelled: &AtomicBool) -> Result<Completion, Error> {
        let mut completion = Completion::default();
        for command in commands {
            if cancelled.load(Relaxed) {
                return Err(Error::Cancelled);
            }
            match command {
                Command::Launch(launch) => completion.reports.push(self.launch(&launch, cancelled)?),
                Command::Write(range, data) => self.write(&range, &data),
                Command::Clear(range) => self.clear(&range),
                Command::Read(range, alignment) => completion.data.push(match alignment {
                    2 => Contents::Halves(self.read(&range)?),
                    4 => Contents::Words(self.read(&range)?),
                    8 => Contents::Doubles(self.read(&range)?),
                    _ => Contents::Bytes(self.read(&range)?),
                }),
            }
        }
        Ok(completion)
    }

    fn write(&self, range: &Range, data: &[u8]) {
        let block = block_of(range);
        let _exclusive = block.exclusive();
        self.in_parts(data.len(), &|part| {
            let (source, target) = (&data[part.clone()], block.at(range.start + part.start as u64));
            // SAFETY: the range lies inside its memory and has as many bytes as the data. Parts do not overlap, and
            // nothing else accesses the memory now.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        });
    }

    fn clear(&self, range: &Range) {
        let block = block_of(range);
        let _exclusive = block.exclusive();
        self.in_parts(range.bytes as usize, &|part| {
            // SAFETY: the range lies inside its memory. Parts do not overlap, and nothing else accesses it now.
            unsafe { std::ptr::write_bytes(block.at(range.start + part.start as u64), 0, part.len()) };
        });
    }

    fn read<W: bytemuck::Pod>(&self, range: &Range) -> Result<Vec<W>, Error> {
        /// Vector memory whose parts are written by several threads.
        struct Target(*mut u8);
        // SAFETY: it is written only as described below.
        unsafe impl Sync for Target {}
        impl Target {
            fn start(&self) -> *mut u8 {
                self.0
            }
        }

        let (block, size) = (block_of(range), range.bytes as usize);
        let _exclusive = block.exclusive();
        let mut data: Vec<W> = Contents::reserved(size / size_of::<W>())?;
        let target = Target(data.as_mut_ptr().cast());
        // SAFETY: the vector has that capacity.
        unsafe { memory::advise_huge_pages(target.start(), size) };
        self.in_parts(size, &|part| {
            let source = block.at(range.start + part.start as u64);
            // SAFETY: the range lies inside its memory, which nothing writes to now; the vector has room for as many bytes, is
            // not used before all parts are done, and parts do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source, target.start().add(part.start), part.len()) };
        });
        // SAFETY: the parts cover the whole vector and all of them are written; every bit pattern is a valid element
        // (`Pod`).
        unsafe { data.set_len(size / size_of::<W>()) };
        Ok(data)
    }

    /// Calls `body` with ranges that cover `0..bytes`, in parallel above `MIN_PART` bytes. Their length matches the parts
    /// of kernels, so that the threads that first touch the pages are those that will use them.
    fn in_parts(&self, bytes: usize, body: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
        /// Bytes that one thread copies faster than another one wakes.
        const MIN_PART: usize = 512 << 10;
        let part = (bytes / (8 * self.pool.threads())).next_multiple_of(MIN_PART).max(MIN_PART);
        self.pool.for_each(bytes.div_ceil(part) as u32, &|number| {
            let start = number as usize * part;
            body(start..bytes.min(start + part));
        });
    }

    fn launch(&self, launch: &backend::Launch, cancelled: &AtomicBool) -> Result<Report, Error> {
        let kernel: &CpuKernel = (&*launch.kernel as &dyn Any).downcast_ref().expect("the driver keeps devices apart");
        let program = &kernel.program;
        let groups = match &launch.groups {
            Groups::Fixed(groups) => *groups,
            Groups::Indirect(range) => {
                let groups = [0, 4, 8].map(|byte| block_of(range).word(range.start + byte));
                launch::Grid::Groups(groups).groups(program.workgroup_size())?
            }
        };
        let mut storage = SecondaryMap::with_capacity(program.memories().len(), None);
        let mut scalars = SecondaryMap::with_capacity(program.memories().len(), 0);
        #[cfg(unix)]
        let mut guarded = Vec::new();
        for (id, memory) in program.memories().iter() {
            match launch.arguments.get(id) {
                None => {}
                Some(Argument::Scalar(literal)) => scalars[id] = literal.bits,
                Some(Argument::Buffer(range)) => {
                    let length = (range.bytes / memory.element.size() as u64) as u32;
                    let start = start_of(range);
                    #[cfg(unix)]
                    let start = match self.guard {
                        Guard::None => start,
                        side @ (Guard::Below | Guard::Above) => {
                            let _exclusive = block_of(range).exclusive();
                            // SAFETY: the range lies inside its memory, which nothing writes to now.
                            let copy = unsafe { Guarded::copy_of(start, range.bytes as usize, side == Guard::Below)? };
                            let start = copy.start();
                            guarded.push((copy, range, kernel.written[id]));
                            start
                        }
                    };
                    let racing = kernel.written[id] || memory.atomic;
                    let view = View { start, length, element: memory.element, lane_stride: 0, racing };
                    storage[id] = Some(view);
                }
            }
        }
        let limits = launch.limits;
        let report = kernel.run(&Launch { groups, storage, scalars, limits, cancelled }, &self.pool);
        #[cfg(unix)]
        for (copy, range, _) in guarded.into_iter().filter(|&(_, _, is_written)| is_written) {
            let _exclusive = block_of(range).exclusive();
            // SAFETY: the copy has as many bytes as the range, which lies inside its memory; nothing else accesses both now.
            unsafe { start_of(range).copy_from_nonoverlapping(copy.start(), range.bytes as usize) };
        }
        if cancelled.load(Relaxed) { Err(Error::Cancelled) } else { Ok(report) }
    }
}

fn block_of(range: &Range) -> &Block {
    (&*range.memory as &dyn Any).downcast_ref().expect("the driver keeps devices apart")
}

fn start_of(range: &Range) -> *mut u8 {
    block_of(range).at(range.start)
}

struct CpuTicket {
    batch: Arc<Batch>,
    queue: Arc<Queue>,
}

impl Ticket for CpuTicket {
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>> {
        if let Err(error) = self.queue.process.check() {
            return Some(Err(error));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // A caller that waits without a timeout executes batches inline. With one it does not: a batch could exceed the
        // timeout.
        if timeout.is_none() && stack::holds_kernels() {
            while lock(&self.batch.result).is_none() {
                let Ok(_turn) = self.queue.executing.try_lock() else { break };
                if !self.queue.execute_next() {
                    break;
                }
            }
        }
        if lock(&self.batch.result).is_none() {
            self.queue.cancel_delay();
        }
        let mut result = lock(&self.batch.result);
        loop {
            if let Some(result) = result.take() {
                return Some(result);
            }
            result = match deadline {
                None => self.batch.settled.wait(result).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.batch.settled.wait_timeout(result, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn cancel(&mut self) {
        self.batch.cancelled.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Box<dyn Device> {
        Cpu { threads: Some(3), ..Cpu::default() }.open().expect("there is a processor")
    }

    #[test]
    fn large_ranges_are_written_cleared_and_read_exactly() {
        let device = open();
        for bytes in [1u64 << 10, 3 << 20, 13 << 20] {
            let memory = device.allocate(bytes).expect("a few megabytes");
            let range = |start: u64, bytes: u64| Range { memory: memory.clone(), start, bytes };
            let written: Vec<u8> = (0..bytes - 48).map(|k| (k % 251 + 1) as u8).collect();
            let cleared = 100..bytes as usize - 100;
            let commands = vec![
                Command::Write(range(16, bytes - 48), written.clone()),
                Command::Read(range(0, bytes), 1),
                Command::Clear(range(cleared.start as u64, cleared.len() as u64)),
                Command::Read(range(0, bytes), 1),
                Command::Read(range(17, 0), 1),
            ];
            let result = device.submit(commands).expect("a device that is there").wait(None);
            let data = result.expect("there is no limit").expect("nothing that can fail").data;
            let mut expected = [&[0; 16][..], &written[..], &[0; 32][..]].concat();
            assert!(data[0].bytes() == expected);
            expected[cleared].fill(0);
            assert!(data[1].bytes() == expected);
            assert!(data[2].bytes().is_empty());
        }
    }

    #[test]
    fn batches_execute_in_submission_order() {
        let device = open();
        let memory = device.allocate(16).expect("16 bytes");
        let range = || Range { memory: memory.clone(), start: 0, bytes: 16 };
        let mut tickets = Vec::new();
        for round in 0..200u8 {
            let commands = vec![Command::Write(range(), vec![round; 16]), Command::Read(range(), 4)];
            tickets.push((round, device.submit(commands).expect("a device that is there")));
            // Round % 4: 0 waits at once and executes inline, 1 waits with a timeout and leaves the batch to the
            // device's thread, others wait later.
            let limit = Some(Duration::from_secs(600));
            let wait = match round % 4 {
                0 => None,
                1 => limit,
                _ => continue,
            };
            for (round, mut ticket) in tickets.drain(..).rev() {
                let result = ticket.wait(wait).expect("more than enough time");
                let words = vec![u32::from_ne_bytes([round; 4]); 4];
                assert_eq!(result.expect("nothing that can fail").data, [Contents::Words(words)]);
            }
        }
    }

    #[test]
    fn unawaited_batches_execute_before_the_device_closes() {
        let device = open();
        let memory = device.allocate(16).expect("16 bytes");
        let range = Range { memory: memory.clone(), start: 0, bytes: 16 };
        drop(device.submit(vec![Command::Write(range.clone(), vec![7; 16])]));
        drop(device);
        // SAFETY: the range has 16 bytes, and the device that accessed them is closed.
        assert_eq!(unsafe { start_of(&range).cast::<[u8; 16]>().read_unaligned() }, [7; 16]);
    }
}
