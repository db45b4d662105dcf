//! Atomic replacement of files that several processes read and write.
//!
//! A file is written under a temporary name in the same folder and renamed over its target, so a reader sees the old contents or
//! the new ones, never a part. Temporary files are created exclusively (`O_EXCL`) under names that cannot be predicted: an
//! existing file or a symbolic link of that name is never opened.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::read_limited;

/// Extension of temporary files. A killed process leaves one behind.
pub const TEMPORARY: &str = "tmp";
/// Age after which a temporary file is attributed to a killed process.
pub(crate) const ABANDONED: Duration = Duration::from_secs(3600);

/// Creates a file or folder `PREFIXRANDOMSUFFIX` in `folder`, which must not exist yet, and returns its path. `create`
/// has to fail with [`io::ErrorKind::AlreadyExists`] if the path exists, as [`File::create_new`] and [`fs::create_dir`]
/// do; another name is tried then.
///
/// # Errors
/// `create` fails.
pub fn create_unique<T>(
    folder: &Path,
    prefix: impl AsRef<OsStr>,
    suffix: &str,
    mut create: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    const ATTEMPTS: usize = 16;
    let mut result = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..ATTEMPTS {
        // The hash is keyed by random numbers of the system.
        let unique = RandomState::new().hash_one(std::process::id());
        let mut name = prefix.as_ref().to_owned();
        name.push(format!("{unique:016x}{suffix}"));
        let path = folder.join(name);
        result = create(&path).map(|created| (path, created));
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    result
}

/// Replaces a file by the concatenation of `parts`.
///
/// # Errors
/// The file cannot be written. No temporary file is left then.
pub fn replace(file: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut prefix = name.to_owned();
    prefix.push(".");
    let (temporary, mut new) = create_unique(folder, prefix, &format!(".{TEMPORARY}"), |path| File::create_new(path))?;
    let written = parts.iter().try_for_each(|part| new.write_all(part)).and_then(|()| fs::rename(&temporary, file));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Reads at most `limit` bytes of a file.
pub(crate) fn read(file: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_limited(File::open(file)?, limit, 0, |_, _| ())
}

/// Deletes the oldest files with an extension until at most `max_bytes` and `max_files` remain, and abandoned temporary
/// files.
pub(crate) fn evict(folder: &Path, extension: &str, max_bytes: u64, max_files: usize) {
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
        if total > max_bytes || position >= max_files {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_names_are_not_reused() {
        let mut tried = Vec::new();
        let (path, ()) = create_unique(Path::new("folder"), "a.", ".tmp", |path| {
            tried.push(path.to_owned());
            if tried.len() < 3 { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(()) }
        })
        .unwrap();
        assert_eq!((tried.len(), tried.last()), (3, Some(&path)));
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), 3, "each attempt has another name: {tried:?}");

        let result: io::Result<(PathBuf, ())> =
            create_unique(Path::new("folder"), "", "", |_| Err(io::ErrorKind::AlreadyExists.into()));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "attempts are bounded");
    }
}
