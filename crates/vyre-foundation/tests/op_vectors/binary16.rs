//! Arithmetic of f16: 11 significant bits, exponents from -14 to 15, subnormals down to 2^-24.
//!
//! The evaluators compute in wider floats and round afterwards, so many vectors lie where rounding twice would show.

use half::f16;

use super::{Vector, p, table};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;
const MAX: f64 = 65504.0;
/// The smallest normal number.
const NORMAL: f64 = p(-14);
/// The smallest subnormal number.
const TINY: f64 = p(-24);
/// The largest subnormal number.
const SUBNORMAL: f64 = 1023.0 * TINY;
/// The numbers next to 1.
const BELOW_ONE: f64 = 1.0 - p(-11);
const ABOVE_ONE: f64 = 1.0 + p(-10);

pub(crate) fn vectors() -> Vec<Vector> {
    let mut all = arithmetic();
    all.extend(signs_and_bounds());
    all.extend(fused());
    all.extend(roots_and_roundings());
    all
}

fn arithmetic() -> Vec<Vector> {
    table! {
        add(f16, f16) -> f16 {
            1.5, 2.25 => 3.75; -1.5, 1.25 => -0.25;
            // From 2^11 on the spacing is 2, so adding 1 is a tie, which goes to the even neighbour.
            2048.0, 1.0 => 2048.0; 2050.0, 1.0 => 2052.0; -2050.0, -1.0 => -2052.0; 2048.0, ABOVE_ONE => 2050.0;
            2048.0, BELOW_ONE => 2048.0; 1.0, p(-11) => 1.0; ABOVE_ONE, p(-11) => 1.0 + p(-9);
            1.0, p(-11) + p(-21) => ABOVE_ONE;
            // The largest number plus half its spacing, 16, is a tie with what would be 2^16.
            MAX, 16.0 => INF; MAX, 15.9921875 => MAX; MAX, MAX => INF; -MAX, -16.0 => -INF;
            MAX, -MAX => 0.0; MAX, TINY => MAX;
            INF, 1.0 => INF; INF, INF => INF; INF, -INF => NAN; -INF, MAX => -INF; NAN, 1.0 => NAN; NAN, INF => NAN;
            0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => -0.0; 1.0, -1.0 => 0.0; -0.0, 1.0 => 1.0;
            TINY, TINY => 2.0 * TINY; SUBNORMAL, TINY => NORMAL; NORMAL, -TINY => SUBNORMAL; TINY, -TINY => 0.0;
        }
        sub(f16, f16) -> f16 {
            5.5, 2.25 => 3.25; 2.25, 5.5 => -3.25;
            // Below 1 the spacing is 2^-11, so 1 - 2^-12 is a tie and 1 - 2^-11 is not.
            1.0, p(-12) => 1.0; 1.0, p(-11) => BELOW_ONE; 1.0, p(-12) + p(-22) => BELOW_ONE;
            2048.0, -1.0 => 2048.0; -2050.0, 1.0 => -2052.0; -MAX, 16.0 => -INF; MAX, -15.9921875 => MAX;
            MAX, -MAX => INF; INF, INF => NAN; INF, -INF => INF; 1.0, INF => -INF; NAN, 1.0 => NAN; 1.0, NAN => NAN;
            0.0, 0.0 => 0.0; -0.0, 0.0 => -0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => 0.0; 1.0, 1.0 => 0.0;
            NORMAL, TINY => SUBNORMAL; TINY, 2.0 * TINY => -TINY;
        }
        mul(f16, f16) -> f16 {
            1.5, -2.5 => -3.75; -1.5, -2.5 => 3.75;
            // Ties: (1 + 2^-5) × (1 + 2^-6) = 1.046875 + 2^-11, and 1.5 × (1 + 2^-10) = 1.5 + 2^-10 + 2^-11.
            1.03125, 1.015625 => 1.046875; 1.5, ABOVE_ONE => 1.5 + p(-9); ABOVE_ONE, ABOVE_ONE => 1.0 + p(-9);
            256.0, 256.0 => INF; MAX, -2.0 => -INF; MAX, 1.0 => MAX; MAX, ABOVE_ONE => INF; INF, -1.0 => -INF;
            0.0, INF => NAN; -INF, -0.0 => NAN; NAN, 0.0 => NAN; INF, INF => INF;
            0.0, 5.0 => 0.0; -0.0, 5.0 => -0.0; -0.0, -1.0 => 0.0;
            // Halves of the smallest subnormal are ties with zero, which keeps the sign.
            TINY, 0.5 => 0.0; TINY, -0.5 => -0.0; TINY, 0.75 => TINY;
            3.0 * TINY, 0.5 => 2.0 * TINY; 5.0 * TINY, 0.5 => 2.0 * TINY;
            p(-13), p(-12) => 0.0; p(-13) + p(-23), p(-12) => TINY; TINY, TINY => 0.0; -TINY, TINY => -0.0;
            NORMAL, 0.5 => p(-15); BELOW_ONE, NORMAL => NORMAL; SUBNORMAL, 2.0 => 2046.0 * TINY;
        }
        div(f16, f16) -> f16 {
            // 1/3 = 1365.33 × 2^-12, 2/3 = 1365.33 × 2^-11, 1/10 = 1638.4 × 2^-14.
            7.0, 2.0 => 3.5; 1.0, 3.0 => 1365.0 * p(-12); 2.0, -3.0 => -1365.0 * p(-11); 1.0, 10.0 => 1638.0 * p(-14);
            1.0, 0.0 => INF; -1.0, 0.0 => -INF; 1.0, -0.0 => -INF; 0.0, 0.0 => NAN; -0.0, 0.0 => NAN;
            INF, INF => NAN; INF, 0.0 => INF; 1.0, INF => 0.0; -1.0, INF => -0.0;
            0.0, -5.0 => -0.0; NAN, 1.0 => NAN; 1.0, NAN => NAN;
            MAX, 0.5 => INF; 1.0, TINY => INF; MAX, MAX => 1.0; MAX, TINY => INF;
            1.0, p(-15) => 32768.0; 1.0, p(-16) => INF;
            TINY, 2.0 => 0.0; -TINY, 2.0 => -0.0; 3.0 * TINY, 2.0 => 2.0 * TINY;
            NORMAL, 2.0 => p(-15); TINY, TINY => 1.0;
            // 1 / 65504 = 2^-16 and a bit, which is an eighth of the subnormal spacing.
            1.0, MAX => p(-16); TINY, 3.0 => 0.0; 2.0 * TINY, 3.0 => TINY; NORMAL, ABOVE_ONE => SUBNORMAL;
        }
    }
}

