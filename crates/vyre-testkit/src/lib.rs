//! What vyre is tested with: [file tests](files), a [generator](generate()) of programs, and the [suite](mod@conformance) that every
//! backend must pass.

pub mod conformance;
pub mod files;
mod generate;
mod kernels;
mod op_programs;
mod shrink;

pub use generate::{Features, Generated, generate};
pub use shrink::shrink;

use vyre_driver::{Argument, Device, Dispatch, Error, Grid, Oracle};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{self, Limits, Report};

/// Runs a program on a device; its results are in `inputs` afterwards.
///
/// # Errors
/// The grid or the inputs do not fit the program, or the device cannot run it.
pub fn run(
    device: &Device,
    program: &Validated<Program>,
    grid: launch::Grid,
    inputs: &mut Inputs,
    limits: Limits,
) -> Result<Report, Error> {
    inputs.complete(program)?;
    let kernel = device.compile(program)?;
    let mut buffers = Vec::new();
    let mut arguments = Vec::new();
    for (name, argument) in inputs.arguments() {
        arguments.push((
            name,
            match argument {
                launch::Argument::Scalar(literal) => Argument::Scalar(literal),
                launch::Argument::Slice(slice) => {
                    let buffer = device.upload(slice.element, &inputs.buffers[slice.buffer as usize])?;
                    buffers.push((slice.buffer as usize, buffer.clone()));
                    Argument::Buffer(buffer)
                }
            },
        ));
    }
    let report = device.run(&Dispatch { kernel: &kernel, grid: Grid::Fixed(grid), arguments, limits })?;
    for (position, buffer) in buffers {
        inputs.buffers[position] = buffer.read()?;
    }
    Ok(report)
}

/// The oracle, with subgroups of this size.
///
/// # Panics
/// It cannot be opened, which does not happen.
pub fn oracle(subgroup_size: u32) -> Device {
    Device::open(&Oracle { subgroup_size }).expect("the oracle can always be opened")
}
