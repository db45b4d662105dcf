//! The wgpu device: buffers, kernels, and batches of commands.
//!
//! A batch is prepared completely before it is recorded into the [stream](crate::stream), so that it fails as a whole.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use vyre_driver::backend::{
    Backend, Command, Completion, Contents, Device, Groups, Kernel, Launch, Memory, Range, Ticket,
};
use vyre_driver::{Capabilities, DeviceKind, Error, Floats};
use vyre_foundation::analysis::{Interval, Lengths};
use vyre_foundation::ir::{Literal, MemOperand, Op, PerGroup, Program, Space, Span, Type, TypeSet, total_invocations};
use vyre_foundation::launch::{self, Argument, Arguments, Limits, Outcome, Report, Slice};
use vyre_foundation::validate::limits;
use vyre_foundation::{Validated, text, validate};

use crate::adapter;
use crate::code_permission;
use crate::deadline::{Clock, Monotonic, Ranges, Verdict};
use crate::lower::control::{Control, param, report};
use crate::lower::{self, BUDGET, ENTRY, GroupMapping, Source, Target, Variant};
use crate::probe;
use crate::stream::{self, AbandonReason, Flight, Reporting, SMALL, Shape, Staging, Step, Stream};

/// The GPU backend, on the best adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wgpu;

pub(crate) const NAME: &str = "wgpu";

#[allow(clippy::needless_pass_by_value)] // It is passed to `map_err`.
pub(crate) fn failed(reason: impl ToString) -> Error {
    Error::Backend { backend: NAME, reason: reason.to_string() }
}

/// Completes a wgpu future. Outside of browsers they are ready immediately.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

impl Backend for Wgpu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "GPUs through Vulkan, Metal or DirectX 12"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        let (adapter, reasons) = adapter::choose(None)?;
        WgpuDevice::of_adapter(&adapter, reasons)
    }
}

/// The GPU backend on the best adapter whose name contains this text, unless `VYRE_ADAPTER` is set.
#[derive(Clone, Debug)]
pub struct Adapter(pub String);

impl Backend for Adapter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        Wgpu.description()
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        let (adapter, reasons) = adapter::choose(Some(&self.0))?;
        WgpuDevice::of_adapter(&adapter, reasons)
    }
}

/// The GPU backend on one of [`adapters`], regardless of `VYRE_ADAPTER`.
#[derive(Clone, Debug)]
pub struct Enumerated {
    adapter: wgpu::Adapter,
    /// Name of the adapter.
    pub name: String,
    /// Name and version of its driver, as far as the driver reports them.
    pub driver: String,
    /// Interface to the driver: `vulkan`, `metal` or `dx12`.
    pub interface: String,
}

/// Enumerates the adapters that have compute shaders.
pub fn adapters() -> Vec<Enumerated> {
    let enumerated = |adapter: wgpu::Adapter| {
        let wgpu::AdapterInfo { name, driver, driver_info, backend, .. } = adapter.get_info();
        let driver = format!("{driver} {driver_info}").trim().to_owned();
        Enumerated { adapter, name, driver, interface: backend.to_string() }
    };
    adapter::usable().into_iter().map(enumerated).collect()
}

impl Backend for Enumerated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        Wgpu.description()
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        WgpuDevice::of_adapter(&self.adapter, Vec::new())
    }
}

/// The GPU backend on a device of the application. vyre replaces its device-lost callback; the application's handler of
/// uncaptured errors stays, and sees no errors of vyre.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
}

impl Backend for Shared {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "a GPU device of the application"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        WgpuDevice::open(self.device.clone(), self.queue.clone(), Vec::new())
    }
}

/// Requests a device with every feature and limit that vyre can use.
pub(crate) fn request(adapter: &wgpu::Adapter) -> Result<(wgpu::Device, wgpu::Queue), Error> {
    let wanted = wgpu::Features::SHADER_F64
        | wgpu::Features::SHADER_INT64
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SHADER_INT64_ATOMIC_MIN_MAX
        | wgpu::Features::SHADER_INT64_ATOMIC_ALL_OPS
        | wgpu::Features::SUBGROUP
        | wgpu::Features::TIMESTAMP_QUERY;
    let requested = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("vyre"),
        required_features: adapter.features() & wanted,
        required_limits: adapter.limits(),
        ..wgpu::DeviceDescriptor::default()
    });
    let name = adapter.get_info().name;
    let refused = |error| Error::NoAdapter { backend: NAME, reason: format!("{name}: {error}") };
    ready(requested).map_err(refused)
}

/// An open device.
pub(crate) struct WgpuDevice {
    stream: Arc<Stream>,
    capabilities: Capabilities,
    target: Target,
    limits: wgpu::Limits,
    /// Bound to objects without elements.
    nothing: wgpu::Buffer,
    fold: OnceLock<Arc<WgpuKernel>>,
    patch: OnceLock<Arc<WgpuKernel>>,
}

/// A program with its pipelines.
struct WgpuKernel {
    program: Validated<Program>,
    source: Source,
    /// Control block layout of most launches. Only the loops that use fuel depend on the launch.
    control: Arc<Control>,
    /// Pipelines, by variant of the launch.
    pipelines: Mutex<HashMap<Variant, Pipeline>>,
}

#[derive(Clone)]
struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    control: Arc<Control>,
}

