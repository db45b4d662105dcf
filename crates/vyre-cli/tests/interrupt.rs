//! Interruption by Ctrl-C or SIGTERM: exit codes 130 and 143, and no unfinished files.
#![cfg(target_os = "linux")]

mod folder;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

/// Signals and their exit codes.
const SIGNALS: [(&str, i32); 2] = [("INT", 130), ("TERM", 143)];

/// Starts the command in a folder that is also its temporary folder.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    command(folder, arguments).stdout(Stdio::null()).spawn().expect("the command can be run")
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).env("VYRE_DEVICE", "cpu").env("TMPDIR", folder);
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/interrupt"));
    command.stderr(Stdio::null());
    command
}

/// Waits until a condition holds.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// Returns whether a process has installed its handlers: SIGINT, the second bit of its caught signals, is the last.
fn listens(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(caught, 16).unwrap_or(0) & 2 != 0
}

fn interrupt(mut child: Child, signal: &str) -> ExitStatus {
    let killed = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("there is `kill`");
    assert!(killed.success());
    child.wait().expect("it ends")
}

#[test]
fn interrupted_runs_write_nothing() {
    let folder = folder::empty("interrupted_run");
    let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
    for (signal, code) in SIGNALS {
        let child = start(&folder, &["run", &spin, "--out", "y=@y.npy"]);
        until(|| listens(&child));
        assert_eq!(interrupt(child, signal).code(), Some(code));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
    }
}

#[test]
fn interruption_removes_unfinished_files() {
    for (signal, code) in SIGNALS {
        let folder = folder::empty(&format!("interrupted_shrink_{signal}"));
        let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
        // The command of `--while` runs until the file `end` exists.
        let command = "touch begun; while ! test -e end; do sleep 0.1; done #";
        let child = start(&folder, &["shrink", &spin, "--while", command]);
        until(|| folder.join("begun").exists());
        let mut listed = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let unfinished = listed.find(|path| path.join("spin.vyre").exists()).expect("a folder with a candidate");
        assert_eq!(interrupt(child, signal).code(), Some(code));
        assert!(!unfinished.exists());
        fs::write(folder.join("end"), "").expect("a file can be written");
    }
}

/// JSON is printed per refresh also without a terminal.
#[test]
fn top_prints_a_json_line_per_refresh() {
    let folder = folder::empty("interrupted_top");
    let mut child = command(&folder, &["megakernel", "top", "--json"]).stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for line in lines.by_ref().take(2) {
        let seen: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        assert_eq!(seen["tenants"].as_array().map(Vec::len), Some(3));
    }
    assert_eq!(interrupt(child, "TERM").code(), Some(143));
    drop(lines);
}

/// As in `vyre megakernel top --json | head -1`.
#[test]
fn top_ends_when_its_pipe_is_closed() {
    let folder = folder::empty("unwatched_top");
    let mut child = command(&folder, &["megakernel", "top", "--json"]).stdout(Stdio::piped()).spawn().expect("a child");
    let line = BufReader::new(child.stdout.take().expect("a pipe")).lines().next();
    assert!(matches!(line, Some(Ok(_))), "{line:?}");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
