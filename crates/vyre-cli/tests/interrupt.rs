//! Ctrl-C in the middle: the exit code is 130, and nothing unfinished is left.
#![cfg(target_os = "linux")]

mod folder;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// Starts the command in a folder, in which its temporary files are as well.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).env("VYRE_DEVICE", "cpu").env("TMPDIR", folder);
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/interrupt"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command can be run")
}

/// Waits until something is the case.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// Whether a process hears of interruptions: its set of signals that are caught has the second bit.
fn listens(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(caught, 16).unwrap_or(0) & 2 != 0
}

fn interrupt(mut child: Child) -> ExitStatus {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is `kill`");
    assert!(killed.success());
    child.wait().expect("it ends")
}

#[test]
fn a_run_that_is_interrupted_writes_nothing() {
    let folder = folder::empty("interrupted_run");
    let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
    let child = start(&folder, &["run", &spin, "--out", "y=@y.npy"]);
    until(|| listens(&child));
    assert_eq!(interrupt(child).code(), Some(130));
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
}

#[test]
fn what_is_unfinished_is_removed() {
    let folder = folder::empty("interrupted_shrink");
    let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
    // The command runs until it is told to end.
    let command = "touch begun; while ! test -e end; do sleep 0.1; done #";
    let child = start(&folder, &["shrink", &spin, "--while", command]);
    let unfinished = folder.join(format!("vyre-shrink-{}", child.id()));
    until(|| folder.join("begun").exists());
    assert!(unfinished.join("spin.vyre").exists());
    assert_eq!(interrupt(child).code(), Some(130));
    assert!(!unfinished.exists());
    fs::write(folder.join("end"), "").expect("a file can be written");
}
