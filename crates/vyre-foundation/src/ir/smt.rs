//! SMT-LIB semantics of the operations: terms over bit-vectors and floats, with which an SMT solver proves rewrite rules.
//!
//! The tests of the proofs also compare the terms with the evaluators of the [op table](super::ops).
//!
//! Floats are those of the SMT-LIB theory of floating-point numbers, which has one NaN. An operation that depends on the bits of a NaN has
//! no term.

use super::ops::Pure;
use super::types::{Literal, Type};

/// The sort of the values of a type.
pub const fn sort(ty: Type) -> &'static str {
    match ty {
        Type::Bool => "Bool",
        Type::I32 | Type::U32 => "(_ BitVec 32)",
        Type::I64 | Type::U64 => "(_ BitVec 64)",
        Type::F16 => "(_ FloatingPoint 5 11)",
        Type::F32 => "(_ FloatingPoint 8 24)",
        Type::F64 => "(_ FloatingPoint 11 53)",
    }
}

/// The term of a literal.
pub fn literal(Literal { ty, bits }: Literal) -> String {
    match ty {
        Type::Bool => (bits != 0).to_string(),
        Type::I32 | Type::U32 | Type::I64 | Type::U64 => format!("(_ bv{bits} {})", ty.bits()),
        Type::F16 | Type::F32 | Type::F64 => format!("({} (_ bv{bits} {}))", to_fp(ty), ty.bits()),
    }
}

/// Term of an operation applied to operand terms. `class` is the type parameter `T` of its signature, and `result` the type of the result.
/// `None` if SMT-LIB cannot express the operation.
pub fn term(op: Pure, class: Type, result: Type, operands: &[String]) -> Option<String> {
    let body = body(op, class, result)?;
    // `let` binds in parallel, so names that occur in the operands are not captured.
    let bindings: Vec<String> =
        ["a", "b", "c", "d", "e"].iter().zip(operands).map(|(name, operand)| format!("({name} {operand})")).collect();
    Some(format!("(let ({}) {body})", bindings.join(" ")))
}

