//! The rewrite rules: data, each of them proved.
//!
//! A rule says that one expression may stand for another. Expressions are written with the names of the
//! [op table](crate::ir::ops), in prefix form:
//!
//! * A lower-case name is any value, an upper-case name any literal. `x` has the type `T`, which is each type of the rule's
//!   class in turn; the types of the others follow from where they stand, or are written after a colon: `c:bool`.
//!   What is still open then is a `T` too.
//! * Numbers have the type of their place. As an integer or a bool, `-1` is all ones. `T::MIN`, `T::MAX` and `T::BITS` are
//!   the least and greatest integer of the class and, as a u32, its width.
//! * The target of a conversion is written after a colon: `(cast:u32 x)`, `(cast:T c)`.
//! * What consists of literals only, in the replacement and in the condition, is computed when the rule is applied, by the
//!   evaluators of the op table.
//! * Operands of the operations in [`SWAPPED`] that commute are matched in either order, except that literals stand on the right, where
//!   `canonicalize` puts them.
//!
//! Rules, conditions and operands are all in terms of the op table, and so are the proofs: for every type of its class, an
//! SMT solver shows that no operands tell a rule's two sides apart. A rule that it cannot prove is not in the table. The tests
//! also check that what [`SIMPLIFYING`] rules build costs less than what they match, and that [`CANONICAL`] ones do not make
//! it cost more, so that the two cannot undo each other's work forever.

use std::mem::{Discriminant, discriminant};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::cost;
use crate::ir::ops::{Form, Payload, Row, Signature, Slot};
use crate::ir::{Op, Type, TypeSet};

/// One expression that may stand for another.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What `T` stands for.
    pub class: TypeSet,
    /// What is replaced.
    pub from: &'static str,
    /// What it is replaced by.
    pub to: &'static str,
    /// What must hold of the literals.
    pub when: Option<&'static str>,
}

/// A rule without a condition.
pub const fn rule(class: TypeSet, from: &'static str, to: &'static str) -> Rule {
    Rule { class, from, to, when: None }
}

impl Rule {
    /// The rule, only for literals of which this holds.
    pub const fn when(mut self, condition: &'static str) -> Rule {
        self.when = Some(condition);
        self
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {}", self.from, self.to)?;
        self.when.map_or(Ok(()), |when| write!(f, " when {when}"))
    }
}

const ALL: TypeSet = TypeSet::ALL;
const NUMBERS: TypeSet = TypeSet::NUMBERS;
const INTEGERS: TypeSet = TypeSet::INTEGERS;
/// Of some rules, the proof for 64 bits takes too long.
const INTEGERS_32: TypeSet = TypeSet::INTEGERS_32;
const FLOATS: TypeSet = TypeSet::FLOATS;
const LOGIC: TypeSet = TypeSet::LOGIC;
const SIGNED: TypeSet = TypeSet::SIGNED;
const SIGNED_INTEGERS: TypeSet = TypeSet::of(&[Type::I32, Type::I64]);
const UNSIGNED: TypeSet = TypeSet::of(&[Type::U32, Type::U64]);
const BOOL: TypeSet = TypeSet::of(&[Type::Bool]);
const I32: TypeSet = TypeSet::of(&[Type::I32]);
const U32: TypeSet = TypeSet::of(&[Type::U32]);
const I64: TypeSet = TypeSet::of(&[Type::I64]);
const U64: TypeSet = TypeSet::of(&[Type::U64]);
/// Of some rules, the proof for f64 takes too long.
const SMALL_FLOATS: TypeSet = TypeSet::of(&[Type::F16, Type::F32]);
const F16: TypeSet = TypeSet::of(&[Type::F16]);
const F32: TypeSet = TypeSet::of(&[Type::F32]);

/// Operations that may be applied to their two operands in the other order, what they are then, and for which types. Sums and
/// products of floats are not among them: the solver does not come to an end with those.
pub const SWAPPED: &[(Op, Op, TypeSet)] = &[
    (Op::Add, Op::Add, INTEGERS),
    (Op::Mul, Op::Mul, INTEGERS),
    (Op::MulHigh, Op::MulHigh, INTEGERS),
    (Op::Min, Op::Min, NUMBERS),
    (Op::Max, Op::Max, NUMBERS),
    (Op::And, Op::And, LOGIC),
    (Op::Or, Op::Or, LOGIC),
    (Op::Xor, Op::Xor, LOGIC),
    (Op::Eq, Op::Eq, ALL),
    (Op::Ne, Op::Ne, ALL),
    (Op::Lt, Op::Gt, NUMBERS),
    (Op::Le, Op::Ge, NUMBERS),
    (Op::Gt, Op::Lt, NUMBERS),
    (Op::Ge, Op::Le, NUMBERS),
];

/// What an operation is when its two operands are swapped.
pub(super) fn swapped(op: &Op, class: Type) -> Option<&'static Op> {
    let row = SWAPPED.iter().find(|(known, _, types)| known == op && types.contains(class));
    row.map(|(_, swapped, _)| swapped)
}

/// Rules that bring equal things into equal form.
pub const CANONICAL: &[Rule] = &[
    // Subtracting is adding.
    rule(INTEGERS, "(sub x C)", "(add x (sub 0 C))"),
    // Comparisons of integers with literals are strict, and those with the least number ask whether it is that.
    rule(INTEGERS, "(le x C)", "(lt x (add C 1))").when("(ne C T::MAX)"),
    rule(INTEGERS, "(ge x C)", "(gt x (sub C 1))").when("(ne C T::MIN)"),
    rule(UNSIGNED, "(lt x 1)", "(eq x 0)"),
    rule(UNSIGNED, "(gt x 0)", "(ne x 0)"),
    // One name for everything that is true of two bools, or of the bits of two numbers.
    rule(BOOL, "(ne x y)", "(xor x y)"),
    rule(INTEGERS, "(xor x -1)", "(not x)"),
    rule(BOOL, "(xor x true)", "(not x)"),
    rule(BOOL, "(eq x false)", "(not x)"),
    // One way to go from bool to numbers and back, and from integers to integers.
    rule(NUMBERS, "(select c:bool 1 0)", "(cast:T c)"),
    rule(NUMBERS, "(cast:bool x)", "(ne x 0)"),
    rule(I32, "(bitcast:u32 x)", "(cast:u32 x)"),
    rule(U32, "(bitcast:i32 x)", "(cast:i32 x)"),
    rule(I64, "(bitcast:u64 x)", "(cast:u64 x)"),
    rule(U64, "(bitcast:i64 x)", "(cast:i64 x)"),
    // Counts are below the width.
    rule(INTEGERS, "(shl x C)", "(shl x (and C (sub T::BITS 1)))").when("(ge C T::BITS)"),
    rule(INTEGERS, "(shr x C)", "(shr x (and C (sub T::BITS 1)))").when("(ge C T::BITS)"),
    rule(INTEGERS, "(rotate_left x C)", "(rotate_left x (and C (sub T::BITS 1)))").when("(ge C T::BITS)"),
    // Fields at an end are a mask or a shift.
    rule(UNSIGNED, "(extract_bits x 0 C)", "(and x (shr -1 (sub T::BITS C)))").when("(and (gt C 0) (lt C T::BITS))"),
    rule(INTEGERS, "(extract_bits x C D)", "(shr x C)").when("(and (lt C T::BITS) (ge D (sub T::BITS C)))"),
    // Fewer operands, or fewer that others must wait for, at the same cost.
    rule(SIGNED_INTEGERS, "(neg (not x))", "(add x 1)"),
    rule(SIGNED_INTEGERS, "(not (neg x))", "(add x -1)"),
    rule(SIGNED_INTEGERS, "(mul_high x 1)", "(shr x (sub T::BITS 1))"),
    rule(BOOL, "(select x false true)", "(not x)"),
    rule(INTEGERS, "(xor (cast:T c:bool) 1)", "(cast:T (not c))"),
];

