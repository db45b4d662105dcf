//! Test tools of vyre: [file tests](files), a program [generator](generate()) with [coverage](Coverage) measurement, a
//! [shrinker](shrink()), [differential tests](differential), the [conformance suite](mod@conformance) of backends,
//! [fault injection](mod@intercept), and a [mix](mod@mix) of megakernel items.

pub mod conformance;
pub mod corpus;
mod coverage;
pub mod differential;
mod equivalence;
pub mod files;
mod generate;
pub mod intercept;
mod kernels;
pub mod mix;
mod op_programs;
mod shrink;

pub use coverage::{Cell, Coverage, Flow, MemoryKind, Subject};
pub use equivalence::{output_difference, rotating_seeds, semantic_difference};
pub use generate::{Features, Generated, Random, generate};
pub use shrink::shrink;

use vyre_driver::{Device, Error, Oracle};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Grid, Limits, Report};

/// Runs a program on a device; results are written to `inputs`.
///
/// # Errors
/// The grid or the inputs do not fit the program, or the device cannot run it.
pub fn run(
    device: &Device,
    program: &Validated<Program>,
    grid: Grid,
    inputs: &mut Inputs,
    limits: Limits,
) -> Result<Report, Error> {
    inputs.complete(program)?;
    device.execute(program, grid, inputs, limits)
}

/// Opens the oracle with a subgroup size.
///
/// # Panics
/// It cannot be opened, which does not happen.
pub fn oracle(subgroup_size: u32) -> Device {
    Device::open(&Oracle { subgroup_size }).expect("the oracle can always be opened")
}
