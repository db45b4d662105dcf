//! `vyre print`: the canonical text of a file, or its canonical bytes.

use std::io::Write as _;
use std::path::PathBuf;

use vyre_foundation::{text, wire};

use crate::error::Error;
use crate::source::Source;
use crate::stdout::Stdout;

/// Print a file in its canonical form
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The .vyre or .vyreb file
    file: PathBuf,
    /// Print the binary form, which `vyre run` reads as well
    #[arg(long)]
    wire: bool,
    /// The file to write, instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let source = Source::read(&args.file)?;
    let module = source.parse()?;
    source.validate(module.clone())?;
    let bytes = if args.wire { wire::encode(&module) } else { text::print(&module).into_bytes() };
    save(&bytes, args.out.as_ref(), stdout)
}

/// Writes bytes to a file, or else to standard output.
pub(crate) fn save(bytes: &[u8], out: Option<&PathBuf>, stdout: &mut Stdout) -> Result<(), Error> {
    match out {
        None => stdout.write_all(bytes).map_err(Error::Stdout),
        Some(path) => std::fs::write(path, bytes)
            .map_err(|error| Error::Unwritable { path: path.clone(), reason: error.to_string() }),
    }
}
