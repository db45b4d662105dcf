//! `cargo xtask tidy`: the rules of the repository that no other tool checks.
//!
//! The tracked (or trackable) files are read once; every rule is a function from these files to violations.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;

use crate::test::cargo;
use crate::{bench, mutants, root};

/// Allowed dependencies of each crate within the workspace, in topological order; docs/decisions has the reasons.
/// Development dependencies are not restricted.
const CRATES: &[(&str, &[&str])] = &[
    ("vyre-foundation", &[]),
    ("vyre-reference", &["vyre-foundation"]),
    ("vyre-driver", &["vyre-foundation", "vyre-reference"]),
    ("vyre-cpu", &["vyre-foundation", "vyre-driver"]),
    ("vyre-wgpu", &["vyre-foundation", "vyre-driver"]),
    ("vyre-runtime", &["vyre-foundation", "vyre-driver"]),
    ("vyre-macros", &["vyre-foundation"]),
    (
        "vyre",
        &["vyre-foundation", "vyre-reference", "vyre-driver", "vyre-cpu", "vyre-wgpu", "vyre-runtime", "vyre-macros"],
    ),
    ("vyre-testkit", &["vyre-foundation", "vyre-reference", "vyre-driver", "vyre-runtime"]),
    (
        "vyre-bench",
        &["vyre-foundation", "vyre-driver", "vyre-cpu", "vyre-wgpu", "vyre-runtime", "vyre", "vyre-testkit"],
    ),
    (
        "vyre-cli",
        &[
            "vyre-foundation",
            "vyre-reference",
            "vyre-driver",
            "vyre-cpu",
            "vyre-wgpu",
            "vyre-runtime",
            "vyre-macros",
            "vyre",
            "vyre-testkit",
        ],
    ),
];

/// Meaningless module names.
const MEANINGLESS_NAMES: &[&str] = &["utils", "common", "helpers", "base", "misc"];

const REQUIRED_FILES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/decisions/README.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    ".ci/run",
    "Cargo.lock",
];

/// Required keys in the `[package]` table of a published crate.
const PACKAGE_KEYS: &[&str] =
    &["rust-version", "license", "repository", "description", "readme", "keywords", "categories", "include"];

/// Required files of a published crate. The licenses are links to those of the repository.
const PACKAGE_FILES: &[&str] = &["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

const MAX_BYTES: usize = 1 << 20;

/// Extensions of files without tabs.
const WITHOUT_TABS: &[&str] = &[".rs", ".vyre", ".md", ".toml"];

/// Prints every violation; returns true if there is none.
pub(crate) fn run() -> bool {
    let files = match read_files() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("error: {error}");
            return false;
        }
    };
    let mut violations = check(&files);
    let readme = files.iter().find(|file| file.path == "README.md").and_then(File::text).unwrap_or_default();
    violations.extend(unified_features());
    violations.extend(bench::stale(readme).into_iter().map(|(file, message)| Violation::new(&file, 1, message)));
    violations
        .extend(mutants::table_errors(files).into_iter().map(|message| Violation::new("tests/mutants", 1, message)));
    for violation in &violations {
        println!("{violation}");
    }
    violations.is_empty()
}

/// Development dependencies of the default members must not enable features in the dependencies of wgpu. Cargo unifies
/// features, so `cargo run --example NAME` would otherwise rebuild wgpu after `cargo run`.
fn unified_features() -> Option<Violation> {
    let features = |edges: &str| {
        let mut tree = cargo("tree");
        tree.args(["--locked", "--package", "vyre", "--package", "vyre-cli", "--edges", edges]);
        tree.args(["--no-dedupe", "--prefix", "depth", "--format", " {p} {f}"]);
        subtree(&String::from_utf8_lossy(&tree.output().ok()?.stdout), "wgpu")
    };
    let message = match (features("normal,build"), features("normal,build,dev")) {
        (Some(of_command), Some(of_examples)) => {
            let changed: Vec<&str> = of_examples.difference(&of_command).map(String::as_str).collect();
            if changed.is_empty() {
                return None;
            }
            format!("examples are built with other features of dependencies of wgpu: {}", changed.join(", "))
        }
        (None, _) | (_, None) => "`cargo tree` does not list the dependencies of wgpu".into(),
    };
    Some(Violation::new("crates/vyre-cli/Cargo.toml", 1, message))
}

