//! Devices, typed launches, and the per-device kernel cache.

use std::any::TypeId;
use std::hash::BuildHasher as _;
use std::marker::PhantomData;
use std::sync::{Arc, Once, OnceLock};

use rustc_hash::FxBuildHasher;
use vyre_driver::{Argument, Dispatch, Kernel, PrivateFolder, Registry};
use vyre_foundation::ir::{Literal, Program};
use vyre_foundation::launch::{self, Grid, Limits, Report};
use vyre_foundation::{Validated, validate};
use vyre_reference::Options;
use vyre_runtime::pipeline::Argument as PipelineArgument;

use crate::buffer::Memory;
use crate::pipeline::{Recorder, Transient};
use crate::{Buffer, Element, Error, Finding};

/// An open device. A clone is a handle to the same device; threads may share it.
#[derive(Clone)]
pub struct Device {
    driver: vyre_driver::Device,
    kernels: Arc<Kernels>,
}

/// Kernel cache of a device, keyed by the kernel's type: a hash table of append-only linked lists, so that lookups take no lock.
struct Kernels([Link; 64]);

type Link = OnceLock<Box<Node>>;

struct Node {
    key: TypeId,
    prepared: Prepared,
    next: Link,
}

impl Kernels {
    /// Returns the entry of a key, or the end of the list that it belongs to.
    fn find(&self, key: TypeId) -> Result<&Prepared, &Link> {
        let mut link = &self.0[FxBuildHasher.hash_one(key) as usize % self.0.len()];
        while let Some(node) = link.get() {
            if node.key == key {
                return Ok(&node.prepared);
            }
            link = &node.next;
        }
        Err(link)
    }

    /// Inserts an entry unless another thread has inserted one for the key.
    fn insert(&self, key: TypeId, prepared: Prepared) -> &Prepared {
        let mut node = Some(Box::new(Node { key, prepared, next: Link::new() }));
        loop {
            let link = match self.find(key) {
                Ok(prepared) => return prepared,
                Err(end) => end,
            };
            // Another thread may have appended a different kernel first.
            node = node.and_then(|node| link.set(node).err());
        }
    }
}

/// The unoptimized program of a kernel, which has the source lines, and its compiled kernel after the first launch outside of a pipeline.
struct Prepared {
    program: Validated<Program>,
    kernel: OnceLock<Kernel>,
}

impl Device {
    /// Opens the device with the highest measured throughput, or the one that the environment variable `VYRE_DEVICE` names.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn auto() -> Result<Device, Error> {
        Ok(Device::from(registry().choose(None, None)?.device))
    }

    /// Opens the device of a name: `cpu`, `wgpu` or `reference`, if the feature of the same name is enabled.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn named(name: &str) -> Result<Device, Error> {
        Ok(Device::from(registry().open(name)?))
    }

    /// The underlying driver device, for operations that this crate does not wrap.
    pub fn driver(&self) -> &vyre_driver::Device {
        &self.driver
    }

    /// Allocates a buffer and copies the elements into it.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn upload<T: Element>(&self, elements: &[T]) -> Result<Buffer<T>, Error> {
        Ok(Buffer::new(self.driver.upload(T::ELEMENT, bytemuck::cast_slice(elements))?))
    }

    /// Allocates a zero-filled buffer.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn zeros<T: Element>(&self, length: usize) -> Result<Buffer<T>, Error> {
        Ok(Buffer::new(self.driver.allocate(T::ELEMENT, (length as u64).saturating_mul(T::WIDTH.into()))?))
    }

    fn prepared(&self, key: TypeId, program: &Build<'_>) -> Result<&Prepared, Error> {
        if let Ok(known) = self.kernels.find(key) {
            return Ok(known);
        }
        let program = validated(program()?)?;
        Ok(self.kernels.insert(key, Prepared { program, kernel: OnceLock::new() }))
    }
}

pub(crate) fn validated(program: Program) -> Result<Validated<Program>, Error> {
    let (name, sources) = (program.name().to_owned(), program.sources().clone());
    validate::program(program).map_err(|error| Error::invalid(&name, &sources, error))
}

impl Prepared {
    fn kernel(&self, device: &Device) -> Result<&Kernel, Error> {
        if self.kernel.get().is_none() {
            // If another thread compiled it meanwhile, its kernel is equal.
            let _ = self.kernel.set(device.driver.compile(&self.program)?);
        }
        Ok(self.kernel.get().expect("it was set"))
    }
}

impl From<vyre_driver::Device> for Device {
    fn from(driver: vyre_driver::Device) -> Device {
        Device { driver, kernels: Arc::new(Kernels([const { Link::new() }; 64])) }
    }
}

/// The backends that this crate was built with. Their caches persist in the user's cache folder, which the command `vyre` shares.
pub(crate) fn registry() -> Registry {
    let registry = Registry::default();
    #[cfg(feature = "cpu")]
    let registry = registry.with(vyre_cpu::Cpu::default());
    #[cfg(feature = "wgpu")]
    let registry = registry.with(vyre_wgpu::Wgpu);
    #[cfg(feature = "reference")]
    let registry = registry.with(vyre_driver::Oracle::default());
    match Registry::user_folder().map(PrivateFolder::open) {
        Some(Ok(folder)) => registry.remember(&folder),
        Some(Err(error)) => {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| tracing::warn!(code = error.code(), "{error}; {}", error.help()));
            registry
        }
        None => registry,
    }
}

