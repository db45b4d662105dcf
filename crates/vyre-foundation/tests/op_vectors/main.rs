//! Hand-written vectors for every evaluator of the op table.
//!
//! Everything that executes programs is compared with the evaluators, so nothing else would notice if they were wrong
//! themselves. Here they are held against values that were worked out by hand from the documented meaning of the
//! operations and from IEEE 754. The modules hold tables, and [`all_vectors`] gathers them. The tests below run them all
//! and ask that no operation is without vectors for any of its types: a new row of the op table fails here until it has
//! some.

mod binary16;
mod binary32;
mod binary64;
mod bits;
mod comparisons;
mod conversions;
mod functions;
mod integers;

use std::collections::BTreeSet;
use std::fmt;

use half::f16;
use vyre_foundation::ir::ops::{Form, Kind, Row, Slot, TABLE};
use vyre_foundation::ir::{Literal, Type};

/// One application of an operation, and what it must give.
pub(crate) struct Vector {
    op: &'static str,
    operands: Vec<Literal>,
    expected: Literal,
}

/// Names one evaluator: the operation, the type its `T` stands for, and the type of its result.
type Triple = (&'static str, Type, Type);

impl Vector {
    fn row(&self) -> &'static Row {
        Row::named(self.op).unwrap_or_else(|| panic!("there is no operation named {}", self.op))
    }

    /// The types for which the operation is used in this vector. Usually that is the one type the operands imply. An
    /// operation on fixed types must do the same whatever its class is said to be, so for that it is every type.
    fn classes(&self) -> Vec<Type> {
        match self.row().form {
            Form::Plain(signature) => {
                let types: Vec<Type> = self.operands.iter().map(|operand| operand.ty).collect();
                let classes: Vec<Type> = match signature.operands.iter().position(|&slot| slot == Slot::T) {
                    Some(position) => vec![types[position]],
                    None => signature.class.iter().collect(),
                };
                for &class in &classes {
                    let of = |slots: &[Slot]| slots.iter().map(|&slot| resolve(slot, class)).collect::<Vec<_>>();
                    assert!(signature.class.contains(class), "{self}: not defined for {class}");
                    assert_eq!(types, of(signature.operands), "{self}: types of the operands");
                    assert_eq!(vec![self.expected.ty], of(signature.results), "{self}: type of the result");
                }
                classes
            }
            Form::Convert { same_size } => {
                let [operand] = *self.operands else { panic!("{self}: conversions have one operand") };
                assert!(!same_size || operand.ty.bits() == self.expected.ty.bits(), "{self}: types of other widths");
                vec![operand.ty]
            }
            form => panic!("{self}: a vector for an operation of the form {form:?}"),
        }
    }

    fn triples(&self) -> Vec<Triple> {
        self.classes().into_iter().map(|class| (self.op, class, self.expected.ty)).collect()
    }

    /// Applies the evaluators and describes the results that are not what the vector says.
    fn failures(&self) -> Vec<String> {
        let bits: Vec<u64> = self.operands.iter().map(|operand| operand.bits).collect();
        let mut failures = Vec::new();
        for class in self.classes() {
            match self.row().evaluator(class, self.expected.ty) {
                None => failures.push(format!("{self}: no evaluator for {class}")),
                Some(evaluate) => {
                    let result = Literal { ty: self.expected.ty, bits: evaluate(&bits) };
                    if !same(result, self.expected) {
                        failures.push(format!("{self} expected, {result} (0x{:x}) found", result.bits));
                    }
                }
            }
        }
        failures
    }
}

impl fmt::Display for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operands: Vec<String> = self.operands.iter().map(Literal::to_string).collect();
        let operands = operands.join(", ");
        write!(f, "{} {operands} = {} (0x{:x})", self.op, self.expected, self.expected.bits)
    }
}

fn resolve(slot: Slot, class: Type) -> Type {
    match slot {
        Slot::T => class,
        Slot::Is(ty) => ty,
    }
}