/// Packages below `root` in the output of `cargo tree --prefix depth`, or `None` if there are none.
fn subtree(tree: &str, root: &str) -> Option<BTreeSet<String>> {
    let mut packages = BTreeSet::new();
    let mut depth_of_root = None;
    for line in tree.lines() {
        let Some((depth, package)) = line.split_once(' ') else { continue };
        let Ok(depth) = depth.parse::<usize>() else { continue };
        if depth_of_root.is_some_and(|root| depth <= root) {
            depth_of_root = None;
        }
        if depth_of_root.is_some() {
            packages.insert(package.trim_end().to_owned());
        } else if package.split(' ').next() == Some(root) {
            depth_of_root = Some(depth);
        }
    }
    (!packages.is_empty()).then_some(packages)
}

pub(crate) struct File {
    /// Relative to the root, with `/` on every system.
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    /// Content, unless the file is binary.
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok().filter(|text| !text.contains('\0'))
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Files that git tracks or would track: all but ignored ones.
pub(crate) fn read_files() -> Result<Vec<File>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git cannot list the files: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    let listed = String::from_utf8(output.stdout).map_err(|_| "the name of a file is not UTF-8")?;
    // A file with a merge conflict is listed several times.
    let paths: BTreeSet<&str> = listed.split_terminator('\0').collect();
    paths
        .into_iter()
        // Git also lists deleted files.
        .filter(|path| root().join(path).is_file())
        .map(|path| {
            let bytes = std::fs::read(root().join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
            Ok(File { path: path.into(), bytes })
        })
        .collect()
}

/// All violations, in file order.
fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = required_files(files);
    violations.extend(chapters(files));
    violations.extend(decisions(files));
    for file in files {
        violations.extend(size(file));
        let Some(text) = file.text() else { continue };
        violations.extend(whitespace(&file.path, text));
        violations.extend(names(&file.path, text));
        violations.extend(crate_dependencies(&file.path, text));
        violations.extend(markdown_paths(&file.path, text, files));
        violations.extend(package(&file.path, text, files));
    }
    violations.sort();
    violations
}

fn required_files(files: &[File]) -> Vec<Violation> {
    let missing = REQUIRED_FILES.iter().filter(|required| files.iter().all(|file| file.path != **required));
    missing.map(|path| Violation::new(path, 1, "this file is required")).collect()
}

fn size(file: &File) -> Option<Violation> {
    (file.bytes.len() > MAX_BYTES).then(|| Violation::new(&file.path, 1, "the file is larger than 1 MiB"))
}

