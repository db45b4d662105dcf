//! Commands with their output, in `cmd/*.trycmd` and in the book. `TRYCMD=overwrite` accepts the output.

use std::path::Path;

#[test]
fn commands() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Paths are relative to the root of the repository.
    std::env::set_current_dir(crate_folder.join("../..")).expect("the root of the workspace");
    let _ = std::fs::remove_dir_all(concat!(env!("CARGO_TARGET_TMPDIR"), "/commands"));
    trycmd::TestCases::new()
        // Output is independent of the machine's devices.
        .env("VYRE_DEVICE", "reference")
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        // Output is independent of earlier runs.
        .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/commands"))
        .case(crate_folder.join("tests/cmd/*.trycmd"))
        .case("docs/src/*.md");
}