/// Rules that make programs cheaper.
pub const SIMPLIFYING: &[Rule] = &[
    // Sums and differences.
    rule(INTEGERS, "(add x 0)", "x"),
    rule(INTEGERS, "(sub x x)", "0"),
    rule(INTEGERS, "(add (add x C) D)", "(add x (add C D))"),
    rule(INTEGERS, "(sub C (add x D))", "(sub (sub C D) x)"),
    rule(INTEGERS, "(sub C (sub D x))", "(add x (sub C D))"),
    rule(INTEGERS, "(add (sub C x) D)", "(sub (add C D) x)"),
    rule(INTEGERS, "(sub (add x y) x)", "y"),
    rule(INTEGERS, "(add (sub x y) y)", "x"),
    rule(INTEGERS, "(sub x (sub x y))", "y"),
    rule(INTEGERS, "(sub x (add x y))", "(sub 0 y)"),
    rule(INTEGERS, "(sub (sub x y) x)", "(sub 0 y)"),
    rule(INTEGERS, "(sub (add x y) (add x z))", "(sub y z)"),
    rule(INTEGERS, "(sub (sub x y) (sub x z))", "(sub z y)"),
    rule(INTEGERS, "(add (sub x y) (sub y z))", "(sub x z)"),
    rule(INTEGERS, "(add x (sub 0 y))", "(sub x y)"),
    rule(INTEGERS, "(sub x (sub 0 y))", "(add x y)"),
    rule(INTEGERS, "(add (and x y) (or x y))", "(add x y)"),
    rule(INTEGERS, "(add (and x y) (xor x y))", "(or x y)"),
    rule(INTEGERS, "(sub (or x y) (and x y))", "(xor x y)"),
    rule(INTEGERS, "(sub (add x y) (or x y))", "(and x y)"),
    rule(INTEGERS, "(sub (add x y) (and x y))", "(or x y)"),
    rule(INTEGERS, "(add (min x y) (max x y))", "(add x y)"),
    rule(INTEGERS, "(add x x)", "(shl x 1)"),
    rule(INTEGERS, "(add x (not x))", "-1"),
    rule(INTEGERS, "(sub -1 x)", "(not x)"),
    rule(INTEGERS, "(add (not x) 1)", "(sub 0 x)"),
    rule(INTEGERS, "(sub (not x) (not y))", "(sub y x)"),
    // Signs.
    rule(SIGNED, "(neg (neg x))", "x"),
    rule(SIGNED, "(add x (neg y))", "(sub x y)"),
    rule(SIGNED, "(sub x (neg y))", "(add x y)"),
    rule(SIGNED_INTEGERS, "(sub 0 x)", "(neg x)"),
    rule(SIGNED_INTEGERS, "(neg (sub x y))", "(sub y x)"),
    rule(SIGNED_INTEGERS, "(neg (add x C))", "(sub (neg C) x)"),
    rule(SIGNED_INTEGERS, "(not (add x -1))", "(neg x)"),
    rule(SIGNED, "(abs (abs x))", "(abs x)"),
    rule(SIGNED, "(abs (neg x))", "(abs x)"),
    rule(SIGNED, "(max x (neg x))", "(abs x)"),
    rule(SIGNED_INTEGERS, "(select (lt x 0) (neg x) x)", "(abs x)"),
    rule(SIGNED_INTEGERS, "(select (gt x -1) x (neg x))", "(abs x)"),
    // Products.
    rule(INTEGERS, "(mul x 0)", "0"),
    rule(INTEGERS, "(mul x 1)", "x"),
    rule(SIGNED, "(mul x -1)", "(neg x)"),
    rule(INTEGERS, "(mul x C)", "(shl x (trailing_zeros C))").when("(eq (count_ones C) 1)"),
    rule(INTEGERS, "(mul (mul x C) D)", "(mul x (mul C D))"),
    rule(INTEGERS, "(add (mul x C) x)", "(mul x (add C 1))"),
    rule(INTEGERS, "(sub (mul x C) x)", "(mul x (sub C 1))"),
    rule(INTEGERS, "(sub x (mul x C))", "(mul x (sub 1 C))"),
    rule(INTEGERS, "(add (mul x C) (mul x D))", "(mul x (add C D))"),
    rule(INTEGERS, "(add (mul x y) (mul x z))", "(mul x (add y z))"),
    rule(INTEGERS, "(sub (mul x y) (mul x z))", "(mul x (sub y z))"),
    rule(SIGNED_INTEGERS, "(mul (neg x) C)", "(mul x (neg C))"),
    rule(SMALL_FLOATS, "(mul (neg x) C)", "(mul x (neg C))"),
    rule(SIGNED_INTEGERS, "(mul (neg x) (neg y))", "(mul x y)"),
    rule(SMALL_FLOATS, "(mul (neg x) (neg y))", "(mul x y)"),
    rule(INTEGERS, "(mul_high x 0)", "0"),
    rule(UNSIGNED, "(mul_high x 1)", "0"),
    // Quotients.
    rule(INTEGERS, "(div x 0)", "x"),
    rule(INTEGERS, "(div x 1)", "x"),
    rule(SIGNED_INTEGERS, "(div x -1)", "(neg x)"),
    rule(INTEGERS, "(div 0 x)", "0"),
    rule(INTEGERS_32, "(div x x)", "(cast:T (ne x 0))"),
    rule(UNSIGNED, "(div x C)", "(shr x (trailing_zeros C))").when("(eq (count_ones C) 1)"),
    rule(SIGNED_INTEGERS, "(div x C)", "(shr (select (lt x 0) (add x (sub C 1)) x) (trailing_zeros C))")
        .when("(and (eq (count_ones C) 1) (gt C 1))"),
    rule(INTEGERS, "(rem x 0)", "0"),
    rule(INTEGERS, "(rem x 1)", "0"),
    rule(SIGNED_INTEGERS, "(rem x -1)", "0"),
    rule(INTEGERS, "(rem 0 x)", "0"),
    rule(INTEGERS_32, "(rem x x)", "0"),
    rule(UNSIGNED, "(rem x C)", "(and x (sub C 1))").when("(eq (count_ones C) 1)"),
    rule(SIGNED_INTEGERS, "(rem x C)", "(sub x (and (select (lt x 0) (add x (sub C 1)) x) (neg C)))")
        .when("(and (eq (count_ones C) 1) (gt C 1))"),
    // Bits.
    rule(LOGIC, "(and x 0)", "0"),
    rule(LOGIC, "(and x -1)", "x"),
    rule(LOGIC, "(and x x)", "x"),
    rule(LOGIC, "(and x (not x))", "0"),
    rule(LOGIC, "(or x 0)", "x"),
    rule(LOGIC, "(or x -1)", "-1"),
    rule(LOGIC, "(or x x)", "x"),
    rule(LOGIC, "(or x (not x))", "-1"),
    rule(LOGIC, "(xor x 0)", "x"),
    rule(LOGIC, "(xor x x)", "0"),
    rule(LOGIC, "(xor x (not x))", "-1"),
    rule(LOGIC, "(not (not x))", "x"),
    rule(INTEGERS, "(and (and x C) D)", "(and x (and C D))"),
    rule(INTEGERS, "(or (or x C) D)", "(or x (or C D))"),
    rule(INTEGERS, "(xor (xor x C) D)", "(xor x (xor C D))"),
    rule(INTEGERS, "(xor (not x) C)", "(xor x (not C))"),
    rule(INTEGERS, "(not (xor x C))", "(xor x (not C))"),
    rule(LOGIC, "(xor (not x) (not y))", "(xor x y)"),
    rule(LOGIC, "(xor x (xor x y))", "y"),
    rule(LOGIC, "(and x (and x y))", "(and x y)"),
    rule(LOGIC, "(or x (or x y))", "(or x y)"),
    rule(LOGIC, "(and x (or x y))", "x"),
    rule(LOGIC, "(or x (and x y))", "x"),
    rule(LOGIC, "(and x (or (not x) y))", "(and x y)"),
    rule(LOGIC, "(or x (and (not x) y))", "(or x y)"),
    rule(LOGIC, "(and (not x) (not y))", "(not (or x y))"),
    rule(LOGIC, "(or (not x) (not y))", "(not (and x y))"),
    rule(LOGIC, "(or (and x y) (and x z))", "(and x (or y z))"),
    rule(LOGIC, "(and (or x y) (or x z))", "(or x (and y z))"),
    rule(LOGIC, "(xor (and x y) (and x z))", "(and x (xor y z))"),
    rule(LOGIC, "(or (and x y) (and x (not y)))", "x"),
    rule(LOGIC, "(and (or x y) (or x (not y)))", "x"),
    rule(LOGIC, "(xor (or x y) (and x y))", "(xor x y)"),
    rule(LOGIC, "(or (xor x y) (and x y))", "(or x y)"),
    rule(LOGIC, "(xor (xor x y) (and x y))", "(or x y)"),
    rule(LOGIC, "(xor (xor x y) (or x y))", "(and x y)"),
    rule(INTEGERS, "(and (or x C) D)", "(and x D)").when("(eq (and C D) 0)"),
    rule(INTEGERS, "(and (or x C) D)", "D").when("(eq (and C D) D)"),
    rule(INTEGERS, "(or (and x C) D)", "(or x D)").when("(eq (or C D) -1)"),
    rule(INTEGERS, "(or (and x C) D)", "D").when("(eq (or C D) D)"),
    // Shifts and rotations.
    rule(INTEGERS, "(shl x 0)", "x"),
    rule(INTEGERS, "(shr x 0)", "x"),
    rule(INTEGERS, "(rotate_left x 0)", "x"),
    rule(INTEGERS, "(shl 0 c)", "0"),
    rule(INTEGERS, "(shr 0 c)", "0"),
    rule(SIGNED_INTEGERS, "(shr -1 c)", "-1"),
    rule(INTEGERS, "(shl (shl x C) D)", "(shl x (add C D))").when("(and (lt C T::BITS) (lt D (sub T::BITS C)))"),
    rule(INTEGERS, "(shl (shl x C) D)", "0").when("(and (lt C T::BITS) (and (lt D T::BITS) (ge (add C D) T::BITS)))"),
    rule(INTEGERS, "(shr (shr x C) D)", "(shr x (add C D))").when("(and (lt C T::BITS) (lt D (sub T::BITS C)))"),
    rule(UNSIGNED, "(shr (shr x C) D)", "0").when("(and (lt C T::BITS) (and (lt D T::BITS) (ge (add C D) T::BITS)))"),
    rule(SIGNED_INTEGERS, "(shr (shr x C) D)", "(shr x (sub T::BITS 1))")
        .when("(and (lt C T::BITS) (and (lt D T::BITS) (ge (add C D) T::BITS)))"),
    rule(UNSIGNED, "(shr (shl x C) C)", "(and x (shr -1 C))"),
    rule(INTEGERS, "(shl (shr x C) C)", "(and x (shl -1 C))"),
    rule(UNSIGNED, "(and (shr x C) D)", "(shr x C)").when("(eq (or D (not (shr -1 C))) -1)"),
    rule(INTEGERS, "(and (shl x C) D)", "(shl x C)").when("(eq (or D (not (shl -1 C))) -1)"),
    rule(INTEGERS, "(and (shl x C) D)", "0").when("(eq (and D (shl -1 C)) 0)"),
    rule(UNSIGNED, "(and (shr x C) D)", "0").when("(eq (and D (shr -1 C)) 0)"),
    rule(INTEGERS, "(shl (and x C) D)", "(shl x D)").when("(eq (shl (not C) D) 0)"),
    rule(INTEGERS, "(shr (and x C) D)", "(shr x D)").when("(eq (shr (not C) D) 0)"),
    rule(UNSIGNED, "(shr (and x C) D)", "0").when("(eq (shr C D) 0)"),
    rule(UNSIGNED, "(or (shl x C) (shr x D))", "(rotate_left x C)").when("(eq (and (add C D) (sub T::BITS 1)) 0)"),
    rule(UNSIGNED, "(add (shl x C) (shr x D))", "(rotate_left x C)")
        .when("(and (ne (and C (sub T::BITS 1)) 0) (eq (and (add C D) (sub T::BITS 1)) 0))"),
    rule(UNSIGNED, "(xor (shl x C) (shr x D))", "(rotate_left x C)")
        .when("(and (ne (and C (sub T::BITS 1)) 0) (eq (and (add C D) (sub T::BITS 1)) 0))"),
    rule(UNSIGNED, "(or (shl x c) (shr x (sub C c)))", "(rotate_left x c)").when("(eq (and C (sub T::BITS 1)) 0)"),
    rule(UNSIGNED, "(or (shr x c) (shl x (sub C c)))", "(rotate_left x (sub 0 c))")
        .when("(eq (and C (sub T::BITS 1)) 0)"),
    rule(INTEGERS, "(shl x (and c M))", "(shl x c)").when("(eq (and M (sub T::BITS 1)) (sub T::BITS 1))"),
    rule(INTEGERS, "(shr x (and c M))", "(shr x c)").when("(eq (and M (sub T::BITS 1)) (sub T::BITS 1))"),
    rule(INTEGERS, "(rotate_left x (and c M))", "(rotate_left x c)")
        .when("(eq (and M (sub T::BITS 1)) (sub T::BITS 1))"),
    rule(INTEGERS, "(reverse_bits (reverse_bits x))", "x"),
    rule(INTEGERS, "(count_ones (reverse_bits x))", "(count_ones x)"),
    rule(INTEGERS, "(leading_zeros (reverse_bits x))", "(trailing_zeros x)"),
    rule(INTEGERS, "(trailing_zeros (reverse_bits x))", "(leading_zeros x)"),
    rule(INTEGERS, "(eq (trailing_zeros x) T::BITS)", "(eq x 0)"),
    rule(INTEGERS, "(eq (leading_zeros x) T::BITS)", "(eq x 0)"),
    // Fields.
    rule(INTEGERS, "(extract_bits x o 0)", "0"),
    rule(INTEGERS, "(extract_bits x C n)", "0").when("(ge C T::BITS)"),
    rule(INTEGERS, "(extract_bits x 0 C)", "x").when("(ge C T::BITS)"),
    rule(INTEGERS, "(insert_bits x y o 0)", "x"),
    rule(INTEGERS, "(insert_bits x y C n)", "x").when("(ge C T::BITS)"),
    rule(INTEGERS, "(insert_bits x y 0 C)", "y").when("(ge C T::BITS)"),
    // The smaller and the larger.
    rule(NUMBERS, "(min x x)", "x"),
    rule(NUMBERS, "(max x x)", "x"),
    rule(INTEGERS, "(min x T::MAX)", "x"),
    rule(INTEGERS, "(min x T::MIN)", "T::MIN"),
    rule(INTEGERS, "(max x T::MIN)", "x"),
    rule(INTEGERS, "(max x T::MAX)", "T::MAX"),
    rule(NUMBERS, "(min (min x C) D)", "(min x (min C D))"),
    rule(NUMBERS, "(max (max x C) D)", "(max x (max C D))"),
    rule(INTEGERS, "(min (max x C) D)", "D").when("(le D C)"),
    rule(INTEGERS, "(max (min x C) D)", "D").when("(ge D C)"),
    rule(NUMBERS, "(min x (min x y))", "(min x y)"),
    rule(NUMBERS, "(max x (max x y))", "(max x y)"),
    rule(INTEGERS, "(min x (max x y))", "x"),
    rule(INTEGERS, "(max x (min x y))", "x"),
    rule(NUMBERS, "(max (min x y) (max x y))", "(max x y)"),
    rule(NUMBERS, "(min (min x y) (max x y))", "(min x y)"),
    rule(INTEGERS, "(min (not x) (not y))", "(not (max x y))"),
    rule(INTEGERS, "(max (not x) (not y))", "(not (min x y))"),
    rule(FLOATS, "(min (neg x) (neg y))", "(neg (max x y))"),
    rule(FLOATS, "(max (neg x) (neg y))", "(neg (min x y))"),
    rule(INTEGERS, "(select (lt x y) x y)", "(min x y)"),
    rule(INTEGERS, "(select (le x y) x y)", "(min x y)"),
    rule(INTEGERS, "(select (gt x y) x y)", "(max x y)"),
    rule(INTEGERS, "(select (ge x y) x y)", "(max x y)"),
    rule(INTEGERS, "(select (lt x y) y x)", "(max x y)"),
    rule(INTEGERS, "(select (le x y) y x)", "(max x y)"),
    rule(INTEGERS, "(select (gt x y) y x)", "(min x y)"),
    rule(INTEGERS, "(select (ge x y) y x)", "(min x y)"),
    // Comparisons.
    rule(LOGIC, "(eq x x)", "true"),
    rule(LOGIC, "(ne x x)", "false"),
    rule(NUMBERS, "(lt x x)", "false"),
    rule(NUMBERS, "(gt x x)", "false"),
    rule(INTEGERS, "(le x x)", "true"),
    rule(INTEGERS, "(ge x x)", "true"),
    rule(INTEGERS, "(lt x T::MIN)", "false"),
    rule(INTEGERS, "(gt x T::MAX)", "false"),
    rule(INTEGERS, "(ge x T::MIN)", "true"),
    rule(INTEGERS, "(le x T::MAX)", "true"),
    rule(INTEGERS, "(eq (sub x y) 0)", "(eq x y)"),
    rule(INTEGERS, "(ne (sub x y) 0)", "(ne x y)"),
    rule(INTEGERS, "(eq (xor x y) 0)", "(eq x y)"),
    rule(INTEGERS, "(ne (xor x y) 0)", "(ne x y)"),
    rule(INTEGERS, "(eq (add x C) D)", "(eq x (sub D C))"),
    rule(INTEGERS, "(ne (add x C) D)", "(ne x (sub D C))"),
    rule(INTEGERS, "(eq (sub C x) D)", "(eq x (sub C D))"),
    rule(INTEGERS, "(ne (sub C x) D)", "(ne x (sub C D))"),
    rule(INTEGERS, "(eq (xor x C) D)", "(eq x (xor C D))"),
    rule(INTEGERS, "(ne (xor x C) D)", "(ne x (xor C D))"),
    rule(INTEGERS, "(eq (not x) C)", "(eq x (not C))"),
    rule(INTEGERS, "(ne (not x) C)", "(ne x (not C))"),
    rule(SIGNED, "(eq (neg x) C)", "(eq x (neg C))"),
    rule(SIGNED, "(ne (neg x) C)", "(ne x (neg C))"),
    rule(INTEGERS, "(eq (add x y) x)", "(eq y 0)"),
    rule(INTEGERS, "(ne (add x y) x)", "(ne y 0)"),
    rule(INTEGERS, "(eq (add x y) (add x z))", "(eq y z)"),
    rule(INTEGERS, "(ne (add x y) (add x z))", "(ne y z)"),
    rule(SIGNED, "(eq (neg x) (neg y))", "(eq x y)"),
    rule(SIGNED, "(ne (neg x) (neg y))", "(ne x y)"),
    rule(LOGIC, "(eq (not x) (not y))", "(eq x y)"),
    rule(INTEGERS, "(ne (not x) (not y))", "(ne x y)"),
    rule(FLOATS, "(lt (neg x) (neg y))", "(lt y x)"),
    rule(FLOATS, "(le (neg x) (neg y))", "(le y x)"),
    rule(FLOATS, "(lt (neg x) C)", "(gt x (neg C))"),
    rule(FLOATS, "(gt (neg x) C)", "(lt x (neg C))"),
    rule(INTEGERS, "(eq (and x C) D)", "false").when("(ne (and C D) D)"),
    rule(INTEGERS, "(ne (and x C) D)", "true").when("(ne (and C D) D)"),
    rule(UNSIGNED, "(lt (and x C) D)", "true").when("(lt C D)"),
    rule(UNSIGNED, "(gt (and x C) D)", "false").when("(le C D)"),
    rule(ALL, "(not (eq x y))", "(ne x y)"),
    rule(ALL, "(not (ne x y))", "(eq x y)"),
    rule(BOOL, "(not (xor x y))", "(eq x y)"),
    rule(INTEGERS, "(not (lt x y))", "(ge x y)"),
    rule(INTEGERS, "(not (le x y))", "(gt x y)"),
    rule(INTEGERS, "(not (gt x y))", "(le x y)"),
    rule(INTEGERS, "(not (ge x y))", "(lt x y)"),
    rule(BOOL, "(eq x true)", "x"),
    rule(BOOL, "(eq (not x) y)", "(xor x y)"),
    rule(NUMBERS, "(or (lt x y) (eq x y))", "(le x y)"),
    rule(NUMBERS, "(and (le x y) (ne x y))", "(lt x y)"),
    rule(NUMBERS, "(and (le x y) (le y x))", "(eq x y)"),
    rule(INTEGERS, "(or (lt x y) (lt y x))", "(ne x y)"),
    rule(INTEGERS, "(or (le x y) (le y x))", "true"),
    rule(NUMBERS, "(and (lt x y) (lt y x))", "false"),
    rule(NUMBERS, "(and (lt x y) (eq x y))", "false"),
    rule(NUMBERS, "(and (lt x y) (le x y))", "(lt x y)"),
    rule(NUMBERS, "(or (lt x y) (le x y))", "(le x y)"),
    rule(INTEGERS, "(and (lt x C) (lt x D))", "(lt x (min C D))"),
    rule(INTEGERS, "(or (lt x C) (lt x D))", "(lt x (max C D))"),
    rule(INTEGERS, "(and (gt x C) (gt x D))", "(gt x (max C D))"),
    rule(INTEGERS, "(or (gt x C) (gt x D))", "(gt x (min C D))"),
    rule(INTEGERS, "(and (lt x C) (gt x D))", "false").when("(le C D)"),
    rule(INTEGERS, "(or (lt x C) (gt x D))", "true").when("(gt C D)"),
    rule(INTEGERS, "(and (eq x C) (eq x D))", "false").when("(ne C D)"),
    rule(INTEGERS, "(or (ne x C) (ne x D))", "true").when("(ne C D)"),
    // Choices.
    rule(ALL, "(select true x y)", "x"),
    rule(ALL, "(select false x y)", "y"),
    rule(ALL, "(select c x x)", "x"),
    rule(ALL, "(select (not c) x y)", "(select c y x)"),
    rule(ALL, "(select c (select c x y) z)", "(select c x z)"),
    rule(ALL, "(select c x (select c y z))", "(select c x z)"),
    rule(BOOL, "(select x true false)", "x"),
    rule(LOGIC, "(select (eq x y) x y)", "y"),
    rule(LOGIC, "(select (eq x y) y x)", "x"),
    rule(LOGIC, "(select (ne x y) x y)", "x"),
    rule(LOGIC, "(select (ne x y) y x)", "y"),
    // Conversions.
    rule(ALL, "(cast:T x)", "x"),
    rule(ALL, "(bitcast:T x)", "x"),
    rule(INTEGERS, "(cast:i32 (cast:u32 x))", "(cast:i32 x)"),
    rule(INTEGERS, "(cast:i32 (cast:i64 x))", "(cast:i32 x)"),
    rule(INTEGERS, "(cast:i32 (cast:u64 x))", "(cast:i32 x)"),
    rule(INTEGERS, "(cast:u32 (cast:i32 x))", "(cast:u32 x)"),
    rule(INTEGERS, "(cast:u32 (cast:i64 x))", "(cast:u32 x)"),
    rule(INTEGERS, "(cast:u32 (cast:u64 x))", "(cast:u32 x)"),
    rule(INTEGERS, "(cast:i64 (cast:u64 x))", "(cast:i64 x)"),
    rule(INTEGERS, "(cast:u64 (cast:i64 x))", "(cast:u64 x)"),
    rule(NUMBERS, "(cast:T (cast:i32 c:bool))", "(cast:T c)"),
    rule(NUMBERS, "(cast:T (cast:u32 c:bool))", "(cast:T c)"),
    rule(NUMBERS, "(cast:T (cast:f32 c:bool))", "(cast:T c)"),
    rule(NUMBERS, "(eq (cast:T c:bool) 0)", "(not c)"),
    rule(NUMBERS, "(ne (cast:T c:bool) 0)", "c"),
    rule(NUMBERS, "(eq (cast:T c:bool) 1)", "c"),
    rule(NUMBERS, "(ne (cast:T c:bool) 1)", "(not c)"),
    rule(INTEGERS, "(and (cast:T c:bool) 1)", "(cast:T c)"),
    rule(INTEGERS, "(and (cast:T c:bool) (cast:T d:bool))", "(cast:T (and c d))"),
    rule(INTEGERS, "(or (cast:T c:bool) (cast:T d:bool))", "(cast:T (or c d))"),
    rule(F32, "(cast:f32 (cast:f64 x))", "x"),
    rule(F16, "(cast:f16 (cast:f32 x))", "x"),
    rule(F16, "(cast:f16 (cast:f64 x))", "x"),
    rule(F16, "(cast:f64 (cast:f32 x))", "(cast:f64 x)"),
    // Floats. What is not here changes a NaN, an infinity or the sign of a zero for some operand.
    rule(FLOATS, "(add x -0.0)", "x"),
    rule(FLOATS, "(add -0.0 x)", "x"),
    rule(FLOATS, "(sub x 0)", "x"),
    rule(FLOATS, "(sub -0.0 x)", "(neg x)"),
    rule(FLOATS, "(mul x 1)", "x"),
    rule(FLOATS, "(mul 1 x)", "x"),
    rule(FLOATS, "(mul -1 x)", "(neg x)"),
    rule(FLOATS, "(div x 1)", "x"),
    rule(FLOATS, "(div x -1)", "(neg x)"),
    rule(SMALL_FLOATS, "(div x 2)", "(mul x 0.5)"),
    rule(SMALL_FLOATS, "(div x 4)", "(mul x 0.25)"),
    rule(FLOATS, "(mul (abs x) (abs x))", "(mul x x)"),
    rule(FLOATS, "(floor (floor x))", "(floor x)"),
    rule(FLOATS, "(ceil (ceil x))", "(ceil x)"),
    rule(SMALL_FLOATS, "(trunc (trunc x))", "(trunc x)"),
    rule(FLOATS, "(round (round x))", "(round x)"),
    rule(SMALL_FLOATS, "(neg (floor (neg x)))", "(ceil x)"),
    rule(SMALL_FLOATS, "(neg (ceil (neg x)))", "(floor x)"),
    rule(SMALL_FLOATS, "(neg (trunc (neg x)))", "(trunc x)"),
];