/// Conversion into a [`Grid`]: `n`, `[x, y]` or `[x, y, z]` invocations, rounded up to whole workgroups (so kernels check their index
/// against the length), or a grid.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a grid",
    label = "not a number of invocations",
    note = "a grid is a `usize`, `[usize; 2]` or `[usize; 3]` of invocations: cast the number, `n as usize`"
)]
pub trait IntoGrid {
    /// Returns the grid.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if a dimension does not fit into 32 bits.
    fn into_grid(self) -> Result<Grid, Error>;
}

impl IntoGrid for Grid {
    fn into_grid(self) -> Result<Grid, Error> {
        Ok(self)
    }
}

impl IntoGrid for usize {
    fn into_grid(self) -> Result<Grid, Error> {
        [self, 1, 1].into_grid()
    }
}

impl IntoGrid for [usize; 2] {
    fn into_grid(self) -> Result<Grid, Error> {
        let [x, y] = self;
        [x, y, 1].into_grid()
    }
}

impl IntoGrid for [usize; 3] {
    fn into_grid(self) -> Result<Grid, Error> {
        let mut elements = [0; 3];
        for (element, count) in elements.iter_mut().zip(self) {
            let too_large = |_| Error::TooLarge { name: "grid", value: count as i128 };
            *element = u32::try_from(count).map_err(too_large)?;
        }
        Ok(Grid::Elements(elements))
    }
}

/// Builds the program of a kernel. A box of a closure without captures does not allocate, so neither does a launch.
type Build<'a> = Box<dyn Fn() -> Result<Program, Error> + 'a>;

/// A kernel bound to its arguments.
#[must_use = "a launch does nothing until it is `run`"]
pub struct Launch<'a> {
    key: TypeId,
    program: Build<'a>,
    arguments: Vec<(&'static str, Argument)>,
    transients: Vec<(&'static str, Transient)>,
    limits: Limits,
    /// Error of the first argument that cannot be bound.
    problem: Option<Box<Error>>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> Launch<'a> {
    /// Sets the limits of the launch: fuel, deadline, and lines of the print trace.
    pub fn limits(mut self, limits: Limits) -> Launch<'a> {
        self.limits = limits;
        self
    }

    /// Runs the kernel and blocks until it completes. A kernel is compiled on its first launch on a device.
    ///
    /// # Errors
    /// The device does not support the kernel, an argument is invalid, an invocation trapped, or a limit was reached.
    pub fn run(self, device: &Device, grid: impl IntoGrid) -> Result<Report, Error> {
        let (dispatch, program) = self.dispatch(device, grid)?;
        let report = device.driver.run(&dispatch)?;
        Error::check(program, &report.outcome)?;
        Ok(report)
    }

    /// The driver's dispatch, and the unoptimized program for source locations.
    fn dispatch(self, device: &Device, grid: impl IntoGrid) -> Result<(Dispatch, &Validated<Program>), Error> {
        if let Some(problem) = self.problem {
            return Err(*problem);
        }
        if !self.transients.is_empty() {
            return Err(Error::Transient);
        }
        let prepared = device.prepared(self.key, &self.program)?;
        let grid = grid.into_grid()?.widen();
        let dispatch = prepared.kernel(device)?.dispatch(grid, self.arguments)?;
        Ok((dispatch.limits(self.limits), &prepared.program))
    }

    /// Runs the kernel in the oracle with sanitizers, on copies of its buffers, and reports what is well-defined but almost always a bug:
    /// data races, out-of-bounds accesses, and reads of uninitialized arrays. It is slow and meant for tests:
    /// `assert_eq!(saxpy(2.0, &x, &mut y).sanitize(n)?, [])`.
    ///
    /// # Errors
    /// Same as [`run`](Launch::run).
    pub fn sanitize(self, grid: impl IntoGrid) -> Result<Vec<Finding>, Error> {
        if let Some(problem) = self.problem {
            return Err(*problem);
        }
        if !self.transients.is_empty() {
            return Err(Error::Transient);
        }
        let program = validated((self.program)()?)?;
        let groups = grid.into_grid()?.groups(program.workgroup_size())?;
        let arguments = launch::bind(&program, self.arguments, |_, memory| Ok::<_, Error>(memory.as_slice()))?;
        let mut contents = Vec::new();
        let arguments = arguments.try_map(|_, memory| {
            let buffer = contents.len() as u64;
            contents.push(memory.read()?);
            Ok::<_, Error>(launch::Slice { buffer, start: 0, ..memory.as_slice() })
        })?;
        let options = Options { limits: self.limits, ..Options::default() };
        let sanitized = vyre_reference::sanitize(&program, groups, &arguments, &mut contents, &options);
        let (report, found) = sanitized
            .map_err(|error| vyre_driver::Error::Backend { backend: "reference", reason: error.to_string() })?;
        Error::check(&program, &report.outcome)?;
        Ok(found.iter().map(|found| Finding::new(&program, found)).collect())
    }

    /// Records the launch in a [pipeline](crate::Pipeline), whose limits apply to it.
    ///
    /// # Errors
    /// The kernel or an argument is invalid.
    pub fn record(self, recorder: &mut Recorder<'_>, grid: impl IntoGrid) -> Result<(), Error> {
        if let Some(problem) = self.problem {
            return Err(*problem);
        }
        let Recorder { device, recorded } = recorder;
        let program = device.prepared(self.key, &self.program)?.program.clone();
        let mut arguments: Vec<(&str, PipelineArgument)> = Vec::new();
        for (name, argument) in &self.arguments {
            arguments.push(match argument {
                Argument::Scalar(literal) => (name, PipelineArgument::Scalar(*literal)),
                Argument::Buffer(memory) => (name, recorded.attach(memory).into()),
            });
        }
        for (name, transient) in &self.transients {
            if !recorded.owns(transient.buffer) {
                return Err(Error::Transient);
            }
            arguments.push((name, transient.buffer.into()));
        }
        recorded.dispatch(program, grid.into_grid()?, &arguments)?;
        Ok(())
    }

    #[doc(hidden)]
    pub fn __new<K: 'static>(program: impl Fn() -> Result<Program, Error> + 'a) -> Launch<'a> {
        Launch {
            key: TypeId::of::<K>(),
            program: Box::new(program),
            arguments: Vec::with_capacity(4),
            transients: Vec::new(),
            limits: Limits::default(),
            problem: None,
            borrowed: PhantomData,
        }
    }

    #[doc(hidden)]
    pub fn __scalar(mut self, name: &'static str, scalar: impl HostScalar) -> Launch<'a> {
        match scalar.literal() {
            Ok(literal) => self.arguments.push((name, Argument::Scalar(literal))),
            Err(value) => self.problem = self.problem.or(Some(Box::new(Error::TooLarge { name, value }))),
        }
        self
    }

    #[doc(hidden)]
    pub fn __buffer<T>(mut self, name: &'static str, buffer: &Buffer<T>) -> Launch<'a> {
        match &buffer.memory {
            Memory::Device(memory) => self.arguments.push((name, Argument::Buffer(memory.clone()))),
            Memory::Transient(transient) => self.transients.push((name, *transient)),
        }
        self
    }
}

/// Launches that are submitted together and execute in order.
pub(crate) struct Batch<'d> {
    device: &'d Device,
    cleared: Vec<vyre_driver::Buffer>,
    dispatches: Vec<Dispatch>,
    programs: Vec<&'d Validated<Program>>,
}

