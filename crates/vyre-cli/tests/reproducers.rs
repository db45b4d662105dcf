//! Reproducers: internal errors leave a file and the command that replays it.

mod folder;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let _ = fs::create_dir(folder.join("tmp"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).env("TMPDIR", folder.join("tmp")).env("VYRE_DEVICE", "reference");
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/reproducers"));
    command
}

/// Runs a command that fails with exit code 1, and its replay. Returns standard error and the reproducer.
fn replayed(folder: &Path, arguments: &[&str]) -> (String, String) {
    let _ = fs::remove_dir_all(folder.join("tmp"));
    fs::create_dir(folder.join("tmp")).expect("a folder");
    let said = |arguments: &[&str]| {
        let output = command(folder, arguments).output().expect("the command can be run");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        stderr
    };
    let first = said(arguments);
    let (_, replay) = first.rsplit_once("  = replay: vyre ").unwrap_or_else(|| panic!("{first}"));
    let again = said(&replay.split_whitespace().collect::<Vec<_>>());
    // Both runs have left reproducers with equal contents.
    let mut files: Vec<_> =
        fs::read_dir(folder.join("tmp")).expect("a folder").map(|file| file.unwrap().path()).collect();
    files.sort_by_key(|file| !replay.contains(&file.display().to_string()));
    let [file, other] = files.as_slice() else { panic!("{files:?}") };
    let text = fs::read_to_string(file).expect("text");
    assert!(text.starts_with(&format!("// vyre {replay}")), "{text}");
    let renamed = |text: &str| text.replace(&other.display().to_string(), &file.display().to_string());
    assert_eq!(first, renamed(&again.replace(&format!("{}:", file.display()), "")));
    assert_eq!(text, renamed(&fs::read_to_string(other).expect("text")));
    (first, text)
}