/// A rule for one type.
#[derive(Clone, Debug)]
pub struct Instance {
    /// What is replaced.
    pub from: Term,
    /// What it is replaced by.
    pub to: Term,
    /// What must hold of the literals.
    pub when: Option<Term>,
    /// The type of each value and literal, by the number that stands for its name in the terms.
    pub names: Vec<Type>,
}

/// An expression with types.
#[derive(Clone, Debug)]
pub struct Term {
    /// The type of its value.
    pub ty: Type,
    /// What it is.
    pub node: Node,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub enum Node {
    /// Any value.
    Value(usize),
    /// Any literal.
    Literal(usize),
    /// A number, by its bits.
    Number(u64),
    /// An operation, what `T` stands for in its signature, and what it is applied to.
    Apply(Op, Type, Vec<Term>),
}

impl Term {
    /// Whether it is known when the literals are.
    pub fn is_known(&self) -> bool {
        match &self.node {
            Node::Value(_) => false,
            Node::Literal(_) | Node::Number(_) => true,
            Node::Apply(_, _, operands) => operands.iter().all(Term::is_known),
        }
    }

    /// The bits of a term that is known, from those of the literals.
    pub(super) fn evaluate(&self, literal: &impl Fn(usize) -> u64) -> u64 {
        match &self.node {
            Node::Value(_) => unreachable!("only known terms are evaluated"),
            Node::Literal(name) => literal(*name),
            Node::Number(bits) => *bits,
            Node::Apply(op, class, operands) => {
                let operands: SmallVec<[u64; 4]> = operands.iter().map(|operand| operand.evaluate(literal)).collect();
                let evaluate = op.row().evaluator(*class, self.ty).expect("rules apply operations to what they take");
                evaluate(&operands)
            }
        }
    }

