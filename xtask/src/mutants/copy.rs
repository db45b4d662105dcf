//! Copy of the source with all mutants in place, each behind a check of the environment variable `VYRE_MUTANT`.
//!
//! The copy is a workspace of its own, and only files whose contents differ are written: cargo rebuilds only the crates that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::table::{Hunk, Mark, Mutant};

/// Folder of the source in that of the workspace. Cargo identifies a path dependency by its path relative to the workspace, so that this
/// level keeps the artifacts of the copy apart from those of the source in a shared build folder.
pub(super) const TREE: &str = "tree";

/// Module that is added to every crate with mutants.
const MODULE: &str = "\
//! Selection of a mutant, made by `cargo xtask mutants`.

static SELECTED: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| std::env::var(\"VYRE_MUTANT\").unwrap_or_default());

/// Returns true if this mutant is selected.
pub(crate) fn active(name: &str) -> bool {
    SELECTED.as_str() == name
}
";

/// Files of the copy, by their path in the folder of its workspace.
pub(super) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Lines of a mutant in a file of the copy, from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: PathBuf,
    pub(super) lines: Range<usize>,
    pub(super) mutant: String,
}

/// Inserts the mutants into the source. Returns the files of the copy and the lines of each mutant, or one message for each mutant that
/// does not fit.
pub(super) fn mutate(source: Files, mutants: &[&Mutant]) -> Result<(Files, Vec<Location>), Vec<String>> {
    let mut by_file: BTreeMap<&str, Vec<(&str, &Hunk)>> = BTreeMap::new();
    for mutant in mutants {
        for hunk in &mutant.hunks {
            by_file.entry(&hunk.file).or_default().push((&mutant.name, hunk));
        }
    }
    let (mut locations, mut errors) = (Vec::new(), Vec::new());
    let mut crates = BTreeSet::new();
    let mut files = source;
    for (file, hunks) in by_file {
        let Some(text) = files.get(Path::new(file)).and_then(|bytes| str::from_utf8(bytes).ok()) else {
            errors.extend(hunks.iter().map(|(mutant, _)| format!("mutant `{mutant}`: there is no text file {file}")));
            continue;
        };
        let Some((package, _)) = file.split_once("/src/") else {
            errors.extend(
                hunks.iter().map(|(mutant, _)| format!("mutant `{mutant}`: {file} is not the source of a crate")),
            );
            continue;
        };
        match apply(file, text, &hunks) {
            Ok((mut changed, lines)) => {
                changed += "\nuse crate::mutant::active;\n";
                crates.insert(package);
                let path = Path::new(TREE).join(file);
                locations.extend(lines.into_iter().map(|(lines, mutant)| Location {
                    file: path.clone(),
                    lines,
                    mutant,
                }));
                files.insert(file.into(), changed.into());
            }
            Err(messages) => errors.extend(messages),
        }
    }
    for package in crates {
        let root = ["lib.rs", "main.rs"].map(|root| Path::new(package).join("src").join(root));
        match root.iter().find(|root| files.contains_key(*root)).and_then(|root| files.get_mut(root)) {
            Some(root) => root.extend(b"\nmod mutant;\n"),
            None => errors.push(format!("{package} has neither src/lib.rs nor src/main.rs")),
        }
        files.insert(Path::new(package).join("src/mutant.rs"), MODULE.into());
    }
    if errors.is_empty() { Ok((files, locations)) } else { Err(errors) }
}

/// Changed text of a file, and lines of the mutants in it, from 1.
type Applied = (String, Vec<(Range<usize>, String)>);

