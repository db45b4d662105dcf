//! Calls of the command with all that they print, in `cmd/*.trycmd` and in the book. `TRYCMD=overwrite` accepts what comes out.

use std::path::Path;

#[test]
fn commands() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Calls name files as somebody would at the root of the repository.
    std::env::set_current_dir(crate_folder.join("../..")).expect("the root of the workspace");
    let _ = std::fs::remove_dir_all(concat!(env!("CARGO_TARGET_TMPDIR"), "/commands"));
    trycmd::TestCases::new()
        // What comes out does not depend on the devices of the machine.
        .env("VYRE_DEVICE", "reference")
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        // Nor on what was run before.
        .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/commands"))
        .case(crate_folder.join("tests/cmd/*.trycmd"))
        .case("docs/src/*.md");
}
