//! `cargo xtask mutants`: mutation testing with a fixed table of mutants. All mutants of `tests/mutants` are inserted
//! into one copy of the source, which is built once. Each mutant is then selected by an environment variable, and the
//! tests of its area are run until one fails. All mutants must be detected.

mod copy;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::test::{GPU_CRATE, cargo};
use crate::tidy::{self, read_files};
use crate::{build_dir, json_string, target_dir};
use copy::{Files, Location, TREE};
use table::{Area, Check, Mutant, Requirement};

/// Selection of mutants.
#[derive(Default)]
pub(crate) struct Options {
    /// Names of the mutants to run; all of them if there is none.
    names: Vec<String>,
    /// Prints the mutants instead of running them.
    list: bool,
    /// Leaves out the mutants that need a Vulkan driver.
    no_gpu: bool,
}

impl Options {
    /// Selects all mutants that can be run with or without a GPU.
    pub(crate) fn all(no_gpu: bool) -> Options {
        Options { no_gpu, ..Options::default() }
    }

    /// Parses the arguments behind `cargo xtask mutants`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        for &argument in arguments {
            match argument {
                "--list" => options.list = true,
                "--no-gpu" => options.no_gpu = true,
                option if option.starts_with('-') => return Err(format!("`{option}` is not an option of mutants")),
                name => options.names.push(name.into()),
            }
        }
        Ok(options)
    }

    fn selects(&self, mutant: &Mutant) -> bool {
        self.names.is_empty() || self.names.contains(&mutant.name)
    }

    /// The first requirement of an area that is not met.
    fn missing<'a>(&self, area: &'a Area) -> Option<&'a Requirement> {
        area.requirements.iter().find(|requirement| match requirement {
            Requirement::Gpu => self.no_gpu,
            Requirement::Architecture(name) => name != std::env::consts::ARCH,
        })
    }
}

/// Time limit of a check without a mutant.
const SOUND_LIMIT: Duration = Duration::from_secs(1800);

/// Time limit of a check with a mutant, past which the mutant counts as detected. Relative to the time of the same
/// check without one, so that a busy machine does not turn slow checks into hangs.
fn time_limit(sound: Duration) -> Duration {
    Duration::from_secs(60) + 10 * sound
}

/// Settings of the tests: a fixed seed, and no shrinking of failing programs.
const ENVIRONMENT: &[(&str, &str)] =
    &[("VYRE_SEED", "0"), ("VYRE_SHRINK", "0"), ("PROPTEST_MAX_SHRINK_ITERS", "0"), ("PROPTEST_RNG_SEED", "0")];

/// Number of generated programs. GPU drivers are slow to compile them.
fn programs(package: &str) -> &'static str {
    if package == GPU_CRATE { "100" } else { "1000" }
}

/// Folder of the source copy with the mutants, its logs and build caches.
fn folder() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| target_dir().join("mutants"));
    &FOLDER
}

/// Runs the tests with each selected mutant, and prints which test detects which. Returns true if all are detected.
pub(crate) fn run(options: &Options) -> bool {
    let errors = all_detected(options).err().unwrap_or_default();
    errors.iter().for_each(|error| eprintln!("error: {error}"));
    errors.is_empty()
}

