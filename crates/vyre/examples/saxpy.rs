//! `y = a * x + y` on the fastest device of this machine.

use vyre::{Device, kernel};

#[kernel(workgroup = 256)]
fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    let i = global_index();
    if i < y.len() {
        y[i] += a * x[i];
    }
}

fn main() -> Result<(), vyre::Error> {
    let n = 1_000_000;
    let ones = vec![1.0; n];
    let counted: Vec<f32> = (0..n).map(|i| i as f32).collect();

    let device = Device::auto()?;
    let x = device.upload(&counted)?;
    let mut y = device.upload(&ones)?;
    saxpy(2.0, &x, &mut y).run(&device, n)?;

    let mut expected = ones;
    saxpy::host(n, 2.0, &counted, &mut expected);
    assert_eq!(y.download()?, expected);
    println!("{n} elements; the last is {}", expected[n - 1]);
    Ok(())
}
