//! The error type of this crate, and the macro that declares error tables.

use crate::diagnostics::Diagnostics;
use crate::ir::{Element, Type};

/// Declares an error enum as a table, with a row for each error. A row has these columns, in this order:
///
/// - documentation,
/// - the stable code and the name,
/// - typed data, if any,
/// - the message, as [`thiserror`] formats it,
/// - `help`: how to fix it,
/// - `exit`: the exit code of a command, unless it is the default of the table (`exit DEFAULT` after the name of the enum),
/// - `example`: a text that causes the error, for tables that are `listed in` a static.
///
/// Rows in `wraps` carry an error of another table; their `code` is an expression over their data.
#[doc(hidden)]
#[macro_export]
macro_rules! error_table {
    (@from from $name:ident $variant:ident $wrapped:ty) => {
        impl From<$wrapped> for $name {
            fn from(error: $wrapped) -> $name {
                $name::$variant(error)
            }
        }
    };
    (@exit $vis:vis $name:ident [] $($rows:tt)*) => {};
    (@exit $vis:vis $name:ident [$default:expr] $($variant:ident [$($data:tt)*] [$($exit:expr)?])*) => {
        impl $name {
            /// Exit code of a command that ends with this error.
            #[allow(unused_variables)] // Most exit codes need none of the data.
            $vis fn exit_code(&self) -> u8 {
                match self { $( $name::$variant $($data)* => $crate::error_table!(@or $default $(, $exit)?), )* }
            }
        }
    };
    (@or $default:expr) => { $default };
    (@or $default:expr, $exit:expr) => { $exit };
    (@list [] $($rows:tt)*) => {};
    (@list [$list:ident] $($code:ident [$($doc:literal)*] [$($example:literal)?])*) => {
        /// Documentation of every row, in the order of the table.
        pub static $list: &[$crate::diagnostics::FaultInfo] = &[ $( $crate::diagnostics::FaultInfo {
            code: stringify!($code),
            doc: concat!($($doc),*),
            example: $crate::error_table!(@or None $(, Some($example))?),
        }, )* ];
    };
    (
        $(#[$of_all:meta])*
        $vis:vis enum $name:ident $(listed in $list:ident)? $(exit $default_exit:literal)? $(wraps { $(
            $(#[doc = $about:literal])*
            $wraps:ident
            $(($(#[$from:ident])? $inner:ident: $wrapped:ty))?
            $({ $($(#[doc = $part_doc:literal])* $part:ident: $part_ty:ty),* $(,)? })?
            message($($its_message:tt)*), code $its_code:expr, help $its_help:expr $(, exit $its_exit:expr)?;
        )* })?;
        $(
            $(#[doc = $doc:literal])*
            $code:ident $variant:ident $({ $($(#[doc = $field_doc:literal])* $field:ident: $ty:ty),* $(,)? })?
            ($($message:tt)*), help $help:expr $(, exit $exit:expr)? $(, example $example:literal)?;
        )*
    ) => {
        $(#[$of_all])*
        #[derive(thiserror::Error)]
        #[non_exhaustive]
        $vis enum $name {
            $($(
                $(#[doc = $about])*
                #[error($($its_message)*)]
                $wraps $(($wrapped))? $({ $($(#[doc = $part_doc])* $part: $part_ty),* })?,
            )*)?
            $(
                $(#[doc = $doc])*
                #[error($($message)*)]
                $variant $({ $($(#[doc = $field_doc])* $field: $ty),* })?,
            )*
        }

        impl $name {
            /// Stable code; of several diagnostics, the code of the first one.
            #[allow(unused_variables)] // Most codes need none of the data.
            $vis fn code(&self) -> &'static str {
                match self {
                    $($( $name::$wraps $(($inner))? $({ $($part),* })? => $its_code, )*)?
                    $( $name::$variant { .. } => stringify!($code), )*
                }
            }

            /// How to fix it.
            #[allow(unused_variables)] // Most help lines need only some of the data.
            $vis fn help(&self) -> String {
                match self {
                    $($( $name::$wraps $(($inner))? $({ $($part),* })? => String::from($its_help), )*)?
                    $( $name::$variant $({ $($field),* })? => String::from($help), )*
                }
            }
        }

        $($($($( $crate::error_table! { @from $from $name $wraps $wrapped } )?)?)*)?
        $crate::error_table! { @exit $vis $name [$($default_exit)?]
            $($( $wraps [$(($inner))? $({ $($part),* })?] [$($its_exit)?] )*)?
            $( $variant [$({ $($field),* })?] [$($exit)?] )*
        }
        $crate::error_table! { @list [$($list)?] $( $code [$($doc)*] [$($example)?] )* }
    };
}

error_table! {
    /// Errors of building, reading, validating, optimizing and binding programs.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Error wraps {
        /// The text has syntax errors; every error is listed.
        Text(found: Diagnostics) message("{0}"), code found.first_code(), help "each error has its own help line";
        /// The program breaks rules of the IR; every violation is listed.
        Invalid(found: Diagnostics) message("{0}"), code found.first_code(), help "each error has its own help line";
    };

    /// Bytes that are not the encoding of a module.
    W001 Wire {
        /// Offset of the first byte that is invalid.
        at: usize,
        /// Reason.
        reason: String,
    } ("byte {at}: {reason}"), help "write the file again, with `vyre print --wire`";

    /// A builder call that violates a rule.
    F001 Build {
        /// Call in the caller's source.
        location: &'static std::panic::Location<'static>,
        /// Violation.
        mistake: String,
    } ("{location}: {mistake}"), help "correct the statement on that line";

    /// The program declares no specialization constant or uniform of this name.
    F002 UnknownConstant {
        /// Name passed.
        name: String,
        /// Declared constants and uniforms.
        known: Vec<String>,
    } ("there is no constant or uniform named `{name}`"),
    help match known.is_empty() {
        true => "the program declares no constants and no uniforms".to_owned(),
        false => format!("the program declares: {}", known.join(", ")),
    };

    /// A value of another type than the specialization constant or uniform.
    F003 ConstantType {
        /// The constant.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    } ("`{name}` is {declared}, but the value given is {given}"), help format!("pass a value of type {declared}");

    /// A text that is not a value of the element type.
    F004 NotAValue {
        /// Text passed.
        text: String,
        /// Expected type.
        element: Element,
    } ("`{text}` is not a value of type {element}"),
    help {
        let example = if element.value_type().is_float() { "1.5, -2e3, inf or nan" } else { "7 or 0xff" };
        format!("write a value that {element} can hold, such as {example}")
    };

    /// Invalid data notation such as `zeros:N`.
    F005 Fill {
        /// Text passed.
        text: String,
        /// Reason.
        reason: &'static str,
    } ("`{text}`: {reason}"), help "write values such as 1,2,3, or zeros:N, iota:N or random:N:SEED";

    /// More elements than an object can have, or than fit into memory.
    F006 TooLarge {
        /// Number of elements.
        elements: u64,
        /// Their type.
        element: Element,
    } ("{elements} elements of type {element} exceed 2^32 - 1 elements or the available memory"),
    help "use fewer elements";

    /// A grid with 2³² invocations or more.
    L001 GridTooLarge {
        /// Workgroups in each dimension.
        groups: [u32; 3],
        /// Invocations of a workgroup.
        workgroup_size: [u32; 3],
    } ("a grid of {groups:?} workgroups of {workgroup_size:?} has 2^32 or more invocations"),
    help "launch fewer workgroups, or split the work into several launches";

    /// An argument that the program does not have.
    L002 UnknownBinding {
        /// Name passed.
        name: String,
        /// Names of the arguments.
        known: Vec<String>,
    } ("the program has no argument named `{name}`"),
    help match known.is_empty() {
        true => "the program takes no arguments".to_owned(),
        false => format!("the program takes: {}", known.join(", ")),
    };

    /// Two arguments for one object.
    L003 BoundTwice {
        /// The object.
        name: String,
    } ("`{name}` is bound twice"), help "bind it once";

    /// No argument for an object that needs one.
    L004 MissingBinding {
        /// The object.
        name: String,
        /// Example of a value.
        example: &'static str,
    } ("`{name}` is not bound"), help format!("bind it, for example {name}={example}");

    /// A buffer for a uniform.
    L005 ScalarExpected {
        /// The uniform.
        name: String,
    } ("`{name}` is a uniform scalar, but a buffer is bound to it"), help "bind a single value";

    /// A scalar for a storage object.
    L006 BufferExpected {
        /// The object.
        name: String,
    } ("`{name}` is a storage object, but a scalar is bound to it"), help "bind a buffer";

    /// A scalar of another type than its uniform.
    L007 ScalarType {
        /// The uniform.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    } ("uniform `{name}` is {declared}, but the value given is {given}"), help format!("pass a value of type {declared}");

    /// A buffer of another element type than its object.
    L008 ElementType {
        /// The object.
        name: String,
        /// Its element type.
        declared: Element,
        /// Element type of the buffer.
        given: Element,
    } ("`{name}` has elements of type {declared}, but the buffer has {given}"),
    help format!("bind a buffer of {declared}");

    /// A slice that is not whole elements.
    L009 PartialElement {
        /// The object.
        name: String,
        /// The size of the buffer.
        bytes: u64,
        /// The element type.
        element: Element,
    } ("`{name}` is bound to {bytes} bytes, which are not whole elements of type {element}"),
    help format!("start and length must be multiples of {} bytes", element.size());

    /// A slice that is not aligned for an element type as which the program accesses it.
    L014 Misaligned {
        /// The object.
        name: String,
        /// The first byte of the slice.
        start: u64,
        /// The element type of the access.
        element: Element,
    } ("`{name}` starts at byte {start} of its buffer, and the program accesses it as {element}"),
    help format!("start at a multiple of {} bytes", element.size());

    /// A buffer of another length than the program declares.
    L010 LengthMismatch {
        /// The object.
        name: String,
        /// The length that is declared.
        declared: u32,
        /// The length of the buffer.
        given: u64,
    } ("`{name}` has {declared} elements, but the buffer has {given}"),
    help format!("bind exactly {declared} elements");

    /// Two objects overlap (alias), and one of them is written.
    L011 Overlap {
        /// First object.
        first: String,
        /// Second object.
        second: String,
    } ("`{first}` and `{second}` overlap, and the program writes at least one of them"),
    help "bind them to separate buffers, or to parts that do not overlap";

    /// An argument that is not a buffer of the pipeline.
    L013 UnknownBuffer {
        /// The object that it is bound to.
        object: String,
        /// Index of the buffer.
        buffer: usize,
        /// Number of buffers of the pipeline.
        count: usize,
    } ("`{object}` is bound to buffer {buffer}, but the pipeline has {count} buffers"),
    help "use ids that `buffer` and `attach` of the same pipeline returned";

    /// A dispatch that writes an input of its pipeline.
    L012 InputWritten {
        /// The buffer.
        buffer: String,
        /// The object.
        object: String,
    } ("`{buffer}` is an input of the pipeline, but is bound to `{object}`, which may be written"),
    help format!("declare it as `inout {buffer}`, or bind another buffer");

    /// Two passes with one name.
    O001 DuplicatePass {
        /// The name.
        pass: String,
    } ("there are two passes named `{pass}`"), help "give one of them another name";

    /// A pass requires a pass that is not registered.
    O002 UnknownRequirement {
        /// The pass.
        pass: String,
        /// Required pass.
        requires: String,
    } ("pass `{pass}` requires `{requires}`, which does not exist"), help "register it, or do not require it";

    /// A cycle of requirements between passes.
    O003 RequirementCycle {
        /// Passes that can never run, in the order of the list.
        passes: Vec<String>,
    } ("these passes require each other: {}", passes.join(", ")), help "remove one of the requirements";

    /// A pass of a profile requires a pass that the profile rejects.
    O004 RejectedRequirement {
        /// The pass.
        pass: String,
        /// Required pass.
        requires: String,
        /// The profile.
        profile: &'static str,
    } ("profile `{profile}` accepts pass `{pass}` but not `{requires}`, which it requires"),
    help "put both into the same phase and boundary class";

    /// No pass has this name.
    O005 UnknownPass {
        /// Name passed.
        name: String,
        /// Registered passes.
        known: Vec<String>,
    } ("there is no pass named `{name}`"), help format!("the passes are: {}", known.join(", "));

    /// Syntax error in a list of passes.
    O006 BadPipeline {
        /// Text passed.
        text: String,
    } ("`{text}` is not a list of passes"), help "write PASS,PASS,… or fixpoint(PASS,PASS,…)";

    /// A pass that turned a valid program into an invalid one.
    O007 PassBroke {
        /// The pass.
        pass: String,
        /// Input of the pass, as text, if it was kept.
        before: String,
        /// Diagnostics of the output of the pass.
        diagnostics: Diagnostics,
    } ("pass `{pass}` made an invalid program: {diagnostics}"),
    help format!("this is a bug in vyre; disable `{pass}` for now, and please report it with the program");

    /// No fixed point: passes undo each other's changes.
    O008 NotConverged {
        /// Last pass that changed the program.
        pass: String,
        /// Number of rounds.
        iterations: usize,
    } ("the passes did not converge in {iterations} rounds; `{pass}` made the last change"),
    help format!("this is a bug in vyre; disable `{pass}` for now");

    /// Bytes that are not encoded hints.
    O009 BadHints {
        /// Number of bytes.
        bytes: usize,
    } ("{bytes} bytes are not encoded hints"), help "delete the file; the next recording writes a new one";
}
