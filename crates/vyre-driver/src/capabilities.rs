//! Capabilities of devices.

use vyre_foundation::Validated;
use vyre_foundation::ir::{AccessTypes, Program, Space, Type, TypeSet};
use vyre_foundation::validate::limits;

use crate::Error;

/// Capabilities of a device. Limits are queried, never assumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Capabilities {
    /// Name given by the vendor.
    pub name: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Supported value types.
    pub types: TypeSet,
    /// 64-bit atomics are supported.
    pub atomics_64: bool,
    /// An object with 64-bit atomics may be accessed as other types, too.
    pub mixed_atomics_64: bool,
    /// Number of lanes of a subgroup, if subgroup operations are supported.
    pub subgroup_size: Option<u32>,
    /// Largest workgroup in each dimension.
    pub max_workgroup_size: [u32; 3],
    /// Maximum number of invocations of a workgroup.
    pub max_workgroup_invocations: u32,
    /// Maximum total size of the workgroup arrays of a program, in bytes.
    pub max_workgroup_bytes: u64,
    /// Maximum number of storage objects of a program.
    pub max_storage_objects: u32,
    /// Maximum size of the memory bound to one storage object, in bytes.
    pub max_binding_bytes: u64,
    /// Maximum size of a buffer, in bytes.
    pub max_buffer_bytes: u64,
    /// Total memory, if known.
    pub memory_bytes: Option<u64>,
    /// Maximum number of loop trips of an invocation, summed over all its loops and independent of launch limits. Past it, the device
    /// would silently end loops or hang; the backend counts trips, and reports that the fuel is used up before.
    pub max_loop_trips: Option<u64>,
    /// Number of threads that execute workgroups, on a processor.
    pub threads: Option<u32>,
    /// Instruction set of the code on a processor, such as `AVX2`, or `portable`.
    pub instruction_set: Option<&'static str>,
    /// Forward progress between workgroups: a workgroup that has begun continues whatever others do, and one that
    /// observes another's atomic operation sees its writes before a preceding barrier. Then workgroups may wait for
    /// each other.
    pub independent_groups: bool,
    /// Reasons for the selection of the adapter, if the backend had several: a line for each.
    pub reasons: Vec<String>,
    /// Behaviour of floats.
    pub floats: Floats,
}

/// Kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Null device, without effects.
    Null,
    /// The oracle: the interpreter that defines the semantics.
    Oracle,
    /// Processor.
    Cpu,
    /// GPU, discrete or integrated.
    Gpu,
    /// GPU driver that runs on the processor.
    SoftwareGpu,
}

/// Behaviour of the floats of a device, as measured by probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floats {
    /// add, sub, mul, div, sqrt and conversions of f32 are correctly rounded, without contraction or reassociation.
    pub exact_f32: bool,
    /// fma rounds once.
    pub fused_fma: bool,
    /// Subnormals are preserved, as operands and as results.
    pub subnormals: bool,
    /// Infinities and NaNs conform to IEEE 754.
    pub infinities_and_nans: bool,
}

impl Floats {
    /// Conformant to IEEE 754.
    pub const EXACT: Floats = Floats { exact_f32: true, fused_fma: true, subnormals: true, infinities_and_nans: true };
}

impl Capabilities {
    /// Capabilities without limits, apart from memory.
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

    /// Cache key of everything that optimized programs may depend on. Memory, threads and the instruction set may
    /// change between processes, and no pass reads them.
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

    /// Checks that the device supports a program.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the first requirement that the device does not meet.
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
