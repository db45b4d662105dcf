//! `cargo xtask soak CAMPAIGN …`: campaigns that look for mistakes for as long as one likes.

use crate::test::{cargo, passes};

/// Builds in release and runs a campaign. Says whether it found nothing.
pub(crate) fn run(arguments: &[&str]) -> bool {
    passes(
        cargo("run").args(["--quiet", "--release", "--package", "vyre-bench", "--bin", "soak", "--"]).args(arguments),
    )
}