struct WgpuMemory(wgpu::Buffer);

impl Kernel for WgpuKernel {}
impl Memory for WgpuMemory {}

fn buffer(memory: &Arc<dyn Memory>) -> &wgpu::Buffer {
    let memory: &WgpuMemory = (&**memory as &dyn Any).downcast_ref().expect("the driver keeps devices apart");
    &memory.0
}

impl WgpuDevice {
    fn of_adapter(adapter: &wgpu::Adapter, reasons: Vec<String>) -> Result<Box<dyn Device>, Error> {
        let (device, queue) = request(adapter)?;
        // Errors are captured by scopes where they can occur; others must not end the process.
        device.on_uncaptured_error(Arc::new(|_| {}));
        WgpuDevice::open(device, queue, reasons)
    }

    fn open(device: wgpu::Device, queue: wgpu::Queue, reasons: Vec<String>) -> Result<Box<dyn Device>, Error> {
        let mut device = WgpuDevice::new(device, queue, Arc::new(Monotonic))?;
        let mut findings = probe::run(&device)?;
        // Enables the workarounds for operations that the driver rounds incorrectly.
        let Floats { exact_f32, fused_fma, .. } = findings.floats;
        let has_f64 = device.capabilities.types.contains(Type::F64);
        let before = device.target;
        device.target.opaque_floats |= !exact_f32;
        device.target.emulate_fma |= !fused_fma && has_f64;
        device.target.opaque_counters |= !findings.wrapping_counters;
        if device.target != before {
            findings = probe::run(&device)?;
        }
        if !findings.wrapping_counters {
            return Err(failed("the driver miscounts the trips of a loop whose counter wraps around"));
        }
        device.capabilities.floats = findings.floats;
        device.capabilities.reasons = reasons;
        device.capabilities.reasons.extend(device.target.workarounds(&device.capabilities.name));
        Ok(Box::new(device))
    }

    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue, clock: Arc<dyn Clock>) -> Result<WgpuDevice, Error> {
        let (info, features) = (device.adapter_info(), device.features());
        let software = info.device_type == wgpu::DeviceType::Cpu;
        if software && let Some(error) = code_permission::denied() {
            let name = info.name;
            let reason = format!("{name} compiles to machine code, and the system denies machine code here: {error}");
            return Err(Error::NoAdapter { backend: NAME, reason });
        }
        let limits = device.limits();
        let stream = Stream::new(device, queue, clock)?;
        let nothing = stream.create(16, wgpu::BufferUsages::STORAGE)?;
        // The driver silently ends loops after a fixed number of trips.
        let loop_budget = info.name.starts_with("llvmpipe");
        let max_loop_trips = if loop_budget { 65_535 } else { MAX_TRIPS };
        let capabilities = capabilities(&info, features, &limits, software, max_loop_trips);
        let target = Target {
            loop_budget,
            atomics_64: capabilities.atomics_64,
            // Mesa's software driver needs all workarounds, in all versions so far. Other drivers are probed.
            opaque_floats: loop_budget,
            opaque_counters: loop_budget,
            emulate_fma: loop_budget && capabilities.types.contains(Type::F64),
            subgroup_size: capabilities.subgroup_size,
            binding_bytes: binding_bytes(&limits),
            overrides: false,
        };
        Ok(WgpuDevice { stream, capabilities, target, limits, nothing, fold: OnceLock::new(), patch: OnceLock::new() })
    }

    fn kernel(&self, program: &Validated<Program>) -> Result<WgpuKernel, Error> {
        let source = Source::of(program)?;
        let variant = source.usual().clone();
        let pipeline = self.pipeline(program, &source, &variant)?;
        let control = pipeline.control.clone();
        let most = self.limits.max_uniform_buffer_binding_size;
        if control.param_bytes() > most {
            let needed = format!("{} bytes of parameters", control.param_bytes());
            return Err(Error::Unsupported { needed, available: most.to_string() });
        }
        let pipelines = Mutex::new(HashMap::from([(variant, pipeline)]));
        Ok(WgpuKernel { program: program.clone(), source, control, pipelines })
    }

    /// Returns the pipeline of a kernel for a variant of launches.
    fn pipeline_of(&self, kernel: &WgpuKernel, variant: Variant) -> Result<Pipeline, Error> {
        let mut pipelines = kernel.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pipelines.get(&variant) {
            return Ok(known.clone());
        }
        let pipeline = self.pipeline(&kernel.program, &kernel.source, &variant)?;
        pipelines.insert(variant, pipeline.clone());
        Ok(pipeline)
    }

    fn pipeline(&self, program: &Program, source: &Source, variant: &Variant) -> Result<Pipeline, Error> {
        let lowered = source.lower(self.target, variant);
        let available = self.capabilities.max_workgroup_bytes;
        if lowered.workgroup_bytes > available {
            let needed = format!("{} bytes of workgroup memory", lowered.workgroup_bytes);
            return Err(Error::Unsupported { needed, available: available.to_string() });
        }
        let entry =
            |binding: usize, ty: wgpu::BufferBindingType, has_dynamic_offset: bool| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
                count: None,
            };
        let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform, true)];
        let mut objects = 0..;
        for memory in program.memories().values() {
            if let Space::Storage(access) = memory.space {
                let read_only = lower::read_only(access, variant);
                for _ in 0..variant.bindings(objects.next().unwrap_or_default()) {
                    entries.push(entry(entries.len(), wgpu::BufferBindingType::Storage { read_only }, false));
                }
            }
        }
        if lowered.control.reports() {
            let ty = wgpu::BufferBindingType::Storage { read_only: false };
            entries.push(entry(entries.len(), ty, true));
        }
        let device = &self.stream.device;
        self.stream.attempt(0, || {
            let descriptor = wgpu::ShaderModuleDescriptor {
                label: Some(program.name()),
                source: wgpu::ShaderSource::Naga(Cow::Owned(lowered.module)),
            };
            let module = self.trusted(descriptor);
            let layout =
                device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
            let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(program.name()),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(ENTRY),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: lowered.needs_zeros,
                    ..wgpu::PipelineCompilationOptions::default()
                },
                cache: None,
            });
            Pipeline { pipeline, layout, control: Arc::new(lowered.control) }
        })
    }

    /// Creates a shader module without wgpu's runtime checks.
    #[allow(unsafe_code)]
    fn trusted(&self, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
        // SAFETY: the module comes from our own lowering of a validated program. It compares every index with the
        // length of its object before use, and the host binds at least that many elements; divisors are replaced where
        // they are 0, or −1 with overflow; every loop consumes fuel and ends without it, unless its trip count is known
        // to be small; and it has no ray queries and no mesh shaders. These are all the conditions of `unchecked`.
        unsafe { self.stream.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
    }

    /// Returns an internal kernel of the device, compiled on first use.
    fn own<'a>(&self, place: &'a OnceLock<Arc<WgpuKernel>>, source: &str) -> Result<&'a Arc<WgpuKernel>, Error> {
        if let Some(known) = place.get() {
            return Ok(known);
        }
        let program = validate::program(text::parse(source)?.programs.remove(0))?;
        let kernel = Arc::new(self.kernel(&program)?);
        Ok(place.get_or_init(|| kernel))
    }
}

