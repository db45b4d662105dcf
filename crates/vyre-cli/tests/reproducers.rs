//! What should not happen leaves a file and the command that shows it again.

mod folder;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn vyre(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).env("TMPDIR", folder.join("tmp")).env("VYRE_DEVICE", "reference");
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/reproducers"));
    command.output().expect("the command can be run")
}

/// What is said by a command that fails with exit code 1, and by the command that it names.
fn replayed(folder: &Path, arguments: &[&str]) -> (String, String) {
    let _ = fs::remove_dir_all(folder.join("tmp"));
    fs::create_dir(folder.join("tmp")).expect("a folder");
    let said = |arguments: &[&str]| {
        let output = vyre(folder, arguments);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        stderr
    };
    let first = said(arguments);
    let (_, replay) = first.rsplit_once("  = replay: vyre ").unwrap_or_else(|| panic!("{first}"));
    let again = said(&replay.split_whitespace().collect::<Vec<_>>());
    let files: Vec<_> = fs::read_dir(folder.join("tmp")).expect("a folder").map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert!(replay.contains(&file.display().to_string()), "{replay}");
    let text = fs::read_to_string(file).expect("text");
    assert!(text.starts_with(&format!("// vyre {replay}")), "{text}");
    assert_eq!(first, again.replace(&format!("{}:", file.display()), ""));
    (first, text)
}

#[test]
fn devices_that_disagree() {
    let folder = folder::empty("disagree");
    let lanes = format!("{}/tests/kernels/lanes.vyre", env!("CARGO_MANIFEST_DIR"));
    fs::write(folder.join("x.bin"), 1.0f32.to_le_bytes()).expect("a file can be written");
    let arguments =
        ["run", &lanes, "x=@x.bin", "--subgroup-size", "4", "--compare-devices", "reference,cpu", "--rtol", "0.5"];
    let (said, file) = replayed(&folder, &arguments);
    assert!(
        said.starts_with("error[C037]: the results on cpu are not those on reference: 32 of 32 elements"),
        "{said}"
    );
    assert!(said.contains("y[0] is ") && said.contains(", should be 4\n"), "{said}");
    assert!(said.contains(" --rtol 0.5"), "{said}");
    assert!(file.contains("\n// x: [f32; 1], blake3 ") && file.contains("\n// passes: "), "{file}");
    assert!(file.contains(&format!("x=@{}", folder.join("x.bin").display())), "{file}");
}

#[test]
fn results_that_are_not_as_expected() {
    let folder = folder::empty("unexpected");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    let arguments =
        ["run", &saxpy, "a=2", "x=iota:4", "y=zeros:4", "--elements", "4", "--expect", "y=0,2,4.5,6", "--atol", "0.25"];
    let (said, _) = replayed(&folder, &arguments);
    assert!(said.contains("1 of 4 elements of `y` differ\n  |   y[2] is 4.0, should be 4.5\n"), "{said}");
}
