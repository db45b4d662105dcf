//! Where results go: the files of `--out`, `--html` and `--trace`.
//!
//! Everything that can be known to fail is found by [`Outputs::plan`] or [`Target::find`], before any work is done. Files are
//! written by [`Outputs::save`] or [`Target::write`] after it has succeeded: beside their targets first, then all of them are
//! renamed, so that no target is ever half-written.

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

/// What is done with the results.
#[derive(Debug, Default)]
pub(crate) struct Outputs<'p> {
    files: Vec<Output<'p>>,
    /// The objects that are printed.
    pub(crate) printed: Vec<&'p Memory>,
}

/// One object that is written to a file.
#[derive(Debug)]
struct Output<'p> {
    memory: &'p Memory,
    encoding: Encoding,
    target: Target,
}

impl<'p> Outputs<'p> {
    /// Looks at the `NAME=TARGET` pairs. `launched` are the elements of the grid.
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
            if outputs.files.iter().any(|output| output.target.place == target.place) {
                return Err(Error::OutTwice { target: path.into() });
            }
            outputs.files.push(Output { memory, encoding, target });
        }
        Ok(outputs)
    }

    /// Path and shape of each file, unless standard output may carry results.
    pub(crate) fn saved(&self) -> impl Iterator<Item = (&Path, String)> {
        let is_data = !self.printed.is_empty() || self.files.iter().any(|output| output.target.special);
        let files = self.files.iter().filter(move |_| !is_data);
        files.map(|output| (output.target.given.as_path(), output.encoding.shape(output.memory.element)))
    }

    /// The files that an object is written to.
    pub(crate) fn files_of(&self, name: &str) -> impl Iterator<Item = &Path> {
        self.files.iter().filter(move |output| output.memory.name == name).map(|output| output.target.given.as_path())
    }

    /// Writes the files.
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

/// Writes files, all of them or none.
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

/// The one file of a verb, if there is to be one: `-` is standard output, as if no file was named.
pub(crate) fn target(file: Option<&Path>) -> Result<Option<Target>, Error> {
    file.filter(|file| *file != Path::new("-")).map(Target::find).transpose()
}

/// The objects that hold the results of a program.
pub(crate) fn results(program: &Program) -> impl Iterator<Item = &Memory> {
    program.memories().values().filter(|memory| matches!(memory.space, Space::Storage(_)) && memory.writable())
}

/// The result with this name.
pub(crate) fn result<'p>(program: &'p Program, name: &str) -> Result<&'p Memory, Error> {
    let known = || results(program).map(|memory| memory.name.clone()).collect();
    let Some(id) = program.memory_named(name) else {
        return Err(Error::UnknownOut { name: name.into(), known: known() });
    };
    let memory = program.memory(id);
    let what = match memory.space {
        Space::Storage(Access::Write | Access::ReadWrite) => return Ok(memory),
        Space::Storage(Access::Read) => "only read",
        Space::Storage(Access::Constant) => "an array of uniforms",
        Space::Uniform => "a uniform",
        Space::Workgroup => "an array of a workgroup",
        Space::Private => "an array of an invocation",
    };
    Err(Error::NotAResult { name: name.into(), what, known: known() })
}

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct Target {
    /// The path, as it was given.
    given: PathBuf,
    /// The path without links: equal for equal files.
    place: PathBuf,
    /// Whether it is there and no file, such as a pipe, or a file that is open already: that is written to as it is.
    special: bool,
    /// How a file begins that may be replaced.
    begins: &'static str,
}

impl Target {
    /// Finds out whether a file can be written, by writing an empty one beside it.
    pub(crate) fn find(path: &Path) -> Result<Target, Error> {
        Target::find_like(path, "")
    }