/// Size of each binding but the last, for objects with several bindings.
fn binding_bytes(limits: &wgpu::Limits) -> u64 {
    1 << limits.max_storage_buffer_binding_size.max(1).ilog2()
}

fn capabilities(
    info: &wgpu::AdapterInfo,
    features: wgpu::Features,
    device: &wgpu::Limits,
    software: bool,
    max_loop_trips: u64,
) -> Capabilities {
    let has = |feature| features.contains(feature);
    let mut types = vec![Type::Bool, Type::I32, Type::U32, Type::F32];
    if has(wgpu::Features::SHADER_INT64) {
        types.extend([Type::I64, Type::U64]);
        // The bits of an f64 are accessed as a 64-bit integer.
        if has(wgpu::Features::SHADER_F64) {
            types.push(Type::F64);
        }
    }
    if has(wgpu::Features::SHADER_F16) {
        types.push(Type::F16);
    }
    let fixed_subgroups = info.subgroup_min_size == info.subgroup_max_size;
    let subgroup_size = (has(wgpu::Features::SUBGROUP) && fixed_subgroups).then_some(info.subgroup_min_size);
    let size =
        [device.max_compute_workgroup_size_x, device.max_compute_workgroup_size_y, device.max_compute_workgroup_size_z];
    Capabilities {
        name: info.name.clone(),
        kind: if software { DeviceKind::SoftwareGpu } else { DeviceKind::Gpu },
        types: TypeSet::of(&types),
        atomics_64: has(wgpu::Features::SHADER_INT64_ATOMIC_ALL_OPS),
        // The halves of a 64-bit atomic cannot be accessed.
        mixed_atomics_64: false,
        subgroup_size,
        max_workgroup_size: std::array::from_fn(|axis| size[axis].min(limits::WORKGROUP_SIZE[axis])),
        max_workgroup_invocations: device.max_compute_invocations_per_workgroup,
        max_workgroup_bytes: u64::from(device.max_compute_workgroup_storage_size),
        // One binding is the control block.
        max_storage_objects: device.max_storage_buffers_per_shader_stage.saturating_sub(1),
        // An object may have several bindings.
        max_binding_bytes: device.max_buffer_size.min(u64::from(u32::MAX)),
        max_buffer_bytes: device.max_buffer_size,
        memory_bytes: None,
        max_loop_trips: Some(max_loop_trips),
        threads: None,
        instruction_set: None,
        independent_groups: false,
        reasons: Vec::new(),
        // Replaced by the results of the probe.
        floats: Floats { exact_f32: false, fused_fma: false, subnormals: false, infinities_and_nans: false },
    }
}

