//! The math library: special values as in Annex F of the C standard, exact results, and well known ones.

use std::f32::consts::{E, FRAC_PI_2, FRAC_PI_3, FRAC_PI_4, FRAC_PI_6, LN_2, LN_10, LOG2_10, PI, SQRT_2};

use super::{Vector, table};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;
const MAX: f32 = f32::MAX;
/// The smallest normal number, 2^-126.
const NORMAL: f32 = b(0x0080_0000);
/// The smallest subnormal number, 2^-149.
const TINY: f32 = b(1);
/// The numbers next to 1.
const BELOW_ONE: f32 = b(0x3f7f_ffff);
const ABOVE_ONE: f32 = b(0x3f80_0001);
const THREE_PI_4: f32 = 2.356_194_5;
/// What π has more than f32's PI.
const PI_LOW: f32 = -8.742_278e-8;

const fn b(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Two to a power.
const fn p(exponent: i32) -> f32 {
    b(((127 + exponent) as u32) << 23)
}

pub(crate) fn vectors() -> Vec<Vector> {
    let mut all = exponentials();
    all.extend(circular());
    all.extend(hyperbolic());
    all.extend(powers());
    all
}

fn exponentials() -> Vec<Vector> {
    table! {
        exp(f32) -> f32 {
            0.0 => 1.0; -0.0 => 1.0; 1.0 => E; LN_2 => 2.0; TINY => 1.0; -TINY => 1.0;
            INF => INF; -INF => 0.0; NAN => NAN; 89.0 => INF; MAX => INF; -MAX => 0.0;
            // The logarithm of the smallest number is -103.28, and of its half -103.97.
            -103.0 => TINY; -103.9 => TINY; -104.0 => 0.0;
        }
        exp2(f32) -> f32 {
            0.0 => 1.0; -0.0 => 1.0; 1.0 => 2.0; -1.0 => 0.5; 10.0 => 1024.0; 0.5 => SQRT_2; 127.0 => p(127);
            128.0 => INF; INF => INF; -INF => 0.0; NAN => NAN; TINY => 1.0; MAX => INF; -MAX => 0.0;
            // 2^-150 is a tie with zero.
            -126.0 => NORMAL; -127.0 => b(0x0040_0000); -149.0 => TINY; -150.0 => 0.0; -149.5 => TINY;
        }
        log(f32) -> f32 {
            1.0 => 0.0; 2.0 => LN_2; 0.5 => -LN_2; 10.0 => LN_10; 0.0 => -INF; -0.0 => -INF; -1.0 => NAN; -TINY => NAN;
            INF => INF; -INF => NAN; NAN => NAN;
            // Near 1 it is the distance from 1, less half of its square: 2^-23 - 2^-47, and -2^-24 - 2^-49.
            ABOVE_ONE => b(0x33ff_ffff); BELOW_ONE => -p(-24);
        }
        log2(f32) -> f32 {
            1.0 => 0.0; 2.0 => 1.0; 8.0 => 3.0; 0.5 => -1.0; NORMAL => -126.0; TINY => -149.0; p(127) => 127.0;
            10.0 => LOG2_10; 0.0 => -INF; -0.0 => -INF; -1.0 => NAN; -TINY => NAN; INF => INF;
            -INF => NAN; NAN => NAN;
        }
    }
}

fn circular() -> Vec<Vector> {
    table! {
        sin(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; -TINY => -TINY; NORMAL => NORMAL;
            1.0 => 0.841_470_96; FRAC_PI_6 => 0.5; FRAC_PI_2 => 1.0; -FRAC_PI_2 => -1.0;
            // The sine of a number near π is its distance from π.
            PI => PI_LOW; -PI => -PI_LOW; INF => NAN; -INF => NAN; NAN => NAN;
        }
        cos(f32) -> f32 {
            0.0 => 1.0; -0.0 => 1.0; TINY => 1.0; PI => -1.0; -PI => -1.0; FRAC_PI_2 => PI_LOW / 2.0;
            INF => NAN; -INF => NAN; NAN => NAN;
        }
        tan(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; -TINY => -TINY; FRAC_PI_4 => 1.0; -FRAC_PI_4 => -1.0;
            // One over its distance from π/2.
            FRAC_PI_2 => -22_877_332.0; PI => -PI_LOW; INF => NAN; -INF => NAN; NAN => NAN;
        }
        asin(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; 0.5 => FRAC_PI_6; -0.5 => -FRAC_PI_6; 1.0 => FRAC_PI_2;
            -1.0 => -FRAC_PI_2; ABOVE_ONE => NAN; -ABOVE_ONE => NAN; INF => NAN; -INF => NAN; NAN => NAN;
        }
        acos(f32) -> f32 {
            1.0 => 0.0; 0.0 => FRAC_PI_2; -0.0 => FRAC_PI_2; TINY => FRAC_PI_2; 0.5 => FRAC_PI_3; -0.5 => 2.0 * FRAC_PI_3;
            -1.0 => PI; ABOVE_ONE => NAN; -ABOVE_ONE => NAN; INF => NAN; -INF => NAN; NAN => NAN;
        }
        atan(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; -TINY => -TINY; 1.0 => FRAC_PI_4; -1.0 => -FRAC_PI_4;
            MAX => FRAC_PI_2; INF => FRAC_PI_2; -INF => -FRAC_PI_2; NAN => NAN;
        }
        atan2(f32, f32) -> f32 {
            0.0, 1.0 => 0.0; -0.0, 1.0 => -0.0; 0.0, -1.0 => PI; -0.0, -1.0 => -PI;
            0.0, 0.0 => 0.0; -0.0, 0.0 => -0.0; 0.0, -0.0 => PI; -0.0, -0.0 => -PI;
            1.0, 0.0 => FRAC_PI_2; 1.0, -0.0 => FRAC_PI_2; -1.0, 0.0 => -FRAC_PI_2; -1.0, -0.0 => -FRAC_PI_2;
            1.0, 1.0 => FRAC_PI_4; 1.0, -1.0 => THREE_PI_4; -1.0, 1.0 => -FRAC_PI_4; -1.0, -1.0 => -THREE_PI_4;
            INF, INF => FRAC_PI_4; INF, -INF => THREE_PI_4; -INF, INF => -FRAC_PI_4; -INF, -INF => -THREE_PI_4;
            INF, 1.0 => FRAC_PI_2; -INF, -1.0 => -FRAC_PI_2; 1.0, INF => 0.0; -1.0, INF => -0.0; 1.0, -INF => PI;
            -1.0, -INF => -PI; 0.0, INF => 0.0; 0.0, -INF => PI; INF, 0.0 => FRAC_PI_2;
            MAX, MAX => FRAC_PI_4; TINY, TINY => FRAC_PI_4; TINY, MAX => 0.0; -TINY, MAX => -0.0; TINY, -MAX => PI;
            TINY, 1.0 => TINY; MAX, TINY => FRAC_PI_2; NORMAL, 2.0 => b(0x0040_0000);
            NAN, 1.0 => NAN; 1.0, NAN => NAN; NAN, INF => NAN; 0.0, NAN => NAN;
        }
    }
}

fn hyperbolic() -> Vec<Vector> {
    table! {
        sinh(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; -TINY => -TINY; 1.0 => 1.175_201_2; -1.0 => -1.175_201_2;
            90.0 => INF; -90.0 => -INF; MAX => INF; INF => INF; -INF => -INF; NAN => NAN;
        }
        cosh(f32) -> f32 {
            0.0 => 1.0; -0.0 => 1.0; TINY => 1.0; 1.0 => 1.543_080_7; -1.0 => 1.543_080_7; 90.0 => INF; -90.0 => INF;
            MAX => INF; INF => INF; -INF => INF; NAN => NAN;
        }
        tanh(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; TINY => TINY; -TINY => -TINY; 1.0 => 0.761_594_2; -1.0 => -0.761_594_2;
            20.0 => 1.0; -20.0 => -1.0; MAX => 1.0; INF => 1.0; -INF => -1.0; NAN => NAN;
        }
    }
}

fn powers() -> Vec<Vector> {
    table! {
        pow(f32, f32) -> f32 {
            2.0, 10.0 => 1024.0; 10.0, 2.0 => 100.0; 9.0, 0.5 => 3.0; 2.0, 0.5 => SQRT_2; 4.0, -0.5 => 0.5; 3.0, 1.0 => 3.0;
            -2.0, 3.0 => -8.0; -2.0, 2.0 => 4.0; -2.0, -3.0 => -0.125; -8.0, 0.333 => NAN; -2.0, 0.5 => NAN;
            2.0, 127.0 => p(127); 2.0, 128.0 => INF; -2.0, 129.0 => -INF; 2.0, -149.0 => TINY; 2.0, -150.0 => 0.0;
            -2.0, -151.0 => -0.0; TINY, -1.0 => INF; TINY, 1.0 => TINY; MAX, 1.0 => MAX; MAX, 2.0 => INF;
            // Anything to the power of 0, and 1 to any power.
            NAN, 0.0 => 1.0; NAN, -0.0 => 1.0; 0.0, 0.0 => 1.0; INF, 0.0 => 1.0; -3.0, -0.0 => 1.0;
            1.0, NAN => 1.0; 1.0, INF => 1.0; 1.0, -INF => 1.0; -1.0, INF => 1.0; -1.0, -INF => 1.0;
            // From 2^24 on all numbers are even.
            -1.0, 16_777_216.0 => 1.0; -1.0, 16_777_215.0 => -1.0; -1.0, MAX => 1.0;
            0.0, 3.0 => 0.0; -0.0, 3.0 => -0.0; -0.0, 2.0 => 0.0; -0.0, 0.5 => 0.0; 0.0, -1.0 => INF; -0.0, -1.0 => -INF;
            -0.0, -2.0 => INF; -0.0, -0.5 => INF; 0.0, INF => 0.0; 0.0, -INF => INF; -0.0, -INF => INF;
            0.5, INF => 0.0; 0.5, -INF => INF; 2.0, INF => INF; 2.0, -INF => 0.0; -0.5, INF => 0.0; -2.0, -INF => 0.0;
            INF, 2.0 => INF; INF, -1.0 => 0.0; INF, INF => INF; INF, -INF => 0.0;
            -INF, 3.0 => -INF; -INF, 2.0 => INF; -INF, 0.5 => INF; -INF, -3.0 => -0.0; -INF, -2.0 => 0.0; -INF, -0.5 => 0.0;
            NAN, 1.0 => NAN; 2.0, NAN => NAN; -1.0, NAN => NAN; NAN, INF => NAN; NAN, NAN => NAN;
        }
        cbrt(f32) -> f32 {
            0.0 => 0.0; -0.0 => -0.0; 1.0 => 1.0; 8.0 => 2.0; -27.0 => -3.0; 1000.0 => 10.0; 2.0 => 1.259_921_1; b(4) => p(-49);
            -b(4) => -p(-49); p(126) => p(42); p(-126) => p(-42); INF => INF; -INF => -INF; NAN => NAN;
        }
        hypot(f32, f32) -> f32 {
            3.0, 4.0 => 5.0; -3.0, 4.0 => 5.0; 5.0, -12.0 => 13.0; 1.0, 1.0 => SQRT_2; 0.0, -0.0 => 0.0; 0.0, -7.0 => 7.0;
            3.0 * p(100), 4.0 * p(100) => 5.0 * p(100); 3.0 * p(-100), 4.0 * p(-100) => 5.0 * p(-100); b(3), b(4) => b(5);
            TINY, 0.0 => TINY; TINY, 1.0 => 1.0; MAX, 1.0 => MAX; MAX, MAX => INF;
            INF, 1.0 => INF; 1.0, -INF => INF; INF, NAN => INF; NAN, -INF => INF; NAN, 1.0 => NAN; 0.0, NAN => NAN;
        }
    }
}
