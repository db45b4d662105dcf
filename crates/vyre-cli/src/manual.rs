//! `vyre man` and `vyre completions`: man pages and shell completions.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use serde_json::json;

use crate::Cli;
use crate::error::Error;
use crate::outputs::{self, Target};
use crate::print::Output;
use crate::stdout::Stdout;

/// Print the man page, or write one page per verb
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Folder to write all pages to
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print one JSON object: the page as `text`; with --out, the `files`
    #[arg(long)]
    json: bool,
}

/// Print the completion script of a shell
#[derive(clap::Args)]
#[command(after_help = INSTALL)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
    #[command(flatten)]
    output: Output,
}

const INSTALL: &str = "\
Example, for this session of bash:
  source <(vyre completions bash)";

pub(crate) fn pages(args: &Pages, stdout: &mut Stdout) -> Result<(), Error> {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = &args.out else {
        return Output { out: None, json: args.json }.save(&page(&command).1, None, stdout);
    };
    let unwritable = |error: std::io::Error| Error::Unwritable { path: folder.clone(), error };
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    let (mut commands, mut files, mut written) = (vec![&command], Vec::new(), Vec::new());
    while let Some(command) = commands.pop() {
        // The `help` subcommands repeat the pages.
        commands.extend(command.get_subcommands().filter(|command| command.get_name() != "help"));
        let (name, contents) = page(command);
        files.push(folder.join(name));
        written.push((Target::find(&files[files.len() - 1])?, contents));
    }
    outputs::write(&written)?;
    match args.json {
        true => writeln!(stdout, "{}", json!({ "files": files })).map_err(Error::Stdout),
        false => Ok(()),
    }
}

fn page(command: &Command) -> (String, Vec<u8>) {
    let (man, mut contents) = (Man::new(command.clone()), Vec::new());
    man.render(&mut contents).expect("memory can be written to");
    // clap_mangen calls the text after the options EXTRA.
    let contents = String::from_utf8_lossy(&contents).replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
    (man.get_filename(), contents.into_bytes())
}

pub(crate) fn completions(args: &Completions, stdout: &mut Stdout) -> Result<(), Error> {
    let target = args.output.target()?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "vyre", &mut script);
    args.output.save(&script, target.as_ref(), stdout)
}
