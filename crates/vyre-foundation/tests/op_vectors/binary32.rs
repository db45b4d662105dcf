//! Arithmetic of f32: 24 significant bits, exponents from -126 to 127, subnormals down to 2^-149.

use super::{Vector, table};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;
const MAX: f32 = f32::MAX;
/// The smallest normal number, 2^-126.
const NORMAL: f32 = b(0x0080_0000);
/// The smallest subnormal number, 2^-149.
const TINY: f32 = b(1);

const fn b(bits: u32) -> f32 {
    f32::from_bits(bits)
}

pub(crate) fn vectors() -> Vec<Vector> {
    let mut all = arithmetic();
    all.extend(signs_and_bounds());
    all.extend(fused());
    all.extend(roots_and_roundings());
    all
}

fn arithmetic() -> Vec<Vector> {
    table! {
        add(f32, f32) -> f32 {
            1.5, 2.25 => 3.75; 0.1, 0.2 => b(0x3e99_999a);
            // From 2^24 on the spacing is 2, so adding 1 is a tie, which goes to the even neighbour.
            16_777_216.0, 1.0 => 16_777_216.0; 16_777_218.0, 1.0 => 16_777_220.0; -16_777_218.0, -1.0 => -16_777_220.0;
            // 1 + 2^-24 is a tie, and the next larger addend is above it.
            1.0, b(0x3380_0000) => 1.0; 1.0, b(0x3380_0001) => b(0x3f80_0001);
            b(0x3f80_0001), b(0x3380_0000) => b(0x3f80_0002);
            // The largest number plus half its spacing, 2^103, is a tie with what would be 2^128.
            MAX, b(0x7300_0000) => INF; MAX, b(0x72ff_ffff) => MAX; MAX, MAX => INF;
            -MAX, -MAX => -INF; MAX, -MAX => 0.0;
            INF, 1.0 => INF; INF, INF => INF; INF, -INF => NAN; -INF, MAX => -INF; NAN, 1.0 => NAN; NAN, INF => NAN;
            0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => -0.0; 1.0, -1.0 => 0.0; -0.0, 1.0 => 1.0;
            TINY, TINY => b(2); b(0x007f_ffff), TINY => NORMAL; NORMAL, -TINY => b(0x007f_ffff); TINY, -TINY => 0.0;
        }
        sub(f32, f32) -> f32 {
            5.5, 2.25 => 3.25; 2.25, 5.5 => -3.25;
            // Below 1 the spacing is 2^-24, so 1 - 2^-25 is a tie and 1 - 2^-24 is not.
            1.0, b(0x3300_0000) => 1.0; 1.0, b(0x3380_0000) => b(0x3f7f_ffff); 1.0, b(0x3300_0001) => b(0x3f7f_ffff);
            16_777_216.0, -1.0 => 16_777_216.0; -16_777_218.0, 1.0 => -16_777_220.0;
            MAX, -MAX => INF; -MAX, MAX => -INF; INF, INF => NAN; INF, -INF => INF; 1.0, INF => -INF;
            NAN, 1.0 => NAN; 1.0, NAN => NAN; 1.0, 1.0 => 0.0;
            0.0, 0.0 => 0.0; -0.0, 0.0 => -0.0; 0.0, -0.0 => 0.0; -0.0, -0.0 => 0.0;
            NORMAL, TINY => b(0x007f_ffff); TINY, b(2) => -TINY; b(0x0080_0001), NORMAL => TINY;
        }
        mul(f32, f32) -> f32 {
            1.5, -2.5 => -3.75; -1.5, -2.5 => 3.75;
            // (1 + 2^-12)² = 1 + 2^-11 + 2^-24 and 1.5 × (1 + 2^-23) = 1.5 + 2^-23 + 2^-24 are ties.
            b(0x3f80_0800), b(0x3f80_0800) => b(0x3f80_1000); 1.5, b(0x3f80_0001) => b(0x3fc0_0002);
            MAX, 2.0 => INF; MAX, -2.0 => -INF; MAX, 1.0 => MAX; INF, -1.0 => -INF;
            0.0, INF => NAN; -INF, -0.0 => NAN; NAN, 0.0 => NAN; INF, INF => INF;
            0.0, 5.0 => 0.0; -0.0, 5.0 => -0.0; -0.0, -1.0 => 0.0;
            // Halves of the smallest subnormal are ties with zero, which keeps the sign.
            TINY, 0.5 => 0.0; TINY, -0.5 => -0.0; TINY, 0.75 => TINY; b(3), 0.5 => b(2); b(5), 0.5 => b(2);
            TINY, TINY => 0.0; -TINY, TINY => -0.0; NORMAL, 0.5 => b(0x0040_0000);
            b(0x007f_ffff), 2.0 => b(0x00ff_fffe);
            // (1 - 2^-24) × 2^-126 lies halfway between the largest subnormal and the smallest normal number.
            b(0x3f7f_ffff), NORMAL => NORMAL;
        }
        div(f32, f32) -> f32 {
            7.0, 2.0 => 3.5; 1.0, 3.0 => b(0x3eaa_aaab); 2.0, -3.0 => b(0xbf2a_aaab); 1.0, 10.0 => b(0x3dcc_cccd);
            1.0, 0.0 => INF; -1.0, 0.0 => -INF; 1.0, -0.0 => -INF; 0.0, 0.0 => NAN; -0.0, 0.0 => NAN;
            INF, INF => NAN; INF, 0.0 => INF; 1.0, INF => 0.0; -1.0, INF => -0.0;
            0.0, -5.0 => -0.0; NAN, 1.0 => NAN; 1.0, NAN => NAN;
            MAX, 0.5 => INF; 1.0, TINY => INF; MAX, MAX => 1.0;
            TINY, 2.0 => 0.0; -TINY, 2.0 => -0.0; b(3), 2.0 => b(2); NORMAL, 2.0 => b(0x0040_0000); TINY, TINY => 1.0;
            // 1 / (2^128 × (1 - 2^-24)) is 2^-128 and a bit, and the bit is an eighth of the subnormal spacing.
            1.0, MAX => b(0x0020_0000);
        }
    }
}

