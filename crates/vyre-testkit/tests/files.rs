//! Runs the file tests, and reads the example kernels as such.

use std::path::Path;

use vyre_testkit::files;

fn check_folder(folder: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    let paths = files::in_folder(&root.join(folder));
    assert!(!paths.is_empty(), "{folder} has no tests");
    let failures: Vec<String> = paths
        .iter()
        .filter_map(|path| files::check(path, update).err().map(|error| format!("{}: {error}", path.display())))
        .collect();
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), paths.len(), failures.join("\n"));
}

#[test]
fn file_tests() {
    check_folder("tests/files");
}

#[test]
fn example_kernels() {
    check_folder("examples/kernels");
}

#[test]
fn example_kernels_have_no_findings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kernels");
    let mut count = 0;
    for path in files::in_folder(&folder) {
        for case in files::cases(&path).expect("a readable example") {
            let findings = case.sanitize().expect("a case that runs");
            assert!(findings.is_empty(), "{}: {findings:?}", path.display());
            count += 1;
        }
    }
    assert!(count > 10, "only {count} cases");
}
