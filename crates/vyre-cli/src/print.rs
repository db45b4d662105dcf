//! `vyre print`: the canonical text of a file.

use std::io::Write as _;
use std::path::PathBuf;

use vyre_foundation::text;

use crate::error::Error;
use crate::source::Source;
use crate::stdout::Stdout;

/// Print a file in its canonical form
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The .vyre file
    file: PathBuf,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let source = Source::read(&args.file)?;
    let module = source.parse()?;
    source.validate(module.clone())?;
    stdout.write_all(text::print(&module).as_bytes()).map_err(Error::Stdout)
}
