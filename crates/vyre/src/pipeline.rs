//! Pipelines: launches that are recorded once, planned together, and run often.

use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::launch::Limits;
use vyre_runtime::pipeline::{BufferRef, Compiled, Plan, Run};

use crate::{Device, Element, Error, SliceMut};

/// Launches in an order, which are recorded once and run as often as somebody wants. Neighbours that can be are fused into one
/// kernel, and what is only handed from one to the next never reaches memory.
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
    /// What was made of all that is recorded.
    compiled: Option<Compiled>,
}

impl Pipeline {
    /// A pipeline in which nothing is recorded.
    pub fn new(device: &Device) -> Pipeline {
        let recorded = vyre_runtime::pipeline::Pipeline::new("pipeline");
        Pipeline { device: device.clone(), recorded, limits: Limits::default(), compiled: None }
    }

    /// The most memory, in bytes, that all buffers together may take. Without this, it is what the device has.
    pub fn budget(&mut self, bytes: u64) {
        self.recorded.budget(bytes);
        self.compiled = None;
    }

    /// Sets what each recorded launch may use up: loop trips, time, lines of the trace. Launches that may reach a limit are not fused
    /// where that would stop others, too.
    pub fn limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.recorded.limits(limits);
            self.compiled = None;
        }
    }

    /// Records launches after those that there are, all of them or, if one cannot be recorded, none. They use the memory of the
    /// buffers that they are given, whatever is in it when the pipeline runs.
    ///
    /// # Errors
    /// A kernel or its arguments cannot be used, or the closure fails otherwise.
    pub fn record(&mut self, launches: impl FnOnce(&mut Recorder<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let mut recorded = self.recorded.clone();
        launches(&mut Recorder { device: &self.device, recorded: &mut recorded })?;
        self.recorded = recorded;
        self.compiled = None;
        Ok(())
    }

    /// What a run does, and why: which launches are fused, in which order they run, and the memory that this takes.
    ///
    /// # Errors
    /// The pipeline does not fit its budget.
    pub fn plan(&self) -> Result<Plan, Error> {
        Ok(self.recorded.plan(self.device.driver().capabilities())?)
    }

    /// Runs everything that is recorded, and waits for it. The first run plans and compiles.
    ///
    /// # Errors
    /// The pipeline does not fit its budget or the device, an invocation trapped, or a limit was reached.
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

/// Takes launches for a [pipeline](Pipeline::record).
pub struct Recorder<'p> {
    pub(crate) device: &'p Device,
    pub(crate) recorded: &'p mut vyre_runtime::pipeline::Pipeline,
}

impl<'p> Recorder<'p> {
    /// A buffer of zeros that only launches of this pipeline see. It can be used as a `&mut Buffer`; it has no memory of its own,
    /// and none at all if it is only handed on from a launch to those it is fused with.
    ///
    /// # Errors
    /// There are more elements than indices.
    pub fn transient<T: Element>(&mut self, length: usize) -> Result<SliceMut<'p, T>, Error> {
        let numbers = u32::try_from(length).ok().and_then(|length| length.checked_mul(T::WIDTH));
        let numbers = numbers.ok_or(Error::TooLarge { name: "transient", value: length as i128 })?;
        let name = format!("transient_{}", self.recorded.recorded().buffers.len());
        let buffer = self.recorded.buffer(name, Role::Transient, T::ELEMENT, numbers);
        Ok(SliceMut::transient(Transient { buffer, numbers }))
    }
}

/// A buffer of a pipeline that nobody else sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transient {
    pub(crate) buffer: BufferRef,
    /// Elements of a record count one by one.
    pub(crate) numbers: u32,
}