/// Whether two results are the same: by bits, but which NaN it is does not matter.
fn same(a: Literal, b: Literal) -> bool {
    a == b || (a.ty == b.ty && is_nan(a) && is_nan(b))
}

/// Whether the literal is a NaN, told from the bits alone: an exponent of ones and a fraction that is not zero. Bits
/// above the width of the type make it none, because the evaluators must leave those zero.
fn is_nan(literal: Literal) -> bool {
    let (sign, infinity) = match literal.ty {
        Type::F16 => (1 << 15, 0x7c00),
        Type::F32 => (1 << 31, 0x7f80_0000),
        Type::F64 => (1 << 63, 0x7ff0_0000_0000_0000),
        Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64 => return false,
    };
    let magnitude = literal.bits & !sign;
    magnitude > infinity && magnitude < sign
}

/// How the tables spell the values of a type.
pub(crate) trait Spelled {
    type Host;
    fn literal(value: Self::Host) -> Literal;
}

macro_rules! spelled_as_themselves {
    ($($ty:ty)*) => { $(
        impl Spelled for $ty {
            type Host = $ty;
            fn literal(value: $ty) -> Literal {
                value.into()
            }
        }
    )* };
}
spelled_as_themselves! { bool i32 u32 f32 i64 u64 f64 }

/// Rust has no f16 literals. The tables spell an f16 as an f64 of exactly the same value.
impl Spelled for f16 {
    type Host = f64;
    fn literal(value: f64) -> Literal {
        f16::from_bits(f16_bits(value)).into()
    }
}

/// The bits of an f16 from first principles, so that no conversion under test decides what the tables say.
fn f16_bits(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    if value.is_nan() {
        return 0x7e00;
    }
    if value.is_infinite() {
        return sign | 0x7c00;
    }
    // Every finite f16 is a multiple of the smallest subnormal, 2^-24. Eleven significant bits are kept; how many zeros
    // lie below them is the exponent field less one, and the implicit leading bit adds that one when the two are added.
    let multiple = value.abs() * p(24);
    let integer = multiple as u64;
    let below = (64 - integer.leading_zeros()).saturating_sub(11);
    let exact = integer as f64 == multiple && integer.trailing_zeros() >= below && below < 30;
    assert!(exact, "{value} is not the value of an f16");
    sign | (u64::from(below << 10) + (integer >> below)) as u16
}

