//! Pipelines: dispatches over named buffers.
//!
//! A pipeline means that its dispatches run one after the other, each seeing what those before it wrote. Whoever runs it may
//! change the order, join dispatches, and let buffers share memory, as long as nobody can tell.

use super::entity::{Arena, BufferId, Entity};
use super::program::{Program, Span};
use super::types::{Element, Literal};
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

/// What an object of a program is bound to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A buffer of the pipeline.
    Buffer(BufferId),
    /// The value of a uniform.
    Scalar(Literal),
}

impl From<BufferId> for Argument {
    fn from(buffer: BufferId) -> Self {
        Argument::Buffer(buffer)
    }
}

impl<T: Into<Literal>> From<T> for Argument {
    fn from(value: T) -> Self {
        Argument::Scalar(value.into())
    }
}

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

    /// Matches the arguments of a dispatch with the objects of its program. The `buffer` of a [`Slice`] is the index of the
    /// pipeline's buffer.
    ///
    /// # Errors
    /// An error of [`launch::bind`], [`Error::UnknownBuffer`] or [`Error::InputWritten`].
    pub fn bind(&self, program: &Validated<Program>, arguments: &[(String, Argument)]) -> Result<Arguments, Error> {
        let mut given = Vec::new();
        for (name, argument) in arguments {
            let argument = match *argument {
                Argument::Scalar(literal) => launch::Argument::Scalar(literal),
                Argument::Buffer(id) => {
                    let Some(buffer) = self.buffers.get(id) else {
                        let (object, buffer, count) = (name.clone(), id.index(), self.buffers.len());
                        return Err(Error::UnknownBuffer { object, buffer, count });
                    };
                    let writes = program.memory_named(name).is_some_and(|memory| program.memory[memory].writable());
                    if buffer.role == Role::In && writes {
                        return Err(Error::InputWritten { buffer: buffer.name.clone(), object: name.clone() });
                    }
                    let (element, bytes) = (buffer.element, buffer.bytes());
                    launch::Argument::Slice(Slice { buffer: id.index() as u64, element, start: 0, bytes })
                }
            };
            given.push((name.as_str(), argument));
        }
        launch::bind(program, &given)
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
