//! Hand-written test vectors for every evaluator of the op table.
//!
//! All devices are compared with the evaluators, so the evaluators need independent expected values: these were computed by hand from the
//! documented semantics and IEEE 754. They are in text files in this folder, whose format [`read`] documents. Every operation needs
//! vectors for each of its types.

use std::collections::BTreeSet;
use std::fmt;

use vyre_foundation::ir::ops::{Form, Kind, OpInfo, Slot, TABLE};
use vyre_foundation::ir::{Literal, Type};

/// An application of an operation with its expected result.
struct Vector {
    op: &'static str,
    operands: Vec<Literal>,
    expected: Literal,
}

/// Key of an evaluator: operation, type parameter, result type.
type Triple = (&'static str, Type, Type);

impl Vector {
    fn row(&self) -> &'static OpInfo {
        OpInfo::named(self.op).unwrap_or_else(|| panic!("there is no operation named {}", self.op))
    }

    /// Type parameters of the vector: the type of the operands, or every type for an operation on fixed types, which must not depend on it.
    fn classes(&self) -> Vec<Type> {
        match self.row().form {
            Form::Plain(signature) => {
                let types: Vec<Type> = self.operands.iter().map(|operand| operand.ty).collect();
                let classes: Vec<Type> = match signature.operands.iter().position(|&slot| slot == Slot::T) {
                    Some(position) => vec![types[position]],
                    None => signature.class.iter().collect(),
                };
                for &class in &classes {
                    let of = |slots: &[Slot]| slots.iter().map(|slot| slot.of(class)).collect::<Vec<_>>();
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

    /// Applies the evaluators and describes unexpected results.
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

/// Compares two results by bits, with all NaNs equal.
fn same(a: Literal, b: Literal) -> bool {
    a == b || (a.ty == b.ty && is_nan(a) && is_nan(b))
}

/// Returns true for a NaN by its bits: an exponent of ones and a nonzero fraction. Bits above the width of the type must be zero.
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

/// Files with their names and contents.
macro_rules! files {
    ($($name:literal),*) => { [$( ($name, include_str!(concat!($name, ".txt"))) ),*] };
}

/// All vectors.
fn all_vectors() -> Vec<Vector> {
    files![
        "integers",
        "bits",
        "binary16",
        "binary32",
        "binary64",
        "comparisons",
        "conversions",
        "functions",
        "functions_f16",
        "functions_f64",
        "packed"
    ]
    .into_iter()
    .flat_map(|(name, text)| read(text).unwrap_or_else(|mistake| panic!("{name}.txt: {mistake}")))
    .collect()
}

/// Parses vectors: `op(operand types) -> result type { a, b => result; … }`, for any number of operations. Comments start with
/// `//`, and `let NAME = value;` before an operation defines a name. [`integer`] and [`float`] parse values. `compare` stands for all
/// comparisons; its results are [`RELATIONS`].
fn read(text: &str) -> Result<Vec<Vector>, String> {
    let text: String = text.lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect();
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut vectors = Vec::new();
    for block in text.split_inclusive('}').filter(|block| !block.trim().is_empty()) {
        let form = || format!("not of the form `op(types) -> type {{ … }}`: {block}");
        let (head, rows) = block.strip_suffix('}').and_then(|block| block.split_once('{')).ok_or_else(form)?;
        let mut statements = head.split(';').map(str::trim);
        let head = statements.next_back().unwrap_or_default();
        for statement in statements {
            names.push(statement.strip_prefix("let ").and_then(|named| named.split_once(" = ")).ok_or_else(form)?);
        }
        let (op, types) = head.split_once('(').ok_or_else(form)?;
        let (types, result) = types.split_once(") -> ").ok_or_else(form)?;
        let typed = |name: &str| Type::from_name(name).ok_or_else(form);
        let types = types.split(", ").map(typed).collect::<Result<Vec<_>, _>>()?;
        for row in rows.split(';').map(str::trim).filter(|row| !row.is_empty()) {
            let wrong = |mistake: &str| format!("{mistake} in `{row}` of {head}");
            let value = |text: &str, ty| literal(text, ty, &names).ok_or_else(|| wrong(&format!("no {ty}: `{text}`")));
            let (operands, expected) = row.split_once(" => ").ok_or_else(|| wrong("no result"))?;
            let operands: Vec<&str> = operands.split(", ").collect();
            if operands.len() != types.len() {
                return Err(wrong("too few or too many operands"));
            }
            let operands = operands.into_iter().zip(&types).map(|(text, &ty)| value(text, ty));
            let operands = operands.collect::<Result<Vec<_>, _>>()?;
            if op == "compare" {
                vectors.extend(related(&operands, expected).ok_or_else(|| wrong("no relation"))?);
            } else {
                let row = OpInfo::named(op).ok_or_else(|| wrong("no operation"))?;
                vectors.push(Vector { op: row.name, operands, expected: value(expected, typed(result)?)? });
            }
        }
    }
    Ok(vectors)
}

/// Relations of two values, with the result of each comparison. Bools are only compared for equality.
const RELATIONS: [&str; 4] = ["Less", "Equal", "Greater", "Unordered"];
const COMPARISONS: [(&str, [bool; 4]); 6] = [
    ("eq", [false, true, false, false]),
    ("ne", [true, false, true, true]),
    ("lt", [true, false, false, false]),
    ("le", [true, true, false, false]),
    ("gt", [false, false, true, false]),
    ("ge", [false, true, true, false]),
];

/// Vectors of all comparisons for two operands with a relation, and for the swapped operands.
fn related(operands: &[Literal], relation: &str) -> Option<Vec<Vector>> {
    let [a, b] = *operands else { return None };
    let relation = RELATIONS.iter().position(|&known| known == relation)?;
    let mirrored = [2, 1, 0, 3][relation];
    let defined = if a.ty == Type::Bool { &COMPARISONS[..2] } else { &COMPARISONS[..] };
    let vectors = defined.iter().flat_map(|&(op, meaning)| {
        [([a, b], relation), ([b, a], mirrored)].map(|(operands, relation)| Vector {
            op,
            operands: operands.to_vec(),
            expected: meaning[relation].into(),
        })
    });
    Some(vectors.collect())
}

fn literal(text: &str, ty: Type, names: &[(&str, &str)]) -> Option<Literal> {
    let bits = match ty {
        Type::Bool => u64::from(text.parse::<bool>().ok()?),
        Type::I32 | Type::U32 | Type::I64 | Type::U64 => integer(text, ty)?,
        Type::F16 => float(text, ty, (10, 15), names)?,
        Type::F32 => float(text, ty, (23, 127), names)?,
        Type::F64 => float(text, ty, (52, 1023), names)?,
    };
    Some(Literal { ty, bits })
}

/// The bits of an integer: a decimal, hexadecimal or binary number, or `MIN` or `MAX` of its type.
fn integer(text: &str, ty: Type) -> Option<u64> {
    let (least, greatest): (i128, i128) = match ty {
        Type::I32 => (i32::MIN.into(), i32::MAX.into()),
        Type::U32 => (0, u32::MAX.into()),
        Type::I64 => (i64::MIN.into(), i64::MAX.into()),
        _ => (0, u64::MAX.into()),
    };
    let (sign, magnitude) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let value = match magnitude {
        "MIN" => least,
        "MAX" => greatest,
        magnitude => sign * i128::from(natural(magnitude)?),
    };
    (least..=greatest).contains(&value).then_some(value as u64 & (u64::MAX >> (64 - ty.bits())))
}

fn natural(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    let radix = |prefix| digits.strip_prefix(prefix);
    match (radix("0x"), radix("0b")) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) => u64::from_str_radix(digits, 2).ok(),
        (None, None) => digits.parse().ok(),
    }
}

/// The bits of a float with `fraction` bits of fraction and exponent bias `bias`: a name, its bits as `b(bits)`, or a sum of products of
/// decimal numbers and powers of two `p(n)`, which must be exact in the type.
fn float(text: &str, ty: Type, (fraction, bias): (u32, u64), names: &[(&str, &str)]) -> Option<u64> {
    let (sign, magnitude) = text.strip_prefix('-').map_or((0, text), |rest| (1 << (ty.bits() - 1), rest));
    let (one, infinity) = (bias << fraction, (2 * bias + 1) << fraction);
    let special = match magnitude {
        "NAN" => infinity | (1 << (fraction - 1)),
        "INF" => infinity,
        "MAX" => infinity - 1,
        // The smallest normal number, and the largest and smallest subnormal ones.
        "NORMAL" => 1 << fraction,
        "SUBNORMAL" => (1 << fraction) - 1,
        "TINY" => 1,
        // The numbers next to 1.
        "BELOW_ONE" => one - 1,
        "ABOVE_ONE" => one + 1,
        magnitude => match magnitude.strip_prefix("b(").and_then(|rest| rest.strip_suffix(')')) {
            Some(bits) => natural(bits)?,
            None => match names.iter().find(|(name, _)| *name == magnitude) {
                Some((_, value)) => float(value, ty, (fraction, bias), names)?,
                None => return exactly(sum(text, ty, names)?, ty),
            },
        },
    };
    Some(special ^ sign)
}

fn sum(text: &str, ty: Type, names: &[(&str, &str)]) -> Option<f64> {
    let factor = |text: &str| {
        let text = names.iter().find(|(name, _)| *name == text).map_or(text, |(_, value)| value);
        let (sign, magnitude) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
        let power = magnitude.strip_prefix("p(").and_then(|rest| rest.strip_suffix(')'));
        let decimal = magnitude.replace('_', "");
        Some(
            sign * match (power, ty) {
                (Some(exponent), _) => p(exponent.parse().ok()?),
                (None, Type::F32) => decimal.parse::<f32>().ok()?.into(),
                (None, _) => decimal.parse().ok()?,
            },
        )
    };
    let product = |text: &str| text.split(" * ").map(factor).try_fold(1.0, |product, factor| Some(product * factor?));
    let text = text.replace(" - ", " + -");
    // The sum of no numbers is -0, so that the sum of one is that number.
    text.split(" + ").map(product).try_fold(-0.0, |sum, term| Some(sum + term?))
}

/// The bits of a number as a float.
fn exactly(value: f64, ty: Type) -> Option<u64> {
    match ty {
        Type::F16 => f16_bits(value).map(u64::from),
        Type::F32 => (f64::from(value as f32) == value).then(|| u64::from((value as f32).to_bits())),
        _ => Some(value.to_bits()),
    }
}

/// The bits of an f16 from first principles, independent of the conversions under test.
fn f16_bits(value: f64) -> Option<u16> {
    let sign = u16::from(value.is_sign_negative()) << 15;
    // Every finite f16 is a multiple of the smallest subnormal, 2^-24, with eleven significant bits. The number of zeros below them is the
    // exponent field minus one, and adding the implicit leading bit adds that one.
    let multiple = value.abs() * p(24);
    let integer = multiple as u64;
    let below = (64 - integer.leading_zeros()).saturating_sub(11);
    let exact = integer as f64 == multiple && integer.trailing_zeros() >= below && below < 30;
    exact.then(|| sign | (u64::from(below << 10) + (integer >> below)) as u16)
}

/// A power of two that is a normal f64.
fn p(exponent: i32) -> f64 {
    assert!(-1023 < exponent && exponent < 1024);
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Fails with all lines.
fn assert_none(what: &str, lines: &[String]) {
    assert!(lines.is_empty(), "{} {what}:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn evaluators_give_the_expected_values() {
    let failures: Vec<String> = all_vectors().iter().flat_map(Vector::failures).collect();
    assert_none("vectors do not hold", &failures);
}

#[test]
fn commutative_operations_commute() {
    const COMMUTATIVE: [&str; 18] = [
        "add", "mul", "mul_high", "min", "max", "fma", "and", "or", "xor", "hypot", "dot4_u8", "dot4_i8", "add_u8x4",
        "min_u8x4", "max_u8x4", "min_i8x4", "max_i8x4", "eq_u8x4",
    ];
    let mut failures = Vec::new();
    for mut vector in all_vectors() {
        if COMMUTATIVE.contains(&vector.op) {
            vector.operands.swap(0, 1);
            failures.extend(vector.failures());
        }
    }
    assert_none("vectors do not hold with swapped operands", &failures);
}

#[test]
fn every_evaluator_has_vectors() {
    let exercised: BTreeSet<Triple> = all_vectors().iter().flat_map(Vector::triples).collect();
    let mut missing = Vec::new();
    for row in TABLE {
        for class in Type::ALL {
            for result in Type::ALL {
                // Evaluators of plain operations do not depend on the result type, which their signature implies.
                let is_meant = match row.form {
                    Form::Plain(signature) => signature.results.iter().any(|slot| slot.of(class) == result),
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

/// Operations without an evaluator are not covered by the test above.
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
    assert_none("evaluators are missing or superfluous", &wrong);
}

/// `pack_f16` of a NaN contains an unspecified NaN, which a vector cannot express.
#[test]
fn a_packed_nan_stays_in_its_half() {
    let pack =
        OpInfo::named("pack_f16").and_then(|row| row.evaluator(Type::F32, Type::U32)).expect("it has an evaluator");
    for nan in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xff80_2000] {
        let (low, high) = (pack(&[nan, 0x3f80_0000]), pack(&[0x3f80_0000, nan]));
        assert_eq!(low >> 16, 0x3c00, "the high half beside the NaN 0x{nan:x}");
        assert!(is_nan(Literal { ty: Type::F16, bits: low & 0xffff }), "the low half for the NaN 0x{nan:x}");
        assert_eq!(high & 0xffff, 0x3c00, "the low half beside the NaN 0x{nan:x}");
        assert!(is_nan(Literal { ty: Type::F16, bits: high >> 16 }), "the high half for the NaN 0x{nan:x}");
    }
}