impl Device for WgpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error> {
        self.stream.check_lost()?;
        Ok(Arc::new(self.kernel(program)?))
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error> {
        self.stream.check_lost()?;
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::INDIRECT;
        Ok(Arc::new(WgpuMemory(self.stream.create(bytes, usage)?)))
    }

    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error> {
        self.stream.check_lost()?;
        let stream = &self.stream;
        stream.make_room()?;
        // Pipelines are compiled before the recorder is locked.
        let mut batch = Batch { device: self, steps: Vec::new(), launches: Vec::new(), reads: Vec::new() };
        for command in commands {
            match command {
                Command::Launch(launch) => batch.launch(&launch)?,
                Command::Write(range, data) => batch.write(&range, data)?,
                Command::Clear(range) => batch.clear(&range)?,
                Command::Read(range, alignment) => batch.read(&range, alignment)?,
            }
        }
        let Batch { steps, mut launches, reads, .. } = batch;

        let mut recorder = stream.recorder();
        let reported = steps.iter().map(|step| match step {
            Step::Dispatch(dispatch) => dispatch.reported() as u64,
            Step::Copy { .. } | Step::Write { .. } | Step::Clear { .. } | Step::Read { .. } => 0,
        });
        stream.reserve_report(&mut recorder, reported.max().unwrap_or(0))?;
        let mut groups = Vec::new();
        for step in &steps {
            groups.push(match step {
                Step::Dispatch(dispatch) => Some(stream.bind(&mut recorder, dispatch)?),
                Step::Copy { .. } | Step::Write { .. } | Step::Clear { .. } | Step::Read { .. } => None,
            });
        }
        let mut flights: Vec<Arc<Flight>> = Vec::new();
        let mut launched = launches.iter_mut().peekable();
        for (position, (step, group)) in steps.iter().zip(&groups).enumerate() {
            let (flight, report) = stream.record(&mut recorder, step, group.as_ref());
            while launched.next_if(|launch| launch.steps.end <= position).is_some() {}
            if let Some(launch) = launched.peek_mut().filter(|launch| launch.steps.contains(&position)) {
                launch.report = report.map(ReportLocation::Flight).or(launch.report.take());
                if launch.flights.last().is_none_or(|last| !Arc::ptr_eq(last, &flight)) {
                    launch.flights.push(flight.clone());
                }
            }
            if flights.last().is_none_or(|last| !Arc::ptr_eq(last, &flight)) {
                flights.push(flight);
            }
        }
        stream.start(&mut recorder);
        let stream = stream.clone();
        Ok(Box::new(WgpuTicket { stream, flights, launches, reads, is_cancelled: false }))
    }
}

fn kernel_of(launch: &Launch) -> Arc<WgpuKernel> {
    let kernel: Arc<dyn Any + Send + Sync> = launch.kernel.clone();
    kernel.downcast().expect("the driver keeps devices apart")
}

/// Number of trace lines of a launch, and words of its report, 0 without one.
fn report_words(control: &Control, limits: Limits) -> (u32, u32) {
    let line_words = control.line_words();
    let lines = match control.prints.is_empty() {
        true => 0,
        false => limits.trace_capacity.min(MAX_TRACE_WORDS / line_words as usize) as u32,
    };
    (lines, control.trace() + lines * line_words)
}

/// A batch in preparation.
struct Batch<'d> {
    device: &'d WgpuDevice,
    steps: Vec<Step>,
    launches: Vec<Launched>,
    reads: Vec<Read>,
}

/// Result of a read: a range of bytes of a staging buffer.
struct Read {
    staging: Arc<Staging>,
    bytes: std::ops::Range<usize>,
    alignment: usize,
}

/// A submitted launch whose report is pending.
struct Launched {
    kernel: Arc<WgpuKernel>,
    control: Arc<Control>,
    /// Steps of its dispatches; empty if there is nothing to run.
    steps: std::ops::Range<usize>,
    flights: Vec<Arc<Flight>>,
    /// Location of the report, if the kernel makes one.
    report: Option<ReportLocation>,
    /// Location of the shape of an indirect grid.
    shape: Option<Arc<Staging>>,
    lines: u32,
    deadline: Option<Duration>,
    /// Ranges of workgroups that are skipped after the deadline, if the launch is dispatched in ranges.
    ranges: Option<Arc<Ranges>>,
    /// It was seen unfinished after its deadline.
    is_late: bool,
    /// The fuel in use derives from the deadline, at 1 trip/ns, so running out of it is reported as a passed deadline.
    in_time: bool,
}

/// Location of a launch's report.
enum ReportLocation {
    /// The report buffer of the launch's flight.
    Flight(stream::Report),
    /// A copy of the buffer that the dispatches of the launch share.
    Copy(Arc<Staging>),
}

impl ReportLocation {
    fn contents(&self) -> Result<Vec<u8>, Error> {
        match self {
            ReportLocation::Flight(report) => report.contents(),
            ReportLocation::Copy(staging) => staging.contents(),
        }
    }
}

impl Launched {
    fn is_done(&self) -> bool {
        self.flights.iter().all(|flight| flight.is_done())
    }
}

/// Maximum number of workgroups of one dispatch: including those that folding adds, linear indices fit into 32 bits.
const MAX_GROUPS: u64 = 1 << 30;

/// Maximum number of ranges of a launch with a deadline.
const MAX_RANGES: u64 = 32;

/// Minimum number of workgroups of a range of a launch with a deadline: fewer would leave parts of a GPU idle.
const RANGE_GROUPS: u64 = 1024;

/// Minimum number of loop trips of a range of a launch with a deadline, over all invocations: fewer take less time than submitting a range.
const RANGE_TRIPS: u64 = 1 << 18;

