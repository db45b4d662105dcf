//! Control flow and mutable variables.

use std::marker::PhantomData;

use super::state::Arm;
use super::{Arg, Bundle, Integer, Kernel, Val};
use crate::ir::{Control, Literal, Op, Pure, Scalar, Terminator, ValueId, Values};
use crate::text::is_name;

/// A mutable variable. Its scope is the block that makes it.
///
/// The builder converts variables to SSA: one that a branch assigns becomes a result of the branch, one that a loop assigns a parameter of
/// the loop.
#[derive(Clone, Copy)]
pub struct Var<'k, T> {
    kernel: &'k Kernel,
    index: usize,
    ty: PhantomData<T>,
}

impl<'k, T: Scalar> Var<'k, T> {
    /// Sets the debug name of the current and later values of the variable that have none.
    #[track_caller]
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let mut state = self.kernel.state.borrow_mut();
        state.check_name(name);
        state.name_variable(self.index, name);
        self
    }

    /// Like [`named`](Var::named), but ignores names that are not valid in the text format.
    #[must_use]
    pub fn debug_name(self, name: &str) -> Self {
        if is_name(name) {
            self.kernel.state.borrow_mut().name_variable(self.index, name);
        }
        self
    }

    /// The current value of the variable. Later assignments do not change it.
    #[track_caller]
    #[must_use]
    pub fn get(self) -> Val<'k, T> {
        Val::new(self.kernel, self.kernel.state.borrow_mut().get(self.index))
    }

    /// Assigns the variable.
    #[track_caller]
    pub fn set(self, value: impl Arg<'k, T>) {
        let value = value.operand(self.kernel);
        self.kernel.state.borrow_mut().set(self.index, value);
    }
}

/// Types of `switch` selectors.
pub trait Selector: Integer {}
impl Selector for i32 {}
impl Selector for u32 {}

/// Variables, branches, loops and exits.
impl Kernel {
    /// Makes a mutable variable.
    #[track_caller]
    pub fn var<'k, T: Scalar>(&'k self, initial: impl Arg<'k, T>) -> Var<'k, T> {
        let initial = initial.operand(self);
        Var { kernel: self, index: self.state.borrow_mut().variable(initial), ty: PhantomData }
    }