/// The result in terms of the operands `a`, `b`, `c`, `d` and `e`.
fn body(op: Pure, class: Type, result: Type) -> Option<String> {
    let float = class.is_float();
    let signed = matches!(class, Type::I32 | Type::I64);
    let width = class.bits();
    let by_sign =
        |of_signed: &str, of_unsigned: &str| if signed { of_signed.to_owned() } else { of_unsigned.to_owned() };
    let arithmetic = |of_float: &str, of_integer: &str| {
        if float { format!("({of_float} RNE a b)") } else { format!("({of_integer} a b)") }
    };
    let logic = |of_bool: &str, of_integer: &str| match class {
        Type::Bool => of_bool.to_owned(),
        _ => of_integer.to_owned(),
    };
    let order = |of_float: &str, of_signed: &str, of_unsigned: &str| {
        let compare = if float { of_float.to_owned() } else { by_sign(of_signed, of_unsigned) };
        format!("({compare} a b)")
    };
    let number = |number: u64| format!("(_ bv{number} {width})");
    // Converts a u32 count to the width of the class.
    let resized = |count: &str| if width == 64 { format!("((_ zero_extend 32) {count})") } else { count.to_owned() };
    let masked = |count: &str| resized(&format!("(bvand {count} (_ bv{} 32))", width - 1));
    let shr = by_sign("bvashr", "bvlshr");

    Some(match op {
        Pure::Add => arithmetic("fp.add", "bvadd"),
        Pure::Sub => arithmetic("fp.sub", "bvsub"),
        Pure::Mul => arithmetic("fp.mul", "bvmul"),
        Pure::MulHigh => {
            let extend = format!("(_ {} {width})", by_sign("sign_extend", "zero_extend"));
            format!("((_ extract {} {width}) (bvmul ({extend} a) ({extend} b)))", 2 * width - 1)
        }
        Pure::Div if float => "(fp.div RNE a b)".into(),
        Pure::Div => format!("(ite (= b {}) a ({} a b))", number(0), by_sign("bvsdiv", "bvudiv")),
        Pure::Rem => format!("(ite (= b {0}) {0} ({1} a b))", number(0), by_sign("bvsrem", "bvurem")),
        Pure::Neg => if float { "(fp.neg a)" } else { "(bvneg a)" }.into(),
        Pure::Abs if float => "(fp.abs a)".into(),
        Pure::Abs => format!("(ite (bvslt a {}) (bvneg a) a)", number(0)),
        Pure::Min if float => lesser("a", "b"),
        Pure::Min => format!("(ite ({} a b) a b)", by_sign("bvslt", "bvult")),
        Pure::Max if float => format!("(let ((a (fp.neg a)) (b (fp.neg b))) (fp.neg {}))", lesser("a", "b")),
        Pure::Max => format!("(ite ({} a b) b a)", by_sign("bvslt", "bvult")),
        Pure::Fma => "(fp.fma RNE a b c)".into(),
        Pure::Sqrt => "(fp.sqrt RNE a)".into(),
        Pure::Floor => "(fp.roundToIntegral RTN a)".into(),
        Pure::Ceil => "(fp.roundToIntegral RTP a)".into(),
        Pure::Trunc => "(fp.roundToIntegral RTZ a)".into(),
        Pure::Round => "(fp.roundToIntegral RNE a)".into(),
        // The theory has no access to the bits of floats.
        Pure::FrexpFraction | Pure::FrexpExponent => return None,
        Pure::ModfFraction => {
            let zero =
                |sign: &str| format!("(_ {sign}zero {})", &to_fp(class)["(_ to_fp ".len()..to_fp(class).len() - 1]);
            format!(
                "(let ((f (fp.sub RNE a (fp.roundToIntegral RTZ a)))) (ite (or (fp.isInfinite a) (fp.isZero f)) (ite \
                 (fp.isNegative a) {} {}) f))",
                zero("-"),
                zero("+")
            )
        }

        Pure::And => format!("({} a b)", logic("and", "bvand")),
        Pure::Or => format!("({} a b)", logic("or", "bvor")),
        Pure::Xor => format!("({} a b)", logic("xor", "bvxor")),
        Pure::Not => format!("({} a)", logic("not", "bvnot")),
        Pure::Shl => format!("(bvshl a {})", masked("b")),
        Pure::Shr => format!("({shr} a {})", masked("b")),
        Pure::RotateLeft => format!("(bvor (bvshl a {}) (bvlshr a {}))", masked("b"), masked("(bvneg b)")),
        Pure::CountOnes => {
            let bits = (0..width).map(|bit| format!("((_ zero_extend 31) ((_ extract {bit} {bit}) a))"));
            format!("(bvadd {})", bits.collect::<Vec<_>>().join(" "))
        }
        Pure::LeadingZeros => first_one((0..width).rev(), width),
        Pure::TrailingZeros => first_one(0..width, width),
        Pure::ReverseBits => {
            let bits = (0..width).map(|bit| format!("((_ extract {bit} {bit}) a)"));
            format!("(concat {})", bits.collect::<Vec<_>>().join(" "))
        }
        Pure::ExtractBits => {
            let left = resized(&format!("(bvsub (_ bv{width} 32) (bvadd offset count))"));
            let right = resized(&format!("(bvsub (_ bv{width} 32) count)"));
            let field = format!("({shr} (bvshl a {left}) {right})");
            with_field("b", "c", width, &format!("(ite (= count (_ bv0 32)) {} {field})", number(0)))
        }
        Pure::InsertBits => {
            let ones =
                format!("(bvlshr (bvnot {}) {})", number(0), resized(&format!("(bvsub (_ bv{width} 32) count)")));
            let mask = format!("(bvshl {ones} {})", resized("offset"));
            let field = format!(
                "(let ((mask {mask})) (bvor (bvand a (bvnot mask)) (bvand (bvshl b {}) mask)))",
                resized("offset")
            );
            with_field("c", "d", width, &format!("(ite (= count (_ bv0 32)) a {field})"))
        }
        // Their expansions have dozens of roundings, beyond what solvers can prove.
        crate::library_functions!() => return None,
        // Depends on the bits of a NaN.
        Pure::PackF16 => return None,
        Pure::UnpackF16Low => format!("({} RNE ({} ((_ extract 15 0) a)))", to_fp(Type::F32), to_fp(Type::F16)),
        Pure::UnpackF16High => format!("({} RNE ({} ((_ extract 31 16) a)))", to_fp(Type::F32), to_fp(Type::F16)),
        Pure::QuantizeF16 => format!("({} RNE ({} RNE a))", to_fp(Type::F32), to_fp(Type::F16)),
        Pure::PackSnorm16 => pack_norm(2, true),
        Pure::PackUnorm16 => pack_norm(2, false),
        Pure::PackSnorm8 => pack_norm(4, true),
        Pure::PackUnorm8 => pack_norm(4, false),
        Pure::UnpackSnorm16 => unpack_norm(2, true),
        Pure::UnpackUnorm16 => unpack_norm(2, false),
        Pure::UnpackSnorm8 => unpack_norm(4, true),
        Pure::UnpackUnorm8 => unpack_norm(4, false),

        Pure::Dot4U8 => dot4("zero_extend", "zero_extend"),
        Pure::Dot4I8 => dot4("sign_extend", "sign_extend"),
        Pure::Dot4I8U8 => dot4("sign_extend", "zero_extend"),
        Pure::AddU8x4 => bytes("(bvadd x y)"),
        Pure::MinU8x4 => bytes("(ite (bvult x y) x y)"),
        Pure::MaxU8x4 => bytes("(ite (bvult x y) y x)"),
        Pure::MinI8x4 => bytes("(ite (bvslt x y) x y)"),
        Pure::MaxI8x4 => bytes("(ite (bvslt x y) y x)"),
        Pure::EqU8x4 => bytes("(ite (= x y) #xff #x00)"),
        Pure::LtU8x4 => bytes("(ite (bvult x y) #xff #x00)"),
        Pure::LookupU8x4 => {
            let entry = |lane: u32| {
                let entry =
                    format!("((_ zero_extend 121) (concat ((_ extract {} {}) a) #b000))", 8 * lane + 3, 8 * lane);
                format!("((_ extract 7 0) (bvlshr table {entry}))")
            };
            format!("(let ((table (concat e d c b))) {})", concatenated(4, entry))
        }
        Pure::PackU8Clamp => {
            let name = |lane: u32| ["a", "b", "c", "d"][lane as usize];
            concatenated(4, |lane| format!("(ite (bvult {0} (_ bv255 32)) ((_ extract 7 0) {0}) #xff)", name(lane)))
        }
        Pure::PackI8Clamp => {
            let name = |lane: u32| ["a", "b", "c", "d"][lane as usize];
            concatenated(4, |lane| {
                format!(
                    "(ite (bvslt {0} #xffffff80) #x80 (ite (bvsgt {0} #x0000007f) #x7f ((_ extract 7 0) {0})))",
                    name(lane)
                )
            })
        }

        Pure::Eq => if float { "(fp.eq a b)" } else { "(= a b)" }.into(),
        Pure::Ne => if float { "(not (fp.eq a b))" } else { "(not (= a b))" }.into(),
        Pure::Lt => order("fp.lt", "bvslt", "bvult"),
        Pure::Le => order("fp.leq", "bvsle", "bvule"),
        Pure::Gt => order("fp.gt", "bvsgt", "bvugt"),
        Pure::Ge => order("fp.geq", "bvsge", "bvuge"),
        // The theory has no scaling by a power of two.
        Pure::Ldexp => return None,
        Pure::Select => "(ite a b c)".into(),
        Pure::Cast => cast(class, result),
        Pure::Bitcast => match (float, result.is_float()) {
            _ if class == result => "a".into(),
            (false, false) => "a".into(),
            (false, true) => format!("({} a)", to_fp(result)),
            // Depends on the bits of a NaN.
            (true, _) => return None,
        },
    })
}

