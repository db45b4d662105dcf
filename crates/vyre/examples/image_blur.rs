//! Separable blur and brightening of an image as one fused pipeline; writes `blur.png`.

use std::fs::File;
use std::io::BufWriter;

use vyre::{Device, Pipeline, kernel};

const WIDTH: usize = 1024;
const HEIGHT: usize = 768;
const RADIUS: usize = 8;

/// Triangle filter along one axis; indices are clamped to the edge of the image.
#[kernel(workgroup = 256)]
fn blur<const STEP: usize, const COUNT: usize>(x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        let at = i / STEP % COUNT;
        let start = i - at * STEP;
        let mut sum = 0.0;
        for k in 0..2 * RADIUS + 1 {
            let weight = (k.min(2 * RADIUS - k) + 1) as f32;
            let place = (at + k).max(RADIUS) - RADIUS;
            sum += weight * x[start + place.min(COUNT - 1) * STEP];
        }
        y[i] = sum / ((RADIUS + 1) * (RADIUS + 1)) as f32;
    }
}

#[kernel(workgroup = 256)]
fn to_linear(x: &[u8], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        y[i] = (x[i] as u32 as f32 / 255.0).powf(2.2);
    }
}

#[kernel(workgroup = 256)]
fn brighten(gain: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        y[i] = (gain * x[i]).min(1.0);
    }
}

#[kernel(workgroup = 256)]
fn to_bytes(x: &[f32], y: &mut [u8]) {
    let i = global_index();
    if i < y.len() {
        y[i] = (x[i].powf(1.0 / 2.2) * 255.0).round_ties_even() as u32 as u8;
    }
}

/// Reference value of an interior pixel, in plain Rust.
fn expected(dots: impl Fn(usize) -> u8, row: usize, column: usize) -> f32 {
    let weight = |k: usize| (k.min(2 * RADIUS - k) + 1) as f32 / ((RADIUS + 1) * (RADIUS + 1)) as f32;
    let linear = |r, c| (f32::from(dots((row + r - RADIUS) * WIDTH + column + c - RADIUS)) / 255.0).powf(2.2);
    let of_row = |r| (0..2 * RADIUS + 1).map(|c| weight(c) * linear(r, c)).sum::<f32>();
    let sum: f32 = (0..2 * RADIUS + 1).map(|r| weight(r) * of_row(r)).sum();
    (1.25 * sum).min(1.0).powf(1.0 / 2.2) * 255.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n = WIDTH * HEIGHT;
    let dots = |i: usize| if (i % WIDTH / 64 + i / WIDTH / 64).is_multiple_of(2) { 255 } else { (i % 97) as u8 };

    let device = Device::auto()?;
    let image = device.upload(&(0..n).map(dots).collect::<Vec<u8>>())?;
    let mut blurred = device.zeros(n)?;
    let mut pipeline = Pipeline::new(&device);
    pipeline.record(|p| {
        let (mut linear, mut rows, mut both) = (p.transient(n)?, p.transient(n)?, p.transient(n)?);
        let mut bright = p.transient(n)?;
        to_linear(&image, &mut linear).record(p, n)?;
        blur::<1, WIDTH>(&linear, &mut rows).record(p, n)?;
        blur::<WIDTH, HEIGHT>(&rows, &mut both).record(p, n)?;
        brighten(1.25, &both, &mut bright).record(p, n)?;
        to_bytes(&bright, &mut blurred).record(p, n)
    })?;
    pipeline.run()?;
    let pixels = blurred.download()?;
    for (row, column) in [(60, 70), (300, 500), (HEIGHT - RADIUS - 1, RADIUS)] {
        let (found, expected) = (pixels[row * WIDTH + column], expected(dots, row, column));
        assert!((f32::from(found) - expected).abs() < 1.0, "a pixel is {found} instead of {expected}");
    }

    let plan = pipeline.plan()?;
    println!("{} kernels in {} launches; {} bytes saved", plan.order.len(), plan.launches.len(), plan.avoided_bytes());
    let mut encoder = png::Encoder::new(BufWriter::new(File::create("blur.png")?), WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header()?.write_image_data(&pixels)?;
    println!("wrote blur.png");
    Ok(())
}
