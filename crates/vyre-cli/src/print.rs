//! `vyre print`: canonical text or binary form of a file.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::json;
use vyre_foundation::{text, wire};

use crate::error::Error;
use crate::outputs::{self, Target};
use crate::source::Parsed;
use crate::stdout::Stdout;

/// Print a file in canonical form, without comments
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The .vyre or .vyreb file
    file: PathBuf,
    /// Write the binary form (.vyreb), which all commands read
    #[arg(long)]
    wire: bool,
    #[command(flatten)]
    output: Output,
}

/// Output options of verbs with a single output.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Output file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object: the output as `text`, or as `hex` if it is binary; with --out, the `file`
    #[arg(long)]
    pub(crate) json: bool,
}

impl Output {
    /// The file of `--out`.
    pub(crate) fn target(&self) -> Result<Option<Target>, Error> {
        outputs::target(self.out.as_deref())
    }

    pub(crate) fn save(&self, bytes: &[u8], target: Option<&Target>, stdout: &mut Stdout) -> Result<(), Error> {
        if !self.json {
            return save(bytes, target, stdout);
        }
        let object = match (target, std::str::from_utf8(bytes)) {
            (Some(target), _) => {
                target.write(bytes)?;
                json!({ "file": self.out, "bytes": bytes.len() })
            }
            (None, Ok(text)) => json!({ "text": text }),
            (None, Err(_)) => json!({ "hex": hex(bytes) }),
        };
        writeln!(stdout, "{object}").map_err(Error::Stdout)
    }
}

pub(crate) fn run(args: &Args, stdout: &mut Stdout) -> Result<(), Error> {
    let target = args.output.target()?;
    let (_, module) = Parsed::read(&args.file)?.validate()?;
    let bytes = if args.wire { wire::encode(&*module) } else { text::print(&*module).into_bytes() };
    args.output.save(&bytes, target.as_ref(), stdout)
}

/// Writes bytes to a file or to standard output.
pub(crate) fn save(bytes: &[u8], target: Option<&Target>, stdout: &mut Stdout) -> Result<(), Error> {
    match target {
        None => stdout.write_all(bytes).map_err(Error::Stdout),
        Some(target) => target.write(bytes),
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
