//! What vyre is tested with: [file tests](files), a [generator](generate()) of programs, and [a way](on_oracle) to run one.

pub mod files;
mod generate;

pub use generate::{Features, Generated, generate};

use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Grid, Report, bind};
use vyre_foundation::{Error, Validated};
use vyre_reference::{Options, run};

/// Runs a program on the oracle; its results are in `inputs` afterwards.
///
/// # Errors
/// The grid or the inputs do not fit the program.
///
/// # Panics
/// The options are not possible.
pub fn on_oracle(
    program: &Validated<Program>,
    grid: Grid,
    inputs: &mut Inputs,
    options: &Options,
) -> Result<Report, Error> {
    let groups = grid.groups(program.workgroup_size)?;
    inputs.complete(program)?;
    let arguments = bind(program, &inputs.arguments())?;
    Ok(run(program, groups, &arguments, &mut inputs.buffers, options)
        .expect("possible options, and buffers that exist"))
}
