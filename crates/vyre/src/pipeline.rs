//! Pipelines: recorded sequences of launches, planned and fused once and run any number of times.

use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::launch::Limits;
use vyre_runtime::pipeline::{BufferRef, Compiled, Plan, Run};

use crate::{Device, Element, Error, SliceMut};

/// A recorded sequence of launches. Adjacent launches are fused into one kernel where that is legal; values that only pass between fused
/// launches stay in registers or workgroup memory.
///
/// ```
/// use vyre::{Device, Pipeline, kernel};
///
/// #[kernel(workgroup = 64)]
/// fn scale(a: f32, x: &[f32], y: &mut [f32]) {
///     let i = global_index();
///     y[i] = a * x[i];
/// }
///
/// # fn main() -> Result<(), vyre::Error> {
/// let device = Device::auto()?;
/// let mut x = device.upload(&[1.0, 2.0, 3.0])?;
/// let mut y = device.zeros(3)?;
/// let mut pipeline = Pipeline::new(&device);
/// pipeline.record(|p| {
///     let mut doubled = p.transient(3)?;
///     scale(2.0, &x, &mut doubled).record(p, 3)?;
///     scale(5.0, &doubled, &mut y).record(p, 3)
/// })?;
/// assert_eq!(pipeline.plan()?.launches.len(), 1);
/// pipeline.run()?;
/// assert_eq!(y.download()?, [10.0, 20.0, 30.0]);
/// x.write(&[4.0, 5.0, 6.0])?;
/// pipeline.run()?;
/// assert_eq!(y.download()?, [40.0, 50.0, 60.0]);
/// # Ok(())
/// # }
/// ```
pub struct Pipeline {
    device: Device,
    recorded: vyre_runtime::pipeline::Pipeline,
    limits: Limits,
    /// Compiled plan of everything recorded so far.
    compiled: Option<Compiled>,
}

impl Pipeline {
    /// Creates an empty pipeline.
    pub fn new(device: &Device) -> Pipeline {
        let recorded = vyre_runtime::pipeline::Pipeline::new("pipeline");
        Pipeline { device: device.clone(), recorded, limits: Limits::default(), compiled: None }
    }

    /// Sets the budget for all buffers together, in bytes. The default is the memory of the device.
    pub fn budget(&mut self, bytes: u64) {
        self.recorded.budget(bytes);
        self.compiled = None;
    }

    /// Sets the limits of each recorded launch: fuel, deadline, and lines of the print trace. A launch that may reach a limit is not fused
    /// with launches that the limit would stop too.
    pub fn limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.recorded.limits(limits);
            self.compiled = None;
        }
    }

    /// Appends launches: all of them or, if one cannot be recorded, none. Launches refer to their buffers, and read the contents at the
    /// time of each run.
    ///
    /// # Errors
    /// A kernel or an argument is invalid, or the closure returns another error.
    pub fn record(&mut self, launches: impl FnOnce(&mut Recorder<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let mut recorded = self.recorded.clone();
        launches(&mut Recorder { device: &self.device, recorded: &mut recorded })?;
        self.recorded = recorded;
        self.compiled = None;
        Ok(())
    }

    /// Plans a run: order, fused launches, barrier groups and memory, with reasons.
    ///
    /// # Errors
    /// The pipeline does not fit its budget.
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(self.recorded.plan(self.device.driver().capabilities())?)
    }

    /// Runs all recorded launches and blocks until they complete. The first run plans and compiles.
    ///
    /// # Errors
    /// The pipeline exceeds its budget or the device, an invocation trapped, or a limit was reached.
    pub fn run(&mut self) -> Result<Run, Error> {
        let compiled = match self.compiled.take() {
            Some(compiled) => compiled,
            None => self.plan()?.compile(self.device.driver())?,
        };
        let compiled = self.compiled.insert(compiled);
        let run = compiled.run(self.limits)?;
        for (launches, reports) in compiled.plan().groups.iter().zip(&run.groups) {
            for (&launch, report) in launches.iter().zip(reports) {
                Error::check(&compiled.plan().launches[launch].program, &report.outcome)?;
            }
        }
        Ok(run)
    }
}

/// Records launches into a [pipeline](Pipeline::record).
pub struct Recorder<'p> {
    pub(crate) device: &'p Device,
    pub(crate) recorded: &'p mut vyre_runtime::pipeline::Pipeline,
}

impl<'p> Recorder<'p> {
    /// Declares a transient buffer, which is zero-filled at the start of each run and visible to the launches of this pipeline only. It
    /// is allocated only while live, and not at all if fusion keeps its values in registers or workgroup memory.
    ///
    /// # Errors
    /// The length does not fit into 32 bits.
    pub fn transient<T: Element>(&mut self, length: usize) -> Result<SliceMut<'p, T>, Error> {
        let numbers = u32::try_from(length).ok().and_then(|length| length.checked_mul(T::WIDTH));
        let numbers = numbers.ok_or(Error::TooLarge { name: "transient", value: length as i128 })?;
        let name = format!("transient_{}", self.recorded.recorded().buffers.len());
        let buffer = self.recorded.buffer(name, Role::Transient, T::ELEMENT, numbers);
        Ok(SliceMut::transient(Transient { buffer, numbers }))
    }
}

/// A transient buffer of a pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transient {
    pub(crate) buffer: BufferRef,
    /// Length in numbers: a record counts as the number of its fields.
    pub(crate) numbers: u32,
}
