//! Shader text: the module that the device would run, in a shader language, written by naga.
//!
//! Independent of any device: the subgroup size is open, and there is no driver loop budget. Emits the variant that
//! most launches use: a grid within device limits, objects at the start of their bindings, equal lengths of objects
//! without a declared length, a multiple of four, and short counted loops. The device has other variants for other
//! launches.

use naga::back::{glsl, hlsl, msl, spv, wgsl};
use naga::proc::BoundsCheckPolicies;
use naga::valid::{self, ModuleInfo, ValidationFlags, Validator};
use vyre_driver::{Capabilities, DeviceKind, Error};
use vyre_foundation::Validated;
use vyre_foundation::analysis::Lengths;
use vyre_foundation::ir::{Op, Program, Type, TypeSet};

use crate::lower::{self, ENTRY, GroupMapping, Source, Variant};

/// A shader language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// WGSL. 64-bit integers and f64 are extensions of naga.
    Wgsl,
    /// SPIR-V 1.3 for Vulkan.
    SpirV,
    /// Metal Shading Language 2.4.
    Msl,
    /// HLSL, shader model 6.6.
    Hlsl,
    /// GLSL 4.50.
    Glsl,
}

/// Result of [`emit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// Source text.
    Text(String),
    /// The words of a SPIR-V module.
    Words(Vec<u32>),
}

impl Target {
    /// All targets.
    pub const ALL: [Target; 5] = [Target::Wgsl, Target::SpirV, Target::Msl, Target::Hlsl, Target::Glsl];

    /// Name of the target on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Wgsl => "wgsl",
            Target::SpirV => "spirv",
            Target::Msl => "msl",
            Target::Hlsl => "hlsl",
            Target::Glsl => "glsl",
        }
    }

    /// Returns the target with this name.
    pub fn from_name(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|target| target.name() == name)
    }

    /// Supported value types.
    const fn types(self) -> TypeSet {
        match self {
            Target::Wgsl | Target::SpirV | Target::Hlsl => TypeSet::ALL,
            Target::Msl => TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32, Type::I64, Type::U64, Type::F16]),
            Target::Glsl => TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32]),
        }
    }

    /// Returns whether all 64-bit atomics are supported.
    const fn atomics_64(self) -> bool {
        matches!(self, Target::Wgsl | Target::SpirV | Target::Hlsl)
    }
}

/// Writes a program in a shader language.
///
/// # Errors
/// [`Error::Unsupported`] if the language lacks something that the program needs.
pub fn emit(program: &Validated<Program>, target: Target) -> Result<Emitted, Error> {
    check(program, target)?;
    // naga writes overrides in WGSL only.
    let options = lower::Target { atomics_64: target.atomics_64(), overrides: target == Target::Wgsl, ..PLAIN };
    let source = Source::of(program)?;
    let module = source.lower(options, source.usual()).module;
    let mut validator = Validator::new(ValidationFlags::all(), valid::Capabilities::all());
    let info = validator.validate(&module).map_err(|error| failed(target, error.as_inner()))?;
    match target {
        Target::Wgsl => {
            let text = wgsl::write_string(&module, &info, wgsl::WriterFlags::empty());
            let text = text.map(|text| format!("{}{text}", wgsl_directives(program)));
            text.map(Emitted::Text).map_err(|error| failed(target, error))
        }
        Target::SpirV => spirv(&module, &info).map(Emitted::Words).map_err(|error| failed(target, error)),
        Target::Msl => {
            let options = msl::Options {
                lang_version: (2, 4),
                bounds_check_policies: UNCHECKED,
                force_loop_bounding: false,
                emit_int_div_checks: false,
                ..msl::Options::default()
            };
            let text = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default());
            text.map(|(text, _)| Emitted::Text(text)).map_err(|error| failed(target, error))
        }
        Target::Hlsl => {
            let options = hlsl::Options {
                shader_model: hlsl::ShaderModel::V6_6,
                restrict_indexing: false,
                force_loop_bounding: false,
                ..hlsl::Options::default()
            };
            let pipeline = hlsl::PipelineOptions::default();
            let mut text = String::new();
            let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
            writer.write(&module, &info, None).map_err(|error| failed(target, error))?;
            Ok(Emitted::Text(text))
        }
        Target::Glsl => glsl(&module, &info).map(Emitted::Text).map_err(|error| failed(target, error)),
    }
}

