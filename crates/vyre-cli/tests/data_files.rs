//! Runs that read and write files: contents of the files afterwards, and no files after failed runs.

mod folder;

use std::fmt::Debug;
use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use npyz::{AutoSerialize, Deserialize, NpyFile, WriterBuilder as _};

/// An empty folder to run the command in.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(folder::empty(name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.path(name), contents).expect("a file can be written");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn write_npy<T: AutoSerialize + Copy>(&self, name: &str, shape: &[u64], values: &[T]) {
        let mut file = Vec::new();
        let options = npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut file);
        let mut writer = options.begin_nd().expect("a header");
        writer.extend(values.iter().copied()).expect("values");
        writer.finish().expect("as many values as the shape has");
        self.write(name, file);
    }

    fn read_npy<T: Deserialize>(&self, name: &str) -> (Vec<u64>, Vec<T>) {
        let file = NpyFile::new(Cursor::new(self.read(name))).expect("an npy file");
        (file.shape().to_vec(), file.into_vec().expect("elements of the right type"))
    }

    /// Sorted names in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
        // Output is independent of the machine's devices.
        command.current_dir(&self.0).args(arguments).env("VYRE_DEVICE", "reference");
        command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/files"));
        command
    }

    fn vyre(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command can be run")
    }

    /// Runs a command that must succeed and print only a line per written file.
    fn succeeds(&self, arguments: &[&str]) {
        let output = self.vyre(arguments);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let is_file = |line: &str| line.split_once(": ").is_some_and(|(file, _)| self.path(file).exists());
        assert!(String::from_utf8_lossy(&output.stdout).lines().all(is_file), "{output:?}");
        assert_eq!(output.status.code(), Some(0));
    }

    /// Runs a command that must fail with an exit code and an error code, without changing the folder.
    fn fails(&self, exit_code: i32, code: &str, arguments: &[&str]) {
        let state = || self.names().into_iter().map(|name| (fs::read(self.path(&name)).ok(), name)).collect::<Vec<_>>();
        let before = state();
        let output = self.vyre(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with(&format!("error[{code}]: ")), "{arguments:?} says {stderr}");
        assert_eq!(output.status.code(), Some(exit_code), "{arguments:?} says {stderr}");
        assert!(before == state(), "{arguments:?} changed files");
    }
}

/// A kernel of the tests.
fn kernel(name: &str) -> String {
    format!("{}/tests/kernels/{name}.vyre", env!("CARGO_MANIFEST_DIR"))
}

/// An example kernel.
fn example(name: &str) -> String {
    format!("{}/../../examples/kernels/{name}.vyre", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_element_type_is_read_and_written_as_npy_and_bin() {
    fn check<T: AutoSerialize + Deserialize + Copy + PartialEq + Debug>(element: &str, values: &[T]) {
        let folder = Folder::new(&format!("element_{element}"));
        let text = format!(
            "program copy workgroup(2) {{
                 read x: [{element}]
                 read_write y: [{element}]
                 uniform u: {element}
                 %i = global_index
                 %x = load x[%i]
                 store y[%i], %x
                 %u = load u
                 store y[3], %u
             }}"
        );
        folder.write("copy.vyre", text);
        folder.write_npy("x.npy", &[3], &values[..3]);
        folder.write_npy("u.npy", &[], &values[3..]);
        let bindings = ["x=@x.npy", "u=@u.npy", "y=zeros:4", "--elements", "3"];
        let run = |more: &[&str]| folder.succeeds(&[&["run", "copy.vyre"], &bindings[..], more].concat());

        run(&["--out", "y=@y.npy", "--out", "y=@y.bin"]);
        assert_eq!(folder.read_npy::<T>("y.npy"), (vec![4], values.to_vec()), "{element}");
        let raw = folder.read("y.bin");
        assert_eq!(raw.len(), 4 * size_of::<T>());
        assert!(folder.read("y.npy").ends_with(&raw));

        // Written files are read back unchanged.
        folder.succeeds(&[
            "run",
            "copy.vyre",
            "x=@y.npy",
            "u=@u.npy",
            "y=@y.bin",
            "--elements",
            "4",
            "--out",
            "y=@again.npy",
        ]);
        assert_eq!(folder.read("again.npy"), folder.read("y.npy"));
    }

    check("i8", &[i8::MIN, -1, 0, i8::MAX]);
    check("u8", &[0, 1, 200, u8::MAX]);
    check("i16", &[i16::MIN, -1, 0, i16::MAX]);
    check("u16", &[0, 1, 40_000, u16::MAX]);
    check("i32", &[i32::MIN, -1, 0, i32::MAX]);
    check("u32", &[0, 1, 3_000_000_000, u32::MAX]);
    check("f32", &[-0.0f32, 1.5, f32::MIN_POSITIVE / 4.0, f32::INFINITY]);
    check("i64", &[i64::MIN, -1, 0, i64::MAX]);
    check("u64", &[0, 1, 1 << 63, u64::MAX]);
    check("f64", &[-0.0f64, 1.5, 5e-324, f64::NEG_INFINITY]);
    // npy has no bf16: the bits are u16, for 1.0, -0.0, the largest number and infinity.
    check("bf16", &[0x3f80u16, 0x8000, 0x7f7f, 0x7f80]);
    check("f16", &[-0.0f32, 1.5, 65504.0, f32::INFINITY].map(half::f16::from_f32));
}

