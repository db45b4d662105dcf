//! Records: structs of scalars of one size, in array-of-structs layout.
//!
//! A record is [`WIDTH`](Stored::WIDTH) consecutive scalar elements of the object. If the fields have different types, the elements are
//! unsigned words, and fields are bitcast. The index of a record is multiplied by the width, modulo 2^32.

use std::marker::PhantomData;

use half::f16;

use super::{Arg, Bundle, Indexed, Kernel, Loads, Object, Stored, Stores, Val};
use crate::ir::{Literal, MemOperand, Op, Pure, Scalar, Type, ValueId, Values};

/// A field of type `F` of records `R`.
#[derive(Clone, Copy)]
pub struct Field<R, F> {
    /// Offset in the record, in elements.
    before: u32,
    types: PhantomData<fn(R) -> F>,
}

impl<R: Stored, F: FieldType> Field<R, F> {
    /// Makes the field at `offset` bytes. The function is not called; it only fixes the type `F`.
    pub fn new(offset: usize, _: fn(&R) -> F) -> Self {
        Field { before: (offset / R::ELEMENT.size()) as u32, types: PhantomData }
    }
}

/// Type of a field: a number or an array of numbers.
pub trait FieldType: Copy {
    /// Values of its scalars.
    type Values<'k>: Bundle<'k>;
}

macro_rules! field_types {
    ($($ty:ident)*) => { $(
        impl FieldType for $ty {
            type Values<'k> = Val<'k, $ty>;
        }
        impl<const N: usize> FieldType for [$ty; N] {
            type Values<'k> = [Val<'k, $ty>; N];
        }
    )* };
}
field_types! { i32 u32 f32 i64 u64 f64 f16 }

/// Reference to a field of a record in an object with access mode `A`.
#[derive(Clone, Copy)]
pub struct FieldRef<'k, F, A> {
    kernel: &'k Kernel,
    /// Memory operand of the object.
    element: MemOperand,
    at: ValueId,
    types: PhantomData<(F, A)>,
}

/// Values of all fields of a record.
pub struct RecordValue<'k, R> {
    kernel: &'k Kernel,
    values: Values,
    record: PhantomData<R>,
}

impl<'k, R: Stored, A: Indexed> Object<'k, R, A> {
    /// References a field of the record at an index.
    #[track_caller]
    pub fn field<F: FieldType>(self, index: impl Arg<'k, u32>, field: Field<R, F>) -> FieldRef<'k, F, A> {
        let at = self.first(index);
        let at = self.kernel.plus(at, field.before);
        FieldRef { kernel: self.kernel, element: self.operand(), at, types: PhantomData }
    }

    /// Index of the first element of a record.
    #[track_caller]
    fn first(&self, index: impl Arg<'k, u32>) -> ValueId {
        let index = index.operand(self.kernel);
        match R::WIDTH {
            1 => index,
            width => self.kernel.one(Pure::Mul, &[index, width.operand(self.kernel)], Type::U32),
        }
    }
}

impl<'k, R: Stored, A: Loads> Object<'k, R, A> {
    /// Loads the record at an index, with up to four elements per access; 0 out of bounds.
    #[track_caller]
    pub fn load_record(self, index: impl Arg<'k, u32>) -> RecordValue<'k, R> {
        let first = self.first(index);
        let load = Op::Load(self.operand());
        let mut values = Values::new();
        for before in (0..R::WIDTH).step_by(4) {
            let at = self.kernel.plus(first, before);
            let types = [R::ELEMENT.value_type(); 4];
            let count = (R::WIDTH - before).min(4) as usize;
            values.extend(self.kernel.state.borrow_mut().emit(load.clone(), &[at], &types[..count], &[]));
        }
        RecordValue { kernel: self.kernel, values, record: PhantomData }
    }
}

impl<'k, R: Stored, A: Stores> Object<'k, R, A> {
    /// Stores a record at an index, with up to four elements per access. Stores out of bounds have no effect.
    #[track_caller]
    pub fn store_record(self, index: impl Arg<'k, u32>, record: &RecordValue<'k, R>) {
        let first = self.first(index);
        for (before, values) in (0..R::WIDTH).step_by(4).zip(record.values.chunks(4)) {
            let mut operands = Values::new();
            operands.push(self.kernel.plus(first, before));
            operands.extend_from_slice(values);
            self.kernel.apply::<()>(Op::Store(self.operand()), &operands);
        }
    }
}

impl<'k, R: Stored> RecordValue<'k, R> {
    /// The value of a field.
    #[track_caller]
    pub fn get<F: FieldType>(&self, field: Field<R, F>) -> F::Values<'k> {
        let mut values = Values::new();
        for (&value, ty) in self.values[field.before as usize..].iter().zip(F::Values::result_types()) {
            values.push(self.kernel.bits_as(value, ty));
        }
        F::Values::from_values(self.kernel, &mut values.into_iter())
    }