fn all_detected(options: &Options) -> Result<(), Vec<String>> {
    let source = contents(read_files().map_err(|error| vec![error])?);
    let areas = areas(&source)?;
    let known: Vec<(&Area, &Mutant)> =
        areas.iter().flat_map(|area| area.mutants.iter().map(move |mutant| (area, mutant))).collect();
    if let Some(unknown) = options.names.iter().find(|name| known.iter().all(|(_, mutant)| mutant.name != **name)) {
        return Err(vec![format!("there is no mutant `{unknown}`; `cargo xtask mutants --list` prints all")]);
    }
    let mut selected = known.clone();
    selected.retain(|(_, mutant)| options.selects(mutant));
    if options.list {
        let lines = selected.iter().map(|(area, mutant)| [&mutant.name, &area.name, &mutant.summary]);
        print_table(&lines.map(|line| line.map(String::as_str)).collect::<Vec<_>>());
        return Ok(());
    }
    for area in &areas {
        let count = selected.iter().filter(|(of, _)| of.name == area.name).count();
        if let Some(missing) = options.missing(area).filter(|_| count > 0) {
            println!("not run: {count} of area `{}`, which requires {missing}", area.name);
        }
    }
    selected.retain(|(area, _)| options.missing(area).is_none());
    if selected.is_empty() {
        return Err(vec!["there is no mutant to run".into()]);
    }
    let checks: BTreeSet<&Check> = selected.iter().flat_map(|(area, _)| &area.checks).collect();
    let checks: Vec<&Check> = checks.into_iter().collect();

    let mutants: Vec<&Mutant> = known.iter().map(|(_, mutant)| *mutant).collect();
    let (files, locations) = copy::mutate(source, &mutants)?;
    copy::write(folder(), &copy::as_workspace(files)).map_err(|error| vec![error])?;
    let programs = build(&checks, options.no_gpu, &locations)?;

    // Failures with a mutant are meaningful only if all checks pass without one.
    let outcomes = in_parallel(&checks, |check| {
        let start = Instant::now();
        (detected(&programs, check, "", SOUND_LIMIT), start.elapsed())
    });
    if let Some(failure) = outcomes.iter().find_map(|(failure, _)| failure.as_ref()) {
        return Err(vec![format!("without any mutant, this fails: {failure}")]);
    }
    let limits: BTreeMap<&Check, Duration> =
        checks.into_iter().zip(outcomes).map(|(check, (_, time))| (check, time_limit(time))).collect();

    let caught = in_parallel(&selected, |(area, mutant)| {
        area.checks.iter().find_map(|check| detected(&programs, check, &mutant.name, limits[check]))
    });
    let mut lines = vec![["mutant", "area", "detected by", "wrong behaviour"]];
    lines.extend(selected.iter().zip(&caught).map(|((area, mutant), caught)| {
        let caught = caught.as_deref().unwrap_or("MISSED");
        [mutant.name.as_str(), area.name.as_str(), caught, mutant.summary.as_str()]
    }));
    print_table(&lines);
    let count = caught.iter().flatten().count();
    println!("\n{count} of {} mutants are detected", selected.len());
    let missed = selected.iter().zip(&caught).filter(|(_, caught)| caught.is_none());
    let missed: Vec<String> = missed
        .map(|((area, mutant), _)| {
            format!("no test of area `{}` detects `{}`: add one that does", area.name, mutant.name)
        })
        .collect();
    if missed.is_empty() { Ok(()) } else { Err(missed) }
}

/// Errors in the table of mutants, and mutants that do not match the source.
pub(crate) fn table_errors(files: Vec<tidy::File>) -> Vec<String> {
    let source = contents(files);
    let fits = areas(&source).and_then(|areas| {
        let mutants: Vec<&Mutant> = areas.iter().flat_map(|area| &area.mutants).collect();
        copy::mutate(source, &mutants)
    });
    fits.err().unwrap_or_default()
}

fn contents(files: Vec<tidy::File>) -> Files {
    files.into_iter().map(|file| (file.path.into(), file.bytes)).collect()
}

/// The mutants of all files `tests/mutants/*.mutants`.
fn areas(source: &Files) -> Result<Vec<Area>, Vec<String>> {
    let files = source.iter().filter(|(path, _)| {
        path.starts_with("tests/mutants") && path.extension().is_some_and(|extension| extension == "mutants")
    });
    let (mut areas, mut errors) = (Vec::new(), Vec::new());
    for (path, bytes) in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match table::parse(&name, &String::from_utf8_lossy(bytes)) {
            Ok(area) => areas.push(area),
            Err(error) => errors.push(format!("tests/mutants/{error}")),
        }
    }
    let mut names = BTreeSet::new();
    let mutants = areas.iter().flat_map(|area| &area.mutants);
    errors.extend(mutants.filter(|m| !names.insert(&m.name)).map(|m| format!("there are two mutants `{}`", m.name)));
    if errors.is_empty() { Ok(areas) } else { Err(errors) }
}

/// Prints columns as wide as their widest entries.
fn print_table<const N: usize>(lines: &[[&str; N]]) {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for line in lines {
        let padded: Vec<String> = line.iter().zip(widths).map(|(entry, width)| format!("{entry:<width$}")).collect();
        println!("{}", padded.join("  ").trim_end());
    }
}

/// Test executables, by package and target.
type Programs = BTreeMap<(String, String), PathBuf>;

/// Builds the test targets of the checks in the copy.
///
/// The build folder is that of the source, so that dependencies are not built again; executables without a hash in their name, such as
/// `debug/vyre`, go to a folder of their own. A cargo older than 1.91 has no build folder, and builds the dependencies once more.
fn build(checks: &[&Check], no_gpu: bool, locations: &[Location]) -> Result<Programs, Vec<String>> {
    let mut command = cargo("test");
    command.current_dir(folder()).env("CARGO_TARGET_DIR", folder().join("target"));
    command.env("CARGO_BUILD_BUILD_DIR", build_dir());
    command.args(["--no-run", "--locked", "--message-format", "json-render-diagnostics"]);
    // The whole workspace, as in the tests: a subset of packages would resolve other features and rebuild dependencies.
    command.arg("--workspace");
    if no_gpu {
        command.args(["--exclude", GPU_CRATE]);
    }
    let targets: BTreeSet<&str> = checks.iter().map(|check| check.target.as_str()).collect();
    command.args(targets.iter().flat_map(|target| ["--test", target]));
    // Messages go to a file, so that the pipe of diagnostics is the only one to be read.
    let messages = folder().join("messages.json");
    let failed = |error: std::io::Error| vec![format!("cannot build the copy: {error}")];
    command.stdout(File::create(&messages).map_err(failed)?).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut broken = BTreeSet::new();
    for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).lines().map_while(Result::ok))
    {
        broken.extend(mutant_at(&line, locations));
        eprintln!("{line}");
    }
    if !child.wait().map_err(failed)?.success() {
        let mut errors =
            vec![format!("the copy of the source with all mutants, {}, does not build", folder().display())];
        errors.extend(broken.iter().map(|mutant| format!("the compiler points at mutant `{mutant}`")));
        return Err(errors);
    }
    let program = |message: &str| {
        let manifest = PathBuf::from(json_string(message, "manifest_path")?);
        let package = manifest.parent()?.file_name()?.to_str()?.to_owned();
        Some(((package, json_string(message, "name")?), PathBuf::from(json_string(message, "executable")?)))
    };
    let messages = std::fs::read_to_string(&messages).map_err(failed)?;
    Ok(messages.lines().filter_map(program).collect())
}

