//! `cargo xtask msrv`: checks that the minimum supported Rust version compiles the crates that are published.

use std::process::Command;

use crate::test::passes;
use crate::{root, target_dir};

/// `rust-version` of the workspace.
const VERSION: &str = env!("CARGO_PKG_RUST_VERSION");

/// Installs the toolchain and checks the crates with it, in a separate target folder.
pub(crate) fn run() -> bool {
    let installed = passes(Command::new("rustup").args(["toolchain", "install", VERSION, "--profile", "minimal"]));
    let mut check = Command::new("rustup");
    check.args(["run", VERSION, "cargo", "check", "--locked", "--workspace", "--exclude", "vyre-bench"]);
    installed && passes(check.current_dir(root()).env("CARGO_TARGET_DIR", target_dir().join("msrv")))
}
