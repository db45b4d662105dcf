//! Compilation and execution of a plan.

use std::time::{Duration, Instant};

use vyre_driver::{Buffer, Device, Dispatch, Grid, Submission};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::ir::{BufferId, Element, MemId};
use vyre_foundation::launch::{Argument, Limits, Outcome, Report};

use super::plan::Plan;
use crate::Error;

/// A plan with its kernels and memory on a device.
pub struct Compiled {
    device: Device,
    plan: Plan,
    /// Dispatch of each launch.
    dispatches: Vec<Dispatch>,
    /// Memory of each buffer; `None` if it was dropped.
    buffers: SecondaryMap<BufferId, Option<Buffer>>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Wall time from the first submission to the completion of all.
    pub elapsed: Duration,
    /// For each group of the plan, the report of each launch.
    pub groups: Vec<Vec<Report>>,
}

impl Run {
    /// Returns the first outcome other than [`Outcome::Completed`], if any. Launches after an incomplete one ran on incomplete data.
    pub fn outcome(&self) -> Outcome {
        let outcomes = self.groups.iter().flatten().map(|report| &report.outcome);
        outcomes.into_iter().find(|outcome| **outcome != Outcome::Completed).cloned().unwrap_or(Outcome::Completed)
    }
}

impl Plan {
    /// Compiles the kernels and allocates the memory of the plan on a device.
    ///
    /// # Errors
    /// The device lacks a feature that a program requires, there is not enough memory, or the plan does not execute every dispatch exactly
    /// once.
    pub fn compile(&self, device: &Device) -> Result<Compiled, Error> {
        self.verify()?;
        let mut kernels = Vec::with_capacity(self.launches.len());
        for launch in &self.launches {
            kernels.push(device.compile_for(&launch.program, &launch.lengths(self).collect::<Vec<_>>())?);
        }
        let words = |bytes: &u64| device.allocate(Element::U64, bytes.div_ceil(8));
        let slots = self.memory.slots.iter().map(words).collect::<Result<Vec<Buffer>, _>>()?;
        let mut buffers = SecondaryMap::with_capacity(self.buffers.len(), None);
        for (id, buffer) in self.buffers.iter() {
            let attached = self.attached.iter().find(|(attached, _)| *attached == id);
            buffers[id] = match self.memory.slot_of[id] {
                Some(slot) => Some(slots[slot].view(buffer.element, buffer.length)?),
                None if let Some((_, memory)) = attached => Some(memory.clone()),
                None if buffer.role == Role::Transient => None,
                None => Some(device.allocate(buffer.element, u64::from(buffer.length))?),
            };
        }
        let mut dispatches = Vec::with_capacity(self.launches.len());
        for (launch, kernel) in self.launches.iter().zip(&kernels) {
            let argument = |(object, argument): (MemId, &Argument<BufferId>)| {
                let argument = match argument {
                    Argument::Scalar(literal) => Argument::Scalar(*literal),
                    Argument::Buffer(id) => buffers[*id].as_ref()?.into(),
                };
                Some((launch.program.memory(object).name.as_str(), argument))
            };
            dispatches
                .push(kernel.dispatch(Grid::Groups(launch.groups), launch.arguments.iter().filter_map(argument))?);
        }
        Ok(Compiled { device: device.clone(), plan: self.clone(), dispatches, buffers })
    }
}

impl Compiled {
    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns an input or output buffer: inputs are written before a run, outputs read after it.
    ///
    /// # Errors
    /// The buffer does not exist or is transient.
    pub fn buffer(&self, name: &str) -> Result<&Buffer, Error> {
        let seen = || self.plan.buffers.iter().filter(|(_, buffer)| buffer.role != Role::Transient);
        let found = seen().find(|(_, buffer)| buffer.name == name).and_then(|(id, _)| self.buffers[id].as_ref());
        found.ok_or_else(|| {
            let known = seen().map(|(_, buffer)| buffer.name.clone()).collect();
            vyre_foundation::Error::UnknownBinding { name: name.into(), known }.into()
        })
    }

    /// Runs the plan and waits for it: one submission for each barrier group, which first clears buffers that the group does not overwrite.
    /// `limits` apply to each dispatch, also if it is fused.
    ///
    /// # Errors
    /// A fused launch cannot keep limits that are lower than those of the [plan](super::Pipeline::limits), or the device was lost.
    pub fn run(&self, limits: Limits) -> Result<Run, Error> {
        let start = Instant::now();
        let of_launches = self.plan.launches.iter().map(|launch| launch.limits(limits));
        let limits = of_launches.collect::<Result<Vec<Limits>, Error>>()?;
        let mut submissions = Vec::with_capacity(self.plan.groups.len());
        for (group, cleared) in self.plan.groups.iter().zip(&self.plan.memory.cleared) {
            let cleared: Vec<&Buffer> = cleared.iter().filter_map(|id| self.buffers[*id].as_ref()).collect();
            let dispatch = |&launch: &usize| self.dispatches[launch].clone().limits(limits[launch]);
            let dispatches: Vec<Dispatch> = group.iter().map(dispatch).collect();
            submissions.push(self.device.clear_and_submit(&cleared, &dispatches)?);
        }
        let groups = submissions.into_iter().map(Submission::wait).collect::<Result<_, vyre_driver::Error>>()?;
        Ok(Run { elapsed: start.elapsed(), groups })
    }
}
