//! The one error of this command: what to say, how to fix it, and the exit code.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use vyre_cpu::HAS_CODE_GENERATOR;
use vyre_foundation::diagnostics::Diagnostics;
use vyre_foundation::ir::{Element, Type};

use crate::compare::Difference;
use crate::source::{Place, Source};
use crate::{devices, terminal};

/// Code and exit code of allocations that fail where no [`Error`] can be made.
pub(crate) const OUT_OF_MEMORY: (&str, u8) = ("C047", 2);

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error("{}", first_paragraph(.0))]
    Usage(clap::Error),
    #[error("cannot read `{}`: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("`{}` is not text: byte {offset} is not UTF-8", path.display())]
    NotText { path: PathBuf, offset: usize },
    #[error("`{}` is larger than {limit} bytes", path.display())]
    SourceTooLarge { path: PathBuf, limit: u64 },
    #[error("`{}` is not a valid .vyreb file: {error}", path.display())]
    Wire { path: PathBuf, error: vyre_foundation::Error },
    #[error("there is no rule `{code}`")]
    UnknownRule { code: String },
    #[error("`{file}` has no programs")]
    NoPrograms { file: String },
    #[error("there is no program named `{name}`")]
    UnknownProgram { name: String, known: Vec<String> },
    #[error("the file has several programs")]
    SeveralPrograms { known: Vec<String> },
    #[error("`{name}` is {ty}, and `{text}` is not a value of that type")]
    ConstantValue { name: String, ty: Type, text: String },
    #[error("`{program}` does not say how many invocations to run, and neither does the command")]
    NoGrid { program: String },

    #[error("`{name}` is not bound")]
    MissingInput { name: String, length: u32 },

    #[error("{}", first(.0))]
    Several(Vec<Error>),
    #[error("{error}")]
    Reproduced { error: Box<Error>, replay: Result<(PathBuf, String), String> },
    #[error("the command was ended by {signal}")]
    #[cfg_attr(not(unix), expect(dead_code))]
    Crashed { signal: &'static str },
    #[error("there is no machine code: {}", if HAS_CODE_GENERATOR {
        "the device cpu is set to execute programs without any"
    } else {
        "vyre has no code generator for this target"
    })]
    NoMachineCode,
    #[error("`{name}` cannot be compared with itself")]
    DeviceTwice { name: String },
    #[error("{device} computes something else than the interpreter")]
    NotWorking { device: String },
    #[error("there is no folder to keep anything in")]
    NoCache,
    #[error("{reason}")]
    Config { place: Option<Place>, reason: String },
    #[error("{variable} is `{text}`: {reason}")]
    Variable { variable: String, text: String, reason: String },

    #[error("`{flag}` says nothing about {about}")]
    Flag { flag: &'static str, about: &'static str },

    #[error("`{}` is not a kind of file that can be {}", path.display(), if *reading { "bound" } else { "written" })]
    Format { path: PathBuf, reading: bool },
    #[error("`{}` is not a valid npy file: {reason}", path.display())]
    Npy { path: PathBuf, reason: String },
    #[error("`{}` has elements of type {found}, but `{name}` needs '{needed}', which is {element}", path.display())]
    NpyType { path: PathBuf, found: String, name: String, needed: &'static str, element: Element },
    #[error("`{}` is in Fortran order (column by column), but C order (row by row) is needed", path.display())]
    NpyOrder { path: PathBuf },
    #[error("the header of `{}` describes {described} bytes of data, but {found} follow it", path.display())]
    NpyLength { path: PathBuf, described: u64, found: u64 },
    #[error("`{}` does not hold exactly one {element}, and `{name}` is a uniform scalar", path.display())]
    NotScalar { path: PathBuf, name: String, element: Element },

    #[error("`{text}` does not say where to write `{name}`")]
    OutTarget { name: String, text: String },
    #[error("there is nothing named `{name}` to write")]
    UnknownOut { name: String, known: Vec<String> },
    #[error("`{name}` is {what}, not a result")]
    NotAResult { name: String, what: &'static str, known: Vec<String> },
    #[error("`{}` is to be written twice", target.display())]
    OutTwice { target: PathBuf },
    #[error("cannot write `{}`: {error}", path.display())]
    Unwritable { path: PathBuf, error: io::Error },
    #[error("`{name}`, {length} elements of type {element}, is not an image of {width} x {height}")]
    NotAnImage { name: String, element: Element, length: u64, width: u32, height: u32 },

    #[error("`{device}` does not run with subgroups of {given} lanes")]
    SubgroupSize { device: &'static str, given: u32 },
    #[error("trap {code} in invocation {invocation}, {}", first_of(*count))]
    Trapped { code: u32, invocation: u32, count: u64, place: Option<Place> },
    #[error("the results on {device} are not those {than}: {difference}")]
    Differs { device: &'static str, than: String, difference: Box<Difference>, lanes: Option<[u32; 2]> },
    #[error("what happens on {device} is not what happens on {than}: {outcome}")]
    Disagrees { device: &'static str, than: &'static str, outcome: String, lanes: Option<[u32; 2]> },
    #[error("the kernel ran out of fuel after {fuel} loop trips")]
    OutOfFuel { fuel: u64, place: Option<Place> },
    #[error("what `{name}` is bound to is not what `{file}` was made with")]
    ChangedInput { name: String, file: String },
    #[error("the kernel takes more loop trips than the {trips} that the device allows an invocation")]
    TooManyTrips { trips: u64, place: Option<Place> },
    #[error("the kernel did not end within {timeout:?}")]
    TimedOut { timeout: Duration, place: Option<Place> },

    #[error("`{file}` has no `//@ run` line")]
    NoDirective { file: String },
    #[error("the `//@ run` line of `{file}` cannot be used: {reason}")]
    BadDirective { file: String, reason: String },
    #[error("cannot run `{command}`: {error}")]
    Spawn { command: String, error: io::Error },
    #[error("the command does not exit with 0 for `{file}` itself: {status}")]
    DoesNotHold { file: String, status: String },

    #[error("{error}")]
    Broke { pass: String, error: vyre_foundation::Error },

    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    #[error("{}", .0.diagnostics)]
    Faults(Box<Faults>),
    #[error("`{text}`: {reason}")]
    NotABinding { text: String, reason: &'static str },
    #[error("`{name}`: {error}")]
    Binding { name: String, error: vyre_foundation::Error },
    #[error("there is no node {source_node} in a graph of {nodes}")]
    Source { source_node: u32, nodes: u32 },
    #[error("ranks still changed by {change:.1e} in the last of {iterations} iterations")]
    NotSettled { iterations: u32, change: f64 },
    #[error("`{text}` is not a scale from 0 to 30")]
    Scale { text: String },
    #[error(transparent)]
    Foundation(#[from] vyre_foundation::Error),
    #[error(transparent)]
    Reference(#[from] vyre_reference::Error),
    #[error(transparent)]
    Driver(#[from] vyre_driver::Error),
    #[error(transparent)]
    Library(vyre::Error),
}

/// What is wrong with a `.vyre` file.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) source: Source,
    pub(crate) diagnostics: Diagnostics,
}

impl Error {
    /// Everything that is wrong, if something is.
    pub(crate) fn of(mut errors: Vec<Error>) -> Option<Error> {
        if errors.len() > 1 { Some(Error::Several(errors)) } else { errors.pop() }
    }

    /// The stable code. What comes from other crates keeps the code it has there.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Error::Usage(_) => "C000",
            Error::Read { .. } => "C001",
            Error::NotText { .. } => "C002",
            Error::SourceTooLarge { .. } => "C003",
            Error::UnknownRule { .. } => "C004",
            Error::NoPrograms { .. } => "C005",
            Error::UnknownProgram { .. } => "C006",
            Error::SeveralPrograms { .. } => "C007",
            Error::ConstantValue { .. } => "C008",
            Error::NoGrid { .. } => "C009",
            Error::Format { .. } => "C010",
            Error::Npy { .. } => "C011",
            Error::NpyType { .. } => "C012",
            Error::NpyOrder { .. } => "C013",
            Error::NpyLength { .. } => "C014",
            Error::NotScalar { .. } => "C015",
            Error::OutTarget { .. } => "C016",
            Error::UnknownOut { .. } => "C017",
            Error::NotAResult { .. } => "C018",
            Error::OutTwice { .. } => "C019",
            Error::Unwritable { .. } => "C020",
            Error::NotAnImage { .. } => "C021",
            Error::SubgroupSize { .. } => "C022",
            Error::Trapped { .. } => "C023",
            Error::OutOfFuel { .. } => "C024",
            Error::TimedOut { .. } => "C025",
            Error::Stdout(_) => "C026",
            Error::NotABinding { .. } => "C027",
            Error::NoDirective { .. } => "C028",
            Error::BadDirective { .. } => "C029",
            Error::Spawn { .. } => "C030",
            Error::DoesNotHold { .. } => "C031",
            Error::Flag { .. } => "C032",
            Error::Source { .. } => "C033",
            Error::Scale { .. } => "C034",
            Error::Config { .. } => "C035",
            Error::Variable { .. } => "C036",
            Error::Differs { .. } => "C037",
            Error::Disagrees { .. } => "C038",
            Error::NoCache => "C039",
            Error::NotWorking { .. } => "C040",
            Error::Crashed { .. } => "C041",
            Error::TooManyTrips { .. } => "C043",
            Error::ChangedInput { .. } => "C044",
            Error::NotSettled { .. } => "C042",
            Error::NoMachineCode => "C045",
            Error::DeviceTwice { .. } => "C046",
            Error::MissingInput { .. } => "L004",
            Error::Several(errors) => first(errors).code(),
            Error::Reproduced { error, .. } => error.code(),
            Error::Faults(faults) => faults.diagnostics.first_code(),
            Error::Wire { error, .. }
            | Error::Binding { error, .. }
            | Error::Broke { error, .. }
            | Error::Foundation(error) => error.code(),
            Error::Reference(error) => error.code(),
            Error::Driver(error) => error.code(),
            Error::Library(error) => error.code(),
        }
    }

    /// How to fix it.
    pub(crate) fn help(&self) -> String {
        match self {
            Error::Usage(_) => "try --help".into(),
            Error::Read { error, .. } if error.kind() == io::ErrorKind::OutOfMemory => {
                "free memory, raise its limit, or name a smaller file".into()
            }
            Error::Read { .. } => "name a file that exists and can be read".into(),
            Error::NotText { .. } => "a .vyre file is UTF-8 text; is this the right file?".into(),
            Error::SourceTooLarge { .. } => "split it into several files; is this the right one?".into(),
            Error::UnknownRule { .. } => {
                "`vyre check --explain codes` lists the rules, `ops` the operations, `passes` the passes; of errors with other codes, \
                 their help line says all there is"
                    .into()
            }
            Error::NoPrograms { .. } => "write `program NAME workgroup(64) { … }`".into(),
            Error::UnknownProgram { known, .. } => format!("the file has: {}", known.join(", ")),
            Error::SeveralPrograms { known } => format!("say which with --program: {}", known.join(", ")),
            Error::ConstantValue { ty: Type::Bool, .. } => "write true or false".into(),
            Error::ConstantValue { ty, .. } if ty.is_float() => "write a number such as 1.5".into(),
            Error::ConstantValue { .. } => "write an integer that fits, such as 7 or 0xff".into(),
            Error::NoGrid { .. } => {
                "name the grid: --elements X[,Y[,Z]] in invocations, or --grid X[,Y[,Z]] in workgroups".into()
            }
            Error::Config { .. } | Error::Variable { .. } => {
                "`vyre config` lists the settings, with what they mean and where they come from".into()
            }
            Error::Differs { lanes: Some([one, other]), .. } | Error::Disagrees { lanes: Some([one, other]), .. } => {
                format!("the program uses subgroups, which have {one} lanes on one of them and {other} on the other")
            }
            Error::Differs { difference, .. } if difference.is_of_length() => {
                "expect as many elements as the result has".into()
            }
            Error::Differs { .. } => {
                "if they are close enough, say how close with --atol, --rtol or --ulp; what --out asks for was written".into()
            }
            Error::Disagrees { .. } => "is there a race? `vyre check --run` looks for some".into(),
            Error::Flag { flag: "--compare-devices", .. } | Error::DeviceTwice { .. } => {
                "name two devices or more, each once".into()
            }
            Error::NoMachineCode if HAS_CODE_GENERATOR => {
                "name a processor, with --target asm-avx2 or asm-avx512; `vyre config` says where `isa` comes from".into()
            }
            Error::NoMachineCode => "vyre generates machine code on x86-64 with Linux, macOS or another Unix".into(),
            Error::MissingInput { name, length } => format!("bind it, for example {name}=zeros:{length}"),
            Error::Several(errors) => first(errors).help(),
            Error::Flag { about, .. } if !matches!(*about, "a program" | "a pipeline") => "leave it out".into(),
            Error::Flag { .. } => "leave it out, or say which program or pipeline is meant with --program NAME".into(),
            Error::Format { reading: true, .. } => {
                "bind @file.npy, or @file.bin with the little-endian bytes of the elements".into()
            }
            Error::Format { reading: false, .. } => "write @file.npy, @file.bin, @file.png, or - for the screen".into(),
            Error::Npy { .. } => "save it again with numpy.save".into(),
            Error::NpyType { path, needed, .. } => {
                format!("convert it: numpy.save({:?}, array.astype('{needed}'))", path.display().to_string())
            }
            Error::NpyOrder { path } => {
                format!("convert it: numpy.save({:?}, numpy.ascontiguousarray(array))", path.display().to_string())
            }
            Error::NpyLength { .. } => "the file is cut off or damaged; save it again".into(),
            Error::NotScalar { name, .. } => {
                format!("give a file with a single value, or write the value: {name}=1")
            }
            Error::OutTarget { name, .. } => {
                format!("write {name}=@file.npy, {name}=@file.bin, {name}=@file.png or {name}=-")
            }
            Error::UnknownOut { known, .. } | Error::NotAResult { known, .. } => match known.as_slice() {
                [] => "there are no results".into(),
                known => format!("the results are: {}", known.join(", ")),
            },
            Error::OutTwice { .. } => "write each result to a file of its own".into(),
            Error::Unwritable { error, .. } => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    "make room there, or name a file on another disk".into()
                }
                io::ErrorKind::AlreadyExists => "choose another name".into(),
                _ => "name a file in a folder that exists and can be written".into(),
            },
            Error::NotAnImage { width, height, .. } => {
                let pixels = u64::from(*width) * u64::from(*height);
                format!(
                    "for this grid an image is {pixels} u8 (grey), {} u8 (RGB), {} u8 (RGBA), \
                     {pixels} u32 (0xAABBGGRR) or {pixels} f32 (grey, 0 to 1)",
                    pixels.saturating_mul(3),
                    pixels.saturating_mul(4),
                )
            }
            Error::SubgroupSize { .. } => {
                "`--device reference` runs with any power of two up to 128; other devices have a size of their own"
                    .into()
            }
            Error::Trapped { .. } => "look at what leads to this `trap`; nothing was written".into(),
            Error::OutOfFuel { .. } => {
                "does the loop end? if so, give it more trips with --fuel N; nothing was written".into()
            }
            Error::ChangedInput { .. } => {
                "restore the file of data, or take the hash of it out of the file to run it with what there is now".into()
            }
            Error::TooManyTrips { .. } => {
                "does the loop end? if so, use another device, such as cpu, or more invocations; nothing was written".into()
            }
            Error::TimedOut { .. } => {
                "does the kernel end? if so, give it more time with --timeout SECONDS; nothing was written".into()
            }
            Error::Source { nodes: 0, .. } => "name a graph that has nodes".into(),
            Error::Source { nodes, .. } => format!("name a node up to {} with --source", nodes - 1),
            Error::Scale { .. } => "write kron:18 or urand:18 for a random graph of 2^18 nodes".into(),
            Error::NotSettled { .. } => "allow more of them with --iterations, or more change with --tolerance".into(),
            Error::Stdout(_) => "is the disk full?".into(),
            Error::NotABinding { .. } => "with --run, write one file and then NAME=VALUE".into(),
            Error::NoDirective { .. } => {
                "write the bindings and the grid on the command line, or a line `//@ run --elements 4 x=1,2,3,4` in the file"
                    .into()
            }
            Error::BadDirective { .. } => "write it like the arguments of `vyre run`, without quotes".into(),
            Error::Spawn { .. } => "is there a shell?".into(),
            Error::DoesNotHold { .. } => {
                "the program is made smaller while the command exits with 0: turn it around with `!`, or try it by hand".into()
            }
            Error::Broke { pass, .. } => {
                format!("this is a bug in vyre; `--disable {pass}` does without the pass: please report it")
            }
            Error::NoCache => "set VYRE_CACHE, XDG_CACHE_HOME or HOME to a folder that can be written".into(),
            Error::NotWorking { .. } => "this may be a bug in its driver: is there a newer one? use another device".into(),
            Error::Crashed { .. } => "this is a bug in vyre or in a driver: please report it, with the file".into(),
            Error::Reproduced { error, .. } => error.help(),
            Error::Faults(_) => "each error above says how to fix it".into(),
            Error::Wire { error, .. } | Error::Binding { error, .. } | Error::Foundation(error) => error.help(),
            Error::Reference(error) => error.help().into(),
            Error::Driver(error) => match error {
                vyre_driver::Error::NoSuchDevice { name, .. } => match devices::named_by(name) {
                    Some(origin) => format!("{}; {origin} names `{name}`", error.help()),
                    None => error.help(),
                },
                _ => error.help(),
            },
            Error::Library(error) => error.help(),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Reproduced { error, .. } => error.exit_code(),
            Error::Several(errors) => first(errors).exit_code(),
            Error::Crashed { .. } => crate::INTERNAL,
            Error::Usage(message) => u8::try_from(message.exit_code()).unwrap_or(2),
            Error::Trapped { .. }
            | Error::Broke { .. }
            | Error::Differs { .. }
            | Error::Disagrees { .. }
            | Error::NotSettled { .. }
            | Error::NotWorking { .. } => 1,
            Error::Read { .. }
            | Error::UnknownRule { .. }
            | Error::UnknownProgram { .. }
            | Error::SeveralPrograms { .. }
            | Error::ConstantValue { .. }
            | Error::NoGrid { .. }
            | Error::Flag { .. }
            | Error::NoCache
            | Error::NoMachineCode
            | Error::DeviceTwice { .. }
            | Error::MissingInput { .. }
            | Error::Config { .. }
            | Error::Variable { .. }
            | Error::Source { .. }
            | Error::Scale { .. }
            | Error::Format { .. }
            | Error::Npy { .. }
            | Error::NpyType { .. }
            | Error::NpyOrder { .. }
            | Error::NpyLength { .. }
            | Error::NotScalar { .. }
            | Error::OutTarget { .. }
            | Error::UnknownOut { .. }
            | Error::NotAResult { .. }
            | Error::OutTwice { .. }
            | Error::Unwritable { .. }
            | Error::NotAnImage { .. }
            | Error::Stdout(_)
            | Error::NotABinding { .. }
            | Error::NoDirective { .. }
            | Error::BadDirective { .. }
            | Error::ChangedInput { .. }
            | Error::Spawn { .. }
            | Error::DoesNotHold { .. }
            | Error::Reference(_)
            | Error::Library(_)
            | Error::Binding { .. }
            | Error::Foundation(_)
            | Error::SubgroupSize { .. } => 2,
            Error::NotText { .. }
            | Error::SourceTooLarge { .. }
            | Error::NoPrograms { .. }
            | Error::Wire { .. }
            | Error::Faults(_) => 3,
            Error::OutOfFuel { .. } | Error::TooManyTrips { .. } | Error::TimedOut { .. } => 5,
            Error::Driver(error) => match error {
                vyre_driver::Error::NoSuchDevice { .. }
                | vyre_driver::Error::NoAdapter { .. }
                | vyre_driver::Error::Unsupported { .. } => 4,
                vyre_driver::Error::DeviceLost { .. }
                | vyre_driver::Error::Cancelled
                | vyre_driver::Error::Stopped { .. } => 5,
                vyre_driver::Error::WrongResult { .. }
                | vyre_driver::Error::Foundation(vyre_foundation::Error::PassBroke { .. }) => 1,
                vyre_driver::Error::Backend { .. } => 70,
                _ => 2,
            },
        }
    }

    /// Whether nothing that the caller did can be the reason, as far as one can tell.
    pub(crate) fn is_unexpected(&self) -> bool {
        use vyre_driver::Error::{Backend, DeviceLost, Foundation, WrongResult};
        use vyre_foundation::Error::PassBroke;
        matches!(
            self,
            Error::Differs { .. }
                | Error::Disagrees { .. }
                | Error::Broke { .. }
                | Error::Foundation(PassBroke { .. })
                | Error::Driver(Backend { .. } | DeviceLost { .. } | WrongResult { .. } | Foundation(PassBroke { .. }))
        )
    }

    /// Shows the error on standard error. That nobody may be reading there is no reason to fail in another way.
    pub(crate) fn report(&self, json: bool) {
        let text = match json {
            true => format!("{}\n", json!({ "errors": self.objects(), "exit_code": self.exit_code() })),
            false => self.text(),
        };
        let _ = io::Write::write_all(&mut terminal::stderr(), text.as_bytes());
    }

    fn text(&self) -> String {
        if let Error::Usage(message) = self {
            return message.to_string();
        }
        if let Error::Faults(faults) = self {
            return faults.diagnostics.render(&faults.source.file, &faults.source.text);
        }
        if let Error::Several(errors) = self {
            return errors.iter().map(Error::text).collect();
        }
        let mut text = format!("error[{}]: {self}\n", self.code());
        if let Some(Place { file, line, column, excerpt }) = self.place() {
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

    /// The error, or each of the errors in a file, for `--json`.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let object = |code: &str, message: String, place: Option<&Place>, help: String| {
            json!({
                "code": code,
                "message": message,
                "line": place.map(|place| place.line),
                "column": place.map(|place| place.column),
                "help": help,
            })
        };
        if let Error::Several(errors) = self {
            return errors.iter().flat_map(Error::objects).collect();
        }
        let Error::Faults(faults) = self else {
            let mut object = object(self.code(), self.to_string(), self.place(), self.help());
            if let Error::Differs { difference, .. } = self.inner() {
                object["difference"] = difference.object();
            }
            match self {
                Error::Reproduced { replay: Ok((file, command)), .. } => {
                    (object["replay"], object["reproducer"]) = (command.as_str().into(), json!(file));
                }
                Error::Reproduced { replay: Err(reason), .. } => object["not_replayable"] = reason.as_str().into(),
                _ => {}
            }
            return vec![object];
        };
        let diagnostics = faults.diagnostics.iter().map(|diagnostic| {
            let place = faults.source.place(diagnostic.span);
            let fault = &diagnostic.fault;
            object(fault.code(), fault.to_string(), place.as_ref(), fault.help())
        });
        diagnostics.collect()
    }

    /// What happened, apart from how to see it again.
    fn inner(&self) -> &Error {
        match self {
            Error::Reproduced { error, .. } => error,
            error => error,
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Error::Trapped { place, .. }
            | Error::OutOfFuel { place, .. }
            | Error::TooManyTrips { place, .. }
            | Error::TimedOut { place, .. }
            | Error::Config { place, .. } => place.as_ref(),
            _ => None,
        }
    }
}

impl From<vyre::Error> for Error {
    /// Errors of other crates stay what they are: exit codes depend on them.
    fn from(error: vyre::Error) -> Error {
        match error {
            vyre::Error::Driver(vyre_driver::Error::Foundation(error)) => error.into(),
            vyre::Error::Driver(error) => error.into(),
            error => Error::Library(error),
        }
    }
}

/// Of several errors, of which there are two at least.
fn first(errors: &[Error]) -> &Error {
    &errors[0]
}

/// What is wrong, without what clap says about how to go on.
fn first_paragraph(message: &clap::Error) -> String {
    let message = message.to_string();
    let lines = message.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

fn first_of(count: u64) -> String {
    if count == 1 { "the only one that trapped".into() } else { format!("the first of {count} that trapped") }
}
