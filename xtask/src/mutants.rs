//! `cargo xtask mutants`: whether the tests notice mistakes. The bugs of `vyre_foundation::planted` are switched on one at a
//! time, the tests that should notice are run until one fails, and a table says which. The tests are those that `cargo test`
//! runs, built once with the feature `planted-bugs`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::test::{GPU_CRATE, cargo};
use crate::{json_string, root, target_dir};

/// Tests of a package: all that a test target has, or one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Check {
    package: &'static str,
    target: &'static str,
    test: Option<&'static str>,
}

const fn all(package: &'static str, target: &'static str) -> Check {
    Check { package, target, test: None }
}

const fn one(package: &'static str, target: &'static str, test: &'static str) -> Check {
    Check { package, target, test: Some(test) }
}

/// The tests that should notice a bug, by the place that it is in: the quick ones first.
const CHECKS: &[(&str, &[Check])] = &[
    ("Evaluators", &[all("vyre-foundation", "op_vectors")]),
    (
        "Validator",
        &[
            all("vyre-foundation", "faults"),
            all("vyre-testkit", "files"),
            all("vyre-foundation", "build"),
            all("vyre-testkit", "generated"),
        ],
    ),
    (
        "Uniformity",
        &[
            all("vyre-testkit", "files"),
            one("vyre-cpu", "conformance", "portable::operations"),
            one("vyre-cpu", "conformance", "portable::generated_programs"),
        ],
    ),
    ("Text", &[all("vyre-foundation", "text"), all("vyre-testkit", "files"), all("vyre-testkit", "generated")]),
    (
        "Wire",
        &[
            one("vyre-testkit", "wire", "every_header_mistake_is_named"),
            one("vyre-testkit", "wire", "changed_bytes_are_an_error_or_another_canonical_module"),
            one("vyre-testkit", "wire", "what_is_encoded_decodes_as_the_same_module"),
        ],
    ),
    (
        "Optimizer",
        &[all("vyre-testkit", "files"), one("vyre-testkit", "optimizer", "every_pass_alone_keeps_the_meaning")],
    ),
    (
        "Oracle",
        &[
            all("vyre-testkit", "files"),
            one("vyre-cpu", "conformance", "portable::operations"),
            one("vyre-cpu", "conformance", "portable::generated_programs"),
        ],
    ),
    (
        "Cpu",
        &[
            one("vyre-cpu", "conformance", "portable::file_tests"),
            one("vyre-cpu", "conformance", "portable::example_kernels"),
            one("vyre-cpu", "conformance", "portable::canaries"),
            one("vyre-cpu", "conformance", "portable::operations"),
            one("vyre-cpu", "conformance", "portable::generated_programs"),
            one("vyre-cpu", "conformance", "portable::large_grids"),
            one("vyre-cpu", "conformance", "portable::indirect_grids"),
            one("vyre-cpu", "conformance", "portable::parts_of_buffers"),
            one("vyre-cpu", "conformance", "portable::endless_programs"),
        ],
    ),
    (
        X86,
        &[
            one("vyre-cpu", "conformance", "avx2::file_tests"),
            one("vyre-cpu", "conformance", "avx2::example_kernels"),
            one("vyre-cpu", "conformance", "avx2::operations"),
            one("vyre-cpu", "conformance", "avx2::canaries"),
            one("vyre-cpu", "conformance", "avx2::generated_programs"),
        ],
    ),
    (
        GPU,
        &[
            one("vyre-wgpu", "conformance", "file_tests"),
            one("vyre-wgpu", "conformance", "example_kernels"),
            one("vyre-wgpu", "conformance", "canaries"),
            one("vyre-wgpu", "conformance", "parts_of_buffers"),
            one("vyre-wgpu", "large", "every_access_finds_its_binding"),
            one("vyre-wgpu", "conformance", "large_grids"),
            one("vyre-wgpu", "conformance", "endless_programs"),
            one("vyre-wgpu", "conformance", "indirect_grids"),
            one("vyre-wgpu", "conformance", "operations"),
            one("vyre-wgpu", "conformance", "generated_programs"),
            all("vyre-wgpu", "device"),
        ],
    ),
];

