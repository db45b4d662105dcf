//! The cache folder is used only while it is private, and entries only for their own program.
#![cfg(unix)]

mod folder;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn vyre(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).env("VYRE_CACHE", "cache").env("VYRE_DEVICE", "cpu");
    command.output().expect("the command can be run")
}

/// Runs a program, and returns its result and standard error.
fn run(folder: &Path, file: &str) -> (String, String) {
    let output = vyre(folder, &["run", file, "--out", "y=-"]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{stderr}");
    (stdout.trim().into(), stderr)
}

/// A folder with two programs that differ in a constant.
fn programs(name: &str) -> PathBuf {
    let folder = folder::empty(name);
    for (name, [x, y]) in [("a", [20, 22]), ("b", [600, 66])] {
        let program = format!(
            "program pay workgroup(1) launch(1) {{\n    write y: [u32; 1]\n    %a = add {x}, {y}\n    store y[0], %a\n}}\n"
        );
        fs::write(folder.join(name).with_extension("vyre"), program).expect("a file can be written");
    }
    folder
}

/// The only cached program.
fn entry(cache: &Path) -> PathBuf {
    let files: Vec<_> =
        fs::read_dir(cache.join("programs")).expect("a folder").map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    file.clone()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn cache_entries_of_other_programs_are_refused() {
    let folder = programs("poisoned");
    assert_eq!(run(&folder, "b.vyre"), ("666".into(), String::new()));
    let cache = folder.join("cache");
    assert_eq!((mode(&cache), mode(&cache.join("programs"))), (0o700, 0o700));
    let theirs = fs::read(entry(&cache)).expect("an entry");
    fs::remove_dir_all(&cache).expect("it is there");
    assert_eq!(run(&folder, "a.vyre").0, "42");
    let file = entry(&cache);
    let ours = fs::read(&file).expect("an entry");
    // The whole other entry, and our header with its body, each with a valid checksum.
    let mut spliced = [&ours[..40], &theirs[40..theirs.len() - 32]].concat();
    spliced.extend(blake3::hash(&spliced).as_bytes());
    for poisoned in [theirs, spliced] {
        fs::write(&file, poisoned).expect("it can be written");
        let output = vyre(&folder, &["cache", "verify", "--kind", "programs"]);
        assert_eq!(output.status.code(), Some(1));
        let (result, warning) = run(&folder, "a.vyre");
        assert_eq!(result, "42");
        assert!(warning.starts_with("warning[D014]: ") && warning.contains("made of another program"), "{warning}");
        assert_eq!(run(&folder, "a.vyre"), ("42".into(), String::new()));
    }
}

#[test]
fn shared_cache_folders_are_refused_with_one_warning() {
    let folder = programs("public");
    let cache = folder.join("cache");
    let refused = |reason: &str, help: &str| {
        for arguments in
            [&["run", "a.vyre", "--out", "y=-"][..], &["devices"], &["graph", "cc", "urand:4", "--symmetric"]]
        {
            let output = vyre(&folder, arguments);
            let stderr = String::from_utf8(output.stderr).expect("text");
            assert!(output.status.success(), "{arguments:?}: {stderr}");
            assert_eq!(stderr.matches("warning[D050]").count(), 1, "{arguments:?}: {stderr}");
            assert!(stderr.contains(reason) && stderr.contains(help), "{stderr}");
        }
        // `vyre cache` does not touch the folder either.
        for verb in ["list", "clear", "verify"] {
            let output = vyre(&folder, &["cache", verb]);
            let stderr = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(stderr.starts_with("error[D050]") && stderr.contains(reason), "{stderr}");
        }
        let output = vyre(&folder, &["doctor"]);
        assert!(String::from_utf8(output.stdout).expect("text").contains(reason));
    };
    fs::create_dir(&cache).expect("a folder");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("it is ours");
    refused("other users can write to it: its mode is 0777", "chmod 700 cache");
    assert_eq!(fs::read_dir(&cache).expect("a folder").count(), 0, "nothing is written to it");
    fs::remove_dir(&cache).expect("it is empty");

    let elsewhere = folder.join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    symlink(&elsewhere, &cache).expect("a link");
    refused("it is a symbolic link", "name a folder of your own with VYRE_CACHE");
    assert_eq!(fs::read_dir(&elsewhere).expect("a folder").count(), 0, "nothing is written through it");
}

#[test]
fn clearing_keeps_foreign_files() {
    let folder = programs("foreign_files");
    run(&folder, "a.vyre");
    let foreign = folder.join("cache/programs/notes.txt");
    fs::write(&foreign, "mine").expect("it can be written");
    assert!(vyre(&folder, &["cache", "clear"]).status.success());
    assert_eq!(fs::read_dir(folder.join("cache/programs")).expect("a folder").count(), 1);
    assert_eq!(fs::read(foreign).expect("it is there"), b"mine");
}

#[test]
fn concurrent_clearing_is_not_damage() {
    let folder = programs("cleared_meanwhile");
    run(&folder, "a.vyre");
    let file = entry(&folder.join("cache"));
    let bytes = fs::read(&file).expect("an entry");
    std::thread::scope(|scope| {
        // An entry that is created and deleted repeatedly, always complete.
        let writer = scope.spawn(|| {
            for _ in 0..2000 {
                fs::write(file.with_extension("tmp"), &bytes).expect("it can be written");
                fs::rename(file.with_extension("tmp"), &file).expect("it can be renamed");
                fs::remove_file(&file).expect("it can be deleted");
            }
        });
        while !writer.is_finished() {
            let output = vyre(&folder, &["cache", "verify", "--json"]);
            let stdout = String::from_utf8(output.stdout).expect("text");
            assert_eq!(output.status.code(), Some(0), "{stdout}");
            assert!(stdout.contains("\"damaged\":0"), "{stdout}");
        }
    });
}
