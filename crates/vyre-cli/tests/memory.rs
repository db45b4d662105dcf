//! Failed allocations end the command with an error and an exit code, never with a signal.
#![cfg(target_os = "linux")]

mod folder;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command with limited address space.
fn limited(folder: &Path, mebibytes: u32, arguments: &[&str]) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v $0 && exec \"$@\"", &(mebibytes << 10).to_string(), env!("CARGO_BIN_EXE_vyre")]);
    shell.args(arguments).current_dir(folder).env("XDG_CACHE_HOME", folder.join("cache")).env("VYRE_THREADS", "2");
    shell.output().expect("there is a shell")
}

#[test]
fn failed_allocations_are_errors() {
    let folder = folder::empty("memory");
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file can be written");
    write("copy.vyre", "program p workgroup(1) launch(1) {\n    read x: [u32]\n    read_write y: [u32]\n}\n");
    write("output.vyre", "program p workgroup(1) launch(1) {\n    write y: [u32; 400000000]\n}\n");
    write(
        "pipeline.vyre",
        "program p workgroup(1) {\n    read_write y: [u32]\n}\npipeline q {\n    inout y: [u32; 400000000]\n    run p elements(1) y = y\n}\n",
    );
    File::create(folder.join("sparse.bin")).and_then(|file| file.set_len(1 << 31)).expect("a file without contents");
    symlink("/dev/zero", folder.join("endless.bin")).expect("a link");
    let many = "store y[0], 1\n".repeat(2_000_000);
    write("many.vyre", &format!("program p workgroup(1) launch(1) {{\nwrite y: [u32; 1]\n{many}}}\n"));

    let small = "y=zeros:1";
    let cases: [&[&str]; 14] = [
        &["run", "copy.vyre", small, "x=zeros:400000000"],
        &["run", "copy.vyre", small, "x=iota:400000000"],
        &["run", "copy.vyre", small, "x=random:400000000:1"],
        &["run", "copy.vyre", small, "x=zeros:18446744073709551615"],
        // The host has enough memory for these, the device has not.
        &["run", "copy.vyre", small, "x=zeros:100000000", "--device", "cpu"],
        &["run", "copy.vyre", small, "x=zeros:100000000", "--device", "reference"],
        &["run", "copy.vyre", "x=zeros:1", "y=zeros:60000000", "--compare-devices", "cpu,reference"],
        &["run", "copy.vyre", small, "x=@sparse.bin"],
        &["run", "copy.vyre", small, "x=@endless.bin"],
        &["run", "copy.vyre", "x=zeros:1", small, "--expect", "y=@endless.bin"],
        &["run", "copy.vyre", "x=zeros:1", "y=zeros:20000000", "--device", "cpu", "--json", "--out", "y=-"],
        &["run", "output.vyre"],
        &["run", "pipeline.vyre", "--program", "q", small],
        &["check", "many.vyre"],
    ];
    for arguments in cases {
        let output = limited(&folder, 640, arguments);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("error[") && stderr.contains("= help: "), "{arguments:?}: {stderr}");
    }
}
