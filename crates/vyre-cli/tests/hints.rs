//! Hints: recorded times of dispatches that affect later processes.

mod folder;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A kernel that takes far longer than 100 µs, the threshold of hot programs, on any machine.
const BUSY: &str = include_str!("programs/busy.vyre");

/// A folder with the kernel and an empty cache.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = folder::empty(name);
        fs::write(path.join("busy.vyre"), BUSY).expect("a file can be written");
        Folder(path)
    }

    fn hints(&self) -> PathBuf {
        self.0.join("cache/vyre/hints")
    }

    /// Cached optimized programs.
    fn programs(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.0.join("cache/vyre/programs")).into_iter().flatten();
        listed.map(|entry| entry.expect("a file").path()).collect()
    }

    fn vyre(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
        command.current_dir(&self.0).args(arguments);
        command.env("XDG_CACHE_HOME", self.0.join("cache")).env_remove("VYRE_DEVICE");
        command.output().expect("the command can be run")
    }

    /// Runs the kernel, and returns standard error.
    fn run(&self) -> String {
        let output = self.vyre(&["run", "busy.vyre", "--device", "cpu"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        stderr
    }

    fn explain(&self) -> Value {
        let output = self.vyre(&["explain", "busy.vyre", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }
}

fn passes<'v>(explained: &'v Value, reason: &str) -> Vec<&'v str> {
    let passes = explained["passes"].as_array().expect("a list").iter();
    let passes = passes.filter(|pass| pass["reason"] == reason);
    passes.map(|pass| pass["pass"].as_str().expect("a name")).collect()
}

#[test]
fn hints_of_a_hot_program_select_all_passes_in_the_next_process() {
    let folder = Folder::new("hot");
    let cold = folder.explain();
    assert_eq!((&cold["telemetry"]["hot"], &cold["telemetry"]["record"]), (&Value::Bool(false), &Value::Null));
    assert!(!folder.hints().exists(), "explaining records nothing");
    assert!(!passes(&cold, "BelowThreshold").is_empty());
    assert_eq!(passes(&cold, "HotPathTelemetry"), [""; 0]);

    assert_eq!(folder.run(), "");
    let hot = folder.explain();
    assert_eq!(hot["telemetry"]["hot"], true);
    assert_eq!(hot["telemetry"]["record"]["dispatches"], 1);
    assert_eq!(passes(&hot, "BelowThreshold"), [""; 0]);
    let selected = passes(&hot, "HotPathTelemetry");
    for pass in passes(&cold, "BelowThreshold") {
        assert!(selected.contains(&pass), "{pass}");
    }

    assert_eq!(folder.run(), "");
    assert_eq!(folder.explain()["telemetry"]["record"]["dispatches"], 2);
}

#[test]
fn damaged_hints_are_a_warning_once() {
    let folder = Folder::new("damaged");
    folder.run();
    let good = fs::read(folder.hints()).expect("the run was recorded");
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 0x10;
    for bad in [&good[..good.len() - 1], &good[..5], &flipped, b"", b"not hints at all"] {
        fs::write(folder.hints(), bad).expect("a file can be written");
        let warning = folder.run();
        assert!(warning.starts_with("warning[D013]: ") && warning.contains("\n  = help: "), "{warning}");
        assert_eq!(warning.matches("D013").count(), 1);
        // The run has replaced the file.
        assert_eq!(folder.run(), "");
        assert_eq!(folder.explain()["telemetry"]["record"]["dispatches"], 2);
    }
}

#[test]
fn unwritable_hints_are_a_warning() {
    let folder = Folder::new("unwritable");
    fs::write(folder.0.join("cache"), "a file where a folder should be").expect("a file can be written");
    let output = folder.vyre(&["run", "busy.vyre", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0));
    fs::remove_file(folder.0.join("cache")).expect("a file of ours");
    fs::create_dir_all(folder.hints()).expect("a folder where a file should be");
    assert!(folder.run().starts_with("warning[D013]: "));
    assert_eq!(folder.explain()["telemetry"]["record"], Value::Null);
}

#[test]
fn reported_pipelines_are_accepted_by_passes_flag() {
    let folder = Folder::new("pasted");
    let optimize = |arguments: &[&str]| -> Value {
        let output = folder.vyre(&[&["opt", "busy.vyre", "--json"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    };
    let selected = optimize(&["--disable", "value_numbering"]);
    let pipeline = selected["pipeline"].as_str().expect("text");
    assert!(pipeline.starts_with("fixpoint(") && !pipeline.contains("value_numbering"), "{pipeline}");
    let pasted = optimize(&["--passes", pipeline]);
    for key in ["text", "pipeline", "changes", "refusals", "after", "cost_after", "rounds"] {
        assert_eq!(pasted[key], selected[key], "{key}");
    }
    // The optimized program is valid and has the same results.
    fs::write(folder.0.join("optimized.vyre"), pasted["text"].as_str().expect("text")).expect("a file can be written");
    let result = |file: &str| folder.vyre(&["run", file, "--device", "cpu", "--out", "y=-"]).stdout;
    assert!(result("busy.vyre") == result("optimized.vyre"));

    // `--bisect` limits the number of changes.
    let changes = selected["changes"].as_array().expect("a list").len();
    for most in 0..=changes {
        let stopped = optimize(&["--passes", pipeline, "--bisect", &most.to_string()]);
        assert_eq!(stopped["changes"].as_array().map(Vec::len), Some(most));
    }
}

/// A kernel that traps after a loop, or runs out of fuel in the loop.
const TRAP: &str = include_str!("programs/trap.vyre");

#[test]
fn cached_programs_report_the_same_locations_as_fresh_ones() {
    let folder = Folder::new("same");
    let said = |arguments: &[&str]| {
        // Hints of earlier runs are deleted.
        let _ = fs::remove_file(folder.hints());
        let output = folder.vyre(&[&["run", "trap.vyre", "--device", "cpu"], arguments].concat());
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    // A different margin changes the source locations.
    for (margin, line, loop_line) in [("", 18, 4), ("// a comment\n\n", 20, 6)] {
        fs::write(folder.0.join("trap.vyre"), format!("{margin}{TRAP}")).expect("a file can be written");
        let kept = folder.programs().len();
        let (cold, cold_fuel) = (said(&[]), said(&["--fuel", "5"]));
        assert_eq!(folder.programs().len(), kept + 1, "fuel does not matter for the program");
        assert_eq!((said(&[]), said(&["--fuel", "5"])), (cold.clone(), cold_fuel.clone()));
        assert_eq!(folder.programs().len(), kept + 1);
        assert!(cold.2.contains(&format!("trap.vyre:{line}:")), "{}", cold.2);
        assert!(cold_fuel.2.contains(&format!("trap.vyre:{loop_line}:")), "{}", cold_fuel.2);
    }
}

#[test]
fn damaged_programs_are_a_warning_once() {
    let folder = Folder::new("damaged_programs");
    assert_eq!((folder.run(), folder.run(), folder.run()), Default::default());
    let kept = folder.programs();
    for file in &kept {
        let good = fs::read(file).expect("a file");
        fs::write(file, &good[..good.len() / 2]).expect("a file can be written");
    }
    let warning = folder.run();
    assert!(warning.starts_with("warning[D014]: ") && warning.contains("\n  = help: "), "{warning}");
    assert_eq!(warning.matches("D014").count(), 1);
    assert_eq!((folder.run(), folder.programs().len()), (String::new(), kept.len()));
}