/// Splits workgroups into ranges of equal length, except for the last. A launch with a deadline is split so that it can
/// be stopped between ranges, unless it is small: `invocations` of a workgroup take `trips` loop trips each, if that is
/// known.
fn ranges(total: u32, invocations: u32, trips: Option<u64>, has_deadline: bool) -> impl Iterator<Item = (u32, u32)> {
    let total = u64::from(total);
    let length = match has_deadline {
        true => {
            let trips_of_group = u64::from(invocations).saturating_mul(trips.unwrap_or(RANGE_TRIPS).saturating_add(1));
            RANGE_GROUPS.max(RANGE_TRIPS.div_ceil(trips_of_group)).max(total.div_ceil(MAX_RANGES)).min(MAX_GROUPS)
        }
        false => MAX_GROUPS,
    };
    (0..total).step_by(length as usize).map(move |first| (first as u32, length.min(total - first) as u32))
}

/// Loop trips that one invocation may take, regardless of fuel. Limits an infinite loop to seconds: a trip takes a
/// nanosecond or more on a software adapter, less on a GPU, where otherwise a watchdog resets the device.
const MAX_TRIPS: u64 = 1 << 26;

/// Maximum number of trips of loops that a workgroup executes together, whose trips may contain barriers.
const MAX_GROUP_TRIPS: u64 = 1 << 22;

/// Largest trace that is allocated, in words.
const MAX_TRACE_WORDS: usize = 1 << 22;

