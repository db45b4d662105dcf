//! Pipelines: task graphs of dispatches over named buffers, planned once and run any number of times.
//!
//! ```text
//! Pipeline   recorded by calls, or loaded from a module
//!   → plan     topological order that keeps chains together; launch fusion of chains; barrier groups; memory sharing
//!              of buffers with disjoint live ranges; all within the budget
//!   → compile  kernels and memory on a device
//!   → run      one submission for each barrier group, without planning
//! ```
//!
//! ```
//! use vyre_driver::{Device, Oracle};
//! use vyre_foundation::ir::Element;
//! use vyre_foundation::ir::pipeline::Role;
//! use vyre_foundation::launch::{Grid, Limits};
//! use vyre_foundation::{text, validate};
//! use vyre_runtime::pipeline::Pipeline;
//!
//! let source = "program double workgroup(64) {
//!     read x: [u32]
//!     write y: [u32]
//!     %i = global_index
//!     %x = load x[%i]
//!     %y = add %x, %x
//!     store y[%i], %y
//! }";
//! let double = validate::module(text::parse(source)?)?.programs[0].clone();
//!
//! let mut pipeline = Pipeline::new("quadruple");
//! let x = pipeline.buffer("x", Role::In, Element::U32, 4);
//! let t = pipeline.buffer("t", Role::Transient, Element::U32, 4);
//! let y = pipeline.buffer("y", Role::Out, Element::U32, 4);
//! pipeline.dispatch(double.clone(), Grid::Elements([4, 1, 1]), &[("x", x.into()), ("y", t.into())])?;
//! pipeline.dispatch(double, Grid::Elements([4, 1, 1]), &[("x", t.into()), ("y", y.into())])?;
//!
//! let device = Device::open(&Oracle::default())?;
//! let plan = pipeline.plan(device.capabilities())?;
//! let compiled = plan.compile(&device)?;
//! compiled.buffer("x")?.write(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])?;
//! compiled.run(Limits::default())?;
//! assert_eq!(compiled.buffer("y")?.read()?, [4, 0, 0, 0, 8, 0, 0, 0, 12, 0, 0, 0, 16, 0, 0, 0]);
//! # Ok::<(), vyre_runtime::Error>(())
//! ```

mod memory;
mod plan;
mod run;

use rustc_hash::FxHashMap;
use vyre_driver::Capabilities;
use vyre_foundation::ir::pipeline::{Buffer, Dispatch, Role};
use vyre_foundation::ir::{self, BufferId, Element, Program, Span};
use vyre_foundation::launch::{self, Arguments, Grid, Limits};
use vyre_foundation::{Validated, validate};

use crate::Error;
use crate::owner::Owner;

pub use memory::Memory;
pub use plan::{Join, Launch, Plan, UnplannedLimit, Use};
pub use run::{Compiled, Run};

/// A recorded task graph of dispatches.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    owner: Owner,
    recorded: ir::Pipeline,
    stages: Vec<Stage>,
    attached: Vec<Attached>,
    /// Limits of each dispatch.
    limits: Limits,
}

/// Reference to a buffer of a pipeline. Clones of the pipeline accept it, other pipelines refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferRef {
    owner: Owner,
    id: BufferId,
}

impl BufferRef {
    /// Position of the buffer in [`Pipeline::recorded`].
    pub fn id(self) -> BufferId {
        self.id
    }
}

/// Argument of a dispatch in a pipeline: a value, or one of the pipeline's buffers.
pub type Argument = launch::Argument<BufferRef>;

impl From<BufferRef> for Argument {
    fn from(buffer: BufferRef) -> Argument {
        Argument::Buffer(buffer)
    }
}

/// A buffer in memory of the caller.
#[derive(Clone, Debug)]
struct Attached {
    id: BufferId,
    memory: vyre_driver::Buffer,
    /// Attached buffers that overlap this one.
    overlapping: Vec<BufferId>,
}

/// A dispatch with checked arguments.
#[derive(Clone, Debug)]
struct Stage {
    program: Validated<Program>,
    groups: [u32; 3],
    arguments: Arguments<BufferId>,
}

impl Pipeline {
    /// Creates an empty pipeline.
    pub fn new(name: impl Into<String>) -> Pipeline {
        Pipeline { recorded: ir::Pipeline { name: name.into(), ..ir::Pipeline::default() }, ..Pipeline::default() }
    }

    /// Loads a pipeline of a module, with the module's programs.
    ///
    /// # Errors
    /// The pipeline does not match the programs, which cannot happen for those of a validated module.
    pub fn load(recorded: &ir::Pipeline, programs: &[Validated<Program>]) -> Result<Pipeline, Error> {
        let mut pipeline = Pipeline::new(recorded.name.clone());
        pipeline.recorded.budget = recorded.budget;
        pipeline.recorded.buffers = recorded.buffers.clone();
        validate::pipeline(recorded)?;
        let programs: FxHashMap<&str, _> = programs.iter().map(|program| (program.name(), program)).collect();
        for dispatch in &recorded.dispatches {
            let Some(&program) = programs.get(dispatch.program.as_str()) else {
                let known = programs.keys().map(|name| (*name).to_owned()).collect();
                return Err(vyre_foundation::Error::UnknownBinding { name: dispatch.program.clone(), known }.into());
            };
            pipeline.record(program.clone(), dispatch.clone())?;
        }
        Ok(pipeline)
    }

