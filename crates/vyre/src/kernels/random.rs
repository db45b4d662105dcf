//! Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw (2011).

use super::{built, length};
use crate::build::{Kernel, Val};
use crate::{Buffer, Device, Element, Error, Launch};

/// Fills `y` with random words; `y[i]` depends on the seed and on i only.
///
/// Word i is word i mod 4 of the block with the counter (i ÷ 4, 0, 0, 0), under the seed as the key.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: the same bits everywhere.
///
/// # Errors
/// The launch fails.
pub fn random(device: &Device, seed: u64, y: &mut Buffer<u32>) -> Result<(), Error> {
    run(device, seed, y, built("random", GROUP, |k| generated(k, |bits| bits)))
}

/// Fills `y` with random floats in [0, 1): multiples of 2⁻²⁴, from the words of [`random`].
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: the same bits everywhere; no operation rounds.
///
/// # Errors
/// The launch fails.
pub fn uniform(device: &Device, seed: u64, y: &mut Buffer<f32>) -> Result<(), Error> {
    run(device, seed, y, built("uniform", GROUP, |k| generated(k, |bits| bits.map(fraction))))
}

/// Fills `y` with normally distributed floats of mean 0 and variance 1, from pairs of values of [`uniform`] by the Box–Muller transform.
/// Magnitudes are at most 5.8.
///
/// - Work: n, in one launch.
/// - Memory: none.
/// - Exactness: the same bits on all devices with exact floats; `log`, `sqrt`, `sin`, `cos` and each product are rounded.
///
/// # Errors
/// The launch fails.
pub fn normal(device: &Device, seed: u64, y: &mut Buffer<f32>) -> Result<(), Error> {
    let launch = built("normal", GROUP, |k| {
        generated(k, |[a, b, c, d]| {
            let pair = |radius, angle| {
                // In (0, 1], where the logarithm is finite.
                let radius = ((1.0 - fraction(radius)).log() * -2.0f32).sqrt();
                let angle = fraction(angle) * std::f32::consts::TAU;
                (radius * angle.cos(), radius * angle.sin())
            };
            let ((a, b), (c, d)) = (pair(a, b), pair(c, d));
            [a, b, c, d]
        });
    });
    run(device, seed, y, launch)
}

const GROUP: [u32; 3] = [64, 1, 1];

fn run<T: Element>(device: &Device, seed: u64, y: &mut Buffer<T>, launch: Launch<'_>) -> Result<(), Error> {
    let n = length("y", y)?;
    let launch = launch.__scalar("seed_low", seed as u32).__scalar("seed_high", (seed >> 32) as u32);
    launch.__buffer("y", y).run(device, n.div_ceil(4))?;
    Ok(())
}

/// Converts the highest 24 bits to a float in [0, 1).
fn fraction(bits: Val<'_, u32>) -> Val<'_, f32> {
    (bits >> 8).cast::<f32>() * (1.0 / (1 << 24) as f32)
}

/// Generates a block of four random words, converts and stores it.
fn generated<'k, T>(k: &'k Kernel, convert: impl Fn([Val<'k, u32>; 4]) -> [Val<'k, T>; 4])
where
    T: crate::Number,
{
    let y = k.write::<T>("y");
    let mut key = ["seed_low", "seed_high"].map(|name| k.uniform::<u32>(name).load());
    let (i, zero) = (k.global_index(), k.lit(0));
    let mut block = [i, zero, zero, zero];
    for _ in 0..10 {
        let products = [(block[0], 0xd251_1f53), (block[2], 0xcd9e_8d57)];
        let [(low0, high0), (low1, high1)] = products.map(|(word, factor)| (word * factor, word.mul_high(factor)));
        block = [high1 ^ block[1] ^ key[0], low1, high0 ^ block[3] ^ key[1], low0];
        key = [key[0] + 0x9e37_79b9, key[1] + 0xbb67_ae85];
    }
    y.store_wide(i * 4, convert(block));
}