/// The place of the bugs that only a GPU shows.
const GPU: &str = "Wgpu";

/// The place of the bugs that only such a processor shows.
const X86: &str = "X86";

/// How many bugs there must be, and how many of a hundred must be noticed.
const BUGS: usize = 40;
const PERCENT: usize = 90;

/// Time limit of a check without a bug.
const SOUND_LIMIT: Duration = Duration::from_secs(1800);

/// Time limit of a check with a bug, past which the bug counts as noticed. It follows from the time that the same check took
/// without one, so that a busy machine does not turn slow checks into hangs.
fn time_limit(sound: Duration) -> Duration {
    Duration::from_secs(60) + 10 * sound
}

/// What the tests are told: few programs, always the same, and no time is spent on making them small.
const ENVIRONMENT: &[(&str, &str)] =
    &[("VYRE_SEED", "0"), ("VYRE_SHRINK", "0"), ("PROPTEST_MAX_SHRINK_ITERS", "0"), ("PROPTEST_RNG_SEED", "0")];

/// How many generated programs are run. A GPU driver takes its time to compile them.
fn programs(package: &str) -> &'static str {
    if package == "vyre-wgpu" { "100" } else { "1000" }
}

/// A planted bug.
struct Bug {
    name: String,
    place: String,
    doc: String,
}

/// Runs the tests with each bug, or with those that are named, and prints the table. Says whether enough were noticed.
pub(crate) fn run(names: &[&str], gpu: bool) -> bool {
    let Some(programs) = build(gpu) else { return false };
    let Some(mut bugs) = table(&programs) else { return false };
    if let Some(unknown) = names.iter().find(|name| bugs.iter().all(|bug| bug.name != **name)) {
        eprintln!("error: there is no bug `{unknown}`; the table is in crates/vyre-foundation/src/planted.rs");
        return false;
    }
    let testable = |bug: &Bug| match bug.place.as_str() {
        GPU => gpu,
        X86 => cfg!(target_arch = "x86_64"),
        _ => true,
    };
    bugs.retain(|bug| testable(bug) && (names.is_empty() || names.contains(&bug.name.as_str())));

    // Without a bug everything passes, or the table means nothing.
    let mut sound: Vec<Check> = bugs.iter().flat_map(|bug| checks(&bug.place)).copied().collect();
    sound.sort();
    sound.dedup();
    let outcomes = in_parallel(&sound, |check| {
        let start = Instant::now();
        (noticed(&programs, check, "", SOUND_LIMIT), start.elapsed())
    });
    if let Some(failure) = outcomes.iter().find_map(|(failure, _)| failure.as_ref()) {
        eprintln!("error: without any bug, this fails: {failure}");
        return false;
    }
    let limits: BTreeMap<Check, Duration> =
        sound.into_iter().zip(outcomes).map(|(check, (_, time))| (check, time_limit(time))).collect();

    let caught = in_parallel(&bugs, |bug| {
        checks(&bug.place).iter().find_map(|check| noticed(&programs, check, &bug.name, limits[check]))
    });
    let name_width = bugs.iter().map(|bug| bug.name.len()).max().unwrap_or(0);
    let caught_width = caught.iter().flatten().map(String::len).max().unwrap_or(0);
    println!("{:<name_width$}  {:<10}  {:<caught_width$}  what goes wrong", "bug", "place", "noticed by");
    for (bug, caught) in bugs.iter().zip(&caught) {
        let caught = caught.as_deref().unwrap_or("MISSED");
        println!("{:<name_width$}  {:<10}  {caught:<caught_width$}  {}", bug.name, bug.place, bug.doc);
    }
    let count = caught.iter().flatten().count();
    println!("\n{count} of {} bugs are noticed", bugs.len());
    let enough = count * 100 >= bugs.len() * PERCENT && (!names.is_empty() || bugs.len() >= BUGS);
    if !enough {
        eprintln!(
            "error: at least {PERCENT} % of at least {BUGS} bugs must be noticed; add tests for those that are missed"
        );
    }
    enough
}

