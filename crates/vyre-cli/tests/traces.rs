//! Traces of `--trace`: nested phases of host threads, and device work on tracks of workers.

mod folder;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// Runs a command with `--trace`, and returns the event names of host and device.
fn traced(folder: &Path, arguments: &[&str], device: &str, code: i32) -> [Vec<String>; 2] {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).args(["--device", device, "--trace", "trace.json"]);
    command.env("XDG_CACHE_HOME", folder.join("cache")).env_remove("VYRE_DEVICE");
    let output = command.output().expect("the command can be run");
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read(folder.join("trace.json")).expect("a trace");
    let trace: Value = serde_json::from_slice(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");

    let named = |pid: u64, what: &str| {
        let of = |event: &&Value| event["pid"] == pid && event["name"] == what;
        events.iter().filter(of).map(|event| event["args"]["name"].as_str().expect("a name")).collect::<Vec<_>>()
    };
    assert_eq!((named(1, "process_name"), named(2, "process_name")), (vec!["host"], vec!["device"]));
    assert!(named(1, "thread_name").contains(&"main"));
    assert!(named(2, "thread_name").iter().all(|name| name.starts_with("worker ")));

    // Events of a track are disjoint or nested.
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut names = [Vec::new(), Vec::new()];
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |name: &str| event[name].as_u64().expect("a number");
        let (from, time) = (event["ts"].as_f64().expect("a time"), event["dur"].as_f64().expect("a time"));
        tracks.entry((number("pid"), number("tid"))).or_default().push((from, from + time));
        names[number("pid") as usize - 1].push(event["name"].as_str().expect("a name").to_owned());
    }
    // Device work lies between the first submission and the end of the last wait.
    let called = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    let start = |event: &Value| event["ts"].as_f64().expect("a time");
    let first = called("submit").map(start).fold(f64::MAX, f64::min);
    let last = called("wait").map(|event| start(event) + event["dur"].as_f64().expect("a time")).fold(0.0, f64::max);
    for (from, until) in tracks.iter().filter(|((pid, _), _)| *pid == 2).flat_map(|(_, spans)| spans) {
        assert!(first <= from + 1e-3 && *until <= last + 1e-3, "{from} to {until} is not in {first} to {last}");
    }
    for ((pid, tid), mut spans) in tracks {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (from, until) in spans {
            // Times are rounded to microseconds.
            while open.last().is_some_and(|end| *end <= from + 1e-3) {
                open.pop();
            }
            assert!(
                open.last().is_none_or(|end| until <= end + 1e-3),
                "on track {pid} {tid}, {from} to {until}: {open:?}"
            );
            assert!(pid == 1 || open.is_empty(), "a worker does one thing at a time");
            open.push(until);
        }
    }
    names
}

fn has(names: &[String], expected: &[&str]) {
    for name in expected {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
    }
}

#[test]
fn traces_have_host_phases_and_device_work() {
    let folder = folder::empty("traces");
    let saxpy = format!("{EXAMPLES}/kernels/saxpy.vyre");
    let run = ["run", &saxpy, "a=2", "x=iota:100000", "y=iota:100000", "--elements", "100000"];
    let [host, device] = traced(&folder, &run, "cpu", 0);
    has(&host, &["parse", "validate", "compile saxpy", "optimize saxpy", "pass simplify", "lower saxpy"]);
    has(&host, &["upload", "submit", "wait", "download"]);
    has(&device, &["saxpy"]);

    let soften = format!("{EXAMPLES}/pipelines/soften.vyre");
    let [host, device] = traced(&folder, &["run", &soften, "x=iota:256"], "cpu", 0);
    has(&host, &["plan soften", "compile affine_square", "submit", "wait"]);
    has(&device, &["affine_square", "mean"]);

    // Devices that report durations only.
    let [_, device] = traced(&folder, &["run", &soften, "x=iota:256"], "reference", 0);
    assert_eq!(device, ["affine_square", "mean"]);

    let [host, device] = traced(&folder, &["graph", "bfs", "kron:12", "--source", "9", "--no-cache"], "cpu", 0);
    has(&host, &["open cpu", "generate edges", "build graph", "step SparseFrontier", "submit", "wait"]);
    has(&device, &["bfs_sparse"]);

    let [host, device] = traced(&folder, &["megakernel", "demo", "--items", "5000"], "cpu", 0);
    has(&host, &["slice", "plan", "submit", "wait"]);
    assert!(!device.is_empty());
}

/// A failed command writes its trace.
#[test]
fn failed_commands_write_their_trace() {
    let folder = folder::empty("failed-traces");
    let trap = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/trap.vyre");
    let [host, _] = traced(&folder, &["run", trap, "x=iota:200", "y=zeros:200", "--elements", "200"], "cpu", 1);
    has(&host, &["parse", "submit", "wait"]);
}
