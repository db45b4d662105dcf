//! Files that several processes read and write: never seen half written, and never worth an error.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// How the names of files end that are not complete. A process that is killed leaves one.
pub(crate) const TEMPORARY: &str = "tmp";

/// The beginning of a file, up to so many bytes: what is longer is not one of ours.
pub(crate) fn read(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a file in one step. That it cannot be written only means to start with less the next time.
pub(crate) fn replace(file: &Path, contents: &[u8]) {
    // No two writers share a name: neither threads, nor processes of one number in two containers.
    let unique = RandomState::new().hash_one(std::process::id());
    let temporary = file.with_extension(format!("{unique:016x}.{TEMPORARY}"));
    let written = file
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| File::create_new(&temporary))
        .and_then(|mut new| new.write_all(contents))
        .and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
}
