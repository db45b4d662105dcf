//! Null device, for tests of policies.

use std::sync::Arc;
use std::time::Duration;

use vyre_foundation::Validated;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::Report;

use crate::backend::{Backend, Command, Completion, Contents, Device, Kernel, Memory, Ticket};
use crate::{Capabilities, DeviceKind, Error};

/// The null backend. Its kernels complete at once and write nothing; its memory reads as zeros.
#[derive(Clone, Debug, Default)]
pub struct Null {
    /// Reported memory size.
    pub memory_bytes: Option<u64>,
}

impl Backend for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn description(&self) -> &'static str {
        "does nothing, for testing policies"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        let capabilities = Capabilities::unlimited("null".into(), DeviceKind::Null, 1);
        let capabilities = Capabilities { memory_bytes: self.memory_bytes, max_buffer_bytes: u64::MAX, ..capabilities };
        Ok(Box::new(NullDevice(capabilities)))
    }
}

struct NullDevice(Capabilities);
struct NullKernel;
struct NullMemory;

impl Kernel for NullKernel {}
impl Memory for NullMemory {}

impl Device for NullDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn compile(&self, _: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error> {
        Ok(Arc::new(NullKernel))
    }

    fn allocate(&self, _: u64) -> Result<Arc<dyn Memory>, Error> {
        Ok(Arc::new(NullMemory))
    }

    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error> {
        let mut completion = Completion::default();
        for command in commands {
            match command {
                Command::Launch(_) => completion.reports.push(Report::completed(Duration::ZERO)),
                Command::Read(range, alignment) => {
                    let mut zeros = Contents::reserved(range.bytes as usize)?;
                    zeros.resize(range.bytes as usize, 0);
                    completion.data.push(Contents::copied(&zeros, alignment)?);
                }
                Command::Write(..) | Command::Clear(_) => {}
            }
        }
        Ok(Box::new(Done(Some(Ok(completion)))))
    }
}

/// Ticket of a batch that is already done.
pub(crate) struct Done(pub(crate) Option<Result<Completion, Error>>);

impl Ticket for Done {
    fn wait(&mut self, _: Option<Duration>) -> Option<Result<Completion, Error>> {
        self.0.take()
    }

    fn cancel(&mut self) {}
}