#[test]
fn differences_between_devices_leave_a_reproducer() {
    let folder = folder::empty("disagree");
    let lanes = format!("{}/tests/kernels/lanes.vyre", env!("CARGO_MANIFEST_DIR"));
    fs::write(folder.join("x.bin"), 1.0f32.to_le_bytes()).expect("a file can be written");
    let arguments = [
        "run",
        &lanes,
        "x=@x.bin",
        "--subgroup-size=4",
        "--compare-devices=reference,cpu",
        "--rtol=0.5",
        "--timeout=9",
    ];
    let (said, file) = replayed(&folder, &arguments);
    assert!(
        said.starts_with("error[C037]: the results on cpu differ from those on reference: 32 of 32 elements"),
        "{said}"
    );
    assert!(said.contains("y[0] is ") && said.contains(", expected 4\n"), "{said}");
    assert!(said.contains(" --timeout 9 --rtol 0.5"), "{said}");
    assert!(file.contains("\n// x: [f32; 1], blake3 ") && file.contains("\n// passes: "), "{file}");
    assert!(file.contains(&format!("x=@{}", folder.join("x.bin").display())), "{file}");

    fs::write(folder.join("x.bin"), 2.0f32.to_le_bytes()).expect("a file can be written");
    let (_, replay) = said.rsplit_once("  = replay: vyre ").expect("it is named");
    let output = command(&folder, &replay.split_whitespace().collect::<Vec<_>>()).output().expect("it can be run");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        output.status.code() == Some(2)
            && said.contains("error[C044]: the data bound to `x` differ from the data that"),
        "{said}"
    );

    let output =
        command(&folder, &arguments).env("TMPDIR", folder.join("none")).output().expect("the command can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let reason = format!("\n  = no file to replay it: cannot write `{}", folder.join("none").display());
    assert!(said.contains(&reason), "{said}");
}

/// Replaces a shell that has created a link by the command; the name of the link may contain the process id.
#[cfg(unix)]
fn behind_a_link(folder: &Path, link: &str, arguments: &[&str]) -> std::process::Output {
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("ln -s \"$PWD/victim\" {link} && exec {} {}", env!("CARGO_BIN_EXE_vyre"), words.join(" "));
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).current_dir(folder).env("TMPDIR", folder.join("tmp")).env("VYRE_DEVICE", "reference");
    shell.env("XDG_CACHE_HOME", folder.join("cache")).output().expect("there is a shell")
}

#[cfg(unix)]
#[test]
fn files_are_never_written_through_links() {
    let folder = folder::empty("links");
    fs::create_dir(folder.join("tmp")).expect("a folder");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    let wrong = ["run", &saxpy, "a=2", "x=1", "y=1", "--elements", "1", "--expect", "y=0"];

    // A link at the path of a predictable reproducer.
    fs::write(folder.join("victim"), "precious").expect("it can be written");
    assert_eq!(command(&folder, &wrong).output().expect("it can be run").status.code(), Some(1));
    let files = || fs::read_dir(folder.join("tmp")).expect("a folder").map(|file| file.unwrap().path());
    let file = files().next().expect("a reproducer");
    fs::remove_file(&file).expect("it is there");
    let output = behind_a_link(&folder, &file.display().to_string(), &wrong);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read(folder.join("victim")).expect("it is there"), b"precious");
    assert_eq!(files().count(), 2, "the link, and a new file");

    // A link at the path of a predictable temporary file.
    let output = behind_a_link(&folder, "out.vyre.$$.tmp", &["print", &saxpy, "--out", "out.vyre"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(folder.join("victim")).expect("it is there"), b"precious");
    assert!(fs::symlink_metadata(folder.join("out.vyre")).expect("it is there").is_file());

    // A link at the path of a predictable folder of `vyre shrink`.
    fs::remove_file(folder.join("victim")).expect("it is there");
    fs::create_dir(folder.join("victim")).expect("a folder");
    let shrink = ["shrink", &saxpy, "--while", "pwd > \"$(dirname {})/said\"", "--out", "small.vyre"];
    let output = behind_a_link(&folder, "tmp/vyre-shrink-$$", &shrink);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_dir(folder.join("victim")).expect("a folder").count(), 0);
}

/// Sends a signal to a running command. Returns the replay command and the reproducer.
#[cfg(target_os = "linux")]
fn crashed(folder: &Path, arguments: &[&str], signal: &str) -> (String, String) {
    let _ = fs::remove_dir_all(folder.join("tmp"));
    let child = command(folder, arguments).stderr(Stdio::piped()).spawn().expect("the command can be run");
    // The handler of SIGFPE, signal 8, is installed last.
    let is_armed = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("what is caught").trim();
        u64::from_str_radix(caught, 16).expect("bits") & (1 << 7) != 0
    };
    while !is_armed() {
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("there is `kill`");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(70), "{said}");
    assert!(said.starts_with(&format!("error[C041]: the command crashed with SIG{signal}\n")), "{said}");
    let (_, replay) = said.trim_end().rsplit_once("  = replay: ").unwrap_or_else(|| panic!("{said}"));
    let mut files = fs::read_dir(folder.join("tmp")).expect("a folder").map(|file| file.unwrap().path());
    let text = fs::read_to_string(files.next().expect("a file")).expect("text");
    let head = format!("// {replay}\n// error[C041]: the command crashed with SIG{signal}\n");
    assert!(text.starts_with(&head) && files.next().is_none(), "{text}");
    (replay.into(), text)
}

/// The kernel never ends. The signals are those raised by faulty machine code.
#[cfg(target_os = "linux")]
#[test]
fn crashes() {
    let folder = folder::empty("crashes");
    let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
    for signal in ["SEGV", "BUS", "ILL", "FPE", "ABRT"] {
        let (replay, text) = crashed(&folder, &["run", &spin, "--device", "cpu"], signal);
        assert!(replay.ends_with(".vyre --replay --device cpu") && text.contains("\n//@ run --grid "), "{text}");
    }
    let demo = ["megakernel", "demo", "--items", "1000000", "--device", "cpu"];
    let (replay, text) = crashed(&folder, &demo, "SEGV");
    assert_eq!(replay, "vyre megakernel demo --items 1000000 --seed 1 --device cpu");
    assert!(text.contains("\n// device cpu: ") && text.contains("\nprogram scale "), "{text}");
    assert!(text.contains("\n// passes of scale: "), "{text}");

    let (replay, text) = crashed(&folder, &["check", "--run", &spin], "ABRT");
    assert!(replay.starts_with("vyre check --run ") && replay.ends_with(".vyre --replay"), "{replay}");
    assert!(text.contains("\n//@ run --grid "), "{text}");

    // A large program, so that writing the page takes a while.
    let made = command(&folder, &["generate", "--seed", "3", "--size", "100000", "--out", "large.vyre"]).status();
    assert!(made.expect("the command can be run").success());
    let (replay, text) = crashed(&folder, &["explain", "large.vyre", "--html", "page.html"], "ABRT");
    assert!(replay.starts_with("vyre explain ") && replay.contains(" --profile release --html "), "{replay}");
    assert!(text.contains("\n// passes: ") && !folder.join("page.html").exists(), "{replay}");
}

/// The reproducer of a pipeline lists the passes of its launches.
#[test]
fn pipelines() {
    let folder = folder::empty("unexpected_pipeline");
    let soften = format!("{}/../../examples/pipelines/soften.vyre", env!("CARGO_MANIFEST_DIR"));
    let (said, file) =
        replayed(&folder, &["run", &soften, "x=zeros:256", "--expect", "y=zeros:256", "--device", "cpu"]);
    assert!(said.contains("256 of 256 elements of `y` differ"), "{said}");
    assert!(file.contains("\n// passes of affine_square: ") && file.contains("\n// passes of mean: "), "{file}");
}

#[test]
fn unexpected_results_leave_a_reproducer() {
    let folder = folder::empty("unexpected");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    let arguments =
        ["run", &saxpy, "a=2", "x=iota:4", "y=zeros:4", "--elements", "4", "--expect", "y=0,2,4.5,6", "--atol", "0.25"];
    let (said, _) = replayed(&folder, &arguments);
    assert!(said.contains("1 of 4 elements of `y` differ\n  |   y[2] is 4.0, expected 4.5\n"), "{said}");
}
