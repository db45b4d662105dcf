//! `cargo xtask soak CAMPAIGN …`: campaigns that look for mistakes for as long as one likes.

use crate::target_dir;
use crate::test::{cargo, passes};

/// Runs the test of megakernels under pressure for as many minutes as are given, or ten.
pub(crate) fn megakernel(minutes: u64) -> bool {
    let mut soak = cargo("test");
    // One place for all threads to take memory from, so that what they leave behind is not taken for growth.
    soak.env("VYRE_SOAK_SECONDS", (60 * minutes).to_string()).env("MALLOC_ARENA_MAX", "1");
    passes(soak.args(["--locked", "--release", "--package", "vyre-runtime", "--test", "soak", "--", "--nocapture"]))
}

/// Builds the campaigns for this very processor, which halves the time they take, and runs one. Says whether it found
/// nothing.
pub(crate) fn run(arguments: &[&str]) -> bool {
    // Other flags need a folder of their own, or everything would be built again each time.
    let folder = target_dir().join("soak");
    let mut soak = cargo("run");
    soak.env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "-C target-cpu=native");
    passes(
        soak.args(["--quiet", "--locked", "--release", "--package", "vyre-bench", "--bin", "soak", "--"])
            .args(arguments),
    )
}