    /// What it costs to compute, if every operation in it is computed.
    fn cost(&self) -> u64 {
        match &self.node {
            Node::Apply(op, _, operands) if !self.is_known() => {
                cost::of_pure(op) + operands.iter().map(Term::cost).sum::<u64>()
            }
            Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => 0,
        }
    }

    /// The term with the operands of commutative operations in every order that `canonicalize` leaves.
    fn orders(&self) -> Vec<Term> {
        let Node::Apply(op, class, operands) = &self.node else { return vec![self.clone()] };
        let mut lists = vec![Vec::new()];
        for operand in operands {
            let orders = operand.orders();
            let extended = |list: &Vec<Term>| -> Vec<Vec<Term>> {
                orders.iter().map(|order| list.iter().chain([order]).cloned().collect()).collect()
            };
            lists = lists.iter().flat_map(extended).collect();
        }
        if swapped(op, *class) == Some(op) && !operands[1].is_known() {
            let swapped: Vec<Vec<Term>> = lists.iter().map(|list| list.iter().rev().cloned().collect()).collect();
            lists.extend(swapped);
        }
        lists.into_iter().map(|list| Term { ty: self.ty, node: Node::Apply(op.clone(), *class, list) }).collect()
    }

    /// What the first two operands of an operation must be.
    fn operand_shapes(&self) -> [Shape; 2] {
        let mut shapes = [Shape::Any; 2];
        if let Node::Apply(_, _, operands) = &self.node {
            for (shape, operand) in shapes.iter_mut().zip(operands) {
                *shape = match &operand.node {
                    Node::Value(_) => Shape::Any,
                    Node::Literal(_) | Node::Number(_) => Shape::Literal,
                    Node::Apply(op, _, _) => Shape::Result(discriminant(op)),
                };
            }
        }
        shapes
    }

