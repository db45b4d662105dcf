//! The one error of this crate.

use std::fmt;
use std::path::PathBuf;

use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::error_table;
use vyre_foundation::ir::{Program, SourceLoc, SourceMap, Span};
use vyre_foundation::launch::Outcome;

/// A line of source, `file:line:column`.
pub type Place = SourceLoc;

error_table! {
    /// Errors between a kernel and its results.
    ///
    /// `Debug` is for people, too: an error that `main` returns is shown with its code, the line of the kernel and the help.
    #[derive(Clone, PartialEq)]
    pub enum Error wraps {
        /// A device, a buffer, an argument or a grid that cannot be used.
        Driver(#[from] error: vyre_driver::Error) message("{0}"), code error.code(), help error.help();
        /// A plan, a megakernel or a graph that cannot be used.
        Runtime(error: vyre_runtime::Error) message("{0}"), code error.code(), help error.help();
    };

    /// The kernel breaks rules that rustc does not know.
    K001 Invalid {
        /// The kernel.
        kernel: String,
        /// What is wrong, and where.
        mistakes: Vec<(Option<Place>, String)>,
    } ("`{kernel}` cannot be run:{}", mistakes.iter().map(|(place, mistake)| format!("\n  {}{mistake}", prefix(place.as_ref()))).collect::<String>()),
    help "change the kernel at these lines";

    /// An invocation called `trap`.
    K002 Trapped {
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
    } ("{}`{kernel}` trapped with code {code} in invocation {invocation} ({count} in all)", prefix(place.as_ref())),
    help "look at what leads to this `trap`";

    /// A loop took more trips than the launch may.
    K003 OutOfFuel {
        /// The kernel.
        kernel: String,
        /// The loop.
        place: Option<Place>,
    } ("{}`{kernel}` ran out of fuel in this loop", prefix(place.as_ref())),
    help "make sure that the loop ends, or give more fuel with `Launch::limits`";

    /// The launch took longer than it may.
    K004 DeadlinePassed {
        /// The kernel.
        kernel: String,
        /// The loop that was running, if it was one.
        place: Option<Place>,
    } ("{}`{kernel}` did not end before its deadline", prefix(place.as_ref())),
    help "launch less at a time, or give more time with `Launch::limits`";

    /// An index or a size for which 32 bits are not enough.
    K005 TooLarge {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: i128,
    } ("`{name}` is {value}, but indices of devices have 32 bits"), help "work in smaller pieces";

    /// A transient buffer where it has no memory: outside of the launches of its pipeline.
    K006 Transient ("a transient buffer has no memory outside of the launches of its pipeline"),
    help "record what uses it, or take a buffer of the device: `device.zeros(n)`";

    /// A buffer that is too short or too long for what else was given.
    K007 Length {
        /// The buffer.
        name: &'static str,
        /// How many elements it should have.
        expected: usize,
        /// How many it has.
        found: usize,
    } ("`{name}` has {found} elements instead of {expected}"),
    help format!("give {expected} elements; `Buffer::slice` is a part of a buffer");

    /// Something that a feature of this crate is needed for, which is off.
    K008 MissingFeature {
        /// The requested output.
        what: &'static str,
        /// The feature.
        feature: &'static str,
    } ("{what} needs the feature `{feature}` of the crate `vyre`, which is off"),
    help format!("turn it on in Cargo.toml: `vyre = {{ …, features = [\"{feature}\"] }}`");

    /// The device `cpu` runs a kernel without machine code.
    K009 NoMachineCode {
        /// The kernel.
        kernel: String,
        /// The reason.
        reason: String,
    } ("there is no machine code of `{kernel}`: {reason}"),
    help "code is generated for AVX2 and AVX-512 on Unix systems; the portable executor runs the kernel elsewhere";

    /// A file that cannot be written.
    K010 Write {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        reason: String,
    } ("cannot write `{}`: {reason}", path.display()), help "name a file in a folder that exists and can be written to";
}

impl From<vyre_runtime::Error> for Error {
    /// Errors of the driver stay what they are, whichever call gave them.
    fn from(error: vyre_runtime::Error) -> Error {
        match error {
            vyre_runtime::Error::Driver(error) => Error::Driver(error),
            error => Error::Runtime(error),
        }
    }
}

impl From<vyre_foundation::Error> for Error {
    fn from(error: vyre_foundation::Error) -> Error {
        Error::Driver(error.into())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}\nhelp: {}", self.code(), self.help())
    }
}

fn prefix(place: Option<&Place>) -> String {
    place.map_or_else(String::new, |place| format!("{place}: "))
}

impl Error {
    /// What is wrong with a program, by lines of the kernel.
    pub(crate) fn invalid(kernel: &str, sources: &SourceMap, error: vyre_foundation::Error) -> Error {
        let vyre_foundation::Error::Invalid(diagnostics) = &error else { return error.into() };
        let mistakes = diagnostics.iter();
        let mistakes =
            mistakes.map(|found| (sources.locate(found.span), format!("{} ({})", found.fault, found.fault.help())));
        Error::Invalid { kernel: kernel.to_owned(), mistakes: mistakes.collect() }
    }

    /// What an outcome says went wrong.
    pub(crate) fn check(program: &Program, outcome: &Outcome) -> Result<(), Error> {
        let kernel = || program.name().to_owned();
        let place = |span: Span| program.locate(span);
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
            place: program.locate(found.span),
            related: found
                .labels
                .iter()
                .filter_map(|label| Some((program.locate(label.span)?, label.text.clone())))
                .collect(),
            message: found.fault.to_string(),
            help: found.fault.help(),
            is_warning: found.fault.is_warning(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}{}", self.code, prefix(self.place.as_ref()), self.message)?;
        for (place, text) in &self.related {
            write!(f, "\n  {}{text}", prefix(Some(place)))?;
        }
        write!(f, "\n  help: {}", self.help)
    }
}
