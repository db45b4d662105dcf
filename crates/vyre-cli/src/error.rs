//! Error type of the command: message, help line and exit code of each error.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use vyre_cpu::HAS_CODE_GENERATOR;
use vyre_foundation::diagnostics::Diagnostics;
use vyre_foundation::error_table;
use vyre_foundation::ir::{Element, Type};
use vyre_foundation::run_line::BadWord;

use crate::compare::Difference;
use crate::config::BadValue;
use crate::source::{Location, Source};
use crate::{devices, terminal};

/// Error code and exit code of the process when an allocation failure aborts it.
pub(crate) const OUT_OF_MEMORY: (&str, u8) = ("C047", 2);

error_table! {
    /// Failure of a command.
    #[derive(Debug)]
    #[cfg_attr(not(unix), expect(dead_code, reason = "only Unix reports signals"))]
    pub(crate) enum Error exit 2 wraps {
        Usage { message: clap::Error } message("{}", first_paragraph(message)), code "C000", help "try --help",
        exit u8::try_from(message.exit_code()).unwrap_or(2);

        Stdout(error: io::Error) message("cannot write to standard output: {0}"), code "C026", help "free space on the disk, or redirect the output elsewhere";

        Several { errors: Vec<Error> } message("{}", first(errors)), code first(errors).code(), help first(errors).help(),
        exit first(errors).exit_code();

        Reproduced { error: Box<Error>, replay: Result<(PathBuf, String), Box<Error>> } message("{error}"),
        code error.code(), help error.help(), exit error.exit_code();

        Faults { faults: Box<Faults> } message("{}", faults.diagnostics), code faults.diagnostics.first_code(),
        help "each error has its own help line", exit 3;

        Wire { path: PathBuf, error: vyre_foundation::Error } message("`{}` is not a valid .vyreb file: {error}", path.display()),
        code error.code(), help error.help(), exit 3;

        Binding { name: String, error: vyre_foundation::Error } message("`{name}`: {error}"), code error.code(), help error.help();

        Broke { pass: String, error: vyre_foundation::Error } message("{error}"), code error.code(),
        help format!("this is a bug in vyre: please report it; `--disable {pass}` leaves the pass out"), exit 1;

        Foundation(#[from] error: vyre_foundation::Error) message("{0}"), code error.code(), help error.help();

        Reference(#[from] error: vyre_reference::Error) message("{0}"), code error.code(), help error.help();

        Driver(#[from] error: vyre_driver::Error) message("{0}"), code error.code(), help driver_help(error), exit driver_exit_code(error);

        Runtime(error: vyre_runtime::Error) message("{0}"), code error.code(), help error.help(),
        exit if matches!(error, vyre_runtime::Error::WrongResult { .. }) { 1 } else { 2 };

        Library(error: vyre::Error) message("{0}"), code error.code(), help error.help();
    };

    C001 Read { path: PathBuf, error: io::Error } ("cannot read `{}`: {error}", path.display()),
    help match error.kind() {
        io::ErrorKind::OutOfMemory => "free memory, raise the memory limit (`ulimit -v`), or use a smaller file",
        _ => "name an existing, readable file",
    };

    C002 NotText { path: PathBuf, offset: usize } ("`{}` is not text: byte {offset} is not UTF-8", path.display()),
    help "a .vyre file is UTF-8 text: convert it, or name another file", exit 3;

    C003 SourceTooLarge { path: PathBuf, limit: u64 } ("`{}` is larger than {limit} bytes", path.display()),
    help "split it into several files, or name another file", exit 3;

    C004 UnknownRule { code: String } ("there is no rule `{code}`"),
    help "`vyre check --explain codes` lists the rules, `ops` the operations, `passes` the passes; other errors have a help line only";

    C005 NoPrograms { file: String } ("`{file}` has no programs"), help "write `program NAME workgroup(64) { … }`", exit 3;

    C006 UnknownProgram { name: String, known: Vec<String> } ("there is no program named `{name}`"),
    help format!("the file has: {}", known.join(", "));

    C007 SeveralPrograms { known: Vec<String> } ("the file has several programs"),
    help format!("select one with --program: {}", known.join(", "));

    C008 ConstantValue { name: String, ty: Type, text: String } ("`{name}` is {ty}, and `{text}` is not a value of that type"),
    help match ty {
        Type::Bool => "write true or false",
        ty if ty.is_float() => "write a number such as 1.5",
        _ => "write an integer that fits, such as 7 or 0xff",
    };

    C009 NoGrid { program: String } ("neither `{program}` nor the command declares a grid"),
    help "pass --elements X[,Y[,Z]] in invocations, or --grid X[,Y[,Z]] in workgroups";

    C010 Format { path: PathBuf, reading: bool }
    (
        "`{}` cannot be {}",
        path.display(),
        if *reading { "bound: its extension is neither .npy nor .bin" } else { "written: its extension is not .npy, .bin or .png" }
    ),
    help match reading {
        true => "bind @file.npy, or @file.bin (little-endian elements)",
        false => "write @file.npy, @file.bin or @file.png, or - for standard output",
    };

    C011 Npy { path: PathBuf, reason: String } ("`{}` is not a valid npy file: {reason}", path.display()),
    help "write it again with numpy.save";

    C012 NpyType { path: PathBuf, found: String, name: String, needed: &'static str, element: Element }
    ("`{}` has elements of type {found}, but `{name}` needs '{needed}', which is {element}", path.display()),
    help format!("convert it: numpy.save({:?}, array.astype('{needed}'))", path.display().to_string());

    C013 NpyOrder { path: PathBuf }
    ("`{}` is in Fortran order (column-major), but C order (row-major) is required", path.display()),
    help format!("convert it: numpy.save({:?}, numpy.ascontiguousarray(array))", path.display().to_string());

    C014 NpyLength { path: PathBuf, described: u64, found: u64 }
    ("the header of `{}` describes {described} bytes of data, but {found} follow it", path.display()),
    help "the file is truncated or damaged: write it again";

    C015 NotScalar { path: PathBuf, name: String, element: Element }
    ("`{}` does not hold exactly one {element}, and `{name}` is a uniform scalar", path.display()),
    help format!("bind a file with a single value, or the value itself: {name}=1");

    C016 OutTarget { name: String, text: String } ("`{text}` is not a target for `{name}`"),
    help format!("write {name}=@file.npy, {name}=@file.bin, {name}=@file.png or {name}=-");

    C017 UnknownOut { name: String, known: Vec<String> } ("there is no object named `{name}` to write"), help results(known);

    C018 NotAResult { name: String, what: &'static str, known: Vec<String> } ("`{name}` is {what}, not a result"), help results(known);

    C019 OutTwice { target: PathBuf } ("`{}` is the target of two outputs", target.display()),
    help "write each output to a different file";

    C020 Unwritable { path: PathBuf, error: io::Error } ("cannot write `{}`: {error}", path.display()),
    help match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free space on that disk, or name a file on another one"
        }
        io::ErrorKind::AlreadyExists => "choose a different file name",
        _ => "name a file in an existing, writable folder",
    };

    C021 NotAnImage { name: String, element: Element, length: u64, width: u32, height: u32 }
    ("`{name}`, {length} elements of type {element}, is not an image of {width} x {height}"),
    help {
        let pixels = u64::from(*width) * u64::from(*height);
        format!(
            "for this grid an image is {pixels} u8 (grey), {} u8 (RGB), {} u8 (RGBA), \
             {pixels} u32 (0xAABBGGRR) or {pixels} f32 (grey, 0 to 1)",
            pixels.saturating_mul(3),
            pixels.saturating_mul(4),
        )
    };

    C022 SubgroupSize { device: &'static str, given: u32 } ("`{device}` does not run with subgroups of {given} lanes"),
    help "`--device reference` accepts any power of two up to 128; other devices have a fixed subgroup size";

    C023 Trapped { code: u32, invocation: u32, count: u64, location: Option<Location> }
    ("trap {code} in invocation {invocation}, {}", first_of(*count)),
    help "the kernel defines this code: check the condition that leads to this `trap`; no result was written", exit 1;

    C024 OutOfFuel { fuel: u64, location: Option<Location> } ("the kernel ran out of fuel after {fuel} loop trips"),
    help "check that the loop ends, or raise the limit with --fuel N; no result was written", exit 5;

    C025 TimedOut { timeout: Duration, location: Option<Location> } ("the kernel did not end within {timeout:?}"),
    help "check that the kernel ends, or raise the limit with --timeout SECONDS; no result was written", exit 5;

    C027 NotABinding { text: String, reason: String } ("`{text}`: {reason}"),
    help "with --run, pass one file and then NAME=VALUE, as in `vyre check --run kernel.vyre x=iota:8`";

    C028 NoDirective { file: String } ("`{file}` has no `//@ run` line"),
    help "pass bindings and grid on the command line, or add a line such as `//@ run --elements 4 x=1,2,3,4` to the file";

    C029 BadDirective { file: String, reason: BadWord } ("the `//@ run` line of `{file}` cannot be used: {reason}"),
    help "write it like the arguments of `vyre run`, without quotes";

    C030 Spawn { command: String, error: io::Error } ("cannot run `{command}`: {error}"), help "--while needs a shell: `sh`, or `cmd` on Windows";

    C031 DoesNotHold { file: String, status: String } ("the --while command fails for `{file}`: {status}"),
    help "--while must exit with 0 for the original file: invert it with `!`, or run the command by hand";

    C032 Flag { flag: &'static str, about: &'static str } ("`{flag}` applies to {}, not to {about}", scope(flag)),
    help match (*flag, *about) {
        ("--compare-devices", _) => "name at least two different devices, as in `--compare-devices cpu,reference`",
        (_, "a program" | "a pipeline") => "leave it out, or select a program or pipeline with --program NAME",
        _ => "leave it out",
    };

    C033 Source { source_node: u32, nodes: u32 } ("there is no node {source_node} in a graph of {nodes}"),
    help match nodes {
        0 => "use a graph with nodes".to_owned(),
        nodes => format!("choose a node from 0 to {} with --source", nodes - 1),
    };

    C034 Scale { text: String } ("`{text}` is not a scale: scales are integers from 0 to 30"),
    help "write kron:18 or urand:18 for a random graph of 2^18 nodes";

    C035 Config { location: Option<Location>, reason: String } ("{reason}"), help SETTINGS;

    C036 Variable { variable: String, text: String, reason: BadValue } ("{variable} is `{text}`: {reason}"), help SETTINGS;

    C037 Differs { device: &'static str, than: String, difference: Box<Difference>, lanes: Option<[u32; 2]> }
    ("the results on {device} differ from those {than}: {difference}"),
    help match lanes {
        Some(lanes) => of_subgroups(*lanes),
        None if difference.is_of_length() => "--expect takes all elements of the result".into(),
        None => "allow a difference with --atol X, --rtol X or --ulp N; the files of --out were written".into(),
    }, exit 1;

    C038 Disagrees { device: &'static str, than: &'static str, outcome: String, lanes: Option<[u32; 2]> }
    ("{device} behaves differently from {than}: {outcome}"),
    help match lanes {
        Some(lanes) => of_subgroups(*lanes),
        None => "a data race may be the cause: `vyre check --run` detects races".into(),
    }, exit 1;

    C039 NoCache ("there is no cache folder"),
    help "set VYRE_CACHE, XDG_CACHE_HOME or HOME to a writable folder";

    C040 NotWorking { device: String } ("the results of {device} differ from those of the oracle"),
    help "this may be a driver bug: update the driver, or use another device with --device NAME", exit 1;

    C041 Crashed { signal: &'static str } ("the command crashed with {signal}"),
    help "this is a bug in vyre or in a driver: please report it with the file", exit crate::INTERNAL;

    C042 NotSettled { iterations: u32, change: f64 } ("pagerank did not converge: ranks changed by {change:.1e} in the last of {iterations} iterations"),
    help "raise --iterations or --tolerance", exit 1;

    C043 TooManyTrips { trips: u64, location: Option<Location> }
    ("the kernel takes more than the {trips} loop trips per invocation that the device allows"),
    help "check that the loop ends; if it does, use another device, such as --device cpu, or more invocations; no result was written", exit 5;

    C044 ChangedInput { name: String, file: String } ("the data bound to `{name}` differ from the data that `{file}` was made with"),
    help "restore the data file, or delete the line with its blake3 hash from the reproducer to run it with the current data";

    C045 NoMachineCode ("there is no machine code: {}", if HAS_CODE_GENERATOR {
        "the device cpu uses the portable executor"
    } else {
        "vyre has no code generator for this target"
    }),
    help if HAS_CODE_GENERATOR {
        "name an instruction set, with --target asm-avx2 or asm-avx512; `vyre config` shows the origin of `isa`"
    } else {
        "vyre generates machine code on x86-64 with Linux, macOS or another Unix"
    };

    C046 DeviceTwice { name: String } ("`{name}` cannot be compared with itself"), help "name at least two different devices, as in `--compare-devices cpu,reference`";

    L004 MissingInput { name: String, length: u32 } ("`{name}` is not bound"),
    help format!("bind it, for example {name}=zeros:{length}");
}

/// Help of errors in settings.
const SETTINGS: &str = "`vyre config` lists the settings with their meaning and origin";

/// Commands or inputs that a flag applies to, as worded in the message of C032.
fn scope(flag: &str) -> &'static str {
    match flag {
        "--budget" => "pipelines",
        "--source" => "bfs and sssp",
        "--delta" => "sssp",
        "--tolerance" | "--iterations" => "pagerank",
        "--factor" | "--seed" => "random graphs (kron:SCALE, urand:SCALE)",
        "--compare-devices" => "two or more devices",
        _ => "programs",
    }
}

fn results(known: &[String]) -> String {
    match known {
        [] => "there are no results".into(),
        known => format!("the results are: {}", known.join(", ")),
    }
}

fn of_subgroups([one, other]: [u32; 2]) -> String {
    format!("the program uses subgroups, and the devices have subgroups of {one} and {other} lanes")
}

fn driver_help(error: &vyre_driver::Error) -> String {
    let origin = match error {
        vyre_driver::Error::NoSuchDevice { name, .. } => devices::named_by(name).map(|origin| (origin, name)),
        _ => None,
    };
    match origin {
        Some((origin, name)) => format!("{}; {origin} names `{name}`", error.help()),
        None => error.help(),
    }
}

fn driver_exit_code(error: &vyre_driver::Error) -> u8 {
    use vyre_driver::Error::{
        Backend, Cancelled, DeviceLost, Foundation, NoAdapter, NoSuchDevice, Stopped, Unsupported,
    };
    match error {
        Foundation(vyre_foundation::Error::PassBroke { .. }) => 1,
        NoSuchDevice { .. } | NoAdapter { .. } | Unsupported { .. } => 4,
        DeviceLost { .. } | Cancelled | Stopped { .. } => 5,
        Backend { .. } => crate::INTERNAL,
        _ => 2,
    }
}

/// Faults of a `.vyre` file.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) source: Source,
    pub(crate) diagnostics: Diagnostics,
}

impl Error {
    /// Combines errors into one; `None` if there are none.
    pub(crate) fn of(mut errors: Vec<Error>) -> Option<Error> {
        if errors.len() > 1 { Some(Error::Several { errors }) } else { errors.pop() }
    }

    /// Returns whether the error indicates a bug in vyre or in a driver rather than a mistake of the user.
    pub(crate) fn is_unexpected(&self) -> bool {
        use vyre_driver::Error::{Backend, DeviceLost, Foundation};
        use vyre_foundation::Error::PassBroke;
        use vyre_runtime::Error::WrongResult;
        matches!(
            self,
            Error::Differs { .. }
                | Error::Disagrees { .. }
                | Error::Broke { .. }
                | Error::Foundation(PassBroke { .. })
                | Error::Driver(Backend { .. } | DeviceLost { .. } | Foundation(PassBroke { .. }))
                | Error::Runtime(WrongResult { .. })
        )
    }

    /// Prints the error to standard error, ignoring failures to write.
    pub(crate) fn report(&self, json: bool) {
        let text = match json {
            true => format!("{}\n", json!({ "errors": self.objects(), "exit_code": self.exit_code() })),
            false => self.text(),
        };
        let _ = io::Write::write_all(&mut terminal::stderr(), text.as_bytes());
    }

    fn text(&self) -> String {
        if let Error::Usage { message } = self {
            return message.to_string();
        }
        if let Error::Faults { faults } = self {
            return faults.diagnostics.render(&faults.source.map);
        }
        if let Error::Several { errors } = self {
            return errors.iter().map(Error::text).collect();
        }
        let mut text = format!("error[{}]: {self}\n", self.code());
        if let Some(Location { file, line, column, excerpt }) = self.location() {
            let _ = writeln!(text, "  --> {file}:{line}:{column}\n  |   {excerpt}");
        }
        if let Error::Differs { difference, .. } = self.inner() {
            difference.lines().for_each(|line| _ = writeln!(text, "  |   {line}"));
        }
        let _ = writeln!(text, "  = help: {}", self.help());
        match self {
            Error::Reproduced { replay: Ok((_, command)), .. } => _ = writeln!(text, "  = replay: {command}"),
            Error::Reproduced { replay: Err(reason), .. } => _ = writeln!(text, "  = no file to replay it: {reason}"),
            _ => {}
        }
        text
    }

    /// JSON objects for `--json`: one per error.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let object = |code: &str, message: String, location: Option<&Location>, help: String| {
            json!({
                "code": code,
                "message": message,
                "line": location.map(|location| location.line),
                "column": location.map(|location| location.column),
                "help": help,
            })
        };
        if let Error::Several { errors } = self {
            return errors.iter().flat_map(Error::objects).collect();
        }
        let Error::Faults { faults } = self else {
            let mut object = object(self.code(), self.to_string(), self.location(), self.help());
            if let Error::Differs { difference, .. } = self.inner() {
                object["difference"] = difference.object();
            }
            match self {
                Error::Reproduced { replay: Ok((file, command)), .. } => {
                    (object["replay"], object["reproducer"]) = (command.as_str().into(), json!(file));
                }
                Error::Reproduced { replay: Err(reason), .. } => object["not_replayable"] = reason.to_string().into(),
                _ => {}
            }
            return vec![object];
        };
        let diagnostics = faults.diagnostics.iter().map(|diagnostic| {
            let location = faults.source.location(diagnostic.span);
            let fault = &diagnostic.fault;
            object(fault.code(), fault.to_string(), location.as_ref(), fault.help())
        });
        diagnostics.collect()
    }

    /// The error without its reproducer.
    fn inner(&self) -> &Error {
        match self {
            Error::Reproduced { error, .. } => error,
            error => error,
        }
    }

    pub(crate) fn location(&self) -> Option<&Location> {
        match self {
            Error::Trapped { location, .. }
            | Error::OutOfFuel { location, .. }
            | Error::TooManyTrips { location, .. }
            | Error::TimedOut { location, .. }
            | Error::Config { location, .. } => location.as_ref(),
            _ => None,
        }
    }
}

impl From<vyre_runtime::Error> for Error {
    fn from(error: vyre_runtime::Error) -> Error {
        match error {
            vyre_runtime::Error::Driver(error) | vyre_runtime::Error::DeviceLost { error, .. } => error.into(),
            error => Error::Runtime(error),
        }
    }
}

impl From<vyre::Error> for Error {
    /// Unwraps errors of other crates, on which exit codes depend.
    fn from(error: vyre::Error) -> Error {
        match error {
            vyre::Error::Driver(vyre_driver::Error::Foundation(error)) => error.into(),
            vyre::Error::Driver(error) => error.into(),
            vyre::Error::Runtime(error) => error.into(),
            error => Error::Library(error),
        }
    }
}

/// The first of at least two errors.
fn first(errors: &[Error]) -> &Error {
    &errors[0]
}

/// Message of a clap error, without usage and tips.
fn first_paragraph(message: &clap::Error) -> String {
    let message = message.to_string();
    let lines = message.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

fn first_of(count: u64) -> String {
    if count == 1 { "the only one that trapped".into() } else { format!("the first of {count} that trapped") }
}