    /// Whether two terms match the same: they are equal but for their names.
    fn alike(&self, other: &Term, names: &mut Vec<(usize, usize)>) -> bool {
        match (&self.node, &other.node) {
            (Node::Value(a), Node::Value(b)) | (Node::Literal(a), Node::Literal(b)) => {
                let known = names.iter().find(|(of_a, of_b)| of_a == a || of_b == b);
                let same = known.is_none_or(|pair| pair == &(*a, *b));
                names.push((*a, *b));
                same
            }
            (Node::Number(a), Node::Number(b)) => a == b,
            (Node::Apply(a, _, of_a), Node::Apply(b, _, of_b)) => {
                let mut operands = || of_a.iter().zip(of_b).all(|(a, b)| a.alike(b, names));
                a == b && self.ty == other.ty && of_a.len() == of_b.len() && operands()
            }
            (Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..), _) => false,
        }
    }
}

/// An instance that is looked for.
pub(super) struct Pattern {
    /// One of the orders of what is replaced.
    pub(super) from: Term,
    pub(super) instance: Arc<Instance>,
    /// Whether it pays only if what is matched is not needed otherwise.
    pub(super) replaces_all: bool,
}

/// What an operand is, at a glance: most patterns are ruled out by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Of a pattern, anything; of a value, something that no rule looks into.
    Any,
    /// A literal.
    Literal,
    /// The result of an operation.
    Result(Discriminant<Op>),
}