fn signs_and_bounds() -> Vec<Vector> {
    table! {
        neg(f32) -> f32 {
            1.5 => -1.5; -1.5 => 1.5; 0.0 => -0.0; -0.0 => 0.0; INF => -INF; TINY => -TINY; MAX => -MAX; NAN => NAN;
        }
        abs(f32) -> f32 {
            1.5 => 1.5; -1.5 => 1.5; 0.0 => 0.0; -0.0 => 0.0; -INF => INF; -TINY => TINY; -MAX => MAX; NAN => NAN;
        }
        min(f32, f32) -> f32 {
            1.0, 2.0 => 1.0; -1.0, 1.0 => -1.0; -1.0, -2.0 => -2.0; 3.0, 3.0 => 3.0;
            INF, MAX => MAX; -INF, -MAX => -INF;
            -0.0, 0.0 => -0.0; 0.0, -0.0 => -0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => 0.0; -TINY, -0.0 => -TINY; TINY, b(2) => TINY; 1.0, b(0x3f80_0001) => 1.0;
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
            // A signaling NaN and a NaN with its sign set are like any other.
            b(0x7f80_0001), 1.0 => 1.0; 1.0, b(0x7f80_0001) => 1.0;
            b(0xffc0_0000), -1.0 => -1.0; -1.0, b(0xffc0_0000) => -1.0;
        }
        max(f32, f32) -> f32 {
            1.0, 2.0 => 2.0; -1.0, 1.0 => 1.0; -1.0, -2.0 => -1.0; 3.0, 3.0 => 3.0; INF, MAX => INF; -INF, -MAX => -MAX;
            -0.0, 0.0 => 0.0; 0.0, -0.0 => 0.0; 0.0, 0.0 => 0.0; -0.0, -0.0 => -0.0;
            TINY, 0.0 => TINY; -TINY, -0.0 => -0.0; TINY, b(2) => b(2); 1.0, b(0x3f80_0001) => b(0x3f80_0001);
            NAN, 1.0 => 1.0; 1.0, NAN => 1.0; NAN, -0.0 => -0.0; INF, NAN => INF; -INF, NAN => -INF; NAN, NAN => NAN;
            b(0x7f80_0001), 1.0 => 1.0; 1.0, b(0x7f80_0001) => 1.0;
            b(0xffc0_0000), -1.0 => -1.0; -1.0, b(0xffc0_0000) => -1.0;
        }
    }
}

