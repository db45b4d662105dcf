//! Comparisons and choice.

use Relation::{Equal, Greater, Less, Unordered};
use half::f16;

use super::{Literal, Operands, Type, Vector, p, table};

/// How one value relates to another.
#[derive(Clone, Copy)]
enum Relation {
    Less,
    Equal,
    Greater,
    /// One of the two is a NaN. Of bools, that they are not equal is all there is to say.
    Unordered,
}

/// What each comparison says when its operands are less, equal, greater, unordered.
const MEANING: [(&str, [bool; 4]); 6] = [
    ("eq", [false, true, false, false]),
    ("ne", [true, false, true, true]),
    ("lt", [true, false, false, false]),
    ("le", [true, true, false, false]),
    ("gt", [false, false, true, false]),
    ("ge", [false, true, true, false]),
];

/// The vectors of all comparisons for two operands that are so related, and for the same operands exchanged.
fn related(operands: &[Literal], relation: Relation) -> Vec<Vector> {
    let [a, b] = *operands else { panic!("two operands are compared") };
    let mirrored = match relation {
        Less => Greater,
        Equal => Equal,
        Greater => Less,
        Unordered => Unordered,
    };
    let defined = if a.ty == Type::Bool { &MEANING[..2] } else { &MEANING[..] };
    let mut vectors = Vec::new();
    for &(op, meaning) in defined {
        vectors.push(Vector { op, operands: vec![a, b], expected: meaning[relation as usize].into() });
        vectors.push(Vector { op, operands: vec![b, a], expected: meaning[mirrored as usize].into() });
    }
    vectors
}

macro_rules! relations {
    ($($ty:ident { $($a:expr, $b:expr => $relation:expr;)+ })+) => {{
        let mut vectors = Vec::new();
        $( $( vectors.extend(related(&<($ty, $ty) as Operands>::literals(($a, $b)), $relation)); )+ )+
        vectors
    }};
}

pub(crate) fn vectors() -> Vec<Vector> {
    let mut all = comparisons();
    all.extend(choices());
    all
}

fn comparisons() -> Vec<Vector> {
    relations! {
        bool { false, false => Equal; true, true => Equal; false, true => Unordered; }
        i32 {
            1, 2 => Less; -1, 1 => Less; -2, -1 => Less; i32::MIN, i32::MAX => Less; i32::MIN, 0 => Less; -1, 0 => Less;
            0, 0 => Equal; -1, -1 => Equal; i32::MIN, i32::MIN => Equal; i32::MAX, 0x7fff_fffe => Greater;
            // A difference in the highest bit, and in the lowest alone. The difference of two values may overflow.
            0x5555_5555, -0x2aaa_aaab => Greater; 0x1234_5678, 0x1234_5679 => Less;
            2_000_000_000, -2_000_000_000 => Greater;
        }
        u32 {
            1, 2 => Less; 0, u32::MAX => Less; 0x7fff_ffff, 0x8000_0000 => Less; 0xffff_fffe, u32::MAX => Less;
            0, 0 => Equal; u32::MAX, u32::MAX => Equal; 0x8000_0000, 0x8000_0000 => Equal; 0x8000_0000, 0 => Greater;
            // Neighbours that are the same float.
            0xffff_ff01, 0xffff_ff00 => Greater;
        }
        i64 {
            1, 2 => Less; -1, 1 => Less; -2, -1 => Less; i64::MIN, i64::MAX => Less;
            0, 0 => Equal; i64::MIN, i64::MIN => Equal;
            // Words that agree in one half, or are ordered otherwise by it.
            0xffff_ffff, 0x1_0000_0000 => Less; 0x1_0000_0005, 5 => Greater; 0x2_0000_0001, 0x1_0000_0002 => Greater;
            -0x1_0000_0000, -1 => Less; 0x1_8000_0000, 0x1_7fff_ffff => Greater; -1, 0xffff_ffff => Less;
            // Neighbours that are the same float.
            9_007_199_254_740_993, 9_007_199_254_740_992 => Greater;
        }
        u64 {
            1, 2 => Less; 0, u64::MAX => Less; 0x7fff_ffff_ffff_ffff, 0x8000_0000_0000_0000 => Less;
            0, 0 => Equal; u64::MAX, u64::MAX => Equal; 0xffff_ffff, 0x1_0000_0000 => Less; 0x1_0000_0005, 5 => Greater;
            0x2_0000_0001, 0x1_0000_0002 => Greater; 0x1_8000_0000, 0x1_7fff_ffff => Greater;
            9_007_199_254_740_993, 9_007_199_254_740_992 => Greater;
        }
        f32 {
            1.0, 2.0 => Less; -1.0, 1.0 => Less; -2.0, -1.0 => Less; 1.0, f32::from_bits(0x3f80_0001) => Less;
            1.5, 1.5 => Equal; 0.0, -0.0 => Equal; -0.0, -0.0 => Equal; f32::INFINITY, f32::INFINITY => Equal;
            f32::INFINITY, f32::MAX => Greater; -f32::INFINITY, -f32::MAX => Less;
            -f32::INFINITY, f32::INFINITY => Less;
            // Subnormals are not zeros.
            f32::from_bits(1), 0.0 => Greater; -f32::from_bits(1), -0.0 => Less;
            f32::from_bits(1), f32::from_bits(2) => Less;
            f32::NAN, 1.0 => Unordered; f32::NAN, f32::NAN => Unordered; f32::NAN, f32::INFINITY => Unordered;
            f32::NAN, 0.0 => Unordered; -f32::NAN, -f32::INFINITY => Unordered;
            f32::from_bits(0x7f80_0001), 0.0 => Unordered;
        }
        f64 {
            1.0, 2.0 => Less; -1.0, 1.0 => Less; -2.0, -1.0 => Less; 1.0, f64::from_bits(0x3ff0_0000_0000_0001) => Less;
            1.5, 1.5 => Equal; 0.0, -0.0 => Equal; -0.0, -0.0 => Equal; f64::INFINITY, f64::INFINITY => Equal;
            f64::INFINITY, f64::MAX => Greater; -f64::INFINITY, -f64::MAX => Less;
            -f64::INFINITY, f64::INFINITY => Less;
            f64::from_bits(1), 0.0 => Greater; -f64::from_bits(1), -0.0 => Less;
            f64::from_bits(1), f64::from_bits(2) => Less;
            f64::NAN, 1.0 => Unordered; f64::NAN, f64::NAN => Unordered; f64::NAN, f64::INFINITY => Unordered;
            f64::NAN, 0.0 => Unordered; -f64::NAN, -f64::INFINITY => Unordered;
            f64::from_bits(0x7ff0_0000_0000_0001), 0.0 => Unordered;
        }
        f16 {
            1.0, 2.0 => Less; -1.0, 1.0 => Less; -2.0, -1.0 => Less; 1.0, 1.0 + p(-10) => Less;
            1.5, 1.5 => Equal; 0.0, -0.0 => Equal; -0.0, -0.0 => Equal; f64::INFINITY, f64::INFINITY => Equal;
            f64::INFINITY, 65504.0 => Greater; -f64::INFINITY, -65504.0 => Less; -f64::INFINITY, f64::INFINITY => Less;
            p(-24), 0.0 => Greater; -p(-24), -0.0 => Less; p(-24), p(-23) => Less; p(-24), -p(-24) => Greater;
            f64::NAN, 1.0 => Unordered; f64::NAN, f64::NAN => Unordered; f64::NAN, f64::INFINITY => Unordered;
            f64::NAN, 0.0 => Unordered; f64::NAN, -f64::INFINITY => Unordered;
        }
    }
}

