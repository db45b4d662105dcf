//! Files that several processes read and write: never seen half written, and never worth an error.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How the names of files end that are not complete. A process that is killed leaves one.
pub(crate) const TEMPORARY: &str = "tmp";
/// After this time an unfinished file belongs to a process that was killed.
pub(crate) const ABANDONED: Duration = Duration::from_secs(3600);

/// The beginning of a file, up to so many bytes: what is longer is not one of ours.
pub(crate) fn read(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a file in one step by these parts. That it cannot be written only means to start with less the next time.
pub fn replace(file: &Path, parts: &[&[u8]]) {
    // No two writers share a name: neither threads, nor processes of one number in two containers.
    let unique = RandomState::new().hash_one(std::process::id());
    let temporary = file.with_extension(format!("{unique:016x}.{TEMPORARY}"));
    let written = file
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| File::create_new(&temporary))
        .and_then(|mut new| parts.iter().try_for_each(|part| new.write_all(part)))
        .and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
}

/// Deletes the oldest files of a folder whose names end like this, if there are too many, and what killed processes have left.
pub fn make_room(folder: &Path, extension: &str, most_bytes: u64, most_files: usize) {
    let mut entries = Vec::new();
    for listed in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = listed.path();
        let Some(metadata) = listed.metadata().ok().filter(fs::Metadata::is_file) else { continue };
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(found) if found == extension => entries.push((modified, metadata.len(), path)),
            Some(TEMPORARY) if modified.elapsed().is_ok_and(|age| age > ABANDONED) => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
    }
    entries.sort_by(|a, b| b.cmp(a));
    let mut total = 0u64;
    for (position, (_, bytes, path)) in entries.into_iter().enumerate() {
        total = total.saturating_add(bytes);
        if total > most_bytes || position >= most_files {
            let _ = fs::remove_file(path);
        }
    }
}