/// The mutant at the location `--> FILE:LINE:COLUMN` of a compiler's message.
fn mutant_at<'a>(line: &str, locations: &'a [Location]) -> Option<&'a str> {
    let mut place = line.trim_start().strip_prefix("--> ")?.rsplit(':').skip(1);
    let (line, file) = (place.next()?.parse().ok()?, place.next()?);
    let found = locations.iter().find(|location| location.file == Path::new(file) && location.lines.contains(&line));
    found.map(|location| location.mutant.as_str())
}

/// Runs tests with a mutant, or without one if its name is empty, and a time limit. Returns the name of the test that failed, if one
/// did; the output is kept in the folder `logs`.
fn detected(programs: &Programs, check: &Check, mutant: &str, limit: Duration) -> Option<String> {
    let name = check.to_string();
    let Some(program) = programs.get(&(check.package.clone(), check.target.clone())) else {
        return Some(format!("{name} was not built"));
    };
    let logs = folder().join("logs");
    let log = logs.join(if mutant.is_empty() { name.replace([' ', ':'], "-") } else { mutant.to_owned() } + ".log");
    let opened = std::fs::create_dir_all(&logs).and_then(|()| File::create(&log));
    let (Ok(out), Ok(errors)) = (opened.as_ref().map_or(Err(()), |file| file.try_clone().map_err(|_| ())), opened)
    else {
        return Some(format!("{} cannot be written", log.display()));
    };
    let mut command = Command::new(program);
    command.current_dir(folder().join(TREE).join("crates").join(&check.package)).envs(ENVIRONMENT.iter().copied());
    command
        .env("VYRE_MUTANT", mutant)
        // Separate caches: programs optimized with another mutant may differ.
        .env("VYRE_CACHE", folder().join("caches").join(if mutant.is_empty() { "none" } else { mutant }))
        .env("VYRE_PROGRAMS", self::programs(&check.package))
        .env_remove("UPDATE")
        .stdout(out)
        .stderr(errors);
    command.args(check.test.as_deref().map(|test| ["--exact", test]).into_iter().flatten());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Some(format!("{name} cannot be run: {error}")),
    };
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(status)) => break status,
            Ok(None) | Err(_) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Some(format!("{name}, which hangs"));
            }
        }
    };
    let said = std::fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    if status.success() {
        // A renamed test is no failure of the executable.
        return (mutant.is_empty() && said.contains("running 0 tests"))
            .then(|| format!("{name}, which has no such test"));
    }
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let seed = said.split_once("VYRE_SEED=").and_then(|(_, rest)| rest.split_once(' ')).map(|(seed, _)| seed);
    Some(match (&check.test, failed, seed) {
        (_, None, _) => format!("{name}, which crashes"),
        (None, Some(test), _) => format!("{name}::{test}"),
        (Some(_), Some(_), Some(seed)) => format!("{name}, program {seed}"),
        (Some(_), Some(_), None) => name,
    })
}

/// Parallel map over all cores, with results in order.
fn in_parallel<T: Sync, R: Send>(elements: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let position = next.fetch_add(1, Relaxed);
                    let Some(element) = elements.get(position) else { break };
                    let result = work(element);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((position, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(position, _)| *position);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_compiler_lead_to_mutants() {
        let location =
            |lines, mutant: &str| Location { file: "tree/crates/a/src/b.rs".into(), lines, mutant: mutant.into() };
        let locations = [location(3..5, "A"), location(9..10, "B")];
        assert_eq!(mutant_at("  --> tree/crates/a/src/b.rs:4:17", &locations), Some("A"));
        assert_eq!(mutant_at(" --> tree/crates/a/src/b.rs:9:1", &locations), Some("B"));
        assert_eq!(mutant_at(" --> tree/crates/a/src/b.rs:5:1", &locations), None);
        assert_eq!(mutant_at(" --> tree/crates/a/src/c.rs:4:1", &locations), None);
        assert_eq!(mutant_at("error: 4", &locations), None);
    }
}
