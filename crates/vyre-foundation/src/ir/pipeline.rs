//! Pipelines: dispatches over named buffers.
//!
//! A pipeline means that its dispatches run one after the other, each seeing what those before it wrote. Whoever runs it may
//! change the order, join dispatches, and let buffers share memory, as long as nobody can tell.

use super::entity::{Arena, BufferId, Entity};
use super::program::Program;
use super::source::Span;
use super::types::Element;
use crate::launch::{self, Arguments, Grid, Slice};
use crate::{Error, Validated};

/// Dispatches over named buffers. Two are equal if they say the same, wherever that stands in the source.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// The name, an identifier.
    pub name: String,
    /// The most memory, in bytes, that all buffers together may take on a device.
    pub budget: Option<u64>,
    /// The buffers. Their names are distinct.
    pub buffers: Arena<BufferId, Buffer>,
    /// The dispatches, in order.
    pub dispatches: Vec<Dispatch>,
    /// Where it was declared.
    pub span: Span,
}

/// A buffer of a pipeline.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The name, an identifier.
    pub name: String,
    /// Who sees its contents.
    pub role: Role,
    /// What it is made of.
    pub element: Element,
    /// How many elements it has.
    pub length: u32,
    /// Where it was declared.
    pub span: Span,
}

/// Who sees the contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The caller gives them; no dispatch changes them.
    In,
    /// The caller reads them afterwards. They start as zeros.
    Out,
    /// The caller gives them, and reads them afterwards.
    InOut,
    /// Nobody outside. They start as zeros.
    Transient,
}

/// One run of a program.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The name of the program.
    pub program: String,
    /// How many invocations.
    pub grid: Grid,
    /// What its objects are bound to, by name.
    pub arguments: Vec<(String, Argument)>,
    /// Where it was written.
    pub span: Span,
}

/// Argument of an object of a program: a buffer of the pipeline, or the value of a uniform.
pub type Argument = launch::Argument<BufferId>;

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::In, Role::Out, Role::InOut, Role::Transient];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            Role::In => "in",
            Role::Out => "out",
            Role::InOut => "inout",
            Role::Transient => "transient",
        }
    }

    /// Whether the contents come from the caller.
    pub fn is_given(self) -> bool {
        matches!(self, Role::In | Role::InOut)
    }
}

impl Buffer {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.length) * self.element.size() as u64
    }
}

impl Pipeline {
    /// The buffer with this name.
    pub fn buffer_named(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().find(|(_, buffer)| buffer.name == name).map(|(id, _)| id)
    }

    /// Matches the arguments of a dispatch with the objects of its program.
    ///
    /// # Errors
    /// An error of [`launch::bind`], [`Error::UnknownBuffer`] or [`Error::InputWritten`].
    pub fn bind<'n>(
        &self,
        program: &Validated<Program>,
        arguments: impl IntoIterator<Item = (&'n str, Argument)>,
    ) -> Result<Arguments<BufferId>, Error> {
        launch::bind(program, arguments, |memory, &id| {
            let object = || memory.name.clone();
            let Some(buffer) = self.buffers.get(id) else {
                let (buffer, count) = (id.index(), self.buffers.len());
                return Err(Error::UnknownBuffer { object: object(), buffer, count });
            };
            if buffer.role == Role::In && memory.writable() {
                return Err(Error::InputWritten { buffer: buffer.name.clone(), object: object() });
            }
            Ok(Slice { buffer: id.index() as u64, element: buffer.element, start: 0, bytes: buffer.bytes() })
        })
    }
}

impl Dispatch {
    /// The arguments, as [`Pipeline::bind`] takes them.
    pub fn named(&self) -> impl Iterator<Item = (&str, Argument)> {
        self.arguments.iter().map(|(name, argument)| (name.as_str(), *argument))
    }
}

impl PartialEq for Pipeline {
    fn eq(&self, other: &Self) -> bool {
        let buffers = |pipeline: &Pipeline| pipeline.buffers.values().cloned().collect::<Vec<_>>();
        (&self.name, self.budget, &self.dispatches) == (&other.name, other.budget, &other.dispatches)
            && buffers(self) == buffers(other)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.role, self.element, self.length) == (&other.name, other.role, other.element, other.length)
    }
}

impl PartialEq for Dispatch {
    fn eq(&self, other: &Self) -> bool {
        (&self.program, self.grid, &self.arguments) == (&other.program, other.grid, &other.arguments)
    }
}
