//! Code emission: WGSL, and listings of the machine code of the device `cpu`.
//!
//! Kernels have the same as associated functions: `saxpy::wgsl()` and `saxpy::asm()`.

use vyre_foundation::Validated;
use vyre_foundation::ir::Program;

use crate::Error;
use crate::device::validated;

/// Emits a program as WGSL, the shader language of WebGPU, without optimization and for no particular device.
///
/// ```
/// use vyre::build;
///
/// # fn main() -> Result<(), vyre::Error> {
/// let program = build::kernel("double", [64, 1, 1], |k| {
///     let y = k.read_write::<f32>("y");
///     let i = k.global_index();
///     y.store(i, y.load(i) * 2.0f32);
/// })?;
/// # #[cfg(feature = "wgpu")]
/// assert!(vyre::emit::wgsl(&program)?.contains("@compute"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The program is invalid or uses an operation that WGSL lacks, or the feature `wgpu` is off.
pub fn wgsl(program: &Program) -> Result<String, Error> {
    shader(&validated(program.clone())?)
}

/// Lists the machine code that the device `cpu` executes, generated from the optimized program for this processor. Each IR instruction
/// precedes the machine instructions that it was lowered to.
///
/// ```
/// use vyre::{Error, build};
///
/// # fn main() -> Result<(), vyre::Error> {
/// let program = build::kernel("double", [64, 1, 1], |k| {
///     let y = k.read_write::<f32>("y");
///     let i = k.global_index();
///     y.store(i, y.load(i) * 2.0f32);
/// })?;
/// match vyre::emit::asm(&program) {
///     Ok(code) => assert!(code.contains("vmulps") || code.contains("vaddps")),
///     // There is a code generator for AVX2 and AVX-512.
///     Err(error) => assert!(matches!(error, Error::NoMachineCode { .. } | Error::MissingFeature { .. })),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The program is invalid, there is no code generator for this processor, the portable executor runs the program, or the feature `cpu` is
/// off.
pub fn asm(program: &Program) -> Result<String, Error> {
    let program = validated(program.clone())?;
    #[cfg(feature = "cpu")]
    {
        let optimized = vyre_driver::Device::open(&vyre_cpu::Cpu::default())?.optimized(&program)?;
        listing(&optimized, vyre_cpu::Execution::best())
    }
    #[cfg(not(feature = "cpu"))]
    {
        let _ = program;
        Err(Error::MissingFeature { what: "machine code", feature: "cpu" })
    }
}

/// Emits a validated program as WGSL.
#[cfg(feature = "wgpu")]
pub(crate) fn shader(program: &Validated<Program>) -> Result<String, Error> {
    match vyre_wgpu::emit(program, vyre_wgpu::Target::Wgsl)? {
        vyre_wgpu::Emitted::Text(text) => Ok(text),
        vyre_wgpu::Emitted::Words(_) => unreachable!("WGSL is a text"),
    }
}

#[cfg(not(feature = "wgpu"))]
fn shader(_: &Validated<Program>) -> Result<String, Error> {
    Err(Error::MissingFeature { what: "WGSL", feature: "wgpu" })
}

/// Lists the machine code of a program without optimizing it.
#[cfg(feature = "cpu")]
pub(crate) fn listing(program: &Validated<Program>, execution: vyre_cpu::Execution) -> Result<String, Error> {
    let none = |reason: String| Error::NoMachineCode { kernel: program.name().to_owned(), reason };
    vyre_cpu::listing(program, execution).map_err(|error| match error {
        vyre_driver::Error::Backend { reason, .. } => none(reason),
        error => error.into(),
    })
}
