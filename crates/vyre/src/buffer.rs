//! Typed device buffers and slices of them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use vyre_foundation::build::Stored;

use crate::Error;
use crate::pipeline::Transient;

/// Element type of buffers: a number, or a struct with `#[derive(vyre::Record)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a buffer",
    label = "not an element type",
    note = "elements are numbers of a fixed size (use `u32` for `usize`, `u8` for `bool`), or `#[repr(C)]` structs of them that derive `Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, vyre::Record`"
)]
pub trait Element: Stored + bytemuck::Pod {}
impl<T: Stored + bytemuck::Pod> Element for T {}

/// Typed device memory. A kernel takes `&Buffer<T>` for `&[T]`, and `&mut Buffer<T>` for `&mut [T]` and `&[Atomic<T>]`: like a slice, a
/// written buffer is borrowed exclusively.
pub struct Buffer<T> {
    pub(crate) memory: Memory,
    element: PhantomData<T>,
}

/// Storage of a buffer.
#[derive(Debug)]
pub(crate) enum Memory {
    Device(vyre_driver::Buffer),
    Transient(Transient),
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(memory: vyre_driver::Buffer) -> Buffer<T> {
        Buffer { memory: Memory::Device(memory), element: PhantomData }
    }

    pub(crate) fn on_device(&self) -> Result<&vyre_driver::Buffer, Error> {
        match &self.memory {
            Memory::Device(memory) => Ok(memory),
            Memory::Transient(_) => Err(Error::Transient),
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        let numbers = match &self.memory {
            Memory::Device(memory) => memory.len(),
            Memory::Transient(transient) => transient.numbers,
        };
        (numbers / T::WIDTH) as usize
    }

    /// Returns whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites the contents.
    ///
    /// # Errors
    /// `elements` and the buffer differ in length, or the device was lost.
    pub fn write(&mut self, elements: &[T]) -> Result<(), Error> {
        let memory = self.on_device()?;
        if elements.len() != self.len() {
            return Err(Error::Length { name: "elements", expected: self.len(), found: elements.len() });
        }
        Ok(memory.write(bytemuck::cast_slice(elements))?)
    }

    /// Copies the contents to the host, after all earlier launches.
    ///
    /// # Errors
    /// The device was lost.
    pub fn download(&self) -> Result<Vec<T>, Error> {
        Ok(self.on_device()?.elements()?)
    }

    /// Borrows a range of elements.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn slice(&self, elements: Range<usize>) -> Result<Slice<'_, T>, Error> {
        Ok(Slice { part: self.part(elements)?, whole: PhantomData })
    }

    /// Mutably borrows a range of elements.
    ///
    /// # Errors
    /// The range is out of bounds.
    pub fn slice_mut(&mut self, elements: Range<usize>) -> Result<SliceMut<'_, T>, Error> {
        Ok(SliceMut { part: self.part(elements)?, whole: PhantomData })
    }

    /// Splits the buffer into two disjoint mutable slices: the elements before `at`, and the rest.
    ///
    /// # Errors
    /// `at` is out of bounds.
    pub fn split_at_mut(&mut self, at: usize) -> Result<(SliceMut<'_, T>, SliceMut<'_, T>), Error> {
        let (first, second) = (self.part(0..at)?, self.part(at..self.len())?);
        Ok((SliceMut { part: first, whole: PhantomData }, SliceMut { part: second, whole: PhantomData }))
    }

    fn part(&self, elements: Range<usize>) -> Result<Buffer<T>, Error> {
        let (memory, Range { start, end }, length) = (self.on_device()?, elements, self.len());
        if start > end || end > length {
            let [start, end, length] = [start, end, length].map(|count| count as u64);
            return Err(vyre_driver::Error::OutOfRange { start, end, length }.into());
        }
        let numbers = |index: usize| index as u32 * T::WIDTH;
        Ok(Buffer::new(memory.slice(numbers(start)..numbers(end))?))
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// Shared slice of a buffer; dereferences to a `Buffer` of the slice's elements.
#[derive(Debug)]
pub struct Slice<'a, T> {
    part: Buffer<T>,
    whole: PhantomData<&'a Buffer<T>>,
}

/// Mutable slice of a buffer; dereferences to a `Buffer` of the slice's elements.
#[derive(Debug)]
pub struct SliceMut<'a, T> {
    part: Buffer<T>,
    whole: PhantomData<&'a mut Buffer<T>>,
}

impl<T> SliceMut<'_, T> {
    /// The whole of a transient buffer.
    pub(crate) fn transient(transient: Transient) -> Self {
        let part = Buffer { memory: Memory::Transient(transient), element: PhantomData };
        SliceMut { part, whole: PhantomData }
    }
}

impl<T> Deref for Slice<'_, T> {
    type Target = Buffer<T>;
    fn deref(&self) -> &Buffer<T> {
        &self.part
    }
}

impl<T> Deref for SliceMut<'_, T> {
    type Target = Buffer<T>;
    fn deref(&self) -> &Buffer<T> {
        &self.part
    }
}

impl<T> DerefMut for SliceMut<'_, T> {
    fn deref_mut(&mut self) -> &mut Buffer<T> {
        &mut self.part
    }
}
