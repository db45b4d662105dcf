//! Host-side inputs of a program: named arguments with their data.
//!
//! The command line and tests collect data here; [`Inputs::complete`] adds zero-initialized outputs, and [`Inputs::bind`] makes
//! the arguments of a dispatch.

use crate::fill::{Fill, parse_value};
use crate::ir::{Memory, Program, Space};
use crate::launch::{self, Argument, Arguments, Slice};
use crate::{Error, Validated};

/// Named arguments with one buffer for each storage object.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    arguments: Vec<(String, Argument<Slice>)>,
    /// Contents of the buffers, indexed by [`Slice::buffer`].
    pub buffers: Vec<Vec<u8>>,
}

impl Inputs {
    /// Binds an object to data in a notation such as `1,2,3` or `zeros:N`. A uniform takes a single value.
    ///
    /// # Errors
    /// The program has no such object, or the notation is invalid or out of the range of the type.
    pub fn notation(&mut self, program: &Program, name: &str, text: &str) -> Result<(), Error> {
        match object(program, name) {
            Some(memory) if memory.space == Space::Uniform => {
                let literal = parse_value(text, memory.element)?;
                self.arguments.push((name.into(), Argument::Scalar(literal)));
                Ok(())
            }
            Some(memory) => {
                let bytes = Fill::parse(text)?.bytes(memory.element)?;
                self.bytes(program, name, bytes)
            }
            None => Err(unknown(program, name)),
        }
    }

    /// Binds an object to bytes. A uniform takes the bytes of one value.
    ///
    /// # Errors
    /// The program has no such object, or the number of bytes differs from the size of the uniform.
    pub fn bytes(&mut self, program: &Program, name: &str, bytes: Vec<u8>) -> Result<(), Error> {
        let Some(memory) = object(program, name) else { return Err(unknown(program, name)) };
        let argument = if memory.space == Space::Uniform {
            if bytes.len() != memory.element.size() {
                return Err(Error::PartialElement {
                    name: name.into(),
                    bytes: bytes.len() as u64,
                    element: memory.element,
                });
            }
            let ty = memory.element.value_type();
            Argument::Scalar(crate::ir::Literal { ty, bits: memory.element.read(&bytes) })
        } else {
            let slice = Slice {
                buffer: self.buffers.len() as u64,
                element: memory.element,
                start: 0,
                bytes: bytes.len() as u64,
            };
            self.buffers.push(bytes);
            Argument::Buffer(slice)
        };
        self.arguments.push((name.into(), argument));
        Ok(())
    }

    /// Binds zeros to every unbound writable storage object of declared length: an output.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if there is not enough memory.
    pub fn complete(&mut self, program: &Validated<Program>) -> Result<(), Error> {
        for memory in program.memories().values() {
            let bound = self.arguments.iter().any(|(name, _)| *name == memory.name);
            let result = matches!(memory.space, Space::Storage(_)) && memory.writable();
            if let (false, true, Some(length)) = (bound, result, memory.length) {
                let zeros = Fill::Zeros(u64::from(length)).bytes(memory.element)?;
                self.bytes(program, &memory.name, zeros)?;
            }
        }
        Ok(())
    }

    /// Arguments with their names.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, Argument<Slice>)> {
        self.arguments.iter().map(|(name, argument)| (name.as_str(), *argument))
    }

    /// Binds the arguments of a dispatch.
    ///
    /// # Errors
    /// An error of [`launch::bind`].
    pub fn bind(&self, program: &Validated<Program>) -> Result<Arguments<Slice>, Error> {
        launch::bind(program, self.arguments(), |_, slice| Ok(*slice))
    }

    /// Returns the arguments whose names are memory objects of `program`.
    #[must_use]
    pub fn only(&self, program: &Program) -> Inputs {
        let known = |name: &str| program.memory_named(name).is_some();
        let arguments = self.arguments.iter().filter(|(name, _)| known(name)).cloned().collect();
        Inputs { arguments, buffers: self.buffers.clone() }
    }

    /// Each argument in the notation that [`Inputs::notation`] reads.
    pub fn notations(&self, program: &Program) -> Vec<(String, String)> {
        let notation = |name: &String, argument: &Argument<Slice>| match argument {
            Argument::Scalar(literal) => Some(literal.plain()),
            Argument::Buffer(_) => {
                let element = object(program, name)?.element;
                let bytes = self.contents(name)?;
                let count = (bytes.len() / element.size()) as u64;
                // Prefers a short notation.
                let is = |fill: Fill| count > 2 && fill.bytes(element).is_ok_and(|filled| filled == bytes);
                if is(Fill::Zeros(count)) {
                    return Some(format!("zeros:{count}"));
                }
                if is(Fill::Iota(count)) {
                    return Some(format!("iota:{count}"));
                }
                let elements = bytes.chunks_exact(element.size());
                let ty = element.value_type();
                let values = elements.map(|bytes| crate::ir::Literal { ty, bits: element.read(bytes) }.plain());
                Some(values.collect::<Vec<_>>().join(","))
            }
        };
        let arguments = self.arguments.iter();
        arguments.filter_map(|(name, argument)| Some((name.clone(), notation(name, argument)?))).collect()
    }

    /// Contents of a storage object, after a run the results.
    pub fn contents(&self, name: &str) -> Option<&[u8]> {
        let (_, argument) = self.arguments.iter().find(|(bound, _)| bound == name)?;
        match argument {
            Argument::Buffer(slice) => Some(&self.buffers[slice.buffer as usize]),
            Argument::Scalar(_) => None,
        }
    }
}

fn object<'p>(program: &'p Program, name: &str) -> Option<&'p Memory> {
    let memory = program.memory(program.memory_named(name)?);
    matches!(memory.space, Space::Storage(_) | Space::Uniform).then_some(memory)
}

fn unknown(program: &Program, name: &str) -> Error {
    let bindable = program.memories().values().filter(|memory| object(program, &memory.name).is_some());
    Error::UnknownBinding { name: name.into(), known: bindable.map(|memory| memory.name.clone()).collect() }
}