/// Conversion function to a float type, from bits or, with a rounding mode, from numbers.
const fn to_fp(ty: Type) -> &'static str {
    match ty {
        Type::F16 => "(_ to_fp 5 11)",
        Type::F64 => "(_ to_fp 11 53)",
        Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64 | Type::F32 => "(_ to_fp 8 24)",
    }
}

/// Minimum of two floats: prefers a number to a NaN, and orders −0 below +0.
fn lesser(a: &str, b: &str) -> String {
    format!("(ite (or (fp.isNaN {b}) (fp.lt {a} {b}) (and (fp.eq {a} {b}) (fp.isNegative {a}))) {a} {b})")
}

/// Number of bits of `a` before the first one bit.
fn first_one(bits: impl DoubleEndedIterator<Item = u32> + ExactSizeIterator, width: u32) -> String {
    bits.enumerate().rev().fold(format!("(_ bv{width} 32)"), |rest, (position, bit)| {
        format!("(ite (= ((_ extract {bit} {bit}) a) #b1) (_ bv{position} 32) {rest})")
    })
}

/// Binds `offset` and `count`, clamped to the width, in a term.
fn with_field(offset: &str, count: &str, width: u32, body: &str) -> String {
    let least = |a: &str, b: &str| format!("(ite (bvult {a} {b}) {a} {b})");
    let width = format!("(_ bv{width} 32)");
    format!(
        "(let ((offset {})) (let ((count {})) {body}))",
        least(offset, &width),
        least(count, &format!("(bvsub {width} offset)"))
    )
}

/// A word of fields, from the lowest to the highest.
fn concatenated(fields: u32, field: impl Fn(u32) -> String) -> String {
    format!("(concat {})", (0..fields).rev().map(field).collect::<Vec<_>>().join(" "))
}

/// Applies a function of `x` and `y` to each pair of bytes of `a` and `b`.
fn bytes(function: &str) -> String {
    concatenated(4, |lane| {
        let byte = format!("(_ extract {} {})", 8 * lane + 7, 8 * lane);
        format!("(let ((x ({byte} a)) (y ({byte} b))) {function})")
    })
}

