//! `cargo xtask release`: a dry run of a release. Packages are built from their archives, and nothing is published.

use crate::test::{cargo, passes};
use crate::{root, tidy};

/// Version of the workspace, which is also that of this crate.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Checks packages, tidiness and changelog for a release, and prints the commands that publish it. Returns true if all checks pass.
pub(crate) fn run() -> bool {
    println!("=== package ===");
    let packaged = package(true);
    println!("=== tidy ===");
    let tidy = tidy::run();
    println!("=== changelog ===");
    let passed = changelog() && packaged && tidy;
    if passed {
        println!("\n{VERSION} can be released. In this order, every crate is published after its dependencies:");
        published().iter().for_each(|name| println!("    cargo publish --package {name}"));
    } else {
        println!("\n{VERSION} cannot be released yet");
    }
    passed
}

/// Creates the archives of all published crates; with `verify`, builds each of them from its archive alone.
///
/// With `verify`, all files in the archives must be committed.
pub(crate) fn package(verify: bool) -> bool {
    let mut package = cargo("package");
    // Cargo warns about every test that is not in an archive.
    package.args(["--quiet", "--locked"]);
    if !verify {
        package.args(["--no-verify", "--allow-dirty"]);
    }
    for name in published() {
        package.args(["--package", name]);
    }
    passes(&mut package)
}

/// The crates that are published, each after its dependencies.
fn published() -> Vec<&'static str> {
    let is_published = |name: &&str| {
        let manifest = std::fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap_or_default();
        tidy::is_published(&manifest)
    };
    tidy::crates().filter(is_published).collect()
}

fn changelog() -> bool {
    let changes = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap_or_default();
    let found = has_section(&changes, VERSION);
    if !found {
        println!("CHANGELOG.md has no section `## {VERSION}`: move what is under `## Unreleased` there");
    }
    found
}

/// Finds a heading with the version, optionally followed by a date.
fn has_section(changelog: &str, version: &str) -> bool {
    changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .any(|heading| heading.strip_prefix(version).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_a_changelog() {
        let changelog = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2030-01-01)\n\n## 0.1.1\n";
        assert!(has_section(changelog, "0.2.0"));
        assert!(has_section(changelog, "0.1.1"));
        assert!(!has_section(changelog, "0.1"));
        assert!(!has_section(changelog, "0.1.0"));
    }

    #[test]
    fn benchmarks_are_not_published() {
        let published = published();
        assert!(published.contains(&"vyre"));
        assert!(!published.contains(&"vyre-bench"));
    }
}
