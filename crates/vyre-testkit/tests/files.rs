//! File tests, one test for each file, named by its path: `cargo test -p vyre-testkit --test files saxpy` runs those whose path contains
//! `saxpy`. Example kernels are file tests, too, and must have no sanitizer findings.

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use vyre_testkit::files;

/// Folders of file tests, relative to the workspace root.
const FOLDERS: [&str; 2] = ["tests/files", EXAMPLES];
const EXAMPLES: &str = "examples/kernels";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    let mut trials = Vec::new();
    for folder in FOLDERS {
        let paths = files::in_folder(&root.join(folder));
        assert!(!paths.is_empty(), "{folder} has no tests");
        for path in paths {
            let name = path.strip_prefix(&root).expect("files of the workspace").display().to_string();
            if folder == EXAMPLES {
                let path = path.clone();
                trials.push(Trial::test(format!("sanitize {name}"), move || has_no_findings(&path)));
            }
            trials.push(Trial::test(name, move || Ok(files::check(&path, update)?)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn has_no_findings(path: &Path) -> Result<(), Failed> {
    for case in files::cases(path)? {
        let findings = case.sanitize()?;
        if !findings.is_empty() {
            return Err(format!("{findings:?}").into());
        }
    }
    Ok(())
}
