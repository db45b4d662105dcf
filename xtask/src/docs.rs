//! `cargo xtask docs`: builds the book as web pages. Its code blocks are tested by `cargo xtask test`, without mdBook.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::test::{cargo, passes, quiet};
use crate::{root, target_dir};

/// Builds the book; returns whether that succeeded. With `open`, shows it in a browser.
pub(crate) fn run(open: bool) -> bool {
    let Some(mdbook) = installed() else {
        eprintln!("error: the book needs mdBook, and `cargo install --locked mdbook` did not give it");
        return false;
    };
    let book = target_dir().join("book");
    let pages = book.join("html");
    if let Err(error) = copy_pictures(&book.join("pictures")) {
        eprintln!("error: cannot copy the pictures of the book: {error}");
        return false;
    }
    let mut build = Command::new(mdbook);
    build.current_dir(root()).args(["build", "docs", "--dest-dir"]).arg(&pages).args(open.then_some("--open"));
    let built = passes(&mut build);
    if built {
        println!("the book is {}", pages.join("index.html").display());
    }
    built
}

/// Copies the pictures to `../pictures`, relative to the pages, as in the repository.
fn copy_pictures(to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for picture in std::fs::read_dir(root().join("docs/pictures"))? {
        let picture = picture?;
        std::fs::copy(picture.path(), to.join(picture.file_name()))?;
    }
    Ok(())
}

/// Installed mdBook, or a copy installed into the target folder.
fn installed() -> Option<PathBuf> {
    let folder = target_dir().join("tools");
    let own = folder.join("bin").join(format!("mdbook{}", std::env::consts::EXE_SUFFIX));
    let works = |path: &PathBuf| quiet(Command::new(path).arg("--version"));
    if let Some(found) = [PathBuf::from("mdbook"), own.clone()].into_iter().find(works) {
        return Some(found);
    }
    println!("installing mdBook into {}", folder.display());
    passes(cargo("install").args(["--locked", "mdbook", "--root"]).arg(folder));
    Some(own).filter(works)
}