fn signs_and_bounds() -> Vec<Vector> {
    table! {
        neg(f16) -> f16 {
            1.5 => -1.5; -1.5 => 1.5; 0.0 => -0.0; -0.0 => 0.0; INF => -INF; TINY => -TINY; MAX => -MAX; NAN => NAN;
        }
        abs(f16) -> f16 {
            1.5 => 1.5; -1.5 => 1.5; 0.0 => 0.0; -0.0 => 0.0; -INF => INF; -TINY => TINY; -MAX => MAX; NAN => NAN;
        }
        min(f16, f16) -> f16 {
            1.0, 2.0 => 1.0; -1.0, 1.0 => -1.0; -1.0, -2.0 => -2.0; 3.0, 3.0 => 3.0;
            INF, MAX => MAX; -INF, -MAX => -INF;
            -0.0, 0.0 => -0.0; 0.0, -0.0 => -0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => 0.0; -TINY, -0.0 => -TINY; TINY, SUBNORMAL => TINY; 1.0, ABOVE_ONE => 1.0;
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
        }
        max(f16, f16) -> f16 {
            1.0, 2.0 => 2.0; -1.0, 1.0 => 1.0; -1.0, -2.0 => -1.0; 3.0, 3.0 => 3.0; INF, MAX => INF; -INF, -MAX => -MAX;
            -0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => TINY; -TINY, -0.0 => -0.0; TINY, SUBNORMAL => SUBNORMAL; 1.0, ABOVE_ONE => ABOVE_ONE;
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
        }
    }
}