fn whitespace(path: &str, text: &str) -> Vec<Violation> {
    let without_tabs = WITHOUT_TABS.iter().any(|end| path.ends_with(end));
    let mut violations = Vec::new();
    for (line, content) in numbered(text) {
        if content.trim_end() != content {
            violations.push(Violation::new(path, line, "trailing whitespace"));
        }
        if without_tabs && content.contains('\t') {
            violations.push(Violation::new(path, line, "a tab; use spaces"));
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        violations.push(Violation::new(path, text.lines().count(), "the file must end in exactly one newline"));
    }
    violations
}

/// Rejects meaningless module names, of files and inline modules.
fn names(path: &str, text: &str) -> Vec<Violation> {
    let Some(module_path) = path.strip_suffix(".rs") else { return Vec::new() };
    let message = |name| format!("`{name}` is not a meaningful name; name the module after its purpose");
    let of_files = module_path.split('/').map(|name| (1, name));
    let inline = numbered(text).filter_map(|(line, content)| Some((line, inline_module(content)?)));
    let empty = of_files.chain(inline).filter(|(_, name)| MEANINGLESS_NAMES.contains(name));
    empty.map(|(line, name)| Violation::new(path, line, message(name))).collect()
}

/// Name of an inline module that starts on this line. Declarations of file modules, which end in `;`, do not count.
fn inline_module(line: &str) -> Option<&str> {
    let (declaration, _) = line.split_once('{')?;
    let mut words = declaration.split_whitespace().skip_while(|word| word.starts_with("pub"));
    (words.next()? == "mod").then(|| words.next())?
}

/// Checks crate dependencies against the table.
fn crate_dependencies(path: &str, manifest: &str) -> Vec<Violation> {
    let name = path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"));
    let Some(name) = name.filter(|name| !name.contains('/')) else { return Vec::new() };
    let unknown = |name: &str| {
        format!(
            "the crate `{name}` is unknown: add it to the table in xtask/src/tidy.rs and give its reason in docs/decisions"
        )
    };
    let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
        return vec![Violation::new(path, 1, unknown(name))];
    };
    let mut violations = Vec::new();
    for (line, dependency) in vyre_dependencies(manifest) {
        if allowed.contains(&dependency) {
            continue;
        }
        let known = CRATES.iter().any(|(known, _)| *known == dependency);
        let forbidden = || format!("`{name}` must not depend on `{dependency}`, see ARCHITECTURE.md");
        violations.push(Violation::new(path, line, if known { forbidden() } else { unknown(dependency) }));
    }
    violations
}

/// The crates of the workspace under `crates`, each after its dependencies.
pub(crate) fn crates() -> impl Iterator<Item = &'static str> {
    CRATES.iter().map(|(name, _)| *name)
}

pub(crate) fn is_published(manifest: &str) -> bool {
    !manifest.lines().any(|line| line == "publish = false")
}

/// Checks that a published crate has metadata, a README, licenses, and no development dependency that must be published
/// before.
fn package(path: &str, manifest: &str, files: &[File]) -> Vec<Violation> {
    let folder = path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"));
    let Some(folder) = folder.filter(|_| manifest.contains("[package]") && is_published(manifest)) else {
        return Vec::new();
    };
    let mut violations = Vec::new();
    for key in PACKAGE_KEYS {
        let has_key = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        if !manifest.lines().any(has_key) {
            violations.push(Violation::new(path, 1, format!("a published crate needs `{key}`")));
        }
    }
    for name in PACKAGE_FILES {
        let required = format!("crates/{folder}/{name}");
        if files.iter().all(|file| file.path != required) {
            violations.push(Violation::new(&required, 1, "a published crate needs this file"));
        }
    }
    let mut for_tests = false;
    for (line, content) in numbered(manifest) {
        if content.starts_with('[') {
            for_tests = content.trim_end().ends_with("dev-dependencies]");
        } else if for_tests
            && content.starts_with("vyre")
            && ["workspace", "version"].iter().any(|key| content.contains(key))
        {
            let message =
                "a path without a version, which cargo leaves out of the package, avoids cycles between packages";
            violations.push(Violation::new(path, line, message));
        }
    }
    violations
}

