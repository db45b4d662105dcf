//! The one error of this crate.

use crate::diagnostics::Diagnostics;
use crate::ir::{Element, Type};

/// What can go wrong before a program reaches a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text could not be read; every mistake is listed.
    #[error("{0}")]
    Text(Diagnostics),
    /// The program breaks rules of the IR; every violation is listed.
    #[error("{0}")]
    Invalid(Diagnostics),
    /// Bytes that are not the encoding of a module.
    #[error("byte {at}: {reason}")]
    Wire {
        /// Where it goes wrong.
        at: usize,
        /// How.
        reason: String,
    },
    /// A builder was used wrongly.
    #[error("{location}: {mistake}")]
    Build {
        /// Where in the caller's source.
        location: &'static std::panic::Location<'static>,
        /// What was wrong.
        mistake: String,
    },
    /// A specialization constant or uniform that the program does not have.
    #[error("there is no constant or uniform named `{name}`")]
    UnknownConstant {
        /// The name that was given.
        name: String,
        /// The constants and uniforms there are.
        known: Vec<String>,
    },
    /// A specialization constant or uniform of another type.
    #[error("`{name}` is {declared}, but the value given is {given}")]
    ConstantType {
        /// The constant.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    },
    /// A value that is not of the element type it is for.
    #[error("`{text}` is not a value of type {element}")]
    NotAValue {
        /// What was given.
        text: String,
        /// The type it should have.
        element: Element,
    },
    /// A generator of data, such as `zeros:N`, that cannot be understood.
    #[error("`{text}`: {reason}")]
    Fill {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More data than fits into an object, or into memory.
    #[error("{elements} elements of type {element} are too many")]
    TooLarge {
        /// How many were asked for.
        elements: u64,
        /// Their type.
        element: Element,
    },
    /// A grid with 2³² invocations or more.
    #[error("a grid of {groups:?} workgroups of {workgroup_size:?} has too many invocations")]
    GridTooLarge {
        /// Workgroups in each dimension.
        groups: [u32; 3],
        /// Invocations of a workgroup.
        workgroup_size: [u32; 3],
    },
    /// An argument for an object that the program does not have.
    #[error("the program has nothing named `{name}` to bind")]
    UnknownBinding {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// Two arguments for one object.
    #[error("`{name}` is bound twice")]
    BoundTwice {
        /// The object.
        name: String,
    },
    /// No argument for an object that needs one.
    #[error("`{name}` is not bound")]
    MissingBinding {
        /// The object.
        name: String,
    },
    /// A buffer for a uniform.
    #[error("`{name}` is a uniform scalar, but a buffer is bound to it")]
    ScalarExpected {
        /// The uniform.
        name: String,
    },
    /// A scalar for a storage object.
    #[error("`{name}` is a storage object, but a scalar is bound to it")]
    BufferExpected {
        /// The object.
        name: String,
    },
    /// A scalar of another type.
    #[error("uniform `{name}` is {declared}, but the value given is {given}")]
    ScalarType {
        /// The uniform.
        name: String,
        /// Its type.
        declared: Type,
        /// The type of the value.
        given: Type,
    },
    /// A buffer of another element type.
    #[error("`{name}` has elements of type {declared}, but the buffer has {given}")]
    ElementType {
        /// The object.
        name: String,
        /// Its element type.
        declared: Element,
        /// The buffer's.
        given: Element,
    },
    /// A buffer that does not consist of whole elements.
    #[error("`{name}` is bound to {bytes} bytes, which are not whole elements of type {element}")]
    PartialElement {
        /// The object.
        name: String,
        /// The size of the buffer.
        bytes: u64,
        /// The element type.
        element: Element,
    },
    /// A buffer of another length than the program declares.
    #[error("`{name}` has {declared} elements, but the buffer has {given}")]
    LengthMismatch {
        /// The object.
        name: String,
        /// The length that is declared.
        declared: u32,
        /// The length of the buffer.
        given: u64,
    },
    /// Two objects share memory, and one of them is written.
    #[error("`{first}` and `{second}` overlap, and the program writes at least one of them")]
    Overlap {
        /// One object.
        first: String,
        /// The other.
        second: String,
    },
    /// A pipeline's dispatch writes a buffer that is the caller's.
    #[error("`{buffer}` is an input of the pipeline, but is bound to `{object}`, which may be written")]
    InputWritten {
        /// The buffer.
        buffer: String,
        /// The object.
        object: String,
    },
    /// Two passes of one name.
    #[error("there are two passes named `{pass}`")]
    DuplicatePass {
        /// The name.
        pass: String,
    },
    /// A pass that requires one that does not exist.
    #[error("pass `{pass}` requires `{requires}`, which does not exist")]
    UnknownRequirement {
        /// The pass.
        pass: String,
        /// What it requires.
        requires: String,
    },
    /// Passes that require each other.
    #[error("these passes require each other: {}", passes.join(", "))]
    RequirementCycle {
        /// The passes that can never run, in the order of the list.
        passes: Vec<String>,
    },
    /// A pass of a profile that requires one that the profile does not accept.
    #[error("profile `{profile}` accepts pass `{pass}` but not `{requires}`, which it requires")]
    RejectedRequirement {
        /// The pass.
        pass: String,
        /// What it requires.
        requires: String,
        /// The profile.
        profile: &'static str,
    },
    /// A pass that does not exist.
    #[error("there is no pass named `{name}`")]
    UnknownPass {
        /// The name that was given.
        name: String,
        /// The passes there are.
        known: Vec<String>,
    },
    /// A pipeline that cannot be understood.
    #[error("`{text}` is not a pipeline")]
    BadPipeline {
        /// What was given.
        text: String,
    },
    /// A pass that made an invalid program of a valid one.
    #[error("pass `{pass}` made an invalid program: {diagnostics}")]
    PassBroke {
        /// The pass.
        pass: String,
        /// The program that it was given, as text, if it was kept.
        before: String,
        /// What is wrong with the program that it made.
        diagnostics: Diagnostics,
    },
    /// Passes that change a program back and forth.
    #[error("the passes did not come to an end in {iterations} rounds; the last to change something was `{pass}`")]
    NotConverged {
        /// The last pass that changed something.
        pass: String,
        /// Rounds of the list.
        iterations: usize,
    },
    /// Bytes that are not encoded hints.
    #[error("{bytes} bytes are not recorded hints, or are damaged")]
    BadHints {
        /// How many there are.
        bytes: usize,
    },
}

impl Error {
    /// The stable code. For text and validation errors, that of the first one.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Text(diagnostics) | Error::Invalid(diagnostics) => diagnostics.first_code(),
            Error::Wire { .. } => "W001",
            Error::Build { .. } => "F001",
            Error::UnknownConstant { .. } => "F002",
            Error::ConstantType { .. } => "F003",
            Error::NotAValue { .. } => "F004",
            Error::Fill { .. } => "F005",
            Error::TooLarge { .. } => "F006",
            Error::GridTooLarge { .. } => "L001",
            Error::UnknownBinding { .. } => "L002",
            Error::BoundTwice { .. } => "L003",
            Error::MissingBinding { .. } => "L004",
            Error::ScalarExpected { .. } => "L005",
            Error::BufferExpected { .. } => "L006",
            Error::ScalarType { .. } => "L007",
            Error::ElementType { .. } => "L008",
            Error::PartialElement { .. } => "L009",
            Error::LengthMismatch { .. } => "L010",
            Error::Overlap { .. } => "L011",
            Error::InputWritten { .. } => "L012",
            Error::DuplicatePass { .. } => "O001",
            Error::UnknownRequirement { .. } => "O002",
            Error::RequirementCycle { .. } => "O003",
            Error::RejectedRequirement { .. } => "O004",
            Error::UnknownPass { .. } => "O005",
            Error::BadPipeline { .. } => "O006",
            Error::PassBroke { .. } => "O007",
            Error::NotConverged { .. } => "O008",
            Error::BadHints { .. } => "O009",
        }
    }

    /// How to fix it.
    pub fn help(&self) -> String {
        match self {
            Error::Text(_) | Error::Invalid(_) => "each error above says how to fix it".into(),
            Error::Wire { .. } => "write the file again, with `vyre print --wire`".into(),
            Error::Build { .. } => "change the builder call at that place".into(),
            Error::UnknownConstant { known, .. } if known.is_empty() => {
                "the program declares no constants and no uniforms".into()
            }
            Error::UnknownConstant { known, .. } => format!("the program declares: {}", known.join(", ")),
            Error::ConstantType { declared, .. } => format!("give a {declared}"),
            Error::NotAValue { element, .. } => {
                let example = if element.value_type().is_float() { "1.5, -2e3, inf or nan" } else { "7 or 0xff" };
                format!("write a value that {element} can hold, such as {example}")
            }
            Error::Fill { .. } => "write 1,2,3 or zeros:N, iota:N, random:N:SEED".into(),
            Error::TooLarge { .. } => {
                "an object holds fewer than 2^32 elements, and memory must have room for them".into()
            }
            Error::GridTooLarge { .. } => "run fewer than 2^32 invocations at a time".into(),
            Error::UnknownBinding { known, .. } if known.is_empty() => "the program takes no arguments".into(),
            Error::UnknownBinding { known, .. } => format!("the program takes: {}", known.join(", ")),
            Error::BoundTwice { .. } => "bind it once".into(),
            Error::MissingBinding { name } => format!("bind it, for example {name}=zeros:1024"),
            Error::ScalarExpected { .. } => "give a single value".into(),
            Error::BufferExpected { .. } => "give a buffer".into(),
            Error::ScalarType { declared, .. } => format!("give a {declared}"),
            Error::ElementType { declared, .. } => format!("give a buffer of {declared}"),
            Error::PartialElement { element, .. } => {
                format!("start at, and bind, a multiple of {} bytes", element.size())
            }
            Error::LengthMismatch { declared, .. } => format!("bind exactly {declared} elements"),
            Error::Overlap { .. } => "bind them to separate buffers, or to parts that do not overlap".into(),
            Error::InputWritten { buffer, .. } => format!("declare it as `inout {buffer}`, or bind another buffer"),
            Error::DuplicatePass { .. } => "give one of them another name".into(),
            Error::UnknownRequirement { .. } => "register it, or do not require it".into(),
            Error::RequirementCycle { .. } => "let one of them do without the others".into(),
            Error::RejectedRequirement { .. } => "put both into the same phase and boundary class".into(),
            Error::UnknownPass { known, .. } => format!("the passes are: {}", known.join(", ")),
            Error::BadPipeline { .. } => "write PASS,PASS,… or fixpoint(PASS,PASS,…)".into(),
            Error::PassBroke { pass, .. } => {
                format!("this is a bug in vyre; disable `{pass}` for now, and please report it with the program")
            }
            Error::NotConverged { pass, .. } => format!("this is a bug in vyre; disable `{pass}` for now"),
            Error::BadHints { .. } => "delete the file; it is written anew".into(),
        }
    }
}
