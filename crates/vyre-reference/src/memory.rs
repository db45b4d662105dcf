//! The memory of a dispatch: every object of the program, wherever it lives.

use vyre_foundation::ir::entity::Arena;
use vyre_foundation::ir::{Element, MemId, MemOperand, Program, Space};
use vyre_foundation::launch::{Argument, Arguments, Slice};

use crate::Error;

/// All objects, with the arrays of the workgroup that is being executed.
pub(crate) struct Memory<'b> {
    objects: Arena<MemId, Object>,
    buffers: &'b mut [Vec<u8>],
    workgroup: Vec<u8>,
    /// One after the other for each invocation.
    private: Vec<u8>,
    private_bytes: usize,
}

struct Object {
    /// The element that its length counts.
    element: Element,
    bytes: u64,
    place: Place,
}

/// Where the first element is.
enum Place {
    Buffer { buffer: usize, start: usize },
    Uniform { bits: u64 },
    Workgroup { start: usize },
    Private { start: usize },
}

impl<'b> Memory<'b> {
    pub(crate) fn new(
        program: &Program,
        arguments: &Arguments<Slice>,
        buffers: &'b mut [Vec<u8>],
    ) -> Result<Self, Error> {
        let mut objects = Arena::default();
        let (mut workgroup_bytes, mut private_bytes) = (0, 0);
        let reserve = |total: &mut usize, bytes: usize| {
            let start = *total;
            *total += bytes;
            start
        };
        for (id, memory) in program.memories().iter() {
            let mut bytes = memory.static_bytes().unwrap_or(0) as usize;
            let place = match (memory.space, arguments.get(id)) {
                (Space::Workgroup, _) => Place::Workgroup { start: reserve(&mut workgroup_bytes, bytes) },
                (Space::Private, _) => Place::Private { start: reserve(&mut private_bytes, bytes) },
                (_, Some(Argument::Scalar(literal))) => Place::Uniform { bits: literal.bits },
                (_, Some(Argument::Buffer(slice))) => {
                    let name = || memory.name.clone();
                    let end = slice.start.saturating_add(slice.bytes);
                    let Some(buffer) = usize::try_from(slice.buffer).ok().filter(|&buffer| buffer < buffers.len())
                    else {
                        return Err(Error::NoSuchBuffer { name: name(), buffer: slice.buffer, count: buffers.len() });
                    };
                    let size = buffers[buffer].len();
                    if end > size as u64 {
                        return Err(Error::BeyondBuffer { name: name(), start: slice.start, end, size });
                    }
                    bytes = slice.bytes as usize;
                    Place::Buffer { buffer, start: slice.start as usize }
                }
                (Space::Storage(_) | Space::Uniform, None) => unreachable!("binding leaves nothing unbound"),
            };
            objects.push(Object { element: memory.element, bytes: bytes as u64, place });
        }
        let invocations = program.workgroup_size().iter().product::<u32>() as usize;
        Ok(Memory {
            objects,
            buffers,
            workgroup: zeros(workgroup_bytes)?,
            private: zeros(private_bytes.saturating_mul(invocations))?,
            private_bytes,
        })
    }

    /// Workgroup and private arrays start as zeros in every workgroup.
    pub(crate) fn begin_workgroup(&mut self) {
        self.workgroup.fill(0);
        self.private.fill(0);
    }

    /// Number of elements of an object, by its declaration.
    pub(crate) fn length(&self, memory: MemId) -> u32 {
        self.elements(memory, self.objects[memory].element) as u32
    }

    /// Number of elements of a type that are within an object.
    pub(crate) fn elements(&self, memory: MemId, element: Element) -> u64 {
        self.objects[memory].bytes / element.size() as u64
    }

    /// The bits at an index, or 0 outside. The index may be beyond 32 bits: those of a wide access do not wrap.
    pub(crate) fn load(&self, at: MemOperand, lane: usize, index: u64) -> u64 {
        let object = &self.objects[at.memory];
        if index >= self.elements(at.memory, at.element) {
            return 0;
        }
        let offset = index as usize * at.element.size();
        let bytes = match object.place {
            Place::Uniform { bits } => return bits,
            Place::Buffer { buffer, start } => &self.buffers[buffer][start + offset..],
            Place::Workgroup { start } => &self.workgroup[start + offset..],
            Place::Private { start } => &self.private[lane * self.private_bytes + start + offset..],
        };
        at.element.read(bytes)
    }

    /// Writes the bits at an index; outside, nothing happens.
    pub(crate) fn store(&mut self, at: MemOperand, lane: usize, index: u64, bits: u64) {
        let object = &self.objects[at.memory];
        if index >= self.elements(at.memory, at.element) {
            return;
        }
        let offset = index as usize * at.element.size();
        let bytes = match object.place {
            Place::Uniform { .. } => unreachable!("the validator rejects stores to uniforms"),
            Place::Buffer { buffer, start } => &mut self.buffers[buffer][start + offset..],
            Place::Workgroup { start } => &mut self.workgroup[start + offset..],
            Place::Private { start } => &mut self.private[lane * self.private_bytes + start + offset..],
        };
        at.element.write(bits, bytes);
    }
}

/// A vector of zeros.
pub(crate) fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let requested = (count as u64).saturating_mul(size_of::<T>() as u64);
    zeros.try_reserve_exact(count).map_err(|_| Error::OutOfMemory { requested })?;
    zeros.resize(count, T::default());
    Ok(zeros)
}
