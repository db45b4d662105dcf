//! Jobs: launches of the example kernels with their arguments.

use vyre_driver::{Argument, Device, Dispatch, Error, Grid, Kernel};
use vyre_foundation::fill::Fill;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch;
use vyre_foundation::{Validated, text, validate};
use vyre_testkit::corpus;

/// Launches of kernels, submitted together.
pub(crate) struct Job {
    device: Device,
    dispatches: Vec<Dispatch>,
}

pub(crate) type NamedArguments = Vec<(&'static str, Argument)>;

impl Job {
    pub(crate) fn new(device: &Device) -> Job {
        Job { device: device.clone(), dispatches: Vec::new() }
    }

    /// Adds a launch of a program.
    pub(crate) fn launch(
        self,
        program: &Validated<Program>,
        grid: Grid,
        arguments: NamedArguments,
    ) -> Result<Job, Error> {
        let kernel = self.device.compile(program)?;
        self.launch_kernel(&kernel, grid, arguments)
    }

    /// Adds a launch of a compiled kernel.
    pub(crate) fn launch_kernel(
        mut self,
        kernel: &Kernel,
        grid: Grid,
        arguments: NamedArguments,
    ) -> Result<Job, Error> {
        self.dispatches.push(kernel.dispatch(grid, arguments)?);
        Ok(self)
    }

    pub(crate) fn run(&self) {
        let submission = self.device.submit(&self.dispatches).expect("the device is there");
        submission.wait().expect("the device is there");
    }
}

/// Arguments of a program, by object name.
macro_rules! arguments {
    ($($name:ident: $value:expr),*) => { vec![$((stringify!($name), vyre_driver::Argument::from($value))),*] };
}

pub(crate) use arguments;

/// Program `name` of the example kernels in `file`.
pub(crate) fn example(file: &str, name: &str) -> Result<Validated<Program>, Error> {
    program(example_source(file), name)
}

/// Text of the example kernels in `file`.
pub(crate) fn example_source(file: &str) -> &'static str {
    corpus::example_kernels(file).expect("the benchmarks name files that exist")
}

pub(crate) fn program(source: &str, name: &str) -> Result<Validated<Program>, Error> {
    let module = validate::module(text::parse(source)?)?;
    Ok(module.program(name).expect("the file has it").clone())
}

pub(crate) fn groups<B>(groups: u32) -> launch::Grid<B> {
    launch::Grid::Groups([groups, 1, 1])
}

pub(crate) fn elements<B>(elements: u32) -> launch::Grid<B> {
    launch::Grid::elements(elements)
}

pub(crate) fn square<B>(side: u32) -> launch::Grid<B> {
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