/// Dependencies on vyre crates in a manifest, with their lines, except for development dependencies.
fn vyre_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    /// Kind of table that a line belongs to.
    enum Table {
        /// Keys are names of dependencies.
        Dependencies,
        /// Keys describe one dependency.
        Dependency,
        Other,
    }
    // Target-specific tables have the same suffix.
    let lists_dependencies = |header: &str| {
        let last = header.rsplit('.').next().unwrap_or(header);
        matches!(last, "dependencies" | "build-dependencies")
    };

    let mut table = Table::Other;
    let mut names = Vec::new();
    for (line, content) in numbered(manifest) {
        let content = content.trim();
        if let Some(header) = content.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = match header.rsplit_once('.') {
                _ if lists_dependencies(header) => Table::Dependencies,
                Some((list, name)) if lists_dependencies(list) => {
                    names.push((line, unquoted(name)));
                    Table::Dependency
                }
                _ => Table::Other,
            };
            continue;
        }
        match table {
            Table::Dependencies => {
                names.extend(content.split(['=', '.']).next().map(|key| (line, unquoted(key))));
                names.extend(renamed_from(content).map(|name| (line, name)));
            }
            Table::Dependency => names.extend(renamed_from(content).map(|name| (line, name))),
            Table::Other => {}
        }
    }
    names.retain(|(_, name)| *name == "vyre" || name.starts_with("vyre-"));
    names
}

/// Name in `package = "name"` of a renamed dependency.
fn renamed_from(line: &str) -> Option<&str> {
    let value = line.split_once("package")?.1.trim_start().strip_prefix('=')?;
    value.split(['"', '\'']).nth(1)
}

fn unquoted(key: &str) -> &str {
    key.trim().trim_matches(['"', '\''])
}

/// Checks that links in Markdown files, and paths in code spans, are files or folders of the repository.
fn markdown_paths(path: &str, text: &str, files: &[File]) -> Vec<Violation> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let exists = |target: &str| {
        files.iter().any(|file| {
            file.path.strip_prefix(target).is_some_and(|rest| {
                // The file itself, a parent folder, or the root.
                rest.is_empty() || rest.starts_with('/') || target.is_empty()
            })
        })
    };
    let links = relative_links(text);
    let links = links.into_iter().filter(|(_, link)| !resolve(path, link).is_some_and(|target| exists(&target)));
    let named = named_paths(text).into_iter().filter(|(_, named)| !exists(named.trim_end_matches('/')));
    links
        .chain(named)
        .map(|(line, target)| Violation::new(path, line, format!("`{target}` is not a file of this repository")))
        .collect()
}

/// Code spans that are paths from the root, with their lines. Capitals, as in `crates/vyre-NAME`, are placeholders.
fn named_paths(markdown: &str) -> Vec<(usize, String)> {
    const FOLDERS: &[&str] = &["crates/", "docs/", "examples/", "tests/", "xtask/"];
    let is_path = |span: &&str| {
        FOLDERS.iter().any(|folder| span.starts_with(folder))
            && span.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte))
            && !span.contains("NAME")
    };
    let mut paths = Vec::new();
    let mut in_code = false;
    for (line, content) in numbered(markdown) {
        if content.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let spans = content.split('`').skip(1).step_by(2).filter(is_path);
            paths.extend(spans.map(|span| (line, span.to_owned())));
        }
    }
    paths
}

/// Checks that chapters of the book are in its table of contents, and that those with Rust code are tested as
/// documentation of the crate `vyre`.
fn chapters(files: &[File]) -> Vec<Violation> {
    let text_of = |path: &str| files.iter().find(|file| file.path == path).and_then(File::text).unwrap_or_default();
    let (contents, tested) = (text_of("docs/src/SUMMARY.md"), text_of("crates/vyre/src/lib.rs"));
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix("docs/src/").filter(|name| *name != "SUMMARY.md") else { continue };
        if !contents.contains(&format!("({name})")) {
            violations.push(Violation::new(&file.path, 1, "the chapter is not in SUMMARY.md"));
        }
        if file.text().is_some_and(|text| text.contains("```rust")) && !tested.contains(&format!("/{}\"", file.path)) {
            let message = "the chapter shows Rust, but is not included in crates/vyre/src/lib.rs";
            violations.push(Violation::new(&file.path, 1, message));
        }
    }
    violations
}

