//! Settings: which of a flag, a variable and a file decides, and what is said about those that are wrong.

mod folder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the command in a folder, with these variables and no others of its own.
fn vyre(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments);
    for name in ["DEVICE", "ADAPTER", "CACHE", "THREADS", "ISA", "FUEL", "TIMEOUT"] {
        command.env_remove(format!("VYRE_{name}"));
    }
    command.env("XDG_CACHE_HOME", folder.join("cache")).envs(variables.iter().copied());
    command.output().expect("the command can be run")
}

/// A folder with a `vyre.toml`.
fn configured(name: &str, text: &str) -> PathBuf {
    let folder = folder::empty(name);
    fs::write(folder.join("vyre.toml"), text).expect("a file can be written");
    folder
}

/// The value and the origin of a setting.
fn setting(folder: &Path, variables: &[(&str, &str)], name: &str) -> (Value, Option<String>) {
    let output = vyre(folder, variables, &["config", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let setting = &object["settings"][name];
    (setting["value"].clone(), setting["origin"].as_str().map(Into::into))
}

/// A file of settings that is not text is a mistake in the settings, not in a program.
#[test]
fn a_file_that_is_not_text_is_a_settings_error() {
    let folder = folder::empty("settings_bytes");
    let file = folder.join("vyre.toml");
    let said = || {
        let output = vyre(&folder, &[], &["devices"]);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    fs::write(&file, b"fuel = 7\ndevice = \"\xff\"\n").expect("a file can be written");
    let stderr = said();
    assert!(stderr.starts_with("error[C035]: ") && stderr.contains("byte 19 is not UTF-8\n"), "{stderr}");
    assert!(stderr.contains(&format!("  --> {}:2:11\n", file.display())), "{stderr}");
    // Not even the beginning of a binary program makes it one.
    fs::write(&file, b"VYRE\0\0\0\0\xff").expect("a file can be written");
    assert!(said().starts_with("error[C035]: "));
    fs::write(&file, vec![b' '; (1 << 20) + 1]).expect("a file can be written");
    assert!(said().contains("is larger than 1048576 bytes"));
    fs::remove_file(&file).expect("it is there");
    fs::create_dir(&file).expect("a folder");
    assert!(said().contains("is not a regular file"));
}

#[test]
fn precedence_is_flag_variable_file_default() {
    let folder = configured("settings_order", "# mine\ndevice = \"reference\"\nfuel = 1_000\ntimeout = 2.5\n");
    let inner = folder.join("inner");
    fs::create_dir(&inner).expect("a folder");
    let origin = |line: u32| Some(format!("{}:{line}", folder.join("vyre.toml").display()));
    for place in [&folder, &inner] {
        assert_eq!(setting(place, &[], "device"), ("reference".into(), origin(2)));
        assert_eq!(setting(place, &[], "fuel"), (1000.into(), origin(3)));
        assert_eq!(setting(place, &[], "timeout"), (2.5.into(), origin(4)));
        let variable = [("VYRE_DEVICE", "cpu")];
        assert_eq!(setting(place, &variable, "device"), ("cpu".into(), Some("VYRE_DEVICE".into())));
        assert_eq!(setting(place, &[("VYRE_DEVICE", "")], "device").1, origin(2));
        assert_eq!(setting(place, &[], "adapter"), (Value::Null, None));
    }
    let spin = format!("{}/tests/kernels/spin.vyre", env!("CARGO_MANIFEST_DIR"));
    let said = |variables: &[(&str, &str)], more: &[&str]| {
        let output = vyre(&inner, variables, &[&["run", &spin, "--json"], more].concat());
        assert_eq!(output.status.code(), Some(5));
        let object: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let error: Value = serde_json::from_slice(&output.stderr).expect("one JSON object");
        let message = error["errors"][0]["message"].as_str().expect("text").to_owned();
        (object["device"].as_str().expect("text").to_owned(), message)
    };
    let fuel = |trips: u32| format!("the kernel ran out of fuel after {trips} loop trips");
    assert_eq!(said(&[], &[]), ("reference".into(), fuel(1000)));
    assert_eq!(said(&[("VYRE_FUEL", "2000")], &["--device", "cpu"]), ("cpu".into(), fuel(2000)));
    assert_eq!(said(&[("VYRE_FUEL", "2000")], &["--fuel", "3000"]), ("reference".into(), fuel(3000)));
}

#[test]
fn cache_paths_are_relative_to_the_settings_file() {
    let folder = configured("settings_cache", "cache = \"kept\"\ndevice = \"cpu\"\nthreads = 1\n");
    let inner = folder.join("inner");
    fs::create_dir(&inner).expect("a folder");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    let output = vyre(&inner, &[], &["run", &saxpy, "a=1", "x=1", "y=1", "--elements", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(folder.join("kept/programs").is_dir() && !folder.join("cache").exists());

    // The cache is listed, verified and cleared.
    let cache = |arguments: &[&str]| {
        let output = vyre(&inner, &[], &[&["cache"], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert!(cache(&["list"]).1.contains("programs"));
    let (code, said) = cache(&["verify", "--kind", "programs"]);
    assert!(code == Some(0) && said.contains("saxpy") && said.contains("1 entry"), "{said}");
    for program in fs::read_dir(folder.join("kept/programs")).expect("a folder") {
        fs::write(program.expect("a file").path(), "damage").expect("a file can be written");
    }
    fs::write(folder.join("kept/hints"), "damage").expect("a file can be written");
    let (code, said) = cache(&["verify"]);
    assert!(code == Some(1) && said.matches("damaged: ").count() == 2, "{said}");
    assert_eq!(cache(&["clear", "--kind", "programs"]).0, Some(0));
    assert!(cache(&["verify", "--kind", "programs"]).1.starts_with("0 entries"));
    assert_eq!(cache(&["clear"]).0, Some(0));
    assert!(cache(&["list"]).1.starts_with("0 entries"));
}

#[test]
fn invalid_settings_are_reported_with_their_location() {
    let folder = configured("settings_wrong", "");
    let cases = [
        ("devise = \"cpu\"", "there is no setting `devise`; did you mean `device`?"),
        ("\n\ntheads = 2", "there is no setting `theads`; did you mean `threads`?"),
        ("threads = 0", "`threads`: it is not an integer from 1 to 1024"),
        ("threads = \"many\"", "`threads`: it is not an integer from 1 to 1024"),
        ("threads = [1]", "`threads` is neither a string nor a number"),
        ("[device]\nname = \"cpu\"", "`device` is neither a string nor a number"),
        ("isa = \"neon\"", "`isa`: it is none of `portable`, `avx2` and `avx512`"),
        ("fuel = -1", "`fuel`: it is not an integer"),
        ("timeout = \"never\"", "`timeout`: `never` is not a number of seconds"),
        ("fuel = 1\nfuel = 2", "duplicate key"),
        ("device = ", ""),
    ];
    for (text, reason) in cases {
        fs::write(folder.join("vyre.toml"), text).expect("a file can be written");
        for verb in ["config", "devices"] {
            let output = vyre(&folder, &[], &[verb]);
            let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(stdout.contains("timeout"), verb == "config", "settings are listed: {stdout}");
            assert_eq!(output.status.code(), Some(2), "{text}: {stderr}");
            assert!(stderr.starts_with(&format!("error[C035]: {reason}")), "{text}: {stderr}");
            assert!(stderr.contains("vyre.toml:"), "{text}: {stderr}");
        }
        // `vyre doctor` reports the error, too, and continues.
        let output = vyre(&folder, &[], &["doctor"]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(2) && stdout.contains(reason), "{text}: {stdout}");
        assert!(stdout.contains("device reference:") && stdout.contains(" cache: "), "{stdout}");
    }
    fs::write(folder.join("vyre.toml"), "").expect("a file can be written");
    let wrong = [("VYRE_THREADS", "0"), ("VYRE_ISA", "mmx"), ("VYRE_FUEL", "lots"), ("VYRE_TIMEOUT", "-1")];
    for variable in wrong {
        let output = vyre(&folder, &[variable], &["config"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(&format!("error[C036]: {} is `{}`: ", variable.0, variable.1)), "{stderr}");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let line = stdout.lines().find(|line| line.contains(" is invalid: ")).expect("it is marked");
        assert!(line.ends_with(&format!("({})", variable.0)), "{line}");
    }
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let folder = configured("settings_several", "device = \"gpu9\"\nthreads = 0\nfuel = -1\n");
    let output = vyre(&folder, &[], &["config", "--json"]);
    let said: Value = serde_json::from_slice(&output.stderr).expect("one JSON object");
    let errors = said["errors"].as_array().expect("a list").iter();
    let codes: Vec<&str> = errors.filter_map(|error| error["code"].as_str()).collect();
    assert_eq!((output.status.code(), codes), (Some(2), vec!["C035", "C035", "D002"]));

    // It is said where a device is named that is not there.
    fs::write(folder.join("vyre.toml"), "device = \"gpu9\"").expect("a file can be written");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    for arguments in [&["config"][..], &["run", &saxpy, "a=1", "x=1", "y=1", "--elements", "1"]] {
        let output = vyre(&folder, &[], arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let place = format!("; {}:1 names `gpu9`\n", folder.join("vyre.toml").display());
        assert!(output.status.code() == Some(4) && stderr.ends_with(&place), "{stderr}");
    }
}

#[test]
fn isa_setting_selects_the_emitted_machine_code() {
    let folder = configured("settings_isa", "isa = \"portable\"");
    let saxpy = format!("{}/../../examples/kernels/saxpy.vyre", env!("CARGO_MANIFEST_DIR"));
    let output = vyre(&folder, &[], &["emit", &saxpy, "--target", "asm"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.starts_with("error[C045]: "), "{stderr}");
    let output = vyre(&folder, &[], &["explain", &saxpy, "--html", "page.html"]);
    let page = fs::read_to_string(folder.join("page.html")).expect("a page");
    assert!(output.status.success() && page.contains("no code is generated for Portable execution"), "{stderr}");
    fs::write(folder.join("vyre.toml"), "isa = 7").expect("a file can be written");
    assert_eq!(vyre(&folder, &[], &["emit", &saxpy, "--target", "wgsl"]).status.code(), Some(2));
}

#[test]
fn unknown_devices_are_reported_with_the_known_ones() {
    let folder = configured("settings_names", "");
    let bogus = [("VYRE_DEVICE", "bogus")];
    for arguments in [&["devices"][..], &["doctor"], &["doctor", "--json"]] {
        let output = vyre(&folder, &bogus, arguments);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(4) && stdout.contains("reference"), "{stdout}");
        assert!(!stdout.contains("\"works\":true"), "{stdout}");
    }
    let output = vyre(&folder, &[("VYRE_DEVISE", "cpu")], &["config"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), stderr.trim()),
        (Some(0), "warning: there is no variable VYRE_DEVISE; did you mean VYRE_DEVICE?")
    );
    // As damaged files are.
    fs::create_dir_all(folder.join("kept/programs")).expect("a folder");
    fs::write(folder.join("kept/programs/one.program"), "damage").expect("a file can be written");
    let output = vyre(&folder, &[("VYRE_CACHE", "kept")], &["doctor"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(", 1 of them damaged\n    help: "), "{stdout}");
}
