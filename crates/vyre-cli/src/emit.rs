//! `vyre emit`: a kernel in another language.

use std::path::PathBuf;

use vyre_wgpu::{Emitted, Target, emit};

use crate::error::Error;
use crate::print::save;
use crate::selection::Selection;
use crate::stdout::Stdout;

/// Print a kernel in a shader language
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// The language
    #[arg(long, value_name = "LANGUAGE", value_parser = Target::ALL.map(Target::name))]
    target: String,
    /// The file to write, instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let target = Target::from_name(&args.target).expect("clap accepts only names of targets");
    let (_, program) = args.selection.read()?;
    let bytes = match emit(&program, target)? {
        Emitted::Text(text) => text.into_bytes(),
        Emitted::Words(words) => words.into_iter().flat_map(u32::to_le_bytes).collect(),
    };
    save(&bytes, args.out.as_ref(), stdout)
}