impl Batch<'_> {
    /// Copies words of a buffer to a staging buffer, in stream order.
    fn stage(&mut self, source: &wgpu::Buffer, start: u64, bytes: u64) -> Result<Arc<Staging>, Error> {
        let staging = self.device.stream.staging(bytes)?;
        self.steps.push(Step::Read { source: source.clone(), start, staging: staging.clone() });
        Ok(staging)
    }

    fn read(&mut self, range: &Range, alignment: usize) -> Result<(), Error> {
        let start = range.start & !3;
        let end = (range.start + range.bytes).next_multiple_of(4);
        let staging = self.stage(buffer(&range.memory), start, end - start)?;
        let first = (range.start - start) as usize;
        self.reads.push(Read { staging, bytes: first..first + range.bytes as usize, alignment });
        Ok(())
    }

    fn write(&mut self, range: &Range, data: Vec<u8>) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        if !are_words(range) {
            return self.patch(range, &data);
        }
        let (target, start) = (buffer(&range.memory).clone(), range.start);
        self.steps.push(if data.len() <= SMALL {
            Step::Write { target, start, data }
        } else {
            let source = self.device.stream.upload(&data)?;
            Step::Copy { source, target, start, bytes: range.bytes }
        });
        Ok(())
    }

    fn clear(&mut self, range: &Range) -> Result<(), Error> {
        if !are_words(range) {
            return self.patch(range, &vec![0; range.bytes as usize]);
        }
        let target = buffer(&range.memory).clone();
        self.steps.push(Step::Clear { target, start: range.start, bytes: range.bytes });
        Ok(())
    }

    /// Writes bytes that are not whole words, without changing their neighbours.
    fn patch(&mut self, range: &Range, data: &[u8]) -> Result<(), Error> {
        const SOURCE: &str = include_str!("programs/patch.vyre");
        let kernel = self.device.own(&self.device.patch, SOURCE)?.clone();
        let source = self.device.stream.filled(data, wgpu::BufferUsages::STORAGE)?;
        let source = Range { memory: Arc::new(WgpuMemory(source)), start: 0, bytes: data.len() as u64 };
        let arguments = bind(&kernel.program, [Argument::Buffer(source), Argument::Buffer(range.clone())])?;
        let groups = [(data.len() as u32).div_ceil(64), 1, 1];
        self.dispatch(&kernel, &Groups::Fixed(groups), &arguments, Limits::default()).map(|_| ())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        let launched = self.dispatch(&kernel_of(launch), &launch.groups, &launch.arguments, launch.limits)?;
        self.launches.push(launched);
        Ok(())
    }

    /// Prepares a dispatch.
    fn dispatch(
        &mut self,
        kernel: &Arc<WgpuKernel>,
        groups: &Groups,
        arguments: &Arguments<Range>,
        limits: Limits,
    ) -> Result<Launched, Error> {
        let device = self.device;
        let program = &kernel.program;
        // Only the loops in it depend on the launch.
        let control = &kernel.control;
        let mut launched = Launched {
            kernel: kernel.clone(),
            control: control.clone(),
            steps: 0..0,
            flights: Vec::new(),
            report: None,
            shape: None,
            lines: 0,
            deadline: limits.deadline,
            ranges: None,
            is_late: false,
            in_time: false,
        };
        let mut params = vec![0; control.param_bytes() as usize / 4];
        let mut objects: Vec<(wgpu::Buffer, u64, u64)> = Vec::new();
        let mut parts = false;
        let mut lengths = Lengths { equal: true, multiples_of_four: true };
        let mut open_length = None;
        let mut counts = Vec::new();
        let alignment = u64::from(device.limits.min_storage_buffer_offset_alignment).max(16);
        for (id, memory) in program.memories().iter() {
            match arguments.get(id) {
                None => {}
                Some(Argument::Scalar(Literal { bits, .. })) => {
                    let word = control.object(id) as usize;
                    params[word] = *bits as u32;
                    params[word + 1] = (*bits >> 32) as u32;
                }
                Some(Argument::Buffer(range)) => {
                    let word = control.object(id) as usize;
                    let size = memory.element.size() as u64;
                    let length = (range.bytes / size) as u32;
                    params[word] = length;
                    if memory.length.is_none() {
                        lengths.equal &= *open_length.get_or_insert(length) == length;
                        lengths.multiples_of_four &= length.is_multiple_of(4);
                    }
                    if range.bytes == 0 {
                        parts |= objects.iter().any(|(bound, ..)| *bound == device.nothing);
                        objects.push((device.nothing.clone(), 0, 16));
                        counts.push(1);
                        continue;
                    }
                    let start = range.start & !(alignment - 1);
                    params[word + 1] = ((range.start - start) / size) as u32;
                    let bytes = (range.start + range.bytes - start).next_multiple_of(16);
                    let buffer = buffer(&range.memory);
                    parts |= start != range.start || objects.iter().any(|(bound, ..)| bound == buffer);
                    let end = (start + bytes).min(buffer.size());
                    let per_binding = match bytes <= device.limits.max_storage_buffer_binding_size {
                        true => bytes,
                        false => device.target.binding_bytes,
                    };
                    let several = (start..end).step_by(per_binding as usize);
                    counts.push(several.clone().count() as u32);
                    objects.extend(several.map(|at| (buffer.clone(), at, per_binding.min(end - at))));
                }
            }
        }
        // Its square fits into 32 bits.
        let most_groups = device.limits.max_compute_workgroups_per_dimension.min(0xffff);
        let mut total = 0;
        match groups {
            Groups::Fixed(groups) => {
                total = total_invocations(*groups, [1, 1, 1]).expect("the driver has checked the grid");
                if total == 0 {
                    return Ok(launched);
                }
                params[..3].copy_from_slice(groups);
            }
            Groups::Indirect(_) => {}
        }
        // A trip takes at least a nanosecond.
        let in_time = limits.deadline.map_or(u64::MAX, |deadline| deadline.as_nanos() as u64).max(1 << 16);
        let most = if device.target.loop_budget { BUDGET } else { MAX_TRIPS };
        let most_together = if device.target.loop_budget { BUDGET } else { MAX_GROUP_TRIPS };
        let exactly = |word: u32| Interval::exactly(i64::from(params[word as usize]));
        let below = |word: u32| Interval { low: 0, high: i64::from(params[word as usize]) - 1 };
        let fixed = matches!(groups, Groups::Fixed(_));
        let trips = kernel.source.trips(&|op| match *op {
            Op::Load(MemOperand { memory, .. }) | Op::PerGroup(PerGroup::Length(memory)) => {
                Some(exactly(control.object(memory)))
            }
            Op::PerGroup(PerGroup::GroupCount(axis)) if fixed => Some(exactly(axis as u32)),
            Op::PerGroup(PerGroup::GroupId(axis)) if fixed => Some(below(axis as u32)),
            Op::PerGroup(PerGroup::GroupIndex) if fixed => Some(Interval { low: 0, high: i64::from(total) - 1 }),
            _ => None,
        });
        let trips = trips.filter(|&trips| trips <= (most_together / 2).min(limits.fuel).min(in_time));
        let lengths = kernel.source.lengths(lengths);
        let bound = counts.iter().sum::<u32>() as usize;
        if bound == counts.len() {
            counts.clear();
        } else if bound > device.capabilities.max_storage_objects as usize {
            let needed = format!("{bound} bindings for the storage objects of `{}`", program.name());
            let available =
                format!("{} of {} bytes", device.capabilities.max_storage_objects, device.target.binding_bytes);
            return Err(Error::Unsupported { needed, available });
        }
        let invocations = program.workgroup_size().iter().product();
        let ranges: Vec<_> = ranges(total, invocations, trips, limits.deadline.is_some()).collect();
        let in_ranges = ranges.len() > 1;
        let (mapping, mut shapes) = match groups {
            Groups::Fixed(groups) => {
                let is_line = groups[1..] == [1, 1];
                let mapping = match in_ranges || groups.iter().any(|count| *count > most_groups) {
                    true if is_line => GroupMapping::FoldedLine,
                    true => GroupMapping::Folded,
                    false if is_line => kernel.source.usual().mapping,
                    false => GroupMapping::Direct,
                };
                let shapes = ranges.iter().map(|&(first, count)| {
                    let shape = match mapping {
                        GroupMapping::Line | GroupMapping::Direct => *groups,
                        GroupMapping::Folded | GroupMapping::FoldedLine => fold(count, most_groups),
                    };
                    (first, count, Shape::Fixed(shape))
                });
                (mapping, shapes.collect::<Vec<_>>())
            }
            Groups::Indirect(range) => {
                let shape = self.fold(range, program, most_groups)?;
                launched.shape = Some(self.stage(&shape, 0, 32)?);
                (GroupMapping::Folded, vec![(0, 0, Shape::Computed(shape))])
            }
        };
        let variant = Variant { mapping, parts, counted: trips.is_some(), lengths, bindings: counts };
        let Pipeline { pipeline, layout, control } = device.pipeline_of(kernel, variant)?;

        // A program with both kinds of loops splits the budget in halves.
        let shared = if device.target.loop_budget && control.both_fuels { 2 } else { 1 };
        let fuel = |most: u64| limits.fuel.min((most - trips.unwrap_or(0)) / shared).min(in_time) as u32;
        launched.in_time = in_time < most.min(limits.fuel);
        params[param::FUEL as usize] = fuel(most);
        params[param::GROUP_FUEL as usize] = fuel(most_together);
        let (lines, report_words) = report_words(&control, limits);
        params[param::LINES as usize] = lines;
        launched.lines = lines;
        launched.control = control.clone();
        let report = control.reports().then(|| {
            let mut report = vec![0; report_words as usize];
            report[report::LOWEST as usize] = u32::MAX;
            report
        });
        // Dispatches of one launch share a report.
        let shared = match &report {
            Some(report) if in_ranges => {
                let bytes: Vec<u8> = report.iter().flat_map(|word| word.to_le_bytes()).collect();
                let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
                Some(device.stream.filled(&bytes, usage)?)
            }
            _ => None,
        };
        launched.ranges = limits.deadline.filter(|_| in_ranges).map(|deadline| Arc::new(Ranges::new(deadline)));
        let first_step = self.steps.len();
        for (first, count, shape) in shapes.drain(..) {
            params[param::FIRST as usize] = first;
            params[param::COUNT as usize] = count;
            let reporting = match (&shared, &report) {
                (Some(buffer), _) => Reporting::InBuffer(buffer.clone()),
                (None, Some(report)) => Reporting::InFlight(report.clone()),
                (None, None) => Reporting::Nowhere,
            };
            self.steps.push(Step::Dispatch(stream::Dispatch {
                pipeline: pipeline.clone(),
                layout: layout.clone(),
                objects: objects.clone(),
                params: params.clone(),
                reporting,
                shape,
                ranges: launched.ranges.clone(),
            }));
        }
        if let Some(shared) = &shared {
            launched.report = Some(ReportLocation::Copy(self.stage(shared, 0, shared.size())?));
        }
        launched.steps = first_step..self.steps.len();
        Ok(launched)
    }

    /// Computes the grid of an indirect launch on the device: three words as requested and their product, three words
    /// as launched, and a flag that it is too large.
    fn fold(&mut self, range: &Range, program: &Program, most: u32) -> Result<wgpu::Buffer, Error> {
        const SOURCE: &str = include_str!("programs/fold.vyre");
        let device = self.device;
        let kernel = device.own(&device.fold, SOURCE)?.clone();
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::INDIRECT;
        let shape = device.stream.filled(&[0; 32], usage)?;
        let target = Range { memory: Arc::new(WgpuMemory(shape.clone())), start: 0, bytes: 32 };
        let invocations = program.workgroup_size().iter().product::<u32>();
        let [range, target] = [range.clone(), target].map(Argument::Buffer);
        let arguments = bind(&kernel.program, [invocations.into(), most.into(), range, target])?;
        self.dispatch(&kernel, &Groups::Fixed([1, 1, 1]), &arguments, Limits::default())?;
        Ok(shape)
    }
}

