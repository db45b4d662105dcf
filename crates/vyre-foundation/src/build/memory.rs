//! Memory objects: declarations and accesses.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{Arg, AtomicNumber, Integer, Kernel, Val};
use crate::ir::{Access, Element, Literal, MemId, MemOperand, Memory, Op, PerGroup, Scalar, Space, Span, Values, ops};

/// A memory object with elements `E` and access mode `A`: [`Read`], [`Write`], [`ReadWrite`], [`Atomic`] or [`Uniform`].
#[derive(Clone, Copy)]
pub struct Object<'k, E, A> {
    pub(super) kernel: &'k Kernel,
    pub(super) id: MemId,
    types: PhantomData<(E, A)>,
}

/// Element type of an object: a scalar or a record, which is a struct of scalars.
#[diagnostic::on_unimplemented(
    message = "slices of `{Self}` are not supported in kernels",
    label = "not an element type",
    note = "element types are numbers of a fixed size (use `u32` for `usize`, `u8` for `bool`), and structs of them with `#[derive(vyre::Record)]`"
)]
pub trait Stored: Copy {
    /// Scalar element type of the object.
    const ELEMENT: Element;
    /// Number of scalar elements.
    const WIDTH: u32 = 1;
    /// Type of loaded and stored values: 32 bits for integers of 8 and 16 bits. Records are accessed by field.
    type Value;
}

/// A scalar element type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be loaded or stored as one value",
    label = "not a scalar",
    note = "for a record, write `x[i].field`; or, for all fields at once, `let Name {{ a, b }} = x[i];` and `x[i] = Name {{ a, b }};`"
)]
pub trait Single: Stored<Value: Scalar> {}

macro_rules! stored {
    ($($ty:ident $element:ident as $value:ident;)*) => { $(
        impl Stored for $ty {
            const ELEMENT: Element = Element::$element;
            type Value = $value;
        }
        impl Single for $ty {}
    )* };
}
stored! {
    i8 I8 as i32; u8 U8 as u32; i16 I16 as i32; u16 U16 as u32; i32 I32 as i32; u32 U32 as u32;
    f32 F32 as f32; i64 I64 as i64; u64 U64 as u64; f64 F64 as f64; f16 F16 as f16;
    bf16 BF16 as f32;
}

/// Access mode of an object.
pub trait Mode {
    /// True if accesses are atomic.
    const ATOMIC: bool = false;
}
/// Access modes with an index: all but uniforms.
pub trait Indexed: Mode {}
/// Access modes with an index that permit loads.
pub trait Loads: Indexed {}
/// Access modes that permit stores.
pub trait Stores: Indexed {}

macro_rules! accesses {
    ($($(#[doc = $doc:literal])+ $access:ident: $($can:ident)* $(, $atomic:expr)?;)*) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, Copy)]
        pub enum $access {}
        impl Mode for $access {
            $( const ATOMIC: bool = $atomic; )?
        }
        $( impl $can for $access {} )*
    )* };
}
accesses! {
    /// Read-only.
    Read: Indexed Loads;
    /// Write-only.
    Write: Indexed Stores;
    /// Loads and stores.
    ReadWrite: Indexed Loads Stores;
    /// Atomic loads, stores and read-modify-writes.
    Atomic: Indexed Loads Stores, true;
    /// Uniform scalar.
    Uniform: ;
}

macro_rules! declarations {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($($argument:ident)?) -> $access:ident of $($bound:ident)+ = $space:expr, $length:expr, $atomic:expr;
    )*) => { $(
        $(#[doc = $doc])+
        #[track_caller]
        pub fn $name<E: $($bound +)+>(&self, name: &str $(, $argument: u32)?) -> Object<'_, E, $access> {
            self.declare(name, $space, $length, $atomic)
        }
    )* };
}