/// Directives in front of WGSL. WGSL's uniformity analysis covers workgroup-uniform control flow only, and treats
/// results of subgroup operations as non-uniform, so it rejects subgroup operations where subgroups of a workgroup take
/// different paths. The diagnostic is turned off for them: the validator has proved that their control flow is
/// subgroup-uniform (V030), and the lowering preserves it. The diagnostic for barriers stays on.
fn wgsl_directives(program: &Program) -> &'static str {
    match program.contains(program.body(), |op| matches!(op, Op::Subgroup(_))) {
        true => "diagnostic(off, subgroup_uniformity);\n",
        false => "",
    }
}

/// Lowers a program for all kinds of devices that the lowering distinguishes, validates the modules with naga, and
/// discards them. Tests the lowering without such devices.
///
/// # Errors
/// [`Error::Backend`] if naga rejects a module, which is a bug of the lowering.
pub fn verify(program: &Validated<Program>) -> Result<(), Error> {
    let plain = lower::Target { subgroup_size: Some(32), overrides: true, ..PLAIN };
    // As for Mesa's software driver, but with 64-bit atomics, so that programs that use them can be lowered.
    let software = lower::Target {
        loop_budget: true,
        opaque_floats: true,
        opaque_counters: true,
        emulate_fma: true,
        subgroup_size: Some(8),
        ..PLAIN
    };
    let source = Source::of(program)?;
    let usual = source.usual();
    let general = Variant {
        mapping: GroupMapping::Folded,
        parts: true,
        counted: false,
        lengths: Lengths::default(),
        bindings: vec![2; program.memories().len()],
    };
    let in_ranges = Variant { mapping: GroupMapping::FoldedLine, ..usual.clone() };
    let variants = [usual, &general, &in_ranges];
    for (target, variant) in [plain, software].into_iter().flat_map(|target| variants.map(|variant| (target, variant)))
    {
        let module = source.lower(target, variant).module;
        let mut validator = Validator::new(ValidationFlags::all(), valid::Capabilities::all());
        validator.validate(&module).map_err(|error| failed(Target::SpirV, error.as_inner()))?;
    }
    Ok(())
}

/// Target without known properties, with the binding limits that every device has.
const PLAIN: lower::Target = lower::Target {
    loop_budget: false,
    atomics_64: true,
    opaque_floats: false,
    opaque_counters: false,
    emulate_fma: false,
    subgroup_size: None,
    binding_bytes: 128 << 20,
    overrides: false,
};

/// The module contains its own checks.
const UNCHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: naga::proc::BoundsCheckPolicy::Unchecked,
    buffer: naga::proc::BoundsCheckPolicy::Unchecked,
    image_load: naga::proc::BoundsCheckPolicy::Unchecked,
    binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
};

fn spirv(module: &naga::Module, info: &ModuleInfo) -> Result<Vec<u32>, spv::Error> {
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: UNCHECKED,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    spv::write_vec(module, info, &options, None)
}

fn glsl(module: &naga::Module, info: &ModuleInfo) -> Result<String, glsl::Error> {
    let options = glsl::Options { version: glsl::Version::Desktop(450), ..glsl::Options::default() };
    let pipeline =
        glsl::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: ENTRY.into(), multiview: None };
    let mut text = String::new();
    glsl::Writer::new(&mut text, module, info, &options, &pipeline, UNCHECKED)?.write()?;
    Ok(text)
}

fn failed(target: Target, error: impl std::error::Error) -> Error {
    let mut reason = format!("{}: {error}", target.name());
    let mut source = error.source();
    while let Some(error) = source {
        reason += &format!(": {error}");
        source = error.source();
    }
    Error::Backend { backend: "naga", reason }
}

/// Returns an error if the language lacks something that the program needs.
fn check(program: &Validated<Program>, target: Target) -> Result<(), Error> {
    let all = Capabilities::unlimited(target.name().into(), DeviceKind::Gpu, 32);
    let has = Capabilities { types: target.types(), atomics_64: target.atomics_64(), mixed_atomics_64: false, ..all };
    has.check(program).map_err(|error| match error {
        Error::Unsupported { needed, available } => {
            Error::Unsupported { needed, available: format!("{} with {available}", target.name()) }
        }
        other => other,
    })
}