    /// Sets the memory budget of all buffers, in bytes. The default is the memory of the device.
    pub fn budget(&mut self, bytes: u64) {
        self.recorded.budget = Some(bytes);
    }

    /// Sets the fuel and deadline of each dispatch. A dispatch that may reach them is not fused with dispatches that it would stop or leave
    /// incomplete. The default is [`Limits::default`].
    pub fn limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Declares a buffer.
    pub fn buffer(&mut self, name: impl Into<String>, role: Role, element: Element, length: u32) -> BufferRef {
        let id = self.recorded.buffers.push(Buffer { name: name.into(), role, element, length, span: Span::NONE });
        BufferRef { owner: self.owner, id }
    }

    /// Returns true for buffers of this pipeline.
    pub fn owns(&self, buffer: BufferRef) -> bool {
        buffer.owner == self.owner && self.recorded.buffers.get(buffer.id).is_some()
    }

    /// Attaches memory of the caller as an in-out buffer. Attaching the same memory again returns the same buffer; accesses to overlapping
    /// buffers keep their recorded order.
    pub fn attach(&mut self, memory: &vyre_driver::Buffer) -> BufferRef {
        if let Some(known) = self.attached.iter().find(|known| known.memory == *memory) {
            return BufferRef { owner: self.owner, id: known.id };
        }
        let name = format!("attached_{}", self.attached.len());
        let buffer = self.buffer(name, Role::InOut, memory.element(), memory.len());
        let id = buffer.id;
        let mut attached = Attached { id, memory: memory.clone(), overlapping: Vec::new() };
        for other in self.attached.iter_mut().filter(|other| other.memory.overlaps(memory)) {
            other.overlapping.push(id);
            attached.overlapping.push(other.id);
        }
        self.attached.push(attached);
        buffer
    }

    /// Returns the attached buffers that overlap this one.
    fn overlapping(&self, id: BufferId) -> &[BufferId] {
        self.attached.iter().find(|attached| attached.id == id).map_or(&[], |attached| &attached.overlapping)
    }

    /// Appends a dispatch. Writes of earlier dispatches are visible to it.
    ///
    /// # Errors
    /// The arguments do not match the program, two of them overlap and the program writes one of them, the grid is too large, or
    /// [`Error::ForeignBuffer`].
    pub fn dispatch(
        &mut self,
        program: Validated<Program>,
        grid: Grid,
        arguments: &[(&str, Argument)],
    ) -> Result<(), Error> {
        let own = |(name, argument): &(&str, Argument)| {
            let argument = match *argument {
                Argument::Scalar(literal) => launch::Argument::Scalar(literal),
                Argument::Buffer(buffer) if self.owns(buffer) => launch::Argument::Buffer(buffer.id),
                Argument::Buffer(_) => return Err(Error::ForeignBuffer { object: (*name).to_owned() }),
            };
            Ok(((*name).to_owned(), argument))
        };
        let arguments = arguments.iter().map(own).collect::<Result<_, Error>>()?;
        let name = program.name().to_owned();
        self.record(program, Dispatch { program: name, grid, arguments, span: Span::NONE })
    }

    fn record(&mut self, program: Validated<Program>, dispatch: Dispatch) -> Result<(), Error> {
        let groups = dispatch.grid.groups(program.workgroup_size())?;
        let arguments = self.recorded.bind(&program, dispatch.named())?;
        self.disjoint(&program, &arguments)?;
        self.stages.push(Stage { program, groups, arguments });
        self.recorded.dispatches.push(dispatch);
        Ok(())
    }

    /// Refuses a dispatch over overlapping attached buffers if it writes one of them, as a direct launch does: [`ir::Pipeline::bind`]
    /// assumes that distinct buffers are disjoint.
    fn disjoint(&self, program: &Program, arguments: &Arguments<BufferId>) -> Result<(), Error> {
        for (second, buffer) in arguments.buffers() {
            let overlapping = self.overlapping(*buffer);
            for (first, other) in arguments.buffers().take_while(|(first, _)| *first != second) {
                let (first, second) = (program.memory(first), program.memory(second));
                if overlapping.contains(other) && (first.writable() || second.writable()) {
                    let (first, second) = (first.name.clone(), second.name.clone());
                    return Err(vyre_foundation::Error::Overlap { first, second }.into());
                }
            }
        }
        Ok(())
    }

    /// Returns the recorded pipeline in the form of a module's.
    pub fn recorded(&self) -> &ir::Pipeline {
        &self.recorded
    }

    /// Plans order, launch fusion, barrier groups and memory for a device.
    ///
    /// # Errors
    /// Names or lengths of buffers are invalid, or the pipeline exceeds its budget: [`OverBudget`](vyre_driver::Error::OverBudget) names
    /// the least accepted budget.
    pub fn plan(&self, capabilities: &Capabilities) -> Result<Plan, Error> {
        validate::pipeline(&self.recorded)?;
        plan::plan(self, capabilities)
    }
}