/// Declarations of memory, allowed anywhere; the scope of an object is the whole program.
impl Kernel {
    declarations! {
        /// Declares read-only storage.
        read() -> Read of Stored = Space::Storage(Access::Read), None, false;
        /// Declares write-only storage.
        write() -> Write of Stored = Space::Storage(Access::Write), None, false;
        /// Declares storage.
        read_write() -> ReadWrite of Stored = Space::Storage(Access::ReadWrite), None, false;
        /// Declares atomic storage.
        atomic() -> Atomic of Single AtomicNumber = Space::Storage(Access::ReadWrite), None, true;
        /// Declares a uniform scalar.
        uniform() -> Uniform of Single = Space::Uniform, Some(1), false;
        /// Declares a uniform array.
        uniform_array() -> Read of Stored = Space::Storage(Access::Constant), None, false;
        /// Declares a workgroup array. Duplicate names of workgroup and private arrays get a numeric suffix.
        workgroup(length) -> ReadWrite of Stored = Space::Workgroup, Some(length), false;
        /// Declares an atomic workgroup array.
        workgroup_atomic(length) -> Atomic of Single AtomicNumber = Space::Workgroup, Some(length), true;
        /// Declares a private array.
        private(length) -> ReadWrite of Stored = Space::Private, Some(length), false;
    }

    /// Declares storage that becomes write-only if the finished program has no load from it, and read-write otherwise.
    #[track_caller]
    pub fn mutable<E: Stored>(&self, name: &str) -> Object<'_, E, ReadWrite> {
        let object = self.read_write(name);
        self.state.borrow_mut().mutable.push(object.id);
        object
    }

    #[track_caller]
    fn declare<E: Stored, A>(&self, name: &str, space: Space, length: Option<u32>, atomic: bool) -> Object<'_, E, A> {
        let mut state = self.state.borrow_mut();
        let taken = |name: &str| state.program.memories().values().any(|memory| *memory.name == *name);
        let mut numbered = (2..).map(|number| format!("{name}_{number}"));
        let mut name = name.to_owned();
        while matches!(space, Space::Workgroup | Space::Private) && taken(&name) {
            name = numbered.next().expect("the numbers are unbounded");
        }
        let element = E::ELEMENT;
        let length = length.map(|length| length.saturating_mul(E::WIDTH));
        let memory = Memory { name, space, element, length, atomic, default: None, span: Span::NONE };
        let id = state.program.add_memory(memory);
        state.check_declarations();
        Object { kernel: self, id, types: PhantomData }
    }
}

impl<E: Stored, A: Mode> Object<'_, E, A> {
    /// Memory operand of its accesses.
    pub(super) fn operand(&self) -> MemOperand {
        MemOperand { memory: self.id, element: E::ELEMENT, atomic: A::ATOMIC }
    }
}

impl<'k, E: Stored, A: Indexed> Object<'k, E, A> {
    /// Reinterprets the object as elements of another type, which indices and length count.
    pub fn view<F: Stored>(self) -> Object<'k, F, A> {
        Object { kernel: self.kernel, id: self.id, types: PhantomData }
    }
}

impl<'k, E: Single + AtomicNumber> Object<'k, E, ReadWrite> {
    /// The same elements, accessed atomically.
    pub fn atomics(self) -> Object<'k, E, Atomic> {
        Object { kernel: self.kernel, id: self.id, types: PhantomData }
    }
}

impl<'k, E: Single + AtomicNumber> Object<'k, E, Atomic> {
    /// The same elements, accessed plainly.
    pub fn plain(self) -> Object<'k, E, ReadWrite> {
        Object { kernel: self.kernel, id: self.id, types: PhantomData }
    }
}

impl<'k, E: Stored, A: Indexed> Object<'k, E, A> {
    /// Declares the length.
    #[track_caller]
    #[must_use]
    pub fn with_length(self, length: u32) -> Self {
        let mut state = self.kernel.state.borrow_mut();
        state.program.memory_mut(self.id).length = Some(length.saturating_mul(E::WIDTH));
        state.check_declarations();
        self
    }

    /// The length.
    #[track_caller]
    pub fn len(self) -> Val<'k, u32> {
        let elements: Val<'k, u32> = self.kernel.apply(PerGroup::Length(self.id), &[]);
        let declared = self.kernel.state.borrow().program.memory(self.id).element.size() as u32;
        let own = E::ELEMENT.size() as u32 * E::WIDTH;
        match () {
            () if own == declared => elements,
            () if declared.is_multiple_of(own) => elements * (declared / own),
            () if own.is_multiple_of(declared) => elements / (own / declared),
            () => elements * declared / own,
        }
    }
}

