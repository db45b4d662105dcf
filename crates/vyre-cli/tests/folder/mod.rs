//! Folders for tests that run commands.

use std::fs;
use std::path::{Path, PathBuf};

/// An empty folder that no other test uses.
pub(crate) fn empty(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a folder for the test");
    path
}