/// Patterns whose first two operands have these shapes.
struct Group {
    shapes: [Shape; 2],
    patterns: Vec<Pattern>,
}

/// Rules by the operation that they begin with. They are read when a program first uses that operation: few programs use
/// many, and reading all would take longer than optimizing most of them.
pub(super) struct Index {
    by_op: FxHashMap<Discriminant<Op>, (Vec<&'static Rule>, OnceLock<ByClass>)>,
}

/// Patterns by what `T` stands for in the signature of the operation that they begin with.
type ByClass = FxHashMap<Type, Vec<Group>>;

impl Index {
    /// The rules that bring equal things into equal form.
    pub(super) fn canonical() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(CANONICAL))
    }

    /// The rules that make programs cheaper.
    pub(super) fn simplifying() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(SIMPLIFYING))
    }

    fn of(rules: &'static [Rule]) -> Index {
        let mut by_op: FxHashMap<_, (Vec<&Rule>, OnceLock<ByClass>)> = FxHashMap::default();
        for rule in rules {
            let op = rule.root().and_then(|row| row.op(Payload::None)).expect("the rules are tested");
            by_op.entry(discriminant(&op)).or_default().0.push(rule);
        }
        Index { by_op }
    }

    /// Reads the rules that begin with an operation.
    fn read(rules: &[&'static Rule], op: &Op) -> ByClass {
        let mut by_class = ByClass::default();
        for (rule, ty) in rules.iter().flat_map(|rule| rule.class.iter().map(move |ty| (rule, ty))) {
            let instance = Arc::new(rule.at(ty).expect("the rules are tested"));
            let Node::Apply(_, class, _) = instance.from.node else { continue };
            let groups = by_class.entry(class).or_default();
            let replaces_all = instance.to.cost() > cost::of_pure(op);
            let mut orders: Vec<Term> = Vec::new();
            for order in instance.from.orders() {
                if !orders.iter().any(|known| known.alike(&order, &mut Vec::new())) {
                    orders.push(order);
                }
            }
            for from in orders {
                let shapes = from.operand_shapes();
                let pattern = Pattern { from, instance: instance.clone(), replaces_all };
                match groups.iter_mut().find(|group| group.shapes == shapes) {
                    Some(group) => group.patterns.push(pattern),
                    None => groups.push(Group { shapes, patterns: vec![pattern] }),
                }
            }
        }
        by_class
    }

    /// The patterns that an operation may match whose first two operands have these shapes.
    pub(super) fn candidates(&self, op: &Op, class: Type, shapes: [Shape; 2]) -> impl Iterator<Item = &Pattern> {
        let rules = self.by_op.get(&discriminant(op));
        let by_class = rules.map(|(rules, read)| read.get_or_init(|| Index::read(rules, op)));
        let groups = by_class.and_then(|by_class| by_class.get(&class)).map_or(&[][..], Vec::as_slice);
        let fits = move |group: &&Group| {
            group.shapes.iter().zip(shapes).all(|(&wanted, found)| wanted == Shape::Any || wanted == found)
        };
        groups.iter().filter(fits).flat_map(|group| &group.patterns)
    }
}

