//! The one error of this crate.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;

use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::ir::{Program, Span};
use vyre_foundation::launch::Outcome;

/// A line of Rust source, `file:line:column`.
pub type Place = &'static Location<'static>;

/// What can go wrong between a kernel and its results.
///
/// `Debug` is for people, too: an error that `main` returns is shown with its code, the line of the kernel and the help.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device, a buffer, an argument or a grid that cannot be used.
    #[error(transparent)]
    Driver(#[from] vyre_driver::Error),
    /// The kernel breaks rules that rustc does not know.
    #[error("`{kernel}` cannot be run:{}", mistakes.iter().map(|(place, mistake)| format!("\n  {}{mistake}", prefix(*place))).collect::<String>())]
    Invalid {
        /// The kernel.
        kernel: String,
        /// What is wrong, and where.
        mistakes: Vec<(Option<Place>, String)>,
    },
    /// An invocation called `trap`.
    #[error("{}`{kernel}` trapped with code {code} in invocation {invocation} ({count} in all)", prefix(*place))]
    Trapped {
        /// The kernel.
        kernel: String,
        /// What was given to `trap`.
        code: u32,
        /// The lowest invocation that trapped.
        invocation: u32,
        /// How many invocations trapped.
        count: u64,
        /// The `trap`.
        place: Option<Place>,
    },
    /// A loop took more trips than the launch may.
    #[error("{}`{kernel}` ran out of fuel in this loop", prefix(*place))]
    OutOfFuel {
        /// The kernel.
        kernel: String,
        /// The loop.
        place: Option<Place>,
    },
    /// The launch took longer than it may.
    #[error("{}`{kernel}` did not end before its deadline", prefix(*place))]
    DeadlinePassed {
        /// The kernel.
        kernel: String,
        /// The loop that was running, if it was one.
        place: Option<Place>,
    },
    /// A transient buffer where it has no memory: outside of the launches of its pipeline.
    #[error("a transient buffer has no memory outside of the launches of its pipeline")]
    Transient,
    /// An index or a size for which 32 bits are not enough.
    #[error("`{name}` is {value}, but indices of devices have 32 bits")]
    TooLarge {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: i128,
    },
    /// A buffer that is too short or too long for what else was given.
    #[error("`{name}` has {found} elements instead of {expected}")]
    Length {
        /// The buffer.
        name: &'static str,
        /// How many elements it should have.
        expected: usize,
        /// How many it has.
        found: usize,
    },
    /// Something that a feature of this crate is needed for, which is off.
    #[error("{what} needs the feature `{feature}` of the crate `vyre`, which is off")]
    MissingFeature {
        /// The requested output.
        what: &'static str,
        /// The feature.
        feature: &'static str,
    },
    /// The device `cpu` runs a kernel without machine code.
    #[error("there is no machine code of `{kernel}`: {reason}")]
    NoMachineCode {
        /// The kernel.
        kernel: String,
        /// The reason.
        reason: String,
    },
    /// A file that cannot be written.
    #[error("cannot write `{}`: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        reason: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}\nhelp: {}", self.code(), self.help())
    }
}

fn prefix(place: Option<Place>) -> String {
    place.map_or_else(String::new, |place| format!("{place}: "))
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Driver(error) => error.code(),
            Error::Invalid { .. } => "K001",
            Error::Trapped { .. } => "K002",
            Error::OutOfFuel { .. } => "K003",
            Error::DeadlinePassed { .. } => "K004",
            Error::TooLarge { .. } => "K005",
            Error::Transient => "K006",
            Error::Length { .. } => "K007",
            Error::MissingFeature { .. } => "K008",
            Error::NoMachineCode { .. } => "K009",
            Error::Write { .. } => "K010",
        }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            Error::Driver(error) => error.help(),
            Error::Invalid { .. } => "change the kernel at these lines".into(),
            Error::Trapped { .. } => "look at what leads to this `trap`".into(),
            Error::OutOfFuel { .. } => "make sure that the loop ends, or give more fuel with `Launch::limits`".into(),
            Error::DeadlinePassed { .. } => "launch less at a time, or give more time with `Launch::limits`".into(),
            Error::TooLarge { .. } => "work in smaller pieces".into(),
            Error::Length { expected, .. } => {
                format!("give {expected} elements; `Buffer::slice` is a part of a buffer")
            }
            Error::MissingFeature { feature, .. } => {
                format!("turn it on in Cargo.toml: `vyre = {{ …, features = [\"{feature}\"] }}`")
            }
            Error::NoMachineCode { .. } => {
                "code is generated for AVX2 and AVX-512 on Unix systems; the portable executor runs the kernel elsewhere".into()
            }
            Error::Write { .. } => "name a file in a folder that exists and can be written to".into(),
            Error::Transient => "record what uses it, or take a buffer of the device: `device.zeros(n)`".into(),
        }
    }

    /// What is wrong with a program, by lines of the kernel.
    pub(crate) fn invalid(program: &Program, error: vyre_foundation::Error) -> Error {
        let vyre_foundation::Error::Invalid(diagnostics) = &error else { return error.into() };
        let mistakes = diagnostics.iter();
        let mistakes =
            mistakes.map(|found| (program.place(found.span), format!("{} ({})", found.fault, found.fault.help())));
        Error::Invalid { kernel: program.name.clone(), mistakes: mistakes.collect() }
    }

    /// What an outcome says went wrong.
    pub(crate) fn check(program: &Program, outcome: &Outcome) -> Result<(), Error> {
        let kernel = || program.name.clone();
        let place = |span: Span| program.place(span);
        match *outcome {
            Outcome::Completed => Ok(()),
            Outcome::Trapped { code, invocation, span, count } => {
                Err(Error::Trapped { kernel: kernel(), code, invocation, count, place: place(span) })
            }
            Outcome::OutOfFuel { span } => Err(Error::OutOfFuel { kernel: kernel(), place: place(span) }),
            Outcome::DeadlinePassed { span } => Err(Error::DeadlinePassed { kernel: kernel(), place: place(span) }),
        }
    }
}

/// A report of a sanitizer: something that is well-defined, but almost always a bug.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The stable code of its kind.
    pub code: &'static str,
    /// The line of the kernel.
    pub place: Option<Place>,
    /// Other lines that take part, such as the first access of a data race, and how.
    pub related: Vec<(Place, String)>,
    /// What it does.
    pub message: String,
    /// How to fix it.
    pub help: String,
    /// Whether it may be harmless, such as invocations that store the same value.
    pub is_warning: bool,
}

impl Finding {
    pub(crate) fn new(program: &Program, found: &Diagnostic) -> Finding {
        Finding {
            code: found.fault.code(),
            place: program.place(found.span),
            related: found
                .labels
                .iter()
                .filter_map(|label| Some((program.place(label.span)?, label.text.clone())))
                .collect(),
            message: found.fault.to_string(),
            help: found.fault.help(),
            is_warning: found.fault.is_warning(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}{}", self.code, prefix(self.place), self.message)?;
        for (place, text) in &self.related {
            write!(f, "\n  {}{text}", prefix(Some(*place)))?;
        }
        write!(f, "\n  help: {}", self.help)
    }
}

impl From<vyre_foundation::Error> for Error {
    fn from(error: vyre_foundation::Error) -> Error {
        Error::Driver(error.into())
    }
}