impl<'d> Batch<'d> {
    pub(crate) fn new(device: &'d Device) -> Batch<'d> {
        Batch { device, cleared: Vec::new(), dispatches: Vec::new(), programs: Vec::new() }
    }

    pub(crate) fn device(&self) -> &'d Device {
        self.device
    }

    /// Zero-fills a buffer before the first launch.
    pub(crate) fn clear<T: Element>(&mut self, buffer: &Buffer<T>) -> Result<(), Error> {
        self.cleared.push(buffer.on_device()?.clone());
        Ok(())
    }

    /// Appends a launch. The launch's borrows end here, so the caller makes sure that launches share buffers correctly.
    pub(crate) fn push(&mut self, launch: Launch<'_>, grid: impl IntoGrid) -> Result<(), Error> {
        let (dispatch, program) = launch.dispatch(self.device, grid)?;
        self.dispatches.push(dispatch);
        self.programs.push(program);
        Ok(())
    }

    /// Submits all launches and blocks until they complete.
    pub(crate) fn run(self) -> Result<(), Error> {
        let cleared: Vec<_> = self.cleared.iter().collect();
        let reports = self.device.driver.clear_and_submit(&cleared, &self.dispatches)?.wait()?;
        self.programs.iter().zip(&reports).try_for_each(|(program, report)| Error::check(program, &report.outcome))
    }
}

/// Host type of a scalar parameter.
#[doc(hidden)]
pub trait HostScalar {
    /// Returns the device scalar, or the value if it is out of range.
    fn literal(self) -> Result<Literal, i128>;
}

macro_rules! host_scalars {
    ($($ty:ty)*) => { $(
        impl HostScalar for $ty {
            fn literal(self) -> Result<Literal, i128> {
                Ok(Literal::from(self))
            }
        }
    )* };
}
host_scalars! { i32 u32 f32 i64 u64 f64 crate::f16 }

impl HostScalar for usize {
    fn literal(self) -> Result<Literal, i128> {
        u32::try_from(self).map(Literal::from).map_err(|_| self as i128)
    }
}

impl HostScalar for isize {
    fn literal(self) -> Result<Literal, i128> {
        i32::try_from(self).map(Literal::from).map_err(|_| self as i128)
    }
}
