//! Devices, and launches on them.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use vyre_driver::{Argument, Dispatch, Kernel, Registry};
use vyre_foundation::ir::{Literal, Program};
use vyre_foundation::launch::{self, Limits, Report};
use vyre_foundation::{Validated, validate};

use crate::{Buffer, Element, Error};

/// An open device. Clones are the same device; several threads may use it at once.
#[derive(Clone)]
pub struct Device {
    driver: vyre_driver::Device,
    /// What was compiled on this device, by the type that a kernel is.
    kernels: Arc<Mutex<HashMap<TypeId, Arc<Compiled>>>>,
}

/// A kernel that was compiled, and its program as it was written, which knows the lines of the source.
struct Compiled {
    program: Validated<Program>,
    kernel: Kernel,
}

impl Device {
    /// The fastest device of this machine, or the one that the environment variable `VYRE_DEVICE` names.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn auto() -> Result<Device, Error> {
        Ok(Device::from(registry().choose(None, None)?.device))
    }

    /// The device of this name: `cpu`, `wgpu` or `reference`, as far as the features of this crate are on.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn named(name: &str) -> Result<Device, Error> {
        Ok(Device::from(registry().open(name)?))
    }

    /// The device of the driver, for what this crate has no words for.
    pub fn driver(&self) -> &vyre_driver::Device {
        &self.driver
    }

    /// A buffer with these elements.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn upload<T: Element>(&self, elements: &[T]) -> Result<Buffer<T>, Error> {
        Ok(Buffer::new(self.driver.upload(T::ELEMENT, bytemuck::cast_slice(elements))?))
    }

    /// A buffer of zeros.
    ///
    /// # Errors
    /// There is not that much memory.
    pub fn zeros<T: Element>(&self, length: usize) -> Result<Buffer<T>, Error> {
        Ok(Buffer::new(self.driver.allocate(T::ELEMENT, (length as u64).saturating_mul(T::WIDTH.into()))?))
    }

    fn compiled(&self, key: TypeId, program: Build) -> Result<Arc<Compiled>, Error> {
        // What the lock guards is consistent whoever panicked.
        let known = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let program = program()?;
        let checked = validate::program(program.clone()).map_err(|error| Error::invalid(&program, error))?;
        let kernel = self.driver.compile(&checked)?;
        let compiled = Arc::new(Compiled { program: checked, kernel });
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).insert(key, compiled.clone());
        Ok(compiled)
    }
}

impl From<vyre_driver::Device> for Device {
    fn from(driver: vyre_driver::Device) -> Device {
        Device { driver, kernels: Arc::default() }
    }
}

/// The devices that this crate was built with.
fn registry() -> Registry {
    let registry = Registry::default();
    #[cfg(feature = "cpu")]
    let registry = registry.with(vyre_cpu::Cpu::default());
    #[cfg(feature = "wgpu")]
    let registry = registry.with(vyre_wgpu::Wgpu);
    #[cfg(feature = "reference")]
    let registry = registry.with(vyre_driver::Oracle::default());
    registry
}

/// How many invocations there are, in up to three dimensions. They are rounded up to whole workgroups, so that a kernel asks
/// whether its index is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid(pub(crate) [u32; 3]);

impl From<usize> for Grid {
    fn from(invocations: usize) -> Grid {
        Grid::from([invocations, 1, 1])
    }
}

impl From<[usize; 2]> for Grid {
    fn from([x, y]: [usize; 2]) -> Grid {
        Grid::from([x, y, 1])
    }
}

impl From<[usize; 3]> for Grid {
    /// What does not fit is too large for every device, which then says so.
    fn from(invocations: [usize; 3]) -> Grid {
        Grid(invocations.map(|count| u32::try_from(count).unwrap_or(u32::MAX)))
    }
}

/// Makes the program of a kernel.
type Build = fn() -> Result<Program, Error>;

/// A kernel with its arguments.
#[must_use = "a launch does nothing until it is `run`"]
pub struct Launch<'a> {
    key: TypeId,
    program: Build,
    arguments: Vec<(&'static str, Argument)>,
    limits: Limits,
    /// The first argument that cannot be given.
    problem: Option<Error>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> Launch<'a> {
    /// What the launch may use up: loop trips, time, lines of the trace.
    pub fn limits(mut self, limits: Limits) -> Launch<'a> {
        self.limits = limits;
        self
    }

    /// Runs the kernel and waits for it. A kernel is compiled on its first launch on a device.
    ///
    /// # Errors
    /// The kernel or its arguments do not fit the device, an invocation trapped, or a limit was reached.
    pub fn run(self, device: &Device, grid: impl Into<Grid>) -> Result<Report, Error> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let compiled = device.compiled(self.key, self.program)?;
        let grid = vyre_driver::Grid::Fixed(launch::Grid::Elements(grid.into().0));
        let dispatch = Dispatch { kernel: &compiled.kernel, grid, arguments: self.arguments, limits: self.limits };
        let report = device.driver.run(&dispatch)?;
        Error::check(&compiled.program, &report.outcome)?;
        Ok(report)
    }

    #[doc(hidden)]
    pub fn __new<K: 'static>(program: Build) -> Launch<'a> {
        let (arguments, limits) = (Vec::with_capacity(4), Limits::default());
        Launch { key: TypeId::of::<K>(), program, arguments, limits, problem: None, borrowed: PhantomData }
    }

    #[doc(hidden)]
    pub fn __scalar(mut self, name: &'static str, scalar: impl HostScalar) -> Launch<'a> {
        match scalar.literal() {
            Ok(literal) => self.arguments.push((name, Argument::Scalar(literal))),
            Err(value) => self.problem = self.problem.or(Some(Error::TooLarge { name, value })),
        }
        self
    }

    #[doc(hidden)]
    pub fn __buffer<T>(mut self, name: &'static str, buffer: &Buffer<T>) -> Launch<'a> {
        self.arguments.push((name, Argument::Buffer(buffer.memory.clone())));
        self
    }
}

/// What the host gives for a scalar parameter.
#[doc(hidden)]
pub trait HostScalar {
    /// The scalar on the device, or what does not fit.
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