fn checks(place: &str) -> &'static [Check] {
    CHECKS.iter().find(|(known, _)| *known == place).map_or(&[], |(_, checks)| checks)
}

/// The programs that were built, by package and target.
type Programs = BTreeMap<(String, String), PathBuf>;

fn build(gpu: bool) -> Option<Programs> {
    let mut command = cargo("test");
    command.args(["--no-run", "--locked", "--features", "vyre-foundation/planted-bugs", "--message-format", "json"]);
    // The whole workspace, as for the tests: with fewer packages, other features of third parties would be built anew.
    command.arg("--workspace");
    if !gpu {
        command.args(["--exclude", GPU_CRATE]);
    }
    let output = command.stderr(Stdio::inherit()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let program = |message: &str| {
        let manifest = PathBuf::from(json_string(message, "manifest_path")?);
        let package = manifest.parent()?.file_name()?.to_str()?.to_owned();
        Some(((package, json_string(message, "name")?), PathBuf::from(json_string(message, "executable")?)))
    };
    Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect())
}

/// The bugs, as the example `planted` of the foundation lists them.
fn table(programs: &Programs) -> Option<Vec<Bug>> {
    let list = programs.get(&("vyre-foundation".into(), "planted".into()))?;
    let output = Command::new(list).output().ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let bug = |line: &str| {
        let mut columns = line.split('\t').map(str::to_owned);
        Some(Bug { name: columns.next()?, place: columns.next()?, doc: columns.next()? })
    };
    listed.lines().map(bug).collect()
}

/// Runs tests with a bug and a time limit. Returns the name of the test that failed, if one did; the output is kept under
/// `mutants` in the target folder.
fn noticed(programs: &Programs, check: &Check, bug: &str, limit: Duration) -> Option<String> {
    let name = match check.test {
        Some(test) => format!("{} {}::{test}", check.package, check.target),
        None => format!("{} {}", check.package, check.target),
    };
    let Some(program) = programs.get(&(check.package.into(), check.target.into())) else {
        return Some(format!("{name} was not built"));
    };
    let folder = target_dir().join("mutants");
    let log = folder.join(if bug.is_empty() { name.replace([' ', ':'], "-") } else { bug.to_owned() } + ".log");
    let opened = std::fs::create_dir_all(&folder).and_then(|()| File::create(&log));
    let (Ok(out), Ok(errors)) = (opened.as_ref().map_or(Err(()), |file| file.try_clone().map_err(|_| ())), opened)
    else {
        return Some(format!("{} cannot be written", log.display()));
    };
    let mut command = Command::new(program);
    command.current_dir(root().join("crates").join(check.package)).envs(ENVIRONMENT.iter().copied());
    command
        .env("VYRE_PLANTED", bug)
        .env("VYRE_PROGRAMS", self::programs(check.package))
        .env_remove("UPDATE")
        .stdout(out)
        .stderr(errors);
    command.args(check.test.map(|test| ["--exact", test]).into_iter().flatten());
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
    if status.success() {
        return None;
    }
    let said = std::fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let seed = said.split_once("VYRE_SEED=").and_then(|(_, rest)| rest.split_once(' ')).map(|(seed, _)| seed);
    Some(match (check.test, failed, seed) {
        (_, None, _) => format!("{name}, which crashes"),
        (None, Some(test), _) => format!("{name}::{test}"),
        (Some(_), Some(_), Some(seed)) => format!("{name}, program {seed}"),
        (Some(_), Some(_), None) => name,
    })
}

/// Does something to every element, on all cores; the results are in the order of the elements.
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