#[test]
fn arrays_that_fill_the_grid_have_its_shape() {
    let folder = Folder::new("shapes");
    let images = kernel("images");
    let run = |arguments: &[&str]| folder.succeeds(&[&["run", &images], arguments].concat());

    let small =
        ["grey=zeros:12", "rgb=zeros:36", "rgba=zeros:48", "packed=zeros:12", "light=zeros:12", "signed=zeros:1"];
    let outs = ["--out", "grey=@grey.npy", "--out", "rgb=@rgb.npy"];
    run(&[&small[..], &["--elements", "4,3"], &outs].concat());
    let rows = [0, 40, 80, 120].repeat(3);
    assert_eq!(folder.read_npy::<u8>("grey.npy"), (vec![3, 4], rows));
    assert_eq!(folder.read_npy::<u8>("rgb.npy").0, [36]);

    let large = ["grey=zeros:32", "rgb=zeros:1", "rgba=zeros:16", "packed=zeros:1", "light=zeros:1", "signed=zeros:1"];
    run(&[&large[..], &["--grid", "1,1,2", "--out", "grey=@cube.npy", "--out", "rgba=@flat.npy"]].concat());
    assert_eq!(folder.read_npy::<u8>("cube.npy").0, [2, 4, 4]);
    assert_eq!(folder.read_npy::<u8>("flat.npy").0, [16]);
}

#[test]
fn images_are_written_from_bytes_words_and_floats() {
    let folder = Folder::new("images");
    let images = kernel("images");
    let bindings =
        ["grey=zeros:12", "rgb=zeros:36", "rgba=zeros:48", "packed=zeros:12", "light=zeros:12", "signed=zeros:12"];
    let run = [&["run", &images, "--elements", "4,3"], &bindings[..]].concat();
    let names = ["grey", "rgb", "rgba", "packed", "light"];
    let outs: Vec<String> = names.iter().map(|name| format!("--out={name}=@{name}.png")).collect();
    let outs: Vec<&str> = outs.iter().map(String::as_str).collect();
    folder.succeeds(&[&run[..], &outs].concat());

    let decode = |name: &str| {
        let decoder = png::Decoder::new(Cursor::new(folder.read(&format!("{name}.png"))));
        let mut reader = decoder.read_info().expect("a header");
        let mut pixels = vec![0; reader.output_buffer_size().expect("an image that fits into memory")];
        let info = reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((info.width, info.height, info.bit_depth), (4, 3, png::BitDepth::Eight));
        (info.color_type, pixels)
    };
    let color = |pixel: usize| [pixel as u8 % 4 * 40, pixel as u8 / 4 * 60, 7, 200];
    let channels = |count: usize| (0..12).flat_map(|pixel| color(pixel).into_iter().take(count)).collect::<Vec<_>>();
    assert_eq!(decode("grey"), (png::ColorType::Grayscale, channels(1)));
    assert_eq!(decode("rgb"), (png::ColorType::Rgb, channels(3)));
    assert_eq!(decode("rgba"), (png::ColorType::Rgba, channels(4)));
    assert_eq!(decode("packed"), (png::ColorType::Rgba, channels(4)));
    assert_eq!(decode("light"), (png::ColorType::Grayscale, [0, 0, 255, 255].repeat(3)));

    // Signed integers are not pixels.
    folder.fails(2, "C021", &[&run[..], &["--out", "signed=@signed.png"]].concat());
}

