//! `vyre emit`: shader source, SPIR-V, or machine code of a kernel.

use std::io;

use vyre_cpu::{Cpu, Execution, HAS_CODE_GENERATOR};
use vyre_driver::Device;
use vyre_foundation::Validated;
use vyre_foundation::ir::Program;

use crate::config::Settings;
use crate::error::Error;
use crate::print::Output;
use crate::progress::Progress;
use crate::reproducer::{Reproducer, passes_of, watch};
use crate::selection::Selection;
use crate::stdout::Stdout;

/// Print a kernel as shader (WGSL, SPIR-V, MSL, HLSL, GLSL) or as machine code of the device cpu
#[derive(clap::Args)]
#[command(after_help = TARGETS)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Output language
    #[arg(long, value_name = "LANGUAGE", value_parser = targets())]
    target: String,
    #[command(flatten)]
    output: Output,
}

const TARGETS: &str = "\
Shaders, from the unoptimized program (`vyre opt FILE --wire` optimizes first), for no particular device:
  wgsl            WGSL (WebGPU); constants are pipeline overrides
  spirv           SPIR-V 1.3 (Vulkan), binary
  msl             Metal Shading Language 2.4
  hlsl            HLSL (DirectX), shader model 6.6
  glsl            GLSL 4.50 (OpenGL)

Machine code of the device cpu, from the optimized program:
  asm             for this processor, or for the setting `isa`
  asm-avx2        for processors with AVX2
  asm-avx512      for processors with AVX-512";

/// Machine code, by processor.
const MACHINE_CODE: [(&str, Option<Execution>); 3] =
    [("asm", None), ("asm-avx2", Some(Execution::Avx2)), ("asm-avx512", Some(Execution::Avx512))];

fn targets() -> clap::builder::PossibleValuesParser {
    let code = MACHINE_CODE.map(|(name, _)| name).into_iter();
    #[cfg(feature = "wgpu")]
    let code = vyre_wgpu::Target::ALL.map(vyre_wgpu::Target::name).into_iter().chain(code);
    clap::builder::PossibleValuesParser::new(code)
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let settings = Settings::load()?;
    let target = args.output.target()?;
    if let Some(path) = args.output.out.clone()
        && target.as_ref().is_some_and(|target| target.is(&args.selection.file))
    {
        let error = io::Error::new(io::ErrorKind::AlreadyExists, "it is the input file");
        return Err(Error::Unwritable { path, error });
    }
    let (_, program) = args.selection.read()?;
    let code = MACHINE_CODE.iter().find(|(name, _)| *name == args.target);
    let execution = code.map(|(_, execution)| execution.unwrap_or_else(|| settings.execution()));
    if execution.is_some_and(|execution| execution == Execution::Portable || !HAS_CODE_GENERATOR) {
        return Err(Error::NoMachineCode);
    }
    let cpu = Cpu { threads: settings.threads.value, execution: settings.isa.value, ..Cpu::default() };
    let reproducer = || {
        let (command, mut facts) = (format!("vyre emit {{}} --target {}", args.target), Vec::new());
        match (execution, Device::open(&cpu)) {
            (Some(execution), Ok(device)) => {
                facts.push(format!("device cpu: {}, code for {execution:?}", device.capabilities().name));
                facts.extend(passes_of([&program], &device));
            }
            _ => facts.push("for no particular device; passes: none".into()),
        }
        Reproducer { name: program.name(), command, facts, text: program.to_string() }
    };
    let progress = Progress::new("compiling", 0);
    let bytes = watch(reproducer, || match execution {
        Some(execution) => machine_code(&program, &cpu, execution).map(String::into_bytes),
        None => shader(&program, &args.target),
    })?;
    drop(progress);
    args.output.save(&bytes, target.as_ref(), stdout)
}

fn machine_code(program: &Validated<Program>, cpu: &Cpu, execution: Execution) -> Result<String, Error> {
    Ok(vyre_cpu::listing(&Device::open(cpu)?.optimized(program)?, execution)?)
}

#[cfg(feature = "wgpu")]
fn shader(program: &Validated<Program>, target: &str) -> Result<Vec<u8>, Error> {
    let target = vyre_wgpu::Target::from_name(target).expect("clap accepts only names of targets");
    Ok(match vyre_wgpu::emit(program, target)? {
        vyre_wgpu::Emitted::Text(text) => text.into_bytes(),
        vyre_wgpu::Emitted::Words(words) => words.into_iter().flat_map(u32::to_le_bytes).collect(),
    })
}

#[cfg(not(feature = "wgpu"))]
fn shader(_: &Validated<Program>, _: &str) -> Result<Vec<u8>, Error> {
    unreachable!("clap accepts only names of targets")
}
