//! Kernel arguments: bindings and grids of the command line or of a `//@ run` line.

use std::path::Path;

use vyre_foundation::Validated;
use vyre_foundation::fill::Fill;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Memory, Program, Space};
use vyre_foundation::launch::{Arguments, Grid, Slice};
use vyre_foundation::run_line::{RunLine, sizes};

use crate::data;
use crate::error::Error;
use crate::outputs::results;
use crate::selection::Choice;
use crate::source::{Parsed, Source};

/// Grid options.
#[derive(clap::Args)]
pub(crate) struct GridArgs {
    /// Grid in invocations, rounded up to whole workgroups [default: the kernel's `launch`]
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = sizes, conflicts_with = "grid")]
    pub(crate) elements: Option<[u32; 3]>,
    /// Grid in workgroups
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = sizes)]
    pub(crate) grid: Option<[u32; 3]>,
}

/// A kernel with checked arguments and grid.
pub(crate) struct Case {
    pub(crate) source: Source,
    pub(crate) program: Validated<Program>,
    /// Bindings of the objects, as written.
    pub(crate) bindings: Vec<(String, String)>,
    pub(crate) inputs: Inputs,
    pub(crate) arguments: Arguments<Slice>,
    pub(crate) groups: [u32; 3],
    /// Elements of the grid.
    pub(crate) launched: [u32; 3],
    /// Fuel of the run line.
    pub(crate) fuel: Option<u64>,
    pub(crate) subgroup_size: Option<u32>,
}

impl Case {
    /// Builds the case of the command line or, with `replay`, of the first run line of the file.
    pub(crate) fn of(
        parsed: Parsed,
        replay: bool,
        choice: &Choice,
        bindings: &[(String, String)],
        grid: &GridArgs,
    ) -> Result<Case, Error> {
        let (choice, line) = if replay {
            let line = parsed.source.run_line()?;
            (Choice::of(&line), line)
        } else {
            let grid = grid.elements.map(Grid::Elements).or(grid.grid.map(Grid::Groups));
            (choice.clone(), RunLine { grid, bindings: bindings.to_vec(), ..RunLine::default() })
        };
        let RunLine { grid, fuel, subgroup_size, bindings, .. } = line;
        let (source, program) = choice.program(parsed)?;
        choice.leaves(&bindings)?;
        let inputs = inputs(&bindings, &program)?;
        let grid = grid.or(program.launch().map(Grid::Elements));
        let grid = grid.ok_or_else(|| Error::NoGrid { program: program.name().to_owned() })?;
        let groups = grid.groups(program.workgroup_size())?;
        let launched = match grid {
            Grid::Elements(elements) => elements,
            // A product overflows only if the grid is empty in another dimension.
            Grid::Groups(groups) => {
                std::array::from_fn(|axis| groups[axis].saturating_mul(program.workgroup_size()[axis]))
            }
        };
        // Arguments are checked before a device is opened.
        let arguments = inputs.bind(&program)?;
        Ok(Case { source, program, bindings, inputs, arguments, groups, launched, fuel, subgroup_size })
    }
}

fn inputs(bindings: &[(String, String)], program: &Validated<Program>) -> Result<Inputs, Error> {
    let mut inputs = bound(bindings, program)?;
    let missing = results(program).filter(|memory| inputs.contents(&memory.name).is_none());
    let bytes = |memory: &Memory| u64::from(memory.length.unwrap_or(0)) * memory.element.size() as u64;
    data::expect_memory(missing.map(bytes).sum())?;
    inputs.complete(program)?;
    Ok(inputs)
}

/// Reads the contents of all bindings.
pub(crate) fn bound(bindings: &[(String, String)], program: &Program) -> Result<Inputs, Error> {
    let mut inputs = Inputs::default();
    for (name, text) in bindings {
        let memory = program.memory_named(name).map(|id| program.memory(id));
        let bindable = memory.filter(|memory| matches!(memory.space, Space::Storage(_) | Space::Uniform));
        match (bindable, text.strip_prefix('@')) {
            (Some(memory), Some(path)) => inputs.bytes(program, name, data::read(Path::new(path), memory)?)?,
            (Some(memory), None) => {
                // Larger counts are reported by the notation's parser.
                if let Ok(Fill::Zeros(count) | Fill::Iota(count) | Fill::Random(count, _)) = Fill::parse(text)
                    && count <= u64::from(u32::MAX)
                {
                    data::expect_memory(count * memory.element.size() as u64)?;
                }
                let result = inputs.notation(program, name, text);
                result.map_err(|error| Error::Binding { name: name.clone(), error })?;
            }
            // Reports that nothing of this name can be bound.
            (None, _) => inputs.notation(program, name, text)?,
        }
    }
    Ok(inputs)
}