#[test]
fn mandelbrot_of_a_small_grid() {
    let folder = Folder::new("mandelbrot");
    let file = example("mandelbrot");
    folder.succeeds(&["run", &file, "--elements", "64,64", "--set", "MAX_TRIPS=8", "--out", "image=@image.bin"]);
    let image = folder.read("image.bin");
    assert_eq!(image.len(), 1024 * 1024);
    let inside = |pixel: usize| pixel / 1024 < 64 && pixel % 1024 < 64;
    // This corner escapes within two steps, so it is not black.
    for (pixel, &shade) in image.iter().enumerate() {
        assert_eq!(shade > 0, inside(pixel), "pixel {pixel}");
    }
}

#[test]
fn failed_runs_write_nothing() {
    let folder = Folder::new("failures");
    folder.write("old.npy", "what was there before");
    let (trap, spin) = (kernel("trap"), kernel("spin"));
    let outs = ["--out", "y=@old.npy", "--out", "y=@new.npy", "--out", "y=-"];
    let trapped = ["run", &trap, "x=1,2,300,4", "y=zeros:4", "--elements", "4"];
    folder.fails(1, "C023", &[&trapped[..], &outs].concat());
    folder.fails(5, "C024", &[&["run", &spin, "--fuel", "100"], &outs[..]].concat());
    folder.fails(5, "C025", &[&["run", &spin, "--timeout", "0.01"], &outs[..]].concat());
    assert_eq!(folder.names(), ["old.npy"]);
}

/// The kernel never ends, so errors are found before the run.
#[test]
fn unwritable_targets_are_reported_before_the_run() {
    let folder = Folder::new("targets");
    let spin = kernel("spin");
    fs::create_dir(folder.path("folder.npy")).expect("a folder");
    folder.write("read_only.npy", "old");
    let mut permissions = fs::metadata(folder.path("read_only.npy")).expect("a file").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(folder.path("read_only.npy"), permissions).expect("a file of ours");

    folder.fails(2, "C020", &["run", &spin, "--out", "y=@folder.npy"]);
    folder.fails(2, "C020", &["run", &spin, "--out", "y=@read_only.npy"]);
    folder.fails(2, "C020", &["run", &spin, "--out", "y=@nowhere/y.npy"]);
    folder.fails(2, "C020", &["run", &spin, "--out", "y=@read_only.npy/y.npy"]);
    folder.fails(2, "C019", &["run", &spin, "--out", "y=@y.npy", "--out", "y=@folder.npy/../y.npy"]);
}