/// Applies hunks to a file. All of them are located in the text without mutants, where the kept and removed lines of each must occur
/// exactly once, and no two may change the same lines.
fn apply(file: &str, text: &str, hunks: &[(&str, &Hunk)]) -> Result<Applied, Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut edits: Vec<(Range<usize>, Vec<&str>, &str)> = Vec::new();
    let mut errors = Vec::new();
    for (mutant, hunk) in hunks {
        let old: Vec<&str> = side(&hunk.lines, Mark::Removed);
        let found: Vec<usize> = match old.len() {
            0 => Vec::new(),
            length => (0..lines.len()).filter(|&at| lines.get(at..at + length).is_some_and(|l| *l == old)).collect(),
        };
        let [at] = found[..] else {
            let count = found.len();
            errors.push(format!("mutant `{mutant}`: its old lines occur {count} times in {file}, not exactly once"));
            continue;
        };
        // Kept lines at the ends only locate the hunk; other mutants may change them.
        let is_kept = |line: &&(Mark, String)| line.0 == Mark::Kept;
        let before = hunk.lines.iter().take_while(is_kept).count();
        let after = hunk.lines.iter().rev().take_while(is_kept).count();
        let new = side(&hunk.lines[before..hunk.lines.len() - after], Mark::Added);
        edits.push((at + before..at + old.len() - after, new, mutant));
    }
    edits.sort_by_key(|(range, ..)| (range.start, range.end));
    for pair in edits.windows(2) {
        let [(first, _, one), (second, _, other)] = pair else { unreachable!("windows of two") };
        if second.start < first.end || (second.start == first.start && second.is_empty()) {
            let line = second.start + 1;
            errors.push(format!("mutants `{one}` and `{other}` overlap at {file}:{line}"));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let (mut changed, mut places) = (Vec::new(), Vec::new());
    let mut next = 0;
    for (range, new, mutant) in edits {
        changed.extend_from_slice(&lines[next..range.start]);
        places.push((changed.len() + 1..changed.len() + 1 + new.len(), mutant.to_owned()));
        changed.extend(new);
        next = range.end;
    }
    changed.extend_from_slice(&lines[next..]);
    Ok((changed.join("\n") + "\n", places))
}

/// Kept lines of a hunk, and those with this mark.
fn side(lines: &[(Mark, String)], mark: Mark) -> Vec<&str> {
    let is_on_side = |line: &&(Mark, String)| line.0 == Mark::Kept || line.0 == mark;
    lines.iter().filter(is_on_side).map(|(_, content)| content.as_str()).collect()
}

/// Moves the files of a workspace down into [`TREE`]; its manifest and lock file stay at the top.
pub(super) fn as_workspace(files: Files) -> Files {
    let moved = files.into_iter().map(|(path, bytes)| match path.to_str() {
        Some("Cargo.toml") => (path, manifest(&String::from_utf8_lossy(&bytes)).into_bytes()),
        Some("Cargo.lock") => (path, bytes),
        _ => (Path::new(TREE).join(path), bytes),
    });
    moved.collect()
}

/// Manifest of a workspace whose members were moved down into [`TREE`].
fn manifest(text: &str) -> String {
    let mut in_list = false;
    let mut moved = String::new();
    for line in text.lines() {
        in_list |= line.starts_with("members = ") || line.starts_with("default-members = ");
        if in_list {
            // Quotes open and close in turn.
            for (index, part) in line.split('"').enumerate() {
                match index {
                    0 => moved += part,
                    _ if index % 2 == 1 => moved += &format!("\"{TREE}/{part}"),
                    _ => moved += &format!("\"{part}"),
                }
            }
            in_list = !line.contains(']');
        } else {
            moved += &line.replace("path = \"", &format!("path = \"{TREE}/"));
        }
        moved.push('\n');
    }
    moved
}

/// Brings a folder up to date: files that are no longer there are deleted, and only those with other contents are written.
pub(super) fn write(folder: &Path, files: &Files) -> Result<(), String> {
    let failed = |path: &Path, error: &std::io::Error| format!("{}: {error}", path.display());
    let mut folders = vec![folder.join(TREE)];
    for next in 0.. {
        let Some(path) = folders.get(next) else { break };
        let Ok(entries) = fs::read_dir(path) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.strip_prefix(folder).is_ok_and(|path| !files.contains_key(path)) {
                fs::remove_file(&path).map_err(|error| failed(&path, &error))?;
            }
        }
    }
    // The folder of a deleted crate would still be a workspace member; non-empty folders cannot be removed.
    folders.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
    for (path, bytes) in files {
        let path = folder.join(path);
        if fs::read(&path).is_ok_and(|old| old == *bytes) {
            continue;
        }
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, bytes));
        written.map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::parse;
    use super::*;

    /// Inserts mutants into one file, `crates/a/src/b.rs`, of a crate.
    fn insert(text: &str, hunks: &[(&str, &str)]) -> Result<(String, Vec<Location>), Vec<String>> {
        let mutants = hunks.iter().map(|(name, hunk)| format!("mutant {name}\nWrong.\nin crates/a/src/b.rs\n{hunk}\n"));
        let area = parse("x", &format!("test a b\n{}", mutants.collect::<String>())).unwrap();
        let source = [("crates/a/src/lib.rs", "mod b;\n"), ("crates/a/src/b.rs", text)];
        let source = source.into_iter().map(|(path, text)| (path.into(), text.into())).collect();
        let (files, locations) = mutate(source, &area.mutants.iter().collect::<Vec<_>>())?;
        assert_eq!(files[Path::new("crates/a/src/lib.rs")], b"mod b;\n\nmod mutant;\n");
        assert_eq!(files[Path::new("crates/a/src/mutant.rs")], MODULE.as_bytes());
        let changed = String::from_utf8(files[Path::new("crates/a/src/b.rs")].clone()).unwrap();
        let changed = changed.strip_suffix("\nuse crate::mutant::active;\n").unwrap();
        Ok((changed.into(), locations))
    }

    #[test]
    fn mutants_compose_in_guards_arms_and_expressions() {
        let text = "match x {\n    A => 1,\n    B if y => 2,\n    _ => 3 + z,\n}\n";
        let (changed, locations) = insert(
            text,
            &[
                ("Expression", "-    _ => 3 + z,\n+    _ => if active(\"Expression\") { 3 } else { 3 + z },"),
                ("Arm", "+    A if active(\"Arm\") => 2,\n     A => 1,"),
                ("Guard", "     A => 1,\n-    B if y => 2,\n+    B if y && !active(\"Guard\") => 2,\n     _ => 3 + z,"),
            ],
        )
        .unwrap();
        assert_eq!(
            changed,
            "match x {\n    A if active(\"Arm\") => 2,\n    A => 1,\n    B if y && !active(\"Guard\") => 2,\n    \
             _ => if active(\"Expression\") { 3 } else { 3 + z },\n}\n"
        );
        let lines: Vec<_> = locations.iter().map(|l| (l.mutant.as_str(), l.lines.clone())).collect();
        assert_eq!(lines, [("Arm", 2..3), ("Guard", 4..5), ("Expression", 5..6)]);
        assert_eq!(locations[0].file, Path::new("tree/crates/a/src/b.rs"));
    }

    #[test]
    fn old_lines_occur_exactly_once() {
        let occurs = |text, hunk| insert(text, &[("M", hunk)]).map(|_| ()).unwrap_err();
        let hunk = "-a;\n+active(\"M\");";
        let message =
            |count| format!("mutant `M`: its old lines occur {count} times in crates/a/src/b.rs, not exactly once");
        assert_eq!(occurs("b;\n", hunk), [message(0)]);
        assert_eq!(occurs("a;\nb;\na;\n", hunk), [message(2)]);
        assert_eq!(occurs("a;\n", "+active(\"M\");"), [message(0)]);
        // A part of a line is not the line.
        assert_eq!(occurs("a; b;\n", hunk), [message(0)]);
        assert!(insert("a;\nb;\na;\n", &[("M", " b;\n-a;\n+active(\"M\");")]).is_ok());
    }

    #[test]
    fn overlapping_mutants_are_named() {
        let overlap = |hunks: &[(&str, &str)]| insert("a;\nb;\nc;\n", hunks).map(|_| ());
        let replace_a = ("A", "-a;\n-b;\n+active(\"A\");");
        let replace_b = ("B", "-b;\n+active(\"B\");");
        let before_b = ("C", "+active(\"C\");\n b;");
        let after_a = ("D", " a;\n+active(\"D\");");
        let after_b = ("E", " b;\n+active(\"E\");");
        let message = |one, other| Err(vec![format!("mutants `{one}` and `{other}` overlap at crates/a/src/b.rs:2")]);
        assert_eq!(overlap(&[replace_a, replace_b]), message("A", "B"));
        assert_eq!(overlap(&[replace_a, before_b]), message("A", "C"));
        // The order of insertions at one place is not defined.
        assert_eq!(overlap(&[before_b, after_a]), message("C", "D"));
        assert_eq!(overlap(&[before_b, replace_b, after_b]), Ok(()));
    }

    #[test]
    fn files_without_a_crate_are_errors() {
        let area = parse("x", "test a b\nmutant M\nWrong.\nin docs/a.md\n-a\n+active(\"M\")\n").unwrap();
        let mutants: Vec<_> = area.mutants.iter().collect();
        assert_eq!(mutate(Files::new(), &mutants).unwrap_err(), ["mutant `M`: there is no text file docs/a.md"]);
        let source = Files::from([("docs/a.md".into(), b"a\n".to_vec())]);
        assert_eq!(mutate(source, &mutants).unwrap_err(), ["mutant `M`: docs/a.md is not the source of a crate"]);
    }

    #[test]
    fn workspace_members_move_into_the_tree() {
        let text = "[workspace]\nmembers = [\"crates/*\", \"xtask\"]\ndefault-members = [\n    \"crates/a\",\n]\n\
                    [workspace.dependencies]\na = { path = \"crates/a\" }\nb = { version = \"1\" }\n";
        let moved = "[workspace]\nmembers = [\"tree/crates/*\", \"tree/xtask\"]\ndefault-members = [\n    \"tree/crates/a\",\n]\n\
                     [workspace.dependencies]\na = { path = \"tree/crates/a\" }\nb = { version = \"1\" }\n";
        assert_eq!(manifest(text), moved);
    }

    #[test]
    fn unchanged_files_are_not_written_again() {
        let folder = std::env::temp_dir().join(format!("vyre-xtask-copy-{}", std::process::id()));
        let file = |text: &str| Files::from([(PathBuf::from("tree/a/b.rs"), text.as_bytes().to_vec())]);
        let modified = || fs::metadata(folder.join("tree/a/b.rs")).and_then(|metadata| metadata.modified()).unwrap();
        write(&folder, &file("one")).unwrap();
        let past = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(folder.join("tree/a/b.rs")).unwrap().set_modified(past).unwrap();
        write(&folder, &file("one")).unwrap();
        assert_eq!(modified(), past);
        write(&folder, &file("two")).unwrap();
        assert_ne!(modified(), past);
        write(&folder, &Files::new()).unwrap();
        assert!(!folder.join("tree/a/b.rs").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
