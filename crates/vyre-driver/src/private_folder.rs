//! Private folders: the trust boundary of the disk caches.
//!
//! A cache entry determines which program runs or which graph is searched, and anyone can compute its checksum. So
//! entries are trusted only because no other user can have written them: the folder belongs to the user of the process,
//! grants no write permission to group or others, and is not a symbolic link. A folder is created with mode 0700; one
//! that others may read, but not write, is accepted, as OpenSSH does for `~/.ssh`. The conditions are checked when a
//! folder is opened and before each access, since it may be created or replaced in between. A parent folder that
//! everyone can write and that lacks the sticky bit (unlike `/tmp`) is refused too: there another user could replace
//! the folder between check and access.
//!
//! On systems without Unix permissions only the kind of the file is checked; there, folders of a user are private by
//! default.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Error, atomic_file};

/// A folder that only the user of this process can write. It is created, with mode 0700, by the first write.
#[derive(Clone, Debug)]
pub struct PrivateFolder {
    /// Folder that was opened.
    root: PathBuf,
    /// The folder itself: `root`, or a subfolder.
    path: PathBuf,
}

impl PrivateFolder {
    /// Opens a folder, which need not exist.
    ///
    /// # Errors
    /// [`Error::UntrustedFolder`] if it exists and is not private.
    pub fn open(path: impl Into<PathBuf>) -> Result<PrivateFolder, Error> {
        let path = path.into();
        let folder = PrivateFolder { root: path.clone(), path };
        match folder.check() {
            Err(Refusal::Untrusted(reason)) => Err(Error::UntrustedFolder { folder: folder.path, reason }),
            Ok(()) | Err(Refusal::Inaccessible(_)) => Ok(folder),
        }
    }

    /// Creates an empty folder with an unpredictable name in the system's folder for temporary files.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn temporary(prefix: &str) -> io::Result<PrivateFolder> {
        let create = |path: &Path| builder().create(path);
        let (path, ()) = atomic_file::create_unique(&std::env::temp_dir(), prefix, "", create)?;
        Ok(PrivateFolder { root: path.clone(), path })
    }

    /// Returns a subfolder, which need not exist.
    #[must_use]
    pub fn subfolder(&self, name: &str) -> PrivateFolder {
        PrivateFolder { root: self.root.clone(), path: self.path.join(name) }
    }

    /// Path of the folder. Access files with the functions of this type, which check the folder first.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The folder is not private any more, or the file cannot be opened.
    pub fn file(&self, name: &str) -> io::Result<File> {
        self.check()?;
        File::open(self.path.join(name))
    }

    /// Reads at most `limit` bytes of a file.
    ///
    /// # Errors
    /// As for [`file`](PrivateFolder::file).
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        self.check()?;
        atomic_file::read(&self.path.join(name), limit)
    }

    /// [Replaces](atomic_file::replace) a file, and creates the folder if it does not exist.
    ///
    /// # Errors
    /// The folder is not private any more, or the file cannot be written.
    pub fn replace(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        builder().recursive(true).create(&self.path)?;
        self.check()?;
        atomic_file::replace(&self.path.join(name), parts)
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The folder is not private any more, or the file cannot be deleted.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.check()?;
        fs::remove_file(self.path.join(name))
    }

    /// Deletes the oldest files with an extension until at most `max_bytes` and `max_files` remain, and temporary files
    /// of killed processes.
    pub fn evict(&self, extension: &str, max_bytes: u64, max_files: usize) {
        if self.check().is_ok() {
            atomic_file::evict(&self.path, extension, max_bytes, max_files);
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        check(&self.root)?;
        if self.path == self.root { Ok(()) } else { check(&self.path) }
    }
}

/// Reason why other users may have written to a folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// A symbolic link.
    #[error("it is a symbolic link")]
    SymbolicLink,
    /// Not a folder.
    #[error("it is not a folder")]
    NotAFolder,
    /// A folder of another user.
    #[error("it belongs to user {owner}, not to user {user}")]
    Owner {
        /// User id of its owner.
        owner: u32,
        /// User id of the process.
        user: u32,
    },
    /// A folder with write permission for group or others.
    #[error("other users can write to it: its mode is {mode:04o}")]
    Writable {
        /// Mode of the folder.
        mode: u32,
    },
    /// A parent folder in which every user can replace the folder.
    #[error("every user can replace it: the mode of {} is {mode:04o}", parent.display())]
    Replaceable {
        /// Parent folder.
        parent: PathBuf,
        /// Mode of the parent folder.
        mode: u32,
    },
}

impl Distrust {
    /// Advice for a folder that is accepted.
    pub(crate) fn help(&self, folder: &Path) -> String {
        match self {
            Distrust::Writable { .. } => format!(
                "delete it, or run `chmod 700 {}` if only you have written to it; VYRE_CACHE names another folder",
                folder.display()
            ),
            Distrust::Replaceable { parent, .. } => format!(
                "run `chmod o-w {}` if it is yours, or name a folder in your home folder with VYRE_CACHE",
                parent.display()
            ),
            Distrust::SymbolicLink | Distrust::NotAFolder | Distrust::Owner { .. } => {
                "name a folder of your own with VYRE_CACHE; one that does not exist is created".into()
            }
        }
    }
}

/// Reason for not using a folder.
enum Refusal {
    /// It does not exist, or cannot be examined.
    Inaccessible(io::Error),
    /// Other users may have written to it.
    Untrusted(Distrust),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        match refusal {
            Refusal::Inaccessible(error) => error,
            Refusal::Untrusted(reason) => io::Error::new(io::ErrorKind::PermissionDenied, reason),
        }
    }
}