    /// The same, for a file that nobody has written by hand: what is there is replaced only if it is empty or begins like this. A slip
    /// does not cost a program, or a result that was written before.
    pub(crate) fn find_like(path: &Path, begins: &'static str) -> Result<Target, Error> {
        let unwritable = |error: io::Error| Error::Unwritable { path: path.into(), error };
        let wrong = |kind: io::ErrorKind, reason: &str| Err(unwritable(io::Error::new(kind, reason)));
        if !begins.is_empty() && path == Path::new("-") {
            return wrong(io::ErrorKind::AlreadyExists, "standard output is for what is printed");
        }
        let existing = fs::metadata(path).ok();
        let special = existing.as_ref().is_some_and(|existing| !existing.is_file()) || is_open(path);
        let place = match existing {
            Some(existing) if existing.is_dir() => return wrong(io::ErrorKind::IsADirectory, "it is a folder"),
            Some(existing) if existing.permissions().readonly() => {
                return wrong(io::ErrorKind::PermissionDenied, "it is read-only");
            }
            Some(_) if special => Ok(path.into()),
            Some(_) => path.canonicalize(),
            None => beside(path),
        };
        let place = place.map_err(unwritable)?;
        let target = Target { given: path.into(), place, special, begins };
        target.expect_like()?;
        if !special {
            target.temporary().map_err(|error| target.unwritable(error))?;
        }
        Ok(target)
    }

    /// Whether a path means this file.
    pub(crate) fn is(&self, path: &Path) -> bool {
        path.canonicalize().or_else(|_| beside(path)).is_ok_and(|place| place == self.place)
    }

    /// Whether what is there may be replaced.
    fn expect_like(&self) -> Result<(), Error> {
        if self.special || self.begins.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        let read = File::open(&self.place).and_then(|file| file.take(self.begins.len() as u64).read_to_end(&mut found));
        match read {
            Ok(0) | Err(_) => Ok(()),
            Ok(_) if found == self.begins.as_bytes() => Ok(()),
            Ok(_) => Err(self.unwritable(io::Error::new(io::ErrorKind::AlreadyExists, "something else is there"))),
        }
    }

    /// Writes the file as a whole.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.expect_like()?;
        let temporary = self.fill(|mut file| file.write_all(bytes))?;
        uninterrupted(|| self.replace(temporary.as_ref()))
    }

    /// A new file beside this one.
    fn temporary(&self) -> io::Result<(Unfinished, File)> {
        let folder = self.place.parent().unwrap_or(Path::new("/"));
        let mut prefix = self.place.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let suffix = format!(".{TEMPORARY}");
        Unfinished::create(|| create_unique(folder, prefix, &suffix, |path| File::create_new(path)))
    }

    /// Writes a file that can take the place of this one, unless this one cannot be replaced.
    fn fill(&self, write: impl FnOnce(&File) -> io::Result<()>) -> Result<Option<Unfinished>, Error> {
        let filled = || {
            if self.special {
                write(&opened(&self.place)?)?;
                return Ok(None);
            }
            let (temporary, file) = self.temporary()?;
            write(&file)?;
            if let Ok(replaced) = fs::metadata(&self.place) {
                file.set_permissions(replaced.permissions())?;
            }
            Ok(Some(temporary))
        };
        filled().map_err(|error| self.unwritable(error))
    }

    fn replace(&self, temporary: Option<&Unfinished>) -> Result<(), Error> {
        let renamed = temporary.map_or(Ok(()), |temporary| fs::rename(&temporary.0, &self.place));
        renamed.map_err(|error| self.unwritable(error))
    }

    fn unwritable(&self, error: io::Error) -> Error {
        Error::Unwritable { path: self.given.clone(), error }
    }
}

/// Whether a path is a name of something that this process has open. It may be a file, but replacing that would be no help to whoever
/// opened it.
fn is_open(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    ["/dev/stdout", "/dev/stderr"].map(Path::new).contains(&path)
        || folders.iter().any(|folder| path.parent() == Some(*folder))
}

/// Something that is written to as it is. What is open already is written where it is.
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

/// The path of a new file, with the links in its folder resolved.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file"));
    };
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    Ok(folder.canonicalize()?.join(name))
}
