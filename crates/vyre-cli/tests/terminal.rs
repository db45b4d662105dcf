//! Control characters of files, prints and names are escaped on terminals, not in pipes.
#![cfg(unix)]

mod folder;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::pty::openpty;

/// Sequences that change title, colors or text direction of a terminal, as C0 and C1 controls.
const HOSTILE: [&str; 5] = ["\x1b]0;owned\x07", "\x1b[2J", "\x1b[31m", "\u{9b}31m", "\u{202e}"];
const ESCAPED: [&str; 5] = [r"\u001b]0;owned\u0007", r"\u001b[2J", r"\u001b[31m", r"\u009b31m", r"\u202e"];

fn vyre(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).env("VYRE_DEVICE", "reference");
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    command
}

/// Runs a command on a pseudoterminal, and returns its output.
fn on_terminal(folder: &Path, arguments: &[&str]) -> String {
    let pty = openpty(None, None).expect("there are terminals");
    let (mut master, slave) = (File::from(pty.master), File::from(pty.slave));
    let mut command = vyre(folder, arguments);
    let duplicate = slave.try_clone().expect("it can be duplicated");
    let mut child = command.stdout(duplicate).stderr(slave).spawn().expect("the command can be run");
    // The command holds the last slave descriptors, so reading ends with the process.
    drop(command);
    let mut bytes = Vec::new();
    // Linux reports a closed pseudoterminal as an error.
    let _ = master.read_to_end(&mut bytes);
    child.wait().expect("it ends");
    String::from_utf8(bytes).expect("text")
}

/// Writes files with all sequences in prints, names and errors.
fn hostile(folder: &Path) {
    let all = HOSTILE.concat();
    let print = format!("program p workgroup(1) launch(1) {{\n    print \"{all} {{}}\", 1\n}}\n");
    fs::write(folder.join("print.vyre"), print).expect("it can be written");
    fs::write(folder.join("wrong.vyre"), format!("program p workgroup(1) {{\n    foo {all} bar\n}}\n"))
        .expect("it can be written");
    fs::write(folder.join(format!("{all}.vyre")), "program p {").expect("it can be written");
    fs::write(folder.join("graph.el"), format!("0 1\n0 {all}\n")).expect("it can be written");
    fs::write(folder.join("vyre.toml"), "").expect("it can be written");
}

#[test]
fn control_characters_are_escaped_on_a_terminal() {
    let folder = folder::empty("terminal");
    hostile(&folder);
    let (all, escaped) = (HOSTILE.concat(), ESCAPED.concat());
    let named = format!("{all}.vyre");
    let cases: [&[&str]; 8] = [
        &["run", "print.vyre"],
        &["run", "print.vyre", "--json"],
        &["print", "print.vyre"],
        &["check", "wrong.vyre"],
        &["check", &named],
        &["check", &all],
        &["graph", "cc", "graph.el", "--symmetric"],
        &["run", "print.vyre", &format!("--{all}")],
    ];
    for arguments in cases {
        let shown = on_terminal(&folder, arguments);
        for sequence in HOSTILE {
            assert!(!shown.contains(sequence), "{arguments:?}: {shown:?}");
        }
        // clap strips sequences that start with ESC.
        assert!(shown.contains(&escaped) || shown.contains(r"\u009b31m\u202e"), "{arguments:?}: {shown:?}");
    }
    let toml: String = all.chars().map(|letter| format!("\\U{:08x}", u32::from(letter))).collect();
    fs::write(folder.join("vyre.toml"), format!("adapter = \"{toml}\"\n")).expect("it can be written");
    let shown = on_terminal(&folder, &["config"]);
    assert!(HOSTILE.iter().all(|sequence| !shown.contains(sequence)) && shown.contains(&escaped), "{shown:?}");
}

#[test]
fn pipes_receive_unescaped_bytes() {
    let folder = folder::empty("piped");
    hostile(&folder);
    let all = HOSTILE.concat();
    let output = vyre(&folder, &["run", "print.vyre"]).output().expect("the command can be run");
    assert_eq!(String::from_utf8(output.stdout).expect("text"), format!("[0] {all} 1\n"));
    let output = vyre(&folder, &["print", "print.vyre", "--wire"]).output().expect("the command can be run");
    assert!(
        output.stdout.starts_with(b"VYRE") && output.stdout.windows(all.len()).any(|bytes| bytes == all.as_bytes())
    );
    let output = vyre(&folder, &["check", "wrong.vyre"]).output().expect("the command can be run");
    assert!(String::from_utf8(output.stderr).expect("text").contains(HOSTILE[0]));
}