/// Returns whether a range consists of whole words: only those can be copied.
fn are_words(range: &Range) -> bool {
    range.start.is_multiple_of(4) && range.bytes.is_multiple_of(4)
}

/// Arguments of an internal program, in the order of its objects.
pub(crate) fn bind(
    program: &Validated<Program>,
    given: impl IntoIterator<Item = Argument<Range>>,
) -> Result<Arguments<Range>, Error> {
    let names = program.memories().values().map(|memory| memory.name.as_str());
    launch::bind(program, names.zip(given), |memory, range: &Range| {
        let buffer = Arc::as_ptr(&range.memory).addr() as u64;
        Ok(Slice { buffer, element: memory.element, start: range.start, bytes: range.bytes })
    })
}

/// Returns a grid of at least `total` workgroups with at most `most` in each dimension, and the fewest extra ones.
fn fold(total: u32, most: u32) -> [u32; 3] {
    let (total, most) = (u64::from(total), u64::from(most));
    let planes = total.div_ceil(most * most);
    let in_plane = total.div_ceil(planes);
    let rows = in_plane.div_ceil(most);
    [in_plane.div_ceil(rows) as u32, rows as u32, planes as u32]
}

struct WgpuTicket {
    stream: Arc<Stream>,
    /// Flights that the batch was recorded into, in order; empty if there was nothing to do.
    flights: Vec<Arc<Flight>>,
    launches: Vec<Launched>,
    reads: Vec<Read>,
    is_cancelled: bool,
}

impl Ticket for WgpuTicket {
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>> {
        if self.is_cancelled {
            return Some(Err(Error::Cancelled));
        }
        let clock = self.stream.clock.clone();
        let end = timeout.and_then(|timeout| clock.now().checked_add(timeout));
        let mut polled = false;
        loop {
            let unfinished = match self.unfinished() {
                Ok(Some(unfinished)) => unfinished,
                Ok(None) => return Some(self.complete()),
                Err(error) => return Some(Err(error)),
            };
            let now = clock.now();
            let (mut wake, mut is_overdue) = (end, false);
            for launch in self.launches.iter_mut().filter(|launch| !launch.is_done()) {
                let (Some(first), Some(deadline)) = (launch.flights.first(), launch.deadline) else { continue };
                let verdict = Verdict::of(first.started(), deadline, now);
                launch.is_late |= matches!(verdict, Verdict::Late(_) | Verdict::Overdue);
                is_overdue |= verdict == Verdict::Overdue;
                wake = [wake, verdict.until()].into_iter().flatten().min();
            }
            if is_overdue {
                self.abandon(AbandonReason::Overdue(now));
                return Some(self.complete());
            }
            // Polls at least once, even with a zero timeout.
            if polled && end.is_some_and(|end| now >= end) {
                return None;
            }
            let left = wake.map_or(Duration::MAX, |wake| wake.saturating_duration_since(now));
            if let Err(error) = self.stream.poll(&unfinished, left) {
                return Some(Err(error));
            }
            polled = true;
        }
    }