    /// Replaces the value of a field.
    #[track_caller]
    #[must_use]
    pub fn with<F: FieldType>(mut self, field: Field<R, F>, value: F::Values<'k>) -> Self {
        for (position, value) in self.kernel.operands_of(value).into_iter().enumerate() {
            self.values[field.before as usize + position] = self.kernel.bits_as(value, R::ELEMENT.value_type());
        }
        self
    }
}

impl<'k, F: FieldType, A, const N: usize> FieldRef<'k, [F; N], A> {
    /// References an element of an array field. An index out of bounds of the array is out of bounds of the object.
    #[track_caller]
    pub fn at(self, index: impl Arg<'k, u32>) -> FieldRef<'k, F, A> {
        let kernel = self.kernel;
        let index = Val::<u32>::new(kernel, index.operand(kernel));
        let at = Val::new(kernel, self.at) + index;
        let at = index.lt(N as u32).select(at, u32::MAX).operand(kernel);
        FieldRef { kernel, element: self.element, at, types: PhantomData }
    }
}

impl<'k, F: Scalar, A: Loads> FieldRef<'k, F, A> {
    /// Loads the field; 0 out of bounds.
    #[track_caller]
    pub fn load(self) -> Val<'k, F> {
        let value = self.kernel.one(Op::Load(self.element), &[self.at], self.element.value_type());
        Val::new(self.kernel, self.kernel.bits_as(value, F::TYPE))
    }
}

impl<'k, F: Scalar, A: Stores> FieldRef<'k, F, A> {
    /// Stores the field. A store out of bounds has no effect.
    #[track_caller]
    pub fn store(self, value: impl Arg<'k, F>) {
        let value = self.kernel.bits_as(value.operand(self.kernel), self.element.value_type());
        self.kernel.apply::<()>(Op::Store(self.element), &[self.at, value]);
    }
}

impl Kernel {
    /// A record of zeros.
    pub fn record<R: Stored>(&self) -> RecordValue<'_, R> {
        let zero = self.state.borrow_mut().program.literal(Literal::zero(R::ELEMENT.value_type()));
        RecordValue { kernel: self, values: (0..R::WIDTH).map(|_| zero).collect(), record: PhantomData }
    }

    #[track_caller]
    fn one(&self, op: impl Into<Op>, operands: &[ValueId], ty: Type) -> ValueId {
        self.state.borrow_mut().emit(op, operands, &[ty], &[])[0]
    }

    #[track_caller]
    fn plus(&self, at: ValueId, count: u32) -> ValueId {
        if count == 0 { at } else { self.one(Pure::Add, &[at, count.operand(self)], Type::U32) }
    }

    #[track_caller]
    fn bits_as(&self, value: ValueId, ty: Type) -> ValueId {
        let from = self.state.borrow().program.ty(value);
        if from == ty { value } else { self.one(Pure::Bitcast, &[value], ty) }
    }
}