/// `c` plus the dot product of the bytes of `a` and `b`, extended by `extend_a` and `extend_b`.
fn dot4(extend_a: &str, extend_b: &str) -> String {
    let products = (0..4).map(|lane| {
        let byte = format!("(_ extract {} {})", 8 * lane + 7, 8 * lane);
        format!("(bvmul ((_ {extend_a} 24) ({byte} a)) ((_ {extend_b} 24) ({byte} b)))")
    });
    format!("(bvadd c {})", products.collect::<Vec<_>>().join(" "))
}

/// Largest normalized integer of a field of a word.
const fn largest(fields: u32, signed: bool) -> u32 {
    (1 << (32 / fields - signed as u32)) - 1
}

/// Packs normalized integers, each computed in f64, where rounding changes no result.
fn pack_norm(fields: u32, signed: bool) -> String {
    let (double, bits) = (to_fp(Type::F64), 32 / fields);
    let number = |number: &str| format!("({double} RNE {number})");
    let least = if signed { number("(- 1.0)") } else { number("0.0") };
    concatenated(fields, |lane| {
        let convert = format!("(_ {} {bits})", if signed { "fp.to_sbv" } else { "fp.to_ubv" });
        let name = ["a", "b", "c", "d"][lane as usize];
        let scaled = format!(
            "(fp.add RNE {} (fp.mul RNE {} (ite (fp.lt x {least}) {least} (ite (fp.gt x {one}) {one} x))))",
            number("0.5"),
            number(&format!("{}.0", largest(fields, signed))),
            one = number("1.0"),
        );
        format!("(ite (fp.isNaN {name}) (_ bv0 {bits}) (let ((x ({double} RNE {name}))) ({convert} RTN {scaled})))")
    })
}

/// Unpacks field `b` of the normalized integers in `a`.
fn unpack_norm(fields: u32, signed: bool) -> String {
    let (single, bits) = (to_fp(Type::F32), 32 / fields);
    let field =
        format!("((_ extract {} 0) (bvlshr a (bvmul (_ bv{bits} 32) (bvand b (_ bv{} 32)))))", bits - 1, fields - 1);
    let convert = if signed { single.to_owned() } else { single.replace("to_fp", "to_fp_unsigned") };
    let quotient = format!("(fp.div RNE ({convert} RNE {field}) ({single} RNE {}.0))", largest(fields, signed));
    let least = format!("({single} RNE (- 1.0))");
    format!("(let ((x {quotient})) (ite (fp.lt x {least}) {least} x))")
}

fn cast(from: Type, to: Type) -> String {
    let signed = |ty| matches!(ty, Type::I32 | Type::I64);
    let (is, will_be) = (from.bits(), to.bits());
    match to {
        _ if from == to => "a".into(),
        Type::Bool if from.is_float() => "(not (fp.isZero a))".into(),
        Type::Bool => format!("(not (= a (_ bv0 {is})))"),
        Type::F16 | Type::F32 | Type::F64 => match from {
            Type::Bool => format!("(ite a ({0} RNE 1.0) ({0} RNE 0.0))", to_fp(to)),
            Type::U32 | Type::U64 => format!("({} RNE a)", to_fp(to).replace("to_fp", "to_fp_unsigned")),
            Type::I32 | Type::I64 | Type::F16 | Type::F32 | Type::F64 => format!("({} RNE a)", to_fp(to)),
        },
        Type::I32 | Type::U32 | Type::I64 | Type::U64 if from == Type::Bool => {
            format!("(ite a (_ bv1 {will_be}) (_ bv0 {will_be}))")
        }
        Type::I32 | Type::U32 | Type::I64 | Type::U64 if from.is_float() => {
            // A bound beyond the float type becomes an infinity, which is an equivalent bound.
            let bound = |power: u32| format!("({} RNE {}.0)", to_fp(from), 1u128 << power);
            let (least, most, low, high) = if signed(to) {
                let least = 1u64 << (will_be - 1);
                (least, least - 1, format!("(fp.neg {})", bound(will_be - 1)), bound(will_be - 1))
            } else {
                (0, u64::MAX >> (64 - will_be), format!("({} RNE 0.0)", to_fp(from)), bound(will_be))
            };
            let convert = if signed(to) { "fp.to_sbv" } else { "fp.to_ubv" };
            format!(
                "(ite (fp.isNaN a) (_ bv0 {will_be}) (ite (fp.leq a {low}) (_ bv{least} {will_be}) (ite (fp.geq a {high}) \
                 (_ bv{most} {will_be}) ((_ {convert} {will_be}) RTZ a))))"
            )
        }
        Type::I32 | Type::U32 | Type::I64 | Type::U64 => match will_be.cmp(&is) {
            std::cmp::Ordering::Less => format!("((_ extract {} 0) a)", will_be - 1),
            std::cmp::Ordering::Equal => "a".into(),
            std::cmp::Ordering::Greater => {
                let extend = if signed(from) { "sign_extend" } else { "zero_extend" };
                format!("((_ {extend} {}) a)", will_be - is)
            }
        },
    }
}