impl<'k, E: Stored, A: Loads> Object<'k, E, A> {
    /// Loads the element at an index; 0 out of bounds.
    #[track_caller]
    pub fn load(self, index: impl Arg<'k, u32>) -> Val<'k, E::Value>
    where
        E: Single,
    {
        let [value] = self.load_wide(index);
        value
    }

    /// Loads one to four consecutive elements in one access; 0 for elements out of bounds. Atomic accesses take one element.
    #[track_caller]
    pub fn load_wide<const N: usize>(self, index: impl Arg<'k, u32>) -> [Val<'k, E::Value>; N]
    where
        E: Single,
    {
        const { assert!(N >= 1 && N <= 4, "an access is to 1 to 4 elements") };
        self.kernel.apply(Op::Load(self.operand()), &[index.operand(self.kernel)])
    }
}

impl<'k, E: Stored, A: Stores> Object<'k, E, A> {
    /// Stores an element at an index. A store out of bounds has no effect.
    #[track_caller]
    pub fn store(self, index: impl Arg<'k, u32>, value: impl Arg<'k, E::Value>)
    where
        E: Single,
    {
        self.store_wide(index, [value]);
    }

    /// Stores one to four consecutive elements in one access, except elements out of bounds. Atomic accesses take one element.
    #[track_caller]
    pub fn store_wide<const N: usize>(self, index: impl Arg<'k, u32>, values: [impl Arg<'k, E::Value>; N])
    where
        E: Single,
    {
        const { assert!(N >= 1 && N <= 4, "an access is to 1 to 4 elements") };
        let mut operands = Values::new();
        operands.push(index.operand(self.kernel));
        for value in values {
            operands.push(value.operand(self.kernel));
        }
        self.kernel.apply::<()>(Op::Store(self.operand()), &operands);
    }
}

impl<'k, E: Single> Object<'k, E, Uniform> {
    /// Sets the default value.
    #[must_use]
    pub fn with_default(self, default: E::Value) -> Self {
        let default = Literal { ty: E::Value::TYPE, bits: default.to_bits() };
        self.kernel.state.borrow_mut().program.memory_mut(self.id).default = Some(default);
        self
    }

    /// Loads the value.
    #[track_caller]
    pub fn load(self) -> Val<'k, E::Value> {
        self.kernel.apply(Op::Load(self.operand()), &[])
    }
}

macro_rules! atomic_methods {
    ($($name:ident = $op:ident;)*) => { $(
        #[doc = concat!("[`", stringify!($op), "`](ops::Atomic::", stringify!($op), ")")]
        #[track_caller]
        pub fn $name(self, index: impl Arg<'k, u32>, value: impl Arg<'k, E>) -> Val<'k, E> {
            let operands = [index.operand(self.kernel), value.operand(self.kernel)];
            self.kernel.apply(Op::Atomic(ops::Atomic::$op, self.operand()), &operands)
        }
    )* };
}

impl<'k, E: Single + AtomicNumber> Object<'k, E, Atomic> {
    atomic_methods! {
        add = Add;
        sub = Sub;
        min = Min;
        max = Max;
        exchange = Exchange;
    }
}

impl<'k, E: Single + AtomicNumber + Integer> Object<'k, E, Atomic> {
    atomic_methods! {
        and = And;
        or = Or;
        xor = Xor;
    }

    /// [`CompareExchange`](Op::CompareExchange): returns the old value, and true if it was replaced.
    #[track_caller]
    pub fn compare_exchange(
        self,
        index: impl Arg<'k, u32>,
        expected: impl Arg<'k, E>,
        new: impl Arg<'k, E>,
    ) -> (Val<'k, E>, Val<'k, bool>) {
        let operands = [index.operand(self.kernel), expected.operand(self.kernel), new.operand(self.kernel)];
        self.kernel.apply(Op::CompareExchange(self.operand()), &operands)
    }
}