impl Rule {
    /// The operation that it begins with.
    fn root(&self) -> Option<&'static Row> {
        let name = self.from.strip_prefix('(')?.split([' ', ':']).next()?;
        Row::named(name)
    }

    /// The rule for one type of its class.
    ///
    /// # Errors
    /// It does not follow the language; what is wrong is said for people.
    pub fn at(&self, class: Type) -> Result<Instance, String> {
        let mut reader = Reader { class, names: Vec::new(), types: Vec::new() };
        reader.name("x", Some(Slot::T));
        let from = reader.read(self.from)?;
        let known = reader.names.len();
        let to = reader.read(self.to)?;
        reader.unify(from.ty, to.ty)?;
        let when = self.when.map(|when| reader.read(when)).transpose()?;
        if let Some(when) = &when {
            let bool = reader.fixed(Type::Bool);
            reader.unify(when.ty, bool)?;
        }
        if reader.names.len() > known {
            return Err(format!("`{}` stands only in the replacement", reader.names[known].0));
        }
        let names = reader.names.iter().map(|&(_, ty)| reader.resolve(ty)).collect();
        let when = when.map(|when| reader.typed(when)).transpose()?;
        Ok(Instance { from: reader.typed(from)?, to: reader.typed(to)?, when, names })
    }
}

/// An expression whose types are still variables.
struct Untyped {
    ty: usize,
    node: Unresolved,
}

enum Unresolved {
    Value(usize),
    Literal(usize),
    Number(String),
    Apply(Op, usize, Vec<Untyped>),
}

/// What is known about a type variable.
#[derive(Clone, Copy)]
enum Known {
    Is(Type),
    Same(usize),
    Nothing,
}

type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

/// Reads expressions and finds their types.
struct Reader {
    class: Type,
    /// Names with their type variables.
    names: Vec<(String, usize)>,
    types: Vec<Known>,
}

impl Reader {
    fn fresh(&mut self, known: Known) -> usize {
        self.types.push(known);
        self.types.len() - 1
    }

    fn fixed(&mut self, ty: Type) -> usize {
        self.fresh(Known::Is(ty))
    }

    fn name(&mut self, name: &str, ty: Option<Slot>) -> usize {
        if let Some(position) = self.names.iter().position(|(known, _)| known == name) {
            return position;
        }
        let known = match ty {
            None => Known::Nothing,
            Some(Slot::T) => Known::Is(self.class),
            Some(Slot::Is(ty)) => Known::Is(ty),
        };
        let ty = self.fresh(known);
        self.names.push((name.into(), ty));
        self.names.len() - 1
    }

    fn root(&self, mut ty: usize) -> usize {
        while let Known::Same(other) = self.types[ty] {
            ty = other;
        }
        ty
    }

    fn unify(&mut self, a: usize, b: usize) -> Result<(), String> {
        let (a, b) = (self.root(a), self.root(b));
        match (self.types[a], self.types[b]) {
            _ if a == b => Ok(()),
            (Known::Is(one), Known::Is(other)) if one != other => Err(format!("{one} is not {other}")),
            (Known::Nothing, _) => {
                self.types[a] = Known::Same(b);
                Ok(())
            }
            _ => {
                self.types[b] = Known::Same(a);
                Ok(())
            }
        }
    }

    fn resolve(&self, ty: usize) -> Type {
        match self.types[self.root(ty)] {
            Known::Is(ty) => ty,
            Known::Nothing | Known::Same(_) => self.class,
        }
    }

