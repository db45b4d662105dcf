//! Embeds the programs that the conformance suite runs, so that the suite works where the repository is absent: in a packaged
//! crate and in an installed command.
//!
//! The folders in `corpus` are links into the repository, and `cargo package` replaces each link by the files behind it. A checkout
//! without symbolic links, as Windows has by default, reads the repository itself.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let folder = |link: &str, in_repository: &str| {
        let linked = package.join("corpus").join(link);
        if linked.is_dir() { linked } else { package.join("../..").join(in_repository) }
    };

    let mut generated = String::from("pub(crate) static FILES: &[(&str, &str)] = &[\n");
    for (link, in_repository) in [("kernels", "examples/kernels"), ("files", "tests/files")] {
        let folder = folder(link, in_repository);
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files = Vec::new();
        list(&folder, &mut files)?;
        files.sort();
        for file in files {
            let name = file.strip_prefix(&folder).map_err(io::Error::other)?.display().to_string().replace('\\', "/");
            // Other file tests run nothing.
            if std::fs::read_to_string(&file)?.contains("//@ run") || link == "kernels" {
                let _ = writeln!(generated, "    ({:?}, include_str!({file:?})),", format!("{in_repository}/{name}"));
            }
        }
    }
    let ops = folder("megakernel", "examples/megakernel").join("ops.vyre");
    println!("cargo::rerun-if-changed={}", ops.display());
    let _ = write!(generated, "];\npub(crate) const MEGAKERNEL_OPS: &str = include_str!({ops:?});\n");
    let target = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(target.join("corpus.rs"), generated)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, files)?,
            false => files.extend(path.extension().is_some_and(|extension| extension == "vyre").then_some(path)),
        }
    }
    Ok(())
}
