//! `cargo xtask soak CAMPAIGN …`: soak tests with a configurable duration.

use crate::target_dir;
use crate::test::{cargo, passes};

/// Runs the megakernel stress test for a number of minutes.
pub(crate) fn megakernel(minutes: u64) -> bool {
    let mut soak = cargo("test");
    // A single malloc arena, so that memory cached per thread is not mistaken for a leak.
    soak.env("VYRE_SOAK_SECONDS", (60 * minutes).to_string()).env("MALLOC_ARENA_MAX", "1");
    passes(soak.args(["--locked", "--release", "--package", "vyre-runtime", "--test", "soak", "--", "--nocapture"]))
}

/// Builds the campaigns for the native processor, which halves their time, and runs one. Returns true if it found no
/// bug.
pub(crate) fn run(arguments: &[&str]) -> bool {
    // A separate target folder: other compiler flags would rebuild everything each time.
    let folder = target_dir().join("soak");
    let mut soak = cargo("run");
    soak.env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "-C target-cpu=native");
    passes(
        soak.args(["--quiet", "--locked", "--release", "--package", "vyre-bench", "--bin", "soak", "--"])
            .args(arguments),
    )
}
