//! Output files of `--out`, `--html` and `--trace`, written atomically.
//!
//! [`Outputs::plan`] and [`Target::find`] report predictable errors before any work is done. After the work has succeeded,
//! [`Outputs::save`] and [`Target::write`] write temporary files beside the targets and then rename all of them, so that no target is ever
//! half-written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use vyre_driver::atomic_file::{TEMPORARY, create_unique};
use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Access, Memory, Program, Space};

use crate::data::{Encoding, Format};
use crate::error::Error;
use crate::interrupt::{Unfinished, uninterrupted};

/// Destinations of the results.
#[derive(Debug, Default)]
pub(crate) struct Outputs<'p> {
    files: Vec<Output<'p>>,
    /// Objects printed to standard output.
    pub(crate) printed: Vec<&'p Memory>,
}

/// Output file of an object.
#[derive(Debug)]
struct Output<'p> {
    memory: &'p Memory,
    encoding: Encoding,
    target: Target,
}

impl<'p> Outputs<'p> {
    /// Checks the `NAME=TARGET` pairs. `launched` are the elements of the grid.
    pub(crate) fn plan(
        pairs: &[(String, String)],
        program: &'p Validated<Program>,
        inputs: &Inputs,
        launched: [u32; 3],
    ) -> Result<Outputs<'p>, Error> {
        let mut outputs = Outputs::default();
        for (name, text) in pairs {
            let memory = result(program, name)?;
            if text == "-" {
                if outputs.printed.iter().any(|printed| printed.name == *name) {
                    return Err(Error::OutTwice { target: name.into() });
                }
                outputs.printed.push(memory);
                continue;
            }
            let Some(path) = text.strip_prefix('@').map(Path::new) else {
                return Err(Error::OutTarget { name: name.clone(), text: text.clone() });
            };
            let Some(format) = Format::of(path) else {
                return Err(Error::Format { path: path.into(), reading: false });
            };
            let bytes = inputs.contents(name).map_or(0, <[u8]>::len);
            let length = (bytes / memory.element.size()) as u64;
            let encoding = Encoding::plan(format, name, memory.element, length, launched)?;
            let target = Target::find(path)?;
            if outputs.files.iter().any(|output| output.target.canonical == target.canonical) {
                return Err(Error::OutTwice { target: path.into() });
            }
            outputs.files.push(Output { memory, encoding, target });
        }
        Ok(outputs)
    }

    /// Path and shape of each file; nothing if results are written to standard output.
    pub(crate) fn saved(&self) -> impl Iterator<Item = (&Path, String)> {
        let is_data = !self.printed.is_empty() || self.files.iter().any(|output| output.target.special);
        let files = self.files.iter().filter(move |_| !is_data);
        files.map(|output| (output.target.given.as_path(), output.encoding.shape(output.memory.element)))
    }

    /// Output files of an object.
    pub(crate) fn files_of(&self, name: &str) -> impl Iterator<Item = &Path> {
        self.files.iter().filter(move |output| output.memory.name == name).map(|output| output.target.given.as_path())
    }

    /// Writes all files.
    pub(crate) fn save(&self, inputs: &Inputs) -> Result<(), Error> {
        let mut written = Vec::new();
        for Output { memory, encoding, target } in &self.files {
            let contents = inputs.contents(&memory.name).unwrap_or_default();
            let write = |file: &File| encoding.write(memory.element, contents, BufWriter::new(file));
            written.push((target.fill(write)?, target));
        }
        replace(&written)
    }
}

/// Writes all files or none.
pub(crate) fn write(files: &[(Target, Vec<u8>)]) -> Result<(), Error> {
    let mut written = Vec::new();
    for (target, bytes) in files {
        written.push((target.fill(|mut file| file.write_all(bytes))?, target));
    }
    replace(&written)
}

fn replace(written: &[(Option<Unfinished>, &Target)]) -> Result<(), Error> {
    uninterrupted(|| written.iter().try_for_each(|(temporary, target)| target.replace(temporary.as_ref())))
}

/// The file of `--out`; `None` for `-`, which is standard output.
pub(crate) fn target(file: Option<&Path>) -> Result<Option<Target>, Error> {
    file.filter(|file| *file != Path::new("-")).map(Target::find).transpose()
}

/// Writable storage objects of a program.
pub(crate) fn results(program: &Program) -> impl Iterator<Item = &Memory> {
    program.memories().values().filter(|memory| matches!(memory.space, Space::Storage(_)) && memory.writable())
}

/// The result of a name.
pub(crate) fn result<'p>(program: &'p Program, name: &str) -> Result<&'p Memory, Error> {
    let known = || results(program).map(|memory| memory.name.clone()).collect();
    let Some(id) = program.memory_named(name) else {
        return Err(Error::UnknownOut { name: name.into(), known: known() });
    };
    let memory = program.memory(id);
    let what = match memory.space {
        Space::Storage(Access::Write | Access::ReadWrite) => return Ok(memory),
        Space::Storage(Access::Read) => "a read-only input",
        Space::Storage(Access::Constant) => "a uniform array",
        Space::Uniform => "a uniform",
        Space::Workgroup => "a workgroup array",
        Space::Private => "a private array",
    };
    Err(Error::NotAResult { name: name.into(), what, known: known() })
}

