//! What a device can do.

use vyre_foundation::Validated;
use vyre_foundation::ir::{AccessTypes, Program, Space, Type, TypeSet};
use vyre_foundation::validate::limits;

use crate::Error;

/// What a device can do. Limits are read from the device, never assumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// The device as its maker calls it.
    pub name: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// Types of values it computes with.
    pub types: TypeSet,
    /// Whether it has atomics on 64-bit integers.
    pub atomics_64: bool,
    /// Whether an object with 64-bit atomics may be accessed as other types, too.
    pub mixed_atomics_64: bool,
    /// The number of lanes of a subgroup, if it has subgroup operations.
    pub subgroup_size: Option<u32>,
    /// Invocations of a workgroup in each dimension.
    pub max_workgroup_size: [u32; 3],
    /// Invocations of a workgroup.
    pub max_workgroup_invocations: u32,
    /// Bytes of all workgroup arrays of a program.
    pub max_workgroup_bytes: u64,
    /// Storage objects of a program.
    pub max_storage_objects: u32,
    /// Bytes that one storage object can be bound to.
    pub max_binding_bytes: u64,
    /// Bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of all buffers together, if that is known.
    pub memory_bytes: Option<u64>,
    /// The most loop trips that an invocation can take, all its loops together, whatever the limits of a launch: with more, the
    /// device would end loops silently, or hang. The backend counts, and runs out of fuel before that.
    pub max_loop_trips: Option<u64>,
    /// Threads that execute workgroups, for devices that have such.
    pub threads: Option<u32>,
    /// Instruction set of the code that executes kernels on the processor, such as `AVX2`, or `portable`.
    pub instruction_set: Option<&'static str>,
    /// Whether a workgroup that has begun goes on whatever others do, and whether one that sees another's atomic operation sees
    /// what that one wrote before a barrier in front of it. Then workgroups may wait for each other.
    pub independent_groups: bool,
    /// Why it is this device, where the backend had several to choose from: a line for each.
    pub reasons: Vec<String>,
    /// How its floats behave.
    pub floats: Floats,
}

/// What sort of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Does nothing.
    Null,
    /// The interpreter that defines the meaning of programs.
    Oracle,
    /// The processor.
    Cpu,
    /// A graphics card, integrated or not.
    Gpu,
    /// A graphics driver that runs on the processor.
    SoftwareGpu,
}

/// How the floats of a device behave, as found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floats {
    /// add, sub, mul, div, sqrt and conversions of f32 are correctly rounded, and nothing is contracted or reassociated.
    pub exact_f32: bool,
    /// fma is rounded once.
    pub fused_fma: bool,
    /// Subnormal numbers are kept, as operands and as results.
    pub subnormals: bool,
    /// Infinities and NaNs are handled as IEEE 754 says.
    pub infinities_and_nans: bool,
}

impl Floats {
    /// Everything as IEEE 754 says.
    pub const EXACT: Floats = Floats { exact_f32: true, fused_fma: true, subnormals: true, infinities_and_nans: true };
}

impl Capabilities {
    /// Those of a device that does all that programs can ask for, as far as there is memory.
    pub fn unlimited(name: String, kind: DeviceKind, subgroup_size: u32) -> Capabilities {
        Capabilities {
            name,
            kind,
            types: TypeSet::ALL,
            atomics_64: true,
            mixed_atomics_64: true,
            subgroup_size: Some(subgroup_size),
            max_workgroup_size: limits::WORKGROUP_SIZE,
            max_workgroup_invocations: limits::WORKGROUP_INVOCATIONS,
            max_workgroup_bytes: limits::WORKGROUP_BYTES,
            max_storage_objects: u32::MAX,
            max_binding_bytes: u64::MAX,
            max_buffer_bytes: isize::MAX as u64,
            memory_bytes: None,
            max_loop_trips: None,
            threads: None,
            instruction_set: None,
            independent_groups: false,
            reasons: Vec::new(),
            floats: Floats::EXACT,
        }
    }

    /// Cache key: everything that optimized programs may depend on. Memory, threads and the instruction set can change from one
    /// process to the next, and no pass reads them.
    pub(crate) fn fingerprint(&self, backend: &str) -> String {
        let relevant = Capabilities {
            memory_bytes: None,
            threads: None,
            instruction_set: None,
            reasons: Vec::new(),
            ..self.clone()
        };
        format!("{backend} {relevant:?}")
    }

    /// Whether a program can run on the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the first thing that it needs and the device does not have.
    pub fn check(&self, program: &Validated<Program>) -> Result<(), Error> {
        let unsupported = |needed: String, available: String| Err(Error::Unsupported { needed, available });
        let mut types: Vec<Type> = program.memories().values().map(|memory| memory.element.value_type()).collect();
        let mut subgroups = false;
        let mut atomics_64 = false;
        let mut atomic_accesses_64 = false;
        program.walk(|id, _| {
            let inst = program.inst(id);
            types.extend(inst.results.iter().chain(&inst.operands).map(|&value| program.ty(value)));
            subgroups |= inst.op.needs_subgroups();
            atomics_64 |= inst.op.atomic().is_some_and(|at| at.element.size() == 8);
            atomic_accesses_64 |= inst.op.operand().is_some_and(|at| at.atomic && at.element.size() == 8);
        });
        if let Some(ty) = types.into_iter().find(|ty| !self.types.contains(*ty)) {
            return unsupported(format!("values of type {ty}"), format!("{}", self.types));
        }
        if subgroups && self.subgroup_size.is_none() {
            return unsupported("subgroup operations".into(), "none".into());
        }
        let is_mixed = |types: AccessTypes| {
            types.elements().nth(1).is_some() && types.atomic_elements().any(|element| element.size() == 8)
        };
        if atomic_accesses_64
            && !self.mixed_atomics_64
            && let Some((id, _)) = AccessTypes::of(program).iter().find(|(_, types)| is_mixed(**types))
        {
            let needed =
                format!("64-bit atomics on `{}`, which is accessed as other types too", program.memory(id).name);
            return unsupported(needed, "64-bit atomics on objects of one type".into());
        }
        if atomics_64 && !self.atomics_64 {
            return unsupported("64-bit atomics".into(), "32-bit atomics".into());
        }
        let size = program.workgroup_size();
        if size.iter().zip(self.max_workgroup_size).any(|(size, limit)| *size > limit) {
            return unsupported(format!("workgroups of {size:?}"), format!("up to {:?}", self.max_workgroup_size));
        }
        let invocations = size.iter().product::<u32>();
        if invocations > self.max_workgroup_invocations {
            let available = format!("{}", self.max_workgroup_invocations);
            return unsupported(format!("workgroups of {invocations} invocations"), available);
        }
        let bytes = program.static_bytes_in(Space::Workgroup);
        if bytes > self.max_workgroup_bytes {
            return unsupported(format!("{bytes} bytes of workgroup arrays"), self.max_workgroup_bytes.to_string());
        }
        let objects = program.memories().values().filter(|memory| matches!(memory.space, Space::Storage(_))).count();
        if objects > self.max_storage_objects as usize {
            return unsupported(format!("{objects} storage objects"), self.max_storage_objects.to_string());
        }
        Ok(())
    }
}