fn fused() -> Vec<Vector> {
    table! {
        fma(f32, f32, f32) -> f32 {
            2.0, 3.0, 4.0 => 10.0; -2.0, 3.0, 4.0 => -2.0;
            // (1 + 2^-12)² - (1 + 2^-11) = 2^-24. A rounded product would leave nothing.
            b(0x3f80_0800), b(0x3f80_0800), -b(0x3f80_1000) => b(0x3380_0000);
            // A product that is a tie, decided by the smallest addend there is. A sum in f64 would lose that addend.
            b(0x3f80_0800), b(0x3f80_0800), TINY => b(0x3f80_1001);
            b(0x3f80_0800), b(0x3f80_0800), -TINY => b(0x3f80_1000);
            b(0x3f80_0800), b(0x3f80_0800), 0.0 => b(0x3f80_1000); 1.5, b(0x3f80_0001), 0.0 => b(0x3fc0_0002);
            1.5, b(0x3f80_0001), -TINY => b(0x3fc0_0001); -1.5, b(0x3f80_0001), TINY => -b(0x3fc0_0001);
            // The product alone would overflow.
            MAX, 2.0, -MAX => MAX; -MAX, 2.0, MAX => -MAX; MAX, 2.0, 0.0 => INF; MAX, MAX, -INF => -INF;
            // Halves of the smallest subnormal, exact in the product, rounded with the sum.
            TINY, 0.5, 0.0 => 0.0; -TINY, 0.5, 0.0 => -0.0; TINY, 0.5, TINY => b(2); TINY, 0.5, b(2) => b(2);
            TINY, 0.75, 0.0 => TINY; TINY, TINY, TINY => TINY; TINY, -TINY, 0.0 => -0.0;
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
        sqrt(f32) -> f32 {
            4.0 => 2.0; 0.25 => 0.5; 1.0 => 1.0; 2.0 => b(0x3fb5_04f3); 3.0 => b(0x3fdd_b3d7);
            0.0 => 0.0; -0.0 => -0.0; -1.0 => NAN; -TINY => NAN; -INF => NAN; INF => INF; NAN => NAN;
            // sqrt(1 - 2^-24) = 1 - 2^-25 - … lies just below a tie, and so does the root of the largest number.
            b(0x3f7f_ffff) => b(0x3f7f_ffff); MAX => b(0x5f7f_ffff); b(0x3f80_0001) => 1.0;
            b(0x3f80_0002) => b(0x3f80_0001);
            // 2^-149 = 2 × 2^-150, so its root is √2 × 2^-75; the root of 2^-126 is 2^-63.
            TINY => b(0x1a35_04f3); b(2) => b(0x1a80_0000); NORMAL => b(0x2000_0000);
        }
        floor(f32) -> f32 {
            1.5 => 1.0; -1.5 => -2.0; 0.5 => 0.0; -0.5 => -1.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -1.0; b(0x3f7f_ffff) => 0.0; 8_388_607.5 => 8_388_607.0; -8_388_607.5 => -8_388_608.0;
            16_777_215.0 => 16_777_215.0; MAX => MAX; -MAX => -MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        ceil(f32) -> f32 {
            1.5 => 2.0; -1.5 => -1.0; 0.5 => 1.0; -0.5 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 1.0; -TINY => -0.0; b(0x3f80_0001) => 2.0; 8_388_607.5 => 8_388_608.0; -8_388_607.5 => -8_388_607.0;
            16_777_215.0 => 16_777_215.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        trunc(f32) -> f32 {
            1.5 => 1.0; -1.5 => -1.0; 0.9 => 0.0; -0.9 => -0.0; 2.0 => 2.0; -2.0 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            TINY => 0.0; -TINY => -0.0; b(0x3fff_ffff) => 1.0; 8_388_607.5 => 8_388_607.0; -8_388_607.5 => -8_388_607.0;
            3_000_000_000.0 => 3_000_000_000.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
        round(f32) -> f32 {
            0.5 => 0.0; 1.5 => 2.0; 2.5 => 2.0; 3.5 => 4.0; -0.5 => -0.0; -1.5 => -2.0;
            -2.5 => -2.0; 0.0 => 0.0; -0.0 => -0.0;
            // The neighbours of one half, which adding one half and rounding down gets wrong.
            b(0x3eff_ffff) => 0.0; b(0x3f00_0001) => 1.0; -b(0x3eff_ffff) => -0.0;
            b(0x4020_0001) => 3.0; b(0x401f_ffff) => 2.0;
            8_388_607.5 => 8_388_608.0; 4_194_304.5 => 4_194_304.0;
            4_194_305.5 => 4_194_306.0; 8_388_609.0 => 8_388_609.0;
            TINY => 0.0; -TINY => -0.0; MAX => MAX; INF => INF; -INF => -INF; NAN => NAN;
        }
    }
}