/// Checks that decision records are named `NNNN-title.md`, have distinct numbers, and are in the index.
fn decisions(files: &[File]) -> Vec<Violation> {
    const FOLDER: &str = "docs/decisions/";
    let index = files.iter().find(|file| file.path.strip_prefix(FOLDER) == Some("README.md"));
    let index = index.and_then(File::text).unwrap_or_default();
    let mut numbers = BTreeSet::new();
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix(FOLDER).filter(|name| *name != "README.md") else { continue };
        let number = name.split_once('-').map(|(number, _)| number);
        match number.filter(|number| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit())) {
            None => violations.push(Violation::new(&file.path, 1, "a record is named `NNNN-title.md`")),
            Some(number) if !numbers.insert(number) => {
                violations.push(Violation::new(&file.path, 1, format!("another record has the number {number}")));
            }
            Some(_) => {}
        }
        if !index.contains(&format!("({name})")) {
            violations.push(Violation::new(&file.path, 1, "the record is not in docs/decisions/README.md"));
        }
    }
    violations
}

/// Targets of relative links in a Markdown text, without fragments, with their lines. Ignores code, except for mdBook
/// includes in it.
fn relative_links(markdown: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    let mut in_code = false;
    for (line, content) in numbered(markdown) {
        if content.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if let Some((included, _)) = content.strip_prefix("{{#include ").and_then(|rest| rest.split_once("}}")) {
            links.push((line, included.to_owned()));
        }
        if in_code {
            continue;
        }
        let prose: String = content.split('`').step_by(2).collect();
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let definition = prose.strip_prefix('[').filter(|rest| !rest.starts_with('^'));
        let definition = definition.and_then(|rest| rest.split_once("]:")).map(|(_, target)| target);
        for target in inline.chain(definition) {
            // A title may follow the target.
            let target = target.split_whitespace().next().unwrap_or("").trim_matches(['<', '>']);
            let file = target.split('#').next().unwrap_or(target);
            let has_scheme = file.split('/').next().is_some_and(|start| start.contains(':'));
            if !file.is_empty() && !has_scheme {
                links.push((line, file.to_owned()));
            }
        }
    }
    links
}

