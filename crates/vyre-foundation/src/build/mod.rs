//! The builder: programs written as Rust.
//!
//! [`kernel`] hands a [`Kernel`] to a closure, and what the closure calls on it becomes a [`Program`]. Values ([`Val`]) carry
//! their type, so that rustc finds type errors; operators and methods apply the operations of the op table. Mutable
//! variables ([`Var`]) become values that loops carry and branches yield, and those that turn out not to be needed do not
//! appear in the program.
//!
//! ```
//! use vyre_foundation::build::kernel;
//!
//! let saxpy = kernel("saxpy", [256, 1, 1], |k| {
//!     let a = k.uniform::<f32>("a");
//!     let x = k.read::<f32>("x");
//!     let y = k.read_write::<f32>("y");
//!     let i = k.global_index();
//!     k.if_(i.lt(y.len()), || y.store(i, a.load() * x.load(i) + y.load(i)));
//! })?;
//! # assert_eq!(saxpy.name(), "saxpy");
//! # Ok::<(), vyre_foundation::Error>(())
//! ```
//!
//! # Mistakes
//!
//! What rustc cannot see is found while the closure runs: a value, variable or object that is used where it does not exist,
//! code after an exit, a bad name, an index that is known to be out of bounds, and every other rule of the validator about
//! declarations and single instructions. The first mistake is kept with the place of the call and becomes
//! [`Error::Build`]; calls after it do nothing. What is left to the validator is whether barriers, broadcasts and subgroup
//! operations stand in control flow that is uniform for the workgroup or the subgroup.

mod flow;
mod joins;
mod memory;
mod record;
mod state;
mod value;

use std::cell::RefCell;

pub use flow::{Selector, Var};
pub use memory::{Atomic, Indexed, Loads, Object, Read, ReadWrite, Single, Stored, Stores, Uniform, Write};
pub use record::{Field, FieldRef, FieldType, RecordValue};
pub use value::{Arg, Bundle, Float, Integer, Logic, Nameable, Number, Signed, Val};

use crate::Error;
use crate::ir::{Axis, Barrier, Literal, Op, PerGroup, PerInvocation, Program, Scalar, Span, ValueId};
use crate::text::is_name;
use state::State;

/// Builds a program: `body` is called once, and what it does with the [`Kernel`] is what every invocation executes.
///
/// # Errors
/// [`Error::Build`] with the place of the first mistake.
#[track_caller]
pub fn kernel(name: impl Into<String>, workgroup_size: [u32; 3], body: impl FnOnce(&Kernel)) -> Result<Program, Error> {
    let kernel = Kernel { state: RefCell::new(State::new(Program::new(name, workgroup_size))) };
    kernel.state.borrow_mut().check_declarations();
    body(&kernel);
    kernel.state.into_inner().finish()
}

/// The program that is being built: declares its memory and constants, and appends instructions and control flow.
pub struct Kernel {
    state: RefCell<State>,
}

macro_rules! operations {
    ($($name:ident($($axis:ident)?) -> $result:ty = $kind:ident::$op:ident;)*) => { $(
        #[doc = concat!("[`", stringify!($op), "`](", stringify!($kind), "::", stringify!($op), ")")]
        #[track_caller]
        pub fn $name(&self $(, $axis: Axis)?) -> $result {
            self.apply($kind::$op $(($axis))?, &[])
        }
    )* };
}

/// Where an invocation stands, and barriers.
impl Kernel {
    operations! {
        global_index() -> Val<'_, u32> = PerInvocation::GlobalIndex;
        global_id(axis) -> Val<'_, u32> = PerInvocation::GlobalId;
        local_index() -> Val<'_, u32> = PerInvocation::LocalIndex;
        local_id(axis) -> Val<'_, u32> = PerInvocation::LocalId;
        group_index() -> Val<'_, u32> = PerGroup::GroupIndex;
        group_id(axis) -> Val<'_, u32> = PerGroup::GroupId;
        group_count(axis) -> Val<'_, u32> = PerGroup::GroupCount;
        group_size(axis) -> Val<'_, u32> = PerGroup::GroupSize;
        subgroup_size() -> Val<'_, u32> = PerGroup::SubgroupSize;
        subgroup_id() -> Val<'_, u32> = PerInvocation::SubgroupId;
        subgroup_lane() -> Val<'_, u32> = PerInvocation::SubgroupLane;
        workgroup_barrier() -> () = Barrier::Workgroup;
        storage_barrier() -> () = Barrier::Storage;
    }
}

/// Literals, constants, and what is printed.
impl Kernel {
    /// A literal as a value. Where a value is an argument, a Rust literal can be given as it is.
    pub fn lit<T: Scalar>(&self, value: T) -> Val<'_, T> {
        let literal = Literal { ty: T::TYPE, bits: value.to_bits() };
        Val::new(self, self.state.borrow_mut().program.literal(literal))
    }

    /// Declares a specialization constant.
    #[track_caller]
    pub fn constant<T: Scalar>(&self, name: &str, default: T) -> Val<'_, T> {
        let default = Literal { ty: T::TYPE, bits: default.to_bits() };
        let mut state = self.state.borrow_mut();
        let value = state.program.add_constant(name, default, Span::NONE);
        state.check_declarations();
        Val::new(self, value)
    }

    /// Gives values the name of a variable of the source, unless they have a name, and returns them. A name that the text format
    /// cannot write is ignored.
    pub fn debug_name<N: Nameable>(&self, name: &str, values: N) -> N {
        if is_name(name) {
            values.name(self, name);
        }
        values
    }

    /// Suggests a grid, in invocations, for a caller who names none.
    #[track_caller]
    pub fn launch(&self, invocations: [u32; 3]) {
        let mut state = self.state.borrow_mut();
        state.program.set_launch(Some(invocations));
        state.check_declarations();
    }

    /// Lets floats be [whatever the device makes of them](Program::is_fast).
    pub fn fast(&self) {
        self.state.borrow_mut().program.set_fast(true);
    }

    /// [`Print`](Op::Print): each `{}` of the text is replaced by a value, as in `k.print("{} of {}", (i, n))`.
    #[track_caller]
    pub fn print<'k>(&'k self, text: &str, values: impl Bundle<'k>) {
        let operands = self.operands_of(values);
        self.apply::<()>(Op::Print(text.into()), &operands);
    }

    /// Appends an instruction whose results are of the types of `R`.
    #[track_caller]
    fn apply<'k, R: Bundle<'k>>(&'k self, op: impl Into<Op>, operands: &[ValueId]) -> R {
        let results = self.state.borrow_mut().emit(op, operands, &R::result_types(), &[]);
        R::from_values(self, &mut results.into_iter())
    }
}