    fn read(&mut self, text: &str) -> Result<Untyped, String> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let term = self.term(&mut words)?;
        words.next().map_or(Ok(term), |word| Err(format!("`{word}` after the end of {text}")))
    }

    fn term(&mut self, words: &mut Words<'_>) -> Result<Untyped, String> {
        let word = words.next().ok_or("an expression is missing")?;
        if word == "(" {
            let name = words.next().ok_or("an operation is missing")?;
            return self.apply(name, words);
        }
        let (name, annotation) = word.split_once(':').filter(|(name, _)| *name != "T").unwrap_or((word, ""));
        let annotation = if annotation.is_empty() { None } else { Some(self.annotated(annotation)?) };
        match name.as_bytes()[0] {
            _ if name == "true" || name == "false" => {
                Ok(Untyped { ty: self.fixed(Type::Bool), node: Unresolved::Number(name.into()) })
            }
            _ if name == "T::BITS" => Ok(Untyped { ty: self.fixed(Type::U32), node: Unresolved::Number(name.into()) }),
            _ if name.starts_with("T::") => {
                Ok(Untyped { ty: self.fixed(self.class), node: Unresolved::Number(name.into()) })
            }
            b'0'..=b'9' | b'-' => Ok(Untyped { ty: self.fresh(Known::Nothing), node: Unresolved::Number(name.into()) }),
            first => {
                let position = self.name(name, annotation.map(Slot::Is));
                let ty = self.names[position].1;
                let is_literal = first.is_ascii_uppercase();
                let node = if is_literal { Unresolved::Literal(position) } else { Unresolved::Value(position) };
                Ok(Untyped { ty, node })
            }
        }
    }

    fn annotated(&self, name: &str) -> Result<Type, String> {
        match name {
            "T" => Ok(self.class),
            name => Type::from_name(name).ok_or(format!("`{name}` is not a type")),
        }
    }

    fn apply(&mut self, name: &str, words: &mut Words<'_>) -> Result<Untyped, String> {
        let (name, target) = name.split_once(':').unwrap_or((name, ""));
        let row = Row::named(name).ok_or(format!("`{name}` is not an operation"))?;
        let op = row.op(Payload::None).ok_or(format!("`{name}` cannot stand in a rule"))?;
        let mut operands = Vec::new();
        while *words.peek().ok_or("`)` is missing")? != ")" {
            operands.push(self.term(words)?);
        }
        words.next();
        let (class, ty) = match row.form {
            Form::Plain(Signature { operands: slots, results: &[result], .. }) if slots.len() == operands.len() => {
                let class = self.fresh(Known::Nothing);
                for (slot, operand) in slots.iter().zip(&operands) {
                    let wanted = self.slot(*slot, class);
                    self.unify(wanted, operand.ty)?;
                }
                (class, self.slot(result, class))
            }
            Form::Convert { .. } if operands.len() == 1 => {
                let target = self.annotated(target)?;
                (operands[0].ty, self.fixed(target))
            }
            _ => return Err(format!("`{name}` with {} operands", operands.len())),
        };
        Ok(Untyped { ty, node: Unresolved::Apply(op, class, operands) })
    }

    fn slot(&mut self, slot: Slot, class: usize) -> usize {
        match slot {
            Slot::T => class,
            Slot::Is(ty) => self.fixed(ty),
        }
    }

    fn typed(&self, Untyped { ty, node }: Untyped) -> Result<Term, String> {
        let ty = self.resolve(ty);
        let node = match node {
            Unresolved::Value(name) => Node::Value(name),
            Unresolved::Literal(name) => Node::Literal(name),
            Unresolved::Number(text) => Node::Number(self.number(&text, ty)?),
            Unresolved::Apply(op, class, operands) => {
                let class = self.resolve(class);
                if op.row().evaluator(class, ty).is_none() {
                    return Err(format!("`{}` of {class} does not give {ty}", op.row().name));
                }
                let operands = operands.into_iter().map(|operand| self.typed(operand)).collect::<Result<_, _>>()?;
                Node::Apply(op, class, operands)
            }
        };
        Ok(Term { ty, node })
    }

    /// The bits of a number.
    fn number(&self, text: &str, ty: Type) -> Result<u64, String> {
        let mask = u64::MAX >> (64 - ty.bits());
        let top = 1u64 << (self.class.bits() - 1);
        let is_signed = matches!(self.class, Type::I32 | Type::I64);
        match (text, ty) {
            ("true", _) => Ok(1),
            ("false", _) => Ok(0),
            ("T::BITS", _) => Ok(self.class.bits().into()),
            ("T::MIN", _) => Ok(if is_signed { top } else { 0 }),
            ("T::MAX", _) => Ok(if is_signed { top - 1 } else { mask }),
            (_, Type::F16 | Type::F32 | Type::F64) => {
                let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
                let convert = Op::Cast.row().evaluator(Type::F64, ty).expect("floats can be cast to each other");
                Ok(convert(&[number.to_bits()]))
            }
            (_, Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64) => {
                let number: i64 = text.parse().map_err(|_| format!("`{text}` is not an integer"))?;
                Ok(number as u64 & mask)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instances(rules: &'static [Rule]) -> impl Iterator<Item = (&'static Rule, Type, Instance)> {
        rules.iter().flat_map(|rule| {
            let at = move |ty| (rule, ty, rule.at(ty).unwrap_or_else(|mistake| panic!("{rule}: {mistake}")));
            rule.class.iter().map(at)
        })
    }

    #[test]
    fn rules_make_nothing_more_expensive() {
        let more = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() > instance.from.cost();
        let no_less = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() >= instance.from.cost();
        let wrong = instances(SIMPLIFYING).filter(no_less).chain(instances(CANONICAL).filter(more));
        let wrong: Vec<String> = wrong.map(|(rule, ty, _)| format!("{rule} for {ty}")).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn mistakes_in_rules_are_found() {
        let wrong = [
            rule(INTEGERS, "(add x)", "x"),
            rule(INTEGERS, "(plus x 0)", "x"),
            rule(INTEGERS, "(add x 0", "x"),
            rule(INTEGERS, "(add x 0) 1", "x"),
            rule(INTEGERS, "(add x 0)", "y"),
            rule(INTEGERS, "(add x 0.5)", "x"),
            rule(INTEGERS, "(eq x 0)", "x"),
            rule(INTEGERS, "(cast:u8 x)", "x"),
            rule(BOOL, "(add x 0)", "x"),
            rule(INTEGERS, "(add x C)", "x").when("C"),
        ];
        for rule in wrong {
            assert!(rule.at(Type::U32).and(rule.at(Type::Bool)).is_err(), "{rule}");
        }
    }
}
