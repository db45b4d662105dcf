//! Fault injection: a device whose calls pass through an [`Interceptor`], which counts, changes or fails them.
//!
//! A test implements the interception points that it needs; the defaults do nothing.

use std::sync::Arc;
use std::time::Duration;

use vyre_driver::backend::{Backend, Command, Completion, Device, Kernel, Memory, Ticket};
use vyre_driver::{Capabilities, Error};
use vyre_foundation::Validated;
use vyre_foundation::ir::Program;

/// Interception points of a device. An error is returned to the caller, and the call does not reach the device.
pub trait Interceptor: Send + Sync {
    /// Called before a device of the backend is opened.
    ///
    /// # Errors
    /// The device cannot be opened.
    fn open(&self, _backend: &'static str) -> Result<(), Error> {
        Ok(())
    }

    /// Changes the capabilities that the device reports.
    fn capabilities(&self, _capabilities: &mut Capabilities) {}

    /// Called before a program is compiled.
    ///
    /// # Errors
    /// The program is not compiled.
    fn compile(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Called before memory is allocated.
    ///
    /// # Errors
    /// Nothing is allocated.
    fn allocate(&self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Called before commands are submitted.
    ///
    /// # Errors
    /// Nothing is submitted.
    fn submit(&self, _commands: &mut [Command]) -> Result<(), Error> {
        Ok(())
    }

    /// Called after commands have completed. `reads`: there is a read among them.
    ///
    /// # Errors
    /// The commands fail.
    fn complete(&self, _completion: &mut Completion, _reads: bool) -> Result<(), Error> {
        Ok(())
    }
}

/// A backend that opens intercepted devices of another backend.
pub struct Intercepted<B, I> {
    /// Name of the backend.
    pub name: &'static str,
    /// Underlying backend.
    pub backend: B,
    /// Interceptor shared by all devices.
    pub interceptor: Arc<I>,
}

impl<B: Backend, I: Interceptor + 'static> Backend for Intercepted<B, I> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        "a device with injected faults"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        self.interceptor.open(self.name)?;
        let device = self.backend.open()?;
        let mut capabilities = device.capabilities().clone();
        self.interceptor.capabilities(&mut capabilities);
        Ok(Box::new(InterceptedDevice { device, capabilities, interceptor: self.interceptor.clone() }))
    }
}

struct InterceptedDevice<I> {
    device: Box<dyn Device>,
    capabilities: Capabilities,
    interceptor: Arc<I>,
}

impl<I: Interceptor + 'static> Device for InterceptedDevice<I> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error> {
        self.interceptor.compile()?;
        self.device.compile(program)
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error> {
        self.interceptor.allocate(bytes)?;
        self.device.allocate(bytes)
    }

    fn submit(&self, mut commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error> {
        self.interceptor.submit(&mut commands)?;
        let reads = commands.iter().any(|command| matches!(command, Command::Read(..)));
        let ticket = self.device.submit(commands)?;
        Ok(Box::new(InterceptedTicket { ticket, reads, interceptor: self.interceptor.clone() }))
    }
}

struct InterceptedTicket<I> {
    ticket: Box<dyn Ticket>,
    reads: bool,
    interceptor: Arc<I>,
}

impl<I: Interceptor> Ticket for InterceptedTicket<I> {
    fn wait(&mut self, timeout: Option<Duration>) -> Option<Result<Completion, Error>> {
        let result = self.ticket.wait(timeout)?;
        Some(result.and_then(|mut completion| {
            self.interceptor.complete(&mut completion, self.reads)?;
            Ok(completion)
        }))
    }

    fn cancel(&mut self) {
        self.ticket.cancel();
    }
}