fn check(folder: &Path) -> Result<(), Refusal> {
    let found = fs::symlink_metadata(folder).map_err(Refusal::Inaccessible)?;
    if found.is_symlink() {
        return Err(Refusal::Untrusted(Distrust::SymbolicLink));
    }
    if !found.is_dir() {
        return Err(Refusal::Untrusted(Distrust::NotAFolder));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let user = nix::unistd::geteuid().as_raw();
        if found.uid() != user {
            return Err(Refusal::Untrusted(Distrust::Owner { owner: found.uid(), user }));
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o022 != 0 {
            return Err(Refusal::Untrusted(Distrust::Writable { mode }));
        }
        let real = fs::canonicalize(folder).map_err(Refusal::Inaccessible)?;
        for parent in real.ancestors().skip(1) {
            let mode = fs::metadata(parent).map_err(Refusal::Inaccessible)?.mode() & 0o7777;
            if mode & 0o1002 == 0o0002 {
                return Err(Refusal::Untrusted(Distrust::Replaceable { parent: parent.into(), mode }));
            }
        }
    }
    Ok(())
}

/// Builder of folders with mode 0700.
fn builder() -> fs::DirBuilder {
    #[cfg(unix)]
    {
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
    }
    #[cfg(not(unix))]
    fs::DirBuilder::new()
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};

    use super::*;

    /// Path without a file.
    fn absent(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vyre-private-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_file(&path);
        path
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn refused(path: &Path) -> Distrust {
        match PrivateFolder::open(path) {
            Err(Error::UntrustedFolder { folder, reason }) if folder == path => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn folders_are_created_for_the_user_alone() {
        let path = absent("created");
        let folder = PrivateFolder::open(path.join("root")).unwrap();
        let inner = folder.subfolder("inner");
        assert_eq!(inner.read("entry", 10).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!path.exists(), "opening and reading create nothing");
        inner.replace("entry", &[b"con", b"tents"]).unwrap();
        assert_eq!(inner.read("entry", 3).unwrap(), b"con");
        for created in [&path, folder.path(), inner.path()] {
            assert_eq!(mode(created), 0o700, "{created:?}");
        }
        assert_eq!(fs::read_dir(inner.path()).unwrap().count(), 1, "no temporary file is left");
        fs::remove_dir_all(path).unwrap();

        let [one, other] = [(); 2].map(|()| PrivateFolder::temporary("vyre-test-").unwrap());
        assert_ne!(one.path(), other.path());
        for temporary in [one, other] {
            assert_eq!(mode(temporary.path()), 0o700);
            fs::remove_dir(temporary.path()).unwrap();
        }
    }

    #[test]
    fn folders_that_others_can_write_are_refused() {
        let path = absent("open");
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        for open in [0o702, 0o720, 0o757, 0o775, 0o777, 0o1777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
            assert_eq!(refused(&path), Distrust::Writable { mode: open });
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(PrivateFolder::open(&path).is_ok());
        fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn folders_that_others_can_replace_are_refused() {
        let parent = absent("parent");
        let path = parent.join("inner/folder");
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&path).unwrap();
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o777)).unwrap();
        let expected = Distrust::Replaceable { parent: fs::canonicalize(&parent).unwrap(), mode: 0o777 };
        assert_eq!(refused(&path), expected);
        // Like the system's folder for temporary files: only owners rename and delete.
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(PrivateFolder::open(&path).is_ok());
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn folders_of_other_users_are_refused() {
        if nix::unistd::geteuid().is_root() {
            let path = absent("foreign");
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert_eq!(refused(&path), Distrust::Owner { owner: 65534, user: 0 });
            fs::remove_dir(&path).unwrap();
        } else {
            assert!(matches!(refused(Path::new("/")), Distrust::Owner { owner: 0, .. }));
        }
    }

    #[test]
    fn links_and_files_are_refused() {
        let (path, link) = (absent("target"), absent("link"));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        symlink(&path, &link).unwrap();
        assert_eq!(refused(&link), Distrust::SymbolicLink);
        fs::remove_file(&link).unwrap();
        fs::write(&link, "").unwrap();
        assert_eq!(refused(&link), Distrust::NotAFolder);
        fs::remove_file(&link).unwrap();
        // A dangling link is refused, too, not created as a folder.
        symlink(path.join("absent"), &link).unwrap();
        assert_eq!(refused(&link), Distrust::SymbolicLink);
        fs::remove_file(&link).unwrap();
        fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn every_access_checks_the_folder_again() {
        let path = absent("later");
        let folder = PrivateFolder::open(&path).unwrap();
        let inner = folder.subfolder("inner");
        inner.replace("entry", &[b"contents"]).unwrap();
        let denied = |folder: &PrivateFolder| {
            let errors = [
                folder.read("entry", 10).unwrap_err(),
                folder.file("entry").unwrap_err(),
                folder.replace("entry", &[b"others"]).unwrap_err(),
                folder.remove("entry").unwrap_err(),
            ];
            assert!(errors.iter().all(|error| error.kind() == io::ErrorKind::PermissionDenied), "{errors:?}");
        };
        for open in [folder.path(), inner.path()] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o777)).unwrap();
            denied(&inner);
            fs::set_permissions(open, fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(inner.read("entry", 10).unwrap(), b"contents");
        fs::rename(inner.path(), path.join("moved")).unwrap();
        symlink(path.join("moved"), inner.path()).unwrap();
        denied(&inner);
        assert_eq!(fs::read(path.join("moved/entry")).unwrap(), b"contents");
        fs::remove_dir_all(path).unwrap();
    }
}