#[test]
fn an_input_file_can_be_the_output_file() {
    let folder = Folder::new("replaced");
    let saxpy = example("saxpy");
    folder.write_npy("y.npy", &[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    for round in 1..=3u8 {
        folder.succeeds(&["run", &saxpy, "a=10", "x=iota:4", "y=@y.npy", "--elements", "2,2", "--out", "y=@y.npy"]);
        let expected = [1.0, 2.0, 3.0, 4.0f32].iter().enumerate();
        let expected =
            expected.map(|(index, value)| value + 10.0 * f32::from(round) * index as f32).collect::<Vec<_>>();
        assert_eq!(folder.read_npy::<f32>("y.npy"), (vec![2, 2], expected));
    }
    assert_eq!(folder.names(), ["y.npy"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_when_written() {
    let folder = Folder::new("links");
    folder.write("real.bin", "old");
    std::os::unix::fs::symlink("real.bin", folder.path("link.bin")).expect("a link");
    let two = kernel("two");
    folder.fails(2, "C019", &["run", &two, "--program", "ones", "--out", "y=@real.bin", "--out", "y=@link.bin"]);
    folder.succeeds(&["run", &two, "--program", "ones", "--out", "y=@link.bin"]);
    assert_eq!(folder.read("real.bin"), [1, 0, 0, 0].repeat(3));
    assert!(fs::symlink_metadata(folder.path("link.bin")).expect("the link").is_symlink());
}

/// Sparse files, which take no space.
#[test]
fn oversized_files_are_not_read() {
    let folder = Folder::new("large");
    let saxpy = example("saxpy");
    for name in ["large.vyre", "large.bin", "large.npy"] {
        let file = fs::File::create(folder.path(name)).expect("a file");
        file.set_len(20 << 30).expect("a file with a hole");
    }
    let run = |arguments: &[&str], exit_code: i32, code: &str| {
        let output = folder.vyre(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with(&format!("error[{code}]: ")), "{stderr}");
        assert_eq!(output.status.code(), Some(exit_code));
    };
    run(&["check", "large.vyre"], 3, "C003");
    run(&["run", &saxpy, "a=1", "x=@large.bin", "y=1", "--elements", "1"], 2, "F006");
    run(&["run", &saxpy, "a=1", "x=@large.npy", "y=1", "--elements", "1"], 2, "F006");
    run(&["run", &saxpy, "a=@large.bin", "x=1", "y=1", "--elements", "1"], 2, "C015");
    run(&["run", &saxpy, "a=@large.npy", "x=1", "y=1", "--elements", "1"], 2, "C015");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let folder = Folder::new("pipes");
    let saxpy = example("saxpy");
    let arguments = [
        "run",
        &saxpy,
        "a=1",
        "x=iota:100000",
        "y=iota:100000",
        "--elements",
        "1",
        "--out",
        "y=-",
        "--out",
        "y=@y.npy",
    ];
    let mut command = folder.command(&arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command can be run");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(folder.read_npy::<f32>("y.npy").0, [100_000]);
}

#[test]
fn a_binary_file_runs_like_its_text() {
    let folder = Folder::new("wire");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kernels/saxpy.vyre");
    folder.succeeds(&["print", example, "--wire", "--out", "saxpy.vyreb"]);
    let run = |file: &str| {
        let output = folder.vyre(&["run", file, "a=2", "x=iota:4", "y=1,1,1,1", "--elements", "4", "--out", "y=-"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(run("saxpy.vyreb"), "1.0, 3.0, 5.0, 7.0\n");
    assert_eq!(run(example), run("saxpy.vyreb"));
    // Text and binary files have the same canonical bytes.
    folder.succeeds(&["print", "saxpy.vyreb", "--wire", "--out", "again.vyreb"]);
    assert_eq!(folder.read("again.vyreb"), folder.read("saxpy.vyreb"));
    let mut damaged = folder.read("saxpy.vyreb");
    damaged[60] ^= 4;
    folder.write("damaged.vyreb", damaged);
    let output = folder.vyre(&["check", "damaged.vyreb"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error[W001]"));
}

#[test]
fn a_generated_program_is_replayed_and_shrunk() {
    let folder = Folder::new("generated");
    folder.succeeds(&["generate", "--seed", "3", "--no-effects", "--out", "three.vyre"]);
    let replay = |file: &str, device: &str| {
        let output = folder.vyre(&["run", file, "--replay", "--device", device]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(replay("three.vyre", "cpu"), replay("three.vyre", "reference"));

    // The binary form stays binary.
    folder.succeeds(&["print", "three.vyre", "--wire", "--out", "three.vyreb"]);
    let command = format!("{} check", env!("CARGO_BIN_EXE_vyre"));
    folder.succeeds(&["shrink", "three.vyreb", "--while", &command, "--out", "small.vyreb"]);
    assert!(folder.read("small.vyreb").starts_with(b"VYRE"));
    folder.succeeds(&["shrink", "three.vyre", "--while", &command, "--out", "small.vyre"]);
    let text = String::from_utf8(folder.read("small.vyre")).expect("text");
    assert!(text.lines().count() < 6, "{text}");
    replay("small.vyre", "reference");
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_help_is_an_error() {
    let folder = Folder::new("full");
    for flag in ["--help", "--version"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let output = folder.command(&[flag]).stdout(full).output().expect("the command can be run");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error[C026]"));
    }
}

#[test]
fn man_pages_are_written_all_or_none() {
    let folder = Folder::new("pages");
    // The page of the first verb is written last.
    fs::create_dir(folder.path("vyre-check.1")).expect("a folder");
    let output = folder.command(&["man", "--out", "."]).output().expect("the command can be run");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(folder.names(), ["vyre-check.1"]);
}

/// Open file descriptors are written in place, not replaced.
#[cfg(target_os = "linux")]
#[test]
fn standard_output_as_a_file_is_written_in_place() {
    let folder = Folder::new("by_name");
    folder.write("n.vyre", "program n workgroup(1) {}");
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let mut file = fs::File::create(folder.path("out")).expect("a file");
        std::io::Write::write_all(&mut file, b"before\n").expect("a line");
        let mut command = folder.command(&["print", "n.vyre", "--out", name]);
        assert!(command.stdout(file).status().expect("the command can be run").success());
        let written = String::from_utf8(folder.read("out")).expect("text");
        assert!(written.starts_with("before\nprogram n "), "{written}");
    }
    assert_eq!(folder.names(), ["n.vyre", "out"]);
}
