//! Jobs on a device: the example kernels, and what they are given.

use vyre_driver::{Argument, Device, Dispatch, Error, Grid, Kernel};
use vyre_foundation::fill::Fill;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch::{self, Limits};
use vyre_foundation::{Validated, text, validate};
use vyre_testkit::corpus;

/// Launches of kernels, which are submitted together.
pub(crate) struct Job {
    device: Device,
    launches: Vec<(Kernel, launch::Grid, Arguments)>,
}

pub(crate) type Arguments = Vec<(&'static str, Argument)>;

impl Job {
    pub(crate) fn new(device: &Device) -> Job {
        Job { device: device.clone(), launches: Vec::new() }
    }

    /// Adds a launch of a program.
    pub(crate) fn launch(
        self,
        program: &Validated<Program>,
        grid: launch::Grid,
        arguments: Arguments,
    ) -> Result<Job, Error> {
        let kernel = self.device.compile(program)?;
        Ok(self.launch_kernel(kernel, grid, arguments))
    }

    /// Adds a launch of what was compiled in another way.
    pub(crate) fn launch_kernel(mut self, kernel: Kernel, grid: launch::Grid, arguments: Arguments) -> Job {
        self.launches.push((kernel, grid, arguments));
        self
    }

    pub(crate) fn run(&self) {
        let dispatches: Vec<Dispatch<'_>> = self
            .launches
            .iter()
            .map(|(kernel, grid, arguments)| Dispatch {
                kernel,
                grid: Grid::Fixed(*grid),
                arguments: arguments.clone(),
                limits: Limits::default(),
            })
            .collect();
        let submission = self.device.submit(&dispatches).expect("arguments that fit");
        submission.wait().expect("the device is there");
    }
}

/// What a program is given, by the names of its objects.
macro_rules! arguments {
    ($($name:ident: $value:expr),*) => { vec![$((stringify!($name), vyre_driver::Argument::from($value))),*] };
}

pub(crate) use arguments;

/// The program `name` of the example kernels in `file`.
pub(crate) fn example(file: &str, name: &str) -> Result<Validated<Program>, Error> {
    program(example_source(file), name)
}

/// Text of the example kernels in `file`.
pub(crate) fn example_source(file: &str) -> &'static str {
    corpus::example_kernels(file).expect("the benchmarks name files that exist")
}

pub(crate) fn program(source: &str, name: &str) -> Result<Validated<Program>, Error> {
    let programs = validate::module(text::parse(source)?)?;
    Ok(programs.into_iter().find(|program| program.name == name).expect("the file has it"))
}

pub(crate) fn groups(groups: u32) -> launch::Grid {
    launch::Grid::Groups([groups, 1, 1])
}

pub(crate) fn elements(elements: u32) -> launch::Grid {
    launch::Grid::Elements([elements, 1, 1])
}

pub(crate) fn square(side: u32) -> launch::Grid {
    launch::Grid::Elements([side, side, 1])
}

pub(crate) fn random(element: Element, count: u32, seed: u64) -> Result<Vec<u8>, Error> {
    Ok(Fill::Random(u64::from(count), seed).bytes(element)?)
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}
