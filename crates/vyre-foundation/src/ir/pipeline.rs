//! Pipelines: dispatches over named buffers.
//!
//! The dispatches of a pipeline run in order, and each sees the stores of the ones before it. A runtime may reorder and fuse dispatches and
//! alias the memory of buffers if the outputs are the same.

use super::entity::{Arena, BufferId, Entity};
use super::program::Program;
use super::source::Span;
use super::types::Element;
use crate::launch::{self, Arguments, Grid, Slice};
use crate::{Error, Validated};

/// Dispatches over named buffers. Equality ignores spans.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// The name, an identifier.
    pub name: String,
    /// Memory budget of all buffers on a device, in bytes.
    pub budget: Option<u64>,
    /// Buffers, with distinct names.
    pub buffers: Arena<BufferId, Buffer>,
    /// Dispatches, in order.
    pub dispatches: Vec<Dispatch>,
    /// Source location of the declaration.
    pub span: Span,
}

/// A buffer of a pipeline.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The name, an identifier.
    pub name: String,
    /// Visibility of its contents to the caller.
    pub role: Role,
    /// Element type.
    pub element: Element,
    /// Number of elements.
    pub length: u32,
    /// Source location of the declaration.
    pub span: Span,
}

/// Visibility of a buffer to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Input: provided by the caller and never written.
    In,
    /// Output: zero-initialized, read by the caller afterwards.
    Out,
    /// Input and output.
    InOut,
    /// Internal to the pipeline, zero-initialized.
    Transient,
}

/// One dispatch of a program.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The name of the program.
    pub program: String,
    /// Grid.
    pub grid: Grid,
    /// Arguments, by the name of the object.
    pub arguments: Vec<(String, Argument)>,
    /// Source location.
    pub span: Span,
}

/// Argument of an object of a program: a buffer of the pipeline, or the value of a uniform.
pub type Argument = launch::Argument<BufferId>;

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::In, Role::Out, Role::InOut, Role::Transient];

    /// Keyword in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Role::In => "in",
            Role::Out => "out",
            Role::InOut => "inout",
            Role::Transient => "transient",
        }
    }

    /// Returns true if the caller provides the contents.
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