    fn cancel(&mut self) {
        // Submitted work cannot be revoked, but the caller stops waiting for it.
        self.is_cancelled = true;
        self.abandon(AbandonReason::Cancelled);
    }
}

impl WgpuTicket {
    /// Returns the first unfinished flight.
    fn unfinished(&self) -> Result<Option<Arc<Flight>>, Error> {
        for flight in &self.flights {
            if !self.stream.poll_flight(flight)? {
                return Ok(Some(flight.clone()));
            }
        }
        Ok(None)
    }

    /// Stops waiting for unfinished flights.
    fn abandon(&self, reason: AbandonReason) {
        self.launches.iter().filter_map(|launch| launch.ranges.as_ref()).for_each(|ranges| ranges.stop());
        // Later flights have not started.
        if let Some(flight) = self.flights.iter().find(|flight| !flight.is_done()) {
            flight.abandon(reason);
        }
    }

    fn complete(&mut self) -> Result<Completion, Error> {
        let mut completion = Completion::default();
        for launch in &self.launches {
            if !launch.is_done() {
                let outcome = Outcome::DeadlinePassed { span: Span::NONE };
                completion.reports.push(Report { outcome, ..Report::completed(Duration::ZERO) });
                continue;
            }
            if let Some(shape) = &launch.shape {
                let shape = words(&shape.contents()?);
                if shape[7] != 0 {
                    let workgroup_size = launch.kernel.program.workgroup_size();
                    let groups = [shape[0], shape[1], shape[2]];
                    return Err(vyre_foundation::Error::GridTooLarge { groups, workgroup_size }.into());
                }
            }
            let time = launch.flights.iter().map(|flight| flight.time()).sum();
            let mut report = match &launch.report {
                Some(report) => decode(&launch.control, &words(&report.contents()?), launch.lines, time),
                None => Report::completed(time),
            };
            let late = launch.is_late || launch.ranges.as_ref().is_some_and(|ranges| ranges.is_stopped());
            if let (Outcome::OutOfFuel { span }, true) = (&report.outcome, launch.in_time || late) {
                report.outcome = Outcome::DeadlinePassed { span: *span };
            }
            if late && report.outcome == Outcome::Completed {
                report.outcome = Outcome::DeadlinePassed { span: Span::NONE };
            }
            completion.reports.push(report);
        }
        for Read { staging, bytes, alignment } in &self.reads {
            completion.data.push(Contents::copied(&staging.contents()?[bytes.clone()], *alignment)?);
        }
        Ok(completion)
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// Decodes the words of a report.
fn decode(control: &Control, words: &[u32], capacity: u32, time: Duration) -> Report {
    let lines = words[report::LINES as usize];
    let kept = lines.min(capacity);
    let trace = control.lines(words, kept as usize);
    let mut outcome = Outcome::Completed;
    let traps = words[report::TRAPS as usize];
    if traps > 0 {
        let count = words[report::RECORDS as usize].min(report::CAPACITY) as usize;
        let records = words[report::HEAD as usize..].chunks_exact(report::RECORD_WORDS as usize).take(count);
        if let Some(&[invocation, site, code]) = records.min_by_key(|record| record[0]) {
            let span = control.traps.get(site as usize).copied().unwrap_or_default();
            outcome = Outcome::Trapped { code, invocation, span, count: u64::from(traps) };
        }
    }
    let stop = words[report::STOP as usize];
    if stop > 0 {
        outcome = Outcome::OutOfFuel { span: control.loops.get(stop as usize - 1).copied().unwrap_or_default() };
    }
    Report { outcome, trace, dropped_lines: u64::from(lines - kept), ..Report::completed(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_partition_the_grid_with_32_bit_indices() {
        let totals = [1, 1023, 65_536, 1 << 20, (1 << 30) + 1, 3 << 30, u32::MAX - 1, u32::MAX];
        for (total, most) in totals.into_iter().flat_map(|total| [(total, 0xffff), (total, 0x8000), (total, 2048)]) {
            for (invocations, trips, has_deadline) in [(1, Some(0), false), (1, Some(0), true), (256, None, true)] {
                let mut next = 0;
                for (first, count) in ranges(total, invocations, trips, has_deadline) {
                    assert_eq!(u64::from(first), next, "{total}");
                    next += u64::from(count);
                    let shape = fold(count, most);
                    let launched: u64 = shape.iter().map(|&count| u64::from(count)).product();
                    assert!(launched >= u64::from(count) && launched <= 1 << 32, "{count} are {shape:?}");
                    assert!(shape.iter().all(|&count| count <= most), "{count} are {shape:?}");
                }
                assert_eq!(next, u64::from(total));
            }
        }
        let count = |total, invocations, trips| ranges(total, invocations, trips, true).count();
        assert_eq!(count(1024, 64, None), 1, "too few workgroups to split");
        assert_eq!(count(4096, 64, None), 4);
        assert_eq!(count(4096, 64, Some(0)), 1, "too little work to split");
        assert_eq!(count(u32::MAX, 1, None), 32);
    }
}