/// Two to a power, where that is a normal f64. Sums of these spell the floats that lie next to a tie.
pub(crate) const fn p(exponent: i32) -> f64 {
    assert!(-1023 < exponent && exponent < 1024);
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// A list of operand types, and the values that the tables give for them.
pub(crate) trait Operands {
    type Hosts;
    fn literals(values: Self::Hosts) -> Vec<Literal>;
}

macro_rules! operands {
    ($($($ty:ident $value:ident),*;)*) => { $(
        impl<$($ty: Spelled),*> Operands for ($($ty,)*) {
            type Hosts = ($($ty::Host,)*);
            fn literals(($($value,)*): Self::Hosts) -> Vec<Literal> {
                vec![$($ty::literal($value)),*]
            }
        }
    )* };
}
operands! {
    A a;
    A a, B b;
    A a, B b, C c;
    A a, B b, C c, D d;
}

/// A table of vectors: `op(operand types) -> result type { a, b => result; … }`, for any number of operations.
macro_rules! table {
    ($($op:ident($($operand:ident),+) -> $result:ident { $($($value:expr),+ => $expected:expr;)+ })+) => {{
        let mut vectors: Vec<$crate::Vector> = Vec::new();
        $({
            type Types = ($($operand,)+);
            vectors.extend([$( $crate::Vector {
                op: stringify!($op),
                operands: <Types as $crate::Operands>::literals(($($value,)+)),
                expected: <$result as $crate::Spelled>::literal($expected),
            } ),+]);
        })+
        vectors
    }};
}
pub(crate) use table;

/// All vectors. The tests share this list, so none depends on which others have run.
fn all_vectors() -> Vec<Vector> {
    [
        integers::vectors(),
        bits::vectors(),
        binary16::vectors(),
        binary32::vectors(),
        binary64::vectors(),
        comparisons::vectors(),
        conversions::vectors(),
        functions::vectors(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Fails with all of the lines, so that one run shows everything that is wrong.
fn assert_none(what: &str, lines: &[String]) {
    assert!(lines.is_empty(), "{} {what}:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn evaluators_give_the_expected_values() {
    let failures: Vec<String> = all_vectors().iter().flat_map(Vector::failures).collect();
    assert_none("vectors do not hold", &failures);
}

#[test]
fn the_order_of_factors_and_summands_does_not_matter() {
    const COMMUTATIVE: [&str; 10] = ["add", "mul", "mul_high", "min", "max", "fma", "and", "or", "xor", "hypot"];
    let mut failures = Vec::new();
    for mut vector in all_vectors() {
        if COMMUTATIVE.contains(&vector.op) {
            vector.operands.swap(0, 1);
            failures.extend(vector.failures());
        }
    }
    assert_none("vectors do not hold with their operands exchanged", &failures);
}

#[test]
fn every_evaluator_has_vectors() {
    let exercised: BTreeSet<Triple> = all_vectors().iter().flat_map(Vector::triples).collect();
    let mut missing = Vec::new();
    for row in TABLE {
        for class in Type::ALL {
            for result in Type::ALL {
                // The evaluators of plain operations do not look at the type of the result: their signature implies it.
                let is_meant = match row.form {
                    Form::Plain(signature) => signature.results.iter().any(|&slot| resolve(slot, class) == result),
                    _ => true,
                };
                let triple = (row.name, class, result);
                if is_meant && row.evaluator(class, result).is_some() && !exercised.contains(&triple) {
                    missing.push(format!("{} for {class}, giving {result}", row.name));
                }
            }
        }
    }
    assert_none("evaluators have no vectors", &missing);
}

/// Without this, an operation could escape the test above by lacking an evaluator that it should have.
#[test]
fn evaluators_exist_exactly_where_pure_operations_are_defined() {
    let mut wrong = Vec::new();
    for row in TABLE {
        for class in Type::ALL {
            for result in Type::ALL {
                let is_defined = match row.form {
                    Form::Plain(signature) => signature.class.contains(class),
                    Form::Convert { same_size } => !same_size || class.bits() == result.bits(),
                    _ => false,
                };
                let is_expected = row.kind == Kind::Pure && is_defined;
                if row.evaluator(class, result).is_some() != is_expected {
                    let fault = if is_expected { "is missing" } else { "should not be there" };
                    wrong.push(format!("{} for {class}, giving {result}, {fault}", row.name));
                }
            }
        }
    }
    assert_none("evaluators are not where they should be", &wrong);
}

/// What `pack_f16` makes of a NaN is a word with an unspecified NaN in it, which no vector can say.
#[test]
fn a_packed_nan_stays_in_its_half() {
    let pack = Row::named("pack_f16").and_then(|row| row.evaluator(Type::F32, Type::U32)).expect("it has an evaluator");
    for nan in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xff80_2000] {
        let (low, high) = (pack(&[nan, 0x3f80_0000]), pack(&[0x3f80_0000, nan]));
        assert_eq!(low >> 16, 0x3c00, "the high half beside the NaN 0x{nan:x}");
        assert!(is_nan(Literal { ty: Type::F16, bits: low & 0xffff }), "the low half for the NaN 0x{nan:x}");
        assert_eq!(high & 0xffff, 0x3c00, "the low half beside the NaN 0x{nan:x}");
        assert!(is_nan(Literal { ty: Type::F16, bits: high >> 16 }), "the high half for the NaN 0x{nan:x}");
    }
}
