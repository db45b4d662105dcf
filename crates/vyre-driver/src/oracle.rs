//! The oracle as a device: the reference for all other devices.

use std::any::Any;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vyre_foundation::Validated;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{self, Report, Slice};

use crate::backend::{Backend, Command, Completion, Contents, Device, Groups, Kernel, Launch, Memory, Range, Ticket};
use crate::null::Done;
use crate::{Capabilities, DeviceKind, Error};

/// The oracle backend: slow, complete, and correct by definition.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    /// Number of lanes of a subgroup. For comparisons, use that of the other device.
    pub subgroup_size: u32,
}

impl Default for Oracle {
    fn default() -> Self {
        Oracle { subgroup_size: vyre_reference::Options::default().subgroup_size }
    }
}

impl Backend for Oracle {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn description(&self) -> &'static str {
        "the interpreter that defines the semantics"
    }

    fn open(&self) -> Result<Box<dyn Device>, Error> {
        let name = "vyre reference interpreter".into();
        let capabilities = Capabilities::unlimited(name, DeviceKind::Oracle, self.subgroup_size);
        let capabilities = Capabilities { threads: Some(1), ..capabilities };
        Ok(Box::new(OracleDevice { capabilities, executing: Mutex::new(()) }))
    }
}

struct OracleDevice {
    capabilities: Capabilities,
    /// Serializes commands of different threads.
    executing: Mutex<()>,
}

struct OracleKernel(Validated<Program>);
struct OracleMemory(Mutex<Vec<u8>>);

impl Kernel for OracleKernel {}
impl Memory for OracleMemory {}

impl OracleMemory {
    fn of(memory: &Arc<dyn Memory>) -> &OracleMemory {
        (&**memory as &dyn Any).downcast_ref().expect("the driver keeps devices apart")
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for OracleDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn compile(&self, program: &Validated<Program>) -> Result<Arc<dyn Kernel>, Error> {
        Ok(Arc::new(OracleKernel(program.clone())))
    }

    fn allocate(&self, bytes: u64) -> Result<Arc<dyn Memory>, Error> {
        let mut memory = Contents::reserved(bytes as usize)?;
        memory.resize(bytes as usize, 0);
        Ok(Arc::new(OracleMemory(Mutex::new(memory))))
    }

    fn submit(&self, commands: Vec<Command>) -> Result<Box<dyn Ticket>, Error> {
        let _turn = self.executing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut completion = Completion::default();
        for command in commands {
            match command {
                Command::Launch(launch) => match self.launch(&launch) {
                    Ok(report) => completion.reports.push(report),
                    Err(error) => return Ok(Box::new(Done(Some(Err(error))))),
                },
                Command::Write(range, data) => {
                    OracleMemory::of(&range.memory).bytes()[bytes_of(&range)].copy_from_slice(&data);
                }
                Command::Clear(range) => OracleMemory::of(&range.memory).bytes()[bytes_of(&range)].fill(0),
                Command::Read(range, alignment) => {
                    let memory = OracleMemory::of(&range.memory);
                    match Contents::copied(&memory.bytes()[bytes_of(&range)], alignment) {
                        Ok(contents) => completion.data.push(contents),
                        Err(error) => return Ok(Box::new(Done(Some(Err(error))))),
                    }
                }
            }
        }
        Ok(Box::new(Done(Some(Ok(completion)))))
    }
}

fn bytes_of(range: &Range) -> std::ops::Range<usize> {
    range.start as usize..(range.start + range.bytes) as usize
}

impl OracleDevice {
    fn launch(&self, launch: &Launch) -> Result<Report, Error> {
        let kernel: &OracleKernel =
            (&*launch.kernel as &dyn Any).downcast_ref().expect("the driver keeps devices apart");
        let program = &kernel.0;
        let groups = match &launch.groups {
            Groups::Fixed(groups) => *groups,
            Groups::Indirect(range) => {
                let bytes = OracleMemory::of(&range.memory).bytes()[bytes_of(range)].to_vec();
                let word = |axis: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * axis + byte]));
                launch::Grid::Groups(std::array::from_fn(word)).groups(program.workgroup_size())?
            }
        };
        // The interpreter takes distinct buffers. Objects may be parts of the same memory.
        let mut memories: Vec<&Arc<dyn Memory>> = Vec::new();
        let Ok(arguments) = launch.arguments.try_map(|id, range| {
            let known = memories.iter().position(|known| Arc::ptr_eq(known, &range.memory));
            let buffer = known.unwrap_or_else(|| {
                memories.push(&range.memory);
                memories.len() - 1
            });
            let (buffer, element) = (buffer as u64, program.memory(id).element);
            Ok::<_, Infallible>(Slice { buffer, element, start: range.start, bytes: range.bytes })
        });
        let mut buffers: Vec<Vec<u8>> =
            memories.iter().map(|memory| std::mem::take(&mut *OracleMemory::of(memory).bytes())).collect();
        let options = vyre_reference::Options { limits: launch.limits, subgroup_size: self.subgroup_size() };
        let result = vyre_reference::run(program, groups, &arguments, &mut buffers, &options);
        for (memory, buffer) in memories.into_iter().zip(buffers) {
            *OracleMemory::of(memory).bytes() = buffer;
        }
        result.map_err(|error| match error {
            vyre_reference::Error::OutOfMemory { requested } => Error::OutOfMemory { requested, available: 0 },
            error => Error::Backend { backend: "reference", reason: error.to_string() },
        })
    }

    fn subgroup_size(&self) -> u32 {
        self.capabilities.subgroup_size.unwrap_or(1)
    }
}