fn fused() -> Vec<Vector> {
    table! {
        fma(f16, f16, f16) -> f16 {
            2.0, 3.0, 4.0 => 10.0; -2.0, 3.0, 4.0 => -2.0;
            // (1 + 2^-10)² - (1 + 2^-9) = 2^-20. A rounded product would leave nothing.
            ABOVE_ONE, ABOVE_ONE, -1.0 - p(-9) => p(-20);
            // A product that is a tie, decided by the smallest addend there is. The sum 1.046875 + 2^-11 + 2^-24 is
            // itself a tie in f32, which loses the addend: it takes a wider sum or a sticky bit.
            1.03125, 1.015625, TINY => 1.046875 + p(-10); 1.03125, 1.015625, -TINY => 1.046875;
            1.03125, 1.015625, 0.0 => 1.046875;
            1.5, ABOVE_ONE, 0.0 => 1.5 + p(-9); 1.5, ABOVE_ONE, -TINY => 1.5 + p(-10);
            1.5, ABOVE_ONE, TINY => 1.5 + p(-9);
            -1.5, ABOVE_ONE, TINY => -1.5 - p(-10); -1.03125, 1.015625, -TINY => -1.046875 - p(-10);
            // The same with a product of about 2^15: the sum takes 40 bits, and f32 has lost the addend long before.
            33.0, 1040.0, 0.0 => 34304.0; 33.0, 1040.0, TINY => 34336.0; 33.0, 1040.0, -TINY => 34304.0;
            -33.0, 1040.0, -TINY => -34336.0; 19.0, 1808.0, 0.0 => 34368.0; 19.0, 1808.0, -TINY => 34336.0;
            // An addend that is far larger than the product, and one that makes a tie of it.
            TINY, TINY, 1.0 => 1.0; TINY, TINY, MAX => MAX; -TINY, TINY, NORMAL => NORMAL; -TINY, TINY, 1.0 => 1.0;
            p(-6), p(-5), 1.0 => 1.0; p(-6), p(-5) + p(-15), 1.0 => ABOVE_ONE; p(-6), p(-5), ABOVE_ONE => 1.0 + p(-9);
            p(-6), p(-5) - p(-16), ABOVE_ONE => ABOVE_ONE;
            // The product alone would overflow; 65520 and everything above it does.
            256.0, 256.0, -32.0 => MAX; 256.0, 256.0, -16.0 => INF;
            256.0, 256.0, -17.0 => MAX; -256.0, 256.0, 16.0 => -INF;
            256.0, 256.0, -15.9921875 => INF; 256.0, 256.0, -16.015625 => MAX;
            MAX, 2.0, -MAX => MAX; MAX, MAX, -MAX => INF;
            MAX, MAX, -INF => -INF; MAX, 1.0, 16.0 => INF; MAX, 1.0, 15.9921875 => MAX;
            240.0, 273.0, -TINY => MAX; 240.0, 273.0, 0.0 => INF;
            // Halves of the smallest subnormal, exact in the product, rounded with the sum.
            TINY, 0.5, 0.0 => 0.0; -TINY, 0.5, 0.0 => -0.0; TINY, 0.5, TINY => 2.0 * TINY;
            TINY, 0.5, 2.0 * TINY => 2.0 * TINY;
            p(-13) + p(-23), p(-12), 0.0 => TINY; p(-13) + p(-23), p(-12), 2.0 * TINY => 3.0 * TINY;
            p(-13) - p(-24), p(-12), 3.0 * TINY => 3.0 * TINY; p(-13) - p(-24), p(-12), 0.0 => 0.0;
            TINY, 0.75, 0.0 => TINY; TINY, TINY, TINY => TINY; TINY, -TINY, 0.0 => -0.0; TINY, -0.5, NORMAL => NORMAL;
            INF, 0.0, 1.0 => NAN; 0.0, INF, NAN => NAN; INF, 1.0, -INF => NAN;
            INF, 1.0, INF => INF; 1.0, 1.0, -INF => -INF;
            NAN, 1.0, 1.0 => NAN; 1.0, 1.0, NAN => NAN;
            0.0, 1.0, -0.0 => 0.0; -0.0, 1.0, -0.0 => -0.0; -0.0, 1.0, 0.0 => 0.0;
            1.0, 1.0, -1.0 => 0.0; 0.0, -1.0, -0.0 => -0.0;
        }
    }
}

fn roots_and_roundings() -> Vec<Vector> {
    table! {
        sqrt(f16) -> f16 {
            // √2 = 1448.15 × 2^-10 and √3 = 1773.62 × 2^-10.
            4.0 => 2.0; 0.25 => 0.5; 1.0 => 1.0; 2.0 => 1448.0 * p(-10); 3.0 => 1774.0 * p(-10);
            0.0 => 0.0; -0.0 => -0.0; -1.0 => NAN; -TINY => NAN; -INF => NAN; INF => INF; NAN => NAN;
            // sqrt(1 - 2^-11) = 1 - 2^-12 - … lies just below a tie, and so does the root of the largest number.
            BELOW_ONE => BELOW_ONE; MAX => 255.875; ABOVE_ONE => 1.0; 1.0 + p(-9) => ABOVE_ONE;
            TINY => p(-12); 2.0 * TINY => 1448.0 * p(-22); NORMAL => p(-7);
        }
        floor(f16) -> f16 {
            1.5 => 1.0; -1.5 => -2.0; 0.5 => 0.0; -0.5 => -1.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -1.0; BELOW_ONE => 0.0; 1023.5 => 1023.0; -1023.5 => -1024.0; 2047.0 => 2047.0;
            MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        ceil(f16) -> f16 {
            1.5 => 2.0; -1.5 => -1.0; 0.5 => 1.0; -0.5 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 1.0; -TINY => -0.0; ABOVE_ONE => 2.0; 1023.5 => 1024.0; -1023.5 => -1023.0; 2047.0 => 2047.0;
            MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        trunc(f16) -> f16 {
            1.5 => 1.0; -1.5 => -1.0; 0.875 => 0.0; -0.875 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -0.0; 2.0 - p(-10) => 1.0; 1023.5 => 1023.0; -1023.5 => -1023.0; 2047.0 => 2047.0;
            MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        round(f16) -> f16 {
            0.5 => 0.0; 1.5 => 2.0; 2.5 => 2.0; 3.5 => 4.0; -0.5 => -0.0; -1.5 => -2.0;
            -2.5 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            // The neighbours of one half.
            0.5 - p(-12) => 0.0; 0.5 + p(-11) => 1.0; -0.5 + p(-12) => -0.0;
            1023.5 => 1024.0; 512.5 => 512.0; 513.5 => 514.0; 1025.0 => 1025.0;
            TINY => 0.0; -TINY => -0.0; MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
    }
}