fn choices() -> Vec<Vector> {
    table! {
        select(bool, bool, bool) -> bool {
            true, true, false => true; true, false, true => false;
            false, true, false => false; false, false, true => true;
        }
        select(bool, i32, i32) -> i32 {
            true, 1, 2 => 1; false, 1, 2 => 2; true, i32::MIN, i32::MAX => i32::MIN;
            false, i32::MIN, i32::MAX => i32::MAX;
            true, 0, -1 => 0; false, 0, -1 => -1;
        }
        select(bool, u32, u32) -> u32 {
            true, 1, 2 => 1; false, 1, 2 => 2; true, u32::MAX, 0 => u32::MAX; false, 0, u32::MAX => u32::MAX;
            true, 0, 1 => 0; false, 1, 0 => 0;
        }
        select(bool, i64, i64) -> i64 {
            true, 1, 2 => 1; false, 1, 2 => 2; true, i64::MIN, i64::MAX => i64::MIN;
            false, i64::MIN, i64::MAX => i64::MAX;
            true, 0x1_0000_0000, 0 => 0x1_0000_0000; false, 0x1_0000_0001, 1 => 1;
        }
        select(bool, u64, u64) -> u64 {
            true, 1, 2 => 1; false, 1, 2 => 2; true, u64::MAX, 0 => u64::MAX; false, 0, u64::MAX => u64::MAX;
            true, 0x1_0000_0000, 0 => 0x1_0000_0000; false, 0x1_0000_0001, 1 => 1;
        }
        // The sign of a zero is kept, and a NaN is a value like any other.
        select(bool, f32, f32) -> f32 {
            true, 1.5, 2.5 => 1.5; false, 1.5, 2.5 => 2.5; true, -0.0, 0.0 => -0.0; false, -0.0, 0.0 => 0.0;
            true, f32::NAN, 1.0 => f32::NAN; false, f32::NAN, 1.0 => 1.0;
            true, f32::from_bits(1), 0.0 => f32::from_bits(1);
        }
        select(bool, f64, f64) -> f64 {
            true, 1.5, 2.5 => 1.5; false, 1.5, 2.5 => 2.5; true, -0.0, 0.0 => -0.0; false, -0.0, 0.0 => 0.0;
            true, f64::NAN, 1.0 => f64::NAN; false, f64::NAN, 1.0 => 1.0;
            true, f64::from_bits(1), 0.0 => f64::from_bits(1);
        }
        select(bool, f16, f16) -> f16 {
            true, 1.5, 2.5 => 1.5; false, 1.5, 2.5 => 2.5; true, -0.0, 0.0 => -0.0; false, -0.0, 0.0 => 0.0;
            true, f64::NAN, 1.0 => f64::NAN; false, f64::NAN, 1.0 => 1.0; true, p(-24), 0.0 => p(-24);
        }
    }
}