/// A writable output file.
#[derive(Debug)]
pub(crate) struct Target {
    /// Path as given.
    given: PathBuf,
    /// Canonical path: equal for equal files.
    canonical: PathBuf,
    /// Written in place instead of replaced: an existing pipe or device, or an open file descriptor.
    special: bool,
    /// Required prefix of a file that may be replaced.
    begins: &'static str,
}

impl Target {
    /// Checks that a file can be written, by creating an empty file beside it.
    pub(crate) fn find(path: &Path) -> Result<Target, Error> {
        Target::find_like(path, "")
    }

    /// Same as [`find`](Target::find), for generated files: an existing file is replaced only if it is empty or starts with `begins`. This
    /// protects programs and results from mistyped names.
    pub(crate) fn find_like(path: &Path, begins: &'static str) -> Result<Target, Error> {
        let unwritable = |error: io::Error| Error::Unwritable { path: path.into(), error };
        let wrong = |kind: io::ErrorKind, reason: &str| Err(unwritable(io::Error::new(kind, reason)));
        if !begins.is_empty() && path == Path::new("-") {
            return wrong(io::ErrorKind::AlreadyExists, "standard output carries the text output");
        }
        let existing = fs::metadata(path).ok();
        let special = existing.as_ref().is_some_and(|existing| !existing.is_file()) || is_open(path);
        let canonical = match existing {
            Some(existing) if existing.is_dir() => return wrong(io::ErrorKind::IsADirectory, "it is a folder"),
            Some(existing) if existing.permissions().readonly() => {
                return wrong(io::ErrorKind::PermissionDenied, "it is read-only");
            }
            Some(_) if special => Ok(path.into()),
            Some(_) => path.canonicalize(),
            None => beside(path),
        };
        let canonical = canonical.map_err(unwritable)?;
        let target = Target { given: path.into(), canonical, special, begins };
        target.expect_like()?;
        if !special {
            target.temporary().map_err(|error| target.unwritable(error))?;
        }
        Ok(target)
    }

    /// Returns whether a path refers to this file.
    pub(crate) fn is(&self, path: &Path) -> bool {
        path.canonicalize().or_else(|_| beside(path)).is_ok_and(|canonical| canonical == self.canonical)
    }

    /// Checks that the existing file may be replaced.
    fn expect_like(&self) -> Result<(), Error> {
        if self.special || self.begins.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        let read =
            File::open(&self.canonical).and_then(|file| file.take(self.begins.len() as u64).read_to_end(&mut found));
        match read {
            Ok(0) | Err(_) => Ok(()),
            Ok(_) if found == self.begins.as_bytes() => Ok(()),
            Ok(_) => Err(self
                .unwritable(io::Error::new(io::ErrorKind::AlreadyExists, "the existing file has different contents"))),
        }
    }

    /// Writes the file atomically.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.expect_like()?;
        let temporary = self.fill(|mut file| file.write_all(bytes))?;
        uninterrupted(|| self.replace(temporary.as_ref()))
    }

    /// Creates a temporary file beside this one.
    fn temporary(&self) -> io::Result<(Unfinished, File)> {
        let folder = self.canonical.parent().unwrap_or(Path::new("/"));
        let mut prefix = self.canonical.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let suffix = format!(".{TEMPORARY}");
        Unfinished::create(|| create_unique(folder, prefix, &suffix, |path| File::create_new(path)))
    }

    /// Writes a temporary file, which it returns. A special target (not a regular file, or an open descriptor) is written in place.
    fn fill(&self, write: impl FnOnce(&File) -> io::Result<()>) -> Result<Option<Unfinished>, Error> {
        let filled = || {
            if self.special {
                write(&opened(&self.canonical)?)?;
                return Ok(None);
            }
            let (temporary, file) = self.temporary()?;
            write(&file)?;
            if let Ok(replaced) = fs::metadata(&self.canonical) {
                file.set_permissions(replaced.permissions())?;
            }
            Ok(Some(temporary))
        };
        filled().map_err(|error| self.unwritable(error))
    }

    fn replace(&self, temporary: Option<&Unfinished>) -> Result<(), Error> {
        let renamed = temporary.map_or(Ok(()), |temporary| fs::rename(&temporary.0, &self.canonical));
        renamed.map_err(|error| self.unwritable(error))
    }

    fn unwritable(&self, error: io::Error) -> Error {
        Error::Unwritable { path: self.given.clone(), error }
    }
}

/// Returns whether a path names a file descriptor of this process, whose file must be written in place.
fn is_open(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    ["/dev/stdout", "/dev/stderr"].map(Path::new).contains(&path)
        || folders.iter().any(|folder| path.parent() == Some(*folder))
}

/// Opens a special target. Descriptors of this process are duplicated, or opened in append mode.
fn opened(path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd as _;
        let own = |name: &str, number: &str| path == Path::new(name) || is_open(path) && path.ends_with(number);
        if own("/dev/stdout", "1") {
            return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
        }
        if own("/dev/stderr", "2") {
            return Ok(io::stderr().as_fd().try_clone_to_owned()?.into());
        }
    }
    if is_open(path) { File::options().append(true).open(path) } else { File::options().write(true).open(path) }
}

/// Path of a new file in the canonical folder.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file name"));
    };
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    Ok(folder.canonicalize()?.join(name))
}
