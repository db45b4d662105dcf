use vyre::{Device, kernel};

#[kernel(workgroup = 64)]
fn copy(x: &[f32], y: &mut [f32]) {
    let i = global_index();
    y[i] = x[i];
}

fn main() -> Result<(), vyre::Error> {
    let device = Device::auto()?;
    let x = device.upload(&[1u32])?;
    let mut y = device.upload(&[1.0f32])?;
    copy(&x, &mut y).run(&device, 1)?;
    Ok(())
}
