//! Memory objects of a dispatch, in buffers, uniforms, and the arrays of the current workgroup.

use vyre_foundation::ir::entity::Arena;
use vyre_foundation::ir::{Element, MemId, MemOperand, Program, Space};
use vyre_foundation::launch::{Argument, Arguments, Slice};

use crate::Error;

/// All objects, with the arrays of the current workgroup.
pub(crate) struct Memory<'b> {
    objects: Arena<MemId, Object>,
    buffers: &'b mut [Vec<u8>],
    workgroup: Vec<u8>,
    /// Private arrays, consecutive for each invocation.
    private: Vec<u8>,
    private_bytes: usize,
}

struct Object {
    /// Element type in which the length is counted.
    element: Element,
    bytes: u64,
    backing: Backing,
}

/// Backing storage, and the position of the first element.
enum Backing {
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
            let backing = match (memory.space, arguments.get(id)) {
                (Space::Workgroup, _) => Backing::Workgroup { start: reserve(&mut workgroup_bytes, bytes) },
                (Space::Private, _) => Backing::Private { start: reserve(&mut private_bytes, bytes) },
                (_, Some(Argument::Scalar(literal))) => Backing::Uniform { bits: literal.bits },
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
                    Backing::Buffer { buffer, start: slice.start as usize }
                }
                (Space::Storage(_) | Space::Uniform, None) => unreachable!("`bind` rejects missing arguments"),
            };
            objects.push(Object { element: memory.element, bytes: bytes as u64, backing });
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

    /// Zeroes workgroup and private arrays.
    pub(crate) fn begin_workgroup(&mut self) {
        self.workgroup.fill(0);
        self.private.fill(0);
    }

    /// Number of elements of the declared type.
    pub(crate) fn length(&self, memory: MemId) -> u32 {
        self.elements(memory, self.objects[memory].element) as u32
    }

    /// Number of elements of another type that fit into an object.
    pub(crate) fn elements(&self, memory: MemId, element: Element) -> u64 {
        self.objects[memory].bytes / element.size() as u64
    }

    /// Loads the bits of an element, or 0 out of bounds. The index may exceed 32 bits: element indices of wide accesses
    /// do not wrap.
    pub(crate) fn load(&self, at: MemOperand, lane: usize, index: u64) -> u64 {
        let object = &self.objects[at.memory];
        if index >= self.elements(at.memory, at.element) {
            return 0;
        }
        let offset = index as usize * at.element.size();
        let bytes = match object.backing {
            Backing::Uniform { bits } => return bits,
            Backing::Buffer { buffer, start } => &self.buffers[buffer][start + offset..],
            Backing::Workgroup { start } => &self.workgroup[start + offset..],
            Backing::Private { start } => &self.private[lane * self.private_bytes + start + offset..],
        };
        at.element.read(bytes)
    }

    /// Stores the bits of an element; out of bounds, it does nothing.
    pub(crate) fn store(&mut self, at: MemOperand, lane: usize, index: u64, bits: u64) {
        let object = &self.objects[at.memory];
        if index >= self.elements(at.memory, at.element) {
            return;
        }
        let offset = index as usize * at.element.size();
        let bytes = match object.backing {
            Backing::Uniform { .. } => unreachable!("the validator rejects stores to uniforms"),
            Backing::Buffer { buffer, start } => &mut self.buffers[buffer][start + offset..],
            Backing::Workgroup { start } => &mut self.workgroup[start + offset..],
            Backing::Private { start } => &mut self.private[lane * self.private_bytes + start + offset..],
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
