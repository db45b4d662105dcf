//! The one error of this crate.

use crate::diagnostics::Diagnostics;
use crate::ir::{Element, Type};

/// Declares an error table: an enum with a row for each error. A row has these columns, in this order:
///
/// - documentation,
/// - the stable code and the name,
/// - typed data, where there is some,
/// - the message, as [`thiserror`] formats it,
/// - `help`: how to fix it,
/// - `exit`: the exit code of a command, if it is not the default of the table (`exit DEFAULT` after the name of the enum),
/// - `example`: a text with this mistake, for tables that are `listed in` a static.
///
/// Rows in `wraps` carry an error of another table: their `code` is an expression over their data, and `message` names the message.
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
            /// The exit code of a command that ends with this error.
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
        /// The documentation of every row, in the order of the table.
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
            /// The stable code; of what has several, that of the first one.
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
    /// What can go wrong before a program reaches a device.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Error wraps {
        /// The text could not be read; every mistake is listed.
        Text(found: Diagnostics) message("{0}"), code found.first_code(), help "each error above says how to fix it";
        /// The program breaks rules of the IR; every violation is listed.
        Invalid(found: Diagnostics) message("{0}"), code found.first_code(), help "each error above says how to fix it";
    };

    /// Bytes that are not the encoding of a module.
    W001 Wire {
        /// Where it goes wrong.
        at: usize,
        /// How.
        reason: String,
    } ("byte {at}: {reason}"), help "write the file again, with `vyre print --wire`";

    /// A builder was used wrongly.
    F001 Build {
        /// Where in the caller's source.
        location: &'static std::panic::Location<'static>,
        /// What was wrong.
        mistake: String,
    } ("{location}: {mistake}"), help "change the builder call at that place";

    /// A specialization constant or uniform that the program does not have.
    F002 UnknownConstant {
        /// The name that was given.
        name: String,
        /// The constants and uniforms there are.
        known: Vec<String>,
    } ("there is no constant or uniform named `{name}`"),
    help match known.is_empty() {
        true => "the program declares no constants and no uniforms".to_owned(),
        false => format!("the program declares: {}", known.join(", ")),
    };

    /// A specialization constant or uniform of another type.
    F003 ConstantType {
        /// The constant.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    } ("`{name}` is {declared}, but the value given is {given}"), help format!("give a {declared}");

    /// A value that is not of the element type it is for.
    F004 NotAValue {
        /// What was given.
        text: String,
        /// The type it should have.
        element: Element,
    } ("`{text}` is not a value of type {element}"),
    help {
        let example = if element.value_type().is_float() { "1.5, -2e3, inf or nan" } else { "7 or 0xff" };
        format!("write a value that {element} can hold, such as {example}")
    };

    /// A generator of data, such as `zeros:N`, that cannot be understood.
    F005 Fill {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    } ("`{text}`: {reason}"), help "write 1,2,3 or zeros:N, iota:N, random:N:SEED";

    /// More data than fits into an object, or into memory.
    F006 TooLarge {
        /// How many were asked for.
        elements: u64,
        /// Their type.
        element: Element,
    } ("{elements} elements of type {element} are too many"),
    help "an object holds fewer than 2^32 elements, and memory must have room for them";

    /// A grid with 2³² invocations or more.
    L001 GridTooLarge {
        /// Workgroups in each dimension.
        groups: [u32; 3],
        /// Invocations of a workgroup.
        workgroup_size: [u32; 3],
    } ("a grid of {groups:?} workgroups of {workgroup_size:?} has too many invocations"),
    help "run fewer than 2^32 invocations at a time";

    /// An argument for an object that the program does not have.
    L002 UnknownBinding {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    } ("the program has nothing named `{name}` to bind"),
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
        /// A value that it could have.
        example: &'static str,
    } ("`{name}` is not bound"), help format!("bind it, for example {name}={example}");

    /// A buffer for a uniform.
    L005 ScalarExpected {
        /// The uniform.
        name: String,
    } ("`{name}` is a uniform scalar, but a buffer is bound to it"), help "give a single value";

    /// A scalar for a storage object.
    L006 BufferExpected {
        /// The object.
        name: String,
    } ("`{name}` is a storage object, but a scalar is bound to it"), help "give a buffer";

    /// A scalar of another type.
    L007 ScalarType {
        /// The uniform.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    } ("uniform `{name}` is {declared}, but the value given is {given}"), help format!("give a {declared}");

    /// A buffer of another element type.
    L008 ElementType {
        /// The object.
        name: String,
        /// Its element type.
        declared: Element,
        /// The buffer's.
        given: Element,
    } ("`{name}` has elements of type {declared}, but the buffer has {given}"),
    help format!("give a buffer of {declared}");

    /// A buffer that does not consist of whole elements.
    L009 PartialElement {
        /// The object.
        name: String,
        /// The size of the buffer.
        bytes: u64,
        /// The element type.
        element: Element,
    } ("`{name}` is bound to {bytes} bytes, which are not whole elements of type {element}"),
    help format!("start at, and bind, a multiple of {} bytes", element.size());

    /// A buffer that starts where wider elements, as which the program accesses it, are not aligned.
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

    /// Two objects share memory, and one of them is written.
    L011 Overlap {
        /// One object.
        first: String,
        /// The other.
        second: String,
    } ("`{first}` and `{second}` overlap, and the program writes at least one of them"),
    help "bind them to separate buffers, or to parts that do not overlap";

    /// An argument that is no buffer of the pipeline.
    L013 UnknownBuffer {
        /// The object that it is bound to.
        object: String,
        /// Index of the buffer.
        buffer: usize,
        /// Number of buffers of the pipeline.
        count: usize,
    } ("`{object}` is bound to buffer {buffer}, but the pipeline has {count} buffers"),
    help "use ids that `buffer` and `attach` of the same pipeline returned";

    /// A pipeline's dispatch writes a buffer that is the caller's.
    L012 InputWritten {
        /// The buffer.
        buffer: String,
        /// The object.
        object: String,
    } ("`{buffer}` is an input of the pipeline, but is bound to `{object}`, which may be written"),
    help format!("declare it as `inout {buffer}`, or bind another buffer");

    /// Two passes of one name.
    O001 DuplicatePass {
        /// The name.
        pass: String,
    } ("there are two passes named `{pass}`"), help "give one of them another name";

    /// A pass that requires one that does not exist.
    O002 UnknownRequirement {
        /// The pass.
        pass: String,
        /// What it requires.
        requires: String,
    } ("pass `{pass}` requires `{requires}`, which does not exist"), help "register it, or do not require it";

    /// Passes that require each other.
    O003 RequirementCycle {
        /// The passes that can never run, in the order of the list.
        passes: Vec<String>,
    } ("these passes require each other: {}", passes.join(", ")), help "let one of them do without the others";

    /// A pass of a profile that requires one that the profile does not accept.
    O004 RejectedRequirement {
        /// The pass.
        pass: String,
        /// What it requires.
        requires: String,
        /// The profile.
        profile: &'static str,
    } ("profile `{profile}` accepts pass `{pass}` but not `{requires}`, which it requires"),
    help "put both into the same phase and boundary class";

    /// A pass that does not exist.
    O005 UnknownPass {
        /// The name that was given.
        name: String,
        /// The passes there are.
        known: Vec<String>,
    } ("there is no pass named `{name}`"), help format!("the passes are: {}", known.join(", "));

    /// A pipeline that cannot be understood.
    O006 BadPipeline {
        /// What was given.
        text: String,
    } ("`{text}` is not a pipeline"), help "write PASS,PASS,… or fixpoint(PASS,PASS,…)";

    /// A pass that made an invalid program of a valid one.
    O007 PassBroke {
        /// The pass.
        pass: String,
        /// The program that it was given, as text, if it was kept.
        before: String,
        /// What is wrong with the program that it made.
        diagnostics: Diagnostics,
    } ("pass `{pass}` made an invalid program: {diagnostics}"),
    help {
                format!("this is a bug in vyre; disable `{pass}` for now, and please report it with the program")
            };

    /// Passes that change a program back and forth.
    O008 NotConverged {
        /// The last pass that changed something.
        pass: String,
        /// Rounds of the list.
        iterations: usize,
    } ("the passes did not come to an end in {iterations} rounds; the last to change something was `{pass}`"),
    help format!("this is a bug in vyre; disable `{pass}` for now");

    /// Bytes that are not encoded hints.
    O009 BadHints {
        /// How many there are.
        bytes: usize,
    } ("{bytes} bytes are not recorded hints, or are damaged"), help "delete the file; it is written anew";
}