/// Path of a link target, unless it is outside of the repository.
fn resolve(file: &str, link: &str) -> Option<String> {
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Lines with numbers. Unlike `str::lines`, keeps carriage returns.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a repository with the required files and `files`, and compares the violations.
    #[track_caller]
    fn reports(files: &[(&str, &str)], expected: &[&str]) {
        let required = REQUIRED_FILES.iter().map(|path| (*path, ""));
        let files = required.chain(files.iter().copied());
        let files: Vec<File> = files.map(|(path, text)| File { path: path.into(), bytes: text.into() }).collect();
        let found: Vec<String> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn missing_required_files_are_reported() {
        let missing: Vec<String> = check(&[]).into_iter().map(|violation| violation.path).collect();
        assert_eq!(missing.len(), REQUIRED_FILES.len());
        reports(&[], &[]);
    }

    #[test]
    fn large_files() {
        let mut large = "x".repeat(MAX_BYTES - 1) + "\n";
        reports(&[("a", &large)], &[]);
        large.insert(0, 'x');
        reports(&[("a", &large)], &["a:1: the file is larger than 1 MiB"]);
    }

    #[test]
    fn whitespace_in_text() {
        reports(&[("a.txt", "a\n\tb\n")], &[]);
        reports(&[("a.rs", "a\n\tb\n")], &["a.rs:2: a tab; use spaces"]);
        reports(&[("a", "a \nb\r\n")], &["a:1: trailing whitespace", "a:2: trailing whitespace"]);
        reports(&[("a", "a\nb")], &["a:2: the file must end in exactly one newline"]);
        reports(&[("a", "a\n\n")], &["a:2: the file must end in exactly one newline"]);
        reports(&[("binary", "\0 \n\n")], &[]);
    }

    #[test]
    fn meaningless_names() {
        let of_file = "`utils` is not a meaningful name; name the module after its purpose";
        reports(&[("crates/vyre-cpu/src/utils.rs", "")], &[&format!("crates/vyre-cpu/src/utils.rs:1: {of_file}")]);
        reports(&[("src/utils/mod.rs", "")], &[&format!("src/utils/mod.rs:1: {of_file}")]);
        reports(&[("src/a.rs", "\npub(crate) mod utils {}\n")], &[&format!("src/a.rs:2: {of_file}")]);
        reports(&[("src/my_utils.rs", "mod base_types {}\nlet utils = {};\n"), ("utils.md", "")], &[]);
    }

    #[test]
    fn dependencies_of_crates() {
        let manifest = "crates/vyre-cpu/Cargo.toml";
        let allowed = "[dependencies]\nvyre-driver.workspace = true\n[dev-dependencies]\nvyre-testkit = {}\n";
        reports(&[(manifest, allowed)], &[]);
        reports(
            &[(manifest, "[dependencies]\nvyre-runtime.workspace = true\nvyre-extra = \"1\"\n")],
            &[
                "crates/vyre-cpu/Cargo.toml:2: `vyre-cpu` must not depend on `vyre-runtime`, see ARCHITECTURE.md",
                "crates/vyre-cpu/Cargo.toml:3: the crate `vyre-extra` is unknown: add it to the table in \
                 xtask/src/tidy.rs and give its reason in docs/decisions",
            ],
        );
        reports(
            &[("crates/extra/Cargo.toml", "")],
            &["crates/extra/Cargo.toml:1: the crate `extra` is unknown: add it to the table in \
               xtask/src/tidy.rs and give its reason in docs/decisions"],
        );
    }

    #[test]
    fn crates_follow_their_dependencies() {
        for (position, (name, allowed)) in CRATES.iter().enumerate() {
            let before: Vec<&str> = crates().take(position).collect();
            assert!(allowed.iter().all(|dependency| before.contains(dependency)), "{name}");
        }
    }

    #[test]
    fn packages_of_crates() {
        let manifest = "crates/vyre-cpu/Cargo.toml";
        let keys: String = PACKAGE_KEYS.iter().map(|key| format!("{key} = 1\n")).collect();
        let complete = format!("[package]\n{keys}[dev-dependencies]\nvyre-testkit = {{ path = \"..\" }}\n");
        let beside = PACKAGE_FILES.iter().map(|name| (format!("crates/vyre-cpu/{name}"), "")).collect::<Vec<_>>();
        let beside: Vec<(&str, &str)> = beside.iter().map(|(path, text)| (&**path, *text)).collect();
        reports(&[&[(manifest, &*complete)], &*beside].concat(), &[]);
        reports(&[(manifest, "[package]\npublish = false\n")], &[]);
        let other = complete.replace("keywords = 1\n", "").replace("{ path = \"..\" }", "{ workspace = true }");
        reports(
            &[&[(manifest, &*other)], &beside[1..]].concat(),
            &[
                "crates/vyre-cpu/Cargo.toml:1: a published crate needs `keywords`",
                "crates/vyre-cpu/Cargo.toml:10: a path without a version, which cargo leaves out of the package, avoids \
                 cycles between packages",
                "crates/vyre-cpu/README.md:1: a published crate needs this file",
            ],
        );
    }

    #[test]
    fn dependencies_in_every_form() {
        let manifest = r#"
[package]
name = "vyre-none"
[dependencies]
vyre = { path = "../vyre" }
"vyre-a" = "1"
# vyre-none = "1"
renamed = { version = "1", package = "vyre-b" }
[dependencies.vyre-c]
path = "vyre-none"
[dependencies.renamed]
package = "vyre-d"
[target.'cfg(target_feature = "sse4.1")'.dependencies]
vyre-e.workspace = true
[build-dependencies]
vyre-f = "1"
[features]
vyre-none = []
"#;
        let names: Vec<&str> = vyre_dependencies(manifest).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["vyre", "vyre-a", "vyre-b", "vyre-c", "vyre-d", "vyre-e", "vyre-f"]);
    }

    #[test]
    fn links_to_files() {
        let text = "[a](b.md) [`code`](../x/y.rs#L3 \"title\")\n\n[up]: ..\n[root](../../)\n";
        reports(
            &[("docs/a.md", text), ("docs/b.md", "")],
            &[
                "docs/a.md:1: `../x/y.rs` is not a file of this repository",
                "docs/a.md:4: `../../` is not a file of this repository",
            ],
        );
        reports(&[("a.md", "[x](docs/) [x](docs/b.txt)\n"), ("docs/b.txt", "")], &[]);
        reports(&[("a.md", "[x](doc)\n"), ("docs/b.txt", "")], &["a.md:1: `doc` is not a file of this repository"]);
    }

    #[test]
    fn paths_in_code_spans() {
        let text = "`crates/a.rs` and `crates/b.rs`, in `crates/`\n`crates/vyre-NAME` `b.rs` `cargo test`\n```\n`docs/x`\n```\n";
        let missing = "a.md:1: `crates/b.rs` is not a file of this repository";
        reports(&[("a.md", text), ("crates/a.rs", "")], &[missing]);
    }

    #[test]
    fn chapters_of_the_book() {
        let contents = ("docs/src/SUMMARY.md", "[a](a.md)\n");
        let tested = ("crates/vyre/src/lib.rs", "include_str!(\"../../../docs/src/a.md\")\n");
        let chapter = "```rust\n{{#include ../../b.rs}}\n```\n";
        reports(&[contents, tested, ("docs/src/a.md", chapter), ("b.rs", "")], &[]);
        reports(
            &[("docs/src/SUMMARY.md", ""), ("docs/src/a.md", chapter)],
            &[
                "docs/src/a.md:1: the chapter is not in SUMMARY.md",
                "docs/src/a.md:1: the chapter shows Rust, but is not included in crates/vyre/src/lib.rs",
                "docs/src/a.md:2: `../../b.rs` is not a file of this repository",
            ],
        );
    }

    #[test]
    fn decision_records() {
        // The index of `reports` is empty.
        reports(
            &[("docs/decisions/0001-a.md", ""), ("docs/decisions/b.md", "")],
            &[
                "docs/decisions/0001-a.md:1: the record is not in docs/decisions/README.md",
                "docs/decisions/b.md:1: a record is named `NNNN-title.md`",
                "docs/decisions/b.md:1: the record is not in docs/decisions/README.md",
            ],
        );
        let file = |path: &str, text: &str| File { path: path.into(), bytes: text.into() };
        let index = file("docs/decisions/README.md", "[1](0001-a.md) [1](0001-b.md)\n");
        let files = [index, file("docs/decisions/0001-a.md", ""), file("docs/decisions/0001-b.md", "")];
        let found: Vec<String> = decisions(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/decisions/0001-b.md:1: another record has the number 0001"]);
    }

    #[test]
    fn subtree_lists_the_dependencies_of_a_package() {
        let tree = "0 vyre v1 default\n1 wgpu v30 std\n2 naga v30\n3 bitflags v2 std\n1 png v1\n0 vyre-cli v1\n1 wgpu v30 std\n2 log v1\n";
        let packages: Vec<String> = subtree(tree, "wgpu").unwrap().into_iter().collect();
        assert_eq!(packages, ["bitflags v2 std", "log v1", "naga v30"]);
        assert_eq!(subtree("", "wgpu"), None);
    }

    #[test]
    fn absolute_links_and_code_are_no_relative_links() {
        let text = "[x](https://example.com/a) [x](mailto:a@example.com) [x](#here) `[x](code)`\n```\n[x](code)\n```\n";
        assert_eq!(relative_links(text), []);
    }
}
