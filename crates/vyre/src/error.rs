//! Error type of this crate, and findings of the sanitizers.

use std::fmt;
use std::path::PathBuf;

use vyre_foundation::diagnostics::Diagnostic;
use vyre_foundation::error_table;
use vyre_foundation::ir::{Program, SourceLoc, SourceMap, Span};
use vyre_foundation::launch::Outcome;

error_table! {
    /// Errors of kernels, launches and buffers.
    ///
    /// `Debug` prints the code, the line of the kernel and the help, because Rust prints an error that `main` returns by `Debug`.
    #[derive(Clone, PartialEq)]
    pub enum Error wraps {
        /// Error of a device, a buffer, an argument or a grid.
        Driver(#[from] error: vyre_driver::Error) message("{0}"), code error.code(), help error.help();
        /// Error of a plan, a megakernel or a graph.
        Runtime(error: vyre_runtime::Error) message("{0}"), code error.code(), help error.help();
    };

    /// The validator rejects the kernel.
    K001 Invalid {
        /// The kernel.
        kernel: String,
        /// Location and message of each fault.
        mistakes: Vec<(Option<SourceLoc>, String)>,
    } ("`{kernel}` is not valid:{}", mistakes.iter().map(|(location, mistake)| format!("\n  {}{mistake}", prefix(location.as_ref()))).collect::<String>()),
    help "each line names the statement to change and, in parentheses, the change";

    /// An invocation called `trap`.
    K002 Trapped {
        /// The kernel.
        kernel: String,
        /// Operand of `trap`.
        code: u32,
        /// The lowest invocation that trapped.
        invocation: u32,
        /// Number of invocations that trapped.
        count: u64,
        /// Location of the `trap`.
        location: Option<SourceLoc>,
    } ("{}`{kernel}` trapped with code {code} in invocation {invocation} ({count} in all)", prefix(location.as_ref())),
    help "the kernel defines this code: check the condition that leads to this `trap`";

    /// A loop ran out of fuel.
    K003 OutOfFuel {
        /// The kernel.
        kernel: String,
        /// Location of the loop.
        location: Option<SourceLoc>,
    } ("{}`{kernel}` ran out of fuel in this loop", prefix(location.as_ref())),
    help "check that the loop ends, or raise the limit: `.limits(Limits { fuel: 1 << 44, ..Limits::default() })`";

    /// The launch missed its deadline.
    K004 DeadlinePassed {
        /// The kernel.
        kernel: String,
        /// Location of the loop that was running, if one was.
        location: Option<SourceLoc>,
    } ("{}`{kernel}` did not end before its deadline", prefix(location.as_ref())),
    help "launch fewer invocations at a time, or raise `deadline` of the `Limits` given to `Launch::limits`";

    /// A size or index that does not fit into 32 bits.
    K005 TooLarge {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: i128,
    } ("`{name}` is {value}, but sizes and indices on devices have 32 bits"), help "split the work into smaller launches";

    /// A transient buffer outside of its pipeline.
    K006 Transient ("a transient buffer has no memory outside of the launches of its pipeline"),
    help "record the launch in the buffer's pipeline, or allocate a buffer on the device: `device.zeros(n)`";

    /// A buffer of the wrong length.
    K007 Length {
        /// The buffer.
        name: &'static str,
        /// The required number of elements.
        expected: usize,
        /// The number of elements of the buffer.
        found: usize,
    } ("`{name}` has {found} elements instead of {expected}"),
    help format!("pass {expected} elements; `buffer.slice(0..n)` borrows a part of a longer buffer");

    /// An output that needs a disabled feature of this crate.
    K008 MissingFeature {
        /// The requested output.
        what: &'static str,
        /// The feature.
        feature: &'static str,
    } ("{what} needs the feature `{feature}` of the crate `vyre`, which is off"),
    help format!("enable it in Cargo.toml: `vyre = {{ …, features = [\"{feature}\"] }}`");

    /// The device `cpu` has no machine code for a kernel.
    K009 NoMachineCode {
        /// The kernel.
        kernel: String,
        /// The reason.
        reason: String,
    } ("there is no machine code for `{kernel}`: {reason}"),
    help "code is generated for AVX2 and AVX-512 on Unix systems; elsewhere the portable executor runs the kernel";

    /// A file that cannot be written.
    K010 Write {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        reason: String,
    } ("cannot write `{}`: {reason}", path.display()), help "name a file in an existing, writable folder";
}

impl From<vyre_runtime::Error> for Error {
    /// Unwraps driver errors, so that they match the same variant whichever call returned them.
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

fn prefix(location: Option<&SourceLoc>) -> String {
    location.map_or_else(String::new, |location| format!("{location}: "))
}

impl Error {
    /// Converts the validator's diagnostics, with locations in the kernel's source.
    pub(crate) fn invalid(kernel: &str, sources: &SourceMap, error: vyre_foundation::Error) -> Error {
        let vyre_foundation::Error::Invalid(diagnostics) = &error else { return error.into() };
        let mistakes = diagnostics.iter();
        let mistakes =
            mistakes.map(|found| (sources.locate(found.span), format!("{} ({})", found.fault, found.fault.help())));
        Error::Invalid { kernel: kernel.to_owned(), mistakes: mistakes.collect() }
    }

    /// Converts the outcome of a launch into an error, with the location in the kernel's source.
    pub(crate) fn check(program: &Program, outcome: &Outcome) -> Result<(), Error> {
        let kernel = || program.name().to_owned();
        let location = |span: Span| program.locate(span);
        match *outcome {
            Outcome::Completed => Ok(()),
            Outcome::Trapped { code, invocation, span, count } => {
                Err(Error::Trapped { kernel: kernel(), code, invocation, count, location: location(span) })
            }
            Outcome::OutOfFuel { span } => Err(Error::OutOfFuel { kernel: kernel(), location: location(span) }),
            Outcome::DeadlinePassed { span } => {
                Err(Error::DeadlinePassed { kernel: kernel(), location: location(span) })
            }
        }
    }
}

/// Report of a sanitizer: behaviour that is well-defined, but almost always a bug.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable code of the rule.
    pub code: &'static str,
    /// Location in the kernel's source.
    pub location: Option<SourceLoc>,
    /// Related locations, such as the other access of a data race, each with its role.
    pub related: Vec<(SourceLoc, String)>,
    /// Description with values.
    pub message: String,
    /// Suggested fix.
    pub help: String,
    /// Possibly harmless, such as invocations that race to store the same value.
    pub is_warning: bool,
}

impl Finding {
    pub(crate) fn new(program: &Program, found: &Diagnostic) -> Finding {
        Finding {
            code: found.fault.code(),
            location: program.locate(found.span),
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
        write!(f, "[{}] {}{}", self.code, prefix(self.location.as_ref()), self.message)?;
        for (location, text) in &self.related {
            write!(f, "\n  {}{text}", prefix(Some(location)))?;
        }
        write!(f, "\n  help: {}", self.help)
    }
}
