//! Builder: an embedded DSL that constructs programs from Rust closures.
//!
//! [`kernel`] passes a [`Kernel`] to a closure, whose calls append to a [`Program`]. Values ([`Val`]) carry their type, so rustc reports
//! type errors; operators and methods append operations. Mutable variables ([`Var`]) are converted to SSA: loop parameters and results of
//! branches, of which the redundant ones are removed.
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
//! # Errors
//!
//! The builder itself reports violations that rustc cannot detect: values, variables and objects out of scope, unreachable code, invalid
//! names, constant indices out of bounds, and the rules of the validator about declarations and single instructions. The first violation
//! becomes an [`Error::Build`] with the location of the call, and later calls have no effect. Only uniform control flow around barriers,
//! broadcasts and subgroup operations is left to the validator.

mod flow;
mod memory;
mod phis;
mod record;
mod state;
mod value;

use std::cell::RefCell;

pub use flow::{Selector, Var};
pub use memory::{Atomic, Indexed, Loads, Object, Read, ReadWrite, Single, Stored, Stores, Uniform, Write};
pub use record::{Field, FieldRef, FieldType, RecordValue};
pub use value::{Arg, AtomicNumber, Bundle, Float, Integer, Logic, Nameable, Number, Signed, Val};

use crate::Error;
use crate::ir::{Axis, Barrier, Literal, Op, PerGroup, PerInvocation, Program, Scalar, Span, ValueId};
use crate::text::is_name;
use state::State;

/// Builds a program: `body` is called once and appends the instructions that every invocation executes.
///
/// # Errors
/// [`Error::Build`] with the location of the first violation.
#[track_caller]
pub fn kernel(name: impl Into<String>, workgroup_size: [u32; 3], body: impl FnOnce(&Kernel)) -> Result<Program, Error> {
    let kernel = Kernel { state: RefCell::new(State::new(Program::new(name, workgroup_size))) };
    kernel.state.borrow_mut().check_declarations();
    body(&kernel);
    kernel.state.into_inner().finish()
}

/// Program under construction: declares memory and constants, and appends instructions and control flow.
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

/// Positions of the invocation, and barriers.
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

/// Literals, constants and prints.
impl Kernel {
    /// A literal as a value. Arguments of type [`Arg`] also take Rust literals directly.
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

    /// Sets the debug name of values that have none, and returns them. Ignores names that are not valid in the text format.
    pub fn debug_name<N: Nameable>(&self, name: &str, values: N) -> N {
        if is_name(name) {
            values.name(self, name);
        }
        values
    }

    /// Sets the default grid, in invocations.
    #[track_caller]
    pub fn launch(&self, invocations: [u32; 3]) {
        let mut state = self.state.borrow_mut();
        state.program.set_launch(Some(invocations));
        state.check_declarations();
    }

    /// Enables [fast-math](Program::is_fast).
    pub fn fast(&self) {
        self.state.borrow_mut().program.set_fast(true);
    }

    /// [`Print`](Op::Print): each `{}` of the text is replaced by a value, as in `k.print("{} of {}", (i, n))`.
    #[track_caller]
    pub fn print<'k>(&'k self, text: &str, values: impl Bundle<'k>) {
        let operands = self.operands_of(values);
        self.apply::<()>(Op::Print(text.into()), &operands);
    }

    /// Appends an instruction with results of the types of `R`.
    #[track_caller]
    fn apply<'k, R: Bundle<'k>>(&'k self, op: impl Into<Op>, operands: &[ValueId]) -> R {
        let results = self.state.borrow_mut().emit(op, operands, &R::result_types(), &[]);
        R::from_values(self, &mut results.into_iter())
    }
}
