//! Control flow and mutable variables.

use std::marker::PhantomData;

use super::state::Arm;
use super::{Arg, Bundle, Integer, Kernel, Val};
use crate::ir::{Control, Literal, Op, Pure, Scalar, Terminator, ValueId, Values};
use crate::text::is_name;

/// A mutable variable. It can be used until the block it was made in ends.
///
/// The program has no variables: after a branch that changes one, its value is a result of the branch; in a loop that
/// changes it, it is a parameter.
#[derive(Clone, Copy)]
pub struct Var<'k, T> {
    kernel: &'k Kernel,
    index: usize,
    ty: PhantomData<T>,
}

impl<'k, T: Scalar> Var<'k, T> {
    /// Gives a name to the values that the variable has from here on, unless they have one.
    #[track_caller]
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let mut state = self.kernel.state.borrow_mut();
        state.check_name(name);
        state.name_variable(self.index, name);
        self
    }

    /// [`named`](Var::named) for names of another language: one that the text format cannot write is no mistake, and ignored.
    #[must_use]
    pub fn debug_name(self, name: &str) -> Self {
        if is_name(name) {
            self.kernel.state.borrow_mut().name_variable(self.index, name);
        }
        self
    }

    /// What the variable is here. The value does not change with it.
    #[track_caller]
    #[must_use]
    pub fn get(self) -> Val<'k, T> {
        Val::new(self.kernel, self.kernel.state.borrow_mut().get(self.index))
    }

    /// Changes the variable.
    #[track_caller]
    pub fn set(self, value: impl Arg<'k, T>) {
        let value = value.operand(self.kernel);
        self.kernel.state.borrow_mut().set(self.index, value);
    }
}

/// Types that a `switch` can choose by.
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

    /// Makes a mutable variable that is set before it is needed; until then, it is 0.
    #[track_caller]
    pub fn unset<T: Scalar>(&self) -> Var<'_, T> {
        self.var(T::from_bits(0))
    }

    /// Does something where a condition is true.
    #[track_caller]
    pub fn if_<'k>(&'k self, condition: impl Arg<'k, bool>, then: impl FnOnce()) {
        self.if_else(condition, then, || ());
    }

    /// Does one thing where a condition is true and another where it is not. What the closures return is the result.
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

    /// Does one of several things: `body` is called with each of the cases, and with `None` for all other values of the
    /// selector. What it returns is the result.
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

    /// Does something that came from the named operation: telemetry, fusion and explanations speak of it.
    #[track_caller]
    pub fn region<'k, R: Bundle<'k>>(&'k self, operation: &str, body: impl FnOnce() -> R) -> R {
        let arms = [self.arm(body)];
        self.branch(Control::Region(operation.into()), &[], &arms)
    }

    /// Repeats until a [`break_`](Kernel::break_).
    #[track_caller]
    pub fn loop_(&self, body: impl FnOnce()) {
        self.state.borrow_mut().open_loop(None);
        body();
        self.state.borrow_mut().close_loop();
    }

    /// Repeats while a condition is true.
    #[track_caller]
    pub fn while_<'k, C: Arg<'k, bool>>(&'k self, condition: impl FnOnce() -> C, body: impl FnOnce()) {
        self.state.borrow_mut().open_loop(None);
        let condition = condition().operand(self);
        let done: Val<'k, bool> = self.apply(Pure::Not, &[condition]);
        self.if_(done, || self.break_());
        body();
        self.state.borrow_mut().close_loop();
    }

    /// Counts from `from` up to, but not including, `to`.
    #[track_caller]
    pub fn for_range<'k, T: Integer>(
        &'k self,
        from: impl Arg<'k, T>,
        to: impl Arg<'k, T>,
        body: impl FnOnce(Val<'k, T>),
    ) {
        self.for_range_step(from, to, T::from_bits(1), body);
    }

    /// Counts from `from` up in steps, below `to`. A step that goes past the end of the type wraps, and the counting goes on.
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
        let counter = Val::new(self, counter.expect("asked for"));
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

    /// Goes on with the next trip of the innermost loop.
    #[track_caller]
    pub fn continue_(&self) {
        self.state.borrow_mut().exit_loop(Terminator::Continue);
    }

    /// Ends the invocation.
    #[track_caller]
    pub fn return_(&self) {
        self.state.borrow_mut().exit(Terminator::Return, &[]);
    }

    /// Ends the invocation, and makes the dispatch fail with a code.
    #[track_caller]
    pub fn trap<'k>(&'k self, code: impl Arg<'k, u32>) {
        let code = code.operand(self);
        self.state.borrow_mut().exit(Terminator::Trap, &[code]);
    }

    /// Stands for values where a block has ended: what a closure returns there goes nowhere.
    pub fn never<'k, R: Bundle<'k>>(&'k self) -> R {
        let zeros = R::result_types().into_iter().map(|ty| self.state.borrow_mut().program.literal(Literal::zero(ty)));
        R::from_values(self, &mut zeros.collect::<Values>().into_iter())
    }

    #[track_caller]
    fn arm<'k, R: Bundle<'k>>(&'k self, body: impl FnOnce() -> R) -> Arm {
        self.state.borrow_mut().open();
        let result = body();
        // What a closure returns after an exit goes nowhere and may be anything.
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