    /// Makes a mutable variable with the initial value 0.
    #[track_caller]
    pub fn unset<T: Scalar>(&self) -> Var<'_, T> {
        self.var(T::from_bits(0))
    }

    /// Appends an `if` without `else`.
    #[track_caller]
    pub fn if_<'k>(&'k self, condition: impl Arg<'k, bool>, then: impl FnOnce()) {
        self.if_else(condition, then, || ());
    }

    /// Appends an `if` with `else`. The results are the values that the closures return.
    #[track_caller]
    pub fn if_else<'k, R: Bundle<'k>>(
        &'k self,
        condition: impl Arg<'k, bool>,
        then: impl FnOnce() -> R,
        otherwise: impl FnOnce() -> R,
    ) -> R {
        let condition = condition.operand(self);
        let arms = [self.arm(then), self.arm(otherwise)];
        self.branch(Control::If, &[condition], &arms)
    }

    /// Appends a `switch`: `body` is called with each case, and with `None` for the default. The results are the values that it returns.
    #[track_caller]
    pub fn switch_<'k, T: Selector, R: Bundle<'k>>(
        &'k self,
        selector: impl Arg<'k, T>,
        cases: impl IntoIterator<Item = T>,
        mut body: impl FnMut(Option<T>) -> R,
    ) -> R {
        let selector = selector.operand(self);
        let cases: Vec<T> = cases.into_iter().collect();
        let mut arms = Vec::new();
        for case in cases.iter().copied().map(Some).chain([None]) {
            arms.push(self.arm(|| body(case)));
        }
        let cases = cases.into_iter().map(|case| case.to_bits() as u32).collect();
        self.branch(Control::Switch(cases), &[selector], &arms)
    }

    /// Appends a `region`: code of a named operation, for telemetry, fusion and explanations.
    #[track_caller]
    pub fn region<'k, R: Bundle<'k>>(&'k self, operation: &str, body: impl FnOnce() -> R) -> R {
        let arms = [self.arm(body)];
        self.branch(Control::Region(operation.into()), &[], &arms)
    }

    /// Appends a loop, left by [`break_`](Kernel::break_).
    #[track_caller]
    pub fn loop_(&self, body: impl FnOnce()) {
        self.state.borrow_mut().open_loop(None);
        body();
        self.state.borrow_mut().close_loop();
    }

    /// Appends a loop that runs while a condition is true.
    #[track_caller]
    pub fn while_<'k, C: Arg<'k, bool>>(&'k self, condition: impl FnOnce() -> C, body: impl FnOnce()) {
        self.state.borrow_mut().open_loop(None);
        let condition = condition().operand(self);
        let done: Val<'k, bool> = self.apply(Pure::Not, &[condition]);
        self.if_(done, || self.break_());
        body();
        self.state.borrow_mut().close_loop();
    }

    /// Appends a counting loop over `from..to`.
    #[track_caller]
    pub fn for_range<'k, T: Integer>(
        &'k self,
        from: impl Arg<'k, T>,
        to: impl Arg<'k, T>,
        body: impl FnOnce(Val<'k, T>),
    ) {
        self.for_range_step(from, to, T::from_bits(1), body);
    }

    /// Appends a counting loop from `from` below `to`, in steps of `step`. The induction variable wraps at the end of its type.
    #[track_caller]
    pub fn for_range_step<'k, T: Integer>(
        &'k self,
        from: impl Arg<'k, T>,
        to: impl Arg<'k, T>,
        step: impl Arg<'k, T>,
        body: impl FnOnce(Val<'k, T>),
    ) {
        let [from, to, step] = [from.operand(self), to.operand(self), step.operand(self)];
        let counter = self.state.borrow_mut().open_loop(Some((from, step)));
        let counter = Val::new(self, counter.expect("requested"));
        let done = self.apply::<Val<'k, bool>>(Op::Pure(Pure::Ge), &[counter.operand(self), to]);
        self.if_(done, || self.break_());
        body(counter);
        self.state.borrow_mut().close_loop();
    }

    /// Leaves the innermost loop.
    #[track_caller]
    pub fn break_(&self) {
        self.state.borrow_mut().exit_loop(Terminator::Break);
    }

    /// Starts the next iteration of the innermost loop.
    #[track_caller]
    pub fn continue_(&self) {
        self.state.borrow_mut().exit_loop(Terminator::Continue);
    }

    /// Ends the invocation.
    #[track_caller]
    pub fn return_(&self) {
        self.state.borrow_mut().exit(Terminator::Return, &[]);
    }

    /// Ends the invocation and makes the dispatch fail with a code.
    #[track_caller]
    pub fn trap<'k>(&'k self, code: impl Arg<'k, u32>) {
        let code = code.operand(self);
        self.state.borrow_mut().exit(Terminator::Trap, &[code]);
    }

    /// Placeholder values for a closure whose block has ended.
    pub fn never<'k, R: Bundle<'k>>(&'k self) -> R {
        let zeros = R::result_types().into_iter().map(|ty| self.state.borrow_mut().program.literal(Literal::zero(ty)));
        R::from_values(self, &mut zeros.collect::<Values>().into_iter())
    }

    #[track_caller]
    fn arm<'k, R: Bundle<'k>>(&'k self, body: impl FnOnce() -> R) -> Arm {
        self.state.borrow_mut().open();
        let result = body();
        // Values returned after an exit are unused.
        let ended = self.state.borrow_mut().ended();
        let given = if ended { Default::default() } else { self.operands_of(result) };
        self.state.borrow_mut().close_arm(given)
    }

    #[track_caller]
    fn branch<'k, R: Bundle<'k>>(&'k self, op: Control, operands: &[ValueId], arms: &[Arm]) -> R {
        let results = self.state.borrow_mut().branch(op, operands, &R::result_types(), arms);
        R::from_values(self, &mut results.into_iter())
    }
}
